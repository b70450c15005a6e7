"""How tensors are cut over tensor-parallel and expert-parallel ranks. An engine with other rules has a subclass of :class:`Rank`.

A matrix is cut by its outputs, and the matrix that follows it by its inputs (Shoeybi et al. 2019, arXiv:1909.08053). Norms, routers,
and latents that all heads share are whole on every rank. Vocabularies are cut by rows. A key or value head is never cut: with more
ranks than heads, each rank has a copy of one head (Pope et al. 2022, arXiv:2211.05102). What does not divide evenly is rounded up,
since the fullest rank has to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.formulas import Mamba2
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

T = TypeVar("T")

ROW_PARALLEL: Final = frozenset(
    {
        "o_proj",
        "o_b_proj",
        "out_proj",
        "output_linear",
        "down_proj",
        "dense",
        "dense_4h_to_h",
        "c_proj",
        "fc2",
        "fc_out",
        "proj",
        "linear_2",
        "linear_fc2",
        "merge_linear_2",
        "wo",
        "w2",
        "2",
    }
)
"""Modules that are cut by inputs, by the last part of their path. Every rank keeps their whole bias, which is added once."""
_REPLICATED_ROLES: Final = (WeightRole.NORM, WeightRole.ROUTER, WeightRole.EMBEDDING)
_OF_TEXT: Final = (Part.LANGUAGE, Part.MTP)
_REPLICATED: Final = frozenset(
    {
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "f_a_proj",
        "g_a_proj",
        "per_layer_input_gate",
        "per_layer_projection",
        "patch_embed",
        "patch_embedding",
        "mm_input_projection_weight",
        "expert_bias",
        "e_score_correction_bias",
        "class_embedding",
        "position_bias",
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
            return _rows(weight, self._attention_rows(module_of(weight), weight.shape[0]))
        if how == "mixer" and self.mamba is not None:
            return _rows(weight, self._mamba_rows(self.mamba, weight.shape[0]))
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
        """Whether a tensor is an embedding or a head with a row per token, which is cut by rows."""
        if weight.role is WeightRole.HEAD:
            return True
        if weight.role is not WeightRole.EMBEDDING:
            return False
        return "pos" not in module_of(weight) and weight.shape[0] >= (self.model.vocab_size or 1) // 2

    def is_replicated(self, weight: Weight) -> bool:
        """Whether every rank has the whole tensor."""
        if weight.role is WeightRole.NORM and self.is_sharded_norm(weight.path):
            return False
        if weight.role in _REPLICATED_ROLES or module_of(weight) in self.replicated:
            return True
        return not self.replicated_inside.isdisjoint(weight.path.split("."))

    def is_whole(self, block: Block) -> bool:
        """Whether every rank has the whole block."""
        return False

    def is_sharded_norm(self, path: str) -> bool:
        """Whether a norm is cut: the gated norm inside a Mamba-2 mixer, which is as wide as the rank's part of the mixer."""
        return path.endswith(("mixer.norm.weight", "mamba.norm.weight")) and self.mamba is not None

    def key_value_heads(self, heads: int) -> int:
        """Key or value heads on a rank; at least one."""
        return -(-heads // self.tp)

    def state_groups(self, groups: int) -> int:
        """Groups of B and C of a Mamba-2 mixer on a rank."""
        return -(-groups // self.tp)

    def _attention_rows(self, name: str, rows: int) -> int:
        """Rows of a key, value or fused projection on a rank: query heads are divided, and there is at least one key and value head."""
        local = self._local_rows.get((name in _FUSED, rows))
        return -(-rows // self.tp) if local is None else local

    @cached_property
    def _local_rows(self) -> dict[tuple[bool, int], int]:
        """The rows on a rank, for each number of rows that a fused projection (``True``) or one of keys or values has in some layer."""
        local_rows: dict[tuple[bool, int], int] = {}
        for heads, groups, head, value in self.model.once("attention dims", lambda: _attention_dims(self.model)):
            local_groups = self.key_value_heads(groups)
            for width in (head, value):
                local_rows.setdefault((False, groups * width), local_groups * width)
            fused = heads * head + groups * (head + value)
            local_rows.setdefault((True, fused), -(-heads // self.tp) * head + local_groups * (head + value))
        return local_rows

    def _mamba_rows(self, mamba: Mamba2, rows: int) -> int:
        """Rows of a Mamba-2 projection on a rank. A group of B and C that cannot be divided is repeated on every rank."""
        shared = 2 * mamba.n_groups * mamba.d_state
        return -(-(rows - shared) // self.tp) + 2 * mamba.d_state * self.state_groups(mamba.n_groups)


class GroupRank(Rank):
    """Cuts a tensor where replicas divide attention alone: the ranks of all of them cut each MLP, as they do experts."""

    def ranks(self, block: Block, weight: Weight) -> int:
        return self.shards if block.kind in _MLPS or weight.path.startswith("mlp.") else self.tp


def _attention_dims(model: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """Query heads, key/value heads and the widths of a key and a value, of each kind of layer that has them."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    kinds = (group.kind.dims() for group in model.stack.groups)
    return tuple(tuple(dims[name] for name in names) for dims in kinds if "num_key_value_heads" in dims)


def once_of_few(model: ModelSpec, key: Hashable, make: Callable[[], T]) -> T:
    """As :meth:`ModelSpec.once`, but kept only of few unlike blocks: thousands of layers that are all unlike would take too much memory."""
    return model.once(key, make) if has_few_blocks(model) else make()


def has_few_blocks(model: ModelSpec) -> bool:
    """Whether the model has so few different blocks that what is worked out of them may be kept in memory."""
    return model.counted is None or len(model.counted.blocks) <= _MOST_KEPT


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
    return _shaped(weight, (*weight.shape[:-1], -(-weight.shape[-1] // ranks)))


def distribute_experts(weight: Weight, ranks: int) -> Weight:
    """Divide the number of experts by the number of ranks, rounded up. Each expert stays whole."""
    return replace(weight, copies=-(-weight.copies // ranks))


def _rows(weight: Weight, rows: int) -> Weight:
    return weight if rows == weight.shape[0] else _shaped(weight, (rows, *weight.shape[1:]))


def _shaped(weight: Weight, shape: tuple[int, ...]) -> Weight:
    return replace(weight, shape=shape)
