"""Cache policies in vLLM: none of its own; TriAttention comes as a plug-in.

The plug-in wraps methods of the scheduler, the worker, the block manager and the start-up check. It fits the releases that have what it
asks for: ``_prepare_inputs`` with two arguments, and positions and lengths with a NumPy side (from 0.12), and the list of caches in each
layer (to 0.18); with async scheduling or pipeline stages it needs ``log_iteration_details`` too (from 0.14).
Source: WeianMao/triattention c3744ee, triattention/vllm/runtime, beside vLLM 0.10.0 to 0.33.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import is_on
from hwcalc.engines.policies import Support
from hwcalc.engines.vllm.plugin import is_plugin
from hwcalc.engines.vllm.versions import since
from hwcalc.policies.asked import FILL, NO_COMPACTION
from hwcalc.policies.base import Chosen, Effect
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmOccupancy

_FIRST, _FIRST_QUEUED, _AFTER = since("0.12"), since("0.14"), since("0.19")
_COMMON: Final = "kernels that move survivors together, and a scheduler that frees blocks of a running request"


def policy_support(occupancy: VllmOccupancy, chosen: Chosen) -> Support:
    """Whether vLLM has a policy, and how; else what it would take."""
    asked = occupancy.request.policy
    if is_plugin(chosen):
        lacking = _lacking(occupancy)
        if lacking is None and asked is not None and asked.compaction in (FILL, NO_COMPACTION):
            lacking = f"the plug-in repacks in order, always: --compaction {asked.compaction} is switched off in it"
        if lacking is not None:
            return Support(offered=False, how=f"TriAttention's plug-in: {lacking}")
        how = (
            f"TriAttention's plug-in (WeianMao/triattention c3744ee) with --enforce-eager, --no-enable-prefix-caching and "
            f"{' '.join(_variables(chosen))}; it warns where the start-up check would refuse, and a smaller --max-num-batched-tokens lowers "
            "what a long prompt takes"
        )
        options = {"enforce_eager": "true", "enable_prefix_caching": "false"}
        return Support(offered=True, how=how, options=options, environment=_variables(chosen))
    how = f"vLLM {occupancy.version} drops no tokens, but for windows and chunks of the model; it would take {_needs(chosen)}"
    return Support(offered=False, how=how)


def _variables(chosen: Chosen) -> tuple[str, ...]:
    """What tells the plug-in its budget."""
    told = {"KV_BUDGET": chosen["kv_budget"], "DIVIDE_LENGTH": chosen["divide_length"]}
    if chosen["prefill_outside_budget"]:
        told |= {"PROTECT_PREFILL": "true", "INCLUDE_PREFILL_IN_BUDGET": "false"}
    return tuple(f"TRIATTN_RUNTIME_{name}={value}" for name, value in told.items())


def _lacking(occupancy: VllmOccupancy) -> str | None:
    """What keeps the plug-in from working in this release, with these options; ``None`` if nothing does."""
    version, request = planned_version(occupancy.version), occupancy.request
    queued = request.parallel.pp > 1 or is_on(request.options.get("async_scheduling"))
    if request.parallel.dcp > 1:
        return "it knows nothing of --decode-context-parallel-size"
    if not _FIRST <= version < _AFTER:
        return f"it fits vLLM 0.12 to 0.18, and not {occupancy.version}. Use: --engine vllm@0.18"
    if version < _FIRST_QUEUED and queued:
        return "its engine loop fits vLLM 0.14 to 0.18 where batches are queued. Use: --engine vllm@0.18"
    if any(len(group.distinct) > 1 for group in occupancy.layout.groups) or len(occupancy.layout.groups) > 1:
        return "it cuts all groups of layers to one length, and windows and states with them"
    return None


def _needs(chosen: Chosen) -> str:
    """What an engine with blocks would need for a policy."""
    effects = {one.policy.effect for one in chosen.whole}
    if Effect.MASKS in effects:
        return "a block table for each head, and attention that reads them: with one table for all heads masked tokens stay"
    if Effect.ZEROES in effects:
        return "pages of fewer channels; zeroes are stored"
    if Effect.READS_LESS in effects:
        return "least and greatest keys of each page, and attention over the chosen pages; nothing comes back"
    if any(one.policy.needs == "eager" for one in chosen.whole):
        return f"attention that gives its scores, which flash attention never writes, and {_COMMON}"
    if chosen.policy.by_place:
        return "a scheduler that frees blocks between sinks and window, and positions inside the cache"
    return f"scores of the keys, and {_COMMON}"
