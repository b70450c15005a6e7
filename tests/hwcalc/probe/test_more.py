"""What is measured beside the allocation: asked for by its options, shown in every format, kept in the receipt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hwcalc.hardware.named import gpu_named
from hwcalc.probe import run as module
from hwcalc.probe.live import AGREES, DIFFERS, NOT_RUN
from hwcalc.probe.run import More
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import Capture, run

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A small model's config file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def test_all_of_them(capsys: Capture, tmp_path: Path, config: str) -> None:
    """A live model, the largest batch and the bandwidth in one document, and in the receipt.

    A sequence of 1,024 tokens takes 2 layers x 2 x 2 heads x 1,024 x 16 numbers x 2 bytes = 262,144 bytes: 16 of them in 4 MiB.
    """
    receipt = tmp_path / "r.json"
    words = (
        config,
        "--seq",
        "1024",
        "--device",
        "cpu",
        "--max-bytes",
        "4MiB",
        "--live",
        "--find-max",
        "batch",
        "--bandwidth",
        "--speed",
    )
    status, out, err = run(capsys, "probe", *words, "--receipt", str(receipt), "--json")
    document = json.loads(out)

    assert (status, err) == (0, "")
    Draft202012Validator(json_schema("probe")).validate(document)
    assert document["more"]["live"]["status"] == AGREES
    assert [step["name"] for step in document["more"]["speed"]["steps"]] == ["prefill", "decode"]
    assert document["more"]["maximum"]["value"] == 16
    assert document["more"]["bandwidth"]["read"]["seconds"] > 0
    assert document["more"]["bandwidth"]["gpu"] is None
    kept = json.loads(receipt.read_text())
    Draft202012Validator(json_schema("receipt")).validate(kept)
    assert kept["more"] == document["more"]


def test_in_words(capsys: Capture, config: str) -> None:
    """The table says what was found, and CSV has the live layers."""
    words = (config, "--seq", "1024", "--device", "cpu", "--max-bytes", "4MiB", "--live", "--find-max", "batch", "--speed")
    status, out, _ = run(capsys, "probe", *words)
    assert status == 0
    assert "live llama on cpu: agrees" in out
    assert "largest batch: 16 (4,194,304 B (4.00 MiB))" in out
    assert "speed of llama on cpu, transformers " in out
    table = run(capsys, "probe", *words, "--format", "csv")[1]
    assert ",live,cache," in table
    assert ",speed,decode (s)," in table


@pytest.mark.parametrize(
    "status, maximum, agrees", [(AGREES, True, True), (DIFFERS, True, False), (NOT_RUN, True, False), (AGREES, False, False)]
)
def test_the_verdict(status: str, maximum: bool, agrees: bool) -> None:
    """What differs or could not be run is no agreement."""
    live: Any = SimpleNamespace(status=status)
    found: Any = SimpleNamespace(agrees=maximum)

    assert More(live=live, maximum=found, bandwidth=None, notes=()).agrees is agrees


def test_one_process_only(capsys: Capture, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun these are refused before anything is measured; so is a search for something else."""
    assert run(capsys, "probe", config, "--find-max", "layers")[0] == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (("--live",), ("--find-max", "seq"), ("--bandwidth",), ("--speed",)):
        status, out, err = run(capsys, "probe", config, *words)
        assert (status, out) == (2, "")
        assert "torchrun" in err


def test_bandwidth_belongs_to_the_accelerator_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of another one is measured on this one all the same, and kept under this one's name."""
    asked: dict[str, Any] = {}
    size = 512 * 2**20

    def measure_bandwidth(*_: Any, **keywords: Any) -> Any:
        asked.update(keywords)
        return SimpleNamespace(gpu=keywords["gpu"].id, read=SimpleNamespace(bytes=size))

    monkeypatch.setattr("hwcalc.probe.run.measure_bandwidth", measure_bandwidth)
    monkeypatch.setattr("hwcalc.probe.run.save_bandwidth", lambda result: Path(f"/kept/{result.gpu}"))
    # The first of the machine is another one than the one that was measured.
    monkeypatch.setattr("hwcalc.hardware.named.load_gpu", lambda *_: gpu_named("h100-sxm5-80gb"))
    torch = SimpleNamespace(version=SimpleNamespace(hip=None))
    device: Any = SimpleNamespace(kind="cuda", name="NVIDIA L4", total_bytes=22_563 * 2**20, torch=torch)
    notes: list[Any] = []
    options: Any = SimpleNamespace(max_bytes=None, reserve_bytes=None)
    anything: Any = None
    result = module._bandwidth(anything, device, options, notes)

    assert result.gpu == asked["gpu"].id == "l4"
    assert notes[-1].message == "Kept in /kept/l4: plans of l4 use it."

    size -= 1
    module._bandwidth(anything, device, options, notes)
    assert notes[-1].message.startswith("Not kept: ")

    mps: Any = SimpleNamespace(kind="mps")
    size += 1
    assert module._bandwidth(anything, mps, options, notes).gpu == "h100-sxm5-80gb"
