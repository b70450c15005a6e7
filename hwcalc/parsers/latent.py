"""Multi-head latent attention (MLA): what a layer keeps and weighs, the indexer that may stand beside it, and the models that
have it.

- A.X K1 and K2: DeepSeek's layers with a norm after the experts (K1), or gates on attention and norms (K2).
- DeepSeek-V2 to V3.2, and models with the same layers: Kimi K2, GLM, Mistral 4, MiniCPM3, Youtu.
- Dots 3 Note: sliding layers have a latent of another shape (``per_layer_config`` or ``swa_*``). Each head has a gate.
- Hunyuan V4: DeepSeek-V3.2 with a gate on the attention, sinks, and several residual streams.
- LongCat Flash: two attentions and two MLPs in each layer, and experts of which some do nothing.
- Mistral Large 4: queries without a latent, a learned softmax scale, and layers that read the latent of an earlier one. Every
  fourth layer has no rotary positions: there the rotary part of the keys comes from the latent, as the rest does.
- DeepSeek-V4: every layer has a window and experts, and most have a compressed memory of every 4 or every 128 tokens. Learned
  weights mix several residual streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import CompressedAttention, FullAttention, LatentAttention, Layer, LayerKind, SharedCache, SparseIndexer
from hwcalc.formulas import weights as formula
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, WeightRole, experts, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed, attention_of, hyper_connections, hyper_head, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder import build
from hwcalc.parsers.decoder.build import Decoder, Experts, mlp_blocks, mlp_weights
from hwcalc.parsers.reading import Reading, equal_dims, every, kind_in, read_layer_types

INDEXED: Final = "indexed_attention"
SLIDING: Final = "sliding_attention"
_INDEXED_NAMES: Final = frozenset({INDEXED, "deepseek_sparse_attention"})


def latent_attention(config: Config, *, window: int | None = None) -> LatentAttention:
    """One MLA layer by the common keys. Key/value heads have no effect: all query heads share the latent."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "q_lora_rank")
    heads = config.integer("num_attention_heads")
    v_head_dim = config.maybe_integer("v_head_dim")
    return LatentAttention(
        num_attention_heads=heads,
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0),
        qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
        # MiniCPM3 leaves it null: then it is the width of a head.
        v_head_dim=v_head_dim or max(1, config.integer("hidden_size") // heads),
        window=window,
    )


def sparse_indexer(config: Config) -> SparseIndexer:
    """The indexer of one layer by the common keys."""
    heads, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    return SparseIndexer(index_n_heads=heads, index_head_dim=width, index_topk=config.maybe_integer("index_topk"))


def indexer_modes(config: Config, count: int, derived: list[str] | None = None) -> list[str]:
    """``full`` where a layer keeps indexer keys, ``shared`` where it uses those of an earlier layer.

    ``indexer_types`` wins over ``index_topk_pattern`` ("FSSF..."), which wins over ``derived`` and over a schedule: with
    frequency 4 and offset 3, layers 0, 1, 2, 6, 10, ... are full.
    """
    modes, pattern = config.strings("indexer_types"), config.get("index_topk_pattern")
    frequency = config.maybe_integer("index_topk_freq", minimum=0) or 1
    offset = config.maybe_integer("index_skip_topk_offset", minimum=0)
    if modes is None and isinstance(pattern, str):
        modes = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif modes is None:
        modes = config.strings("index_topk_pattern")
    if modes is None:
        start = 2 if offset is None else offset
        modes = derived or ["full" if max(i - start + 1, 0) % frequency == 0 else "shared" for i in range(count)]
    if len(modes) < count or set(modes[:count]) - {"full", "shared"}:
        raise config.error("indexer_types", modes, f"a list of {count} entries, each full or shared")
    return modes[:count]


