"""Terms of the memory equation that engines share: what a process, its libraries and a forward pass take on a GPU.

The constants are in ``profiles/engines/runtime.yaml``. Every term is low, expected and high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.noted import Noted
from hwcalc.engines.rank_weights import RankBytes, Rules
from hwcalc.engines.request import Parallel
from hwcalc.engines.widths import layer_width
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.profiles.engines import Estimate, runtime_profile
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu, VisibleMemory

__all__ = [
    "chunk_tokens",
    "communication",
    "device_context",
    "estimated",
    "exact",
    "forward",
    "memory_of",
    "model_width",
    "ranked",
    "workspaces",
]

_CONTEXTS: Final = {"nvidia": "cuda", "amd": "rocm"}
"""Vendors whose contexts have been read, by their entry in the profile."""
_UNCOUNTED_WIDTH: Final = 12
"""Hidden widths in the widest layer of a model whose weights are not counted: a gated MLP of four times the hidden width."""


def estimated(name: str, section: Section, estimate: Estimate, times: int = 1) -> BudgetPart:
    """An estimate of the profile, or a multiple of it."""
    return BudgetPart(
        name=name,
        section=section,
        low=int(times * estimate.low),
        expected=int(times * estimate.expected),
        high=int(times * estimate.high),
        source=estimate.source,
    )


def exact(name: str, section: Section, size: int, source: str) -> BudgetPart:
    """A term that is known."""
    return BudgetPart(name=name, section=section, low=size, expected=size, high=size, source=source, definition=Definition.EXACT)


def ranked(name: str, section: Section, found: RankBytes) -> BudgetPart:
    """What a rank holds, as a term."""
    return BudgetPart(name=name, section=section, **vars(found))


def memory_of(gpu: Gpu) -> Noted[VisibleMemory | None]:
    """What programs see of the GPU; a note says how that was estimated, where it is not a reading."""
    from hwcalc.profiles.gpus import visible_memory

    memory = visible_memory(gpu)
    if memory is None:
        message = f"The memory of {gpu.id} is not known. Give a budget: --kv-memory."
        return Noted(None, (Note(code="gpu-memory-unknown", message=message),))
    if gpu.torch_total_mib is None:
        size = human_bytes(memory.expected_bytes)
        message = f"No reading of what programs see of {gpu.id} is known: {size}, {memory.basis}."
        return Noted(memory, (Note(code="gpu-memory-estimated", message=message),))
    if gpu.category == "unified":
        message = f"{gpu.id} shares its memory with the system: what is free depends on it. Give a budget with --kv-memory."
        return Noted(memory, (Note(code="unified-memory", message=message),))
    return Noted(memory)


def device_context(gpu: Gpu) -> BudgetPart:
    """What the driver keeps for the process, and what lazily loaded kernels add to it."""
    profile = runtime_profile()
    own = profile.estimate(f"context.{_CONTEXTS.get(gpu.vendor.lower(), 'other')}")
    more = profile.estimate("kernels")
    low, expected, high = (int(a + b) for a, b in ((own.low, more.low), (own.expected, more.expected), (own.high, more.high)))
    return BudgetPart(
        name="context",
        section=Section.OVERHEAD,
        low=low,
        expected=expected,
        high=high,
        source=f"{own.source}; {more.source}",
    )


def workspaces(gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Workspaces of cuBLAS, or of hipBLAS; none where there is neither."""
    if gpu.vendor.lower() not in _CONTEXTS:
        return ()
    name = "sm_90" if gpu.architecture == "sm_90" else "other"
    return (estimated("workspaces", Section.OVERHEAD, runtime_profile().estimate(f"workspace.{name}")),)


def communication(parallel: Parallel, gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Buffers for talking to the other GPUs; none on one."""
    parts, profile = [], runtime_profile()
    if parallel.tp * parallel.pp > 1:
        kind = "nvlink" if "nvlink" in str(gpu.interconnect.get("kind") or "").lower() else "pcie"
        parts.append(estimated("communication", Section.OVERHEAD, profile.estimate(f"communication.{kind}")))
    if parallel.ep > 1:
        parts.append(estimated("expert exchange", Section.OVERHEAD, profile.estimate("communication.expert_parallel")))
    return tuple(parts)


def chunk_tokens(opened: Opened) -> tuple[int, int, int]:
    """Tokens of one forward pass of a replica, where prompts go in pieces: never more than there are."""
    chunk = runtime_profile().estimate("activation.chunk_tokens")
    batch = opened.request.replica_batch
    low, expected, high = (min(batch * opened.tokens, max(batch, int(size))) for size in (chunk.low, chunk.expected, chunk.high))
    return low, expected, high


def model_width(rules: Rules, model: ModelSpec, parallel: Parallel) -> int:
    """Numbers per token that the widest layer holds inside on one rank; estimated from the hidden width if weights are not counted."""
    key = (rules.engine, "layer width", parallel.tp, parallel.dp, parallel.ep)
    width = model.once(key, lambda: layer_width(model, rules.rank(model, parallel)))
    return _UNCOUNTED_WIDTH * (model.hidden_size or 0) // parallel.tp if width is None else width


def forward(opened: Opened, tokens: tuple[int, int, int], rows: int, *, plain: str | None = None) -> BudgetPart:
    """One forward pass of so many tokens, and the logits of ``rows`` sequences.

    The hidden vector of every token a few times over, what the widest layer holds inside once, and the vocabulary for each
    sequence's next token: 4 tokens of hidden width 8 in 16 bits, 3 copies and an inside of 40, are 4 x 2 x (3 x 8 + 40) = 512 bytes.
    ``plain`` is the dtype that the model runs in; its own where it is not given.
    """
    model, parallel, rules, profile = opened.model, opened.request.parallel, opened.engine.weight_rules(), runtime_profile()
    copies, logit = profile.estimate("activation.hidden_copies"), profile.estimate("activation.logit_bytes")
    width, element_bytes = model_width(rules, model, parallel), rules.plain(model, plain).bits // 8
    logits = rows * -(-(model.vocab_size or 0) // (1 if rules.gathers_logits else parallel.tp))
    low, expected, high = (
        int(element_bytes * count * (many * (model.hidden_size or 0) + width) + logits * each)
        for count, many, each in zip(
            tokens,
            (copies.low, copies.expected, copies.high),
            (logit.low, logit.expected, logit.high),
            strict=True,
        )
    )
    said = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[2])))
    return BudgetPart(
        name="activations",
        section=Section.ACTIVATIONS,
        low=low,
        expected=expected,
        high=high,
        source=f"{said} tokens at once, {rows:,} rows of logits; {copies.source}",
    )
