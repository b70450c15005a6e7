"""Logs that never end, or that are made to be slow: an answer in bounded time and memory."""

from __future__ import annotations

import io
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import pytest

from hwcalc.errors import LogError
from hwcalc.reconcile import core, reconcile
from hwcalc.reconcile.core import LONGEST_LINE, MOST_LINES, Reader, _read
from tests.hwcalc.reconcile.test_any_log import SMALL

MIB: Final = 1024**2


class Endless(io.RawIOBase):
    """A device that repeats one text for ever. It counts what was read of it."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readline(self, size: Any = -1, /) -> bytes:
        line = self.text[:size] if self.text else b"\0" * size
        self.taken += len(line)
        return line


@pytest.mark.parametrize("text", [b"", b"x" * LONGEST_LINE, b"\n", b"INFO: nothing of interest here\n", b"KV cache memory\n"])
def test_a_log_without_an_end(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Reading stops at a limit, also inside a line that has no end, and keeps next to nothing."""
    monkeypatch.setattr(core, "MOST_BYTES", 4 * MIB)
    monkeypatch.setattr(core, "MOST_LINES", 10_000)
    monkeypatch.setattr(core, "MOST_KNOWN_BYTES", MIB)
    log = Endless(text)
    tracemalloc.start()
    try:
        with pytest.raises(LogError, match=r"no line that is known \([0-9,]+ lines read of more\)"):
            reconcile(SMALL, cast("IO[bytes]", log))
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert log.taken <= 4 * MIB + LONGEST_LINE


def test_the_zero_device_ends() -> None:
    """One line of 64 MiB, of which the beginning is kept."""
    with pytest.raises(LogError, match="1 lines read of more"):
        reconcile(SMALL, Path("/dev/zero"))


def test_newlines_cost_next_to_nothing() -> None:
    """The most lines that are read, all empty, in a second or two. Their numbers still count."""
    begun = time.process_time()
    read = list(Reader("\n" * (MOST_LINES - 1) + "the last line"))

    assert read == [(MOST_LINES, "the last line")]
    assert time.process_time() - begun < 4


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[1;" * 1000,
        "\x1b]" + "a" * 198,
        "(EngineCore pid=12) Available KV cache memory: x.y GiB GPU KV cache size: tokens memory token key",
        "GPU KV cache size: " + "1,111," * 2000,
        "Namespace(max_model_len=" * 1000 + " non-default args ",
        'vllm:cache_config_info{a="b' * 900 + '"}',
        "memory token='\\" * 60,
        "GiB -key " * 100,
        "| Allocated memory | 14957 MiB | 17060 MiB |",
        "non-default args: " + "speculative_config={'method': " * 1000,
        "memory " + "authorization: " * 60,
        "Actual usage is " + "1 GiB for weight " * 400,
        "12 " * 2000 + "KB memory",
    ],
)
def test_a_quarter_of_a_mebibyte_of_the_same_line(line: str) -> None:
    """No rule takes more than proportional time."""
    begun = time.process_time()
    with suppress(LogError):
        _read([line] * (MIB // 4 // len(line)), None)
    assert time.process_time() - begun < 2
