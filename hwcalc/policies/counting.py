"""How many tokens a policy keeps: of the prompt, and step by step while text is generated.

Counts are rounded as kvpress 0.5.5 rounds them. Policies that cut again and again have a closed form of their lengths, so that no step is
followed. Explanations show what is kept as arithmetic: a formula with the numbers of its symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.policies.base import EAGER, PAPER, Chosen, Count, Masked, Scored, Setting, Start, State
from hwcalc.text import shown

_MOST_HALVINGS: Final = 20


def kept(tokens: int, ratio: float) -> int:
    """The tokens that are kept of so many: the fraction is cut off behind a multiplication of doubles, and one token stays.

    >>> kept(100, 0.5), kept(1000, 0.9), kept(3, 0.5), kept(7, 0.9)
    (50, 99, 1, 1)

    1 - 0.9 is a little less than 0.1 in doubles, so that 99 of 1,000 are kept. Source: kvpress 0.5.5, utils.compute_n_kept.
    """
    return 0 if ratio >= 1.0 else max(1, int(tokens * (1 - ratio)))


def kept_of_chunks(tokens: int, chunk: int, ratio: float) -> int:
    """The tokens that are kept of each chunk, of the short last one too."""
    whole, rest = divmod(tokens, chunk)
    return whole * kept(chunk, ratio) + (kept(rest, ratio) if rest else 0)


def searched_ratio(tokens: int, target: int) -> float:
    """The ratio by which kvpress cuts ``tokens`` to ``target``: 1 - target / tokens, halved towards it where rounding misses by one.

    >>> kept(79, searched_ratio(79, 64)), searched_ratio(64, 64)
    (64, 0.0)

    Source: kvpress 0.5.5, DecodingPress._find_target_compression_ratio.
    """
    if tokens <= target:
        return 0.0
    ratio, low, high = 1.0 - target / tokens, 0.0, 1.0
    for _ in range(_MOST_HALVINGS):
        found = int(tokens * (1 - ratio))
        if found == target:
            break
        if found > target:
            low, ratio = ratio, (ratio + high) / 2
        else:
            high, ratio = ratio, (low + ratio) / 2
    return ratio


def scorer_budget(chosen: Chosen, ratio: float, tokens: int, layer: int, layers: int) -> int:
    """The tokens that a scorer keeps by itself: all of them at ratio 0, which it takes for "leave everything"."""
    if ratio == 0:
        return tokens
    rule = chosen.policy.budget
    return kept(tokens, ratio) if rule is None else rule(chosen, ratio, tokens, layer, layers)


def check_attention(chosen: Chosen, attention: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy does not work with this attention kernel."""
    policy = chosen.policy
    if policy.needs is not None and attention != policy.needs:
        raise UsageError(
            f"{policy.name} reads the scores of every query, which {shown(attention, 40)} attention does not give.",
            hint=f"Use attention {policy.needs}, or leave it out; its scores grow with the square of the prompt.",
        )
    if attention == policy.forbids:
        raise UsageError(f"{policy.name} does not work with {attention} attention.", hint="Use attention sdpa, or leave it out.")


