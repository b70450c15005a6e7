"""The operations that attention and states need at least. A multiplication is one operation, and so is an addition.

Projections are not counted here: in every layer, a matrix takes two operations per number and token (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1). A causal prompt is counted exactly: each token looks at itself and at the tokens before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.kind import LayerKind
from hwcalc.formulas.stairs import Stair, stairs_sum
from hwcalc.formulas.tensor import Chunk, Full, Once, Role, Sink, Span, Strided, Window

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Stack

SOFTMAX: Final = ("full_attention", "sliding_attention", "chunked_attention", "sink_attention", "cross_attention")
"""The kinds that keep a key and a value for each head, by name."""
Term = tuple[Span, int | None, int]
"""The positions that a token looks at, how many of them it selects at most, and the operations per position."""

Work = tuple[int, int]
"""Pairs of a token and a position that it looks at, and the operations for each."""


def decode_flops(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> int:
    """Operations of one layer for the next token of one sequence of ``tokens`` tokens.

    ``selected`` is the number of tokens that a sparse-attention indexer selects for latent attention.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> decode_flops(kind, 1000)
    16384000

    2 x 32 query heads x (128 + 128) x 1,000 positions. Query heads that share a key still compute separately.
    """
    return sum(pairs * each for pairs, each in decode_work(kind, tokens, encoder_tokens, selected=selected))


def prefill_flops(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> int:
    """Operations of one layer for a prompt of ``tokens`` tokens. Each token looks at itself and at the tokens before it.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> prefill_flops(kind, 4)
    163840

    2 x 32 x (128 + 128) x (1 + 2 + 3 + 4).
    """
    return sum(pairs * each for pairs, each in prefill_work(kind, tokens, encoder_tokens, selected=selected))


def decode_work(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> tuple[Work, ...]:
    """The work in :func:`decode_flops`: pairs of a token and a position that it looks at, and the operations of each."""
    found = []
    for span, most, each in decode_terms(kind, selected):
        positions = span.positions(tokens, encoder_tokens)
        found.append((positions if most is None else min(positions, most), each))
    return tuple(found)


def decode_terms(kind: LayerKind, selected: int | None = None) -> tuple[tuple[Span, int | None, int], ...]:
    """The positions that the next token looks at, of these at most how many, and the operations for each."""
    return tuple(_terms(kind, selected, prefill=False))


def prefill_work(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> tuple[Work, ...]:
    """The work in :func:`prefill_flops`."""
    terms = prefill_terms(kind, selected)
    return tuple((positions_sum(span, tokens, encoder_tokens, most), each) for span, most, each in terms)


def prefill_terms(kind: LayerKind, selected: int | None = None) -> tuple[Term, ...]:
    """The positions that each token of a prompt looks at, of these at most how many, and the operations for each."""
    return tuple(_terms(kind, selected, prefill=True))


def steps_work(
    kind: LayerKind, prompt: int, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None
) -> tuple[Work, ...]:
    """The work of one layer for each token behind a prompt up to ``tokens``, one by one, with a cache.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> steps_work(FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128), 1, 4)
    ((9, 16384),)

    2 + 3 + 4 positions, 2 x 32 x (128 + 128) operations for each.
    """
    return tuple(
        (positions_sum(span, tokens, encoder_tokens, most) - positions_sum(span, prompt, encoder_tokens, most), each)
        for span, most, each in _terms(kind, selected, prefill=False)
    )


def passes_work(
    kind: LayerKind, prompt: int, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None
) -> tuple[Work, ...]:
    """The work of one layer without a cache: the whole text so far is a prompt anew in each pass, from ``prompt`` to ``tokens`` tokens.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> passes_work(FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128), 1, 4)
    ((20, 16384),)

    1 + (1 + 2) + (1 + 2 + 3) + (1 + 2 + 3 + 4) positions, where a cache needs 1 + 2 + 3 + 4.
    """
    return tuple(
        (prefixes_sum(span, tokens, encoder_tokens, most) - prefixes_sum(span, prompt - 1, encoder_tokens, most), each)
        for span, most, each in _terms(kind, selected, prefill=True)
    )


def pairs_cached(tokens: int) -> int:
    """Pairs of a token and one that it looks at, itself included, in full attention with a cache: n (n + 1) / 2.

    >>> pairs_cached(4)
    10
    """
    return tokens * (tokens + 1) // 2


def pairs_recomputed(prompt: int, tokens: int) -> int:
    """The same pairs if each pass, from ``prompt`` to ``tokens`` tokens, begins anew: n (n + 1) (n + 2) / 6 from the first token on.

    >>> pairs_recomputed(1, 4), pairs_recomputed(3, 4)
    (20, 16)

    1 + 3 + 6 + 10; 6 + 10.
    """
    before = prompt - 1
    return (tokens * (tokens + 1) * (tokens + 2) - before * (before + 1) * (before + 2)) // 6


def scores_recomputed(prompt: int, tokens: int) -> int:
    """Scores that the passes compute if each makes a whole square and masks half of it: n (n + 1) (2n + 1) / 6 from the first token on.

    >>> scores_recomputed(1, 4), scores_recomputed(3, 4)
    (30, 25)

    1 + 4 + 9 + 16; 9 + 16.
    """
    return _squares(tokens) - _squares(prompt - 1)


def _squares(last: int) -> int:
    """1 x 1 + 2 x 2 + ... + last x last."""
    return last * (last + 1) * (2 * last + 1) // 6


def selected_tokens(stack: Stack) -> int | None:
    """The tokens that an indexer selects for latent attention. Layers without an indexer reuse an earlier selection."""
    limits = {group.kind.dims().get("index_topk") for group in stack.groups if group.kind.name == "sparse_indexer"}
    return limits.pop() if len(limits) == 1 else None


def prefixes_sum(span: Span, tokens: int, encoder_tokens: int = 0, most: int | None = None) -> int:
    """The sum of :func:`positions_sum` over all prompts of 1, 2, ... ``tokens`` tokens.

    >>> prefixes_sum(Full(), 4), prefixes_sum(Window(2), 4), prefixes_sum(Chunk(3), 4), prefixes_sum(Strided(2), 5)
    (20, 16, 17, 13)

    1 + 3 + 6 + 10; 1 + 3 + 5 + 7; 1 + 3 + 6 + 7; 0 + 1 + 2 + 4 + 6.
    """
    # The token in place t is in all prompts but the first t - 1.
    return (tokens + 1) * positions_sum(span, tokens, encoder_tokens, most) - _weighted_sum(span, tokens, encoder_tokens, most)


def positions_sum(span: Span, tokens: int, encoder_tokens: int = 0, most: int | None = None) -> int:
    """The sum of the positions that each token of a prompt looks at, at most ``most`` per token.

    >>> positions_sum(Full(), 4), positions_sum(Window(2), 4), positions_sum(Chunk(3), 4), positions_sum(Strided(2), 5)
    (10, 7, 7, 6)

    1 + 2 + 3 + 4; 1 + 2 + 2 + 2; 1 + 2 + 3 and 1 in the next chunk; 0 + 1 + 1 + 2 + 2.
    """
    if isinstance(span, Chunk):
        whole, rest = divmod(tokens, span.numbers[0])
        chunk = Stair(most=most)
        return whole * stairs_sum([chunk], span.numbers[0]) + stairs_sum([chunk], rest)
    if isinstance(span, (Full, Strided, Window, Sink)):
        return stairs_sum([_at_most(span, most)], tokens)
    fixed = span.positions(tokens, encoder_tokens)
    return tokens * (fixed if most is None else min(fixed, most))


def _weighted_sum(span: Span, tokens: int, encoder_tokens: int, most: int | None) -> int:
    """The sum of positions that each token looks at, times the place of the token: 1 f(1) + 2 f(2) + ..."""
    if isinstance(span, Chunk):
        size, chunk = span.numbers[0], Stair(most=most)
        whole, rest = divmod(tokens, size)
        # In the chunk that begins behind the token in place b, the token in place b + t looks at f(t).
        before = size * whole * (whole - 1) // 2 * stairs_sum([chunk], size) + whole * size * stairs_sum([chunk], rest)
        return before + whole * _weighted_stair(chunk, size) + _weighted_stair(chunk, rest)
    if isinstance(span, (Full, Strided, Window, Sink)):
        return _weighted_stair(_at_most(span, most), tokens)
    fixed = span.positions(tokens, encoder_tokens)
    return pairs_cached(tokens) * (fixed if most is None else min(fixed, most))


def _at_most(span: Span, most: int | None) -> Stair:
    """The positions of a span, at most ``most`` of them."""
    (stair,) = span.stairs()
    limits = [limit for limit in (stair.most, most) if limit is not None]
    return stair._replace(most=min(limits, default=None))


def _weighted_stair(stair: Stair, tokens: int) -> int:
    """The sum of t x min(most, t // per) for t = 1, 2, ... ``tokens``."""
    per, steps = stair.per, tokens // stair.per
    top = steps if stair.most is None else min(steps, stair.most)
    if not top:
        return 0
    # Step s < top has the tokens s x per to s x per + per - 1; the last one has all from top x per on.
    rising = per * per * _squares(top - 1) + per * (per - 1) // 2 * pairs_cached(top - 1)
    return rising + top * (pairs_cached(tokens) - pairs_cached(per * top - 1))


def _terms(kind: Any, selected: int | None, *, prefill: bool) -> tuple[Term, ...]:
    """The terms of one kind, whose class is known by its name: a model's stack imports no kinds but its own."""
    name = kind.name
    if name in SOFTMAX:
        # At each position, every query head multiplies with a key and weighs a value.
        return ((kind.span, None, 2 * kind.num_attention_heads * (kind.head_dim + kind.v_head_dim)),)
    if name == "meta_tokens":
        return ((kind.span, None, 2 * kind.num_attention_heads * (kind.head_dim + kind.v_head_dim)),)
    if name == "block_sparse_attention":
        # The tokens of the chosen blocks. That the means of keys are scored comes on top.
        return ((Full(), kind.index_topk, 2 * kind.num_attention_heads * (kind.head_dim + kind.v_head_dim)),)
    if name == "latent_attention":
        # Decoding works on the latent itself: queries and outputs absorb the up-projections (DeepSeek-AI 2024, arXiv:2405.04434,
        # section 2.1.2). A prompt may be expanded into keys and values, which costs less per position.
        widths = kind.qk_nope_head_dim + kind.v_head_dim if prefill else 2 * kind.kv_lora_rank
        return ((kind.span, selected, 2 * kind.num_attention_heads * (widths + kind.qk_rope_head_dim)),)
    if name == "expanded_latent_attention":
        widths = kind.qk_nope_head_dim + kind.qk_rope_head_dim + kind.v_head_dim
        return ((Full() if kind.window is None else Window(kind.window), selected, 2 * kind.num_attention_heads * widths),)
    if name == "sparse_indexer":
        # Every index head scores every token.
        return ((Full(), None, 2 * kind.index_n_heads * kind.index_head_dim),)
    if name == "compressed_attention":
        # Attention over the window and the selected entries (one vector is key and value), and the scores of the indexer.
        each = 4 * kind.num_attention_heads * kind.head_dim
        terms: list[Term] = [(Window(kind.window), None, each)]
        if kind.compress_ratio is not None:
            groups = Strided(kind.compress_ratio)
            terms.append((groups, kind.index_topk, each))
            if kind.index_n_heads is not None and kind.index_head_dim is not None:
                terms.append((groups, None, 2 * kind.index_n_heads * kind.index_head_dim))
        return tuple(terms)
    # Every token multiplies a state and adds to it. A state with heads is also multiplied with a query and summed. This is a
    # lower bound: gates, decays and delta rules come on top.
    states = (tensor for tensor in kind.tensors() if tensor.role is Role.STATE and isinstance(tensor.span, Once))
    return tuple((tensor.span, None, (4 if len(tensor.shape) > 1 else 2) * tensor.elements_per_position) for tensor in states)
