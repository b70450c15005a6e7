"""What llama.cpp stores for one layer: a rule for each kind of layer.

The caches are those of src/llama-kv-cache*.cpp and src/llama-memory-recurrent.cpp. A layer's keys are one tensor of
[row, cells, streams], its values another; recurrent states are 32-bit floats whatever the format of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.settings import CELLS, STATE_DTYPE
from hwcalc.engines.stored import OwnRule, StoredTensor
from hwcalc.formulas import FullAttention, LayerKind, Role
from hwcalc.parsers.gguf.parse import CSA_RATIO

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer
    from hwcalc.formulas.attention import AttentionKind
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.parsers.gguf.parse import NoHeads

LayerRule = Callable[..., tuple[StoredTensor, ...]]


class CacheContext(NamedTuple):
    """The settings of the context, the model and the planned sequences, on which the cache of a layer of any kind depends."""

    settings: Settings
    hparams: Hparams
    batch: int


def _cells_in_words(context: CacheContext, size: str) -> str:
    """The arithmetic of the number of cells of a stream, in words. ``size`` is the name of that number in :class:`Settings`."""
    settings = context.settings
    if size.startswith("groups_of_"):
        return f"roundup(ceil({settings.n_ctx_seq:,} / {size.removeprefix('groups_of_')}), {CELLS})"
    rules = settings.rules
    multiple = CELLS if rules.cells == "context" else 1
    asked = f"n_ctx {settings.n_ctx_asked:,}"
    full = f"roundup({asked}, {CELLS})" if multiple > 1 else asked
    if not settings.kv_unified and settings.n_seq_max > 1 and settings.n_ctx_seq != settings.n_ctx:
        full = (
            f"{full} // n_seq_max {settings.n_seq_max}"
            if rules.divides == "down"
            else f"ceil({full} / n_seq_max {settings.n_seq_max})"
        )
        full = f"roundup({full}, {CELLS})" if multiple > 1 else full
    if multiple == 1 and rules.cells == "cache":
        full = f"roundup({full}, {settings.cell_multiple})"
    if size == "n_ctx_seq" or settings.swa_full or rules.windows == "all":
        return full
    shared = settings.n_stream == 1 and settings.n_seq_max > 1
    reach = f"window {context.hparams.n_swa:,}" + (f" x n_seq_max {settings.n_seq_max}" if shared else "")
    tokens = f"n_batch {settings.n_batch:,}" if rules.windows == "batch" else f"n_ubatch {settings.n_ubatch:,}"
    if rules.cells == "context":
        return f"roundup(min({settings.n_ctx_seq:,}, {reach} + {tokens}), {CELLS})"
    return f"min({settings.n_ctx_seq:,}, roundup({reach} + {tokens}, {settings.cell_multiple}))"


class _Row(NamedTuple):
    """A row of a cache: what one cell holds. ``text`` are its factors in numbers."""

    width: int
    axis: str
    text: str


class Cells(OwnRule):
    """The cells of a stream; ``size`` is the name that :class:`~hwcalc.engines.llamacpp.settings.Settings` has for them."""

    __slots__ = ("size",)

    size: str

    def __init__(self, words: str, count: int, size: str) -> None:
        super().__init__(words, count)
        object.__setattr__(self, "size", size)

    def __reduce__(self) -> tuple[type[OwnRule], tuple[int | str, ...]]:
        return Cells, (self.words, self.numbers[0], self.size)


def _cells(context: CacheContext, name: str, role: Role, row: _Row, size: str = "n_ctx_seq") -> StoredTensor:
    """A tensor with one row for each cell of each stream. ``size`` is the name of the number of cells."""
    settings = context.settings
    cells: int = getattr(settings, size)
    words = _cells_in_words(context, size)
    dtype = settings.type_v if role is Role.VALUE else settings.type_k
    block = f"{dtype.block_bytes} B" + (f" / {dtype.block_elements}" if dtype.block_elements > 1 else "")
    streams = f"n_stream {settings.n_stream} x " if settings.n_stream > 1 else ""
    return StoredTensor(
        name=name,
        role=role,
        axes=(row.axis,),
        shape=(row.width,),
        dtype=dtype.name,
        positions=cells,
        span=Cells(words, cells, size),
        bytes=settings.n_stream * cells * dtype.row_bytes(row.width),
        rule=None if settings.n_stream == context.batch else f"{streams}{words} x {row.text} x {block}",
    )


def _attention(kind: AttentionKind, context: CacheContext) -> tuple[StoredTensor, ...]:
    """Keys and values in cells; those of layers with a window have a buffer of their own."""
    size = "n_ctx_seq" if isinstance(kind, FullAttention) else "cells_swa"
    heads, key, value = kind.num_key_value_heads, kind.head_dim, kind.v_head_dim
    keys = _Row(width=heads * key, axis="num_key_value_heads x head_dim", text=f"{heads:,} x {key:,}")
    values = _Row(width=heads * value, axis="num_key_value_heads x v_head_dim", text=f"{heads:,} x {value:,}")
    if not context.settings.flash_attn:
        values = _widest_values(context)
    return _cells(context, "keys", Role.KEY, keys, size), _cells(context, "values", Role.VALUE, values, size)


def _widest_values(context: CacheContext) -> _Row:
    """The row of values without flash attention: they lie transposed, and all layers have rows as wide as the widest."""
    width = context.hparams.n_embd_v_gqa_max
    return _Row(width=width, axis="widest values of all layers", text=f"{width:,}")


def _no_heads(kind: NoHeads, context: CacheContext) -> tuple[StoredTensor, ...]:
    values = _widest_values(context)
    nothing = context.settings.flash_attn or not values.width
    return () if nothing else (_cells(context, "values", Role.VALUE, values),)


def _latent(kind: LatentAttention, context: CacheContext) -> tuple[StoredTensor, ...]:
    """The tensor of keys alone, of which the values are a part; older builds keep the latent as values too."""
    rank, rope = kind.kv_lora_rank, kind.qk_rope_head_dim
    row = _Row(width=rank + rope, axis="kv_lora_rank + qk_rope_head_dim", text=f"({rank:,} + {rope:,})")
    size = "n_ctx_seq" if kind.window is None else "cells_swa"
    latent = _cells(context, "latent", Role.LATENT, row, size)
    if not context.settings.rules.latent_values:
        return (latent,)
    return latent, _cells(context, "latent_values", Role.VALUE, _Row(width=rank, axis="kv_lora_rank", text=f"{rank:,}"), size)


def _indexer(kind: SparseIndexer, context: CacheContext) -> tuple[StoredTensor, ...]:
    """The tensors of the indexer's cache, which has a single key head.

    Where the model's cache has values, this one has them too, and nothing reads them.
    """
    read = context.hparams
    width = kind.index_head_dim + kind.index_extra_elements
    axis = "index_head_dim + index_extra_elements" if kind.index_extra_elements else "index_head_dim"
    keys = _cells(context, "indexer_keys", Role.INDEX, _Row(width=width, axis=axis, text=f"{width:,}"))
    if read.is_mla or read.architecture.memory == "hybrid-indexer" or not read.head_v:
        return (keys,)
    values = _Row(width=read.head_v, axis="v_head_dim", text=f"{read.head_v:,}")
    return keys, _cells(context, "indexer_values", Role.VALUE, values)


def _state_tensor(context: CacheContext, name: str, role: Role, row: _Row) -> StoredTensor:
    """A state in 32-bit floats: a row for each sequence, and for each older state that is kept."""
    settings = context.settings
    older = f" x (1 + n_rs_seq {settings.n_rs_seq})" if settings.n_rs_seq else ""
    return StoredTensor(
        name=name,
        role=role,
        axes=(row.axis,),
        shape=(row.width,),
        dtype=STATE_DTYPE.name,
        positions=1 + settings.n_rs_seq,
        span=OwnRule("1 + n_rs_seq" if settings.n_rs_seq else "1", 1 + settings.n_rs_seq),
        bytes=settings.n_seq_max * (1 + settings.n_rs_seq) * STATE_DTYPE.row_bytes(row.width),
        rule=f"n_seq_max {settings.n_seq_max}{older} x {row.text} x 4 B",
    )


def ngram_state(context: CacheContext) -> tuple[StoredTensor, ...]:
    """The inputs that the layer with n-gram embeddings keeps (Qwen4-exp); its other states are as those of all recurrent layers."""
    width = context.hparams.ple_conv_state
    if not width:
        return ()
    row = _Row(width=width, axis="ple_conv_state", text=f"ple_conv_state {width:,}")
    return (_state_tensor(context, "ngram_conv_state", Role.CONV, row),)


def _state(kind: LayerKind, context: CacheContext) -> tuple[StoredTensor, ...]:
    """The rolling state and the recurrent one: ``n_embd_r`` and ``n_embd_s``, the same for every recurrent layer of a model."""
    read = context.hparams
    both = (("conv_state", Role.CONV, read.n_embd_r, "n_embd_r"), ("recurrent_state", Role.STATE, read.n_embd_s, "n_embd_s"))
    return tuple(
        _state_tensor(context, name, role, _Row(width=width, axis=axis, text=f"{axis} {width:,}"))
        for name, role, width, axis in both
        if width
    )


def _compressed(kind: CompressedAttention, context: CacheContext) -> tuple[StoredTensor, ...]:
    """The tensors of DeepSeek-V4: a window of latents, a latent for each group of tokens, and the states of the compressors."""
    width, ratio = kind.head_dim * context.hparams.n_head_kv[0], kind.compress_ratio
    latent = _Row(width=width, axis="head_dim", text=f"{width:,}")
    out = [_cells(context, "window_latent", Role.LATENT, latent, "cells_swa")]
    if ratio is None or ratio not in _COMPRESSORS:
        return tuple(out)
    slots, times = _COMPRESSORS[ratio]

    def compressor(name: str, head_dim: int) -> Iterator[StoredTensor]:
        """Values and scores of the tokens that are not compressed yet, for each stream and each older state that is kept."""
        row = _Row(width=slots * times * head_dim, axis="rows x width", text=f"{slots} x {times * head_dim:,}")
        return (_state_tensor(context, f"{name}_{part}", Role.STATE, row) for part in ("value", "gate"))

    out.append(_cells(context, "compressed_latent", Role.LATENT, latent, f"groups_of_{ratio}"))
    out += compressor("compressor", kind.head_dim)
    if kind.index_head_dim is not None:
        key = _Row(width=kind.index_head_dim, axis="index_head_dim", text=f"{kind.index_head_dim:,}")
        out.append(_cells(context, "indexer_keys", Role.INDEX, key, f"groups_of_{ratio}"))
        out += compressor("indexer", kind.index_head_dim)
    return tuple(out)


_COMPRESSORS: Final[Mapping[int, tuple[int, int]]] = {CSA_RATIO: (2 * CSA_RATIO, 2), 128: (128, 1)}
"""Ratio -> rows of the compressor's state, and how many times as wide as a latent they are (``DSV4_HCA_RATIO`` is 128)."""


def _nothing(kind: LayerKind, context: CacheContext) -> tuple[StoredTensor, ...]:
    return ()


RULES: Final[Mapping[str, LayerRule]] = MappingProxyType(
    {
        "FullAttention": _attention,
        "SlidingAttention": _attention,
        "ChunkedAttention": _attention,
        "NoHeads": _no_heads,
        "LatentAttention": _latent,
        "SparseIndexer": _indexer,
        "CompressedAttention": _compressed,
        "Mamba1": _state,
        "Mamba2": _state,
        "GatedDeltaNet": _state,
        "KimiDeltaAttention": _state,
        "LightningAttention": _state,
        "RwkvMatrix": _state,
        "ShortConvolution": _state,
        "SharedCache": _nothing,
        "NoCache": _nothing,
    }
)
"""The class of a kind -> its rule: by name, so that a plan imports only the kinds that its model has.

The layers of a file have no other kinds (:func:`hwcalc.parsers.gguf.parse.cached_layers`).
"""
