"""Read the numbers that people type, such as tokens (``32k``), bytes (``80GiB``) and times (``50ms``), and print bytes and times for people."""

from __future__ import annotations

import re
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UsageError
from hwcalc.text import brief, quoted, shown

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction


KIB = 1024
MIB = 1024**2
GIB = 1024**3
MOST_TOKENS = 2**40
"""The largest whole number that an option takes: of tokens, sequences, GPUs and the like."""
MOST_BYTES = 2**62
"""The largest number of bytes that an option takes."""

LEAST_BYTES: Final = MIB
"""Where bytes are expected, a number below this without a unit is taken for a mistake, such as ``20`` for ``20GiB``."""

_TOKEN_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_PARAMETER_FACTORS = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmbt", start=1)}}
_BYTE_FACTORS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
# Separators stand between groups of three: 1,000 and 1_000, but not 1,5.
_NUMBER: Final = r"(?a)([0-9]{1,19}|[0-9]{1,3}(?:[,_][0-9]{3}){1,6})(?:\.([0-9]{1,9}))?[ ]?([a-z]{0,3})"
_DURATION_S: Final = {"us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_EVERY_S: Final = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_DECIMAL: Final = r"(?a)([0-9]{1,13}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})"
_MOST_ACCEPTED: Final = 100
LONGEST_S: Final = 1e7
"""The longest time that an option takes: some months."""
_SHARE: Final = r"(?a)(-?[0-9]{1,9}|-?(?=\.[0-9]))(?:\.([0-9]{0,18}))?(?:e(-?[0-9]{1,2}))?"


def _number(value: object, factors: dict[str, int], what: str, allowed: str, least: int, most: int, *, whole: bool = True) -> int:
    """A number in a range: an integer of any type (NumPy's too), or text with a unit. Raises :class:`UsageError` for anything else."""
    hint = f"Allowed: {allowed}."
    number: int | None = None
    if isinstance(value, str):
        number = _of_text(value, factors, what, hint, whole=whole)
    elif not isinstance(value, bool):
        with suppress(Exception):  # the value may be anything, and so may be what its __index__ raises
            number = value = index(value)  # type: ignore[arg-type]
    if number is None:
        raise UsageError(f"{what} is not a whole number: {quoted(value, 40)} ({type(value).__name__})", hint=hint)
    if not least <= number <= most:
        given = brief(value, 40) if isinstance(value, str) else quoted(value, 40)
        raise UsageError(f"{what} is out of range: {given}", hint=hint)
    return number


def _of_text(text: str, factors: dict[str, int], what: str, hint: str, *, whole: bool) -> int:
    plain = text.strip().lower()
    match = re.fullmatch(_NUMBER, plain)
    if match is None and plain[:1] in {"-", "\N{MINUS SIGN}"} and re.fullmatch(_NUMBER, plain[1:]):
        raise UsageError(f"{what} is out of range: {shown(text, 40)}", hint=hint)
    if match is None or match[3] not in factors:
        raise UsageError(f"{what} is not a number: {shown(text, 40)}", hint=hint)
    digits = match[2] or ""
    scaled = int(match[1].replace(",", "").replace("_", "") + digits) * factors[match[3]]
    unit: int = 10 ** len(digits)
    value, rest = divmod(scaled, unit)
    if rest and (whole or factors[match[3]] == 1):
        raise UsageError(f"{what} is not a whole number: {shown(text, 40)}", hint=hint)
    return value


def parse_tokens(value: int | str, what: str = "the number of tokens", *, minimum: int = 1) -> int:
    """A number of tokens: ``32768``, ``"32k"`` (32,768), ``"1M"`` (1,048,576). k, M and G are powers of 1,024."""
    if type(value) is int and minimum <= value <= MOST_TOKENS:
        return value
    allowed = f"a whole number from {minimum:,} to {MOST_TOKENS:,} with an optional k, M or G (powers of 1,024)"
    return _number(value, _TOKEN_FACTORS, what, allowed, minimum, MOST_TOKENS)


