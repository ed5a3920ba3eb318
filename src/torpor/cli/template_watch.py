"""Waiting for builds of templates: the server tells in events what happens, so nobody polls."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from torpor.cli.progress import Shown
from torpor.cli.waiting import Told
from torpor.cli.watching import Watched, followed, last_event

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torpor.client import Build, Client, Event, Template

T = TypeVar("T")

DELETED = "template.deleted"


def newest_build(client: "Client", template: str) -> "Build | None":
    """Return the newest build of a template."""
    found = client.list_template_builds(template, limit=1).items
    return found[0] if found else None


def until_built(client: "Client", template: "Template") -> "Build":
    """Return the newest build of a template once it has ended; what it does until then is shown."""
    from torpor.client.template_records import UNFINISHED

    last = last_event(client)
    build = newest_build(client, template.id)
    assert build is not None  # to make a template is to begin one
    with Shown() as shown:
        shown.report(Told(f"building {template.name}"))
        if build.status in UNFINISHED:
            with closing(events_of(client, template.id, last)) as events:
                for event in events:
                    if event.data.get("build_id") != build.id and event.type != DELETED:
                        continue
                    step = event.data.get("step")
                    if isinstance(step, str):
                        shown.report(Told(step))
                    elif event.type not in ("template.build_started", "template.updated"):
                        break
            build = client.get_template_build(template.id, build.id)
        if build.status != "SUCCEEDED":
            shown.abandon()
    return build


def events_of(client: "Client", template: str, after: str | None) -> "Generator[Event, None, None]":
    """Yield what happens to a template after an event, up to its end. A server that is away is
    waited for."""
    with closing(followed(client, None, after)) as events:
        for event in events:
            if event.data.get("template_id") == template:
                yield event
                if event.type == DELETED:
                    return


def of_template(
    look: "Callable[[Client], T]",
    draw: "Callable[[T], RenderableType]",
    whose: Callable[[T], str],
) -> Watched[T]:
    """Return what ``look`` asks for of a template as something to watch; ``whose`` takes the id of
    the template, which events have, from what was found."""
    its_id = ""

    def look_at(client: "Client") -> T:
        nonlocal its_id
        found = look(client)
        its_id = whose(found)
        return found

    return Watched(
        look_at,
        draw,
        lambda event: event.data.get("template_id") == its_id,
        lambda event: event.type == DELETED,
    )


class Log:
    """Prints the log of a build, each line once."""

    def __init__(self, client: "Client", template: str, build: str) -> None:
        self._client, self._template, self._build = client, template, build
        self._seen = 0

    def print_new(self, write: Callable[[str], None]) -> None:
        """Write the lines that came since the last time."""
        url = self._client.get_template_build_log_url(self._template, self._build)
        lines = self._client.read_template_build_log(url).splitlines()
        dropped = 0
        if lines and lines[0].startswith("("):  # all others begin with a time
            said = lines.pop(0)
            dropped = int(said[1:].partition(" ")[0])
            if dropped > self._seen:
                write(said)
        for line in lines[max(0, self._seen - dropped) :]:
            write(line)
        self._seen = dropped + len(lines)

    def follow(self, write: Callable[[str], None]) -> None:
        """Write what there is and what comes, until the build has ended."""
        from torpor.client.template_records import UNFINISHED

        last = last_event(self._client)
        build = self._client.get_template_build(self._template, self._build)
        self.print_new(write)
        if build.status not in UNFINISHED:
            return
        with closing(events_of(self._client, build.template, last)) as events:
            for event in events:
                if event.type == DELETED:
                    return
                if event.data.get("build_id") == build.id:
                    self.print_new(write)
                    if event.type in ("template.build_succeeded", "template.build_failed"):
                        return
