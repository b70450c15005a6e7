"""Solvers: the longest sequence, and the most sequences at once. Those for GPUs are in :mod:`hwcalc.planner.solve_gpus`.

All rest on one predicate, :func:`holds`: do the planned sequences fit on the fullest GPU? It is monotone in the length and in the number
of sequences, so that bisection finds the limit. A cache with a buffer of uncompressed tokens shrinks each time that buffer is emptied.
But a sequence passes through every shorter length, so it fits only if all shorter ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Section
from hwcalc.engines.families import resized
from hwcalc.engines.pool import PoolInfo
from hwcalc.errors import KvplanError
from hwcalc.planner.verdict import UNLIMITED

if TYPE_CHECKING:
    from hwcalc.engines.forms import MemoryForm
    from hwcalc.engines.room import Room

__all__ = [
    "UNLIMITED",
    "Most",
    "budget_bytes",
    "given_and_needed",
    "holds",
    "holds_in",
    "largest",
    "last_yes",
    "longest",
    "most",
]

_LEAP: Final = 8
"""How much farther each leap of a search goes than the one before."""
_SECANTS: Final = 3
"""The most steps towards a first guess."""


class Most(NamedTuple):
    """The largest number that fits, and what limits it; ``None`` is no limit."""

    value: int
    limiting: str | None


def budget_bytes(opened: Opened, end: str = "expected") -> int | None:
    """Bytes of each GPU for the cache, from the user or from the engine's budget; ``None`` if unknown. ``end`` is low, expected or high."""
    if opened.request.hardware.kv_memory is not None:
        return opened.request.hardware.kv_memory
    budget = opened.budget
    return None if budget is None else int(getattr(budget, end))


def room_of(opened: Opened) -> Room | None:
    """What decides whether the planned sequences fit, if it is that simple."""
    room = opened.engine.room(opened)
    return None if room is None or opened.tokens < room.least_tokens else room


def given_and_needed(opened: Opened, end: str) -> tuple[int, int]:
    """Bytes of the fullest GPU for the cache at this end of the budget, 0 if that is unknown, and those that the planned sequences take."""
    room = room_of(opened)
    if room is not None:
        return room.bytes[end], room.needed_bytes(opened.tokens, opened.request.batch)
    return budget_bytes(opened, end) or 0, opened.needed_bytes


def holds(opened: Opened, end: str = "expected") -> bool:
    """Whether the planned sequences fit at this end of the budget, at every length up to the planned one."""
    room = room_of(opened)
    if room is not None:
        return room.holds(opened.tokens, opened.request.batch, end)
    size = budget_bytes(opened, end)
    return size is not None and holds_in(opened, size, end=end)


def holds_in(opened: Opened, size: int, pool: PoolInfo | None = None, *, end: str = "expected") -> bool:
    """Whether the planned sequences fit into ``size`` bytes of cache, which is this ``end`` of the budget.

    ``pool`` is the engine's pool of that size, if already known.
    """
    limit = opened.engine.most_sequences(opened)
    if limit is not None and opened.batch > limit[0]:
        return False
    if opened.engine.lacking(opened, end) is not None:
        return False
    if any(not _fits(opened.changed(seq=crest), size, None) for crest in _crests(opened)):
        return False
    return _fits(opened, size, pool)


def _crests(opened: Opened) -> Iterator[int]:
    """Shorter lengths that may take more memory than the planned one."""
    for period in opened.engine.periods(opened):
        # The longest shorter length with a full buffer: with groups of 4 and 32 tokens, that is 31 tokens.
        full_buffer = opened.tokens // period * period - 1
        if full_buffer > 0:
            yield full_buffer
    asked = opened.request.policy
    # A prompt of its own length is cut as it is.
    if asked is None or opened.request.prompt is not None:
        return
    for one in asked.chosen.whole:
        for crest in () if one.policy.crests is None else one.policy.crests(one):
            if opened.ahead + crest < opened.tokens:
                yield opened.ahead + crest


def _fits(opened: Opened, size: int, pool: PoolInfo | None) -> bool:
    return opened.engine.holds(opened, size) if pool is None else size >= 0 and pool.holds(opened.request.replica_requests)


