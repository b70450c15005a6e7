"""The base of every layer kind, and the registry that an engine's rules are checked against."""

from __future__ import annotations

from typing import ClassVar, Self, TypeVar

from hwcalc.formulas.frozen import fields, frozen, replace
from hwcalc.formulas.tensor import CacheTensor

__all__ = ["KINDS", "MAX_DIMENSION", "LayerKind", "register"]

MAX_DIMENSION = 2**31 - 1
"""No real dimension comes near this; a larger one is a damaged config, not a model."""


@frozen
class LayerKind:
    """One thing that a layer keeps between decode steps.

    A kind is frozen, its fields are the model's own numbers under the field's own names, and :meth:`tensors` is the
    whole formula. Fields are integers; an optional one may be ``None``.
    """

    name: ClassVar[str]
    """Stable identifier, as it stands in JSON."""
    title: ClassVar[str]
    """What people call it."""
    keeps: ClassVar[str]
    """What it keeps, as one sentence, with the names of fields in braces where a number belongs."""
    source: ClassVar[str]
    """The paper or the file that defines what is kept."""
    _minimum: ClassVar[dict[str, int]] = {}
    """Smallest allowed value of a field where it is not 1."""
    _divided: ClassVar[tuple[str, ...]] = ()
    """Fields that tensor parallelism divides; what is not named is the same on every rank."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or isinstance(value, bool):
                continue
            least = self._minimum.get(field.name, 1)
            if not isinstance(value, int) or not least <= value <= MAX_DIMENSION:
                raise ValueError(f"{field.name} must be an integer from {least} to {MAX_DIMENSION} (got {value!r})")

    def tensors(self) -> tuple[CacheTensor, ...]:
        """What is kept, tensor by tensor, for one sequence."""
        raise NotImplementedError

    def shard(self, ranks: int) -> Self:
        """The layer as the fullest of ``ranks`` tensor-parallel ranks has it.

        Heads and channels are divided, and what does not divide is rounded up: a key/value head is never cut, so that with more
        ranks than heads each rank has a copy of one. A latent is shared by all heads and is whole on every rank.

        >>> from hwcalc.formulas.attention import FullAttention
        >>> kind = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)
        >>> [kind.shard(ranks).num_key_value_heads for ranks in (1, 2, 3, 8, 16)]
        [8, 4, 3, 1, 1]

        Source: Shoeybi et al. 2019, arXiv:1909.08053 (heads divided); Pope et al. 2022, arXiv:2211.05102 (heads repeated).
        """
        if ranks == 1 or not self._divided:
            return self
        return replace(self, **{name: -(-getattr(self, name) // ranks) for name in self._divided})

    def dims(self) -> dict[str, int]:
        """The numbers of this kind, as they stand in JSON; unset ones are left out."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


KINDS: dict[str, type[LayerKind]] = {}
"""Every kind by name. An engine must have a rule for each of these or refuse the model by name."""

K = TypeVar("K", bound=type[LayerKind])


def register(kind: K) -> K:
    """Class decorator: make a kind known under its ``name``."""
    if kind.name in KINDS:
        raise ValueError(f"two layer kinds are named {kind.name!r}")
    KINDS[kind.name] = kind
    return kind
