"""Check files and models for the tests of ``kvplan check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from hwcalc.check.file import CheckFile, parse_check_file, read_text
from tests.hwcalc.command import QWEN, Capture, run

__all__ = [
    "DEPLOYMENT",
    "LLAMA_SERVER",
    "PER_TOKEN",
    "SERVICE",
    "TINY",
    "WEIGHTS",
    "check_file",
    "checked",
    "read_check_file",
    "tiny_model",
    "write",
]

TINY: Final = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
PER_TOKEN: Final = 2 * 4 * 64 * 2 * 2
"""Bytes a token: 2 layers x 4 heads x (512 / 8) numbers x key and value x 2 bytes."""
_ATTENTION: Final = 512 * 512 * 2 + 512 * 256 * 2
_LAYER: Final = _ATTENTION + 3 * 512 * 1024 + 2 * 512
WEIGHTS: Final = 2 * (2 * 1000 * 512 + 2 * _LAYER + 512)
"""Bytes: embedding and head, two layers (query and output, key and value, three matrices of the MLP, two norms), the last norm."""


def write(path: Path, content: str | dict[str, Any]) -> Path:
    """A file with this text, or this document as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def read_check_file(path: str) -> CheckFile:
    """The checks of a file."""
    return parse_check_file(read_text(path), path)


def tiny_model(folder: Path, **changes: Any) -> Path:
    """A model's folder ``tiny`` in ``folder``."""
    write(folder / "tiny" / "config.json", {**TINY, **changes})
    return folder / "tiny"


def check_file(folder: Path, *checks: dict[str, Any], defaults: dict[str, Any] | None = None, name: str = "kvplan.yaml") -> str:
    """A check file in ``folder`` beside :func:`tiny_model`; its path."""
    tiny_model(folder)
    document: dict[str, Any] = {"schema_version": 1, "checks": list(checks)}
    if defaults is not None:
        document["defaults"] = defaults
    return str(write(folder / name, document))


DEPLOYMENT: Final = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
      containers:
      - image: vllm/vllm-openai:v0.11.0
        args: [--model={QWEN}, --max-model-len=8192, --tensor-parallel-size, "2"]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


SERVICE: Final = "apiVersion: v1\nkind: Service\nmetadata: {name: chat}\n"


LLAMA_SERVER: Final = "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -ngl 99"


def checked(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON document of ``kvplan check``."""
    status, out, err = run(capsys, "check", *words, "--json")
    assert err == ""
    return status, json.loads(out)
