"""For which kinds of layers an engine has a rule. One without a rule is refused here, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.request import UNSHARED
from hwcalc.errors import UnsupportedError

if TYPE_CHECKING:
    from hwcalc.formulas import LayerKind, Stack

__all__ = ["BY_MODEL", "EVERY_TOKEN", "NO", "YES", "Kinds", "check_kinds"]

YES: Final = "yes"
NO: Final = "no"
EVERY_TOKEN: Final = "every token"
BY_MODEL: Final = "by model"


class Kinds:
    """The part of an engine that is about the kinds of layers."""

    label: ClassVar[str]
    kinds: ClassVar[frozenset[type[LayerKind]] | frozenset[str] | None]
    """Those that it has a rule for, as classes or by their names; every other one is refused. ``None``: all, by the formulas alone."""
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({})
    """Kinds with a window whose other tokens it keeps too: ``EVERY_TOKEN``, or ``BY_MODEL`` where some of its classes do."""

    def stores(self, kind: type[LayerKind]) -> str:
        """Whether the engine stores layers of this kind, in a word or two: ``YES``, ``EVERY_TOKEN``, ``BY_MODEL`` or ``NO``."""
        return self.unbounded.get(kind, YES) if self.has_rule(kind) else NO

    def has_rule(self, kind: type[LayerKind]) -> bool:
        """Whether it has a rule for layers of this kind."""
        return self.kinds is None or kind in self.kinds or kind.__name__ in self.kinds

    def check_class(self, opened: Any) -> None:
        """Raise an error if the engine has no class for the model. This is asked before its kinds of layers."""

    def refuse_kinds(self, layers: Stack) -> None:
        """Raise an error that names the first kind of these layers without a rule."""
        if self.kinds is None:
            return
        for group in layers.groups:
            if not self.has_rule(type(group.kind)):
                title, name = group.kind.title, group.kind.name
                raise UnsupportedError(
                    f"there is no rule for {name} layers ({title}) in {self.label}.", hint="Use: --engine reference"
                )


def check_kinds(opened: Any) -> None:
    """Raise an error for a model without a class, and for a layer of the model, or of its draft, without a rule."""
    engine, request = opened.engine, opened.request
    engine.check_class(opened)
    engine.refuse_kinds(opened.plain_stack)
    for draft in (request.draft, request.option_draft):
        if draft is not None:
            alone = replace(request, draft=None, option_draft=None, options={}, policy=None, sharing=UNSHARED)
            engine.refuse_kinds(engine.unchecked(draft.as_built_by(engine.name), alone).plain_stack)
