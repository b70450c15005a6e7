"""Token counts and sizes as people type them, and sizes as people read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import UsageError
from hwcalc.planner.values import TYPES
from hwcalc.units import MOST_TOKENS, human_bytes, human_duration, parse_bytes, parse_duration, parse_rate, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("32768", 32_768),
        ("32,768", 32_768),
        ("32_768", 32_768),
        ("32k", 32 * 1024),
        ("128K", 128 * 1024),
        (" 128 k ", 128 * 1024),
        ("1M", 1024 * 1024),
        ("1.5k", 1536),
        (7, 7),
    ],
)
def test_tokens(text: int | str, tokens: int) -> None:
    """K and M are powers of 1,024, as model cards use them."""
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "0", "1e3", "1.3k", "32kb", "0x10", "NaN", "inf", "٣", "1" * 40, 0, -5, 2**80, True]
)
def test_tokens_that_are_none(text: int | str) -> None:
    """Anything else is a usage error that names what was asked for and says what is allowed."""
    with pytest.raises(UsageError, match="seq") as caught:
        parse_tokens(text, "seq")

    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("80 gib", 80 * 2**30),
        ("5.38GiB", 538 * 2**30 // 100),
        ("1.5KiB", 1536),
        ("2MB", 2_000_000),
        ("1TiB", 2**40),
        (12, 12),
    ],
)
def test_bytes(text: int | str, size: int) -> None:
    """GB is 10^9 and GiB is 2^30; a fraction of a byte is dropped, since no budget holds it."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5", "1.5B", "80G", "1e9", -1, 2**80, True])
def test_bytes_that_are_none(text: int | str) -> None:
    """Anything else is a usage error; a bare G is neither 10^9 nor 2^30."""
    with pytest.raises(UsageError, match="budget") as caught:
        parse_bytes(text, "budget")

    assert caught.value.hint


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (576, "576 B"),
        (1024, "1 KiB"),
        (128 * 1024, "128 KiB"),
        (1536, "1.50 KiB"),
        (4 * 2**30, "4.00 GiB"),
        (2**40, "1.00 TiB"),
        (2**20, "1.00 MiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    """Binary units, always named so."""
    assert human_bytes(size) == text


@given(st.integers(1, MOST_TOKENS))
def test_plain_numbers_are_themselves(number: int) -> None:
    """Whatever its size, with or without separators."""
    assert parse_tokens(number) == parse_tokens(str(number)) == parse_tokens(f"{number:,}") == number
    assert parse_bytes(str(number)) == number


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,10})? ?[kmgtKMGT]?i?[bB]?", fullmatch=True))
def test_any_text_is_a_number_or_a_usage_error(text: str) -> None:
    """Never an error of another kind, never below zero."""
    for parse in (parse_tokens, parse_bytes):
        with contextlib.suppress(UsageError):
            assert 0 <= parse(text) <= 2**62


@pytest.mark.parametrize("text", ["1,5k", "1_0", "1,0244", ",1", "1,", "1,,000", "1,000,00"])
def test_separators_stand_between_groups_of_three(text: str) -> None:
    """1,5k is neither 15k nor 1.5k."""
    with pytest.raises(UsageError, match="not a number"):
        parse_tokens(text)
    assert parse_tokens("1,024") == parse_tokens("1_024") == 1024


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("50ms", 0.05),
        ("50 MS", 0.05),
        ("250us", 0.00025),
        (".5s", 0.5),
        ("1.5min", 90.0),
        ("1h", 3600.0),
        (0.25, 0.25),
    ],
)
def test_times(text: str | float, seconds: float) -> None:
    """Text has a unit, and a bare number of Python is seconds."""
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "s", "50", "-1s", "0s", "1e3s", "5 parsecs", "1h30", "nan", float("nan"), 0, -1, True, None, [1]]
)
def test_times_that_are_none(text: object) -> None:
    """A unit that is missing is asked for, and nothing is guessed."""
    with pytest.raises(UsageError, match="ttft"):
        parse_duration(text, "ttft")  # type: ignore[arg-type]


@given(st.floats(1e-5, 1e5))
def test_a_printed_time_is_read_again(seconds: float) -> None:
    """It has three digits."""
    assert parse_duration(human_duration(seconds)) == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("text", "rate"), [("40", 40.0), ("40/s", 40.0), ("90 / min", 1.5), ("3600/hour", 1.0), (2.5, 2.5), (".5", 0.5)]
)
def test_rates(text: str | float, rate: float) -> None:
    """A rate is a second's unless it says of what."""
    assert parse_rate(text) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("text", ["", "0", "-2", "2/day/s", "2/fortnight", "x", 0, None, True])
def test_rates_that_are_none(text: object) -> None:
    """Anything else is a usage error with its name."""
    with pytest.raises(UsageError, match="min_rate"):
        parse_rate(text, "min_rate")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["duration", "rate"])
@given(value=st.floats(1e-6, 1e6))
def test_what_is_written_is_read_as_the_same(name: str, value: float) -> None:
    """Lines that kvplan writes keep times and rates to the last digit."""
    assert TYPES[name].read(TYPES[name].write(value), name) == value
