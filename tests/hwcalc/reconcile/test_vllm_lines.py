"""What reconcile reads of vLLM's logs beside sizes: counts to the block, eager mode, kernels, sleep mode, and what it did not read."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.reconcile import reconcile
from hwcalc.reconcile.result import about_memory
from hwcalc.report.reconcile import reconcile_text, verdict
from hwcalc.report.view import View
from tests.hwcalc.reconcile.logs import GIB, LLAMA, figures

_HEAD: Final = "Initializing a V1 LLM engine (v{}) with config: max_seq_len=8192, enforce_eager={}\n"


@pytest.mark.parametrize(
    ("budget", "blocks", "tokens", "within"),
    [
        # 2 MiB a block: 8 GiB hold 4,096 blocks, and two decimals leave 2.56 blocks open either way.
        ("8.00", 4096, 65_536, True),
        ("8.00", 4098, 65_568, True),
        ("8.00", 4094, 65_504, True),
        ("8.00", 4099, 65_584, False),
        ("8.00", 4092, 65_472, False),
        ("8.00", 4000, 64_000, False),
    ],
)
def test_counts_match_to_the_block(budget: str, blocks: int, tokens: int, within: bool) -> None:
    """One block beyond what rounding leaves open is a difference, whatever its share and the tolerance."""
    text = (
        "Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=1024\n"
        f"Available KV cache memory: {budget} GiB\n# GPU blocks: {blocks}\nGPU KV cache size: {tokens:,} tokens\n"
    )
    found = reconcile(LLAMA, text, tolerance="50%")

    assert found.within is within
    assert figures(found)["blocks"].within is figures(found)["tokens"].within is within


@pytest.mark.parametrize(("blocks", "within"), [(512, True), (513, False), (511, False)])
def test_a_budget_in_bytes_leaves_nothing_open(blocks: int, within: bool) -> None:
    """1 GiB in bytes are 512 blocks of 2 MiB, and no other number."""
    text = f"non-default args: {{'kv_cache_memory_bytes': {GIB}, 'max_model_len': 1024}}\nnum_gpu_blocks is: {blocks}\n"

    assert reconcile(LLAMA, text, tolerance="50%").within is within


@pytest.mark.parametrize(("tokens", "within"), [(446_704, True), (446_688, False), (446_720, False)])
def test_the_logs_own_blocks_say_its_tokens(tokens: int, within: bool) -> None:
    """27,919 blocks of 16 tokens are 446,704: what the rounding of the budget leaves open is no excuse for another count."""
    text = (
        "Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=1024\nAvailable KV cache memory: 54.53 GiB\n"
        f"num_gpu_blocks is: 27919\nGPU KV cache size: {tokens:,} tokens\n"
    )
    found = reconcile(LLAMA, text, tolerance="5%")
    rows = figures(found)

    assert (rows["blocks"].within, rows["tokens"].within) == (True, within)
    assert (rows["tokens"].predicted, rows["tokens"].low, rows["tokens"].high) == (446_704,) * 3
    # The blocks are held to the budget, and not to themselves.
    assert rows["blocks"].low < 27_919 < rows["blocks"].high
    said = "agrees: 2 of 2" if within else "differs: tokens (must match exactly) (1 of 2"
    assert verdict(found).startswith(said)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_count_that_no_blocks_give(ranks: int) -> None:
    """893,400 tokens lie in the range and are no multiple of 16, whether or not each rank says its memory."""
    text = "Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=1024, tensor_parallel_size=2\n"
    text += "".join(f"(Worker_TP{rank} pid=1{rank}) INFO Available KV cache memory: 54.53 GiB\n" for rank in range(ranks))
    right, wrong = (
        reconcile(LLAMA, f"{text}GPU KV cache size: {tokens:,} tokens\n", tolerance="5%") for tokens in (893_408, 893_400)
    )

    assert (right.within, wrong.within) == (True, False)
    assert figures(wrong)["tokens"].predicted in (893_392, 893_408)


def test_the_range_of_a_rounded_budget_is_shown() -> None:
    """A count that differs by two blocks and agrees has its range beside it."""
    text = _HEAD.format("0.33.0", "False") + "Available KV cache memory: 8.00 GiB\n# GPU blocks: 4098\n"
    shown = reconcile_text(reconcile(LLAMA, text), View(width=120, quiet=True))

    assert "4,093 to 4,098" in shown


def test_ranks_that_do_not_all_say() -> None:
    """Of four ranks one states its memory, and another may have less: the tolerance stays."""
    head = "Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=1024, tensor_parallel_size=4\n"
    stated = "(Worker_TP{0} pid=1{0}) INFO Available KV cache memory: 2.00 GiB\n"
    count = "(EngineCore pid=1) INFO GPU KV cache size: 65,280 tokens\n"

    assert reconcile(LLAMA, head + stated.format(0) + count).within
    assert not reconcile(LLAMA, head + "".join(stated.format(rank) for rank in range(4)) + count).within


@pytest.mark.parametrize(("eager", "graphs"), [("True", False), ("False", True)])
def test_eager_mode(eager: str, graphs: bool) -> None:
    """``enforce_eager=True`` in the engine's arguments: no graphs come off the pool, and the plan's input says why."""
    found = reconcile(
        LLAMA,
        _HEAD.format("0.33.0", eager)
        + "CUDA graph pool memory: 0.40 GiB (actual), 0.38 GiB (estimated)\nAvailable KV cache memory: 40.00 GiB\n",
        gpu="h100",
    )
    inputs = {one.name: (one.value, one.source, one.line) for one in found.inputs}

    assert ("CUDA graphs" in figures(found)) is graphs
    assert inputs.get("engine_options.enforce_eager") == (None if graphs else ("true", "log", 1))


def test_graphs_of_0_20() -> None:
    """0.20 estimates graphs and takes them off the pool; 0.19 prints the same line and does not."""
    lines = "Estimated CUDA graph memory: 0.36 GiB total\nAvailable KV cache memory: 55.00 GiB\n"
    newer, older = (reconcile(LLAMA, _HEAD.format(version, "False") + lines, gpu="h100") for version in ("0.20.0", "0.19.1"))

    assert figures(newer)["CUDA graphs"].reported == round(0.36 * GIB)
    assert "CUDA graphs" not in figures(older)


def test_num_gpu_blocks_is() -> None:
    """The front end's line gives blocks; one number for several engines together does not."""
    text = _HEAD.format("0.33.0", "False") + "Available KV cache memory: 8.00 GiB\n"
    one = "(APIServer pid=1) INFO Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: {}\n"
    several = "(APIServer pid=1) INFO 2 Engines: vllm cache_config_info with initialization after num_gpu_blocks is: 8192\n"
    tokens = "GPU KV cache size: 65,536 tokens\n"

    assert figures(reconcile(LLAMA, text + one.format(4096)))["blocks"].reported == 4096
    assert not reconcile(LLAMA, text + one.format(4100)).within
    assert "blocks" not in figures(reconcile(LLAMA, text + several + tokens))


