"""What strategies are compared by: the bytes of the places that tensors keep, and the operations with a cache and without one.

It also has the bytes of the same model with other key/value heads, or with its latent multiplied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.steps import Number, Step, step
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LatentAttention, LayerKind, Role, Stack
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.flops import decode_work, pairs_cached, passes_work, prefill_work, selected_tokens, steps_work
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_sum
from hwcalc.formulas.tensor import Chunk, Full, Kept, Sink, Span, Strided, Window, paged_positions, paged_sum
from hwcalc.formulas.weights import Part
from hwcalc.planner.speed import speed_bound
from hwcalc.planner.speed_work import Use, WeightShare, cache_bytes_read, weight_shares
from hwcalc.planner.strategies_result import HeadChoice

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import DType
    from hwcalc.formulas.flops import Work
    from hwcalc.model import ModelSpec
    from hwcalc.planner.result import SpeedInfo

_GROWING: Final = (Full, Kept, Window, Chunk, Sink, Strided)
"""Spans of tensors that get longer by one place, which a cache that grows by concatenation copies."""


class Cell(Record):
    """The tensors of one kind of layer that keep the same places: in ``count`` layers, a row of ``rows`` bytes for each place and tensor."""

    kind: LayerKind
    count: int
    span: Span
    rows: tuple[int, ...]
    block_size: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one place in all tensors of a layer."""
        return sum(self.rows)

    @property
    def grows(self) -> bool:
        """Whether tokens are appended to the tensors; false for a state that is overwritten."""
        return isinstance(self.span, _GROWING)

    def written(self, prompt: int, tokens: int) -> int:
        """Places that concatenation writes for one sequence: all of them for the prompt, and again whenever a token adds one.

        Full attention with a prompt of 2 and 4 tokens in all: [AB], [ABC], [ABCD] are 9 places.
        """
        if isinstance(self.span, Strided):
            # An entry is added once in each group of tokens.
            first, last = (self.span.positions(length) for length in (prompt, tokens))
            return first + (last * (last + 1) - first * (first + 1)) // 2
        if not self.grows:
            return 0
        return self.span.positions(prompt) + stairs_sum(self.span.stairs(), tokens) - stairs_sum(self.span.stairs(), prompt)


class Lengths(Record):
    """The number of sequences, their full length in tokens, and their lengths now.

    ``now`` are lengths with how many sequences have each; or ``uniform`` the shortest and the longest length, all of them equally likely.
    """

    seq: int
    batch: int
    prompt: int
    encoder_tokens: int
    now: tuple[tuple[int, int], ...] = ()
    uniform: tuple[int, int] | None = None

    def total(self, at: Callable[[int], int], upto: Callable[[int], int]) -> Fraction:
        """The sum over all sequences of ``at(length)``. ``upto(n)`` is the sum of ``at`` over 1 to n."""
        if self.uniform is None:
            return Fraction(sum(count * at(length) for length, count in self.now))
        low, high = self.uniform
        return Fraction(self.batch * (upto(high) - upto(low - 1)), high - low + 1)

    def stored(self, span: Span) -> Fraction:
        """The number of places that all sequences keep now."""
        encoder = self.encoder_tokens
        return self.total(lambda length: span.positions(length, encoder), lambda length: stairs_sum(span.stairs(encoder), length))

    def paged(self, cell: Cell) -> Fraction:
        """The number of places in the blocks of all sequences now."""
        span, size, encoder = cell.span, cell.block_size, self.encoder_tokens
        return self.total(
            lambda length: paged_positions(span, length, size, encoder), lambda length: paged_sum(span, length, size, encoder)
        )

    @property
    def length_now(self) -> int:
        """The length now of every sequence, if all have the same; else the full one."""
        return self.now[0][0] if len(self.now) == 1 else self.seq

    @property
    def tokens(self) -> Fraction:
        """The number of tokens of all sequences now."""
        return self.stored(Full())


def rounded(value: Fraction) -> int:
    """The nearest whole number."""
    return int(value + Fraction(1, 2))


