"""Models of flash-linear-attention: delta nets, gated linear and gated slot attention, HGRN-2, Samba, and NVIDIA's Jet-Nemotron.

Mirrors ``fla/models`` and ``fla/layers`` of flash-linear-attention (August 2026, commit bc3b101d), whose configs save every key of
their class; what a file leaves out has the class's default. ``attn`` names layers that have softmax attention instead.

- delta_net, gated_deltanet: a key x value matrix per head, and the last inputs of a convolution over queries, keys and values.
- gla: a key x value matrix per head. Keys and values that several heads share are repeated before they come to the matrix.
- gsa: two matrices per head, from keys to slots and from slots to values.
- hgrn2: a matrix of ``expand_ratio`` x the width of a head.
- samba: Mamba-1, and attention with a window on every second layer.
- jet_nemotron (NVIDIA's ``jet_block.py`` and ``dynamic_conv.py``; SGLang's ``jet_nemotron.py``): ``layer_types`` names layers of full
  attention (``attn``), of attention with a window (``swa``), and delta nets (``jet``) that convolve the values alone, with taps made
  from the hidden states. SGLang keeps a convolution over queries, keys and values all the same, and the windowed layers whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc import formulas
from hwcalc.formulas import AttentionKind, GatedLinearAttention, Layer, ShortConvolution
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import (
    AttentionDims,
    Readers,
    Reading,
    build_layers,
    equal_dims,
    kind_in,
    read_layer_types,
    shared_width,
)
from hwcalc.parsers.states import SLIDING

_RANK: Final = 16
"""The rank of the gates of GLA, which is no key of its config."""
_SAMBA_ATTENTION: Final[Mapping[str, object]] = {
    "layers": list(range(1, 18, 2)), "num_heads": 18, "num_kv_heads": 18, "qkv_bias": False, "window_size": 2048,
}  # fmt: skip


class Linear(Record):
    """One of these models: what a layer keeps where it has no softmax attention, and what such a layer weighs."""

    state: Callable[[Config], Layer]
    mixer: Callable[[Config, Layer], Weighed]
    outer: Callable[[Config], Weighed] | None = None
    """Further tensors that the model has once."""
    attention: Mapping[str, object] | None = None
    """``attn`` where the file does not have the key."""

    def read(self, config: Config) -> Reading:
        """The layers."""
        count, own = config.number_of_layers(), self.state(config)
        config.ignore("attn_mode", "feature_map", "fuse_linear_cross_entropy", "use_gk", "use_gv", "num_slots")
        attention = self._attention(config)
        if attention is None:
            return Reading(layers=(own,) * count, config=config)
        listed = attention.integers("layers")
        if listed is None:
            raise attention.missing("layers")
        heads = attention.integer("num_heads")
        dims = equal_dims(heads, attention.maybe_integer("num_kv_heads"), shared_width(config, heads))
        attending: Layer = (dims.within(attention.maybe_integer("window_size")),)
        attention.ignore("rope_theta")
        return Reading(layers=tuple(attending if i in listed else own for i in range(count)), config=config)

    def _attention(self, config: Config) -> Config | None:
        if self.attention is not None and not config.has("attn"):
            return Config(self.attention, where="attn")
        return config.sub("attn")

    def weigh(self, config: Config, top: Config, reading: Reading) -> list[Block] | None:
        """The blocks of weights of these layers. Nobody has counted those of models whose residuals attend to earlier layers."""
        if config.get("attnres_block_size") is not None:
            return None
        hidden, attention = config.integer("hidden_size"), self._attention(config)
        bias = attention is not None and attention.flag("qkv_bias")
        mlp, norms = w.gated_mlp(hidden, _width(config)), rms_norms(hidden, "attn_norm", "mlp_norm")

        def weigh(layer: Layer) -> list[Named]:
            kind = layer[0]
            if isinstance(kind, AttentionKind):
                mixer: Named = ("attention", attention_of(kind, hidden, qkv_bias=bias, path="attn"))
            else:
                mixer = ("linear", self.mixer(config, layer))
            return [mixer, ("mlp", mlp), ("norm", norms)]

        out = ends(config, top, embed="model.embeddings")
        if self.outer is not None:
            out.append(Block(kind="extra", weights=self.outer(config)))
        return [block for block in out + repeated(reading.layers, weigh) if block.weights]


def _width(config: Config) -> int:
    """The width of the MLP: by default two thirds of ``hidden_ratio`` times the model's, rounded up to a multiple of 256.

    Samba's ``intermediate_size`` is the width of its Mamba layers.
    """
    given = None if config.model_type == "samba" else config.maybe_integer("intermediate_size")
    if given is not None:
        return given
    usual = int(config.integer("hidden_size") * config.number("hidden_ratio", 4) * 2 / 3)
    return config.checked_integer("hidden_ratio", -(-usual // 256) * 256)


def _expanded(config: Config, key: str, default: float, whole: int) -> int:
    """``whole`` times the factor ``key``, rounded down as the layers do."""
    return config.checked_integer(key, int(whole * config.number(key, default)))


def _shares(config: Config, heads: int, **widths: int) -> list[int]:
    """The width of one head of each, which all heads divide."""
    for name, width in widths.items():
        if width % heads:
            raise config.error("num_heads", heads, f"a divisor of the width of the {name} ({width})")
    return [width // heads for width in widths.values()]


def _convolved(config: Config, channels: int, *, default: bool) -> Layer:
    """The short convolution beside a matrix, where the model has one."""
    taps = config.maybe_integer("conv_size") or 4
    if not config.flag("use_short_conv", default=default):
        config.ignore("share_conv_kernel")
        return ()
    return (ShortConvolution(channels=channels, d_conv=taps),)


def _convolutions(layer: Layer, **widths: int) -> Weighed:
    """Their filters, where the layer keeps inputs of convolutions."""
    taps = next((kind.d_conv for kind in layer if isinstance(kind, (ShortConvolution, formulas.GatedDeltaNet))), None)
    if taps is None:
        return ()
    return tuple(weight for name, width in widths.items() for weight in w.convolution(f"attn.{name}_conv1d", width, taps))


def _projected(hidden: int, **widths: int) -> Weighed:
    return tuple(weight for name, width in widths.items() for weight in w.linear(f"attn.{name}_proj", hidden, width))


def _delta_kind(config: Config, heads: int, value_heads: int, key_dim: int, value_dim: int) -> Layer:
    config.ignore("conv_size")
    if not config.flag("use_short_conv", default=True):
        return (GatedLinearAttention(num_heads=value_heads, key_head_dim=key_dim, value_head_dim=value_dim),)
    return (
        formulas.GatedDeltaNet(
            num_key_heads=heads, num_value_heads=value_heads, key_head_dim=key_dim, value_head_dim=value_dim,
            d_conv=config.maybe_integer("conv_size") or 4,
        ),
    )  # fmt: skip


def _delta_net(config: Config) -> Layer:
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads")
    keys, values = _expanded(config, "expand_k", 1.0, hidden), _expanded(config, "expand_v", 1.0, hidden)
    return _delta_kind(config, heads, heads, *_shares(config, heads, keys=keys, values=values))


def _gated_deltanet(config: Config) -> Layer:
    heads, width = config.integer("num_heads"), config.integer("head_dim")
    value_heads = config.maybe_integer("num_v_heads") or heads
    return _delta_kind(config, heads, value_heads, width, _expanded(config, "expand_v", 2.0, width))


def _delta_sides(config: Config, layer: Layer) -> tuple[int, int, int, int]:
    """All keys, all values, the values of a head, and the heads of values."""
    kind = next((kind for kind in layer if isinstance(kind, formulas.GatedDeltaNet)), None)
    if kind is not None:
        keys, heads = kind.num_key_heads * kind.key_head_dim, kind.num_value_heads
        return keys, heads * kind.value_head_dim, kind.value_head_dim, heads
    plain = kind_in(config, layer, GatedLinearAttention)
    return plain.num_heads * plain.key_head_dim, plain.num_heads * plain.value_head_dim, plain.value_head_dim, plain.num_heads


def _delta_weights(config: Config, layer: Layer) -> Weighed:
    """Queries, keys, values, a step for each head, and where the model has them a gate, a decay and convolutions."""
    hidden, decays = config.integer("hidden_size"), config.model_type == "gated_deltanet"
    keys, values, width, heads = _delta_sides(config, layer)
    if decays:
        keys = config.integer("num_heads") * config.integer("head_dim")
    weights = _projected(hidden, q=keys, k=keys, v=values)
    if decays:
        weights += _projected(hidden, a=heads) + w.parameter("attn.A_log", heads) + w.parameter("attn.dt_bias", heads)
    if decays or config.flag("use_beta", default=True):
        weights += _projected(hidden, b=heads)
    if config.flag("use_gate", default=decays):
        weights += _projected(hidden, g=values)
    weights += _convolutions(layer, q=keys, k=keys, v=values)
    return weights + w.rms_norm("attn.o_norm", width) + w.linear("attn.o_proj", values, hidden)


def _grouped(config: Config) -> tuple[int, int, int, int]:
    """All keys, all values, the heads, and how many heads share keys and values."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads")
    slots = config.model_type == "gsa"
    keys = _expanded(config, "expand_k", 1.0 if slots else 0.5, hidden)
    values = _expanded(config, "expand_v", 1.0, hidden)
    groups = heads // (config.maybe_integer("num_kv_heads") or heads)
    if not groups or keys % groups or values % groups:
        raise config.error("num_kv_heads", config.get("num_kv_heads"), f"at most the number of heads ({heads}), and a divisor")
    return keys, values, heads, groups


