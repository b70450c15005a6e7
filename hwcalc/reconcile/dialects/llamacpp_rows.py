"""Compare llama.cpp's buffers with the plan's: caches and states exactly, weights by tensors, compute buffers within their estimate.

With several GPUs the layers are divided by what was free on each, which no line says: the GPUs are compared together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hwcalc.engines.budget import BudgetPart
from hwcalc.engines.devices import DeviceShare, Placement
from hwcalc.engines.llamacpp.deployment import LlamacppOccupancy
from hwcalc.engines.llamacpp.fitting import ON_HOST
from hwcalc.formulas import Role
from hwcalc.model import Note
from hwcalc.reconcile.facts import Fact, Facts
from hwcalc.reconcile.rows import Range, Row, compared, spread
from hwcalc.units import GIB

__all__ = ["batch_shape", "compare", "on_host", "overheads"]

_STATES: Final = (Role.STATE, Role.CONV)
_LARGEST_CONTEXT: Final = 8 * GIB
"""What is not accounted for is a process's own only up to here: beyond it other programs have it."""
_COMPUTE: Final = "compute buffer"
_OUTPUT: Final = "output buffer"


def on_host(rank: str | None) -> bool:
    """Whether a buffer of this name lies in the memory of the host: ``CPU_Mapped``, ``CUDA_Host``, ``Host``."""
    first = (rank or "").split(" ")[0]
    return first.startswith("CPU") or first.endswith("Host")


def compare(facts: Facts, opened: LlamacppOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
    """A row for every figure that the log and the plan have, and notes about what could not be compared."""
    from hwcalc.engines.llamacpp.settings import CELLS

    rows = [*_context(facts, opened), *_weights(facts, opened, tolerance)]
    notes: list[Note] = []
    if "mla_attn" in facts:
        message = "ik_llama.cpp keeps latents in ways of its own (-mla): its cache may differ from llama.cpp's."
        notes.append(Note(code="other-engine", message=message))
    cells = facts.number("n_ctx")
    if cells is not None and cells % CELLS:
        message = f"{cells:,} cells are no multiple of {CELLS}: an older build, which rounds otherwise than the rules of {opened.version}."
        notes.append(Note(code="older-build", message=message))
    placement = opened.placement()
    if placement is not None and placement.gpus:
        rows += _devices(facts, placement, tolerance)
        rows += _memory(facts, opened, tolerance)
    elif placement is not None or all(on_host(fact.rank) for fact in facts.ranks("model_bytes")):
        rows += _host(facts, opened, tolerance)
    else:
        message = "Name the GPU with --gpu to compare what each device holds, and the compute buffers."
        notes.append(Note(code="no-gpu", message=message))
    return rows, notes


def _context(facts: Facts, opened: LlamacppOccupancy) -> list[Row]:
    """Cells, caches and states follow from llama.cpp's rules: they must be equal up to the rounding of the log."""
    one = opened.settings
    stored = [(group.count, tensor) for group in opened.stack.groups for tensor in opened.kind_tensors[group.kind]]
    stored += [(1, tensor) for tensor in opened.extras]
    states = sum(count * tensor.bytes for count, tensor in stored if tensor.role in _STATES)
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: int, meaning: str) -> None:
        rows.extend(compared(name, fact, spread(predicted), 0.0, definition="engine", meaning=meaning))

    row("cells", facts.last("n_ctx"), one.n_ctx, "n_ctx after rounding, all slots together")
    row("cells of a slot", facts.last("n_ctx_seq"), one.n_ctx_seq, "n_ctx_seq: what one sequence can have")
    row("cache", _whole(facts, "kv_sum_bytes", "kv_bytes"), opened.stored_bytes - states, "keys and values of all layers")
    row("states", _whole(facts, "state_sum_bytes", "state_bytes"), states, "recurrent states of all slots, in 32 bits")
    return rows


def _weights(facts: Facts, opened: LlamacppOccupancy, tolerance: float) -> list[Row]:
    held = opened.model_weights()
    if held is None:
        return []
    meaning = "every tensor of the file once"
    return compared(
        "weights", facts.last("file_bytes"), spread(held.bytes), tolerance, definition=held.definition, meaning=meaning
    )


