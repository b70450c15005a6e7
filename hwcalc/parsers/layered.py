"""Decoders whose layers differ: in heads and widths, or because some have an indexer or attend to an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from hwcalc.formulas import CrossAttention, FullAttention, Layer, SparseIndexer
from hwcalc.formulas.weights import Block, linear, parameter
from hwcalc.model import Note
from hwcalc.parsers.blocks import Weighed, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import (
    Decoder,
    Experts,
    attention_blocks,
    attention_weights,
    sparse_by_types,
    sparse_in_list,
    sparse_layers,
    width,
)
from hwcalc.parsers.decoder.dense import HEAD_NORM
from hwcalc.parsers.decoder.layer_types import FULL, SLIDING, full
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Reading,
    attention_dims,
    build_layers,
    dims_of,
    kind_in,
    read_layer_types,
)

_SPARSE: Final = "minimax_m3_sparse"


def _is_full(layer: Layer) -> bool:
    return isinstance(layer[0], FullAttention)


def _laguna(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Laguna: each layer has its own number of query heads, and a gate for each head or each channel."""
    listed = config.integers("num_attention_heads_per_layer", length=len(layers), minimum=1)
    gating, hidden = config.get("gating"), config.integer("hidden_size")

    def weigh(dims: AttentionDims) -> Weighed:
        heads = dims.num_attention_heads
        rows = heads if gating is True or gating == "per-head" else heads * dims.head_dim
        return attention_weights(config, spec, (dims.full(),)) + linear("self_attn.g_proj", hidden, rows)

    dims = list(map(dims_of, layers))
    if listed is not None:
        dims = [replace(own, num_attention_heads=heads) for own, heads in zip(dims, listed, strict=True)]
    return attention_blocks(dims, weigh)


def _read_mimo_v2(config: Config) -> Reading:
    """MiMo-V2: sliding layers have more key/value heads, and keys are wider than values on both.

    The published files name the layers by ``hybrid_layer_pattern`` (1 slides) and the dims of sliding layers by ``swa_*``, as
    vLLM 0.33 reads them. The class of transformers 5.23 reads neither: full attention on layer 0 and on every sixth, and
    sliding layers that double the key/value heads. ``sliding_window_size`` counts the tokens before the query, so that the
    window is one more.
    """
    count = config.number_of_layers()
    dims = attention_dims(config)
    config.ignore("attention_chunk_size", "add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_rope_theta")
    config.ignore("sliding_window")
    doubled = replace(dims, num_key_value_heads=2 * dims.num_key_value_heads)
    head_dim = config.maybe_integer("swa_head_dim")
    sliding = AttentionDims(
        num_attention_heads=config.maybe_integer("swa_num_attention_heads") or dims.num_attention_heads,
        num_key_value_heads=config.maybe_integer("swa_num_key_value_heads") or doubled.num_key_value_heads,
        head_dim=head_dim or dims.head_dim,
        v_head_dim=config.maybe_integer("swa_v_head_dim") or head_dim or dims.v_head_dim,
    )
    before = config.maybe_integer("sliding_window_size")
    window = config.integer("sliding_window") if before is None else before + 1
    derived = [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(count)]
    spelled = read_layer_types(config, count)
    pattern = config.integers("hybrid_layer_pattern", length=count)
    named = spelled or ([SLIDING if flag else FULL for flag in pattern] if pattern else derived)

    def layers(types: list[str], sliding: AttentionDims) -> tuple[Layer, ...]:
        return tuple((dims.full(),) if name == FULL else (sliding.sliding(window),) for name in types)

    published, by_class = layers(named, sliding), layers(spelled or derived, doubled)
    readings = {} if published == by_class else {"transformers": by_class}
    return Reading(layers=published, config=config, readings=readings, weighs_readings=True)


