"""Mamba layers, and models whose layers are one norm and one mixer: mamba, falcon_mamba, mamba2 and Nemotron-H.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Each layer of Nemotron-H has Mamba-2, attention, an MLP or experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from hwcalc.formulas import Layer, Mamba1, Mamba2, NoCache
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, experts, linear, plain_mlp, rms_norm
from hwcalc.formulas.weights_state import mamba1, mamba2
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    equal_dims,
    full_layer,
    read_layer_types,
)
from hwcalc.parsers.states import FULL, HYBRID, LINEAR, Mixers, mixed_layers, state_dtype

# Keys of one type of layer, which nobody reads in a stack without that type, and keys that never bear on the cache.
HYBRID_KEYS: Final = (
    "head_dim", "mamba_chunk_size", "mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_attention_heads",
    "num_key_value_heads", "use_mamba_kernels",
)  # fmt: skip
_WITHOUT_EFFECT: Final = ("chunk_size", "d_inner", "use_conv_bias", "use_falcon_mambapy", "use_mamba_kernels", "use_mambapy")


def inner_width(config: Config, expand_key: str) -> int:
    """Channels inside a Mamba layer: expand x hidden_size. With expand 2, 4 channels become 8."""
    hidden = config.integer("hidden_size")
    width = int(config.number(expand_key, 2) * hidden)
    return config.checked_integer(expand_key, width)


def mamba1_layer(config: Config, index: int) -> Layer:
    """A Mamba-1 layer of a hybrid, by the mamba_* keys."""
    inner = inner_width(config, "mamba_expand")
    return (Mamba1(d_inner=inner, d_state=config.integer("mamba_d_state"), d_conv=config.integer("mamba_d_conv")),)


def mamba2_kind(
    config: Config,
    heads: int,
    head_dim: int,
    *,
    state: str = "mamba_d_state",
    groups: str = "mamba_n_groups",
    conv: str = "mamba_d_conv",
) -> Mamba2:
    """Mamba-2 with these heads. The other dims come from the named keys."""
    d_state, n_groups, d_conv = (config.integer(key) for key in (state, groups, conv))
    return Mamba2(num_heads=heads, head_dim=head_dim, d_state=d_state, n_groups=n_groups, d_conv=d_conv)


def dims_with(config: Config, head_dim: int) -> AttentionDims:
    """The attention of a hybrid whose head_dim does not come from the common key."""
    heads = config.integer("num_attention_heads")
    return equal_dims(heads, config.maybe_integer("num_key_value_heads"), head_dim)


def hybrid_readers(mamba: LayerReader, attention: LayerReader = full_layer) -> Mapping[str, LayerReader]:
    """The readers of the layers of hybrids. A layer has Mamba, attention, both at once, or neither."""

    def both(config: Config, index: int) -> Layer:
        return (*attention(config, index), *mamba(config, index))

    return {LINEAR: mamba, FULL: attention, HYBRID: both, "mlp": _no_cache_layer, "moe": _no_cache_layer}


def _no_cache_layer(config: Config, index: int) -> Layer:
    """An MLP or experts as a layer of their own."""
    return (NoCache(),)


def time_step_rank(config: Config, key: str = "mamba_dt_rank") -> int:
    """The rank of Mamba-1's time step. ``"auto"`` is a sixteenth of ``hidden_size``, rounded up."""
    if config.get(key) in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)


def mamba1_mixer(config: Config, *, norms: bool = False, heads: int | None = None) -> Callable[..., Weighed]:
    """A function that weighs the Mamba-1 of a hybrid. Its arguments are the fields of :class:`Mamba1`."""
    hidden, bias, conv_bias = config.integer("hidden_size"), config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    more = partial(mamba1, bias=bias, conv_bias=conv_bias, norms=norms, heads=heads, path="mamba")
    return partial(more, hidden, dt_rank=time_step_rank(config))


def _alike(kind_of: Callable[[Config], Mamba1 | Mamba2]) -> Readers:
    """A family without attention, whose layers are all alike."""

    def read(config: Config) -> Reading:
        count = config.number_of_layers()
        config.ignore(*_WITHOUT_EFFECT)
        return Reading(layers=((kind_of(config),),) * count, config=config, state_dtype=state_dtype(config))

    return Readers(layers=read, weights=_weights)


