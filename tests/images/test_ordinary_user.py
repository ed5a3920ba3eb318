"""Who is not root gets the same images: owners, devices, set-uid bits and capabilities kept."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import torpor
from tests.images.oci_builder import layer, layout
from tests.images.test_importing import LOWER, UPPER, read
from torpor.images import Asked, Image, import_image, silent
from torpor.images.authorities import Authorities

USER = 0x7000_AAAA
SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from torpor.images import Asked, ImageError, import_image, silent
from torpor.images.authorities import Authorities
try:
    made = asyncio.run(import_image(
        Path(sys.argv[1]), sys.argv[2], silent, Asked(authorities=Authorities())))
    print(json.dumps([str(made.image.root), made.image.size_bytes]))
except ImageError as error:
    print(json.dumps(str(error)))
"""


def user_python() -> list[str]:
    """A command that runs this version of Python, with our packages, as a user who is not root."""
    if os.geteuid() != 0:
        return [sys.executable]
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
    packages = ":".join([str(Path(torpor.__file__).parents[1]), sysconfig.get_path("purelib")])
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place in (sys.executable, f"/usr/bin/{python}", f"/usr/local/bin/{python}"):
        line = [*become, "env", f"PYTHONPATH={packages}", "PYTHONDONTWRITEBYTECODE=1", place]
        tried = subprocess.run([*line, "-c", "import torpor.images"], check=False)
        if tried.returncode == 0:
            return line
    pytest.skip("the checkout, or its Python, is closed to users other than root")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of that user's, on a way that all may go."""
    directory = Path(tempfile.mkdtemp(prefix="torpor-user-", dir="/var/tmp"))
    if os.geteuid() == 0:
        os.chown(directory, USER, USER)
    yield directory
    shutil.rmtree(directory)


def imported_by_user(place: Path, source: Path) -> object:
    for each in (source, *source.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    ended = subprocess.run(
        [*user_python(), "-c", SCRIPT, place / "cache", source],
        check=True, capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    return json.loads(ended.stdout)


async def test_an_image_is_the_same_whoever_makes_it(place: Path, tmp_path: Path) -> None:
    source = layout(place / "oci", layer(*LOWER), layer(*UPPER))
    made = imported_by_user(place, source)
    assert isinstance(made, list), made
    image = Image("user", "", Path(made[0]), made[1])
    asked = Asked(authorities=Authorities())
    own = await import_image(tmp_path / "cache", str(source), silent, asked)
    assert read(image) == read(own.image)
    assert [each.name for each in (place / "cache/.building").iterdir()] == []


def test_what_is_refused_leaves_nothing_of_a_users_either(place: Path) -> None:
    def lie(manifest: dict[str, object], config: dict[str, object]) -> None:
        config["rootfs"] = {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}

    source = layout(place / "oci", layer(*LOWER), change=lie)
    said = imported_by_user(place, source)
    assert "digest is wrong" in str(said)
    assert [each.name for each in (place / "cache/.building").iterdir()] == []
