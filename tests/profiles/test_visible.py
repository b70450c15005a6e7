"""What a program sees of an accelerator: readings, Metal's limit, and shares; every number with its source."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Final

import pytest

from hwcalc.profiles.catalog import ProfileError, built_in
from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.gpus import find_gpu, list_gpus, usable_mib, visible_memory, with_memory
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.profiles.schema import HardwareFile, check, parse_yaml

MIB: Final = 1024**2
TEXT: Final = Path(built_in("hardware.yaml")).read_text(encoding="utf-8")


def sizes(gpu: Gpu) -> tuple[float, float, float]:
    """Low, expected, high in MiB."""
    visible = visible_memory(gpu)
    assert visible is not None
    return visible.low_bytes / MIB, visible.expected_bytes / MIB, visible.high_bytes / MIB


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Read: torch's lowest and highest.
        ("h100", (81_082, 81_082, 81_090)),
        ("h200", (143_156, 143_156, 143_156)),
        ("mi300x", (196_592, 196_592, 196_592)),
        # 23,034 MiB by nvidia-smi; 22.03 to 22.06 GiB in out-of-memory texts.
        ("l4", (int(22.03 * 1024), int(22.03 * 1024), int(22.06 * 1024))),
        # nvidia-smi's 46,068 MiB alone: 0.38 to 0.62 % less.
        ("l40", (int(46_068 * 0.9938), int(46_068 * 0.994), int(46_068 * 0.9967))),
        # rocm-smi's total is torch's.
        ("mi350x", (294_896, 294_896, 294_896)),
        # The number on the box alone.
        ("gaudi3", (int(131_072 * 0.91), int(131_072 * 0.93), int(131_072 * 0.99))),
    ],
)
def test_what_is_visible(name: str, expected: tuple[int, int, int]) -> None:
    """The best of what is known, with its range."""
    assert sizes(find_gpu(name)) == expected


def test_every_accelerator_has_an_answer() -> None:
    """In order, with a basis and a source, and never more than what is sold."""
    for gpu_id in list_gpus():
        gpu = find_gpu(gpu_id)
        visible = visible_memory(gpu)
        assert visible is not None
        assert 0 < visible.low_bytes <= visible.expected_bytes <= visible.high_bytes
        assert visible.high_bytes <= (gpu.memory_total_mib or (gpu.memory_marketing_gb or 0) * 1024) * MIB
        assert visible.basis
        assert visible.source
    assert visible_memory(Gpu(id="x", name="x", vendor="x")) is None
    assert visible_memory(Gpu(id="x", name="x", vendor="apple")) is None


@pytest.mark.parametrize(
    ("ram_gib", "low", "expected", "high"),
    [
        # llama.cpp's "recommendedMaxWorkingSetSize" in 10^6 bytes, and two thirds or three quarters before macOS 15.
        (16, 16 * 1024 * 2 // 3, 12_713_120_000 // MIB, 12_713_120_000 // MIB),
        (24, 24 * 1024 * 2 // 3, 19_069_670_000 // MIB, 19_069_670_000 // MIB),
        (32, 32 * 1024 * 2 // 3, 26_800_600_000 // MIB, 26_800_600_000 // MIB),
        # The reading of a Mac with 36 GB is the older rule's: the newer one gives 78 %.
        (36, 36 * 1024 * 3 // 4, 27_648, 36 * 1024 * 78 // 100),
        (48, 48 * 1024 * 3 // 4, 40_200_900_000 // MIB, 40_200_900_000 // MIB),
        (64, 64 * 1024 * 3 // 4, 55_662_790_000 // MIB, 55_662_790_000 // MIB),
        (128, 128 * 1024 * 3 // 4, 115_448_730_000 // MIB, 115_448_730_000 // MIB),
        (512, 512 * 1024 * 3 // 4, 475_136, 475_136),
        # Sizes that nobody has read: the step below, and as high the step above.
        (8, 8 * 1024 * 2 // 3, 8 * 1024 * 74 // 100, 8 * 1024 * 78 // 100),
        (96, 96 * 1024 * 3 // 4, 96 * 1024 * 81 // 100, 96 * 1024 * 84 // 100),
        (192, 192 * 1024 * 3 // 4, 192 * 1024 * 84 // 100, 192 * 1024 * 906 // 1000),
        (1024, 768 * 1024, 1024 * 1024 * 906 // 1000, 1024 * 1024 * 906 // 1000),
    ],
)
def test_a_mac(ram_gib: int, low: int, expected: int, high: int) -> None:
    """Metal's limit by the size of the memory: the older rule, the newest reading, the newer rule."""
    gpu = with_memory(find_gpu("m4-max"), ram_gib)
    usable = usable_mib(gpu)

    assert usable is not None
    assert (usable.low, usable.expected, usable.high) == (low, expected, high)
    assert sizes(gpu) == (low, expected, high)
    assert ("no reading" in usable.source) == (ram_gib in {8, 96, 192, 1024})
    visible = visible_memory(gpu)
    assert visible is not None
    assert "sudo sysctl iogpu.wired_limit_mb=N" in visible.basis


