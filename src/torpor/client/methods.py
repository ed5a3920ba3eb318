"""Methods of clients, made of the functions that describe calls: one description, two clients."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from torpor.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")
Pieces = Generator[bytes, None, None]
AsyncPieces = AsyncGenerator[bytes, None]
F = TypeVar("F", bound=Callable[..., Any])


class Sender(Protocol):
    """What sends a call and waits for its answer, or for the pieces of it."""

    def send(self, call: Call[T]) -> T:
        """Send a call and return what its answer says."""

    def pieces(self, call: Call[None]) -> Pieces:
        """Send a call and yield the body of its answer."""


class AsyncSender(Protocol):
    """The same for coroutines."""

    async def send(self, call: Call[T]) -> T:
        """Send a call and return what its answer says."""

    def pieces(self, call: Call[None]) -> AsyncPieces:
        """Send a call and yield the body of its answer."""


def method(describe: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a :class:`Sender` that sends what ``describe`` describes."""

    @wraps(describe)
    def sent(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(describe(*args, **kwargs))

    return _signed(sent, describe)


def async_method(
    describe: Callable[P, Call[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the same for an :class:`AsyncSender`."""

    @wraps(describe)
    async def sent(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(describe(*args, **kwargs))

    return _signed(sent, describe)


def pieces_method(
    describe: Callable[P, Call[None]],
) -> Callable[Concatenate[Any, P], Pieces]:
    """Return the method of a :class:`Sender` that yields the body of the answer."""

    @wraps(describe)
    def sent(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> Pieces:
        return self.pieces(describe(*args, **kwargs))

    return _signed(sent, describe, "Generator[bytes, None, None]")


def async_pieces_method(
    describe: Callable[P, Call[None]],
) -> Callable[Concatenate[Any, P], AsyncPieces]:
    """Return the same for an :class:`AsyncSender`."""

    @wraps(describe)
    def sent(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> AsyncPieces:
        return self.pieces(describe(*args, **kwargs))

    return _signed(sent, describe, "AsyncGenerator[bytes, None]")


def _signed(sent: F, describe: Callable[..., object], returns: object = None) -> F:
    """Give a method the signature that it has: with ``self``, and what comes of the call."""
    described = signature(describe)
    if returns is None:
        (returns,) = get_args(described.return_annotation)
    own = [Parameter("self", Parameter.POSITIONAL_ONLY), *described.parameters.values()]
    sent.__signature__ = described.replace(parameters=own, return_annotation=returns)  # type: ignore[attr-defined]
    return sent