def last_yes(good: Callable[[int], bool], bound: int, guess: int = 1) -> int:
    """The largest number from 0 to ``bound`` for which ``good`` is true. Every number below a good one must be good; 0 counts as good.

    Leaps away from ``guess``, farther each time, until the answer lies between, and then bisects. A guess that is nearly right takes few
    calls, any other about 25 for a million.

    >>> last_yes(lambda n: n * n <= 50, 100)
    7
    """
    low, high, leap = 0, bound + 1, 1
    number = max(0, min(guess, bound))
    upwards = number > 0 and good(number)
    if upwards:
        low = number
    else:
        high = max(1, number)
    while low < bound if upwards else high > 1:
        number = min(low + leap, bound) if upwards else max(high - leap, 0)
        if not number:
            break
        if good(number):
            low = number
        else:
            high = number
        if low and high <= bound:
            break
        leap *= _LEAP
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def longest(opened: Opened, size: int | None = None, end: str = "expected", at_most: int = UNLIMITED) -> Most:
    """The most tokens that each planned sequence can have, up to the maximum of the model or the planned length if that is more.

    ``size`` is the budget of the planned request at this ``end``, if already known, and ``at_most`` an upper bound on the answer.
    """
    opened = opened.engine.pinned(opened)
    model_length = opened.model.max_position_embeddings
    bound = UNLIMITED if model_length is None else max(model_length, opened.tokens)
    size = budget_bytes(opened, end) if size is None else size
    limit = opened.engine.most_sequences(opened)
    if size is None:
        return Most(value=0, limiting="weights")
    if limit is not None and opened.batch > limit[0]:
        return Most(value=0, limiting=limit[1])
    most_tokens = min(bound, at_most)
    direct = opened.engine.longest(opened, size, most_tokens)
    if direct is None and _holds_nothing(opened, end):
        largest = 0
    else:
        # A direct answer goes by the planned budget, which a longer sequence may not have.
        good, guess = _judge(opened, "seq", end), _length_guess(opened, end, most_tokens) if direct is None else max(1, direct)
        largest = last_yes(lambda seq: _is_short(opened, seq) or good(seq), most_tokens, guess)
        if largest and _is_short(opened, largest):
            largest = 0
    if largest == bound:
        beyond = model_length is not None and bound > model_length
        return Most(value=largest, limiting=None if model_length is None else "planned length" if beyond else "model length")
    return Most(value=largest, limiting=_binding(opened, largest, end, seq=1))


