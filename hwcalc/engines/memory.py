"""The memory equation of one GPU: the parts that it holds besides the cache, and the bytes that they leave for it.

The usable memory is ``visible memory x utilisation - margin``. The cache gets what ``weights + adapters + activations + overhead``
leave of it. The GPU with the least left decides: the one whose pipeline stage has the heaviest weights. Every part has a low, an expected
and a high value, with constants of ``profiles/engines/runtime.yaml``; measurements of the user's own accelerator replace estimates.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import asdict

from hwcalc.engines.setup import Parallel
from hwcalc.engines.steps import Step, step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.forms import Amount, Pass
    from hwcalc.engines.rank_weights import RankBytes, Rules
    from hwcalc.engines.setup import Request
    from hwcalc.profiles.calibration import Calibration
    from hwcalc.profiles.form import Estimate
    from hwcalc.profiles.gpus import VisibleMemory
    from hwcalc.profiles.hardware_file import Gpu


class Section(enum.StrEnum):
    """The line of the memory equation that a part belongs to."""

    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    OVERHEAD = "overhead"


class BudgetPart(Record):
    """One term of the memory equation: low, expected and high in bytes per GPU, and the source.

    ``definition`` is ``exact``, ``estimate`` or ``measured``. ``steps`` say how the bytes come about; without any they are the source's own
    figure. ``grows`` are low, expected and high as rules, where they depend on length or batch.
    """

    name: str
    section: Section
    low: int
    expected: int
    high: int
    source: str
    definition: Definition = Definition.ESTIMATE
    steps: tuple[Step, ...] = ()
    grows: tuple[Amount, Amount, Amount] | None = None

    @classmethod
    def of(cls, name: str, section: Section, size: tuple[int, int, int], source: str, **more: Any) -> BudgetPart:
        """A part of this size, low, expected and high, with further fields."""
        low, expected, high = size
        return cls(name=name, section=section, low=low, expected=expected, high=high, source=source, **more)


class Budget(Record):
    """The bytes left for the cache on the GPU that has least left: the bytes that may be used, minus the parts.

    ``total_bytes`` is the memory that programs see, ``requested_bytes`` the share that the engine may use (``usable`` has it for both ends
    of that memory too) and ``margin_bytes`` the share that stays free on purpose. ``low`` assumes the high end of every part, and ``high`` the low end. ``utilization`` is the share
    that the engine asks for.
    """

    total_bytes: int
    total_low_bytes: int
    total_high_bytes: int
    utilization: float
    requested_bytes: int
    usable: tuple[int, int, int]
    margin_bytes: int
    parts: tuple[BudgetPart, ...]
    low: int
    expected: int
    high: int

    @classmethod
    def of(
        cls, memory: VisibleMemory, share: float, margin: Fraction | int, parts: tuple[BudgetPart, ...], free_bytes: int = 0
    ) -> Budget:
        """Subtract the parts from the memory. ``share`` and ``margin`` are shares of the memory that programs see.

        ``free_bytes`` stay free besides, however much memory there is.
        """
        # Engines compute their share in floating point. The margin is exact; it can exceed the share.
        sizes = memory.low_bytes, memory.expected_bytes, memory.high_bytes
        low, expected, high = (max(0, ceil(size * share) - part_of(size, margin) - free_bytes) for size in sizes)
        return cls(
            total_bytes=memory.expected_bytes,
            total_low_bytes=memory.low_bytes,
            total_high_bytes=memory.high_bytes,
            utilization=share,
            requested_bytes=expected,
            usable=(low, expected, high),
            margin_bytes=min(part_of(memory.expected_bytes, margin) + free_bytes, memory.expected_bytes),
            parts=parts,
            low=low - sum(part.high for part in parts),
            expected=expected - sum(part.expected for part in parts),
            high=high - sum(part.low for part in parts),
        )


def part_of(size: int, share: Fraction | int) -> int:
    """A share of a size, rounded up."""
    return -(-size * share.numerator // share.denominator)


_CONTEXTS: Final = {"nvidia": "cuda", "amd": "rocm"}
"""Vendor -> the profile's entry for its context, where one was measured."""
_CONTEXT: Final = "driver_context + loaded_kernels"
_FORWARD: Final = "element_bytes x forward_tokens x (hidden_copies x hidden_size + inner_width) + logits x logit_bytes"
_UNCOUNTED_WIDTH: Final = 12
"""Width of the widest layer in hidden widths, if the weights are not counted: a gated MLP with an inner width of four."""


