"""Token counts and sizes as people type them, and sizes as people read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import UsageError
from hwcalc.units import MOST_TOKENS, human_bytes, parse_bytes, parse_tokens


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
