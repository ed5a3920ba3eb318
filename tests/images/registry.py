"""A small registry on the loopback: of what the distribution's API needs to give an image."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Registry(ThreadingHTTPServer):
    """Serves one layout as ``<any name>:<any tag>``. ``password`` None: to anybody. Content is
    given while ``free`` is set."""

    def __init__(self, root: Path, password: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root = root
        self.password = password
        index = json.loads((root / "index.json").read_text())
        self.manifest = index["manifests"][0]
        self.endless = False
        self.free = threading.Event()
        self.free.set()


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        wanted = self.server.password
        if wanted is not None and self.headers.get("Authorization") != f"Basic {wanted}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.end_headers()
            return
        parts = self.path.strip("/").split("/")
        if parts == ["v2"]:
            self.answer(b"{}", "application/json")
        elif parts[-2] == "manifests":
            digest = self.server.manifest["digest"]
            self.answer(self.blob(digest), self.server.manifest["mediaType"], digest)
        elif self.server.endless and self.command == "GET":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass
        else:
            self.server.free.wait()
            self.answer(self.blob(parts[-1]), "application/octet-stream", parts[-1])

    def blob(self, digest: str) -> bytes:
        return (self.server.root / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()

    def answer(self, content: bytes, media_type: str, digest: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        try:
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        except OSError:  # whoever asked was killed
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(layout: Path) -> Iterator[Registry]:
    """A registry that serves a layout, from a thread."""
    server = Registry(layout)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.free.set()
        server.shutdown()
        thread.join()
        server.server_close()
