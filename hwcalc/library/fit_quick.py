"""Models of the catalog on one GPU with the default settings of llama.cpp: the figures of their plans, from the index alone."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.one_gpu import Context, Room, Sizes
from hwcalc.engines.llamacpp.settings import dtypes_asked
from hwcalc.engines.setup import Parallel
from hwcalc.library.indexing import context_at, formats_at, layers_at, shares_at, stack_at, step_at
from hwcalc.planner.speed import known_bandwidth
from hwcalc.planner.speed_work import Use, decode_of
from hwcalc.planner.values import is_auto
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.profiles.model_index import ENGINE
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.stored import Dtypes
    from hwcalc.planner.fitting import Hosting
    from hwcalc.profiles.model_index import IndexedModel

_USUAL: Final = frozenset({"seq", "batch", "dtype", "weights", "engine", "gpu", "gpus", "margin", "memory_utilization"})
"""Options that leave a context as the index has it, with one sequence, one GPU and the default format of the cache."""
_SIXTEEN: Final = (None, "auto", "f16", "fp16")


class Whole(NamedTuple):
    """A model that surely fits as a whole, in the format that is planned."""

    weights: str
    weights_bytes: int
    cache_bytes: int
    needed_bytes: int
    host_bytes: int


class Quick:
    """The hardware and the length that were asked for, and which models of the index fit there."""

    def __init__(self, host: Hosting, room: Room, dtypes: Dtypes, named: str | None) -> None:
        self._host = host
        self._room = room
        self._dtypes = dtypes
        self._named = named
        self._speeds: dict[tuple[int, str, int], tuple[float | None, str | None]] = {}
        self._whole: dict[tuple[object, int], Whole | None] = {}
        self._contexts: dict[tuple[object, int], Context] = {}

    @property
    def kv_dtype(self) -> str:
        """The format of the cache."""
        return self._dtypes.kv

    @property
    def usable_bytes(self) -> int:
        """Bytes of the GPU that may be used, by the expected value."""
        return self._room.rooms["expected"] or 0

    def knows(self, row: IndexedModel, tokens: int) -> bool:
        """Whether the index has what is asked for."""
        if row.shape is None or self._room.rooms["low"] is None:
            return False
        return self._named is None or self._named in formats_at(row.shape).names

    def whole(self, row: IndexedModel, tokens: int) -> Whole | None:
        """The model in the largest format that surely fits as a whole; ``None`` if none does."""
        assert row.shape is not None
        key = ((row.shape, *(row.placed or ())), tokens)
        if key not in self._whole:
            self._whole[key] = self._fitting(row, tokens)
        return self._whole[key]

    def _fitting(self, row: IndexedModel, tokens: int) -> Whole | None:
        assert row.shape is not None
        context, formats, room = self._context(row, tokens), formats_at(row.shape), self._room
        if self._named is None:
            place = room.largest(formats.gpu, formats.host, context)
        else:
            place = formats.names.index(self._named) if room.surely_holds(formats.sizes(self._named), context) else None
        if place is None:
            return None
        sizes = Sizes(formats.gpu[place], formats.host[place])
        return Whole(
            weights=formats.names[place],
            weights_bytes=sizes.gpu,
            cache_bytes=context.cache,
            needed_bytes=room.needed(sizes, context),
            host_bytes=sizes.host,
        )

    def _context(self, row: IndexedModel, tokens: int) -> Context:
        key = (tuple(row.placed or ()), tokens)
        if key not in self._contexts:
            self._contexts[key] = context_at(row, tokens)
        return self._contexts[key]

    def longest(self, row: IndexedModel, whole: Whole, tokens: int) -> int:
        """The most tokens with which a model surely fits as a whole."""
        bound = max(tokens, row.max_position_embeddings or UNLIMITED)
        sizes = Sizes(whole.weights_bytes, whole.host_bytes)
        return self._room.longest(sizes, lambda length: self._context(row, length), tokens, bound)

    def reads_as_planned(self, row: IndexedModel, whole: Whole) -> bool:
        """Whether what the index says a pass reads is what is loaded: a file may keep tensors in a smaller format of the checkpoint."""
        assert row.shape is not None
        read = sum(share.bytes for share in shares_at(row.shape, whole.weights) if share.use is not Use.ROW)
        return read <= whole.weights_bytes

    def speed(self, row: IndexedModel, whole: Whole, tokens: int) -> tuple[float | None, str | None]:
        """The bound on tokens per second of a model that fits as a whole, and what bounds them."""
        assert row.shape is not None
        key = (row.shape, whole.weights, tokens)
        if key not in self._speeds:
            self._speeds[key] = self._speed(row.shape, whole.weights, tokens)
        return self._speeds[key]

    def _speed(self, number: int, weights: str, tokens: int) -> tuple[float | None, str | None]:
        shares, roles, engine = shares_at(number, weights), self._dtypes.roles, self._host.engine.name
        step = decode_of(stack_at(number), shares, seq=tokens, batch=1, roles=roles, engine=engine)
        seconds, bound_by = step.seconds(self._host.gpu, self._bandwidth)
        return None if seconds is None else 1 / seconds, bound_by

    @cached_property
    def _bandwidth(self) -> float | None:
        return known_bandwidth(self._host.gpu)

    def smallest(self, row: IndexedModel) -> str:
        """The format in which a part of the model stays on the host."""
        assert row.shape is not None
        return self._named or formats_at(row.shape).names[-1]

    def layers(self, row: IndexedModel) -> int:
        """The layers of a model, the output counted as one."""
        assert row.shape is not None
        return layers_at(row.shape)

    def weights_bytes(self, row: IndexedModel) -> int:
        """Bytes of the smallest format, with all layers on the GPU."""
        assert row.shape is not None
        return formats_at(row.shape).sizes(self.smallest(row)).gpu

    @property
    def without_gpu(self) -> bool:
        """Whether everything lies in the memory of the host, of which the index knows bounds alone: :meth:`hosted`."""
        return self._host.gpu.is_host

    def hosted(self, row: IndexedModel, tokens: int) -> tuple[tuple[str, int], ...]:
        """The formats that may fit without a GPU, the largest first, with about what each needs; the last one surely does, or none does.

        The index counts a table twice that is the embedding and the output, and has the buffers of a GPU and its host.
        """
        assert row.shape is not None
        context, found = self._context(row, tokens), list[tuple[str, int]]()
        beside = context.cache + context.compute_high + context.host_high
        for name, gpu, host in zip(*formats_at(row.shape), strict=True):
            if self._named not in (None, name) or gpu + context.cache > (self._room.rooms["high"] or 0):
                continue
            needed = gpu + host + beside
            found.append((name, needed))
            if needed <= (self._room.rooms["low"] or 0):
                break
        return tuple(found)

    def apart(self, row: IndexedModel, tokens: int) -> bool | None:
        """Whether it runs with a part on the host; ``None`` if only a plan can say."""
        assert row.shape is not None
        name, context = self.smallest(row), self._context(row, tokens)
        sizes, host, room = formats_at(row.shape).sizes(name), self._room.likely_host, self._room.rooms["high"] or 0
        if sizes.gpu > room + host or sizes.gpu + context.cache > room + host:
            return False
        if self._host.gpu.shares_host_memory:
            return None
        # With nothing at all on the GPU, or with as much as it has room for.
        alone = sizes.gpu + sizes.host + context.cache + context.host_high + context.compute_high
        if alone > host and sizes.gpu + context.cache > room:
            alone -= self._room.held_apart(step_at(row.shape, name), context)
        return True if alone <= host else None


def quick(host: Hosting) -> Quick | None:
    """The quick way, where the request is one that the index has."""
    asked = host.asked
    usual = asked.given <= _USUAL and (asked.gpus or 1) == asked.batch == 1 and asked.dtype in _SIXTEEN
    if host.engine.name != ENGINE or not usual:
        return None
    # The hardware is the same for all models, and so is the format of the cache.
    request = host.request_for(host.seq, Parallel(), None)
    return Quick(host, Room(request), dtypes_asked(request.setup), None if is_auto(asked.weights) else format_name(asked.weights))
