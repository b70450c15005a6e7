"""Which layers, tables and towers a pipeline stage has.

A stage has its own layers, the first one the embedding and the towers, the last one the last norm and the head. Engines whose
model classes build tables on other stages too say for which families in :class:`Tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part
from hwcalc.model import ModelSpec

__all__ = ["Tables", "count_on_stage", "layers_on_stage"]

_FIRST = frozenset({Part.VISION, Part.AUDIO, Part.PROJECTOR, Part.ENCODER})


@frozen
class Tables:
    """Families by what an engine builds of them on every stage, used or not."""

    all: frozenset[str] = frozenset()
    """Embedding, last norm and head."""
    but_no_norm: frozenset[str] = frozenset()
    embedding: frozenset[str] = frozenset()

    def has_embedding_at_the_end(self, model: ModelSpec) -> bool:
        """Whether the last stage has an embedding that a tied head can share."""
        return model.model_type in self.all | self.but_no_norm | self.embedding


def count_on_stage(model: ModelSpec, block: Block, stage: int, spans: Sequence[range], tables: Tables) -> int:
    """How many layers of this block a pipeline stage has. ``spans`` are the layers of each stage, in order."""
    if len(spans) == 1:
        return block.count
    first, last = stage == 0, stage == len(spans) - 1
    if block.part in _FIRST:
        return block.count if first else 0
    mine, total = spans[stage], spans[-1].stop
    if block.count == 1 and total > 1:
        return _single(model, block, tables, first=first, last=last)
    if block.count == total:
        return len(mine)
    return sum(layer in mine for layer in _layers(model, block, total))


def layers_on_stage(block: Block, count: int, span: range) -> tuple[int, ...] | None:
    """The numbers of the block's ``count`` layers on a stage; ``None`` where they are not known."""
    if block.layers is None or count == block.count:
        return block.layers
    numbers = tuple(number for number in block.layers if number in span)
    return numbers if len(numbers) == count else None


def _single(model: ModelSpec, block: Block, tables: Tables, *, first: bool, last: bool) -> int:
    """A block that the model has once: what comes before the layers is on the first stage, the rest on the last one."""
    family = model.model_type
    everywhere = family in tables.all
    if block.kind == "embedding":
        return int(first or everywhere or family in tables.but_no_norm or family in tables.embedding)
    if block.kind == "head":
        return int(last or everywhere or family in tables.but_no_norm)
    return int(first if block.kind in {"mlp", "moe", "attention"} else last or everywhere)


def _layers(model: ModelSpec, block: Block, total: int) -> tuple[int, ...]:
    """Which layers have this block: those of the cached kind that is as frequent, the first or the last ones, or evenly spread."""
    if block.layers is not None:
        return block.layers
    for group in model.stack.groups:
        if len(group.layers) == block.count and block.kind in {"attention", "delta", "mamba", "conv"}:
            return group.layers
    dense = model.facts.dense_layers or model.facts.hash_routed_layers
    if dense and block.count == dense:
        return tuple(range(dense))
    if dense and block.count == total - dense:
        return tuple(range(dense, total))
    return tuple(index * total // block.count for index in range(block.count))
