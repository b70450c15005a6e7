"""What a user of ``--engine vllm`` sees: verdict, pool, flags that help, the command line, the document."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonschema
import pytest

from hwcalc import plan
from tests.hwcalc.command import Capture, run

LLAMA = "meta-llama/Llama-3.1-8B"
GIB = 2**30
PARAMETERS = {
    "--max-model-len": "seq",
    "--kv-cache-dtype": "kv_dtype",
    "--tensor-parallel-size": "tp",
    "--pipeline-parallel-size": "pp",
    "--data-parallel-size": "dp",
}


def document(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON document."""
    code, out, _ = run(capsys, *words, "--engine", "vllm", "--json")
    return code, json.loads(out)


def test_a_gpu_that_is_too_small(capsys: Capture) -> None:
    """Exit code 1; the document is valid, and pool, verdict and budget are there with their definitions."""
    schema = json.loads(run(capsys, "schema", "plan")[1])
    code, told = document(capsys, LLAMA, "--gpu", "l4")

    jsonschema.Draft202012Validator(schema).validate(told)
    assert code == 1
    assert told["pool"]["definition"] == "engine"
    assert (told["fit"]["fits"], told["fit"]["gpu"]) == (False, "l4")
    budget = told["fit"]["budget"]
    assert budget["expected"] == budget["requested_bytes"] - sum(part["expected"] for part in budget["parts"])
    assert budget["low"] < budget["expected"] < budget["high"]
    assert all(part["source"] for part in budget["parts"])


@pytest.mark.parametrize("gpu", ["l4", "t4", "a10"])
def test_each_change_that_is_offered_helps(capsys: Capture, gpu: str) -> None:
    """Pasted as it stands it fits, and vLLM's own flags for it stand beside it; a number holds at the low end of the budget."""
    fit = plan(LLAMA, engine="vllm", gpu=gpu, seq=131_072).fit

    assert fit is not None
    assert fit.suggestions
    for one in fit.suggestions:
        code, out, _ = run(capsys, *shlex.split(one.command)[1:], "--json")
        told = json.loads(out)
        assert code == 0, one
        assert told["fit"]["verdict"] == "fits"
        flags = dict(zip(one.flag.split()[::2], one.flag.split()[1::2], strict=False))
        assert all(str(told["request"][PARAMETERS[flag]]) == value for flag, value in flags.items() if flag in PARAMETERS)


def test_too_few_blocks_for_the_states_of_all_requests(capsys: Capture) -> None:
    """A block of Qwen3-Next is 12 pages of 1,179,648 B: 10 GiB hold 758, and 1,024 requests need one each for their states."""
    blocks = 10 * GIB // (12 * 1_179_648)
    words = ["Qwen/Qwen3-Next-80B-A3B-Instruct", "--seq", "32k", "--kv-memory", "10GiB"]
    code, told = document(capsys, *words)

    assert (code, told["pool"]["blocks"], told["fit"]["limiting"]) == (0, blocks, "state blocks")
    assert told["fit"]["suggestions"][0]["flag"] == f"--max-num-seqs {blocks}"
    assert f"vLLM will start with --max-num-seqs {blocks}" in run(capsys, *words, "--engine", "vllm")[1]
    _, limited = document(capsys, *words, "--engine-option", f"max_num_seqs={blocks}")
    assert told["fit"]["suggestions"][0]["command"].endswith(
        f"--engine vllm --kv-memory 10GiB --engine-option max_num_seqs={blocks}"
    )
    assert limited["fit"]["suggestions"] == []


def test_weights_in_the_command_line(capsys: Capture) -> None:
    """VLLM makes fp8 of plain weights as it loads them; of AWQ it needs a published checkpoint."""
    words = [LLAMA, "--engine", "vllm", "--seq", "8k", "--kv-memory", "8GiB", "--emit", "vllm"]

    assert "--quantization fp8" in run(capsys, *words, "--weights", "fp8")[1]
    assert "--dtype float16" in run(capsys, *words, "--weights", "fp16")[1]
    assert run(capsys, *words, "--weights", "awq")[0] == 2


def test_the_command_line_of_the_plan(capsys: Capture) -> None:
    """Every choice is a flag of ``vllm serve``."""
    words = [LLAMA, "--engine", "vllm", "--seq", "32k", "--dtype", "fp8", "--tp", "2", "--kv-memory", "8GiB", "--emit", "vllm"]
    _, out, _ = run(capsys, *words, "--engine-option", "enable_prefix_caching=false", "--engine-option", "block_size=32")

    assert out.split() == [
        *("vllm", "serve", LLAMA, "--max-model-len", "32768", "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "2"),
        *("--kv-cache-memory-bytes", str(8 * GIB), "--no-enable-prefix-caching", "--block-size", "32"),
    ]


def test_explain_shows_the_groups(capsys: Capture) -> None:
    """gpt-oss-20b: 12 windowed and 12 full layers in two groups, 32,768 B a page."""
    _, out, _ = run(capsys, "explain", "openai/gpt-oss-20b", "--engine", "vllm", "--seq", "32k")

    assert "groups that share the pool" in out
    assert f"{12 * 32_768:,} B a block" in out
    _, told = document(capsys, "explain", "openai/gpt-oss-20b", "--seq", "32k")
    assert [(group["count"], group["page_bytes"], group["block_size"]) for group in told["cache"]["groups"]] == [
        (12, 32_768, 16)
    ] * 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--gpu", "no-such-gpu"], 2),
        (["--tp", "3"], 2),
        (["--tp", "0"], 2),
        (["--memory-utilization", "1.5"], 2),
        (["--kv-memory", "-1"], 2),
        (["--dtype", "q8_0"], 2),
        (["--dtype", "fp8_ds_mla"], 3),
        (["--gpu", "apple-m4"], 3),
        (["--gpu", "p100-pcie-16gb"], 3),
        (["--gpu", "l4", "--tp", "8", "--gpus", "2"], 2),
        (["--gpu", "l4", "--ep", "7"], 2),
    ],
)
def test_wrong_use(capsys: Capture, words: list[str], code: int) -> None:
    """The error has a message and the documented exit code."""
    status, told = document(capsys, LLAMA, *words)

    assert status == code
    assert told["error"]["hint"]


