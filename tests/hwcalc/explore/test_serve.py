"""The server of the page: who gets an answer, and what from."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from hwcalc.errors import ModelNotFoundError, UsageError
from hwcalc.explore import serve
from hwcalc.explore.serve import Live, Server, Site
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import Access
from hwcalc.sources.request import tell

PAGE = b"<!doctype html><title>page</title>"
POLICY = "default-src 'none'; connect-src 'self'"


def built(model: ModelSpec) -> str:
    """A payload that is easy to tell."""
    if model.id == "google/gemma-3-1b-it":
        raise ZeroDivisionError("a secret of the inside")
    return json.dumps({"id": model.id})


def site(**other: object) -> Site:
    """What the tests serve."""
    models = Live(built)
    given = {"page": PAGE, "policy": POLICY, "models": models.models, "payload": models.payload, "progress": models.progress}
    return Site(**(given | other))  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that runs."""
    with Server(site()) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """The answer to one request."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def raw(server: Server, request: bytes) -> bytes:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        # A server that leaves a part unread resets the connection behind its answer.
        with suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                answer += piece
        return answer


def error(body: bytes) -> str:
    """The message of an error's document, which has nothing of the inside."""
    assert b"Traceback" not in body
    return str(json.loads(body)["error"]["message"])


def test_the_page(server: Server) -> None:
    """The address that is printed gives the page, with headers that close every way out of it."""
    response, body = ask(server, f"/{server.token}/")

    assert (200, PAGE) == (response.status, body)
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    headers = dict(response.getheaders())
    assert headers["Content-Security-Policy"] == f"{POLICY}; frame-ancestors 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert {"Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "Cross-Origin-Embedder-Policy"} <= headers.keys()
    assert "Server" not in headers
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_tokens_are_long_and_new(server: Server) -> None:
    """Nobody guesses a token of 24 random bytes."""
    with Server(site()) as other:
        assert other.token != server.token
        assert len(server.token) == 32


def test_the_models(server: Server) -> None:
    """The catalog's ids, with the published number of parameters; one of them has a payload."""
    rows = {row["id"]: row["parameters"] for row in json.loads(ask(server, f"/{server.token}/models")[1])["models"]}
    response, body = ask(server, f"/{server.token}/model?id=Qwen/Qwen3-8B")

    assert 8_190_735_360 == rows["Qwen/Qwen3-8B"]
    assert len(rows) > 300
    assert (200, {"id": "Qwen/Qwen3-8B"}) == (response.status, json.loads(body))
    assert response.getheader("Content-Type") == "application/json; charset=utf-8"
    assert json.loads(ask(server, f"/{server.token}/model?id=Qwen%2FQwen3-8B")[1]) == {"id": "Qwen/Qwen3-8B"}


def test_head_has_no_body(server: Server) -> None:
    """HEAD is GET without the body."""
    response, body = ask(server, f"/{server.token}/", "HEAD")

    assert (200, b"", str(len(PAGE))) == (response.status, body, response.getheader("Content-Length"))


def test_the_page_without_its_last_slash(server: Server) -> None:
    """The page asks for models relative to its address, which therefore ends with a slash."""
    response, _ = ask(server, f"/{server.token}")

    assert (308, f"/{server.token}/") == (response.status, response.getheader("Location"))


@pytest.mark.parametrize(
    "path",
    ["/", "/models", "/{wrong}/", "/{short}/", "/{token}x/", "//{token}/", "/x/{token}/", "/?{token}", "/%2f{token}/", "/\xff/"],
)
def test_without_the_token(server: Server, path: str) -> None:
    """Nothing but the token in its place opens anything, and the answer is the same whatever was asked."""
    token = server.token
    path = path.format(token=token, wrong="x" * len(token), short=token[:-1])
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode("latin-1"))

    assert answer.startswith(b"HTTP/1.0 403 ")
    assert token.encode() not in answer
    assert error(answer.partition(b"\r\n\r\n")[2]) == "the address lacks its token, or another page asks."


