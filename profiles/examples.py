"""Accelerators that an example may name: common ones, from small to large."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "UNCOMMON", "example_gpu"]

EXAMPLES: Final = (("l4", 24), ("l40s", 48), ("h100-sxm5-80gb", 80), ("h200-sxm-141gb", 141))
"""Id and GB as sold. A test compares them with their files, which take too long to read for an example."""
UNCOMMON: Final = frozenset(
    {
        *("a800-sxm4-80gb", "h20-3e-141gb", "h20-96gb", "h800-sxm5-80gb", "l20", "mi308x"),
        *("rtx-4090-d", "rtx-5090-d", "rtx-5090-d-v2", "rtx-5880-ada"),
        *("gb200-186gb", "gb300-288gb", "gh200-144gb", "gh200-96gb", "mi300a"),
        *("b100-192gb", "mi455x", "rubin-288gb"),
    }
)
"""Accelerators that are no advice to somebody who has another: made for one country, sold with a processor of their own, or hardly sold."""
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
