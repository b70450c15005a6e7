"""Families of requests from one plan to the next: what does not depend on length and batch is worked out once.

Requests about one model that differ only in length and batch share the answers of :meth:`~hwcalc.engines.request.Family.shared`. Within one
plan the solvers ask for hundreds of them; whoever plans many lengths asks for the next one in another plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from hwcalc.profiles.calibration import calibration_exists, overheads_kind

if TYPE_CHECKING:
    from hwcalc.engines.request import Request
    from hwcalc.model import ModelSpec

__all__ = ["MOST_FAMILIES", "is_kept", "kept_family"]

MOST_FAMILIES: Final = 4096
"""So many families are kept, of all models together; a new one takes the place of the oldest."""
_KEY: Final = "families"
_ACCELERATOR: Final = "accelerator"


class _OfModel(dict[Hashable, dict[Hashable, Any]]):
    """The families of one model, which go with it. A copy of the model begins anew."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[_OfModel], tuple[()]]:
        return _OfModel, ()


_order: Final[deque[tuple[ref[_OfModel], Hashable]]] = deque()
"""The families, oldest first."""


def kept_family(engine: str, model: ModelSpec, request: Request) -> dict[Hashable, Any]:
    """The answers that this request shares with those that differ only in length and batch, of earlier plans too.

    Requests with a policy or a draft share none with other plans: each brings a policy or a draft of its own. Nor do those on an accelerator
    that was measured, since a measurement may be replaced at any time.
    """
    key = _key(engine, request)
    if key is None:
        return {}
    own: _OfModel = model.once(_KEY, _OfModel)
    found = own.get(key)
    if found is None:
        # The key has the address of the accelerator, which must stay taken for as long.
        found = own.setdefault(key, {_ACCELERATOR: request.hardware.gpu})
        _order.append((ref(own), key))
        if len(_order) > MOST_FAMILIES:
            _drop_oldest()
    return found


def is_kept(family: dict[Hashable, Any]) -> bool:
    """Whether later plans of the family find these answers."""
    return _ACCELERATOR in family


def _key(engine: str, request: Request) -> Hashable | None:
    """All of a request but length and batch; ``None`` if that is not the same from plan to plan."""
    if request.policy is not None or request.draft is not None or request.option_draft is not None:
        return None
    hardware = request.hardware
    gpu = hardware.gpu
    if gpu is not None and calibration_exists(gpu.id, overheads_kind(engine)):
        return None
    parallel, sharing = request.parallel, request.sharing
    return (
        engine,
        request.engine_version,
        request.dtype,
        request.weights,
        *parallel.__dict__.values(),
        id(gpu),
        hardware.memory_utilization,
        hardware.kv_memory,
        hardware.margin,
        hardware.calibrated,
        tuple(request.options.items()),
        request.encoder_seq,
        request.lora,
        request.prompt,
        *sharing.__dict__.values(),
        request.lengths,
    )


def _drop_oldest() -> None:
    try:
        owner, key = _order.popleft()
    except IndexError:
        return
    own = owner()
    if own is not None:
        own.pop(key, None)
