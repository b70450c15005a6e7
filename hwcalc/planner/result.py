"""The answer of a plan: one frozen object, integers throughout, whose fields are the JSON document.

It has the request, the cache, the memory of the fullest GPU or of each device, the verdict with its limits and advice, the bound on speed, and
what a cache policy or shared tokens change. Every section says by its :class:`~hwcalc.model.Definition` what its numbers are. Spans, layer
numbers and verdicts are values here; they become text in reports and in :meth:`Plan.to_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, overload

from msgspec import field

from hwcalc.documents import Answer, Part
from hwcalc.engines.pool import PoolGroup, PoolInfo, Try
from hwcalc.engines.steps import Step
from hwcalc.engines.stored import SharedBlocks
from hwcalc.engines.subjects import AdaptersInfo
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Span
from hwcalc.model import Definition, Note
from hwcalc.planner.planned_weights import WeightsInfo
from hwcalc.planner.speed_result import SPEED_COLUMNS, CostInfo, SpeedInfo, cost_row
from hwcalc.planner.verdict import Layout, Verdict, places_text
from hwcalc.planner.within_result import WithinInfo
from hwcalc.policies.base import Effect, Extra, Quality
from hwcalc.units import human_bytes


class PerGpu(Record):
    """The fullest GPU. Null is unknown or not planned: activations and overhead need hardware."""

    weights: int | None
    cache: int
    activations: int | None
    overhead: int | None
    total: int | None


class DeviceInfo(Record):
    """What one device holds: ``gpu0``, ``gpu1``, and ``host`` for the memory of the host.

    ``layers`` are the blocks that lie there, and ``experts`` those of which it has the experts alone. ``output`` says whether it has the
    output layer too.
    """

    device: str
    layers: LayerNumbers
    experts: LayerNumbers
    output: bool
    weights: int
    cache: int
    activations: int
    overhead: int
    total: int
    total_low: int
    total_high: int
    moved: int = 0
    """Bytes of weights that patterns of the user (``override_tensor``) have put in host memory."""


class PolicyLayers(Record):
    """Layers that the policy leaves alike: tokens of a sequence behind the prompt (the least too, where the text decides), at the most,
    within a step before it cuts, and at the end; ``read`` are those that a decode step reads behind the prompt, null where it reads all.
    """

    layers: LayerNumbers
    kept: int
    kept_low: int
    most: int
    last: int
    read: int | None


class PolicyBlocks(Record):
    """What the policy gives back of the blocks of one sequence at its largest cut, in all groups of layers that it cuts.

    ``held`` blocks have the ``before`` tokens; ``nominal`` are as many as the dropped tokens would fill. Without compaction a block goes
    when no head and no layer of its group needs a token of it: ``free`` is exact where the rule says which tokens stay, else expected where
    ``choosers`` heads choose at random on their own, between ``free_low`` and ``free_high``. ``free_compacted`` go when survivors move
    together: ``repack_copies`` slots of each head and layer in order, of which TriAttention's code changes ``rewritten_slots``, or
    ``fill_copies`` into holes. ``steady`` is the most that a sequence holds behind its prompt, ``most`` at any time.
    """

    block_size: int
    before: int
    held: int
    nominal: int
    choosers: int
    free: int | float
    free_low: int
    free_high: int
    free_compacted: int
    repack_copies: int
    fill_copies: int
    rewritten_slots: int
    repack_bytes: int
    fill_bytes: int
    steady: int
    most: int
    definition: Definition
    steps: tuple[Step, ...] = ()


class PolicyInfo(Record):
    """A cache policy at work on the planned sequences.

    ``offered`` says whether the engine has it, ``support`` how, or what it would take; the plan of a policy that the engine lacks is as if
    it had it, and ``definition`` is ``assumed``. Bytes are those of the cache of all sequences: without the policy, behind the prompt, at
    the most while text is generated, and at the end; ``low`` is the least that the text may leave. ``prefill_peak_bytes`` are cache and
    ``beside`` while the last layer of the prompt is scored, on one GPU, and ``full_prefill_peak_bytes`` that cache
    without the policy. ``masked_pairs`` of a token and a head are stored and have no weight, ``masked_low_pairs`` at the least; null where
    nothing is masked. ``loses`` says that the memory equation needs more with the policy than without. ``options``, ``flags`` and
    ``environment`` are what an engine that has it is started with beside: engine options, words of its command, and variables.
    ``steps`` say how the fullest moment of the prefill comes about.
    """

    name: str
    effect: Effect
    rules: str
    attention: str
    offered: bool
    support: str
    definition: Definition
    prompt: int
    output: int
    layers: tuple[PolicyLayers, ...]
    full_bytes: int
    prefill_bytes: int
    prefill_low_bytes: int
    most_bytes: int
    most_low_bytes: int
    last_bytes: int
    saved_bytes: int
    masked_pairs: int | None
    masked_low_pairs: int | None
    prefill_peak_bytes: int
    full_prefill_peak_bytes: int
    loses: bool
    blocks: PolicyBlocks | None
    beside: tuple[Extra, ...]
    quality: tuple[Quality, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


class SharingInfo(Record):
    """Tokens that several sequences have in common, and what keeping them once saves.

    ``sequences`` are all that are alive: ``batch`` x ``samples`` x ``beams``; ``lengths`` are their tokens and how many requests have as many,
    where they are unlike. ``shared_tokens`` are kept once for all of them, and ``request_tokens`` once for the branches of one request;
    ``own_tokens`` are those of each sequence alone, of the longest. ``padded_tokens`` are kept beside them for no other reason than that a
    sequence is shorter than the longest.

    Of a paged cache, ``groups`` has the blocks of each group of layers, and the other blocks are of all groups together:
    ``shared_blocks`` once for all, ``request_blocks`` of each request and ``own_blocks`` of each sequence. ``copied_blocks`` are last blocks
    of prompts that are not kept once, though all their tokens are the same: every branch but one has its own.

    ``unshared_bytes`` is the cache with every sequence by itself. ``low_bytes`` is the cache while beams still share all but their last
    block; they may part at the first token, and the plan has room for that. ``support`` says how the engine shares, or that it does not.
    """

    definition: Definition
    offered: bool
    support: str
    sequences: int
    shared_tokens: int
    request_tokens: int
    own_tokens: int
    shared_blocks: int | None
    request_blocks: int | None
    own_blocks: int | None
    copied_blocks: int | None
    unshared_bytes: int
    saved_bytes: int
    low_bytes: int | None = None
    padded_tokens: int = 0
    lengths: tuple[tuple[int, int], ...] = ()
    groups: tuple[SharedBlocks, ...] = ()
    steps: tuple[Step, ...] = ()


BEYOND: Final = "beyond-maximum"
"""The code of the warning of a length beyond the model's."""
NO_VERDICT: Final = "no-verdict"
"""The code of the warning that hardware was named, but that nobody can say whether the plan fits."""


