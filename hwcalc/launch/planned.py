"""A server that was read, as the model and the options of a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.facts import Told
from hwcalc.errors import KvplanError, UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.named import gpu_named, instance_named
from hwcalc.launch.arguments import variable_of
from hwcalc.launch.around import all_flags, image_of
from hwcalc.launch.server import CUT_FROM, FILE_NAME, KEYS, Server
from hwcalc.launch.told import key_of, written
from hwcalc.launch.values import number
from hwcalc.launch.words import GivenText, Word
from hwcalc.model import OLLAMA, Note
from hwcalc.planner.asked import counted_once, read_options
from hwcalc.planner.result import BEYOND, Plan
from hwcalc.profiles.engine_flags import EngineFlags, Flag, Variable, without
from hwcalc.profiles.engines import planned_version, since
from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
from hwcalc.profiles.launch import launch_words
from hwcalc.profiles.mig import slice_named
from hwcalc.sources.local import has_path_syntax
from hwcalc.text import brief, quoted, shell_word, shown

_COUNTS: Final = ("tp", "pp", "dp", "dcp", "ep")
LAYOUT: Final = ("tp", "pp", "dp")
"""The sizes whose product is the number of GPUs."""
_OF_NODES: Final = re.compile(
    r"node|per_pod|master|headless|dist[-_]init|address|rank|rpc|launcher|size[-_]local|executor[-_]backend"
)
"""In the names of flags that a server on several nodes is given."""
_SHARED: Final = "kv_unified"
"""The engine option by which slots share a buffer."""
AS_STARTED: Final = "whatever users send: that is planned."
"""How a remark ends on slots that have their memory, used or not."""
_UNNAMED: Final = (None, 0, -1)
"""Numbers of slots that leave it to the server."""
_MOST_MEANT: Final = 3
"""Flags that are named in place of one that is not known."""
_LONGEST: Final = ("auto", -1)
"""Lengths that ask for the longest sequence that fits."""
ON_SERVER: Final = "It is a folder or a file of the server."


def set_name(setting: str, server: str = "") -> str:
    """The name by which ``--set`` gives a value to a setting or a variable; to a setting of one ``server`` alone, where it is named."""
    return f"{server}.{setting}" if server and setting in KEYS else setting


def set_words(setting: str, value: str, server: str = "") -> str:
    """The words that give a setting or a variable this value."""
    return f"--set {shell_word(f'{set_name(setting, server)}={value}')}"


def _or_written(variable: str, lacking: Mapping[str, str]) -> str:
    """Where else a value can be written; empty for what no file beside the text is lacking."""
    return f", or write it to {lacking[variable]}" if variable in lacking else ""


class UnsetError(UsageError):
    """A text leaves open what a plan needs: the ``setting`` or the variable of this name, to which ``--set`` gives a value. Exit 2."""

    def __init__(self, message: str, setting: str = "model") -> None:
        self.setting = setting
        super().__init__(message, hint=self.hint_of())

    def hint_of(self, server: str = "", lacking: Mapping[str, str] = MappingProxyType({})) -> str:
        """The hint, for one server alone where it is named; of a variable that the file of variables beside the text is ``lacking``, with that file."""
        return f"Add: {set_words(self.setting, 'ORG/NAME', server)}{_or_written(self.setting, lacking)}"


class Left(Record):
    """A ``flag`` whose value a text leaves open, the ``word`` that stands there, and the ``name`` that ``--set`` gives a value."""

    flag: Flag
    word: Word
    name: str

    def hint_of(self, server: str = "", lacking: Mapping[str, str] = MappingProxyType({})) -> str:
        """What to add, for one server alone where it is named; of a variable that the file of variables beside the text is ``lacking``, with that file."""
        return f"Add: {set_words(self.name, 'VALUE', server)}{_or_written(self.name, lacking)}"


class Planned(Record):
    """The model and the keywords of :func:`hwcalc.plan` for a server, and remarks on what a plan takes otherwise.

    A server whose text names no length allows that of its model, by the engine's option of the name ``own_length``, where users send less. One that is ``fitted`` is told to allow the longest requests that its pool holds; ``variables`` are those it is started with, ``NAME=VALUE``.
    For what is ``left`` open the plan takes a default.
    """

    model: str
    options: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    own_length: str = ""
    fitted: bool = False
    variables: frozenset[str] = frozenset()
    left: tuple[Left, ...] = ()


def options_told(flags: EngineFlags, server: Server) -> Mapping[str, Any]:
    """The options of a plan for what a server was told, but for its model, its version and its hardware."""
    options: dict[str, Any] = {}
    knobs: dict[str, str] = {}
    for flag, value in flags_said(flags, server):
        _take(flag, value, options, knobs)
    knobs |= {name: str(value) for value, name in _variables(flags, server)}
    if knobs:
        options["engine_options"] = knobs
    told = Told(options=options, settings=server.settings, extra=server.extra)
    return find_engine(flags.engine)[0].command.asked(told)


def planned(server: Server, more: Mapping[str, Any] | None = None) -> Planned:
    """The plan's model and options for a server; ``more`` are options that count more than those of the text.

    Raises :class:`~hwcalc.errors.UsageError` for a server whose engine or model is not known, with the variable to set, and for one that has
    fewer GPUs than it takes.
    """
    flags = flags_of(server)
    more = dict(more or {})
    server = _with_gpus(server, more)
    remarks: list[str] = []
    model = _model_of(server, flags)
    _check_sizes(flags, server)
    default = find_engine(flags.engine)[0].facts.default_users
    unnamed = "batch" in more and default is not None and server.slots in _UNNAMED
    if default is not None and unnamed:
        # What the slots share is divided among as many as there are users.
        users = _number("batch", more)
        server = replace(server, settings={**server.settings, "slots": users})
        remarks += [_waiting(flags, server, users, default)] if users > default else []
    options = dict(options_told(flags, server))
    if not options.get("engine_options"):
        options.pop("engine_options", None)
    if server.settings.get("revision") is not None:
        options["revision"] = str(server.settings["revision"])
    options["engine"] = _versioned(flags, server, remarks)
    _take_hardware(server, options, more, remarks)
    _take_weights(server, model, options, more, remarks)
    remarks += _take_load(flags, server, options, more, unnamed=unnamed)
    longest = find_engine(flags.engine)[0].facts.longest_option
    if longest and {"seq", "lengths"} & more.keys() and "seq" in options:
        # Users send shorter sequences than the server allows.
        options["engine_options"] = {longest: str(options.pop("seq")), **options.get("engine_options", {})}
    if "engine_options" in more:
        more["engine_options"] = {**options.get("engine_options", {}), **more["engine_options"]}
    options |= more
    remarks += _gpus_left(server, flags, options)
    if "instance" in more and not options.keys() & {"gpus", *LAYOUT}:
        # Alone, an instance is planned with all of its accelerators.
        options["gpus"] = 1
    knobs = options.get("engine_options", {})
    own_length = longest if "seq" in options and server.max_model_len is None and longest not in knobs else ""
    fitted = "seq" not in options and server.max_model_len in _LONGEST
    taken = {*options, *options.get("engine_options", {})}
    left = tuple(each for each in left_open(server, flags) if not {each.flag.option, each.flag.engine_option} & taken)
    return Planned(
        model=model,
        options=options,
        remarks=tuple(remarks),
        own_length=own_length,
        fitted=fitted,
        variables=server.variables,
        left=left,
    )


class BeyondError(UsageError):
    """The load is more than a text starts its server for: ``allowed`` of each of ``seq`` and ``batch`` that is too much, first of ``option``. With
    ``sizes`` it would hold it. Exit 2.
    """

    def __init__(self, message: str, *, allowed: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.option = next(iter(allowed))
        self.allowed, self.most, self.sizes = allowed[self.option], allowed, sizes
        super().__init__(message, hint=self.hint_of())

    def hint_of(self, server: str = "", own: Container[str] = ()) -> str:
        """The hint, for options that ``--set`` gives a server as its ``own`` by their names there."""
        names = {name: "users" if name == "batch" else name for name in self.most}
        said = (
            set_words(f"{server}.{names[name]}", str(size)) if name in own else f"--{names[name]} {size}"
            for name, size in self.most.items()
        )
        return f"Give {' '.join(said)}, or change the text."


def _number(name: str, options: Mapping[str, Any]) -> int:
    """The value of ``seq`` or ``batch``; 0 where it is not given."""
    return (read_options({name: options[name]}).values[name] or 0) if name in options else 0


def _waiting(flags: EngineFlags, server: Server, users: int, slots: int) -> str:
    """The remark that a server starts fewer slots than there are users, with what the text must say."""
    flag = flags.flag_of.get("batch") or flags.flag_of.get("slots")
    named = next((f"{row.name}={users}" for row in flags.environment if row.key == "slots"), "")
    named = named if flag is None else f"{flag.spelled} {users}"
    starts = f"{slots:,} slot{'s' if slots > 1 else ''}"
    said = f"{_called(server)} names no number of slots and starts {starts}, so that of {users:,} users {users - slots:,} wait."
    return f"{said} With {named} all are served at once, which is planned."


def _take_load(
    flags: EngineFlags, server: Server, options: Mapping[str, Any], more: dict[str, Any], *, unnamed: bool
) -> list[str]:
    """Take the load out of ``more`` where the text starts slots that have their memory whatever users send, with a remark where that is more.

    Raises :class:`BeyondError` for requests that are longer or more than the text allows.
    """
    facts = find_engine(flags.engine)[0].facts
    seq, users = _number("seq", more), _number("batch", more)
    length, slots = _number("seq", options), 0 if facts.longest_option else _number("batch", options)
    # One buffer for all slots: one of them may fill it.
    shared = str(options.get("engine_options", {}).get(_SHARED, "")) == "true"
    allowed = length * slots // (users or 1) if shared and slots else length
    if slots and users > slots:
        said = (
            f"{words_for(flags, server, 'batch')[0]} serves {slots:,} request{'' if slots == 1 else 's'} at once, not {users:,}"
        )
        said += f", each of {length:,} tokens, not {seq:,}" if 0 < length < seq and not shared else ""
        most = {"batch": slots} | ({"seq": length} if 0 < length < seq else {})
        raise BeyondError(said, allowed=most, sizes={"seq": max(seq, length), "batch": users})
    if length and seq > allowed:
        said = words_for(flags, server, "seq")[0]
        if slots > 1 and facts.slots_option in flags.flag_of:
            said = f"{said} {words_for(flags, server, 'batch')[0] or f'for {slots:,} at once'}"
        message = f"{said} allows requests of {allowed:,} tokens, not {seq:,}"
        raise BeyondError(message, allowed={"seq": allowed}, sizes={"seq": seq, "batch": slots})
    if not facts.slots_option:
        return []
    named = {name: told for name, told in (("seq", length), ("batch", slots)) if told and more.pop(name, None) is not None}
    if not named or (seq in (0, length) and users in (0, slots)):
        return []
    each = (
        f"with {words_for(flags, server, 'seq')[0]} for all slots"
        if unnamed and length and facts.slots_option in flags.flag_of
        else f"{slots:,} slots of {length:,} tokens"
        if slots > 1 and length
        else f"{length:,} tokens"
        if length
        else f"{slots:,} slots"
    )
    return [f"{_called(server)} starts {each}, {AS_STARTED}"]


def words_for(flags: EngineFlags, server: Server, option: str) -> tuple[str, Word | None]:
    """What a text says of ``seq`` or ``batch``, with the flag or variable, and its word; empty where it says nothing."""
    key = {"seq": "ctx", "batch": "slots"}[option]
    flag = flags.flag_of.get(option) or flags.flag_of.get(key)
    if flag is not None:
        word = word_of(server, flag)
        return (f"{flag.spelled} {brief(word.text, 40)}" if word is not None else ""), word
    names = tuple(f"{row.name}=" for row in flags.environment if row.key == key)
    variable = next((each for each in sorted(server.variables) if each.startswith(names)), "")
    parameter = next((row.name for row in flags.parameters if row.key == key), key)
    value = server.settings.get(key)
    said = "" if value is None else variable if variable.endswith(f"={value}") else f"{parameter} {value}"
    return said, server.places.get(key)


class TooFewGpusError(UsageError):
    """A server has fewer ``gpus`` than are ``taken`` by its parallel sizes: its engine will not start. Exit 1."""

    exit_code = 1
    type = "too-few-gpus"

    def __init__(self, message: str, *, gpus: int, taken: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.gpus, self.taken = gpus, taken


def _check_sizes(flags: EngineFlags, server: Server) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for a parallel size that is no whole number or below 1, which no engine takes."""
    for flag, value in flags_said(flags, server):
        if flag.option in LAYOUT and (not isinstance(value, int) or value < 1):
            label = find_engine(flags.engine)[0].label
            said = f"{value:,} is below 1" if isinstance(value, int) else f"is not a number: {quoted(value, 40)}"
            raise UsageError(f"{flag.spelled} {said}, and {label} will not start.", hint="Give 1 or more.")


