"""HTTP/2 between a machine and a host, stream by stream.

What comes of one side goes on to the other as far as its windows allow, and only then does the
sender get its credit back.
"""

import asyncio
import contextlib
import time
from typing import Any

import h2.errors
import h2.events
import h2.exceptions

from torpor.network.injection import LARGEST_BODY, Header, inject_body
from torpor.network.inspect.decoding import CodedError, opening
from torpor.network.inspect.flow import Flow
from torpor.network.inspect.going_away import EVERY_STREAM, GoingAway, going_away
from torpor.network.inspect.requests import Passed, Refused, Requests
from torpor.network.inspect.sides import STREAMS, EndedError, Side, Stream
from torpor.network.inspect.tls import Tls
from torpor.network.inspect.watch import Watch
from torpor.network.redaction import Redactor

RESETS, RESETS_SECONDS = 200, 10.0
"""Streams that a machine may reset in so many seconds: each has cost the host a request."""
SETTINGS_SECONDS = 5.0
GOODBYE_SECONDS = 2.0

_Code = h2.errors.ErrorCodes


class Http2:
    """One connection."""

    def __init__(self, machine: Tls, upstream: Tls, requests: Requests, watch: Watch) -> None:
        self._machine = Side(machine, client=False)
        self._upstream = Side(upstream, client=True)
        self._requests = requests
        self._watch = watch
        self._of_machine: dict[int, Stream] = {}
        self._of_upstream: dict[int, Stream] = {}
        self._refusing = False
        """Whether the host takes no new streams."""
        self._ending = False
        """Whether it is over when no stream is left."""
        self._newest = 0
        """The number of the machine's newest stream that was taken."""
        self._greeted = asyncio.Event()
        self._over = asyncio.Event()
        self._resets: list[float] = []

    async def serve(self) -> None:
        """Serve it until it ends. Raises :exc:`OSError` and :exc:`EndedError` if it breaks off."""
        self._upstream.begin(STREAMS)
        await self._upstream.flush()
        over = asyncio.create_task(self._over.wait(), name="http/2, its end")
        host = asyncio.create_task(self._from_upstream(), name="http/2, from the host")
        tasks: list[asyncio.Task[Any]] = [over, host]
        try:
            # What the host allows is known before the machine is told what it may do.
            greeted = asyncio.create_task(self._greeted.wait(), name="http/2, settings")
            tasks.append(greeted)
            await asyncio.wait(
                [greeted, host], timeout=SETTINGS_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            most = self._upstream.h2.remote_settings.max_concurrent_streams
            self._machine.begin(max(1, min(STREAMS, most)))
            await self._machine.flush()
            machine = asyncio.create_task(self._from_machine(), name="http/2, from a machine")
            tasks.append(machine)
            await asyncio.wait([machine, host, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        broken = [each for each in ended if isinstance(each, Exception)]
        await self._say_goodbye(self._upstream, list(self._of_upstream), broken=bool(broken))
        await self._say_goodbye(self._machine, list(self._of_machine), broken=bool(broken))
        if broken and isinstance(broken[0], h2.exceptions.H2Error):
            raise EndedError(f"It cannot go on: {broken[0]!r}.") from broken[0]
        if broken:
            raise broken[0]

    async def _say_goodbye(self, side: Side, streams: list[int], *, broken: bool) -> None:
        """End one side. Streams that have no end yet must not look as if they had."""
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            for stream in streams:
                side.reset(stream, _Code.INTERNAL_ERROR)
            side.h2.close_connection(_Code.INTERNAL_ERROR if broken else _Code.NO_ERROR)
            async with asyncio.timeout(GOODBYE_SECONDS):  # whoever does not read may not hear it
                await side.flush()

    # From the machine

    async def _from_machine(self) -> None:
        while data := await self._machine.tls.read():
            self._watch.sent(len(data))
            for part in self._machine.frames.feed(data):
                if isinstance(part, GoingAway):
                    self._end_when_done()
                    continue
                for event in self._machine.take(part):
                    await self._machine_says(event)
            await self._machine.flush()

    async def _machine_says(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                await self._request(event)
            case h2.events.DataReceived():
                await self._request_data(event)
            case h2.events.RemoteSettingsChanged():
                for stream in list(self._of_machine.values()):
                    await self._pump_down(stream)
            case h2.events.WindowUpdated():
                for stream in _touched(self._of_machine, event):
                    await self._pump_down(stream)
            case h2.events.StreamReset():
                self._count_reset()
                if found := self._of_machine.get(_id(event)):
                    await self._reset(found, self._upstream, int(event.error_code or 0))
            case _ if found := self._of_machine.get(getattr(event, "stream_id", None) or 0):
                await self._request_ends(found, event)

    async def _request_ends(self, stream: Stream, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.TrailersReceived):
            stream.up.trailers = _headers(event)
        elif isinstance(event, h2.events.StreamEnded) and not stream.up.ended:
            stream.up.ended = True
            await self._go_up(stream)

    async def _request(self, event: h2.events.RequestReceived) -> None:
        stream = Stream(_id(event))
        headers = _headers(event)
        ended = event.stream_ended is not None
        if self._refusing:
            self._machine.reset(stream.machine, _Code.REFUSED_STREAM)
            return
        self._of_machine[stream.machine] = stream
        self._newest = stream.machine
        stream.up.ended = ended
        pseudo = {name: value for name, value in headers if name.startswith(b":")}
        stream.method = pseudo.get(b":method", b"")
        rest = tuple(
            each for each in headers if not each[0].startswith(b":") and each[0] != b"host"
        )
        authorities = [value for name, value in headers if name in (b":authority", b"host")]
        judged = await self._requests.judge(
            stream.method.decode("latin-1"), pseudo.get(b":path", b""), authorities, rest
        )
        if isinstance(judged, Refused):
            await self._refuse(stream, judged)
            return
        if stream.machine not in self._of_machine:
            return
        pseudo[b":authority"] = authorities[0]
        out = tuple(
            (name, judged.target if name == b":path" else pseudo[name])
            for name in (b":method", b":scheme", b":authority", b":path")
        )
        stream.waiting = Passed((*out, *judged.headers), judged.target, judged.body)
        if judged.body is None or ended:
            await self._go_up(stream)

    async def _request_data(self, event: h2.events.DataReceived) -> None:
        stream = self._of_machine.get(_id(event))
        count = event.flow_controlled_length or 0
        if stream is None:
            self._machine.acknowledge(count, _id(event))
            return
        stream.up.data += event.data or b""
        stream.up.owed += count
        if event.stream_ended is not None:
            stream.up.ended = True
        await self._go_up(stream)

    async def _go_up(self, stream: Stream) -> None:
        """Hand on what has come of a request, unless its body has to be whole first."""
        waiting = stream.waiting
        if waiting is not None:
            if waiting.body is not None:
                if len(stream.up.data) > LARGEST_BODY:
                    why = f"A body in which a secret is to be put has at most {LARGEST_BODY} bytes."
                    await self._refuse(stream, Refused(413, why))
                    return
                if not stream.up.ended:
                    await self._give_back(stream.up, self._machine, stream.machine)
                    return
                waiting = self._with_body(stream, waiting)
            stream.waiting = None
            if not self._open_upstream(stream, waiting.headers):
                self._machine.reset(stream.machine, _Code.REFUSED_STREAM)
                self._forget(stream)
                return
        await self._pump_up(stream)

    def _with_body(self, stream: Stream, waiting: Passed) -> Passed:
        assert waiting.body is not None
        before = bytes(stream.up.data)
        swapped = inject_body(waiting.body, waiting.headers, before)
        if swapped != before:
            self._requests.used_in_body(waiting.body)
        stream.up.data[:] = swapped
        headers = tuple(
            (name, str(len(swapped)).encode() if name == b"content-length" else value)
            for name, value in waiting.headers
        )
        return Passed(headers, waiting.target)

    def _open_upstream(self, stream: Stream, headers: tuple[Header, ...]) -> bool:
        """Begin a stream to the host; False if it takes no more."""
        empty = stream.up.ended and not stream.up.data and not stream.up.trailers
        try:
            number = self._upstream.h2.get_next_available_stream_id()
            self._upstream.h2.send_headers(number, headers, end_stream=empty)
        except h2.exceptions.ProtocolError:
            return False
        stream.upstream = number
        stream.up.closed = empty
        self._of_upstream[number] = stream
        return True

    async def _refuse(self, stream: Stream, refused: Refused) -> None:
        """Answer a stream in the host's place."""
        body = f"{refused.why}\n".encode()
        headers = [
            (b":status", str(refused.status).encode()),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._machine.h2.send_headers(stream.machine, headers)
            self._machine.h2.send_data(stream.machine, body, end_stream=True)
            if not stream.up.ended:
                # What is still to come of the request is not wanted (RFC 9113, 8.1).
                self._machine.reset(stream.machine, _Code.NO_ERROR)
        await self._give_back(stream.up, self._machine, stream.machine)
        await self._machine.flush()
        self._forget(stream)

    def _count_reset(self) -> None:
        moment = time.monotonic()
        self._resets = [each for each in self._resets if moment - each < RESETS_SECONDS]
        self._resets.append(moment)
        if len(self._resets) > RESETS:
            raise EndedError(f"The machine has reset {RESETS} streams in {RESETS_SECONDS:.0f} s.")

    # From the host

    async def _from_upstream(self) -> None:
        while data := await self._upstream.tls.read():
            self._watch.received(len(data))
            for part in self._upstream.frames.feed(data):
                if isinstance(part, GoingAway):
                    await self._host_leaves(part)
                    continue
                for event in self._upstream.take(part):
                    await self._host_says(event)
            await self._upstream.flush()

    async def _host_says(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RemoteSettingsChanged():
                self._greeted.set()
                for stream in list(self._of_upstream.values()):
                    await self._pump_up(stream)
            case h2.events.WindowUpdated():
                for stream in _touched(self._of_upstream, event):
                    await self._pump_up(stream)
            case h2.events.DataReceived():
                await self._response_data(event)
            case _ if found := self._of_upstream.get(getattr(event, "stream_id", None) or 0):
                await self._host_says_of(found, event)

    async def _host_says_of(self, stream: Stream, event: h2.events.Event) -> None:
        match event:
            case h2.events.InformationalResponseReceived():
                redactor = self._requests.redactor()
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    self._machine.h2.send_headers(
                        stream.machine, _redacted(_headers(event), redactor)
                    )
                await self._machine.flush()
            case h2.events.ResponseReceived():
                await self._response(stream, event)
            case h2.events.TrailersReceived():
                redactor = stream.redactor or self._requests.redactor()
                stream.down.trailers = _redacted(_headers(event), redactor)
            case h2.events.StreamEnded():
                if not stream.down.ended:
                    self._response_ends(stream)
                await self._pump_down(stream)
            case h2.events.StreamReset():
                await self._reset(stream, self._machine, int(event.error_code or 0))

    async def _response(self, stream: Stream, event: h2.events.ResponseReceived) -> None:
        headers = _headers(event)
        stream.redactor = redactor = self._requests.redactor()
        ended = event.stream_ended is not None
        if self._requests.redacts and not ended and stream.method != b"HEAD":
            try:
                stream.opener = opening(headers)
            except CodedError as error:
                self._watch.told(str(error))
                if stream.upstream is not None:
                    self._upstream.reset(stream.upstream, _Code.CANCEL)
                await self._refuse(stream, Refused(502, str(error)))
                return
        if stream.opener is not None:
            left_out = (b"content-encoding", b"content-length")
            headers = tuple(each for each in headers if each[0] not in left_out)
        try:
            self._machine.h2.send_headers(
                stream.machine, _redacted(headers, redactor), end_stream=ended
            )
        except h2.exceptions.ProtocolError:
            await self._reset(stream, self._upstream, _Code.CANCEL)
            return
        if ended:
            stream.down.ended = stream.down.closed = True
        await self._machine.flush()

    async def _response_data(self, event: h2.events.DataReceived) -> None:
        stream = self._of_upstream.get(_id(event))
        count = event.flow_controlled_length or 0
        if stream is None or stream.redactor is None:
            self._upstream.acknowledge(count, _id(event))
            return
        data = event.data or b""
        try:
            for piece in [data] if stream.opener is None else stream.opener.feed(data):
                stream.down.data += stream.redactor.feed(piece)
                if stream.opener is not None:
                    # What opens to a thousand times its size goes on as it opens.
                    await self._pump_down(stream)
        except CodedError as error:
            self._watch.told(str(error))
            await self._reset(stream, self._machine, _Code.INTERNAL_ERROR)
            return
        stream.down.owed += count
        if event.stream_ended is not None:
            self._response_ends(stream)
        await self._pump_down(stream)

    def _response_ends(self, stream: Stream) -> None:
        if stream.redactor is not None:
            stream.down.data += stream.redactor.end()
        stream.down.ended = True

    async def _host_leaves(self, word: GoingAway) -> None:
        """Go on with the streams that the host still serves; the machine may ask for the others
        again, on another connection."""
        for number, stream in list(self._of_upstream.items()):
            if number > word.last:
                self._machine.reset(stream.machine, _Code.REFUSED_STREAM)
                self._forget(stream)
        if word.last == EVERY_STREAM:
            # It only prepares its end: what is on its way to it is served (RFC 9113, 6.8).
            await self._machine.flush(going_away(EVERY_STREAM, word.code))
        else:
            self._refusing = True
            await self._machine.flush(going_away(self._newest, word.code))
        self._end_when_done()

    # Both

    def _end_when_done(self) -> None:
        self._ending = True
        if not self._of_machine:
            self._over.set()

    async def _pump_up(self, stream: Stream) -> None:
        if stream.upstream is None:
            return
        try:
            stream.up.send(self._upstream.h2, stream.upstream)
        except h2.exceptions.ProtocolError:
            stream.up.data.clear()
            stream.up.closed = True
        await self._upstream.flush()
        await self._give_credit(stream.up, self._machine, stream.machine)
        self._forget_if_done(stream)

    async def _pump_down(self, stream: Stream) -> None:
        try:
            stream.down.send(self._machine.h2, stream.machine)
        except h2.exceptions.ProtocolError:
            stream.down.data.clear()
            stream.down.closed = True
        await self._machine.flush()
        if stream.upstream is not None:
            await self._give_credit(stream.down, self._upstream, stream.upstream)
        self._forget_if_done(stream)

    async def _give_credit(self, flow: Flow, to: Side, stream: int) -> None:
        """Let the sender of what has gone on send more."""
        if count := flow.credit():
            to.acknowledge(count, stream)
            await to.flush()

    async def _give_back(self, flow: Flow, to: Side, stream: int) -> None:
        """Let it send more whatever has become of what it sent."""
        count, flow.owed = flow.owed, 0
        if count:
            to.acknowledge(count, stream)
            await to.flush()

    async def _reset(self, stream: Stream, other: Side, code: int) -> None:
        """End a stream of which one side wants no more."""
        number = stream.machine if other is self._machine else stream.upstream
        for flow, side, own in (
            (stream.up, self._machine, stream.machine),
            (stream.down, self._upstream, stream.upstream),
        ):
            if own is not None:
                await self._give_back(flow, side, own)
        if number is not None:
            other.reset(number, code)
            await other.flush()
        self._forget(stream)

    def _forget_if_done(self, stream: Stream) -> None:
        if stream.up.closed and stream.down.closed:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._of_machine.pop(stream.machine, None)
        if stream.upstream is not None:
            self._of_upstream.pop(stream.upstream, None)
        if self._ending and not self._of_machine:
            self._over.set()


def _touched(streams: dict[int, Stream], event: h2.events.WindowUpdated) -> list[Stream]:
    """Return the streams that may go on because of a window that has grown."""
    if not event.stream_id:
        return list(streams.values())
    found = streams.get(event.stream_id)
    return [] if found is None else [found]


def _id(event: Any) -> int:
    assert isinstance(event.stream_id, int)
    return event.stream_id


def _headers(event: Any) -> tuple[Header, ...]:
    return tuple((bytes(name), bytes(value)) for name, value in event.headers or ())


def _redacted(headers: tuple[Header, ...], redactor: Redactor) -> tuple[Header, ...]:
    return tuple(
        (name if name.startswith(b":") else redactor.whole(name), redactor.whole(value))
        for name, value in headers
    )
