"""Attention sinks as a cache policy: the first tokens and a window of the last."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.kind import register
from hwcalc.formulas.tensor import Sink, Span

__all__ = ["SinkAttention"]


@register
class SinkAttention(AttentionKind):
    """Keys and values of the first ``sink`` and the last ``window`` tokens.

    This kind keeps real tokens; models select it with ``attention_sink_size``. A *learned* sink (gpt-oss) is something
    else: one number per head in the weights, which needs no cache.

    >>> SinkAttention(num_attention_heads=32, num_key_value_heads=32, head_dim=128, v_head_dim=128,
    ...               sink=1, window=2).tensors()[0].span.positions(4)
    3

    Source: Xiao et al. 2023, arXiv:2309.17453.
    """

    name: ClassVar[str] = "sink_attention"
    title: ClassVar[str] = "attention sinks + window"
    keeps: ClassVar[str] = "Keys and values of the first {sink} and the last {window} tokens."
    source: ClassVar[str] = "Xiao et al. 2023, arXiv:2309.17453"

    sink: int
    window: int

    @property
    def span(self) -> Span:
        return Sink(self.sink, self.window)
