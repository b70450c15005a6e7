"""Rules of the planner that a small fault would break. scripts/mutants.py finds what no test notices."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan, recommend, strategies
from hwcalc.engines.steps import value_of
from hwcalc.errors import UsageError
from hwcalc.model import Definition
from hwcalc.planner.advice import _at_least
from hwcalc.planner.context import open_request
from hwcalc.planner.nearest_plan import _layouts
from hwcalc.planner.policy import policy_notes
from hwcalc.policies.parse import parse_policy
from hwcalc.profiles.gpus import built_in_gpus
from hwcalc.profiles.links import host_link
from tests.hwcalc.command import Capture, run

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("policy", "masks"),
    [("adakv:press=(knorm:compression_ratio=0.5)", True), ("knorm:compression_ratio=0.5", False)],
)
def test_a_mask_gives_nothing_back(policy: str, *, masks: bool) -> None:
    """Ada-KV of kvpress fakes a mask, which is told; a cache that is cut has no such note."""
    chosen = parse_policy(policy)
    assert chosen is not None
    notes = policy_notes(chosen, "sdpa", acted=32, layers=32)
    assert [note.code for note in notes] == (["policy-masks"] if masks else [])


def test_layers_that_a_policy_leaves_alone_are_counted() -> None:
    """None of 32, some of 32, all of 32."""
    chosen = parse_policy("knorm:compression_ratio=0.5")
    assert chosen is not None
    assert [[note.code for note in policy_notes(chosen, "eager", acted=acted, layers=32)] for acted in (0, 31, 32)] == [
        ["policy-no-effect"],
        ["policy-layers", "policy-eager"],
        ["policy-eager"],
    ]


def test_stages_share_the_time_of_a_prompt() -> None:
    """A single stage takes all of it, so that no step divides it; two stages work on two prompts at once."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "vllm", "gpu": "h100", "offline": True}

    def names(**more: Any) -> list[str]:
        speed = plan(LLAMA, **asked, **more).speed
        assert speed is not None
        return [step.name for step in speed.steps if not step.name.startswith("expected_")]

    assert names()[-1] == "prompt_s"
    assert names(gpus=2, pp=2)[-1] == "prefill_s"


def test_weights_that_fill_a_gpu_are_what_limits() -> None:
    """141 GB on an L4 leave nothing for a cache; 16 GB leave some, and the cache limits."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "vllm", "gpu": "l4", "offline": True}
    limits = {model: plan(model, **asked).fit for model in ("meta-llama/Llama-3.1-70B", LLAMA)}
    assert [fit.limiting for fit in limits.values() if fit is not None] == ["weights", "cache"]


def test_what_a_plan_says_of_llama() -> None:
    """131,072 bytes a token, all of it read in a step; the pool is the engine's, and what is left is what is not needed."""
    made = plan(LLAMA, seq=4096, engine="vllm", gpu="l4", offline=True)
    assert (made.cache.bytes_per_token, made.cache.total_bytes) == (131_072, 131_072 * 4096)
    assert made.cache.read_bytes_per_step == made.cache.total_bytes
    assert made.pool is not None
    assert made.pool.definition is Definition.ENGINE
    assert made.fit is not None
    assert made.fit.usable_bytes is not None
    assert made.fit.usable_bytes - made.fit.needed_bytes == made.fit.headroom_bytes


def test_an_indexer_selects_what_is_read() -> None:
    """DeepSeek-V3.2 at 32,768 tokens: a step reads 2,048 latents of 576 numbers in each of 61 layers, and all 132 bytes of the indexers."""
    cache = plan("deepseek-ai/DeepSeek-V3.2", seq=32_768, offline=True).cache
    assert cache.read_bytes_per_step == 61 * (2048 * 576 * 2 + 32_768 * 132)


def test_what_names_no_accelerator() -> None:
    """No GPU at all, or two."""
    asked: dict[str, Any] = {"seq": 64, "engine": "vllm", "gpu": "l4", "offline": True}
    with pytest.raises(UsageError, match="gpus is out of range: 0"):
        plan(LLAMA, gpus=0, **asked)
    with pytest.raises(UsageError, match="instance and gpu both name"):
        plan(LLAMA, instance="aws:p5.48xlarge", **asked)


def test_layouts_of_two() -> None:
    """Two ranks of one stage first, then two stages."""
    assert [(each["tp"], each["pp"]) for each in _layouts({"gpus": 2})] == [(2, 1), (1, 2)]


@pytest.mark.parametrize(("named", "gbps"), [("PCIe6 x16", 118.0), ("PCIe5 x16", 64 * 128 / 130)])
def test_bytes_of_a_link(named: str, gbps: float) -> None:
    """Lanes x transfers x the share that is data: 16 x 64 x 236 / 256 / 8, and 16 x 32 x 128 / 130 / 8."""
    link = host_link(replace(built_in_gpus()["h100-sxm5-80gb"], interconnect={"host": named}))
    assert link is not None
    assert link.gbps == pytest.approx(gbps)


