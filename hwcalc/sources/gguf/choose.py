"""Which GGUF file of a repository is meant: by its name, by its quantisation, or by llama.cpp's rule where neither is given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from hwcalc.errors import ModelNotFoundError
from hwcalc.sources.gguf.names import is_gguf, models_of, part_of
from hwcalc.text import operand, shown

__all__ = ["choose", "matching", "quantization_of", "word_for"]

_DEFAULTS: Final = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp takes first where none is named (``find_best_model`` in common/download.cpp)."""
_LISTED: Final = 12
_EDGE: Final = r"(?:^|[-._/])"
_QUANTIZATION: Final = re.compile(r"[-.]((?:UD-)?[A-Z0-9_]+)$", re.IGNORECASE)


def choose(names: Iterable[str], wanted: str, repository: str) -> str:
    """The name of the file, or of the first part of a model in several. ``wanted`` may be empty.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` with the list of what there is if no file is meant, or if several are.

    >>> names = ["a-BF16.gguf", "a-IQ4_XS.gguf", "a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf", "mmproj-a.gguf"]
    >>> choose(names, "q4_k_m", "org/a-GGUF"), choose(names, "", "org/a-GGUF"), choose(names, "a-IQ4_XS.gguf", "org/a-GGUF")
    ('a-Q4_K_M-00001-of-00002.gguf', 'a-Q4_K_M-00001-of-00002.gguf', 'a-IQ4_XS.gguf')
    """
    names = tuple(names)
    models = models_of(names)
    found = matching(names, wanted)
    if len(found) == 1:
        return found[0]
    if found and not wanted:
        return found[0]
    if not models:
        raise ModelNotFoundError(
            f"{shown(repository)} has no GGUF file of a model.",
            hint="Check the id: repositories of GGUF files are mostly named ...-GGUF.",
        )
    there = found or models
    if found:
        raise ModelNotFoundError(
            f"{shown(wanted)} may mean {len(found):,} files of {shown(repository)}: {_listed(found)}.",
            hint=f"Name one: kvplan {operand(f'{repository}:{there[0]}')}",
        )
    raise ModelNotFoundError(
        f"{shown(repository)} has no GGUF file {shown(wanted)}. It has: {_listed(models)}.",
        hint=f"Name one of them, or its quantisation: kvplan {operand(f'{repository}:{quantization_of(there[0]) or there[0]}')}",
    )


def matching(names: Sequence[str], wanted: str) -> tuple[str, ...]:
    """All models that ``wanted`` may mean, the first parts of those in several files. Without a word, llama.cpp's choice."""
    models = models_of(names)
    if is_gguf(wanted):
        exact = [name for name in names if name == wanted] or [
            name for name in names if name.lower().rpartition("/")[2] == wanted.lower().rpartition("/")[2]
        ]
        return tuple(dict.fromkeys(name if (part := part_of(name)) is None else part.names[0] for name in exact if is_gguf(name)))
    if not wanted:
        first = next((found for word in _DEFAULTS if (found := _of_quantization(models, word))), models)
        return first[:1]
    return _of_quantization(models, wanted)


def quantization_of(name: str) -> str:
    """The quantisation that the name of a file ends with, as it is written there; empty if it has none.

    >>> quantization_of("org/x/Llama-3.1-8B-Q4_K_M-00001-of-00002.gguf"), quantization_of("llama-2-7b.Q5_0.gguf")
    ('Q4_K_M', 'Q5_0')
    """
    match = _QUANTIZATION.search(_stem(name))
    return match[1] if match is not None and any(letter.isdigit() for letter in match[1]) else ""


def word_for(name: str, wanted: str | None) -> str:
    """What to write behind the repository for the file ``name``: what was ``wanted``, if ``llama-server -hf`` finds the file by it too.

    >>> word_for("a-Q4_K_M.gguf", "q4_k_m"), word_for("a-Q4_K_M.gguf", "q4"), word_for("a-Q4_K_M.gguf", None)
    ('q4_k_m', 'Q4_K_M', 'Q4_K_M')
    """
    if wanted and (is_gguf(wanted) or re.search(f"{re.escape(wanted)}[.-]", name, re.IGNORECASE)):
        return wanted
    return quantization_of(name) or name


def _of_quantization(models: Sequence[str], word: str) -> tuple[str, ...]:
    """Those whose name ends with the word; if none does, those that have it anywhere as a word."""
    ends = re.compile(f"{_EDGE}{re.escape(word)}$", re.IGNORECASE)
    within = re.compile(f"{_EDGE}{re.escape(word)}(?:$|[-._/])", re.IGNORECASE)
    found = tuple(name for name in models if ends.search(_stem(name)))
    return found or tuple(name for name in models if within.search(name[: -len(".gguf")]))


def _stem(name: str) -> str:
    part = part_of(name)
    return name[: -len(".gguf")] if part is None else part.stem


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_LISTED])) + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")
