"""Manifests as plain values: YAML and JSON of any number of documents, by the guarded reader of :mod:`hwcalc.yaml_tree`.

Templates of Helm (``{{ .Values.model }}``) stay as text. Behind the place where a text stops being YAML nothing is read.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.launch.words import Origin, Spot
from hwcalc.yaml_tree import Node, TreeError, read_forest

OF_MANIFEST: Final = re.compile(r"(?m)^(?:\{\s*)?[\"']?(?:apiVersion|services|kind)[\"']?[ \t]*:")
"""A key of manifests, also of those that start no server."""
YAML_ENDINGS: Final = (".yaml", ".yml")
_NO_YAML: Final = ("{{", "```")
"""Signs of a template, and of a page with YAML in it."""
_MARK: Final = "kvplan-template-{}-"
_MARKED: Final = re.compile(r"kvplan-template-(\d{1,6})-")
_MOST_TRIES: Final = 6


class Text(Record):
    """A text of YAML, and where it stands in its file."""

    text: str
    origin: Origin

    def spot(self, node: Node) -> Spot:
        """The place of a value. Nothing is written for a container."""
        # Where a block of text begins, its sign does.
        origin = self.origin.cut(node.start, max(node.end, node.start + 1))
        return Spot(written="" if isinstance(node.value, (dict, list)) else self.text[node.start : node.end], origin=origin)


class Places:
    """Where the values of mappings and lists stand, by the identity of the container."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[Text, Node, dict[Any, Node]]] = {}
        self._kept: list[Any] = []
        self._seen: set[int] = set()
        self.repeated: list[tuple[int, str, int]] = []
        """Keys that stand twice in a mapping: the line of the one that counts, the key, and how many lines before it the other one stands."""
        self._shared: set[int] = set()
        """Nodes that stand for several values, by an anchor."""

    def keep(self, value: Any, text: Text, node: Node, items: dict[Any, Node]) -> None:
        """Note the node of a container, which is kept as long as this, and those of its items."""
        self._items[id(value)] = (text, node, items)
        self._kept.append(value)
        for key in (node.keys or {}).values():
            if key.before is not None:
                self.repeated.append((text.spot(key).line, key.text, key.line - key.before))
        for each in items.values():
            (self._shared if id(each) in self._seen else self._seen).add(id(each))

    def copied(self, value: Any, copy: Any) -> None:
        """Note that a container stands where another one does."""
        if id(value) in self._items:
            self._items[id(copy)] = self._items[id(value)]
            self._kept.append(copy)

    def share(self, value: Any) -> int:
        """The number of all values in a container. Each of them is noted to stand in several places."""
        *_, items = self._items.get(id(value), (None, None, {}))
        self._shared |= {id(each) for each in items.values()}
        return 1 + sum(map(self.share, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))

    def joined(self, value: Any, before: Any, behind: Any) -> None:
        """Note where the items of a container stand that was put together from two. Of two kinds only the place of the second is known."""
        if id(before) not in self._items or id(behind) not in self._items:
            return
        (*_, first), (text, node, second) = self._items[id(before)], self._items[id(behind)]
        more = {len(before) + place: each for place, each in second.items()} if isinstance(behind, list) else second
        self._items[id(value)] = (text, node, {**first, **more} if type(before) is type(behind) else {})
        self._kept.append(value)

    def line(self, value: Any) -> int:
        """The line of a container; 1 for one that stands nowhere."""
        text, node, _ = self._items.get(id(value), (None, None, {}))
        return 1 if text is None or node is None else text.spot(node).line

    def item(self, value: Any, key: Any) -> Spot:
        """The place of an item of a container. Nothing is written for one that an anchor puts into several places."""
        text, node, items = self._items.get(id(value), (None, None, {}))
        if text is None or node is None:
            return Spot(origin=Origin.on_line(1))
        spot = text.spot(items.get(key, node))
        shared = key not in items or id(items[key]) in self._shared
        return Spot(origin=Origin.on_line(spot.line)) if shared else spot


def fault_in(text: str, path: str) -> TreeError | None:
    """Why a manifest in a file of YAML is none: what deploys it cannot read it, and what stands behind that place is not read here; ``None`` for any other text."""
    if path.endswith(YAML_ENDINGS) and OF_MANIFEST.search(text) and not any(sign in text for sign in _NO_YAML):
        try:
            read_forest(text)
        except TreeError as error:
            return error
    return None


def read_documents(text: str, places: Places | None = None, origin: Origin | None = None) -> list[Any]:
    """The documents of a text; none if it is no YAML, and those before the place where it stops being YAML.

    ``origin`` is where the text stands in its file, by default it is the file.
    """
    templates: list[str] = []
    places, origin = places or Places(), origin or Origin.whole(text)
    given = text

    if "{{" in text:
        lines = text.split("\n")
        # A line that is nothing but a template steers the others.
        lines = ["" if line.strip().startswith("{{") and line.strip().endswith("}}") else line for line in lines]
        text = _marked("\n".join(lines), templates)
    text = text.replace("\t", "  ")
    if text != given:
        origin = _by_line(given, text, origin)
    for _ in range(_MOST_TRIES):
        try:
            nodes = read_forest(text)
        except TreeError as error:
            if error.line is None or error.line < 2 or "nested" in error.problem or "more than" in error.problem:
                raise
            lines = text.split("\n")
            text = "\n".join(lines[: min(error.line, len(lines)) - 1])
            continue
        read = Text(text=text, origin=origin)
        return [_plain(node, templates, places, read) for node in nodes]
    return []


def _by_line(given: str, text: str, origin: Origin) -> Origin:
    """The places of the characters of a text; of lines that are not as ``given``, the line alone."""
    starts, at, before, behind = [], [], 0, 0
    for old, new in zip(given.split("\n"), text.split("\n"), strict=False):
        line, column = origin.place(before)
        starts.append(behind)
        at.append((line, column if old == new else 0))
        before, behind = before + len(old) + 1, behind + len(new) + 1
    return Origin(starts=tuple(starts), at=tuple(at))


def _marked(text: str, templates: list[str]) -> str:
    """The text with a mark for each template, which is kept in ``templates``."""
    pieces: list[str] = []
    at = 0
    while (begun := text.find("{{", at)) >= 0 and (end := text.find("}}", begun)) >= 0:
        pieces += [text[at:begun], _MARK.format(len(templates))]
        templates.append(text[begun : end + 2])
        at = end + 2
    return "".join((*pieces, text[at:]))


def _plain(node: Node, templates: list[str], places: Places, text: Text) -> Any:
    value = node.value
    if isinstance(value, dict):
        made: Any = {_restored(key, templates): _plain(each, templates, places, text) for key, each in value.items()}
        items: dict[Any, Node] = {_restored(key, templates): each for key, each in value.items()}
    elif isinstance(value, list):
        made = [_plain(each, templates, places, text) for each in value]
        items = dict(enumerate(value))
    elif isinstance(value, str):
        return _restored(value, templates)
    else:
        return value
    places.keep(made, text, node, items)
    return made


def _restored(text: str, templates: list[str]) -> str:
    if "kvplan-template-" not in text:
        return text
    return _MARKED.sub(lambda match: templates[int(match[1])] if int(match[1]) < len(templates) else match[0], text)
