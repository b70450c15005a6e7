"""How SGLang divides weights: with ``enable_dp_attention`` replicas divide attention and embedding alone.

Sources: SGLang 0.5.23, ``models/deepseek_v2.py`` (MLPs have the sizes of the whole group), ``layers/vocab_parallel_embedding.py``. Neither
``moe_dense_tp_size`` nor ``enable_dp_lm_head`` is planned.
"""

from __future__ import annotations

from typing import ClassVar, Final

from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.shards import GroupRank, Rank
from hwcalc.formulas.weights import Block, Weight, WeightRole


class _SglangRank(GroupRank):
    """The ranks of all replicas divide the output head, too."""

    def ranks(self, block: Block, weight: Weight) -> int:
        return self.shards if weight.role is WeightRole.HEAD else super().ranks(block, weight)


class _SglangRules(Rules):
    engine: ClassVar[str] = "sglang"
    rank: ClassVar[type[Rank]] = _SglangRank


SGLANG: Final = _SglangRules()
