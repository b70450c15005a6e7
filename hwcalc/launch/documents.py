"""Manifests as plain values: YAML and JSON of any number of documents, by the guarded reader of :mod:`hwcalc.yaml_tree`.

Templates of Helm (``{{ .Values.model }}``) stay as text. Behind the place where a text stops being YAML nothing is read.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hwcalc.yaml_tree import Node, TreeError, read_forest

_MARK: Final = "kvplan-template-{}-"
_MARKED: Final = re.compile(r"kvplan-template-(\d{1,6})-")
_MOST_TRIES: Final = 6


class Places:
    """The lines of mappings and lists, and of what stands in them, by the identity of the container; 1 for what has none."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[int, dict[Any, int]]] = {}
        self._kept: list[Any] = []

    def keep(self, value: Any, line: int, items: dict[Any, int]) -> None:
        """Note the lines of a container, which is kept as long as this."""
        self._lines[id(value)] = (line, items)
        self._kept.append(value)

    def copied(self, value: Any, copy: Any) -> None:
        """Note that a container stands where another one does."""
        if id(value) in self._lines:
            self.keep(copy, *self._lines[id(value)])

    def line(self, value: Any) -> int:
        """The line of a container."""
        return self._lines.get(id(value), (1, {}))[0]

    def item(self, value: Any, key: Any) -> int:
        """The line of what a container has under a key, or at a place."""
        line, items = self._lines.get(id(value), (1, {}))
        return items.get(key, line)


def read_documents(text: str, places: Places | None = None) -> list[Any]:
    """The documents of a text; none if it is no YAML, and those before the place where it stops being YAML."""
    templates: list[str] = []

    if "{{" in text:
        lines = text.split("\n")
        # A line that is nothing but a template steers the others.
        lines = ["" if line.strip().startswith("{{") and line.strip().endswith("}}") else line for line in lines]
        text = _marked("\n".join(lines), templates)
    text = text.replace("\t", "  ")
    for _ in range(_MOST_TRIES):
        try:
            nodes = read_forest(text)
        except TreeError as error:
            if error.line is None or error.line < 2 or "nested" in error.problem or "more than" in error.problem:
                raise
            lines = text.split("\n")
            text = "\n".join(lines[: min(error.line, len(lines)) - 1])
            continue
        return [_plain(node, templates, places or Places()) for node in nodes]
    return []


def _marked(text: str, templates: list[str]) -> str:
    """The text with a mark for each template, which is kept in ``templates``."""
    pieces: list[str] = []
    at = 0
    while (begun := text.find("{{", at)) >= 0 and (end := text.find("}}", begun)) >= 0:
        pieces += [text[at:begun], _MARK.format(len(templates))]
        templates.append(text[begun : end + 2])
        at = end + 2
    return "".join((*pieces, text[at:]))


def _plain(node: Node, templates: list[str], places: Places) -> Any:
    value = node.value
    if isinstance(value, dict):
        made: Any = {_restored(key, templates): _plain(each, templates, places) for key, each in value.items()}
        items: dict[Any, int] = {_restored(key, templates): each.line for key, each in value.items()}
    elif isinstance(value, list):
        made = [_plain(each, templates, places) for each in value]
        items = {place: each.line for place, each in enumerate(value)}
    elif isinstance(value, str):
        return _restored(value, templates)
    else:
        return value
    places.keep(made, node.line, items)
    return made


def _restored(text: str, templates: list[str]) -> str:
    if "kvplan-template-" not in text:
        return text
    return _MARKED.sub(lambda match: templates[int(match[1])] if int(match[1]) < len(templates) else match[0], text)
