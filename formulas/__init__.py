"""What each kind of layer keeps between decode steps. Pure functions of integers: no I/O, no torch, no floats.

Names are loaded on first use, so that a plan imports the kinds its model has and no others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formulas.attention import AttentionKind, FullAttention
    from formulas.compressed import CompressedAttention
    from formulas.cross import CrossAttention
    from formulas.hybrid import Group, Layer, Stack, pipeline_stages, ranges
    from formulas.kind import KINDS, MAX_DIMENSION, LayerKind
    from formulas.latent import ExpandedLatentAttention, LatentAttention, SparseIndexer
    from formulas.linear import (
        GatedDeltaNet,
        KimiDeltaAttention,
        LightningAttention,
        MatrixLSTM,
        RealGatedLRU,
        Rwkv4,
        RwkvMatrix,
        ShortConvolution,
    )
    from formulas.shared import NoCache, SharedCache
    from formulas.sink import SinkAttention
    from formulas.sliding import ChunkedAttention, SlidingAttention
    from formulas.ssm import Mamba1, Mamba2
    from formulas.tensor import (
        CacheTensor,
        Chunk,
        DType,
        Encoder,
        Fixed,
        Full,
        Once,
        Remainder,
        Role,
        Sink,
        Span,
        Strided,
        Window,
    )

__all__ = [
    "KINDS",
    "MAX_DIMENSION",
    "AttentionKind",
    "CacheTensor",
    "Chunk",
    "ChunkedAttention",
    "CompressedAttention",
    "CrossAttention",
    "DType",
    "Encoder",
    "ExpandedLatentAttention",
    "Fixed",
    "Full",
    "FullAttention",
    "GatedDeltaNet",
    "Group",
    "KimiDeltaAttention",
    "LatentAttention",
    "Layer",
    "LayerKind",
    "LightningAttention",
    "Mamba1",
    "Mamba2",
    "MatrixLSTM",
    "NoCache",
    "Once",
    "RealGatedLRU",
    "Remainder",
    "Role",
    "Rwkv4",
    "RwkvMatrix",
    "SharedCache",
    "ShortConvolution",
    "Sink",
    "SinkAttention",
    "SlidingAttention",
    "Span",
    "SparseIndexer",
    "Stack",
    "Strided",
    "Window",
    "pipeline_stages",
    "ranges",
]

_MODULES = {
    "attention": "AttentionKind FullAttention",
    "compressed": "CompressedAttention",
    "cross": "CrossAttention",
    "hybrid": "Group Layer Stack pipeline_stages ranges",
    "kind": "KINDS LayerKind MAX_DIMENSION",
    "latent": "ExpandedLatentAttention LatentAttention SparseIndexer",
    "linear": "GatedDeltaNet KimiDeltaAttention LightningAttention MatrixLSTM RealGatedLRU Rwkv4 RwkvMatrix ShortConvolution",
    "shared": "NoCache SharedCache",
    "sink": "SinkAttention",
    "sliding": "ChunkedAttention SlidingAttention",
    "ssm": "Mamba1 Mamba2",
    "tensor": "CacheTensor Chunk DType Encoder Fixed Full Once Remainder Role Sink Span Strided Window",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module 'formulas' has no attribute {name!r}")
    if name == "KINDS":
        # The registry is full only when every family has been imported.
        for family in _MODULES:
            import_module(f"formulas.{family}")
    value = globals()[name] = getattr(import_module(f"formulas.{module}"), name)
    return value
