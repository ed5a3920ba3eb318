"""A connection on which every request is refused, because there is no host behind it."""

import h11

from torpor.network.inspect.tls import Tls

LARGEST_HEAD = 64 << 10


async def serve_refusal(end: Tls, status: int, why: str) -> None:
    """Answer the first request with a status and a reason. Raises :exc:`OSError`."""
    server = h11.Connection(h11.SERVER, LARGEST_HEAD)
    try:
        while not isinstance(event := server.next_event(), h11.Request):
            if event is not h11.NEED_DATA:
                return
            server.receive_data(await end.read())
    except h11.RemoteProtocolError:
        return
    body = f"{why}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    answer = (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    await end.write(b"".join(server.send(each) or b"" for each in answer))
