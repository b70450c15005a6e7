"""MIG slices: their numbers are NVIDIA's, a slice is planned as an accelerator of its own, and what nobody has read is refused by name."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

import pytest

from hwcalc import plan, read_launch
from hwcalc.errors import UsageError
from hwcalc.hardware.local import FoundGpu, match
from hwcalc.hardware.named import gpu_named
from hwcalc.launch.planned import planned
from hwcalc.profiles.gpus import find_gpu, visible_memory
from hwcalc.profiles.mig import cuts
from hwcalc.report.emit import emitted
from tests.hwcalc.command import Capture, run

MODEL = "Qwen/Qwen3-1.7B"
SEVEN = {"1/8, 1g": 7, "2/8, 1g": 4, "2/8, 2g": 3, "4/8, 3g": 2, "4/8, 4g": 1, "8/8, 7g": 1}
FOUR = {"1/4, 1g": 4, "2/4, 2g": 2, "4/4, 4g": 1}
"""Fraction of memory and slices of compute -> number of instances: NVIDIA's user guide, Supported MIG Profiles."""
SIZES = {
    "a30": ("6", "12", "24"),
    "a100-sxm4-40gb": ("5", "10", "10", "20", "20", "40"),
    "a100-pcie-40gb": ("5", "10", "10", "20", "20", "40"),
    "a100-sxm4-80gb": ("10", "20", "20", "40", "40", "80"),
    "a100-pcie-80gb": ("10", "20", "20", "40", "40", "80"),
    "h100-sxm5-80gb": ("10", "20", "20", "40", "40", "80"),
    "h100-pcie-80gb": ("10", "20", "20", "40", "40", "80"),
    "h100-nvl-94gb": ("12", "24", "24", "47", "47", "94"),
    "gh200-96gb": ("12", "24", "24", "48", "48", "96"),
    "rtx-pro-6000-server": ("24", "48", "96"),
}
"""GB in the names, in the guide's order. Of H200 the memory of three slices is known."""


@pytest.mark.parametrize("gpu", SIZES)
def test_slices_are_those_of_the_guide(gpu: str) -> None:
    """Names, parts of the memory, and how many stand side by side, which follows from where they may begin."""
    cut, told = cuts()[gpu], SEVEN if len(SIZES[gpu]) > 3 else FOUR
    names = [f"{share.rpartition(' ')[2]}.{size}gb" for share, size in zip(told, SIZES[gpu], strict=True)]
    parts = [f"{part.memory_slices}/{cut.memory_slices}, {name[:2]}" for name, part in cut.slices.items()]

    assert list(cut.slices) == names
    assert dict(zip(parts, map(cut.most, names), strict=True)) == told


@pytest.mark.parametrize(
    ("names", "fit"),
    [
        ("3g.40gb 2g.20gb 1g.10gb 1g.10gb", True),
        ("2g.20gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb", True),
        ("4g.40gb 3g.40gb", True),
        ("1g.20gb 1g.20gb 1g.20gb 1g.10gb", True),
        # Seven of eight parts begin a slice of one; two halves leave nothing; only one half begins a slice of four.
        ("1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb", False),
        ("3g.40gb 3g.40gb 1g.10gb", False),
        ("4g.40gb 4g.40gb", False),
        ("1g.20gb 2g.20gb 2g.20gb 2g.20gb 1g.10gb", False),
    ],
)
def test_slices_side_by_side(names: str, fit: bool) -> None:
    """The first two are examples of the guide (3-2-1-1 and 2-1-1-1-1-1)."""
    assert cuts()["h100-sxm5-80gb"].together(names.split()) is fit


def test_a_slice_is_an_accelerator_of_its_own() -> None:
    """An eighth of 3,350 GB/s, 16 of 132 multiprocessors of 989.4 TFLOPS, and the 9.75 GiB that nvidia-smi mig -lgip prints."""
    gpu = find_gpu("h100:1g.10gb")
    seen = visible_memory(gpu)

    assert (gpu.id, gpu.name) == ("h100-sxm5-80gb-mig-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert gpu.memory_bandwidth_gbps == 3350 / 8
    assert gpu.tflops_dense["bf16"] == pytest.approx(989.4 * 16 / 132)
    assert seen is not None
    assert seen.expected_bytes == 9.75 * 2**30
    for name in (gpu.id, "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "h100 mig 1g.10gb", "H100:1G.10GB"):
        assert find_gpu(name) == gpu


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b200:1g.23gb", "is a slice, and none of b200-180gb is known"),
        ("h200:1g.35gb", "is a slice of whose memory no reading is known"),
        ("MIG 1g.10gb", "is a slice, and does not say of which accelerator"),
        ("l4:1g.6gb", "is a slice, and none of l4 is known"),
    ],
)
def test_what_nobody_has_read_is_refused_by_name(name: str, message: str) -> None:
    """With where to see those that are known."""
    with pytest.raises(UsageError, match=message) as caught:
        gpu_named(name)
    assert (caught.value.hint or "").endswith("kvplan gpus mig")


