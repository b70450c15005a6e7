"""Hymba and MiniCPM-SALA: attention and states together, in models whose code lives with them.

- hymba (``modeling_hymba.py`` of nvidia/Hymba-1.5B): each layer has attention and Mamba-1 side by side, which one projection feeds.
  Values are as wide as a head's share of Mamba's channels. Layers outside ``global_attn_idx`` have a window. In each group of
  ``kv_reuse_group`` the first layer makes keys and values, and the others read them; with ``kv_reuse_every_i_layer`` so does every such
  layer. ``num_memory_tokens`` learned tokens stand before each sequence and stay in the cache. Experts are keys of the config that the
  model does not build.
- minicpm_sala (``modeling_minicpm_sala.py`` of openbmb/MiniCPM-SALA): ``mixer_types`` names layers of softmax attention (``minicpm4``),
  block-sparse where the file has a ``sparse_config``, and of lightning attention, as SGLang's ``configs/minicpm.py`` reads them too.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import AttentionKind, BlockSparseAttention, Layer, LightningAttention, Mamba1, MetaTokens, SharedCache
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, WeightRole
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Readers, Reading, equal_dims, kind_in, shared_width

_UNUSED: Final = (
    "attn_hidden_size", "conv_dim", "kv_weight_reuse", "layer_type", "mamba_dt_rank", "num_experts", "num_experts_per_tok", "num_mamba",
    "use_mamba_kernels",
)  # fmt: skip
"""Keys of Hymba that its class does not read, or writes itself, or that say nothing of the cache."""


def _hymba(config: Config) -> Reading:
    count, dims = config.number_of_layers(), _hymba_dims(config)
    window, meta = config.maybe_integer("sliding_window"), config.maybe_integer("num_memory_tokens", minimum=0) or 0
    if config.maybe_integer("memory_tokens_interspersed_every", minimum=0):
        allowed = "0: nobody has published a model with meta tokens between the tokens of a sequence"
        raise config.error("memory_tokens_interspersed_every", config.get("memory_tokens_interspersed_every"), allowed)
    everywhere = range(count) if window is None else config.integers("global_attn_idx")
    if everywhere is None:
        raise config.missing("global_attn_idx")
    config.ignore("global_attn_idx", *_UNUSED)
    readers = _readers_of_others(config, count)
    mamba = Mamba1(
        d_inner=_channels(config),
        d_state=config.maybe_integer("mamba_d_state") or 16,
        d_conv=config.maybe_integer("mamba_d_conv") or 4,
    )
    before = (
        (MetaTokens(**{name: getattr(dims, name) for name in dims.__struct_fields__}, num_memory_tokens=meta),) if meta else ()
    )

    def layers(further: int = 0) -> tuple[Layer, ...]:
        made = {index: dims.within(None if window is None or index in everywhere else window + further) for index in range(count)}
        return tuple((SharedCache(), mamba) if index in readers else (made[index], *before, mamba) for index in range(count))

    # The model's own cache keeps the whole window between two steps, one token more than transformers' windowed layers.
    return Reading(layers=layers(), config=config, readings={} if window is None else {"transformers": layers(1)})


def _channels(config: Config) -> int:
    """Channels of Mamba: twice the model's width by default."""
    return config.checked_integer("mamba_expand", int(config.integer("hidden_size") * config.number("mamba_expand", 2)))


