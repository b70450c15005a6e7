"""Accelerators that an example may name: common ones, from small to large."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "example_gpu"]

EXAMPLES: Final = (("l4", 24), ("l40s", 48), ("h100-sxm5-80gb", 80), ("h200-sxm-141gb", 141))
"""Id and GB as sold. A test compares them with their files, which take too long to read for an example."""
MOST_IN_A_NODE: Final = 8
_USABLE: Final = 85
"""Per cent of the memory as sold that an example fills. It need not fit: the example is how to ask."""


def example_gpu(needed_bytes: int, gpus: int = 1) -> tuple[str, int] | None:
    """The smallest of these that may hold so many bytes, and how many of it: ``gpus``, else a node of the largest; else ``None``.

    >>> example_gpu(20 * 10**9), example_gpu(20 * 10**9, gpus=2), example_gpu(700 * 10**9), example_gpu(10**13)
    (('l4', 1), ('l4', 2), ('h200-sxm-141gb', 8), None)
    """
    largest = EXAMPLES[-1]
    for (name, size_gb), count in (*((one, gpus) for one in EXAMPLES), (largest, max(gpus, MOST_IN_A_NODE))):
        if needed_bytes * 100 <= count * size_gb * 10**9 * _USABLE:
            return name, count
    return None
