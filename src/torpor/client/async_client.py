"""The client for coroutines: :class:`AsyncClient`."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from torpor.client import transport
from torpor.client.call import Answer, Call
from torpor.client.calls import (
    configs,
    egress,
    execs,
    files,
    previews,
    secrets,
    service,
    sessions,
    snapshots,
    templates,
    transfers,
    workspaces,
)
from torpor.client.egress_records import Decision
from torpor.client.errors import ClientError, UnreachableError, api_error
from torpor.client.following import Followed, Following, FollowingDecisions, change_of
from torpor.client.machine_records import FileChange
from torpor.client.methods import async_method, async_pieces_method
from torpor.client.records import Event
from torpor.client.sse import Frames
from torpor.client.target import target
from torpor.client.tries import Outage, Patience, Tries, passes

if TYPE_CHECKING:  # few calls need them, and each start would wait for websockets
    from torpor.client.async_streams import AsyncExecStream, AsyncPortStream

T = TypeVar("T")


class AsyncClient:
    """A client of one server, for the tasks of one event loop. Close it, or use it as a context.

    ``url`` and ``token`` are, if they are not given, those of ``TORPOR_URL`` and ``TORPOR_TOKEN``,
    else the address at which a server on this computer listens, and no token. ``authorities``, or
    ``TORPOR_CA``, is a file of certificates by which the server is trusted, besides the usual ones.
    Nothing is sent before the first call. All methods raise :exc:`ClientError`; which a call can
    raise besides, and what it returns, its own text says.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience: Patience | None = None,
        authorities: str | None = None,
    ) -> None:
        self.target = target(url, token, authorities=authorities)
        self._patience = patience or Patience()
        self._http = httpx.AsyncClient(**transport.settings(self.target))

    create_session = async_method(sessions.create_session)
    create_session_from_manifest = async_method(sessions.create_session_from_manifest)
    create_session_from_config = async_method(sessions.create_session_from_config)
    list_sessions = async_method(sessions.list_sessions)
    get_session = async_method(sessions.get_session)
    update_session = async_method(sessions.update_session)
    destroy_session = async_method(sessions.destroy_session)
    pause_session = async_method(sessions.pause_session)
    resume_session = async_method(sessions.resume_session)

    create_config = async_method(configs.create_config)
    list_configs = async_method(configs.list_configs)
    get_config = async_method(configs.get_config)
    clone_config = async_method(configs.clone_config)
    delete_config = async_method(configs.delete_config)
    list_config_sessions = async_method(configs.list_config_sessions)

    create_checkpoint = async_method(snapshots.create_checkpoint)
    list_checkpoints = async_method(snapshots.list_checkpoints)
    get_checkpoint = async_method(snapshots.get_checkpoint)
    delete_checkpoint = async_method(snapshots.delete_checkpoint)
    roll_back = async_method(snapshots.roll_back)
    fork_session = async_method(snapshots.fork_session)
    get_tree = async_method(snapshots.get_tree)

    run = async_method(execs.run)
    start_exec = async_method(execs.start_exec)
    list_execs = async_method(execs.list_execs)
    get_exec = async_method(execs.get_exec)
    signal_exec = async_method(execs.signal_exec)
    resize_exec = async_method(execs.resize_exec)
    write_exec = async_method(execs.write_exec)
    list_processes = async_method(execs.list_processes)
    signal_process = async_method(execs.signal_process)
    get_statistics = async_method(execs.get_statistics)

    read_file = async_method(files.read_file)
    read_file_pieces = async_pieces_method(files.read_file_pieces)
    write_file = async_method(files.write_file)
    remove_file = async_method(files.remove_file)
    get_file_status = async_method(files.get_file_status)
    list_files = async_method(files.list_files)
    move_file = async_method(files.move_file)
    make_link = async_method(files.make_link)
    change_file = async_method(files.change_file)
    make_directory = async_method(files.make_directory)
    read_archive_pieces = async_pieces_method(files.read_archive_pieces)
    write_archive = async_method(files.write_archive)

    create_template = async_method(templates.create_template)
    list_templates = async_method(templates.list_templates)
    get_template = async_method(templates.get_template)
    update_template = async_method(templates.update_template)
    delete_template = async_method(templates.delete_template)
    list_template_builds = async_method(templates.list_template_builds)
    get_template_build = async_method(templates.get_template_build)
    get_template_build_log_url = async_method(templates.get_template_build_log_url)
    read_template_build_log = async_method(templates.read_template_build_log)
    upload_file = async_method(transfers.upload_file)
    create_upload = async_method(transfers.create_upload)
    create_download = async_method(transfers.create_download)
    get_transfer = async_method(transfers.get_transfer)
    get_part_urls = async_method(transfers.get_part_urls)
    put_part = async_method(transfers.put_part)
    commit_upload = async_method(transfers.commit_upload)
    cancel_transfer = async_method(transfers.cancel_transfer)
    read_download_pieces = async_pieces_method(transfers.read_download_pieces)
    create_workspace = async_method(workspaces.create_workspace)
    list_workspaces = async_method(workspaces.list_workspaces)
    get_workspace = async_method(workspaces.get_workspace)
    delete_workspace = async_method(workspaces.delete_workspace)
    set_secret = async_method(secrets.set_secret)
    list_secrets = async_method(secrets.list_secrets)
    get_secret = async_method(secrets.get_secret)
    remove_secret = async_method(secrets.remove_secret)
    list_session_secrets = async_method(secrets.list_session_secrets)
    grant_secret = async_method(secrets.grant_secret)
    revoke_secret = async_method(secrets.revoke_secret)
    get_ingress = async_method(previews.get_ingress)
    create_preview = async_method(previews.create_preview)
    list_previews = async_method(previews.list_previews)
    revoke_preview = async_method(previews.revoke_preview)

    get_egress = async_method(egress.get_egress)
    set_egress = async_method(egress.set_egress)
    change_egress = async_method(egress.change_egress)
    list_decisions = async_method(egress.list_decisions)
    list_flows = async_method(egress.list_flows)

    list_sizes = async_method(service.list_sizes)
    get_host = async_method(service.get_host)
    who_am_i = async_method(service.who_am_i)
    list_samples = async_method(service.list_samples)
    get_history = async_method(service.get_history)
    list_tokens = async_method(service.list_tokens)
    create_token = async_method(service.create_token)
    revoke_token = async_method(service.revoke_token)
    back_up = async_pieces_method(service.back_up)
    health = async_method(service.health)
    readiness = async_method(service.readiness)
    metrics = async_method(service.metrics)

    def attach(
        self, session: str, exec_id: str, *, seq: int = 0, patience: float | None = 60.0
    ) -> "AsyncExecStream":
        """Open the stream of a command, from byte ``seq`` of its output on.

        If the connection is lost, or the server is started anew, it is looked for again for
        ``patience`` seconds (for ever if None), and goes on where it was. Attaching does not wake a
        session; input does.
        """
        from torpor.client.async_streams import AsyncExecStream

        return AsyncExecStream(self.target, session, exec_id, seq, patience)

    def forward(self, session: str, port: int) -> "AsyncPortStream":
        """Open a connection to a port in a session's machine; it wakes the session."""
        from torpor.client.async_streams import AsyncPortStream

        return AsyncPortStream(self.target, session, port)

    def events(
        self,
        session: str | None = None,
        *,
        after: str | None = None,
        follow: bool = True,
        patience: float | None = 60.0,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a session, or of all, that came after the one with the id ``after``;
        with ``follow`` also those that are to come, of a session up to its end. If ``after`` is
        not given, those of one that is followed begin with the newest 100.

        If the connection is lost it is looked for again for ``patience`` seconds (for ever if
        None); no event is left out, and none comes twice.
        """
        return self._followed(Following(session, after, follow=follow), follow, patience)

    def decisions(
        self,
        session: str,
        *,
        after: str | None = None,
        allowed: bool | None = None,
        host: str | None = None,
        patience: float | None = 60.0,
    ) -> AsyncGenerator[Decision, None]:
        """Yield the decisions about connections of a session that came after the one with the id
        ``after``, and those that are to come, up to its end: only what was ``allowed``, or was not,
        and only of one ``host``. If ``after`` is not given, they begin with the newest 100. For
        ``patience`` see :meth:`events`."""
        return self._followed(FollowingDecisions(session, after, allowed, host), True, patience)

    async def _followed(
        self, following: Followed[T], follow: bool, patience: float | None
    ) -> AsyncGenerator[T, None]:
        outage = Outage(patience)
        while True:
            try:
                call = following.call()
                async with aclosing(self.pieces(call, silence=transport.IDLE_SECONDS)) as pieces:
                    async for piece in pieces:
                        outage.found()
                        for each in following.take(piece):
                            yield each
                if not follow or following.over:
                    return
                raise UnreachableError(self.target.url, "it was closed", sent=True)
            except ClientError as error:
                lost = error
                if not passes(error):
                    raise
            wait = outage.wait(time.monotonic())
            if wait is None:
                raise lost
            await asyncio.sleep(wait)

    async def watch_files(
        self, session: str, file: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncGenerator[FileChange, None]:
        """Yield what happens to a file or a directory, from now on; ``recursive``: to all that is
        below it. Raises :exc:`UnreachableError` when the connection is lost, for what happened
        then is not known."""
        call = files.watch(session, file, recursive=recursive, user=user)
        frames = Frames()
        async with aclosing(self.pieces(call, silence=transport.IDLE_SECONDS)) as pieces:
            async for piece in pieces:
                for frame in frames.feed(piece):
                    yield change_of(frame)

    async def send(self, call: Call[T]) -> T:
        """Send a call, again where that is safe, and return what its answer says."""
        tries = Tries(call, self._patience)
        while True:
            try:
                answer = await self._answer(call)
            except UnreachableError as error:
                wait = tries.after_loss(error)
                if wait is None:
                    raise
            else:
                wait = tries.after_answer(answer)
                if wait is None:
                    done = tries.is_done(answer)
                    return call.result(Answer(204, {}, b"") if done else answer)
            await asyncio.sleep(wait)

    async def _answer(self, call: Call[T]) -> Answer:
        with transport.told(self.target.url):
            request = transport.request_of(self._http, call, _content(call))
            return transport.answer_of(await self._http.send(request))

    async def pieces(
        self, call: Call[None], *, silence: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Send a call and yield the body of its answer; ``silence`` is how many seconds may pass
        without a piece."""
        with transport.told(self.target.url):
            request = transport.request_of(self._http, call, _content(call))
            if silence is not None:
                request.extensions["timeout"] = transport.timeout(silence).as_dict()
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    body = await response.aread()
                    raise api_error(response.status_code, body, dict(response.headers))
                async for piece in response.aiter_bytes():
                    yield piece
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _content(call: Call[Any]) -> bytes | AsyncIterable[bytes] | None:
    content = call.content
    if content is None or isinstance(content, (bytes, AsyncIterable)):
        return content
    return _pieces(content)


async def _pieces(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
