from pathlib import Path

import pytest

from torpor.images.apt import (
    Source,
    apt_network_options,
    debian_sources,
    parse_deb822,
    parse_list,
    read_sources,
)

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEB822 = f"""\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/off
Suites: trixie
Components: main
Enabled: no
"""
OTHERS = """\
deb https://packages.example/linux/debian trixie stable
deb [signed-by=/etc/apt/keyrings/vendor.gpg] https://vendor.example/debian trixie main
deb https://cloud.example/apt cloud-sdk-bookworm main
"""
UBUNTU = """\
Types: deb
URIs: http://archive.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
INLINE_KEY = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY
 -----END PGP PUBLIC KEY BLOCK-----
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "etc/sources.list.d").mkdir(parents=True)
    return tmp_path / "etc"


def found(etc: Path, suite: str = "bookworm") -> list[tuple[str, str]]:
    sources = debian_sources(suite, etc, etc / "no lists")
    return [(source.uri, source.suite) for source in sources]


def test_one_line_format() -> None:
    text = (
        "# deb http://commented.example/debian bookworm main\n"
        "deb-src http://mirror.example/debian bookworm main\n"
        f"deb [arch=amd64,i386 signed-by={KEYRING} trusted=yes] http://mirror.example/debian/"
        " bookworm main contrib # why\n"
        "deb [arch=arm64] http://arm.example/debian bookworm main\n"
    )
    assert parse_list(text) == [
        Source(
            "http://mirror.example/debian/",
            "bookworm",
            ("main", "contrib"),
            KEYRING,
            (("trusted", "yes"),),
        )
    ]


def test_deb822_format() -> None:
    assert [(source.uri, source.suite) for source in parse_deb822(DEB822)] == [
        ("http://mirror.example/debian", "trixie"),
        ("http://mirror.example/debian", "trixie-updates"),
        ("http://mirror.example/debian-security", "trixie-security"),
    ]


def test_key_that_stands_in_the_file() -> None:
    (source,) = parse_deb822(INLINE_KEY)
    assert source.signed_by.splitlines() == [
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        "",
        "mDMEY",
        "-----END PGP PUBLIC KEY BLOCK-----",
    ]


def test_only_files_that_apt_reads_are_read(etc: Path) -> None:
    (etc / "sources.list.d/debian.sources.bak").write_text(DEB822)
    assert read_sources(etc) == []


def test_hosts_suite_is_mapped_and_other_vendors_are_left_out(etc: Path) -> None:
    (etc / "sources.list.d/debian.sources").write_text(DEB822)
    (etc / "sources.list").write_text(OTHERS)
    assert found(etc) == [
        ("http://mirror.example/debian", "bookworm"),
        ("http://mirror.example/debian", "bookworm-updates"),
        ("http://mirror.example/debian-security", "bookworm-security"),
    ]


def test_entries_of_the_suite_itself_are_preferred(etc: Path) -> None:
    (etc / "sources.list.d/debian.sources").write_text(DEB822)
    (etc / "sources.list").write_text("deb http://old.example/debian bookworm main\n")
    assert found(etc) == [("http://old.example/debian", "bookworm")]


def test_what_apt_downloaded_decides(etc: Path) -> None:
    (etc / "sources.list").write_text(
        "deb [signed-by=/own.gpg] http://mirror.example/remote/deb bookworm main\n"
        "deb http://fake.example/debian bookworm main\n"
    )
    lists = etc / "lists"
    lists.mkdir()
    name = "mirror.example_remote_deb_dists_bookworm_InRelease"
    (lists / name).write_text("Origin: Debian\nLabel: Debian\n")
    (lists / "fake.example_debian_dists_bookworm_InRelease").write_text("Origin: Somebody\n")
    sources = debian_sources("bookworm", etc, lists)
    assert [source.uri for source in sources] == ["http://mirror.example/remote/deb"]


def test_mirror_list_of_cloud_images_is_opened(etc: Path) -> None:
    mirrors = etc / "debian-mirrors.list"
    mirrors.write_text("http://first.example/debian\tpriority:1\n")
    (etc / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] mirror+file:{mirrors} bookworm main\n"
    )
    assert found(etc) == [("http://first.example/debian", "bookworm")]


def test_ubuntu_host_has_no_debian_mirror(etc: Path) -> None:
    (etc / "sources.list.d/ubuntu.sources").write_text(UBUNTU)
    assert found(etc) == []


def test_security_alone_is_not_enough(etc: Path) -> None:
    (etc / "sources.list").write_text(
        "deb http://mirror.example/debian-security bookworm-security main\n"
    )
    assert found(etc) == []


def test_proxy_and_ca_of_the_host_are_passed_on() -> None:
    dump = """\
APT "";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3128/";
Acquire::http::Proxy::own.example "DIRECT";
Acquire::https::CaInfo "/etc/ssl/own.pem";
Acquire::Changelogs::URI::Origin::Debian "https://changes.example";
Acquire::Retries "5";
APT::Update::Post-Invoke-Success:: "touch /proxy";
"""
    assert apt_network_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example:3128/";',
        'Acquire::http::Proxy::own.example "DIRECT";',
        'Acquire::https::CaInfo "/etc/ssl/own.pem";',
        'Acquire::Retries "5";',
    ]
