"""Settings of SGLang that take less memory, and what it keeps once for several sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.policies import Support
from hwcalc.engines.saving import Cost, Saving, computes_fp8

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy

_TENTH: Final = "0.1"


def savings(opened: SglangOccupancy) -> Iterator[Saving]:
    """A smaller pool of windows, states without copies, and formats of eight bits."""
    own = opened.settings
    if own.swa_ratio is not None and opened.window is not None and own.swa_ratio > float(_TENTH):
        yield Saving(Cost.CACHE, "a smaller pool of windows", {"engine_options": {"swa_full_tokens_ratio": _TENTH}})
    if opened.slots > 1:
        yield Saving(Cost.CACHE, "a smaller pool of states", {"engine_options": {"mamba_full_memory_ratio": _TENTH}})
    if own.element_bytes > 1 and opened.compressed is None:
        yield Saving(Cost.CACHE, "fp8_e4m3 cache", {"dtype": "fp8_e4m3"})
    if computes_fp8(opened.request.hardware.gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})


def sharing_support(opened: SglangOccupancy) -> Support:
    """The radix cache keeps common beginnings once, in whole pages; states are those of one sequence."""
    if not opened.settings.radix:
        return Support(offered=False, how="disable_radix_cache: every sequence is kept by itself")
    if opened.compressed is None and opened.layout.has_states:
        return Support(
            offered=False, how="states are kept for each sequence; kvplan counts no prefix that their copies allow to share"
        )
    return Support(offered=True, how=f"the radix cache: common tokens are kept once, in pages of {opened.settings.page_size:,}")
