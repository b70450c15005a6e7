"""The weights that one rank holds: how tensors are cut over ranks, and layers, tables and towers dealt out to pipeline stages.

:class:`Rank` cuts a tensor. A matrix is cut by its outputs, and the matrix that follows it by its inputs (Shoeybi et al. 2019,
arXiv:1909.08053). Norms, routers, and latents that all heads share are whole on every rank. Vocabularies are cut by rows. A key or value
head is never cut: with more ranks than heads, each rank has a copy of one head (Pope et al. 2022, arXiv:2211.05102). What does not divide
evenly is rounded up, since the fullest rank has to fit.

Each stage has its range of layers. The first stage also has the embedding and the towers, the last stage the last norm and the head.
Some engines build tables on other stages too; :class:`Tables` lists the model types for which they do.

:data:`REFERENCE` is ideal sharding: it divides every matrix, pads nothing, and repeats only what all heads share. An engine that
shards differently has subclasses of :class:`Rules` and :class:`Rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from operator import is_
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from hwcalc.engines.models import plain_format
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.formulas import LayerKind, Mamba2
from hwcalc.formulas.formats import FP32, WeightFormat
from hwcalc.formulas.hybrid import pipeline_stages
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme

T = TypeVar("T")

ROW_PARALLEL: Final = frozenset(
    {
        *("o_proj", "o_b_proj", "out_proj", "output_linear", "down_proj", "dense", "dense_4h_to_h", "c_proj", "fc2", "fc_out"),
        *("proj", "linear_2", "linear_fc2", "merge_linear_2", "wo", "w2", "2"),
    }
)
"""Modules that are cut by inputs, by the last part of their path. Every rank keeps their whole bias, which is added once."""
_REPLICATED_ROLES: Final = (WeightRole.NORM, WeightRole.ROUTER, WeightRole.EMBEDDING)
_OF_TEXT: Final = (Part.LANGUAGE, Part.MTP)
_REPLICATED: Final = frozenset(
    {
        *("q_a_proj", "kv_a_proj_with_mqa", "f_a_proj", "g_a_proj", "per_layer_input_gate", "per_layer_projection"),
        *("patch_embed", "patch_embedding", "mm_input_projection_weight", "expert_bias", "e_score_correction_bias"),
        *("class_embedding", "position_bias"),
    }
)
"""Modules that are whole on every rank: projections to what all heads share, small tables and single parameters."""
_MOST_KEPT: Final = 64
"""So many unlike blocks at most has a model of whose blocks something is kept."""
_MLPS: Final = frozenset({"mlp", "moe"})
_KEYS_AND_VALUES: Final = frozenset({"k_proj", "v_proj"})
_FUSED: Final = frozenset({"query_key_value", "qkv_proj", "Wqkv", "W_pack", "wqkv", "c_attn"})


Sharding: TypeAlias = Literal[
    "whole",
    "vocabulary",
    "experts",
    "inputs",
    "outputs",
    # By key and value heads, of which every rank has at least one.
    "heads",
    # By the channels of a Mamba-2 mixer, separately from groups that ranks may repeat.
    "mixer",
]
"""How a tensor is divided, over however many ranks."""


class Rank:
    """Cuts a tensor to the part on the fullest rank.

    With ``ep`` above 1 whole experts are distributed over that many ranks; otherwise all ranks of ``tp`` and ``dp`` divide the matrices
    of each expert. Attention is cut only by ``tp``: each rank of ``dp`` has all of it.
    """

    vocabulary_padding: ClassVar[int] = 1
    """The rows of a vocabulary are padded to a multiple of this number before they are cut."""
    replicated: ClassVar[AbstractSet[str]] = _REPLICATED
    replicated_inside: ClassVar[AbstractSet[str]] = frozenset({"indexer", "compressor", "router"})
    """A tensor with one of these words anywhere in its path is whole on every rank."""

    def __init__(self, model: ModelSpec, parallel: Parallel = ALONE) -> None:
        self.model = model
        self.tp = parallel.tp
        self.shards = parallel.group
        self.ep = parallel.ep
        self.mamba = next((group.kind for group in model.stack.groups if isinstance(group.kind, Mamba2)), None)

    def cut(self, block: Block, weight: Weight) -> Weight:
        """The part of a tensor on the fullest rank."""
        return self.part(block, weight, self.how(block, weight))

    def how(self, block: Block, weight: Weight) -> Sharding:
        """The way in which a tensor is cut, which does not depend on the sizes of the layout."""
        if self.is_vocabulary(weight):
            return "vocabulary"
        if weight.copies > 1:
            return "experts"
        if self.is_replicated(weight) or self.is_whole(block):
            return "whole"
        name = module_of(weight)
        if name in ROW_PARALLEL:
            return "whole" if weight.role is WeightRole.BIAS else "inputs"
        if block.part in _OF_TEXT and (name in _KEYS_AND_VALUES or name in _FUSED):
            return "heads"
        return "mixer" if self.mamba is not None and name in {"in_proj", "conv1d"} else "outputs"

    def part(self, block: Block, weight: Weight, how: Sharding) -> Weight:
        """The part of a tensor that is cut so."""
        if how == "whole":
            return weight
        if how == "experts":
            return self.expert(block, weight)
        ranks = self.ranks(block, weight)
        if how == "vocabulary":
            padded = -(-weight.shape[0] // self.vocabulary_padding) * self.vocabulary_padding
            return _rows(weight, -(-padded // ranks))
        if ranks == 1:
            return weight
        if how == "inputs":
            return cut_inputs(weight, ranks)
        if how == "heads":
            rows = self._local_rows.get((module_of(weight) in _FUSED, weight.shape[0]))
            return cut_outputs(weight, self.tp) if rows is None else _rows(weight, rows)
        if how == "mixer" and self.mamba is not None:
            # A group of B and C that cannot be divided is repeated on every rank.
            mamba = self.mamba
            shared = 2 * mamba.n_groups * mamba.d_state
            local = 2 * mamba.d_state * self.state_groups(mamba.n_groups)
            return _rows(weight, -(-(weight.shape[0] - shared) // self.tp) + local)
        return cut_outputs(weight, ranks)

    def ranks(self, block: Block, weight: Weight) -> int:
        """The number of ranks over which a tensor outside of the experts is cut."""
        return self.tp

    def expert(self, block: Block, weight: Weight) -> Weight:
        """The part of an expert tensor on the fullest rank: fewer experts, or a part of each."""
        if self.ep > 1:
            return distribute_experts(weight, self.ep)
        last = module_of(weight) in ROW_PARALLEL
        if weight.path.endswith(".bias") or len(weight.shape) < 2:
            return weight if last else cut_outputs(weight, self.shards)
        return cut_inputs(weight, self.shards) if last else cut_outputs(weight, self.shards)

    def is_vocabulary(self, weight: Weight) -> bool:
        """True if a tensor is an embedding or a head with a row per token, which is cut by rows."""
        if weight.role is WeightRole.HEAD:
            return True
        if weight.role is not WeightRole.EMBEDDING:
            return False
        return "pos" not in module_of(weight) and weight.shape[0] >= (self.model.vocab_size or 1) // 2

    def is_replicated(self, weight: Weight) -> bool:
        """True if every rank has the whole tensor."""
        if weight.role is WeightRole.NORM and self.is_sharded_norm(weight.path):
            return False
        if weight.role in _REPLICATED_ROLES or module_of(weight) in self.replicated:
            return True
        return not self.replicated_inside.isdisjoint(weight.path.split("."))

    def is_whole(self, block: Block) -> bool:
        """True if every rank has the whole block."""
        return False

    def is_sharded_norm(self, path: str) -> bool:
        """True if a norm is cut: the gated norm inside a Mamba-2 mixer, which is as wide as the rank's part of the mixer."""
        return path.endswith(("mixer.norm.weight", "mamba.norm.weight")) and self.mamba is not None

    def key_value_heads(self, heads: int) -> int:
        """Key or value heads on a rank; at least one."""
        return -(-heads // self.tp)

    def state_groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on a rank."""
        return -(-groups // self.tp)

    @cached_property
    def _local_rows(self) -> dict[tuple[bool, int], int]:
        """The rows on a rank, for each number of rows that a fused projection (``True``) or one of keys or values has in some layer.

        Query heads are divided, and there is at least one key and value head.
        """
        names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")

        def dims_of_kinds() -> tuple[tuple[int, ...], ...]:
            kinds = (group.kind.dims() for group in self.model.stack.groups)
            return tuple(tuple(dims[name] for name in names) for dims in kinds if dims.keys() >= set(names))

        local_rows: dict[tuple[bool, int], int] = {}
        for heads, groups, head, value in self.model.once("attention dims", dims_of_kinds):
            local_groups = self.key_value_heads(groups)
            for width in (head, value):
                local_rows.setdefault((False, groups * width), local_groups * width)
            fused = heads * head + groups * (head + value)
            local_rows.setdefault((True, fused), -(-heads // self.tp) * head + local_groups * (head + value))
        return local_rows


class GroupRank(Rank):
    """Cuts a tensor where replicas divide attention alone: the ranks of all of them cut each MLP, as they do experts."""

    def ranks(self, block: Block, weight: Weight) -> int:
        return self.shards if block.kind in _MLPS or weight.path.startswith("mlp.") else self.tp


def once_of_few(model: ModelSpec, key: Hashable, make: Callable[[], T]) -> T:
    """As :meth:`ModelSpec.once`, but kept only of few unlike blocks: thousands of layers that are all unlike would take too much memory."""
    return model.once(key, make) if model.counted is None or len(model.counted.blocks) <= _MOST_KEPT else make()


def module_of(weight: Weight) -> str:
    """The module of a tensor: ``q_proj`` for ``self_attn.q_proj.weight``, ``A_log`` for ``mixer.A_log``."""
    return _module(weight.path)


@lru_cache(maxsize=4096)
def _module(path: str) -> str:
    parts = path.split(".")
    return parts[-2] if parts[-1] in {"weight", "bias"} and len(parts) > 1 else parts[-1]


def cut_outputs(weight: Weight, ranks: int) -> Weight:
    """Divide the outputs, which are the first dimension, by the number of ranks, rounded up."""
    return _rows(weight, -(-weight.shape[0] // ranks))


def cut_inputs(weight: Weight, ranks: int) -> Weight:
    """Divide the inputs, which are the last dimension, by the number of ranks, rounded up."""
    return replace(weight, shape=(*weight.shape[:-1], -(-weight.shape[-1] // ranks)))


def distribute_experts(weight: Weight, ranks: int) -> Weight:
    """Divide the number of experts by the number of ranks, rounded up. Each expert stays whole."""
    return replace(weight, copies=-(-weight.copies // ranks))


def _rows(weight: Weight, rows: int) -> Weight:
    return weight if rows == weight.shape[0] else replace(weight, shape=(rows, *weight.shape[1:]))


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
        """True if the last stage has an embedding, which a tied head can share."""
        return model.model_type in self.all | self.but_no_norm | self.embedding


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
    """True if every rank gets the logits of the whole vocabulary, and not only those of its own rows."""

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
        rank = self.rank(model)
        tables = [weight for block in blocks for weight in block.weights if rank.is_vocabulary(weight)]
        embedded = [weight for weight in tables if weight.role is WeightRole.EMBEDDING and "per_layer" not in weight.path]
        if embedded and all(weight.role is not WeightRole.HEAD for weight in tables) and self.unties(model, pp):
            head = Weight(path="lm_head.weight", shape=embedded[0].shape, role=WeightRole.HEAD)
            yield Block(kind="head", weights=(head,))

    def unties(self, model: ModelSpec, pp: int) -> bool:
        """True if a tied head becomes a separate table, as on a last stage without an embedding: stages cannot share a table."""
        return pp > 1 and len(model.stack) > 0 and not self.tables.has_embedding_at_the_end(model)

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        """The weights of one layer as the engine's model classes build them; these may add or leave out a few."""
        return block.weights

    def held(self, scheme: Scheme | None) -> Scheme | None:
        """The scheme of the weights on the GPU, if they are stored in ``scheme``: an engine may unpack them when it loads them."""
        return scheme

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        """True if a parameter is kept in 32 bits whatever the dtype of the model."""
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

    def built() -> tuple[tuple[Block, tuple[tuple[Weight, Sharding], ...]], ...]:
        assert model.counted is not None
        whole = rules.rank(model)
        return tuple(
            (block, tuple([(weight, whole.how(block, weight)) for weight in rules.as_built(model, block)]))
            for block in rules.loaded_blocks(model, model.counted, parallel.pp)
        )

    def cut() -> tuple[tuple[Block, ...], ...]:
        rank = rules.rank(model, parallel)
        how = once_of_few(model, (rules, "built", parallel.pp), built)
        blocks = [_cut(block, tuple([rank.part(block, *each) for each in weights])) for block, weights in how]
        return tuple(on_stages(model, blocks, parallel.pp, rules))

    # Several formats are tried in each layout.
    return once_of_few(model, ("stages", (rules, *rules.sizes(model, parallel))), cut)


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
        kept = ((block, _count_on_stage(model, block, stage, spans, rules.tables)) for block in blocks)
        yield tuple(
            block
            if count == block.count
            else replace(
                block,
                count=count,
                layers=None if block.layers is None else tuple(layer for layer in block.layers if layer in span),
            )
            for block, count in kept
            if count
        )


def _count_on_stage(model: ModelSpec, block: Block, stage: int, spans: Sequence[range], tables: Tables) -> int:
    """The number of layers of a block that a pipeline stage has. ``spans`` are the layer ranges of the stages, in order."""
    if len(spans) == 1:
        return block.count
    first, last, family = stage == 0, stage == len(spans) - 1, model.model_type
    if block.part in _FIRST:
        return block.count if first else 0
    if block.layers is not None:
        return sum(layer in spans[stage] for layer in block.layers)
    if block.kind in _RUN_BY_LAYERS:
        return block.count
    # The model has the block once: the embedding is on the first stage, other blocks are on the last one.
    everywhere = family in tables.all
    if block.kind == "embedding":
        return int(first or everywhere or family in tables.but_no_norm or family in tables.embedding)
    return int(last or everywhere or (block.kind == "head" and family in tables.but_no_norm))


def block_bytes(model: ModelSpec, block: Block, rules: Rules, scheme: Scheme | None, unquantized: WeightFormat) -> int:
    """Bytes of all layers of a block whose weights are cut already."""
    size = 0
    for weight in block.weights:
        if rules.is_fp32(model, weight):
            size += block.count * FP32.bytes(weight)
        else:
            size += block.count * unquantized.bytes(weight) if scheme is None else scheme.bytes(block, weight, unquantized)
    return size


_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)
_DECODER: Final = (Part.LANGUAGE,)
_TOWERS: Final = (Part.VISION, Part.AUDIO, Part.ENCODER)
_TABLES: Final = frozenset({"embedding", "head", "norm"})


