"""TriAttention's plug-in for vLLM: the one cache policy that vLLM can have.

Source: WeianMao/triattention c3744ee, triattention/vllm/runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

_PLUGIN: Final = "triattention"


def is_plugin(chosen: Chosen) -> bool:
    """Whether the plug-in does this policy. It cuts while a long prompt is read in chunks, and not behind the whole prompt."""
    return chosen.policy.name == _PLUGIN


def chunked_tokens(chosen: Chosen, prompt: int, chunk: int) -> int:
    """Tokens of slots that the plug-in's scheduler gives a sequence at the most, while its prompt is read in chunks.

    Blocks of a chunk are allocated before the cut, and the cut leaves the chunk behind it alone: a budget and two chunks, or an interval
    less one and a chunk. A prompt in one chunk lies there whole. Source: its hook_runtime_context.py (``effective_tokens``) and runner.py
    (``execute_model``).

    >>> from hwcalc.policies.parse import parse_policy
    >>> chunked_tokens(parse_policy("triattention"), 32_768, 2048), chunked_tokens(parse_policy("triattention"), 32_768, 64)
    (6144, 2239)
    """
    budget: int = chosen["kv_budget"] + (prompt if chosen["prefill_outside_budget"] else 0)
    trigger: int = budget + chosen["divide_length"]
    return min(prompt + 1, max(trigger - 1, budget + chunk) + chunk)
