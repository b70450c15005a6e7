"""The options of a plan, one row each, and how their values are read.

Command line, check files with their schema, :func:`hwcalc.plan` and its siblings, receipts and reconcile go by this table: a new option
is a row of :data:`OPTIONS`, a field of :class:`Asked` of the same name, a keyword of :func:`hwcalc.plan`, and what is done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.units import MIB, parse_bytes, parse_share, parse_tokens

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora

__all__ = [
    "COMMANDS",
    "LEAST_BYTES",
    "OPTIONS",
    "PART",
    "PERCENT",
    "TYPES",
    "UNITS",
    "Access",
    "Asked",
    "PlanOption",
    "ValueType",
    "option",
    "options_of",
    "read_options",
    "read_size",
]

LEAST_BYTES: Final = MIB
"""A bare number below this is a slip where bytes are meant: ``20`` for ``20GiB``, ``5`` for ``5%``."""
PERCENT: Final = r"(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)[ ]*%"
PART: Final = r"(?:0(?:\.[0-9]{1,18})?|1(?:\.0{1,18})?)"
UNITS: Final = r"[0-9][0-9_,]*(?:(?:\.[0-9][0-9_,]*)?[ ]?[kKmMgGtT][iI]?[bB]|[ ]?[bB])"
"""A share in percent, a share as a decimal, and bytes with their unit, as patterns of a check file's schema."""


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string (got {value!r:.60}).", hint=f'Write {name}="...".')
    return value


def _secret(value: Any, name: str) -> str:
    """Text that no message shows."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string (got {type(value).__name__}).", hint=f'Write {name}="...".')
    return value


def _from_zero(value: Any, name: str) -> int:
    return parse_tokens(value, name, minimum=0)


def _utilization(value: Any, name: str) -> float:
    return float(parse_share(value, name))


def _lora(value: Any, name: str) -> Lora:
    text = _text(value, name)
    from hwcalc.engines.lora import parse_lora

    return parse_lora(text)


def _as_given(value: Any, name: str) -> Any:
    return value


def read_size(value: Any, name: str) -> int:
    """``"20GiB"``, or bytes. An integer is bytes; text needs a unit unless it is too large to be meant as anything but bytes."""
    size = parse_bytes(value, name)
    if isinstance(value, str) and value.strip()[-1:].isdigit() and 0 < size < LEAST_BYTES:
        bare = value.strip()[:40]
        raise UsageError(f"{name} {bare!r} has no unit.", hint=f"Write {bare}GiB or {bare}GB; a bare number is bytes.")
    return size


def _engine_options(value: Any, name: str) -> dict[str, str]:
    """Engine options as strings, the way that a command line has them."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a dict (got {type(value).__name__}).", hint='Write {"block_size": 32}.')
    options: dict[str, str] = {}
    for key, item in value.items():
        if not isinstance(key, str) or isinstance(item, (list, tuple, dict, set)) or item is None:
            raise UsageError(f"{name} must map names to plain values (got {key!r:.60}: {item!r:.60}).")
        options[key] = str(item).lower() if isinstance(item, bool) else str(item)
    return options


class ValueType(NamedTuple):
    """What kind of value an option takes: how it is read from text or from Python, and its JSON Schema in a check file."""

    read: Callable[[Any, str], Any]
    schema: Mapping[str, Any]


def _whole(minimum: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": minimum}, {"type": "string", "pattern": r"^[0-9][0-9_,.]*\s?[kKmMgG]?$"}]}


_TEXT: Final = {"type": ["string", "number"]}
_SHARE: Final = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": f"^(?:{PERCENT}|{PART})$"}]
}
_SIZE: Final = {
    "anyOf": [{"const": 0}, {"type": "integer", "minimum": LEAST_BYTES}, {"type": "string", "pattern": f"^(?:{UNITS})$"}]
}
_PAIRS: Final = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

TYPES: Final[Mapping[str, ValueType]] = {
    "tokens": ValueType(parse_tokens, _whole(1)),
    "count": ValueType(parse_tokens, _whole(1)),
    "from zero": ValueType(_from_zero, _whole(0)),
    "size": ValueType(read_size, _SIZE),
    "share": ValueType(parse_share, _SHARE),
    "utilization": ValueType(_utilization, _SHARE),
    "text": ValueType(_text, _TEXT),
    "secret": ValueType(_secret, _TEXT),
    "lora": ValueType(_lora, _TEXT),
    "model": ValueType(_as_given, _TEXT),
    "pairs": ValueType(_engine_options, _PAIRS),
    "flag": ValueType(_as_given, {"type": "boolean"}),
}

COMMANDS: Final = ("plan", "explain", "diff", "compare", "sweep", "recommend", "reconcile", "probe")
"""Commands that take every option, but for those that the option's ``not_in`` names."""


