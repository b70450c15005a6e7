"""Blocks that come back: published figures, an independent simulator, and laws."""

from __future__ import annotations

import itertools
import math
import operator
import random
import time
from array import array
from collections.abc import Callable
from fractions import Fraction
from math import comb
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import free_blocks
from hwcalc.errors import UsageError
from hwcalc.policies.blocks import (
    blocks_of,
    expected_copies,
    expected_free,
    expected_rewritten,
    filled,
    free_of_ranges,
    free_of_survivors,
    free_range,
    freed_by_compaction,
    moves_of_ranges,
    nominal_free,
    repacked,
    rewritten_of_ranges,
)
from hwcalc.units import MOST_TOKENS
from tests.effort import cases
from tests.hwcalc.policies.block_simulator import Pool, Sequence, compact

SETS: Final = cases(2_500, 10_000)
TOY: Final = [place for place in range(24) if place not in (2, 9, 13, 21)]


def test_every_tenth_token() -> None:
    """16,000 tokens in blocks of 16: none of 1,000 blocks is free, 900 are after compaction."""
    found = free_blocks(16_000, keep=range(0, 16_000, 10))

    assert (found.held, found.free, found.free_compacted, found.kept_blocks) == (1000, 0, 900, 100)
    assert found.nominal == 900


def test_a_random_choice() -> None:
    """One shared choice frees 185 of 1,000, two heads 34, eight none; in blocks of 32 one choice frees 17."""
    assert free_blocks(16_000, kept=1600).free == pytest.approx(185.1, abs=0.05)
    assert free_blocks(16_000, kept=1600, heads=2).free == pytest.approx(34.28, abs=0.005)
    assert free_blocks(16_000, kept=1600, heads=8).free == pytest.approx(0.001, abs=0.0005)
    assert free_blocks(16_000, kept=1600, block_size=32).free == pytest.approx(17.109, abs=0.0005)
    assert free_blocks(16_000, kept=160, heads=8).free == pytest.approx(276.084, abs=0.0005)


def test_one_survivor_in_each_block() -> None:
    """93.75 % evicted and none free; 63 blocks behind a compaction."""
    found = free_blocks(16_000, keep=range(0, 16_000, 16))

    assert (1 - found.kept / found.tokens, found.free, found.kept_blocks) == (0.9375, 0, 63)


def test_an_aligned_block() -> None:
    """A whole block goes without compaction."""
    assert free_blocks(64, keep=[*range(32), *range(48, 64)]).free == 1


def test_the_toy() -> None:
    """Six blocks of four without tokens 2, 9, 13 and 21: 18 copies in order, 3 into holes, 22 slots as TriAttention writes it."""
    found = free_blocks(24, keep=TOY, block_size=4)

    assert (found.free, found.free_compacted) == (0, 1)
    assert (found.repack.copies, found.fill.copies) == (18, 3)
    assert (found.repack.slots_changed_in_whole_table, found.repack.in_order, found.fill.in_order) == (22, True, False)
    assert filled(24, TOY, 4).front == (0, 1, 20, 3, 4, 5, 6, 7, 8, 22, 10, 11, 12, 23, 14, 15, 16, 17, 18, 19)


def test_the_cadence_of_triattention() -> None:
    """2,048 + 128 tokens are 136 blocks, and 128 behind the cut."""
    assert (blocks_of(2176, 16), blocks_of(2048, 16), freed_by_compaction(2176, 2048, 16)) == (136, 128, 8)


def test_thousands_of_survivor_sets() -> None:
    """The same blocks, copies and slots as a pool that counts references and moves tokens, whoever shares blocks."""
    chance = random.Random(15)  # noqa: S311 - the same sets in every run
    for _ in range(SETS):
        size, tokens = chance.choice((1, 2, 3, 4, 8, 16)), chance.randint(1, 72)
        share, whole = chance.random(), Sequence(Pool(size))
        whole.append(tokens)
        others = [whole.fork(chance.randint(0, len(whole.table))) for _ in range(chance.choice((0, 0, 1, 2)))]
        if others and chance.random() < 0.5:
            others[0].append(chance.randint(0, 8) * (others[0].tokens % size == 0))
        layers, heads = chance.randint(1, 2), chance.randint(1, 3)
        grid = [[{at for at in range(tokens) if chance.random() < share} for _ in range(heads)] for _ in range(layers)]
        found = free_blocks(
            tokens, keep=[[sorted(head) for head in layer] for layer in grid], block_size=size, shared=whole.shared()
        )
        one = sorted(grid[0][0])
        alone = free_blocks(tokens, keep=[one], block_size=size, shared=whole.shared())
        copy = Sequence(Pool(size, dict(whole.pool.holders)), list(whole.table), tokens)
        again = Sequence(Pool(size, dict(whole.pool.holders)), list(whole.table), tokens)
        freed, copies, changed, order = compact(copy, set(one), in_order=True)
        freed_too, holes, _, scrambled = compact(again, set(one), in_order=False)

        assert found.free == whole.evict(grid)
        assert (alone.free_compacted, alone.free_compacted) == (freed, freed_too)
        # TriAttention returns at once where nothing stays.
        assert (alone.repack.copies, alone.repack.slots_changed_in_whole_table) == (copies, changed)
        assert (alone.fill.copies, alone.fill.in_order) == (holes, scrambled == sorted(scrambled))
        assert order == sorted(order)


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_laws(tokens: int, block: int, data: st.DataObject) -> None:
    """What goes as it lies is at most what the dropped tokens fill, and that at most what goes after compaction."""
    heads = data.draw(st.lists(st.sets(st.integers(0, tokens - 1)), min_size=1, max_size=3))
    kept = max(map(len, heads))
    free = free_of_survivors(tokens, heads, block, growing=True)
    ends = free_range(tokens, {kept: len(heads)}, block, growing=True)

    assert 0 <= free <= nominal_free(tokens, kept, block) <= freed_by_compaction(tokens, kept, block)
    assert blocks_of(tokens, block) - freed_by_compaction(tokens, kept, block) == blocks_of(kept, block)
    assert free_of_survivors(tokens, heads, block) <= freed_by_compaction(tokens, kept, block)
    assert free - free_of_survivors(tokens, heads, block) in (0, -1)
    if len({*map(len, heads)}) == 1:
        assert ends.low <= free <= ends.high
    assert free_of_survivors(tokens, heads, block, shared=range(tokens)) == 0


