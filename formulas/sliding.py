"""Attention with a limited reach: a sliding window, or the chunk of the current token."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.kind import register
from hwcalc.formulas.tensor import Chunk, Span, Window

__all__ = ["ChunkedAttention", "SlidingAttention"]


@register
class SlidingAttention(AttentionKind):
    """Keys and values of the last ``window`` tokens.

    Bytes = min(n, window) x num_key_value_heads x (head_dim + v_head_dim) x bytes per element. Beyond the window, more
    tokens need no more bytes.

    >>> SlidingAttention(num_attention_heads=8, num_key_value_heads=4, head_dim=256, v_head_dim=256,
    ...                  window=3).tensors()[0].span.positions(4)
    3

    Source: Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825.
    """

    name: ClassVar[str] = "sliding_attention"
    title: ClassVar[str] = "sliding-window attention"
    keeps: ClassVar[str] = "Keys and values of the last {window} tokens."
    source: ClassVar[str] = "Jiang et al. 2023, arXiv:2310.06825"

    window: int

    @property
    def span(self) -> Span:
        return Window(self.window)


@register
class ChunkedAttention(AttentionKind):
    """Keys and values of the chunk of ``chunk`` tokens that the current token stands in.

    At most ``chunk`` tokens are needed at once, so a sequence of n tokens keeps ``min(n, chunk)``.

    >>> ChunkedAttention(num_attention_heads=40, num_key_value_heads=8, head_dim=128, v_head_dim=128,
    ...                  chunk=3).tensors()[0].span.positions(4)
    3

    Source: Llama 4 model code, ``attention_chunk_size`` (transformers, modeling_llama4.py).
    """

    name: ClassVar[str] = "chunked_attention"
    title: ClassVar[str] = "chunked attention"
    keeps: ClassVar[str] = "Keys and values of the chunk of {chunk} tokens that the current token stands in."
    source: ClassVar[str] = "transformers, modeling_llama4.py, attention_chunk_size"

    chunk: int

    @property
    def span(self) -> Span:
        return Chunk(self.chunk)
