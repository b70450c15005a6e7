"""A Hub on 127.0.0.1, as far as kvplan speaks to one: files by revision with ranges, the list of a repository's files, its refusals.

It writes down what it was asked and can be told to fail. It answers for as long as its ``with`` block lasts; nothing in it waits longer
than :data:`PATIENCE` seconds.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from tests.hub.repositories import COMMIT, File

__all__ = ["PATIENCE", "Asked", "Fault", "Hub", "Repository"]

PATIENCE: Final = 5
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Repository:
    """One repository. ``refs`` maps branches and tags to its one commit; ``token`` is what it wants to see, if it is not public."""

    files: Mapping[str, bytes | File]
    commit: str = COMMIT
    refs: tuple[str, ...] = ("main",)
    token: str | None = None
    gated: bool = False
    card: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request and its answer."""

    method: str
    path: str
    range: str | None
    token: str | None
    status: int
    sent: int


@dataclass
class Fault:
    """How an answer goes wrong, for the next ``times`` requests whose path contains ``where``.

    ``cut`` closes after that many bytes of the body, ``drip`` sends one byte each so many seconds, ``header_drip`` one line of headers
    without an end, ``endless`` sends its body again and again, ``silent`` says nothing at all.
    """

    where: str = ""
    times: int = 1_000_000
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut: int | None = None
    drip: float | None = None
    header_drip: float | None = None
    endless: bool = False
    silent: bool = False
    ignore_range: bool = False


class Hub:
    """The server. ``names`` maps old ids to new ones; ``network`` is another server that large files are sent to, as by the real Hub;
    ``has_store`` lets it send small ones to a store of its own, as that does too.
    """

    def __init__(self, **repositories: Repository) -> None:
        self.repositories: dict[str, Repository] = {name.replace("__", "/"): repo for name, repo in repositories.items()}
        self.names: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.network: Hub | None = None
        self.has_listing = True
        self.has_store = False
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, model_id: str, files: Mapping[str, bytes | File], **more: Any) -> Repository:
        """Put a repository on it."""
        self.repositories[model_id] = Repository(files, **more)
        return self.repositories[model_id]

    def fail(self, where: str = "", **how: Any) -> None:
        """Let answers go wrong."""
        self.faults.append(Fault(where, **how))

    def fault(self, path: str) -> Fault | None:
        """What goes wrong with this request."""
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.where in path:
                    fault.times -= 1
                    return fault
        return None

    def write_down(self, asked: Asked) -> None:
        """One more request."""
        with self._lock:
            self.asked.append(asked)

    def paths(self, kind: str = "") -> list[str]:
        """What was asked, in order, without the repository and the revision: ``config.json``."""
        with self._lock:
            return [asked.path.rpartition("/")[2] for asked in self.asked if kind in asked.path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # of five, a sixth caller would wait a second


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""

    def handle(self) -> None:
        """Clients that hang up early are part of the tests."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        """Answer, and write it down."""
        self._answer(head=False)

    def do_HEAD(self) -> None:
        """The same without a body."""
        self._answer(head=True)

    def _answer(self, *, head: bool) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path)
        fault = hub.fault(path)
        if fault is not None and fault.silent:
            self._note(0, 0)
            hub.stopping.wait(PATIENCE)
            self.close_connection = True
            return
        status, headers, body = self._find(path, ignore_range=fault is not None and fault.ignore_range)
        if fault is not None:
            headers |= fault.headers
            body = body if fault.body is None else fault.body
            status = fault.status or status
        self._note(status, 0 if head else len(body))
        if fault is not None and fault.header_drip is not None:
            self._drip_headers(fault.header_drip)
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if not head:
            self._send(body, fault)

    def _drip_headers(self, seconds: float) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(int(PATIENCE / seconds)):
            self.wfile.write(b"X-More: %d\r\n" % number)
            if self.server_hub.stopping.wait(seconds):
                break
        self.close_connection = True

    def _send(self, body: bytes, fault: Fault | None) -> None:
        if fault is not None and fault.cut is not None:
            self.wfile.write(body[: fault.cut])
            self.close_connection = True
        elif fault is not None and fault.drip is not None:
            for position in range(len(body)):
                self.wfile.write(body[position : position + 1])
                if self.server_hub.stopping.wait(fault.drip):
                    break
            self.close_connection = True
        elif fault is not None and fault.endless:
            while not self.server_hub.stopping.is_set():
                self.wfile.write(body)
            self.close_connection = True
        else:
            self.wfile.write(body)

    def _note(self, status: int, sent: int) -> None:
        self.server_hub.write_down(
            Asked(self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization"), status, sent)
        )

    def _find(self, path: str, *, ignore_range: bool) -> tuple[int, dict[str, str], bytes]:
        hub = self.server_hub
        listing = re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path)
        found = listing or re.fullmatch(r"/(.+?)/resolve/(refs/[^/]+/[^/]+|[^/]+)/(.+)", path)
        stored = re.fullmatch(r"/api/resolve-cache/models/(.+/.+)/[0-9a-f]{40}/(.+)", path)
        if stored is not None:
            file = hub.repositories[stored[1]].files[stored[2]]
            return 200, {"ETag": '"x"'}, file if isinstance(file, bytes) else b""
        if found is None:
            return 404, {}, b"Not Found"
        model_id, revision = found[1], found[2]
        if model_id in hub.names:
            return 307, {"Location": path.replace(model_id, hub.names[model_id], 1)}, b"Temporary Redirect"
        repo = hub.repositories.get(model_id)
        token = self.headers.get("Authorization")
        if repo is None or (repo.token is not None and token != f"Bearer {repo.token}"):
            code = "GatedRepo" if repo is not None and repo.gated else "RepoNotFound"
            status = (403 if token else 401) if code == "GatedRepo" else (404 if token else 401)
            return status, {"X-Error-Code": code, "X-Error-Message": f"no access for {token}"}, b"Access denied"
        if revision != repo.commit and revision not in repo.refs:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if listing is not None:
            if not hub.has_listing:
                return 404, {}, b""
            siblings = [{"rfilename": name} for name in repo.files]
            document = {"id": model_id, "sha": repo.commit, "siblings": siblings, "cardData": dict(repo.card)}
            return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()
        if hub.has_store and isinstance(repo.files.get(found[3]), bytes):
            store = f"/api/resolve-cache/models/{model_id}/{repo.commit}/{found[3]}"
            return 307, {"X-Repo-Commit": repo.commit, "Location": store}, b"Temporary Redirect"
        return self._file(repo, found[3], path, ignore_range=ignore_range)

    def _file(self, repo: Repository, name: str, path: str, *, ignore_range: bool) -> tuple[int, dict[str, str], bytes]:
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{len(name):040x}"', "Accept-Ranges": "bytes"}
        file = repo.files.get(name)
        if file is None:
            return 404, headers | {"X-Error-Code": "EntryNotFound"}, b"Entry not found"
        if isinstance(file, File) and self.server_hub.network is not None:
            return 302, headers | {"Location": f"{self.server_hub.network.address}{path}"}, b""
        if isinstance(file, bytes):
            file = File(file, len(file))
        asked = None if ignore_range else _RANGE.fullmatch(self.headers.get("Range") or "")
        if asked is None:
            return 200, headers, file.part(0, file.size)
        first, end = int(asked[1]), min(int(asked[2]) + 1, file.size)
        if first >= file.size:
            return 416, headers | {"Content-Range": f"bytes */{file.size}"}, b""
        return 206, headers | {"Content-Range": f"bytes {first}-{end - 1}/{file.size}"}, file.part(first, end)
