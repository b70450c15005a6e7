"""What strategies are compared by: the bytes of the places that tensors keep, and the operations with a cache and without one.

It also has the bytes of the same model with other key/value heads, or with its latent multiplied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
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
from hwcalc.planner.speed_work import Use, WeightShare, Workload, cache_bytes_read, weight_shares
from hwcalc.planner.strategies_result import HeadChoice

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas.flops import Work
    from hwcalc.model import ModelSpec

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
        """True if tokens are appended to the tensors; false for a state that is overwritten."""
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


def rounded(value: Fraction) -> int:
    """The nearest whole number."""
    return int(value + Fraction(1, 2))


def cells_of(opened: Occupancy, block_sizes: Mapping[str, int], stack: Stack | None = None) -> tuple[Cell, ...]:
    """The tensors of all layers by kind and span, in the formats of the request. ``block_sizes`` are by the name of a kind; ``""`` is for others.

    Raises :class:`~hwcalc.errors.UnsupportedError` for a format that packs what the model does not have.
    """
    roles, out = opened.dtypes.roles, []
    for group in (opened.stack if stack is None else stack).groups:
        rows: dict[Span, list[int]] = {}
        for tensor in group.kind.tensors():
            if tensor.role not in roles:
                raise UnsupportedError(
                    f"--dtype {opened.dtypes.kv} packs a latent and its rotary key; another tensor of the model has no format.",
                    hint="Use a plain dtype such as fp8_e4m3. See: kvplan dtypes",
                )
            rows.setdefault(tensor.span, []).append(tensor.bytes_per_position(roles[tensor.role]))
        size = block_sizes.get(group.kind.name, block_sizes[""])
        out += [
            Cell(kind=group.kind, count=group.count, span=span, rows=tuple(sizes), block_size=size)
            for span, sizes in rows.items()
        ]
    return tuple(out)


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
    """The changes of heads: MHA, GQA with each power of two of groups and MQA; for MLA, latent and expanded."""
    kinds = [group.kind for group in stack.groups]
    attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
    published = {kind.num_key_value_heads for kind in attention}
    what_ifs = []
    if len(published) > 1:
        what_ifs.append(HeadWhatIf(name="as published", num_key_value_heads=None, own=True, latent=False, change=_as_it_is))
    for heads in _counts(attention, published) if attention else ():
        groups = "MHA" if all(heads >= kind.num_attention_heads for kind in attention) else f"GQA-{heads}"
        name, own = "MQA" if heads == 1 else groups, published == {heads}
        change = partial(_with_heads, heads)
        what_ifs.append(HeadWhatIf(name=name, num_key_value_heads=heads, own=own, latent=False, change=change))
    if any(isinstance(kind, LatentAttention) for kind in kinds):
        what_ifs.append(HeadWhatIf(name="MLA, latent", num_key_value_heads=None, own=True, latent=True, change=_as_it_is))
        what_ifs.append(HeadWhatIf(name="MLA, expanded", num_key_value_heads=None, own=False, latent=True, change=_expanded))
    return tuple(what_ifs)


def with_kinds(stack: Stack, change: Callable[[LayerKind], LayerKind]) -> Stack:
    """The layers with their kinds changed."""
    changed = cache(change)
    return Stack(tuple(tuple(map(changed, layer)) for layer in stack.layers))


def head_choices(opened: Occupancy, lengths: Lengths) -> tuple[HeadChoice, ...]:
    """The bytes and the parameters of the model with each change of :func:`head_what_ifs`."""
    attention = [group.kind for group in opened.stack.groups if isinstance(group.kind, AttentionKind)]
    # A packed format holds latents alone.
    plain = {Role.KEY, Role.VALUE} <= opened.dtypes.roles.keys()
    own_bytes, choices = _bytes(opened, lengths, _as_it_is), []
    for one in head_what_ifs(opened.stack):
        if one.latent and not plain:
            continue
        heads, size = one.num_key_value_heads, _bytes(opened, lengths, one.change)
        choices.append(
            HeadChoice(
                name=one.name,
                num_key_value_heads=heads,
                own=one.own,
                full_bytes=size,
                share=size / own_bytes if own_bytes else 1.0,
                parameters_difference=0 if heads is None else _difference(opened.model, attention, heads),
            )
        )
    return tuple(choices)


def _as_it_is(kind: LayerKind) -> LayerKind:
    return kind


def _expanded(kind: LayerKind) -> LayerKind:
    return kind.expanded() if isinstance(kind, LatentAttention) else kind


def _counts(attention: list[AttentionKind], published: set[int]) -> list[int]:
    """Numbers of key/value heads, from those of the queries down to one: halves, and the model's own."""
    heads = most = max(kind.num_attention_heads for kind in attention)
    counts = {1, most}
    while heads % 2 == 0:
        heads //= 2
        counts.add(heads)
    common = published if len(published) == 1 else set()
    queries = [kind.num_attention_heads for kind in attention]
    shared = {count for count in counts if all(number % min(count, number) == 0 for number in queries)}
    return sorted(shared | common, reverse=True)


