"""Strategies against transformers' own caches and torch's own count of operations, on tiny random models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from hwcalc import strategies
from hwcalc.planner.strategies_result import Strategies

SIZES = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 50,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
CASES = [(5, 17, 2), (1, 20, 1), (30, 30, 3), (12, 13, 1)]


class Counter:
    """Counts what concatenation of keys and values writes, and the most that exists meanwhile."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.written, self.peak, self.real = cache, 0, 0, torch.cat

    def __call__(self, tensors: Any, dim: int = 0, **more: Any) -> Any:
        joined = self.real(tensors, dim=dim, **more)
        if dim == -2 and joined.dim() == 4:
            self.written += joined.nbytes
            self.peak = max(self.peak, self.held + joined.nbytes + tensors[-1].nbytes)
        return joined

    @property
    def held(self) -> int:
        """Bytes of all keys and values."""
        tensors = [getattr(layer, name, None) for layer in self.cache.layers for name in ("keys", "values")]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def asked(config: Any, prompt: int, seq: int, batch: int, **more: Any) -> Strategies:
    """The strategies for this model."""
    return strategies({**config.to_dict(), "dtype": "float32"}, seq=seq, batch=batch, prompt=prompt, dtype="fp32", **more)


@pytest.mark.parametrize(("prompt", "seq", "batch"), CASES)
@pytest.mark.parametrize("window", [None, 8])
def test_growth_of_a_dynamic_cache(
    monkeypatch: pytest.MonkeyPatch, prompt: int, seq: int, batch: int, window: int | None
) -> None:
    """Every byte that ``torch.cat`` writes, what is held, and the peak. A window holds a token less there, as the engine's row does."""
    if window is None:
        config, name = transformers.LlamaConfig(**SIZES), "LlamaForCausalLM"
    else:
        config, name = transformers.MistralConfig(**SIZES, sliding_window=window), "MistralForCausalLM"
    model = getattr(transformers, name)(config).eval()
    cache = transformers.DynamicCache(config=config)
    counter = Counter(cache)
    monkeypatch.setattr(transformers.cache_utils.torch, "cat", counter)
    with torch.no_grad():
        for tokens in (prompt, *[1] * (seq - prompt)):
            model(torch.zeros((batch, tokens), dtype=torch.long), cache=cache, use_cache=True)
    found = asked(config, prompt, seq, batch, engine="transformers")
    growth, own = found.strategies[1], found.strategies[-1]

    assert own.full_bytes == counter.held
    if window is None or prompt <= window:
        assert growth.copied_bytes == counter.written
    if window is None:
        assert (growth.full_bytes, growth.peak_bytes) == (counter.held, counter.peak)


@pytest.mark.parametrize(("prompt", "seq", "batch"), CASES)
def test_operations_by_torchs_own_count(prompt: int, seq: int, batch: int) -> None:
    """With a cache to the last one; without one, torch counts whole squares of scores, masked or not."""
    config = transformers.LlamaConfig(**SIZES, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    found = asked(config, prompt, seq, batch)
    none, growth = found.strategies[:2]
    cached = _counted(model, [(prompt, True), *[(1, True)] * (seq - prompt)], batch)
    recomputed = _counted(model, [(length, False) for length in range(prompt, seq + 1)], batch)
    pairs, each = found.pairs, 3 * batch * 2 * 4 * 32
    squares = each * (prompt * prompt - prompt * (prompt + 1) // 2)
    norms = _norms(model) * 2 * batch

    assert growth.total_flops is not None
    assert none.total_flops is not None
    assert cached == growth.total_flops + squares - norms * seq
    assert recomputed == none.total_flops + each * (pairs.recomputed_scores - pairs.recomputed) - norms * sum(
        range(prompt, seq + 1)
    )


def _counted(model: Any, lengths: list[tuple[int, bool]], batch: int) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    cache = transformers.DynamicCache(config=model.config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for tokens, cached in lengths:
            ids = torch.zeros((batch, tokens), dtype=torch.long)
            model(ids, cache=cache if cached else None, use_cache=cached, logits_to_keep=1)
    return int(counter.get_total_flops())


def _norms(model: Any) -> int:
    """Weights of norms, which count as two operations each in a plan, and are no matrices for torch."""
    return sum(weight.numel() for name, weight in model.named_parameters() if "norm" in name)


@pytest.mark.parametrize(("prompt", "seq", "batch"), CASES[:2])
def test_slots_of_a_static_cache(prompt: int, seq: int, batch: int) -> None:
    """All places from the first pass on."""
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM(config).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=seq)
    with torch.no_grad():
        model(torch.zeros((batch, prompt), dtype=torch.long), cache=cache, use_cache=True)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    assert asked(config, prompt, seq, batch, fill=prompt / seq).strategies[2].held_bytes == held
