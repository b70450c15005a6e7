"""Ways of allocating a cache: what each holds, wastes, copies, computes and trades, and who does it so.

All follow from the same formulas: the tensors of the layers with their spans, their places in blocks, and the pairs of tokens that a pass
works on. Only the row of a named engine follows the engine's rules, with its blocks, paddings and buffers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.steps import Step, step
from hwcalc.engines.transformers.layers import is_offloaded, offloaded_gpu_bytes
from hwcalc.formulas.flops import pairs_cached, pairs_recomputed, scores_recomputed
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Chunk, Sink, Window, most_unused
from hwcalc.model import Definition
from hwcalc.planner.strategies_cost import (
    Cell,
    Cost,
    Lengths,
    Places,
    cells_of,
    copied_places,
    costs,
    full_places,
    full_slots,
    now_places,
    now_slots,
    rounded,
    summed,
)
from hwcalc.planner.strategies_result import HostLink, PairCounts, Strategy

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import LayerKind
    from hwcalc.profiles.hardware_file import Gpu


class Words(Struct, frozen=True):
    """A strategy in words."""

    title: str
    about: str
    trades: str
    used_by: str


NAMES: Final = ("recompute", "growth", "slots", "pages", "offload")
"""The strategies, in their order."""
RECOMPUTE, GROWTH, SLOTS, PAGES, OFFLOAD = NAMES
ENGINE: Final = "engine"
"""The row of the engine that is named, by its own rules."""

WORDS: Final[Mapping[str, Words]] = MappingProxyType(
    {
        RECOMPUTE: Words(
            title="no cache: recompute",
            about="Each pass takes the whole text so far. Nothing is kept between passes; within one, a layer has its keys and values, "
            "and every token its hidden state.",
            trades="no memory, for operations that grow with the square of the text in each step, and with its cube in all",
            used_by="transformers, use_cache=False",
        ),
        GROWTH: Words(
            title="growth by concatenation",
            about="Each layer has a tensor that is copied into a longer one in each step. For a moment the largest tensor is there twice.",
            trades="nothing is wasted, but each step copies every tensor, and holds the largest one twice",
            used_by="transformers, DynamicCache",
        ),
        SLOTS: Words(
            title="slots of the full length",
            about="Each sequence has a place for all its tokens from the start, whether they ever come or not.",
            trades="no copies and fixed shapes, for memory that shorter sequences never use, and some kernels read",
            used_by="transformers, StaticCache; FasterTransformer; llama.cpp",
        ),
        PAGES: Words(
            title="pages",
            about="Each sequence takes a block when its last one is full, and gives back blocks that its windows have left.",
            trades="less than a block a sequence is wasted, for block tables and kernels that follow them",
            used_by="vLLM, SGLang, TensorRT-LLM",
        ),
        OFFLOAD: Words(
            title="host offload",
            about="The cache lies in host memory. The device has the layer in use and the next one, which is fetched meanwhile.",
            trades="memory of the device, for the whole cache over the bus in each step, there and back",
            used_by="transformers, cache_implementation=offloaded",
        ),
    }
)


_PCIE: Final = re.compile(r"PCIe([3-6]) x([0-9]{1,2})")
_LANE_GTPS: Final = {3: 8, 4: 16, 5: 32, 6: 64}
"""Transfers of a lane a second, in thousand millions, by generation."""
_CODE: Final = {3: Fraction(128, 130), 4: Fraction(128, 130), 5: Fraction(128, 130), 6: Fraction(236, 256)}
"""The share of bits that are data: 128 of 130 up to generation 5, and 236 bytes of a unit of 256 in generation 6."""
_PCIE_SOURCE: Final = "PCI Express Base Specification: transfers a second, lanes and code"
_C2C: Final = "NVLink-C2C"
_C2C_GBPS: Final = 450
_C2C_SOURCE: Final = "NVIDIA Grace Hopper Superchip architecture: 900 GB/s in both directions together"


def host_link(gpu: Gpu | None) -> HostLink | None:
    """The link in one direction; ``None`` if no accelerator is named or its profile does not name it.

    PCIe 5 with 16 lanes: 32 x 10^9 transfers x 16 bits x 128/130 / 8 = 63.0 GB/s.
    """
    named = None if gpu is None else gpu.interconnect.get("host")
    if not isinstance(named, str):
        return None
    if named == _C2C:
        return HostLink(name=named, gbps=float(_C2C_GBPS), source=_C2C_SOURCE)
    match = _PCIE.match(named)
    if match is None:
        return None
    generation, lanes = int(match[1]), int(match[2])
    return HostLink(name=named, gbps=float(_LANE_GTPS[generation] * lanes * _CODE[generation] / 8), source=_PCIE_SOURCE)


DEFAULT_BLOCK: Final = 16
"""Tokens of a block in vLLM (CacheConfig.DEFAULT_BLOCK_SIZE)."""
MOST_LENGTHS: Final = 256
"""As many different lengths an engine is asked about."""


def block_sizes(opened: Occupancy, given: int | None) -> dict[str, int]:
    """The tokens of a block by kind of layer, with ``""`` for all other kinds: as given, or those of the engine."""
    if given is not None:
        return {"": given}
    sizes = {opened.stack.layers[group.layers[0]][0].name: group.block_size for group in opened.groups if group.layers}
    pool = None if sizes else opened.plan_pool(opened.needed_bytes).value
    default = DEFAULT_BLOCK if pool is None or not pool.block_size else pool.block_size
    return {**sizes, "": min(sizes.values(), default=default)}


def engine_strategy(setting: Setting) -> Strategy | None:
    """The strategy of the named engine, by its own rules; ``None`` for ``reference``, which is no engine."""
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
    """The bytes that the engine holds for the lengths now, on the fullest device and on all.

    It is ``None`` if the lengths are too many or random.
    """
    opened, lengths = setting.opened, setting.lengths
    if opened.deployment.preallocates():
        return opened.needed_bytes, opened.stored_bytes
    if lengths.uniform is not None or len(lengths.now) > MOST_LENGTHS:
        return None
    there = [opened.sized(seq=length, batch=count) for length, count in lengths.now if length]
    return sum(occupancy.needed_bytes for occupancy in there), sum(occupancy.stored_bytes for occupancy in there)


_FULL, _NOW, _NEEDED, _WASTED, _PEAK, _COPIED = (
    "full_bytes",
    "held_bytes",
    "needed_bytes",
    "wasted_bytes",
    "peak_bytes",
    "copied_bytes",
)
_BILLION: Final = 10**9


class Setting(Record):
    """What all strategies of a request have in common. ``definition`` is that of bytes at full length."""

    opened: Occupancy
    lengths: Lengths
    cells: tuple[Cell, ...]
    full: int
    full_steps: tuple[Step, ...]
    needed: Fraction
    needed_steps: tuple[Step, ...]
    cached: Cost
    recomputed: Cost
    link: HostLink | None
    definition: Definition

    @property
    def now(self) -> Definition:
        """The definition of bytes for the lengths now: an estimate where these are drawn at random."""
        return self.definition if self.lengths.uniform is None else Definition.ESTIMATE

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor to which tokens are appended, for all sequences at their full length."""
        sizes = (max(cell.rows) * int(full_places(self.lengths)(cell).total) for cell in self.cells if cell.grows)
        return max(sizes, default=0)


