"""A running server: what it states, what of it agrees with the plan of its settings, and how many more users fit."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from select import select
from typing import Any, Final, cast

import jsonschema
import pytest

from hwcalc.errors import ServerError, UsageError
from hwcalc.reconcile import endpoint, reconcile
from hwcalc.reconcile.dialects import DIALECTS
from hwcalc.reconcile.prometheus import Sample, sample
from hwcalc.reconcile.result import Reconciliation
from hwcalc.reconcile.server import Server, Serving
from hwcalc.report.server import server_text
from hwcalc.report.view import View
from tests.hwcalc.command import Capture, run
from tests.hwcalc.reconcile.logs import GIB, figures
from tests.hwcalc.reconcile.served import LLAMACPP, MODEL, SGLANG, TENSORRT, TGI, VLLM, Answer, Served, send
from tests.paths import ROOT

KEY: Final = "sesame-open-1234"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def ask(answers: dict[str, Answer], model: str | None = None, **options: Any) -> Serving:
    """What a server with these answers holds."""
    with Served(answers) as served:
        return Server(served.address).serving(model, **options)


def rooms(serving: Serving) -> list[tuple[int, int, str]]:
    """More users: their tokens, their number, and what limits it."""
    return [(room.seq, room.users, room.limit) for room in serving.rooms]


def compared(serving: Serving) -> Reconciliation:
    """The comparison of a server that can be planned."""
    assert serving.reconciliation is not None, serving.notes
    return serving.reconciliation


def test_vllm() -> None:
    """10,001 blocks of 16 tokens, one of which is the null block: half of 10,000 blocks are free.

    A request of 8,192 tokens has 512 blocks, 9 of which fit into 5,000. 80,008 tokens of 20 requests are 4,001 each, in 251 blocks.
    """
    serving = ask(VLLM)
    found = compared(serving)

    assert (serving.engine, serving.engine_version, serving.model) == ("vllm", "0.11.0", MODEL)
    assert (serving.blocks, serving.tokens, serving.used_share, serving.used_tokens) == (10_001, 160_016, 0.5, 80_008)
    assert (serving.running, serving.waiting, serving.pools) == (20, 0, 1)
    assert rooms(serving) == [(8192, 9, "pool"), (4001, 19, "pool")]
    assert {one.name: (one.value, one.source) for one in found.inputs}["seq"] == ("8192", "server")
    assert found.within
    assert found.log.startswith("http://127.0.0.1:")


def test_two_replicas_of_vllm() -> None:
    """Each engine has a pool: blocks and requests are of both together, and each has room by how full it is: 9 and 19 users more."""
    metrics = str(VLLM["/metrics"])
    other = metrics.replace('engine="0"', 'engine="1"').replace("} 0.5", "} 0.0").replace("} 20.0", "} 0.0")
    serving = ask({**VLLM, "/metrics": metrics + other})

    assert (serving.pools, serving.blocks, serving.tokens, serving.used_share, serving.running) == (2, 20_002, 320_032, 0.25, 20)
    assert rooms(serving)[0] == (8192, 9 + 19, "pool")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("usage_perc{", "usage{", (8192, 19, "pool")),
        ("} 0.5\n", "} 1.7\n", (8192, 19, "pool")),
        ('num_gpu_blocks="10001"', 'num_gpu_blocks="None"', (8192, 1004, "max_num_seqs")),
    ],
)
def test_a_pool_that_is_not_said_holds_at_most_so_many(before: str, after: str, expected: tuple[int, int, str]) -> None:
    """10,000 free blocks hold 19 users of 512 blocks. Of a pool of unknown size, 1,024 requests run at once, and 20 do."""
    metrics = str(VLLM["/metrics"])
    assert before in metrics
    serving = ask({**VLLM, "/metrics": metrics.replace(before, after)})

    assert rooms(serving) == [expected]
    assert serving.rooms[0].at_most
    assert f"at most {expected[1]:,} of 8,192 tokens each" in server_text(serving, View())
    assert not any(room.at_most for room in (*ask(VLLM).rooms, *ask(LLAMACPP).rooms))


def test_vllm_in_development_mode_states_its_whole_configuration() -> None:
    """``/server_info`` has the words of the log: tensor parallelism and the format of the cache come from there."""
    config = f"model='{MODEL}', tensor_parallel_size=2, kv_cache_dtype=fp8, max_seq_len=8192"
    found = compared(ask({**VLLM, "/server_info": {"vllm_config": config}}))

    assert {one.name: one.value for one in found.inputs if one.source == "server"}.items() >= {"tp": "2", "dtype": "fp8"}.items()


def test_sglang() -> None:
    """The pool is that of its bytes: 60,001 slots x 131,072 B = 7.32 GiB. 45,000 free tokens hold 36 more of 15,000 / 12 tokens; 3 wait.

    Requests at once: max(60,000 / 131,072 x 512, 2,048) (model_runner.py).
    """
    serving = ask(SGLANG)
    rows = figures(compared(serving))

    assert (serving.engine, serving.engine_version, serving.model) == ("sglang", "0.5.9", MODEL)
    assert (serving.tokens, serving.used_tokens, serving.used_share) == (60_000, 15_000, 0.25)
    assert (serving.running, serving.waiting, serving.most_running) == (12, 3, 2048)
    assert rooms(serving)[1][:2] == (1250, 36 - 3)
    assert round(60_001 * 131_072 / GIB, 2) == 7.32
    assert (rows["tokens"].within, rows["requests at once"].within, rows["weights"].within) == (True, True, True)


def test_a_server_that_contradicts_itself_is_said_to() -> None:
    """50,000 of 60,000 tokens are 83.3 %, and no 30 %. A share in hundredths is no contradiction: 15,300 of 60,000 are 25.5 %."""
    metrics = str(SGLANG["/metrics"])
    wrong = ask({**SGLANG, "/metrics": metrics.replace(" 15000.0", " 50000.0").replace("} 0.25", "} 0.3")})
    rounded = ask({**SGLANG, "/metrics": metrics.replace(" 15000.0", " 15300.0")})

    assert [note.code for note in wrong.notes] == ["contradiction"]
    said = "30.0 % are in use, and that 50,000 of 60,000 tokens are, which is 83.3 %"
    assert said in " ".join(server_text(wrong, View()).split())
    assert rounded.notes == ()


def test_an_older_sglang_has_another_path() -> None:
    """``/get_server_info``; without metrics nobody knows how full it is."""
    serving = ask({"/get_server_info": SGLANG["/server_info"]})

    assert (serving.engine, serving.tokens, serving.running, serving.rooms) == ("sglang", 60_000, None, ())


def test_llamacpp() -> None:
    """The file tells the model of the catalog and its format: its tensors have the bytes that llama.cpp's README prints. 3 slots are free."""
    serving = ask(LLAMACPP)
    rows = figures(compared(serving))

    assert (serving.engine, serving.engine_version, serving.most_running) == ("llamacpp", "b6700", 4)
    assert (serving.running, serving.waiting, serving.used_tokens, serving.tokens) == (1, 0, 1000, None)
    assert rooms(serving)[0] == (8192, 3, "n_seq_max")
    assert (rows["weights"].reported, rows["weights"].within) == (4_912_898_304, True)
    assert (rows["cells of a slot"].reported, rows["cells of a slot"].within) == (8192, True)
    assert "kv-unified" in {note.code for note in compared(serving).notes}


