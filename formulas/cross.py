"""Cross attention: keys and values of the encoder output, computed once per sequence."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.attention import AttentionKind, key_value_tensors
from hwcalc.formulas.kind import register
from hwcalc.formulas.tensor import CacheTensor, Encoder, Span

__all__ = ["CrossAttention"]


@register
class CrossAttention(AttentionKind):
    """A key and a value per head for every encoder token; decoded tokens add nothing.

    >>> CrossAttention(num_attention_heads=6, num_key_value_heads=6, head_dim=64,
    ...                v_head_dim=64).tensors()[0].span.positions(4, encoder_tokens=1500)
    1500

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    name: ClassVar[str] = "cross_attention"
    title: ClassVar[str] = "cross attention"
    keeps: ClassVar[str] = "A key and a value per head for every encoder token; decoded tokens add nothing."
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3"

    @property
    def span(self) -> Span:
        return Encoder()

    def tensors(self) -> tuple[CacheTensor, ...]:
        return key_value_tensors(self.num_key_value_heads, self.head_dim, self.v_head_dim, self.span, prefix="cross_")
