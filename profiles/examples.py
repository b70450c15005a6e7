"""Accelerators that an example may name: common ones, from small to large."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "example_gpu"]

EXAMPLES: Final = (("l4", 24), ("l40s", 48), ("h100-sxm5-80gb", 80), ("h200-sxm-141gb", 141))
"""Id and GB as sold. A test compares them with their files, which take too long to read for an example."""
_COUNTS: Final = (1, 2, 4, 8)
"""How many of one kind a node has."""
_USABLE: Final = 85
"""Per cent of the memory as sold that an example fills. It need not fit: the example is how to ask."""


def example_gpu(needed_bytes: int, gpus: int = 1) -> tuple[str, int] | None:
    """The fewest and smallest of these that may hold so many bytes, at least ``gpus`` of them; ``None`` if not even a node does.

    >>> example_gpu(20 * 10**9), example_gpu(20 * 10**9, gpus=3), example_gpu(220 * 10**9), example_gpu(10**13)
    (('l4', 1), ('l4', 3), ('h200-sxm-141gb', 2), None)
    """
    for count in (gpus, *(count for count in _COUNTS if count > gpus)):
        for name, size_gb in EXAMPLES:
            if needed_bytes * 100 <= count * size_gb * 10**9 * _USABLE:
                return name, count
    return None
