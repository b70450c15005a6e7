"""Kimi delta attention with latent attention in between: Kimi Linear, Bailing hybrids and GLM-5 Next."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hwcalc.formulas import KimiDeltaAttention, Layer, SparseIndexer
from hwcalc.parsers.config import Config
from hwcalc.parsers.latent import indexer_modes, latent_attention, sparse_indexer
from hwcalc.parsers.reading import Reading, build_layers, every
from hwcalc.parsers.states import LINEAR, spelled_layer_types, state_dtype

__all__ = ["read"]

_FULL: Final = "full_attention"
_INDEXED: Final = "indexed_attention"
# Keys that never bear on the cache, and those of latent attention, which a stack without it leaves unread.
_WITHOUT_EFFECT: Final = (
    "attn_res_block_size", "head_dim", "index_kpool", "index_kpool_always_select_tail", "kda_lower_bound", "kda_safe_gate",
    "kv_lora_rank", "latent_moe_use_norm", "linear_lower_bound", "mla_use_nope", "mla_use_output_gate", "num_attention_heads",
    "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip


def read(config: Config) -> Reading:
    """Read a config of Kimi delta attention and latent attention layers."""
    count = config.number_of_layers()
    nested = config.sub("linear_attn_config")
    types = spelled_layer_types(config, count) or _derived(config, nested, count)
    if nested is not None:
        # A file that spells layer_types out may keep the lists they came from.
        nested.ignore("full_attn_layers", "kda_layers")
    delta = (_delta(config, nested),)
    config.ignore(*_WITHOUT_EFFECT)

    def linear_layer(layer: Config, index: int) -> Layer:
        return delta

    def full_layer(layer: Config, index: int) -> Layer:
        return (latent_attention(layer),)

    if config.model_type != "glm5_next_text":
        layers = build_layers(config, types, {LINEAR: linear_layer, _FULL: full_layer})
        return Reading(layers=layers, config=config, state_dtype=state_dtype(config))

    modes = indexer_modes(config, count)

    def indexed_layer(layer: Config, index: int) -> Layer:
        return (*full_layer(layer, index), _indexer(layer)) if modes[index] == "full" else full_layer(layer, index)

    layers = build_layers(config, types, {LINEAR: linear_layer, _FULL: indexed_layer, _INDEXED: indexed_layer})
    # The library packs one more element into every entry: whether the token is padding.
    padded = tuple(
        tuple(
            replace(kind, index_extra_elements=kind.index_extra_elements + 1) if isinstance(kind, SparseIndexer) else kind
            for kind in layer
        )
        for layer in layers
    )
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings={"transformers": padded})


def _indexer(config: Config) -> SparseIndexer:
    """GLM-5 Next scores pools of tokens: a gate as wide as the key stands beside each token's key."""
    indexer = sparse_indexer(config)
    return replace(indexer, index_extra_elements=indexer.index_head_dim)


def _derived(config: Config, nested: Config | None, count: int) -> list[str]:
    """Types by the rule of the family: Kimi's lists count layers from 1, [4, 8] are the fourth and the eighth."""
    if config.model_type == "bailing_hybrid":
        return every(config.integer("layer_group_size"), count, _FULL, LINEAR)
    if config.model_type == "glm5_next_text":
        return every(4, count, _FULL, LINEAR)
    full = nested.integers("full_attn_layers") if nested is not None else None
    linear = nested.integers("kda_layers") if nested is not None else None
    if nested is None or full is None or linear is None:
        return [_FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    if sorted((*full, *linear)) != list(range(1, count + 1)):
        raise nested.error(
            "full_attn_layers", full, f"numbers from 1 to {count} that together with kda_layers name each layer once"
        )
    return [_FULL if number in full else LINEAR for number in range(1, count + 1)]


def _delta(config: Config, nested: Config | None) -> KimiDeltaAttention:
    """The nested ``linear_attn_config`` wins over linear_* keys; Bailing has as many linear heads as query heads."""

    def width(nested_key: str, *keys: str) -> int:
        given = [nested.maybe_integer(nested_key) if nested is not None else None, *map(config.maybe_integer, keys)]
        found = next((value for value in given if value is not None), None)
        if found is None:
            raise config.missing(keys[-1])
        return found

    if config.model_type == "bailing_hybrid":
        return KimiDeltaAttention(
            num_heads=width("num_heads", "linear_num_heads", "num_attention_heads"),
            # A config that the library has saved has head_dim overwritten by the rotary width, and keeps this one apart.
            head_dim=width("head_dim", "linear_head_dim", "head_dim"),
            d_conv=width("short_conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size"),
        )
    return KimiDeltaAttention(
        num_heads=width("num_heads", "linear_num_heads"),
        head_dim=width("head_dim", "linear_head_dim"),
        d_conv=width("short_conv_kernel_size", "linear_conv_kernel_dim"),
    )