def test_tgi() -> None:
    """65,536 tokens are 8 GiB. Requests have all their tokens reserved, and block 0 is for health checks: 49,151 tokens hold 5 of 8,192."""
    serving = ask(TGI, kv_memory="8GiB", engine_options={"attention": "flashinfer"})
    rows = figures(compared(serving))

    assert (serving.engine, serving.engine_version, serving.tokens, serving.most_running) == ("tgi", "3.3.6", 65_536, 128)
    assert (serving.running, serving.waiting, serving.used_share) == (2, 0, 0.25)
    assert rooms(serving)[0][:2] == (8192, 5)
    assert rows["tokens"].within


def test_tensorrt_llm() -> None:
    """The last iteration counts. 2,048 blocks of 32 are 65,536 tokens; 49,152 free ones hold 24 of 16,384 / 8 tokens, and 2 wait."""
    serving = ask(TENSORRT)

    assert (serving.engine, serving.engine_version, serving.model) == ("tensorrt-llm", "1.2.0", MODEL)
    assert (serving.blocks, serving.tokens, serving.used_share, serving.most_running) == (2048, 65_536, 0.25, 64)
    assert (serving.running, serving.waiting) == (8, 2)
    assert rooms(serving)[-1][:2] == (2048, 24 - 2)


def test_tensorrt_llm_with_prometheus() -> None:
    """The same by ``/prometheus/metrics``, which newer releases have."""
    gauges = {
        "num_requests_running": 8, "num_requests_waiting": 2, "kv_cache_utilization": 0.25, "kv_cache_max_blocks": 2048,
        "kv_cache_tokens_per_block": 32,
    }  # fmt: skip
    text = "".join(f'trtllm_{name}{{model_name="m"}} {float(value)}\n' for name, value in gauges.items())
    serving = ask({**TENSORRT, "/prometheus/metrics": text, "/metrics": "[]"})

    assert (serving.blocks, serving.tokens, serving.used_share, serving.running) == (2048, 65_536, 0.25, 8)


