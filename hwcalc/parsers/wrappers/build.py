"""The spec of a document with several parts, and the projectors that many of these models share.

A spec lists the towers, each with its config key, its name in the model and its projector. Every room mirrors the models'
``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, linear, parameter
from hwcalc.parsers.blocks import Switch, Weighed, norm, switched
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import UnknownTowerError, block, mlp_chain, tower

__all__ = [
    "JOINT", "PATH", "Joined", "Piece", "audio", "beside", "chain", "matrix", "merged", "normed", "shuffled", "times", "vector",
    "vision", "wrapper",
]  # fmt: skip

JOINT: Final = Part.PROJECTOR
PATH: Final = "multi_modal_projector"

# The language model alone: such a class leaves out the other parts that its document describes.
_TEXT_ONLY: Final = ("Dots3Note", "Emu3", "Llama4", "Mllama", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp")


class Joined(Record):
    """What a projector depends on: the document, its language model, and the towers so far."""

    top: Config
    language: Config
    towers: tuple[Config, ...] = ()

    @property
    def tower(self) -> Config:
        """The tower that the projector belongs to."""
        return self.towers[-1]

    @property
    def width(self) -> int:
        """Width of that tower."""
        return self.tower.integer("hidden_size")

    @property
    def out(self) -> int:
        """Width of the language model."""
        return self.language.integer("hidden_size")


Piece = Callable[[Joined], Weighed]
"""A function that gives the weights of one part of a projector."""
Blocks = Callable[[Joined], tuple[Block, ...]]
"""Weighs further blocks of a document."""
Wrapper = Callable[[Config, Config], tuple[Block, ...] | None]
"""Weighs what surrounds the language model, by the configs of the document and of the language model.

``None`` if a tower is of a type that nobody weighs.
"""
Size = str | Callable[[Joined], int]
"""A width: ``tower``, ``text`` (the language model), a key of either or of the document (``top.merge_size``), or a function."""


class Beside(Record):
    """One tower: its config key, its name in the model, its projector, and the blocks after it."""

    key: str
    path: str
    projector: tuple[Piece, ...]
    then: Blocks | None


def beside(key: str, *projector: Piece, path: str, then: Blocks | None = None) -> Beside:
    """A tower with the pieces of its projector."""
    return Beside(key=key, path=path, projector=projector, then=then)


vision: Final = partial(beside, "vision_config", path="vision_tower")
audio: Final = partial(beside, "audio_config", path="audio_tower")


def wrapper(*towers: Beside, told_width: bool = False) -> Wrapper:
    """A type of document with these towers: a function that weighs everything except the language model.

    ``told_width`` says whether the document's class hands its towers the width of the language model.
    """

    def weigh(top: Config, language: Config) -> tuple[Block, ...] | None:
        if _text_only(top):
            return ()
        told = {"text_hidden_size": language.integer("hidden_size")} if told_width else {}
        joined = Joined(top=top, language=language)
        out: tuple[Block, ...] = ()
        try:
            for part in towers:
                config = top.part(part.key, **told)
                if config is None:
                    continue
                joined = replace(joined, towers=(*joined.towers, config))
                out += tower(config, part.path)
                out += block("projector", tuple(weight for piece in part.projector for weight in piece(joined)), JOINT)
                if part.then is not None:
                    out += part.then(joined)
        except UnknownTowerError:
            return None
        return out

    return weigh


def _text_only(top: Config) -> bool:
    """Whether the class that the document names is the language model alone."""
    names = top.raw.get("architectures")
    return isinstance(names, (list, tuple)) and list(names[:1]) in [[f"{name}ForCausalLM"] for name in _TEXT_ONLY]


# Widths.


def _size(joined: Joined, size: Size) -> int:
    if not isinstance(size, str):
        return size(joined)
    level, _, key = size.partition(".")
    config = {"tower": joined.tower, "text": joined.language, "top": joined.top}[level]
    return config.integer(key or "hidden_size")


def times(size: Size, factor: int | str) -> Size:
    """Several vectors side by side. Their number may be a key."""
    return lambda joined: _size(joined, size) * (factor if isinstance(factor, int) else _size(joined, factor))


def merged(side: str) -> Size:
    """The width of a square of patches side by side. ``side`` is a key of the document or of the tower."""
    return lambda joined: joined.width * _size(joined, side) ** 2


def shuffled(width: Size) -> Size:
    """The width after a pixel shuffle. A ratio of 0.5 makes four channels of one."""

    def size(joined: Joined) -> int:
        ratio = joined.top.number("downsample_ratio", 0.5)
        if not 0 < ratio <= 1:
            raise joined.top.error("downsample_ratio", ratio, "more than 0 and at most 1")
        return _size(joined, width) * int(1 / ratio) ** 2

    return size


# Pieces of projectors. ``bias`` may be a key of the document.


def chain(*sizes: Size, names: tuple[str, ...] = ("linear_1", "linear_2"), bias: Switch = True, path: str = PATH) -> Piece:
    """Linear layers between the given widths."""
    return lambda joined: mlp_chain(path, tuple(_size(joined, size) for size in sizes), names, bias=switched(joined.top, bias))


def matrix(source: Size, out: Size = "text", *, bias: Switch = True, path: str = PATH) -> Piece:
    """One linear layer."""
    return lambda joined: linear(path, _size(joined, source), _size(joined, out), bias=switched(joined.top, bias))


def normed(size: Size, path: str = f"{PATH}.layer_norm", *, kind: str = "layer", switch: Switch = True) -> Piece:
    """A norm, unless the document's ``switch`` leaves it out."""
    return lambda joined: norm(kind, path, _size(joined, size)) if switched(joined.top, switch) else ()


def vector(path: str) -> Piece:
    """A learned vector that stands among the language model's tokens."""
    return lambda joined: parameter(path, joined.out)
