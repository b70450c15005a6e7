"""A command line in kvplan's own words: the command first, vLLM's names replaced, and others' names answered with ours.

Typer reads the translated line, and so knows kvplan's options alone. An unknown word is an error here, with what was probably meant.
Names and values of vLLM are read as vLLM reads them (``FlexibleArgumentParser`` and ``human_readable_int`` in
``utils/argparse_utils.py``, ``engine/arg_utils.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from hwcalc.cli.launch_line import LAUNCH, launch_line, refuse_program, starts_server
from hwcalc.cli.options import COMMANDS, DEFAULT, PLANNING, Option, command_meant, find_command, refuse_command
from hwcalc.errors import KvplanError, UsageError
from hwcalc.planner.asked import option_meant
from hwcalc.planner.options import ROWS
from hwcalc.profiles.engine_flags import VALUE, engine_flags, without
from hwcalc.text import brief, shell_word, shown

if TYPE_CHECKING:
    from hwcalc.cli.llamacpp import LlamacppWords


_NAMES_LLAMACPP: Final = r"(?i)llama[._-]?(?:cpp|server|cli)|ollama|gguf|(?:^| )(?:-hf|-hfr|--hf-repo)[ =]"
_HELP: Final = frozenset({"--help", "-h"})
_OF_ROOT: Final = frozenset({"--version", "-V", "--install-completion", "--show-completion", *_HELP})
_NUMBERS: Final = frozenset({"seq", "kv_memory", "max_num_batched_tokens", "max_model_len"})
"""Options and engine options whose vLLM flag takes ``32k`` (32,000) and ``32K`` (32,768)."""
_TOKENS: Final = frozenset({"seq", "max_num_batched_tokens", "max_model_len"})
"""Those of them for which kvplan's own option reads ``32k`` as 32,768."""
_MAX_LENGTH: Final = "--max-model-len"
"""VLLM's flag for the longest sequence that a server allows: the planned length, unless that is given too."""
_CACHE_DTYPE: Final = "--kv-cache-dtype"
_DTYPE: Final = "--dtype"
_LENGTHS: Final = frozenset({*ROWS["seq"].spellings, *ROWS["lengths"].spellings})
_LONGEST_NAME: Final = 8
"""Words of a model's name, at most."""
_PLAIN: Final = frozenset({"max_num_seqs", "block_size", "num_gpu_blocks_override"})
"""Engine options whose vLLM flag takes no letter behind its number, while kvplan's reads ``1k`` as 1,024."""


def with_command(words: Sequence[str]) -> list[str]:
    """The line with its command in front: the first word that is neither an option of ``plan`` nor its value; else ``plan``."""
    words = list(words)
    if not words or (words[0] in COMMANDS and words[0] != LAUNCH) or words[0].partition("=")[0] in _OF_ROOT:
        return words
    takes_value = {flag for option in PLANNING if option.kind != "flag" for flag in option.flags}
    takes_value |= {flag for flag, alias in aliases(PLANNING).items() if not alias.value}
    takes_value |= {flag for flag, values in NO_EFFECT.items() if values}
    if _llamacpp_words(words) is not None:
        from hwcalc.cli.llamacpp import FOLLOWED

        takes_value |= FOLLOWED
    launched = None if _HELP & set(words[:2]) else launch_line(words, takes_value)
    if launched is not None:
        return launched
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            break
        elif word.startswith("-") and word != "-":
            skip = word in takes_value
        elif word in COMMANDS:
            return [word, *words[:index], *words[index + 1 :]]
        else:
            break
    return [DEFAULT, *words]


def _llamacpp_words(words: Sequence[str]) -> LlamacppWords | None:
    """A reader of llama-server's flags if the line is about llama.cpp, else ``None``. Only such lines import its module."""
    if not re.search(_NAMES_LLAMACPP, " ".join(words)):
        return None
    from hwcalc.cli.llamacpp import LlamacppWords, runs_llamacpp

    return LlamacppWords() if runs_llamacpp(words) else None


