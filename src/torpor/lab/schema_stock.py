"""What a server has that requests are made up about: one thing of each kind, and again one as soon
as a request may have removed it; and not more of anything than is wanted."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from torpor.client import AsyncClient, ConflictError, NotFoundError, Session
from torpor.lab.remains import all_sessions

SOURCE = "localhost:9/lab/nothing:1"
"""Where templates are built from: a port on which nobody listens."""
MOST_SESSIONS = 8
MOST_OTHERS = 10
"""Of configurations, templates and workspaces each; what is older is removed."""
MANIFEST = "size: mars-1vcpu-1gb\n"
FILE = "found"


class Stock:
    """Fills the server of ``client`` with things, and names them in ``file``.

    ``guests``: its machines can run commands.
    """

    def __init__(self, client: AsyncClient, file: Path, *, guests: bool) -> None:
        self._client = client
        self._file = file
        self._guests = guests

    @contextlib.asynccontextmanager
    async def kept(self, seconds: float) -> AsyncIterator[None]:
        """Fill the server now and each so many seconds."""
        await self.fill()

        async def again() -> None:
            while True:
                await asyncio.sleep(seconds)
                await self.fill()

        filling = asyncio.create_task(again(), name="filling a server")
        try:
            yield
        finally:
            filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await filling

    async def fill(self) -> None:
        """Make things, name them, and remove what there is too much of.

        Raises :exc:`torpor.client.ClientError`.
        """
        who = await self._client.who_am_i()
        common = await self._of_all()
        things = []
        for make in (self._running, self._paused):
            with contextlib.suppress(NotFoundError, ConflictError):  # a request was faster
                things.append(common | await make())
        said = {"things": things, "spared": {"token_id": who.id}, "source": SOURCE}
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(json.dumps(said))
        new.rename(self._file)
        await self._clear({each["session_id"] for each in things})

    async def _of_all(self) -> dict[str, str]:
        client, name = self._client, f"stock-{secrets.token_hex(4)}"
        config = await client.create_config(name, MANIFEST)
        template = await client.create_template(name, SOURCE)
        build = (await client.list_template_builds(template.id)).items[0]
        log = await client.get_template_build_log_url(template.id, build.id)
        workspace = await client.create_workspace(1, name=name)
        token = (await client.create_token(name, "viewer", lifetime_seconds=3600)).token
        return {
            "config_id": config.id,
            "template_id": template.id,
            "build_id": build.id,
            "workspace_id": workspace.id,
            "token_id": token.id,
            "text log": _signed(log),
        }

    async def _running(self) -> dict[str, str]:
        session = await self._client.create_session(wait=True)
        found = await self._of_session(session)
        if self._guests:
            command = await self._client.start_exec(session.id, ["cat"], stdin=True)
            await self._client.write_file(session.id, f"/workspace/{FILE}", b"content")
            transfer = await self._client.create_download(session.id, FILE)
            while transfer.url is None and transfer.error is None:
                await asyncio.sleep(0.1)
                transfer = await self._client.get_transfer(session.id, transfer.id)
            found |= {"exec_id": command.id, "pid": str(command.pid)}
            if transfer.url is not None:
                found["text payload"] = _signed(transfer.url)
        return found

    async def _paused(self) -> dict[str, str]:
        session = await self._client.create_session(wait=True)
        found = await self._of_session(session)
        await self._client.pause_session(session.id)
        return found

    async def _of_session(self, session: Session) -> dict[str, str]:
        client = self._client
        checkpoint = await client.create_checkpoint(session.id)
        preview = await client.create_preview(session.id, 8000)
        transfer = await client.create_upload(session.id, "up", size=4)
        urls = await client.get_part_urls(session.id, transfer.id, [1])
        return {
            "session_id": session.id,
            "checkpoint_id": checkpoint.id,
            "preview_id": preview.id,
            "transfer_id": transfer.id,
            "port": "8000",
            "text part": _signed(urls[1]),
        }

    async def _clear(self, kept: set[str]) -> None:
        client = self._client
        sessions = [each async for each in all_sessions(client) if each.id not in kept]
        for session in sessions[MOST_SESSIONS - len(kept) :]:
            await client.destroy_session(session.id)
        configs = [each.id for each in (await client.list_configs(limit=200)).items]
        templates = [each.id for each in (await client.list_templates(limit=200)).items]
        workspaces = [each.id for each in (await client.list_workspaces(limit=200)).items]
        removals: list[Any] = [
            *((client.delete_config, each) for each in configs[MOST_OTHERS:]),
            *((client.delete_template, each) for each in templates[MOST_OTHERS:]),
            *((client.delete_workspace, each) for each in workspaces[MOST_OTHERS:]),
        ]
        for remove, each in removals:
            with contextlib.suppress(NotFoundError, ConflictError):  # a session may be of it
                await remove(each)


def _signed(url: str) -> str:
    """Return what is signed in the address of something."""
    return url.partition("?")[0].rstrip("/").split("/")[-2]
