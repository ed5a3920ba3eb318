"""Certificate authorities that the host has the machine trust: those of the wall.

They are put where each runtime looks: into the bundles of the distributions, beside them for the
next time that these are made anew, into the directory in which OpenSSL looks by hash, into Java's
key store, and into files that variables of the environment name for those that look nowhere else.
What was put there before is replaced.
"""

import base64
import hashlib
import os
import re
import struct
import time
from collections.abc import Iterable
from typing import Any

from torpor.guest.trusted import ALONE, MARK, NAMES, OWN, WHOLE

BUNDLES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
)
"""Debian and Alpine; Fedora, twice; openSUSE; Alpine and BSDs."""
SOURCES = ("usr/local/share/ca-certificates", "etc/pki/ca-trust/source/anchors")
HASHED = "etc/ssl/certs"
JAVA = (
    "etc/ssl/certs/java/cacerts",
    "etc/pki/ca-trust/extracted/java/cacerts",
    "opt/java/openjdk/lib/security/cacerts",
)
"""Debian, Fedora, and what images of Java have."""
BEGIN, END = "# Torpor: the wall's authorities\n", "# Torpor: end\n"
_SECTION = re.compile(re.escape("\n" + BEGIN) + ".*?" + re.escape(END), re.DOTALL)
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]{1,2}")
_OLD = re.compile(r"torpor-wall-[0-9]+\.(crt|pem)")

JKS, PASSWORD = 0xFEEDFEED, "changeit"


def trust(authorities: Iterable[dict[str, str]], root: str = "/") -> bool:
    """Have what is below ``root`` trust the authorities, each ``{"pem": its certificate, "hash": of
    its subject, as OpenSSL calls its file}``. Return whether something was changed.

    Raises OSError if the files of our own cannot be written; what cannot be done elsewhere is left.
    """
    wanted = [(str(each["hash"]), str(each["pem"])) for each in authorities]
    mark = _mark(wanted, root)
    try:
        with open(os.path.join(root, MARK)) as file:
            if file.read() == mark:
                return False
    except (OSError, ValueError):
        pass
    text = "".join(pem for _, pem in wanted)
    os.makedirs(os.path.join(root, OWN), exist_ok=True)
    for each in (_bundles, _sources, _hashed, _java):
        each(root, wanted)
    _put(os.path.join(root, ALONE), text.encode())
    _put(os.path.join(root, WHOLE), _all(root, text).encode())
    # Last: after a cut everything is done again. The bundles are others than before by now.
    _put(os.path.join(root, MARK), _mark(wanted, root).encode())
    return True