def translated(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The line in kvplan's own words, and remarks on values that vLLM reads differently.

    Raises :class:`~hwcalc.errors.UsageError` for an option that the command does not have, and for a mistyped command.
    """
    line = with_command(words)
    if not line or line[0] not in COMMANDS:
        return line, ()
    reader = _Line(line[0], line[1:])
    return [line[0], *reader.read()], tuple(reader.remarks)


class _ForeignError(UsageError):
    """An option of another program. ``words`` are those of the line with kvplan's own; empty where they are not known."""

    words: tuple[str, ...] = ()


class _Line:
    """The words behind a command."""

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.command = command
        self.typed = tuple(words)
        self.words = list(words)
        self.options: tuple[Option, ...] = find_command(command).options
        self.own = {flag: option for option in self.options for flag in option.flags}
        self.aliases = aliases(self.options)
        self.remarks: list[str] = []
        self.free: list[str] = []
        self.values: dict[str, str] = {}
        """The values of the options that take one."""
        self.spelled: dict[str, str] = {}
        """Option -> the name that it was given by."""
        self.knob = ""
        """The first flag of vLLM's that is an engine option."""
        self.dropped: list[str] = []
        """Flags of servers that change no bytes."""
        self.unplanned: dict[str, str] = {}
        """Reason -> flags that bear on memory in a way that is not planned."""
        self.together: list[str] = []
        """Flags that say an option together, with their values."""
        self.takes_flags = any(option.name == "engine_options" for option in self.options)
        self.llamacpp = _llamacpp_words(self.words) if self.takes_flags else None
        self.llamacpp_flags: frozenset[str] = frozenset()
        """The flags of llama-server that are read on this line."""
        if self.llamacpp is not None:
            from hwcalc.cli.llamacpp import SERVER_FLAGS

            self.llamacpp_flags = SERVER_FLAGS - self.own.keys()
        before = self.words[: self.words.index("--")] if "--" in self.words else self.words
        self.asks_help = bool(_HELP & set(before))
        if self.takes_flags and any(word.partition("=")[0] in _LENGTHS for word in before):
            # Users send sequences of one length to a server that allows another one.
            self.aliases = {**self.aliases, _MAX_LENGTH: Alias(self.own["--engine-option"], "max_model_len")}
        if self.takes_flags and any(word.partition("=")[0].replace("_", "-") == _CACHE_DTYPE for word in before):
            # Beside it --dtype is vLLM's own: that of the model.
            self.aliases = {**self.aliases, _DTYPE: Alias(self.own["--engine-option"], "dtype")}
            self.own.pop(_DTYPE, None)

    def read(self) -> list[str]:
        """The words of the line, with names of vLLM's replaced by kvplan's."""
        out: list[str] = []
        experts: str | None = None
        while self.words:
            word = self.words.pop(0)
            if word == "--":
                out += [word, *self.words]
                self.free += self.words
                break
            if word == "-" or not word.startswith("-"):
                self.free.append(word)
                out.append(word)
                continue
            # vLLM's own spelling of a level without a blank: -O3.
            level = word.removeprefix("-O") if self.takes_flags else ""
            flag, equals, value = ("-O", "=", level) if level.isdigit() else word.partition("=")
            spelled = flag.replace("_", "-")
            alias = self.aliases.get(spelled) if flag not in self.own else None
            if self.llamacpp is not None and flag in self.llamacpp_flags:
                self.llamacpp.read(flag, value if equals else None, self.words)
            elif self.takes_flags and flag not in self.own and spelled in TOGETHER:
                self.gather(spelled, value if equals else None)
            elif (
                self.takes_flags and flag not in self.own and spelled == _MODEL and (equals or self.words) and not self.asks_help
            ):
                self.free.append(value if equals else self.words.pop(0))
                out.append(self.free[-1])
            elif self.takes_flags and flag not in self.own and spelled in NO_EFFECT:
                self.drop(spelled, has_value=bool(equals))
            elif alias is None:
                out += self.own_words(word, flag, value if equals else None)
            elif alias.option.name == "ep":
                experts = self.switch(flag, equals, alias)
            else:
                out += self.foreign_words(flag, value if equals else None, alias)
        if self.llamacpp is not None:
            out = [*self.llamacpp_words(self.llamacpp), *out]
        if self.together and not self.asks_help:
            out += self.together_words()
        self.remarks += [f"warning: {said}" for said in without(self.unplanned)]
        if self.dropped:
            names = ", ".join(dict.fromkeys(self.dropped))
            self.remarks.append(f"Left out, because no byte that is planned depends on it: {names}.")
        if not self.asks_help:
            self.check_words()
        return [*self.expert_words(experts), *out]

    def llamacpp_words(self, read: LlamacppWords) -> list[str]:
        """The flags of llama-server in kvplan's words, with the model that they name."""
        self.dropped += read.dropped
        self.remarks += read.remarks()
        model = read.named()
        if model and self.free:
            # The name of llama.cpp's program may be among them.
            program = self.free[0].rpartition("/")[2].removesuffix(".exe")
            hint = f"Leave out {program}, and paste what stands behind it." if program.startswith("llama-") else ""
            message = f"{shown(model, 60)} and {shown(self.free[0], 60)} both name the model."
            raise UsageError(message, hint=hint or "Leave one of them out.")
        self.free += [model] if model else []
        return [*([model] if model else []), *read.words(self.values)]

    def drop(self, flag: str, *, has_value: bool) -> None:
        """Leave a flag out, with its value.

        A flag of several values loses all up to the next flag, if the model stands before it.
        """
        if flag in _FLAGS.unplanned:
            self.unplanned[flag] = _FLAGS.unplanned[flag]
        else:
            self.dropped.append(flag)
        if has_value or not NO_EFFECT[flag]:
            return
        most = len(self.words) if NO_EFFECT[flag] == "+" and self.free else 1
        while most and self.words and not self.words[0].startswith("--"):
            self.words.pop(0)
            most -= 1

    def gather(self, flag: str, value: str | None) -> None:
        """Keep a flag that says an option together with others, and its value; a switch has none."""
        self.together.append(flag)
        if _FLAGS.spelled[flag].takes != "switch":
            self.together.append(value if value is not None else self.words.pop(0) if self.words else "")

    def together_words(self) -> list[str]:
        """The options that several flags of vLLM's say together: a draft, and adapters."""
        from hwcalc.engines.facts import Told
        from hwcalc.engines.vllm.engine import SPECULATIVE, VllmCommand
        from hwcalc.launch.arguments import Reading
        from hwcalc.launch.words import words_of

        reading = Reading(_FLAGS)
        reading.read(words_of(self.together))
        drafts = [each for each in self.together if TOGETHER.get(each) == "speculative"]
        said = reading.settings.get("speculative")
        if drafts and not (isinstance(said, dict) and said):
            given = self.together[self.together.index(drafts[0]) + 1]
            raise UsageError(f"{drafts[0]} {shown(given, 40)} is not a JSON mapping.", hint=SPECULATIVE)
        options = VllmCommand().asked(Told(options={}, settings=reading.settings, extra={}))
        words: list[str] = []
        if drafts:
            self.knob = self.knob or drafts[0]
            words += ["--engine-option", f"speculative={options['engine_options']['speculative']}"]
        return words + (["--lora", options["lora"]] if "lora" in options and "--lora" in self.own else [])

    def own_words(self, word: str, flag: str, value: str | None) -> list[str]:
        """The words of an option of kvplan's own, with its value. Raises an error for an unknown option."""
        option = self.own.get(flag)
        if option is None and self.command == "help" and flag not in _HELP:
            # An option is a word that can be explained.
            self.free.append(flag.lstrip("-"))
            return [flag.lstrip("-")]
        if option is None:
            bundle = not word.startswith("--") and f"-{word[1]}" in self.own
            if not bundle and flag not in _HELP and not self.asks_help:
                self.refuse(flag, value)
            return [word]
        if option.kind == "flag":
            return [word]
        rest = [] if value is not None else self.words[:1]
        if rest and rest[0] in _HELP:
            # Whoever asks for help in the place of a value gets it.
            return []
        if value is None and option.bare and not "".join(rest)[:1].isdecimal():
            return [word, option.bare]
        following = rest[0].partition("=")[0] if rest else ""
        if (following in self.own or (following.startswith("--") and following in self.aliases)) and not self.asks_help:
            raise UsageError(f"{flag} has no value.", hint=f"Write: {flag} {option.metavar}")
        del self.words[: len(rest)]
        self.give(option, flag, value if value is not None else "".join(rest))
        return [word, *rest]

    def refuse(self, flag: str, value: str | None) -> NoReturn:
        """Raise an error for an unknown option. The hint has the whole line to type where it is known, unless there may be a secret in it."""
        hint = meant(flag, self.command, self.options, value or "".join(self.words[:1])) or f"See: kvplan {self.command} --help"
        error = _ForeignError(f"{self.command} has no option {brief(flag, 60)}.", hint=hint)
        error.words = self.renamed(flag, value)
        if error.words and (line := self.whole(error.words)):
            error.hint = f"{hint.partition(': kvplan ')[0]}: {line}"
        raise error

    def whole(self, words: Sequence[str]) -> str:
        """The line of these words, to be typed; empty if there may be a secret in it."""
        from hwcalc.masking import masked

        line = " ".join(map(shell_word, ("kvplan", *(() if self.command == DEFAULT else (self.command,)), *words)))
        return line if masked(line) == line and not any(word.startswith("-hft") for word in words) else ""

    def renamed(self, flag: str, value: str | None) -> tuple[str, ...]:
        """The words of the line with kvplan's own option for one of another program, and for those after it; empty where one has no value of ours."""
        answer = FOREIGN.get(_spelled(flag), "")
        name = answer.partition(" ")[0]
        option = next((each for each in self.options if not each.flags), None) if answer == "MODEL" else self.own.get(name)
        before, after = self.typed[: len(self.typed) - len(self.words) - 1], self.words
        given = {word.partition("=")[0] for word in (*before, *after)}
        if option is None or _spelled(flag) in _NOTES or not given.isdisjoint(option.flags) or (answer == "MODEL" and self.free):
            return ()
        if answer in (name, "MODEL") and option.kind != "flag":
            value, after = (value, after) if value is not None else ("".join(after[:1]), after[1:])
            if not self.reads(option, value):
                return ()
            words = [*before, *option.flags[:1], value, *after]
        elif answer.islower() and value is None:
            # A switch is an option with its value: --weights bnb4.
            words = [*before, *answer.split(), *after]
        else:
            return ()
        try:
            command, *others = with_command(words) if self.command == DEFAULT else (self.command, *words)
            if command != self.command:
                return ()
            _Line(command, others).read()
        except _ForeignError as error:
            return error.words
        except UsageError:
            return ()
        return tuple(words)

    def reads(self, option: Option, value: str) -> bool:
        """True if a value is one of the option's: a known name, or what its type reads."""
        from hwcalc.cli import completion

        if not value or not option.flags:
            return bool(value)
        if option.flags[0] in ("--gpu", "--engine"):
            return self.flag_meant(value) == option.flags[0]
        if option.complete is not None:
            return value.lower() in getattr(completion, option.complete)(value.lower())
        with suppress(KvplanError):
            ROWS[option.name].read(value)
            return True
        return False

    def give(self, option: Option, flag: str, value: str) -> None:
        """Keep the value of an option. Raises an error if it is given by two names; Typer refuses the same name twice."""
        before = self.spelled.setdefault(option.name, flag)
        foreign = before not in self.own or flag not in self.own
        if before != flag and foreign and option.kind == "text" and not self.asks_help:
            raise UsageError(f"{before} and {flag} are the same option, and it takes one value.", hint="Give one of them.")
        self.values[option.name] = value

    @staticmethod
    def switch(flag: str, equals: str, alias: Alias) -> str:
        """The value of a switch."""
        if equals:
            raise UsageError(f"{flag} takes no value.", hint=f"Write: {flag}")
        return alias.value

    def foreign_words(self, flag: str, value: str | None, alias: Alias) -> list[str]:
        """The words of kvplan's option for a name of vLLM's and its value."""
        own = alias.option.flags[0]
        self.knob = self.knob or (flag if alias.knob else "")
        if alias.value:
            return [own, f"{alias.knob}={self.switch(flag, '' if value is None else '=', alias)}"]
        if value is None:
            if not self.words or self.words[0].startswith("--") or self.words[0] in _HELP:
                if self.asks_help:
                    return []
                raise UsageError(f"{flag} has no value.", hint=f"Write: {flag} {'N' if alias.knob else alias.option.metavar}")
            value = self.words.pop(0)
        name = alias.knob or alias.option.name
        value = self.read_value(flag, name, value, own)
        if alias.knob:
            return [own, f"{alias.knob}={value}"]
        self.give(alias.option, flag, value)
        return [f"{own}={value}"] if value.startswith("-") else [own, value]

    def read_value(self, flag: str, name: str, value: str, own: str) -> str:
        """The text of a value as vLLM reads it, for kvplan's own option."""
        row = _FLAGS.spelled.get(flag.replace("_", "-"))
        if row is not None and value.lower() in row.plan_as:
            said = row.plan_as[value.lower()]
            if said is None:
                message = f"{flag} {brief(value, 40)} names no format: the checkpoint has it."
                raise UsageError(message, hint="Leave it out: weights are planned as published.")
            return said
        if name in _PLAIN and value.strip()[-1:].isalpha() and _with_unit(value) is not None:
            message = f"{flag} {brief(value, 40)}: vLLM takes a plain number."
            raise UsageError(message, hint=f"Write it out, or {own} {name}={value}")
        if name not in _NUMBERS:
            return value
        if flag.replace("_", "-") == _MAX_LENGTH and value.strip().lower() in {"auto", "-1"}:
            message = f"{flag} {value} asks for the longest sequence that fits."
            raise UsageError(message, hint="Leave it out: with a GPU, the plan says what the longest is.")
        return ",".join(self.number(flag, name, part, own) for part in value.split(","))

    def number(self, flag: str, name: str, text: str, own: str) -> str:
        plain = text.strip()
        number, letter = _with_unit(plain), plain[-1:]
        if number is None:
            if letter in "KMGT" and letter and _with_unit(plain.replace(".", "")) is not None:
                raise UsageError(f"{flag} {text}: vLLM takes no part of {letter}.", hint=f"Write a whole number, or {own} {text}")
            if name in _TOKENS:
                message = f"{flag} {shown(text, 40)} is not a number as vLLM writes it."
                raise UsageError(message, hint=f"Write: {flag} 32768, or {own} 32k")
            return text
        if letter.islower() and name in _TOKENS:
            power = "kmgt".index(letter) + 1
            ours = number * 1024**power // 1000**power
            self.remarks.append(f"{flag} {text} is {number:,}, as vLLM reads it; {text} of kvplan is {ours:,}.")
        return str(number) if letter.isalpha() else text

    def expert_words(self, experts: str | None) -> list[str]:
        """``--ep`` for ``--enable-expert-parallel``: vLLM deals the experts out over all ranks of tensor and data parallelism."""
        if experts != "on" or self.asks_help:
            return []
        sizes = {name: self.values.get(name) for name in ("tp", "pp", "dp", "gpus")}
        numbers = {
            name: int(text) for name, text in sizes.items() if text and text.isascii() and text.isdigit() and len(text) < 10
        }
        if any(text is not None and name not in numbers for name, text in sizes.items()):
            raise UsageError("--enable-expert-parallel needs one number of ranks.", hint="Write --ep N: tp x dp.")
        count = numbers.get("gpus")
        if not count and "instance" in self.values:
            from hwcalc.hardware.named import instance_named
            from hwcalc.hardware.profiles import profile_errors

            with profile_errors():
                count = instance_named(self.values["instance"]).count
        self.give(self.own["--ep"], "--enable-expert-parallel", "")
        parallel = numbers.keys() & {"tp", "pp", "dp"}
        ranks = numbers.get("tp", 1) * numbers.get("dp", 1) if parallel or count is None else count
        return ["--ep", str(ranks)] if ranks > 1 else []

    def check_words(self) -> None:
        """Raise an error for words that belong to no option and are too many, as behind a mistyped command, and for vLLM's flags alone.

        A log names its engine itself.
        """
        if self.command == LAUNCH:
            # The words are another program's.
            return
        if len(self.free) > 1 and starts_server(self.free):
            line = " ".join(map(shell_word, self.free))
            hint = f"Plan what it starts: kvplan -- {line} ..."
            raise UsageError(f"{self.command} takes a model, and {brief(line, 40)} starts a server.", hint=hint)
        if self.knob and self.command != "reconcile" and "vllm" not in self.values.get("engine", "").lower():
            raise UsageError(f"{self.knob} is an option of vLLM.", hint="Add: --engine vllm")
        argument = next((option for option in self.options if not option.flags), None)
        if self.command == DEFAULT and len(self.free) > 1 and command_meant(self.free[0]):
            others = self.typed[1:] if self.typed[0] == self.free[0] else ()
            refuse_command(self.free[0], others if others and self.whole(others) else self.free[1:])
        if self.command == DEFAULT and len(self.free) > 1:
            refuse_program(self.free)
        most = 0 if argument is None else 1
        if (argument is not None and argument.kind == "list") or len(self.free) <= most:
            return
        extra = self.free[most]
        hint = f"See: kvplan {self.command} --help"
        if self.command == DEFAULT and (line := self.as_one_name()):
            hint = f"A name with blanks stands in quotes: {line}"
        elif (flag := self.flag_meant(extra)) and self.own[flag].name not in self.values:
            hint = f"Perhaps: {flag} {shell_word(brief(extra, 40))}"
        elif self.command == DEFAULT:
            hint = "Several models side by side: kvplan compare A B. An option's value follows its option; -q is --quiet."
        elif argument is not None and argument.name == "model":
            hint = f"{self.command} takes one model at a time. Several side by side: kvplan compare A B."
        raise UsageError(f"{self.command} does not take the argument {shown(extra, 40)}.", hint=hint)

    def as_one_name(self) -> str:
        """The line with its free words as one, where they stand together and are the name of a known model: Llama 3.1 8B; else empty."""
        from hwcalc.sources.listing import known_ids, matching

        count = len(self.free)
        places = range(len(self.typed)) if count <= _LONGEST_NAME else ()
        place = next((at for at in places if list(self.typed[at : at + count]) == self.free), None)
        if place is None or not matching("-".join(self.free), known_ids()):
            return ""
        return self.whole([*self.typed[:place], " ".join(self.free), *self.typed[place + count :]])

    def flag_meant(self, word: str) -> str:
        """The option of this command whose value the word is; else empty."""
        flag = f"--{option_meant(word)}"
        return flag if flag in self.own else ""


def _with_unit(text: str) -> int | None:
    """A number as vLLM writes it; ``None`` for what is none."""
    from hwcalc.launch.arguments import with_unit

    return with_unit(text)


_FLAGS: Final = engine_flags("vllm")
VLLM: Final = _FLAGS.options
"""Option of kvplan -> vLLM's names for it. Its short ``-q`` is missing: that is ``--quiet`` here."""
VLLM_OPTIONS: Final = _FLAGS.values
"""Engine options of vLLM with a value; the flag has the same name."""
SWITCHES: Final = _FLAGS.switches
"""Engine options of vLLM that are switches: ``--no-...`` turns them off."""
TOGETHER: Final = {flag: option for option, flags in _FLAGS.together.items() for flag in flags}
"""Flags of vLLM that say an option together -> the option: an engine option, or one of a plan."""


_MODEL: Final = "--model"


def _same(answer: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, answer)


FOREIGN: Final[Mapping[str, str]] = {
    **_same(
        "--users",
        "--num-users", "--concurrent-users", "--requests", "--num-requests", "--sequences", "--num-seqs", "--parallel", "-np",
        "--max-running-requests", "--max-batch-size", "--batch-size", "-b", "--max-concurrent-requests", "--bs",
    ),
    **_same(
        "--seq",
        "--context-length", "--context-size", "--ctx", "--ctx-size", "--num-ctx", "--n-ctx", "-c", "--max-len",
        "--max-length", "--length", "--max-context", "--max-seq-len", "--max-seq-length", "--seq-len", "--seq-length",
        "--sequence", "--sequence-length", "--session-len", "--max-total-tokens", "--max-tokens", "--tokens",
        "--input-len", "--output-len", "--prompt-len", "--max-new-tokens", "--max-input-length", "--isl", "--osl",
    ),
    **_same("--min-rate", "--min-speed", "--min-tps", "--min-tokens-per-second"),
    **_same("--ttft", "--max-ttft", "--time-to-first-token"),
    **_same("--itl", "--max-itl", "--max-tpot", "--inter-token-latency"),
    **_same("--weights", "--quantize", "--quantise", "--weight-dtype", "--precision", "--wtype"),
    **_same("--weights bnb4", "--load-in-4bit"),
    **_same("--weights bnb8", "--load-in-8bit"),
    **_same("--dtype", "--kv-dtype", "--kv", "--cache-dtype", "--kv-quant", "--kv-type", "--kv-bits", "--quant-policy"),
    **_same("--dtype K:V", "--cache-type-k", "-ctk", "--cache-type-v", "-ctv"),
    **_same(
        "--memory-utilization",
        "--mem-fraction-static", "--free-gpu-memory-fraction", "--kv-cache-free-gpu-mem-fraction", "--gpu-memory-fraction",
        "--cuda-memory-fraction", "--cache-max-entry-count", "--utilization", "--gpu-utilization",
    ),
    **_same("--kv-memory", "--kv-cache-memory", "--kv-cache-size", "--cache-size"),
    **_same("--margin", "--fit-target", "--headroom", "--reserve"),
    **_same("--gpu", "--device", "--devices", "--card", "--accelerator", "--hardware", "--chip", "--vram"),
    **_same("--gpus", "--num-gpus", "--n-gpus", "--ngpu", "--gpu-count", "--gpus-per-node"),
    **_same("--instance", "--machine", "--vm", "--instance-type"),
    **_same("--tp", "--tp-size", "--tensor-parallel", "--num-shard", "--world-size"),
    **_same("--pp", "--pp-size", "--pipeline-parallel"),
    **_same("--dp", "--dp-size", "--data-parallel", "--replicas"),
    **_same("--dcp", "--dcp-size", "--context-parallel-size", "--cp", "--cp-size"),
    **_same("--ep", "--ep-size", "--expert-parallel-size", "--expert-parallel", "--moe-ep-size"),
    **_same("--engine", "--backend", "--framework", "--runtime", "--server"),
    **_same(
        "--draft",
        "--draft-model", "--model-draft", "-md", "--speculative-model", "--speculative-draft-model-path",
    ),
    **_same("--engine-option speculative=ngram:N", "--speculative-algorithm", "--num-speculative-tokens"),
    **_same("--lora rank=R,count=N", "--lora-paths", "--adapter"),
    **_same("--engine-option max_num_batched_tokens=N", "--chunked-prefill-size", "--max-num-tokens"),
    **_same("--engine-option block_size=N", "--page-size", "--kv-block-size", "--tokens-per-block", "--cache-block-seq-len"),
    **_same("--engine-option cpu_offload_gb=N", "--cpu-offload"),
    **_same("--engine-option mmproj=1178MiB", "--mmproj", "-mm", "--mmproj-url"),
    **_same("--engine llamacpp -ngl N", "-ngl", "--gpu-layers", "--n-gpu-layers", "--num-gpu", "--n-gpu"),
    **_same("--engine llamacpp -ub N", "-ub", "--num-batch", "--n-ubatch"),
    **_same("--engine llamacpp -fa on", "-fa", "--flash-attn", "--flash-attention"),
    **_same("--engine llamacpp -ncmoe N", "-ncmoe", "--n-cpu-moe"),
    **_same("--engine llamacpp -cmoe", "-cmoe", "--cpu-moe"),
    **_same("--engine llamacpp -ts N,N", "-ts", "--tensor-split"),
    **_same("--engine llamacpp -ot PATTERN=CPU", "-ot", "--override-tensor"),
    **_same("--engine llamacpp --swa-full", "--swa-full"),
    **_same("--engine llamacpp -kvu", "-kvu", "--kv-unified"),
    **_same("--engine-option", "--option", "--options", "--set", "--extra-args"),
    **_same("--ram", "--host-memory", "--system-memory", "--memory", "--cpu-memory", "--dram"),
    **_same("--token", "-hft"),
    **_same("--endpoint", "--hf-endpoint", "--hub", "--mirror"),
    **_same("--offline", "--no-network", "--local-files-only"),
    **_same("--revision", "--branch", "--commit"),
    **_same("--format", "--output-format", "--fmt", "--as", "-f"),
    **_same("--format csv", "--csv"),
    **_same("--format markdown", "--markdown", "--md"),
    **_same("--quiet", "--silent", "-s"),
    **_same("kvplan takes a window as a part of the layers, sliding(window=N): kvplan help layers", "--window", "--sliding-window"),
    **_same("kvplan --version", "--version", "-V"),
    **_same("kvplan writes to standard output: > FILE", "--output", "-o", "--out", "--outfile", "--save"),
    **_same("MODEL", "--model", "--models", "-m", "--model-id", "--model-path", "--model-name", "--hf-repo", "-hf", "-hfr", "--id"),
}  # fmt: skip
"""Names in other programs (vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy, Ollama, calculators) -> what kvplan calls it."""

NO_EFFECT: Final[Mapping[str, str]] = {
    **_FLAGS.takes,
    # llama.cpp's, on a line that names another engine.
    **_same(VALUE, "--threads", "-t", "--n-predict", "--temp"),
}
"""Options of servers that are left out -> how many values follow: none, one, or ``+`` for one or more."""


class Alias(NamedTuple):
    """The kvplan option that a name of vLLM's stands for. For ``engine_options`` it also has the name of the engine option."""

    option: Option
    knob: str = ""
    value: str = ""
    """The value that a switch stands for; empty if the value follows."""


def aliases(options: Iterable[Option]) -> dict[str, Alias]:
    """VLLM's names for the options of a command, by spelling."""
    out: dict[str, Alias] = {}
    for option in options:
        for spelling in VLLM.get(option.name, ()) if option.flags else ():
            out[spelling] = Alias(option, value="on" if option.name == "ep" else "")
        if option.name == "ep":
            out["--no-enable-expert-parallel"] = Alias(option, value="off")
        if option.name == "engine_options":
            out |= {_flag(knob): Alias(option, knob) for knob in VLLM_OPTIONS}
            out |= {_flag(knob): Alias(option, knob, "true") for knob in SWITCHES}
            out |= {_flag(f"no_{knob}"): Alias(option, knob, "false") for knob in SWITCHES}
    return out


def aliases_of(option: Option) -> str:
    """VLLM's names for an option, as its help shows them."""
    if option.name == "engine_options":
        first = ", ".join(_flag(knob) for knob in VLLM_OPTIONS[:3])
        return f"vLLM's flags are taken too: {first}, {_flag(SWITCHES[0])}, ..."
    names = VLLM.get(option.name, ()) if option.flags else ()
    return f"vLLM: {', '.join(names)}." if names else ""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _spelled(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag


_EXAMPLE_PROMPT: Final = 4096


def meant(flag: str, command: str, options: Iterable[Option], given: str = "") -> str:
    """The hint for an option that a command does not have, with the value that was ``given``: kvplan's own name for it, or names that look
    like it; else empty.
    """
    rows = tuple(options)
    own = {spelling: option for option in rows for spelling in option.flags}
    name = _spelled(flag)
    if name in NO_EFFECT:
        return "It changes no bytes: leave it out."
    answer = FOREIGN.get(name, "")
    if answer == "MODEL":
        argument = next((option.metavar for option in rows if not option.flags), "")
        return f"kvplan takes it without an option: kvplan {command} {argument}" if argument else ""
    if name == "--output" and "--prompt" in own and given[:9].isdecimal():
        tokens = _EXAMPLE_PROMPT + int(given[:9])
        return f"An answer has what the prompt leaves of --seq. With {_EXAMPLE_PROMPT} tokens before it: --prompt {_EXAMPLE_PROMPT} --seq {tokens}"
    first = answer.partition(" ")[0]
    if first in own:
        value = f" {own[first].metavar}" if answer == first and own[first].metavar else ""
        return f"{_NOTES.get(name, 'kvplan calls it')} {answer}{value}"
    if first == "kvplan":
        return answer
    row = next((row for row in find_command(DEFAULT).options if name in row.flags), None)
    if row is not None and command == "fleet":
        return _in_file(row)
    if row is not None and command != DEFAULT and "--seq" in own:
        others = [each for each in ("compare", "plot") if any(name in other.flags for other in find_command(each).options)]
        more = f"; {' and '.join(others)} take{'' if len(others) > 1 else 's'} it too" if others else ""
        return f"It is an option of a single plan: kvplan MODEL {' '.join(filter(None, (name, row.metavar)))}{more}"
    from difflib import get_close_matches

    # Options, vLLM's too, that resemble a mistyped name; else kvplan's name for a similar name of another program.
    near = get_close_matches(name.lower(), [*own, "--help", *aliases(rows)], n=2, cutoff=0.7)
    if not near:
        foreign = {spelling: said for spelling, said in FOREIGN.items() if said.partition(" ")[0] in own}
        near = [foreign[each] for each in get_close_matches(name.lower(), foreign, n=1, cutoff=0.8)]
    return f"Did you mean: {' or '.join(near)}" if near else ""


def _in_file(row: Option) -> str:
    """What to write in a fleet's file in the place of an option of a plan; empty if there is nothing."""
    from hwcalc.fleet.file import FIELDS

    if row.name in {"own", "kwh"}:
        return "Nodes of your own are those of the file without rent, and cost nothing there. Their power: kvplan MODEL --gpu 8xh100 --own 8xh100 --kwh 0.15"
    if row.name in {"gpu", "gpus", "instance"}:
        return "Nodes stand in the file: nodes: [{gpu: 8xh100, count: 2}, {instance: aws/p5.48xlarge, rent: true}]"
    key = "users" if row.name == "batch" else row.name
    return f"It stands in the file, in a model or under defaults: {key}: {row.metavar}" if key in FIELDS else ""


_NOTES: Final = {
    **_same(
        "kvplan takes prompt and output together:",
        "--input-len", "--output-len", "--isl", "--osl", "--prompt-len", "--max-new-tokens", "--max-tokens", "--max-input-length",
    ),
    "--cpu-offload": "Weights in host memory are planned for vLLM, in GB:",
    **dict.fromkeys(
        (flag for flag, answer in FOREIGN.items() if answer.startswith("--engine llamacpp")), "It is an option of llama.cpp:"
    ),
}  # fmt: skip
"""Words before the answer, where the two do not mean the same."""
