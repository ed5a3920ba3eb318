"""What one side of a stream of HTTP/2 has sent and the other has not taken yet."""

from dataclasses import dataclass, field

import h2.connection

from torpor.network.injection import Header


@dataclass
class Flow:
    """One direction of a stream. ``owed`` is how many bytes of credit its sender has not got back:
    it gets them when they have gone on, so that who reads slowly makes the sender wait."""

    data: bytearray = field(default_factory=bytearray)
    owed: int = 0
    ended: bool = False
    """Whether all has come; ``trailers`` are what follows it, if anything."""
    trailers: tuple[Header, ...] = ()
    closed: bool = False
    """Whether all has gone on."""

    def send(self, to: h2.connection.H2Connection, stream: int) -> int:
        """Hand on to ``to`` what its windows allow, and return how many bytes that were.

        Raises :exc:`h2.exceptions.ProtocolError` if the stream is there no more.
        """
        count = 0
        while self.data:
            room = min(to.local_flow_control_window(stream), to.max_outbound_frame_size)
            if room <= 0:
                return count
            piece = bytes(self.data[:room])
            del self.data[:room]
            last = self.ended and not self.data and not self.trailers
            to.send_data(stream, piece, end_stream=last)
            self.closed = last
            count += len(piece)
        if self.ended and not self.closed:
            if self.trailers:
                to.send_headers(stream, self.trailers, end_stream=True)
            else:
                to.end_stream(stream)
            self.closed = True
        return count

    def credit(self) -> int:
        """Return how many bytes the sender gets back now, and no longer owe them."""
        given = max(0, self.owed - len(self.data))
        self.owed -= given
        return given
