"""BERT and its kin, and the first generation of decoders: plain attention, but not always a cache.

A BERT-like class attends in both directions unless ``is_decoder`` is set, and then there is nothing to keep: every token
would change when one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import CrossAttention, Layer, NoCache
from hwcalc.model import Note
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, attention_dims

__all__ = ["read"]


def read(config: Config) -> Reading:
    """Read a BERT-like config, or one of the early models with a rule of its own."""
    return _RULES.get(config.model_type or "", _bert)(config)


def _bert(config: Config) -> Reading:
    """Self attention of a decoder, cross attention too if it was added; nothing at all of an encoder."""
    config.ignore("cross_attention_hidden_size", "position_embedding_type")
    cross = config.flag("add_cross_attention")
    if not config.flag("is_decoder"):
        return _nothing(
            config,
            "encoder-only",
            "The config does not set is_decoder: this model attends in both directions and keeps nothing between steps.",
        )
    dims = attention_dims(config)
    layer: Layer = (dims.full(), CrossAttention(**vars(dims))) if cross else (dims.full(),)
    return Reading(layers=(layer,) * config.number_of_layers(), config=config)


def _decoder(config: Config) -> Reading:
    """GIT: BERT's layers, always causal; image tokens stand before the text in the same sequence."""
    return Reading(layers=((attention_dims(config).full(),),) * config.number_of_layers(), config=config)


def _cpmant(config: Config) -> Reading:
    """CPM-Ant puts ``prompt_length`` learned tokens before every sequence."""
    prompt = config.maybe_integer("prompt_length", minimum=0)
    notes: tuple[Note, ...] = ()
    if prompt:
        notes = (
            Note(
                code="own-prompt",
                message=f"The model puts {prompt:,} tokens of its own before every sequence and keeps them: count them in --seq.",
            ),
        )
    return Reading(layers=_decoder(config).layers, config=config, notes=notes)


def _openai_gpt(config: Config) -> Reading:
    """GPT-1 could keep keys and values; its class in transformers computes the whole sequence anew at each step."""
    layers = _decoder(config).layers
    return Reading(layers=layers, config=config, readings={"transformers": _empty(len(layers))})


def _xlm(config: Config) -> Reading:
    """XLM, trained causally or not; its class in transformers keeps no cache from one call to the next."""
    config.ignore("bos_index", "eos_index", "pad_index", "unk_index", "mask_index")
    if not config.flag("causal"):
        return _nothing(
            config,
            "encoder-only",
            "The config does not set causal: this model attends in both directions and keeps nothing between steps.",
        )
    return _openai_gpt(config)


def _nothing(config: Config, code: str, message: str) -> Reading:
    # The heads are still read: a config without them is damaged whether or not they are cached.
    attention_dims(config)
    return Reading(layers=_empty(config.number_of_layers()), config=config, notes=(Note(code=code, message=message),))


def _empty(count: int) -> tuple[Layer, ...]:
    return ((NoCache(),),) * count


def _other_memory(what: str) -> Callable[[Config], Reading]:
    def refuse(config: Config) -> Reading:
        raise UnsupportedError(
            f"A model of type {config.model_type} keeps {what}, not keys and values: kvplan has no formula for that.",
            hint="Plan another model. See: kvplan models",
        )

    return refuse


_RULES: Mapping[str, Callable[[Config], Reading]] = {
    "cpmant": _cpmant,
    "git": _decoder,
    "openai-gpt": _openai_gpt,
    "reformer": _other_memory("hidden states and hash buckets"),
    "xlm": _xlm,
    "xlnet": _other_memory("the hidden states of earlier tokens"),
}
