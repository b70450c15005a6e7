"""Qwen4: delta nets, attention with an indexer, streams joined by gated residuals, and per-layer embeddings of n-grams.

Mirrors ``modeling_qwen4_exp.py`` of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, LayerKind, ShortConvolution, SparseIndexer
from hwcalc.formulas.weights import Block, Weight, embedding, linear, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import LayerReader, Readers, Reading, attention_dims, build_layers
from hwcalc.parsers.states import FULL, LINEAR, state_dtype
from hwcalc.parsers.states.delta import DELTA_KEYS, delta_layer, delta_types, shared_experts, weigh_mixer

__all__ = ["QWEN4"]

_LARGEST_TABLE: Final = 2**31
"""Trial division takes the square root: larger tables than any model's would take long."""


def _read(config: Config) -> Reading:
    count = config.number_of_layers()
    types = delta_types(config, count)
    config.ignore(*DELTA_KEYS)
    readers = dict.fromkeys((FULL, "indexed_attention", "qwen_sparse_attention"), _attention_layer)
    layers = build_layers(config, types, {**readers, LINEAR: _delta_reader(config, count)})
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config))


def _attention_layer(config: Config, index: int) -> Layer:
    """Plain keys and values, and an indexer whose raw keys are kept for every token."""
    kinds: list[LayerKind] = [attention_dims(config).full()]
    heads = config.maybe_integer("indexer_n_heads")
    if heads is not None:
        width, kept = config.integer("indexer_head_dim"), config.maybe_integer("indexer_budget")
        kinds.append(SparseIndexer(index_n_heads=heads, index_head_dim=width, index_topk=kept))
    return tuple(kinds)


def _delta_reader(config: Config, count: int) -> LayerReader:
    """Delta nets, some with a per-layer embedding of n-grams and its dilated convolution over all residual streams.

    ``ple_layer_ids`` counts from 1. Kernel 4 dilated by n-grams of 3 looks back (4 - 1) x 3 = 9 tokens.
    """
    ids = config.integers("ple_layer_ids", minimum=1) or []
    if any(number > count for number in ids):
        raise config.error("ple_layer_ids", ids, f"a list of layer numbers from 1 to {count}")
    embedded = {number - 1 for number in ids}
    streams = config.integer("hc_count") * config.integer("hidden_size")
    reach = (config.integer("ple_conv_kernel_size") - 1) * config.integer("ngram_size")

    def reader(layer: Config, index: int) -> Layer:
        kinds = delta_layer(layer, index)
        return (*kinds, ShortConvolution(channels=streams, d_conv=reach + 1)) if index in embedded else kinds

    return reader


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Gated residuals stand where other models have norms."""
    hidden = config.integer("hidden_size")
    moe: Named = ("moe", shared_experts(config, config.integer("num_experts")))

    def weigh(layer: Layer) -> Iterator[Named]:
        yield weigh_mixer(config, layer)
        yield moe
        yield "hyper_connection", _hyper_connection(config, "attn_hyper_connection")
        yield "hyper_connection", _hyper_connection(config, "mlp_hyper_connection")
        for kind in layer:
            if isinstance(kind, SparseIndexer):
                path, head = "self_attn.indexer", kind.index_head_dim
                width = (kind.index_n_heads + config.integer("indexer_kv_heads")) * head
                norms = rms_norms(head, f"{path}.q_layernorm", f"{path}.k_layernorm")
                yield "indexer", linear(f"{path}.index_qk_proj", hidden, width) + norms
            if isinstance(kind, ShortConvolution):
                yield "ngram", _ngram_mixer(config, kind)

    out = [block for block in ends(config, top) if block.kind != "norm"] + repeated(reading.layers, weigh)
    out.append(Block(kind="hyper_connection", weights=_hyper_connection(config, "model.hyper_connection_mixer", combine=False)))
    embedded = [i for i, layer in enumerate(reading.layers) for kind in layer if isinstance(kind, ShortConvolution)]
    return out + _ngram_tables(config, embedded)


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
    weights += rms_norms(wide, "ple.norm_key", "ple.norm_query", "ple.norm_conv")
    return weights + convolution("ple.conv1d", wide, config.integer("ple_conv_kernel_size"))


def _ngram_tables(config: Config, layers: list[int]) -> list[Block]:
    """One embedding table for each layer that has n-grams. Each head hashes into the next prime number of rows.

    Base 20, one layer, n-grams of up to 3 and one head each: two heads with 23 and 29 rows, padded together to a multiple.
    """
    if not layers:
        return []
    orders = config.integer("ngram_size", minimum=2, maximum=64) - 1
    heads = orders * config.integer("heads_per_ngram", maximum=1024)
    padding = config.integer("make_ngram_vocab_size_divisible_by")
    width = (config.maybe_integer("ple_embed_dim") or config.integer("hidden_size")) // heads
    if not width:
        raise config.error("ple_embed_dim", config.get("ple_embed_dim"), f"at least the number of n-gram heads ({heads})")
    primes = _primes(config.integer("ngram_vocab_size_base", maximum=_LARGEST_TABLE))
    out = []
    for layer in layers:
        rows = sum(next(primes) for _ in range(heads))
        table = embedding("ple.ple_embedding.ngram_embedding", -(-rows // padding) * padding, width)
        out.append(Block(kind="ngram", weights=table, layers=(layer,)))
    return out


def _primes(start: int) -> Iterator[int]:
    """Prime numbers from ``start`` on: from 20 they are 23, 29, 31."""
    number = max(2, start)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1


QWEN4: Final = Readers(layers=_read, weights=_weights)
