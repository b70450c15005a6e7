"""What holds of an engine whatever model it runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hwcalc.engines.options import Choices, EngineOption
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.model import Definition
from hwcalc.text import brief, shown

__all__ = ["Traits"]


class Traits:
    """The facts of an engine, and what is asked about them."""

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
    cache_is: ClassVar[str]
    """What its bytes of cache are, in a few words that stand beside those of other engines."""
    pool_is: ClassVar[str] = ""
    """What its log calls the tokens of its pool; empty without a pool."""

    pooled: ClassVar[bool] = False
    """Whether the engine allocates a pool when it starts, from which sequences take blocks."""

    groups_share: ClassVar[bool] = True
    """Whether groups of layers take blocks from one pool, each as wide as the widest group's; otherwise each has a pool of its own."""

    counts_copies: ClassVar[bool] = False
    """Whether the stored bytes count what several tensor-parallel ranks each keep, such as a latent, once for each of them."""

    stores_prompts_apart: ClassVar[bool] = False
    """Whether the cache of a prompt is another than that of as many generated tokens."""

    assumed_gpu: ClassVar[str | None] = None
    """The accelerator whose rules apply if the user names none."""

    weight_choices: ClassVar[tuple[str | None, ...]] = ()
    """The formats among which ``--weights auto`` chooses, the better one first; ``None`` is as published. Empty: those of GGUF files."""

    choices: ClassVar[Choices | None] = None
    """What the page of ``kvplan explore`` offers of this engine, by its :meth:`form`; an engine without a form has none."""

    drafts_in_cache: ClassVar[bool] = False
    """Whether the layers of a draft share the pool of the model's, so that ``--draft`` changes the cache itself."""

    sums_in_32_bits: ClassVar[bool] = False
    """Whether its kernels add up the products of 16-bit numbers in 32 bits. Where that is not known, the higher rate is a bound all the same."""

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
        return self.resolve_version(requested)

    def resolve_version(self, requested: str) -> str:
        """As :meth:`version`, for an engine with versions.

        By default a known release, its line (``0.5`` for 0.5.23), and what was made of it (``1.4.1`` and ``3.3.6-dev0`` for 1.4 and 3.3.6).
        """
        asked = requested.removeprefix("v")
        for known in self.versions:
            if asked == known or ("." in asked and known.startswith(f"{asked}.")) or asked.startswith((f"{known}.", f"{known}-")):
                return known
        raise UnknownNameError(
            f"--engine {self.name}@{brief(requested, 20)}: no rules for that version.",
            option="engine",
            hint=f"Known: {', '.join(self.versions)}.",
        )

    def check_options(self, options: Mapping[str, str]) -> dict[str, object]:
        """Parse the engine options. Raises :class:`~hwcalc.errors.UsageError` for an unknown name or a wrong value."""
        parsed: dict[str, object] = {}
        for name, value in options.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"engine option {shown(name, 40)} is not known to {self.name}.", hint=f"Known: {known}.")
            parsed[name] = option.check(name, value)
        return parsed