def parse_token_list(value: object, what: str, most: int) -> tuple[int, ...]:
    """At most ``most`` numbers of tokens, from text with commas between, a list, or a single number. A number that is named twice counts twice.

    >>> parse_token_list("1k,8k", "lengths", 10), parse_token_list([5, "1k"], "lengths", 10)
    ((1024, 8192), (5, 1024))
    """
    words: Any = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not 0 < len(words) <= most:
        raise UsageError(f"{what} has {len(words):,} entries.", hint=f"Allowed: 1 to {most:,}.")
    return tuple(parse_tokens(word.strip() if isinstance(word, str) else word, what) for word in words)


def parse_uniform(text: str, what: str) -> tuple[int, int] | None:
    """The ends of ``"uniform:1..32k"``, lengths that are all equally likely; ``None`` for other text.

    >>> parse_uniform("uniform:1..32k", "lengths"), parse_uniform("1k,2k", "lengths")
    ((1, 32768), None)
    """
    match = re.fullmatch(r"uniform:(.*)\.\.(.*)", text.strip().lower())
    if match is None:
        return None
    low, high = parse_tokens(match[1], what), parse_tokens(match[2], what)
    if low > high:
        raise UsageError(f"{what} {shown(text, 40)} end before they begin.", hint="Write: uniform:1..32k")
    return low, high


def parse_bytes(value: int | str, what: str = "the size") -> int:
    """A number of bytes: ``"80GB"`` is 80 x 10^9, ``"80GiB"`` is 80 x 2^30, and a number without a unit is bytes.

    A fraction of a byte is dropped (``"5.38GiB"``).
    """
    units = "with KB, MB, GB, TB (powers of 1,000) or KiB, MiB, GiB, TiB (powers of 1,024)"
    allowed = f"bytes, or a number {units}, up to {MOST_BYTES:,} bytes"
    return _number(value, _BYTE_FACTORS, what, allowed, 0, MOST_BYTES, whole=False)


def parse_size(value: int | str, what: str = "the size") -> int:
    """A number of bytes as :func:`parse_bytes` reads it. Text without a unit is bytes only if the number is large.

    >>> parse_size("64GiB"), parse_size(64)
    (68719476736, 64)
    """
    size = parse_bytes(value, what)
    if isinstance(value, str) and value.strip()[-1:].isdigit() and 0 < size < LEAST_BYTES:
        bare = value.strip()[:40]
        raise UsageError(
            f"{what} {shown(bare, 40)} has no unit.",
            hint=f"Write {brief(bare, 40)}GiB or {brief(bare, 40)}GB; a bare number is bytes.",
        )
    return size


def parse_memory(value: int | str, what: str = "the memory") -> int:
    """The bytes of a memory as it is sold: 64, or 64 GB, has 64 GiB. A number that is too large to be meant so is bytes.

    >>> parse_memory(64), parse_memory("64GB"), parse_memory("64GiB"), parse_memory(68_719_476_736)
    (68719476736, 68719476736, 68719476736, 68719476736)
    """
    digits = re.sub(r"(?i)\s*GB$", "", value.strip()) if isinstance(value, str) else ""
    # Not of any length: Python makes no number of thousands of digits.
    bare = int(digits) if re.fullmatch(r"[0-9]{1,20}", digits) else value
    is_small = isinstance(bare, int) and not isinstance(bare, bool) and 0 <= bare < LEAST_BYTES
    size = parse_bytes(f"{bare}GiB" if is_small else value, what)
    if not size:
        raise UsageError(f"{what} is nothing.", hint="Write a number of GB, such as 64, or a size: 64GiB.")
    return size


def parse_parameters(value: int | str, what: str = "the number of parameters") -> int:
    """A number of parameters: ``"70B"`` is 70 x 10^9. K, M, B and T are powers of 1,000.

    >>> parse_parameters("0.6B"), parse_parameters(8_000_000_000)
    (600000000, 8000000000)
    """
    allowed = f"a whole number from 1 to {MOST_TOKENS:,} with an optional K, M, B or T (powers of 1,000)"
    return _number(value, _PARAMETER_FACTORS, what, allowed, 1, MOST_TOKENS)


