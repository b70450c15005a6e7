"""Solvers: the longest sequence, the most sequences at once, the fewest GPUs, and the best layout.

All rest on one predicate, :func:`holds`: do the planned sequences fit on the fullest GPU? It is monotone in the length and in the number
of sequences, so that bisection finds the limit. A cache with a buffer of uncompressed tokens shrinks each time that buffer is emptied.
But a sequence passes through every shorter length, so it fits only if all shorter ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Section
from hwcalc.engines.pool import PoolInfo
from hwcalc.errors import KvplanError
from hwcalc.formulas.frozen import frozen
from hwcalc.planner.result import UNLIMITED

__all__ = [
    "MOST_GPUS",
    "MOST_SEARCHED",
    "NODE",
    "UNLIMITED",
    "GpuLayout",
    "Most",
    "best_layout",
    "budget_bytes",
    "counts",
    "fewest_gpus",
    "holds",
    "holds_in",
    "last_yes",
    "layouts",
    "longest",
    "most",
]

MOST_GPUS: Final = 64

MOST_SEARCHED: Final = 512
"""The most GPUs among which the fewest are searched for where a request for more fits: each node takes up to 75 ms."""
NODE: Final = 8
"""How many GPUs are linked closely enough for tensor parallelism, by default."""


@frozen
class Most:
    """The largest number that fits, and what limits it; ``None`` is no limit."""

    value: int
    limiting: str | None


@frozen
class GpuLayout:
    """The parallel sizes, how many sequences they hold at once, and whether they do so even at the high end of the estimates."""

    tp: int
    pp: int
    dp: int
    sequences: int
    certain: bool

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tp * self.pp * self.dp


def budget_bytes(opened: Opened, end: str = "expected") -> int | None:
    """Bytes of each GPU for the cache, from the user or from the engine's budget; ``None`` if unknown. ``end`` is low, expected or high."""
    if opened.request.hardware.kv_memory is not None:
        return opened.request.hardware.kv_memory
    budget = opened.budget
    return None if budget is None else int(getattr(budget, end))


def holds(opened: Opened, end: str = "expected") -> bool:
    """Whether the planned sequences fit at this end of the budget, at every length up to the planned one."""
    size = budget_bytes(opened, end)
    return size is not None and holds_in(opened, size)


def holds_in(opened: Opened, size: int, pool: PoolInfo | None = None) -> bool:
    """Whether the planned sequences fit into ``size`` bytes of cache. ``pool`` is the engine's pool of that size, if already known."""
    limit = opened.engine.most_sequences(opened)
    if limit is not None and opened.batch > limit[0]:
        return False
    for period in opened.engine.periods(opened):
        # The longest shorter length with a full buffer: with groups of 4 and 32 tokens, that is 31 tokens.
        full_buffer = opened.tokens // period * period - 1
        if full_buffer > 0 and not _fits(opened.changed(seq=full_buffer), size, None):
            return False
    return _fits(opened, size, pool)


def _fits(opened: Opened, size: int, pool: PoolInfo | None) -> bool:
    return opened.engine.holds(opened, size) if pool is None else size >= 0 and pool.holds(opened.request.replica_batch)


