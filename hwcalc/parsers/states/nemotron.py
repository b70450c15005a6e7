"""Nemotron-H: each layer has Mamba-2, attention, an MLP or experts (``modeling_nemotron_h.py`` of transformers 5.23)."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import Layer, Mamba2
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, experts, linear, plain_mlp, rms_norm
from hwcalc.formulas.weights_state import mamba2
from hwcalc.parsers.blocks import Named, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import Readers, Reading, attention_dims, build_layers, read_layer_types
from hwcalc.parsers.states import FULL, LINEAR, state_dtype
from hwcalc.parsers.states.mamba import dims_with, hybrid_readers

__all__ = ["NEMOTRON_H"]

# One letter for each layer: Mamba, attention, feed-forward, experts.
_LETTERS: Final = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
# Keys of one type of layer, which nobody reads in a stack without that type, and keys that never bear on the cache.
_IGNORED: Final = (
    "attention_head_dim", "chunk_size", "conv_kernel", "expand", "head_dim", "hybrid_override_pattern", "mamba_chunk_size",
    "mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand", "mamba_head_dim", "mamba_n_groups", "mamba_num_heads",
    "moe_latent_size", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "n_groups", "num_attention_heads",
    "num_key_value_heads", "num_hidden_layers", "sliding_window", "ssm_state_size", "use_mamba_kernels",
)  # fmt: skip


def _read(config: Config) -> Reading:
    types = _types(config)
    config.ignore(*_IGNORED)
    layers = build_layers(config, types, hybrid_readers(_mamba_layer, _attention_layer))
    return Reading(layers=layers, config=config, types=tuple(types), state_dtype=state_dtype(config))


def _types(config: Config) -> list[str]:
    """Types by a list, else by a pattern such as ``M-M*``. Its length is the number of layers, not num_hidden_layers."""
    spelled = config.strings("layers_block_type")
    if spelled is not None:
        if not 1 <= len(spelled) <= MAX_LAYERS:
            raise config.error("layers_block_type", f"{len(spelled)} items long", f"a list of 1 to {MAX_LAYERS:,} items")
        return read_layer_types(config, len(spelled), "layers_block_type") or []
    # The default of the class: one layer of each type.
    return _pattern(config, "hybrid_override_pattern") or [LINEAR, "moe", FULL, "mlp"]


def _prediction_types(config: Config) -> list[str]:
    """Types of one multi-token-prediction step: attention and experts unless the file says otherwise. Empty without such a step."""
    if not config.maybe_integer("num_nextn_predict_layers", minimum=0, maximum=MAX_LAYERS):
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


def _mamba_layer(config: Config, index: int) -> Layer:
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


def _attention_layer(config: Config, index: int) -> Layer:
    # The name in early files is attention_head_dim.
    early = None if config.has("head_dim") else config.maybe_integer("attention_head_dim")
    return (attention_dims(config).full() if early is None else dims_with(config, early).full(),)


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
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
            out.append(("moe", _experts(config)))
        for kind in layer:
            if isinstance(kind, Mamba2):
                out.append(("mamba", mamba2(hidden, **vars(kind), bias=bias, conv_bias=conv_bias)))
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


def _experts(config: Config) -> tuple[Weight, ...]:
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


NEMOTRON_H: Final = Readers(layers=_read, weights=_weights)
