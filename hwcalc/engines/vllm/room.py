"""The room of one family of vLLM's requests: blocks of a pool whose size does not depend on them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from msgspec.structs import asdict

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import usable_bytes
from hwcalc.engines.families import Families, is_unmeasured
from hwcalc.engines.loaded import loaded
from hwcalc.engines.request import UNSHARED
from hwcalc.engines.room import Room
from hwcalc.engines.vllm.defaults import runs_v0
from hwcalc.engines.vllm.opened import VllmOpened, of_vllm
from hwcalc.engines.vllm.pool import starts_with, usable_blocks
from hwcalc.engines.vllm.specs import FullSpec, LatentSpec, ceil_div

__all__ = ["InRooms", "plan_room"]

_ENDS = ("low", "expected", "high")
_APART: Final = frozenset({"seq", "batch", "options"})
"""Fields of a request that are compared otherwise, or not at all."""
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "max_num_seqs": frozenset({"kinds", "dtypes", "layout", "supported", "remarks", "weights"}),
    "cpu_offload_gb": frozenset({"kinds", "dtypes", "layout", "supported", "remarks", "settings"}),
    "enforce_eager": frozenset({"kinds", "dtypes", "layout", "remarks", "settings", "weights"}),
}
"""Engine options, and the shared answers in which none of them is read, by the first word of their keys."""
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "dtype": frozenset({"kinds", "weights", "budget"}),
    "weights": frozenset({"kinds", "dtypes", "layout", "remarks", "settings"}),
    "parallel": frozenset({"kinds", "dtypes"}),
    "hardware": frozenset({"kinds"}),
}
"""The same of other fields of a request."""
_NONE: Final[frozenset[str]] = frozenset()


class InRooms(Families[Opened]):
    """The part of vLLM that is about what holds for all requests of a family."""

    def keeps_families(self, opened: Opened) -> bool:
        """In V0 the activations depend on the length of a prompt."""
        return not runs_v0(opened.version)

    def carried(self, opened: Opened, beside: Opened) -> Mapping[Hashable, Any]:
        """What advice changes alone, such as the number of sequences or the format of the cache, touches few answers."""
        one, other = asdict(opened.request), asdict(beside.request)
        fields = [name for name, value in one.items() if name not in _APART and value is not other[name] and value != other[name]]
        options = {name for name, _ in one["options"].items() ^ other["options"].items()}
        answers = [*(_FIELDS.get(name, _NONE) for name in fields), *(_OPTIONS.get(name, _NONE) for name in options)]
        carried = frozenset.intersection(*answers) if answers else _NONE
        return {key: kept for key, kept in beside.family.items() if (key[0] if isinstance(key, tuple) else key) in carried}

    def accepts_all_sizes(self, opened: Opened) -> bool:
        return not of_vllm(opened).layout.depends_on_length

    def room(self, opened: Opened) -> Room | None:
        return opened.shared("room", lambda: plan_room(of_vllm(opened)))

    def first_room(self, opened: Opened) -> Room | None:
        return opened.shared("first room", lambda: plan_room(of_vllm(opened), first=True))

    def stores_alike(self, opened: Opened) -> bool:
        request = opened.request
        return request.policy is None and request.sharing == UNSHARED and not request.lengths

    def divides_evenly(self, opened: Opened) -> bool:
        """Layers that are all alike and keep every token have blocks of as many tokens in every layout, and pages of whole heads.

        A block that holds a recurrent state too has more tokens on one rank than on two. Ranks that leave weights on the host each leave
        as many there.
        """
        planned = of_vllm(opened)
        whole = opened.request.gpus == 1 and "cpu_offload_gb" not in opened.request.options
        if not whole or planned.settings.override is not None or planned.settings.speculation is not None:
            return False
        specs = set(planned.layout.declared)
        return len(specs) == 1 and type(specs.pop()) in (FullSpec, LatentSpec)

    def most_served(self, opened: Opened, budget_bytes: int) -> int | None:
        planned = of_vllm(opened)
        if opened.request.policy is not None or planned.together.grouped or not any(planned.layout.stage_bytes):
            return None
        if not starts_with(planned.layout, planned.settings, budget_bytes, opened.tokens):
            return 0
        layout, usable = planned.layout, usable_blocks(planned.layout, planned.settings, budget_bytes)
        return layout.schedulers * (usable // layout.schedulers // planned.blocks) * opened.request.parallel.dp


def plan_room(opened: VllmOpened, *, first: bool = False) -> Room | None:
    """``None`` where the layout or the batch follows from the length, where requests are unlike, or where the budget is unknown.

    The ``first`` room is that of sequences of one token.
    """
    request, settings = opened.request, opened.settings
    if request.policy is not None or request.sharing != UNSHARED or request.lengths or settings.rules.engine == "V0":
        return None
    # A batch has no more tokens than all requests together, which are few only where they are very short.
    least = 1 if settings.full_batch is None else ceil_div(settings.full_batch, settings.sequences)
    long = of_vllm(opened.sized(seq=1 if first else max(least, opened.tokens)))
    layout = long.layout
    if layout.depends_on_length:
        return None
    # Where nothing but sizes follows from the budget, it waits until the weights alone do not answer.
    waits = (
        request.hardware.kv_memory is None and settings.override is None and request.lora is None and is_unmeasured(opened.family)
    )
    most_bytes, sizes = (_most_bytes(long), None) if waits else (None, _sizes(long))
    if most_bytes is None and sizes is None:
        return None

    def given() -> dict[str, int]:
        found = sizes or _sizes(long)
        # What the weights leave is known only where a budget is.
        assert found is not None
        return found

    return Room(
        counts=layout.counts,
        block_bytes=max(layout.stage_bytes, default=0),
        given=given,
        blocks_in=lambda size: usable_blocks(layout, long.settings, size) // layout.schedulers,
        most_bytes=most_bytes,
        least_tokens=1 if first else least,
        most_requests=settings.sequences * request.parallel.dp,
        dp=request.parallel.dp,
        schedulers=layout.schedulers,
    )


def _sizes(opened: VllmOpened) -> dict[str, int] | None:
    """Bytes of each GPU for the cache by the end of the budget; ``None`` if they are unknown."""
    hardware = opened.request.hardware
    if hardware.kv_memory is not None:
        return dict.fromkeys(_ENDS, hardware.kv_memory)
    budget = None if hardware.gpu is None else opened.budget
    return None if budget is None else {end: getattr(budget, end) for end in _ENDS}


def _most_bytes(opened: VllmOpened) -> dict[str, int] | None:
    """What the weights alone leave of each GPU, by the end of the budget; ``None`` if that is unknown."""
    found = loaded(opened).value
    if found is None:
        return None
    from hwcalc.engines.vllm.memory import share_of

    usable = usable_bytes(found.memory, share_of(opened), opened.request.hardware.margin or 0)
    # As in the budget, the low end is what the high end of each part leaves.
    weights = (sum(getattr(part, end) for part in found.weights) for end in reversed(_ENDS))
    return {end: size - taken for end, size, taken in zip(_ENDS, usable, weights, strict=True)}