_Matrix: TypeAlias = tuple[Weight, Sharding, bool]
"""A matrix of a layer, how it is cut, and whether it is the last one of an attention or an MLP."""


def layer_width(model: ModelSpec, rank: Rank, *, experts: bool = True, towers: bool = False) -> int | None:
    """Numbers per token that the widest layer of the decoder holds on one rank; ``None`` if the weights are not counted.

    These are the outputs of the projections and the input of the last one: a gated MLP of 14,336 holds 3 x 14,336. Without ``experts``
    the experts that a token is routed to do not count. Of ``towers`` it is the numbers per patch, with four copies of the hidden vector; 0
    for a model without towers.
    """
    if model.counted is None:
        return None
    parts, hidden_copies = (_TOWERS, 4) if towers else (_DECODER, 0)
    blocks = [block for block in model.counted.blocks if block.part in parts and block.kind not in _TABLES]
    layers = once_of_few(
        model,
        ("matrices", type(rank), towers, experts),
        lambda: tuple(_matrices(rank, block, experts=experts) for block in blocks),
    )
    return max(
        (_inside(rank, block, side) + hidden_copies * hidden for block, hidden, *sides in layers for side in sides), default=0
    )


def expert_width(model: ModelSpec, rank: Rank) -> tuple[int, int, int]:
    """Three sizes of the widest expert layer on one rank: experts per token, their inner width and their hidden width.

    Zeros for a model without experts, or if the weights are not counted.
    """

    def last_matrices() -> tuple[tuple[Block, Weight], ...]:
        return tuple(
            (block, weight)
            for block in (() if model.counted is None else model.counted.blocks)
            if block.part is Part.LANGUAGE
            for weight in block.weights
            if weight.copies > 1 and len(weight.shape) == 2 and module_of(weight) in ROW_PARALLEL
        )

    widest = (0, 0, 0)
    for block, weight in once_of_few(model, "last matrices of experts", last_matrices):
        hidden, inner = rank.cut(block, weight).shape
        sizes = (weight.active or weight.copies, inner, hidden)
        widest = max(widest, sizes, key=lambda sizes: sizes[0] * max(sizes[1], sizes[2]))
    return widest