def _mamba1(config: Config) -> Mamba1:
    # Falcon-Mamba-7B has expand 16 and intermediate_size 8,192 with hidden_size 4,096: the intermediate_size is right.
    inner = config.maybe_integer("intermediate_size") or inner_width(config, "expand")
    return Mamba1(d_inner=inner, d_state=config.integer("state_size"), d_conv=config.integer("conv_kernel"))


def _mamba2(config: Config) -> Mamba2:
    heads, head_dim = config.integer("num_heads"), config.integer("head_dim")
    inner = inner_width(config, "expand")
    if heads * head_dim != inner:
        raise config.error("num_heads", heads, f"such that num_heads x head_dim is expand x hidden_size ({inner:,})")
    return mamba2_kind(config, heads, head_dim, state="state_size", groups="n_groups", conv="conv_kernel")


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has one mixer and one norm."""
    hidden = config.integer("hidden_size")
    biases: dict[str, Any] = {"bias": config.flag("use_bias"), "conv_bias": config.flag("use_conv_bias")}

    mixers: Mixers = {
        Mamba1: (
            "mamba",
            lambda kind: mamba1(hidden, **kind.numbers(), dt_rank=time_step_rank(config, "time_step_rank"), **biases),
        ),
        Mamba2: ("mamba", lambda kind: mamba2(hidden, **kind.numbers(), **biases)),
    }
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    return out + mixed_layers(reading.layers, mixers, ("norm", rms_norm("norm", hidden)))


# Nemotron-H.

# One letter for each layer: Mamba, attention, feed-forward, experts.
_LETTERS: Final = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_NEMOTRON_IGNORED: Final = (
    *HYBRID_KEYS, "attention_head_dim", "chunk_size", "conv_kernel", "expand", "hybrid_override_pattern", "mamba_head_dim",
    "mamba_n_groups", "mamba_num_heads", "moe_latent_size", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "n_groups",
    "num_hidden_layers", "sliding_window", "ssm_state_size",
)  # fmt: skip


def _nemotron(config: Config) -> Reading:
    types = _nemotron_types(config)
    config.ignore(*_NEMOTRON_IGNORED)
    layers = build_layers(config, types, hybrid_readers(_nemotron_mamba, _nemotron_attention))
    return Reading(layers=layers, config=config, types=tuple(types), state_dtype=state_dtype(config))


def _nemotron_types(config: Config) -> list[str]:
    """Types by a list, else by a pattern such as ``M-M*``. Its length is the number of layers, not num_hidden_layers."""
    spelled = config.strings("layers_block_type")
    if spelled is not None:
        if not 1 <= len(spelled) <= MAX_LAYERS:
            raise config.error_in_words("layers_block_type", f"{len(spelled)} items long", f"a list of 1 to {MAX_LAYERS:,} items")
        return read_layer_types(config, len(spelled), "layers_block_type") or []
    # The default of the class: one layer of each type.
    return _pattern(config, "hybrid_override_pattern") or [LINEAR, "moe", FULL, "mlp"]


def _prediction_types(config: Config) -> list[str]:
    """Types of one multi-token-prediction step: attention and experts unless the file says otherwise. Empty without such a step."""
    if not config.maybe_integer("num_nextn_predict_layers", minimum=0):
        return []
    spelled = config.strings("mtp_layers_block_type")
    if spelled:
        return read_layer_types(config, min(len(spelled), MAX_LAYERS), "mtp_layers_block_type") or []
    return _pattern(config, "mtp_hybrid_override_pattern") or [FULL, "moe"]


def _pattern(config: Config, key: str) -> list[str] | None:
    pattern = config.text(key)
    if pattern is None:
        return None
    if not pattern or len(pattern) > MAX_LAYERS or set(pattern) - set(_LETTERS):
        raise config.error(key, pattern, f"1 to {MAX_LAYERS:,} letters out of {' '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]


def _nemotron_mamba(config: Config, index: int) -> Layer:
    """Mamba-2 whose inner width is mamba_num_heads x mamba_head_dim and not expand x hidden_size.

    Nemotron-3-Nano: 64 x 64 = 4,096, where expand x hidden_size would be 5,376. Early files have mamba_n_groups and mamba_d_conv.
    """
    return (
        Mamba2(
            num_heads=config.integer("mamba_num_heads"),
            head_dim=config.integer("mamba_head_dim"),
            d_state=config.integer("ssm_state_size"),
            n_groups=config.maybe_integer("mamba_n_groups") or config.integer("n_groups"),
            d_conv=config.maybe_integer("mamba_d_conv") or config.integer("conv_kernel"),
        ),
    )


def _nemotron_attention(config: Config, index: int) -> Layer:
    # The name in early files is attention_head_dim.
    early = None if config.has("head_dim") else config.maybe_integer("attention_head_dim")
    return (attention_dims(config).full() if early is None else dims_with(config, early).full(),)


def _nemotron_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has a norm and Mamba, attention, an MLP or experts. An MLP or expert has two matrices."""
    hidden = config.integer("hidden_size")
    bias, mlp_bias = config.flag("use_bias"), config.flag("mlp_bias")
    conv_bias = config.flag("mamba_conv_bias" if config.has("mamba_conv_bias") else "use_conv_bias")

    def weigh(key: tuple[str, Layer]) -> list[Named]:
        name, layer = key
        out = [("norm", rms_norm("norm", hidden))]
        if name == "mlp":
            width = config.integer("intermediate_size")
            out.append(("mlp", _two_matrices("mixer", hidden, width, bias=mlp_bias)))
        elif name == "moe":
            out.append(("moe", _nemotron_experts(config)))
        for kind in layer:
            if isinstance(kind, Mamba2):
                out.append(("mamba", mamba2(hidden, **kind.numbers(), bias=bias, conv_bias=conv_bias)))
            elif isinstance(kind, AttentionKind):
                out.append(("attention", attention_of(kind, hidden, path="mixer")))
        return out

    layers = dict(zip(reading.types, reading.layers, strict=True))
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    out += repeated(zip(reading.types, reading.layers, strict=True), weigh)
    predicted = _prediction_types(config)
    if not predicted or not set(predicted) <= set(layers):
        return out
    steps = config.integer("num_nextn_predict_layers")
    join = rms_norms(hidden, "enorm", "hnorm") + linear("eh_proj", 2 * hidden, hidden) + rms_norm("final_layernorm", hidden)
    out.append(Block(kind="mtp", weights=join, part=Part.MTP, count=steps))
    return out + repeated([(name, layers[name]) for name in predicted * steps], weigh, Part.MTP)


