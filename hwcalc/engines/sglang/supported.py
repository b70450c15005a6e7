"""What SGLang 0.5.23 refuses, and what kvplan has no rules for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_on
from hwcalc.engines.sglang.classes import CLASSES
from hwcalc.engines.sglang.opened import SglangOpened
from hwcalc.engines.sglang.settings import FOUR_BITS
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import CrossAttention, FullAttention, NoCache, SlidingAttention
from hwcalc.model import Note

__all__ = ["check_supported"]

_OWN_CACHES: Final = ("Inkling", "Zaya", "Glm5Next", "Dots3Note", "Qwen4Exp")
"""Beginnings of the names of classes whose caches kvplan does not know yet."""
_VENDORS: Final = ("nvidia", "amd")


def check_supported(opened: SglangOpened) -> Noted[None]:
    """Raise an error for a model or a request that SGLang refuses, or that kvplan has no rules for. Notes say what is assumed."""
    model, request, own = opened.model, opened.request, opened.own
    name = model.architecture
    plain = all(isinstance(group.kind, FullAttention | SlidingAttention | NoCache) for group in model.stack.groups)
    if name is not None and name not in CLASSES and not plain:
        raise UnsupportedError(f"SGLang 0.5.23 has no class {name}.", hint="Use: --engine reference, or another engine")
    if name is not None and name.startswith(_OWN_CACHES):
        raise UnsupportedError(
            f"SGLang keeps caches of its own for {name}, which kvplan does not know yet.", hint="Use: --engine reference"
        )
    if any(isinstance(group.kind, CrossAttention) for group in model.stack.groups):
        raise UnsupportedError("kvplan has no rules for the encoder's keys and values in SGLang.", hint="Use: --engine reference")
    if request.sharing.beams > 1:
        raise UnsupportedError("SGLang has no beam search.", hint="Leave out --beams, or use: --samples")
    if request.parallel.dcp > 1:
        raise UnsupportedError("kvplan has no rules for SGLang's decode context parallelism.", hint="Leave out --dcp")
    if is_on(request.options.get("enable_dp_attention")) and request.parallel.pp > 1:
        raise UsageError("enable_dp_attention: replicas of one group have no pipeline stages here.", hint="Leave out --pp")
    if own.swa_ratio is None and own.own_requests is None:
        raise UsageError("Window tokens by requests need their number.", hint="Give: --engine-option max_running_requests=N")
    opened.compressed or opened.layout  # noqa: B018 - refuses kinds without a rule
    return Noted(None, tuple(_notes(opened)))


def _notes(opened: SglangOpened) -> Iterator[Note]:
    gpu, own = opened.request.hardware.gpu, opened.own
    if gpu is None:
        message = (
            "No GPU given: what SGLang sets by model and accelerator (max_running_requests, the strategy of states) is left as the options "
            "say, and kernels are those of an H100. Set it with --gpu."
        )
        yield Note(code="default-gpu", message=message)
    elif gpu.vendor.lower() not in _VENDORS:
        raise UnsupportedError(f"SGLang's rules for {gpu.name} are not known.", hint="Known: NVIDIA and AMD GPUs.")
    elif gpu.vendor.lower() != "nvidia":
        yield Note(code="not-cuda", message="SGLang's rules for NVIDIA GPUs are used; other kernels may choose other pages.")
    name = opened.model.architecture
    if name is not None and name not in CLASSES:
        message = f"SGLang 0.5.23 has no class {name}: it runs the model by transformers' own code, if that has it."
        yield Note(code="not-its-own-class", message=message)
    if own.kv_dtype in FOUR_BITS:
        message = f"KV dtype {own.kv_dtype}: one layout of scales is counted; kernels that read two add as much again."
        yield Note(code="one-scale-layout", message=message)
    if own.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {own.dp} replicas of attention.")
