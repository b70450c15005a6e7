"""Gemma 3n and 4, and the assistants of Gemma 4.

Most layers slide, the full ones have wider heads, and the last layers share the keys and values of earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import FullAttention, Layer, SharedCache
from hwcalc.formulas.weights import Block, WeightRole, embedding, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.model import Note
from hwcalc.parsers.blocks import Weighed, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import FULL, SLIDING, Decoder, attention_weights, mlp_blocks, mlp_weights
from hwcalc.parsers.decoder.llama import HEAD_NORM
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    every,
    read_layer_types,
)

_GLOBAL_HEAD_DIM: Final = 512
"""Gemma 4's ``global_head_dim`` where the file leaves it out (transformers 5.23, configuration_gemma4.py)."""


def _global_dims(config: Config, level: Config) -> AttentionDims:
    """Heads and widths of a full layer of Gemma 4: wider heads, and fewer where one projection gives keys and values.

    The cache keeps both all the same, since keys are rotated and values are not. A ``per_layer_config`` in the file replaces
    these keys.
    """
    dims, head_dim = attention_dims(level), config.maybe_integer("global_head_dim") or _GLOBAL_HEAD_DIM
    heads, one = config.maybe_integer("num_global_key_value_heads"), config.flag("attention_k_eq_v", default=True)
    if config.has("per_layer_config"):
        return dims
    kept = heads if heads and one else dims.num_key_value_heads
    return replace(dims, num_key_value_heads=kept, head_dim=head_dim, v_head_dim=head_dim)


def _read(config: Config, *, four: bool) -> Reading:
    """The file lists the types, or every fifth (3n) or sixth (4) layer is full. The last layer of Gemma 4 always is.

    Layers that share keys and values keep none. Their weights are those of their attention, with a shared cache before it.
    """
    count = config.number_of_layers()
    types = read_layer_types(config, count) or every(6 if four else 5, count, FULL, SLIDING)
    window = config.integer("sliding_window")
    if four:
        types[-1] = FULL
        if config.get("use_bidirectional_attention") == "all":
            # The window reaches in both directions: half of it on each side, and the token itself.
            window = window // 2 + 1
    readers: dict[str, LayerReader] = {
        FULL: lambda level, _index: ((_global_dims(config, level) if four else attention_dims(level)).full(),),
        SLIDING: lambda level, _index: (attention_dims(level).sliding(window),),
    }
    first = count - (config.maybe_integer("num_kv_shared_layers", minimum=0, maximum=count) or 0)
    own = build_layers(config, types, readers)
    shared = ((SharedCache(),),) * (count - first)
    weighed = tuple((SharedCache(), *layer) for layer in own[first:])
    return Reading(layers=own[:first] + shared, config=config, weighed=own[:first] + weighed)


def _shares(layer: Layer) -> bool:
    return isinstance(layer[0], SharedCache)


def _attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """Layers that share keys and values project none. With ``attention_k_eq_v`` the keys of full layers are their values."""
    one = isinstance(layer[-1], FullAttention) and config.flag("attention_k_eq_v")
    absent = (".k_", ".v_") if _shares(layer) else (".v_proj",) if one else ()
    weights = attention_weights(config, spec, layer)
    return tuple(weight for weight in weights if not any(part in weight.path for part in absent))


