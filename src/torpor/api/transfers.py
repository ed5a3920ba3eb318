"""Large files and archives, brought into a workspace or fetched from it by way of the server."""

from typing import Annotated, Any

from fastapi import Header, Path, Response
from starlette.requests import Request

from torpor.api.errors import RefusedError, invalid, refused
from torpor.api.permissions import Permission, needs
from torpor.api.public import absolute
from torpor.api.ranges import part_of
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.transfers import (
    BegunTransfer,
    CancelBody,
    CancelledTransfer,
    CommitBody,
    CommittedTransfer,
    NewTransferBody,
    PartNumbers,
    PartUrl,
    PartUrls,
    ReceivedPart,
    TransferBody,
)
from torpor.api.signing import Signed
from torpor.api.streaming import Stream, begun
from torpor.api.uploads import body_pieces
from torpor.api.wiring import Asker, By, Idempotency, Server, Service, SessionId, note, signed
from torpor.sessions.errors import NotFoundError
from torpor.sessions.model import now
from torpor.sessions.transfers import NewTransfer, Progress
from torpor.sessions.workspace_paths import decoded, resolve, resolve_file
from torpor.store.records import Transfer

routes = router("transfers")

TRANSFERS = SESSION + "/workspace/transfers"
TRANSFER = TRANSFERS + "/{transfer_id}"
PART, PAYLOAD = "transfer.part", "transfer.payload"
"""What URLs are signed for."""
PART_ENDING, PAYLOAD_ENDING = "/part", "/payload"
URL_SECONDS = 3600.0
"""How long a URL holds from which something is fetched."""
BYTES = "application/octet-stream"
_BINARY = {"schema": {"type": "string", "format": "binary"}}

TransferId = Annotated[str, Path(max_length=64, description="The transfer's id.")]


@routes.post(
    TRANSFERS,
    status_code=201,
    responses={
        202: {"model": BegunTransfer, "description": "A download is made ready to be fetched."},
        **errors(400, 404, 409, 413, 415, 503, 507),
    },
    summary="Begin a transfer",
)
@needs(Permission.USE)
async def create_transfer(
    response: Response,
    service: Service,
    session_id: SessionId,
    by: By,
    key: Idempotency,
    body: NewTransferBody,
) -> BegunTransfer:
    """Begin to upload a file or an archive of up to 50 GiB, or to download one.

    An upload (201) is sent in parts, each to a URL of its own, and then committed. A download (202)
    is made ready by the server; look at it until it is completed.
    """
    archive = body.is_archive or body.as_archive
    path = (resolve if archive else resolve_file)(body.path, body.path_encoding)
    size = None if body.size_bytes is None else int(body.size_bytes)
    new = NewTransfer(body.direction, path, archive, size, body.sha256)
    made = await service.transfers.create(session_id, by, new, key)
    upload = made.direction == "upload"
    response.status_code = 201 if upload else 202
    return BegunTransfer(
        transfer_id=made.id,
        direction=made.direction,
        status=made.status,
        expires_at=made.expires_at,
        part_size=made.part_size,
        upload_id=made.id if upload else None,
    )


@routes.post(
    TRANSFER + "/part-upload-urls",
    responses=errors(400, 404, 409, 415, 503),
    summary="Get the URLs of parts",
)
@needs(Permission.USE)
async def create_part_upload_urls(
    request: Request,
    server: Server,
    session_id: SessionId,
    transfer_id: TransferId,
    caller: Asker,
    body: PartNumbers,
) -> PartUrls:
    """Get a URL for each of some parts, to which it is to be PUT. Nothing is changed by that."""
    transfers = server.sessions.transfers
    transfer = await transfers.parts.check(session_id, transfer_id, body.part_numbers)
    seconds = (transfer.expires_at - now()).total_seconds()

    def url(number: int) -> str:
        claims = {"s": session_id, "t": transfer_id, "n": number}
        path = server.signer.path(PART, caller, claims, seconds=seconds, ending=PART_ENDING)
        return absolute(request, path)

    return PartUrls(
        transfer_id=transfer_id,
        expires_at=transfer.expires_at,
        part_urls=[PartUrl(part_number=each, upload_url=url(each)) for each in body.part_numbers],
    )


@routes.put(
    "/signed/{text}" + PART_ENDING,
    responses=errors(400, 404, 408, 409, 411, 503, 507),
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: _BINARY}}},
    summary="Upload a part",
)
@needs(Permission.USE, audit="transfer.part", body_limit=None)
async def upload_part(
    request: Request,
    response: Response,
    service: Service,
    allowed: Annotated[Signed, signed(PART)],
    text: Annotated[str, Path(description="What was signed.")],
) -> ReceivedPart:
    """Upload a part to its URL. It has to say how large it is; one that is sent again takes the
    place of the one before. When this is answered the part is on the server's disk."""
    session, transfer, number = (allowed.claims[name] for name in ("s", "t", "n"))
    request.state.session = session
    note(request, transfer=transfer, part=number)
    length = _length(request)
    pieces = body_pieces(request)
    part = await service.transfers.parts.put(session, transfer, number, length, pieces)
    note(request, size=part.size)
    response.headers["etag"] = f'"{part.sha256}"'
    return ReceivedPart(part_number=part.number, size_bytes=part.size, sha256=part.sha256)


