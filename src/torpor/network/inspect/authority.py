"""The wall's own certificate authority: one for each installation, which its machines trust.

Its key and certificate are a file of mode 0600, ``ca-N.pem``, in a directory of the installation's
state. Long before it ends, a successor is made, so that machines learn of it before it signs
anything: all that have woken in between trust both.
"""

import hashlib
import os
import ssl
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from torpor.network.errors import NetworkError

LIFE = timedelta(days=3 * 365)
SUCCESSOR = timedelta(days=365)
"""How long before its end a successor is made."""
SIGNS_UNTIL = timedelta(days=180)
"""How long before its end it no longer signs: what it has signed must not outlive it, and machines
that have slept for half a year still know the successor."""
LEAF_LIFE = timedelta(days=14)
LEAF_USED = timedelta(days=7)
"""How long a leaf is used: a machine whose clock is some days off takes it too."""
LEAVES = 512
"""Hosts whose certificates are kept."""


@dataclass(frozen=True)
class _Signer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def left(self) -> timedelta:
        return self.certificate.not_valid_after_utc - datetime.now(UTC)


class Authority:
    """Vouches for the hosts that the wall stands for. Make it with :meth:`open`.

    Its methods are not for threads, and take about a millisecond for a new host.
    """

    def __init__(self, directory: Path, signers: list[_Signer]) -> None:
        self._directory = directory
        self._signers = signers
        # One key for all leaves: it never leaves this process.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[tuple[str, tuple[str, ...]], tuple[datetime, ssl.SSLContext]] = (
            OrderedDict()
        )

    @classmethod
    def open(cls, directory: Path) -> "Authority":
        """Read the authority of an installation, or make it, or its successor if it is time.

        ``directory`` is made if need be, for nobody else to read. Raises :exc:`NetworkError`.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            signers = _read(directory)
            if not signers or max(each.left for each in signers) < SUCCESSOR:
                _make(directory)
                signers = _read(directory)
        except (OSError, ValueError) as error:
            raise NetworkError(
                f"The wall's certificate authority in {directory} cannot be used: {error}.",
                state="No TLS is ended at the wall, and no secret is used.",
                todo="Put the directory right; if it is lost, remove it, and a new one is made.",
            ) from error
        return cls(directory, signers)

    @property
    def bundle(self) -> str:
        """The certificates that machines are to trust, as PEM, the oldest first."""
        return "".join(
            each.certificate.public_bytes(serialization.Encoding.PEM).decode()
            for each in self._signers
        )

    def told(self) -> list[dict[str, str]]:
        """Return them as ``torpor.guest.trust`` wants them, when a machine wakes; with a successor
        if it is time for one."""
        if max(each.left for each in self._signers) < SUCCESSOR:
            self.renew()
        return [
            {
                "pem": each.certificate.public_bytes(serialization.Encoding.PEM).decode(),
                "hash": subject_hash(each.certificate.subject),
            }
            for each in self._signers
        ]

    def renew(self) -> bool:
        """Make the successor if it is time. Return whether the bundle is another now."""
        before = self.bundle
        self._signers = Authority.open(self._directory)._signers
        return self.bundle != before

    def context(self, host: str, protocols: tuple[str, ...]) -> ssl.SSLContext:
        """Return what a server needs to be ``host`` to a machine, and to choose the first of
        ``protocols`` that is offered; none is chosen if there are none."""
        moment = datetime.now(UTC)
        key = (host, protocols)
        made, context = self._leaves.pop(key, (None, None))
        if made is None or context is None or moment - made > LEAF_USED:
            made, context = moment, self._new_context(host, protocols)
        self._leaves[key] = (made, context)
        if len(self._leaves) > LEAVES:
            self._leaves.popitem(last=False)
        return context

    def _new_context(self, host: str, protocols: tuple[str, ...]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        if protocols:
            context.set_alpn_protocols(list(protocols))
        _load(context, self._leaf(host), self._leaf_key)
        return context

    def _leaf(self, host: str) -> x509.Certificate:
        signer = _signing(self._signers)
        moment = datetime.now(UTC)
        authority_key = signer.certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        )
        # A common name has 64 characters at most; nobody looks there if there are other names.
        common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        made = (
            x509.CertificateBuilder()
            .subject_name(common)
            .issuer_name(signer.certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - LEAF_USED)
            .not_valid_after(moment + LEAF_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_key.value),
                critical=False,
            )
        )
        return made.sign(signer.key, hashes.SHA256())


def subject_hash(name: x509.Name) -> str:
    """Return what OpenSSL calls the file of a certificate with this subject (``c_rehash``): the
    first four bytes, the last one first, of the SHA-1 of its canonical form, in which each text is
    UTF-8, in lower case, with single spaces (``crypto/x509/x_name.c``)."""
    canonical = b""
    for part in name.rdns:
        pairs = b""
        for each in part:
            text = " ".join(str(each.value).lower().split()).encode()
            kind = x509.Name([x509.NameAttribute(each.oid, "x")]).public_bytes()
            oid = kind[6 : 8 + kind[7]]
            pairs += _tagged(0x30, oid + _tagged(0x0C, text))
        canonical += _tagged(0x31, pairs)
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return digest[3::-1].hex()


def _tagged(tag: int, content: bytes) -> bytes:
    """Return DER of at most 255 bytes."""
    length = [len(content)] if len(content) < 128 else [0x81, len(content)]
    return bytes([tag, *length]) + content


def _signing(signers: list[_Signer]) -> _Signer:
    """Return the oldest that may still sign: machines have known it for longest."""
    able = [each for each in signers if each.left > SIGNS_UNTIL]
    return min(able, key=lambda each: each.left) if able else max(signers, key=lambda one: one.left)


def _read(directory: Path) -> list[_Signer]:
    """Return what there is and has not ended, the oldest first."""
    found = []
    for file in sorted(directory.glob("ca-*.pem")):
        content = file.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{file.name} has a key of another kind")
        signer = _Signer(x509.load_pem_x509_certificate(content), key)
        if signer.certificate.public_key() != key.public_key():
            raise ValueError(f"the key and the certificate in {file.name} do not belong together")
        if signer.left > timedelta(0):
            found.append(signer)
    return sorted(found, key=lambda each: each.certificate.not_valid_after_utc)


def _make(directory: Path) -> None:
    """Make the next authority. Of two programs that do so at once, the second's is dropped."""
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = [int(each.stem[3:]) for each in directory.glob("ca-*.pem") if each.stem[3:].isdigit()]
    number = max(numbers, default=0) + 1
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + _root(key, number).public_bytes(serialization.Encoding.PEM)
    file, name = tempfile.mkstemp(dir=directory)  # mode 0600
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(name, directory / f"ca-{number}.pem")
        except FileExistsError:
            pass
    finally:
        os.unlink(name)  # noqa: PTH108 - a name that mkstemp gave
    opened_directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened_directory)
    finally:
        os.close(opened_directory)


def _root(key: ec.EllipticCurvePrivateKey, number: int) -> x509.Certificate:
    moment = datetime.now(UTC)
    serial = x509.random_serial_number()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Torpor"),
            # Whoever has certificates of two installations can tell them apart.
            x509.NameAttribute(NameOID.COMMON_NAME, f"Torpor wall {number} {serial:x}"[:40]),
        ]
    )
    public = key.public_key()
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(moment - timedelta(days=1))
        .not_valid_after(moment + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    return made.sign(key, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _load(
    context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Hand a certificate and its key to OpenSSL, which takes them from files alone: one in memory,
    so that no key of a leaf is ever on a disk."""
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    file = os.memfd_create("torpor-leaf", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
