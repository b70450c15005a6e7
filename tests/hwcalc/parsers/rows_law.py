"""What a layer caches and the weights that make it have the same rows: a law for each kind of layer, and who breaks it.

A key projection has one row for each channel of each key head, so its rows are the elements that one token's keys take; a
convolution has one filter for each channel whose last inputs are kept. A law for each kind of layer says which weights those
are. Both come from one reading of the config, and the law would show it if they ever came from two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

from hwcalc.formulas import (
    AttentionKind,
    CompressedAttention,
    CrossAttention,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    MatrixLSTM,
    NoCache,
    RealGatedLRU,
    Rwkv4,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SparseIndexer,
)
from hwcalc.formulas.weights import Part
from hwcalc.model import ModelSpec

__all__ = ["LAWS", "WITHOUT_A_LAW", "violations", "without_numbers"]

Tensors = Mapping[str, list[tuple[int, ...]]]
"""The tensors of one layer with more than one axis: by module name, the shape of each that has this name."""

Law = Callable[[Any, Tensors], Iterable[tuple[str, int, list[int]]]]
"""For a kind and the layer's tensors: what is made, the rows that it must have, and the rows of each weight that makes it."""

CROSS: Final = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention", "encoder_decoder_attention")
KEYS: Final = ("k_proj", "key_proj", "project_k", "SelfAttention.k", "EncDecAttention.k", "key", "k_lin")
VALUES: Final = ("v_proj", "value_proj", "project_v", "SelfAttention.v", "EncDecAttention.v", "value", "v_lin")
BOTH: Final = ("kv_proj", "crossattention.c_attn")
FUSED: Final = ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "wqkv", "W_pack", "qkv")

ONE_TENSOR_FOR_BOTH: Final = {
    "gemma4": "attention_k_eq_v: values are the keys before their norm and rotation",
    "gemma4_text": "the same",
    "gemma4_unified": "the same",
    "gemma4_unified_text": "the same",
}
"""Models of which some layers have no value projection: the key projection makes the values too."""

SHARED_WEIGHTS: Final = {
    "zamba": "one transformer block for all attention layers, counted once and outside of the layers",
    "zamba2": "one or two blocks, likewise",
}
"""Models whose attention weights do not stand in the layers that use them."""

RUN_AGAIN: Final = {
    "hrm_text": "two stacks that run in turn: a saved file numbers the runs of each layer as layers of their own",
}
"""Models of which a layer's weights make what several layers keep."""

ONE_ATTENTION: Final = {
    "t5gemma2": "one attention over the tokens and the encoder's states, with one key and one value projection",
    "t5gemma2_decoder": "the same",
}
"""Models whose cross-attention has no weights of its own."""


def named(tensors: Tensors, *names: str) -> list[tuple[int, ...]]:
    """The shapes of the modules whose names end so."""
    return [shape for module, shapes in tensors.items() for shape in shapes if ends(module, names)]


def ends(module: str, names: tuple[str, ...]) -> bool:
    """Whether a module's name is one of these, or ends with it after a dot."""
    return any(module == name or module.endswith(f".{name}") for name in names)


def rows(tensors: Tensors, *names: str) -> list[int]:
    """Rows of the modules whose names end so."""
    return [shape[0] for shape in named(tensors, *names)]


