"""The forms of fact files in YAML, as pydantic models: what they share, those of hardware, and the error for a wrong file.

The built-in files are checked when they are compiled (``scripts/build_profiles.py``), a file of the user's own when it is read. Nothing else
imports pydantic, which takes longer than most plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, read_text
from hwcalc.profiles.hardware_file import LONGEST_ID, Gpu, Instance, file_name, gpu_of, instance_of
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


_LARGEST: Final = 2**40


class Facts(BaseModel):
    """A mapping with exactly these keys. No value is converted: ``"3"``, ``3.0`` and ``true`` are no whole numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FactFile(Facts):
    """A file of facts. What a field of it may hold stands in its description, and in the error for anything else."""

    schema_version: Annotated[int, Field(ge=1, le=1, description="1")]

    def place(self) -> tuple[str, ...]:
        """The last parts of the path where such a file belongs."""
        raise NotImplementedError


class WrongKeyError(ValueError):
    """A rule between several keys is broken: the key to change, and what is wrong with it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def _at_most_one(share: str) -> str:
    part, _, whole = share.partition("/")
    if int(part) > int(whole):
        raise ValueError("must be a share of at most 1, written 2/3")
    return share


def _a_day(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError as error:
        raise ValueError("must be a day of the calendar") from error
    return text


# What a value may hold is said in the description of the innermost type that has one, and of a field where the words of its type do not say it.
Words = Annotated[str, Field(pattern=r"\S", description="words")]
Word = Annotated[str, Field(pattern=r"\S", description="a word")]
Whole = Annotated[int, Field(gt=0, lt=_LARGEST, description="a positive whole number")]
Amount = Annotated[float, Field(ge=0, description="a number of at least 0")]
Positive = Annotated[float, Field(gt=0, lt=_LARGEST, description="a positive number")]
Date = Annotated[
    str,
    Field(
        pattern=r"^(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])$", description="a date, YYYY-MM-DD, in quotes"
    ),
    AfterValidator(_a_day),
]
Share = Annotated[
    str,
    Field(pattern=r"^[1-9][0-9]{0,4}/[1-9][0-9]{0,4}$", description="a share of at most 1, written 2/3"),
    AfterValidator(_at_most_one),
]
"""Two whole numbers, so that arithmetic stays exact."""
Sources = Annotated[
    dict[Words, Words],
    Field(min_length=1, description="a name and words for each source; it holds for every number of the file"),
]


class Estimate(Facts):
    """A number that is not exact, with its source."""

    low: Amount
    expected: Amount
    high: Amount
    source: Words

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low <= self.expected <= self.high:
            raise ValueError("must have 0 <= low <= expected <= high")
        return self


def check(file: YamlFile, form: type[BaseModel]) -> None:
    """Raise :class:`~hwcalc.profiles.catalog.ProfileError` with line and key for the first unknown, missing or wrong key."""
    try:
        content = form.model_validate(file.data)
    except ValidationError as error:
        # An unknown key comes first, because it often is the missing one, misspelled.
        errors = error.errors(include_url=False, include_input=False)
        mappings = ((), errors[0]["loc"][:-1])
        unknown = [one for one in errors if one["type"] == "extra_forbidden" and one["loc"][:-1] in mappings]
        first = min(unknown, key=lambda one: len(one["loc"]), default=errors[0])
        path = tuple(part for part in first["loc"] if part != "[key]")
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, WrongKeyError):
            path, problem = (*path, cause.key), str(cause)
        elif cause is not None:
            problem = str(cause)
        elif first["type"] == "extra_forbidden":
            problem = f"is not known. Allowed: {', '.join(_keys(_value_at(form, path[:-1])[0]))}"
        else:
            missing, allowed = first["type"] == "missing", _value_at(form, path)[1]
            problem = f"is missing: it must be {allowed}" if missing else f"must be {allowed}"
        raise _wrong(file, path, problem) from error
    place = content.place() if isinstance(content, FactFile) else ()
    found = file.path.parts[len(file.path.parts) - len(place) :]
    if found != place:
        raise _wrong(file, ("id",), f"belongs in {'/'.join(place)}, but the file is {'/'.join(found)}")


def _wrong(file: YamlFile, path: Sequence[int | str], problem: str) -> ProfileError:
    """An error with the line of the key, or of the mapping in which it is missing."""
    key = ".".join(map(str, path))
    line = file.lines.get(key) or file.lines.get(key.rpartition(".")[0])
    return ProfileError(file.path, problem, line=line, key=key or None)


def _value_at(form: type[BaseModel], path: Sequence[int | str]) -> tuple[Any, str]:
    """The type of the value at a key, and what it may hold in words."""
    value: Any = form
    words: str | None = None
    for part in path:
        mapping = _form_in(value)
        field = None if mapping is None else mapping.model_fields.get(str(part))
        value, words = (_item(value), None) if field is None else (field.annotation, field.description)
    return value, words or _described(value) or f"a mapping with {', '.join(_keys(value))}"


def _keys(value: Any) -> Sequence[str]:
    form = _form_in(value)
    return () if form is None else tuple(form.model_fields)


def _form_in(value: Any) -> type[BaseModel] | None:
    """The form of a mapping, of one that may be null, or of each of a list of them."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value
    return next((found for one in get_args(value) if (found := _form_in(one)) is not None), None)