def test_sleep_mode() -> None:
    """Its lines are facts; torch does not see the memory of its allocator, so that memory outside torch is not compared."""
    text = _HEAD.format("0.27.0", "False") + (
        "Available KV cache memory: 11.06 GiB\n"
        "Free memory on device (21.83/22.06 GiB) on startup. Desired GPU memory utilization is (0.8, 17.65 GiB). Actual usage is 8.28 GiB "
        "for weight, 1.02 GiB for peak activation, -3.58 GiB for non-torch memory, and 0.68 GiB for CUDAGraph memory.\n"
        "CuMemAllocator: sleep freed 19.51 GiB memory in total, of which 8.39 GiB is backed up in CPU and the rest 11.12 GiB is discarded "
        "directly.\nSleep mode freed 20.53 GiB memory, 1.15 GiB memory is still in use.\n"
    )
    found = reconcile(LLAMA, text, gpu="a10g", tolerance="99%")
    stated = {fact.name: fact.value for fact in found.facts}

    assert stated["sleep_backup_bytes"] == round(8.39 * GIB)
    assert stated["sleep_discarded_bytes"] == round(11.12 * GIB)
    assert stated["sleep_freed_bytes"] == round(20.53 * GIB)
    assert stated["sleep_kept_bytes"] == round(1.15 * GIB)
    assert stated["weights_bytes"] == round(8.28 * GIB)
    assert "non-torch" not in figures(found)


