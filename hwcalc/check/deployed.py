"""Deployments as checks: each server that a command, a script or a manifest starts must start, and hold what it is told.

A finding stands at the flag that is wrong. What a text leaves open, such as ``$MODEL``, is a finding of its own kind: it names what to set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.check.baseline import Grown, no_growth
from hwcalc.check.changes import NUMBERS
from hwcalc.check.file import Check, CheckFile, CheckFileError, Fault, Place, Required, parse_check_file, read_text
from hwcalc.check.judge import judge, then_fail
from hwcalc.check.result import GROWTH, Edit, Judged, figures_of
from hwcalc.engines import find_engine
from hwcalc.errors import (
    ConfigError,
    KvplanError,
    ModelNotFoundError,
    UncountedError,
    UnsupportedError,
    UsageError,
)
from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import scalar
from hwcalc.launch.named import is_json_manifest, named_launch
from hwcalc.launch.planned import (
    BEYOND,
    KNOB,
    LAYOUT,
    NAME_IT,
    ON_SERVER,
    BeyondError,
    Planned,
    TooFewGpusError,
    flags_of,
    gpus_taken,
    heeded,
    in_flags,
    is_on_server,
    key_of,
    left_open,
    not_named,
    planned,
    releases_listed,
    said_as,
    unknown_flags,
    warned,
    without_line,
    word_of,
    words_for,
)
from hwcalc.launch.read import Given
from hwcalc.launch.server import KEYS, Server
from hwcalc.launch.words import Word
from hwcalc.masking import masked
from hwcalc.model import OLLAMA, Note
from hwcalc.planner.advice import least_sensible
from hwcalc.planner.options import read_options
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.engine_flags import EngineFlags, Flag
from hwcalc.profiles.hardware_file import NODE
from hwcalc.text import brief, printable, shell_word
from hwcalc.yaml_tree import LARGEST_MANIFEST, TreeError, read_forest

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan

_OF_CHECKS: Final = re.compile(r"(?m)^(?:\{\s*)?[\"']?(?:schema_version|checks)[\"']?[ \t]*:")
"""A key that a check file has, at its beginning or at that of a line."""
_WRITTEN: Final = re.compile(r"\A\{\s*\"schema_version\": *[^,]{1,20},\s*\"(digest|kvplan_version)\": *\"")
"""How a lock begins, and how a document of kvplan does, which is a baseline."""
_OF_MANIFEST: Final = re.compile(r"(?m)^(?:\{\s*)?[\"']?(?:apiVersion|services|kind)[\"']?[ \t]*:")
"""A key of manifests, also of those that start no server."""
_TOP_KEY: Final = re.compile(r"(?m)^[\"']?([A-Za-z_][\w-]*)[\"']?[ \t]*:")
_HEAD: Final = 64 * 1024
_NEAR: Final = 0.8
"""How alike a key and one of a check file are where that is meant."""
_PLAIN: Final = (".yaml", ".yml", ".json")
"""Endings of check files."""
_OF_MODEL: Final = ("model", "repository", "file", "url")
"""Keys of flags that name the model."""
_STRETCHES: Final = re.compile(r"rope|overrid")
"""In the names of flags that change how long a model is."""
_OF_HARDWARE: Final = {"gpu": "gpu", "gpus": "gpus_per_replica"}
"""Options of a plan, and the settings of servers that say the same."""
_VARIABLE: Final = re.compile(r"(?<!\S)[A-Z_]+=\S+")
_CHECKPOINT: Final = re.compile(r"a checkpoint in \S+?(?:, |; |$)")
"""In the effect of an edit whose words say it already."""
_SECRET: Final = ("key", "pass")
"""Ends of the names of secrets, beside those that :func:`~hwcalc.masking.masked` knows."""
_SET: Final = re.compile(r"--set (\w+=\S*[\w/])")
_NOTHING: Final = "starts no server that kvplan knows"


class OpenError(UsageError):
    """A deployment does not say what a plan needs, such as its model or its accelerator. Exit 2."""

    type = "open"


class Told(Record):
    """What the user says of deployments: what they leave open, and options of plans: the load, which counts more than theirs, and accelerators for
    texts that name none. ``baselines`` are what its results are compared with, and ``growth`` how much more is allowed.
    """

    given: Given
    options: Mapping[str, Any]
    baselines: tuple[str, ...] = ()
    growth: str = ""


class Held(Record):
    """The GPUs that a server takes where it surely fits, 0 where it does not; the option that accepts what grows then, and how much is on the host."""

    gpus: int = 0
    accepting: str = ""
    slower: str = ""


class ServerCheck(Check):
    """The check of a server. ``remarks`` are warnings.

    ``without_gpu`` says that an accelerator is all that it lacks, ``given`` are options of the user that count more than the text. ``command`` makes the
    command that checks the text with options and values of ``--set``; ``own`` are the options that ``--set`` says of this server alone, and ``shared``
    those that the user gave for all. One that is ``fitted`` is told to allow the longest requests that its pool holds, and one with
    too ``few`` GPUs cannot start. A load that is ``beyond`` what the text starts it for is a finding beside that of the text. ``grown`` compares its
    figures with a baseline.
    """

    server: Server
    remarks: tuple[str, ...] = ()
    without_gpu: bool = False
    fitted: bool = False
    given: Mapping[str, Any] = MappingProxyType({})
    command: Callable[..., str] = str
    own: Collection[str] = ()
    shared: Mapping[str, Any] = MappingProxyType({})
    few: TooFewGpusError | None = None
    beyond: BeyondError | None = None
    grown: Grown = no_growth

    @property
    def document(self) -> Mapping[str, Any] | None:
        return self.server.to_dict()

    def failed(self, error: KvplanError) -> Fault:
        """An error at the model where that cannot be read, else at the server. A path that is not here is left open: it may be one of the server's."""
        here = Place(line=self.line, column=self.column, word="")
        error = in_flags(error, self.server, self.given)
        # The line is of a plan, which is no check of this text.
        error.hint = without_line(error.hint)
        place = self.places.get("model", here) if isinstance(error, (ModelNotFoundError, ConfigError)) else here
        if isinstance(error, ModelNotFoundError) and is_on_server(self.model):
            error = OpenError(f"{error.message} {ON_SERVER}", hint=NAME_IT)
        elif isinstance(error, ModelNotFoundError) and self.model.startswith(OLLAMA):
            error = ModelNotFoundError(error.message, hint=f"{error.hint} Or name its model: --set model=ORG/NAME")
        return _own(Fault(line=place.line, column=place.column, error=error), self.name)

    def settled(
        self, judged: Sequence[Judged], plan: Plan, replan: Callable[..., Plan], more: Sequence[Judged] = ()
    ) -> list[Judged]:
        """The verdicts on the text itself, and that of the plan at the flag that would have to change; in its place, a length that the engine refuses.

        Behind them are ``more`` than its own.
        """
        refused = self._refused(plan)
        alone = replace(self, given={name: value for name, value in self.given.items() if name not in NUMBERS})
        blamed = self if self.beyond is None else alone
        found = [blamed.blamed(item, plan, replan) for item in (() if refused else judged)]
        found += [blamed.blamed(item, plan, replan) for item in more]
        if refused:
            found.insert(0, self._shorter(refused, plan, replan))
        elif self.beyond is not None:
            found.insert(0, self._beyond(self.beyond, replan))
        return self._beside(self.told, *found)

    def _beside(self, told: Sequence[Judged], *findings: Judged) -> list[Judged]:
        """What is told of the text itself, and the findings, whose edits say which of it still fails then."""
        still = [item.name for item in told if not item.holds]
        edited = (replace(item, edits=tuple(then_fail(edit, still) for edit in item.edits)) for item in findings)
        return [*told, *edited]

    def _beyond(self, error: BeyondError, replan: Callable[..., Plan]) -> Judged:
        """The finding of a load that the text does not allow, at the flag that says so, with the flags and the load that hold."""
        flags, option = flags_of(self.server), error.option
        engine = find_engine(flags.engine)[0]
        said, facts = {option: error.sizes[option]}, engine.facts
        if facts.slots_option in flags.flag_of:
            # Its flag says the tokens of all slots.
            users = {facts.users_option: said["batch"]} if option == "batch" else {}
            said = {facts.slots_option: error.sizes["seq"] * (error.sizes["batch"] or 1), **users}
        larger = " ".join(engine.command.flag(name, size) for name, size in said.items())
        held = self._held_with(larger, {}, replan)
        edits = [self._told_with(Edit(yaml=larger, effect=held.slower, flags=larger), {}, held)] if held.gpus else []
        smaller = {option: str(error.allowed)}
        held = self._held_with("", smaller, replan)
        sensible = error.allowed >= least_sensible(error.sizes[option])
        edits += [Edit(yaml=self._command(smaller), effect="", accepting=held.accepting)] if held.gpus and sensible else []
        word = words_for(flags, self.server, option)[1]
        message = error.message if edits else f"{error.message}; no single change was found with which it holds them"
        item = _judged("length" if option == "seq" else "users", message, holds=False)
        place = None if word is None or not word.line else _place(self.server, flags.flag_of.get(option), word)
        return replace(_at(item, place), edits=tuple(edits))

    def started(self, plan: Plan, replan: Callable[..., Plan]) -> Plan:
        """The plan of the longest request that the pool holds, with a warning, where the text names no length and the engine starts all the same."""
        engine, longest = find_engine(plan.request.engine)[0], plan.held_seq
        does = "takes the longest that fits" if self.fitted else engine.facts.short_pool
        if not does or longest is None or "batch" in self.options:
            return plan
        flag = engine.command.flag("seq", longest).partition(" ")[0]
        message = f"{engine.label} starts, and {does}: its pool holds requests of {longest:,} tokens, not the model's {plan.request.seq:,}."
        told = f"Name the length that users need, as {flag} in the file or as --seq of kvplan check, to see whether it fits."
        made = replan(advise=True, seq=longest)
        return replace(made, warnings=(*made.warnings, Note(code="short-pool", message=f"{message} {told}")))

    def unplanned(self, planner: Callable[[Check], Callable[..., Plan]]) -> Sequence[Judged]:
        """The verdicts on the text itself. Too few GPUs are told with the largest parallel sizes for which they are enough."""
        if self.few is None:
            return self.told
        *others, item = self.told
        return self._beside(others, replace(item, edits=tuple(self._fewer(self.few.gpus, planner))))

    def _fewer(self, gpus: int, planner: Callable[[Check], Callable[..., Plan]]) -> Iterator[Edit]:
        """The edits of a single parallel size with which so many GPUs are enough, and the verdict then, but where that is that it fits."""
        taken = gpus_taken(self.server.settings)
        for name in LAYOUT:
            size = self.server.settings.get(name, 1)
            for fewer in range(gpus * size // taken, 0, -1) if taken and size > 1 else ():
                server = replace(self.server, settings={**self.server.settings, name: fewer})
                with suppress(KvplanError):  # what the engine refuses is not offered
                    told = planned(server, self.given)
                    fit = planner(replace(self, model=told.model, options=told.options))().fit
                    then = "if that fits" if fit is None else "" if fit.verdict is Verdict.FITS else f"then: {fit.verdict.text}"
                    flag = find_engine(flags_of(server).engine)[0].command.flag(name, fewer)
                    yield Edit(yaml=f"{name}: {fewer}", effect=then, flags=flag)
                    break

    def refusal(self, error: KvplanError, planner: Callable[[Check], Callable[..., Plan]]) -> Judged | None:
        """The finding at the first flag of the text without which the engine would start, or else refuse another one; ``None`` where there is none.

        What kvplan does not know, and an option that the user gave, are none.
        """
        if not isinstance(error, (UsageError, UnsupportedError)) or isinstance(error, (OpenError, UncountedError)):
            return None
        flags, culprit = flags_of(self.server), None
        for flag in flags.flags:
            word, key = word_of(self.server, flag), key_of(flag)
            if word is None or not word.line or key in _OF_MODEL or flag.option in self.given:
                continue
            said = {name: value for name, value in self.server.settings.items() if name != key}
            extra = {name: value for name, value in self.server.extra.items() if name != key}
            try:
                planner(replace(self, options=planned(replace(self.server, settings=said, extra=extra), self.given).options))()
            except KvplanError as other:
                if culprit is None and other.message != error.message:
                    culprit = flag, word
            else:
                culprit = flag, word
                break
        if culprit is None:
            return None
        flag, word = culprit
        changes = [each for knob in KNOB.finditer(error.hint) if (each := said_as(flags, self.server, knob[1], knob[2]))]
        error = in_flags(error, self.server, self.given)
        hint, label = without_line(error.hint), find_engine(flags.engine)[0].label
        sizes = ", ".join(map(str, self._sizes(key_of(flag), planner))) if flag.option in LAYOUT else ""
        # What the hint offers is planned, and stands among the edits if it holds.
        hint = f"Sizes with which it starts: {sizes}" if sizes else "" if changes else hint
        told = f"{flag.spelled} {brief(word.text, 40)}: {label} will not start. {error.message.rstrip('.')}. {hint}"
        finding = _at(_judged("flags", told.rstrip(" ."), holds=False), _place(self.server, flag, word))
        return self._beside(self.told, replace(finding, edits=tuple(self._starting(changes, planner))))[-1]

    def _starting(self, changes: Iterable[str], planner: Callable[[Check], Callable[..., Plan]]) -> Iterator[Edit]:
        """The edits of flags and variables of a hint with which the server surely fits."""
        for flags in changes:
            held = self._held_with(flags, {}, planner(self))
            if held.gpus:
                yield self._told_with(Edit(yaml=flags, effect=held.slower, flags=flags), {}, held)

    def _sizes(self, key: str, planner: Callable[[Check], Callable[..., Plan]]) -> Iterator[int]:
        """The values of a parallel size, of those on a node, with which the engine starts."""
        for size in range(1, NODE + 1):
            server = replace(self.server, settings={**self.server.settings, key: size})
            with suppress(KvplanError):  # what the engine refuses is not offered
                planner(replace(self, options=planned(server, self.given).options))()
                yield size

    def warned(self, plan: Plan) -> list[Note]:
        """The warnings, without the one that is a finding here."""
        refused = bool(self._refused(plan))
        return [
            *(Note(code="deployment", message=each) for each in self.remarks),
            *(note for note in heeded(plan, self.server.variables).warnings if not (refused and note.code == BEYOND)),
        ]

    def _refused(self, plan: Plan) -> str:
        """Why the engine refuses the length; empty if it takes it."""
        longer = next((note.message for note in plan.warnings if note.code == BEYOND), "")
        server = self.server
        # The model may be stretched by a flag, which no plan reads.
        if any(_STRETCHES.search(name) for name in (*server.extra, *server.unplanned, *server.irrelevant)):
            return ""
        return longer if plan.request.environment and heeded(plan, server.variables) is plan else ""

    def _shorter(self, refused: str, plan: Plan, replan: Callable[..., Plan]) -> Judged:
        """The finding of a length that the engine refuses, with the largest that it takes and that fits; where none does, with what is said then."""
        engine, longest = find_engine(plan.request.engine)[0], plan.model.max_position_embeddings or 0
        option, knobs = engine.facts.longest_option, self.options.get("engine_options", {})
        allowed = int(knobs.get(option, 0))

        def of_length(tokens: int) -> tuple[Edit, Mapping[str, str], Plan]:
            # What users send stays as it is, if it is no longer than that; and so does what the server allows.
            typed = {"seq": str(tokens)} if "seq" in self.given and plan.request.seq > tokens else {}
            flag = engine.command.flag("seq", tokens) if "seq" not in self.given or allowed > tokens else ""
            of_server: dict[str, Any] = {"engine_options": {**knobs, option: str(tokens)}} if option in knobs else {}
            of_server |= {"seq": tokens} if not of_server or plan.request.seq > tokens else {}
            return Edit(yaml=f"seq: {tokens}", effect="", flags=flag), typed, replan(**of_server)

        edit, typed, shorter = of_length(longest)
        if shorter.fit is not None and shorter.fit.verdict is not Verdict.FITS:
            [item] = judge(self.required, shorter, replan, self.places, sure=True)
            refused += f" With {longest:,} tokens it {item.message}"
            edit = replace(edit, effect=f"then: {shorter.fit.verdict.text}")
            most = shorter.fit.max_seq or 0
            if least_sensible(longest) <= most < longest:
                edit, typed, shorter = of_length(most)
        edit = self._told_with(edit, typed)
        return replace(_at(_judged("length", refused, holds=False), self.places.get("seq")), edits=(edit,))

    def blamed(self, item: Judged, plan: Plan, replan: Callable[..., Plan]) -> Judged:
        """The verdict at the first flag of the text that one of its edits changes, else at the server. Each edit holds as it is told."""
        flags = flags_of(self.server)
        if item.name.startswith(GROWTH):
            # Less than before is said by flags too; what accepts the growth is an option of the check.
            tried = ((each, self._holding(self._in_flags(each, flags), replan) if each.yaml else each) for each in item.edits)
            # One that grows all the same is none.
            kept = (edit for each, edit in tried if edit is not None and (each.accepting or not edit.accepting))
            return replace(item, edits=tuple(kept))
        if item.name != "fits" or plan.fit is None or (item.holds and item.certain):
            return item
        users = flags.flag_of.get(find_engine(flags.engine)[0].facts.users_option) if "batch" not in self.options else None
        # A text that does not say how many are served at once is not mended by serving fewer.
        asked = (edit for edit in item.edits if users is None or users.spelled not in edit.flags.split())
        told = (self._holding(self._in_flags(edit, flags), replan) for edit in asked)
        held = [*self._on_all_gpus(replan), *(edit for edit in told if edit is not None)]
        edits = tuple({edit.flags or edit.yaml: edit for edit in held}.values())
        words = (word for edit in edits for word in edit.flags.split() if word.startswith("-"))
        blamed = ((flag, word_of(self.server, flag)) for flag in (flags.find(word)[0] for word in words) if flag is not None)
        first = next((_place(self.server, flag, word) for flag, word in blamed if word is not None and word.line), None)
        return replace(_at(item, first or self.places.get("model")), edits=edits)

    def _in_flags(self, edit: Edit, flags: EngineFlags) -> Edit:
        """The edit with the flags of all its parallel sizes, and that of a length by the flag that says it, where the text does, and not the user."""
        engine = find_engine(flags.engine)[0]
        # A command leaves out sizes of 1, and the text may have others.
        parts = dict(part.partition(": ")[::2] for part in edit.yaml.splitlines())
        ones = [name for name in LAYOUT if parts.get(name) == "1" and self.server.settings.get(name, 1) != 1]
        if edit.flags and ones:
            said = " ".join(engine.command.flag(name, 1) for name in ones)
            return replace(edit, flags=f"{edit.flags} {said}")
        key, _, value = edit.yaml.partition(": ")
        if key != "seq" or "\n" in value or edit.flags or key in self.given:
            return edit
        length = read_options({"seq": value}).values["seq"]
        option = engine.facts.slots_option
        if option in flags.flag_of:
            return replace(edit, flags=engine.command.flag(option, length * self.options.get("batch", 1)))
        return replace(edit, flags=engine.command.flag("seq", length))

    def _on_all_gpus(self, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit of the tensor-parallel size that takes all GPUs of the text, some of which are idle, where it fits so."""
        given, taken = self.server.settings.get("gpus_per_replica"), gpus_taken(self.server.settings)
        engine = find_engine(flags_of(self.server).engine)[0]
        if (
            not isinstance(given, int)
            or not taken
            or given == taken
            or given % taken
            or "tp" not in flags_of(self.server).flag_of
        ):
            return
        size = self.server.settings.get("tp", 1) * given // taken
        flag = engine.command.flag("tp", size)
        held = self._held_with(flag, {}, replan)
        if held.gpus:
            yield Edit(yaml=f"tp: {size}", effect=f"all {given:,} GPUs of the file", flags=flag, accepting=held.accepting)

    def _holding(self, edit: Edit, replan: Callable[..., Plan]) -> Edit | None:
        """The edit as the flags with which the server surely fits, or as the command that the user types in place of this one, or as both.

        The user types the load, and hardware that the text does not name. What only another checkpoint or another text does is told in words. ``None``
        for what can be told in none of these ways.
        """
        held = self._held_with(edit.flags, {}, replan) if edit.flags else Held()
        if held.gpus:
            return self._told_with(edit, {}, held)
        parts = dict(part.partition(": ")[::2] for part in edit.yaml.splitlines())
        counts = isinstance(self.server.settings.get("gpus_per_replica"), int)
        free = () if edit.flags else (*NUMBERS, *(() if counts else ("gpus",)))
        typed = {key: text for key, text in parts.items() if key in self.given or key in free}
        if typed and typed.keys() == parts.keys():
            held = self._held_with("", typed, replan)
            return replace(edit, yaml=self._command(typed), flags="", accepting=held.accepting) if held.gpus else None
        if typed:
            held = self._held_with(edit.flags, typed, replan) if edit.flags else Held()
            return self._told_with(edit, typed, held) if held.gpus else None
        return self._in_words(edit, parts)

    def _in_words(self, edit: Edit, parts: Mapping[str, str]) -> Edit | None:
        """The edit of another checkpoint, or of other accelerators in the file, in words, with flags for the rest; ``None`` for flags that do not hold."""
        flags = flags_of(self.server).flag_of
        names = [key.removeprefix("without ") for key in parts if key.startswith("without ")]
        said = []
        if _CHECKPOINT.search(edit.effect) and "weights" in parts:
            format_ = parts["weights"].upper()
            said = [f"a checkpoint in {format_}: search the Hub for {self.model.rpartition('/')[2]}-{format_}"]
        many, of_text = int(parts.get("gpus", 0)), self.server.settings.get("gpus_per_replica")
        if "gpu" in parts:
            said.append(f"{f'{many} x ' if many else ''}{parts['gpu']} in the file")
        elif many and not (edit.flags and (of_text is None or of_text >= many)):
            said.append(f"{many:,} GPUs in the file")
        if not said and not names:
            return None if edit.flags else edit
        without = "".join(f" without {flags[name].spelled}" for name in names if name in flags)
        yaml = ", ".join(filter(None, (*said, edit.flags))) + without
        return replace(edit, yaml=yaml.strip(), effect=_CHECKPOINT.sub("", edit.effect), flags="")

    def _told_with(self, edit: Edit, typed: Mapping[str, str], held: Held | None = None) -> Edit:
        """The edit of flags that holds with options that are ``typed`` and so many GPUs: more than it has are given to the server where it got them."""
        given, gpus = self.given.get("gpus"), 0 if held is None else held.gpus
        edit = edit if held is None else replace(edit, accepting=held.accepting)
        if given is not None and gpus > int(given):
            typed = {**typed, "gpus": str(gpus)}
        elif isinstance(of_text := self.server.settings.get("gpus_per_replica"), int) and gpus > of_text:
            edit = replace(edit, effect="; ".join(filter(None, (edit.effect, f"with {gpus:,} GPUs in the file"))))
        elif given is None and of_text is None and gpus > (gpus_taken(self.server.settings) or gpus) > 1:
            edit = replace(edit, effect="; ".join(filter(None, (edit.effect, f"with {gpus:,} GPUs"))))
        said = " in the file and ".join(filter(None, (edit.flags, self._command(typed))))
        return replace(edit, yaml=said, flags="") if typed else edit

    def _command(self, typed: Mapping[str, str]) -> str:
        """The command that checks the text with options that are ``typed``, beside what the user gave."""
        sets = {f"{self.name}.{_OF_HARDWARE[name]}": text for name, text in typed.items() if name in self.own}
        return self.command({**self.shared, **{name: text for name, text in typed.items() if name not in self.own}}, sets)

    def _held_with(self, flags: str, typed: Mapping[str, str], replan: Callable[..., Plan]) -> Held:
        """How the server fits with these flags, and with what is typed in place of what the user gave."""
        own = flags_of(self.server)
        # Variables stand before the program, and parameters in a file beside it.
        words = [*_VARIABLE.findall(flags), *own.program, _VARIABLE.sub("", flags)]
        keys = {row.name: row.key for row in own.parameters if row.key}
        with suppress(KvplanError):  # what the engine refuses is not offered
            (told,) = Given(variables={}, settings={}).servers(" ".join(words))
            of_text = {name: value for name, value in told.settings.items() if name not in ("engine", "model")}
            of_text |= {keys[name]: scalar(value) for name, value in pairwise(flags.split()) if name in keys}
            # A text that gives it fewer GPUs has to give it more, which no flag says.
            settings = {name: value for name, value in self.server.settings.items() if name != "gpus_per_replica"} | of_text
            server = replace(self.server, settings=settings, extra={**self.server.extra, **told.extra})
            given = {name: value for name, value in self.given.items() if name != "gpus" or not of_text.keys() & LAYOUT}
            options = planned(server, {**given, **typed}).options
            plan = self._replanned(options, replan)
            if plan.fit is not None and plan.fit.verdict is Verdict.FITS:
                grown = (edit.accepting for item in self.grown(figures_of(plan)) for edit in item.edits)
                slower = f"much slower: {plan.places}" if plan.partly_on_host else ""
                return Held(gpus=gpus_taken(options) or 0, accepting=next(grown, ""), slower=slower)
        return Held()

    def _replanned(self, options: Mapping[str, Any], replan: Callable[..., Plan]) -> Plan:
        """The plan of the model with other options."""
        changed = {**dict.fromkeys(self.options), **options}
        return replan(**{name: value for name, value in changed.items() if name not in ("revision", "assume", "draft")})


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
    found = read_deployment(path, text, told)
    if in_folder:
        return found if found is not None and (found.checks or len(found.notes) > 1) else None
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
    against = "".join(f" --baseline {shell_word(each)}" for each in told.baselines)
    against += f" --max-growth {told.growth}" if against and told.growth else ""

    def command(options: Mapping[str, Any], sets: Mapping[str, Any]) -> str:
        return typed_command([path], [text], told, {}, sets) + against + _typed(options)

    for name, server in servers:
        try:
            flags = flags_of(server)
        except UsageError as error:
            notes.append(Note(code="unplanned", message=f"{printable(path)}:{server.line}: {error.message}"))
            continue
        checks.append(_check(server, flags, told, name, command, alone=len(servers) == 1))
    if not checks:
        notes.insert(0, Note(code="no-server", message=f"{printable(path)} {_NOTHING}: nothing is checked."))
    return Deployment(path=path, checks=tuple(checks), text=text, told=told, notes=tuple(notes))


def typed_command(
    paths: Sequence[str],
    texts: Sequence[str],
    told: Told,
    options: Mapping[str, Any],
    sets: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The command that checks these files, with what the user says of their variables and servers, more values of ``--set``, and options of plans.

    What looks like a secret is left out: a log shows the command, and no plan needs it.
    """
    given = told.given
    names = (shell_word(f"./{path}" if path.startswith("-") and path != "-" else path) for path in paths)
    said = (
        f"{name}={value}"
        for name, value in {**given.variables, **sets}.items()
        if name in given.settings or name in sets or (any(name in text for text in texts) and not name.lower().endswith(_SECRET))
    )
    words = (f"--set {shell_word(pair)}" for pair in said if masked(pair) == pair)
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
    if "{{" in text or _OF_MANIFEST.search(text):
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
        option: told.given.settings_of(name)[key] for option, key in _OF_HARDWARE.items() if key in told.given.settings_of(name)
    }
    # What the user sets is none of the text's.
    stated = {key: value for key, value in server.settings.items() if key not in {_OF_HARDWARE[option] for option in set_}}
    server, shared = replace(server, settings=stated), dict[str, Any]()
    places, judged = _places(server, flags), list(_told(server, flags))
    faults = list(_open(server, flags))
    made = Planned(model=str(server.model or ""), options={})
    at = places.get("model") or Place(line=server.line, column=1, word="")
    required: tuple[Required, ...] = (Required(name="fits", limit=True, text="true"),)
    without_gpu, given, few, beyond = False, dict[str, Any](), None, None
    try:
        shared = not_named(server, {key: value for key, value in told.options.items() if key not in set_})
        given = {**shared, **set_}
        try:
            made = planned(server, given)
        except BeyondError as error:
            beyond, made = error, planned(server, {name: value for name, value in given.items() if name not in NUMBERS})
        if not {"gpu", "instance", "kv_memory"} & made.options.keys():
            # Of the remarks, those that say why the accelerator is not known.
            said = " ".join(each for each in made.remarks if "add --gpu" in each) or "the file names no accelerator."
            for_all = f"such as: {command({**told.options, 'gpu': 'h100'}, {})}"
            one = shell_word(f"{name}.gpu=h100")
            hint = f"Name it, {for_all}" if alone else f"Add --set {one} for this server alone, or name that of all, {for_all}"
            open_ = OpenError(f"whether it fits is not known: {said}", hint=hint)
            faults.append(Fault(line=server.line, column=1, error=open_))
            without_gpu = True
    except TooFewGpusError as error:
        sizes = [name for name in LAYOUT if server.settings.get(name) not in (None, 1)]
        hint = error.hint if "gpus" in given else f"{error.hint.partition(', or ')[0]}."
        judged.append(_at(_judged("gpus", f"{error.message} {hint}", holds=False), places.get(sizes[0]) if sizes else None))
        few, required = error, ()
    except UsageError as error:
        left = OpenError(error.message, hint=error.hint) if "--set" in error.hint else error
        faults.append(Fault(line=at.line, column=at.column, error=left))
    return ServerCheck(
        name=name,
        line=server.line,
        column=1,
        model=made.model,
        options=made.options,
        required=required,
        places={**places, "name": at},
        faults=tuple(_own(each, name) for each in sorted(faults, key=lambda fault: (fault.line, fault.column))),
        remarks=(*made.remarks, *warned(server)),
        server=server,
        command=command,
        told=tuple(judged),
        without_gpu=without_gpu and len(faults) == 1,
        fitted=made.fitted,
        given=given,
        own=set_ if alone else _OF_HARDWARE,
        shared=shared,
        few=few,
        beyond=beyond,
    )


def _own(fault: Fault, name: str) -> Fault:
    """The fault with the setting of the server of this name alone in its hint, in place of that of every server."""

    def named(word: re.Match[str]) -> str:
        return f"--set {shell_word(f'{name}.{word[1]}')}" if word[1].partition("=")[0] in KEYS else word[0]

    fault.error.hint = _SET.sub(named, fault.error.hint)
    return fault


def _places(server: Server, flags: EngineFlags) -> dict[str, Place]:
    """The places in a text of the options of the plan, by their names."""
    out: dict[str, Place] = {}
    for flag in flags.flags:
        word = word_of(server, flag)
        name = (
            "model" if flag.key in _OF_MODEL else flag.option or (flag.engine_option and f"engine_options.{flag.engine_option}")
        )
        if name and word is not None and word.line:
            out.setdefault(name, _place(server, flag, word, name))
    return out


def _place(server: Server, flag: Flag | None, word: Word, name: str = "") -> Place:
    """The place of a flag, which stands before its value, else that of the word."""
    before = next((one for one, other in pairwise(server.words) if other is word), word)
    if flag is not None and before.text.startswith("-") and flags_of(server).find(before.text)[0] is flag:
        word = before
    return Place(line=word.line, column=max(1, word.spot.column), word=name)


def _judged(name: str, message: str, *, holds: bool) -> Judged:
    return Judged(name=name, unit="flag", limit=None, got=None, holds=holds, certain=not holds, message=message)


def _at(item: Judged, place: Place | None) -> Judged:
    """The finding at a place; where there is none, it stands at the server."""
    return item if place is None else replace(item, line=place.line, column=place.column)


def _told(server: Server, flags: EngineFlags) -> Iterator[Judged]:
    """The verdicts that need no plan: values that its engine refuses, and flags that it does not know."""
    for fault in server.faults:
        word = server.places.get(fault.partition(" ")[0])
        said = f"{brief(fault, 80)}: {flags.name} does not take it so, and will not start"
        yield _at(_judged("flags", said, holds=False), None if word is None else _place(server, None, word))
    releases = releases_listed(server, flags)
    for flag, said in zip(server.unknown, unknown_flags(server), strict=True):
        word = server.places.get(flag)
        # What is an entry of a chart may be one of the chart.
        refused = releases and any(each.text.partition("=")[0] == flag for each in server.words)
        known = (
            f"no release of {flags.name} from {releases[-1]} to {releases[0]} has {said}: it will not start" if refused else ""
        )
        yield _at(
            _judged("flags", known or f"not known of {flags.name}: {said}", holds=not known),
            None if word is None else _place(server, None, word),
        )


def _open(server: Server, flags: EngineFlags) -> Iterator[Fault]:
    """The options of a plan, but for the model, whose values the text leaves open."""
    for left in left_open(server, flags):
        error = OpenError(f"{left.flag.spelled} is left open: {brief(left.word.text, 60)}.", hint=left.hint)
        place = _place(server, left.flag, left.word)
        yield Fault(line=place.line, column=place.column, error=error)
