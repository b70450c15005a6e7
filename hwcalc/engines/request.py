"""What is asked of an engine: one frozen request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import field, frozen, replace
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora
    from hwcalc.profiles.gpus import Gpu

__all__ = ["ALONE", "Hardware", "Parallel", "Request"]

_MOST_RANKS: Final = 4096


@frozen
class Parallel:
    """How many GPUs share the work, and how."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 1 <= value <= _MOST_RANKS:
                raise UsageError(f"{name} is {value:,}.", hint=f"Allowed: a whole number from 1 to {_MOST_RANKS:,}.")

    @property
    def gpus(self) -> int:
        """GPUs in all: dcp and ep reuse those of tp and dp."""
        return self.tp * self.pp * self.dp


ALONE: Final = Parallel()
"""One GPU by itself."""


@frozen
class Hardware:
    """What the work runs on, and how much of its memory may be used."""

    gpu: Gpu | None = None
    memory_utilization: float | None = None
    """Share of each GPU that the engine may use, where the user says so."""
    kv_memory: int | None = None
    """Bytes that each GPU gives to the cache, where the user says so."""
    margin: Fraction | None = None
    """Share of each GPU that is left alone, where the user says so."""
    calibrated: bool = True
    """Whether what the user measured stands in for estimates."""


@frozen
class Request:
    """What the user asked for, parsed. ``dtype`` is the spelling of ``--dtype`` or ``None`` for the engine's default."""

    seq: int
    batch: int = 1
    dtype: str | None = None
    encoder_seq: int | None = None
    engine_version: str | None = None
    parallel: Parallel = field(default_factory=Parallel)
    hardware: Hardware = field(default_factory=Hardware)
    weights: str | None = None
    lora: Lora | None = None
    draft: ModelSpec | None = None
    """The model of ``--draft``: small, loaded beside the planned one, which checks its guesses."""
    option_draft: ModelSpec | None = None
    """The model that an engine option names as the draft, loaded."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.parallel.gpus

    @property
    def replica_batch(self) -> int:
        """Sequences of the data-parallel replica that has most."""
        return -(-self.batch // self.parallel.dp)

    def flat(self) -> dict[str, Any]:
        """Every value by its own name, those of :class:`Parallel` and :class:`Hardware` among the others."""
        return {**vars(self), **vars(self.parallel), **vars(self.hardware)}

    def changed(self, **change: Any) -> Request:
        """The same with other values; those of :class:`Parallel` and :class:`Hardware` go by their own names.

        >>> Request(seq=8).changed(batch=2, tp=4).parallel.tp
        4
        """
        for group in ("parallel", "hardware"):
            names = change.keys() & _GROUPED[group]
            if names:
                change[group] = replace(change.get(group, getattr(self, group)), **{name: change.pop(name) for name in names})
        return replace(self, **change)


_GROUPED: Final[Mapping[str, frozenset[str]]] = {
    "parallel": frozenset(Parallel.__annotations__),
    "hardware": frozenset(Hardware.__annotations__),
}
