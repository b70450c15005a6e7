"""Scorers that keep a share of the prompt, the same number in every layer and head."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import (
    EAGER,
    Choice,
    Chosen,
    Effect,
    Extra,
    InPrefill,
    LayerShape,
    Policy,
    PolicyOption,
    Role,
    Scored,
    Setting,
    State,
)
from hwcalc.policies.counting import check_model_scores, check_scores, each_layer, scorer_budget
from hwcalc.policies.options import BUDGET, DIVIDE, INNER, RATIO, SINKS, quality
from hwcalc.policies.repeated import budgeted, cut_to, repeated
from hwcalc.policies.scratch import (
    AT_LEAST,
    SMALL,
    chunk_scores,
    eager_scores,
    query_statistics,
    statistics_bytes,
    window_scores,
    window_tensors,
)
from hwcalc.policies.worked import share_or_budget

__all__ = ["POLICIES", "SHARE", "SHARE_FORMULA", "act_as_scorer", "more_than_sinks", "scorer"]

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
    for layer in state.layers:
        check_scores(chosen, Scored(keys=layer.stored.low, queries=state.hidden, attention=setting.attention))
    return each_layer(
        state, lambda number, tokens: scorer_budget(chosen, ratio, tokens, setting.layers[number].index, setting.depth)
    )


def more_than_sinks(chosen: Chosen, scored: Scored) -> None:
    """Scoring needs a token behind the sinks."""
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
    """Scoring needs the hidden states of all keys, which only a prefill has."""
    if scored.decoding or scored.keys != scored.queries:
        raise UsageError(f"{chosen.policy.name} scores a whole prompt, and only that.", hint="Use another scorer, such as knorm.")


def _between_sinks(chosen: Chosen, scored: Scored) -> None:
    """Scoring needs a whole prompt, and a token between the first and the last ones."""
    _prompt_only(chosen, scored)
    ends = chosen["sink_size_start"] + chosen["sink_size_end"]
    if scored.keys <= ends:
        raise UsageError(f"{chosen.policy.name} needs more than {ends:,} tokens, not {scored.keys:,}.", hint=_NO_LONGER_THAN)


def _two_keys(chosen: Chosen, scored: Scored) -> None:
    """The last token scores the others, so there must be one."""
    if scored.keys < 2:
        raise UsageError(f"{chosen.policy.name} needs two tokens.", hint=_NO_LONGER_THAN)
    check_model_scores(chosen, scored)


def _last_query(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    return window_scores(1, tokens, setting)


def _one_query(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    return window_tensors(1, keys, shape, setting)


def _statistics(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    return statistics_bytes(chosen, queries, shape, setting)


def _all_queries(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    return eager_scores(tokens, setting)


def _chunks(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    return chunk_scores(chosen["chunk_size"], tokens, setting)


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

POLICIES: Final = (
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
        "expectedattention", "ExpectedAttentionPress", "Expected Attention", "arXiv:2510.00636", *_FUTURE, in_prefill=InPrefill(bytes=_statistics),
        check=more_than_sinks, protects=_sinks, extra=query_statistics, memory=_STATISTICS, aliases=("expected",),
    ),
    scorer(
        "expectedattentionstats", "ExpectedAttentionStatsPress", "Expected Attention, statistics from a file", "arXiv:2510.00636",
        *_FUTURE, quality("sample_seq_len", 1000), quality("num_samples", 100), quality("dataset_name", "kmfoda/booksum"),
        quality("stats_folder", None), check=more_than_sinks, protects=_sinks, memory=_STATISTICS,
    ),
    scorer(
        "tova", "TOVAPress", "TOVA", "arXiv:2401.06104", BUDGET, DIVIDE, check=_two_keys, protects=_last_one, extra=_last_query, decode=repeated, in_prefill=InPrefill(bytes=_one_query),
        keeps="the tokens to which the last query pays most, one choice for all heads of a layer", cuts_each_step=True,
        chooses=Choice.EACH_LAYER,
        formula=f"{SHARE_FORMULA}; with a budget: min(n, budget) in each decode step too",
        memory="scores of one query: heads x n",
    ),
    scorer(
        "observedattention", "ObservedAttentionPress", "observed attention", "arXiv:2306.14048", check=check_model_scores, extra=_all_queries, in_prefill=SMALL,
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
        check=_prompt_only, extra=_chunks, memory="scores of chunks: heads x n x chunk_size",
    ),
    scorer(
        "compactor", "CompactorPress", "Compactor", "arXiv:2507.08143", PolicyOption(name="sink_size_start", kind="count", default=8, help="tokens at that end that stay"), PolicyOption(name="sink_size_end", kind="count", default=4, help="tokens at that end that stay"),
        _CHUNK, quality("sketch_dimension", 48), quality("blending", None), check=_between_sinks,
        extra=_chunks, memory="scores of chunks: heads x n x chunk_size",
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