def test_a_model_that_nobody_knows_is_not_compared() -> None:
    """What the server states is told all the same, and how to name its model."""
    models = {"data": [{"id": "chat", "owned_by": "vllm", "root": "/data/ours", "parent": None, "max_model_len": 8192}]}
    with Served({**VLLM, "/v1/models": models}) as served:
        unknown, named = Server(served.address).serving(), Server(served.address).serving(MODEL)

    assert (unknown.reconciliation, unknown.rooms, unknown.running) == (None, (), 20)
    assert "kvplan reconcile MODEL --log URL" in unknown.notes[0].message
    assert compared(named).within
    assert rooms(named) == [(8192, 9, "pool"), (4001, 19, "pool")]


def test_a_copy_of_the_metrics_is_a_log_too() -> None:
    """The pool of an SGLang server, of which an option says the bytes: 60,000 tokens and the padding of a page."""
    rows = figures(
        reconcile(MODEL, f'sglang:max_total_num_tokens{{tp_rank="0"}} 60000.0\n{SGLANG["/metrics"]}', kv_memory=60_001 * 131_072)
    )

    assert rows["tokens"].reported == 60_000


def test_a_plan_that_differs() -> None:
    """Of another model the blocks are the same, and the file is not."""
    assert not compared(ask(LLAMACPP, "Qwen/Qwen3-8B")).within


