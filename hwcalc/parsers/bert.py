"""BERT and models built like it, each as an object that says how it differs from BERT.

Each mirrors the model's ``modeling_*.py`` in transformers 5.23. Unless ``is_decoder`` is set, such a class attends in both
directions. It can then keep nothing, since every token changes when one is added. A class that predicts words has a head and no
pooler, the bare class has a pooler and no head. Parameters of classes for other tasks are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import asdict

from hwcalc.formulas import CrossAttention, Layer, NoCache
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, layer_norm, linear, parameter, plain_mlp
from hwcalc.model import Note
from hwcalc.parsers.blocks import Switch, Weighed, switched, tied_head
from hwcalc.parsers.classes import predicts_words
from hwcalc.parsers.config import Config
from hwcalc.parsers.projections import Attends, stack
from hwcalc.parsers.reading import AttentionDims, Reading


def shared_heads(config: Config) -> AttentionDims:
    """Heads that share the model's width. These classes have no key for fewer key/value heads or for the width of a head."""
    config.ignore("num_key_value_heads", "head_dim", "v_head_dim")
    heads, width = config.integer("num_attention_heads"), config.integer("hidden_size")
    if width < heads:
        raise config.error("hidden_size", width, f"at least the number of attention heads ({heads})")
    size = width // heads
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=heads, head_dim=size, v_head_dim=size)


def no_cache(config: Config, key: str) -> Reading:
    """A model that attends in both directions because its config does not set ``key``."""
    # The heads are read all the same: a config without them is broken, whether or not anything is cached.
    shared_heads(config)
    message = f"The config does not set {key}: this model attends in both directions and keeps nothing between steps."
    return Reading(
        layers=((NoCache(),),) * config.number_of_layers(),
        config=config,
        notes=(Note(code="encoder-only", message=message),),
    )


class Bert(Record):
    """How a model type differs from BERT."""

    token_types: bool = True
    embedding_norm: bool = True
    narrow: str = ""
    """The key for the width of embeddings that are projected to the model's width."""
    projected: bool = False
    """Whether they are projected even if that width is the model's."""
    final_norm: Switch = False
    positions: bool = True
    transformed: bool = True
    """Whether the head has a matrix and a norm before its table."""
    second_bias: bool = True
    """Whether a table that is not tied has a bias besides that of the head."""
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
        layer: Layer = (dims.full(), CrossAttention(**asdict(dims))) if cross else (dims.full(),)
        return Reading(layers=(layer,) * config.number_of_layers(), config=config)

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """All blocks, or ``None`` for a class that neither predicts words nor is bare."""
        headed = predicts_words(config)
        if headed is None:
            return None
        return self.blocks(config, top, reading.layers, headed=headed, cross=self.crosses(config))

    def crosses(self, config: Config) -> bool:
        """Whether this is a decoder with cross attention."""
        return config.flag("is_decoder") and config.flag("add_cross_attention")

    def encoder(self, config: Config, path: str) -> list[Block]:
        """All blocks of such a model as the encoder of a pair."""
        layers: tuple[Layer, ...] = ((NoCache(),),) * config.number_of_layers()
        return self.blocks(config, config, layers, headed=False, cross=False, part=Part.ENCODER, path=f"{path}.")

    def blocks(
        self,
        config: Config,
        top: Config,
        layers: tuple[Layer, ...],
        *,
        headed: bool,
        cross: bool,
        source: int | None = None,
        part: Part = Part.LANGUAGE,
        path: str = "",
    ) -> list[Block]:
        """All blocks of a model with these layers. ``source`` is the width that cross attention reads, by default the model's own."""
        width = config.integer("hidden_size")
        pooled = self.pooler_always or (self.pooler and not headed)
        biased = "qkvo" if switched(config, self.qkv_bias) else "o"
        over = _attention("crossattention", width, biased, source) if cross else ()
        adapter = self.layer_extra(config, width) if self.layer_extra is not None else ()
        out = [
            Block(kind="embedding", weights=self._embeddings(config, width, path), part=part),
            *stack(
                layers,
                width,
                part,
                attention=_attention("attention", width, biased),
                mlp=self._mlp(config, width),
                cross_attention=over,
                adapter=adapter,
            ),
        ]
        if switched(config, self.final_norm):
            out.append(Block(kind="norm", weights=layer_norm(f"{path}encoder.LayerNorm", width), part=part))
        if pooled:
            out.append(Block(kind="pooler", weights=linear(f"{path}pooler.dense", width, width, bias=True), part=part))
        if headed:
            tied = tied_head(config, top)
            head = self._head(config, width, tied=tied) if self.head is None else self.head(config, width)
            out.append(Block(kind="head", weights=head, part=part))
        return out

    def _mlp(self, config: Config, width: int) -> Weighed:
        inner = config.integer("intermediate_size")
        mlp = linear("intermediate.dense", width, inner, bias=True) + linear("output.dense", inner, width, bias=True)
        return mlp + layer_norm("output.LayerNorm", width)

    def _narrow(self, config: Config, width: int) -> int:
        """The width of the embeddings."""
        return (config.maybe_integer(self.narrow) if self.narrow else None) or width

    def _embeddings(self, config: Config, width: int, path: str) -> Weighed:
        """Words, positions, token types, a norm, and a projection if embeddings are narrower than the model."""
        narrow, base = self._narrow(config, width), f"{path}embeddings"
        weights = embedding(f"{base}.word_embeddings", config.integer("vocab_size"), narrow)
        if self.positions:
            weights += embedding(f"{base}.position_embeddings", config.integer("max_position_embeddings"), narrow)
        if self.token_types:
            weights += embedding(f"{base}.token_type_embeddings", config.integer("type_vocab_size", minimum=0), narrow)
        if self.embedding_norm:
            weights += layer_norm(f"{base}.LayerNorm", narrow)
        if narrow != width or self.projected:
            weights += linear(f"{path}embeddings_project", narrow, width, bias=True)
        return weights + (self.extra(config, width) if self.extra is not None else ())

    def _head(self, config: Config, width: int, *, tied: bool) -> Weighed:
        """The head that predicts words."""
        narrow, vocab, path = self._narrow(config, width), config.integer("vocab_size"), "cls.predictions"
        weights = parameter(f"{path}.bias", vocab, role=WeightRole.BIAS)
        if self.transformed:
            weights += linear(f"{path}.transform.dense", width, narrow, bias=True)
            weights += layer_norm(f"{path}.transform.LayerNorm", narrow)
        if not tied:
            weights += linear(f"{path}.decoder", narrow, vocab, bias=self.second_bias, role=WeightRole.HEAD)
        return weights


