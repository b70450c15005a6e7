"""The longest sequence that vLLM accepts for a model, unless it is told to accept longer ones.

A config of the tokenizer may lower it; kvplan does not read that.
Source: vLLM, ``_get_and_verify_max_len`` of config.py, since 0.11 of config/model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.model import ModelSpec

LONGER: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
"""What makes vLLM accept a longer ``--max-model-len``. Every release that is known here reads it."""
_STRETCHED_ALREADY: Final = frozenset({"su", "longrope", "llama3"})
"""Kinds of rotary scaling with which a config names the stretched length."""
_YARN: Final = "yarn"


def longest_accepted(model: ModelSpec, rules: Rules) -> int | None:
    """The largest ``--max-model-len`` for this model; ``None`` if its config names no length."""
    facts = model.facts
    longest = facts.model_max_length or model.max_position_embeddings
    if longest is None:
        return None
    factor = 1.0
    # Gemma 3 names the stretched length, though its kind of scaling does not say so.
    for scaling in () if "gemma3" in model.model_type else facts.rope_scalings:
        if scaling.kind in _STRETCHED_ALREADY or (scaling.kind == _YARN and not rules.multiplies_yarn):
            continue
        factor = scaling.factor or factor
        if scaling.kind == _YARN and scaling.original_tokens is not None:
            longest = scaling.original_tokens
    return max(int(longest * factor), facts.model_max_length or 0)