def _devices(facts: Facts, placement: Placement, tolerance: float) -> list[Row]:
    """What the GPUs hold, and the compute buffers; mapped files are left out: a mapping spans what lies between its tensors."""
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | None, definition: str, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, tolerance, definition=definition, meaning=meaning))

    if placement.all_layers is not None:
        row("layers", facts.last("all_layers"), spread(placement.all_layers), "engine", "layers that can be offloaded")
    weights = spread(sum(one.weights_bytes for one in placement.gpus))
    row("weights on GPUs", _whole_of(facts, ("model_bytes", "model_sum_bytes")), weights, "engine", "model buffers")
    cache = spread(sum(one.cache_bytes for one in placement.gpus))
    row("cache on GPUs", _whole_of(facts, ("context_sum_bytes",)), cache, "engine", "KV and state buffers")
    row(
        "compute on GPUs",
        _whole_of(facts, ("compute_bytes", "compute_sum_bytes")),
        _parts(placement.gpus, _COMPUTE),
        "estimate",
        "compute buffers",
    )
    host = _parts((placement.host,), _COMPUTE)
    row("compute on the host", _whole_of(facts, ("compute_bytes",), on_host), host, "estimate", "compute buffer of the host")
    outputs = _parts((placement.host,), _OUTPUT)
    row("output buffer", _whole_of(facts, ("output_bytes",), on_host), outputs, "estimate", "logits that the host keeps")
    return rows


def _host(facts: Facts, opened: LlamacppOccupancy, tolerance: float) -> list[Row]:
    """The buffers of a machine without a GPU, which holds everything in its own memory."""
    deployment = opened.deployment
    parts = deployment.pinned_at(deployment.hosted_runs).layout(opened.settings).buffer_parts(ON_HOST)
    rows: list[Row] = []
    for name, stated, meaning in (
        (_COMPUTE, "compute_bytes", "compute buffer"),
        (_OUTPUT, "output_bytes", "logits that are kept for the caller"),
    ):
        predicted = _range(part for part in parts if part.name == name)
        rows += compared(name, _whole(facts, stated), predicted, tolerance, definition="estimate", meaning=meaning)
    return rows


def _memory(facts: Facts, opened: LlamacppOccupancy, tolerance: float) -> list[Row]:
    from hwcalc.profiles.gpus import visible_memory

    gpu = opened.request.hardware.gpu
    visible = None if gpu is None else visible_memory(gpu)
    if visible is None:
        return []
    total = Range(low=visible.low_bytes, expected=visible.expected_bytes, high=visible.high_bytes)
    meaning = "memory of the GPU that programs see"
    return compared("device memory", facts.smallest("total_bytes"), total, tolerance, definition="profile", meaning=meaning)


def _parts(devices: Iterable[DeviceShare], name: str) -> Range | None:
    return _range(part for one in devices for part in one.parts if part.name == name)


def _range(parts: Iterable[BudgetPart]) -> Range | None:
    found = list(parts)
    if not found:
        return None
    low, expected, high = (sum(getattr(part, end) for part in found) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _on_gpu(rank: str | None) -> bool:
    return not on_host(rank)


def _whole_of(facts: Facts, names: Iterable[str], where: Callable[[str | None], bool] = _on_gpu) -> Fact | None:
    """The sum over the devices of one place, of the first of these facts that the log states."""
    for name in names:
        fact = _sum(name, [fact for fact in facts.ranks(name) if where(fact.rank)])
        if fact is not None:
            return fact
    return None


def _whole(facts: Facts, *names: str) -> Fact | None:
    """The sum over all caches and devices, of the first of these facts that the log states."""
    return _whole_of(facts, names, lambda _: True)


def _sum(name: str, facts: list[Fact]) -> Fact | None:
    if not facts:
        return None
    value = low = high = 0
    for fact in facts:
        if isinstance(fact.value, str):
            return None
        value += int(fact.value)
        low += int(fact.value if fact.low is None else fact.low)
        high += int(fact.value if fact.high is None else fact.high)
    last = facts[-1]
    whole = Facts()
    whole.add(name, value, line=last.line, text=last.text, unit=last.unit, low=low, high=high)
    return whole.last(name)


def batch_shape(opened: LlamacppOccupancy) -> tuple[int, int]:
    """Tokens of one pass, and tokens whose logits it computes."""
    one = opened.settings
    return one.n_ubatch, one.n_outputs


def overheads(facts: Facts, opened: LlamacppOccupancy) -> dict[str, int]:
    """What the table calls unaccounted: the driver's context, and whatever other programs hold of the same GPU."""
    sizes = []
    for total in facts.ranks("total_bytes"):
        rest = [facts.ranks(name) for name in ("free_bytes", "self_bytes")]
        known = [fact.value for each in rest for fact in each if fact.rank == total.rank and not isinstance(fact.value, str)]
        if len(known) == len(rest) and not isinstance(total.value, str):
            sizes.append(int(total.value) - sum(int(value) for value in known))
    fitting = [size for size in sizes if 0 < size < _LARGEST_CONTEXT]
    return {"context_bytes": max(fitting)} if fitting else {}
