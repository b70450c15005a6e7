"""Policies that change what others keep: by layer, one after the other, merged, with new positions; and two that keep all numbers or layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import (
    INNER,
    Choice,
    Chosen,
    Count,
    Effect,
    Extra,
    InPrefill,
    LayerShape,
    Left,
    Policy,
    PolicyOption,
    Role,
    Scored,
    Setting,
    State,
    quality,
)
from hwcalc.policies.counting import (
    all_stay,
    check_scores,
    check_unmasked,
    each_layer,
    kept,
    scorer_budget,
    share_or_budget,
    untouched,
)
from hwcalc.policies.scorers import SHARE_FORMULA, sink_ranges
from hwcalc.policies.scratch import AT_LEAST, SMALL, looking, window_scores, window_tensors


def _lazy_crests(chosen: Chosen) -> tuple[int, ...]:
    """The longest prompt in which no layer is lazy."""
    return () if chosen["lazy_threshold"] == 1 else (chosen["n_initial"] + chosen["n_recent"] + chosen["n_last"],)


def _lazy_scores(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """A threshold that no layer is above needs no scores."""
    return () if chosen["lazy_threshold"] == 1 else window_scores(chosen["n_last"], tokens, setting)


def _share_of_inner(chosen: Chosen, state: State, setting: Setting) -> State:
    """A share of the tokens by the scores of the policy inside, which has no budgets of its own here."""
    ratio, inner = chosen.ratio, chosen["press"]
    if ratio == 0:
        return state
    for layer in state.layers:
        check_scores(inner, Scored(keys=layer.stored.low, queries=state.hidden, attention=setting.attention))
    whole = {layer.stored for layer in state.layers} == {Count.of(state.hidden)}
    after = each_layer(state, lambda _, tokens: kept(tokens, ratio))
    if whole and inner.policy.by_place:
        return replace(after, ranges=sink_ranges(state.hidden, after.layers[0].stored.low, inner["n_sink"]))
    return after


def _per_layer(chosen: Chosen, state: State, setting: Setting) -> State:
    """Each layer with a ratio of its own."""
    inner, ratios, shapes = chosen["press"], chosen["compression_ratios"], setting.layers
    if inner.get("compression_ratio") is None:
        raise UsageError(f"{inner.policy.name} has no ratio of its own to set for a layer.", hint="Use a scorer such as knorm.")
    if len(ratios) < setting.depth:
        raise UsageError(
            f"perlayercompression has {len(ratios):,} ratios for {setting.depth:,} layers.", hint="Give one for each layer."
        )
    for shape, layer in zip(shapes, state.layers, strict=True):
        if ratios[shape.index]:
            check_scores(inner, Scored(keys=layer.stored.low, queries=state.hidden, attention=setting.attention))

    def stays(number: int, tokens: int) -> int:
        index = shapes[number].index
        return scorer_budget(inner, ratios[index], tokens, index, setting.depth)

    return each_layer(state, stays)


def _composed(chosen: Chosen, state: State, setting: Setting) -> State:
    """One after the other, each on what the one before has left."""
    for inner in chosen["presses"]:
        if not inner.policy.composes:
            raise UsageError(f"composed cannot contain {inner.policy.name}.", hint="Use it alone.")
        state = inner.policy.prefill(inner, state, setting)
    return state


def _lazy_layers(chosen: Chosen, state: State, setting: Setting) -> State:
    """Lazy layers keep the first and the last tokens. The attention of the last tokens says which layers are lazy, so the text does."""
    threshold: float = chosen["lazy_threshold"]
    first, recent, last = (int(chosen[name]) for name in ("n_initial", "n_recent", "n_last"))

    def lazy(tokens: int) -> int:
        """A slice from -n_recent + n_last: with n_last the greater of them it starts at the front, and most tokens stay twice."""
        return first + len(range(tokens)[last - recent :])

    def counted(stored: Count) -> Count:
        if threshold == 1 or stored.high <= first + recent + last:
            return stored
        ends = {lazy(stored.low), lazy(stored.high)} if stored.low > first + recent + last else {stored.low, lazy(stored.high)}
        return (
            Count(low=min(ends), high=max(ends))
            if threshold == 0
            else Count(low=min(ends | {stored.low}), high=max(ends | {stored.high}))
        )

    counts = tuple(counted(layer.stored) for layer in state.layers)
    if any(new != layer.stored for new, layer in zip(counts, state.layers, strict=True)):
        check_unmasked(state)
    return state.with_stored(counts)


def _layers_cut(chosen: Chosen, tokens: int, setting: Setting) -> Iterator[tuple[Chosen, tuple[int, ...]]]:
    """A layer with the ratio 0 is not looked at."""
    ratios = chosen["compression_ratios"]
    lengths = tuple(tokens if ratios[shape.index] else 0 for shape in setting.layers)
    for one in chosen.whole:
        yield one, lengths


def _one_after_another(chosen: Chosen, tokens: int, setting: Setting) -> Iterator[tuple[Chosen, tuple[int, ...]]]:
    """Each sees what the one before has left."""
    state = State(hidden=tokens, layers=tuple(Left(stored=Count.of(tokens)) for _ in setting.layers))
    for inner in chosen["presses"]:
        for one in looking(inner):
            yield one, tuple(left.stored.high for left in state.layers)
        state = inner.policy.prefill(inner, state, setting)


def _lazy_window(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    """A threshold that no layer is above needs no scores."""
    return 0 if chosen["lazy_threshold"] == 1 else window_tensors(chosen["n_last"], keys, shape, setting)


WRAPPERS: Final = (
    Policy(
        name="keyrerotation", press="KeyRerotationPress", title="re-rotated keys", role=Role.PREFILL, effect=Effect.FREES,
        keeps="what the scorer inside keeps, with keys turned to positions without gaps", formula=SHARE_FORMULA, kernel="as the scorer inside",
        source="kvpress 0.5.5", options=(INNER,), prefill=_share_of_inner, worked=share_or_budget, rerotates=True, in_prefill=SMALL, memory="a turned copy of the keys of a layer",
    ),
    Policy(
        name="merging", press="MergingPress", title="merged values", role=Role.PREFILL, effect=Effect.FREES,
        keeps="what the scorer inside keeps; values that go are added to their nearest", formula=SHARE_FORMULA,
        kernel="as the scorer inside", source="arXiv:2210.09461", prefill=_share_of_inner, worked=share_or_budget,
        in_prefill=AT_LEAST, options=(INNER, quality("similarity_threshold", 0.0), quality("merge_fraction", 1.0)),
        memory="similarities of dropped and kept keys: kv_heads x dropped x kept x 4",
    ),
    Policy(
        name="perlayercompression", press="PerLayerCompressionPress", title="a ratio for each layer", role=Role.PREFILL,
        effect=Effect.FREES, keeps="what the scorer inside keeps at the layer's own ratio", by_layer=True,
        formula="max(1, int(n x (1 - ratio of the layer)))", kernel="as the scorer inside", source="arXiv:2406.13035", prefill=_per_layer,
        in_prefill=InPrefill(always=True, seen=_layers_cut),
        options=(
            INNER,
            PolicyOption(name="compression_ratios", kind="shares", default=None, help="one for each layer", required=True),
        ),
    ),
    Policy(
        name="composed", press="ComposedPress", title="one after the other", role=Role.PREFILL, effect=Effect.DEPENDS, by_layer=True,
        keeps="what each leaves of what the one before has left", formula="kept of kept of ...", kernel="as its parts",
        source="kvpress 0.5.5", prefill=_composed, in_prefill=InPrefill(seen=_one_after_another),
        options=(PolicyOption(name="presses", kind="prefills", default=None, help="the policies, in their order", required=True),),
    ),
    Policy(
        name="simlayerkv", press="SimLayerKVPress", title="SimLayerKV", role=Role.PREFILL, effect=Effect.FREES, kernel="any",
        keeps="in lazy layers the first and the last tokens, in the others all",
        formula="n_initial + n_recent - n_last in lazy layers, n in the others", source="arXiv:2410.13846", prefill=_lazy_layers,
        by_layer=True, chooses=Choice.EACH_LAYER, extra=_lazy_scores, in_prefill=InPrefill(bytes=_lazy_window, always=True), crests=_lazy_crests, memory="scores of n_last queries: heads x n_last x n",
        options=(
            PolicyOption(name="lazy_threshold", kind="share", default=1.0, help="share of attention above which a layer is lazy"),
            PolicyOption(name="n_last", kind="count", default=1, help="last tokens whose attention decides", least=1),
            PolicyOption(name="n_recent", kind="count", default=1024, help="last tokens of a lazy layer, of which n_last go"),
            PolicyOption(name="n_initial", kind="count", default=4, help="first tokens of a lazy layer"),
        ),
    ),
    Policy(
        name="think", press="ThinKPress", title="ThinK", role=Role.PREFILL, effect=Effect.ZEROES, kernel="any",
        keeps="all tokens; the channels of keys that matter least are set to zero",
        formula="n; int(head_dim x key_channel_compression_ratio) channels of each key are zero and stored", source="arXiv:2407.21018",
        prefill=untouched, worked=all_stay, in_prefill=SMALL, memory="norms of channels: heads x head_dim",
        options=(
            PolicyOption(name="key_channel_compression_ratio", kind="ratio", default=0.0, help="share of the channels of keys"),
            quality("window_size", 32),
        ),
    ),
)  # fmt: skip
