"""What an engine takes from a model: its row among the classes, the dtype of its cache, the length of its encoder's output.

``profiles/engines/<engine>/classes.yaml`` has a row for each class that the engine runs: words, which the file explains, and values such as
``prefill_tokens=8000``. ``as=NAME`` is another name of the class NAME. An engine without a file runs every class whose layers it has rules for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from hwcalc.engines.options import AUTO
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.formulas.tensor import Encoder
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.profiles.compiled import names, record
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.setup import Load
    from hwcalc.formulas import DType


class ModelClass(Struct, frozen=True):
    """A class by the name under which the engine runs it, and its row: word -> value, which is empty where the word alone says it.

    >>> row = model_classes("tgi").rows["gemma3"]
    >>> "native" in row.words, row.words["prefill_tokens"]
    (True, '8000')
    """

    name: str
    words: Mapping[str, str]


NO_CLASS: Final = ModelClass("", {})
"""The row of a model that has none."""


class ModelClasses(Struct, frozen=True):
    """The classes of an engine by name. ``by`` says whether a name is that of a ``model_type`` or of an ``architecture``."""

    by: str
    rows: Mapping[str, ModelClass]
    refusals: Mapping[str, Mapping[str, str]]
    endings: Mapping[str, str]

    def name_of(self, model: ModelSpec) -> str | None:
        """The name by which a model is looked up; ``None`` for dimensions by hand, which are of no architecture."""
        return model.architecture if self.by == "architecture" else model.model_type

    def row(self, model: ModelSpec) -> ModelClass:
        """The row of the class that runs the model, whatever name the model has for it; :data:`NO_CLASS` if there is none."""
        row = self.rows.get(self.name_of(model) or "", NO_CLASS)
        return self.rows[row.words["as"]] if "as" in row.words else row

    def has(self, model: ModelSpec, word: str) -> bool:
        """True if the row of the model's class has a word."""
        return word in self.row(model).words

    def by_ending(self, model: ModelSpec) -> str:
        """The word that the end of the class's name says, the longest that the file lists; empty if there is none."""
        name = self.name_of(model) or ""
        ends = [ending for ending in self.endings if name.endswith(ending)]
        return self.endings[max(ends, key=len)] if ends else ""

    def check(self, model: ModelSpec, needed: str = "") -> None:
        """Raise an error for a model that the engine does not run: without a row, with a word that is refused, or without a ``needed`` word."""
        name = self.name_of(model)
        if name is None:
            return
        if name not in self.rows and "unknown" not in self.refusals:
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
        rows={
            name: ModelClass(name, {word: value for word, _, value in (entry.partition("=") for entry in row)})
            for name, row in content["classes"].items()
        },
        refusals=content["refused"],
        endings=content.get("endings", {}),
    )


def has_classes(engine: str) -> bool:
    """True if the engine has a file of classes."""
    return f"{engine}/classes" in names("engines")


def known_dtype(name: str) -> DType:
    """The format of this name. Raises :class:`KeyError` if there is none, which is a mistake in this program."""
    dtype = find_dtype(name)
    if dtype is None:
        raise KeyError(name)
    return dtype


def model_dtype(model: ModelSpec, requested: str | None = None) -> Noted[DType]:
    """The dtype that the config names, or bf16 if it names none. A note says which. ``requested`` is ``auto`` or nothing."""
    return model.once(("model dtype", requested is None), lambda: _model_dtype(model, auto=requested is not None))


def _model_dtype(model: ModelSpec, *, auto: bool) -> Noted[DType]:
    if model.dtype is None:
        name, why = "bf16", "assumed, since the config names none that a cache has"
    else:
        name, why = model.dtype, "the model's own"
    said = f"KV dtype {AUTO}: {name}, {why}" if auto else f"KV dtype {name}: {why}"
    return Noted(known_dtype(name), (Note(code="default-dtype", message=f"{said}. Set it with --dtype."),))


def plain_format(model: ModelSpec, weight_dtype: str | None = None) -> WeightFormat:
    """The format of weights that are not quantised: ``weight_dtype``, or else the dtype of the model, or else bf16."""
    return FLOATS.get(weight_dtype or model.dtype or "", BF16)


def loads_as_published(model: ModelSpec, weight_dtype: str) -> bool:
    """True if weights that run in ``weight_dtype`` take the bytes of their files: not those of a float32 file in 16 bits."""
    return model.quantization is not None or model.dtype is None or plain_format(model).bits == FLOATS[weight_dtype].bits


def has_cross(model: ModelSpec) -> bool:
    """True if any layer attends to the output of an encoder."""

    def attends() -> bool:
        return any(isinstance(tensor.span, Encoder) for group in model.stack.groups for tensor in group.kind.tensors())

    return model.once("has_cross", attends)


def follows_output(model: ModelSpec, load: Load) -> bool:
    """True if the encoder's output is taken to be as long as the sequence, since nobody says how long it is."""
    return has_cross(model) and load.encoder_seq is None and model.encoder_tokens is None


def encoder_length(model: ModelSpec, load: Load) -> Noted[int]:
    """Tokens of the encoder's output. A note says so if the length is a default."""
    if not has_cross(model):
        if load.encoder_seq is None:
            return Noted(0)
        return Noted(0, (Note(code="no-encoder", message="The model has no cross attention: --encoder-seq has no effect."),))
    if load.encoder_seq is not None:
        return Noted(load.encoder_seq)
    if model.encoder_tokens == 0:
        # A model of images without an image; the parser has added a note.
        return Noted(0)
    if model.encoder_tokens is not None:
        length, why = model.encoder_tokens, "the model's own"
    else:
        length, why = load.seq, "taken to be as long as the output"
    message = f"Encoder length {length:,}: {why}. Set it with --encoder-seq."
    return Noted(length, (Note(code="default-encoder-seq", message=message),))
