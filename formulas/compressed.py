"""Compressed sparse attention as in DeepSeek-V4: a window of raw tokens, and one entry for every group of tokens."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Fixed, Role, Span, Strided, Window

__all__ = ["CompressedAttention"]


@register
class CompressedAttention(LayerKind):
    """One vector that is key and value at once, for the last ``window`` tokens and for every group of tokens.

    With ``compress_ratio`` r the layer keeps, per sequence:

    - the last ``window`` tokens, ``head_dim`` elements each (key and value are the same vector, stored once);
    - one compressed entry of ``head_dim`` elements for every complete group of r tokens;
    - the state of the compressor: value and gate of the r tokens that are not compressed yet. With ``overlap`` (ratio 4)
      an entry is computed from its own group and the previous one, and each token has two halves. The state then has
      2 r slots of twice the width;
    - with ``index_head_dim``, entries and compressor state a second time, for the indexer that selects entries.

    Without ``compress_ratio`` the layer keeps the window only. The state always has its full size, because memory must be
    enough for a full group. It is fp32 in every engine that runs the model.

    >>> k = CompressedAttention(num_attention_heads=64, head_dim=512, window=128, compress_ratio=4, overlap=True,
    ...                         index_n_heads=64, index_head_dim=128)
    >>> [(t.name, t.shape, t.span.positions(4)) for t in k.tensors()][:3]
    [('window_latent', (512,), 4), ('compressed_latent', (512,), 1), ('compressor_value', (1024,), 8)]

    Four to seven tokens make one compressed entry, eight make two.
    Sources: transformers 5.23, modeling_deepseek_v4.py; vLLM 0.33, DeepSeek-V4 compressor state (ratio 4: 2,048 fp32
    for each of 8 slots; ratio 128: 1,024 fp32 for each of 128).
    """

    name: ClassVar[str] = "compressed_attention"
    title: ClassVar[str] = "compressed sparse attention"
    keeps: ClassVar[str] = "One vector that is key and value at once, for the last {window} tokens and for every group of tokens."
    source: ClassVar[str] = "transformers 5.23, modeling_deepseek_v4.py"
    _divided: ClassVar[tuple[str, ...]] = ("num_attention_heads",)

    num_attention_heads: int
    head_dim: int
    window: int
    compress_ratio: int | None = None
    overlap: bool = False
    index_n_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None
    """How many compressed entries one token reads; ``None`` reads all."""

    def tensors(self) -> tuple[CacheTensor, ...]:
        def tensor(name: str, width: int, axis: str, role: Role, span: Span) -> CacheTensor:
            return CacheTensor(name=name, shape=(width,), axes=(axis,), role=role, span=span)

        out = [tensor("window_latent", self.head_dim, "head_dim", Role.LATENT, Window(self.window))]
        if self.compress_ratio is None:
            return tuple(out)
        groups = Strided(self.compress_ratio)
        halves = 2 if self.overlap else 1
        times = "2 x " if self.overlap else ""
        slots = Fixed(halves * self.compress_ratio)
        out += [
            tensor("compressed_latent", self.head_dim, "head_dim", Role.LATENT, groups),
            tensor("compressor_value", halves * self.head_dim, f"{times}head_dim", Role.STATE, slots),
            tensor("compressor_gate", halves * self.head_dim, f"{times}head_dim", Role.STATE, slots),
        ]
        if self.index_head_dim is not None:
            width, axis = halves * self.index_head_dim, f"{times}index_head_dim"
            out += [
                tensor("indexer_keys", self.index_head_dim, "index_head_dim", Role.INDEX, groups),
                tensor("indexer_value", width, axis, Role.STATE, slots),
                tensor("indexer_gate", width, axis, Role.STATE, slots),
            ]
        return tuple(out)
