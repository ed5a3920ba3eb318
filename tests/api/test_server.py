"""What the server does around the application; all of it is in tests/machine/test_api.py."""

import io
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.api.listening import ListenError, listen, url_of
from torpor.api.logs import Lines, configure_logs
from torpor.api.opened_bearers import ADMIN_TOKEN, opened_bearers, write_secret
from torpor.api.server import serve
from torpor.settings import Places, Settings
from torpor.store import Database
from torpor.vm import HostError
from torpor.vm.home import locked


def test_an_address_that_is_taken_is_said_to_be_so() -> None:
    with listen(Settings(listen="127.0.0.1:0")) as first:
        port = first.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ListenError, match="address already in use"):
            listen(Settings(listen=f"127.0.0.1:{port}"))


def test_without_authentication_nobody_else_is_listened_to() -> None:
    settings = Settings.model_construct(listen="0.0.0.0:0", authentication="none")
    with pytest.raises(ListenError, match="Without authentication"):
        listen(settings)


def test_who_takes_nothing_for_too_long_is_given_up() -> None:
    with (
        listen(Settings(listen="127.0.0.1:0")) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        limit = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit == 120_000


def test_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for text in ("one", "two"):
        write_secret(file, text)
        assert file.read_text() == text + "\n"
        assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_nothing_that_is_asked_can_write_a_line_of_its_own() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines())
    record = logging.makeLogRecord(
        {
            "name": "torpor.api",
            "levelname": "INFO",
            "msg": "GET /a\n2026 forged",
            "fields": {
                "path": '/x y"\n',
                "status": 200,
                "token": None,
                "empty": "",
                "plain": "a/b",
            },
        }
    )
    handler.handle(record)
    (line,) = stream.getvalue().splitlines()
    assert r"GET /a\n2026 forged" in line
    assert line.endswith(r'path="/x y\"\n" status=200 empty="" plain=a/b')


async def test_the_first_token_is_good_only_once_somebody_can_know_it(
    tmp_path: Path, database_url: str
) -> None:
    database = await Database.open(database_url)
    try:
        with pytest.raises(OSError, match="No such file"):
            async with opened_bearers(database, tmp_path / "missing"):
                pass
        async with opened_bearers(database, tmp_path) as bearers:
            caller = bearers.find((tmp_path / ADMIN_TOKEN).read_text().strip())
            assert caller is not None
            assert caller.role == "admin"
    finally:
        await database.close()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a server logs, from here on."""
    root, ours = logging.getLogger(), logging.getLogger("torpor")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    stream = io.StringIO()
    configure_logs(stream)
    # Servers of other tests leave it as uvicorn would have it without us.
    for name in ("uvicorn", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        logging.getLogger(name)._cache.clear()  # type: ignore[attr-defined]
    yield stream
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


async def test_a_database_that_is_made_is_one_line_in_the_log_and_an_old_one_none(
    tmp_path: Path, logged: io.StringIO
) -> None:
    for said in (["torpor.store"], []):
        await (await Database.open(f"sqlite:///{tmp_path}/torpor.db")).close()
        lines = logged.getvalue().splitlines()
        assert [line.split()[2] for line in lines] == said, lines
        logged.seek(0)
        logged.truncate()


def test_of_libraries_only_warnings_are_logged(logged: io.StringIO) -> None:
    for name in ("alembic.runtime.migration", "uvicorn.error", "some.library"):
        logging.getLogger(name).info("hello")
        logging.getLogger(name).warning("beware")
    logging.getLogger("torpor.server").info("here")
    words = [line.split()[1:3] for line in logged.getvalue().splitlines()]
    assert [level for level, _ in words] == ["WARNING"] * 3 + ["INFO"]


async def test_nothing_of_a_home_is_touched_that_another_program_has_open(
    tmp_path: Path, logged: io.StringIO
) -> None:
    home = tmp_path / "home"
    async with locked(home):
        with pytest.raises(HostError, match="Another program"):
            await serve(Settings(listen="127.0.0.1:0"), Places(home, tmp_path / "cache"))
        assert [each.name for each in home.iterdir()] == ["host.lock"]
    assert not (tmp_path / "cache").exists()
