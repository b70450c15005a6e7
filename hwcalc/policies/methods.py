"""Policies that act while text is generated, and policies with code outside kvpress.

These are cuts every so many decode steps, to a number of tokens or to a share of the text; H2O, Scissorhands, R-KV, TriAttention and Quest;
and CaM, which adds the values of dropped tokens to those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.arithmetic import last_good
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import (
    DIVIDE,
    EAGER,
    Choice,
    Chosen,
    Count,
    Effect,
    Extra,
    Left,
    Policy,
    PolicyOption,
    Role,
    Scored,
    Setting,
    Start,
    State,
    quality,
)
from hwcalc.policies.counting import (
    CutAbove,
    CutAtLengths,
    CutEachStep,
    Ends,
    Growing,
    Walk,
    Worked,
    all_stay,
    check_room,
    check_scores,
    cut_to,
    each_layer,
    kept,
    larger,
    sawtooth,
    scorer_budget,
    searched_ratio,
    to_budget,
    untouched,
)
from hwcalc.policies.scratch import SMALL, eager_scores, page_keys, similarity

_RKV_EVERY: Final = 128
_BUDGET: Final = PolicyOption(name="budget", kind="count", default=None, help="tokens that stay", required=True, least=1)


def _to_budget(chosen: Chosen, state: State, setting: Setting) -> State:
    check_room(chosen, chosen["budget"])
    return cut_to(chosen, state, setting, chosen["budget"])


def _one_out(chosen: Chosen, start: Start) -> Walk:
    """One token out for each that comes in, or all at once every ``divide_length``."""
    if chosen["divide_length"] is not None:
        return CutAtLengths(start=start, budget=chosen["budget"], every=chosen["divide_length"])
    return CutEachStep(start=start, budget=chosen["budget"])


def _batch_out(chosen: Chosen, start: Start) -> Walk:
    """A batch of tokens goes when the budget is full."""
    drop = chosen["drop"] or max(1, chosen["budget"] // 2)
    if drop > chosen["budget"]:
        raise UsageError("scissorhands: drop is more than the budget.", hint="Make it smaller.")
    return CutEachStep(start=start, budget=chosen["budget"], drop=drop)


def triggers(chosen: Chosen, length: int, prompt: int = 0) -> bool:
    """True if TriAttention cuts a cache of this length: at the budget and an interval, from there on.

    Source: WeianMao/triattention c3744ee, its planner.
    """
    every: int = chosen["divide_length"]
    return length >= _triattention_budget(chosen, prompt) + every


def _triattention_budget(chosen: Chosen, prompt: int) -> int:
    budget: int = chosen["kv_budget"]
    return budget + (prompt if chosen["prefill_outside_budget"] else 0)


def _triattention_prefill(chosen: Chosen, state: State, setting: Setting) -> State:
    budget, prompt = _triattention_budget(chosen, state.hidden), state.hidden
    return each_layer(state, lambda _, tokens: budget if triggers(chosen, tokens, prompt) else tokens)


def _triattention_crests(chosen: Chosen) -> tuple[int, ...]:
    """The longest prompt that is not cut. Outside the budget none is."""
    return () if chosen["prefill_outside_budget"] else (chosen["kv_budget"] + chosen["divide_length"] - 1,)


def _triattention_worked(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    if not triggers(chosen, tokens, tokens):
        return all_stay(chosen, tokens, layer, setting)
    return "policy_budget", {"policy_budget": _triattention_budget(chosen, tokens)}


def _triattention_steps(chosen: Chosen, start: Start) -> Walk:
    return CutAbove(start=start, budget=_triattention_budget(chosen, start.prompt), every=chosen["divide_length"])


def pages_read(tokens: int, budget: int, page: int) -> int:
    """Pages that a decode step of Quest reads for each head: those of the budget, but three at least, and no more than there are.

    >>> pages_read(1000, 1024, 16), pages_read(40, 16, 16)
    (62, 3)

    A budget above the text counts as the text: 1,000 // 16 = 62 of 63 pages. Source: mit-han-lab/Quest 01c1623, local_heavy_hitter_mask.
    """
    return min(max(3, min(tokens, budget) // page), ceil(tokens / page))


def _quest(chosen: Chosen, state: State, setting: Setting) -> State:
    """All tokens stay; from the third layer on a step reads the pages whose keys promise most."""
    page = chosen["chunk_size"]

    def read(number: int, left: Left) -> Count:
        tokens = left.stored.high
        pages, last = pages_read(tokens, chosen["token_budget"], page), tokens % page
        if setting.layers[number].index < chosen["skip_layers"] or pages == ceil(tokens / page):
            return Count.of(tokens)
        return Count(low=pages * page - (page - last if last else 0), high=pages * page)

    each_layer(state, lambda _, tokens: tokens)
    return replace(state, layers=tuple(replace(left, read=read(number, left)) for number, left in enumerate(state.layers)))


METHODS: Final = (
    Policy(
        name="h2o", press="", title="H2O: heavy hitters and recent tokens", role=Role.METHOD, effect=Effect.FREES, needs=EAGER,
        keeps="half of the budget of the tokens that got most attention so far, half of the last ones",
        formula="min(n, budget); one token out for each that comes in", kernel="eager alone: the scores of every query, in every step",
        source="arXiv:2306.14048", prefill=_to_budget, worked=to_budget, decode=_one_out, extra=eager_scores, options=(_BUDGET, DIVIDE),
        memory="the scores of eager attention: batch x heads x n x n, and a sum for each token and head", definition=Definition.PUBLISHED,
    ),
    Policy(
        name="scissorhands", press="", title="Scissorhands", role=Role.METHOD, effect=Effect.FREES, source="arXiv:2305.17118",
        keeps="the tokens that stay important, and the last ones", kernel="one that gives its scores",
        formula="min(n, budget); when it is full, drop tokens go at once", prefill=_to_budget, worked=to_budget, decode=_batch_out,
        memory="a count for each token and head", definition=Definition.PUBLISHED,
        options=(
            _BUDGET,
            PolicyOption(name="drop", kind="count", default=None, help="tokens that go at once; half of the budget without, which is assumed: the authors published code of perplexity alone, which masks", least=1),
            quality("recent", 10),
        ),
    ),
    Policy(
        name="rkv", press="", title="R-KV", role=Role.METHOD, effect=Effect.FREES, source="arXiv:2505.24133; Zefan-Cai/R-KV d15c976",
        aliases=("r1kv",), keeps="important tokens that are not like others, and the last window_size", kernel="any",
        formula="min(n, budget) behind the prefill; budget again in the step behind each divide_length tokens of text",
        prefill=_to_budget, worked=to_budget, decode=_one_out, extra=similarity,
        memory="similarities of keys: kv_heads x n x n while a layer is cut, and the last window_size queries",
        options=(
            PolicyOption(name="budget", kind="count", default=128, help="tokens that stay", least=1),
            PolicyOption(name="divide_length", kind="count", default=_RKV_EVERY, help="tokens of text between cuts", least=1),
            PolicyOption(name="window_size", kind="count", default=8, help="last tokens, whose queries score the others", least=1),
            quality("mix_lambda", 0.07),
            quality("kernel_size", 7),
            quality("retain_ratio", 0.1),
            quality("retain_direction", "last"),
        ),
    ),
    Policy(
        name="triattention", press="", title="TriAttention", role=Role.METHOD, effect=Effect.FREES, kernel="any",
        source="arXiv:2604.04921; WeianMao/triattention c3744ee", prefill=_triattention_prefill, worked=_triattention_worked, decode=_triattention_steps, crests=_triattention_crests,
        chooses=Choice.HEADS_TOGETHER,
        keeps="tokens by a series of distances from statistics of the model, each head its own, all equally many",
        formula="grows to kv_budget + divide_length, then kv_budget again", memory="statistics of queries and keys for each head",
        options=(
            PolicyOption(name="kv_budget", kind="count", default=2048, help="tokens behind a cut", least=1),
            PolicyOption(name="divide_length", kind="count", default=128, help="tokens above the budget at which it is cut", least=1),
            PolicyOption(name="prefill_outside_budget", kind="flag", default=False, help="the prompt stays, beside the budget"),
            quality("window_size", 128),
        ),
    ),
    Policy(
        name="quest", press="", title="Quest", role=Role.METHOD, effect=Effect.READS_LESS, kernel="its own, by pages",
        source="arXiv:2406.10774; mit-han-lab/Quest 01c1623", prefill=_quest, worked=all_stay, extra=page_keys,
        keeps="all tokens; a decode step reads the pages whose keys promise most, each head its own",
        formula="n stored; min(max(3, min(n, token_budget) // chunk_size), ceil(n / chunk_size)) pages read",
        memory="the least and the greatest key of each page: 1 / chunk_size of the cache",
        options=(
            PolicyOption(name="token_budget", kind="count", default=1024, help="tokens that a step reads", least=1),
            PolicyOption(name="chunk_size", kind="count", default=16, help="tokens of a page", least=1),
            PolicyOption(name="skip_layers", kind="count", default=2, help="first layers that read everything"),
        ),
    ),
)  # fmt: skip


_BASE: Final = PolicyOption(name="base_press", kind="base", default=None, help="the scorer, or adakv, that cuts", required=True)
_INTERVAL: Final = PolicyOption(name="compression_interval", kind="count", default=512, help="decode steps between cuts", least=1)
_BUFFER: Final = PolicyOption(
    name="hidden_states_buffer_size", kind="count", default=256, help="hidden states that are kept for scoring, of each layer"
)
_MOST_CUTS: Final = 20_000
"""Cuts of all layers together that are followed where each depends on the one before: about a tenth of a second."""
_DEEPEST: Final = 1 << 20
"""Tokens of a cut up to which twenty halvings of its ratio find the target."""


def _both(chosen: Chosen, state: State, setting: Setting) -> State:
    """The policy of the prefill, if there is one."""
    first = chosen["prefilling_press"]
    return state if first is None else first.policy.prefill(first, state, setting)


def _cut(base: Chosen, length: int, target: int, buffered: int, start: Start) -> int:
    """The length behind a cut towards ``target``. Ada-KV masks, so nothing goes."""
    ratio, setting = searched_ratio(length, target), start.setting
    if ratio == 0:
        return length
    check_scores(base, Scored(keys=length, queries=buffered, attention=setting.attention, decoding=True))
    if base.policy.role is not Role.SCORER:
        return length
    return scorer_budget(base, ratio, length, setting.layers[start.layer].index, setting.depth)


class _Cuts(Walk, Record):
    """A token a step; every ``interval`` steps a cut to the target of that step. With a target of one token each step cuts.

    ``target_of`` never falls. ``share`` says that it is a share of the text, which grows.
    """

    start: Start
    base: Chosen
    interval: int
    buffer: int
    target_of: Callable[[int], int]
    share: bool

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, waited, buffered = self.start.length, 0, 0
        for step in range(1, self.start.steps + 1):
            before = length = length + 1
            waited, buffered = waited + 1, buffered + 1
            target = self.target_of(step)
            if waited >= self.interval or target <= 1:
                length = _cut(self.base, length, target, buffered, self.start)
                waited = buffered = 0
            buffered = min(buffered, self.buffer)
            yield before, length

    def ends(self) -> Ends:
        """From cut to cut; cuts that find the cache as the one before left it are passed over."""
        start, steps, length, step = self.start, self.start.steps, self.start.length, 0
        own_budgets, cuts = self.base.policy.budget is not None, steps // self.interval * len(start.setting.layers)
        if self.share and own_budgets and cuts > _MOST_CUTS:
            # Cuts to a share by budgets of a layer's own are followed one by one.
            raise UsageError(
                f"{steps:,} decode steps are {cuts:,} cuts of layers that differ.",
                hint=f"At most {_MOST_CUTS:,} are followed: make compression_interval longer, or the prompt more of --seq.",
            )
        # Each cut to a share hits its target, unless budgets are a layer's own, or a cut is so deep that the search misses.
        falls = self.share and self.target_of(steps) < start.prompt + steps
        hits = falls and not own_budgets and self.interval < _DEEPEST
        most = within = length
        largest: tuple[int, int] | None = None
        while step < steps:
            gap = 1 if self.target_of(step + 1) <= 1 else self.interval
            waits = _first(lambda k: length + k * gap > self.target_of(step + k * gap), (steps - step) // gap)  # noqa: B023
            if waits is None:
                break
            step, before = step + waits * gap, length + waits * gap
            target = self.target_of(step)
            after = _cut(self.base, before, target, min(gap - 1, self.buffer) + 1, start)
            most, within = max(most, before - 1, after), max(within, before)
            if after == before:
                # Ada-KV masks: nothing ever goes.
                length = after
                break
            settled = after == length and waits == 1
            length, largest = after, larger(largest, (before, after))
            if settled and not self.share:
                step += (steps - step) // gap * gap
            elif settled and target <= 1:
                grows = _first(lambda k: self.target_of(step + k) > 1, steps - step)  # noqa: B023
                step = steps if grows is None else step + grows - 1
            elif after == target > 1 and hits:
                step += max(0, (steps - step) // gap - 1) * gap
                length = self.target_of(step)
        last = length + steps - step
        return Ends(last=last, most=max(most, last), most_within=max(within, last), largest=largest)


def _first(good: Callable[[int], bool], bound: int) -> int | None:
    """The least number from 1 to ``bound`` for which ``good`` is true, as for all above it; ``None`` if there is none."""
    if bound < 1 or good(1):
        return 1 if bound >= 1 else None
    least: int = 1 + last_good(bound, lambda number: not good(number))
    return None if least > bound else least


def _cuts(chosen: Chosen, start: Start) -> Walk:
    """Cuts to a number of tokens, or to a share of the whole text so far, dropped tokens too."""
    size, ratio = chosen.get("target_size"), chosen.get("target_compression_ratio")

    def target_of(step: int) -> int:
        return size if ratio is None else kept(start.prompt + step, ratio)

    interval, buffer = chosen["compression_interval"], chosen["hidden_states_buffer_size"]
    base, share = chosen["base_press"], ratio is not None
    return _Cuts(start=start, base=base, interval=interval, buffer=buffer, target_of=target_of, share=share)


def _second(chosen: Chosen, start: Start) -> Iterable[tuple[int, int]]:
    second: Chosen | None = chosen["decoding_press"]
    if second is None:
        return Growing(start=start)
    assert second.policy.decode is not None
    return second.policy.decode(second, start)


def _buffers(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Hidden states that wait for the next cut."""
    if setting.hidden_size is None:
        return ()
    rows = min(chosen["compression_interval"], chosen["hidden_states_buffer_size"] + 1)
    return (
        Extra(
            name="buffered hidden states",
            bytes=setting.batch * len(setting.layers) * rows * setting.hidden_size * setting.element_bytes,
            formula=f"batch x layers x {rows:,} x hidden_size x {setting.element_bytes}",
            when="between cuts, all layers",
            definition=Definition.ENGINE,
            source="kvpress 0.5.5, DecodingPress",
            lasting=True,
        ),
    )


