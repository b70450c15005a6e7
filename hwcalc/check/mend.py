"""Mend deployments: the change of flags with which a server starts, where they stand in the file and as it writes them.

A change is tried as a text: it is read again, nothing else of any server may have changed, and the check must hold. So a value that several servers
share, or that a variable says, is never changed by half.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.check.deployed import Deployment, read_deployment
from hwcalc.check.file import read_text
from hwcalc.check.result import SLOWER, Checked, Edit, Fix
from hwcalc.check.server import ServerCheck
from hwcalc.check.server_edits import default_of
from hwcalc.errors import KvplanError, UnwritableFileError
from hwcalc.files import mark_of, write_file
from hwcalc.launch.arguments import variable_of
from hwcalc.launch.planned import AS_STARTED, flags_of, gpus_taken
from hwcalc.launch.told import is_variable, keys_told, written
from hwcalc.launch.words import Word
from hwcalc.masking import without_tokens
from hwcalc.text import brief, printable, shown
from hwcalc.yaml_tree import LARGEST_MANIFEST

if TYPE_CHECKING:
    from hwcalc.launch.server import Server

Judge = Callable[[Deployment], Sequence[Checked]]
"""Checks a deployment."""
_MOST_ROUNDS: Final = 4
"""Changes of one server, each of which makes one more requirement hold."""
_LONGEST: Final = 160
"""Characters of a reason."""
_COMMAND: Final = re.compile(r"(?:^|[.;] )[^.;]*: kvplan .*", re.DOTALL)
"""A command at the end of a message, with what leads to it."""
_BESIDE: Final = re.compile(r"with [\d,]+ GPUs in the file|[\d,]+ tokens a slot")
"""What is said beside what the user has to change."""
_BETWEEN: Final = re.compile(r"[\s\\`^,\-\[\]]+")
"""What may stand between two words of a command or two items of a list."""
_QUOTES: Final = "'\""
_ANCHOR: Final = re.compile(r"(?<![\w&])&([\w-]+)")
_NUMBER: Final = re.compile(r"[-+]?[\d._]+(?:[eE][-+]?\d+)?|true|false|null|yes|no|on|off")
"""What YAML would not read as text."""


class _NoEditError(Exception):
    """A change has no place in the file; its argument says why."""


class _HeldElsewhereError(_NoEditError):
    """The value to change stands in a variable or an anchor, or is another server's too: that is for the user to change.

    ``sets`` is the variable with the value that it would have to get, where there is one, and ``file`` where it is set. ``instead`` is what the user
    may do; empty where no variable has the value.
    """

    def __init__(self, said: str, way_out: str = "", sets: str = "", file: str = "", instead: str = "") -> None:
        super().__init__(said + way_out)
        self.said, self.sets, self.file = said, sets, file
        self.instead = instead or (f"set {sets}{f' in {file}' if file else ''}" if sets else "")


def mended(file: Deployment, checked: Sequence[Checked], judge: Judge) -> tuple[str, Fix]:
    """The text of a deployment with its failing servers mended, and what was changed. ``checked`` are its results; ``judge`` checks another text."""
    now, changes, reasons = file, list[str](), list[str]()
    for number, check in enumerate(file.checks):
        results = [result for result in checked if result.name == check.name]
        reasons += [
            f"{check.name}: {result.error.message} {result.error.hint}".strip() for result in results if result.error is not None
        ]
        if results and results[0].status == "fail":
            try:
                now, made = _server_mended(now, number, results[0], judge)
                changes += [f"{check.name}: {flags}" for flags in made]
            except _NoEditError as error:
                # A command stands alone, so that it can be copied.
                reasons.append(
                    f"{check.name}: no safe change: {error}{'' if 'kvplan ' in str(error) or str(error).endswith('.') else '.'}"
                )
    diff = _diff(file.path, file.text, now.text)
    return now.text, Fix(path=printable(file.path), diff=diff, changes=tuple(changes), reasons=tuple(reasons))


def _server_mended(file: Deployment, number: int, result: Checked, judge: Judge) -> tuple[Deployment, list[str]]:
    """The deployment with all requirements of a server holding, and the flags that were changed one after another."""
    made: list[str] = []
    for _ in range(_MOST_ROUNDS):
        file, result, flags = _round(file, number, result, judge)
        made.append(flags)
        if result.status != "fail":
            return file, made
    raise _NoEditError(f"with {', '.join(made)} it still fails")


def _failing(result: Checked) -> set[str]:
    return {item.name for item in result.requirements if not item.holds}


def _round(file: Deployment, number: int, result: Checked, judge: Judge) -> tuple[Deployment, Checked, str]:
    """The deployment with the first of the edits of its failing requirements that can be made, the server's result then, and the flags.

    One that takes more bytes than the baseline allows is none.
    """
    # With --strict, what probably holds fails too.
    items = sorted((item for item in result.requirements if not (item.holds and item.certain)), key=lambda item: item.holds)
    edits = [(item, edit) for item in items for edit in item.edits]
    why = "" if edits else _reason(items[0].message)
    by_hand = [f"{edit.yaml}{_said_of(edit)}" for _, edit in edits if edit.yaml and not edit.told]
    held, passed = list[_HeldElsewhereError](), ""
    for failing, edit in edits:
        if edit.told and edit.accepting:
            why = why or f"{edit.flags} needs {edit.accepting}"
            continue
        if not edit.told or edit.is_slower:
            of_host = next((each for each in edit.effect.split("; ") if SLOWER in each), "")
            how = of_host.removeprefix(f"{SLOWER}: ").replace(f", {SLOWER}", "")
            why = why or (f"{edit.flags} makes it {SLOWER}: {how}" if edit.flags else "")
            continue
        try:
            text = edited(file.text, file.checks[number], edit)
            after = _same_but(file, read_deployment(file.path, text, file.told), number, edit)
            _check_gpus(after.checks[number], edit.flags)
        except _HeldElsewhereError as error:
            held.append(error)
            passed = passed or f"or {error.instead or f'{edit.flags} by hand'}"
            continue
        except (_NoEditError, KvplanError) as error:
            why = why or str(error).rstrip(".")
            continue
        now = judge(replace(after, checks=(after.checks[number],)))[-1]
        same = all(item.holds and (item.certain or not failing.holds) for item in now.requirements if item.name == failing.name)
        # With too few GPUs, or a length that the engine refuses, nothing else was looked at.
        worse = _failing(now) - _failing(result) if failing.name not in ("gpus", "length") else set()
        # Nobody is given a warning that was not there, such as of layers in host memory.
        known = {note.code for note in (now if result.plan is None else result).warnings}
        new = (note.message for note in now.warnings if note.code not in known and not note.message.endswith(AS_STARTED))
        told = next(new, "")
        if now.error is None and same and not worse and not told:
            aside = [*filter(None, (_taken(file.checks[number], after.checks[number]), passed))]
            return after, now, edit.flags + (f" ({'; '.join(aside)})" if aside else "")
        still = (told or "it still fails") if now.error is None else f"{now.error.message} {now.error.hint}"
        why = why or f"with {edit.flags} {still.rstrip(' .')}"
    raise held[0] if held else _NoEditError(why or _only(by_hand))


def _only(by_hand: Sequence[str]) -> str:
    """What mends a server where no flag does: the first of these changes, and how many there are."""
    if len(by_hand) < 2:
        return f"only with {by_hand[0]}" if by_hand else "no flag does it"
    return f"no flags alone do it, but any of {len(by_hand)} other changes, such as {by_hand[0]}"


def _reason(message: str) -> str:
    """A message as a short reason. A command at its end stays whole, with the words that lead to it."""
    command = _COMMAND.search(message)
    begin = len(message) if command is None else command.start()
    return brief(message[:begin].rstrip("."), _LONGEST) + brief(message[begin:], len(message))


def _said_of(edit: Edit) -> str:
    """What is said of an edit, in parentheses behind it; empty where nothing is."""
    return f" ({edit.effect})" if edit.effect else ""


def _check_gpus(check: ServerCheck, flags: str) -> None:
    """Raise :class:`_NoEditError` for a server that would take more GPUs than its text gives it, on whichever nodes."""
    given, taken = check.server.gpus_per_replica, gpus_taken(check.server.settings)
    if isinstance(given, int) and taken is not None and taken > given:
        message = f"{flags} takes {taken:,} GPUs, and the file gives it {given:,}"
        raise _NoEditError(message)


def _taken(before: ServerCheck, after: ServerCheck) -> str:
    """What a change takes that nobody expects of a flag: more GPUs, or half of a length. Empty where it takes neither."""
    (gpus, length), (more, shorter) = ((gpus_taken(each.server.settings), _length_of(each.server)) for each in (before, after))
    said = [f"{gpus:,} -> {more:,} GPUs"] if gpus is not None and more is not None and more > gpus else []
    if 0 < shorter * 2 <= length:
        said.append(f"{length:,} -> {shorter:,} tokens")
    return ", ".join(said)


def _length_of(server: Server) -> int:
    """The longest request that a text allows; 0 where it names none."""
    length, context, slots = (
        value if isinstance(value, int) else 0 for value in map(server.settings.get, ("max_model_len", "ctx", "slots"))
    )
    # Where a flag says the tokens, it is those of all slots.
    of_all = "ctx" in flags_of(server).flag_of
    return length or (context // max(1, slots) if of_all else context)


def _same_but(before: Deployment, after: Deployment | None, number: int, edit: Edit) -> Deployment:
    """The deployment ``after`` an edit of the server of this number.

    Raises :class:`_NoEditError` if it says anything else that is new than the flags of the edit.
    """
    if after is None or [check.name for check in before.checks] != [check.name for check in after.checks]:
        message = "the file would start other servers"
        raise _NoEditError(message)
    for place, (old, new) in enumerate(zip(before.checks, after.checks, strict=True)):
        may = {key for name in edit.told for key in keys_told(old.flags, name)} if place == number else set()
        if any(
            _said(old.server).get(key) != _said(new.server).get(key)
            for key in (_said(old.server) | _said(new.server))
            if key not in may
        ):
            message = f"{shown(new.name, 60)} would change too" if place != number else "more of the server would change"
            raise _HeldElsewhereError(message)
    return after


def _said(server: Server) -> dict[str, object]:
    return {
        **server.extra,
        **server.settings,
        " unresolved": server.unresolved,
        " unknown": server.unknown,
        " faults": server.faults,
    }


def edited(text: str, check: ServerCheck, edit: Edit) -> str:
    """The text with what an edit tells the engine, replaced where it stands; a flag that is not there comes behind the last word of the command.

    Raises :class:`_NoEditError` where that cannot be done safely.
    """
    server, places = check.server, _Offsets(text)
    replaced, added = list[tuple[int, int, str]](), list[tuple[str, ...]]()
    held = dict[str, _HeldElsewhereError]()
    for name, value in edit.told.items():
        word = server.places.get(keys_told(check.flags, name)[0])
        if word is None and not name.startswith("-"):
            what, where = (f"{name}={value}", "its environment") if is_variable(name) else (f"{name} {value}", "its Modelfile")
            message = f"add {what} to {where} by hand"
            raise _NoEditError(message)
        if word is None:
            added.append((name, value) if value else (name,))
        elif not value:
            message = f"{name} is said already"
            raise _NoEditError(message)
        else:
            try:
                replaced.append(_replacement(places, word, name, value, check))
            except _HeldElsewhereError as error:
                held[name] = error
    if held:
        raise _all_held(held, edit, check)
    if added:
        replaced.append(_Style(places, server.words).addition(added))
    for begin, end, new in sorted(replaced, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _all_held(held: Mapping[str, _HeldElsewhereError], edit: Edit, check: ServerCheck) -> _HeldElsewhereError:
    """The reason with everything that the user has to change for an edit: half of it would not do."""
    more = "".join(f", {each}" for each in _BESIDE.findall(edit.effect))
    if len(edit.told) == 1:
        [error] = held.values()
        return _HeldElsewhereError(str(error), more, error.sets, error.file, error.instead and error.instead + more)
    sets = dict.fromkeys(error.sets for error in held.values() if error.sets)
    files = {error.file for error in held.values() if error.sets}
    in_file = f" in {file}" if len(files) == 1 and (file := next(iter(files))) else ""
    rest = {name: value for name, value in edit.told.items() if name not in held or not held[name].sets}
    flags = " ".join(f"{written({name: value})}{_stands(check, name)}" for name, value in rest.items())
    ways = [*([f"set {' and '.join(sets)}{in_file}"] if sets else []), *([f"write {flags} in the file"] if rest else [])]
    instead = f"{', and '.join(ways)}{more}"
    return _HeldElsewhereError("; ".join(error.said for error in held.values()), f": {instead}", instead=instead)


def _stands(check: ServerCheck, name: str) -> str:
    """In parentheses the variable of the text that has the value of a flag, and its line; empty where none has."""
    word = check.server.places.get(keys_told(check.flags, name)[0])
    return f" ({check.variable_at(word)})" if word is not None and word.said is not None else ""


class _Offsets:
    """The characters of a text by their lines and columns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def of(self, word: Word) -> tuple[int, int] | None:
        """The offsets at which a word begins and ends; ``None`` if it does not stand there as it is read."""
        spot = word.spot
        if not spot.written or not spot.column or spot.line > len(self._lines):
            return None
        begin = self._lines[spot.line - 1] + spot.column - 1
        return (begin, begin + len(spot.written)) if self.text.startswith(spot.written, begin) else None

    def anchor_of(self, word: Word) -> str:
        """The anchor in which a value of YAML stands that other places name too, such as ``&len`` with its line; empty where none is seen."""
        lines = self.text.split("\n")[: word.line]
        least, item = len(lines[-1]) if lines else 0, True
        for number in range(len(lines), 0, -1):
            line = lines[number - 1].lstrip()
            deep = len(lines[number - 1]) - len(line)
            # An item of a list may stand as deep as the key of the list.
            if not line or deep > least or (deep == least and number < len(lines) and (line.startswith("-") or not item)):
                continue
            least, item = deep, line.startswith("-")
            names = [name for name in _ANCHOR.findall(line) if re.search(rf"(?<![\w*])\*{re.escape(name)}(?![\w-])", self.text)]
            if names:
                return f"&{names[0]} in line {number}" if len(names) == 1 else ""
        return ""


