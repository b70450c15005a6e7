"""What an engine stores for a request: tensors and their formats, what sequences have in common, and what a rank has of it.

Every request has ``branches`` sequences behind one prompt, and all requests begin with the same prefix. An engine that shares keeps three
runs of tokens: the prefix once, the rest of a prompt once for a request, and what is generated for each sequence. :class:`Together` counts
the tokens that are kept once, and the blocks of them.

By the general rule, which ranks and pipeline stages follow here, each layer has its own tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.steps import Step, step
from hwcalc.errors import UsageError
from hwcalc.formulas import DType, LatentAttention, LayerKind, Role
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Encoder, Kept, Once, Span
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas.hybrid import Group
    from hwcalc.formulas.tensor import CacheTensor

T = TypeVar("T")


class Dtypes(Record):
    """The format of each role. ``kv`` spells the formats of keys and values as in ``--dtype``."""

    kv: str
    roles: Mapping[Role, DType]

    @property
    def state(self) -> str:
        """The format of recurrent states."""
        return self.roles[Role.STATE].name


class Run(Struct, frozen=True):
    """The positions of a sequence from ``start`` to before ``end``, and the number of copies that are stored."""

    start: int
    end: int
    copies: int

    @property
    def positions(self) -> int:
        """The positions of all copies."""
        return (self.end - self.start) * self.copies

    def on_rank(self, ranks: int) -> int:
        """The positions of all copies on the first of ``ranks`` ranks, over which positions are dealt one by one; the first has most."""
        return (-(-self.end // ranks) - -(-self.start // ranks)) * self.copies


class StoredTensor(Record):
    """One tensor of one layer as the engine stores it for the whole batch.

    ``shape`` is the shape of one position, and ``positions`` how many one sequence keeps. ``bytes`` is exact for all sequences of the
    batch, with padding and scales; a tensor that exists only once is counted once. ``rule`` explains the bytes in words and numbers
    if they are not the product of shape and positions. ``position_bytes`` are those of a position of one sequence, with the whole tensor
    for a position if it exists only ``once``; ``None`` if the bytes are no such product.
    """

    name: str
    role: Role
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    positions: int
    span: Span
    bytes: int
    rule: str | None = None
    position_bytes: int | None = None
    once: bool = False
    runs: tuple[Run, ...] = ()
    """The positions of all sequences, where some are kept once for several of them."""
    why: str | None = None
    """Why the engine keeps other bytes than the formulas, in a few words; ``None`` where positions and formats say it."""


def beside_layers(name: str, size: int, rule: str, why: str) -> StoredTensor:
    """Bytes that belong to no layer: ``rule`` says how many they are, ``why`` what for."""
    axes, shape, span = ("bytes",), (size,), Once()
    return StoredTensor(
        name=name, role=Role.KEY, axes=axes, shape=shape, dtype="int8", positions=1, span=span, bytes=size, rule=rule, why=why
    )


def bytes_of(tensors: Iterable[StoredTensor]) -> int:
    """The bytes of all tensors."""
    return sum(tensor.bytes for tensor in tensors)


NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class Together(Record):
    """The sequences that are alive at once, as an engine keeps them.

    ``lengths`` has the tokens of requests, longest first, and how many requests have so many. ``prefix`` and ``prompt`` are 0 in
    an engine that shares nothing; where it ``forks``, the branches of a request have its prompt once. ``replicas`` have a copy of
    the prefix each; the branches of a request are ``scattered`` over so many of them.
    """

    lengths: tuple[tuple[int, int], ...]
    branches: int = 1
    prefix: int = 0
    prompt: int = 0
    replicas: int = 1
    scattered: int = 1
    forks: bool = False

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(count for _, count in self.lengths)

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.requests * self.branches

    @property
    def unlike(self) -> bool:
        """True if the sequences are more than so many times one sequence."""
        return bool(self.prefix) or self.forks or len(self.lengths) > 1

    @property
    def copies(self) -> int:
        """Replicas that have a request, and with it the prefix."""
        return min(self.replicas, self.requests * self.prompts)

    @property
    def prompts(self) -> int:
        """Copies of the prompt of a request: one on each replica that has a branch of it."""
        return min(self.branches, self.scattered)

    @property
    def common_tokens(self) -> tuple[int, int]:
        """Tokens that all sequences have in common, and those that the branches of a request have, as far as they are kept once."""
        longest = self.lengths[0][0]
        prefix = min(self.prefix, longest)
        return prefix, max(prefix, min(self.prompt, longest)) if self.forks else prefix

    def runs(self, span: Span, encoder_tokens: int = 0, alike: Mapping[int, int] = NOTHING) -> tuple[Run, ...]:
        """The positions of one tensor. ``alike`` says how many of the tokens that a policy leaves all branches of a request share."""
        if isinstance(span, Encoder):
            copies = self.prompts if self.forks else self.branches
            return tuple(Run(0, span.positions(tokens, encoder_tokens), count * copies) for tokens, count in self.lengths)
        own: list[Run] = []
        shared = 0
        for tokens, count in self.lengths:
            # Positions of the prefix, and of the whole prompt.
            prefix, prompt = min(self.prefix, tokens), min(self.prompt if self.forks else self.prefix, tokens)
            if isinstance(span, Kept):
                (kept,) = span.numbers
                prefix = min(prefix, kept)
                prompt = max(prefix, min(kept, tokens, alike.get(kept, 0)) if self.forks else 0)
            else:
                prefix, prompt = span.of_first(prefix, tokens), span.of_first(max(prefix, prompt), tokens)
            shared = max(shared, prefix)
            end = span.positions(tokens, encoder_tokens)
            own += [Run(prefix, prompt, count * self.prompts), Run(prompt, end, count * self.branches)]
        return tuple(run for run in (Run(0, shared, self.copies), *own) if run.end > run.start)


class Blocks(Struct, frozen=True):
    """Blocks of a sequence in one block table: ``whole`` of all its tokens, the ``most`` that it holds at once, those that only have tokens
    of the ``prefix``, and those that only have tokens of the ``prompt``.
    """

    whole: int
    most: int
    prefix: int
    prompt: int


class Part(Struct, frozen=True):
    """Requests of one length: the blocks of a prompt behind the prefix, of which there are so many ``prompts``, and the ``own`` blocks of
    each of the ``sequences``.
    """

    request: int
    prompts: int
    own: int
    sequences: int


class Held(Struct, frozen=True):
    """Blocks of one block table: ``shared`` blocks of the prefix, of which there are so many ``copies``, and those of each length."""

    shared: int
    copies: int
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """The blocks of all sequences."""
        behind = sum(part.prompts * part.request + part.sequences * part.own for part in self.parts)
        return self.shared * self.copies + behind


def held_blocks(lengths: Iterable[tuple[Blocks, int, int]], copies: int) -> Held:
    """The blocks of requests: for each length the blocks of a sequence, how many copies of a prompt there are, and how many sequences.

    A layer with a window holds fewer blocks than a sequence has, and those of a long prefix are not among them: then less is held where
    nothing is kept once.
    """
    given = tuple(lengths)
    ways = []
    for by_all, by_request in ((True, True), (False, True), (True, False), (False, False)):
        shared = min(blocks.prefix for blocks, *_ in given) if by_all else 0
        parts = []
        for blocks, prompts, sequences in given:
            common = max(shared, blocks.prompt if by_request else 0)
            parts.append(Part(common - shared, prompts, min(blocks.most, blocks.whole - common), sequences))
        ways.append(Held(shared, copies, tuple(parts)))
    return min(ways, key=lambda held: held.total)


class SharedBlocks(Record):
    """Blocks of one group of layers: ``shared`` of the prefix, which lie ``copies`` times in the pools; those of each ``request`` behind it;
    the ``own`` ones of each sequence; the ``copied`` ones, which have the same tokens as those of another branch; and ``total`` of all.
    """

    kind: str
    block_size: int
    shared: int
    copies: int
    request: int
    own: int
    copied: int
    total: int
    steps: tuple[Step, ...] = ()


class InCommon(Struct, frozen=True):
    """What is kept once: ``prefix`` tokens for all sequences, and ``prompt`` for the branches of a request; of the longest, before windows
    cut it. ``blocks`` are those of each group of layers, where the engine keeps what is alike in whole blocks.
    """

    prefix: int
    prompt: int
    blocks: tuple[SharedBlocks, ...] = ()


def blocks_in_common(kind: str, block_size: int, held: Held, together: Together, *, ranks: int = 1) -> SharedBlocks:
    """The blocks that a group holds, and how they come about where all requests are alike; so many ranks divide the tokens of a block."""
    first, kept = held.parts[0], held.shared + held.parts[0].request
    # Where a branch finds blocks of its prompt, it has the others for itself, though their tokens are the same.
    prompt = -(-min(together.prompt, together.lengths[0][0]) // (block_size * ranks))
    missed = max(0, prompt - kept) if kept and together.forks else 0
    counted = step(
        "blocks",
        "copies x shared_blocks + prompts x request_blocks + sequences x own_blocks",
        held.total,
        unit="blocks",
        copies=held.copies,
        shared_blocks=held.shared,
        prompts=first.prompts,
        request_blocks=first.request,
        sequences=first.sequences,
        own_blocks=first.own,
    )
    return SharedBlocks(
        kind=kind,
        block_size=block_size,
        shared=held.shared,
        copies=held.copies,
        request=first.request,
        own=first.own,
        copied=min(missed, first.own) * sum(part.sequences - part.prompts for part in held.parts),
        total=held.total,
        steps=(counted,) if len(held.parts) == 1 else (),
    )


def words_of(runs: Iterable[Run]) -> str:
    """The positions of all sequences in numbers: how many copies of how many."""
    return " + ".join(
        f"{run.copies:,} x {run.end - run.start:,}" if run.copies > 1 else f"{run.end - run.start:,}" for run in runs
    )


class OwnRule(Span):
    """A number of positions that an engine computes for one request by its own rule, with the rule in words. It has no stairs."""

    __slots__ = ("words",)

    words: str

    def __init__(self, words: str, count: int) -> None:
        super().__init__(count)
        object.__setattr__(self, "words", words)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, OwnRule) and other.words == self.words

    def __hash__(self) -> int:
        return hash((type(self), self.numbers, self.words))

    def __reduce__(self) -> tuple[type[OwnRule], tuple[int | str, ...]]:
        """The function and arguments that copy it and write it to a pickle."""
        return OwnRule, (self.words, self.numbers[0])

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        return self.numbers[0]

    @property
    def text(self) -> str:
        return self.words


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Support(Record):
    """Whether an engine has a policy, and how; or what it would take."""

    offered: bool
    how: str
    options: Mapping[str, str] = _NOTHING
    """Engine options with which an offered policy is started."""
    flags: tuple[str, ...] = ()
    """Further words of its command line."""
    environment: tuple[str, ...] = ()
    """Variables with their values that it reads."""


class PagedGroup(Record):
    """Layers that share one block table. ``layers`` are the numbers of those that the policy cuts, and ``whole`` says that these are all.

    ``block_size`` counts tokens on all ranks together, and ``page_bytes`` is a block of all its layers on one rank. ``counted`` says how
    many blocks a sequence has at the most behind its prompt. ``prompt_tokens`` are the most of a prompt that lie in it, where a prompt is
    cut while it is read; ``None`` is all of them.
    """

    block_size: int
    layers: tuple[int, ...]
    whole: bool
    page_bytes: int
    counted: Step
    prompt_tokens: int | None = None

    @property
    def steady(self) -> int:
        """The most blocks of a sequence behind its prompt."""
        return int(self.counted.expected)


DEALT = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE})
"""Roles whose tokens decode context parallelism divides over ranks. States and indexer keys are whole on every rank."""


def store(occupancy: Occupancy, tensor: CacheTensor, *, dtype: DType | None = None) -> StoredTensor:
    """Store a tensor by the general rule: once per sequence, rows padded to whole blocks of the dtype, positions by the span.

    ``dtype`` overrides the dtype of the role.
    """
    chosen = dtype or occupancy.dtypes.roles[tensor.role]
    kept = tensor.span.positions(occupancy.tokens, occupancy.encoder_tokens)
    runs: tuple[Run, ...] = ()
    if occupancy.together.unlike:
        alike = NOTHING if occupancy.evicted is None else occupancy.evicted.alike
        runs = occupancy.together.runs(tensor.span, occupancy.encoder_tokens, alike)
    total = sum(run.positions for run in runs) if runs else occupancy.batch * kept
    position_bytes = tensor.bytes_per_position(chosen)
    return StoredTensor(
        name=tensor.name,
        role=tensor.role,
        axes=tensor.axes,
        shape=tensor.shape,
        dtype=chosen.name,
        positions=kept,
        span=tensor.span,
        bytes=total * position_bytes,
        rule=f"({words_of(runs)}) x {position_bytes:,} B" if runs else None,
        position_bytes=position_bytes,
        runs=runs,
    )


def store_all(occupancy: Occupancy, tensors: Iterable[CacheTensor]) -> tuple[StoredTensor, ...]:
    """Store several tensors by the general rule."""
    return tuple(store(occupancy, tensor) for tensor in tensors)


def of_stack(occupancy: Occupancy, key: Hashable, make: Callable[[], T]) -> T:
    """The result of ``make``, which depends on the layers alone: the model keeps it, unless a policy changes them."""
    return occupancy.model.once(key, make) if occupancy.evicted is None else make()


def fullest_stage(occupancy: Occupancy) -> int:
    """The pipeline stage whose ranks hold most; the first one if several hold as much."""
    stages = range(occupancy.setup.parallel.pp)
    sizes = [sum(allocation.bytes for allocation in occupancy.allocation(stage)) for stage in stages]
    return sizes.index(max(sizes))


def fullest_rank_bytes(opened: Occupancy, gpus: Iterable[tuple[Group, ...]]) -> int:
    """Bytes of cache on the fullest of ``gpus``: its shard of each of its layers, for the sequences of its replica.

    Llama-3.1-8B, four tokens in bf16, tp 2 and pp 2: 16 layers x 4 tokens x 4 heads x 256 x 2 bytes = 131,072, a quarter of all.
    """
    size = {kind: rank_bytes_of(opened, tensors) for kind, tensors in opened.rank_tensors.items()}
    fullest = max(sum(group.count * size[group.kind] for group in groups) for groups in gpus)
    return fullest + bytes_of(opened.replica.extras)


def stage_groups(opened: Occupancy) -> tuple[tuple[Group, ...], ...]:
    """The layers of each pipeline stage, by kind. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers."""
    stack, spans = opened.stack, stage_spans(opened)
    if len(spans) == 1:
        return (stack.groups,)
    key = (opened.engine.name, "groups of stages", len(spans))
    return of_stack(opened, key, lambda: tuple(map(stack.groups_of, spans)))


def stage_spans(opened: Occupancy) -> tuple[range, ...]:
    """The layers of each pipeline stage. Raises :class:`~hwcalc.errors.UsageError` for more stages than layers."""
    stages, layers = opened.setup.parallel.pp, len(opened.deployment.plain_stack)
    if stages > layers:
        raise UsageError(f"pp {stages:,} is more than the model's {layers:,} layers.", hint="Use a smaller pp.")
    return (range(layers),) if stages == 1 else tuple(opened.deployment.weight_rules().spans(layers, stages))


def rank_bytes_of(opened: Occupancy, tensors: Iterable[StoredTensor]) -> int:
    """The bytes of these tensors of a tensor-parallel rank, with its share of the tokens."""
    return sum(rank_share(tensor, opened.setup.parallel.dcp) for tensor in tensors)


def rank_share(tensor: StoredTensor, dcp: int) -> int:
    """Bytes of a tensor on the rank with most of its tokens: with seven tokens on two ranks, that is four tokens."""
    if dcp == 1 or tensor.role not in DEALT or not tensor.positions:
        return tensor.bytes
    if tensor.runs:
        return tensor.bytes // sum(run.positions for run in tensor.runs) * sum(run.on_rank(dcp) for run in tensor.runs)
    return tensor.bytes // tensor.positions * -(-tensor.positions // dcp)


_TORCH_NAMES: Final = {"fp8": "fp8_e4m3"}


def allocations_of(opened: Occupancy, numbers: Iterable[int], *, extras: bool = True) -> tuple[Allocation, ...]:
    """The stored tensors of the layers with these numbers on one tensor-parallel rank, and those that belong to no layer.

    ``tp`` divides heads, ``dp`` sequences, and ``dcp`` the tokens of attention. What does not divide evenly is rounded up, as on the
    fullest rank.
    """
    layers, local, kind_tensors = opened.stack.layers, opened.replica, opened.rank_tensors
    batch, dcp = local.batch, local.setup.parallel.dcp
    listed: list[tuple[str, int, StoredTensor]] = []
    for number in numbers:
        names: dict[str, int] = {}
        for tensor in (tensor for kind in layers[number] for tensor in kind_tensors[kind]):
            names[tensor.name] = names.get(tensor.name, 0) + 1
            suffix = "" if names[tensor.name] == 1 else f".{names[tensor.name]}"
            listed.append((f"layers.{number}.{tensor.name}{suffix}", number, tensor))
    out: list[Allocation] = []
    for name, layer, tensor in (*listed, *((tensor.name, -1, tensor) for tensor in (local.extras if extras else ()))):
        size, positions = tensor.bytes, tensor.positions
        if dcp > 1 and tensor.role in DEALT and positions:
            # With seven tokens on two ranks, the fullest rank has four.
            size, positions = rank_share(tensor, dcp), -(-positions // dcp)
        if size:
            dtype, shape = _shape(tensor, size, positions, batch)
            out.append(Allocation(name=name, layer=layer, dtype=dtype, shape=shape, bytes=size))
    return tuple(out)


def _shape(tensor: StoredTensor, size: int, positions: int, batch: int) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape: ``[batch, heads, tokens, head_dim]`` if that gives ``size`` bytes, or the same in rows of bytes, or flat."""

    def axes(last: int) -> tuple[int, ...]:
        if tensor.role in DEALT or tensor.role is Role.INDEX:
            return (batch, *tensor.shape[:-1], positions, last)
        if tensor.role is Role.CONV:
            return (batch, *tensor.shape[:-1], last, positions)
        return (batch, *((positions,) if positions > 1 else ()), *tensor.shape[:-1], last)

    dtype, width = _TORCH_NAMES.get(tensor.dtype, tensor.dtype), tensor.shape[-1]
    item, packed = ITEM_BYTES.get(dtype), find_dtype(tensor.dtype)
    if item is not None and prod(axes(width)) * item == size:
        return dtype, axes(width)
    if item is not None and size % item == 0:
        return dtype, (size // item,)
    if packed is not None and prod(axes(packed.row_bytes(width))) == size:
        return "uint8", axes(packed.row_bytes(width))
    return "uint8", (size,)


def check_heads(engine: str, kind: LayerKind, tp: int) -> None:
    """Check that ``tp`` ranks share the heads of a layer evenly. Raises :class:`~hwcalc.errors.UsageError`.

    Key/value heads are divided, or each is repeated on as many ranks: 10 of them are on 1, 2, 5, 10 or 20 ranks, and not on 8.
    """
    if not isinstance(kind, (AttentionKind, LatentAttention)):
        return
    if kind.num_attention_heads % tp:
        raise UsageError(
            f"{engine} cannot split {kind.num_attention_heads} attention heads over tp {tp}.",
            hint="Use a tp that divides the number of heads.",
        )
    if not isinstance(kind, AttentionKind):
        return
    heads = kind.num_key_value_heads
    if heads % tp and tp % heads:
        raise UsageError(
            f"{engine} cannot split {heads} key/value heads over tp {tp}.",
            hint="Use a tp that divides the number of key/value heads, or a multiple of it.",
        )


def check_dealt(kind: LayerKind, tp: int, dcp: int) -> None:
    """Check that each key/value head of a layer has ``dcp`` of the ``tp`` ranks, over which its tokens are dealt out. Raises :class:`~hwcalc.errors.UsageError`."""
    heads = kind.dims().get("num_key_value_heads", 1)
    if dcp > 1 and tp // heads < dcp:
        raise UsageError(
            f"dcp {dcp} needs {dcp} ranks for each of the {heads} key/value heads; tp {tp} has {tp // heads}.",
            hint=f"Use --tp {dcp * heads}, or leave out --dcp.",
        )
