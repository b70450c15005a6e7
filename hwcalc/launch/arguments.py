"""The arguments of a server, read by the rules of its engine: spellings, abbreviations, units, JSON and dotted keys, files of flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.launch.words import NOWHERE, SaidText, Spot, Word
from hwcalc.profiles.engine_flags import SWITCH_VALUES, EngineFlags, Flag, Variable

if TYPE_CHECKING:
    from hwcalc.launch.documents import Places

_NUMBER: Final = re.compile(r"-?\d{1,18}")
_DECIMAL: Final = re.compile(r"-?(?:\d{1,18}\.\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,3})?|-?\d{1,18}[eE][-+]?\d{1,3}")
_WITH_UNIT: Final = re.compile(r"(?a)(\d{1,19}(?:\.\d{1,9})?)([kKmMgGtT])")
_POWERS: Final = {letter: power for power, letter in enumerate("kmgt", start=1)}
_WORDS: Final = {"true": True, "false": False}
_MEMORY: Final = re.compile(r"mem|cache|offload|gpu|expert|quant|batch|ctx|context")
"""A flag that nobody knows bears on memory if its name says so."""
_PLACEHOLDER: Final = re.compile(
    r"<[^<>]{1,80}>|\[[A-Za-z][\w /.-]{1,60}\]|\{[A-Za-z][\w.]{0,60}\}|(?:REPLACE|CHANGE)_?ME|YOUR[-_ ].{1,40}|\.\.\.",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(r"\$+(?:\((?=\w+\))|\{)?([A-Za-z_]\w*)(?![\w^,@]|:[ \d]|//?[^/}]*[*?\[\\$\"'])")
_DEEPEST: Final = 40
_DASHES: Final = "\N{EM DASH}\N{EN DASH}"
_GGUF: Final = re.compile(
    r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32|FP16)(?:_R\d)?)(?=[-.]|$)"
)


class Reading:
    """What the arguments of a server say, while they are read."""

    def __init__(self, flags: EngineFlags) -> None:
        self.flags = flags
        self.settings: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        self.unresolved: list[str] = []
        self.irrelevant: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self.unplanned: dict[str, str] = {}
        self.asks: dict[str, None] = {}
        self.places: dict[str, Word] = {}
        self.words: list[Word] = []
        self.at = Word(text="")
        """The flag that is being read."""
        self.free: list[Word] = []
        self.configs: list[tuple[str, Word]] = []
        self.faults: list[str] = []
        self.variables: set[str] = set()
        self.open: set[str] = set()
        """Settings whose value is not known."""
        self.excluded = False
        self.images = False

    # --- values -------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Note what is left open, once."""
        if text not in self.unresolved:
            self.unresolved.append(text)

    def ask(self, word: Word) -> None:
        """Note the variables whose value would be needed."""
        for raw in word.unknown:
            name = variable_of(raw)
            if name is not None:
                self.asks[name] = None

    def put(self, flag: Flag, value: Any, word: Word | None = None) -> None:
        """Keep the value of a flag, which ``word`` says: as a setting, as a part of one, or in ``extra``."""
        if flag.role is not None:
            self.settings["role"] = flag.role
            return
        key = flag.key
        if key is not None and flag.word is not None and isinstance(value, str):
            key = flag.word
        if flag.values_as:
            said = str(value).lower()
            meant = flag.values_as.get(said, value if isinstance(value, str) else None)
            if flag.also:
                self.extra[flag.name] = value
            if meant is None:
                self.settings.pop(key or flag.name, None)
                return
            value = meant
        if key is None:
            self.extra[flag.name] = value
            self.places[flag.name] = word or self.at
            return
        whole, _, part = key.partition(".")
        self.places[whole] = word or self.at
        if part:
            held = self.settings.get(whole)
            if not isinstance(held, dict):
                held = self.settings[whole] = {}
            if isinstance(value, dict) and part == "type":
                held |= value
            elif flag.takes == "list" and isinstance(held.get(part), list):
                held[part] = [*held[part], *value]
            else:
                held[part] = value
        elif flag.repeats:
            self.settings[key] = [*self.settings.get(key, []), value]
        elif isinstance(value, dict) and isinstance(self.settings.get(key), dict):
            self.settings[key] = {**self.settings[key], **value}
        else:
            self.settings[key] = value
        self.open.discard(key)

    def stated(self, key: str, value: Any, spot: Spot) -> None:
        """Keep a setting that stands in a manifest by itself, unless an argument says another."""
        if key not in self.settings:
            self.settings[key], self.places[key] = value, Word(text=str(value), spot=spot)

    def label(self, flag: Flag) -> str:
        """The name of a flag in ``unresolved``."""
        return flag.key or flag.name

    def value(self, flag: Flag, word: Word, spelled: str) -> None:
        """Read the value of a flag."""
        text, label = word.text, self.label(flag)
        if flag.takes == "secret":
            return
        # Where it is not known, that is what has to be said of it.
        self.places[label.partition(".")[0]] = word
        if not word.known:
            self.ask(word)
            if word.remark:
                self.say(f"{label}={word.raw} {word.remark}")
                return
            if flag.key == "model" or flag.takes == "text" or flag.word is not None:
                self.model_path(flag, word)
                return
            if flag.repeats or self.holds_json(text):
                self.say(f"{label}: {text[:200]}")
                if not flag.repeats:
                    return
                self.put(flag, f"{spelled} {text}" if flag.written else text, word)
                return
            self.say(f"{label}={text}")
            self.settings.pop(label, None)
            self.open.add(label)
            return
        if flag.ask:
            self.say(f"{label}: {spelled} {text}")
            return
        if _PLACEHOLDER.fullmatch(text) and flag.takes in ("value", "text", "tokens", "whole"):
            self.say(f"{label}={text}")
            self.open.add(label)
            return
        if text == "" and flag.takes != "switch":
            self.say(f"{label}={word.raw}" if word.raw else f"{label} is empty")
            return
        read = self.parsed(flag, text, spelled)
        if read is _NOTHING:
            return
        if word.taken:
            raw = word.taken[0]
            self.say(f"{label}={raw} (default taken)" if ":-" in raw or "-" in raw else f"{label}={raw}")
        self.put(flag, f"{spelled} {read}" if flag.written else read, word)

    @staticmethod
    def holds_json(text: str) -> bool:
        return text.startswith(("{", "["))

    def model_path(self, flag: Flag, word: Word) -> None:
        """A path of which only the folder is not known keeps its name."""
        label = self.label(flag)
        folder, slash, name = word.text.rpartition("/")
        if slash and name and "$" in folder and not any(sign in name for sign in "${}<>") and re.search(r"\.\w+$", name):
            self.put(flag, word.text, word)
            self.say(f"{label} directory {word.unknown[0]}")
            return
        self.say(f"{label}={word.text}")
        self.settings.pop(label, None)
        self.open.add(label)

    def parsed(self, flag: Flag, text: str, spelled: str) -> Any:
        """The value of a flag; :data:`_NOTHING` if it is none."""
        if flag.takes == "text":
            return text
        if flag.takes == "numbers":
            return [scalar(each) for each in re.split(r"[,/]", text)]
        if flag.takes == "commas":
            return [each for each in text.split(",") if each]
        if flag.takes == "list":
            return [text]
        if flag.takes == "tokens":
            return self.tokens(flag, text, spelled)
        if flag.takes == "whole":
            return self.whole(flag, text, spelled)
        if flag.takes == "pairs" and "=" in text and not text.startswith("{"):
            pairs = (each.partition("=") for each in text.split(","))
            return {name.strip(): scalar(value.strip()) for name, _, value in pairs}
        if flag.takes == "spec":
            kind, colon, rest = text.partition(":")
            pairs = (each.partition("=") for each in (rest.split(",") if colon else ()))
            return {"type": kind} | {name: scalar(value) for name, _, value in pairs if name}
        value = scalar(text)
        if self.holds_json(text):
            document = parse_json(text)
            if document is _NOTHING:
                self.say(f"{self.label(flag)}: {text[:200]}")
                return _NOTHING
            return document
        return value

    def whole(self, flag: Flag, text: str, spelled: str) -> Any:
        """A whole number, without a unit."""
        number = scalar(text)
        return number if isinstance(number, int) else self.refused(flag, text, spelled)

    def tokens(self, flag: Flag, text: str, spelled: str) -> Any:
        """A number with a unit as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768."""
        number = with_unit(text)
        if number is None and text.lower() in ("auto", "-1"):
            return -1 if text == "-1" else "auto"
        return self.refused(flag, text, spelled) if number is None else number

    def refused(self, flag: Flag, text: str, spelled: str) -> object:
        """No value, noted as one that the engine does not take."""
        self.fault(f"{spelled} {text}", spelled)
        self.say(f"{self.label(flag)}={text}")
        return _NOTHING

    def fault(self, said: str, spelled: str) -> None:
        """Note what the engine does not take so, which makes it end at once."""
        self.faults.append(said)
        self.places[spelled] = self.at

    # --- flags --------------------------------------------------------------------------------------------------------

    def read(self, words: Sequence[Word]) -> None:
        """Read all arguments."""
        pending = list(reversed(words))
        self.words += words
        while pending:
            self.at = word = pending.pop()
            text = word.text
            if text[:1] in _DASHES and text[:1]:
                # What a text program makes of two hyphens.
                text = f"--{text.lstrip(_DASHES + '-')}"
            if not self.is_flag(text, word):
                self.loose(word)
                continue
            spelled, equals, rest = text.partition("=")
            if not spelled[1:].lstrip("-"):
                continue
            given = replace(word, text=rest) if equals else None
            self.flag(spelled, given, pending)

    @staticmethod
    def is_flag(text: str, word: Word) -> bool:
        if len(text) < 2 or not text.startswith("-") or re.match(r"-\d|-$|-\.", text):
            return False
        return not (word.unknown and text.startswith("-$"))

    def loose(self, word: Word) -> None:
        """A word that is no value of a flag: the model, or what may stand for flags."""
        if word.remark:
            self.say(f"{word.raw} {word.remark}")
            return
        if word.text == "...":
            self.say("... (the text leaves something out)")
            return
        if word.array and not word.known:
            self.ask(word)
            self.say(word.source or word.raw)
            return
        self.free.append(word)

    def flag(self, spelled: str, given: Word | None, pending: list[Word]) -> None:
        """Read a flag, and its value from the words that follow."""
        flags = self.flags
        dotted = flags.spelling.dotted and re.match(r"--|-[a-z]{2,3}\.", spelled)
        name, dot, path = spelled.partition(".") if dotted else (spelled, "", "")
        if name in flags.excluded or spelled in flags.excluded:
            self.excluded = True
        of_images = flags.diffusion is not None and name in flags.diffusion.flags
        self.images = self.images or of_images
        flag, negated = self.flags.find(name)
        if flag is None and of_images:
            return
        if flag is None and re.fullmatch(r"-O\d", name):
            flag, given = flags.spelled.get("-O"), Word(text=name[2:])
        if flag is None:
            self.foreign(name, given, pending)
            return
        if name in flags.config and flag.name != "model":
            word = given or self.next_value(pending)
            if word is not None:
                self.configs.append((name, word))
            return
        if negated:
            self.negated(flag, name, given, pending)
            return
        if not flag.bears:
            self.drop(name, flag, given, pending)
            return
        if flag.because is not None:
            self.unplanned[name] = flag.because
        if dot:
            self.dotted(flag, path, given, pending)
            return
        if flag.takes == "switch":
            self.switch(flag, name, given, pending)
            return
        if flag.takes in ("words", "list"):
            self.several(flag, given, pending)
            return
        told = given is not None or (pending and (not pending[-1].known or pending[-1].text.lower() in SWITCH_VALUES))
        if flag.takes == "optional" and not told:
            self.put(flag, True)  # noqa: FBT003 - the value of a switch
            return
        word = given or self.next_value(pending)
        if word is None:
            self.fault(f"{name} has no value", name)
            return
        if flag.only and word.known and word.text not in flag.only:
            self.irrelevant[name] = None
            return
        if flag.absent and word.text in flag.absent:
            return
        self.value(flag, word, name)

    def switch(self, flag: Flag, name: str, given: Word | None, pending: list[Word]) -> None:
        """A switch. Older releases took a word."""
        value: bool = True
        if given is not None:
            value = given.text.lower() not in ("false", "0", "no", "off")
        elif pending and pending[-1].text.lower() in _WORDS:
            value = _WORDS[pending.pop().text.lower()]
        self.put(flag, name if flag.written else value)

    def negated(self, flag: Flag, name: str, given: Word | None, pending: list[Word]) -> None:
        """A switch that is turned off."""
        if not flag.bears:
            self.irrelevant[name] = None
            return
        reason = flag.off_because or flag.because
        if reason:
            self.unplanned[name] = reason
        self.put(flag, False)  # noqa: FBT003 - the value of a switch

    def next_value(self, pending: list[Word]) -> Word | None:
        """The value of a flag: the next word, unless that is a flag."""
        if not pending:
            return None
        word = pending[-1]
        if self.is_flag(word.text, word) and not self.looks_like_value(word.text):
            return None
        return pending.pop()

    def looks_like_value(self, text: str) -> bool:
        return (
            self.flags.find(text.partition("=")[0])[0] is None
            and not text.startswith("--")
            and len(text) > 2
            and text[1] in "(.{["
        )

    def words_until_flag(self, pending: list[Word]) -> list[Word]:
        words: list[Word] = []
        while pending and not self.is_flag(pending[-1].text, pending[-1]):
            words.append(pending.pop())
        return words

    def several(self, flag: Flag, given: Word | None, pending: list[Word]) -> None:
        """All words up to the next flag."""
        words = [given] if given is not None else self.words_until_flag(pending)
        for word in words:
            if not word.known:
                self.ask(word)
                self.say(f"{self.label(flag)}={word.text}")
        values = [scalar(word.text) for word in words if word.known]
        if not values:
            return
        only_text = len(values) == 1 and isinstance(values[0], str)
        if only_text and Reading.holds_json(values[0]):
            document = parse_json(values[0])
            values = document if isinstance(document, list) else [document] if document is not _NOTHING else values
        self.put(flag, values[0] if only_text and flag.takes == "words" else values, words[0])

    def dotted(self, flag: Flag, path: str, given: Word | None, pending: list[Word]) -> None:
        """``--flag.key.part value``: a part of a JSON argument."""
        word = given or self.next_value(pending) or Word(text="true")
        keys = path.split(".")[:_DEEPEST]
        if not word.known:
            self.ask(word)
            self.say(f"{flag.name}.{path}={word.text}")
            return
        if flag.only and word.text not in flag.only:
            return
        held = self.settings.get(flag.key) if flag.key else self.extra.get(flag.name)
        document: dict[str, Any] = held if isinstance(held, dict) else {}
        place = document
        for key in keys[:-1]:
            inner = place.get(key)
            if not isinstance(inner, dict):
                inner = place[key] = {}
            place = inner
        last, appends = keys[-1].removesuffix("+"), keys[-1].endswith("+")
        value = with_unit(word.text) if _WITH_UNIT.fullmatch(word.text) else None
        read = value if value is not None else parse_json(word.text) if self.holds_json(word.text) else scalar(word.text)
        if read is _NOTHING:
            read = word.text
        if appends:
            items = word.text.split(",") if isinstance(read, str) else [read]
            before = place.get(last)
            place[last] = [*(before if isinstance(before, list) else []), *items]
        else:
            place[last] = read
        self.put(flag, document, word)

    def drop(self, name: str, flag: Flag, given: Word | None, pending: list[Word]) -> None:
        """Leave a flag out that no byte depends on, with its value."""
        if name not in self.flags.unnamed:
            self.irrelevant[name] = None
        if flag.takes == "switch":
            if given is None and pending and pending[-1].text.lower() in _WORDS:
                pending.pop()
            return
        if given is not None or not pending:
            return
        if flag.takes == "words":
            # The model may stand behind a list: `--served-model-name a MODEL` is two names to vLLM.
            self.words_until_flag(pending)
            return
        text = pending[-1].text
        if not self.is_flag(text, pending[-1]) or (not text.startswith("--") and self.flags.find(text)[0] is None):
            pending.pop()

    def foreign(self, name: str, given: Word | None, pending: list[Word]) -> None:
        """A flag that the engine does not know. What it says of memory is kept."""
        self.unknown[name] = None
        self.places[name] = self.at
        word, following = given or Word(text="true"), pending[-1] if pending else None
        if given is None and following and not (self.is_flag(following.text, following) or following.array or following.remark):
            word = pending.pop()
        own = name.lstrip("-").replace("-", "_")
        if not name.startswith("--") or not _MEMORY.search(own):
            if name not in self.flags.unnamed:
                self.irrelevant[name] = None
            return
        if word.known:
            self.extra[own] = scalar(word.text)
        else:
            self.ask(word)
            self.say(f"{own}={word.text}")

    # --- the rest -----------------------------------------------------------------------------------------------------

    def environment(self, variables: Mapping[str, Any]) -> None:
        """Read the variables that bear on memory. A flag counts more than its variable, and those are read first."""
        self.variables |= {f"{name}={given.text if isinstance(given, Word) else given}" for name, given in variables.items()}
        for row in self.flags.environment:
            given = variables.get(row.name)
            if isinstance(given, Word) and not given.known:
                self.say(f"{row.name}={given.text}")
            elif isinstance(given, Word):
                self.variable(row, given.text, given)
            elif given is not None:
                self.variable(row, str(given), Word(text=str(given), spot=given.spot) if isinstance(given, SaidText) else None)

    def variable(self, row: Variable, text: str, word: Word | None = None) -> None:
        if (row.only and text not in row.only) or not text:
            return
        value = scalar(text)
        if word is not None:
            self.places[self.flags.spelled[row.flag].name if row.flag is not None else row.key or row.name] = word
        if row.flag is not None:
            self.extra.setdefault(self.flags.spelled[row.flag].name, f"{text} ({row.name})")
        elif row.key is not None:
            self.settings[row.key] = value
            if row.also is not None:
                self.settings[row.also] = value
        else:
            self.extra[row.name] = value
        if word is not None and word.taken:
            self.say(f"{row.key or row.name}={word.taken[0]} (default taken)")

    def flag_variables(self, variables: Mapping[str, Any]) -> None:
        """Read the variables that stand for flags, as llama.cpp and TGI have them."""
        prefix = self.flags.variables
        if prefix is None:
            return
        for flag in self.flags.flags:
            names = [flag.variable] if flag.variable else []
            names += [prefix + each[2:].replace("-", "_").upper() for each in flag.spellings if each.startswith("--")]
            for name in names:
                if name not in variables:
                    continue
                given = variables[name]
                word = given if isinstance(given, Word) else Word(text=str(given), raw=str(given))
                # The text says it by the variable, and not by the flag.
                own = SaidText.of(name, word) if isinstance(given, Word) else given
                word = replace(word, said=own) if isinstance(own, SaidText) and word.known else word
                if word.text == "" and word.known:
                    continue
                if not flag.bears:
                    continue
                if flag.takes == "switch":
                    self.put(flag, word.text.lower() not in ("0", "false", "off", "disabled"))
                else:
                    self.value(flag, word, flag.spellings[0])
                break

    def config(self, document: Mapping[str, Any], places: Places | None = None, *, wins: bool) -> None:
        """The settings of a file of flags: long names without dashes. The command line counts more, unless the engine says otherwise."""
        before = (dict(self.settings), dict(self.extra), dict(self.places))
        for name, value in document.items():
            self.entry(str(name), value, NOWHERE if places is None else places.item(document, name))
        if not wins:
            self.settings |= before[0]
            self.extra |= before[1]
            self.places |= before[2]

    def entry(self, name: str, value: Any, spot: Spot = NOWHERE) -> None:
        """A flag as an entry of a mapping, as in a file of flags or in the values of a chart; ``spot`` is where its value stands."""
        self.at = Word(text=str(value), spot=spot)
        spelled = f"--{name.replace('_', '-')}"
        flag, negated = self.flags.find(spelled)
        if flag is None:
            flag, negated = self.flags.find(f"--{name}")
        if flag is None:
            if _MEMORY.search(name):
                self.extra[name.replace("-", "_")] = value
            self.unknown[spelled] = None
            self.places[spelled] = self.at
            return
        if value is None or not flag.bears:
            return
        if flag.because is not None:
            self.unplanned[spelled] = flag.because
        if isinstance(value, bool):
            self.put(flag, value != negated)
        elif isinstance(value, str):
            self.value(flag, replace(_word(value), spot=spot), spelled)
        elif flag.only and str(value) not in flag.only:
            return
        else:
            self.put(flag, value)


