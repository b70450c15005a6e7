"""Advice: the changes that make a plan fit, each as a whole command line that was planned before it is offered.

Changes are tried alone, in the order of :class:`~hwcalc.engines.devices.Cost`, and together where none alone does without taking something
away. A number that is offered, of tokens or of sequences, holds at the low end of the budget. What holds by the expected value alone is
offered only where little else is. At most :data:`MOST_PLANS` changed requests are deployed, each in about a millisecond; another length or
number of sequences of the same deployment takes a tenth of that.

The texts of a change are its command line, the engine's flags, and what it gives. What it gives takes as long to compute as whether it
fits, so the texts are written only for the changes that an answer names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import Cost, Saving, computes_fp8
from hwcalc.engines.pool import Try
from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError
from hwcalc.planner import solve
from hwcalc.planner.expected import decode_rate, speed_words
from hwcalc.planner.layouts import counts, layouts, node_of, sizes_for
from hwcalc.planner.options import LIMITS, ROWS
from hwcalc.planner.values import TYPES
from hwcalc.planner.verdict import Layout, layout_text
from hwcalc.planner.within import expected_users, laid_out
from hwcalc.units import MOST_TOKENS, human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwcalc.planner.command_line import CommandLine
    from hwcalc.profiles.hardware_file import Gpu

    Serves = Callable[[Occupancy], bool]

_APART: Final = frozenset({"instance", "gpus", "engine_options"})
"""Options of a plan that a request has under other names."""


_OTHERS: Final = frozenset({"engine_options", "seq", "batch"})
_LARGER: Final = 4
"""How many larger GPUs are tried."""
_FASTEST: Final = 4
"""How many of the fastest accelerators are tried, before other hardware is looked for."""
PARALLEL: Final = ("tp", "pp", "dp", "dcp", "ep")


class Offer(Struct, frozen=True):
    """A change that fits, and how sure that is."""

    change: Saving
    found: Occupancy
    sure: bool


class _Tries:
    """The occupancies of a plan under each change. Each is planned once, and at most :data:`MOST_PLANS` changes are."""

    def __init__(self, opened: Occupancy, line: CommandLine) -> None:
        self.opened, self.line, self.left = opened, line, MOST_PLANS
        self._seen: dict[Hashable, Occupancy | None] = {}
        self._counted: set[Hashable] = set()

    def of(self, change: Saving) -> Occupancy | None:
        """The occupancy of the plan with this change.

        It is ``None`` if the engine or the GPU does not support it, or as many changes as are allowed were planned.
        """
        key = change.key
        if key not in self._seen:
            self._seen[key] = self._open(change, counted=key in self._counted)
        return self._seen[key]

    def count(self, change: Saving) -> None:
        """Count a change towards the limit of planned changes, whether or not it is planned later."""
        key = change.key
        if key in self._seen or key in self._counted:
            return
        if self.left <= 0:
            self._seen[key] = None
        else:
            self._counted.add(key)
            if self._is_computable(change):
                self.left -= 1

    def _open(self, change: Saving, *, counted: bool) -> Occupancy | None:
        """The occupancy with this change, planned now; ``None`` as in :meth:`of`. A change that is ``counted`` has its place in the limit."""
        if (self.left <= 0 and not counted) or not self._is_computable(change):
            return None
        if not counted:
            self.left -= 1
        settings = {name: value for name, value in change.settings.items() if name not in _APART}
        if "engine_options" in change.settings:
            settings["options"] = {**self.opened.setup.options, **change.settings["engine_options"]}
        found = solve.tried(self.opened, **{**chosen_sizes(self.opened, self.line, change), **settings})
        if found is not None and not self.names_sizes(change):
            found = laid_out(found, found.setup.gpus if self.line.given.get("instance") else None)
        return None if found is None or self._is_less_certain(found) else found

    def names_sizes(self, change: Saving) -> bool:
        """True if the command of this change names parallel sizes, so that none is chosen for it."""
        given = {**self.line.given, **change.settings}
        return any((given.get(name) or 1) > 1 for name in PARALLEL) or not (given.get("gpus") or given.get("instance"))

    def _is_less_certain(self, found: Occupancy) -> bool:
        """True if sources leave open that this runs, and do not leave it open of the plan."""
        return bool(found.hardware_warnings) and not self.opened.hardware_warnings

    def _is_computable(self, change: Saving) -> bool:
        """True if the GPU computes in the formats of this change."""
        settings, setup = change.settings, self.opened.setup
        # What the user already has on this GPU is the user's own choice.
        chosen = {**asdict(setup), **settings} if "gpu" in settings else settings
        eight = "fp8" in (chosen.get("dtype") or "") or "fp8" in (chosen.get("weights") or "")
        return not eight or computes_fp8(settings.get("gpu", setup.hardware.gpu))


def chosen_sizes(opened: Occupancy, line: CommandLine, change: Saving) -> dict[str, int]:
    """The parallel sizes that follow from the command line of a change.

    Empty unless it names another accelerator and no sizes.
    """
    if "gpu" not in change.settings or change.settings.keys() & set(PARALLEL):
        return {}
    settings = {**line.given, **change.settings}
    given = Parallel(**{name: settings.get(name) or 1 for name in PARALLEL})
    return asdict(sizes_for(opened.engine, opened.model, settings["gpu"], settings.get("gpus"), given))


MOST_LINES: Final = 6
MOST_PLANS: Final = 80
_ENOUGH_SURE: Final = 3
"""With so many lines that hold for certain, those that probably hold are left out."""
LEAST_SHARE: Final = 8
"""A number of tokens or sequences that leaves no more than this part of what was asked for is not offered."""
_MOST_LAYOUTS: Final = 20
"""How many layouts of more GPUs than the fewest are tried in one search."""
_EASY: Final = (Cost.NOTHING, Cost.CACHE, Cost.WEIGHTS, Cost.SPEED)
"""Changes on the GPUs at hand that take nothing away that is missed."""

_TO_HOST: Final = (Cost.PARTLY, Cost.HOST)

_WORTH: Final = frozenset({(Cost.NOTHING, 1), (Cost.CACHE, 1), (Cost.WEIGHTS, 1), (Cost.FEW_BITS, 1)})
"""Ranks that are offered even if they only probably help: most people would try these first."""


def advice(
    opened: Occupancy,
    line: CommandLine,
    *,
    fits: bool,
    fewest: Layout | None,
    partly: Occupancy | None = None,
    serves: Serves | None = None,
) -> tuple[Try, ...]:
    """The changes that make this plan fit, or fit for certain if it ``fits`` already. ``fewest`` are the fewest GPUs that would do.

    ``partly`` is the line as it is planned with a part of the model on the host, and ``opened`` is then the same request with all on the GPUs.
    Where there are limits of time, a change is offered only if ``serves`` says that its users are served within them.
    """
    if line.given.get("seq") is None and opened.engine.requests.names_length(opened.setup.hardware.gpu):
        # The engine would take another length with other hardware or formats.
        line = line.changed(seq=opened.tokens)
    return _Adviser(opened, line, fits=fits, partly=partly, serves=serves).advise(fewest)


def required(opened: Occupancy, line: CommandLine, flags: tuple[Try, ...]) -> tuple[Try, ...]:
    """The flags that an engine needs to start, with the command lines that set them."""
    out, engine = [], opened.engine
    for one in flags:
        value = one.flag.split()[-1] if one.flag.split() else ""
        name = next((name for name in engine.options if engine.command.flag(name, value) == one.flag), "")
        command = line.changed(engine_options={**opened.setup.options, name: value}).text if name else ""
        settings = {f"engine_options.{name}": value} if name else {}
        out.append(Try(command=command, flag=one.flag, effect=one.effect, settings=settings))
    return tuple(out)


class _Adviser:
    """Tries changes of one plan, and writes the texts of those that it offers.

    With ``fits``, the plan fits already, and a change makes that certain. With ``partly``, a part of the model lies on the host, and with
    a change all of it lies on the GPUs.
    """

    def __init__(
        self, opened: Occupancy, line: CommandLine, *, fits: bool, partly: Occupancy | None, serves: Serves | None
    ) -> None:
        self.opened, self.line, self.fits, self.partly, self.serves = opened, line, fits, partly is not None, serves
        # What runs already is not mended by a machine that is slower.
        self.least_rate = None if partly is None or not solve.holds(partly) else decode_rate(partly)
        self.tries = _Tries(opened, line)
        self.offers: list[Offer] = []
        self._before: dict[bool, int] = {}
        savings = opened.savings(opened.needed_bytes - (solve.budget_bytes(opened, "low") or 0))
        # All of them count as tried; most are planned when it is their turn, and some never are.
        self.savings = [saving for saving in savings if not self._is_set(saving) and not (partly and saving.cost in _TO_HOST)]
        for one in self.savings:
            self.tries.count(one)
        self.limits = []
        for name in LIMITS if opened.setup.hardware.gpu is not None else ():
            if line.given.get(name) is not None:
                flag = f"--{name.replace('_', '-')}"
                what = f"without {flag}" if name == "kv_memory" else f"the default of {flag}"
                self.limits.append(Saving(cost=Cost.NOTHING, what=what, settings={name: None}))
        # The change that takes back all limits that leave the cache less memory than it has without them.
        self.back: Saving | None = None
        for one in self.limits:
            more = one if self.back is None else self.back | one
            # A size of the cache is always one: other changes give it more memory only without that size.
            if "kv_memory" in one.settings or self._saves(more, self.back):
                self.back = more
        if self.back is not None:
            for one in self.savings:
                self.tries.count(self.back | one)

    def advise(self, fewest: Layout | None) -> tuple[Try, ...]:
        """The changes to show, cheapest first, at most :data:`MOST_LINES`. ``fewest`` is the layout of the fewest GPUs that hold the plan."""
        self._alone(fewest)
        if not any(offer.sure and offer.change.cost in _EASY for offer in self.offers):
            self._together()
        sure = [offer for offer in self.offers if offer.sure]
        chosen = sure
        if not self.fits:
            chosen = [one for one in self.offers if one.sure or one.change.rank in _WORTH or len(sure) < _ENOUGH_SURE]
        firm = {offer.change.rank for offer in sure}
        chosen = [offer for offer in chosen if offer.sure or offer.change.rank not in firm]
        chosen = [
            offer for offer in sorted(_without_wholes(chosen), key=lambda offer: offer.change.rank) if not self._is_slower(offer)
        ]
        chosen = chosen[:MOST_LINES]
        if self.serves is None or any(not _takes_load(offer) for offer in chosen):
            return tuple(self._told(offer) for offer in chosen)
        return (*self._elsewhere(), *(self._told(offer) for offer in chosen[: MOST_LINES - 1]))

    def _alone(self, fewest: Layout | None) -> None:
        """Offer each change by itself, first those that take back an option of the user."""
        limit = self.opened.most_sequences()
        if limit is not None and self.opened.batch > limit[0]:
            options = {limit[1]: str(self.opened.request.replica_batch)}
            self._offer(Saving(cost=Cost.NOTHING, what="as many at once", settings={"engine_options": options}))
        for change in (*self.limits, *([] if self.back is None else [self.back])):
            self._offer(change)
        for change in self.savings:
            if not self._is_sure(change.rank) and self._saves(change):
                self._offer(change)
        self._gpus(fewest)
        self._numbers(None, self.opened)

    def _offer(self, change: Saving) -> Offer | None:
        """Add a change to the offers if it fits, unless another change of the same rank does so as surely.

        Returns its offer, ``None`` if there is none.
        """
        if self._is_sure(change.rank):
            return None
        offer = self._tried(change)
        if offer is not None and (offer.sure or not any(other.change.rank == change.rank for other in self.offers)):
            self.offers.append(offer)
        return offer

    def _is_sure(self, rank: tuple[int, int]) -> bool:
        """True if a change of this rank was offered that surely fits."""
        return any(offer.sure and offer.change.rank == rank for offer in self.offers)

    def _tried(self, change: Saving) -> Offer | None:
        """The offer of this change; ``None`` if it does not fit.

        To fit probably is enough where the plan does not fit and no part of it lies on the host.
        """
        changed = self.tries.of(change)
        if changed is None:
            return None
        try:
            sure = solve.holds(changed, "low")
            # What only probably fits is left to the host by the engine itself.
            holds = sure or (not self.fits and not self.partly and solve.holds(changed))
            holds = holds and (self.serves is None or self.serves(changed))
        except KvplanError:
            return None
        return Offer(change=change, found=changed, sure=sure) if holds else None

    def _saves(self, change: Saving, than: Saving | None = None) -> bool:
        """True if this change leaves more bytes for the cache, or needs fewer of them, than the change ``than``, or than no change.

        An engine may ask for more than the planned sequences before it starts: what ends that saves too.
        """
        changed, other = self.tries.of(change), self.opened if than is None else self.tries.of(than)
        if changed is None or other is None:
            return False
        try:
            given, before = solve.budget_bytes(changed, "low") or 0, solve.budget_bytes(other, "low") or 0
            saves = given > before or changed.needed_bytes < other.needed_bytes
            saves = saves or (given == before and solve.holds(changed) and not solve.holds(other))
        except KvplanError:
            return False
        return saves

    def _is_set(self, change: Saving) -> bool:
        """True if the line sets these engine options already, or has them by default.

        The planned request may have stricter ones.
        """
        given = self.line.given.get("engine_options") or {}
        wanted = change.settings.get("engine_options", {})
        known = self.opened.engine.options
        return change.settings.keys() == {"engine_options"} and all(
            value == given.get(name, known[name].default) for name, value in wanted.items() if name in known
        )

    def _numbers(self, change: Saving | None, opened: Occupancy) -> None:
        """Offer fewer sequences, and shorter ones, each together with a change."""
        planned = opened.load.batch
        found = []
        if planned > 1:
            count = self._largest(opened, "batch", planned if self.fits else planned - 1)
            if count != planned and count >= least_sensible(planned):
                what = f"{count:,} at once instead of {planned:,}"
                found.append(Saving(cost=Cost.BATCH, what=what, settings={"batch": count}))
        longest = opened.model.max_position_embeddings or opened.tokens
        # A list of lengths stands in the place of the length.
        tokens = None if opened.load.lengths else self._largest(opened, "seq", min(longest, opened.tokens))
        # What all have in common is a part of each.
        if tokens and tokens != opened.tokens and tokens >= max(least_sensible(opened.tokens), opened.load.sharing.prefix):
            # Branches have the prompt in common, so that their line must say how long it is.
            whole = tokens if opened.load.sharing.branches > 1 else None
            shorter = {"prompt": whole} if (opened.load.prompt or 0) > tokens else {}
            what = f"{tokens:,} tokens instead of {opened.tokens:,}"
            found.append(Saving(cost=Cost.LENGTH, what=what, settings={"seq": tokens, **shorter}))
        for one in found:
            self._offer(one if change is None else change | one)

    def _largest(self, opened: Occupancy, name: solve.Count, most: int) -> int:
        """The largest length or number of sequences up to ``most`` that fits for certain, within the limits of time too.

        Arrivals are what they are: for them nothing smaller is looked for.
        """
        largest, serves = solve.largest(opened, name, most), self.serves
        if serves is None or opened.setup.others.get("rate") is not None:
            return largest
        return solve.last_yes(lambda value: serves(opened.sized(**{name: value})), largest, largest)

    def _gpus(self, fewest: Layout | None) -> None:
        """Offer more GPUs of this kind, the same number in another layout, and a larger GPU in place of each."""
        hardware, gpus = self.opened.setup.hardware, self.opened.setup.gpus
        gpu = hardware.gpu
        if gpu is None or hardware.kv_memory is not None or self.opened.budget is None:
            return
        instance = self.line.given.get("instance")
        if fewest is not None and (instance is not None or fewest.gpus > self._most_joined(gpu)):
            fewest = None
        # What does not fit by the expected value does not fit for certain: without the fewest there is nothing to search.
        least = 1 if instance is not None else 1 + (solve.MOST_GPUS if fewest is None else fewest.gpus)
        self._first_sure(map(self._of_layout, chain(() if fewest is None else (fewest,), self._layouts(self.opened, least))))
        if instance is not None:
            return
        self._first_sure(
            Saving(cost=Cost.GPU, what=f"{gpus:,} x {larger.id}", settings={"gpu": larger})
            for larger in _larger_gpus(self.opened)
            if solve.most_joined(larger, 1) >= gpus
        )
        few, larger_ones = max(node_of(gpu), gpus), (Cost.GPUS, Cost.GPU)
        if few > 1 and not any(
            offer.sure and offer.change.cost in larger_ones and offer.found.setup.gpus <= few for offer in self.offers
        ):
            # More than a node of the planned GPUs is needed, and no single larger GPU is enough: up to a node of larger ones.
            self._first_sure(self._nodes(gpu))

    def _most_joined(self, gpu: Gpu) -> int:
        return solve.most_joined(gpu, self.opened.setup.gpus, timed=self.serves is not None)

    def _nodes(self, gpu: Gpu) -> Iterator[Saving]:
        """Up to a node of each larger GPU."""
        for larger in _larger_gpus(self.opened, node_of(gpu)):
            other = Saving(cost=Cost.GPU, what="", settings={"gpu": larger})
            changed = self.tries.of(other)
            for layout in () if changed is None else self._layouts(changed, _at_least(changed), node_of(larger)):
                yield replace(self._of_layout(layout, larger) | other, cost=Cost.GPU, parts=1)

    def _first_sure(self, changes: Iterable[Saving]) -> bool:
        """Offer these changes up to the first that surely fits. Whether one does."""
        for change in changes:
            offer = self._offer(change)
            if offer is not None and offer.sure:
                return True
        return False

    def _layouts(self, opened: Occupancy, least: int, most: int = solve.MOST_GPUS) -> Iterator[Layout]:
        """The layouts of ``least`` to ``most`` GPUs of this hardware, the best of each number first.

        Laptops are never joined, and an instance has a fixed number.
        """
        gpu, instance = opened.setup.hardware.gpu, self.line.given.get("instance")
        if gpu is None:
            return
        most = min(most, self._most_joined(gpu))
        numbers: Iterable[int] = counts(most, node_of(gpu))
        if instance is not None:
            own, _, larger = _of_cloud(instance)
            numbers = sorted({*(count for count in numbers if count < own), own, larger})
        laid_out = (layouts(opened, count) for count in numbers if least <= count <= most)
        yield from islice(chain.from_iterable(laid_out), _MOST_LAYOUTS)

    def _of_layout(self, layout: Layout, other: Gpu | None = None) -> Saving:
        setup, instance = self.opened.setup, self.line.given.get("instance")
        settings: dict[str, Any] = {**dict.fromkeys(PARALLEL, 1), **asdict(layout), "gpus": layout.gpus}
        gpu = other or setup.hardware.gpu
        what = f"{layout.gpus:,} x {'' if gpu is None else gpu.id}"
        if instance is not None:
            own, larger, _ = _of_cloud(instance)
            settings["instance"] = instance if layout.gpus <= own else larger
            what = what if settings["instance"] == instance else f"{larger}, {what}"
        # An engine that gives each GPU a run of layers needs their number alone.
        sizes = "" if self.opened.engine.facts.splits_layers else layout.text
        cost = Cost.GPUS if layout.gpus > setup.gpus else Cost.NOTHING
        return Saving(cost=cost, what=f"{what}{f' ({sizes})' if sizes else ''}", settings=settings)

    def _together(self) -> None:
        """Offer two or three changes together, where no single change makes the plan fit on the planned GPUs."""
        cache, weights, few = (self._first(cost) for cost in (Cost.CACHE, Cost.WEIGHTS, Cost.FEW_BITS))
        eight, back = [one | other for one in cache for other in weights], [] if self.back is None else [self.back]
        singles = [one | other for one in back for cost in _EASY for other in self._first(cost, one)]
        freed = [one | other for one in singles if one.cost is Cost.CACHE for other in self._first(Cost.WEIGHTS, self.back)]
        if self._first_sure((*singles, *eight, *freed)):
            return
        self._fewer_gpus([*freed, *eight, *reversed(singles), *weights, *cache, *back])
        if any(offer.sure and offer.change.rank == (Cost.FEW_BITS, 1) for offer in self.offers):
            return
        both = [one | other for one in back for other in self._first(Cost.FEW_BITS, self.back)]
        both += [one | other for one in few for other in cache]
        if self._first_sure(both):
            return
        for change in (*back, *cache, *eight, *few, *both):
            changed = self.tries.of(change)
            if changed is not None:
                self._numbers(change, changed)
            if any(offer.change.parts > 1 and offer.change.cost is not Cost.GPUS for offer in self.offers):
                return

    def _first(self, cost: Cost, beside: Saving | None = None) -> list[Saving]:
        """A list of the first saving of this cost that frees memory, alone or on top of the change ``beside``.

        Empty if no saving does.
        """
        for saving in self.savings:
            if saving.cost is cost and self._saves(saving if beside is None else beside | saving, beside):
                return [saving]
        return []

    def _fewer_gpus(self, changes: list[Saving]) -> None:
        """Offer these changes with more GPUs, if that needs fewer GPUs than adding GPUs alone."""
        alone = [offer.found.setup.gpus for offer in self.offers if offer.change.cost is Cost.GPUS]
        most = min(alone, default=1 + solve.MOST_GPUS) - 1
        best: Offer | None = None
        for change in changes:
            changed = self.tries.of(change)
            if changed is None or changed.setup.hardware.gpu is None or changed.setup.hardware.kv_memory is not None:
                continue
            if best is not None:
                # One change fewer with the same GPUs is better.
                sizes = best.found.setup.parallel
                smaller = self._tried(change | self._of_layout(Layout(tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, ep=sizes.ep)))
                best = smaller if smaller is not None and smaller.sure else best
                continue
            tried = (self._tried(change | self._of_layout(one)) for one in self._layouts(changed, _at_least(changed), most))
            best = next((offer for offer in tried if offer is not None and offer.sure), None)
            if best is None:
                return
        self.offers += [] if best is None else [best]

    def _is_slower(self, offer: Offer) -> bool:
        """True for another accelerator that decodes slower than the one that runs the plan with a part on the host."""
        if self.least_rate is None or "gpu" not in offer.change.settings:
            return False
        rate = decode_rate(offer.found)
        return rate is not None and rate < self.least_rate

    def _told(self, offer: Offer) -> Try:
        """The change with its texts."""
        change, engine = offer.change, self.opened.engine
        gain = "" if _takes_load(offer) else self._gain(offer)
        whole = "all layers on the GPU" if self.partly else ""
        sizes = offer.found.setup.parallel
        moved = not (change.settings.keys() & set(PARALLEL)) and sizes != self.opened.setup.parallel and sizes.gpus > 1
        what = f"{change.what} ({layout_text(sizes)})" if moved else change.what
        effect = "; ".join(filter(None, (what, whole, gain, self._speed(offer), "" if offer.sure else "probably fits")))
        settings = {**self._sizes(offer), **change.settings}
        if engine.facts.splits_layers and "gpus" in settings:
            settings |= dict.fromkeys(PARALLEL)
        if "gpu" in settings:
            settings["gpu"] = settings["gpu"].id
        if "engine_options" in settings:
            settings["engine_options"] = {**(self.line.given.get("engine_options") or {}), **settings["engine_options"]}
        command = self.line.changed(**settings).text
        return Try(flag=self._flags(offer), effect=effect, command=command, settings=self._written(offer, settings))

    def _written(self, offer: Offer, settings: Mapping[str, Any]) -> dict[str, str | None]:
        """The settings that differ from those of the line, as text. Sizes that follow from the number of GPUs are left out."""
        given, written = self.line.given, dict[str, str | None]()
        follow = "gpus" in settings and not any((given.get(name) or 1) > 1 for name in PARALLEL) and self._is_laid_out(offer)
        for name, value in settings.items():
            if name == "engine_options":
                before = given.get(name) or {}
                written |= {f"{name}.{option}": text for option, text in value.items() if text != before.get(option)}
            elif value != given.get(name, ROWS[name].default) and not (follow and name in PARALLEL):
                written[name] = None if value is None else TYPES[ROWS[name].type].write(value)
        return written

    def _flags(self, offer: Offer) -> str:
        """The settings of the change in the spelling of the engine."""
        settings = {**asdict(offer.found.setup.parallel), **offer.change.settings}
        parallel, engine = asdict(self.opened.setup.parallel), self.opened.engine
        words: list[str] = []
        for name, value in engine.command.settings(settings, self.opened.setup, self.opened.load).items():
            if name in {"gpu", "gpus", "instance"} or value is None or (name in parallel and value in (1, parallel[name])):
                continue
            if name == "engine_options":
                words += [engine.command.flag(option, each) for option, each in value.items()]
            else:
                words.append(
                    engine.command.flag(name, -(-value // settings.get("dp", parallel["dp"])) if name == "batch" else value)
                )
        return " ".join(filter(None, words))

    def _sizes(self, offer: Offer) -> dict[str, int]:
        """The parallel sizes with which the change was planned.

        Empty unless the line names ``--gpus`` alone and would get another layout.
        """
        if self.tries.names_sizes(offer.change):
            return {}
        return {} if self._is_laid_out(offer) else asdict(offer.found.setup.parallel)

    def _is_laid_out(self, offer: Offer) -> bool:
        """True if this number of GPUs gets the layout of the offer where no parallel size is named."""
        occupancy = offer.found
        node = occupancy.setup.gpus if {**self.line.given, **offer.change.settings}.get("instance") else None
        return laid_out(occupancy, node).setup.parallel == occupancy.setup.parallel

    def _gain(self, offer: Offer) -> str:
        """The sequences or tokens that fit for certain with the change, and those without it, in words.

        A change that only probably fits has its expected number alone, so that no screen compares with two different numbers.
        """
        if self.serves is not None:
            return self._served(offer)
        if offer.sure not in self._before:
            self._before[offer.sure] = self._held(self.opened, sure=offer.sure)
        before, held = self._before[offer.sure], self._held(offer.found, sure=offer.sure)
        if before < held < MOST_TOKENS:
            what = "holds {}" if self.opened.load.batch > 1 else "up to {} tokens"
            # What is held on the GPU alone is another number than what the plan holds with a part of it on the host.
            there = " there" if self.partly else ""
            if not offer.sure:
                return what.format(f"{held:,}")
            certain = " for certain" if self.fits else ""
            instead = f" instead of {before:,}{certain}" if before or not self.partly else ""
            return f"{what.format(f'{held:,}')}{there}{instead}"
        given = solve.budget_bytes(offer.found, "low" if offer.sure else "expected") or 0
        return f"leaves {human_bytes(given - offer.found.needed_bytes)}"

    def _speed(self, offer: Offer) -> str:
        """The expected speed of decoding with the change, in words; empty where nothing is expected, or limits of time are what counts."""
        return speed_words(offer.found) if self.serves is None else ""

    def _served(self, offer: Offer) -> str:
        """The users within the limits of time with the change, and those without it, in words. Of arrivals there is no number of users."""
        if self.opened.setup.others.get("rate") is not None:
            return "within the limits of time"
        return f"serves {expected_users(offer.found):,} within the limits of time instead of {expected_users(self.opened):,}"

    def _elsewhere(self) -> tuple[Try, ...]:
        """The command that looks for other hardware, if a node of the fastest accelerators serves the users within the limits of time.

        If such a node serves one user at least, the command for several servers. Of arrivals that command knows nothing.
        """
        from hwcalc.hardware.candidates import fastest_gpus

        one = 1 if self.opened.setup.others.get("rate") is None else self.opened.load.batch
        for batch in dict.fromkeys((self.opened.load.batch, one)):
            for gpu in fastest_gpus(_FASTEST):
                with suppress(KvplanError):
                    changed = self.opened.changed(gpu=gpu, batch=batch, **dict.fromkeys(PARALLEL, 1))
                    if solve.holding_layout(changed.devices.entire(), node_of(gpu), serves=self.serves) is None:
                        continue
                    if batch < self.opened.load.batch:
                        effect = "for several servers: write the users and the limits there, then kvplan fleet fleet.yaml"
                        return (Try(command="kvplan fleet --example > fleet.yaml", flag="", effect=effect),)
                    line = self.line.changed(**dict.fromkeys(("gpu", "gpus", "instance", *PARALLEL)))
                    command = line.text.replace("kvplan", "kvplan recommend", 1)
                    return (Try(command=command, flag="", effect="other hardware, within the limits of time"),)
        return ()

    def _held(self, opened: Occupancy, *, sure: bool) -> int:
        """The most sequences of the planned length that fit; for a plan of one sequence, the most tokens of it."""
        end = "low" if sure else "expected"
        # As the plan of the line counts: with the layers where it puts them.
        opened = opened.devices.pinned()
        if self.opened.load.batch > 1:
            return solve.largest(opened, "batch", MOST_TOKENS, end)
        bound = opened.model.max_position_embeddings
        return solve.largest(opened, "seq", MOST_TOKENS if bound is None else max(bound, opened.tokens), end)


def _takes_load(offer: Offer) -> bool:
    """True if the change is to plan fewer or shorter sequences."""
    return not offer.change.settings.keys().isdisjoint({"seq", "batch"})


def least_sensible(asked: int) -> int:
    """The least number of tokens or sequences that is offered to who asked for so many: more than an eighth.

    >>> least_sensible(4096), least_sensible(7)
    (513, 1)
    """
    return asked // LEAST_SHARE + 1


def _without_wholes(offers: list[Offer]) -> list[Offer]:
    """The offers without those that contain a smaller offer which is as sure and plans as many tokens and sequences."""
    settings = []
    for offer in offers:
        given = offer.change.settings
        flat = {f"engine_options.{name}": value for name, value in given.get("engine_options", {}).items()}
        flat |= {name: getattr(value, "id", value) for name, value in given.items() if name not in _OTHERS}
        settings.append((offer, flat.items()))

    def is_part(one: Offer, other: Offer) -> bool:
        smaller = one.change.parts < other.change.parts and one.sure >= other.sure
        return smaller and one.found.tokens >= other.found.tokens and one.found.batch >= other.found.batch

    return [whole for whole, more in settings if not any(is_part(one, whole) and few <= more for one, few in settings)]


def _at_least(opened: Occupancy) -> int:
    """A lower bound on the number of GPUs: they must hold the weights, and the cache where it is not divided yet."""
    budget, parallel = opened.budget, opened.setup.parallel
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights = sum(part.low for part in budget.parts if part.name == "weights") * parallel.tp * parallel.pp
    cache = opened.needed_bytes if opened.setup.gpus == 1 else 0
    return max(1, -(-(weights + cache) // budget.requested_bytes))


def _larger_gpus(opened: Occupancy, share: int = 1) -> Iterator[Gpu]:
    """The next larger accelerators of the same maker, of which ``share`` for each planned one may have enough memory."""
    from hwcalc.hardware.candidates import larger_gpus

    gpu, budget = opened.setup.hardware.gpu, opened.budget
    assert gpu is not None
    assert budget is not None
    needed = budget.requested_bytes - budget.low + opened.needed_bytes
    yield from larger_gpus(gpu, needed * (opened.setup.gpus if share > 1 else 1) // share, _LARGER)


def _of_cloud(instance: str) -> tuple[int, str, int]:
    """The number of accelerators of the instance, and name and number of the next larger instance with the same accelerator.

    If there is no larger instance, name and number are those of the instance itself.
    """
    from hwcalc.hardware.candidates import next_instance

    own, larger = next_instance(instance)
    if larger is None:
        return own.count, instance, own.count
    return own.count, larger.name if "/" in instance else larger.id, larger.count
