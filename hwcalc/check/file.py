"""Read a check file: its checks, with defaults filled in and the line of each, and errors that name the file and the place."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import field
from msgspec.structs import replace

from hwcalc.check.fields import (
    ALIASES,
    FITTING,
    HARDWARE,
    LEFT_OUT,
    LENGTH_OF_SERVER,
    MOST_CHECKS,
    OF_ENGINE,
    OF_TIME,
    OPTIONS,
    OTHER_KEYS,
    REQUIREMENTS,
    SCHEMA_VERSION,
    UNPLANNED,
)
from hwcalc.check.result import Judged, KeyChange
from hwcalc.errors import KvplanError, UsageError
from hwcalc.files import decoded, standard_input
from hwcalc.formulas.record import Record
from hwcalc.hardware.named import counted
from hwcalc.model import Note
from hwcalc.profiles.engine_flags import without
from hwcalc.text import brief, operand, printable, shown
from hwcalc.yaml_tree import LARGEST_FILE, Node, TreeError, read_tree

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan


class _PlacedError(KvplanError):
    """An error at a ``line`` and ``column`` of a file, both counted from 1."""

    def __init__(self, message: str, *, hint: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class CheckFileError(_PlacedError, ValueError):
    """A file of checks or servers is missing or cannot be read, such as wrong YAML: exit 3."""

    exit_code = 3
    type = "bad-check-file"


class CheckUsageError(_PlacedError, UsageError):
    """A check file is readable but wrong, with an unknown key or a value out of range: exit 2.

    ``others`` are the further faults of the file.
    """

    type = "bad-check"
    others: tuple[CheckUsageError, ...] = ()


class LockError(_PlacedError, ValueError):
    """A lock file is broken, has another version, or lacks a model: exit 3."""

    exit_code = 3
    type = "lock"


class BaselineError(_PlacedError, ValueError):
    """A baseline cannot be read or is not a document of kvplan: exit 3."""

    exit_code = 3
    type = "baseline"


class NoVerdictError(KvplanError):
    """A check demands a verdict that nobody can give. Nothing was typed wrongly, and it is no pass: exit 1, as of a plan without one."""

    exit_code = 1
    type = "no-verdict"


def read_text(path: str, largest: int = LARGEST_FILE, command: str = "check") -> str:
    """The text of a regular file of so many bytes, or of standard input for ``-``. Raises :class:`~hwcalc.check.file.CheckFileError`.

    ``command`` is the one that reads it, of which the hints speak.
    """
    name = "standard input" if path == "-" else printable(path)
    try:
        data = _bytes(path, name, largest, command)
    except FileNotFoundError as error:
        from pathlib import Path

        hint, file = f"Give a {command} file, or start with: kvplan {command} --example", Path(path)
        with suppress(OSError, ValueError):
            others = (file.with_suffix(suffix) for suffix in (".yaml", ".yml", ".json") if file.suffix)
            beside = next((other for other in others if other.is_file()), None)
            hint = hint if beside is None else f"There is: kvplan {command} {operand(str(beside))}"
        raise CheckFileError(f"there is no file {name}.", hint=hint) from error
    except KvplanError:
        raise
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise CheckFileError(f"{name} cannot be read: {reason}.", hint=f"Give a {command} file in YAML.") from error
    if len(data) > largest:
        raise CheckFileError(f"{name} is larger than {largest // 1024**2} MiB.", hint="Split it into several files.")
    try:
        return decoded(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckFileError(
            f"{name} is not {error.encoding.upper()} text (byte {error.start:,}).", hint="Save it as UTF-8.", line=line
        ) from error


def _bytes(path: str, name: str, largest: int, command: str) -> bytes:
    if path == "-":
        data = standard_input(f"Pipe a {command} file in: kvplan {command} - < {command}.yaml").read(largest + 1)
        return data.encode() if isinstance(data, str) else bytes(data)
    mode = os.stat(path or os.curdir).st_mode
    if not stat.S_ISREG(mode):  # opening anything else may block for ever
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise CheckFileError(f"{name} is {what}, not a file.", hint=f"Give a {command} file, or - for standard input.")
    with open(path, "rb") as stream:
        return stream.read(largest + 1)


def parse_tree(text: str, name: str, command: str = "check") -> Node:
    """The tree of a text. Messages name its places as ``name:line:column``. Raises :class:`~hwcalc.check.file.CheckFileError`."""
    try:
        return read_tree(text)
    except TreeError as error:
        raise unreadable(error, name, f"Write plain YAML or JSON. An example: kvplan {command} --example") from error


def unreadable(error: TreeError, name: str, hint: str) -> CheckFileError:
    """The error of a file of this name that cannot be read, at its place."""
    line, column = error.line or 1, error.column or 1
    if error.line is not None:
        message = f"{name}:{line}:{column}: {error.problem}."
    else:
        message = f"{name}{':' if error.problem.startswith('not') else ''} {error.problem}."
    return CheckFileError(message, hint=error.hint or hint, line=line, column=column)


MOST_FAULTS: Final = 20
"""Faults of a file that are reported. Its reading ends behind them."""
_LONGEST_NAME: Final = 200
_TOP: Final = ("schema_version", "defaults", "checks")
_KEYS: Final = ("name", "model", *OPTIONS, *REQUIREMENTS, *OTHER_KEYS)
_OPTION: Final = "engine_options."
"""What stands before the name of an engine option where it is a key."""
_SAME: Final = {
    LENGTH_OF_SERVER: (f"{_OPTION}{LENGTH_OF_SERVER}",),
    f"{_OPTION}{LENGTH_OF_SERVER}": (LENGTH_OF_SERVER,),
}
_INSTEAD: Final = {"gpu": ("instance",), "instance": ("gpu", "gpus"), **_SAME}
# A check that says something in one way drops what the defaults say in the other way.


class Required(Record):
    """One requirement: its key, the limit, and the limit as it was written."""

    name: str
    limit: Any
    text: str


class Place(Record):
    """Where a key stands, and the word that is written there: ``concurrency`` for ``batch``. A default's place is among the defaults.

    Of a ``gpu`` that has its number with it, ``counted`` are its name and the number.
    """

    line: int
    column: int
    word: str
    counted: tuple[str, int] | None = None


class Fault(Record):
    """Why a check cannot be made, such as a name that is not known, and the place of it, which may be among the defaults."""

    line: int
    column: int
    error: KvplanError


class Check(Record):
    """One check. ``model`` is as written, ``options`` are keyword arguments of a plan, ``required`` is in the order of the reports.

    ``places`` says where each of its keys stands. ``faults`` are why it cannot be made: its names of engines and hardware that are not known.
    ``told`` is what can be said without a plan: all that is said, where nothing is required. ``unplanned_flags`` are warnings of vLLM's flags
    that may bear on memory, and that no plan counts.
    """

    name: str
    line: int
    column: int
    model: str
    options: Mapping[str, Any]
    required: tuple[Required, ...]
    places: Mapping[str, Place] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    told: tuple[Judged, ...] = ()
    unplanned_flags: tuple[Note, ...] = ()

    @property
    def nameless(self) -> bool:
        """True if its name is made of what it plans, and so is another once that changes."""
        return "name" not in self.places

    @property
    def own_length(self) -> str:
        """The engine's option that has the length of the model where users send less; empty for a check, which says what is planned."""
        return ""

    @property
    def asked(self) -> Mapping[str, Any]:
        """The options that are asked for: those of the plan."""
        return self.options

    def word_for(self, key: str) -> str:
        """What the file calls an option, by its place: ``concurrency`` for ``batch``."""
        place = self.places.get(key)
        # In a mapping of options, each has its own name.
        is_item = "." in key and place is not None and place.word == key.partition(".")[0]
        return key if place is None or place.counted is not None or is_item else place.word

    def known(self, changes: Sequence[KeyChange]) -> Sequence[KeyChange]:
        """The changes of the keys, as far as what was before is known."""
        return changes

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The server that is checked, as plain values; ``None`` for a check of a check file."""
        return None

    def started(self, plan: Plan, replan: Callable[..., Plan]) -> Plan:
        """The plan that is judged. ``replan`` makes the plan with some options changed."""
        return plan

    def failed(self, error: KvplanError) -> Fault:
        """An error of the plan, at its place."""
        return Fault(line=self.line, column=self.column, error=error)

    @property
    def on_enough(self) -> Check:
        """The check that is planned where nothing is required: of a server with too few GPUs the same on enough."""
        return self

    def unplanned(self, planner: Callable[[Check], Callable[..., Plan]], changes: Sequence[KeyChange] = ()) -> Sequence[Judged]:
        """What is said where nothing is required. ``planner`` gives what plans a check like this, and ``changes`` are those since the baseline or the lock."""
        return self.told

    def refusal(
        self, error: KvplanError, planner: Callable[[Check], Callable[..., Plan]], changes: Sequence[KeyChange] = ()
    ) -> Judged | None:
        """The requirement that fails where an error of the plan is one of the engine's at start; ``None`` where the check cannot be made.

        ``planner`` gives what plans a check like this. Values of before the ``changes`` are offered first.
        """
        return None

    def warned(self, plan: Plan) -> Sequence[Note]:
        """The warnings of a plan, and of the text."""
        return (*self.unplanned_flags, *plan.warnings)


class CheckFile(Record):
    """A file of checks. ``path`` is as given, ``-`` for standard input; relative paths in the file start at ``folder``."""

    path: str
    checks: tuple[Check, ...]
    notes: tuple[Note, ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the file; the current folder for standard input."""
        return "" if self.path == "-" else os.path.dirname(self.path) or os.curdir


