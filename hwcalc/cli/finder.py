"""Finds the modules of this package with one look at the file of each. A plan needs two hundred, and Python looks longer than it computes.

For each module Python's own finder asks for the times of the folder, tries the suffixes of libraries in C, and takes the path apart and
together again to find the bytecode. This one knows where the files of this package lie and what bytecode is called. Whether bytecode is
that of the source it decides as Python does, by time and size. All that is out of the ordinary is left to Python: bytecode that is
missing, old or checked by its hash, other folders for it, ``-O``, and packages that are no files.

Only the command installs it (:func:`hwcalc.cli.main` without arguments), never the library.
"""

from __future__ import annotations

# Nothing is imported here but what Python has loaded by itself.
import os
import sys
from _frozen_importlib import BuiltinImporter, ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, PathFinder, SourceFileLoader, _compile_bytecode  # type: ignore[attr-defined]

# As in typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

__all__ = ["Finder", "install"]

_PACKAGE = __name__.partition(".")[0]
_PIECE_BYTES = 1 << 15
"""Most files of bytecode are smaller."""
_UNHASHED = b"\0\0\0\0"
"""Flags of bytecode that is compared with its source by time and size (PEP 552)."""


class Finder:
    """Finds modules of this package in the folder of their parent. Python asks it as it asks its own finders."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a module is, and how it is loaded; ``None`` leaves it to the next finder."""
        if not name.startswith(_PACKAGE + ".") or path is None or len(path) != 1:
            return None
        last = name.rpartition(".")[2]
        for folder, stem in ((os.path.join(path[0], last), "__init__"), (path[0], last)):
            file = f"{folder}{os.sep}{stem}.py"
            try:
                found = os.stat(file)
            except OSError:
                continue
            cached = f"{folder}{os.sep}__pycache__{os.sep}{stem}.{sys.implementation.cache_tag}.pyc"
            spec = ModuleSpec(name, _Loader(name, file, cached, found), origin=file, is_package=stem != last)
            if spec.submodule_search_locations is not None:
                spec.submodule_search_locations.append(folder)
            spec.cached, spec.has_location = cached, True
            return spec
        return None


class _Loader(SourceFileLoader):
    """Loads the bytecode beside a source, if it is that of the source."""

    def __init__(self, name: str, file: str, cached: str, found: os.stat_result) -> None:
        super().__init__(name, file)
        self._cached = cached
        self._head = MAGIC_NUMBER + _UNHASHED + _four_bytes(int(found.st_mtime)) + _four_bytes(found.st_size)

    def get_code(self, fullname: str) -> CodeType | None:
        data = _bytes_of(self._cached)
        if not data.startswith(self._head):
            return super().get_code(fullname)
        try:
            code: CodeType = _compile_bytecode(memoryview(data)[len(self._head) :], fullname, self._cached, self.path)
        except (EOFError, ValueError, TypeError):
            # A file system may give less at once than was asked for.
            return super().get_code(fullname)
        return code


def _bytes_of(path: str) -> bytes:
    """What a file holds, nothing if it cannot be read. Python's file objects ask for more about a file than they read of it."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return b""
    try:
        data = read = os.read(file, _PIECE_BYTES)
        while len(read) == _PIECE_BYTES:
            read = os.read(file, _PIECE_BYTES)
            data += read
    except OSError:
        return b""
    finally:
        os.close(file)
    return data


def _four_bytes(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


def install() -> None:
    """Ask :class:`Finder` before Python's own finders, where that of files would find the files of this package as it does."""
    loader = type(getattr(sys.modules[_PACKAGE].__spec__, "loader", None))
    usual = loader is SourceFileLoader and sys.pycache_prefix is None and not sys.flags.optimize and sys.implementation.cache_tag
    if usual and PathFinder in sys.meta_path:
        # Those of others stand before Python's: they may want to see every module.
        first = min(sys.meta_path.index(own) for own in (BuiltinImporter, PathFinder) if own in sys.meta_path)
        sys.meta_path.insert(first, Finder())
