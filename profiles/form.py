"""What the keys of fact files may hold: types with their words, and :func:`first_fault`, which finds what is wrong in a file.

A form is a record whose fields are the keys of a mapping. The program loads the built-in files by the same forms.

Modules with forms do without ``from __future__ import annotations``: msgspec would evaluate the text of each, 20 ms for a plan of vLLM.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from math import isfinite
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from hwcalc.formulas.record import Record

Rule: TypeAlias = Callable[[Any], str | None]
"""What is wrong with a value whose type is right; ``None`` if nothing is."""
Path: TypeAlias = tuple[str | int, ...]


def one_of(*words: str) -> Meta:
    """The limit of a text that is one of these words."""
    return Meta(pattern=f"^(?:{'|'.join(words)})$", description=f"one of {', '.join(words)}")


def ruled(rule: Rule, **more: Any) -> Meta:
    """A limit of values that no other keyword of :class:`msgspec.Meta` can say."""
    return Meta(extra={"rule": rule}, **more)


def _at_most_one(share: str) -> str | None:
    part, _, whole = share.partition("/")
    return "must be a share of at most 1, written 2/3" if int(part) > int(whole) else None


def _a_day(text: str) -> str | None:
    try:
        date.fromisoformat(text)
    except ValueError:
        return "must be a day of the calendar"
    return None


def rising(readings: Sequence[int]) -> str | None:
    """The rule of two readings: the lower comes first."""
    return "must be two numbers of MiB, the lower first" if readings[0] > readings[1] else None


_LARGEST: Final = 2**40
LONGEST_ID: Final = 64
_DATE: Final = r"^(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])$"

_FROM_ZERO: Final = Meta(ge=0, description="a number of at least 0")
_POSITIVE: Final = Meta(gt=0, lt=_LARGEST, description="a positive number")

# A number may be whole: a file's 3 stays 3.
Words: TypeAlias = Annotated[str, Meta(pattern=r"\S", description="words")]
Word: TypeAlias = Annotated[str, Meta(pattern=r"\S", description="a word")]
Whole: TypeAlias = Annotated[int, Meta(gt=0, lt=_LARGEST, description="a positive whole number")]
Amount: TypeAlias = Annotated[int, _FROM_ZERO] | Annotated[float, _FROM_ZERO]
Positive: TypeAlias = Annotated[int, _POSITIVE] | Annotated[float, _POSITIVE]
Mib: TypeAlias = Annotated[int, Meta(gt=0, lt=_LARGEST, description="a positive whole number of MiB")]
Readings: TypeAlias = Annotated[tuple[Mib, Mib], ruled(rising, description="two numbers of MiB, the lower first")]
Date: TypeAlias = Annotated[str, ruled(_a_day, pattern=_DATE, description="a date, YYYY-MM-DD, in quotes")]
Share: TypeAlias = Annotated[
    str,
    ruled(_at_most_one, pattern=r"^[1-9][0-9]{0,4}/[1-9][0-9]{0,4}$", description="a share of at most 1, written 2/3"),
]
"""Two whole numbers, so that arithmetic stays exact."""
Sources: TypeAlias = Annotated[
    Mapping[Words, Words],
    Meta(min_length=1, description="a name and words for each source; it holds for every number of the file"),
]
GpuId: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=LONGEST_ID, description="small letters, digits and hyphens"),
]
Listed: TypeAlias = Annotated[tuple[Words, ...], Meta(description="a list of words")]
Version: TypeAlias = Annotated[int, Meta(ge=1, le=1, description="1")]
"""The ``schema_version`` of a file."""


class Facts(Record, forbid_unknown_fields=True):
    """A mapping with exactly these keys. No value is converted: ``"3"``, ``3.0`` and ``true`` are no whole numbers."""

    def contradiction(self) -> tuple[str, str] | None:
        """The key that contradicts another, and what is wrong with it; ``None`` if none does. It may be a key within, with dots."""
        return None


class FactFile(Facts):
    """A file of facts."""

    place: ClassVar[str] = "{0.id}.yaml"
    """The last parts of the path where such a file belongs, with its own values."""
    schema_version: Version


class Estimate(Facts):
    """A number that is not exact: low, expected and high value, and the source."""

    low: Amount
    expected: Amount
    high: Amount
    source: Words

    def contradiction(self) -> tuple[str, str] | None:
        return None if self.low <= self.expected <= self.high else ("", "must have 0 <= low <= expected <= high")


def first_fault(value: Any, kind: Any, words: str = "") -> tuple[Path, str] | None:
    """The path of the first thing that is wrong in a value, and what is wrong; ``None`` if the value is of this kind.

    ``words`` say what the value may be, where the kind does not. A key that is not known comes before the others of its mapping, because
    it often is the missing one, misspelled.
    """
    metas, inner = _unwrapped(kind, value)
    words = next((meta.description for meta in metas if meta.description), words) or _words(inner)
    fault = _fault_within(value, inner, words)
    if fault is not None:
        return fault
    try:
        made = convert(value, kind)
    except ValidationError:
        return (), f"must be {words}"
    if isinstance(value, float) and not isfinite(value):
        return (), f"must be {words}"
    problem = next((said for meta in metas if meta.extra and (said := meta.extra["rule"](value))), None)
    if problem is None and isinstance(made, Facts) and (wrong := made.contradiction()) is not None:
        key, problem = wrong
        return tuple(key.split(".")) if key else (), problem
    return None if problem is None else ((), problem)


def _unwrapped(kind: Any, value: Any) -> tuple[list[Meta], Any]:
    """The limits of a kind, from the outermost, and the type that they limit: of several the one that the value is meant to be."""
    metas: list[Meta] = []
    while (origin := get_origin(kind)) in (Annotated, Union, UnionType):
        members = get_args(kind)
        if origin is Annotated:
            metas += reversed(kind.__metadata__)
            kind = members[0]
        else:
            meant = [member for member in members if isinstance(value, _holder(member))]
            kind = (meant or members)[0]
    return metas, kind


def _holder(kind: Any) -> type:
    """The class that a value of this kind has in a file."""
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    held = get_origin(kind) or kind
    if held is Literal:
        return object
    return Mapping if issubclass(held, (Struct, Mapping)) else list if held in _LISTS else held


_LISTS: Final = (tuple, list, frozenset)


def _words(kind: Any) -> str:
    form = isinstance(kind, type) and issubclass(kind, Struct)
    return f"a mapping with {', '.join(_keys(kind))}" if form else "something else"


def _keys(form: type[Struct]) -> Sequence[str]:
    return form.__struct_encode_fields__


def _fault_within(value: Any, kind: Any, words: str) -> tuple[Path, str] | None:
    """The first fault of what a mapping or a list holds, or that the value is neither."""
    holder: type[Any] = _holder(kind)
    if holder not in (Mapping, list):
        return None
    if not isinstance(value, holder):
        return (), f"must be {words}"
    if isinstance(kind, type):
        return _fault_of_keys(value, kind)
    of_key, of_item = (get_args(kind)[0], get_args(kind)[-1]) if holder is Mapping else (int, get_args(kind)[0])
    items: Iterable[tuple[Any, Any]] = value.items() if holder is Mapping else enumerate(value)
    for key, item in items:
        fault = first_fault(key, of_key, words) or first_fault(item, of_item)
        if fault is not None:
            return (key, *fault[0]), fault[1]
    return None


def _fault_of_keys(value: Mapping[str, Any], form: type[Struct]) -> tuple[Path, str] | None:
    for key in value:
        if key not in _keys(form):
            return (key,), f"is not known. Allowed: {', '.join(_keys(form))}"
    kinds = get_type_hints(form, include_extras=True)
    for field in fields(form):
        key = field.encode_name
        fault = first_fault(value.get(key), kinds[field.name]) if key in value or field.required else None
        if fault is not None and key not in value:
            return (key,), fault[1].replace("must", "is missing: it must", 1)
        if fault is not None:
            return (key, *fault[0]), fault[1]
    return None
