"""``kvplan tune``: table, document, exit status, and replays in other processes."""

from __future__ import annotations

import csv
import io
import json
from re import search

import jsonschema
import pytest

from hwcalc.report.schema import json_schema
from tests.hwcalc.command import Capture, run

LINE = (
    "tune", "Qwen/Qwen3-8B", "--gpu", "l4", "--seq", "8k", "--dtype", "auto", "--engine-option", "max_num_batched_tokens=2048",
    "--trace", "prompt=p50=1k,p95=4k,max=7k output=20 arrival=poisson=0.5 requests=40", "--compare", "max_num_seqs=default,2,4",
)  # fmt: skip


def test_all_formats_have_the_same_numbers(capsys: Capture) -> None:
    """The document has its schema, and the table its figures; two processes give the same."""
    status, out, _ = run(capsys, *LINE, "--ttft", "2s", "--json")
    document = json.loads(out)
    table = run(capsys, *LINE, "--ttft", "2s")[1]
    rows = list(csv.DictReader(io.StringIO(run(capsys, *LINE, "--ttft", "2s", "--format", "csv")[1])))

    assert status == 0
    jsonschema.Draft202012Validator(json_schema("tune")).validate(document)
    assert document["searched"]["max_num_seqs"] == ["default", "2", "4"]
    assert f"best: {document['best'][0]['goodput_per_gpu']:,.3g} requests a second of each GPU" in table
    assert f"start: {document['command']}\n" in table
    assert f"as much as {document['work']:,.3g} replays of all requests (--budget 64" in " ".join(table.split())
    for trial, row in zip(document["best"], rows, strict=True):
        line = next(line for line in table.splitlines() if line.startswith(trial["changed"].get("max_num_seqs", "default")))
        assert f"{trial['goodput_per_gpu']:,.3g}/s" in line
        assert f"{100 * trial['traffic']['goodput']['share']:.1f} %" in line
        assert float(row["goodput_per_gpu"]) == trial["goodput_per_gpu"]
    assert json.loads(run(capsys, *LINE, "--ttft", "2s", "--json", "--workers", "2")[1]) == document


def test_a_seed_is_another_workload(capsys: Capture) -> None:
    """Another seed gives other requests, and other numbers."""
    first, other = (json.loads(run(capsys, *LINE, "--ttft", "2s", "--json", *more)[1]) for more in ((), ("--seed", "1")))

    assert first["best"][0]["goodput_per_gpu"] != other["best"][0]["goodput_per_gpu"]


def test_nothing_holds(capsys: Capture) -> None:
    """Exit status 1, and the nearest miss with how far it is from the limits."""
    status, out, _ = run(capsys, *LINE, "--ttft", "10ms")

    assert status == 1
    nearest = "nothing holds; the nearest has 0.0 % of the requests within the limits; at p95, the longest time is"
    assert nearest in " ".join(out.split())
    assert "too slow for one request alone" in " ".join(out.split())
    assert "\nnearest: vllm serve Qwen/Qwen3-8B" in out


def test_few_and_large_numbers_are_words_of_their_own(capsys: Capture) -> None:
    """One replay is left, and a time of some 0.1 s is more than ten thousand times 1 us, without a power of ten.

    32 heads do not divide by 3, so that tp 3 is named as what was not searched.
    """
    line = [
        "tune", "Qwen/Qwen3-8B", "--gpu", "3xl4", "--seq", "4k", "--dtype", "auto", "--compare", "tp=3,1", "--compare", "dp=1",
        "--engine-option", "max_num_batched_tokens=2048", "--engine-option", "max_num_seqs=8",
        "--trace", "prompt=1k output=2 requests=1", "--ttft", "1us",
    ]  # fmt: skip
    status, out, _ = run(capsys, *line)
    said = " ".join(out.split())

    assert status == 1
    assert "as much as 1 replay of all requests (--budget 64" in said
    assert "note: tp 3 was not searched: the model cannot be split so, or it takes more GPUs than are named." in said
    assert search(r"the longest time is \d{2,3},\d{3} times its limit", said)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "no limit of time is given"),
        (("--ttft", "soon"), 2, "ttft"),
        (("--ttft", "2s", "--share", "200%"), 2, "share is 2"),
        (("--ttft", "2s", "--workers", "0"), 2, "workers"),
        (("--ttft", "2s", "--compare", "max_num_seqs"), 2, "no setting with its values"),
        (("--ttft", "2s", "--engine", "mlx"), 3, "no rules of mlx's scheduler"),
    ],
)
def test_what_is_refused(capsys: Capture, words: tuple[str, ...], status: int, said: str) -> None:
    """What was given, and what would do."""
    ended, _, error = run(capsys, *LINE, *words)

    assert ended == status
    assert said in error


