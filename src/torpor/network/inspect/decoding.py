"""Bodies that come compressed although they were not asked for so: they are opened, so that echoes
in them are found."""

import zlib
from collections.abc import Iterator, Sequence

from torpor.network.injection import Header

PIECE = 64 << 10
GZIP = ("gzip", "x-gzip")


class CodedError(Exception):
    """A body is coded in a way that the wall cannot open, or is damaged."""


class Opening:
    """Opens one body of gzip, of any number of members."""

    def __init__(self) -> None:
        self._inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a piece in, and yield what it opens to, in pieces that are bounded however small
        the piece is. Raises :exc:`CodedError`."""
        rest = data
        while rest:
            try:
                opened = self._inflating.decompress(rest, PIECE)
            except zlib.error as error:
                raise CodedError(f"the body is no gzip: {error}") from error
            if opened:
                yield opened
            if self._inflating.eof:
                rest = self._inflating.unused_data
                self._inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
            else:
                rest = self._inflating.unconsumed_tail


def opening(headers: Sequence[Header]) -> Opening | None:
    """Return what opens the body of a response; None if it is not coded. Raises :exc:`CodedError`
    if nothing does."""
    codings = [
        each.strip().lower()
        for name, value in headers
        if name.lower() == b"content-encoding"
        for each in value.decode("latin-1").split(",")
    ]
    codings = [each for each in codings if each not in ("", "identity")]
    if not codings:
        return None
    if len(codings) == 1 and codings[0] in GZIP:
        return Opening()
    raise CodedError(
        f"the answer came as {', '.join(codings)} although it was asked for as it is; it cannot be"
        " looked through for echoes of secrets"
    )
