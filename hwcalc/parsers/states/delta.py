"""Gated delta nets and Kimi delta attention, with other attention in between. Mirrors ``modeling_*.py`` in transformers 5.23.

Qwen3-Next, Qwen3.5, Qwen4 and OLMo Hybrid: in the Qwen line the query projection is twice as wide as the queries: its other half
gates the output of attention. The multi-token-prediction step is one more attention layer. Before it, a matrix joins the
embedding of a token with the hidden state of the token before. Qwen4 adds an indexer to attention, residual streams that are
joined by gates, and embeddings of n-grams on some layers.

Lara Mini has windows between its delta nets as well, and queries without a gate.

Kimi Linear, Bailing hybrids and GLM-5 Next have latent attention in between. Bailing's gates are full matrices, and its latent
attention has an output gate of one number a head. GLM-5 Next joins residual streams around every block.

Kimi K3, by the checkpoint and SGLang's ``kimi_k3.py``, is Kimi Linear with full matrices as gates, experts that work at half the
width between two projections, and attention residuals: before each block a norm and a learned query mix the sums of earlier
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from hwcalc import formulas
from hwcalc.formulas import AttentionKind, LatentAttention, Layer, LayerKind, SparseIndexer
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, gated_experts, hyper_connection, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Experts, moe_weights, sparse_layers, times
from hwcalc.parsers.decoder.unlike import read_nested
from hwcalc.parsers.latent import indexer_modes, kind_weights, latent_attention, sparse_indexer
from hwcalc.parsers.reading import (
    LayerReader,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    every,
    full_layer,
    kind_in,
    windowed_layer,
)
from hwcalc.parsers.states import FULL, LINEAR, SLIDING, Interleaved, spelled_layer_types, state_dtype

_INTERVAL: Final = 4
"""Every fourth layer has attention unless the file says otherwise (transformers 5.23, configuration_qwen3_next.py)."""
_PROJECTIONS: Final = {"qwen3_next": "fused", "olmo_hybrid": "separate"}
_LARGEST_TABLE: Final = 2**31
"""Larger than the table of any model. To test larger numbers for primality by trial division would take long."""

# Keys that never bear on the cache, and keys of one type of layer, which nobody reads in a stack without that type.
_IGNORED: Final = (
    "attn_output_gate", "decoder_sparse_step", "full_attention_interval", "head_dim", "heads_per_ngram", "indexer_budget",
    "indexer_compress_ratio", "indexer_head_dim", "indexer_kv_heads", "indexer_n_heads", "linear_a_log_max", "linear_a_log_min",
    "linear_allow_neg_eigval", "linear_conv_kernel_dim", "linear_dt_max", "linear_dt_min", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "max_window_layers", "num_attention_heads",
    "num_key_value_heads", "number_of_conv_states", "sliding_window",
)  # fmt: skip


def _types(config: Config, count: int) -> list[str]:
    """The types that the file lists. Without a list, the last layer of every interval has attention.

    An OLMo Hybrid that is shorter than an interval has attention on its last layer.
    """
    interval = config.maybe_integer("full_attention_interval") or _INTERVAL
    types = spelled_layer_types(config, count)
    if types is None:
        types = every(interval, count, FULL, LINEAR)
        if config.model_type == "olmo_hybrid" and FULL not in types:
            types[-1] = FULL
    return types


def _delta_layer(config: Config, index: int) -> Layer:
    """A delta net. OLMo Hybrid may leave out its dims: as many heads as attention, keys 3/4 of a head's share, values twice that."""
    key_heads = config.maybe_integer("linear_num_key_heads") or config.integer("num_attention_heads")
    value_heads = config.maybe_integer("linear_num_value_heads") or config.integer("num_attention_heads")
    key_dim = config.maybe_integer("linear_key_head_dim") or 3 * config.integer("hidden_size") // (4 * key_heads)
    return (
        formulas.GatedDeltaNet(
            num_key_heads=key_heads,
            num_value_heads=value_heads,
            key_head_dim=key_dim,
            value_head_dim=config.maybe_integer("linear_value_head_dim") or 2 * key_dim,
            d_conv=config.integer("linear_conv_kernel_dim"),
        ),
    )


