"""BERT and models built like it, each an object that says how it differs; and early decoders: GPT-1, XLM, CPM-Ant and GIT.

Each mirrors the model's ``modeling_*.py`` in transformers 5.23. Unless ``is_decoder`` is set, a BERT attends in both directions.
It can then keep nothing, since every token changes when one is added. A class that predicts words has a head and no pooler, the
bare class has a pooler and no head. Parameters of classes for other tasks are not counted. Reformer and XLNet keep no keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import Layer, NoCache
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.model import Note
from hwcalc.parsers.blocks import Attends, Switch, Weighed, output_head, own_dims, projections, stack, switched, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config, predicts_words
from hwcalc.parsers.reading import Readers, Reading, shared_heads
from hwcalc.parsers.towers.build import Style, encoder_layer, grid, needed, patch_conv


def no_cache(config: Config, key: str) -> Reading:
    """A model that attends in both directions because its config does not set ``key``."""
    # The heads are read all the same: a config without them is broken, whether or not anything is cached.
    shared_heads(config)
    message = f"The config does not set {key}: this model attends in both directions and keeps nothing between steps."
    notes = (Note(code="encoder-only", message=message),)
    return Reading(layers=((NoCache(),),) * config.number_of_layers(), config=config, notes=notes)


class Bert(Record):
    """How a model type differs from BERT."""

    token_types: bool = True
    embedding_norm: bool = True
    narrow: str = ""
    """The key for the width of embeddings that are projected to the model's width."""
    projected: bool = False
    """True if they are projected even if that width is the model's."""
    final_norm: Switch = False
    positions: bool = True
    transformed: bool = True
    """True if the head has a matrix and a norm before its table."""
    second_bias: bool = True
    """True if a table that is not tied has a bias besides that of the head."""
    head: Callable[[Config, int], Weighed] | None = None
    """Weighs the head of a model whose head is built in another way."""
    pooler: bool = True
    pooler_always: bool = False
    qkv_bias: Switch = True
    extra: Callable[[Config, int], Weighed] | None = None
    """Weighs further tensors of the embeddings."""
    layer_extra: Callable[[Config, int], Weighed] | None = None

    def read(self, config: Config) -> Reading:
        """A decoder keeps self attention, and cross attention if it was added. An encoder keeps nothing."""
        config.ignore("cross_attention_hidden_size", "position_embedding_type")
        cross = config.flag("add_cross_attention")
        if not config.flag("is_decoder"):
            return no_cache(config, "is_decoder")
        dims = shared_heads(config)
        layer: Layer = (dims.full(), dims.cross()) if cross else (dims.full(),)
        return Reading(layers=(layer,) * config.number_of_layers(), config=config)

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """All blocks, or ``None`` for a class that neither predicts words nor is bare."""
        headed = predicts_words(config)
        if headed is None:
            return None
        return self.blocks(config, top, reading.layers, headed=headed, cross=self.crosses(config))

    def crosses(self, config: Config) -> bool:
        """True if this is a decoder with cross attention."""
        return config.flag("is_decoder") and config.flag("add_cross_attention")

    def encoder(self, config: Config, path: str) -> list[Block]:
        """All blocks of such a model as the encoder of a pair."""
        layers: tuple[Layer, ...] = ((NoCache(),),) * config.number_of_layers()
        return self.blocks(config, config, layers, headed=False, cross=False, part=Part.ENCODER, path=f"{path}.")

    def blocks(
        self, config: Config, top: Config, layers: tuple[Layer, ...], *, headed: bool, cross: bool, source: int | None = None,
        part: Part = Part.LANGUAGE, path: str = "",
    ) -> list[Block]:  # fmt: skip
        """All blocks of a model with these layers. ``source`` is the width that cross attention reads, by default the model's own."""
        width = config.integer("hidden_size")
        pooled = self.pooler_always or (self.pooler and not headed)
        biased = "qkvo" if switched(config, self.qkv_bias) else "o"
        own, over = _attention("attention", width, biased), _attention("crossattention", width, biased, source) if cross else ()
        adapter = self.layer_extra(config, width) if self.layer_extra is not None else ()
        inner = config.integer("intermediate_size")
        mlp = w.linear("intermediate.dense", width, inner, bias=True) + w.linear("output.dense", inner, width, bias=True)
        mlp += w.layer_norm("output.LayerNorm", width)
        # Words, positions, token types, a norm, and a projection if embeddings are narrower than the model.
        narrow, base = self._narrow(config, width), f"{path}embeddings"
        table = w.embedding(f"{base}.word_embeddings", config.integer("vocab_size"), narrow)
        if self.positions:
            table += w.embedding(f"{base}.position_embeddings", config.integer("max_position_embeddings"), narrow)
        if self.token_types:
            table += w.embedding(f"{base}.token_type_embeddings", config.integer("type_vocab_size", minimum=0), narrow)
        if self.embedding_norm:
            table += w.layer_norm(f"{base}.LayerNorm", narrow)
        if narrow != width or self.projected:
            table += w.linear(f"{path}embeddings_project", narrow, width, bias=True)
        table += self.extra(config, width) if self.extra is not None else ()
        out = [Block(kind="embedding", weights=table, part=part)]
        out += stack(layers, width, part, attention=own, mlp=mlp, cross_attention=over, adapter=adapter)
        if switched(config, self.final_norm):
            out.append(Block(kind="norm", weights=w.layer_norm(f"{path}encoder.LayerNorm", width), part=part))
        if pooled:
            out.append(Block(kind="pooler", weights=w.linear(f"{path}pooler.dense", width, width, bias=True), part=part))
        if headed:
            head = self._head(config, width, tied_head(config, top)) if self.head is None else self.head(config, width)
            out.append(Block(kind="head", weights=head, part=part))
        return out

    def _narrow(self, config: Config, width: int) -> int:
        """The width of the embeddings."""
        return (config.maybe_integer(self.narrow) if self.narrow else None) or width

    def _head(self, config: Config, width: int, tied: bool) -> Weighed:
        """The head that predicts words."""
        narrow, vocab, path = self._narrow(config, width), config.integer("vocab_size"), "cls.predictions"
        weights = w.parameter(f"{path}.bias", vocab, role=WeightRole.BIAS)
        if self.transformed:
            weights += w.linear(f"{path}.transform.dense", width, narrow, bias=True)
            weights += w.layer_norm(f"{path}.transform.LayerNorm", narrow)
        if not tied:
            weights += w.linear(f"{path}.decoder", narrow, vocab, bias=self.second_bias, role=WeightRole.HEAD)
        return weights


