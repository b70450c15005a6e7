"""``kvplan simulate``: table, documents, files and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

import hwcalc
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import Capture, run

WORDS = "prompt=500 output=200 requests=20"
LINE = ("simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--step-time", "25ms", "--trace", WORDS)


def test_all_formats_have_the_same_numbers(capsys: Capture) -> None:
    """The document is that of the library and has its schema; the row of CSV has its figures."""
    status, out, _ = run(capsys, *LINE, "--json")
    document = json.loads(out)
    (row,) = csv.DictReader(io.StringIO(run(capsys, *LINE, "--format", "csv")[1]))

    assert status == 0
    jsonschema.Draft202012Validator(json_schema("simulate")).validate(document)
    assert document == hwcalc.simulate("Qwen/Qwen3-8B", WORDS, blocks=600, step_time="25ms").to_dict()
    assert (document["requests"], document["finished"], document["clock"]) == (20, 20, "seconds")
    assert row["preemptions"] == str(document["totals"]["preemptions"])
    assert float(row["ttft_p95"]) == document["ttft"]["p95"]


def test_times_follow_from_steps(capsys: Capture) -> None:
    """One prompt of 500 tokens: the first token is there after one step of 25 ms, 199 more after as many, with or without async scheduling."""
    for flag in ("true", "false"):
        line = (*LINE[:-1], "prompt=500 output=200 requests=1", "--engine-option", f"async_scheduling={flag}", "--json")
        document = json.loads(run(capsys, *line)[1])

        assert document["ttft"]["max"] == pytest.approx(0.025)
        assert document["itl"]["mean"] == pytest.approx(0.025)
        assert document["e2e"]["max"] == pytest.approx(0.025 * 200)
        assert document["throughput"]["output_tokens_per_s"] == pytest.approx(40)


def test_limits_and_table(capsys: Capture) -> None:
    """Goodput is what comes within all limits: nothing within a step and a half if two steps are needed."""
    _, out, _ = run(capsys, *LINE, "--ttft", "60ms", "--itl", "1s")
    _, none, _ = run(capsys, *LINE, "--e2e", "4s")

    assert "within limits: " in out
    assert "(first token 60 ms, each further token 1 s)" in out
    assert "within limits: 0.0 % of the requests (whole answer 4 s)" in none


def test_rows_as_files(capsys: Capture, tmp_path: Path) -> None:
    """A row for each step and for each request, which are those of the library."""
    steps, requests = tmp_path / "steps.csv", tmp_path / "requests.csv"
    run(capsys, *LINE, "--steps-csv", str(steps), "--requests-csv", str(requests))
    simulation = hwcalc.simulate("Qwen/Qwen3-8B", WORDS, blocks=600, step_time=0.025)
    with steps.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)

    assert tuple(header) == simulation.columns
    assert [tuple(map(int, row)) for row in rows] == simulation.steps
    with requests.open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    assert [int(row["finished"]) for row in listed] == [row[2] for row in simulation.requests]
    assert [float(row["e2e"]) for row in listed] == [record["e2e"] for record in simulation.records()]


def test_a_picture(capsys: Capture, tmp_path: Path) -> None:
    """A picture has the format of its suffix, and is drawn beside the table; another suffix is refused before anything is replayed."""
    target = tmp_path / "pool.svg"
    status, out, _ = run(capsys, *LINE, "--plot", str(target))
    refused = run(capsys, *LINE, "--plot", str(tmp_path / "pool.gif"))

    assert (status, "pool: 600 blocks" in out, target.read_bytes()[:5]) == (0, True, b"<?xml")
    assert (refused[0], "--plot" in refused[2], [path.name for path in tmp_path.iterdir()]) == (2, True, ["pool.svg"])


def test_a_page(capsys: Capture, tmp_path: Path) -> None:
    """A page needs no matplotlib, and has the times and the pool of the replay."""
    target = tmp_path / "pool.html"
    status, out, _ = run(capsys, *LINE, "--plot", str(target))
    payload = json.loads(target.read_text().split('id="payload">', 1)[1].split("</script>", 1)[0])

    assert (status, "pool: 600 blocks" in out) == (0, True)
    assert max(payload["use_max"]) <= 1
    assert {len(payload[name]) for name in ("use", "use_max", "running", "waiting")} == {len(payload["times"])}


def test_settings_side_by_side(capsys: Capture) -> None:
    """A row for each combination; one that vLLM refuses has its error."""
    line = (*LINE, "--compare", "max_num_seqs=4,16", "--compare", "max_num_batched_tokens=8,512")
    status, out, _ = run(capsys, *line, "--json")
    document = json.loads(out)
    told = [setting["traffic"] and setting["traffic"]["totals"]["peak_running"] for setting in document["settings"]]

    assert status == 0
    jsonschema.Draft202012Validator(json_schema("simulate-compare")).validate(document)
    assert told == [4, 4, None, 16]
    assert "vLLM refuses that" in run(capsys, *line)[1] or "max_num_seqs=16" in document["settings"][2]["error"]


def test_a_setting_without_room_is_a_row(capsys: Capture) -> None:
    """141 GB of weights leave nothing of an 80 GB GPU, but of four: a row with its error; alone the exit status is 1."""
    line = ("simulate", "meta-llama/Llama-3.1-70B", "--gpu", "h100", "--trace", "prompt=100 output=2 requests=1")
    status, out, _ = run(capsys, *line, "--compare", "tp=1,4", "--json")

    assert (status, [setting["traffic"] is None for setting in json.loads(out)["settings"]]) == (0, [True, False])
    assert run(capsys, *line)[0] == 1


def test_rows_on_standard_output(capsys: Capture) -> None:
    """- is standard output: a row for each request and nothing else."""
    status, out, _ = run(capsys, *LINE, "--requests-csv", "-")

    assert (status, out.partition(",")[0]) == (0, "request")
    assert len(list(csv.DictReader(out.splitlines()))) == len(hwcalc.simulate("Qwen/Qwen3-8B", WORDS, blocks=600).requests)


def test_a_trace_may_not_know_its_prefixes(capsys: Capture, tmp_path: Path) -> None:
    """A table of lengths says nothing of prefixes, so that what the cache holds is not known."""
    trace = tmp_path / "lengths.csv"
    trace.write_text("arrival,prompt,output\n0,100,5\n1,200,5\n", encoding="utf-8")
    out = run(capsys, *LINE[:-1], str(trace))[1]

    assert "prefix cache: not known" in out
    assert "does not say what prompts have in common" in " ".join(out.split())


def test_a_request_that_is_too_long_or_never_fits(capsys: Capture) -> None:
    """Both are warnings, and exit status 1."""
    status, out, _ = run(capsys, *LINE[:-1], "prompt=50k output=2 requests=1")
    assert (status, "1 request was refused, as all are that do not fit" in out) == (1, True)
    # Nothing was served: there is no table without rows.
    assert "p50" not in out
    line = ("simulate", "Qwen/Qwen3-8B", "--blocks", "20", "--step-time", "25ms", "--trace", "prompt=500 output=2 requests=1")
    status, out, _ = run(capsys, *line)
    assert (status, "never serve" in out) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--blocks", "600", "--clock", "seconds"), "no hardware is given"),
        (("--blocks", "600", "--ttft", "2s"), "limits of time need steps that take time"),
        (("--step-time", "25ms"), "needs the blocks of a pool"),
        (("--step-time", "soon", "--blocks", "9"), "--step-time is"),
        (("--step-time", "25ms", "--blocks", "9", "--clock", "steps"), "a clock of steps knows no step_time"),
        (("--step-time", "25ms", "--blocks", "9", "--route", "best"), "route is"),
        (("--step-time", "25ms", "--blocks", "9", "--compare", "tp"), "no setting with its values"),
        (("--step-time", "25ms", "--blocks", "9", "--compare", "max_num_seqs=4,abc"), "max_num_seqs is not a number"),
        (("--step-time", "25ms", "--blocks", "9", "--compare", "foo=1,2"), "'foo' is not known to vllm"),
        (("--step-time", "25ms", "--blocks", "9", "--steps-csv", "-", "--requests-csv", "-"), "two tables on standard output"),
        (("--step-time", "25ms", "--blocks", "9", "--engine", "mlx"), "no rules of mlx's scheduler"),
        (("--step-time", "25ms", "--blocks", "9", "--engine-option", "policy=lifo"), "Allowed: fcfs, priority"),
        (("--step-time", "25ms", "--blocks", "9", "--engine-option", "watermark=2"), "is no share"),
    ],
)
def test_what_is_refused(capsys: Capture, words: tuple[str, ...], said: str) -> None:
    """What was given, and what would do."""
    status, _, error = run(capsys, "simulate", "Qwen/Qwen3-8B", "--trace", WORDS, *words)

    assert status == (3 if "mlx" in words else 2)
    assert said in error


def test_steps_are_counted_where_nothing_says_how_long_they_take(capsys: Capture) -> None:
    """Two requests a second are one every 20 steps; the first token is there after one."""
    line = ("simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--trace", "prompt=100 output=5 arrival=rate=2 requests=3")
    document = json.loads(run(capsys, *line, "--json")[1])

    assert (document["clock"], document["totals"]["last_iteration"]) == ("steps", 40 + 4)
    assert document["ttft"]["max"] == 1
    assert "steps are counted, 40 for a second" in run(capsys, *line)[1]


def test_no_trace_is_named(capsys: Capture) -> None:
    """The words are said."""
    status, _, error = run(capsys, "simulate", "Qwen/Qwen3-8B")

    assert (status, "--trace" in error) == (2, True)


def test_a_route_of_a_single_server_is_said_to_do_nothing(capsys: Capture) -> None:
    """With two servers there is something to choose."""
    line = ("simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--step-time", "25ms", "--trace", WORDS, "--route", "prefix")

    assert "note: A single server gets all requests: route prefix has nothing to choose from." in run(capsys, *line)[1]
    assert "A single server" not in run(capsys, *line, "--replicas", "2")[1]


def test_a_manifest_is_neither_a_trace_nor_a_model(capsys: Capture, tmp_path: Path) -> None:
    """It is called what it is, however deeply it is nested."""
    file = tmp_path / "k8s.yaml"
    file.write_text("apiVersion: apps/v1\nkind: Deployment\nspec: " + "{a: " * 20 + "1" + "}" * 20 + "\n")
    status, _, error = run(capsys, "simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--trace", str(file))
    assert (status, "is a manifest of servers, and no trace." in error) == (3, True)
    status, _, error = run(capsys, "simulate", str(file), "--blocks", "600", "--trace", WORDS)
    assert status != 0
    assert "is a manifest of servers, and no model.\nPlan its servers: kvplan launch FILE" in error
