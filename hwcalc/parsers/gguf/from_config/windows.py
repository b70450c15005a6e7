"""Converters of models with a window: which keys name it, and which layers have it.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.parsers.gguf.from_config.common import nextn, pattern, window_keys
from hwcalc.parsers.gguf.from_config.shared import experts_as_wide, given, granite_moe, leading_dense, mtp

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = [
    "afmoe",
    "cohere2_moe",
    "exaone_moe",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt_oss",
    "granite_swa",
    "laguna",
    "listed_window",
    "llama4",
    "mellum",
    "mimo2",
    "plamo3",
    "step35",
    "window",
    "window_or_zero",
    "windows_and_mtp",
]


def window(source: Source, keys: Keys) -> None:
    """AfmoeModel, Cohere2Model, Gemma2Model, GptOssModel, LagunaModel: the window; which layers have it, llama.cpp knows."""
    keys |= window_keys(source, listed=False)


def window_or_zero(source: Source, keys: Keys) -> None:
    """Phi3MiniModel."""
    keys |= {"attention.sliding_window": 0} | window_keys(source, listed=False)


def listed_window(source: Source, keys: Keys) -> None:
    """MuseGlimmerModel, Exaone4Model, Olmo2Model."""
    keys |= window_keys(source, listed=True)


def windows_and_mtp(source: Source, keys: Keys) -> None:
    """ExaoneMoEModel, Cohere2MoeModel."""
    listed_window(source, keys)
    mtp(source, keys)


def gemma3(source: Source, keys: Keys) -> None:
    """Gemma3Model: no window for a model whose every layer is full."""
    if source.get("sliding_window_pattern") != 1:
        keys |= window_keys(source, listed=False, needed=True)


def gemma3n(source: Source, keys: Keys) -> None:
    """Gemma3NModel."""
    gemma3(source, keys)
    keys["attention.shared_kv_layers"] = source.wanted("num_kv_shared_layers")
    keys["attention.sliding_window_pattern"] = _types(source, 5)


def _types(source: Source, period: int) -> list[bool]:
    """Which layers slide, of a model whose last layers read the cache of others: by its list of types, or by its period."""
    return pattern(source) if source.words("layer_types") else [(layer + 1) % period != 0 for layer in range(source.layers)]


def gemma4(source: Source, keys: Keys) -> None:
    """Gemma4Model: full layers have wider heads, and may have fewer."""
    gemma3(source, keys)
    shared = source.number("num_kv_shared_layers") or 0
    slides = _types(source, 6)
    slides[-1] = False
    keys |= {"attention.shared_kv_layers": shared, "attention.sliding_window_pattern": slides}
    full = next((each for each in source.heads if each and not each.slides), None)
    sliding = next((each for each in source.heads if each and each.slides), None)
    if full and sliding:
        heads = [sliding.keys if each else full.keys for each in slides]
        keys |= {"attention.head_count_kv": source.alike(heads)}
        keys |= {"attention.key_length_swa": sliding.key_length, "attention.value_length_swa": sliding.value_length}
    if source.get("use_double_wide_mlp") and isinstance(width := keys.get("feed_forward_length"), int):
        own = source.layers - shared
        keys["feed_forward_length"] = [width if layer < own else 2 * width for layer in range(source.layers)]
    keys["rope.dimension_count"] = keys["attention.key_length"]
    keys["rope.dimension_count_swa"] = keys.get("attention.key_length_swa", keys["attention.key_length"])
    if not source.get("num_experts"):
        keys.pop("expert_used_count", None)
    if not source.config.has("moe_intermediate_size"):
        keys.pop("expert_feed_forward_length", None)


def mellum(source: Source, keys: Keys) -> None:
    """MellumModel."""
    if source.get("use_sliding_window") in (None, True):
        keys |= window_keys(source, listed=True)


def plamo3(source: Source, keys: Keys) -> None:
    """Plamo3Model: the period itself, or a list."""
    keys |= window_keys(source, listed=False)
    every = source.get("sliding_window_pattern")
    if "attention.sliding_window" in keys:
        keys["attention.sliding_window_pattern"] = every if isinstance(every, int) else pattern(source)


def llama4(source: Source, keys: Keys) -> None:
    """Llama4Model: a window of 0 says that no layer is chunked; the size of chunks llama.cpp knows."""
    keys["feed_forward_length"] = source.wanted("intermediate_size_mlp")
    keys["expert_feed_forward_length"] = source.wanted("intermediate_size")
    types = source.words("layer_types")
    if types and set(types) == {"full_attention"}:
        keys["attention.sliding_window"] = 0


def mimo2(source: Source, keys: Keys) -> None:
    """MimoV2Model: the three layers for multi-token prediction slide."""
    sliding = next((each for each in source.heads if each and each.slides), None)
    listed_window(source, keys)
    nextn(source, keys, 3)
    if sliding:
        keys["attention.head_count_kv"] = [each.keys if each else 0 for each in source.heads] + [sliding.keys] * 3
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"], beyond=True)


def step35(source: Source, keys: Keys) -> None:
    """Step35Model: layers for multi-token prediction are full."""
    full = next((each for each in source.heads if each and not each.slides), None)
    listed_window(source, keys)
    mtp(source, keys)
    behind = keys["block_count"] - source.layers
    if full:
        keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads] + [full.queries] * behind
        keys["attention.head_count_kv"] = [each.keys if each else 0 for each in source.heads] + [full.keys] * behind
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"])
    moe = source.get("moe_layers_enum")
    first = moe.split(",")[0].strip() if isinstance(moe, str) else ""
    keys |= {"leading_dense_block_count": int(first[:9]) if first.isdecimal() and first.isascii() else 0}
    keys |= given(source, {"expert_used_count": "moe_top_k", "expert_shared_feed_forward_length": "share_expert_dim"})


def gpt_oss(source: Source, keys: Keys) -> None:
    """GptOssModel."""
    window(source, keys)
    experts_as_wide(source, keys)


def cohere2_moe(source: Source, keys: Keys) -> None:
    """Cohere2MoeModel."""
    windows_and_mtp(source, keys)
    width, shared = source.wanted("intermediate_size"), source.number("num_shared_experts")
    keys["expert_feed_forward_length"] = width
    if shared:
        keys["expert_shared_feed_forward_length"] = shared * width
    leading_dense(source, keys)


def laguna(source: Source, keys: Keys) -> None:
    """LagunaModel."""
    if source.number("sliding_window"):
        window(source, keys)
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"})
    if heads := source.config.integers("num_attention_heads_per_layer", length=source.layers):
        keys["attention.head_count"] = heads
    sliding = source.section("rope_parameters").section("sliding_attention")
    if (share := sliding.fraction("partial_rotary_factor")) is not None:
        keys["rope.dimension_count_swa"] = int(share * keys["attention.key_length"])
    leading_dense(source, keys)


def afmoe(source: Source, keys: Keys) -> None:
    """AfmoeModel."""
    window(source, keys)
    keys |= given(source, {"leading_dense_block_count": "num_dense_layers"})


def exaone_moe(source: Source, keys: Keys) -> None:
    """ExaoneMoEModel."""
    windows_and_mtp(source, keys)
    width, shared = source.number("moe_intermediate_size"), source.number("num_shared_experts")
    keys |= {} if width is None else {"expert_shared_feed_forward_length": width * (shared or 0)}
    keys["leading_dense_block_count"] = source.number("first_k_dense_replace", "first_last_k_dense_replace") or 0


def granite_swa(source: Source, keys: Keys) -> None:
    """GraniteSWAModel, GraniteMoeSWAModel."""
    keys |= (
        {"attention.sliding_window": 128}
        | window_keys(source, listed=False)
        | {"attention.sliding_window_pattern": pattern(source)}
    )
    granite_moe(source, keys)
