"""Encoders of speech that several models share: Parakeet, wav2vec 2.0's convolutions, and Seamless's conformer.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. A conformer's layer is two half MLPs around attention and a
convolution, each behind a norm, with one more norm at its end.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, layer_norm, linear, parameter
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.config import MAX_LAYERS, Config

__all__ = ["conformer", "feature_extractor", "parakeet", "positional_convolution"]

_ENCODER: Final = Part.ENCODER


def parakeet(config: Config, path: str) -> tuple[Block, ...]:
    """NVIDIA's FastConformer: convolutions that halve the frames, then conformer layers with relative positions."""
    width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    bias, conv_bias = config.flag("attention_bias"), config.flag("convolution_bias")
    heads = config.integer("num_attention_heads")
    size = config.maybe_integer("head_dim") or max(1, width // heads)
    layer = layer_norm("norm_out", width)
    for name in ("feed_forward1", "feed_forward2"):
        layer += linear(f"{name}.linear1", width, inner, bias=bias) + linear(f"{name}.linear2", inner, width, bias=bias)
        layer += layer_norm(f"norm_{name}", width)
    for name in "qkv":
        layer += linear(f"self_attn.{name}_proj", width, heads * size, bias=bias)
    layer += linear("self_attn.o_proj", heads * size, width, bias=bias)
    layer += linear("self_attn.relative_k_proj", width, heads * size) + layer_norm("norm_self_att", width)
    layer += parameter("self_attn.bias_u", heads, size) + parameter("self_attn.bias_v", heads, size)
    layer += convolution("conv.pointwise_conv1", 2 * width, 1, inputs=width, bias=conv_bias)
    layer += convolution("conv.depthwise_conv", width, config.integer("conv_kernel_size"), bias=conv_bias)
    layer += layer_norm("conv.norm", width)
    layer += convolution("conv.pointwise_conv2", width, 1, inputs=width, bias=conv_bias) + layer_norm("norm_conv", width)
    return (
        Block(kind="convolution", weights=_subsampling(config, width, path), part=_ENCODER),
        Block(kind="encoder_layer", weights=layer, part=_ENCODER, count=config.number_of_layers()),
    )


def _subsampling(config: Config, width: int, path: str) -> tuple[Weight, ...]:
    """One full convolution, then depthwise and pointwise pairs, until the frames are as few as ``subsampling_factor`` says."""
    channels, kernel = config.integer("subsampling_conv_channels"), config.integer("subsampling_conv_kernel_size")
    stride, factor = config.integer("subsampling_conv_stride", minimum=2), config.integer("subsampling_factor", minimum=2)
    layers = factor.bit_length() - 1
    weights = _conv2d(f"{path}.subsampling.layers.0", channels, 1, kernel)
    for i in range(1, layers):
        weights += _conv2d(f"{path}.subsampling.layers.{3 * i - 1}", channels, 1, kernel)
        weights += _conv2d(f"{path}.subsampling.layers.{3 * i}", channels, channels, 1)
    bins = config.integer("num_mel_bins") // stride**layers
    return weights + linear(f"{path}.subsampling.linear", channels * max(1, bins), width, bias=True)


def _conv2d(path: str, channels: int, inputs: int, kernel: int) -> tuple[Weight, ...]:
    weights = parameter(f"{path}.weight", channels, inputs, kernel, kernel, role=WeightRole.CONV)
    return weights + parameter(f"{path}.bias", channels, role=WeightRole.BIAS)


def feature_extractor(config: Config, path: str) -> tuple[Weight, ...]:
    """Wav2vec 2.0's convolutions over samples. The norm is a group norm after the first, or a layer norm after each."""
    widths = config.integers("conv_dim", minimum=1) or []
    kernels = config.integers("conv_kernel", minimum=1) or []
    if not widths or len(widths) != len(kernels):
        raise config.error("conv_kernel", kernels, f"a list of {len(widths)} numbers, one for each convolution")
    everywhere = config.text("feat_extract_norm") == "layer"
    weights: tuple[Weight, ...] = ()
    for i, (width, kernel) in enumerate(zip(widths, kernels, strict=True)):
        inputs = widths[i - 1] if i else 1
        weights += convolution(f"{path}.conv_layers.{i}.conv", width, kernel, inputs=inputs, bias=config.flag("conv_bias"))
        if everywhere or i == 0:
            weights += layer_norm(f"{path}.conv_layers.{i}.layer_norm", width)
    return weights


def positional_convolution(config: Config, width: int, path: str) -> tuple[Weight, ...]:
    """A grouped convolution that stands for positions; its weight is kept as a direction and one length a tap."""
    kernel, groups = config.integer("num_conv_pos_embeddings"), config.integer("num_conv_pos_embedding_groups")
    return (
        *parameter(f"{path}.conv.parametrizations.weight.original0", 1, 1, kernel),
        *parameter(f"{path}.conv.parametrizations.weight.original1", width, width // groups, kernel, role=WeightRole.CONV),
        *parameter(f"{path}.conv.bias", width, role=WeightRole.BIAS),
    )


def conformer(config: Config, path: str) -> tuple[Block, ...] | None:
    """Seamless's speech encoder with its adapter, of the first or the second version; ``None`` for other positions."""
    second = config.model_type == "seamless_m4t_v2"
    kind = config.text("position_embeddings_type")
    if kind != ("relative_key" if second else "relative"):
        return None
    width, inner = config.integer("hidden_size"), config.integer("speech_encoder_intermediate_size")
    heads = config.integer("speech_encoder_attention_heads")
    size = max(1, width // heads)
    own = _attention("self_attn", width)
    if second:
        reach = config.integer("left_max_position_embeddings", minimum=0)
        rows = reach + config.integer("right_max_position_embeddings", minimum=0) + 1
        own += embedding("self_attn.distance_embedding", rows, size)
    else:
        own += linear("self_attn.linear_pos", width, width)
        own += parameter("self_attn.pos_bias_u", heads, size) + parameter("self_attn.pos_bias_v", heads, size)
    layer = own + layer_norm("self_attn_layer_norm", width) + layer_norm("final_layer_norm", width)
    for name in ("ffn1", "ffn2"):
        layer += _feed_forward(name, width, inner) + layer_norm(f"{name}_layer_norm", width)
    layer += convolution("conv_module.pointwise_conv1", 2 * width, 1, inputs=width)
    layer += convolution("conv_module.depthwise_conv", width, config.integer("conv_depthwise_kernel_size"))
    layer += layer_norm("conv_module.depthwise_layer_norm" if second else "conv_module.batch_norm", width)
    layer += convolution("conv_module.pointwise_conv2", width, 1, inputs=width) + layer_norm("conv_module.layer_norm", width)
    features = config.integer("feature_projection_input_dim")
    outside = layer_norm(f"{path}.feature_projection.layer_norm", features)
    outside += linear(f"{path}.feature_projection.projection", features, width, bias=True)
    outside += layer_norm(f"{path}.encoder.layer_norm", width) + _feed_forward(f"{path}.intermediate_ffn", width, inner)
    outside += layer_norm(f"{path}.inner_layer_norm", width)
    count = config.integer("speech_encoder_layers", maximum=MAX_LAYERS)
    out = [
        Block(kind="encoder_layer", weights=layer, part=_ENCODER, count=count),
        Block(kind="encoder", weights=outside, part=_ENCODER),
    ]
    adapters = config.integer("num_adapter_layers", minimum=0, maximum=MAX_LAYERS) if config.flag("add_adapter") else 0
    if adapters:
        out.append(Block(kind="adapter", weights=_adapter(config, width, inner), part=_ENCODER, count=adapters))
    return tuple(out)


def _adapter(config: Config, width: int, inner: int) -> tuple[Weight, ...]:
    kernel = config.integer("adaptor_kernel_size")
    weights = _attention("self_attn", width) + _feed_forward("ffn", width, inner) + layer_norm("ffn_layer_norm", width)
    for name in ("residual", "self_attn"):
        weights += layer_norm(f"{name}_layer_norm", width)
        weights += convolution(f"{name}_conv", 2 * width, kernel, inputs=width, bias=True)
    return weights


def _attention(path: str, width: int) -> tuple[Weight, ...]:
    names = ("linear_q", "linear_k", "linear_v", "linear_out")
    return tuple(weight for name in names for weight in linear(f"{path}.{name}", width, width, bias=True))


def _feed_forward(path: str, width: int, inner: int) -> tuple[Weight, ...]:
    up = linear(f"{path}.intermediate_dense", width, inner, bias=True)
    return up + linear(f"{path}.output_dense", inner, width, bias=True)