def _second_buffers(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    second = chosen["decoding_press"]
    return () if second is None else _buffers(second, tokens, setting)


def _check_parts(chosen: Chosen) -> None:
    """A policy of two parts needs one."""
    if chosen["prefilling_press"] is None and chosen["decoding_press"] is None:
        raise UsageError("prefilldecoding has neither part.", hint="Give prefilling_press, decoding_press, or both.")


DECODING: Final = (
    Policy(
        name="decoding", press="DecodingPress", title="cut to a fixed size at regular steps", role=Role.DECODING, effect=Effect.FREES,
        keeps="all of the prompt at first; then, every compression_interval steps, target_size tokens",
        formula="grows to target_size + compression_interval - 1, then target_size again; before the first cut n + compression_interval - 1",
        kernel="as the policy inside", source="kvpress 0.5.5", prefill=untouched, worked=all_stay, decode=_cuts, extra=_buffers, in_prefill=SMALL,
        memory="hidden states: layers x min(compression_interval, hidden_states_buffer_size + 1) x hidden_size",
        options=(
            _BASE,
            _INTERVAL,
            PolicyOption(name="target_size", kind="count", default=2048, help="tokens behind a cut", least=1),
            _BUFFER,
        ),
    ),
    Policy(
        name="compressionratiodecoding", press="CompressionRatioDecodingPress", title="cut to a share of the text at regular steps",
        role=Role.DECODING, effect=Effect.FREES, kernel="as the policy inside", source="kvpress 0.5.5", prefill=untouched, worked=all_stay,
        keeps="all of the prompt at first; then, every compression_interval steps, a share of the text so far",
        formula="every compression_interval steps max(1, int(text x (1 - target_compression_ratio)))", decode=_cuts, extra=_buffers, in_prefill=SMALL,
        memory="hidden states: layers x min(compression_interval, hidden_states_buffer_size + 1) x hidden_size",
        options=(
            _BASE,
            _INTERVAL,
            PolicyOption(name="target_compression_ratio", kind="ratio", default=0.5, help="share of the text that is dropped"),
            _BUFFER,
        ),
    ),
    Policy(
        name="prefilldecoding", press="PrefillDecodingPress", title="one policy in the prefill, one while decoding", role=Role.DECODING,
        effect=Effect.DEPENDS, keeps="what the first leaves of the prompt, then what the second leaves", formula="as its parts",
        kernel="as its parts", source="kvpress 0.5.5", prefill=_both, decode=_second, extra=_second_buffers,
        check_chosen=_check_parts, in_prefill=SMALL,
        options=(
            PolicyOption(name="prefilling_press", kind="prefill", default=None, help="acts on the prompt"),
            PolicyOption(name="decoding_press", kind="decoding", default=None, help="acts between decode steps"),
        ),
    ),
)  # fmt: skip


_SOURCE: Final = "kvpress 0.5.5, CAMPress"


class _Merges(Walk, Record):
    """A cut to the target, just so many tokens, in the first step that is above it and ``interval`` steps behind the last cut.

    Steps count on while the cache is not above the target. A target of one token cuts in each step.
    """

    chosen: Chosen
    start: Start
    target: int
    interval: int
    first: int
    """The step of the first cut."""

    def _check(self, keys: int, waited: int) -> None:
        """The scorer sees the hidden states of the steps since the last cut, as far as they are kept, and no scores of eager attention."""
        buffered = min(waited - 1, self.chosen["hidden_states_buffer_size"]) + 1
        check_scores(self.chosen["base_press"], Scored(keys=keys, queries=buffered, attention="", decoding=True))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, due, last = self.start.length, self.first, 0
        for step in range(1, self.start.steps + 1):
            before = length = length + 1
            if step == due:
                self._check(before, step - last)
                length, last, due = self.target, step, step + self.interval
            yield before, length

    def ends(self) -> Ends:
        first, steps = self.first, self.start.steps
        if first > steps:
            return Growing(start=self.start).ends()
        self._check(self.start.length + first, first)
        if first + self.interval <= steps:
            self._check(self.target + self.interval, self.interval)
        return sawtooth(self.start, first, self.target, self.interval)


def _merges(chosen: Chosen, start: Start) -> Walk:
    target = chosen["target_size"]
    interval = 1 if target == 1 else chosen["compression_interval"]
    first = max(interval, target - start.length + 1)
    return _Merges(chosen=chosen, start=start, target=target, interval=interval, first=first)


def _sums(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The attention that each key has got so far, in each head."""
    heads = sum(shape.kv_heads for shape in setting.layers)
    longest = max(tokens, chosen["target_size"]) + chosen["compression_interval"]
    return (
        Extra(
            name="sums of attention",
            bytes=setting.batch * heads * longest * setting.element_bytes,
            formula=f"batch x layers x kv_heads x (max(n, target_size) + compression_interval) x {setting.element_bytes}",
            when="while decoding, all layers",
            definition=Definition.ENGINE,
            source=_SOURCE,
            lasting=True,
        ),
    )


MERGING: Final = (
    Policy(
        name="cam", press="CAMPress", title="CaM: merged values while decoding", role=Role.DECODING, effect=Effect.FREES,
        keeps="all of the prompt at first; then, every compression_interval steps, target_size tokens, with values of dropped ones added",
        formula="grows to target_size + compression_interval - 1, then target_size again; before the first cut n + compression_interval - 1",
        kernel="as the scorer inside", source="openreview.net LCTmppB165", prefill=untouched, worked=all_stay, decode=_merges, extra=_sums,
        memory="a sum of attention for each key: layers x kv_heads x n",
        options=(
            PolicyOption(name="base_press", kind="scorer", default=None, help="the scorer that cuts", required=True),
            PolicyOption(name="compression_interval", kind="count", default=512, help="decode steps between cuts", least=1),
            PolicyOption(name="target_size", kind="count", default=2048, help="tokens behind a cut", least=1),
            PolicyOption(
                name="hidden_states_buffer_size", kind="count", default=256, help="hidden states that are kept for scoring, of each layer"
            ),
            quality("merge_budget", 32),
        ),
    ),
)  # fmt: skip
