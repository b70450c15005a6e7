"""The weights that one rank holds: the counted tensors, cut as an engine cuts them.

:data:`REFERENCE` is ideal sharding: it divides every matrix, pads nothing, and repeats only what all heads share. An engine that
shards differently has a subclass of :class:`Rules`. Weights of multi-token prediction are loaded only for speculative decoding;
:mod:`hwcalc.engines.draft_weights` counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.families import kept
from hwcalc.engines.model_dtypes import plain_format
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.shards import Rank, Sharding, has_few_blocks, once_of_few
from hwcalc.engines.stages import Tables, count_on_stage, layers_on_stage
from hwcalc.formulas import LayerKind, pipeline_stages
from hwcalc.formulas.formats import FP32, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["REFERENCE", "RankBytes", "Rules", "block_bytes", "cut_blocks", "on_stages", "rank_weight_bytes", "stages_of"]


class RankBytes(Record):
    """Bytes on the fullest rank: low, expected and high, and their source in words."""

    low: int
    expected: int
    high: int
    source: str


class Rules:
    """How an engine divides a model over ranks. A subclass overrides what its engine does differently. There is no state."""

    engine: ClassVar[str] = "reference"
    """The engine whose reading of the config decides the number of layers (:meth:`ModelSpec.stack_for`)."""
    rank: ClassVar[type[Rank]] = Rank
    tables: ClassVar[Tables] = Tables()
    gathers_logits: ClassVar[bool] = False
    """Whether every rank gets the logits of the whole vocabulary, and not only those of its own rows."""

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        """The range of layers of each pipeline stage."""
        return pipeline_stages(layers, pp)

    def sizes(self, model: ModelSpec, parallel: Parallel) -> tuple[int, ...]:
        """The parallel sizes on which the weights of a rank depend, and what is as wide as they are."""
        return parallel.tp, parallel.pp, parallel.group, parallel.ep

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """The format of weights that are not quantised: ``weight_dtype``, or else the dtype of the model, or else bf16."""
        return plain_format(model, weight_dtype)

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        """The part of a layer's cache that the fullest tensor-parallel rank keeps."""
        return kind.shard(tp)

    def loaded_blocks(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        """The blocks that are loaded: without multi-token prediction, and with a head of its own where a tied one cannot be shared."""
        blocks = [block for block in weights.blocks if block.part is not Part.MTP]
        yield from blocks
        head = self.untied_head(model, blocks, pp)
        if head is not None:
            yield head

    def untied_head(self, model: ModelSpec, blocks: Iterable[Block], pp: int) -> Block | None:
        """The separate head of a tied model, if :meth:`unties`; ``None`` if the head is shared, or in the blocks already."""
        rank = self.rank(model)
        tables = [weight for block in blocks for weight in block.weights if rank.is_vocabulary(weight)]
        embedded = [weight for weight in tables if weight.role is WeightRole.EMBEDDING and "per_layer" not in weight.path]
        heads = any(weight.role is WeightRole.HEAD for weight in tables)
        if heads or not embedded or not self.unties(model, pp):
            return None
        head = Weight(path="lm_head.weight", shape=embedded[0].shape, role=WeightRole.HEAD)
        return Block(kind="head", weights=(head,))

    def unties(self, model: ModelSpec, pp: int) -> bool:
        """Whether a tied head becomes a separate table. It does on a last stage without an embedding: stages cannot share a table."""
        return pp > 1 and len(model.stack) > 0 and not self.tables.has_embedding_at_the_end(model)

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        """The weights of one layer as the engine's model classes build them; these may add or leave out a few."""
        return block.weights

    def held(self, scheme: Scheme | None) -> Scheme | None:
        """The scheme of the weights on the GPU, if they are stored in ``scheme``: an engine may unpack them when it loads them."""
        return scheme

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        """Whether a parameter is kept in 32 bits whatever the dtype of the model."""
        return False


REFERENCE: Final = Rules()


def rank_weight_bytes(
    model: ModelSpec,
    parallel: Parallel = ALONE,
    *,
    weight_dtype: str | None = None,
    scheme: Scheme | None = None,
    rules: Rules = REFERENCE,
) -> tuple[int, ...] | None:
    """Bytes of weights on the fullest rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``scheme`` is the quantisation, and ``weight_dtype`` the dtype of weights that are not quantised. With ``ep`` above 1 whole experts
    are distributed over that many ranks; otherwise all ranks of ``tp`` and ``dp`` divide the matrices of each expert. On two ranks,
    each holds half of the matrices of Llama-3.1-8B and all of its 65 norms:

    >>> from hwcalc import load_model
    >>> rank_weight_bytes(load_model("meta-llama/Llama-3.1-8B"), Parallel(tp=2))
    (8030527488,)

    (16,060,522,496 - 65 x 8,192) / 2 + 65 x 8,192 = 8,030,527,488.
    """
    if model.counted is None:
        return None
    unquantized = rules.weight_format(model, weight_dtype)
    return tuple(
        sum(block_bytes(model, block, rules, scheme, unquantized) for block in stage)
        for stage in stages_of(model, parallel, rules)
    )


def stages_of(model: ModelSpec, parallel: Parallel, rules: Rules) -> tuple[tuple[Block, ...], ...]:
    """The blocks on the fullest rank of each pipeline stage, of a model whose weights are counted."""

    def cut() -> tuple[tuple[Block, ...], ...]:
        rank = rules.rank(model, parallel)
        built = once_of_few(model, (rules, "built", parallel.pp), lambda: _built(model, rules, parallel.pp))
        blocks = [_cut(block, tuple([rank.part(block, *each) for each in weights])) for block, weights in built]
        return tuple(on_stages(model, blocks, parallel.pp, rules))

    # Several formats are tried in each layout.
    return kept(model, "stages", (rules, *rules.sizes(model, parallel)), cut) if has_few_blocks(model) else cut()


def _built(model: ModelSpec, rules: Rules, pp: int) -> tuple[tuple[Block, tuple[tuple[Weight, Sharding], ...]], ...]:
    """The blocks of a model whose weights are counted, and their tensors as the engine builds them, with how each is cut."""
    assert model.counted is not None
    rank = rules.rank(model)
    return tuple(
        (block, tuple([(weight, rank.how(block, weight)) for weight in rules.as_built(model, block)]))
        for block in rules.loaded_blocks(model, model.counted, pp)
    )


def cut_blocks(model: ModelSpec, blocks: Iterable[Block], rank: Rank, rules: Rules) -> tuple[Block, ...]:
    """The blocks as the engine builds them, with each tensor cut to the part on the fullest rank."""
    return tuple([_cut(block, tuple([rank.cut(block, weight) for weight in rules.as_built(model, block)])) for block in blocks])


def _cut(block: Block, weights: tuple[Weight, ...]) -> Block:
    """The block with these parts of its weights: the same one if all of them are whole."""
    whole = len(weights) == len(block.weights) and all(map(is_, weights, block.weights))
    return block if whole else replace(block, weights=weights)


def on_stages(model: ModelSpec, blocks: Sequence[Block], pp: int, rules: Rules) -> Iterator[tuple[Block, ...]]:
    """The blocks of each pipeline stage, with only the layers of that stage."""
    spans = rules.spans(len(model.stack_for(rules.engine)), pp)
    for stage, span in enumerate(spans):
        counts = [count_on_stage(model, block, stage, spans, rules.tables) for block in blocks]
        yield tuple(
            block if count == block.count else replace(block, count=count, layers=layers_on_stage(block, count, span))
            for block, count in zip(blocks, counts, strict=True)
            if count
        )


def block_bytes(model: ModelSpec, block: Block, rules: Rules, scheme: Scheme | None, unquantized: WeightFormat) -> int:
    """Bytes of all layers of a block whose weights are cut already."""
    size = 0
    for weight in block.weights:
        if rules.is_fp32(model, weight):
            size += block.count * FP32.bytes(weight)
        else:
            size += block.count * unquantized.bytes(weight) if scheme is None else scheme.bytes(block, weight, unquantized)
    return size
