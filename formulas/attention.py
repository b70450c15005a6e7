"""Attention that keeps keys and values: full, sliding, chunked, with sinks, and cross attention.

MHA, GQA and MQA share one formula; only the number of key/value heads differs.
"""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Chunk, Encoder, Full, Role, Sink, Span, Window


def key_value_tensors(
    num_key_value_heads: int, head_dim: int, v_head_dim: int, span: Span, prefix: str = ""
) -> tuple[CacheTensor, ...]:
    """The two tensors of every softmax attention: one key and one value per key/value head and position."""
    axes = ("num_key_value_heads", "head_dim"), ("num_key_value_heads", "v_head_dim")
    keys, values = (num_key_value_heads, head_dim), (num_key_value_heads, v_head_dim)
    return (
        CacheTensor(name=f"{prefix}keys", shape=keys, axes=axes[0], role=Role.KEY, span=span),
        CacheTensor(name=f"{prefix}values", shape=values, axes=axes[1], role=Role.VALUE, span=span),
    )


class AttentionKind(LayerKind):
    """The base of all softmax attention: query heads that share key/value heads."""

    _divided = ("num_attention_heads", "num_key_value_heads")
    _prefix: ClassVar[str] = ""
    """What the names of the tensors begin with."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def span(self) -> Span:
        """Which positions are kept."""
        return Full()

    def tensors(self) -> tuple[CacheTensor, ...]:
        return key_value_tensors(self.num_key_value_heads, self.head_dim, self.v_head_dim, self.span, self._prefix)


@register
class FullAttention(AttentionKind):
    """A key and a value per key/value head for every token.

    Bytes = n x num_key_value_heads x (head_dim + v_head_dim) x bytes per element. Query heads are never cached, so MQA
    (one key/value head) keeps 1/H of MHA.

    >>> FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128).tensors()[0].shape
    (8, 128)

    Four tokens of that layer in bf16: 4 x 8 x (128 + 128) x 2 = 16,384 bytes.
    Sources: Vaswani et al. 2017, arXiv:1706.03762; Shazeer 2019, arXiv:1911.02150 (MQA); Ainslie et al. 2023,
    arXiv:2305.13245 (GQA).
    """

    name = "full_attention"
    title = "full attention"
    keeps = "A key and a value per key/value head for every token."
    source = "Ainslie et al. 2023, arXiv:2305.13245"


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

    name = "sliding_attention"
    title = "sliding-window attention"
    keeps = "Keys and values of the last {window} tokens."
    source = "Jiang et al. 2023, arXiv:2310.06825"

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

    name = "chunked_attention"
    title = "chunked attention"
    keeps = "Keys and values of the chunk of {chunk} tokens that the current token stands in."
    source = "transformers, modeling_llama4.py, attention_chunk_size"

    chunk: int

    @property
    def span(self) -> Span:
        return Chunk(self.chunk)


@register
class SinkAttention(AttentionKind):
    """Keys and values of the first ``sink`` and the last ``window`` tokens.

    This kind keeps real tokens; models select it with ``attention_sink_size``. A *learned* sink (gpt-oss) is something
    else: one number per head in the weights, which needs no cache.

    >>> SinkAttention(num_attention_heads=32, num_key_value_heads=32, head_dim=128, v_head_dim=128,
    ...               sink=1, window=2).tensors()[0].span.positions(4)
    3
    """

    name = "sink_attention"
    title = "attention sinks + window"
    keeps = "Keys and values of the first {sink} and the last {window} tokens."
    source = "Xiao et al. 2023, arXiv:2309.17453"

    sink: int
    window: int

    @property
    def span(self) -> Span:
        return Sink(self.sink, self.window)


@register
class CrossAttention(AttentionKind):
    """A key and a value per head for every encoder token; decoded tokens add nothing.

    >>> CrossAttention(num_attention_heads=6, num_key_value_heads=6, head_dim=64,
    ...                v_head_dim=64).tensors()[0].span.positions(4, encoder_tokens=1500)
    1500
    """

    name = "cross_attention"
    title = "cross attention"
    keeps = "A key and a value per head for every encoder token; decoded tokens add nothing."
    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3"
    _prefix = "cross_"

    @property
    def span(self) -> Span:
        return Encoder()
