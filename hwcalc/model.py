"""A model as kvplan sees it: the description from a source, and the layers that a parser reads from it. And a value with notes about it."""

from __future__ import annotations

import enum
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import IO, Annotated, Any, Final, Generic, NamedTuple, TypeVar

from msgspec import field
from msgspec.structs import force_setattr

from hwcalc.formulas import Stack
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Shown
from hwcalc.formulas.weights import Weights
from hwcalc.text import message as safe_message

T = TypeVar("T")
_UNKNOWN: Final[Any] = object()
"""Stands for a value that is not kept yet; ``None`` may be one."""


class Definition(Shown, enum.StrEnum):
    """How a number is known."""

    EXACT = "exact"
    """It follows from the formulas or from the headers of the files."""
    PUBLISHED = "published"
    """The publisher of the model states it."""
    ENGINE = "engine"
    """It follows from a rule of the engine."""
    ESTIMATE = "estimate"
    """It is an estimate between a low and a high value."""
    MEASURED = "measured"
    """It was measured on a machine."""
    BOUND = "bound"
    """It is a limit that no implementation can beat."""
    PROFILE = "profile"
    """It is in the profile of an accelerator."""
    RECONSTRUCTED = "reconstructed"
    """It follows from a config that is not a copy of the published file: a key that bears on memory may differ there."""
    ASSUMED = "assumed"
    """The parser did not understand a part of the config, and the user said how to read it."""
    UNKNOWN = "unknown"
    """There is no number."""

    @property
    def text(self) -> str:
        """The word itself."""
        return self.value

    __repr__ = str.__repr__


class Note(Record):
    """Something a reader should know: a stable code and a sentence, which is cleaned and cut as the message of an error is."""

    code: str
    message: str

    def __post_init__(self) -> None:
        force_setattr(self, "message", safe_message(self.message))


FIDELITY: Final = "fidelity"
"""The code of the note that a config is not a copy of the published file. It stays with the model, in locks too."""


PARTIAL_WEIGHTS: Final = "weights-partial"
"""The code of the note that the weight files are not the whole model. A plan shows it as a warning."""

NO_WEIGHTS: Final = "weights-not-given"
"""The code of the note that the bare equation was given nothing that its weights follow from."""

DEFAULT_WEIGHTS: Final = "default-weights"
"""The code of the note that weights are planned as the checkpoint has them, where most people run smaller ones."""

LIBRARY_WEIGHTS: Final = "library-weights"
"""The code of the note that weights are planned as the file of an engine's own library has them."""

EXAMPLE_PARAMETERS: Final = "--parameters 70B"
"""The option that gives them, with a number to change."""

WRITTEN: Final = "written-layers"
"""The code of the note that the layers were written down by hand. An engine has no class for such a model."""

EXAMPLE_LAYERS: Final = "18*mamba2(heads=64, head_dim=64, d_state=128, conv=4) + 6*sliding(kv_heads=4, head_dim=128, window=1024)"
"""Layers as they are written down."""

DEFAULT_GPU: Final = "default-gpu"
"""The code of the note that what the engine chooses by the accelerator is as on an H100, as none is named."""
UNREAD_KEYS: Final = "unread-keys"
"""The code of the note that names keys which bear on the cache and were left out of account. A plan shows it as a warning."""

LEFT_OUT: Final = "left-out"
"""The code of the note that a config leaves out dimensions, which the model's class then fills in. A plan shows it as a warning."""

BY_ARCHITECTURE: Final = "by-architecture"
"""The code of the note that a config of a type that nobody knows is read by its architecture. A plan shows it as a warning."""

MODEL_WARNINGS: Final = (PARTIAL_WEIGHTS, UNREAD_KEYS, LEFT_OUT, BY_ARCHITECTURE)
"""The codes of notes about a model that every plan shows as warnings."""


def qualified(notes: Iterable[Note], definition: str) -> str:
    """What a number that is worked out from a config is called: ``definition``, unless the config was reconstructed."""
    return Definition.RECONSTRUCTED if any(note.code == FIDELITY for note in notes) else definition


class Parameters(Record):
    """Parameter counts. ``None`` means unknown."""

    total: int | None = None
    active: int | None = None
    mtp: int | None = None
    definition: str = Definition.EXACT
    """A :class:`Definition`, or a text from a catalog file."""


class WeightFacts(Record):
    """The content of a model's weight files, read from their headers. Nothing is computed from the config.

    The keys of ``bytes_by_dtype`` and ``elements_by_dtype`` are the dtype names of safetensors (``BF16``, ``F8_E4M3``, ``U8``)
    in alphabetical order. Elements are counted as in the file: two 4-bit parameters in one byte are one element of ``U8``. Four
    BF16 elements are ``{"BF16": 8}`` bytes. ``files`` and ``tensors`` count what was read. The bytes of the headers themselves
    are not included. ``source`` says in words where the headers were read.
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
        """Stored elements of all tensors."""
        return sum(self.elements_by_dtype.values())


class GgufTensor(Record):
    """One tensor of a GGUF file, as its header lists it. ``shape`` has the row length first, as ggml counts; ``type`` is ``q4_k``."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int


