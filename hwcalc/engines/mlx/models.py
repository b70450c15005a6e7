"""The model files of mlx-lm: which model types it runs, and how each file keeps its layers.

``mlx_lm.load`` imports ``mlx_lm.models.<model_type>``; a model type without such a file, and without another name for one, is not supported.
Source: mlx-lm 0.32.2 utils.py (_get_classes, MODEL_REMAPPING) and the files of models/.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import SparseIndexer, Stack
from hwcalc.model import ModelSpec

__all__ = [
    "CHUNKED",
    "COMPUTED_APART",
    "EXPANDED",
    "FILES",
    "INDEX_ONCE",
    "LISTED",
    "MODEL_DTYPE_STATES",
    "OTHER_NAMES",
    "OWN_CACHE",
    "PIPELINED",
    "SHARDED",
    "as_read",
    "file_of",
]

FILES: Final = frozenset(
    [
        "Klear",
        "afm7",
        "afmoe",
        "apertus",
        "baichuan_m1",
        "bailing_hybrid",
        "bailing_moe",
        "bailing_moe_linear",
        "bailing_moe_v3",
        "bitnet",
        "cohere",
        "cohere2",
        "dbrx",
        "deepseek",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v41",
        "dots1",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone",
        "exaone4",
        "exaone_moe",
        "falcon_h1",
        "gear",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_text",
        "glm",
        "glm4",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "gptj",
        "granite",
        "granitemoe",
        "granitemoehybrid",
        "helium",
        "hunyuan",
        "hunyuan_v1_dense",
        "internlm2",
        "internlm3",
        "iquestloopcoder",
        "jamba",
        "kimi_k25",
        "kimi_k3",
        "kimi_linear",
        "kimi_vl",
        "laguna",
        "lfm2",
        "lfm2-vl",
        "lfm2_moe",
        "lille-130m",
        "llama",
        "llama4",
        "llama4_text",
        "longcat_flash",
        "longcat_flash_ngram",
        "mamba",
        "mamba2",
        "mellum",
        "mimo",
        "mimo_v2_flash",
        "minicpm",
        "minicpm3",
        "minimax",
        "minimax_m3_vl",
        "ministral3",
        "mistral3",
        "mistral4",
        "mixtral",
        "muse_glimmer",
        "muse_spark",
        "nanbeige",
        "nanochat",
        "nemotron",
        "nemotron-nas",
        "nemotron_h",
        "olmo",
        "olmo2",
        "olmo3",
        "olmo_hybrid",
        "olmoe",
        "openelm",
        "phi",
        "phi3",
        "phi3small",
        "phimoe",
        "phixtral",
        "pixtral",
        "plamo",
        "plamo2",
        "plamo3",
        "prism_hadamard_qwen35",
        "qwen",
        "qwen2",
        "qwen2_moe",
        "qwen2_vl",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
        "qwen3_vl_moe",
        "recurrent_gemma",
        "rwkv7",
        "seed_oss",
        "smollm3",
        "solar_open",
        "spark2_5",
        "stablelm",
        "starcoder2",
        "step3p5",
        "talkie",
        "telechat3",
        "youtu_llm",
    ]
)
OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deepseek_v41_text": "deepseek_v41",
        "falcon_mamba": "mamba",
        "gemma4_unified": "gemma4",
        "iquestcoder": "llama",
        "joyai_llm_flash": "deepseek_v3",
        "kimi_k2": "deepseek_v3",
        "llava": "mistral3",
        "minimax_m2": "minimax",
        "mistral": "llama",
        "qwen2_5_vl": "qwen2_vl",
        "xverse": "llama",
    }
)
"""Model types that a file of another name runs."""
OWN_CACHE: Final = frozenset(
    [
        "afm7",
        "afmoe",
        "baichuan_m1",
        "bailing_hybrid",
        "bailing_moe_linear",
        "bailing_moe_v3",
        "cohere2",
        "deepseek_v32",
        "deepseek_v41",
        "exaone4",
        "exaone_moe",
        "falcon_h1",
        "gear",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_text",
        "glm_moe_dsa",
        "gpt_oss",
        "granitemoehybrid",
        "iquestloopcoder",
        "jamba",
        "kimi_k3",
        "kimi_linear",
        "laguna",
        "lfm2",
        "lfm2-vl",
        "lfm2_moe",
        "llama",
        "llama4",
        "longcat_flash",
        "longcat_flash_ngram",
        "mamba",
        "mamba2",
        "mellum",
        "mimo_v2_flash",
        "minimax_m3_vl",
        "ministral3",
        "muse_glimmer",
        "muse_spark",
        "nanbeige",
        "nemotron-nas",
        "nemotron_h",
        "olmo3",
        "olmo_hybrid",
        "plamo2",
        "plamo3",
        "prism_hadamard_qwen35",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv7",
        "spark2_5",
        "step3p5",
    ]
)
"""Files that make their cache themselves: ``--max-kv-size`` is for the others."""
SHARDED: Final = frozenset(
    [
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v41",
        "exaone_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gpt_oss",
        "iquestloopcoder",
        "kimi_k25",
        "kimi_k3",
        "llama",
        "longcat_flash",
        "longcat_flash_ngram",
        "minimax",
        "minimax_m3_vl",
        "ministral3",
        "mistral4",
        "muse_spark",
        "prism_hadamard_qwen35",
        "qwen2",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_moe",
        "solar_open",
        "step3p5",
    ]
)
"""Files with a ``shard``, which divides a model over machines."""
PIPELINED: Final = frozenset(
    [
        "bailing_hybrid",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v41",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "minimax_m3_vl",
        "ministral3",
        "mistral4",
        "muse_spark",
        "qwen2",
        "qwen3_moe",
        "qwen3_next",
        "solar_open",
    ]
)
"""Files whose layers can be dealt out in stages."""
MODEL_DTYPE_STATES: Final = frozenset({"bailing_moe_linear", "jamba", "mamba", "recurrent_gemma", "rwkv7"})
"""Files whose recurrent states are in the model dtype; the others have them in fp32."""
INDEX_ONCE: Final = frozenset({"minimax_m3_vl"})
"""Files whose indexer keys have values of width 0 beside them; the others store the keys as values again."""
EXPANDED: Final = frozenset({"deepseek_v2", "minicpm3", "youtu_llm"})
"""Files that keep keys and values of every head where the model has a latent."""
INDEXED_EVERYWHERE: Final = frozenset({"deepseek_v32", "glm_moe_dsa"})
"""Files with indexer keys on every layer, those that share them with another layer included."""
CHUNKED: Final = frozenset({"llama4"})
"""Files with a ``ChunkedKVCache``, which cannot be joined with those of other sequences."""
COMPUTED_APART: Final = frozenset({"gemma2", "phi3small", "plamo", "plamo2", "stablelm"})
"""Files that compute with the keys themselves and cannot read a quantized cache."""
LISTED: Final = frozenset({"deepseek_v32", "falcon_h1", "glm_moe_dsa", "minimax_m3_vl"})
"""Files with a ``CacheList`` in each layer, which is never quantized."""
_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("baichuan_m1", "deepseek_v41", "iquestloopcoder", "longcat_flash", "longcat_flash_ngram", "nanbeige"),
            "mlx-lm 0.32.2 runs it with a cache of its own kind, for which there is no rule yet",
        ),
        "olmo": "the file of mlx-lm 0.32.2 reads OLMo's own first format, and not this one",
        "phi-msft": "the file of mlx-lm 0.32.2 (phixtral) does not read the dimensions of this config",
    }
)
"""Model type -> why it is refused although there is a file for it."""


def file_of(model: ModelSpec) -> str:
    """The model file that runs a model. Raises :class:`~hwcalc.errors.UnsupportedError` if there is none."""
    name = OTHER_NAMES.get(model.model_type, model.model_type)
    if model.model_type == "bailing_hybrid" and "BailingMoeV3ForCausalLM" in (model.architecture or ""):
        name = "bailing_moe_v3"
    if model.model_type in _REASONS:
        raise UnsupportedError(f"{model.model_type}: {_REASONS[model.model_type]}.", hint="Use: --engine reference")
    if name not in FILES:
        raise UnsupportedError(
            f"mlx-lm 0.32.2 has no model file for {model.model_type}.",
            hint="Use: --engine reference for the formulas alone, or llamacpp on a Mac.",
        )
    return name


def as_read(model: ModelSpec) -> ModelSpec:
    """The model with the layers that its file builds, where those are not the config's."""
    if file_of(model) not in INDEXED_EVERYWHERE:
        return model
    return model.once("as mlx reads it", lambda: _indexed(model))


def _indexed(model: ModelSpec) -> ModelSpec:
    layers = model.stack.layers
    indexers = {kind for layer in layers for kind in layer if isinstance(kind, SparseIndexer)}
    if len(indexers) != 1 or all(not indexers.isdisjoint(layer) for layer in layers):
        return model
    whole = tuple(layer if not indexers.isdisjoint(layer) else (*layer, *indexers) for layer in layers)
    return replace(model, readings={**model.readings, "mlx": Stack(whole)})