def check_scores(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy cannot score so many keys."""
    check_attention(chosen, scored.attention)
    if chosen.policy.check is not None:
        chosen.policy.check(chosen, scored)
    for inner in chosen.inner:
        check_scores(inner, scored)


def check_model_scores(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy would read scores of eager attention for keys that are gone.

    A single key is no trouble where they are summed over queries; the rules that read the last queries cannot have it anyway.
    """
    if scored.attention == EAGER and not scored.decoding and scored.keys not in (scored.queries, 1):
        raise UsageError(
            f"{chosen.policy.name} reads the scores of eager attention, which has seen {scored.queries:,} tokens and not {scored.keys:,}.",
            hint=f"Put {chosen.policy.name} first, or use attention sdpa.",
        )


def check_layers(chosen: Chosen, state: State, attention: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy cannot score the keys of every layer."""
    for layer in state.layers:
        check_scores(chosen, Scored(keys=layer.stored.low, queries=state.hidden, attention=attention))


def check_unmasked(state: State) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if pairs may be masked: where tokens go, the places of the others move."""
    if any(layer.masked is not None and layer.masked.total.high for layer in state.layers):
        raise UsageError("a policy that masks must come last: the places of what it masked move.", hint="Put it at the end.")


def untouched(chosen: Chosen, state: State, setting: Setting) -> State:
    """The cache as it is: every token stays."""
    return state


def each_layer(state: State, rule: Callable[[int, int], int]) -> State:
    """Each layer cut by a rule of its number and its length. No policy can cut where pairs are masked: their places would be others."""
    counts = tuple(
        layer.stored.each(lambda tokens, number=number: rule(number, tokens))  # type: ignore[misc]
        for number, layer in enumerate(state.layers)
    )
    if all(new == layer.stored for new, layer in zip(counts, state.layers, strict=True)):
        return state
    check_unmasked(state)
    return state.with_stored(counts)


def even_split(total: int, heads: int) -> tuple[int, ...]:
    """A total over heads as evenly as whole numbers go.

    >>> even_split(7, 3)
    (3, 2, 2)
    """
    share, rest = divmod(total, heads)
    return tuple(share + (head < rest) for head in range(heads))


def mask_layers(state: State, rule: Callable[[int, int], Masked]) -> State:
    """Pairs masked in each layer by a rule of its number and its length, in place of those masked before; nothing is freed."""
    layers = []
    for number, left in enumerate(state.layers):
        masked = rule(number, left.stored.high)
        if not left.stored.is_exact:
            # The text decides how long the layer is: what is masked at both ends, and between them.
            least = rule(number, left.stored.low)
            ends = zip((least.total, *least.heads), (masked.total, *masked.heads), strict=True)
            total, *heads = (Count(low=min(one.low, other.low), high=max(one.high, other.high)) for one, other in ends)
            masked = Masked(total=total, heads=tuple(heads), split=masked.split)
        layers.append(replace(left, masked=masked))
    return replace(state, layers=tuple(layers), masked_total=None)


class Ends(Record):
    """What the decode steps of a layer come to: its length at the end, the most behind a step and within one, and the first of the largest
    cuts, from so many tokens to so many; ``None`` if nothing is cut.
    """

    last: int
    most: int
    most_within: int
    largest: tuple[int, int] | None = None

    @property
    def cut(self) -> bool:
        """True if anything is cut."""
        return self.largest is not None


class Walk:
    """The length of a layer in each decode step, before and behind its cut; and :meth:`ends`, which follows from the rule at once."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        raise NotImplementedError

    def ends(self) -> Ends:
        """The same as :func:`ends_of_steps` of all steps."""
        raise NotImplementedError


def ends_of_steps(start: Start, steps: Iterable[tuple[int, int]]) -> Ends:
    """The ends of the steps, one by one."""
    last = most = within = start.length
    largest: tuple[int, int] | None = None
    for before, after in steps:
        last, most, within = after, max(most, after), max(within, before)
        largest = larger(largest, (before, after))
    return Ends(last=last, most=most, most_within=within, largest=largest)


def larger(known: tuple[int, int] | None, cut: tuple[int, int]) -> tuple[int, int] | None:
    """The larger of two cuts; the first if they are equal."""
    dropped = 0 if known is None else known[0] - known[1]
    return cut if cut[0] - cut[1] > dropped else known


def sawtooth(start: Start, first: int, budget: int, every: int) -> Ends:
    """A first cut to ``budget`` in step ``first``, and the next ones every so many steps."""
    length, steps = start.length, start.steps
    if first > steps:
        return Growing(start=start).ends()
    rest = steps - first
    return Ends(
        last=budget + rest % every,
        most=max(length + first - 1, budget + min(rest, every - 1)),
        most_within=max(length + first, budget + min(rest, every)),
        largest=larger((length + first, budget), (budget + every if rest >= every else budget, budget)),
    )


class Growing(Walk, Record):
    """One token a step, and nothing is cut."""

    start: Start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(1, self.start.steps + 1):
            yield self.start.length + step, self.start.length + step

    def ends(self) -> Ends:
        last = self.start.length + self.start.steps
        return Ends(last=last, most=last, most_within=last)


class CutEachStep(Walk, Record):
    """Where a step goes over the budget, ``drop`` tokens go, or as many as are over."""

    start: Start
    budget: int
    drop: int = 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length = self.start.length
        for _ in range(self.start.steps):
            before = length + 1
            length = before if before <= self.budget else before - max(self.drop, before - self.budget)
            yield before, length

    def ends(self) -> Ends:
        length, budget, drop = self.start.length, self.budget, self.drop
        first = max(1, budget - length + 1)
        rest = self.start.steps - first
        if rest < 0:
            return Growing(start=self.start).ends()
        before = length + first
        after = before - max(drop, before - budget)
        # From the second cut on it goes from budget + 1 - drop to the budget, again and again.
        waits = budget - after + 1
        last = after + rest if rest < waits else budget + 1 - drop + (rest - waits) % drop
        most, within = (after + min(rest, waits - shorter) for shorter in (1, 0))
        return Ends(last=last, most=max(before - 1, most), most_within=max(before, within), largest=(before, after))


class CutAtLengths(Walk, Record):
    """Cut to the budget in the step behind the one at which the whole text, dropped tokens too, has a multiple of ``every`` tokens.

    With a prompt of 100 and 128, 128: the text has 128 tokens behind step 28, and step 29 goes from 129 to 128.
    Source: Zefan-Cai/R-KV d15c976, CausalLM_forward with step_length.
    """

    start: Start
    budget: int
    every: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, text = self.start.length, self.start.prompt
        for _ in range(self.start.steps):
            before = length + 1
            length = self.budget if text % self.every == 0 and before > self.budget else before
            text += 1
            yield before, length

    def ends(self) -> Ends:
        every = self.every
        due = -self.start.prompt % every + 1
        # The first step at which it is due and above the budget.
        above = self.budget - self.start.length + 1
        return sawtooth(self.start, due + every * -(min(0, due - above) // every), self.budget, every)


class CutAbove(Walk, Record):
    """Cut to the budget in the step that reaches the budget and ``every`` tokens."""

    start: Start
    budget: int
    every: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length = self.start.length
        for _ in range(self.start.steps):
            before = length + 1
            length = self.budget if before >= self.budget + self.every else before
            yield before, length

    def ends(self) -> Ends:
        return sawtooth(self.start, max(1, self.budget + self.every - self.start.length), self.budget, self.every)


_RATIO_AND_BUDGET: Final = "Give compression_ratio, which is a share of the prompt, or budget, which is tokens."


def budgeted(chosen: Chosen, setting: Setting, prompt: int) -> int | None:
    """The tokens that a policy keeps by the paper's rules: its budget, or its ratio of the prompt. ``None`` under kvpress's rules."""
    budget: int | None = chosen.get("budget")
    if budget is None and chosen.get("divide_length") is not None:
        raise UsageError(f"{chosen.policy.name}: divide_length needs a budget.", hint=f"Write: {chosen.policy.name}:budget=1024")
    if budget is not None and chosen.get("compression_ratio"):
        raise UsageError(f"{chosen.policy.name} has a ratio and a budget.", hint=_RATIO_AND_BUDGET)
    if budget is not None:
        check_room(chosen, budget)
    if budget is None and setting.rules == PAPER and chosen.get("compression_ratio"):
        return kept(prompt, chosen.ratio)
    return budget


def check_room(chosen: Chosen, budget: int) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the window fills the budget: the authors of SnapKV and R-KV want a token beside it."""
    window = chosen.get("window_size")
    if window is not None and budget <= window:
        raise UsageError(
            f"{chosen.policy.name}: window_size is {window:,}, so a budget of {budget:,} has no place for another token.",
            hint=f"Make the budget more than {window:,}, or window_size smaller.",
        )


def cut_to(chosen: Chosen, state: State, setting: Setting, budget: int) -> State:
    """A prompt above the budget is cut to it."""
    check_attention(chosen, setting.attention)
    return each_layer(state, lambda _, tokens: min(tokens, budget))


def repeated(chosen: Chosen, start: Start) -> Walk:
    """The decode steps of a policy that may have a budget: as often as ``divide_length`` says, as its paper does, or not at all."""
    budget = budgeted(chosen, start.setting, start.prompt)
    if budget is None:
        return Growing(start=start)
    if chosen.get("divide_length") is not None:
        return CutAtLengths(start=start, budget=budget, every=chosen["divide_length"])
    return CutEachStep(start=start, budget=budget) if chosen.policy.cuts_each_step else Growing(start=start)


Worked = tuple[str, Mapping[str, float]]
"""A formula of ``n`` tokens in which ``x`` multiplies, and its numbers. Explanations show it where it gives what the policy keeps."""

_SHARE: Final = "max(1, floor(n x (1 - compression_ratio)))"
_BUDGET: Final = "min(n, policy_budget)"


def share_or_budget(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the tokens, or a number of them."""
    budget = budgeted(chosen, setting, tokens) if chosen.policy.decode is not None else None
    if budget is not None:
        return _BUDGET, {"n": tokens, "policy_budget": budget}
    if chosen.ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    return _SHARE, {"n": tokens, "compression_ratio": chosen.ratio}


def to_budget(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """At most so many tokens."""
    return _BUDGET, {"n": tokens, "policy_budget": chosen["budget"]}


def all_stay(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """Every token is stored."""
    return "n", {"n": tokens}


def without_delimiter(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the tokens without the one that parts prompt and question."""
    return _SHARE.replace("n x", "(n - 1) x"), {"n": tokens, "compression_ratio": chosen.ratio}


def by_chunks(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the chunks, at the most; a prompt below one chunk is left to the scorer."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    inner: Chosen = chosen["press"]
    if ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    if tokens < chunk:
        return inner.policy.worked(inner, tokens, layer, setting) if inner.policy.worked is not None else ("", {})
    formula = "max(1, floor(ceil(n / chunk_length) x (1 - compression_ratio))) x chunk_length"
    return f"min(n, {formula})", {"n": tokens, "chunk_length": chunk, "compression_ratio": ratio}


def each_chunk(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of each chunk, of the short last one too."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    if ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    values = {"n": tokens, "chunk_length": chunk, "compression_ratio": ratio}
    whole, rest = (
        f"floor(n / chunk_length) x {_SHARE.replace('n x', 'chunk_length x')}",
        "n - chunk_length x floor(n / chunk_length)",
    )
    if tokens % chunk == 0:
        return whole, values
    return f"{whole} + {_SHARE.replace('n x', f'({rest}) x')}", values