def word_of(server: Server, flag: Flag) -> Word | None:
    """The word of a text that says the value of a flag; ``None`` where it is not said."""
    return server.places.get(key_of(flag))


def left_open(server: Server, flags: EngineFlags) -> Iterator[Left]:
    """The flags of a plan, but for the model, whose values the text leaves open."""
    for flag in flags.flags:
        word = word_of(server, flag) if flag.option or flag.engine_option else None
        key = flag.name if flag.key is None else flag.key
        if word is None or word.known or word.remark or key in server.settings or key in server.extra:
            continue
        yield Left(flag=flag, word=word, name=variable_of(word.unknown[0]) or key)


def with_left(plan: Plan, left: Iterable[Left]) -> Plan:
    """The plan with a warning for each flag that was left open, which says what was taken instead."""
    notes = []
    for each in left:
        value = getattr(plan.request, each.flag.option or "", None)
        taken = "its default" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        said = f"{each.flag.spelled} {brief(each.word.text, 60)} is left open: planned as {taken}. {each.hint_of()}"
        notes.append(Note(code="left-open", message=said))
    return replace(plan, warnings=(*plan.warnings, *notes)) if notes else plan


def is_on_server(model: str) -> bool:
    """True if a model is a path, which may be one of the server's machine alone."""
    return has_path_syntax(model) or model.lower().endswith(".gguf")