class Unread(Record):
    """A file that could not be read: a check file, a lock or a baseline, and all faults that are reported. Each becomes a failed check among others."""

    path: str
    faults: tuple[CheckFileError | CheckUsageError | LockError | BaselineError, ...]


def parse_check_file(text: str, path: str) -> CheckFile:
    """The checks of a text that was read from ``path``, ``-`` for standard input.

    Raises :class:`~hwcalc.check.file.CheckFileError` (exit 3) if it cannot be read as YAML and
    :class:`~hwcalc.check.file.CheckUsageError` (exit 2) if a key or value is wrong; both name line and column. The second has the
    further faults of the file, up to :data:`MOST_FAULTS`.
    """
    reader = _Reader(path)
    tree = parse_tree(text, reader.name)
    if not (isinstance(tree.value, dict) and {"checks", "schema_version"} & tree.value.keys()):
        from hwcalc.launch.read import read_launch

        if read_launch(text):
            raise reader.error(tree, "this starts servers, and is no check file", f"Plan them: kvplan launch {operand(path)}")
    checks: tuple[Check, ...] = ()
    with reader.reading():
        checks = reader.checks(tree)
    # Alone they leave the other checks of the file as they are.
    for name in reader.misnamed if reader.faults else ():
        with suppress(_EnoughError):
            reader.fault(name, printable(name.error.message), name.error.hint)
    reader.close()
    names = ", ".join(sorted(reader.idle))
    said = f"Left out, because no byte that is planned depends on it: {names}."
    return CheckFile(path=path, checks=checks, notes=(Note(code="no-effect", message=said),) if names else ())


