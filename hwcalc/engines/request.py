"""What is asked of an engine: one frozen request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora
    from hwcalc.profiles.gpus import Gpu

__all__ = ["Request"]


@frozen
class Request:
    """What the user asked for, parsed. ``dtype`` is the spelling of ``--dtype`` or ``None`` for the engine's default."""

    seq: int
    batch: int = 1
    dtype: str | None = None
    encoder_seq: int | None = None
    engine_version: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1
    gpu: Gpu | None = None
    memory_utilization: float | None = None
    kv_memory: int | None = None
    """Bytes that each GPU gives to the cache, where the user says so."""
    margin: Fraction | None = None
    """Share of the GPU that is left alone, where the user says so."""
    weights: str | None = None
    lora: Lora | None = None
    draft: ModelSpec | None = None
    """A small model whose guesses the planned one checks; it is loaded beside it."""
    calibrated: bool = True
    """Whether what the user measured stands in for estimates."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp

    @property
    def replica_batch(self) -> int:
        """Sequences of the data-parallel replica that has most."""
        return -(-self.batch // self.dp)
