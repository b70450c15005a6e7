"""The tensors of a request at any lengths of its layers, by the rules of its engine."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.base import Opened
from hwcalc.engines.evicting import Evicted
from hwcalc.formulas.record import Record
from hwcalc.policies.base import Chosen

__all__ = ["Piece", "Plan", "plan_of"]


def _at(opened: Opened, stage: int, lengths: Mapping[int, int]) -> dict[str, Allocation]:
    """The tensors of a stage, by name, if the policy leaves so many tokens in each of the layers on which it acts."""
    return {one.name: one for one in opened.holding(lengths).allocation(stage)}


class Piece(Record):
    """One tensor of one layer. ``axis`` is that of the tokens; null where its size does not follow their number evenly.

    ``first`` is the tensor of the whole prompt, ``last`` that of the whole text, if nothing is dropped.
    """

    first: Allocation
    last: Allocation
    axis: int | None
    acted: bool

    def shape(self, length: int) -> tuple[int, ...]:
        """The shape with so many tokens."""
        assert self.axis is not None
        return (*self.first.shape[: self.axis], length, *self.first.shape[self.axis + 1 :])


class Plan(Record):
    """What is planned of each layer of one stage, for one number of sequences.

    ``kept`` are the tokens behind the prompt of each layer on which the policy acts.
    """

    opened: Opened
    chosen: Chosen
    evicted: Evicted
    stage: int
    prompt: int
    layers: dict[int, tuple[Piece, ...]]
    kept: dict[int, int]
    known: dict[int, dict[str, Allocation]]

    def at(self, piece: Piece, length: int) -> Allocation:
        """The tensor if its layer has so many tokens."""
        if not piece.acted:
            return piece.first
        if piece.axis is not None:
            shape = piece.shape(length)
            return replace(piece.first, shape=shape, bytes=piece.first.bytes // piece.first.shape[piece.axis] * length)
        if length not in self.known:
            self.known[length] = _at(self.opened, self.stage, dict.fromkeys(self.kept, length))
        return self.known[length][piece.first.name]

    def bytes(self, layer: int, length: int | None) -> int:
        """The bytes of a layer with so many tokens; ``None`` is at the end, where the policy does not act."""
        return sum((piece.last if length is None else self.at(piece, length)).bytes for piece in self.layers[layer])


def plan_of(opened: Opened, evicted: Evicted, batch: int, stage: int) -> Plan:
    """The plan for ``batch`` sequences."""
    asked = opened.request.policy
    assert asked is not None
    prompt = opened.request.prompt_tokens
    at_prompt, at_end = opened.sized(seq=prompt, batch=batch), opened.sized(batch=batch)
    acted = tuple(shape.index for shape in evicted.setting.layers)
    first = _at(at_prompt, stage, dict.fromkeys(acted, prompt))
    last = _at(at_end, stage, dict.fromkeys(acted, opened.tokens))
    # One token fewer shows which axis has the tokens. A single one cannot have fewer.
    fewer = _at(at_prompt, stage, dict.fromkeys(acted, prompt - 1)) if prompt > 1 else {}
    kept = {number: left.stored.high for number, left in zip(acted, evicted.state.layers, strict=True)}
    halves = _at(at_prompt, stage, kept)
    layers: dict[int, tuple[Piece, ...]] = {}
    for name, one in first.items():
        length = kept.get(one.layer)
        axis = None if length is None else _axis(one, fewer.get(name), halves.get(name), length)
        piece = Piece(first=one, last=last.get(name, one), axis=axis, acted=length is not None and fewer.get(name) != one)
        layers[one.layer] = (*layers.get(one.layer, ()), piece)
    return Plan(
        opened=at_end,
        chosen=asked.chosen,
        evicted=evicted,
        stage=stage,
        prompt=prompt,
        layers=layers,
        kept={number: length for number, length in kept.items() if number in layers},
        known={},
    )


def _axis(whole: Allocation, fewer: Allocation | None, kept: Allocation | None, length: int) -> int | None:
    """The axis of the tokens, if the tensor with one token fewer and the one that is kept differ in it alone and evenly."""
    if fewer is None or kept is None or len(whole.shape) != len(fewer.shape) or len(whole.shape) != len(kept.shape):
        return None
    unlike = [axis for axis, (one, other) in enumerate(zip(whole.shape, fewer.shape, strict=True)) if one != other]
    if len(unlike) != 1 or whole.dtype != kept.dtype:
        return None
    (axis,) = unlike
    expected = (*whole.shape[:axis], length, *whole.shape[axis + 1 :])
    even = axis < len(whole.shape) - 1 and whole.shape[axis] - fewer.shape[axis] == 1 and kept.shape == expected
    return axis if even and kept.bytes * whole.shape[axis] == whole.bytes * length else None
