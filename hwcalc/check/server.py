"""The check of a server that a deployment starts: what is wrong, where it stands in the text, and the edits that mend it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.check.changes import MOST_EDITS, NUMBERS, OF_SLOT, joined, merged
from hwcalc.check.file import Check, Fault, Place, Required
from hwcalc.check.judge import NO_CHANGE, judge, then_fail, verdict_on
from hwcalc.check.result import GROWTH, Edit, Judged, KeyChange
from hwcalc.check.server_edits import OF_HARDWARE, OF_SERVER, Held, ServerEdits, once, slower, told_by
from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError, UncountedError, UnsupportedError, UsageError
from hwcalc.launch.planned import (
    LAYOUT,
    ON_SERVER,
    BeyondError,
    Planned,
    TooFewGpusError,
    flags_of,
    gpus_taken,
    heeded,
    is_on_server,
    planned,
    set_words,
    word_of,
    words_for,
)
from hwcalc.launch.server import Server
from hwcalc.launch.spelled import in_flags, remedies, without_line
from hwcalc.launch.told import key_of, settings_told, written
from hwcalc.launch.values import number
from hwcalc.launch.words import Word
from hwcalc.model import OLLAMA, Note
from hwcalc.planner.advice import least_sensible
from hwcalc.planner.asked import read_options
from hwcalc.planner.result import BEYOND
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.engine_flags import Flag
from hwcalc.profiles.hardware_file import NODE
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan

OF_MODEL: Final = ("model", "repository", "file", "url")
"""Keys of flags that name the model."""
Planner = Callable[[Check], Callable[..., "Plan"]]
"""Gives what plans a check, with some options changed."""
_NO_CHANGE: Final = "no change was found with which it holds them"
_FAULTS: Final = 4
"""Faults of one server that are mended together."""
_MOST_OF_SIZE: Final = 2
"""Edits beside one that mends a fault of its own."""
_FITS: Final = Required(name="fits", limit=True, text="true")


class OpenError(UsageError):
    """A deployment does not say what a plan needs, such as its model or its accelerator: ``sets`` are what ``--set`` would give a value. Exit 2."""

    type = "open"

    def __init__(self, message: str, *, hint: str = "", sets: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message, hint=hint)
        self.sets = sets


class ServerCheck(ServerEdits):
    """The check of a server. ``remarks`` are warnings.

    ``without_gpu`` makes the fault that it lacks an accelerator, with the command that also sets what else it lacks. One that is
    ``fitted`` is told to allow the longest requests that its pool holds, and one with too ``few`` GPUs cannot start. A load that is ``beyond`` what the text starts it for is a finding beside that of the text.
    """

    remarks: tuple[str, ...] = ()
    without_gpu: Callable[[Mapping[str, str]], Fault] | None = None
    fitted: bool = False
    own_length: str = ""
    few: TooFewGpusError | None = None
    beyond: BeyondError | None = None

    @property
    def named_apart(self) -> str:
        """The name by which a setting is given to this server alone; empty if it is the only one of its text."""
        return self.name if self.own is OF_SERVER else ""

    @property
    def document(self) -> Mapping[str, Any] | None:
        return self.server.to_dict()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The options that are asked for: the load of the user, and what the text allows, also where it allows less and that is planned."""
        asked, knob = dict(self.options), self.engine.facts.longest_option
        # What users send is no length of a text that names none.
        allowed = asked.get("engine_options", {}).get(knob) or (None if self.own_length else asked.get("seq"))
        if self.beyond is not None and not self.engine.facts.slots_option:
            # Slots are those of the text, whatever users send.
            option = self.beyond.option
            allowed = self.beyond.allowed if option == "seq" else allowed
            # What no flag of its own allows is that of the text.
            asked |= {name: self.given[name] for name in NUMBERS if name in self.given and (knob or name != option)}
        if knob and allowed is not None:
            asked["engine_options"] = {**asked.get("engine_options", {}), knob: str(allowed)}
            if "seq" not in self.given:
                del asked["seq"]
        return asked

    def word_for(self, key: str) -> str:
        name = key.removeprefix("engine_options.")
        if name == "seq" and self.engine.facts.longest_option:
            # What the text allows is another key.
            return key
        if name == "seq" and self.engine.facts.slots_option in self.flags.flag_of:
            return OF_SLOT
        # Where no slots are told, the users are those of the load.
        typed = "users" if name == "batch" and not self.engine.facts.slots_option else key
        slots = self.flags.flag_of.get("slots") if name == "batch" else None
        # Of the flags of this name, such as --dtype, another one may be the option of a plan.
        flag = slots or next((each for each in self.flags.flags if each.option == key), None) or self.flags.flag_of.get(name)
        if flag is None and name in NUMBERS:
            # A variable or a parameter says it, where the text has one.
            return next((each for each in self._told({name: 1}) if self._word(each) is not None), typed)
        return typed if flag is None or (flag is not slots and name == key and name in self.given) else flag.spelled

    def known(self, changes: Sequence[KeyChange]) -> Sequence[KeyChange]:
        changes = [replace(change, after=self._said_of(change)) if change.after is None else change for change in changes]
        if self.few is None:
            return changes
        # A server is not told its GPUs where it takes them all: with the same sizes it had as many as these take.
        sizes_changed = any(change.key in LAYOUT for change in changes)
        had = None if sizes_changed else str(self.few.taken)
        of_gpus = (replace(change, before=change.before or had) for change in changes if change.key == "gpus")
        return [*(change for change in of_gpus if change.before), *(change for change in changes if change.key != "gpus")]

    def _said_of(self, change: KeyChange) -> str | None:
        """What the text says of a key that has its default now; ``None`` where it says nothing, or what it said before."""
        word = self._word(self.word_for(change.key))
        return None if word is None or word.text == change.before else word.text

    # --- errors -------------------------------------------------------------------------------------------------------

    def failed(self, error: KvplanError) -> Fault:
        """An error at the model where that cannot be read, else at the server. A path that is not here is left open: it may be one of the server's."""
        here = Place(line=self.line, column=self.column, word="")
        error = in_flags(error, self.server, self.given, self.named_apart)
        # The line is of a plan, which is no check of this text.
        error.hint = without_line(error.hint)
        place = self.places.get("model", here) if isinstance(error, (ModelNotFoundError, ConfigError)) else here
        named = set_words("model", "ORG/NAME", self.name)
        if isinstance(error, ModelNotFoundError) and is_on_server(self.model):
            error = OpenError(f"{error.message} {ON_SERVER}", hint=f"Add: {named}", sets={f"{self.name}.model": "ORG/NAME"})
        elif isinstance(error, ModelNotFoundError) and self.model.startswith(OLLAMA):
            error = ModelNotFoundError(error.message, hint=f"{error.hint} Or name its model: {named}")
        return Fault(line=place.line, column=place.column, error=error)

    def lacking(self, error: KvplanError) -> Sequence[Fault]:
        """Its faults and that of its model; where it lacks an accelerator too, one command cures both."""
        wrong = self.failed(error)
        others = [fault for fault in (wrong, *self.faults) if fault is wrong or sets_of(fault)]
        sets = {name: value for fault in others for name, value in sets_of(fault).items()}
        without = [] if self.without_gpu is None else [self.without_gpu(sets)]
        return sorted((*others, *without), key=lambda fault: (fault.line, fault.column))

    def refusal(self, error: KvplanError, planner: Planner, changes: Sequence[KeyChange] = ()) -> Judged | None:
        """The finding at the first flag of the text without which the engine would start, or else refuse another one; ``None`` where there is none.

        What kvplan does not know, and an option that the user gave, are none. What starts and holds with values of before the ``changes`` is offered these first.
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
        offers = remedies(error, self.server)
        error = in_flags(error, self.server, self.given, self.named_apart)
        hint = without_line(error.hint)
        starting = [*self._sizes(key_of(flag), planner)] if flag.option in LAYOUT else []
        sizes, asked = ", ".join(map(str, starting)), number(word.text) or 0
        asked = asked if self.few is None else asked * self.few.gpus // self.few.taken
        # The largest that takes no more GPUs first, then the next above.
        near = sorted(starting, key=lambda size: (size > asked, abs(size - asked)))
        offers += [self._told({flag.option: size}) for size in near if flag.option is not None]
        # What the hint offers is planned, and stands among the edits if it holds.
        hint = f"Sizes into which it can be split: {sizes}" if sizes else "" if offers else hint
        said_of = (
            f"{flag.spelled} {brief(word.text, 40)}: {self.engine.label} will not start. {error.message.rstrip('.')}. {hint}"
        )
        found = placed_at(finding("flags", said_of.rstrip(" ."), holds=False), place_of(self.server, flag, word))
        first = [self._edit({}, told) for told in offers]
        offered = [(edit, [*islice(self.edits_beside(edit, {}, planner), _MOST_OF_SIZE)]) for edit in first]
        # A change that is enough alone comes before one that needs another.
        offered.sort(key=lambda each: [edit.told for edit in each[1]] != [each[0].told])
        edits = once(edit for _, found_beside in offered for edit in found_beside)
        back: Sequence[Edit] = ()
        with suppress(KvplanError):  # what the engine refuses in any case
            enough = self if self.few is None else self.on_enough
            back = enough.taken_back(changes, planner(enough), sure=self.strict)
        return self._beside(self.told, _with_back(replace(found, edits=edits), back))[-1]

    def _sizes(self, key: str, planner: Planner) -> Iterator[int]:
        """The values of a parallel size, of those on a node, with which the engine starts."""
        server, given = self._on_enough
        # Whether it allows the load is another matter.
        given = {name: value for name, value in given.items() if name not in NUMBERS}
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

    @property
    def on_enough(self) -> ServerCheck:
        """The check of a server with too few GPUs as it would be on as many as its sizes take."""
        server, given = self._on_enough
        made, beyond = _within(server, given)
        return replace(
            self, model=made.model, options=made.options, own_length=made.own_length, given=given, beyond=beyond, few=None
        )

    # --- findings -----------------------------------------------------------------------------------------------------

    def settled(
        self,
        judged: Sequence[Judged],
        plan: Plan,
        planner: Planner,
        more: Sequence[Judged] = (),
        search: Callable[[Check], str] = lambda _: "",
        changes: Sequence[KeyChange] = (),
    ) -> list[Judged]:
        """The verdicts on the text itself, and that of the plan at the flag that would have to change; in its place, a length that the engine refuses.

        Behind them are ``more`` than its own. ``search`` makes the command that looks for other hardware for a check. What holds with values of
        before the ``changes`` is offered these first.
        """
        replan = planner(self)
        refused = self.refusal_of(plan)
        alone = replace(self, given={name: value for name, value in self.given.items() if name not in NUMBERS})
        blamed = self if self.beyond is None else alone
        found = [blamed.blamed(item, plan, replan) for item in (*(() if refused else judged), *more)]
        found = [replace(item, edits=self._within_model(item, plan, planner) or item.edits) for item in found]
        first = None
        if refused:
            first = self._shorter(refused, plan, planner)
        elif self._asks_too_much(plan):
            first = self._over_model(plan, planner)
        elif self.beyond is not None:
            first = self._beyond(plan, planner, search)
        failing = first or _failing(found)
        # No text of slots serves what is longer than the model.
        helps = failing is not None and not (self.engine.facts.slots_option and self._is_over_model(plan))
        back = self.taken_back(changes, replan, sure=self.strict or failing.holds) if failing is not None and helps else []
        if first is not None:
            first = _with_back(first, back)
            if self.beyond is not None:
                # That the text probably holds less than was asked for is no answer.
                found = [item for item in found if item.name != "fits" or not item.holds or item.certain]
            # What grows is mended by flags that mend the length too; the option that accepts it does not.
            whole = {edit.yaml for item in found for edit in item.edits if edit.settings} if refused else ()

            def mends(edit: Edit) -> bool:
                return edit.yaml in whole or bool(edit.told and self._held_with(edit.told, {}, replan).holds)

            def left(item: Judged) -> Iterator[Edit]:
                # Beside edits that mend all, nobody needs those that do not.
                for edit in item.edits:
                    if told_by(edit) in map(told_by, back):
                        continue
                    if mends(edit):
                        yield edit
                    elif not first.edits:
                        yield then_fail(edit, [first.name])

            found = [first, *(replace(item, edits=tuple(left(item))) for item in found)]
        else:
            found = [_with_back(item, back) if item is failing else item for item in found]
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

    def unplanned(self, planner: Planner, changes: Sequence[KeyChange] = ()) -> Sequence[Judged]:
        """The verdicts on the text itself. Too few GPUs are told with the verdict on enough, and with the largest sizes for which they are enough. What
        the engine refuses on enough of them is told instead.
        """
        if self.few is None:
            return self.told
        *others, item = self.told
        enough, said = self.few.taken, self.few.message
        try:
            other = self.on_enough
            replan = planner(other)
            plan = replan()
            beyond = "" if other.beyond is None else f"{other.beyond.message}."
            fit, longer, back = plan.fit, beyond or self.refusal_of(plan), other.taken_back(changes, replan, sure=self.strict)
        except KvplanError as error:
            refused = replace(self, told=tuple(others)).refusal(error, planner, changes)
            if refused is not None:
                return [*others, refused]
        else:
            if fit is not None:
                hint = item.message.removeprefix(said) if fit.fits and not longer else ""
                verdict = fit.verdict.text if fit.fits else verdict_on(plan)
                item = replace(item, message=f"{said} With {enough:,} GPUs: {longer or f'{verdict}.'}{hint}")
                on_enough = () if fit.fits and not longer else islice(self._on_gpus(enough, planner), _MOST_OF_SIZE)
                item = replace(item, edits=(*back, *on_enough))
        return self._beside(others, replace(item, edits=once((*item.edits, *self._fewer(self.few.gpus, planner)))))

    def _on_gpus(self, gpus: int, planner: Planner) -> Iterator[Edit]:
        """The edits with which the server surely fits on so many GPUs, which its sizes take and it has not got."""
        edit = self._edit({})
        if "gpus" in self.given:
            yield from self.edits_beside(edit, {"gpus": str(gpus)}, planner)
            return
        other = replace(self, server=self._with({"gpus_per_replica": gpus}))
        for each in other.edits_beside(edit, {}, planner):
            alone = each.flags and "GPUs in the file" not in each.effect
            yield replace(each, yaml=f"{gpus:,} GPUs in the file, {each.flags}", flags="", told={}) if alone else each

    def warned(self, plan: Plan) -> list[Note]:
        """The warnings, without the one that is a finding here."""
        refused = bool(self.refusal_of(plan))
        return [
            *(Note(code="deployment", message=each) for each in self.remarks),
            *(note for note in heeded(plan, self.server.variables).warnings if not (refused and note.code == BEYOND)),
        ]

    def _beyond(self, plan: Plan, planner: Planner, search: Callable[[Check], str]) -> Judged:
        """The finding of a load that the text does not allow, at the flag that says so, with the flags and the load that hold."""
        error, replan = self.beyond, planner(self)
        assert error is not None
        option = error.option
        # More slots need be no longer than what users send.
        size = (self._given("seq") if option == "batch" else 0) or error.sizes["seq"]
        slots = error.sizes["batch"] or 1
        in_slots = self.engine.facts.slots_option
        message, typed, maximum = error.message, dict[str, str](), self._maximum(plan)
        if 0 < maximum < size:
            size = maximum
            if self._given("seq") > maximum:
                message += f"; the model's maximum is {maximum:,}"
                typed = {"seq": str(maximum)}
        larger = self._allowing(error, size)
        held = self._held_with(larger, typed, replan)
        edits = [self._made(self._edit({}, larger, held.slower), typed, held)] if held.holds else []
        if in_slots and option == "batch" and (not held.holds or held.slower or self._given("seq")):
            of_text = error.sizes["seq"]
            edits = [*self._in_smaller_slots(of_text * error.allowed // slots, of_text, slots, replan), *edits]
        if not held.holds or held.slower:
            edits += (
                ()
                if typed or not size
                else self._most_slots(size, slots, replan, more_than=error.allowed if option == "batch" else 0)
            )
            edits += self.edits_beside(self._edit({}, larger), typed, planner, more_than={option: error.allowed})
        smaller = {option: str(error.allowed)}
        held = self._held_with({}, smaller, replan)
        if held.holds and error.allowed >= least_sensible(error.sizes[option]):
            edits.insert(MOST_EDITS - 1, self._typed(replace(self._edit(smaller), accepting=held.accepting), smaller, held))
        if not edits and plan.fit is not None:
            load = {name: value for name, value in self.given.items() if name in NUMBERS}
            command = search(replace(self, options={**self.options, **load}))
            message += f"; {_NO_CHANGE}{f'. Search further: {command}' if command else ''}"
        # What holds all that is asked for comes first, and what makes it slower last.
        edits.sort(key=lambda edit: (edit.is_slower, not edit.settings.keys().isdisjoint(NUMBERS)))
        word = words_for(self.flags, self.server, option)[1]
        item = finding("length" if option == "seq" else "users", message, holds=False)
        place = None if word is None or not word.line else place_of(self.server, self.flags.flag_of.get(option), word)
        return replace(placed_at(item, place), edits=once(edits))

    def edits_beside(
        self, first: Edit, typed: Mapping[str, str], planner: Planner, more_than: Mapping[str, int] = MappingProxyType({})
    ) -> Iterator[Edit]:
        """The ``first`` edit if the server surely fits with it, else edits with which it does besides. One of ``seq`` or ``batch`` leaves ``more_than`` so many.

        A load that the text does not allow, and a length that the engine refuses, are mended with it.
        """
        with suppress(KvplanError):  # what the engine refuses is not offered
            for _ in range(_FAULTS):
                other = self._changed(first, typed)
                replan = planner(other)
                plan = replan(advise=True)
                lacks = other.lacks(plan)
                if lacks is None:
                    break
                told, load = lacks
                first, typed = self._with_told(first, told), {**typed, **load}
            else:
                return
            if plan.fit is None or plan.fit.verdict is Verdict.FITS:
                yield from other.all_on_gpu(plan, replan)
                yield self._made(
                    replace(first, effect=joined(first.effect, slower(plan))), typed, Held(accepting=self.accepting(plan))
                )
                return
            for edit in other.fitting(plan, replan):
                left = read_options({name: edit.settings[name] for name in more_than if edit.settings.get(name)}).values
                if all(left[name] > least for name, least in more_than.items() if edit.settings.get(name)):
                    yield replace(edit, settings={**first.settings, **edit.settings})

    def lacks(self, plan: Plan) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
        """What its engine has to be told, and what is to be typed, for a load that the text does not allow or a length that the engine refuses; ``None``
        where it takes both.
        """
        maximum = self._maximum(plan)
        if self._is_over_model(plan):
            return {}, {"seq": str(maximum)}
        if self.beyond is not None:
            return self._allowing(self.beyond), {}
        return (self._told({"seq": maximum}), {}) if self.refusal_of(plan) else None

    def fitting(self, plan: Plan, replan: Callable[..., Plan]) -> Sequence[Edit]:
        """The edits with which what does not fit surely does."""
        item, *_ = judge((_FITS,), plan, replan, self.places, sure=True, grown=self.grown)
        return self.blamed(item, plan, replan).edits

    def _changed(self, edit: Edit, typed: Mapping[str, str]) -> ServerCheck:
        """The check of the server once its engine is told what an edit says; without the load of the user where that is beyond what the text allows then."""
        settings, extra = settings_told(self.flags, edit.told)
        server, given = replace(self._with(settings), extra={**self.server.extra, **extra}), {**self.given, **typed}
        made, beyond = _within(server, given)
        changed = {
            "model": made.model,
            "options": made.options,
            "own_length": made.own_length,
            "given": given,
            "beyond": beyond,
            "few": None,
        }
        return replace(self, server=server, beside=edit.told, typed=typed, **changed)

    def _with_told(self, edit: Edit, told: Mapping[str, str]) -> Edit:
        """The edit with this told as well."""
        told = {**edit.told, **told}
        return replace(edit, told=told, flags=written(told))

    def _allowing(self, error: BeyondError, seq: int = 0) -> dict[str, str]:
        """What a server is told that allows a load, each request of so many tokens, where it does not."""
        sizes = {**error.sizes, "seq": seq or error.sizes["seq"]}
        if self.engine.facts.slots_option:
            return self._slots_told(error.sizes["batch"] or 1, sizes["seq"], keep=error.option == "seq")
        told = self._told({error.option: sizes[error.option]})
        return {name: value for name, value in told.items() if name in self.beside or not self._stands(name, value)}

    def _maximum(self, plan: Plan) -> int:
        """The longest sequence of the model; 0 where it is not known, and where the text stretches it."""
        return 0 if self._stretched else plan.model.max_position_embeddings or 0

    def _is_over_model(self, plan: Plan) -> bool:
        """True if users send longer requests than the model takes."""
        return 0 < self._maximum(plan) < self._given("seq")

    def _asks_too_much(self, plan: Plan) -> bool:
        """True if that is sent to an engine that allows as many tokens in its slots, and cuts them."""
        by_text = self.beyond is not None and (self.beyond.option == "batch" or self.beyond.allowed < self._maximum(plan))
        return bool(self.engine.facts.slots_option) and not by_text and self._is_over_model(plan)

    def _over_model(self, plan: Plan, planner: Planner) -> Judged:
        """The finding of requests that are longer than the model takes, with its longest ones."""
        maximum = self._maximum(plan)
        message = f"{self._given('seq'):,} tokens is more than the model's maximum of {maximum:,}, whatever the text allows"
        edits = once(self.edits_beside(self._edit({}), {"seq": str(maximum)}, planner))
        return replace(placed_at(finding("length", message, holds=False), self.places.get("model")), edits=edits)

    def _within_model(self, item: Judged, plan: Plan, planner: Planner) -> tuple[Edit, ...]:
        """The edits of what does not fit where slots of the text are longer than the model takes: they begin with slots of its maximum; else none."""
        facts, maximum = self.engine.facts, self._maximum(plan)
        if (
            item.name != "fits"
            or item.holds
            or not facts.slots_option
            or self.given.keys() & {*NUMBERS}
            or plan.request.seq <= maximum
        ):
            return ()
        told = self._slots_told(plan.request.batch, maximum, keep=True) if maximum else {}
        return once(self.edits_beside(self._edit({"seq": str(maximum)}, told), {}, planner)) if told else ()

    def _fewer(self, gpus: int, planner: Planner) -> Iterator[Edit]:
        """The edits of a single parallel size with which so many GPUs are enough, each alone where it surely fits so, else with what it needs besides."""
        taken = gpus_taken(self.server.settings)
        for name in LAYOUT:
            hardware = {*OF_HARDWARE, *LAYOUT} - {name}
            size = self.server.settings.get(name, 1)
            for fewer in range(gpus * size // taken, 0, -1) if taken and size > 1 else ():
                with suppress(KvplanError):  # what the engine refuses is not offered
                    edit = self._edit({name: str(fewer)}, self._told({name: fewer}))
                    if planner(self._changed(edit, {}))().fit is None:
                        edit = replace(edit, effect="if that fits")
                    # More GPUs are what the finding itself asks for; what keeps the load comes first.
                    found = [each for each in self.edits_beside(edit, {}, planner) if each.settings.keys().isdisjoint(hardware)]
                    yield from sorted(found, key=lambda each: not each.flags)[:_MOST_OF_SIZE]
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
        fit = shorter.fit
        if fit is not None and fit.verdict is not Verdict.FITS:
            refused += f" With {longest:,} tokens: {verdict_on(shorter)}"
            edits += self.edits_beside(edit, typed, planner)
            most = fit.max_seq or 0
            if least_sensible(longest) <= most < longest:
                of_longest = shorter
                edit, typed, shorter = of_length(most)
                edit = self._with_expected(edit, of_longest)
            else:
                edit = replace(edit, effect=f"then: {fit.verdict.text}")
        if not edits or shorter.fit is None or shorter.fit.verdict is Verdict.FITS:
            # It is said beside the flag: the GPUs are those of the text.
            edits.insert(0, self._made(edit, typed, Held(accepting=self.accepting(shorter))))
        found = placed_at(finding("length", refused, holds=False), self.places.get("seq"))
        return replace(found, edits=once(edits))

    def blamed(self, item: Judged, plan: Plan, replan: Callable[..., Plan]) -> Judged:
        """The verdict at the first flag of the text that one of its edits changes, else at the server. Each edit holds as it is told."""
        if item.name.startswith(GROWTH):
            # Less than before is said by flags too; what accepts the growth is an option of the check.
            of_engine = ((each, self._with_expected(self._in_engine(each), plan)) for each in item.edits)
            tried = ((each, self._holding(edit, replan) if each.settings else each) for each, edit in of_engine)
            # One that grows all the same is none.
            kept = (edit for each, edit in tried if edit is not None and (each.accepting or not edit.accepting))
            return replace(item, edits=tuple(kept))
        if item.name != "fits" or plan.fit is None or (item.holds and item.certain):
            return item
        users = self.flags.flag_of.get(self.engine.facts.users_option) if "batch" not in self.options else None
        longest = f"engine_options.{self.engine.facts.longest_option}"
        # A text that does not say how many are served at once is not mended by serving fewer.
        asked = (each for each in map(self._in_engine, item.edits) if users is None or users.spelled not in each.told)
        told = (
            self._longest_allowed(replan)
            if {*edit.settings} == {longest}
            else self._holding(self._with_expected(edit, plan), replan)
            for edit in asked
        )
        # Slots for what users send may be as many as before.
        seq = self._given("seq") or plan.request.seq
        slots = self._most_slots(seq, plan.request.batch + (seq < plan.request.seq), replan)
        held, waiting = [*filter(None, told), *slots], self._waiting(plan)
        at_once = [edit for edit in held if waiting is not None and edit.told.keys() == {waiting.spelled}]
        # Of as many GPUs, it changes neither weights nor cache.
        held = [*([] if waiting is None or at_once else self._more_at_once(waiting, plan, replan)), *held]
        if "tp" in self.flags.flag_of and not any(edit.flags for edit in held):
            held = [*self._in_sizes(self._edit({}), plan, replan), *held]
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
            message = re.sub(rf"{option}(?!=)", said, item.message, count=1)
            # A command that looks further stays at the end.
            reason, sign, further = message.partition(NO_CHANGE)
            item = replace(item, message=f"{reason}{more}{sign}{further}")
            if enough:
                # It fits, and is told to serve fewer.
                item = replace(item, name="users", unit="flag")
                first = first if word is None else place_of(self.server, waiting, word)
        return replace(placed_at(item, first or self.places.get("model")), edits=edits)


def _failing(found: Sequence[Judged]) -> Judged | None:
    """The first finding that fails, else the first that probably holds, of those that other values of the text may mend; ``None`` if all hold."""
    left = sorted(
        (item for item in found if _is_of_size(item) and not (item.holds and item.certain)), key=lambda item: item.holds
    )
    return left[0] if left else None


def _is_of_size(item: Judged) -> bool:
    """True for a finding that other values of the text may mend."""
    return item.name in ("fits", "users") or item.name.startswith(GROWTH)


def _with_back(item: Judged, back: Sequence[Edit]) -> Judged:
    """The finding with edits to values of before in front of its own; that it has none is not said then."""
    if not back:
        return item
    message = item.message if item.edits else re.split(f"; {_NO_CHANGE}|{NO_CHANGE}", item.message)[0]
    return replace(item, message=message, edits=merged([*back, *item.edits], told_by)[:MOST_EDITS])


def _within(server: Server, given: Mapping[str, Any]) -> tuple[Planned, BeyondError | None]:
    """What a server is planned with; without the load that the user gave where that is beyond what the text allows, which is told then."""
    try:
        return planned(server, given), None
    except BeyondError as error:
        return planned(server, {name: value for name, value in given.items() if name not in NUMBERS}), error


def sets_of(fault: Fault) -> Mapping[str, str]:
    """What ``--set`` would give a value, so that a fault is none."""
    return fault.error.sets if isinstance(fault.error, OpenError) else {}


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