@pytest.mark.parametrize(
    "headers",
    [
        "Host: evil.example:{port}",
        "Host: evil.example",
        "Host: 127.0.0.1",
        "Host: 127.0.0.1:1",
        "Host: 127.0.0.1:{port}.evil.example",
        "Host: evil.example\r\nHost: 127.0.0.1:{port}",
        "Host: [::1]:{port}",
        "X-Forwarded-Host: 127.0.0.1:{port}",
        "Host: 127.0.0.1:{port}\r\nOrigin: http://evil.example",
        "Host: 127.0.0.1:{port}\r\nOrigin: null",
        "Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:1",
        "Host: 127.0.0.1:{port}\r\nOrigin: https://127.0.0.1:{port}",
        "Host: 127.0.0.1:{port}\r\nSec-Fetch-Site: cross-site",
        "Host: 127.0.0.1:{port}\r\nSec-Fetch-Site: same-site",
    ],
)
def test_other_hosts_and_origins(server: Server, headers: str) -> None:
    """A name that was rebound to this machine, and another page in the same browser, get nothing even with the token."""
    given = headers.format(port=server.server_port)
    answer = raw(server, f"GET /{server.token}/ HTTP/1.1\r\n{given}\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.0 403 ")
    assert PAGE not in answer
    assert b"Access-Control" not in answer


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_from_the_page_itself(server: Server, host: str) -> None:
    """The page's own requests name its origin."""
    name = f"{host}:{server.server_port}"
    response, _ = ask(server, f"/{server.token}/models", Host=name, Origin=f"http://{name.lower()}", Sec_Fetch_Site="same-origin")

    assert response.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "FROB"])
def test_other_methods(server: Server, method: str) -> None:
    """Nothing here can be changed."""
    response, body = ask(server, f"/{server.token}/", method)

    assert (405, "GET, HEAD") == (response.status, response.getheader("Allow"))
    assert error(body) == "only GET and HEAD are answered."


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../..",
        "%2e%2e/",
        "etc/passwd",
        "page.html",
        "static/",
        "models/",
        "model/",
        "models?x=1",
        "?x=1",
        "index.html",
        "model%3fid=x",
    ],
)
def test_no_path_is_a_file(server: Server, path: str) -> None:
    """There are three addresses, and none is made from another."""
    response, body = ask(server, f"/{server.token}/{path}")

    assert (404, "there is no such page.") == (response.status, error(body))