def _attention(path: str, width: int, biased: str, source: int | None = None) -> Attends:
    names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
    norm = w.layer_norm(f"{path}.output.LayerNorm", width)
    return Attends(path=path, names=names, cross=path == "crossattention", biased=biased, source=source, norms=norm)


def _rembert_head(config: Config, width: int) -> Weighed:
    """RemBERT's output embeddings have a width of their own, so they are never tied to the input's."""
    # The default of transformers' class is 1664.
    wide = config.maybe_integer("output_embedding_size") or 1664
    vocab, path = config.integer("vocab_size"), "cls.predictions"
    weights = w.linear(f"{path}.dense", width, wide, bias=True) + w.layer_norm(f"{path}.LayerNorm", wide)
    return weights + w.linear(f"{path}.decoder", wide, vocab, bias=True, role=WeightRole.HEAD)


def _rotary_table(config: Config, width: int) -> Weighed:
    """RoFormer stores its sines and cosines as a table."""
    size = max(1, width // config.integer("num_attention_heads"))
    return w.embedding("encoder.embed_positions", config.integer("max_position_embeddings"), size)


def _task_types(config: Config, width: int) -> Weighed:
    if not config.flag("use_task_id"):
        return ()
    return w.embedding("embeddings.task_type_embeddings", config.integer("task_type_vocab_size"), width)


def _sound_and_shape(config: Config, width: int) -> Weighed:
    """RoCBert: embeddings of the sound and the shape of a character."""
    total = width
    out: Weighed = ()
    for name, key in (("pronunciation", "pronunciation_embed"), ("shape", "shape_embed")):
        size = config.integer(f"{name}_embed_dim")
        out += w.embedding(f"embeddings.{key}", config.integer(f"{name}_vocab_size"), size)
        total += size if config.flag(f"enable_{name}") else 0
    return out + (w.linear("embeddings.map_inputs_layer", total, width, bias=True) if config.flag("concat_input") else ())


def _languages(config: Config, width: int) -> Weighed:
    """X-MOD: an adapter of two matrices for each language."""
    factor = config.number("adapter_reduction_factor", 2)
    if factor <= 0:
        raise config.error("adapter_reduction_factor", factor, "a positive number")
    size = config.checked_integer("adapter_reduction_factor", int(width // factor))
    weights: Weighed = w.layer_norm("output.adapter_layer_norm", width) if config.flag("adapter_layer_norm") else ()
    for name in config.strings("languages") or []:
        weights += w.plain_mlp(width, size, path=f"output.adapter_modules.{name}", names=("dense1", "dense2"))
    return weights


def _early(
    layers: Callable[[Config], Reading], body: Callable[[Config, Reading], list[Block] | None], head: str, *, bias: bool = False,
    may_tie: bool = True,
) -> Readers:  # fmt: skip
    """One of these models. ``body`` weighs all but the head, which only a class that predicts words has."""

    def weigh(config: Config, top: Config, reading: Reading) -> list[Block] | None:
        headed = predicts_words(config)
        blocks = None if headed is None else body(config, reading)
        if blocks is None or not headed:
            return blocks
        width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
        return blocks + output_head(head, width, vocab, tied=may_tie and tied_head(config, top), bias=bias)

    return Readers(layers=layers, weights=weigh)


def _read(config: Config) -> Reading:
    """Full attention on all layers."""
    return Reading(layers=((shared_heads(config).full(),),) * config.number_of_layers(), config=config)


def _git(config: Config, reading: Reading) -> list[Block]:
    """GIT: BERT's layers, always causal, over one sequence of image patches and words. The image encoder is that of CLIP."""
    vision = needed(config, "vision_config")
    width, seen = config.integer("hidden_size"), vision.integer("hidden_size")
    path = "image_encoder.vision_model"
    patches = w.parameter(f"{path}.embeddings.class_embedding", seen)
    patches += patch_conv(vision, f"{path}.embeddings.patch_embedding", seen, bias=False)
    patches += w.embedding(f"{path}.embeddings.position_embedding", grid(vision, 1), seen)
    patches += w.layer_norm(f"{path}.pre_layrnorm", seen) + w.layer_norm(f"{path}.post_layernorm", seen)
    layer = encoder_layer(vision, Style(), f"{path}.encoder.layers", seen, vision.integer("intermediate_size"))
    frames = config.maybe_integer("num_image_with_embedding", minimum=0) or 0
    projection = w.linear("visual_projection.visual_projection.0", seen, width, bias=True)
    projection += w.layer_norm("visual_projection.visual_projection.1", width)
    projection += w.parameter("img_temporal_embedding", 1, 1, seen) * min(frames, MAX_LAYERS)
    return [
        *GIT_TEXT.blocks(config, config, reading.layers, headed=False, cross=False),
        Block(kind="patches", weights=patches, part=Part.VISION),
        Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers()),
        Block(kind="projector", weights=projection, part=Part.PROJECTOR),
    ]


def _read_cpmant(config: Config) -> Reading:
    """CPM-Ant has a key for the width of a head, and puts ``prompt_length`` learned tokens before every sequence."""
    dims = shared_heads(config)
    size = config.integer("dim_head")
    layer = replace(dims, head_dim=size, v_head_dim=size).full()
    count, prompt = config.number_of_layers(), config.maybe_integer("prompt_length", minimum=0)
    notes: tuple[Note, ...] = ()
    if prompt:
        message = f"The model puts {prompt:,} tokens of its own before every sequence and keeps them: count them in --seq."
        notes = (Note(code="own-prompt", message=message),)
    return Reading(layers=((layer,),) * count, config=config, notes=notes)


def _cpmant(config: Config, reading: Reading) -> list[Block]:
    """CPM-Ant: a stack like T5's with gated MLPs. Its table also holds the prompts, so the head is a tensor of its own."""
    width, path = config.integer("hidden_size"), "self_att.self_attention"
    names = {"q": "project_q", "k": "project_k", "v": "project_v", "o": "attention_out"}
    rows = config.integer("vocab_size") + config.integer("prompt_types") * config.integer("prompt_length", minimum=0)
    segments = config.integer("segment_types")
    buckets = segments * segments + config.integer("position_bias_num_buckets")
    outside = w.embedding("input_embedding", rows, width) + w.embedding("segment_embedding", segments, width)
    outside += w.parameter("position_bias.relative_attention_bias", buckets, config.integer("num_attention_heads"))
    attention = w.rms_norm("self_att.layernorm_before_attention", width)
    attention += projections(path, width, own_dims(reading.layers[0], width), names)
    mlp = w.gated_mlp(width, config.integer("dim_ff"), path="ffn.ffn") + w.rms_norm("ffn.layernorm_before_ffn", width)
    table = Block(kind="embedding", weights=outside + w.rms_norm("encoder.output_layernorm", width))
    return [table, *stack(reading.layers, width, attention=attention, mlp=mlp)]


def _read_gpt1(config: Config) -> Reading:
    """GPT-1 could keep keys and values, but its class in transformers computes the whole sequence again at each step."""
    reading = _read(config)
    return replace(reading, readings={"transformers": ((NoCache(),),) * len(reading.layers)})


def _gpt1(config: Config, reading: Reading) -> list[Block]:
    """GPT-1: two layer norms in each layer and none after the last."""
    width = config.integer("hidden_size")
    table = w.embedding("tokens_embed", config.integer("vocab_size"), width)
    table += w.embedding("positions_embed", config.integer("max_position_embeddings"), width)
    dims = own_dims(reading.layers[0], width)
    rows = (dims.num_attention_heads + 2 * dims.num_key_value_heads) * dims.head_dim
    attention = w.linear("attn.c_attn", width, rows, bias=True) + w.linear("attn.c_proj", width, width, bias=True)
    mlp = w.plain_mlp(width, 4 * width, names=("c_fc", "c_proj"))
    norms = w.layer_norm("ln_1", width) + w.layer_norm("ln_2", width)
    return [Block(kind="embedding", weights=table), *stack(reading.layers, width, attention=attention, mlp=mlp, norm=norms)]


def _read_xlm(config: Config) -> Reading:
    """XLM, trained causally or not. Its class in transformers keeps no cache from one call to the next."""
    config.ignore("bos_index", "eos_index", "pad_index", "unk_index", "mask_index")
    return _read_gpt1(config) if config.flag("causal") else no_cache(config, "causal")


def _xlm(config: Config, reading: Reading) -> list[Block] | None:
    """XLM: a table of languages if there is more than one. The weights of a model with an adaptive softmax are not counted."""
    if config.flag("asm"):
        return None
    width = config.integer("hidden_size")
    outside = w.embedding("embeddings", config.integer("vocab_size"), width)
    outside += w.embedding("position_embeddings", config.integer("max_position_embeddings"), width)
    languages = config.integer("n_langs")
    if languages > 1 and config.flag("use_lang_emb"):
        outside += w.embedding("lang_embeddings", languages, width)
    names = {"q": "q_lin", "k": "k_lin", "v": "v_lin", "o": "out_lin"}
    attention = Attends(path="attentions", names=names, biased="qkvo")
    mlp = w.plain_mlp(width, 4 * width, path="ffns", names=("lin1", "lin2"))
    norms = w.layer_norm("layer_norm1", width) + w.layer_norm("layer_norm2", width)
    table = Block(kind="embedding", weights=outside + w.layer_norm("layer_norm_emb", width))
    return [table, *stack(reading.layers, width, attention=attention, mlp=mlp, norm=norms)]


def _other_memory(what: str) -> Callable[[Config], Reading]:
    def refuse(config: Config) -> Reading:
        raise UnsupportedError(
            f"A model of type {config.model_type} keeps {what}, not keys and values: kvplan has no formula for that.",
            hint="Plan another model. See: kvplan models",
        )

    return refuse


BERT: Final = Bert()
BERT_GENERATION: Final = Bert(token_types=False, transformed=False, pooler=False)
BIG_BIRD: Final = Bert(qkv_bias="use_bias", pooler_always=True)
BLIP_TEXT: Final = Bert(token_types=False)
ELECTRA: Final = Bert(narrow="embedding_size", second_bias=False, pooler=False)
ERNIE: Final = Bert(extra=_task_types)
GIT_TEXT: Final = Bert(token_types=False, pooler=False)
MEGATRON: Final = Bert(embedding_norm=False, final_norm=True)
PRELAYERNORM: Final = Bert(final_norm=True)
REMBERT: Final = Bert(narrow="input_embedding_size", projected=True, head=_rembert_head)
ROC_BERT: Final = Bert(extra=_sound_and_shape)
ROFORMER: Final = Bert(narrow="embedding_size", positions=False, pooler=False, extra=_rotary_table)
XMOD: Final = Bert(final_norm="pre_norm", layer_extra=_languages)
CPMANT: Final = _early(_read_cpmant, _cpmant, "lm_head", may_tie=False)
GIT: Final = _early(_read, _git, "output", bias=True)
GPT1: Final = _early(_read_gpt1, _gpt1, "lm_head")
REFORMER: Final = Readers(layers=_other_memory("hidden states and hash buckets"))
XLM: Final = _early(_read_xlm, _xlm, "pred_layer.proj", bias=True)
XLNET: Final = Readers(layers=_other_memory("the hidden states of earlier tokens"))
