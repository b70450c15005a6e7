"""DeepSeek-V4: every layer has a window, and most also a compressed memory of every 4 or every 128 tokens.

Every layer has experts, and learned weights mix several residual streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.formulas import CompressedAttention, Layer
from hwcalc.formulas.weights import WeightRole, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder, Experts, moe_weights
from hwcalc.parsers.hyper import hyper_connections, hyper_head
from hwcalc.parsers.reading import Reading, kind_in

_SPARSE: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_SLIDING: Final = "sliding_attention"
_RATES: Final = {_SPARSE: 4, _HEAVY: 128}
_TYPE_OF_RATIO: Final = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}


def _layer(config: Config, name: str, ratio: int | None) -> Layer:
    """One layer by its type. The groups of sparse layers overlap, and an indexer chooses among them."""
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


def _read(config: Config) -> Reading:
    """By ``layer_types`` or ``compress_ratios``. Without both, two heavy layers come first, then sparse and heavy in turn."""
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
    # The list also describes the layers for multi-token prediction that follow the stack.
    if len(types) < count or set(types) - {_SPARSE, _HEAVY, _SLIDING}:
        raise config.error("layer_types", types, f"{_SPARSE}, {_HEAVY} or {_SLIDING} for each of {count} layers")
    return Reading(layers=tuple(_layer(config, name, rates.get(name)) for name in types[:count]), config=config)


def _projections(config: Config, kind: CompressedAttention) -> Weighed:
    """All queries share one key/value head, and the output passes through groups of low rank."""
    hidden, rank = config.integer("hidden_size"), config.integer("q_lora_rank")
    heads, head_dim = kind.num_attention_heads, kind.head_dim
    groups, group_rank = config.integer("o_groups"), config.integer("o_lora_rank")
    return (
        *linear("self_attn.q_a_proj", hidden, rank),
        *rms_norm("self_attn.q_a_norm", rank),
        *linear("self_attn.q_b_proj", rank, heads * head_dim),
        *linear("self_attn.kv_proj", hidden, head_dim),
        *rms_norm("self_attn.kv_norm", head_dim),
        *linear("self_attn.o_a_proj", heads * head_dim // groups, groups * group_rank),
        *linear("self_attn.o_b_proj", groups * group_rank, hidden),
        *parameter("self_attn.sinks", heads),
    )


def _compressor(config: Config, kind: CompressedAttention) -> Weighed:
    """Pools a group of tokens into one entry. Overlapping groups are pooled twice, also for the indexer."""
    if kind.compress_ratio is None:
        return ()
    hidden, rank, ratio = config.integer("hidden_size"), config.integer("q_lora_rank"), kind.compress_ratio
    times_wide = 2 if kind.overlap else 1

    def pool(path: str, width: int) -> Weighed:
        return (
            *parameter(f"{path}.position_bias", ratio, times_wide * width),
            # They count as other than linear because the released quantisation leaves them alone without naming them.
            *linear(f"{path}.kv_proj", hidden, times_wide * width, role=WeightRole.OTHER),
            *linear(f"{path}.gate_proj", hidden, times_wide * width, role=WeightRole.OTHER),
            *rms_norm(f"{path}.kv_norm", width),
        )

    path = "self_attn.compressor"
    weights = pool(path, kind.head_dim)
    if kind.index_n_heads and kind.index_head_dim:
        weights += pool(f"{path}.indexer", kind.index_head_dim)
        weights += linear(f"{path}.indexer.q_b_proj", rank, kind.index_n_heads * kind.index_head_dim)
        weights += linear(f"{path}.indexer.scorer.weights_proj", hidden, kind.index_n_heads, role=WeightRole.OTHER)
    return weights


def _attention(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    kind = kind_in(config, layer, CompressedAttention)
    return _projections(config, kind) + _compressor(config, kind)


def _mtp(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """A layer without compressor, between two projections and a head of its own that mixes the streams."""
    hidden = config.integer("hidden_size")
    return (
        *linear("e_proj", hidden, hidden),
        *linear("h_proj", hidden, hidden),
        *rms_norms(hidden, "enorm", "hnorm", "norm", "input_layernorm", "post_attention_layernorm"),
        *_projections(config, kind_in(config, layer, CompressedAttention)),
        *hyper_connections(config, 3),
        *moe_weights(config, _EXPERTS),
        *hyper_head(config),
    )


_EXPERTS: Final = Experts(
    count="n_routed_experts", shared=lambda config: config.integer("moe_intermediate_size"), shared_bias="mlp_bias"
)
DEEPSEEK_V4: Final = Decoder(
    layers=_read,
    attention=_attention,
    experts=_EXPERTS,
    extra=lambda config, _layer: hyper_connections(config, 3),
    outer=hyper_head,
    mtp=_mtp,
)
