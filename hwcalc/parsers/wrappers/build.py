"""The spec of a document of several parts, and the projectors that many of them share.

A spec lists the towers by config key and name in the model, each with its projector. Every room mirrors the models'
``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.frozen import frozen, replace
from hwcalc.formulas.weights import Block, Part, linear, parameter
from hwcalc.parsers.blocks import Weighed, norm, switched
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import UnknownTowerError, block, mlp_chain, tower

__all__ = [
    "JOINT", "PATH", "Joined", "audio", "beside", "chain", "matrix", "merged", "normed", "shuffled", "times", "vector",
    "vision", "wrapper",
]  # fmt: skip

JOINT: Final = Part.PROJECTOR
PATH: Final = "multi_modal_projector"

# Classes that are the language model alone, of documents that describe more.
_TEXT_ONLY: Final = ("Dots3Note", "Emu3", "Llama4", "Mllama", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp")


@frozen
class Joined:
    """What a projector is read from: the document, its language model, and the towers so far."""

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
"""A part of a projector."""
Blocks = Callable[[Joined], tuple[Block, ...]]
"""What a document has besides."""
Wrapper = Callable[[Config, Config], tuple[Block, ...] | None]
"""Weighs a document around its language model, by the configs of both; ``None`` where nobody weighs one of its towers."""
Size = str | Callable[[Joined], int]
"""A width: ``tower``, ``text`` (the language model's), a key of theirs or of the document (``top.merge_size``), or a function."""


@frozen
class Beside:
    """One tower: its config key, its name in the model, its projector, and blocks that follow."""

    key: str
    path: str
    projector: tuple[Piece, ...] = ()
    then: Blocks | None = None


def beside(key: str, path: str, *projector: Piece, then: Blocks | None = None) -> Beside:
    """A tower with the pieces of its projector."""
    return Beside(key=key, path=path, projector=projector, then=then)


def vision(*projector: Piece, path: str = "vision_tower", then: Blocks | None = None) -> Beside:
    """A vision tower with the pieces of its projector."""
    return beside("vision_config", path, *projector, then=then)


def audio(*projector: Piece, path: str = "audio_tower", then: Blocks | None = None) -> Beside:
    """An audio tower with the pieces of its projector."""
    return beside("audio_config", path, *projector, then=then)


def wrapper(*towers: Beside, told_width: bool = False) -> Wrapper:
    """A type of document with these towers. What comes out weighs all that is not the language model.

    ``told_width`` is whether the document's class tells its towers the width of the language model.
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
    """Whether the document names a class that is the language model alone."""
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
    """Some vectors side by side; their number may be a key."""
    return lambda joined: _size(joined, size) * (factor if isinstance(factor, int) else _size(joined, factor))


def merged(side: str) -> Size:
    """The tower's width for a square of patches; its side is a key of the document or of the tower."""
    return lambda joined: joined.width * _size(joined, side) ** 2


def shuffled(width: Size) -> Size:
    """The width after pixels were shuffled by a ratio: 0.5 makes four channels of one."""

    def size(joined: Joined) -> int:
        ratio = joined.top.number("downsample_ratio", 0.5)
        if not 0 < ratio <= 1:
            raise joined.top.error("downsample_ratio", ratio, "more than 0 and at most 1")
        return _size(joined, width) * int(1 / ratio) ** 2

    return size


# Pieces of projectors. ``bias`` may be a key of the document.


def chain(*sizes: Size, names: tuple[str, ...] = ("linear_1", "linear_2"), bias: bool | str = True, path: str = PATH) -> Piece:
    """Linear layers between the given widths."""
    return lambda joined: mlp_chain(path, tuple(_size(joined, size) for size in sizes), names, bias=switched(joined.top, bias))


def matrix(source: Size, out: Size = "text", *, bias: bool | str = True, path: str = PATH) -> Piece:
    """One linear layer."""
    return lambda joined: linear(path, _size(joined, source), _size(joined, out), bias=switched(joined.top, bias))


def normed(size: Size, path: str = f"{PATH}.layer_norm", *, kind: str = "layer", switch: bool | str = True) -> Piece:
    """A norm, where the document's ``switch`` does not leave it out."""
    return lambda joined: norm(kind, path, _size(joined, size)) if switched(joined.top, switch) else ()


def vector(path: str) -> Piece:
    """A learned vector among the language model's tokens."""
    return lambda joined: parameter(path, joined.out)