class LatentLayers(Record):
    """How the layers of one model type are read."""

    sparse: bool = False
    """True if every layer has an indexer unless the file says otherwise."""
    types: Callable[[Config, int], list[str]] | None = None
    """The types that the model's class derives, where layers differ."""
    modes: Callable[[int], list[str]] | None = None
    """Which layers have an indexer of their own where the file does not say, and the common schedule does not fit."""
    latent: Callable[[Config, int | None], LatentAttention] = lambda config, window: latent_attention(config, window=window)
    """Reads the latent of one layer, by its config and window."""
    own_indexers: bool = False
    """True if every indexed layer has an indexer of its own, so that keys that say otherwise have no effect."""
    attentions: int = 1
    """How many attentions run in each layer, each with a latent of its own."""
    count: str = "num_hidden_layers"

    def read(self, config: Config) -> Reading:
        """Layers that keep a latent, with or without an indexer; ``use_mla`` false makes them plain attention."""
        if config.get("use_mla", default=True) is False:
            # The small DeepSeek-VL2 models have a model type with latent attention, but no latent attention.
            config.ignore("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim")
            heads = config.integer("num_attention_heads")
            head_dim = config.integer("hidden_size") // heads
            plain = equal_dims(heads, config.maybe_integer("num_key_value_heads"), head_dim).full()
            return Reading(layers=((plain,),) * config.number_of_layers(), config=config)
        count = config.number_of_layers(self.count)
        # Layers for multi-token prediction are not part of the stack, though lists of indexers may describe them too.
        config.ignore("index_share_for_mtp_iteration", "first_k_dense_replace", "moe_layer_freq")
        derived = [INDEXED if self.sparse else "full_attention"] * count if self.types is None else self.types(config, count)
        # Early files call indexed layers full_attention or deepseek_sparse_attention.
        indexed = _INDEXED_NAMES | ({"full_attention"} if self.sparse else set())
        types = [INDEXED if name in indexed else name for name in read_layer_types(config, count) or derived]
        for name in types:
            if name not in (INDEXED, "full_attention", SLIDING):
                raise config.error("layer_types", name, f"full_attention, {SLIDING} or {INDEXED}")
        modes = ["full"] * count
        if INDEXED in types and self.own_indexers:
            config.ignore("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        elif INDEXED in types:
            modes = indexer_modes(config, count, None if self.modes is None else self.modes(count))
        layers: list[Layer] = []
        for index, name in enumerate(types):
            layer = config.layer(index)
            kinds: list[LayerKind] = [self.latent(layer, layer.integer("sliding_window") if name == SLIDING else None)]
            if name == INDEXED and modes[index] == "full":
                kinds.append(sparse_indexer(layer))
            layers.append(tuple(kinds) * self.attentions)
        return Reading(layers=tuple(layers), config=config)


def kind_weights(config: Config, kind: LayerKind, query_rank: int | None) -> Weighed:
    """The weights of an attention or an indexer, whose queries come from a latent of ``query_rank`` or from the hidden state."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    if isinstance(kind, LatentAttention):
        ranks = (kind.kv_lora_rank, kind.qk_nope_head_dim, kind.qk_rope_head_dim, kind.v_head_dim, query_rank)
        return formula.latent_attention(hidden, kind.num_attention_heads, *ranks, bias=bias)
    if isinstance(kind, SparseIndexer):
        return formula.indexer(hidden, query_rank or hidden, kind.index_n_heads, kind.index_head_dim)
    return attention_of(kind, hidden, qkv_bias=bias, o_bias=bias) if isinstance(kind, FullAttention) else ()


def attention_weights(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The weights of a layer's attentions and indexer, by the common keys."""
    rank = config.maybe_integer("q_lora_rank")
    return tuple(weight for kind in layer for weight in kind_weights(config, kind, rank))


def _sparse(config: Config, count: int) -> list[bool]:
    """For each layer, True if it has experts: ``mlp_layer_types``, else every ``moe_layer_freq``-th after the dense first ones."""
    if config.strings("mlp_layer_types") is not None:
        return build.sparse_layers(config, count)
    prefix = config.maybe_integer("first_k_dense_replace", minimum=0)
    first, every_nth = 1 if prefix is None else prefix, config.maybe_integer("moe_layer_freq") or 1
    return [i >= first and i % every_nth == 0 for i in range(count)]


def _k2_attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """One projection gives queries and gate, from an input twice as wide as the query latent."""
    rank, latent = config.integer("q_lora_rank"), kind_in(config, layer, LatentAttention)
    widths = latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim
    own = attention_weights(config, spec, layer[:1])
    queries = tuple(weight for weight in own if not weight.path.endswith("q_b_proj.weight"))
    queries += linear("self_attn.q_gate_proj", 2 * rank, latent.num_attention_heads * widths)
    return queries + attention_weights(config, spec, layer[1:])


def _k2_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """MLPs with the norms around them. The norm before attention has a gate of low rank, and so has the one before experts."""
    hidden, rank = config.integer("hidden_size"), config.integer("gated_norm_rank")

    def gated(path: str) -> Weighed:
        gate = linear(f"{path}.mlp.fc1", hidden, rank) + linear(f"{path}.mlp.fc2", rank, hidden)
        return rms_norm(f"{path}.norm", hidden) + gate

    before = gated("input_layernorm")
    sparse = build.moe_weights(config, build.ROUTED) + before + gated("post_attention_layernorm")
    dense = mlp_weights(config, spec) + before + rms_norm("post_attention_layernorm", hidden)
    return mlp_blocks(_sparse(config, len(layers)), lambda routed: sparse if routed else dense)


def _v32(config: Config) -> Reading:
    """A layer may use the indexer of an earlier one. transformers does not read those keys and gives each its own."""
    reading = LatentLayers(sparse=True).read(config)
    own = LatentLayers(sparse=True, own_indexers=True).read(config).layers
    return reading if own == reading.layers else replace(reading, readings={"transformers": own}, weighs_readings=True)


def _dots_types(config: Config, count: int) -> list[str]:
    """The first two layers and every fourth after them have an indexer. The others slide."""
    config.ignore("use_dsa", "use_sliding_window", "sliding_window_size")
    return [INDEXED if i < 2 else name for i, name in enumerate(every(4, count, INDEXED, SLIDING, offset=1))]


def _dots_latent(layer: Config, window: int | None) -> LatentAttention:
    if window is None or "per_layer_config" in layer.raw:
        return latent_attention(layer, window=window)
    # Without per_layer_config the file gives the dims of sliding layers by swa_* keys. These are the class's defaults.
    head_dim = layer.maybe_integer("swa_head_dim") or 256
    nope = layer.maybe_integer("swa_qk_nope_head_dim") or 192
    layer.ignore("swa_num_key_value_heads", "swa_q_lora_rank", "swa_rope_theta")
    return LatentAttention(
        num_attention_heads=layer.maybe_integer("swa_num_attention_heads") or 64,
        kv_lora_rank=layer.maybe_integer("swa_kv_lora_rank") or 1024,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=layer.maybe_integer("swa_qk_rope_head_dim") or max(0, head_dim - nope),
        v_head_dim=layer.maybe_integer("swa_v_head_dim") or 128,
        window=window,
    )


def _dots_attentions(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Gated attention. Queries of sliding layers have a latent of another width."""
    hidden = config.integer("hidden_size")

    def weigh(key: tuple[Layer, int]) -> Weighed:
        layer, rank = key
        weights: Weighed = ()
        for kind in layer:
            weights += kind_weights(config, kind, rank)
            if isinstance(kind, LatentAttention):
                weights += rms_norm("self_attn.k_rope_only_layernorm", kind.qk_rope_head_dim)
                weights += linear("self_attn.g_proj", hidden, kind.num_attention_heads)
        return weights

    ranks = []
    for index, layer in enumerate(layers):
        level = config.layer(index)
        sliding = any(isinstance(kind, LatentAttention) and kind.window is not None for kind in layer)
        own = level.integer("q_lora_rank") if not sliding or "per_layer_config" in level.raw else None
        ranks.append(own or level.maybe_integer("swa_q_lora_rank") or 1024)
    return build.attention_blocks(zip(layers, ranks, strict=True), weigh)


def _hunyuan_attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The attention has a gate as wide as the values, and a sink for each head."""
    hidden, latent = config.integer("hidden_size"), kind_in(config, layer, LatentAttention)
    heads = latent.num_attention_heads
    gate = linear("self_attn.gate_proj", hidden, heads * latent.v_head_dim) + parameter("self_attn.sinks", heads)
    return attention_weights(config, spec, layer) + gate


def _longcat_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Some experts do nothing. transformers gives them gate and up (LongcatFlashExperts), which no token uses."""
    hidden, number = config.integer("hidden_size"), config.integer("n_routed_experts")
    idle = config.maybe_integer("zero_expert_num", minimum=0) or 0
    expert = gated_mlp(hidden, config.integer("moe_intermediate_size"), path="mlp.experts")
    router = linear("mlp.router.classifier", hidden, number + idle, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
    weights = experts(expert, number, config.integer("num_experts_per_tok")) + router
    if idle:
        weights += experts(expert[:2], idle, 0)
    weights += mlp_weights(config, spec) * 2
    return mlp_blocks([None] * len(layers), lambda _: weights)


def _read_mistral(config: Config) -> Reading:
    """A layer that reads the latent of an earlier one keeps nothing, or the keys of an indexer of its own.

    Its weights are those of its attention, with a shared cache before it.
    """
    layers = SPARSE.read(config).layers
    positions = build.with_positions(config, len(layers))
    sources = config.integers("kv_source_layers", length=len(layers)) or range(len(layers))
    kept, weighed = [], []
    for index, (layer, source) in enumerate(zip(layers, sources, strict=True)):
        reads, kinds = source != index, list(layer)
        for place, kind in enumerate(layer if not positions[index] else ()):
            if isinstance(kind, LatentAttention):
                wide = kind.qk_nope_head_dim + kind.qk_rope_head_dim
                kinds[place] = replace(kind, qk_nope_head_dim=wide, qk_rope_head_dim=0)
        kept.append(
            (SharedCache(), *(kind for kind in kinds if not isinstance(kind, LatentAttention))) if reads else tuple(kinds)
        )
        weighed.append((SharedCache(), *kinds) if reads else tuple(kinds))
    return Reading(layers=tuple(kept), config=config, weighed=tuple(weighed))


def _mistral_attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    hidden = config.integer("hidden_size")
    weights: Weighed = ()
    for kind in layer:
        own = kind_weights(config, kind, None)
        if isinstance(kind, LatentAttention):
            shared = isinstance(layer[0], SharedCache)
            weights += tuple(weight for weight in own if not (shared and ".kv_a_" in weight.path))
            weights += parameter("self_attn.softmax_scaling", 2, kind.num_attention_heads)
        elif isinstance(kind, SparseIndexer):
            weights += own + layer_norm("self_attn.indexer.q_input_norm", hidden)
            weights += parameter("self_attn.indexer.softmax_scaling", 2, kind.index_n_heads)
    return weights


_COMPRESSED: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_TYPE_OF_RATIO: Final = {0: SLIDING, 4: _COMPRESSED, 128: _HEAVY}


def _read_compressed(config: Config) -> Reading:
    """By ``layer_types`` or ``compress_ratios``. Without both, two heavy layers come first, then sparse and heavy in turn."""
    count = config.number_of_layers()
    config.ignore("num_key_value_heads", "compress_rope_theta", "num_hash_layers", "o_lora_rank", "q_lora_rank", "o_groups")
    config.ignore("qk_rope_head_dim")
    rates, given = {_COMPRESSED: 4, _HEAVY: 128}, config.get("compress_rates")
    for name in rates if isinstance(given, Mapping) else ():
        if name in given:
            rates[name] = config.checked_integer(f"compress_rates.{name}", given[name])
    for name, key in ((_COMPRESSED, "compress_rate_csa"), (_HEAVY, "compress_rate_hca")):
        rates[name] = config.maybe_integer(key) or rates[name]
    ratios = config.integers("compress_ratios")
    types = config.strings("layer_types")
    if types is None and ratios is not None:
        unknown = sorted(set(ratios) - set(_TYPE_OF_RATIO))
        if unknown:
            raise config.error("compress_ratios", unknown, "0, 4 or 128 for each layer")
        types = [_TYPE_OF_RATIO[ratio] for ratio in ratios]
    if types is None:
        types = [_HEAVY] * min(count, 2) + [_COMPRESSED if i % 2 else _HEAVY for i in range(max(count - 2, 0))]
    # The list also describes the layers for multi-token prediction that follow the stack.
    if len(types) < count or set(types) - {_COMPRESSED, _HEAVY, SLIDING}:
        raise config.error("layer_types", types, f"{_COMPRESSED}, {_HEAVY} or {SLIDING} for each of {count} layers")
    kinds: dict[str, Layer] = {}
    for name in types[:count]:
        # The groups of sparse layers overlap, and an indexer chooses among them.
        sparse = name == _COMPRESSED
        kinds[name] = kinds.get(name) or (
            CompressedAttention(
                num_attention_heads=config.integer("num_attention_heads"),
                head_dim=config.integer("head_dim"),
                window=config.integer("sliding_window"),
                compress_ratio=rates.get(name),
                overlap=sparse,
                index_n_heads=config.integer("index_n_heads") if sparse else None,
                index_head_dim=config.integer("index_head_dim") if sparse else None,
                index_topk=config.maybe_integer("index_topk") if sparse else None,
            ),
        )
    return Reading(layers=tuple(kinds[name] for name in types[:count]), config=config)


def _projections(config: Config, kind: CompressedAttention) -> Weighed:
    """All queries share one key/value head, and the output passes through groups of low rank."""
    hidden, rank = config.integer("hidden_size"), config.integer("q_lora_rank")
    heads, head_dim = kind.num_attention_heads, kind.head_dim
    groups, low = config.integer("o_groups"), config.integer("o_groups") * config.integer("o_lora_rank")
    weights = linear("self_attn.q_a_proj", hidden, rank) + rms_norm("self_attn.q_a_norm", rank)
    weights += linear("self_attn.q_b_proj", rank, heads * head_dim)
    weights += linear("self_attn.kv_proj", hidden, head_dim) + rms_norm("self_attn.kv_norm", head_dim)
    weights += linear("self_attn.o_a_proj", heads * head_dim // groups, low) + linear("self_attn.o_b_proj", low, hidden)
    return weights + parameter("self_attn.sinks", heads)


def _compressed_attention(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """Projections, and a compressor that pools a group of tokens into one entry: twice, also for the indexer, where groups overlap."""
    kind = kind_in(config, layer, CompressedAttention)
    weights, ratio = _projections(config, kind), kind.compress_ratio
    if ratio is None:
        return weights
    hidden, rank, times_wide = config.integer("hidden_size"), config.integer("q_lora_rank"), 2 if kind.overlap else 1

    def pool(path: str, width: int) -> Weighed:
        wide = times_wide * width
        # They count as other than linear because the released quantisation leaves them alone without naming them.
        both = linear(f"{path}.kv_proj", hidden, wide, role=WeightRole.OTHER)
        both += linear(f"{path}.gate_proj", hidden, wide, role=WeightRole.OTHER)
        return parameter(f"{path}.position_bias", ratio, wide) + both + rms_norm(f"{path}.kv_norm", width)

    path = "self_attn.compressor"
    weights += pool(path, kind.head_dim)
    if kind.index_n_heads and kind.index_head_dim:
        weights += pool(f"{path}.indexer", kind.index_head_dim)
        weights += linear(f"{path}.indexer.q_b_proj", rank, kind.index_n_heads * kind.index_head_dim)
        weights += linear(f"{path}.indexer.scorer.weights_proj", hidden, kind.index_n_heads, role=WeightRole.OTHER)
    return weights


def _compressed_mtp(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """A layer without compressor, between two projections and a head of its own that mixes the streams."""
    hidden = config.integer("hidden_size")
    weights = linear("e_proj", hidden, hidden) + linear("h_proj", hidden, hidden)
    weights += rms_norms(hidden, "enorm", "hnorm", "norm", "input_layernorm", "post_attention_layernorm")
    weights += _projections(config, kind_in(config, layer, CompressedAttention)) + hyper_connections(config, 3)
    return weights + build.moe_weights(config, _EXPERTS) + hyper_head(config)


AXK1: Final = Decoder(
    layers=LatentLayers().read,
    attention=attention_weights,
    experts=replace(
        build.ROUTED, sparse=_sparse, extra=lambda config: rms_norm("mlp.post_mlp_layernorm", config.integer("hidden_size"))
    ),
)
AXK2: Final = Decoder(norms=0, layers=LatentLayers(sparse=True, own_indexers=True).read, attention=_k2_attention, mlps=_k2_mlps)
YOUTU: Final = Decoder(layers=LatentLayers().read, attention=attention_weights)
MINICPM3: Final = replace(YOUTU, mlp_bias="mlp_bias")
MISTRAL4: Final = replace(YOUTU, experts=build.AFTER_PREFIX)
DEEPSEEK_V2: Final = replace(YOUTU, mlp_bias="mlp_bias", experts=replace(build.AFTER_PREFIX, shared_bias="mlp_bias"))
# Published sizes of checkpoints confirm these layouts of multi-token prediction.
DEEPSEEK_V3: Final = replace(MISTRAL4, mtp=build.mtp_copies)
GLM4_MOE_LITE: Final = replace(YOUTU, experts=replace(build.ROUTED, sparse=build.sparse_by_types(1, None)), mtp=build.mtp_copies)
SPARSE: Final = replace(
    YOUTU, layers=LatentLayers(sparse=True).read, experts=replace(build.ROUTED, sparse=build.sparse_by_types())
)
"""Every layer has an indexer, unless the file says that it uses that of an earlier layer."""
DEEPSEEK_V32: Final = replace(SPARSE, layers=_v32, mtp=build.mtp_copies)
GLM_MOE_DSA: Final = replace(SPARSE, mtp=build.mtp_shared)
DOTS3_NOTE: Final = Decoder(
    layers=LatentLayers(sparse=True, types=_dots_types, latent=_dots_latent, own_indexers=True).read, attentions=_dots_attentions,
    experts=replace(
        build.ROUTED, shared=build.times("n_shared_experts", "shared_experts_intermediate_size"), sparse=build.sparse_by_types(1)
    ),
)  # fmt: skip
HY_V4: Final = Decoder(
    # An indexer on the first layer, and on every fourth after the second.
    layers=LatentLayers(
        sparse=True, modes=lambda count: ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]
    ).read,
    attention=_hunyuan_attention, experts=replace(build.ROUTED, sparse=build.sparse_by_types(1, None)),
    extra=lambda config, _layer: hyper_connections(config, 2), outer=hyper_head,
)  # fmt: skip
LONGCAT_FLASH: Final = Decoder(
    norms=4, layers=LatentLayers(count="num_layers", attentions=2).read, attention=attention_weights, mlps=_longcat_mlps
)
MISTRAL_LARGE4: Final = replace(SPARSE, layers=_read_mistral, attention=_mistral_attention)
_EXPERTS: Final = Experts(
    count="n_routed_experts", shared=lambda config: config.integer("moe_intermediate_size"), shared_bias="mlp_bias"
)
DEEPSEEK_V4: Final = Decoder(
    layers=_read_compressed, attention=_compressed_attention, experts=_EXPERTS,
    extra=lambda config, _layer: hyper_connections(config, 3), outer=hyper_head, mtp=_compressed_mtp,
)  # fmt: skip
