"""Run the policy of a request with real tensors, and compare bytes and copies with the plan: of its cache, and of what scoring takes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.setup import UNSHARED
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.planner.policy import policy_info
from hwcalc.planner.result import PolicyInfo
from hwcalc.policies.base import Chosen, Extra, LayerShape, Setting
from hwcalc.policies.outcome import extras_of
from hwcalc.probe.devices import Device, Meter, holding, is_out_of_memory, metering
from hwcalc.probe.policy_cut import (
    MOST_GROWTHS,
    MOST_MOVED_BYTES,
    SEED,
    Cache,
    Lengths,
    Measured,
    Plan,
    Ran,
    Sizes,
    cut_for_real,
    lengths_of,
    plan_of,
    sizes_of,
)
from hwcalc.probe.policy_paged import pages_for_real, planned_blocks
from hwcalc.probe.result import AT_RANDOM, BY_THE_RULE, BYTES, PolicyFigure, PolicyRun
from hwcalc.text import brief
from hwcalc.units import GIB, MIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.policies import Evicted

_LEAST_TOKENS: Final = 64
_MOST_TOKENS: Final = 2**31
_ESTIMATE: Final = 0.25
"""How far an estimate may be off: engines make copies that its formula leaves out."""
_MEASURED: Final = 0.02
"""The rest of a fit: terms that do not grow with the square."""
_FLOATS: Final = {4: "float32", 2: "bfloat16", 8: "float64"}


class _Scoring(Record):
    """One layer that is scored, of ``setting.batch`` sequences of so many tokens."""

    chosen: Chosen
    setting: Setting
    tokens: int
    device: Device
    meter: Meter

    @property
    def torch(self) -> Any:
        """The library."""
        return self.device.torch

    @property
    def dtype(self) -> Any:
        """The format of the model."""
        return getattr(self.torch, _FLOATS.get(self.setting.element_bytes, "float32"))

    @property
    def layer(self) -> LayerShape:
        """The layer whose scores are the largest."""
        return _widest(self.setting)

    def zeros(self, *shape: int) -> Any:
        """Numbers of the model's format."""
        return self.torch.zeros((self.setting.batch, *shape), dtype=self.dtype, device=self.device.label)

    def option(self, name: str) -> int:
        """An option of the policy, or of one inside it."""
        found = (one.get(name) for one in self.chosen.whole)
        return next((int(value) for value in found if value), 1)


