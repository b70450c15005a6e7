"""Converters of models with recurrent states.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.formulas import Mamba2, NoCache
from hwcalc.parsers.gguf.from_config.common import nextn
from hwcalc.parsers.gguf.from_config.shared import given, scalar_heads, shared_expert

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = [
    "granite_hybrid",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "minimax01",
    "nemotron_h",
    "plamo2",
    "qwen4",
    "qwen_next",
    "qwen_next_moe",
    "rwkv6",
    "rwkv7",
]

_MILLION: Final = 2**20


def qwen_next(source: Source, keys: Keys) -> None:
    """Qwen3NextModel: Qwen3-Next itself does not name the one layer for multi-token prediction that its files have."""
    keys["full_attention_interval"] = source.number("full_attention_interval") or 4
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")
    modules = source.number("mtp_num_hidden_layers") or 1
    keys["attention.recurrent_layers"] = [each is None for each in source.heads] + [False] * modules
    nextn(source, keys, modules)


def qwen_next_moe(source: Source, keys: Keys) -> None:
    """Qwen3NextModel with experts."""
    shared_expert(source, keys)
    qwen_next(source, keys)


def qwen4(source: Source, keys: Keys) -> None:
    """Qwen4ExpTextModel."""
    shared_expert(source, keys)
    keys["full_attention_interval"] = source.number("full_attention_interval") or 4
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")
    ratio = source.number("indexer_compress_ratio") or 0
    keys["attention.recurrent_layers"] = [each is None for each in source.heads]
    keys["attention.compress_ratios"] = [ratio if each else 0 for each in source.heads]
    names = {
        "attention.indexer.head_count": "indexer_n_heads",
        "attention.indexer.key_length": "indexer_head_dim",
        "attention.indexer.top_k": "indexer_budget",
    }
    if looked_up := source.config.integers("ple_layer_ids", minimum=1):
        keys["ple.layers"] = [each - 1 for each in looked_up]
        names |= {"ple.ngram_size": "ngram_size", "ple.conv_kernel": "ple_conv_kernel_size"}
    keys |= given(source, names)


def mamba(_source: Source, keys: Keys) -> None:
    """MambaModel, Mamba2Model: any length, and no attention."""
    keys |= {"context_length": _MILLION, "feed_forward_length": 0, "attention.head_count": 0}


def granite_hybrid(source: Source, keys: Keys) -> None:
    """GraniteHybridModel: without positions, any length; without states, a plain Granite."""
    scalar_heads(source, keys)
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_intermediate_size"})
    keys |= given(source, {"rope.dimension_count": "attn_rotary_emb"})
    if source.first(Mamba2) and source.model.architecture != "BambaForCausalLM":
        keys["context_length"] = _MILLION


def nemotron_h(source: Source, keys: Keys) -> None:
    """NemotronHModel: layers with a feed-forward part alone have its width, all others 0; one layer for multi-token prediction."""
    experts = "expert_count" in keys and _has_experts(source)
    width = source.wanted("moe_intermediate_size" if experts else "intermediate_size")
    alone = _feed_forward_layers(source, "E" if experts else "-")
    heads = [each.keys if each else 0 for each in source.heads]
    keys["attention.head_count"] = source.wanted("num_attention_heads")
    keys["context_length"] = _MILLION
    if not experts:
        for key in ("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count"):
            keys.pop(key, None)
    else:
        keys |= given(source, {"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"})
    count = (source.number("num_nextn_predict_layers") or 0) if experts else 0
    nextn(source, keys, count)
    keys["feed_forward_length"] = [width if each else 0 for each in alone] + [width] * count
    keys["attention.head_count_kv"] = heads + [source.wanted("num_key_value_heads")] * count
    keys["rope.dimension_count"] = source.width // max(1, keys["attention.head_count"])


def _feed_forward_layers(source: Source, letter: str) -> list[bool]:
    """The layers that the converter takes for feed-forward parts: by their letter, or ``moe`` in a list of types."""
    given_types = source.get("hybrid_override_pattern", "layers_block_type")
    if isinstance(given_types, str) and len(given_types) == source.layers:
        return [each == letter for each in given_types]
    if isinstance(given_types, (list, tuple)) and len(given_types) == source.layers:
        return [each == "moe" for each in given_types]
    return [all(isinstance(part, NoCache) for part in layer) for layer in source.model.stack]


def _has_experts(source: Source) -> bool:
    """Whether the file itself names experts: the class has a default for models without."""
    return source.config.has("num_experts_per_tok") or "num_experts_per_tok" in source.top


def plamo2(source: Source, keys: Keys) -> None:
    """Plamo2Model: layers with a state have no heads at all."""
    keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads]


def lfm2(source: Source, keys: Keys) -> None:
    """LFM2Model: the width of the feed-forward layers may be worked out."""
    width = source.number("block_ff_dim", "intermediate_size")
    if width and source.get("block_auto_adjust_ff_dim"):
        width = 2 * width // 3
        factor = source.config.number("block_ffn_dim_multiplier", 1.0)
        multiple = source.number("block_multiple_of", minimum=1) or 1
        width = -(-int(factor * width) // multiple) * multiple
    if width:
        keys["feed_forward_length"] = width
    keys |= given(source, {"shortconv.l_cache": "conv_L_cache"})


def lfm2_moe(source: Source, keys: Keys) -> None:
    """LFM2MoeModel."""
    keys |= given(source, {"leading_dense_block_count": "num_dense_layers", "shortconv.l_cache": "conv_L_cache"})


def rwkv6(source: Source, keys: Keys) -> None:
    """Rwkv6Model: any length; without a width of its own, 3.5 times that of the hidden state in steps of 32."""
    keys["context_length"] = _MILLION
    keys.setdefault("feed_forward_length", 7 * source.width // 64 * 32)


def rwkv7(source: Source, keys: Keys) -> None:
    """Rwkv7Model: the same with 4 times that width."""
    keys["context_length"] = _MILLION
    keys.setdefault("feed_forward_length", 4 * source.width)


def minimax01(source: Source, keys: Keys) -> None:
    """MiniMaxText01Model: layers with a state have the same heads as the others."""
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")
