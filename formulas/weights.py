"""The parameters of a model: tensors with shapes, grouped into blocks. Storage formats and files are elsewhere.

A :class:`Weight` is one tensor, or several equal ones such as experts. Its path is spelled as in checkpoints, so that a
quantisation can name the tensors that it leaves out. A :class:`Block` is a group of tensors that belong together (an attention,
an MLP, a layer of a tower). :class:`Weights` is the whole model. Every count is exact: it is the number of parameters of the
model that the reference code builds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cached_property
from math import prod

from hwcalc.formulas.record import Record

__all__ = [
    "Block",
    "Part",
    "Weight",
    "WeightRole",
    "Weights",
    "attention",
    "embedding",
    "experts",
    "gated_mlp",
    "indexer",
    "latent_attention",
    "layer_norm",
    "linear",
    "parameter",
    "plain_mlp",
    "rms_norm",
]


class WeightRole(enum.StrEnum):
    """What a tensor is for. Quantisation covers the linear tensors and leaves out most others."""

    EMBEDDING = "embedding"
    HEAD = "head"
    LINEAR = "linear"
    EXPERT = "expert"
    ROUTER = "router"
    CONV = "conv"
    NORM = "norm"
    BIAS = "bias"
    OTHER = "other"


class Part(enum.StrEnum):
    """Which part of the model a block belongs to."""

    LANGUAGE = "language"
    ENCODER = "encoder"
    VISION = "vision"
    AUDIO = "audio"
    PROJECTOR = "projector"
    MTP = "mtp"
    """Multi-token-prediction layers. The checkpoint has them, but the model that transformers builds does not."""

    @property
    def is_tower(self) -> bool:
        """Whether the part reads images or sound."""
        return self in (Part.VISION, Part.AUDIO)


class Weight(Record):
    """One tensor, or ``copies`` equal ones. ``shape`` is the stored shape: (out_features, in_features) for a linear layer.

    ``active`` is the number of copies that one token uses; ``None`` means all.
    """

    path: str
    shape: tuple[int, ...]
    role: WeightRole
    copies: int = 1
    active: int | None = None

    @property
    def elements(self) -> int:
        """Parameters of all copies."""
        return prod(self.shape) * self.copies

    @property
    def active_elements(self) -> int:
        """Parameters that one token uses."""
        return prod(self.shape) * (self.copies if self.active is None else min(self.active, self.copies))


class Block(Record):
    """Tensors that belong together, how many layers have them, and the numbers of those layers if they are known."""

    kind: str
    weights: tuple[Weight, ...]
    part: Part = Part.LANGUAGE
    count: int = 1
    layers: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Parameters of all layers that have this block."""
        return self.count * sum(weight.elements for weight in self.weights)

    @property
    def active_elements(self) -> int:
        """Parameters of this block that one token uses."""
        return self.count * sum(weight.active_elements for weight in self.weights)


class Weights(Record):
    """All blocks of a model. A shared tensor (a tied head) is listed once."""

    blocks: tuple[Block, ...]

    @property
    def total(self) -> int:
        """Unique parameters, without multi-token prediction."""
        return sum(block.elements for block in self.blocks if block.part is not Part.MTP)

    @property
    def active(self) -> int:
        """Parameters that one token of text uses: all except the experts that it does not use. Towers count."""
        return sum(block.active_elements for block in self.blocks if block.part is not Part.MTP)

    @cached_property
    def has_towers(self) -> bool:
        """Whether the model reads images or sound."""
        return any(block.part.is_tower for block in self.blocks)

    @property
    def mtp(self) -> int:
        """Parameters of the multi-token-prediction layers."""
        return sum(block.elements for block in self.blocks if block.part is Part.MTP)


def parameter(path: str, *shape: int, role: WeightRole = WeightRole.OTHER) -> tuple[Weight, ...]:
    """One tensor that is no linear layer, norm or embedding."""
    return (Weight(path=path, shape=shape, role=role),)


def linear(
    path: str, in_features: int, out_features: int, *, bias: bool = False, role: WeightRole = WeightRole.LINEAR
) -> tuple[Weight, ...]:
    """A linear layer: out x in numbers, and out more for a bias.

    >>> sum(weight.elements for weight in linear("q_proj", 3, 4, bias=True))
    16
    """
    weights = (Weight(path=f"{path}.weight", shape=(out_features, in_features), role=role),)
    return weights if not bias else (*weights, Weight(path=f"{path}.bias", shape=(out_features,), role=WeightRole.BIAS))


def rms_norm(path: str, width: int) -> tuple[Weight, ...]:
    """One scale per channel."""
    return (Weight(path=f"{path}.weight", shape=(width,), role=WeightRole.NORM),)


def layer_norm(path: str, width: int, *, bias: bool = True) -> tuple[Weight, ...]:
    """One scale per channel, and one shift per channel if it has a bias."""
    shift = (Weight(path=f"{path}.bias", shape=(width,), role=WeightRole.NORM),) if bias else ()
    return (*rms_norm(path, width), *shift)


def embedding(path: str, rows: int, width: int) -> tuple[Weight, ...]:
    """A table with one row for each token or position."""
    return (Weight(path=f"{path}.weight", shape=(rows, width), role=WeightRole.EMBEDDING),)


