"""What a block and a state slot take on one rank, and how LMDeploy divides weights over ranks.

PyTorch keeps all pieces of a block of one layer side by side (keys, values, their scales, the indexer's keys), each rounded up to 256 bytes; a
slot of recurrent states has the states of all layers, again in pieces of 256 bytes. TurboMind rounds nothing.

Sources: pytorch/engine/cache_engine.py (CacheDesc, CacheEngine.allocate_caches, StateCacheEngine); TurboMind of 0.14.0:
src/turbomind/models/llama/SequenceManager.cc, src/turbomind/kernels/attention/block.h. Weights are never in 32 bits; replicas divide attention
alone; PyTorch does not cut tables: pytorch/config.py (DistConfig: attn_tp is tp / dp, mlp_tp is tp), pytorch/models/{llama,qwen3,deepseek_v2}.py,
turbomind/builders/text_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from hwcalc.engines.models import model_classes
from hwcalc.engines.rank_weights import GroupRank, Rank, Rules
from hwcalc.engines.stored import check_heads
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    FullAttention,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    NoCache,
    Role,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.formats import BF16, FLOATS, FP16, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.settings import KvFormat, LmdeploySettings
    from hwcalc.engines.setup import Parallel
    from hwcalc.model import ModelSpec

_ALIGNMENT: Final = 256
_SPARSE_ROW: Final = 656
"""Bytes of a token in FlashMLA's fp8 rows: 512 numbers, four scales in fp32, and 64 rotary numbers in 16 bits."""
_INDEX_SCALE: Final = 4
_ITEM: Final = 2
"""Bytes of a number of the model's dtype, which is bf16 or fp16."""
_SHARED_KEY: Final = 576
"""The width of a key at which TurboMind stores no values: a latent, and its rotary key."""
_ATTENTION: Final = (FullAttention, SlidingAttention, ChunkedAttention)
KINDS: Final[frozenset[type[LayerKind]]] = frozenset({*_ATTENTION, LatentAttention, SparseIndexer, GatedDeltaNet, NoCache})
"""The kinds of layers that have a rule here."""


class Piece(NamedTuple):
    """One tensor of a layer: bytes of a block, or of a state slot, on one rank. Without a ``dtype`` it is in that of the model."""

    name: str
    role: Role
    dtype: str
    bytes: int


class Shape(Record):
    """The heads of a layer on one rank, and the widths of a key and of a value; ``index_dim`` is that of an indexer's key, or 0."""

    heads: int
    key: int
    value: int
    index_dim: int = 0


class PoolLayout(Record):
    """The pool of one rank. ``layers`` have ``pieces`` each; ``states`` are those of one of ``state_layers``, without padding."""

    layers: int
    pieces: tuple[Piece, ...]
    state_layers: int
    states: tuple[Piece, ...]
    alignment: int
    index_apart: bool
    """Whether each layer has an indexer, so that its keys are shown as its own."""

    @property
    def layer_bytes(self) -> int:
        """A block of one layer."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def block_bytes(self) -> int:
        """A block of all layers."""
        return self.layers * self.layer_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of recurrent states, for all layers."""
        return sum(aligned(self.state_layers * piece.bytes, self.alignment) for piece in self.states)