class Entry(Record):
    """A key of a check or of the defaults: its value, and where the key stands."""

    value: Node
    place: Place


class _EnoughError(Exception):
    """As many faults have been found as are reported."""


class TreeReader:
    """Reads the tree of one file, or of standard input. Every fault names the file, the line and the column."""

    command = "check"
    """The command whose file it is."""
    known: tuple[str, ...] = _KEYS
    """The keys of an entry."""

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else printable(path)
        self.faults: dict[str, CheckUsageError] = {}
        self.more: CheckUsageError | None = None

    def error(self, node: Node | Fault, problem: str, hint: str = "") -> CheckUsageError:
        message = f"{self.name}:{node.line}:{node.column}: {problem.rstrip('.')}."
        return CheckUsageError(message, hint=hint, line=node.line, column=node.column)

    def fault(self, node: Node | Fault, problem: str, hint: str) -> None:
        """Keep a fault, and go on."""
        self.add(self.error(node, problem, hint))

    def add(self, fault: CheckUsageError) -> None:
        """Keep a fault, and go on. A fault of the defaults shows in each check."""
        if fault.message not in self.faults and len(self.faults) == MOST_FAULTS:
            message = f"{self.name}:{fault.line}:{fault.column}: from here on there are more faults, which are not listed."
            self.more = CheckUsageError(message, hint="Mend the others first.", line=fault.line, column=fault.column)
            raise _EnoughError
        self.faults.setdefault(fault.message, fault)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block that reads the file, up to as many faults as are reported."""
        with suppress(_EnoughError), self.keeping():
            yield

    def close(self) -> None:
        """Raise the first fault, with the others; nothing if there is none."""
        if self.faults:
            first, *others = sorted(self.faults.values(), key=lambda fault: (fault.line, fault.column))
            first.others = (*others, *([self.more] if self.more else ()))
            raise first

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """A block whose fault ends it alone."""
        try:
            yield
        except CheckUsageError as fault:
            self.add(fault)

    def mapping(self, node: Node, what: str, known: Iterable[str]) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            raise self.error(node, f"{what} must be a mapping of keys and values", f"See: kvplan {self.command} --example")
        for key, place in (node.keys or {}).items():
            if key not in known:
                self.fault(place, f"{what} has no key {shown(key, 60)}", _suggestion(key, known))
        return {key: value for key, value in node.value.items() if isinstance(value, Node) and key in known}

    def version(self, root: Node, top: Mapping[str, Node]) -> None:
        """Look at the version that the file states."""
        version, write = top.get("schema_version"), f"Write: schema_version: {SCHEMA_VERSION}"
        if version is None:
            self.fault(root, "schema_version is missing", write)
        elif version.value != SCHEMA_VERSION or isinstance(version.value, bool):
            self.fault(version, f"schema_version {shown(version.text, 20)} is not known", write)

    def defaults(self, top: Mapping[str, Node], each: str) -> dict[str, Entry]:
        """The keys that every entry has which does not say otherwise."""
        entries: dict[str, Entry] = {}
        if "defaults" in top and top["defaults"].value is not None:
            with self.keeping():
                entries = self.keys(top["defaults"], "defaults")
        if "name" in entries:
            self.fault(entries.pop("name").value, "defaults cannot hold a name", f"Give each {each} its own.")
        return entries

    def keys(self, node: Node, what: str) -> dict[str, Entry]:
        """The keys of a mapping; an alias is replaced by the key it stands for.

        Each engine option has a key of its own, ``engine_options.block_size``, in a mapping as well as by vLLM's name for it.
        """
        values, keys = self.mapping(node, what, self.known), node.keys or {}
        out: dict[str, Entry] = {}
        for word, value in values.items():
            name = word.replace("-", "_")
            place = Place(line=keys[word].line, column=keys[word].column, word=word)
            key = name if name == LENGTH_OF_SERVER else ALIASES.get(name, name)
            if key == "engine_options" and isinstance(value.value, dict):
                # A fault of an option stands at the mapping.
                inner = {
                    f"{_OPTION}{option}": replace(item, line=value.line, column=value.column)
                    for option, item in value.value.items()
                }
            else:
                inner = {f"{_OPTION}{name}" if name in OF_ENGINE else key: value}
            for key, item in inner.items():
                same = next((out[other] for other in (key, *_SAME.get(key, ())) if other in out), None)
                if same is not None and (key.startswith(_OPTION) or key in _SAME):
                    flat = same.place.word if word == "engine_options" else word
                    said = f"{flat} and the engine option {key.removeprefix(_OPTION)} are the same"
                    self.fault(values[flat], said, "Give one of them.")
                elif same is not None:
                    alias = word if name in ALIASES else same.place.word
                    self.fault(values[alias], f"{key} and {alias} are the same", "Give one of them.")
                out[key] = Entry(value=item, place=place)
        return out

    def model_name(self, key: str, merged: Mapping[str, Node]) -> str | None:
        """The name of a model: ``None`` if it cannot be read."""
        with self.keeping():
            name: str = self.read(merged[key], key, OPTIONS["draft"])
            if name != "-":
                return name
            self.fault(merged[key], f"a {self.command}'s {key} cannot be standard input", "Give an id or a path.")
        return None

    def read(self, node: Node, key: str, field: Any, word: str = "") -> Any:
        """The value of a key, for which another ``word`` may be written."""
        try:
            return field.read(node, key)
        except UsageError as error:
            name = re.compile(rf"\b{key}\b")
            message, hint = (name.sub(word or key, text, count=1) for text in (error.message, error.hint))
            raise self.error(node, printable(message), hint) from error


class _Reader(TreeReader):
    """Reads a check file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.misnamed: dict[Fault, None] = {}
        self.idle: dict[str, None] = {}
        """Names of vLLM's flags that change no bytes, which checks or defaults have."""
        self.bearing: dict[str, str] = {}
        """Those of the defaults that may bear on memory, and why no plan counts them."""

    def mapping(self, node: Node, what: str, known: Iterable[str]) -> dict[str, Node]:
        idle: set[str] = set()
        if what in ("a check", "defaults") and isinstance(node.value, dict):
            idle = {key for key in node.value if key not in known and key.replace("_", "-") in LEFT_OUT}
            self.idle |= dict.fromkeys(idle - _bearing(node).keys())
            self.bearing = _bearing(node) if what == "defaults" else self.bearing
        return {key: value for key, value in super().mapping(node, what, (*known, *idle)).items() if key not in idle}

    def checks(self, root: Node) -> tuple[Check, ...]:
        top = self.mapping(root, "a check file", _TOP)
        self.version(root, top)
        defaults = self.defaults(top, "check")
        listed = top.get("checks")
        if listed is None and len(root.value) > len(top):
            return ()  # the key that is not known may be this one
        if listed is None or not isinstance(listed.value, list) or not listed.value:
            raise self.error(listed or root, "checks must be a list of at least one check", "See: kvplan check --example")
        if len(listed.value) > MOST_CHECKS:
            raise self.error(listed, f"more than {MOST_CHECKS:,} checks", "Split them into several check files.")
        named: dict[str, int] = {}
        found = []
        for node in listed.value:
            with self.keeping():
                found.append(self.check(node, defaults, named))
        return tuple(found)

    def check(self, node: Node, defaults: Mapping[str, Entry], named: dict[str, int]) -> Check:
        before = len(self.faults)
        own = self.keys(node, "a check")
        given = {key: entry for key, entry in (kept_defaults(defaults, own) | own).items() if entry.value.value is not None}
        entries = settled(given)
        merged = {key: entry.value for key, entry in entries.items()}
        words = {key: entry.place.word for key, entry in entries.items()}
        model, options, required = self.values(node, merged, words)
        # Whether the keys agree cannot be said if one was not read.
        if len(self.faults) == before:
            # ``fits: null`` says that the check does not demand that it fits.
            fits = own.get("fits") or defaults.get("fits")
            self.check_requirements(node, merged, required, demand_fit=fits is None or fits.value.value is not None)
        faults = tuple(misnamed(merged, options))
        self.misnamed |= dict.fromkeys(faults)
        limits = [
            Required(name=key, limit=required[key], text=merged[key].text if key in merged else "true")
            for key in REQUIREMENTS
            if key in required
        ]
        places = {key: entry.place for key, entry in (given | entries).items()}
        if "gpu" in places and "gpus" in options and "gpus" not in places:
            places["gpu"] = places["gpus"] = replace(places["gpu"], counted=(options["gpu"], options["gpus"]))
        null = {key for key, value in (node.value or {}).items() if value.value is None}
        bearing = {key: reason for key, reason in (self.bearing | _bearing(node)).items() if key not in null}
        return Check(
            unplanned_flags=tuple(Note(code="unplanned", message=f"{said[0].upper()}{said[1:]}") for said in without(bearing)),
            faults=faults,
            name=self.title(merged.get("name"), model, options, named, node),
            line=node.line,
            column=node.column,
            model=model,
            options=options,
            required=tuple(limits),
            places=places,
        )

    def values(
        self, node: Node, merged: Mapping[str, Node], words: Mapping[str, str]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The model, the options and the requirements of a check. Each value that cannot be read is a fault, told by the word of its key."""
        model = ""
        # A key that is not known and was probably meant for it: one fault is told once.
        unknown = [key for key in node.keys or {} if key not in _KEYS]
        mistyped = any(_suggestion(key, _KEYS) == "Did you mean model?" for key in unknown)
        if "model" not in merged and not mistyped:
            self.fault(node, "the check names no model", "Write model: org/name, or the path of a folder or config.json.")
        elif "model" in merged:
            model = self.model_name("model", merged) or ""
        fields = {**OPTIONS, **REQUIREMENTS}
        read: dict[str, Any] = {}
        for key in (key for key in fields if key in merged):
            value = merged[key].value
            if key == "engine_options" and isinstance(value, dict):
                read[key] = {}
                for name, item in value.items():
                    with self.keeping():
                        read[key] |= self.read(replace(item, value={name: item}), key, fields[key])
                continue
            with self.keeping():
                read[key] = (
                    self.model_name(key, merged) if key == "draft" else self.read(merged[key], key, fields[key], words[key])
                )
        gpu, count = counted(read.get("gpu"))
        said = {"gpu", "gpus"} & set(node.keys or {})
        if said == {"gpus"}:
            # The number of the check itself, with the accelerator of the defaults.
            count = read.get("gpus", count)
        elif count is not None and said != {"gpu"} and read.get("gpus", count) != count:
            self.fault(merged["gpus"], f"gpu {shown(read['gpu'], 40)} and gpus {read['gpus']:,} differ", "Give one number.")
        if count is not None:
            read |= {"gpu": gpu, "gpus": count}
        return (
            model,
            {key: read[key] for key in OPTIONS if read.get(key) is not None},
            {key: read[key] for key in REQUIREMENTS if key in read},
        )

    def check_requirements(self, node: Node, merged: Mapping[str, Node], required: dict[str, Any], *, demand_fit: bool) -> None:
        """Report keys that contradict each other. With ``demand_fit``, a check with hardware must fit by default."""
        hardware = any(key in merged for key in HARDWARE)
        if "gpu" in merged and "instance" in merged:
            self.fault(merged["instance"], "gpu and instance are two ways to say the same", "Give one of them.")
        if not hardware:
            for key in FITTING:
                if key in required:
                    self.fault(merged[key], f"{key} needs hardware", "Add gpu: NAME, instance: NAME or kv_memory: SIZE.")
        elif demand_fit and "max_overrun" not in required:
            required.setdefault("fits", True)
        if "max_overrun" in required and "avg_seq" not in merged:
            self.fault(
                merged["max_overrun"], "max_overrun needs the lengths that sequences have", "Add avg_seq: 4k, or p50=2k,p95=16k."
            )
        if hardware and "gpu" not in merged and "instance" not in merged:
            for key in ("max_cost", "min_decode_tokens_per_s", *OF_TIME, "min_users"):
                if key in required:
                    self.fault(merged[key], f"{key} needs an accelerator", "Add gpu: NAME or instance: NAME.")
        if "kv_memory" in merged and "max_gpus" in required:
            self.fault(
                merged["max_gpus"], "kv_memory is of this number of GPUs alone, and max_gpus asks for others", "Give one of them."
            )
        if required.get("fits") is False and "headroom" in required:
            self.fault(merged["headroom"], "headroom demands that it fits, and fits: false that it does not", "Give one.")
        if not required:
            self.fault(node, "the check demands nothing", f"Add a gpu, or one of: {', '.join(REQUIREMENTS)}.")

    def title(self, name_node: Node | None, model: str, options: Mapping[str, Any], named: dict[str, int], node: Node) -> str:
        """The name of the check, which must be unique; without one, a name made of the model and the options."""
        if name_node is not None:
            name = printable(self.read(name_node, "name", OPTIONS["draft"]).strip())
            if len(name) > _LONGEST_NAME:
                raise self.error(name_node, f"name is longer than {_LONGEST_NAME} characters", "Write a shorter one.")
            if name in named:
                raise self.error(
                    name_node, f"the name '{brief(name, 60)}' stands twice (first in line {named[name]})", "Give each its own."
                )
            named[name] = node.line
            return name
        shown = ("seq", "batch", "dtype", "engine", "gpu", "instance", "gpus", "tp", "policy")
        parts = [f"{key} {printable(str(options[key]))}" for key in shown if key in options]
        base = ", ".join([printable(model), *parts])[:_LONGEST_NAME]
        name, count = base, 1
        while name in named:
            count += 1
            name = f"{base} ({count})"
        named[name] = node.line
        return name


def _bearing(node: Node) -> dict[str, str]:
    """The names of vLLM's flags in a mapping that may bear on memory, and why no plan counts them."""
    flags = ((key, key.replace("_", "-")) for key in node.value)
    return {key: UNPLANNED[flag] for key, flag in flags if flag in UNPLANNED}


def kept_defaults(defaults: Mapping[str, Entry], own: Mapping[str, Entry]) -> dict[str, Entry]:
    """The defaults that a check with its ``own`` keys does not say in another way."""
    dropped = {other for key in own for other in _INSTEAD.get(key, ())}
    gpu = own["gpu"].value.value if "gpu" in own else None
    if isinstance(gpu, str) and counted(gpu)[1] is not None:
        dropped.add("gpus")
    if "engine_options" in own:  # null takes all of them back
        dropped |= {key for key in defaults if key.startswith(_OPTION)}
    return {key: entry for key, entry in defaults.items() if key not in dropped}


def settled(given: Mapping[str, Entry]) -> dict[str, Entry]:
    """The keys of a check with its defaults: the engine options as one mapping, and ``max_model_len`` as what it stands for.

    That is the length of a sequence, or an option of the engine where a length is given too.
    """
    options = {key.removeprefix(_OPTION): entry for key, entry in given.items() if key.startswith(_OPTION)}
    entries = {key: entry for key, entry in given.items() if not key.startswith(_OPTION) and key != LENGTH_OF_SERVER}
    if LENGTH_OF_SERVER in given:
        if "seq" in entries or "lengths" in entries:
            options[LENGTH_OF_SERVER] = given[LENGTH_OF_SERVER]
        else:
            entries["seq"] = given[LENGTH_OF_SERVER]
    if options and "engine_options" not in entries:
        first = next(iter(options.values()))
        node = Node(
            value={name: entry.value for name, entry in options.items()}, line=first.value.line, column=first.value.column
        )
        entries["engine_options"] = Entry(value=node, place=first.place)
    return entries


def misnamed(merged: Mapping[str, Node], options: Mapping[str, Any]) -> Iterator[Fault]:
    """The names of engines and hardware that are not known."""
    from hwcalc.engines import find_engine
    from hwcalc.hardware.named import LOCAL, gpu_named, instance_named

    look_up: dict[str, Callable[[str], object]] = {
        "engine": find_engine,
        "gpu": lambda name: name.strip().lower() == LOCAL or gpu_named(name, "--gpu"),
        "instance": lambda name: instance_named(name, "--instance"),
    }
    for key, find in look_up.items():
        if key in options:
            try:
                find(options[key])
            except UsageError as error:
                yield Fault(line=merged[key].line, column=merged[key].column, error=error)


def _suggestion(key: str, known: Iterable[str]) -> str:
    from difflib import SequenceMatcher, get_close_matches

    names, word = tuple(known), key.lower().replace("-", "_")
    near = get_close_matches(word, names, cutoff=0.6)
    # Of those that are as near, one with the same letter at its beginning, and of them one with the same letters.
    near.sort(key=lambda name: (-SequenceMatcher(None, name, word).ratio(), name[0] != word[:1], sorted(name) != sorted(word)))
    # A longer word for it: sequence_length.
    near = near or sorted((name for name in names if len(name) > 2 and key.lower().startswith(name)), key=len)[-1:]
    return f"Did you mean {near[0]}?" if near else f"Allowed: {', '.join(names)}."
