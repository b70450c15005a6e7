"""What stays on the GPU: weights beside ``cpu_offload_gb``, layers of an offloaded cache as transformers moves them, encoder outputs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.rank_weights import rank_weight_bytes
from hwcalc.engines.setup import Parallel
from hwcalc.engines.transformers.layers import offloaded_gpu_bytes
from hwcalc.engines.vllm.weights import VLLM, encoder_cache_bytes, resident, stage_weights
from hwcalc.formulas import LayerKind

LAYERS: Final = 16_060_522_496 - 2 * 128_256 * 4096 * 2 - 8192
"""Llama-3.1-8B in bf16 without embedding, head and last norm."""
GIB: Final = 2**30


def test_weights_in_host_memory() -> None:
    """4 GiB leave the GPU, and at most a parameter more; never more than all layers."""
    model = load_model("meta-llama/Llama-3.1-8B")
    stages = stage_weights(model, Parallel())
    assert stages is not None
    some, all_of_it = resident(stages, 4), resident(stages, 100)

    assert some.high == some.expected == 16_060_522_496 - 4 * GIB
    assert 0 <= some.high - some.low - 2 * 3 * 14_336 * 4096 <= 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096)
    assert all_of_it.low == 16_060_522_496 - LAYERS - 8192
    assert all_of_it.high - all_of_it.low == 0


def test_without_it_nothing_moves() -> None:
    """0 GiB is the default; the fullest stage decides."""
    model = load_model("deepseek-ai/DeepSeek-V3")
    weights = stage_weights(model, Parallel(tp=8, pp=2))
    stages = rank_weight_bytes(model, Parallel(tp=8, pp=2), rules=VLLM)

    assert weights is not None
    assert stages is not None
    found = resident(weights, 0)
    assert found.low == found.high == max(stages)


class Stream:
    """A stream on a machine without any: everything is done at once."""

    def wait_stream(self, other: object) -> None:
        """Nothing to wait for."""

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, *args: object) -> None:
        """Nothing to end."""


SMALL: Final = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "intermediate_size": 96,
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "full": {**SMALL, "model_type": "llama", "num_hidden_layers": 5},
    "one layer": {**SMALL, "model_type": "llama", "num_hidden_layers": 1},
    "sliding": {
        **SMALL,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "sliding_window": 9,
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "full_attention", *["sliding_attention"] * 2],
    },
    "the last and the first": {
        **SMALL,
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_an_offloaded_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own cache is fed layer by layer; where its layers are is followed by their offload and prefetch."""
    import torch
    from transformers import DynamicCache
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    keys = dict(MODELS[name])
    config = CONFIG_MAPPING[keys.pop("model_type")](**keys)
    cache = DynamicCache(config=config, offloading=True)
    here: set[int] = set()
    for number, layer in enumerate(cache.layers):
        monkeypatch.setattr(layer, "offload", lambda number=number: here.discard(number))
        monkeypatch.setattr(layer, "prefetch", lambda number=number: here.add(number))
    seen, most = [0] * len(cache.layers), 0
    for tokens in (30, 1, 1):
        for number, layer in enumerate(cache.layers):
            states = torch.zeros(1, 2, tokens, 16, dtype=torch.bfloat16)
            cache.update(states, states, number)
            seen[number] = 2 * layer.keys.numel() * layer.keys.element_size()
            most = max(most, sum(seen[place] for place in here | {number})) if all(seen) else most

    planned = plan(MODELS[name], seq=32, engine="transformers", dtype="bf16")
    sizes = {
        entry.kind: sum(tensor.bytes for tensor in planned.cache.tensors if tensor.kind == entry.kind) // entry.count
        for entry in planned.model.layers
    }
    model = load_model(MODELS[name])

    def one_layer(kind: LayerKind) -> int:
        return sizes[kind.name]

    # The layer that is fetched may lack the newest token: 2 heads of 16 in two tensors of two bytes.
    assert 0 <= offloaded_gpu_bytes(model.stack, one_layer) - most <= 2 * 2 * 16 * 2


def test_states_never_leave() -> None:
    """Qwen3-Next: 36 linear layers stay, of its 12 layers of attention two are there."""
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert offloaded_gpu_bytes(model.stack, lambda kind: 1000 if kind.name == "full_attention" else 1) == 36 + 2000


def test_encoder_outputs() -> None:
    """As many vectors of the hidden width as a batch has tokens; one more for each deep layer."""
    gemma, qwen = load_model("google/gemma-3-27b-it"), load_model("Qwen/Qwen3-VL-2B-Instruct")
    text = encoder_cache_bytes(load_model("meta-llama/Llama-3.1-8B"), 8192)
    small, large, deep = encoder_cache_bytes(gemma, 8192), encoder_cache_bytes(gemma, 16_384), encoder_cache_bytes(qwen, 8192)

    assert text is not None
    assert small is not None
    assert large is not None
    assert deep is not None
    assert (text.low, text.high) == (0, 0)
    assert (small.low, small.expected) == (0, 8192 * 5376 * 2)
    assert large.expected == 2 * small.expected
    assert deep.expected == 8192 * 2048 * 2 * 4