def setting_of(opened: Occupancy, lengths: Lengths, block_sizes: dict[str, int]) -> Setting:
    """The setting that all strategies of an occupancy share, for these lengths and block sizes."""
    cells = cells_of(opened, block_sizes)
    cached, recomputed = costs(opened, lengths)
    full, full_steps = summed(_FULL, cells, full_places(lengths))
    needed, needed_steps = summed(_NEEDED, cells, now_places(lengths))
    return Setting(
        opened=opened,
        lengths=lengths,
        cells=cells,
        full=int(full),
        full_steps=full_steps,
        needed=needed,
        needed_steps=needed_steps,
        cached=cached,
        recomputed=recomputed,
        link=host_link(opened.setup.hardware.gpu),
        definition=opened.model.definition(Definition.EXACT),
    )


def pair_counts(lengths: Lengths) -> PairCounts:
    """The numbers of pairs of tokens in full attention: exact ones, and the commonly quoted ones."""
    seq, prompt = lengths.seq, lengths.prompt
    return PairCounts(
        tokens=seq,
        prompt=prompt,
        cached=pairs_cached(seq),
        recomputed=pairs_recomputed(prompt, seq),
        recomputed_scores=scores_recomputed(prompt, seq),
        quoted_cached=seq**2,
        quoted_recomputed=seq**3,
    )


