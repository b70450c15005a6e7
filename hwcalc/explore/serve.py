"""A server for one reader on this machine: the page, and the payload of any model of the catalog or of the Hub. No path is read.

It listens on 127.0.0.1 only, and answers whoever knows the token in its address. Other pages in the reader's browser can send requests
here too: they do not know the token, and what names another host (DNS rebinding) or comes from another origin is refused even with it.
Nothing is logged, and each connection has one request.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException, LineTooLong
from http.server import ThreadingHTTPServer
from socketserver import StreamRequestHandler
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl

from msgspec import field

from hwcalc.documents import ErrorInfo, error_document
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.formulas.record import Record, repr_without
from hwcalc.model import ModelSpec
from hwcalc.parsers.parse import parse
from hwcalc.planner.asked import Access
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.sources.built_in import find_in_catalog, profile_errors
from hwcalc.sources.local import has_path_syntax
from hwcalc.sources.request import Absent, Wanted, listening
from hwcalc.text import shown

MOST_KEPT: Final = 32
"""Payloads that are kept, of about 50 kB each."""
_SECONDS_FOR_A_MODEL: Final = 30.0
"""How long a request waits for its turn."""


class BusyError(KvplanError):
    """Other models are being worked out, and they take long."""

    type = "busy"


def from_catalog(name: str) -> ModelSpec:
    """A model of the catalog. Raises :class:`~hwcalc.errors.ModelNotFoundError` for others."""
    raw = find_in_catalog(Wanted(id=name))
    if isinstance(raw, Absent):
        raise ModelNotFoundError(f"the catalog has no model {shown(name, 60)}.", hint="List its models: kvplan models")
    return parse(raw)


def reader(access: Access) -> Callable[[str], ModelSpec]:
    """Reads a model by any name that the command takes for the catalog and the Hub, but no file of this machine."""
    from hwcalc.library.load import load

    def read(name: str) -> ModelSpec:
        if os.path.lexists(name) or has_path_syntax(name):
            raise ModelNotFoundError(
                f"{shown(name, 60)} is a file here, or named like one.",
                hint="The page takes ids; for a file: kvplan explore FILE",
            )
        return load(name, access, headers=False)

    return read


class Live:
    """Models for a page, one at a time: planning is work for one processor.

    ``build`` gives the JSON text of the payload of one model, and ``read`` finds it by its name.
    """

    def __init__(self, build: Callable[[ModelSpec], str], read: Callable[[str], ModelSpec] = from_catalog) -> None:
        self._build = build
        self._read = read
        self._turn = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._doing: dict[str, str] = {}

    def progress(self, name: str) -> bytes:
        """What is being done for a model, as JSON; an empty text if nothing is."""
        return json.dumps({"doing": self._doing.get(name, "")}).encode()

    @cached_property
    def _models(self) -> bytes:
        rows = []
        for model_id in list_models():
            with profile_errors():
                entry = find_entry(model_id)
            if entry is not None:
                rows.append({"id": model_id, "parameters": (entry.data.get("parameters") or {}).get("total")})
        return json.dumps({"models": rows}).encode()

    def models(self) -> bytes:
        """The ids of the catalog, each with the published number of parameters, or null."""
        return self._models

    def payload(self, name: str) -> bytes:
        """The payload of one model. Raises :class:`~hwcalc.errors.KvplanError` if it is not found or nothing can be planned.

        A name that leads to no model waits for no turn.
        """

        def heard(what: str) -> None:
            self._doing[name] = what

        model = None
        try:
            with listening(heard):
                if self._names.get(name, name) not in self._kept:
                    heard(f"reading {shown(name, 60)}")
                    model = self._read(name)
                    heard("waiting for other models")
                if not self._turn.acquire(timeout=_SECONDS_FOR_A_MODEL):
                    raise BusyError("other models are still being worked out.", hint="Ask again in a moment.")
                try:
                    return self._built(name, model)
                finally:
                    self._turn.release()
        finally:
            self._doing.pop(name, None)

    def _built(self, name: str, model: ModelSpec | None) -> bytes:
        """The payload of a model that was read, which is worked out once. It is this one's turn."""
        model_id = self._names.get(name, name) if model is None else model.id
        if model_id not in self._kept:
            found = self._read(name) if model is None else model
            self._kept[model_id] = self._build(found).encode()
            self._names[name] = model_id
        for kept in (self._kept, self._names):
            while len(kept) > MOST_KEPT:
                kept.popitem(last=False)
        self._kept.move_to_end(model_id)
        return self._kept[model_id]


