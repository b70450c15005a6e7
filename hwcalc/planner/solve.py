"""Questions turned round: how long, how many at once, on how few GPUs, in which layout. All by whole numbers.

Everything rests on one predicate, :func:`holds`: do the planned sequences fit the fullest GPU? It is monotone in the length and in
the number of sequences, so that halving finds the last yes and the first no. What waits in a buffer until it is compressed makes a
cache shrink now and then; a sequence passes through every length on its way, so that it fits only where all shorter ones do.
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
NODE: Final = 8
"""GPUs that are linked closely enough for tensor parallelism, unless the user says otherwise."""


@frozen
class Most:
    """The largest number that fits, and what keeps it from being larger; ``None`` is no limit."""

    value: int
    limiting: str | None


@frozen
class GpuLayout:
    """How many GPUs and how they share the work, the sequences they hold at once, and whether even the high end of estimates fits."""

    tp: int
    pp: int
    dp: int
    sequences: int
    certain: bool

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp


def budget_bytes(opened: Opened, end: str = "expected") -> int | None:
    """Bytes that each GPU has for the cache, given by hand or by the engine's equation; ``None`` is not known."""
    if opened.request.hardware.kv_memory is not None:
        return opened.request.hardware.kv_memory
    budget = opened.budget
    return None if budget is None else int(getattr(budget, end))


def holds(opened: Opened, end: str = "expected") -> bool:
    """Whether the planned sequences fit at this end of the estimates, on their way there as well."""
    size = budget_bytes(opened, end)
    return size is not None and holds_in(opened, size)


def holds_in(opened: Opened, size: int, pool: PoolInfo | None = None) -> bool:
    """Whether the planned sequences fit so many bytes of cache. ``pool`` is the engine's pool of that size, if it is at hand."""
    limit = opened.engine.most_sequences(opened)
    if limit is not None and opened.batch > limit[0]:
        return False
    for period in opened.engine.periods(opened):
        # The longest shorter sequence whose buffer is as full as can be: of groups of 4, 31 tokens on the way to 32.
        fuller = opened.tokens // period * period - 1
        if fuller > 0 and not _fits(opened.changed(seq=fuller), size, None):
            return False
    return _fits(opened, size, pool)


def _fits(opened: Opened, size: int, pool: PoolInfo | None) -> bool:
    return opened.engine.holds(opened, size) if pool is None else size >= 0 and pool.holds(opened.request.replica_batch)


