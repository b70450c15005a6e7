"""The tables that vLLM builds on each pipeline stage. Several model classes build them on every stage, used or not."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.stages import Tables
from hwcalc.formulas import pipeline_stages

HASHED: Final = "hashed moe"
"""The kind of the first blocks of DeepSeek-V4, which are routed by a table."""

layers_of_stages: Final = pipeline_stages
"""vLLM 0.33, ``distributed/utils.py`` get_pp_indices: the remainder goes to the stages before the last."""

_TABLES_EVERYWHERE: Final = frozenset(
    {
        "bloom",
        "chatglm",
        "cohere",
        "cohere2",
        "dbrx",
        "falcon",
        "falcon_mamba",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "gpt2",
        "gpt_oss",
        "gptj",
        "granitemoe",
        "granitemoehybrid",
        "granitemoeshared",
        "internlm2",
        "jamba",
        "mamba",
        "minicpm",
        "mixtral",
        "molmo",
        "nemotron_h",
        "olmo_hybrid",
        "olmoe",
        "opt",
        "orion",
        "phimoe",
        "qwen2_moe",
        "qwen3_moe",
        "stablelm",
    }
)
"""Model types whose embedding, last norm and head are built on every pipeline stage."""
_TABLES_BUT_NO_NORM: Final = frozenset({"qwen3_next"})
_EMBEDDING_EVERYWHERE: Final = frozenset({"lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe"})

TABLES: Final = Tables(all=_TABLES_EVERYWHERE, but_no_norm=_TABLES_BUT_NO_NORM, embedding=_EMBEDDING_EVERYWHERE)
