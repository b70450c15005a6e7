"""Read a fleet's file: models with their users, nodes that are there or may be rented, and the conditions.

Keys of a model are options of a plan, with their readers; faults name line and column, as those of check files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from hwcalc.check.fields import OTHER_KEYS, SCHEMA_VERSION, Field, field_of
from hwcalc.check.file import Entry, TreeReader, kept_defaults, misnamed, parse_tree, settled
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.named import counted, gpu_named, instance_device, instance_named
from hwcalc.planner.layouts import node_of
from hwcalc.planner.options import COMMANDS, DIMENSIONS, ROWS
from hwcalc.planner.values import TYPES, is_auto
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.profiles.mig import cuts, slice_id, sliced
from hwcalc.text import printable, shown
from hwcalc.units import MOST_TOKENS, parse_money, parse_share, parse_tokens
from hwcalc.yaml_tree import Node

MOST_MODELS: Final = 40
MOST_NODES: Final = 40
"""Entries of a file; each may be many nodes."""
MOST_COUNT: Final = 1_000
"""Nodes of an entry."""
MOST_USERS: Final = 1_000_000
MOST_GROWTH: Final = 100
MOST_USD: Final = 100_000
"""Dollars an hour for a node."""
_APART: Final = ("batch", "offline", "token", "endpoint", *DIMENSIONS)


def _counted(most: int) -> Callable[[Node, str], int]:
    """A reader of a whole number up to ``most``."""

    def read(node: Node, key: str) -> int:
        with suppress(UsageError):
            number: int = field_of(ROWS["batch"]).read(node, key)
            if number <= most:
                return number
        raise UsageError(f"{key} is {shown(node.text, 40)}", hint=f"Allowed: a whole number from 1 to {most:,}.")

    return read


FIELDS: Final[Mapping[str, Field]] = {
    name: field_of(ROWS[name])
    for name in COMMANDS["recommend"]
    if name in ROWS and name not in _APART and (ROWS[name].group != "hardware" or name == "margin")
} | {
    "users": Field(_counted(MOST_USERS), "Users at once, each with a request in flight.", TYPES["count"].schema),
    "output": Field(field_of(ROWS["seq"]).read, "Tokens of the answer; with prompt in place of seq.", TYPES["tokens"].schema),
}
"""Key of a model -> how it is read: options of a plan that name no hardware, with ``users`` for the number of sequences."""
_NODES: Final = Field(_counted(MOST_COUNT), "", TYPES["count"].schema)
_OF_NODE: Final = ("name", "gpu", "gpus", "instance", "mig", "count", "rent", "price")
_CONDITIONS: Final = ("survive", "growth", "rolling")
_TOP: Final = ("schema_version", "defaults", "models", "nodes", *_CONDITIONS)
MOST_SURVIVED: Final = 3


class Wanted(Record):
    """A model with its users, or the requests that arrive in a second; ``options`` are keywords of :func:`hwcalc.plan` without hardware and users."""

    name: str
    model: str
    users: int | None
    options: Mapping[str, Any]

    @property
    def rate(self) -> float | None:
        """The requests that arrive in a second, in place of users."""
        rate: float | None = self.options.get("rate")
        return rate


class NodeType(Record):
    """Nodes of one kind: ``gpus`` accelerators each, ``count`` that are there, and up to ``rent`` that may be rented.

    ``gpu`` is the accelerator where no ``instance`` is named, and each is cut into so many ``slices`` of the name ``mig``. ``usd_per_hour`` is the user's own price; ``where`` is the place in the file.
    """

    name: str
    gpu: str | None
    instance: str | None
    gpus: int
    count: int
    rent: int
    usd_per_hour: Decimal | None
    where: str = ""
    mig: str | None = None
    slices: int = 1

    @property
    def whole(self) -> Gpu:
        """One of its accelerators."""
        return gpu_named(self.gpu or "") if self.instance is None else instance_device(instance_named(self.instance))

    @property
    def device(self) -> Gpu:
        """The device of a replica: an accelerator, or a slice of one."""
        return self.whole if self.mig is None else sliced(self.whole, self.mig)

    @property
    def devices(self) -> int:
        """The number of these devices."""
        return self.gpus * self.slices

    @property
    def hardware(self) -> dict[str, Any]:
        """The keyword of a plan that names its accelerator."""
        if self.mig is not None:
            return {"gpu": self.device.id}
        return {"gpu": self.gpu} if self.instance is None else {"instance": self.instance}


class Conditions(Record):
    """What must hold: any ``survive`` nodes may fail, users are ``growth`` times as many, and with ``rolling`` a replica more fits."""

    survive: int = 0
    growth: Fraction = Fraction(1)
    rolling: bool = False


class FleetFile(Record):
    """A fleet as it was written."""

    models: tuple[Wanted, ...]
    nodes: tuple[NodeType, ...]
    conditions: Conditions


def parse_fleet(text: str, path: str) -> FleetFile:
    """The fleet of a text that was read from ``path``, ``-`` for standard input.

    Raises :class:`~hwcalc.check.file.CheckFileError` (exit 3) if it cannot be read as YAML and
    :class:`~hwcalc.check.file.CheckUsageError` (exit 2) if a key or a value is wrong; both name line and column.
    """
    reader = _Reader(path)
    tree = parse_tree(text, reader.name, reader.command)
    with reader.reading():
        fleet = reader.fleet(tree)
    reader.close()
    return fleet


def read_growth(value: object) -> Fraction:
    """The factor of a growth: ``2x``, ``1.5``, ``150%``.

    >>> read_growth("2x"), read_growth("150%")
    (Fraction(2, 1), Fraction(3, 2))
    """
    try:
        text = str(value).strip().lower().removesuffix("x").strip()
        factor = Fraction(str(parse_share(text, "growth"))) if text.endswith("%") else Fraction(text)
    except (ValueError, ZeroDivisionError, UsageError):
        factor = Fraction(0)
    if isinstance(value, bool) or not 1 <= factor <= MOST_GROWTH:
        raise UsageError(
            f"growth is {shown(str(value), 40)}.",
            hint=f"Allowed: how many times as many users, such as 2x, 1.5 or 150%, up to {MOST_GROWTH}.",
        )
    return factor


def read_survive(value: int | str) -> int:
    """The number of nodes that may fail at once."""
    with suppress(UsageError):
        number = parse_tokens(value, "survive", minimum=0)
        if number <= MOST_SURVIVED:
            return number
    raise UsageError(
        f"survive is {shown(str(value), 40)}.", hint=f"Allowed: how many nodes may fail at once, 0 to {MOST_SURVIVED}."
    )


class _Reader(TreeReader):
    """Reads a fleet's file."""

    command = "fleet"
    known = ("name", "model", *FIELDS, *OTHER_KEYS)

    def fleet(self, root: Node) -> FleetFile:
        top = self.mapping(root, "a fleet", _TOP)
        self.version(root, top)
        defaults = self.defaults(top, "model")
        names: dict[str, int] = {}
        models = [self.model(node, defaults, names) for node in self.listed(root, top, "models", MOST_MODELS)]
        names = {}
        nodes = [self.node(node, names) for node in self.listed(root, top, "nodes", MOST_NODES)]
        given = {}
        for name in _CONDITIONS:
            if name in top and top[name].value is not None:
                with self.keeping():
                    given[name] = self.read(top[name], name, _CONDITION[name])
        return FleetFile(
            models=tuple(model for model in models if model is not None),
            nodes=tuple(node for node in nodes if node is not None),
            conditions=Conditions(**given),
        )

    def listed(self, root: Node, top: Mapping[str, Node], key: str, most: int) -> Sequence[Node]:
        """The entries of a list that must be there."""
        node = top.get(key)
        if node is None or not isinstance(node.value, list) or not node.value:
            self.fault(node or root, f"{key} must be a list of at least one of them", "See: kvplan fleet --example")
            return ()
        if len(node.value) > most:
            self.fault(node, f"more than {most} {key}", "Put equal ones together: count, or users.")
            return ()
        return node.value

    def named(self, entry: Entry | None, default: str, names: dict[str, int], node: Node) -> str:
        """The name of an entry, which stands once."""
        name = default if entry is None else printable(self.text("name", entry.value)[:60])
        if name in names:
            self.fault(
                node if entry is None else entry.value,
                f"{shown(name, 60)} stands twice (first in line {names[name]})",
                "Give each its own name.",
            )
        names[name] = node.line
        return name

    def text(self, key: str, node: Node) -> str:
        """The text of a value."""
        text: str = self.read(node, key, field_of(ROWS["assume"]))
        return text.strip()

    def model(self, node: Node, defaults: Mapping[str, Entry], names: dict[str, int]) -> Wanted | None:
        with self.keeping():
            own = self.keys(node, "a model")
            if "output" in own:
                defaults = {key: entry for key, entry in defaults.items() if key != "seq"}
            entries = settled(
                {key: each for key, each in (kept_defaults(defaults, own) | own).items() if each.value.value is not None}
            )
            read: dict[str, Any] = {}
            for key, entry in entries.items():
                field = FIELDS.get("users" if key == "batch" else key)
                if field is None and key not in ("name", "model"):
                    self.fault(
                        entry.value, f"a model has no {key}: nodes have hardware, and the answer a layout", "Leave it out."
                    )
                with self.keeping():
                    read |= {} if field is None else {key: self.read(entry.value, "users" if key == "batch" else key, field)}
            model = self.model_name("model", {key: entry.value for key, entry in entries.items()}) if "model" in entries else None
            if "model" not in entries:
                self.fault(node, "a model has no id", "Write model: org/name, or the path of a folder or config.json.")
            if ("batch" in entries) == ("rate" in entries):
                which = "both users and a rate" if "rate" in entries else "no users"
                hint = "Write users: 200, those who have a request in flight at once, or rate: 2.5, requests that arrive in a second."
                self.fault(node, f"a model has {which}", hint)
            if is_auto(read.get("weights")):
                self.fault(
                    entries["weights"].value, "auto chooses for one GPU, and a fleet has many", "Name a format: weights: fp8."
                )
            for fault in misnamed({key: entry.value for key, entry in entries.items()}, read):
                self.fault(fault, printable(fault.error.message), fault.error.hint)
            output = read.pop("output", None)
            if output is not None and ("seq" in read or "prompt" not in read):
                self.fault(
                    entries["output"].value,
                    "output is beside prompt, and in place of seq",
                    "Write prompt: 6k and output: 1k, or seq: 7k.",
                )
            elif output is not None:
                read["seq"] = read["prompt"] + output
                if read["seq"] > MOST_TOKENS:
                    self.fault(entries["output"].value, "prompt and output are too many tokens", "Allowed: fewer.")
            if model is None or read.keys().isdisjoint(("batch", "rate")):
                return None
            return Wanted(
                name=self.named(entries.get("name"), printable(model), names, node),
                model=model,
                users=read.pop("batch", None),
                options=read,
            )
        return None

    def node(self, node: Node, names: dict[str, int]) -> NodeType | None:
        with self.keeping():
            own = self.mapping(node, "a node", _OF_NODE)
            own = {key: value for key, value in own.items() if value.value is not None}
            counts = {key: self.read(own[key], key, _NODES) for key in ("gpus", "count") if key in own}
            if ("gpu" in own) == ("instance" in own):
                raise self.error(node, "a node has a gpu or an instance", "Write gpu: 8xh100-sxm, or instance: aws/p5.48xlarge.")
            if "instance" in own and "gpus" in own:
                raise self.error(own["gpus"], "an instance has its own number of GPUs", "Leave out gpus.")
            try:
                gpu, instance, gpus = self.hardware(own, counts.get("gpus"))
            except UsageError as error:
                raise self.error(own.get("gpu", own.get("instance", node)), printable(error.message), error.hint) from error
            mig, slices = self.cut(own["mig"], gpu, instance) if "mig" in own else (None, 1)
            rent = self.rent(own.get("rent"))
            usd = None
            if "price" in own:
                usd = self.read(own["price"], "price", Field(lambda value, key: parse_money(value.text, key), "", {}))
                if usd > MOST_USD:
                    self.fault(own["price"], "price is too high", f"Allowed: up to {MOST_USD:,}/h.")
                if not rent:
                    self.fault(own["price"], "a price is that of a node for rent", "Add rent: true, or leave it out.")
            entry = None if "name" not in own else Entry(value=own["name"], place=None)  # type: ignore[arg-type]
            default = (instance or f"{gpus}x{gpu}") + ("" if mig is None else f", {slices}x{mig}")
            return NodeType(
                name=self.named(entry, default, names, node),
                gpu=gpu,
                instance=instance,
                gpus=gpus,
                count=counts.get("count", 0 if rent else 1),
                rent=rent,
                usd_per_hour=usd,
                where=f"{self.name}:{node.line}",
                mig=mig,
                slices=slices,
            )
        return None

    def cut(self, node: Node, gpu: str | None, instance: str | None) -> tuple[str, int]:
        """The slices that each accelerator is cut into: their name, and how many."""
        whole = gpu_named(gpu or "") if instance is None else instance_device(instance_named(instance))
        name, count = counted(self.text("mig", node))
        try:
            part = gpu_named(f"{whole.id}:{name}", "mig")
        except UsageError as error:
            raise self.error(
                node, printable(error.message), "Write slices of one kind: 7x1g.10gb. Known: kvplan gpus mig"
            ) from error
        name = part.id.removeprefix(slice_id(whole.id, ""))
        most = cuts()[whole.id].most(name)
        if (count or most) > most:
            raise self.error(
                node, f"up to {most:,} of {part.id} stand side by side, and these are {count:,}", f"Write {most}x{name}."
            )
        return name, count or most

    def hardware(self, own: Mapping[str, Node], gpus: int | None) -> tuple[str | None, str | None, int]:
        """The accelerator or the instance, and the number of accelerators."""
        if "instance" in own:
            instance = instance_named(self.text("instance", own["instance"]), "instance")
            return None, f"{instance.cloud}/{instance.id}", instance.count
        name, count = counted(self.text("gpu", own["gpu"]))
        if None not in (count, gpus) and count != gpus:
            raise UsageError(f"gpu {shown(own['gpu'].text, 40)} and gpus {gpus:,} differ", hint="Give one number.")
        gpu, count = gpu_named(name or "", "gpu"), count or gpus or 1
        if count > node_of(gpu):
            raise UsageError(
                f"a node has up to {node_of(gpu)} of {gpu.id}, and this one {count:,}",
                hint="Write nodes of fewer, and their count.",
            )
        return gpu.id, None, count

    def rent(self, node: Node | None) -> int:
        """The most nodes that may be rented: none, any number, or the number that is written."""
        if node is None or isinstance(node.value, bool):
            return MOST_COUNT if node is not None and node.value else 0
        at_most = node.value.get("at_most") if isinstance(node.value, dict) and set(node.value) == {"at_most"} else None
        if at_most is None:
            raise self.error(node, "rent is true, or says how many at most", "Write rent: true, or rent: {at_most: 10}.")
        return int(self.read(at_most, "at_most", _NODES))


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise UsageError(f"{key} is not true or false", hint="Allowed: true, false.")
    return node.value


