"""Families of requests from one plan to the next: what does not depend on length and batch is worked out once.

Requests about one model that differ only in length and batch share the answers of :meth:`~hwcalc.engines.request.Family.shared`. Within one
plan the solvers ask for hundreds of them; whoever plans many lengths asks for the next one in another plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.request import Request
    from hwcalc.engines.room import Room
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.gpus import Gpu

__all__ = [
    "MOST_FAMILIES",
    "Families",
    "is_unmeasured",
    "kept",
    "kept_family",
    "remember",
    "remembered",
    "resized",
    "tried",
    "tried_at",
]

T = TypeVar("T")
OpenedT = TypeVar("OpenedT")

MOST_FAMILIES: Final = 256
"""So many families of a model are kept; a new one takes the place of the oldest."""
_KEY: Final = "families"
_ACCELERATOR: Final = "accelerator"
_TRIED: Final = "tried"
_REMEMBERED: Final = "remembered"
_SIZES: Final = frozenset({"seq", "batch"})
_BROUGHT: Final = frozenset({"policy", "draft", "option_draft"})
"""What a request brings of its own: with one of these it has no key."""
_PARTS: Final = frozenset({"parallel", "hardware", "sharing"})


class Families(Generic[OpenedT]):
    """The part of an engine that is about what holds for all requests of a family. By default it promises nothing."""

    def keeps_families(self, opened: OpenedT) -> bool:
        """Whether later plans of a family may take the answers of earlier ones: no shared answer follows from length or batch."""
        return False

    def carried(self, opened: OpenedT, beside: OpenedT) -> Mapping[Hashable, Any]:
        """The shared answers of another request of the same model that hold for this one too."""
        return {}

    def accepts_all_sizes(self, opened: OpenedT) -> bool:
        """Whether the engine accepts each change of a request in a kept family at every length and number of sequences, or at none."""
        return False

    def stores_alike(self, opened: OpenedT) -> bool:
        """Whether each stored tensor is so many times that of one sequence by itself, as many as are planned."""
        return False

    def room(self, opened: OpenedT) -> Room | None:
        """What decides whether requests of the family fit, from some length on; ``None`` if that is not a number of blocks alone.

        Then a longer sequence takes no less, at any length.
        """
        return None

    def first_room(self, opened: OpenedT) -> Room | None:
        """The same for sequences of one token; it says nothing of longer ones."""
        return None

    def divides_evenly(self, opened: OpenedT) -> bool:
        """Whether no layout of n GPUs keeps less than an n-th of what this one GPU keeps on the fullest of them, cache and weights alike."""
        return False

    def most_served(self, opened: OpenedT, budget_bytes: int) -> int | None:
        """The most requests of the planned length in the pool that the engine makes, 0 if it does not start; ``None`` without a direct answer."""
        return None

    def curve(self, opened: OpenedT) -> Curve | None:
        """The cache at all lengths and numbers of sequences of a family, in the normal form, with a GPU or without; ``None`` if there is none."""
        return None

    def form(self, opened: OpenedT) -> MemoryForm | None:
        """The memory of a GPU at every length and for every number of sequences, in the normal form; ``None`` if there is none.

        It holds for the family of ``opened``: what follows from length and batch is not looked at. There is none without a GPU, or where
        the budget is unknown.
        """
        return None


class _OfModel(dict[Hashable, Any]):
    """What is kept of one model, which goes with it. A copy of the model begins anew."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[_OfModel], tuple[()]]:
        return _OfModel, ()


def kept_family(
    engine: str,
    model: ModelSpec,
    request: Request,
    beside: Mapping[Hashable, Any],
    carried: Callable[[], Mapping[Hashable, Any]] = dict,
) -> dict[Hashable, Any]:
    """The answers that this request shares with those that differ only in length and batch, of earlier plans too.

    ``beside`` is the family of a request of the same plan, whose accelerator is known to be without measurements; empty for the first one.
    A new family begins with the answers that are ``carried`` over from it.
    Requests with a policy or a draft share none with other plans: each brings a policy or a draft of its own. Nor do those on an accelerator
    that was measured, since a measurement may be replaced at any time.
    """
    key = _key(engine, request, beside)
    if key is None:
        return {}
    # The key has the address of the accelerator, which must stay taken for as long.
    return kept(model, _KEY, key, lambda: {_ACCELERATOR: request.hardware.gpu, **carried()})


def kept(model: ModelSpec, name: str, key: Hashable, make: Callable[[], T]) -> T:
    """As :meth:`ModelSpec.once`, but of all keys under a ``name`` only the last :data:`MOST_FAMILIES` are kept."""
    return _bounded(model.once(name, _OfModel), key, make)


