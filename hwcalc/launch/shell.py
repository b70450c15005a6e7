"""Commands of shell text. Nothing is ever run.

A script is read from top to bottom. Assignments are kept, so that ``vllm serve $MODEL`` knows what ``MODEL=org/name`` said above, and here
documents are kept as the files that they would write. A condition that follows from what is known is followed, of ``if`` as of ``a && b || c``;
of any other one all branches are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.launch.words import (
    LONGEST_TRIMMED,
    MOST_VALUE,
    MOST_WORDS,
    PLACEHOLDER,
    GivenText,
    Origin,
    SaidText,
    Spot,
    Word,
    WordReader,
    balanced,
)

MOST_CHARACTERS: Final = 1024**2
"""Characters of one script. What stands behind them is not read."""
MOST_COMMANDS: Final = 5_000
_MOST_INDENT: Final = 200
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?(\+?)=")
_FUNCTION: Final = re.compile(r"(?:function[ \t]+)?([A-Za-z_][\w-]*)[ \t]*\(\)\s*\{|function[ \t]+([A-Za-z_][\w-]*)\s*\{")
_MOST_CALLS: Final = 200
_TEST: Final = re.compile(r"(\[\[?|test)\s")
_SUCCEEDS: Final = re.compile(r"(?:true|:|echo|printf|export)(?:\s[^|&<>()]*)?")


class Command(Record):
    """A command: the words, the variables that are set at this place, the files that were written before, and whether it may not run."""

    words: tuple[Word, ...]
    variables: Mapping[str, str]
    own: Mapping[str, Any]
    """Assignments that stand before the command, or were exported; a word where the value is not known."""
    line: int = 0
    writes: str = ""
    """The file that its output goes to."""


class Script(Record):
    """What a text would run, in its order, the files that it would write, and its here documents."""

    commands: tuple[Command, ...]
    variables: Mapping[str, str]
    exported: Mapping[str, Any]
    files: Mapping[str, str]
    bodies: tuple[tuple[str, Origin], ...] = ()


def read_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[Word] = (),
    *,
    origin: Origin | None = None,
    depth: int = 0,
    files: Mapping[str, str] | None = None,
    taken: Mapping[str, str] | None = None,
    outer: Mapping[str, str] | None = None,
) -> Script:
    """The commands of a shell text, with ``variables`` set from the start and ``arguments`` as ``$@``.

    ``origin`` is where the text stands in its file, by default it is the file. ``taken`` has the expressions whose default variables have.
    ``outer`` is what Compose fills ``${A}`` in with before the shell reads ``$${A}``.
    """
    text = text[:MOST_CHARACTERS]
    reader = _Reader(text, dict(variables or {}), tuple(arguments), origin or Origin.whole(text), depth, dict(files or {}))
    reader.taken |= taken or {}
    reader.outer = outer
    reader.run()
    return Script(
        commands=tuple(reader.commands),
        variables=reader.variables,
        exported=reader.exported,
        files=reader.files,
        bodies=tuple(reader.bodies.values()),
    )


class _Scope:
    """An open ``if``, or a group: whether its present branch is read, and whether it is surely done."""

    __slots__ = ("done", "kind", "link", "reads", "status")

    def __init__(self, kind: str, reads: bool, done: bool, status: bool | None = True, link: str = "") -> None:
        self.kind, self.reads, self.done = kind, reads, done
        self.status, self.link = status, link
        """Whether a branch was taken; of a group, the status of the list before it, and the sign."""


def _joined(status: bool | None, link: str, other: bool | None) -> bool | None:
    """The status of ``a && b``, ``a || b``, or of ``b`` behind any other sign; ``None`` where it is not known."""
    if link not in ("&&", "||"):
        return other
    decides = link == "||"
    if decides in (status, other):
        return decides
    return None if None in (status, other) else not decides


class _Reader(WordReader):
    """Reads a script character by character, once."""

    def __init__(
        self, text: str, variables: dict[str, str], arguments: tuple[Word, ...], origin: Origin, depth: int, files: dict[str, str]
    ) -> None:
        super().__init__(text, variables, arguments, origin, depth)
        self.files = files
        self.functions: dict[str, tuple[int, int]] = {}
        """Function that the text calls -> where its body begins and ends."""
        self.defined: list[str] = []
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.exported: dict[str, Any] = {}
        self.commands: list[Command] = []
        self.scopes: list[_Scope] = []
        self.heredocs: list[tuple[str, bool, bool, str]] = []
        self.bodies: dict[str | int, tuple[str, Origin]] = {}
        """Here documents, by the file that they are written to, else by their number."""
        self.last_target = ""
        self.status: bool | None = True
        """Whether the list ``a && b || c`` succeeds as far as it was read; ``None`` where that is not known."""
        self.link = ""
        """The sign before the present command."""
        self.ended = False
        """Whether the script surely ends here, with ``exec`` or ``exit``."""

    def run(self) -> None:
        """Read all commands."""
        for _ in range(4 * MOST_COMMANDS):
            if self.at >= len(self.text) or len(self.commands) >= MOST_COMMANDS or self.ended:
                return
            self.command()

    def command(self) -> None:
        """Read a command up to its end: a newline, ``;``, ``&``, ``|`` or a parenthesis."""
        words: list[Word] = []
        own: dict[str, Any] = {}
        writes, commented, assigned = "", False, False
        start, begun, end, link = self.line, self.at, self.at, "\n"
        while self.at < len(self.text):
            self.blanks()
            end = self.at
            if end >= len(self.text):
                break
            sign = self.text[self.at]
            if sign == "\n":
                self.at += 1
                if self.heredocs:
                    self.documents()
                if words and not commented and self.flag_next():
                    continue
                break
            if sign == "#":
                # It ends the command, also behind a continued line.
                commented = True
                self.skip_until("\n")
                continue
            if sign in ";&|()":
                self.at += 1
                while self.at < len(self.text) and self.text[self.at] in ";&|":
                    self.at += 1
                link = self.text[end : self.at]
                if not words and not assigned:
                    start = self.line
                    self.separate(link)
                    link = "\n"
                    continue
                break
            redirected = self.redirection(words)
            if redirected is not None:
                writes = redirected or writes
                continue
            before = self.at
            if not words:
                start = self.line
                if not assigned and not self.text.startswith("!", begun):
                    begun = self.at
                if self.prompt() or self.function():
                    continue
                if self.assignment(own):
                    assigned = True
                    continue
            if len(words) < MOST_WORDS:
                words += self.word()
            else:
                self.word()
            if self.at == before:
                self.at += 1
            if words and len(words) == 1 and self.keyword(words):
                words = []
        self.finish(words, own, writes, start)
        if words or assigned:
            text = self.text[begun:end]
            sets = not words and "$(" not in text and "`" not in text
            self.separate(link, True if sets else self.tested(text), ends=True)

    @property
    def runs(self) -> bool | None:
        """True if the present command runs by what stands before it in its list; ``None`` where that is not known."""
        if self.link == "||":
            return None if self.status is None else not self.status
        return self.status if self.link == "&&" else True

    @property
    def unread(self) -> bool:
        """True if the present command surely does not run."""
        return self.runs is False or any(not scope.reads for scope in self.scopes)

    @property
    def unsure(self) -> bool:
        """True if the present command may not run."""
        return self.runs is None or any(not scope.done for scope in self.scopes)

    def separate(self, sign: str, status: bool | None = None, *, ends: bool = False) -> None:
        """Go over the sign behind a command, or behind what is none. A command ``ends`` with its status."""
        if sign in ("|", "|&") and ends:
            # A pipe has the status of its last command.
            return
        if ends:
            self.status, self.link = _joined(self.status, self.link, status), ""
        if sign[:1] == "(":
            self.open("(")
        elif sign[:1] == ")":
            self.close("(")
        self.link = sign[1:] or sign if sign[:1] == ")" else sign

    def open(self, kind: str) -> None:
        """A group begins. One that surely runs is read as if it was none."""
        nests = bool(self.scopes) and self.scopes[-1].kind == kind
        if (nests or self.link in ("&&", "||")) and len(self.scopes) < _MOST_CALLS:
            self.scopes.append(_Scope(kind, self.runs is not False, self.runs is True, self.status, self.link))
            self.status, self.link = True, ""

    def close(self, kind: str) -> None:
        """A group ends, with the status of its last command."""
        if self.scopes and self.scopes[-1].kind == kind:
            scope = self.scopes.pop()
            self.status = _joined(scope.status, scope.link, self.status)
        else:
            self.status = None
        self.link = ""

    def finish(self, words: list[Word], own: dict[str, Any], writes: str, line: int) -> None:
        """Keep a command, or the assignments of one that is nothing else."""
        if self.unread:
            return
        if not words:
            kept = self.variables if self.unsure else {}
            self.variables |= {name: value for name, value in own.items() if isinstance(value, str) and name not in kept}
            return
        first = words[0].text
        if first in self.functions:
            self.exported |= own
            self.call(words)
            return
        if first == "shift":
            count = words[1].text if len(words) > 1 else "1"
            self.arguments = self.arguments[int(count) if re.fullmatch(r"\d{1,4}", count) else 0 :]
            return
        if (
            first in ("exec", "exit")
            and len(words) > (first == "exec")
            and all(scope.kind == "if" and scope.status is True for scope in self.scopes)
        ):
            self.ended = not self.in_list()
        if first in ("export", "declare", "readonly", "local", "typeset", "set", "setx", "$env"):
            self.export(words[1:], own)
            return
        if first in ("source", ".", ":", "cd", "true", "false", "return", "exit", "wait", "sleep"):
            # The expansion of `: "${A:=value}"` has set the variable.
            return
        if first in ("echo", "printf") and writes and self.echoed(words, writes):
            return
        self.commands.append(
            Command(words=tuple(words), variables=dict(self.variables), own={**self.exported, **own}, line=line, writes=writes)
        )

    @cached_property
    def first_words(self) -> frozenset[str]:
        """The words that lines begin with."""
        return frozenset(re.findall(r"(?m)^[ \t]*([A-Za-z_][\w-]*)(?![^\s;&|]|[ \t]*\()", self.text))

    def function(self) -> bool:
        """True if a function begins here. One that the text calls is read there; of others the body is read as it stands."""
        match = _FUNCTION.match(self.text, self.at)
        if match is None:
            return False
        name, self.at = match[1] or match[2], match.end()
        if name in self.first_words and len(self.defined) < _MOST_CALLS:
            self.defined.append(name)
            end = balanced(self.text, match.end() - 1)
            if "\n" in self.text[match.end() : end]:
                # Braces in quotes need not be pairs: the last line is indented as the first.
                head = self.text[max(0, match.start() - _MOST_INDENT) : match.start()]
                indent = head[len(head.rstrip(" \t")) :]
                last = re.compile(rf"(?m)^{indent}\}}")
                closed = last.search(self.text, match.end(), match.end() + MOST_VALUE)
                end = 0 if closed is None else closed.end()
            if end:
                self.functions[name], self.at = (match.end(), end - 1), end
        return True

    def call(self, words: list[Word]) -> None:
        """Read the body of a function with its arguments, unless it is being read. What it sets is kept."""
        name = words[0].text
        self.calls.append(name)
        if len(self.calls) > _MOST_CALLS or name in self.running:
            return
        inner, (begin, end) = copy(self), self.functions[name]
        inner.text, inner.at, inner.arguments, inner.running = self.text[:end], begin, tuple(words[1:]), {*self.running, name}
        inner.scopes, inner.status, inner.link = [], True, ""
        inner.run()
        self.ended = inner.ended

    def in_list(self) -> bool:
        """True if the command that was just read is a part of ``a || b``."""
        return self.text[max(0, self.at - 2) : self.at] in ("||", "&&") or self.link in ("||", "&&", "(", ")")

    def echoed(self, words: list[Word], writes: str) -> bool:
        """True if the text of an ``echo`` was kept: as a file, and as the variables that a start-up file of a shell would set."""
        texts = [word.text for word in words[1:] if not word.text.startswith("-")]
        text = " ".join(texts)
        match = re.fullmatch(r"export\s+([A-Za-z_]\w*)=(.*)", text.strip())
        if match is not None and len(match[2]) <= MOST_VALUE:
            value = match[2].strip("\"'")
            self.variables[match[1]] = self.exported[match[1]] = value
            return True
        kept = self.files.get(writes, "")
        if len(kept) + len(text) < MOST_CHARACTERS:
            self.files[writes] = f"{kept}{text}\n"
        return True

    def export(self, words: list[Word], own: dict[str, Any]) -> None:
        """``export A=B``, and ``export A`` of what was set above."""
        self.exported |= own
        self.variables |= {name: value for name, value in own.items() if isinstance(value, str)}
        for word in words:
            match = _ASSIGNMENT.match(word.text)
            if match is not None:
                self.keep(match[1], replace(word, text=word.text[match.end() :]))
                if word.known or isinstance(self.variables.get(match[1]), GivenText):
                    self.exported[match[1]] = self.variables.get(match[1], word.text[match.end() :])
            elif word.text in self.variables:
                self.exported[word.text] = self.variables[word.text]

    def keep(self, name: str, word: Word) -> None:
        """Keep the value of a variable, if it is known."""
        if word.known and len(word.text) <= MOST_VALUE:
            self.variables[name] = SaidText.of(name, word)
            if word.taken:
                self.taken[name] = word.taken[0]
        elif not isinstance(self.variables.get(name), GivenText):
            self.variables.pop(name, None)
            if not word.remark:
                self.looked_up[name] = SaidText.of(name, word)

    def assignment(self, own: dict[str, Any]) -> bool:
        """True if an assignment stood here, and was read."""
        match = _ASSIGNMENT.match(self.text, self.at)
        if match is None or self.text.startswith("==", match.end() - 1):
            return False
        name, adds = match[1], bool(match[2])
        self.at = match.end()
        unread = self.unread
        if self.text.startswith("(", self.at):
            items = self.array()
            if not unread:
                self.arrays[name] = [*(self.arrays.get(name, []) if adds else []), *items][:MOST_WORDS]
            return True
        if self.at >= len(self.text) or self.text[self.at] in " \t\n;&|":
            value = Word(text="")
        else:
            value = next(iter(self.word(splits=False)), Word(text=""))
        if unread:
            return True
        # What stands before a command is set where the command runs.
        unsure = self.unsure and not self.command_follows()
        if not value.known and not value.remark:
            self.looked_up[name] = SaidText.of(name, value)
        if adds:
            value = replace(value, text=self.variables.get(name, "") + value.text)
        if value.known and len(value.text) <= MOST_VALUE:
            if not (unsure and name in self.variables):
                own[name] = SaidText.of(name, value)
                if value.taken:
                    self.taken[name] = value.taken[0]
                # What follows on the same line, as `A=1 B=$A`, knows it.
                if not self.command_follows():
                    self.variables[name] = own[name]
        elif isinstance(self.variables.get(name), GivenText):
            own[name] = self.variables[name]
        elif not unsure:
            if self.command_follows():
                own[name] = value
            else:
                self.variables.pop(name, None)
                own.pop(name, None)
                self.unknown_value(name, value)
        return True

    def unknown_value(self, name: str, value: Word) -> None:
        """A path of which only the folder is not known, ``${DIR}/model``, stands for itself."""
        _, slash, last = value.text.rpartition("/")
        if slash and last and "$" not in last and len(value.text) <= MOST_VALUE and not value.array and "$(" not in value.text:
            self.partly[name] = value.text

    def command_follows(self) -> bool:
        """True if a word stands on the rest of the line, so that an assignment is the environment of a command alone."""
        rest = self.text[self.at : self.at + 400].replace("\\\n", " ")
        return bool(re.match(r"[ \t]+[^\s;&|#)]", rest))

    def array(self) -> list[Word]:
        """The items of ``(a b c)``."""
        self.at += 1
        items: list[Word] = []
        while self.at < len(self.text):
            self.blanks()
            if self.at >= len(self.text):
                break
            sign = self.text[self.at]
            if sign == ")":
                self.at += 1
                break
            if sign == "\n":
                self.at += 1
            elif sign == "#":
                self.skip_until("\n")
            else:
                before = self.at
                items += self.word()
                if self.at == before:
                    self.at += 1
        return items

    def keyword(self, words: list[Word]) -> bool:
        """True if the first word of a command is a keyword, which says what is read next."""
        word = words[0]
        if word.quoted:
            return False
        text = word.text
        if text == "{":
            self.open(text)
        elif text == "}":
            self.close("{")
        elif text in ("fi", "done", "esac"):
            self.status, self.link = None, ""
        if text in ("then", "do", "!", "{", "}", "time", "@"):
            return True
        if text in ("if", "elif", "while", "until"):
            sure = self.condition()
            if text == "if":
                self.scopes.append(_Scope("if", sure is not False, sure is True, sure))
            elif text == "elif":
                self.branch(sure=sure)
            return True
        if text == "else":
            self.branch(sure=True, last=True)
            return True
        if text == "fi":
            if self.scopes and self.scopes[-1].kind == "if":
                self.scopes.pop()
            return True
        if text in ("for", "select", "case", "function"):
            self.skip_until(";\n")
            if text == "case":
                self.scopes.append(_Scope("case", reads=True, done=False))
            return True
        if text == "esac" and self.scopes and self.scopes[-1].kind == "case":
            self.scopes.pop()
        return text in ("done", "esac")

    def branch(self, *, sure: bool | None, last: bool = False) -> None:
        """Begin the next branch of an ``if``, whose condition is ``sure``."""
        if self.scopes and self.scopes[-1].kind == "if":
            scope = self.scopes[-1]
            scope.reads = scope.status is not True and sure is not False
            scope.done = scope.status is False and sure is True
            scope.status = scope.status if last else _joined(scope.status, "||", sure)

    def skip_until(self, signs: str) -> None:
        """Skip what stands before the next of these signs."""
        end = re.compile(f"[{signs}]").search(self.text, self.at)
        self.at = len(self.text) if end is None else end.start()

    def condition(self) -> bool | None:
        """True if the condition that stands here holds; ``None`` where that is not known."""
        status: bool | None = True
        link = ""
        while True:
            end = re.compile(r";|\n|&&|\|\|").search(self.text, self.at)
            stop = end.start() if end else len(self.text)
            status = _joined(status, link, self.tested(self.text[self.at : stop]))
            self.at = max(self.at, stop)
            if end is None or end[0] not in ("&&", "||"):
                return status
            link, self.at = end[0], end.end()
            while self.text[self.at : self.at + 1].isspace():
                self.at += 1

    def tested(self, text: str) -> bool | None:
        """True if a command succeeds, for a test as far as its words are known; ``None`` where that is not known."""
        text = text.replace("\\\n", " ").strip() if len(text) <= MOST_VALUE else ""
        if text.startswith("! "):
            inside = None if text[1:].lstrip().startswith("!") else self.tested(text[1:])
            return None if inside is None else not inside
        if text == "false" or _SUCCEEDS.fullmatch(text):
            return text != "false"
        match = _TEST.match(text)
        closes = {"[": " ]", "[[": " ]]", "test": ""}[match[1]] if match else ""
        if match is None or not text.endswith(closes):
            return None
        inner, double = self.within(text[match.end() : len(text) - len(closes)]), match[1] == "[["
        inner.variables = dict(self.variables)
        words: list[Word] = []
        while inner.at < len(inner.text) and len(words) < 8:
            inner.blanks()
            before = inner.at
            made = inner.word(splits=False)
            if inner.at == before:
                inner.at += 1
            elif double and not made:
                made = [Word(text="")]
            words += made
        if any(each.strip("${}") in self.looked_up for word in words for each in word.unknown):
            return None
        return _holds(words, patterns=double)

    def blanks(self) -> None:
        """Skip blanks and continued lines: a backslash, PowerShell's backtick, or cmd's caret, with or without blanks behind it."""
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in " \t\r\ufeff\u00a0":
                self.at += 1
            elif sign in "\\`^":
                end = re.compile(r"[\\`^][ \t\r]*(\n|\Z)").match(self.text, self.at)
                if end is None:
                    return
                self.at = end.end()
            else:
                return

    def flag_next(self) -> bool:
        """True if the next line begins with a flag, and so belongs to the command above it, although nothing says so."""
        return bool(re.compile(r"[ \t]*(?=--?[A-Za-z])(?!-[A-Za-z]+:)").match(self.text, self.at))

    def prompt(self) -> bool:
        """True if a prompt, a hyphen of a list, or a fence of Markdown stood here, and was skipped."""
        match = re.compile(r"(?:\$|%|>|-|@|RUN|PS[^>\n]{0,60}>)[ \t]+(?=\S)|@(?=[a-z])|```[^\n]*|ExecStart=[-@:+!]*").match(
            self.text, self.at
        )
        begun = self.text.rfind("\n", max(0, self.at - _MOST_INDENT), self.at)
        if match is None or (begun < 0 and self.at > _MOST_INDENT) or self.text[begun + 1 : self.at].strip(" \t"):
            return False
        self.at = match.end()
        return True

    def redirection(self, words: list[Word]) -> str | None:
        """The file that ``> file`` names, empty for other redirections; ``None`` if none stands here."""
        match = re.compile(r"(?:\d{1,3}|&)?(?:>>|>\||>&|>|<<<|<<-?|<&|<)").match(self.text, self.at)
        if match is None:
            return None
        if self.text.startswith("(", match.end()) and match[0] in "<>":
            # The output of a command as a file: <(echo ...).
            return None
        sign = match[0].lstrip("&0123456789")
        if sign == "<" and PLACEHOLDER.match(self.text, self.at):
            return None
        if sign == "<" and match[0] != "<":
            return None
        self.at = match.end()
        if sign in ("<<", "<<-"):
            self.blanks()
            strips = sign == "<<-"
            tag = re.compile(r"(['\"]?)\\?([A-Za-z_][\w.-]*)\1").match(self.text, self.at)
            if tag is None:
                return ""
            self.at = tag.end()
            self.heredocs.append((tag[2], strips, bool(tag[1]), self.target(words)))
            return ""
        if sign in (">&", "<&"):
            number = re.compile(r"\d+|-").match(self.text, self.at)
            if number is not None:
                self.at = number.end()
                return ""
        self.blanks()
        named = self.word(splits=False)
        text = named[0].text if named else ""
        if sign in (">", ">>", ">|"):
            for place, (tag_, strips, quoted, target) in enumerate(self.heredocs):
                if not target:
                    self.heredocs[place] = (tag_, strips, quoted, text)
            self.last_target = text
            return text
        return ""

    def target(self, words: list[Word]) -> str:
        """The file that the output of the present command goes to: one that was named before the here document, or ``tee``'s."""
        if words and words[0].text == "tee" and len(words) > 1:
            return words[-1].text
        if len(words) > 1 and words[0].text == "sudo" and words[1].text == "tee":
            return words[-1].text
        target, self.last_target = self.last_target, ""
        return target

    def documents(self) -> None:
        """Read the here documents that the last line announced."""
        for tag, strips, quoted, target in self.heredocs:
            lines: list[str] = []
            begun = self.at
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if line.strip() == tag or (strips and line.lstrip("\t") == tag):
                    break
                lines.append(line)
            body = "\n".join(lines) + "\n"
            spot = Spot(written=body, origin=self.origin.cut(begun, begun + len(body)))
            if not quoted and "$" in body and len(body) < MOST_VALUE:
                body = self.filled(body)
            if target:
                self.files[target] = body
            if len(self.bodies) < MOST_COMMANDS:
                self.bodies[target or len(self.bodies)] = (body, spot.inside(body))
        self.heredocs = []

    def filled(self, body: str) -> str:
        """A here document with the variables that are known."""

        def known(match: re.Match[str]) -> str:
            variables = self.variables if self.outer is None or match[1] else self.outer
            return variables.get(match[2] or match[3], match[0])

        doubled = "()" if self.outer is None else r"(\$?)"
        return re.sub(doubled + r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", known, body)


def _holds(words: list[Word], *, patterns: bool = False) -> bool | None:
    """True if a test of a shell holds; ``None`` where its words are not known. ``[[`` compares with ``patterns``."""
    texts = [word.text for word in words]
    if texts[:1] == ["!"]:
        inner = _holds(words[1:], patterns=patterns)
        return None if inner is None else not inner
    if len(words) == 2 and texts[0] in ("-z", "-n"):
        if words[1].unknown and not words[1].remark:
            # A plain variable that is nowhere set is empty.
            plain = re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?", words[1].text)
            return None if plain is None else texts[0] == "-z"
        return (texts[1] == "") == (texts[0] == "-z")
    if len(words) != 3 or words[0].unknown or words[2].unknown:
        return None
    left, operator, right = texts
    if operator in ("=", "==", "!="):
        equal = left == right
        if patterns and re.search(r"[*?[]", right):
            quoted = words[2].quoted and re.search(r"\$|[\"'][^\"']*[*?[][^\"']*[\"']", words[2].source)
            if quoted or len(left) + len(right) > LONGEST_TRIMMED:
                # A quoted sign of a pattern stands for itself.
                return None
            equal = fnmatchcase(left, right)
        return equal == (operator != "!=")
    numbers = {"-gt": (1,), "-ge": (0, 1), "-lt": (-1,), "-le": (-1, 0), "-eq": (0,), "-ne": (-1, 1)}
    if operator in numbers and left.lstrip("-").isdigit() and right.lstrip("-").isdigit() and len(left) + len(right) < 40:
        return ((int(left) > int(right)) - (int(left) < int(right))) in numbers[operator]
    return None
