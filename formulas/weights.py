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
        """True if the part reads images or sound."""
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
        """True if the model reads images or sound."""
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


def _linears(path: str, in_features: int, widths: dict[str, int], *, bias: bool = False) -> tuple[Weight, ...]:
    """Linear layers that read the same, each with its name and its width."""
    return tuple(weight for name, width in widths.items() for weight in linear(f"{path}.{name}", in_features, width, bias=bias))


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
    widths = {fused: queries + keys + values} if fused else {"q_proj": queries, "k_proj": keys, "v_proj": values}
    return (*_linears(path, hidden_size, widths, bias=qkv_bias), *out)


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
    widths = {fused: 2 * intermediate_size} if fused else {"gate_proj": intermediate_size, "up_proj": intermediate_size}
    down = linear(f"{path}.down_proj", intermediate_size, hidden_size, bias=bias)
    return (*_linears(path, hidden_size, widths, bias=bias), *down)


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
    found = []
    for weight in weights:
        role = WeightRole.EXPERT if weight.role is WeightRole.LINEAR else weight.role
        copies, used = weight.copies * count, weight.copies * active
        found.append(Weight(path=weight.path, shape=weight.shape, role=role, copies=copies, active=used))
    return tuple(found)


_BIAS = WeightRole.BIAS


def convolution(path: str, channels: int, kernel: int, *, inputs: int = 1, bias: bool = False) -> tuple[Weight, ...]:
    """A one-dimensional convolution. ``inputs`` is the number of channels that each output sees: one if it is depthwise.

    >>> sum(weight.elements for weight in convolution("conv1d", 6, 4, bias=True))
    30

    Six channels x four taps, and six biases.
    """
    weights = parameter(f"{path}.weight", channels, inputs, kernel, role=WeightRole.CONV)
    return weights if not bias else (*weights, *parameter(f"{path}.bias", channels, role=_BIAS))


def mamba1(
    hidden_size: int,
    d_inner: int,
    d_state: int,
    d_conv: int,
    dt_rank: int,
    *,
    bias: bool = False,
    conv_bias: bool = True,
    norms: bool = False,
    heads: int | None = None,
    path: str = "mixer",
) -> tuple[Weight, ...]:
    """Mamba-1. ``norms`` adds the norms of Jamba over the time step, B and C. With ``heads`` the inner projections are per head.

    >>> sum(weight.elements for weight in mamba1(768, 1536, 16, 4, 48))
    3770880

    Input 768 x 3,072, convolution 1,536 x 4 + 1,536, x_proj 1,536 x (48 + 2 x 16), time step 48 x 1,536 + 1,536,
    A 1,536 x 16, D 1,536, output 1,536 x 768.
    """
    mixed = dt_rank + 2 * d_state
    if heads is None:
        inner = (
            *linear(f"{path}.x_proj", d_inner, mixed),
            *linear(f"{path}.dt_proj", dt_rank, d_inner, bias=True),
            *parameter(f"{path}.A_log", d_inner, d_state),
            *parameter(f"{path}.D", d_inner),
        )
    else:
        width = d_inner // heads
        inner = (
            *parameter(f"{path}.x_proj_weight", heads, mixed, width),
            *parameter(f"{path}.dt_proj_weight", heads, width, dt_rank),
            *parameter(f"{path}.dt_proj_bias", heads, width, role=_BIAS),
            *parameter(f"{path}.A_log", heads, width, d_state),
            *parameter(f"{path}.D", heads, width),
        )
    if norms:
        for name, width in {"dt": dt_rank, "b": d_state, "c": d_state}.items():
            inner += rms_norm(f"{path}.{name}_layernorm", width)
    return (
        *linear(f"{path}.in_proj", hidden_size, 2 * d_inner, bias=bias),
        *convolution(f"{path}.conv1d", d_inner, d_conv, bias=conv_bias),
        *inner,
        *linear(f"{path}.out_proj", d_inner, hidden_size, bias=bias),
    )


