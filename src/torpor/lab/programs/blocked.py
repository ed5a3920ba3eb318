"""blocked.py HOW [SECONDS]: repeat each line of input, waiting for it in HOW; or sleep."""

import queue
import sys
import threading
import time


def read() -> None:
    """Wait in read(2)."""
    for line in sys.stdin:
        print(line, end="", flush=True)


def futex() -> None:
    """Wait in futex(2): the main thread waits for another one."""
    lines: queue.Queue[str] = queue.Queue()

    def take() -> None:
        for line in sys.stdin:
            lines.put(line)

    threading.Thread(target=take, daemon=True).start()
    while True:
        print(lines.get(), end="", flush=True)


def epoll_wait() -> None:
    """Wait in epoll_wait(2), as asyncio does."""
    import asyncio  # takes a second under emulation, which the others need not wait for

    async def repeat() -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            print(line.decode(), end="", flush=True)

    asyncio.run(repeat())


how = sys.argv[1]
if how == "read":
    read()
elif how == "futex":
    futex()
elif how == "epoll_wait":
    epoll_wait()
else:
    began = time.monotonic()
    time.sleep(float(sys.argv[2]))
    print(began, time.monotonic(), flush=True)