def test_only_a_mac_has_metals_limit() -> None:
    """Others have none, and a Mac whose memory is not known neither."""
    assert usable_mib(find_gpu("h100")) is None
    assert usable_mib(Gpu(id="x", name="x", vendor="apple")) is None


def test_a_reading_of_ones_own_comes_first() -> None:
    """A Mac whose owner has written down what torch sees."""
    gpu = Gpu(id="x", name="x", vendor="apple", memory_marketing_gb=64, torch_total_mib=60_000)

    assert sizes(gpu) == (60_000, 60_000, 60_000)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("schema_version: 1", "schema_version: 2"), "schema_version"),
        (("schema_version: 1", "schema_version: 1\nextra: 1"), "extra"),
        (("of_tool_amd: {low: 1.0, expected: 1.0, high: 1.0", "of_tool_amd: {low: 1.0, expected: 1.0, high: 1.1"),
         "visible_share.of_tool_amd"),
        (("of_marketing: {low: 0.91", "of_marketing: {low: .nan"), "visible_share.of_marketing.low"),
        (("of_marketing:", "of_box:"), "visible_share.of_box"),
        (("share: 2/3", "share: 3/2"), "metal.older_rule.0.share"),
        (("share: 2/3", "share: 0.67"), "metal.older_rule.0.share"),
        (("{from_gib: 33,", "{from_gib: 0,"), "metal.older_rule"),
        (("{from_gib: 33,", "{from_gib: -1,"), "metal.older_rule.1.from_gib"),
        (("{ram_gib: 36,", "{ram_gib: 20,"), "metal.readings.5.megabytes"),
        (("{ram_gib: 36,", "{ram_gib: 0,"), "metal.readings.5.ram_gib"),
        (("megabytes: 28991.03", "megabytes: many"), "metal.readings.5.megabytes"),
        (("raise_with: sudo", "raise_with: 1 #"), "metal.raise_with"),
    ],
)  # fmt: skip
def test_a_broken_file(change: tuple[str, str], key: str) -> None:
    """Path, line and key."""
    assert TEXT.count(change[0]) == 1
    with pytest.raises(ProfileError) as caught:
        check(parse_yaml(TEXT.replace(*change), Path("hardware.yaml")), HardwareFile)
    assert caught.value.key == key
    assert caught.value.line is not None


def test_the_file() -> None:
    """It loads, and each reading is the newer or the older rule's for its size, within what two decimals of 10^6 bytes hide."""
    metal = record(TOP, "hardware")["metal"]

    assert len(metal["readings"]) == 11
    for reading in metal["readings"]:
        rules = [
            [step for step in metal[rule] if step["from_gib"] <= reading["ram_gib"]][-1] for rule in ("older_rule", "newer_rule")
        ]
        usable = int(reading["megabytes"] * 10**6) // 1024**2 / (reading["ram_gib"] * 1024)
        assert min(abs(usable - Fraction(step["share"])) for step in rules) < 0.0005
