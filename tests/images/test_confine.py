"""What a confined program can do: its work, and nothing else."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from torpor.images import ImageError, unpack
from torpor.images.confine import Room, give, run_confined


def confined(room: Room, script: str) -> list[str]:
    lines: list[str] = []
    asyncio.run(run_confined(room, "sh", "-c", script, on_line=lines.append))
    return lines


@pytest.fixture
def room(tmp_path: Path) -> Room:
    give(tmp_path / "work")
    (tmp_path / "input").write_text("given")
    return Room(tmp_path / "work", 1 << 20, {"/input": tmp_path / "input"})


def test_it_works_in_its_directory_on_what_it_was_given(room: Room) -> None:
    assert confined(room, "cat /input; echo done >/room/result") == ["given"]
    assert room.work is not None
    assert (room.work / "result").read_text() == "done\n"


def test_it_is_nobody_and_has_no_capabilities(room: Room) -> None:
    said = confined(
        room, "id -u; id -G; grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status"
    )
    if os.geteuid() == 0:
        assert said[:2] == [str(0x7000_FFFF)] * 2
    rest = {line.split()[0]: line.split()[1] for line in said[2:]}
    assert rest.pop("NoNewPrivs:") == "1"
    assert {int(value, 16) for value in rest.values()} == {0}


def test_it_sees_no_file_of_the_hosts(room: Room, tmp_path: Path) -> None:
    said = confined(room, "find / -xdev -not -path '/usr/*' 2>/dev/null; true")
    assert "shadow" not in said
    assert "passwd" not in said
    assert tmp_path.name not in " ".join(said)


@pytest.mark.parametrize(
    "attempt",
    [
        "echo x >/input",
        "echo x >/usr/x",
        "echo x >/etc/x",
        "mknod /room/device b 8 0",
        "mount -t tmpfs none /room",
        "chown 0 /room",
        "cat /proc/1/root/etc/shadow",
        "head -c 2M /dev/zero >/room/large",
    ],
)
def test_it_cannot_do_more(attempt: str, room: Room) -> None:
    with pytest.raises(ImageError):
        confined(room, attempt)


def test_it_has_no_network(room: Room) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        python = unpack.confined_python()
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        with pytest.raises(ImageError, match=r"refused|unreachable"):
            confined(room, f'{python} -c "{connect}"')
    devices = confined(room, "cut -d: -f1 -s /proc/net/dev")
    assert [line.strip() for line in devices] == ["lo"]


def test_it_ends_with_who_started_it(room: Room) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(run_confined(room, "sh", "-c", "echo $$ >/room/on; sleep 298"))
        assert room.work is not None
        while not (room.work / "on").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    commands = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.exists()
    ]
    assert not [each for each in commands if b"sleep\x00298" in each]


def test_nobody_else_can_enter_its_directory(room: Room) -> None:
    assert room.work is not None
    assert room.work.stat().st_mode & 0o777 == 0o700
