"""What the model files of mlx-lm store for one layer, and how a model is divided over machines.

The cache classes of mlx-lm, by the slots that they hold: a prompt goes in pieces, and what comes behind it token by token.

A slot holds one token. ``KVCache`` and ``ChunkedKVCache`` grow in steps of 256 slots; a ``RotatingKVCache`` joins what it keeps and
the whole next piece of a prompt, and is cut to its window by the first token that comes alone. So 2,048 tokens at once in a window of 128
take 2,048 slots, the next 2,048 take 127 + 2,048, and the token behind them 128.
Source: mlx-lm 0.32.2 models/cache.py.

``mlx_lm.load`` imports ``mlx_lm.models.<model_type>``; a model type without such a file, and without another name for one, is not supported.
``profiles/engines/mlx/classes.yaml`` says of each file what it does otherwise. Source: mlx-lm 0.32.2 utils.py and the files of models/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.models import NO_CLASS, ModelClass, model_classes
from hwcalc.engines.rank_weights import Rank, Rules, Sharding
from hwcalc.engines.stored import StoredTensor, store, store_all
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
from hwcalc.formulas.stairs import Stair, blocks_stair, stairs_at
from hwcalc.formulas.tensor import Span
from hwcalc.formulas.weights import Block, Part, Weight, Weights
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.mlx.engine import MlxOccupancy
    from hwcalc.model import ModelSpec

STEP: Final = 256
"""Slots by which a cache grows."""


def _steps(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


@lru_cache(maxsize=4096)
def grown_slots(prompt: int, single: int, piece: int) -> int:
    """Slots of a ``KVCache`` after a prompt in pieces, and ``single`` tokens that came one by one.

    >>> grown_slots(300, 0, 2048), grown_slots(100, 200, 2048), grown_slots(5000, 0, 2048)
    (512, 512, 5120)
    """
    slots = _piece_slots(prompt, piece) if piece % STEP else _steps(prompt)
    held = prompt + single
    return slots if held <= slots else slots + _steps(held - slots)


def _piece_slots(prompt: int, piece: int) -> int:
    """The slots after a prompt, for pieces that are no multiple of 256: slots that are not full are cut off before the cache grows."""
    slots = held = 0
    while held < prompt:
        # Pieces that fit into free slots change nothing.
        held += max(0, min(slots, prompt) - held) // piece * piece
        taken = min(piece, prompt - held)
        if taken and held + taken > slots:
            slots = (held if held % STEP else slots) + _steps(taken)
        held += taken
    return slots


def rotating_slots(prompt: int, single: int, piece: int, window: int) -> int:
    """Slots of a ``RotatingKVCache``. A piece of one token counts among those that come alone.

    >>> [rotating_slots(2048, 0, 2048, 128), rotating_slots(4096, 0, 2048, 128), rotating_slots(2048, 10, 2048, 128)]
    [2048, 2175, 128]
    >>> rotating_slots(100, 400, 2048, 4096)
    612
    """
    last = (prompt - 1) % piece + 1 if prompt else 0
    if last == 1:
        single += prompt if piece == 1 else 1
        prompt -= prompt if piece == 1 else 1
        last = min(prompt, piece)
    slots = min(prompt - last, window - 1) + last
    if not single:
        return slots
    return window if slots >= window else min(window, slots + _steps(single))


def chunked_slots(prompt: int, single: int, piece: int, chunk: int) -> int:
    """Slots of a ``ChunkedKVCache``: what is older than the chunk is cut off before the next piece, or the next token, comes.

    >>> chunked_slots(12288, 0, 2048, 8192), chunked_slots(12288, 5, 2048, 8192)
    (10240, 8448)
    """
    last = 1 if single else (prompt - 1) % piece + 1
    if prompt + single - last > chunk:
        return chunk + _steps(last)
    return grown_slots(prompt, single, piece)


class Pieces(Span):
    """The slots of a cache class. ``piece`` is ``prefill_step_size``, and ``prompt`` the tokens of the prompt; 0 is all."""

    __slots__ = ()

    def parts(self, tokens: int) -> tuple[int, int]:
        """The number of ``tokens`` tokens that are the prompt, and of those that came one by one."""
        prompt = min(tokens, self.numbers[1] or tokens)
        return prompt, tokens - prompt

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        if self.has_stairs:
            return stairs_at(self.stairs(), tokens)
        return self.slots(*self.parts(tokens)) if tokens > 0 else 0

    def slots(self, prompt: int, single: int) -> int:
        """The slots after a prompt and ``single`` tokens that came one by one."""
        raise NotImplementedError

    @property
    def has_stairs(self) -> bool:
        """True if :meth:`stairs` are known."""
        return False

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        """The slots behind the last whole piece of a prompt of so many tokens, none of which is left over. Only with :attr:`has_stairs`."""
        raise NotImplementedError


class Grown(Pieces):
    """Every token, in steps of 256 slots."""

    __slots__ = ()

    def slots(self, prompt: int, single: int) -> int:
        return grown_slots(prompt, single, self.numbers[0])

    @property
    def has_stairs(self) -> bool:
        return self.numbers[0] % STEP == 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (blocks_stair(STEP, times=STEP),)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], per=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"roundup(n, {STEP})" if self.numbers[0] % STEP == 0 else f"n in pieces of {self.numbers[0]:,}, in steps of {STEP}"


class Rotating(Pieces):
    """The last ``window`` tokens once one came alone; behind a prompt all of its last piece and ``window`` - 1 before it."""

    __slots__ = ()

    def slots(self, prompt: int, single: int) -> int:
        piece, _, window = self.numbers
        return rotating_slots(prompt, single, piece, window)

    @property
    def has_stairs(self) -> bool:
        piece, prompt, window = self.numbers
        return not prompt and piece > 1 and window // piece < 16

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        """The last piece, what is kept before it, and the step by which a piece of one token grows a window that is not full."""
        piece, _, window = self.numbers
        alone = min(window, STEP) - 1
        out = [Stair(), Stair(times=-piece, per=piece, add=-1), Stair(times=alone, most=1), Stair(times=-alone, per=2, most=1)]
        full, rest = divmod(window - 1, piece)
        for number in range(1, full + 1):
            held = number * piece
            out.append(Stair(times=piece, per=held + 1, most=1))
            more = min(window, held + STEP) - held - 1
            out += [Stair(times=more, per=held + 1, most=1), Stair(times=-more, per=held + 2, most=1)]
        out.append(Stair(times=rest, per=(full + 1) * piece + 1, most=1))
        return tuple(stair for stair in out if stair.times)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        piece, _, window = self.numbers
        full, rest = divmod(window - 1, piece)
        before = [Stair(times=piece, per=(number + 1) * piece, most=1) for number in range(1, full + 1)]
        last = Stair(times=rest, per=(full + 2) * piece, most=1)
        return (Stair(times=piece, per=piece, most=1), *before, *((last,) if rest else ()))

    @property
    def text(self) -> str:
        piece, prompt, window = self.numbers
        if prompt:
            return f"min(n, {window:,}) behind a prompt of {prompt:,}"
        return f"the last piece of n (of {piece:,}) and min(the rest, {window - 1:,})"


class Chunked(Pieces):
    """The newest ``chunk`` tokens and the piece behind them, in steps of 256 slots."""

    __slots__ = ()

    def slots(self, prompt: int, single: int) -> int:
        piece, _, chunk = self.numbers
        return chunked_slots(prompt, single, piece, chunk)

    @property
    def has_stairs(self) -> bool:
        piece, prompt, chunk = self.numbers
        return not prompt and piece % STEP == 0 and chunk % piece == 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        """Slots as a sum of stairs: whole steps, less one piece for each piece behind the chunk and the next one."""
        piece, _, chunk = self.numbers
        let_go = (Stair(times=-piece, per=piece, add=-1), Stair(times=piece, per=piece, add=-1, most=chunk // piece))
        return (blocks_stair(STEP, times=STEP), *let_go)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        piece, _, chunk = self.numbers
        return (Stair(times=piece, per=piece, most=chunk // piece + 1),)

    @property
    def text(self) -> str:
        return f"min(roundup(n, {STEP}), {self.numbers[2]:,} and the last piece)"


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

    def make() -> ModelSpec:
        layers = model.stack.layers
        indexers = {kind for layer in layers for kind in layer if isinstance(kind, SparseIndexer)}
        if len(indexers) != 1 or all(not indexers.isdisjoint(layer) for layer in layers):
            return model
        whole = tuple(layer if not indexers.isdisjoint(layer) else (*layer, *indexers) for layer in layers)
        return replace(model, readings={**model.readings, "mlx": Stack(whole)})

    return model.once("as mlx reads it", make)


def keeps_windows(model: ModelSpec) -> bool:
    """True if layers with a window have a ``RotatingKVCache``, and not one of every token."""
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


class Bits(NamedTuple):
    """A quantized cache: bits of a number, numbers of a group, and the tokens from which on it is quantized."""

    bits: int
    group: int
    start: int


def _kept(tensors: Iterable[CacheTensor], span: Pieces, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    stored = store_all(occupancy, (replace(tensor, span=span) for tensor in tensors))
    return stored if span.has_stairs else tuple(replace(one, position_bytes=None) for one in stored)


def _grown(tensors: Iterable[CacheTensor], occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """A ``KVCache``, whatever the layer itself would keep; a rotating one with ``max_kv_size``, which only files without a cache of their own heed."""
    deployment = occupancy.deployment
    if "max_kv_size" not in deployment.setup.options or "own_cache" in deployment.file.words:
        return _kept(tensors, Grown(*occupancy.pieces), occupancy)
    return _kept(tensors, Rotating(*occupancy.pieces, deployment.number("max_kv_size", 0)), occupancy)


def _full(kind: LayerKind, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    # Whether to quantize the cache is looked at behind each piece of the prompt, and each token.
    bits = occupancy.deployment.bits
    if bits is None or occupancy.tokens < bits.start or "listed" in occupancy.deployment.file.words:
        return _grown(kind.tensors(), occupancy)
    return _packed(kind.tensors(), bits, occupancy)


def quantized_at(occupancy: MlxOccupancy, bits: Bits) -> int:
    """The tokens of the moment at which the cache is quantized: the end of the piece in which it gets long enough."""
    step = occupancy.deployment.prefill_step
    prompt = occupancy.load.prompt_tokens
    return min(-(-max(1, bits.start) // step) * step, prompt) if bits.start <= prompt else bits.start


def _packed(tensors: Iterable[CacheTensor], bits: Bits, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    """A ``QuantizedKVCache``: numbers in words of 32 bits, and a scale and a bias of each group in the dtype of the model."""
    out: list[StoredTensor] = []
    for tensor in tensors:
        width = tensor.shape[-1]
        plain = store(occupancy, replace(tensor, span=Grown(*occupancy.pieces)))
        scale_bytes = occupancy.dtypes.roles[tensor.role].block_bytes
        # 128 numbers of 4 bits in groups of 64 with scales of 2 bytes are 64 bytes and 4; biases take as much as scales.
        data, scales = width * bits.bits // 8, width // bits.group * scale_bytes
        rows = occupancy.batch * plain.positions * tensor.elements_per_position // width
        groups = f"{rows:,} rows x {width:,} / {bits.group} groups x {scale_bytes} B"
        parts = (
            ("", f"int{bits.bits}", data, f"{rows:,} rows x {width:,} x {bits.bits} bits / 8"),
            ("_scales", plain.dtype, scales, groups),
            ("_biases", plain.dtype, scales, groups),
        )
        out += [
            replace(plain, name=tensor.name + suffix, dtype=dtype, bytes=rows * size, rule=rule, position_bytes=None)
            for suffix, dtype, size, rule in parts
        ]
    return tuple(out)


def _sliding(kind: SlidingAttention, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    if not keeps_windows(occupancy.model):
        return _full(kind, occupancy)
    before = "window_before" in occupancy.deployment.file.words
    return _kept(kind.tensors(), Rotating(*occupancy.pieces, kind.window - 1 if before else kind.window), occupancy)


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
    if "index_once" not in occupancy.deployment.file.words:
        keys = (*keys, *(replace(tensor, name=f"{tensor.name}_again") for tensor in keys))
    return _kept(keys, Grown(*occupancy.pieces), occupancy)


def _state(kind: LayerKind, occupancy: MlxOccupancy) -> tuple[StoredTensor, ...]:
    return store_all(occupancy, kind.tensors())


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
