"""The forms of fact files in YAML, as pydantic models: what they share, and the error for a file that has another form, with its line.

The built-in files are checked when they are compiled (``scripts/build_profiles.py``), a file of the user's own when it is read. Nothing else
imports pydantic, which takes longer than most plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError
from hwcalc.yaml_tree import LARGEST_FILE, Node, TreeError, plain_value, read_tree


class YamlFile(Record):
    """A document whose top level is a mapping, and the line of each key."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[str, int]

    def line(self, key: str) -> int | None:
        """The line of a key or of an item of a list. The name of a nested key has dots."""
        return self.lines.get(key)


def read_yaml(path: Path) -> YamlFile:
    """Read a file of up to 1 MiB. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path and line."""
    try:
        if not path.is_file():
            raise ProfileError(path, "is not a regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ProfileError(path, f"is larger than {LARGEST_FILE // 1024**2} MiB")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ProfileError(path, "is not UTF-8 text") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """Read YAML text. Duplicate keys, anchors, aliases and tags are errors. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    try:
        root = read_tree(text)
    except TreeError as error:
        said = error.problem if error.problem.startswith(("is ", "has ")) else f"is no plain YAML: {error.problem}"
        raise ProfileError(path, said, line=error.line, key=error.key) from error
    if not isinstance(root.value, dict):
        raise ProfileError(path, "must be a mapping of keys and values", line=1)
    return YamlFile(path=path, data=plain_value(root), lines=_lines(root))


def _lines(root: Node) -> dict[str, int]:
    """Dotted key -> its line, counted from 1."""
    lines: dict[str, int] = {}
    waiting: list[tuple[str, Node]] = [("", root)]
    while waiting:
        prefix, node = waiting.pop()
        for key, place in (node.keys or {}).items():
            lines[f"{prefix}{key}"] = place.line
            waiting.append((f"{prefix}{key}.", node.value[key]))
        if isinstance(node.value, list):
            for index, item in enumerate(node.value):
                lines[f"{prefix}{index}"] = item.line
                waiting.append((f"{prefix}{index}.", item))
    return lines


_LARGEST: Final = 2**40


class Facts(BaseModel):
    """A mapping with exactly these keys. No value is converted: ``"3"``, ``3.0`` and ``true`` are no whole numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FactFile(Facts):
    """A file of facts. What a field of it may hold stands in its description, and in the error for anything else."""

    schema_version: Annotated[int, Field(ge=1, le=1, description="1")]

    def place(self) -> tuple[str, ...]:
        """The last parts of the path where such a file belongs."""
        raise NotImplementedError


class WrongKeyError(ValueError):
    """A rule between several keys is broken: the key to change, and what is wrong with it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def _at_most_one(share: str) -> str:
    part, _, whole = share.partition("/")
    if int(part) > int(whole):
        raise ValueError("must be a share of at most 1, written 2/3")
    return share


# What a value may hold is said in the description of the innermost type that has one, and of a field where the words of its type do not say it.
Words = Annotated[str, Field(pattern=r"\S", description="words")]
Word = Annotated[str, Field(pattern=r"\S", description="a word")]
Whole = Annotated[int, Field(gt=0, lt=_LARGEST, description="a positive whole number")]
Amount = Annotated[float, Field(ge=0, description="a number of at least 0")]
Positive = Annotated[float, Field(gt=0, lt=_LARGEST, description="a positive number")]
Date = Annotated[
    str,
    Field(
        pattern=r"^(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])$", description="a date, YYYY-MM-DD, in quotes"
    ),
]
Share = Annotated[
    str,
    Field(pattern=r"^[1-9][0-9]{0,4}/[1-9][0-9]{0,4}$", description="a share of at most 1, written 2/3"),
    AfterValidator(_at_most_one),
]
"""Two whole numbers, so that arithmetic stays exact."""
Sources = Annotated[
    dict[Words, Words],
    Field(min_length=1, description="a name and words for each source; it holds for every number of the file"),
]


class Estimate(Facts):
    """A number that is not exact, with its source."""

    low: Amount
    expected: Amount
    high: Amount
    source: Words

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low <= self.expected <= self.high:
            raise ValueError("must have 0 <= low <= expected <= high")
        return self


def check(file: YamlFile, form: type[BaseModel]) -> None:
    """Raise :class:`~hwcalc.profiles.catalog.ProfileError` with line and key for the first unknown, missing or wrong key."""
    try:
        content = form.model_validate(file.data)
    except ValidationError as error:
        raise _first(file, form, error) from error
    place = content.place() if isinstance(content, FactFile) else ()
    found = file.path.parts[len(file.path.parts) - len(place) :]
    if found != place:
        raise _wrong(file, ("id",), f"belongs in {'/'.join(place)}, but the file is {'/'.join(found)}")


def _first(file: YamlFile, form: type[BaseModel], error: ValidationError) -> ProfileError:
    """The error to show of all that pydantic found: an unknown key comes first, because it often is the missing one, misspelled."""
    errors = error.errors(include_url=False, include_input=False)
    mappings = ((), errors[0]["loc"][:-1])
    unknown = [one for one in errors if one["type"] == "extra_forbidden" and one["loc"][:-1] in mappings]
    first = min(unknown, key=lambda one: len(one["loc"]), default=errors[0])
    path = tuple(part for part in first["loc"] if part != "[key]")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, WrongKeyError):
        return _wrong(file, (*path, cause.key), str(cause))
    if cause is not None:
        return _wrong(file, path, str(cause))
    if first["type"] == "extra_forbidden":
        return _wrong(file, path, f"is not known. Allowed: {', '.join(_keys(_value_at(form, path[:-1])[0]))}")
    allowed = _value_at(form, path)[1]
    return _wrong(file, path, f"is missing: it must be {allowed}" if first["type"] == "missing" else f"must be {allowed}")


def _wrong(file: YamlFile, path: Sequence[int | str], problem: str) -> ProfileError:
    """An error with the line of the key, or of the mapping in which it is missing."""
    key = ".".join(map(str, path))
    line = file.line(key) or file.line(key.rpartition(".")[0])
    return ProfileError(file.path, problem, line=line, key=key or None)


def _value_at(form: type[BaseModel], path: Sequence[int | str]) -> tuple[Any, str]:
    """The type of the value at a key, and what it may hold in words."""
    value: Any = form
    words: str | None = None
    for part in path:
        mapping = _form_in(value)
        field = None if mapping is None else mapping.model_fields.get(str(part))
        value, words = (_item(value), None) if field is None else (field.annotation, field.description)
    return value, words or _described(value) or f"a mapping with {', '.join(_keys(value))}"


def _keys(value: Any) -> Sequence[str]:
    form = _form_in(value)
    return () if form is None else tuple(form.model_fields)


def _form_in(value: Any) -> type[BaseModel] | None:
    """The form of a mapping, of one that may be null, or of each of a list of them."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value
    return next((found for one in get_args(value) if (found := _form_in(one)) is not None), None)


def _item(value: Any) -> Any:
    """The type of the items of a list, or of the values of a mapping with any keys."""
    if isinstance(value, type) and issubclass(value, RootModel):
        return _item(value.model_fields["root"].annotation)
    if get_origin(value) in (list, dict):
        return get_args(value)[-1]
    return next((found for one in get_args(value) if (found := _item(one)) is not None), None)


def _described(value: Any) -> str | None:
    if isinstance(value, FieldInfo):
        return value.description
    if get_origin(value) in (list, dict):
        return None
    return next((found for one in reversed(get_args(value)) if (found := _described(one))), None)