def unknown_flags(server: Server) -> list[str]:
    """The flags of a server that its engine does not know, each with those that were perhaps meant: all that an ambiguous abbreviation stands for."""
    from difflib import get_close_matches

    known = [name for each in all_flags() if each.name == server.settings.get("engine") for name in each.spelled if len(name) > 3]
    out = []
    for flag in server.unknown:
        name = flag.partition("=")[0]
        begun = sorted(each for each in known if each.startswith(name)) if len(name) > 3 else []
        meant = " or ".join(begun[:_MOST_MEANT] or get_close_matches(name, known, n=1, cutoff=0.8))
        out.append(f"{brief(flag, 40)} (did you mean {meant}?)" if meant else brief(flag, 40))
    return out


def releases_listed(server: Server, flags: EngineFlags) -> tuple[str, ...]:
    """The releases all of whose flags are known, the newest first, if the server is one of them: what has none of their flags does not start.

    Empty for another release, for a wrapper, and for an image that somebody may have built with flags of its own.
    """
    engine, image, version = find_engine(flags.engine)[0], server.settings.get("image"), server.settings.get("engine_version")
    built = image_of(image) if isinstance(image, str) else None
    own = image is None or (built is not None and built[1].starts and built[1].versioned)
    if flags.listed_since is None or "launcher" in server.extra or not own:
        return ()
    listed: tuple[str, ...] = engine.versions[: engine.versions.index(flags.listed_since) + 1]
    return listed if version is None or ".".join(str(version).split(".")[:2]) in listed else ()