def keys_and_values(kind: AttentionKind, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A key and a value row for each channel of each key/value head, in one to three tensors."""
    keys = kind.num_key_value_heads * kind.head_dim
    values = kind.num_key_value_heads * kind.v_head_dim
    fused = rows(tensors, *FUSED)
    if isinstance(kind, CrossAttention):
        fused = []
    if rows(tensors, *KEYS):
        yield "keys", keys, rows(tensors, *KEYS)
        halves = rows(tensors, "v_proj_current", "v_proj_delayed")
        yield "values", values, [sum(halves)] if halves else rows(tensors, *VALUES)
    elif rows(tensors, *BOTH):
        yield "keys and values", keys + values, rows(tensors, *BOTH)
    elif not fused and rows(tensors, "mamba.in_proj"):
        # Hymba makes queries, keys and values beside the inputs and the gate of Mamba.
        channels = 2 * sum(rows(tensors, "mamba.conv1d")) + kind.num_attention_heads * kind.head_dim
        yield "keys and values", keys + values, [number - channels for number in rows(tensors, "mamba.in_proj")]
    else:
        queries = kind.num_attention_heads * kind.head_dim
        yield "keys and values", keys + values, [number - queries for number in fused]


def self_attention(kind: AttentionKind, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Keys and values of the tokens."""
    own = {module: shapes for module, shapes in tensors.items() if not any(word in module for word in (*CROSS, "indexer"))}
    return keys_and_values(kind, own)


def cross_attention(kind: CrossAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Keys and values of the encoder's states or of an image."""
    return keys_and_values(kind, {m: shapes for m, shapes in tensors.items() if any(word in m for word in CROSS)})


def latent(kind: LatentAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A latent and a rotated key, from one projection; the latent makes the keys and values of every head."""
    yield "latent and rope key", kind.kv_lora_rank + kind.qk_rope_head_dim, rows(tensors, "kv_a_proj_with_mqa")
    yield "keys and values", kind.num_attention_heads * (kind.qk_nope_head_dim + kind.v_head_dim), rows(tensors, "kv_b_proj")
    yield "rank", kind.kv_lora_rank, [shape[1] for shape in named(tensors, "kv_b_proj")]


def index(kind: SparseIndexer, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """One key a token for the indexer, and queries of each of its heads."""
    yield "indexer key", kind.index_head_dim, rows(tensors, "indexer.wk", "indexer.k_proj")
    queries = rows(tensors, "indexer.wq_b", "indexer.q_proj")
    yield "indexer queries", kind.index_n_heads * kind.index_head_dim, queries


def compressed(kind: CompressedAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A latent for the window, and the compressor's values and gates."""
    halves = 2 if kind.overlap else 1
    yield "window latent", kind.head_dim, rows(tensors, "self_attn.kv_proj")
    if kind.compress_ratio is not None:
        yield "compressor value", halves * kind.head_dim, rows(tensors, "compressor.kv_proj")
        yield "compressor gate", halves * kind.head_dim, rows(tensors, "compressor.gate_proj")
    if kind.index_head_dim is not None:
        yield "indexer value", halves * kind.index_head_dim, rows(tensors, "indexer.kv_proj")
        yield "indexer gate", halves * kind.index_head_dim, rows(tensors, "indexer.gate_proj")


def delta(kind: GatedDeltaNet, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A filter for each channel of queries, keys and values, which all pass through one convolution."""
    yield "convolution", kind.conv_dim, [sum(rows(tensors, "conv1d", *(f"attn.{part}_conv1d" for part in "qkv")))]


def kimi_delta(kind: KimiDeltaAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Three convolutions, each of all heads, over what three projections make."""
    wide = kind.num_heads * kind.head_dim
    for part in "qkv":
        yield f"{part} convolution", wide, rows(tensors, f"{part}_conv1d")
        yield part, wide, rows(tensors, f"{part}_proj")


def mamba1(kind: Mamba1, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A filter and a row of the state for each inner channel."""
    yield "convolution", kind.d_inner, rows(tensors, "conv1d")
    yield "state", kind.d_inner * kind.d_state, [prod(shape) for shape in named(tensors, "A_log")]


def mamba2(kind: Mamba2, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A filter for each channel of x, B and C."""
    yield "convolution", kind.conv_dim, rows(tensors, "conv1d")


def short_convolution(kind: ShortConvolution, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A filter for each channel. A layer may have several; this is one of them."""
    # Zaya delays half of the values by a token: what is kept is what their projection makes.
    widths = rows(tensors, "conv.conv", "conv1d", "conv_qk_depthwise", "conv_qk_grouped", "v_proj_delayed")
    # Several side by side, of queries, keys and values, and the taps that Jet-Nemotron makes anew for each token.
    beside = rows(tensors, *(f"attn.{part}_conv1d" for part in "qkvfi"))
    widths += [sum(beside)] if beside else []
    widths += [kind.channels for made in rows(tensors, "kernel_generator.w2") if made == kind.channels * kind.d_conv]
    # Baichuan M1 has taps for each head, over the keys and values that one projection makes beside the queries.
    if rows(tensors, "self_attn.conv_k"):
        queries = [shape[1] for shape in named(tensors, "o_proj")]
        widths += [made - asked for made, asked in zip(rows(tensors, "W_pack"), queries, strict=True)]
    # Stored as taps x channels.
    widths += [shape[1] for shape in named(tensors, "static_weight")]
    yield "convolution", kind.channels, [width for width in widths if width == kind.channels] or widths


def recurrent_unit(kind: RealGatedLRU, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A filter for each channel of the unit."""
    yield "convolution", kind.lru_width, rows(tensors, "conv_1d")


def rwkv4(kind: Rwkv4, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Keys and values of the time mix."""
    yield "keys", kind.attention_hidden_size, rows(tensors, "attention.key")
    yield "values", kind.attention_hidden_size, rows(tensors, "attention.value")


def rwkv_matrix(kind: RwkvMatrix, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Keys and values of the time mix, a head's worth for each head."""
    wide = kind.num_heads * kind.head_dim
    yield "keys", wide, rows(tensors, "attention.key", "attn.k_proj", "att.key")
    yield "values", wide, rows(tensors, "attention.value", "attn.v_proj", "att.value")


def matrix_memory(kind: MatrixLSTM, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Keys and values of each head."""
    yield "keys", kind.num_heads * kind.qk_head_dim, rows(tensors, "mlstm_layer.k")
    yield "values", kind.num_heads * kind.v_head_dim, rows(tensors, "mlstm_layer.v")


def linear(kind: GatedLinearAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Queries of each head, or values of each head: one of the two sides of the matrix."""
    keys, values = kind.num_heads * kind.key_head_dim, kind.num_heads * kind.value_head_dim
    queries, outputs = rows(tensors, "attn.q_proj"), [shape[1] for shape in named(tensors, "attn.o_proj")]
    yield "a side of the matrix", 1, [int([keys] == queries or [values] == outputs)]


def lightning(kind: LightningAttention, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """Queries, keys and values of one shape."""
    apart = rows(tensors, "q_proj", *KEYS, *VALUES)
    yield "queries, keys and values", 3 * kind.num_heads * kind.head_dim, [sum(apart)] if apart else rows(tensors, *FUSED)


def shares(kind: SharedCache, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    """A layer that reads another's cache makes neither keys nor values."""
    del kind
    yield "rows of keys and values", 0, [sum(rows(tensors, *KEYS, *VALUES, *BOTH, "kv_a_proj_with_mqa"))]


LAW_OF_ATTENTION: Final[Law] = self_attention
LAWS: Final[Mapping[type[LayerKind], Law]] = {
    CompressedAttention: compressed,
    CrossAttention: cross_attention,
    GatedDeltaNet: delta,
    GatedLinearAttention: linear,
    KimiDeltaAttention: kimi_delta,
    LatentAttention: latent,
    LightningAttention: lightning,
    Mamba1: mamba1,
    Mamba2: mamba2,
    MatrixLSTM: matrix_memory,
    RealGatedLRU: recurrent_unit,
    Rwkv4: rwkv4,
    RwkvMatrix: rwkv_matrix,
    SharedCache: shares,
    ShortConvolution: short_convolution,
    SparseIndexer: index,
}

WITHOUT_A_LAW: Final = {
    NoCache: "a layer that keeps nothing: MLPs, experts, and attention that reads no earlier token",
}


def law_of(kind: LayerKind) -> Law | None:
    """The law of a kind; all attention that is not named has one in common."""
    if type(kind) in WITHOUT_A_LAW:
        return None
    return LAWS.get(type(kind)) or (LAW_OF_ATTENTION if isinstance(kind, AttentionKind) else _no_law)


def _no_law(kind: LayerKind, tensors: Tensors) -> Iterable[tuple[str, int, list[int]]]:
    del tensors
    raise AssertionError(f"{kind.name} has neither a law nor a reason to have none")


def tensors_of_layers(spec: ModelSpec) -> Sequence[Tensors]:
    """The tensors of each layer of the language model."""
    assert spec.counted is not None
    out: list[dict[str, list[tuple[int, ...]]]] = [{} for _ in spec.stack.layers]
    for block in spec.counted.blocks:
        if block.part is not Part.LANGUAGE:
            continue
        everywhere = spec.model_type in (RUN_AGAIN if block.layers else SHARED_WEIGHTS)
        for number in range(len(out)) if everywhere else set(block.layers or ()):
            for weight in block.weights:
                if len(weight.shape) > 1:
                    module = weight.path.removesuffix(".weight")
                    out[number].setdefault(module, []).append(weight.shape)
    return out


def violations(spec: ModelSpec) -> list[str]:
    """Where cache and weights of a model disagree, by layer."""
    found = []
    for number, (layer, tensors) in enumerate(zip(spec.stack.layers, tensors_of_layers(spec), strict=True)):
        for kind in dict.fromkeys(layer):
            law = law_of(kind)
            if spec.model_type in ONE_ATTENTION and isinstance(kind, CrossAttention):
                law = LAW_OF_ATTENTION
            if law is None:
                continue
            for what, expected, made in law(kind, tensors):
                by_keys = not made and what == "values" and spec.model_type in ONE_TENSOR_FOR_BOTH
                sizes = rows(tensors, *KEYS) if by_keys else made
                if not sizes or set(sizes) != {expected}:
                    found.append(f"layer {number}: {kind.name} keeps {what} of {expected}, the weights make {sizes or 'none'}")
    return found


def without_numbers(spec: ModelSpec) -> list[str]:
    """Blocks that several layers of the language model have, without saying which."""
    assert spec.counted is not None
    return [
        f"{block.kind} x {block.count}"
        for block in spec.counted.blocks
        if block.part is Part.LANGUAGE
        and block.count > 1
        and spec.model_type not in SHARED_WEIGHTS
        and (block.layers is None or len(block.layers) != block.count)
    ]
