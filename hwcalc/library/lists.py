"""Read lists of numbers, words and models: ``1k,2k``, ``1k..128k``, ``[1, 2, 4]``, ``bf16,fp8``; models by name, pattern or file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from hwcalc.errors import ModelNotFoundError, UsageError
from hwcalc.text import brief, quoted, shown
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.model import ModelLike
    from hwcalc.policies.base import Chosen

Words = str | Sequence[str] | None
Numbers = int | str | Sequence[int | str] | None
"""A number, a text of numbers and ranges, or a list: a ``range`` too, and an array of NumPy."""
MOST_VALUES = 1_000_000
"""The most numbers in a list, and the most models in a file."""
_LARGEST_FILE = 4 * 1024**2
_LONGEST_NAME = 4096
"""Characters of a path on Linux; an id has up to 193."""


def texts(given: str | Sequence[str], what: str, *, hint: str = "") -> Sequence[str]:
    """The strings of an argument that is one string or a list of them. Raises :class:`~hwcalc.errors.UsageError` for anything else."""
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, (list, tuple)) or not all(isinstance(text, str) for text in found):
        raise UsageError(f"{what} must be a string or a list of strings (got {quoted(given)}).", hint=hint)
    return found


def words(given: Words, what: str) -> tuple[str, ...]:
    """The words of a list, each once: ``"bf16, fp8"`` and ``["bf16", "fp8"]`` are ``("bf16", "fp8")``, and ``None`` is ``()``."""
    found: dict[str, None] = {}
    for text in () if given is None else texts(given, what, hint=f"Write: --{what} A,B"):
        parts = [word.strip() for word in text.split(",")]
        if not all(parts):
            raise UsageError(f"{what} has an empty entry: {shown(text, 40)}", hint=f"Write: --{what} A,B")
        found.update(dict.fromkeys(parts))
    return tuple(found)


def numbers(given: Numbers, what: str) -> tuple[int, ...]:
    """The numbers of a list in their order, each once; ``None`` is ``()``.

    In text, commas separate numbers; ``A..B`` doubles from A up to B, and ``A..B:STEP`` goes in equal steps.

    >>> numbers("1k..8k", "seq"), numbers("1..10:4,8", "batch"), numbers([1, "2k"], "seq"), numbers(range(4, 12, 4), "batch")
    ((1024, 2048, 4096, 8192), (1, 5, 9, 8), (1, 2048), (4, 8))
    """
    found: dict[int, None] = {}
    several: Any = given
    if hasattr(several, "tolist") and not isinstance(several, type):
        several = several.tolist()
    entries: Sequence[Any] = several if isinstance(several, (list, tuple, range)) else () if given is None else (several,)
    if len(entries) > MOST_VALUES:
        raise UsageError(f"{what} has too many values.", hint=f"At most {MOST_VALUES:,}. Take a larger step.")
    for entry in entries:
        if isinstance(entry, str):
            _add_numbers(found, entry, what)
        else:
            found[parse_tokens(entry, what)] = None
    return tuple(found)


def _add_numbers(found: dict[int, None], text: str, what: str) -> None:
    for word in words(text, what):
        first, dots, rest = word.partition("..")
        if not dots:
            found[parse_tokens(word, what)] = None
            continue
        last, colon, step = rest.partition(":")
        start, end = parse_tokens(first, what), parse_tokens(last, what)
        if start > end:
            raise UsageError(f"{what} {shown(word, 40)} ends before it begins.", hint=f"Write: --{what} 1k..128k, or 1k..128k:1k")
        stride = parse_tokens(step, f"the step of {what}") if colon else None
        values: Sequence[int] = [start]
        if stride:
            values = range(start, end + 1, stride)
        else:
            while 2 * values[-1] <= end:
                values = [*values, 2 * values[-1]]
        if len(values) + len(found) > MOST_VALUES:
            raise UsageError(
                f"{what} {shown(word, 40)} has too many values.", hint=f"At most {MOST_VALUES:,}. Take a larger step."
            )
        found.update(dict.fromkeys(values))


def policies_of(given: object) -> tuple[Chosen | None, ...]:
    """The policies of a list (:func:`~hwcalc.policies.parse.policy_list`); ``None`` stands for no policy, and is the list without one."""
    if given is None or (isinstance(given, list) and not given):
        return (None,)
    from hwcalc.policies.parse import policy_list

    return policy_list(given) or (None,)


def each_model(given: ModelLike | Sequence[ModelLike], *, every: bool = False) -> tuple[ModelLike, ...]:
    """The models of an argument that holds one or several; strings may be patterns or files (:func:`model_names`)."""
    models: Sequence[ModelLike] = given if isinstance(given, (list, tuple)) else (given,)
    names = [model for model in models if isinstance(model, str)]
    if len(names) == len(models):
        return model_names(names, every=every)
    return tuple(one for model in models for one in (model_names((model,), every=False) if isinstance(model, str) else (model,)))


def models_or_equation(
    given: ModelLike | Sequence[ModelLike] | None, dimensions: Mapping[str, Any]
) -> tuple[ModelLike | None, ...]:
    """The models of an argument; where it names none and ``dimensions`` are given, ``None``, which is the bare equation."""
    none = given is None or (isinstance(given, (str, list, tuple)) and not given)
    return (None,) if none and dimensions else each_model(given)  # type: ignore[arg-type]


def model_names(given: Sequence[str], *, every: bool) -> tuple[str, ...]:
    """The names of models, each once: names, patterns of catalog ids (``Qwen/*``), or ``@FILE`` with one name on each line.

    ``every`` adds the whole catalog. Raises :class:`~hwcalc.errors.ModelNotFoundError` if a pattern has no match or a file cannot be
    read, and :class:`~hwcalc.errors.UsageError` if there is no name at all.
    """
    found: dict[str, None] = {}
    for name in given:
        if name.startswith("@"):
            found.update(dict.fromkeys(model_names(_lines(name[1:]), every=False)))
        elif any(sign in name for sign in "*?["):
            from fnmatch import fnmatchcase

            matching = [model_id for model_id in _catalog() if fnmatchcase(model_id.lower(), name.lower())]
            if not matching:
                raise ModelNotFoundError(f"no model of the catalog matches {shown(name, 60)}.", hint="See: kvplan models")
            found.update(dict.fromkeys(matching))
        else:
            found[name] = None
    if every:
        found.update(dict.fromkeys(_catalog()))
    if not found:
        raise UsageError(
            "no model is given.", hint="Give ids or folders, a pattern such as 'Qwen/*', or @FILE with one on each line."
        )
    return tuple(found)


def _catalog() -> tuple[str, ...]:
    from hwcalc.profiles.catalog import list_models
    from hwcalc.sources.built_in import profile_errors

    with profile_errors():
        return list_models()


def _lines(name: str) -> list[str]:
    """The names in a file. A file cannot name another file: ``@`` at the start of a line is an error."""
    from hwcalc.files import opened

    path, hint = name or "the file after @", "Write one model on each line."
    try:
        with opened(name) as file:
            text = file.read(_LARGEST_FILE + 1).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ModelNotFoundError(f"{brief(path, 80)} cannot be read: {reason}.", hint=hint) from error
    if len(text) > _LARGEST_FILE:
        raise ModelNotFoundError(f"{brief(path, 80)} is larger than {_LARGEST_FILE // 1024**2} MiB.", hint=hint)
    # A comment begins at the start of a line or after a blank, because a folder's name may hold # too.
    stripped = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    names = list(islice((line for line in stripped if line), MOST_VALUES))
    if not names:
        raise ModelNotFoundError(f"{brief(path)} names no model.", hint=hint)
    if any(len(line) > _LONGEST_NAME for line in names):
        raise ModelNotFoundError(f"{brief(path)} has a line of more than {_LONGEST_NAME:,} characters.", hint=hint)
    if any(line.startswith("@") for line in names):
        raise ModelNotFoundError(f"{brief(path, 80)} names a file of models itself.", hint=hint)
    return names
