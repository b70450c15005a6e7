"""Ways of allocating a cache: what each holds, wastes, copies, computes and trades, and who does it so.

All follow from the same formulas: the tensors of the layers with their spans, their places in blocks, and the pairs of tokens that a pass
works on. Only the row of a named engine follows the engine's rules, with its blocks, paddings and buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from hwcalc.engines.steps import Step, figure, step
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
    Rule,
    cells_of,
    copied_places,
    costs,
    full_places,
    full_slots,
    now_places,
    now_slots,
    places_of,
    rounded,
    summed,
)  # fmt: skip
from hwcalc.planner.strategies_result import PairCounts, Strategy
from hwcalc.profiles.links import HostLink, host_link

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import LayerKind


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
            trades="no memory is kept; in exchange each step's operations grow with the square of the text, and all steps' with its cube",
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
            trades="nothing is copied, and shapes are fixed; in exchange shorter sequences hold memory that they never use, and some kernels read it",
            used_by="transformers, StaticCache; FasterTransformer; llama.cpp",
        ),
        PAGES: Words(
            title="pages",
            about="Each sequence takes a block when its last one is full, and gives back blocks that its windows have left.",
            trades="each sequence wastes less than a block; in exchange there are block tables, and kernels must follow them",
            used_by="vLLM, SGLang, TensorRT-LLM",
        ),
        OFFLOAD: Words(
            title="host offload",
            about="The cache lies in host memory. The device has the layer in use and the next one, which is fetched meanwhile.",
            trades="the device holds two layers; in exchange the whole cache goes over the bus in each step, there and back",
            used_by="transformers, cache_implementation=offloaded",
        ),
    }
)


DEFAULT_BLOCK: Final = 16
"""Tokens of a block in vLLM (CacheConfig.DEFAULT_BLOCK_SIZE)."""
MOST_LENGTHS: Final = 256
"""As many different lengths an engine is asked about."""


def block_sizes(opened: Occupancy, given: int | None) -> dict[str, int]:
    """The tokens of a block by kind of layer, with ``""`` for all other kinds: as given, or those of the engine."""
    if given is not None:
        return {"": given}
    sizes = {opened.stack.layers[group.layers[0]][0].name: group.block_size for group in opened.groups if group.layers}
    pool = None if sizes else opened.pool(opened.needed_bytes).value
    default = DEFAULT_BLOCK if pool is None or not pool.block_size else pool.block_size
    return {**sizes, "": min(sizes.values(), default=default)}


def engine_strategy(setting: Setting) -> Strategy | None:
    """The strategy of the named engine, by its own rules; ``None`` for ``reference``, which is no engine."""
    opened, lengths, engine = setting.opened, setting.lengths, setting.opened.engine
    if engine.definition is Definition.EXACT:
        return None
    full, host = opened.needed_bytes, max(0, opened.stored_bytes - opened.needed_bytes)
    label = f"{engine.label} {opened.deployment.version}".rstrip()
    held, wasted, steps = None, None, [step("full_bytes", "", full)]
    # Of random lengths, or of very many, the engine is not asked what it holds now.
    known = opened.deployment.traits.preallocates or (lengths.uniform is None and len(lengths.now) <= MOST_LENGTHS)
    if known:
        now = [opened.sized(seq=length, batch=count) for length, count in lengths.now if length]
        now = [opened] if opened.deployment.traits.preallocates else now
        held, stored = sum(one.needed_bytes for one in now), sum(one.stored_bytes for one in now)
        formula, terms = (
            "max(held_on_all_devices - needed_bytes, 0)",
            {"held_on_all_devices": stored, "needed_bytes": rounded(setting.needed)},
        )
        waste = step("wasted_bytes", formula, unit="bytes", **terms)
        wasted = int(waste.expected)
        steps += [step("held_bytes", "", held), step("held_on_all_devices", "", stored), *setting.needed_steps, waste]
    peak = step(
        "peak_bytes", "full_bytes + transient", full_bytes=full, transient=sum(int(part.expected) for part in opened.working())
    )
    definition, cost = opened.model.definition(engine.definition), asdict(setting.cached)
    if host:
        # What lies on the host is read there, at a speed of its own.
        cost["step_s_bound"] = None
    return Strategy(
        **cost
        | {
            "name": ENGINE,
            "title": f"as {label} does",
            "full_bytes": full,
            "held_bytes": held,
            "wasted_bytes": wasted,
            "definition": definition,
            "peak_bytes": int(peak.expected),
            "peak_definition": definition,
            "host_bytes": host,
            "trades": "by its own rules: blocks, paddings and buffers as it has them",
            "used_by": label,
            "steps": (*steps, peak, *setting.cached.steps),
        }
    )


_FULL, _NOW, _NEEDED, _WASTED, _PEAK, _COPIED = (
    "full_bytes", "held_bytes", "needed_bytes", "wasted_bytes", "peak_bytes", "copied_bytes",
)  # fmt: skip
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
        sizes = (max(cell.rows) * int(full_places(self.lengths, cell).total) for cell in self.cells if cell.grows)
        return max(sizes, default=0)


def setting_of(
    opened: Occupancy,
    now: tuple[tuple[int, int], ...],
    *,
    prompt: int = 1,
    uniform: tuple[int, int] | None = None,
    block_size: int | None = None,
) -> Setting:
    """The setting that all strategies of an occupancy share. The lengths ``now``, or ``uniform``, are those of :class:`Lengths`."""
    lengths = Lengths(
        seq=opened.tokens,
        batch=opened.batch,
        prompt=prompt,
        encoder_tokens=opened.encoder_tokens,
        now=now,
        uniform=uniform,
    )
    cells = cells_of(opened, block_sizes(opened, block_size))
    cached, recomputed = costs(opened, lengths)
    full, full_steps = summed(_FULL, lengths, cells, full_places)
    needed, needed_steps = summed(_NEEDED, lengths, cells, now_places)
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
    lengths, opened, hidden_size = setting.lengths, setting.opened, setting.opened.model.hidden_size
    batch, seq, encoder = lengths.batch, lengths.seq, lengths.encoder_tokens
    # The keys and values of the whole text in one layer of each kind. A window saves nothing there.
    sizes: dict[LayerKind, int] = {kind: 0 for layer in opened.stack for kind in layer}
    for cell in setting.cells:
        positions = seq if isinstance(cell.span, (Window, Chunk, Sink)) else cell.span.positions(seq, encoder)
        sizes[cell.kind] += batch * positions * cell.row_bytes
    terms = {"largest_layer": max((sum(sizes[kind] for kind in layer) for layer in opened.stack), default=0)}
    held, steps = 0, list[Step]()
    if hidden_size is not None:
        states = {"sequences": batch, "hidden_bytes": hidden_size * FLOATS[opened.deployment.weight_dtype()].bits // 8}
        terms["hidden_states"] = figure(steps, "hidden_states", "sequences x seq x hidden_bytes", unit="bytes", seq=seq, **states)
        if encoder:
            formula = "sequences x encoder_tokens x hidden_bytes"
            held = terms["encoder_states"] = figure(
                steps, "encoder_states", formula, unit="bytes", encoder_tokens=encoder, **states
            )
    peak = figure(steps, _PEAK, " + ".join(terms), unit="bytes", **terms)
    return _strategy(setting, RECOMPUTE, full=held, held=Fraction(held), peak=peak, steps=steps, cost=setting.recomputed)


def _growth(setting: Setting) -> Strategy:
    copied, copied_steps = summed(_COPIED, setting.lengths, setting.cells, copied_places)
    steps = [*setting.full_steps, *setting.needed_steps]
    peak = figure(steps, _PEAK, "full_bytes + largest_tensor", full_bytes=setting.full, largest_tensor=setting.largest)
    steps += copied_steps
    return _strategy(setting, GROWTH, full=setting.full, held=setting.needed, peak=peak, steps=steps, copied=int(copied))


def _slots(setting: Setting) -> Strategy:
    full, needed = setting.full, rounded(setting.needed)
    single = replace(setting.lengths, now=((1, setting.lengths.batch),), uniform=None)
    one_token = int(summed(_NEEDED, single, setting.cells, now_places)[0])
    steps = [*setting.full_steps, *setting.needed_steps]
    figure(steps, _WASTED, "full_bytes - needed_bytes", full_bytes=full, needed_bytes=needed)
    return _strategy(setting, SLOTS, full=full, held=Fraction(full), peak=full, steps=steps, most_wasted=full - one_token)


def _pages(setting: Setting) -> Strategy:
    lengths = setting.lengths
    full, full_steps = summed(_FULL, lengths, setting.cells, full_slots)
    held, now_steps = summed(_NOW, lengths, setting.cells, now_slots)
    steps = [*full_steps, *now_steps, *setting.needed_steps]
    figure(steps, _WASTED, "held_bytes - needed_bytes", held_bytes=rounded(held), needed_bytes=rounded(setting.needed))
    # Less than a block for each sequence in each layer that keeps every token.
    most = sum(
        lengths.batch * cell.count * cell.row_bytes * most_unused(cell.span, cell.block_size, lengths.encoder_tokens)
        for cell in setting.cells
    )
    return _strategy(setting, PAGES, full=int(full), held=held, peak=int(full), steps=steps, most_wasted=most)


def _offload(setting: Setting) -> Strategy:
    stack, lengths, total, largest = setting.opened.stack, setting.lengths, setting.full, setting.largest
    at_full, now = (_by_kind(setting, rule) for rule in (full_places, now_places))
    device = offloaded_gpu_bytes(stack, at_full.__getitem__)
    moving = sum(at_full[kind] for layer in stack if is_offloaded(layer) for kind in layer) if device < total else 0
    copied, copied_steps = summed(_COPIED, lengths, setting.cells, copied_places)
    staying = total - moving
    steps = [replace(one, name="whole_cache") if one.name == _FULL else one for one in setting.full_steps]
    figure(steps, "host_bytes", "whole_cache - staying", whole_cache=total, staying=staying)
    figure(steps, _FULL, "staying + two_layers", staying=staying, two_layers=device - staying)
    peak = figure(steps, _PEAK, "full_bytes + largest_tensor", full_bytes=device, largest_tensor=largest)
    figure(steps, "bus_bytes", "host_bytes", host_bytes=moving)
    seconds, slower = None, None
    if setting.link is not None:
        link = setting.link.gbps * _BILLION
        seconds = moving / link
        steps.append(step("bus_s", "bus_bytes / link", seconds, unit="s", bus_bytes=moving, link=link))
        if setting.cached.step_s_bound is not None:
            slower = max(setting.cached.step_s_bound, seconds)
    steps += copied_steps
    held = Fraction(offloaded_gpu_bytes(stack, now.__getitem__))
    made = _strategy(setting, OFFLOAD, full=device, held=held, peak=peak, steps=steps, copied=int(copied))
    return replace(made, host_bytes=moving, bus_bytes_per_step=moving, bus_s_bound=seconds, step_s_bound=slower)


def _by_kind(setting: Setting, rule: Rule) -> dict[LayerKind, int]:
    """Bytes of one layer of each kind, for all sequences."""
    sizes: dict[LayerKind, Fraction] = {kind: Fraction(0) for layer in setting.opened.stack for kind in layer}
    for cell, places in places_of(setting.lengths, setting.cells, rule):
        sizes[cell.kind] += cell.row_bytes * places.total
    return {kind: rounded(size) for kind, size in sizes.items()}


def _strategy(
    setting: Setting,
    name: str,
    *,
    full: int,
    held: Fraction,
    peak: int,
    steps: Sequence[Step],
    cost: Cost | None = None,
    copied: int = 0,
    most_wasted: int = 0,
) -> Strategy:
    """A strategy with the fields that all strategies share filled in. Nothing lies in host memory."""
    cost, words = cost or setting.cached, WORDS[name]
    return Strategy(
        **asdict(cost)
        | {
            "name": name,
            "title": words.title,
            "full_bytes": full,
            "held_bytes": rounded(held),
            "wasted_bytes": max(0, rounded(held) - rounded(setting.needed)),
            "most_wasted_bytes": most_wasted,
            "definition": setting.now,
            "peak_bytes": peak,
            "peak_definition": Definition.BOUND if name == RECOMPUTE else setting.definition,
            "copied_bytes": copied,
            "trades": words.trades,
            "used_by": words.used_by,
            "steps": (*steps, *cost.steps),
        }
    )