def _bounded(own: dict[Hashable, Any], key: Hashable, make: Callable[[], T]) -> T:
    found: T | None = own.get(key)
    if found is None:
        if len(own) >= MOST_FAMILIES:
            # Another thread may have taken it away, or added one.
            with suppress(KeyError, RuntimeError, StopIteration):
                del own[next(iter(own))]
        found = own.setdefault(key, make())
    return found


def is_unmeasured(family: Mapping[Hashable, Any]) -> bool:
    """Whether the accelerator of a family has no measurements of the user, as far as its plan has looked already."""
    return _ACCELERATOR in family


def _was_measured(gpu: Gpu, engine: str) -> bool:
    from hwcalc.profiles.calibration import calibration_exists, overheads_kind

    return calibration_exists(gpu.id, overheads_kind(engine))


def _key(engine: str, request: Request, beside: Mapping[Hashable, Any]) -> Hashable | None:
    """All of a request but length and batch; ``None`` if that is not the same from plan to plan."""
    if any(getattr(request, name) is not None for name in _BROUGHT):
        return None
    hardware = request.hardware
    gpu = hardware.gpu
    if gpu is not None and beside.get(_ACCELERATOR) is not gpu and _was_measured(gpu, engine):
        return None
    return (engine, *_values(request, _SIZES | _BROUGHT))


def _values(record: Record, left_out: frozenset[str] = frozenset()) -> Iterator[Hashable]:
    """All fields of a record, and those of its parts, so that a field that is added is in the key. An accelerator counts by its address."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in left_out:
            continue
        if name in _PARTS:
            yield from _values(value)
        elif name == "gpu":
            yield id(value)
        else:
            yield tuple(value.items()) if isinstance(value, Mapping) else value


def tried(opened: OpenedT, **change: Any) -> OpenedT | None:
    """As :meth:`Opened.changed`, but ``None`` if the engine refuses it. The family keeps what is accepted or refused at every size."""
    found, sizes = tried_at(opened, change)
    if found is None or sizes is None:
        return found
    alike: Any = found
    sized: OpenedT = alike.sized(seq=sizes[0], batch=sizes[1])
    return sized


def tried_at(opened: OpenedT, change: Mapping[str, Any]) -> tuple[OpenedT | None, tuple[int, int] | None]:
    """The same, with a request of any size in place of the changed one, and the length and batch to take of it, where the family keeps it."""
    asked: Any = opened
    gpu = change.get("gpu")
    measured = gpu is not None and _was_measured(gpu, asked.engine.name)
    if measured or not (_ACCELERATOR in asked.family and asked.engine.accepts_all_sizes(asked)):
        return _tried(opened, change), None
    request = asked.request
    sizes = change.get("seq", request.seq), change.get("batch", request.batch)
    alike = {name: value for name, value in change.items() if name not in _SIZES}
    # The change is kept beside its key, which has the address of an accelerator.
    found: OpenedT | None
    _, found = _bounded(asked.shared(_TRIED, dict), _key_of(alike), lambda: (alike, _tried(opened, alike)))
    return found, sizes


def remembered(opened: OpenedT) -> dict[Hashable, Any] | None:
    """What a caller keeps with the family by keys of its own, the same at every length and number of sequences; ``None`` if nothing is."""
    asked: Any = opened
    kept: dict[Hashable, Any] = asked.shared(_REMEMBERED, dict)
    return kept if _ACCELERATOR in asked.family and asked.engine.accepts_all_sizes(asked) else None


def remember(kept: dict[Hashable, Any], key: Hashable, value: T) -> T:
    """Add to what is :func:`remembered`, of which a family keeps the last :data:`MOST_FAMILIES`."""
    return _bounded(kept, key, lambda: value)


def resized(opened: OpenedT, **sizes: int) -> OpenedT:
    """As :meth:`Opened.changed` for another length or batch, without a check where the engine accepts all of them."""
    asked: Any = opened
    free = _ACCELERATOR in asked.family and asked.engine.accepts_all_sizes(asked)
    other: OpenedT = asked.sized(**sizes) if free else asked.changed(**sizes)
    return other


def _tried(opened: OpenedT, change: Mapping[str, Any]) -> OpenedT | None:
    asked: Any = opened
    with suppress(KvplanError):
        changed: OpenedT = asked.changed(**change)
        return changed
    return None


def _key_of(change: Mapping[str, Any]) -> tuple[object, ...]:
    """A key for the values of a change. An accelerator counts by its address, a mapping by what is in it."""
    values = [
        id(value) if name == "gpu" else tuple(value.items()) if name == "options" else value for name, value in change.items()
    ]
    return (*change, *values)
