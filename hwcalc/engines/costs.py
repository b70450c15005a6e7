"""Terms of the memory equation that engines share: what a process, its libraries and a forward pass take on a GPU.

Every term has a low, an expected and a high value. The constants are in ``profiles/engines/runtime.yaml``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.noted import Noted
from hwcalc.engines.steps import step
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.profiles.engines import runtime_profile
from hwcalc.profiles.estimate import Estimate
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.forms import Pass
    from hwcalc.engines.rank_weights import RankBytes, Rules
    from hwcalc.engines.setup import Parallel
    from hwcalc.profiles.gpus import VisibleMemory
    from hwcalc.profiles.hardware_file import Gpu

_CONTEXTS: Final = {"nvidia": "cuda", "amd": "rocm"}
"""Vendor -> the profile's entry for its context, where one was measured."""
_CONTEXT: Final = "driver_context + loaded_kernels"
_FORWARD: Final = "element_bytes x forward_tokens x (hidden_copies x hidden_size + inner_width) + logits x logit_bytes"
_UNCOUNTED_WIDTH: Final = 12
"""Width of the widest layer in hidden widths, if the weights are not counted: a gated MLP with an inner width of four."""


def estimated(name: str, section: Section, estimate: Estimate, times: int = 1) -> BudgetPart:
    """A term that is an estimate from the profile, or a multiple of one."""
    return BudgetPart(
        name=name,
        section=section,
        low=int(times * estimate.low),
        expected=int(times * estimate.expected),
        high=int(times * estimate.high),
        source=estimate.source,
    )


def exact(name: str, section: Section, size: int, source: str) -> BudgetPart:
    """A term that is known exactly."""
    return BudgetPart(name=name, section=section, low=size, expected=size, high=size, source=source, definition=Definition.EXACT)


def ranked(name: str, section: Section, size: RankBytes) -> BudgetPart:
    """A term from the bytes of a rank."""
    return BudgetPart(name=name, section=section, **asdict(size))


def memory_of(gpu: Gpu) -> Noted[VisibleMemory | None]:
    """The memory of the GPU that programs see. If nobody has read it, a note says how it was estimated."""
    from hwcalc.profiles.gpus import visible_memory

    memory = visible_memory(gpu)
    if memory is None:
        message = f"The memory of {gpu.id} is not known. Give a budget: --kv-memory."
        return Noted(None, (Note(code="gpu-memory-unknown", message=message),))
    if gpu.torch_total_mib is None and gpu.vendor == "apple":
        # A note on the hardware says it already.
        return Noted(memory)
    if gpu.torch_total_mib is None:
        return Noted(memory, (_estimated_memory(gpu.id, memory.expected_bytes, memory.basis),))
    if gpu.category == "unified":
        message = f"{gpu.id} shares its memory with the system: what is free depends on it. Give a budget with --kv-memory."
        return Noted(memory, (Note(code="unified-memory", message=message),))
    return Noted(memory)


@lru_cache(maxsize=64)
def _estimated_memory(gpu: str, size: int, basis: str) -> Note:
    message = f"Of the memory of {gpu} programs see about {human_bytes(size)}: {basis}. No measurement is known."
    return Note(code="gpu-memory-estimated", message=message)


def device_context(gpu: Gpu) -> BudgetPart:
    """Memory that the driver keeps for the process, and the kernels that are loaded into it later."""
    return _device_context(_CONTEXTS.get(gpu.vendor.lower(), "other"))


@lru_cache(maxsize=4)
def _device_context(name: str) -> BudgetPart:
    profile = runtime_profile()
    context = profile.estimate(f"context.{name}")
    kernels = profile.estimate("kernels")
    driver, loaded = ((one.low, one.expected, one.high) for one in (context, kernels))
    low, expected, high = (int(first + second) for first, second in zip(driver, loaded, strict=True))
    return BudgetPart(
        name="context",
        section=Section.OVERHEAD,
        low=low,
        expected=expected,
        high=high,
        source=f"{context.source}; {kernels.source}",
        steps=(step("context", _CONTEXT, (low, expected, high), driver_context=driver, loaded_kernels=loaded),),
    )


