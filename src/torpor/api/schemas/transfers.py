"""Files on their way into a workspace and out of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from torpor.api.schemas.body import Answered, Asked, Time

Sha256 = Annotated[
    str,
    StringConstraints(pattern="^[0-9a-fA-F]{64}$", to_lower=True),
    Field(description="The SHA-256 of all of it, in hexadecimal digits.", examples=["0" * 64]),
]
Size = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern="^[0-9]{1,18}$")]
Number = Annotated[int, Field(ge=1, le=10_000)]
TransferStatus = Literal["pending", "in_progress", "completed", "failed"]
Status = Annotated[
    TransferStatus,
    Field(
        description="`pending`: parts are awaited. `in_progress`: it is being put into the"
        " workspace, or made ready to be fetched. `failed` also if it was cancelled, or expired."
    ),
]
Expires = Annotated[
    Time,
    Field(
        description="When it is given up if nothing happens; of a download that is completed, when"
        " `download_url` ends."
    ),
]


class Uploaded(Answered):
    """A file or an archive that was brought into the workspace."""

    bytes_written: int = Field(description="How many bytes came.", examples=[12])
    path: str = Field(description="Where it is, absolutely.", examples=["/workspace/report.txt"])


class NewTransferBody(Asked):
    """A transfer that is to be."""

    direction: Literal["upload", "download"]
    path: str = Field(
        min_length=1,
        description="Where in the workspace: to where it is uploaded, or what is downloaded.",
        examples=["data/model.bin"],
    )
    path_encoding: Literal["percent"] | None = Field(
        None,
        description="Torpor: `percent` if `path` is percent-encoded, for names that are not UTF-8.",
    )
    is_archive: bool = Field(
        False, description="Of an upload: it is a tar archive that is unpacked at `path`."
    )
    as_archive: bool = Field(
        False, description="Of a download: as a tar archive, as a directory needs it."
    )
    size_bytes: Size | None = Field(
        None, description="Of an upload: how large it is, a number or its digits."
    )
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _of_its_direction(self) -> Self:
        if self.direction == "upload" and self.as_archive:
            raise ValueError("'as_archive' is for a download; an upload has 'is_archive'")
        if self.direction == "download":
            for name in ("is_archive", "size_bytes", "sha256"):
                if getattr(self, name):
                    raise ValueError(f"{name!r} is for an upload")
        return self


class BegunTransfer(Answered):
    """A transfer that was begun."""

    transfer_id: str
    direction: Literal["upload", "download"]
    status: Status
    expires_at: Expires
    part_size: int | None = Field(
        None,
        description="Of an upload: how many bytes each part has; the last one may have fewer.",
        examples=[8388608],
    )
    upload_id: str | None = Field(None, description="Of an upload: the same as `transfer_id`.")


class PartNumbers(Asked):
    """The parts that are to be uploaded."""

    part_numbers: list[Number] = Field(
        min_length=1, max_length=1000, description="They count from 1.", examples=[[1, 2]]
    )


class PartUrl(Answered):
    """Where a part goes."""

    part_number: int = Field(examples=[1])
    upload_url: str = Field(
        description="PUT the part there, with no token: the URL is as good as one. It ends at"
        " `expires_at`.",
        examples=["https://torpor.example.com/v2/agents/signed/.../part"],
    )


class PartUrls(Answered):
    """Where parts go, in the order in which they were asked for."""

    transfer_id: str
    expires_at: Expires
    part_urls: list[PartUrl]


class ReceivedPart(Answered):
    """A part that has come."""

    part_number: int = Field(examples=[1])
    size_bytes: int = Field(description="How many bytes it has.", examples=[8388608])
    sha256: str = Field(description="Its SHA-256, in hexadecimal digits.")


class CommitBody(Asked):
    """The end of an upload."""

    sha256: Sha256 | None = None


class CommittedTransfer(Answered):
    """An upload that is being put into the workspace, or was."""

    transfer_id: str
    status: Status
    size_bytes: int = Field(description="How many bytes its parts have.", examples=[12])


class CancelBody(Asked):
    """Why a transfer is cancelled."""

    reason: str | None = Field(None, max_length=500, examples=["client_error"])


class CancelledTransfer(Answered):
    """A transfer that has ended."""

    transfer_id: str
    aborted: bool = Field(description="Whether it was this that ended it.")
    status: Status


class TransferBody(Answered):
    """How far a transfer is."""

    transfer_id: str
    direction: Literal["upload", "download"]
    status: Status
    expires_at: Expires
    bytes_written: int | None = Field(
        None, description="How many bytes have been carried, once it is in progress."
    )
    sha256: str | None = Field(None, description="The SHA-256 of all of it, if it is known.")
    download_url: str | None = Field(
        None,
        description="Of a download that is completed: GET it there, with no token, also in parts"
        " (`Range`). Made anew at each look; who may not use sessions is not shown it.",
    )
    error_message: str | None = Field(None, description="Why it has failed.")
    path: str = Field(
        description="Torpor: where in the machine.", examples=["/workspace/data/model.bin"]
    )
    path_encoding: Literal["percent"] | None = Field(
        None, description="Torpor: `percent` if `path` is percent-encoded, as it is not UTF-8."
    )
    is_archive: bool = Field(description="Torpor: whether it is a tar archive.")
    size_bytes: int | None = Field(None, description="Torpor: how large it is, if that is known.")
    part_size: int | None = Field(None, description="Torpor: how many bytes each part has.")
    parts_received: list[int] | None = Field(
        None, description="Torpor: of an upload that is pending, the parts that have come."
    )
    created_at: Time
