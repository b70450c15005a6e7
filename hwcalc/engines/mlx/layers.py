"""What the model files of mlx-lm store for one layer, and how a model is divided over machines.

``mlx_lm.load`` imports ``mlx_lm.models.<model_type>``; a model type without such a file, and without another name for one, is not supported.
``profiles/engines/mlx/classes.yaml`` says of each file what it does otherwise. Source: mlx-lm 0.32.2 utils.py and the files of models/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.mlx.slots import Chunked, Grown, Pieces, Rotating
from hwcalc.engines.models import NO_CLASS, ModelClass, model_classes
from hwcalc.engines.rank_weights import Rank, Rules, Sharding
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import (
    CacheTensor,
    ChunkedAttention,
    ExpandedLatentAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    RealGatedLRU,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    SparseIndexer,
    Stack,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, Weights
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.mlx.deployment import MlxOccupancy
    from hwcalc.model import ModelSpec

LayerRule = Callable[..., tuple[StoredTensor, ...]]


def file_of(model: ModelSpec) -> ModelClass:
    """The model file that runs a model, and what is said of it. Raises :class:`~hwcalc.errors.UnsupportedError` if there is none."""
    classes = model_classes("mlx")
    classes.check(model)
    if model.model_type == "bailing_hybrid" and "BailingMoeV3ForCausalLM" in (model.architecture or ""):
        return classes.rows["bailing_moe_v3"]
    row = classes.row(model)
    if row is NO_CLASS:
        raise classes.refusal("unknown", model.model_type)
    return row


def as_read(model: ModelSpec) -> ModelSpec:
    """The model with the layers that its file builds, where those are not the config's."""
    if "indexed_everywhere" not in file_of(model).words:
        return model
    return model.once("as mlx reads it", lambda: _indexed(model))


def _indexed(model: ModelSpec) -> ModelSpec:
    layers = model.stack.layers
    indexers = {kind for layer in layers for kind in layer if isinstance(kind, SparseIndexer)}
    if len(indexers) != 1 or all(not indexers.isdisjoint(layer) for layer in layers):
        return model
    whole = tuple(layer if not indexers.isdisjoint(layer) else (*layer, *indexers) for layer in layers)
    return replace(model, readings={**model.readings, "mlx": Stack(whole)})


def keeps_windows(model: ModelSpec) -> bool:
    """Whether layers with a window have a ``RotatingKVCache``, and not one of every token."""
    words = file_of(model).words
    if "windows_by_layer_types" not in words:
        return "windowed" in words
    kinds = [group.kind for group in model.stack.groups if isinstance(group.kind, AttentionKind)]
    return any(not isinstance(kind, SlidingAttention) for kind in kinds)


def other_windows(model: ModelSpec) -> str | None:
    """The ``sliding_window_pattern`` by which a file has windows on other layers than the config; ``None`` if they are the same."""
    words = file_of(model).words
    if "window_pattern" not in words:
        return None
    text = model.config.get("text_config")
    named = (text if isinstance(text, Mapping) else model.config).get("sliding_window_pattern")
    pattern: object = int(words["window_pattern"]) if named is None else named
    local = [any(isinstance(kind, SlidingAttention) for kind in layer) for layer in model.stack.layers]
    if isinstance(pattern, str) and pattern:
        windows = [pattern[number % len(pattern)] == "L" for number in range(len(local))]
    elif isinstance(pattern, int) and pattern > 0:
        windows = [(number + 1) % pattern != 0 for number in range(len(local))]
    else:
        windows = [False] * len(local)
    return None if windows == local else brief(str(pattern), 40) if pattern else "missing"


def window_kept(model: ModelSpec, window: int) -> int:
    """The slots of a ``RotatingKVCache`` for a layer with this window."""
    return window - 1 if "window_before" in file_of(model).words else window


class Bits(Record):
    """A quantized cache: bits of a number, numbers of a group, and the tokens from which on it is quantized."""

    bits: int
    group: int
    start: int

    def row_bytes(self, width: int, scale_bytes: int) -> tuple[int, int]:
        """Bytes of the packed numbers of a row of so many, and of its scales; its biases take as much as those.

        128 numbers of 4 bits in groups of 64 with scales of 2 bytes are 64 bytes and 4.
        """
        return width * self.bits // 8, width // self.group * scale_bytes


