"""The best format of a model on a GPU: ``--weights auto`` of a plan, and many models with the figures of their plans.

It is the format with the most bits whose weights fit on the GPU together with what is asked for, of those that people publish for the
engine. The one that is taken surely fits. Where none of four bits and more does, a model with experts is taken in four bits, with experts in
the memory of the host, if that holds them. Else it is the largest that fits in fewer bits, or the smallest: some of it stays in the memory
of the host if the engine can do that, and otherwise the verdict says what is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final, NoReturn

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import HOST_SHARE
from hwcalc.engines.engine import Engine
from hwcalc.engines.memory import Section, memory_of
from hwcalc.engines.runs_on import check_accelerator, leaves_weights_open
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.errors import KvplanError, UnknownNameError, UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.planner import solve
from hwcalc.planner.asked import Asked, check_ram
from hwcalc.planner.layouts import has_experts, node_of, sizes_for
from hwcalc.planner.options import HOST_MEMORY
from hwcalc.planner.values import is_auto
from hwcalc.planner.verdict import Verdict
from hwcalc.planner.within import laid_out
from hwcalc.quantization.gguf import usual_beside_host
from hwcalc.units import GIB, human_bytes, parse_size

if TYPE_CHECKING:
    from hwcalc.engines.memory import BudgetPart
    from hwcalc.planner.speed_result import SpeedInfo
    from hwcalc.profiles.hardware_file import Gpu

_DEFAULT_SEQ: Final = 8192
"""Tokens of a conversation, where nobody says how many."""
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


def best_weights(engine: Engine, model: ModelSpec, request: Request, node: int | None) -> Noted[Request]:
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
    beside = experts_on_host(engine, model, request, chosen.opened)
    if beside is not None:
        chosen = next(choice for choice in known if choice.name == beside.setup.weights)
    message = _said(known, fits) if beside is None else _said_beside(chosen, None if fits is None else known[fits])
    return Noted(request.changed(weights=chosen.name), (Note(code="auto-weights", message=message),))


def choices(engine: Engine, model: ModelSpec, request: Request, node: int | None = None) -> tuple[Choice, ...]:
    """The formats that the engine accepts for this model, the largest first. Raises the error of the engine if it accepts none."""
    formats = _Formats(engine, model, request, node)
    known = [choice for name in formats.names if (choice := formats.choice(name)) is not None]
    return tuple(sorted(known, key=lambda one: -one.weight_bytes)) or formats.refuse()


class _Formats:
    """The formats of a model on an engine, each opened when it is asked for."""

    def __init__(self, engine: Engine, model: ModelSpec, request: Request, node: int | None = None) -> None:
        self.names = engine.weights.of(model)
        self._engine, self._model, self._request, self._node = engine, model, request, node
        self._seen: dict[str | None, Choice | KvplanError | None] = {}

    def choice(self, name: str | None) -> Choice | None:
        """The choice of this format; ``None`` if the engine refuses it, or if what it takes is not known."""
        if name not in self._seen:
            try:
                self._seen[name] = self._opened(name)
            except KvplanError as error:
                self._seen[name] = error
        seen = self._seen[name]
        return seen if isinstance(seen, Choice) else None

    def _opened(self, name: str | None) -> Choice | None:
        opened = self._engine.open(self._model, self._request.changed(weights=name)).devices.entire()
        parts, budget = opened.weights.value, opened.budget
        # What is published may be open; a format of which sources leave open that it runs is nobody's choice.
        if parts is None or budget is None or (name is not None and leaves_weights_open(opened.deployment)):
            return None
        laid = opened if self._node is None else laid_out(opened, self._node)
        return Choice(name=name, weight_bytes=_expected(parts), opened=laid)

    def holds(self, name: str | None) -> bool:
        """True if the model surely fits in this format."""
        choice = self.choice(name)
        return choice is not None and solve.holds(choice.opened, "low")

    def weight_bytes(self, name: str | None) -> int | None:
        """The bytes of the weights in this format, which is not opened for that; ``None`` if they are not known."""
        with suppress(KvplanError):
            model, request = self._model.as_built_by(self._engine.name), self._request.changed(weights=name)
            parts = self._engine.unchecked(model, request).devices.entire().weights.value
            return None if parts is None else _expected(parts)
        return None

    @property
    def room(self) -> float:
        """Bytes beyond which weights surely do not fit: of a single GPU, as other layouts of several divide them in other ways."""
        gpu = self._request.setup.hardware.gpu
        memory = None if gpu is None or self._request.setup.gpus > 1 else memory_of(gpu).value
        return inf if memory is None else memory.high_bytes

    def refuse(self) -> NoReturn:
        """Raise the error of the engine for the first of the formats, of which it accepts none."""
        refused = (seen for name in self.names if isinstance(seen := self._seen.get(name), KvplanError))
        raise next(refused, None) or UnsupportedError(
            f"--weights auto: what {self._model.id} needs beside its cache is not known.", hint="Give a budget with --kv-memory."
        )


def _expected(parts: tuple[BudgetPart, ...]) -> int:
    return sum(part.expected for part in parts)


def largest_that_fits(engine: Engine, model: ModelSpec, request: Request, node: int | None) -> Occupancy:
    """The occupancy in the format of :func:`best_weights`, for which only a few of the formats are opened."""
    told = engine.weights.sizes(model)
    found = _by_bisection(_Formats(engine, model, request), told) if len(told) >= _FEW else None
    if found is None:
        formats = _Formats(engine, model, request, node)
        sizes = {name: formats.weight_bytes(name) for name in formats.names}
        # What cannot be weighed comes first: the engine refuses it.
        largest_first = sorted(sizes, key=lambda name: (sizes[name] is not None, -(sizes[name] or 0)))
        room = formats.room
        held = (formats.choice(name) for name in largest_first if (sizes[name] or 0) <= room and formats.holds(name))
        smallest = (choice for name in reversed(largest_first) if (choice := formats.choice(name)) is not None)
        found = next(held, None) or next(smallest, None) or formats.refuse()
    return found.opened


def experts_on_host(engine: Engine, model: ModelSpec, request: Request, whole: Occupancy) -> Occupancy | None:
    """The model in four bits with experts in the memory of the host, where it holds them and nothing better lies on the GPU as a whole.

    ``whole`` is the largest format that surely fits there, or the smallest. It is ``None`` where that has four bits or more, and for
    models, engines and machines where no experts are left to the host.
    """
    gpu, name = request.setup.hardware.gpu, usual_beside_host(engine.weights.of(model))
    if name is None or gpu is None or gpu.shares_host_memory or gpu.is_host or not engine.facts.splits_layers:
        return None
    if not has_experts(model):
        return None
    sure = solve.holds(whole, "low")
    formats = _Formats(engine, model, request)
    taken, usual = (formats.weight_bytes(each) for each in (whole.setup.weights, name))
    if taken is None or usual is None or (sure and taken >= usual):
        return None
    with suppress(KvplanError):
        opened = engine.open(model, request.changed(weights=name))
        # What only probably fits is no reason to leave what surely does.
        if solve.holds(opened, "low" if sure else "expected") and opened.devices.placement() is not None:
            return opened
    return None


def _by_bisection(formats: _Formats, sizes: Mapping[str | None, int]) -> Choice | None:
    """The largest choice that surely fits, or else the smallest, by bisection over these sizes; ``None`` if they do not tell."""
    names = sorted(sizes, key=lambda name: -sizes[name])
    place = len(names) - 1
    if formats.holds(names[-1]):
        place = 0 if formats.holds(names[0]) else bisect_left(names, x=True, lo=1, hi=place, key=formats.holds)
    # Formats of nearly the same size may be in another order on the GPU, where the table of the tokens is not.
    near = [name for name in names if abs(sizes[name] - sizes[names[place]]) <= _NEAR * sizes[names[place]]]
    whole = [choice for name in near if formats.holds(name) and (choice := formats.choice(name)) is not None]
    if whole:
        return max(whole, key=lambda one: one.weight_bytes)
    smallest = [choice for name in near if (choice := formats.choice(name)) is not None]
    return min(smallest, key=lambda one: one.weight_bytes) if place == len(names) - 1 and smallest else None


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


def _said_beside(chosen: Choice, whole: Choice | None) -> str:
    """The message of the note where experts lie in the memory of the host."""
    instead = (
        "no usual format surely fits on the GPU as a whole" if whole is None else f"{whole.text} would fit on the GPU as a whole"
    )
    tokens = f"{chosen.opened.tokens:,} tokens"
    return f"Weights: {chosen.text}, {human_bytes(chosen.weight_bytes)}, with experts in host memory: with {tokens}, {instead}."


def _lacks(choice: Choice) -> str:
    """Bytes that the GPU lacks, at the high end of the estimates."""
    budget = choice.opened.budget
    assert budget is not None
    return human_bytes(max(0, choice.opened.needed_bytes - budget.low))


_LEAST_BITS: Final = 3
"""Every format that is chosen has more bits to a weight."""
_MORE: Final = 2
"""More times the memory of GPUs than they have: one more, for what is sold as less."""


class Hosting(Record):
    """The engine, the hardware and the options with which all models are planned."""

    engine: Engine
    engine_version: str | None
    gpu: Gpu
    seq: int
    asked: Asked

    def seq_for(self, longest: int | None) -> int:
        """The planned tokens of a model: those that the user names, or else at most its maximum length ``longest``."""
        return self.seq if longest is None or self.asked.seq is not None else min(self.seq, longest)

    def hopeless(self, parameters: int | None) -> bool:
        """True if a model of so many parameters fits in no format of ``--weights auto``, even with a part of it on the host."""
        gpu, host = self.gpu, self.asked.engine_options.get(HOST_MEMORY)
        if parameters is None or gpu.memory_marketing_gb is None or not is_auto(self.asked.weights):
            return False
        most = (self.asked.gpus or 1) * gpu.memory_marketing_gb * GIB
        if host is not None:
            most = parse_size(host, HOST_MEMORY) + (0 if gpu.is_host else _MORE * most)
        elif self.engine.facts.splits_layers and not gpu.shares_host_memory:
            most *= _MORE + HOST_SHARE
        return parameters * _LEAST_BITS > 8 * most

    def request(self, model: ModelSpec, weights: str | None) -> Request:
        """The request for this model with its weights in this format."""
        parallel = sizes_for(self.engine, model, self.gpu, self.asked.gpus, Parallel())
        return self.request_for(self.seq_for(model.max_position_embeddings), parallel, weights)

    def request_for(self, seq: int, parallel: Parallel, weights: str | None) -> Request:
        """The request for ``seq`` tokens with these parallel sizes and this format of weights."""
        asked = self.asked
        return Request.of(
            seq=seq,
            batch=asked.batch,
            dtype=asked.dtype,
            engine_version=self.engine_version,
            parallel=parallel,
            hardware=Hardware(gpu=self.gpu, memory_utilization=asked.memory_utilization, margin=asked.margin),
            weights=weights,
            options=self.engine.requests.options_in_full(asked.engine_options),
        )

    def best(self, model: ModelSpec, *, stored: bool = False, whole: bool = False) -> Fitted:
        """The figures of the model in the format that the user names, or in the best format; with ``stored``, in the format of its file.

        Where nothing fits as a whole, the engine may leave a part in the memory of the host, unless it is to be ``whole``. Raises the error of the engine if it does
        not run the model, and :class:`UnsupportedError` where its memory is not known.
        """
        named = None if stored else self.asked.weights
        if is_auto(named):
            request = self.request(model, None)
            entire = largest_that_fits(self.engine, model, request, node_of(self.gpu))
            beside = None if whole else experts_on_host(self.engine, model, request, entire)
            if beside is not None:
                return _judged(beside)
            named = entire.setup.weights
        else:
            entire = laid_out(self.engine.open(model, self.request(model, named)), node_of(self.gpu)).devices.entire()
        fitted = _judged(entire)
        return fitted if fitted.verdict is Verdict.FITS or not self.engine.facts.splits_layers else self.apart(model, named)

    def apart(self, model: ModelSpec, weights: str | None) -> Fitted:
        """The figures of the model in this format, with its layers on GPU and host as the engine places them by itself."""
        return _judged(self.engine.open(model, self.request(model, weights)))


def _judged(opened: Occupancy) -> Fitted:
    """The figures of an occupancy. Raises :class:`UnsupportedError` if its memory is not known."""
    budget = opened.budget
    if budget is None:
        raise UnsupportedError(f"what {opened.model.id} needs beside its cache is not known.", hint="")
    placement = opened.devices.placement()
    return Fitted(
        opened=opened,
        verdict=solve.verdict_of(opened),
        weights_bytes=sum(part.expected for part in budget.parts if part.section is Section.WEIGHTS and part.name == "weights"),
        needed_bytes=budget.requested_bytes - budget.expected + opened.needed_bytes,
        usable_bytes=budget.requested_bytes,
        gpu_layers=None if placement is None else placement.gpu_layers,
        all_layers=None if placement is None else placement.all_layers,
        host_bytes=None if placement is None else placement.host.weights_bytes + placement.host.cache_bytes,
        host_experts=None if placement is None else len(placement.experts_on_host),
    )


class Fitted(Record):
    """A model in its best format. Bytes are those of the fullest GPU."""

    opened: Occupancy
    verdict: Verdict
    weights_bytes: int
    needed_bytes: int
    usable_bytes: int
    gpu_layers: int | None = None
    all_layers: int | None = None
    host_bytes: int | None = None
    host_experts: int | None = None

    @property
    def fits(self) -> bool:
        """True if it fits by the expected value."""
        return self.verdict.fits

    @property
    def whole(self) -> bool:
        """True if all of it lies on the GPU."""
        return self.gpu_layers == self.all_layers and not self.host_experts

    @property
    def longest(self) -> int:
        """The most tokens that each sequence can have for certain."""
        return solve.longest(self.opened, "low").value

    @property
    def expected_longest(self) -> int:
        """The most tokens that each sequence can have by the expected value."""
        return solve.longest(self.opened).value

    @property
    def speed(self) -> SpeedInfo | None:
        """The speed, as a plan has it."""
        from hwcalc.planner.expected import speed_of

        return speed_of(self.opened)


def hosting(asked: Asked, gpu: Gpu, notes: list[Note]) -> Hosting:
    """The engine and the hardware that the options name.

    A warning that sources leave open whether the engine runs there is added to ``notes``. Raises
    :class:`~hwcalc.errors.UsageError` for unknown names, and :class:`~hwcalc.errors.UnsupportedError` if it does not run there.
    """
    engine, version = find_engine(asked.engine)
    check_ram(engine, asked, gpu)
    engine.requests.check_options(asked.engine_options)
    if gpu.is_host:
        engine.requests.check_host(gpu, asked.engine_options, asked.gpus or 1)
    resolved = engine.version(version)
    notes += check_accelerator(engine, resolved, gpu)
    return Hosting(engine=engine, engine_version=resolved or None, gpu=gpu, seq=asked.seq or _DEFAULT_SEQ, asked=asked)