def _gla(config: Config) -> Layer:
    keys, values, heads, groups = _grouped(config)
    key_dim, value_dim = _shares(config, heads, keys=keys, values=values)
    kind = GatedLinearAttention(num_heads=heads, key_head_dim=key_dim, value_head_dim=value_dim)
    return (kind, *_convolved(config, keys + (keys + values) // groups, default=False))


def _gla_weights(config: Config, layer: Layer) -> Weighed:
    """Queries, keys, values and an output gate, and a gate of a low rank for the keys."""
    hidden, (keys, values, heads, groups) = config.integer("hidden_size"), _grouped(config)
    weights = _projected(hidden, q=keys, k=keys // groups, v=values // groups)
    if config.flag("use_output_gate", default=True):
        weights += _projected(hidden, g=values)
    weights += _convolutions(layer, q=keys, k=keys // groups, v=values // groups)
    weights += w.linear("attn.gk_proj.0", hidden, _RANK) + w.linear("attn.gk_proj.1", _RANK, keys // groups, bias=True)
    if config.flag("elementwise_affine", default=True):
        weights += w.rms_norm("attn.g_norm", values // heads)
    return weights + w.linear("attn.o_proj", values, hidden)


def _slots(config: Config, key_dim: int) -> int:
    return config.maybe_integer("num_slots") or (key_dim if config.has("num_slots") else 64)


def _gsa(config: Config) -> Layer:
    keys, values, heads, groups = _grouped(config)
    key_dim, value_dim = _shares(config, heads, keys=keys, values=values)
    slots = _slots(config, key_dim)
    into = GatedLinearAttention(num_heads=heads, key_head_dim=key_dim, value_head_dim=slots)
    out = GatedLinearAttention(num_heads=heads, key_head_dim=slots, value_head_dim=value_dim)
    return (into, out, *_convolved(config, keys + (keys + values) // groups, default=False))


def _gsa_weights(config: Config, layer: Layer) -> Weighed:
    """Queries, keys, values, and how much of each slot is forgotten. A learned feature map is not counted: no file has one."""
    hidden, (keys, values, heads, groups) = config.integer("hidden_size"), _grouped(config)
    slots = _slots(config, keys // heads)
    weights = _projected(hidden, q=keys, k=keys // groups, v=values // groups, f=heads // groups * slots)
    weights += _convolutions(layer, q=keys, k=keys // groups, v=values // groups)
    if config.flag("elementwise_affine", default=True):
        weights += w.rms_norm("attn.g_norm", hidden)
    return weights + w.linear("attn.o_proj", values, hidden)


def _hgrn2(config: Config) -> Layer:
    """``expand_ratio`` decides on the number of heads, unless it is null."""
    hidden = config.integer("hidden_size")
    ratio = config.maybe_integer("expand_ratio") or (None if config.has("expand_ratio") else 128)
    config.ignore("num_heads")
    heads = config.integer("num_heads") if ratio is None else hidden // ratio
    if not heads or hidden % heads:
        raise config.error("expand_ratio", ratio, f"a divisor of hidden_size ({hidden})")
    width = hidden // heads
    kind = GatedLinearAttention(num_heads=heads, key_head_dim=ratio or width, value_head_dim=width)
    return (kind, *_convolved(config, 2 * heads * (ratio or width) + hidden, default=False))


def _hgrn2_weights(config: Config, layer: Layer) -> Weighed:
    """Queries, forget gates and inputs."""
    hidden, kind = config.integer("hidden_size"), kind_in(config, layer, GatedLinearAttention)
    keys = kind.num_heads * kind.key_head_dim
    weights = _projected(hidden, q=keys, f=keys, i=hidden) + _convolutions(layer, q=keys, f=keys, i=hidden)
    if config.flag("elementwise_affine", default=True):
        weights += w.rms_norm("attn.g_norm", hidden)
    return weights + w.linear("attn.o_proj", hidden, hidden)


def _lower_bounds(config: Config) -> Weighed:
    if not config.flag("use_lower_bound", default=True):
        return ()
    return w.parameter("model.lower_bounds", config.number_of_layers(), config.integer("hidden_size"))


def _samba(config: Config) -> Layer:
    inner = _expanded(config, "expand", 2, config.integer("hidden_size"))
    states, taps = config.maybe_integer("state_size") or 16, config.maybe_integer("conv_kernel") or 4
    config.ignore("intermediate_size")
    return (formulas.Mamba1(d_inner=inner, d_state=states, d_conv=taps),)


def _samba_weights(config: Config, layer: Layer) -> Weighed:
    hidden, kind = config.integer("hidden_size"), kind_in(config, layer, formulas.Mamba1)
    rank = config.get("time_step_rank", "auto")
    steps = -(-hidden // 16) if rank in (None, "auto") else config.checked_integer("time_step_rank", rank)
    return w.mamba1(hidden, **kind.numbers(), dt_rank=steps, bias=config.flag("use_bias"), path="attn")


_JET: Final = "jet"


def _jet_attention(config: Config, name: str) -> Config:
    """The part of ``efficient_attention_config`` for layers of one type."""
    every = config.sub("efficient_attention_config")
    own = None if every is None else every.sub(name)
    if every is None or own is None:
        raise config.missing(f"efficient_attention_config.{name}")
    # Each layer reads its own part. Parts of types that no layer has say nothing.
    every.ignore(*every.raw)
    return own


def _jet_layer(config: Config, *, whole: bool) -> Layer:
    """A delta net with a convolution over the values; with ``whole`` over queries, keys and values, as SGLang stores it."""
    jet = _jet_attention(config, _JET)
    heads, key_dim, taps = jet.integer("num_heads"), jet.integer("head_dim"), jet.integer("conv_size")
    value_dim = _expanded(jet, "expand_v", 2.0, key_dim)
    if whole:
        return (
            formulas.GatedDeltaNet(
                num_key_heads=heads, num_value_heads=heads, key_head_dim=key_dim, value_head_dim=value_dim, d_conv=taps
            ),
        )
    kind = GatedLinearAttention(num_heads=heads, key_head_dim=key_dim, value_head_dim=value_dim)
    return (kind, ShortConvolution(channels=heads * value_dim, d_conv=taps))


def _jet(config: Config) -> Reading:
    count = config.number_of_layers()
    types = read_layer_types(config, count)
    if types is None:
        raise config.missing("layer_types")

    def sliding(level: Config, _index: int) -> Layer:
        return (_jet_dims(level).sliding(_jet_attention(level, "swa").integer("window_size")),)

    def full(level: Config, _index: int) -> Layer:
        return (_jet_dims(level).full(),)

    def layers(whole: bool) -> tuple[Layer, ...]:
        readers = {_JET: lambda level, _index: _jet_layer(level, whole=whole), "attn": full, SLIDING: sliding}
        return build_layers(config, types, readers)

    config.ignore("sliding_window", "use_sliding_window", "max_window_layers")
    return Reading(layers=layers(whole=False), config=config, readings={"sglang": layers(whole=True)})


def _jet_dims(config: Config) -> AttentionDims:
    heads = config.integer("num_attention_heads")
    return equal_dims(heads, config.maybe_integer("num_key_value_heads"), shared_width(config, heads))


def _jet_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """As Qwen2, but delta nets whose taps a small MLP makes from the hidden states."""
    hidden = config.integer("hidden_size")
    mlp = w.gated_mlp(hidden, config.integer("intermediate_size"))
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    def delta(layer: Layer) -> Weighed:
        kind, conv = kind_in(config, layer, GatedLinearAttention), kind_in(config, layer, ShortConvolution)
        keys, heads = kind.num_heads * kind.key_head_dim, kind.num_heads
        narrow = conv.channels // _jet_attention(config, _JET).integer("dconv_generator_reduction")
        path = "attn.dynamic_conv1d.kernel_generator"
        weights = _projected(hidden, q=keys, k=keys, v=conv.channels, g=conv.channels, a=heads, b=heads)
        weights += w.parameter("attn.A_log", heads) + w.parameter("attn.dt_bias", heads)
        weights += w.linear(f"{path}.w1", hidden, narrow) + w.linear(f"{path}.w2", narrow, conv.channels * conv.d_conv, bias=True)
        return weights + w.rms_norm("attn.o_norm", kind.value_head_dim) + w.linear("attn.o_proj", conv.channels, hidden)

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[0]
        if isinstance(kind, AttentionKind):
            mixer: Named = ("attention", attention_of(kind, hidden, qkv_bias=True))
        else:
            mixer = ("delta", delta(layer))
        return [mixer, ("mlp", mlp), ("norm", norms)]

    return ends(config, top) + repeated(reading.layers, weigh)


JET_NEMOTRON: Final = Readers(layers=_jet, weights=_jet_weights)
DELTA_NET: Final = Linear(state=_delta_net, mixer=_delta_weights)
GATED_DELTANET: Final = Linear(state=_gated_deltanet, mixer=_delta_weights)
GLA: Final = Linear(state=_gla, mixer=_gla_weights)
GSA: Final = Linear(state=_gsa, mixer=_gsa_weights)
HGRN2: Final = Linear(state=_hgrn2, mixer=_hgrn2_weights, outer=_lower_bounds)
SAMBA: Final = Linear(state=_samba, mixer=_samba_weights, attention=_SAMBA_ATTENTION)