def cells_of(opened: Occupancy, block_sizes: Mapping[str, int], stack: Stack | None = None) -> tuple[Cell, ...]:
    """The tensors of all layers by kind and span, in the formats of the request. ``block_sizes`` are by the name of a kind; ``""`` is for others.

    Raises :class:`~hwcalc.errors.UnsupportedError` for a format that packs what the model does not have.
    """
    roles = opened.dtypes.roles
    found: dict[tuple[LayerKind, Span], list[int]] = {}
    counts: dict[LayerKind, int] = {}
    for group in (opened.stack if stack is None else stack).groups:
        counts[group.kind] = group.count
        for tensor in group.kind.tensors():
            found.setdefault((group.kind, tensor.span), []).append(tensor.bytes_per_position(_format(roles, tensor.role, opened)))
    return tuple(
        Cell(
            kind=kind,
            count=counts[kind],
            span=span,
            rows=tuple(rows),
            block_size=block_sizes.get(kind.name, block_sizes[""]),
        )
        for (kind, span), rows in found.items()
    )


def _format(roles: Mapping[Role, DType], role: Role, opened: Occupancy) -> DType:
    if role not in roles:
        raise UnsupportedError(
            f"--dtype {opened.dtypes.kv} packs a latent and its rotary key; another tensor of the model has no format.",
            hint="Use a plain dtype such as fp8_e4m3. See: kvplan dtypes",
        )
    return roles[role]


_PROJECTIONS: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "key_proj", "value_proj"})
_FUSED: Final = frozenset({"qkv_proj", "qkv", "query_key_value", "c_attn", "Wqkv", "kv_proj", "wqkv", "W_pack"})


class HeadWhatIf(Record):
    """The model with other key/value heads, or with its latent multiplied out. ``change`` makes its kinds of layers."""

    name: str
    num_key_value_heads: int | None
    own: bool
    latent: bool
    change: Callable[[LayerKind], LayerKind]


def head_what_ifs(stack: Stack) -> tuple[HeadWhatIf, ...]:
    """The changes of heads: MHA, GQA with each power of two of groups and MQA for plain attention.

    Latent and expanded for MLA.
    """
    kinds = [group.kind for group in stack.groups]
    attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
    published = {kind.num_key_value_heads for kind in attention}
    what_ifs = [
        HeadWhatIf(
            name=_name(attention, heads),
            num_key_value_heads=heads,
            own=published == {heads},
            latent=False,
            change=_with_heads(heads),
        )
        for heads in (_counts(attention) if attention else ())
    ]
    if len(published) > 1:
        what_ifs.insert(0, HeadWhatIf(name="as published", num_key_value_heads=None, own=True, latent=False, change=_as_it_is))
    if any(isinstance(kind, LatentAttention) for kind in kinds):
        what_ifs.append(HeadWhatIf(name="MLA, latent", num_key_value_heads=None, own=True, latent=True, change=_as_it_is))
        what_ifs.append(HeadWhatIf(name="MLA, expanded", num_key_value_heads=None, own=False, latent=True, change=_expanded))
    return tuple(what_ifs)


def with_kinds(stack: Stack, change: Callable[[LayerKind], LayerKind]) -> Stack:
    """The layers with their kinds changed."""
    return Stack(tuple(tuple(map(change, layer)) for layer in stack.layers))


def head_choices(opened: Occupancy, lengths: Lengths) -> tuple[HeadChoice, ...]:
    """The bytes and the parameters of the model with each change of :func:`head_what_ifs`."""
    attention = [group.kind for group in opened.stack.groups if isinstance(group.kind, AttentionKind)]
    # A packed format holds latents alone.
    plain = {Role.KEY, Role.VALUE} <= opened.dtypes.roles.keys()
    own_bytes, choices = _bytes(opened, lengths, _as_it_is), []
    for what_if in head_what_ifs(opened.stack):
        if what_if.latent and not plain:
            continue
        heads = what_if.num_key_value_heads
        difference = 0 if heads is None else _difference(opened.model, attention, heads)
        choices.append(_choice(what_if.name, heads, what_if.own, _bytes(opened, lengths, what_if.change), own_bytes, difference))
    return tuple(choices)


def _as_it_is(kind: LayerKind) -> LayerKind:
    return kind


def _expanded(kind: LayerKind) -> LayerKind:
    return kind.expanded() if isinstance(kind, LatentAttention) else kind


def _choice(name: str, heads: int | None, own: bool, size: int, own_bytes: int, difference: int | None) -> HeadChoice:
    return HeadChoice(
        name=name,
        num_key_value_heads=heads,
        own=own,
        full_bytes=size,
        share=size / own_bytes if own_bytes else 1.0,
        parameters_difference=difference,
    )


