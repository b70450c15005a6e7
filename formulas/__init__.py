"""What each kind of layer keeps between decode steps. Pure functions of integers: no I/O, no torch, no floats.

Names are loaded on first use, so that a plan imports only the kinds that its model has.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwcalc.formulas.attention import (
        AttentionKind,
        BlockSparseAttention,
        ChunkedAttention,
        CrossAttention,
        FullAttention,
        MetaTokens,
        SinkAttention,
        SlidingAttention,
    )
    from hwcalc.formulas.hybrid import Layer, LayerNumbers, Stack
    from hwcalc.formulas.kind import KINDS, MAX_DIMENSION, LayerKind, NoCache, SharedCache
    from hwcalc.formulas.latent import CompressedAttention, ExpandedLatentAttention, LatentAttention, SparseIndexer
    from hwcalc.formulas.states import (
        GatedDeltaNet,
        GatedLinearAttention,
        KimiDeltaAttention,
        LightningAttention,
        Mamba1,
        Mamba2,
        MatrixLSTM,
        RealGatedLRU,
        Rwkv4,
        RwkvMatrix,
        ShortConvolution,
        StreamConvolutions,
    )
    from hwcalc.formulas.tensor import CacheTensor, DType, Role, Span

__all__ = [
    "KINDS", "MAX_DIMENSION", "AttentionKind", "BlockSparseAttention", "CacheTensor", "ChunkedAttention", "CompressedAttention", "CrossAttention",
    "DType", "ExpandedLatentAttention", "FullAttention", "GatedDeltaNet", "GatedLinearAttention", "KimiDeltaAttention", "LatentAttention", "Layer",
    "LayerKind", "LayerNumbers", "LightningAttention", "Mamba1", "Mamba2", "MatrixLSTM", "MetaTokens", "NoCache", "RealGatedLRU", "Role",
    "Rwkv4", "RwkvMatrix", "SharedCache", "ShortConvolution", "SinkAttention", "SlidingAttention", "Span", "SparseIndexer",
    "Stack", "StreamConvolutions",
]  # fmt: skip

_MODULES = {
    "attention": "AttentionKind BlockSparseAttention ChunkedAttention CrossAttention FullAttention MetaTokens SinkAttention SlidingAttention",
    "latent": "CompressedAttention ExpandedLatentAttention LatentAttention SparseIndexer",
    "states": "GatedDeltaNet GatedLinearAttention KimiDeltaAttention LightningAttention Mamba1 Mamba2 MatrixLSTM RealGatedLRU Rwkv4 RwkvMatrix ShortConvolution StreamConvolutions",
    "kind": "KINDS LayerKind MAX_DIMENSION NoCache SharedCache",
    "hybrid": "Layer LayerNumbers Stack",
    "tensor": "CacheTensor DType Role Span",
}
FAMILIES = tuple(_MODULES)
"""The modules in the order in which lists have their kinds, whichever of them was imported first."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module 'hwcalc.formulas' has no attribute {name!r}")
    if name == "KINDS":
        # The registry is complete only after every family has been imported.
        for family in _MODULES:
            import_module(f"hwcalc.formulas.{family}")
    value = globals()[name] = getattr(import_module(f"hwcalc.formulas.{module}"), name)
    return value
