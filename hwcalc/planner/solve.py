"""Solvers: the longest sequence, the most sequences at once, and the fewest GPUs with the layout to run them in.

All rest on one predicate, :func:`holds`: do the planned sequences fit on the fullest GPU, by the budget that there is for them? It is
monotone in the length and in the number of sequences, so that bisection finds the limit. A cache with a buffer of uncompressed tokens
shrinks each time that buffer is emptied. But a sequence passes through every shorter length, so it fits only if all shorter ones do.

Where the deployment has a closed form, other lengths and numbers of sequences are judged by it, which takes microseconds
(:func:`closed_form`). Policies, unlike lengths and what sequences share are judged load by load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy, kept_form
from hwcalc.engines.memory import Section
from hwcalc.errors import KvplanError
from hwcalc.formulas import Role
from hwcalc.formulas.record import Record
from hwcalc.planner.layouts import counts, has_experts, layouts, node_of
from hwcalc.planner.verdict import UNLIMITED, Layout, Verdict

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.forms import Memory, MemoryForm
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.setup import Request
    from hwcalc.profiles.hardware_file import Gpu

Count = Literal["seq", "batch"]
"""What a solver changes of a load: the tokens of each sequence, or the number of requests."""

_ENDS: Final = ("expected", "low", "high")
_LEAP: Final = 8
"""How much farther each leap of a search goes than the one before."""
_STATES: Final = (Role.STATE, Role.CONV)
_SECANTS: Final = 3
"""The most steps towards a first guess."""


class Most(Struct, frozen=True):
    """The largest number that fits, and what limits it; ``None`` is no limit."""

    value: int
    limiting: str | None


def budget_bytes(occupancy: Occupancy, end: str = "expected") -> int | None:
    """Bytes of each GPU for the cache, from the user or from the engine's budget; ``None`` if unknown. ``end`` is low, expected or high."""
    if occupancy.setup.hardware.kv_memory is not None:
        return occupancy.setup.hardware.kv_memory
    budget = occupancy.budget
    return None if budget is None else int(getattr(budget, end))


def holds(occupancy: Occupancy, end: str = "expected") -> bool:
    """True if the planned sequences fit at this end of the budget, at every length up to the planned one."""
    size = budget_bytes(occupancy, end)
    return size is not None and holds_in(occupancy, size, end)


def verdict_of(occupancy: Occupancy) -> Verdict:
    """The verdict: whether the planned sequences fit, and how sure that is."""
    return Verdict.of(*(holds(occupancy, end) for end in _ENDS))


def tried(occupancy: Occupancy, **change: Any) -> Occupancy | None:
    """The occupancy of the changed request; ``None`` if the engine refuses it."""
    try:
        return occupancy.changed(**change)
    except KvplanError:
        return None


def holds_in(occupancy: Occupancy, size: int, end: str = "expected") -> bool:
    """True if the planned sequences fit into ``size`` bytes of cache, which is this ``end`` of the budget."""
    limit = occupancy.most_sequences()
    if limit is not None and occupancy.batch > limit[0]:
        return False
    if occupancy.devices.lacking(end) is not None:
        return False
    return all(occupancy.changed(seq=crest).holds(size) for crest in _crests(occupancy)) and occupancy.holds(size)


def _crests(occupancy: Occupancy) -> Iterator[int]:
    """The shorter lengths in tokens that may take more memory than the planned length."""
    for period in occupancy.deployment.traits.periods:
        # The longest shorter length with a full buffer: with groups of 4 and 32 tokens, that is 31 tokens.
        full_buffer = occupancy.tokens // period * period - 1
        if full_buffer > 0:
            yield full_buffer
    policy = occupancy.setup.policy
    # A prompt of its own length is cut as it is.
    if policy is None or occupancy.load.prompt is not None:
        return
    for chosen in policy.chosen.whole:
        for crest in () if chosen.policy.crests is None else chosen.policy.crests(chosen):
            if occupancy.policies.ahead + crest < occupancy.tokens:
                yield occupancy.policies.ahead + crest