def _counts(attention: list[AttentionKind]) -> Iterator[int]:
    """Numbers of key/value heads, from those of the queries down to one: halves, and the model's own."""
    most = max(kind.num_attention_heads for kind in attention)
    published = {kind.num_key_value_heads for kind in attention}
    halves, heads = {1, most}, most
    while heads % 2 == 0:
        heads //= 2
        halves.add(heads)
    common = published if len(published) == 1 else set()
    shared = {
        count
        for count in halves | common
        if all(kind.num_attention_heads % min(count, kind.num_attention_heads) == 0 for kind in attention)
    }
    yield from sorted(shared | common, reverse=True)


def _name(attention: list[AttentionKind], heads: int) -> str:
    if heads == 1:
        return "MQA"
    return "MHA" if all(heads >= kind.num_attention_heads for kind in attention) else f"GQA-{heads}"


def _with_heads(heads: int) -> Callable[[LayerKind], LayerKind]:
    def changed(kind: LayerKind) -> LayerKind:
        if not isinstance(kind, AttentionKind):
            return kind
        return replace(kind, num_key_value_heads=min(heads, kind.num_attention_heads))

    return changed


def _bytes(opened: Occupancy, lengths: Lengths, change: Callable[[LayerKind], LayerKind]) -> int:
    """Bytes of the cache of all sequences at their full length, with the kinds of layers changed."""
    stack = with_kinds(opened.stack, change)
    return sum(
        cell.count * cell.row_bytes * lengths.batch * cell.span.positions(lengths.seq, lengths.encoder_tokens)
        for cell in cells_of(opened, {"": 1}, stack)
    )


def _difference(model: ModelSpec, attention: list[AttentionKind], heads: int) -> int | None:
    """The parameters with ``heads`` key/value heads minus those of the model.

    It is ``None`` if its layers differ in heads or its matrices are unknown.
    """
    published = {kind.num_key_value_heads for kind in attention}
    if published == {heads}:
        return 0
    if model.counted is None or len(published) != 1:
        return None
    before, total, seen = next(iter(published)), 0, False
    fused = {_fused_rows(kind): kind.head_dim + kind.v_head_dim for kind in attention}
    for block in model.counted.blocks:
        for weight in block.weights if block.part is Part.LANGUAGE else ():
            module = weight.path.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
            if module in _FUSED:
                rows = next((size for size in weight.shape if size in fused), None)
                if rows is None:
                    return None
                each = weight.elements // rows * fused[rows]
            elif module in _PROJECTIONS:
                if weight.elements % before:
                    return None
                each = weight.elements // before
            else:
                continue
            total, seen = total + block.count * each, True
    return total * (heads - before) if seen else None


def _fused_rows(kind: AttentionKind) -> int:
    """The number of rows of a fused matrix for queries, keys and values."""
    return kind.num_attention_heads * kind.head_dim + kind.num_key_value_heads * (kind.head_dim + kind.v_head_dim)


MOST_KINDS: Final = 6
"""The most kinds of layers whose figures are shown one by one."""
MOST_LENGTHS: Final = 6
"""The most lengths that a formula names one by one."""


class Places(Record):
    """The number of places of a cell for all sequences: ``total`` is the value of ``formula`` with ``terms``."""

    formula: str
    terms: Mapping[str, Number]
    total: Fraction


def summed(name: str, cells: Iterable[Cell], places: Callable[[Cell], Places]) -> tuple[Fraction, tuple[Step, ...]]:
    """The bytes of all cells, with a figure for each kind and one for the sum, which has the name ``name``.

    A model of very many kinds has the sum alone, since nobody would read the others.
    """
    steps: list[Step] = []
    total = Fraction(0)
    for cell in cells:
        there = places(cell)
        size = cell.count * cell.row_bytes * there.total
        total += size
        if not size:
            continue
        label = named(f"{cell.kind.name}_{name}", steps)
        terms = {"kind_layers": cell.count, **there.terms, "row_bytes": cell.row_bytes}
        steps.append(step(label, f"kind_layers x {there.formula} x row_bytes", rounded(size), unit="bytes", **terms))
    return total, with_sum(name, steps, rounded(total))