def _mixer(config: Config, layer: Layer) -> Named:
    """A delta net, or attention with a norm per head whose query projection also gives the output gate."""
    hidden = config.integer("hidden_size")
    kind = layer[0]
    if isinstance(kind, formulas.GatedDeltaNet):
        projections = _PROJECTIONS.get(config.model_type or "", "split")
        return "delta", w.gated_delta_net(hidden, **kind.numbers(), projections=projections)
    attending = kind_in(config, layer, AttentionKind)
    bias = config.flag("attention_bias")
    rest = attention_of(attending, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)[2 if bias else 1 :]
    queries = w.linear("self_attn.q_proj", hidden, 2 * attending.num_attention_heads * attending.head_dim, bias=bias)
    return "attention", queries + rest


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    hidden, count = config.integer("hidden_size"), len(reading.layers)
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
    sparse, dense = _feed_forward(config)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, routed = key
        yield _mixer(config, layer)
        yield sparse if routed else dense
        yield "norm", norms

    # All layers of Qwen3.5 have experts, or none.
    routed = [config.model_type != "qwen3_5_text"] * count
    if config.model_type == "qwen3_next":
        step, plain = config.integer("decoder_sparse_step"), set(config.integers("mlp_only_layers") or ())
        experts = config.maybe_integer("num_experts", minimum=0) or 0
        routed = [experts > 0 and (i + 1) % step == 0 and i not in plain for i in range(count)]
    out = ends(config, top) + repeated(zip(reading.layers, routed, strict=True), weigh)
    if config.model_type == "qwen3_next":
        # Checkpoints have one layer that predicts further tokens, which their files do not mention.
        given = config.maybe_integer("num_nextn_predict_layers", minimum=0)
        steps = 1 if given is None else given
    else:
        # No known model has dedicated embeddings, so they are not counted.
        dedicated = config.flag("mtp_use_dedicated_embeddings")
        steps = 0 if dedicated else config.maybe_integer("mtp_num_hidden_layers", minimum=0) or 0
    if steps:
        join = w.linear("mtp.fc", 2 * hidden, hidden)
        join += rms_norms(hidden, "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        out.append(Block(kind="mtp", weights=join, part=Part.MTP))
        out += repeated([(full_layer(config, count), True)] * steps, weigh, Part.MTP)
    return out


def _feed_forward(config: Config) -> tuple[Named, Named]:
    """The block of experts and the block of the plain MLP. A model that has only one of them gives it twice."""
    width = config.maybe_integer("intermediate_size")
    dense: Named | None = None if width is None else ("mlp", w.gated_mlp(config.integer("hidden_size"), width))
    count = config.maybe_integer("num_experts", minimum=0) or 0
    if config.model_type == "qwen3_5_text" or not count:
        if dense is None:
            raise config.missing("intermediate_size")
        return dense, dense
    sparse: Named = ("moe", _shared_experts(config, count))
    return sparse, sparse if dense is None else dense


def _shared_experts(config: Config, count: int, *, gated: bool = True) -> Weighed:
    """Routed experts, and a shared one whose output may be gated by one number."""
    hidden = config.integer("hidden_size")
    weights = gated_experts(hidden, config.integer("moe_intermediate_size"), count, config.integer("num_experts_per_tok"))
    weights += w.gated_mlp(hidden, config.integer("shared_expert_intermediate_size"), path="mlp.shared_expert")
    return (*weights, *w.linear("mlp.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)) if gated else weights


_LARA: Final = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
"""The types of Lara Mini's layers, which repeat, where the file does not list them (configuration_lara_mini.py)."""


def _lara(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Lara Mini: every layer has experts, and a shared one without a gate."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    moe = _shared_experts(config, config.integer("num_experts"), gated=False)
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, AttentionKind):
            yield "attention", attention_of(kind, hidden, qkv_bias=bias, o_bias=bias, qk_norm=True)
        else:
            yield _mixer(config, layer)
        yield "moe", moe
        yield "norm", norms

    return ends(config, top) + repeated(reading.layers, weigh)


def _olmo(config: Config, top: Config, reading: Reading) -> list[Block]:
    """OLMo Hybrid: each layer has two norms. The norms of queries and keys span all heads."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    mlp = w.gated_mlp(hidden, config.integer("intermediate_size"))

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, AttentionKind):
            weights = attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)
            weights += w.rms_norm("self_attn.q_norm", kind.num_attention_heads * kind.head_dim)
            weights += w.rms_norm("self_attn.k_norm", kind.num_key_value_heads * kind.head_dim)
            yield "attention", weights
            yield "norm", rms_norms(hidden, "post_attention_layernorm", "post_feedforward_layernorm")
        else:
            yield _mixer(config, layer)
            yield "norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
        yield "mlp", mlp

    return ends(config, top) + repeated(reading.layers, weigh)


def _qwen4(config: Config) -> Reading:
    count = config.number_of_layers()
    types = _types(config, count)
    config.ignore(*_IGNORED)
    readers = dict.fromkeys((FULL, "indexed_attention", "qwen_sparse_attention"), _indexed_layer)
    layers = build_layers(config, types, {**readers, LINEAR: _delta_reader(config, count)})
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config))


def _indexed_layer(config: Config, index: int) -> Layer:
    """Keys and values as usual, and an indexer that keeps its raw keys for every token."""
    kinds: list[LayerKind] = [attention_dims(config).full()]
    heads = config.maybe_integer("indexer_n_heads")
    if heads is not None:
        width, kept = config.integer("indexer_head_dim"), config.maybe_integer("indexer_budget")
        kinds.append(SparseIndexer(index_n_heads=heads, index_head_dim=width, index_topk=kept))
    return tuple(kinds)


def _delta_reader(config: Config, count: int) -> LayerReader:
    """Delta nets. Some have an embedding of n-grams as well, with a dilated convolution over all residual streams.

    ``ple_layer_ids`` counts from 1. A kernel of 4, dilated by n-grams of 3, looks back (4 - 1) x 3 = 9 tokens.
    """
    ids = config.integers("ple_layer_ids", minimum=1) or []
    if any(number > count for number in ids):
        raise config.error("ple_layer_ids", ids, f"a list of layer numbers from 1 to {count}")
    embedded = {number - 1 for number in ids}
    streams = config.integer("hc_count") * config.integer("hidden_size")
    reach = (config.integer("ple_conv_kernel_size") - 1) * config.integer("ngram_size")

    def reader(layer: Config, index: int) -> Layer:
        kinds = _delta_layer(layer, index)
        return (*kinds, formulas.ShortConvolution(channels=streams, d_conv=reach + 1)) if index in embedded else kinds

    return reader


def _qwen4_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Qwen4 has gated residuals where other models have norms."""
    hidden = config.integer("hidden_size")
    moe = _shared_experts(config, config.integer("num_experts"))

    def weigh(layer: Layer) -> Iterator[Named]:
        yield _mixer(config, layer)
        yield "moe", moe
        yield "hyper_connection", _hyper_connection(config, "attn_hyper_connection")
        yield "hyper_connection", _hyper_connection(config, "mlp_hyper_connection")
        for kind in layer:
            if isinstance(kind, SparseIndexer):
                path, head = "self_attn.indexer", kind.index_head_dim
                width = (kind.index_n_heads + config.integer("indexer_kv_heads")) * head
                norms = rms_norms(head, f"{path}.q_layernorm", f"{path}.k_layernorm")
                yield "indexer", w.linear(f"{path}.index_qk_proj", hidden, width) + norms
            if isinstance(kind, formulas.ShortConvolution):
                wide, width = kind.channels, config.maybe_integer("ple_embed_dim") or hidden
                weights = w.linear("ple.key_proj", width, wide) + w.linear("ple.value_proj", width, hidden)
                weights += rms_norms(wide, "ple.norm_key", "ple.norm_query", "ple.norm_conv")
                yield "ngram", weights + w.convolution("ple.conv1d", wide, config.integer("ple_conv_kernel_size"))

    out = [block for block in ends(config, top) if block.kind != "norm"] + repeated(reading.layers, weigh)
    out.append(Block(kind="hyper_connection", weights=_hyper_connection(config, "model.hyper_connection_mixer", combine=False)))
    embedded = [i for i, layer in enumerate(reading.layers) for kind in layer if isinstance(kind, formulas.ShortConvolution)]
    return out + _ngram_tables(config, embedded)


def _hyper_connection(config: Config, path: str, *, combine: bool = True) -> Weighed:
    hidden, count, rank = config.integer("hidden_size"), config.integer("hc_count"), config.integer("hc_lowrank")
    wide = count * hidden
    weights = w.rms_norm(f"{path}.hc_norm", wide)
    weights += w.linear(f"{path}.input_mix_weight_down", wide, rank) + w.linear(f"{path}.input_mix_weight_up", rank, wide)
    return weights + w.linear(f"{path}.block_inject_weight", wide, count) if combine else weights


def _ngram_tables(config: Config, layers: list[int]) -> list[Block]:
    """One embedding table for each layer that has n-grams. Each head has the next prime number of rows.

    Base 20, one layer, n-grams of up to 3 and one head each: two heads with 23 and 29 rows. Their sum is padded to a multiple.
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
        table = w.embedding("ple.ple_embedding.ngram_embedding", -(-rows // padding) * padding, width)
        out.append(Block(kind="ngram", weights=table, layers=(layer,)))
    return out


def _primes(start: int) -> Iterator[int]:
    """Prime numbers from ``start`` on: from 20 they are 23, 29, 31."""
    number = max(2, start)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1


_READERS: Final = {LINEAR: _delta_layer, FULL: full_layer}
_WITH_WINDOWS: Final = {**_READERS, SLIDING: windowed_layer}


_INDEXED: Final = "indexed_attention"
# Keys that never bear on the cache, and keys of latent attention, which are left unread where no layer has it.
_WITHOUT_EFFECT: Final = (
    "attn_res_block_size", "head_dim", "index_kpool", "index_kpool_always_select_tail", "kda_lower_bound", "kda_safe_gate",
    "kv_lora_rank", "latent_moe_use_norm", "linear_lower_bound", "mla_use_nope", "mla_use_output_gate", "num_attention_heads",
    "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip

Types = Callable[[Config, Config | None, int], list[str]]
"""Gives the type of each layer, by the config, its ``linear_attn_config`` and the number of layers."""


class DeltaFamily(Record):
    """One of the models above: what it has where the file does not say, and how it differs."""

    types: Types
    dense: int
    """How many of the first layers have no experts."""
    bailing: bool = False
    """True if gates are full matrices, and linear heads as many as query heads."""
    indexed: bool = False
    """True if there are indexers, which pool tokens, and several residual streams."""

    def read(self, config: Config) -> Reading:
        """Layers of Kimi delta attention and of latent attention."""
        count = config.number_of_layers()
        nested = config.sub("linear_attn_config")
        types = spelled_layer_types(config, count) or self.types(config, nested, count)
        if nested is not None:
            # A file with layer_types may still have the lists that they were made from.
            nested.ignore("full_attn_layers", "kda_layers")
        delta = (_delta(config, nested, bailing=self.bailing),)
        config.ignore(*_WITHOUT_EFFECT)
        modes = indexer_modes(config, count) if self.indexed else []

        def full_layer(layer: Config, index: int) -> Layer:
            latent = (latent_attention(layer),)
            if not self.indexed or modes[index] != "full":
                return latent
            # GLM-5 Next scores pools of tokens: it keeps a gate beside each token's key, as wide as the key.
            indexer = sparse_indexer(layer)
            return (*latent, replace(indexer, index_extra_elements=indexer.index_head_dim))

        readers = {LINEAR: lambda _layer, _index: delta, FULL: full_layer} | ({_INDEXED: full_layer} if self.indexed else {})
        layers = build_layers(config, types, readers)
        # transformers packs one more element into every entry: whether the token is padding.
        readings = {"transformers": tuple(map(_padded, layers))} if self.indexed else {}
        return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings=readings)

    def weigh(self, config: Config, top: Config, reading: Reading) -> tuple[Block, ...]:
        """The blocks of weights of these layers, and those around them."""
        hidden, low_rank = config.integer("hidden_size"), not self.bailing
        rank = config.maybe_integer("q_lora_rank")
        norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

        def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
            layer, sparse = key
            for kind in layer:
                if isinstance(kind, formulas.KimiDeltaAttention):
                    delta = partial(w.kimi_delta_attention, low_rank_decay=low_rank, low_rank_gate=low_rank)
                    yield "delta", delta(hidden, **kind.numbers())
                elif isinstance(kind, LatentAttention):
                    gate = w.linear("self_attn.g_proj", hidden, kind.num_attention_heads) if self.bailing else ()
                    yield "attention", kind_weights(config, kind, rank) + gate
                elif isinstance(kind, SparseIndexer):
                    # GLM-5 Next pools tokens, by a gate as wide as the key and a learned position within the pool.
                    path, width = "self_attn.indexer.index_kpool_compress", kind.index_head_dim
                    pool = w.parameter(f"{path}_ape", config.integer("index_kpool"), width)
                    yield "indexer", kind_weights(config, kind, rank) + pool + w.parameter(f"{path}_gate", width, hidden)
            if sparse:
                yield "moe", moe_weights(config, _EXPERTS)
            else:
                yield "mlp", w.gated_mlp(hidden, config.integer("intermediate_size"))
            yield "norm", norms
            for path in ("attn_hc", "ffn_hc") if self.indexed else ():
                yield "hyper_connection", hyper_connection(path, config.integer("hc_mult"), hidden, 3)

        sparse = sparse_layers(config, len(reading.layers), self.dense)
        return (*ends(config, top), *repeated(zip(reading.layers, sparse, strict=True), weigh))


def _kimi(_config: Config, nested: Config | None, count: int) -> list[str]:
    """Kimi's lists count layers from 1: [4, 8] are the fourth and the eighth."""
    full = nested.integers("full_attn_layers") if nested is not None else None
    linear = nested.integers("kda_layers") if nested is not None else None
    if nested is None or full is None or linear is None:
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    if sorted((*full, *linear)) != list(range(1, count + 1)):
        allowed = f"numbers from 1 to {count} that together with kda_layers name each layer once"
        raise nested.error("full_attn_layers", full, allowed)
    return [FULL if number in full else LINEAR for number in range(1, count + 1)]


def _delta(config: Config, nested: Config | None, *, bailing: bool) -> formulas.KimiDeltaAttention:
    """The nested ``linear_attn_config`` wins over linear_* keys; Bailing has as many linear heads as query heads."""

    def width(nested_key: str, key: str, otherwise: str) -> int:
        given = [nested.maybe_integer(nested_key) if nested is not None else None, config.maybe_integer(key)]
        given += [config.maybe_integer(otherwise)] if bailing else []
        found = next((value for value in given if value is not None), None)
        if found is None:
            raise config.missing(otherwise if bailing else key)
        return found

    return formulas.KimiDeltaAttention(
        num_heads=width("num_heads", "linear_num_heads", "num_attention_heads"),
        # Where transformers has saved a Bailing config, head_dim is the rotary width: the other keys go first.
        head_dim=width("head_dim", "linear_head_dim", "head_dim"),
        d_conv=width("short_conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size"),
    )


def _padded(layer: Layer) -> Layer:
    return tuple(
        replace(kind, index_extra_elements=kind.index_extra_elements + 1) if isinstance(kind, SparseIndexer) else kind
        for kind in layer
    )


def _k3_weights(config: Config, top: Config, reading: Reading) -> tuple[Block, ...]:
    text, hidden = reading.config, reading.config.integer("hidden_size")
    nested = text.sub("linear_attn_config")
    full_gate = nested is not None and nested.flag("use_full_rank_gate")
    residuals = text.maybe_integer("attn_res_block_size", minimum=0)
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        for kind in layer:
            if isinstance(kind, formulas.KimiDeltaAttention):
                weights = w.kimi_delta_attention(hidden, **kind.numbers(), low_rank_gate=not full_gate)
                # The decay is one number a head, which the checkpoint pads to head_dim: 128 numbers for 96 heads.
                padded = w.parameter("self_attn.A_log", max(kind.num_heads, kind.head_dim))[0]
                yield "delta", tuple(padded if weight.path == "self_attn.A_log" else weight for weight in weights)
            else:
                latent = kind_in(config, (kind,), LatentAttention)
                weights = kind_weights(text, latent, text.maybe_integer("q_lora_rank"))
                if text.flag("mla_use_output_gate"):
                    weights += w.linear("self_attn.g_proj", hidden, latent.num_attention_heads * latent.v_head_dim)
                yield "attention", weights
        yield ("moe", _k3_experts(text)) if sparse else ("mlp", w.gated_mlp(hidden, text.integer("intermediate_size")))
        yield "norm", norms
        if residuals:
            yield "residual", _residual("self_attention_res", hidden) + _residual("mlp_res", hidden)

    sparse = sparse_layers(text, len(reading.layers), 1)
    out = ends(text, top, embed="language_model.model.embed_tokens", norm="language_model.model.norm")
    out += repeated(zip(reading.layers, sparse, strict=True), weigh)
    if residuals:
        out.append(Block(kind="residual", weights=_residual("language_model.model.output_attn_res", hidden)))
    vision = config.sub("vision_config", "kimi_k3_vision")
    return (*out, *(_k3_vision(vision) if vision is not None else ()))


def _residual(path: str, hidden: int) -> Weighed:
    return w.rms_norm(f"{path}_norm", hidden) + w.parameter(f"{path}_proj.weight", 1, hidden)


def _k3_experts(text: Config) -> Weighed:
    hidden, width = text.integer("hidden_size"), text.integer("moe_intermediate_size")
    latent = text.maybe_integer("routed_expert_hidden_size")
    count, path = text.integer("num_experts"), "block_sparse_moe"
    expert = w.gated_mlp(latent or hidden, width, path=f"{path}.experts")
    weights = w.experts(expert, count, text.integer("num_experts_per_token"))
    weights += w.linear(f"{path}.gate", hidden, count, role=WeightRole.ROUTER)
    shared = (text.maybe_integer("num_shared_experts", minimum=0) or 0) * width
    if shared:
        weights += w.gated_mlp(hidden, shared, path=f"{path}.shared_experts")
    if latent is not None:
        # They count as other than linear because the released quantisation leaves them alone without naming them.
        weights += w.linear(f"{path}.routed_expert_down_proj", hidden, latent, role=WeightRole.OTHER)
        weights += w.linear(f"{path}.routed_expert_up_proj", latent, hidden, role=WeightRole.OTHER)
        if text.flag("latent_moe_use_norm"):
            weights += w.rms_norm(f"{path}.routed_expert_norm", latent)
    return weights


def _k3_vision(vision: Config) -> Iterator[Block]:
    """MoonViT without biases, learned positions, and a projector of two matrices over 2 x 2 merged patches."""
    width, inner = vision.integer("vt_hidden_size"), vision.integer("qkv_hidden_size")
    patch, path = vision.integer("patch_size"), "vision_tower.encoder.blocks"
    layer = w.rms_norm(f"{path}.norm0", width) + w.rms_norm(f"{path}.norm1", width)
    layer += w.linear(f"{path}.wqkv", width, 3 * inner) + w.linear(f"{path}.wo", inner, width)
    mlp = vision.integer("vt_intermediate_size")
    layer += w.plain_mlp(width, mlp, bias=False, path=f"{path}.mlp", names=("fc0", "fc1"))
    rows, columns = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    outside = w.parameter("vision_tower.patch_embed.proj.weight", width, 3, patch, patch, role=WeightRole.CONV)
    outside += w.parameter("vision_tower.patch_embed.pos_emb.weight", rows, columns, width, role=WeightRole.EMBEDDING)
    outside += w.rms_norm("vision_tower.encoder.final_layernorm", width)
    yield Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers("vt_num_hidden_layers"))
    yield Block(kind="vision", weights=outside, part=Part.VISION)
    merge = vision.integers("merge_kernel_size", length=2, minimum=1) or [1, 1]
    merged, hidden = merge[0] * merge[1] * width, vision.integer("text_hidden_size")
    projector = w.linear("mm_projector.proj.0", merged, merged) + w.linear("mm_projector.proj.2", merged, hidden)
    yield Block(kind="projector", weights=projector + w.rms_norm("mm_projector.post_norm", hidden), part=Part.PROJECTOR)


OLMO_HYBRID: Final = Interleaved(types=_types, readers=_READERS, weights=_olmo, ignored=_IGNORED, spelled=False)
QWEN3_NEXT: Final = Interleaved(types=_types, readers=_READERS, weights=_weights, ignored=_IGNORED, spelled=False)
LARA_MINI: Final = Interleaved(
    types=lambda _config, count: [_LARA[index % len(_LARA)] for index in range(count)],
    readers=_WITH_WINDOWS, weights=_lara, ignored=_IGNORED,
)  # fmt: skip
QWEN4: Final = Readers(layers=_qwen4, weights=_qwen4_weights)
_EXPERTS: Final = Experts(count="num_local_experts", shared=times("n_shared_experts"))
KIMI_LINEAR: Final = DeltaFamily(types=_kimi, dense=1)
BAILING: Final = DeltaFamily(
    types=lambda config, _nested, count: every(config.integer("layer_group_size"), count, FULL, LINEAR), dense=2, bailing=True
)
GLM5_NEXT: Final = DeltaFamily(types=lambda _config, _nested, count: every(4, count, FULL, LINEAR), dense=3, indexed=True)
KIMI_K3: Final = Readers(layers=lambda config: read_nested(config, "kimi_linear"), weights=_k3_weights)
