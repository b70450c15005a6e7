"""Which layers, tables and towers a pipeline stage of vLLM has.

A stage has its own layers, the first one the embedding and the towers, the last one the last norm and the head. Several model
classes build the tables on every stage all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from formulas.weights import Block, Part
from hwcalc.model import ModelSpec

__all__ = ["HASHED", "count_on_stage", "has_embedding_at_the_end", "layers_of_stages", "number_of"]

HASHED: Final = "hashed moe"
"""The kind of the blocks that DeepSeek-V4 routes by a table: its first ones."""

_TABLES_EVERYWHERE: Final = frozenset(
    {
        "bloom",
        "chatglm",
        "cohere",
        "cohere2",
        "dbrx",
        "falcon",
        "falcon_mamba",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "gpt2",
        "gpt_oss",
        "gptj",
        "granitemoe",
        "granitemoehybrid",
        "granitemoeshared",
        "internlm2",
        "jamba",
        "mamba",
        "minicpm",
        "mixtral",
        "molmo",
        "nemotron_h",
        "olmo_hybrid",
        "olmoe",
        "opt",
        "orion",
        "phimoe",
        "qwen2_moe",
        "qwen3_moe",
        "stablelm",
    }
)
"""Families whose embedding, last norm and head are built on every pipeline stage, used or not."""
_TABLES_BUT_NO_NORM: Final = frozenset({"qwen3_next"})
_EMBEDDING_EVERYWHERE: Final = frozenset({"lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe"})


def layers_of_stages(layers: int, pp: int) -> tuple[range, ...]:
    """The layers of each pipeline stage. What does not divide goes to the stages before the last.

    >>> [len(stage) for stage in layers_of_stages(80, 3)]
    [27, 27, 26]

    80 = 3 x 26 + 2: the two that are left over go to the two stages before the last.
    """
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(pp)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def count_on_stage(model: ModelSpec, block: Block, stage: int, pp: int) -> int:
    """How many layers of this block a pipeline stage has."""
    if pp == 1:
        return block.count
    first, last = stage == 0, stage == pp - 1
    if block.part in {Part.VISION, Part.AUDIO, Part.PROJECTOR, Part.ENCODER}:
        return block.count if first else 0
    total = len(model.stack)
    mine = layers_of_stages(total, pp)[stage]
    if block.count == 1 and total > 1:
        return _single(model, block, first=first, last=last)
    if block.count == total:
        return len(mine)
    return sum(layer in mine for layer in _layers(model, block, total))


def _single(model: ModelSpec, block: Block, *, first: bool, last: bool) -> int:
    """A block that the model has once: what comes before the layers is on the first stage, the rest on the last one."""
    family = model.model_type
    everywhere = family in _TABLES_EVERYWHERE
    if block.kind == "embedding":
        return int(first or everywhere or family in _TABLES_BUT_NO_NORM or family in _EMBEDDING_EVERYWHERE)
    if block.kind == "head":
        return int(last or everywhere or family in _TABLES_BUT_NO_NORM)
    return int(first if block.kind in {"mlp", "moe", "attention"} else last or everywhere)


def _layers(model: ModelSpec, block: Block, total: int) -> tuple[int, ...]:
    """Which layers have this block: those of the cached kind that is as frequent, the first or the last ones, or evenly spread."""
    count = min(block.count, total)
    for group in model.stack.groups:
        if len(group.layers) == count and block.kind in {"attention", "delta", "mamba", "conv"}:
            return group.layers
    dense = number_of(model.config, "first_k_dense_replace") or number_of(model.config, "num_hash_layers")
    if dense and count == dense:
        return tuple(range(count))
    if dense and count == total - dense:
        return tuple(range(dense, total))
    return tuple(index * total // count for index in range(count))


def has_embedding_at_the_end(model: ModelSpec) -> bool:
    """Whether the last stage has an embedding that a tied head can share."""
    return model.model_type in _TABLES_EVERYWHERE | _TABLES_BUT_NO_NORM | _EMBEDDING_EVERYWHERE


def number_of(config: Mapping[str, Any], key: str) -> int:
    """A positive whole number of the file or of its ``text_config``; 0 where there is none."""
    for holder in (config, config.get("text_config")):
        value = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
