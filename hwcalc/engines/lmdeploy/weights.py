"""The weights of LMDeploy: divided as by the general rule, and never in 32 bits."""

from __future__ import annotations

from typing import ClassVar, Final

from hwcalc.engines.rank_weights import Rules
from hwcalc.formulas.formats import BF16, FLOATS, FP16, WeightFormat
from hwcalc.model import ModelSpec

__all__ = ["LMDEPLOY"]


class _Lmdeploy(Rules):
    engine: ClassVar[str] = "lmdeploy"

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """bf16 or fp16: what is published in fp32 is loaded in fp16 (pytorch/config.py _update_torch_dtype)."""
        found = FLOATS.get(weight_dtype or model.dtype or "", BF16)
        return FP16 if found.bits > BF16.bits else found


LMDEPLOY: Final = _Lmdeploy()