def test_requests_that_every_setting_refuses(capsys: Capture) -> None:
    """They are said, since no setting is to blame: prompts of 9k tokens where a sequence has 8k."""
    line = [word.replace("p50=1k,p95=4k,max=7k", "9k") for word in LINE]
    status, out, _ = run(capsys, *line, "--ttft", "90s", "-q")

    assert status == 1
    assert "warning: 40 requests were refused" in out


def test_nothing_starts(capsys: Capture) -> None:
    """141 GB of weights on 24: exit status 1, and what would do."""
    line = ("tune", "meta-llama/Llama-3.1-70B", "--gpu", "l4", "--trace", "prompt=100 output=2 requests=1", "--ttft", "2s")
    status, _, error = run(capsys, *line)

    assert status == 1
    assert "leaves no memory for blocks on this hardware" in error


def test_workers_are_for_several_replays(capsys: Capture) -> None:
    """A single replay takes none."""
    line = ("simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--step-time", "25ms", "--trace", "prompt=500 output=20 requests=9")
    status, _, error = run(capsys, *line, "--workers", "2")

    assert (status, "--workers is for several replays" in error) == (2, True)


@pytest.mark.parametrize(
    ("engine", "settings", "flags", "unsaid"),
    [
        # server_args.py of SGLang 0.5.23; whether a request ignores its stop token is one of its own sampling parameters.
        (
            "sglang",
            {
                "chunked_prefill_size": "2048",
                "schedule_conservativeness": "0.3",
                "enable_mixed_chunk": "true",
                "ignore_eos": "true",
            },
            ["--schedule-conservativeness 0.3", "--enable-mixed-chunk"],
            "ignore_eos=true",
        ),
        # vllm/engine/arg_utils.py of vLLM 0.33.
        (
            "vllm",
            {"max_num_batched_tokens": "2048", "policy": "priority", "watermark": "0.01", "scheduler_reserve_full_isl": "false"},
            ["--scheduling-policy priority", "--watermark 0.01", "--no-scheduler-reserve-full-isl"],
            "",
        ),
        # common/arg.cpp of llama.cpp.
        (
            "llamacpp",
            {"n_ubatch": "512", "cache_ram_mib": "0", "cont_batching": "false"},
            ["-cram 0", "--no-cont-batching"],
            "",
        ),
    ],
)
def test_the_command_has_the_scheduler_s_flags(
    capsys: Capture, engine: str, settings: dict[str, str], flags: list[str], unsaid: str
) -> None:
    """The line ``start`` has what was searched of the scheduler; what no flag says is told with ``--quiet`` too."""
    users = {"sglang": "max_running_requests", "vllm": "max_num_seqs", "llamacpp": "n_seq_max"}[engine]
    words = [word for name, value in {users: "4", **settings}.items() for word in ("--compare", f"{name}={value}")]
    dtype = "f16" if engine == "llamacpp" else "auto"
    line = ("tune", "Qwen/Qwen3-8B", "--engine", engine, "--gpu", "l40s", "--seq", "2k", "--dtype", dtype, "--ttft", "60s", "-q")
    out = run(capsys, *line, "--trace", "prompt=100 output=5 requests=4", *words)[1]

    (start,) = (text for text in out.splitlines() if text.startswith("start: "))
    assert [flag for flag in flags if f" {flag} " in f"{start} "] == flags
    note = "note: The command does not have what bears on the scheduler alone: "
    assert [text.removeprefix(note) for text in out.splitlines() if text.startswith(note)] == ([f"{unsaid}."] if unsaid else [])
