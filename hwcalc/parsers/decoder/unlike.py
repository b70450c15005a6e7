"""Decoders whose layers differ from each other, run several times, or are read as those of another type.

JetMoE's attention has experts; HRM runs its layers several times, and Dory those in the middle. The code of others lives with the model:

- nemotron-nas (Llama-Nemotron; class DeciLM): ``block_configs`` has one entry for each layer. The model's
  ``variable_cache.py``: ``attention.no_op`` or ``replace_with_linear`` keeps nothing; ``n_heads_in_group`` query heads
  share one key/value head (64 heads in groups of 8 keep 8); ``window_length`` is a sliding window, or with
  ``num_sink_tokens`` the whole of sinks and window together, unless ``unshifted_sink``, which masks but forgets nothing.
- deci, decilm (DeciLM-6B and -7B): ``num_key_value_heads_per_layer``.
- openelm: ``num_query_heads`` and ``num_kv_heads`` are lists, ``head_dim`` is one number (``modeling_openelm.py``).
- hunyuan (Hunyuan-Large, -A13B): with ``use_cla`` only layers whose index is a multiple of ``cla_share_factor`` project
  keys and values, and the others read theirs (``modeling_hunyuan.py``; vLLM's ``hunyuan_v1.py``, ``_get_cla_factor``). The
  factor stands in every file and says nothing where ``use_cla`` is false (A13B).
- baichuan_m1 (``modeling_baichuan.py``, mlx-lm's ``baichuan_m1.py``): layers in ``sliding_window_layers`` have a window and heads
  of their own (``num_swa_*``). A convolution of two taps goes over keys and over values: each layer keeps the last of both as they
  were before it.
- ouro: the stack runs ``total_ut_steps`` times with the same weights, and each run keeps its own keys and values
  (``modeling_ouro.py``: cache index = step x layers + layer).

Some model types are another type under a name of their own:

- deepseek_ref: DeepSeek-V4 with the key names of its reference code, which transformers' ``deepseek_v4`` takes too
  (``compress_ratios``, ``sliding_window``, ``index_*``).
- minimax_m3: the language model of ``minimax_m3_vl`` by itself, with the same ``sparse_attention_config``.
- step3_vl: its ``text_config`` is a ``step3_text`` model, though not every file says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import FullAttention, Layer, NoCache, SharedCache, ShortConvolution, SparseIndexer
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, WeightRole
from hwcalc.model import Note
from hwcalc.parsers.blocks import Named, Weighed, attention_of, gated_experts, output_head, repeated, rms_norms, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.decoder import build
from hwcalc.parsers.decoder.build import FULL, SLIDING, Decoder, Experts, attention_weights, mlp_blocks, mlp_weights
from hwcalc.parsers.decoder.llama import HEAD_NORM, LLAMA
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    dims_of,
    divisible,
    equal_dims,
    full_layer,
    kind_in,
    read_layer_types,
    windowed_layer,
)
from hwcalc.parsers.registry import known_family


def _attention_entry(config: Config, block: Any, index: int, dims: AttentionDims) -> Layer:
    """The layer that one entry of ``block_configs`` makes."""
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
    count, dims = config.number_of_layers(), attention_dims(config)
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
    """The part of an attention or MLP that an entry leaves: the value of ``number``, 0 for nothing, -1 for one square matrix."""
    block = Config(entry, None, key)
    return 0 if block.flag("no_op") else -1 if block.flag("replace_with_linear") else block.number(number, 0.0)


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
        scale = w.rms_norm("input_layernorm", hidden)
        if linear_attention:
            yield "attention", w.linear("self_attn.linear_attn", hidden, hidden) + scale
        elif not isinstance(layer[0], NoCache):
            yield "attention", attention_weights(config, LLAMA, layer) + scale
        scale = w.rms_norm("post_attention_layernorm", hidden)
        if multiplier == -1:
            yield "mlp", w.linear("mlp.linear_mlp", hidden, hidden) + scale
        elif multiplier < 0:
            raise config.error("block_configs.ffn.ffn_mult", multiplier, "a number above 0")
        elif multiplier:
            wide = int(2 * multiplier * hidden / 3)
            yield "mlp", mlp_weights(config, LLAMA, -(-wide // 256) * 256) + scale

    return [
        Block(kind="embedding", weights=w.embedding("model.embed_tokens", config.integer("vocab_size"), hidden)),
        *repeated(kinds, weigh),
        Block(kind="norm", weights=w.rms_norm("model.norm", hidden)),
        *output_head("lm_head", hidden, config.integer("vocab_size"), tied=tied_head(config, top)),
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
    heads = zip(query, key_value, strict=True)
    return Reading(layers=tuple((equal_dims(own, kept, head_dim).full(),) for own, kept in heads), config=config)


def _openelm(config: Config, _top: Config, reading: Reading) -> list[Block] | None:
    """Each layer has its own heads and widths."""
    hidden, count = config.integer("hidden_size"), len(reading.layers)
    multipliers = config.sequence("ffn_multipliers", length=count)
    if multipliers is None:
        return None
    divisor = config.maybe_integer("ffn_dim_divisor") or 256
    scales, gated = config.flag("normalize_qk_projections"), config.flag("ffn_with_glu", default=True)

    def weigh(kind: tuple[AttentionDims, Any]) -> Iterator[Named]:
        dims, multiplier = kind
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < 1000:
            raise config.error("ffn_multipliers", multiplier, "numbers above 0")
        wide = divisible(multiplier * hidden, divisor)
        own = attention_of(dims, hidden, qk_norm=scales, path="attn", fused="qkv_proj", output="out_proj")
        own += w.linear("ffn.proj_1", hidden, 2 * wide if gated else wide) + w.linear("ffn.proj_2", wide, hidden)
        yield "layer", own + w.rms_norm("attn_norm", hidden) + w.rms_norm("ffn_norm", hidden)

    out = [Block(kind="embedding", weights=w.embedding("transformer.token_embeddings", config.integer("vocab_size"), hidden))]
    out += repeated(zip(map(dims_of, reading.layers), multipliers, strict=True), weigh)
    out.append(Block(kind="norm", weights=w.rms_norm("transformer.norm", hidden)))
    tied = config.flag("share_input_output_layers", default=True)
    return out + output_head("lm_head", hidden, config.integer("vocab_size"), tied=tied)


def _hunyuan_layers(config: Config) -> Reading:
    count, dims = config.number_of_layers(), attention_dims(config)
    factor = config.maybe_integer("cla_share_factor") or 1
    factor = factor if config.flag("use_cla") else 1
    if config.flag("use_mla"):
        raise config.error("use_mla", config.get("use_mla"), "false: a hunyuan model with latent attention is not known")
    return Reading(layers=tuple((SharedCache(),) if index % factor else (dims.full(),) for index in range(count)), config=config)


def _hunyuan_attentions(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """A layer that reads the cache of another projects no keys and values. The first layer has a cache of its own."""
    own = attention_weights(config, spec, layers[0])
    reads = tuple(weight for weight in own if ".k_" not in weight.path and ".v_" not in weight.path)
    return build.attention_blocks(layers, lambda layer: reads if isinstance(layer[0], SharedCache) else own)


def _hunyuan_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """The number and the width of experts may be listed, one for each layer."""
    hidden, wide, count = config.integer("hidden_size"), config.integer("intermediate_size"), len(layers)
    first = config.maybe_integer("moe_layer_num_skipped", minimum=0) or 0

    def number(key: str, index: int, default: int) -> int:
        return (_per_layer(config, key, count) or [default] * count)[index]

    def weigh(sizes: tuple[int, int, int, int]) -> Weighed:
        experts, active, inner, shared = sizes
        if not experts:
            return mlp_weights(config, spec)
        weights = gated_experts(hidden, inner, experts, active, router="gate.wg")
        return weights + (w.gated_mlp(hidden, inner * shared, path="mlp.shared_mlp") if shared else ())

    kinds = []
    for index in range(count):
        experts = number("num_experts", index, 1)
        if experts == 1 or index < first:
            kinds.append((0, 0, 0, 0))
        else:
            shared = number("num_shared_expert", index, 1) if config.flag("use_mixed_mlp_moe") else 0
            kinds.append((experts, number("moe_topk", index, 1), number("moe_intermediate_size", index, wide), shared))
    return mlp_blocks(kinds, weigh)


def _ouro_layers(config: Config) -> Reading:
    count = config.number_of_layers()
    steps = config.integer("total_ut_steps", maximum=100)
    dims = attention_dims(config)
    windowed = config.flag("use_sliding_window")
    if windowed:
        raise config.error("use_sliding_window", windowed, "false: an ouro model with a window is not known")
    config.ignore("layer_types", "max_window_layers", "sliding_window")
    return Reading(layers=((dims.full(),) * steps,) * count, config=config)


def _jetmoe_dims(config: Config) -> AttentionDims:
    """The experts share keys and values: each key/value head serves one query head of every expert in use."""
    kv_heads, head_dim = config.integer("num_key_value_heads"), config.integer("head_dim")
    return equal_dims(kv_heads * config.integer("num_experts_per_tok"), kv_heads, head_dim)


def _mixture(config: Config, path: str, up: int, down: int) -> Weighed:
    """Experts of two matrices each, their router, and one bias for all of them."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    expert = w.linear(f"{path}.input_linear", hidden, up) + w.linear(f"{path}.output_linear", down, hidden)
    weights = w.experts(expert, count, config.integer("num_experts_per_tok"))
    weights += w.linear(f"{path}.router.layer", hidden, count, role=WeightRole.ROUTER)
    return weights + w.parameter(f"{path}.bias", hidden, role=WeightRole.BIAS)


