"""What the planned sequences have in SGLang's pools, layer by layer, and what a rank allocates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout, CompressedStage
from hwcalc.engines.sglang.layout import SWA
from hwcalc.engines.sglang.opened import SglangOpened
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import StoredTensor, bytes_of
from hwcalc.formulas import CompressedAttention, LayerKind, Role
from hwcalc.formulas.tensor import Once

__all__ = ["allocations", "extras", "layer_tensors"]


def layer_tensors(kind: LayerKind, opened: SglangOpened) -> tuple[StoredTensor, ...]:
    """The rows of all sequences in one layer of this kind, and their slots for states, on all tensor-parallel ranks."""
    return ()


def extras(opened: SglangOpened) -> tuple[StoredTensor, ...]:
    return ()


def allocations(opened: SglangOpened, stage: int) -> tuple[Allocation, ...]:
    return ()