def heeded(plan: Plan, variables: Container[str]) -> Plan:
    """The plan without the warning that a variable is needed, where the server is started with it."""
    needed = plan.request.environment
    if not needed or not all(each in variables or each.replace("=1", "=true") in variables for each in needed):
        return plan
    kept = (
        replace(each, message=f"{each.message.partition('. ')[0]}.") if each.code == BEYOND else each for each in plan.warnings
    )
    return replace(plan, warnings=tuple(kept))


def warned(server: Server) -> list[str]:
    """Sentences on keys that stand twice, on variables that the release does not read any more, and on the flags that a plan is without."""
    return [*server.repeated, *_unread(server), *without(server.unplanned)]


def _unread(server: Server) -> Iterator[str]:
    """A sentence for each variable that only older releases read, with the flag that took its place."""
    with suppress(UsageError):
        flags = flags_of(server)
        for row in flags.environment:
            value = server.extra.get(row.name)
            if value is not None and not _reads(row, flags, server):
                said = written(said_as(flags, server, row.engine_option or "", str(value)))
                label = find_engine(flags.engine)[0].label
                yield f"{row.name}={brief(str(value), 40)} has no effect: {label} from {row.until} on does not read it. Write: {said}"


def flags_of(server: Server) -> EngineFlags:
    """The flags of a server's engine. Raises :class:`~hwcalc.errors.UsageError` for an engine that no plan is made for."""
    name = server.settings.get("engine")
    flags = next((each for each in all_flags() if each.name == name and each.engine in ENGINES), None)
    if flags is None:
        known = ", ".join(each.name for each in all_flags())
        raise UsageError(f"no plan is made for {shown(str(name), 40)}.", hint=f"Planned are: {known}.")
    return flags


