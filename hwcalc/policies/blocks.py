"""Blocks of a paged cache that come back when tokens are dropped.

A block is free when nobody needs a token of it: no head and no layer of the group that shares it, and no other request. How many these are
depends on where the tokens that stay (the survivors) lie. Compaction moves them together first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, fsum, inf, log, log1p
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.policies.base import Count

Ranges = Sequence[tuple[int, int]]
"""Positions from start to end, in order and apart."""

_NEVER: Final = -inf
_HOPELESS: Final = 800
"""A chance is below exp(-b x k / n), which is no double's from here on."""
_PIECES: Final = 2**14
"""Factors of a chance that are multiplied one by one."""


def blocks_of(tokens: int, block: int) -> int:
    """Blocks that hold so many tokens in a row."""
    return -(-tokens // block)


def nominal_free(tokens: int, kept: int, block: int) -> int:
    """Whole blocks that the dropped tokens would fill, if they lay together.

    >>> nominal_free(16_000, 1_600, 16)
    900
    """
    return (tokens - kept) // block


def freed_by_compaction(tokens: int, kept: int, block: int) -> int:
    """Blocks that come back when the survivors lie together: at times one more than the dropped tokens fill.

    >>> freed_by_compaction(16_000, 1_600, 16), freed_by_compaction(2_176, 2_048, 16)
    (900, 8)
    """
    return blocks_of(tokens, block) - blocks_of(kept, block)


def free_of_survivors(
    tokens: int, survivors: Iterable[Iterable[int]], block: int, *, shared: Collection[int] = (), growing: bool = False
) -> int:
    """Blocks that are free without compaction: exact.

    ``survivors`` are the positions that stay, a set for each head of each layer of the group. ``shared`` are the numbers of blocks that
    others hold too. With ``growing`` the sequence goes on, and the next token is written behind the last one, so that a last block that is
    not full stays.

    >>> free_of_survivors(64, [[*range(32), *range(48, 64)]], 16)
    1
    >>> free_of_survivors(64, [range(32), range(16, 48)], 16)
    1
    """
    needed = {place // block for head in survivors for place in head}
    needed.update(number for number in shared if 0 <= number < blocks_of(tokens, block))
    if growing and tokens % block:
        needed.add(tokens // block)
    return blocks_of(tokens, block) - len(needed)


def free_of_ranges(tokens: int, ranges: Ranges, block: int, *, growing: bool = False) -> int:
    """The same where every head keeps these ranges.

    >>> free_of_ranges(16_000, [(0, 4), (14_404, 16_000)], 16)
    899
    """
    free = behind = 0
    for start, end in (*ranges, (tokens, None)):
        first = blocks_of(tokens, block) if end is None else start // block
        if end is None and growing and tokens % block:
            first = tokens // block
        free += max(0, first - behind)
        behind = max(behind, first if end is None else blocks_of(end, block))
    return free


def expected_free(tokens: int, choosers: Mapping[int, int], block: int, *, chunk: int = 1, growing: bool = False) -> float:
    """Blocks that are free on average without compaction, if heads keep tokens at random, each on its own.

    ``choosers`` are as many heads by the number of tokens that each keeps. A block of b tokens is free for one head with the
    chance C(n - b, k) / C(n, k), and for several with the product. With ``chunk`` they choose whole chunks of so many tokens.

    >>> [round(expected_free(16_000, {1_600: heads}, 16), 1) for heads in (1, 2)], round(expected_free(16_000, {160: 8}, 16), 1)
    ([185.1, 34.3], 276.1)
    """
    units = blocks_of(tokens, chunk)
    free = 0.0
    for many, touched in _touched(tokens, block, chunk, growing=growing).items():
        chances = (heads * _log_chance(units, blocks_of(kept, chunk), many) for kept, heads in choosers.items())
        free += touched * exp(fsum(chances))
    return free


def _touched(tokens: int, block: int, chunk: int, *, growing: bool) -> Counter[int]:
    """For each number of chunks, how many blocks lie in so many; the last block may be short."""
    full, rest = divmod(tokens, block)
    # A full block begins in one chunk, and each end of a chunk within it is one more: so many at least, and here and there one beyond.
    least = 1 + (block - 1) // chunk
    more = _sum_of_floors(full, block, block - 1, chunk) - _sum_of_floors(full, block, 0, chunk) - full * (least - 1)
    found = Counter({least: full - more, least + 1: more})
    if rest and not growing:
        found[(tokens - 1) // chunk - full * block // chunk + 1] += 1
    return +found


def _sum_of_floors(many: int, step: int, first: int, part: int) -> int:
    """The sum of (first + step x i) // part for i from 0 to many - 1, in as many turns as the common divisor takes.

    >>> _sum_of_floors(4, 6, 3, 10) == 3 // 10 + 9 // 10 + 15 // 10 + 21 // 10
    True
    """
    total, sign = 0, 1
    while many > 0:
        total += sign * ((many - 1) * many // 2 * (step // part) + many * (first // part))
        step, first = step % part, first % part
        # Whole numbers below the line are those beside it, less those above it.
        rows = (step * (many - 1) + first) // part
        total += sign * rows * many
        many, step, first, part, sign = rows, part, part - first - 1 + step, step, -sign
    return total


def _log_chance(tokens: int, kept: int, block: int) -> float:
    """The logarithm of C(n - b, k) / C(n, k), which is the product of (n - k - i) / (n - i) for i from 0 to b - 1."""
    if tokens - kept < block:
        return _NEVER
    few, many = sorted((kept, block))
    if few * many > _HOPELESS * tokens:
        return _NEVER
    if few <= _PIECES:
        return fsum(log((tokens - many - one) / (tokens - one)) for one in range(few))
    # The factors change so slowly here (b x k is far below n x n) that the one in the middle of a piece stands for all of it.
    ends = [few * piece // _PIECES for piece in range(_PIECES + 1)]
    return fsum((end - start) * log1p(-many / (tokens - (start + end - 1) / 2)) for start, end in pairwise(ends))


def free_range(tokens: int, choosers: Mapping[int, int], block: int, *, growing: bool = False) -> Count:
    """The fewest and the most blocks that can be free without compaction, wherever the survivors of the heads lie."""
    full, rest = divmod(tokens, block)
    most, survivors = max(choosers, default=0), sum(kept * heads for kept, heads in choosers.items())
    if growing and rest:
        return Count(low=max(0, full - survivors), high=full - blocks_of(max(0, most - rest), block))
    held = blocks_of(tokens, block)
    return Count(low=max(0, held - survivors), high=held - blocks_of(most, block))


class Compacted(Record):
    """A cache behind a compaction, with the numbers by their names in TriAttention's code and its logs.

    ``survivor_moves`` are survivors that change their slot, and ``copies`` slots that must be written for that.
    ``slots_changed_in_whole_table`` are those that have another token behind it, with dropped ones. ``front`` is the token in each slot
    that stays.
    """

    cache_len_after: int
    kept_blocks: int
    removed_blocks: int
    slots_changed_in_whole_table: int
    survivor_moves: int
    copies: int
    in_order: bool
    front: tuple[int, ...]


def repacked(tokens: int, survivors: Sequence[int], block: int) -> Compacted:
    """Survivors move to the front, in the order in which they are given, and dropped tokens behind them.

    TriAttention writes the whole table so, since the dropped tokens would else stay in the attention until the request is told its length.
    Source: WeianMao/triattention c3744ee, kv_compaction.py with ``preserve_dropped_tokens``, which layout_engine.py always sets.

    >>> toy = repacked(24, [place for place in range(24) if place not in (2, 9, 13, 21)], 4)
    >>> toy.removed_blocks, toy.survivor_moves, toy.slots_changed_in_whole_table
    (1, 18, 22)
    """
    order = tuple(survivors)
    if not order or len(order) >= tokens:
        return _compacted(tokens, tuple(range(len(order))), block, dropped=0)
    # A dropped token stays in its slot only if all survivors stand before it.
    return _compacted(tokens, order, block, dropped=max(order) + 1 - len(order))


def filled(tokens: int, survivors: Sequence[int], block: int) -> Compacted:
    """Survivors behind the new end move into the holes before it, in the order in which they are given; all others stay where they are.

    Source: WeianMao/triattention c3744ee, kv_compaction.py, ``_build_fill_hole_placement_shared``, which is switched off.

    >>> toy = filled(24, [place for place in range(24) if place not in (2, 9, 13, 21)], 4)
    >>> toy.removed_blocks, toy.copies, toy.in_order
    (1, 3, False)
    """
    front, stay = list(range(len(survivors))), set(survivors)
    holes = (place for place in range(len(front)) if place not in stay)
    for hole, place in zip(holes, (place for place in survivors if place >= len(front)), strict=True):
        front[hole] = place
    return _compacted(tokens, tuple(front), block, dropped=0)


def _compacted(tokens: int, front: tuple[int, ...], block: int, *, dropped: int) -> Compacted:
    """The result of a compaction.

    ``front`` lists, slot by slot, the place each survivor comes from; ``dropped`` is the number of slots of dropped tokens that change too.
    Its cost grows with the survivors of a head, not with the sequence.
    """
    moves, kept = sum(place != slot for slot, place in enumerate(front)), len(front)
    return Compacted(
        cache_len_after=kept,
        kept_blocks=blocks_of(kept, block),
        removed_blocks=freed_by_compaction(tokens, kept, block),
        slots_changed_in_whole_table=moves + dropped,
        survivor_moves=moves,
        copies=moves,
        in_order=all(before < after for before, after in pairwise(front)),
        front=front,
    )


def moves_of_ranges(ranges: Ranges, *, fill: bool = False) -> int:
    """Slots that a compaction copies, where the survivors are these ranges."""
    kept = sum(end - start for start, end in ranges)
    if fill:
        return sum(end - max(start, kept) for start, end in ranges if end > kept)
    return kept - (ranges[0][1] if ranges and ranges[0][0] == 0 else 0)


def expected_copies(tokens: int, kept: int, *, fill: bool = False) -> float:
    """Slots that a compaction copies on average, if survivors lie at random.

    A repack leaves those before the first dropped token alone, k / (n - k + 1) on average; filling copies those behind the new end.
    """
    if kept >= tokens:
        return 0.0
    return kept * (tokens - kept) / tokens if fill else kept - kept / (tokens - kept + 1)


def rewritten_of_ranges(tokens: int, ranges: Ranges) -> int:
    """Slots that have another token behind TriAttention's rewrite of the whole table, where the survivors are these ranges.

    Survivors before the first dropped token stay where they are, and dropped tokens behind the last survivor.
    """
    if not moves_of_ranges(ranges):
        return 0
    return tokens - (ranges[0][1] if ranges[0][0] == 0 else 0) - (tokens - ranges[-1][1])


def expected_rewritten(tokens: int, kept: int) -> float:
    """The same on average, if survivors lie at random."""
    dropped = tokens - kept
    if dropped <= 0 or not kept:
        return 0.0
    return tokens - kept / (dropped + 1) - dropped / (kept + 1)
