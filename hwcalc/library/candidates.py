"""The models that could run here: those of the catalog, what is on this machine, and folders of GGUF files.

What their names alone say: which family one is of, and which ids are the same model in another format or on another page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.errors import UsageError
from hwcalc.model import answers_with_vectors
from hwcalc.profiles.model_index import model_index
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.model_index import IndexedModel
    from hwcalc.sources.built_in import CatalogFacts
    from hwcalc.sources.listing import InstalledModel

_SIZE: Final = r"(?i)(?:[0-9]+x)?[ae]?[0-9]+(?:[._][0-9]+)?[bmt][0-9]?|[0-9]+e"
"""A word that says how large a model is: ``8B``, ``0.6B``, ``8x7B``, ``A3B``, ``E4B``, ``135M``, ``16E``."""
_FORMAT: Final = (
    r"(?i)[-_.](?:nvfp4|mxfp4|mxfp8|fp8(?:[-_](?:dynamic|static|block|pertensor))*|bf16|fp16|int[48]|[48]bit|awq(?:[-_]int4)?|"
    r"gptq(?:[-_]int[48])?|w[48]a(?:8|16)|gguf|bnb[-_]?4bit|hf)$"
)
"""The end of a name that says how the weights are kept."""
_LATER: Final = (
    r"(?i)[0-9]{4,}|v[0-9.]+|instruct|chat|base|it|pt|hf|thinking|think|reasoning|plus|small|tiny|micro|mini|medium|large|lite|nano|"
    r"preview|sft|rl|bf16|deep|ultra|super|flash|air|inst|[0-9]+[kt]"
)
"""Words at the end of a name that set members of a family apart, among them dates and versions of a release."""
_RAW: Final = r"(?i)[-_](?:base|pt)(?:[-_.]|$)"
_TAUGHT: Final = r"(?i)[-_](?:instruct|inst|chat|it|sft|think|thinking|reasoning)(?:[-_.]|$)"
"""Words of a model that has learnt to follow instructions."""
EMBEDDING: Final = "embedding"
"""The modality of a model that answers with a vector, which is no text."""
_PRETRAINED: Final = r"(?i)[-_](?:base|pt|bf16)(?:[-_]|$)"


class Naming(NamedTuple):
    """Facts that a model's name has.

    ``family`` is :func:`family_of`; ``same`` is a key that ids of one model share: another page of it, or the same weights in another format,
    which is a ``copy``. ``pretrained`` says that the model has not learnt to follow instructions. Families mark those that have not
    (``raw``), or those that have (``taught``).
    """

    family: str
    same: str
    copy: bool
    pretrained: bool
    raw: bool
    taught: bool


def naming_of(model_id: str) -> Naming:
    """Facts in a name.

    >>> naming_of("google/gemma-2-2b-it")
    Naming(family='gemma-2', same='gemma-2-2b-it', copy=False, pretrained=False, raw=False, taught=True)
    >>> naming_of("nvidia/Qwen3-235B-A22B-NVFP4").same == naming_of("Qwen/Qwen3-235B-A22B").same
    True
    >>> naming_of("meta-llama/Meta-Llama-3.1-8B").same == naming_of("meta-llama/Llama-3.1-8B").same
    True
    """
    name = _plain(model_id)
    return Naming(
        family=family_of(model_id),
        same=name.lower().replace("_", "-"),
        copy=re.search(_FORMAT, model_id) is not None,
        pretrained=re.search(_PRETRAINED, model_id) is not None,
        raw=re.search(_RAW, name) is not None,
        taught=re.search(_TAUGHT, name) is not None,
    )


def family_of(model_id: str) -> str:
    """The name of a model without its size and what follows: what people call the series.

    >>> [family_of(name) for name in ("Qwen/Qwen3-30B-A3B-Instruct-2507", "meta-llama/Meta-Llama-3.1-8B", "google/gemma-3-4b-it")]
    ['Qwen3', 'Llama-3.1', 'gemma-3']
    >>> family_of("deepseek-ai/DeepSeek-V3.1-Terminus"), family_of("microsoft/phi-4"), family_of("openai-community/gpt2-medium")
    ('DeepSeek-V3.1-Terminus', 'phi-4', 'gpt2')
    """
    words = _plain(model_id).split("-")
    sized = next((place for place, word in enumerate(words) if place and re.fullmatch(_SIZE, word)), len(words))
    kept = words[:sized]
    while (
        len(kept) > 1 and re.fullmatch(_LATER, kept[-1]) and not (len(kept) == 2 and kept[-1][:1] in "vV" and sized == len(words))
    ):
        kept.pop()
    return "-".join(kept)


def pretrained_of(family: Iterable[str]) -> frozenset[str]:
    """Those of a family that have not learnt to follow instructions, by how the family marks its names.

    Where some say that they have learnt it and none says that it has not, those that say nothing have not.

    >>> sorted(pretrained_of(["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"])), sorted(pretrained_of(["google/gemma-2-2b", "google/gemma-2-2b-it"]))
    (['Qwen/Qwen3-8B-Base'], ['google/gemma-2-2b'])
    """
    said = {name: naming(name) for name in family}
    raw = frozenset(name for name, marks in said.items() if marks.raw)
    taught = frozenset(name for name, marks in said.items() if marks.taught)
    return raw if raw or not taught else frozenset(said) - taught


def modality_of(name: str, known: str = "text") -> str:
    """The modality that is known of a model, or that of an embedding model by its name.

    >>> modality_of("Qwen/Qwen3-Embedding-4B"), modality_of("Qwen/Qwen3-VL-4B-Instruct", "vision")
    ('embedding', 'vision')
    """
    return EMBEDDING if answers_with_vectors(name) else known


def _plain(model_id: str) -> str:
    """The name without its owner, the maker's name in front, and the format at its end."""
    name = model_id.rpartition("/")[2]
    name = re.sub(r"^(?:Meta-(?=Llama)|NVIDIA-(?=Nemotron))", "", name)
    while (shorter := re.sub(_FORMAT, "", name)) != name:
        name = shorter
    return name


