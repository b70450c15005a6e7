"""One accelerator and its file. Every key is checked; an error names path, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hwcalc.formulas.frozen import field, frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.fields import Field, check, date, number, sources, text, version, whole
from hwcalc.profiles.yaml_file import YamlFile

__all__ = ["FIELDS", "MEMORY_FIELDS", "NODE", "SCHEMA_VERSION", "TFLOPS", "Gpu", "gpu_of", "is_id", "parse_gpu"]

SCHEMA_VERSION: Final = 1
MEMORY_FIELDS: Final = ("memory_marketing_gb", "memory_total_mib", "torch_total_mib")
TFLOPS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
LONGEST_ID: Final = 64
HOST: Final = "host"
"""The category of a machine without an accelerator, which no file has."""
NODE: Final = 8
"""The accelerators of a node whose file does not say how many it has: the largest servers that are commonly sold have eight."""

_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")


@frozen
class Gpu:
    """One accelerator. ``None`` means unknown. Budgets use ``torch_total_mib``.

    The three memory figures are different things: what is sold (``memory_marketing_gb``, in units of 1,024 MiB), what the
    vendor's tool reports (``memory_total_mib``, nvidia-smi for NVIDIA) and what a program sees (``torch_total_mib``). An H100
    is sold with 80 GB, nvidia-smi reports 81,559 MiB, and torch sees 81,082 MiB.
    """

    id: str
    name: str
    vendor: str
    architecture: str | None = None
    compute_capability: str | None = None
    """The number of CUDA, such as ``9.0``; ``None`` for other vendors."""
    memory_marketing_gb: int | None = None
    memory_total_mib: int | None = None
    torch_total_mib: int | None = None
    """The lowest reading. Some drivers withhold more memory than others, and a plan must hold with all of them."""
    memory_bandwidth_gbps: float | None = None
    fp8_kv: str | None = None
    """``native`` (in the attention hardware), ``storage`` (kept in 8 bits, converted on read) or ``no``."""
    source: str = ""
    """The sources of the numbers, in words."""
    category: str | None = None
    released: int | None = None
    memory_type: str | None = None
    memory_options_gb: tuple[int, ...] = ()
    memory_total_basis: str | None = None
    torch_total_mib_seen: tuple[int, int] | None = None
    torch_total_basis: str | None = None
    tflops_dense: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    interconnect: Mapping[str, str | float | None] = field(default_factory=lambda: MappingProxyType({}))
    tdp_w: float | None = None
    devices_per_package: int | None = None
    gpus_per_node: int | None = None
    """How many of them one node has at most; for a whole machine, how many machines can be linked to work as one."""
    host_memory: str | None = None
    """``shared`` if the host has no memory of its own, though this is not sold as a machine with one memory (``category``)."""
    confidence: str | None = None
    note: str | None = None
    path: Path | None = None
    user: bool = False
    """Whether the file is the user's own."""
    part: bool = False
    """Whether it is a part of an accelerator that an instance shares with others."""

    @property
    def whole_machine(self) -> bool:
        """Whether it works by itself: a machine such as a laptop, or a part of a device. Only machines that can be linked are ever joined (:attr:`node`)."""
        return self.part or self.category in ("laptop", "unified", HOST)

    @property
    def shares_host_memory(self) -> bool:
        """Whether processor and accelerator have one memory, so that nothing gets free if a part of a model moves to the host."""
        return self.category in ("unified", HOST) or self.host_memory == "shared"

    @property
    def is_host(self) -> bool:
        """Whether it is no accelerator at all, but a machine without one: everything lies in the memory of the host."""
        return self.category == HOST

    @property
    def node(self) -> int:
        """How many of them work as one node, over whose links tensor parallelism runs.

        Where the file does not say, it is 8 as in most servers, and 1 for a whole machine.
        """
        return self.gpus_per_node or (1 if self.whole_machine else NODE)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The CUDA compute capability as two numbers."""
        if self.compute_capability is None:
            return None
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of an id: small letters, digits and hyphens."""
    return len(text) <= LONGEST_ID and _ID.fullmatch(text) is not None


def _counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(whole(item) for item in value)


def _range(value: Any) -> bool:
    return _counts(value) and len(value) == 2 and value[0] <= value[1]


def _rates(value: Any) -> bool:
    return isinstance(value, dict) and all(key in TFLOPS and (rate is None or number(rate)) for key, rate in value.items())


def _link(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) <= {"kind", "gbps_bidirectional", "host"}
        and all(value.get(key) is None or text(value[key]) for key in ("kind", "host"))
        and (value.get("gbps_bidirectional") is None or number(value["gbps_bidirectional"]))
    )


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: value in choices


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


_CATEGORIES: Final = ("datacenter", "workstation", "consumer", "laptop", "unified", "tpu", "neuron")
_MIB = "a positive whole number of MiB"

