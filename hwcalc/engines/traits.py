"""What holds of an engine whatever model it runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hwcalc.engines.options import Choices, EngineOption
from hwcalc.model import Definition

__all__ = ["Traits"]


class Traits:
    """The facts of an engine."""

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
