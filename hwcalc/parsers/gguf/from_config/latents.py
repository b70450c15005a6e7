"""Converters of models with latent attention, indexers or compressed caches.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer
from hwcalc.parsers.gguf.from_config.common import nextn, pattern, window_keys
from hwcalc.parsers.gguf.from_config.shared import experts_as_wide, given, leading_dense, mtp, scalar_heads

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = [
    "deepseek4",
    "deepseek_ocr",
    "dots3",
    "expanded_latent",
    "glm5_next",
    "glm_dsa",
    "hy4",
    "kimi_linear",
    "latent",
    "latent_mtp",
    "minimax_m3",
]


def latent(source: Source, keys: Keys) -> None:
    """DeepseekV2Model."""
    if "leading_dense_block_count" not in keys:
        keys["leading_dense_block_count"] = 0 if source.number("n_routed_experts") is not None else source.layers
    keys.setdefault("expert_feed_forward_length", keys.get("feed_forward_length"))


def latent_mtp(source: Source, keys: Keys) -> None:
    """Glm4MoeLiteModel, DeepseekV32Model."""
    latent(source, keys)
    mtp(source, keys)


def glm_dsa(source: Source, keys: Keys) -> None:
    """GlmMoeDsaModel: a list says which layers have an indexer of their own."""
    latent_mtp(source, keys)
    if types := source.words("indexer_types"):
        keys["attention.indexer.types"] = [each == "full" for each in types]


def deepseek_ocr(source: Source, keys: Keys) -> None:
    """DeepseekV2Model for DeepSeek-OCR: attention with keys and values for every head."""
    keys |= window_keys(source, listed=False) | given(source, {"rope.dimension_count": "qk_rope_head_dim"})
    latent(source, keys)


def expanded_latent(source: Source, keys: Keys) -> None:
    """MiniCPM3Model: the latent is multiplied out, with a key and a value for every head."""
    if latent := source.first(LatentAttention):
        length = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        keys |= {
            "attention.key_length": length,
            "attention.head_count_kv": source.wanted("num_key_value_heads", "num_attention_heads"),
        }
        for key in ("attention.value_length", "attention.key_length_mla", "attention.value_length_mla"):
            keys.pop(key, None)


def deepseek4(source: Source, keys: Keys) -> None:
    """DeepseekV4Model: the layers for multi-token prediction go into a file of their own."""
    keys |= window_keys(source, listed=False, needed=True)
    own = [(each and each.compress_ratio) or 0 for each in source.kinds(CompressedAttention)]
    keys["attention.compress_ratios"] = source.config.integers("compress_ratios") or own
    keys |= given(source, {"rope.dimension_count": "qk_rope_head_dim"})
    if "intermediate_size" not in source.config.raw:
        keys.pop("feed_forward_length", None)


def dots3(source: Source, keys: Keys) -> None:
    """Dots3NoteModel: layers that slide have latents of their own; the one layer for multi-token prediction slides."""
    latents = source.kinds(LatentAttention)
    full = next((each for each in latents if each and each.window is None), None)
    sliding = next((each for each in latents if each and each.window is not None), None)
    latent(source, keys)
    keys |= window_keys(source, listed=True)
    if not full or not sliding:
        return
    keys |= {
        "attention.kv_lora_rank": full.kv_lora_rank,
        "attention.key_length_mla": full.qk_nope_head_dim + full.qk_rope_head_dim,
        "attention.value_length_mla": full.v_head_dim,
        "attention.key_length_swa": sliding.kv_lora_rank + sliding.qk_rope_head_dim,
        "attention.value_length_swa": sliding.kv_lora_rank,
        "attention.kv_lora_rank_swa": sliding.kv_lora_rank,
        "attention.key_length_mla_swa": sliding.qk_nope_head_dim + sliding.qk_rope_head_dim,
        "attention.value_length_mla_swa": sliding.v_head_dim,
        "attention.indexer.types": [not each for each in pattern(source)],
    }
    nextn(source, keys, 1)
    keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads] + [sliding.num_attention_heads]


def hy4(source: Source, keys: Keys) -> None:
    """HYV4Model."""
    leading_dense(source, keys)
    latent(source, keys)
    if source.first(SparseIndexer):
        keys["attention.indexer.types"] = [each is not None for each in source.kinds(SparseIndexer)]


def minimax_m3(source: Source, keys: Keys) -> None:
    """MiniMaxM3Model: dense layers come first; the indexer of the others has keys and values."""
    experts_as_wide(source, keys)
    frequency = source.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        keys["leading_dense_block_count"] = next((layer for layer, each in enumerate(frequency) if each != 0), len(frequency))
    else:
        keys["leading_dense_block_count"] = next((n for n, each in enumerate(source.kinds(SparseIndexer)) if each), 0)
    names = {"attention.indexer.top_k": "sparse_topk_blocks", "attention.indexer.block_size": "sparse_block_size"}
    keys |= given(source.section("sparse_attention_config"), names)


def kimi_linear(source: Source, keys: Keys) -> None:
    """KimiLinearModel: the length of a value is not written, as no value is kept."""
    scalar_heads(source, keys)
    keys.pop("attention.value_length", None)


def glm5_next(source: Source, keys: Keys) -> None:
    """Glm5NextModel."""
    scalar_heads(source, keys)
    mtp(source, keys)
    behind = keys["block_count"] - source.layers
    keys["attention.head_count_kv"] = [1 if each else 0 for each in source.heads] + [1] * behind
    keys |= given(source, {"attention.indexer.kpool": "index_kpool"})
    if types := source.words("indexer_types"):
        keys["attention.indexer.types"] = [each == "full" for each in types]
