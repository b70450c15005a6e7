"""Attention that keeps keys and values: full, sliding, chunked, with sinks, block-sparse, over meta tokens, and cross attention.

MHA, GQA and MQA share one formula; only the number of key/value heads differs.
"""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Chunk, Encoder, Fixed, Full, Later, Pooled, Role, Sink, Span, Window


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
        """The positions that are kept."""
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
    source = "Xiao et al. 2023, arXiv:2309.17453"

    sink: int
    window: int

    @property
    def span(self) -> Span:
        return Sink(self.sink, self.window)


@register
class MetaTokens(AttentionKind):
    """Keys and values of ``num_memory_tokens`` learned tokens that stand before every sequence.

    They belong to the model and not to the prompt, and stay however long the sequence gets. What is kept of the sequence's own tokens
    is another kind of the same layer.

    >>> MetaTokens(num_attention_heads=25, num_key_value_heads=5, head_dim=64, v_head_dim=128,
    ...            num_memory_tokens=128).tensors()[0].span.positions(4)
    128

    After four tokens as after four million: 128 x 5 x (64 + 128) x 2 = 245,760 bytes in bf16.
    Source: Dong et al. 2024, arXiv:2411.13676, section 2.3.
    """

    name = "meta_tokens"
    title = "meta tokens"
    source = "Dong et al. 2024, arXiv:2411.13676"
    _prefix = "meta_"

    num_memory_tokens: int

    @property
    def span(self) -> Span:
        return Fixed(self.num_memory_tokens)


@register
class BlockSparseAttention(AttentionKind):
    """A key and a value for every token, and keys of blocks by which a token chooses the blocks that it looks at.

    This is InfLLM-V2. A sequence of ``dense_len`` tokens or more also keeps the mean of each ``kernel_size`` keys, ``kernel_stride`` apart, the same four
    times as coarse, and the last keys that wait for their mean: fewer than a kernel of each. A shorter one keeps keys and values alone.

    >>> kind = BlockSparseAttention(num_attention_heads=32, num_key_value_heads=2, head_dim=128, v_head_dim=128,
    ...                             kernel_size=32, kernel_stride=16, dense_len=8192, index_topk=6144)
    >>> [tensor.span.positions(8191) for tensor in kind.tensors()]
    [8191, 8191, 0, 0, 0, 0]
    >>> [tensor.span.positions(8192) for tensor in kind.tensors()]
    [8192, 8192, 511, 127, 31, 127]

    Four tokens of that layer in bf16: 4 x 2 x (128 + 128) x 2 = 4,096 bytes. Of 8,192 there are (8,192 - 32) / 16 + 1 = 511 means, and
    (8,192 - 128) / 64 + 1 = 127 coarse ones. ``index_topk`` is how many tokens the chosen blocks have.
    """

    name = "block_sparse_attention"
    title = "block-sparse attention (InfLLM-V2)"
    source = "Zhao et al. 2025, arXiv:2509.24663"

    kernel_size: int
    kernel_stride: int
    dense_len: int
    index_topk: int | None = None
    """How many tokens one token looks at; ``None`` if the config does not say."""

    def tensors(self) -> tuple[CacheTensor, ...]:
        def keys(name: str, span: Span) -> CacheTensor:
            return self.tensor(name, "num_key_value_heads", "head_dim", role=Role.KEY, span=span)

        kernel, stride, first = self.kernel_size, self.kernel_stride, self.dense_len
        return (
            *key_value_tensors(self.num_key_value_heads, self.head_dim, self.v_head_dim, self.span),
            keys("pooled_keys", Pooled(kernel, stride, first)),
            keys("coarse_keys", Pooled(4 * kernel, 4 * stride, first)),
            keys("unpooled_keys", Later(kernel - 1, first)),
            keys("coarse_unpooled_keys", Later(4 * kernel - 1, first)),
        )


@register
class CrossAttention(AttentionKind):
    """A key and a value per head for every encoder token; decoded tokens add nothing.

    >>> CrossAttention(num_attention_heads=6, num_key_value_heads=6, head_dim=64,
    ...                v_head_dim=64).tensors()[0].span.positions(4, encoder_tokens=1500)
    1500
    """

    name = "cross_attention"
    title = "cross attention"
    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3"
    _prefix = "cross_"

    @property
    def span(self) -> Span:
        return Encoder()
