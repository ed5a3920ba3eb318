"""The one error of this package."""

from __future__ import annotations

import errno


class ImageError(Exception):
    """An image or a guest part could not be made.

    `what` says what happened, `state` what things are like now, `advice` what to do.
    """

    def __init__(self, what: str, state: str, advice: str) -> None:
        super().__init__(f"{what}\n{state}\n{advice}")
        self.what = what
        self.state = state
        self.advice = advice


class HostileImageError(ImageError):
    """An image from elsewhere is not what it says it is, or asks for more than it may."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(
            what,
            "Nothing of it was kept, and nothing outside of Torpor's cache was touched.",
            advice or "Get the image again, from somebody you trust.",
        )


NOTHING_VISIBLE = "Nothing of it is in the cache; stages that were finished before are kept."


def disk_full(where: str) -> ImageError:
    return ImageError(
        f"The disk that holds {where} is full.",
        NOTHING_VISIBLE,
        "Free some space (a first build needs about 2 GB) and run the same command again.",
    )


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