def _item(value: Any) -> Any:
    """The type of the items of a list, or of the values of a mapping with any keys."""
    if isinstance(value, type) and issubclass(value, RootModel):
        return _item(value.model_fields["root"].annotation)
    if get_origin(value) in (list, dict):
        return get_args(value)[-1]
    return next((found for one in get_args(value) if (found := _item(one)) is not None), None)


def _described(value: Any) -> str | None:
    if isinstance(value, FieldInfo):
        return value.description
    if get_origin(value) in (list, dict):
        return None
    return next((found for one in reversed(get_args(value)) if (found := _described(one))), None)


GpuId = Annotated[
    str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=LONGEST_ID, description="small letters, digits and hyphens")
]
Mib = Annotated[int, Field(gt=0, lt=2**40, description="a positive whole number of MiB")]


def _rising(readings: list[int]) -> list[int]:
    if readings[0] > readings[1]:
        raise ValueError("must be two numbers of MiB, the lower first")
    return readings


class Rates(Facts):
    """Dense rates in TFLOPS (TOPS for int8)."""

    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    int8: Positive | None = None


class Link(Facts):
    """The link between accelerators with its bandwidth in GB/s as the sum of both directions, and the one to the host."""

    kind: Words | None = None
    gbps_bidirectional: Positive | None = None
    host: Words | None = None


class GpuFile(FactFile):
    """``gpus/<id>.yaml``. ``None`` is unknown. Its README says what each key means."""

    id: GpuId
    name: Words
    vendor: Word
    category: Annotated[
        Literal["datacenter", "workstation", "consumer", "laptop", "unified", "tpu", "neuron"] | None,
        Field(description="one of datacenter, workstation, consumer, laptop, unified, tpu, neuron"),
    ] = None
    released: Annotated[Whole | None, Field(description="a year")] = None
    recorded: Date | None = None
    architecture: Word | None = None
    compute_capability: Annotated[
        Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None, Field(description='CUDA\'s, in quotes: "9.0"')
    ] = None
    memory_type: Words | None = None
    memory_marketing_gb: Annotated[Whole | None, Field(description="a positive whole number: the number on the box")] = None
    memory_options_gb: Annotated[
        Annotated[list[Whole], Field(min_length=1, max_length=64)] | None, Field(description="a list of positive whole numbers")
    ] = None
    memory_total_mib: Mib | None = None
    memory_total_basis: Words | None = None
    torch_total_mib: Mib | None = None
    torch_total_mib_seen: Annotated[
        Annotated[list[Mib], Field(min_length=2, max_length=2), AfterValidator(_rising)] | None,
        Field(description="two numbers of MiB, the lower first"),
    ] = None
    torch_total_basis: Words | None = None
    memory_bandwidth_gbps: Positive | None = None
    tflops_dense: Rates | None = None
    interconnect: Link | None = None
    tdp_w: Positive | None = None
    devices_per_package: Whole | None = None
    gpus_per_node: Whole | None = None
    host_memory: Annotated[Literal["shared"] | None, Field(description="shared, or no such key")] = None
    fp8_kv: Annotated[Literal["native", "storage", "no"] | None, Field(description="native, storage or 'no' in quotes")] = None
    confidence: Annotated[Literal["high", "medium", "low"] | None, Field(description="high, medium or low")] = None
    note: Words | None = None
    source: Sources

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)

    @model_validator(mode="after")
    def _a_program_sees_at_most_what_is_sold(self) -> Self:
        """A program sees at most what the tool reports, and the tool reports at most what is sold."""
        sold = None if self.memory_marketing_gb is None else self.memory_marketing_gb * 1024
        largest: int | None = None
        for key, size in (
            ("memory_marketing_gb", sold),
            ("memory_total_mib", self.memory_total_mib),
            ("torch_total_mib", self.torch_total_mib),
        ):
            if size is not None and largest is not None and size > largest:
                raise WrongKeyError(key, f"is {size:,} MiB, more than the {largest:,} MiB that stand above it")
            largest = largest if size is None else size
        return self

    @model_validator(mode="after")
    def _readings_are_around_the_total(self) -> Self:
        """The range of readings contains ``torch_total_mib`` and does not exceed the whole memory."""
        seen, torch, sold = self.torch_total_mib_seen, self.torch_total_mib, self.memory_marketing_gb
        most = self.memory_total_mib or (None if sold is None else sold * 1024)
        if seen is None:
            return self
        if most is not None and seen[1] > most:
            raise WrongKeyError("torch_total_mib_seen", f"is up to {seen[1]:,} MiB, more than the {most:,} MiB of all")
        if torch is not None and not seen[0] <= torch <= seen[1]:
            raise WrongKeyError("torch_total_mib_seen", f"does not have torch_total_mib, {torch:,}, in it")
        return self


