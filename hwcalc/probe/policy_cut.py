"""A policy at work on contiguous tensors: each layer is filled, cut, and grown token by token, as a hook does it.

The tensors of a request at any lengths of its layers, by the rules of its engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.policies import Evicted
from hwcalc.engines.pool import Allocation
from hwcalc.formulas.record import Record
from hwcalc.policies.base import Chosen, Setting
from hwcalc.policies.outcome import course_of
from hwcalc.probe.devices import Device, Meter
from hwcalc.probe.result import PolicyFigure
from hwcalc.units import GIB


def _at(opened: Occupancy, stage: int, lengths: Mapping[int, int]) -> dict[str, Allocation]:
    """The tensors of a stage, by name, if the policy leaves so many tokens in each of the layers on which it acts."""
    return {one.name: one for one in opened.policies.holding(lengths).allocation(stage)}


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

    opened: Occupancy
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


def plan_of(opened: Occupancy, evicted: Evicted, batch: int, stage: int) -> Plan:
    """The plan for ``batch`` sequences."""
    asked = opened.setup.policy
    assert asked is not None
    prompt = opened.load.prompt_tokens
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


MOST_GROWTHS: Final = 20_000
"""How often a tensor is made longer by one token in all."""
MOST_MOVED_BYTES: Final = 4 * GIB
"""How much is moved for that."""
_PATTERNS: Final = 251
_WIDEST_CHECK: Final = 64 * 1024**2
"""Bytes of a tensor of which every byte is looked at; of a larger one the first of each token."""

Lengths = list[tuple[dict[int, int], dict[int, int]]]
"""For each step the length of each layer, grown and then cut."""


SEED: Final = 0
PRIME: Final = 1_000_003
Ranges = Sequence[tuple[int, int]]
"""Positions from start to end."""


def places_of(torch: Any, heads: int, of: int, stay: int, seed: int, ranges: Ranges | None = None) -> Any:
    """The places that stay of each head, in their order: by the rule where it says which, else at random."""
    if ranges is not None:
        return torch.cat([torch.arange(start, end) for start, end in ranges]).expand(heads, -1)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((heads, of), generator=generator).topk(stay, dim=1).indices.sort(dim=1).values


class Sizes(Record):
    """Bytes of the cache: with the fullest layer of the prefill whole, with the copies of its cut, behind the prompt, at the most while
    text is generated, with the copy that a growing tensor or a cut makes, and at the end.
    """

    fullest: int
    cutting: int
    behind: int
    most: int
    growing: int
    end: int


class Measured(Record):
    """What was measured of real tensors, in as many steps as there was time for."""

    sizes: Sizes
    steps: int
    copied_tokens: int
    in_place: bool | None


class Ran(Record):
    """What a run came to. ``parts`` says of each thing how much was run, how much there is, and what it is."""

    figures: tuple[PolicyFigure, ...]
    copied: int
    in_place: bool | None
    steps: int
    parts: tuple[tuple[int, int, str], ...]


def lengths_of(chosen: Chosen, setting: Setting, kept: Mapping[int, int], prompt: int, steps: int) -> Lengths:
    """The lengths in the first ``steps`` steps of layers that have these tokens behind the prompt."""
    places = {shape.index: place for place, shape in enumerate(setting.layers)}
    by_layer = any(one.policy.by_layer for one in chosen.whole)
    keys = {number: (length, places[number] if by_layer else 0) for number, length in kept.items()}
    first = {key: number for number, key in reversed(keys.items())}
    known = {key: course_of(chosen, key[0], places[number], prompt, steps, setting).lengths for key, number in first.items()}
    before = dict(kept)
    out: Lengths = []
    for step in range(steps):
        after = {number: known[key][step] for number, key in keys.items()}
        out.append(({number: length + 1 for number, length in before.items()}, after))
        before = after
    return out


def sizes_of(plan: Plan, layers: Sequence[int], lengths: Lengths) -> Sizes:
    """The sizes in bytes of the plan's lengths, by the tensors of the engine."""
    fullest = cutting = held = 0
    for number in layers:
        fullest = max(fullest, held + plan.bytes(number, plan.prompt))
        kept = plan.kept.get(number, plan.prompt)
        copies = _copies(plan, number, kept) if kept < plan.prompt else 0
        cutting = max(cutting, held + plan.bytes(number, plan.prompt) + copies)
        held += plan.bytes(number, kept)
    behind = most = growing = held
    for number in (number for number in layers if number not in plan.kept and lengths):
        for piece in plan.layers[number]:
            if piece.last.shape != piece.first.shape:
                growing = max(growing, held + piece.last.bytes)
                held += piece.last.bytes - piece.first.bytes
    before = {number: plan.kept[number] for number in layers if number in plan.kept}
    for grown, after in lengths:
        for number, length in grown.items():
            for piece in plan.layers[number] if length != before[number] else ():
                if piece.acted:
                    growing = max(growing, held + plan.at(piece, length).bytes)
                    held += plan.at(piece, length).bytes - plan.at(piece, before[number]).bytes
        most = max(most, held)
        for number, length in after.items():
            if length < grown[number]:
                growing = max(growing, held + _copies(plan, number, length))
                held += plan.bytes(number, length) - plan.bytes(number, grown[number])
        before = after
    return Sizes(fullest=fullest, cutting=cutting, behind=behind, most=max(most, held), growing=max(growing, held), end=held)


