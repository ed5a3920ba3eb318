"""The commands over files in a session's machine: cp, ls."""

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.harmless import complain
from torpor.cli.server import Form, Host, Output, ask

if TYPE_CHECKING:
    from torpor import client as api

app = typer.Typer()
PANEL = "Inside a session"


def complete_place(incomplete: str) -> list[tuple[str, str]]:
    """Return what ``SESSION:`` may be completed to."""
    from torpor.cli.completion import places

    return places(incomplete)


@app.command(rich_help_panel=PANEL)
def cp(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A path here, SESSION:PATH, or - for standard input.",
            autocompletion=complete_place,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The same; - is standard output.",
            autocompletion=complete_place,
        ),
    ],
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="TRANSFER",
            help="Go on with the copy of a large file that was cut off.",
            show_default=False,
        ),
    ] = None,
    host: Host = None,
) -> None:
    """Copy a file or a directory into a session or out of it.

    What goes into a directory keeps its name there. With `-` a file comes as it is, a directory as
    a tar archive, and what goes to a directory must be one. A file of 256 MiB or more in
    `/workspace` goes by way of the server's disk, so that it can be gone on with.
    """
    from torpor.cli.transfer import CopyError, copy

    def work(client: "api.Client") -> None:
        try:
            copy(client, source, target, resume)
        except CopyError as error:
            complain(str(error))
            raise typer.Exit(1) from None

    ask(host, work)


@app.command(rich_help_panel=PANEL)
def ls(
    place: Annotated[
        str,
        typer.Argument(
            metavar="SESSION:PATH",
            help="The directory, or the file.",
            autocompletion=complete_place,
        ),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="And all that is below it.")
    ] = False,
    sha256: Annotated[bool, typer.Option("--sha256", help="With the SHA-256 of files.")] = False,
    host: Host = None,
    output: Output = Form.TABLE,
) -> None:
    """List files in a session: mode, owner, size, time, name."""
    from torpor.cli.session_tables import plain, print_files
    from torpor.cli.tables import print_json
    from torpor.cli.transfer import There
    from torpor.cli.transfer import place as place_of

    where = place_of(place)
    if not isinstance(where, There):
        where = There(place, "/")

    def work(client: "api.Client") -> list["api.FileEntry"]:
        from torpor.client import FileEntry

        found = client.get_file_status(where.session, where.path, follow=True)
        if found.type != "directory":
            return [FileEntry(where.path, found)]
        entries: list[FileEntry] = []
        after: str | None = None
        while True:
            page = client.list_files(
                where.session, where.path, recursive=recursive, sha256=sha256, after=after
            )
            entries += page.items
            after = page.next
            if after is None:
                return entries

    entries = ask(host, work)
    if output is Form.JSON:
        print_json(plain(entries))
    else:
        print_files(entries)
