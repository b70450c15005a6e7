"""Multi-head latent attention and the DeepSeek-style sparse indexer that may stand beside it."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import FullAttention, LatentAttention, Layer, LayerKind, SharedCache, SparseIndexer
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, every, read_layer_types

__all__ = ["INDEXED", "indexer_modes", "latent_attention", "read", "sparse_indexer"]

INDEXED: Final = "indexed_attention"
_SLIDING: Final = "sliding_attention"
# Model types of which every layer has an indexer unless the file says otherwise.
_SPARSE: Final = frozenset({"deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4", "mistral_large4_text", "dots3_note_text"})
_INDEXED_NAMES: Final = frozenset({INDEXED, "deepseek_sparse_attention"})


def latent_attention(config: Config, *, window: int | None = None, rope: bool = True) -> LatentAttention:
    """One MLA layer by the common keys. Key/value heads play no part: the latent is shared by all query heads."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "q_lora_rank")
    heads = config.integer("num_attention_heads")
    v_head_dim = config.maybe_integer("v_head_dim")
    return LatentAttention(
        num_attention_heads=heads,
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0) if rope else 0,
        qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
        # MiniCPM3 leaves it null: the plain head width then.
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


def read(config: Config) -> Reading:
    """Read a config whose layers keep a latent, with or without an indexer; ``use_mla`` false makes it plain attention."""
    if config.get("use_mla", default=True) is False:
        config.ignore("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim")
        heads = config.integer("num_attention_heads")
        head_dim = config.integer("hidden_size") // heads
        kv_heads = config.maybe_integer("num_key_value_heads") or heads
        plain = FullAttention(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
        return Reading(layers=((plain,),) * config.number_of_layers(), config=config)
    count = config.number_of_layers("num_layers" if config.model_type == "longcat_flash" else "num_hidden_layers")
    # Multi-token-prediction layers stand beside the stack; the pattern keys below also describe their indexers.
    config.ignore("index_share_for_mtp_iteration", "first_k_dense_replace", "moe_layer_freq")
    types = _layer_types(config, count)
    indexers = indexer_modes(config, count) if INDEXED in types else [""] * count
    rope = _rope_layers(config, count)
    owners = _owners(config, count)
    layers: list[Layer] = []
    for index, name in enumerate(types):
        layer = config.layer(index)
        if owners[index] != index:
            layers.append((SharedCache(),))
            continue
        window = layer.integer("sliding_window") if name == _SLIDING else None
        kinds: list[LayerKind] = [_latent(layer, window, rope[index])]
        if name == INDEXED and indexers[index] == "full":
            kinds.append(sparse_indexer(layer))
        # LongCat runs two attentions in each layer, each with a latent of its own.
        layers.append(tuple(kinds) * (2 if config.model_type == "longcat_flash" else 1))
    return Reading(layers=tuple(layers), config=config)


def _latent(layer: Config, window: int | None, rope: bool) -> LatentAttention:
    if layer.model_type != "dots3_note_text" or window is None or "per_layer_config" in layer.raw:
        return latent_attention(layer, window=window, rope=rope)
    # Dots 3 files without per_layer_config name the sliding layers' dims by swa_*; these are the class's defaults.
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


def _layer_types(config: Config, count: int) -> list[str]:
    """Types by the file, else indexed on every layer of a sparse model type and full on every layer of others."""
    sparse = config.model_type in _SPARSE
    if config.model_type == "dots3_note_text":
        # Two leading layers and every fourth after them index; the rest slide.
        derived = [INDEXED if i < 2 else name for i, name in enumerate(every(4, count, INDEXED, _SLIDING, offset=1))]
        config.ignore("use_dsa", "use_sliding_window", "sliding_window_size")
    else:
        derived = [INDEXED if sparse else "full_attention"] * count
    types = read_layer_types(config, count) or derived
    # Early files call indexed layers full_attention or deepseek_sparse_attention.
    return [
        INDEXED if name in _INDEXED_NAMES or (sparse and name == "full_attention") else _known(config, name) for name in types
    ]


def _known(config: Config, name: str) -> str:
    if name not in ("full_attention", _SLIDING):
        raise config.error("layer_types", name, f"full_attention, {_SLIDING} or {INDEXED}")
    return name


def indexer_modes(config: Config, count: int) -> list[str]:
    """``full`` where a layer keeps indexer keys, ``shared`` where it uses those of an earlier layer.

    ``indexer_types`` wins over ``index_topk_pattern`` ("FSSF..."), which wins over a schedule: with frequency 4 and offset
    3, layers 0, 1, 2, 6, 10, ... are full.
    """
    modes = config.strings("indexer_types")
    pattern = config.get("index_topk_pattern")
    frequency = config.maybe_integer("index_topk_freq", minimum=0) or 1
    offset = config.maybe_integer("index_skip_topk_offset", minimum=0)
    if modes is None and isinstance(pattern, str):
        modes = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    elif modes is None:
        modes = config.strings("index_topk_pattern")
    if modes is None and config.model_type == "hy_v4":
        modes = ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]
    if modes is None:
        start = 2 if offset is None else offset
        modes = ["full" if max(i - start + 1, 0) % frequency == 0 else "shared" for i in range(count)]
    if len(modes) < count or set(modes[:count]) - {"full", "shared"}:
        raise config.error("indexer_types", modes, f"a list of {count} entries, each full or shared")
    return modes[:count]


def _rope_layers(config: Config, count: int) -> list[bool]:
    """Which layers have positions: all, but for Mistral Large 4, which leaves them out of every fourth."""
    if config.model_type != "mistral_large4_text":
        return [True] * count
    spelled = config.integers("no_rope_layers", length=count)
    period = config.maybe_integer("no_rope_layer_interval") or 4
    return [bool(flag) for flag in (spelled or [(i + 1) % period for i in range(count)])]


def _owners(config: Config, count: int) -> list[int]:
    """The layer whose latent each layer reads: itself, unless ``kv_source_layers`` says otherwise."""
    owners = config.integers("kv_source_layers", length=count) if config.model_type == "mistral_large4_text" else None
    return owners or list(range(count))
