"""Options of engines, the values of ``--dtype`` and ``--lora``, and what an engine's command line is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.profiles.dtypes import PackedDType, dtype_names, find_dtype, find_packed, packed_names
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.engines.pool import Try
    from hwcalc.engines.setup import Parallel
    from hwcalc.formulas import DType

AUTO: Final = "auto"
"""The value of ``--dtype`` that stands for the default of the engine."""


class EngineOption(Record):
    """One option of an engine, under the engine's own name. ``check`` parses a value; it is called with the name and the text."""

    name: str
    help: str
    default: str
    check: Callable[[str, str], object]


def options_of(*rows: tuple[str, str, str, Callable[[str, str], object]]) -> Mapping[str, EngineOption]:
    """Options by their names. A row has the name, the help, the default in words, and the parser of a value."""
    return MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in rows}
    )


class CacheFormat(Record):
    """A format of a cache by the name that an engine takes. With scales a value has so many ``bits`` in a head of :data:`HEAD` values, or
    in what is ``stored`` otherwise. It came ``since`` a release and left ``until`` another; empty for one that all known releases have.
    """

    name: str
    bits: float
    stored: str
    source: str
    since: str = ""
    until: str = ""


HEAD: Final = 128
"""Values of a head in which the bits of a format are counted: those of most models."""


class Choices(Record):
    """What is offered of an engine where people look and choose: formats with other bytes than the default, those that people run.

    Whoever offers them leaves out what the engine refuses for a model. ``options`` are engine options that every request there has.
    """

    dtypes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    options: Mapping[str, str] = MappingProxyType({})


def is_on(value: str | None) -> bool:
    """True if a switch is on; a switch that is not given is off."""
    return value is not None and value.lower() in ("true", "1", "on", "yes")


def integer_option(minimum: int, maximum: int = 2**40) -> Callable[[str, str], int]:
    """A parser of whole numbers in a range. It accepts ``32k``."""
    from hwcalc.units import parse_tokens

    def check(name: str, value: str) -> int:
        number = parse_tokens(value, f"engine option {name}", minimum=minimum)
        if number > maximum:
            raise UsageError(f"engine option {name} is out of range: {brief(value, 40)}", hint=f"At most {maximum:,}.")
        return number

    return check


def size_option(name: str, value: str) -> int:
    """The bytes that an option names: ``64GiB``. A small number without a unit is a mistake."""
    from hwcalc.units import parse_size

    return parse_size(value, f"engine option {name}")


def number_option(maximum: int) -> Callable[[str, str], float]:
    """A parser of numbers from 0 to ``maximum``, with or without a decimal point."""

    def check(name: str, value: str) -> float:
        whole, _, part = value.partition(".")
        if not (whole.isascii() and whole.isdecimal() and len(whole) < 10) or (
            part and not (part.isascii() and part.isdecimal())
        ):
            raise UsageError(f"engine option {name}={brief(value, 40)} is not a number.", hint=f"Allowed: 0 to {maximum:,}.")
        number = float(value[:30])
        if number > maximum:
            raise UsageError(f"engine option {name} is out of range: {brief(value, 40)}", hint=f"Allowed: 0 to {maximum:,}.")
        return number

    return check


def share_option(name: str, named: str | None, utilization: float | None, default: float) -> float:
    """The share of the GPU that an engine's own option or ``--memory-utilization`` gives; the two mean the same."""
    option_share = None if named is None else number_option(1)(name, named)
    if option_share is not None and utilization is not None and option_share != utilization:
        raise UsageError(
            f"--memory-utilization {utilization:g} and the engine option {name}={brief(named or '', 20)} are the same.",
            hint=f"Give one: --memory-utilization {utilization:g}",
        )
    given = option_share if utilization is None else utilization
    return default if given is None else given


def choice_option(*choices: str) -> Callable[[str, str], str]:
    """A parser that accepts only the given words."""

    def check(name: str, value: str) -> str:
        if value not in choices:
            raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {', '.join(choices)}.")
        return value

    return check


def is_auto(spelling: str | None) -> bool:
    """True if a value of ``--dtype`` leaves the choice to the engine. Without one, the engine chooses as well."""
    return spelling is None or spelling.strip().lower() == AUTO


def parse_kv_dtype(spelling: str) -> tuple[DType, DType] | PackedDType:
    """Parse ``fp8`` or ``q8_0:q4_0`` into the formats of keys and values, and the name of a packed layout into that layout.

    Raises :class:`~hwcalc.errors.UnknownNameError` for an unknown dtype.
    """
    text = spelling.strip().lower()
    packed = find_packed(text)
    if packed is not None:
        return packed
    halves = text.split(":")
    key, value = find_dtype(halves[0]), find_dtype(halves[-1])
    if len(halves) > 2 or key is None or value is None:
        known = ", ".join((AUTO, *dtype_names(), *packed_names()))
        raise UnknownNameError(
            f"--dtype {shown(spelling, 40)} is not a known dtype.",
            option="dtype",
            hint=f"Known: {known}; K:V for two. See: kvplan dtypes",
        )
    return key, value