def gguf_weights(tensors: Sequence[GgufTensor], files: int, source: str = "") -> WeightFacts:
    """The bytes of tensors by type. A block of 256 numbers in 144 bytes counts as 256 elements."""
    sizes, elements = defaultdict[str, int](int), defaultdict[str, int](int)
    for tensor in tensors:
        sizes[tensor.type] += tensor.bytes
        elements[tensor.type] += prod(tensor.shape)
    return WeightFacts(
        bytes_by_dtype=dict(sorted(sizes.items())),
        elements_by_dtype=dict(sorted(elements.items())),
        files=files,
        tensors=len(tensors),
        source=source or ("GGUF header" if files == 1 else "GGUF headers"),
    )


class GgufFacts(Record):
    """What the header of a GGUF file says: metadata by key, and tensors. A dict of metadata from Python has no tensors.

    Arrays of tokens, scores and merges are left out; :data:`VOCABULARY` has the number of tokens in their place. For a model of Ollama's
    store, numbers that its parameters set have keys of their own (``ollama.num_ctx``, ``ollama.num_gpu``, ...), and so have the bytes of files
    that are loaded beside it (``ollama.projector_bytes``, ``ollama.adapter_bytes``).
    """

    keys: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...] = ()


GGUF_ARCHITECTURE: Final = "general.architecture"
"""The key by which GGUF metadata are known from a config."""

VOCABULARY: Final = "tokenizer.ggml.tokens.count"
"""The key under which the reader of a GGUF file keeps the number of tokens; no file has it."""

OLLAMA: Final = "ollama:"
"""How the id of a model of Ollama's store begins."""


class RawModel(Record):
    """The description of a model as it comes from a source, before a parser reads it.

    ``source`` is ``catalog``, ``hub``, ``hf-cache``, ``local``, ``gguf``, ``stdin``, ``python`` or ``options``; ``gguf`` is a GGUF file
    wherever it lies. ``location`` names the place in words (of a GGUF file as a command line does), and ``revision`` the version if there
    is one. ``weights`` is ``None`` if no header of a weight file was read; those of GGUF files count by the names of ggml's types.
    """

    id: str
    config: Mapping[str, Any]
    source: str
    location: str = ""
    revision: str | None = None
    parameters: Parameters | None = None
    weights: WeightFacts | None = None
    notes: tuple[Note, ...] = ()
    tensors: tuple[GgufTensor, ...] = ()
    """The tensors of a GGUF file, whose metadata are :attr:`config`."""
    weights_format: str | None = None
    """A value of ``--weights`` by which the weights are planned where the options name none: that of a file that was not read."""


class RopeScaling(Record):
    """How a config stretches its rotary embedding: the kind, the factor, and the length that it starts from, as far as it says."""

    kind: str
    factor: float | None = None
    original_tokens: int | None = None


class ModelFacts(Record):
    """Single facts beside the layers that some engine needs. Zero, ``None`` or an empty mapping: the description does not say it."""

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
    mtp_windowed: tuple[int, ...] = ()
    """Those of them that have a window, counted from 0, where the config lists them."""
    sliding_window: int | None = None
    """The window that the file names, whether or not its layers use it."""
    state_chunk_tokens: int | None = None
    """Tokens that the kernels of a recurrent layer take at a time."""
    ngram_size: int | None = None
    """Tokens of an n-gram, for models that look n-grams up."""
    quantizes_text_only: bool = False
    """True if the quantisation stands in the text part of the config, and so leaves the towers alone."""
    deepstack_layers: int = 0
    """Decoder layers that take features of the vision tower besides."""
    rope_scalings: tuple[RopeScaling, ...] = ()
    """How the rotary embeddings of the text part are stretched; several where kinds of layers differ."""
    model_max_length: int | None = None
    """The length that the text part names beside its positions."""


_EMBEDS: Final = r"(?i)embed|rerank|^(?:bge|gte|e5)[-_]"


def answers_with_vectors(name: str) -> bool:
    """True if the name is that of a model for embeddings or for ranks, which decodes no tokens.

    >>> answers_with_vectors("Qwen/Qwen3-Embedding-4B"), answers_with_vectors("BAAI/bge-m3"), answers_with_vectors("Qwen/Qwen3-8B")
    (True, True, False)
    """
    return re.search(_EMBEDS, name.rpartition("/")[2]) is not None


