"""A torch with one or more CUDA devices that are not there: the slow model counts, and knows when a tensor is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from types import SimpleNamespace
from typing import Any

from tests.hwcalc.probe.slow_allocator import SlowAllocator

__all__ = ["CONTEXT", "GPU_NAME", "WORKSPACE", "FakeTorch", "OutOfMemoryError"]

MIB = 2**20
CONTEXT = 450 * MIB
WORKSPACE = 32 * MIB
"""What cuBLAS takes on sm_90 for each stream that multiplies."""
RATE = 2.5e12
"""Bytes a second, read and written."""
GPU_NAME = "NVIDIA H100 80GB HBM3"
ITEMS = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "int64": 8}


class OutOfMemoryError(RuntimeError):
    """As torch's: a RuntimeError of its own class."""


class FakeMemory:
    """Bytes that a device holds until no tensor does. ``flaw`` makes reading back go wrong."""

    def __init__(self, size: int, *, flaw: bool = False) -> None:
        self.size = size
        self.flaw = flaw
        self.value: float | None = None


class FakeTensor:
    """A tensor, or a view of one. ``tick`` passes the time that moving so many bytes takes."""

    def __init__(self, memory: FakeMemory, shape: tuple[int, ...], item: int, tick: Callable[[int], None]) -> None:
        self.memory, self.shape, self.item, self.tick = memory, shape, item, tick

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: self.memory.size)

    def view(self, what: Any) -> FakeTensor:
        item = ITEMS.get(what, self.item)
        return FakeTensor(self.memory, (prod(self.shape) * self.item // item,), item, self.tick)

    def numel(self) -> int:
        return prod(self.shape)

    def fill_(self, value: float) -> FakeTensor:
        self.memory.value = value
        return self

    def sum(self) -> None:
        self.tick(self.numel() * self.item)

    def copy_(self, other: FakeTensor) -> None:
        self.memory.value = other.memory.value
        self.tick(2 * self.numel() * self.item)

    def __getitem__(self, _: Any) -> FakeTensor:
        return self

    def __eq__(self, other: object) -> Any:
        return SimpleNamespace(all=lambda: self.memory.value == other and not self.memory.flaw)

    def __hash__(self) -> int:
        return id(self)


class FakeTorch:
    """What the probe asks torch for. ``held_before`` is reserved by somebody else in the process, ``extra`` is a miscount
    while there are tensors.

    ``leak`` is taken of free memory with every tensor and never given back, ``now`` is the clock of the device.
    """

    __version__ = "2.13.0+fake"
    OutOfMemoryError = OutOfMemoryError

    def __init__(
        self,
        *,
        total: int = 1024 * MIB,
        expandable: bool = False,
        held_before: int = 0,
        extra: int = 0,
        leak: int = 0,
        flaw: bool = False,
        workspace: int = WORKSPACE,
        name: str = "Fake H100",
    ) -> None:
        self.total = total
        self.extra = extra
        self.flaw = flaw
        self.workspace, self.workspaces, self.stream = workspace, dict[int, int](), 0
        self.now = 0.0
        self.context = False
        self.leak = leak
        self.allocator = SlowAllocator(expandable=expandable, total=total - CONTEXT)
        self.before = self.allocator.allocate(held_before) if held_before else None
        self.made = 0
        self.on_empty: Callable[[int], None] = lambda _: None
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
        self.nn = SimpleNamespace(
            functional=SimpleNamespace(linear=self._product, scaled_dot_product_attention=lambda *_, **__: self._tick(MIB))
        )
        properties = SimpleNamespace(total_memory=total, uuid="0000-fake")
        self.cuda = SimpleNamespace(
            init=lambda: None,
            is_available=lambda: True,
            device_count=lambda: 2,
            set_device=lambda _: None,
            synchronize=lambda _=None: None,
            empty_cache=self.allocator.empty_cache,
            get_device_name=lambda _: name,
            get_device_capability=lambda _: (9, 0),
            get_device_properties=lambda _: properties,
            mem_get_info=self._mem_get_info,
            memory_allocated=lambda _: self.allocator.allocated + (self.extra if self.allocator.used else 0),
            memory_reserved=lambda _: self.allocator.reserved,
            memory_stats=lambda _: {"requested_bytes.all.current": self.allocator.requested},
            Stream=lambda **_: 1,
            stream=self._on_stream,
            Event=lambda **_: FakeEvent(self),
            OutOfMemoryError=OutOfMemoryError,
        )

    def __getattr__(self, name: str) -> str:
        if name in ITEMS:
            return name
        raise AttributeError(name)

    def smi(self) -> dict[str, dict[str, int]]:
        """What nvidia-smi would say: the context is there from the first look at free memory on."""
        return {"GPU-0000-fake": {"used": CONTEXT + self.allocator.reserved if self.context else 0, "total": self.total}}

    def _mem_get_info(self, _: str) -> tuple[int, int]:
        self.context = True
        return self.total - CONTEXT - self.leak * self.made - self.allocator.reserved, self.total

    def no_grad(self) -> AbstractContextManager[None]:
        return nullcontext()

    def mm(self, *operands: FakeTensor, out: FakeTensor) -> None:
        assert len(operands) == 2
        assert out is not None
        self._product()

    def empty(self, shape: tuple[int, ...], *, dtype: str, device: str) -> FakeTensor:
        assert device.startswith("cuda:")
        return self._tensor(shape, ITEMS[dtype])

    def zeros(self, count: int, *, device: str) -> FakeTensor:
        assert device.startswith("cuda:")
        return self._tensor((count,), 4)

    @contextmanager
    def _on_stream(self, number: int) -> Iterator[None]:
        before, self.stream = self.stream, number
        yield
        self.stream = before

    def _product(self, *_: Any) -> None:
        """The first product on a stream takes a workspace."""
        if self.stream not in self.workspaces:
            self.workspaces[self.stream] = self.allocator.allocate(self.workspace)

    def _tick(self, size: int) -> None:
        self.now += size / RATE

    def _tensor(self, shape: tuple[int, ...], item: int) -> FakeTensor:
        self.made += 1
        self.on_empty(self.made)
        size = prod(shape) * item
        address = self.allocator.allocate(size)
        if address < 0:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
        memory = FakeMemory(size, flaw=self.flaw)
        weakref.finalize(memory, self.allocator.free, address)
        return FakeTensor(memory, shape, item, self._tick)


class FakeEvent:
    """A moment on the device's clock."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch, self.at = torch, 0.0

    def record(self) -> None:
        self.at = self.torch.now

    def elapsed_time(self, other: FakeEvent) -> float:
        """Milliseconds to another moment."""
        return (other.at - self.at) * 1000
