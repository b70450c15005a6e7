"""Deployments as checks: each server that a command, a script or a manifest starts must start, and hold what it is told.

A finding stands at the flag that is wrong. What a text leaves open, such as ``$MODEL``, is a finding of its own kind: it names what to set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.check.changes import NUMBERS
from hwcalc.check.file import CheckFile, CheckFileError, Fault, Place, Required, parse_check_file, read_text, unreadable
from hwcalc.check.models import SUFFIX
from hwcalc.check.result import Judged
from hwcalc.check.server import OF_MODEL, OpenError, ServerCheck, finding, place_of, placed_at, sets_of
from hwcalc.check.server_edits import OF_HARDWARE, OF_SERVER, default_of, given_in
from hwcalc.engines import find_engine
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.launch.documents import OF_MANIFEST, YAML_ENDINGS, fault_in
from hwcalc.launch.env_file import NOTED, is_secret
from hwcalc.launch.named import is_json_manifest, named_launch
from hwcalc.launch.planned import (
    LAYOUT,
    BeyondError,
    Planned,
    TooFewGpusError,
    UnsetError,
    flags_of,
    left_open,
    not_named,
    planned,
    releases_listed,
    set_name,
    set_words,
    unknown_flags,
    warned,
    word_of,
)
from hwcalc.launch.read import Given
from hwcalc.launch.server import Server
from hwcalc.masking import masked
from hwcalc.model import Note
from hwcalc.profiles.engine_flags import EngineFlags
from hwcalc.text import brief, printable, shell_word
from hwcalc.yaml_tree import LARGEST_MANIFEST, TreeError, read_forest

_OF_CHECKS: Final = re.compile(r"(?m)^(?:\{\s*)?[\"']?(?:schema_version|checks)[\"']?[ \t]*:")
"""A key that a check file has, at its beginning or at that of a line."""
_WRITTEN: Final = re.compile(r"\A\{\s*\"schema_version\": *[^,]{1,20},\s*\"(digest|kvplan_version)\": *\"")
"""How a lock begins, and how a document of kvplan does, which is a baseline."""
_TOP_KEY: Final = re.compile(r"(?m)^[\"']?([A-Za-z_][\w-]*)[\"']?[ \t]*:")
_HEAD: Final = 64 * 1024
_NEAR: Final = 0.8
"""How alike a key and one of a check file are where that is meant."""
_PLAIN: Final = (*YAML_ENDINGS, ".json")
"""Endings of check files."""
_NOTHING: Final = "starts no server that kvplan knows"


class Told(Record):
    """What the user says of deployments: what they leave open, and options of plans: the load, which counts more than theirs, and accelerators for
    texts that name none. ``baselines`` are what its results are compared with, ``growth`` how much more is allowed, and ``accept`` that they are what is
    planned now. ``several`` says that there
    are other files beside one.
    """

    given: Given
    options: Mapping[str, Any]
    baselines: tuple[str, ...] = ()
    growth: str = ""
    accept: bool = False
    several: bool = False


class Deployment(CheckFile):
    """A file of commands or a manifest, with its ``text`` and the check of each of its servers."""

    text: str
    told: Told
    checks: tuple[ServerCheck, ...]


def read_any(path: str, told: Told, *, in_folder: bool = False) -> CheckFile | None:
    """The check file or the deployment of this path; ``None`` for one ``in_folder`` that is no text, starts nothing, or is a lock or a baseline.

    Raises the errors of :func:`~hwcalc.check.file.parse_check_file`.
    """
    try:
        text = read_text(path, LARGEST_MANIFEST)
    except CheckFileError:
        if in_folder:
            return None
        raise
    written = _WRITTEN.match(text)
    if written:
        if in_folder:
            return None
        of_lock = path.removesuffix(SUFFIX)
        if written[1] == "digest" and of_lock != path and not os.path.lexists(of_lock):
            alone = f"{printable(path)} is the lock of {printable(of_lock)}, which is not there any more."
            raise CheckFileError(alone, hint=f"Delete it: git rm {shell_word(path)}")
        is_ = "a lock" if written[1] == "digest" else "a result of kvplan, and may be a --baseline"
        raise CheckFileError(
            f"{printable(path)} is {is_}: there is nothing in it to check.", hint="Name the file that it was made of."
        )
    if _OF_CHECKS.search(text):
        return parse_check_file(text, path) if not in_folder or ("checks" in text and "schema_version" in text) else None
    # A program needs no ending, and most files of JSON are something else.
    if in_folder and not (named_launch(path) or text.startswith("#!")):
        return None
    if in_folder and path.endswith(".json") and not is_json_manifest(text):
        return None
    fault = fault_in(text, path)
    if fault is not None:
        # Servers behind that place would be left out in silence.
        raise unreadable(fault, printable(path), "Mend it: what deploys it cannot read it either.")
    given, said = told.given.with_beside(text, path)
    found = read_deployment(path, text, replace(told, given=given))
    if in_folder and (found is None or not (found.checks or len(found.notes) > 1)):
        return None
    if found is not None and found.checks:
        found = replace(found, notes=(*found.notes, *(Note(code=NOTED, message=each) for each in said)))
    if (found is None or not found.checks) and _is_model(text):
        name = "standard input" if path == "-" else printable(path)
        model = json.dumps("model.yaml" if path == "-" else path)
        hint = (
            f"Write to kvplan.yaml what must hold of it: {{schema_version: 1, checks: [{{model: {model}, seq: 32k, gpu: l4}}]}}"
        )
        raise CheckFileError(f"{name} is a model, and no check file: it holds nothing to check.", hint=hint)
    return parse_check_file(text, path) if found is None else found


def read_deployment(path: str, text: str, told: Told) -> Deployment | None:
    """The servers of a text as checks; ``None`` for a text that starts none and may be meant as a check file.

    Raises :class:`~hwcalc.check.file.CheckFileError` for one that is too large or too deep.
    """
    try:
        servers = told.given.named(text, os.path.basename(path))
    except UsageError as error:
        raise CheckFileError(f"{printable(path)}: {error.message}", hint=error.hint) from error
    if not servers and (path == "-" or _meant_as_checks(path, text)):
        return None
    checks, notes = list[ServerCheck](), list[Note]()
    names = {name for name, _ in servers}
    against = "".join(f" --baseline {shell_word(each)}" for each in told.baselines) + (" --accept" if told.accept else "")

    def command(options: Mapping[str, Any], sets: Mapping[str, Any], *, grows: bool = False) -> str:
        growth = f" --max-growth {told.growth}" if against and told.growth and not grows else ""
        return typed_command([path], [text], told, {}, sets, names) + against + growth + _typed(options)

    others = _others(servers, told.given)
    for (name, server), shared in zip(servers, others, strict=True):
        try:
            flags = flags_of(server)
        except UsageError as error:
            notes.append(Note(code="unplanned", message=f"{printable(path)}:{server.line}: {error.message}"))
            continue
        checks.append(replace(_check(server, flags, told, name, command, alone=len(servers) == 1), others=shared))
    if not checks:
        notes.insert(0, Note(code="no-server", message=f"{printable(path)} {_NOTHING}: nothing is checked."))
    return Deployment(path=path, checks=tuple(checks), text=text, told=told, notes=tuple(notes))


def _others(servers: Sequence[tuple[str, Server]], given: Given) -> list[dict[str, tuple[str, ...]]]:
    """Of each server the settings that others take from the same word: from a variable, an anchor, or the labels of their pod; with the names of those."""

    def words(server: Server) -> Iterator[tuple[str, tuple[str, int, int]]]:
        for key, word in server.places.items():
            if word.said is not None and word.said.file:
                yield key, (f"{word.said.name} of {word.said.file}", 0, 0)
                continue
            variable = given_in(word, given.variables.keys() | given.beside.keys()) or default_of(word)
            spot = word.spot if word.said is None else word.said.spot
            if variable:
                yield key, (variable, 0, 0)
            elif spot.line:
                yield key, ("", spot.line, spot.column)
        pod, _, container = server.name.rpartition("/")
        if container and pod:
            yield "gpu", (pod, 0, 0)

    users: dict[tuple[str, int, int], list[str]] = {}
    for name, server in servers:
        for _, word in words(server):
            users.setdefault(word, []).append(name)
    return [
        {key: tuple(other for other in users[word] if other != name) for key, word in words(server)} for name, server in servers
    ]


def typed_command(
    paths: Sequence[str],
    texts: Sequence[str],
    told: Told,
    options: Mapping[str, Any],
    sets: Mapping[str, Any] = MappingProxyType({}),
    servers: Collection[str] | None = None,
) -> str:
    """The command that checks these files, with what the user says of their variables and servers, more values of ``--set``, and options of plans.

    Where all of their ``servers`` are known, what is said of those of other files is left out. What looks like a secret is left out: a log shows the command, and no plan needs it. A file of variables is
    named, so that the command has what stands in it later; of a pipe the values are.
    """
    given = told.given
    named = os.path.isfile(given.file)
    names = (shell_word(f"./{path}" if path.startswith("-") and path != "-" else path) for path in paths)
    # What is new stands last, where it is seen.
    said = (
        f"{name}={value}"
        for name, value in {**{name: value for name, value in given.variables.items() if name not in sets}, **sets}.items()
        if (name in given.settings and (servers is None or name.rpartition(".")[0] in {"", *servers}))
        or name in sets
        or (any(name in text for text in texts) and (name in given.sets or not named) and not is_secret(name, value))
    )
    words = [f"--set {shell_word(pair)}" for pair in said if masked(pair) == pair]
    words = [f"--env-file {shell_word(given.file)}", *words] if named else words
    return " ".join(("kvplan check", *names, *words)) + _typed(options)


def _typed(options: Mapping[str, Any]) -> str:
    """The words of options of plans, each behind a blank."""
    return "".join(f" --{'users' if name == 'batch' else name} {shell_word(str(value))}" for name, value in options.items())


def _is_model(text: str) -> bool:
    """True if a text is a config or the written layers of a model."""
    try:
        trees = read_forest(text)
    except TreeError:
        return False
    if len(trees) != 1 or not isinstance(trees[0].value, dict):
        return False
    keys = trees[0].value
    return "model_type" in keys or ("layers" in keys and isinstance(keys["layers"].value, (str, list)))


def _meant_as_checks(path: str, text: str) -> bool:
    """True if a text that starts no server is to be read as a check file, which says what is wrong with it."""
    from difflib import get_close_matches

    name = os.path.basename(path).lower()
    if not name.endswith(_PLAIN) or name.startswith("kvplan"):
        return name.startswith("kvplan") or not text.strip()
    keys = set(_TOP_KEY.findall(text[:_HEAD]))
    if "{{" in text or OF_MANIFEST.search(text):
        return False
    if not keys or ("model" in keys and keys & {"engine", "gpu"}):
        return True
    if any(get_close_matches(key, ("checks", "schema_version", "defaults"), cutoff=_NEAR) for key in keys):
        return True
    try:
        read_forest(text)
    except TreeError:
        return True
    return False


def _check(server: Server, flags: EngineFlags, told: Told, name: str, command: Callable[..., str], *, alone: bool) -> ServerCheck:
    """The check of a server of this name, which may be ``alone`` in its text."""
    set_ = {
        option: told.given.settings_of(name)[key] for option, key in OF_HARDWARE.items() if key in told.given.settings_of(name)
    }
    # What the user sets is none of the text's.
    stated = {key: value for key, value in server.settings.items() if key not in {OF_HARDWARE[option] for option in set_}}
    server, load = replace(server, settings=stated), told.given.load_of(name)
    places, judged = _places(server, flags), list(_told(server, flags))
    faults = list(_open(server, flags, name, told.given.lacking))
    made = Planned(model=str(server.model or ""), options={})
    at = places.get("model") or Place(line=server.line, column=1, word="")
    required: tuple[Required, ...] = (Required(name="fits", limit=True, text="true"),)
    probe, without_gpu, given, few, beyond = None, None, dict[str, Any](), None, None
    try:
        given = not_named(server, {key: value for key, value in told.options.items() if key not in set_}) | set_ | load
        try:
            made = probe = planned(server, given)
        except BeyondError as error:
            beyond = error
            made = probe = planned(server, {name: value for name, value in given.items() if name not in NUMBERS})
    except UnsetError as error:
        hint, sets = error.hint_of(name, told.given.lacking), {set_name(error.setting, name): "ORG/NAME"}
        faults.append(Fault(line=at.line, column=at.column, error=OpenError(error.message, hint=hint, sets=sets)))
        with suppress(UsageError):  # it is said once the model is known
            probe = planned(replace(server, settings={**server.settings, "model": "ORG/NAME"}), given)
    except TooFewGpusError as error:
        sizes = [name for name in LAYOUT if server.settings.get(name) not in (None, 1)]
        # A text that names no number of GPUs has none to be changed.
        typed = set_words(OF_HARDWARE["gpus"], str(error.taken), name) if "gpus" in set_ else f"--gpus {error.taken}"
        hint = f"Give it {error.taken:,}: {typed}" if "gpus" in given else f"{error.hint.partition(', or ')[0]}."
        judged.append(placed_at(finding("gpus", f"{error.message} {hint}", holds=False), places.get(sizes[0]) if sizes else None))
        few, required = error, ()
    except UsageError as error:
        faults.append(Fault(line=at.line, column=at.column, error=error))
    if probe is not None and not {"gpu", "instance", "kv_memory"} & probe.options.keys():
        without_gpu = partial(_without_gpu, server, probe.remarks, name, command, told, alone=alone and not told.several)
        faults.append(without_gpu({name: value for fault in faults for name, value in sets_of(fault).items()}))
    return ServerCheck(
        name=name,
        line=server.line,
        column=1,
        model=made.model,
        options=made.options,
        required=required,
        places={**places, "name": at},
        faults=tuple(sorted(faults, key=lambda fault: (fault.line, fault.column))),
        remarks=(*made.remarks, *warned(server)),
        server=server,
        command=command,
        outside=told.given.files_of,
        told=tuple(judged),
        without_gpu=without_gpu,
        fitted=made.fitted,
        own_length=made.own_length,
        given=given,
        own={**set_, **load} if alone else OF_SERVER,
        shared=told.options,
        few=few,
        beyond=beyond,
    )


def _without_gpu(
    server: Server,
    remarks: Sequence[str],
    name: str,
    command: Callable[..., str],
    told: Told,
    sets: Mapping[str, str],
    *,
    alone: bool,
) -> Fault:
    """The fault that a server lacks an accelerator. The command that names one gives the ``sets`` a value too."""
    # Of the remarks, those that say why the accelerator is not known.
    said = " ".join(each for each in remarks if "add --gpu" in each) or "the file names no accelerator."
    for_all = f"such as: {command({**told.options, 'gpu': 'h100'}, sets)}"
    one = shell_word(f"{name}.gpu=h100")
    hint = f"Name it, {for_all}" if alone else f"Add --set {one} for this server alone, or name that of all, {for_all}"
    return Fault(line=server.line, column=1, error=OpenError(f"whether it fits is not known: {said}", hint=hint))


def _places(server: Server, flags: EngineFlags) -> dict[str, Place]:
    """The places in a text of the options of the plan, by their names."""
    out: dict[str, Place] = {}
    for flag in flags.flags:
        word = word_of(server, flag)
        name = "model" if flag.key in OF_MODEL else flag.option or (flag.engine_option and f"engine_options.{flag.engine_option}")
        if name and word is not None and word.line:
            out.setdefault(name, place_of(server, flag, word, name))
    engine = find_engine(flags.engine)[0]
    # A change of the load stands at the flag that says it.
    for name, said in ((f"engine_options.{engine.facts.longest_option}", "seq"), ("seq", "ctx"), ("batch", "slots")):
        of_load, word = flags.flag_of.get(said), server.places.get(said)
        if said in out:
            out.setdefault(name, out[said])
        elif of_load is not None and word is not None and word.line:
            out.setdefault(name, place_of(server, of_load, word, name))
    return out


def _told(server: Server, flags: EngineFlags) -> Iterator[Judged]:
    """The verdicts that need no plan: values that its engine refuses, and flags that it does not know."""
    for fault in server.faults:
        word = server.places.get(fault.partition(" ")[0])
        said = f"{brief(fault, 80)}: {flags.name} does not take it so, and will not start"
        yield placed_at(finding("flags", said, holds=False), None if word is None else place_of(server, None, word))
    releases = releases_listed(server, flags)
    for flag, said in zip(server.unknown, unknown_flags(server), strict=True):
        word = server.places.get(flag)
        # What is an entry of a chart may be one of the chart.
        refused = releases and any(each.text.partition("=")[0] == flag for each in server.words)
        known = (
            f"no release of {flags.name} from {releases[-1]} to {releases[0]} has {said}: it will not start" if refused else ""
        )
        yield placed_at(
            finding("flags", known or f"not known of {flags.name}: {said}", holds=not known),
            None if word is None else place_of(server, None, word),
        )


def _open(server: Server, flags: EngineFlags, name: str, lacking: Mapping[str, str]) -> Iterator[Fault]:
    """The options of a plan, but for the model, whose values the text of the server of this name leaves open."""
    for left in left_open(server, flags):
        message = f"{left.flag.spelled} is left open: {brief(left.word.text, 60)}."
        error = OpenError(message, hint=left.hint_of(name, lacking), sets={set_name(left.name, name): "VALUE"})
        place = place_of(server, left.flag, left.word)
        yield Fault(line=place.line, column=place.column, error=error)
