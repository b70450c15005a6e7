"""What each kind of layer keeps between decode steps. Pure functions of integers: no I/O, no torch, no floats."""

from formulas.attention import AttentionKind, FullAttention
from formulas.compressed import CompressedAttention
from formulas.cross import CrossAttention
from formulas.hybrid import Group, Layer, Stack, ranges
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
    "ranges",
]
