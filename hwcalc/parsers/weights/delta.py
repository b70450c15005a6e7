"""Gated delta nets with attention in between: Qwen3-Next, Qwen3.5, OLMo Hybrid, Qwen4.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. The query projection of the Qwen line is twice as wide as the
queries: the other half gates what attention puts out. Its multi-token-prediction step is one more attention layer, behind a
matrix that joins the embedding of a token with the hidden state before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import GatedDeltaNet, Layer, ShortConvolution, SparseIndexer
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, gated_mlp, linear, rms_norm
from hwcalc.formulas.weights_state import convolution, gated_delta_net
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import attention_dims
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]

_PROJECTIONS: Final = {"qwen3_next": "fused", "olmo_hybrid": "separate"}


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of one of the models above."""
    if config.model_type == "olmo_hybrid":
        return _olmo(config, top)
    if config.model_type == "qwen4_exp_text":
        return _qwen4(config, top)
    hidden = config.integer("hidden_size")
    norms = rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)
    sparse, dense = _feed_forward(config)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, routed = key
        yield _mixer(config, layer)
        yield sparse if routed else dense
        yield "norm", norms

    layers = list(zip(cached_layers(config), _routed(config), strict=True))
    out = ends(config, top) + repeated(layers, weigh)
    steps = _prediction_steps(config)
    if steps:
        join = linear("mtp.fc", 2 * hidden, hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            join += rms_norm(f"mtp.{name}", hidden)
        out.append(Block(kind="mtp", weights=join, part=Part.MTP))
        attending: Layer = (attention_dims(config).full(),)
        out += repeated([(attending, True)] * steps, weigh, Part.MTP)
    return tuple(out)


def _prediction_steps(config: Config) -> int:
    """Layers that predict further tokens: Qwen3-Next's files do not name the one that its checkpoints have."""
    if config.model_type == "qwen3_next":
        steps = config.maybe_integer("num_nextn_predict_layers", minimum=0, maximum=MAX_LAYERS)
        return 1 if steps is None else steps
    # No model is known that has embeddings of its own there.
    dedicated = config.flag("mtp_use_dedicated_embeddings")
    return 0 if dedicated else config.maybe_integer("mtp_num_hidden_layers", minimum=0, maximum=MAX_LAYERS) or 0


def _routed(config: Config) -> list[bool]:
    """Which layers have experts: Qwen3.5 all or none, Qwen3-Next by ``decoder_sparse_step`` and ``mlp_only_layers``."""
    count = config.number_of_layers()
    if config.model_type != "qwen3_next":
        return [config.model_type != "qwen3_5_text"] * count
    step, plain = config.integer("decoder_sparse_step"), set(config.integers("mlp_only_layers") or ())
    experts = config.maybe_integer("num_experts", minimum=0) or 0
    return [experts > 0 and (i + 1) % step == 0 and i not in plain for i in range(count)]


def _feed_forward(config: Config) -> tuple[Named, Named]:
    """The experts' block and the plain MLP's; a model that has only one of them gives it twice."""
    hidden = config.integer("hidden_size")
    width = config.maybe_integer("intermediate_size")
    dense: Named | None = None if width is None else ("mlp", gated_mlp(hidden, width))
    count = config.maybe_integer("num_experts", minimum=0) or 0
    if config.model_type == "qwen3_5_text" or not count:
        if dense is None:
            raise config.missing("intermediate_size")
        return dense, dense
    sparse: Named = ("moe", _experts(config, count))
    return sparse, sparse if dense is None else dense


def _experts(config: Config, count: int) -> tuple[Weight, ...]:
    """Routed experts, and a shared one behind a gate of one number."""
    hidden = config.integer("hidden_size")
    weights = gated_experts(hidden, config.integer("moe_intermediate_size"), count, config.integer("num_experts_per_tok"))
    weights += gated_mlp(hidden, config.integer("shared_expert_intermediate_size"), path="mlp.shared_expert")
    return weights + linear("mlp.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)


def _mixer(config: Config, layer: Layer) -> Named:
    hidden = config.integer("hidden_size")
    kind = layer[0]
    if isinstance(kind, GatedDeltaNet):
        projections = _PROJECTIONS.get(config.model_type or "", "split")
        return "delta", gated_delta_net(hidden, **vars(kind), projections=projections)
    assert isinstance(kind, AttentionKind)
    return "attention", _gated_attention(config, kind)


def _gated_attention(config: Config, kind: AttentionKind) -> tuple[Weight, ...]:
    """Attention with a norm per head and an output gate out of the query projection."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    rest = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)[2 if bias else 1 :]
    return linear("self_attn.q_proj", hidden, 2 * kind.num_attention_heads * kind.head_dim, bias=bias) + rest


def _olmo(config: Config, top: Config) -> tuple[Block, ...]:
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
            yield "norm", rms_norm("post_attention_layernorm", hidden) + rms_norm("post_feedforward_layernorm", hidden)
        else:
            yield _mixer(config, layer)
            yield "norm", rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)
        yield "mlp", mlp

    return (*ends(config, top), *repeated(cached_layers(config), weigh))


def _qwen4(config: Config, top: Config) -> tuple[Block, ...]:
    """Qwen4: streams joined by gated residuals instead of norms, an indexer, and per-layer embeddings of n-grams."""
    hidden = config.integer("hidden_size")
    moe: Named = ("moe", _experts(config, config.integer("num_experts")))

    def weigh(layer: Layer) -> Iterator[Named]:
        yield _mixer(config, layer)
        yield moe
        yield "hyper_connection", _hyper_connection(config, "attn_hyper_connection")
        yield "hyper_connection", _hyper_connection(config, "mlp_hyper_connection")
        for kind in layer:
            if isinstance(kind, SparseIndexer):
                width = (kind.index_n_heads + config.integer("indexer_kv_heads")) * kind.index_head_dim
                weights = linear("self_attn.indexer.index_qk_proj", hidden, width)
                for name in "qk":
                    weights += rms_norm(f"self_attn.indexer.{name}_layernorm", kind.index_head_dim)
                yield "indexer", weights
            if isinstance(kind, ShortConvolution):
                yield "ngram", _ngram_mixer(config, kind)

    layers = cached_layers(config)
    out = [block for block in ends(config, top) if block.kind != "norm"] + repeated(layers, weigh)
    out.append(Block(kind="hyper_connection", weights=_hyper_connection(config, "model.hyper_connection_mixer", combine=False)))
    tables = sum(isinstance(kind, ShortConvolution) for layer in layers for kind in layer)
    return (*out, *_ngram_tables(config, tables))


def _hyper_connection(config: Config, path: str, *, combine: bool = True) -> tuple[Weight, ...]:
    hidden, count, rank = config.integer("hidden_size"), config.integer("hc_count"), config.integer("hc_lowrank")
    wide = count * hidden
    weights = rms_norm(f"{path}.hc_norm", wide)
    weights += linear(f"{path}.input_mix_weight_down", wide, rank) + linear(f"{path}.input_mix_weight_up", rank, wide)
    return weights + linear(f"{path}.block_inject_weight", wide, count) if combine else weights


def _ngram_mixer(config: Config, kind: ShortConvolution) -> tuple[Weight, ...]:
    hidden, wide = config.integer("hidden_size"), kind.channels
    width = config.maybe_integer("ple_embed_dim") or hidden
    weights = linear("ple.key_proj", width, wide) + linear("ple.value_proj", width, hidden)
    for name in ("key", "query", "conv"):
        weights += rms_norm(f"ple.norm_{name}", wide)
    return weights + convolution("ple.conv1d", wide, config.integer("ple_conv_kernel_size"))


def _ngram_tables(config: Config, count: int) -> list[Block]:
    """One embedding table for each layer that has n-grams. Each head hashes into the next prime number of rows.

    Base 20, one layer, n-grams of up to 3 and one head each: two heads with 23 and 29 rows, padded together to a multiple.
    """
    if not count:
        return []
    orders = config.integer("ngram_size", minimum=2, maximum=64) - 1
    heads = orders * config.integer("heads_per_ngram", maximum=1024)
    padding = config.integer("make_ngram_vocab_size_divisible_by")
    width = (config.maybe_integer("ple_embed_dim") or config.integer("hidden_size")) // heads
    if not width:
        raise config.error("ple_embed_dim", config.get("ple_embed_dim"), f"at least the number of n-gram heads ({heads})")
    primes = _primes(config.integer("ngram_vocab_size_base", maximum=_LARGEST_TABLE))
    out = []
    for _ in range(count):
        rows = sum(next(primes) for _ in range(heads))
        table = embedding("ple.ple_embedding.ngram_embedding", -(-rows // padding) * padding, width)
        out.append(Block(kind="ngram", weights=table))
    return out


# Trial division takes the square root: larger tables than any model's would take long.
_LARGEST_TABLE: Final = 2**31


def _primes(start: int) -> Iterator[int]:
    """Prime numbers from ``start`` on: from 20 they are 23, 29, 31."""
    number = max(2, start)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1
