"""What one rank holds of a model's weights: the counted tensors, cut the way an engine cuts them.

:data:`REFERENCE` is ideal sharding: every matrix divided, nothing padded, nothing repeated but what all heads share. An engine's
own habits are a subclass of :class:`Rules`. Weights of multi-token prediction are loaded for speculative decoding only and are
counted by :mod:`hwcalc.engines.draft_weights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.shards import Rank
from hwcalc.engines.stages import Tables, count_on_stage, layers_on_stage
from hwcalc.formulas import LayerKind, pipeline_stages
from hwcalc.formulas.formats import BF16, FLOATS, FP32, WeightFormat
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["REFERENCE", "RankBytes", "Rules", "block_bytes", "cut_blocks", "on_stages", "rank_weight_bytes"]


@frozen
class RankBytes:
    """Bytes on the rank that holds most: low, expected, high, and where they come from in words."""

    low: int
    expected: int
    high: int
    source: str


class Rules:
    """How an engine builds a model on several ranks. No state; a subclass overrides what it does otherwise."""

    engine: ClassVar[str] = "reference"
    """Whose reading of the file decides how many layers there are."""
    rank: ClassVar[type[Rank]] = Rank
    tables: ClassVar[Tables] = Tables()
    gathers_logits: ClassVar[bool] = False
    """Whether every rank gets the logits of the whole vocabulary, not of its own rows alone."""

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        """The layers of each pipeline stage."""
        return pipeline_stages(layers, pp)

    def plain(self, model: ModelSpec, wanted: str | None) -> WeightFormat:
        """The format of what is not quantised: ``wanted``, else the model's own, else bf16."""
        return FLOATS.get(wanted or model.dtype or "", BF16)

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        """A layer's cache as the fullest tensor-parallel rank keeps it."""
        return kind.shard(tp)

    def held(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        """The blocks that are loaded: no multi-token prediction, and a second table where a tied one cannot be shared."""
        blocks = [block for block in weights.blocks if block.part is not Part.MTP]
        yield from blocks
        head = self.own_head(model, blocks, pp)
        if head is not None:
            yield head

    def own_head(self, model: ModelSpec, blocks: Iterable[Block], pp: int) -> Block | None:
        """The head of a tied model on a last stage without an embedding: a stage cannot share a table with another one."""
        rank = self.rank(model)
        tables = [weight for block in blocks for weight in block.weights if rank.is_vocabulary(weight)]
        embedded = [weight for weight in tables if weight.role is WeightRole.EMBEDDING and "per_layer" not in weight.path]
        heads = any(weight.role is WeightRole.HEAD for weight in tables)
        if heads or not embedded or not self.unties(model, pp):
            return None
        head = Weight(path="lm_head.weight", shape=embedded[0].shape, role=WeightRole.HEAD)
        return Block(kind="head", weights=(head,))

    def unties(self, model: ModelSpec, pp: int) -> bool:
        """Whether a tied head is a table of its own."""
        return pp > 1 and len(model.stack) > 0 and not self.tables.has_embedding_at_the_end(model)

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        """The weights of one layer as the engine's classes build them, which may be a few more or fewer."""
        return block.weights

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        """Whether a parameter stays in 32 bits whatever the model's dtype."""
        return False


REFERENCE: Final = Rules()


def rank_weight_bytes(
    model: ModelSpec,
    parallel: Parallel = ALONE,
    *,
    plain: str | None = None,
    scheme: Scheme | None = None,
    rules: Rules = REFERENCE,
) -> tuple[int, ...] | None:
    """Bytes of weights on the fullest rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``plain`` is the dtype of what is not quantised and ``scheme`` the quantisation. With ``ep`` above 1 whole experts are dealt out over
    that many ranks; otherwise all ranks of ``tp`` and ``dp`` share each expert's matrices. Llama-3.1-8B on two ranks holds half of
    its matrices and all of its 65 norms:

    >>> from hwcalc import load_model
    >>> rank_weight_bytes(load_model("meta-llama/Llama-3.1-8B"), Parallel(tp=2))
    (8030527488,)

    (16,060,522,496 - 65 x 8,192) / 2 + 65 x 8,192 = 8,030,527,488.
    """
    if model.counted is None:
        return None
    form = rules.plain(model, plain)
    blocks = cut_blocks(model, rules.held(model, model.counted, parallel.pp), rules.rank(model, parallel), rules)
    return tuple(
        sum(block_bytes(model, block, rules, scheme, form) for block in stage)
        for stage in on_stages(model, blocks, parallel.pp, rules)
    )


def cut_blocks(model: ModelSpec, blocks: Iterable[Block], rank: Rank, rules: Rules) -> tuple[Block, ...]:
    """The blocks as the engine builds them, with what the fullest rank holds of every tensor."""
    return tuple(
        replace(block, weights=tuple(rank.cut(block, weight) for weight in rules.as_built(model, block))) for block in blocks
    )


def on_stages(model: ModelSpec, blocks: Sequence[Block], pp: int, rules: Rules) -> Iterator[tuple[Block, ...]]:
    """The blocks of each pipeline stage, with the layers that it has of them."""
    spans = rules.spans(len(model.stack_for(rules.engine)), pp)
    for stage, span in enumerate(spans):
        counts = [count_on_stage(model, block, stage, spans, rules.tables) for block in blocks]
        yield tuple(
            replace(block, count=count, layers=layers_on_stage(block, count, span))
            for block, count in zip(blocks, counts, strict=True)
            if count
        )


def block_bytes(model: ModelSpec, block: Block, rules: Rules, scheme: Scheme | None, plain: WeightFormat) -> int:
    """Bytes of a block whose weights are cut already, in all of its layers."""
    size = 0
    for weight in block.weights:
        if rules.is_fp32(model, weight):
            size += block.count * FP32.bytes(weight)
        else:
            size += block.count * plain.bytes(weight) if scheme is None else scheme.bytes(block, weight, plain)
    return size
