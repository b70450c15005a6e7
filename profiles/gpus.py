"""Accelerators: one YAML file each in ``gpus/``, file stem = id."""

from __future__ import annotations

from formulas.frozen import frozen

__all__ = ["Gpu"]


@frozen
class Gpu:
    """One accelerator. ``None`` is unknown, never zero. Budgets use ``torch_total_mib``."""

    id: str
    name: str
    vendor: str
    architecture: str | None
    compute_capability: str | None
    """CUDA's ``9.0`` and the like; ``None`` elsewhere."""
    memory_marketing_gb: int | None
    memory_total_mib: int | None
    torch_total_mib: int | None
    memory_bandwidth_gbps: int | None
    fp8_kv: str | None
    source: str
