"""Buffers and weights in public logs of llama.cpp and programs that run it, by the build.

Of 28 logs with such lines two print their build. For another one ``BUILDS`` names a build of the time, or the only rules under which its
lines close: where a buffer beside the GPU is a sum of masks and embeddings alone, it tells builds apart to the hundredth of a MiB.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.engines.devices import Placement
from hwcalc.planner.context import open_request
from hwcalc.units import MIB
from tests.hwcalc.reconcile.public_logs import rows

BUILDS: Final = {
    # Before b6071 there is no index of values: 7.00, 21.01 and 264.01 MiB are masks and an embedding.
    "lc3-phi3mini-cuda-ub256": "b5500", "lc3-qwen3-4b-fa0-8k": "b5500", "lms3-dsr1-qwen3-8b-131k": "b5500",
    # Of August 2025, with an index: 28.01.
    "lc3-llama33-70b-rpc-4k": "b6300",
    # A mask of 32 bits and one embedding, before b7819. Ollama had b7437 in itself until May 2026.
    "ol3-llama32-3b-cpu-2026": "b7437", "ol3-qwen25-7b-3060": "b7437", "lc3-qwen3-14b-rocm-2k": "b7437",
    "lc3-qwen3coder-30b-q8-64k": "b7437", "lc3-qwen25vl-3b-ub4096": "b7437", "lc3-smollm2-17b-cpu-1k": "b7437", "lc3-gemma2-2b-4s": "b7437",
    # A mask of 32 bits and two embeddings, from b7819 to b9409.
    "lc3-qwen35-4seq-cpu-4k": "b8500", "lc3-gptoss20b-4s-m5": "b8500", "lc3-qwen25-05b-mtl-512": "b8500", "lc3-27b-ngl26-ub1024": "b8500",
    "lc3-qwen35-9b-mtp6-m4": "b9300",
    # Masks of 16 bits and logits of a batch, from b9410 to b9459.
    "lc3-qwen35-27b-mtp6-262k": "b9450",
    # Logits of the slots alone: 2026-07 and later.
    "lc3-qwen38-27b-vk-32k-mtpctx": "v0.5.0", "lc3-qwen38-27b-vk-8k-4s": "v0.5.0", "lc3-qwen35-9b-vk-ngl20": "v0.5.0",
    "lc3-llama31-8b-ngl14": "v0.5.0", "lc3-27b-rocm-q8-64k": "v0.5.0", "lc3-gemma4-e4b-q8-64k": "v0.5.0", "lc3-qwen3-30b-2xb70": "v0.5.0",
}  # fmt: skip
"""A log that does not print its build -> the build to plan with."""
GPUS: Final = {
    "CPU": "cpu-64gb", "rtx-3060": "rtx-3060", "rtx-5090": "rtx-5090", "rtx-4060-ti": "rtx-4060-ti-16gb", "a100": "a100-80gb",
    "ROCm": "mi300x", "ROCm gfx1151": "mi300x", "ROCm RDNA": "mi300x", "M4 Pro": "m4-max", "Apple M5": "m4-max", "Metal": "m4-max",
    "Vulkan": "arc-pro-b70", "2x Arc Pro B70": "arc-pro-b70", "CUDA": "rtx-pro-6000", "RPC": "rtx-pro-6000",
}  # fmt: skip
"""What the log says of its device -> one of the same back end with memory enough. Where layers lie is what the log says."""
MISSED: Final = {
    ("lc3-qwen35-9b-vk-ngl20", "gpu"): "20 of 33 layers on the GPU: 498 MiB, ours 361 to 466",
    ("lc3-27b-rocm-q8-64k", "gpu"): "a fork on RDNA, whose copies of the cache are others: 410.28 MiB, ours 338 to 400",
    ("lc3-qwen3-30b-2xb70", "gpu"): "two GPUs, of which the figure is one's: 712.08 MiB, ours 532 to 676 each",
}
"""A compute buffer outside its range, with the reason."""
OTHER_FILES: Final = {
    "lc3-gemma4-e4b-q8-64k": "the log does not say how its file is quantised",
    "lc3-stories15m-f32-256": "a toy model without a config",
}
"""Logs whose file is no mix that llama-quantize makes."""
LINES: Final = [row for row in rows("llamacpp") if {seen["what"] for seen in row["observed"]} & {"compute", "weights"}]


def placed(row: dict[str, Any]) -> Placement:
    """What each device holds by the rules of the log's build."""
    options = {name: str(value) for name, value in row["options"].items() if (name, value) != ("flash_attn", "auto")}
    gpu = GPUS[row["gpu"]]
    if not gpu.startswith("cpu"):
        options.setdefault("n_gpu_layers", "all")
    occupancy = open_request(
        load_model(row["config"]),
        engine=f"llamacpp@{row.get('engine_version') or BUILDS[row['id']]}",
        seq=row["options"]["n_ctx"],
        batch=row["options"].get("n_seq_max", 1),
        gpu=gpu,
        gpus=2 if row["gpu"].startswith("2x") else None,
        weights=row.get("quant") or None,
        engine_options=options,
    )
    found = occupancy.devices.placement()
    assert found is not None
    return found


@pytest.mark.parametrize(
    "row", [row for row in LINES if row["id"] not in OTHER_FILES or "gemma" in row["id"]], ids=lambda row: row["id"]
)
def test_compute_buffers_of_public_logs(row: dict[str, Any]) -> None:
    """Each lies in the range of its build, up to half a MiB; those that do not are known."""
    made = placed(row)
    for seen in row["observed"]:
        if seen["what"] != "compute":
            continue
        shares = made.gpus if seen["device"] == "gpu" else (made.host,)
        parts = [part for share in shares for part in share.parts if part.name == "compute buffer"]
        low, high = sum(part.low for part in parts) / MIB, sum(part.high for part in parts) / MIB
        inside = low - 0.5 <= seen["mib"] <= high + 0.5
        assert inside is ((row["id"], seen["device"]) not in MISSED), (seen, low, high)


@pytest.mark.parametrize(
    "row",
    [row for row in LINES if row["id"] not in OTHER_FILES and any(seen["what"] == "weights" for seen in row["observed"])],
    ids=lambda row: row["id"],
)
def test_weights_of_public_logs(row: dict[str, Any]) -> None:
    """The model's buffers on GPUs and host: exact in the digits of the log, or within 1.1 MiB where another version quantised the file."""
    made = placed(row)
    tolerance = 1.1 if row["id"] == "lc3-qwen3-14b-rocm-2k" else 0.021
    for seen in row["observed"]:
        if seen["what"] == "weights":
            shares = made.gpus if seen["device"] == "gpu" else (made.host,)
            assert sum(share.weights_bytes for share in shares) / MIB == pytest.approx(seen["mib"], abs=tolerance)


def test_every_log_with_a_build_is_judged_by_it() -> None:
    """No build is guessed where the log prints it, and none is missing."""
    stated = {row["id"] for row in LINES if row.get("engine_version")}
    assert not stated & BUILDS.keys()
    assert {row["id"] for row in LINES} - stated - BUILDS.keys() == {"lc3-stories15m-f32-256"}
    assert {name for name, _ in MISSED} | OTHER_FILES.keys() <= {row["id"] for row in LINES}
