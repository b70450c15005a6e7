"""What is asked over a socket: a Hub that answers whatever a case says, and the server of a page with a request of any bytes.

Both are on 127.0.0.1, in this process.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final

from scripts.fuzzing.mutate import HOSTILE, SECRET, damaged_bytes, damaged_text, encoded

HUB: Final = "hub/"
"""The folder of a case whose files are answers: of ``hub/config.json`` to a request for such a name, of ``hub/other`` to all others."""
_PATIENCE: Final = 2.0
_COMMIT: Final = "1234567890abcdef1234567890abcdef12345678"
_STATUSES: Final = (200, 200, 200, 206, 204, 301, 302, 307, 400, 401, 403, 404, 416, 418, 429, 500, 503, 99, 700)
_PLACES: Final = (
    "/",
    "/org/name",
    "http://127.0.0.1:1/x",
    "http://example.invalid/x",
    "file:///etc/passwd",
    "//x",
    "",
    "\x00",
    "ftp://x",
    "https://",
)


def answers(config: Mapping[str, Any], header: bytes, chance: random.Random) -> dict[str, bytes]:
    """Files of a case: raw answers of a Hub for a config, for a header of weights, and for everything else."""
    text = json.dumps(config).encode()
    listing = json.dumps(
        {"id": "org/name", "sha": _COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]}
    )
    bodies = {"config.json": text, "model.safetensors": header, "other": listing.encode()}
    return {f"{HUB}{name}": _answer(body, chance, bad=chance.random() < 0.5) for name, body in bodies.items()}


def _answer(body: bytes, chance: random.Random, *, bad: bool) -> bytes:
    status = chance.choice(_STATUSES) if bad else 200
    fields: dict[str, str] = {"Content-Length": str(len(body)), "X-Repo-Commit": _COMMIT, "ETag": '"x"', "Connection": "close"}
    if bad:
        for _ in range(chance.choice((0, 1, 3))):
            name, values = chance.choice(_FIELDS)
            fields[name] = str(chance.choice(values))
        body = chance.choice(
            (body, encoded(damaged_text(body.decode("latin-1"), chance, 2)), body[: len(body) // 2], b"", body * 3)
        )
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "absent")
    raw = (
        f"HTTP/1.1 {status} {chance.choice(('OK', '', SECRET)) if bad else 'OK'}\r\n{head}\r\n".encode("latin-1", "replace")
        + body
    )
    return damaged_bytes(raw, chance, 2) if bad and chance.random() < 0.1 else raw


_FIELDS: Final[Sequence[tuple[str, Sequence[object]]]] = (
    ("Content-Length", ("absent", 0, -1, 1, 10**18, "x", "1, 2", "0x10")),
    ("Content-Encoding", ("gzip", "br", "identity", "gzip, gzip", "x")),
    ("Content-Range", ("bytes 0-1/2", "bytes 5-1/2", "bytes */9", "x", f"bytes 0-{10**18}/{10**19}")),
    ("Transfer-Encoding", ("chunked", "x")),
    ("Location", _PLACES),
    ("Retry-After", (0, -1, 99999, "x", "Fri, 31 Dec 1999 23:59:59 GMT")),
    ("X-Repo-Commit", ("absent", "", "../../x", "A" * 40, "x" * 5000, SECRET)),
    ("ETag", ("absent", "../x", '"' + "e" * 5000, "W/")),
    ("X-Error-Code", ("GatedRepo", "RepoNotFound", "EntryNotFound", "x\x1b[2J", SECRET)),
    ("X-Error-Message", tuple(text for text in HOSTILE if "\n" not in text and "\x00" not in text and len(text) < 999)),
    ("X-Linked-Size", (0, -1, 10**18, "x")),
)


@contextmanager
def hub_of(files: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a Hub that gives the answers of a case's files, and closes each connection behind one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_all, args=(listener, dict(files)), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # A connection wakes the thread up.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
    thread.join(_PATIENCE)


def _answer_all(listener: socket.socket, files: Mapping[str, bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.settimeout(_PATIENCE)
            asked = b""
            while b"\r\n\r\n" not in asked and (piece := connection.recv(65_536)):
                asked += piece
            name = asked.split(b" ")[1].split(b"?")[0].rpartition(b"/")[2].decode("latin-1") if b" " in asked else ""
            connection.sendall(files.get(HUB + name, files.get(f"{HUB}other", b"")))


def page_request(chance: random.Random) -> bytes:
    """A request for the page, with something wrong in it. ``TOKEN`` and ``PORT`` stand for those of the server."""
    target = chance.choice(("/TOKEN/", "/TOKEN/models", "/TOKEN/payload?model=Qwen/Qwen3-1.7B", "/", "/TOKEN/../x", "/TOKEN/payload?model=" + chance.choice(("", "x", "%00", "..%2f", "a" * 900)), "*", "http://127.0.0.1:PORT/TOKEN/"))  # fmt: skip
    lines = [
        f"{chance.choice(('GET', 'GET', 'GET', 'HEAD', 'POST', 'OPTIONS', 'get', 'X'))} {target} HTTP/1.{chance.choice('0011239')}"
    ]
    fields = ["Host: 127.0.0.1:PORT"]
    extra = ("Host: evil.example", "Origin: http://127.0.0.1:PORT", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin", "Content-Length: 5", "Transfer-Encoding: chunked", " folded", ":", "A" * 2000 + ": x", "Cookie: " + "x" * 9000, "Range: bytes=0-1")  # fmt: skip
    fields += [chance.choice(extra) for _ in range(chance.choice((0, 0, 1, 2, 120)))]
    chance.shuffle(fields)
    end = chance.choice(("\r\n", "\r\n", "\n", "\r"))
    raw = (end.join([*lines, *fields]) + end * chance.choice((1, 2, 2, 2))).encode("latin-1")
    return damaged_bytes(raw, chance, chance.choice((1, 3))) if chance.random() < 0.5 else raw


@lru_cache(maxsize=1)
def _server() -> Any:
    from hwcalc.explore.serve import Live, Server, Site

    models = Live(lambda model: json.dumps({"id": model.id}))
    server = Server(
        Site(
            page=b"<!doctype html>",
            policy="default-src 'none'",
            models=models.models,
            payload=models.payload,
            progress=models.progress,
        )
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def asked_page(request: bytes) -> bytes:
    """The answer of a page's server to the bytes of a request."""
    server = _server()
    raw = request.replace(b"TOKEN", server.token.encode()).replace(b"PORT", str(server.server_port).encode())
    reply = b""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=_PATIENCE) as connection, suppress(OSError):
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65_536):
            reply += piece
    return reply
