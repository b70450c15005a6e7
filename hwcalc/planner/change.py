"""The command line of a plan, and a change of it: its settings by the names of the options, what it costs, and the engine's flags."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import Cost, Saving
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner import layouts
from hwcalc.planner.options import OPTIONS, Asked, PlanOption
from hwcalc.planner.values import TYPES
from hwcalc.planner.verdict import Layout
from hwcalc.text import operand, shell_word

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request
    from hwcalc.profiles.hardware_file import Gpu

STANDARD_INPUT = "-"
"""The word for a config that has no address: it is read from standard input."""
_NO_ADDRESS = ("stdin", "python")
_PLACES: Final = {row.name: place for place, row in enumerate(OPTIONS)}


class CommandLine(Record):
    """The command line of a plan: the word for the model, ``None`` for the bare equation, and the options that are not the default."""

    model: str | None
    given: Mapping[str, Any]

    def changed(self, **settings: Any) -> CommandLine:
        """The command line with other settings; ``None`` restores the default of an option."""
        made = CommandLine(model=self.model, given={**self.given, **settings})
        # Advice writes a few lines that differ in an option or two.
        vars(made)["_quoted"] = self._quoted | _quoted(settings)
        return made

    @property
    def words(self) -> tuple[str, ...]:
        """The options and their values."""
        given = self.given
        chosen = ((row, value) for row in OPTIONS if (value := given.get(row.name)) is not None and value != row.default)
        return tuple(word for row, value in chosen for word in _words(row, value))

    @cached_property
    def _quoted(self) -> dict[int, str]:
        """The words of each given option, quoted for a shell, by the row number of the option in the table."""
        return _quoted(self.given)

    @property
    def text(self) -> str:
        """The line, every word quoted for a shell."""
        words = [text for _, text in sorted(self._quoted.items()) if text]
        if self.model is None:
            return " ".join(("kvplan", *words))
        if self.model != STANDARD_INPUT and self.model.startswith("-"):
            return " ".join(("kvplan", *words, operand(self.model)))
        return " ".join(("kvplan", shell_word(self.model), *words))


def command_line(spec: ModelSpec, options: Mapping[str, Any], *, model: object = None, asked: Asked | None = None) -> CommandLine:
    """The command line of a plan with the parsed ``options``.

    ``model`` is what the caller gave for the model, and ``asked`` has all parsed options, those on how models are read too.
    """
    given = dict(options)
    if asked is not None:
        given |= asked.values
    return CommandLine(model=_model_word(spec, model), given=given)


def _quoted(given: Mapping[str, Any]) -> dict[int, str]:
    """The words of these options, quoted for a shell, by the row number of the option in the table."""
    return {
        _PLACES[name]: " ".join([shell_word(word) for word in _words(OPTIONS[_PLACES[name]], value)])
        for name, value in given.items()
        if name in _PLACES
    }


def _is_there(address: str) -> bool:
    from pathlib import Path

    return Path(address).exists()


def _model_word(spec: ModelSpec, model: object) -> str | None:
    if spec.source == "options":
        return None
    if isinstance(model, (str, os.PathLike)):
        word = os.fsdecode(os.fspath(model))
    elif spec.source in _NO_ADDRESS or (spec.source == "local" and not _is_there(spec.address)):
        word = STANDARD_INPUT
    else:
        word = spec.address
    # A folder may have the name of a command.
    bare = spec.source == "local" and word != STANDARD_INPUT and not any(sign in word for sign in "./~")
    return f"./{word}" if bare else word


def _words(row: PlanOption, value: Any) -> Iterator[str]:
    """An option and its value; nothing for the default, and never a secret."""
    if value is None or value == row.default or row.type == "secret":
        return
    flag, write = row.spellings[0], TYPES[row.type].write
    if row.type == "flag":
        yield from (flag,) if value else ()
    elif row.type == "pairs":
        for name, each in value.items():
            yield from (flag, f"{name}={each}")
    else:
        text = write(value)
        yield from (f"{flag}={text}",) if text.startswith("-") else (flag, text)


_LARGER: Final = 4
"""How many larger GPUs are tried."""
_OTHERS: Final = frozenset({"engine_options", "seq", "batch"})
PARALLEL: Final = ("tp", "pp", "dp", "dcp", "ep")

Sizes = Mapping[str, int]
"""Parallel sizes by name."""


class Change(Struct, frozen=True):
    """Settings of a plan that differ, by the names of its options; a ``gpu`` is the accelerator itself."""

    cost: Cost
    what: str
    settings: Mapping[str, Any]
    parts: int = 1

    def __or__(self, other: Change) -> Change:
        """The change that makes both changes. It costs what the dearer of the two costs."""
        options = {**self.settings.get("engine_options", {}), **other.settings.get("engine_options", {})}
        settings = {**self.settings, **other.settings, **({"engine_options": options} if options else {})}
        return Change(
            cost=max(self.cost, other.cost),
            what=", ".join(filter(None, (self.what, other.what))),
            settings=settings,
            parts=self.parts + other.parts,
        )

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key among offers: first the cost, then the number of changes that are combined."""
        return self.cost, self.parts