def aligned(size: int, alignment: int = _ALIGNMENT) -> int:
    """Round up to a multiple of the alignment.

    >>> aligned(257)
    512
    """
    return -(-size // alignment) * alignment


def pytorch_pieces(shape: Shape, form: KvFormat, block: int, kernel_block: int, *, sparse: bool = False) -> tuple[Piece, ...]:
    """The pieces of a block of one layer in PyTorch, each rounded up in every kernel block of it.

    Llama-3.1-8B in int8: keys 64 x 8 x 128 = 65,536 bytes and their scales 64 x 8 x 2 x 2 = 2,048, and as much for values.
    """
    rows, times, latent = kernel_block * shape.heads, block // kernel_block, not shape.value
    if sparse:
        parts = [("latent", Role.LATENT, "fp8_ds_mla", rows * _SPARSE_ROW)]
        if shape.index_dim:
            parts.append(("indexer_keys", Role.INDEX, "fp8_e4m3", kernel_block * shape.index_dim))
            parts.append(("indexer_scales", Role.INDEX, "fp32", kernel_block * _INDEX_SCALE))
    else:
        name, scales, role = ("latent", "latent_scales", Role.LATENT) if latent else ("keys", "key_scales", Role.KEY)
        parts = [
            (name, role, form.spelled, rows * _width(shape.key, form.key_bits)),
            ("values", Role.VALUE, form.spelled, rows * _width(shape.value, form.value_bits)),
            (scales, role, "", rows * form.key_scales * _ITEM),
            # There are scales of values even where a latent has none.
            ("value_scales", Role.VALUE, "", rows * form.value_scales * _ITEM),
        ]
    return tuple(Piece(name, role, dtype, times * aligned(size)) for name, role, dtype, size in parts if size)


def _width(numbers: int, bits: int | None) -> int:
    """Bytes of the numbers of one head, packed into whole bytes."""
    if bits is None:
        return numbers * _ITEM
    if numbers * bits % 8:
        raise UnsupportedError(
            f"LMDeploy cannot pack a head of {numbers:,} numbers in {bits} bits.", hint="Use --dtype int8, fp8 or auto"
        )
    return numbers * bits // 8


def turbomind_pieces(shape: Shape, form: KvFormat, block: int) -> tuple[Piece, ...]:
    """The pieces of a block of one layer in TurboMind, with two numbers of 16 bits for each quantised row."""
    rows = block * shape.heads
    shared = shape.key == _SHARED_KEY
    bits = form.key_bits or 8 * _ITEM
    data, scales = rows * (shape.key * bits // 8), rows * form.key_scales * _ITEM
    key, role = ("latent", Role.LATENT) if shared else ("keys", Role.KEY)
    parts = [(key, role, form.spelled, data), (f"{key.removesuffix('s')}_scales", role, "", scales)]
    if not shared:
        parts += [("values", Role.VALUE, form.spelled, data), ("value_scales", Role.VALUE, "", scales)]
    return tuple(Piece(*part) for part in parts if part[3])


def plan_layout(model: ModelSpec, settings: LmdeploySettings, parallel: Parallel) -> PoolLayout:
    """The pool of one rank. Raises an error for layers that LMDeploy does not run, or that it cannot divide."""
    groups = model.stack_for("lmdeploy").groups
    index = max((group.kind.index_head_dim for group in groups if isinstance(group.kind, SparseIndexer)), default=0)
    shapes: dict[Shape, int] = {}
    states: dict[tuple[Piece, ...], int] = {}
    for group in groups:
        if isinstance(group.kind, GatedDeltaNet):
            pieces = _state_pieces(group.kind, settings, parallel.tp)
            states[pieces] = states.get(pieces, 0) + group.count
        elif not isinstance(group.kind, (SparseIndexer, NoCache)):
            shape = _shape(model, group.kind, parallel.tp, index)
            shapes[shape] = shapes.get(shape, 0) + group.count
    if len(shapes) != 1 or len(states) > 1:
        raise UnsupportedError(
            f"LMDeploy keeps layers of one shape: {model.id} has {len(shapes)} shapes of attention and {len(states)} of states.",
            hint="Use: --engine vllm, or --engine reference",
        )
    ((shape, layers),) = shapes.items()
    if index and not shape.index_dim:
        message = f"LMDeploy has indexers beside latents alone, which {model.id} does not have."
        raise UnsupportedError(message, hint="Use: --engine vllm, or --engine reference")
    if settings.pytorch:
        pieces = pytorch_pieces(shape, settings.form, settings.block_size, settings.kernel_block_size, sparse=settings.sparse)
    else:
        pieces = turbomind_pieces(shape, settings.form, settings.block_size)
    state, state_layers = next(iter(states.items()), ((), 0))
    indexers = sum(group.count for group in groups if isinstance(group.kind, SparseIndexer))
    return PoolLayout(
        layers=layers,
        pieces=pieces,
        state_layers=state_layers,
        states=state,
        alignment=_ALIGNMENT if settings.pytorch else 1,
        index_apart=indexers == layers,
    )


def _shape(model: ModelSpec, kind: LayerKind, tp: int, index: int) -> Shape:
    if isinstance(kind, LatentAttention) and kind.window is None:
        check_heads("LMDeploy", kind, tp)
        if "expanded" in model_classes("lmdeploy").row(model).words:
            width = kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return Shape(heads=kind.num_attention_heads // tp, key=width, value=width)
        # One head, which LMDeploy repeats for every rank.
        return Shape(heads=1, key=kind.kv_lora_rank + kind.qk_rope_head_dim, value=0, index_dim=index)
    if isinstance(kind, _ATTENTION) and kind.head_dim == kind.v_head_dim:
        check_heads("LMDeploy", kind, tp)
        # With more ranks than heads each is repeated.
        return Shape(heads=max(1, kind.num_key_value_heads // tp), key=kind.head_dim, value=kind.v_head_dim)
    what = "a latent with a window" if isinstance(kind, LatentAttention) else "values of another width than keys"
    raise UnsupportedError(f"There is no rule for {what} in LMDeploy.", hint="Use: --engine vllm, or --engine reference")


def _state_pieces(kind: GatedDeltaNet, settings: LmdeploySettings, tp: int) -> tuple[Piece, ...]:
    """The states of one layer. The convolution keeps d_conv columns, one more than it needs."""
    for heads in (kind.num_key_heads, kind.num_value_heads):
        if heads % tp:
            raise UsageError(f"LMDeploy cannot split {heads} linear heads over tp {tp}.", hint="Use a tp that divides them.")
    columns = kind.conv_dim // tp * kind.d_conv
    numbers = kind.num_value_heads // tp * kind.key_head_dim * kind.value_head_dim
    wide = 2 if settings.state_dtype == "fp32" else 1
    return (
        Piece("conv_state", Role.CONV, settings.model_dtype, columns * _ITEM),
        Piece("recurrent_state", Role.STATE, settings.state_dtype, numbers * _ITEM * wide),
    )


def kept_by(layout: PoolLayout, kind: LayerKind) -> Iterable[Piece]:
    """The pieces of a layer of this kind. Every layer has an indexer's keys, also one that shares the indexer of another."""
    if isinstance(kind, GatedDeltaNet):
        return layout.states
    if isinstance(kind, NoCache):
        return ()
    if isinstance(kind, SparseIndexer) or layout.index_apart:
        indexed = isinstance(kind, SparseIndexer)
        return [piece for piece in layout.pieces if layout.index_apart and (piece.role is Role.INDEX) is indexed]
    return layout.pieces


class _Pytorch(GroupRank):
    """Every rank has the whole embedding and head, but for the embedding of DeepSeek's classes, which is cut by rows."""

    def ranks(self, block: Block, weight: Weight) -> int:
        if not self.is_vocabulary(weight):
            return super().ranks(block, weight)
        latent = any(isinstance(group.kind, LatentAttention) for group in self.model.stack.groups)
        return self.tp if latent and weight.role is WeightRole.EMBEDDING else 1


class _TurbomindRules(Rules):
    engine: ClassVar[str] = "lmdeploy"
    rank: ClassVar[type[Rank]] = GroupRank

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """bf16 or fp16: what is published in fp32 is loaded in fp16 (pytorch/config.py _update_torch_dtype)."""
        dtype = FLOATS.get(weight_dtype or model.dtype or "", BF16)
        return FP16 if dtype.bits > BF16.bits else dtype


class _PytorchRules(_TurbomindRules):
    rank: ClassVar[type[Rank]] = _Pytorch


PYTORCH_WEIGHTS: Final = _PytorchRules()
TURBOMIND_WEIGHTS: Final = _TurbomindRules()
