"""Find the size of the small model: the planned widths if they are affordable, else fewer heads and channels in the same ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hwcalc.errors import KvplanError
from hwcalc.formulas import Layer
from hwcalc.model import ModelSpec, RawModel
from hwcalc.probe.live_config import Small, pick_layers, shrink

__all__ = ["smaller"]

_ENGINE: Final = "transformers"
_FACTORS: Final = range(1, 65)


def _spec(config: Any) -> ModelSpec:
    """Parse the library's form of a config. Raises :class:`~hwcalc.probe.live_model.NotRun` if kvplan does not understand it."""
    from hwcalc.parsers.parse import parse
    from hwcalc.probe.live_model import NotRun

    try:
        return parse(RawModel(id="small", config=config, source="python"))
    except KvplanError as error:
        raise NotRun(f"kvplan does not read the library's form of its config: {error.message}") from error


def smaller(
    full: Mapping[str, Any], model: ModelSpec, build: Callable[[Any, str], Any], most_bytes: int
) -> tuple[Small, int, ModelSpec, int]:
    """The widest config with at most ``most_bytes`` of weights that has every kind of layer of ``model``.

    ``full`` is the library's form of the model's config; ``build`` builds a model from a config on a device. Returns the small config,
    its factor, its :class:`~hwcalc.model.ModelSpec` and its weight bytes. Raises :class:`~hwcalc.probe.live_model.NotRun` if there is
    none.
    """
    from hwcalc.probe.live_model import NotRun, size_of

    stack, planned = _spec(full).stack_for(_ENGINE), model.stack_for(_ENGINE)
    if not _alike([_shape(layer) for layer in stack.layers], [_shape(layer) for layer in planned.layers], 1):
        raise NotRun("transformers reads other layers from this config than were planned")
    layers = pick_layers(stack)
    expected = [_shape(stack.layers[number]) for number in layers]
    why, least = "no smaller config keeps every kind of layer", None
    # The few models whose states are as wide as their feed-forward networks keep these at full width.
    try:
        narrow = _reads_alike(shrink(full, layers, len(stack)), expected, 1) is not None
    except NotRun:
        narrow = False
    for factor in _FACTORS:
        small = shrink(full, layers, len(stack), factor=factor, narrow=narrow)
        try:
            spec = _reads_alike(small, expected, factor)
            if small is None or spec is None:
                continue
            size = size_of(build(small.config, "meta"))
        except NotRun as reason:
            why = str(reason)
            continue
        if size <= most_bytes:
            return small, factor, spec, size
        least = size if least is None else min(least, size)
    if least is not None:
        why = f"the smallest form of it has {least:,} bytes of weights, more than the {most_bytes:,} that are allowed"
    raise NotRun(why)


_Shape = tuple[tuple[str, dict[str, int]], ...]
_SHORT: Final = ("window", "chunk")
"""Dimensions that the small config shortens: how far back a layer looks."""


def _shape(layer: Layer) -> _Shape:
    """The kinds and dimensions of a layer, without windows and chunks."""
    return tuple((kind.name, {name: size for name, size in kind.dims().items() if name not in _SHORT}) for kind in layer)


def _reads_alike(small: Small | None, expected: list[_Shape], factor: int) -> ModelSpec | None:
    """The parsed small config if it has the expected layers, else ``None``."""
    if small is None:
        return None
    spec = _spec(small.config)
    return spec if _alike([_shape(layer) for layer in spec.stack_for(_ENGINE).layers], expected, factor) else None


def _alike(layers: list[_Shape], expected: list[_Shape], factor: int) -> bool:
    """Whether the layers have the expected kinds, with each dimension unchanged or divided by ``factor``."""
    if len(layers) != len(expected):
        return False
    for mine, theirs in zip(layers, expected, strict=True):
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            return False
        for (_, now), (_, was) in zip(mine, theirs, strict=True):
            if now.keys() != was.keys() or any(was[name] not in (size, size * factor) for name, size in now.items()):
                return False
    return True
