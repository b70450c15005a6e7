"""Where the data files of the package lie, also of a package that is imported from a wheel or another zip archive, and what is said of a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


def data_file(module_file: str, *names: str) -> Path:
    """The path of a data file beside the module whose ``__file__`` is given, or of a folder of them."""
    folder = Path(module_file).parent
    if not folder.is_dir():
        archive = next(parent for parent in folder.parents if parent.is_file())
        folder = Path(_unpacked(str(archive)).name) / folder.relative_to(archive)
    return folder.joinpath(*names)


@contextmanager
def reading_data(path: str | Path) -> Iterator[None]:
    """Turn what a data file raises that is missing, unreadable or damaged into :class:`~hwcalc.errors.InstallationError`."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        from hwcalc.errors import InstallationError

        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "is damaged"
        message = f"the installation of kvplan is damaged: its file {path} {reason}."
        raise InstallationError(message, hint="Install it again: pip install --force-reinstall --no-deps hwcalc") from error


def json_data(module_file: str, name: str) -> Any:
    """The content of a data file in JSON beside a module."""
    from msgspec.json import decode

    path = data_file(module_file, name)
    with reading_data(path):
        return decode(path.read_bytes())


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
