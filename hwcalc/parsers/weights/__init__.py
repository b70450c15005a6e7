"""What a config says about its model's weights: every parameter is counted, or none.

The language model is read by the module that :data:`LANGUAGE` names for its model type. A type without a line has unknown
weights: ``None``, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from hwcalc.formulas.weights import Block
from hwcalc.parsers.config import Config

__all__ = ["LANGUAGE", "language_blocks"]

# Module -> model types. ``blocks(config, top) -> tuple[Block, ...] | None``: ``config`` is the level that describes the
# language model (of this type), ``top`` the whole document (often the same object); ``None`` where a file does not say enough.
LANGUAGE: Mapping[str, tuple[str, ...]] = {
    "bert": (
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ),
    "early": ("cpmant", "git", "openai-gpt", "reformer", "xlm", "xlnet"),
    "encoder_decoder": (
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "fsmt",
        "led",
        "m2m_100",
        "marian",
        "mbart",
        "mvp",
        "nllb-moe",
        "pegasus",
        "pegasus_x",
        "plbart",
        "speech_to_text",
        "trocr",
        "whisper",
    ),
    "encoder_decoder_own": (
        "canary",
        "cohere_asr",
        "dia",
        "moonshine",
        "musicgen_decoder",
        "musicgen_melody_decoder",
        "prophetnet",
    ),
    "encoder_decoder_pairs": (
        "blip",
        "encoder-decoder",
        "florence2",
        "pp_formulanet",
        "speech-encoder-decoder",
        "vision-encoder-decoder",
    ),
    "encoder_decoder_speech": ("seamless_m4t", "seamless_m4t_v2", "speecht5"),
    "encoder_decoder_t5": (
        "longt5",
        "mt5",
        "pix2struct",
        "pop2piano",
        "switch_transformers",
        "t5",
        "t5gemma",
        "t5gemma2",
        "udop",
        "umt5",
    ),
}

@lru_cache(maxsize=1)
def _by_type() -> Mapping[str, str]:
    return {model_type: module for module, types in LANGUAGE.items() for model_type in types}


def language_blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """The blocks of the language model of a type in :data:`LANGUAGE`, ``None`` for any other."""
    language = _by_type().get(config.model_type or "")
    if language is None:
        return None
    read: Callable[[Config, Config], tuple[Block, ...] | None]
    read = import_module(f"hwcalc.parsers.weights.{language}").blocks
    return read(config, top)