def test_a_plan_on_a_slice() -> None:
    """Of the 9,984 MiB vLLM takes 0.92; the speed is a bound: weights and caches at an eighth of the bandwidth. It says what the slice has."""
    made = plan(MODEL, engine="vllm", gpu="h100:1g.10gb", seq=4096, prompt=3072, batch=4)
    whole = plan(MODEL, engine="vllm", gpu="h100", seq=4096, prompt=3072, batch=4)

    assert made.fit is not None
    assert made.fit.usable_bytes == ceil(0.92 * 9984 * 2**20)
    assert made.speed is not None
    assert whole.speed is not None
    assert made.speed.decode_tokens_per_s is None
    assert made.speed.decode_step_s_bound == pytest.approx(8 * (whole.speed.decode_step_s_bound or 0))
    notes = {note.code: note.message for note in made.notes}
    assert "1 of 8 parts of the memory and 16 of 132 multiprocessors" in notes["mig-slice"]
    assert "No expected speed" in notes["speed-not-measured"]


@pytest.mark.parametrize("more", [{"tp": 2}, {"gpus": 2}, {"dp": 7}, {"engine": "llamacpp", "gpus": 2}])
def test_a_model_runs_on_one_slice(more: dict[str, Any]) -> None:
    """Whatever the layout and the engine."""
    with pytest.raises(UsageError, match="NCCL supports slices as an experiment and without P2P"):
        plan(MODEL, **{"engine": "vllm", "gpu": "h100:3g.40gb", "seq": 4096, **more})


@pytest.mark.parametrize("form", ["kubernetes", "helm"])
def test_a_manifest_asks_for_the_slice(form: str) -> None:
    """As its own resource on nodes with the whole accelerator (the mixed strategy); it is read as the slice again."""
    text = emitted(plan(MODEL, engine="vllm", gpu="h100:1g.10gb", seq=4096, offline=True), form)
    [server] = read_launch(text)

    assert "nvidia.com/mig-1g.10gb" in text
    assert "NVIDIA-H100-80GB-HBM3" in text
    assert server.to_dict()["gpu"] == "MIG 1g.10gb"
    assert planned(server).options["gpu"] == "h100-sxm5-80gb-mig-1g.10gb"


@pytest.mark.parametrize(("name", "gpu"), [("1g.20gb", "h100-sxm5-80gb-mig-1g.20gb"), ("1g.23gb", None)])
def test_a_blueprint_has_a_slice_of_its_instance(name: str, gpu: str | None) -> None:
    """Of the accelerator that the instance has; a slice that is not known is none, and not the whole accelerator."""
    text = json.dumps(
        {
            "recipe_id": "llm_inference_nvidia",
            "recipe_node_shape": "BM.GPU.H100.8",
            "recipe_image_uri": "vllm/vllm-openai:v0.9.1",
            "recipe_container_command_args": ["--model", MODEL],
            "mig_resource_request": name,
        }
    )
    [server] = read_launch(text)
    made = planned(server)

    assert server.to_dict()["gpu"] == f"MIG {name}"
    assert made.options.get("gpu") == gpu
    assert [f"MIG {name}" in str(remark) for remark in made.remarks] == ([] if gpu else [True])


def test_the_slice_of_this_machine() -> None:
    """By the name that the driver gives it, with the memory that is read."""
    device = FoundGpu(name="NVIDIA A100 80GB PCIe MIG 1g.10gb", vendor="nvidia", memory_mib=9728, by_torch=True, through="torch")
    gpu = match(device, [])

    assert gpu is not None
    assert (gpu.id, gpu.torch_total_mib) == ("a100-pcie-80gb-mig-1g.10gb", 9728)


def test_slices_are_listed(capsys: Capture) -> None:
    """With the accelerator, and by the word mig."""
    _, one, _ = run(capsys, "gpus", "h100-sxm5-80gb")
    _, every, _ = run(capsys, "gpus", "a30", "mig", "--format", "csv")

    assert "7 x 1g.10gb, 4 x 1g.20gb, 3 x 2g.20gb, 2 x 3g.40gb, 1 x 4g.40gb, 1 x 7g.80gb" in " ".join(one.split())
    assert [line.partition(",")[0] for line in every.splitlines()[1:]] == [
        f"a30-mig-{name}" for name in ("1g.6gb", "2g.12gb", "4g.24gb")
    ]
