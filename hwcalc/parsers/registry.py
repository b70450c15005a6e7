"""Which dialect reads which model type. Adding one is a new module and one line here.

Order of claim: ``model_type``, then the first known name in ``architectures``. A dialect is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from hwcalc.parsers.config import Config, architecture_types
from hwcalc.parsers.reading import Reading

__all__ = ["DIALECTS", "dialect_for", "model_type_of_architecture", "read_with"]

# Module name -> the model types it claims. A nested language config counts under its own type.
DIALECTS: Mapping[str, tuple[str, ...]] = {
    "standard": (
        "afmoe",
        "apertus",
        "arcee",
        "aria_text",
        "beam",
        "biogpt",
        "bitnet",
        "bloom",
        "chameleon",
        "codegen",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "cohere_compass_text",
        "cosmos3_edge_text",
        "ctrl",
        "cwm",
        "deepseek_ocr2_text",
        "diffllama",
        "doge",
        "dots1",
        "emu3_text_model",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe_text",
        "evolla",
        "exaone4",
        "exaone_moe",
        "flex_olmo",
        "flint",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "glm4v_moe_text",
        "glm4v_text",
        "glm_ocr_text",
        "gpt-sw3",
        "gpt2",
        "gpt_neox",
        "gpt_neox_japanese",
        "gpt_oss",
        "gptj",
        "granite",
        "granite4_vision_text",
        "granite_docling_text",
        "granite_swa",
        "granitemoe",
        "granitemoe_swa",
        "granitemoeshared",
        "helium",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "hunyuan_vl_text",
        "hy_v3",
        "hyperclovax",
        "idefics",
        "internlm3",
        "iquestcoder",
        "jais2",
        "kolibri1",
        "kosmos_2_5_text_model",
        "kosmos_2_text_model",
        "kyutai_speech_to_text",
        "laguna",
        "llama",
        "llama4_text",
        "mellum",
        "minimax_m2",
        "ministral",
        "ministral3",
        "mistral",
        "mixtral",
        "modernbert-decoder",
        "molmo2_text",
        "moshi",
        "muse_glimmer_text",
        "muse_spark_text",
        "nanochat",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "paddleocr_vl_text",
        "persimmon",
        "phi",
        "phi3",
        "phi4_multimodal",
        "phimoe",
        "qwen2",
        "qwen2_5_omni_text",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_omni_moe_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "seed_oss",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
        "vaultgemma",
        "voxtral_realtime_text",
        "xglm",
    ),
    "heads": ("dbrx", "falcon", "gpt_bigcode", "gpt_neo", "hrm_text", "jetmoe", "mpt"),
    "gemma": ("diffusion_gemma_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"),
    "latent": (
        "axk1",
        "axk2",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots3_note_text",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hy_v4",
        "kimi_k2",
        "longcat_flash",
        "minicpm3",
        "mistral4",
        "mistral_large4_text",
        "youtu",
    ),
    "compressed": ("deepseek_v4",),
    "variants": ("mimo_v2_flash", "minimax_m3_vl_text", "mllama_text_model", "step3p5", "unlimited_ocr_text"),
    "bert": (
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "cpmant",
        "data2vec-text",
        "electra",
        "ernie",
        "git",
        "megatron-bert",
        "openai-gpt",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xlnet",
        "xmod",
    ),
    "encoder_decoder": (
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "blip",
        "blip_text_model",
        "canary",
        "canary_decoder",
        "cohere_asr",
        "dia",
        "dia_decoder",
        "encoder-decoder",
        "florence2",
        "fsmt",
        "led",
        "longt5",
        "m2m_100",
        "marian",
        "mbart",
        "moonshine",
        "moonshine_streaming",
        "mt5",
        "musicgen",
        "musicgen_decoder",
        "musicgen_melody",
        "musicgen_melody_decoder",
        "mvp",
        "nllb-moe",
        "pegasus",
        "pegasus_x",
        "pix2struct",
        "pix2struct_text_model",
        "plbart",
        "pop2piano",
        "pp_formulanet",
        "pp_formulanet_text",
        "prophetnet",
        "seamless_m4t",
        "seamless_m4t_v2",
        "speech-encoder-decoder",
        "speech_to_text",
        "speecht5",
        "switch_transformers",
        "t5",
        "t5_gemma_module",
        "t5gemma",
        "t5gemma2",
        "t5gemma2_decoder",
        "trocr",
        "udop",
        "umt5",
        "vision-encoder-decoder",
        "whisper",
    ),
}

# Architectures whose files carry a model type of their own or none; transformers' own names are in class_defaults.json.
REMOTE_ARCHITECTURES: Mapping[str, str] = {}


@lru_cache(maxsize=1)
def _by_type() -> Mapping[str, str]:
    table: dict[str, str] = {}
    for module, types in DIALECTS.items():
        for model_type in types:
            if table.setdefault(model_type, module) != module:
                raise ValueError(f"two dialects claim {model_type!r}: {table[model_type]} and {module}")
    return table


def dialect_for(model_type: str | None) -> str | None:
    """The dialect module that claims a model type."""
    return _by_type().get(model_type) if model_type else None


def model_type_of_architecture(name: str) -> str | None:
    """The model type whose class has this name."""
    return REMOTE_ARCHITECTURES.get(name) or architecture_types().get(name)


def read_with(dialect: str, config: Config) -> Reading:
    """Read a config by a dialect: its module's ``read(config) -> Reading``."""
    read: Callable[[Config], Reading] = import_module(f"hwcalc.parsers.{dialect}").read
    return read(config)
