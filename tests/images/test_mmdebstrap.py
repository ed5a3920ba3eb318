from pathlib import Path

from torpor.images.apt import Source
from torpor.images.mmdebstrap import Progress, mirror_lines
from torpor.images.progress import Step

OUTPUT = """\
I: running apt-get update...
Get:1 http://mirror.example/debian bookworm InRelease [151 kB]
I: downloading packages with apt...
Need to get 3875 kB of archives.
Get:1 http://mirror.example/debian bookworm/main amd64 busybox-static amd64 1:1.35.0-4 [928 kB]
Get:2 http://mirror.example/debian bookworm/main amd64 libc6 amd64 2.36-9 [2.759 MB]
I: extracting archives...
W: something
I: installing remaining packages inside the chroot...
Setting up git (1:2.39.5-0) ...
Setting up curl (7.88.1-10) ...
I: success in 2.2642 seconds
"""


def test_progress_names_stages_and_counts_bytes_and_packages() -> None:
    steps: list[Step] = []
    progress = Progress(steps.append)
    for line in OUTPUT.splitlines():
        progress.line(line)
    assert steps == [
        Step("reading package lists"),
        Step("downloading packages"),
        Step("downloading packages", 928_000, 3_875_000, "bytes"),
        Step("downloading packages", 3_687_000, 3_875_000, "bytes"),
        Step("extracting packages"),
        Step("installing packages"),
        Step("installing packages", 1, None, "packages"),
        Step("installing packages", 2, None, "packages"),
    ]


def test_sources_become_lines_and_a_key_in_the_source_becomes_a_file(tmp_path: Path) -> None:
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
    sources = [
        Source("http://a.example/debian", "bookworm", ("main",), "/a.gpg", (("trusted", "yes"),)),
        Source("http://b.example/debian", "bookworm", ("main",), key),
        Source("http://c.example/debian", "bookworm", ("main",)),
    ]
    assert mirror_lines(sources, tmp_path) == [
        "deb [trusted=yes signed-by=/a.gpg] http://a.example/debian bookworm main",
        f"deb [signed-by={tmp_path}/1.asc] http://b.example/debian bookworm main",
        "deb http://c.example/debian bookworm main",
    ]
    assert (tmp_path / "1.asc").read_text() == key
