"""The memory equation: its arithmetic, its defaults, and what people's logs have shown of its parts."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.memory import Budget, BudgetPart
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.engines.vllm.memory import plan_budget
from hwcalc.engines.vllm.rules import VERSIONS
from hwcalc.engines.vllm.settings import (
    V0_SEQUENCES,
    batch_defaults,
    default_utilization,
    graphs_subtracted,
    runs_v0,
    v0_batch,
)
from hwcalc.errors import UsageError
from hwcalc.profiles.gpus import find_gpu, list_gpus, visible_memory
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.units import GIB, MIB
from tests.hwcalc.engines.vllm_rows import unchecked


def total_bytes(gpu: Gpu) -> int | None:
    """Bytes of memory that torch sees."""
    visible = visible_memory(gpu)
    return None if visible is None else visible.expected_bytes


def request(name: str, gpu: str | Gpu, *, version: str = "0.33", seq: int = 8192, **fields: Any) -> VllmOccupancy:
    """A request as far as the equation reads it."""
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    return unchecked(load_model(name), seq, version, {"gpu": card, **fields})


def default_batches(gpu: str | None, version: str, seq: int = 8192) -> tuple[int, int]:
    """The defaults of ``max_num_seqs`` and ``max_num_batched_tokens``; those of V0 follow from the length."""
    if runs_v0(version):
        return V0_SEQUENCES, v0_batch(seq, version)
    return batch_defaults(None if gpu is None else find_gpu(gpu), version)


def budget(name: str, gpu: str | Gpu, *, sequences: int = 256, batched_tokens: int = 2048, **fields: Any) -> Budget:
    """The budget, which must not be None. V0 has its own batches."""
    made = request(name, gpu, **fields)
    if runs_v0(made.deployment.version):
        sequences, batched_tokens = made.settings.sequences, made.settings.batched_tokens
    planned = plan_budget(made, sequences=sequences, batched_tokens=batched_tokens).value
    assert planned is not None
    return planned


def part(planned: Budget, name: str) -> BudgetPart:
    """One term by its name."""
    (found,) = (one for one in planned.parts if one.name == name)
    return found


def test_llama_on_an_l4() -> None:
    """22,558 MiB x 0.92, less weights, the rotary table, 256 rows of logits of 14 bytes, and estimates."""
    planned = budget("meta-llama/Llama-3.1-8B", "l4")

    assert planned.total_bytes == 22_558 * MIB
    assert planned.requested_bytes == ceil(22_558 * MIB * 0.92)
    assert part(planned, "weights").expected == 16_060_522_496
    assert part(planned, "rotary table").expected == 131_072 * 128 * 2
    # 256 rows and 2,048 tokens of 4,096 beside the logits; more than 2 x 2,048 x (3.75 x 4,096 + 3 x 14,336).
    sampled = 256 * 128_256 * 14 + 2 * 4096 * (2048 + 256)
    assert part(planned, "activations").expected == sampled > 2 * 2048 * (15_360 + 3 * 14_336)
    assert part(planned, "workspaces").expected == 4096 * 1024 * 2 + 16 * 1024 * 8
    assert planned.expected == planned.requested_bytes - sum(one.expected for one in planned.parts)
    assert planned.low == planned.requested_bytes - sum(one.high for one in planned.parts)
    # The most that anyone has read of an L4 is 22,589 MiB.
    assert planned.high == ceil(22_589 * MIB * 0.92) - sum(one.low for one in planned.parts)
    assert planned.low < planned.expected < planned.high


@pytest.mark.parametrize(
    ("gpu", "sequences", "tokens"),
    [
        ("h100", 1024, 8192),
        ("h200", 1024, 8192),
        ("rtx-pro-6000", 1024, 8192),
        ("gh200-144gb", 1024, 8192),
        ("b200", 1024, 16384),
        ("gb300", 1024, 16384),
        ("mi300x", 1024, 16384),
        ("a100", 256, 2048),
        ("a100-pcie", 256, 2048),
        ("l40s", 256, 2048),
        ("l4", 256, 2048),
        ("4090", 256, 2048),
        ("gb10", 256, 2048),
    ],
)
def test_batch_defaults(gpu: str, sequences: int, tokens: int) -> None:
    """Batch sizes differ for GPUs from 160 GiB, from 70 GiB except A100 and GB10, and all others."""
    assert default_batches(gpu, "0.33") == (sequences, tokens)


@pytest.mark.parametrize(
    ("gpu", "version", "seq", "sequences", "tokens"),
    [
        ("b200", "0.27", 8192, 1024, 8192),
        ("b200", "0.28", 8192, 1024, 16384),
        ("a100", "0.8", 8192, 1024, 8192),
        ("a100", "0.9", 8192, 256, 2048),
        ("gb10", "0.32", 8192, 256, 2048),
        ("h100", "0.7", 8192, 256, 8192),
        ("h100", "0.7", 512, 256, 2048),
        ("h100", "0.7", 131_072, 256, 2048),
        ("h100", "0.6.4", 131_072, 256, 512),
        ("l4", "0.8.3", 8192, 1024, 2048),
        ("l4", "0.8.4", 8192, 256, 2048),
    ],
)
def test_batch_defaults_by_version(gpu: str, version: str, seq: int, sequences: int, tokens: int) -> None:
    """The class of 160 GiB came with 0.28, the exception of the A100 with 0.9, GB10 is never one, fewer rows on small GPUs with 0.8.4; V0 takes whole prompts."""
    assert default_batches(gpu, version, seq) == (sequences, tokens)


def test_versions() -> None:
    """0.92 and graphs off the pool from 0.20.0 on, whatever its message says; 0.9 and graphs beside the pool before."""
    versions = ("0.33", "0.20.0", "0.20", "0.19.1", "0.19", "0.7")
    assert [default_utilization(version) for version in versions] == ["0.92", "0.92", "0.92", "0.9", "0.9", "0.9"]
    assert [graphs_subtracted(version) for version in versions] == [True, True, True, False, False, False]
    names = {one.name for one in budget("meta-llama/Llama-3.1-8B", "h100", version="0.19").parts}
    assert "CUDA graphs" not in names
    assert budget("meta-llama/Llama-3.1-8B", "h100", version="0.19").requested_bytes == ceil(81_082 * MIB * 0.9)


def test_totals() -> None:
    """Visible memory is what torch reported, or else a share of the tool's total or of the marketing size."""
    assert total_bytes(find_gpu("h200")) == 143_156 * MIB
    assert total_bytes(find_gpu("rtx-5080")) == int(16_303 * 0.994) * MIB
    assert total_bytes(find_gpu("mi350x")) == 294_896 * MIB
    assert total_bytes(find_gpu("gaudi3")) == int(128 * 1024 * 0.93) * MIB
    assert total_bytes(Gpu(id="x", name="x", vendor="x")) is None
    for gpu_id in list_gpus():
        gpu = find_gpu(gpu_id)
        total = total_bytes(gpu)
        assert total is not None
        assert total <= (gpu.memory_total_mib or (gpu.memory_marketing_gb or 0) * 1024) * MIB


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_gpu_batches_are_those_of_an_h100(version: str) -> None:
    """Of which nothing is read for that."""
    assert default_batches(None, version) == default_batches("h100-sxm5-80gb", version)


