"""What stands beside a language model, written as towers with the pieces of their projectors: linear layers, norms and vectors of given widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part
from hwcalc.parsers.blocks import Switch, Weighed, norm, switched
from hwcalc.parsers.config import Config, architecture_of
from hwcalc.parsers.towers import build
from hwcalc.parsers.towers.build import UnknownTowerError

JOINT: Final = Part.PROJECTOR
PATH: Final = "multi_modal_projector"

# The language model alone: such a class leaves out the other parts that its document describes.
_TEXT_ONLY: Final = tuple(
    f"{name}ForCausalLM" for name in ("Dots3Note", "Emu3", "Llama4", "Mllama", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp")
)


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


Beside = tuple[str, str, tuple[Piece, ...], Blocks | None]
"""One tower: its config key, its name in the model, its projector, and the blocks after it."""


def beside(key: str, *projector: Piece, path: str, then: Blocks | None = None) -> Beside:
    """A tower with the pieces of its projector."""
    return key, path, projector, then


def wrapper(*towers: Beside, told_width: bool = False) -> Wrapper:
    """A type of document with these towers: a function that weighs everything except the language model.

    ``told_width`` says whether the document's class hands its towers the width of the language model.
    """

    def weigh(top: Config, language: Config) -> tuple[Block, ...] | None:
        if architecture_of(top.raw) in _TEXT_ONLY:
            return ()
        told = {"text_hidden_size": language.integer("hidden_size")} if told_width else {}
        joined = Joined(top=top, language=language)
        out: tuple[Block, ...] = ()
        try:
            for key, path, projector, then in towers:
                config = top.part(key, **told)
                if config is None:
                    continue
                joined = replace(joined, towers=(*joined.towers, config))
                out += build.tower(config, path)
                out += build.block("projector", tuple(weight for piece in projector for weight in piece(joined)), JOINT)
                if then is not None:
                    out += then(joined)
        except UnknownTowerError:
            return None
        return out

    return weigh


def size_of(joined: Joined, size: Size) -> int:
    """The width that is meant of a document."""
    if not isinstance(size, str):
        return size(joined)
    level, _, key = size.partition(".")
    return {"tower": joined.tower, "text": joined.language, "top": joined.top}[level].integer(key or "hidden_size")


def times(size: Size, factor: int | str) -> Size:
    """Several vectors side by side. Their number may be a key."""
    return lambda joined: size_of(joined, size) * (factor if isinstance(factor, int) else size_of(joined, factor))


def merged(side: str) -> Size:
    """The width of a square of patches side by side. ``side`` is a key of the document or of the tower."""
    return lambda joined: joined.width * size_of(joined, side) ** 2


def shuffled(width: Size) -> Size:
    """The width after a pixel shuffle. A ratio of 0.5 makes four channels of one."""

    def size(joined: Joined) -> int:
        ratio = joined.top.number("downsample_ratio", 0.5)
        if not 0 < ratio <= 1:
            raise joined.top.error("downsample_ratio", ratio, "more than 0 and at most 1")
        return size_of(joined, width) * int(1 / ratio) ** 2

    return size


def chain(*sizes: Size, names: tuple[str, ...] = ("linear_1", "linear_2"), bias: Switch = True, path: str = PATH) -> Piece:
    """Linear layers between the given widths."""

    def weigh(joined: Joined) -> Weighed:
        return build.mlp_chain(path, tuple(size_of(joined, size) for size in sizes), names, bias=switched(joined.top, bias))

    return weigh


def matrix(source: Size, out: Size = "text", *, bias: Switch = True, path: str = PATH) -> Piece:
    """One linear layer."""
    return lambda joined: w.linear(path, size_of(joined, source), size_of(joined, out), bias=switched(joined.top, bias))


def normed(size: Size, path: str = f"{PATH}.layer_norm", *, kind: str = "layer", switch: Switch = True) -> Piece:
    """A norm, unless the document's ``switch`` leaves it out."""
    return lambda joined: norm(kind, path, size_of(joined, size)) if switched(joined.top, switch) else ()


def vector(path: str) -> Piece:
    """A learned vector that stands among the language model's tokens."""
    return lambda joined: w.parameter(path, joined.out)
