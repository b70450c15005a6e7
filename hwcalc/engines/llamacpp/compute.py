"""The buffers of a pass on each device: compute buffers, and the logits that the host keeps for the caller."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.llamacpp.assignment import ON_HOST, Assignment
from hwcalc.engines.llamacpp.graph import (
    FLOAT,
    OF_THE_HOST,
    PIPELINE_COPIES,
    Moment,
    Part,
    gpu_moments,
    host_moments,
    layer_cache_bytes,
    output_bytes,
)
from hwcalc.engines.llamacpp.sums import Sum
from hwcalc.engines.steps import Step, step
from hwcalc.model import Definition
from hwcalc.profiles.llamacpp import llamacpp_profile

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.opened import LlamacppOpened
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.profiles.estimate import Estimate

__all__ = [
    "compute_buffer",
    "copies_of",
    "device_buffers",
    "helps",
    "host_buffer",
    "host_moments_of",
    "moments_of",
    "output_buffer",
    "part_of",
    "whole_copies",
]


_ALL_OF_HOST: Final = Part(alone=True, output=False)


def device_buffers(opened: LlamacppOpened, assignment: Assignment, device: int) -> tuple[BudgetPart, ...]:
    """What a device needs for a pass; ``device`` is the number of a GPU, or :data:`~...assignment.ON_HOST`."""
    read, one = opened.hparams, opened.settings
    if device != ON_HOST:
        part = part_of(opened, assignment, device)
        return () if part is None else (_fullest(moments_of(opened, part), one),)
    helper = opened.gpus > 0 and helps(opened)
    if not helper and all(place == ON_HOST for place in (*assignment.blocks, assignment.output)):
        return (compute_buffer(read, one, Part(alone=True)), output_buffer(read, one))
    partly = ON_HOST in assignment.blocks or bool(assignment.experts_on_host) or bool(assignment.largest_moved)
    beside = _fullest(host_moments_of(opened, copies_of(opened, assignment)), one)
    if partly:
        beside = _partly(beside, _fullest(moments_of(opened, _ALL_OF_HOST), one), helped=helper)
    return (beside, output_buffer(read, one))


def moments_of(opened: LlamacppOpened, part: Part) -> tuple[tuple[Moment, Sum], ...]:
    """The moments of a GPU that runs this part. All requests about a model share them, but for the sizes of copies from the host."""
    alike = part if part.from_host is None else part._replace(from_host=0, cache_from_host=0)
    key = ("llamacpp moments", alike, _fixed(opened))
    found: tuple[tuple[Moment, Sum], ...] = opened.model.once(key, lambda: gpu_moments(opened.hparams, opened.settings, alike))
    copied = dict(zip(OF_THE_HOST, (part.from_host or 0, part.cache_from_host), strict=True))
    if not any(copied.values()):
        return found
    return tuple(_with_copy(*pair, FLOAT * (copied.get(pair[0].name, 0) // FLOAT)) for pair in found)


def _with_copy(moment: Moment, size: Sum, copied: int) -> tuple[Moment, Sum]:
    return (moment._replace(fixed_bytes=moment.fixed_bytes + copied), size + copied) if copied else (moment, size)


def host_moments_of(opened: LlamacppOpened, copies: int) -> tuple[tuple[Moment, Sum], ...]:
    """The moments of the host beside GPUs that run everything, with inputs that are kept so often."""
    key = ("llamacpp host moments", copies, _fixed(opened))
    found: tuple[tuple[Moment, Sum], ...] = opened.model.once(key, lambda: host_moments(opened.hparams, opened.settings, copies))
    return found


def _fixed(opened: LlamacppOpened) -> tuple[object, ...]:
    """What moments depend on of the settings, beside the sizes that their sums name."""
    one = opened.settings
    return one.flash_attn, one.type_k.name, one.type_v.name, one.kv_unified, one.n_seq_max == 1, one.n_rs_seq


def helps(opened: LlamacppOpened) -> bool:
    """Whether a GPU multiplies large batches with weights that lie on the host, of which it makes a copy (``offload_op`` of a backend).

    A machine with one memory has no need of it.
    """
    gpu = opened.request.hardware.gpu
    return gpu is not None and not gpu.shares_host_memory


def part_of(opened: LlamacppOpened, assignment: Assignment, device: int) -> Part | None:
    """The part of the model that a GPU runs; ``None`` if it runs nothing."""
    gpus, hosted, gpu = assignment.gpus, assignment.layers(ON_HOST), opened.request.hardware.gpu
    copied = None
    # The scheduler asks the first GPU; without any layer it still multiplies large batches for the host.
    if device == (gpus or (0,))[0] and helps(opened) and (hosted or assignment.experts_on_host or assignment.largest_moved):
        largest = opened.largest_tensors
        sizes = [max(largest[number]) for number in hosted if number < len(largest)]
        sizes.append(assignment.largest_moved)
        copied = max([0, *sizes, *(largest[number][0] for number in assignment.experts_on_host if number < len(largest))])
    if device not in gpus and copied is None:
        return None
    return Part(
        first=bool(assignment.blocks) and assignment.blocks[0] in (device, ON_HOST),
        output=assignment.output == device,
        copies=copies_of(opened, assignment),
        from_host=copied,
        cache_from_host=0 if copied is None else layer_cache_bytes(opened.hparams, opened.settings, hosted),
        sixteen_bit=gpu is None or gpu.vendor.lower() in ("nvidia", "amd"),
    )


def copies_of(opened: LlamacppOpened, assignment: Assignment) -> int:
    """How often the inputs are kept: several GPUs that hold all of the model work on several batches (src/llama-context.cpp)."""
    return whole_copies(opened) if assignment.everything else 1


def whole_copies(opened: LlamacppOpened) -> int:
    """How often they are kept where GPUs hold everything.

    A GPU without a share of the layers counts, and so does an override that finds no tensor.
    """
    options = opened.place_options
    overridden = bool(options.overrides) or options.cpu_moe or options.n_cpu_moe > 0
    plain = options.split_mode == "layer" and not overridden and not options.kv_on_host
    return PIPELINE_COPIES if opened.request.gpus > 1 and plain else 1


def compute_buffer(read: Hparams, one: Settings, part: Part) -> BudgetPart:
    """The compute buffer of a device that runs a part of the model. Each end of the range has its own fullest moment."""
    return _fullest(gpu_moments(read, one, part), one)


def _fullest(moments: Iterable[tuple[Moment, Sum]], one: Settings) -> BudgetPart:
    errors = llamacpp_profile().compute
    sized = [(moment, size.at(one), errors[moment.name]) for moment, size in moments]
    moment, size, error = max(sized, key=lambda triple: triple[1] * triple[2].expected)
    low, high = max(size * error.low for _, size, error in sized), max(size * error.high for _, size, error in sized)
    return _estimated(moment, size, one, (floor(low), ceil(size * error.expected), ceil(high)), error)


def host_buffer(read: Hparams, one: Settings, copies: int = 1, *, partly: bool = False, helped: bool = True) -> BudgetPart:
    """The compute buffer of the host beside GPUs.

    ``partly``: it has weights of layers. ``helped``: a GPU multiplies large batches with them.
    """
    part = _fullest(host_moments(read, one, copies), one)
    return _partly(part, compute_buffer(read, one, _ALL_OF_HOST), helped=helped) if partly else part


def _partly(part: BudgetPart, whole: BudgetPart, *, helped: bool) -> BudgetPart:
    """The buffer of a host that has weights of layers, between that of one without any and that of one that runs them all."""
    return replace(part if helped else whole, low=part.low, high=max(part.high, whole.high))


def output_buffer(read: Hparams, one: Settings) -> BudgetPart:
    """The logits that the host keeps: of one token of each sequence at the start, of as many as a caller asks for later."""
    low, high = output_bytes(read, one.n_seq_max), output_bytes(read, max(one.n_seq_max, one.n_outputs))
    source = "src/llama-context.cpp output_reserve: n_vocab x n_seq_max numbers from the start, more when a batch asks for more"
    most = min(high, max(low, output_bytes(read, one.n_seq_max)))
    return BudgetPart(name="output buffer", section=Section.ACTIVATIONS, low=low, expected=most, high=high, source=source)


def _estimated(moment: Moment, size: int, one: Settings, ends: tuple[int, int, int], error: Estimate) -> BudgetPart:
    low, expected, high = ends
    return BudgetPart(
        name="compute buffer",
        section=Section.ACTIVATIONS,
        low=low,
        expected=expected,
        high=high,
        source=f"fullest moment: {moment.name}; {error.source}",
        definition=Definition.ESTIMATE,
        grows=None,
        steps=_steps(moment, size, one, ends, error),
    )


def _steps(moment: Moment, size: int, one: Settings, ends: tuple[int, int, int], error: Estimate) -> tuple[Step, ...]:
    terms: dict[str, float] = {"kept_inputs": size - moment.bytes.at(one)}
    products = []
    if per_token := moment.per_token.at(one):
        terms |= {"n_ubatch": one.n_ubatch, "numbers_per_token": per_token}
        products.append("n_ubatch x numbers_per_token")
    if moment.per_output:
        terms |= {"n_outputs": one.outputs, "numbers_per_output": moment.per_output}
        products.append("n_outputs x numbers_per_output")
    if fixed := moment.fixed_bytes.at(one):
        terms["other_numbers"] = fixed // FLOAT
        products.append("other_numbers")
    formula = f"kept_inputs + number_bytes x ({' + '.join(products)})"
    terms["number_bytes"] = FLOAT
    if error.expected != 1:
        formula, terms = f"({formula}) x measured_share", terms | {"measured_share": error.expected}
    return (step("compute_buffer", formula, ends, unit="bytes", **terms),)
