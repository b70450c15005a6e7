"""The tensors of a planned model. They are computed once for each model and format, or come from the index of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.llamacpp.tensors import in_file_order
from hwcalc.quantization.ggml import whole_name

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.model import ModelSpec


def groups_key(name: str | None) -> tuple[str, str | None]:
    """The key under which a model keeps the result of :func:`weight_groups`."""
    return "llama.cpp groups of tensors", name


def weight_groups(model: ModelSpec, name: str | None = None) -> tuple[WeightGroup, ...] | None:
    """The tensors of :func:`model_tensors` in groups that differ in their layer alone, in no order.

    It is ``None`` if they are not known.
    """

    def make() -> tuple[WeightGroup, ...] | None:
        from hwcalc.engines.llamacpp.weights import groups_of

        return groups_of(model, name)

    return model.once(groups_key(name), make)


def model_tensors(model: ModelSpec, name: str | None = None) -> tuple[WeightTensor, ...] | None:
    """The tensors of a model in the format ``name``; ``None`` is the file as it is, or as the converter makes it.

    The copy of a tied table is listed as the output. ``None`` if the tensors are not known.
    """
    return model.once(("llama.cpp tensors", name), lambda: _model_tensors(model, name))


def _model_tensors(model: ModelSpec, name: str | None) -> tuple[WeightTensor, ...] | None:
    groups = weight_groups(model, name)
    if groups is None:
        return None
    return tuple(
        group.first if number < 0 else replace(group.first, name=whole_name(group.stem, number), layer=number)
        for number, group in in_file_order(groups)
    )
