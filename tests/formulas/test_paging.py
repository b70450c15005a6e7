"""Blocks and sums over lengths and passes, against loops that know no formula."""

from __future__ import annotations

import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.formulas import LayerKind
from hwcalc.formulas.flops import (
    decode_flops,
    pairs_cached,
    pairs_recomputed,
    passes_work,
    positions_sum,
    prefill_flops,
    prefixes_sum,
    scores_recomputed,
    steps_work,
)
from hwcalc.formulas.stairs import stairs_sum
from hwcalc.formulas.tensor import (
    Chunk,
    Encoder,
    Fixed,
    Full,
    Kept,
    Later,
    Once,
    Pooled,
    Remainder,
    Sink,
    Span,
    Strided,
    Window,
    most_unused,
    paged_positions,
    paged_sum,
)
from tests.effort import cases
from tests.formulas.strategies import kinds

CASES: Final = cases(1200, 3000)


def spans(dice: random.Random) -> tuple[Span, ...]:
    """One of each, with random numbers."""
    number = dice.randint
    return (
        Full(), Kept(number(1, 30)), Window(number(1, 12)), Sink(number(1, 9), number(1, 9)), Chunk(number(1, 12)),
        Strided(number(1, 7)), Remainder(number(1, 7)), Once(), Fixed(number(1, 5)), Encoder(),
        Later(number(1, 9), number(1, 30)), Pooled(number(1, 9), number(1, 9), number(1, 30)),
    )  # fmt: skip


def test_blocks_are_those_of_kept_tokens() -> None:
    """A simulated table: each token has a place, a block stands while one of its tokens is kept."""
    dice = random.Random(1)  # noqa: S311
    for _ in range(CASES):
        tokens, block = dice.randint(0, 80), dice.randint(1, 20)
        first, last = dice.randint(1, 20), dice.randint(1, 20)
        kept: dict[Span, set[int]] = {
            Full(): set(range(tokens)),
            Window(last): {place for place in range(tokens) if place >= tokens - last},
            Sink(first, last): {place for place in range(tokens) if place < first or place >= tokens - last},
        }
        for span, places in kept.items():
            assert len(places) == span.positions(tokens)
            assert paged_positions(span, tokens, block) == block * len({place // block for place in places}), (
                span,
                tokens,
                block,
            )


def test_sums_are_those_of_loops() -> None:
    """Of what is stored, and of what lies in blocks."""
    dice = random.Random(2)  # noqa: S311
    for _ in range(CASES // 3):
        tokens, block, encoder = dice.randint(0, 70), dice.randint(1, 20), dice.randint(0, 40)
        for span in spans(dice):
            lengths = range(1, tokens + 1)
            assert stairs_sum(span.stairs(encoder), tokens) == sum(span.positions(length, encoder) for length in lengths)
            paged = [paged_positions(span, length, block, encoder) for length in lengths]
            assert paged_sum(span, tokens, block, encoder) == sum(paged), (span, tokens, block)
            kept = [span.positions(length, encoder) for length in lengths]
            assert all(0 <= there - own <= most_unused(span, block, encoder) for there, own in zip(paged, kept, strict=True))


@pytest.mark.parametrize("block", [1, 3, 16])
def test_the_most_that_blocks_waste_is_reached(block: int) -> None:
    """By some length."""
    for span in (Full(), Window(2), Window(7), Window(33), Sink(1, 1), Sink(4, 40), Strided(2), Once()):
        wasted = [paged_positions(span, length, block) - span.positions(length) for length in range(1, 400)]

        assert max(wasted) == most_unused(span, block), span


def test_passes_are_prompts_of_every_length() -> None:
    """Recomputing is a prompt in each pass; with a cache each token passes once."""
    dice = random.Random(3)  # noqa: S311
    for _ in range(CASES // 3):
        tokens, encoder, most = dice.randint(1, 60), dice.randint(0, 9), dice.choice([None, dice.randint(1, 9)])
        for span in spans(dice):
            if isinstance(span, (Kept, Later, Pooled, Remainder)):
                continue
            prompts = [positions_sum(span, length, encoder, most) for length in range(1, tokens + 1)]
            assert prefixes_sum(span, tokens, encoder, most) == sum(prompts), (span, tokens, most)


@given(kind=kinds(), prompt=st.integers(1, 40), more=st.integers(0, 40))
def test_every_kind_step_by_step(kind: LayerKind, prompt: int, more: int) -> None:
    """The works of all passes and of all steps, added up one by one."""
    tokens = prompt + more
    passes = sum(prefill_flops(kind, length, 9, selected=5) for length in range(prompt, tokens + 1))
    steps = sum(decode_flops(kind, length, 9, selected=5) for length in range(prompt + 1, tokens + 1))

    assert sum(pairs * each for pairs, each in passes_work(kind, prompt, tokens, 9, selected=5)) == passes
    counted = sum(pairs * each for pairs, each in steps_work(kind, prompt, tokens, 9, selected=5))
    # A chunk begins anew, while the bound on one step counts it at its end.
    assert counted == steps or (kind.name == "chunked_attention" and counted < steps)


def test_pairs_of_two_thousand_tokens() -> None:
    """Often quoted as 8 x 10^9 against 4 x 10^6 operations in a layer: pairs of tokens, the cube and the square of 2,000.

    Exactly, from the first token on: each pass looks at whole squares, 1 + 4 + ... + 2,000^2; or at what the causal mask leaves,
    1 + 3 + 6 + ...; and with a cache at 1 + 2 + 3 + ... + 2,000.
    """
    assert (2000**3, 2000**2) == (8 * 10**9, 4 * 10**6)
    assert scores_recomputed(1, 2000) == sum(n * n for n in range(1, 2001)) == 2000 * 2001 * 4001 // 6 == 2_668_667_000
    assert pairs_recomputed(1, 2000) == sum(n * (n + 1) // 2 for n in range(1, 2001)) == 2000 * 2001 * 2002 // 6 == 1_335_334_000
    assert pairs_cached(2000) == sum(range(2001)) == 2000 * 2001 // 2 == 2_001_000