def ranges_of(places: set[int]) -> list[tuple[int, int]]:
    """Positions as ranges: from each that begins one to behind the next that ends one."""
    starts = sorted(place for place in places if place - 1 not in places)
    return list(zip(starts, sorted(place + 1 for place in places if place + 1 not in places), strict=True))


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_ranges_are_survivors(tokens: int, block: int, data: st.DataObject) -> None:
    """Ranges give what their positions give."""
    stay = data.draw(st.sets(st.integers(0, tokens - 1)))
    ranges, growing = ranges_of(stay), data.draw(st.booleans())

    exact = free_of_survivors(tokens, [stay], block, growing=growing)
    assert free_of_ranges(tokens, ranges, block, growing=growing) == exact
    if stay:
        assert moves_of_ranges(ranges) == repacked(tokens, sorted(stay), block).copies
        assert moves_of_ranges(ranges, fill=True) == filled(tokens, sorted(stay), block).copies
        assert rewritten_of_ranges(tokens, ranges) == repacked(tokens, sorted(stay), block).slots_changed_in_whole_table


@pytest.mark.parametrize(("tokens", "kept", "block"), [(7, 3, 2), (8, 3, 4), (9, 2, 3), (6, 6, 2), (6, 0, 4), (5, 1, 8)])
def test_expectations_are_means_of_all_sets(tokens: int, kept: int, block: int) -> None:
    """Blocks, copies and slots, over every choice that there is."""
    from itertools import combinations

    sets = [set(one) for one in combinations(range(tokens), kept)]
    for growing in (False, True):
        one = Fraction(sum(free_of_survivors(tokens, [stay], block, growing=growing) for stay in sets), len(sets))
        two = Fraction(sum(free_of_survivors(tokens, [a, b], block, growing=growing) for a in sets for b in sets), len(sets) ** 2)
        assert expected_free(tokens, {kept: 1}, block, growing=growing) == pytest.approx(float(one))
        assert expected_free(tokens, {kept: 2}, block, growing=growing) == pytest.approx(float(two))
    if kept:
        packs = [repacked(tokens, sorted(stay), block) for stay in sets]
        fills = [filled(tokens, sorted(stay), block) for stay in sets]
        assert expected_copies(tokens, kept) == pytest.approx(sum(one.copies for one in packs) / len(sets))
        assert expected_copies(tokens, kept, fill=True) == pytest.approx(sum(one.copies for one in fills) / len(sets))
        changed = sum(one.slots_changed_in_whole_table for one in packs)
        assert expected_rewritten(tokens, kept) == pytest.approx(changed / len(sets))


def test_expectation_is_the_formula() -> None:
    """(n / b) x (C(n - b, k) / C(n, k)) to the power of the heads."""
    exact = 1000 * Fraction(comb(15_984, 1600), comb(16_000, 1600)) ** 2

    assert expected_free(16_000, {1600: 2}, 16) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("chunk", "block"), [(4, 2), (2, 4), (3, 2), (5, 3)])
def test_chunks_are_chosen_whole(chunk: int, block: int) -> None:
    """Over every choice of chunks, the last of which may be short."""
    from itertools import combinations

    tokens, units = 13, blocks_of(13, chunk)
    for kept in range(1, units):
        sets = [
            {place for unit in chosen for place in range(unit * chunk, min(tokens, (unit + 1) * chunk))}
            for chosen in combinations(range(units), kept)
        ]
        mean = sum(free_of_survivors(tokens, [stay], block) for stay in sets) / len(sets)
        assert expected_free(tokens, {kept * chunk: 1}, block, chunk=chunk) == pytest.approx(mean)


