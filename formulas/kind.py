"""The base class of all layer kinds, the registry of kinds, and the two kinds that keep nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Final, Self, TypeVar

from msgspec.structs import asdict, replace

from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import CacheTensor, Full, Kept, Role, Span

MAX_DIMENSION = 2**31 - 1
"""No real dimension comes near this number. A larger one means that the config is damaged."""
MOST_KEPT: Final = 2**41
"""Tokens: more than a sequence may have, so that one more can be counted."""

BY_TOKEN: Final = frozenset({Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE})
"""Roles of tensors that have a position for each token, of which a cache policy can drop some."""


class LayerKind(Record, cache_hash=True, repr_omit_defaults=True):
    """One thing that a layer keeps between decode steps.

    A kind is frozen. Its fields are numbers of the model under their usual names, and :meth:`tensors` is the whole
    formula. Fields are integers; an optional field may be ``None``.
    """

    name: ClassVar[str]
    """Stable identifier, used in JSON."""
    title: ClassVar[str]
    """What people call it."""
    keeps: ClassVar[str]
    """The first paragraph of the docstring, which says what is kept. A field name in braces stands for its number."""
    source: ClassVar[str]
    """The paper or the file that defines what is kept."""
    _may_be_0: ClassVar[tuple[str, ...]] = ()
    """Fields whose smallest value is 0; that of all others is 1."""
    _divided: ClassVar[tuple[str, ...]] = ()
    """Fields that tensor parallelism divides. All other fields are the same on every rank."""

    kept: int | None = None
    """Tokens that a cache policy leaves of each sequence, where the layer would keep them all; ``None`` without a policy."""

    def __init_subclass__(cls) -> None:
        if "tensors" in cls.__dict__:
            cls.tensors = _kept(cls.__dict__["tensors"])  # type: ignore[method-assign, assignment]

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is None or isinstance(value, bool):
                continue
            # A policy may leave nothing of a layer.
            least, most = (0, MOST_KEPT) if name == "kept" else (0 if name in self._may_be_0 else 1, MAX_DIMENSION)
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} must be an integer from {least} to {most} (got {value!r})")

    def tensors(self) -> tuple[CacheTensor, ...]:
        """The tensors that are kept for one sequence."""
        raise NotImplementedError

    def size(self, axis: str) -> int:
        """The length of an axis that is written as a sum of products of fields: ``num_heads x head_dim + 2 x d_state``."""
        return sum(times * prod([getattr(self, name) for name in names]) for times, names in _terms(axis))

    def tensor(self, name: str, *axes: str, role: Role, span: Span) -> CacheTensor:
        """A tensor whose shape follows from how its axes are written."""
        return CacheTensor(name=name, shape=tuple(map(self.size, axes)), axes=axes, role=role, span=span)

    def shard(self, ranks: int) -> Self:
        """The part of the layer on the fullest of ``ranks`` tensor-parallel ranks.

        Heads and channels are divided and rounded up. A key/value head is never cut: if there are more ranks than heads, each
        rank has a copy of one head. A latent is shared by all heads, so every rank has all of it.

        >>> from hwcalc.formulas.attention import FullAttention
        >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
        >>> [kind.shard(ranks).num_key_value_heads for ranks in (1, 2, 3, 8, 16)]
        [8, 4, 3, 1, 1]

        Source: Shoeybi et al. 2019, arXiv:1909.08053 (heads divided); Pope et al. 2022, arXiv:2211.05102 (heads repeated).
        """
        if ranks == 1 or not self._divided:
            return self
        return replace(self, **{name: -(-getattr(self, name) // ranks) for name in self._divided})

    @property
    def acts_by_token(self) -> bool:
        """True if a cache policy can act on it: it keeps keys and values, or latents, of every token."""
        whole = replace(self, kept=None) if self.kept is not None else self
        return any(tensor.role in BY_TOKEN and isinstance(tensor.span, Full) for tensor in whole.tensors())

    def numbers(self) -> dict[str, Any]:
        """The numbers of the model by name, those too that are ``None``."""
        return {name: value for name, value in asdict(self).items() if name != "kept"}

    def dims(self) -> dict[str, int]:
        """The numbers of this kind for JSON, without the fields that are ``None``."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@lru_cache(maxsize=256)
def _terms(axis: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The products of a sum, each with its number and its fields."""
    products = [term.split(" x ") for term in axis.split(" + ")]
    return tuple(
        (prod(int(word) for word in words if word.isdecimal()), tuple(word for word in words if not word.isdecimal()))
        for words in products
    )


def _kept(formula: Callable[[Any], tuple[CacheTensor, ...]]) -> Callable[[Any], tuple[CacheTensor, ...]]:
    """The formula of a kind, with the tokens that a policy leaves in place of all tokens. Kinds that are equal share the answer."""

    @lru_cache(maxsize=1024)
    def tensors(kind: LayerKind) -> tuple[CacheTensor, ...]:
        if kind.kept is None:
            return formula(kind)
        span = Kept(kind.kept)
        return tuple(
            replace(tensor, span=span) if tensor.role in BY_TOKEN and isinstance(tensor.span, Full) else tensor
            for tensor in formula(kind)
        )

    tensors.__doc__ = formula.__doc__
    return tensors


KINDS: dict[str, type[LayerKind]] = {}
"""All kinds by name. If an engine has no rule for one of them, it refuses the model and names the kind."""

K = TypeVar("K", bound=type[LayerKind])


def register(kind: K) -> K:
    """Class decorator that adds a kind to the registry. Raises ``ValueError`` if its ``name`` is taken."""
    if kind.name in KINDS:
        raise ValueError(f"two layer kinds are named {kind.name!r}")
    sentence, _, _ = (kind.__doc__ or "").partition("\n\n")
    kind.keeps = re.sub(r"``(\w+)``", r"{\1}", " ".join(sentence.split()))
    KINDS[kind.name] = kind
    return kind


@register
class SharedCache(LayerKind):
    """A layer that reads the cache of another layer: 0 bytes.

    >>> SharedCache().tensors()
    ()

    Sources: Brandon et al. 2024, arXiv:2405.12981 (cross-layer attention); Gemma 3n ``num_kv_shared_layers``.
    """

    name = "shared_cache"
    title = "shares another layer's cache"
    source = "Brandon et al. 2024, arXiv:2405.12981"

    def tensors(self) -> tuple[CacheTensor, ...]:
        return ()


@register
class NoCache(LayerKind):
    """A layer without attention or state (a feed-forward or expert block on its own): 0 bytes.

    >>> NoCache().tensors()
    ()
    """

    name = "no_cache"
    title = "no cache"
    source = "by definition"

    def tensors(self) -> tuple[CacheTensor, ...]:
        return ()