def test_options_replace_what_the_server_states() -> None:
    """Users of 2,048 tokens have 128 blocks: 39 more."""
    assert rooms(ask(VLLM, seq="2k"))[0] == (2048, 5000 // 128, "pool")


def hold(_handler: BaseHTTPRequestHandler) -> None:
    """Say nothing for as long as the test runs."""
    time.sleep(5)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, without end."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"#")
        time.sleep(0.05)


def flood(handler: BaseHTTPRequestHandler) -> None:
    """Bytes without end."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"# nothing\n" * 10_000)


def garbage(handler: BaseHTTPRequestHandler) -> None:
    """No HTTP."""
    handler.wfile.write(b"\x00\x01\x02 what?\r\n\r\n")


HOSTILE: Final[dict[str, tuple[Callable[[BaseHTTPRequestHandler], None], str]]] = {
    "silent": (hold, "sends no whole answer to /metrics within 0.3 seconds"),
    "slow": (drip, "sends no whole answer to /metrics within 0.3 seconds"),
    "endless": (flood, "answers /metrics with more than 1 MiB"),
    "compressed": (lambda handler: send(handler, 200, gzip.compress(bytes(10**6)), Content_Encoding="gzip"), "sends a compressed answer"),
    "elsewhere": (lambda handler: send(handler, 302, "", Location="http://192.0.2.1/metrics"), "redirects /metrics to another host"),
    "nowhere": (lambda handler: send(handler, 302, "", Location="http://[/"), "redirects /metrics to another host"),
    "in a circle": (lambda handler: send(handler, 302, "", Location="/metrics"), "redirects /metrics in a circle"),
    "cut off": (lambda handler: send(handler, 200, "vllm:", Content_Length="100"), "ended the connection before its answer was whole"),
    "no server": (garbage, "does not answer as a web server does"),
    "refuses": (lambda handler: send(handler, 401, KEY), "wants an API key"),
    "starts": (lambda handler: send(handler, 503, "Loading model"), "answers as no engine that is read (/metrics 503"),
    "another program": (lambda handler: send(handler, 200, "<html>vllm: hello</html>"), "answers as no engine that is read"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Exit status 4 and one sentence, whatever it sends, in bounded time and memory; nothing that it sent is repeated."""
    monkeypatch.setattr(endpoint, "SECONDS", 0.3)
    monkeypatch.setattr(endpoint, "MOST_BYTES", 2**20)
    answer, expected = HOSTILE[name]
    with Served({"/metrics": answer}) as served:
        status, out, err = run(capsys, "reconcile", served.address)

    assert (status, out) == (4, "")
    assert expected in err
    assert KEY not in err
    assert "192.0.2.1" not in err


def test_nobody_listens(capsys: Capture) -> None:
    """As an error of the network."""
    with Served({}) as served:
        address = served.address
    status, _, err = run(capsys, "reconcile", address)

    assert (status, "nobody listens there" in err) == (4, True)


def test_a_server_without_tls(capsys: Capture) -> None:
    """The error says what the address may begin with."""
    with Served(VLLM) as served:
        status, _, err = run(capsys, "reconcile", served.address.replace("http:", "https:"))

    assert (status, "does not speak TLS" in err) == (4, True)


def test_a_redirect_on_the_same_host_is_followed() -> None:
    """Frameworks put a slash behind a path."""
    moved: dict[str, Answer] = {
        "/metrics/": VLLM["/metrics"],
        "/metrics": lambda handler: send(handler, 307, "", Location="/metrics/"),
    }

    assert ask({**VLLM, **moved}).blocks == 10_001


@pytest.mark.parametrize("answer", ["{", "[" * 100_000, '{"a": NaN}', '{"internal_states": 1}', '[{"kvCacheStats": {}}]', "[1]"])
def test_a_malformed_answer_is_left_out(answer: str) -> None:
    """The others are read."""
    serving = ask({**VLLM, "/server_info": answer, "/props": answer, "/slots": answer, "/info": answer})

    assert (serving.engine, serving.blocks) == ("vllm", 10_001)


def spoiled(value: Any) -> Iterator[Any]:
    """The document with each of its parts in turn replaced by what does not belong there."""
    yield from (None, True, -1, 2**70, 1e308, "a\x00b" * 2000, [], {}, [None], {"data": [3]})
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        for part in spoiled(value[key]):
            yield {**value, key: part} if isinstance(value, dict) else [*value[:key], part, *value[key + 1 :]]


@pytest.mark.parametrize(
    "answers", [VLLM, SGLANG, LLAMACPP, TGI, TENSORRT], ids=["vllm", "sglang", "llamacpp", "tgi", "tensorrt-llm"]
)
def test_no_document_breaks_a_dialect(answers: dict[str, Answer]) -> None:
    """Whatever stands where, every dialect reads on; numbers stay counts."""
    for path, answer in answers.items():
        for document in () if isinstance(answer, str) else spoiled(answer):
            for kind in DIALECTS:
                dialect = kind()
                dialect.answered(path, document)
                assert all(isinstance(fact.value, str) or 0 <= fact.value <= 2**53 for fact in dialect.facts.all())


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "http://a b:1",
        "http://localhost:99999",
        "http://localhost?a=b",
        "https://:80",
        "http://user:word@localhost",
        "http://x\x00y",
    ],
)
def test_wrong_addresses(address: str) -> None:
    """Wrong usage; a password is not repeated."""
    with pytest.raises(UsageError) as caught:
        Server(address)

    assert "word" not in caught.value.message.replace("password", "")


def test_the_end_of_an_address_may_be_a_path_of_the_server() -> None:
    """People copy ``/v1`` and ``/metrics``. What comes before is part of the address."""
    with Served({f"/a/b{path}": answer for path, answer in VLLM.items()}) as served:
        assert Server(f"{served.address}/a/b/v1/").serving().blocks == 10_001
        assert set(served.asked) >= {"/a/b/metrics", "/a/b/v1/models"}


def test_only_the_engine_that_answered_is_asked_again() -> None:
    """All paths once, then its own."""
    with Served(LLAMACPP) as served:
        server = Server(served.address)
        server.serving()
        first, served.asked = served.asked, []
        serving = server.again()

    assert set(served.asked) == set(LLAMACPP) < set(first)
    assert (serving.reconciliation, rooms(serving)[0]) == (None, (8192, 3, "n_seq_max"))