def estimated(name: str, section: Section, estimate: Estimate, times: int = 1) -> BudgetPart:
    """A term that is an estimate from the profile, or a multiple of one."""
    low, expected, high = (int(times * size) for size in (estimate.low, estimate.expected, estimate.high))
    return BudgetPart.of(name, section, (low, expected, high), estimate.source)


def exact(name: str, section: Section, size: int, source: str) -> BudgetPart:
    """A term that is known exactly."""
    return BudgetPart.of(name, section, (size, size, size), source, definition=Definition.EXACT)


def ranked(name: str, section: Section, size: RankBytes) -> BudgetPart:
    """A term from the bytes of a rank."""
    return BudgetPart(name=name, section=section, **asdict(size))


def memory_of(gpu: Gpu) -> Noted[VisibleMemory | None]:
    """The memory of the GPU that programs see. If nobody has read it, a note says how it was estimated."""
    from hwcalc.profiles.gpus import visible_memory

    memory = visible_memory(gpu)
    if memory is None:
        message = f"The memory of {gpu.id} is not known. Give a budget: --kv-memory."
        return Noted(None, (Note(code="gpu-memory-unknown", message=message),))
    if gpu.torch_total_mib is None and gpu.vendor == "apple":
        # A note on the hardware says it already.
        return Noted(memory)
    if gpu.torch_total_mib is None:
        message = (
            f"Of the memory of {gpu.id} programs see about {human_bytes(memory.expected_bytes)}: {memory.basis}. "
            "No measurement is known."
        )
        return Noted(memory, (Note(code="gpu-memory-estimated", message=message),))
    if gpu.category == "unified":
        message = f"{gpu.id} shares its memory with the system: what is free depends on it. Give a budget with --kv-memory."
        return Noted(memory, (Note(code="unified-memory", message=message),))
    return Noted(memory)


def device_context(gpu: Gpu) -> BudgetPart:
    """Memory that the driver keeps for the process, and the kernels that are loaded into it later."""
    return _device_context(_CONTEXTS.get(gpu.vendor.lower(), "other"))


@lru_cache(maxsize=4)
def _device_context(name: str) -> BudgetPart:
    profile = runtime_profile()
    context = profile.estimate(f"context.{name}")
    kernels = profile.estimate("kernels")
    driver, loaded = ((one.low, one.expected, one.high) for one in (context, kernels))
    size = int(driver[0] + loaded[0]), int(driver[1] + loaded[1]), int(driver[2] + loaded[2])
    steps = (step("context", _CONTEXT, size, driver_context=driver, loaded_kernels=loaded),)
    return BudgetPart.of("context", Section.OVERHEAD, size, f"{context.source}; {kernels.source}", steps=steps)


def driver_context(gpu: Gpu) -> BudgetPart:
    """Memory that the driver keeps for the process, before anything is loaded."""
    return estimated(
        "context", Section.OVERHEAD, runtime_profile().estimate(f"context.{_CONTEXTS.get(gpu.vendor.lower(), 'other')}")
    )