_LARGEST_RANK: Final = 8192
_LARGEST_COUNT: Final = 100_000
_NUMBERS: Final = {"rank": _LARGEST_RANK, "count": _LARGEST_COUNT, "loaded": _LARGEST_COUNT}
_TARGETS: Final = ("all", "attention", "mlp")
_DTYPES: Final = ("bf16", "fp16", "fp32")
_ALLOWED: Final = (
    f"rank=1..{_LARGEST_RANK:,}, count=1..{_LARGEST_COUNT:,}, loaded=count..{_LARGEST_COUNT:,}, "
    f"targets={'|'.join(_TARGETS)}, dtype={'|'.join(_DTYPES)}"
)


class Lora(Record):
    """``count`` adapters of rank ``rank`` on the GPU at once, attached to the linear layers that ``targets`` names.

    ``loaded`` adapters, those on the GPU among them, lie in host memory, from which an engine with such a cache takes what a batch needs.
    """

    rank: int
    count: int = 1
    targets: str = "all"
    """``all``, ``attention`` (which includes other token mixers, such as Mamba) or ``mlp`` (which includes experts)."""
    dtype: str = "bf16"
    loaded: int | None = None
    """``None`` leaves it to the engine."""

    def __str__(self) -> str:
        loaded = "" if self.loaded is None else f",loaded={self.loaded}"
        return f"rank={self.rank},count={self.count},targets={self.targets},dtype={self.dtype}{loaded}"

    @property
    def element_bytes(self) -> int:
        """Bytes of one number of an adapter."""
        return FLOATS[self.dtype].number_bytes


def parse_lora(text: str) -> Lora:
    """Parse ``rank=16,count=8,targets=attention,dtype=bf16``. Only ``rank`` is required.

    >>> parse_lora("rank=16,count=8").count
    8

    Raises :class:`~hwcalc.errors.UsageError` for an unknown or repeated key, or a wrong value.
    """

    def refused(problem: str) -> UsageError:
        return UsageError(f"--lora {shown(text, 60)}{problem}", hint=f"Allowed: {_ALLOWED}.")

    values: dict[str, str] = {}
    for item in text.split(","):
        key, sign, value = (part.strip().lower() for part in item.partition("="))
        if not sign or key not in Lora.__struct_fields__ or key in values:
            raise refused(f": {shown((key or item), 20)} is {'twice' if key in values else 'not known'}.")
        values[key] = value
    if "rank" not in values:
        raise refused(" names no rank.")
    values = {"count": "1", "targets": "all", "dtype": "bf16", **values}
    for key, largest in _NUMBERS.items():
        value = values.get(key, "1")
        if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= largest):
            raise refused(f": {key} is out of range: {shown(value, 20)}")
    for key, words in (("targets", _TARGETS), ("dtype", _DTYPES)):
        if values[key] not in words:
            raise refused(f": {key}={shown(values[key], 20)} is not known.")
    numbers = {key: int(values[key]) for key in _NUMBERS if key in values}
    lora = Lora(rank=numbers.pop("rank"), targets=values["targets"], dtype=values["dtype"], **numbers)
    if lora.loaded is not None and lora.loaded < lora.count:
        raise refused(": fewer are loaded than are on the GPU at once.")
    return lora


class CommandInput(Record):
    """A planned request, spelled as in a plan. ``requires`` lists further flags that the engine needs to start.

    ``kv_dtype_named`` says whether the request named the KV dtype, or left it to the engine. ``path`` is set for a model on this machine,
    and ``library`` for one of Ollama's. ``made`` says that an engine of GGUF files needs a file that the user has to make or to download first.
    """

    version: str | None
    model: str
    revision: str | None
    seq: int
    batch: int
    kv_dtype: str
    kv_dtype_named: bool
    parallel: Parallel
    memory_utilization: float | None
    kv_memory: int | None
    weights: str | None
    lora: str | None
    draft: str | None
    options: Mapping[str, str]
    requires: tuple[Try, ...]
    published: str = "BF16"
    """The format of the GGUF file that llama.cpp's converter makes of the published weights."""
    path: str | None = None
    library: str | None = None
    made: bool = False
    on_host: bool = False
    """True if everything lies in the memory of a machine without a GPU."""
    partly_on_host: bool = False
    """True if a part lies in the memory of the host, beside a GPU."""
    flags: tuple[str, ...] = ()
    """Further words, which a cache policy needs."""
    layers: int = 0
    """Layers of the model, for an engine that is told which of them each GPU has."""
    environment: tuple[str, ...] = ()
    """Variables that stand before the command, with which the engine takes longer sequences than the model's own."""


def check_one_replica(planned: CommandInput, label: str) -> None:
    """Raise an error for replicas where a command line starts one."""
    if planned.parallel.dp > 1:
        raise UsageError(f"A command line of {label} starts one replica.", hint="Start one for each: leave out --dp.")


class EmittedFile(Record):
    """A file for an engine that is not told all on its command line, with the variables that its server needs.

    ``command`` is what the user types once the file is there, then ``run``; ``as_is`` is what does without it, if the server has the planned
    context, by the variable ``context`` where it is not the engine's own.
    """

    name: str
    text: str
    environment: tuple[str, ...]
    command: tuple[str, ...]
    run: tuple[str, ...] = ()
    as_is: tuple[str, ...] | None = None
    context: str = ""
