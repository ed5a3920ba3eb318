"""Templates and their builds, on a host that builds files."""

import asyncio
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.sessions.world import WorldHost
from tests.waiting import eventually
from torpor.images import ImageError
from torpor.sessions import ConflictError, InvalidError, Key, NewSession, NotFoundError
from torpor.sessions.hosts import Built
from torpor.sessions.template_model import NewTemplate, TemplateChanges, image_of
from torpor.store import builds as builds_table
from torpor.store.builds import MOST_LINES
from torpor.store.records import Build, Status, Template

SOURCE = "registry.test/team/tools:1"


async def made(service: Service, name: str = "tools", **rest: Any) -> Template:
    """Return a new template, which is about to be built."""
    new = NewTemplate(**{"name": name, "base": "sandbox", "source": SOURCE} | rest)
    return await service.sessions.templates.create(new, ANN)


async def stands(service: Service, template: Template, status: str) -> Template:
    """Return a template once it has a status."""
    return await eventually(
        lambda: service.sessions.templates.get(template.id), lambda found: found.status == status
    )


async def ready(service: Service, name: str = "tools", **rest: Any) -> Template:
    """Return a new template that has been built."""
    return await stands(service, await made(service, name, **rest), "READY")


async def of(service: Service, template: Template) -> list[Build]:
    """Return the builds of a template, the oldest first."""
    _, page = await service.sessions.templates.builds(template.id, 200)
    return page.items[::-1]


async def log(service: Service, build: Build) -> list[str]:
    """Return the log of a build."""
    lines = await service.sessions.templates.log(build.template, build.id)
    return [line.text for line in lines]


async def test_a_template_is_built_and_sessions_start_from_it(service: Service) -> None:
    template = await made(service)
    assert (template.status, template.source) == ("PENDING", SOURCE)
    template = await stands(service, template, "READY")
    (build,) = await of(service, template)
    assert (build.status, build.id) == ("SUCCEEDED", template.current_build)
    assert build.manifest is not None
    assert service.host.images() == [build.image] == [image_of(build.id)]
    session = await service.ready(template="TOOLS")
    assert (session.image, session.template) == (build.image, template.id)
    assert session.defaults["env"] == {"IMAGE": build.image}
    forked = await service.sessions.fork(session.id, ANN)
    assert [each.template for each in forked.children] == [template.id]  # type: ignore[union-attr]


async def test_what_happens_is_told_in_events_and_in_the_log(service: Service) -> None:
    template = await ready(service)
    (build,) = await of(service, template)
    types = await service.types()
    assert [each for each in types if each.startswith("template")] == [
        "template.created",
        "template.build_started",
        "template.build_progress",
        "template.build_progress",
        "template.build_succeeded",
    ]
    events = await service.sessions.events.after(None, None)
    assert events[types.index("template.created")].actor == ANN.id
    steps = [each.data["step"] for each in events if each.type == "template.build_progress"]
    assert steps == ["fetching", f"boot {build.image} at mars-2vcpu-1gb"]
    said = await log(service, build)
    assert said[0] == f"begun: {SOURCE}"
    assert said[1:3] == steps
    assert said[3] == "it has no shell"
    assert said[4].startswith(f"done: {build.manifest}, 12 files")


async def test_one_is_built_at_a_time_in_the_order_of_asking(service: Service) -> None:
    service.host.step = 0.05
    first, second = await made(service, "one"), await made(service, "two", source="r.test/two")
    await stands(service, first, "BUILDING")
    assert (await service.sessions.templates.get("two")).status == "PENDING"
    await stands(service, first, "READY")
    await stands(service, second, "READY")
    assert service.host.sources == [SOURCE, "r.test/two:latest"]


async def test_what_fails_says_why_and_leaves_nothing(service: Service) -> None:
    service.host.refuse["boot_image"] = ImageError("It does not boot.", "Nothing is.", "Mend it.")
    template = await stands(service, await made(service), "FAILED")
    (build,) = await of(service, template)
    assert build.status == "FAILED"
    assert build.error is not None
    assert "It does not boot." in build.error
    assert "It does not boot." in await log(service, build)
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda found: found == [])
    with pytest.raises(ConflictError, match="FAILED") as refused:
        await service.sessions.create(NewSession(template="tools"), ANN)
    assert refused.value.code == "not_ready"
    # And the next one is built all the same.
    await ready(service, "two")


