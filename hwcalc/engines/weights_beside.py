"""The weights that are loaded with a model, on one rank: a draft, layers of multi-token prediction, low-rank adapters.

The rules of drafts are those of vLLM 0.33, the engine that documents them best. A draft runs with the tensor-parallel size of the target
(``config/speculative.py`` draft_tensor_parallel_size, which also allows 1, but not for draft models) in one pipeline stage, on the last
rank (``v1/worker/gpu_model_runner.py``). EAGLE heads and multi-token prediction share the embedding and head of the target where
they can (``v1/spec_decode/llm_base_proposer.py`` _maybe_share_embeddings, _maybe_share_lm_head).

An adapter of rank r adds two matrices to a linear layer of shape out x in: A of r x in and B of out x r (Hu et al. 2021,
arXiv:2106.09685, section 4.1). Tensor parallelism cuts them together with the layer. If the layer is cut by outputs, A is whole and
B is cut; if it is cut by inputs, A is cut and B is whole. With expert parallelism the adapters of an expert go to its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.rank_weights import (
    REFERENCE,
    RankBytes,
    Rules,
    block_bytes,
    cut_blocks,
    module_of,
    on_stages,
    rank_weight_bytes,
)
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.engines.options import Lora
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme


def draft_bytes_rank(
    draft: ModelSpec, parallel: Parallel = ALONE, *, scheme: Scheme | None = None, rules: Rules = REFERENCE
) -> RankBytes | None:
    """Bytes of a whole draft model on the fullest rank of the last stage; ``None`` if its weights are not counted.

    ``parallel`` is the target's layout, of which the draft uses only ``tp``. ``scheme`` is the quantisation of the draft.
    """
    stages = rank_weight_bytes(draft, Parallel(tp=parallel.tp), scheme=scheme, rules=rules)
    source = f"weights of the draft {draft.id} on {parallel.tp:,} ranks, one stage; vLLM 0.33 config/speculative.py"
    return None if stages is None else RankBytes(low=stages[0], expected=stages[0], high=stages[0], source=source)


def eagle_bytes_rank(
    draft: ModelSpec, target: ModelSpec, parallel: Parallel = ALONE, *, scheme: Scheme | None = None, rules: Rules = REFERENCE
) -> RankBytes | None:
    """Bytes of an EAGLE head on the fullest rank of the last stage; ``None`` if its weights are not counted.

    The head shares the target's embedding if its checkpoint has none or an equal one, the widths are equal and there is one stage. It
    shares the target's output head if the vocabularies are equal as well. Only the files tell: low shares both, high shares neither.
    """
    if draft.counted is None:
        return None
    blocks = [block for block in draft.counted.blocks if block.part is not Part.MTP]
    rest, embedding, head = (
        _bytes(draft, blocks, role, Parallel(tp=parallel.tp), scheme, rules)
        for role in (None, WeightRole.EMBEDDING, WeightRole.HEAD)
    )
    shares_embedding = parallel.pp == 1 and draft.hidden_size == target.hidden_size and draft.vocab_size == target.vocab_size
    shares_head = _head_rows(draft) == _head_rows(target) and draft.hidden_size == target.hidden_size
    low = rest + (0 if shares_embedding else embedding) + (0 if shares_head else head)
    source = f"weights of the EAGLE head {draft.id}, tables shared with the target where equal; vLLM 0.33 llm_base_proposer.py"
    return RankBytes(low=low, expected=low, high=rest + embedding + head, source=source)


def dflash_bytes_rank(
    draft: ModelSpec, target: ModelSpec, parallel: Parallel = ALONE, *, scheme: Scheme | None = None, rules: Rules = REFERENCE
) -> RankBytes | None:
    """Bytes of a DFlash drafter on the fullest rank of the last stage; ``None`` if its weights are not counted.

    Like an EAGLE head it shares the target's tables. Beside its layers it has a 16-bit projection, whole on every rank, of the hidden
    vectors of as many layers of the target as it has itself: 4,096 x 5 x 4,096 numbers for five layers (``models/qwen3_dflash.py``).
    """
    head = eagle_bytes_rank(draft, target, parallel, scheme=scheme, rules=rules)
    if head is None:
        return None
    joined = 2 * (draft.hidden_size or 0) * (target.hidden_size or 0) * len(draft.stack)
    source = f"weights of the DFlash drafter {draft.id}, tables shared with the target where equal; vLLM 0.33 qwen3_dflash.py"
    return RankBytes(low=head.low + joined, expected=head.expected + joined, high=head.high + joined, source=source)


def mtp_bytes_rank(
    model: ModelSpec, parallel: Parallel = ALONE, *, scheme: Scheme | None = None, rules: Rules = REFERENCE
) -> RankBytes | None:
    """Bytes of a model's own layers of multi-token prediction on the fullest rank of the last stage.

    The layers are loaded once, however many tokens are drafted. They share the model's embedding and head instead of their own copies;
    with several stages they keep their embedding, since the model's is on another stage. ``None`` if the weights are not counted or
    the model has no such layers.
    """
    blocks = [] if model.counted is None else [block for block in model.counted.blocks if block.part is Part.MTP]
    if not blocks:
        return None
    rest, embedding = (_bytes(model, blocks, role, parallel, scheme, rules) for role in (None, WeightRole.EMBEDDING))
    size = rest + (embedding if parallel.pp > 1 else 0)
    source = "layers of multi-token prediction without the tables that they share; vLLM 0.33 llm_base_proposer.py"
    return RankBytes(low=size, expected=size, high=rest + embedding, source=source)


def _head_rows(model: ModelSpec) -> int | None:
    """Rows of the output head. An EAGLE-3 checkpoint may have fewer than its vocabulary."""
    rows = [
        weight.shape[0]
        for block in (model.counted.blocks if model.counted else ())
        if block.part is not Part.MTP
        for weight in block.weights
        if weight.role is WeightRole.HEAD
    ]
    return model.facts.draft_vocab_size or (rows[0] if rows else model.vocab_size)


def _bytes(
    model: ModelSpec, blocks: list[Block], role: WeightRole | None, parallel: Parallel, scheme: Scheme | None, rules: Rules
) -> int:
    """Bytes on a rank of the tables of this role in these blocks; for ``None`` of everything except tables."""
    tables = {WeightRole.EMBEDDING, WeightRole.HEAD}
    chosen = [
        replace(block, weights=weights)
        for block in blocks
        if (weights := tuple(each for each in block.weights if (each.role is role if role else each.role not in tables)))
    ]
    unquantized = rules.weight_format(model, None)
    cut = cut_blocks(model, chosen, rules.rank(model, parallel), rules)
    return sum(block_bytes(model, block, rules, scheme, unquantized) for block in cut)


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

    low, expected, high = (
        lora.count
        * lora.element_bytes
        * most_on_a_stage(model, blocks, parallel.pp, rules, partial(_adapter_numbers, lora, end=end))
        for end in range(3)
    )
    source = f"{lora.count:,} x rank {lora.rank:,} in {lora.dtype} beside {lora.targets} linear layers: A and B, arXiv:2106.09685"
    return RankBytes(low=low, expected=expected, high=high, source=source)


def pinned_lora_bytes(model: ModelSpec, lora: Lora) -> tuple[int, int] | None:
    """Bytes of one adapter that no rank has cut, and of the pinned blocks that hold them; ``None`` if the model's weights are not counted.

    PyTorch rounds each pinned tensor up to a power of two (``aten/src/ATen/core/CachingHostAllocator.h``). A and B of rank 16 for a layer
    of 14,336 x 4,096 in bf16 are 131,072 + 458,752 bytes, and the blocks 131,072 + 524,288.
    """
    if model.counted is None:
        return None
    least = most = 0
    for block in model.counted.blocks:
        for weight in block.weights:
            if adapted(block, weight, lora):
                sizes = [lora.rank * side * lora.element_bytes for side in weight.shape]
                least += block.count * weight.copies * sum(sizes)
                most += block.count * weight.copies * sum(1 << (size - 1).bit_length() for size in sizes)
    return least, most


def _adapter_numbers(lora: Lora, block: Block, weight: Weight, end: int) -> int:
    """Numbers that an adapter has for a tensor of one layer, at the low end (0), by the expected value (1), or at the high end (2)."""
    each = adapter_numbers(lora.rank, weight) if adapted(block, weight, lora) else 0
    if end == 0:
        return 0 if weight.role is WeightRole.EXPERT else each
    if end == 1:
        return each
    if weight.role is WeightRole.ROUTER and lora.targets == "all" and block.part is Part.LANGUAGE and len(weight.shape) == 2:
        return adapter_numbers(lora.rank, weight)
    if each and weight.role is WeightRole.EXPERT and module_of(weight) in {"gate_proj", "up_proj"}:
        # B has the rows of gate and up, and columns for twice the rank.
        each += weight.copies * lora.rank * weight.shape[0]
    return each


def lora_bytes_by_layer(model: ModelSpec, lora: Lora, layers: int) -> tuple[list[int], list[int], list[int]] | None:
    """Bytes of the adapters of each of so many layers, at the low end, by the expected value and at the high end.

    What the model has once, and in no layer, counts with the last. ``None`` if the model's weights are not counted.
    """
    if model.counted is None:
        return None
    found = [0] * layers, [0] * layers, [0] * layers
    for block in model.counted.blocks:
        for end, each in enumerate(found):
            size = lora.count * lora.element_bytes * sum(_adapter_numbers(lora, block, weight, end) for weight in block.weights)
            for layer in (layers - 1,) * block.count if block.layers is None else block.layers:
                each[min(layer, layers - 1)] += 0 if block.part is Part.MTP else size
    return found


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
    """True if a tensor is a linear layer of the language model that the adapters target."""
    if block.part not in {Part.LANGUAGE, Part.ENCODER} or len(weight.shape) != 2:
        return False
    if weight.role not in {WeightRole.LINEAR, WeightRole.EXPERT}:
        return False
    if lora.targets == "all":
        return True
    is_mlp = block.kind in {"mlp", "moe"} or not _MLP_PARTS.isdisjoint(weight.path.split("."))
    return is_mlp is (lora.targets == "mlp")
