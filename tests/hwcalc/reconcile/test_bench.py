"""Results of benchmarks: read in the forms that the tools write, compared with what is expected, and kept for later plans."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import LogError, UsageError
from hwcalc.planner.measured_speed import CALIBRATED
from hwcalc.reconcile.bench import DECODE, PROMPT, SERVING, read_bench
from hwcalc.reconcile.speeds import reconcile_bench

# The keys and labels are those of the tools; the numbers are round ones.
VLLM = {
    "date": "20261120-101010",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B",
    "request_rate": "inf",
    "max_concurrency": 16,
    "duration": 100.0,
    "completed": 200,
    "total_input_tokens": 200 * 1000,
    "total_output_tokens": 200 * 201,
    "request_throughput": 2.0,
    "output_throughput": 402.0,
    "mean_ttft_ms": 200.0,
    "mean_tpot_ms": 25.0,
    "mean_itl_ms": 26.0,
}
PRINTED = """
============ Serving Benchmark Result ============
Successful requests:                     200
Maximum request concurrency:             16
Benchmark duration (s):                  100.00
Total input tokens:                      200000
Total generated tokens:                  40200
Request throughput (req/s):              2.00
Output token throughput (tok/s):         402.00
Total Token throughput (tok/s):          2402.00
---------------Time to First Token----------------
Mean TTFT (ms):                          200.00
Median TTFT (ms):                        190.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          25.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           26.00
==================================================
"""
SGLANG = {**{key: value for key, value in VLLM.items() if key != "model_id"}, "backend": "sglang", "mean_e2e_latency_ms": 6000.0}
AIPERF = {
    "aiperf_version": "0.12.0",
    "request_throughput": {"avg": 2.0, "unit": "requests/sec"},
    "request_latency": {"avg": 5200.0, "unit": "ms"},
    "time_to_first_token": {"avg": 200.0, "unit": "ms"},
    "inter_token_latency": {"avg": 25.0, "unit": "ms"},
    "output_token_throughput": {"avg": 402.0, "unit": "tokens/sec"},
    "input_sequence_length": {"avg": 1000.0, "unit": "tokens"},
    "output_sequence_length": {"avg": 201.0, "unit": "tokens"},
    "input_config": {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B"]}},
}
LLAMA_TABLE = """
| model                  |     size |  params | backend | ngl |          test |              t/s |
| ---------------------- | -------: | ------: | ------- | --: | ------------: | ---------------: |
| llama 8B Q4_K - Medium | 4.58 GiB |  8.03 B | CUDA    |  99 |         pp512 | 10000.00 ± 12.34 |
| llama 8B Q4_K - Medium | 4.58 GiB |  8.03 B | CUDA    |  99 |         tg128 |    100.00 ± 0.34 |
| llama 8B Q4_K - Medium | 4.58 GiB |  8.03 B | CUDA    |  99 | tg128 @ d4096 |     90.00 ± 0.34 |
| llama 8B Q4_K - Medium | 4.58 GiB |  8.03 B | CUDA    |  99 |   pp512+tg128 |    300.00 ± 0.34 |

