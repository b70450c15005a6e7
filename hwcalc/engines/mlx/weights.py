"""The weights that one machine holds: those of the language model, with embedding and head whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.shards import Rank, Sharding
from hwcalc.formulas.weights import Block, Part, Weight, Weights

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec


class MlxRank(Rank):
    """``shard`` cuts attention and MLP; embedding and head are on every machine."""

    def how(self, block: Block, weight: Weight) -> Sharding:
        return "whole" if self.is_vocabulary(weight) else super().how(block, weight)


class MlxRules(Rules):
    """The rules of mlx-lm 0.32.2: ``shard`` of the model files, and ``PipelineMixin``."""

    engine: ClassVar[str] = "mlx"
    rank: ClassVar[type[Rank]] = MlxRank
    gathers_logits: ClassVar[bool] = True

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        """Rank 0 has the last layers, and low ranks get the extra ones: 7 layers on 3 machines are 2, 2 and 3 (models/pipeline.py)."""
        base, extra = divmod(layers, pp)
        sizes = [base + (rank < extra) for rank in reversed(range(pp))]
        starts = [sum(sizes[:stage]) for stage in range(pp)]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))

    def loaded_blocks(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        """``sanitize`` drops what is no part of the language model."""
        return (block for block in super().loaded_blocks(model, weights, pp) if block.part is Part.LANGUAGE)


MLX: Final = MlxRules()
