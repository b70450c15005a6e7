"""Untrusted YAML as a tree in which every value has its line and column.

A check file may come with anybody's pull request. Therefore this reader builds its tree from the parser's events, without recursion,
and nothing is expanded, constructed or called. It accepts comments, bare words and the values that JSON has: mappings, lists, text,
whole numbers, decimals, true, false, null. Aliases, anchors, tags, a second document, duplicate keys and keys that are not text are
errors.
"""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import Any, Final

from hwcalc.check.errors import CheckFileError
from hwcalc.formulas.frozen import frozen
from hwcalc.text import printable, shown

__all__ = ["LARGEST_FILE", "MAX_DEPTH", "MAX_NODES", "Node", "parse_tree", "read_text"]

LARGEST_FILE: Final = 1024**2
"""Bytes. A thousand checks take a tenth of this."""
MAX_DEPTH: Final = 12
"""Levels of nesting. A check file has up to four."""
MAX_NODES: Final = 100_000

_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,30}\.[0-9]{0,30}|\.[0-9]{1,30}|[0-9]{1,30}(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_HALF = re.compile("[\ud800-\udfff]")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SHARE = "Write it out; what checks share stands in defaults."
_HOW = "Write plain YAML or JSON. An example: kvplan check --example"


@frozen
class Node:
    """One value with its line and column, both counted from 1.

    ``value`` is text, an integer, a float, a bool, ``None``, a ``list`` of nodes or a ``dict`` from text to nodes. ``text`` is a scalar
    as it was written; ``keys`` has a node for each key of a mapping.
    """

    value: Any
    line: int
    column: int
    text: str = ""
    keys: dict[str, Node] | None = None


def read_text(path: str) -> str:
    """The text of a regular file, or of standard input for ``-``. Raises :class:`~hwcalc.check.errors.CheckFileError`."""
    name = "standard input" if path == "-" else printable(path)
    try:
        data = _bytes(path, name)
    except FileNotFoundError as error:
        raise CheckFileError(
            f"there is no file {name}.", hint="Give a check file, or start with: kvplan check --example"
        ) from error
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise CheckFileError(f"{name} cannot be read: {reason}.", hint="Give a check file in YAML.") from error
    if len(data) > LARGEST_FILE:
        raise CheckFileError(f"{name} is larger than {LARGEST_FILE // 1024**2} MiB.", hint="Split it into several check files.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckFileError(
            f"{name} is not UTF-8 text (byte {error.start:,}).",
            hint="Save it as UTF-8.",
            line=data.count(b"\n", 0, error.start) + 1,
        ) from error


def _bytes(path: str, name: str) -> bytes:
    if path == "-":
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise CheckFileError("there is nothing on standard input.", hint="Pipe a check file in: kvplan check - < checks.yaml")
        data = getattr(sys.stdin, "buffer", sys.stdin).read(LARGEST_FILE + 1)
        return data.encode() if isinstance(data, str) else bytes(data)
    file = Path(path)
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):  # opening anything else may block for ever
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise CheckFileError(f"{name} is {what}, not a file.", hint="Give a check file, or - for standard input.")
    with file.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)


def parse_tree(text: str, name: str) -> Node:
    """The tree of a text. Messages name its places as ``name:line:column``.

    Raises :class:`~hwcalc.check.errors.CheckFileError`.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(name, yaml).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        place = name if mark is None else f"{name}:{line}:{column}"
        problem = printable(error.problem or "it ends too early")
        raise CheckFileError(f"{place}: not YAML: {problem}.", hint=_HOW, line=line, column=column) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, CheckFileError):
            raise
        reason = printable(str(getattr(error, "reason", "") or "it cannot be read"))
        raise CheckFileError(f"{name}: not YAML: {reason}.", hint=_HOW) from error


class _Builder:
    """Turns events into nodes, with a stack of the open containers."""

    def __init__(self, name: str, yaml: Any) -> None:
        self._name = name
        self._yaml = yaml
        self._open: list[tuple[Node, list[Node]]] = []  # the list holds a mapping's pending key, if there is one
        self._root: Node | None = None
        self._count = 0

    def build(self, events: Any) -> Node:
        yaml = self._yaml
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(event, "a second document (---) is not allowed")
            elif isinstance(event, yaml.AliasEvent):
                raise self._error(event, "an alias (*name) is not allowed", _SHARE)
            elif isinstance(event, yaml.ScalarEvent):
                self._add(event, self._scalar(event))
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                mapping = isinstance(event, yaml.MappingStartEvent)
                node = self._node(event, {} if mapping else [], keys={} if mapping else None)
                self._add(event, node)
                self._open.append((node, []))
                if len(self._open) > MAX_DEPTH:
                    raise self._error(event, f"nested more than {MAX_DEPTH} levels deep")
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._open.pop()
        if self._root is None:
            raise CheckFileError(f"{self._name} is empty.", hint=_HOW)
        return self._root

    def _node(self, event: Any, value: Any, *, text: str = "", keys: dict[str, Node] | None = None) -> Node:
        if event.anchor is not None:
            raise self._error(event, "an anchor (&name) is not allowed", _SHARE)
        if event.tag is not None:
            raise self._error(event, "a tag (!name) is not allowed")
        self._count += 1
        if self._count > MAX_NODES:
            raise self._error(event, f"more than {MAX_NODES:,} values")
        mark = event.start_mark
        return Node(value=value, line=mark.line + 1, column=mark.column + 1, text=text, keys=keys)

    def _scalar(self, event: Any) -> Node:
        text: str = event.value
        if _HALF.search(text):
            raise self._error(event, "half of a UTF-16 pair is no character")
        value: Any = text
        if event.style is None or event.style == "":
            if text in _WORDS:
                value = _WORDS[text]
            elif _INTEGER.fullmatch(text):
                value = int(text)
            elif _DECIMAL.fullmatch(text):
                value = float(text)
        return self._node(event, value, text=text)

    def _add(self, event: Any, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        container, pending = self._open[-1]
        if container.keys is None:
            container.value.append(node)
        elif pending:
            container.value[pending.pop().text] = node
        else:
            if not isinstance(node.value, (str, int, float, bool)) or not node.text:
                raise self._error(event, "a key must be plain text")
            if node.text in container.keys:
                first = container.keys[node.text].line
                raise self._error(event, f"the key {shown(node.text, 60)} stands twice (first in line {first})")
            container.keys[node.text] = node
            pending.append(node)

    def _error(self, event: Any, problem: str, hint: str = "") -> CheckFileError:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        return CheckFileError(f"{self._name}:{line}:{column}: {problem}.", hint=hint or _HOW, line=line, column=column)