_CONDITION: Final = {
    "survive": Field(lambda node, _: read_survive(node.text), "Nodes that may fail at once.", {"type": "integer", "minimum": 0}),
    "growth": Field(lambda node, _: read_growth(node.text), "Times as many users.", {"type": ["number", "string"]}),
    "rolling": Field(_flag, "True: a replica more of one model at a time fits.", {"type": "boolean"}),
}


def fleet_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12). Rules between keys, such as ``output`` needs ``prompt``, are left to this module."""
    text = {"type": "string", "minLength": 1}
    options: dict[str, Any] = {
        key: {
            "anyOf": [{word: value for word, value in field.schema.items() if word != "description"}, {"type": "null"}],
            "description": field.help,
        }
        for key, field in FIELDS.items()
    }
    named = {
        "name": {**text, "maxLength": 60},
        "model": {**text, "description": "Hub id, or the path of a folder or config.json."},
    }
    count = TYPES["count"].schema
    rent = {
        "anyOf": [
            {"type": ["boolean", "null"]},
            {"type": "object", "additionalProperties": False, "required": ["at_most"], "properties": {"at_most": count}},
        ]
    }
    node = {
        "name": text,
        "gpu": {**text, "description": "Accelerators of a node: 8xh100-sxm."},
        "gpus": {**count, "description": "How many, where gpu does not say so."},
        "instance": {**text, "description": "Cloud instance, instead of gpu: aws/p5.48xlarge."},
        "mig": {**text, "description": "MIG slices that each of its GPUs is cut into: 7x1g.10gb."},
        "count": {**count, "description": "Nodes that are there. Default: 1, or none of those for rent."},
        "rent": {**rent, "description": "Whether nodes may be rented, and how many at most."},
        "price": {**text, "description": "Your own price of a node for rent: 20/h, 9000/month."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvplan fleet-file",
        "description": "What kvplan fleet reads, in YAML or JSON.",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema_version", "models", "nodes"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "defaults": {"type": ["object", "null"], "additionalProperties": False, "properties": options},
            "models": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_MODELS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["model"],
                    "properties": {**named, **options},
                },
            },
            "nodes": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_NODES,
                "items": {"type": "object", "additionalProperties": False, "properties": node},
            },
            **{key: {**field.schema, "description": field.help} for key, field in _CONDITION.items()},
        },
    }
