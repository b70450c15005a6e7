"""Policies that change what others keep: masks in place of cuts, by layer, one after the other, merged, with new positions.

Two of them keep all numbers or layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import (
    ALPHA,
    EAGER,
    INNER,
    RATIO,
    Choice,
    Chosen,
    Count,
    Effect,
    Extra,
    InPrefill,
    LayerShape,
    Left,
    Masked,
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
    Growing,
    Walk,
    all_stay,
    check_attention,
    check_layers,
    check_scores,
    check_unmasked,
    each_layer,
    even_split,
    kept,
    mask_layers,
    scorer_budget,
    share_or_budget,
    untouched,
)
from hwcalc.policies.scorers import SHARE_FORMULA, sink_ranges
from hwcalc.policies.scratch import AT_LEAST, SMALL, looking, window_scores, window_tensors

_FAKED: Final = "not eager: a mask is faked with keys whose weight is 0"
_DUO_SINKS, _DUO_RECENT = 128, 256
"""Those of patterns that are worked out on the fly; published ones have their own."""


def adaptive_mask(tokens: int, ratio: float, alpha: float, heads: int, protected: int = 0) -> Masked:
    """Pairs masked in a layer whose heads share one budget: heads x (n - kept) in all, and no head has less than its safe part left.

    Tokens that the scorer protects in each head stay in each, if the budget has room for them; else only they can stay.
    """
    stays = kept(tokens, ratio)
    safe = max(1, int(stays * alpha)) if alpha > 0 else 0
    safe, least = (max(safe, protected), 0) if protected <= stays else (safe, max(0, tokens - max(protected, safe)))
    total, most = heads * (tokens - stays), tokens - safe
    each = Count(low=max(least, total - (heads - 1) * most), high=min(most, total - (heads - 1) * least))
    return Masked(total=Count.of(total), heads=(each,) * heads, split=even_split(total, heads))


def _adaptive(chosen: Chosen, state: State, setting: Setting) -> State:
    """The cache after Ada-KV: everything stored, and in each layer a share masked by a budget common to its heads."""
    ratio = chosen.ratio
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    alpha, inner = chosen["alpha_safeguard"], chosen["press"]
    check_layers(inner, state, setting.attention)

    def masked(number: int, tokens: int) -> Masked:
        protected = 0 if inner.policy.protects is None else min(tokens, inner.policy.protects(inner, ratio, tokens))
        return adaptive_mask(tokens, ratio, alpha, setting.layers[number].kv_heads, protected)

    return mask_layers(state, masked)


def _critical_adaptive(chosen: Chosen, state: State, setting: Setting) -> State:
    """As Ada-KV. kvpress adds up what heads keep over all sequences of a batch, so that two sequences are too many at most ratios."""
    ratio, together = chosen.ratio, setting.together
    after = _adaptive(chosen, state, setting)
    if ratio == 0 or together == 1:
        return after
    for layer in state.layers:
        if together * kept(layer.stored.high, ratio) > layer.stored.high:
            raise UsageError(
                f"criticaladakv adds up what {together:,} sequences keep, which is more than the {layer.stored.high:,} tokens of one.",
                hint="Use a batch of 1.",
            )
    # A head may then lose more than the safeguard says.
    return mask_layers(state, lambda number, tokens: adaptive_mask(tokens, ratio, 0, setting.layers[number].kv_heads))


def _streaming_heads(
    scores: tuple[tuple[float, ...], ...], layers: tuple[LayerShape, ...], number: int
) -> tuple[tuple[bool, ...], ...]:
    """The heads of the lowest scores."""
    if [len(row) for row in scores] != [layer.kv_heads for layer in layers]:
        raise UsageError(
            "duoattention: head_scores must have a row for each layer and a number for each key/value head.", hint=""
        )
    order = sorted((value, layer, head) for layer, row in enumerate(scores) for head, value in enumerate(row))
    chosen = {(layer, head) for _, layer, head in order[:number]}
    return tuple(tuple((layer, head) in chosen for head in range(len(row))) for layer, row in enumerate(scores))


def _duo(chosen: Chosen, state: State, setting: Setting) -> State:
    """A share of all heads see sinks and the last tokens alone; the scores of heads, from a file of the authors, say which."""
    check_attention(chosen, setting.attention)
    sinks, recent, scores = chosen["sink_size"], chosen["recent_size"], chosen["head_scores"]
    layers = setting.layers
    if chosen["_duo"] is not None:
        sinks, recent, seed = (*chosen["_duo"], 0, 0, 0)[:3]
        from numpy.random import RandomState

        # Random scores, as stand-ins for a pattern.
        rows = RandomState(seed % 2**32).rand(len(layers), layers[0].kv_heads if layers else 0)
        scores = tuple(tuple(map(float, row)) for row in rows)
    number = round(sum(layer.kv_heads for layer in layers) * chosen["head_compression_ratio"])

    def hidden(tokens: int) -> int:
        return max(0, tokens - int(sinks) - int(recent))

    if scores is None:
        # Which heads stream is not known: each may, or may not.
        def unknown(layer: int, tokens: int) -> Masked:
            heads = layers[layer].kv_heads
            other = sum(shape.kv_heads for shape in layers) - heads
            low, high = max(0, number - other) * hidden(tokens), min(heads, number) * hidden(tokens)
            each = Count(low=0, high=hidden(tokens) if number else 0)
            return Masked(total=Count(low=low, high=high), heads=(each,) * heads, split=())

        after = mask_layers(state, unknown)
        each = {hidden(layer.stored.high) for layer in state.layers}
        return replace(after, masked_total=Count.of(each.pop() * number)) if len(each) == 1 else after
    streams = _streaming_heads(scores, layers, number)

    def known(layer: int, tokens: int) -> Masked:
        split = tuple(hidden(tokens) * stream for stream in streams[layer])
        return Masked(total=Count.of(sum(split)), heads=tuple(map(Count.of, split)), split=split)

    return mask_layers(state, known)


def _dms(chosen: Chosen, state: State, setting: Setting) -> State:
    """The state after scores below a threshold are masked as they leave the window; how much that is depends on the text."""
    window = chosen["sliding_window_size"]
    # The scores of eager attention are not handed on, whatever the kernel is; and in a decode step there is one new token to score.
    check_layers(chosen["press"], state, "")

    def below(layer: int, tokens: int) -> Masked:
        """The pairs masked in the end: what is masked before stays so, and a pair may be masked twice."""
        heads, before = setting.layers[layer].kv_heads, state.layers[layer].masked
        most = max(0, tokens - window)
        if before is None:
            each = Count(low=0, high=most)
            return Masked(total=Count(low=0, high=heads * most), heads=(each,) * heads, split=())
        total = Count(low=before.total.low, high=before.total.high + heads * most)
        return Masked(total=total, heads=tuple(Count(low=head.low, high=head.high + most) for head in before.heads), split=())

    return mask_layers(state, below)


def _dms_steps(chosen: Chosen, start: Start) -> Walk:
    """The walk of decoding: it only grows, since masked tokens stay stored.

    With ``decoding`` the one new token of a step is scored by itself, so it must be scorable; raises :class:`UsageError` otherwise.
    """
    if chosen["decoding"] and start.steps:
        check_scores(chosen["press"], Scored(keys=1, queries=1, attention=""))
    return Growing(start=start)


def _whole_model(chosen: Chosen, state: State, setting: Setting) -> State:
    """A share of all pairs of the model is masked, in whichever layers they are; or the same number in each layer."""
    ratio = chosen.ratio
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    pairs = [shape.kv_heads * left.stored.high for shape, left in zip(setting.layers, state.layers, strict=True)]
    total = int(sum(pairs) * ratio)

    def masked(layer: int, tokens: int) -> Masked:
        heads = setting.layers[layer].kv_heads
        share = int(pairs[layer] * ratio)
        each = Count(low=0, high=tokens)
        if chosen["layerwise"]:
            each = Count(low=max(0, share - (heads - 1) * tokens), high=min(tokens, share))
            return Masked(total=Count.of(share), heads=(each,) * heads, split=even_split(share, heads))
        low = max(0, total - (sum(pairs) - pairs[layer]))
        return Masked(total=Count(low=low, high=min(pairs[layer], total)), heads=(each,) * heads, split=())

    after = mask_layers(state, masked)
    return after if chosen["layerwise"] else replace(after, masked_total=Count.of(total))


_LAYERWISE: Final = PolicyOption(name="layerwise", kind="flag", default=False, help="the same number in each layer")
_WHOLE: Final = "all tokens; int(layers x kv_heads x n x compression_ratio) pairs are masked, wherever they are"
_ADAPTIVE: Final = "all n are stored; kv_heads x (n - max(1, int(n x (1 - r)))) pairs a layer are masked"

MASKING: Final = (
    Policy(
        name="adakv", press="AdaKVPress", title="Ada-KV", role=Role.PREFILL, effect=Effect.MASKS, forbids=EAGER, kernel=_FAKED,
        keeps="one budget for all heads of a layer: heads with high scores keep more", formula=_ADAPTIVE, source="arXiv:2407.11550",
        options=(INNER, ALPHA), in_prefill=SMALL, decodes=True, composes=False, prefill=_adaptive, worked=all_stay, memory="as the scorer inside, and an index for each masked pair",
    ),
    Policy(
        name="criticaladakv", press="CriticalAdaKVPress", title="CriticalKV with Ada-KV", role=Role.PREFILL, effect=Effect.MASKS,
        forbids=EAGER, kernel=_FAKED, keeps="as Ada-KV, by scores times the norm of projected values", formula=_ADAPTIVE,
        source="arXiv:2502.03805", options=(INNER, ALPHA, quality("epsilon", 1e-4), quality("first_stage_ratio", 0.5)),
        in_prefill=AT_LEAST, prefill=_critical_adaptive, worked=all_stay, memory="as the scorer inside, and an index for each masked pair",
    ),
    Policy(
        name="duoattention", press="DuoAttentionPress", title="DuoAttention", role=Role.PREFILL, effect=Effect.MASKS, forbids=EAGER,
        kernel=_FAKED, aliases=("duo",), source="arXiv:2410.10819", in_prefill=InPrefill(head_bytes=1), prefill=_duo, worked=all_stay, memory="an index for each masked pair",
        keeps="all tokens in retrieval heads; sinks and the last ones in streaming heads",
        formula="all n are stored; round(layers x kv_heads x ratio) heads mask max(0, n - sink_size - recent_size) each",
        options=(
            PolicyOption(name="head_compression_ratio", kind="share", default=0.0, help="share of the heads that stream"),
            PolicyOption(name="sink_size", kind="count", default=_DUO_SINKS, help="first tokens of a streaming head"),
            PolicyOption(name="recent_size", kind="count", default=_DUO_RECENT, help="last tokens of a streaming head", least=1),
            PolicyOption(name="head_scores", kind="rows", default=None, help="a row for each layer: which heads stream, lowest first"),
            quality("on_the_fly_scoring", default=False),
            PolicyOption(name="_duo", kind="counts", default=None, help="sinks, last tokens, seed of made-up scores", hidden=True),
        ),
    ),
    Policy(
        name="dms", press="DMSPress", title="DMS, by a threshold", role=Role.PREFILL, effect=Effect.MASKS,
        kernel="sdpa; under eager the mask has no effect", source="arXiv:2506.05345", prefill=_dms, in_prefill=InPrefill(complete=False, always=True, key_scores=1), decode=_dms_steps, worked=all_stay,
        keeps="all tokens; those that score below the threshold are masked once they leave the window",
        formula="all n are stored; at most kv_heads x max(0, n - sliding_window_size) pairs a layer are masked",
        memory="scores of the window: kv_heads x sliding_window_size",
        options=(
            INNER,
            PolicyOption(name="threshold", kind="number", default=None, help="the lowest score that stays", required=True),
            PolicyOption(name="sliding_window_size", kind="count", default=128, help="last tokens that are spared"),
            PolicyOption(name="decoding", kind="flag", default=False, help="mask while decoding too"),
        ),
    ),
    *(
        Policy(
            name=name, press=press, title=title, role=Role.PREFILL, effect=Effect.MASKS, forbids=EAGER, kernel=_FAKED, keeps=_WHOLE,
            formula="all n are stored; int(layers x kv_heads x n x r) pairs are masked, or int(kv_heads x n x r) a layer",
            source=source, options=(RATIO, _LAYERWISE, *more), prefill=_whole_model, worked=all_stay, memory=memory, composes=composes,
        )
        for name, press, title, source, memory, composes, more in (
            (
                "kvzip", "KVzipPress", "KVzip", "arXiv:2505.23416", "a second pass over the prompt: scores of chunk_size x chunk_size", False,
                (quality("n_sink", 4), quality("kvzip_plus_normalization", default=False), quality("chunk_size", 2048)),
            ),
            (
                "kvgrad", "KVgradPress", "KVgrad", "openreview.net cg1wTCJjjk", "a backward pass over chunks of the prompt", False,
                (quality("n_sink", 4), quality("chunk_size", 512)),
            ),
            (
                "fastkvzip", "FastKVzipPress", "Fast KVzip", "arXiv:2601.17668", "a trained gate for each layer", True,
                (quality("n_sink", 4), quality("window_size", 4096), quality("window_ratio", 0.02)),
            ),
        )
    ),
)  # fmt: skip


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
    check_layers(inner, state, setting.attention)
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
