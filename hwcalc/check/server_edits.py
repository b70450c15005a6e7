"""What to change of a server that a deployment starts, so that it surely fits.

A change is settings of a plan, and what the engine is told for them (:mod:`hwcalc.launch.told`). It is planned as the text would have it before it
is offered: as flags in the text, as the command that the user types in place of this one, as both, or in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.check.baseline import Grown, no_growth
from hwcalc.check.changes import MOST_EDITS, NUMBERS, PROBABLY, as_before, gain_of, joined, rounded, taken_back
from hwcalc.check.file import Check
from hwcalc.check.judge import EIGHT_BITS, FP8
from hwcalc.check.result import SLOWER, Edit, KeyChange, figures_of
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import variable_of
from hwcalc.launch.planned import LAYOUT, flags_of, gpus_taken, has_other_nodes, heeded, planned
from hwcalc.launch.read import LOAD
from hwcalc.launch.server import Server
from hwcalc.launch.spelled import spelled
from hwcalc.launch.told import keys_told, read_told, settings_told, written
from hwcalc.launch.values import number
from hwcalc.launch.words import Word
from hwcalc.planner.advice import least_sensible
from hwcalc.planner.asked import read_options
from hwcalc.planner.result import BEYOND, Plan
from hwcalc.planner.solve import last_yes
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.engine_flags import EngineFlags, Flag
from hwcalc.profiles.gpus import find_gpu, node_label
from hwcalc.profiles.hardware_file import NODE
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine

OF_HARDWARE: Final = {"gpu": "gpu", "gpus": "gpus_per_replica"}
"""Options of a plan, and the settings of servers that say the same."""
OF_SERVER: Final = {**OF_HARDWARE, **{option: key for key, option in LOAD.items()}}
"""Options of a plan, and what ``--set`` calls those of one server."""
_BLOCK: Final = 16
"""Tokens by which a length that a server allows is told."""
_STRETCHES: Final = re.compile(r"rope|overrid")
"""In the names of flags that change how long a model is."""


class Held(Record):
    """The GPUs that a server takes where it fits, 0 where it does not, and whether it surely fits; the option that accepts what grows then, how much is
    on the host, and whether the engine refuses the length all the same.
    """

    gpus: int = 0
    certain: bool = True
    accepting: str = ""
    slower: str = ""
    refused: bool = False

    @property
    def holds(self) -> bool:
        """True if it surely fits, with a length that the engine takes."""
        return self.probably_holds and self.certain

    @property
    def probably_holds(self) -> bool:
        """True if it fits, surely or probably, with a length that the engine takes."""
        return bool(self.gpus) and not self.refused


class ServerEdits(Check):
    """A server of a deployment, and the edits that are made of it.

    ``given`` are options of the user that count more than the text. ``command`` makes the command that checks the text with options and values of
    ``--set``, and without a limit of growth if another one is to be added; ``own`` are the options that ``--set`` says of this server alone, and
    ``shared`` those that the user gave for all. ``outside`` has the variables that the text gets from elsewhere, each with the file that says it, empty where the user does. ``grown`` compares its figures with a
    baseline, and if it is ``strict``, what probably fits fails. What its engine is told ``beside`` the text, and what is ``typed`` for that, is a part of each edit. ``others`` names the servers for
    which the word of a setting counts as well.
    """

    server: Server
    given: Mapping[str, Any] = MappingProxyType({})
    command: Callable[..., str] = str
    own: Collection[str] = ()
    shared: Mapping[str, Any] = MappingProxyType({})
    outside: Mapping[str, str] = MappingProxyType({})
    grown: Grown = no_growth
    strict: bool = False
    beside: Mapping[str, str] = MappingProxyType({})
    typed: Mapping[str, str] = MappingProxyType({})
    others: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @cached_property
    def flags(self) -> EngineFlags:
        """The flags of its engine."""
        return flags_of(self.server)

    @cached_property
    def engine(self) -> Engine:
        """Its engine."""
        return find_engine(self.flags.engine)[0]

    def _stands(self, name: str, value: str) -> bool:
        """True if the text says this value of a flag already: nobody needs to write it."""
        word = self._word(name)
        return word is not None and word.text == value

    def _word(self, name: str) -> Word | None:
        """The word of the text that says the value of this flag, variable or parameter; ``None`` where it does not."""
        return self.server.places.get(keys_told(self.flags, name)[0])

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
    def _edit(settings: Mapping[str, str | None], told: Mapping[str, str] = MappingProxyType({}), effect: str = "") -> Edit:
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
        elif edit.settings.keys() <= {"seq", "dtype", "weights"}:
            told = self._told({name: value for name, value in edit.settings.items() if name != "seq"})
            # Where the text itself is to allow more, it allows what is asked for.
            if "seq" in edit.settings and ("seq" not in self.given or self.beside):
                length = read_options({"seq": edit.settings["seq"]}).values["seq"]
                told |= self._slots_told(self.options.get("batch", 1), length, keep=True)
        # A flag has the exact number, which is all that is said of a length.
        effect = "" if told and "seq" in edit.settings.keys() - self.given.keys() else edit.effect
        return replace(edit, told=told, flags=written(told), effect=spelled(effect, self.server, self.given))

    def _with_expected(self, edit: Edit, plan: Plan) -> Edit:
        """The edit of a length, which surely fits, with what each slot has, or with the length that is expected to fit and may not."""
        if edit.settings.keys() != {"seq"} or plan.fit is None or edit.effect:
            return edit
        length, expected = read_options({"seq": edit.settings["seq"]}).values["seq"], plan.fit.expected_max_seq or 0
        facts, slots = self.engine.facts, plan.request.batch
        if facts.slots_option:
            of_all = settings_told(self.flags, edit.told)[0].get("ctx")
            each = of_all // slots if isinstance(of_all, int) else length
            effect = f"{each:,} tokens a slot" if slots > 1 and each else ""
        else:
            # Where more surely fits, it is the growth that limits the length.
            by_memory = rounded(plan.fit.max_seq or 0) <= length < expected
            effect = f"surely; {expected:,} tokens expected" if by_memory else ""
        return replace(edit, effect=joined(effect, edit.effect))

    def _given(self, name: str) -> int:
        """The length or the users that the user gave; 0 where none are given."""
        return read_options({name: self.given[name]}).values[name] if name in self.given else 0

    def _slots_told(self, slots: int, seq: int, *, keep: bool = False) -> dict[str, str]:
        """What a server is told that has so many slots, which it may ``keep``, each of so many tokens."""
        facts = self.engine.facts
        # Where a flag says the tokens, it is those of all slots.
        tokens: dict[str, int] = {facts.slots_option: seq * slots} if facts.slots_option in self.flags.flag_of else {"seq": seq}
        # A text that names no length leaves it to the server.
        tokens = tokens if seq else {}
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
            as_many = most == number(self.server.settings.get("slots"))
            effect = f"{seq:,} tokens a slot" if as_many else "the most slots that surely fit"
            edit = self._edit({"batch": str(most)}, self._slots_told(most, seq), effect)
            yield self._made(edit, typed(most), held(most))

    def _longest_allowed(self, replan: Callable[..., Plan]) -> Edit | None:
        """The edit to the longest sequence that a server may allow, to surely fit, where users send shorter ones; ``None`` where there is none."""
        seq, allowed = self._given("seq"), number(self.server.settings.get("max_model_len"))
        allowed = allowed or replan().model.max_position_embeddings or 0

        def fits(blocks: int) -> bool:
            return self._held_with(self._told({"seq": blocks * _BLOCK}), {}, replan).holds

        least, most = -(-seq // _BLOCK), (allowed - 1) // _BLOCK
        if not 0 < least <= most or not fits(least):
            return None
        tokens = _BLOCK * max(least, last_yes(fits, most, least))
        return self._made(self._edit({"seq": str(tokens)}, self._told({"seq": tokens})), {}, Held(gpus=1))

    def _in_smaller_slots(self, tokens: int, before: int, slots: int, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit of more slots in the memory that there is: each of so many ``tokens``, which are what the user sends, or half of those ``before``."""
        if tokens >= (self._given("seq") or before // 2):
            told = self._told({self.engine.facts.users_option: slots})
            held = self._held_with(told, {}, replan)
            effect = joined(f"{tokens:,} tokens a slot" if tokens else "", held.slower)
            if held.holds:
                yield self._made(self._edit({}, told, effect), {}, held)

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
        """The edits that serve all users at once by this flag."""
        users = self._given("batch") or plan.request.batch
        slots = str(-(-users // plan.request.dp))
        first = self._edit(
            {f"engine_options.{self.engine.facts.users_option}": slots}, {flag.spelled: slots}, f"{users:,} at once"
        )
        return self._in_sizes(first, plan, replan)

    def _in_sizes(self, first: Edit, plan: Plan, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit with the smallest tensor-parallel sizes for which the server surely fits: as weights and cache are, and before that in eight bits,
        where fewer GPUs hold it so.
        """
        size, most, taken = plan.request.tp, NODE // plan.request.pp, self.server.settings
        gpu = None if plan.fit is None or plan.fit.gpu is None else find_gpu(plan.fit.gpu)
        # What it computes on this GPU, and fp8 where a release has no such cache, or not of this model.
        caches = dict.fromkeys((self.engine.facts.eight_bits(gpu), FP8)) if "kv_cache_dtype" not in taken else {}
        bits = [{"dtype": dtype} for dtype in caches]
        of_weights = {"weights": FP8} if not {"quantization", "weights"} & taken.keys() else {}
        combined = (*bits, of_weights, *({**cache, **of_weights} for cache in bits))
        eight = [one for one in combined if one and all(self._told({name: value}) for name, value in one.items())]
        for tp in (size << times for times in range(NODE.bit_length()) if size << times <= most):
            layout = {} if tp == size else {"tp": tp}
            for changed in ({}, *eight):
                more = {**layout, **changed}
                told = {**first.told, **self._told(more)}
                held = self._held_with(told, {}, replan)
                if held.holds and not held.slower:
                    settings = {**dict(first.settings), **{name: str(value) for name, value in more.items()}}
                    yield self._made(self._edit(settings, told, first.effect), {}, held)
                    if not changed:
                        return
                    eight = []
                    break

    def _by_gpus(self, edits: Collection[Edit]) -> Iterator[Edit]:
        """The edits, of which those that are flags alone have the fewest GPUs first, and behind them those that make it slower."""
        given = self.server.settings.get("gpus_per_replica")
        has = given if isinstance(given, int) else gpus_taken(self.server.settings) or 1

        def gpus(edit: Edit) -> tuple[bool, int]:
            settings = {**self.server.settings, **settings_told(self.flags, edit.told)[0]}
            return edit.is_slower, max(has, gpus_taken(settings) or 0)

        ordered = iter(sorted((edit for edit in edits if edit.flags), key=gpus))
        yield from (next(ordered) if edit.flags else edit for edit in edits)

    def taken_back(self, changes: Sequence[KeyChange], replan: Callable[..., Plan], *, sure: bool) -> list[Edit]:
        """The edits to values that the text had in the baseline or the lock, with each of which it fits and nothing grows: alone, else together.

        One that probably fits was accepted before, and counts unless they are to be ``sure``.
        """
        facts = self.engine.facts
        # Slots and what they share are said as one, whatever users send; the tokens of all where they are no multiple.
        as_one = {*NUMBERS, *(f"engine_options.{name}" for name in (facts.slots_option, facts.users_option))}
        as_one = as_one if facts.slots_option else set[str]()
        # Where slots are not told, the users are the load; so is the length, if what the text allows is another option.
        load = [] if facts.slots_option else ["batch", *(["seq"] if facts.longest_option else [])]
        own = [change for change in changes if change.key in as_one or change.key.partition(".")[0] not in (*self.given, *load)]

        def made(settings: Mapping[str, str | None], since: str) -> Edit | None:
            # A single slot or GPU is not named among the keys; what else was not set cannot be told.
            named = {key: "1" if value is None and key in ("batch", *LAYOUT) else value for key, value in settings.items()}
            but = as_one if named.get("seq", "") is None else ()
            before = {key: value for key, value in named.items() if value is not None and key not in but}
            told = self._told_before(before, as_one)
            held = self._held_with(told, {}, replan) if told else Held()
            if not (held.holds if sure else held.probably_holds) or held.accepting:
                return None
            effect = joined("" if held.certain else PROBABLY, held.slower, as_before(since, len(told)))
            return self._made(self._edit(before, told, effect), {}, held)

        return taken_back(own, made, as_one)

    def _told_before(self, before: Mapping[str, str], as_one: Collection[str]) -> dict[str, str]:
        """What the engine is told for options that a text had ``before``; slots and their tokens ``as_one``."""
        of_engine = {key.partition(".")[2]: text for key, text in before.items() if "." in key}
        options = {name: text for name, text in before.items() if "." not in name}
        values = read_options({**self.asked, **options}).values
        told = self._told({name: values[name] for name in options if name not in as_one})
        if not options.keys().isdisjoint(as_one):
            told |= self._slots_told(values.get("batch") or 1, values.get("seq") or 0, keep="batch" not in options)
        told |= self._told(of_engine)
        return {name: value for name, value in told.items() if not self._stands(name, value)}

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
        counts = isinstance(self.server.settings.get("gpus_per_replica"), int)
        many = edit.settings.get("gpus") if self.engine.facts.splits_layers else None
        if many is not None and edit.told and not counts:
            # Layers lie on as many GPUs as there are, which no flag says.
            held = self._held_with(edit.told, {"gpus": many}, replan)
            return self._made(edit, {"gpus": many}, held) if held.holds else None
        held = self._held_with(edit.told, {}, replan) if edit.told and many is None else Held()
        if held.holds:
            slow = "" if edit.is_slower else held.slower
            return self._made(replace(edit, effect=joined(slow, edit.effect)), {}, held)
        free = () if edit.told else (*NUMBERS, *(() if counts else ("gpus",)))
        typed = {name: text for name, text in edit.settings.items() if text is not None and (name in self.given or name in free)}
        if not typed:
            return self._in_words(edit)
        whole = typed.keys() == edit.settings.keys() and not edit.told.keys() & self.beside.keys()
        held = self._held_with({} if whole else edit.told, typed, replan) if whole or edit.told else held
        if not held.holds:
            return None
        if not whole:
            return self._made(edit, typed, held)
        return self._typed(replace(edit, told={}, flags="", accepting=edit.accepting or held.accepting), typed, held)

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
        gpu = settings.get("gpu")
        if gpu:
            said.append(f"{f'{many} x ' if many else ''}{self._as_labelled(gpu)} in the file")
            effect = joined(self._also("gpu"), effect)
        elif many and (self.engine.facts.splits_layers or not (edit.told and (of_text is None or of_text >= many))):
            said.append(f"{many:,} GPUs in the file")
        if many > max(NODE, of_text or 0) and not has_other_nodes(self.server):
            return None
        names = [name.rpartition(".")[2] for name, value in settings.items() if value is None]
        if not said and not names:
            return None
        without = "".join(f" without {self.flags.flag_of[name].spelled}" for name in names if name in self.flags.flag_of)
        stands = self._stands_at({**self.beside, **edit.told})
        effect = joined(stands, effect)
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
        edit = replace(edit, effect=joined(self._stands_at(edit.told), edit.effect))
        given, gpus = self.given.get("gpus"), 0 if held is None else held.gpus
        edit = edit if held is None else replace(edit, accepting=held.accepting)
        if given is not None and gpus > int(given):
            typed = {**typed, "gpus": str(gpus)}
        elif isinstance(of_text := self.server.settings.get("gpus_per_replica"), int) and gpus > of_text:
            edit = replace(edit, effect=joined(edit.effect, f"with {gpus:,} GPUs in the file"))
        elif given is None and of_text is None and gpus > (gpus_taken(self.server.settings) or gpus):
            edit = replace(edit, effect=joined(edit.effect, f"with {gpus:,} GPUs"))
        return self._typed(edit, typed, held or Held()) if typed else edit

    def all_on_gpu(self, plan: Plan, replan: Callable[..., Plan]) -> Iterator[Edit]:
        """The edit of a cache of eight bits with which nothing lies in the memory of the host, where something does."""
        for dtype in EIGHT_BITS if plan.partly_on_host else ():
            told = self._told({"dtype": dtype})
            held = self._held_with(told, {}, replan) if told else Held()
            if held.holds and not held.slower:
                yield self._made(self._edit({"dtype": dtype}, told, f"{dtype} cache"), {}, held)
                return

    def _stands_at(self, told: Collection[str]) -> str:
        """The variables of the text that have the values of these flags, and where they are set; empty where the flags have them themselves."""
        words = [(keys_told(self.flags, name)[0], word) for name in told if (word := self._word(name)) is not None]
        said = (", ".join(filter(None, (self.variable_at(word), self._also(key)))) for key, word in words)
        return ", ".join(dict.fromkeys(filter(None, said)))

    def _whole(self, edit: Edit) -> Edit:
        """The edit with what its engine is told beside it."""
        told = {name: value for name, value in self.beside.items() if not self._stands(name, edit.told.get(name, value))}
        told |= {name: value for name, value in edit.told.items() if name in told or name not in self.beside}
        return replace(edit, told=told, flags=written(told))

    def variable_at(self, word: Word) -> str:
        """The variable that has the value of a word, and where it is set, or whose default was taken; empty where the word has the value itself."""
        default = default_of(word)
        here = "" if default is None else f"default of {default}"
        here = here if word.said is None else f"{word.said.name} in line {word.said.spot.line}"
        return self.given_at(word) or here

    def given_at(self, word: Word) -> str:
        """The variable from outside the text that has the value of a word, and where it is given; empty where there is none."""
        name, file = self.file_of(word)
        return f"{name} of {file or '--set'}" if name else ""

    def file_of(self, word: Word) -> tuple[str, str]:
        """The variable from outside the text that has the value of a word, and the file beside the text that says it; empty without one."""
        if word.said is not None and word.said.file:
            return word.said.name, word.said.file
        name = given_in(word, self.outside)
        return (name, self.outside[name]) if name else ("", "")

    def _typed(self, edit: Edit, typed: Mapping[str, str], held: Held) -> Edit:
        """The edit as the command that checks the text with options that are ``typed`` beside what the user gave, and as what the text says then."""
        typed, stands = {**self.typed, **typed}, "" if edit.told else self._stands_at(self.beside)
        edit = replace(edit, effect=joined(stands, edit.effect))
        sets = {f"{self.name}.{OF_SERVER[name]}": text for name, text in typed.items() if name in self.own}
        new = {name: text for name, text in typed.items() if name not in self.own}
        options = {**{name: value for name, value in self.shared.items() if name not in new}, **new}
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
            if plan.fit is not None and plan.fit.fits:
                many = gpus_taken(options) or 0
                before = max(NODE, gpus_taken(self.server.settings) or 0, number(self.given.get("gpus")) or 0)
                if max(many, number(options.get("gpus")) or 0) > before and not has_other_nodes(self.server):
                    # One command starts a server on one node.
                    return Held()
                held = Held(gpus=many, certain=plan.fit.verdict is Verdict.FITS, accepting=self.accepting(plan))
                return replace(held, slower=slower(plan), refused=bool(self.refusal_of(plan)))
        return Held()

    def accepting(self, plan: Plan) -> str:
        """The option that accepts what a plan has grown; empty where nothing has grown more than is allowed."""
        return next((edit.accepting for item in self.grown(figures_of(plan)) for edit in item.edits), "")

    def refusal_of(self, plan: Plan) -> str:
        """Why the engine refuses the length; empty if it takes it."""
        longer = next((note.message for note in plan.warnings if note.code == BEYOND), "")
        needed = plan.request.environment and heeded(plan, self.server.variables) is plan
        return longer if needed and not self._stretched else ""

    @property
    def _stretched(self) -> bool:
        """True if the model may be stretched by a flag, which no plan reads."""
        server = self.server
        return any(_STRETCHES.search(name) for name in (*server.extra, *server.unplanned, *server.irrelevant) if " " not in name)


def given_in(word: Word, names: Collection[str]) -> str:
    """The first of these variables that stands in a word as it is written; empty without one."""
    text = _written(word)
    return next((name for name in sorted(names) if re.search(rf"\$[({{]*{re.escape(name)}(?!\w)", text)), "")


def default_of(word: Word) -> str | None:
    """The variable whose default is the value of a word; ``None`` where no default was taken, or where the variable alone would not be the value.

    Words that stand beside a default have it too, and are written without a variable.
    """
    return variable_of(word.taken[0]) if word.taken and "$" in _written(word) else None


def _written(word: Word) -> str:
    """How the value of a word is written: that of a variable of the text where the text sets it."""
    return word.raw if word.said is None else word.said.spot.written


def slower(plan: Plan) -> str:
    """What lies in host memory, which makes it slower; empty where nothing does."""
    return f"{SLOWER}: {plan.places}" if plan.partly_on_host else ""


def told_by(edit: Edit) -> object:
    """What an edit tells the engine, in whichever order, or else what it says."""
    return frozenset(edit.told.items()) if edit.flags else edit.yaml


def once(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits, each once, as many as are offered."""
    told = dict[str, Edit]()
    for edit in edits:
        told.setdefault(edit.flags or edit.yaml, edit)
    return tuple(islice(told.values(), MOST_EDITS))
