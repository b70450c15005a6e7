"""A torch with one or more CUDA devices that are not there: the slow model counts, and knows when a tensor is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import prod
from types import SimpleNamespace
from typing import Any

from tests.hwcalc.probe.slow_allocator import SlowAllocator

__all__ = ["FakeTorch", "OutOfMemoryError"]

MIB = 2**20
CONTEXT = 450 * MIB
ITEMS = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "int64": 8}


class OutOfMemoryError(RuntimeError):
    """As torch's: a RuntimeError of its own class."""


class FakeTensor:
    """Bytes that a device holds until nobody does. ``flaw`` makes reading back go wrong."""

    def __init__(self, size: int, *, flaw: bool = False) -> None:
        self.size = size
        self.flaw = flaw
        self.value: int | None = None

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: self.size)

    def view(self, _: Any) -> FakeTensor:
        return self

    def numel(self) -> int:
        return self.size

    def fill_(self, value: int) -> None:
        self.value = value

    def __getitem__(self, _: slice) -> FakeTensor:
        return self

    def __eq__(self, other: object) -> Any:
        return SimpleNamespace(all=lambda: self.value == other and not self.flaw)

    def __hash__(self) -> int:
        return id(self)


class FakeTorch:
    """What the probe asks torch for. ``held_before`` is reserved by somebody else in the process, ``extra`` is a miscount."""

    __version__ = "2.13.0+fake"
    OutOfMemoryError = OutOfMemoryError

    def __init__(
        self, *, total: int = 1024 * MIB, expandable: bool = False, held_before: int = 0, extra: int = 0, flaw: bool = False
    ) -> None:
        self.total = total
        self.extra = extra
        self.flaw = flaw
        self.allocator = SlowAllocator(expandable=expandable, total=total - CONTEXT)
        self.before = self.allocator.allocate(held_before) if held_before else None
        self.made = 0
        self.on_empty: Callable[[int], None] = lambda _: None
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            set_device=lambda _: None,
            synchronize=lambda _=None: None,
            empty_cache=self.allocator.empty_cache,
            get_device_name=lambda _: "Fake H100",
            get_device_properties=lambda _: SimpleNamespace(total_memory=total),
            mem_get_info=lambda _: (total - CONTEXT - self.allocator.reserved, total),
            memory_allocated=lambda _: self.allocator.allocated + (self.extra if self.made > 1 else 0),
            memory_reserved=lambda _: self.allocator.reserved,
            memory_stats=lambda _: {"requested_bytes.all.current": self.allocator.requested},
            OutOfMemoryError=OutOfMemoryError,
        )

    def __getattr__(self, name: str) -> str:
        if name in ITEMS:
            return name
        raise AttributeError(name)

    def empty(self, shape: tuple[int, ...], *, dtype: str, device: str) -> FakeTensor:
        assert device.startswith("cuda:")
        return self._tensor(prod(shape) * ITEMS[dtype])

    def zeros(self, count: int, *, device: str) -> FakeTensor:
        assert device.startswith("cuda:")
        return self._tensor(4 * count)

    def _tensor(self, size: int) -> FakeTensor:
        self.made += 1
        self.on_empty(self.made)
        address = self.allocator.allocate(size)
        if address < 0:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        tensor = FakeTensor(size, flaw=self.flaw)
        weakref.finalize(tensor, self.allocator.free, address)
        return tensor
