"""The JSON documents of commands that list something, and of errors, as records. ``kvplan schema`` derives from them."""

from __future__ import annotations

from hwcalc.formulas.record import Record
from hwcalc.policies.base import Effect, Quality
from hwcalc.sources.listing import KnownModel


class ErrorInfo(Record):
    """What went wrong. ``code`` is the command's exit status, ``hint`` what to try next (empty if there is nothing)."""

    code: int
    type: str
    message: str
    hint: str


class EmittedDocument(Record):
    """What ``kvplan MODEL --emit E --json`` prints: the command as a shell takes it, and its words.

    ``environment`` are the variables that stand before them, or that the server needs; ``file`` is the text of the file that the command
    reads, such as a Modelfile.
    """

    schema_version: str
    kvplan_version: str
    engine: str
    engine_version: str | None
    command: str
    arguments: tuple[str, ...]
    environment: tuple[str, ...] = ()
    file: str | None = None


class ErrorDocument(Record):
    """What ``--json`` prints instead of an answer."""

    schema_version: str
    error: ErrorInfo


class ModelsDocument(Record):
    """What ``kvplan models --json`` prints."""

    schema_version: str
    models: tuple[KnownModel, ...]


class TypeInfo(Record):
    """A known model type, and the combinations of layers that its models have: ``mamba2+gqa``. It keeps nothing: ``no cache``."""

    model_type: str
    families: tuple[str, ...]


class TypesDocument(Record):
    """What ``kvplan models --types --json`` prints."""

    schema_version: str
    types: tuple[TypeInfo, ...]


class OptionInfo(Record):
    """One of an engine's own knobs, set with ``--engine-option NAME=VALUE``."""

    name: str
    default: str
    help: str


class EngineInfo(Record):
    """One engine. ``versions`` are those whose rules are known, newest first."""

    name: str
    title: str
    definition: str
    versions: tuple[str, ...]
    source: str
    options: tuple[OptionInfo, ...]
    kinds: dict[str, str]
    """Kind of layer -> whether the engine has a rule: ``yes``, ``no``, or that it keeps every token of those with a window."""


class EnginesDocument(Record):
    """What ``kvplan engines --json`` prints."""

    schema_version: str
    engines: tuple[EngineInfo, ...]


class DTypeInfo(Record):
    """One storage format: ``block_elements`` numbers take ``block_bytes`` bytes, scales included.

    A packed layout has no block of its own (null): ``parts`` names the format of each tensor role.
    """

    name: str
    aliases: tuple[str, ...]
    block_elements: int | None
    block_bytes: int | None
    parts: dict[str, str]
    source: str


class DTypesDocument(Record):
    """What ``kvplan dtypes --json`` prints."""

    schema_version: str
    dtypes: tuple[DTypeInfo, ...]
    weights: tuple[str, ...]
    """What ``--weights`` takes; empty where one dtype was asked for."""


class PolicyOptionInfo(Record):
    """One option of a policy. ``default`` is empty where there is none, and ``kind`` says what it takes."""

    name: str
    kind: str
    default: str
    required: bool
    help: str


class PolicyInfo(Record):
    """One cache policy: what it keeps, what becomes of the rest, and what it costs. ``press`` is its class in kvpress, empty without one."""

    name: str
    press: str
    title: str
    aliases: tuple[str, ...]
    role: str
    effect: Effect
    keeps: str
    formula: str
    memory: str
    kernel: str
    definition: str
    source: str
    options: tuple[PolicyOptionInfo, ...]
    quality: tuple[Quality, ...]


class PoliciesDocument(Record):
    """What ``kvplan policies --json`` prints."""

    schema_version: str
    policies: tuple[PolicyInfo, ...]
