"""The commands over the database while no server uses it: copy."""

from typing import Annotated

import typer

from torpor.cli.running import run
from torpor.cli.server import Form, Output

app = typer.Typer(help="The server's database, while no server uses it.", no_args_is_help=True)


@app.callback()
def _database() -> None:
    pass  # one command is to be called by its name, as more would be


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of a database.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="That of an empty or a new one.")],
    output: Output = Form.TABLE,
) -> None:
    """Copy a database to another one, of SQLite or of PostgreSQL.

    URLs are those of the setting `database`: sqlite:////path/of/the/file, or
    postgresql://user@host/database. All of it is copied, or nothing. Stop the servers that use it
    first; then set `database` to the new one.
    """
    from torpor.cli.tables import print_json
    from torpor.store import offline

    copied = run(offline.copy(source, target))
    words = offline.words_of(target)
    if output is Form.JSON:
        print_json({"rows": copied, "database": words})
    else:
        typer.echo(f"{copied} rows are in {words}.")
