"""The storage formats: ``dtypes.json`` as :class:`hwcalc.formulas.DType` objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hwcalc.data import json_data
from hwcalc.formulas import DType, Role
from hwcalc.formulas.record import Record


class PackedDType(Record):
    """A layout that stores the tensors of one layer side by side, each in its own format."""

    name: str
    roles: Mapping[Role, DType]


@lru_cache(maxsize=1)
def dtype_file() -> Mapping[str, Any]:
    """The file: under ``dtypes`` and ``packed`` the facts of each format by its name."""
    data: Mapping[str, Any] = json_data(__file__, "dtypes.json")
    return data


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, DType]:
    table: dict[str, DType] = {}
    for name, entry in dtype_file()["dtypes"].items():
        dtype = DType(name=name, block_elements=entry["block_elements"], block_bytes=entry["block_bytes"])
        for spelling in (name, *entry["aliases"]):
            table[spelling] = dtype
    return MappingProxyType(table)


def format_spellings() -> dict[str, str]:
    """Other spellings of formats: alias -> name."""
    return {spelling: dtype.name for spelling, dtype in _by_name().items() if spelling != dtype.name}


def dtype_names() -> tuple[str, ...]:
    """Canonical names in the order of the file."""
    return tuple(dtype_file()["dtypes"])


def packed_names() -> tuple[str, ...]:
    """Names of the packed layouts."""
    return tuple(dtype_file()["packed"])


def find_dtype(name: str) -> DType | None:
    """The format of this name or alias, or ``None``. Capitals do not matter."""
    return _by_name().get(name.lower())


def find_packed(name: str) -> PackedDType | None:
    """The packed layout of this name, or ``None``. Capitals do not matter."""
    entry = dtype_file()["packed"].get(name.lower())
    if entry is None:
        return None
    roles = {Role(role): _by_name()[dtype] for role, dtype in entry["roles"].items()}
    return PackedDType(name=name.lower(), roles=MappingProxyType(roles))
