"""Strategies of allocation against simulations that know no formula: tensors that grow, slots, and a pool of blocks."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import strategies
from hwcalc.formulas import FullAttention
from hwcalc.formulas.tensor import Encoder, Full, Once, Sink, Strided, Window, paged_positions
from hwcalc.planner.strategies_cost import Cell, Lengths
from tests.hwcalc.library.test_strategies import LLAMA, MODELS, ROW, named


def test_growth_simulated() -> None:
    """Tensors that really grow: each step makes a new list from the old one and the new token, tensor by tensor."""
    dice = random.Random(4)  # noqa: S311
    for _ in range(60):
        layers, batch, prompt = dice.randint(1, 4), dice.randint(1, 3), dice.randint(1, 20)
        seq = prompt + dice.randint(0, 25)
        windows = [dice.choice([None, dice.randint(2, 12)]) for _ in range(layers)]
        config = _windowed(windows)
        written, peak, held = _grown(windows, prompt, seq)
        found = named(strategies(config, seq=seq, batch=batch, prompt=prompt), "growth")
        row = batch * ROW // 2

        assert found.full_bytes == row * held
        assert found.copied_bytes == row * written
        # Layers behind the largest tensor may lack the newest token when it is copied.
        assert row * peak <= found.peak_bytes
        if seq > prompt:
            assert found.peak_bytes <= row * (peak + 2 * layers)
        if len(set(windows)) == 1:
            assert found.peak_bytes == row * peak


def _windowed(windows: list[int | None]) -> dict[str, Any]:
    """A model whose layers have these windows, by kinds of layers of their own."""
    size = next((window for window in windows if window is not None), 8)
    windows[:] = [None if window is None else size for window in windows]
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {**LLAMA, "model_type": "qwen2", "num_hidden_layers": len(windows), "layer_types": types, "use_sliding_window": True,
            "sliding_window": size}  # fmt: skip


def _grown(windows: list[int | None], prompt: int, seq: int) -> tuple[int, int, int]:
    """Places written, the most that exist at once, and those at the end, where keys and values of each layer are lists."""
    tensors: list[list[int]] = [[] for _ in range(2 * len(windows))]
    written = peak = 0
    for first, last in chain([(0, prompt)], ((token, token + 1) for token in range(prompt, seq))):
        new = list(range(first, last))
        for number, old in enumerate(tensors):
            window = windows[number // 2]
            joined = (old + new)[-(window or seq) :]
            # The old tensor and the tokens that are appended are there beside the joined one.
            there = sum(map(len, tensors)) + len(joined) + max(0, len(joined) - len(old))
            peak = max(peak, there)
            written += len(joined)
            tensors[number] = joined
    return written, peak, sum(map(len, tensors))


def test_slots_and_pages_simulated() -> None:
    """Random lengths: a table of slots, and a pool from which each sequence takes a block when its last one is full."""
    dice = random.Random(5)  # noqa: S311
    for _ in range(300):
        seq, block = dice.randint(1, 300), dice.randint(1, 40)
        lengths = [dice.randint(1, seq) for _ in range(dice.randint(1, 12))]
        found = strategies(LLAMA, seq=seq, lengths=lengths, block_size=block)
        blocks = 0
        for length in lengths:
            free = 0
            for _ in range(length):
                if not free:
                    blocks, free = blocks + 1, block
                free -= 1
        slots, pages = named(found, "slots"), named(found, "pages")

        assert found.needed_bytes == 4 * ROW * sum(lengths)
        assert slots.held_bytes == 4 * ROW * seq * len(lengths)
        assert pages.held_bytes == 4 * ROW * block * blocks
        assert slots.wasted_bytes == slots.held_bytes - found.needed_bytes
        assert pages.wasted_bytes == pages.held_bytes - found.needed_bytes < 4 * ROW * block * len(lengths)


@pytest.mark.parametrize("model", MODELS)
def test_a_distribution_is_the_mean_of_its_lengths(model: str) -> None:
    """Equally likely lengths: the expected bytes are those of all lengths together, rounded once."""
    low, high, batch = 3, 60, 7
    drawn = strategies(model, seq=100, batch=batch, lengths=f"uniform:{low}..{high}", block_size=16)
    every = strategies(model, seq=100, lengths=list(range(low, high + 1)), block_size=16)
    count = high - low + 1

    assert drawn.definition == "estimate"
    assert abs(drawn.needed_bytes - batch * every.needed_bytes / count) <= 0.5
    for name in ("growth", "slots", "pages"):
        held = named(every, name).held_bytes
        assert held is not None
        assert abs((named(drawn, name).held_bytes or 0) - batch * held / count) <= 0.5, name


def test_cells_simulated() -> None:
    """Thousands of tensors with any span: what concatenation writes, and what all sequences store and have in blocks."""
    dice = random.Random(6)  # noqa: S311
    kind = FullAttention(num_attention_heads=1, num_key_value_heads=1, head_dim=1, v_head_dim=1)
    for _ in range(5000):
        number = dice.randint
        span = dice.choice(
            (Full(), Window(number(1, 30)), Sink(number(1, 9), number(1, 9)), Strided(number(1, 9)), Once(), Encoder())
        )
        block, encoder, prompt = number(1, 20), number(0, 40), number(1, 40)
        seq = prompt + number(0, 40)
        cell = Cell(kind=kind, count=1, span=span, rows=(1,), block_size=block)
        written, there = 0, -1
        for tokens in range(prompt, seq + 1):
            places = span.positions(tokens, encoder)
            # A window takes a new token at each step; compressed entries come one in a group; states never grow.
            if cell.grows and (places != there or isinstance(span, (Window, Sink))):
                written, there = written + places, places
        assert cell.written(prompt, seq) == written, (span, prompt, seq)
        now = [number(1, seq) for _ in range(number(1, 8))]
        lengths = Lengths(seq=seq, batch=len(now), prompt=prompt, encoder_tokens=encoder, now=tuple((one, 1) for one in now))
        assert lengths.stored(span) == sum(span.positions(one, encoder) for one in now)
        assert lengths.paged(cell) == sum(paged_positions(span, one, block, encoder) for one in now)
        drawn = replace(lengths, now=(), uniform=(min(now), seq))
        every = range(min(now), seq + 1)
        assert drawn.stored(span) * len(every) == len(now) * sum(span.positions(one, encoder) for one in every)