def _matrices(rank: Rank, block: Block, *, experts: bool) -> tuple[Block, int, tuple[_Matrix, ...], tuple[_Matrix, ...]]:
    """The hidden width of a block, and its matrices: those of attention, which ends before the MLP begins, and all others."""
    sides: tuple[list[_Matrix], list[_Matrix]] = [], []
    hidden = 0
    for weight in block.weights:
        if weight.role in _MATRICES and len(weight.shape) == 2 and (experts or weight.copies == 1):
            last = module_of(weight) in ROW_PARALLEL
            hidden = max(hidden, weight.shape[0 if last else 1])
            attends = "attn" in weight.path or "attention" in weight.path
            sides[not attends].append((weight, rank.how(block, weight), last))
    return block, hidden, tuple(sides[0]), tuple(sides[1])


def _inside(rank: Rank, block: Block, matrices: tuple[_Matrix, ...]) -> int:
    """The outputs of the first projections and the input of the last, per token; for experts their outputs, if these are more."""
    width = inside = outside = 0
    for weight, how, last in matrices:
        local = rank.part(block, weight, how)
        copies = min(local.copies, weight.active or local.copies)
        if weight.copies > 1 and last:
            # The outputs of experts reuse the memory of the outputs of their first projections.
            outside += copies * local.shape[0]
            width += copies * local.shape[1]
        elif weight.copies > 1:
            inside += copies * local.shape[0]
        else:
            width += local.shape[1 if last else 0]
    return width + max(inside, outside)
