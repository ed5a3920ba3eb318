"""What an image says of itself: what to start in it, as whom, with which environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torpor.images.errors import HostileImageError
from torpor.vm.execs import Command

MAX_ITEMS = 10_000
_HALF = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class ImageConfig:
    """An image's own defaults, as in an OCI image's config. Nothing of it is started at boot.

    ``user`` is ``user``, ``uid``, ``user:group`` or ``uid:gid``, empty for root;
    ``working_dir`` empty for the root directory. ``ports`` are as ``80/tcp``.
    """

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""

    def argv(self, *arguments: str) -> tuple[str, ...]:
        """What the image is there to run; ``arguments`` take the place of ``cmd``."""
        return (*self.entrypoint, *(arguments or self.cmd))


def command_in(
    config: ImageConfig,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    **rest: Any,
) -> Command:
    """A command with the image's environment, directory and user, where the caller gives none.

    ``env`` is laid over the image's variables; ``rest`` is what else a Command takes.
    """
    return Command(
        argv,
        env={**config.env, **(env or {})},
        cwd=cwd if cwd is not None else (config.working_dir or "/"),
        user=user if user is not None else (config.user or "0"),
        **rest,
    )


def oci_config(document: Mapping[str, Any]) -> ImageConfig:
    """Read the ``config`` of an OCI image's config. Raises HostileImageError if it is unsound."""
    said = document.get("config")
    if said is None:
        return ImageConfig()
    if not isinstance(said, dict):
        raise _unsound("config")
    env: dict[str, str] = {}
    for line in _words(said, "Env"):
        name, equals, value = line.partition("=")
        if not name or not equals:
            raise _unsound("Env")
        env[name] = value
    labels = said.get("Labels")
    return ImageConfig(
        entrypoint=_words(said, "Entrypoint"),
        cmd=_words(said, "Cmd"),
        env=env,
        user=_word(said, "User"),
        working_dir=_word(said, "WorkingDir"),
        labels=dict(zip(_names(labels, "Labels"), _values(labels), strict=True)),
        ports=_names(said.get("ExposedPorts"), "ExposedPorts"),
        volumes=_names(said.get("Volumes"), "Volumes"),
        stop_signal=_word(said, "StopSignal"),
    )


def oci_document(config: ImageConfig) -> dict[str, Any]:
    """The ``config`` of an OCI image's config; what is empty is left out."""
    found: dict[str, Any] = {
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "Env": [f"{name}={value}" for name, value in config.env.items()],
        "User": config.user,
        "WorkingDir": config.working_dir,
        "Labels": dict(config.labels),
        "ExposedPorts": {port: {} for port in config.ports},
        "Volumes": {volume: {} for volume in config.volumes},
        "StopSignal": config.stop_signal,
    }
    return {name: value for name, value in found.items() if value}


def _words(said: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = said.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise _unsound(name)
    return tuple(_text(each, name) for each in value)


def _word(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return "" if value is None else _text(value, name)


def _names(value: object, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise _unsound(name)
    return tuple(_text(each, name) for each in value)


def _values(value: object) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return ()
    return tuple(_text(each, "Labels") for each in value.values())


def _text(value: object, name: str) -> str:
    # Variables, arguments and users go to system calls, which end a text at a zero. What JSON says
    # may have half a surrogate pair in it, which is no text and cannot be written down.
    if not isinstance(value, str) or "\0" in value or _HALF.search(value):
        raise _unsound(name)
    return value


def _unsound(name: str) -> HostileImageError:
    return HostileImageError(f"{name} in the image's config is not what the specification says.")
