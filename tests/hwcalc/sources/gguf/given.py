"""GGUF files byte by byte, sound and not, and files as the ``gguf`` package of llama.cpp writes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["KEYS", "SHAPES", "array", "gguf_bytes", "pair", "tensor", "text", "value", "written"]

UINT32: Final = 4
INT32: Final = 5
FLOAT32: Final = 6
BOOL: Final = 7
STRING: Final = 8
ARRAY: Final = 9
UINT64: Final = 10

KEYS: Final[Mapping[str, Any]] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": 320,
}
"""The metadata of a model with two layers."""

SHAPES: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "token_embd.weight": ("q4_k", (256, 320)),
    **{
        f"blk.{layer}.{name}.weight": form
        for layer in range(2)
        for name, form in {
            "attn_norm": ("f32", (256,)),
            "attn_q": ("q4_k", (256, 256)),
            "attn_k": ("q4_k", (256, 128)),
            "attn_v": ("q6_k", (256, 128)),
            "attn_output": ("q4_k", (256, 256)),
            "ffn_norm": ("f32", (256,)),
            "ffn_gate": ("q4_k", (256, 512)),
            "ffn_up": ("q4_k", (256, 512)),
            "ffn_down": ("q6_k", (512, 256)),
        }.items()
    },
    "output_norm.weight": ("f32", (256,)),
}
"""Its tensors: type and shape. Its head is the table of its tokens."""

TYPES: Final = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}


def text(data: str | bytes, order: str = "<") -> bytes:
    """A string with its length before it."""
    data = data.encode() if isinstance(data, str) else data
    return struct.pack(f"{order}Q", len(data)) + data


def value(content: Any, order: str = "<") -> bytes:
    """A value behind its type."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, bool):
        return struct.pack(f"{order}I?", BOOL, content)
    if isinstance(content, int):
        return struct.pack(f"{order}II", UINT32, content)
    if isinstance(content, float):
        return struct.pack(f"{order}If", FLOAT32, content)
    if isinstance(content, str):
        return struct.pack(f"{order}I", STRING) + text(content, order)
    return array(content, order)


def array(items: Sequence[Any], order: str = "<") -> bytes:
    """An array behind its types."""
    kind = STRING if items and isinstance(items[0], str) else BOOL if items and isinstance(items[0], bool) else INT32
    head = struct.pack(f"{order}IIQ", ARRAY, kind, len(items))
    if kind == STRING:
        return head + b"".join(text(item, order) for item in items)
    return head + struct.pack(f"{order}{len(items)}{'?' if kind == BOOL else 'i'}", *items)


def pair(key: str, content: Any, order: str = "<") -> bytes:
    """A key and its value."""
    return text(key, order) + value(content, order)


def tensor(name: str, shape: Sequence[int], number: int, offset: int, order: str = "<") -> bytes:
    """A row of the list of tensors."""
    return text(name, order) + struct.pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, number, offset)


def gguf_bytes(
    keys: Mapping[str, Any] = KEYS,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] = SHAPES,
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    data: bool = True,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file. ``counts`` are the numbers of tensors and keys that it claims to have; without ``data`` it ends with its header."""
    rows, offset = b"", 0
    for name, (form, shape) in tensors.items():
        number, block, block_bytes = TYPES[form]
        elements = 1
        for size in shape:
            elements *= size
        rows += tensor(name, shape, number, offset, order)
        end = offset + elements // block * block_bytes
        offset = -(-end // alignment) * alignment
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, *(counts or (len(tensors), len(keys))))
    head += b"".join(pair(key, content, order) for key, content in keys.items()) + rows
    if not data or not tensors:
        return head
    return head + bytes(-len(head) % alignment) + bytes(end)


def written(path: Path, architecture: str, keys: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], **more: Any) -> Path:
    """A file that the ``gguf`` package writes, with ``float16`` tensors; ``more`` goes to its writer."""
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture, **more)
    for key, content in keys.items():
        if isinstance(content, str):
            writer.add_string(key, content)
        elif isinstance(content, list):
            writer.add_array(key, content)
        elif isinstance(content, float):
            writer.add_float32(key, content)
        else:
            writer.add_uint32(key, content)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape[::-1], dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