class LayerInfo(Record):
    """One layer kind, how often the model has it, and its numbers."""

    kind: str
    count: int
    layers: LayerNumbers
    dims: dict[str, int | bool]


class ParametersInfo(Record):
    """Parameter counts; null is unknown."""

    total: int | None
    active: int | None
    mtp: int | None
    definition: str


class ModelInfo(Part):
    """The model as it was read, and where from."""

    id: str
    source: str
    location: str
    revision: str | None
    model_type: str
    architecture: str | None
    layers: tuple[LayerInfo, ...]
    parameters: ParametersInfo
    max_position_embeddings: int | None
    hidden_size: int | None
    vocab_size: int | None
    dtype: str | None


class RequestInfo(Part):
    """What was planned, defaults filled in."""

    engine: str
    engine_version: str | None
    seq: int
    batch: int
    encoder_seq: int | None
    kv_dtype: str
    state_dtype: str | None
    tp: int
    pp: int
    dp: int
    dcp: int
    ep: int
    memory_utilization: float | None
    kv_memory: int | None
    margin: float | None
    weights: str | None
    lora: str | None
    draft: str | None
    options: dict[str, str]
    prompt: int | None = None
    policy: str | None = None
    policy_rules: str | None = None
    compaction: str | None = None
    shared_prefix: int | None = None
    lengths: tuple[int, ...] = ()
    samples: int = 1
    beams: int = 1
    avg_seq: str | None = None
    environment: tuple[str, ...] = ()
    """Variables that must be set for the engine to accept the request, as ``NAME=1``."""
    settings: dict[str, int | str | bool] = field(default_factory=dict)
    """What the engine makes of seq, batch and options, where it rounds them: for llama.cpp ``n_ctx`` and the like."""


class TensorInfo(Record):
    """One cached tensor of one layer kind. ``bytes`` is for all its layers and the whole batch.

    They are the product of batch, count, positions and shape in the dtype's blocks; where an engine stores it otherwise,
    ``rule`` says how one layer's bytes come about.
    """

    name: str
    role: str
    kind: str
    layers: LayerNumbers
    count: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    span: Span
    positions: int
    rule: str | None
    bytes: int