def test_what_needs_a_gpu_says_so(capsys: Capture) -> None:
    """Options that need a GPU are not dropped silently."""
    _, out, _ = run(capsys, LLAMA, "--seq", "1k", "--memory-utilization", "0.8", "--margin", "3%")

    assert "--memory-utilization, --margin: no effect without a GPU" in out


def test_the_fullest_gpu_holds_its_share() -> None:
    """8 key/value heads over 16 ranks: each keeps one, so that a rank has an eighth, and all ranks together twice the whole."""
    whole = plan(LLAMA, engine="vllm", seq=4_096).cache
    shared = plan(LLAMA, engine="vllm", seq=4_096, tp=16).cache

    assert whole.per_gpu_bytes == whole.total_bytes
    assert shared.per_gpu_bytes * 8 == whole.total_bytes
    assert shared.total_bytes == 2 * whole.total_bytes


def test_a_batch_that_does_not_fit_at_once_is_no_failed_start(capsys: Capture) -> None:
    """131,072 B a token: 2 GiB hold one sequence of 8,192 tokens (1 GiB) beside the null block. It starts, and the rest waits."""
    words = [LLAMA, "--engine", "vllm", "--seq", "8k", "--kv-memory", "2GiB", "--users", "2"]
    code, out, _ = run(capsys, *words)

    assert code == 1
    assert "vLLM will start, but holds 1 of 2 sequences at once" in out


def test_a_command_line_that_would_fail_says_so(capsys: Capture) -> None:
    """The command goes to standard output, the verdict and what helps to standard error."""
    code, out, err = run(capsys, LLAMA, "--engine", "vllm", "--gpu", "l4", "--emit", "vllm")

    assert (code, out) == (1, f"vllm serve {LLAMA} --max-model-len 131072\n")
    assert "will not start" in err
    assert f"try kvplan {LLAMA} --seq 18336 --engine vllm --gpu l4" in err


def test_an_override_beyond_memory_is_told(capsys: Capture) -> None:
    """VLLM's check accepts an override that is too large, but its allocation fails; a note says so."""
    _, out, _ = run(capsys, LLAMA, "--engine", "vllm", "--gpu", "l4", "--engine-option", "num_gpu_blocks_override=1000000")

    assert "the allocation runs out of memory" in " ".join(out.split())


def test_a_quantised_name_without_its_format_has_no_budget(capsys: Capture) -> None:
    """The config of NVIDIA's FP8 Nemotron-3-Ultra does not say how the weights are kept: no verdict rather than a wrong one."""
    _, told = document(
        capsys, "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8", "--gpu", "h200-sxm-141gb", "--tp", "8", "--seq", "8k"
    )

    assert (told["pool"], told["fit"]) == (None, None)
    assert any("--kv-memory" in note["message"] for note in told["notes"])


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "number_bytes"),
    [
        ("Qwen/Qwen3-0.6B", "t4", "fp16", 2),
        ("Qwen/Qwen3-0.6B", "l4", "bf16", 2),
        ("google/gemma-3-1b-it", "t4", "fp32", 4),
        ("google/gemma-3-1b-it", "l4", "bf16", 2),
    ],
)
def test_a_gpu_without_bfloat16(model: str, gpu: str, dtype: str, number_bytes: int) -> None:
    """``_resolve_auto_dtype`` takes float16 below compute capability 8.0, and float32 for the models that float16 does not suit."""
    planned = plan(model, engine="vllm", gpu=gpu, seq=2048)
    assert planned.fit is not None
    assert planned.fit.budget is not None
    weights = next(part.expected for part in planned.fit.budget.parts if part.name == "weights")

    assert planned.request.kv_dtype == dtype
    assert weights // (planned.model.parameters.total or 1) in {number_bytes, number_bytes - 1}
    assert ("no-bfloat16" in {note.code for note in planned.notes}) is (gpu == "t4")


def test_a_number_of_sequences_is_no_flag_of_the_engine() -> None:
    """Neither the advice nor the command line says ``--max-num-seqs`` for what is planned to be held at once."""
    planned = plan("Qwen/Qwen3-8B", engine="vllm", gpu="h100", seq=32768, batch=20)
    assert planned.fit is not None
    fewer = [one for one in planned.fit.suggestions if "at once instead of 20" in one.effect]

    assert fewer
    assert all("--max-num-seqs" not in one.flag for one in fewer)
