"""Makes a picture of several models: :func:`plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, Unpack

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.compare import Comparison, compared
from hwcalc.library.lists import Numbers, each_model, models_or_equation, numbers
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, ModelSpec
from hwcalc.planner.asked import by_name, take_options
from hwcalc.planner.options import PRICED, PlotOptions, takes
from hwcalc.planner.values import refuse_auto
from hwcalc.plot.series import COST, KINDS, OF_NODES, SCALES, Chart, chart_of, cost_chart, nodes_chart
from hwcalc.text import brief, clean, quoted, shown

SUFFIXES: Final[Mapping[str, str]] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
MOST_MODELS: Final = 12
"""Lines that can be told apart."""
MOST_CELLS: Final = 144
"""Models times nodes."""


class Picture(Record):
    """A picture of some models. ``chart`` has its numbers."""

    chart: Chart

    def data(self, format_: str) -> bytes:
        """The file, in ``png``, ``svg`` or ``pdf``. Needs matplotlib; the same numbers give the same bytes."""
        from hwcalc.plot.figures import drawn

        return drawn(self.chart, format_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all, in the format of its suffix."""
        from hwcalc.files import write_file

        name = os.fspath(path)
        write_file(name, self.data(format_of(name, "path")), "output")

    def text(self, width: int = 80, *, ascii_only: bool = False, color: bool = False) -> str:
        """The picture in characters; with ``color`` in fine dots and colours, as a terminal has them. Needs plotext."""
        from hwcalc.plot.terminal import in_characters

        return in_characters(self.chart, width, ascii_only=ascii_only, color=color)

    def __repr__(self) -> str:
        return f"<Picture: {clean(self.chart.title)}>"

    def _repr_svg_(self) -> str | None:
        """The picture of a notebook; nothing where matplotlib is not installed, and the notebook shows the text."""
        from importlib.util import find_spec

        return self.data("svg").decode() if find_spec("matplotlib") else None