def _attention(path: str, width: int, biased: str, source: int | None = None) -> Attends:
    names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
    norm = layer_norm(f"{path}.output.LayerNorm", width)
    return Attends(path=path, names=names, cross=path == "crossattention", biased=biased, source=source, norms=norm)


def _rembert_head(config: Config, width: int) -> Weighed:
    """RemBERT's output embeddings have a width of their own, so they are never tied to the input's."""
    wide = config.maybe_integer("output_embedding_size") or _REMBERT_OUTPUT
    vocab, path = config.integer("vocab_size"), "cls.predictions"
    weights = linear(f"{path}.dense", width, wide, bias=True) + layer_norm(f"{path}.LayerNorm", wide)
    return weights + linear(f"{path}.decoder", wide, vocab, bias=True, role=WeightRole.HEAD)


_REMBERT_OUTPUT: Final = 1664


def _rotary_table(config: Config, width: int) -> Weighed:
    """RoFormer stores its sines and cosines as a table."""
    size = max(1, width // config.integer("num_attention_heads"))
    return embedding("encoder.embed_positions", config.integer("max_position_embeddings"), size)


def _task_types(config: Config, width: int) -> Weighed:
    if not config.flag("use_task_id"):
        return ()
    return embedding("embeddings.task_type_embeddings", config.integer("task_type_vocab_size"), width)


def _sound_and_shape(config: Config, width: int) -> Weighed:
    """RoCBert: embeddings of the sound and the shape of a character."""
    total = width
    out: Weighed = ()
    for name, key in (("pronunciation", "pronunciation_embed"), ("shape", "shape_embed")):
        size = config.integer(f"{name}_embed_dim")
        out += embedding(f"embeddings.{key}", config.integer(f"{name}_vocab_size"), size)
        total += size if config.flag(f"enable_{name}") else 0
    return out + (linear("embeddings.map_inputs_layer", total, width, bias=True) if config.flag("concat_input") else ())


def _languages(config: Config, width: int) -> Weighed:
    """X-MOD: an adapter of two matrices for each language."""
    factor = config.number("adapter_reduction_factor", 2)
    if factor <= 0:
        raise config.error("adapter_reduction_factor", factor, "a positive number")
    size = config.checked_integer("adapter_reduction_factor", int(width // factor))
    weights: Weighed = layer_norm("output.adapter_layer_norm", width) if config.flag("adapter_layer_norm") else ()
    for name in config.strings("languages") or []:
        weights += plain_mlp(width, size, path=f"output.adapter_modules.{name}", names=("dense1", "dense2"))
    return weights


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