def parse_share(value: float | str, what: str = "the share") -> Fraction:
    """The exact share that ``"5%"``, ``"0.05"`` or ``0.05`` means: 1/20. The caller checks its range.

    >>> parse_share("5%"), parse_share(0.92), parse_share(".95"), parse_share("-2.5e-1")
    (Fraction(1, 20), Fraction(23, 25), Fraction(19, 20), Fraction(-1, 4))
    """
    from fractions import Fraction

    # A float counts as it is printed: 0.05 means 1/20, not the nearest binary fraction.
    huge = isinstance(value, int) and (isinstance(value, bool) or abs(value) > MOST_TOKENS)
    text = str(value).strip() if isinstance(value, (int, float, str)) and not huge else ""
    number, percent, rest = text.partition("%")
    match = None if rest else re.fullmatch(_SHARE, number.strip())
    if match is None:
        raise UsageError(f"{what} is not a number: {quoted(value)}", hint="Allowed: a share such as 0.05, or 5%.")
    decimals = match[2] or ""
    power = int(match[3] or 0) - len(decimals) - (2 if percent else 0)
    return Fraction(int((match[1] or "") + decimals) * 10 ** max(power, 0), 10 ** max(-power, 0))


def few_digits(value: float) -> str:
    """Two digits of a number below a hundred, and the whole of a larger one.

    >>> few_digits(5.123), few_digits(38.4), few_digits(1234.5)
    ('5.1', '38', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def human_chance(chance: float) -> str:
    """A chance in percent with two digits; a very small one as a bound.

    >>> human_chance(0.0), human_chance(0.00186), human_chance(1e-9), human_chance(0.9999), human_chance(1.0)
    ('0 %', '0.19 %', 'below 0.0001 %', '99.99 %', '100 %')
    """
    if 0 < chance < 1e-6:
        return "below 0.0001 %"
    percent = (
        float(f"{100 * chance:.2g}") if chance < 0.985 else max(min(round(100 * chance, 2), 99.99), 98.5) if chance < 1 else 100.0
    )
    return f"{percent:.10g} %"


def parse_duration(value: float | str, what: str = "the time") -> float:
    """Seconds: of text with a unit (``"2s"``, ``"50ms"``, ``"1.5min"``), or of a number of seconds. Text without a unit is refused.

    >>> parse_duration("50ms"), parse_duration("2 s"), parse_duration("1.5min"), parse_duration(0.25)
    (0.05, 2.0, 90.0, 0.25)
    """
    hint = "Allowed: a time above 0 with its unit, such as 2s, 50ms or 1min."
    if isinstance(value, str):
        text = value.strip().lower()
        match = re.fullmatch(_DECIMAL + "[ ]?([a-z\N{MICRO SIGN}]{0,3})", text)
        if match is not None and not match[2] and float(match[1]):
            raise UsageError(f"{what} {shown(value, 40)} has no unit.", hint=f"Write {brief(text, 40)}s or {brief(text, 40)}ms.")
        if match is None or match[2] not in {"", *_DURATION_S}:
            raise UsageError(f"{what} is not a time: {shown(value, 40)}", hint=hint)
        seconds = float(match[1]) * _DURATION_S.get(match[2], 0.0)
    else:
        seconds = plain_number(value, what, "a number of seconds, or text such as 50ms")
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{what} is out of range: {quoted(value, 40)}", hint=hint)
    return seconds


def parse_rate(value: float | str, what: str = "the rate") -> float:
    """How many in a second: a number, or text that may say of what and per what (``"40"``, ``"40 tokens/s"``, ``"90/min"``).

    >>> parse_rate("40"), parse_rate("40 tokens/s"), parse_rate("90/min"), parse_rate(2.5)
    (40.0, 40.0, 1.5, 2.5)
    """
    hint = "Allowed: a number above 0, such as 40, 2.5/s or 90/min."
    if isinstance(value, str):
        match = re.fullmatch(_DECIMAL + "(?:[ ]?(?:tokens?|requests?))?(?:[ ]?/[ ]?([a-z]{1,6}))?", value.strip().lower())
        if match is None or (match[2] or "") not in _EVERY_S:
            raise UsageError(f"{what} is not a rate: {shown(value, 40)}", hint=hint)
        number = float(match[1]) / _EVERY_S[match[2] or ""]
    else:
        number = plain_number(value, what, "a number above 0")
    if not 0 < number <= MOST_TOKENS:
        raise UsageError(f"{what} is out of range: {quoted(value, 40)}", hint=hint)
    return number


def parse_accepted(value: float | str, what: str = "accepted-tokens") -> float:
    """Tokens that a step adds to a sequence on average with speculative decoding: a number from 1 to 100.

    >>> parse_accepted("2.4"), parse_accepted(1)
    (2.4, 1.0)
    """
    allowed = "a number from 1 to 100, such as 2.4"
    number = plain_number(value, what, allowed)
    if not 1 <= number <= _MOST_ACCEPTED:
        raise UsageError(f"{what} is {number:g}.", hint=f"Allowed: {allowed}.")
    return number


HOURS_PER_MONTH: Final = 730
AMOUNT: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,2}|[0-9]{1,9})(?:\.[0-9]{1,18})?|\.[0-9]{1,18}"
"""The number in an amount of money. A comma stands between thousands: 2,5 is none."""
_HOURS: Final = {**dict.fromkeys(("h", "hr", "hour"), 1), **dict.fromkeys(("mo", "month"), HOURS_PER_MONTH)}


def parse_dollars(value: object, what: str = "the price", allowed: str = "US dollars above 0, such as 0.15") -> Decimal:
    """US dollars: a number above 0, or text such as ``$0.15`` and ``2,500``.

    >>> parse_dollars("$2,500"), parse_dollars(0.15)
    (Decimal('2500'), Decimal('0.15'))
    """
    from decimal import Decimal

    text = value if isinstance(value, (str, Decimal)) else repr(plain_number(value, what, allowed))
    plain = str(text).strip().removeprefix("$")
    usd = Decimal(plain.replace(",", "")) if re.fullmatch(AMOUNT, plain) else Decimal(0)
    if not usd:
        raise UsageError(f"{what} is no price: {quoted(value, 40)}", hint=f"Allowed: {allowed}.")
    return usd


def parse_money(text: object, what: str = "the price") -> Decimal:
    """US dollars an hour, of text that says per what.

    >>> parse_money("2.50/h"), parse_money("$7,300/month")
    (Decimal('2.50'), Decimal('10'))
    """
    amount, _, unit = text.partition("/") if isinstance(text, str) else ("", "", "")
    hours, allowed = _HOURS.get(unit.strip().lower()), "US dollars per hour or month, above 0, such as 2.50/h or 5000/month"
    if hours is None:
        raise UsageError(f"{what} is not said per hour or month: {quoted(text, 40)}", hint=f"Allowed: {allowed}.")
    return parse_dollars(amount, what, allowed) / hours


def plain_number(value: object, what: str, allowed: str) -> float:
    """A number of any type, NumPy's too, or of text. Raises :class:`~hwcalc.errors.UsageError` for what is none."""
    number = None
    if not isinstance(value, bool):
        with suppress(Exception):  # the value may be anything, and so may be what its __float__ raises
            number = float(value)  # type: ignore[arg-type]
    if number is None:
        raise UsageError(f"{what} is not a number: {quoted(value, 40)} ({type(value).__name__})", hint=f"Allowed: {allowed}.")
    return number


