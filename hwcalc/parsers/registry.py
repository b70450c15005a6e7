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
        "afmoe", "apertus", "arcee", "aria_text", "beam", "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2", "cohere2_moe", "ctrl", "cwm", "diffllama", "doge", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_ocr_text", "gpt-sw3", "gpt2", "gpt_neox", "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2", "kolibri1", "laguna", "llama", "llama4_text", "mellum", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma", "xglm",
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
