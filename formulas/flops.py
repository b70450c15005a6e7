"""The operations that attention and states need at least. A multiplication is one operation, and so is an addition.

Projections are not counted here: in every layer, a matrix takes two operations per number and token (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1). A causal prompt is counted exactly: each token looks at itself and at the tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.kind import LayerKind
from hwcalc.formulas.tensor import Chunk, Full, Once, Role, Sink, Span, Strided, Window

if TYPE_CHECKING:
    from hwcalc.formulas.attention import AttentionKind
    from hwcalc.formulas.hybrid import Stack
    from hwcalc.formulas.latent import CompressedAttention, ExpandedLatentAttention, LatentAttention, SparseIndexer


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
    return _operations(decode_work(kind, tokens, encoder_tokens, selected=selected))


def prefill_flops(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> int:
    """Operations of one layer for a prompt of ``tokens`` tokens. Each token looks at itself and at the tokens before it.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> prefill_flops(kind, 4)
    163840

    2 x 32 x (128 + 128) x (1 + 2 + 3 + 4).
    """
    return _operations(prefill_work(kind, tokens, encoder_tokens, selected=selected))


def decode_work(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> tuple[Work, ...]:
    """What :func:`decode_flops` multiplies: pairs of a token and a position that it looks at, and the operations for each."""
    found = []
    for span, most, each in _terms(kind, selected, prefill=False):
        positions = span.positions(tokens, encoder_tokens)
        found.append((positions if most is None else min(positions, most), each))
    return tuple(found)


def prefill_work(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> tuple[Work, ...]:
    """What :func:`prefill_flops` multiplies."""
    terms = _terms(kind, selected, prefill=True)
    return tuple((positions_sum(span, tokens, encoder_tokens, most), each) for span, most, each in terms)


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


def _operations(work: tuple[Work, ...]) -> int:
    return sum(pairs * each for pairs, each in work)


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
    return _tetrahedron(tokens) - _tetrahedron(prompt - 1)


def scores_recomputed(prompt: int, tokens: int) -> int:
    """Scores that the passes compute if each makes a whole square and masks half of it: n (n + 1) (2n + 1) / 6 from the first token on.

    >>> scores_recomputed(1, 4), scores_recomputed(3, 4)
    (30, 25)

    1 + 4 + 9 + 16; 9 + 16.
    """
    return _pyramid(tokens) - _pyramid(prompt - 1)


def selected_tokens(stack: Stack) -> int | None:
    """How many tokens an indexer selects for latent attention. Layers without an indexer reuse an earlier selection."""
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
        size = span.numbers[0]
        whole, rest = divmod(tokens, size)
        return whole * _triangle(size, most) + _triangle(rest, most)
    if isinstance(span, Strided):
        return _stairs(tokens, span.numbers[0], most)
    if isinstance(span, (Full, Window, Sink)):
        longest = sum(span.numbers) if span.numbers else None
        limits = [limit for limit in (longest, most) if limit is not None]
        return _triangle(tokens, min(limits, default=None))
    fixed = span.positions(tokens, encoder_tokens)
    return tokens * (fixed if most is None else min(fixed, most))


def _weighted_sum(span: Span, tokens: int, encoder_tokens: int, most: int | None) -> int:
    """The sum of positions that each token looks at, times the place of the token: 1 f(1) + 2 f(2) + ..."""
    if isinstance(span, Chunk):
        size = span.numbers[0]
        whole, rest = divmod(tokens, size)
        before = size * whole * (whole - 1) // 2
        full = before * _triangle(size, most) + whole * _pyramid(size, most)
        return full + whole * size * _triangle(rest, most) + _pyramid(rest, most)
    if isinstance(span, Strided):
        return _weighted_stairs(tokens, span.numbers[0], most)
    if isinstance(span, (Full, Window, Sink)):
        longest = sum(span.numbers) if span.numbers else None
        return _pyramid(tokens, min((limit for limit in (longest, most) if limit is not None), default=None))
    fixed = span.positions(tokens, encoder_tokens)
    return _triangle(tokens, None) * (fixed if most is None else min(fixed, most))


def _pyramid(tokens: int, most: int | None = None) -> int:
    """1 x 1 + 2 x 2 + 3 x 3 + ..., where no second factor is larger than ``most``."""
    rising = tokens if most is None else min(tokens, most)
    level = (tokens * (tokens + 1) - rising * (rising + 1)) // 2
    return rising * (rising + 1) * (2 * rising + 1) // 6 + level * rising


def _tetrahedron(tokens: int) -> int:
    """1 + (1 + 2) + (1 + 2 + 3) + ..."""
    return tokens * (tokens + 1) * (tokens + 2) // 6


def _weighted_stairs(tokens: int, stride: int, most: int | None) -> int:
    """1 x (1 // stride) + 2 x (2 // stride) + ..., where no second factor is larger than ``most``."""
    whole = tokens // stride if most is None else min(tokens // stride, most)
    below = max(0, whole - 1)
    squares, steps = _pyramid(below), _triangle(below, None)
    last = whole * (_triangle(tokens, None) - _triangle(max(0, stride * whole - 1), None))
    return stride * stride * squares + stride * (stride - 1) // 2 * steps + (last if whole else 0)


def _triangle(tokens: int, most: int | None) -> int:
    """1 + 2 + 3 + ..., where no term is larger than ``most``."""
    rising = tokens if most is None else min(tokens, most)
    return rising * (rising + 1) // 2 + (tokens - rising) * rising


def _stairs(tokens: int, stride: int, most: int | None) -> int:
    """1 // stride + 2 // stride + ..., where no term is larger than ``most``."""
    rising = tokens if most is None else min(tokens, stride * most)
    whole = rising // stride
    return stride * whole * (whole - 1) // 2 + whole * (rising - stride * whole + 1) + (tokens - rising) * whole


def _terms(kind: LayerKind, selected: int | None, *, prefill: bool) -> tuple[Term, ...]:
    rule = _RULES.get(kind.name)
    return _states(kind) if rule is None else rule(kind, selected, prefill)


def _softmax(kind: AttentionKind, selected: int | None, prefill: bool) -> tuple[Term, ...]:
    """At each position, every query head multiplies with a key and weighs a value."""
    return ((kind.span, None, 2 * kind.num_attention_heads * (kind.head_dim + kind.v_head_dim)),)


def _latent(kind: LatentAttention, selected: int | None, prefill: bool) -> tuple[Term, ...]:
    """Decoding works on the latent itself. A prompt may be expanded into keys and values, which costs less per position.

    DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2: queries and outputs absorb the up-projections.
    """
    if prefill:
        key, value = kind.qk_nope_head_dim, kind.v_head_dim
    else:
        key = value = kind.kv_lora_rank
    return ((kind.span, selected, 2 * kind.num_attention_heads * (key + kind.qk_rope_head_dim + value)),)


def _expanded(kind: ExpandedLatentAttention, selected: int | None, prefill: bool) -> tuple[Term, ...]:
    span = Full() if kind.window is None else Window(kind.window)
    return ((span, selected, 2 * kind.num_attention_heads * (kind.qk_nope_head_dim + kind.qk_rope_head_dim + kind.v_head_dim)),)


def _indexer(kind: SparseIndexer, selected: int | None, prefill: bool) -> tuple[Term, ...]:
    """Every index head scores every token."""
    return ((Full(), None, 2 * kind.index_n_heads * kind.index_head_dim),)


def _compressed(kind: CompressedAttention, selected: int | None, prefill: bool) -> tuple[Term, ...]:
    """Attention over the window and the selected entries (one vector is key and value), and the scores of the indexer."""
    each = 4 * kind.num_attention_heads * kind.head_dim
    window: Term = (Window(kind.window), None, each)
    if kind.compress_ratio is None:
        return (window,)
    groups = Strided(kind.compress_ratio)
    entries: Term = (groups, kind.index_topk, each)
    if kind.index_n_heads is None or kind.index_head_dim is None:
        return window, entries
    return window, entries, (groups, None, 2 * kind.index_n_heads * kind.index_head_dim)


def _states(kind: LayerKind) -> tuple[Term, ...]:
    """Every token multiplies a state and adds to it. A state with heads is also multiplied with a query and summed.

    This is a lower bound: gates, decays and delta rules come on top.
    """
    states = (tensor for tensor in kind.tensors() if tensor.role is Role.STATE and isinstance(tensor.span, Once))
    return tuple((tensor.span, None, (4 if len(tensor.shape) > 1 else 2) * tensor.elements_per_position) for tensor in states)


_RULES: Final[Mapping[str, Callable[..., tuple[Term, ...]]]] = {
    **dict.fromkeys(("full_attention", "sliding_attention", "chunked_attention", "sink_attention", "cross_attention"), _softmax),
    "latent_attention": _latent,
    "expanded_latent_attention": _expanded,
    "sparse_indexer": _indexer,
    "compressed_attention": _compressed,
}
"""The rules of kinds that attend. All other kinds are counted by their states, if they have any."""