def strategies_of(setting: Setting) -> tuple[Strategy, ...]:
    """All strategies, in the order of :data:`~hwcalc.planner.strategies.NAMES`."""
    return tuple(make(setting) for make in (_recompute, _growth, _slots, _pages, _offload))


# --- the strategies ---------------------------------------------------------------------------------------------------


def _recompute(setting: Setting) -> Strategy:
    """Nothing is kept. A pass has the keys and values of one layer at a time, and the hidden states of all its tokens."""
    lengths, opened = setting.lengths, setting.opened
    sizes = _pass_sizes(setting)
    terms = {"largest_layer": max((sum(sizes[kind] for kind in layer) for layer in opened.stack), default=0)}
    held, steps = 0, []
    if opened.model.hidden_size is not None:
        row = opened.model.hidden_size * FLOATS[opened.deployment.weight_dtype()].bits // 8
        states = {"sequences": lengths.batch, "hidden_bytes": row}
        size = lengths.batch * lengths.seq * row
        steps.append(step("hidden_states", "sequences x seq x hidden_bytes", size, seq=lengths.seq, unit="bytes", **states))
        terms["hidden_states"] = size
        if lengths.encoder_tokens:
            held = lengths.batch * lengths.encoder_tokens * row
            formula = "sequences x encoder_tokens x hidden_bytes"
            steps.append(step("encoder_states", formula, held, encoder_tokens=lengths.encoder_tokens, unit="bytes", **states))
            terms["encoder_states"] = held
    peak = step(_PEAK, " + ".join(terms), sum(terms.values()), unit="bytes", **terms)
    return _strategy(
        setting,
        RECOMPUTE,
        full=held,
        held=Fraction(held),
        peak=sum(terms.values()),
        steps=(*steps, peak),
        cost=setting.recomputed,
    )


def _pass_sizes(setting: Setting) -> dict[LayerKind, int]:
    """The bytes of keys and values that a pass over the whole text makes in one layer of each kind.

    A window saves nothing there.
    """
    sizes: dict[LayerKind, int] = {kind: 0 for layer in setting.opened.stack for kind in layer}
    seq, encoder = setting.lengths.seq, setting.lengths.encoder_tokens
    for cell in setting.cells:
        limited = isinstance(cell.span, (Window, Chunk, Sink))
        positions = seq if limited else cell.span.positions(seq, encoder)
        sizes[cell.kind] += setting.lengths.batch * positions * cell.row_bytes
    return sizes


def _growth(setting: Setting) -> Strategy:
    largest, copied, steps = setting.largest, *summed(_COPIED, setting.cells, copied_places(setting.lengths))
    peak = step(_PEAK, "full_bytes + largest_tensor", setting.full + largest, full_bytes=setting.full, largest_tensor=largest)
    return _strategy(
        setting,
        GROWTH,
        full=setting.full,
        held=setting.needed,
        peak=setting.full + largest,
        steps=(*setting.full_steps, *setting.needed_steps, peak, *steps),
        copied=int(copied),
    )


def _slots(setting: Setting) -> Strategy:
    terms = {"full_bytes": setting.full, "needed_bytes": rounded(setting.needed)}
    single = replace(setting.lengths, now=((1, setting.lengths.batch),), uniform=None)
    one_token = int(summed(_NEEDED, setting.cells, now_places(single))[0])
    steps = (
        *setting.full_steps,
        *setting.needed_steps,
        step(_WASTED, "full_bytes - needed_bytes", setting.full - rounded(setting.needed), unit="bytes", **terms),
    )
    return _strategy(
        setting,
        SLOTS,
        full=setting.full,
        held=Fraction(setting.full),
        peak=setting.full,
        steps=steps,
        most_wasted=setting.full - one_token,
    )


def _pages(setting: Setting) -> Strategy:
    full, full_steps = summed(_FULL, setting.cells, full_slots(setting.lengths))
    held, now_steps = summed(_NOW, setting.cells, now_slots(setting.lengths))
    wasted = rounded(held) - rounded(setting.needed)
    terms = {"held_bytes": rounded(held), "needed_bytes": rounded(setting.needed)}
    steps = (
        *full_steps,
        *now_steps,
        *setting.needed_steps,
        step(_WASTED, "held_bytes - needed_bytes", wasted, unit="bytes", **terms),
    )
    return _strategy(
        setting,
        PAGES,
        full=int(full),
        held=held,
        peak=int(full),
        steps=steps,
        most_wasted=_most_unused(setting),
    )