HOST: Final = "127.0.0.1"
MOST_CONNECTIONS: Final = 32
"""Requests at once. A browser has six connections to one host."""
_MOST_BYTES: Final = 16_384
"""Of a whole request. A browser's has about a thousand."""
_MOST_LINE: Final = 1_024
_MOST_HEADERS: Final = 100
_ASKED: Final = re.compile(r"([A-Z]+) (/[!-~\x80-\xff]*) HTTP/1\.[01]\r?\n")
_HEADER: Final = re.compile(r"([\w!#$%&'*+.^`|~-]+):[ \t]*([ -~\t\x80-\xff]*?)[ \t]*\r?\n", re.ASCII)
_SECONDS_TO_ASK: Final = 1.0
"""For a request to arrive, which a browser sends at once. As long can programs on this machine that never end theirs hold up the page."""
_SECONDS: Final = 10.0
"""For an answer to be taken."""

_JSON: Final = "application/json; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_ALWAYS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Site(Record):
    """What is served. ``policy`` is the page's Content-Security-Policy, which is sent as a header too.

    ``models`` and ``payload`` give JSON texts; ``payload`` raises :class:`~hwcalc.errors.KvplanError` for a model that it does not
    have or cannot plan.
    """

    page: bytes
    policy: str
    models: Callable[[], bytes]
    payload: Callable[[str], bytes]
    progress: Callable[[str], bytes]


class Request(Record):
    """One request, and where it arrived."""

    method: str
    target: str
    headers: Message
    port: int
    token: str

    def __repr__(self) -> str:
        return repr_without(self, "token")


class Reply(Record):
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    type: str = _JSON
    policy: str = "default-src 'none'"
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """The status line and the headers."""
        named = {
            "Content-Type": self.type,
            "Content-Length": str(len(self.body)),
            "Content-Security-Policy": f"{self.policy}; frame-ancestors 'none'",
            **_ALWAYS,
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"HTTP/1.0 {self.status.value} {self.status.phrase}\r\n{lines}\r\n".encode("latin-1")


def respond(request: Request, site: Site) -> Reply:
    """The answer to a request. Whoever lacks the token learns nothing but that."""
    path, _, query = request.target.partition("?")
    token, slash, rest = path.removeprefix("/").partition("/")
    if not _is_from_here(request) or not secrets.compare_digest(token.encode("utf-8", "replace"), request.token.encode()):
        return _refused(
            HTTPStatus.FORBIDDEN,
            "the address lacks its token, or another page asks.",
            hint="Open the address that kvplan printed.",
        )
    if request.method not in {"GET", "HEAD"}:
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered.", headers={"Allow": "GET, HEAD"})
    if not slash:
        # The page asks for models relative to its own address.
        return Reply(status=HTTPStatus.PERMANENT_REDIRECT, body=b"", headers={"Location": f"/{request.token}/"})
    try:
        if rest == "" and not query:
            return Reply(status=HTTPStatus.OK, body=site.page, type=_HTML, policy=site.policy)
        if rest == "models" and not query:
            return Reply(status=HTTPStatus.OK, body=site.models())
        if rest in ("model", "progress"):
            try:
                given = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=4, errors="strict")
            except ValueError:
                given = []
            if [name for name, _ in given] != ["id"]:
                raise UsageError(f"{shown(query, 60)} does not name one model.", hint="Ask for: model?id=ORG/NAME")
            answer = site.payload if rest == "model" else site.progress
            return Reply(status=HTTPStatus.OK, body=answer(given[0][1]))
        return _refused(HTTPStatus.NOT_FOUND, "there is no such page.", hint="There are: models, model?id=ORG/NAME")
    except BusyError as error:
        return _refused(HTTPStatus.SERVICE_UNAVAILABLE, error.message, hint=error.hint, headers={"Retry-After": "5"})
    except KvplanError as error:
        document = error_document(ErrorInfo.of(error))
        return Reply(status=HTTPStatus.NOT_FOUND, body=json.dumps(document).encode())


