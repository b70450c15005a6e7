"""Models that write down speech (SeamlessM4T, SpeechT5, Moonshine, Canary and Cohere's ASR) or make sound (Dia and MusicGen).

Mirrors ``modeling_*.py`` of those names, of Parakeet and of wav2vec 2.0 in transformers 5.23. A layer of a conformer is attention
and a convolution between two half MLPs, each behind a norm, with one more norm at the end. Classes of SeamlessM4T and SpeechT5
that speak have vocoders, which nobody weighs.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import CrossAttention, Layer
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.model import Note
from hwcalc.parsers.blocks import Attends, Weighed, bart_attention, output_head, rms_norms, stack, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config, architecture_of
from hwcalc.parsers.encoder_decoder.bart import BART_KEYS, EncoderDecoder, Keys, encoder_layers
from hwcalc.parsers.reading import Reading, attention_dims
from hwcalc.parsers.towers.build import LLAMA_NAMES, Style, conv, encoder_layer, linears, needed


def parakeet(config: Config, path: str) -> tuple[Block, ...]:
    """FastConformer of NVIDIA: convolutions that halve the frames, then conformer layers with relative positions."""
    width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    bias, conv_bias = config.flag("attention_bias"), config.flag("convolution_bias")
    heads, norm = config.integer("num_attention_heads"), w.layer_norm
    size = config.maybe_integer("head_dim") or max(1, width // heads)
    layer = norm("norm_out", width)
    for name in ("feed_forward1", "feed_forward2"):
        layer += w.plain_mlp(width, inner, bias=bias, path=name, names=("linear1", "linear2")) + norm(f"norm_{name}", width)
    layer += linears("self_attn", LLAMA_NAMES[:3], width, heads * size, bias=bias)
    layer += w.linear("self_attn.o_proj", heads * size, width, bias=bias)
    layer += w.linear("self_attn.relative_k_proj", width, heads * size) + norm("norm_self_att", width)
    layer += w.parameter("self_attn.bias_u", heads, size) + w.parameter("self_attn.bias_v", heads, size)
    layer += w.convolution("conv.pointwise_conv1", 2 * width, 1, inputs=width, bias=conv_bias)
    layer += w.convolution("conv.depthwise_conv", width, config.integer("conv_kernel_size"), bias=conv_bias)
    layer += norm("conv.norm", width)
    layer += w.convolution("conv.pointwise_conv2", width, 1, inputs=width, bias=conv_bias) + norm("norm_conv", width)
    # A full convolution, then pairs of a depthwise and a pointwise one. Together they divide the frames by subsampling_factor.
    channels, kernel = config.integer("subsampling_conv_channels"), config.integer("subsampling_conv_kernel_size")
    stride, factor = config.integer("subsampling_conv_stride", minimum=2), config.integer("subsampling_factor", minimum=2)
    halvings, base = factor.bit_length() - 1, f"{path}.subsampling"
    front = conv(f"{base}.layers.0", channels, 1, kernel, kernel)
    for i in range(1, halvings):
        front += conv(f"{base}.layers.{3 * i - 1}", channels, 1, kernel, kernel)
        front += conv(f"{base}.layers.{3 * i}", channels, channels, 1, 1)
    bins = config.integer("num_mel_bins") // stride**halvings
    front += w.linear(f"{base}.linear", channels * max(1, bins), width, bias=True)
    return (
        Block(kind="convolution", weights=front, part=Part.ENCODER),
        Block(kind="encoder_layer", weights=layer, part=Part.ENCODER, count=config.number_of_layers()),
    )


def wav2vec2(config: Config, path: str) -> tuple[Block, ...] | None:
    """wav2vec 2.0. ``None`` for a model with adapters."""
    if config.flag("add_adapter") or config.get("adapter_attn_dim") is not None:
        return None
    width = config.integer("hidden_size")
    front = wav2vec2_front(config, width, f"{path}.feature_extractor", f"{path}.feature_projection", f"{path}.encoder")
    front += w.layer_norm(f"{path}.encoder.layer_norm", width) + masked_span(config, width, path)
    mlp = ("feed_forward.intermediate_dense", "feed_forward.output_dense")
    style = Style(attention="attention", mlp=mlp, norms=("layer_norm", "final_layer_norm"))
    layer = encoder_layer(config, style, f"{path}.encoder.layers", width, config.integer("intermediate_size"))
    return (
        Block(kind="convolution", weights=front, part=Part.AUDIO),
        Block(kind="encoder_layer", weights=layer, part=Part.AUDIO, count=config.number_of_layers()),
    )


def wav2vec2_front(config: Config, width: int, extractor: str, projection: str, encoder: str) -> Weighed:
    """The weights before the layers of wav2vec 2.0: convolutions over samples, a projection, and a convolution for positions.

    There is a group norm after the first convolution, or a layer norm after each.
    """
    widths, kernels = config.integers("conv_dim", minimum=1) or [], config.integers("conv_kernel", minimum=1) or []
    if not widths or len(widths) != len(kernels):
        raise config.error("conv_kernel", kernels, f"a list of {len(widths)} numbers, one for each convolution")
    everywhere = config.text("feat_extract_norm") == "layer"
    front: Weighed = ()
    for i, (out, kernel) in enumerate(zip(widths, kernels, strict=True)):
        path, inputs = f"{extractor}.conv_layers.{i}", widths[i - 1] if i else 1
        front += w.convolution(f"{path}.conv", out, kernel, inputs=inputs, bias=config.flag("conv_bias"))
        if everywhere or i == 0:
            front += w.layer_norm(f"{path}.layer_norm", out)
    front += w.layer_norm(f"{projection}.layer_norm", widths[-1])
    front += w.linear(f"{projection}.projection", widths[-1], width, bias=True)
    # A grouped convolution. Its weight is stored as a direction and a length for each tap.
    kernel, groups = config.integer("num_conv_pos_embeddings"), config.integer("num_conv_pos_embedding_groups")
    path = f"{encoder}.pos_conv_embed.conv"
    front += w.parameter(f"{path}.parametrizations.weight.original0", 1, 1, kernel)
    front += w.parameter(f"{path}.parametrizations.weight.original1", width, width // groups, kernel, role=WeightRole.CONV)
    return front + w.parameter(f"{path}.bias", width, role=WeightRole.BIAS)


def masked_span(config: Config, width: int, path: str) -> Weighed:
    """The embedding that hides spans in training, unless both probabilities are zero."""
    masks = config.number("mask_time_prob", 0.05) > 0 or config.number("mask_feature_prob", 0.0) > 0
    return w.parameter(f"{path}.masked_spec_embed", width) if masks else ()


def conformer(config: Config, path: str) -> tuple[Block, ...] | None:
    """The speech encoder of Seamless, version 1 or 2, with its adapter. ``None`` for other kinds of positions."""
    second = config.model_type == "seamless_m4t_v2"
    if config.text("position_embeddings_type") != ("relative_key" if second else "relative"):
        return None
    width, inner = config.integer("hidden_size"), config.integer("speech_encoder_intermediate_size")
    features = config.integer("feature_projection_input_dim")
    outside = w.layer_norm(f"{path}.feature_projection.layer_norm", features)
    outside += w.linear(f"{path}.feature_projection.projection", features, width, bias=True)
    outside += w.layer_norm(f"{path}.encoder.layer_norm", width) + _feed_forward(f"{path}.intermediate_ffn", width, inner)
    outside += w.layer_norm(f"{path}.inner_layer_norm", width)
    layer, count = _conformer_layer(config, width, inner, second), config.integer("speech_encoder_layers", maximum=MAX_LAYERS)
    out = [
        Block(kind="encoder_layer", weights=layer, part=Part.ENCODER, count=count),
        Block(kind="encoder", weights=outside, part=Part.ENCODER),
    ]
    adapters = config.integer("num_adapter_layers", minimum=0, maximum=MAX_LAYERS) if config.flag("add_adapter") else 0
    if adapters:
        kernel = config.integer("adaptor_kernel_size")
        adapter = (
            _square_attention("self_attn", width) + _feed_forward("ffn", width, inner) + w.layer_norm("ffn_layer_norm", width)
        )
        for name in ("residual", "self_attn"):
            adapter += w.layer_norm(f"{name}_layer_norm", width)
            adapter += w.convolution(f"{name}_conv", 2 * width, kernel, inputs=width, bias=True)
        out.append(Block(kind="adapter", weights=adapter, part=Part.ENCODER, count=adapters))
    return tuple(out)


def _conformer_layer(config: Config, width: int, inner: int, second: bool) -> Weighed:
    """One layer of the speech encoder of Seamless, of its ``second`` version or the first."""
    heads = config.integer("speech_encoder_attention_heads")
    size = max(1, width // heads)
    layer = _square_attention("self_attn", width)
    if second:
        reach = config.integer("left_max_position_embeddings", minimum=0)
        rows = reach + config.integer("right_max_position_embeddings", minimum=0) + 1
        layer += w.embedding("self_attn.distance_embedding", rows, size)
    else:
        layer += w.linear("self_attn.linear_pos", width, width)
        layer += w.parameter("self_attn.pos_bias_u", heads, size) + w.parameter("self_attn.pos_bias_v", heads, size)
    layer += w.layer_norm("self_attn_layer_norm", width) + w.layer_norm("final_layer_norm", width)
    for name in ("ffn1", "ffn2"):
        layer += _feed_forward(name, width, inner) + w.layer_norm(f"{name}_layer_norm", width)
    layer += w.convolution("conv_module.pointwise_conv1", 2 * width, 1, inputs=width)
    layer += w.convolution("conv_module.depthwise_conv", width, config.integer("conv_depthwise_kernel_size"))
    layer += w.layer_norm("conv_module.depthwise_layer_norm" if second else "conv_module.batch_norm", width)
    layer += w.convolution("conv_module.pointwise_conv2", width, 1, inputs=width)
    return layer + w.layer_norm("conv_module.layer_norm", width)


def _square_attention(path: str, width: int) -> Weighed:
    return linears(path, ("linear_q", "linear_k", "linear_v", "linear_out"), width, width, bias=True)


def _feed_forward(path: str, width: int, inner: int) -> Weighed:
    return w.plain_mlp(width, inner, path=path, names=("intermediate_dense", "output_dense"))


def _seamless(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """One embedding table for all, NLLB's text encoder or a conformer, and NLLB's decoder."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [Block(kind="embedding", weights=w.embedding("shared", vocab, width))]
    if kind == "text":
        out += _text_stack(config, "encoder", encoder_layers(config))
    elif (architecture_of(config.raw) or "").endswith("ForSpeechToText"):
        speech = conformer(config, "speech_encoder")
        if speech is None:
            return None
        out += speech
    else:
        return None
    out += _text_stack(config, "decoder", reading.layers)
    if tied_head(config, top):
        return out
    sides = ("text_encoder", "text_decoder") if kind == "text" else ("text_decoder",)
    out += [Block(kind="embedding", weights=w.embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
    return out + output_head("lm_head", width, vocab)


def _text_stack(config: Config, side: str, layers: tuple[Layer, ...]) -> list[Block]:
    """Layers with a norm before each block, and one norm after the last layer."""
    width, encoder = config.integer("hidden_size"), side == "encoder"
    part = Part.ENCODER if encoder else Part.LANGUAGE
    mlp = w.plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="ffn") + w.layer_norm("ffn_layer_norm", width)
    out = stack(layers, width, part, attention=bart_attention("self_attn", width), mlp=mlp)
    out.append(Block(kind="norm", weights=w.layer_norm(f"text_{side}.layer_norm", width), part=part))
    cross = bart_attention("cross_attention", width, cross=True)
    return out if encoder else out + stack(layers, width, cross_attention=cross)


def _speecht5(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """SpeechT5: wav2vec's front, one table of relative positions for all encoder layers, and computed positions elsewhere."""
    if not (architecture_of(config.raw) or "").endswith("ForSpeechToText"):
        return None
    width, vocab, path = config.integer("hidden_size"), config.integer("vocab_size"), "encoder.prenet"
    front = wav2vec2_front(config, width, f"{path}.feature_encoder", f"{path}.feature_projection", path)
    front += masked_span(config, width, path) + w.layer_norm("encoder.wrapped_encoder.layer_norm", width)
    heads, rows = config.integer("encoder_attention_heads"), 2 * config.integer("encoder_max_relative_position")
    front += w.embedding("encoder.wrapped_encoder.embed_positions.pe_k", rows, max(1, width // heads))
    out = [
        Block(kind="convolution", weights=front, part=Part.ENCODER),
        Block(kind="embedding", weights=w.embedding("decoder.prenet.embed_tokens", vocab, width)),
    ]
    names = ("intermediate_dense", "output_dense")
    for side, layers, path in (("encoder", encoder_layers(config), "attention"), ("decoder", reading.layers, "self_attn")):
        mlp = w.plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="feed_forward", names=names)
        part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
        own = bart_attention(path, width, norm="self_attn")
        out += stack(layers, width, part, attention=own, mlp=mlp + w.layer_norm("final_layer_norm", width))
    out += stack(reading.layers, width, cross_attention=bart_attention("encoder_attn", width, cross=True))
    return out if tied_head(config, top) else out + output_head("text_decoder_postnet.lm_head", width, vocab)


def _moonshine(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Moonshine: three convolutions over the samples. The decoder's MLP is gated, and norms have no bias."""
    width, inner, vocab = config.integer("hidden_size"), config.integer("intermediate_size"), config.integer("vocab_size")
    front = w.convolution("encoder.conv1", width, 127) + w.convolution("encoder.conv2", 2 * width, 7, inputs=width, bias=True)
    front += w.convolution("encoder.conv3", width, 3, inputs=2 * width, bias=True) + w.layer_norm("encoder.groupnorm", width)
    own = Attends(path="self_attn", biased="qkv" if config.flag("attention_bias") else "")
    norms = rms_norms(width, "input_layernorm", "post_attention_layernorm")
    gate = w.linear("mlp.fc1", width, 2 * inner, bias=True) + w.linear("mlp.fc2", inner, width, bias=True)
    encoder = _moonshine_keys("encoder").layers(config, cross=False)
    front += w.rms_norm("encoder.layer_norm", width)
    out = [Block(kind="convolution", weights=front, part=Part.ENCODER)]
    out += stack(encoder, width, Part.ENCODER, attention=own, mlp=w.plain_mlp(width, inner), norm=norms)
    norms += w.rms_norm("final_layernorm", width)
    cross = replace(own, path="encoder_attn", cross=True)
    out += stack(reading.layers, width, cross_attention=cross, attention=own, mlp=gate, norm=norms)
    table = w.embedding("decoder.embed_tokens", vocab, width) + w.rms_norm("decoder.norm", width)
    out.append(Block(kind="embedding", weights=table))
    return out if tied_head(config, top) else out + output_head("proj_out", width, vocab)


def _moonshine_keys(side: str) -> Keys:
    return Keys(count=(f"{side}_num_hidden_layers",), heads=f"{side}_num_attention_heads", kv_heads=f"{side}_num_key_value_heads")


def _transcriber(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Canary and Cohere's ASR: a decoder after a Parakeet encoder. The head has a bias, tied or not."""
    encoder, decoder = needed(config, "encoder_config"), reading.config
    width, vocab = decoder.integer("hidden_size"), decoder.integer("vocab_size")
    outside = w.embedding("decoder.embed_tokens", vocab, width)
    outside += w.layer_norm("decoder.norm", width) + w.layer_norm("decoder.embedding_layernorm", width)
    if decoder is config:  # Cohere's
        outside += w.embedding("decoder.pos_emb", decoder.integer("max_position_embeddings"), width)
        outside += w.linear("decoder.proj", encoder.integer("hidden_size"), width, bias=True)
    own = Attends(path="self_attn", biased="qkvo" if decoder.flag("attention_bias") else "")
    cross = replace(own, path="encoder_attn", cross=True)
    names = ("input_layernorm", "post_attention_layernorm", "final_layernorm")
    norms = tuple(weight for name in names for weight in w.layer_norm(name, width))
    out = [*parakeet(encoder, "encoder"), Block(kind="embedding", weights=outside)]
    mlp = w.plain_mlp(width, decoder.integer("intermediate_size"))
    out += stack(reading.layers, width, attention=own, cross_attention=cross, mlp=mlp, norm=norms)
    return out + output_head("proj_out", width, vocab, tied=tied_head(decoder, top), bias=True)


def _dia_layers(config: Config, cross: bool) -> tuple[Layer, ...]:
    """Self attention has grouped queries. Cross attention has its own number of heads."""
    count, own = config.number_of_layers(), attention_dims(config).full()
    heads, kv_heads = config.integer("cross_num_attention_heads"), config.integer("cross_num_key_value_heads")
    width = config.integer("cross_head_dim")
    config.ignore("cross_hidden_size")
    over = CrossAttention(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, v_head_dim=width)
    return ((own, over) if cross else (own,),) * count


def _dia(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Dia: bytes go in. The decoder has one table and one head for all audio channels together."""
    encoder, decoder = needed(config, "encoder_config"), reading.config
    width, wide = encoder.integer("hidden_size"), decoder.integer("hidden_size")
    channels = decoder.integer("num_channels") * decoder.integer("vocab_size")
    own = Attends(path="self_attention")
    over = Attends(path="cross_attention", cross=True, source=decoder.integer("cross_hidden_size"))
    layers: tuple[Layer, ...] = ((attention_dims(encoder).full(),),) * encoder.number_of_layers()
    table = w.embedding("encoder.embedding", encoder.integer("vocab_size"), width)
    out = [Block(kind="embedding", weights=table, part=Part.ENCODER)]
    mlp = w.gated_mlp(width, encoder.integer("intermediate_size"), fused="gate_up_proj")
    norms = rms_norms(width, "pre_sa_norm", "post_sa_norm")
    out += stack(layers, width, Part.ENCODER, attention=own, mlp=mlp, norm=norms)
    out.append(Block(kind="norm", weights=w.rms_norm("encoder.norm", width), part=Part.ENCODER))
    out.append(Block(kind="embedding", weights=w.embedding("decoder.embeddings.embed", channels, wide)))
    mlp = w.gated_mlp(wide, decoder.integer("intermediate_size"), fused="gate_up_proj")
    norms = rms_norms(wide, "pre_sa_norm", "pre_ca_norm", "pre_mlp_norm")
    out += stack(reading.layers, wide, attention=own, cross_attention=over, mlp=mlp, norm=norms)
    out.append(Block(kind="norm", weights=w.rms_norm("decoder.norm", wide)))
    return out + output_head("logits_dense", wide, channels)


def _musicgen(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """The decoder of MusicGen: a table and a head for each codebook. The melody model has no cross attention."""
    width, vocab, books = config.integer("hidden_size"), config.integer("vocab_size"), config.integer("num_codebooks")
    own = bart_attention("self_attn", width, biased="")
    cross = bart_attention("encoder_attn", width, cross=True, biased="")
    inner = config.integer("ffn_dim")
    mlp = w.linear("fc1", width, inner) + w.linear("fc2", inner, width) + w.layer_norm("final_layer_norm", width)
    return [
        Block(kind="embedding", weights=w.embedding("decoder.embed_tokens", vocab + 1, width), count=books),
        Block(kind="norm", weights=w.layer_norm("decoder.layer_norm", width)),
        *stack(reading.layers, width, attention=own, mlp=mlp),
        Block(kind="head", weights=w.linear("lm_heads", width, vocab, role=WeightRole.HEAD), count=books),
        *(stack(reading.layers, width, cross_attention=cross) if config.model_type == "musicgen_decoder" else ()),
    ]


SEAMLESS: Final = EncoderDecoder(keys=BART_KEYS, weights=_seamless, forms=("both", "text"))
SPEECHT5: Final = EncoderDecoder(keys=BART_KEYS, weights=_speecht5)
MOONSHINE: Final = EncoderDecoder(keys=_moonshine_keys("decoder"), weights=_moonshine)
DECODER: Final = EncoderDecoder()
"""The decoder of Canary, and the whole streaming model of Moonshine."""
CANARY: Final = EncoderDecoder(weights=_transcriber, part="decoder_config")
COHERE: Final = EncoderDecoder(weights=_transcriber)
_KEYS: Final = Keys()
_AS_PREFIX: Final = Note(
    code="encoder-as-prefix",
    message="The text and melody that condition this model stand before its own tokens: --seq counts them too.",
)
DIA_DECODER: Final = EncoderDecoder(special=_dia_layers)
DIA: Final = EncoderDecoder(special=_dia_layers, weights=_dia, part="decoder_config")
MUSICGEN_DECODER: Final = EncoderDecoder(keys=_KEYS, weights=_musicgen, forms=("decoder",))
MUSICGEN: Final = EncoderDecoder(keys=_KEYS, part="decoder")
MELODY_DECODER: Final = EncoderDecoder(keys=_KEYS, weights=_musicgen, forms=("decoder",), crosses=False, notes=(_AS_PREFIX,))
MELODY: Final = EncoderDecoder(keys=_KEYS, part="decoder", crosses=False, notes=(_AS_PREFIX,))
