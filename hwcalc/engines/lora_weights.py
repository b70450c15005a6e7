"""The bytes of low-rank adapters on a rank.

An adapter of rank r adds two matrices to a linear layer of shape out x in: A of r x in and B of out x r (Hu et al. 2021,
arXiv:2106.09685, section 4.1). Tensor parallelism cuts them together with the layer. If the layer is cut by outputs, A is whole and
B is cut; if it is cut by inputs, A is cut and B is whole. With expert parallelism the adapters of an expert go to its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hwcalc.engines.rank_weights import REFERENCE, RankBytes, Rules, cut_blocks, on_stages
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.shards import module_of
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.engines.lora import Lora
    from hwcalc.model import ModelSpec

_MLP_PARTS: Final = frozenset({"mlp", "experts", "feed_forward", "block_sparse_moe", "shared_expert", "shared_experts"})


def lora_bytes_rank(model: ModelSpec, lora: Lora, parallel: Parallel = ALONE, *, rules: Rules = REFERENCE) -> RankBytes | None:
    """Bytes of adapters on the fullest rank; ``None`` if the model's weights are not counted.

    One adapter of rank 16 in bf16 for a layer of 4,096 x 4,096 takes (16 x 4,096 + 4,096 x 16) x 2 = 262,144 bytes. Low leaves out
    routed experts, as many adapters do. High is ``all-linear`` of PEFT 0.21 for a model of transformers 5: it includes routers, and
    has twice the rank for gate and up where they are one tensor, so that each has its own rows.
    """
    if model.counted is None:
        return None
    blocks = cut_blocks(model, rules.loaded_blocks(model, model.counted, parallel.pp), rules.rank(model, parallel), rules)

    def beside(numbers: Callable[[Block, Weight, Lora], int]) -> int:
        def beside_one(block: Block, weight: Weight) -> int:
            return numbers(block, weight, lora)

        return lora.count * lora.element_bytes * most_on_a_stage(model, blocks, parallel.pp, rules, beside_one)

    low, expected, high = (beside(numbers) for numbers in (_outside_experts, _each, _as_peft))
    source = f"{lora.count:,} x rank {lora.rank:,} in {lora.dtype} beside {lora.targets} linear layers: A and B, arXiv:2106.09685"
    return RankBytes(low=low, expected=expected, high=high, source=source)


def most_on_a_stage(
    model: ModelSpec, blocks: tuple[Block, ...], pp: int, rules: Rules, numbers: Callable[[Block, Weight], int]
) -> int:
    """The most adapter numbers on any pipeline stage. ``numbers`` returns those of one tensor in one layer."""
    return max(
        sum(block.count * numbers(block, weight) for block in stage for weight in block.weights)
        for stage in on_stages(model, blocks, pp, rules)
    )


def adapter_numbers(rank: int, weight: Weight) -> int:
    """Numbers in A and B for all copies of a matrix that has been cut already."""
    rows, columns = weight.shape
    return weight.copies * rank * (rows + columns)


def adapted(block: Block, weight: Weight, lora: Lora) -> bool:
    """Whether a tensor is a linear layer of the language model that the adapters target."""
    if block.part not in {Part.LANGUAGE, Part.ENCODER} or len(weight.shape) != 2:
        return False
    if weight.role not in {WeightRole.LINEAR, WeightRole.EXPERT}:
        return False
    if lora.targets == "all":
        return True
    is_mlp = block.kind in {"mlp", "moe"} or not _MLP_PARTS.isdisjoint(weight.path.split("."))
    return is_mlp is (lora.targets == "mlp")


def _each(block: Block, weight: Weight, lora: Lora) -> int:
    return adapter_numbers(lora.rank, weight) if adapted(block, weight, lora) else 0


def _outside_experts(block: Block, weight: Weight, lora: Lora) -> int:
    return 0 if weight.role is WeightRole.EXPERT else _each(block, weight, lora)


def _as_peft(block: Block, weight: Weight, lora: Lora) -> int:
    if weight.role is WeightRole.ROUTER and lora.targets == "all" and block.part is Part.LANGUAGE and len(weight.shape) == 2:
        return adapter_numbers(lora.rank, weight)
    numbers = _each(block, weight, lora)
    if numbers and weight.role is WeightRole.EXPERT and module_of(weight) in {"gate_proj", "up_proj"}:
        # B has the rows of gate and up, and columns for twice the rank.
        numbers += weight.copies * lora.rank * weight.shape[0]
    return numbers
