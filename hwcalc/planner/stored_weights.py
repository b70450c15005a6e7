"""How the parameters of a block are stored."""

from __future__ import annotations

from hwcalc.formulas.frozen import frozen

__all__ = ["StoredWeights"]


@frozen
class StoredWeights:
    """The parameters of a block in one format. ``scale_bytes`` is what the format keeps beside their ``bits``; it is in ``bytes``."""

    format: str
    bits: int
    parameters: int
    scale_bytes: int
    bytes: int