def test_a_key_is_sent_and_never_printed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Not even if the server sends it back, in a name or beside its arguments."""
    monkeypatch.setenv("A_KEY", KEY)
    models = {"data": [{"id": KEY, "owned_by": "vllm", "root": f"/data/{KEY}", "parent": None, "max_model_len": 8192}]}
    for answers in ({**VLLM, "/v1/models": models}, SGLANG):
        with Served(answers) as served:
            _, out, err = run(capsys, "reconcile", served.address, "--api-key-env", "A_KEY", "--json")
        assert served.headers["Authorization"] == f"Bearer {KEY}"
        assert KEY not in out + err
    with Served(SGLANG) as served:
        assert KEY not in "".join(run(capsys, "reconcile", served.address)[1:])
        assert "Authorization" not in served.headers


@pytest.mark.parametrize("value", [None, "", "two words", "a\nb"])
def test_a_wrong_key(value: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Wrong usage. What stands behind the option may be the key itself, and is not repeated."""
    monkeypatch.delenv(KEY, raising=False)
    if value is not None:
        monkeypatch.setitem(cast("dict[str, str]", os.environ), KEY, value)
    status, _, err = run(capsys, "reconcile", "http://localhost:1", "--api-key-env", KEY)

    assert (status, KEY in err, "two words" in err) == (2, False, False)


def test_text(capsys: Capture) -> None:
    """What it holds, how full it is, who else fits; then the comparison. Exit status 0."""
    with Served(VLLM) as served:
        status, out, err = run(capsys, "reconcile", served.address)

    assert (status, err) == (0, "")
    assert out.splitlines()[:1] == [f"{served.address} (vllm 0.11.0, {MODEL})"]
    for label, text in (
        ("pool", "10,001 blocks, 160,016 tokens"),
        ("in use", "50.0 %, 80,008 tokens"),
        ("more users", "9 of 8,192 tokens each (pool); 19 of 4,001 tokens each (pool) as those that run"),
    ):
        assert any(line.split() == [*label.split(), *text.split()] for line in out.splitlines()), out
    assert "seq 8192 (server)" in out
    assert "(/metrics, engine 0)" in out


def test_the_page_shows_what_is_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the documentation is of these answers."""
    monkeypatch.setenv("COLUMNS", "100")
    with Served(SGLANG) as served:
        _, out, _ = run(capsys, "reconcile", served.address, "-q")
    page = (ROOT / "docs/proof.md").read_text(encoding="utf-8")

    assert out.replace(served.address, "http://localhost:30000") in page


def test_json_markdown_and_csv(capsys: Capture) -> None:
    """The document is as its schema says, Markdown is a list, CSV a row."""
    schema = json.loads(run(capsys, "schema", "server")[1])
    for answers in (VLLM, SGLANG, LLAMACPP, TGI, TENSORRT):
        with Served(answers) as served:
            jsonschema.Draft202012Validator(schema).validate(json.loads(run(capsys, "reconcile", served.address, "--json")[1]))
    with Served(VLLM) as served:
        assert "- in use: 50.0 %, 80,008 tokens\n" in run(capsys, "reconcile", served.address, "--format", "markdown")[1]
        rows = [line.split(",") for line in run(capsys, "reconcile", served.address, "--format", "csv")[1].splitlines()]
    assert dict(zip(*rows, strict=True))["planned_users"] == "9"


@pytest.fixture
def three_readings(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits, and the third wait is interrupted. The seconds that were asked for."""
    waits: list[float] = []
    counted = itertools.count(1)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if next(counted) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("hwcalc.cli.measure.time", type("Clock", (), {"sleep": staticmethod(sleep)}))
    return waits


def test_watching(three_readings: list[float], capsys: Capture) -> None:
    """A line for each further reading, until Ctrl-C, with its usual exit status. ``--watch`` alone is 5 seconds."""
    with Served(VLLM) as served:
        status, out, _ = run(capsys, "reconcile", "--watch", served.address)

    assert (status, three_readings) == (130, [5.0, 5.0, 5.0])
    lines = out.splitlines()[-2:]
    assert all(line.endswith("; 20 running, 0 waiting; pool 50.0 %; room for 9 x 8,192, 19 x 4,001 tokens") for line in lines)


