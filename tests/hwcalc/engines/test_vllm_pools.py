"""The pool from the GPU alone: the parts that public start-up logs state, and the constants behind them."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from msgspec.structs import astuple

from hwcalc import plan
from hwcalc.profiles.engines import since, vllm_profile
from hwcalc.units import GIB, MIB
from tests.hwcalc.engines.pools import Figure, figures, table
from tests.hwcalc.engines.test_vllm_memory import budget, part
from tests.hwcalc.engines.vllm_rows import pool

KNOWN = {
    # Row of the file: why its pool lies outside of the range.
    "meta-llama/Meta-Llama-3-8B": "pull request 10511 counted 1.6 GiB more as outside torch than vLLM does since",
}


@pytest.fixture(scope="module")
def found() -> list[Figure]:
    """Every figure of every log."""
    return list(figures())


def test_the_dense_figures_of_an_h100(found: list[Figure]) -> None:
    """The median error of the pool of dense models is under 1 %; so is that of their activation peak."""
    pools = [one.error for one in found if one.family == "dense" and one.name == "available"]
    peaks = [one.error for one in found if one.family == "dense" and one.name == "activation"]

    assert len(pools) >= 40
    assert median(pools) < 0.01
    assert median(peaks) < 0.01


@pytest.mark.parametrize("family", ["dense", "experts", "vision"])
def test_nine_of_ten_logs_lie_inside(found: list[Figure], family: str) -> None:
    """For the pool and each part that is an estimate, at least 90 % of the logs lie inside the range."""
    for name in ("available", "activation", "non_torch"):
        here = [one for one in found if one.family == family and one.name == name]
        outside = [one for one in here if not one.inside and one.model not in KNOWN]
        assert len(outside) <= len(here) // 10, "\n".join(table(found))


def test_ranges_are_no_wider_than_they_must_be(found: list[Figure]) -> None:
    """The range of a pool is, in the middle, at most a twentieth of the pool wide."""
    widths = [(one.high - one.low) / one.stated for one in found if one.name == "available"]

    assert median(widths) < 0.05


@pytest.mark.parametrize(
    ("version", "gib", "each"),
    [
        # Qwen3-14B logs 5.64, 5.64, 2.23 and 2.23 GiB on an H100: 1,024 rows of 151,936 logits, 8,192 tokens.
        ("0.15", 5.64, 38),
        ("0.16.0", 5.64, 38),
        ("0.17.0", 2.23, 14),
        ("0.18", 2.23, 14),
    ],
)
def test_the_sampler_by_version(version: str, gib: float, each: int) -> None:
    """38 bytes a logit while torch sorts, 14 with the Triton kernel and its buffer of 132 rows in fp32; hidden states come on top."""
    planned = budget("Qwen/Qwen3-14B", "h100", version=version, sequences=1024, batched_tokens=8192)
    logits, kernel = 1024 * 151_936, 132 * 151_936 * 4 if each == 14 else 0
    alive = 2 * 5120 * (8192 + 2 * 1024)

    assert part(planned, "activations").expected == each * logits + kernel + alive
    assert part(planned, "activations").expected + part(planned, "workspaces").expected == pytest.approx(
        gib * GIB, abs=0.006 * GIB
    )


def test_few_rows_are_sorted_at_once() -> None:
    """Below 128 rows torch sorts with two 8-byte places a logit more, 50 bytes. A long vocabulary and few tokens show it."""
    few = budget("google/gemma-2-2b-it", "4090", version="0.12", sequences=127, batched_tokens=256)
    many = budget("google/gemma-2-2b-it", "4090", version="0.12", sequences=128, batched_tokens=256)

    assert part(few, "activations").expected == 50 * 127 * 256_000 + 2 * 2304 * (256 + 2 * 127)
    assert part(many, "activations").expected == 38 * 128 * 256_000 + 2 * 2304 * (256 + 2 * 128)


def test_expert_buffers_stay_from_0_13_on() -> None:
    """Qwen3-30B-A3B: 8,192 tokens x 8 experts x (2,048 + 2,048) x 2 bytes beside the sampler; inside the forward pass before."""
    buffers = 8192 * 8 * (max(768, 2048) + max(2 * 768, 2048)) * 2
    sampled = 14 * 1024 * 151_936 + 132 * 151_936 * 4 + 2 * 2048 * (8192 + 2 * 1024)
    planned = budget("Qwen/Qwen3-30B-A3B", "h100", version="0.19", sequences=1024, batched_tokens=8192)

    assert buffers == GIB // 2
    assert part(planned, "activations").expected == buffers + sampled
    before = budget("Qwen/Qwen3-30B-A3B", "h100", version="0.12", sequences=1024, batched_tokens=8192)
    assert part(before, "activations").expected == 38 * 1024 * 151_936 + 2 * 2048 * (8192 + 2 * 1024)


@pytest.mark.parametrize(
    ("version", "model", "seconds"),
    [
        ("0.21", "Qwen/Qwen3-8B", False),
        ("0.22", "Qwen/Qwen3-8B", True),
        ("0.22", "meta-llama/Llama-3.1-8B", False),
        ("0.23", "meta-llama/Llama-3.1-8B", True),
        ("0.24", "Qwen/Qwen3-8B", True),
        ("0.25", "microsoft/phi-4", True),
        ("0.28", "Qwen/Qwen3-30B-A3B", False),
        ("0.28", "Qwen/Qwen3-Next-80B-A3B-Instruct", False),
        ("0.29", "Qwen/Qwen3-30B-A3B", True),
        ("0.33", "Qwen/Qwen3-Next-80B-A3B-Instruct", True),
    ],
)
def test_the_second_runner(version: str, model: str, seconds: bool) -> None:
    """It samples with fewer bytes a logit, and says so."""
    source = part(budget(model, "h100", version=version, sequences=1024, batched_tokens=8192), "activations").source
    names = ("0.22 sampler.py", "0.28 sampler.py", "_dummy_sampler_run")

    assert any(name in source for name in names) is seconds


@pytest.mark.parametrize(
    ("gpu", "fields", "version", "gib"),
    [
        ("h100", {}, "0.17", 0.10),
        ("h100", {}, "0.19", 0.25),
        ("h100", {"pp": 2}, "0.19", 0.07),
        ("h100", {"tp": 2}, "0.16", 0.55),
        ("h100", {"tp": 2}, "0.19", 2.07),
        ("h100", {"tp": 4}, "0.16", 1.7),
        ("l40s", {"tp": 4}, "0.16", 0.21),
        ("mi300x", {}, "0.16", 0.5),
    ],
)
def test_memory_outside_torch(gpu: str, fields: dict[str, Any], version: str, gib: float) -> None:
    """By the number of ranks and their link."""
    found = part(budget("meta-llama/Llama-3.1-8B", gpu, version=version, **fields), "non-torch")

    assert found.expected == pytest.approx(gib * GIB, abs=MIB)


def test_expert_exchange() -> None:
    """The default exchange of experts has no buffers of its own; DeepEP's has."""
    without = {one.name for one in budget("Qwen/Qwen3-30B-A3B", "l40s", tp=4, ep=4).parts}
    planned = budget("Qwen/Qwen3-30B-A3B", "l40s", tp=4, ep=4, options={"all2all_backend": "deepep_low_latency"})

    assert "expert exchange" not in without
    assert part(planned, "expert exchange").low == 1024 * MIB