def _called(server: Server) -> str:
    return f"the server {shown(server.name, 40)}" if server.name else "the server"


def _model_of(server: Server, flags: EngineFlags) -> str:
    """The model. Raises :class:`~hwcalc.errors.UsageError` if the text leaves it open."""
    model = server.settings.get("model")
    called = _called(server)
    if not isinstance(model, str) or not model:
        left = next((each for each in server.unresolved if each.startswith("model")), "")
        named = (each for each in server.asks if re.search(rf"\$[({{]*{re.escape(each)}(?!\w)", left))
        variable = next(named, "model")
        said = f": {brief(left, 80)}" if left else ""
        raise UnsetError(f"{called} leaves its model open{said}.", variable)
    if model.endswith(" (preset)"):
        preset = model.removesuffix(" (preset)")
        raise UnsetError(f"{called} names the preset {shown(preset, 60)}, and no model.")
    if flags.parameters and "/" not in model.removeprefix("hf.co/") and not model.startswith(("~", ".")):
        return f"{OLLAMA}{model}"
    model = model.removeprefix("hf.co/")
    weights = str(server.settings.get("weights") or "")
    if weights and "(" not in weights:
        return f"{model}:{weights}"
    if "(file " in weights and not weights.endswith(FILE_NAME) and model.count("/") == 1:
        return f"{model}:{weights.partition('(file ')[2].removesuffix(')')}"
    return model


