"""Policies that score the prompt once and keep a share of it, the same number of tokens in every layer and head.

They choose by scores, by the last queries (SnapKV, PyramidKV, Finch), by chunks, or keep sinks and a window (StreamingLLM).
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import (
    BUDGET,
    DIVIDE,
    EAGER,
    INNER,
    PAPER,
    RATIO,
    SINKS,
    WINDOW,
    Choice,
    Chosen,
    Count,
    Effect,
    Extra,
    InPrefill,
    Policy,
    PolicyOption,
    Role,
    Scored,
    Setting,
    State,
    quality,
)
from hwcalc.policies.counting import (
    Worked,
    all_stay,
    budgeted,
    by_chunks,
    check_attention,
    check_layers,
    check_model_scores,
    check_scores,
    check_unmasked,
    cut_to,
    each_chunk,
    each_layer,
    kept,
    kept_of_chunks,
    repeated,
    scorer_budget,
    share_or_budget,
    without_delimiter,
)
from hwcalc.policies.scratch import (
    AT_LEAST,
    BY_WINDOW,
    SMALL,
    chunk_scores,
    eager_scores,
    query_statistics,
    statistics_bytes,
    window_scores,
)

SHARE: Final = "the tokens with the highest scores: a share of the prompt, the same number in every layer and head"
SHARE_FORMULA: Final = "max(1, int(n x (1 - compression_ratio)))"
_NO_LONGER_THAN: Final = "The prompt must be longer, or the option smaller."


def act_as_scorer(chosen: Chosen, state: State, setting: Setting) -> State:
    """Each layer cut to what the scorer keeps; by the paper's rules to its budget."""
    budget = budgeted(chosen, setting, state.hidden) if chosen.policy.decode is not None else None
    if budget is not None:
        return cut_to(chosen, state, setting, budget)
    ratio = chosen.ratio
    if ratio == 0:
        return state
    check_layers(chosen, state, setting.attention)
    return each_layer(
        state, lambda number, tokens: scorer_budget(chosen, ratio, tokens, setting.layers[number].index, setting.depth)
    )