async def test_a_failure_that_nobody_foresaw_ends_that_build_alone(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.host.refuse["build_image"] = ZeroDivisionError("by zero")
    template = await stands(service, await made(service), "FAILED")
    (build,) = await of(service, template)
    assert build.error == "by zero"
    assert "was not foreseen" in caplog.text
    await ready(service, "two")


async def test_an_update_is_built_while_sessions_start_from_the_last_one(service: Service) -> None:
    template = await ready(service)
    (old,) = await of(service, template)
    service.host.step = 0.05
    changes = TemplateChanges(source="registry.test/team/tools:2")
    template = await service.sessions.templates.update("tools", changes, ANN)
    assert (template.status, template.source) == ("PENDING", "registry.test/team/tools:2")
    session = await service.sessions.create(NewSession(template="tools"), ANN)
    assert session.image == old.image
    template = await stands(service, template, "READY")
    _, new = await of(service, template)
    assert template.current_build == new.id
    assert new.source == "registry.test/team/tools:2"
    session = await service.sessions.ready(session.id, 10)
    assert session.status is Status.READY
    # The old image goes when nothing starts from it any more, at the latest with the next build.
    await service.sessions.templates.update("tools", TemplateChanges(), ANN)
    await stands(service, template, "BUILDING")
    template = await stands(service, template, "READY")
    newest = [image_of(template.current_build or "")]
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda f: f == newest)
    assert (await service.get(session)).status is Status.READY


async def test_an_update_that_fails_leaves_the_last_one(service: Service) -> None:
    template = await ready(service)
    service.host.refuse["build_image"] = ImageError("There is no such tag.", "", "")
    await service.sessions.templates.update("tools", TemplateChanges(source="r.test/none"), ANN)
    builds = await eventually(lambda: of(service, template), lambda found: len(found) == 2)
    builds = await eventually(lambda: of(service, template), lambda f: f[1].status == "FAILED")
    after = await service.sessions.templates.get("tools")
    assert (after.status, after.current_build) == ("READY", builds[0].id)
    session = await service.ready(template="tools")
    assert session.image == builds[0].image


async def test_sessions_that_run_outlive_their_template(service: Service) -> None:
    template = await ready(service)
    session = await service.ready(template="tools")
    await service.sessions.templates.delete("tools", ANN)
    assert service.host.images() == []
    with pytest.raises(NotFoundError):
        await service.sessions.templates.get(template.id)
    with pytest.raises(NotFoundError):
        await service.sessions.create(NewSession(template="tools"), ANN)
    await service.sessions.pause(session.id, ANN)
    assert (await service.sessions.resume(session.id, ANN)).status is Status.READY
    # The name is free.
    await ready(service)


async def test_a_session_that_is_about_to_start_keeps_the_image(service: Service) -> None:
    await ready(service)
    service.host.step = 0.1
    session = await service.sessions.create(NewSession(template="tools"), ANN)
    await service.sessions.templates.delete("tools", ANN)
    assert service.host.images() == [session.image]
    assert (await service.sessions.ready(session.id, 10)).status is Status.READY
    await service.again()
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda found: found == [])


async def test_what_is_being_built_is_left_off_when_its_template_is_deleted(
    service: Service,
) -> None:
    service.host.step = 3600
    template, waiting = await made(service), await made(service, "two")
    await stands(service, template, "BUILDING")
    await eventually(lambda: asyncio.sleep(0, service.host.calls), lambda c: "build_image" in c)
    service.host.step = 0.0
    await service.sessions.templates.delete(waiting.id, ANN)
    await service.sessions.templates.delete(template.id, ANN)
    third = await ready(service, "three")
    assert service.host.sources == [SOURCE, SOURCE]  # never that of the second one
    assert service.host.images() == [image_of(third.current_build or "")]
    assert "template.build_failed" not in await service.types()
    async with service.database.read() as conn:
        assert await builds_table.unfinished(conn) == []


async def test_what_has_ended_with_its_template_neither_begins_nor_succeeds(
    service: Service,
) -> None:
    service.host.step = 0.2
    template = await made(service)
    await stands(service, template, "BUILDING")
    (build,) = await of(service, template)
    await service.sessions.templates.delete("tools", ANN)
    # What the deletion finds a moment too late to cancel it.
    builder = service.sessions.templates._builder
    assert not await builder._begin(build)
    await builder._end(build, Built("sha256:0", 1, 1, 1, ()), "")
    async with service.database.read() as conn:
        left = await builds_table.get(conn, build.id)
    assert left is not None
    assert (left.status, left.error, left.manifest) == ("FAILED", "Its template was deleted.", None)


async def test_a_build_that_a_stop_cuts_off_is_begun_anew(service: Service) -> None:
    service.host.step = 0.2
    template, second = await made(service), await made(service, "two")
    await stands(service, template, "BUILDING")
    service.host.step = 0.0
    await service.again()
    await stands(service, template, "READY")
    await stands(service, second, "READY")
    (build,) = await of(service, template)
    assert "begun anew: the server had ended meanwhile" in await log(service, build)


async def test_what_was_cut_off_after_the_host_had_it_is_built_once_more_and_kept_once(
    service: Service,
) -> None:
    service.host.step = 0.2
    template = await made(service)
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda found: bool(found))
    await service.again(WorldHost(service.root / "world"))
    template = await stands(service, template, "READY")
    assert service.host.images() == [image_of(template.current_build or "")]


