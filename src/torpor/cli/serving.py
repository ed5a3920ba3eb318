"""Running the server in this program."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from torpor.cli.harmless import complain
from torpor.cli.progress import Shown
from torpor.cli.running import run, writable_places

if TYPE_CHECKING:
    from torpor.settings import Places, Settings


LOST = 75
"""The exit status of a server that has lost its host to another one, or may have: EX_TEMPFAIL of
sysexits.h. Whoever looks after it may start it anew."""


def serve(flags: Mapping[str, Any], config: Path | None, *, standby: bool = False) -> None:
    """Serve until a signal ends it. What is wrong with the settings or the address is shown once,
    and exits with 1; a server that lost its host exits with 75."""
    with _imported_for_good():
        from torpor.api import HostLostError, ListenError, TlsError
        from torpor.backup import BackupError
        from torpor.settings import SettingsError, load_settings
        from torpor.store.errors import StoreError

    try:
        settings = load_settings(flags, file=config)
        run(_serve(settings, writable_places(), standby))
    except (SettingsError, ListenError, TlsError, StoreError, BackupError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except HostLostError as error:
        complain(str(error))
        raise typer.Exit(LOST) from None


@contextmanager
def _imported_for_good() -> Iterator[None]:
    """Leave what is imported in the block to itself: none of it is garbage. Looking through it for
    some takes a fifth of a start, and would stop a server that runs for a tenth of a second now and
    then."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def _serve(settings: "Settings", places: "Places", standby: bool) -> None:
    from torpor.api import serve as serve_api

    with Shown() as shown:

        def listening(url: str) -> None:
            shown.close()
            then = "machines run on" if settings.on_stop == "leave" else "sessions are paused then"
            typer.echo(f"Torpor is at {url}. Ctrl-C stops it; {then}.", err=True)

        await serve_api(settings, places, standby=standby, report=shown.report, listening=listening)