class ModelSpec(Record):  # noqa: PLW1641 - mappings are among its fields
    """A parsed model: its stack of layers with their caches, its weights, and a few numbers more.

    ``dtype`` is the model's own dtype in the names of kvplan (``bf16``); ``None`` if the config does not say. ``state_dtype`` is
    set if the config names a dtype for recurrent states. ``encoder_tokens`` is set if the model has a fixed encoder length.
    ``readings`` maps the name of an engine that reads the same file in another way to its stack.
    """

    id: str
    source: str
    location: str
    revision: str | None
    model_type: str
    architecture: str | None
    stack: Stack
    dtype: str | None = None
    state_dtype: str | None = None
    max_position_embeddings: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    encoder_tokens: int | None = None
    parameters: Parameters | None = None
    weights: WeightFacts | None = None
    counted: Weights | None = None
    """All weights that the config describes; ``None`` if kvplan cannot count some part of the model."""
    quantization: Mapping[str, Any] | None = None
    bearing: Mapping[str, Any] = field(default_factory=dict)
    """The config keys that cache and weights depend on: dotted path -> value."""
    assumed: bool = False
    assumption: str | None = None
    """What the description was read as, if it had to be assumed: a value of ``--assume``."""
    read_with: tuple[str, ...] = ()
    """The options of the command line that this reading takes: ``("--assume", "gqa")``, or the dimensions of the bare equation."""
    notes: tuple[Note, ...] = ()
    readings: Mapping[str, Stack] = field(default_factory=dict)
    variants: Mapping[str, ModelSpec] = field(default_factory=dict)
    """The whole model as a named engine builds it, for engines under which its weights differ too."""
    facts: ModelFacts = field(default_factory=ModelFacts)
    weights_format: str | None = None
    """A value of ``--weights`` that holds where the options name none; see :attr:`RawModel.weights_format`."""
    gguf: GgufFacts | None = None
    """The header of the GGUF file that the model was read from; ``None`` for a config."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config as it was read, for locks, receipts and live models. Engines read :attr:`facts` instead."""

    def headline(self) -> str:
        """The model in one line."""
        parameters = None if self.parameters is None else self.parameters.total
        known = (self.model_type, self.dtype, None if parameters is None else f"{parameters:,} parameters", self.source)
        return ", ".join((self.id, *filter(None, known)))

    def __eq__(self, other: object) -> bool:
        """True if two models are alike but for the config that they were read from."""
        if type(other) is not type(self):
            return NotImplemented
        names = (name for name in self.__struct_fields__ if name not in {"bearing", "variants", "config"})
        return self is other or all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        from hwcalc.text import clean

        return f"<{type(self).__name__}: {clean(self.headline())}>"

    def _repr_html_(self) -> str:
        """The table of a notebook: what is known beside the layers."""
        from hwcalc.documents import html_table

        names = (
            "id", "source", "location", "revision", "model_type", "architecture", "dtype", "max_position_embeddings", "hidden_size",
            "vocab_size",
        )  # fmt: skip
        row = {name: getattr(self, name) for name in names}
        return html_table(self.headline(), [row | {"parameters": None if self.parameters is None else self.parameters.total}])

    def definition(self, definition: Definition) -> Definition:
        """What a number that follows from this config is called, where ``definition`` is its name for a published config."""
        return Definition.ASSUMED if self.assumed else Definition(qualified(self.notes, definition))

    @property
    def warnings(self) -> tuple[Note, ...]:
        """The notes that every plan from the model's own files must show."""
        return tuple(note for note in self.notes if note.code in MODEL_WARNINGS)

    def warnings_with(self, weights: str | None) -> tuple[Note, ...]:
        """The same for weights in the format ``weights``: with one that is named, what the files lack does not matter."""
        return self.warnings if weights is None else tuple(note for note in self.warnings if note.code != PARTIAL_WEIGHTS)

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """A cache of values that depend only on this model, such as the bytes of its weights on a rank."""
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``. It is computed at the first call with this key and kept in :attr:`worked_out`."""
        found: T = self.worked_out.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = self.worked_out[key] = make()
        return found

    @property
    def address(self) -> str:
        """What names the model on a command line of kvplan: the path of a local file, where a GGUF file is, else the id."""
        return self.location if self.source in {"local", "gguf"} and self.location else self.id

    def as_built_by(self, engine: str) -> ModelSpec:
        """The model as ``engine`` builds it from this file. This is almost always the model itself."""
        return self.variants.get(engine, self)

    def stack_for(self, engine: str) -> Stack:
        """The layers as ``engine`` reads this file. This is almost always ``stack``."""
        return self.readings.get(engine, self.stack)


class Noted(NamedTuple, Generic[T]):
    """A value, and the notes on how it was obtained, in order."""

    value: T
    notes: tuple[Note, ...] = ()


class _Readable:
    """How pydantic recognises an open file: by its ``read``."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: object) -> Any:
        """The check as pydantic takes it."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls._checked)

    @staticmethod
    def _checked(value: Any) -> Any:
        if not hasattr(value, "read"):
            raise ValueError("is no open file")
        return value


OpenFile = Annotated[IO[str] | IO[bytes], _Readable]
ModelLike = str | os.PathLike[str] | Mapping[str, Any] | OpenFile | ModelSpec
"""What is read as a model: an id, a path, an open file, a config, or a model that was read."""
