"""kvpress itself, on tiny random models, keeps what is said here. Run where kvpress 0.5.5 is installed; it pins an older transformers."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any, Final

import pytest

from hwcalc import keep
from hwcalc.errors import UsageError
from hwcalc.policies.base import Choice
from hwcalc.policies.parse import parse_policy
from tests.effort import sample
from tests.hwcalc.policies.tiny import tiny

kvpress = pytest.importorskip(
    "kvpress", reason="kvpress is not installed beside an older transformers: tests/hwcalc/policies/kvpress.txt says how"
)

Given = list[Any]


def press(name: str, **options: Any) -> Given:
    """A policy as a name and its options."""
    return [name, options]


def knorm(ratio: float = 0.5) -> Given:
    """The simplest scorer."""
    return press("KnormPress", compression_ratio=ratio)


def snapkv(ratio: float = 0.5, window: int = 16) -> Given:
    """A scorer that needs more tokens than its window."""
    return press("SnapKVPress", compression_ratio=ratio, window_size=window)


def pyramid(ratio: float = 0.5, window: int = 8, beta: int = 20) -> Given:
    """The scorer whose layers differ."""
    return press("PyramidKVPress", compression_ratio=ratio, window_size=window, beta=beta)


ROWS: Final[tuple[tuple[Given, int, int], ...]] = (
    *((knorm(ratio), tokens, 3) for ratio in (0, 0.01, 0.3, 0.6, 0.95) for tokens in (1, 2, 10, 123, 777)),
    *((press(name, compression_ratio=0.3), 200, 2) for name in ("KeyDiffPress", "TOVAPress", "LagKVPress", "CURPress", "CapPress")),
    *((press(name, compression_ratio=0.7), 300, 2) for name in ("LeverageScorePress", "NonCausalAttnPress", "CompactorPress")),
    *((press("StreamingLLMPress", compression_ratio=0.8, n_sink=sinks), 50, 2) for sinks in (0, 4, 49, 50)),
    *((snapkv(0.4, window), 80, 2) for window in (1, 64, 79, 80, 81)),
    *((pyramid(ratio, window), 600, 2) for ratio in (0.1, 0.45, 0.62, 0.85, 0.97) for window in (4, 30)),
    (pyramid(0.6, 8, 3), 431, 2),
    (press("KeyRerotationPress", press=pyramid(0.6)), 500, 2),
    (press("MergingPress", press=pyramid(0.6)), 500, 2),
    (press("MergingPress", press=snapkv(0.35), similarity_threshold=0.5), 101, 2),
    (press("CriticalKVPress", press=pyramid(0.6)), 500, 2),
    (press("ChunkKVPress", press=pyramid(0.6), chunk_length=600), 500, 2),
    (press("ChunkKVPress", press=knorm(0.5), chunk_length=50), 500, 2),
    (press("EntropyGatedChunkKVPress", press=knorm(0.63)), 333, 2),
    (press("ChunkPress", press=snapkv(0.5), chunk_length=100), 333, 2),
    (press("ChunkPress", press=snapkv(0.5), chunk_length=100), 310, 2),
    (press("ChunkPress", press=press("StreamingLLMPress", compression_ratio=0.9), chunk_length=7), 37, 2),
    (press("BlockPress", press=knorm(0.83), block_size=64), 333, 2),
    (press("BlockPress", press=knorm(0), block_size=64), 333, 2),
    (press("PerLayerCompressionPress", press=pyramid(), compression_ratios=[0.1, 0.4, 0.6, 0.0]), 600, 2),
    (press("ComposedPress", presses=[pyramid(0.3), knorm(0.4)]), 600, 2),
    (press("ComposedPress", presses=[knorm(0.9), snapkv(0.5, 64)]), 600, 2),
    (press("ComposedPress", presses=[press("KeyRerotationPress", press=knorm(0.9)), knorm(0.4)]), 600, 2),
    (press("SimLayerKVPress", lazy_threshold=0.0, n_recent=30, n_last=5, n_initial=2), 100, 2),
    (press("SimLayerKVPress", lazy_threshold=0.0, n_recent=95, n_last=1, n_initial=4), 100, 2),
    (press("ThinKPress", key_channel_compression_ratio=0.4), 100, 2),
    (press("AdaKVPress", press=pyramid(0.6), alpha_safeguard=1.0), 200, 2),
    (press("CriticalAdaKVPress", press=knorm(0.6), alpha_safeguard=1.0), 200, 2),
    *(
        (press("DecodingPress", base_press=base, compression_interval=interval, target_size=target), tokens, 70)
        for base in (knorm(0), pyramid(0), press("KeyDiffPress"), press("AdaKVPress", press=knorm(0)))
        for interval, target, tokens in ((1, 1, 20), (7, 33, 50), (16, 100, 40))
    ),
    (press("DecodingPress", base_press=snapkv(0), compression_interval=16, target_size=40), 50, 40),
    (press("DecodingPress", base_press=snapkv(0), compression_interval=17, target_size=40), 50, 40),
    (press("DecodingPress", base_press=snapkv(0), compression_interval=30, target_size=40, hidden_states_buffer_size=9), 50, 40),
    (press("DecodingPress", base_press=press("StreamingLLMPress", n_sink=60), compression_interval=4, target_size=40), 50, 40),
    *(
        (press("CompressionRatioDecodingPress", base_press=knorm(0), compression_interval=interval, target_compression_ratio=ratio), 60, 50)
        for interval in (1, 9)
        for ratio in (0, 0.25, 0.7, 0.99)
    ),
    (press("PrefillDecodingPress", prefilling_press=pyramid(0.6), decoding_press=press(
        "DecodingPress", base_press=knorm(0), compression_interval=10, target_size=150)), 500, 40),
    (press("PrefillDecodingPress", prefilling_press=knorm(0.6)), 100, 10),
    (press("PrefillDecodingPress", prefilling_press=press("AdaKVPress", press=knorm(0.5)), decoding_press=press(
        "DecodingPress", base_press=knorm(0), compression_interval=10, target_size=30)), 100, 40),
    (press("ChunkPress", press=press("CompactorPress", compression_ratio=0.2), chunk_length=97), 109, 2),
    (press("ChunkPress", press=press("CompactorPress", compression_ratio=0.2), chunk_length=97), 110, 2),
    (press("SimLayerKVPress", lazy_threshold=0.0, n_recent=5, n_last=7, n_initial=2), 40, 2),
    (press("SimLayerKVPress", lazy_threshold=0.0, n_recent=5, n_last=5, n_initial=20), 118, 2),
    *((press("CAMPress", base_press=base, compression_interval=interval, target_size=target), tokens, 60)
      for base in (press("KnormPress"), pyramid(0), snapkv(0, 5)) for interval, target, tokens in ((16, 64, 100), (4, 64, 40), (5, 1, 20))),
    (press("CAMPress", base_press=snapkv(0, 5), compression_interval=6, target_size=30, hidden_states_buffer_size=4), 50, 20),
    *((press("ComposedPress", presses=[knorm(), press("ChunkPress", press=press(name, compression_ratio=0.5), chunk_length=7)]), 64, 2)
      for name in ("KnormPress", "NonCausalAttnPress")),
    (press("ComposedPress", presses=[pyramid(), press("ChunkKVPress", press=knorm(), chunk_length=600)]), 600, 2),
    (press("PrefillDecodingPress", decoding_press=press("CAMPress", base_press=knorm(0), compression_interval=10, target_size=30)), 100, 40),
    (press("PrefillDecodingPress", decoding_press=press(
        "CompressionRatioDecodingPress", base_press=pyramid(0), compression_interval=10)), 100, 40),
)  # fmt: skip


@cache
def model(attention: str = "sdpa") -> Any:
    """A small random Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        **{key: value for key, value in tiny().items() if key not in {"model_type", "dtype"}}, attn_implementation=attention
    )
    config.name_or_path = "tiny"
    return LlamaForCausalLM(config).eval()


