"""The layers of a model in one line: a letter for each, so that a pattern is seen at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hwcalc.library.layer_bytes import LayerBytes, layer_bytes
from hwcalc.planner.result import Plan
from hwcalc.units import human_bytes

__all__ = ["layer_strip"]

_NONE: Final = "."
"""A layer without any bytes."""
_MANY: Final = 2
"""A capital says that a layer has at least the largest one's bytes, divided by this."""
_LEAST: Final = 20


def layer_strip(plan: Plan, width: int) -> tuple[str, str] | None:
    """A letter for each layer, and what the letters mean; ``None`` if no layer keeps anything.

    The letter says the kind, a capital that it has many bytes: ``ssssSF`` would be four windowed layers, and a large one, and a full one.
    Where the line is too narrow a letter stands for several layers, the largest of them.
    """
    layers = layer_bytes(plan)
    most = max((layer.bytes for layer in layers), default=0)
    if not most:
        return None
    letters = _letters(layers)

    def sign(layer: LayerBytes) -> str:
        if not layer.bytes:
            return _NONE
        return letters[layer.title] if layer.bytes * _MANY >= most else letters[layer.title].lower()

    each = -(-len(layers) // max(_LEAST, width))
    shown = [max(layers[start : start + each], key=lambda layer: layer.bytes) for start in range(0, len(layers), each)]
    sizes: dict[str, dict[str, list[int]]] = {}
    for layer in layers:
        sizes.setdefault(sign(layer), {}).setdefault(layer.title, []).append(layer.bytes)
    many = f", {each} layers a letter" if each > 1 else ""
    return "".join(map(sign, shown)), ", ".join(_meanings(sizes)) + many


def _letters(layers: Sequence[LayerBytes]) -> dict[str, str]:
    """A capital for each title: its first letter that no other title has."""
    letters: dict[str, str] = {}
    for title in dict.fromkeys(layer.title for layer in layers if layer.bytes):
        free = (letter for letter in (*title.upper(), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ") if letter not in letters.values())
        letters[title] = next(letter for letter in free if letter.isalpha())
    return letters


def _meanings(sizes: Mapping[str, Mapping[str, Sequence[int]]]) -> Iterator[str]:
    for sign, titles in sizes.items():
        if sign == _NONE:
            yield f"{_NONE} nothing of its own"
            continue
        ((title, found),) = titles.items()
        low, high = human_bytes(min(found)), human_bytes(max(found))
        yield f"{sign} {title} {low if low == high else f'{low} to {high}'} each"
