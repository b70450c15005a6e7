"""Makes a picture of several models: :func:`plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, Unpack

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import models_or_equation
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, ModelSpec
from hwcalc.planner.options import PlanOptions, take_options, takes
from hwcalc.planner.values import refuse_auto
from hwcalc.plot.series import KINDS, Chart, chart_of
from hwcalc.text import brief, quoted, shown

SUFFIXES: Final[Mapping[str, str]] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
MOST_MODELS: Final = 12
"""Lines that can be told apart."""


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
        write_file(name, self.data(format_of(name)), "output")

    def text(self, width: int = 80, *, ascii_only: bool = False) -> str:
        """The picture in characters, without colours. Needs plotext."""
        from hwcalc.plot.terminal import in_characters

        return in_characters(self.chart, width, ascii_only=ascii_only)


@takes(PlanOptions)
def plot(models: ModelLike | Sequence[ModelLike], *, kind: str = "memory", **options: Unpack[PlanOptions]) -> Picture:
    """A picture of one model or several; ``options`` are further keywords of :func:`hwcalc.plan`.

    ``kind`` is ``memory`` (bytes against length), ``frontier`` (most sequences at once against length; needs a GPU) or ``layers`` (the
    cache of each layer). Lengths go to ``seq``, by default to each model's own maximum. ``plot(...).save("memory.svg")`` writes a file.
    Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    return picture_of(models, kind, options)


def picture_of(models: ModelLike | Sequence[ModelLike], kind: str, given: Mapping[str, Any]) -> Picture:
    """As :func:`plot`, from a dict of all keywords."""
    if not isinstance(kind, str) or kind not in KINDS:
        given_kind = shown(kind, 40) if isinstance(kind, str) else quoted(kind, 40)
        raise UsageError(f"--kind {given_kind} is not known.", hint=f"Allowed: {', '.join(KINDS)}.")
    _, asked = take_options("plot", given)
    refuse_auto(asked.weights, "plot")
    named = models_or_equation(models, asked.dimensions)
    if len(named) > MOST_MODELS:
        raise UsageError(f"a picture holds at most {MOST_MODELS} models (got {len(named):,}).", hint="Name fewer.")
    requests: list[tuple[ModelSpec, Mapping[str, Any]]] = [load_request(model, asked) for model in named]
    return Picture(chart=chart_of(kind, requests, whole=asked.seq is None))


def format_of(name: str) -> str:
    """The format of a file, by its suffix."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in SUFFIXES:
        what = f"the suffix {brief(suffix, 20)} of --output" if suffix else f"--output {shown(name, 60)}"
        raise UsageError(f"{what} names no format.", hint=f"Use {', '.join(SUFFIXES)}: -o memory.svg")
    return SUFFIXES[suffix]
