"""The dtype that a cache has where the user names none: the one in which the model computes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hwcalc.engines.noted import Noted
from hwcalc.engines.options import AUTO
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.model import ModelSpec, Note
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.formulas import DType

_DEFAULT_MODEL_DTYPE = "bf16"


def known_dtype(name: str) -> DType:
    """The format of this name. Raises :class:`KeyError` if there is none, which is a mistake in this program."""
    dtype = find_dtype(name)
    if dtype is None:
        raise KeyError(name)
    return dtype


def model_dtype(model: ModelSpec, requested: str | None = None) -> Noted[DType]:
    """The dtype that the config names, or bf16 if it names none. A note says which. ``requested`` is ``auto`` or nothing."""
    return _named(model.dtype, requested)


@lru_cache(maxsize=64)
def _named(own: str | None, requested: str | None) -> Noted[DType]:
    if own is None:
        name, why = _DEFAULT_MODEL_DTYPE, "assumed, since the config names none that a cache has"
    else:
        name, why = own, "the model's own"
    said = f"KV dtype {name}: {why}" if requested is None else f"KV dtype {AUTO}: {name}, {why}"
    return Noted(known_dtype(name), (Note(code="default-dtype", message=f"{said}. Set it with --dtype."),))


def plain_format(model: ModelSpec, weight_dtype: str | None = None) -> WeightFormat:
    """The format of weights that are not quantised: ``weight_dtype``, or else the dtype of the model, or else bf16."""
    return FLOATS.get(weight_dtype or model.dtype or "", BF16)
