"""The requests that advice tries: each change once in a plan, and what they come to once in a family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.saving import computes_fp8
from hwcalc.engines.setup import Parallel
from hwcalc.planner import solve
from hwcalc.planner.change import PARALLEL, Change, Sizes, key_of
from hwcalc.planner.sizes import sizes_for

if TYPE_CHECKING:
    from hwcalc.planner.command import CommandLine

_APART: Final = frozenset({"instance", "gpus", "engine_options"})
"""Options that a request has under other names."""


class Tries:
    """Changes of one plan, of which at most so many are opened."""

    def __init__(self, opened: Occupancy, line: CommandLine, most: int) -> None:
        self.opened, self.line, self.left = opened, line, most
        self.planned = opened
        self._seen: dict[Hashable, Occupancy | None] = {}
        self._counted: set[Hashable] = set()

    def of(self, change: Change) -> Occupancy | None:
        """The request with a change; ``None`` if the engine or the GPU does not do it, or it was tried often enough."""
        key = key_of(change.settings)
        if key not in self._seen:
            self._seen[key] = self._open(change, key)
        return self._seen[key]

    def count(self, change: Change) -> None:
        """Count a change as tried, whether it will be or not."""
        key = key_of(change.settings)
        if key in self._seen or key in self._counted:
            return
        if self.left <= 0:
            self._seen[key] = None
        else:
            self._counted.add(key)
            self.left -= self._is_done(self._settings(change))

    def _open(self, change: Change, key: Hashable) -> Occupancy | None:
        counted = key in self._counted
        if self.left <= 0 and not counted:
            return None
        done, found = self._first(change)
        self.left -= done and not counted
        return found

    def _first(self, change: Change) -> tuple[bool, Occupancy | None]:
        """Whether the GPU does what is changed, and what the engine makes of it."""
        settings = self._settings(change)
        if not self._is_done(settings):
            return False, None
        if "engine_options" in change.settings:
            settings["options"] = {**self.opened.request.options, **change.settings["engine_options"]}
        return True, solve.tried(self.opened, **{**chosen_sizes(self.opened, self.line, change), **settings})

    def _settings(self, change: Change) -> dict[str, Any]:
        """The settings of a change that a request has by the same names."""
        return {name: value for name, value in change.settings.items() if name not in _APART}

    def _is_done(self, settings: dict[str, Any]) -> bool:
        """Whether the GPU computes in the formats of these settings."""
        request = self.opened.request
        gpu = settings.get("gpu", request.hardware.gpu)
        # What the user already has on this GPU is the user's own choice.
        chosen: Mapping[str, Any] = {**asdict(request.setup), **settings} if "gpu" in settings else settings
        eight = "fp8" in (chosen.get("dtype") or "") or "fp8" in (chosen.get("weights") or "")
        return not eight or computes_fp8(gpu)


def chosen_sizes(opened: Occupancy, line: CommandLine, change: Change) -> Sizes:
    """The parallel sizes that the command line of a change leads to where it names another accelerator and no sizes."""
    if "gpu" not in change.settings or change.settings.keys() & set(PARALLEL):
        return {}
    settings = {**line.given, **change.settings}
    given = Parallel(**{name: settings.get(name) or 1 for name in PARALLEL})
    return asdict(sizes_for(opened.engine, opened.model, settings["gpu"], settings.get("gpus"), given))
