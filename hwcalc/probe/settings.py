"""Read the settings of PyTorch's caching allocator that change bytes from ``PYTORCH_ALLOC_CONF``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import asdict

from hwcalc.formulas.record import Record
from hwcalc.units import MIB

__all__ = ["VARIABLES", "AllocatorSettings", "environment_settings", "environment_words", "parse_settings"]

VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The variables that torch 2.13 reads, older names first. The first one that is set decides, even if it is empty."""
_UNCACHED: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_WITHOUT_EFFECT: Final = frozenset(
    {
        "garbage_collection_threshold",
        "per_process_memory_fraction",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_use_background_threads",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_free_catch_all",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_max_power2_size_mb",
    }
)
"""Settings that do not change the bytes of tensors that stay allocated."""
_LONGEST: Final = 4096
_LEAST_LIMIT_MB: Final = 20
"""torch refuses smaller values."""


class AllocatorSettings(Record):
    """Settings of the allocator. ``unmodelled`` lists settings that the model does not know; with any, predictions are not exact."""

    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_power2_divisions: int = 1
    unmodelled: tuple[str, ...] = ()


def environment_words(environment: Mapping[str, str]) -> str:
    """The value of the variable that decides; empty if none is set.

    >>> environment_words({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    'max_split_size_mb:64'
    """
    return next((environment[name] for name in VARIABLES if name in environment), "")


def environment_settings(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings that torch would read from these environment variables."""
    settings = parse_settings(environment_words(environment))
    if _UNCACHED in environment:
        return AllocatorSettings(**asdict(settings) | {"unmodelled": (*settings.unmodelled, _UNCACHED)})
    return settings


def parse_settings(text: str) -> AllocatorSettings:
    """Parse ``expandable_segments:True,large_segment_size_mb:40``. Settings that are not understood go into ``unmodelled``.

    >>> parse_settings("expandable_segments:True").expandable_segments
    True
    >>> parse_settings("backend:cudaMallocAsync").unmodelled
    ('backend:cudaMallocAsync',)
    """
    values: dict[str, object] = {}
    unmodelled: list[str] = []
    for word in _words(text[:_LONGEST]):
        name, _, value = (part.strip() for part in word.partition(":"))
        read = _value(name, value)
        if read is None:
            unmodelled.append(word[:80])
        else:
            values |= read
    return AllocatorSettings(**values, unmodelled=tuple(unmodelled))  # type: ignore[arg-type]


def _words(text: str) -> list[str]:
    """Split at commas, except inside brackets."""
    words, depth, start = [], 0, 0
    for place, sign in enumerate(text + ","):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth <= 0:
            words.append(text[start:place].strip())
            start = place + 1
    rest = text[start:].strip()
    return [word for word in (*words, rest) if word]


def _value(name: str, value: str) -> dict[str, object] | None:
    """The setting as a field; an empty dict if it does not change bytes; ``None`` if it is not understood."""
    if name in _WITHOUT_EFFECT or (name == "backend" and value == "native"):
        return {}
    if name == "expandable_segments" and value in {"True", "False", "true", "false"}:
        return {"expandable_segments": value.lower() == "true"}
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None
    if number is None or number < 1:
        return None
    if name == "large_segment_size_mb":
        return {"large_segment_bytes": number * MIB}
    if name == "max_split_size_mb" and number >= _LEAST_LIMIT_MB:
        return {"max_split_bytes": number * MIB}
    if name == "max_non_split_rounding_mb" and number >= _LEAST_LIMIT_MB:
        return {"max_non_split_rounding_bytes": number * MIB}
    if name == "roundup_power2_divisions" and number & (number - 1) == 0:
        return {"roundup_power2_divisions": number}
    return None
