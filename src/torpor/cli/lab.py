"""The commands of ``torpor lab``: proofs and measurements with real machines.

What a command needs of ``torpor.lab`` it imports when it runs.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.running import explain, run, writable_places
from torpor.cli.server import Host

if TYPE_CHECKING:
    from torpor.lab.check import Check, Experiment
    from torpor.lab.figures import Results
    from torpor.lab.soak import Long
    from torpor.settings import Places

app = typer.Typer(
    help="Proofs and measurements, made on this host with real machines.", no_args_is_help=True
)

API = Annotated[
    bool,
    typer.Option("--api", help="The service, over HTTP, in place of machines without a server."),
]
NETWORK = Annotated[
    bool, typer.Option("--network", help="The wall: what it costs what passes through it.")
]
JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")
]


@app.command()
def prepare() -> None:
    """Make what machines start from, if it is not there: kernel, default image, golden snapshot.

    Minutes and about 2 GB the first time, then about a second. Also ends what runs on of earlier
    commands that were killed.
    """
    run(_prepare(writable_places()))


async def _prepare(places: "Places") -> None:
    from torpor.cli import leftovers
    from torpor.cli.progress import Shown
    from torpor.images import Recipe, Step, debian_image, golden, maker
    from torpor.lab.laboratory import SIZE
    from torpor.vm import SIZES

    with Shown() as shown:
        made = await maker(places.cache, shown.report)
        image = await debian_image(places.cache, Recipe(), shown.report)
        await golden(made, image, SIZES[SIZE], shown.report)
        for lab in leftovers.leftovers(places.home):
            shown.report(Step(f"ending what a killed program left in {lab.name}"))
            await leftovers.end(lab, made)


@app.command()
def demo(host: Host = None) -> None:
    """Create, pause, wake and fork a session, told as a short story, and leave it there.

    It needs a server: `torpor serve`, or `./dev serve`.
    """
    from torpor.cli.server import connected, told
    from torpor.cli.session_tables import snapshot_tree
    from torpor.cli.tables import console
    from torpor.lab.demo import tell

    with told(), connected(host) as client:
        tell(client, console(), snapshot_tree, _typed(sys.argv[0]))


def _typed(argv0: str) -> str:
    """Return what somebody types here to start this program."""
    found = shutil.which(argv0)
    if found is None or Path(found).name != "torpor" or found == shutil.which("torpor"):
        return "torpor"
    return min(found, os.path.relpath(found), key=len)


@app.command()
def proof(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this experiment; more of them: say it again."),
    ] = None,
    as_json: JSON = False,
    raw: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Keep the raw samples in DIR."),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="Name the experiments and what they do; run none.")
    ] = False,
) -> None:
    """Run the experiments; each says what it expected and what it saw.

    Exit status 1 if one check fails.
    """
    from torpor.cli.tables import print_json
    from torpor.lab.proof import EXPERIMENTS

    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    wanted = [known[name] for name in chosen(only, known, "experiment")]
    if list_them:
        if as_json:
            print_json([{"name": each.name, "story": each.story} for each in wanted])
        else:
            for each in wanted:
                typer.echo(f"{each.name}\n    {each.story}")
        return
    checks = run(_proof(writable_places(), wanted, _made(raw, "--raw"), show=not as_json))
    _end_with(checks, as_json=as_json)


async def _proof(
    places: "Places", wanted: "Sequence[Experiment]", raw: Path | None, *, show: bool
) -> "list[Check]":
    from torpor.cli.progress import Shown
    from torpor.cli.tables import console, print_checks, print_verdict
    from torpor.images import Step
    from torpor.lab.laboratory import laboratory
    from torpor.lab.proof import prove

    out = console()
    began = time.monotonic()
    checks: list[Check] = []
    with Shown() as shown:
        async with laboratory(places, shown.report, raw=raw) as lab:
            shown.close()
            names = iter([*(each.name for each in wanted), ""])
            shown.report(Step(next(names)))
            async for outcome in prove(lab, wanted):
                shown.abandon(erase=True)
                checks += outcome.checks
                if show:
                    name, story = outcome.experiment.name, outcome.experiment.story
                    print_checks(out, name, story, outcome.checks, outcome.seconds)
                if following := next(names):
                    shown.report(Step(following))
    if show:
        print_verdict(out, checks, time.monotonic() - began)
    return checks


@app.command()
def bench(
    runs: Annotated[int, typer.Option(min=1, help="How often each figure is measured.")] = 10,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Only this figure; more of them: say it again."),
    ] = None,
    api: API = False,
    network: NETWORK = False,
    as_json: JSON = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Write the page of figures to FILE."),
    ] = None,
) -> None:
    """Measure this host, beside what one would do without Torpor.

    Figures that are measured together come together, also when only one was asked for.
    """
    from torpor.cli.tables import print_json
    from torpor.lab.bench import FIGURES, NETWORK_FIGURES, SERVICE_FIGURES
    from torpor.lab.figures import results_json

    _one_of(api, network)
    known = SERVICE_FIGURES if api else NETWORK_FIGURES if network else FIGURES
    rows = chosen(only, [figure.name for figure in known], "figure") if only else None
    if write is not None:
        if network:
            raise typer.BadParameter("the page has no section of the wall", param_hint="--write")
        _made(write.parent, "--write")
        if api and not write.exists():
            raise typer.BadParameter(
                f"{write} is not there; the service is a section of the page that"
                " `torpor lab bench --write` makes",
                param_hint="--write",
            )
    results = run(_bench(writable_places(), runs, rows, api=api, network=network))
    if as_json:
        print_json(results_json(results))
    else:
        _show(results)
    if write is not None:  # last: what was measured shall not be lost with a file
        run(_written(results, write, api=api))


def _one_of(api: bool, network: bool) -> None:
    if api and network:
        raise typer.BadParameter("say --api or --network, not both", param_hint="--network")


async def _bench(
    places: "Places", runs: int, rows: Sequence[str] | None, *, api: bool, network: bool
) -> "Results":
    from torpor.cli.progress import Shown
    from torpor.lab.bench import GROUPS, NETWORK_GROUPS, SERVICE_GROUPS
    from torpor.lab.bench import bench as measured
    from torpor.lab.laboratory import laboratory

    groups = SERVICE_GROUPS if api else NETWORK_GROUPS if network else GROUPS
    with Shown() as shown:
        async with laboratory(places, shown.report) as lab:
            return await measured(lab, runs, shown.report, rows, groups)


async def _written(results: "Results", page: Path, *, api: bool) -> None:
    from torpor.lab.page import write_performance, write_service

    (write_service if api else write_performance)(results, page)


def _show(results: "Results") -> None:
    from torpor.cli.tables import console, print_elsewhere, print_figures

    out = console()
    print_figures(out, results)
    print_elsewhere(out, results)


@app.command()
def spec(
    runs: Annotated[int, typer.Option(min=1, help="How often each figure is measured.")] = 10,
    api: API = False,
    network: NETWORK = False,
    as_json: JSON = False,
) -> None:
    """Measure what the specification promises about speed, and hold the one against the other.

    Exit status 1 if a promise is not kept.
    """
    from torpor.cli.tables import console, print_checks, print_verdict
    from torpor.lab.figures import results_json
    from torpor.lab.spec import NETWORK_PROMISES, PROMISES, SERVICE_PROMISES, needed
    from torpor.lab.spec import spec as held

    began = time.monotonic()
    _one_of(api, network)
    promises = SERVICE_PROMISES if api else NETWORK_PROMISES if network else PROMISES
    rows = sorted(needed(promises))
    results = run(_bench(writable_places(), runs, rows, api=api, network=network))
    checks = held(results, promises)
    if not as_json:
        out = console()
        seconds = time.monotonic() - began
        print_checks(out, "spec", "Each promise is held against a median.", checks, seconds)
        print_verdict(out, checks, seconds)
    _end_with(checks, as_json=as_json, **results_json(results))


@app.command()
def soak(
    kills: Annotated[int, typer.Option(min=0, help="Kill the program this many times.")] = 200,
    reboots: Annotated[
        int, typer.Option(min=0, help="Then as often while a machine reboots.")
    ] = 40,
    server_kills: Annotated[
        int, typer.Option(min=0, help="Then kill a server so often while sessions are worked with.")
    ] = 100,
    minutes: Annotated[
        float, typer.Option(min=0, help="Then follow a stream through freezes for so long.")
    ] = 60.0,
    archive_mib: Annotated[
        int, typer.Option(min=0, help="Then carry an archive of so many MiB in and out.")
    ] = 5120,
    image_mib: Annotated[
        int, typer.Option(min=0, help="Then boot from an image with a file of so many MiB.")
    ] = 5120,
    schema_minutes: Annotated[
        float,
        typer.Option(min=0, help="Last, ask a server for so long what its document says one can."),
    ] = 60.0,
    as_json: JSON = False,
) -> None:
    """Kill the program at random moments, freeze and thaw for hours; nothing may be lost.

    A part of which nothing is wanted (0) is left out. Exit status 1 if one check fails.
    """
    from torpor.lab.soak import Long

    wanted = Long(kills, reboots, server_kills, minutes, archive_mib, image_mib, schema_minutes)
    checks = run(_soak(writable_places(), wanted, show=not as_json))
    _end_with(checks, as_json=as_json)


async def _soak(places: "Places", wanted: "Long", *, show: bool) -> "list[Check]":
    from torpor.cli.progress import Shown
    from torpor.cli.tables import console, print_checks, print_verdict
    from torpor.lab.soak import soak as made

    began = time.monotonic()
    with Shown() as shown:
        checks = list(await made(places, wanted, shown.report))
    if show:
        out, seconds = console(), time.monotonic() - began
        print_checks(out, "soak", "", checks, seconds)
        print_verdict(out, checks, seconds)
    return checks


def chosen(asked: Iterable[str] | None, known: Iterable[str], kind: str) -> list[str]:
    """Return those of ``known`` that were asked for, in their own order; all if none was.

    Each word of ``asked`` may be several with commas between. Ends the program with status 2 if
    one is not known.
    """
    names = list(known)
    wanted = {word for each in asked or () for word in each.split(",") if word}
    unknown = sorted(wanted - set(names))
    if unknown:
        raise typer.BadParameter(
            f"there is no {kind} {', '.join(unknown)}; there are: {', '.join(names)}",
            param_hint="--only",
        )
    return [name for name in names if name in wanted] if wanted else names


def _made(directory: Path | None, option: str) -> Path | None:
    """Make a directory for what ``option`` asks for. Ends the program with 2 if that cannot be."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{explain(error)}", param_hint=option) from None
        return directory.absolute()
    return None


def _end_with(checks: "Sequence[Check]", *, as_json: bool, **besides: object) -> None:
    """Print the checks as JSON if asked to, and end the program with what they say.

    ``besides`` are further members of the JSON object.
    """
    from torpor.cli.tables import print_json

    # No check shows nothing: a filter gone wrong must not look like success.
    ok = bool(checks) and all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": checks, **besides})
    raise typer.Exit(0 if ok else 1)
