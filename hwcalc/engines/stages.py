"""The layers, tables and towers of a pipeline stage.

Each stage has its range of layers. The first stage also has the embedding and the towers, the last stage the last norm and the head.
Some engines build tables on other stages too; :class:`Tables` lists the model types for which they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_FIRST: Final = frozenset({Part.VISION, Part.AUDIO, Part.PROJECTOR, Part.ENCODER})
_RUN_BY_LAYERS: Final = frozenset({"attention", "mlp", "moe"})
"""Kinds of blocks inside layers. A block of such a kind without layer numbers is shared by many layers (Zamba): every stage has it."""


class Tables(Record):
    """Model types for which an engine builds tables on every stage, whether the stage uses them or not."""

    all: frozenset[str] = frozenset()
    """Embedding, last norm and head are on every stage."""
    but_no_norm: frozenset[str] = frozenset()
    """Embedding and head are on every stage."""
    embedding: frozenset[str] = frozenset()
    """Only the embedding is on every stage."""

    def has_embedding_at_the_end(self, model: ModelSpec) -> bool:
        """Whether the last stage has an embedding, which a tied head can share."""
        return model.model_type in self.all | self.but_no_norm | self.embedding


def count_on_stage(model: ModelSpec, block: Block, stage: int, spans: Sequence[range], tables: Tables) -> int:
    """How many layers of a block a pipeline stage has. ``spans`` are the layer ranges of the stages, in order."""
    if len(spans) == 1:
        return block.count
    first, last = stage == 0, stage == len(spans) - 1
    if block.part in _FIRST:
        return block.count if first else 0
    if block.layers is not None:
        return sum(layer in spans[stage] for layer in block.layers)
    if block.kind in _RUN_BY_LAYERS:
        return block.count
    return _once(model, block, tables, first=first, last=last)


def layers_on_stage(block: Block, count: int, span: range) -> tuple[int, ...] | None:
    """The numbers of the ``count`` layers of a block on a stage; ``None`` for a block without layer numbers.

    If the stage has all layers of the block, as of a tower, these are all numbers; otherwise those within ``span``.
    """
    if block.layers is None or count == block.count:
        return block.layers
    return tuple(number for number in block.layers if number in span)


def _once(model: ModelSpec, block: Block, tables: Tables, *, first: bool, last: bool) -> int:
    """How often a stage has a block that the model has once: the embedding is on the first stage, other blocks on the last one."""
    family = model.model_type
    everywhere = family in tables.all
    if block.kind == "embedding":
        return int(first or everywhere or family in tables.but_no_norm or family in tables.embedding)
    if block.kind == "head":
        return int(last or everywhere or family in tables.but_no_norm)
    return int(last or everywhere)
