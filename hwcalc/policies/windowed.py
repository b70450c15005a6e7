"""Policies whose last queries score the prompt: SnapKV, PyramidKV and Finch."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import PAPER, Chosen, Effect, Extra, Policy, PolicyOption, Role, Scored, Setting, State
from hwcalc.policies.counting import check_attention, check_model_scores, each_layer, kept
from hwcalc.policies.options import BUDGET, DIVIDE, RATIO, WINDOW, quality
from hwcalc.policies.repeated import repeated
from hwcalc.policies.scorers import SHARE_FORMULA, act_as_scorer, scorer
from hwcalc.policies.scratch import BY_WINDOW, window_scores
from hwcalc.policies.worked import Worked, all_stay, without_delimiter

__all__ = ["POLICIES", "pyramid_budget"]

_MEMORY: Final = "scores of the window: batch x heads x window_size x n, with a mask and an fp32 softmax"


def _check_window(chosen: Chosen, scored: Scored) -> None:
    """There must be tokens before the window, and hidden states of all of it."""
    window = chosen["window_size"]
    if min(scored.keys, scored.queries) <= window:
        what = "hidden states at hand" if scored.decoding else "tokens"
        raise UsageError(
            f"{chosen.policy.name} needs more than window_size={window:,} {what}, not {min(scored.keys, scored.queries):,}.",
            hint="Make window_size smaller, or the interval longer." if scored.decoding else "Make window_size smaller.",
        )
    check_model_scores(chosen, scored)


def _window(chosen: Chosen, ratio: float, tokens: int) -> int:
    window: int = chosen["window_size"]
    return window


def _scores(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    return window_scores(chosen["window_size"] or 1, tokens, setting)


def _pyramid_ends(chosen: Chosen, ratio: float, tokens: int) -> tuple[float, float] | None:
    """What the first and the last layer keep before rounding; nothing where all layers get the same."""
    window: int = chosen["window_size"]
    beta: float = chosen["beta"]
    # As kvpress adds the window and takes it off again, so that the doubles are the same.
    most = window + tokens * (1 - ratio)
    low = (most - window) / beta
    high = (most - window) * 2 - low
    if high >= tokens - window:
        high = tokens - window
        low = (most - window) * 2 - high
    return (high, low) if tokens >= high >= low >= window else None


def _authors_ends(chosen: Chosen, tokens: int) -> tuple[int, int, int]:
    """By the authors' code: the share of the tokens, and what of it the first and the last layer keep beside the window."""
    share, window = kept(tokens, chosen.ratio), chosen["window_size"]
    low = int(share // chosen["beta"])
    high = 2 * share - low
    if high >= tokens - window:
        high = tokens - window
        low = 2 * share - high
    return share, high, low


def _authors_pyramid(chosen: Chosen, tokens: int, layer: int, layers: int) -> int:
    """As PyramidKV's authors count: whole numbers, the window beside the share, and no pyramid where half of the text stays or more.

    Source: Zefan-Cai/KVCache-Factory c97f9d7, PyramidKVCluster.update_kv, run.
    """
    share, high, low = _authors_ends(chosen, tokens)
    window: int = chosen["window_size"]
    if tokens < share + window:
        return tokens
    if tokens < 2 * share:
        return share + window
    return high - layer * ((high - low) // max(1, layers - 1)) + window


def _authors_worked(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    share, high, low = _authors_ends(chosen, tokens)
    window: int = chosen["window_size"]
    if tokens < share + window:
        return all_stay(chosen, tokens, layer, setting)
    values: dict[str, float] = {"window_size": window}
    if tokens < 2 * share:
        values |= {"n": tokens, "compression_ratio": chosen.ratio}
        return "max(1, floor(n x (1 - compression_ratio))) + window_size", values
    values |= {"first_layer": high, "last_layer": low, "layer": setting.layers[layer].index, "layers": setting.depth}
    less = " - layer x floor((first_layer - last_layer) / (layers - 1))" if setting.depth > 1 else ""
    return f"first_layer{less} + window_size", values


def _pyramid_worked(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """The line from the first layer to the last one; without it the mean."""
    ends, layers = _pyramid_ends(chosen, chosen.ratio, tokens), setting.depth
    values = {"n": tokens, "window_size": chosen["window_size"]}
    if chosen.ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    if setting.rules == PAPER:
        return _authors_worked(chosen, tokens, layer, setting)
    if ends is None:
        values |= {"compression_ratio": chosen.ratio}
        return "max(1, round(n x (1 - compression_ratio)))", values
    values |= {"first_layer": ends[0], "last_layer": ends[1], "layer": setting.layers[layer].index, "layers": layers}
    less = " - layer x ((first_layer - last_layer) / (layers - 1))" if layers > 1 else ""
    return f"round(first_layer{less})", values


def pyramid_budget(chosen: Chosen, ratio: float, tokens: int, layer: int, layers: int) -> int:
    """What PyramidKV keeps in one layer: many tokens in the first, few in the last, in equal steps, rounded.

    Of m = n x (1 - ratio) the last layer has m / beta, and the first what makes the mean m, but never more than n without the window. Unless
    the last one has the window at least, all layers have round(m). Source: kvpress 0.5.5, PyramidKVPress.get_layer_budget.
    """
    ends = _pyramid_ends(chosen, ratio, tokens)
    if ends is None:
        return max(1, round(tokens * (1 - ratio)))
    high, low = ends
    step = (high - low) / (layers - 1) if layers > 1 else 0.0
    return round(high - layer * step)


def _pyramid(chosen: Chosen, state: State, setting: Setting) -> State:
    """As every scorer; the authors' own code counts another way."""
    after = act_as_scorer(chosen, state, setting)
    if setting.rules != PAPER or not chosen.ratio:
        return after
    stored = tuple(
        old.stored.each(lambda tokens, index=shape.index: _authors_pyramid(chosen, tokens, index, setting.depth))  # type: ignore[misc]
        for old, shape in zip(state.layers, setting.layers, strict=True)
    )
    return after.with_stored(stored)


def _finch(chosen: Chosen, state: State, setting: Setting) -> State:
    """The token that parts prompt and question never enters; then a share of all, or of each chunk, is kept."""
    if state.hidden < 2:
        raise UsageError("finch needs a token beside the delimiter.", hint="Give a longer prompt.")
    if setting.together > 1:
        raise UsageError("finch takes one sequence at a time: it finds one delimiter.", hint="Use a batch of 1.")
    entered = each_layer(replace(state, hidden=state.hidden - 1), lambda _, tokens: tokens - 1)
    ratio, window = chosen.ratio, chosen["window_size"]
    chunk: int | None = chosen["chunk_length"]
    if ratio == 0:
        return entered
    check_attention(chosen, setting.attention)
    if entered.hidden <= (window or 1):
        raise UsageError(f"finch needs tokens before the question of {window or 1:,}.", hint="Give a longer prompt.")
    if chunk is not None and chunk <= (window or 1) / (1 - ratio):
        raise UsageError(
            f"finch: chunk_length {chunk:,} is not above window_size / (1 - compression_ratio).", hint="Make the chunks longer."
        )

    def stays(_: int, tokens: int) -> int:
        if chunk is None:
            return kept(tokens, ratio)
        whole, rest = divmod(tokens, chunk)
        return whole * kept(chunk, ratio) + (kept(rest, ratio) if rest else 0)

    return each_layer(entered, stays)


POLICIES: Final = (
    scorer(
        "snapkv", "SnapKVPress", "SnapKV", "arXiv:2404.14469", WINDOW, quality("kernel_size", 5), BUDGET, DIVIDE,
        check=_check_window, protects=_window, extra=_scores, decode=repeated, memory=_MEMORY, in_prefill=BY_WINDOW,
        keeps="the tokens to which the last window_size queries pay most, with the window itself",
        formula=f"{SHARE_FORMULA}, window inside; with a budget: min(n, budget), once or every divide_length tokens",
    ),
    scorer(
        "pyramidkv", "PyramidKVPress", "PyramidKV", "arXiv:2406.02069", WINDOW, quality("kernel_size", 5),
        PolicyOption(name="beta", kind="number", default=20, help="how steep: the last layer keeps 1/beta of the mean", least=1),
        check=_check_window, protects=_window, budget=pyramid_budget, prefill=_pyramid, worked=_pyramid_worked, extra=_scores, memory=_MEMORY, by_layer=True, in_prefill=BY_WINDOW,
        keeps="as SnapKV, many tokens in the first layer and few in the last",
        formula="round(hi - layer x (hi - lo) / (layers - 1)), lo = m / beta, hi = 2m - lo, m = n x (1 - compression_ratio)",
    ),
    Policy(
        name="finch", press="FinchPress", title="Finch", role=Role.PREFILL, effect=Effect.FREES, rerotates=True,
        keeps="the tokens to which the question pays most; the delimiter before it never enters the cache",
        formula="max(1, int((n - 1) x (1 - compression_ratio))), or the sum of that over chunks of chunk_length",
        kernel="any", source="arXiv:2408.00167", memory=_MEMORY,
        options=(
            RATIO,
            PolicyOption(name="chunk_length", kind="count", default=None, help="tokens of a chunk; all at once without", least=1),
            quality("normalize_scores", default=True),
            PolicyOption(name="rerotate_keys", kind="flag", default=True, help="positions go on from what is kept"),
            PolicyOption(name="window_size", kind="count", default=None, help="tokens of the question behind the delimiter", least=1),
            quality("_delimiter", None),
        ),
        prefill=_finch, worked=without_delimiter, extra=_scores, has_delimiter=True,
        in_prefill=replace(BY_WINDOW, complete=False),
    ),
)  # fmt: skip