@takes(PlotOptions)
def plot(
    models: ModelLike | Sequence[ModelLike],
    *,
    kind: str = "memory",
    seq: Numbers | None = None,
    scale: str | None = None,
    **options: Unpack[PlotOptions],
) -> Picture:
    """A picture of one model or several; ``options`` are further keywords of :func:`hwcalc.plan`.

    ``kind`` is ``memory`` (bytes against length), ``frontier`` (most sequences at once against length; needs a GPU), ``layers`` (the
    cache of each layer), ``nodes`` (models against nodes: ``gpu="4xh100,8xh200"``, as :func:`hwcalc.compare` plans them), or ``cost`` (dollars a month
    of as many such nodes as serve the users). Lengths go to ``seq``, by default to each model's own maximum; ``seq="1k..128k"`` begins at the first. ``scale``
    is ``linear`` or ``log``; a frontier is logarithmic by default. ``plot(...).save("memory.svg")`` writes a file, and a notebook shows
    the picture. Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    return picture_of(models, kind, {**options, "seq": seq}, scale)


def picture_of(models: ModelLike | Sequence[ModelLike], kind: str, given: Mapping[str, Any], scale: str | None = None) -> Picture:
    """As :func:`plot`, from a dict of all keywords."""
    for name, word, allowed in (("kind", kind, KINDS), ("scale", "linear" if scale is None else scale, SCALES)):
        if not isinstance(word, str) or word not in allowed:
            said = shown(word, 40) if isinstance(word, str) else quoted(word, 40)
            raise UsageError(f"--{name} {said} is not known.", hint=f"Allowed: {', '.join(allowed)}.")
    given = by_name(given)
    if kind in OF_NODES:
        return Picture(chart=_nodes(models, kind, given, scale))
    if priced := [name for name in PRICED if given.get(name) is not None and given[name] is not False]:
        raise UsageError(f"--{priced[0]} is about prices, and a picture of {kind} has none.", hint="Add: --kind cost")
    lengths = _ends(given.get("seq"))
    _, asked = take_options("plot", {**given, "seq": None if lengths is None else max(lengths)})
    refuse_auto(asked.weights, "plot")
    named = models_or_equation(models, asked.dimensions)
    if len(named) > MOST_MODELS:
        raise UsageError(f"a picture holds at most {MOST_MODELS} models (got {len(named):,}).", hint="Name fewer.")
    requests: list[tuple[ModelSpec, Mapping[str, Any]]] = [load_request(model, asked) for model in named]
    least = None if lengths is None or len(lengths) == 1 else min(lengths)
    return Picture(chart=chart_of(kind, requests, least, scale, whole=lengths is None))


_OF_NODES: Final = ("model", "gpu", "gpus", "instance", "tp", "layout", "engine_version", "dtype")
"""Fields that may differ between variants of a picture of nodes: those that follow from the model or the node."""


def _nodes(models: ModelLike | Sequence[ModelLike], kind: str, given: Mapping[str, Any], scale: str | None) -> Chart:
    """The chart of models against nodes, or of what nodes cost, which a comparison plans."""
    if given.get("gpu") is None and given.get("instance") is None:
        raise UsageError(
            "a picture of nodes needs their names.", hint="Add: --gpu 4xh100,8xh200,2xl40s, or --instance p5.48xlarge,g6.12xlarge"
        )
    if kind == COST:
        given = {**given, "cost": True}
    elif scale is not None:
        raise UsageError("--scale is about lines, and a picture of nodes has none.", hint="Leave it out.")
    # Dimensions without a model are the bare equation.
    named: Sequence[Any] = each_model(models) if models else ((),)
    rows: list[tuple[str, Comparison | KvplanError]] = []
    for model in named:
        try:
            comparison, _ = compared(model, given)
        except UsageError:
            raise
        except KvplanError as error:
            rows.append((model if isinstance(model, str) else "config", error))
            continue
        others = [name for name in comparison.varying if name not in _OF_NODES]
        if others:
            raise UsageError(f"a picture of nodes has one {others[0]}.", hint="Several side by side: kvplan compare MODEL...")
        if len(comparison.variants) * len(named) > MOST_CELLS:
            raise UsageError(f"a picture holds at most {MOST_CELLS} cells.", hint="Name fewer models or nodes.")
        rows.append((comparison.variants[0].model, comparison))
    if all(isinstance(answer, KvplanError) for _, answer in rows):
        raise next(answer for _, answer in rows if isinstance(answer, KvplanError))
    return cost_chart(rows, scale or "linear") if kind == COST else nodes_chart(rows)


def _ends(seq: Any) -> tuple[int, ...] | None:
    """The lengths that a picture must reach: of a range both ends, as what lies between them is drawn anyway."""
    if seq is None:
        return None
    lengths = numbers(seq, "seq")
    if isinstance(seq, str) and ".." in seq:
        # 1k..100k doubles to 64k in a list; a picture goes on to its end.
        lasts = [part.partition("..")[2].partition(":")[0] for part in seq.split(",")]
        lengths += numbers([last for last in lasts if last], "seq")
    if not lengths:
        raise UsageError("seq has no length.", hint="Write: seq=8192, or seq=range(1024, 8193, 1024)")
    return lengths


def format_of(name: str, option: str = "--output", *others: str) -> str:
    """The format of a file that an option names, by its suffix: one of a picture, or of the ``others`` that the option takes."""
    suffix = PurePath(name).suffix.lower()
    if suffix in others:
        return suffix[1:]
    if suffix not in SUFFIXES:
        what = f"the suffix {brief(suffix, 20)} of {option}" if suffix else f"{option} {shown(name, 60)}"
        line = f": {option} picture.svg" if option.startswith("-") else "."
        raise UsageError(f"{what} names no format.", hint=f"Use {', '.join((*SUFFIXES, *others))}{line}")
    return SUFFIXES[suffix]