class CacheInfo(Part):
    """What the cache takes.

    ``bytes_per_token`` is the growth of one sequence from ``seq`` to ``seq`` + 1 tokens by the formulas,
    ``state_bytes_per_sequence`` what does not grow with length, ``bytes_per_sequence`` what one sequence of ``seq`` tokens
    holds, ``total_bytes`` what the batch holds on all ranks, ``copied_bytes`` the part of it that repeats what another tensor-parallel
    rank keeps (a latent, or a key/value head where there are more ranks than heads), ``per_gpu_bytes`` the largest rank, and
    ``read_bytes_per_step`` what one decode step of the batch reads. The bytes of ``tensors`` add up to ``total_bytes``.
    ``groups`` are the layers that share a block table, where the engine has such; every block is as wide as the widest group.
    """

    definition: Definition
    bytes_per_token: int
    state_bytes_per_sequence: int
    bytes_per_sequence: int
    total_bytes: int
    copied_bytes: int
    per_gpu_bytes: int
    tensors: tuple[TensorInfo, ...]
    groups: tuple[PoolGroup, ...]
    read_bytes_per_step: int


class CacheShare(Record):
    """The cache as it stands in the sum."""

    bytes: int
    definition: Definition


class Share(Record):
    """One line of the sum that is not exact: low, expected (``bytes``) and high."""

    bytes: int
    low: int
    high: int
    definition: Definition


class OverheadInfo(Record):
    """What a process takes beside weights, cache and activations, part by part."""

    bytes: int
    low: int
    high: int
    definition: Definition
    parts: tuple[BudgetPartInfo, ...]


class BudgetPartInfo(Record):
    """One term of the equation that leads to the budget, in bytes per GPU, and where it comes from.

    ``section`` is the line of the sum that it belongs to: weights, activations or overhead; ``definition`` is exact, estimate or
    measured. ``steps`` say how the bytes come about; without any they are the source's own figure.
    """

    name: str
    section: str
    low: int
    expected: int
    high: int
    source: str
    definition: Definition
    steps: tuple[Step, ...]


class BudgetInfo(Record):
    """What a GPU has left for the cache: what may be used of what programs see, minus the parts.

    ``margin_bytes`` is left alone on purpose and not in ``requested_bytes``, which is ``utilization`` of ``total_bytes``, rounded up, less
    the margin.
    """

    total_bytes: int
    total_low_bytes: int
    total_high_bytes: int
    utilization: float
    requested_bytes: int
    margin_bytes: int
    parts: tuple[BudgetPartInfo, ...]
    low: int
    expected: int
    high: int


class Advice(Sequence[Try]):
    """The changes that would make a plan fit. They are worked out when they are first read, which takes longer than the plan itself."""

    def __init__(self, work_out: Callable[[], tuple[Try, ...]]) -> None:
        self._work_out = work_out

    @cached_property
    def _changes(self) -> tuple[Try, ...]:
        return self._work_out()

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, place: int) -> Try: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Try, ...]: ...
    def __getitem__(self, place: int | slice) -> Try | tuple[Try, ...]:
        return self._changes[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, Advice)) and self._changes == tuple(other)

    def __hash__(self) -> int:
        return hash(self._changes)

    def __repr__(self) -> str:
        return repr(self._changes)

    def __reduce__(self) -> tuple[type[tuple[Try, ...]], tuple[tuple[Try, ...]]]:
        return tuple, (self._changes,)


class FitInfo(Part):
    """The verdict. With a cache budget given by hand it speaks of the cache alone. Null is not planned.

    ``usable_bytes`` is what may be used of one GPU and ``needed_bytes`` what the fullest one needs, at the low and high end of
    the estimates as well. ``fits`` goes by the expected value; ``verdict`` says whether the ends agree: ``fits``, ``probably``,
    ``probably_not`` or ``no``. ``max_seq`` is the longest that each of the planned sequences may be for sure, ``max_batch`` how
    many of the planned length surely fit at once: both hold at the high end of the estimates. ``expected_max_seq`` and
    ``expected_max_batch`` are the same by the expected value. ``min_gpus`` is the fewest GPUs of this kind that would do, laid
    out as ``min_layout``, by the expected value; ``sure_min_layout`` does for certain. ``limiting`` names what binds: what stands
    in the way where it does not fit, else what keeps ``max_batch`` from being larger; ``limiting_seq`` is the same of
    ``max_seq``, and ``expected_limiting`` and ``expected_limiting_seq`` of the expected values. ``gpu_layers`` of ``all_layers``
    lie on the GPUs, for engines that can leave some in the memory of the host; what else they need of it is in
    ``memory.devices``. There ``max_seq`` and ``max_batch`` hold with the layers where they are, and ``moved_max_seq`` is the longest for sure
    if the engine may leave more of them in host memory.
    """

    gpu: str | None
    gpus: int
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    fits: bool
    verdict: Verdict
    headroom_bytes: int
    max_seq: int | None
    expected_max_seq: int | None
    max_batch: int | None
    expected_max_batch: int | None
    min_gpus: int | None
    min_layout: Layout | None
    sure_min_layout: Layout | None
    limiting: str | None
    limiting_seq: str | None
    message: str
    suggestions: Sequence[Try]
    budget: BudgetInfo | None
    expected_limiting: str | None = None
    expected_limiting_seq: str | None = None
    gpu_layers: int | None = None
    all_layers: int | None = None
    moved_max_seq: int | None = None