def made(given: Given) -> Any:
    """The press of a name and its options."""
    name, options = given

    def value(one: Any) -> Any:
        if isinstance(one, list) and one and isinstance(one[0], str):
            return made(one)
        return [value(part) for part in one] if isinstance(one, list) else one

    return getattr(kvpress, name)(**{key: value(one) for key, one in options.items()})


def lengths(given: Given, tokens: int, steps: int) -> tuple[list[int], list[list[int]]]:
    """The tokens in each layer behind the prefill and behind each step."""
    import torch
    from transformers import DynamicCache

    one, net, stored = made(given), model(), DynamicCache()
    for layer in net.model.layers:
        layer.self_attn.masked_key_indices = None
    ids = torch.randint(0, 500, (1, tokens + steps), generator=torch.Generator().manual_seed(1))
    decodes = isinstance(one, (kvpress.DecodingPress, kvpress.PrefillDecodingPress))
    with torch.no_grad():
        with contextlib.nullcontext() if isinstance(one, kvpress.DecodingPress) else one(net):
            net.model(input_ids=ids[:, :tokens], past_key_values=stored)
        first = [layer.keys.shape[2] for layer in stored.layers]
        start = first[0] if isinstance(one, kvpress.KeyRerotationPress) else tokens
        series = []
        with one(net) if decodes else contextlib.nullcontext():
            for step in range(steps):
                place = torch.tensor([[start + step]])
                net(input_ids=ids[:, tokens + step : tokens + step + 1], past_key_values=stored, position_ids=place)
                series.append([layer.keys.shape[2] for layer in stored.layers])
    return first, series