def _with_heads(heads: int, kind: LayerKind) -> LayerKind:
    if not isinstance(kind, AttentionKind):
        return kind
    return replace(kind, num_key_value_heads=min(heads, kind.num_attention_heads))


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
    # Rows of a fused matrix for queries, keys and values, and how many of them each key/value head has.
    fused = {
        kind.num_attention_heads * kind.head_dim + before * (kind.head_dim + kind.v_head_dim): kind.head_dim + kind.v_head_dim
        for kind in attention
    }
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


MOST_KINDS: Final = 6
"""The most kinds of layers whose figures are shown one by one."""
MOST_LENGTHS: Final = 6
"""The most lengths that a formula names one by one."""


class Places(Record):
    """The number of places of a cell for all sequences: ``total`` is the value of ``formula`` with ``terms``."""

    formula: str
    terms: Mapping[str, Number]
    total: Fraction


Rule = Callable[[Lengths, Cell], Places]
"""The places of a cell for all sequences, which follow from its span and its blocks."""


def places_of(lengths: Lengths, cells: Iterable[Cell], rule: Rule) -> list[tuple[Cell, Places]]:
    """Each cell with its places, counted once for all with the same span and blocks: lengths and kinds of layers may be many."""
    known: dict[tuple[Span, int], Places] = {}
    out = []
    for cell in cells:
        key = cell.span, cell.block_size
        if key not in known:
            known[key] = rule(lengths, cell)
        out.append((cell, known[key]))
    return out


def summed(name: str, lengths: Lengths, cells: Iterable[Cell], rule: Rule) -> tuple[Fraction, tuple[Step, ...]]:
    """The bytes of all cells, with a figure for each kind and one for the sum, which has the name ``name``.

    A model of very many kinds has the sum alone, since nobody would read the others.
    """
    steps: list[Step] = []
    total = Fraction(0)
    for cell, there in places_of(lengths, cells, rule):
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


def full_places(lengths: Lengths, cell: Cell) -> Places:
    """The places of a cell when every sequence has all its tokens."""
    positions = cell.span.positions(lengths.seq, lengths.encoder_tokens)
    terms = {"sequences": lengths.batch, "positions": positions}
    return Places(formula="sequences x positions", terms=terms, total=Fraction(lengths.batch * positions))


def full_slots(lengths: Lengths, cell: Cell) -> Places:
    """The places of a cell in blocks when every sequence has all its tokens."""
    slots = paged_positions(cell.span, lengths.seq, cell.block_size, lengths.encoder_tokens)
    formula, terms = _paged(cell, "seq", lengths.seq)
    if not formula:
        formula, terms = "positions", {"positions": slots}
    terms = {"sequences": lengths.batch, **terms}
    return Places(formula=f"sequences x {formula}", terms=terms, total=Fraction(lengths.batch * slots))


