"""Find the largest batch or the longest sequences that can be allocated, and compare with the planner's answer.

To try a number, the probe allocates the engine's tensors for it, and frees them before the next try. The search starts from the answer
of :mod:`hwcalc.planner.solve`, so two or three tries are enough if that is right. Nothing is tried that would leave less than the
reserve.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Allocation
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.planner import solve
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.probe.allocator import AllocatorSettings, environment_settings, predict
from hwcalc.probe.devices import Device, default_reserve, holding, is_out_of_memory
from hwcalc.text import shown

WHAT: Final = ("batch", "seq")
ALLOCATED: Final = "allocated"
BEYOND: Final = "beyond the reserve"
OUT_OF_MEMORY: Final = "out of memory"
REFUSED: Final = "refused by the engine"
_POOL_SIZES: Final = frozenset({"num_gpu_blocks_override"})
"""Engine options that fix the size of a pool. They are dropped, because the search looks for that size."""


class Try(Record):
    """One number that was tried, the bytes that it takes, and what came of it."""

    value: int
    bytes: int
    outcome: str


class MaxResult(Record):
    """The largest number found, and the arithmetic beside it.

    ``value`` allocated; ``expected`` is the largest that the allocator's rules put into ``usable_bytes``; ``solver`` is the planner's
    answer for as many bytes, which knows nothing of an allocator's rounding. ``limiting`` says what keeps ``value`` from being larger:
    one of the outcomes of a :class:`Try`, ``cap``, ``model length`` or the ``planned length`` beyond it, or the engine's option that limits sequences.
    """

    what: str
    value: int
    expected: int
    solver: int
    limiting: str
    seq: int
    batch: int
    bytes: int
    free_bytes: int
    reserve_bytes: int
    usable_bytes: int
    tries: tuple[Try, ...]

    @property
    def agrees(self) -> bool:
        """True if as much allocates as should."""
        return self.value == self.expected


def find_max(
    opened: Occupancy,
    device: Device,
    what: str = "batch",
    *,
    reserve_bytes: int | None = None,
    available_bytes: int | None = None,
    cap: int | None = None,
    settings: AllocatorSettings | None = None,
) -> MaxResult:
    """Search for the largest ``what`` (``batch`` or ``seq``) with which the request's tensors can be allocated on ``device``.

    ``available_bytes`` replaces the free memory that the device reports; ``cap`` is the largest number to try. With several ranks, the
    fullest one is measured. Everything on the device is freed in the end, also after an error. Raises
    :class:`~hwcalc.errors.UsageError` if an argument is out of range, or if the free memory is unknown.
    """
    if what not in WHAT:
        raise UsageError(f"--find-max {shown(what, 40)} is not known.", hint=f"Allowed: {', '.join(WHAT)}.")
    for name, number, least in (("cap", cap, 1), ("reserve", reserve_bytes, 0), ("available bytes", available_bytes, 0)):
        if number is not None and number < least:
            raise UsageError(f"{name} is {number:,}.", hint=f"Allowed: {least} or more.")
    device.warm_up()
    free = device.free_bytes() if available_bytes is None else available_bytes
    if free is None:
        raise UsageError(f"nothing says how much of {device.label} is free.", hint="Say how much to take: --max-bytes")
    reserve = default_reserve(device) if reserve_bytes is None else reserve_bytes
    usable = max(0, free - reserve)
    settings = environment_settings(os.environ) if settings is None else settings
    options = {name: value for name, value in opened.setup.options.items() if name not in _POOL_SIZES}
    budgeted = opened.changed(gpu=None, kv_memory=usable, options=options)
    answer = solve.most(budgeted) if what == "batch" else solve.longest(budgeted)
    bound, bound_name = _bound(budgeted, what, cap)
    unbounded = budgeted.changed(kv_memory=None)
    tries: dict[int, Try] = {}

    def fits(value: int) -> bool:
        size = _layout(unbounded, {what: value}, device, settings)[1]
        return size is not None and size <= usable

    def allocates(value: int) -> bool:
        tensors, size = _layout(unbounded, {what: value}, device, settings)
        if size is None:
            outcome = REFUSED
        elif size > usable:
            outcome = BEYOND
        else:
            outcome = _outcome(tensors, usable, device)
        tries[value] = Try(value=value, bytes=size or 0, outcome=outcome)
        return outcome == ALLOCATED

    expected = solve.last_yes(fits, bound, max(1, min(bound, answer.value)))
    value = solve.last_yes(allocates, bound, max(1, expected))
    failed = [attempt for attempt in tries.values() if attempt.outcome != ALLOCATED]
    return MaxResult(
        what=what,
        value=value,
        expected=expected,
        solver=min(answer.value, bound),
        limiting=bound_name if value == bound else min(failed, key=lambda one: one.value).outcome,
        seq=value if what == "seq" else opened.load.seq,
        batch=value if what == "batch" else opened.load.batch,
        bytes=tries[value].bytes if value else 0,
        free_bytes=free,
        reserve_bytes=reserve,
        usable_bytes=usable,
        tries=tuple(tries.values()),
    )


def _layout(
    opened: Occupancy, change: Mapping[str, int], device: Device, settings: AllocatorSettings
) -> tuple[tuple[Allocation, ...], int | None]:
    """The tensors of the fullest rank after a change of the request, in the engine's order, and the bytes of the device that they take.

    The bytes are ``None`` if the engine refuses the change.
    """
    try:
        changed = opened.changed(**change)
        tensors = changed.allocation(fullest_stage(changed))
    except KvplanError:
        return (), None
    size = sum(tensor.bytes for tensor in tensors)
    if device.kind == "cuda":
        size = max(size, predict((tensor.bytes for tensor in tensors), settings).reserved_bytes)
    return tensors, size


def _bound(opened: Occupancy, what: str, cap: int | None) -> tuple[int, str]:
    """The largest number to try, and the name of what limits it."""
    bounds = [(UNLIMITED, "no limit")]
    limit = opened.most_sequences()
    length = opened.model.max_position_embeddings
    if what == "batch" and limit is not None:
        bounds.append(limit)
    if what == "seq" and length is not None:
        bounds.append((max(length, opened.tokens), "planned length" if opened.tokens > length else "model length"))
    if cap is not None:
        bounds.append((cap, "cap"))
    return min(bounds, key=lambda bound: bound[0])


def _outcome(tensors: tuple[Allocation, ...], usable: int, device: Device) -> str:
    """Allocate these tensors, free them, and return the outcome."""
    with holding(device) as held:
        before = device.counters().reserved
        try:
            for one in tensors:
                held.append(device.empty(one.shape, one.dtype))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error, device.torch):
                raise
            return OUT_OF_MEMORY
        after = device.counters().reserved
    taken = 0 if before is None or after is None else after - before
    return BEYOND if taken > usable else ALLOCATED
