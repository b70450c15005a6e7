"""Names of several forms of one accelerator, and the numbers of cards that people own."""

from __future__ import annotations

import pytest

from hwcalc.hardware.named import load_gpu
from hwcalc.model import Note
from hwcalc.profiles.gpus import find_gpu, nearest


@pytest.mark.parametrize(
    ("name", "gpu_id", "others"),
    [
        ("h100", "h100-sxm5-80gb", ("h100-nvl-94gb", "h100-pcie-80gb")),
        ("NVIDIA H100", "h100-sxm5-80gb", ("h100-nvl-94gb", "h100-pcie-80gb")),
        ("h20", "h20-96gb", ("h20-3e-141gb",)),
        ("a100-pcie", "a100-pcie-80gb", ("a100-pcie-40gb",)),
        ("4060-ti", "rtx-4060-ti-16gb", ("rtx-4060-ti-8gb",)),
        ("RTX 3060", "rtx-3060-12gb", ("rtx-3060-8gb",)),
        ("2060", "rtx-2060", ("rtx-2060-12gb",)),
        ("rtx-pro-6000", "rtx-pro-6000-ws", ("rtx-pro-6000-maxq", "rtx-pro-6000-server")),
        ("m4 max", "apple-m4-max-40c-128gb", ("apple-m4-max-32c",)),
        # All is said, or there is one form.
        ("h100-sxm-80gb", "h100-sxm5-80gb", ()),
        ("h100-sxm", "h100-sxm5-80gb", ()),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb", ()),
        ("h100-sxm5-80gb", "h100-sxm5-80gb", ()),
        ("rtx-2060", "rtx-2060", ()),
        ("rtx4090", "rtx-4090", ()),
        ("mi300x", "mi300x", ()),
        ("l4", "l4", ()),
    ],
)
def test_a_name_of_several_forms(name: str, gpu_id: str, others: tuple[str, ...]) -> None:
    """The usual form is taken, and a note names the others."""
    notes: list[Note] = []

    assert load_gpu(name, notes).id == gpu_id
    said = [note.message for note in notes if " is taken as " in note.message]
    assert said == ([f"'{name}' is taken as {gpu_id}; also known: {', '.join(others)}."] if others else [])


@pytest.mark.parametrize(
    ("gpu_id", "sold", "reported", "bandwidth", "fp16"),
    [
        # TechPowerUp's pages; nvidia-smi of such cards; NVIDIA's FP32 rates times 2 (Turing 4).
        ("rtx-4060-ti-8gb", 8, 8188, 288, 44.1),
        ("rtx-3080-12gb", 12, 12288, 912.4, 61.3),
        ("rtx-2080-super", 8, 8192, 495.9, 44.6),
        ("p40-pcie-24gb", 24, 24576, 347.1, 0.2),
        ("rtx-4080-laptop", 12, 12282, 432, None),
        ("rx-7800-xt", 16, None, 624.1, 74.6),
    ],
)
def test_cards_that_people_own(gpu_id: str, sold: int, reported: int | None, bandwidth: float, fp16: float | None) -> None:
    """Memory and speed as their sources say; the same chip with other memory has the same rates."""
    gpu = find_gpu(gpu_id)

    assert (gpu.memory_marketing_gb, gpu.memory_total_mib, gpu.memory_bandwidth_gbps) == (sold, reported, bandwidth)
    assert gpu.tflops_dense["fp16"] == fp16
    assert find_gpu("rtx-4060-ti-8gb").tflops_dense == find_gpu("rtx-4060-ti-16gb").tflops_dense


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mac", ["apple-m5", "apple-m4", "apple-m3"]),
        ("macbook-m4", ["apple-m4", "apple-m4-max-32c", "apple-m4-max-40c"]),
        ("M4 with 24 GB", ["apple-m4-24gb", "apple-m4-pro-24gb"]),
        ("one nvidia h100 gpu", ["h100-sxm5-80gb"]),
    ],
)
def test_words_around_a_name(name: str, near: list[str]) -> None:
    """A name among other words is found, with the size of memory that is said."""
    assert list(nearest(name)) == near
