"""BERT and what is built like it: one line each in a table of what they add to BERT.

Each line mirrors the model's ``modeling_*.py`` in transformers 5.23. A class that predicts words has a head and no pooler, a
bare one a pooler and no head; a class for another task is not weighed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, layer_norm, linear, parameter, plain_mlp
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import Config

__all__ = ["BERT_TYPES", "bert_blocks", "blocks", "predicts_words"]

Switch = bool | str
"""Yes, no, or the config key that says so."""


@frozen
class _Bert:
    """What a model type adds to, or takes from, BERT."""

    token_types: bool = True
    embedding_norm: bool = True
    narrow: str = ""
    """The key for the width of embeddings that are projected to the model's own."""
    final_norm: Switch = False
    positions: bool = True
    head: str = "transform"
    """``transform`` (a matrix and a norm before the table), ``bias`` (of the table alone), or a head of its own kind."""
    pooler: bool = True
    pooler_always: bool = False
    qkv_bias: Switch = True
    extra: Callable[[Config, int], tuple[Weight, ...]] | None = None
    """What stands beside the embeddings."""
    layer_extra: Callable[[Config, int], tuple[Weight, ...]] | None = None


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks, or ``None`` for a class that neither predicts words nor is bare."""
    headed = predicts_words(config)
    if headed is None:
        return None
    return bert_blocks(config, top, headed=headed, cross=config.flag("is_decoder") and config.flag("add_cross_attention"))


def predicts_words(config: Config) -> bool | None:
    """Whether the class has a head for words; ``None`` for one that is neither such nor bare."""
    names = config.raw.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names and isinstance(names[0], str) else ""
    if not first or first.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForMaskedLM", "Decoder")):
        return True
    return False if first.endswith(("Model", "GenerationEncoder")) else None


def bert_blocks(
    config: Config,
    top: Config,
    *,
    headed: bool,
    cross: bool,
    source: int | None = None,
    part: Part = Part.LANGUAGE,
    path: str = "",
    pooler: bool | None = None,
) -> tuple[Block, ...]:
    """A stack of a type in the table. ``source`` is the width that cross attention attends to, the model's own unless given.

    ``pooler`` overrides whether there is one.
    """
    spec = _TABLE[config.model_type or ""]
    width, count = config.integer("hidden_size"), config.number_of_layers()
    out = [Block(kind="embedding", weights=_embeddings(config, spec, width, path), part=part)]
    bias = _switched(config, spec.qkv_bias)
    own = _attention("attention", width, width, bias=bias)
    mlp = linear("intermediate.dense", width, config.integer("intermediate_size"), bias=True)
    mlp += linear("output.dense", config.integer("intermediate_size"), width, bias=True) + layer_norm("output.LayerNorm", width)
    out += [
        Block(kind="attention", weights=own, part=part, count=count),
        Block(kind="mlp", weights=mlp, part=part, count=count),
    ]
    if cross:
        weights = _attention("crossattention", width, source or width, bias=bias)
        out.append(Block(kind="cross_attention", weights=weights, part=part, count=count))
    if spec.layer_extra is not None:
        out.append(Block(kind="adapter", weights=spec.layer_extra(config, width), part=part, count=count))
    if _switched(config, spec.final_norm):
        out.append(Block(kind="norm", weights=layer_norm(f"{path}encoder.LayerNorm", width), part=part))
    pooled = (spec.pooler and not headed) or spec.pooler_always if pooler is None else pooler
    if pooled:
        out.append(Block(kind="pooler", weights=linear(f"{path}pooler.dense", width, width, bias=True), part=part))
    if headed:
        out.append(Block(kind="head", weights=_head(config, spec, width, tied=tied_head(config, top)), part=part))
    return tuple(out)


def _switched(config: Config, switch: Switch) -> bool:
    return config.flag(switch) if isinstance(switch, str) else switch


def _embeddings(config: Config, spec: _Bert, width: int, path: str) -> tuple[Weight, ...]:
    """Words, positions, token types, a norm, and the projection where embeddings are narrower."""
    narrow = (config.maybe_integer(spec.narrow) if spec.narrow else None) or width
    base = f"{path}embeddings"
    weights = embedding(f"{base}.word_embeddings", config.integer("vocab_size"), narrow)
    if spec.positions:
        weights += embedding(f"{base}.position_embeddings", config.integer("max_position_embeddings"), narrow)
    if spec.token_types:
        types = config.integer("type_vocab_size", minimum=0)
        weights += embedding(f"{base}.token_type_embeddings", types, narrow)
    if spec.embedding_norm:
        weights += layer_norm(f"{base}.LayerNorm", narrow)
    if narrow != width or spec.narrow == "input_embedding_size":
        weights += linear(f"{path}embeddings_project", narrow, width, bias=True)
    return weights + (spec.extra(config, width) if spec.extra is not None else ())


def _attention(path: str, width: int, source: int, *, bias: bool) -> tuple[Weight, ...]:
    return (
        *linear(f"{path}.self.query", width, width, bias=bias),
        *linear(f"{path}.self.key", source, width, bias=bias),
        *linear(f"{path}.self.value", source, width, bias=bias),
        *linear(f"{path}.output.dense", width, width, bias=True),
        *layer_norm(f"{path}.output.LayerNorm", width),
    )


def _head(config: Config, spec: _Bert, width: int, *, tied: bool) -> tuple[Weight, ...]:
    """What predicts words. A table of its own comes with a second bias beside the head's."""
    vocab = config.integer("vocab_size")
    if spec.head == "rembert":
        # The class's own width of output embeddings; they are never the input's.
        wide = config.maybe_integer("output_embedding_size") or _REMBERT_OUTPUT
        weights = linear("cls.predictions.dense", width, wide, bias=True) + layer_norm("cls.predictions.LayerNorm", wide)
        return weights + linear("cls.predictions.decoder", wide, vocab, bias=True, role=WeightRole.HEAD)
    narrow = (config.maybe_integer(spec.narrow) if spec.narrow else None) or width
    weights = parameter("cls.predictions.bias", vocab, role=WeightRole.BIAS)
    if spec.head != "bias":
        weights += linear("cls.predictions.transform.dense", width, narrow, bias=True)
        weights += layer_norm("cls.predictions.transform.LayerNorm", narrow)
    if not tied:
        weights += linear("cls.predictions.decoder", narrow, vocab, bias=spec.head != "electra", role=WeightRole.HEAD)
    return weights


