"""Lightning attention with softmax attention in between: MiniMax (all three types) and Ring-linear.

- minimax mirrors ``modeling_minimax.py`` of transformers 5.23.
- minimax_m1, minimax_text_01: ``attn_type_list`` is 1 for softmax attention and 0 for lightning attention. The state of the latter
  is a square matrix for each *query* head (vLLM's ``minimax_text_01.py``: heads x head_dim x head_dim, fp32).
- bailing_moe_linear (Ring-linear, Ling 2.5): softmax attention on the last of each ``layer_group_size`` layers and on the layers at
  the end that do not fill a group, lightning attention on the others (``modeling_bailing_moe_linear_v2.py``). With
  ``kv_lora_rank`` the softmax attention is MLA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import LatentAttention, Layer, LightningAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, WeightRole, gated_mlp, linear
from hwcalc.formulas.weights_state import lightning_attention
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Readers, Reading, attention_dims, build_layers, every, full_layer
from hwcalc.parsers.states import FULL, LINEAR, spelled_layer_types, state_dtype

__all__ = ["BAILING_MOE_LINEAR", "MINIMAX", "MINIMAX_TEXT"]


def _minimax(config: Config) -> Reading:
    """Types by ``layer_types``, else by ``attn_type_list`` (1 is attention), else attention on layers 0, 2, 4 and so on."""
    count = config.number_of_layers()
    for kind in ("full", "linear"):
        config.ignore(f"{kind}_attn_alpha_factor", f"{kind}_attn_beta_factor")
    config.ignore("sliding_window")
    alternating = every(2, count, FULL, LINEAR, offset=0)
    flags = config.integers("attn_type_list", length=count)
    spelled = spelled_layer_types(config, count)
    types = spelled or ([FULL if flag else LINEAR for flag in flags] if flags else alternating)
    readers = {LINEAR: _lightning_layer, FULL: full_layer}
    layers = build_layers(config, types, readers)
    # The class in transformers does not read attn_type_list.
    readings = {"transformers": build_layers(config, alternating, readers)} if flags and not spelled else {}
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings=readings)


def _lightning_layer(config: Config, index: int) -> Layer:
    return _lightning(attention_dims(config))


def _lightning(dims: AttentionDims) -> Layer:
    return (LightningAttention(num_heads=dims.num_attention_heads, head_dim=dims.head_dim),)


def _minimax_text(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    types = config.integers("attn_type_list")
    if types is None:
        raise config.missing("attn_type_list")
    if len(types) < count or set(types) - {0, 1}:
        raise config.error("attn_type_list", types, f"a list of {count} items, 0 (lightning) or 1 (softmax)")
    return Reading(layers=tuple((dims.full(),) if flag else _lightning(dims) for flag in types[:count]), config=config)


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Lightning or softmax attention, then experts. Early files may have a shared expert, which is scaled by a single number."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
    moe = gated_experts(hidden, width, count, active)
    shared = 0 if config.has_class else config.maybe_integer("shared_intermediate_size", minimum=0) or 0
    if shared:
        moe += gated_mlp(hidden, shared, path="shared_mlp") + linear("coefficient", hidden, 1, role=WeightRole.ROUTER)

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind in layer:
            if isinstance(kind, LightningAttention):
                yield "lightning", lightning_attention(hidden, **vars(kind))
            elif isinstance(kind, AttentionKind):
                yield "attention", attention_of(kind, hidden)
        yield "moe", moe
        yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    return ends(config, top) + repeated(reading.layers, weigh)


def _bailing_moe_linear(config: Config) -> Reading:
    count = config.number_of_layers()
    period = config.integer("layer_group_size")
    dims = attention_dims(config)
    softmax: Layer = (dims.full(),)
    rank = config.maybe_integer("kv_lora_rank")
    if rank is not None:
        softmax = (
            LatentAttention(
                num_attention_heads=dims.num_attention_heads,
                kv_lora_rank=rank,
                qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0),
                qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
                v_head_dim=dims.v_head_dim,
            ),
        )
    config.ignore("num_kv_heads_for_linear_attn", "max_window_layers", "layer_types", "linear_attn_norm_group_size")
    linear_layer = _lightning(dims)
    filled = count // period * period
    layers = tuple(softmax if (i + 1) % period == 0 or i >= filled else linear_layer for i in range(count))
    return Reading(layers=layers, config=config)


BAILING_MOE_LINEAR: Final = Readers(layers=_bailing_moe_linear)
MINIMAX: Final = Readers(layers=_minimax, weights=_weights)
MINIMAX_TEXT: Final = Readers(layers=_minimax_text, weights=_weights)
