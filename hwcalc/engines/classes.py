"""The model classes that an engine runs: ``profiles/engines/<engine>/classes.yaml``, one row for each class.

A row has words, which the file explains, and values such as ``prefill_tokens=8000``. ``as=NAME`` is another name of the class NAME. An engine
without a file runs every class whose layers it has rules for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.errors import UnsupportedError
from hwcalc.profiles.compiled import names, record
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec


class ModelClass(NamedTuple):
    """A class by the name under which the engine runs it, and its row: word -> value, which is empty where the word alone says it.

    >>> row = model_classes("tgi").rows["gemma3"]
    >>> "native" in row.words, row.words["prefill_tokens"]
    (True, '8000')
    """

    name: str
    words: Mapping[str, str]


NO_CLASS: Final = ModelClass("", {})
"""The row of a model that has none."""


class ModelClasses(NamedTuple):
    """The classes of an engine by name. ``by`` says whether a name is that of a ``model_type`` or of an ``architecture``."""

    by: str
    rows: Mapping[str, ModelClass]
    refusals: Mapping[str, Mapping[str, str]]

    def name_of(self, model: ModelSpec) -> str | None:
        """The name by which a model is looked up; ``None`` for dimensions by hand, which are of no architecture."""
        return model.architecture if self.by == "architecture" else model.model_type

    def row(self, model: ModelSpec) -> ModelClass:
        """The row of the class that runs the model, whatever name the model has for it; :data:`NO_CLASS` if there is none."""
        row = self.rows.get(self.name_of(model) or "", NO_CLASS)
        return self.rows[row.words["as"]] if "as" in row.words else row

    def check(self, model: ModelSpec, needed: str = "") -> None:
        """Raise an error for a model that the engine does not run: without a row, with a word that is refused, or without a ``needed`` word."""
        name = self.name_of(model)
        if name is None:
            return
        if name not in self.rows:
            # Dimensions by hand are of no model type that a config names.
            if self.by == "architecture" or "model_type" in model.config:
                raise self.refusal("unknown", name)
            return
        for word in self.rows[name].words.keys() & self.refusals.keys():
            raise self.refusal(word, name)
        if needed and needed not in self.row(model).words:
            raise self.refusal(f"no {needed}", name)

    def refusal(self, word: str, name: str) -> UnsupportedError:
        """The error that the file has for a word."""
        refusal = self.refusals[word]
        return UnsupportedError(refusal["message"].format(name=brief(name, 60)), hint=refusal["hint"])


@lru_cache(maxsize=32)
def model_classes(engine: str) -> ModelClasses:
    """The classes of an engine that has a file of them."""
    content = record("engines", f"{engine}/classes")
    return ModelClasses(
        by=content["by"],
        rows={name: ModelClass(name, dict(_entries(row))) for name, row in content["classes"].items()},
        refusals=content["refused"],
    )


def has_classes(engine: str) -> bool:
    """Whether the engine has a file of classes."""
    return f"{engine}/classes" in names("engines")


def _entries(row: list[Any]) -> list[tuple[str, str]]:
    return [(word, value) for word, _, value in (entry.partition("=") for entry in row)]
