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
    from hwcalc.formulas.compressed import CompressedAttention
    from hwcalc.formulas.latent import ExpandedLatentAttention, LatentAttention, SparseIndexer

__all__ = ["decode_flops", "positions_sum", "prefill_flops"]

Term = tuple[Span, int | None, int]
"""The positions that a token looks at, how many of them it selects at most, and the operations per position."""


def decode_flops(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> int:
    """Operations of one layer for the next token of one sequence of ``tokens`` tokens.

    ``selected`` is the number of tokens that a sparse-attention indexer selects for latent attention.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> decode_flops(kind, 1000)
    16384000

    2 x 32 query heads x (128 + 128) x 1,000 positions. Query heads that share a key still compute separately.
    """
    total = 0
    for span, most, each in _terms(kind, selected, prefill=False):
        positions = span.positions(tokens, encoder_tokens)
        total += each * (positions if most is None else min(positions, most))
    return total


def prefill_flops(kind: LayerKind, tokens: int, encoder_tokens: int = 0, *, selected: int | None = None) -> int:
    """Operations of one layer for a prompt of ``tokens`` tokens. Each token looks at itself and at the tokens before it.

    >>> from hwcalc.formulas.attention import FullAttention
    >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
    >>> prefill_flops(kind, 4)
    163840

    2 x 32 x (128 + 128) x (1 + 2 + 3 + 4).
    """
    return sum(
        each * positions_sum(span, tokens, encoder_tokens, most) for span, most, each in _terms(kind, selected, prefill=True)
    )


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