@pytest.mark.parametrize(
    ("model", "gpu", "fields", "name", "measured_gib"),
    [
        # Pull request 10511: H100, 8,192 tokens, 256 requests; 1.26 with the 0.03 of cuBLAS's workspace.
        ("meta-llama/Meta-Llama-3-8B", "h100", {"version": "0.6"}, "activations", 1.23),
        # Issue 13061: two 4090, DeepSeek-R1-Distill-Qwen-14B, 2,048 tokens; of the shape of Qwen2.5-14B.
        ("Qwen/Qwen2.5-14B", "4090", {"tp": 2, "version": "0.7", "seq": 131_072}, "activations", 0.19),
        # Pull request 12126: H100.
        ("meta-llama/Llama-3.1-8B", "h100", {"version": "0.7"}, "non-torch", 0.16),
        # Runner pull request 251, vLLM 0.27; pull requests 30515 and 39559.
        ("meta-llama/Llama-3.1-8B", "h100", {"version": "0.27"}, "CUDA graphs", 0.36),
        ("meta-llama/Llama-3.1-8B", "h100", {"version": "0.22"}, "CUDA graphs", 0.26),
        ("meta-llama/Llama-3.1-8B", "h100", {"version": "0.22"}, "CUDA graphs", 0.73),
    ],
)
def test_what_logs_have_shown(model: str, gpu: str, fields: dict[str, Any], name: str, measured_gib: float) -> None:
    """A measured part lies between low and high; logs have two decimals."""
    found = part(budget(model, gpu, **fields), name)

    assert found.low <= (measured_gib + 0.005) * GIB
    assert (measured_gib - 0.005) * GIB <= found.high


def test_several_gpus() -> None:
    """Ranks take more outside torch than a single GPU does, and more over NVLink than over PCIe."""
    one = part(budget("Qwen/Qwen3-30B-A3B", "h100"), "non-torch")
    linked = part(budget("Qwen/Qwen3-30B-A3B", "h100", tp=2), "non-torch")
    assert one.expected < part(budget("Qwen/Qwen3-30B-A3B", "4090", tp=2), "non-torch").expected < linked.expected


def test_quantised_latent_attention_keeps_copies() -> None:
    """DeepSeek-V3 as published is fp8: 61 layers x 16 heads x 256 x 512 x 2 bytes beside the weights; not in 16 bits."""
    published = budget("deepseek-ai/DeepSeek-V3", "h200", tp=8)

    assert part(published, "absorbed projections").expected == 61 * 16 * 256 * 512 * 2
    plain = budget("deepseek-ai/DeepSeek-V3", "h200", tp=8, weights="bf16")
    assert "absorbed projections" not in {one.name for one in plain.parts}
    assert part(plain, "weights").expected == 169_560_743_936


