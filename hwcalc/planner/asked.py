"""What was asked for: the options of a plan as they were read, before any model or GPU is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import field, frozen
from hwcalc.planner.options import OPTIONS, options_of

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora

__all__ = ["Access", "Asked", "read_options", "take_options"]


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


def take_options(command: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Asked]:
    """Of the options of which ``command`` takes one value: those of the plans as they were given, and all of them read.

    Raises :class:`~hwcalc.errors.UsageError` for a name that it does not take, and for a value that is wrong by itself.
    """
    known = {row.name: row for row in options_of(command) if command not in row.lists}
    strange = sorted(set(given) - set(known))
    if strange:
        raise UsageError(f"{command} takes no {strange[0][:40]!r}.", hint=f"Known: {', '.join(sorted(known))}.")
    asked = read_options(given)
    return {name: value for name, value in given.items() if value is not None and not known[name].reads_model}, asked
