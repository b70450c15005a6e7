"""The memory of a GPU: the budget of the cache, which is a share of what is left after loading; and both by length and number of sequences.

``available = (total - peak) x free_gpu_memory_fraction``; the peak is that of weights and a batch of ``max_num_tokens`` dummy tokens, and
what lies outside torch (pyexecutor/_util.py configure_kv_cache_capacity and _cal_max_memory of the sources of 1.4; read, not run). The share
that stays free is a part of its own here. Its ends are those of what is left, so that the range of the budget is a little wide.

Weights are divided as everybody does, but left-over layers go to the first stages (mapping.py pp_layers). The cache is what the manager's own
rules say, so that its curve is no sum of terms: pools of fixed shares, in whole pages.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.forms import ENDS, OPPOSITE, Amount, Curve, Memory, MemoryForm, OwnAmount, PartForm
from hwcalc.engines.general_form import form_with
from hwcalc.engines.memory import (
    Budget,
    BudgetPart,
    Section,
    budget_of,
    estimated,
    forward,
    loaded_beside,
    measurements,
    outside,
)
from hwcalc.engines.rank_weights import RankBytes, Rules, cut_blocks, module_of
from hwcalc.engines.steps import step
from hwcalc.engines.subjects import AdapterRules
from hwcalc.engines.tensorrt_llm.pool import AllNeeds
from hwcalc.engines.weights_beside import adapted
from hwcalc.formulas.arithmetic import floored, larger, smaller
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.model import Noted
from hwcalc.profiles.calibration import overheads_kind
from hwcalc.profiles.engines import runtime_profile

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.engine import TensorrtDeployment, TensorrtOccupancy

KEPT_FREE: Final = "kept free"
"""The part that ``free_gpu_memory_fraction`` leaves."""


class _TensorrtRules(Rules):
    engine: ClassVar[str] = "tensorrt-llm"
    gathers_logits: ClassVar[bool] = True

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        each, more = divmod(layers, pp)
        starts = [stage * each + min(stage, more) for stage in range(pp + 1)]
        return tuple(range(start, stop) for start, stop in pairwise(starts))


TENSORRT: Final = _TensorrtRules()


_OPTIMAL_RANK: Final = 8
_LARGEST_RANK: Final = 64
"""``optimal_adapter_size`` and ``max_adapter_size`` of ``PeftCacheConfig``."""
_HOST_CACHE: Final = 1 << 30
"""``host_cache_size`` where nobody says ``max_cpu_loras``."""


class TensorrtAdapters(AdapterRules):
    """A cache of ``max_loras`` adapters on each GPU, and one of ``max_cpu_loras`` in the host memory of each process.

    Both are pages for as many modules of rank 1 as the adapters have, each as wide as the widest module in whole pieces of the narrowest:
    with modules of 5,120 and 18,432 numbers a rank, every module takes 4 x 5,120. So they take more than the adapters. Source:
    ``PeftCacheManager::getPageManagerConfig`` and ``getMaxNumSlots`` of cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp,
    pyexecutor/_util.py; read, not run. Adapters of experts, which have no modules there, are as large as they are.
    """

    reserved_by = "max_loras"
    loaded_by = "max_cpu_loras"

    def on_gpu(self) -> RankBytes | None:
        size = self._cache_bytes(self.lora.count)
        plain = super().on_gpu()
        if size is None or plain is None:
            return plain
        source = f"TensorRT-LLM peftCacheManager.cpp: max_loras {self.lora.count:,} x rank {self.lora.rank:,}, in pages"
        return RankBytes(low=size, expected=size, high=max(size, plain.high), source=source)

    def on_host(self) -> tuple[int, int] | None:
        size = _HOST_CACHE if self.lora.loaded is None else self._cache_bytes(self.lora.loaded)
        return None if size is None else (size * self.deployment.setup.gpus,) * 2

    @property
    def loaded(self) -> int:
        """As many as a host cache of 1 GiB holds, where nobody says; at least those on the GPU."""
        each = self._cache_bytes(1)
        return self.lora.loaded or max(self.lora.count, _HOST_CACHE // each if each else 0)

    def _cache_bytes(self, adapters: int) -> int | None:
        """Bytes of a cache for so many adapters; ``None`` if the model's weights are not counted, or only experts have adapters."""
        deployment, lora = self.deployment, self.lora
        if deployment.model.counted is None:
            return None
        blocks = deployment.model.counted.blocks
        cut = cut_blocks(deployment.model, blocks, TENSORRT.rank(deployment.model, deployment.parallel), TENSORRT)
        modules = {
            module_of(weight): sum(weight.shape)
            for block in cut
            for weight in block.weights
            if weight.copies == 1 and adapted(block, weight, lora)
        }
        if not modules:
            return None
        layers, page = len(deployment.model.stack), min(modules.values())
        widest = max(modules.values())
        slots = lora.rank * layers * len(modules) * adapters * ceil(widest / page)
        local = ceil(layers / deployment.parallel.pp)
        each = min(lora.rank, _OPTIMAL_RANK) * local * sum(ceil(size / page) for size in modules.values())
        slots_per_page = max(each, ceil(min(lora.rank, _LARGEST_RANK) * widest / page))
        return ceil(slots / slots_per_page) * slots_per_page * page * lora.element_bytes