def with_sum(name: str, steps: Sequence[Step], total: int, unit: str = "bytes") -> tuple[Step, ...]:
    """The steps of all kinds and of their sum. A single step is the sum itself, and of very many kinds only the sum is kept."""
    if len(steps) == 1:
        return (replace(steps[0], name=name),)
    if len(steps) > MOST_KINDS:
        return (step(name, "", total, unit=unit),)
    parts = {figure.name: figure.expected for figure in steps}
    return (*steps, step(name, " + ".join(parts) or "0", total, unit=unit, **parts))


def named(label: str, steps: Sequence[Step]) -> str:
    """The name of the next step: ``label``, with a number if another step has that name."""
    return f"{label}_{len(steps) + 1}" if any(figure.name == label for figure in steps) else label


def full_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """A function from a cell to its places when every sequence has all its tokens."""

    def of(cell: Cell) -> Places:
        positions = cell.span.positions(lengths.seq, lengths.encoder_tokens)
        terms = {"sequences": lengths.batch, "positions": positions}
        return Places(formula="sequences x positions", terms=terms, total=Fraction(lengths.batch * positions))

    return of


def now_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """A function from a cell to its places for the lengths now."""
    return _once(lambda cell: _now(cell, lengths, lengths.stored(cell.span), _kept))


def full_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """A function from a cell to its places in blocks when every sequence has all its tokens."""

    def of(cell: Cell) -> Places:
        slots = paged_positions(cell.span, lengths.seq, cell.block_size, lengths.encoder_tokens)
        formula, terms = _paged(cell, "seq", lengths.seq)
        if not formula:
            formula, terms = "positions", {"positions": slots}
        return Places(
            formula=f"sequences x {formula}",
            terms={"sequences": lengths.batch, **terms},
            total=Fraction(lengths.batch * slots),
        )

    return of


def now_slots(lengths: Lengths) -> Callable[[Cell], Places]:
    """A function from a cell to its places in blocks for the lengths now."""
    return _once(lambda cell: _now(cell, lengths, lengths.paged(cell), _paged))


def _once(places: Callable[[Cell], Places]) -> Callable[[Cell], Places]:
    """The function ``places``, evaluated once for all cells with the same span and blocks: lengths and kinds of layers may be many."""
    known: dict[tuple[Span, int], Places] = {}

    def of(cell: Cell) -> Places:
        key = cell.span, cell.block_size
        if key not in known:
            known[key] = places(cell)
        return known[key]

    return of


Rule = Callable[[Cell, str, int], tuple[str, dict[str, "Number"]]]
"""The places of one sequence of so many tokens, which have this name, as a formula; empty where their number says it shorter."""


def _now(cell: Cell, lengths: Lengths, total: Fraction, rule: Rule) -> Places:
    """The places of a cell for all sequences now. The formula goes length by length if the lengths are few."""
    terms: dict[str, Number] = {}
    products: list[str] = []
    for number, (tokens, count) in enumerate(lengths.now, 1):
        again = f"_{number}" if len(lengths.now) > 1 else ""
        formula, own = rule(cell, f"tokens_now{again}", tokens)
        if not formula or number > MOST_LENGTHS:
            products = []
            break
        terms |= {f"sequences{again}": count, **own}
        products.append(f"sequences{again} x {formula}")
    if products:
        summed_up = products[0] if len(products) == 1 else f"({' + '.join(products)})"
        return Places(formula=summed_up, terms=terms, total=total)
    exact: Number = int(total) if total.denominator == 1 else float(total)
    return Places(formula="all_positions", terms={"all_positions": exact}, total=total)


def _kept(cell: Cell, name: str, tokens: int) -> tuple[str, dict[str, Number]]:
    """The formula and the terms of the places that one sequence keeps."""
    if isinstance(cell.span, (Window, Chunk)) and tokens > cell.span.numbers[0]:
        return f"min({name}, window)", {name: tokens, "window": cell.span.numbers[0]}
    return (name, {name: tokens}) if isinstance(cell.span, (Full, Window, Chunk)) else ("", {})


def _paged(cell: Cell, name: str, tokens: int) -> tuple[str, dict[str, Number]]:
    """The formula and the terms of the places in the blocks of one sequence."""
    terms: dict[str, Number] = {name: tokens, "block_size": cell.block_size}
    if isinstance(cell.span, (Window, Chunk)) and tokens > cell.span.numbers[0]:
        blocks = f"(ceil({name} / block_size) - floor(({name} - window) / block_size))"
        return f"{blocks} x block_size", terms | {"window": cell.span.numbers[0]}
    return (f"ceil({name} / block_size) x block_size", terms) if isinstance(cell.span, (Full, Window, Chunk)) else ("", {})


