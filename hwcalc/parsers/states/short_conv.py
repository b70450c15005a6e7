"""Short convolutions: on most layers of LFM2 and LFM3, and around the attention of Inkling and ZAYA.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. In Inkling, keys and values pass a short convolution, and so do the
outputs of attention and MLP. Its relative positions are learned: ``d_rel`` numbers for each head and distance, up to an extent or
the window. Inkling 2 Mini runs its middle layers several times. In ZAYA, queries and keys pass two convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import AttentionKind, FullAttention, Layer, ShortConvolution, StreamConvolutions
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.decoder.build import sparse_layers
from hwcalc.parsers.reading import LayerReader, Reading, attention_dims, equal_dims, full_layer, kind_in, windowed_layer
from hwcalc.parsers.states import FULL, HYBRID, HYBRID_SLIDING, SLIDING, Interleaved

_CONV: Final = "conv"


def _either(layer: Callable[..., Layer]) -> dict[str, LayerReader]:
    """The readers of a family whose layers have full or sliding attention, and convolutions beside it."""
    return {HYBRID: partial(layer, sliding=False), HYBRID_SLIDING: partial(layer, sliding=True)}


def _lfm2_types(config: Config, count: int) -> list[str]:
    """``full_attn_idxs`` counts from 0. If it is null or absent every layer has attention; with experts, types must be listed."""
    full = config.integers("full_attn_idxs")
    if full is None and config.model_type == "lfm2_moe":
        raise config.missing("layer_types")
    attending = set(range(count) if full is None else full)
    return [FULL if i in attending else _CONV for i in range(count)]


def _conv_layer(config: Config, index: int) -> Layer:
    return (ShortConvolution(channels=config.integer("hidden_size"), d_conv=config.integer("conv_L_cache")),)


def _lfm(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has one mixer and one MLP, or experts after the first ``num_dense_layers``."""
    hidden, bias = config.integer("hidden_size"), config.flag("conv_bias")
    names = ["operator_norm", "ffn_norm"]
    if config.model_type == "lfm3" and config.flag("use_sandwich_norm"):
        names += ["post_operator_norm", "post_ffn_norm"]

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        kind = layer[0]
        if isinstance(kind, AttentionKind):
            yield "attention", _lfm_attention(config, kind)
        else:
            yield "conv", w.short_convolution(hidden, kind_in(config, layer, ShortConvolution).d_conv, bias=bias)
        if sparse:
            count = config.integer("num_experts")
            expert = _lfm_mlp(hidden, config.integer("moe_intermediate_size"), "feed_forward.experts")
            router = w.linear("feed_forward.gate", hidden, count, role=WeightRole.ROUTER)
            yield "moe", w.experts(expert, count, config.integer("num_experts_per_tok")) + router
        else:
            yield "mlp", _lfm_mlp(hidden, _lfm_width(config), "feed_forward")
        yield "norm", rms_norms(hidden, *names)

    dense = config.maybe_integer("num_dense_layers", minimum=0) or 0
    layers = [(layer, config.model_type == "lfm2_moe" and i >= dense) for i, layer in enumerate(reading.layers)]
    return ends(config, top, norm="model.embedding_norm") + repeated(layers, weigh)