def test_heads_that_keep_unlike_numbers() -> None:
    """The chance of each head by its own number."""
    alike = expected_free(160, {20: 3}, 16)
    assert expected_free(160, {20: 2, 40: 1}, 16) < alike


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"keep": [1], "kept": 1},
        {"keep": [100]},
        {"keep": [-1]},
        {"keep": [1, 1]},
        {"keep": ["a"]},
        {"keep": [1, [2]]},
        {"keep": [[[[1]]]]},
        {"kept": 101},
        {"kept": 1, "block_size": 0},
        {"kept": 1, "heads": 0},
        {"kept": 1, "shared": [0]},
        {"kept": 1, "shared": None},
        {"kept": 1, "shared": "01"},
        {"kept": 1, "shared": ["0"]},
        {"kept": 1, "block_size": None},
        {"kept": 1, "block_size": 1.5},
        {"kept": 1, "block_size": 10**30},
        {"kept": 1, "heads": "many"},
        {"kept": 1, "heads": True},
        {"kept": 1, "heads": 2**20 + 1},
        {"kept": 1, "growing": "yes"},
        {"keep": 7},
        {"keep": "12"},
        {"keep": b"12"},
        {"keep": math.nan},
        {"keep": [1, None]},
        {"keep": [1, 1.0]},
        {"keep": [10**5000]},
        {"keep": [1], "growing": object()},
        {"keep": [1], "shared": [True]},
        {"keep": [1], "block_size": "x" * 100_000},
        {"keep": itertools.count()},
        {"kept": 1, "shared": itertools.count()},
        {"keep": map(operator.truediv, [1], [0])},
    ],
)
def test_wrong_questions(wrong: dict[str, object]) -> None:
    """Each is an error that says what to do."""
    with pytest.raises(UsageError) as error:
        free_blocks(100, **wrong)  # type: ignore[arg-type]
    assert error.value.hint


def test_many_heads_of_few() -> None:
    """What is worked out is as much as what was given, not the sequence once for each head."""
    found = free_blocks(100_000, keep=[[head] for head in range(2_000)])
    # 2,000 heads need the first 125 of 6,250 blocks; each keeps one token, which moves into the first slot but for that of head 0.
    assert (found.free, found.free_compacted) == (6_125, 6_249)
    assert (found.repack.copies, found.fill.copies) == (1, 1)
    # Tokens 0 to 1,998 move one slot back, and token 1,999 to the front.
    assert found.repack.slots_changed_in_whole_table == 2_000


class Whole:
    """A whole number as arrays hold it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("kind", [tuple, iter, lambda places: array("l", places), lambda places: [Whole(one) for one in places]])
def test_positions_of_any_kind(kind: Callable[[list[int]], Any]) -> None:
    """Lists, generators and arrays say the same, in their order; a set has none."""
    places = [3, 0, 9]

    assert free_blocks(16, keep=kind(places), block_size="4") == free_blocks(16, keep=[kind(places)], block_size=4)
    assert not free_blocks(16, keep=kind(places), block_size=4).repack.in_order
    assert free_blocks(16, keep={*places}, block_size=4) == free_blocks(16, keep=[0, 3, 9], block_size=4)


@given(st.integers(1, 400), st.integers(1, 50), st.integers(1, 50))
def test_chunks_of_blocks_are_counted(tokens: int, block: int, chunk: int) -> None:
    """One by one."""
    # Half a chunk is kept by nobody: each block is free with a chance that falls with the chunks that it lies in.
    touched = [(min(tokens, start + block) - 1) // chunk - start // chunk + 1 for start in range(0, tokens, block)]
    units = blocks_of(tokens, chunk)
    chances = [Fraction(comb(units - many, 1), units) for many in touched]

    assert expected_free(tokens, {chunk: 1}, block, chunk=chunk) == pytest.approx(float(sum(chances)))


@pytest.mark.parametrize(("tokens", "kept", "block"), [(10**7, 30_000, 40_000), (10**8, 17_000, 4_000_000)])
def test_long_products(tokens: int, kept: int, block: int) -> None:
    """Factor by factor."""
    few, many = sorted((kept, block))
    chance = math.exp(math.fsum(math.log((tokens - many - one) / (tokens - one)) for one in range(few)))

    assert expected_free(tokens, {kept: 1}, block) == pytest.approx(tokens / block * chance, rel=1e-9)


@pytest.mark.parametrize("chunk", [1, 7, 10**9 + 7])
def test_the_longest_sequence_is_no_work(chunk: int) -> None:
    """Bounds and averages of any size at once."""
    started = time.process_time()
    for block in (1, 16, 2**21):
        assert expected_free(MOST_TOKENS, {MOST_TOKENS // 10: 2**20}, block, chunk=chunk) >= 0

    assert time.process_time() - started < 0.5


def test_the_answer_is_a_document() -> None:
    """JSON, a row and a line."""
    found = free_blocks("16k", keep=[range(0, 16_384, 2)] * 2, shared=[0])

    assert found.to_dict()["repack"]["copies"] == found.records()[0]["repack_copies"]
    assert (found.shared, found.heads) == (1, 2)
