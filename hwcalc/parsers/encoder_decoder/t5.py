"""T5 and its descendants: mT5, UMT5, LongT5, Switch, UDOP, Pop2Piano, Pix2Struct and T5Gemma.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Files of T5 1.1, Flan and mT5 say that the head is not tied.
transformers ties it even so, unless the two tables in the checkpoint differ, as they do in these checkpoints.
T5Gemma has two stacks of Gemma 2 or 3. The second one attends to the output of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers import blocks
from hwcalc.parsers.blocks import Attends, Named, Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.bart import EncoderDecoder, Keys
from hwcalc.parsers.reading import Reading, attention_dims, build_layers, every, full_layer, read_layer_types, windowed_layer
from hwcalc.parsers.towers.build import UnknownTowerError, linears, needed, patch_conv, tower

_KEYS: Final = Keys(count=("num_decoder_layers", "num_layers"), heads="num_heads", head_dim="d_kv")
_QKVO: Final = {letter: letter for letter in "qkvo"}


class _T5(EncoderDecoder):
    """How a model type differs from T5."""

    keys: Keys = _KEYS
    forms: tuple[str, ...] = ("both", "body", "encoder")
    biases_everywhere: bool = False
    """True if every layer has a table of relative positions, not only the first."""
    sparse: bool = False
    spreads: bool = False
    """True if the encoder may attend to global tokens, each of which represents a stretch of the input."""
    headed: bool | None = None
    """Whether the head is a tensor of its own; ``None`` if the file decides."""
    before: Callable[[Config, int], list[Block]] | None = None
    after: Callable[[Config, int], list[Block]] | None = None
    """Other blocks, listed before the two sides or after them."""

    def blocks(self, config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
        """All blocks of a class of this form."""
        width, vocab = config.integer("d_model"), config.integer("vocab_size")
        out = [Block(kind="embedding", weights=embedding("shared", vocab, width))]
        untied = not blocks.tied_head(config, top) if self.sparse else config.get("tie_word_embeddings") is False
        if self.sparse and untied:
            sides = ("encoder",) if kind == "encoder" else ("encoder", "decoder")
            out += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
        if kind == "both" and (untied if self.headed is None else self.headed):
            out += blocks.output_head("lm_head", width, vocab)
        encoder: tuple[Layer, ...] = ((_KEYS.dims(config).full(),),) * config.number_of_layers("num_layers")
        if self.before is not None:
            out += self.before(config, width)
        out += self._side(config, width, "encoder", encoder)
        if kind != "encoder":
            out += self._side(config, width, "decoder", reading.layers)
        return out + (self.after(config, width) if self.after is not None else [])

    def _side(self, config: Config, width: int, side: str, layers: tuple[Layer, ...]) -> list[Block]:
        """Layers and final norm of one side."""
        part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
        # One layer in so many has experts. Where the file names no number of sparse layers, experts are on layer 1 alone.
        count = len(layers)
        named = (config.maybe_integer(f"num_sparse_{side}_layers", minimum=0) or 0) if self.sparse else 0
        step = (count // named if named > 0 else count) if self.sparse else 0
        if self.sparse:
            # A step that the file gives wins over the number of sparse layers.
            given = config.maybe_integer(f"{side}_sparse_step", minimum=0)
            step = step if given is None else given
        sparse = [step > 0 and (step == 1 or i % step == 1) for i in range(count)]
        places = [(layer, i == 0 or self.biases_everywhere, sparse[i]) for i, layer in enumerate(layers)]
        out = blocks.repeated(places, lambda place: self._layer(config, width, side, *place), part)
        return [*out, Block(kind="norm", weights=rms_norm(f"{side}.final_layer_norm", width), part=part)]

    def _layer(self, config: Config, width: int, side: str, layer: Layer, biased: bool, routed: bool) -> Iterator[Named]:
        encoder, dims, path = side == "encoder", blocks.own_dims(layer, width), "layer.0.SelfAttention"
        spread = encoder and self.spreads and config.text("encoder_attention_type") == "transient-global"
        own = blocks.projections(path, width, dims, _QKVO)
        if spread:
            own += rms_norm(f"{path}.global_input_layer_norm", width)
        yield "attention", own + rms_norm("layer.0.layer_norm", width)
        if biased:
            names = ("relative_attention_bias", "global_relative_attention_bias") if spread else ("relative_attention_bias",)
            heads = dims.num_attention_heads
            yield "positions", tuple(weight for name in names for weight in _biases(config, f"{path}.{name}", heads))
        if not encoder:
            cross = blocks.projections("layer.1.EncDecAttention", width, blocks.cross_dims(layer, width), _QKVO)
            yield "cross_attention", cross + rms_norm("layer.1.layer_norm", width)
        if routed:
            count, bias = config.integer("num_experts"), config.flag("router_bias")
            router = linear("layer.2.mlp.router.classifier", width, count, bias=bias, role=WeightRole.ROUTER)
            yield "moe", experts(self._mlp(config, width, "layer.2.mlp.experts"), count, 1) + router
        else:
            yield "mlp", self._mlp(config, width, "layer.2.DenseReluDense")
        yield "norm", rms_norm("layer.2.layer_norm", width)

    def _mlp(self, config: Config, width: int, path: str) -> Weighed:
        """One matrix up and one down, or gate, up and down where ``feed_forward_proj`` says gated."""
        inner = config.integer("d_ff")
        if not self.sparse and (config.text("feed_forward_proj") or "").startswith("gated"):
            return _gated(width, inner, path)
        return linear(f"{path}.wi", width, inner) + linear(f"{path}.wo", inner, width)


def _gated(width: int, inner: int, path: str) -> Weighed:
    return linear(f"{path}.wi_0", width, inner) + linear(f"{path}.wi_1", width, inner) + linear(f"{path}.wo", inner, width)


def _biases(config: Config, path: str, heads: int) -> Weighed:
    return embedding(path, config.integer("relative_attention_num_buckets"), heads)


def _composers(config: Config, width: int) -> list[Block]:
    """Pop2Piano: a vector for each composer."""
    table = embedding("mel_conditioner.embedding", config.integer("composer_vocab_size"), width)
    return [Block(kind="embedding", weights=table, part=Part.AUDIO)]


def _udop(config: Config, width: int) -> list[Block]:
    """UDOP: the place of a word on the page, and for each side patches of the page and biases by distance on the page."""
    args = config.sequence("relative_bias_args")
    types = ["1d", "horizontal", "vertical"] if args is None else [arg.get("type") for arg in args if isinstance(arg, dict)]
    cells, heads = config.integer("max_2d_position_embeddings"), config.integer("num_heads")
    places: Weighed = ()
    for axis in "xy":
        places += embedding(f"encoder.cell_2d_embedding.{axis}_position_embeddings", cells, width)
    out = [Block(kind="embedding", weights=places, part=Part.ENCODER)]
    for side, path in (("encoder", "patch_embed.proj"), ("decoder", "decoder.embed_patches.proj")):
        biases: Weighed = ()
        for i, name in enumerate(types):
            if name != "1d":  # The layers have that table.
                biases += _biases(config, f"{side}.relative_bias.biases.{i}.relative_attention_bias", heads)
        part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
        out.append(Block(kind="positions", weights=biases, part=part))
        out.append(Block(kind="patches", weights=patch_conv(config, path, width), part=Part.VISION))
    return out


def _pix2struct(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """A decoder like T5's after an encoder of image patches, which has positions by row and by column."""
    vision = needed(config, "vision_config")
    width, inner = vision.integer("hidden_size"), vision.integer("num_attention_heads") * vision.integer("d_kv")
    path = "encoder.encoder.layer"
    layer = linears(f"{path}.attention", ("query", "key", "value"), width, inner)
    layer += linear(f"{path}.attention.output", inner, width) + _gated(width, vision.integer("d_ff"), f"{path}.mlp")
    layer += rms_norm(f"{path}.pre_mlp_layer_norm", width) + rms_norm(f"{path}.pre_attention_layer_norm", width)
    patches = linear("encoder.embeddings.patch_projection", vision.integer("patch_embed_hidden_size"), width, bias=True)
    for name in ("row", "column"):
        patches += embedding(f"encoder.embeddings.{name}_embedder", vision.integer("seq_len"), width)
    out = [
        Block(kind="patches", weights=patches + rms_norm("encoder.layernorm", width), part=Part.VISION),
        Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers()),
    ]
    text = reading.config
    width, vocab = text.integer("hidden_size"), text.integer("vocab_size")
    names = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "attention.output"}
    both: Weighed = ()
    for place, dims in (("self_attention", blocks.own_dims), ("encoder_decoder_attention", blocks.cross_dims)):
        both += blocks.projections(place, width, dims(reading.layers[0], width), names) + rms_norm(f"{place}.layer_norm", width)
    mlp = _gated(width, text.integer("d_ff"), "mlp.DenseReluDense") + rms_norm("mlp.layer_norm", width)
    outside = embedding("decoder.embed_tokens", vocab, width) + rms_norm("decoder.final_layer_norm", width)
    outside += _biases(text, "layer.0.self_attention.attention.relative_attention_bias", text.integer("num_heads"))
    out += [Block(kind="embedding", weights=outside), *blocks.stack(reading.layers, width, attention=both, mlp=mlp)]
    return out if blocks.tied_head(text, top) else out + blocks.output_head("decoder.lm_head", width, vocab)