def closed_form(occupancy: Occupancy) -> MemoryForm | None:
    """The memory of the planned GPU at every length and for every number of sequences; ``None`` if the engine has no form of such loads."""
    form = kept_form(occupancy.devices.pinned())
    return None if form is None else replace(form, model_tokens=occupancy.model.max_position_embeddings)


def last_yes(good: Callable[[int], bool], bound: int, guess: int = 1, step: int = 1) -> int:
    """The largest number from 0 to ``bound`` for which ``good`` is true. Every number below a good one must be good; 0 counts as good.

    Leaps away from ``guess``, farther each time, until the answer lies between, and then bisects. A guess that is nearly right takes few
    calls, any other about 25 for a million. With a ``step`` the answer is looked for among its multiples first, and then between two.

    >>> last_yes(lambda n: n * n <= 50, 100), last_yes(lambda n: n * n <= 5000, 100, 80, step=16)
    (7, 70)
    """
    if step > 1:
        whole = step * last_yes(lambda number: good(step * number), bound // step, max(1, guess // step))
        between = min(step - 1, bound - whole)
        return whole + last_yes(lambda number: good(whole + number), between) if between else whole
    number = max(0, min(guess, bound))
    low, high = _leap_up(good, number, bound) if number > 0 and good(number) else _leap_down(good, max(1, number))
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def _leap_up(good: Callable[[int], bool], low: int, bound: int) -> tuple[int, int]:
    """A good number and a larger one that is not, from the good number ``low`` up. What is beyond ``bound`` counts as not good."""
    leap = 1
    while low < bound:
        number = min(low + leap, bound)
        if not good(number):
            return low, number
        low = number
        leap *= _LEAP
    return low, bound + 1


def _leap_down(good: Callable[[int], bool], high: int) -> tuple[int, int]:
    """A good number, or 0, and a larger one that is not, from ``high`` down, which is not good, or 1."""
    leap = 1
    while high > leap:
        number = high - leap
        if good(number):
            return number, high
        high = number
        leap *= _LEAP
    return 0, high


def longest(occupancy: Occupancy, end: str = "expected", at_most: int = UNLIMITED) -> Most:
    """The most tokens that each planned sequence can have, up to the maximum of the model or the planned length if that is more.

    ``end`` is that of the budget, and ``at_most`` an upper bound on the answer.
    """
    occupancy = occupancy.devices.pinned()
    model_length = occupancy.model.max_position_embeddings
    bound = UNLIMITED if model_length is None else max(model_length, occupancy.tokens)
    limit = occupancy.most_sequences()
    if budget_bytes(occupancy, end) is None:
        return Most(value=0, limiting="weights")
    if limit is not None and occupancy.batch > limit[0]:
        return Most(value=0, limiting=limit[1])
    most_tokens = occupancy.devices.most_tokens()
    value = _largest(occupancy, "seq", end, min(bound, at_most, bound if most_tokens is None else most_tokens))
    if value == most_tokens and value < bound:
        return Most(value=value, limiting="allowed length")
    if value == bound:
        beyond = model_length is not None and bound > model_length
        return Most(value=value, limiting=None if model_length is None else "planned length" if beyond else "model length")
    return Most(value=value, limiting=_binding(occupancy, "seq", value, end))


def longest_moved(occupancy: Occupancy, end: str) -> int | None:
    """The most tokens that each planned sequence can have where layers move to the memory of the host for it; ``None`` if the engine moves none."""
    if occupancy.devices.pinned() is occupancy or occupancy.setup.hardware.kv_memory is not None:
        return None
    bound = max(occupancy.model.max_position_embeddings or 0, occupancy.tokens)
    most_tokens = occupancy.devices.most_tokens()
    bound = bound if most_tokens is None else min(bound, most_tokens)
    # Most hosts have room for the longest, which is tried first.
    return _largest_by_loads(occupancy, "seq", end, bound, bound, skips_short=False)


def most(occupancy: Occupancy, end: str = "expected", at_most: int = UNLIMITED) -> Most:
    """The most requests of the planned length that fit at once: sequences, if each is one.

    ``end`` is that of the budget, and ``at_most`` an upper bound on the answer.
    """
    occupancy = occupancy.devices.pinned()
    limit = occupancy.most_sequences()
    bound = UNLIMITED if limit is None else min(UNLIMITED, limit[0] // occupancy.load.sharing.branches)
    size = budget_bytes(occupancy, end)
    if size is None:
        return Most(value=0, limiting="weights")
    value = _largest(occupancy, "batch", end, min(bound, at_most))
    if value == bound:
        return Most(value=value, limiting=None if limit is None else limit[1])
    if any(tensor.role in _STATES for tensors in occupancy.kind_tensors.values() for tensor in tensors):
        pool = occupancy.pool(max(0, size)).value
        if pool is not None and pool.state_slots is not None and pool.state_slots <= value:
            return Most(value=value, limiting="state slots")
    return Most(value=value, limiting=_binding(occupancy, "batch", value, end))


def largest(occupancy: Occupancy, name: Count, bound: int, end: str = "low") -> int:
    """The most sequences, or the longest of each, that fit at this end of the budget, up to ``bound``; 0 if none does.

    Unlike :func:`longest` it knows no sequence that is too short for a policy, and it searches from the planned number.
    """
    planned = occupancy.tokens if name == "seq" else occupancy.load.batch
    return _largest(occupancy, name, end, bound, min(bound, planned), skips_short=False)


def _largest(
    occupancy: Occupancy, name: Count, end: str, bound: int, guess: int | None = None, *, skips_short: bool = True
) -> int:
    """The largest length or number of requests that fits: the one bisection on which all limits rest.

    It begins at ``guess`` where the engine places layers anew at each length, so that memory does not grow with it everywhere.
    """
    form = _form_for_search(occupancy, name)
    if not occupancy.engine.facts.splits_layers:
        guess = None
    if form is None:
        return _largest_by_loads(occupancy, name, end, bound, guess, skips_short=skips_short and name == "seq")
    tokens, sequences = occupancy.tokens, occupancy.load.batch

    def at(value: int) -> Memory:
        return form.at(value, sequences) if name == "seq" else form.at(tokens, value)

    def left(value: int) -> int:
        memory = at(value)
        return memory.left(end) - memory.needed_bytes

    def good(value: int) -> bool:
        return at(value).holds(end)

    planned = tokens if name == "seq" else sequences
    if guess is None and form.is_full(end):
        value = 0
    else:
        # Bytes grow evenly with the number of sequences, so that two points of the line tell where it ends.
        guess = _secant(left, planned, bound, _SECANTS if name == "seq" else 1) if guess is None else guess
        value = last_yes(good, bound, guess, form.curve.step_tokens if name == "seq" else 1)
    if name == "seq" and value < form.least_tokens > 1:
        return _largest_by_loads(occupancy, name, end, bound, guess, skips_short=False)
    # The engine has accepted the planned load, and refuses none that is smaller.
    if value <= planned or tried(occupancy, **{name: value}) is not None:
        return value
    return last_yes(lambda number: good(number) and tried(occupancy, **{name: number}) is not None, value, min(value, planned))


def _form_for_search(occupancy: Occupancy, name: Count) -> MemoryForm | None:
    """The closed form if it covers the planned load and its changes of this kind.

    It is ``None`` if the search must try loads one by one.
    """
    if occupancy.engine.facts.splits_layers and occupancy.setup.parallel.dp > 1:
        return None
    form = kept_form(occupancy)
    return None if form is None or (name == "batch" and occupancy.tokens < form.least_tokens) else form


def _largest_by_loads(occupancy: Occupancy, name: Count, end: str, bound: int, guess: int | None, *, skips_short: bool) -> int:
    """As :func:`_largest`, with an occupancy for each load that is tried. A load that the engine refuses does not fit."""

    def good(value: int) -> bool:
        if skips_short and _is_short(occupancy, value):
            return True
        changed = tried(occupancy, **{name: value})
        try:
            return changed is not None and holds(changed, end)
        except KvplanError:
            return False

    def left(value: int) -> int:
        changed = occupancy.changed(**{name: value})
        return (budget_bytes(changed, end) or 0) - changed.needed_bytes

    if guess is None:
        try:
            guess = _secant(left, occupancy.tokens if name == "seq" else occupancy.load.batch, bound)
        except KvplanError:
            guess = occupancy.tokens if name == "seq" else 1
    value = last_yes(good, bound, guess)
    return 0 if skips_short and value and _is_short(occupancy, value) else value


def _secant(left: Callable[[int], int], planned: int, bound: int, most: int = _SECANTS) -> int:
    """The number at which no bytes are left, by at most so many steps of the secant method: the first guess of a search."""
    first, second = max(1, planned // 2), planned
    if first == second:
        first = second + 1
    at_first = left(first)
    for _ in range(most):
        at_second = left(second)
        if at_second == at_first:
            return second
        following = max(1, min(bound, second - at_second * (second - first) // (at_second - at_first)))
        if following in (first, second, bound):
            return following
        first, at_first, second = second, at_second, following
    return second


def _binding(occupancy: Occupancy, name: Count, value: int, end: str) -> str:
    """The name of what limits the result: what grows most of the cache and the other parts of the memory, from one up to one too many.

    It is the largest part if the parts leave nothing for a cache. With layers in the memory of the host, it may be that memory.
    """
    if occupancy.engine.facts.splits_layers:
        with suppress(KvplanError):
            lacking = occupancy.changed(**{name: value + 1}).devices.lacking(end)
            if lacking is not None:
                return lacking
    planned = occupancy.tokens if name == "seq" else occupancy.batch
    # A policy may need more than one token.
    first = next(filter(None, (_measured(occupancy, **{name: number}) for number in (1, planned))), None)
    beyond = _measured(occupancy, **{name: max(2, value + 1)})
    if first is None or occupancy.setup.hardware.kv_memory is not None:
        return "cache"
    if first.budget is None:
        return Section.WEIGHTS.value
    least = _section_bytes(first.budget, end)
    if not value and getattr(first.budget, end) <= 0:
        return max(least, key=least.__getitem__).value
    if beyond is None or beyond.budget is None:
        return "cache"
    grown = {section.value: size - least[section] for section, size in _section_bytes(beyond.budget, end).items()}
    sizes = {"cache": beyond.needed_bytes - first.needed_bytes, **grown}
    return max(sizes, key=sizes.__getitem__)


def _measured(occupancy: Occupancy, **changed: int) -> Occupancy | None:
    """The occupancy with these numbers; ``None`` where the engine or the policy refuses them."""
    with suppress(KvplanError):
        found = tried(occupancy, **changed)
        if found is not None:
            # The policy is asked for with the budget.
            _ = found.budget
        return found
    return None


def _section_bytes(budget: Budget, end: str) -> dict[Section, int]:
    """The bytes of each section of the memory, where the budget is at this end."""
    sizes = dict.fromkeys(Section, 0)
    for part in budget.parts:
        # The low end of the budget is what the high ends of its parts leave.
        sizes[part.section] += part.high if end == "low" else part.expected
    return sizes


def _is_short(occupancy: Occupancy, seq: int) -> bool:
    """True if a sequence shorter than the planned one is too short for the request's policy: the search is for longer ones."""
    if occupancy.setup.policy is None or seq >= occupancy.tokens:
        return False
    try:
        return occupancy.sized(seq=seq).evicted is None
    except KvplanError:
        return True


MOST_GPUS: Final = 64
MOST_SEARCHED: Final = 512
"""The most GPUs among which the fewest are searched for where a request for more fits: each node takes up to 75 ms."""


class HoldingLayout(Record):
    """A layout, and whether it holds the planned sequences even at the high end of the estimates."""

    layout: Layout
    certain: bool


def least_gpus(budget: Budget | None, cache_bytes: int = 0) -> int:
    """The fewest GPUs that have memory for one copy of the weights and so much cache; 1 if nothing is known."""
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights = sum(part.low for part in budget.parts if part.name == "weights")
    return max(1, -(-(weights + cache_bytes) // budget.requested_bytes))


def placed_layouts(
    opened: Occupancy, gpus: int, node: int | None, *, any_layout: bool, replica: int = 1
) -> Iterator[tuple[Layout, Occupancy]]:
    """The layouts of ``gpus`` GPUs that the engine accepts, in the order of :func:`~hwcalc.planner.layouts.layouts`, and the occupancy in each.

    Experts that the engine does not cut evenly are dealt out whole. ``replica`` is the fewest GPUs that have memory for a copy of the
    weights; where attention alone is data parallel, replicas share the other weights and can have fewer.
    """
    shares = opened.deployment.traits.deals_experts
    deals = shares and has_experts(opened.model)
    for layout in layouts(opened, gpus, node, any_layout=any_layout):
        if layout.tp * layout.pp < replica and not shares:
            continue
        dealt = replace(layout, ep=layout.tp * layout.dp)
        for sized in (layout, dealt) if deals and layout.ep < dealt.ep else (layout,):
            sizes = {**asdict(sized), "dcp": 1}
            # The planned layout is opened already.
            placed = opened if sizes == asdict(opened.setup.parallel) else tried(opened, **sizes)
            if placed is not None and opened.engine.facts.splits_layers:
                try:
                    placed = placed.devices.entire()
                except KvplanError:
                    placed = None
            if placed is not None:
                yield sized, placed
                break


def holding_layout(
    opened: Occupancy,
    gpus: int,
    node: int | None = None,
    *,
    any_layout: bool = False,
    replica: int = 1,
    serves: Callable[[Occupancy], bool] | None = None,
) -> HoldingLayout | None:
    """The layout of ``gpus`` GPUs that holds the planned sequences; ``None`` if none does.

    It is the first of :func:`placed_layouts` that holds them for certain, or else the first that holds them by the expected value. Only
    those count that ``serves`` says yes to.
    """
    likely = None
    for layout, placed in placed_layouts(opened, gpus, node, any_layout=any_layout, replica=replica):
        if holds(placed) and (serves is None or serves(placed)):
            if holds(placed, "low"):
                return HoldingLayout(layout=layout, certain=True)
            likely = likely or HoldingLayout(layout=layout, certain=False)
    return likely


def fullest_layout(opened: Occupancy, gpus: int, node: int | None, *, any_layout: bool = False) -> HoldingLayout | None:
    """The layout of ``gpus`` GPUs that holds the most sequences of the planned length; ``None`` if none holds one.

    Those count that it holds for certain, and among equal layouts those by the expected value; then the first of :func:`placed_layouts` is it.
    """
    best, most_held = None, (0, 0)
    for layout, placed in placed_layouts(opened, gpus, node, any_layout=any_layout):
        likely = most(placed).value
        held = most(placed, "low", likely).value, likely
        if held > most_held:
            best, most_held = HoldingLayout(layout=layout, certain=False), held
    return best


def has_layouts(engine: Engine, request: Request) -> bool:
    """True if the GPUs of a request can be laid out in several ways, of which one is known to hold it or not."""
    hardware = request.setup.hardware
    return request.setup.gpus > 1 and not engine.facts.splits_layers and hardware.gpu is not None and hardware.kv_memory is None


def fewest_gpus(
    opened: Occupancy, most_gpus: int, serves: Callable[[Occupancy], bool] | None = None
) -> tuple[Layout | None, Layout | None]:
    """The layouts of the fewest GPUs of the planned kind that hold the planned sequences, by the expected value and for certain.

    ``None`` if ``most_gpus`` do not. Only layouts count that ``serves`` says yes to.
    """
    least, likely = 1, None
    with suppress(KvplanError):
        single = tried(opened, tp=1, pp=1, dp=1, dcp=1, ep=1, batch=1)
        least = 1 if single is None else least_gpus(single.budget)
    # Cards are added one by one where none of them needs an equal share.
    any_layout = opened.engine.facts.splits_layers
    for gpus in counts(most_gpus, node_of(opened.setup.hardware.gpu), any_layout=any_layout):
        best = holding_layout(opened, gpus, replica=least, serves=serves) if gpus >= least else None
        if best is not None:
            likely = likely or best.layout
            if best.certain:
                return likely, best.layout
    return likely, None


def most_joined(gpu: Gpu, gpus: int, *, timed: bool = False) -> int:
    """The most GPUs of this kind that can be joined, at least the ``gpus`` of the plan.

    A laptop, for example, is never joined to another. Where a plan is ``timed``, nodes are not: no time counts the network between them.
    """
    return max(gpus, gpu.node) if gpu.whole_machine or timed else MOST_GPUS