def copied_places(lengths: Lengths, cell: Cell) -> Places:
    """The places that concatenation writes: the whole tensor for the prompt, and again each time it grows."""
    written = cell.written(lengths.prompt, lengths.seq)
    terms = {"sequences": lengths.batch, "written_positions": written}
    return Places(formula="sequences x written_positions", terms=terms, total=Fraction(lengths.batch * written))


def now_places(lengths: Lengths, cell: Cell) -> Places:
    """The places of a cell for the lengths now."""
    return _now(lengths, cell, lengths.stored(cell.span), _kept)


def now_slots(lengths: Lengths, cell: Cell) -> Places:
    """The places of a cell in blocks for the lengths now."""
    return _now(lengths, cell, lengths.paged(cell), _paged)


OfSequence = Callable[[Cell, str, int], tuple[str, dict[str, Number]]]
"""The places of one sequence of so many tokens, which have this name, as a formula; empty where their number says it shorter."""


def _now(lengths: Lengths, cell: Cell, total: Fraction, rule: OfSequence) -> Places:
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


class Cost(Record):
    """The operations of the last step and of all passes, of attention alone and with the weights, and the bytes that the step
    reads.

    The names are those of :class:`~hwcalc.planner.strategies_result.Strategy`.
    """

    attention_flops_per_step: int
    flops_per_step: int | None
    attention_total_flops: int
    total_flops: int | None
    cache_bytes_per_step: int
    weight_bytes_per_step: int | None
    step_s_bound: float | None
    steps: tuple[Step, ...]


class _Weights(Record):
    """Operations with the weights: of each token, of each pass (for its last token) and of the encoder, which passes once."""

    token: int
    each_pass: int
    encoder: int
    shares: tuple[WeightShare, ...]


def costs(opened: Occupancy, lengths: Lengths) -> tuple[Cost, Cost]:
    """The cost with a cache, and the cost without a cache, where each pass computes the whole text so far.

    A prompt is one pass and each token behind it another one, up to the last token, so that the cache holds all of them in the end.
    """
    seq, prompt, batch, encoder = lengths.seq, lengths.prompt, lengths.batch, lengths.encoder_tokens
    roles, weights, bound = opened.dtypes.roles, _weights(opened), None
    if opened.setup.hardware.gpu is not None:
        load = Workload(
            seq=seq, batch=batch, roles=roles, engine=opened.engine.name, encoder_tokens=encoder, weights=opened.setup.weights
        )
        bound = speed_bound(opened.model, opened.setup.hardware.gpu, load).value

    def of_pass(kind: LayerKind, told: int | None) -> tuple[Work, ...]:
        return prefill_work(kind, seq, encoder, selected=told)

    def of_passes(kind: LayerKind, told: int | None) -> tuple[Work, ...]:
        return passes_work(kind, prompt, seq, encoder, selected=told)

    def of_step(kind: LayerKind, told: int | None) -> tuple[Work, ...]:
        return decode_work(kind, seq, encoder, selected=told)

    def of_steps(kind: LayerKind, told: int | None) -> tuple[Work, ...]:
        of_prompt = prefill_work(kind, prompt, encoder, selected=told)
        return *of_prompt, *steps_work(kind, prompt, seq, encoder, selected=told)

    read = batch * cache_bytes_read(opened.stack, roles, seq=seq, encoder_tokens=encoder)
    step_s = None if bound is None else bound.decode_step_s_bound
    prompts_s = None if bound is None else bound.prefill_s_bound
    if prompts_s is not None and bound is not None and bound.prefill_bound_by == "compute":
        # The prompts of all sequences are computed, but the weights are read once for them.
        prompts_s *= batch
    passed = pairs_cached(seq) - pairs_cached(prompt - 1)
    return (
        _cost(opened, lengths, weights, (of_step, 1), (of_steps, seq), read, step_s),
        _cost(opened, lengths, weights, (of_pass, seq), (of_passes, passed), 0, prompts_s),
    )


Attention = Callable[[LayerKind, int | None], tuple["Work", ...]]
"""The work of one layer of a kind for one sequence, where so many tokens are selected."""