def _mark(wanted: list[tuple[str, str]], root: str) -> str:
    """Return what tells whether everything is as it was left."""
    what = hashlib.sha256(repr(wanted).encode())
    for name in BUNDLES + JAVA:
        try:
            found = os.stat(os.path.join(root, name))
            what.update(f"{name} {found.st_ino} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            pass
    return what.hexdigest() + "\n"


def _bundles(root: str, wanted: list[tuple[str, str]]) -> None:
    section = "\n" + BEGIN + "".join(pem for _, pem in wanted) + END if wanted else ""
    done = set()
    for name in BUNDLES:
        try:
            place = os.path.realpath(os.path.join(root, name))
            if place in done or not os.path.isfile(place):
                continue
            done.add(place)
            with open(place, encoding="utf-8", errors="surrogateescape") as file:
                before = file.read()
            after = _SECTION.sub("", before) + section
            if after != before:
                _put(place, after.encode("utf-8", "surrogateescape"))
        except OSError:
            pass  # a file system that cannot be written, for example


def _sources(root: str, wanted: list[tuple[str, str]]) -> None:
    for name, needed in zip(SOURCES, ("etc/ssl/certs", "etc/pki/ca-trust"), strict=True):
        directory = os.path.join(root, name)
        if not os.path.isdir(os.path.join(root, needed)):
            continue
        try:
            os.makedirs(directory, exist_ok=True)
            _replace_numbered(directory, wanted)
        except OSError:
            pass


def _replace_numbered(directory: str, wanted: list[tuple[str, str]]) -> None:
    names = {f"torpor-wall-{number}.crt": pem for number, (_, pem) in enumerate(wanted, 1)}
    for old in os.listdir(directory):
        if _OLD.fullmatch(old) and old not in names:
            os.unlink(os.path.join(directory, old))
    for name, pem in names.items():
        _put(os.path.join(directory, name), pem.encode())


def _hashed(root: str, wanted: list[tuple[str, str]]) -> None:
    directory, listed = os.path.join(root, HASHED), os.path.join(root, NAMES)
    try:
        with open(listed) as file:
            before = [name for name in file.read().split() if _HASHED_NAME.fullmatch(name)]
    except (OSError, ValueError):
        before = []
    try:
        for name in before:
            if os.path.lexists(os.path.join(directory, name)):
                os.unlink(os.path.join(directory, name))
        names: dict[str, str] = {}
        for digest, pem in wanted if os.path.isdir(directory) else ():
            free = (f"{digest}.{number}" for number in range(100))
            name = next(
                each
                for each in free
                if each not in names and not os.path.lexists(os.path.join(directory, each))
            )
            names[name] = pem
        _put(listed, "".join(f"{name}\n" for name in names).encode())
        for name, pem in names.items():
            if _HASHED_NAME.fullmatch(name):
                _put(os.path.join(directory, name), pem.encode())
    except OSError:
        pass


def _java(root: str, wanted: list[tuple[str, str]]) -> None:
    done = set()
    for name in JAVA:
        try:
            place = os.path.realpath(os.path.join(root, name))
            if place in done or not os.path.isfile(place):
                continue
            done.add(place)
            with open(place, "rb") as file:
                before = file.read()
            after = with_authorities(before, [_der(pem) for _, pem in wanted])
            if after is not None and after != before:
                _put(place, after)
        except (OSError, ValueError, struct.error, IndexError):
            pass  # one of another format, or with another password


def with_authorities(store: bytes, certificates: list[bytes]) -> bytes | None:
    """Return a Java key store (JKS, version 2) that trusts certificates too, in the place of those
    of before; None if it is another format, or its password is not the usual one.

    The format is that of OpenJDK's ``sun.security.provider.JavaKeyStore``: numbers are big-endian,
    texts have their length before them in two bytes, and at the end is the SHA-1 of the password,
    of two words, and of all that stands before.
    """
    if len(store) < 32 or struct.unpack_from(">II", store) != (JKS, 2):
        return None
    if _seal(store[:-20]) != store[-20:]:
        return None
    kept = [entry for alias, entry in _entries(store) if not alias.startswith("torpor-wall-")]
    now = int(time.time()) * 1000
    for number, certificate in enumerate(certificates, 1):
        alias = f"torpor-wall-{number}".encode()
        kept.append(
            struct.pack(">IH", 2, len(alias)) + alias
            + struct.pack(">QH", now, 5) + b"X.509"
            + struct.pack(">I", len(certificate)) + certificate
        )  # fmt: skip
    body = struct.pack(">III", JKS, 2, len(kept)) + b"".join(kept)
    return body + _seal(body)


def _entries(store: bytes) -> list[tuple[str, bytes]]:
    """Return the alias and the bytes of each entry."""
    (count,) = struct.unpack_from(">I", store, 8)
    found, at = [], 12
    for _ in range(count):
        start = at
        kind, length = struct.unpack_from(">IH", store, at)
        alias = store[at + 6 : at + 6 + length].decode("utf-8", "replace")
        at += 6 + length + 8
        chain = 1
        if kind == 1:  # a private key, and the chain of certificates for it
            at += 4 + struct.unpack_from(">I", store, at)[0]
            (chain,) = struct.unpack_from(">I", store, at)
            at += 4
        for _ in range(chain):
            at += 2 + struct.unpack_from(">H", store, at)[0]
            at += 4 + struct.unpack_from(">I", store, at)[0]
        found.append((alias, store[start:at]))
    if at != len(store) - 20:
        raise ValueError("it ends elsewhere")
    return found


def _seal(body: bytes) -> bytes:
    words = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return hashlib.sha1(words + body, usedforsecurity=False).digest()


def _der(pem: str) -> bytes:
    lines = [line for line in pem.splitlines() if line and not line.startswith("-")]
    return base64.b64decode("".join(lines))


def _all(root: str, text: str) -> str:
    """Return everything that the machine trusts, as one bundle."""
    for name in BUNDLES:
        try:
            with open(os.path.join(root, name), encoding="utf-8", errors="surrogateescape") as file:
                return file.read().encode("utf-8", "replace").decode()
        except OSError:
            pass
    return text


def _put(place: str, content: bytes) -> None:
    """Write a file anew, at once for whoever reads it, with the mode that it has."""
    try:
        mode = os.stat(place).st_mode & 0o777
    except OSError:
        mode = 0o644
    made = f"{place}.torpor-new"
    file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        os.chmod(made, mode)
        os.rename(made, place)
    except OSError:
        os.unlink(made)
        raise


def told(authorities: Any) -> list[dict[str, str]]:
    """Return what the host has sent, as :func:`trust` takes it. Raises ValueError."""
    try:
        return [{"pem": str(each["pem"]), "hash": str(each["hash"])} for each in authorities]
    except (KeyError, TypeError) as error:
        raise ValueError("these are no authorities") from error
