"""What goes to a terminal is text, and nothing that a terminal obeys.

Guests, images, snapshots and other users choose much of what is shown: names, labels, variables,
the words of errors.
"""

import re

import typer

_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but line ends and tabs, those that turn the direction of text, and halves of
surrogate pairs, which no terminal can be told."""


def harmless(text: str) -> str:
    """Return a text with what a terminal would obey shown as Python writes it: ``\\x1b``."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def complain(words: str) -> None:
    """Say on standard error what went wrong."""
    typer.secho(harmless(words), fg=typer.colors.RED, err=True)
