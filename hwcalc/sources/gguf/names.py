"""What the names of GGUF files say: which are parts of one model, which quantisation they have, and which are no language models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from hwcalc.formulas.record import Record

__all__ = ["MOST_PARTS", "SUFFIX", "Part", "beside_models", "is_gguf", "models_of", "part_of"]

SUFFIX: Final = ".gguf"
MOST_PARTS: Final = 999
"""Most files of one model. The largest published models have under 100."""

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_BESIDE: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Words in the names of files that belong to a model beside it (``gguf_filename_is_model`` in common/download.cpp of llama.cpp)."""


class Part(Record):
    """One file of a model in several, as ``gguf-split`` names them: ``stem-00002-of-00003.gguf``."""

    stem: str
    number: int
    count: int
    ending: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files of the model, in their order."""
        return tuple(f"{self.stem}-{number:05}-of-{self.count:05}{self.ending}" for number in range(1, self.count + 1))


def is_gguf(name: str) -> bool:
    """Whether a file is GGUF by its name."""
    return name[-len(SUFFIX) :].lower() == SUFFIX


def part_of(name: str) -> Part | None:
    """The part that a name stands for; ``None`` if it is that of a whole model, or of no sensible part.

    >>> part_of("big-q8_0-00002-of-00003.gguf").names[0], part_of("small.gguf"), part_of("odd-00004-of-00003.gguf")
    ('big-q8_0-00001-of-00003.gguf', None, None)
    """
    match = _PART.fullmatch(name)
    if match is None:
        return None
    number, count = int(match[2]), int(match[3])
    if not (1 <= number <= count and 1 < count <= MOST_PARTS):
        return None
    return Part(stem=match[1], number=number, count=count, ending=name[-len(SUFFIX) :])


def beside_models(name: str) -> bool:
    """Whether a file only belongs to a model: a projector of images, a draft, measurements for quantisation."""
    short = name.rpartition("/")[2].lower()
    return any(word in short for word in _BESIDE)


def models_of(names: Iterable[str]) -> tuple[str, ...]:
    """The GGUF files that are whole models, and the first parts of those in several files, in alphabetical order.

    >>> models_of(["b.gguf", "mmproj-b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "config.json"])
    ('a-00001-of-00002.gguf', 'b.gguf')
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        if is_gguf(name) and not beside_models(name):
            part = part_of(name)
            found.setdefault(name if part is None else part.names[0], name)
    return tuple(found.values())