def copied_places(lengths: Lengths) -> Callable[[Cell], Places]:
    """A function from a cell to the places that concatenation writes: the whole tensor for the prompt, and again each time it grows."""

    def of(cell: Cell) -> Places:
        written = cell.written(lengths.prompt, lengths.seq)
        terms = {"sequences": lengths.batch, "written_positions": written}
        return Places(formula="sequences x written_positions", terms=terms, total=Fraction(lengths.batch * written))

    return of


class Cost(Record):
    """The operations of the last step and of all passes, of attention alone and with the weights, and the bytes that the step reads."""

    attention_step: int
    step: int | None
    attention_total: int
    total: int | None
    cache_bytes: int
    weight_bytes: int | None
    seconds: float | None
    steps: tuple[Step, ...]


class _Weights(Record):
    """Operations with the weights: of each token, of each pass (for its last token) and of the encoder, which passes once."""

    token: int
    each_pass: int
    encoder: int
    shares: tuple[WeightShare, ...]

    def read_bytes(self, tokens: int) -> int:
        """Bytes of weights that one pass of so many tokens reads."""
        return int(sum(share.touched_bytes(tokens) for share in self.shares if share.use is not Use.ENCODER))


def costs(opened: Occupancy, lengths: Lengths) -> tuple[Cost, Cost]:
    """The cost with a cache, and the cost without a cache, where each pass computes the whole text so far.

    A prompt is one pass and each token behind it another one, up to the last token, so that the cache holds all of them in the end.
    """
    weights, bound = _weights(opened), _bound(opened, lengths)
    return _cached(opened, lengths, weights, bound), _recomputed(opened, lengths, weights, bound)


def _cached(opened: Occupancy, lengths: Lengths, weights: _Weights | None, bound: SpeedInfo | None) -> Cost:
    count = _Counted(opened=opened, lengths=lengths)
    last = count.of("step", lambda kind, told: decode_work(kind, lengths.seq, lengths.encoder_tokens, selected=told))
    every = count.of(
        "total",
        lambda kind, told: (
            *prefill_work(kind, lengths.prompt, lengths.encoder_tokens, selected=told),
            *steps_work(kind, lengths.prompt, lengths.seq, lengths.encoder_tokens, selected=told),
        ),
    )
    roles, encoder = opened.dtypes.roles, lengths.encoder_tokens
    read = lengths.batch * cache_bytes_read(opened.stack, roles, seq=lengths.seq, encoder_tokens=encoder)
    seconds = None if bound is None else bound.decode_step_s_bound
    return _cost(lengths, weights, last=(*last, 1), every=(*every, lengths.seq), read=read, seconds=seconds)


def _recomputed(opened: Occupancy, lengths: Lengths, weights: _Weights | None, bound: SpeedInfo | None) -> Cost:
    count, seq, encoder = _Counted(opened=opened, lengths=lengths), lengths.seq, lengths.encoder_tokens
    last = count.of("step", lambda kind, told: prefill_work(kind, seq, encoder, selected=told))
    every = count.of("total", lambda kind, told: passes_work(kind, lengths.prompt, seq, encoder, selected=told))
    passed = pairs_cached(seq) - pairs_cached(lengths.prompt - 1)
    return _cost(lengths, weights, last=(*last, seq), every=(*every, passed), read=0, seconds=_prompts_s(bound, lengths.batch))


def _prompts_s(bound: SpeedInfo | None, batch: int) -> float | None:
    """The least seconds for the prompts of all sequences: those of a prompt, times ``batch`` if computing bounds it."""
    if bound is None or bound.prefill_s_bound is None:
        return None
    return bound.prefill_s_bound * (batch if bound.prefill_bound_by == "compute" else 1)


def _cost(
    lengths: Lengths,
    weights: _Weights | None,
    *,
    last: tuple[int, tuple[Step, ...], int],
    every: tuple[int, tuple[Step, ...], int],
    read: int,
    seconds: float | None,
) -> Cost:
    """The cost from ``last`` and ``every``: operations of attention, their steps, and the tokens of each sequence that pass the weights."""
    passes = lengths.seq - lengths.prompt + 1
    step_all, step_steps = _with_weights("step", last[0], last[2], 1, lengths, weights)
    total_all, total_steps = _with_weights("total", every[0], every[2], passes, lengths, weights)
    return Cost(
        attention_step=last[0],
        step=step_all,
        attention_total=every[0],
        total=total_all,
        cache_bytes=read,
        weight_bytes=None if weights is None else weights.read_bytes(lengths.batch * last[2]),
        seconds=seconds,
        steps=(*last[1], *step_steps, *every[1], *total_steps),
    )