class Term(Facts):
    """A word of kvplan's, what it means, other words for it, and where it stands."""

    word: Words
    group: Word
    also: list[Words] = Field(default_factory=list, description="a list of words")
    key: Words | None = None
    options: list[Word] = Field(default_factory=list, description="a list of options of a plan")
    text: Words
    see: list[Words] = Field(default_factory=list, description="a list of words")


class GlossaryFile(FactFile):
    """``glossary.yaml``."""

    groups: Annotated[dict[Word, Words], Field(description="a mapping of groups to their titles")]
    terms: Annotated[list[Term], Field(min_length=1, description="a list of terms")]

    def place(self) -> tuple[str, ...]:
        return ("glossary.yaml",)

    @model_validator(mode="after")
    def _known(self) -> Self:
        words = {term.word for term in self.terms}
        names = [name.lower() for term in self.terms for name in (term.word, *term.also)]
        for number, term in enumerate(self.terms):
            if term.group not in self.groups:
                raise WrongKeyError(f"terms.{number}.group", f"{term.group} is not among the groups")
            for other in term.see:
                if other not in words:
                    raise WrongKeyError(f"terms.{number}.see", f"{other} is not a word of the file")
            for name in (term.word, *term.also):
                if names.count(name.lower()) > 1:
                    raise WrongKeyError(f"terms.{number}", f"{name} stands twice")
        return self


class LinkFacts(Facts):
    """A link over which a cache moves."""

    name: Word
    also: list[Word] = Field(default_factory=list, description="a list of words")
    gbps: Annotated[float, Field(gt=0, le=10_000, description="a number above 0")]
    what: Literal["network", "disk"]
    source: Words


class LinksFile(FactFile):
    """``links.yaml``."""

    id: Words
    recorded: Date
    links: Annotated[list[LinkFacts], Field(min_length=1, description="a list of links")]

    def place(self) -> tuple[str, ...]:
        return ("links.yaml",)

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [name for link in self.links for name in (link.name, *link.also)]
        for number, link in enumerate(self.links):
            if any(names.count(name) > 1 for name in (link.name, *link.also)):
                raise WrongKeyError(f"links.{number}", f"{link.name} stands twice")
        return self


class MigSlice(Facts):
    """A slice of an accelerator."""

    multiprocessors: Whole
    memory_slices: Whole
    starts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, description="parts of the memory, from 0")]
    memory_mib: Annotated[
        Annotated[list[Mib], Field(min_length=2, max_length=2), AfterValidator(_rising)],
        Field(description="two numbers of MiB, the lower first"),
    ]


class MigCut(Facts):
    """How accelerators can be cut."""

    accelerators: Annotated[list[GpuId], Field(min_length=1, description="ids of accelerators")]
    multiprocessors: Whole
    memory_slices: Whole
    slices: Annotated[
        dict[Annotated[str, Field(pattern=r"^[1-9]g\.[0-9]{1,3}gb$")], MigSlice],
        Field(min_length=1, description="slices by name, such as 1g.10gb"),
    ]

    @model_validator(mode="after")
    def _has_its_slices(self) -> Self:
        for name, part in self.slices.items():
            if part.multiprocessors > self.multiprocessors or max(part.starts) + part.memory_slices > self.memory_slices:
                raise WrongKeyError(f"slices.{name}", "is more than the accelerator has")
            if part.memory_mib[1] > int(name.partition(".")[2].removesuffix("gb")) * 1024:
                raise WrongKeyError(f"slices.{name}.memory_mib", "is more than its name says")
        return self


class MigFile(FactFile):
    """``mig.yaml``."""

    id: Words
    recorded: Date
    source: Sources
    gpus: Annotated[list[MigCut], Field(min_length=1, description="a list of accelerators with their slices")]

    def place(self) -> tuple[str, ...]:
        return ("mig.yaml",)


class Aliases(RootModel[dict[GpuId, GpuId]]):
    """``gpu_aliases.yaml``: other name -> id."""


GPU_FIELDS: Final = tuple(GpuFile.model_fields)
"""The keys of a file."""