def _windowed(period: int) -> Callable[[Config, bool], tuple[Layer, ...]]:
    """Layers of Gemma with a window, except the last of each period. Cross attention reads all tokens of the encoder."""

    def layers(config: Config, cross: bool) -> tuple[Layer, ...]:
        count = config.number_of_layers()
        types = read_layer_types(config, count)
        if types is None:
            pattern = config.maybe_integer("sliding_window_pattern") or period
            types = every(pattern, count, "full_attention", "sliding_attention")
        config.ignore("sliding_window_pattern", "_sliding_window_pattern")
        own = build_layers(config, types, {"full_attention": full_layer, "sliding_attention": windowed_layer})
        over = attention_dims(config).cross()
        return tuple((*layer, over) if cross else layer for layer in own)

    return layers


def _gemma_table(config: Config, path: str, part: Part) -> Block:
    table = embedding(f"{path}.embed_tokens", config.integer("vocab_size"), config.integer("hidden_size"))
    return Block(kind="embedding", weights=table, part=part)


def _gemma_encoder(config: Config, path: str, *, head_norms: bool = False) -> list[Block]:
    layers: tuple[Layer, ...] = ((attention_dims(config).full(),),) * config.number_of_layers()
    return _gemma_side(config, layers, path, Part.ENCODER, head_norms=head_norms)