build: 0123abc (1)
"""


def test_a_server_by_vllm() -> None:
    """Lengths are means, and as many are at once as arrive in the time of one: 2 a second x (0.2 + 200 x 0.025) s = 10.4."""
    (run,) = read_bench(json.dumps(VLLM))

    assert (run.tool, run.kind, run.engine, run.model) == ("vllm bench serve", SERVING, "vllm", "meta-llama/Llama-3.1-8B")
    assert (run.prompt, run.output) == (1000, 201)
    assert run.at_once == pytest.approx(10.4)
    assert run.measured == pytest.approx({"ttft_s": 0.2, "itl_s": 0.025, "output_tokens_per_s": 402})


def test_what_is_printed_is_read_as_the_json() -> None:
    """But for the model, which the tool does not print."""
    (printed,), (saved,) = read_bench(PRINTED), read_bench(json.dumps(VLLM))

    assert (printed.prompt, printed.output, printed.at_once, dict(printed.measured)) == (
        saved.prompt,
        saved.output,
        saved.at_once,
        dict(saved.measured),
    )
    assert printed.model is None


def test_a_server_by_sglang() -> None:
    """Its lines of JSON are runs, and it states the whole time: 2 a second x 6 s = 12 at once."""
    runs = read_bench(f"{json.dumps(SGLANG)}\n{json.dumps(SGLANG)}\n")

    assert [(run.tool, run.engine) for run in runs] == [("sglang.bench_serving", "sglang")] * 2
    assert runs[0].at_once == pytest.approx(12)
    assert runs[0].measured["e2e_s"] == pytest.approx(6)


def test_a_server_by_aiperf() -> None:
    """Each metric has its unit; the engine is not said."""
    (run,) = read_bench(json.dumps(AIPERF))

    assert (run.tool, run.engine, run.model) == ("aiperf", None, "meta-llama/Llama-3.1-8B")
    assert (run.prompt, run.output) == (1000, 201)
    assert run.at_once == pytest.approx(10.4)
    assert run.measured == pytest.approx({"ttft_s": 0.2, "itl_s": 0.025, "e2e_s": 5.2, "output_tokens_per_s": 402})


def test_llama_bench() -> None:
    """A table and JSON have the same tests; one of prompt and tokens together has a rate of neither, and is left out."""
    rows = [
        {"model_type": "llama 8B Q4_K - Medium", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 10000.0},
        {"model_type": "llama 8B Q4_K - Medium", "n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 100.0},
        {"model_type": "llama 8B Q4_K - Medium", "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 90.0},
    ]
    printed, saved = read_bench(LLAMA_TABLE), read_bench(json.dumps(rows))

    assert printed == saved
    assert [(run.kind, run.prompt, run.output, run.depth, run.weights) for run in printed] == [
        (PROMPT, 512, 0, 0, "q4_k_m"),
        (DECODE, 0, 128, 0, "q4_k_m"),
        (DECODE, 0, 128, 4096, "q4_k_m"),
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[1, 2", "hello", '{"completed": 1}', '{"avg_ts": "x"}', PRINTED[:300]])
def test_what_is_no_result(text: str) -> None:
    """The error lists what is read."""
    with pytest.raises(LogError, match="no result") as caught:
        read_bench(text)
    assert "llama-bench" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \n", "it is empty"),
        (json.dumps({**VLLM, "completed": 0}), "vllm bench serve that can be used: completed is 0, and no number above 0"),
        (json.dumps({**VLLM, "total_input_tokens": 1e400}), "total_input_tokens is inf"),
        (
            json.dumps(
                {key: 1e400 if key.startswith("mean") else value for key, value in VLLM.items() if key != "max_concurrency"}
            ),
            "mean_ttft_ms is inf",
        ),
        (json.dumps({**SGLANG, "completed": None}), "sglang.bench_serving that can be used: completed is None"),
        (re.sub(r"(?i)(successful requests: *)\d+", r"\g<1>0", PRINTED), "completed is '0'"),
        ('[{"n_prompt": 512, "avg_ts": 1e400}]', "llama-bench that can be used: avg_ts is inf"),
        (json.dumps({**AIPERF, "input_sequence_length": {"avg": 0}}), "aiperf that can be used: input_sequence_length is 0,"),
    ],
)
def test_the_figure_that_makes_a_result_useless_is_named(text: str, words: str) -> None:
    """With its value: an empty file, no request that was served, and a number that is none are three causes."""
    with pytest.raises(LogError, match="no result") as caught:
        read_bench(text)
    assert words in str(caught.value)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's own profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KVPLAN_NO_CALIBRATION", raising=False)
    return tmp_path


def test_a_measurement_is_kept_and_later_plans_name_it(own_folder: Path) -> None:
    """With what was kept, the same benchmark is as expected: a plan of the same load has its times, says so, and can leave it out."""
    file = own_folder / "bench.txt"
    file.write_text(LLAMA_TABLE, encoding="utf-8")
    asked: dict[str, Any] = {"gpu": "rtx-4090", "weights": "q4_k_m", "engine": "llamacpp", "offline": True}
    found = reconcile_bench("meta-llama/Llama-3.1-8B", file, calibrate=True, **asked)
    assert found.saved is not None
    assert found.decode_times is not None
    first, decode, deep = found.rows

    assert first.times == pytest.approx((first.expected or 0) / 10000)
    assert decode.times == pytest.approx((decode.expected or 0) / 100)
    # Between the two tests of tokens, which differ in their caches.
    assert min(decode.times or 0, deep.times or 0) * 0.98 <= found.decode_times <= max(decode.times or 0, deep.times or 0) * 1.02
    load: dict[str, Any] = {"seq": 128, "prompt": 64, "itl": "1s", **asked}
    calibrated, plain = (plan("meta-llama/Llama-3.1-8B", **load, no_calibration=off) for off in (False, True))
    assert calibrated.within is not None
    assert plain.within is not None
    assert calibrated.within.at_batch.itl_s.expected == pytest.approx(1 / 100, rel=0.05)
    assert [note.code for note in calibrated.notes].count(CALIBRATED) == 1
    assert CALIBRATED not in [note.code for note in plain.notes]
    assert plain.within.at_batch.itl_s.expected == pytest.approx(
        (calibrated.within.at_batch.itl_s.expected or 0) / found.decode_times, rel=0.02
    )


def test_a_figure_beyond_the_bound_is_told(own_folder: Path) -> None:
    """Nothing is faster than reading the weights: such a result is of something else, and is not kept."""
    fast = {**VLLM, "mean_tpot_ms": 0.1, "mean_itl_ms": 0.1}
    found = reconcile_bench(None, json.dumps(fast), gpu="h100-sxm5-80gb", offline=True)

    assert "itl_s" in [row.figure for row in found.rows if row.beats_bound]
    assert "beats-bound" in [note.code for note in found.notes]
    with pytest.raises(LogError, match="not kept"):
        reconcile_bench(None, json.dumps(fast), gpu="h100-sxm5-80gb", offline=True, calibrate=True)
    assert not list(own_folder.rglob("*.json"))


@pytest.mark.parametrize(
    ("text", "options", "missing"),
    [(PRINTED, {"gpu": "l4"}, "model"), (json.dumps(VLLM), {}, "accelerator"), (json.dumps(AIPERF), {"gpu": "l4"}, "engine")],
)
def test_what_the_result_does_not_say_is_asked_for(text: str, options: dict[str, str], missing: str) -> None:
    """The error says what to name."""
    with pytest.raises(UsageError, match=missing):
        reconcile_bench(None, text, offline=True, **options)  # type: ignore[arg-type]
