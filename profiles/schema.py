"""Fact files in YAML: how one is read, the error for a wrong one, and the forms of those that have no module of their own.

The built-in files are checked when they are compiled (``scripts/build_profiles.py``), a file of the user's own when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, read_text
from hwcalc.profiles.form import (
    Date,
    Estimate,
    FactFile,
    Facts,
    GpuId,
    Listed,
    Positive,
    Share,
    Whole,
    Word,
    Words,
    first_fault,
    ruled,
)
from hwcalc.profiles.hardware_file import Cloud, Gpu, GpuFile, Instance, InstanceFile, gpu_of, instance_of
from hwcalc.yaml_tree import LARGEST_FILE, Node, TreeError, plain_value, read_tree


class YamlFile(Record):
    """A document whose top level is a mapping, and the line of each key, from 1. Names of nested keys and of items have dots."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[str, int]


def read_yaml(path: Path) -> YamlFile:
    """Read a file of up to 1 MiB. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path and line."""
    return parse_yaml(read_text(path, LARGEST_FILE), path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """Read YAML text. Duplicate keys, anchors, aliases and tags are errors. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    try:
        root = read_tree(text)
    except TreeError as error:
        said = error.problem if error.problem.startswith(("is ", "has ")) else f"is no plain YAML: {error.problem}"
        raise ProfileError(path, said, line=error.line, key=error.key) from error
    if not isinstance(root.value, dict):
        raise ProfileError(path, "must be a mapping of keys and values", line=1)
    lines: dict[str, int] = {}
    waiting: list[tuple[str, Node]] = [("", root)]
    while waiting:
        prefix, node = waiting.pop()
        for key, place in (node.keys or {}).items():
            lines[f"{prefix}{key}"] = place.line
            waiting.append((f"{prefix}{key}.", node.value[key]))
        if isinstance(node.value, list):
            for index, item in enumerate(node.value):
                lines[f"{prefix}{index}"] = item.line
                waiting.append((f"{prefix}{index}.", item))
    return YamlFile(path=path, data=plain_value(root), lines=lines)


def check(file: YamlFile, form: Any) -> None:
    """Raise :class:`~hwcalc.profiles.catalog.ProfileError` with line and key for the first unknown, missing or wrong key."""
    fault = first_fault(file.data, form)
    if fault is not None:
        raise _wrong(file, *fault)
    place = tuple(form.place.format(convert(file.data, form)).split("/")) if hasattr(form, "place") else ()
    found = file.path.parts[len(file.path.parts) - len(place) :]
    if found != place:
        raise _wrong(file, ("id",), f"belongs in {'/'.join(place)}, but the file is {'/'.join(found)}")


def _wrong(file: YamlFile, path: Sequence[int | str], problem: str) -> ProfileError:
    """An error with the line of the key, or of the mapping in which it is missing."""
    key = ".".join(map(str, path))
    line = file.lines.get(key) or file.lines.get(key.rpartition(".")[0])
    return ProfileError(file.path, problem, line=line, key=key or None)


class Term(Facts):
    """A word of kvplan's, what it means, other words for it, and where it stands."""

    word: Words
    group: Word
    also: Listed = ()
    key: Words | None = None
    options: Annotated[tuple[Word, ...], Meta(description="a list of options of a plan")] = ()
    text: Words
    see: Listed = ()


class GlossaryFile(FactFile):
    """``glossary.yaml``."""

    place: ClassVar[str] = "glossary.yaml"
    groups: Annotated[Mapping[Word, Words], Meta(description="a mapping of groups to their titles")]
    terms: Annotated[tuple[Term, ...], Meta(min_length=1, description="a list of terms")]
    symbols: Annotated[Mapping[Word, Words], Meta(description="a mapping of symbols to their meanings")]

    def contradiction(self) -> tuple[str, str] | None:
        words = {term.word for term in self.terms}
        names = [name.lower() for term in self.terms for name in (term.word, *term.also)]
        for number, term in enumerate(self.terms):
            if term.group not in self.groups:
                return f"terms.{number}.group", f"{term.group} is not among the groups"
            for other in term.see:
                if other not in words:
                    return f"terms.{number}.see", f"{other} is not a word of the file"
            for name in (term.word, *term.also):
                if names.count(name.lower()) > 1:
                    return f"terms.{number}", f"{name} stands twice"
        return None


_KIND = Literal["on_demand", "spot", "market"]


class PriceRow(Facts):
    """The price of a machine: of one in ``instances/``, of another with ``count`` accelerators, or without ``count`` of each accelerator."""

    instance: Annotated[Words | None, Meta(description="the id of a file in instances/ of this provider")] = None
    name: Annotated[Words | None, Meta(description="what is sold, as its provider spells it")] = None
    accelerator: Annotated[GpuId | None, Meta(description="the id of an accelerator")] = None
    count: Annotated[int, Meta(gt=0, le=100_000, description="a whole number from 1 to 100,000")] | None = None
    kind: Annotated[_KIND, Meta(description="on_demand, spot or market")] = "on_demand"
    region: Word = "any"
    usd_per_hour: Annotated[float, Meta(gt=0, lt=1_000_000, description="US dollars, a number above 0")]

    def contradiction(self) -> tuple[str, str] | None:
        if (self.instance is None) == (self.name is None):
            return "instance", "is what this row prices, or else name with accelerator is"
        if (self.instance is None) != (self.accelerator is not None):
            return "accelerator", "goes with name: the accelerator of an instance is in its own file"
        if self.instance is not None and self.count is not None:
            return "count", "goes with name: the count of an instance is in its own file"
        return None


class PriceLine(PriceRow):
    """A line of a user's own table in CSV."""

    provider: Cloud
    date: Date | None = None
    source: Words


class PriceTable(Facts):
    """Prices of one day from one source."""

    source: Words
    date: Date
    prices: Annotated[tuple[PriceRow, ...], Meta(min_length=1, description="a list of prices")]


class PriceFile(FactFile):
    """``prices/<provider>.yaml``. Its README says what each key means."""

    place: ClassVar[str] = "{0.provider}.yaml"
    provider: Cloud
    tables: Annotated[tuple[PriceTable, ...], Meta(min_length=1, description="a list of tables")]


EstimatedShare: TypeAlias = Annotated[Estimate, ruled(lambda share: "must be shares of at most 1" if share["high"] > 1 else None)]


class VisibleShare(Facts):
    """What torch sees, as a share of what is known."""

    of_tool: EstimatedShare
    of_tool_amd: EstimatedShare
    of_marketing: EstimatedShare


class Reading(Facts):
    """What Metal reported on a Mac, in 10^6 bytes."""

    ram_gib: Whole
    megabytes: Positive
    macos: Words

    def contradiction(self) -> tuple[str, str] | None:
        too_many = self.megabytes * 10**6 > self.ram_gib * 1024**3
        return ("megabytes", "must be no more than the memory") if too_many else None


class Step(Facts):
    """The share of a Mac's memory that Metal allows from a size on."""

    from_gib: Annotated[int, Meta(ge=0, description="a whole number of GiB")]
    share: Share


def _rising_steps(steps: Sequence[Mapping[str, int]]) -> str | None:
    starts = [step["from_gib"] for step in steps]
    rises = starts[:1] == [0] and all(lower < higher for lower, higher in pairwise(starts))
    return None if rises else "must begin at 0 and rise"


Steps: TypeAlias = Annotated[tuple[Step, ...], ruled(_rising_steps)]


class Metal(Facts):
    """What Metal lets a GPU use of a Mac's memory."""

    readings: Annotated[tuple[Reading, ...], Meta(min_length=1)]
    older_rule: Steps
    newer_rule: Steps
    raise_with: Words
    source: Words


class HostMemory(Facts):
    """The memory that desktop machines have, in GB of 2^30 bytes."""

    usual_gb: tuple[Whole, ...]
    much_gb: Whole
    source: Words


class HardwareFile(FactFile):
    """``hardware.yaml``, whose comments say what each number is."""

    id: Words
    recorded: Date
    visible_share: VisibleShare
    host_memory: HostMemory
    metal: Metal


def parse_gpu(file: YamlFile) -> Gpu:
    """The GPU of a user's file. Its stem must be the id. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, GpuFile)
    return gpu_of(file.data, file.path)


def parse_instance(file: YamlFile) -> Instance:
    """The instance of a user's file. Its folder must be the cloud. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, InstanceFile)
    return instance_of(file.data, file.path)
