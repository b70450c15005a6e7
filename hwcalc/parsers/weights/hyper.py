"""DeepSeek-V4: compressed attention, experts on every layer, and several residual streams mixed by learned weights."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import CompressedAttention
from hwcalc.formulas.weights import Block, Part, Weight, linear, parameter, rms_norm
from hwcalc.parsers.compressed import read
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.decoder import Decoder, Experts, Layers, build, moe_weights

__all__ = ["blocks", "hyper_connection", "hyper_head"]


def hyper_connection(path: str, streams: int, hidden_size: int, outputs: int) -> tuple[Weight, ...]:
    """A layer's mixing of ``streams`` residual streams: what goes in, what comes out, and with three outputs also how the
    streams mix among themselves, which takes streams x streams weights.

    >>> sum(weight.elements for weight in hyper_connection("hc", 4, 2, 3))
    219

    (2 x 4 + 4 x 4) x (4 x 2) = 192 weights, 24 biases and 3 scales.
    """
    rows = 2 * streams + (streams * streams if outputs == 3 else 0)
    return (
        *parameter(f"{path}.fn", rows, streams * hidden_size),
        *parameter(f"{path}.base", rows),
        *parameter(f"{path}.scale", outputs),
    )


def hyper_head(config: Config) -> tuple[Weight, ...]:
    """The mixing of the streams before the last norm."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return (
        *parameter("hc_head.hc_fn", streams, streams * hidden),
        *parameter("hc_head.hc_base", streams),
        *parameter("hc_head.hc_scale", 1),
    )


def _compressor(config: Config, ratio: int, overlap: bool) -> tuple[Weight, ...]:
    """Pools ``ratio`` tokens into one entry; overlapping groups are pooled twice, and have an indexer that does the same."""
    hidden, rank = config.integer("hidden_size"), config.integer("q_lora_rank")
    times_wide = 2 if overlap else 1

    def pool(path: str, width: int) -> tuple[Weight, ...]:
        return (
            *parameter(f"{path}.position_bias", ratio, times_wide * width),
            *linear(f"{path}.kv_proj", hidden, times_wide * width),
            *linear(f"{path}.gate_proj", hidden, times_wide * width),
            *rms_norm(f"{path}.kv_norm", width),
        )

    path = "self_attn.compressor"
    weights = pool(path, config.integer("head_dim"))
    if overlap:
        heads, width = config.integer("index_n_heads"), config.integer("index_head_dim")
        weights += pool(f"{path}.indexer", width)
        weights += linear(f"{path}.indexer.q_b_proj", rank, heads * width)
        weights += linear(f"{path}.indexer.scorer.weights_proj", hidden, heads)
    return weights


def _attention(config: Config) -> tuple[Weight, ...]:
    """One key/value head for all queries; the output passes through groups of low rank."""
    hidden, rank = config.integer("hidden_size"), config.integer("q_lora_rank")
    heads, head_dim = config.integer("num_attention_heads"), config.integer("head_dim")
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


def _attentions(config: Config, spec: Decoder, count: int) -> Layers:
    del spec
    kinds: dict[tuple[int | None, bool], int] = {}
    for layer in read(config).layers[:count]:
        for kept in layer:
            if isinstance(kept, CompressedAttention):
                kind = (kept.compress_ratio, kept.overlap)
                kinds[kind] = kinds.get(kind, 0) + 1
    own = _attention(config)
    return [
        (own if ratio is None else own + _compressor(config, ratio, overlap), number)
        for (ratio, overlap), number in kinds.items()
    ]


def _connections(config: Config) -> tuple[Weight, ...]:
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return hyper_connection("attn_hc", streams, hidden, 3) + hyper_connection("ffn_hc", streams, hidden, 3)


_MTP_NORMS: Final = ("enorm", "hnorm", "norm", "input_layernorm", "post_attention_layernorm")
_EXPERTS: Final = Experts(
    count="n_routed_experts", shared=lambda config: config.integer("moe_intermediate_size"), shared_bias="mlp_bias"
)
_SPEC: Final = Decoder(
    experts=_EXPERTS,
    extra=_connections,
    outer=hyper_head,
    attentions=_attentions,
)
_TYPES: Final = frozenset({"deepseek_v4"})


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a DeepSeek-V4 model."""
    return build(config, top, _SPEC) + _mtp(config)


def _mtp(config: Config) -> tuple[Block, ...]:
    """Multi-token-prediction layers: a layer without compressor, fed by two projections, before a mixing head of its own."""
    count = config.maybe_integer("num_nextn_predict_layers", minimum=0) or 0
    hidden = config.integer("hidden_size")
    weights = (
        *linear("e_proj", hidden, hidden),
        *linear("h_proj", hidden, hidden),
        *(weight for name in _MTP_NORMS for weight in rms_norm(name, hidden)),
        *_attention(config),
        *_connections(config),
        *moe_weights(config, _EXPERTS),
        *hyper_head(config),
    )
    return (Block(kind="mtp", weights=weights, part=Part.MTP, count=count),) if count else ()
