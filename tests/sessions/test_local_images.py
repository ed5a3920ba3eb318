"""Images on this computer, where no machine is needed to see it: what is booted is left out."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.images.oci_builder import Member, layer, layout
from tests.images.registry import Registry, serving
from torpor.images import ImageError
from torpor.images.names import Names
from torpor.images.progress import Step
from torpor.images.references import Reference
from torpor.sessions import local_images
from torpor.sessions.local_images import LocalImages, _passed_on, _to_its_end


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    with serving(layout(tmp_path / "oci", layer(Member(b"there", content=b"x")))) as server:
        yield server


def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *insecure: str) -> LocalImages:
    """The images of a home; each that is booted is noted in ``booted``."""

    async def golden(_maker: Any, image: Any, _shape: Any, _tell: Any) -> str:
        with (tmp_path / "booted").open("a") as file:
            file.write(f"{image.name}\n")
        return "golden"

    monkeypatch.setattr(local_images, "golden", golden)
    maker: Any = SimpleNamespace(cache=tmp_path / "cache")
    host: Any = SimpleNamespace(home=tmp_path / "home")
    return LocalImages(maker, host, insecure)


async def told(step: str) -> None:
    pass


async def test_what_a_registry_has_is_named_booted_and_forgotten(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = f"127.0.0.1:{registry.server_port}"
    made = images(tmp_path, monkeypatch, host)
    digest = registry.manifest["digest"]
    said: list[str] = []

    async def report(step: str) -> None:
        said.append(step)

    for reference in (Reference(host, "some/name", "tag"), Reference(host, "x", "tag", digest)):
        built = await made.build(reference, "t-1", "mars-2vcpu-1gb", report)
        assert (built.manifest, built.size_bytes) == (digest, 8 << 30)
        assert built.files > 0
    assert said[0] == "fetching"
    assert len(said) > 2
    made.check("t-1")
    assert (tmp_path / "booted").read_text() == "t-1\nt-1\n"
    for _ in range(2):
        await made.forget("t-1")
    with pytest.raises(ImageError, match="no image called t-1"):
        made.check("t-1")
    assert list((tmp_path / "home/images/disks").iterdir()) == []


async def test_only_a_registry_that_is_named_need_not_prove_who_it_is(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = images(tmp_path, monkeypatch, "127.0.0.1", f"localhost:{registry.server_port}")
    host = f"127.0.0.1:{registry.server_port}"
    with pytest.raises(ImageError, match=r"TLS|HTTPS"):
        await made.build(Reference(host, "some/name", "tag"), "t-1", "mars-2vcpu-1gb", told)
    assert Names(tmp_path / "home").records() == []


async def test_a_damaged_record_is_told_and_nothing_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = images(tmp_path, monkeypatch)
    names = tmp_path / "home/images/names"
    names.mkdir(parents=True)
    (names / "other.json").write_text("{")
    with pytest.raises(ImageError, match="damaged"):
        await made.forget("t-1")


async def test_the_last_step_is_reported_too_and_none_twice() -> None:
    said: list[str] = []

    async def report(step: str) -> None:
        await asyncio.sleep(0.01)
        said.append(step)

    async with _passed_on(report) as tell:
        await asyncio.to_thread(tell, Step("one", 1))
        await asyncio.to_thread(tell, Step("one", 2))
        tell(Step("two"))
    assert said == ["one", "two"]


async def test_a_report_that_fails_ends_no_work() -> None:
    async def report(step: str) -> None:
        raise OSError("no space")

    async with _passed_on(report) as tell:
        tell(Step("one"))
        await asyncio.sleep(0.01)
        tell(Step("two"))


async def test_who_is_cancelled_waits_for_what_has_begun() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        done.set()

    task = asyncio.create_task(_to_its_end(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