def human_duration(seconds: float) -> str:
    """A time with three digits: ``"25 ms"``, ``"1.24 s"``, ``"2.5 min"``.

    >>> human_duration(0.025), human_duration(1.2351), human_duration(151), human_duration(7200)
    ('25 ms', '1.24 s', '2.52 min', '2 h')
    """
    for unit, name in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        # A few of a unit are told in the smaller one: 90 s and not 1.5 min.
        if seconds >= unit * (2 if unit > 1 else 0.9995):
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def human_range(seconds: float, low: float, high: float) -> str:
    """A time and the range around it, in the unit of the time.

    >>> human_range(0.801, 0.534, 1.2), human_range(150, 109, 181)
    ('801 ms (534 to 1,200 ms)', '2.5 min (1.82 to 3.02 min)')
    """
    text = human_duration(seconds)
    unit = text.rpartition(" ")[2]
    ends = (value / _DURATION_S[unit] for value in (low, high))
    return f"{text} ({' to '.join(f'{end:,.0f}' if end >= 100 else f'{end:.3g}' for end in ends)} {unit})"


def human_bytes(count: int) -> str:
    """A number of bytes in binary units: ``"4.00 GiB"``, ``"128 KiB"``, ``"576 B"``."""
    if abs(count) < KIB:
        return f"{count} B"
    for unit, name in ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if abs(count) >= unit:
            return f"{count / unit:,.2f} {name}"
    return f"{count / KIB:,.2f} KiB".replace(".00 ", " ")
