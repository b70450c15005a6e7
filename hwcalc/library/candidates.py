"""The models that could run here: those of the catalog, what is on this machine, and folders of GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.families import Naming, naming_of
from hwcalc.planner.runnables import Unread
from hwcalc.profiles.model_index import model_index
from hwcalc.text import shown

if TYPE_CHECKING:
    import os

    from hwcalc.model import ModelSpec
    from hwcalc.profiles.model_index import IndexedModel
    from hwcalc.sources.built_in import CatalogFacts
    from hwcalc.sources.listing import InstalledModel

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
        """What people call the series."""
        family: str = naming(self.id).family if self.row is None else self.row.naming[_FAMILY]
        return family


def naming(model_id: str) -> Naming:
    """What a name says: from the index, which has the names of the catalog, or by reading it."""
    row = model_index().get(model_id)
    return naming_of(model_id) if row is None else Naming(*row.naming)


def _read(name: str | os.PathLike[str], *, offline: bool = False, headers: bool = True) -> ModelSpec:
    from hwcalc.library.load import load_model

    return load_model(name, offline=offline, headers=headers)


def _own() -> dict[str, CatalogFacts]:
    """The models of the user's own folder, which most users do not have."""
    from hwcalc.profiles.catalog import ProfileError, own_models

    with suppress(ProfileError):
        if not own_models():
            return {}
    from hwcalc.sources.built_in import own_facts

    return {facts.id: facts for facts in own_facts()}


def catalog() -> Iterator[Candidate]:
    """All models of the built-in catalog, by its index, and the user's own, of which one may replace one of the catalog."""
    own = _own()
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
            modality=facts.modality,
            row=row,
        )


def candidates(*, installed: bool, folders: Sequence[str]) -> Iterator[Candidate]:
    """The models to look at, one for all pages and formats of each: the catalog, unless what is here or a folder is asked for."""
    given: list[Iterable[Candidate]] = [from_folder(folder) for folder in folders]
    if installed:
        given.append(on_this_machine())
    return folded(chain.from_iterable(given or [catalog()]))


def sources(*, installed: bool, folders: Sequence[str]) -> tuple[str, ...]:
    """The same in words."""
    return (*folders, *(("this machine",) if installed else ())) or ("catalog",)


def on_this_machine() -> Iterator[Candidate]:
    """GGUF files of the Hugging Face cache, of Ollama's store and of other programs' folders, and models with a config in the cache."""
    from hwcalc.sources.caches import cached_config, cached_ids
    from hwcalc.sources.listing import installed_models

    for one in installed_models():
        yield _of_file(one)
    for name in cached_ids():
        if cached_config(name) is not None:
            yield Candidate(word=name, id=name, source="hf-cache", load=partial(_read, name, offline=True, headers=False))


def from_folder(folder: str) -> Iterator[Candidate]:
    """The GGUF models of a folder and of the folders in it. Raises :class:`~hwcalc.errors.UsageError` if it is none."""
    from pathlib import Path

    from hwcalc.sources.listing import models_in_folder

    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UsageError(f"--folder {shown(folder, 80)} is not a folder here.", hint="Give the folder that has the .gguf files.")
    for one in models_in_folder(root):
        yield _of_file(one)


def _of_file(one: InstalledModel) -> Candidate:
    name = one.path.name if one.source == "folder" else one.name
    return Candidate(word=one.name, id=name, source=one.source, load=partial(_read, one.path), stored=True)


def folded(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """One candidate for all pages and formats of a model, which names the others."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for one in candidates:
        same = one.row.naming[_SAME] if one.row is not None else naming(one.id).same
        key = (one.source, one.word if one.stored else same)
        groups.setdefault(key, []).append(one)
    for group in groups.values():
        if len(group) == 1:
            yield group[0]
            continue
        first, *others = sorted(group, key=_rank)
        yield first._replace(also=tuple(one.id for one in others), parameters=first.parameters or _first(others))


def _rank(one: Candidate) -> tuple[bool, bool, str, int, str]:
    """The model itself before copies of it, and its first page before others."""
    said = naming(one.id)
    return said.copy, said.pretrained, one.released or "9", len(one.id), one.id


def _first(others: Sequence[Candidate]) -> int | None:
    return next((one.parameters for one in others if one.parameters), None)


def unread(one: Candidate, error: KvplanError) -> Unread:
    """The row of a model that could not be read."""
    return Unread(id=one.word, source=one.source, message=error.message, hint=error.hint)