_REMBERT_OUTPUT: Final = 1664


def _rotary_table(config: Config, width: int) -> tuple[Weight, ...]:
    """RoFormer keeps its sines and cosines as a table."""
    size = max(1, width // config.integer("num_attention_heads"))
    return embedding("encoder.embed_positions", config.integer("max_position_embeddings"), size)


def _task_types(config: Config, width: int) -> tuple[Weight, ...]:
    if not config.flag("use_task_id"):
        return ()
    return embedding("embeddings.task_type_embeddings", config.integer("task_type_vocab_size"), width)


def _sound_and_shape(config: Config, width: int) -> tuple[Weight, ...]:
    """RoCBert: how a character sounds and looks."""
    total = width
    out: tuple[Weight, ...] = ()
    for name, key in (("pronunciation", "pronunciation_embed"), ("shape", "shape_embed")):
        size = config.integer(f"{name}_embed_dim")
        out += embedding(f"embeddings.{key}", config.integer(f"{name}_vocab_size"), size)
        total += size if config.flag(f"enable_{name}") else 0
    return out + (linear("embeddings.map_inputs_layer", total, width, bias=True) if config.flag("concat_input") else ())


def _languages(config: Config, width: int) -> tuple[Weight, ...]:
    """X-MOD: an adapter of two matrices for each language."""
    factor = config.number("adapter_reduction_factor", 2)
    if factor <= 0:
        raise config.error("adapter_reduction_factor", factor, "a positive number")
    size = config.checked_integer("adapter_reduction_factor", int(width // factor))
    weights: tuple[Weight, ...] = layer_norm("output.adapter_layer_norm", width) if config.flag("adapter_layer_norm") else ()
    for name in config.strings("languages") or []:
        weights += plain_mlp(width, size, path=f"output.adapter_modules.{name}", names=("dense1", "dense2"))
    return weights


_TABLE: Final[dict[str, _Bert]] = {
    **dict.fromkeys(("bert", "camembert", "data2vec-text", "roberta", "xlm-roberta"), _Bert()),
    "blip_text_model": _Bert(token_types=False),
    "bert-generation": _Bert(token_types=False, head="bias", pooler=False),
    "big_bird": _Bert(qkv_bias="use_bias", pooler_always=True),
    "electra": _Bert(narrow="embedding_size", head="electra", pooler=False),
    "ernie": _Bert(extra=_task_types),
    "git": _Bert(token_types=False),
    "megatron-bert": _Bert(embedding_norm=False, final_norm=True),
    "rembert": _Bert(narrow="input_embedding_size", head="rembert"),
    "roberta-prelayernorm": _Bert(final_norm=True),
    "roc_bert": _Bert(extra=_sound_and_shape),
    "roformer": _Bert(narrow="embedding_size", positions=False, pooler=False, extra=_rotary_table),
    "xlm-roberta-xl": _Bert(embedding_norm=False, final_norm=True),
    "xmod": _Bert(final_norm="pre_norm", layer_extra=_languages),
}

BERT_TYPES: Final = frozenset(_TABLE)
"""The model types in the table."""
