"""Whatever the keywords of the library are given, the answer is a value or a UsageError, soon."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import KvplanError, check, compare, explain, load_model, plan, recommend, sweep
from hwcalc.errors import UsageError
from hwcalc.planner.options import OPTIONS
from hwcalc.units import MOST_TOKENS, parse_bytes, parse_share, parse_tokens
from tests.tiny_configs import TINY_LLAMA

CONFIG: Final = TINY_LLAMA | {"max_position_embeddings": 1000}


class _Broken:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __index__ = __repr__


def _nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(3000):
        value = [value]
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


STRANGE: Final[tuple[Any, ...]] = (
    10**5000, -(10**5000), 2**62, MOST_TOKENS + 1, -1, 0, 1.5, float("nan"), float("inf"), True, "", "x" * 1000, "9" * 5000, "\ud800",
    "\x00", [], [1], [None], [10**5000], {}, {"a": 1}, {1: 2}, {"a": _Broken()}, {"block_size": 10**5000}, {("a", 1): 2}, (), set(),
    object(), _Broken(), [_Broken()], b"x", Decimal("NaN"), Fraction(10**5000), 1j, range(10**18), iter([1]), print, _nested(), _endless(),
)  # fmt: skip


def _answered(function: Any, model: Any, **keywords: Any) -> None:
    try:
        function(model, **keywords)
    except KvplanError as error:
        message = error.message
    else:
        return
    assert 0 < len(message) < 2000


@pytest.mark.parametrize("name", [row.name for row in OPTIONS])
@pytest.mark.parametrize("function", [plan, compare, sweep, explain])
def test_any_value_of_any_option(function: Any, name: str) -> None:
    """Numbers of any size, text, containers, and objects that cannot be printed."""
    for value in STRANGE:
        _answered(function, CONFIG, **{"offline": True, "seq": 100, name: value})


@pytest.mark.parametrize(
    "name", ["gpu", "vendor", "category", "instances", "max_gpus", "strict", "limit", "seq", "engine_options"]
)
def test_any_value_for_recommend(name: str) -> None:
    """The same for what narrows the choice."""
    for value in STRANGE:
        _answered(recommend, CONFIG, **{"gpu": "l4", "seq": 100, name: value})


@pytest.mark.parametrize("name", ["revision", "offline", "token", "endpoint", "headers", "assume"])
def test_any_value_for_load_model(name: str) -> None:
    """The same for how a model is read."""
    for value in STRANGE:
        _answered(load_model, CONFIG, **{name: value})


@pytest.mark.parametrize("name", ["files", "lock", "strict", "baseline", "max_growth", "offline", "token", "endpoint"])
def test_any_value_for_check(name: str, tmp_path: Path) -> None:
    """The same for a run of checks."""
    path = tmp_path / "checks.yaml"
    path.write_text("schema_version: 1\nchecks:\n  - {model: Qwen/Qwen3-8B, seq: 1k, max_cache: 1GiB}\n", encoding="utf-8")
    for value in STRANGE:
        _answered(check, **{"model": str(path), name: value} if name != "files" else {"model": value})


@pytest.mark.parametrize("parse", [parse_tokens, parse_bytes, parse_share])
def test_numbers_without_end(parse: Any) -> None:
    """A number that Python does not write out is described by its bits."""
    for number in (10**5000, -(10**5000)):
        with pytest.raises(UsageError) as error:
            parse(number)
        assert "whole number of 16,610 bits" in error.value.message
    for value in (float("nan"), float("inf")):
        with pytest.raises(UsageError):
            parse(value)


def test_the_largest_number_is_stated() -> None:
    """One bound for all whole numbers, and the error names it."""
    assert parse_tokens(MOST_TOKENS) == MOST_TOKENS
    with pytest.raises(UsageError) as error:
        plan(CONFIG, seq=MOST_TOKENS + 1)

    assert f"{MOST_TOKENS:,}" in error.value.hint
