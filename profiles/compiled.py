"""The fact files in YAML, and what lists say of models, in one file that reads fast: :data:`COMPILED`, which ``scripts/build_profiles.py`` writes.

To read all YAML files takes a fifth of a second; this file takes a millisecond. A line is a list of the folder, the name and the content of one
fact file, as JSON, and is decoded when the file is asked for. A test compares all of them with the YAML.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.json import decode

from hwcalc.data import reading_data
from hwcalc.profiles.catalog import built_in

COMPILED: Final = built_in("compiled.jsonl")
TOP: Final = "."
"""The folder of the fact files that lie beside this module."""

Record = Mapping[str, Any]


def names(folder: str) -> KeysView[str]:
    """The names of the fact files of a folder, in alphabetical order.

    >>> "vllm" in names("engines"), list(names(TOP))
    (True, ['glossary', 'gpu_aliases', 'hardware', 'launch', 'links', 'mig', 'models'])
    """
    return _lines()[folder].keys()


@lru_cache(maxsize=1024)
def record(folder: str, name: str) -> Record:
    """The content of one fact file. Its name is one of :func:`names`.

    >>> record("gpus", "l4")["memory_marketing_gb"]
    24
    """
    line = _lines()[folder][name]
    with reading_data(COMPILED):
        content: Record = decode(line)[2]
    return content


@lru_cache(maxsize=8)
def records(folder: str) -> Mapping[str, Record]:
    """The content of all fact files of a folder, by name.

    >>> records("instances")["aws/p5.48xlarge"]["count"]
    8
    """
    return MappingProxyType({name: record(folder, name) for name in names(folder)})


@lru_cache(maxsize=1)
def _lines() -> Mapping[str, Mapping[str, bytes]]:
    """Folder -> name -> the line of a fact file."""
    lines: dict[str, dict[str, bytes]] = {}
    with reading_data(COMPILED), open(COMPILED, "rb") as file:
        for line in file:
            _, folder, _, name, end = line.split(b'"', 4)
            if not end.endswith(b"\n"):
                raise ValueError
            lines.setdefault(folder.decode(), {})[name.decode()] = line
    return lines


class ListedModel(Struct, frozen=True):
    """A few facts of one model: ``parameters`` is the published count. ``None`` is unknown."""

    model_type: str | None
    released: str | None
    parameters: int | None
    fidelity: str | None


def listed_facts(data: Mapping[str, Any]) -> ListedModel:
    """The facts in one file of the catalog."""
    return ListedModel(
        model_type=data["config"].get("model_type"),
        released=data.get("released"),
        parameters=(data.get("parameters") or {}).get("total"),
        fidelity=data.get("fidelity"),
    )


@lru_cache(maxsize=1)
def built_in_models() -> Mapping[str, ListedModel]:
    """The models of the built-in catalog by id, in alphabetical order.

    >>> built_in_models()["Qwen/Qwen3-8B"].model_type
    'qwen3'
    """
    return MappingProxyType({model_id: ListedModel(*facts) for model_id, facts in record(TOP, "models").items()})