def _jetmoe_attention(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """The projections of queries and of the output are experts; keys and values are shared."""
    dims = dims_of(layer)
    inner = dims.head_dim * dims.num_key_value_heads
    mixed = _mixture(config, "self_attention.experts", inner, inner)
    return mixed + w.linear("self_attention.kv_proj", config.integer("hidden_size"), 2 * inner)


def _jetmoe_mlps(config: Config, _spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    width = config.integer("intermediate_size")
    return mlp_blocks([None] * len(layers), lambda _: _mixture(config, "mlp", 2 * width, width))


def _hrm_layers(config: Config) -> Reading:
    """Each layer runs several times on a token, and each run has its own keys and values.

    HRM runs its stack H_cycles x (L_cycles + 1) times: 16 layers with 2 and 3 keep 128 caches. A file with
    ``num_layers_per_stack`` already counts every run. Every head has its own keys and values, whatever the file says.
    """
    count = config.number_of_layers()
    config.ignore("L_bp_cycles", "H_cycles", "L_cycles")
    dims = attention_dims(config)
    passes = 1
    if config.maybe_integer("num_layers_per_stack") is None:
        cycles = config.integer("H_cycles", maximum=1000) * (config.integer("L_cycles", maximum=1000) + 1)
        passes = config.checked_integer("H_cycles x (L_cycles + 1)", cycles, maximum=MAX_LAYERS)
    kept = replace(dims, num_key_value_heads=dims.num_attention_heads).full()
    return Reading(layers=((kept,) * passes,) * count, config=config)


def _hrm_stacks(config: Config, reading: Reading) -> Sequence[int]:
    """The weights of two stacks of the same shape, spread over the layers that were read.

    The depth of a stack is ``num_layers_per_stack``, else ``num_hidden_layers``. Beside the former, the latter counts all runs.
    """
    count = len(reading.layers)
    depth = config.maybe_integer("num_layers_per_stack") or count
    return [index * count // (2 * depth) for index in range(2 * depth)]


def _hrm_gate(config: Config, layer: Layer) -> Weighed:
    dims, hidden = dims_of(layer), config.integer("hidden_size")
    return w.linear("self_attn.gate_proj", hidden, dims.num_attention_heads * dims.head_dim, bias=config.flag("attention_bias"))


def _dory_layers(config: Config) -> Reading:
    """Layers in the middle run ``n_recurrent_loops`` times on a token, and each run keeps keys and values of its own.

    With ``last_loop`` the last run alone keeps them, and the others read those. Published files count attention and MLP as two
    layers each: ``layer_types`` then has "mlp" in every other place, and all counts are twice as large.
    """
    count, listed = config.number_of_layers(), read_layer_types(config, config.number_of_layers())
    blocks = 2 if listed is not None and "mlp" in listed else 1
    types = listed[::blocks] if listed is not None else build.last_of(4)(config, count)
    first, last = (config.integer(f"n_{part}_layers", minimum=0) // blocks for part in ("input", "output"))
    given = config.maybe_integer("n_recurrent_layers", minimum=0)
    middle = len(types) - first - last if given is None else given // blocks
    if middle < 0 or first + middle + last != len(types):
        allowed = f"so many that input, recurrent and output layers together are {count}"
        raise config.error("n_recurrent_layers", given, allowed)
    loops = config.integer("n_recurrent_loops", maximum=MAX_LAYERS)
    if config.text("recurrent_kv_cache_mode") == "last_loop":
        loops = 1
    once = build_layers(config, types, {FULL: full_layer, SLIDING: windowed_layer})
    layers = tuple(layer * (loops if first <= index < first + middle else 1) for index, layer in enumerate(once))
    return Reading(layers=layers, config=config, weighed=once)


def _dory_scales(config: Config, layer: Layer) -> Weighed:
    """Vectors in the place of norms: for queries, for the gate of the output, in the MLP, and for the two residuals."""
    dims, hidden, width = dims_of(layer), config.integer("hidden_size"), config.integer("intermediate_size")
    sizes = {
        "self_attn.sqk": dims.num_attention_heads * dims.head_dim,
        "self_attn.s_gate": dims.num_attention_heads * dims.head_dim,
        "mlp.suv_gate": width,
        "mlp.suv_up": width,
        "lambda_1": hidden,
        "lambda_2": hidden,
    }
    return tuple(weight for path, size in sizes.items() for weight in w.parameter(path, size))


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
        return attention_weights(config, spec, (dims.full(),)) + w.linear("self_attn.g_proj", hidden, rows)

    dims = list(map(dims_of, layers))
    if listed is not None:
        dims = [replace(own, num_attention_heads=heads) for own, heads in zip(dims, listed, strict=True)]
    return build.attention_blocks(dims, weigh)


def _read_mimo_v2(config: Config) -> Reading:
    """MiMo-V2: sliding layers have more key/value heads, and keys are wider than values on both.

    The published files name the layers by ``hybrid_layer_pattern`` (1 slides) and the dims of sliding layers by ``swa_*``, as
    vLLM 0.33 reads them. The class of transformers 5.23 reads neither: full attention on layer 0 and on every sixth, and
    sliding layers that double the key/value heads. ``sliding_window_size`` counts the tokens before the query, so that the
    window is one more.
    """
    count, dims = config.number_of_layers(), attention_dims(config)
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
    count, dims = config.number_of_layers(), attention_dims(config)
    heads, other = config.maybe_integer("num_sliding_attention_heads"), config.get("attention_other_setting")
    if heads is None and isinstance(other, Mapping):
        heads = Config(other, None, "attention_other_setting").maybe_integer("num_attention_heads")
    sliding = dims if heads is None else replace(dims, num_attention_heads=heads)
    config.ignore("mtp_layer_types")
    types = read_layer_types(config, count) or [FULL] * count
    window = config.maybe_integer("sliding_window")

    # A file that transformers has saved holds the heads of every sliding layer.
    saved = config.has("per_layer_config")
    readers: dict[str, LayerReader] = {
        FULL: lambda level, _index: ((attention_dims(level) if saved else dims).full(),),
        SLIDING: lambda level, _index: ((attention_dims(level) if saved else sliding).within(window),),
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
    count, dims = config.number_of_layers(), attention_dims(config)
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
        weights += w.linear(f"{path}.q_proj", hidden, indexer.index_n_heads * width) + w.linear(f"{path}.k_proj", hidden, width)
        weights += rms_norms(width, f"{path}.q_norm", f"{path}.k_norm")
    return weights


def _minimax_m3_sparse(config: Config, count: int) -> list[bool]:
    frequency = config.integers("moe_layer_freq", length=count)
    if frequency is None or config.strings("mlp_layer_types") is not None:
        return build.sparse_layers(config, count, 0, None)
    return list(map(bool, frequency))


def _read_mllama(config: Config) -> Reading:
    """Llama 3.2 Vision: some layers attend to the image instead of the text, and keep nothing on a text-only run."""
    count, dims = config.number_of_layers(), attention_dims(config)
    named = config.integers("cross_attention_layers")
    images = set(range(3, 39, 5) if named is None else named)
    layers = tuple((dims.cross() if index in images else dims.full(),) for index in range(count))
    message = f"{len(images)} layers attend to the image: without one they keep nothing. Give the number of image tokens with --encoder-seq."
    return Reading(layers=layers, config=config, encoder_tokens=0, notes=(Note(code="text-only", message=message),))


def _mllama(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """Llama 3.2 Vision: layers that attend to the image have norms of queries and keys, and two gates."""
    if _is_full(layer):
        return attention_weights(config, spec, layer)
    gates = w.parameter("cross_attn_attn_gate", 1) + w.parameter("cross_attn_mlp_gate", 1)
    return attention_weights(config, replace(spec, attn="cross_attn", qk_norm="head"), layer) + gates


def _read_baichuan_m1(config: Config) -> Reading:
    """Full and sliding attention with heads of their own, and the last key and value before a convolution of two taps."""
    count, taps = config.number_of_layers(), config.integer("conv_window", minimum=2, maximum=2)
    listed, hidden = set(config.integers("sliding_window_layers") or ()), config.integer("hidden_size")
    window = config.integer("sliding_window") if listed else None

    def layer(slides: bool) -> Layer:
        heads, kv_heads = config.integer("num_attention_heads"), config.maybe_integer("num_key_value_heads")
        if slides:
            heads = config.maybe_integer("num_swa_attention_heads") or heads
            kv_heads = config.maybe_integer("num_swa_key_value_heads") or kv_heads
        if hidden % heads:
            raise config.error("hidden_size", hidden, f"a multiple of the number of attention heads ({heads})")
        dims = equal_dims(heads, kv_heads, hidden // heads)
        channels = 2 * dims.num_key_value_heads * dims.head_dim
        return (dims.within(window if slides else None), ShortConvolution(channels=channels, d_conv=taps))

    return Reading(layers=tuple(layer(number in listed) for number in range(count)), config=config)


def _baichuan_m1_taps(config: Config, layer: Layer) -> Weighed:
    """Two taps for the keys and two for the values of each head."""
    heads, taps = dims_of(layer).num_key_value_heads, config.integer("conv_window")
    return tuple(weight for name in "kv" for weight in w.parameter(f"self_attn.conv_{name}", 1, 1, heads, 1, taps))


def _read_blt(config: Config) -> Reading:
    """Refuse BLT: its global model has an entry for each patch of bytes, and a patch ends where the next byte is hard to predict."""
    raise UnsupportedError(
        f"A model of type {config.model_type} keeps keys and values of patches of bytes, and how many there are depends on the text: "
        "kvplan has no formula for that.",
        hint="Plan another model. See: kvplan models",
    )


def _relabelled(model_type: str) -> Readers:
    """A whole file that is read as another model type."""

    def weigh(_config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        return known_family(model_type).weigh(reading.config, top, reading)

    return Readers(layers=lambda config: known_family(model_type).read(config.retyped(model_type)), weights=weigh)


def read_nested(config: Config, model_type: str) -> Reading:
    """The layers of a language model in ``text_config``, of this type unless the file names another."""
    text = config.sub("text_config", model_type)
    if text is None:
        raise config.missing("text_config")
    if text.model_type == config.model_type:
        raise config.error("text_config.model_type", config.model_type, model_type)
    # Later layers mix the outputs of groups of so many layers, within the step of one token: nothing of them is cached.
    text.ignore("attn_res_block_size")
    return known_family(text.model_type).read(text)


BLT: Final = Readers(layers=_read_blt)
BAICHUAN_M1: Final = Decoder(layers=_read_baichuan_m1, fused_qkv="W_pack", extra=_baichuan_m1_taps)
NEMOTRON_NAS: Final = Readers(layers=_decilm_layers, weights=_nemotron_nas)
OPENELM: Final = Readers(layers=_openelm_layers, weights=_openelm)
HUNYUAN: Final = replace(
    LLAMA, layers=_hunyuan_layers, qk_norm="head", qk_norm_if="use_qk_norm", attentions=_hunyuan_attentions, mlps=_hunyuan_mlps
)
# Nobody has counted the weights of these two.
DECILM: Final = Readers(layers=_decilm_layers)
OURO: Final = Readers(layers=_ouro_layers)
JETMOE: Final = Decoder(layers=build.alike(_jetmoe_dims, "num_attention_heads"), attention=_jetmoe_attention, mlps=_jetmoe_mlps)
HRM: Final = Decoder(
    # No norm has weights.
    layers=_hrm_layers, numbers=_hrm_stacks, norms=0, final_norm=False, qkv_bias="attention_bias", o_bias="attention_bias",
    mlp_bias="mlp_bias", extra=_hrm_gate, outer=lambda config: w.rms_norm("z_L_init", config.integer("hidden_size")),
)  # fmt: skip
DORY: Final = Decoder(
    # Hidden states are kept at length 1 by norms without weights.
    layers=_dory_layers, norms=0, final_norm=False, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
    gate="full", extra=_dory_scales, outer=lambda config: w.parameter("lm_head.logit_scale", config.integer("vocab_size")),
)  # fmt: skip
LAGUNA: Final = replace(
    HEAD_NORM, types=build.full(), attentions=_laguna,
    experts=Experts(
        shared=build.width("shared_expert_intermediate_size"), sparse=build.sparse_by_types(1, None),
        extra=lambda config: w.parameter("mlp.gate.e_score_correction_bias", config.integer("num_experts")),
    ),
)  # fmt: skip
MIMO_V2: Final = Decoder(
    layers=_read_mimo_v2, qkv_bias="attention_bias", attention=_mimo_v2,
    experts=Experts(count="n_routed_experts", sparse=build.sparse_by_types(1, None)),
)  # fmt: skip
STEP3P5: Final = replace(
    HEAD_NORM, layers=_read_step3p5, attentions=_step3p5, gate="head", mlp_bias="mlp_bias",
    experts=Experts(
        count="n_routed_experts", shared=build.width("share_expert_dim"), shared_bias="mlp_bias", sparse=build.sparse_in_list(3)
    ),
)  # fmt: skip
MINIMAX_M3: Final = Decoder(
    layers=_read_minimax_m3, qk_norm="head", width="dense_intermediate_size", attention=_minimax_m3,
    experts=Experts(
        count="num_local_experts", width="intermediate_size", shared=build.width("shared_intermediate_size"),
        sparse=_minimax_m3_sparse,
    ),
)  # fmt: skip
# The embedding has eight rows more, for the image token.
MLLAMA: Final = Decoder(layers=_read_mllama, attention=_mllama, rows=lambda config: config.integer("vocab_size") + 8)
DEEPSEEK_REF: Final = _relabelled("deepseek_v4")
MINIMAX_M3_TEXT: Final = _relabelled("minimax_m3_vl_text")
STEP3_VL: Final = Readers(layers=lambda config: read_nested(config, "step3_text"))
