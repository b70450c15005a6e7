"""The memory that vLLM allocates for adapters: ``max_loras`` slots of ``max_lora_rank``, which are zero until an adapter is loaded.

The rules are those of vLLM 0.33. Each linear layer of the language model gets the slots, routers too (``lora/layers/base_linear.py``
create_lora_weights). A layer of several projections has A and B for each projection (``column_parallel_linear.py``), and experts have
them for each local expert (``fused_moe.py``), with one A for gate and up together if the checkpoint has them as one tensor. Model
classes that name their tables also get slots for the embedding (``vocab_parallel_embedding.py``) and for the logits
(``logits_processor.py``), which are not cut. Adapters beyond the slots wait in host memory (``max_cpu_loras``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.rank_weights import RankBytes, adapted, adapter_numbers, cut_blocks, module_of, most_on_a_stage
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.vllm.weights import VLLM, VllmRank
from hwcalc.errors import UsageError
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.engines.options import Lora
    from hwcalc.model import ModelSpec

RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of ``--max-lora-rank`` (``config/lora.py`` MaxLoRARanks)."""
_LARGEST_VOCABULARY: Final = 258_048
_TABLES: Final = frozenset(
    {
        "apertus",
        "exaone",
        "exaone4",
        "exaone_moe",
        "falcon_h1",
        "granite",
        "granitemoe",
        "granitemoehybrid",
        "granitemoeshared",
        "hyperclovax",
        "jamba",
        "lfm2",
        "lfm2_moe",
        "llama",
        "minicpm",
        "mixtral",
        "nemotron",
        "nemotron_h",
        "nemotron-nas",
        "phimoe",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_moe",
        "solar",
    }
)
"""Model types whose class has ``embedding_modules`` for embedding and head."""
_EMBEDDING_ONLY: Final = frozenset({"cohere", "cohere2"})
_FUSED_EXPERTS: Final = frozenset({"gpt_oss", "interns1_pro", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl_moe"})
"""Model types whose experts have gate and up as one tensor (``is_3d_moe_weight``)."""


def slot_rank(rank: int) -> int:
    """The smallest ``max_lora_rank`` for an adapter: 32 for rank 24. Raises :class:`~hwcalc.errors.UsageError` above 512."""
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise UsageError(f"vLLM takes adapters up to rank {RANKS[-1]}, not {rank:,}.", hint=f"Use: --lora rank={RANKS[-1]}")


def vllm_lora_bytes_rank(model: ModelSpec, lora: Lora, parallel: Parallel = ALONE) -> RankBytes | None:
    """Bytes of the slots on the fullest rank; ``None`` if the model's weights are not counted.

    ``lora.count`` is ``max_loras``, the number of adapters in one batch. Tables and routers have slots only if ``targets`` is ``all``
    (``--lora-target-modules``). High includes slots for tables of model types that are not known to name them. Raises
    :class:`~hwcalc.errors.UsageError` for a rank or a vocabulary for which vLLM has no slots.
    """
    if model.counted is None:
        return None
    rank = slot_rank(lora.rank)
    blocks = cut_blocks(model, VLLM.loaded_blocks(model, model.counted, parallel.pp), VllmRank(model, parallel), VLLM)
    tied = not any(weight.role is WeightRole.HEAD for block in blocks for weight in block.weights)

    def slots(*, with_tables: bool) -> int:
        def numbers(block: Block, weight: Weight) -> int:
            if with_tables and lora.targets == "all" and _is_table(block, weight):
                # A tied table has slots twice: for the embedding and for the logits.
                return _table_numbers(model, weight, rank) * (2 if tied and model.model_type not in _EMBEDDING_ONLY else 1)
            return _layer_numbers(model, block, weight, lora, rank)

        return lora.count * lora.element_bytes * most_on_a_stage(model, blocks, parallel.pp, VLLM, numbers)

    layers, tables = slots(with_tables=False), slots(with_tables=True)
    known = model.model_type in _TABLES | _EMBEDDING_ONLY
    if lora.targets == "all" and model.model_type in _TABLES and (model.vocab_size or 0) > _LARGEST_VOCABULARY:
        raise UsageError(
            f"vLLM makes no adapter slots beside a vocabulary of {model.vocab_size:,}, only up to {_LARGEST_VOCABULARY:,}.",
            hint="Use: --lora with targets=attention or targets=mlp",
        )
    return RankBytes(
        low=tables if known else layers,
        expected=tables if known else layers,
        high=tables,
        source=f"vLLM 0.33 lora/layers: max_loras {lora.count:,} x max_lora_rank {rank:,} in {lora.dtype}",
    )


def _layer_numbers(model: ModelSpec, block: Block, weight: Weight, lora: Lora, rank: int) -> int:
    """Numbers in one slot for a tensor that has been cut already."""
    if lora.targets == "all" and block.part is Part.LANGUAGE and weight.role is WeightRole.ROUTER and len(weight.shape) == 2:
        return adapter_numbers(rank, weight)
    if not adapted(block, weight, lora):
        return 0
    numbers = adapter_numbers(rank, weight)
    if weight.role is WeightRole.EXPERT and model.model_type in _FUSED_EXPERTS and module_of(weight) == "up_proj":
        # It shares the A of the gate.
        numbers -= weight.copies * rank * weight.shape[1]
    return numbers


def _is_table(block: Block, weight: Weight) -> bool:
    if block.part is not Part.LANGUAGE or len(weight.shape) != 2:
        return False
    return weight.role is WeightRole.HEAD or (weight.role is WeightRole.EMBEDDING and module_of(weight) == "embed_tokens")


def _table_numbers(model: ModelSpec, weight: Weight, rank: int) -> int:
    """Numbers in one slot for a table: A and B for the whole vocabulary, although the table is cut."""
    return adapter_numbers(rank, replace(weight, shape=(model.vocab_size or weight.shape[0], weight.shape[1])))