def dummy_rows(batch: int, tokens: int) -> int:
    """Requests of the dummy batch: prompts of a token less than the longest sequence, until the batch is full."""
    rows: int = -(-batch // smaller(batch, larger(1, tokens - 1)))
    return rows


def plan_budget(occupancy: TensorrtOccupancy) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    from hwcalc.quantization.planned import format_name

    settings = occupancy.settings
    found, notes = loaded_beside(occupancy)
    if found is None:
        return Noted(None, notes)
    gpu, memory, weights = found
    rows, tokens = dummy_rows(settings.batched_tokens, occupancy.tokens), settings.batched_tokens
    weight_format = format_name(occupancy.setup.weights)
    parts = (
        *weights,
        forward(occupancy, (tokens, tokens, tokens), rows, dtype=weight_format if weight_format in FLOATS else None),
        *outside(occupancy, gpu),
        estimated("CUDA graphs", Section.OVERHEAD, runtime_profile().estimate("tensorrt_llm.graphs")),
    )
    whole, measured = budget_of(occupancy, memory, parts, tokens=tokens, rows=rows)
    # What the share leaves of what is left, rounded as the engine rounds: the cache gets ``int(left x fraction)``.
    formula, left = (
        "left - floor(left x free_gpu_memory_fraction)",
        (max(0, whole.low), max(0, whole.expected), max(0, whole.high)),
    )
    made = step(KEPT_FREE, formula, left=left, free_gpu_memory_fraction=settings.fraction)
    source = f"TensorRT-LLM pyexecutor/_util.py _cal_max_memory: free_gpu_memory_fraction {settings.fraction:g} of what is left"
    size = int(made.low), int(made.expected), int(made.high)
    kept = BudgetPart.of(KEPT_FREE, Section.OVERHEAD, size, source, steps=(made,))
    margin = occupancy.setup.hardware.margin or 0
    return Noted(Budget.of(memory, 1.0, margin, (*whole.parts, kept)), (*notes, *measured))


def plan_form(occupancy: TensorrtOccupancy) -> MemoryForm | None:
    """The form of sequences that are alike; ``None`` of others, or if the budget is unknown or partly measured."""

    def parts() -> tuple[PartForm, ...] | None:
        hardware, budget, settings, forms = occupancy.setup.hardware, occupancy.budget, occupancy.settings, list[PartForm]()
        assert hardware.gpu is not None
        assert budget is not None
        if hardware.calibrated and measurements(hardware.gpu.id, overheads_kind(occupancy.engine.name)).value is not None:
            # What was measured holds for batches of one size.
            return None
        for part in budget.parts:
            if part.grows is not None:
                low, expected, high = (DummyBatch(rule=rule, batch=settings.batched_tokens) for rule in part.grows)
                forms.append(PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high))
            elif part.name != KEPT_FREE:
                forms.append(PartForm.constant(part))
        least, middle, most = (
            KeptFree(usable=size, others=tuple(getattr(part, OPPOSITE[end]) for part in forms), share=settings.fraction)
            for end, size in zip(ENDS, budget.usable, strict=True)
        )
        return (*forms, PartForm(name=KEPT_FREE, section=Section.OVERHEAD.value, low=least, expected=middle, high=most))

    return form_with(occupancy, parts, form=PoolForm)


class DummyBatch(OwnAmount, Record):
    """A forward pass of a full batch of prompts: the longer these are, the fewer."""

    rule: Amount
    batch: int

    def at(self, tokens: int, sequences: int) -> int:
        return self.rule.at(tokens, dummy_rows(self.batch, tokens))


class KeptFree(OwnAmount, Record):
    """Bytes that stay free: of what the other parts leave, the cache gets the share ``free_gpu_memory_fraction`` and not the rest."""

    usable: int
    others: tuple[Amount, ...]
    share: float

    def at(self, tokens: int, sequences: int) -> int:
        left = larger(0, self.usable - sum(part.at(tokens, sequences) for part in self.others))
        kept: int = left - floored(left * self.share)
        return kept


class PoolCurve(Curve):
    """The cache: the smallest budget whose pools hold the sequences."""

    deployment: TensorrtDeployment

    def needs(self, tokens: int, sequences: int) -> AllNeeds:
        """The needs of so many sequences of a replica."""
        return AllNeeds(self.deployment.layouts, tokens, sequences)

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes of the cache on each GPU; all GPUs count as the fullest."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return self.needs(tokens, sequences).needed_bytes()

    def total_bytes(self, tokens: int, sequences: int) -> int:
        parallel = self.deployment.setup.parallel
        return parallel.tp * self.needs(tokens, -(-sequences // parallel.dp)).total_bytes(sequences, parallel.dp)


class PoolForm(MemoryForm):
    """The memory equation, where pools of the left bytes must hold the sequences."""

    curve: PoolCurve

    def at(self, tokens: int, sequences: int) -> Memory:
        return _PoolMemory(self, tokens, sequences)


class _PoolMemory(Memory):
    """What the form says of some sequences, whose needs are worked out once."""

    form: PoolForm

    @cached_property
    def _needs(self) -> AllNeeds:
        return self.form.curve.needs(self.tokens, self.replica_sequences)

    @cached_property
    def needed_bytes(self) -> int:
        return self._needs.needed_bytes()

    @cached_property
    def total_bytes(self) -> int:
        parallel = self.form.curve.deployment.setup.parallel
        return parallel.tp * self._needs.total_bytes(self.sequences, parallel.dp)

    def _pool_holds(self, end: str) -> bool:
        left = self.left(end)
        return (left >= 0) & self._needs.holds(left)
