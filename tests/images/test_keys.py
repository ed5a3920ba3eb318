import os
from dataclasses import replace
from pathlib import Path

from torpor.images.debian import Recipe, tar_key
from torpor.images.digests import DISK_BLOCK, disk_digest, key_of, tree_digest, uuid_of
from torpor.images.parts import agent_source, tools_key

BOOT = {"init.sh": b"a", "agent.sh": b"b"}
SITE = {"__main__.py": b"c"}


def test_recipe_key_follows_what_is_installed_and_nothing_else() -> None:
    recipe = Recipe(packages=("git", "curl"))
    key = tar_key(recipe)
    assert tar_key(replace(recipe, name="other", packages=("curl", "git", "git"))) == key
    assert tar_key(replace(recipe, packages=("git",))) != key
    assert tar_key(replace(recipe, suite="trixie")) != key


def test_tools_key_follows_boot_scripts_and_agent() -> None:
    key = tools_key("runtime", BOOT, SITE)
    assert tools_key("runtime", dict(reversed(BOOT.items())), SITE) == key
    assert tools_key("runtime", BOOT | {"init.sh": b"x"}, SITE) != key
    assert tools_key("runtime", BOOT, SITE | {"torpor/guest/new.py": b""}) != key
    assert tools_key("newer runtime", BOOT, SITE) != key


def test_kinds_do_not_share_keys() -> None:
    assert key_of("tools", {"a": 1}) != key_of("root", {"a": 1})


def test_uuid_follows_from_the_key() -> None:
    assert uuid_of("k", "uuid") == uuid_of("k", "uuid") != uuid_of("k", "hash_seed")


def test_agent_source_is_complete_without_an_agent(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/module.py").write_bytes(b"x = 1\n")
    (tmp_path / "boot.sh").write_bytes(b"not Python")
    files = agent_source(tmp_path)
    assert b"from torpor.guest.agent import main\n" in files["__main__.py"]
    assert set(files) == {
        "__main__.py",
        "torpor/__init__.py",
        "torpor/guest/__init__.py",
        "torpor/guest/deep/module.py",
        "torpor/guest/digest.py",
    }


def test_tree_digest_sees_content_mode_and_link(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    file = tree / "sub/file"
    file.write_text("one")
    link = tree / "link"
    link.symlink_to("sub")
    seen = [tree_digest(tree)]
    os.utime(file, (1, 1))
    assert tree_digest(tree) == seen[0]
    file.write_text("two")
    seen.append(tree_digest(tree))
    file.chmod(0o755)
    seen.append(tree_digest(tree))
    link.unlink()
    link.symlink_to("sub/file")
    seen.append(tree_digest(tree))
    assert len(set(seen)) == 4


def test_disk_digest_is_of_the_content_not_of_the_holes(tmp_path: Path) -> None:
    size = 10 * DISK_BLOCK + 4096
    sparse, full, other = (tmp_path / name for name in ("sparse", "full", "other"))
    content = bytearray(size)
    content[3 * DISK_BLOCK + 5] = 1
    content[-1] = 2
    full.write_bytes(content)
    with sparse.open("wb") as file:
        file.truncate(size)
        file.seek(3 * DISK_BLOCK + 5)
        file.write(b"\1")
        file.seek(size - 1)
        file.write(b"\2")
    content[4 * DISK_BLOCK + 5], content[3 * DISK_BLOCK + 5] = 1, 0
    other.write_bytes(content)
    assert disk_digest(sparse) == disk_digest(full) != disk_digest(other)
