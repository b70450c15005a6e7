"""Accelerators as the program's commands name them: the profile, with the program's own errors and a notice of a user's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.errors import ConfigError, UsageError
from hwcalc.model import Note

if TYPE_CHECKING:
    from profiles.gpus import Gpu

__all__ = ["load_gpu"]


def load_gpu(name: str, notes: list[Note]) -> Gpu:
    """The accelerator of this id or alias; a file of the user's own is named in ``notes``.

    Raises :class:`~hwcalc.errors.UsageError` for an unknown name and :class:`~hwcalc.errors.ConfigError` for a broken file.
    """
    from hwcalc.sources.wanted import printable
    from profiles.catalog import ProfileError
    from profiles.gpus import UnknownGpuError, find_gpu, list_gpus

    try:
        gpu = find_gpu(name)
    except UnknownGpuError as error:
        hint = f"Perhaps {', '.join(error.nearest)}?" if error.nearest else f"Known: {', '.join(list_gpus())}."
        raise UsageError(f"--gpu {printable(name)[:40]!r} is not known.", hint=hint) from error
    except ProfileError as error:
        raise ConfigError(printable(str(error)), hint="Correct the file, or move it away.") from error
    if gpu.user:
        notes.append(Note(code="user-profile", message=f"The accelerator is your own: {printable(str(gpu.path))}."))
    return gpu