def workspaces(gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Workspaces of cuBLAS or hipBLAS; none on accelerators that have neither."""
    if gpu.vendor.lower() not in _CONTEXTS:
        return ()
    return (_overhead("workspaces", f"workspace.{'sm_90' if gpu.architecture == 'sm_90' else 'other'}"),)


def communication(parallel: Parallel, gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Buffers for communication between GPUs; none for a single GPU."""
    if parallel.gpus == 1:
        return ()
    link = "nvlink" if "nvlink" in str(gpu.interconnect.get("kind") or "").lower() else "pcie"
    divided = (_overhead("communication", f"communication.{link}"),) if parallel.tp * parallel.pp > 1 else ()
    return (*divided, _overhead("expert exchange", "communication.expert_parallel")) if parallel.ep > 1 else divided


@lru_cache(maxsize=8)
def _overhead(name: str, key: str) -> BudgetPart:
    """The overhead that the profile estimates under this key."""
    return estimated(name, Section.OVERHEAD, runtime_profile().estimate(key))


def chunk_tokens() -> tuple[int, int, int]:
    """The most tokens of one forward pass of a replica if prompts are processed in chunks: low, expected and high."""
    chunk = runtime_profile().estimate("activation.chunk_tokens")
    return int(chunk.low), int(chunk.expected), int(chunk.high)


def model_width(rules: Rules, model: ModelSpec, parallel: Parallel) -> int:
    """Numbers per token that the widest layer holds on one rank; estimated from the hidden width if the weights are not counted."""
    from hwcalc.engines.rank_weights import layer_width

    key = (rules, "layer width", parallel)
    width = model.once(key, lambda: layer_width(model, rules.rank(model, parallel)))
    return _UNCOUNTED_WIDTH * (model.hidden_size or 0) // parallel.tp if width is None else width


def forward(
    opened: Occupancy, chunks: tuple[int | None, int | None, int | None], rows: int, *, dtype: str | None = None
) -> BudgetPart:
    """Activations of one forward pass of ``rows`` sequences, in ``chunks``, with the logits of each.

    Each token needs a few copies of its hidden vector and once the inner width of the widest layer; each sequence needs the logits of
    its next token. 4 tokens of hidden width 8 in 16 bits, with 3 copies and an inner width of 40, take 4 x 2 x (3 x 8 + 40) = 512
    bytes. ``dtype`` is the dtype that the model runs in; by default the model's own.
    """
    from hwcalc.engines.forms import Pass

    model, parallel, rules = opened.model, opened.deployment.parallel, opened.deployment.weight_rules()
    copies, logit = (runtime_profile().estimate(f"activation.{name}") for name in ("hidden_copies", "logit_bytes"))
    hidden_copies, logit_bytes = (copies.low, copies.expected, copies.high), (logit.low, logit.expected, logit.high)
    width, hidden = model_width(rules, model, parallel), model.hidden_size or 0

    def passes_of_rank() -> tuple[Pass, Pass, Pass]:
        element_bytes = rules.weight_format(model, dtype).bits // 8
        logits = -(-(model.vocab_size or 0) // (1 if rules.gathers_logits else parallel.tp))
        low, expected, high = (
            Pass(element_bytes=element_bytes, width=each * hidden + width, chunk=chunk, logits=logits, logit_bytes=bytes_each)
            for each, chunk, bytes_each in zip(hidden_copies, chunks, logit_bytes, strict=True)
        )
        return low, expected, high

    key = (rules, "forward passes", parallel, dtype, chunks)
    passes = lowest, most_likely, highest = model.once(key, passes_of_rank)
    tokens = lowest.passed(opened.tokens, rows), most_likely.passed(opened.tokens, rows), highest.passed(opened.tokens, rows)
    size = lowest.at(opened.tokens, rows), most_likely.at(opened.tokens, rows), highest.at(opened.tokens, rows)
    token_range = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[2])))
    counted = step(
        "activations",
        _FORWARD,
        size,
        element_bytes=most_likely.element_bytes,
        forward_tokens=tokens,
        hidden_copies=hidden_copies,
        hidden_size=hidden,
        inner_width=width,
        logits=rows * most_likely.logits,
        logit_bytes=logit_bytes,
    )
    source = f"{token_range} tokens at once, {rows:,} rows of logits; {copies.source}"
    return BudgetPart.of("activations", Section.ACTIVATIONS, size, source, steps=(counted,), grows=passes)


NON_TORCH: Final = ("non-torch", "communication", "expert exchange")
"""Parts that an engine counts as memory outside torch."""
ACTIVATION: Final = ("activations", "encoder profile", "workspaces")
"""Parts that are in the peak of torch's allocator, which also serves the workspaces of cuBLAS."""
GRAPHS: Final = ("CUDA graphs",)
CONTEXT: Final = ("context",)
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "non_torch_bytes": NON_TORCH,
    "activation_bytes": ACTIVATION,
    "graphs_bytes": GRAPHS,
    "context_bytes": CONTEXT,
}
_DEPENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "non_torch_bytes": ("tp", "pp", "ep"),
    "activation_bytes": ("model", "tp", "pp", "ep", "tokens", "rows"),
    "graphs_bytes": ("model", "tp", "pp", "ep", "rows"),
    "context_bytes": (),
}
"""The conditions under which a measurement holds for another plan: these values must be equal."""
_SIZES: Final = ("tokens", "rows")
"""Those of them that follow from length and batch."""


Readings: TypeAlias = dict[str, tuple[tuple[int, int, int], ...]]


