"""Figures that others publish, and worked cases."""

from __future__ import annotations

import pytest

from hwcalc import keep
from hwcalc.errors import UsageError
from tests.hwcalc.policies.tiny import tiny

QWEN = "Qwen/Qwen3-8B"


def test_rounding() -> None:
    """1,000 x (1 - 0.9) is 99.99...8 in doubles, so that 99 stay; PyramidKV alone rounds."""
    assert keep(tiny(), "knorm:compression_ratio=0.9", prompt=1000).per_layer == [99] * 4
    assert keep(tiny(), "knorm:compression_ratio=0.999", prompt=1000).per_layer == [1] * 4
    assert keep(tiny(), "pyramidkv:compression_ratio=0.9,window_size=64", prompt=1000).per_layer == [100] * 4


def test_the_authors_pyramid_keeps_the_window_besides() -> None:
    """Kvpress counts the window into the budget, the authors' code does not."""
    policy = "pyramidkv:compression_ratio=0.7,window_size=16,beta=10"

    assert keep(tiny(), policy, prompt=1000).per_layer == [570, 390, 210, 30]
    assert keep(tiny(), policy, prompt=1000, rules="paper").per_layer == [586, 406, 226, 46]


@pytest.mark.parametrize(
    ("layers", "tokens", "ratio", "window", "beta", "kept"),
    [(2, 348, 0.7, 4, 20, [207, 9]), (2, 322, 0.40107076549286413, 4, 5, [196, 196]), (4, 249, 0.1, 8, 20, [232] * 4)],
)
def test_the_authors_pyramid_as_their_code_runs(
    layers: int, tokens: int, ratio: float, window: int, beta: int, kept: list[int]
) -> None:
    """Lengths that KVCache-Factory c97f9d7 left, run with a capacity of the window and int(n x (1 - ratio))."""
    policy = ["PyramidKVPress", {"compression_ratio": ratio, "window_size": window, "beta": beta}]

    assert keep(tiny({"layers": layers}), policy, prompt=tokens, rules="paper").per_layer == kept


def test_triattention_saves_ten_times() -> None:
    """10.67 x at the cut and 10.24 x at the peak: 4.5 GiB of Qwen3-8B at 32K to 432 MiB, and 450 MiB."""
    kept = keep(QWEN, "triattention:kv_budget=3072", prompt=32768, decode=200, offline=True)

    assert (kept.full_bytes, kept.cache_bytes) == (9 * 2**29, 432 * 2**20)
    assert kept.most_tokens_within_step == 3072 + 128
    assert kept.full_bytes / kept.cache_bytes == pytest.approx(10.67, abs=0.005)
    assert 32768 / kept.most_tokens_within_step == 10.24


def test_triattention_blocks() -> None:
    """2,048 and 128: 136 blocks of 16 at the most, 128 behind the cut."""
    kept = keep(QWEN, "triattention", prompt=2048, decode=128, offline=True)

    assert (kept.series[-2:], kept.most_tokens_within_step // 16, kept.series[-1] // 16) == ([2175, 2048], 136, 128)


def test_eager_scores() -> None:
    """260 GiB for one layer of 32 heads at 32,768 tokens in fp32; 36 n x n and 68 n x n bytes on the tiny models, 42 n x n in bf16."""
    wide = tiny({"heads": 32, "kv": 8, "hidden": 1024})
    (scores,) = keep(wide, "observedattention:compression_ratio=0.5", prompt=32768).beside

    assert scores.bytes == 260 * 2**30
    for model, factor in (({}, 36), ({"heads": 8, "hidden": 128}, 68), ({"dtype": "bfloat16"}, 42)):
        (scores,) = keep(tiny(model), None, prompt=512, attention="eager").beside
        assert scores.bytes == factor * 512 * 512


def test_quest_keeps_keys_of_pages() -> None:
    """1 / page of the cache more: 6.25 % at 16."""
    kept = keep(QWEN, "quest:chunk_size=16", prompt=16384, offline=True)
    (keys,) = kept.beside

    assert (kept.frees_memory, keys.bytes * 16) == (False, kept.cache_bytes)


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        ("h2o:budget=8", [8] * 6),
        ("tova:budget=8", [8] * 6),
        ("streamingllm:budget=8,n_sink=2", [8] * 6),
        ("snapkv:budget=8,window_size=2", [9, 10, 11, 12, 13, 14]),
        ("scissorhands:budget=8,drop=3", [6, 7, 8, 6, 7, 8]),
        ("rkv:budget=8,divide_length=4,window_size=2", [8, 9, 10, 11, 8, 9]),
        ("snapkv:budget=8,window_size=2,divide_length=4", [8, 9, 10, 11, 8, 9]),
        ("triattention:kv_budget=8,divide_length=4", [9, 10, 11, 8, 9, 10]),
        ("triattention:kv_budget=8,divide_length=4,prefill_outside_budget=true", [21, 22, 23, 24, 25, 26]),
    ],
)
def test_what_papers_do_while_decoding(policy: str, lengths: list[int]) -> None:
    """A prompt of 20 tokens and six steps."""
    assert keep(tiny(), policy, prompt=20, decode=6).series == lengths


def test_the_paper_cuts_a_share_in_each_step() -> None:
    """StreamingLLM: kvpress lets the text grow, the paper holds its window."""
    policy = "streamingllm:compression_ratio=0.5"

    assert keep(tiny(), policy, prompt=100, decode=3).series == [51, 52, 53]
    assert keep(tiny(), policy, prompt=100, decode=3, rules="paper").series == [50, 50, 50]


def test_windows_and_states_are_untouched() -> None:
    """A policy acts on layers that keep every token."""
    config = tiny() | {
        "model_type": "gemma3_text",
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    kept = keep(config, "knorm:compression_ratio=0.5", prompt=1000, decode=10)

    assert (kept.per_layer, kept.after_decode_per_layer) == ([64, 500, 64, 500], [64, 510, 64, 510])
    assert kept.layers_acted_on == 2
    assert "policy-layers" in {note.code for note in kept.notes}


def test_a_model_without_attention_keeps_its_state() -> None:
    """Nothing to act on, and it is said."""
    kept = keep("state-spaces/mamba-130m-hf", "knorm:compression_ratio=0.5", prompt=1000, decode=2, offline=True)

    assert (kept.layers_acted_on, kept.frees_memory, kept.cache_bytes) == (0, False, kept.full_bytes)


def test_latents_are_dropped_by_token() -> None:
    """Latent attention keeps one row a token, which goes as a whole."""
    kept = keep("deepseek-ai/DeepSeek-V2-Lite", "knorm:compression_ratio=0.5", prompt=1000, offline=True)

    assert 2 * kept.cache_bytes == kept.full_bytes


@pytest.mark.parametrize("policy", ["knorm:compression_ratio=0.5", "streamingllm:compression_ratio=0.5", "adakv:press=(knorm)"])
def test_kvpress_does_not_run_with_flex_attention(policy: str) -> None:
    """Run: flex_attention_forward() got multiple values for argument 'scaling', with any press and without."""
    with pytest.raises(UsageError, match="flex_attention"):
        keep(tiny(), policy, prompt=40, attention="flex_attention")
