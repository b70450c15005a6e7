"""Operations of attention and states: sums written out token by token, and laws that hold for every kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    MatrixLSTM,
    NoCache,
    RealGatedLRU,
    SharedCache,
    SlidingAttention,
    Span,
    SparseIndexer,
)
from hwcalc.formulas.flops import decode_flops, positions_sum, prefill_flops
from hwcalc.formulas.tensor import Chunk, Encoder, Full, Once, Sink, Strided, Window
from tests.formulas.strategies import kinds

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "v_head_dim": 32}
LATENT = LatentAttention(num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)


def seen(span: Span, token: int, encoder_tokens: int, most: int | None) -> int:
    """What the token of this number (from 1) looks at: a chunk begins anew, everything else is what is kept."""
    count = (token - 1) % span.numbers[0] + 1 if isinstance(span, Chunk) else span.positions(token, encoder_tokens)
    return count if most is None else min(count, most)


@given(
    span=st.one_of(
        st.just(Full()),
        st.just(Once()),
        st.just(Encoder()),
        st.builds(Window, st.integers(1, 40)),
        st.builds(Chunk, st.integers(1, 40)),
        st.builds(Strided, st.integers(1, 40)),
        st.builds(Sink, st.integers(1, 10), st.integers(1, 20)),
    ),
    tokens=st.integers(1, 120),
    most=st.one_of(st.none(), st.integers(1, 50)),
)
def test_positions_add_up_token_by_token(span: Span, tokens: int, most: int | None) -> None:
    """The closed form is the sum over all tokens of a prompt."""
    assert positions_sum(span, tokens, 7, most) == sum(seen(span, token, 7, most) for token in range(1, tokens + 1))


@pytest.mark.parametrize(
    ("kind", "tokens", "operations"),
    [
        # 8 query heads x (64 + 32) x 2 for each position.
        (FullAttention(**HEADS), 10, 1536 * 10),
        (SlidingAttention(**HEADS, window=4), 10, 1536 * 4),
        (ChunkedAttention(**HEADS, chunk=4), 10, 1536 * 4),
        (CrossAttention(**HEADS), 10, 1536 * 1500),
        # 128 heads on the latent itself: (512 + 64) for the score and 512 for the sum.
        (LATENT, 10, 2 * 128 * (576 + 512) * 10),
        (SparseIndexer(index_n_heads=64, index_head_dim=128), 10, 2 * 64 * 128 * 10),
        # A multiplication and an addition to keep each of 32 x 128 x 128 numbers, the same to read it.
        (GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, d_conv=4), 10, 4 * 524_288),
        (RealGatedLRU(lru_width=2560, d_conv=4), 10, 2 * 2560),
        (MatrixLSTM(num_heads=8, qk_head_dim=256, v_head_dim=512), 10, 4 * 8 * (256 * 512 + 256 + 1)),
        (SharedCache(), 10, 0),
        (NoCache(), 10, 0),
    ],
)
def test_a_decode_step(kind: LayerKind, tokens: int, operations: int) -> None:
    """One token of one layer, by hand."""
    assert decode_flops(kind, tokens, 1500) == operations


def test_compressed_attention() -> None:
    """100 tokens by fours are 25 entries, of which 20 are selected: 4 x 64 x 512 for each of 16 + 20, 2 x 64 x 128 to score 25."""
    kind = CompressedAttention(
        num_attention_heads=64,
        head_dim=512,
        window=16,
        compress_ratio=4,
        overlap=True,
        index_n_heads=64,
        index_head_dim=128,
        index_topk=20,
    )

    assert decode_flops(kind, 100) == 131_072 * 36 + 16_384 * 25


def test_a_prompt_of_latent_attention_is_multiplied_out() -> None:
    """Four tokens look at 10 positions; keys of 128 + 64 and values of 128 are narrower than the latent twice."""
    assert prefill_flops(LATENT, 4) == 2 * 128 * (192 + 128) * 10


def test_an_indexer_selects() -> None:
    """Of 100 tokens 30 are read: the first 30 see 465 positions, the other 70 see 30 each."""
    assert decode_flops(LATENT, 100, selected=30) == 2 * 128 * 1088 * 30
    assert prefill_flops(LATENT, 100, selected=30) == 2 * 128 * 320 * (465 + 2100)


@given(tokens=st.integers(1, 10_000), ranks=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_the_work(tokens: int, ranks: int) -> None:
    """Eight heads on two ranks are four each, a latent's heads as well."""
    for kind in (FullAttention(**HEADS), LATENT):
        assert decode_flops(kind.shard(ranks), tokens) * ranks == decode_flops(kind, tokens)
        assert prefill_flops(kind.shard(ranks), tokens) * ranks == prefill_flops(kind, tokens)


@given(kind=kinds(), tokens=st.integers(1, 2000), more=st.integers(0, 2000))
def test_every_kind_does_more_with_more_tokens(kind: LayerKind, tokens: int, more: int) -> None:
    """No kind is without a rule, and none does less for a longer sequence."""
    assert 0 <= decode_flops(kind, tokens, 10) <= decode_flops(kind, tokens + more, 10)
    assert 0 <= prefill_flops(kind, tokens, 10) <= prefill_flops(kind, tokens + more, 10)
