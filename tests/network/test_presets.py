"""What each preset pulls in is seen here, so that a host that is added is added on purpose."""

import pytest

from torpor.network.errors import PolicyError
from torpor.network.presets import package_rules, preset, preset_names, preset_rules

PULLED_IN = {
    "anthropic": ["api.anthropic.com"],
    "github": [
        "github.com",
        "github.com:22",
        "tcp://ssh.github.com:443",
        "api.github.com",
        "uploads.github.com",
        "codeload.github.com",
        "raw.githubusercontent.com",
        "gist.github.com",
        "gist.githubusercontent.com",
        "objects.githubusercontent.com",
        "release-assets.githubusercontent.com",
        "media.githubusercontent.com",
        "github-cloud.githubusercontent.com",
    ],
    "gitlab": ["gitlab.com", "gitlab.com:22", "tcp://altssh.gitlab.com:443"],
    "openai": ["api.openai.com"],
}


def test_what_each_pulls_in() -> None:
    assert {
        name: [rule.written for rule in preset(name).rules] for name in preset_names()
    } == PULLED_IN


@pytest.mark.parametrize("name", PULLED_IN)
def test_no_preset_opens_a_domain_or_a_range(name: str) -> None:
    assert [rule for rule in preset(name).rules if rule.below or rule.network] == []
    assert preset(name).meaning


def test_a_rule_says_which_preset_it_is_from() -> None:
    assert str(preset("openai").rules[0]) == "openai: api.openai.com"


def test_packages_are_what_the_image_says() -> None:
    assert preset_rules("packages", ()) == ()
    rules = preset_rules("packages", ["index.example", "mirror.example:8080"])
    assert [str(rule) for rule in rules] == [
        "packages: index.example",
        "packages: mirror.example:8080",
    ]


def test_what_an_image_says_is_checked_as_what_people_write() -> None:
    with pytest.raises(PolicyError, match=r"packages\[1\]"):
        package_rules(["index.example", "127.0.0.1:80"])


@pytest.mark.parametrize("name", ["nonsense", "../policy", ""])
def test_there_are_no_others(name: str) -> None:
    with pytest.raises(KeyError):
        preset(name)
