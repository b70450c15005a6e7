"""Repositories as strangers make them: configs, weight files whose tensors are never written down, indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["BITS", "COMMIT", "CONFIG", "MODEL", "TEXT", "File", "header", "index", "sharded", "weight_file"]

COMMIT: Final = "89abcdef0123456789abcdef0123456789abcdef"
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": 256,
}
TEXT: Final = json.dumps(CONFIG).encode()
BITS: Final = {"F4": 4, "U8": 8, "F8_E4M3": 8, "BF16": 16, "F16": 16, "I32": 32, "F32": 32, "I64": 64}

Tensors = Mapping[str, tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class File:
    """A file that begins with ``start``; the rest of its ``size`` bytes are zeros that nobody keeps in memory."""

    start: bytes
    size: int

    def part(self, first: int, end: int) -> bytes:
        """The bytes from ``first`` to before ``end``."""
        end = min(end, self.size)
        piece = self.start[first:end]
        return piece + b"\0" * (end - first - len(piece))


def header(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The header of a safetensors file, its length in front, and how many bytes the tensors behind it take."""
    rows: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape) in tensors.items():
        elements = 1
        for axis in shape:
            elements *= axis
        end = position + elements * BITS[dtype] // 8
        rows[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, position


def weight_file(tensors: Tensors) -> File:
    """A safetensors file with these tensors."""
    start, size = header(tensors, {"format": "pt"})
    return File(start, len(start) + size)


def index(files: Mapping[str, Tensors]) -> bytes:
    """What ``model.safetensors.index.json`` says of these files."""
    where = {tensor: name for name, tensors in files.items() for tensor in tensors}
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": where}).encode()


def sharded(count: int, tensors_each: int = 3, dtype: str = "BF16", shape: Sequence[int] = (64, 64)) -> dict[str, bytes | File]:
    """A model in ``count`` files of ``tensors_each`` equal tensors, and its index."""
    shards: dict[str, Tensors] = {
        f"model-{number:05}-of-{count:05}.safetensors": {
            f"model.layers.{number}.mlp.experts.{i}.down_proj.weight": (dtype, shape) for i in range(tensors_each)
        }
        for number in range(1, count + 1)
    }
    return {"model.safetensors.index.json": index(shards), **{name: weight_file(tensors) for name, tensors in shards.items()}}


MODEL: Final[dict[str, bytes | File]] = {
    "config.json": TEXT,
    "model.safetensors": weight_file({"w": ("BF16", (64, 64)), "i": ("I64", (3,))}),
}
"""A config and one file: 64 x 64 elements of two bytes and three of eight."""