def _kept(tensors: Iterable[CacheTensor], span: Pieces, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    stored = occupancy.store_all(replace(tensor, span=span) for tensor in tensors)
    return stored if span.has_stairs else tuple(replace(one, position_bytes=None) for one in stored)


def _grown(tensors: Iterable[CacheTensor], occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """A ``KVCache``, whatever the layer itself would keep; a rotating one with ``max_kv_size``, which only files without a cache of their own heed."""
    window = occupancy.deployment.max_kv_size
    span = Grown(*occupancy.pieces) if window is None else Rotating(*occupancy.pieces, window)
    return _kept(tensors, span, occupancy)


def _full(kind: LayerKind, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    bits = occupancy.deployment.bits
    if bits is None or not _is_quantized(occupancy, bits) or "listed" in occupancy.deployment.file.words:
        return _grown(kind.tensors(), occupancy)
    return _packed(kind.tensors(), bits, occupancy)


def _is_quantized(occupancy: MlxOccupancy, bits: Bits) -> bool:
    """Whether the cache has been quantized by the planned moment: it is looked at behind each piece of the prompt, and each token."""
    return occupancy.tokens >= bits.start


def quantized_at(occupancy: MlxOccupancy, bits: Bits) -> int:
    """The tokens of the moment at which the cache is quantized: the end of the piece in which it gets long enough."""
    step, _ = occupancy.pieces
    prompt = occupancy.request.prompt_tokens
    return min(-(-max(1, bits.start) // step) * step, prompt) if bits.start <= prompt else bits.start


def _packed(tensors: Iterable[CacheTensor], bits: Bits, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """A ``QuantizedKVCache``: numbers in words of 32 bits, and a scale and a bias of each group in the dtype of the model."""
    out: list[StoredTensor] = []
    for tensor in tensors:
        plain = occupancy.store(replace(tensor, span=Grown(*occupancy.pieces)))
        scale_bytes = occupancy.dtypes.roles[tensor.role].block_bytes
        data, scales = bits.row_bytes(tensor.shape[-1], scale_bytes)
        rows = occupancy.batch * plain.positions * tensor.elements_per_position // tensor.shape[-1]
        groups = f"{tensor.shape[-1]:,} / {bits.group} groups x {scale_bytes} B"
        parts = (
            ("", f"int{bits.bits}", data, f"{rows:,} rows x {tensor.shape[-1]:,} x {bits.bits} bits / 8"),
            ("_scales", plain.dtype, scales, f"{rows:,} rows x {groups}"),
            ("_biases", plain.dtype, scales, f"{rows:,} rows x {groups}"),
        )
        out += [
            replace(plain, name=tensor.name + suffix, dtype=dtype, bytes=rows * size, rule=rule, position_bytes=None)
            for suffix, dtype, size, rule in parts
        ]
    return tuple(out)


def _sliding(kind: SlidingAttention, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    if not keeps_windows(occupancy.model):
        return _full(kind, occupancy)
    return _kept(kind.tensors(), Rotating(*occupancy.pieces, window_kept(occupancy.model, kind.window)), occupancy)


def _chunked(kind: ChunkedAttention, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    if "chunked" not in occupancy.deployment.file.words:
        return _full(kind, occupancy)
    return _kept(kind.tensors(), Chunked(*occupancy.pieces, kind.chunk), occupancy)


def _latent(kind: LatentAttention, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """The latent as keys and the rotary key as values, of one head; a file from before that keeps what the latent expands to."""
    if "expanded" in occupancy.deployment.file.words:
        return _full(kind.expanded(), occupancy)
    return _grown(kind.tensors(), occupancy)


def _indexer(kind: SparseIndexer, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """The keys of an indexer, stored twice: ``update_and_fetch(k, k)`` stores them as values too."""
    keys = kind.tensors()
    twice = (
        ()
        if "index_once" in occupancy.deployment.file.words
        else tuple(replace(tensor, name=f"{tensor.name}_again") for tensor in keys)
    )
    return _kept((*keys, *twice), Grown(*occupancy.pieces), occupancy)


def _state(kind: LayerKind, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    return occupancy.store_all(kind.tensors())


RULES: Final[Mapping[type[LayerKind], LayerRule]] = MappingProxyType(
    {
        FullAttention: _full,
        SlidingAttention: _sliding,
        ChunkedAttention: _chunked,
        LatentAttention: _latent,
        ExpandedLatentAttention: _full,
        SparseIndexer: _indexer,
        Mamba1: _state,
        Mamba2: _state,
        GatedDeltaNet: _state,
        KimiDeltaAttention: _state,
        LightningAttention: _state,
        ShortConvolution: _state,
        RealGatedLRU: _state,
        RwkvMatrix: _state,
        SharedCache: _state,
        NoCache: _state,
    }
)


class MlxRank(Rank):
    """``shard`` cuts attention and MLP; embedding and head are on every machine."""

    def how(self, block: Block, weight: Weight) -> Sharding:
        return "whole" if self.is_vocabulary(weight) else super().how(block, weight)


class MlxRules(Rules):
    """The rules of mlx-lm 0.32.2: ``shard`` of the model files, and ``PipelineMixin``."""

    engine: ClassVar[str] = "mlx"
    rank: ClassVar[type[Rank]] = MlxRank
    gathers_logits: ClassVar[bool] = True

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        """Rank 0 has the last layers, and low ranks get the extra ones: 7 layers on 3 machines are 2, 2 and 3 (models/pipeline.py)."""
        base, extra = divmod(layers, pp)
        sizes = [base + (rank < extra) for rank in reversed(range(pp))]
        starts = [sum(sizes[:stage]) for stage in range(pp)]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))

    def loaded_blocks(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        """The blocks of the language model alone: ``sanitize`` drops all others."""
        return (block for block in super().loaded_blocks(model, weights, pp) if block.part is Part.LANGUAGE)


MLX: Final = MlxRules()