def most(
    opened: Opened, size: int | None = None, pool: PoolInfo | None = None, end: str = "expected", at_most: int = UNLIMITED
) -> Most:
    """The most requests of the planned length that fit at once: sequences, if each is one.

    ``size`` is the budget of the planned request at this ``end`` and ``pool`` the engine's pool of that size, if already known;
    ``at_most`` is an upper bound on the answer.
    """
    opened = opened.engine.pinned(opened)
    limit = opened.engine.most_sequences(opened)
    bound = UNLIMITED if limit is None else min(UNLIMITED, limit[0] // opened.request.sharing.branches)
    size = budget_bytes(opened, end) if size is None else size
    if size is None:
        return Most(value=0, limiting="weights")
    served = opened.engine.most_served(opened, max(0, size)) if pool is None and opened.request.policy is None else None
    if pool is None and served is None:
        pool = opened.engine.pool(opened, max(0, size)).value
    # What a policy takes beside the pool may depend on how many requests there are.
    if served is not None:
        largest = min(bound, served) if size >= 0 else 0
    elif pool is not None and pool.most is not None and opened.engine.pooled and opened.request.policy is None:
        # The pool is that of the planned sequences: more of them may leave it less, and fewer more.
        guess = min(bound, pool.most * opened.request.parallel.dp) if pool.fits and size >= 0 else 0
        largest = last_yes(_judge(opened, "batch", end), bound, max(1, guess))
    else:
        guess = _first_guess(opened, size, min(bound, at_most))
        largest = last_yes(_judge(opened, "batch", end), min(bound, at_most), guess)
    if largest == bound:
        return Most(value=largest, limiting=None if limit is None else limit[1])
    if pool is not None and pool.state_slots is not None and pool.state_slots <= largest:
        return Most(value=largest, limiting="state slots")
    return Most(value=largest, limiting=_binding(opened, largest, end, batch=1))


def largest(opened: Opened, name: str, bound: int, end: str = "low") -> int:
    """The most sequences, or the longest of each, that fit at this end of the budget; 0 if none does.

    ``name`` is ``batch`` or ``seq``. Unlike :func:`most` and :func:`longest` it goes by :func:`holds` alone.
    """
    room = room_of(opened)
    if room is not None:
        direct = room.most(opened.tokens, end, bound) if name == "batch" else room.longest(opened.request.batch, end, bound)
        if direct is not None or _holds_nothing(opened, end):
            return direct or 0
    return last_yes(_judge(opened, name, end), bound, min(bound, opened.tokens if name == "seq" else opened.request.batch))


def _holds_nothing(opened: Opened, end: str) -> bool:
    """Whether even a single token does not fit, where a longer sequence takes no less for certain."""
    first = opened.engine.first_room(opened)
    return first is not None and not first.holds(1, opened.request.batch, end)


def _binding(opened: Opened, largest: int, end: str, **least: int) -> str:
    """What limits the result: the cache, or the largest part of the memory beside it if all parts leave nothing for any cache.

    With layers in the memory of the host, it may be that memory.
    """
    (name,) = least
    if opened.engine.splits_layers and (lacking := _lacking(opened, end, **{name: largest + 1})) is not None:
        return lacking
    if largest or opened.request.hardware.kv_memory is not None:
        return "cache"
    try:
        budget = resized(opened, **least).budget
    except KvplanError:
        return "cache"
    if budget is None:
        return Section.WEIGHTS.value
    if getattr(budget, end) > 0:
        return "cache"
    sizes = dict.fromkeys(Section, 0)
    for part in budget.parts:
        # The low end of the budget is what the high ends of its parts leave.
        sizes[part.section] += part.high if end == "low" else part.expected
    return max(sizes, key=sizes.__getitem__).value


def _lacking(opened: Opened, end: str, **change: int) -> str | None:
    """What the request lacks outside the fullest GPU with this change; ``None`` too if the engine refuses it."""
    try:
        changed = opened.changed(**change)
        return changed.engine.lacking(changed, end)
    except KvplanError:
        return None


def _length_guess(opened: Opened, end: str, bound: int) -> int:
    """An estimate of the longest length, by the secant of the memory that is left at two lengths; the search starts from it."""
    form = _form_of(opened)

    def left(length: int) -> int:
        if form is not None:
            return form.left(length, opened.request.batch, end) - form.needed_bytes(length, opened.request.batch)
        changed = opened.changed(seq=length)
        return (budget_bytes(changed, end) or 0) - changed.needed_bytes

    first, second = max(1, opened.tokens // 2), opened.tokens
    try:
        at_first, at_second = left(first), left(second)
        for _ in range(_SECANTS):
            if first == second or at_first == at_second:
                break
            guess = second - at_second * (second - first) // (at_second - at_first)
            first, at_first, second = second, at_second, max(1, min(bound, guess))
            if second in (first, bound):
                break
            at_second = left(second)
    except KvplanError:
        return opened.tokens
    return second


def _first_guess(opened: Opened, size: int, bound: int) -> int:
    """An estimate of how many sequences fit into ``size`` bytes, from which the search starts."""
    one = opened.changed(batch=opened.request.parallel.dp).needed_bytes
    return max(1, min(bound, size // one * opened.request.parallel.dp)) if one else 1


def _judge(opened: Opened, name: str, end: str) -> Callable[[int], bool]:
    """Whether the request fits with another length (``seq``) or number of sequences (``batch``) at this end of the budget."""
    form = _form_of(opened)
    if form is None:
        return lambda value: _holds_changed(opened, end, **{name: value})
    if name == "seq":
        return lambda tokens: form.holds(tokens, opened.request.batch, end)
    return lambda sequences: form.holds(opened.tokens, sequences, end)


def _form_of(opened: Opened) -> MemoryForm | None:
    """The form of an engine that places layers anew at each length: a plan of each would take several times as long."""
    return opened.engine.form(opened) if opened.engine.splits_layers and opened.request.parallel.dp == 1 else None


def _holds_changed(opened: Opened, end: str, **change: int) -> bool:
    """Whether the request fits with this change at this end of the budget. It does not if the engine refuses it."""
    try:
        return holds(opened.changed(**change), end)
    except KvplanError:
        return False


def _is_short(opened: Opened, seq: int) -> bool:
    """Whether a sequence shorter than the planned one is too short for the policy of the request: the search is for a longer one."""
    if opened.request.policy is None or seq >= opened.tokens:
        return False
    try:
        return opened.sized(seq=seq).evicted is None
    except KvplanError:
        return True
