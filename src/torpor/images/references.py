"""References of images in registries, as people write them: ``registry/repository:tag@digest``.

See the grammar of github.com/distribution/reference. A registry must be named: which one a bare
name means is a matter of each program's configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 512
LATEST = "latest"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_REGISTRY = re.compile(
    rf"(?:\[[0-9a-fA-F:.]{{2,45}}\]|{_LABEL}(?:\.{_LABEL}){{0,126}})(?::[0-9]{{1,5}})?"
)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """Where an image is: the host of a registry, with its port if it has one, the repository there,
    and a tag, a digest or both."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (
            f"@{self.digest}" if self.digest else ""
        )

    @property
    def wanted(self) -> str:
        """What to ask the registry for: by the digest, where there is one, and not by the tag too,
        which programs do not take together."""
        if self.digest is not None:
            return f"{self.registry}/{self.repository}@{self.digest}"
        return str(self)

    def pinned(self, manifest: str) -> Reference:
        """Return the reference of what was found: the manifest of this digest, for ever."""
        return Reference(self.registry, self.repository, self.tag, manifest)


def read_reference(words: str) -> Reference:
    """Understand a reference; ``docker://`` before it means nothing. Without a tag and a digest its
    tag is ``latest``. Raises :exc:`ValueError`, whose text says what is wrong."""
    if len(words) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    registry, slash, rest = words.removeprefix("docker://").partition("/")
    if not slash or not _is_registry(registry):
        raise ValueError(
            "it does not begin with a registry: write docker.io/library/NAME for what Docker calls"
            " NAME"
        )
    rest, at, digest = rest.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError("its digest is not sha256: and 64 small hexadecimal digits")
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError("its tag is not 1 to 128 letters, digits, '_', '.' and '-'")
    if not all(_REPOSITORY.fullmatch(part) for part in repository.split("/")):
        raise ValueError(
            "its repository is not of small letters and digits, with '.', '_', '-' and '/' between"
            " them"
        )
    return Reference(registry, repository, tag or (None if digest else LATEST), digest or None)


def _is_registry(host: str) -> bool:
    """Whether the first part of a reference is a host: else it is a part of a bare name."""
    known = "." in host or ":" in host or host == "localhost"
    return known and _REGISTRY.fullmatch(host) is not None
