"""The weights that one rank of transformers holds, by the library's own tensor-parallel plans.

A plan names the modules that are cut. Every other module is whole on every rank: for example attention where the plan cuts only
experts (DeepSeek-V3), and everything except the head where there is no plan (gpt-oss). ``plans.json`` has the plans of the
library (``scripts/transformers_plans.py`` writes it). 5.23 and 5.24 add one rule: they cut an embedding named ``embed_tokens`` by rows
(``distributed/mixin.py`` init_parallel_plans). If a dimension does not divide evenly, the last rank gets a shorter slice
(``distributed/tensor_parallel.py``). Key and value heads are never repeated: a model with fewer heads than ranks loads, and then fails
in its first forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.data import json_data
from hwcalc.engines.rank_weights import (
    ROW_PARALLEL,
    Rank,
    Rules,
    Sharding,
    cut_inputs,
    cut_outputs,
    distribute_experts,
    module_of,
)
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.errors import UsageError
from hwcalc.formulas import ExpandedLatentAttention, LayerKind
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme

_INNER: Final = ("text", "vision", "audio")


class ShardPlan(Record):
    """The modules that are cut for a model type, by the ends of their paths."""

    outputs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    experts: bool = False
    """True if each expert's matrices are cut."""
    dealt: bool = False
    """True if whole experts can be distributed over ranks."""
    heads: bool = False
    """True if keys and values stay on the rank that computes them, so that a head cannot be split."""

    @property
    def is_empty(self) -> bool:
        """True if tensor parallelism cuts nothing by this plan."""
        return not (self.outputs or self.inputs or self.experts)


@lru_cache(maxsize=1)
def _table() -> tuple[Mapping[str, ShardPlan], Mapping[str, frozenset[str]]]:
    """Plans by model type, and sets of model types: whose head is cut ``out`` (by outputs) or ``in``, whose embedding is ``whole``."""
    table: Mapping[str, Any] = json_data(__file__, "plans.json")
    plans: dict[str, ShardPlan] = {}
    for entry in table["plans"]:
        flags = {name: entry[name] for name in ("experts", "dealt", "heads")}
        plan = ShardPlan(outputs=frozenset(entry["out"]), inputs=frozenset(entry["in"]), **flags)
        plans |= dict.fromkeys(entry["types"], plan)
    types = {**table["heads"], "whole": table["whole_embeddings"]}
    return plans, {name: frozenset(listed) for name, listed in types.items()}


def plan_of(model: ModelSpec, part: Part = Part.LANGUAGE) -> ShardPlan:
    """The plan for a part of a model, from its model type and the types of its inner configs; empty if there is none."""

    def union() -> ShardPlan:
        plans = _table()[0]
        inner = _INNER[:1] if part is Part.LANGUAGE else _INNER[1:]
        matching = [plans[name] for name in (model.facts.part_types.get(key, "") for key in inner) if name in plans]
        outer = plans.get(model.model_type)
        if outer is not None and (part is not Part.LANGUAGE or not matching):
            matching.append(outer)
        return ShardPlan(
            outputs=frozenset().union(*(plan.outputs for plan in matching)),
            inputs=frozenset().union(*(plan.inputs for plan in matching)),
            experts=any(plan.experts for plan in matching),
            dealt=any(plan.dealt for plan in matching),
            heads=any(plan.heads for plan in matching),
        )

    return model.once(("transformers", "plan", part), union)