def flags_said(flags: EngineFlags, server: Server) -> list[tuple[Flag, Any]]:
    """The flags that a plan has an option for, with their values."""
    out: list[tuple[Flag, Any]] = []
    for flag in flags.flags:
        if not (flag.option or flag.engine_option or flag.off_engine_option):
            continue
        held: Any = server.settings if flag.key else server.extra
        whole, _, part = (flag.key or flag.name).partition(".")
        value = held.get(whole)
        if part:
            value = value.get(part) if isinstance(value, Mapping) else None
        if flag.also and flag.name in server.extra:
            value = server.settings.get(flag.key or "")
        if value is not None:
            out.append((flag, _without_variable(value)))
    return out


def _without_variable(value: Any) -> Any:
    """A value without the variable that it stood in: ``naive (VLLM_ALL2ALL_BACKEND)``."""
    return re.sub(r" \([A-Z][A-Z0-9_]+\)$", "", value) if isinstance(value, str) else value


def _take(flag: Flag, value: Any, options: dict[str, Any], knobs: dict[str, str]) -> None:
    """Put the value of a flag under the option that it is for a plan."""
    if flag.written:
        _take_written(flag, value, knobs)
        return
    said = str(value).lower() if isinstance(value, bool) else value
    if flag.takes == "optional" and isinstance(value, bool):
        said = "on" if value else "off"
    if str(said).lower() in flag.plan_as:
        said = flag.plan_as[str(said).lower()]
        if said is None:
            return
    if flag.takes == "switch" and value is False and flag.off_engine_option:
        knobs[flag.off_engine_option] = "true"
        return
    if flag.option is not None and not (flag.option == "memory_utilization" and flag.engine_option in knobs):
        if flag.option == "seq" and value in _LONGEST:
            return
        options.setdefault(flag.option, value if flag.option in (*_COUNTS, "seq", "kv_memory") else str(said))
    elif flag.engine_option is not None:
        text = (
            ",".join(map(str, said)) if isinstance(said, list) else json.dumps(said) if isinstance(said, Mapping) else str(said)
        )
        knobs.setdefault(flag.engine_option, text)


def _take_written(flag: Flag, value: Any, knobs: dict[str, str]) -> None:
    """Flags that are kept as they were written, such as ``-ot PATTERN=CPU``, which may stand several times."""
    for each in value if isinstance(value, list) else [value]:
        spelled, _, given = str(each).partition(" ")
        if spelled not in flag.spellings or flag.engine_option is None:
            continue
        if flag.takes == "switch":
            knobs[flag.engine_option] = "true"
        elif flag.takes == "text" and flag.engine_option in knobs:
            knobs[flag.engine_option] += f",{given}"
        else:
            knobs[flag.engine_option] = given


def _variables(flags: EngineFlags, server: Server) -> list[tuple[Any, str]]:
    """The variables and parameters that are options of the engine."""
    out: list[tuple[Any, str]] = []
    rows = [(row.name, row.key, row.engine_option) for row in flags.environment if _reads(row, flags, server)]
    rows += [(row.name, row.key, row.engine_option) for row in flags.parameters]
    for name, key, option in rows:
        value = server.settings.get(key) if key else server.extra.get(name)
        if value is not None and option is not None:
            out.append((str(value).lower() if isinstance(value, bool) else value, option))
    return out


def said_as(flags: EngineFlags, server: Server, knob: str, value: str) -> dict[str, str]:
    """What the engine is told for this value of one of its options: by a variable in a release that reads one, else by a flag; empty where none does."""
    flag = flags.flag_of.get(knob)
    variable = next((row for row in flags.environment if row.engine_option == knob and _reads(row, flags, server)), None)
    if variable is not None and (flag is None or variable.until is not None):
        return {variable.name: value}
    if flag is None or (flag.takes == "switch" and value != "true"):
        return {}
    return {flag.spelled: "" if flag.takes == "switch" else value}