def _is_from_here(request: Request) -> bool:
    """True if the request names this server, once, and no other page in the browser sent it."""
    hosts = [f"{name}:{request.port}" for name in (HOST, "localhost")]
    if request.port == 80:
        hosts += [HOST, "localhost"]
    named = request.headers.get_all("Host") or []
    origins = request.headers.get_all("Origin") or []
    sites = request.headers.get_all("Sec-Fetch-Site") or []
    return (
        len(named) == 1
        and named[0].lower() in hosts
        and all(origin.lower() == f"http://{named[0].lower()}" for origin in origins)
        and set(sites) <= {"same-origin", "none"}
    )


def _refused(status: HTTPStatus, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> Reply:
    document = error_document(ErrorInfo(code=2, type=status.name.lower().replace("_", "-"), message=message, hint=hint))
    return Reply(status=status, body=json.dumps(document).encode(), headers=headers or {})


class Server(ThreadingHTTPServer):
    """The server. ``port`` 0 takes one that is free; ``address`` is what a browser opens.

    Raises :class:`~hwcalc.errors.UsageError` if the port cannot be had.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS
    # Somebody who left the port a moment ago must not keep it, and nobody may share it.
    allow_reuse_address = True
    allow_reuse_port = False

    def __init__(self, site: Site, port: int = 0) -> None:
        self.site = site
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror or error}.", hint="Leave --port out, and a free one is taken."
            ) from error

    @property
    def address(self) -> str:
        """The page, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Take the port. The inherited one asks a name server what this machine is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread could be started.
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As inherited, and count the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever asked has gone."""


class _Handler(StreamRequestHandler):
    """One connection: read one request, within bounds of bytes and time, and answer it."""

    server: Server
    connection: socket.socket

    def handle(self) -> None:
        method, reply = "GET", _refused(HTTPStatus.BAD_REQUEST, "that is no request.")
        with io.BufferedReader(_Bounded(self.connection)) as stream:
            try:
                request = self._read(stream)
            except LineTooLong:
                reply = _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {_MOST_BYTES:,} bytes.")
            except HTTPException:
                reply = _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {_MOST_HEADERS} headers.")
            except OSError:
                return
            else:
                if request is not None:
                    method = request.method
                    try:
                        reply = respond(request, self.server.site)
                    except Exception:  # noqa: BLE001 - whatever went wrong, the reader gets an answer, and no traceback
                        hint = "Plan it: kvplan MODEL"
                        reply = _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be worked out.", hint=hint)
        self.connection.settimeout(_SECONDS)
        with suppress(OSError):
            self.connection.sendall(reply.head() + (b"" if method == "HEAD" else reply.body))

    def _read(self, stream: io.BufferedReader[_Bounded]) -> Request | None:
        """The request; ``None`` if any line of it is not what it must be: a lenient reader would miss the header behind it."""
        asked = _ASKED.fullmatch(stream.readline(_MOST_LINE).decode("latin-1"))
        headers = Message()
        while asked and (line := stream.readline().decode("latin-1")) not in {"\r\n", "\n"}:
            header = _HEADER.fullmatch(line)
            if header is None:
                return None
            if len(headers) == _MOST_HEADERS:
                raise HTTPException
            headers[header[1]] = header[2]
        if asked is None:
            return None
        return Request(method=asked[1], target=asked[2], headers=headers, port=self.server.server_port, token=self.server.token)


class _Bounded(io.RawIOBase):
    """What arrives on a socket, up to so many bytes and for so many seconds in all."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = monotonic() + _SECONDS_TO_ASK
        self._left = _MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise LineTooLong("request")
        rest = self._end - monotonic()
        if rest <= 0:
            raise TimeoutError
        self._connection.settimeout(rest)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
