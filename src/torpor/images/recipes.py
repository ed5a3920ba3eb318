"""Recipes in files: what a Debian image is made from, as TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from torpor.images.debian import Recipe
from torpor.images.errors import ImageError

KEYS = ("name", "suite", "packages")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?")
SUITE = re.compile(r"[a-z][a-z0-9-]*")


def read_recipe(file: Path) -> Recipe:
    """Read a recipe. Raises ImageError, naming what is wrong with it."""
    try:
        said = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise _refused(file, f"it cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise _refused(file, str(error)) from None
    unknown = sorted(set(said) - set(KEYS))
    if unknown:
        raise _refused(file, f"it has {', '.join(unknown)}; known are {', '.join(KEYS)}")
    packages = said.get("packages", list(Recipe().packages))
    name, suite = said.get("name", file.stem), said.get("suite", Recipe().suite)
    if not isinstance(packages, list) or not all(isinstance(each, str) for each in packages):
        raise _refused(file, "packages is not a list of names")
    if not isinstance(name, str) or not isinstance(suite, str):
        raise _refused(file, "name or suite is not a text")
    return checked(Recipe(name, suite, tuple(packages)))


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe whose words are names. Raises ImageError if one could be anything else."""
    for package in recipe.packages:
        if not PACKAGE.fullmatch(package):
            raise ImageError(
                f"{package!r} is not the name of a Debian package.",
                "Nothing was built.",
                "Name packages as `apt-get install` takes them.",
            )
    if not SUITE.fullmatch(recipe.suite):
        raise ImageError(
            f"{recipe.suite!r} is not the name of a Debian suite.",
            "Nothing was built.",
            "Name one as in /etc/apt: bookworm, for instance.",
        )
    return recipe


def _refused(file: Path, why: str) -> ImageError:
    return ImageError(
        f"The recipe {file} is not sound: {why}.",
        "Nothing was built.",
        'A recipe is TOML: name = "mine", suite = "bookworm", packages = ["git", "curl"].',
    )