def _mlps_3n(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """The widths may be listed, one for each layer."""
    listed, count = config.get("intermediate_size"), len(layers)
    widths = config.integers("intermediate_size", length=count, minimum=1) if isinstance(listed, (list, tuple)) else None
    return mlp_blocks(widths or [None] * count, lambda wide: mlp_weights(config, spec, wide))


def _mlps_4(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Layers that share keys and values may be twice as wide. Experts may stand beside the MLP."""
    double, wide = config.flag("use_double_wide_mlp"), config.integer("intermediate_size")
    beside: Weighed = ()
    if config.flag("enable_moe_block"):
        # The router has a scale for each channel and each expert, and the layer three norms more.
        hidden, number = config.integer("hidden_size"), config.integer("num_experts")
        expert = gated_mlp(hidden, config.integer("moe_intermediate_size"), path="experts")
        beside = experts(expert, number, config.integer("top_k_experts"))
        beside += linear("router.proj", hidden, number, role=WeightRole.ROUTER)
        beside += parameter("router.scale", hidden) + parameter("router.per_expert_scale", number)
        norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        beside += rms_norms(hidden, *norms)
    widths = (2 * wide if double and _shares(layer) else wide for layer in layers)
    return mlp_blocks(widths, lambda wide: mlp_weights(config, spec, wide) + beside)


def _inputs_of_layer(config: Config, _layer: Layer) -> Weighed:
    """The weights that mix a layer's own input in."""
    hidden, own = config.integer("hidden_size"), config.maybe_integer("hidden_size_per_layer_input", minimum=0) or 0
    if not own:
        return ()
    weights = linear("per_layer_input_gate", hidden, own) + linear("per_layer_projection", own, hidden)
    return weights + rms_norm("post_per_layer_input_norm", hidden)


def _inputs(config: Config) -> Weighed:
    """The inputs of all layers: a table of embeddings for each, and a projection of the common one."""
    hidden, own = config.integer("hidden_size"), config.maybe_integer("hidden_size_per_layer_input", minimum=0) or 0
    if not own:
        return ()
    wide = own * config.number_of_layers()
    weights = embedding("model.embed_tokens_per_layer", config.integer("vocab_size_per_layer_input"), wide)
    weights += linear("model.per_layer_model_projection", hidden, wide)
    return weights + rms_norm("model.per_layer_projection_norm", own)


def _altup_layer(config: Config, layer: Layer) -> Weighed:
    """Gemma 3n's alternating updates, and its low-rank residual (LAuReL)."""
    hidden, inputs, rank = config.integer("hidden_size"), config.integer("altup_num_inputs"), config.integer("laurel_rank")
    weights = parameter("altup.correct_output_scale", hidden) + linear("altup.correction_coefs", inputs, inputs)
    weights += linear("altup.prediction_coefs", inputs, inputs * inputs)
    weights += linear("altup.modality_router", hidden, inputs, role=WeightRole.ROUTER) + rms_norm("altup.router_norm", hidden)
    weights += linear("laurel.linear_left", hidden, rank) + linear("laurel.linear_right", rank, hidden)
    return weights + rms_norm("laurel.post_laurel_norm", hidden) + _inputs_of_layer(config, layer)


def _altup(config: Config) -> Weighed:
    hidden, others = config.integer("hidden_size"), config.integer("altup_num_inputs") - 1
    weights: Weighed = ()
    for name in ("altup_projections", "altup_unembed_projections"):
        for index in range(others):
            weights += linear(f"model.{name}.{index}", hidden, hidden)
    return weights + _inputs(config)


def _assistant(config: Config) -> Reading:
    """A draft model: its layers read the keys and values of the model that it drafts for (modeling_gemma4_assistant.py)."""
    text = config.sub("text_config") or config
    count = text.number_of_layers()
    text.ignore(*text.raw)
    config.ignore(*config.raw)
    note = Note(code="no-own-cache", message="The assistant reads the target model's cache and keeps none of its own.")
    return Reading(layers=((SharedCache(),),) * count, config=text, notes=(note,))


GEMMA3N: Final = replace(
    HEAD_NORM, norms=4, layers=lambda config: _read(config, four=False), attention=_attention, mlps=_mlps_3n, extra=_altup_layer,
    outer=_altup,
)  # fmt: skip
GEMMA4: Final = replace(
    GEMMA3N, layers=lambda config: _read(config, four=True), mlps=_mlps_4, extra=_inputs_of_layer, outer=_inputs
)
DIFFUSION_GEMMA: Final = Readers(layers=GEMMA4.read)
ASSISTANT: Final = Readers(layers=_assistant)
