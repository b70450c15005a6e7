"""``kvplan workload``: table, documents and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

import hwcalc
from hwcalc.cli import completion
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import Capture, run

TRACE = "tests/readme/trace.jsonl"


def test_all_formats_have_the_same_numbers(capsys: Capture) -> None:
    """Six prompts of 8,540 tokens: the document is that of the library, and the rows of CSV are its lengths."""
    status, out, _ = run(capsys, "workload", TRACE, "--json")
    document = json.loads(out)
    rows = list(csv.DictReader(io.StringIO(run(capsys, "workload", TRACE, "--format", "csv")[1])))

    assert status == 0
    jsonschema.Draft202012Validator(json_schema("workload")).validate(document)
    assert document == hwcalc.workload(TRACE).summary().to_dict()
    assert (document["trace"], document["requests"], document["prompt"]["total"]) == ("mooncake", 6, 8540)
    assert [row["sum"] for row in rows] == ["8540", "1181", "9721"]


def test_the_share_of_prefixes_at_a_block_size(capsys: Capture) -> None:
    """In common with an earlier prompt: 512, 1,024, 1,536 and 512 tokens; in blocks of 1,000 a thousand of the second and the third."""
    shares = [
        json.loads(run(capsys, "workload", TRACE, "--json", "--block-size", size)[1])["prefixes"]["shared_tokens"]
        for size in ("16", "1000")
    ]

    assert shares == [512 + 1024 + 1536 + 512, 1000 + 1000]


def test_a_table_says_what_it_is(capsys: Capture) -> None:
    """Format, licence, lengths, rate, and what is only there if it is."""
    _, out, _ = run(capsys, "workload", TRACE)

    assert "mooncake: github.com/kvcache-ai/Mooncake, Apache-2.0" in out
    # 5 requests within the 130 seconds after the first.
    assert "arrivals: 0.0385 requests a second over 2.17 min, 0.0667 in the busiest minute" in out
    assert "sessions" not in out
    _, out, _ = run(capsys, "workload", "prompt=100", "output=5", "turns=2", "samples=3", "cancel=50%", "requests=10")
    assert "sessions: 5, of at most 2 turns" in out
    assert "arrivals: all at once" in out
    assert "samples: 30 outputs" in out


def test_options_and_words_of_a_trace(capsys: Capture) -> None:
    """The first two requests, as words behind the file or as options; other arrivals."""
    for words in (("requests=2",), ("--requests", "2")):
        assert json.loads(run(capsys, "workload", TRACE, *words, "--json")[1])["requests"] == 2
    document = json.loads(run(capsys, "workload", TRACE, "--arrival", "rate=2", "--speedup", "5", "--json")[1])
    assert document["duration_s"] == 2.5


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "no workload is named"),
        (("prompt=5",), 2, "needs output="),
        (("prompt=5", "output=5", "size=5"), 2, "no 'size'"),
        (("no/such.csv",), 3, "is not there"),
        (("tests/readme",), 3, "is a folder"),
        (("tests/readme/kvplan.yaml",), 3, "line 1"),
        ((TRACE, "--trace-format", "pcap"), 2, "Known: azure"),
        ((TRACE, "--columns", "prompt=tokens"), 3, "no column 'tokens'"),
        ((TRACE, "--block-size", "0"), 2, "block-size"),
        ((TRACE, "prompt=5"), 2, "not a word of a trace"),
    ],
)
def test_errors(capsys: Capture, words: tuple[str, ...], status: int, said: str) -> None:
    """Each has its exit status; with ``--json`` it is a document."""
    ended, out, err = run(capsys, "workload", *words)

    assert (ended, out) == (status, "")
    assert said in err
    assert json.loads(run(capsys, "workload", *words, "--json")[1])["error"]["code"] == status


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, their values, files and formats."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").touch()

    assert completion.workloads("pro") == ["prompt="]
    assert completion.workloads("arrival=p") == ["arrival=poisson="]
    assert completion.workloads("trace") == ["./trace.csv"]
    assert completion.trace_formats("moon") == ["mooncake"]


def test_the_rate_is_that_of_the_arrivals(capsys: Capture) -> None:
    """At 2 a second five requests come at 0, 0.5, 1, 1.5 and 2 s: four in the 2 s after the first."""
    summary = json.loads(run(capsys, "workload", "prompt=100 output=5 requests=5 arrival=rate=2", "--json")[1])

    assert (summary["duration_s"], summary["rate_per_s"]) == (2, 2)
