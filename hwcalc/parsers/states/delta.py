"""Gated delta nets with attention in between: Qwen3-Next, Qwen3.5 and OLMo Hybrid.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. The query projection of the Qwen line is twice as wide as the
queries: the other half gates what attention puts out. Its multi-token-prediction step is one more attention layer, behind a
matrix that joins the embedding of a token with the hidden state before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import GatedDeltaNet, Layer
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, gated_mlp, linear, rms_norm
from hwcalc.formulas.weights_state import gated_delta_net
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import Reading, every, full_layer
from hwcalc.parsers.states import FULL, LINEAR, Interleaved, spelled_layer_types

__all__ = ["DELTA_KEYS", "OLMO_HYBRID", "QWEN3_NEXT", "delta_layer", "delta_types", "shared_experts", "weigh_mixer"]

_INTERVAL: Final = 4
"""Every fourth layer attends where the file does not say (transformers 5.23, configuration_qwen3_next.py)."""
_PROJECTIONS: Final = {"qwen3_next": "fused", "olmo_hybrid": "separate"}

# Keys that never bear on the cache, and those of one type of layer, which a stack of the other leaves unread.
DELTA_KEYS: Final = (
    "attn_output_gate", "decoder_sparse_step", "full_attention_interval", "head_dim", "heads_per_ngram", "indexer_budget",
    "indexer_compress_ratio", "indexer_head_dim", "indexer_kv_heads", "indexer_n_heads", "linear_a_log_max", "linear_a_log_min",
    "linear_allow_neg_eigval", "linear_conv_kernel_dim", "linear_dt_max", "linear_dt_min", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "max_window_layers", "num_attention_heads",
    "num_key_value_heads", "number_of_conv_states", "sliding_window",
)  # fmt: skip


def delta_types(config: Config, count: int) -> list[str]:
    """Types by the file, else attention at the end of every interval, and in OLMo Hybrid on the last layer at least."""
    interval = config.maybe_integer("full_attention_interval") or _INTERVAL
    types = spelled_layer_types(config, count)
    if types is None:
        types = every(interval, count, FULL, LINEAR)
        if config.model_type == "olmo_hybrid" and FULL not in types:
            types[-1] = FULL
    return types


def delta_layer(config: Config, index: int) -> Layer:
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


def weigh_mixer(config: Config, layer: Layer) -> Named:
    """A delta net, or attention with a norm per head and an output gate out of the query projection."""
    hidden = config.integer("hidden_size")
    kind = layer[0]
    if isinstance(kind, GatedDeltaNet):
        projections = _PROJECTIONS.get(config.model_type or "", "split")
        return "delta", gated_delta_net(hidden, **vars(kind), projections=projections)
    assert isinstance(kind, AttentionKind)
    bias = config.flag("attention_bias")
    rest = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)[2 if bias else 1 :]
    queries = linear("self_attn.q_proj", hidden, 2 * kind.num_attention_heads * kind.head_dim, bias=bias)
    return "attention", queries + rest


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden = config.integer("hidden_size")
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
    sparse, dense = _feed_forward(config)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, routed = key
        yield weigh_mixer(config, layer)
        yield sparse if routed else dense
        yield "norm", norms

    count = len(reading.layers)
    layers = list(zip(reading.layers, _routed(config, count), strict=True))
    out = ends(config, top) + repeated(layers, weigh)
    steps = _prediction_steps(config)
    if steps:
        join = linear("mtp.fc", 2 * hidden, hidden)
        join += rms_norms(hidden, "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        out.append(Block(kind="mtp", weights=join, part=Part.MTP))
        out += repeated([(full_layer(config, count), True)] * steps, weigh, Part.MTP)
    return out


def _prediction_steps(config: Config) -> int:
    """Layers that predict further tokens: Qwen3-Next's files do not name the one that its checkpoints have."""
    if config.model_type == "qwen3_next":
        steps = config.maybe_integer("num_nextn_predict_layers", minimum=0, maximum=MAX_LAYERS)
        return 1 if steps is None else steps
    # No model is known that has embeddings of its own there.
    dedicated = config.flag("mtp_use_dedicated_embeddings")
    return 0 if dedicated else config.maybe_integer("mtp_num_hidden_layers", minimum=0, maximum=MAX_LAYERS) or 0


def _routed(config: Config, count: int) -> list[bool]:
    """Which layers have experts: Qwen3.5 all or none, Qwen3-Next by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    if config.model_type != "qwen3_next":
        return [config.model_type != "qwen3_5_text"] * count
    step, plain = config.integer("decoder_sparse_step"), set(config.integers("mlp_only_layers") or ())
    experts = config.maybe_integer("num_experts", minimum=0) or 0
    return [experts > 0 and (i + 1) % step == 0 and i not in plain for i in range(count)]


def _feed_forward(config: Config) -> tuple[Named, Named]:
    """The experts' block and the plain MLP's; a model that has only one of them gives it twice."""
    width = config.maybe_integer("intermediate_size")
    dense: Named | None = None if width is None else ("mlp", gated_mlp(config.integer("hidden_size"), width))
    count = config.maybe_integer("num_experts", minimum=0) or 0
    if config.model_type == "qwen3_5_text" or not count:
        if dense is None:
            raise config.missing("intermediate_size")
        return dense, dense
    sparse: Named = ("moe", shared_experts(config, count))
    return sparse, sparse if dense is None else dense


def shared_experts(config: Config, count: int) -> tuple[Weight, ...]:
    """Routed experts, and a shared one behind a gate of one number."""
    hidden = config.integer("hidden_size")
    weights = gated_experts(hidden, config.integer("moe_intermediate_size"), count, config.integer("num_experts_per_tok"))
    weights += gated_mlp(hidden, config.integer("shared_expert_intermediate_size"), path="mlp.shared_expert")
    return weights + linear("mlp.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)


def _olmo(config: Config, top: Config, reading: Reading) -> list[Block]:
    """OLMo Hybrid: two norms a layer; those of queries and keys span all heads."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"))

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, AttentionKind):
            weights = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)
            weights += rms_norm("self_attn.q_norm", kind.num_attention_heads * kind.head_dim)
            weights += rms_norm("self_attn.k_norm", kind.num_key_value_heads * kind.head_dim)
            yield "attention", weights
            yield "norm", rms_norms(hidden, "post_attention_layernorm", "post_feedforward_layernorm")
        else:
            yield weigh_mixer(config, layer)
            yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
        yield "mlp", mlp

    return ends(config, top) + repeated(reading.layers, weigh)


_READERS: Final = {LINEAR: delta_layer, FULL: full_layer}
OLMO_HYBRID: Final = Interleaved(types=delta_types, readers=_READERS, weights=_olmo, ignored=DELTA_KEYS)
QWEN3_NEXT: Final = Interleaved(types=delta_types, readers=_READERS, weights=_weights, ignored=DELTA_KEYS)
