"""Rules that converters of several kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hwcalc.parsers.gguf.from_config.common import nextn

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = ["experts_as_wide", "given", "granite_moe", "leading_dense", "mtp", "scalar_heads", "shared_expert"]


def mtp(source: Source, keys: Keys) -> None:
    """BailingMoeV2Model, Glm4MoeModel, HYV3Model and others: their own layers for multi-token prediction are blocks too."""
    nextn(source, keys, source.number("num_nextn_predict_layers"))


def given(source: Source, names: Mapping[str, str]) -> Keys:
    """The numbers that the config has, by the GGUF key that each of them becomes."""
    found = {key: source.number(name) for key, name in names.items()}
    return {key: value for key, value in found.items() if value is not None}


def leading_dense(source: Source, keys: Keys) -> None:
    """How many layers of the list come before the first that is not dense."""
    types = source.words("mlp_layer_types")
    if types is not None:
        keys["leading_dense_block_count"] = next((layer for layer, each in enumerate(types) if each != "dense"), len(types))


def experts_as_wide(source: Source, keys: Keys) -> None:
    """GptOssModel, MiniMaxM2Model: the one width is that of experts."""
    keys |= given(source, {"expert_feed_forward_length": "intermediate_size"})


def scalar_heads(source: Source, keys: Keys) -> None:
    """KimiLinearModel, KimiK3Model, JambaModel: layers with a state have query heads all the same, but 0 key/value heads."""
    keys["attention.head_count"] = source.wanted("num_attention_heads")
    keys.setdefault("attention.head_count_kv", 0)


def shared_expert(source: Source, keys: Keys) -> None:
    """Qwen2MoeModel."""
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"})


def granite_moe(source: Source, keys: Keys) -> None:
    """GraniteMoeModel."""
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_intermediate_size"})