def more_than_sinks(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`UsageError` unless a token is behind the sinks."""
    sinks = chosen["n_sink"]
    if scored.keys <= sinks:
        raise UsageError(
            f"{chosen.policy.name} needs more than n_sink={sinks:,} tokens, not {scored.keys:,}.", hint=_NO_LONGER_THAN
        )


def _sinks(chosen: Chosen, ratio: float, tokens: int) -> int:
    sinks: int = chosen["n_sink"]
    return sinks


def _last_one(chosen: Chosen, ratio: float, tokens: int) -> int:
    return 1


def _prompt_only(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`UsageError` unless a whole prompt is scored: only a prefill has the hidden states of all keys."""
    if scored.decoding or scored.keys != scored.queries:
        raise UsageError(f"{chosen.policy.name} scores a whole prompt, and only that.", hint="Use another scorer, such as knorm.")


def _between_sinks(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`UsageError` unless a whole prompt is scored, with a token between the first and the last ones."""
    _prompt_only(chosen, scored)
    ends = chosen["sink_size_start"] + chosen["sink_size_end"]
    if scored.keys <= ends:
        raise UsageError(f"{chosen.policy.name} needs more than {ends:,} tokens, not {scored.keys:,}.", hint=_NO_LONGER_THAN)


def _two_keys(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`UsageError` unless there are two tokens, of which the last scores the other."""
    if scored.keys < 2:
        raise UsageError(f"{chosen.policy.name} needs two tokens.", hint=_NO_LONGER_THAN)
    check_model_scores(chosen, scored)


def _scores(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Those of the last ``window_size`` queries, or of the last one."""
    return window_scores(chosen.get("window_size") or 1, tokens, setting)


def scorer(name: str, press: str, title: str, source: str, *options: PolicyOption, **facts: Any) -> Policy:
    """A scorer: what is not said is that of most."""
    common: dict[str, Any] = {
        "role": Role.SCORER,
        "effect": Effect.FREES,
        "keeps": SHARE,
        "formula": SHARE_FORMULA,
        "kernel": "any",
        "prefill": act_as_scorer,
        "worked": share_or_budget,
    }
    return Policy(name=name, press=press, title=title, source=source, options=(RATIO, *options), **(common | facts))


_CHUNK: Final = PolicyOption(
    name="chunk_size", kind="count", default=256, help="tokens of a chunk, which are scored by each other", least=1
)
_FUTURE: Final = (
    PolicyOption(name="n_future_positions", kind="count", default=512, help="positions to come, whose rotations are averaged"),
    SINKS,
    PolicyOption(name="use_covariance", kind="flag", default=True, help="whether the covariance of the queries is used"),
    quality("use_vnorm", default=True),
    quality("epsilon", 0.0),
)
_STATISTICS: Final = (
    "queries of the prompt and a centred copy: 2 x heads x n x head_dim; their covariance: heads x head_dim x head_dim"
)

SCORERS: Final = (
    scorer(
        "knorm", "KnormPress", "L2 norm of keys", "arXiv:2406.11430", aliases=("l2norm", "l2"), memory="a norm for each key", in_prefill=SMALL
    ),
    scorer("keydiff", "KeyDiffPress", "KeyDiff", "arXiv:2504.15364", memory="a normed copy of the keys of a layer", in_prefill=SMALL),
    scorer("random", "RandomPress", "random choice", "a baseline", quality("seed", None), in_prefill=SMALL),
    scorer(
        "lagkv", "LagKVPress", "LagKV", "arXiv:2504.04704", SINKS, quality("lag_size", 128), quality("cross_scoring", default=False),
        memory="copies of the keys and values of a layer", in_prefill=AT_LEAST,
    ),
    scorer(
        "expectedattention", "ExpectedAttentionPress", "Expected Attention", "arXiv:2510.00636", *_FUTURE, in_prefill=InPrefill(bytes=statistics_bytes),
        check=more_than_sinks, protects=_sinks, extra=query_statistics, memory=_STATISTICS, aliases=("expected",),
    ),
    scorer(
        "expectedattentionstats", "ExpectedAttentionStatsPress", "Expected Attention, statistics from a file", "arXiv:2510.00636",
        *_FUTURE, quality("sample_seq_len", 1000), quality("num_samples", 100), quality("dataset_name", "kmfoda/booksum"),
        quality("stats_folder", None), check=more_than_sinks, protects=_sinks, memory=_STATISTICS,
    ),
    scorer(
        "tova", "TOVAPress", "TOVA", "arXiv:2401.06104", BUDGET, DIVIDE, check=_two_keys, protects=_last_one, extra=_scores, decode=repeated, in_prefill=BY_WINDOW,
        keeps="the tokens to which the last query pays most, one choice for all heads of a layer", cuts_each_step=True,
        chooses=Choice.EACH_LAYER,
        formula=f"{SHARE_FORMULA}; with a budget: min(n, budget) in each decode step too",
        memory="scores of one query: heads x n",
    ),
    scorer(
        "observedattention", "ObservedAttentionPress", "observed attention", "arXiv:2306.14048", check=check_model_scores, extra=eager_scores, in_prefill=SMALL,
        keeps="the tokens to which all queries of the prompt paid most, as H2O counts", needs=EAGER, kernel="eager alone",
        memory="the scores of eager attention: batch x heads x n x n",
    ),
    scorer("qfilter", "QFilterPress", "Q-Filters", "arXiv:2503.02812", memory="a trained vector for each head"),
    scorer(
        "kvzap", "KVzapPress", "KVzap", "arXiv:2601.07891", quality("model_type", "mlp"), memory="a small trained model beside each layer"
    ),
    scorer(
        "cap", "CapPress", "CAP", "arXiv:2604.25975", quality("tau", 5.0), quality("n_future_positions", 512), SINKS,
        quality("epsilon", 1e-6), check=more_than_sinks, protects=_sinks, memory="a matrix of head_dim x head_dim for each head",
    ),
    scorer(
        "cur", "CURPress", "CUR", "arXiv:2509.15038", quality("num_sinks", 4), quality("leverage_type", "kv_product"),
        quality("use_random_leverage", default=False), quality("use_local_approximation", default=True), quality("local_window_size", 16),
    ),
    scorer(
        "leveragescore", "LeverageScorePress", "leverage scores", "arXiv:2507.08143", quality("sketch_dimension", 48), check=_prompt_only,
    ),
    scorer(
        "noncausalattn", "NonCausalAttnPress", "non-causal attention in chunks", "arXiv:2507.08143", _CHUNK,
        check=_prompt_only, extra=chunk_scores, memory="scores of chunks: heads x n x chunk_size",
    ),
    scorer(
        "compactor", "CompactorPress", "Compactor", "arXiv:2507.08143", PolicyOption(name="sink_size_start", kind="count", default=8, help="tokens at that end that stay"), PolicyOption(name="sink_size_end", kind="count", default=4, help="tokens at that end that stay"),
        _CHUNK, quality("sketch_dimension", 48), quality("blending", None), check=_between_sinks,
        extra=chunk_scores, memory="scores of chunks: heads x n x chunk_size",
    ),
    Policy(
        name="criticalkv", press="CriticalKVPress", title="CriticalKV", role=Role.SCORER, effect=Effect.FREES,
        keeps="the tokens of highest score times the norm of their projected values",
        formula=f"{SHARE_FORMULA}, with the ratio of the scorer inside", kernel="as the scorer inside", source="arXiv:2502.03805",
        options=(INNER, quality("epsilon", 1e-4), quality("first_stage_ratio", 0.5)), prefill=act_as_scorer,
        chooses=Choice.EACH_HEAD, in_prefill=SMALL,
        worked=share_or_budget, memory="projected values of a layer: heads x n x hidden_size, one head at a time",
    ),
)  # fmt: skip


_MEMORY: Final = "scores of the window: batch x heads x window_size x n, with a mask and an fp32 softmax"


def _check_window(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`UsageError` unless there are tokens before the window, and hidden states of all of it."""
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


def _pyramid_ends(chosen: Chosen, ratio: float, tokens: int) -> tuple[float, float] | None:
    """The budgets of the first and the last layer before rounding; ``None`` where all layers get the same."""
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
    """The tokens that PyramidKV keeps in one layer: many in the first, few in the last, in equal steps, rounded.

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

    return each_layer(entered, lambda _, tokens: kept(tokens, ratio) if chunk is None else kept_of_chunks(tokens, chunk, ratio))


WINDOWED: Final = (
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


_KERNEL: Final = "not eager: it takes no scores of the model"


def whole_chunks(tokens: int, ratio: float, chunk: int) -> Count:
    """Tokens of the chunks that stay. The last chunk is short, and whether it stays depends on the text.

    >>> whole_chunks(100, 0.5, 20), whole_chunks(1000, 0.7, 16)
    (Count(low=40, high=40), Count(low=280, high=288))
    """
    chunks = ceil(tokens / chunk)
    stay = max(1, int(chunks * (1 - ratio)))
    short = (stay - 1) * chunk + (tokens % chunk or chunk)
    return Count(low=short, high=short if stay == chunks else stay * chunk)


def _check(chosen: Chosen, setting: Setting, keys: int, queries: int) -> None:
    check_scores(chosen["press"], Scored(keys=keys, queries=queries, attention=setting.attention))


def _chunkkv(chosen: Chosen, state: State, setting: Setting) -> State:
    """Whole chunks stay, in every head the same; a prompt below one chunk is left to the scorer."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    inner: Chosen = chosen["press"]
    if all(layer.stored.high < chunk for layer in state.layers):
        return inner.policy.prefill(inner, state, setting)
    check_layers(inner, state, setting.attention)
    check_unmasked(state)

    def stays(number: int, tokens: int) -> Count:
        if tokens >= chunk:
            return whole_chunks(tokens, ratio, chunk)
        return Count.of(scorer_budget(inner, ratio, tokens, setting.layers[number].index, setting.depth))

    def counted(number: int, stored: Count) -> Count:
        ends = (stays(number, stored.low), stays(number, stored.high))
        return Count(low=min(end.low for end in ends), high=max(end.high for end in ends))

    return state.with_stored(tuple(counted(number, layer.stored) for number, layer in enumerate(state.layers)))


def _within_chunks(chosen: Chosen, state: State, setting: Setting) -> State:
    """A share of each chunk stays, of the short last one too."""
    ratio = chosen.ratio
    chunk: int = chosen["chunk_length"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    for layer in state.layers:
        whole, rest = divmod(layer.stored.low, chunk)
        # Hidden states are cut where keys are: behind another policy there are more of them than keys in the last chunk.
        for size, before in ((chunk, 0),) * (whole > 0) + ((rest, whole * chunk),) * (rest > 0):
            _check(chosen, setting, size, min(chunk, state.hidden - before))

    return each_layer(state, lambda _, tokens: kept_of_chunks(tokens, chunk, ratio))


def _in_blocks(chosen: Chosen, state: State, setting: Setting) -> State:
    """The share of the whole prompt stays; it is found by going through the prompt in blocks."""
    ratio, block = chosen.ratio, chosen["block_size"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    for layer in state.layers:
        tokens, stays = layer.stored.low, kept(layer.stored.low, ratio)
        if tokens != state.hidden:
            raise UsageError("block takes a whole prompt: nothing may be dropped before it.", hint="Put it first.")
        for size in {min(block, tokens - stays), (tokens - stays) % block} - {0}:
            _check(chosen, setting, stays + size, stays + size)
    return each_layer(state, lambda _, tokens: kept(tokens, ratio))


def _by_entropy(chosen: Chosen, state: State, setting: Setting) -> State:
    """Chunks whole or in part: exactly the share of the tokens stays."""
    if chosen["low_entropy_chunk_length"] >= chosen["chunk_length"]:
        raise UsageError("entropygatedchunkkv: low_entropy_chunk_length must be below chunk_length.", hint="Make it smaller.")
    ratio = chosen.ratio
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    check_layers(chosen["press"], state, setting.attention)
    return each_layer(state, lambda _, tokens: kept(tokens, ratio))


def _chunk(default: int, name: str = "chunk_length") -> PolicyOption:
    return PolicyOption(name=name, kind="count", default=default, help="tokens of a chunk", least=1)


def _wrapper(name: str, press: str, title: str, source: str, **facts: Any) -> Policy:
    common: dict[str, Any] = {"role": Role.PREFILL, "effect": Effect.FREES, "forbids": EAGER, "kernel": _KERNEL}
    return Policy(name=name, press=press, title=title, source=source, memory="as the scorer inside", **(common | facts))


CHUNKED: Final = (
    _wrapper(
        "chunkkv", "ChunkKVPress", "ChunkKV", "arXiv:2502.00299", options=(INNER, _chunk(20)), prefill=_chunkkv, worked=by_chunks, in_prefill=SMALL,
        chooses=Choice.EACH_LAYER, chunk_option="chunk_length",
        keeps="whole chunks of chunk_length tokens, the same in every head of a layer",
        formula="k chunks of c tokens, k = max(1, int(ceil(n / c) x (1 - r))); c - n mod c fewer in layers that choose the short last one",
    ),
    _wrapper(
        "entropygatedchunkkv", "EntropyGatedChunkKVPress", "ChunkKV, gated by entropy", "arXiv:2502.00299", prefill=_by_entropy, worked=share_or_budget, in_prefill=AT_LEAST,
        chooses=Choice.EACH_LAYER,
        options=(
            INNER,
            _chunk(10),
            PolicyOption(name="low_entropy_chunk_length", kind="count", default=4, help="tokens of a chunk with one high score", least=1),
        ),
        keeps="chunks whole or their highest tokens", formula=SHARE_FORMULA,
    ),
    _wrapper(
        "chunk", "ChunkPress", "scores within chunks", "arXiv:2408.00167", options=(INNER, _chunk(1024)), prefill=_within_chunks, worked=each_chunk, in_prefill=SMALL,
        keeps="a share of each chunk", formula="the sum of max(1, int(chunk x (1 - compression_ratio))) over the chunks",
    ),
    _wrapper(
        "block", "BlockPress", "block by block", "arXiv:2504.15364", options=(INNER, _chunk(128, "block_size")), prefill=_in_blocks, worked=share_or_budget, in_prefill=AT_LEAST,
        keeps="the highest scores, found block by block", formula=SHARE_FORMULA,
    ),
)  # fmt: skip


def sink_ranges(tokens: int, stays: int, sinks: int) -> tuple[tuple[int, int], ...]:
    """The first ``sinks`` tokens and the last of ``tokens``, ``stays`` in all: from start to end.

    >>> sink_ranges(127, 12, 4), sink_ranges(100, 2, 4), sink_ranges(100, 50, 0)
    (((0, 4), (119, 127)), ((0, 2),), ((50, 100),))
    """
    first = min(sinks, stays)
    parts = ((0, first), (tokens - (stays - first), tokens))
    if parts[0][1] >= parts[1][0]:
        return ((0, tokens),)
    return tuple(part for part in parts if part[0] < part[1])


def _ones(chosen: Chosen, ratio: float, tokens: int) -> int:
    """All that score 1; the others score 0. Source: kvpress 0.5.5, StreamingLLMPress.score."""
    sinks: int = chosen["n_sink"]
    return max(int(tokens * (1 - ratio)), sinks)


def _prefill(chosen: Chosen, state: State, setting: Setting) -> State:
    """As every scorer, and the rule alone says which positions stay, if nothing was dropped before."""
    whole = all(layer.stored.low == state.hidden for layer in state.layers)
    after = act_as_scorer(chosen, state, setting)
    counts = {layer.stored for layer in after.layers}
    if not whole or len(counts) != 1:
        return after
    return replace(after, ranges=sink_ranges(state.hidden, counts.pop().low, chosen["n_sink"]))


STREAMING: Final = (
    scorer(
        "streamingllm", "StreamingLLMPress", "StreamingLLM: sinks and a window", "arXiv:2309.17453", SINKS, BUDGET, DIVIDE,
        prefill=_prefill, check=more_than_sinks, protects=_ones, decode=repeated, aliases=("streaming", "sinkwindow"), cuts_each_step=True,
        by_place=True, in_prefill=SMALL,
        keeps="the first n_sink tokens and the last ones", memory="nothing: the positions say all",
        formula=f"{SHARE_FORMULA}; with a budget: min(n, budget) in each decode step too",
    ),
)  # fmt: skip
