"""Numbers on the axes of a picture."""

from __future__ import annotations

from hwcalc.units import human_bytes

__all__ = ["byte_ticks", "decade_ticks", "even_byte_ticks", "token_ticks", "tokens_text"]

_MOST = 9


def tokens_text(tokens: int) -> str:
    """A number of tokens as people say it.

    >>> tokens_text(32_768), tokens_text(1 << 20), tokens_text(500)
    ('32k', '1M', '500')
    """
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if tokens >= size and not tokens % size:
            return f"{tokens // size:,}{unit}"
    return f"{tokens:,}"


def token_ticks(low: int, high: int) -> list[tuple[int, str]]:
    """Powers of two between two lengths, each with its text; fewer where there are many."""
    return [(1 << power, tokens_text(1 << power)) for power in _powers(low, high)]


def byte_ticks(low: int, high: int) -> list[tuple[int, str]]:
    """Powers of two between two sizes, each with its text; the larger size if there are none.

    >>> byte_ticks(1 << 20, 3 << 20)
    [(1048576, '1 MiB'), (2097152, '2 MiB')]
    """
    found = [1 << power for power in _powers(low, high)] or [high]
    return [(size, human_bytes(size).replace(".00", "")) for size in found]


def _powers(low: int, high: int) -> range:
    first, last = max(0, (max(1, low) - 1).bit_length()), max(1, high).bit_length() - 1
    return range(first, last + 1, max(1, -(-(last - first + 1) // _MOST)))


def decade_ticks(low: int, high: int) -> list[tuple[int, str]]:
    """Round numbers between two counts; the larger one if there are none.

    >>> decade_ticks(1, 30)
    [(1, '1'), (2, '2'), (5, '5'), (10, '10'), (20, '20')]
    """
    digits = range(len(str(max(1, high))))
    found = [one for digit in digits for step in (1, 2, 5) if low <= (one := step * 10**digit) <= high] or [high]
    return [(one, f"{one:,}") for one in found]


def even_byte_ticks(high: int) -> list[tuple[int, str]]:
    """Sizes from 0 at equal distances, which are powers of two.

    >>> even_byte_ticks(3 << 20)
    [(0, '0'), (1048576, '1 MiB'), (2097152, '2 MiB'), (3145728, '3 MiB')]
    """
    step = 1 << max(0, (max(1, high) - 1).bit_length() - 2)
    return [(0, "0"), *((size, human_bytes(size).replace(".00", "")) for size in range(step, high + 1, step))]