def _most_unused(setting: Setting) -> int:
    """The most bytes that blocks waste: less than a block for each sequence in each layer that keeps every token."""
    batch, encoder = setting.lengths.batch, setting.lengths.encoder_tokens
    return sum(batch * cell.count * cell.row_bytes * most_unused(cell.span, cell.block_size, encoder) for cell in setting.cells)


def _offload(setting: Setting) -> Strategy:
    stack, lengths, total = setting.opened.stack, setting.lengths, setting.full
    at_full, now = _by_kind(setting, full_places(lengths)), _by_kind(setting, now_places(lengths))
    device = offloaded_gpu_bytes(stack, at_full.__getitem__)
    moving = sum(at_full[kind] for layer in stack if is_offloaded(layer) for kind in layer) if device < total else 0
    copied, copied_steps = summed(_COPIED, setting.cells, copied_places(lengths))
    staying, largest = total - moving, setting.largest
    steps = [
        *(replace(figure, name="whole_cache") if figure.name == _FULL else figure for figure in setting.full_steps),
        step("host_bytes", "whole_cache - staying", moving, whole_cache=total, staying=staying),
        step(_FULL, "staying + two_layers", device, staying=staying, two_layers=device - staying),
        step(_PEAK, "full_bytes + largest_tensor", device + largest, full_bytes=device, largest_tensor=largest),
        step("bus_bytes", "host_bytes", moving, host_bytes=moving),
    ]
    seconds = None
    if setting.link is not None:
        link = setting.link.gbps * _BILLION
        seconds = moving / link
        steps.append(step("bus_s", "bus_bytes / link", seconds, unit="s", bus_bytes=moving, link=link))
    made = _strategy(
        setting,
        OFFLOAD,
        full=device,
        held=Fraction(offloaded_gpu_bytes(stack, now.__getitem__)),
        peak=device + largest,
        steps=(*steps, *copied_steps),
        copied=int(copied),
    )
    known = setting.cached.seconds is not None and seconds is not None
    slower = max(setting.cached.seconds or 0.0, seconds or 0.0) if known else None
    return replace(made, host_bytes=moving, bus_bytes_per_step=moving, bus_s_bound=seconds, step_s_bound=slower)


def _by_kind(setting: Setting, places: Callable[[Cell], Places]) -> dict[LayerKind, int]:
    """Bytes of one layer of each kind, for all sequences."""
    sizes: dict[LayerKind, Fraction] = {kind: Fraction(0) for layer in setting.opened.stack for kind in layer}
    for cell in setting.cells:
        sizes[cell.kind] += cell.row_bytes * places(cell).total
    return {kind: rounded(size) for kind, size in sizes.items()}


def _strategy(
    setting: Setting,
    name: str,
    *,
    full: int,
    held: Fraction,
    peak: int,
    steps: tuple[Step, ...],
    cost: Cost | None = None,
    copied: int = 0,
    most_wasted: int = 0,
) -> Strategy:
    """A strategy with the fields that all strategies share filled in. Nothing lies in host memory."""
    cost = setting.cached if cost is None else cost
    words = WORDS[name]
    return Strategy(
        name=name,
        title=words.title,
        full_bytes=full,
        held_bytes=rounded(held),
        wasted_bytes=max(0, rounded(held) - rounded(setting.needed)),
        most_wasted_bytes=most_wasted,
        definition=setting.now,
        peak_bytes=peak,
        peak_definition=Definition.BOUND if name == RECOMPUTE else setting.definition,
        host_bytes=0,
        bus_bytes_per_step=0,
        bus_s_bound=None,
        copied_bytes=copied,
        cache_bytes_per_step=cost.cache_bytes,
        weight_bytes_per_step=cost.weight_bytes,
        attention_flops_per_step=cost.attention_step,
        flops_per_step=cost.step,
        attention_total_flops=cost.attention_total,
        total_flops=cost.total,
        step_s_bound=cost.seconds,
        trades=words.trades,
        used_by=words.used_by,
        steps=(*steps, *cost.steps),
    )
