"""A model as kvplan sees it: what its config says, read into layers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from hwcalc.formulas import Stack
from hwcalc.formulas.frozen import field, frozen
from hwcalc.formulas.shown import Shown
from hwcalc.formulas.weights import Weights

__all__ = ["Definition", "ModelFacts", "ModelSpec", "Note", "Parameters", "RawModel", "WeightFacts"]

T = TypeVar("T")


class Definition(Shown, enum.StrEnum):
    """What a number is."""

    EXACT = "exact"
    """It follows from the formulas or from the files' own headers."""
    PUBLISHED = "published"
    """The model's publisher says it."""
    ENGINE = "engine"
    """It follows from an engine's rule."""
    ESTIMATE = "estimate"
    """It lies between a low and a high."""
    MEASURED = "measured"
    """It was read on a machine."""
    BOUND = "bound"
    """Nothing is better than it."""
    PROFILE = "profile"
    """It stands in the profile of an accelerator."""
    ASSUMED = "assumed"
    """A part of the config was not understood, and the user said what to take it for."""
    UNKNOWN = "unknown"
    """There is no number."""

    @property
    def text(self) -> str:
        """The word itself."""
        return self.value

    __repr__ = str.__repr__


@frozen
class Note:
    """Something a reader should know: a stable code and a sentence."""

    code: str
    message: str


@frozen
class Parameters:
    """Parameter counts. ``None`` is unknown, never zero."""

    total: int | None = None
    active: int | None = None
    mtp: int | None = None
    definition: str = Definition.EXACT
    """A :class:`Definition`, or the words of a catalog file."""


@frozen
class WeightFacts:
    """What a model's weight files hold, from their own headers: nothing of it is computed from the config.

    ``bytes_by_dtype`` and ``elements_by_dtype`` go by the dtype names of safetensors (``BF16``, ``F8_E4M3``, ``U8``), in
    alphabetical order. An element is what the file calls one: two 4-bit parameters packed into one byte are one element of
    ``U8``. Four BF16 elements are ``{"BF16": 8}`` bytes. ``files`` and ``tensors`` count what was read; the bytes of the headers
    themselves are not in it. ``source`` says in words where the headers were read.
    """

    bytes_by_dtype: Mapping[str, int]
    elements_by_dtype: Mapping[str, int]
    files: int
    tensors: int
    source: str = "safetensors headers"
    definition: Definition = Definition.EXACT

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.bytes_by_dtype.values())

    @property
    def total_elements(self) -> int:
        """Elements of all tensors, as stored."""
        return sum(self.elements_by_dtype.values())


@frozen
class RawModel:
    """A description as a source gave it, before any parser has looked at it.

    ``source`` is ``catalog``, ``hub``, ``hf-cache``, ``local``, ``gguf``, ``stdin`` or ``python``; ``location`` says
    in words where it was found and ``revision`` which version, where there is one. ``weights`` is ``None`` where no weight
    file's header was read.
    """

    id: str
    config: Mapping[str, Any]
    source: str
    location: str = ""
    revision: str | None = None
    parameters: Parameters | None = None
    weights: WeightFacts | None = None
    notes: tuple[Note, ...] = ()


@frozen
class ModelFacts:
    """Single facts that some engine asks for beside the layers. Zero, ``None`` or an empty mapping: the description does not say."""

    dense_layers: int = 0
    """How many of the first layers have an MLP without experts (``first_k_dense_replace``)."""
    hash_routed_layers: int = 0
    """How many of the first layers route by a table from tokens to experts."""
    experts_per_token: int = 0
    """Routed experts that each token is sent to."""
    expert_dtype: str | None = None
    """The format of routed experts, where it is not that of the other weights."""
    part_types: Mapping[str, str] = field(default_factory=dict)
    """Model types of the parts ``text``, ``vision`` and ``audio``; empty for a part that has none of its own."""
    ties_text_embeddings: bool | None = None
    """What the text part by itself says of tied embeddings; ``None`` without such a part."""
    draft_vocab_size: int | None = None
    """Rows of the head of an EAGLE draft, where they are fewer than its vocabulary."""
    mtp_modules: int | None = None
    """Layers of multi-token prediction that come with the model."""
    sliding_window: int | None = None
    """The window that the file names, whether or not its layers use it."""
    ngram_size: int | None = None
    """Tokens of an n-gram, for models that look n-grams up."""
    deepstack_layers: int = 0
    """Decoder layers that take features of the vision tower besides."""


@frozen
class ModelSpec:
    """A stack of layers, each with what it caches, and the few numbers that stand beside it.

    ``dtype`` is the model's own dtype as kvplan names it (``bf16``), ``None`` where the config does not say.
    ``state_dtype`` is set where the config names one for its recurrent states. ``encoder_tokens`` is the encoder length
    that the model itself fixes. ``readings`` holds the stack under which a named engine reads the same file differently.
    """

    id: str
    source: str
    location: str
    revision: str | None
    model_type: str
    architecture: str | None
    stack: Stack
    dialect: str
    dtype: str | None = None
    state_dtype: str | None = None
    max_position_embeddings: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    encoder_tokens: int | None = None
    parameters: Parameters | None = None
    weights: WeightFacts | None = None
    counted: Weights | None = None
    """Every weight as the config describes it; ``None`` where a part of the model is of a type that nobody counts."""
    quantization: Mapping[str, Any] | None = None
    bearing: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The keys of the file that cache and weights were read from, by dotted path."""
    assumed: bool = False
    notes: tuple[Note, ...] = ()
    readings: Mapping[str, Stack] = field(default_factory=dict)
    facts: ModelFacts = field(default_factory=ModelFacts)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The file as it was read: for locks, receipts and live models. Whatever engines need of it is in :attr:`facts`."""

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """What was worked out of this model once, whatever is asked of it, such as the bytes of its weights on a rank."""
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, made on the first call with this key and kept for as long as the model is."""
        if key not in self.worked_out:
            self.worked_out[key] = make()
        found: T = self.worked_out[key]
        return found

    def stack_for(self, engine: str) -> Stack:
        """The layers as ``engine`` reads this file; the same as ``stack`` almost always."""
        return self.readings.get(engine, self.stack)
