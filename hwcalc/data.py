"""Where the data files of the package lie, also of a package that is imported from a wheel or another zip archive."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


def data_file(module_file: str, *names: str) -> Path:
    """The path of a data file beside the module whose ``__file__`` is given, or of a folder of them."""
    folder = Path(module_file).parent
    if not folder.is_dir():
        archive = next(parent for parent in folder.parents if parent.is_file())
        folder = Path(_unpacked(str(archive)).name) / folder.relative_to(archive)
    return folder.joinpath(*names)


@lru_cache(maxsize=1)
def _unpacked(archive: str) -> TemporaryDirectory[str]:
    """The data files of an archive, in a folder that goes with the process."""
    from tempfile import TemporaryDirectory
    from zipfile import ZipFile

    folder = TemporaryDirectory(prefix="kvplan-")
    with ZipFile(archive) as files:
        files.extractall(
            folder.name, [name for name in files.namelist() if name.startswith("hwcalc/") and not name.endswith(".py")]
        )
    return folder
