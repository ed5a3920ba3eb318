"""The client for programs that wait: :class:`Client`."""

import time
from collections.abc import Generator, Iterable
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
from torpor.client.methods import method, pieces_method
from torpor.client.records import Event
from torpor.client.sse import Frames
from torpor.client.target import target
from torpor.client.tries import Outage, Patience, Tries, passes

if TYPE_CHECKING:  # few calls need them, and each start would wait for websockets
    from torpor.client.streams import ExecStream, PortStream

T = TypeVar("T")


class Client:
    """A client of one server. Threads may share it. Close it, or use it as a context.

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
        self._http = httpx.Client(**transport.settings(self.target))

    create_session = method(sessions.create_session)
    create_session_from_manifest = method(sessions.create_session_from_manifest)
    create_session_from_config = method(sessions.create_session_from_config)
    list_sessions = method(sessions.list_sessions)
    get_session = method(sessions.get_session)
    update_session = method(sessions.update_session)
    destroy_session = method(sessions.destroy_session)
    pause_session = method(sessions.pause_session)
    resume_session = method(sessions.resume_session)

    create_config = method(configs.create_config)
    list_configs = method(configs.list_configs)
    get_config = method(configs.get_config)
    clone_config = method(configs.clone_config)
    delete_config = method(configs.delete_config)
    list_config_sessions = method(configs.list_config_sessions)

    create_checkpoint = method(snapshots.create_checkpoint)
    list_checkpoints = method(snapshots.list_checkpoints)
    get_checkpoint = method(snapshots.get_checkpoint)
    delete_checkpoint = method(snapshots.delete_checkpoint)
    roll_back = method(snapshots.roll_back)
    fork_session = method(snapshots.fork_session)
    get_tree = method(snapshots.get_tree)

    run = method(execs.run)
    start_exec = method(execs.start_exec)
    list_execs = method(execs.list_execs)
    get_exec = method(execs.get_exec)
    signal_exec = method(execs.signal_exec)
    resize_exec = method(execs.resize_exec)
    write_exec = method(execs.write_exec)
    list_processes = method(execs.list_processes)
    signal_process = method(execs.signal_process)
    get_statistics = method(execs.get_statistics)

    read_file = method(files.read_file)
    read_file_pieces = pieces_method(files.read_file_pieces)
    write_file = method(files.write_file)
    remove_file = method(files.remove_file)
    get_file_status = method(files.get_file_status)
    list_files = method(files.list_files)
    move_file = method(files.move_file)
    make_link = method(files.make_link)
    change_file = method(files.change_file)
    make_directory = method(files.make_directory)
    read_archive_pieces = pieces_method(files.read_archive_pieces)
    write_archive = method(files.write_archive)

    create_template = method(templates.create_template)
    list_templates = method(templates.list_templates)
    get_template = method(templates.get_template)
    update_template = method(templates.update_template)
    delete_template = method(templates.delete_template)
    list_template_builds = method(templates.list_template_builds)
    get_template_build = method(templates.get_template_build)
    get_template_build_log_url = method(templates.get_template_build_log_url)
    read_template_build_log = method(templates.read_template_build_log)
    upload_file = method(transfers.upload_file)
    create_upload = method(transfers.create_upload)
    create_download = method(transfers.create_download)
    get_transfer = method(transfers.get_transfer)
    get_part_urls = method(transfers.get_part_urls)
    put_part = method(transfers.put_part)
    commit_upload = method(transfers.commit_upload)
    cancel_transfer = method(transfers.cancel_transfer)
    read_download_pieces = pieces_method(transfers.read_download_pieces)
    create_workspace = method(workspaces.create_workspace)
    list_workspaces = method(workspaces.list_workspaces)
    get_workspace = method(workspaces.get_workspace)
    delete_workspace = method(workspaces.delete_workspace)
    set_secret = method(secrets.set_secret)
    list_secrets = method(secrets.list_secrets)
    get_secret = method(secrets.get_secret)
    remove_secret = method(secrets.remove_secret)
    list_session_secrets = method(secrets.list_session_secrets)
    grant_secret = method(secrets.grant_secret)
    revoke_secret = method(secrets.revoke_secret)
    get_ingress = method(previews.get_ingress)
    create_preview = method(previews.create_preview)
    list_previews = method(previews.list_previews)
    revoke_preview = method(previews.revoke_preview)

    get_egress = method(egress.get_egress)
    set_egress = method(egress.set_egress)
    change_egress = method(egress.change_egress)
    list_decisions = method(egress.list_decisions)
    list_flows = method(egress.list_flows)

    list_sizes = method(service.list_sizes)
    get_host = method(service.get_host)
    who_am_i = method(service.who_am_i)
    list_samples = method(service.list_samples)
    get_history = method(service.get_history)
    list_tokens = method(service.list_tokens)
    create_token = method(service.create_token)
    revoke_token = method(service.revoke_token)
    back_up = pieces_method(service.back_up)
    health = method(service.health)
    readiness = method(service.readiness)
    metrics = method(service.metrics)

    def attach(
        self, session: str, exec_id: str, *, seq: int = 0, patience: float | None = 60.0
    ) -> "ExecStream":
        """Open the stream of a command, from byte ``seq`` of its output on.

        If the connection is lost, or the server is started anew, it is looked for again for
        ``patience`` seconds (for ever if None), and goes on where it was. Attaching does not wake a
        session; input does.
        """
        from torpor.client.streams import ExecStream

        return ExecStream(self.target, session, exec_id, seq, patience)

    def forward(self, session: str, port: int) -> "PortStream":
        """Open a connection to a port in a session's machine; it wakes the session."""
        from torpor.client.streams import PortStream

        return PortStream(self.target, session, port)

    def events(
        self,
        session: str | None = None,
        *,
        after: str | None = None,
        follow: bool = True,
        patience: float | None = 60.0,
    ) -> Generator[Event, None, None]:
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
    ) -> Generator[Decision, None, None]:
        """Yield the decisions about connections of a session that came after the one with the id
        ``after``, and those that are to come, up to its end: only what was ``allowed``, or was not,
        and only of one ``host``. If ``after`` is not given, they begin with the newest 100. For
        ``patience`` see :meth:`events`."""
        return self._followed(FollowingDecisions(session, after, allowed, host), True, patience)

    def _followed(
        self, following: Followed[T], follow: bool, patience: float | None
    ) -> Generator[T, None, None]:
        outage = Outage(patience)
        while True:
            try:
                for piece in self.pieces(following.call(), silence=transport.IDLE_SECONDS):
                    outage.found()
                    yield from following.take(piece)
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
            time.sleep(wait)

    def watch_files(
        self, session: str, file: str, *, recursive: bool = False, user: str | None = None
    ) -> Generator[FileChange, None, None]:
        """Yield what happens to a file or a directory, from now on; ``recursive``: to all that is
        below it. Raises :exc:`UnreachableError` when the connection is lost, for what happened
        then is not known."""
        call = files.watch(session, file, recursive=recursive, user=user)
        frames = Frames()
        for piece in self.pieces(call, silence=transport.IDLE_SECONDS):
            for frame in frames.feed(piece):
                yield change_of(frame)

    def send(self, call: Call[T]) -> T:
        """Send a call, again where that is safe, and return what its answer says."""
        tries = Tries(call, self._patience)
        while True:
            try:
                answer = self._answer(call)
            except UnreachableError as error:
                wait = tries.after_loss(error)
                if wait is None:
                    raise
            else:
                wait = tries.after_answer(answer)
                if wait is None:
                    done = tries.is_done(answer)
                    return call.result(Answer(204, {}, b"") if done else answer)
            time.sleep(wait)

    def _answer(self, call: Call[T]) -> Answer:
        with transport.told(self.target.url):
            request = transport.request_of(self._http, call, _content(call))
            return transport.answer_of(self._http.send(request))

    def pieces(
        self, call: Call[None], *, silence: float | None = None
    ) -> Generator[bytes, None, None]:
        """Send a call and yield the body of its answer; ``silence`` is how many seconds may pass
        without a piece."""
        with transport.told(self.target.url):
            request = transport.request_of(self._http, call, _content(call))
            if silence is not None:
                request.extensions["timeout"] = transport.timeout(silence).as_dict()
            response = self._http.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    body = response.read()
                    raise api_error(response.status_code, body, dict(response.headers))
                yield from response.iter_bytes()
            finally:
                response.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _content(call: Call[Any]) -> bytes | Iterable[bytes] | None:
    content = call.content
    if content is None or isinstance(content, (bytes, Iterable)):
        return content
    raise TypeError("pieces that have to be awaited are for AsyncClient")
