"""Which of its two model runners a release of vLLM uses for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.setup import Parallel
from hwcalc.formulas import Role
from hwcalc.profiles.engines import planned_version, vllm_profile

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec


def runs_second_runner(model: ModelSpec, version: str, *, quantized: bool) -> bool:
    """Whether this version runs the model with its second model runner by default. ``quantized`` says whether its weights are."""
    from hwcalc.engines.vllm.shards import VllmRank
    from hwcalc.engines.widths import expert_width

    planned = planned_version(version)
    rule = next(entry for entry in vllm_profile().runner2 if entry.since <= planned)
    listed = model.architecture in rule.architectures
    has_experts = model.once("vllm experts", lambda: bool(expert_width(model, VllmRank(model, Parallel()))[0]))
    if rule.models == "all":
        return True
    if rule.models == "dense":
        return listed or not (has_experts or has_states(model))
    if rule.models == "unquantized":
        return listed and not has_experts and not quantized
    return listed


def has_states(model: ModelSpec) -> bool:
    """Whether layers keep a recurrent state."""
    groups = model.stack.groups
    return model.once("has states", lambda: any(tensor.role is Role.STATE for group in groups for tensor in group.kind.tensors()))
