"""What a guest tells, checked before it is believed."""

import os
from typing import Any

from torpor.vm.errors import GuestError


def number(answer: dict[str, Any], name: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Return a number that a guest told. Raises :exc:`GuestError` if it is none."""
    value = answer.get(name)
    if type(value) is not int or not least <= value <= most:
        raise broken(name)
    return value


def file_name(answer: dict[str, Any], name: str) -> str:
    """Return a path that a guest told: it stands for bytes, as ``os.fsencode`` has it. Raises
    :exc:`GuestError` if it is none."""
    value = answer.get(name)
    if not isinstance(value, str):
        raise broken(name)
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # half a surrogate pair
        raise broken(name) from None
    return value


def broken(name: str) -> GuestError:
    """Return the error for an answer that makes no sense."""
    return GuestError("EPROTO", f"the agent's answer has no {name!r} that can be used")
