"""What commands and manifests are made of: wrappers, resources, labels of nodes, names of accelerators; ``launch.yaml``, read compiled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import TOP, record


class Vendor(Record):
    """How a manifest asks for accelerators of a vendor: their resource, the label of nodes that names the product, devices and the variable that chooses."""

    resource: str
    label: str | None = None
    devices: tuple[str, ...] = ()
    visible: str | None = None


class LaunchWords(Record):
    """The words of commands and manifests that belong to no engine. ``accelerators``: name in a label or a list -> id of an accelerator."""

    wrappers: frozenset[str]
    processes: Mapping[str, str]
    shells: frozenset[str]
    containers: frozenset[str]
    container_switches: frozenset[str]
    visible_devices: tuple[str, ...]
    resources: tuple[str, ...]
    slices: str
    vendors: Mapping[str, Vendor]
    shared_memory: str
    gpu_labels: tuple[str, ...]
    instance_labels: tuple[str, ...]
    accelerators: Mapping[str, str]

    @cached_property
    def starters(self) -> frozenset[str]:
        """Programs that start another one: wrappers, shells, and those that run containers."""
        return self.wrappers | self.shells | self.containers


@lru_cache(maxsize=1)
def launch_words() -> LaunchWords:
    """The words.

    >>> launch_words().accelerators["NVIDIA-H100-80GB-HBM3"]
    'h100-sxm5-80gb'
    """
    data = record(TOP, "launch")
    fields: dict[str, Any] = {name: data[name] for name in ("slices", "shared_memory", "accelerators", "processes")}
    fields["vendors"] = {
        name: Vendor(**{**row, "devices": tuple(row.get("devices", ()))}) for name, row in data["vendors"].items()
    }
    fields |= {name: frozenset(data[name]) for name in ("wrappers", "shells", "containers", "container_switches")}
    fields |= {name: tuple(data[name]) for name in ("visible_devices", "resources", "gpu_labels", "instance_labels")}
    return LaunchWords(**fields)
