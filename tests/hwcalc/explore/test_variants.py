"""What if the attention were another kind: curves equal the plans of models that have it."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

from hwcalc import load_model, strategies
from hwcalc.engines.forms import Curve
from hwcalc.explore.runs import PageAxes, PageLayout, Pools, Requests, page_engines, plan_options, runs_of
from hwcalc.explore.sections import variants_of
from hwcalc.library.load import with_dimensions
from hwcalc.library.plan import plan_loaded
from hwcalc.planner.asked import Access
from tests.hwcalc.explore.evaluate import curve_of, grid_at

GPU: Final = "h100-sxm5-80gb"
GPUS: Final = (GPU, "l4")
LENGTHS: Final = (128, 1_000, 4_099, 30_000)


@cache
def _variants(name: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    pools = Pools()
    spec, axes = load_model(name, offline=True), PageAxes(gpus=GPUS, layouts=(PageLayout(count=1, tp=1),))
    requests = {engine: Requests(spec, engine, axes) for engine in axes.engines}
    found = variants_of(spec, axes, pools, {engine: runs_of(each, pools) for engine, each in requests.items()}, requests)
    return {one["name"]: one for one in found}, pools.pieces


def _curve(name: str, variant: str, engine: str, gpu: str = GPU) -> Curve:
    found, payload = _variants(name)
    place = grid_at(found[variant]["engines"][engine], (GPUS.index(gpu),))
    assert place is not None
    assert place >= 0, payload["texts"][-1 - place]
    return curve_of(payload, payload["curves"][place])


def test_the_curve_is_that_of_the_chosen_gpu() -> None:
    """VLLM takes more tokens at once on larger GPUs, and keeps more blocks of windows: an L4 has another cache than an H100."""
    name, seq, own = "google/gemma-3-12b-it", 30_000, "GQA-8"
    sizes = [_curve(name, own, "vllm", gpu).total_bytes(seq, 1) for gpu in GPUS]

    assert sizes == [plan_loaded(load_model(name), {"seq": seq, "gpu": gpu, "engine": "vllm"}).cache.total_bytes for gpu in GPUS]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("engine", page_engines())
@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "google/gemma-3-12b-it", "openai/gpt-oss-20b"])
def test_other_heads_are_the_plan_with_these_heads(name: str, engine: str) -> None:
    """MHA, GQA and MQA: the cache of ``--kv-heads N``, window for window."""
    changed = with_dimensions(name, Access(offline=True), {})
    assert changed is not None
    own = {one.name: one.num_key_value_heads for one in strategies(load_model(name, offline=True), seq=128).heads}
    assert own.keys() == _variants(name)[0].keys() - {"MLA"}
    for variant, heads in own.items():
        curve, model = _curve(name, variant, engine), changed({"kv_heads": heads or 0})
        for seq in LENGTHS:
            options = {"seq": seq, "gpu": GPU, **plan_options(engine)}
            cache = plan_loaded(model, options).cache
            assert (curve.total_bytes(seq, 1), curve.needed_bytes(seq, 1)) == (cache.total_bytes, cache.per_gpu_bytes)


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
def test_a_latent_grows_as_that_of_deepseek(engine: str) -> None:
    """36 layers of Qwen3-8B with MLA grow as 36 of the 61 layers of DeepSeek-V3 do, which has the same latent."""
    latent, deepseek = _curve("Qwen/Qwen3-8B", "MLA", engine), _curve("deepseek-ai/DeepSeek-V3", "MLA, latent", engine)

    assert 61 * latent.total_bytes(1 << 16, 1) == 36 * deepseek.total_bytes(1 << 16, 1)


def test_llamacpp_takes_attention_from_the_architecture() -> None:
    """There is no GGUF of a Qwen3 with a latent, and no guess at one."""
    found, payload = _variants("Qwen/Qwen3-8B")

    assert payload["texts"][-1 - (grid_at(found["MLA"]["engines"]["llamacpp"], (0,)) or 0)].startswith(
        "llama.cpp has latent attention for models"
    )


def test_an_expanded_latent_is_that_of_strategies() -> None:
    """By the formulas."""
    (_, expanded) = strategies(load_model("deepseek-ai/DeepSeek-V2-Lite", offline=True), seq=256, engine="reference").heads

    assert _curve("deepseek-ai/DeepSeek-V2-Lite", expanded.name, "reference").total_bytes(256, 1) == expanded.full_bytes