def conditions(model: str, parallel: Parallel, *, tokens: int, rows: int) -> dict[str, int | str]:
    """The values on which overheads depend: the model, the ranks, and the largest forward pass."""
    return {"model": model, "tp": parallel.tp, "pp": parallel.pp, "ep": parallel.ep, "tokens": tokens, "rows": rows}


def calibrated(
    engine: str, model: str, request: Request, parts: tuple[BudgetPart, ...], *, tokens: int, rows: int
) -> Noted[tuple[BudgetPart, ...]]:
    """Replace estimated parts of a memory equation by what was measured on this accelerator.

    A measurement replaces an estimate if it was taken under the same conditions: activations for the same model, ranks and batch,
    memory outside torch for the same ranks. ``tokens`` is the size of one forward pass, ``rows`` the number of sequences whose logits
    it computes. A note names the replaced parts.
    """
    from hwcalc.profiles.calibration import overheads_kind

    gpu = request.setup.hardware.gpu
    if gpu is None or not request.setup.hardware.calibrated:
        return Noted(parts)
    calibration, notes = measurements(gpu.id, overheads_kind(engine))
    if calibration is None:
        return Noted(parts, notes)
    here, used = conditions(model, request.setup.parallel, tokens=tokens, rows=rows), []
    for value, names in _PARTS.items():
        reading = calibration.latest(value, {name: here[name] for name in _DEPENDS[value]})
        first = next((part for part in parts if part.name in names), None)
        if reading is None or first is None:
            continue
        size, measured = int(reading.values[value]), reading.measured
        source = f"measured on {measured.device}, {measured.date}: {measured.source}"
        part = BudgetPart.of(first.name, first.section, (size, size, size), source, definition=Definition.MEASURED)
        parts = tuple(part if one is first else one for one in parts if one is first or one.name not in names)
        used.append(f"{first.name} ({measured.date})")
    if used:
        message = f"Measured on this machine instead of estimated: {', '.join(used)}. Without: KVPLAN_NO_CALIBRATION=1."
        notes += (Note(code="calibrated", message=message),)
    return Noted(parts, notes)


def measured_passes(engine: str, model: str, request: Request, parts: tuple[BudgetPart, ...]) -> Readings:
    """The measurements that replace parts where a forward pass is as large as the measured one.

    By the name of a part: tokens and sequences of the pass, and bytes. What was measured is more than one part in the first of them.
    """
    from hwcalc.profiles.calibration import overheads_kind

    gpu = request.setup.hardware.gpu
    calibration = None if gpu is None else measurements(gpu.id, overheads_kind(engine)).value
    if calibration is None or not request.setup.hardware.calibrated:
        return {}
    found: dict[str, tuple[tuple[int, int, int], ...]] = {}
    for value, names in _PARTS.items():
        present = [part.name for part in parts if part.name in names]
        if not set(_SIZES) <= set(_DEPENDS[value]) or not present:
            continue
        sizes = {tuple(int(reading.conditions.get(name, 0)) for name in _SIZES) for reading in calibration.readings}
        for tokens, rows in sorted(sizes):
            here = conditions(model, request.setup.parallel, tokens=tokens, rows=rows)
            reading = calibration.latest(value, {name: here[name] for name in _DEPENDS[value]})
            if reading is None:
                continue
            for name in present:
                size = int(reading.values[value]) if name == present[0] else 0
                found[name] = (*found.get(name, ()), (tokens, rows, size))
    return found


def is_measured(engine: str, gpu: str | None = None) -> bool:
    """True if the user has measured this engine on this accelerator or any, or measurements are off, which a note says."""
    from hwcalc.profiles.calibration import calibrated_gpus, calibration_exists, enabled, overheads_kind

    kind = overheads_kind(engine)
    return not enabled() or (calibrated_gpus(kind) != frozenset() if gpu is None else calibration_exists(gpu, kind))


def measurements(gpu: str, kind: str) -> Noted[Calibration | None]:
    """The user's measurements of this kind. If calibration is switched off, ``None`` with a note.

    Raises :class:`~hwcalc.errors.ConfigError` if the file is broken.
    """
    from hwcalc.profiles.calibration import SWITCH, calibration_exists, calibration_path, enabled, load_calibration

    if not enabled():
        path = calibration_path(gpu, kind)
        if path is None or not path.exists():
            return Noted(None)
        note = Note(code="calibration-off", message=f"{SWITCH} is set: what was measured on {gpu} is left out.")
        return Noted(None, (note,))
    if not calibration_exists(gpu, kind):
        return Noted(None)
    from hwcalc.hardware.profiles import profile_errors

    with profile_errors():
        return Noted(load_calibration(gpu, kind))