def last_yes(good: Callable[[int], bool], bound: int, guess: int = 1) -> int:
    """The largest number from 0 to ``bound`` for which ``good`` is true. Every number below a good one must be good; 0 counts as good.

    Doubles from ``guess`` until it fails, and then bisects. That takes about 20 calls for a million.

    >>> last_yes(lambda n: n * n <= 50, 100)
    7
    """
    low, high = 0, max(1, min(guess, bound))
    while high <= bound and good(high):
        low, high = high, min(2 * high, bound) if high < bound else bound + 1
    high = min(high, bound + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return low


def longest(opened: Opened, size: int | None = None) -> Most:
    """The most tokens that each planned sequence can have, up to the maximum of the model or the planned length if that is more.

    ``size`` is the budget of the planned request, if already known.
    """
    model_length = opened.model.max_position_embeddings
    bound = UNLIMITED if model_length is None else max(model_length, opened.tokens)
    size = budget_bytes(opened) if size is None else size
    limit = opened.engine.most_sequences(opened)
    if size is None:
        return Most(value=0, limiting="weights")
    if limit is not None and opened.batch > limit[0]:
        return Most(value=0, limiting=limit[1])
    largest = opened.engine.longest(opened, size, bound)
    if largest is None:
        largest = last_yes(lambda seq: _holds_changed(opened, seq=seq), bound, opened.tokens)
    if largest == bound:
        return Most(value=largest, limiting=None if model_length is None else "model length")
    return Most(value=largest, limiting=_binding(opened, largest, seq=1))


def most(opened: Opened, size: int | None = None, pool: PoolInfo | None = None) -> Most:
    """The most sequences of the planned length that fit at once.

    ``size`` is the budget of the planned request and ``pool`` the engine's pool of that size, if already known.
    """
    limit = opened.engine.most_sequences(opened)
    bound = UNLIMITED if limit is None else min(UNLIMITED, limit[0])
    size = budget_bytes(opened) if size is None else size
    if size is None:
        return Most(value=0, limiting="weights")
    pool = opened.pool(max(0, size)) if pool is None else pool
    if pool is not None and pool.max_requests is not None:
        largest = min(bound, pool.max_requests * opened.request.parallel.dp) if pool.fits and size >= 0 else 0
    else:
        largest = last_yes(lambda batch: _holds_changed(opened, batch=batch), bound, _first_guess(opened, size, bound))
    if largest == bound:
        return Most(value=largest, limiting=None if limit is None else limit[1])
    if pool is not None and pool.state_slots is not None and pool.state_slots <= largest:
        return Most(value=largest, limiting="state slots")
    return Most(value=largest, limiting=_binding(opened, largest, batch=1))


def _binding(opened: Opened, largest: int, **least: int) -> str:
    """What limits the result: the cache, or the weights or activations if these leave nothing for any cache."""
    if largest or opened.request.hardware.kv_memory is not None:
        return "cache"
    try:
        budget = opened.changed(**least).budget
    except KvplanError:
        return "cache"
    if budget is None:
        return "weights"
    if budget.expected > 0:
        return "cache"
    weights = sum(part.expected for part in budget.parts if part.section is Section.WEIGHTS)
    return "weights" if weights >= budget.requested_bytes else "activations"


def _first_guess(opened: Opened, size: int, bound: int) -> int:
    """An estimate of how many sequences fit into ``size`` bytes, from which the search starts."""
    one = opened.changed(batch=opened.request.parallel.dp).needed_bytes
    return max(1, min(bound, size // one * opened.request.parallel.dp)) if one else 1


def _holds_changed(opened: Opened, **change: int) -> bool:
    """Whether the request fits with this change. It does not if the engine refuses it."""
    try:
        return holds(opened.changed(**change))
    except KvplanError:
        return False


def layouts(opened: Opened, gpus: int, node: int = NODE) -> Iterator[tuple[int, int, int]]:
    """Every (tp, pp, dp) of ``gpus`` GPUs: tp divides all heads and stays in a node, and pp is at most the number of layers.

    >>> from hwcalc import load_model
    >>> from hwcalc.planner.context import open_request
    >>> opened = open_request(load_model("meta-llama/Llama-3.1-8B"), seq=4096)
    >>> list(layouts(opened, 4))
    [(4, 1, 1), (2, 1, 2), (2, 2, 1), (1, 1, 4), (1, 2, 2), (1, 4, 1)]
    """
    heads = {
        dims["num_attention_heads"] for group in opened.model.stack.groups if "num_attention_heads" in (dims := group.kind.dims())
    }
    for tp in range(min(gpus, node), 0, -1):
        if gpus % tp or any(count % tp for count in heads):
            continue
        for pp in range(1, min(gpus // tp, len(opened.model.stack)) + 1):
            if gpus // tp % pp == 0:
                yield tp, pp, gpus // tp // pp


def counts(most_gpus: int, node: int = NODE) -> tuple[int, ...]:
    """The numbers of GPUs to search: any number up to a node, and then whole nodes.

    >>> counts(40, node=8)
    (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40)
    """
    return (*range(1, min(node, most_gpus) + 1), *range(2 * node, most_gpus + 1, node))


def best_layout(opened: Opened, gpus: int, node: int = NODE) -> GpuLayout | None:
    """The best layout of ``gpus`` GPUs that holds the planned sequences; ``None`` if none does.

    Layouts that hold them for certain are better, then those that hold more sequences at once, then those with fewer pipeline stages,
    then those with more tensor parallelism.
    """
    best: tuple[tuple[bool, int, int, int], GpuLayout] | None = None
    for tp, pp, dp in layouts(opened, gpus, node):
        changed = _if_it_holds(opened, tp=tp, pp=pp, dp=dp)
        if changed is None:
            continue
        layout = GpuLayout(tp=tp, pp=pp, dp=dp, sequences=most(changed).value, certain=holds(changed, "low"))
        rank = (layout.certain, layout.sequences, -pp, tp)
        if best is None or rank > best[0]:
            best = rank, layout
    return None if best is None else best[1]


def fewest_gpus(opened: Opened, most_gpus: int = MOST_GPUS, node: int = NODE) -> tuple[int, int, int] | None:
    """tp, pp and dp of the fewest GPUs of the planned kind that hold the planned sequences; ``None`` if ``most_gpus`` do not."""
    least = _at_least(opened)
    for gpus in counts(most_gpus, node):
        for tp, pp, dp in layouts(opened, gpus, node) if gpus >= least else ():
            if _if_it_holds(opened, tp=tp, pp=pp, dp=dp) is not None:
                return tp, pp, dp
    return None


def _at_least(opened: Opened) -> int:
    """A lower bound on the number of GPUs: they must have memory for the weights."""
    try:
        single = opened.changed(tp=1, pp=1, dp=1, dcp=1, ep=1, batch=1)
        budget = single.budget
    except KvplanError:
        return 1
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights = sum(part.low for part in budget.parts if part.name == "weights")
    return max(1, -(-weights // budget.requested_bytes))


def _if_it_holds(opened: Opened, **layout: int) -> Opened | None:
    """The request in another layout; ``None`` if it does not fit, or the engine refuses it."""
    try:
        changed = opened.changed(**layout, dcp=1, ep=1)
        return changed if holds(changed) else None
    except KvplanError:
        return None
