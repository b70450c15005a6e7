"""The colours of a terminal can be read, by the rule of WCAG 2 for contrast."""

from __future__ import annotations

import pytest
from rich.style import Style

from hwcalc.report.drawing import Text, in_style, rendered
from hwcalc.report.styles import OF_VERDICT, WORDS

VGA = (
    "000000", "aa0000", "00aa00", "aa5500", "0000aa", "aa00aa", "00aaaa", "aaaaaa",
    "555555", "ff5555", "55ff55", "ffff55", "5555ff", "ff55ff", "55ffff", "ffffff",
)  # fmt: skip
"""The sixteen colours of a VGA text screen, by their numbers in ANSI codes."""
LEAST = 3.0
"""What WCAG 2 asks of large or bold text."""


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2, of a colour in sRGB."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2: of black and white it is 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_rule() -> None:
    """Black on white has 21 to 1; plain red on black and cyan on white have less than bold text needs."""
    assert contrast("000000", "ffffff") == pytest.approx(21)
    assert contrast(VGA[1], "000000") < LEAST
    assert contrast(VGA[6], "ffffff") < LEAST


@pytest.mark.parametrize("style", sorted({*WORDS, *OF_VERDICT.values()}))
@pytest.mark.parametrize("ground", ["000000", "ffffff"])
def test_words_can_be_read_on_black_and_on_white(style: str, ground: str) -> None:
    """Words in a colour are bold, and have the contrast of bold text."""
    parsed = Style.parse(style)

    assert parsed.bold
    assert parsed.color is not None
    assert parsed.color.number is not None
    assert contrast(VGA[parsed.color.number], ground) >= LEAST


@pytest.mark.parametrize("style", WORDS)
def test_a_style_is_written_in_one_way(style: str) -> None:
    """Words among others have the codes that a line of its own has."""
    assert in_style("fits", style) + "\n" == rendered([Text("fits", style=style)], color=True)
