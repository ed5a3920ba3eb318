"""The promises about speed, as ``SPECIFICATION.md`` numbers them, checked against a bench.

Bounds are on medians. Under emulation all times are bounded by another figure of the same run, so
that they hold on a slow or busy host too: the same machine took half as long on another day.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torpor.lab.check import Check
from torpor.lab.figures import Results, Unit, shown


@dataclass(frozen=True)
class Bound:
    """At most ``factor`` times the median of the figure ``of``, if there is one, plus ``plus``."""

    plus: float = 0.0
    factor: float = 0.0
    of: str | None = None

    def text(self, unit: Unit) -> str:
        """Return the bound for people."""
        parts = []
        if self.of is not None:
            parts.append(f"{self.factor:.4g} x {self.of}")
        if self.plus or self.of is None:
            parts.append(shown(self.plus, unit))
        return " + ".join(parts)

    def value(self, results: Results) -> float | None:
        """Return the bound in numbers, or None if the other figure was not measured."""
        if self.of is None:
            return self.plus
        other = results.get(self.of)
        return None if other is None else self.factor * other.p50 + self.plus


@dataclass(frozen=True)
class Promise:
    """A promise about the median of the figure ``name``.

    ``emulation`` is for machines of 2 vCPUs and 1 GiB on two cores without KVM; ``kvm`` is what is
    aimed at with KVM and has not been run yet.
    """

    number: str
    name: str
    emulation: Bound
    kvm: Bound


FLAT = "freeze_64mib_of_128"
OUT = Bound(factor=1 / 0.6, of="channel_out_32mib")
IN = Bound(factor=1 / 0.6, of="channel_in_32mib")
"""At least 60 % of what the channel carries."""
PROMISES = (
    Promise(
        "S1",
        "create_ready",
        Bound(factor=1 / 20, of="cold_boot"),
        Bound(factor=1 / 5, of="cold_boot"),
    ),
    Promise(
        "S2",
        "freeze_64mib",
        Bound(0.030, factor=1.5, of="copy_64mib"),
        Bound(0.020, factor=1.5, of="copy_64mib"),
    ),
    Promise(
        "S3", "freeze_64mib", Bound(0.010, factor=1.25, of=FLAT), Bound(0.010, factor=1.25, of=FLAT)
    ),
    Promise(
        "S4",
        "freeze_64mib",
        Bound(factor=1 / 3, of="full_save"),
        Bound(factor=1 / 3, of="full_save"),
    ),
    Promise("S5", "thaw_ready_64mib", Bound(factor=1 / 12, of="cold_boot"), Bound(0.20)),
    Promise("S6", "fork_window", Bound(factor=1 / 16, of="cold_boot"), Bound(0.15)),
    Promise("S7", "fork_10_ready", Bound(factor=1 / 2, of="cold_boot"), Bound(1.0)),
    Promise("S8", "fork_10_first_exec", Bound(factor=7 / 8, of="cold_boot"), Bound(1.2)),
    Promise("S9", "exec_roundtrip", Bound(factor=1 / 64, of="cold_boot"), Bound(0.020)),
    Promise("S10", "idle_machine_mib", Bound(48.0), Bound(48.0)),
    Promise("S11", "idle_machine_cpu", Bound(0.5), Bound(0.5)),
    Promise(
        "S12",
        "echo_terminal",
        Bound(0.005, factor=1.0, of="echo_pipe"),
        Bound(0.005, factor=1.0, of="echo_pipe"),
    ),
    Promise("S13", "file_read_32mib", OUT, OUT),
    Promise("S14", "file_write_32mib", IN, IN),
    Promise("S15", "tar_out_32mib", OUT, OUT),
    Promise("S16", "tar_in_32mib", IN, IN),
    Promise(
        "S17",
        "image_import",
        Bound(factor=1.5, of="image_unpack"),
        Bound(factor=1.5, of="image_unpack"),
    ),
)


def _same(number: str, name: str, bound: Bound) -> Promise:
    """Return a promise that does not depend on how machines are run."""
    return Promise(number, name, bound, bound)


ADDED = Bound(0.015)
RATIO = Bound(1.5)
"""Of what an operation takes on PostgreSQL to what it takes on SQLite."""
SERVICE_PROMISES = (
    _same("S18", "api_create_adds", ADDED),
    _same("S19", "api_exec_adds", ADDED),
    _same("S20", "api_file_write_adds", ADDED),
    _same("S21", "api_file_read_adds", ADDED),
    _same("S22", "api_checkpoint_adds", ADDED),
    _same("S23", "api_fork_2_adds", ADDED),
    _same("S24", "api_pause_adds", ADDED),
    _same("S25", "api_resume_adds", ADDED),
    _same("S26", "api_create_20_p99", Bound(factor=12, of="api_create")),
    _same("S27", "api_paused_200_mib", Bound(50.0)),
    _same("S28", "api_paused_200_cpu", Bound(0.5)),
    _same("S29", "api_idle_20_cpu", Bound(1.0)),
    _same("S30", "api_page_of_10000", Bound(0.050)),
    # Nearly all of it is Python at work, on hosts of any speed.
    Promise("S31", "api_start_10000", Bound(factor=3.0, of="api_libraries"), Bound(2.0)),
    _same("S32", "transfer_in_1gib", Bound(factor=1 / 0.6, of="channel_in_1gib")),
    _same("S33", "transfer_out_1gib", Bound(factor=1 / 0.6, of="channel_out_1gib")),
    _same("S34", "postgresql_create_ratio", RATIO),
    _same("S35", "postgresql_exec_ratio", RATIO),
    _same("S36", "postgresql_file_write_ratio", RATIO),
    _same("S37", "postgresql_file_read_ratio", RATIO),
    _same("S38", "postgresql_checkpoint_ratio", RATIO),
    _same("S39", "postgresql_fork_2_ratio", RATIO),
    _same("S40", "postgresql_pause_ratio", RATIO),
    _same("S41", "postgresql_resume_ratio", RATIO),
    _same("S42", "postgresql_page_ratio", RATIO),
    _same("S43", "preview_page_adds", Bound(0.002)),
    _same("S44", "preview_32mib", Bound(factor=2.0, of="dialled_32mib")),
)
"""What is checked against a bench of the service."""

NETWORK_PROMISES = (
    _same("S45", "network_plain_adds", Bound(0.0005)),
    _same("S46", "network_http_adds", Bound(0.0005)),
    _same("S47", "network_tls_adds", Bound(0.001)),
    _same("S48", "network_stream_ratio", Bound(1 / 0.6)),
    _same("S49", "network_streams_ratio", Bound(1 / 0.5)),
    _same("S50", "policy_decision", Bound(0.000020)),
    _same("S51", "network_flood_ratio", Bound(1.1)),
)
"""What is checked against a bench of the wall."""


def needed(promises: Iterable[Promise]) -> frozenset[str]:
    """Return the figures without which not all promises can be checked."""
    return frozenset(
        name
        for promise in promises
        for name in (promise.name, promise.emulation.of, promise.kvm.of)
        if name is not None
    )


NEEDED = needed(PROMISES)


def spec(results: Results, promises: Iterable[Promise] = PROMISES) -> list[Check]:
    """Check every promise; one whose figures were not measured is not kept."""
    return [_check(promise, results) for promise in promises]


def _check(promise: Promise, results: Results) -> Check:
    kvm = results.host.get("accelerator") == "kvm"
    bound, other = (promise.kvm, promise.emulation) if kvm else (promise.emulation, promise.kvm)
    row = results.get(promise.name)
    value = bound.value(results)
    name = f"{promise.number} {promise.name}"
    unit: Unit = row.figure.unit if row is not None else "s"
    expected = f"at most {bound.text(unit)}"
    if value is not None and bound.of is not None:
        expected += f" = {shown(value, unit)}"
    word = "emulation" if kvm else "KVM, not yet run"
    expected += f" ({word}: {other.text(unit)})"
    if row is None or value is None:
        missing = promise.name if row is None else bound.of
        return Check(name, False, expected, f"{missing} was not measured")
    seen = f"{shown(row.p50, unit)}, the median of {row.runs}"
    return Check(name, row.p50 <= value, expected, seen)
