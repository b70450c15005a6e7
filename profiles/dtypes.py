"""The storage formats: ``dtypes.json`` as :class:`hwcalc.formulas.DType` objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hwcalc.data import data_file
from hwcalc.formulas import DType, Role
from hwcalc.formulas.record import Record


class PackedDType(Record):
    """A layout that stores the tensors of one layer side by side, each in its own format."""

    name: str
    roles: Mapping[Role, DType]


@lru_cache(maxsize=1)
def _file() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(data_file(__file__, "dtypes.json").read_text("utf-8"))
    return data


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, DType]:
    table: dict[str, DType] = {}
    for name, entry in _file()["dtypes"].items():
        dtype = DType(name=name, block_elements=entry["block_elements"], block_bytes=entry["block_bytes"])
        for spelling in (name, *entry["aliases"]):
            table[spelling] = dtype
    return MappingProxyType(table)


def dtype_names() -> tuple[str, ...]:
    """Canonical names in the order of the file."""
    return tuple(_file()["dtypes"])


def packed_names() -> tuple[str, ...]:
    """Names of the packed layouts."""
    return tuple(_file()["packed"])


def dtype_aliases() -> Mapping[str, tuple[str, ...]]:
    """Other spellings of each format."""
    return {name: tuple(entry["aliases"]) for name, entry in _file()["dtypes"].items()}


def dtype_sources() -> Mapping[str, str]:
    """The source that defines each format."""
    entries = {**_file()["dtypes"], **_file()["packed"]}
    return {name: entry["source"] for name, entry in entries.items()}


def find_dtype(name: str) -> DType | None:
    """The format of this name or alias, or ``None``. Capitals do not matter."""
    return _by_name().get(name.lower())


def find_packed(name: str) -> PackedDType | None:
    """The packed layout of this name, or ``None``. Capitals do not matter."""
    entry = _file()["packed"].get(name.lower())
    if entry is None:
        return None
    roles = {Role(role): _by_name()[dtype] for role, dtype in entry["roles"].items()}
    return PackedDType(name=name.lower(), roles=MappingProxyType(roles))
