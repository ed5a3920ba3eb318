"""Whether the server is well."""

from pydantic import Field

from torpor.api.schemas.body import Answered


class Health(Answered):
    """That the server is well."""

    status: str = Field(examples=["ok"])
