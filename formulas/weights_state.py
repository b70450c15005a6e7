"""Weights of the layers that keep a state: Mamba, delta nets, lightning attention, RG-LRU, RWKV, mLSTM, short convolutions.

Arguments are named as in :mod:`hwcalc.formulas.ssm` and :mod:`hwcalc.formulas.linear`. ``hidden_size`` is the width of the
residual stream.
"""

from __future__ import annotations

from hwcalc.formulas.weights import Weight, WeightRole, layer_norm, linear, parameter, rms_norm

__all__ = [
    "convolution",
    "gated_delta_net",
    "kimi_delta_attention",
    "lightning_attention",
    "mamba1",
    "mamba2",
    "matrix_lstm",
    "rg_lru",
    "rwkv4",
    "short_convolution",
]

_BIAS = WeightRole.BIAS


def convolution(
    path: str, channels: int, kernel: int, *, inputs: int = 1, bias: bool = False, outputs: int | None = None
) -> tuple[Weight, ...]:
    """A one-dimensional convolution. ``inputs`` is the number of channels that each output sees: one if it is depthwise.

    >>> sum(weight.elements for weight in convolution("conv1d", 6, 4, bias=True))
    30

    Six channels x four taps, and six biases.
    """
    count = channels if outputs is None else outputs
    weights = parameter(f"{path}.weight", count, inputs, kernel, role=WeightRole.CONV)
    return weights if not bias else (*weights, *parameter(f"{path}.bias", count, role=_BIAS))


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
        inner += rms_norm(f"{path}.dt_layernorm", dt_rank)
        inner += rms_norm(f"{path}.b_layernorm", d_state)
        inner += rms_norm(f"{path}.c_layernorm", d_state)
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
    out = "out_proj"
    if projections == "fused":
        inner = linear(f"{path}.in_proj_qkvz", hidden_size, 2 * keys + 2 * values)
        inner += linear(f"{path}.in_proj_ba", hidden_size, 2 * num_value_heads)
    elif projections == "split":
        inner = linear(f"{path}.in_proj_qkv", hidden_size, 2 * keys + values)
        inner += linear(f"{path}.in_proj_z", hidden_size, values)
        inner += linear(f"{path}.in_proj_b", hidden_size, num_value_heads)
        inner += linear(f"{path}.in_proj_a", hidden_size, num_value_heads)
    else:
        widths = {"q": keys, "k": keys, "v": values, "g": values, "a": num_value_heads, "b": num_value_heads}
        inner = tuple(weight for name, width in widths.items() for weight in linear(f"{path}.{name}_proj", hidden_size, width))
        out = "o_proj"
    return (
        *inner,
        *convolution(f"{path}.conv1d", 2 * keys + values, d_conv),
        *parameter(f"{path}.dt_bias", num_value_heads, role=_BIAS),
        *parameter(f"{path}.A_log", num_value_heads),
        *rms_norm(f"{path}.{'o_norm' if out == 'o_proj' else 'norm'}", value_head_dim),
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
        return (
            *linear(f"{path}.{name}_a_proj", hidden_size, head_dim),
            *linear(f"{path}.{name}_b_proj", head_dim, width),
        )

    return (
        *(weight for name in "qkv" for weight in linear(f"{path}.{name}_proj", hidden_size, width)),
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
    gates = (
        weight
        for name in ("input_gate", "recurrent_gate")
        for weight in (
            *parameter(f"{path}.rg_lru.{name}_weight", num_blocks, block, block),
            *parameter(f"{path}.rg_lru.{name}_bias", num_blocks, block, role=_BIAS),
        )
    )
    return (
        *linear(f"{path}.linear_y", hidden_size, lru_width, bias=True),
        *linear(f"{path}.linear_x", hidden_size, lru_width, bias=True),
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
        *linear(f"{path}.q", hidden_size, qk_width, bias=bias),
        *linear(f"{path}.k", hidden_size, qk_width, bias=bias),
        *linear(f"{path}.v", hidden_size, v_width, bias=bias),
        *linear(f"{path}.ogate_preact", hidden_size, v_width, bias=bias),
        *linear(f"{path}.igate_preact", hidden_size, num_heads, bias=True),
        *linear(f"{path}.fgate_preact", hidden_size, num_heads, bias=True),
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
