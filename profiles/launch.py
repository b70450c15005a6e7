"""What commands and manifests are made of: wrappers, resources, labels of nodes, names of accelerators; ``launch.yaml``, read compiled."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

from msgspec import convert

from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.form import Date, FactFile, Facts, Words


class Vendor(Facts):
    """How a manifest asks for accelerators of a vendor: their resource, the label of nodes that names the product, devices and the variable that chooses."""

    resource: Words
    label: Words | None = None
    devices: tuple[Words, ...] = ()
    visible: Words | None = None


class LaunchWords(FactFile):
    """``launch.yaml``: the words of commands and manifests that belong to no engine. ``accelerators``: name in a label or a list -> id of an accelerator."""

    place: ClassVar[str] = "launch.yaml"
    id: Literal["launch"]
    recorded: Date
    source: Words
    wrappers: frozenset[Words]
    processes: Mapping[Words, Words]
    shells: frozenset[Words]
    containers: frozenset[Words]
    container_switches: frozenset[Words]
    visible_devices: tuple[Words, ...]
    resources: tuple[Words, ...]
    slices: Words
    vendors: Mapping[Words, Vendor]
    shared_memory: Words
    gpu_labels: tuple[Words, ...]
    instance_labels: tuple[Words, ...]
    accelerators: Mapping[Words, Words]

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
    return convert(record(TOP, "launch"), LaunchWords)