def last_yes(good: Callable[[int], bool], bound: int, guess: int = 1) -> int:
    """The largest number from 0 to ``bound`` that is good, where every number below a good one is good. 0 always is.

    Doubles from ``guess`` until it fails, then halves: 20 questions for a million.

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
    """The most tokens that each of the planned sequences may have; at most the model's own length, or the planned one beyond it.

    ``size`` is the budget of the planned request, if it is at hand.
    """
    model_length = opened.model.max_position_embeddings
    bound = UNLIMITED if model_length is None else max(model_length, opened.tokens)
    size = budget_bytes(opened) if size is None else size
    limit = opened.engine.most_sequences(opened)
    if size is None:
        return Most(value=0, limiting="weights")
    if limit is not None and opened.batch > limit[0]:
        return Most(value=0, limiting=limit[1])
    found = opened.engine.longest(opened, size, bound)
    if found is None:
        found = last_yes(lambda seq: _good(opened, seq=seq), bound, opened.tokens)
    if found == bound:
        return Most(value=found, limiting=None if model_length is None else "model length")
    return Most(value=found, limiting=_binding(opened, found, seq=1))


def most(opened: Opened, size: int | None = None, pool: PoolInfo | None = None) -> Most:
    """The most sequences of the planned length at once. ``size`` is the budget of the planned request, and ``pool`` the engine's
    pool of that size, if they are at hand.
    """
    limit = opened.engine.most_sequences(opened)
    bound = UNLIMITED if limit is None else min(UNLIMITED, limit[0])
    size = budget_bytes(opened) if size is None else size
    if size is None:
        return Most(value=0, limiting="weights")
    pool = opened.pool(max(0, size)) if pool is None else pool
    if pool is not None and pool.max_requests is not None:
        found = min(bound, pool.max_requests * opened.request.parallel.dp) if pool.fits and size >= 0 else 0
    else:
        found = last_yes(lambda batch: _good(opened, batch=batch), bound, _likely(opened, size, bound))
    if found == bound:
        return Most(value=found, limiting=None if limit is None else limit[1])
    if pool is not None and pool.state_slots is not None and pool.state_slots <= found:
        return Most(value=found, limiting="state slots")
    return Most(value=found, limiting=_binding(opened, found, batch=1))


def _binding(opened: Opened, found: int, **least: int) -> str:
    """What binds: the weights, or what a forward pass needs beside them, if that leaves nothing for even the smallest cache."""
    if found or opened.request.hardware.kv_memory is not None:
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


def _likely(opened: Opened, size: int, bound: int) -> int:
    """About how many sequences share ``size`` bytes, to begin the search with."""
    one = opened.changed(batch=opened.request.parallel.dp).needed_bytes
    return max(1, min(bound, size // one * opened.request.parallel.dp)) if one else 1


def _good(opened: Opened, **change: int) -> bool:
    try:
        return holds(opened.changed(**change))
    except KvplanError:
        return False


def layouts(opened: Opened, gpus: int, node: int = NODE) -> Iterator[tuple[int, int, int]]:
    """Every way to share the work of ``gpus`` GPUs: tp that divides all heads and stays in a node, pp up to the layers, dp.

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
    """How many GPUs one can have: any number of one node, then whole nodes.

    >>> counts(40, node=8)
    (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40)
    """
    return (*range(1, min(node, most_gpus) + 1), *range(2 * node, most_gpus + 1, node))


def best_layout(opened: Opened, gpus: int, node: int = NODE) -> GpuLayout | None:
    """The layout of so many GPUs that holds the planned sequences for certain if one does, and the most of them at once.

    Among equals, the one with fewest pipeline stages and then most tensor parallelism. ``None`` if none holds them.
    """
    best: tuple[tuple[bool, int, int, int], GpuLayout] | None = None
    for tp, pp, dp in layouts(opened, gpus, node):
        made = _held(opened, tp=tp, pp=pp, dp=dp)
        if made is None:
            continue
        layout = GpuLayout(tp=tp, pp=pp, dp=dp, sequences=most(made).value, certain=holds(made, "low"))
        rank = (layout.certain, layout.sequences, -pp, tp)
        if best is None or rank > best[0]:
            best = rank, layout
    return None if best is None else best[1]


def fewest_gpus(opened: Opened, most_gpus: int = MOST_GPUS, node: int = NODE) -> tuple[int, int, int] | None:
    """tp, pp and dp of the fewest GPUs of the planned kind that hold the planned sequences; ``None`` if no number of them does."""
    least = _at_least(opened)
    for gpus in counts(most_gpus, node):
        for tp, pp, dp in layouts(opened, gpus, node) if gpus >= least else ():
            if _held(opened, tp=tp, pp=pp, dp=dp) is not None:
                return tp, pp, dp
    return None


def _at_least(opened: Opened) -> int:
    """GPUs below which the weights alone cannot fit, so that no layout of them need be tried."""
    try:
        single = opened.changed(tp=1, pp=1, dp=1, dcp=1, ep=1, batch=1)
        budget = single.budget
    except KvplanError:
        return 1
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights = sum(part.low for part in budget.parts if part.name == "weights")
    return max(1, -(-weights // budget.requested_bytes))


def _held(opened: Opened, **layout: int) -> Opened | None:
    try:
        made = opened.changed(**layout, dcp=1, ep=1)
        return made if holds(made) else None
    except KvplanError:
        return None