def test_what_quest_reads_adds_up() -> None:
    """Two layers whole, the others 128 tokens, and the keys of pages once: each step is what its formula says, and the sum is the cache's."""
    made = plan(
        "Qwen/Qwen3-8B", engine="reference", gpu="h100", seq=8192, prompt=8000, policy="quest:token_budget=128", offline=True
    )
    assert made.speed is not None
    steps = {step.name: step for step in made.speed.steps}
    for name in ("full_attention_read", "full_attention_read_2", "page_keys_read", "cache_bytes"):
        found = steps[name]
        assert value_of(found.formula, {term.name: term.expected for term in found.terms}) == found.expected
    assert steps["page_keys_read"].expected > 0


def test_a_plan_needs_a_gpu_or_more() -> None:
    """Also where nothing is known of its memory."""
    assert _at_least(open_request(load_model(LLAMA), engine="vllm", seq=64)) == 1


def test_weights_that_nobody_gave_have_their_own_words(capsys: Capture) -> None:
    """A bare equation is told what to give, and not that a class is not counted."""
    _, out, _ = run(capsys, "--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--seq", "8k")
    assert "The weights are not known: give" in " ".join(out.split())
    assert "not counted yet" not in out


def test_the_limit_is_what_grows_most() -> None:
    """Of transformers on an L4, at 32,768 tokens of an untiled prompt.

    A window of 1,023 tokens is 2 x 1,023 x 4 x 128 x 2 bytes of each sequence, 2 MiB; three copies of 2,048 hidden states and two of an MLP
    of 8,192 are at least 2 x 32,768 x 22,528 bytes, 1.4 GiB. Full attention of 32 layers keeps 4 GiB of each sequence, and forms 1.4 to 2.
    """
    narrow = {"layers": "sliding(heads=16, kv_heads=4, head_dim=128, window=1024)", "dtype": "bf16"}
    wide = {"layers": "32*full(heads=32, kv_heads=8, head_dim=128)", "dtype": "bf16"}
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 32_000}
    for layers, limit in ((narrow, "activations"), (wide, "cache")):
        fit = plan({**layers, **sizes}, seq="32k", engine="transformers", gpu="l4").fit
        assert fit is not None
        assert fit.max_batch
        assert {fit.limiting, fit.expected_limiting, fit.limiting_seq, fit.expected_limiting_seq} == {limit}


def test_slots_that_are_left_do_not_limit() -> None:
    """SGLang, Qwen3.5-27B on an H200: there are more slots for states than sequences, which the cache limits."""
    made = plan("Qwen/Qwen3.5-27B", engine="sglang", gpu="h200", seq=1024, offline=True)
    assert made.pool is not None
    assert made.fit is not None
    assert made.pool.state_slots is not None
    assert made.pool.state_slots > (made.fit.max_batch or 0) > 0
    assert made.fit.limiting == "cache"


@pytest.mark.parametrize(
    ("layers", "said"), [("40", "too much on the GPU"), ("1", "would lie in host memory: more than the host has")]
)
def test_which_memory_is_too_small(layers: str, said: str) -> None:
    """llama.cpp with 70 billion parameters beside a GPU of 8 GB: the GPU where it has 40 layers, the host where it has the others."""
    made = plan(
        "meta-llama/Llama-3.1-70B",
        engine="llamacpp",
        gpu="rtx-3050",
        seq=4096,
        engine_options={"n_gpu_layers": layers},
        offline=True,
    )
    assert made.fit is not None
    assert said in made.fit.message


@pytest.mark.parametrize(("prompt", "partial"), [(4096, False), (4100, True)])
def test_a_last_block_has_a_chance_of_its_own(prompt: int, *, partial: bool) -> None:
    """Half the tokens dropped at random places of blocks of 16: 4,096 fill their blocks, 4,100 leave four in the last one."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": prompt, "policy": "knorm:compression_ratio=0.5", "compaction": "none"}
    policy = plan("Qwen/Qwen3-8B", prompt=prompt, offline=True, **asked).policy
    assert policy is not None
    assert policy.blocks is not None
    (free,) = (step for step in policy.blocks.steps if step.name == "free")
    assert ("last_chance" in free.formula) == partial


def test_the_largest_tensor_is_copied_as_it_grows() -> None:
    """MiMo-V2-Flash by concatenation: keys of 4 heads of 192 numbers are wider than values of 128; 2 x 4,096 tokens x 2 bytes of them."""
    found = {one.name: one for one in strategies("XiaomiMiMo/MiMo-V2-Flash", seq=4096, batch=2).strategies}
    grown = found["growth"]
    assert grown.peak_bytes - grown.full_bytes == 2 * 4096 * 4 * 192 * 2


def test_an_offer_has_the_cache_of_its_card() -> None:
    """The recommendation has none where they differ. mistral.rs computes in fp16 below compute capability 8.0: on a T4, and not on an L4."""
    asked: dict[str, Any] = {"engine": "mistral-rs", "seq": 1024, "offline": True}
    found = recommend("Qwen/Qwen3-1.7B", gpu=("t4", "l4"), max_gpus=1, **asked)
    assert [offer.gpu for offer in found.offers] == ["l4", "t4"]
    dtypes = [plan("Qwen/Qwen3-1.7B", gpu=offer.gpu, **asked).request.kv_dtype for offer in found.offers]
    assert dtypes == ["bf16", "fp16"]
    assert [offer.kv_dtype for offer in found.offers] == dtypes
    assert found.kv_dtype is None
