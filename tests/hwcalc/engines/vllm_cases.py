"""A case of a rule of vLLM's planner: a request on either side of the release from which the rule holds, and how it is answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hwcalc import load_model
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.engines.vllm.memory import ProfileRun, activation_parts
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.model import ModelSpec
from hwcalc.profiles.engines import planned_version, since
from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_rows import opened

RELEASES: Final = (
    *("0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4", "0.6.5", "0.6.6", "0.7.0", "0.7.1", "0.7.2", "0.7.3"),
    *("0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.9.0", "0.9.0.1", "0.9.1", "0.9.2"),
    *("0.10.0", "0.10.1", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1"),
    *("0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2"),
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0"),
    *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
"""The releases whose code was read for the rules."""

Ask = Callable[[VllmOccupancy, PoolInfo], Any]


class Refused(NamedTuple):
    """The answer of a release that does not run the request; ``says`` is in its message."""

    says: str


class Case(NamedTuple):
    """``before`` is the answer of the last release before ``since``, ``after`` that of the first one. ``ask`` gets it from a plan."""

    rule: str
    since: str
    model: str | Mapping[str, Any]
    ask: Ask
    before: Any
    after: Any
    seq: int
    budget: int
    fields: Mapping[str, Any]

    @property
    def releases(self) -> tuple[str, str]:
        """The last release without the rule, and the first one with it."""
        first = next(number for number, each in enumerate(RELEASES) if planned_version(each) >= since(self.since))
        return RELEASES[first - 1], RELEASES[first]


def case(rule: str, since: str, model: str | Mapping[str, Any], ask: Ask, answers: tuple[Any, Any], **fields: Any) -> Case:
    """A case with the answers ``before`` and ``after``, about 8,192 tokens in 8 GiB unless ``fields`` says otherwise."""
    seq, budget = fields.pop("seq", 8192), fields.pop("budget", 8 * GIB)
    return Case(rule, since, model, ask, answers[0], answers[1], seq, budget, fields)


def answer(asked: Case, version: str) -> Any:
    """What the plan of a release answers."""
    try:
        context = opened(asked.model, seq=asked.seq, version=version, **asked.fields)
        pool = context.pool(asked.budget).value
    except (UnsupportedError, UsageError) as error:
        expected = asked.before if version == asked.releases[0] else asked.after
        told = isinstance(expected, Refused) and expected.says in error.message
        return expected if told else Refused(error.message)
    assert pool is not None
    return asked.ask(context, pool)


def block_bytes(_: VllmOccupancy, pool: PoolInfo) -> int | None:
    """Bytes of a block on a rank."""
    return pool.bytes_per_block


def block_size(_: VllmOccupancy, pool: PoolInfo) -> int | None:
    """Tokens in a block."""
    return pool.block_size


def needed(_: VllmOccupancy, pool: PoolInfo) -> int | None:
    """The bytes of a request by the check before start-up."""
    return pool.needed_bytes


def tokens(_: VllmOccupancy, pool: PoolInfo) -> int | None:
    """The log's tokens."""
    return pool.tokens


def fits(_: VllmOccupancy, pool: PoolInfo) -> bool:
    """Whether it starts."""
    return pool.fits


def counts(context: VllmOccupancy, _: PoolInfo) -> list[int]:
    """The layers of each group."""
    return [group.count for group in context.groups]


def pages(context: VllmOccupancy, _: PoolInfo) -> list[int | None]:
    """The bytes of a page of each group."""
    return [group.page_bytes for group in context.groups]


def blocks(context: VllmOccupancy, _: PoolInfo) -> list[int]:
    """The blocks of a request in each group."""
    return [group.blocks_per_request for group in context.groups]


def state_blocks(context: VllmOccupancy, pool: PoolInfo) -> tuple[int | None, set[int]]:
    """Tokens in a block, and the blocks of a request in groups of states."""
    return pool.block_size, {group.blocks_per_request for group in context.groups if group.kind == "state"}


def noted(context: VllmOccupancy, _: PoolInfo) -> set[str]:
    """Whether a note says that V1 runs only if it is asked for."""
    return {note.code for note in context.notes} & {"engine-asked"}


def batched_tokens(context: VllmOccupancy, _: PoolInfo) -> int:
    """Tokens in a batch."""
    return context.settings.batched_tokens


def profiled(context: VllmOccupancy, _: PoolInfo) -> int:
    """Bytes of the activations that the profile run sees."""
    settings = context.settings
    run = ProfileRun(
        version=settings.version,
        parallel=context.setup.parallel,
        seq=context.tokens,
        tokens=settings.batched_tokens,
        rows=settings.sequences,
        element_bytes=settings.element_bytes,
        quantized=False,
    )
    return activation_parts(context.model, run)[0].expected


def told(pattern: str) -> Ask:
    """What the error says at the group of the pattern."""

    def ask(_: VllmOccupancy, pool: PoolInfo) -> str | None:
        found = re.search(pattern, pool.message or "")
        return None if found is None else found[1]

    return ask


@lru_cache(maxsize=8)
def small(heads: int, window: int | None = None) -> ModelSpec:
    """A draft of two layers with heads of 128, windowed or not."""
    name = "Llama" if window is None else "Mistral"
    return load_model(
        {
            "architectures": [f"{name}ForCausalLM"],
            "model_type": name.lower(),
            "num_hidden_layers": 2,
            "hidden_size": heads * 128,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": 128,
            "vocab_size": 1000,
            "intermediate_size": 64,
            "max_position_embeddings": 4096,
            "sliding_window": window,
            "torch_dtype": "bfloat16",
        }
    )


HEADS_BY_LAYER: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "deci",
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads_per_layer": [4, 2, 2, 1],
        "vocab_size": 1000,
        "intermediate_size": 64,
        "max_position_embeddings": 32_768,
        "torch_dtype": "bfloat16",
    }
)
"""Four layers with 4, 2, 2 and 1 key/value heads of 128."""


def mixed(pattern: str) -> dict[str, Any]:
    """A model whose layers have a window (``s``) or not (``f``), with 4 key/value heads of 128."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": len(pattern),
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 1000,
        "intermediate_size": 64,
        "max_position_embeddings": 32_768,
        "sliding_window": 1024,
        "torch_dtype": "bfloat16",
        "layer_types": ["sliding_attention" if each == "s" else "full_attention" for each in pattern],
    }
