"""Certificates of the host's network get into images, and only certificates do."""

import asyncio
import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.images.oci_builder import Member, directory, layer, layout, symlink
from torpor.images import Asked, Image, ImageError, import_image, silent
from torpor.images.authorities import Authorities, read_authorities, wanted_authorities
from torpor.images.debian import root_key
from torpor.images.ext4_read import Disk
from torpor.settings import extra_authorities


def certificate(directory: Path, name: str) -> Path:
    file = directory / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", f"/CN={name}", "-days", "3650", "-keyout", directory / f"{name}.key",
         "-out", file], check=True, capture_output=True,
    )  # fmt: skip
    return file


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two certificates, and their keys under names that are not looked at."""
    place = tmp_path_factory.mktemp("authorities")
    for name in ("one", "two"):
        certificate(place, name)
    return place


def files(image: Image) -> dict[bytes, bytes]:
    with Disk(image.root) as disk:
        return {
            path: b"".join(disk.read(file)) for path, file in disk.walk() if file.mode >> 12 == 8
        }


def imported(source: Path, cache: Path, authorities: Authorities) -> Image:
    asked = Asked(authorities=authorities)
    return asyncio.run(import_image(cache, str(source), silent, asked)).image


DEBIAN = (
    directory(b"etc/ssl/certs"),
    Member(b"etc/ssl/certs/ca-certificates.crt", content=b"BUNDLE", mode=0o444),
    directory(b"usr/local/share"),
)
ALPINE = (
    Member(b"etc/ssl/certs/ca-certificates.crt", content=b"BUNDLE"),
    symlink(b"etc/ssl/cert.pem", b"certs/ca-certificates.crt"),
)
FEDORA_BUNDLE = b"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
FEDORA = (
    Member(FEDORA_BUNDLE, content=b"BUNDLE"),
    symlink(b"etc/pki/tls/certs/ca-bundle.crt", b"/" + FEDORA_BUNDLE),
    directory(b"etc/pki/ca-trust/source/anchors"),
)


@pytest.mark.parametrize(
    ("members", "bundle"),
    [
        (DEBIAN, b"etc/ssl/certs/ca-certificates.crt"),
        (ALPINE, b"etc/ssl/certs/ca-certificates.crt"),
        (FEDORA, FEDORA_BUNDLE),
    ],
)
def test_they_are_where_the_distribution_looks(
    members: tuple[Member, ...], bundle: bytes, certificates: Path, tmp_path: Path
) -> None:
    authorities = read_authorities(certificates)
    found = files(imported(layout(tmp_path / "oci", layer(*members)), tmp_path / "c", authorities))
    texts = [(certificates / f"{name}.crt").read_bytes().strip() for name in ("one", "two")]
    assert found[bundle].startswith(b"BUNDLE\n")
    for text in texts:
        assert found[bundle].count(text) == 1
        assert text + b"\n" in [
            content
            for path, content in found.items()
            if path.startswith(b"usr/local/share/ca-certificates/torpor-")
        ]
    if members is FEDORA:
        assert len([path for path in found if b"source/anchors/torpor-" in path]) == 2


def test_openssl_finds_them_by_their_hash(certificates: Path, tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", layer(*DEBIAN))
    found = files(imported(source, tmp_path / "c", read_authorities(certificates / "one.crt")))
    directory_ = tmp_path / "certs"
    directory_.mkdir()
    for path, content in found.items():
        if path.startswith(b"etc/ssl/certs/") and path.endswith(b".0"):
            (directory_ / Path(path.decode()).name).write_bytes(content)
    said = subprocess.run(
        ["openssl", "verify", "-CApath", directory_, "-no-CAfile", "-no-CAstore",
         certificates / "one.crt"], capture_output=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr


def test_a_link_in_an_image_leads_them_nowhere_outside(certificates: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ca-certificates.crt").write_text("untouched")
    members = (
        symlink(b"etc/ssl/certs", bytes(outside)),
        symlink(b"etc/ssl/cert.pem", bytes(outside / "ca-certificates.crt")),
        symlink(b"usr/local/share/ca-certificates", b"../../../../../../../../.." + bytes(outside)),
    )
    authorities = read_authorities(certificates)
    imported(layout(tmp_path / "oci", layer(*members)), tmp_path / "c", authorities)
    assert [each.name for each in outside.iterdir()] == ["ca-certificates.crt"]
    assert (outside / "ca-certificates.crt").read_text() == "untouched"


def test_they_are_part_of_the_key(certificates: Path, tmp_path: Path) -> None:
    one = read_authorities(certificates / "one.crt")
    assert root_key("k", 1 << 30, one) != root_key("k", 1 << 30, Authorities())
    source = layout(tmp_path / "oci", layer(*DEBIAN))
    with_one = imported(source, tmp_path / "c", one)
    without = imported(source, tmp_path / "c", Authorities())
    assert with_one.root != without.root
    assert imported(source, tmp_path / "c", one) == with_one


def test_the_setting_names_a_file_or_a_directory(certificates: Path) -> None:
    assert extra_authorities({}) is None
    assert extra_authorities({"TORPOR_EXTRA_CA": ""}) is None
    assert wanted_authorities({}) == Authorities()
    both = wanted_authorities({"TORPOR_EXTRA_CA": str(certificates)})
    assert len(both.certificates) == 2
    one = wanted_authorities({"TORPOR_EXTRA_CA": str(certificates / "one.crt")})
    assert set(one.certificates) < set(both.certificates)


def test_the_same_certificate_twice_is_one(certificates: Path, tmp_path: Path) -> None:
    text = (certificates / "one.crt").read_text()
    (tmp_path / "twice.pem").write_text(f"a comment\n{text}\r\n{text}")
    twice = read_authorities(tmp_path / "twice.pem")
    assert twice == read_authorities(certificates / "one.crt")
    (text_,) = twice.certificates
    assert twice.digests == (hashlib.sha256(text_.encode()).hexdigest(),)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no PEM certificate"),
        (b"\xff\xfe", "not a PEM file"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "private key"),
    ],
)
def test_what_is_no_certificate_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(content)
    for place in (file, tmp_path):
        with pytest.raises(ImageError, match=why):
            read_authorities(place)


def test_a_setting_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ImageError, match="TORPOR_EXTRA_CA"):
            read_authorities(place)
