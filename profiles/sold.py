"""What tells one accelerator from the next larger one, without reading the file of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hwcalc.profiles.compiled import TOP, record

__all__ = ["Sold", "sold_facts", "sold_gpus"]


class Sold(NamedTuple):
    """A few facts of one accelerator, under the names that :class:`~hwcalc.profiles.gpu_file.Gpu` has for them. ``None`` is unknown."""

    vendor: str
    category: str | None
    architecture: str | None
    released: int | None
    memory_marketing_gb: int | None
    memory_options_gb: Sequence[int]
    bf16_tflops: float | None
    link: str | None
    """Of what kind the link between two of them is."""
    host_link: str | None


def sold_facts(data: Mapping[str, Any]) -> Sold:
    """The facts in the file of one accelerator."""
    link = data.get("interconnect") or {}
    return Sold(
        vendor=data["vendor"],
        category=data.get("category"),
        architecture=data.get("architecture"),
        released=data.get("released"),
        memory_marketing_gb=data.get("memory_marketing_gb"),
        memory_options_gb=data.get("memory_options_gb") or [],
        bf16_tflops=(data.get("tflops_dense") or {}).get("bf16"),
        link=link.get("kind"),
        host_link=link.get("host"),
    )


@lru_cache(maxsize=1)
def sold_gpus() -> Mapping[str, Sold]:
    """The built-in accelerators by id, in alphabetical order.

    >>> sold_gpus()["l4"].memory_marketing_gb
    24
    """
    return MappingProxyType({gpu_id: Sold(*facts) for gpu_id, facts in record(TOP, "sold").items()})