def _two_matrices(path: str, hidden: int, width: int, *, bias: bool) -> tuple[Weight, ...]:
    return plain_mlp(hidden, width, bias=bias, path=path, names=("up_proj", "down_proj"))


def _nemotron_experts(config: Config) -> tuple[Weight, ...]:
    """Experts of two matrices. If ``moe_latent_size`` is set, one projection leads to that width and one back."""
    hidden, bias = config.integer("hidden_size"), config.flag("mlp_bias")
    latent = config.maybe_integer("moe_latent_size")
    count = config.integer("n_routed_experts")
    expert = _two_matrices("mixer.experts", latent or hidden, config.integer("moe_intermediate_size"), bias=False)
    weights = experts(expert, count, config.integer("num_experts_per_tok"))
    weights += linear("mixer.gate", hidden, count, role=WeightRole.ROUTER)
    shared = config.integer("moe_shared_expert_intermediate_size")
    weights += _two_matrices("mixer.shared_experts", hidden, shared, bias=bias)
    if latent is not None:
        weights += linear("mixer.fc1_latent_proj", hidden, latent, bias=bias)
        weights += linear("mixer.fc2_latent_proj", latent, hidden, bias=bias)
    return weights


MAMBA1: Final = _alike(_mamba1)
MAMBA2: Final = _alike(_mamba2)
NEMOTRON_H: Final = Readers(layers=_nemotron, weights=_nemotron_weights)
