"""The server that a command speaks to: where it is, with which token, and what it refuses.

Only commands that speak to one import the client, and with it an HTTP library.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from torpor.cli.harmless import complain
from torpor.cli.running import working_places

if TYPE_CHECKING:
    from torpor.client import AsyncClient, Client, ClientError, Patience
    from torpor.settings.presence import Presence

T = TypeVar("T")

TOKEN_FILE = "admin-token"  # noqa: S105 (a name)
"""What a server leaves in its home at its first start, for whoever may read it."""


class Form(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Return what a name of a session may be completed to; nothing if no server answers."""
    from torpor.cli.completion import sessions

    return sessions(incomplete)


Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="URL",
        envvar="TORPOR_URL",
        help="The server; by default the one on this computer.",
        show_default=False,
    ),
]
Output = Annotated[Form, typer.Option("--output", "-o", help="How to print what comes of it.")]
Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        help="The session: its name, its id, or the beginning of that.",
        autocompletion=complete_session,
        show_default=False,
    ),
]
Sessions = Annotated[
    list[str],
    typer.Argument(
        metavar="SESSION...",
        help="The sessions: names, ids, or beginnings of ids.",
        autocompletion=complete_session,
        show_default=False,
    ),
]


def local_server() -> "Presence | None":
    """Return the server that serves this user's home now, if one does."""
    from torpor.settings.presence import presence

    return presence(working_places().home)


def told_url(host: str | None) -> str | None:
    """Return the address that the user says, with --host or TORPOR_URL."""
    return host or os.environ.get("TORPOR_URL") or None


def token_for(url: str) -> str | None:
    """Return the token to show the server at ``url``: that of ``TORPOR_TOKEN``; for a server on
    this computer else the one in its home, if this user may read that. It is shown to no other."""
    from torpor.client import is_local

    said = os.environ.get("TORPOR_TOKEN")
    if said:
        return said
    if not is_local(url) and url != getattr(local_server(), "url", None):
        return None
    try:
        return token_file().read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def token_file() -> Path:
    """Return where the token of this computer's server is."""
    return working_places().home / TOKEN_FILE


def address(host: str | None) -> str:
    """Return the server's address: what the user says, else that of the server of this home, else
    the usual one. Raises :exc:`TargetError`."""
    from torpor.client.target import target

    if told_url(host) is None and (here := local_server()) is not None:
        return here.url
    return target(host, "none").url


def connected(host: str | None, patience: "Patience | None" = None) -> "Client":
    """Return a client of the server."""
    from torpor.client import Client

    url = address(host)
    return Client(url, token_for(url), patience=patience)


def connected_async(host: str | None) -> "AsyncClient":
    """Return a client of the server for coroutines."""
    from torpor.client import AsyncClient

    url = address(host)
    return AsyncClient(url, token_for(url))


def ask(host: str | None, work: Callable[["Client"], T]) -> T:
    """Return what ``work`` returns, which is given a client. Errors are told as in :func:`told`."""
    with told(), connected(host) as client:
        return work(client)


@contextmanager
def told() -> Iterator[None]:
    """Show an error once, without a traceback, and exit with 1; with 130 for Ctrl-C."""
    from torpor.client import ClientError

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except ClientError as error:
        words = explained(error)
    except BrokenPipeError:
        raise  # a closed pipe is the command line library's affair
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        words = f"{error.strerror or error}{where}."
    except BaseExceptionGroup as error:
        single = _only(error)
        if not isinstance(single, ClientError):
            raise
        words = explained(single)
    else:
        return
    complain(words)
    raise typer.Exit(1)


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def explained(error: "ClientError") -> str:
    """Return what to tell a user of an error: what happened, and what to do here."""
    from torpor.client import (
        ForbiddenError,
        UnauthorizedError,
        UnreachableError,
        UntrustedError,
        is_local,
    )

    if isinstance(error, UnauthorizedError):
        return f"{error.message} {_about_tokens()}"
    if isinstance(error, ForbiddenError):
        return f"{error} `torpor status` says whose token this is."
    if isinstance(error, UntrustedError):
        return str(error)
    if isinstance(error, UnreachableError) and not error.sent:
        if is_local(error.url):
            return (
                f"There is no Torpor server at {error.url}. Start one with `torpor serve`, or say"
                " where it is with --host or TORPOR_URL."
            )
        return f"{error} See that --host or TORPOR_URL is right, and that a server runs there."
    return str(error)


def _about_tokens() -> str:
    if os.environ.get("TORPOR_TOKEN"):
        return (
            "The one in TORPOR_TOKEN is not valid: it may have been revoked, or be over, or be"
            " another server's. `torpor token create` makes one, for who is an admin."
        )
    file = token_file()
    if file.exists() and os.access(file, os.R_OK):
        return f"The one in {file} is not valid there. Set TORPOR_TOKEN to one that is."
    return (
        f"Set TORPOR_TOKEN, or run this as the user whose server it is: the token of its admin is"
        f" in {file}, which cannot be read here."
    )


def variables(said: list[str] | None, option: str, environ: bool = False) -> dict[str, str]:
    """Return what ``NAME=VALUE`` says, for each; with ``environ``, a NAME alone stands for what it
    is here. Ends the program with 2 for what is neither."""
    found = {}
    for each in said or ():
        name, equals, value = each.partition("=")
        if not equals and environ and name in os.environ:
            value = os.environ[name]
        elif not equals or not name:
            form = "NAME=VALUE, or NAME if it is set here" if environ else "NAME=VALUE"
            raise typer.BadParameter(f"{each!r} is not {form}", param_hint=option)
        found[name] = value
    return found


def print_plain(value: object) -> None:
    """Print what a server has answered as JSON."""
    from torpor.cli.session_tables import plain
    from torpor.cli.tables import print_json

    print_json(plain(value))
