"""The weights of LMDeploy: never in 32 bits; replicas divide attention alone; PyTorch does not cut tables.

Sources: LMDeploy 0.14.0, pytorch/config.py (DistConfig: attn_tp is tp / dp, mlp_tp is tp), pytorch/models/{llama,qwen3,deepseek_v2}.py,
turbomind/builders/text_model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.shards import GroupRank, Rank
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.formats import BF16, FLOATS, FP16, WeightFormat
from hwcalc.formulas.weights import Block, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec


class _Pytorch(GroupRank):
    """Every rank has the whole embedding and head, but for the embedding of DeepSeek's classes, which is cut by rows."""

    def ranks(self, block: Block, weight: Weight) -> int:
        if not self.is_vocabulary(weight):
            return super().ranks(block, weight)
        cut = weight.role is WeightRole.EMBEDDING and any(
            isinstance(group.kind, LatentAttention) for group in self.model.stack.groups
        )
        return self.tp if cut else 1


class _TurbomindRules(Rules):
    engine: ClassVar[str] = "lmdeploy"
    rank: ClassVar[type[Rank]] = GroupRank

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """bf16 or fp16: what is published in fp32 is loaded in fp16 (pytorch/config.py _update_torch_dtype)."""
        found = FLOATS.get(weight_dtype or model.dtype or "", BF16)
        return FP16 if found.bits > BF16.bits else found


class _PytorchRules(_TurbomindRules):
    rank: ClassVar[type[Rank]] = _Pytorch


PYTORCH_WEIGHTS: Final = _PytorchRules()
TURBOMIND_WEIGHTS: Final = _TurbomindRules()
