"""Gated delta nets with full attention in between: the Qwen3-Next line, OLMo Hybrid and Qwen4."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import GatedDeltaNet, Layer, LayerKind, ShortConvolution, SparseIndexer
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import LayerReader, Reading, attention_dims, build_layers, every, full_layer
from hwcalc.parsers.states import LINEAR, spelled_layer_types, state_dtype

__all__ = ["read"]

_FULL: Final = "full_attention"
_INTERVAL: Final = 4
"""Every fourth layer attends where the file does not say (transformers 5.23, configuration_qwen3_next.py)."""
_QWEN4: Final = "qwen4_exp_text"
# Keys that never bear on the cache, and those of one sort of layer, which a stack of the other leaves unread.
_WITHOUT_EFFECT: Final = (
    "attn_output_gate", "decoder_sparse_step", "full_attention_interval", "head_dim", "heads_per_ngram", "indexer_budget",
    "indexer_compress_ratio", "indexer_head_dim", "indexer_kv_heads", "indexer_n_heads", "linear_a_log_max", "linear_a_log_min",
    "linear_allow_neg_eigval", "linear_conv_kernel_dim", "linear_dt_max", "linear_dt_min", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "max_window_layers", "num_attention_heads",
    "num_key_value_heads", "number_of_conv_states", "sliding_window",
)  # fmt: skip


def read(config: Config) -> Reading:
    """Read a config of gated delta net and attention layers."""
    count = config.number_of_layers()
    interval = config.maybe_integer("full_attention_interval") or _INTERVAL
    types = spelled_layer_types(config, count)
    if types is None:
        types = every(interval, count, _FULL, LINEAR)
        if config.model_type == "olmo_hybrid" and _FULL not in types:
            types[-1] = _FULL
    config.ignore(*_WITHOUT_EFFECT)
    attention: LayerReader = _indexed if config.model_type == _QWEN4 else full_layer
    readers: dict[str, LayerReader] = {LINEAR: _delta_net, _FULL: attention}
    if config.model_type == _QWEN4:
        readers |= dict.fromkeys(("indexed_attention", "qwen_sparse_attention"), attention)
        readers[LINEAR] = _embedding_reader(config, count)
    return Reading(layers=build_layers(config, types, readers), config=config, state_dtype=state_dtype(config))


def _delta_net(config: Config, index: int) -> Layer:
    """OLMo Hybrid leaves its dims to a rule: as many heads as attention has, keys 3/4 of a head's share, values twice that."""
    key_heads = config.maybe_integer("linear_num_key_heads") or config.integer("num_attention_heads")
    value_heads = config.maybe_integer("linear_num_value_heads") or config.integer("num_attention_heads")
    key_dim = config.maybe_integer("linear_key_head_dim") or 3 * config.integer("hidden_size") // (4 * key_heads)
    return (
        GatedDeltaNet(
            num_key_heads=key_heads,
            num_value_heads=value_heads,
            key_head_dim=key_dim,
            value_head_dim=config.maybe_integer("linear_value_head_dim") or 2 * key_dim,
            d_conv=config.integer("linear_conv_kernel_dim"),
        ),
    )


def _indexed(config: Config, index: int) -> Layer:
    """Qwen4's attention: plain keys and values, and an indexer whose raw keys are kept for every token."""
    kinds: list[LayerKind] = [attention_dims(config).full()]
    heads = config.maybe_integer("indexer_n_heads")
    if heads is not None:
        kinds.append(
            SparseIndexer(
                index_n_heads=heads,
                index_head_dim=config.integer("indexer_head_dim"),
                index_topk=config.maybe_integer("indexer_budget"),
            )
        )
    return tuple(kinds)


def _embedding_reader(config: Config, count: int) -> LayerReader:
    """Qwen4's delta nets, some with a per-layer embedding of n-grams and its dilated convolution over all residual streams.

    ``ple_layer_ids`` counts from 1. Kernel 4 dilated by n-grams of 3 looks back (4 - 1) x 3 = 9 tokens.
    """
    ids = config.integers("ple_layer_ids", minimum=1) or []
    if any(number > count for number in ids):
        raise config.error("ple_layer_ids", ids, f"a list of layer numbers from 1 to {count}")
    embedded = {number - 1 for number in ids}
    streams = config.integer("hc_count") * config.integer("hidden_size")
    reach = (config.integer("ple_conv_kernel_size") - 1) * config.integer("ngram_size")

    def reader(layer: Config, index: int) -> Layer:
        kinds = _delta_net(layer, index)
        return (*kinds, ShortConvolution(channels=streams, d_conv=reach + 1)) if index in embedded else kinds

    return reader
