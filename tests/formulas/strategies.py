"""Hypothesis strategies for layer kinds: any registered kind with any dimensions it allows."""

from __future__ import annotations

import types
import typing
from typing import Any, Final

from hypothesis import strategies as st

from hwcalc.formulas import KINDS, AttentionKind, FullAttention, LayerKind

__all__ = ["LARGEST", "attention", "dimensions", "kinds"]

LARGEST: Final = 300
"""Laws do not depend on size; small numbers fail in ways that can be read."""


def dimensions(minimum: int = 1) -> st.SearchStrategy[int]:
    """A width or a count."""
    return st.integers(minimum, LARGEST)


def _field(kind: type[LayerKind], name: str, hint: Any) -> st.SearchStrategy[Any]:
    if hint is bool:
        return st.booleans()
    least = 0 if name == "kept" or name in kind._may_be_0 else 1
    if hint is int:
        return dimensions(least)
    assert isinstance(hint, types.UnionType)
    return st.none() | dimensions(least)


def of(kind: type[LayerKind], **fixed: Any) -> st.SearchStrategy[LayerKind]:
    """One kind with any dimensions but the ``fixed`` ones."""
    hints = typing.get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if name not in fixed]
    return st.builds(kind, **{name: _field(kind, name, hints[name]) for name in names}, **fixed)


def kinds(*, without: tuple[type[LayerKind], ...] = ()) -> st.SearchStrategy[LayerKind]:
    """Any registered kind but those of ``without``."""
    return st.sampled_from([kind for kind in KINDS.values() if kind not in without]).flatmap(of)


def attention(kind: type[AttentionKind] = FullAttention) -> st.SearchStrategy[Any]:
    """One softmax attention with any dimensions, of which no policy has cut anything."""
    return of(kind, kept=st.none())