@pytest.mark.parametrize(("given", "tokens", "steps"), sample(ROWS, 60))
def test_kvpress_keeps_the_same(given: Given, tokens: int, steps: int) -> None:
    """Behind the prefill and behind each step, in each layer; and it fails where an error is said here."""
    try:
        kept = keep(tiny(), given, prompt=tokens, decode=steps)
    except UsageError:
        with pytest.raises((AssertionError, RuntimeError, ValueError, IndexError)):
            lengths(given, tokens, steps)
        return
    first, series = lengths(given, tokens, steps)

    assert kept.per_layer == first
    assert kept.series == [step[0] for step in series]
    assert kept.after_decode_per_layer == series[-1]


@pytest.mark.parametrize(
    "given",
    [
        knorm(),
        snapkv(),
        press("TOVAPress", compression_ratio=0.5),
        press("ExpectedAttentionPress", compression_ratio=0.5),
        press("ChunkKVPress", press=knorm(), chunk_length=10),
        press("EntropyGatedChunkKVPress", press=knorm()),
        press("SimLayerKVPress", lazy_threshold=0.0, n_recent=30),
        press("CriticalKVPress", press=press("TOVAPress", compression_ratio=0.5)),
        press("BlockPress", press=press("TOVAPress", compression_ratio=0.5)),
        press("ComposedPress", presses=[press("TOVAPress", compression_ratio=0.5), knorm()]),
        press("ComposedPress", presses=[press("TOVAPress", compression_ratio=0.5), press("TOVAPress", compression_ratio=0.5)]),
    ],
)
def test_who_chooses(given: Given) -> None:
    """A choice for all heads of a layer leaves them the same tokens, and one of each head does not."""
    import torch
    from transformers import DynamicCache

    chosen = parse_policy(given)
    assert chosen is not None
    net, whole, cut = model(), DynamicCache(), DynamicCache()
    ids = torch.randint(0, 500, (1, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.model(input_ids=ids, past_key_values=whole)
        with made(given)(net):
            net.model(input_ids=ids, past_key_values=cut)
    # Nothing is cut before the first layer's keys are made, so that they are those of the whole cache.
    all_keys, keys = whole.layers[0].keys[0], cut.layers[0].keys[0]
    places = [sorted(torch.cdist(keys[head], all_keys[head]).argmin(dim=1).tolist()) for head in range(len(keys))]

    assert (places[0] == places[1]) == (chosen.chooses is Choice.EACH_LAYER)
