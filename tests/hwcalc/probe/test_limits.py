"""The search for the largest batch and sequence, on the CPU under artificial limits."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import UsageError
from hwcalc.planner.context import open_request
from hwcalc.probe.allocator import AllocatorSettings
from hwcalc.probe.devices import Counters, Device
from hwcalc.probe.limits import ALLOCATED, BEYOND, OUT_OF_MEMORY, REFUSED, find_max

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
TOKEN = 4 * 2 * 2 * 64 * 2
"""Bytes of a token: 4 layers, keys and values, 2 heads of 64, two bytes."""


class Counted(Device):
    """A device of ``capacity`` bytes that remembers what it gave out. Beyond it there is no memory, or what ``beyond`` raises."""

    def __init__(self, capacity: int | None = None, *, beyond: BaseException | None = None, kind: str = "cpu") -> None:
        import torch

        super().__init__(torch, "cpu")
        self.kind = kind  # type: ignore[misc]
        self.capacity, self.beyond = capacity, beyond or MemoryError("DefaultCPUAllocator: can't allocate memory")
        self.held = self.peak = self.releases = 0

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor without memory behind it."""
        import torch

        tensor = torch.empty(shape, dtype=torch.uint8 if dtype == "uint8" else torch.bfloat16, device="meta")
        if dtype == "int8":
            tensor = torch.empty(shape, dtype=torch.int8, device="meta")
        self.held += tensor.numel() * tensor.element_size()
        if self.capacity is not None and self.held > self.capacity:
            raise self.beyond
        self.peak = max(self.peak, self.held)
        return tensor

    def counters(self) -> Counters:
        return Counters()

    def warm_up(self) -> None:
        """Nothing to load."""

    def release(self) -> None:
        self.held = 0
        self.releases += 1


def opened(**wanted: Any) -> Occupancy:
    """The request for the small model."""
    return open_request(load_model(CONFIG), **{"seq": 1000, **wanted})


def test_largest_batch() -> None:
    """Sequences of 1,000 tokens in 50 MB: 50,000,000 / 2,048,000 = 24.4."""
    device = Counted()
    result = find_max(opened(), device, "batch", available_bytes=60_000_000, reserve_bytes=10_000_000)

    assert 50_000_000 // (1000 * TOKEN) == 24 == result.value == result.expected == result.solver
    assert result.agrees
    assert BEYOND == result.limiting
    assert 24 * 1000 * TOKEN == result.bytes == device.peak
    assert [(24, ALLOCATED), (25, BEYOND)] == [(one.value, one.outcome) for one in result.tries]


def test_longest_sequence() -> None:
    """Three sequences in 10 MB: 10,000,000 / 3 / 2,048 = 1,627.6 tokens."""
    result = find_max(opened(batch=3), Counted(), "seq", available_bytes=10_000_000, reserve_bytes=0)

    assert 10_000_000 // (3 * TOKEN) == 1627 == result.value == result.solver
    assert (1627, 3) == (result.seq, result.batch)


def test_less_than_expected_is_found() -> None:
    """A device that says 50 MB are free and gives 20: the answer is what it gives, 9 sequences, and it does not agree."""
    device = Counted(20_000_000)
    result = find_max(opened(), device, "batch", available_bytes=50_000_000, reserve_bytes=0)

    assert 20_000_000 // (1000 * TOKEN) == 9 == result.value
    assert 24 == result.expected
    assert not result.agrees
    assert OUT_OF_MEMORY == result.limiting
    assert 0 == device.held
    assert device.releases == len([one for one in result.tries if one.outcome in (ALLOCATED, OUT_OF_MEMORY)])


def test_not_even_one() -> None:
    """Nothing fits: 0, and nothing was allocated."""
    device = Counted()
    result = find_max(opened(), device, "batch", available_bytes=1_000_000, reserve_bytes=0)

    assert (0, 0, 0, BEYOND) == (result.value, result.solver, result.bytes, result.limiting)
    assert 0 == device.peak