def _lfm_width(config: Config) -> int:
    """The MLP's width. LFM2 takes two thirds of ``block_ff_dim``, times a factor, rounded up: 12,288 -> 8,192."""
    width = config.integer("intermediate_size")
    if config.model_type != "lfm2" or not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if config.get("block_ffn_dim_multiplier") is None:
        return width
    step = config.integer("block_multiple_of")
    scaled = int(config.number("block_ffn_dim_multiplier", 1) * width)
    return config.checked_integer("block_ffn_dim_multiplier", -(-scaled // step) * step)


def _lfm_attention(config: Config, kind: AttentionKind) -> Weighed:
    """Attention. LFM3 has other names for norms and output, may have biases, and may gate each head."""
    hidden = config.integer("hidden_size")
    if config.model_type == "lfm3":
        bias = config.flag("attention_bias")
        weights = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)
        gated = config.flag("use_attention_gate")
        return weights + (w.linear("self_attn.g_proj", hidden, kind.num_attention_heads) if gated else ())
    weights = attention_of(kind, hidden)[:-1]
    weights += w.linear("self_attn.out_proj", kind.num_attention_heads * kind.v_head_dim, hidden)
    return weights + rms_norms(kind.head_dim, "self_attn.q_layernorm", "self_attn.k_layernorm")


def _lfm_mlp(hidden: int, width: int, path: str) -> Weighed:
    """Gate, up and down with the names of LFM."""
    return w.linear(f"{path}.w1", hidden, width) + w.linear(f"{path}.w3", hidden, width) + w.linear(f"{path}.w2", width, hidden)


_LFM_READERS: Final = {_CONV: _conv_layer, FULL: full_layer, SLIDING: windowed_layer}


def _inkling_types(config: Config, count: int) -> list[str]:
    """``local_layer_ids`` counts from 0. Without it every sixth layer has full attention."""
    local = config.integers("local_layer_ids")
    windowed = {i for i in range(count) if (i + 1) % 6} if local is None else set(local)
    return [HYBRID_SLIDING if i in windowed else HYBRID for i in range(count)]


def _inkling_layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """Attention and four states: for keys, for values, and for the outputs of attention and MLP."""
    prefix = "swa_" if sliding else ""
    heads = config.integer(f"{prefix}num_attention_heads")
    kv_heads = config.maybe_integer(f"{prefix}num_key_value_heads")
    dims = equal_dims(heads, kv_heads, config.integer(f"{prefix}head_dim"))
    kernel = config.integer("conv_kernel_size")
    keys = ShortConvolution(channels=dims.num_key_value_heads * dims.head_dim, d_conv=kernel)
    hidden = ShortConvolution(channels=config.integer("hidden_size"), d_conv=kernel)
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, keys, keys, hidden, hidden)


class _Convolved(Interleaved):
    """A family whose layers have attention with four convolutions, which vLLM keeps side by side."""

    def read(self, config: Config) -> Reading:
        reading = super().read(config)
        return replace(reading, readings={"vllm": tuple(_side_by_side(config, layer) for layer in reading.layers)})


def _side_by_side(config: Config, layer: Layer) -> Layer:
    # The convolution of the keys comes first, that of the hidden states last.
    attention, keys, hidden = (
        kind_in(config, layer, AttentionKind),
        kind_in(config, layer, ShortConvolution),
        kind_in(config, layer[::-1], ShortConvolution),
    )
    heads, width = attention.num_key_value_heads, attention.head_dim
    streams = StreamConvolutions(num_key_value_heads=heads, head_dim=width, hidden_size=hidden.channels, d_conv=keys.d_conv)
    return (attention, streams)


class _Loop(Record):
    """Layers that run several times on a token: their numbers, the passes, and the rank of the gates between passes."""

    layers: range
    passes: int
    rank: int


def _loop_of(config: Config) -> _Loop:
    """The loop by ``loop_config``, and what that leaves out by the keys of the class."""
    nested = config.sub("loop_config")

    def number(inner: str, key: str, minimum: int = 1) -> int:
        given = nested.maybe_integer(inner, minimum=minimum, maximum=MAX_LAYERS) if nested is not None else None
        return config.integer(key, minimum=minimum, maximum=MAX_LAYERS) if given is None else given

    first, end = number("core_start", "loop_layer_index_start"), number("core_end", "loop_layer_index_end", minimum=0)
    rank = nested.maybe_integer("gate_rank") if nested is not None else None
    return _Loop(
        layers=range(first, end),
        passes=number("num_passes", "loop_num_passes"),
        rank=config.integer("loop_gate_rank") if rank is None else rank,
    )