def mamba2(
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    d_state: int,
    n_groups: int,
    d_conv: int,
    *,
    bias: bool = False,
    out_bias: bool | None = None,
    conv_bias: bool = True,
    norm: bool = True,
    path: str = "mixer",
) -> tuple[Weight, ...]:
    """Mamba-2: one projection to gate, x, B, C and time steps. ``out_bias`` defaults to ``bias``.

    >>> sum(weight.elements for weight in mamba2(4096, 128, 64, 128, 8, 4))
    109635968

    d_inner is 8,192, and the convolution is 8,192 + 2 x 8 x 128 = 10,240 wide. Input 4,096 x (8,192 + 10,240 + 128),
    convolution 10,240 x 4 + 10,240, three numbers per head, norm 8,192, output 8,192 x 4,096.
    """
    d_inner = num_heads * head_dim
    convolved = d_inner + 2 * n_groups * d_state
    return (
        *linear(f"{path}.in_proj", hidden_size, d_inner + convolved + num_heads, bias=bias),
        *convolution(f"{path}.conv1d", convolved, d_conv, bias=conv_bias),
        *parameter(f"{path}.dt_bias", num_heads, role=_BIAS),
        *parameter(f"{path}.A_log", num_heads),
        *parameter(f"{path}.D", num_heads),
        *(rms_norm(f"{path}.norm", d_inner) if norm else ()),
        *linear(f"{path}.out_proj", d_inner, hidden_size, bias=bias if out_bias is None else out_bias),
    )


def gated_delta_net(
    hidden_size: int,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    d_conv: int,
    *,
    projections: str = "fused",
    path: str = "linear_attn",
) -> tuple[Weight, ...]:
    """A gated delta net. ``projections`` says how the input projections are split into tensors: ``fused`` (Qwen3-Next),
    ``split`` (Qwen3.5) or ``separate`` (OLMo Hybrid).

    >>> sum(weight.elements for weight in gated_delta_net(2048, 16, 32, 128, 128, 4))
    33718464

    Keys are 2,048 wide and values 4,096. Queries, keys, values and gate 2,048 x (2 x 2,048 + 2 x 4,096), two scalars per
    value head 2,048 x 64, convolution 8,192 x 4, 64 learned numbers, norm 128, output 4,096 x 2,048.
    """
    keys, values = num_key_heads * key_head_dim, num_value_heads * value_head_dim
    norm, out = "norm", "out_proj"
    if projections == "fused":
        widths = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * num_value_heads}
    elif projections == "split":
        scalars = {"in_proj_b": num_value_heads, "in_proj_a": num_value_heads}
        widths = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, **scalars}
    else:
        widths = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values}
        widths |= {"a_proj": num_value_heads, "b_proj": num_value_heads}
        norm, out = "o_norm", "o_proj"
    return (
        *_linears(path, hidden_size, widths),
        *convolution(f"{path}.conv1d", 2 * keys + values, d_conv),
        *parameter(f"{path}.dt_bias", num_value_heads, role=_BIAS),
        *parameter(f"{path}.A_log", num_value_heads),
        *rms_norm(f"{path}.{norm}", value_head_dim),
        *linear(f"{path}.{out}", values, hidden_size),
    )


def kimi_delta_attention(
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    d_conv: int,
    *,
    low_rank_decay: bool = True,
    low_rank_gate: bool = True,
    path: str = "self_attn",
) -> tuple[Weight, ...]:
    """Kimi delta attention. Decay and output gate are bottlenecks of width ``head_dim`` or full matrices.

    >>> sum(weight.elements for weight in kimi_delta_attention(2304, 32, 128, 4))
    39514272

    Queries, keys, values and output 4 x 2,304 x 4,096, convolution 3 x 4,096 x 4, two bottlenecks of 2,304 x 128 +
    128 x 4,096, beta 2,304 x 32, decay 32 + 4,096, norm 128.
    """
    width = num_heads * head_dim

    def gate(name: str, low_rank: bool) -> tuple[Weight, ...]:
        if not low_rank:
            return linear(f"{path}.{name}_proj", hidden_size, width)
        return (*linear(f"{path}.{name}_a_proj", hidden_size, head_dim), *linear(f"{path}.{name}_b_proj", head_dim, width))

    return (
        *_linears(path, hidden_size, {"q_proj": width, "k_proj": width, "v_proj": width}),
        *(weight for name in "qkv" for weight in convolution(f"{path}.{name}_conv1d", width, d_conv)),
        *parameter(f"{path}.A_log", num_heads),
        *parameter(f"{path}.dt_bias", width, role=_BIAS),
        *gate("f", low_rank_decay),
        *linear(f"{path}.b_proj", hidden_size, num_heads),
        *gate("g", low_rank_gate),
        *rms_norm(f"{path}.o_norm", head_dim),
        *linear(f"{path}.o_proj", width, hidden_size),
    )