def _length(request: Request) -> int:
    said = request.headers.get("content-length")
    if said is None:
        raise refused(
            411,
            "length_required",
            "This request needs the header Content-Length.",
            todo="Say how many bytes the part has.",
        )
    if not (said.isascii() and said.isdigit()):
        raise RefusedError(invalid([f"header 'Content-Length': {said!r} is no number"]))
    return int(said)


@routes.post(
    TRANSFER + "/commit",
    status_code=202,
    responses=errors(400, 404, 409, 413, 415, 503, 507),
    summary="Commit an upload",
)
@needs(Permission.USE)
async def commit_transfer(
    service: Service,
    session_id: SessionId,
    transfer_id: TransferId,
    by: By,
    body: CommitBody | None = None,
) -> CommittedTransfer:
    """Have an upload whose parts have all come be put into the workspace. Done twice it is done
    once. A paused session is woken for it; look at the transfer until it is completed."""
    sha256 = body.sha256 if body else None
    found = await service.transfers.commit(session_id, transfer_id, by, sha256)
    return CommittedTransfer(transfer_id=found.id, status=found.status, size_bytes=found.size or 0)


@routes.post(
    TRANSFER + "/cancel",
    responses=errors(400, 404, 415, 503, 507),
    summary="Cancel a transfer",
)
@needs(Permission.USE)
async def cancel_transfer(
    service: Service,
    session_id: SessionId,
    transfer_id: TransferId,
    by: By,
    body: CancelBody | None = None,
) -> CancelledTransfer:
    """Give up a transfer; what was received is removed. One that has ended stays as it is."""
    reason = body.reason if body else None
    found, aborted = await service.transfers.cancel(session_id, transfer_id, by, reason)
    return CancelledTransfer(transfer_id=found.id, aborted=aborted, status=found.status)


@routes.get(TRANSFER, responses=errors(404, 503), summary="Show a transfer")
@needs(Permission.READ)
async def get_transfer(
    request: Request, server: Server, session_id: SessionId, transfer_id: TransferId, caller: Asker
) -> TransferBody:
    """Show how far a transfer is, and where it can be fetched."""
    progress = await server.sessions.transfers.get(session_id, transfer_id)
    may = caller.may(Permission.USE)
    url = None
    if progress.fetchable and may:
        claims = {"s": session_id, "t": transfer_id}
        left = (progress.transfer.expires_at - now()).total_seconds()
        path = server.signer.path(
            PAYLOAD, caller, claims, seconds=min(left, URL_SECONDS), ending=PAYLOAD_ENDING
        )
        url = absolute(request, path)
    return _shown(progress, url, may)


def _shown(progress: Progress, url: str | None, may: bool) -> TransferBody:
    transfer = progress.transfer
    path, encoding = _path(transfer)
    return TransferBody(
        transfer_id=transfer.id,
        direction=transfer.direction,
        status=transfer.status,
        expires_at=transfer.expires_at,
        bytes_written=None if transfer.status == "pending" else transfer.done_bytes,
        sha256=transfer.sha256,
        download_url=url,
        error_message=transfer.error if may else None,
        path=path,
        path_encoding=encoding,
        is_archive=transfer.archive,
        size_bytes=transfer.size,
        part_size=transfer.part_size,
        parts_received=progress.received if transfer.status == "pending" else None,
        created_at=transfer.created_at,
    )


def _path(transfer: Transfer) -> tuple[str, Any]:
    try:
        return decoded(transfer.path).decode(), None
    except UnicodeDecodeError:
        return transfer.path, "percent"


@routes.get(
    "/signed/{text}" + PAYLOAD_ENDING,
    response_class=Response,
    responses={
        200: {"description": "All of it.", "content": {BYTES: _BINARY}},
        206: {"description": "The part that Range asks for.", "content": {BYTES: _BINARY}},
        **errors(404, 416, 503),
    },
    summary="Fetch what was downloaded",
)
@needs(Permission.USE)
async def fetch_transfer(
    service: Service,
    allowed: Annotated[Signed, signed(PAYLOAD)],
    text: Annotated[str, Path(description="What was signed.")],
    wanted: Annotated[
        str | None, Header(alias="Range", description="`bytes=first-last`: only a part.")
    ] = None,
    if_range: Annotated[
        str | None, Header(description="Only a part if it still has this ETag, else all.")
    ] = None,
) -> Response:
    """Fetch what a download has made ready, from its URL."""
    transfer = allowed.claims["t"]
    progress = await service.transfers.get(allowed.claims["s"], transfer)
    if not progress.fetchable:
        raise NotFoundError(
            f"There is nothing to be fetched of transfer {transfer} any more.",
            todo="Begin a new one.",
        )
    found = progress.transfer
    size, etag = found.size or 0, f'"{found.sha256}"'
    part = part_of(wanted, size) if if_range in (None, etag) else None
    start, end = (part.start, part.end) if part else (0, size)
    headers = {"accept-ranges": "bytes", "etag": etag, "content-length": str(end - start)}
    if part is not None:
        headers["content-range"] = part.content_range
    pieces = await begun(service.transfers.payload(found, start, end))
    return Stream(pieces, BYTES, status_code=206 if part else 200, headers=headers)
