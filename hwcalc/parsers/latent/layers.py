"""Multi-head latent attention (MLA) and the sparse indexer that may stand beside it: what a layer keeps, and its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas import FullAttention, LatentAttention, Layer, LayerKind, SparseIndexer
from hwcalc.formulas import weights as formula
from hwcalc.formulas.record import Record
from hwcalc.parsers.blocks import Weighed, attention_of
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder
from hwcalc.parsers.reading import Reading, read_layer_types

INDEXED: Final = "indexed_attention"
SLIDING: Final = "sliding_attention"
_INDEXED_NAMES: Final = frozenset({INDEXED, "deepseek_sparse_attention"})


def latent_attention(config: Config, *, window: int | None = None, rope: bool = True) -> LatentAttention:
    """One MLA layer by the common keys. Key/value heads have no effect: all query heads share the latent."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "q_lora_rank")
    heads = config.integer("num_attention_heads")
    v_head_dim = config.maybe_integer("v_head_dim")
    return LatentAttention(
        num_attention_heads=heads,
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0) if rope else 0,
        qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
        # MiniCPM3 leaves it null: then it is the width of a head.
        v_head_dim=v_head_dim or max(1, config.integer("hidden_size") // heads),
        window=window,
    )


def sparse_indexer(config: Config) -> SparseIndexer:
    """The indexer of one layer by the common keys."""
    return SparseIndexer(
        index_n_heads=config.integer("index_n_heads"),
        index_head_dim=config.integer("index_head_dim"),
        index_topk=config.maybe_integer("index_topk"),
    )


def indexer_modes(config: Config, count: int, derived: list[str] | None = None) -> list[str]:
    """``full`` where a layer keeps indexer keys, ``shared`` where it uses those of an earlier layer.

    ``indexer_types`` wins over ``index_topk_pattern`` ("FSSF..."), which wins over ``derived`` and over a schedule: with
    frequency 4 and offset 3, layers 0, 1, 2, 6, 10, ... are full.
    """
    modes = config.strings("indexer_types")
    pattern = config.get("index_topk_pattern")
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


def _latent_layer(config: Config, index: int, window: int | None) -> LatentAttention:
    return latent_attention(config, window=window)


class LatentLayers(Record):
    """How the layers of one model type are read."""

    sparse: bool = False
    """Whether every layer has an indexer unless the file says otherwise."""
    types: Callable[[Config, int], list[str]] | None = None
    """The types that the model's class derives, where layers differ."""
    modes: Callable[[int], list[str]] | None = None
    """Which layers have an indexer of their own where the file does not say, and the common schedule does not fit."""
    latent: Callable[[Config, int, int | None], LatentAttention] = _latent_layer
    """Reads the latent of one layer, by its config, number and window."""
    own_indexers: bool = False
    """Whether every indexed layer has an indexer of its own, so that keys that say otherwise have no effect."""
    attentions: int = 1
    """How many attentions run in each layer, each with a latent of its own."""
    count: str = "num_hidden_layers"

    def read(self, config: Config) -> Reading:
        """Layers that keep a latent, with or without an indexer; ``use_mla`` false makes them plain attention."""
        if config.get("use_mla", default=True) is False:
            return _without_latent(config)
        count = config.number_of_layers(self.count)
        # Layers for multi-token prediction are not part of the stack, though lists of indexers may describe them too.
        config.ignore("index_share_for_mtp_iteration", "first_k_dense_replace", "moe_layer_freq")
        types = self._layer_types(config, count)
        modes = self._indexer_modes(config, count) if INDEXED in types else [""] * count
        layers: list[Layer] = []
        for index, name in enumerate(types):
            layer = config.layer(index)
            window = layer.integer("sliding_window") if name == SLIDING else None
            kinds: list[LayerKind] = [self.latent(layer, index, window)]
            if name == INDEXED and modes[index] == "full":
                kinds.append(sparse_indexer(layer))
            layers.append(tuple(kinds) * self.attentions)
        return Reading(layers=tuple(layers), config=config)

    def _indexer_modes(self, config: Config, count: int) -> list[str]:
        if self.own_indexers:
            config.ignore("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
            return ["full"] * count
        return indexer_modes(config, count, None if self.modes is None else self.modes(count))

    def _layer_types(self, config: Config, count: int) -> list[str]:
        """The types of the layers by the file, else by the model's class."""
        derived = [INDEXED if self.sparse else "full_attention"] * count if self.types is None else self.types(config, count)
        # Early files call indexed layers full_attention or deepseek_sparse_attention.
        indexed = _INDEXED_NAMES | ({"full_attention"} if self.sparse else set())
        types = [INDEXED if name in indexed else name for name in read_layer_types(config, count) or derived]
        for name in types:
            if name not in (INDEXED, "full_attention", SLIDING):
                raise config.error("layer_types", name, f"full_attention, {SLIDING} or {INDEXED}")
        return types


def _without_latent(config: Config) -> Reading:
    """Plain attention: the small DeepSeek-VL2 models have a model type with latent attention, but no latent attention."""
    config.ignore("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("hidden_size") // heads
    kv_heads = config.maybe_integer("num_key_value_heads") or heads
    plain = FullAttention(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    return Reading(layers=((plain,),) * config.number_of_layers(), config=config)


def kind_weights(config: Config, kind: LayerKind, query_rank: int | None) -> Weighed:
    """The weights of an attention or an indexer, whose queries come from a latent of ``query_rank`` or from the hidden state."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    if isinstance(kind, LatentAttention):
        return formula.latent_attention(
            hidden,
            kind.num_attention_heads,
            kind.kv_lora_rank,
            kind.qk_nope_head_dim,
            kind.qk_rope_head_dim,
            kind.v_head_dim,
            query_rank,
            bias=bias,
        )
    if isinstance(kind, SparseIndexer):
        return formula.indexer(hidden, query_rank or hidden, kind.index_n_heads, kind.index_head_dim)
    return attention_of(kind, hidden, qkv_bias=bias, o_bias=bias) if isinstance(kind, FullAttention) else ()


def attention_weights(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The weights of a layer's attentions and indexer, by the common keys."""
    rank = config.maybe_integer("q_lora_rank")
    return tuple(weight for kind in layer for weight in kind_weights(config, kind, rank))
