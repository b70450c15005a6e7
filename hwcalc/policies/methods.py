"""Policies with code of their own, outside kvpress: H2O, Scissorhands, R-KV, TriAttention and Quest."""

from __future__ import annotations

from math import ceil
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.model import Definition
from hwcalc.policies.base import (
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
    Setting,
    Start,
    State,
)
from hwcalc.policies.counting import each_layer
from hwcalc.policies.options import DIVIDE, quality
from hwcalc.policies.repeated import check_room, cut_to
from hwcalc.policies.scratch import eager_scores, page_keys, similarity, window_scores
from hwcalc.policies.walks import CutAbove, CutAtLengths, CutEachStep, Walk
from hwcalc.policies.worked import Worked, all_stay, to_budget

__all__ = ["POLICIES", "pages_read", "triggers"]

_RKV_EVERY: Final = 128
_BUDGET: Final = PolicyOption(name="budget", kind="count", default=None, help="tokens that stay", required=True, least=1)


def _to_budget(chosen: Chosen, state: State, setting: Setting) -> State:
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


def _rkv_steps(chosen: Chosen, start: Start) -> Walk:
    return CutAtLengths(start=start, budget=chosen["budget"], every=chosen["divide_length"])


def _rkv_prefill(chosen: Chosen, state: State, setting: Setting) -> State:
    check_room(chosen, chosen["budget"])
    return cut_to(chosen, state, setting, chosen["budget"])


def _rkv_extra(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Similarities of all that is there when it is cut: the prompt, or a full buffer."""
    return (*similarity(tokens, setting), *window_scores(chosen["window_size"], tokens, setting))


def triggers(chosen: Chosen, length: int, prompt: int = 0) -> bool:
    """Whether TriAttention cuts a cache of this length: at the budget and an interval, from there on.

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


def _all_queries(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    return eager_scores(tokens, setting)


POLICIES: Final = (
    Policy(
        name="h2o", press="", title="H2O: heavy hitters and recent tokens", role=Role.METHOD, effect=Effect.FREES, needs=EAGER,
        keeps="half of the budget of the tokens that got most attention so far, half of the last ones",
        formula="min(n, budget); one token out for each that comes in", kernel="eager alone: the scores of every query, in every step",
        source="arXiv:2306.14048", prefill=_to_budget, worked=to_budget, decode=_one_out, extra=_all_queries, options=(_BUDGET, DIVIDE),
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
        prefill=_rkv_prefill, worked=to_budget, decode=_rkv_steps, extra=_rkv_extra,
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
