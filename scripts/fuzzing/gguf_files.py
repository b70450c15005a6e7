"""GGUF files whose headers are damaged: values and rows that make no sense, and bytes that are no rows at all."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from scripts.fuzzing.case import Case
from scripts.fuzzing.mutate import HOSTILE, damaged_bytes
from scripts.fuzzing.words import plan_words

LARGEST: Final = 1024**2
GOLDEN: Final = Path(__file__).resolve().parents[2] / "tests" / "golden" / "llamacpp.json"

_LETTERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_TYPES: Final = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 14: (256, 210), 39: (32, 17)}
_HUGE: Final = (0, 1, 2, 31, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS: Final = (
    "general.architecture", "general.name", "general.alignment", "general.type", "split.no", "split.count", "split.tensors.count",
    "tokenizer.ggml.tokens", "tokenizer.ggml.tokens.count", "general.file_type", "ollama.num_ctx",
)  # fmt: skip

Key = tuple[bytes, int, Any]
"""Name, type and value; that of an array is the type of its values and the list."""


@lru_cache(maxsize=1)
def models() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Architectures and metadata of real models."""
    return tuple((row["arch"], row["hparams"]) for row in json.loads(GOLDEN.read_bytes())["cases"])


def gguf(chance: random.Random) -> Case:
    """A GGUF file: most with a few damaged keys or tensors, some with damaged bytes, a few sound ones, a few with very many parts."""
    if chance.random() < 0.03:
        data = _many(chance)
        return Case(family="gguf", words=plan_words(chance, "-"), files={"x.gguf": data}, stdin=data)
    data = _damaged(chance)
    name = chance.choice(("x.gguf",) * 9 + ("x-00001-of-00002.gguf",))
    if chance.random() < 0.7:
        # A pipe may end behind its header, so what stands in it is read to the end.
        return Case(family="gguf", words=plan_words(chance, "-"), files={"x.gguf": data}, stdin=data)
    files = {name: data}
    if name != "x.gguf":
        files["x-00002-of-00002.gguf"] = damaged_bytes(data, chance, chance.randrange(3))[:LARGEST]
    return Case(family="gguf", words=plan_words(chance, name), files=files)


def damaged_gguf(chance: random.Random) -> bytes:
    """The bytes of a GGUF file, of up to :data:`LARGEST`: damaged, or a few times sound and of very many parts."""
    return _many(chance) if chance.random() < 0.01 else _damaged(chance)