@pytest.mark.parametrize(
    "query",
    ["", "id=", "id", "x=1", "id=gpt2&id=gpt2", "id=a&b=c", "id=%ff", "id=../../../etc/passwd", "id=/etc/passwd", "id=./config.json",
     "id=nobody/nothing", "id=qwen/qwen3-8b", "id=%00", "id=-", "id=ollama:qwen", "id=Qwen/Qwen3-8B@main", "id=a;b&c&d&e&f&g", "id=<img+src=x>"],
)  # fmt: skip
def test_no_model(server: Server, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is an id of the catalog as it stands there: no path, nothing of the Hub, nothing of another host."""
    monkeypatch.setattr("hwcalc.sources.resolve", pytest.fail)
    response, body = ask(server, f"/{server.token}/model?{query}")

    assert response.status == 404
    assert error(body)
    assert b"<img" not in body or response.getheader("Content-Type") == "application/json; charset=utf-8"


def test_what_goes_wrong_inside(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """A fault becomes an answer in words; neither the reader nor the terminal gets its insides, and nothing is logged."""
    response, body = ask(server, f"/{server.token}/model?id=google/gemma-3-1b-it")

    assert (500, "this could not be worked out.") == (response.status, error(body))
    assert b"secret" not in body
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /" + b"x" * 2_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000, 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET\x1c/\x85HTTP/1.1\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1", 400),
        (b"GET / HTTP/1.1\r\nrubbish\r\nOrigin: http://evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nOrigin : http://evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nFrom nobody\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n X: folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: y\rHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
    ],
)
def test_no_requests(server: Server, request_: bytes, status: int) -> None:
    """What is no request, or is too long for one, is refused in words."""
    answer = raw(server, request_)

    assert answer.startswith(f"HTTP/1.0 {status} ".encode())
    assert error(answer.partition(b"\r\n\r\n")[2])


def test_a_slow_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of a whole request: a byte now and then keeps no connection open."""
    monkeypatch.setattr(serve, "_SECONDS_TO_ASK", 0.3)
    with Server(site()) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
            connection.settimeout(0.05)
            received = None
            while received is None and time.monotonic() - begun < 5:
                try:
                    connection.send(b"G")
                    received = connection.recv(10)
                except TimeoutError:
                    continue
                except OSError:
                    received = b""
        server.shutdown()

    assert received == b""


def test_who_never_asks_holds_up_the_page_for_a_moment(server: Server) -> None:
    """Connections that send nothing are closed after a second, and the page answers again."""
    address, begun = ("127.0.0.1", server.server_port), time.monotonic()
    idle = [socket.create_connection(address, timeout=5) for _ in range(serve.MOST_CONNECTIONS)]
    for connection in idle:
        assert connection.recv(1) == b""
        connection.close()

    assert time.monotonic() - begun < 4
    assert ask(server, f"/{server.token}/")[0].status == 200


def test_many_at_once(server: Server) -> None:
    """More connections than it has threads for are closed, and the next one is answered."""
    address = ("127.0.0.1", server.server_port)
    idle = [socket.create_connection(address, timeout=5) for _ in range(serve.MOST_CONNECTIONS)]
    time.sleep(0.2)
    with socket.create_connection(address, timeout=5) as one_more:
        assert one_more.recv(1) == b""
    for connection in idle:
        connection.close()
    time.sleep(0.2)

    assert ask(server, f"/{server.token}/")[0].status == 200


def test_together() -> None:
    """Requests for the same model at the same time work it out once."""
    built_ = []

    def build(model: ModelSpec) -> str:
        time.sleep(0.05)
        built_.append(model.id)
        return "{}"

    models = Live(build)
    threads = [threading.Thread(target=models.payload, args=("Qwen/Qwen3-8B",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert built_ == ["Qwen/Qwen3-8B"]


def test_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the payload that was asked for longest ago goes first."""
    monkeypatch.setattr(serve, "MOST_KEPT", 2)
    built_: list[str] = []
    models = Live(lambda model: built_.append(model.id) or "{}")  # type: ignore[func-returns-value]
    for name in ("0.6B", "1.7B", "0.6B", "4B", "0.6B", "1.7B"):
        models.payload(f"Qwen/Qwen3-{name}")

    assert [name.removeprefix("Qwen/Qwen3-") for name in built_] == ["0.6B", "1.7B", "4B", "1.7B"]


def test_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits too long for a turn is told to come again."""
    monkeypatch.setattr(serve, "_SECONDS_FOR_A_MODEL", 0.01)
    models = Live(built)
    models._turn.acquire()
    request = serve.Request(
        method="GET", target="/t/model?id=Qwen/Qwen3-8B", headers=_headers(Host="127.0.0.1:1"), port=1, token="t"
    )
    reply = serve.respond(request, site(payload=models.payload))

    assert (503, "5") == (reply.status, reply.headers["Retry-After"])


def _headers(**given: str) -> Message:
    headers = Message()
    for name, value in given.items():
        headers[name] = value
    return headers


def test_the_port_of_others(server: Server) -> None:
    """A port that is taken is said so, with the way out."""
    with pytest.raises(UsageError, match=rf"port {server.server_port} cannot be used") as caught:
        Server(site(), server.server_port)

    assert caught.value.hint == "Leave --port out, and a free one is taken."


def test_models_of_nobody() -> None:
    """The catalog's ids only."""
    with pytest.raises(ModelNotFoundError, match="the catalog has no model"):
        Live(built).payload("/etc/passwd")


def test_names_that_people_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short name leads to the model that the command takes it for; a file of this machine is never read."""
    models = Live(built, serve.reader(Access(offline=True)))

    assert json.loads(models.payload("qwen3-8b")) == {"id": "Qwen/Qwen3-8B"}
    assert models.payload("Qwen/Qwen3-8B") is models.payload("qwen3-8b")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-14b").mkdir()
    for name in ("qwen3-14b", "./qwen3-14b", "/etc/passwd", "a/b.json"):
        with pytest.raises(ModelNotFoundError, match="is a file here"):
            models.payload(name)


def test_progress() -> None:
    """While a model is worked out, it is said what is being done; before and after, nothing is."""
    said = []

    def build(model: ModelSpec) -> str:
        tell(f"{model.id}: forms")
        said.append(json.loads(models.progress("Qwen/Qwen3-8B"))["doing"])
        return "{}"

    models = Live(build)
    models.payload("Qwen/Qwen3-8B")

    assert said == ["Qwen/Qwen3-8B: forms"]
    assert json.loads(models.progress("Qwen/Qwen3-8B")) == {"doing": ""}


def test_a_wrong_name_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused while another model is worked out."""
    monkeypatch.setattr(serve, "_SECONDS_FOR_A_MODEL", 0.01)
    models = Live(built)
    models._turn.acquire()

    with pytest.raises(ModelNotFoundError):
        models.payload("nobody/nothing")


def test_only_this_machine(server: Server) -> None:
    """It listens on the loopback address and no other."""
    assert server.socket.getsockname()[0] == "127.0.0.1"
