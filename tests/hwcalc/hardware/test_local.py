"""Finding this machine's accelerator: every interface is a fake, no device is needed, and what lies is not believed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from hwcalc.errors import UsageError
from hwcalc.hardware import local
from hwcalc.hardware.local import FoundGpu, amdgpu, bounded_output, detect, match, metal, nvidia_smi, nvml, rocm_smi, torch
from hwcalc.hardware.named import load_gpu
from hwcalc.model import Note
from hwcalc.profiles.catalog import user_folder
from hwcalc.profiles.gpus import visible_memory

MIB: Final = 1024**2

posix = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What one test found is nothing to the next."""
    detect.cache_clear()
    yield
    detect.cache_clear()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script of this name and body on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    return make


def only(monkeypatch: pytest.MonkeyPatch, *found: FoundGpu) -> None:
    """A machine whose first interface knows these."""
    monkeypatch.setattr(local, "PROBES", (list, lambda: list(found)))


def nvidia(name: str, memory_mib: int | None, **more: Any) -> FoundGpu:
    """As nvidia-smi tells of one."""
    return FoundGpu(name=name, vendor="nvidia", through="nvidia-smi", memory_mib=memory_mib, **more)


@posix
def test_nvidia_smi(tool: Callable[[str, str], None]) -> None:
    """A line for each device; memory that is shared has no number."""
    tool(
        "nvidia-smi",
        'test "$1" = --query-gpu=name,memory.total && echo "NVIDIA H200, 143771"; echo "NVIDIA GB10, [N/A]"; echo odd',
    )

    assert nvidia_smi() == [nvidia("NVIDIA H200", 143_771), nvidia("NVIDIA GB10", None)]


@posix
@pytest.mark.parametrize(
    "body",
    [
        "exit 9",
        'echo "NVIDIA H200, 143771"; exit 1',
        "yes 'NVIDIA H200, 143771'",
        "head -c 9000000 /dev/zero",
        'echo "NVIDIA H200, 0"',
        'echo "NVIDIA H200, 99999999999999999999999999"',
        'echo ", 143771"',
        "printf '\\377\\376\\n'",
        "",
    ],
)
def test_a_tool_that_fails_or_lies(tool: Callable[[str, str], None], body: str) -> None:
    """No device of no name, of no size or of one that no device has; and an endless answer is none."""
    tool("nvidia-smi", body)

    assert [one for one in nvidia_smi() if one.memory_mib is not None] == []


@posix
def test_a_tool_that_hangs(tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped with its children, who would keep the pipe open."""
    monkeypatch.setattr("hwcalc.hardware.local._SECONDS", 0.3)
    tool("nvidia-smi", "sleep 60 & sleep 60")
    begun = time.monotonic()

    assert nvidia_smi() == []
    assert time.monotonic() - begun < 30


@posix
def test_words_are_no_shell_commands(tool: Callable[[str, str], None]) -> None:
    """What is handed to a tool arrives as it is."""
    tool("echoing", 'printf "%s" "$1"')

    assert bounded_output("echoing", "$(echo no); x") == "$(echo no); x"
    assert bounded_output("no-such-tool") is None


class FakeNvml:
    """The C interface as far as it is used: a name, three sizes and a capability for each device."""

    def __init__(self, devices: list[tuple[bytes, int | None]], *, status: int = 0) -> None:
        self.devices, self.status, self.closed = devices, status, False

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's name
        return self.status

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.devices)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, length: Any) -> int:  # noqa: N802
        name.value = self.devices[handle.value - 1][0][: length.value - 1]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        size = self.devices[handle.value - 1][1]
        memory._obj[0] = size or 0
        return 0 if size is not None else 3

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.closed = True
        return 0


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Total memory is nvidia-smi's: 143,771 MiB of an H200; a device that shares the system's memory has none."""
    library = FakeNvml([(b"NVIDIA H200", 143_771 * MIB), (b"NVIDIA GB10", None)])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)

    h200, gb10 = nvml()
    assert (h200.name, h200.memory_mib, h200.capability, h200.by_torch) == ("NVIDIA H200", 143_771, (9, 0), False)
    assert (gb10.name, gb10.memory_mib) == ("NVIDIA GB10", None)
    assert library.closed


