"""HTTP/1.1 between a machine and a host, request by request, both read and written anew."""

import asyncio
from collections.abc import Sequence
from typing import Any

import h11

from torpor.network.bindings import Scheme
from torpor.network.injection import LARGEST_BODY, Header, Held, inject_body
from torpor.network.inspect.ahead import Ahead
from torpor.network.inspect.decoding import CodedError, Opening, opening
from torpor.network.inspect.requests import Passed, Refused, Requests
from torpor.network.inspect.tls import Tls
from torpor.network.inspect.watch import Watch
from torpor.network.redaction import Redactor

LARGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers, and of a response's."""
HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    )
)  # fmt: skip
"""Headers between two neighbours (RFC 9110, 7.6.1)."""


class HttpError(Exception):
    """The host's side does not go on as HTTP does, or does not go on at all."""


class Http1:
    """One connection."""

    def __init__(self, machine: Tls, upstream: Tls, requests: Requests, watch: Watch) -> None:
        self._machine_tls = machine
        self._upstream_tls = upstream
        self._machine_ahead = Ahead(machine)
        self._upstream_ahead = Ahead(upstream)
        self._requests = requests
        self._watch = watch
        self._server = h11.Connection(h11.SERVER, LARGEST_HEAD)
        self._client = h11.Connection(h11.CLIENT, LARGEST_HEAD)

    async def serve(self) -> None:
        """Serve it until it ends. Raises :exc:`HttpError` and :exc:`OSError` if it breaks off in
        the middle of an answer."""
        try:
            while await self._cycle():
                self._server.start_next_cycle()
                self._client.start_next_cycle()
        except h11.RemoteProtocolError as error:
            # The machine's; the host's are HttpErrors.
            await self._refuse(Refused(error.error_status_hint, f"This is no HTTP: {error}"))
        except HttpError as error:
            self._watch.told(str(error))
            if self._server.our_state is not h11.SEND_RESPONSE:
                raise
            await self._refuse(Refused(502, str(error)))
        finally:
            await self._machine_ahead.stop()
            await self._upstream_ahead.stop()

    async def _cycle(self) -> bool:
        """Serve one request. Return whether another one may follow."""
        request = await self._next_request()
        if request is None:
            return False
        if len(request.target) + sum(len(a) + len(b) for a, b in request.headers) > LARGEST_HEAD:
            # h11 looks only while a head is not complete.
            await self._refuse(Refused(431, f"A request's head has at most {LARGEST_HEAD} bytes."))
            return False
        scheme: Scheme = "wss" if _is_websocket(request) else "https"
        judged = await self._requests.judge(
            request.method.decode(),
            request.target,
            [value for name, value in request.headers if name == b"host"],
            _end_to_end(request.headers),
            scheme,
        )
        if isinstance(judged, Passed) and judged.body is not None:
            judged = await self._with_body(request, judged, judged.body)
        if isinstance(judged, Refused):
            await self._refuse(judged)
            return False
        return await self._exchange(request, judged, scheme)

    async def _next_request(self) -> h11.Request | None:
        """Return the machine's next request; None if there is none, or the host has ended."""
        while True:
            event = self._server.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            machine, upstream = self._machine_ahead.reading, self._upstream_ahead.reading
            await asyncio.wait([machine, upstream], return_when=asyncio.FIRST_COMPLETED)
            if not machine.done():
                # The host has ended, or speaks without being asked: nothing that goes on.
                return None
            self._server.receive_data(await self._read_machine())

    async def _with_body(
        self, request: h11.Request, passed: Passed, held: Held
    ) -> Passed | Refused:
        """Return a request with the placeholders in its body swapped, and its new length."""
        if any(name == b"expect" for name, _ in request.headers):
            await self._to_machine(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while not isinstance(event := await self._from_machine(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise HttpError("The machine has ended in the middle of a body.")
            body += event.data
            if len(body) > LARGEST_BODY:
                why = f"A body in which a secret is to be put has at most {LARGEST_BODY} bytes."
                self._watch.told(why)
                return Refused(413, why)
        swapped = inject_body(held, passed.headers, bytes(body))
        if swapped != body:
            self._requests.used_in_body(held)
        kept = [each for each in passed.headers if each[0] not in (b"content-length", b"expect")]
        length = (b"content-length", str(len(swapped)).encode())
        return Passed((*kept, length), passed.target, whole=swapped)

    async def _exchange(self, request: h11.Request, passed: Passed, scheme: Scheme) -> bool:
        headers = list(passed.headers)
        if passed.whole is None:
            headers += _framing(request.headers)
        if scheme == "wss":
            headers += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
        out = h11.Request(method=request.method, target=passed.target, headers=headers)
        await self._to_upstream(out)
        if passed.whole is not None:
            await self._to_upstream(h11.Data(data=passed.whole))
            await self._to_upstream(h11.EndOfMessage())
            switched = await self._pass_response()
        else:
            switched = await self._pass_both()
        if switched:
            await self._tunnel()
            return False
        done = {self._server.our_state, self._server.their_state}
        done |= {self._client.our_state, self._client.their_state}
        return done == {h11.DONE}

    async def _pass_both(self) -> bool:
        """Hand the body of a request on, and the response to it, which may come before its end.
        Return as :meth:`_pass_response`."""
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send_body(), name="sending a body")
                switched = await self._pass_response()
                sending.cancel()
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        return switched

    async def _send_body(self) -> None:
        """Hand the body of a request on. If that cannot be, the host's answer says why."""
        try:
            while True:
                event = await self._from_machine()
                if isinstance(event, h11.Data):
                    await self._to_upstream(h11.Data(data=event.data))
                elif isinstance(event, h11.EndOfMessage):
                    await self._to_upstream(h11.EndOfMessage(headers=_end_to_end(event.headers)))
                    break
                else:
                    return
            # The next request waits, but that the machine has ended is passed on at once: a host
            # that has nothing to say for an hour would not learn of it.
            await asyncio.wait([self._machine_ahead.reading])
            if not self._machine_ahead.reading.result():
                await self._upstream_tls.end()
        except (OSError, h11.ProtocolError, HttpError):
            await self._upstream_tls.end()  # what was sent of it is not taken for all of it

    async def _pass_response(self) -> bool:
        """Hand the response to a request on. Return whether another protocol begins."""
        while True:
            event = await self._from_upstream()
            if not isinstance(event, h11.InformationalResponse):
                break
            redactor = self._requests.redactor()
            headers = _redacted(_end_to_end(event.headers), redactor)
            if event.status_code == 101:
                headers += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
            await self._to_machine(
                h11.InformationalResponse(status_code=event.status_code, headers=headers)
            )
            if event.status_code == 101:
                return True
        if not isinstance(event, h11.Response):
            raise HttpError("The host has ended without an answer.")
        redactor = self._requests.redactor()
        opener = self._opener(event)
        headers = _redacted(_end_to_end(event.headers), redactor)
        headers += [] if opener is not None else _framing(event.headers)
        if opener is not None:
            headers = [each for each in headers if each[0] != b"content-encoding"]
        if _closes(event):
            headers.append((b"connection", b"close"))
        await self._to_machine(
            h11.Response(
                status_code=event.status_code,
                headers=headers,
                reason=redactor.whole(bytes(event.reason)),
            )
        )
        await self._pass_body(redactor, opener)
        return False

    def _opener(self, response: h11.Response) -> Opening | None:
        bare = self._server.their_state is h11.ERROR or response.status_code in (204, 304)
        if bare or not self._requests.redacts:
            return None
        try:
            return opening(list(response.headers))
        except CodedError as error:
            self._watch.told(str(error))
            raise HttpError(str(error)) from error

    async def _pass_body(self, redactor: Redactor, opener: Opening | None) -> None:
        while True:
            event = await self._from_upstream()
            if isinstance(event, h11.EndOfMessage):
                await self._show(redactor.end())
                await self._to_machine(
                    h11.EndOfMessage(headers=_redacted(_end_to_end(event.headers), redactor))
                )
                return
            if not isinstance(event, h11.Data):
                raise HttpError("The host has ended in the middle of an answer.")
            pieces = [bytes(event.data)] if opener is None else opener.feed(bytes(event.data))
            try:
                for piece in pieces:
                    await self._show(redactor.feed(piece))
            except CodedError as error:
                raise HttpError(str(error)) from error

    async def _show(self, data: bytes) -> None:
        if data:
            await self._to_machine(h11.Data(data=data))

    async def _tunnel(self) -> None:
        """Pass what follows a 101 on, as bytes, until both sides have ended."""
        redactor = self._requests.redactor()

        async def up() -> None:
            data, _ = self._server.trailing_data
            while True:
                if data:
                    self._watch.sent(len(data))
                    await self._upstream_tls.write(bytes(data))
                data = await self._machine_ahead.read()
                if not data:
                    await self._upstream_tls.end()
                    return

        async def down() -> None:
            data, _ = self._client.trailing_data
            while True:
                if data:
                    self._watch.received(len(data))
                    await self._machine_tls.write(redactor.feed(bytes(data)))
                data = await self._upstream_ahead.read()
                if not data:
                    await self._machine_tls.write(redactor.end())
                    await self._machine_tls.end()
                    return

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(up(), name="websocket, up")
                group.create_task(down(), name="websocket, down")
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _refuse(self, refused: Refused) -> None:
        """Answer a request that does not go on, if its answer has not begun; nothing follows."""
        if self._server.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{refused.why}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._to_machine(h11.Response(status_code=refused.status, headers=headers))
        await self._to_machine(h11.Data(data=body))
        await self._to_machine(h11.EndOfMessage())

    # Both ends

    async def _read_machine(self) -> bytes:
        data = await self._machine_ahead.read()
        self._watch.sent(len(data))
        return data

    async def _from_machine(self) -> Any:
        while (event := self._server.next_event()) is h11.NEED_DATA:
            self._server.receive_data(await self._read_machine())
        return event

    async def _from_upstream(self) -> Any:
        try:
            while (event := self._client.next_event()) is h11.NEED_DATA:
                data = await self._upstream_ahead.read()
                self._watch.received(len(data))
                self._client.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise HttpError(f"The host's answer is no HTTP: {error}.") from error
        except OSError as error:
            # Also an end without TLS's word for it: what came may not be all.
            raise HttpError(f"The host's answer was cut off: {error}.") from error
        return event

    async def _to_machine(self, event: Any) -> None:
        try:
            data = self._server.send(event)
        except h11.LocalProtocolError as error:
            raise HttpError(f"The host's answer cannot be passed on: {error}.") from error
        if data:
            await self._machine_tls.write(data)

    async def _to_upstream(self, event: Any) -> None:
        try:
            data = self._client.send(event)
        except h11.LocalProtocolError as error:
            raise HttpError(f"The request cannot be passed on: {error}.") from error
        if data:
            await self._upstream_tls.write(data)


def _is_websocket(request: h11.Request) -> bool:
    wanted = [value.lower() for name, value in request.headers if name == b"upgrade"]
    return wanted == [b"websocket"] and request.method == b"GET" and request.http_version == b"1.1"


def _end_to_end(headers: Sequence[Header]) -> list[Header]:
    """Return headers without those between neighbours, and without those of the framing."""
    named = {
        each.strip().lower()
        for name, value in headers
        if name == b"connection"
        for each in value.split(b",")
    }
    left_out = HOP | named | {b"content-length"}
    return [(name, value) for name, value in headers if name not in left_out]


def _framing(headers: Sequence[Header]) -> list[Header]:
    """Return how long a body is said to be, one way and not two (RFC 9112, 6.3)."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return [(b"transfer-encoding", b"chunked")]
    return [(name, value) for name, value in headers if name == b"content-length"]


def _redacted(headers: Sequence[Header], redactor: Redactor) -> list[Header]:
    return [(redactor.whole(name), redactor.whole(value)) for name, value in headers]


def _closes(response: h11.Response) -> bool:
    said = [
        each.strip().lower()
        for name, value in response.headers
        if name == b"connection"
        for each in value.split(b",")
    ]
    return response.http_version < b"1.1" or b"close" in said
