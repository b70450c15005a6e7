"""What a policy leaves of a prompt, and of the text that follows: every length.

The compression ratio that a press of kvpress reports behind a prefill, which is not always what it drops.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from math import prod
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.policies.base import EAGER, KVPRESS, SDPA, Chosen, Count, Effect, Extra, Left, Role, Setting, Start, State
from hwcalc.policies.counting import Ends, Growing, Walk, budgeted, ends_of_steps
from hwcalc.policies.scratch import eager_scores

FLEX: Final = "flex_attention"
ATTENTIONS: Final = (EAGER, SDPA, "flash_attention_2", "flash_attention_3", FLEX)
"""Attention kernels by the names of transformers."""
MOST_STEPS: Final = 1_000_000
"""Decode steps that are followed one by one, in all layers that differ together."""

MOST_HEADS: Final = 131_072
"""Key/value heads of all layers of which masked pairs are counted one by one. Published models have up to a few thousand."""


class Course(Record):
    """The length of a layer over the decode steps: at the end, the most behind a step and within one, each cut, and each length."""

    last: int
    most: int
    most_within: int
    cuts: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...] | range


def kernel_for(chosen: Chosen | None, asked: str | None) -> str:
    """The attention kernel: the one asked for, or the one that the policy and those inside need."""
    if asked is not None:
        return asked
    return EAGER if chosen is not None and any(one.policy.needs == EAGER for one in chosen.whole) else SDPA


def after_prefill(chosen: Chosen | None, prompt: int, setting: Setting) -> State:
    """The cache behind the prefill. Raises :class:`~hwcalc.errors.UsageError` where the policy cannot work."""
    heads = sum(layer.kv_heads for layer in setting.layers)
    if chosen is not None and heads > MOST_HEADS and any(one.policy.effect is Effect.MASKS for one in chosen.whole):
        raise UsageError(
            f"{chosen.policy.name} masks pairs by key/value head, and the layers of this model have {heads:,} of these.",
            hint=f"At most {MOST_HEADS:,} are counted.",
        )
    state = State(
        hidden=prompt,
        layers=(Left(stored=Count.of(prompt)),) * len(setting.layers),
        ranges=((0, prompt),) if chosen is None else None,
    )
    return state if chosen is None else chosen.policy.prefill(chosen, state, setting)


def _walk(
    chosen: Chosen | None, length: int, layer: int, prompt: int, steps: int, setting: Setting
) -> tuple[Start, Iterable[tuple[int, int]]]:
    """The start of decoding in one layer, and its steps: without a limit where their ends are known at once."""
    start = Start(length=length, prompt=prompt, steps=steps, layer=layer, setting=setting)
    decode = None if chosen is None else chosen.policy.decode
    if chosen is None or decode is None:
        return start, Growing(start=start)
    if chosen.policy.role is Role.SCORER and budgeted(chosen, setting, prompt) is None:
        return start, Growing(start=start)
    return start, decode(chosen, start)


def _check_steps(steps: int) -> None:
    if steps > MOST_STEPS:
        raise UsageError(f"decode is {steps:,} steps of a policy that cuts while decoding.", hint=f"At most {MOST_STEPS:,}.")


def course_of(chosen: Chosen | None, length: int, layer: int, prompt: int, steps: int, setting: Setting) -> Course:
    """The decode steps of one layer, followed one by one."""
    start, walk = _walk(chosen, length, layer, prompt, steps, setting)
    if isinstance(walk, Growing):
        last = length + steps
        return Course(last=last, most=last, most_within=last, cuts=(), lengths=range(length + 1, last + 1))
    _check_steps(steps)
    followed = tuple(walk)
    ends = ends_of_steps(start, followed)
    return Course(
        last=ends.last,
        most=ends.most,
        most_within=ends.most_within,
        cuts=tuple((number, before, after) for number, (before, after) in enumerate(followed, start=1) if after < before),
        lengths=tuple(after for _, after in followed),
    )


def ends_of(chosen: Chosen | None, length: int, layer: int, prompt: int, steps: int, setting: Setting) -> Ends:
    """The ends of the decode steps of one layer. Only a policy that says nothing of that is followed step by step."""
    start, walk = _walk(chosen, length, layer, prompt, steps, setting)
    if isinstance(walk, Walk):
        return walk.ends()
    _check_steps(steps)
    return ends_of_steps(start, walk)


class Beside(Record):
    """Bytes beside the cache at their most, in the prefill and while text is generated, and what they are of."""

    prefill: int
    decoding: int
    extras: tuple[Extra, ...]


def _of_pass(extra: Extra, whole: int, rows: int) -> Extra:
    """The scores of those tokens that go through the model at once, in place of whole prompts."""
    if not extra.formula.endswith("n x n"):
        # Not of tokens alone: a share of it.
        return replace(extra, bytes=extra.bytes * rows // whole, formula=f"({extra.formula}) x score_rows / {whole:,}")
    formula = extra.formula.replace("batch x ", "").replace("n x n", "score_rows x n")
    return replace(extra, bytes=extra.bytes // whole * rows, formula=formula)


def beside_of(
    chosen: Chosen, setting: Setting, state: State, *, longest: int, cuts: bool, at_once: tuple[int, int] | None = None
) -> Beside:
    """The bytes beside the cache of these layers, ``state`` behind the prompt; ``longest`` is the longest cache.

    A policy that keeps everything makes no scores: all return at once, at a ratio of 0 (kvpress 0.5.5) and below their budget (R-KV
    d15c976, SnapKV's authors).

    ``at_once`` are the sequences whose prompts one pass scores, and the tokens that it takes of them; the whole batch without. What lasts
    is there for every sequence, and all of them may be cut in one decode step.

    The scores of attention are gone when a policy makes its own, so that the larger of the two counts. While text is generated attention
    has one row of scores, and a policy its own at each cut.
    """
    prompt, at_prompt, at_cut = state.hidden, chosen if chosen.policy.role is not Role.DECODING else None, chosen
    if "decoding_press" in chosen.values:
        at_prompt, at_cut = chosen["prefilling_press"], chosen["decoding_press"]
    # The prompt is scored where something of it goes, or where it just fills the budget.
    goes = any(left.stored.low < prompt or (left.masked is not None and left.masked.total.high) for left in state.layers)
    scores = goes or prompt == chosen.get("budget")
    sequences, rows = (setting.batch, setting.batch * prompt) if at_once is None else at_once
    whole = max(1, sequences * prompt)
    first = [
        _of_pass(one, whole, rows) if one.by_query and rows != sequences * prompt else one
        for one in extras_of(at_prompt, prompt, replace(setting, batch=sequences))
        if not one.lasting and (scores or one.by_query)
    ]
    first += [one for one in extras_of(at_prompt, prompt, setting, eager=False) if one.lasting]
    later = [one for one in extras_of(at_cut, longest, setting, eager=False) if one.lasting or (cuts and not one.by_query)]
    attention, scoring, lasting = (
        sum(extra.bytes for extra in first if (extra.lasting, extra.by_query) == which)
        for which in ((False, True), (False, False), (True, False))
    )
    largest: dict[str, Extra] = {}
    for extra in (*first, *later):
        if extra.name not in largest or largest[extra.name].bytes < extra.bytes:
            largest[extra.name] = extra
    decoding = sum(extra.bytes for extra in later)
    return Beside(prefill=max(attention, scoring) + lasting, decoding=decoding, extras=tuple(largest.values()))


def extras_of(chosen: Chosen | None, tokens: int, setting: Setting, *, eager: bool = True) -> tuple[Extra, ...]:
    """Memory beside the cache, of the policy and those inside, and with ``eager`` of eager attention."""
    found: dict[str, Extra] = {}
    for one in () if chosen is None else chosen.whole:
        for extra in () if one.policy.extra is None else one.policy.extra(one, tokens, setting):
            found.setdefault(extra.name, extra)
    for extra in eager_scores(None, tokens, setting) if eager and setting.attention == EAGER else ():
        found.setdefault(extra.name, extra)
    return tuple(found.values())


def reported_ratio(chosen: Chosen | None, before: State, setting: Setting) -> float | None:
    """The ``compression_ratio`` of the press; ``None`` where it has none, or where the text decides.

    ``before`` is the cache that the policy finds. Masked tokens count as dropped, and half of the zeroed channels. Of most
    presses it is the option of this name, their own or that of the scorer inside.
    """
    if chosen is None:
        return 0.0
    policy = chosen.policy
    if not policy.press or policy.role is Role.DECODING or setting.rules != KVPRESS:
        return None
    match policy.name:
        case "duoattention":
            # The share of the streaming heads, as a float of 32 bits, times the share that one of them masks: below 0 for a short
            # prompt.
            heads = sum(shape.kv_heads for shape in setting.layers)
            if not heads:
                return None
            sinks, recent = (chosen["_duo"] or (chosen["sink_size"], chosen["recent_size"]))[:2]
            streaming = round(heads * chosen["head_compression_ratio"]) / heads
            share: float = struct.unpack("f", struct.pack("f", streaming))[0]
            return share * (1 - int(sinks + recent) / before.layers[-1].stored.high)
        case "dms":
            # How many pairs lie under a threshold depends on the text, unless the window spares them all.
            spared = all(layer.stored.high <= chosen["sliding_window_size"] for layer in before.layers)
            return 0.0 if spared and all(layer.masked is None for layer in before.layers) and not chosen["decoding"] else None
        case "think":
            return float(chosen["key_channel_compression_ratio"] / 2)
        case "perlayercompression":
            ratios: tuple[float, ...] = chosen["compression_ratios"]
            return sum(ratios) / len(ratios)
        case "simlayerkv":
            return _of_lazy_layers(chosen, before)
        case "composed":
            shares = []
            for inner in chosen["presses"]:
                ratio = reported_ratio(inner, before, setting)
                if ratio is None:
                    return None
                shares.append(1 - ratio)
                before = inner.policy.prefill(inner, before, setting)
            return 1 - prod(shares, start=1.0)
    return chosen.ratio


def _of_lazy_layers(chosen: Chosen, before: State) -> float | None:
    """The mean over the layers. One token is taken to stay that goes: kvpress counts with an ``n_last`` of 1."""
    threshold, first, recent, last = (chosen[name] for name in ("lazy_threshold", "n_initial", "n_recent", "n_last"))
    found = []
    for layer in before.layers:
        tokens = layer.stored.high
        touched = threshold != 1 and tokens > first + recent + last
        if touched and (threshold or not layer.stored.is_exact):
            return None
        found.append((tokens - first - recent + 1) / tokens if touched else 0.0)
    return sum(found) / len(found) if found else None
