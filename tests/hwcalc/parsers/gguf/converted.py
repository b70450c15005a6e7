"""What llama.cpp's converter wrote for models of the catalog and for classes of transformers: ``golden/llamacpp_converter.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.model import GGUF_ARCHITECTURE, VOCABULARY
from tests.paths import GOLDEN

__all__ = ["Converted", "converted", "effective", "refused"]

_LIST: Final = re.compile(r"\(([\d ]*)\)\*(\d+) ?(.*)")
_NOTHING: Final = frozenset(
    {
        "attention.shared_kv_layers", "attention.sliding_window", "expert_count", "expert_feed_forward_length",
        "expert_shared_count", "expert_shared_feed_forward_length", "expert_used_count", "leading_dense_block_count", "nextn_predict_layers",
    }
)  # fmt: skip
"""Keys whose absence llama.cpp reads as 0."""


class Converted(Record):
    """One run of the converter: the model's id or the config that was given, and the keys that it wrote."""

    name: str
    config: Mapping[str, Any] | None
    keys: Mapping[str, Any]


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "llamacpp_converter.json").read_text(encoding="utf-8"))
    return found


def refused() -> list[str]:
    """The models of the catalog whose class the converter does not know."""
    found: list[str] = _document()["refused"]
    return found


@lru_cache(maxsize=1)
def converted() -> tuple[Converted, ...]:
    """Every run."""
    return tuple(_runs())


def _runs() -> Iterator[Converted]:
    from hwcalc.parsers.registry import model_type_of_architecture

    for row in _document()["rows"]:
        keys = {GGUF_ARCHITECTURE: row["arch"]} | {
            key if key == VOCABULARY else f"{row['arch']}.{key}": _unpacked(value) for key, value in row["keys"].items()
        }
        for model in row.get("models", ()):
            yield Converted(name=model, config=None, keys=keys)
        for given in row.get("classes", ()):
            name, config = given if isinstance(given, list) else (given, None)
            default = {"model_type": model_type_of_architecture(name), "architectures": [name]}
            yield Converted(name=name, config=config or default, keys=keys)


def _unpacked(value: Any) -> Any:
    found = _LIST.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    values = [int(each) for each in found[1].split()] * int(found[2])
    for run in found[3].split():
        one, _, times = run.partition("x")
        values += [int(one)] * int(times or 1)
    return values


def effective(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What the keys say to llama.cpp: with its defaults for those that are missing, and lists where it keeps one value per layer."""
    arch = keys[GGUF_ARCHITECTURE]
    said = {key.removeprefix(f"{arch}."): _plain(value) for key, value in keys.items() if key != "general.file_type"}
    layers = said["block_count"]

    def listed(key: str, default: Any) -> list[Any]:
        value = said.get(key, default)
        return value if isinstance(value, list) else [value] * layers

    heads = listed("attention.head_count", 0)
    width = said["embedding_length"] // heads[0] if heads[0] else 0
    said = dict.fromkeys(_NOTHING, 0) | {"attention.causal": True} | said
    said["attention.head_count"] = heads
    said["attention.head_count_kv"] = listed("attention.head_count_kv", heads)
    said["feed_forward_length"] = listed("feed_forward_length", 0)
    for key in ("attention.key_length", "attention.value_length"):
        said.setdefault(key, width)
        said.setdefault(f"{key}_swa", said[key])
    said.setdefault("rope.dimension_count", said["attention.key_length"])
    said.setdefault("rope.dimension_count_swa", said["rope.dimension_count"])
    return said


def _plain(value: Any) -> Any:
    return [int(each) for each in value] if isinstance(value, list) else value
