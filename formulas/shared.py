"""Layers without a cache of their own."""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor

__all__ = ["NoCache", "SharedCache"]


@register
class SharedCache(LayerKind):
    """A layer that reads the cache of another layer: 0 bytes.

    >>> SharedCache().tensors()
    ()

    Sources: Brandon et al. 2024, arXiv:2405.12981 (cross-layer attention); Gemma 3n ``num_kv_shared_layers``.
    """

    name: ClassVar[str] = "shared_cache"
    title: ClassVar[str] = "shares another layer's cache"
    keeps: ClassVar[str] = "A layer that reads the cache of another layer: 0 bytes."
    source: ClassVar[str] = "Brandon et al. 2024, arXiv:2405.12981"

    def tensors(self) -> tuple[CacheTensor, ...]:
        return ()


@register
class NoCache(LayerKind):
    """A layer without attention or state (a feed-forward or expert block on its own): 0 bytes.

    >>> NoCache().tensors()
    ()
    """

    name: ClassVar[str] = "no_cache"
    title: ClassVar[str] = "no cache"
    keeps: ClassVar[str] = "A layer without attention or state (a feed-forward or expert block on its own): 0 bytes."
    source: ClassVar[str] = "by definition"

    def tensors(self) -> tuple[CacheTensor, ...]:
        return ()
