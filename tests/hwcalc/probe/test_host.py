"""What a machine says of its own memory: files of the kernel, control groups, the driver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hwcalc.probe.devices import NoDeviceError, available_bytes, driver_version, load_torch, resident_bytes, total_bytes

MIB = 2**20
GIB = 2**30


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_free_memory_of_a_machine(tmp_path: Path) -> None:
    """MemAvailable, in KiB, where no control group has less."""
    root = machine(tmp_path, {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n"})

    assert available_bytes(root) == 5000 * 1024


@pytest.mark.parametrize(
    "files, free",
    [
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "3000000\n",
                "sys/fs/cgroup/a/memory.current": "1000000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 400000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "900000\n",
            },
            2_400_000,
        ),
        (
            {
                "proc/self/cgroup": "12:cpu:/x\n5:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500000\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
            },
            0,
        ),
        ({"proc/self/cgroup": "0::/../../../etc\nnonsense\n5:memory\n", "sys/fs/cgroup/memory.max": "12 34\n"}, None),
        (
            {
                "proc/self/cgroup": "5:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            },
            None,
        ),
    ],
    ids=["v2", "v1", "nonsense", "no limit"],
)
def test_free_memory_in_a_control_group(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    """The limit less what is used, page cache apart, of the group that has least; none without a limit."""
    assert available_bytes(machine(tmp_path, files)) == free


def test_nothing_says_what_is_free(tmp_path: Path) -> None:
    """Without /proc nothing is known of what is free; the driver has no version."""
    assert available_bytes(tmp_path) is None
    assert resident_bytes(tmp_path) is None
    assert driver_version(tmp_path) is None
    assert total_bytes(tmp_path)


def test_the_driver_by_its_own_file(tmp_path: Path) -> None:
    """The version stands in the first line of /proc/driver/nvidia/version."""
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 12.3.0\n"

    assert driver_version(machine(tmp_path, {"proc/driver/nvidia/version": text})) == "580.159.03"


@pytest.mark.parametrize(
    "body, error, said",
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            NoDeviceError,
            "does not start: libcudart.so.12",
        ),
        ("raise OSError('c10.dll is no valid application')", NoDeviceError, "does not start: c10.dll"),
        ("import kvplan_has_no_such_module", NoDeviceError, "does not start: No module named 'kvplan_has_no_such_module'"),
        ("raise ModuleNotFoundError('none', name='torch')", NoDeviceError, "is not installed here"),
        ("try:\n    raise SystemExit(143)\nfinally:\n    raise ImportError('_C')", SystemExit, "143"),
    ],
)
def test_torch_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: type[BaseException], said: str
) -> None:
    """Installed and broken is not missing; and a program that is ended meanwhile has that end."""
    (tmp_path / "torch.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(error, match=said):
        load_torch()