def _replacement(places: _Offsets, word: Word, name: str, value: str, check: ServerCheck) -> tuple[int, int, str]:
    """The place of a value, and what to write there, in its quotes: that of a variable where the text sets it."""
    given, stands, (_, file) = check.given_at(word), check.variable_at(word), check.file_of(word)
    default, in_file = None if given else default_of(word), word.said if word.said is not None and word.said.file else None
    if word.said is not None and word.said == word.text and word.said.spot.written:
        word = replace(word, spot=word.said.spot)
    place, text = places.of(word), word.spot.written
    bare = text.rstrip(_QUOTES)
    if place is None or not word.known or (word.taken and "$" in text) or not bare.endswith(word.text):
        said, way_out = f"stands in {shown(text.strip(_QUOTES), 40)}", ""
        variable = variable_of(bare[bare.find("$") :]) if given and place is not None else default
        variable = variable if in_file is None else in_file.name
        sets = f"{variable}={value}" if variable else ""
        if in_file is None and place is None:
            said, anchor = (
                f"stands {'beside a template or an escape' if text else 'in a variable or an anchor'}",
                places.anchor_of(word),
            )
            said = f"stands in the anchor {anchor}" if anchor else said
            said = f"is a part of {stands}" if word.said is not None else said
        elif given:
            said = f"is {given}"
        if sets:
            way_out = f", and --fix changes no such file: write {sets} there" if file else f": set {sets}"
            way_out += ", or change that default" if default else ""
        message = f"the value of {name} {said}"
        raise _HeldElsewhereError(message, way_out, sets, file)
    begin = len(bare) - len(word.text)
    if begin and bare[begin - 1] not in "='\" ":
        message = f"{name} is written as {shown(text, 40)}"
        raise _HeldElsewhereError(message)
    return place[0] + begin, place[0] + len(bare), value


