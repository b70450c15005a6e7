"""The allocator model against the numbers of PyTorch's rules, written out, and against a slow model written another way."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from hwcalc.probe.allocator import (
    VARIABLES,
    Allocator,
    AllocatorFullError,
    AllocatorSettings,
    environment_settings,
    parse_settings,
    predict,
)
from tests.hwcalc.probe.slow_allocator import SlowAllocator

MIB = 2**20
EXPANDABLE = AllocatorSettings(expandable_segments=True)

# Requests, then allocated and reserved by default, then the same with expandable segments.
TABLE = [
    ([1], 512, 2 * MIB, 512, 2 * MIB),
    ([MIB], MIB, 2 * MIB, MIB, 2 * MIB),
    ([MIB + 1], 1_049_088, 20 * MIB, 1_049_088, 20 * MIB),
    ([5 * MIB], 5 * MIB, 20 * MIB, 5 * MIB, 20 * MIB),
    # One byte below 10 MiB is rounded to 10 MiB, and so is no small request of the large pool any more.
    ([10 * MIB - 1], 10 * MIB, 10 * MIB, 10 * MIB, 20 * MIB),
    ([10 * MIB], 10 * MIB, 10 * MIB, 10 * MIB, 20 * MIB),
    ([39 * MIB // 2], 20 * MIB, 20 * MIB, 39 * MIB // 2, 20 * MIB),
    ([41 * MIB // 2], 41 * MIB // 2, 22 * MIB, 41 * MIB // 2, 40 * MIB),
    ([21 * MIB], 22 * MIB, 22 * MIB, 21 * MIB, 40 * MIB),
    ([3 * MIB] * 7, 21 * MIB, 40 * MIB, 21 * MIB, 40 * MIB),
    # 5,000 blocks of 16 tokens, 8 heads of 128 in bf16, keys or values: 327,680,000 bytes = 312.5 MiB, so 314 MiB segments.
    ([327_680_000] * 32, 10_485_760_000, 32 * 314 * MIB, 10_485_760_000, 10_485_760_000),
]


@pytest.mark.parametrize("requests, allocated, reserved, expandable_allocated, expandable_reserved", TABLE)
def test_the_table_of_the_rules(
    requests: list[int], allocated: int, reserved: int, expandable_allocated: int, expandable_reserved: int
) -> None:
    """Each row of the published rules, by default and with expandable segments."""
    plain, expandable = predict(requests), predict(requests, EXPANDABLE)

    assert (allocated, reserved, sum(requests)) == (plain.allocated_bytes, plain.reserved_bytes, plain.requested_bytes)
    assert (expandable_allocated, expandable_reserved) == (expandable.allocated_bytes, expandable.reserved_bytes)


def test_a_published_snapshot() -> None:
    """discuss.pytorch.org/t/178671: three small tensors in one segment, then a cuBLAS workspace in a large one."""
    allocator = Allocator()
    for size in (40_000, 40, 4_000):
        allocator.allocate(size)

    assert allocator.statistics.allocated_bytes == 40_448 + 512 + 4_096
    assert allocator.statistics.reserved_bytes == 2_097_152

    allocator.allocate(8_519_680)

    assert allocator.statistics.reserved_bytes == 2_097_152 + 20_971_520
    # The 12,451,840 bytes that are left serve the next request.
    allocator.allocate(12_451_840)
    assert allocator.statistics.reserved_bytes == 2_097_152 + 20_971_520


def test_a_larger_segment_for_middling_tensors() -> None:
    """A tensor of 2 MiB takes 40 MiB with ``large_segment_size_mb:40``."""
    assert predict([2 * MIB], parse_settings("large_segment_size_mb:40")).reserved_bytes == 40 * MIB


def test_rounding_to_divisions_of_a_power_of_two() -> None:
    """Four divisions between 1024 and 2048 are 256 apart: of 1,200 KiB that is 1,280 KiB."""
    statistics = predict([1200 * 1024], parse_settings("roundup_power2_divisions:4"))

    assert statistics.allocated_bytes == 1280 * 1024


def test_blocks_above_the_limit_are_not_split() -> None:
    """With a limit of 30 MiB a block of 64 is kept whole: 63.9 MiB may have it back, 40 MiB and 10 MiB not."""
    allocator = Allocator(parse_settings("max_split_size_mb:30"))
    allocator.free(allocator.allocate(64 * MIB))

    allocator.allocate(10 * MIB)
    assert allocator.statistics.reserved_bytes == 74 * MIB
    allocator.allocate(40 * MIB)
    assert allocator.statistics.reserved_bytes == 114 * MIB
    allocator.allocate(64 * MIB - 100_000)
    assert allocator.statistics.reserved_bytes == 114 * MIB
    assert allocator.statistics.allocated_bytes == 114 * MIB


def test_freed_neighbours_merge_and_go_back_only_when_asked() -> None:
    """A segment stays reserved until the cache is emptied, and then only if no block of it is in use."""
    allocator = Allocator()
    first, second, third = (allocator.allocate(6 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(second)
    # 12 MiB in one piece again.
    assert allocator.allocate(12 * MIB) == first
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.statistics.reserved_bytes == 20 * MIB
    allocator.free(third)
    assert allocator.statistics.reserved_bytes == 20 * MIB
    allocator.empty_cache()
    assert (allocator.statistics.reserved_bytes, allocator.statistics.allocated_bytes) == (0, 0)


def test_unused_segments_go_back_before_memory_is_out() -> None:
    """A full device first gets back what is cached; only then there is an error, and nothing has changed."""
    allocator = Allocator(total_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.statistics.reserved_bytes == 80 * MIB
    with pytest.raises(AllocatorFullError):
        allocator.allocate(30 * MIB)
    assert allocator.statistics.allocated_bytes == 80 * MIB


@pytest.mark.parametrize("size", [0, -1])
def test_nothing_is_no_allocation(size: int) -> None:
    """An empty tensor asks for nothing, and a negative size is a mistake."""
    with pytest.raises(ValueError, match="at least one byte"):
        Allocator().allocate(size)
    assert predict([0]).reserved_bytes == 0


SIZES = (1, 512, 513, 4_000, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB, 10 * MIB - 512, 10 * MIB - 1, 21 * MIB, 39 * MIB // 2)


@pytest.mark.parametrize("expandable", [False, True], ids=["default", "expandable"])
@pytest.mark.parametrize("part", range(10))
def test_random_sequences(part: int, expandable: bool) -> None:
    """10,000 sequences of allocations, frees and emptied caches: both models agree after every step."""
    large = 20 * MIB
    settings = AllocatorSettings(expandable_segments=expandable, large_segment_bytes=large)
    for seed in range(part * 500, part * 500 + 500):
        rng = random.Random(f"{seed} {expandable}")  # noqa: S311 - no secret
        total = rng.choice([None, None, 64 * MIB, 200 * MIB])
        fast, slow = Allocator(settings, total_bytes=total), SlowAllocator(expandable=expandable, large=large, total=total)
        held: list[tuple[int, int]] = []
        for _ in range(rng.randrange(2, 24)):
            action = rng.random()
            if held and action < 0.35:
                one, other = held.pop(rng.randrange(len(held)))
                fast.free(one)
                slow.free(other)
            elif action < 0.4:
                fast.empty_cache()
                slow.empty_cache()
            else:
                size = rng.choice([rng.choice(SIZES), rng.randrange(1, 2 * MIB), rng.randrange(1, 48 * MIB)])
                other = slow.allocate(size)
                if other < 0:
                    with pytest.raises(AllocatorFullError):
                        fast.allocate(size)
                else:
                    held.append((fast.allocate(size), other))
            statistics = fast.statistics
            assert (slow.allocated, slow.reserved, slow.requested) == (
                statistics.allocated_bytes,
                statistics.reserved_bytes,
                statistics.requested_bytes,
            ), seed


def test_settings_are_read_as_torch_reads_them() -> None:
    """Spaces, several settings, lists in brackets; what changes no byte is passed over, what is unknown is named."""
    settings = parse_settings(" expandable_segments : True , garbage_collection_threshold:0.8, max_split_size_mb:128 ")

    assert settings == AllocatorSettings(expandable_segments=True, max_split_bytes=128 * MIB)
    listed = parse_settings("roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:false")
    assert listed.unmodelled == ("roundup_power2_divisions:[256:1,512:2,>:8]",)
    assert parse_settings("").unmodelled == ()


@pytest.mark.parametrize("text", ["backend:cudaMallocAsync", "max_split_size_mb:NaN", "large_segment_size_mb:-1", "[" * 5000])
def test_settings_that_are_not_understood(text: str) -> None:
    """They are named, never passed over: a prediction would be wrong."""
    assert parse_settings(text).unmodelled


def test_the_older_variable_wins() -> None:
    """As torch 2.13 does: PYTORCH_CUDA_ALLOC_CONF before PYTORCH_ALLOC_CONF, even where it is empty; without caching nothing is told."""
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:12", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}

    assert environment_settings(environment) == AllocatorSettings(large_segment_bytes=12 * MIB)
    assert environment_settings({**environment, "PYTORCH_CUDA_ALLOC_CONF": ""}) == AllocatorSettings()
    del environment["PYTORCH_CUDA_ALLOC_CONF"]
    assert environment_settings(environment) == AllocatorSettings(expandable_segments=True)
    assert environment_settings({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}).unmodelled == ("PYTORCH_NO_CUDA_MEMORY_CACHING",)


@pytest.mark.parametrize(("first", "words"), [("PYTORCH_CUDA_ALLOC_CONF", ""), ("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:1")])
def test_which_variable_torch_itself_reads(first: str, words: str) -> None:
    """A limit that torch refuses, in one variable, and a word it does not know, in the other: its error says which it has read."""
    program = "import torch; torch._C._accelerator_setAllocatorSettings('expandable_segments:False')"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {first: words, "PYTORCH_ALLOC_CONF": "no_such_word:1"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )

    assert "no_such_word" not in ended.stderr
    assert ("too small" in ended.stderr) is bool(words)