def test_the_gpu_that_was_assumed() -> None:
    """A log names no GPU: the input says which one's rules were taken; a named one is an option."""
    text = "Available KV cache memory: 8.00 GiB\n# GPU blocks: 4096\n"
    assumed, named = ({one.name: one for one in reconcile(LLAMA, text, gpu=gpu).inputs} for gpu in (None, "l4"))

    assert (assumed["gpu"].value, assumed["gpu"].source, assumed["gpu"].line) == ("h100-sxm5-80gb", "assumed", None)
    assert (named["gpu"].value, named["gpu"].source) == ("l4", "option")


def test_a_summary_with_graphs_in_its_peak() -> None:
    """From 0.27 on "peak activation" holds the estimate of graphs: 1.44 GiB for Llama-3.1-8B on an A100, where 0.23 are computed."""
    text = (
        "Initializing a V1 LLM engine (v0.31.0) with config: max_seq_len=131072\nModel loading took 15.0 GiB memory and 5.4 seconds\n"
        "Available KV cache memory: 56.21 GiB\nGPU KV cache size: 460,496 tokens, Maximum concurrency for 131,072 tokens per request: "
        "3.51x\nFree memory on device (78.84/79.25 GiB) on startup. Desired GPU memory utilization is (0.92, 72.91 GiB). Actual usage is "
        "15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory.\n"
    )
    found = reconcile(LLAMA, text, gpu="a100-sxm4-80gb")

    assert [row.name for row in found.rows if not row.within] == []
    assert {"activation peak", "consumed", "available", "tokens", "concurrency"} <= set(figures(found))


def test_lines_that_were_not_understood() -> None:
    """They are counted, and listed on demand: only those about memory, at most 100, cut, without secrets."""
    text = _HEAD.format("0.33.0", "False") + "Available KV cache memory: 8.00 GiB\n# GPU blocks: 4096\n"
    text += "Swapped 3 GiB to the moon with api_key=verysecretindeed and hf_abcdefghijklmn\nHello, world\n"
    text += "One more block of memory " + "x" * 500 + "\n"
    quiet, loud = (reconcile(LLAMA, text + "unread memory\n" * more, verbose=more > 0) for more in (0, 200))

    assert (quiet.unread, quiet.unread_lines) == ((), 2)
    assert (len(loud.unread), loud.unread_lines) == (100, 202)
    assert [one.line for one in loud.unread[:2]] == [4, 6]
    assert loud.unread[0].text == "Swapped 3 GiB to the moon with api_key=*** and ***"
    assert len(loud.unread[1].text) == 200


@pytest.mark.parametrize(
    ("kernel", "block"),
    # Qwen3-Next: 576 tokens and three states with FlashInfer's kernel, which an H100 has; 544 and two without.
    [("", 576), ("Using FlashInfer GDN prefill kernel\n", 576), ("Using Triton/FLA GDN prefill kernel\n", 544)],
)
def test_the_kernel_of_gated_delta_nets(kernel: str, block: int) -> None:
    """The log's line says which kernel runs the prefill, and so which rules hold for its states."""
    text = _HEAD.format("0.33.0", "False") + kernel + f"Setting attention block size to {block} tokens to ensure that\n"
    found = reconcile("Qwen/Qwen3-Next-80B-A3B-Instruct", text)

    assert figures(found)["attention block"].predicted == block
    assert found.within
    stated = {one.name: (one.value, one.source) for one in found.inputs}.get("engine_options.gdn_prefill_backend")
    assert stated == ({"": None, "U": ("triton" if "Triton" in kernel else "flashinfer", "log")}[kernel[:1]])


def test_the_time_of_a_start_is_not_about_memory() -> None:
    """vllm/v1/engine/core.py, which says how long it took."""
    line = "(EngineCore_DP0 pid=9) INFO 11-02 10:00:00 [core.py:218] init engine (profile, create kv cache, warmup model) took 41.94 seconds"
    assert not about_memory(line)
