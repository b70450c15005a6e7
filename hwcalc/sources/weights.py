"""Exact weight bytes of a model from the headers of its safetensors files. The tensors are never read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from threading import Lock
from typing import Final, Protocol

from hwcalc.errors import ConfigError
from hwcalc.formulas.record import Record
from hwcalc.model import WeightFacts
from hwcalc.sources.progress import tell
from hwcalc.sources.safetensors import LARGEST_INDEX, Header, add_up, header_end, read_header, read_index

__all__ = ["FilePart", "Files", "Folder", "read_weights"]

FIRST: Final = 128 * 1024
"""Bytes of the first request for a file with an unknown number of tensors. Unquantised 8B models have headers of 30 to 40 KiB."""

MOST_BYTES: Final = 512 * 1024**2
"""Most bytes of all headers of a model together. The largest published models have some 100 MB."""

LARGE: Final = 8 * 1024**2
"""Bytes above which only one header is in memory at a time. Published headers have at most some hundred KiB a file."""


class FilePart(Record):
    """Some bytes of a file, and the size of the whole file if it is known."""

    data: bytes
    file_bytes: int | None


class Files(Protocol):
    """A place with the files of one model, such as a folder or a repository. A missing file is ``None``.

    ``parallel`` is the number of files that may be read at the same time.
    """

    parallel: int

    def whole(self, name: str, most: int) -> bytes | None:
        """The content of a small file. If the file is larger than ``most``, the result has at least ``most`` + 1 bytes."""

    def part(self, name: str, first: int, end: int) -> FilePart | None:
        """The bytes from ``first`` up to ``end`` (exclusive). There are fewer if the file ends earlier."""


class Folder:
    """A folder on this machine."""

    parallel = 1

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def whole(self, name: str, most: int) -> bytes | None:
        part = self.part(name, 0, most + 1)
        return None if part is None else part.data

    def part(self, name: str, first: int, end: int) -> FilePart | None:
        path = os.path.join(self._folder, name)
        if not os.path.isfile(path):
            return None
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(first)
                return FilePart(data=file.read(max(0, min(end, size) - first)), file_bytes=size)
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}.", hint="Check who may read the file.") from error


def read_weights(files: Files, stems: Sequence[str] = ("model",)) -> WeightFacts | None:
    """The facts about the weight files, or ``None`` if there are no safetensors files.

    The weights are ``<stem>.safetensors``, or the files that ``<stem>.safetensors.index.json`` names. Raises
    :class:`~hwcalc.errors.ConfigError` if a header is damaged or a file is missing.
    """
    reader = _Reader(files)
    for stem in stems:
        single = f"{stem}.safetensors"
        start = files.part(single, 0, FIRST)
        if start is not None:
            return add_up([reader.rest(single, start)], "safetensors header")
        index = files.whole(f"{single}.index.json", LARGEST_INDEX)
        if index is not None:
            named = read_index(index, f"{single}.index.json")
            del index
            return add_up(reader.all(named), "safetensors headers")
    return None


class _Reader:
    """Reads headers, several at a time. Of those above :data:`LARGE` only one is in memory."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._one_large = Lock()
        self._bytes = 0

    def all(self, named: dict[str, int]) -> Iterator[Header]:
        """The headers of files, each with an estimate of its bytes."""
        if self._files.parallel < 2 or len(named) < 2:
            yield from (self._one(name, size) for name, size in named.items())
            return
        from hwcalc.sources.parallel import done_in_any_order

        results = done_in_any_order(lambda item: self._one(*item), named.items(), self._files.parallel)
        for done, result in enumerate(results, 1):
            tell(f"weight headers: {done:,} of {len(named):,} files")
            yield result

    def _one(self, name: str, guess: int) -> Header:
        start = self._files.part(name, 0, min(-(-guess // 1024) * 1024, LARGE))
        if start is None:
            raise ConfigError(
                f"the index names {name}, which is not there.", hint="The weights are incomplete: download or upload them again."
            )
        return self.rest(name, start)

    def rest(self, name: str, start: FilePart) -> Header:
        """The header of a file whose first part is known. If the header is longer than this part, the rest is read."""
        end = header_end(start.data, name)
        self._bytes += end  # a sum that is a little too low between two threads does no harm
        if self._bytes > MOST_BYTES:
            raise ConfigError(
                f"the headers of the weight files take more than {MOST_BYTES // 1024**2} MiB: that is no model.",
                hint="Check the repository: its safetensors files are not what they should be.",
            )
        if len(start.data) >= end or (start.file_bytes is not None and end > start.file_bytes):
            return read_header(start.data, name, start.file_bytes)
        with self._one_large if end > LARGE else nullcontext():
            more = self._files.part(name, len(start.data), end)
            data = start.data if more is None else start.data + more.data
            del more
            return read_header(data, name, start.file_bytes)