class InstanceFile(FactFile):
    """``instances/<cloud>/<name>.yaml``. Its README says what each key means."""

    id: Annotated[Words, Field(description="its name, as its cloud spells it")]
    cloud: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]
    recorded: Date | None = None
    accelerator: Annotated[GpuId, Field(description="the id of an accelerator")]
    count: Annotated[int, Field(gt=0, le=100_000, description="a whole number from 1 to 100,000")]
    fabric: Words | None = None
    fraction: Annotated[Share | None, Field(description="a share of one accelerator, written 1/8")] = None
    memory_mib: Annotated[Whole | None, Field(description="a positive whole number of MiB")] = None
    note: Words | None = None
    source: Sources

    def place(self) -> tuple[str, ...]:
        return self.cloud, f"{file_name(self.id)}.yaml"

    @model_validator(mode="after")
    def _a_fraction_is_of_one(self) -> Self:
        if self.fraction is None and self.memory_mib is not None:
            raise WrongKeyError("memory_mib", "goes with fraction: a whole accelerator's memory is in its own file")
        if self.fraction is not None and self.count != 1:
            raise WrongKeyError("fraction", "goes with a count of 1")
        return self


INSTANCE_FIELDS: Final = tuple(InstanceFile.model_fields)
"""The keys of a file."""


class PriceRow(Facts):
    """The price of a machine: of one in ``instances/``, of another with ``count`` accelerators, or without ``count`` of each accelerator."""

    instance: Annotated[Words | None, Field(description="the id of a file in instances/ of this provider")] = None
    name: Annotated[Words | None, Field(description="what is sold, as its provider spells it")] = None
    accelerator: Annotated[GpuId | None, Field(description="the id of an accelerator")] = None
    count: Annotated[int | None, Field(gt=0, le=100_000, description="a whole number from 1 to 100,000")] = None
    kind: Annotated[Literal["on_demand", "spot", "market"], Field(description="on_demand, spot or market")] = "on_demand"
    region: Word = "any"
    usd_per_hour: Annotated[float, Field(gt=0, lt=1_000_000, description="US dollars, a number above 0")]

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if (self.instance is None) == (self.name is None):
            raise WrongKeyError("instance", "is what this row prices, or else name with accelerator is")
        if (self.instance is None) != (self.accelerator is not None):
            raise WrongKeyError("accelerator", "goes with name: the accelerator of an instance is in its own file")
        if self.instance is not None and self.count is not None:
            raise WrongKeyError("count", "goes with name: the count of an instance is in its own file")
        return self


class PriceLine(PriceRow):
    """A line of a user's own table in CSV."""

    provider: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]
    date: Date | None = None
    source: Words


class PriceTable(Facts):
    """Prices of one day from one source."""

    source: Words
    date: Date
    prices: Annotated[list[PriceRow], Field(min_length=1, description="a list of prices")]


class PriceFile(FactFile):
    """``prices/<provider>.yaml``. Its README says what each key means."""

    provider: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]
    tables: Annotated[list[PriceTable], Field(min_length=1, description="a list of tables")]

    def place(self) -> tuple[str, ...]:
        return (f"{self.provider}.yaml",)


def parse_gpu(file: YamlFile) -> Gpu:
    """The GPU of a user's file. Its stem must be the id. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, GpuFile)
    return gpu_of(file.data, file.path)


def parse_instance(file: YamlFile) -> Instance:
    """The instance of a user's file. Its folder must be the cloud. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, InstanceFile)
    return instance_of(file.data, file.path)


def _of_one(share: Estimate) -> Estimate:
    if share.high > 1:
        raise ValueError("must be shares of at most 1")
    return share


EstimatedShare = Annotated[Estimate, AfterValidator(_of_one)]


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

    @model_validator(mode="after")
    def _is_of_the_memory(self) -> Self:
        if self.megabytes * 10**6 > self.ram_gib * 1024**3:
            raise WrongKeyError("megabytes", "must be no more than the memory")
        return self


class Step(Facts):
    """The share of a Mac's memory that Metal allows from a size on."""

    from_gib: Annotated[int, Field(ge=0, description="a whole number of GiB")]
    share: Share


def _rising_shares(steps: list[Step]) -> list[Step]:
    starts = [step.from_gib for step in steps]
    if starts[:1] != [0] or not all(lower < higher for lower, higher in pairwise(starts)):
        raise ValueError("must begin at 0 and rise")
    return steps


Rule = Annotated[list[Step], AfterValidator(_rising_shares)]


class Metal(Facts):
    """What Metal lets a GPU use of a Mac's memory."""

    readings: Annotated[list[Reading], Field(min_length=1)]
    older_rule: Rule
    newer_rule: Rule
    raise_with: Words
    source: Words


class HardwareFile(FactFile):
    """``hardware.yaml``, whose comments say what each number is."""

    id: Words
    recorded: Date
    visible_share: VisibleShare
    metal: Metal

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)