def _mimo_v2(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """MiMo-V2: the sliding layers have sinks."""
    return attention_weights(config, spec if _is_full(layer) else replace(spec, sinks=True), layer)


def _read_step3p5(config: Config) -> Reading:
    """Step-3.7: sliding layers may have more query heads. The per-layer lists also cover the trailing draft layers.

    ``attention_other_setting`` may say more about the sliding layers. Of that transformers 5.23 and vLLM 0.33 read the query
    heads alone.
    """
    count = config.number_of_layers()
    dims = attention_dims(config)
    heads, other = config.maybe_integer("num_sliding_attention_heads"), config.get("attention_other_setting")
    if heads is None and isinstance(other, Mapping):
        heads = Config(other, None, "attention_other_setting").maybe_integer("num_attention_heads")
    sliding = dims if heads is None else replace(dims, num_attention_heads=heads)
    config.ignore("mtp_layer_types")
    types = read_layer_types(config, count) or [FULL] * count
    window = config.maybe_integer("sliding_window")

    def own(level: Config, common: AttentionDims) -> AttentionDims:
        # A file that transformers has saved holds the heads of every sliding layer.
        return attention_dims(level) if config.has("per_layer_config") else common

    readers: dict[str, LayerReader] = {
        FULL: lambda level, _index: (own(level, dims).full(),),
        SLIDING: lambda level, _index: (own(level, sliding).within(window),),
    }
    readings = {}
    if not config.where:
        # transformers reads only text_config: a file that keeps the keys at the top gets the class's defaults.
        default = Config({}, config.model_type)
        readings["transformers"] = ((attention_dims(default).full(),),) * default.number_of_layers()
    return Reading(layers=build_layers(config, types, readers), config=config, readings=readings)


def _step3p5(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """One block for the full layers and one for the sliding ones, even where their weights are alike."""
    places = {layer: tuple(number for number, own in enumerate(layers) if own == layer) for layer in dict.fromkeys(layers)}
    return [
        Block(kind="attention", weights=attention_weights(config, spec, layer), count=len(numbers), layers=numbers)
        for layer, numbers in places.items()
    ]


def _read_minimax_m3(config: Config) -> Reading:
    """MiniMax-M3: grouped-query attention. Sparse layers keep one indexer key a token beside keys and values.

    The key stays in the cache dtype, as transformers 5.23 and SGLang 0.5.23 keep it.
    """
    count = config.number_of_layers()
    dims = attention_dims(config)
    nested = config.sub("sparse_attention_config")
    sparse = nested.integers("sparse_attention_freq", length=count) if nested is not None else None
    if nested is not None:
        nested.ignore(*nested.raw)
    types = read_layer_types(config, count) or [_SPARSE if flag else FULL for flag in (sparse or [0] * count)]
    heads = (nested and nested.maybe_integer("sparse_num_index_heads")) or config.maybe_integer("index_n_heads")
    width = (nested and nested.maybe_integer("sparse_index_dim")) or config.maybe_integer("index_head_dim")
    config.ignore("index_block_size", "index_topk_blocks", "index_local_blocks")

    def indexed(_level: Config, _index: int) -> Layer:
        if heads is None or width is None:
            raise config.missing("index_head_dim")
        return (dims.full(), SparseIndexer(index_n_heads=heads, index_head_dim=width, index_quantized=False))

    layers = build_layers(config, types, {FULL: lambda _level, _index: (dims.full(),), _SPARSE: indexed})
    return Reading(layers=layers, config=config)


def _minimax_m3(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """MiniMax-M3: the indexer of a sparse layer has its own norms."""
    hidden, path = config.integer("hidden_size"), "self_attn.indexer"
    weights = attention_weights(config, spec, layer)
    for kind in layer[1:]:
        indexer = kind_in(config, (kind,), SparseIndexer)
        width = indexer.index_head_dim
        weights += linear(f"{path}.q_proj", hidden, indexer.index_n_heads * width) + linear(f"{path}.k_proj", hidden, width)
        weights += rms_norms(width, f"{path}.q_norm", f"{path}.k_norm")
    return weights


def _minimax_m3_sparse(config: Config, count: int) -> list[bool]:
    frequency = config.integers("moe_layer_freq", length=count)
    if frequency is None or config.strings("mlp_layer_types") is not None:
        return sparse_layers(config, count, 0, None)
    return list(map(bool, frequency))


def _read_mllama(config: Config) -> Reading:
    """Llama 3.2 Vision: some layers attend to the image instead of the text, and keep nothing on a text-only run."""
    count = config.number_of_layers()
    dims = attention_dims(config)
    images = set(config.integers("cross_attention_layers") or [])
    cross = CrossAttention(**asdict(dims))
    return Reading(
        layers=tuple((cross,) if index in images else (dims.full(),) for index in range(count)),
        config=config,
        encoder_tokens=0,
        notes=(
            Note(
                code="text-only",
                message=f"{len(images)} layers attend to the image: without one they keep nothing. Give the number of image "
                "tokens with --encoder-seq.",
            ),
        ),
    )


def _mllama(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """Llama 3.2 Vision: layers that attend to the image have norms of queries and keys, and two gates."""
    if _is_full(layer):
        return attention_weights(config, spec, layer)
    gates = parameter("cross_attn_attn_gate", 1) + parameter("cross_attn_mlp_gate", 1)
    return attention_weights(config, replace(spec, attn="cross_attn", qk_norm="head"), layer) + gates


LAGUNA: Final = replace(
    HEAD_NORM,
    types=full(),
    attentions=_laguna,
    experts=Experts(
        shared=width("shared_expert_intermediate_size"),
        sparse=sparse_by_types(1, None),
        extra=lambda config: parameter("mlp.gate.e_score_correction_bias", config.integer("num_experts")),
    ),
)
MIMO_V2: Final = Decoder(
    layers=_read_mimo_v2,
    qkv_bias="attention_bias",
    attention=_mimo_v2,
    experts=Experts(count="n_routed_experts", sparse=sparse_by_types(1, None)),
)
STEP3P5: Final = replace(
    HEAD_NORM,
    layers=_read_step3p5,
    attentions=_step3p5,
    gate="head",
    mlp_bias="mlp_bias",
    experts=Experts(count="n_routed_experts", shared=width("share_expert_dim"), shared_bias="mlp_bias", sparse=sparse_in_list(3)),
)
MINIMAX_M3: Final = Decoder(
    layers=_read_minimax_m3,
    qk_norm="head",
    width="dense_intermediate_size",
    attention=_minimax_m3,
    experts=Experts(
        count="num_local_experts",
        width="intermediate_size",
        shared=width("shared_intermediate_size"),
        sparse=_minimax_m3_sparse,
    ),
)
MLLAMA: Final = Decoder(
    layers=_read_mllama,
    attention=_mllama,
    # The embedding has eight rows more, for the image token.
    rows=lambda config: config.integer("vocab_size") + 8,
)