def _damaged(chance: random.Random) -> bytes:
    architecture, hparams = chance.choice(models())
    keys = [_key("general.architecture", architecture), _key("general.name", chance.choice(("Tiny", *HOSTILE)))]
    keys += [_key(name if "." in name and name.split(".")[0] == "tokenizer" else f"{architecture}.{name}", value)
             for name, value in hparams.items()]  # fmt: skip
    if chance.random() < 0.5:
        keys.append(_vocabulary(chance))
    tensors = _tensors(hparams, chance)
    head: dict[str, Any] = {"order": chance.choice("<<<<<>"), "version": 3, "keys": None, "tensors": None, "alignment": 32}
    kind = chance.random()
    # Half of the files can be read, and describe a model that nobody has made.
    damages = _DAMAGES[:4] if chance.random() < 0.5 else _DAMAGES
    for _ in range(0 if kind < 0.03 else chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice(damages)(keys, tensors, head, chance)
    data = _packed(keys, tensors, head)
    if kind > 0.8:
        data = damaged_bytes(data, chance, chance.choice((1, 1, 2, 4, 16)))
    elif kind > 0.77:
        data = data[: chance.randrange(len(data) + 1)]
    return data[:LARGEST]


def _key(name: str, value: Any) -> Key:
    raw = name.encode("utf-8", "replace")
    if isinstance(value, list):
        inner = _key("", value[0])[1] if value else 4
        return raw, _ARRAY, (inner, [_value(inner, item) for item in value])
    kind = 7 if isinstance(value, bool) else 6 if isinstance(value, float) else _STRING if isinstance(value, str) else 4
    kind = 5 if isinstance(value, int) and value < 0 else kind
    return raw, kind, _value(kind, value)


def _value(kind: int, value: Any) -> Any:
    if kind == _STRING:
        return str(value).encode("utf-8", "replace")
    return value


def _vocabulary(chance: random.Random) -> Key:
    count = chance.choices((0, 1, 300, 3_000, 30_000), (20, 20, 40, 15, 5))[0]
    longest = chance.choice((1, 8, 30, 200))
    if count * (longest + 8) > LARGEST // 2:
        count = 3_000
    return b"tokenizer.ggml.tokens", _ARRAY, (_STRING, [b"t" * (number * 7919 % (longest + 1)) for number in range(count)])


def _tensors(hparams: Mapping[str, Any], chance: random.Random) -> list[dict[str, Any]]:
    """Rows of a few layers, at the places where llama.cpp expects them."""
    width = hparams.get("embedding_length")
    width = width if isinstance(width, int) and width % 256 == 0 and width > 0 else 256
    rows = [{"name": b"token_embd.weight", "shape": [width, 320], "type": 12}]
    for layer in range(chance.choice((0, 1, 2, 40))):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_exps", "ssm_out", "attn_norm"):
            shape = [width] if name == "attn_norm" else [width, 64, 8] if name.endswith("exps") else [width, 128]
            kind = 0 if name == "attn_norm" else chance.choice((8, 12, 14, 39, 1))
            rows.append({"name": f"blk.{layer}.{name}.weight".encode(), "shape": shape, "type": kind})
    return rows


def _damage_value(keys: list[Key], _: Any, __: Any, chance: random.Random) -> None:
    place = chance.randrange(len(keys))
    name, kind, value = keys[place]
    if isinstance(value, int) and kind in {4, 5, 10} and chance.random() < 0.5:
        keys[place] = (name, 10, chance.choice((*_HUGE, value * chance.choice((0, 2, 3, 1000)) % 2**64)))
    elif isinstance(value, tuple) and value[1] and chance.random() < 0.6:
        items = value[1] * chance.choice((0, 1, 2, 50)) if len(value[1]) < 2_000 else value[1][:5]
        if items and value[0] in {4, 5, 10}:
            items = [*items]
            items[chance.randrange(len(items))] = chance.choice(_HUGE) % 2**31
        keys[place] = (name, kind, (value[0], items))
    else:
        keys[place] = _key(name.decode("utf-8", "replace"), _strange(chance))


def _strange(chance: random.Random) -> Any:
    return chance.choice((
        0, 1, -1, 7, 2**31, 1e300, float("nan"), float("inf"), True, "", "llama", "clip", "gpt2", chance.choice(HOSTILE), [], [0], [1] * 40,
        [True, False] * 30, ["a"], [1.5] * 3, [8, 0] * 20, "x" * 5_000, [2] * 11_000, [-1],
    ))  # fmt: skip


def _damage_key(keys: list[Key], _: Any, __: Any, chance: random.Random) -> None:
    place = chance.randrange(len(keys))
    name, kind, value = keys[place]
    match chance.randrange(5):
        case 0:
            del keys[place]
            keys.append((b"x.y", 4, 1))
        case 1:
            keys.append(chance.choice(keys))
        case 2:
            keys[place] = (chance.choice((*_WORDS, *HOSTILE, "")).encode("utf-8", "replace"), kind, value)
        case 3:
            keys.append(_key(chance.choice(_WORDS), chance.choice((0, 1, 2, 64, 24, "x", [1, 2]))))
        case _:
            keys.append((name + b".x", kind, value))


def _damage_type(keys: list[Key], _: Any, __: Any, chance: random.Random) -> None:
    """A type that the value does not have: what follows is then read at a wrong place."""
    place = chance.randrange(len(keys))
    name, kind, value = keys[place]
    raw = _packed_value(kind, value, "<")
    keys[place] = (name, chance.choice((*range(14), 2**31, 2**32 - 1)), raw)


def _damage_array(keys: list[Key], _: Any, __: Any, chance: random.Random) -> None:
    kind, count = chance.choice((*range(13), 9, 9, 8)), chance.choice((*_HUGE, 100_000))
    head = struct.pack("<IQ", kind, count) * chance.choice((1, 1, 5, 1_000))
    name = chance.choice((b"tokenizer.ggml.tokens", b"tokenizer.ggml.scores", b"x.list", b"tokenizer.ggml.merges"))
    keys.append((name, _ARRAY, head + bytes(chance.choice((0, 8, 4_000, 200_000)))))


def _damage_tensor(_: Any, rows: list[dict[str, Any]], __: Any, chance: random.Random) -> None:
    row = chance.choice(rows)
    match chance.randrange(8):
        case 0:
            row["shape"] = [chance.choice((*_HUGE, 256, 100)) for _ in range(chance.choice((0, 1, 2, 3, 4, 5, 9)))]
        case 1:
            row["type"] = chance.choice((*range(45), 2**31, 2**32 - 1))
        case 2:
            row["offset"] = chance.choice((*_HUGE, 32, 7))
        case 3:
            row["name"] = chance.choice(
                (*HOSTILE, "", "x" * 63, "x" * 64, "output.weight", "blk.0.", "blk.99999999999.ffn_up.weight")
            ).encode("utf-8", "replace")
        case 4:
            rows.append(dict(chance.choice(rows)))
        case 5:
            row["dims"] = chance.choice(_HUGE) % 2**32
        case 6:
            chance.shuffle(rows)
        case _:
            rows += [
                {"name": f"blk.{number}.x.weight".encode(), "shape": [32], "type": 0}
                for number in range(chance.choice((10, 1_000)))
            ]


def _damage_head(keys: list[Key], _: Any, head: dict[str, Any], chance: random.Random) -> None:
    match chance.randrange(5):
        case 0:
            head["version"] = chance.choice((0, 1, 2, 2, 3, 4, 2**16, 2**32 - 1))
        case 1:
            head["keys"] = chance.choice((*_HUGE, 5, 20, 60_000))
        case 2:
            head["tensors"] = chance.choice((*_HUGE, 5, 20, 60_000))
        case 3:
            head["alignment"] = chance.choice((1, 8, 64, 4096))
            keys.append(_key("general.alignment", head["alignment"]))
        case _:
            head["data"] = chance.choice((0, 1, 100))


_DAMAGES: Final[tuple[Callable[..., None], ...]] = (
    _damage_value,
    _damage_value,
    _damage_value,
    _damage_key,
    _damage_type,
    _damage_array,
    _damage_tensor,
    _damage_tensor,
    _damage_head,
)


def _many(chance: random.Random) -> bytes:
    """A sound header of up to a megabyte that has as many small keys, strings, arrays or tensors as go into it."""
    count = chance.choice((100, 1_024, 1_025, 3_000, 8_192, 20_000, 60_000))
    name = chance.choice((b"%x", b"k.%06d", b"\xff\xfe%05d", "\u05d0\u202e%d".encode(), b"tokenizer.%d"))
    inner = chance.choice((0, 1, 28, 110, 255, 256, 4_095, 10_000))
    value: tuple[int, Any] = chance.choice((
        (0, 1), (7, True), (_STRING, b""), (_STRING, b"\xff" * 30), (_ARRAY, (4, [])), (_ARRAY, (_STRING, [b""] * inner)), (_ARRAY, (0, [1] * inner)),
        (_ARRAY, (_STRING, [b"x" * 5_000] + [b""] * inner)), (_ARRAY, (_STRING, [b"x" * 128, b""] * (inner // 2))), (_ARRAY, (12, [0.5] * inner)),
    ))  # fmt: skip
    keys: list[Key] = [_key("general.architecture", "llama")]
    rows: list[dict[str, Any]] = []
    if chance.random() < 0.25:
        shape = chance.choice(([32], [32, 1, 1, 1], [256, 7]))
        rows = [{"name": b"%x" % number, "shape": shape, "type": chance.choice((0, 8))} for number in range(min(count, 17_000))]
    else:
        size = len(_packed_value(*value, "<")) + len(name % 1) + 16
        keys += [(name % number, *value) for number in range(min(count, max(1, (LARGEST - 5_000) // size)))]
    return _packed(keys, rows, {"order": "<", "version": 3, "keys": None, "tensors": None, "alignment": 32, "data": 0})[:LARGEST]


def _packed(keys: list[Key], rows: list[dict[str, Any]], head: Mapping[str, Any]) -> bytes:
    order, alignment = head["order"], head["alignment"]
    counts = [len(rows) if head["tensors"] is None else head["tensors"], len(keys) if head["keys"] is None else head["keys"]]
    out = [b"GGUF", struct.pack(f"{order}IQQ", head["version"], *counts)]
    for name, kind, value in keys:
        out += [struct.pack(f"{order}Q", len(name)), name, struct.pack(f"{order}I", kind), _packed_value(kind, value, order)]
    offset = end = 0
    for row in rows:
        shape = row["shape"]
        out += [struct.pack(f"{order}Q", len(row["name"])), row["name"]]
        out.append(struct.pack(f"{order}I{len(shape)}Q", row.get("dims", len(shape)), *(size % 2**64 for size in shape)))
        out.append(struct.pack(f"{order}IQ", row["type"], row.get("offset", offset % 2**64)))
        block, block_bytes = _TYPES.get(row["type"], (1, 1))
        elements = 1
        for size in shape:
            elements *= size
        end = offset + elements // block * block_bytes
        offset = -(-end // alignment) * alignment
    data = b"".join(out)
    # A hole in the file would take no disk, but a case is kept as bytes: most files end with their header, as a pipe may.
    return data + bytes(min(end + alignment, 4_096) if head.get("data") is None else head["data"])


def _packed_value(kind: int, value: Any, order: str) -> bytes:
    if isinstance(value, bytes):
        return value if kind != _STRING else struct.pack(f"{order}Q", len(value)) + value
    if kind == _ARRAY:
        inner, items = value
        head = struct.pack(f"{order}IQ", inner, len(items))
        if inner == _STRING:
            # Most values of a file are the words of its vocabulary.
            return head + b"".join(part for item in items for part in (struct.pack(f"{order}Q", len(item)), item))
        return head + b"".join(_packed_value(inner, item, order) for item in items)
    letter = _LETTERS[kind]
    if letter in "fd":
        return struct.pack(f"{order}{letter}", _float(value) if letter == "f" else float(value))
    if letter == "?":
        return struct.pack(f"{order}?", bool(value))
    size = 8 * struct.calcsize(letter)
    number = int(value) % 2**size
    packed: bytes = number.to_bytes(size // 8, "little" if order == "<" else "big")
    return packed


def _float(value: Any) -> float:
    """A number that 32 bits hold."""
    return float(value) if abs(float(value)) < 1e38 or value != value else float("inf")  # noqa: PLR0124 - that is NaN
