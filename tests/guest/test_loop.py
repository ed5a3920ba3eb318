import os
import socket
import time
from collections.abc import Iterator

import pytest

from torpor.guest.loop import EDGE, READ, WRITE, Loop

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop._epoll.close()


def turn_until(loop: Loop, seen: list[object], count: int) -> None:
    end = time.monotonic() + 5
    while len(seen) < count and time.monotonic() < end:
        loop.turn()
    assert len(seen) == count


def test_timers_run_in_order_of_their_time_then_of_their_making(loop: Loop) -> None:
    ran: list[object] = []
    loop.after(0.02, lambda: ran.append("late"))
    loop.after(0, lambda: ran.append("first"))
    loop.after(0, lambda: ran.append("second"))
    turn_until(loop, ran, 3)
    assert ran == ["first", "second", "late"]


def test_a_cancelled_timer_does_not_run_and_is_not_waited_for(loop: Loop) -> None:
    ran: list[object] = []
    loop.after(3600, lambda: ran.append("never")).cancel()
    loop.after(0.01, lambda: ran.append("ran"))
    turn_until(loop, ran, 1)
    assert ran == ["ran"]


def test_one_timer_can_cancel_another_that_is_due(loop: Loop) -> None:
    ran: list[object] = []
    loop.after(0, lambda: (other.cancel(), ran.append("first")))  # type: ignore[func-returns-value]
    other = loop.after(0, lambda: ran.append("never"))
    loop.after(0.01, lambda: ran.append("last"))
    turn_until(loop, ran, 2)
    assert ran == ["first", "last"]


def test_a_timer_can_make_the_next_one(loop: Loop) -> None:
    ran: list[object] = []

    def again() -> None:
        ran.append(len(ran))
        loop.after(0, again)

    loop.after(0, again)
    turn_until(loop, ran, 5)


def test_a_ready_descriptor_is_told_with_its_events(loop: Loop, pair: Pair) -> None:
    ours, theirs = pair
    seen: list[object] = []
    loop.watch(ours.fileno(), READ, lambda events: seen.append((events, ours.recv(10))))
    theirs.send(b"news")
    turn_until(loop, seen, 1)
    assert seen == [(READ, b"news")]


def test_watching_again_replaces_what_was_registered(loop: Loop, pair: Pair) -> None:
    ours, _ = pair
    seen: list[object] = []
    loop.watch(ours.fileno(), READ, lambda _: seen.append("old"))
    loop.watch(ours.fileno(), WRITE, lambda _: (seen.append("new"), loop.forget(ours.fileno())))  # type: ignore[func-returns-value]
    turn_until(loop, seen, 1)
    assert seen == ["new"]


def test_a_forgotten_descriptor_is_not_told_and_can_be_watched_anew(loop: Loop, pair: Pair) -> None:
    ours, theirs = pair
    seen: list[object] = []
    loop.forget(ours.fileno())  # unknown: fine
    loop.watch(ours.fileno(), READ, lambda _: seen.append("old"))
    loop.forget(ours.fileno())
    theirs.send(b"x")
    loop.after(0.01, lambda: seen.append("timer"))
    turn_until(loop, seen, 1)
    assert seen == ["timer"]
    loop.watch(ours.fileno(), READ, lambda _: (seen.append("new"), ours.recv(1)))  # type: ignore[func-returns-value]
    turn_until(loop, seen, 2)
    assert seen == ["timer", "new"]


def test_a_handler_may_close_another_descriptor_that_is_ready(loop: Loop) -> None:
    pipes = [os.pipe(), os.pipe()]
    seen: list[object] = []

    def close_the_other(own: int, other: int) -> None:
        seen.append(own)
        for fd in (own, other):
            loop.forget(fd)
            os.close(fd)

    (a, a_in), (b, b_in) = pipes
    loop.watch(a, READ, lambda _: close_the_other(a, b))
    loop.watch(b, READ, lambda _: close_the_other(b, a))
    os.write(a_in, b"x")
    os.write(b_in, b"x")
    loop.turn()
    assert len(seen) == 1
    os.close(a_in)
    os.close(b_in)


def test_an_edge_is_told_once_although_the_other_end_is_gone(loop: Loop, pair: Pair) -> None:
    ours, theirs = pair
    seen: list[object] = []
    loop.watch(ours.fileno(), READ | EDGE, lambda _: seen.append("edge"))
    theirs.close()
    turn_until(loop, seen, 1)
    loop.after(0.01, lambda: seen.append("timer"))
    turn_until(loop, seen, 2)
    assert seen == ["edge", "timer"]