def _gemma_side(
    config: Config, layers: tuple[Layer, ...], path: str, part: Part, *, source: int | None = None, head_norms: bool = False
) -> list[Block]:
    """Layers of Gemma 2 or 3 with four norms each, and the final norm.

    With ``source``, each layer also has cross attention to an encoder of that width, and two norms around it.
    """
    width, biased = config.integer("hidden_size"), "qkvo" if config.flag("attention_bias") else ""
    names = ("self_attn", "feedforward", *(("cross_attn",) if source is not None else ()))
    own = Attends(path="self_attn", biased=biased, head_norms=head_norms)
    mlp = gated_mlp(width, config.integer("intermediate_size"))
    norms = tuple(weight for name in names for when in ("pre", "post") for weight in rms_norm(f"{when}_{name}_layernorm", width))
    out = blocks.stack(layers, width, part, attention=own, mlp=mlp, norm=norms)
    out.append(Block(kind="norm", weights=rms_norm(f"{path}.norm", width), part=part))
    if source is not None:
        cross = Attends(path="cross_attn", cross=True, source=source, biased=biased)
        out += blocks.stack(layers, width, part, cross_attention=cross)
    return out


def _t5gemma(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Each side has its own embeddings. The decoder's layers attend to the encoder as well."""
    encoder, decoder = needed(config, "encoder"), reading.config
    out = [_gemma_table(encoder, "encoder", Part.ENCODER), *_gemma_encoder(encoder, "encoder")]
    if kind == "encoder":
        return out
    out.append(_gemma_table(decoder, "decoder", Part.LANGUAGE))
    out += _gemma_side(decoder, reading.layers, "decoder", Part.LANGUAGE, source=encoder.integer("hidden_size"))
    if kind == "both" and not blocks.tied_head(decoder, top):
        out += blocks.output_head("lm_head.out_proj", decoder.integer("hidden_size"), decoder.integer("vocab_size"))
    return out


def _t5gemma2(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """One table for both sides if it is tied. The encoder reads images; the decoder has the same matrices for self and cross attention."""
    encoder = needed(config, "encoder")
    text, vision = encoder.part("text_config"), needed(encoder, "vision_config")
    if text is None:
        return None
    width, path = text.integer("hidden_size"), "encoder.text_model"
    out = [
        _gemma_table(text, path, Part.LANGUAGE),
        Block(kind="embedding", weights=parameter(f"{path}.embed_tokens.eoi_embedding", width)),
        *_gemma_encoder(text, path, head_norms=True),
    ]
    try:
        out += tower(vision, "encoder.vision_tower")
    except UnknownTowerError:
        return None
    seen, path = vision.integer("hidden_size"), "encoder.multi_modal_projector"
    projector = parameter(f"{path}.mm_input_projection_weight", seen, width, role=WeightRole.LINEAR)
    out.append(Block(kind="projector", weights=projector + rms_norm(f"{path}.mm_soft_emb_norm", seen), part=Part.PROJECTOR))
    out += _gemma_side(reading.config, reading.layers, "decoder", Part.LANGUAGE, head_norms=True)
    if blocks.tied_head(reading.config, top):
        return out
    # Untied, the decoder has a table of its own as well, not the head alone.
    decoder, wide = reading.config, reading.config.integer("hidden_size")
    out.append(_gemma_table(decoder, "decoder", Part.LANGUAGE))
    out.append(Block(kind="embedding", weights=parameter("decoder.embed_tokens.eoi_embedding", wide)))
    return out + (blocks.output_head("lm_head.out_proj", wide, decoder.integer("vocab_size")) if kind == "both" else [])


T5: Final = _T5()
LONGT5: Final = _T5(spreads=True)
POP2PIANO: Final = _T5(headed=True, before=_composers)
SWITCH: Final = _T5(sparse=True)
UDOP: Final = _T5(headed=False, forms=("both",), after=_udop)
UMT5: Final = _T5(biases_everywhere=True)
PIX2STRUCT_TEXT: Final = EncoderDecoder(keys=Keys(count=("num_layers",), heads="num_heads", head_dim="d_kv"))
PIX2STRUCT: Final = EncoderDecoder(keys=PIX2STRUCT_TEXT.keys, weights=_pix2struct, part="text_config")
T5GEMMA_MODULE: Final = EncoderDecoder(special=_windowed(2))
T5GEMMA: Final = EncoderDecoder(special=_windowed(2), weights=_t5gemma, forms=("both", "body", "encoder"), part="decoder")
T5GEMMA2_DECODER: Final = EncoderDecoder(special=_windowed(6))
T5GEMMA2: Final = EncoderDecoder(special=_windowed(6), weights=_t5gemma2, forms=("both", "body"), part="decoder")
