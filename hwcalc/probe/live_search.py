"""How small a model has to be: as wide as it is planned if that is affordable, else narrower in the same proportions."""

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
    """The library's config as kvplan reads it."""
    from hwcalc.parsers import parse
    from hwcalc.probe.live_model import NotRun

    try:
        return parse(RawModel(id="small", config=config, source="python"))
    except KvplanError as error:
        raise NotRun(f"kvplan does not read the library's form of its config: {error.message}") from error


def smaller(
    full: Mapping[str, Any], model: ModelSpec, build: Callable[[Any, str], Any], most_bytes: int
) -> tuple[Small, int, ModelSpec, int]:
    """The widest config with at most ``most_bytes`` of weights that still has every kind of layer of ``model``.

    ``full`` is the library's form of the model's config, and ``build`` makes a model of a config on a device. Gives back the small
    config, its factor, how kvplan reads it, and its weight bytes. Raises :class:`~hwcalc.probe.live_model.NotRun` if there is none.
    """
    from hwcalc.probe.live_model import NotRun, size_of

    stack, planned = _spec(full).stack_for(_ENGINE), model.stack_for(_ENGINE)
    if not _alike([_shape(layer) for layer in stack.layers], [_shape(layer) for layer in planned.layers], 1):
        raise NotRun("transformers reads other layers from this config than were planned")
    layers = pick_layers(stack)
    wanted = [_shape(stack.layers[number]) for number in layers]
    why, least = "no smaller config keeps every kind of layer", None
    # A few models have states as wide as their feed-forward networks; those keep them.
    try:
        narrow = _reads_alike(shrink(full, layers, len(stack)), wanted, 1) is not None
    except NotRun:
        narrow = False
    for factor in _FACTORS:
        small = shrink(full, layers, len(stack), factor=factor, narrow=narrow)
        try:
            spec = _reads_alike(small, wanted, factor)
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
"""How far back a layer looks, which is what is made short."""


def _shape(layer: Layer) -> _Shape:
    """Kinds and widths of a layer."""
    return tuple((kind.name, {name: size for name, size in kind.dims().items() if name not in _SHORT}) for kind in layer)


def _reads_alike(small: Small | None, wanted: list[_Shape], factor: int) -> ModelSpec | None:
    """How kvplan reads the small config, if that has the wanted layers."""
    if small is None:
        return None
    spec = _spec(small.config)
    return spec if _alike([_shape(layer) for layer in spec.stack_for(_ENGINE).layers], wanted, factor) else None


def _alike(found: list[_Shape], wanted: list[_Shape], factor: int) -> bool:
    """Whether these are the same kinds, each of their numbers as it was or divided by ``factor``."""
    if len(found) != len(wanted):
        return False
    for mine, theirs in zip(found, wanted, strict=True):
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            return False
        for (_, now), (_, was) in zip(mine, theirs, strict=True):
            if now.keys() != was.keys() or any(was[name] not in (size, size * factor) for name, size in now.items()):
                return False
    return True
