"""The check of a server that a deployment starts: where its findings stand, and what to change.

A change is settings of a plan, and what the engine is told for them (:mod:`hwcalc.launch.told`). It is planned as the text would have it before it
is offered: as flags in the text, as the command that the user types in place of this one, as both, or in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.check.baseline import Grown, no_growth
from hwcalc.check.changes import MOST_EDITS, NUMBERS, gain_of
from hwcalc.check.file import Check, Fault, Place, Required
from hwcalc.check.judge import judge, then_fail, verdict_on
from hwcalc.check.result import GROWTH, Edit, Judged, figures_of
from hwcalc.engines import find_engine
from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError, UncountedError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.launch.env_file import NAME as ENV_FILE
from hwcalc.launch.planned import (
    BEYOND,
    LAYOUT,
    ON_SERVER,
    BeyondError,
    TooFewGpusError,
    flags_of,
    gpus_taken,
    heeded,
    in_flags,
    is_on_server,
    planned,
    remedies,
    set_words,
    spelled,
    without_line,
    word_of,
    words_for,
)
from hwcalc.launch.read import LOAD
from hwcalc.launch.server import Server
from hwcalc.launch.told import key_of, keys_told, read_told, settings_told, written
from hwcalc.launch.values import number
from hwcalc.launch.words import Word
from hwcalc.model import OLLAMA, Note
from hwcalc.planner.advice import least_sensible
from hwcalc.planner.asked import read_options
from hwcalc.planner.solve import last_yes
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.engine_flags import EngineFlags, Flag
from hwcalc.profiles.gpus import find_gpu, node_label
from hwcalc.profiles.hardware_file import NODE
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.planner.result import Plan

OF_MODEL: Final = ("model", "repository", "file", "url")
"""Keys of flags that name the model."""
OF_HARDWARE: Final = {"gpu": "gpu", "gpus": "gpus_per_replica"}
"""Options of a plan, and the settings of servers that say the same."""
OF_SERVER: Final = {**OF_HARDWARE, **{option: key for key, option in LOAD.items()}}
"""Options of a plan, and what ``--set`` calls those of one server."""
Planner = Callable[[Check], Callable[..., "Plan"]]
"""Gives what plans a check, with some options changed."""
_STRETCHES: Final = re.compile(r"rope|overrid")
"""In the names of flags that change how long a model is."""
SLOWER: Final = "much slower"
"""What is said of an edit that nobody wants unasked, such as weights in host memory."""
_NO_CHANGE: Final = "no change was found with which it holds them"
_FITS: Final = Required(name="fits", limit=True, text="true")


class OpenError(UsageError):
    """A deployment does not say what a plan needs, such as its model or its accelerator. Exit 2."""

    type = "open"


class Held(Record):
    """The GPUs that a server takes where it surely fits, 0 where it does not; the option that accepts what grows then, how much is on the host, and
    whether the engine refuses the length all the same.
    """

    gpus: int = 0
    accepting: str = ""
    slower: str = ""
    refused: bool = False

    @property
    def holds(self) -> bool:
        """True if it surely fits, with a length that the engine takes."""
        return bool(self.gpus) and not self.refused


class ServerCheck(Check):
    """The check of a server. ``remarks`` are warnings.

    ``without_gpu`` says that an accelerator is all that it lacks, ``given`` are options of the user that count more than the text. ``command`` makes the
    command that checks the text with options and values of ``--set``, and without a limit of growth if another one is to be added; ``own`` are the options that ``--set`` says of this server
    alone, and ``shared`` those that the user gave for all. Variables from ``outside`` have the values that the user gave, or, ``beside``, those of a file that lies beside the text. One that is ``fitted`` is told to allow the longest requests that its pool holds, and one
    with too ``few`` GPUs cannot start. A load that is ``beyond`` what the text starts it for is a finding beside that of the text. ``grown`` compares
    its figures with a baseline. What its engine is told ``beside`` the text, and what is ``typed`` for that, is a part of each edit.
    ``others`` names the servers for which the word of a setting counts as well.
    """

    server: Server
    remarks: tuple[str, ...] = ()
    without_gpu: bool = False
    fitted: bool = False
    given: Mapping[str, Any] = MappingProxyType({})
    command: Callable[..., str] = str
    own: Collection[str] = ()
    shared: Mapping[str, Any] = MappingProxyType({})
    outside: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    few: TooFewGpusError | None = None
    beyond: BeyondError | None = None
    grown: Grown = no_growth
    beside: Mapping[str, str] = MappingProxyType({})
    typed: Mapping[str, str] = MappingProxyType({})
    others: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @property
    def document(self) -> Mapping[str, Any] | None:
        return self.server.to_dict()

    @cached_property
    def flags(self) -> EngineFlags:
        """The flags of its engine."""
        return flags_of(self.server)

    @cached_property
    def engine(self) -> Engine:
        """Its engine."""
        return find_engine(self.flags.engine)[0]

    # --- errors -------------------------------------------------------------------------------------------------------

    def failed(self, error: KvplanError) -> Fault:
        """An error at the model where that cannot be read, else at the server. A path that is not here is left open: it may be one of the server's."""
        here = Place(line=self.line, column=self.column, word="")
        error = in_flags(error, self.server, self.given)
        # The line is of a plan, which is no check of this text.
        error.hint = without_line(error.hint)
        place = self.places.get("model", here) if isinstance(error, (ModelNotFoundError, ConfigError)) else here
        named = set_words("model", "ORG/NAME", self.name)
        if isinstance(error, ModelNotFoundError) and is_on_server(self.model):
            error = OpenError(f"{error.message} {ON_SERVER}", hint=f"Add: {named}")
        elif isinstance(error, ModelNotFoundError) and self.model.startswith(OLLAMA):
            error = ModelNotFoundError(error.message, hint=f"{error.hint} Or name its model: {named}")
        return Fault(line=place.line, column=place.column, error=error)

    def refusal(self, error: KvplanError, planner: Planner) -> Judged | None:
        """The finding at the first flag of the text without which the engine would start, or else refuse another one; ``None`` where there is none.

        What kvplan does not know, and an option that the user gave, are none.
        """
        if not isinstance(error, (UsageError, UnsupportedError)) or isinstance(error, (OpenError, UncountedError)):
            return None
        culprit, (server, given) = None, self._on_enough
        for flag in self.flags.flags:
            word, key = word_of(self.server, flag), key_of(flag)
            if word is None or not word.line or key in OF_MODEL or flag.option in self.given:
                continue
            said = {name: value for name, value in server.settings.items() if name != key}
            extra = {name: value for name, value in server.extra.items() if name != key}
            try:
                planner(replace(self, options=planned(replace(server, settings=said, extra=extra), given).options))()
            except KvplanError as other:
                if culprit is None and other.message != error.message:
                    culprit = flag, word
            else:
                culprit = flag, word
                break
        if culprit is None:
            return None
        flag, word = culprit
        changes = remedies(error, self.server)
        error = in_flags(error, self.server, self.given)
        hint = without_line(error.hint)
        starting = [*self._sizes(key_of(flag), planner)] if flag.option in LAYOUT else []
        sizes, asked = ", ".join(map(str, starting)), number(word.text) or 0
        asked = asked if self.few is None else asked * self.few.gpus // self.few.taken
        # The largest that takes no more GPUs first, then the next above.
        near = sorted(starting, key=lambda size: (size > asked, abs(size - asked)))
        changes += [self._told({flag.option: size}) for size in near if flag.option is not None]
        # What the hint offers is planned, and stands among the edits if it holds.
        hint = f"Sizes with which it starts: {sizes}" if sizes else "" if changes else hint
        said_of = (
            f"{flag.spelled} {brief(word.text, 40)}: {self.engine.label} will not start. {error.message.rstrip('.')}. {hint}"
        )
        found = placed_at(finding("flags", said_of.rstrip(" ."), holds=False), place_of(self.server, flag, word))
        held = ((told, self._held_with(told, {}, planner(self))) for told in changes)
        made = ((self._made(self._edit({}, told, one.slower), {}, one), one) for told, one in held if one.gpus)
        edits = (then_fail(edit, ["length"] if one.refused else []) for edit, one in islice(made, MOST_EDITS))
        return self._beside(self.told, replace(found, edits=tuple(edits)))[-1]

    def _sizes(self, key: str, planner: Planner) -> Iterator[int]:
        """The values of a parallel size, of those on a node, with which the engine starts."""
        server, given = self._on_enough
        for size in range(1, NODE + 1):
            with suppress(KvplanError):  # what the engine refuses is not offered
                sized = replace(server, settings={**server.settings, key: size})
                planner(replace(self, options=planned(sized, given).options))()
                yield size

    @property
    def _on_enough(self) -> tuple[Server, Mapping[str, Any]]:
        """The server and what the user gave; where it has too few GPUs, without their number, so that it has as many as its sizes take."""
        if self.few is None:
            return self.server, self.given
        return self._with({"gpus_per_replica": None}), {**self.given, "gpus": None}

    # --- findings -----------------------------------------------------------------------------------------------------

    def settled(
        self,
        judged: Sequence[Judged],
        plan: Plan,
        planner: Planner,
        more: Sequence[Judged] = (),
        search: Callable[[Check], str] = lambda _: "",
    ) -> list[Judged]:
        """The verdicts on the text itself, and that of the plan at the flag that would have to change; in its place, a length that the engine refuses.

        Behind them are ``more`` than its own. ``search`` makes the command that looks for other hardware for a check.
        """
        replan = planner(self)
        refused = self._refused(plan)
        alone = replace(self, given={name: value for name, value in self.given.items() if name not in NUMBERS})
        blamed = self if self.beyond is None else alone
        found = [blamed.blamed(item, plan, replan) for item in (*(() if refused else judged), *more)]
        if refused or self.beyond is not None:
            first = self._shorter(refused, plan, planner) if refused else self._beyond(plan, planner, search)
            # What grows is mended by flags that mend the length too; the option that accepts it does not.
            whole = {edit.yaml for item in found for edit in item.edits if edit.settings} if refused else ()

            def then(edit: Edit) -> Edit:
                mends = edit.yaml in whole or (edit.told and self._held_with(edit.told, {}, replan).holds)
                return edit if mends else then_fail(edit, [first.name])

            found = [first, *(replace(item, edits=tuple(map(then, item.edits))) for item in found)]
        return self._beside(self.told, *found)

    def _beside(self, told: Sequence[Judged], *findings: Judged) -> list[Judged]:
        """What is told of the text itself, and the findings, whose edits say which of it still fails then."""
        still = [item.name for item in told if not item.holds]
        edited = (replace(item, edits=tuple(then_fail(edit, still) for edit in item.edits)) for item in findings)
        return [*told, *edited]

    def started(self, plan: Plan, replan: Callable[..., Plan]) -> Plan:
        """The plan of the longest request that the pool holds, with a warning, where the text names no length and the engine starts all the same."""
        longest = plan.held_seq
        does = "takes the longest that fits" if self.fitted else self.engine.facts.short_pool
        if not does or longest is None or "batch" in self.options:
            return plan
        flag = self.engine.command.flag("seq", longest).partition(" ")[0]
        message = f"{self.engine.label} starts, and {does}: its pool holds requests of {longest:,} tokens, not the model's {plan.request.seq:,}."
        told = f"Name the length that users need, as {flag} in the file or as --seq of kvplan check, to see whether it fits."
        made = replan(advise=True, seq=longest)
        return replace(made, warnings=(*made.warnings, Note(code="short-pool", message=f"{message} {told}")))

    def unplanned(self, planner: Planner) -> Sequence[Judged]:
        """The verdicts on the text itself. Too few GPUs are told with the verdict on enough, and with the largest sizes for which they are enough. What
        the engine refuses on enough of them is told instead.
        """
        if self.few is None:
            return self.told
        *others, item = self.told
        enough, said = self.few.taken, self.few.message
        try:
            told = planned(*self._on_enough)
            plan = planner(replace(self, model=told.model, options=told.options))()
            fit, longer = plan.fit, self._refused(plan)
        except KvplanError as error:
            refused = replace(self, told=tuple(others)).refusal(error, planner)
            if refused is not None:
                return [*others, refused]
        else:
            if fit is not None:
                hint = item.message.removeprefix(said) if fit.fits and not longer else ""
                item = replace(item, message=f"{said} With {enough:,} GPUs: {longer or f'{fit.verdict.text}.'}{hint}")
        return self._beside(others, replace(item, edits=tuple(self._fewer(self.few.gpus, planner))))

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
        needed = plan.request.environment and heeded(plan, self.server.variables) is plan
        return longer if needed and not self._stretched else ""

    @property
    def _stretched(self) -> bool:
        """True if the model may be stretched by a flag, which no plan reads."""
        server = self.server
        return any(_STRETCHES.search(name) for name in (*server.extra, *server.unplanned, *server.irrelevant))

    def _beyond(self, plan: Plan, planner: Planner, search: Callable[[Check], str]) -> Judged:
        """The finding of a load that the text does not allow, at the flag that says so, with the flags and the load that hold."""
        error, replan = self.beyond, planner(self)
        assert error is not None
        option, size = error.option, error.sizes["seq"]
        slots = error.sizes["batch"] or 1
        in_slots = self.engine.facts.slots_option

        def told(tokens: int) -> dict[str, str]:
            sizes = {**error.sizes, "seq": tokens}
            return self._slots_told(slots, tokens, keep=option == "seq") if in_slots else self._told({option: sizes[option]})

        larger, typed = told(size), dict[str, str]()
        held, longest = self._held_with(larger, typed, replan), plan.model.max_position_embeddings or 0
        message = error.message
        if option == "seq" and error.allowed < longest < size and not self._stretched:
            message += f"; the model's maximum is {longest:,}"
            if not held.holds:
                larger, typed = told(longest), {"seq": str(longest)}
                held = self._held_with(larger, typed, replan)
        edits = [self._made(self._edit({}, larger, held.slower), typed, held)] if held.holds else []
        if in_slots and option == "batch" and (not held.holds or held.slower):
            edits = [*self._in_smaller_slots(size * error.allowed // slots, size, slots, replan), *edits]
        if not held.holds or held.slower or typed:
            edits += self._most_slots(size, slots, replan, more_than=error.allowed if option == "batch" else 0)
            edits += self._edits_beside(self._edit({}, larger), typed, planner, more_than={option: error.allowed})
        smaller = {option: str(error.allowed)}
        held = self._held_with({}, smaller, replan)
        if held.holds and error.allowed >= least_sensible(error.sizes[option]):
            edits.insert(MOST_EDITS - 1, self._typed(self._edit(smaller), smaller, held))
        if not edits and plan.fit is not None:
            command = search(replace(self, options={**self.options, **{name: one for name, one in error.sizes.items() if one}}))
            message += f"; {_NO_CHANGE}{f'. Search further: {command}' if command else ''}"
        # What holds all that is asked for comes first, and what makes it slower last.
        edits.sort(key=lambda edit: (SLOWER in edit.effect, not edit.settings.keys().isdisjoint(NUMBERS)))
        word = words_for(self.flags, self.server, option)[1]
        item = finding("length" if option == "seq" else "users", message, holds=False)
        place = None if word is None or not word.line else place_of(self.server, self.flags.flag_of.get(option), word)
        return replace(placed_at(item, place), edits=_once(edits))

    def _edits_beside(
        self, first: Edit, typed: Mapping[str, str], planner: Planner, more_than: Mapping[str, int] = MappingProxyType({})
    ) -> Iterator[Edit]:
        """The ``first`` edit if the server surely fits with it, else edits with which it does besides. One of ``seq`` or ``batch`` leaves ``more_than`` so many."""
        with suppress(KvplanError):  # what the engine refuses is not offered
            settings, extra = settings_told(self.flags, first.told)
            server = replace(self._with(settings), extra={**self.server.extra, **extra})
            given = {**self.given, **typed}
            made = planned(server, given)
            changed = {"model": made.model, "options": made.options, "given": given, "beyond": None, "few": None}
            other = replace(self, server=server, beside=first.told, typed=typed, **changed)
            replan = planner(other)
            plan = replan(advise=True)
            if plan.fit is None or plan.fit.verdict is Verdict.FITS:
                yield self._made(replace(first, effect="; ".join(filter(None, (first.effect, slower(plan))))), typed)
                return
            [item] = judge((_FITS,), plan, replan, self.places, sure=True)
            for edit in other.blamed(item, plan, replan).edits:
                left = read_options({name: edit.settings[name] for name in more_than if edit.settings.get(name)}).values
                if all(left[name] > least for name, least in more_than.items() if edit.settings.get(name)):
                    yield replace(edit, settings={**first.settings, **edit.settings})

    def _in_smaller_slots(self, tokens: int, before: int, slots: int, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit of more slots in the memory that there is: each of so many ``tokens``, which are what the user sends, or half of those ``before``."""
        if tokens >= (self._given("seq") or before // 2):
            told = self._told({self.engine.facts.users_option: slots})
            held = self._held_with(told, {}, replan)
            effect = "; ".join(filter(None, (f"{tokens:,} tokens a slot", held.slower)))
            if held.holds:
                yield self._made(self._edit({}, told, effect), {}, held)

    def _fewer(self, gpus: int, planner: Planner) -> Iterator[Edit]:
        """The edits of a single parallel size with which so many GPUs are enough, each alone where it surely fits so, else with what it needs besides."""
        taken = gpus_taken(self.server.settings)
        for name in LAYOUT:
            hardware = {*OF_HARDWARE, *LAYOUT} - {name}
            size = self.server.settings.get(name, 1)
            for fewer in range(gpus * size // taken, 0, -1) if taken and size > 1 else ():
                with suppress(KvplanError):  # what the engine refuses is not offered
                    told = planned(self._with({name: fewer}), self.given)
                    plan = planner(replace(self, model=told.model, options=told.options))()
                    options: dict[str, Any] = {name: fewer}
                    if self._refused(plan):
                        options["seq"] = plan.model.max_position_embeddings
                    settings = {option: str(value) for option, value in options.items()}
                    edit = self._edit(settings, self._told(options), "" if plan.fit is not None else "if that fits")
                    # More GPUs are what the finding itself asks for.
                    yield from islice(
                        (each for each in self._edits_beside(edit, {}, planner) if each.settings.keys().isdisjoint(hardware)), 2
                    )
                    break

    def _shorter(self, refused: str, plan: Plan, planner: Planner) -> Judged:
        """The finding of a length that the engine refuses, with the largest that it takes and that fits, and what else holds that of the model."""
        longest, replan = plan.model.max_position_embeddings or 0, planner(self)
        option, knobs = self.engine.facts.longest_option, self.options.get("engine_options", {})
        allowed = int(knobs.get(option, 0))

        def of_length(tokens: int) -> tuple[Edit, Mapping[str, str], Plan]:
            # What users send stays as it is, if it is no longer than that; and so does what the server allows.
            typed = {"seq": str(tokens)} if "seq" in self.given and plan.request.seq > tokens else {}
            told = self._told({"seq": tokens}) if "seq" not in self.given or allowed > tokens else {}
            of_server: dict[str, Any] = {"engine_options": {**knobs, option: str(tokens)}} if option in knobs else {}
            of_server |= {"seq": tokens} if not of_server or plan.request.seq > tokens else {}
            return self._edit({"seq": str(tokens)}, told), typed, replan(**of_server)

        edits, (edit, typed, shorter) = list[Edit](), of_length(longest)
        if shorter.fit is not None and shorter.fit.verdict is not Verdict.FITS:
            refused += f" With {longest:,} tokens it {verdict_on(shorter)}"
            edits += self._edits_beside(edit, typed, planner)
            most = shorter.fit.max_seq or 0
            if least_sensible(longest) <= most < longest:
                of_longest = shorter
                edit, typed, shorter = of_length(most)
                edit = self._with_expected(edit, of_longest)
            else:
                edit = replace(edit, effect=f"then: {shorter.fit.verdict.text}")
        if not edits or shorter.fit is None or shorter.fit.verdict is Verdict.FITS:
            accepting = next((each.accepting for item in self.grown(figures_of(shorter)) for each in item.edits), "")
            # It is said beside the flag: the GPUs are those of the text.
            edits.insert(0, self._made(edit, typed, Held(accepting=accepting)))
        found = placed_at(finding("length", refused, holds=False), self.places.get("seq"))
        return replace(found, edits=_once(edits))

    def blamed(self, item: Judged, plan: Plan, replan: Callable[..., Plan]) -> Judged:
        """The verdict at the first flag of the text that one of its edits changes, else at the server. Each edit holds as it is told."""
        if item.name.startswith(GROWTH):
            # Less than before is said by flags too; what accepts the growth is an option of the check.
            tried = ((each, self._holding(self._in_engine(each), replan) if each.settings else each) for each in item.edits)
            # One that grows all the same is none.
            kept = (edit for each, edit in tried if edit is not None and (each.accepting or not edit.accepting))
            return replace(item, edits=tuple(kept))
        if item.name != "fits" or plan.fit is None or (item.holds and item.certain):
            return item
        users = self.flags.flag_of.get(self.engine.facts.users_option) if "batch" not in self.options else None
        # A text that does not say how many are served at once is not mended by serving fewer.
        asked = (each for each in map(self._in_engine, item.edits) if users is None or users.spelled not in each.told)
        told = (self._holding(self._with_expected(edit, plan), replan) for edit in asked)
        slots = self._most_slots(self._given("seq") or plan.request.seq, plan.request.batch, replan)
        held, waiting = [*filter(None, told), *slots], self._waiting(plan)
        at_once = [edit for edit in held if waiting is not None and edit.told.keys() == {waiting.spelled}]
        # Of as many GPUs, it changes neither weights nor cache.
        held = [*([] if waiting is None or at_once else self._more_at_once(waiting, plan, replan)), *held]
        # Another length or fewer at once come first, as elsewhere; where others wait for a flag, that flag.
        held = sorted(held, key=lambda edit: (edit not in at_once, not edit.settings.keys() <= {*NUMBERS}))
        edits = tuple(self._by_gpus({edit.flags or edit.yaml: edit for edit in (*self._on_all_gpus(replan), *held)}.values()))
        blamed = ((self.flags.find(name)[0], self._word(name)) for edit in edits for name in edit.told)
        first = next((place_of(self.server, flag, word) for flag, word in blamed if word is not None and word.line), None)
        if waiting is not None:
            word, option = word_of(self.server, waiting), self.engine.facts.users_option
            said = option if word is None else f"{waiting.spelled} {brief(word.text, 40)}"
            # Where it is the memory too that is short, the reason may be that alone.
            more = "" if option in item.message else f"; {said} lets {self._at_once(plan):,} sequences run at once"
            enough = item.message.startswith(plan.reason) and not more
            item = replace(item, message=f"{item.message.replace(option, said, 1)}{more}")
            if enough:
                # It fits, and is told to serve fewer.
                item = replace(item, name="users", unit="flag")
                first = first if word is None else place_of(self.server, waiting, word)
        return replace(placed_at(item, first or self.places.get("model")), edits=edits)

    def _waiting(self, plan: Plan) -> Flag | None:
        """The flag of how many are served at once, where that is fewer than there are users; ``None`` where none of them waits for that."""
        facts, fit = self.engine.facts, plan.fit
        if facts.slots_option or fit is None or fit.fits:
            return None
        fewer = fit.expected_limiting == facts.users_option or 0 < self._at_once(plan) < plan.request.batch
        return self.flags.flag_of.get(facts.users_option) if fewer else None

    def _at_once(self, plan: Plan) -> int:
        """The sequences that all replicas run at once, as the engine is told; 0 where it is told no number."""
        return (number(self.options.get("engine_options", {}).get(self.engine.facts.users_option)) or 0) * plan.request.dp

    def _more_at_once(self, flag: Flag, plan: Plan, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit that serves all users at once by this flag, with the smallest tensor-parallel size for which that surely fits."""
        users = self._given("batch") or plan.request.batch
        size, replicas, most = plan.request.tp, plan.request.dp, NODE // plan.request.pp
        for tp in (size << times for times in range(NODE.bit_length()) if size << times <= most):
            told = {flag.spelled: str(-(-users // replicas))} | ({} if tp == size else self._told({"tp": tp}))
            held = self._held_with(told, {}, replan)
            if held.holds and not held.slower:
                settings = {f"engine_options.{self.engine.facts.users_option}": told[flag.spelled]}
                settings |= {} if tp == size else {"tp": str(tp)}
                yield self._made(self._edit(settings, told, f"{users:,} at once"), {}, held)
                return

    def _by_gpus(self, edits: Collection[Edit]) -> Iterator[Edit]:
        """The edits, of which those that are flags alone have the fewest GPUs first, and behind them those that make it slower."""
        given = self.server.settings.get("gpus_per_replica")
        has = given if isinstance(given, int) else gpus_taken(self.server.settings) or 1

        def gpus(edit: Edit) -> tuple[bool, int]:
            settings = {**self.server.settings, **settings_told(self.flags, edit.told)[0]}
            return SLOWER in edit.effect, max(has, gpus_taken(settings) or 0)

        ordered = iter(sorted((edit for edit in edits if edit.flags), key=gpus))
        yield from (next(ordered) if edit.flags else edit for edit in edits)

    def _stands(self, name: str, value: str) -> bool:
        """True if the text says this value of a flag already: nobody needs to write it."""
        word = self._word(name)
        return word is not None and word.text == value

    def _word(self, name: str) -> Word | None:
        """The word of the text that says the value of this flag, variable or parameter; ``None`` where it does not."""
        return self.server.places.get(keys_told(self.flags, name)[0])

    # --- edits --------------------------------------------------------------------------------------------------------

    def _with(self, settings: Mapping[str, Any]) -> Server:
        """The server with other settings."""
        return replace(self.server, settings={**self.server.settings, **settings})

    def _told(self, options: Mapping[str, Any]) -> dict[str, str]:
        """What the engine is told for options of a plan, or of the engine: by a variable where the text says it so, and not by a parameter."""
        told = [
            pair
            for option, one in options.items()
            for pair in read_told(self.flags, self.engine.command.flag(option, one)).items()
        ]
        variables = {
            row.key: row.name for row in self.flags.environment if any(f"{row.name}=" in each for each in self.server.variables)
        }
        of_key = {row.name: variables.get(row.key) for row in self.flags.parameters if row.key}
        return {of_key.get(name) or name: value for name, value in told}

    @staticmethod
    def _edit(settings: Mapping[str, str], told: Mapping[str, str] = MappingProxyType({}), effect: str = "") -> Edit:
        """The edit of these settings, which the engine is told so."""
        words = written(told)
        yaml = "\n".join(f"{name}: {value}" for name, value in settings.items()) or words
        return Edit(yaml=yaml, effect=effect, flags=words, settings=settings, told=told)

    def _in_engine(self, edit: Edit) -> Edit:
        """The edit with what the engine is told: all its parallel sizes, and a length by the flag that says it, where the text does, and not the user."""
        told = read_told(self.flags, edit.flags)
        if told:
            # A command leaves out sizes of 1, and the text may have others.
            told |= self._told(
                {name: 1 for name in LAYOUT if edit.settings.get(name) == "1" and self.server.settings.get(name, 1) != 1}
            )
        elif edit.settings.keys() <= {"seq", "dtype"}:
            told = self._told({name: value for name, value in edit.settings.items() if name == "dtype"})
            # Where the text itself is to allow more, it allows what is asked for.
            if "seq" in edit.settings and ("seq" not in self.given or self.beside):
                length = read_options({"seq": edit.settings["seq"]}).values["seq"]
                told |= self._slots_told(self.options.get("batch", 1), length, keep=True)
        # A flag has the exact number, which is all that is said of a length.
        effect = "" if told and "seq" in edit.settings.keys() - self.given.keys() else edit.effect
        return replace(edit, told=told, flags=written(told), effect=spelled(effect, self.server, self.given))

    def _with_expected(self, edit: Edit, plan: Plan) -> Edit:
        """The edit of a length, which surely fits, with what each slot has, or with the length that is expected to fit and may not."""
        if edit.settings.keys() != {"seq"} or plan.fit is None:
            return edit
        length, expected = read_options({"seq": edit.settings["seq"]}).values["seq"], plan.fit.expected_max_seq or 0
        if self.engine.facts.slots_option:
            effect = f"{length:,} tokens a slot" if plan.request.batch > 1 else ""
        else:
            effect = f"surely; {expected:,} tokens expected" if expected > length else ""
        return replace(edit, effect="; ".join(filter(None, (effect, edit.effect))))

    def _given(self, name: str) -> int:
        """The length or the users that the user gave; 0 where none are given."""
        return read_options({name: self.given[name]}).values[name] if name in self.given else 0

    def _slots_told(self, slots: int, seq: int, *, keep: bool = False) -> dict[str, str]:
        """What a server is told that has so many slots, which it may ``keep``, each of so many tokens."""
        facts = self.engine.facts
        # Where a flag says the tokens, it is those of all slots.
        tokens = {facts.slots_option: seq * slots} if facts.slots_option in self.flags.flag_of else {"seq": seq}
        told = self._told(tokens | ({} if keep else {facts.users_option: slots}))
        return {name: value for name, value in told.items() if name in self.beside or not self._stands(name, value)}

    def _most_slots(self, seq: int, fewer_than: int, replan: Callable[..., Plan], *, more_than: int = 0) -> Iterator[Edit]:
        """The edit of the most slots of so many tokens that surely fit on the GPU, fewer than these, where an engine has memory for each of its slots."""
        users = self._given("batch")

        def typed(slots: int) -> dict[str, str]:
            return {"batch": str(slots)} if users > slots else {}

        def held(slots: int) -> Held:
            return self._held_with(self._slots_told(slots, seq), typed(slots), replan)

        def fits(slots: int) -> bool:
            found = held(slots)
            return found.holds and not found.slower

        most = last_yes(fits, fewer_than - 1, fewer_than // 2) if self.engine.facts.slots_option and fewer_than > 1 else 0
        # Who asks for a length alone may be served with a single slot of it.
        least = 1 if "seq" in self.given and not users else least_sensible(users or fewer_than)
        if most >= least and most > more_than:
            edit = self._edit({"batch": str(most)}, self._slots_told(most, seq), "the most slots that surely fit")
            yield self._made(edit, typed(most), held(most))

    def _on_all_gpus(self, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit of the tensor-parallel size that takes all GPUs of the text, some of which are idle, where it fits so."""
        given, taken = self.server.settings.get("gpus_per_replica"), gpus_taken(self.server.settings)
        if not isinstance(given, int) or not taken or given == taken or given % taken or "tp" not in self.flags.flag_of:
            return
        size = self.server.settings.get("tp", 1) * given // taken
        edit = self._edit({"tp": str(size)}, self._told({"tp": size}), f"all {given:,} GPUs of the file")
        held = self._held_with(edit.told, {}, replan)
        if held.holds:
            yield self._made(edit, {}, held)

    def _holding(self, edit: Edit, replan: Callable[..., Plan]) -> Edit | None:
        """The edit as the flags with which the server surely fits, or as the command that the user types in place of this one, or as both.

        The user types the load, and hardware that the text does not name. What only another checkpoint or another text does is told in words. ``None``
        for what can be told in none of these ways.
        """
        held = self._held_with(edit.told, {}, replan) if edit.told else Held()
        if held.holds:
            return self._made(edit, {}, held)
        counts = isinstance(self.server.settings.get("gpus_per_replica"), int)
        free = () if edit.told else (*NUMBERS, *(() if counts else ("gpus",)))
        typed = {name: text for name, text in edit.settings.items() if text is not None and (name in self.given or name in free)}
        if not typed:
            return self._in_words(edit)
        whole = typed.keys() == edit.settings.keys() and not edit.told.keys() & self.beside.keys()
        held = self._held_with({} if whole else edit.told, typed, replan) if whole or edit.told else held
        if not held.holds:
            return None
        return self._typed(replace(edit, told={}, flags=""), typed, held) if whole else self._made(edit, typed, held)

    def _in_words(self, edit: Edit) -> Edit | None:
        """The edit of another checkpoint, or of other accelerators in the file, in words, with flags for the rest; ``None`` for flags that do not hold,
        and beside a load that is to be typed.
        """
        if self.typed:
            return None
        settings, said, effect = edit.settings, list[str](), edit.effect
        format_ = settings.get("weights")
        if format_ and not self.engine.weights.are_mixes and not self.engine.command.flag("weights", format_):
            name = f"{self.model.rpartition('/')[2]}-{format_.upper()}"
            said, effect = [f"a checkpoint in {format_.upper()}: search the Hub for {name}"], gain_of(effect)
        many, of_text = int(settings.get("gpus") or 0), self.server.settings.get("gpus_per_replica")
        if settings.get("gpu"):
            said.append(f"{f'{many} x ' if many else ''}{self._as_labelled(settings['gpu'])} in the file")
            effect = "; ".join(filter(None, (self._also("gpu"), effect)))
        elif many and not (edit.told and (of_text is None or of_text >= many)):
            said.append(f"{many:,} GPUs in the file")
        names = [name.rpartition(".")[2] for name, value in settings.items() if value is None]
        if not said and not names:
            return None if edit.told else edit
        without = "".join(f" without {self.flags.flag_of[name].spelled}" for name in names if name in self.flags.flag_of)
        words = ", ".join(filter(None, (*said, self._whole(edit).flags)))
        return replace(edit, yaml=f"{words}{without}".strip(), effect=effect, flags="", told={})

    def _as_labelled(self, gpu: str) -> str:
        """The accelerator by the label of its nodes, where the text names its own so."""
        planned_on, stated = self.options.get("gpu"), self.server.settings.get("gpu")
        if planned_on is None or stated != node_label(find_gpu(planned_on)):
            return gpu
        label = node_label(find_gpu(gpu))
        with suppress(KvplanError):
            return label if find_gpu(label).id == gpu else gpu
        return gpu

    def _also(self, key: str) -> str:
        """Which other servers the word is of that says a setting; empty where it is of this one alone."""
        others = self.others.get(key, ())
        return f"also of {brief(', '.join(others), 80)}" if others else ""

    def _made(self, edit: Edit, typed: Mapping[str, str], held: Held | None = None) -> Edit:
        """The edit that holds with options that are ``typed`` and so many GPUs: more than it has are given to the server where it got them.

        A value that a variable of the text has is to be written there.
        """
        edit, typed = self._whole(edit), {**self.typed, **typed}
        words = [(keys_told(self.flags, name)[0], word) for name in edit.told if (word := self._word(name)) is not None]
        said = (", ".join(filter(None, (self.variable_at(word), self._also(key)))) for key, word in words)
        stands = ", ".join(dict.fromkeys(filter(None, said)))
        edit = replace(edit, effect="; ".join(filter(None, (stands, edit.effect))))
        given, gpus = self.given.get("gpus"), 0 if held is None else held.gpus
        edit = edit if held is None else replace(edit, accepting=held.accepting)
        if given is not None and gpus > int(given):
            typed = {**typed, "gpus": str(gpus)}
        elif isinstance(of_text := self.server.settings.get("gpus_per_replica"), int) and gpus > of_text:
            edit = replace(edit, effect="; ".join(filter(None, (edit.effect, f"with {gpus:,} GPUs in the file"))))
        elif given is None and of_text is None and gpus > (gpus_taken(self.server.settings) or gpus):
            edit = replace(edit, effect="; ".join(filter(None, (edit.effect, f"with {gpus:,} GPUs"))))
        return self._typed(edit, typed, held or Held()) if typed else edit

    def _whole(self, edit: Edit) -> Edit:
        """The edit with what its engine is told beside it."""
        told = {name: value for name, value in self.beside.items() if not self._stands(name, edit.told.get(name, value))}
        told |= {name: value for name, value in edit.told.items() if name in told or name not in self.beside}
        return replace(edit, told=told, flags=written(told))

    def variable_at(self, word: Word) -> str:
        """The variable that has the value of a word, and where it is set; empty where the word has it itself."""
        written = word.raw if word.said is None else word.said.spot.written
        given = (name for name in sorted(self.outside) if re.search(rf"\$[({{]*{re.escape(name)}(?!\w)", written))
        of_text = "" if word.said is None else f"{word.said.name} in line {word.said.spot.line}"
        return next((f"{name} of {ENV_FILE if name in self.beside else '--set or --env-file'}" for name in given), of_text)

    def _typed(self, edit: Edit, typed: Mapping[str, str], held: Held) -> Edit:
        """The edit as the command that checks the text with options that are ``typed`` beside what the user gave, and as what the text says then."""
        typed = {**self.typed, **typed}
        sets = {f"{self.name}.{OF_SERVER[name]}": text for name, text in typed.items() if name in self.own}
        options = {**self.shared, **{name: text for name, text in typed.items() if name not in self.own}}
        said = filter(None, (self._whole(edit).flags, self.command(options, sets, grows=bool(held.accepting))))
        return replace(edit, yaml=" in the file and ".join(said), flags="", told={})

    def _held_with(self, told: Mapping[str, str], typed: Mapping[str, str], replan: Callable[..., Plan]) -> Held:
        """How the server fits once its engine is told this, and with what is typed in place of what the user gave."""
        with suppress(KvplanError):  # what the engine refuses is not offered
            settings, extra = settings_told(self.flags, told)
            # A text that gives it fewer GPUs has to give it more, which no flag says.
            of_text = {name: value for name, value in self.server.settings.items() if name != "gpus_per_replica"}
            server = replace(self.server, settings={**of_text, **settings}, extra={**self.server.extra, **extra})
            given = {name: value for name, value in self.given.items() if name != "gpus" or not settings.keys() & LAYOUT}
            options = planned(server, {**given, **typed}).options
            changed = {**dict.fromkeys(self.options), **options}
            plan = replan(**{name: value for name, value in changed.items() if name not in ("revision", "assume", "draft")})
            if plan.fit is not None and plan.fit.verdict is Verdict.FITS:
                grown = (edit.accepting for item in self.grown(figures_of(plan)) for edit in item.edits)
                accepting, refused = next(grown, ""), bool(self._refused(plan))
                return Held(gpus=gpus_taken(options) or 0, accepting=accepting, slower=slower(plan), refused=refused)
        return Held()


def slower(plan: Plan) -> str:
    """What lies in host memory, which makes it slower; empty where nothing does."""
    return f"{SLOWER}: {plan.places}" if plan.partly_on_host else ""


def _once(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits, each once, as many as are offered."""
    told = dict[str, Edit]()
    for edit in edits:
        told.setdefault(edit.flags or edit.yaml, edit)
    return tuple(islice(told.values(), MOST_EDITS))


def finding(name: str, message: str, *, holds: bool) -> Judged:
    """A verdict on a text."""
    return Judged(name=name, unit="flag", limit=None, got=None, holds=holds, certain=not holds, message=message)


def placed_at(item: Judged, place: Place | None) -> Judged:
    """The finding at a place; where there is none, it stands at the server."""
    return item if place is None else replace(item, line=place.line, column=place.column)


def place_of(server: Server, flag: Flag | None, word: Word, name: str = "") -> Place:
    """The place of a flag, which stands before its value, else that of the word; of a variable's value where the text sets it."""
    if word.said is not None and word.said.spot.line:
        return Place(line=word.said.spot.line, column=max(1, word.said.spot.column), word=name)
    before = next((one for one, other in pairwise(server.words) if other is word), word)
    if flag is not None and before.text.startswith("-") and flags_of(server).find(before.text)[0] is flag:
        word = before
    return Place(line=word.line, column=max(1, word.spot.column), word=name)
