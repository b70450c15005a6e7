"""Decoders whose layers differ in heads, share a cache, or run several times; their code lives with the model.

- nemotron-nas (Llama-Nemotron; class DeciLM): ``block_configs`` has one entry for each layer. The model's
  ``variable_cache.py``: ``attention.no_op`` or ``replace_with_linear`` keeps nothing; ``n_heads_in_group`` query heads
  share one key/value head (64 heads in groups of 8 keep 8); ``window_length`` is a sliding window, or with
  ``num_sink_tokens`` the whole of sinks and window together, unless ``unshifted_sink``, which masks but forgets nothing.
- deci, decilm (DeciLM-6B and -7B): ``num_key_value_heads_per_layer``.
- openelm: ``num_query_heads`` and ``num_kv_heads`` are lists, ``head_dim`` is one number (``modeling_openelm.py``).
- hunyuan (Hunyuan-Large, -A13B): with ``use_cla`` only layers whose index is a multiple of ``cla_share_factor`` project
  keys and values, and the others read theirs (``modeling_hunyuan.py``; vLLM's ``hunyuan_v1.py``, ``_get_cla_factor``). The
  factor stands in every file and says nothing where ``use_cla`` is false (A13B).
- ouro: the stack runs ``total_ut_steps`` times with the same weights, and each run keeps its own keys and values
  (``modeling_ouro.py``: cache index = step x layers + layer).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas import Layer, NoCache, SharedCache
from hwcalc.formulas.weights import Block, attention, embedding, gated_mlp, linear, rms_norm
from hwcalc.parsers.blocks import Named, Weighed, gated_experts, head_block, repeated, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder, attention_blocks, attention_weights, mlp_blocks, mlp_weights
from hwcalc.parsers.decoder.dense import LLAMA
from hwcalc.parsers.reading import AttentionDims, Readers, Reading, attention_dims, dims_of, equal_dims


def _attention_entry(config: Config, block: Any, index: int, dims: AttentionDims) -> Layer:
    """What one entry of ``block_configs`` keeps."""
    key = f"block_configs[{index}]"
    if not isinstance(block, Mapping):
        raise config.error(key, block, "an object with an object 'attention'")
    given = block.get("attention")
    if not isinstance(given, Mapping):
        raise config.error(f"{key}.attention", given, "an object")
    entry = Config(given, config.model_type, f"{config.where}.{key}.attention" if config.where else f"{key}.attention")
    config.children.append(entry)
    entry.ignore("use_prefill_window_in_sink_attention")
    for unknown in ("sparsify", "llama4", "mamba"):
        if entry.get(unknown):
            raise entry.error(unknown, given[unknown], "null: attention of this kind is not known")
    if entry.flag("no_op") or entry.flag("replace_with_linear"):
        return (NoCache(),)
    group = entry.integer("n_heads_in_group")
    if group > dims.num_attention_heads:
        raise entry.error("n_heads_in_group", group, f"at most the number of heads ({dims.num_attention_heads})")
    own = replace(dims, num_key_value_heads=dims.num_attention_heads // group)
    window = entry.maybe_integer("window_length")
    sinks = entry.maybe_integer("num_sink_tokens", minimum=0)
    unshifted = entry.flag("unshifted_sink")
    if window is None:
        return (own.full(),)
    if sinks is None:
        return (own.sliding(window),)
    if unshifted:
        return (own.full(),)
    if sinks >= window:
        raise entry.error("num_sink_tokens", sinks, f"less than window_length ({window})")
    return (own.sink(sinks, window - sinks) if sinks else own.sliding(window),)


def _decilm_layers(config: Config) -> Reading:
    """Layers come from ``block_configs``, or else from a list of heads for each layer. Without both they are all alike."""
    count = config.number_of_layers()
    dims = attention_dims(config)
    blocks = config.sequence("block_configs", length=count)
    if blocks is not None:
        return Reading(layers=tuple(_attention_entry(config, block, i, dims) for i, block in enumerate(blocks)), config=config)
    heads = _per_layer(config, "num_key_value_heads_per_layer", count)
    if heads is None:
        return Reading(layers=((dims.full(),),) * count, config=config)
    return Reading(layers=tuple((replace(dims, num_key_value_heads=n).full(),) for n in heads), config=config)


def _per_layer(config: Config, key: str, count: int) -> list[int] | None:
    """One number for each layer: a list of them, or one for all."""
    value = config.get(key)
    if isinstance(value, (list, tuple)):
        return config.integers(key, length=count, minimum=1)
    number = config.maybe_integer(key)
    return None if number is None else [number] * count


def _left(entry: Any, key: str, number: str) -> float:
    """What an entry leaves of an attention or MLP: the value of ``number``, 0 for nothing, -1 for one square matrix."""
    block = Config(entry, None, key)
    if block.flag("no_op"):
        return 0
    return -1 if block.flag("replace_with_linear") else block.number(number, 0.0)


def _nemotron_nas(config: Config, top: Config, reading: Reading) -> list[Block] | None:
    """Each entry of ``block_configs`` says what is left of a layer.

    An attention or MLP may be missing with its norm, be one square matrix, or have fewer key/value heads or another width:
    ``ffn_mult`` x hidden x 2 / 3, up to the next multiple of 256.
    """
    hidden = config.integer("hidden_size")
    entries = config.sequence("block_configs", length=len(reading.layers))
    if entries is None:
        return None
    kinds = []
    for index, (entry, layer) in enumerate(zip(entries, reading.layers, strict=True)):
        given = entry.get("ffn")
        if not isinstance(given, Mapping):
            raise config.error(f"block_configs[{index}].ffn", given, "an object")
        linear_attention = _left(entry["attention"], f"block_configs[{index}].attention", "n_heads_in_group") == -1
        kinds.append((layer, linear_attention, _left(given, f"block_configs[{index}].ffn", "ffn_mult")))

    def weigh(kind: tuple[Layer, bool, float]) -> Iterator[Named]:
        layer, linear_attention, multiplier = kind
        scale = rms_norm("input_layernorm", hidden)
        if linear_attention:
            yield "attention", linear("self_attn.linear_attn", hidden, hidden) + scale
        elif not isinstance(layer[0], NoCache):
            yield "attention", attention_weights(config, LLAMA, layer) + scale
        scale = rms_norm("post_attention_layernorm", hidden)
        if multiplier == -1:
            yield "mlp", linear("mlp.linear_mlp", hidden, hidden) + scale
        elif multiplier < 0:
            raise config.error("block_configs.ffn.ffn_mult", multiplier, "a number above 0")
        elif multiplier:
            wide = int(2 * multiplier * hidden / 3)
            yield "mlp", mlp_weights(config, LLAMA, -(-wide // 256) * 256) + scale

    return [
        Block(kind="embedding", weights=embedding("model.embed_tokens", config.integer("vocab_size"), hidden)),
        *repeated(kinds, weigh),
        Block(kind="norm", weights=rms_norm("model.norm", hidden)),
        *head_block(config, tied=tied_head(config, top)),
    ]


def _openelm_layers(config: Config) -> Reading:
    count = config.number_of_layers()
    query = _per_layer(config, "num_attention_heads", count)
    if query is None:
        raise config.missing("num_query_heads")
    key_value = _per_layer(config, "num_key_value_heads", count) or query
    head_dim = config.integer("head_dim")
    # The lists above were computed from num_gqa_groups when the file was written.
    config.ignore("num_gqa_groups")
    return Reading(
        layers=tuple((equal_dims(q, kv, head_dim).full(),) for q, kv in zip(query, key_value, strict=True)),
        config=config,
    )


def _divisible(value: float, divisor: int) -> int:
    """``value`` rounded to a multiple of ``divisor``, up where it would lose more than a tenth.

    >>> _divisible(640.0, 256), _divisible(934.4, 256)
    (768, 1024)
    """
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def _openelm(config: Config, _top: Config, reading: Reading) -> list[Block] | None:
    """Each layer has its own heads and widths."""
    hidden, count = config.integer("hidden_size"), len(reading.layers)
    multipliers = config.sequence("ffn_multipliers", length=count)
    if multipliers is None:
        return None
    divisor = config.maybe_integer("ffn_dim_divisor") or 256
    scales = config.flag("normalize_qk_projections")
    gated = config.flag("ffn_with_glu", default=True)

    def weigh(kind: tuple[AttentionDims, Any]) -> Iterator[Named]:
        dims, multiplier = kind
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < 1000:
            raise config.error("ffn_multipliers", multiplier, "numbers above 0")
        wide = _divisible(multiplier * hidden, divisor)
        heads, groups, head_dim = dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim
        own = attention(hidden, heads, groups, head_dim, path="attn", fused="qkv_proj", output="out_proj")
        if scales:
            own += rms_norm("attn.q_norm", head_dim) + rms_norm("attn.k_norm", head_dim)
        own += linear("ffn.proj_1", hidden, 2 * wide if gated else wide) + linear("ffn.proj_2", wide, hidden)
        yield "layer", own + rms_norm("attn_norm", hidden) + rms_norm("ffn_norm", hidden)

    out = [Block(kind="embedding", weights=embedding("transformer.token_embeddings", config.integer("vocab_size"), hidden))]
    out += repeated(zip(map(dims_of, reading.layers), multipliers, strict=True), weigh)
    out.append(Block(kind="norm", weights=rms_norm("transformer.norm", hidden)))
    return [*out, *head_block(config, tied=config.flag("share_input_output_layers", default=True))]


def _hunyuan_layers(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    factor = config.maybe_integer("cla_share_factor") or 1
    if not config.flag("use_cla"):
        factor = 1
    if config.flag("use_mla"):
        raise config.error("use_mla", config.get("use_mla"), "false: a hunyuan model with latent attention is not known")
    return Reading(layers=tuple((SharedCache(),) if index % factor else (dims.full(),) for index in range(count)), config=config)


def _hunyuan_attentions(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """A layer that reads the cache of another projects no keys and values. The first layer has a cache of its own."""
    own = attention_weights(config, spec, layers[0])
    reads = tuple(weight for weight in own if ".k_" not in weight.path and ".v_" not in weight.path)
    return attention_blocks(layers, lambda layer: reads if isinstance(layer[0], SharedCache) else own)


def _hunyuan_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """The number and the width of experts may be listed, one for each layer."""
    hidden, wide, count = config.integer("hidden_size"), config.integer("intermediate_size"), len(layers)
    first = config.maybe_integer("moe_layer_num_skipped", minimum=0) or 0

    def at(key: str, index: int, default: int) -> int:
        return (_per_layer(config, key, count) or [default] * count)[index]

    def kind(index: int) -> tuple[int, int, int, int]:
        number = at("num_experts", index, 1)
        if number == 1 or index < first:
            return (0, 0, 0, 0)
        shared = at("num_shared_expert", index, 1) if config.flag("use_mixed_mlp_moe") else 0
        return (number, at("moe_topk", index, 1), at("moe_intermediate_size", index, wide), shared)

    def weigh(kind: tuple[int, int, int, int]) -> Weighed:
        number, active, inner, shared = kind
        if not number:
            return mlp_weights(config, spec)
        weights = gated_experts(hidden, inner, number, active, router="gate.wg")
        return weights + (gated_mlp(hidden, inner * shared, path="mlp.shared_mlp") if shared else ())

    return mlp_blocks(map(kind, range(count)), weigh)


def _ouro_layers(config: Config) -> Reading:
    count = config.number_of_layers()
    steps = config.integer("total_ut_steps", maximum=100)
    dims = attention_dims(config)
    if config.flag("use_sliding_window"):
        raise config.error(
            "use_sliding_window", config.get("use_sliding_window"), "false: an ouro model with a window is not known"
        )
    config.ignore("layer_types", "max_window_layers", "sliding_window")
    return Reading(layers=((dims.full(),) * steps,) * count, config=config)


NEMOTRON_NAS: Final = Readers(layers=_decilm_layers, weights=_nemotron_nas)
OPENELM: Final = Readers(layers=_openelm_layers, weights=_openelm)
HUNYUAN: Final = replace(
    LLAMA, layers=_hunyuan_layers, qk_norm="head", qk_norm_if="use_qk_norm", attentions=_hunyuan_attentions, mlps=_hunyuan_mlps
)

# Nobody has counted the weights of these two.
DECILM: Final = Readers(layers=_decilm_layers)
OURO: Final = Readers(layers=_ouro_layers)
