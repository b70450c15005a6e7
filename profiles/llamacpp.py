"""What was measured of llama.cpp: how far the buffers that it reserves lie from the derived ones (``engines/llamacpp.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import record
from hwcalc.profiles.estimate import Estimate, estimate_of

__all__ = ["LlamacppProfile", "llamacpp_profile"]


class LlamacppProfile(Record):
    """The content of ``llamacpp.yaml``."""

    compute: Mapping[str, Estimate]
    """The reserved size as a multiple of the derived one, by the name of the fullest moment."""
    host_bandwidth: Estimate
    """GB/s."""


@lru_cache(maxsize=1)
def llamacpp_profile() -> LlamacppProfile:
    """The constants of llama.cpp."""
    data = record("engines", "llamacpp")
    return LlamacppProfile(
        compute={name: estimate_of(entry) for name, entry in data["compute"].items()},
        host_bandwidth=estimate_of(data["host_bandwidth"]),
    )
