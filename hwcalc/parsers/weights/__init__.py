"""What a config says about its model's weights: every parameter is counted, or none.

The language model is read by the module that :data:`LANGUAGE` names for its model type, towers and projectors by the one
that :data:`COMPOSITE` names for the type of the whole. A type without a line has unknown weights: ``None``, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from hwcalc.formulas.weights import Block
from hwcalc.parsers.config import Config

__all__ = ["COMPOSITE", "LANGUAGE", "language_blocks", "wrapper_blocks"]

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

# Module -> model types of whole documents. ``blocks(top, config) -> tuple[Block, ...] | None``: everything that is not the
# language model (which ``config`` describes), ``None`` where a tower is of a type that nobody weighs.
COMPOSITE: Mapping[str, tuple[str, ...]] = {
    "composite_flat": ("chameleon", "kyutai_speech_to_text", "phi4_multimodal"),
    "composite_codec": ("janus", "qwen2_5_omni", "vibevoice", "vibevoice_asr"),
    "composite_special": (
        "aria", "blip-2", "deepseek_vl_hybrid", "fun_asr_nano", "gemma4", "gemma4_unified", "granite_speech",
        "granite_speech_plus", "idefics2", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5", "nemo_speechlm",
        "nemotron_h_omni", "pi0",
    ),
    "composite": (
        "audioflamingo3", "aya_vision", "cohere2_vision", "cohere_compass", "cosmos3_edge", "cosmos3_omni", "deepseek_vl",
        "dots3_note", "emu3", "ernie4_5_vl_moe", "exaone4_5", "gemma3", "glm46v", "glm4v", "glm4v_moe", "glm5_next",
        "glm_ocr", "glmasr", "glmga", "got_ocr2", "granite_docling", "hunyuan_vl", "hyperclovax_vision_v2", "idefics3",
        "inkling2", "inkling_mm_model",
        "internvl", "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llama4", "llava", "llava_next", "llava_next_video",
        "llava_onevision", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "minimax_m3_vl", "mistral3", "mistral_large4",
        "mllama", "molmo2", "moss_transcribe_diarize", "muse_glimmer", "muse_spark", "musicflamingo", "ovis2", "paddleocr_vl",
        "paligemma", "pp_chart2table", "qianfan_ocr", "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_audio", "qwen2_vl",
        "qwen3_5", "qwen3_5_moe", "qwen3_asr", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp",
        "shieldgemma2", "smolvlm", "step3p7", "unlimited_ocr", "video_llama_3", "video_llava", "vipllava", "voxtral",
        "voxtral_realtime",
    ),
}  # fmt: skip


@lru_cache(maxsize=2)
def _by_type(composite: bool) -> Mapping[str, str]:
    table: dict[str, str] = {}
    for module, types in (COMPOSITE if composite else LANGUAGE).items():
        for model_type in types:
            if table.setdefault(model_type, module) != module:
                raise ValueError(f"two modules weigh {model_type!r}: {table[model_type]} and {module}")
    return table


def language_blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """The blocks of the language model of a type in :data:`LANGUAGE`, ``None`` for any other."""
    language = _by_type(composite=False).get(config.model_type or "")
    if language is None:
        return None
    read: Callable[[Config, Config], tuple[Block, ...] | None]
    read = import_module(f"hwcalc.parsers.weights.{language}").blocks
    return read(config, top)


def wrapper_blocks(model_type: str | None) -> Callable[[Config, Config], tuple[Block, ...] | None] | None:
    """What weighs the parts around the language model, ``None`` for a type that is not in :data:`COMPOSITE`."""
    outer = _by_type(composite=True).get(model_type or "")
    if outer is None:
        return None
    around: Callable[[Config, Config], tuple[Block, ...] | None]
    around = import_module(f"hwcalc.parsers.weights.{outer}").blocks
    return around
