"""The parts of an upload: how large they are, which there must be, and which are missing."""

from collections.abc import Sequence

from torpor.sessions.errors import ConflictError, InvalidError, TooLargeError
from torpor.store.records import Part, Transfer
from torpor.vm import MIB

SMALLEST, LARGEST = 8 * MIB, 64 * MIB
"""Bytes of a part: clients hold one in memory, and a part that was cut off is sent again whole."""
MOST = 1000
"""Parts of an upload."""


def part_size_for(size: int | None) -> int:
    """Return the size of the parts of an upload of ``size`` bytes, None if that is not known."""
    if size is None:
        return LARGEST
    needed = -(-size // MOST)
    return min(max(-(-needed // MIB) * MIB, SMALLEST), LARGEST)


def check_number(transfer: Transfer, number: int) -> None:
    """Raise :exc:`InvalidError` if an upload has no part of this number."""
    last = MOST
    if transfer.size is not None:
        last = -(-transfer.size // _part_size(transfer))
    if not 1 <= number <= last:
        raise InvalidError(
            f"Transfer {transfer.id} has no part {number}.",
            state="Nothing was received.",
            todo=f"Its parts are 1 to {last}." if last else "It is empty: commit it.",
        )


def check_length(transfer: Transfer, number: int, length: int) -> None:
    """Raise :exc:`InvalidError` if a part cannot have this many bytes."""
    check_number(transfer, number)
    size = _part_size(transfer)
    least, most = 1, size
    if transfer.size is not None:
        least = most = min(size, transfer.size - (number - 1) * size)
    if not least <= length <= most:
        wanted = f"{most}" if least == most else f"{least} to {most}"
        raise InvalidError(
            f"Part {number} of transfer {transfer.id} has {wanted} bytes, and not {length}.",
            state="Nothing of it was kept.",
            todo=f"Split what is uploaded every {size} bytes.",
        )


def check_whole(transfer: Transfer, parts: Sequence[Part], most: int) -> int:
    """Return how many bytes an upload has. Raises :exc:`ConflictError` (``parts_missing``) if parts
    of it have not come, and :exc:`TooLargeError` for more than ``most``."""
    size = _part_size(transfer)
    there = {part.number for part in parts}
    if transfer.size is not None:
        last = -(-transfer.size // size)
    else:
        last = max(there, default=0)
    missing = sorted(set(range(1, last + 1)) - there)
    short = [part.number for part in parts if part.number < last and part.size < size]
    if missing or short:
        shown = ", ".join(map(str, (missing or short)[:20]))
        more = "..." if len(missing or short) > 20 else "."
        what = "These parts have not come" if missing else "These parts are short, and not the last"
        raise ConflictError(
            f"Transfer {transfer.id} is not complete. {what}: {shown}{more}",
            state="It is pending as before.",
            todo="Upload them, then commit it again.",
            code="parts_missing",
            missing=missing or short,
        )
    total = sum(part.size for part in parts)
    if total > most:
        raise too_large(total, most)
    return total


def too_large(size: int, most: int) -> TooLargeError:
    """Return the error for a transfer of more than ``most`` bytes."""
    return TooLargeError(
        f"{size} bytes are too many for one transfer: it may have {most}.",
        state="Nothing was done.",
        todo="Split it.",
    )


def _part_size(transfer: Transfer) -> int:
    assert transfer.part_size is not None
    return transfer.part_size