class Offer(Struct, frozen=True):
    """A change that fits, and how sure that is."""

    change: Change
    found: Occupancy
    sure: bool


NOTHING: Final = Change(cost=Cost.NOTHING, what="", settings={})


def change_of(saving: Saving) -> Change:
    """The change that sets what an engine offers."""
    return Change(cost=saving.cost, what=saving.what, settings=saving.settings)


def with_numbers(change: Change, cost: Cost, what: str, **settings: Any) -> Change:
    """The change combined with other settings, such as a shorter length or fewer sequences."""
    other = Change(cost=cost, what=what, settings=settings)
    return other if change is NOTHING else change | other


def key_of(settings: Mapping[str, Any]) -> frozenset[tuple[str, object]]:
    """A hashable key for the settings of a change, whatever their order: an accelerator by its id, a mapping by its items."""
    return frozenset(
        [
            (name, tuple(value.items()) if name == "engine_options" else value.id if name == "gpu" else value)
            for name, value in settings.items()
        ]
    )


def without_wholes(offers: list[Offer]) -> list[Offer]:
    """The offers without those that contain a smaller offer which is as sure and plans as many tokens and sequences."""
    told = [(offer, _flat(offer.change).items(), offer.found.tokens, offer.found.batch) for offer in offers]

    def is_part(
        one: Offer, few: ItemsView[str, Any], tokens: int, batch: int, of: tuple[Offer, ItemsView[str, Any], int, int]
    ) -> bool:
        other, more, other_tokens, other_batch = of
        smaller = one.change.parts < other.change.parts and one.sure >= other.sure
        return smaller and few <= more and tokens >= other_tokens and batch >= other_batch

    return [of[0] for of in told if not any(is_part(*one, of) for one in told)]


def _flat(change: Change) -> dict[str, Any]:
    """The settings of a change without tokens and sequences. Engine options are merged in, and an accelerator is its id."""
    options = {f"engine_options.{name}": value for name, value in change.settings.get("engine_options", {}).items()}
    settings = {name: getattr(value, "id", value) for name, value in change.settings.items() if name not in _OTHERS}
    return settings | options


# The functions from here to sizes_of are what advice asks the solvers about layouts.
def counts_of(gpu: Gpu, most: int) -> tuple[int, ...]:
    """The numbers of GPUs to try."""
    return layouts.counts(most, layouts.node_of(gpu))


def layouts_of(opened: Occupancy, gpus: int) -> Iterator[Sizes]:
    """The layouts of so many GPUs that the solvers would use, the best one first."""
    yield from map(sizes_of, layouts.layouts(opened, gpus))


def sizes_of(found: Layout) -> Sizes:
    """The parallel sizes of a layout that a solver found."""
    return dict(asdict(found))


def at_least(opened: Occupancy) -> int:
    """A lower bound on the number of GPUs: they must hold the weights, and the cache where it is not divided yet."""
    budget, parallel = opened.budget, opened.setup.parallel
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights = sum(part.low for part in budget.parts if part.name == "weights") * parallel.tp * parallel.pp
    cache = opened.needed_bytes if opened.setup.gpus == 1 else 0
    return max(1, -(-(weights + cache) // budget.requested_bytes))


def layout_of(request: Request) -> Sizes:
    """The parallel sizes of a request."""
    sizes = asdict(request.setup.parallel)
    return {name: sizes[name] for name in PARALLEL}


def count_of(layout: Sizes) -> int:
    """The number of GPUs."""
    return layout["tp"] * layout["pp"] * layout["dp"]


def flags_of(opened: Occupancy, settings: Mapping[str, Any]) -> str:
    """The settings in the spelling of the engine."""
    parallel = asdict(opened.setup.parallel)
    words: list[str] = []
    for name, value in opened.own_settings(settings).items():
        if name in {"gpu", "gpus", "instance"} or value is None or (name in parallel and value in (1, parallel[name])):
            continue
        if name == "engine_options":
            words += [opened.engine.flag(option, each) for option, each in value.items()]
        else:
            words.append(opened.engine.flag(name, -(-value // settings.get("dp", parallel["dp"])) if name == "batch" else value))
    return " ".join(filter(None, words))


def larger_gpus_of(opened: Occupancy, share: int = 1) -> Iterator[Gpu]:
    """The next larger accelerators of the same maker, of which ``share`` for each planned one may have enough memory."""
    from hwcalc.hardware.candidates import larger_gpus

    gpu, budget = opened.setup.hardware.gpu, opened.budget
    assert gpu is not None
    assert budget is not None
    needed = budget.requested_bytes - budget.low + opened.needed_bytes
    yield from larger_gpus(gpu, needed * (opened.setup.gpus if share > 1 else 1) // share, _LARGER)


def of_cloud(instance: str) -> tuple[int, str, int]:
    """The number of accelerators of the instance, and name and number of the next larger instance with the same accelerator.

    If there is no larger instance, name and number are those of the instance itself.
    """
    from hwcalc.hardware.candidates import next_instance

    own, larger = next_instance(instance)
    if larger is None:
        return own.count, instance, own.count
    return own.count, larger.name if "/" in instance else larger.id, larger.count