def lightning_attention(hidden_size: int, num_heads: int, head_dim: int, *, path: str = "self_attn") -> tuple[Weight, ...]:
    """Lightning attention of MiniMax: queries, keys and values in one matrix, a norm, a gate and an output.

    >>> sum(weight.elements for weight in lightning_attention(4096, 32, 128))
    83890176

    Five matrices of 4,096 x 4,096 and a norm of 4,096.
    """
    width = num_heads * head_dim
    return (
        *linear(f"{path}.qkv_proj", hidden_size, 3 * width),
        *rms_norm(f"{path}.norm", width),
        *linear(f"{path}.output_gate", hidden_size, width),
        *linear(f"{path}.out_proj", width, hidden_size),
    )


def rg_lru(hidden_size: int, lru_width: int, d_conv: int, num_blocks: int, *, path: str = "temporal_block") -> tuple[Weight, ...]:
    """Griffin's recurrent block: two branches in, a convolution, the RG-LRU with block-diagonal gates, one branch out.

    >>> sum(weight.elements for weight in rg_lru(2560, 2560, 4, 10))
    20999680

    Three matrices of 2,560 x 2,560 with biases, convolution 2,560 x 4 + 2,560, two gates of 10 x 256 x 256 + 2,560, and one
    decay per channel.
    """
    block = lru_width // num_blocks
    gates: tuple[Weight, ...] = ()
    for name in ("input_gate", "recurrent_gate"):
        gates += parameter(f"{path}.rg_lru.{name}_weight", num_blocks, block, block)
        gates += parameter(f"{path}.rg_lru.{name}_bias", num_blocks, block, role=_BIAS)
    return (
        *_linears(path, hidden_size, {"linear_y": lru_width, "linear_x": lru_width}, bias=True),
        *convolution(f"{path}.conv_1d", lru_width, d_conv, bias=True),
        *parameter(f"{path}.rg_lru.recurrent_param", lru_width),
        *gates,
        *linear(f"{path}.linear_out", lru_width, hidden_size, bias=True),
    )


def rwkv4(hidden_size: int, attention_hidden_size: int, *, path: str = "attention") -> tuple[Weight, ...]:
    """Time mixing of RWKV-4: receptance, key, value and output, and two decays and three mixes per channel.

    >>> sum(weight.elements for weight in rwkv4(4096, 4096))
    67129344

    Four matrices of 4,096 x 4,096 and five vectors of 4,096.
    """
    return (
        *(parameter(f"{path}.{name}", attention_hidden_size)[0] for name in ("time_decay", "time_first")),
        *(parameter(f"{path}.time_mix_{name}", 1, 1, hidden_size)[0] for name in ("key", "value", "receptance")),
        *(linear(f"{path}.{name}", hidden_size, attention_hidden_size)[0] for name in ("key", "value", "receptance")),
        *linear(f"{path}.output", attention_hidden_size, hidden_size),
    )


def matrix_lstm(
    hidden_size: int, num_heads: int, qk_width: int, v_width: int, *, bias: bool = False, path: str = "mlstm_layer"
) -> tuple[Weight, ...]:
    """The mLSTM of xLSTM: queries, keys, values, an output gate, and two gates of one number per head, always with biases.

    >>> sum(weight.elements for weight in matrix_lstm(4096, 8, 2048, 4096))
    67178512

    4,096 x (2 x 2,048 + 3 x 4,096), two gates of 4,096 x 8 + 8, norm 4,096.
    """
    return (
        *_linears(path, hidden_size, {"q": qk_width, "k": qk_width, "v": v_width, "ogate_preact": v_width}, bias=bias),
        *_linears(path, hidden_size, {"igate_preact": num_heads, "fgate_preact": num_heads}, bias=True),
        *layer_norm(f"{path}.multihead_norm", v_width, bias=bias),
        *linear(f"{path}.out_proj", v_width, hidden_size, bias=bias),
    )


def short_convolution(hidden_size: int, d_conv: int, *, bias: bool = False, path: str = "conv") -> tuple[Weight, ...]:
    """LFM2's gated convolution: three branches in, a depthwise convolution, one branch out.

    >>> sum(weight.elements for weight in short_convolution(2048, 3))
    16783360

    2,048 x 6,144 + 2,048 x 3 + 2,048 x 2,048.
    """
    return (
        *linear(f"{path}.in_proj", hidden_size, 3 * hidden_size, bias=bias),
        *convolution(f"{path}.conv", hidden_size, d_conv, bias=bias),
        *linear(f"{path}.out_proj", hidden_size, hidden_size, bias=bias),
    )
