"""Encoders of speech that several models share: Parakeet, wav2vec 2.0, and Seamless's conformer.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. A conformer's layer is two half MLPs around attention and a
convolution, each behind a norm, with one more norm at its end.
"""

from __future__ import annotations

from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, layer_norm, linear, parameter, plain_mlp
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.towers.build import Style, conv, encoder_layer, linears

__all__ = ["conformer", "masked_span", "parakeet", "wav2vec2", "wav2vec2_front"]


def parakeet(config: Config, path: str) -> tuple[Block, ...]:
    """NVIDIA's FastConformer: convolutions that halve the frames, then conformer layers with relative positions."""
    width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    bias, conv_bias = config.flag("attention_bias"), config.flag("convolution_bias")
    heads = config.integer("num_attention_heads")
    size = config.maybe_integer("head_dim") or max(1, width // heads)
    layer = layer_norm("norm_out", width)
    for name in ("feed_forward1", "feed_forward2"):
        layer += plain_mlp(width, inner, bias=bias, path=name, names=("linear1", "linear2")) + layer_norm(f"norm_{name}", width)
    layer += linears("self_attn", ("q_proj", "k_proj", "v_proj"), width, heads * size, bias=bias)
    layer += linear("self_attn.o_proj", heads * size, width, bias=bias)
    layer += linear("self_attn.relative_k_proj", width, heads * size) + layer_norm("norm_self_att", width)
    layer += parameter("self_attn.bias_u", heads, size) + parameter("self_attn.bias_v", heads, size)
    layer += convolution("conv.pointwise_conv1", 2 * width, 1, inputs=width, bias=conv_bias)
    layer += convolution("conv.depthwise_conv", width, config.integer("conv_kernel_size"), bias=conv_bias)
    layer += layer_norm("conv.norm", width)
    layer += convolution("conv.pointwise_conv2", width, 1, inputs=width, bias=conv_bias) + layer_norm("norm_conv", width)
    return (
        Block(kind="convolution", weights=_subsampling(config, width, path), part=Part.ENCODER),
        Block(kind="encoder_layer", weights=layer, part=Part.ENCODER, count=config.number_of_layers()),
    )


def _subsampling(config: Config, width: int, path: str) -> Weighed:
    """One full convolution, then depthwise and pointwise pairs, until the frames are as few as ``subsampling_factor`` says."""
    channels, kernel = config.integer("subsampling_conv_channels"), config.integer("subsampling_conv_kernel_size")
    stride, factor = config.integer("subsampling_conv_stride", minimum=2), config.integer("subsampling_factor", minimum=2)
    layers, base = factor.bit_length() - 1, f"{path}.subsampling"
    weights = conv(f"{base}.layers.0", channels, 1, kernel, kernel)
    for i in range(1, layers):
        weights += conv(f"{base}.layers.{3 * i - 1}", channels, 1, kernel, kernel)
        weights += conv(f"{base}.layers.{3 * i}", channels, channels, 1, 1)
    bins = config.integer("num_mel_bins") // stride**layers
    return weights + linear(f"{base}.linear", channels * max(1, bins), width, bias=True)


def wav2vec2(config: Config, path: str) -> tuple[Block, ...] | None:
    """wav2vec 2.0; ``None`` with adapters."""
    if config.flag("add_adapter") or config.get("adapter_attn_dim") is not None:
        return None
    width = config.integer("hidden_size")
    front = wav2vec2_front(config, width, f"{path}.feature_extractor", f"{path}.feature_projection", f"{path}.encoder")
    front += layer_norm(f"{path}.encoder.layer_norm", width) + masked_span(config, width, path)
    style = Style(
        attention="attention",
        mlp=("feed_forward.intermediate_dense", "feed_forward.output_dense"),
        norms=("layer_norm", "final_layer_norm"),
    )
    layer = encoder_layer(config, style, f"{path}.encoder.layers", width, config.integer("intermediate_size"))
    return (
        Block(kind="convolution", weights=front, part=Part.AUDIO),
        Block(kind="encoder_layer", weights=layer, part=Part.AUDIO, count=config.number_of_layers()),
    )


def wav2vec2_front(config: Config, width: int, extractor: str, projection: str, encoder: str) -> Weighed:
    """What stands before wav2vec 2.0's layers: convolutions over samples, a projection, and a convolution for positions."""
    last = (config.integers("conv_dim", minimum=1) or [1])[-1]
    front = _convolutions(config, extractor) + layer_norm(f"{projection}.layer_norm", last)
    front += linear(f"{projection}.projection", last, width, bias=True)
    # A grouped convolution, whose weight is kept as a direction and one length a tap.
    kernel, groups = config.integer("num_conv_pos_embeddings"), config.integer("num_conv_pos_embedding_groups")
    path = f"{encoder}.pos_conv_embed.conv"
    front += parameter(f"{path}.parametrizations.weight.original0", 1, 1, kernel)
    front += parameter(f"{path}.parametrizations.weight.original1", width, width // groups, kernel, role=WeightRole.CONV)
    return front + parameter(f"{path}.bias", width, role=WeightRole.BIAS)


def _convolutions(config: Config, path: str) -> Weighed:
    """wav2vec 2.0's convolutions over samples. The norm is a group norm after the first, or a layer norm after each."""
    widths = config.integers("conv_dim", minimum=1) or []
    kernels = config.integers("conv_kernel", minimum=1) or []
    if not widths or len(widths) != len(kernels):
        raise config.error("conv_kernel", kernels, f"a list of {len(widths)} numbers, one for each convolution")
    everywhere = config.text("feat_extract_norm") == "layer"
    weights: Weighed = ()
    for i, (width, kernel) in enumerate(zip(widths, kernels, strict=True)):
        inputs = widths[i - 1] if i else 1
        weights += convolution(f"{path}.conv_layers.{i}.conv", width, kernel, inputs=inputs, bias=config.flag("conv_bias"))
        if everywhere or i == 0:
            weights += layer_norm(f"{path}.conv_layers.{i}.layer_norm", width)
    return weights


def masked_span(config: Config, width: int, path: str) -> Weighed:
    """The embedding that hides spans in training, unless both probabilities are zero."""
    masks = config.number("mask_time_prob", 0.05) > 0 or config.number("mask_feature_prob", 0.0) > 0
    return parameter(f"{path}.masked_spec_embed", width) if masks else ()


def conformer(config: Config, path: str) -> tuple[Block, ...] | None:
    """Seamless's speech encoder with its adapter, of the first or the second version; ``None`` for other positions."""
    second = config.model_type == "seamless_m4t_v2"
    if config.text("position_embeddings_type") != ("relative_key" if second else "relative"):
        return None
    width, inner = config.integer("hidden_size"), config.integer("speech_encoder_intermediate_size")
    features = config.integer("feature_projection_input_dim")
    outside = layer_norm(f"{path}.feature_projection.layer_norm", features)
    outside += linear(f"{path}.feature_projection.projection", features, width, bias=True)
    outside += layer_norm(f"{path}.encoder.layer_norm", width) + _feed_forward(f"{path}.intermediate_ffn", width, inner)
    outside += layer_norm(f"{path}.inner_layer_norm", width)
    layer, count = _conformer_layer(config, width, inner, second), config.integer("speech_encoder_layers", maximum=MAX_LAYERS)
    out = [
        Block(kind="encoder_layer", weights=layer, part=Part.ENCODER, count=count),
        Block(kind="encoder", weights=outside, part=Part.ENCODER),
    ]
    adapters = config.integer("num_adapter_layers", minimum=0, maximum=MAX_LAYERS) if config.flag("add_adapter") else 0
    if adapters:
        out.append(Block(kind="adapter", weights=_adapter(config, width, inner), part=Part.ENCODER, count=adapters))
    return tuple(out)


def _conformer_layer(config: Config, width: int, inner: int, second: bool) -> Weighed:
    heads = config.integer("speech_encoder_attention_heads")
    size = max(1, width // heads)
    layer = _attention("self_attn", width)
    if second:
        reach = config.integer("left_max_position_embeddings", minimum=0)
        rows = reach + config.integer("right_max_position_embeddings", minimum=0) + 1
        layer += embedding("self_attn.distance_embedding", rows, size)
    else:
        layer += linear("self_attn.linear_pos", width, width)
        layer += parameter("self_attn.pos_bias_u", heads, size) + parameter("self_attn.pos_bias_v", heads, size)
    layer += layer_norm("self_attn_layer_norm", width) + layer_norm("final_layer_norm", width)
    for name in ("ffn1", "ffn2"):
        layer += _feed_forward(name, width, inner) + layer_norm(f"{name}_layer_norm", width)
    layer += convolution("conv_module.pointwise_conv1", 2 * width, 1, inputs=width)
    layer += convolution("conv_module.depthwise_conv", width, config.integer("conv_depthwise_kernel_size"))
    layer += layer_norm("conv_module.depthwise_layer_norm" if second else "conv_module.batch_norm", width)
    layer += convolution("conv_module.pointwise_conv2", width, 1, inputs=width)
    return layer + layer_norm("conv_module.layer_norm", width)


def _adapter(config: Config, width: int, inner: int) -> Weighed:
    kernel = config.integer("adaptor_kernel_size")
    weights = _attention("self_attn", width) + _feed_forward("ffn", width, inner) + layer_norm("ffn_layer_norm", width)
    for name in ("residual", "self_attn"):
        weights += layer_norm(f"{name}_layer_norm", width)
        weights += convolution(f"{name}_conv", 2 * width, kernel, inputs=width, bias=True)
    return weights


def _attention(path: str, width: int) -> Weighed:
    return linears(path, ("linear_q", "linear_k", "linear_v", "linear_out"), width, width, bias=True)


def _feed_forward(path: str, width: int, inner: int) -> Weighed:
    return plain_mlp(width, inner, path=path, names=("intermediate_dense", "output_dense"))
