"""A request to mistral.rs, with what its options come to."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

from hwcalc.engines.base import Opened
from hwcalc.engines.mistral_rs.models import EXACT_WIDTHS, as_built, layer_types
from hwcalc.engines.model_dtypes import model_dtype
from hwcalc.engines.options import AUTO, integer_option, is_auto, parse_kv_dtype, share_option
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.formulas import DType, Stack

__all__ = ["FRACTION", "MOST_SEQUENCES", "MistralOpened", "Settings", "of_mistral", "slots_for"]

FRACTION: Final = 0.9
MOST_SEQUENCES: Final = 32
_BLOCK: Final = 32
_FIRST_SLOTS: Final = 9
_PAD_SLOTS: Final = 1
_FLOATS: Final = ("bf16", "fp16", "fp32")
_FP8: Final = ("f8e4m3", "fp8", "fp8_e4m3")
_OLDER: Final = {
    "pa_gpu_mem": "pa_memory_mb",
    "pa_gpu_mem_usage": "pa_memory_fraction",
    "pa_ctxt_len": "pa_context_len",
    "pa_blk_size": "pa_block_size",
}
"""Names of the Python package and of older servers -> those of ``mistralrs serve``."""


class Settings(Record):
    """What the options come to. ``memory_mb`` and ``context_tokens`` are null where a share of the GPU decides."""

    paged: bool
    block_size: int
    memory_mb: int | None
    context_tokens: int | None
    fraction: float
    most_sequences: int
    fp8: bool


class MistralOpened(Opened):
    """It also keeps the settings."""

    @cached_property
    def settings(self) -> Settings:
        """What the options come to. Raises :class:`~hwcalc.errors.UsageError` for what excludes each other."""
        return self.shared("settings", self._read)

    @property
    def plain_stack(self) -> Stack:
        """The layers as it allocates their caches: in Gemma 4 also those that read the cache of an earlier one."""
        stack, types = super().plain_stack, layer_types(self.model)
        if self.model.architecture not in EXACT_WIDTHS or len(types) != len(stack):
            return stack
        paged = self.settings.paged
        built: Stack = self.model.once(("mistral-rs layers", paged), lambda: as_built(stack, types, paged=paged))
        return built

    @cached_property
    def model_format(self) -> DType:
        """The dtype that the model runs in, in which a cache is kept by default."""
        requested = (self.request.dtype or AUTO).strip().lower()
        if requested in _FLOATS:
            parsed = parse_kv_dtype(requested)
            assert isinstance(parsed, tuple)
            return parsed[0]
        return model_dtype(self.model).value

    @property
    def slots(self) -> int:
        """State slots of each layer with a state: nine at first, and with pages one for every sequence that may run and one to pad."""
        if self.settings.paged:
            return max(_FIRST_SLOTS, self.settings.most_sequences + _PAD_SLOTS)
        return slots_for(self.request.replica_batch)

    def _read(self) -> Settings:
        options = _by_newest_names(self.request.options)
        return Settings(
            paged=_is_paged(self, options.get("paged_attn", AUTO)),
            block_size=int(options.get("pa_block_size", _BLOCK)),
            memory_mb=_whole(options, "pa_memory_mb"),
            context_tokens=_whole(options, "pa_context_len"),
            fraction=share_option(
                "pa_memory_fraction", options.get("pa_memory_fraction"), self.request.hardware.memory_utilization, FRACTION
            ),
            most_sequences=_whole(options, "max_seqs") or MOST_SEQUENCES,
            fp8=_is_fp8(self.request.dtype, options.get("pa_cache_type")),
        )


def slots_for(sequences: int) -> int:
    """State slots without pages, which double as sequences come."""
    slots = _FIRST_SLOTS
    while slots < sequences:
        slots *= 2
    return slots


def of_mistral(opened: Opened) -> MistralOpened:
    """An opened request of this engine, with its type."""
    return cast("MistralOpened", opened)


def _by_newest_names(options: object) -> dict[str, str]:
    """The options under the names of ``mistralrs serve``; no two that mean the same or exclude each other."""
    found: dict[str, str] = {}
    for name, value in cast("dict[str, str]", options).items():
        newest = _OLDER.get(name, name)
        if newest in found:
            raise UsageError(
                f"engine options {newest} and {name} are the same.", hint=f"Give one: --engine-option {newest}={value}"
            )
        found[newest] = value
    sizes = [name for name in ("pa_context_len", "pa_memory_mb", "pa_memory_fraction") if name in found]
    if len(sizes) > 1:
        raise UsageError(
            f"mistral.rs: the argument --{sizes[1].replace('_', '-')} cannot be used with --{sizes[0].replace('_', '-')}.",
            hint=f"Give one: --engine-option {sizes[0]}={found[sizes[0]]}",
        )
    return found


def _whole(options: dict[str, str], name: str) -> int | None:
    return None if name not in options else integer_option(1)(name, options[name])


def _is_paged(opened: Opened, mode: str) -> bool:
    """PagedAttention is on with CUDA, off on Metal unless it is asked for, and there is none elsewhere."""
    gpu = opened.request.hardware.gpu
    vendor = "nvidia" if gpu is None else gpu.vendor.lower()
    if vendor not in ("nvidia", "apple"):
        raise UnsupportedError(
            f"mistral.rs has no back end for {vendor} GPUs.", hint="It runs on CUDA and Metal: --gpu h100-sxm5-80gb"
        )
    return vendor == "nvidia" if mode == AUTO else mode == "on"


def _is_fp8(dtype: str | None, named: str | None) -> bool:
    spelled = (dtype or AUTO).strip().lower()
    if not is_auto(dtype) and spelled not in (*_FLOATS, *_FP8):
        raise UnknownNameError(
            f"--dtype {brief(spelled, 40)}: mistral.rs keeps its cache in the model's dtype or in f8e4m3.",
            option="dtype",
            hint=f"Use: --dtype {', '.join((AUTO, *_FLOATS, 'fp8'))}",
        )
    return spelled in _FP8 or named == "f8e4m3"