def _copies(plan: Plan, number: int, length: int) -> int:
    """The bytes of what a cut makes anew in a layer."""
    return sum(plan.at(piece, length).bytes for piece in plan.layers[number] if piece.acted)


class Cache:
    """The tensors of all layers, with what each place of them should hold. Survivors are those of ``ranges``, or drawn from ``seed``."""

    def __init__(
        self, plan: Plan, layers: Sequence[int], lengths: Lengths, device: Device, *, seed: int, ranges: Ranges | None
    ) -> None:
        self.plan, self.layers, self.device, self.seed, self.ranges = plan, tuple(layers), device, seed, ranges
        self.meter = Meter()
        self.torch = device.torch
        self.held: dict[str, Any] = {}
        self.expected: dict[int, Any] = {}
        self.grown: dict[int, list[int]] = {}
        self.cuts = self.copied = 0
        pieces = [piece for number in layers if number in plan.kept for piece in plan.layers[number] if piece.axis is not None]
        self.heads = {number: max((_heads(piece) for piece in plan.layers[number]), default=1) for number in layers}
        longest = max([plan.prompt, *(length for grown, _ in lengths for length in grown.values())])
        self.marks = self.torch.arange(longest + 1) % _PATTERNS
        self.marks = self.marks.to(self.torch.uint8).to(device.label)
        widest = max(self.heads.values(), default=1)
        self.index = self.torch.empty(widest * longest, dtype=self.torch.int64, device=device.label)
        self.tokens = {_form(piece): self.new(piece.first.dtype, piece.shape(1)) for piece in pieces}

    def new(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """A tensor with nothing in it, of numbers that every device gathers and puts together: bytes in place of 8-bit floats."""
        tensor = self.device.empty(shape, dtype)
        return tensor.view(self.torch.uint8) if tensor.element_size() == 1 else tensor

    def fill(self, number: int) -> None:
        """A layer with the whole prompt, each token with its own mark."""
        prompt = self.plan.prompt
        for piece in self.plan.layers[number]:
            one = self.plan.at(piece, prompt)
            self.held[piece.first.name] = tensor = self.new(one.dtype, one.shape)
            if piece.axis is not None:
                shape = [1] * len(piece.first.shape)
                shape[piece.axis] = prompt
                tensor.view(self.torch.uint8).copy_(self.marks[:prompt].view(shape))
        with self.meter.aside():
            self.expected[number] = self.marks[:prompt].cpu().expand(self.heads[number], -1)
            self.grown[number] = []

    def cut(self, number: int, stay: int, *, prompt: bool = False) -> None:
        """Keep only ``stay`` tokens of each head, in tensors of their size; the old ones go when all new ones are there."""
        with self.meter.aside():
            self.settle_marks(number)
            heads, of = self.heads[number], self.expected[number].shape[1]
            # The rule speaks of the prompt alone, and not always of as many tokens as stay.
            ranges = self.ranges if prompt and sum(end - start for start, end in self.ranges or ()) == stay else None
            places = places_of(self.torch, heads, of, stay, self.seed * PRIME + self.cuts, ranges)
            self.expected[number] = self.expected[number].gather(1, places)
            index = self.index[: heads * stay].view(heads, stay)
            index.copy_(places)
            self.cuts += 1
        made = {}
        for piece in self.plan.layers[number]:
            if piece.axis is not None:
                made[piece.first.name] = _gathered(self.held[piece.first.name], index, piece)
            elif piece.acted:
                one = self.plan.at(piece, stay)
                made[piece.first.name] = self.new(one.dtype, one.shape)
        self.copied += stay * heads * self.plan.opened.batch if made else 0
        self.held |= made

    def grow(self, number: int, length: int, mark: int) -> None:
        """One token more in a layer: by a new tensor, as concatenation makes it."""
        for piece in self.plan.layers[number]:
            name = piece.first.name
            if piece.axis is not None:
                self.held[name] = self.torch.cat([self.held[name], self.tokens[_form(piece)]], dim=piece.axis)
            elif piece.acted:
                one = self.plan.at(piece, length)
                self.held[name] = self.new(one.dtype, one.shape)
        self.grown[number].append(mark)

    def settle_marks(self, number: int) -> None:
        """Sets what the tokens that came should be, behind what was there before."""
        came = self.torch.tensor(self.grown[number], dtype=self.torch.uint8).expand(self.heads[number], -1)
        self.expected[number], self.grown[number] = self.torch.cat([self.expected[number], came], dim=1), []

    def in_place(self) -> bool | None:
        """True if every token that should be there is, in its order; ``None`` if none was written.

        A token's mark is looked at in all bytes or, of a large tensor, in the first of each row.
        """
        answers = []
        for number in self.expected:
            self.settle_marks(number)
            for piece in self.plan.layers[number] if number in self.plan.kept else ():
                if piece.axis is not None:
                    tensor = self.held[piece.first.name]
                    held = tensor.view(self.torch.uint8)
                    if held.numel() > _WIDEST_CHECK:
                        held = held[..., :1]
                    marks = _spread(self.expected[number].to(held.device), tensor, piece, last=1)
                    answers.append(bool((held == marks).all()))
        return all(answers) if answers else None


def cut_for_real(cache: Cache, meter: Meter, lengths: Lengths, until: float) -> Measured:
    """Run the prefill and the steps up to a time, and read the meter at each moment. The meter was started when the cache was made."""
    plan, fullest = cache.plan, 0
    cache.meter = meter
    meter.restart()
    for number in cache.layers:
        cache.fill(number)
        fullest = max(fullest, meter.now)
        if number in plan.kept and plan.kept[number] < plan.prompt:
            cache.cut(number, plan.kept[number], prompt=True)
    cutting, behind = meter.peak, meter.now
    with meter.aside():
        in_place = cache.in_place()
    meter.restart()
    most, steps = behind, 0
    for number in cache.layers if lengths else ():
        # What no policy touches takes the size that it has at the end.
        for piece in plan.layers[number] if number not in plan.kept else ():
            if piece.last.shape != piece.first.shape:
                cache.held[piece.first.name] = cache.device.empty(piece.last.shape, piece.last.dtype)
    for steps, (grown, after) in enumerate(lengths, start=1):
        mark = (plan.prompt + steps) % _PATTERNS
        for token in cache.tokens.values():
            token.view(cache.torch.uint8).fill_(mark)
        for number, length in grown.items():
            cache.grow(number, length, mark)
        most = max(most, meter.now)
        for number, length in after.items():
            if length < grown[number]:
                cache.cut(number, length)
        if monotonic() > until:
            break
    growing, end = meter.peak, meter.now
    with meter.aside():
        in_place = None if in_place is None else in_place and bool(cache.in_place())
    sizes = Sizes(fullest=fullest, cutting=cutting, behind=behind, most=most, growing=growing, end=end)
    return Measured(sizes=sizes, steps=steps, copied_tokens=cache.copied, in_place=in_place)


def _form(piece: Piece) -> tuple[str, tuple[int, ...]]:
    return piece.first.dtype, piece.shape(1)


def _heads(piece: Piece) -> int:
    """The heads that choose their tokens each for itself: those of ``[batch, heads, tokens, head_dim]``."""
    return piece.first.shape[1] if piece.axis == 2 and len(piece.first.shape) == 4 else 1


def _spread(index: Any, tensor: Any, piece: Piece, *, last: int) -> Any:
    """The places of each head in the form of a tensor: without memory of their own."""
    stay = index.shape[1]
    axis, shape = piece.axis or 0, tensor.shape
    if _heads(piece) > 1:
        return index.view(1, index.shape[0], stay, 1).expand(shape[0], index.shape[0], stay, last)
    ones = [1] * len(shape)
    ones[axis] = stay
    sizes = [*shape[:axis], stay, *shape[axis + 1 : -1], last]
    return index[0].view(ones).expand(sizes)


def _gathered(tensor: Any, index: Any, piece: Piece) -> Any:
    return tensor.gather(piece.axis, _spread(index, tensor, piece, last=tensor.shape[-1]))