class PlanOption(NamedTuple):
    """One option of a plan. ``name`` is its keyword in Python and its key in a check file, ``type`` a key of :data:`TYPES`.

    ``help`` is the command line's, ``helps`` the help of single commands that say it otherwise. ``lists`` are the commands that take
    several values with commas between. ``check`` is the help in a check file: empty if it is the same, ``None`` if a check file has no
    such key. ``document`` is the key under ``request`` in the JSON document of a plan. ``complete`` is the function of the command line
    that knows the values.
    """

    name: str
    type: str
    metavar: str
    help: str
    flags: tuple[str, ...] = ()
    default: str | int | None = None
    complete: str | None = None
    helps: Mapping[str, str] = MappingProxyType({})
    lists: tuple[str, ...] = ()
    not_in: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()
    check: str | None = ""
    document: str | None = None
    in_receipt: bool = True
    in_reconciliation: bool = False
    """Whether reconcile shows it among what was planned."""
    of_budget: bool = False
    """Whether it changes what a GPU has left for the cache, and nothing else."""
    reads_model: bool = False
    """Whether it says how models are read, and not what is planned of them."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """How it is written on a command line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """A value from text or from Python. Raises :class:`~hwcalc.errors.UsageError`."""
        return TYPES[self.type].read(value, self.name)