def loaded(opened: Occupancy) -> Noted[tuple[Gpu, VisibleMemory, tuple[BudgetPart, ...]] | None]:
    """A GPU on which the model is loaded, its memory, and the weights on it.

    ``None`` without a GPU, or if its memory or the size of the weights is unknown; notes say which.
    """
    gpu = opened.setup.hardware.gpu
    if gpu is None:
        return Noted(None)
    memory, notes = memory_of(gpu)
    weights = opened.weights
    notes += weights.notes
    if memory is None or weights.value is None:
        return Noted(None, notes)
    return Noted((gpu, memory, weights.value), notes)


def loaded_beside(opened: Occupancy) -> Noted[tuple[Gpu, VisibleMemory, tuple[BudgetPart, ...]] | None]:
    """As :func:`loaded`, with the adapters of ``--lora`` and the draft of ``--draft`` behind the weights."""
    found, notes = loaded(opened)
    if found is None:
        return Noted(None, notes)
    extra = _beside(opened)
    return Noted((found[0], found[1], (*found[2], *extra.value)), (*notes, *extra.notes))


def outside(opened: Occupancy, gpu: Gpu) -> tuple[BudgetPart, ...]:
    """The parts outside of the engine's tensors: the context, workspaces, and buffers for communication."""
    return device_context(gpu), *workspaces(gpu), *communication(opened.setup.parallel, gpu)


def budget_of(
    opened: Occupancy,
    memory: VisibleMemory,
    parts: tuple[BudgetPart, ...],
    *,
    tokens: int,
    rows: int,
    share: float = 1.0,
    margin: Fraction | int | None = None,
) -> Noted[Budget]:
    """The budget that ``parts`` leave of a share of the memory. Measured passes of so many tokens and rows replace estimates.

    ``margin`` is the share that stays free, by default what the user says.
    """
    request = opened.request
    measured = calibrated(opened.engine.name, opened.model.id, request, parts, tokens=tokens, rows=rows)
    margin = request.setup.hardware.margin or 0 if margin is None else margin
    return Noted(Budget.of(memory, share, margin, measured.value), measured.notes)


def _beside(opened: Occupancy) -> Noted[tuple[BudgetPart, ...]]:
    """The adapters of ``--lora`` on the fullest rank, and the draft with its cache. Notes say what is not known, and not counted.

    The draft caches every token that the planned model caches.
    """
    model, engine, request, draft = opened.model, opened.engine, opened.request, opened.setup.draft
    if request.setup.lora is None and draft is None:
        return Noted(())
    from hwcalc.engines.weights_beside import draft_bytes_rank
    from hwcalc.quantization.planned import planned_scheme

    parts: list[BudgetPart] = []
    notes: list[Note] = []
    rules = opened.deployment.weight_rules()
    if request.setup.lora is not None:
        adapters = opened.deployment.adapter_rules.on_gpu()
        if adapters is None:
            notes.append(Note(code="lora-unknown", message=f"--lora is not counted: the layers of {model.id} are not known."))
        else:
            parts.append(ranked("adapters", Section.WEIGHTS, adapters))
    if draft is not None:
        scheme, known = planned_scheme(draft, None)
        weights = draft_bytes_rank(draft, request.setup.parallel, scheme=scheme, rules=rules) if known else None
        if weights is None:
            message = f"The weights of the draft {draft.id} are not known, and not counted."
            notes.append(Note(code="draft-unknown", message=message))
        else:
            parts.append(ranked("draft weights", Section.WEIGHTS, weights))
        layout = Parallel(**{**asdict(request.setup.parallel), "pp": 1, "ep": 1})
        alone = request.changed(parallel=layout, draft=None, lora=None, dtype=None, weights=None, options={})
        source = f"the cache of {draft.id} by {engine.name}'s rule"
        parts.append(exact("draft cache", Section.OVERHEAD, engine.unchecked(draft, alone).needed_bytes, source))
    return Noted(tuple(parts), tuple(notes))