class OverrunInfo(Part):
    """Sequences of the lengths that users really have (``--avg-seq``) in the pool: ``users`` of them at once, each by itself.

    ``chance`` is that they need more than the pool has, by the expected budget; it is exact but for ``chance_error``, which is what it may be
    too high, or two standard errors where it was drawn ``samples`` times. ``chance_high`` is for the low end of the budget. So many as
    ``expected_max_users`` may run so that the ``quantile`` of what they use stays within the pool; ``max_users`` for sure. ``limiting`` is
    what keeps more from running. The ``verdict`` is on these users: that they fit with so small a chance of an overrun, also by the low end or
    probably, or not, as where the longest of them does not fit. A sequence takes ``mean_units`` of the ``pool_units`` of each of ``copies`` pools of this name, the one that
    fills first.
    """

    lengths: str
    mean_tokens: float
    longest_tokens: int
    users: int
    verdict: Verdict
    chance: float
    chance_error: float
    chance_high: float
    samples: int | None
    quantile: float
    max_users: int
    expected_max_users: int
    limiting: str | None
    pool: str | None
    pool_units: int | None
    mean_units: float | None
    copies: int


class MemoryInfo(Part):
    """The sum for one copy of the model; null where a part is unknown. Activations and overhead need hardware.

    Both are those of one GPU times the GPUs of a copy. ``per_gpu`` is the fullest GPU. For engines that place layers on devices, they
    are the sums over ``devices``, of which one is the host, and ``total_bytes`` is the sum of all of these. ``adapters`` are those of
    ``--lora``, null without. ``loaded_bytes`` is what the engine makes of the weights on all devices together: with padding and copies,
    and without what it leaves out. ``total_bytes`` counts these, and on a single GPU it is what ``per_gpu`` says.
    """

    weights: WeightsInfo
    cache: CacheShare
    activations: Share | None
    overhead: OverheadInfo | None
    total_bytes: int | None
    per_gpu: PerGpu
    devices: tuple[DeviceInfo, ...] = ()
    adapters: AdaptersInfo | None = None
    loaded_bytes: int | None = None