@pytest.mark.parametrize(
    ("what", "more", "value", "limiting"), [("seq", {}, 8192, "model length"), ("batch", {"cap": 5}, 5, "cap")]
)
def test_other_limits(what: str, more: dict[str, Any], value: int, limiting: str) -> None:
    """The model's own length, or a number that nobody asks beyond."""
    result = find_max(opened(), Counted(), what, available_bytes=10**10, reserve_bytes=0, **more)

    assert (value, limiting, True) == (result.value, result.limiting, result.agrees)
    assert 1 == len(result.tries)


def test_a_pool() -> None:
    """vLLM: 63 blocks of 16 tokens hold 1,000, and one block is never given out: 50,000,000 / 32,768 = 1,525 blocks, 24 sequences."""
    result = find_max(opened(engine="vllm"), Counted(), "batch", available_bytes=50_000_000, reserve_bytes=0)

    assert (50_000_000 // (16 * TOKEN) - 1) // 63 == 24 == result.value == result.expected == result.solver
    assert (24 * 63 + 1) * 16 * TOKEN == result.bytes


def test_a_rank_has_its_shard() -> None:
    """Two ranks have a head each: twice as many sequences."""
    result = find_max(opened(tp=2), Counted(), "batch", available_bytes=50_000_000, reserve_bytes=0)

    assert 50_000_000 // (1000 * TOKEN // 2) == 48 == result.value


def test_an_engine_that_refuses() -> None:
    """A static cache of 1,200 positions holds no more, however much is free."""
    request = opened(engine="transformers", engine_options={"cache": "static", "max_cache_len": "1200"})
    result = find_max(request, Counted(), "seq", available_bytes=10**9, reserve_bytes=0)

    assert (1200, REFUSED) == (result.value, result.limiting)


def test_rounding_of_the_caching_allocator() -> None:
    """CUDA gives out segments of 20 MiB, and 40,000,000 bytes hold one of them.

    There are 8 tensors of 256,000 bytes a sequence. Those of ten sequences lie eight to a segment, since 8 x 2,560,000 = 20,480,000 is
    less than 20,971,520; of eleven it is 22,528,000. Plain arithmetic says 40,000,000 / 2,048,000 = 19 sequences.
    """
    result = find_max(
        opened(), Counted(kind="cuda"), "batch", available_bytes=40_000_000, reserve_bytes=0, settings=AllocatorSettings()
    )

    assert (19, 10, 10) == (result.solver, result.expected, result.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupted(error: BaseException) -> None:
    """Ctrl-C between two tensors: everything was freed."""
    device = Counted(20_000_000, beyond=error)
    with pytest.raises(type(error)):
        find_max(opened(), device, "batch", available_bytes=50_000_000, reserve_bytes=0)

    assert (0, 1) == (device.held, device.releases)


def test_other_errors_are_not_out_of_memory() -> None:
    """A broken device is no result."""
    with pytest.raises(RuntimeError, match="device-side assert"):
        find_max(opened(), Counted(1, beyond=RuntimeError("device-side assert")), "batch", available_bytes=10**8, reserve_bytes=0)


@pytest.mark.parametrize(
    ("what", "wrong"), [("gpus", {}), ("batch", {"cap": 0}), ("batch", {"reserve_bytes": -1}), ("batch", {"available_bytes": -1})]
)
def test_arguments_out_of_range(what: str, wrong: dict[str, Any]) -> None:
    """Said before anything is allocated."""
    with pytest.raises(UsageError):
        find_max(opened(), Counted(), what, **wrong)


def test_nothing_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is tried."""
    device = Counted()
    monkeypatch.setattr(device, "free_bytes", lambda: None)
    with pytest.raises(UsageError, match="free"):
        find_max(opened(), device)


def test_real_memory() -> None:
    """On the CPU itself, under a limit of 64 MiB: 32 sequences of 1,024 tokens, 2 MiB each, allocate."""
    import torch

    result = find_max(opened(seq=1024), Device(torch, "cpu"), "batch", available_bytes=2**26, reserve_bytes=0)

    assert (32, 2**26, True) == (result.value, result.bytes, result.agrees)
