"""A request to TGI, with what its options and the model come to.

Read, not run, in 3.3.6-dev0 (commit db931fcf42da): ``launcher/src/main.rs`` resolve_attention,
``server/text_generation_server/models/{globals,flash_causal_lm}.py``, ``layers/attention/kv_cache.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, cast

from hwcalc.engines.base import Opened
from hwcalc.engines.options import AUTO, integer_option, is_on, number_option, share_option
from hwcalc.engines.tgi.launcher import head_width, prefill_tokens
from hwcalc.engines.tgi.models import is_bf16, is_native, published_format
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import AttentionKind, Mamba1
from hwcalc.formulas.record import Record

__all__ = ["BLOCKS", "FRACTION", "REQUESTS", "WIGGLE_ROOM", "Settings", "TgiOpened", "of_tgi", "wiggle_room"]

BLOCKS: Final[Mapping[str, int]] = MappingProxyType(
    {"flashinfer": 1, "flashdecoding": 256, "paged": 16, "flashdecoding-ipex": 64}
)
"""Back end -> tokens in a block."""
FRACTION: Final = 1.0
WIGGLE_ROOM: Final = 0.9
REQUESTS: Final = 128
_LAUNCHER_ROOM: Final = 0.95
_FLASHINFER_WIDTHS: Final = (64, 128, 256)
_NO_FLASHINFER: Final = frozenset({"falcon", "deepseek_v2"})
_AMPERE: Final = 8


class Settings(Record):
    """What the options come to. ``share`` is that of the whole GPU: ``cuda_memory_fraction`` x ``TGI_WIGGLE_ROOM``."""

    attention: str
    block_size: int
    share: float
    prefix_caching: bool
    prefill_tokens: int
    most_requests: int


class TgiOpened(Opened):
    """It also keeps the settings."""

    @cached_property
    def settings(self) -> Settings:
        """What the options come to."""
        return self.shared("settings", self._read)

    @property
    def pooled(self) -> bool:
        """Whether there is a pool of blocks: not for Mamba, whose states are made for each batch."""
        return not any(isinstance(group.kind, Mamba1) for group in self.plain_stack.groups)

    @property
    def model_format(self) -> str:
        """The dtype that TGI loads a model in without ``--dtype``, whatever its config says (``default_dtype`` in models/__init__.py)."""
        return "bf16" if is_bf16(self.model) else "fp16"

    @property
    def published_format(self) -> str | None:
        """The format of the cache that the checkpoint names, where TGI heeds it: with flashinfer on CUDA, and in its own classes."""
        heeded = self.settings.attention == "flashinfer" and self.vendor == "nvidia" and is_native(self.model)
        return published_format(self.model) if heeded else None

    @property
    def vendor(self) -> str:
        """The maker of the GPU; NVIDIA where none is named."""
        gpu = self.request.hardware.gpu
        return "nvidia" if gpu is None else gpu.vendor.lower()

    def _read(self) -> Settings:
        options = self.request.options
        attention = options.get("attention", AUTO)
        if attention == AUTO:
            attention = _attention(self)
        cached = options.get("prefix_caching")
        return Settings(
            attention=attention,
            block_size=BLOCKS[attention],
            share=_fraction(self) * _room(options, WIGGLE_ROOM),
            prefix_caching=_caches_prefixes(self, attention) if cached is None else is_on(cached),
            prefill_tokens=_whole(options, "max_batch_prefill_tokens")
            or prefill_tokens(
                self.model, self.request.hardware.gpu, self.request.parallel.tp, _fraction(self) * _room(options, _LAUNCHER_ROOM)
            ),
            most_requests=_whole(options, "max_concurrent_requests") or REQUESTS,
        )


def of_tgi(opened: Opened) -> TgiOpened:
    """An opened request of this engine, with its type."""
    return cast("TgiOpened", opened)


def _whole(options: Mapping[str, str], name: str) -> int | None:
    return None if name not in options else integer_option(1)(name, options[name])


def _room(options: Mapping[str, str], default: float) -> float:
    named = options.get("wiggle_room")
    return default if named is None else wiggle_room("wiggle_room", named)


def wiggle_room(name: str, value: str) -> float:
    """A share that is neither nothing nor all."""
    share = number_option(1)(name, value)
    if not 0 < share < 1:
        raise UsageError(
            f"TGI: assert {'TGI_WIGGLE_ROOM > 0' if share == 0 else 'TGI_WIGGLE_ROOM < 1'}", hint="Use: wiggle_room=0.95"
        )
    return share


def _fraction(opened: TgiOpened) -> float:
    name = "cuda_memory_fraction"
    return share_option(name, opened.request.options.get(name), opened.request.hardware.memory_utilization, FRACTION)


def _attention(opened: TgiOpened) -> str:
    """The back end that the launcher chooses: flashinfer, or another where the width of a head or the model is none of its."""
    if opened.vendor == "amd":
        # The images for ROCm set ATTENTION=paged.
        return "paged"
    if opened.vendor == "intel":
        return "flashdecoding-ipex"
    if opened.vendor != "nvidia":
        raise UnsupportedError(f"TGI has no back end for {opened.vendor} GPUs.", hint="Use: --gpu h100-sxm5-80gb")
    if _has_flashinfer(opened) and opened.model.model_type not in _NO_FLASHINFER:
        return "flashinfer"
    gpu = opened.request.hardware.gpu
    capability = None if gpu is None else gpu.compute_capability
    return "paged" if capability is not None and int(capability.partition(".")[0]) < _AMPERE else "flashdecoding"


def _caches_prefixes(opened: TgiOpened, attention: str) -> bool:
    """Prefix caching is on with flashinfer, unless there are adapters or the model sees pictures."""
    pictures = opened.model.facts is not None and "vision_config" in opened.model.config
    if attention == "paged" or opened.request.lora is not None or pictures:
        return False
    return _has_flashinfer(opened)


def _has_flashinfer(opened: TgiOpened) -> bool:
    """By the width of a head as the launcher reads it; dimensions by hand have no config that it could read."""
    if opened.model.architecture is None:
        widths = {group.kind.head_dim for group in opened.plain_stack.groups if isinstance(group.kind, AttentionKind)}
        return widths <= set(_FLASHINFER_WIDTHS)
    return head_width(opened.model.config) in _FLASHINFER_WIDTHS