OPTIONS: Final[tuple[PlanOption, ...]] = (
    PlanOption(
        "seq",
        "tokens",
        "N",
        "Tokens per sequence, prompt and output: 32768, 32k. Default: the model's own maximum.",
        helps={
            "compare": "Tokens per sequence: 32k, or several. Default: the smallest maximum of the models.",
            "sweep": "Tokens per sequence: 1k,4k; 1k..128k doubles, 1k..128k:1k goes by steps. Default: each model's own maximum.",
        },
        lists=("compare", "sweep"),
        document="seq",
        in_reconciliation=True,
    ),
    PlanOption(
        "batch",
        "count",
        "N",
        "Sequences alive at once. Default: 1.",
        flags=("--batch", "--concurrency"),
        default=1,
        helps={
            "compare": "Sequences alive at once, or several numbers. Default: 1.",
            "sweep": "Sequences alive at once, as a list like that of --seq. Default: 1.",
            "reconcile": "Sequences alive at once, where the log does not state it. Default: 1.",
        },
        lists=("compare", "sweep"),
        check="Sequences alive at once; concurrency is the same. Default: 1.",
        document="batch",
        in_reconciliation=True,
    ),
    PlanOption(
        "dtype",
        "text",
        "D",
        "KV-cache dtype: fp8, bf16, q8_0; K:V for two. See: kvplan dtypes. Default: the model's dtype.",
        complete="dtypes",
        helps={
            "compare": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: the model's dtype.",
            "sweep": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: each model's dtype.",
        },
        lists=("compare", "sweep"),
        check="KV-cache dtype: fp8, bf16, q8_0; K:V for two.",
        document="kv_dtype",
        in_reconciliation=True,
    ),
    PlanOption(
        "weights",
        "text",
        "W",
        "Weight format: bf16, fp8, awq, nvfp4, ... Default: as published.",
        complete="weight_formats",
        helps={"compare": "Weight formats: bf16,fp8. Default: as published."},
        lists=("compare",),
        check="Weight format: bf16, fp8, awq, ... Default: as published.",
        document="weights",
        in_reconciliation=True,
    ),
    PlanOption(
        "engine",
        "text",
        "E",
        "Whose rules: reference (the formulas), transformers, transformers@5.14. See: kvplan engines. Default: reference.",
        default="reference",
        complete="engines",
        helps={
            "compare": "Whose rules: reference,vllm. See: kvplan engines. Default: reference.",
            "reconcile": "Engine and version, where the log does not state it: vllm@0.11.",
        },
        lists=("compare",),
        check="Whose rules: reference, vllm, vllm@0.25.1, ... Default: reference.",
        document="engine",
    ),
    PlanOption(
        "gpu",
        "text",
        "G",
        "Accelerator: l4, h100-sxm5-80gb. Default: none, and no verdict.",
        complete="gpus",
        helps={
            "compare": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
            "sweep": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
        },
        lists=("compare", "sweep"),
        not_in=("recommend",),
        check="Accelerator: l4, h100-sxm5-80gb.",
        in_reconciliation=True,
    ),
    PlanOption(
        "gpus",
        "count",
        "N",
        "How many, shared by tensor parallelism. Default: 1.",
        not_in=("recommend",),
        check="How many.",
        in_receipt=False,
    ),
    PlanOption(
        "instance",
        "text",
        "I",
        "Cloud instance: p5.48xlarge. Its accelerators, all of them.",
        complete="instances",
        not_in=("recommend",),
        check="A cloud instance type, instead of gpu and gpus.",
        in_receipt=False,
    ),
    PlanOption(
        "tp",
        "count",
        "N",
        "Tensor parallel size. Default: 1.",
        default=1,
        helps={
            "compare": "Tensor parallel sizes: 1,2,4. Default: 1.",
            "sweep": "Tensor parallel sizes: 1,2,4,8. Default: 1.",
        },
        lists=("compare", "sweep"),
        not_in=("recommend",),
        check="Tensor parallel size.",
        document="tp",
        in_reconciliation=True,
    ),
    *(
        PlanOption(
            name,
            "count",
            "N",
            f"{words} parallel size. Default: 1.",
            default=1,
            not_in=("recommend",),
            check=f"{words} parallel size.",
            document=name,
            in_reconciliation=True,
        )
        for name, words in {"pp": "Pipeline", "dp": "Data", "dcp": "Decode context", "ep": "Expert"}.items()
    ),
    PlanOption(
        "memory_utilization",
        "utilization",
        "F",
        "Share of the GPU for the engine. Default: the engine's.",
        check="Share of the GPU that the engine may use.",
        document="memory_utilization",
        in_reconciliation=True,
        of_budget=True,
    ),
    PlanOption(
        "kv_memory",
        "size",
        "B",
        "Bytes per GPU for the cache, given directly: 60GiB.",
        not_in=("recommend",),
        document="kv_memory",
        in_reconciliation=True,
    ),
    PlanOption(
        "margin",
        "share",
        "F",
        "Share of the GPU to leave alone: 5%. Default: 5%, none for an engine with a share of its own.",
        not_in=("reconcile",),
        check="Share of the GPU to leave alone: 5%.",
        document="margin",
        of_budget=True,
    ),
    PlanOption(
        "lora",
        "lora",
        "K=V,...",
        "Adapters held beside the model: rank=16,count=8.",
        document="lora",
        of_budget=True,
    ),
    PlanOption(
        "draft",
        "model",
        "MODEL",
        "Draft model for speculative decoding, loaded beside the model.",
        complete="models",
        check="Draft model of speculative decoding: an id or a path.",
        document="draft",
        of_budget=True,
    ),
    PlanOption(
        "encoder_seq",
        "from zero",
        "N",
        "Encoder tokens for cross attention. Default: the model's own.",
        check="Encoder tokens for cross attention.",
        document="encoder_seq",
    ),
    PlanOption(
        "engine_options",
        "pairs",
        "K=V",
        "An engine's own knob by its own name; repeatable. See: kvplan engines NAME.",
        flags=("--engine-option",),
        complete="engine_options",
        check="The engine's own knobs by their own names.",
        document="options",
    ),
    PlanOption(
        "assume",
        "text",
        "gqa",
        "Read an unknown architecture as plain attention; every number is marked as assumed.",
        complete="assumptions",
        check="gqa: read an unknown architecture as plain attention.",
        reads_model=True,
    ),
    PlanOption("revision", "text", "R", "Branch, tag or commit of the model.", in_receipt=False, reads_model=True),
    PlanOption(
        "offline",
        "flag",
        "",
        "Use no network (HF_HUB_OFFLINE=1 does the same).",
        also_in=("check",),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
    PlanOption(
        "token",
        "secret",
        "T",
        "Token for the Hub. Default: HF_TOKEN, or the login that hf auth login stored.",
        also_in=("check",),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
    PlanOption(
        "endpoint",
        "text",
        "URL",
        "Address of the Hub. Default: HF_ENDPOINT, or https://huggingface.co.",
        also_in=("check",),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
)
"""Every option of a plan, in the order of the help."""


def options_of(command: str) -> tuple[PlanOption, ...]:
    """The options that a command takes."""
    return tuple(row for row in OPTIONS if command in row.also_in or (command in COMMANDS and command not in row.not_in))


def option(name: str) -> PlanOption:
    """One row by its name."""
    return next(row for row in OPTIONS if row.name == name)


@frozen
class Access:
    """How models are fetched: from this machine alone or from the Hub, with which token and from which address."""

    offline: bool = False
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None


@frozen
class Asked:
    """The options of a plan as they were read: numbers are numbers, but no name of a model or a GPU has been looked up yet.

    ``given`` names the options that were given; every other field is its default. ``assume`` and ``revision`` say how the model is read.
    """

    given: frozenset[str] = frozenset()
    seq: int | None = None
    batch: int = 1
    dtype: str | None = None
    weights: str | None = None
    engine: str = "reference"
    gpu: str | None = None
    gpus: int | None = None
    instance: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1
    memory_utilization: float | None = None
    kv_memory: int | None = None
    margin: Fraction | None = None
    lora: Lora | None = None
    draft: Any = None
    encoder_seq: int | None = None
    engine_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    assume: str | None = None
    revision: str | None = None
    access: Access = Access()

    def keywords(self) -> dict[str, Any]:
        """What was given of the request itself, by name; the draft is a model that is still to be loaded, and left out."""
        return {
            row.name: getattr(self, row.name)
            for row in OPTIONS
            if row.name in self.given and not row.reads_model and row.name != "draft"
        }


def read_options(given: Mapping[str, Any]) -> Asked:
    """Read options from text or from Python values; ``None`` is not given where there is no default that it could hide.

    Raises :class:`~hwcalc.errors.UsageError` for the first value, in the order of the table, that its option does not take.
    """
    values = {
        row.name: row.read(given[row.name])
        for row in OPTIONS
        if row.name in given and (given[row.name] is not None or row.default is not None)
    }
    access = Access(**{name: values.pop(name) for name in ("offline", "token", "endpoint") if name in values})
    return Asked(given=frozenset(values), access=access, **values)
