"""Which cache policies work with transformers: those of kvpress, whose hooks cut the tensors of a cache behind each attention layer.

A hook reads keys and values out of the cache and puts the survivors back (``kvpress/presses/base_press.py``). With a QuantizedCache it
unpacks all of a layer, cuts, and quantises what is left; what it reads of a static cache are all positions, empty ones too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.policies import Support
from hwcalc.engines.transformers_layers import cache_class, version_numbers
from hwcalc.policies.base import KVPRESS, Chosen

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment

KVPRESS_RELEASE: Final = "kvpress 0.5.5"
_TOO_NEW: Final = (5, 3)
_NEWEST: Final = "5.2"
"""Source: the requirements of kvpress 0.5.5, transformers>=4.56,<5.3."""
_TESTED: Final = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma3")
"""Model types of kvpress 0.5.5, SUPPORTED_MODELS of base_press.py; it warns of all others."""
_ELSEWHERE: Final = {
    "rkv": "R-KV's own code patches Llama and Qwen of transformers 4.48 to 4.55 (its requirements.txt)",
    "quest": "Quest's own kernels are for transformers 4.45.2 (its pyproject.toml)",
    "triattention": "TriAttention's own code replaces the forward pass of Llama and Qwen models and cuts a DynamicCache; "
    "generate by itself has no such option",
    "h2o": "H2O's own code is for older models; the nearest in kvpress is observedattention, which cuts the prompt alone",
    "scissorhands": "no package for transformers has it",
}
"""Policies that are not in kvpress, and where they are."""


def policy_support(deployment: Deployment, chosen: Chosen) -> Support:
    """Whether kvpress has the policy, for this release, cache class and model; or what it would take."""
    policy, cache = deployment.setup.policy, cache_class(deployment)
    elsewhere = next((_ELSEWHERE[one.policy.name] for one in chosen.whole if one.policy.name in _ELSEWHERE), None)
    if elsewhere is not None:
        return Support(offered=False, how=f"{elsewhere}.")
    if any(not one.policy.press for one in chosen.whole):
        return Support(offered=False, how=f"{KVPRESS_RELEASE} does not have it: it would be a press of your own.")
    if any(one.get("budget") is not None for one in chosen.whole) or (policy is not None and policy.rules != KVPRESS):
        return Support(
            offered=False, how=f"{KVPRESS_RELEASE} has it by its own rules alone: give a ratio, without --policy-rules."
        )
    if (version_numbers(deployment.version) or ()) >= _TOO_NEW:
        return Support(
            offered=False,
            how=f"{KVPRESS_RELEASE} has it, for transformers 4.56 to {_NEWEST} alone: --engine transformers@{_NEWEST}.",
        )
    if cache == "static":
        return Support(
            offered=False, how="A static cache holds all of its positions whatever is dropped: --engine-option cache=dynamic."
        )
    if cache == "offloaded":
        return Support(
            offered=False,
            how=f"{KVPRESS_RELEASE} cuts on the GPU what an offloaded cache keeps in host memory: --engine-option cache=dynamic.",
        )
    if deployment.model.model_type not in _TESTED:
        return Support(
            offered=False, how=f"{KVPRESS_RELEASE} has it, and is not tested with {deployment.model.model_type} models."
        )
    how = f"{KVPRESS_RELEASE}, {chosen.policy.press}"
    if cache == "quantized":
        how += ": what is left of a layer is quantised again"
    return Support(offered=True, how=f"{how}.")