_NOTHING: Final = object()


def _word(text: str) -> Word:
    """The word of a value in a file, whose variables and templates are not known."""
    unknown = tuple(re.findall(r"\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z_]\w*|\{\{.*?\}\}", text))
    return Word(text=text, raw=text, source=text, unknown=unknown, quoted=True)


def variable_of(expression: str) -> str | None:
    """The variable of an expression that its value would close. That of ``${A^^}``, ``${A:0:3}`` and ``${A/*-/}`` would not.

    >>> variable_of("${A}"), variable_of("$(A)"), variable_of("$(cat A)"), variable_of("${A^^}")
    ('A', 'A', None, None)
    """
    match = _NAMED.match(expression)
    return None if match is None else match[1]


def scalar(text: str) -> Any:
    """A word as the number, or the true or false that it says; else the word.

    >>> scalar("0.90"), scalar("8"), scalar("True"), scalar("fp8")
    (0.9, 8, True, 'fp8')
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        number = float(text)
        return number if number - number == 0 else text
    return _WORDS.get(text.lower(), text) if text.lower() in _WORDS else text


def with_unit(text: str) -> int | None:
    """A number as vLLM writes it: small letters are decimal, capitals binary and whole. ``None`` for what is none.

    >>> with_unit("32k"), with_unit("32K"), with_unit("25.6k"), with_unit("1.5K")
    (32000, 32768, 25600, None)
    """
    text = text.strip()
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    digits, letter = match[1], match[2]
    if letter.isupper() and "." in digits:
        return None
    whole, _, part = digits.partition(".")
    number = int(whole + part)
    for _ in range(_POWERS[letter.lower()]):
        number *= 1000 if letter.islower() else 1024
    for _ in part:
        number //= 10
    return number


def parse_json(text: str) -> Any:
    """A JSON argument. Inside a string of a shell its quotes may have backslashes, and Python's words and quotes are met too."""
    for tried in (text, text.replace('\\"', '"'), text.replace("'", '"')):
        if len(tried) > 1024**2 or _depth(tried) > _DEEPEST:
            return _NOTHING
        try:
            return json.loads(tried)
        except (ValueError, RecursionError):
            continue
    return _NOTHING


def _depth(text: str) -> int:
    deepest = depth = 0
    for sign in text:
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def gguf_format(path: str) -> str | None:
    """The format that the name of a GGUF file states.

    >>> gguf_format("models/Qwen3.5-4B-UD-IQ2_M.gguf"), gguf_format("Llama-2-7b-chat-hf.f16.gguf"), gguf_format("model.gguf")
    ('UD-IQ2_M', 'F16', None)
    """
    name = path.rpartition("/")[2]
    if not name.lower().endswith(".gguf"):
        return None
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", name[: -len(".gguf")])
    formats = [match[1].upper() for match in _GGUF.finditer(stem)]
    return formats[-1] if formats else None
