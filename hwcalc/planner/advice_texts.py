"""How a change is written: its command line, the engine's own flags, and what it gives.

What it gives takes as long to find out as whether it helps, and a short answer names few changes: all of it waits until it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Try
from hwcalc.planner import solve, solve_gpus
from hwcalc.planner.advice_tries import chosen_sizes
from hwcalc.planner.change import PARALLEL, Offer, flags_of
from hwcalc.units import MOST_TOKENS, human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.command import CommandLine

class Texts:
    """Writes the texts of the changes of one plan: with ``fits`` what they make certain, with ``partly`` what lies on the GPUs alone with them."""

    def __init__(self, opened: Occupancy, line: CommandLine, *, fits: bool, partly: bool) -> None:
        # Nothing of what was tried in vain: a plan may be kept for long.
        self.opened, self.line, self.fits, self.partly = opened, line, fits, partly
        self._before: dict[bool, int] = {}

    def of(self, offer: Offer) -> Try:
        """A change with its texts."""
        return Try(flag=self._flag(offer), effect=self._effect(offer), command=self._command(offer))

    def _flag(self, offer: Offer) -> str:
        return flags_of(self.opened, {**chosen_sizes(self.opened, self.line, offer.change), **offer.change.settings})

    def _command(self, offer: Offer) -> str:
        settings = {**self._layout(offer), **offer.change.settings}
        if self.opened.engine.splits_layers and "gpus" in settings:
            settings |= dict.fromkeys(PARALLEL)
        if "gpu" in settings:
            settings["gpu"] = settings["gpu"].id
        if "engine_options" in settings:
            settings["engine_options"] = {**(self.line.given.get("engine_options") or {}), **settings["engine_options"]}
        return self.line.changed(**settings).text

    def _layout(self, offer: Offer) -> dict[str, int]:
        """The sizes that were tried, where the line names a number of GPUs alone and would be planned in another layout."""
        given = {**self.line.given, **offer.change.settings}
        if any((given.get(name) or 1) > 1 for name in PARALLEL) or not (given.get("gpus") or given.get("instance")):
            return {}
        found = offer.found
        node = found.request.gpus if given.get("instance") else None
        same = solve_gpus.laid_out(found, node).request.parallel == found.request.parallel
        return {} if same else asdict(found.request.parallel)

    def _effect(self, offer: Offer) -> str:
        gain = "" if offer.change.settings.keys() & {"seq", "batch"} else self._gain(offer)
        whole = "all layers on the GPU" if self.partly else ""
        return "; ".join(filter(None, (offer.change.what, whole, gain, "" if offer.sure else "probably fits")))

    def _gain(self, offer: Offer) -> str:
        """How much more it holds: both numbers for certain, or both by the expected value where it only probably fits."""
        if offer.sure not in self._before:
            self._before[offer.sure] = self._held(self.opened, sure=offer.sure)
        before, held = self._before[offer.sure], self._held(offer.found, sure=offer.sure)
        if before < held < MOST_TOKENS:
            what = "holds {}" if self.opened.request.batch > 1 else "up to {} tokens"
            certain = " for certain" if self.fits else ""
            instead = f" instead of {before:,}{certain}" if before or not self.partly else ""
            return f"{what.format(f'{held:,}')}{instead}"
        given, needed = solve.given_and_needed(offer.found, "low" if offer.sure else "expected")
        return f"leaves {human_bytes(given - needed)}"

    def _held(self, opened: Occupancy, *, sure: bool) -> int:
        """How many sequences of the planned length fit, or for a single one how many tokens."""
        end = "low" if sure else "expected"
        # As the plan of the line counts: with the layers where it puts them.
        opened = opened.pinned()
        if self.opened.request.batch > 1:
            return solve.largest(opened, "batch", MOST_TOKENS, end)
        bound = opened.model.max_position_embeddings
        return solve.largest(opened, "seq", MOST_TOKENS if bound is None else max(bound, opened.tokens), end)
