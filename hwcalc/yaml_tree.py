"""Untrusted YAML as a tree in which every value has its line and column.

A check file may come with anybody's pull request, and a profile from anybody's folder. Therefore this reader builds its tree from the
parser's events, without recursion, and nothing is expanded, constructed or called. The composer of libyaml would recurse in C, where
30 KB of brackets end the process. The reader accepts comments, bare words and the values that JSON has: mappings, lists, text, whole
numbers, decimals, true, false, null. Aliases, anchors, tags, a second document, duplicate keys and keys that are not text are errors.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.text import printable

LARGEST_FILE: Final = 1024**2
"""Bytes of a file, and characters of a text. A thousand checks take a tenth of this."""
LARGEST_MANIFEST: Final = 4 * 1024**2
"""Characters of a manifest. Rendered charts of large systems take a quarter of this."""
MAX_DEPTH: Final = 12
"""Levels of nesting. A check file has up to four. The scanner's time grows with their square, and it stops here."""
MAX_NODES: Final = 100_000
MAX_DOCUMENTS: Final = 2_000
"""Documents of a manifest."""
MAX_DIRECTIVES: Final = 16
"""Lines that begin with ``%``. The parser compares each directive with all others before its first event."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,30}\.[0-9]{0,30}|\.[0-9]{1,30}|[0-9]{1,30}(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_HALF = re.compile("[\ud800-\udfff]")
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])%")
_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SHARE = "Write it out: each value stands where it is used."
_WHOLE = "Write the character itself, or both halves of its pair."


class TreeError(ValueError):
    """A text that is no tree: the problem, its line and column from 1 (``None`` if it has no place), and what to write instead.

    ``key`` is the key that the problem is about, if there is one.
    """

    def __init__(
        self, problem: str, *, line: int | None = None, column: int | None = None, hint: str = "", key: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column
        self.hint = hint
        self.key = key


class Node(Record):
    """One value with its line and column, both counted from 1.

    ``value`` is text, an integer, a float, a bool, ``None``, a ``list`` of nodes or a ``dict`` from text to nodes. ``text`` is a scalar
    as it was written; ``keys`` has a node for each key of a mapping. In a manifest, ``start`` and ``end`` are the places of the characters that
    a scalar begins and ends with, its quotes and its sign of a block among them; a key that stands ``before`` has the line of that.
    """

    value: Any
    line: int
    column: int
    text: str = ""
    keys: dict[str, Node] | None = None
    start: int = 0
    end: int = 0
    before: int | None = None


def plain_value(node: Node) -> Any:
    """The value without places: text, numbers, lists and dicts. Nesting is bounded by :data:`MAX_DEPTH`."""
    if isinstance(node.value, dict):
        return {key: plain_value(value) for key, value in node.value.items()}
    return [plain_value(value) for value in node.value] if isinstance(node.value, list) else node.value


def read_tree(text: str) -> Node:
    """The tree of a text. Raises :class:`TreeError`."""
    if len(text) > LARGEST_FILE:
        raise TreeError(f"is larger than {LARGEST_FILE // 1024**2} MiB")
    roots = _read(text, _Builder)
    if not roots:
        raise TreeError("is empty")
    return roots[0]


def read_forest(text: str) -> list[Node]:
    """The trees of all documents of a manifest, as the tools that deploy it read them. Raises :class:`TreeError`.

    Of a key that stands twice the last counts, an alias is the value that it names, ``<<`` merges mappings, and a tag is not obeyed. What
    aliases stand for is counted as if it were written out.
    """
    if len(text) > LARGEST_MANIFEST:
        raise TreeError(f"is larger than {LARGEST_MANIFEST // 1024**2} MiB")
    return _read(text, _Manifests)


def _read(text: str, builder: type[_Builder]) -> list[Node]:
    import yaml

    if text.count("%") > MAX_DIRECTIVES and sum(1 for _ in _DIRECTIVE.finditer(text)) > MAX_DIRECTIVES:
        raise TreeError(f"has more than {MAX_DIRECTIVES} lines that begin with % (directives)")
    if "\\u" in text and text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        # JSON escapes some characters as a pair (\ud83d\ude00), and YAML has an escape for each.
        text = _QUOTED.sub(lambda quoted: _ESCAPE.sub(_whole, quoted[0]), text)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return builder(yaml).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        problem, mark = printable(error.problem or "it ends too early"), error.problem_mark
        line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        if "nesting depth" in problem:
            # Newer releases of libyaml read ahead, and stop by themselves at 1,000 levels.
            raise TreeError(f"nested more than {builder.deepest} levels deep", line=line, column=column) from error
        hint = _WHOLE if "Unicode character escape" in problem else ""
        raise TreeError(f"not YAML: {problem}", line=line, column=column, hint=hint) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, TreeError):
            raise
        reason = printable(str(getattr(error, "reason", "") or "it cannot be read"))
        raise TreeError(f"not YAML: {reason}") from error


def _whole(escape: re.Match[str]) -> str:
    if escape["high"] is None:
        return escape[0]
    return f"\\U{0x10000 + ((int(escape['high'], 16) - 0xD800) << 10) + int(escape['low'], 16) - 0xDC00:08X}"


class _Builder:
    """Turns events into nodes, with a stack of the open containers."""

    deepest: ClassVar[int] = MAX_DEPTH
    several: ClassVar[bool] = False

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._open: list[tuple[Node, list[Node]]] = []  # the list holds a mapping's pending key, if there is one
        self._roots: list[Node] = []
        self._count = 0

    def build(self, events: Any) -> list[Node]:
        yaml = self._yaml
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > MAX_DOCUMENTS:
                    raise self._error(event, f"more than {MAX_DOCUMENTS} documents")
                if documents > 1 and not self.several:
                    raise self._error(event, "a second document (---) is not allowed")
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.ScalarEvent):
                self._add(event, self._scalar(event))
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                mapping = isinstance(event, yaml.MappingStartEvent)
                node = self._node(event, {} if mapping else [], keys={} if mapping else None)
                self._add(event, node)
                self._open.append((node, []))
                if len(self._open) > self.deepest:
                    raise self._error(event, f"nested more than {self.deepest} levels deep")
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._close(self._open.pop()[0])
        return self._roots

    def _alias(self, event: Any) -> None:
        raise self._error(event, "an alias (*name) is not allowed", _SHARE)

    def _close(self, node: Node) -> None:
        """A container is complete."""

    def _mark(self, event: Any) -> None:
        """Refuse what a check file must not have."""
        if event.anchor is not None:
            raise self._error(event, "an anchor (&name) is not allowed", _SHARE)
        if event.tag is not None:
            raise self._error(event, "a tag (!name) is not allowed")

    def _node(self, event: Any, value: Any, *, text: str = "", keys: dict[str, Node] | None = None) -> Node:
        self._mark(event)
        self._count += 1
        if self._count > MAX_NODES:
            raise self._error(event, f"more than {MAX_NODES:,} values")
        mark = event.start_mark
        return Node(value=value, line=mark.line + 1, column=mark.column + 1, text=text, keys=keys)

    def _scalar(self, event: Any) -> Node:
        text: str = event.value
        if not text.isascii() and _HALF.search(text):
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
            self._roots.append(node)
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
                node = self._twice(event, container.keys[node.text], node)
            container.keys[node.text] = node
            pending.append(node)

    def _twice(self, event: Any, first: Node, node: Node) -> Node:
        """The key that counts, of one that stands twice."""
        shown = printable(node.text)[:60]
        raise self._error(event, f"the key {shown!r} stands twice (first in line {first.line})", key=shown)

    def _error(self, event: Any, problem: str, hint: str = "", *, key: str | None = None) -> TreeError:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        return TreeError(problem, line=line, column=column, hint=hint, key=key)


class _Manifests(_Builder):
    """Reads manifests: several documents, shared values, and keys of which the last counts."""

    deepest: ClassVar[int] = 48
    several: ClassVar[bool] = True

    def __init__(self, yaml: Any) -> None:
        super().__init__(yaml)
        self._named: dict[str, Node] = {}
        self._sizes: dict[int, int] = {}

    def _mark(self, event: Any) -> None:
        """Nothing is refused here; a tag is not obeyed."""

    def _node(self, event: Any, value: Any, *, text: str = "", keys: dict[str, Node] | None = None) -> Node:
        node = super()._node(event, value, text=text, keys=keys)
        # A block of text begins behind its sign.
        behind = getattr(event, "style", None) in ("|", ">")
        node = replace(node, line=node.line + behind, start=event.start_mark.index, end=event.end_mark.index)
        self._sizes[id(node)] = 1
        if event.anchor is not None:
            self._named[event.anchor] = node
        return node

    def _alias(self, event: Any) -> None:
        node = self._named.get(event.anchor)
        if node is None or any(node is container for container, _ in self._open):
            raise self._error(event, f"the alias *{printable(event.anchor)[:60]} names nothing that stands before it")
        self._count += self._sizes[id(node)]
        if self._count > MAX_NODES:
            raise self._error(event, f"more than {MAX_NODES:,} values")
        self._add(event, node)

    def _close(self, node: Node) -> None:
        """Merge what ``<<`` names, and count what the container holds."""
        if node.keys is not None and "<<" in node.keys:
            merged, _ = node.value.pop("<<"), node.keys.pop("<<")
            for each in merged.value if isinstance(merged.value, list) else [merged]:
                for key, value in each.value.items() if isinstance(each.value, dict) else ():
                    node.value.setdefault(key, value)
                    node.keys.setdefault(key, value)
        held = node.value.values() if isinstance(node.value, dict) else node.value
        self._sizes[id(node)] = 1 + sum(self._sizes.get(id(each), 1) for each in held)

    def _twice(self, event: Any, first: Node, node: Node) -> Node:
        return replace(node, before=first.line)