def _with_weights(
    name: str, attention: int, tokens: int, passes: int, lengths: Lengths, weights: _Weights | None
) -> tuple[int | None, tuple[Step, ...]]:
    """The operations of attention and weights together, and the steps that derive them; ``None`` if the weights are unknown."""
    if weights is None:
        return None, ()
    own = weights.encoder if name == "total" else 0
    each = tokens * weights.token + passes * weights.each_pass + own
    terms = {
        "sequences": lengths.batch,
        "passed_tokens": tokens,
        "token_operations": weights.token,
        "passes": passes,
        "head_operations": weights.each_pass,
    }
    formula = "passed_tokens x token_operations + passes x head_operations"
    if own:
        formula, terms = f"{formula} + encoder_operations", terms | {"encoder_operations": own}
    size = lengths.batch * each
    first = step(f"weights_{name}", f"sequences x ({formula})", size, unit="operations", **terms)
    both = {f"attention_{name}": attention, f"weights_{name}": size}
    whole = step(f"{name}_operations", " + ".join(both), attention + size, unit="operations", **both)
    return attention + size, (first, whole)


class _Counted(Record):
    """Counts operations of attention, kind by kind."""

    opened: Occupancy
    lengths: Lengths

    def of(self, name: str, work: Callable[[LayerKind, int | None], tuple[Work, ...]]) -> tuple[int, tuple[Step, ...]]:
        """The operations of all layers, and the steps that derive them.

        ``work`` returns the work of one layer of a kind for one sequence.
        """
        selected, total = selected_tokens(self.opened.stack), 0
        steps: list[Step] = []
        for group in self.opened.stack.groups:
            own = _joined(work(group.kind, selected))
            size = group.count * self.lengths.batch * sum(pairs * each for pairs, each in own)
            if not size:
                continue
            total += size
            terms = {"kind_layers": group.count, "sequences": self.lengths.batch}
            products = []
            for number, (pairs, each) in enumerate(own):
                again = f"_{number + 1}" if number else ""
                terms |= {f"pairs{again}": pairs, f"pair_operations{again}": each}
                products.append(f"pairs{again} x pair_operations{again}")
            summed = products[0] if len(products) == 1 else f"({' + '.join(products)})"
            label = named(f"{group.kind.name}_{name}", steps)
            steps.append(step(label, f"kind_layers x sequences x {summed}", size, unit="operations", **terms))
        return total, with_sum(f"attention_{name}", steps, total, "operations")


def _joined(work: Iterable[Work]) -> tuple[Work, ...]:
    """The work with equal operations for a pair of tokens added up."""
    sums: dict[int, int] = {}
    for pairs, each in work:
        sums[each] = sums.get(each, 0) + pairs
    return tuple((pairs, each) for each, pairs in sums.items() if pairs)


def _weights(opened: Occupancy) -> _Weights | None:
    model, request = opened.model, opened.request
    found: tuple[WeightShare, ...] | None = model.once(
        ("weight shares", request.setup.weights, None), lambda: weight_shares(model, request.setup.weights, None)
    )
    if found is None:
        return None
    sums = dict.fromkeys(Use, 0)
    for share in found:
        sums[share.use] += share.flops_per_token
    return _Weights(
        shares=found,
        token=sums[Use.ALWAYS] + sums[Use.CHOSEN],
        each_pass=sums[Use.LAST],
        encoder=sums[Use.ENCODER] * opened.encoder_tokens,
    )


def _bound(opened: Occupancy, lengths: Lengths) -> SpeedInfo | None:
    """The bound on speed at the full length; ``None`` if no accelerator is named."""
    gpu = opened.setup.hardware.gpu
    if gpu is None:
        return None
    return speed_bound(
        opened.model,
        gpu=gpu,
        seq=lengths.seq,
        batch=lengths.batch,
        roles=opened.dtypes.roles,
        engine=opened.engine.name,
        encoder_tokens=lengths.encoder_tokens,
        weights=opened.setup.weights,
    ).value