def workspaces(gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Workspaces of cuBLAS or hipBLAS; none on accelerators that have neither."""
    if gpu.vendor.lower() not in _CONTEXTS:
        return ()
    return _workspaces("sm_90" if gpu.architecture == "sm_90" else "other")


@lru_cache(maxsize=2)
def _workspaces(name: str) -> tuple[BudgetPart, ...]:
    return (estimated("workspaces", Section.OVERHEAD, runtime_profile().estimate(f"workspace.{name}")),)


def communication(parallel: Parallel, gpu: Gpu) -> tuple[BudgetPart, ...]:
    """Buffers for communication between GPUs; none for a single GPU."""
    return _communication(parallel.tp * parallel.pp > 1, parallel.ep > 1, _has_nvlink(gpu)) if parallel.gpus > 1 else ()


@lru_cache(maxsize=8)
def _communication(divided: bool, dealt: bool, nvlink: bool) -> tuple[BudgetPart, ...]:
    parts, profile = [], runtime_profile()
    if divided:
        kind = "nvlink" if nvlink else "pcie"
        parts.append(estimated("communication", Section.OVERHEAD, profile.estimate(f"communication.{kind}")))
    if dealt:
        parts.append(estimated("expert exchange", Section.OVERHEAD, profile.estimate("communication.expert_parallel")))
    return tuple(parts)


def _has_nvlink(gpu: Gpu) -> bool:
    return "nvlink" in str(gpu.interconnect.get("kind") or "").lower()


def chunk_tokens() -> tuple[int, int, int]:
    """The most tokens of one forward pass of a replica if prompts are processed in chunks: low, expected and high."""
    chunk = runtime_profile().estimate("activation.chunk_tokens")
    return int(chunk.low), int(chunk.expected), int(chunk.high)


def model_width(rules: Rules, model: ModelSpec, parallel: Parallel) -> int:
    """Numbers per token that the widest layer holds on one rank; estimated from the hidden width if the weights are not counted."""
    from hwcalc.engines.widths import layer_width

    key = (rules, "layer width", parallel)
    width = model.once(key, lambda: layer_width(model, rules.rank(model, parallel)))
    return _UNCOUNTED_WIDTH * (model.hidden_size or 0) // parallel.tp if width is None else width


def forward(
    opened: Occupancy, chunks: tuple[int | None, int | None, int | None], rows: int, *, dtype: str | None = None
) -> BudgetPart:
    """Activations of one forward pass of ``rows`` sequences, in ``chunks``, with the logits of each.

    Each token needs a few copies of its hidden vector and once the inner width of the widest layer; each sequence needs the logits of
    its next token. 4 tokens of hidden width 8 in 16 bits, with 3 copies and an inner width of 40, take 4 x 2 x (3 x 8 + 40) = 512
    bytes. ``dtype`` is the dtype that the model runs in; by default the model's own.
    """
    model, parallel, rules = opened.model, opened.parallel, opened.weight_rules()
    key = (rules, "forward passes", parallel, dtype, chunks)
    passes = lowest, most_likely, highest = model.once(key, lambda: _passes(model, parallel, rules, chunks, dtype))
    copies, logit = (runtime_profile().estimate(f"activation.{name}") for name in ("hidden_copies", "logit_bytes"))
    tokens = lowest.passed(opened.tokens, rows), most_likely.passed(opened.tokens, rows), highest.passed(opened.tokens, rows)
    low, expected, high = (one.at(opened.tokens, rows) for one in passes)
    token_range = " to ".join(f"{count:,}" for count in dict.fromkeys((tokens[0], tokens[2])))
    return BudgetPart(
        name="activations",
        section=Section.ACTIVATIONS,
        low=low,
        expected=expected,
        high=high,
        source=f"{token_range} tokens at once, {rows:,} rows of logits; {copies.source}",
        steps=(
            step(
                "activations",
                _FORWARD,
                (low, expected, high),
                element_bytes=most_likely.element_bytes,
                forward_tokens=tokens,
                hidden_copies=(copies.low, copies.expected, copies.high),
                hidden_size=model.hidden_size or 0,
                inner_width=model_width(rules, model, parallel),
                logits=rows * most_likely.logits,
                logit_bytes=(logit.low, logit.expected, logit.high),
            ),
        ),
        grows=(lowest, most_likely, highest),
    )


def _passes(
    model: ModelSpec, parallel: Parallel, rules: Rules, chunks: tuple[int | None, int | None, int | None], dtype: str | None
) -> tuple[Pass, Pass, Pass]:
    """The forward pass of a rank: low, expected and high."""
    from hwcalc.engines.forms import Pass

    copies, logit = (runtime_profile().estimate(f"activation.{name}") for name in ("hidden_copies", "logit_bytes"))
    width, element_bytes = model_width(rules, model, parallel), rules.weight_format(model, dtype).bits // 8
    logits = -(-(model.vocab_size or 0) // (1 if rules.gathers_logits else parallel.tp))

    def of(chunk: int | None, hidden_copies: float, logit_bytes: float) -> Pass:
        each = hidden_copies * (model.hidden_size or 0) + width
        return Pass(element_bytes=element_bytes, width=each, chunk=chunk, logits=logits, logit_bytes=logit_bytes)

    low, expected, high = chunks
    return of(low, copies.low, logit.low), of(expected, copies.expected, logit.expected), of(high, copies.high, logit.high)
