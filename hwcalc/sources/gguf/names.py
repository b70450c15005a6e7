"""Names of GGUF files: what they say, how people write them, and which file of a repository is meant.

A name may say which files are parts of one model, which quantisation they have, and which are no language models. People write
``org/name:Q4_K_M``, ``org/name/file.gguf``, or an address of a file. Where no file and no quantisation is named, llama.cpp's
rule chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote

from hwcalc.errors import ModelNotFoundError
from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import is_model_id
from hwcalc.text import operand, shown

SUFFIX: Final = ".gguf"
MOST_PARTS: Final = 999
"""Most files of one model. The largest published models have under 100."""

_PART: Final = r"(?is)(.+)-(\d{5})-of-(\d{5})\.gguf"
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
    """True if a file is GGUF by its name."""
    return name[-len(SUFFIX) :].lower() == SUFFIX


def part_of(name: str) -> Part | None:
    """The part that a name stands for; ``None`` if it is that of a whole model, or of no sensible part.

    >>> part_of("big-q8_0-00002-of-00003.gguf").names[0], part_of("small.gguf"), part_of("odd-00004-of-00003.gguf")
    ('big-q8_0-00001-of-00003.gguf', None, None)
    """
    match = re.fullmatch(_PART, name)
    if match is None:
        return None
    number, count = int(match[2]), int(match[3])
    if not (1 <= number <= count and 1 < count <= MOST_PARTS):
        return None
    return Part(stem=match[1], number=number, count=count, ending=name[-len(SUFFIX) :])


def models_of(names: Iterable[str]) -> tuple[str, ...]:
    """The GGUF files that are whole models, and the first parts of those in several files, in alphabetical order.

    >>> models_of(["b.gguf", "mmproj-b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "config.json"])
    ('a-00001-of-00002.gguf', 'b.gguf')
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        short = name.rpartition("/")[2].lower()
        if is_gguf(name) and not any(word in short for word in _BESIDE):
            part = part_of(name)
            found.setdefault(name if part is None else part.names[0], name)
    return tuple(found.values())


_HUB: Final = r"(?si)(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+)"
_ADDRESS: Final = r"(?s)([^/]+/[^/]+)/(?:resolve|blob|raw)/([^/]+)/(.+)"
_REPOSITORY: Final = r"(?s)([^/:@]+/[^/:@]+)(?:@([^:]+))?:([^:@]+)(?:@(.+))?"
_PATH: Final = r"(?s)([^/:@]+/[^/:@]+)/([^:@]+)(?:@(.+))?"
_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_. +()/-]{0,199}"
_LATEST: Final = "latest"


class GgufName(Record):
    """A repository, the file or quantisation in it (empty: llama.cpp's choice), and a revision."""

    repository: str
    file: str
    revision: str | None = None


def gguf_name(text: str) -> GgufName | None:
    r"""The GGUF file on the Hub that a text names, if any.

    >>> gguf_name("bartowski/x-GGUF:Q4_K_M"), gguf_name("hf.co/bartowski/x-GGUF:latest")
    (GgufName(repository='bartowski/x-GGUF', file='Q4_K_M', revision=None), GgufName(repository='bartowski/x-GGUF', file='', revision=None))
    >>> gguf_name("https://huggingface.co/org/x/resolve/main/q4/a.gguf?download=true")
    GgufName(repository='org/x', file='q4/a.gguf', revision='main')
    >>> gguf_name("org/x/a.gguf"), gguf_name("org/x"), gguf_name("C:/x:y")
    (GgufName(repository='org/x', file='a.gguf', revision=None), None, None)
    """
    on_hub = re.fullmatch(_HUB, text)
    if on_hub is not None:
        path = unquote(re.split(r"[?#]", on_hub[1], maxsplit=1)[0])
        address = re.fullmatch(_ADDRESS, path)
        if address is not None:
            return _named(address[1], address[3], address[2]) if is_gguf(address[3]) else None
        text = path
    match = re.fullmatch(_REPOSITORY, text)
    if match is not None:
        return _named(match[1], match[3], match[2] or match[4])
    match = re.fullmatch(_PATH, text)
    return _named(match[1], match[2], match[3]) if match is not None and is_gguf(match[2]) else None


def _named(repository: str, file: str, revision: str | None) -> GgufName | None:
    sound = is_model_id(repository) and re.fullmatch(_WORD, file) and ".." not in file and "//" not in file
    if not sound:
        return None
    return GgufName(repository=repository, file="" if file.lower() == _LATEST else file, revision=revision)


_DEFAULTS: Final = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp takes first where none is named (``find_best_model`` in common/download.cpp)."""
_LISTED: Final = 12
_EDGE: Final = r"(?:^|[-._/])"
_QUANTIZATION: Final = r"(?i)[-.]((?:UD-)?[A-Z0-9_]+)$"


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
    if len(found) == 1 or (found and not wanted):
        return found[0]
    if not models:
        raise ModelNotFoundError(
            f"{shown(repository)} has no GGUF file of a model.",
            hint="Check the id: repositories of GGUF files are mostly named ...-GGUF.",
        )
    there = found or models
    listed = ", ".join(map(shown, there[:_LISTED])) + (f" and {len(there) - _LISTED:,} more" if len(there) > _LISTED else "")
    if found:
        message = f"{shown(wanted)} may mean {len(found):,} files of {shown(repository)}: {listed}."
        raise ModelNotFoundError(message, hint=f"Name one: kvplan {operand(f'{repository}:{there[0]}')}")
    raise ModelNotFoundError(
        f"{shown(repository)} has no GGUF file {shown(wanted)}. It has: {listed}.",
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
    match = re.search(_QUANTIZATION, _stem(name))
    return match[1] if match is not None and any(letter.isdigit() for letter in match[1]) else ""


def word_for(name: str, wanted: str | None) -> str:
    """The word behind the repository for the file ``name``: the one ``wanted``, if ``llama-server -hf`` finds the file by it too.

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