def test_a_pool_of_another_size_is_said(three_readings: list[float], capsys: Capture) -> None:
    """The server was started anew with 5,001 blocks, one of which is the null block."""
    with Served(VLLM) as served:
        smaller = str(VLLM["/metrics"]).replace("10001", "5001")
        answers = iter([VLLM["/metrics"], smaller, smaller])
        served.answers["/metrics"] = lambda handler: send(handler, 200, str(next(answers)))
        out = run(capsys, "reconcile", "--watch", "1", served.address)[1]

    assert len(three_readings) == 3
    assert all("; pool 50.0 % of 80,016 tokens (at first 160,016 tokens); " in line for line in out.splitlines()[-2:])


@pytest.mark.skipif(os.name == "nt", reason="no terminals of this kind")
def test_watching_on_a_terminal() -> None:
    """One line is written anew. Ctrl-C ends at once, with the cursor shown and the prompt on a line of its own."""
    import pty

    ours, theirs = pty.openpty()
    shown = b""
    with Served(VLLM) as served:
        command = [sys.executable, "-c", "from hwcalc.cli import main; main()", "reconcile", served.address, "--watch", "0.1"]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}, cwd=ROOT
        ) as started:
            while shown.count(b"room for 9 x 8,192") < 2 and select([ours], [], [], 60)[0]:
                shown += os.read(ours, 65_536)
            started.send_signal(signal.SIGINT)
            status = started.wait()
        shown += os.read(ours, 65_536)

    assert status == 130
    assert shown.count(b"room for 9 x 8,192") >= 2
    assert b"\r\x1b[2K" in shown
    assert shown.endswith(b"\n\x1b[?25h")


def test_watching_as_json(three_readings: list[float], capsys: Capture) -> None:
    """One document a line; what a server no longer tells is null."""
    with Served(VLLM) as served:
        answers = iter([VLLM["/metrics"], VLLM["/metrics"], None])

        def metrics(handler: BaseHTTPRequestHandler) -> None:
            text = next(answers)
            send(handler, 200 if text else 401, str(text))

        served.answers["/metrics"] = metrics
        served.answers["/v1/models"] = VLLM["/v1/models"]
        status, out, _ = run(capsys, "reconcile", served.address, "--watch", "0.5", "--json", "--seq", "2k")
    first, second, third = (json.loads(line) for line in out.splitlines())

    assert (status, three_readings) == (130, [0.5, 0.5, 0.5])
    assert (first["reconciliation"]["engine"], second["reconciliation"], second["rooms"][0]["seq"]) == ("vllm", None, 2048)
    assert third["blocks"] is None


def test_a_server_that_stops_is_asked_again(three_readings: list[float], capsys: Capture) -> None:
    """It may be starting."""
    with Served(VLLM) as served:
        address, started = served.address, VLLM["/metrics"]

        def once(handler: BaseHTTPRequestHandler) -> None:
            served.answers = {}
            send(handler, 200, str(started))

        served.answers["/metrics"] = once
        status, out, _ = run(capsys, "reconcile", MODEL, "--log", address, "--watch=1")

    assert status == 130
    assert (
        out.splitlines()[-2:]
        == [f"{address} answers as no engine that is read (/metrics 404, /v1/models 404, /version 404, /server_info 404)."] * 2
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("server.log", "--watch"), "--watch and --api-key-env are for a server"),
        (("localhost:8000",), "Write: kvplan reconcile http://localhost:8000"),
        (("http://localhost:1", "--watch", "0"), "'0' is no time between two readings"),
        (("http://localhost:1", "--calibrate", "--gpu", "l4"), "--calibrate and --dialect are for logs"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], expected: str, capsys: Capture) -> None:
    """Exit status 2."""
    status, _, err = run(capsys, "reconcile", *words)

    assert (status, expected in err) == (2, True), err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a{b="c"} 1', Sample(name="a", labels={"b": "c"}, value=1)),
        ("a 2.5 1395066363000", Sample(name="a", labels={}, value=2.5)),
        ('a{b="}",c="\\"} 7"} 3', Sample(name="a", labels={"b": "}", "c": '"} 7'}, value=3)),
        ("a NaN", Sample(name="a", labels={}, value=None)),
        ('a{b="c', Sample(name="a", labels={}, value=None)),
        ("# HELP a b", Sample(name="", labels={}, value=None)),
    ],
)
def test_samples(text: str, expected: Sample) -> None:
    """Lines of the format, whole and cut."""
    assert sample(text) == expected


def test_the_error_is_an_error_of_the_network() -> None:
    """Who handles those handles this."""
    assert issubclass(ServerError, OSError)
