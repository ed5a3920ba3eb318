"""Hosts of package tools are read from their own files, and nothing else of these is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.package_sources import (
    apt_rules,
    cargo_rules,
    go_rules,
    npm_rules,
    pip_rules,
    url_rule,
    variable_rules,
)
from torpor.network.rules import read_rule


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://index.example/simple", "index.example"),
        ("HTTPS://Index.Example./simple", "index.example"),
        ("http://mirror.example/debian", "mirror.example"),
        ("http://mirror.example:8080/debian", "mirror.example:8080"),
        ("https://me:pass@index.example/simple", "index.example"),
        ("sparse+https://crates.example/index/", "crates.example"),
        ("ssh://git@git.example/x", "git.example:22"),
        ("http://10.0.0.5/simple", "10.0.0.5:80"),
        ("http://10.0.0.5:3141/simple", "10.0.0.5:3141"),
        ("https://bücher.example/x", "xn--bcher-kva.example"),
    ],
)
def test_the_host_of_a_url(url: str, rule: str) -> None:
    assert url_rule(url) == rule
    assert read_rule("", rule).written == rule


@pytest.mark.parametrize(
    "url",
    ["", "x", "file:///srv/mirror", "cdrom:[Debian]/", "https://", "http://[::1]/x", "http://[x",
     "http://127.0.0.1:3141/x", "http://localhost:3141/", "https://x.example:99999/",
     "mirror+file:/etc/apt/mirrors.txt", "https://nodots/x", "https://${HOST}/x", "off", "direct"],
)  # fmt: skip
def test_what_is_reached_over_no_network_needs_no_rule(url: str) -> None:
    assert url_rule(url) is None


def test_pip() -> None:
    text = """\
# a comment
[global]
index-url = https://index.example/simple
extra_index_url =
    https://extra.example/simple
    http://third.example:8080/simple
trusted-host = not.example
timeout = 60
no-color
[install]
find-links = https://wheels.example/x /srv/wheels
proxy = http://proxy.example:3128
index-url = https://index.example/other
"""
    assert pip_rules(text) == (
        "index.example",
        "extra.example",
        "third.example:8080",
        "wheels.example",
        "proxy.example:3128",
    )
    assert pip_rules("no section\n") == ()


def test_npm() -> None:
    text = """\
; registry=https://commented.example/
# registry=https://commented.example/
registry = "https://registry.example/npm/"
@scope:registry=https://scoped.example:4873
//registry.example/npm/:_authToken=https://secret.example
https-proxy=http://proxy.example:3128/
cache=/tmp
"""
    assert npm_rules(text) == ("registry.example", "scoped.example:4873", "proxy.example:3128")


def test_apt() -> None:
    lines = """\
# deb http://commented.example/debian bookworm main
deb http://archive.example/debian bookworm main # http://comment.example
deb-src [ signed-by=/x arch=amd64 ] https://source.example:8443/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
"""
    assert apt_rules(lines) == ("archive.example", "source.example:8443")
    stanzas = """\
Types: deb deb-src
URIs: http://archive.example/debian
      https://second.example/debian
# URIs: http://commented.example/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: http://disabled.example/debian

types: deb
uris: http://security.example/debian-security
enabled: yes
"""
    assert apt_rules(stanzas) == ("archive.example", "second.example", "security.example")
    settings_text = """\
Acquire::http::Proxy "http://proxy.example:3142";
Acquire { https { Proxy "http://other.example:3128"; } }
Acquire::http::Proxy::direct.example "DIRECT";
Acquire::http::Proxy::far.example "http://third.example:3128";
"""
    assert apt_rules(settings_text) == (
        "proxy.example:3142",
        "other.example:3128",
        "third.example:3128",
    )


def test_cargo() -> None:
    text = """\
[registries.mine]
index = "sparse+https://mine.example/index/"
[registry]
index = "https://old.example/index"
default = "mine"
[source.mirror]
registry = "sparse+https://mirror.example:8443/"
[source.vendored]
directory = "vendor"
[source.repository]
git = "ssh://git@git.example/x"
[http]
proxy = "http://proxy.example:3128"
"""
    assert cargo_rules(text) == (
        "mine.example",
        "mirror.example:8443",
        "git.example:22",
        "old.example",
        "proxy.example:3128",
    )
    assert cargo_rules("not = toml = at all") == ()
    assert cargo_rules("registries = 5\nsource = []\n[http]\nproxy = 7") == ()


def test_go() -> None:
    text = """\
# GOPROXY=https://commented.example
GOPROXY=https://modules.example,https://second.example|direct
GOSUMDB=sums.example+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8
GOFLAGS=-mod=mod
"""
    assert go_rules(text) == ("modules.example", "second.example", "sums.example")
    assert go_rules("GOPROXY=off\nGOSUMDB=off\n") == ()
    assert go_rules("GOSUMDB=name+key https://served.example/sums\n") == ("served.example",)
    assert go_rules("GOSUMDB=\n") == ()


def test_variables() -> None:
    assert variable_rules(
        {
            "PIP_INDEX_URL": "https://index.example/simple",
            "PIP_EXTRA_INDEX_URL": "https://extra.example/simple http://third.example:8080/x",
            "PIP_CERT": "https://not.example",
            "UV_INDEX": "mine=https://uv.example/simple",
            "npm_config_registry": "https://registry.example/",
            "CARGO_REGISTRIES_MINE_INDEX": "sparse+https://crates.example/",
            "GOPROXY": "https://modules.example,direct",
            "GOSUMDB": "off",
            "HOMEPAGE": "https://other.example",
        }
    ) == (
        "index.example",
        "extra.example",
        "third.example:8080",
        "uv.example",
        "registry.example",
        "crates.example",
        "modules.example",
    )


@settings(deadline=None, max_examples=300)
@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            ["deb ", "URIs: ", "[x]", "index-url=", "http://a.example", "\n", " ", "registry=",
             "https://[", ":", "GOPROXY=", "GOSUMDB=", "\n\n", "=", '"', "proxy", "Enabled: no"]
        ),
        max_size=20,
    ).map("".join)
)  # fmt: skip
def test_whatever_a_file_says_only_rules_come_of_it(text: str) -> None:
    for reader in (pip_rules, npm_rules, apt_rules, cargo_rules, go_rules):
        for rule in reader(text):
            assert read_rule("", rule).written == rule
