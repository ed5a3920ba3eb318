"""Both clients can do the same, in the same way."""

import inspect

from torpor.client import AsyncClient, Client
from torpor.client.async_streams import AsyncExecStream, AsyncPortStream
from torpor.client.streams import ExecStream, PortStream


def methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and callable(member)
    }


def parameters(kind: type) -> dict[str, list[str]]:
    return {name: [str(p) for p in s.parameters.values()] for name, s in methods(kind).items()}


def test_clients_have_the_same_methods_with_the_same_parameters() -> None:
    assert parameters(Client) == parameters(AsyncClient)
    assert len(methods(Client)) > 40


def test_streams_have_the_same_methods_with_the_same_parameters() -> None:
    assert parameters(ExecStream) == parameters(AsyncExecStream)
    assert parameters(PortStream) == parameters(AsyncPortStream)


def test_a_described_call_returns_what_it_says_and_takes_self() -> None:
    said = inspect.signature(Client.list_sizes)
    assert list(said.parameters) == ["self"]
    assert "Size" in str(said.return_annotation)
    assert "Call" not in str(said.return_annotation)


def test_every_method_is_documented() -> None:
    for kind in (Client, AsyncClient, ExecStream, AsyncExecStream, PortStream, AsyncPortStream):
        bare = [name for name in methods(kind) if not (getattr(kind, name).__doc__ or "").strip()]
        assert bare == [], kind