def test_nvml_that_is_missing_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library, one without a driver, one that lacks a function."""

    def missing(name: str) -> Any:
        raise OSError(name)

    for library in (missing, lambda _: FakeNvml([], status=9), lambda _: SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        assert nvml() == []


def test_amdgpu(tmp_path: Path) -> None:
    """The driver's files in the order of the cards; connectors are no cards, other makers' have no such file."""
    for card, name, total in (
        ("card10", "AMD Instinct MI300X OAM\n", 206_141_652_992),
        ("card2", "AMD Instinct MI210\n", 68_702_699_520),
    ):
        device = tmp_path / "class" / "drm" / card / "device"
        device.mkdir(parents=True)
        (device / "product_name").write_text(name, encoding="utf-8")
        (device / "mem_info_vram_total").write_text(f"{total}\n", encoding="utf-8")
    (tmp_path / "class" / "drm" / "card0" / "device").mkdir(parents=True)
    # The processor's own: memory and no name.
    (tmp_path / "class" / "drm" / "card1" / "device").mkdir(parents=True)
    (tmp_path / "class" / "drm" / "card1" / "device" / "mem_info_vram_total").write_text("536870912", encoding="utf-8")
    (tmp_path / "class" / "drm" / "card2-DP-1").mkdir()

    first, second = amdgpu(tmp_path)
    assert (first.name, first.memory_mib) == ("AMD Instinct MI210", 65_520)
    assert (second.name, second.memory_mib) == ("AMD Instinct MI300X OAM", 196_592)
    found = match(second, [])
    assert found is not None
    assert found.id == "mi300x"
    assert amdgpu(tmp_path / "none") == []


def test_amdgpu_without_a_name(tmp_path: Path) -> None:
    """A consumer card's driver does not say what it is: another interface may."""
    device = tmp_path / "class" / "drm" / "card0" / "device"
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text("25753026560\n", encoding="utf-8")

    assert amdgpu(tmp_path) == []


@posix
def test_rocm_smi(tool: Callable[[str, str], None]) -> None:
    """Its JSON, whatever the capitals of its keys."""
    tool(
        "rocm-smi",
        """echo '{"card0": {"Card Series": "AMD Radeon RX 7900 XTX", "VRAM Total Memory (B)": "25753026560"}, "system": {}}'""",
    )

    (one,) = rocm_smi()
    assert (one.name, one.memory_mib, one.vendor) == ("AMD Radeon RX 7900 XTX", 24_560, "amd")
    for body in ("echo '[1]'", "echo '{'", """echo '{"card0": 1}'""", """echo '{"card0": {"Card Series": "x"}}'"""):
        tool("rocm-smi", body)
        assert rocm_smi() == []


@posix
def test_metal(tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chip and memory by sysctl; the limit that its owner set counts, 0 is Metal's own."""
    body = 'case "$2" in iogpu.wired_limit_mb) echo {};; *) echo "Apple M4 Max"; echo 68719476736;; esac'
    monkeypatch.setattr(sys, "platform", "darwin")
    tool("sysctl", body.format(0))
    (one,) = metal()
    gpu = match(one, [])
    assert gpu is not None
    assert (gpu.id, gpu.torch_total_mib) == ("apple-m4-max-40c-64gb", None)

    tool("sysctl", body.format(57_344))
    gpu = match(metal()[0], [])
    assert gpu is not None
    visible = visible_memory(gpu)
    assert visible is not None
    assert visible.expected_bytes == 56 * 1024**3

    # More than there is makes no sense.
    tool("sysctl", body.format(99_999_999))
    assert metal()[0].memory_mib is None
    tool("sysctl", 'echo "Intel(R) Core(TM) i9"; echo 68719476736')
    assert metal() == []
    monkeypatch.setattr(sys, "platform", "linux")
    assert metal() == []


def fake_torch(**devices: Any) -> ModuleType:
    """An installed torch whose ``cuda`` has these devices."""
    module = ModuleType("torch")
    module.__spec__ = ModuleSpec("torch", None)
    properties = SimpleNamespace(name=devices["name"], total_memory=devices["total"], major=9, minor=0)
    module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: devices["total"] is not None, device_count=lambda: 1, get_device_properties=lambda _: properties
    )
    module.version = SimpleNamespace(hip=devices.get("hip"))  # type: ignore[attr-defined]
    return module