def test_recurrent_states_make_graphs_dear() -> None:
    """35 graphs of 24 MiB, and up to 24 % of what is left."""
    found = part(budget("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200", tp=2), "CUDA graphs")

    assert found.expected == 35 * 24 * MIB
    assert found.high > 10 * GIB


def test_towers_are_profiled() -> None:
    """A model with an encoder pays for the pixels of its inputs: four patches a token of 588 numbers in 16 bits.

    The tower's own pass takes 2 x 2,048 x 4 x (2 x 4,304 + 4 x 1,152) bytes, less than the sampler, and the same memory.
    """
    planned = budget("google/gemma-3-27b-it", "a100")
    found = part(planned, "encoder profile")

    assert found.expected == 2048 * 4 * 588 * 2
    assert 2 * 2048 * 4 * (2 * 4304 + 4 * 1152) < part(planned, "activations").expected
    assert "encoder profile" not in {one.name for one in budget("meta-llama/Llama-3.1-8B", "a100").parts}


KNOWN_MISSES: Final = (
    # Model, GPU, ranks, share, version, pool in GiB that the log states, and why it is outside of the range.
    (
        "meta-llama/Llama-3.1-8B",
        "l40s",
        1,
        0.9,
        "0.8",
        158_656 * 131_072 / GIB,
        "pull request 17122 states tokens alone: 5 GiB less than total, share and weights leave; its options are not known",
    ),
    (
        "Qwen/Qwen3-235B-A22B-FP8",
        "h100",
        4,
        0.9,
        "0.9",
        8.11,
        "issue 21348 states the pool alone, with a connector that takes memory of its own; its batch is not known",
    ),
)


@pytest.mark.parametrize(("model", "gpu", "tp", "share", "version", "stated_gib", "reason"), KNOWN_MISSES)
def test_known_misses(model: str, gpu: str, tp: int, share: float, version: str, stated_gib: float, reason: str) -> None:
    """Two pools of other people's logs that lie below the range. When one comes inside, it moves to the test above."""
    sequences, batched = default_batches(gpu, version)
    planned = budget(model, gpu, tp=tp, memory_utilization=share, version=version, sequences=sequences, batched_tokens=batched)

    assert stated_gib * GIB < planned.low, reason


def test_notes() -> None:
    """Notes say what is assumed."""
    for gpu, share, code in [
        ("rtx-5080", None, "gpu-memory-estimated"),
        ("gb10", None, "unified-memory"),
        ("h100", 0.999, "utilization-high"),
    ]:
        made = request("meta-llama/Llama-3.1-8B", gpu, memory_utilization=share)
        found, notes = plan_budget(made, sequences=256, batched_tokens=2048)
        assert found is not None
        assert code in {note.code for note in notes}


def test_without_hardware_or_weights() -> None:
    """No GPU, a GPU of unknown memory, a model that nobody counts: no budget, and a note."""
    made = request("meta-llama/Llama-3.1-8B", Gpu(id="x", name="x", vendor="x"))
    found, notes = plan_budget(made, sequences=1, batched_tokens=1)
    assert found is None
    assert [note.code for note in notes] == ["gpu-memory-unknown"]
    bare = made.engine.unchecked(made.model, made.request.changed(gpu=None))
    assert isinstance(bare, VllmOccupancy)
    assert plan_budget(bare, sequences=1, batched_tokens=1) == (None, ())
    uncounted = request("meta-llama/Llama-3.1-8B", "h100")
    uncounted = unchecked(replace(uncounted.model, counted=None, weights=None), 8192, None, {"gpu": find_gpu("h100")})
    found, notes = plan_budget(uncounted, sequences=1, batched_tokens=1)
    assert found is None
    assert [note.code for note in notes] == ["weights-unknown"]


def test_an_unknown_weight_format() -> None:
    """The error of ``--weights``."""
    with pytest.raises(UsageError, match="weights"):
        budget("meta-llama/Llama-3.1-8B", "h100", weights="fp7")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {"engine": "vllm@0.27", "dtype": "fp8", "gpu": "h200", "tp": 4, "kv_memory": "1GiB"}),
        ("Qwen/Qwen3-30B-A3B", {"engine": "vllm@0.16", "gpu": "h100", "pp": 2, "kv_memory": "2GiB"}),
        (
            "Qwen/Qwen3-8B",
            {"engine": "vllm@0.19", "gpu": "l4", "kv_memory": "100MiB", "engine_options": {"num_gpu_blocks_override": "1000"}},
        ),
    ],
)
def test_what_fits_also_starts(model: str, options: dict[str, Any]) -> None:
    """Where the check before start-up asks for more than the blocks of a request, a length that it refuses is not said to fit."""
    longest = plan(model, seq=500, **options).fit
    assert longest is not None
    most = longest.expected_max_seq
    assert most is not None
    for seq in (most, most + 1):
        planned = plan(model, seq=seq, **options)
        assert planned.fit is not None
        assert planned.pool is not None
        assert planned.fit.fits == planned.pool.fits == (seq == most)
        assert planned.pool.max_seq == most