# The fields have the order of the file.
_FIELDS: tuple[Field, ...] = (
    ("schema_version", version(SCHEMA_VERSION), f"{SCHEMA_VERSION}", False),
    ("id", lambda value: isinstance(value, str) and is_id(value), "small letters, digits and hyphens", False),
    ("name", text, "words", False),
    ("vendor", text, "a word", False),
    ("category", _one_of(*_CATEGORIES), f"one of {', '.join(_CATEGORIES)}", True),
    ("released", whole, "a year", True),
    ("recorded", date, "a date, YYYY-MM-DD, in quotes", True),
    ("architecture", text, "a word", True),
    ("compute_capability", _matching(_CAPABILITY), 'CUDA\'s, in quotes: "9.0"', True),
    ("memory_type", text, "words", True),
    ("memory_marketing_gb", whole, "a positive whole number: the number on the box", True),
    ("memory_options_gb", _counts, "a list of positive whole numbers", True),
    ("memory_total_mib", whole, _MIB, True),
    ("memory_total_basis", text, "words", True),
    ("torch_total_mib", whole, _MIB, True),
    ("torch_total_mib_seen", _range, "two numbers of MiB, the lower first", True),
    ("torch_total_basis", text, "words", True),
    ("memory_bandwidth_gbps", number, "a positive number", True),
    ("tflops_dense", _rates, f"positive numbers or null by {', '.join(TFLOPS)}", True),
    ("interconnect", _link, "kind, gbps_bidirectional and host", True),
    ("tdp_w", number, "a positive number", True),
    ("devices_per_package", whole, "a positive whole number", True),
    ("gpus_per_node", whole, "a positive whole number", True),
    ("host_memory", _one_of("shared"), "shared, or no such key", True),
    ("fp8_kv", _one_of("native", "storage", "no"), "native, storage or 'no' in quotes", True),
    ("confidence", _one_of("high", "medium", "low"), "high, medium or low", True),
    ("note", text, "words", True),
    ("source", sources, "a name and words for each source; it holds for every number of the file", False),
)

FIELDS: Final = tuple(name for name, *_ in _FIELDS)
"""The keys of a file, in the order of the file."""


def parse_gpu(file: YamlFile, *, user: bool = False) -> Gpu:
    """Check one file. Its stem must be the id. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    data, path = file.data, file.path
    check(file, _FIELDS)
    if path.stem != data["id"]:
        raise ProfileError(path, f"is {data['id']}, but the file is named {path.name}", line=file.line("id"), key="id")
    _check_memory(file)
    return gpu_of(data, path, user=user)


def gpu_of(data: Mapping[str, Any], path: Path, *, user: bool) -> Gpu:
    """The accelerator of a file's content, which has been checked."""
    seen = data.get("torch_total_mib_seen")
    return Gpu(
        **{key: data[key] for key in _SAME if data.get(key) is not None},
        memory_options_gb=tuple(data.get("memory_options_gb") or ()),
        torch_total_mib_seen=None if seen is None else (seen[0], seen[1]),
        tflops_dense=MappingProxyType(data.get("tflops_dense") or {}),
        interconnect=MappingProxyType(data.get("interconnect") or {}),
        source="; ".join(data["source"].values()),
        path=path,
        user=user,
    )


_SAME: Final = tuple(
    name
    for name in FIELDS
    if name
    not in {"schema_version", "recorded", "memory_options_gb", "torch_total_mib_seen", "tflops_dense", "interconnect", "source"}
)
"""The keys of a file that :class:`Gpu` takes unchanged under the same name."""


def _check_memory(file: YamlFile) -> None:
    """Check that a program sees at most what the tool reports, and that the tool reports at most what is sold."""
    largest: int | None = None
    for key in MEMORY_FIELDS:
        value = file.data.get(key)
        if value is None:
            continue
        size = value * 1024 if key == "memory_marketing_gb" else value
        if largest is not None and size > largest:
            problem = f"is {size:,} MiB, more than the {largest:,} MiB that stand above it"
            raise ProfileError(file.path, problem, line=file.line(key), key=key)
        largest = size
    _check_readings(file)


def _check_readings(file: YamlFile) -> None:
    """Check that the range of readings contains ``torch_total_mib`` and does not exceed the whole memory."""
    key, seen, torch = "torch_total_mib_seen", file.data.get("torch_total_mib_seen"), file.data.get("torch_total_mib")
    if seen is None:
        return
    sizes = [file.data.get(name) for name in ("memory_total_mib", "memory_marketing_gb")]
    most = sizes[0] or (None if sizes[1] is None else sizes[1] * 1024)
    if most is not None and seen[1] > most:
        raise ProfileError(
            file.path, f"is up to {seen[1]:,} MiB, more than the {most:,} MiB of all", line=file.line(key), key=key
        )
    if torch is not None and not seen[0] <= torch <= seen[1]:
        raise ProfileError(file.path, f"does not have torch_total_mib, {torch:,}, in it", line=file.line(key), key=key)