def beside_for_real(
    beside: Sequence[Extra], chosen: Chosen, prompt: int, setting: Setting, device: Device, meter: Meter, most_bytes: int
) -> list[PolicyFigure]:
    """Each memory beside the cache that the plan names, for as many tokens as fit into ``most_bytes``."""
    figures = []
    layer = _widest(setting)
    # Of the queries and keys from which scores are made.
    row_bytes = (layer.heads + layer.kv_heads) * layer.head_dim * setting.element_bytes
    for planned in beside:
        make = _MAKERS.get(planned.name)
        if make is None:
            figures.append(PolicyFigure.known(planned.name, BYTES, planned.bytes, None, "not measured"))
            continue
        tokens, batch = _tokens_of(chosen, prompt, setting, planned), setting.batch
        asked = tokens
        extra = _named(chosen, tokens, setting, planned.name)
        while extra is not None and extra.bytes + batch * tokens * row_bytes > most_bytes:
            tokens, batch = (tokens, 1) if batch > 1 else (tokens // 2, 1)
            extra = _named(chosen, tokens, replace(setting, batch=batch), planned.name) if tokens >= _LEAST_TOKENS else None
        if extra is None:
            remark = f"not measured: more than {most_bytes:,} B"
            figures.append(PolicyFigure.known(planned.name, BYTES, planned.bytes, None, remark))
            continue
        scoring = _Scoring(chosen=chosen, setting=replace(setting, batch=batch), tokens=tokens, device=device, meter=meter)
        start = meter.now
        given = make(scoring)
        measured = meter.peak - start - sum(one.untyped_storage().nbytes() for one in given)
        del given
        remark = "" if (tokens, batch) == (asked, setting.batch) else f"of {batch:,} x {tokens:,} tokens"
        slack = {Definition.ESTIMATE: _ESTIMATE, Definition.MEASURED: _MEASURED}.get(extra.definition, 0.0) * extra.bytes
        figures.append(
            PolicyFigure(
                name=extra.name,
                unit=BYTES,
                predicted=extra.bytes,
                measured=measured,
                least=extra.bytes - slack,
                most=extra.bytes + slack,
                remark="; ".join(filter(None, (remark, f"{extra.definition.value}: {brief(extra.formula, 80)}"))),
            )
        )
    return figures


def _tokens_of(chosen: Chosen, prompt: int, setting: Setting, planned: Extra) -> int:
    """The tokens of which the plan speaks: those of the prompt, or more where a cut of later text takes more."""
    low, step = 0, 1
    while step:
        extra = _named(chosen, low + step, setting, planned.name) if low + step < _MOST_TOKENS else None
        if extra is not None and extra.bytes <= planned.bytes:
            low, step = low + step, 2 * step
        else:
            step //= 2
    found = _named(chosen, low, setting, planned.name) if low else None
    return low if found is not None and found.bytes == planned.bytes else prompt


def _named(chosen: Chosen, tokens: int, setting: Setting, name: str) -> Extra | None:
    return next((extra for extra in extras_of(chosen, tokens, setting) if extra.name == name), None)


def _widest(setting: Setting) -> LayerShape:
    """The layer whose scores are the largest."""
    return max(setting.layers, key=lambda layer: (layer.heads, layer.kv_heads))


def _eager(one: _Scoring) -> tuple[Any, ...]:
    """As transformers: queries by keys, scaled, masked, and a softmax in fp32 that goes back to the format of the model."""
    layer, torch = one.layer, one.torch
    queries, keys = (one.zeros(layer.heads, one.tokens, layer.head_dim) for _ in range(2))
    one.meter.restart()
    mask = one.zeros(1, one.tokens, one.tokens)
    scores = torch.matmul(queries, keys.transpose(2, 3)) * layer.head_dim**-0.5
    scores = scores + mask
    scores = torch.softmax(scores, dim=-1, dtype=torch.float32).to(one.dtype)
    return queries, keys


def _window(one: _Scoring) -> tuple[Any, ...]:
    """As kvpress: keys repeated for each head, the last queries by all keys, a mask that is made and added, and a softmax in fp32."""
    layer, torch = one.layer, one.torch
    window = min(one.option("window_size"), one.tokens)
    queries, keys = one.zeros(layer.heads, window, layer.head_dim), one.zeros(layer.kv_heads, one.tokens, layer.head_dim)
    one.meter.restart()
    repeated = keys
    if layer.heads > layer.kv_heads:
        repeated = keys.repeat_interleave(layer.heads // layer.kv_heads, dim=1)
    scores = torch.matmul(queries, repeated.transpose(2, 3)) / layer.head_dim**0.5
    mask = torch.ones_like(scores) * float("-inf")
    mask = torch.triu(mask, diagonal=one.tokens - window + 1)
    scores += mask
    scores = torch.softmax(scores, dim=-1, dtype=torch.float32).to(one.dtype)
    return queries, keys


def _similarities(one: _Scoring) -> tuple[Any, ...]:
    """As R-KV: every key of a head by every other."""
    keys = one.zeros(one.layer.kv_heads, one.tokens, one.layer.head_dim)
    one.meter.restart()
    one.torch.matmul(keys, keys.transpose(2, 3))
    return (keys,)


def _pages(one: _Scoring) -> tuple[Any, ...]:
    """As Quest: the least and the greatest key of each page, of all layers."""
    pages = ceil(one.tokens / one.option("chunk_size"))
    one.meter.restart()
    # All layers at once, which the meter sees in its peak; nothing needs them after that.
    held = [[one.zeros(layer.kv_heads, pages, layer.head_dim) for _ in range(2)] for layer in one.setting.layers]
    del held
    return ()


_MAKERS: Final = {
    "eager attention scores": _eager,
    "scores of the window": _window,
    "similarities of keys": _similarities,
    "keys of pages": _pages,
}


_SECONDS: Final = 60.0
_CPU_BYTES: Final = GIB
"""What is taken of a CPU's memory unless the user allows more: every byte is written and moved."""
_BESIDE_BYTES: Final = {"cpu": 256 * MIB}
WHOLE, BEHIND, MOST, END = "cache, one layer whole", "cache behind the prompt", "cache at the most", "cache at the end"


class _Part(Record):
    """The part of a plan that fits: so many sequences, and the first layers."""

    plan: Plan
    layers: tuple[int, ...]
    batch: int
    sizes: Sizes
    lengths: Lengths


def run_policy(
    opened: Occupancy,
    device: Device,
    *,
    usable_bytes: int | None,
    limited: bool = False,
    scale: Fraction | None = None,
    seconds: float = _SECONDS,
) -> PolicyRun:
    """Run it in ``usable_bytes`` of the device, ``None`` if nothing says how much is free.

    Raises a subclass of :class:`~hwcalc.errors.KvplanError` where there is nothing to drop or no layer fits.
    """
    evicted, asked, prompt = opened.evicted, opened.setup.policy, opened.load.prompt_tokens
    if evicted is None or asked is None:
        raise UsageError("there is no policy to run.", hint="Write: --policy snapkv:compression_ratio=0.5")
    if opened.load.sharing != UNSHARED:
        raise UsageError(
            "a policy is run with sequences that share nothing.", hint="Leave out --shared-prefix, --samples and --beams."
        )
    if not evicted.setting.layers:
        raise UnsupportedError(
            "no layer of this model keeps every token: a policy has nothing to act on.", hint="See: kvplan explain MODEL"
        )
    info = policy_info(opened, evicted)
    usable = _CPU_BYTES if usable_bytes is None else usable_bytes
    if device.kind == "cpu" and not limited:
        usable = min(usable, _CPU_BYTES)
    until = monotonic() + seconds
    try:
        if not opened.policies.paged_groups():
            ran = _contiguous(opened, evicted, info, device, usable, scale, until)
        elif info.blocks is None:
            raise UnsupportedError(
                f"{info.name} drops nothing of these {info.prompt:,} tokens: no block is to be given back.",
                hint="Use a longer --prompt, or --engine reference.",
            )
        else:
            share = scale or Fraction(1)
            ran = pages_for_real(opened, evicted, info.blocks, device, usable_bytes=usable, share=share, until=until)
        with holding(device), metering(device) as meter:
            least = min(usable, _BESIDE_BYTES.get(device.kind, usable))
            setting = replace(evicted.setting, batch=opened.load.sequences)
            beside = beside_for_real(info.beside, asked.chosen, prompt, setting, device, meter, least)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error, device.torch):
            raise
        raise UsageError(
            f"out of memory while the policy was run in {human_bytes(usable)}.", hint=f"Smaller: --max-bytes {usable // 2}"
        ) from error
    figures = (*ran.figures, *beside)
    return PolicyRun(
        policy=asked.chosen.text,
        rules=asked.rules,
        compaction=asked.compaction,
        engine=opened.engine.name,
        device=device.label,
        seed=SEED,
        survivors=AT_RANDOM if evicted.state.ranges is None else BY_THE_RULE,
        prompt=prompt,
        output=opened.tokens - prompt,
        steps=ran.steps,
        scaled=", ".join(f"{made:,} of {whole:,} {what}" for made, whole, what in ran.parts if made != whole) or None,
        copied_tokens=ran.copied,
        in_place=ran.in_place,
        figures=figures,
        agrees=ran.in_place is not False and all(figure.agrees for figure in figures),
    )


def _contiguous(
    opened: Occupancy, evicted: Evicted, info: PolicyInfo, device: Device, usable: int, scale: Fraction | None, until: float
) -> Ran:
    """The tensors of all layers."""
    part = _fitting(opened, evicted, usable, scale)
    with holding(device) as held:
        held.append(Cache(part.plan, part.layers, part.lengths, device, seed=SEED, ranges=evicted.state.ranges))
        with metering(device) as meter:
            measured = cut_for_real(held[0], meter, part.lengths, until)
    layers = (len(part.layers), len(part.plan.layers), "layers")
    steps = (measured.steps, opened.tokens - part.plan.prompt, "decode steps")
    return Ran(
        figures=tuple(_figures(opened, part, measured, info)),
        copied=measured.copied_tokens,
        in_place=measured.in_place,
        steps=measured.steps,
        parts=((part.batch, opened.batch, "sequences"), layers, steps),
    )


def _fitting(opened: Occupancy, evicted: Evicted, usable: int, scale: Fraction | None) -> _Part:
    """As many sequences as fit with all layers; if not one does, the first layers of one."""
    stage = fullest_stage(opened)
    if scale is not None:
        plan = plan_of(opened, evicted, opened.batch, stage)
        usable = min(usable, int(scale * sizes_of(plan, tuple(plan.layers), []).cutting))
    for batch in dict.fromkeys((opened.batch, 1)):
        plan = plan_of(opened, evicted, batch, stage)
        if not any(piece.acted for pieces in plan.layers.values() for piece in pieces):
            raise UnsupportedError(
                f"no tensor of {opened.engine.name} follows the tokens that a policy leaves: its cache is made for the whole context.",
                hint="Use: --engine reference",
            )
        layers = tuple(plan.layers)
        while layers:
            # As many decode steps as are followed: each moves the whole cache.
            kept = {number: plan.kept[number] for number in layers if number in plan.kept}
            tensors = sum(len(plan.layers[number]) for number in kept)
            moved = sum(plan.bytes(number, length) for number, length in kept.items())
            most = min(MOST_GROWTHS // max(1, tensors), MOST_MOVED_BYTES // max(1, moved))
            steps = min(opened.tokens - plan.prompt, max(1, most))
            lengths = lengths_of(plan.chosen, evicted.setting, kept, plan.prompt, steps)
            sizes = sizes_of(plan, layers, lengths)
            if max(sizes.cutting, sizes.growing) <= usable:
                return _Part(plan=plan, layers=layers, batch=batch, sizes=sizes, lengths=lengths)
            if batch > 1:
                break
            layers = layers[: len(layers) // 2] if len(layers) > 1 else ()
    least = sizes_of(plan, tuple(plan.layers)[:1], [])
    raise UsageError(
        f"{human_bytes(usable)} hold no layer with the copy of its cut: the first takes {human_bytes(least.cutting)}.",
        hint=f"Use: --max-bytes {least.cutting}, or a smaller --prompt",
    )


def _figures(opened: Occupancy, part: _Part, measured: Measured, info: PolicyInfo) -> list[PolicyFigure]:
    """The bytes of each moment. The plan's own figures are taken where the whole plan was run on one device."""
    lengths = part.lengths[: measured.steps]
    sizes = part.sizes if len(lengths) == len(part.lengths) else sizes_of(part.plan, part.layers, lengths)
    whole = opened.setup.gpus == 1 and part.batch == opened.batch and len(part.layers) == len(part.plan.layers)
    planned = planned_figures(opened, info) if whole else {}
    if measured.steps != opened.tokens - part.plan.prompt:
        planned = {name: size for name, size in planned.items() if name not in {MOST, END}}
    got = measured.sizes
    figures = [
        PolicyFigure.exact(WHOLE, BYTES, planned.get(WHOLE, sizes.fullest), got.fullest),
        PolicyFigure.exact("with the copies of its cut", BYTES, sizes.cutting, got.cutting),
        PolicyFigure.exact(BEHIND, BYTES, planned.get(BEHIND, sizes.behind), got.behind),
    ]
    if lengths:
        figures += [
            PolicyFigure.exact(MOST, BYTES, planned.get(MOST, sizes.most), got.most),
            PolicyFigure.exact("with the copies of a step", BYTES, sizes.growing, got.growing),
            PolicyFigure.exact(END, BYTES, planned.get(END, sizes.end), got.end),
        ]
    return figures


def planned_figures(opened: Occupancy, info: PolicyInfo) -> dict[str, float]:
    """The plan's own figures that must be met exactly, by their names."""
    if opened.policies.paged_groups():
        return {} if info.blocks is None else planned_blocks(info.blocks)
    whole = {} if opened.setup.gpus > 1 else {WHOLE: opened.policies.prefill_bytes(0)}
    return {**whole, BEHIND: info.prefill_bytes, MOST: info.most_bytes, END: info.last_bytes}
