"""Each kind's worked example, with its arithmetic written out, and the registry that holds the kinds."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from copy import copy
from typing import Final

import pytest

from hwcalc.formulas import (
    KINDS,
    MAX_DIMENSION,
    AttentionKind,
    BlockSparseAttention,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    DType,
    ExpandedLatentAttention,
    FullAttention,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    MatrixLSTM,
    MetaTokens,
    NoCache,
    RealGatedLRU,
    Role,
    Rwkv4,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SinkAttention,
    SlidingAttention,
    SparseIndexer,
    StreamConvolutions,
)
from hwcalc.formulas.kind import register
from hwcalc.formulas.states import StateKind

BF16: Final = DType(name="bf16", block_elements=1, block_bytes=2)
FP32: Final = DType(name="fp32", block_elements=1, block_bytes=4)
FP8_SCALED: Final = DType(name="fp8, one fp32 scale per 128", block_elements=128, block_bytes=132)

ENCODER_TOKENS: Final = 1500


def bytes_of(kind: LayerKind, tokens: int) -> int:
    """Bytes with a bf16 cache, fp32 states and an fp8 indexer."""
    other = {Role.STATE: FP32, Role.INDEX: FP8_SCALED}
    return sum(tensor.bytes(other.get(tensor.role, BF16), tokens, ENCODER_TOKENS) for tensor in kind.tensors())


AFTER_FOUR_TOKENS: Final[tuple[tuple[LayerKind, int], ...]] = (
    # n x heads x (key + value) x 2
    (FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128), 4 * 8 * (128 + 128) * 2),
    (FullAttention(num_attention_heads=64, num_key_value_heads=4, head_dim=192, v_head_dim=128), 4 * 4 * (192 + 128) * 2),
    # A window of three has let go of the first token.
    (
        SlidingAttention(num_attention_heads=8, num_key_value_heads=4, head_dim=256, v_head_dim=256, window=3),
        3 * 4 * (256 + 256) * 2,
    ),
    (
        ChunkedAttention(num_attention_heads=40, num_key_value_heads=8, head_dim=128, v_head_dim=128, chunk=3),
        3 * 8 * (128 + 128) * 2,
    ),
    # One sink and a window of two: [A_CD].
    (
        SinkAttention(num_attention_heads=32, num_key_value_heads=32, head_dim=128, v_head_dim=128, sink=1, window=2),
        (1 + 2) * 32 * (128 + 128) * 2,
    ),
    # The meta tokens are there before the first token.
    (
        MetaTokens(num_attention_heads=25, num_key_value_heads=5, head_dim=64, v_head_dim=128, num_memory_tokens=128),
        128 * 5 * (64 + 128) * 2,
    ),
    # A short sequence keeps keys and values alone.
    (
        BlockSparseAttention(
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=128,
            v_head_dim=128,
            kernel_size=32,
            kernel_stride=16,
            dense_len=8192,
        ),
        4 * 2 * (128 + 128) * 2,
    ),
    # From the fourth token on: two means of two keys, none of eight, and the keys that wait for their mean.
    (
        BlockSparseAttention(
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=128,
            v_head_dim=128,
            kernel_size=2,
            kernel_stride=2,
            dense_len=4,
        ),
        (4 * (128 + 128) + (2 + 0 + 1 + 7) * 128) * 2 * 2,
    ),
    # The latent serves as key and value; the rotary key is shared by all heads.
    (
        LatentAttention(num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128),
        4 * (512 + 64) * 2,
    ),
    (
        ExpandedLatentAttention(num_attention_heads=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
        4 * 128 * ((128 + 64) + 128) * 2,
    ),
    # 128 elements in fp8 and their scale.
    (SparseIndexer(index_n_heads=64, index_head_dim=128), 4 * (128 + 4)),
    # Four raw tokens, one compressed entry, 8 slots of value and gate twice as wide; the same once more for the indexer.
    (
        CompressedAttention(
            num_attention_heads=64,
            head_dim=512,
            window=128,
            compress_ratio=4,
            overlap=True,
            index_n_heads=64,
            index_head_dim=128,
        ),
        4 * 512 * 2 + 1 * 512 * 2 + 2 * 8 * (2 * 512) * 4 + 1 * (128 + 4) + 2 * 8 * (2 * 128) * 4,
    ),
    # Ratio 128 without overlap: no complete group yet, but the slots are there.
    (CompressedAttention(num_attention_heads=64, head_dim=512, window=128, compress_ratio=128), 4 * 512 * 2 + 2 * 128 * 512 * 4),
    (CompressedAttention(num_attention_heads=64, head_dim=512, window=3), 3 * 512 * 2),
    # State in fp32, the last three inputs of a convolution of four taps in bf16.
    (Mamba1(d_inner=8192, d_state=16, d_conv=4), 8192 * 16 * 4 + 8192 * 3 * 2),
    (
        Mamba2(num_heads=128, head_dim=64, d_state=128, n_groups=8, d_conv=4),
        128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 3 * 2,
    ),
    (
        GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, d_conv=4),
        32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2,
    ),
    (KimiDeltaAttention(num_heads=32, head_dim=128, d_conv=4), 32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2),
    (LightningAttention(num_heads=64, head_dim=128), 64 * 128 * 128 * 4),
    (GatedLinearAttention(num_heads=4, key_head_dim=256, value_head_dim=512), 4 * 256 * 512 * 4),
    (RealGatedLRU(lru_width=2560, d_conv=4), 2560 * 4 + 2560 * 3 * 2),
    # Two token shifts in bf16; numerator, denominator and maximum in fp32.
    (Rwkv4(hidden_size=4096, attention_hidden_size=4096), 2 * 4096 * 2 + 3 * 4096 * 4),
    (RwkvMatrix(hidden_size=2560, num_heads=40, head_dim=64), 40 * 64 * 64 * 4 + 2 * 2560 * 2),
    (MatrixLSTM(num_heads=8, qk_head_dim=256, v_head_dim=512), 8 * (256 * 512 + 256 + 1) * 4),
    (ShortConvolution(channels=2048, d_conv=3), 2048 * 2 * 2),
    (
        StreamConvolutions(num_key_value_heads=8, head_dim=128, hidden_size=6144, d_conv=4),
        (2 * 8 * 128 + 2 * 6144) * 3 * 2,
    ),
    # As long as the encoder input, whatever was decoded.
    (
        CrossAttention(num_attention_heads=6, num_key_value_heads=6, head_dim=64, v_head_dim=64),
        ENCODER_TOKENS * 6 * (64 + 64) * 2,
    ),
    (SharedCache(), 0),
    (NoCache(), 0),
)

RECURRENT: Final = (
    Mamba1,
    Mamba2,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    GatedLinearAttention,
    RealGatedLRU,
    Rwkv4,
    RwkvMatrix,
    MatrixLSTM,
    ShortConvolution,
    StreamConvolutions,
)


@pytest.mark.parametrize(
    ("kind", "expected"), [pytest.param(*row, id=f"{i}-{row[0].name}") for i, row in enumerate(AFTER_FOUR_TOKENS)]
)
def test_worked_example(kind: LayerKind, expected: int) -> None:
    """Four tokens of the layer take what the arithmetic says, and the docstring, where it gives a sum, gives this one."""
    assert bytes_of(kind, 4) == expected

    stated = re.findall(r"= ([\d,]+)\s+bytes", kind.__doc__ or "")
    first = next(example for example, _ in AFTER_FOUR_TOKENS if type(example) is type(kind))
    if stated and kind is first:
        assert f"{expected:,}" in stated


ON_A_RANK: Final[tuple[tuple[LayerKind, int, int], ...]] = (
    # Eight key/value heads over 4 ranks are two each; over 16, one each, twice over.
    (FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128), 4, 4 * 2 * 256 * 2),
    (FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128), 16, 4 * 1 * 256 * 2),
    # Five heads over two ranks: three and two.
    (SlidingAttention(num_attention_heads=5, num_key_value_heads=5, head_dim=64, v_head_dim=64, window=3), 2, 3 * 3 * 128 * 2),
    # A latent is everyone's.
    (
        LatentAttention(num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128),
        8,
        4 * 576 * 2,
    ),
    # Spelled out per head it is not.
    (
        ExpandedLatentAttention(num_attention_heads=128, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
        8,
        4 * 16 * 320 * 2,
    ),
    (SparseIndexer(index_n_heads=64, index_head_dim=128), 8, 4 * 132),
    (Mamba1(d_inner=8192, d_state=16, d_conv=4), 2, 4096 * 16 * 4 + 4096 * 3 * 2),
    # One group of B and C goes to both ranks.
    (
        Mamba2(num_heads=128, head_dim=64, d_state=128, n_groups=1, d_conv=4),
        2,
        64 * 64 * 128 * 4 + (64 * 64 + 2 * 128) * 3 * 2,
    ),
    (
        GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, d_conv=4),
        4,
        8 * 128 * 128 * 4 + (2 * 4 * 128 + 8 * 128) * 3 * 2,
    ),
    # Token shifts are as wide as the hidden vector, which every rank has whole.
    (RwkvMatrix(hidden_size=2560, num_heads=40, head_dim=64), 4, 10 * 64 * 64 * 4 + 2 * 2560 * 2),
    (Rwkv4(hidden_size=4096, attention_hidden_size=4096), 2, 2 * 4096 * 2 + 3 * 2048 * 4),
)


@pytest.mark.parametrize(("kind", "ranks", "expected"), ON_A_RANK, ids=lambda value: getattr(value, "name", None))
def test_on_a_rank(kind: LayerKind, ranks: int, expected: int) -> None:
    """Heads and channels are divided, rounded up; what all heads share is not."""
    assert bytes_of(kind.shard(ranks), 4) == expected
    assert kind.shard(1) == kind


def test_every_kind_has_a_worked_example() -> None:
    """No kind without one."""
    assert {kind.name for kind, _ in AFTER_FOUR_TOKENS} == set(KINDS)


@pytest.mark.parametrize("kind", [kind for kind, _ in AFTER_FOUR_TOKENS if type(kind) in RECURRENT], ids=lambda kind: kind.name)
def test_a_state_does_not_grow(kind: LayerKind) -> None:
    """After four million tokens it is what it was after one, and that is not nothing."""
    assert bytes_of(kind, 1) == bytes_of(kind, 4_000_000) > 0


def test_no_tokens_no_cache() -> None:
    """Before the first token nothing is kept."""
    assert all(bytes_of(kind, 0) == 0 for kind, _ in AFTER_FOUR_TOKENS)


def _subclasses(kind: type[LayerKind]) -> Iterator[type[LayerKind]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_every_concrete_kind_is_registered() -> None:
    """A kind of :mod:`hwcalc.formulas` that has a name is in the registry under it; only the shared bases have none."""
    ours = {
        kind
        for kind in _subclasses(LayerKind)
        if kind.__module__.startswith("hwcalc.formulas.")
        and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    }

    assert ours - set(KINDS.values()) == {AttentionKind, StateKind}
    assert all(kind.name == name for name, kind in KINDS.items())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_says_what_it_is(kind: type[LayerKind]) -> None:
    """Name, title, source and docstring stand in the class itself."""
    assert {"name", "title", "source", "__doc__"} <= set(vars(kind))
    assert kind.title
    assert kind.source
    assert kind.__doc__


def test_two_kinds_cannot_share_a_name() -> None:
    """The second to register is refused."""
    with pytest.raises(ValueError, match="full_attention"):
        register(FullAttention)


@pytest.mark.parametrize("head_dim", [0, -1, MAX_DIMENSION + 1, 64.0, "64"])
def test_dimensions_are_checked(head_dim: object) -> None:
    """Only whole numbers in range make a layer; the error names the field."""
    with pytest.raises(ValueError, match="head_dim"):
        FullAttention(num_attention_heads=1, num_key_value_heads=1, head_dim=head_dim, v_head_dim=64)  # type: ignore[arg-type]


def test_no_hash_leaves_the_process() -> None:
    """A kind keeps its hash beside its numbers, but another process has other hashes: a copy there must count its own."""
    kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    packed = pickle.dumps(kind)

    assert {kind: "found"}[copy(kind)] == "found"
    assert pickle.dumps(kind) == packed
