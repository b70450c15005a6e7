"""DeepSeek-V4: a window on every layer, and on most a compressed memory of every 4 or every 128 tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.formulas import CompressedAttention, Layer
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading

__all__ = ["compressed_layer", "read"]

_SPARSE: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_SLIDING: Final = "sliding_attention"
_RATES: Final = {_SPARSE: 4, _HEAVY: 128}
_TYPE_OF_RATIO: Final = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}


def compressed_layer(config: Config, name: str, ratio: int | None) -> Layer:
    """One layer by its type; the sparse kind overlaps its groups and has an indexer."""
    sparse = name == _SPARSE
    return (
        CompressedAttention(
            num_attention_heads=config.integer("num_attention_heads"),
            head_dim=config.integer("head_dim"),
            window=config.integer("sliding_window"),
            compress_ratio=ratio,
            overlap=sparse,
            index_n_heads=config.integer("index_n_heads") if sparse else None,
            index_head_dim=config.integer("index_head_dim") if sparse else None,
            index_topk=config.maybe_integer("index_topk") if sparse else None,
        ),
    )


def read(config: Config) -> Reading:
    """Read a DeepSeek-V4 config: ``layer_types``, else ``compress_ratios``, else two heavy layers and then both in turn."""
    count = config.number_of_layers()
    config.ignore("num_key_value_heads", "compress_rope_theta", "num_hash_layers", "o_lora_rank", "q_lora_rank", "o_groups")
    config.ignore("qk_rope_head_dim")
    rates = dict(_RATES)
    given = config.get("compress_rates")
    if isinstance(given, Mapping):
        for name in rates:
            if name in given:
                rates[name] = config.checked_integer(f"compress_rates.{name}", given[name])
    for name, key in ((_SPARSE, "compress_rate_csa"), (_HEAVY, "compress_rate_hca")):
        rates[name] = config.maybe_integer(key) or rates[name]
    ratios = config.integers("compress_ratios")
    types = config.strings("layer_types")
    if types is None and ratios is not None:
        unknown = sorted(set(ratios) - set(_TYPE_OF_RATIO))
        if unknown:
            raise config.error("compress_ratios", unknown, "0, 4 or 128 for each layer")
        types = [_TYPE_OF_RATIO[ratio] for ratio in ratios]
    if types is None:
        types = [_HEAVY] * min(count, 2) + [_SPARSE if i % 2 else _HEAVY for i in range(max(count - 2, 0))]
    # The list also describes the multi-token-prediction layers that follow the stack.
    if len(types) < count or set(types) - {_SPARSE, _HEAVY, _SLIDING}:
        raise config.error("layer_types", types, f"{_SPARSE}, {_HEAVY} or {_SLIDING} for each of {count} layers")
    return Reading(layers=tuple(compressed_layer(config, name, rates.get(name)) for name in types[:count]), config=config)