def test_no_graphs_when_eager() -> None:
    """With ``enforce_eager`` nothing is captured: the pool grows by what graphs would take."""
    graphs = part(budget("meta-llama/Llama-3.1-8B", "h100"), "CUDA graphs")
    eager = budget("meta-llama/Llama-3.1-8B", "h100", options={"enforce_eager": "true"})

    assert "CUDA graphs" not in {one.name for one in eager.parts}
    assert eager.expected == budget("meta-llama/Llama-3.1-8B", "h100").expected + graphs.expected
    off = budget("meta-llama/Llama-3.1-8B", "h100", options={"enforce_eager": "false"})
    assert part(off, "CUDA graphs") == graphs


def test_sparse_attention_that_drafts_has_large_graphs() -> None:
    """GLM-5.1 with multi-token prediction logs 4.8 to 6.8 GiB on 8 GPUs."""
    from hwcalc.engines.vllm.memory import graphs
    from hwcalc.engines.vllm.settings import Speculation
    from hwcalc.library.load import load_model

    model = load_model("deepseek-ai/DeepSeek-V3.2")
    drafting = graphs(model, "0.33", 0, Speculation(method="mtp", tokens=1))

    assert drafting.low == int(4.8 * GIB)
    assert drafting.high == int(6.8 * GIB)
    assert graphs(model, "0.33", 0, None).high < 2 * GIB


