"""Certificates for tests: an authority, and what it vouches for."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority; ``file`` has its certificate."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Torpor's tests")
        made = _certificate(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.file = directory / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def vouch(self, *names: str, called: str = "server") -> tuple[Path, Path]:
        """Return the files of a certificate for ``names`` and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(_name(names[0]), self._name, key.public_key())
        alternatives = x509.SubjectAlternativeName([_alternative(each) for each in names])
        made = made.add_extension(alternatives, critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        certificate = self._directory / f"{called}.pem"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private = self._directory / f"{called}-key.pem"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    moment = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - timedelta(hours=1))
        .not_valid_after(moment + timedelta(days=2))
    )