def check_layout(model: ModelSpec, parallel: Parallel) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for parallel sizes that transformers 5.24 refuses or cannot run."""
    plan = plan_of(model)
    listed, tp, ep = _table()[1], parallel.tp, parallel.ep
    if tp > 1 and plan.is_empty and model.model_type not in listed["out"] | listed["in"]:
        raise UsageError(f"transformers has no tensor-parallel plan for {model.model_type}.", hint="Use: --tp 1, or --pp")
    if ep > 1 and not plan.dealt:
        raise UsageError(f"transformers has no expert-parallel plan for {model.model_type}.", hint="Use: --ep 1")
    if ep > 1 and model.counted is not None:
        experts = {weight.copies for block in model.counted.blocks for weight in block.weights if weight.copies > 1}
        if any(count % ep for count in experts):
            counts = ", ".join(f"{count:,}" for count in sorted(experts))
            raise UsageError(f"transformers deals {counts} experts out evenly only: not over {ep:,} ranks.", hint="Lower --ep.")
    if tp > 1 and plan.heads:
        for group in model.stack.groups:
            groups = group.kind.dims().get("num_key_value_heads", tp)
            if groups % tp:
                raise UsageError(
                    f"transformers cuts {groups:,} key/value heads over {tp:,} ranks in the middle of a head and then fails.",
                    hint="Use a --tp that divides them.",
                )


class TransformersRank(Rank):
    """Cuts a tensor by the plan of its model type, to the part on the fullest rank."""

    def __init__(self, model: ModelSpec, parallel: Parallel = ALONE) -> None:
        super().__init__(model, parallel)
        self._plans = {part: plan_of(model, part) for part in Part}
        self._listed = _table()[1]
        self._text = model.facts.part_types.get("text", model.model_type)

    def how(self, block: Block, weight: Weight) -> Sharding:
        plan, listed = self._plans[block.part], self._listed
        if weight.copies > 1:
            return "experts"
        if weight.role is WeightRole.HEAD:
            family = self.model.model_type
            return "inputs" if family in listed["in"] else "outputs" if family in listed["out"] else "whole"
        module = weight.path.removesuffix(".weight").removesuffix(".bias")
        if self.is_vocabulary(weight) and not plan.is_empty and self._text not in listed["whole"]:
            return "outputs"
        if _ends_in(module, plan.outputs):
            return "outputs"
        return "inputs" if _ends_in(module, plan.inputs) and weight.role is not WeightRole.BIAS else "whole"

    def expert(self, block: Block, weight: Weight) -> Weight:
        plan = self._plans[block.part]
        if self.ep > 1 and plan.dealt:
            return distribute_experts(weight, self.ep)
        if self.tp == 1 or not plan.experts or weight.role is WeightRole.BIAS:
            return weight
        return cut_inputs(weight, self.tp) if module_of(weight) in ROW_PARALLEL else cut_outputs(weight, self.tp)


def _ends_in(module: str, endings: frozenset[str]) -> bool:
    return any(module == ending or module.endswith(f".{ending}") for ending in endings)


class TransformersRules(Rules):
    """The rules of transformers 5.24: its plans, and pipeline stages of which the last takes the remainder."""

    engine: ClassVar[str] = "transformers"
    rank: ClassVar[type[Rank]] = TransformersRank
    gathers_logits: ClassVar[bool] = True
    """The plans cut ``lm_head`` as ``colwise_gather_output``, which gathers the logits on every rank."""

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        """Keys and values are divided only if their projection leaves them on the rank that computes them.

        If the projection gathers them (Phi-3, OLMo-2) or is whole (gpt-oss), every rank keeps all heads. Recurrent states are whole
        as well: the projections of Qwen3-Next gather.
        """
        plan = plan_of(model)
        if isinstance(kind, AttentionKind) and plan.heads:
            return kind.shard(tp)
        if isinstance(kind, ExpandedLatentAttention) and any(module.endswith("kv_b_proj") for module in plan.outputs):
            return kind.shard(tp)
        return kind

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        """The last stage takes the remainder (``distributed/pipeline_parallel.py``): 32 layers on three stages are 10, 10 and 12."""
        each = layers // pp
        return tuple(range(stage * each, layers if stage == pp - 1 else (stage + 1) * each) for stage in range(pp))

    def held(self, scheme: Scheme | None) -> Scheme | None:
        """``AutoBitLinear`` of BitNet has its weights in the dtype of the model (``integrations/bitnet.py``, BitNetDeserialize)."""
        return None if scheme is not None and scheme.unpacked_by_transformers else scheme


TRANSFORMERS: Final = TransformersRules()