class _Style:
    """How a command writes its flags: what stands between its words, and whether values stand behind ``=``."""

    def __init__(self, places: _Offsets, words: Sequence[Word]) -> None:
        self.text = places.text
        placed = [(word, place) for word in words if (place := places.of(word)) is not None]
        if not placed:
            message = "the file has no command to which a flag could be added"
            raise _NoEditError(message)
        self.placed = placed
        self.before, self.inner, self.quote, self.equals = " ", " ", "", False
        self.end = self.last = placed[-1][1][1]
        if words[-1] is not placed[-1][0]:
            # The value of its last flag stands elsewhere: an addition comes before that flag.
            flag = next((number for number in reversed(range(1, len(placed))) if placed[number][0].text.startswith("-")), 0)
            self.last = placed[max(0, flag - 1)][1][1]
        for number in reversed(range(len(placed))):
            word, (begin, end) = placed[number]
            if not word.text.startswith("-"):
                continue
            alone = number + 1 == len(placed) or placed[number + 1][0].text.startswith("-")
            before = self._between(number - 1)
            if before is None or (alone and "=" not in word.text and number):
                continue
            sign = self.text[begin]
            self.before, self.quote = before, sign if sign in "'\"" and self.text[end - 1] == sign else ""
            self.equals = "=" in word.text
            self.inner = self._between(number) or before if not alone else before
            if "\n" in before and before.isspace():
                # A line of an array of the shell, or of folded text, ends where that does.
                last = number if alone else number + 1
                while self._between(last) is not None:
                    last += 1
                self.end = placed[last][1][1]
            return
        before = self._between(len(placed) - 2)
        self.before = self.inner = self._item() if before is None else before
        sign = self.text[self.end - 1]
        self.quote = sign if sign in "'\"" and "," in self.before else ""

    def _between(self, number: int) -> str | None:
        """The text between a word and the next; ``None`` if that is more than blanks and the signs of lists."""
        if not 0 <= number < len(self.placed) - 1:
            return self._item() if number < 0 and len(self.placed) == 1 else None
        between = self.text[self.placed[number][1][1] : self.placed[number + 1][1][0]]
        return between if _BETWEEN.fullmatch(between) else None

    def _item(self) -> str:
        """The beginning of another item, where the only word is one of a list."""
        begin = self.placed[-1][1][0]
        line = self.text.rfind("\n", 0, begin) + 1
        head = self.text[line:begin]
        return f"\n{head}" if head.strip() == "-" else " "

    def addition(self, flags: Sequence[Sequence[str]]) -> tuple[int, int, str]:
        """The place behind the last word, and what to write there."""
        listed = "," in self.before or "-" in self.before
        out = ""
        for words in flags:
            joined = [f"{words[0]}={words[1]}"] if self.equals and len(words) > 1 and words[0].startswith("--") else list(words)
            quoted = [self._quoted(word, listed=listed) for word in joined]
            out += self.before + (self.inner if "\n" not in self.inner or listed else " ").join(quoted)
        end = min(self.end, self.last)
        return end, end, out

    def _quoted(self, word: str, *, listed: bool) -> str:
        quote = self.quote or ('"' if listed and _NUMBER.fullmatch(word.lower()) else "")
        return f"{quote}{word}{quote}"


def _diff(path: str, before: str, after: str) -> str:
    """The unified diff of two texts; empty if they are the same."""
    from difflib import unified_diff

    name = printable(path).lstrip("/")
    # Lines end where git's do: no form feed ends one, and the CR before an end is a part of it.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = unified_diff(old, new, f"a/{name}", f"b/{name}")
    return without_tokens("".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines))


def write(path: str, before: str, text: str) -> None:
    """Write a mended text, whole or not at all, never through a link and never over a file that has changed since it was read.

    Raises :class:`~hwcalc.errors.UnwritableFileError`.
    """
    if path == "-":
        raise UnwritableFileError("standard input cannot be written.", hint="Save it as a file, or leave out --write.")
    if os.path.islink(path):
        raise UnwritableFileError(
            f"{shown(path)} is a link, and is not written through.", hint=f"Name the file: {brief(os.path.realpath(path), 120)}"
        )
    now = read_text(path, LARGEST_MANIFEST)
    if now != before:
        raise UnwritableFileError(f"{shown(path)} has changed since it was read.", hint="Run it again.")
    with open(path, "rb") as stream:
        mark, encoding = mark_of(stream.read(4))
    write_file(path, mark + text.encode(encoding), "--write", below=True, keeps_mode=True)
