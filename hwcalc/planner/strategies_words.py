"""What the strategies are called, what each trades for what, and who does it so."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

class Words(NamedTuple):
    """A strategy in words."""

    title: str
    about: str
    trades: str
    used_by: str


NAMES: Final = ("recompute", "growth", "slots", "pages", "offload")
"""The strategies, in their order."""
RECOMPUTE, GROWTH, SLOTS, PAGES, OFFLOAD = NAMES
ENGINE: Final = "engine"
"""The row of the engine that is named, by its own rules."""

WORDS: Final[Mapping[str, Words]] = MappingProxyType(
    {
        RECOMPUTE: Words(
            title="no cache: recompute",
            about="Each pass takes the whole text so far. Nothing is kept between passes; within one, a layer has its keys and values, "
            "and every token its hidden state.",
            trades="no memory, for operations that grow with the square of the text in each step, and with its cube in all",
            used_by="transformers, use_cache=False",
        ),
        GROWTH: Words(
            title="growth by concatenation",
            about="Each layer has a tensor that is copied into a longer one in each step. For a moment the largest tensor is there twice.",
            trades="nothing is wasted, but each step copies every tensor, and holds the largest one twice",
            used_by="transformers, DynamicCache",
        ),
        SLOTS: Words(
            title="slots of the full length",
            about="Each sequence has a place for all its tokens from the start, whether they ever come or not.",
            trades="no copies and fixed shapes, for memory that shorter sequences never use, and some kernels read",
            used_by="transformers, StaticCache; FasterTransformer; llama.cpp",
        ),
        PAGES: Words(
            title="pages",
            about="Each sequence takes a block when its last one is full, and gives back blocks that its windows have left.",
            trades="less than a block a sequence is wasted, for block tables and kernels that follow them",
            used_by="vLLM, SGLang, TensorRT-LLM",
        ),
        OFFLOAD: Words(
            title="host offload",
            about="The cache lies in host memory. The device has the layer in use and the next one, which is fetched meanwhile.",
            trades="memory of the device, for the whole cache over the bus in each step, there and back",
            used_by="transformers, cache_implementation=offloaded",
        ),
    }
)
