"""What holds for the whole checkout: what its files may name, and that its pages hang together."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import torpor

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "src/torpor/guest"
DECISIONS = ROOT / "docs/decisions"

# Written so that they do not match themselves: this file is searched, too.
MACHINE_PATHS = re.compile(r"(?<![\w.}/-])/(?:work|root|home/[a-z]\w*)(?:/)")
REGISTRY_HOSTS = re.compile(
    r"(?:(?:deb|security|snapshot|ftp(?:\.\w\w)?)\.debian"
    r"|(?:archive|security|ports)\.ubuntu"
    r"|(?:test\.|files\.)?pythonhosted|(?:test\.)?pypi"
    r"|registry\.(?:npmjs|yarnpkg)"
    r"|(?:proxy|sum)\.golang"
    r"|(?:static\.|index\.)?crates)\.(?:org|com|io)\b",
    re.IGNORECASE,
)


def repository_files() -> list[Path]:
    """All files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    # A file that was deleted, but not yet in a commit, is still listed.
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_lines(pattern: re.Pattern[str]) -> list[str]:
    """Every line of the repository in which the pattern occurs, as ``file:line: text``."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in repository_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if pattern.search(line)
    ]


def markdown_pages() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".md"]


def prose(page: Path) -> str:
    """The page without its code, in which brackets and number signs mean something else."""
    text = re.sub(
        r"^(`{3,}|~{3,}).*?^\1", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: Path) -> list[str]:
    """The targets of all links and pictures of a page that lead to a place in this repository."""
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)", prose(page))
    defined = re.findall(r"^\[[^\]]+\]:\s+(\S+)", prose(page), re.MULTILINE)
    return [link for link in inline + defined if not re.match(r"[a-z][a-z+.-]*:", link)]


def anchors(page: Path) -> set[str]:
    """The names that code hosts give to the headings of a page."""
    text = re.sub(
        r"^(`{3,}|~{3,}).*?^\1", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ +(.*?)\s*#*$", text, re.MULTILINE)
    names: set[str] = set()
    for heading in headings:
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeated = 1
        unique = name
        while unique in names:
            unique, repeated = f"{name}-{repeated}", repeated + 1
        names.add(unique)
    return names


def imported_modules(source: Path) -> set[str]:
    """The full names of all modules that a file imports, wherever in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}:{node.lineno}: relative import"
            # `from torpor import guest` names the module only in its last part.
            modules.update(
                f"{node.module}.{alias.name}" if node.module == "torpor" else str(node.module)
                for alias in node.names
            )
    return modules


@pytest.mark.parametrize(
    ("pattern", "found", "passed_over"),
    [
        (
            MACHINE_PATHS,
            ["/ro" + "ot/x", '"/ho' + 'me/me/x"'],
            ["{tree}/ro" + "ot/x", "/root", "~/x"],
        ),
        (
            REGISTRY_HOSTS,
            ["https://pyp" + "i.org/simple", "ftp.de.deb" + "ian.org"],
            ["debian.org"],
        ),
    ],
)
def test_the_patterns_find_what_they_are_for(
    pattern: re.Pattern[str], found: list[str], passed_over: list[str]
) -> None:
    assert [text for text in found + passed_over if pattern.search(text)] == found


def test_no_file_names_a_path_of_one_machine() -> None:
    # These name paths inside machines, where root's home is always in one place.
    inside = ("src/torpor/guest/", "src/torpor/lab/", "tests/machine/", "docs/")
    assert [line for line in text_lines(MACHINE_PATHS) if not line.startswith(inside)] == []


def test_no_file_names_a_package_registry() -> None:
    assert text_lines(REGISTRY_HOSTS) == []


def test_constraints_pin_every_package_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(pins, key=str.lower)
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_every_installed_package_is_the_one_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: version(name) for name in pins} == pins


def test_the_version_is_that_of_the_package() -> None:
    assert torpor.__version__ == version("torpor")


def test_the_guest_imports_only_the_standard_library() -> None:
    sources = sorted(GUEST.rglob("*.py"))
    assert sources
    foreign = {
        f"{source.relative_to(ROOT)}: {module}"
        for source in sources
        for module in imported_modules(source)
        if module.split(".")[0] not in sys.stdlib_module_names
        and not f"{module}.".startswith("torpor.guest.")
    }
    assert foreign == set()


def test_every_decision_is_listed() -> None:
    decisions = {path.name for path in DECISIONS.glob("*.md")} - {"README.md"}
    assert decisions
    assert decisions - set(links(DECISIONS / "README.md")) == set()


def test_every_local_link_resolves() -> None:
    broken = []
    for page in markdown_pages():
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            if not target.exists() or (
                anchor and target.suffix == ".md" and anchor not in anchors(target)
            ):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


@pytest.mark.parametrize("script", ["dev", ".ci/run"])
def test_scripts_are_sound_and_can_be_run(script: str) -> None:
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("arguments", [["help"], ["--help"], []])
def test_dev_says_what_it_can_do(arguments: list[str], tmp_path: Path) -> None:
    said = subprocess.run(
        [ROOT / "dev", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    for command in ("setup", "demo", "serve", "stop", "test", "lint", "bench", "soak"):
        assert re.search(rf"^  {command} ", said.stdout, re.MULTILINE)


def test_dev_refuses_an_unknown_command(tmp_path: Path) -> None:
    said = subprocess.run(
        [ROOT / "dev", "tset"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert said.returncode == 1
    assert "no command 'tset'" in said.stderr
