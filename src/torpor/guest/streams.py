"""Flows: what something in the machine writes and reads, and who follows it over the channel.

A *flow* is the output and input of a command or of a connection to a port. It has an id that the
host chose, goes on whether or not anybody listens, and its output is kept in a bounded log. An
*attachment* follows that log from a sequence number on. One that *holds* makes the writer wait when
it falls behind, as a pipe would, and goes on holding for a while after the channel is lost (a
freeze, a restarted host), so that it can attach again and miss nothing; one that does not hold is
told of the gap instead.
"""

import os
from collections import deque
from functools import partial
from typing import Any

from torpor.guest import wire
from torpor.guest.flow import Attachment, Flow, FlowError, read_some, readable
from torpor.guest.inputs import FINISH, Input
from torpor.guest.link import Link
from torpor.guest.log import Log
from torpor.guest.loop import READ, Loop
from torpor.guest.wire import Frame, Kind

KEEP_FINISHED = 64
"""Finished flows whose output can still be replayed."""
KEEP_FINISHED_BYTES = 16 << 20
"""Bytes of output that all finished flows together keep, the last one's in any case."""
CHUNK = 24 << 10
HOLD_GRACE = 60.0
"""Seconds (of the machine's own running time) that a hold outlasts its attachment."""
TERMINAL_REST = 16 << 10
"""More than the bytes that a terminal holds between the two sides: 8 KiB on their way and 4 KiB
arrived (``drivers/tty/pty.c``, ``drivers/tty/n_tty.c``)."""


