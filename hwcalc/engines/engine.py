"""The interface of an engine: what holds of it whatever model it runs, and :meth:`Engine.deploy`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.deployment import Deployment, Occupancy, deployed
from hwcalc.engines.facts import Command, Facts, RequestRules, WeightFormats
from hwcalc.engines.versions import unknown_version
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.options import EngineOption
    from hwcalc.engines.setup import Request, Setup
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import Definition, ModelSpec, Note

YES: Final = "yes"
NO: Final = "no"
EVERY_TOKEN: Final = "every token"
BY_MODEL: Final = "by model"


class Engine(ABC):
    """The facts and the rules of one engine. It keeps no state between calls."""

    name: ClassVar[str]
    title: ClassVar[str]
    label: ClassVar[str]
    """The name that people use for it."""
    definition: ClassVar[Definition]
    """What the numbers are: ``exact`` (the formulas) or ``engine`` (the rules of this engine)."""
    versions: ClassVar[tuple[str, ...]]
    """Versions whose rules are known, newest first; empty if the engine has no versions."""
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({})
    source: ClassVar[str]
    kinds: ClassVar[frozenset[type[LayerKind]] | frozenset[str] | None]
    """Those that it has a rule for, as classes or by their names; every other one is refused. ``None``: all, by the formulas alone."""
    facts: ClassVar[Facts]
    """What the rest of the program has to know of it."""
    weights: ClassVar[WeightFormats] = WeightFormats()
    """The formats among which ``--weights auto`` chooses."""
    command: ClassVar[Command] = Command()
    """How the engine is told a plan."""
    deployment: ClassVar[type[Deployment]] = Deployment
    """The class of its deployments: the rules that do not depend on the load."""
    occupancy: ClassVar[type[Occupancy]]
    """The class of what its deployments hold: the rules that do."""
    request_class: ClassVar[type[RequestRules]] = RequestRules
    """The class of the rules by which the engine reads a request."""
    scheduler: ClassVar[str | None] = None
    """The module with the rules of its scheduler, by which requests are replayed; ``None`` if none are known."""

    @property
    def requests(self) -> RequestRules:
        """The rules by which the engine reads a request."""
        return self.request_class(self)

    def version(self, requested: str | None) -> str:
        """The version whose rules apply to the requested one; the newest if the user requests none. ``5.14.2`` has the rules of 5.14."""
        if requested is None:
            return self.versions[0] if self.versions else ""
        if not self.versions:
            raise UnknownNameError(
                f"--engine {self.name}@{brief(requested, 20)}: {self.name} has no versions.",
                option="engine",
                hint=f"Use: --engine {self.name}",
            )
        return self._resolve_version(requested)

    def _resolve_version(self, requested: str) -> str:
        """As :meth:`version`, for an engine with versions.

        By default a known release, its line (``0.5`` for 0.5.23), and what was made of it (``1.4.1`` and ``3.3.6-dev0`` for 1.4 and 3.3.6).
        """
        release = requested.removeprefix("v")
        for known in self.versions:
            if (
                release == known
                or ("." in release and known.startswith(f"{release}."))
                or release.startswith((f"{known}.", f"{known}-"))
            ):
                return known
        raise unknown_version(self.name, requested, hint=f"Known: {', '.join(self.versions)}.")

    def stores(self, kind: type[LayerKind]) -> str:
        """A word or two on whether the engine stores layers of this kind: ``YES``, ``EVERY_TOKEN``, ``BY_MODEL`` or ``NO``."""
        return self.facts.unbounded.get(kind, YES) if self._has_rule(kind) else NO

    def _has_rule(self, kind: type[LayerKind]) -> bool:
        """True if it has a rule for layers of this kind."""
        return self.kinds is None or kind in self.kinds or kind.__name__ in self.kinds

    def refuse_kinds(self, layers: Stack) -> None:
        """Raise an error that names the first kind of these layers without a rule."""
        if self.kinds is None:
            return
        for group in layers.groups:
            if not self._has_rule(type(group.kind)):
                title, name = group.kind.title, group.kind.name
                raise UnsupportedError(
                    f"there is no rule for {name} layers ({title}) in {self.label}.", hint="Use: --engine reference"
                )

    def deploy(self, model: ModelSpec, setup: Setup) -> Deployment:
        """The server that is started so. Raises a :class:`~hwcalc.errors.KvplanError` subclass for what is refused whatever the load."""
        return deployed(self, model, setup)

    def open(self, model: ModelSpec, request: Request, notes: Iterable[Note] = ()) -> Occupancy:
        """The occupancy of a load, with every default filled in and checked. ``notes`` say what the caller has assumed.

        Raises a :class:`~hwcalc.errors.KvplanError` subclass.
        """
        gpu = request.setup.hardware.gpu
        if gpu is not None and gpu.is_host:
            self.requests.check_host(gpu, request.setup.options, request.setup.gpus)
        occupancy = self.unchecked(model.as_built_by(self.name), request)
        occupancy.tell(*notes)
        return occupancy.checked()

    def unchecked(self, model: ModelSpec, request: Request) -> Occupancy:
        """The occupancy that :meth:`open` returns, without the checks."""
        model, request = self.requests.prepared(model, request)
        return self.deploy(model, request.setup).at(request.load)