async def test_an_image_that_was_removed_on_the_host_is_built_again_of_the_same_manifest(
    service: Service,
) -> None:
    template = await ready(service)
    (build,) = await of(service, template)
    assert build.image is not None
    await service.host.forget_image(build.image)
    session = await service.ready(template="tools")
    assert session.status is Status.READY
    assert service.host.sources[1] == f"registry.test/team/tools@{build.manifest}"
    told = await service.sessions.events.after(None, session.id)
    assert "fetching" in [each.data.get("step") for each in told]


async def test_a_host_that_does_not_forget_an_image_is_asked_again(service: Service) -> None:
    await ready(service)
    service.host.refuse_always["forget_image"] = OSError("busy")
    await service.sessions.templates.delete("tools", ANN)
    assert len(service.host.images()) == 1
    service.host.refuse_always.clear()
    second = await ready(service, "two")
    kept = [image_of(second.current_build or "")]
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda f: f == kept)


async def test_a_full_disk_holds_up_what_became_of_a_build_and_loses_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.sessions.operations.AGAIN_SECONDS", 0.01)
    service.host.step = 0.05
    template = await made(service)
    await stands(service, template, "BUILDING")
    with full_disk(service.database, lambda said: "template_builds" in said):
        await asyncio.sleep(0.5)
        assert (await service.sessions.templates.get("tools")).status == "BUILDING"
    await stands(service, template, "READY")
    assert service.host.sources == [SOURCE]


async def test_what_is_asked_for_twice_with_a_key_is_done_once(service: Service) -> None:
    templates = service.sessions.templates
    new = NewTemplate("tools", "sandbox", SOURCE)
    first = await templates.create(new, ANN, key=Key("k", "d"))
    assert (await templates.create(new, ANN, key=Key("k", "d"))).id == first.id
    with pytest.raises(ConflictError, match="another request"):
        await templates.create(new, ANN, key=Key("k", "other"))
    for _ in range(2):
        await templates.update("tools", TemplateChanges(), ANN, key=Key("u", "d"))
    assert len(await of(service, first)) == 2
    await stands(service, first, "READY")


async def test_a_name_is_one_template_s_whatever_its_case(service: Service) -> None:
    await made(service)
    with pytest.raises(ConflictError) as taken:
        await made(service, "TOOLS")
    assert taken.value.code == "already_exists"


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"name": ""}, "cannot be called"),
        ({"name": "-x"}, "cannot be called"),
        ({"name": "x" * 65}, "cannot be called"),
        ({"name": "x-"}, "cannot be called"),
        ({"name": "Coding"}, "cannot be called"),
        ({"name": "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"}, "cannot be called"),
        ({"base": "coding-codex"}, "runs no agents"),
        ({"base": "debian"}, "is not known"),
        ({"source": "/etc/passwd"}, "no reference"),
        ({"source": "alpine"}, "docker.io/library"),
    ],
)
async def test_what_cannot_be_a_template_is_refused(
    service: Service, rest: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidError, match=why):
        await made(service, **rest)
    assert (await service.sessions.templates.page(10)).items == []


async def test_a_session_has_an_image_or_a_template(service: Service) -> None:
    with pytest.raises(InvalidError, match="not from both"):
        await service.sessions.create(NewSession(image="default", template="tools"), ANN)
    with pytest.raises(NotFoundError, match="no template 'tools'"):
        await service.sessions.create(NewSession(template="tools"), ANN)


async def test_a_build_is_found_at_its_own_template_alone(service: Service) -> None:
    one, two = await ready(service, "one"), await ready(service, "two")
    (build,) = await of(service, one)
    found, same = await service.sessions.templates.get_build("one", build.id)
    assert (found.id, same) == (one.id, build)
    for call in (service.sessions.templates.get_build, service.sessions.templates.log):
        with pytest.raises(NotFoundError, match="has no build"):
            await call(two.id, build.id)
        with pytest.raises(NotFoundError, match="no template"):
            await call("three", build.id)


async def test_what_is_no_text_in_the_words_of_a_registry_is_shown(service: Service) -> None:
    service.host.refuse["build_image"] = ImageError("no \0 and no \udcff", "", "")
    template = await stands(service, await made(service), "FAILED")
    (build,) = await of(service, template)
    assert build.error is not None
    assert build.error.startswith("no \\0 and no \\udcff")
    assert "no \\0 and no \\udcff" in await log(service, build)


async def test_long_words_of_a_registry_are_cut(service: Service) -> None:
    service.host.refuse["build_image"] = ImageError("x" * 5000, "\n".join(["y"] * 3000), "")
    template = await stands(service, await made(service), "FAILED")
    (build,) = await of(service, template)
    said = await log(service, build)
    assert len(said) == MOST_LINES
    assert max(map(len, said)) <= 2000
    assert said[-1] == "failed"
