"""Where Torpor keeps what it must not lose, and what it can make again."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """The two directories of one installation, both absolute; neither needs to exist yet.

    ``home`` holds what cannot be made again: snapshots, the disks of machines, named images.
    ``cache`` holds what can: the guest's kernel, images, golden snapshots.
    """

    home: Path
    cache: Path


def default_places(environ: Mapping[str, str] = os.environ) -> Places:
    """Return the places that the environment and the user ask for.

    Each is, in this order: the variable ``TORPOR_HOME`` or ``TORPOR_CACHE``; for root, below
    ``/var``; for others, as the XDG base directory specification says. An empty variable counts
    as not set. Nothing is created.
    """
    if os.geteuid() == 0:
        home, cache = Path("/var/lib/torpor"), Path("/var/cache/torpor")
    else:
        home = _xdg(environ, "XDG_DATA_HOME", ".local/share") / "torpor"
        cache = _xdg(environ, "XDG_CACHE_HOME", ".cache") / "torpor"
    return Places(
        home=_chosen(environ, "TORPOR_HOME", home),
        cache=_chosen(environ, "TORPOR_CACHE", cache),
    )


def extra_authorities(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file or directory of certificates that images are to trust besides their own.

    ``TORPOR_EXTRA_CA`` names it: PEM certificates, of a proxy that looks into the host's TLS
    traffic, or of a company's own servers. None if it is not set or empty.
    """
    value = environ.get("TORPOR_EXTRA_CA")
    return Path(value).expanduser().absolute() if value else None


def default_config(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the file of settings is, if there is one and no other is named."""
    if os.geteuid() == 0:
        return Path("/etc/torpor/torpor.toml")
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "torpor" / "torpor.toml"


def _chosen(environ: Mapping[str, str], variable: str, otherwise: Path) -> Path:
    value = environ.get(variable)
    return Path(value).expanduser().absolute() if value else otherwise


def _xdg(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    # The specification has relative paths ignored.
    value = environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / otherwise