class Plan(Answer, Record):
    """The answer. ``pool`` and ``fit`` are null without hardware or a byte budget, or where the engine has no pool; ``within`` is without limits of time."""

    schema_version: str
    kvplan_version: str
    model: ModelInfo
    request: RequestInfo
    cache: CacheInfo
    memory: MemoryInfo
    pool: PoolInfo | None
    fit: FitInfo | None
    speed: SpeedInfo | None
    policy: PolicyInfo | None
    sharing: SharingInfo | None
    overrun: OverrunInfo | None
    within: WithinInfo | None = None
    cost: CostInfo | None = None
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]

    @property
    def places(self) -> str:
        """Where layers and experts lie: ``25 of 33 layers on the GPU, the others in host memory (4.10 GiB)``; empty if the engine places nothing."""
        fit = self.fit
        if fit is None or fit.gpu_layers is None or fit.all_layers is None or not self.memory.devices:
            return ""
        host = self.memory.devices[-1]
        held = {"experts": len(host.experts), "host_bytes": host.total, "moved_bytes": host.moved}
        return places_text(fit.gpus, fit.gpu_layers, fit.all_layers, **held)

    @property
    def partly_on_host(self) -> bool:
        """True if layers, experts or other weights lie in the memory of the host, beside a GPU."""
        fit = self.fit
        if fit is None or fit.gpu_layers is None or not self.memory.devices:
            return False
        host = self.memory.devices[-1]
        return fit.gpu_layers != fit.all_layers or bool(host.experts or host.moved)

    @property
    def serves_users(self) -> bool:
        """True if users with the lengths of ``avg_seq`` do not overrun the pool too often, and the longest of them fits."""
        return self.overrun is not None and self.overrun.verdict.fits

    @property
    def refutes(self) -> bool:
        """True if a verdict was asked for and is not that the plan fits within its limits: it does not, or nobody can say.

        Where it is said how long sequences really are, it must fit in nearly all cases.
        """
        if self.fit is not None:
            late = self.within is not None and not self.within.holds
            return late or (not self.fit.fits and not self.serves_users)
        return any(note.code == NO_VERDICT for note in self.warnings)

    @property
    def held_seq(self) -> int | None:
        """The longest request that the pool holds, where nobody named a length and it may not hold the model's; else ``None``."""
        fit = self.fit
        if (
            fit is None
            or self.pool is None
            or fit.verdict is Verdict.FITS
            or all(note.code != "default-seq" for note in self.notes)
        ):
            return None
        return fit.max_seq or fit.expected_max_seq or None

    @property
    def rates(self) -> dict[str, float | None]:
        """The speeds of a row of a table. They are empty where it does not fit, since it does not run then."""
        runs = self.speed is not None and (self.fit is None or self.fit.fits)
        return self.speed.row() if runs and self.speed is not None else dict.fromkeys(SPEED_COLUMNS)

    @property
    def is_refused_by_pool(self) -> bool:
        """True if the reason why it does not fit is that of the engine's pool, which is too small for a sequence that it allows."""
        return self.fit is not None and self.pool is not None and bool(self.fit.message) and self.fit.message == self.pool.message

    @property
    def reason(self) -> str:
        """The reason why it does not fit; empty if it fits. The engine's own words are quoted without a change."""
        message = "" if self.fit is None else self.fit.message
        if not self.is_refused_by_pool:
            return message
        from hwcalc.engines import find_engine

        return f"{find_engine(self.request.engine)[0].label} says: {message}"

    @property
    def refused_length(self) -> str:
        """That the engine refuses a length beyond the model's without a variable; empty if it takes the length, or is told to."""
        variables = self.request.environment
        found = (
            note.message for note in self.warnings if note.code == BEYOND and any(each in note.message for each in variables)
        )
        return next(found, "")

    def headline(self) -> str:
        request, fit = self.request, self.fit
        engine = " ".join(filter(None, (request.engine, request.engine_version)))
        asked = f"{request.seq:,} tokens x {request.batch:,}, {request.kv_dtype}, {engine}"
        verdict = "" if fit is None else f"; {fit.verdict.text}" + (f" on {fit.gpus} x {fit.gpu}" if fit.gpu else "")
        return f"{self.model.id}, {asked}: cache {human_bytes(self.cache.total_bytes)}{verdict}"

    def records(self) -> list[dict[str, Any]]:
        """One row: the headline figures by the names that ``kvplan sweep`` gives them, and the answers of the solvers."""
        request, cache, memory, fit = self.request, self.cache, self.memory, self.fit
        row = {
            "model": self.model.id,
            "engine": request.engine,
            "engine_version": request.engine_version,
            "dtype": request.kv_dtype,
            "gpu": None if fit is None else fit.gpu,
            "gpus": None if fit is None else fit.gpus,
            "tp": request.tp,
            "pp": request.pp,
            "dp": request.dp,
            "seq": request.seq,
            "batch": request.batch,
            "bytes_per_token": cache.bytes_per_token,
            "state_bytes_per_sequence": cache.state_bytes_per_sequence,
            "cache_total_bytes": cache.total_bytes,
            "cache_per_gpu_bytes": cache.per_gpu_bytes,
            "definition": cache.definition.value,
            "weights_bytes": memory.weights.bytes,
            "total_bytes": memory.total_bytes,
            "total_per_gpu_bytes": None if fit is None else memory.per_gpu.total,
            "total_per_gpu_low_bytes": None if fit is None else fit.needed_low_bytes,
            "total_per_gpu_high_bytes": None if fit is None else fit.needed_high_bytes,
            "usable_bytes": None if fit is None else fit.usable_bytes,
            "fits": None if fit is None else fit.verdict.value,
            "max_seq": None if fit is None else fit.max_seq,
            "max_batch": None if fit is None else fit.max_batch,
            "min_gpus": None if fit is None else fit.min_gpus,
            **self.rates,
        }
        if self.within is not None:
            row |= self.within.row()
        if self.cost is not None:
            row |= cost_row(self.cost)
        return [row]

    __repr__ = Answer.__repr__