class Flows:
    """All flows of this machine, in the order of their starts, the finished ones of their ends."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._flows: dict[str, Flow] = {}
        self._attachments: dict[int, Attachment] = {}
        self._turns: deque[int] = deque()
        self._dropped: set[int] = set()
        self.link: Link  # set by the agent: link and flows know each other

    # Flows

    def add(self, flow: Flow, outputs: dict[int, int], sink: int | None) -> None:
        """Begin to read ``outputs`` (descriptors and their source numbers) into a flow, and to
        write what it is sent to ``sink``. The flow owns these descriptors from now on."""
        progress = partial(self._acknowledge_input, flow)
        flow.input = Input(self._loop, sink, progress, FINISH[flow.kind])
        flow.outputs = outputs
        self._flows[flow.id] = flow
        self._watch_outputs(flow)

    def get(self, flow_id: str) -> Flow | None:
        """Return a flow that is known."""
        return self._flows.get(flow_id)

    def find(self, wanted: dict[str, Any]) -> Flow:
        """Return the flow that a request is about. Raises :exc:`FlowError`."""
        known = self._flows.get(str(wanted.get("id")))
        if known is None:
            raise FlowError("ENOENT", f"this machine knows no command {wanted.get('id')!r}")
        return known

    def all(self) -> list[Flow]:
        """Return every flow that is still known."""
        return list(self._flows.values())

    def finish(self, flow: Flow, ending: dict[str, Any]) -> None:
        """Note how a flow ended. It has ended once what was written until now has been read.

        What a command left running may hold its pipes open for ever, so the end is counted in
        bytes, not awaited.
        """
        if flow.ending is not None:
            return
        flow.ending = ending
        if not flow.connection:
            flow.unread = {
                fd: TERMINAL_REST if flow.terminal else readable(fd) for fd in flow.outputs
            }
        self._read_rest(flow)
        self._end_if_read(flow)

    def discard(self, flow: Flow) -> None:
        """Forget a flow that came to nothing; nobody is told."""
        for attachment in list(flow.attachments):
            self._remove(attachment)
        self._let_go(flow)
        flow.input.close()
        self._drain(flow)
        del self._flows[flow.id]

    def _end_if_read(self, flow: Flow) -> None:
        if flow.ended or flow.ending is None or any(flow.unread.values()):
            return
        flow.ended = True
        flow.input.close()
        if flow.connection:
            for fd in list(flow.outputs):
                self._close(flow, fd)
        self._drain(flow)
        self._flows[flow.id] = self._flows.pop(flow.id)  # behind those that ended before
        self._forget_oldest()
        self._forget_left(flow)
        self.link.flush()

    def _forget_left(self, flow: Flow) -> None:
        """End a connection, and then forget it, once nobody follows or may come back to it."""
        if not flow.connection or flow.attachments or flow.lost_holds:
            return
        if flow.ended:
            self._flows.pop(flow.id, None)
        else:
            self.finish(flow, {"exit": None, "signal": None})

    def _forget_oldest(self) -> None:
        """Forget finished flows past what is kept, but none that somebody follows or held."""
        finished = [each for each in self._flows.values() if each.ended]
        kept = sum(each.log.end - each.log.start for each in finished)
        count = len(finished)
        for old in finished[:-1]:
            if count <= KEEP_FINISHED and kept <= KEEP_FINISHED_BYTES:
                return
            if not old.attachments and not old.lost_holds:
                count -= 1
                kept -= old.log.end - old.log.start
                del self._flows[old.id]

    # Output

    def _watch_outputs(self, flow: Flow) -> None:
        full = flow.full
        for fd in flow.outputs:
            if full:
                self._loop.forget(fd)
            else:
                self._loop.watch(fd, READ, partial(self._read, flow, fd))
        if not full and flow.terminal and flow.ending is not None:
            self._loop.after(0, partial(self._read_rest, flow))

    def _read(self, flow: Flow, fd: int, _events: int) -> None:
        data = read_some(fd)
        if data is None:
            return
        if data:
            flow.log.append(flow.outputs[fd], data, flow.held_from)
            self._watch_outputs(flow)
        else:
            self._close(flow, fd)
            if flow.connection and not flow.outputs:
                self.finish(flow, {"exit": 0, "signal": None})
        if fd in flow.unread:
            flow.unread[fd] = max(0, flow.unread[fd] - len(data)) if data else 0
            self._end_if_read(flow)
        self.link.flush()

    def _read_rest(self, flow: Flow) -> None:
        """Read what a terminal still holds: part of it is on its way and not counted as readable
        until somebody reads."""
        for fd in list(flow.outputs) if flow.terminal and flow.ending is not None else ():
            while flow.unread.get(fd) and not flow.full:
                data = read_some(fd)
                if not data:
                    flow.unread[fd] = 0
                else:
                    flow.log.append(flow.outputs[fd], data, flow.held_from)
                    flow.unread[fd] = max(0, flow.unread[fd] - len(data))
            self._end_if_read(flow)
        self.link.flush()

    def _close(self, flow: Flow, fd: int) -> None:
        del flow.outputs[fd]
        self._loop.forget(fd)
        os.close(fd)

    def _drain(self, flow: Flow) -> None:
        """Read on after the end, and drop: a closed pipe would kill what the command left
        running."""
        for fd in flow.outputs:
            self._drop_from(fd)
        flow.outputs = {}

    def _drop_from(self, fd: int) -> None:
        self._dropped.add(fd)
        self._loop.watch(fd, READ, partial(self._drop, fd))

    def _drop(self, fd: int, _events: int) -> None:
        if read_some(fd) == b"":
            self._dropped.discard(fd)
            self._loop.forget(fd)
            os.close(fd)

    def pull(self) -> bytes | None:
        """Return the next frame of stream data, the attachments taking turns; None if none is
        due."""
        for _ in range(len(self._turns)):
            stream = self._turns[0]
            self._turns.rotate(-1)
            attachment = self._attachments.get(stream)
            frame = None if attachment is None else self._next_frame(attachment)
            if frame is not None:
                return frame
            if attachment is None:
                self._turns.remove(stream)
        return None

    def _next_frame(self, attachment: Attachment) -> bytes | None:
        flow, log = attachment.flow, attachment.flow.log
        room = attachment.acked + attachment.window - attachment.seq
        if attachment.seq < log.start and room > 0:
            gap = {"from": attachment.seq, "to": log.start}
            # The window moves with the gap and is not opened by it: else one who never reads would
            # be sent a window's worth with each gap.
            attachment.acked += log.start - attachment.seq
            attachment.seq = log.start
            self._watch_outputs(flow)
            return wire.encode(Kind.GAP, attachment.stream, wire.document(gap))
        chunk = log.read(attachment.seq, min(CHUNK, room)) if room > 0 else None
        if chunk is not None:
            attachment.seq += len(chunk.data)
            return wire.encode(Kind.CHUNK, attachment.stream, wire.chunk(*chunk))
        if flow.ended and attachment.seq == log.end:
            self._remove(attachment)
            self._forget_left(flow)
            ending = {**(flow.ending or {}), "bytes": log.end}
            return wire.encode(Kind.END, attachment.stream, wire.document(ending))
        return None

    # Attachments

    def attach(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Follow a flow from a sequence number on. Raises :exc:`FlowError`."""
        known = self.find(wanted)
        self.follow(known, wanted)
        return known.describe()

    def detach(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Stop following; an attachment that held lets go."""
        attachment = self._attachments.get(int(wanted["stream"]))
        if attachment is not None:
            self._remove(attachment)
            self._watch_outputs(attachment.flow)
            self._forget_oldest()
            self._forget_left(attachment.flow)
        return {}

    def follow(self, flow: Flow, wanted: dict[str, Any]) -> None:
        """Attach the stream that a request names to ``flow``. Raises :exc:`FlowError`."""
        seq = int(wanted.get("seq") or 0)
        if seq > flow.log.end:
            raise FlowError(
                "ESTALE",
                f"command {flow.id} has written {flow.log.end} bytes here, not {seq}: this"
                " machine comes from a snapshot from before the rest was written",
            )
        window = max(1, int(wanted["window"]))
        attachment = Attachment(int(wanted["stream"]), flow, seq, window, bool(wanted.get("hold")))
        self._attachments[attachment.stream] = attachment
        flow.attachments.append(attachment)
        self._turns.append(attachment.stream)
        if attachment.hold:
            flow.room = max(flow.room, window)
            # It takes over from the one that was lost where it goes on.
            lost = [held for held in flow.lost_holds if held <= seq]
            if lost:
                flow.lost_holds.remove(max(lost))
            if not flow.lost_holds:
                self._let_go(flow)
        self._watch_outputs(flow)

    def _remove(self, attachment: Attachment) -> None:
        flow = attachment.flow
        self._attachments.pop(attachment.stream, None)
        flow.attachments.remove(attachment)
        if flow.input_from is attachment:  # no reference cycles: what is forgotten goes at once
            flow.input_from = None

    def attachments_lost(self) -> None:
        """The channel was lost or began anew: nobody is attached; holds last for a grace time."""
        for attachment in list(self._attachments.values()):
            flow = attachment.flow
            self._remove(attachment)
            if attachment.hold:
                flow.lost_holds.append(attachment.acked)
                if flow.hold_timer is not None:
                    flow.hold_timer.cancel()
                flow.hold_timer = self._loop.after(HOLD_GRACE, partial(self._let_go, flow))
            else:
                self._forget_left(flow)
        self._turns.clear()

    def _let_go(self, flow: Flow) -> None:
        if flow.hold_timer is not None:
            flow.hold_timer.cancel()
            flow.hold_timer = None
        flow.lost_holds.clear()
        self._watch_outputs(flow)
        if flow.ended:
            self._forget_oldest()
        self._forget_left(flow)

    def frame(self, frame: Frame) -> None:
        """Take an ACK, CHUNK or END of a stream from the host."""
        attachment = self._attachments.get(frame.stream)
        if attachment is None:
            return
        flow = attachment.flow
        if frame.kind == Kind.ACK:
            attachment.acked = max(attachment.acked, wire.parse_ack(frame.payload))
            self._watch_outputs(flow)
        elif frame.kind == Kind.CHUNK:
            flow.input_from = attachment
            flow.input.take(wire.parse_chunk(frame.payload))
            self._acknowledge_input(flow)
        elif frame.kind == Kind.END:
            flow.input_from = attachment
            flow.input.end_at(int(wire.parse_document(frame.payload)[0]["bytes"]))

    # Succession

    def hand_over(self) -> dict[str, Any]:
        """Return all flows for :meth:`take_over`; these must not be used any more."""
        self.attachments_lost()
        for fd in self._dropped:
            self._loop.forget(fd)
        return {
            "flows": [self._hand_over(flow) for flow in self._flows.values()],
            "dropped": list(self._dropped),
        }

    def _hand_over(self, flow: Flow) -> dict[str, Any]:
        if flow.hold_timer is not None:
            flow.hold_timer.cancel()
        for fd in flow.outputs:
            self._loop.forget(fd)
        return {
            "id": flow.id,
            "about": flow.about,
            "kind": flow.kind,
            "room": flow.room,
            "log": flow.log.hand_over(),
            "outputs": flow.outputs,
            "unread": flow.unread,
            "ending": flow.ending,
            "ended": flow.ended,
            "lost_holds": flow.lost_holds,
            "input": flow.input.hand_over(),
        }

    def take_over(self, left: dict[str, Any]) -> None:
        """Go on with the flows of another. Holds begin their grace time anew."""
        for fd in left["dropped"]:
            self._drop_from(fd)
        for each in left["flows"]:
            flow = Flow(each["id"], each["log"]["keep"], each["about"], each["kind"])
            flow.log = Log.take_over(each["log"])
            flow.room = each["room"]
            flow.unread = each["unread"]
            flow.ending, flow.ended = each["ending"], each["ended"]
            flow.lost_holds = each["lost_holds"]
            self.add(flow, each["outputs"], None)
            flow.input.take_over(each["input"])
            if flow.lost_holds:
                flow.hold_timer = self._loop.after(HOLD_GRACE, partial(self._let_go, flow))

    def _acknowledge_input(self, flow: Flow) -> None:
        """Tell who sends the input how much of it is taken, if they do not know."""
        sender = flow.input_from
        if sender is None or sender.input_acked == flow.input.taken:
            return
        sender.input_acked = flow.input.taken
        self.link.send(Kind.ACK, sender.stream, wire.ack(flow.input.taken))
        self.link.flush()
