"""``--weights auto``: the format with the most bits whose weights fit on the GPU together with what is asked for.

The formats are those that people publish for the engine. The one that is taken surely fits. Where none surely does, it is the smallest:
some of it stays in the memory of the host if the engine can do that, and otherwise the verdict says what is missing.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.noted import Noted
from hwcalc.engines.request import Request
from hwcalc.errors import KvplanError, UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.model import ModelSpec, Note
from hwcalc.planner import solve
from hwcalc.units import human_bytes

__all__ = ["AUTO", "Choice", "best_weights", "choices", "is_auto", "refuse_auto"]

AUTO: Final = "auto"
_NAMED: Final = "Or name a format: --weights q4_k_m."


@frozen
class Choice:
    """A format in which the engine runs the model, its bytes on the fullest GPU, and the request opened with all weights on the GPU."""

    name: str | None
    weight_bytes: int
    opened: Opened

    @property
    def text(self) -> str:
        """The format in words."""
        if self.name is not None:
            return self.name
        from hwcalc.quantization.file_types import file_type

        own = file_type(self.opened.model)
        return f"as published ({self.opened.model.dtype or 'its own format'})" if own is None else f"{own}, as the file is"


def is_auto(weights: str | None) -> bool:
    """Whether the value of ``--weights`` leaves the choice to kvplan."""
    return weights is not None and weights.strip().lower() == AUTO


def refuse_auto(weights: str | None, command: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` where one format must be named."""
    if is_auto(weights):
        hint = "Name a format: --weights q4_k_m. For one GPU: kvplan MODEL --weights auto --gpu rtx-4060-ti"
        raise UsageError(f"{command} plans more than one GPU, and --weights auto chooses for one.", hint=hint)


def best_weights(engine: Engine, model: ModelSpec, request: Request) -> Noted[Request]:
    """The request in the best format, with a note on the choice. Raises :class:`~hwcalc.errors.UsageError` without a GPU."""
    if request.hardware.kv_memory is not None:
        message = "--kv-memory gives the cache its bytes whatever the weights take, so --weights auto has nothing to choose by."
        raise UnknownNameError(message, option="weights", hint=f"Leave out --kv-memory. {_NAMED}")
    if request.hardware.gpu is None:
        hint = f"Add --gpu rtx-4060-ti (kvplan gpus lists all), or --gpu local for this machine's. {_NAMED}"
        raise UnknownNameError("--weights auto chooses the format for a GPU, and none is named.", option="weights", hint=hint)
    known = choices(engine, model, request)
    fits = next((place for place, one in enumerate(known) if solve.holds(one.opened, "low")), None)
    chosen = known[-1 if fits is None else fits]
    message = _said(known, fits)
    return Noted(replace(request, weights=chosen.name), (Note(code="auto-weights", message=message),))


def choices(engine: Engine, model: ModelSpec, request: Request) -> tuple[Choice, ...]:
    """The formats that the engine accepts for this model, the largest first. Raises the error of the engine if it accepts none."""
    out, refused = [], None
    for name in engine.weight_choices_of(model):
        try:
            opened = engine.entire(engine.open(model, replace(request, weights=name)))
            parts, budget = opened.weights.value, opened.budget
        except KvplanError as error:
            refused = refused or error
            continue
        if parts is not None and budget is not None:
            out.append(Choice(name=name, weight_bytes=sum(part.expected for part in parts), opened=opened))
    if not out:
        raise refused or UnsupportedError(
            f"--weights auto: what {model.id} needs beside its cache is not known.", hint="Give a budget with --kv-memory."
        )
    return tuple(sorted(out, key=lambda one: -one.weight_bytes))


def _said(known: tuple[Choice, ...], fits: int | None) -> str:
    """Which format is planned, and why not the next larger one."""
    tokens = f"{known[0].opened.tokens:,} tokens"
    if fits is None:
        lacks = _lacks(known[-1])
        return f"Weights: even {known[-1].text}, the smallest of the usual formats, does not surely fit with {tokens}: {lacks} too much."
    chosen = f"Weights: {known[fits].text}, {human_bytes(known[fits].weight_bytes)}"
    if fits == 0:
        less = f" The next smaller is {known[1].text}, {human_bytes(known[1].weight_bytes)}." if len(known) > 1 else ""
        return f"{chosen}, the largest of the usual formats, fits.{less}"
    larger = known[fits - 1]
    return f"{chosen}, is the largest format that surely fits with {tokens}; {larger.text} lacks {_lacks(larger)}."


def _lacks(choice: Choice) -> str:
    """Bytes that the GPU lacks, at the high end of the estimates."""
    budget = choice.opened.budget
    assert budget is not None
    return human_bytes(max(0, choice.opened.needed_bytes - budget.low))