def _hymba_dims(config: Config) -> AttentionDims:
    """Heads share the model's width; their values share the channels of Mamba, whatever the file says."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.maybe_integer("num_key_value_heads") or heads
    width, channels = shared_width(config, heads), _channels(config)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", kv_heads, f"a divisor of the number of attention heads ({heads})")
    if channels % heads:
        raise config.error(
            "mamba_expand", config.get("mamba_expand"), f"such that heads ({heads}) divide Mamba's channels ({channels:,})"
        )
    # The projection gives each head a key of the common width: another one cannot be built.
    own = config.get("kq_head_dim", -1)
    if own not in (None, -1, width):
        raise config.error("kq_head_dim", own, f"-1 or hidden_size // heads ({width})")
    config.ignore("v_head_dim")
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, v_head_dim=channels // heads)


def _readers_of_others(config: Config, count: int) -> frozenset[int]:
    """The layers that read the keys and values of an earlier one."""
    groups = config.sequence("kv_reuse_group")
    every = config.maybe_integer("kv_reuse_every_i_layer", minimum=-1) or -1
    if groups is None:
        return frozenset(index for index in range(count) if every > 0 and index % every)
    for group in groups:
        if not isinstance(group, (list, tuple)) or len(group) > count:
            raise config.error("kv_reuse_group", group, f"lists of layer numbers below {count}")
    return frozenset(config.checked_integer("kv_reuse_group", index, minimum=0) for group in groups for index in group[1:])


def _hymba_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """One projection makes gate, Mamba's inputs and queries, and keys and values on layers that do not read another's."""
    hidden, dims = config.integer("hidden_size"), _hymba_dims(config)
    bias, gated = config.flag("mamba_proj_bias"), config.text("mlp_hidden_act", "silu") == "silu"
    given = config.get("mamba_dt_rank")
    rank = -(-hidden // 16) if given in (None, "auto") else config.checked_integer("mamba_dt_rank", given)
    width = config.maybe_integer("intermediate_size", minimum=0) or 0
    path = "moe.experts.0"
    mlp = w.gated_mlp(hidden, width, path=path) if gated else w.plain_mlp(hidden, width, bias=False, path=path)
    norms = rms_norms(hidden, *(("input_layernorm", "pre_moe_layernorm") if width else ("input_layernorm",)))

    def weigh(layer: Layer) -> list[Named]:
        mamba = kind_in(config, layer, Mamba1)
        whole = w.mamba1(
            hidden, **mamba.numbers(), dt_rank=rank, bias=bias, conv_bias=config.flag("mamba_conv_bias", default=True), path="mamba",
            norms=config.flag("mamba_inner_layernorms", default=True),
        )  # fmt: skip
        makes = any(isinstance(kind, AttentionKind) for kind in layer)
        queries = hidden + (dims.num_key_value_heads * (dims.head_dim + dims.v_head_dim) if makes else 0)
        # The first of Mamba's tensors is the projection to its inputs and its gate.
        inputs = w.linear("mamba.in_proj", hidden, 2 * mamba.d_inner + queries, bias=bias)
        mixer = inputs + whole[len(w.linear("", 1, 1, bias=bias)) :]
        mixer += rms_norms(mamba.d_inner, "mamba.pre_avg_layernorm1", "mamba.pre_avg_layernorm2") + _head_norms(config, dims)
        return [("mamba", mixer), *([("mlp", mlp)] if width else []), ("norm", norms)]

    out = ends(config, top, norm="model.final_layernorm") + repeated(reading.layers, weigh)
    meta = config.maybe_integer("num_memory_tokens", minimum=0) or 0
    tokens = w.parameter("model.memory_tokens", meta, hidden, role=WeightRole.EMBEDDING)
    return [*out, Block(kind="extra", weights=tokens)] if meta else out


def _head_norms(config: Config, dims: AttentionDims) -> Weighed:
    """Norms of queries and keys: ``rms`` for the width of a head, ``perhead-rms`` for each head, ``none``."""
    word, path = config.text("kq_norm", "none"), "mamba.self_attn"
    if word not in ("none", "rms", "perhead-rms"):
        raise config.error("kq_norm", word, "none, rms or perhead-rms")
    counts = {"none": (), "rms": (1, 1), "perhead-rms": (dims.num_key_value_heads, dims.num_attention_heads)}[word]
    return tuple(
        norm
        for name, heads in zip("kq", counts, strict=False)
        for norm in w.rms_norm(f"{path}.{name}_norm", heads * dims.head_dim)
    )


_LIGHTNING: Final = ("lightning", "lightning_attn", "lightning-attn")
_SPARSE: Final = "minicpm4"


def _sala(config: Config) -> Reading:
    count, types = config.number_of_layers(), config.strings("mixer_types")
    if types is None:
        raise config.missing("mixer_types")
    if len(types) != count or set(types) - {_SPARSE, *_LIGHTNING}:
        raise config.error_in_words(
            "mixer_types", f"{len(types)} items", f"a list of {count} items, {_SPARSE} or {_LIGHTNING[-1]}"
        )
    heads = config.integer("num_attention_heads")
    dims = equal_dims(heads, config.maybe_integer("num_key_value_heads"), shared_width(config, heads))
    # The class builds lightning layers with the heads and the width of all others, whatever their own keys say.
    width = config.maybe_integer("head_dim") or 128
    for key, built in (("lightning_nh", heads), ("lightning_head_dim", width)):
        if config.maybe_integer(key) not in (None, built):
            raise config.error(key, config.get(key), f"{built}, by which the class builds these layers")
    lightning: Layer = (LightningAttention(num_heads=heads, head_dim=width),)
    attending: Layer = (_block_sparse(config, dims) or dims.full(),)
    config.ignore("lightning_nkv", "lightning_scale", "lightning_use_rope")
    return Reading(layers=tuple(attending if name == _SPARSE else lightning for name in types), config=config)


def _block_sparse(config: Config, dims: AttentionDims) -> BlockSparseAttention | None:
    """InfLLM-V2, where the file has a ``sparse_config``; its class has a default for each key."""
    sparse = config.sub("sparse_config")
    if sparse is None or not sparse.raw:
        return None
    kernel, stride, first = (
        sparse.maybe_integer(key) or default for key, default in (("kernel_size", 32), ("kernel_stride", 16), ("dense_len", 8192))
    )
    if kernel % stride or first % (4 * stride) or first < 4 * kernel:
        allowed = f"a divisor of kernel_size ({kernel}), and four of it of dense_len ({first:,})"
        raise sparse.error("kernel_stride", stride, allowed)
    if sparse.flag("use_nope"):
        allowed = "false: keys without positions are kept a second time, which nobody has published"
        raise sparse.error("use_nope", value=True, allowed=allowed)
    block = sparse.maybe_integer("block_size") or 64
    window = sparse.maybe_integer("window_size") or 2048
    chosen = ((sparse.maybe_integer("topk") or 64) + window // block) * block
    sparse.ignore("init_blocks")
    return BlockSparseAttention(
        **{name: getattr(dims, name) for name in dims.__struct_fields__}, kernel_size=kernel, kernel_stride=stride, dense_len=first,
        index_topk=chosen,
    )  # fmt: skip


def _sala_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Both mixers have a gate for their output. Lightning attention has norms of each head's queries and keys, and of its output."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    kv_heads = (
        config.maybe_integer("lightning_nkv")
        or config.maybe_integer("num_key_value_heads")
        or config.integer("num_attention_heads")
    )
    mlp, norms = (
        w.gated_mlp(hidden, config.integer("intermediate_size")),
        rms_norms(hidden, "input_layernorm", "post_attention_layernorm"),
    )

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[0]
        if isinstance(kind, LightningAttention):
            dims, wide = equal_dims(kind.num_heads, kv_heads, kind.head_dim), kind.num_heads * kind.head_dim
            mixer = attention_of(dims, hidden, qkv_bias=bias, o_bias=bias, qk_norm=config.flag("qk_norm", default=True))
            mixer += w.rms_norm("self_attn.o_norm", wide) if config.flag("use_output_norm", default=True) else ()
            gate, named = config.flag("use_output_gate", default=True), ("lightning", "z_proj")
        else:
            attending = kind_in(config, layer, AttentionKind)
            mixer, wide = (
                attention_of(attending, hidden, qkv_bias=bias, o_bias=bias),
                attending.num_attention_heads * attending.head_dim,
            )
            gate, named = config.flag("attn_use_output_gate", default=True), ("attention", "o_gate")
        mixer += w.linear(f"self_attn.{named[1]}", hidden, wide, bias=bias) if gate else ()
        return [(named[0], mixer), ("mlp", mlp), ("norm", norms)]

    return ends(config, top) + repeated(reading.layers, weigh)


HYMBA: Final = Readers(layers=_hymba, weights=_hymba_weights)
MINICPM_SALA: Final = Readers(layers=_sala, weights=_sala_weights)