def _reads(variable: Variable, flags: EngineFlags, server: Server) -> bool:
    """True if the release of the server reads a variable."""
    return variable.until is None or not _is_since(variable.until, flags, server)


def _is_since(first: str, flags: EngineFlags, server: Server) -> bool:
    """True if the release that a server is planned as is this one or a later one."""
    version = _versioned(flags, server, []).partition("@")[2]
    return not version or planned_version(version) >= since(first)


def _versioned(flags: EngineFlags, server: Server, remarks: list[str]) -> str:
    """The engine with its version, if there are rules for that."""
    version = server.settings.get("engine_version")
    if not isinstance(version, str):
        return flags.engine
    rules = find_engine(flags.engine)[0]
    plain = version.partition("-")[0].partition("+")[0]
    try:
        rules.version(plain)
    except UnknownNameError as error:
        if isinstance(version, GivenText):
            known = error.hint.partition(" Use: ")[0] if rules.versions else "Leave it out."
            hint = f"{known} Of one server alone: --set SERVER.engine_version=VERSION"
            message = f"--set engine_version={brief(version, 30)}: there are no rules for that release of {flags.name}."
            raise UnknownNameError(message, option="engine_version", hint=hint) from error
        remarks.append(f"there are no rules for {flags.name} {brief(version, 30)}: it is planned as {rules.versions[0]}.")
        return flags.engine
    return f"{flags.engine}@{plain}"


def _take_weights(server: Server, model: str, options: dict[str, Any], more: Mapping[str, Any], remarks: list[str]) -> None:
    """The format that the name of a file states, where the user says which model that is."""
    stated = str(server.settings.get("weights") or "")
    if not stated.endswith(FILE_NAME) or model.lower().endswith(".gguf") or "weights" in {*options, *more}:
        return
    stated = stated.removesuffix(FILE_NAME).strip()
    from hwcalc.quantization.ggml import KEPT_EXPERTS
    from hwcalc.quantization.planned import format_name

    if stated.lower() in KEPT_EXPERTS:
        # Experts as they are published, which llama-quantize makes of no others.
        return

    try:
        options["weights"] = format_name(stated)
    except UnknownNameError:
        remarks.append(
            f"warning: no rule says what is in {brief(stated, 30)} weights: planned as {model} is published. Add: --set weights=q4_k_m, or the like."
        )


def _take_hardware(server: Server, options: dict[str, Any], more: Mapping[str, Any], remarks: list[str]) -> None:
    """The accelerators of a server: those that the text names, as many as its parallel sizes take."""
    given = bool({"gpu", "instance", "kv_memory"} & more.keys())
    gpu = None if given else _gpu_of(server, remarks)
    if gpu is not None:
        options["gpu"] = gpu
    if not given and gpu is None:
        options.pop("gpus", None)
    else:
        _leave_gpus(options)


def _gpu_of(server: Server, remarks: list[str]) -> str | None:
    """The accelerator that the text names, by its id; ``None`` where it names none that is known."""
    gpu, instance = server.settings.get("gpu"), server.settings.get("instance")
    whole = server.settings.get(CUT_FROM)
    if isinstance(instance, str):
        try:
            sold, given = instance_named(instance), server.settings.get("gpus_per_replica")
        except KvplanError:
            remarks.append(f"the instance type {shown(instance, 40)} is not known: add --gpu.")
        else:
            if isinstance(given, int) and given > sold.count and not has_other_nodes(server):
                remarks.append(
                    f"{_called(server)} has {given:,} GPUs, and {sold.id} has {sold.count:,}: no such node can run it."
                )
            if not isinstance(gpu, str) or slice_named(gpu) is None:
                return sold.accelerator
            whole = sold.accelerator
    if not isinstance(gpu, str):
        return None
    if whole is not None and slice_named(gpu) is not None:
        with suppress(UnknownGpuError):
            gpu = find_gpu(f"{whole} {gpu}").id
    first = gpu.removeprefix("one of ").split(", ")[0]
    known = {name.lower(): id_ for name, id_ in launch_words().accelerators.items()}
    try:
        id_ = gpu_named(known.get(first.lower(), first), "--gpu").id
    except KvplanError:
        remarks.append(f"the accelerator {shown(gpu, 40)} is not known: add --gpu.")
        return None
    if gpu.startswith("one of "):
        remarks.append(f"the text names {gpu}: it is planned on {first}. Others: --set gpu=NAME.")
    return id_