def _cost(
    opened: Occupancy,
    lengths: Lengths,
    weights: _Weights | None,
    last: tuple[Attention, int],
    every: tuple[Attention, int],
    read: int,
    seconds: float | None,
) -> Cost:
    """The cost, from the attention of the last step and of all steps with the tokens of each sequence that pass the weights."""
    attention, operations = [], list[int | None]()
    steps: tuple[Step, ...] = ()
    for name, (work, tokens) in (("step", last), ("total", every)):
        of_attention, own = _attention(opened, lengths, name, work)
        attention.append(of_attention)
        steps = (*steps, *own)
        if weights is None:
            operations.append(None)
            continue
        passes = 1 if name == "step" else lengths.seq - lengths.prompt + 1
        terms = {
            "sequences": lengths.batch,
            "passed_tokens": tokens,
            "token_operations": weights.token,
            "passes": passes,
            "head_operations": weights.each_pass,
        }
        formula = "passed_tokens x token_operations + passes x head_operations"
        if name == "total" and weights.encoder:
            formula, terms = f"{formula} + encoder_operations", terms | {"encoder_operations": weights.encoder}
        of_weights = step(f"weights_{name}", f"sequences x ({formula})", unit="operations", **terms)
        both = {f"attention_{name}": of_attention, f"weights_{name}": of_weights.expected}
        whole = step(f"{name}_operations", " + ".join(both), unit="operations", **both)
        operations.append(int(whole.expected))
        steps = (*steps, of_weights, whole)
    tokens = lengths.batch * last[1]
    used = () if weights is None else (share for share in weights.shares if share.use is not Use.ENCODER)
    return Cost(
        attention_flops_per_step=attention[0],
        flops_per_step=operations[0],
        attention_total_flops=attention[1],
        total_flops=operations[1],
        cache_bytes_per_step=read,
        weight_bytes_per_step=None if weights is None else int(sum(share.touched_bytes(tokens) for share in used)),
        step_s_bound=seconds,
        steps=steps,
    )


def _attention(opened: Occupancy, lengths: Lengths, name: str, work: Attention) -> tuple[int, tuple[Step, ...]]:
    """The operations of attention in all layers, and the steps that derive them, kind by kind."""
    selected, total = selected_tokens(opened.stack), 0
    steps: list[Step] = []
    for group in opened.stack.groups:
        # Pairs of tokens, by the operations of each.
        pairs: dict[int, int] = {}
        for number, each in work(group.kind, selected):
            pairs[each] = pairs.get(each, 0) + number
        pairs = {each: number for each, number in pairs.items() if number}
        size = group.count * lengths.batch * sum(number * each for each, number in pairs.items())
        if not size:
            continue
        total += size
        terms = {"kind_layers": group.count, "sequences": lengths.batch}
        products = []
        for place, (each, number) in enumerate(pairs.items()):
            again = f"_{place + 1}" if place else ""
            terms |= {f"pairs{again}": number, f"pair_operations{again}": each}
            products.append(f"pairs{again} x pair_operations{again}")
        added = products[0] if len(products) == 1 else f"({' + '.join(products)})"
        label = named(f"{group.kind.name}_{name}", steps)
        steps.append(step(label, f"kind_layers x sequences x {added}", size, unit="operations", **terms))
    return total, with_sum(f"attention_{name}", steps, total, "operations")


def _weights(opened: Occupancy) -> _Weights | None:
    model, weights = opened.model, opened.setup.weights
    key = ("weight shares", weights, None)
    shares: tuple[WeightShare, ...] | None = model.once(key, lambda: weight_shares(model, weights))
    if shares is None:
        return None
    sums = dict.fromkeys(Use, 0)
    for share in shares:
        sums[share.use] += share.flops_per_token
    encoder = sums[Use.ENCODER] * opened.encoder_tokens
    return _Weights(shares=shares, token=sums[Use.ALWAYS] + sums[Use.CHOSEN], each_pass=sums[Use.LAST], encoder=encoder)
