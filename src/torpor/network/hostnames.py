"""Names of hosts: the one form in which the wall compares them.

Lower case, ASCII (IDNA 2008 for other scripts, RFC 5890 and 5891), without the last dot. What is
ASCII already is taken as it is: there are names in use that begin with ``xn--`` and are none of
IDNA 2008, such as those of emoji.
"""

import re
from typing import Final

import idna

LONGEST: Final = 253
"""Characters of a name without its last dot: RFC 1035, 2.3.4, less the lengths of its ends."""
OWN_DOMAIN: Final = "torpor.internal"
OWN_SERVICES: Final = (f"gateway.{OWN_DOMAIN}", f"models.{OWN_DOMAIN}")
"""What the wall itself serves on each machine's link."""

# Underscores are in no host name by RFC 952, but there are names with addresses that have them.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def normal(text: str) -> str:
    """Return a name as the wall compares it. Raises ValueError, which says what is wrong."""
    name = text.lower() if text.isascii() else _encoded(text)
    name = name.removesuffix(".")
    if not name:
        raise ValueError("it is empty")
    if len(name) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    for label in name.split("."):
        _check(label)
    if is_numeric(name):
        raise ValueError("its last part is a number, so programs take it for an address")
    return name


def is_normal(name: str) -> bool:
    """Whether a name, as a program in a machine said it, is one that a host can have."""
    try:
        return normal(name) == name
    except ValueError:
        return False


def is_numeric(name: str) -> bool:
    """Whether the last part is a number: ``127.1`` and ``0x7f000001`` are addresses to getaddrinfo
    (inet_aton(3)), so no such name may reach it."""
    return _NUMBER.fullmatch(name.rpartition(".")[2]) is not None


def is_below(name: str, domain: str) -> bool:
    """Whether a name is in a domain: not the domain itself, at any depth."""
    return name.endswith(f".{domain}")


def is_own(name: str) -> bool:
    """Whether a name is in the domain that the wall serves itself, and nobody else."""
    return name == OWN_DOMAIN or is_below(name, OWN_DOMAIN)


def _encoded(text: str) -> str:
    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise ValueError(f"it cannot be written in ASCII as IDNA 2008 does: {error}") from None


def _check(label: str) -> None:
    if not label:
        raise ValueError("there is nothing between two of its dots")
    if not _LABEL.fullmatch(label):
        raise ValueError(
            f"{label[:70]!r} is not 1 to 63 letters, digits, '-' and '_', with no '-' at its ends"
        )