def attention(
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    path: str = "self_attn",
    fused: str = "",
    output: str = "o_proj",
) -> tuple[Weight, ...]:
    """Query, key, value and output projections of MHA, GQA and MQA.

    Some models keep queries, keys and values in one tensor; ``fused`` is its name.

    >>> sum(weight.elements for weight in attention(4096, 32, 8, 128))
    41943040

    4,096 x (4,096 + 1,024 + 1,024) + 4,096 x 4,096 = 41,943,040.
    """
    value = head_dim if v_head_dim is None else v_head_dim
    out = linear(f"{path}.{output}", num_attention_heads * value, hidden_size, bias=o_bias)
    queries, keys, values = num_attention_heads * head_dim, num_key_value_heads * head_dim, num_key_value_heads * value
    if fused:
        return (*linear(f"{path}.{fused}", hidden_size, queries + keys + values, bias=qkv_bias), *out)
    return (
        *linear(f"{path}.q_proj", hidden_size, queries, bias=qkv_bias),
        *linear(f"{path}.k_proj", hidden_size, keys, bias=qkv_bias),
        *linear(f"{path}.v_proj", hidden_size, values, bias=qkv_bias),
        *out,
    )


def latent_attention(
    hidden_size: int,
    num_attention_heads: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    q_lora_rank: int | None = None,
    *,
    bias: bool = False,
    path: str = "self_attn",
) -> tuple[Weight, ...]:
    """Multi-head latent attention (MLA): queries and the key/value latent pass through low ranks, each with a norm.

    ``bias`` adds a bias to the down projections and to the output. Without ``q_lora_rank`` queries are one matrix.

    >>> sum(weight.elements for weight in latent_attention(8, 2, 4, 3, 1, 2, 6))
    218

    Down 6 x 8 + (4 + 1) x 8 = 88, norms 6 + 4 = 10, up 2 x (3 + 1) x 6 = 48 and 2 x (3 + 2) x 4 = 40, out 8 x 2 x 2 = 32.
    """
    heads = num_attention_heads
    queries = heads * (qk_nope_head_dim + qk_rope_head_dim)
    if q_lora_rank is None:
        weights = linear(f"{path}.q_proj", hidden_size, queries)
    else:
        weights = (
            *linear(f"{path}.q_a_proj", hidden_size, q_lora_rank, bias=bias),
            *rms_norm(f"{path}.q_a_layernorm", q_lora_rank),
            *linear(f"{path}.q_b_proj", q_lora_rank, queries),
        )
    return (
        *weights,
        *linear(f"{path}.kv_a_proj_with_mqa", hidden_size, kv_lora_rank + qk_rope_head_dim, bias=bias),
        *rms_norm(f"{path}.kv_a_layernorm", kv_lora_rank),
        *linear(f"{path}.kv_b_proj", kv_lora_rank, heads * (qk_nope_head_dim + v_head_dim)),
        *linear(f"{path}.o_proj", heads * v_head_dim, hidden_size, bias=bias),
    )


def indexer(
    hidden_size: int, query_width: int, index_n_heads: int, index_head_dim: int, *, path: str = "self_attn.indexer"
) -> tuple[Weight, ...]:
    """The indexer of DeepSeek sparse attention: queries from the query latent, one key, and a weight per head.

    >>> sum(weight.elements for weight in indexer(8, 6, 2, 4))
    104

    Queries 2 x 4 x 6 = 48, key 4 x 8 = 32 with its norm 2 x 4 = 8, weights 2 x 8 = 16.
    """
    return (
        *linear(f"{path}.wq_b", query_width, index_n_heads * index_head_dim),
        *linear(f"{path}.wk", hidden_size, index_head_dim),
        *layer_norm(f"{path}.k_norm", index_head_dim),
        # The reference code keeps the weights of the heads in 16 bits where it quantises the rest.
        *linear(f"{path}.weights_proj", hidden_size, index_n_heads, role=WeightRole.OTHER),
    )


def gated_mlp(
    hidden_size: int, intermediate_size: int, *, bias: bool = False, path: str = "mlp", fused: str = ""
) -> tuple[Weight, ...]:
    """Gate, up and down: three matrices, or two if gate and up are one matrix, named ``fused``."""
    down = linear(f"{path}.down_proj", intermediate_size, hidden_size, bias=bias)
    if fused:
        return (*linear(f"{path}.{fused}", hidden_size, 2 * intermediate_size, bias=bias), *down)
    return (
        *linear(f"{path}.gate_proj", hidden_size, intermediate_size, bias=bias),
        *linear(f"{path}.up_proj", hidden_size, intermediate_size, bias=bias),
        *down,
    )


def plain_mlp(
    hidden_size: int, intermediate_size: int, *, bias: bool = True, path: str = "mlp", names: tuple[str, str] = ("fc1", "fc2")
) -> tuple[Weight, ...]:
    """Up and down: two matrices."""
    return (
        *linear(f"{path}.{names[0]}", hidden_size, intermediate_size, bias=bias),
        *linear(f"{path}.{names[1]}", intermediate_size, hidden_size, bias=bias),
    )


def experts(weights: Iterable[Weight], count: int, active: int) -> tuple[Weight, ...]:
    """``count`` copies of the tensors of one expert. A token uses ``active`` of them."""
    return tuple(
        Weight(
            path=weight.path,
            shape=weight.shape,
            role=WeightRole.EXPERT if weight.role is WeightRole.LINEAR else weight.role,
            copies=weight.copies * count,
            active=weight.copies * active,
        )
        for weight in weights
    )
