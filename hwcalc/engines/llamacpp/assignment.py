"""Which layer lies on which device: ``llama_model_base::load_tensors`` (src/llama-model.cpp of llama.cpp 0c1e57098)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import frexp, ldexp
from typing import TYPE_CHECKING, Final

from msgspec import field

from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.quantization.tensor_names import ROTARY

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import WeightTensor

__all__ = ["ON_HOST", "PINNED", "Assignment", "Weighed", "assign", "device_of", "splits", "weigh", "weights_on"]

ON_HOST: Final = -1
"""The number of the host among the devices; GPUs are counted from 0."""
PINNED: Final = "pinned"
"""The key of a family whose requests all have the same assignment."""
_NUMBERED: Final = re.compile(r"[0-9]{1,3}\Z", re.ASCII)


class Assignment(Record, cache_hash=True):
    """The device of each block and of the output layer; ``experts_on_host`` are blocks whose experts lie on the host.

    ``gpu_layers`` counts as llama.cpp does, the output with the blocks.
    """

    blocks: tuple[int, ...]
    output: int
    experts_on_host: LayerNumbers = field(default_factory=LayerNumbers)
    largest_moved: int = 0
    """Bytes of the largest tensor of a layer that patterns of the user have put in host memory."""

    @cached_property
    def gpu_layers(self) -> int:
        """How many layers lie on GPUs, the output counted as one."""
        devices = *self.blocks, self.output
        return len(devices) - devices.count(ON_HOST)

    @cached_property
    def everything(self) -> bool:
        """Whether nothing that could lie on a GPU lies on the host."""
        return self.gpu_layers == len(self.blocks) + 1 and not self.experts_on_host

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that have a block or the output."""
        return tuple(sorted({*self.blocks, self.output} - {ON_HOST}))

    def layers(self, device: int) -> LayerNumbers:
        """The blocks on a device."""
        return self._layers.get(device, LayerNumbers())

    @cached_property
    def _layers(self) -> dict[int, LayerNumbers]:
        layers: dict[int, list[int]] = {}
        for number, device in enumerate(self.blocks):
            layers.setdefault(device, []).append(number)
        return {device: LayerNumbers(numbers) for device, numbers in layers.items()}


def _single(number: float) -> float:
    """The number in 32 bits, in which llama.cpp computes here."""
    # 24 bits of it, and fewer below the smallest normal number.
    exponent = max(frexp(number)[1], -125) - 24
    return ldexp(round(ldexp(number, -exponent)), exponent)


def splits(shares: Sequence[float], gpus: int) -> tuple[float, ...]:
    """Where the part of each GPU ends, from shares of any size. GPUs without a share count as 0; without any, all have the same.

    >>> splits((3, 1), 2), splits((), 4)
    ((0.75, 1.0), (0.25, 0.5, 0.75, 1.0))
    """
    given = [*shares[:gpus], *([0.0] * (gpus - len(shares)))]
    given = given if any(given) else [1.0] * gpus
    ends, total = [], 0.0
    for share in given:
        total = _single(total + _single(share))
        ends.append(total)
    return tuple(_single(end / total) for end in ends)


@lru_cache(maxsize=256)
def assign(blocks: int, gpu_layers: int, ends: tuple[float, ...]) -> Assignment:
    """The last ``gpu_layers`` layers, of which the output is the very last, lie on the GPUs; ``ends`` divide them.

    >>> assign(32, 10, (1.0,)).layers(0).text, assign(32, 1, (1.0,)).output
    ('23-31', 0)
    >>> both = assign(32, 33, (0.5, 1.0))
    >>> both.layers(0).text, both.layers(1).text, both.output
    ('0-16', '17-31', 1)
    """
    start, active = max(blocks + 1 - gpu_layers, 0), min(gpu_layers, blocks + 1) if ends else 0

    def device(number: int) -> int:
        if number < start or number - start >= active:
            return ON_HOST
        place = _single((number - start) / active)
        return min(sum(end <= place for end in ends), len(ends) - 1)

    return Assignment(blocks=tuple(device(number) for number in range(blocks)), output=device(blocks))


class Weighed(Record):
    """Bytes of tensors by where they lie. ``blocks`` are pairs: experts, and all else of a block.

    ``tied`` is the token embedding where it is the output as well: a GPU that has the output has a copy of it. ``overridden`` has what
    the user has put on a device, which no longer counts elsewhere.
    """

    input: int
    output: int
    tied: int
    copied: int
    blocks: tuple[tuple[int, int], ...]
    overridden: Mapping[int, int] = field(default_factory=dict)
    experts_moved: frozenset[int] = frozenset()
    """Blocks all of whose experts the user has put in host memory."""
    largest_moved: int = 0
    """The largest tensor of a block among what the user has put there."""

    @property
    def total(self) -> int:
        """All tensors, each once."""
        return (
            self.input
            + self.output
            + self.copied
            + sum(experts + rest for experts, rest in self.blocks)
            + sum(self.overridden.values())
        )


def weigh(tensors: Iterable[tuple[WeightTensor, tuple[int, ...]]], blocks: int) -> Weighed:
    """Sort the tensors by where llama.cpp loads them. Each is given with the layers of all that are like it."""
    sizes, overridden = {"input": 0, "output": 0, "tied": 0, "copied": 0}, dict[int, int]()
    # Most tensors are in the same layers as others.
    alike: dict[tuple[int, ...], list[int]] = {}
    moved, largest = set(), 0
    for one, layers in tensors:
        if one.buffer is not None:
            # Both copies of a table go to the same buffer, where they are one.
            device = device_of(one.buffer)
            overridden[device] = overridden.get(device, 0) + (0 if one.copy else len(layers) * one.bytes)
            if one.role == "layer" and device == ON_HOST:
                moved |= {*layers} if one.expert else set()
                largest = max(largest, one.bytes)
        elif one.role == "layer" and not one.name.startswith(ROTARY):
            alike.setdefault(layers, [0, 0])[0 if one.expert else 1] += one.bytes
        else:
            sizes["tied" if one.copy else "copied" if one.role == "layer" else one.role] += len(layers) * one.bytes
    each = [[0, 0] for _ in range(blocks)]
    for layers, (experts, rest) in alike.items():
        for layer in layers:
            block = each[min(layer, blocks - 1)]
            block[0] += experts
            block[1] += rest
    sums = tuple((experts, rest) for experts, rest in each)
    wholly = frozenset(layer for layer in moved if layer < blocks and not sums[layer][0])
    return Weighed(**sizes, blocks=sums, overridden=overridden, experts_moved=wholly, largest_moved=largest)


def device_of(buffer: str) -> int:
    """The number of the device of a buffer type, such as ``CUDA1``; the host for ``CPU`` and for names without a number."""
    found = _NUMBERED.search(buffer)
    return int(found[0]) if found else ON_HOST


def weights_on(device: int, assignment: Assignment, weighed: Weighed) -> int:
    """Bytes of tensors that lie on a device."""
    hosted = frozenset(assignment.experts_on_host)
    size = weighed.overridden.get(device, 0)
    for number in assignment.layers(device):
        experts, rest = weighed.blocks[number]
        size += rest + (experts if device == ON_HOST or number not in hosted else 0)
    if device == ON_HOST:
        size += sum(weighed.blocks[number][0] for number in hosted if assignment.blocks[number] != ON_HOST)
    size += weighed.input if device == ON_HOST else 0
    size += weighed.output if assignment.output == device else 0
    # On the host the output is the embedding itself.
    size += weighed.tied if assignment.output == device != ON_HOST else 0
    return size + (weighed.copied if device in assignment.blocks else 0)
