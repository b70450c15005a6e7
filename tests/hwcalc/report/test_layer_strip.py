"""The layers of a plan in one line."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.report.table import layer_strip, plan_table


def test_a_pattern_is_seen() -> None:
    """Gemma 3: five windowed layers, then a full one. At 1,024 tokens all have as many bytes."""
    long, short = (layer_strip(plan("google/gemma-3-12b-it", seq=seq), 100) for seq in (32_768, 1_024))

    assert long == ("sssssF" * 8, "s sliding-window attention 8.00 MiB each, F full attention 256.00 MiB each")
    assert short is not None
    assert short[0] == "SSSSSF" * 8


def test_equal_layers() -> None:
    """Llama-like layers: 8 heads x (128 + 128) x 2 bytes x 1,024 tokens each."""
    assert layer_strip(plan("Qwen/Qwen3-8B", seq=1_024), 100) == ("F" * 36, "F full attention 4.00 MiB each")


def test_layers_without_a_cache_of_their_own() -> None:
    """Gemma 4 E4B: the last 18 of 42 layers read what earlier ones keep."""
    strip = layer_strip(plan("google/gemma-4-E4B-it", seq=32_768), 100)

    assert strip is not None
    assert strip[0].endswith("." * 18)
    assert ". nothing of its own" in strip[1]


@pytest.mark.parametrize("width", [1, 24, 40, 61])
def test_a_narrow_terminal(width: int) -> None:
    """62 layers in fewer columns: a letter stands for several."""
    strip = layer_strip(plan("google/gemma-3-27b-it", seq=32_768), width)

    assert strip is not None
    assert len(strip[0]) <= max(20, width)
    assert "layers a letter" in strip[1]


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_letters_and_their_meanings_are_not_torn_apart(columns: int) -> None:
    """The pattern is whole in one line, and a line of its own says what the letters mean where both do not fit."""
    model = plan("google/gemma-3-12b-it", seq=32_768)
    strip = layer_strip(model, columns - 2)
    assert strip is not None

    lines = plan_table(model, width=columns).splitlines()
    place = next(place for place, line in enumerate(lines) if line.lstrip().startswith(strip[0]))
    rest = lines[place].strip().removeprefix(strip[0]).strip()
    assert rest in {"", strip[1]}
    assert rest or lines[place + 1].startswith("  s sliding-window")
