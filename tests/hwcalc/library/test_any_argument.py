"""Whatever the functions of the library are given, the answer is a value or an error of kvplan, soon."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from inspect import signature
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pytest

import hwcalc
from hwcalc import KvplanError, fit, load_model, plan
from hwcalc.errors import ConfigError, UsageError
from hwcalc.units import MOST_TOKENS, parse_bytes, parse_memory, parse_share, parse_tokens
from scripts.fuzzing.keywords import CALLBACKS, CHECKS, CONFIG, VALUES, call, functions
from tests.effort import cases

SHARED: Final[Mapping[str, int]] = {
    "plan": 4,
    "check": 4,
    "recommend": 24,
    "explore": 24,
    "simulate": 12,
    "fit": 12,
    "compare": 12,
    "explain": 12,
    "plot": 12,
    "speed": 12,
    "sweep": 12,
    "strategies": 12,
    "swap": 24,
}
"""Functions with many options: each parameter gets one value in so many (in twice as many in a plain run). The fuzzer
(``scripts/fuzz.py``) draws any value for any parameter.
"""
NESTED: Final = reduce(lambda inner, _: [inner], range(5_000), cast("Any", None))
FAR: Final = {("fit", "folder"), ("fit", "installed")}
"""What looks into folders of this machine."""


def test_every_function_is_called() -> None:
    """A new function of the library belongs into the table."""
    public = {name for name in hwcalc.__all__ if name[0].islower() and not name.startswith("_")}

    assert public == set(functions())
    assert len(VALUES) >= 154


@pytest.mark.parametrize("name", [*functions()])
def test_any_value_of_any_parameter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of any library and size, text, containers, and objects that cannot be printed or compared."""
    monkeypatch.chdir(tmp_path)
    Path("check.yaml").write_text(CHECKS, encoding="utf-8")
    for place, parameter in enumerate(signature(functions()[name][0]).parameters):
        if (name, parameter) in FAR | CALLBACKS:
            continue
        for number, make in enumerate(VALUES):
            if (number + place) % cases(4 * SHARED.get(name, 3), SHARED.get(name, 1)) == 0:
                _answered(name, parameter, make, alone=number % 2 == 1)


def _answered(name: str, parameter: str, make: Callable[[], Any], *, alone: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of numbers that lose a part
            call(name, parameter, make(), alone=alone)
    except KvplanError as error:
        message = error.message
    except Exception as error:
        error.add_note(f"{name}({parameter}={type(make())})")
        raise
    else:
        return
    assert 0 < len(message) <= 2000, (name, parameter)


@pytest.mark.parametrize(
    "value",
    [np.int64(1000), np.float32(1), np.float64(1), np.array([]), np.array([1, 2]), np.str_("x"), Decimal(1000), Decimal("sNaN"), Fraction(1, 2), {1}, b"x", object()],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)  # fmt: skip
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "rope_theta", "x", "quantization_config"])
def test_a_config_holds_what_json_has(key: str, value: Any) -> None:
    """Values of other types compare unlike those of Python. The error names key, value and type, at any depth."""
    for given in ({key: value}, {key: [value]}, {key: {"bits": value}}):
        with pytest.raises(ConfigError, match="which JSON does not have") as error:
            load_model({**CONFIG, **given})
        assert type(value).__qualname__ in error.value.message
        assert "to_dict()" in error.value.hint


def test_a_name_of_a_folder_is_any_text() -> None:
    """One that no file can have, and one of a user who is not there."""
    for name in ("x" * 5000, "~nobody-of-that-name/x", "a\0b"):
        with pytest.raises(UsageError, match="is not a folder here"):
            fit(gpu="l4", folder=name)
    assert (
        fit("Qwen3-1.7B", gpu="l4", min_speed="0.5").models
        == fit("Qwen3-1.7B", gpu="l4", min_speed=cast("Any", Fraction(1, 2))).models
    )


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


@pytest.mark.parametrize("kind", [1, None, True, [], {}, 1.5, np.int64(4), Path("x"), ["memory"]], ids=repr)
def test_a_kind_of_picture_is_a_name(kind: Any) -> None:
    """Whatever else is given is said to be none."""
    with pytest.raises(KvplanError):
        hwcalc.plot(CONFIG, kind=kind, seq=100)


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_speed", 10**400), ("modality", 10**5000), ("only_fits", np.array([1, 2])), ("modality", NESTED), ("ram", 10**5000)],
    ids=["min_speed", "modality", "only_fits", "nested modality", "ram"],
)
def test_wishes_that_are_none(name: str, value: Any) -> None:
    """Numbers that no float holds and no text shows, arrays, lists in lists."""
    with pytest.raises(KvplanError) as caught:
        fit(gpu="l4", **cast("dict[str, Any]", {name: value}))
    assert 0 < len(caught.value.message) <= 2000


@pytest.mark.parametrize(
    "value",
    [pytest.param(10**5000, id="huge"), "9" * 5000, "\u00b2", "\u0663\u0662", "-1", -1, True, 1.5, None, "", [64]],
    ids=lambda value: ascii(value)[:20],
)
def test_a_memory_that_is_none(value: Any) -> None:
    """A bare number is GB; digits of other scripts and numbers without end are refused."""
    with pytest.raises(UsageError):
        parse_memory(value)


def test_a_name_of_several_lines_is_one() -> None:
    """Of a config dict and of the metadata of a GGUF file: what stands behind a line break would be a line of its own."""
    for config in (
        {"_name_or_path": "a\n::add-mask::x", "model_type": "nosuch"},
        {"general.name": "a\n::add-mask::x", "general.architecture": "x"},
    ):
        with pytest.raises(hwcalc.KvplanError) as caught:
            hwcalc.load_model(config, offline=True)
        assert "\n" not in caught.value.message
        assert "\n::" not in caught.value.hint


def test_no_line_of_a_message_is_a_command() -> None:
    """A hint repeats a type of two lines, of which the second would be one."""
    with pytest.raises(KvplanError) as caught:
        load_model({"model_type": "llama\n::add-mask::x", "hidden_size": 8}, offline=True)
    assert "\n::" not in caught.value.message + caught.value.hint
    assert ConfigError("x\n ::error::y", hint="::stop-commands::z").message == "x\n ?:error::y"
