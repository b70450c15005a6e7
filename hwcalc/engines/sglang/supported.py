"""What SGLang 0.5.23 refuses, and what kvplan has no rules for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.capability import check_generation
from hwcalc.engines.heads import check_heads
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_on
from hwcalc.engines.sglang.backends import is_blackwell
from hwcalc.engines.sglang.classes import CLASSES
from hwcalc.engines.sglang.models import COPIES_STATES, is_sparse_latent
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import FullAttention, NoCache, SlidingAttention
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy

_OWN_CACHES: Final = ("Inkling", "Zaya", "Glm5Next", "Dots3Note", "Qwen4Exp")
"""Beginnings of the names of classes whose caches kvplan does not know yet."""
_VENDORS: Final = ("nvidia", "amd")
_OLDEST_GPU: Final = 75


def check_class(model: ModelSpec) -> None:
    """Raise an error for a class that SGLang does not have, and whose layers transformers' own code cannot run in its place."""
    name = model.architecture
    plain = all(isinstance(group.kind, FullAttention | SlidingAttention | NoCache) for group in model.stack.groups)
    if name is not None and name not in CLASSES and not plain:
        raise UnsupportedError(f"SGLang 0.5.23 has no class {name}.", hint="Use: --engine reference, or another engine")


def check_supported(opened: SglangOccupancy) -> Noted[None]:
    """Raise an error for a model or a request that SGLang refuses, or that kvplan has no rules for. Notes say what is assumed."""
    model, request, own = opened.model, opened.request, opened.settings
    name = model.architecture
    if name is not None and name.startswith(_OWN_CACHES):
        raise UnsupportedError(
            f"SGLang keeps caches of its own for {name}, which kvplan does not know yet.", hint="Use: --engine reference"
        )
    if request.sharing.beams > 1:
        raise UnsupportedError("SGLang has no beam search.", hint="Leave out --beams, or use: --samples")
    if request.policy is not None:
        raise UnsupportedError("SGLang has no cache policies.", hint="Leave out --policy, or use --engine reference")
    if request.parallel.dcp > 1:
        raise UnsupportedError("kvplan has no rules for SGLang's decode context parallelism.", hint="Leave out --dcp")
    if is_on(request.options.get("enable_dp_attention")) and request.parallel.pp > 1:
        raise UsageError("enable_dp_attention: replicas of one group have no pipeline stages here.", hint="Leave out --pp")
    if own.swa_ratio is None and own.own_requests is None:
        raise UsageError("Window tokens by requests need their number.", hint="Give: --engine-option max_running_requests=N")
    for group in opened.plain_stack.groups:
        check_heads("SGLang", group.kind, own.tp)
    _check_kernels(opened)
    opened.compressed or opened.layout  # noqa: B018 - refuses kinds without a rule
    return Noted(None, tuple(_notes(opened)))


def _check_kernels(opened: SglangOccupancy) -> None:
    """Raise an error where SGLang has no kernel for a format on the GPU, or no states for a strategy."""
    own, gpu, options = opened.settings, opened.request.hardware.gpu, opened.request.options
    if is_sparse_latent(opened.model) and own.kv_dtype not in ("bf16", "fp16", "fp8_e4m3"):
        raise UnsupportedError(
            f"--dtype {own.kv_dtype}: DeepSeek DSA only supports bfloat16 or fp8_e4m3.", hint="Use: --dtype bf16 or fp8_e4m3"
        )
    strategy = options.get("mamba_scheduler_strategy", "auto")
    if strategy.startswith("extra_buffer") and own.radix:
        name = opened.model.architecture or opened.model.id
        if opened.compressed is not None or not opened.layout.has_states:
            raise UsageError(f"mamba_scheduler_strategy {strategy} needs mamba state, got {name}.", hint="Leave it out")
        if gpu is not None and opened.model.architecture not in COPIES_STATES:
            raise UsageError(f"extra_buffer is not supported for {name}.", hint="Use: mamba_scheduler_strategy=no_buffer")
        if strategy.endswith("lazy") and not own.overlap:
            raise UsageError("Lazy extra buffer requires overlap schedule.", hint="Use: mamba_scheduler_strategy=extra_buffer")
    if gpu is None or gpu.vendor.lower() != "nvidia":
        return
    if own.kv_dtype in ("mxfp8", "nvfp4") and not is_blackwell(own.major):
        other = "fp8_e4m3" if own.kv_dtype == "mxfp8" else "fp4_mx_block16"
        raise UnsupportedError(
            f"--dtype {own.kv_dtype}: SGLang needs a Blackwell GPU for it, not {gpu.name}.", hint=f"Use: --dtype {other}"
        )


def _notes(opened: SglangOccupancy) -> Iterator[Note]:
    gpu, own = opened.request.hardware.gpu, opened.settings
    if gpu is None:
        message = (
            "No GPU given: what SGLang sets by model and accelerator (max_running_requests, the strategy of states) is left as the options "
            "say, and kernels are those of an H100. Set it with --gpu."
        )
        yield Note(code="default-gpu", message=message)
    elif gpu.vendor.lower() not in _VENDORS:
        raise UnsupportedError(f"SGLang's rules for {gpu.name} are not known.", hint="Known: NVIDIA and AMD GPUs.")
    check_generation(gpu, _OLDEST_GPU, "SGLang only supports sm75 and above.")
    if gpu is not None and gpu.vendor.lower() != "nvidia":
        yield Note(code="not-cuda", message="SGLang's rules for NVIDIA GPUs are used; other kernels may choose other pages.")
    name = opened.model.architecture
    if name is not None and name not in CLASSES:
        message = f"SGLang 0.5.23 has no class {name}: it runs the model by transformers' own code, if that has it."
        yield Note(code="not-its-own-class", message=message)
    if own.kv_dtype == "nvfp4" and gpu is None:
        message = "KV dtype nvfp4: prompts are counted as unpacked in fp8, which kernels of a B200 do without. Set it with --gpu."
        yield Note(code="one-scale-layout", message=message)
    if own.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {own.dp} replicas of attention.")
