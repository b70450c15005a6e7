"""The keys that most architectures share: sizes, heads, experts; and those that follow from the kinds of layers a model has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc import formulas
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import VOCABULARY

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Heads, Keys, Source

__all__ = ["common_keys", "head_keys", "kind_keys", "nextn", "pattern", "window_keys"]

_CONTEXT: Final = (
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_length",
    "max_sequence_length",
    "model_max_length",
    "max_seq_len",
)
_FEED_FORWARD: Final = ("prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")


def common_keys(source: Source) -> Keys:
    """What the converter writes for every class, if the config has it (conversion/base.py)."""
    keys: Keys = {
        "block_count": source.layers,
        "context_length": source.number(*_CONTEXT),
        "embedding_length": source.width,
        "feed_forward_length": _feed_forward(source),
        "expert_count": source.number(*_EXPERTS),
        "expert_used_count": _used(source),
        "expert_feed_forward_length": _one(source, "moe_intermediate_size"),
        "expert_shared_count": next((count for key in _SHARED if (count := _one(source, key)) is not None), None),
        "leading_dense_block_count": source.number("first_k_dense_replace"),
        "hyper_connection.count": source.number("hc_mult", "hc_count"),
        "attention.q_lora_rank": source.number("q_lora_rank"),
        VOCABULARY: source.number("vocab_size"),
    }
    if source.get("is_causal") is False:
        keys["attention.causal"] = False
    return {key: value for key, value in keys.items() if value is not None} | head_keys(source) | kind_keys(source)


def _feed_forward(source: Source) -> int | list[int] | None:
    """One width, or one per layer (Gemma 3n). A null hides the keys behind it."""
    for key in _FEED_FORWARD:
        value = source.get(key)
        if value is None and key in source.config.raw:
            return None
        if isinstance(value, (list, tuple)):
            return source.alike(source.config.integers(key, length=source.layers) or [0])
        if value is not None:
            return source.number(key)
    return None


def _used(source: Source) -> int | None:
    return next((value for key in _USED if (value := _one(source, key)) is not None), None)


def _one(source: Source, key: str) -> int | None:
    """A number that some files repeat for each layer (Hunyuan). The converter asks that all are the same."""
    if not isinstance(source.get(key), (list, tuple)):
        return source.number(key)
    values = source.config.integers(key) or [0]
    if len(set(values)) != 1:
        raise source.config.error_in_words(
            key, "a list of different numbers", "the same for all layers, as llama.cpp's converter asks"
        )
    return values[0]


def head_keys(source: Source) -> Keys:
    """Heads and their widths. A layer without attention has 0 key/value heads. Layers that slide may have widths of their own."""
    heads = [each for each in source.heads if each is not None]
    if not heads:
        return {}
    full = next((each for each in heads if not each.slides), heads[0])
    sliding = next((each for each in heads if each.slides), full)
    keys: Keys = {
        "attention.head_count": source.alike([each.queries for each in heads]),
        "attention.head_count_kv": source.alike([each.keys for each in _every(source, full)]),
        "attention.key_length": full.key_length,
        "attention.value_length": full.value_length,
    }
    if len({each.queries for each in heads}) > 1:
        keys["attention.head_count"] = [each.queries for each in _every(source, full)]
    if (sliding.key_length, sliding.value_length) != (full.key_length, full.value_length):
        keys |= {"attention.key_length_swa": sliding.key_length, "attention.value_length_swa": sliding.value_length}
    return keys


def _every(source: Source, full: Heads) -> list[Heads]:
    """The heads of each layer: those of a layer that reads another's cache are set by the row of the table."""
    from hwcalc.parsers.gguf.from_config.source import Heads

    none = full if source.shares else Heads(queries=0, keys=0, key_length=0, value_length=0)
    return [each or none for each in source.heads]


def kind_keys(source: Source) -> Keys:
    """The keys of states, latents and indexers."""
    if all(isinstance(group.kind, AttentionKind) for group in source.model.stack.groups):
        # Nobody need import the kinds that have them.
        return {}
    keys: Keys = {}
    if latent := source.first(formulas.LatentAttention):
        keys |= {
            "attention.kv_lora_rank": latent.kv_lora_rank,
            "attention.key_length_mla": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
            "attention.value_length_mla": latent.v_head_dim,
            "rope.dimension_count": latent.qk_rope_head_dim,
        }
    if indexer := source.first(formulas.SparseIndexer):
        keys |= _indexer(indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk)
    if compressed := next((each for each in source.kinds(formulas.CompressedAttention) if each and each.index_head_dim), None):
        keys |= _indexer(compressed.index_n_heads or 0, compressed.index_head_dim or 0, compressed.index_topk)
    return keys | _state_keys(source)


def _indexer(heads: int, length: int, top: int | None) -> Keys:
    keys: Keys = {"attention.indexer.head_count": heads, "attention.indexer.key_length": length}
    return keys if top is None else keys | {"attention.indexer.top_k": top}


def _state_keys(source: Source) -> Keys:
    if mamba := source.first(formulas.Mamba1):
        rank = source.number("time_step_rank", "dt_rank", "mamba_dt_rank") if _plain_rank(source) else None
        return _ssm(mamba.d_conv, mamba.d_inner, mamba.d_state, rank or -(-source.width // 16))
    if mamba2 := source.first(formulas.Mamba2):
        inner = mamba2.num_heads * mamba2.head_dim
        return _ssm(mamba2.d_conv, inner, mamba2.d_state, mamba2.num_heads) | {"ssm.group_count": mamba2.n_groups}
    if delta := source.first(formulas.GatedDeltaNet):
        inner = delta.num_value_heads * delta.value_head_dim
        return _ssm(delta.d_conv, inner, delta.key_head_dim, delta.num_value_heads) | {"ssm.group_count": delta.num_key_heads}
    if kimi := source.first(formulas.KimiDeltaAttention):
        return {"ssm.conv_kernel": kimi.d_conv, "kda.head_dim": kimi.head_dim}
    if rwkv := source.first(formulas.RwkvMatrix):
        return {"wkv.head_size": rwkv.head_dim, "attention.head_count": 0}
    if short := source.first(formulas.ShortConvolution):
        return {"shortconv.l_cache": short.d_conv}
    return {}


def _plain_rank(source: Source) -> bool:
    return not isinstance(source.get("time_step_rank", "dt_rank", "mamba_dt_rank"), str)


def _ssm(kernel: int, inner: int, state: int, rank: int) -> Keys:
    return {"ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}


def pattern(source: Source, layers: int | None = None, *, beyond: bool = False) -> list[bool]:
    """Which layers slide, as the layers say; those of multi-token prediction behind them as in ``beyond``."""
    types = source.words("layer_types")
    if types is not None and source.shares:
        slides = [each == "sliding_attention" for each in types[: source.layers]]
    else:
        slides = [each is not None and each.slides for each in source.heads]
    return slides + [beyond] * ((layers or 0) - len(slides))


def window_keys(source: Source, *, listed: bool, needed: bool = False) -> Keys:
    """The window, and with ``listed`` the layers that have it. ``needed``: the converter refuses a file without."""
    window = source.number("sliding_window", "sliding_window_size", "window_size")
    if window is None:
        if needed:
            raise source.config.missing("sliding_window")
        return {}
    keys: Keys = {"attention.sliding_window": window}
    return keys | ({"attention.sliding_window_pattern": pattern(source)} if listed else {})


def nextn(source: Source, keys: Keys, count: int | None) -> None:
    """Add the layers for multi-token prediction: they count as blocks, behind the others."""
    if count:
        keys["block_count"] += count
        keys["nextn_predict_layers"] = count