def test_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its total is what programs see: 143,156 MiB of an H200, which nvidia-smi gives 143,771."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch(name="NVIDIA H200", total=143_156 * MIB))
    (one,) = torch()
    assert (one.memory_mib, one.by_torch, one.vendor) == (143_156, True, "nvidia")
    gpu = match(one, [])
    assert gpu is not None
    assert (gpu.id, gpu.memory_total_mib, gpu.torch_total_mib) == ("h200-sxm-141gb", 143_771, 143_156)

    monkeypatch.setitem(sys.modules, "torch", fake_torch(name="AMD Instinct MI300X", total=206_141_652_992, hip="7.0"))
    assert torch()[0].vendor == "amd"
    monkeypatch.setitem(sys.modules, "torch", fake_torch(name="x", total=None))
    assert torch() == []
    broken = ModuleType("torch")
    broken.__spec__ = ModuleSpec("torch", None)
    broken.cuda = SimpleNamespace(is_available=lambda: 1 / 0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", broken)
    assert torch() == []


@pytest.mark.parametrize(
    ("name", "memory_mib", "gpu_id"),
    [
        # Names and totals as nvidia-smi prints them.
        ("NVIDIA H200", 143_771, "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", 81_559, "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 81_559, "h100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", 81_920, "a100-pcie-80gb"),
        ("NVIDIA GH200 480GB", 97_871, "gh200-96gb"),
        ("Tesla T4", 15_360, "t4"),
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16_376, "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 3060", 12_288, "rtx-3060-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16_380, "rtx-4060-ti-16gb"),
        ("NVIDIA GB10", None, "dgx-spark-gb10"),
        # Others of these names: 8 GB instead of 12 and 16.
        ("NVIDIA GeForce RTX 3060", 8_192, "rtx-3060-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8_188, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 3080", 12_288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16_384, "rtx-3080-laptop-16gb"),
        ("NVIDIA GeForce RTX 5060 Ti", 8_151, "rtx-5060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 8_188, "rtx-4060-laptop"),
        ("Tesla P40", 24_576, "p40-pcie-24gb"),
        # A form that is not known: an H100 with 64 GB.
        ("NVIDIA H100 64GB", 65_247, None),
        ("NVIDIA GeForce RTX 9999", 40_000, None),
        ("???", 40_000, None),
    ],
)
def test_matching(name: str, memory_mib: int | None, gpu_id: str | None) -> None:
    """By name, and the memory decides between those of one name."""
    gpu = match(nvidia(name, memory_mib), [])

    assert (gpu and gpu.id) == gpu_id


def test_the_reading_of_this_machine_counts() -> None:
    """An A10 without ECC has 24,564 MiB; a driver from before R510 gives a V100 16,160: neither is the profile's."""
    for name, size in (("NVIDIA A10", 24_564), ("Tesla V100-SXM2-16GB", 16_160)):
        gpu = match(nvidia(name, size), [])
        assert gpu is not None
        assert (gpu.memory_total_mib, gpu.torch_total_mib) == (size, None)
        visible = visible_memory(gpu)
        assert visible is not None
        assert visible.expected_bytes == int(size * 0.994) * MIB
    # A few MiB are the driver's version: what torch was seen to see stands.
    gpu = match(nvidia("NVIDIA H200", 143_770), [])
    assert gpu is not None
    assert (gpu.memory_total_mib, gpu.torch_total_mib) == (143_770, 143_156)


def test_a_mac_of_an_unlisted_size() -> None:
    """A known chip with a size that nobody sells is planned with that size; an unknown chip with what was read."""
    gpu = match(FoundGpu(name="Apple M4 Max", vendor="apple", through="sysctl", system_mib=80 * 1024), [])

    assert gpu is not None
    assert gpu.memory_marketing_gb == 80


def test_load_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``local`` is the first kind that the machine has; the note says how many there are and what is left out."""
    only(monkeypatch, *[nvidia("NVIDIA H200", 143_771)] * 8, nvidia("Tesla T4", 15_360))
    notes: list[Note] = []

    assert load_gpu(" Local ", notes).id == "h200-sxm-141gb"
    assert [note.code for note in notes] == ["local-gpu"]
    assert "planned as h200-sxm-141gb" in notes[0].message
    assert "--gpus 8" in notes[0].message
    assert "Left out: Tesla T4." in notes[0].message


def test_a_device_without_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned with what was measured, and its name cannot move a terminal's cursor."""
    only(monkeypatch, nvidia("NVIDIA\x1b[31m RTX 9999", 40_000, capability=(12, 5)))
    notes: list[Note] = []
    gpu = load_gpu("local", notes)
    visible = visible_memory(gpu)

    assert (gpu.id, gpu.memory_total_mib, gpu.torch_total_mib, gpu.architecture) == ("local", 40_000, None, "sm_125")
    assert visible is not None
    assert visible.expected_bytes == int(40_000 * 0.994) * MIB
    assert "no profile is known" in notes[0].message
    assert "\x1b" not in notes[0].message + gpu.name

    detect.cache_clear()
    only(monkeypatch, FoundGpu(name="Apple M9", vendor="apple", through="sysctl", system_mib=65_536))
    gpu = load_gpu("local", [])
    assert (gpu.memory_marketing_gb, gpu.vendor) == (64, "apple")
    visible = visible_memory(gpu)
    assert visible is not None
    # Metal's limit of a Mac with 64 GB.
    assert visible.expected_bytes == 53_084 * MIB


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of usage that says what was asked and what to type."""
    monkeypatch.setattr(local, "PROBES", (list,))

    with pytest.raises(UsageError, match="no GPU found here") as caught:
        load_gpu("local", [])
    assert "--gpu" in caught.value.hint


def test_a_broken_file_of_a_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is named, here as elsewhere, and this machine's own is found among the others."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("gpus")
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text("[", encoding="utf-8")
    only(monkeypatch, nvidia("NVIDIA H200", 143_771))

    notes: list[Note] = []
    assert load_gpu("local", notes).id == "h200-sxm-141gb"
    assert [note.code for note in notes if "bad.yaml" in note.message] == ["broken-profile"]
