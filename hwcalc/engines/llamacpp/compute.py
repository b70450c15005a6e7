"""The buffers of a pass on each device: compute buffers, and the logits that the host keeps for the caller."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Final

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.llamacpp.assignment import ON_HOST, Assignment
from hwcalc.engines.llamacpp.graph import (
    PIPELINE_COPIES,
    Moment,
    Part,
    fullest,
    host_bytes,
    input_bytes,
    output_bytes,
    outputs,
)
from hwcalc.engines.steps import step
from hwcalc.profiles.llamacpp import compute_errors

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.opened import LlamacppOpened
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams

__all__ = ["compute_buffer", "device_buffers", "host_buffer", "output_buffer"]

_COMPUTE: Final = "compute buffer"


def device_buffers(opened: LlamacppOpened, assignment: Assignment, device: int) -> tuple[BudgetPart, ...]:
    """What a device needs for a pass; ``device`` is the number of a GPU, or :data:`~...assignment.ON_HOST`."""
    read, one = opened.hparams, opened.settings
    gpus = sorted({*assignment.blocks, assignment.output} - {ON_HOST})
    if device != ON_HOST:
        return (compute_buffer(read, one, _part(opened, assignment, device, gpus)),) if device in gpus else ()
    if not gpus:
        return (compute_buffer(read, one, Part()), output_buffer(read, one))
    copies = _copies(opened, assignment, gpus)
    return (host_buffer(read, one, copies, partly=ON_HOST in assignment.blocks), output_buffer(read, one))


def _part(opened: LlamacppOpened, assignment: Assignment, device: int, gpus: list[int]) -> Part:
    gpu = opened.request.hardware.gpu
    return Part(
        first=bool(assignment.blocks) and assignment.blocks[0] in (device, ON_HOST),
        output=assignment.output == device,
        copies=_copies(opened, assignment, gpus),
        sixteen_bit=gpu is None or gpu.vendor.lower() in ("nvidia", "amd"),
    )


def _copies(opened: LlamacppOpened, assignment: Assignment, gpus: list[int]) -> int:
    """How often the inputs are kept: several GPUs that hold all of the model work on several batches (src/llama-context.cpp)."""
    options = opened.place_options
    plain = options.split_mode == "layer" and not options.overrides and not options.kv_on_host
    return PIPELINE_COPIES if len(gpus) > 1 and assignment.everything and plain else 1


def compute_buffer(read: Hparams, one: Settings, part: Part) -> BudgetPart:
    """The compute buffer of a device that runs a part of the model."""
    moment, size = fullest(read, one, part)
    kept = size - moment.bytes(one.n_ubatch, outputs(one))
    return _estimated(_COMPUTE, size, moment.name, _steps(moment, one, kept))


def _steps(moment: Moment, one: Settings, kept: int) -> dict[str, int]:
    terms = {"kept_inputs": kept, "n_ubatch": one.n_ubatch, "numbers_per_token": moment.per_token}
    if moment.per_output:
        terms |= {"n_outputs": outputs(one), "numbers_per_output": moment.per_output}
    return terms | ({"other_numbers": moment.fixed} if moment.fixed else {})


def host_buffer(read: Hparams, one: Settings, copies: int = 1, *, partly: bool = False) -> BudgetPart:
    """The compute buffer of the host beside GPUs; ``partly``: some layers run on the host."""
    size = host_bytes(read, one, copies)
    terms = {"kept_inputs": copies * input_bytes(read, one), "n_ubatch": one.n_ubatch, "numbers_per_token": 0}
    terms["numbers_per_token"] = (size - terms["kept_inputs"]) // (4 * one.n_ubatch)
    part = _estimated(_COMPUTE, size, "host", terms)
    if not partly:
        return part
    whole = compute_buffer(read, one, Part(output=False))
    return BudgetPart(
        name=_COMPUTE,
        section=Section.ACTIVATIONS,
        low=part.low,
        expected=part.expected,
        high=max(part.high, whole.high),
        source=part.source,
    )


def output_buffer(read: Hparams, one: Settings) -> BudgetPart:
    """The logits that the host keeps: of one token of each sequence at the start, of as many as a caller asks for later."""
    low, high = output_bytes(read, one.n_seq_max), output_bytes(read, max(one.n_seq_max, one.n_outputs))
    source = "src/llama-context.cpp output_reserve: n_vocab x n_seq_max numbers from the start, more when a batch asks for more"
    most = min(high, max(low, output_bytes(read, one.n_seq_max)))
    return BudgetPart(name="output buffer", section=Section.ACTIVATIONS, low=low, expected=most, high=high, source=source)


def _estimated(name: str, size: int, moment: str, terms: dict[str, int]) -> BudgetPart:
    error = compute_errors()[moment]
    low, expected, high = floor(size * error.low), ceil(size * error.expected), ceil(size * error.high)
    formula = "kept_inputs + 4 x (n_ubatch x numbers_per_token)"
    if "numbers_per_output" in terms:
        formula = "kept_inputs + 4 x (n_outputs x numbers_per_output)"
        terms.pop("numbers_per_token")
        terms.pop("n_ubatch")
    elif "other_numbers" in terms:
        formula = "kept_inputs + 4 x (n_ubatch x numbers_per_token + other_numbers)"
    return BudgetPart(
        name=name,
        section=Section.ACTIVATIONS,
        low=low,
        expected=expected,
        high=high,
        source=f"fullest moment: {moment}; {error.source}",
        steps=(step(name.replace(" ", "_"), formula, (low, expected, high), **terms),),
    )
