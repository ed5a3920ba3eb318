"""The commands of ``torpor image``: images of one's own, by name."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.running import run, working_places, writable_places

if TYPE_CHECKING:
    from torpor.images.importing import Asked
    from torpor.images.names import Listed, Names
    from torpor.settings import Places

app = typer.Typer(help="Images that machines start from.", no_args_is_help=True)

GIB = 1 << 30
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": GIB, "T": 1 << 40}
LARGEST_DISK = 16 << 40

JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")
]
NAME = Annotated[str, typer.Argument(metavar="NAME", help="The image's name.")]
REPLACE = Annotated[
    bool, typer.Option("--replace", help="If there is an image of this name, take its place.")
]
DISK = Annotated[
    str,
    typer.Option(
        "--disk-size", metavar="SIZE", help="The least size of its disk, as 20G. It grows with it."
    ),
]


@app.command()
def build(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE.toml]", help="A recipe: name, suite, packages."),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call it, if not as the recipe says.")] = "",
    package: Annotated[
        list[str] | None, typer.Option(metavar="PACKAGE", help="A package more; say it again.")
    ] = None,
    suite: Annotated[str, typer.Option(help="The Debian suite, if not as in the recipe.")] = "",
    disk_size: DISK = "8G",
    replace: REPLACE = False,
    as_json: JSON = False,
) -> None:
    """Build an image of Debian packages.

    Without a recipe: the packages of the default image, and those that are named here.
    """
    size = disk_bytes(disk_size)
    places = writable_places()
    listed = run(_build(places, recipe, name, tuple(package or ()), suite, size, replace))
    _show(listed, as_json=as_json)


async def _build(
    places: "Places",
    file: Path | None,
    name: str,
    packages: tuple[str, ...],
    suite: str,
    size_bytes: int,
    replace: bool,
) -> "Listed":
    from torpor.cli.progress import Shown
    from torpor.images.debian import Recipe, debian_image
    from torpor.images.names import Names, built_record, check_name
    from torpor.images.recipes import checked, read_recipe

    base = read_recipe(file) if file is not None else Recipe(name="")
    recipe = checked(
        Recipe(
            name or base.name, suite or base.suite, tuple(dict.fromkeys(base.packages + packages))
        )
    )
    if not recipe.name:
        raise typer.BadParameter("a name is needed", param_hint="--name")
    check_name(recipe.name)
    names = Names(places.home)
    _see_that_free(names, recipe.name, replace=replace)
    with Shown() as shown:
        image = await debian_image(places.cache, recipe, shown.report, size_bytes=size_bytes)
    record = built_record(recipe.name, recipe, image)
    await asyncio.to_thread(names.put, record, image.root, replace=replace)
    return names.listed(recipe.name)


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="oci:DIR[:NAME], oci-archive:FILE[:NAME], docker-archive:FILE[:TAG], "
            "docker://REFERENCE, tree:DIR, tar:FILE, or just a path.",
        ),
    ],
    name: Annotated[str, typer.Option(help="What to call it; else after its source.")] = "",
    disk_size: DISK = "8G",
    max_unpacked: Annotated[
        str, typer.Option(metavar="SIZE", help="Refuse what unpacks to more than this.")
    ] = "32G",
    max_entries: Annotated[
        int, typer.Option(min=1, help="Refuse layers with more entries than this.")
    ] = 500_000,
    tls_verify: Annotated[
        bool,
        typer.Option(
            "--tls-verify/--no-tls-verify", help="Whether a registry must prove who it is."
        ),
    ] = True,
    replace: REPLACE = False,
    as_json: JSON = False,
) -> None:
    """Make an image of an OCI image, a directory tree or an archive of one.

    What is not sound, or wants more than it may, is refused, and nothing of it is kept.
    """
    from torpor.images.importing import Asked
    from torpor.images.layers import Limits

    limits = Limits(size_of(max_unpacked, "--max-unpacked"), max_entries)
    asked = Asked(disk_bytes(disk_size), limits, tls_verify)
    called = name or name_of(source)
    _show(run(_import(writable_places(), source, called, asked, replace)), as_json=as_json)


async def _import(
    places: "Places", source: str, name: str, asked: "Asked", replace: bool
) -> "Listed":
    from torpor.cli.progress import Shown
    from torpor.images.importing import import_image
    from torpor.images.names import Names, check_name, imported_record

    check_name(name)
    names = Names(places.home)
    _see_that_free(names, name, replace=replace)
    with Shown() as shown:
        imported = await import_image(places.cache, source, shown.report, asked, name)
    record = imported_record(name, imported)
    await asyncio.to_thread(names.put, record, imported.image.root, replace=replace)
    return names.listed(name)


def _see_that_free(names: "Names", name: str, *, replace: bool) -> None:
    """Refuse a name that is taken before the work, and not only after it."""
    from torpor.images.names import taken

    if not replace and any(each.name == name for each in names.records()):
        raise taken(name)


@app.command("list")
def list_(as_json: JSON = False) -> None:
    """List the images that have a name, and what they take on disk."""
    from torpor.cli.tables import console, print_json

    listed = run(_listed(working_places()))
    if as_json:
        print_json([plain(each) for each in listed])
        return
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "stored", "disk", "created", "from"):
        table.add_column(column)
    for each in listed:
        record = each.record
        table.add_row(
            record.name, decimal(each.stored_bytes), decimal(record.size_bytes),
            record.created_at, Text(record.source),
        )  # fmt: skip
    console().print(table)


async def _listed(places: "Places") -> "list[Listed]":
    from torpor.images.names import Names

    names = Names(places.home)
    return [names.listed(each.name) for each in names.records()]


@app.command()
def show(name: NAME, as_json: JSON = False) -> None:
    """Show all that is known of an image."""
    _show(run(_one(working_places(), name)), as_json=as_json)


async def _one(places: "Places", name: str) -> "Listed":
    from torpor.images.names import Names

    return Names(places.home).listed(name)


@app.command()
def rm(
    name: Annotated[list[str], typer.Argument(metavar="NAME...", help="Images to remove.")],
    as_json: JSON = False,
) -> None:
    """Remove images. Machines and snapshots that came from them keep what they need, and go on."""
    from torpor.cli.tables import console, print_json

    places = writable_places()
    for each in name:
        freed = run(_remove(places, each))
        if as_json:
            print_json({"removed": each, "freed_bytes": freed})
        else:
            from rich.filesize import decimal

            console().print(f"{each} was removed; {decimal(freed)} are free now.")


async def _remove(places: "Places", name: str) -> int:
    from torpor.images.names import Names

    return await asyncio.to_thread(Names(places.home).remove, name)


@app.command()
def export(
    name: NAME,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    form: Annotated[
        str,
        typer.Option("--format", help="oci: an OCI archive; tar: its files; raw: the ext4 disk."),
    ] = "oci",
    as_json: JSON = False,
) -> None:
    """Write an image to a file, for Torpor elsewhere or for other programs."""
    from torpor.cli.tables import console, print_json
    from torpor.images.export import FORMS

    chosen = next((each for each in FORMS if each == form), None)
    if chosen is None:
        raise typer.BadParameter(f"choose one of {', '.join(FORMS)}", param_hint="--format")
    stored = run(_export(writable_places(), name, file, chosen))
    if as_json:
        print_json({"file": str(file.absolute()), "format": form, "stored_bytes": stored})
    else:
        from rich.filesize import decimal

        console().print(f"{file} was written; it takes {decimal(stored)}.", markup=False)


async def _export(places: "Places", name: str, file: Path, form: Any) -> int:
    from torpor.cli.progress import Shown
    from torpor.images.export import export_image
    from torpor.images.names import open_image

    with Shown() as shown:
        image = await open_image(places.cache, places.home, name, shown.report)
        return await export_image(image, file, form, shown.report)


@app.command()
def prune(
    unused_for: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Keep what was used in the last HOURS.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JSON = False,
) -> None:
    """Remove what no name, recipe or version in use needs from the cache.

    Named images, snapshots and machines are never touched.
    """
    from torpor.cli.tables import console, print_json

    found = run(_prune(writable_places(), unused_for * 3600, remove=not dry_run))
    freed = sum(each["freed_bytes"] for each in found)
    if as_json:
        print_json({"removed": not dry_run, "freed_bytes": freed, "items": found})
        return
    from rich.filesize import decimal

    out = console()
    for each in found:
        out.print(f"{each['kind']} {each['name']}: {decimal(each['freed_bytes'])}")
    out.print(f"{decimal(freed)} {'would be' if dry_run else 'are'} free.")


async def _prune(places: "Places", unused_for: float, *, remove: bool) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from torpor.cli.progress import Shown
    from torpor.images.prune import prune as pruned

    with Shown() as shown:
        found = await pruned(
            places.cache, places.home, shown.report, unused_for=unused_for, remove=remove
        )
    return [asdict(each) for each in found]


def plain(listed: "Listed") -> dict[str, Any]:
    """Return what JSON says of a named image."""
    from dataclasses import asdict

    return {
        **asdict(listed.record),
        "stored_bytes": listed.stored_bytes,
        "alone_bytes": listed.alone_bytes,
    }


def _show(listed: "Listed", *, as_json: bool) -> None:
    from torpor.cli.tables import print_image, print_json

    if as_json:
        print_json(plain(listed))
    else:
        print_image(listed)


def name_of(source: str) -> str:
    """Return what an image is called after its source, if nobody says."""
    if source.startswith("docker://"):
        last = source.removeprefix("docker://").partition("@")[0].rpartition("/")[2]
        words = last.partition(":")[0]
    else:
        rest = re.sub(r"^(oci|oci-archive|docker-archive|tree|tar):", "", source)
        if not Path(rest).exists():
            rest = rest.rpartition(":")[0] or rest
        words = Path(rest).absolute().name
        for ending in (".gz", ".zst", ".tgz", ".tar", ".oci"):
            words = words.removesuffix(ending)
    return re.sub(r"[^a-z0-9._-]+", "-", words.lower()).strip("-._")[:63] or "imported"


def size_of(words: str, option: str) -> int:
    """Return the bytes that a size like ``20G`` means. Ends the program with 2 if it is none."""
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)(i?B)?", words.strip(), re.IGNORECASE)
    if found is None:
        raise typer.BadParameter(f"{words!r} is not a size like 20G", param_hint=option)
    return int(found[1]) * UNITS[found[2].upper()]


def disk_bytes(words: str) -> int:
    """Return the bytes of a disk: whole GiB. Ends the program with 2 if that cannot be."""
    size = size_of(words, "--disk-size")
    if not GIB <= size <= LARGEST_DISK:
        raise typer.BadParameter("a disk has 1G to 16T", param_hint="--disk-size")
    return -(-size // GIB) * GIB
