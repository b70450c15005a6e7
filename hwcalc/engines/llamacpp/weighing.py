"""The tensors of a planned request by where they may lie, wherever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.llamacpp.assignment import Weighed, weigh

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppOccupancy


def weighed_of(opened: LlamacppOccupancy) -> Weighed | None:
    """The tensors by where they lie; ``None`` if they are not known. A family shares the answer."""
    found: Weighed | None = opened.shared("weighed", lambda: _weighed(opened))
    return found


def _weighed(opened: LlamacppOccupancy) -> Weighed | None:
    groups = opened.weight_groups
    if groups is None:
        return None
    from hwcalc.engines.llamacpp.tensors import loaded, loaded_groups

    mtp, given, blocks = opened.settings.load_mtp, opened.place_options.overrides, opened.hparams.n_layer_all

    def weighed() -> Weighed:
        if not given:
            return weigh(((one.first, one.blocks) for one in loaded_groups(groups, mtp=mtp)), blocks)
        from hwcalc.engines.llamacpp.overrides import with_overrides

        # The user may have named any one of them.
        tensors = with_overrides(loaded(opened.weight_tensors or (), mtp=mtp), given)
        return weigh(((one, (one.layer,)) for one in tensors), blocks)

    found: Weighed = opened.model.once(("llamacpp weighed", opened.request.weights, mtp, given), weighed)
    return found
