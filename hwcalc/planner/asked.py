"""The options that the user gave for a plan, parsed, before any model or GPU is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import field

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record, repr_without
from hwcalc.planner.options import DIMENSIONS, OPTIONS, PlanOption, options_of
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.options import Lora
    from hwcalc.policies.base import Chosen


class Access(Record):
    """How models are fetched: only from this machine or also from the Hub, with which token and from which address."""

    offline: bool = False
    token: str | None = None
    endpoint: str | None = None

    def __repr__(self) -> str:
        return repr_without(self, "token")


class Asked(Record):
    """The parsed options of a plan. Numbers are parsed, but the names of models and GPUs have not been looked up.

    ``given`` has the names of the options that the user gave; every other field has its default. ``assume``, ``revision`` and the
    dimensions say how the model is read.
    """

    given: frozenset[str] = frozenset()
    seq: int | None = None
    batch: int = 1
    dtype: str | None = None
    weights: str | None = None
    engine: str | None = None
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
    prompt: int | None = None
    policy: Chosen | None = None
    policy_rules: str | None = None
    compaction: str | None = None
    shared_prefix: int | None = None
    lengths: tuple[int, ...] | None = None
    samples: int = 1
    beams: int = 1
    engine_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    assume: str | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    parameters: int | None = None
    revision: str | None = None
    access: Access = Access()

    @property
    def dimensions(self) -> dict[str, int]:
        """The given dimensions of a model, by option."""
        return {name: getattr(self, name) for name in DIMENSIONS if name in self.given}

    def keywords(self) -> dict[str, Any]:
        """The given options about the request, by name. The draft is left out: it is a model that has not been loaded yet."""
        return {
            row.name: getattr(self, row.name)
            for row in OPTIONS
            if row.name in self.given and not row.reads_model and row.name != "draft"
        }


def read_options(given: Mapping[str, Any]) -> Asked:
    """Parse options from text or Python values. ``None`` counts as not given, unless the option has a default.

    Raises :class:`~hwcalc.errors.UsageError` for the first wrong value, in the order of :data:`OPTIONS`.
    """
    values: dict[str, Any] = {}
    for row in OPTIONS:
        value = given.get(row.name)
        if value is None and (row.default is None or row.name not in given):
            continue
        # The default stands for itself, and most options of most plans have it.
        is_default = type(value) is type(row.default) and value == row.default
        values[row.name] = value if is_default else row.read(_no_list(row, value))
    access = Access(**{name: values.pop(name) for name in ("offline", "token", "endpoint") if name in values})
    return Asked(given=frozenset(values), access=access, **values)


def _no_list(row: PlanOption, value: Any) -> Any:
    """The value of an option that takes a single value.

    Raises an error for a list, whose hint names a command that takes lists.
    """
    if row.lists and isinstance(value, str) and _is_list(row, value):
        raise UsageError(
            f"--{row.name} {shown(value, 60)} is a list, and one is taken here.",
            hint=f"Several side by side: kvplan {row.lists[0]} MODEL --{row.name} {brief(value, 60)}",
        )
    return value


def _is_list(row: PlanOption, value: str) -> bool:
    """Whether this text holds several values with commas between."""
    if row.type == "policy" and "," in value:
        from hwcalc.policies.parse import policy_texts

        return len(policy_texts(value)) > 1
    return row.type == "text" and "," in value.strip(", ")


def take_options(command: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Asked]:
    """Check and parse the options of ``command`` that take one value.

    Returns the given options about the request, unparsed, and all options, parsed. Raises :class:`~hwcalc.errors.UsageError` for an
    unknown name or a wrong value.
    """
    known = {row.name: row for row in options_of(command) if command not in row.lists}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(f"{command} takes no {shown(unknown[0], 40)}.", hint=f"Known: {', '.join(sorted(known))}.")
    asked = read_options(given)
    return {name: value for name, value in given.items() if value is not None and not known[name].reads_model}, asked