class _Looped(_Convolved):
    """A family whose middle layers run several times on a token. Each pass has keys, values and states of its own."""

    def read(self, config: Config) -> Reading:
        reading, loop = super().read(config), _loop_of(config)

        def looped(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(layer * (loop.passes if index in loop.layers else 1) for index, layer in enumerate(layers))

        readings = {engine: looped(layers) for engine, layers in reading.readings.items()}
        return replace(reading, layers=looped(reading.layers), readings=readings, weighed=reading.layers)


def _inkling_ends(config: Config, top: Config, head_rows: int | None = None) -> list[Block]:
    """Embeddings, head and norms. There is one norm more, for the embeddings."""
    embedded = w.rms_norm("model.embed_tokens.embed_norm", config.integer("hidden_size"))
    return [*ends(config, top, head_rows=head_rows), Block(kind="norm", weights=embedded)]


def _inkling(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden, named = config.integer("hidden_size"), config.maybe_integer("dense_intermediate_size")
    # If a file gives the dense width by a key of its own, intermediate_size is the width of the experts.
    width = config.integer("intermediate_size" if named is not None else "moe_intermediate_size")
    count, shared = config.integer("n_routed_experts"), config.integer("n_shared_experts")
    moe = w.experts(w.gated_mlp(hidden, width, path="mlp.experts"), count, config.integer("num_experts_per_tok"))
    moe += w.experts(w.gated_mlp(hidden, width, path="mlp.shared_experts"), shared, shared)
    moe += w.linear("mlp.gate", hidden, count + shared, role=WeightRole.ROUTER) + w.parameter("mlp.gate.global_scale", 1)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        kind = kind_in(config, layer, AttentionKind)
        yield "attention", (*attention_of(kind, hidden, qk_norm=True), *_relative(config, kind))
        yield "conv", _convolutions(layer, ("self_attn.k_sconv", "self_attn.v_sconv", "attn_sconv", "mlp_sconv"))
        if sparse:
            yield "moe", moe
        else:
            dense = named if named is not None else config.integer("intermediate_size")
            yield "mlp", w.gated_mlp(hidden, dense) + w.parameter("mlp.global_scale", 1)
        yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    dense = config.maybe_integer("dense_mlp_idx", minimum=0) or 0
    sparse = sparse_layers(config, len(reading.layers), dense)
    out = _inkling_ends(config, top) + repeated(zip(reading.layers, sparse, strict=True), weigh)
    # The layers that predict further tokens have a dense MLP. A document has their keys beside the language model's.
    level, count_key, local_key = top.sub("mtp_config"), "num_nextn_predict_layers", "local_layer_ids"
    if level is None:
        level, count_key, local_key = config, "num_mtp_layers", "mtp_local_layer_ids"
    modules = level.maybe_integer(count_key, minimum=0) or 0
    local = set(level.integers(local_key) or ())
    predicting = [(_inkling_layer(config, i, sliding=i in local), False) for i in range(modules)]
    if predicting:
        join = rms_norms(hidden, "mtp.embed_norm", "mtp.hidden_norm") + w.linear("mtp.input_proj", 2 * hidden, hidden)
        out.append(Block(kind="mtp", weights=join, part=Part.MTP, count=modules))
        out += repeated(predicting, weigh, Part.MTP)
    return out


def _relative(config: Config, kind: AttentionKind) -> Weighed:
    depth = config.integer("d_rel")
    extent = config.integer("rel_extent" if isinstance(kind, FullAttention) else "sliding_window")
    weights = w.linear("self_attn.r_proj", config.integer("hidden_size"), kind.num_attention_heads * depth)
    return weights + w.parameter("self_attn.rel_logits_proj.proj", depth, extent)


def _convolutions(layer: Layer, names: tuple[str, ...]) -> Weighed:
    """The last convolutions of a layer, as many as there are names."""
    kinds = [kind for kind in layer if isinstance(kind, ShortConvolution)][-len(names) :]
    own = zip(names, kinds, strict=True)
    return tuple(weight for name, kind in own for weight in w.convolution(f"{name}.conv1d", kind.channels, kind.d_conv))


def _inkling2(config: Config, top: Config, reading: Reading, head_rows: int | None = None) -> list[Block]:
    """Experts on every layer. A learned query before each block chooses among the sums of earlier layers.

    A layer of full attention chooses three times, for queries, keys and values, and computes its convolutions for each token.
    The checkpoint's head has a row for each number of ``vocab_size``. transformers 5.24 leaves out those above ``unpadded_vocab_size``.
    """
    hidden, count = config.integer("hidden_size"), config.integer("n_routed_experts")
    active = config.integer("num_experts_per_tok")
    moe = gated_experts(hidden, config.integer("moe_intermediate_size"), count, active)
    kernel = config.integer("conv_kernel_size")

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = kind_in(config, layer, AttentionKind)
        full, heads = isinstance(kind, FullAttention), kind.num_attention_heads
        weights = attention_of(kind, hidden) + _relative(config, kind)
        weights += w.linear("self_attn.gate_proj", hidden, heads * kind.head_dim) + w.linear("self_attn.sink_proj", hidden, heads)
        weights += w.parameter("self_attn.q_l2_clip.scale", heads, kind.head_dim)
        weights += w.parameter("self_attn.rel_l2_clip.scale", heads, config.integer("d_rel"))
        yield "attention", weights
        after = ("post_attention_convolution", "post_mlp_convolution")
        names = after if full else ("self_attn.k_sconv", "self_attn.v_sconv", *after)
        weights = _convolutions(layer, names)
        for name in ("self_attn.k_sconv", "self_attn.v_sconv") if full else ():
            # The kernels are computed from each token.
            keys = kind.num_key_value_heads * kind.head_dim
            weights += w.parameter(f"{name}.static_weight", kernel, keys, role=WeightRole.CONV)
            weights += w.linear(f"{name}.weight_proj", hidden, kind.num_key_value_heads * kernel)
        yield "conv", weights
        yield "moe", moe
        before = ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm") if full else ("input_layernorm",)
        yield "norm", rms_norms(hidden, *before, "post_attention_layernorm")
        queries = w.parameter("mlp_input.query", hidden)
        if not first:
            queries += w.parameter("attention_input.query", 3, hidden) if full else w.parameter("attention_input.query", hidden)
        yield "residual", queries

    layers = [(layer, i == 0) for i, layer in enumerate(reading.weighed or reading.layers)]
    last = Block(kind="residual", weights=w.parameter("model.final_input.query", hidden))
    return [*_inkling_ends(config, top, head_rows), *repeated(layers, weigh), last]


def _inkling2_loop(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Inkling 2 with four gates on each looped layer, which mix in what the last pass says for queries, keys, values and the MLP."""
    hidden, loop = config.integer("hidden_size"), _loop_of(config)
    gates: Weighed = ()
    for name in ("q", "k", "v", "mlp"):
        path = f"{name}_message_gate"
        gates += w.linear(f"{path}.down_proj", 2 * hidden, loop.rank)
        gates += w.linear(f"{path}.forget_gate_proj", loop.rank, hidden) + w.linear(
            f"{path}.message_gate_proj", loop.rank, hidden
        )
    numbers = tuple(number for number in loop.layers if number < len(reading.layers))
    queries = w.parameter("model.message_input.query", len(loop.layers), 4, hidden)
    blocks = _inkling2(config, top, reading, config.integer("unpadded_vocab_size"))
    blocks.append(Block(kind="message", weights=queries))
    return [*blocks, Block(kind="message", weights=gates, count=len(numbers), layers=numbers)] if numbers else blocks


_INKLING_IGNORED: Final = (
    "head_dim", "local_layer_ids", "model_max_length", "mtp_local_layer_ids", "num_attention_heads", "num_key_value_heads",
    "number_of_conv_states", "shared_expert_sink", "sliding_window", "sliding_window_size", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads",
)  # fmt: skip


def _zaya_layer(config: Config, index: int, *, sliding: bool) -> Layer:
    """Attention and two states. The two convolutions follow one another, and half of the values are one token late.

    Kernels of 2 and 2 look back (2 - 1) + (2 - 1) = 2 tokens, over the channels of queries and keys together. The late half needs
    the values of the last token.
    """
    dims = attention_dims(config)
    reach = config.integer("cca_time0") + config.integer("cca_time1") - 2
    width = dims.num_key_value_heads * dims.head_dim
    channels = dims.num_attention_heads * dims.head_dim + width
    attention = dims.sliding(config.integer("sliding_window")) if sliding else dims.full()
    return (attention, ShortConvolution(channels=channels, d_conv=reach + 1), ShortConvolution(channels=width // 2, d_conv=2))


def _zaya(config: Config, top: Config, reading: Reading) -> list[Block]:
    """A depthwise and a grouped convolution. The router is a small MLP, which may also choose to skip all experts."""
    hidden, router = config.integer("hidden_size"), config.integer("router_hidden_size")
    bias, count = config.flag("attention_bias"), config.integer("num_experts")
    moe = w.gated_mlp(hidden, config.integer("moe_intermediate_size"), path="mlp.experts")
    moe = w.experts(moe, count, config.integer("num_experts_per_tok"))
    moe += w.linear("mlp.gate.down_proj", hidden, router, bias=True, role=WeightRole.ROUTER)
    moe += w.rms_norm("mlp.gate.router_mlp.norm", router)
    for name in ("fc1", "fc2"):
        moe += w.linear(f"mlp.gate.router_mlp.{name}", router, router, bias=True, role=WeightRole.ROUTER)
    moe += w.linear("mlp.gate.router_mlp.out_proj", router, count + 1, role=WeightRole.ROUTER)
    vectors = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    paths = (f"post_{place}_residual_scale.{name}" for place in ("attention", "mlp") for name in vectors)
    scales = tuple(w.parameter(path, hidden)[0] for path in paths)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = kind_in(config, layer, AttentionKind)
        yield "attention", _zaya_attention(config, kind, bias=bias)
        yield "moe", moe
        yield "router", () if first else w.parameter("mlp.gate.router_states_scale", router, role=WeightRole.ROUTER)
        yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
        yield "residual", scales

    layers = [(layer, i == 0) for i, layer in enumerate(reading.layers)]
    scaled = w.parameter("model.input_hidden_states_scale", hidden) + w.parameter("model.input_hidden_states_bias", hidden)
    out = [*ends(config, top), *repeated(layers, weigh), Block(kind="residual", weights=scaled)]
    if config.flag("lm_head_bias"):
        vocab = config.integer("vocab_size")
        out.append(Block(kind="head", weights=w.parameter("lm_head.bias", vocab, role=WeightRole.BIAS)))
    return out


def _zaya_attention(config: Config, kind: AttentionKind, *, bias: bool) -> Weighed:
    hidden, heads, kv_heads = config.integer("hidden_size"), kind.num_attention_heads, kind.num_key_value_heads
    path, queries, keys = "self_attn.qkv_proj", heads * kind.head_dim, kv_heads * kind.head_dim
    weights = w.linear(f"{path}.q_proj", hidden, queries, bias=bias) + w.linear(f"{path}.k_proj", hidden, keys, bias=bias)
    for name in ("current", "delayed"):
        weights += w.linear(f"{path}.v_proj_{name}", hidden, keys // 2, bias=bias)
    channels = queries + keys
    weights += w.convolution(f"{path}.conv_qk_depthwise", channels, config.integer("cca_time0"), bias=True)
    grouped = config.integer("cca_time1")
    weights += w.convolution(f"{path}.conv_qk_grouped", channels, grouped, inputs=kind.head_dim, bias=True)
    return weights + w.linear("self_attn.o_proj", queries, hidden, bias=bias) + w.parameter("self_attn.qk_norm.temp", kv_heads)


LFM2: Final = Interleaved(
    types=_lfm2_types, readers=_LFM_READERS, weights=_lfm, dtype_keys=(),
    ignored=(
        "conv_L_cache", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "full_attn_idxs", "num_attention_heads", "num_heads",
        "num_key_value_heads",
    ),
)  # fmt: skip
LFM3: Final = Interleaved(
    # Convolutions on odd layers and on the first. The other layers alternate between full attention and a window.
    types=lambda _, count: [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i > 0 else _CONV for i in range(count)],
    readers=_LFM_READERS, weights=_lfm, dtype_keys=(),
    ignored=("conv_L_cache", "head_dim", "num_attention_heads", "num_key_value_heads", "sliding_window"),
)  # fmt: skip
INKLING: Final = _Convolved(
    types=_inkling_types, readers=_either(_inkling_layer), weights=_inkling, ignored=_INKLING_IGNORED, dtype_keys=()
)
INKLING2: Final = replace(INKLING, weights=_inkling2)
INKLING2_LOOP: Final = _Looped(
    types=_inkling_types, readers=_either(_inkling_layer), weights=_inkling2_loop, ignored=_INKLING_IGNORED, dtype_keys=()
)
ZAYA: Final = Interleaved(
    types=lambda _, count: [HYBRID] * count,
    readers=_either(_zaya_layer),
    weights=_zaya,
    ignored=("sliding_window",),
    dtype_keys=(),
)
