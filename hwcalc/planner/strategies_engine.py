"""The row of a named engine: what it holds by its own rules, with its own blocks, paddings and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import Step, step
from hwcalc.model import Definition
from hwcalc.planner.strategies_load import rounded
from hwcalc.planner.strategies_result import Strategy
from hwcalc.planner.strategies_words import ENGINE

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.strategies import Setting

DEFAULT_BLOCK: Final = 16
"""Tokens of a block in vLLM (CacheConfig.DEFAULT_BLOCK_SIZE)."""
MOST_LENGTHS: Final = 256
"""As many different lengths an engine is asked about."""


def block_sizes(opened: Occupancy, given: int | None) -> dict[str, int]:
    """Tokens of a block by the name of a kind, and under an empty name for all others: those that are given, or the engine's own."""
    if given is not None:
        return {"": given}
    sizes = {opened.stack.layers[group.layers[0]][0].name: group.block_size for group in opened.groups if group.layers}
    pool = None if sizes else opened.plan_pool(opened.needed_bytes).value
    own = DEFAULT_BLOCK if pool is None or not pool.block_size else pool.block_size
    return {**sizes, "": min(sizes.values(), default=own)}


def engine_strategy(setting: Setting) -> Strategy | None:
    """The engine's own way; ``None`` for the formulas, which are no engine."""
    opened, engine = setting.opened, setting.opened.engine
    if engine.definition is Definition.EXACT:
        return None
    full, host = opened.needed_bytes, max(0, opened.stored_bytes - opened.needed_bytes)
    transient = sum(int(part.expected) for part in opened.working())
    needed = rounded(setting.needed)
    label = f"{engine.label} {opened.version}".rstrip()
    steps: list[Step] = [step("full_bytes", "", full)]
    held, stored = _now(setting) or (None, None)
    wasted = None if stored is None else max(0, stored - needed)
    if held is not None and stored is not None:
        steps += [
            step("held_bytes", "", held),
            step("held_on_all_devices", "", stored),
            *setting.needed_steps,
            step(
                "wasted_bytes",
                "max(held_on_all_devices - needed_bytes, 0)",
                max(0, stored - needed),
                held_on_all_devices=stored,
                needed_bytes=needed,
            ),
        ]
    steps.append(step("peak_bytes", "full_bytes + transient", full + transient, full_bytes=full, transient=transient))
    cost = setting.cached
    return Strategy(
        name=ENGINE,
        title=f"as {label} does",
        full_bytes=full,
        held_bytes=held,
        wasted_bytes=wasted,
        most_wasted_bytes=None,
        definition=opened.model.definition(engine.definition),
        peak_bytes=full + transient,
        peak_definition=opened.model.definition(engine.definition),
        host_bytes=host,
        bus_bytes_per_step=0,
        bus_s_bound=None,
        copied_bytes=0,
        cache_bytes_per_step=cost.cache_bytes,
        weight_bytes_per_step=cost.weight_bytes,
        attention_flops_per_step=cost.attention_step,
        flops_per_step=cost.step,
        attention_total_flops=cost.attention_total,
        total_flops=cost.total,
        # What lies on the host is read there, at a speed of its own.
        step_s_bound=None if host else cost.seconds,
        trades="by its own rules: blocks, paddings and buffers as it has them",
        used_by=label,
        steps=(*steps, *cost.steps),
    )


def _now(setting: Setting) -> tuple[int, int] | None:
    """What the engine holds for the lengths now, on the device and in all; ``None`` where it cannot be asked about each of them."""
    opened, lengths = setting.opened, setting.lengths
    if opened.preallocates():
        return opened.needed_bytes, opened.stored_bytes
    if lengths.uniform is not None or len(lengths.now) > MOST_LENGTHS:
        return None
    there = [opened.sized(seq=length, batch=count) for length, count in lengths.now if length]
    return sum(one.needed_bytes for one in there), sum(one.stored_bytes for one in there)
