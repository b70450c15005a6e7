"""The weights of a plan: block by block, and how each is stored."""

from __future__ import annotations

from hwcalc.formulas.record import Record
from hwcalc.model import Definition

class StoredWeights(Record):
    """The parameters of a block in one format. ``scale_bytes`` is what the format keeps beside their ``bits``; it is in ``bytes``."""

    format: str
    bits: int
    parameters: int
    scale_bytes: int
    bytes: int


class WeightPart(Record):
    """One kind of block: how many layers have it, its parameters, and what they take. ``mtp`` is not in the total.

    ``formats`` says how they are stored; their bytes add up to ``bytes``.
    """

    kind: str
    part: str
    count: int
    parameters: int
    bytes: int
    formats: tuple[StoredWeights, ...]


class WeightsInfo(Record):
    """What the weights take. ``exact`` is the checkpoint's own figure, ``estimate`` parameters x format.

    Null is unknown. ``high`` counts the multi-token-prediction layers of the checkpoint as well.
    """

    bytes: int | None
    low: int | None
    high: int | None
    definition: Definition
    source: str
    format: str
    parts: tuple[WeightPart, ...]
