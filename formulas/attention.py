"""Full attention. MHA, GQA and MQA share one formula; only the number of key/value heads differs."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Full, Role, Span

__all__ = ["AttentionKind", "FullAttention", "key_value_tensors"]


def key_value_tensors(
    num_key_value_heads: int, head_dim: int, v_head_dim: int, span: Span, prefix: str = ""
) -> tuple[CacheTensor, ...]:
    """The two tensors of every softmax attention: one key and one value per key/value head and position."""
    return (
        CacheTensor(
            name=f"{prefix}keys",
            shape=(num_key_value_heads, head_dim),
            axes=("num_key_value_heads", "head_dim"),
            role=Role.KEY,
            span=span,
        ),
        CacheTensor(
            name=f"{prefix}values",
            shape=(num_key_value_heads, v_head_dim),
            axes=("num_key_value_heads", "v_head_dim"),
            role=Role.VALUE,
            span=span,
        ),
    )


class AttentionKind(LayerKind):
    """The base of all softmax attention: query heads that share key/value heads."""

    _divided: ClassVar[tuple[str, ...]] = ("num_attention_heads", "num_key_value_heads")

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def span(self) -> Span:
        """Which positions are kept."""
        return Full()

    def tensors(self) -> tuple[CacheTensor, ...]:
        return key_value_tensors(self.num_key_value_heads, self.head_dim, self.v_head_dim, self.span)


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

    name: ClassVar[str] = "full_attention"
    title: ClassVar[str] = "full attention"
    keeps: ClassVar[str] = "A key and a value per key/value head for every token."
    source: ClassVar[str] = "Ainslie et al. 2023, arXiv:2305.13245"