_FAMILY: Final = Naming._fields.index("family")
_SAME: Final = Naming._fields.index("same")


class Candidate(NamedTuple):
    """A model by what is known of it without reading it whole. ``word`` names it on a command line.

    ``stored`` says that its file has a format already, which is not to be chosen. ``row`` is what the index of the catalog has of it.
    """

    word: str
    id: str
    source: str
    load: Callable[[], ModelSpec]
    model_type: str = ""
    parameters: int | None = None
    active: int | None = None
    released: str | None = None
    modality: str = "text"
    stored: bool = False
    also: tuple[str, ...] = ()
    row: IndexedModel | None = None

    @property
    def family(self) -> str:
        """Series, as people call it."""
        family: str = naming(self.id).family if self.row is None else self.row.naming[_FAMILY]
        return family


def naming(model_id: str) -> Naming:
    """Facts in a name: from the index, which has the names of the catalog, or by reading it."""
    row = model_index().get(model_id)
    return naming_of(model_id) if row is None else Naming(*row.naming)


def _read(name: str | os.PathLike[str], *, offline: bool = False, headers: bool = True) -> ModelSpec:
    from hwcalc.library.load import load_model

    return load_model(name, offline=offline, headers=headers)


def catalog() -> Iterator[Candidate]:
    """All models of the built-in catalog, by its index, and the user's own, of which one may replace one of the catalog."""
    from hwcalc.profiles.catalog import ProfileError, own_models

    # Most users have no folder of their own.
    has_own = True
    with suppress(ProfileError):
        has_own = bool(own_models())
    own: dict[str, CatalogFacts] = {}
    if has_own:
        from hwcalc.sources.built_in import own_facts

        own = {facts.id: facts for facts in own_facts()}
    known = model_index()
    for name in sorted({*known, *own}, key=str.lower):
        row = None if name in own else known[name]
        facts = own[name] if row is None else row
        yield Candidate(
            word=name,
            id=name,
            source="catalog",
            load=partial(_read, name, offline=True, headers=False),
            model_type=facts.model_type,
            parameters=facts.parameters,
            active=facts.active,
            released=facts.released,
            modality=modality_of(name, facts.modality),
            row=row,
        )


def on_this_machine() -> Iterator[Candidate]:
    """GGUF files of the Hugging Face cache, of Ollama's store and of other programs' folders, and models with a config in the cache."""
    from hwcalc.sources.caches import cached_config, cached_ids
    from hwcalc.sources.listing import installed_models

    for model in installed_models():
        yield _of_file(model)
    for name in cached_ids():
        if cached_config(name) is not None:
            load = partial(_read, name, offline=True, headers=False)
            yield Candidate(word=name, id=name, source="hf-cache", load=load, modality=modality_of(name))


def from_folder(folder: str) -> Iterator[Candidate]:
    """The GGUF models of a folder and of the folders in it. Raises :class:`~hwcalc.errors.UsageError` if it is none."""
    from pathlib import Path

    from hwcalc.sources.listing import models_in_folder

    # Those of pathlib fail for a user who is not there, and for a name that is too long.
    root = Path(os.path.expanduser(folder))  # noqa: PTH111
    if not os.path.isdir(root):  # noqa: PTH112
        raise UsageError(f"--folder {shown(folder, 80)} is not a folder here.", hint="Give the folder that has the .gguf files.")
    for model in models_in_folder(root):
        yield _of_file(model)


def _of_file(model: InstalledModel) -> Candidate:
    name = model.path.name if model.source == "folder" else model.name
    load, sense = partial(_read, model.path), modality_of(name)
    return Candidate(word=model.name, id=name, source=model.source, load=load, stored=True, modality=sense)


def folded(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """One candidate for all pages and formats of a model, which names the others."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        same = candidate.row.naming[_SAME] if candidate.row is not None else naming(candidate.id).same
        key = (candidate.source, candidate.word if candidate.stored else same)
        groups.setdefault(key, []).append(candidate)
    for group in groups.values():
        if len(group) == 1:
            yield group[0]
            continue
        first, *others = sorted(group, key=_rank)
        parameters = first.parameters or next((candidate.parameters for candidate in others if candidate.parameters), None)
        yield first._replace(also=tuple(candidate.id for candidate in others), parameters=parameters)


def _rank(candidate: Candidate) -> tuple[bool, bool, str, int, str]:
    """The model itself before copies of it, and its first page before others."""
    said = naming(candidate.id)
    return said.copy, said.pretrained, candidate.released or "9", len(candidate.id), candidate.id
