"""Machines that were forked from one snapshot share no random number, and no name."""

import asyncio
import json
import signal
from collections.abc import Mapping
from typing import Any

from torpor.lab.check import Check, Experiment
from torpor.lab.checks.fork import machines_of
from torpor.lab.laboratory import Laboratory
from torpor.lab.probes import ask, start_probe, until
from torpor.vm import Machine, Wanted

DIRECTORY = "/srv/lab/randomness"
CHILDREN = 4
VALUES = 100
PAUSE = 1.5
"""Seconds between freeze and thaw: the jump of the wall clock by which the probe knows a thaw."""
NAMES = {
    "/proc/sys/kernel/random/uuid": "the kernel's next UUID",
    "/etc/machine-id": "machine-id",
    "/proc/sys/kernel/hostname": "hostname",
}


async def run(lab: Laboratory) -> list[Check]:
    """Thaw several machines from one snapshot of a process that draws all the time; compare."""
    parent = await lab.machine("parent")
    probe = await start_probe(parent, "randomness.py", DIRECTORY)

    async def draws() -> bool:
        return int((await ask(parent, probe))["drawn"]) > 1000

    await until(draws, "the probe to draw")
    await parent.agent.signal(probe.exec_id, signal.SIGUSR2)
    frozen = await lab.host.freeze(parent, Wanted("run", children=CHILDREN))
    await asyncio.sleep(PAUSE)
    children = machines_of(await lab.host.thaw_many(frozen.manifest.id, CHILDREN))
    machines = {"parent": parent} | {f"child {n}": m for n, m in enumerate(children, 1)}
    names = {name: await _names(machine) for name, machine in machines.items()}
    told = {name: await ask(machines[name], probe) for name in machines if name != "parent"}
    # The parent saw no thaw: its values are those that the first child's twin would have drawn.
    first = min(int(said["thawed"]) for said in told.values())
    await parent.agent.write_file(f"{DIRECTORY}/from", str(first).encode())
    told["parent"] = await ask(parent, probe)
    lab.keep("fork-randomness/values.json", json.dumps({"told": told, "names": names}, indent=1))
    values = {name: said["values"] for name, said in told.items()}
    of_children = {name: values[name] for name in values if name != "parent"}
    return [
        _none_twice(
            "fork-randomness-first-values",
            f"the first {VALUES} values that a process spinning on getrandom sees after the thaw "
            f"occur in no other of {CHILDREN} children",
            of_children,
        ),
        _none_twice(
            "fork-randomness-parent",
            f"nor among the {VALUES} that it saw in the parent, which ran on, from there on",
            values,
        ),
        _all_differ(
            "fork-randomness-names",
            ", ".join(NAMES.values()) + f" differ in all {len(machines)} machines",
            names,
        ),
        _all_differ(
            "fork-randomness-kernel",
            "os.urandom, uuid.uuid4, secrets and SystemRandom of the running Python differ, too",
            {name: said["kernel"] for name, said in told.items()},
        ),
        _own({name: said["own"] for name, said in told.items()}),
    ]


async def _names(machine: Machine) -> dict[str, str]:
    return {path: (await machine.agent.read_file(path)).decode().strip() for path in NAMES}


def _none_twice(name: str, expected: str, values: Mapping[str, list[str]]) -> Check:
    """Check that no value that the spinning process saw occurs twice, in one machine or two."""
    every = [value for each in values.values() for value in each]
    wanted = VALUES * len(values)
    twice = len(every) - len(set(every))
    whole = len(every) == wanted and "?" not in every
    return Check(
        name,
        whole and not twice,
        expected,
        f"{wanted} values, {twice} of them twice"
        if whole
        else f"{len(every)} of {wanted} values, {every.count('?')} of them not kept",
    )


def _all_differ(name: str, expected: str, values: Mapping[str, Mapping[Any, Any]]) -> Check:
    """Check that no kind of value is the same in two machines."""
    shared = []
    kinds = next(iter(values.values()))
    for kind in kinds:
        found = [each[kind] for each in values.values() if kind in each]
        if len(set(found)) != len(values):
            shared.append(f"{kind}: {found}")
    seen = f"{len(kinds)} kinds of {len(values)} machines, all different"
    return Check(name, not shared, expected, "; ".join(shared[:3]) or seen)


def _own(values: Mapping[str, Mapping[str, Any]]) -> Check:
    """Check that generators in a process's own memory go on alike, as is said of them.

    No machine can change that from outside. OpenSSL seeds its generator from the kernel once and
    then after 2**16 requests, an hour, or a fork(2), which this is not (``RAND(7)``).
    """
    kinds = next(iter(values.values()))
    alike = {kind: len({each[kind] for each in values.values()}) == 1 for kind in kinds}
    return Check(
        "fork-randomness-own-generators",
        all(alike.values()),
        "random.random() and OpenSSL's RAND_bytes of a process that used them before the fork go "
        "on alike: their state is in its own memory, and a program that minds must seed them anew",
        ", ".join(f"{kind} {'alike' if same else 'differs'}" for kind, same in alike.items()),
    )


EXPERIMENT = Experiment(
    "fork-randomness",
    "A process draws random numbers without a rest while its machine is forked: from the first one "
    "after the thaw on, no two machines may draw the same.",
    run,
)