@pytest.mark.parametrize(
    ("seq", "options", "gib"),
    [
        # vLLM issue 10517, RTX 3090, 0.6.4: the batch is the longest prompt up to 32,768 tokens, then 512 tokens.
        (20_000, {}, 2.07),
        (29_000, {}, 2.99),
        (35_000, {}, 0.06),
    ],
)
def test_batches_of_v0(seq: int, options: dict[str, str], gib: float) -> None:
    """Llama-3.1-8B in V0: 2 x tokens x (3 x 4,096 + 3 x 14,336) bytes and cuBLAS's workspace, less than a hundredth off."""
    planned = budget("meta-llama/Llama-3.1-8B", "3090", version="0.6.4", seq=seq, options=options)
    tokens = seq if seq <= 32_768 else 512

    assert part(planned, "activations").expected == 2 * tokens * 3 * (4096 + 14_336)
    peak = part(planned, "activations").expected + part(planned, "workspaces").expected
    assert peak == pytest.approx(gib * GIB, rel=0.01, abs=0.005 * GIB)


def test_experts_of_v0_run_in_chunks() -> None:
    """128k tokens at once cost their hidden states and the attention, but the buffers of 32,768 tokens' experts."""
    planned = budget(
        "mistralai/Mixtral-8x7B-v0.1",
        "h200",
        version="0.6",
        seq=131_072,
        options={"max_num_batched_tokens": "131072"},
        batched_tokens=131_072,
    )
    buffers = 2 * 32_768 * 2 * (max(2 * 14_336, 4096) + 14_336)

    assert part(planned, "activations").expected == buffers + 2 * 131_072 * (3 * 4096 + 4096 + 1024 + 1024 + 4096)


@pytest.mark.parametrize(
    ("gpu", "tp", "low", "high"),
    [
        # Hopper: 2,880 as 3,072 by Triton, the inner width as 2,944 by Marlin, which an A100 always uses; Blackwell pads neither so.
        ("h100", 1, 3072 / 2880, 3072 / 2880 * 2944 / 2880),
        ("a100", 1, 3072 / 2880 * 2944 / 2880, 3072 / 2880 * 2944 / 2880),
        ("h100", 2, 3072 / 2880, 3072 / 2880 * 1536 / 1440),
    ],
)
def test_padded_experts(gpu: str, tp: int, low: float, high: float) -> None:
    """gpt-oss-20b: 24 layers x 32 experts x 3 x 2,880 x 2,880 numbers of 4.25 bits, and the biases."""
    padded = part(budget("openai/gpt-oss-20b", gpu, tp=tp, version="0.19"), "padded experts")
    experts = 24 * 32 * 3 * 2880 * 2880 * 17 // 32 // tp

    assert padded.low == pytest.approx(experts * (low - 1), rel=0.01)
    assert padded.high == pytest.approx(experts * (high - 1), rel=0.01)
    assert "padded experts" not in {one.name for one in budget("openai/gpt-oss-20b", "b200", version="0.19").parts}


def test_an_untied_head() -> None:
    """Mistral-Small-3.1 ties its tables outside and not in ``text_config``: 131,072 x 5,120 x 2 bytes more; it logs 44.76 GiB."""
    planned = budget("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "h100", version="0.19")
    weights = part(planned, "weights").expected + part(planned, "rotary table").expected

    assert weights == pytest.approx(44.76 * GIB, abs=0.01 * GIB)


def test_constants_have_versions() -> None:
    """Each estimate is a list by version, newest first, down to 0.0."""
    profile = vllm_profile()
    for section in (profile.activation, profile.sampler, profile.graphs, profile.non_torch, profile.expert_exchange):
        for entries in filter(lambda entries: isinstance(entries, tuple), astuple(section)):
            versions = [since(entry.since) for entry in entries]
            assert versions == sorted(versions, reverse=True), entries[0].source
            assert versions[-1] == (0, 0), entries[0].source


@pytest.mark.parametrize(("version", "seq", "requests"), [("0.7.3", 40_960, 2), ("0.7.3", 49_152, 0), ("0.8", 49_152, 1)])
def test_stages_of_v0_share_the_blocks(version: str, seq: int, requests: int) -> None:
    """5 GiB of blocks of 1 MiB on each of two stages: V0 gives each of two schedulers 2,560 of the 5,120, V1 has one scheduler."""
    made = pool("meta-llama/Llama-3.1-8B", 5 * GIB, seq=seq, version=version, pp=2)
    assert made.max_requests == requests
    assert made.max_seq == (2560 if version == "0.7.3" else 5120) * 16


def test_an_encoder_has_no_cache() -> None:
    """BERT keeps nothing: it starts, and its whole length fits."""
    config = {
        "model_type": "bert",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 99,
    }
    made = plan(config, engine="vllm", gpu="l4")
    assert made.fit is not None
    assert made.fit.max_seq == 512
