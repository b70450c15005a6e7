"""What CUDA calls the generation of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnsupportedError

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

_HOPPER: Final = 90


def compute_capability(gpu: Gpu | None) -> int:
    """Compute capability as a whole number: 90 for 9.0. Without a GPU, or for one without CUDA, that of an H100."""
    if gpu is None or gpu.compute_capability is None:
        return _HOPPER
    major, _, low = gpu.compute_capability.partition(".")
    return int(major) * 10 + int(low or 0)


def check_generation(gpu: Gpu | None, least: int, message: str) -> None:
    """Raise an error for a GPU older than an engine runs on, in the engine's words."""
    if gpu is not None and compute_capability(gpu) < least:
        raise UnsupportedError(
            f"{message} {gpu.name} has compute capability {gpu.compute_capability}.",
            hint="Use a newer GPU, such as: --gpu l4, or --engine llamacpp",
        )
