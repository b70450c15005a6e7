"""``--weights auto``: the format with the most bits whose weights fit on the GPU together with what is asked for.

The formats are those that people publish for the engine. The one that is taken surely fits. Where none surely does, it is the smallest:
some of it stays in the memory of the host if the engine can do that, and otherwise the verdict says what is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.engines.setup import Request
from hwcalc.errors import KvplanError, UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.planner import solve
from hwcalc.planner.solve import laid_out
from hwcalc.planner.values import is_auto
from hwcalc.units import human_bytes

_FEW: Final = 4
_NEAR: Final = 0.04
_NAMED: Final = "Or name a format: --weights q4_k_m."


class Choice(Record):
    """A format in which the engine runs the model, its bytes on the fullest GPU, and the occupancy with all weights on the GPU."""

    name: str | None
    weight_bytes: int
    opened: Occupancy

    @property
    def text(self) -> str:
        """The format in words."""
        if self.name is not None:
            return self.name
        from hwcalc.quantization.ggml import file_type

        own = file_type(self.opened.model)
        return f"as published ({self.opened.model.dtype or 'its own format'})" if own is None else f"{own}, as the file is"


def refuse_auto(weights: str | None, command: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` where one format must be named."""
    if is_auto(weights):
        hint = "Name a format: --weights q4_k_m. For one GPU: kvplan MODEL --weights auto --gpu rtx-4060-ti"
        raise UsageError(f"{command} plans more than one GPU, and --weights auto chooses for one.", hint=hint)


def best_weights(engine: Engine, model: ModelSpec, request: Request, node: int | None = None) -> Noted[Request]:
    """The request in the best format, with a note on the choice. Raises :class:`~hwcalc.errors.UsageError` without a GPU.

    With a ``node`` of so many GPUs, each format is planned in the best layout on such nodes.
    """
    if request.setup.hardware.kv_memory is not None:
        message = "--kv-memory gives the cache its bytes whatever the weights take, so --weights auto has nothing to choose by."
        raise UnknownNameError(message, option="weights", hint=f"Leave out --kv-memory. {_NAMED}")
    if request.setup.hardware.gpu is None:
        hint = f"Add --gpu rtx-4060-ti (kvplan gpus lists all), or --gpu local for this machine's. {_NAMED}"
        raise UnknownNameError("--weights auto chooses the format for a GPU, and none is named.", option="weights", hint=hint)
    known = choices(engine, model, request, node)
    fits = next((place for place, choice in enumerate(known) if solve.holds(choice.opened, "low")), None)
    chosen = known[-1 if fits is None else fits]
    message = _said(known, fits)
    return Noted(request.changed(weights=chosen.name), (Note(code="auto-weights", message=message),))


def choices(engine: Engine, model: ModelSpec, request: Request, node: int | None = None) -> tuple[Choice, ...]:
    """The formats that the engine accepts for this model, the largest first. Raises the error of the engine if it accepts none."""
    refused: list[KvplanError] = []
    out = list(_openable(engine, model, request, engine.weight_choices_of(model), refused, node))
    if not out:
        raise next(iter(refused), None) or UnsupportedError(
            f"--weights auto: what {model.id} needs beside its cache is not known.", hint="Give a budget with --kv-memory."
        )
    return tuple(sorted(out, key=lambda one: -one.weight_bytes))


def _openable(
    engine: Engine,
    model: ModelSpec,
    request: Request,
    names: Iterable[str | None],
    refused: list[KvplanError] | None = None,
    node: int | None = None,
) -> Iterator[Choice]:
    """The choices among the formats ``names`` that the engine runs. The errors for the other formats are added to ``refused``."""
    for name in names:
        try:
            opened = engine.open(model, request.changed(weights=name)).entire()
            parts, budget = opened.weights.value, opened.budget
        except KvplanError as error:
            if refused is not None:
                refused.append(error)
            continue
        if parts is not None and budget is not None:
            laid = opened if node is None else laid_out(opened, node)
            yield Choice(name=name, weight_bytes=sum(part.expected for part in parts), opened=laid)


def largest_that_fits(engine: Engine, model: ModelSpec, request: Request, node: int | None = None) -> Occupancy:
    """The occupancy in the format of :func:`best_weights`, found by bisection over the sizes instead of planning every format."""
    sizes = engine.weight_sizes(model)
    names = sorted(sizes, key=lambda name: -sizes[name])
    if len(names) >= _FEW:
        seen: dict[str | None, Choice | None] = {}

        def fits(name: str | None) -> bool:
            if name not in seen:
                seen[name] = next(iter(_openable(engine, model, request, (name,))), None)
            candidate = seen[name]
            return candidate is not None and solve.holds(candidate.opened, "low")

        place = len(names) - 1
        if fits(names[-1]):
            place = 0 if fits(names[0]) else bisect_left(names, x=True, lo=1, hi=place, key=fits)
        # Formats of nearly the same size may be in another order on the GPU, where the table of the tokens is not.
        near = [name for name in names if abs(sizes[name] - sizes[names[place]]) <= _NEAR * sizes[names[place]]]
        whole = [one for name in near if fits(name) and (one := seen[name]) is not None]
        if whole:
            return max(whole, key=lambda one: one.weight_bytes).opened
        smallest = [one for name in near if (one := seen[name]) is not None]
        if place == len(names) - 1 and smallest:
            return min(smallest, key=lambda one: one.weight_bytes).opened
    known = choices(engine, model, request, node)
    return next((one.opened for one in known if solve.holds(one.opened, "low")), known[-1].opened)


def _said(known: tuple[Choice, ...], fits: int | None) -> str:
    """The message of the note: which format is planned, and how many bytes the next larger one lacks."""
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