def not_named(server: Server, more: Mapping[str, Any]) -> dict[str, Any]:
    """These options, without the accelerators that the text names by itself, and without their number where it names that."""
    left = dict(more)
    if _gpu_of(server, []) is not None:
        left.pop("gpu", None)
        left.pop("instance", None)
    if isinstance(server.settings.get("gpus_per_replica"), int):
        left.pop("gpus", None)
        if "instance" in left and "gpu" not in left:
            left["gpu"] = instance_named(left.pop("instance"), "--instance").accelerator
    return left


def _with_gpus(server: Server, more: dict[str, Any]) -> Server:
    """The server with as many GPUs as ``more`` names, which are taken out of it: how they are used is what the server was told.

    An instance has as many as it is sold with. With sizes of a layout in ``more`` the GPUs stay there, as in a plan without a text.
    """
    if more.keys() & LAYOUT:
        return server
    gpus = number(more.get("gpus"))
    if gpus is None and isinstance(more.get("instance"), str):
        gpus = instance_named(more["instance"], "--instance").count
    name, count = counted_once(more.get("gpu"), gpus)
    count = gpus if count is None else count
    if count is None:
        return server
    more.pop("gpus", None)
    more |= {} if name is None else {"gpu": name}
    return replace(server, settings={**server.settings, "gpus_per_replica": count})


def gpus_taken(sizes: Mapping[str, Any]) -> int | None:
    """The number of GPUs that parallel sizes take, each by its name and 1 where it is not there; ``None`` if one of them is no number."""
    each = [sizes.get(name, 1) for name in LAYOUT]
    return prod(each) if all(isinstance(size, int) for size in each) else None


def _gpus_left(server: Server, flags: EngineFlags, options: Mapping[str, Any]) -> list[str]:
    """A remark where a server has more GPUs than its parallel sizes take, or fewer, and other nodes may have the rest.

    Raises :class:`TooFewGpusError` for a server with fewer GPUs on a single node, which its engine refuses to start.
    """
    given, taken = server.settings.get("gpus_per_replica"), gpus_taken(options)
    if not isinstance(given, int) or "gpus" in options or taken is None:
        return []
    layout = " x ".join(f"{name} {size:,}" for name in LAYOUT if (size := options.get(name, 1)) > 1)
    has = f"{_called(server)} has {given:,} GPU{'s' if given != 1 else ''}"
    if given > taken:
        return [f"{has}, and uses {taken:,}: {given - taken:,} idle."]
    if given == taken:
        return []
    if not has_other_nodes(server):
        raise TooFewGpusError(
            f"{has}, and {layout} takes {taken:,}: {find_engine(flags.engine)[0].label} will not start.",
            hint=f"Give it {taken:,} GPUs in the file, or plan it so: --gpus {taken:,}",
            gpus=given,
            taken=taken,
        )
    return [f"warning: {has}, and {layout} takes {taken:,}: it starts only if other nodes have the rest."]


def has_other_nodes(server: Server) -> bool:
    """True if a text speaks of further nodes, on which a server may have GPUs that the text does not count."""
    return server.joins or any(_OF_NODES.search(name) for name in (*server.extra, *server.irrelevant, *server.unknown))


def _leave_gpus(options: dict[str, Any]) -> None:
    """A number of GPUs stands beside no parallel sizes."""
    if any(options.get(name, 1) != 1 for name in LAYOUT):
        options.pop("gpus", None)
