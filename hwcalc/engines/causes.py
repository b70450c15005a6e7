"""Why the cache of an engine is another one than the formulas': a few words for each difference, and its bytes.

The bytes of all causes are together the whole difference. Of a layer the words follow from numbers wherever these can tell: what is kept
of the planned tokens, and what far beyond them, tells a window that is not honoured from one that is kept a little longer, and what
fills up a block from a wider row. Where numbers cannot tell, such as slots for states, the engine says it of its tensor
(:attr:`StoredTensor.why`).

Four tokens behind a window of 2, in an engine with blocks of 3: 2 positions by the formulas, 6 if the window is not honoured, and 3 if it
is, at any length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import of_one, without_sharing
from hwcalc.engines.stored import StoredTensor, bytes_of, rank_bytes_of
from hwcalc.engines.subjects import without_policy
from hwcalc.formulas import LatentAttention, LayerKind, Role
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_STEP: Final = 2**10 * 3**2 * 5 * 7 * 11
"""Tokens beyond the planned ones: whole blocks of nearly every size, and more than any window."""
_FIXED: Final = frozenset({Role.STATE, Role.CONV})
_LATENT: Final = frozenset({Role.LATENT, Role.ROPE})
_KEYS_VALUES: Final = {Role.KEY, Role.VALUE}
_MOST_PARTS: Final = 2
"""Tensors of one layer that are named."""
_OTHERWISE: Final = "counted by its own rules"
_NAMES: Final = {
    Role.KEY: "keys",
    Role.VALUE: "values",
    Role.LATENT: "latents",
    Role.ROPE: "latents",
    Role.INDEX: "indexer keys",
    Role.STATE: "states",
    Role.CONV: "convolutions",
}
_SHORT: Final = {
    "keys": "K",
    "values": "V",
    "latents": "latent",
    "indexer keys": "index",
    "states": "state",
    "convolutions": "conv",
}


class Cause(Record):
    """Why a cache differs from the formulas: a few words, and the bytes that it adds, fewer than none if it saves them."""

    words: str
    bytes: int


def causes(opened: Occupancy, formulas: Occupancy) -> tuple[Cause, ...]:
    """The causes why ``opened`` keeps other bytes on all GPUs together than ``formulas``, the reference's answer, keeps once.

    Largest first; causes in the same words are added up. What a policy drops is one cause, and what sequences share is another; all others
    are those of as many sequences that share nothing and keep every token.
    """
    whole, plain = without_policy(opened), without_sharing(formulas)
    alone = without_sharing(whole)
    bytes_by_cause = {} if whole is opened else {"dropped by the policy": request_bytes(opened) - request_bytes(whole)}
    extras = ((tensor.why or _OTHERWISE, tensor.bytes) for tensor in alone.extras)
    for words, added in (*_of_layers(alone, plain), *extras, *_of_ranks(alone)):
        bytes_by_cause[words] = bytes_by_cause.get(words, 0) + added
    if whole.load.sharing.asked:
        saved = request_bytes(alone) - request_bytes(whole)
        bytes_by_cause["shared in whole blocks" if saved else "shared tokens kept for each"] = (
            plain.stored_bytes - formulas.stored_bytes - saved
        )
    return tuple(
        Cause(words=words, bytes=added) for words, added in sorted(bytes_by_cause.items(), key=lambda one: -abs(one[1])) if added
    )


def request_bytes(opened: Occupancy) -> int:
    """The cache on all GPUs together, each counted as the fullest."""
    return opened.setup.gpus * opened.needed_bytes


def growth_bytes(opened: Occupancy) -> int:
    """Bytes that a token more takes of one sequence in the long run, blocks spread over their tokens, on the GPUs that hold it together."""
    tp = opened.setup.parallel.tp

    def held_bytes(opened: Occupancy) -> int:
        if tp == 1 or opened.engine.facts.counts_copies:
            return opened.stored_bytes
        return tp * sum(group.count * bytes_of(opened.rank_tensors[group.kind]) for group in opened.stack.groups)

    near, far = _farther(of_one(opened)), _farther(of_one(opened), 2)
    return round((held_bytes(far) - held_bytes(near)) / _STEP)


def stored_words(opened: Occupancy) -> str:
    """The formats that the engine stores, by role: ``K, V bf16; state fp32``."""
    formats: dict[str, dict[str, None]] = {}
    for tensor in (stored for tensors in opened.kind_tensors.values() for stored in tensors):
        formats.setdefault(tensor.dtype, {}).update(dict.fromkeys(_SHORT[name] for name in _names(tensor)))
    return "; ".join(f"{', '.join(names)} {dtype}" for dtype, names in formats.items())


def _names(tensor: StoredTensor) -> tuple[str, ...]:
    """The words for what a tensor contains; a page may contain keys and values."""
    return ("keys", "values") if tensor.name == "keys_values" else (_NAMES[tensor.role],)


def _farther(opened: Occupancy, steps: int = 1) -> Occupancy:
    return opened.deployment.unlimited().at(replace(opened.load, seq=opened.tokens + steps * _STEP))


class _Layer:
    """What a request keeps of one layer, now and at lengths far beyond."""

    def __init__(self, kind: LayerKind, opened: Occupancy, tensors: Sequence[StoredTensor] | None = None) -> None:
        self.kind, self.opened = kind, opened
        self.tensors = opened.kind_tensors[kind] if tensors is None else tuple(tensors)
        self.bytes = bytes_of(self.tensors)

    def roles(self) -> frozenset[Role]:
        return frozenset(tensor.role for tensor in self.tensors)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes by which the layer grows for each token of a sequence, at lengths far beyond; 0 for a layer that stops growing at a window."""
        far, farther = (bytes_of(_farther(self.opened, steps).kind_tensors[self.kind]) for steps in (1, 2))
        token_bytes = round((farther - far) / (_STEP * self.opened.batch))
        # A window in a buffer that is read in pieces is a little longer at some lengths than at others, and so are blocks of odd sizes.
        if abs(token_bytes - self.row_bytes) * 100 <= self.row_bytes:
            return self.row_bytes
        return token_bytes if 16 * token_bytes > self.row_bytes else 0

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one position by the formulas, in the formats of the engine and on as many ranks as it counts; 0 for states, and for
        tensors that do not grow alike.
        """
        opened, dcp = self.opened, self.opened.setup.parallel.dcp
        counted = dcp * self.copies
        tensors = opened.deployment.weight_rules().shard(opened.model, self.kind, counted).tensors()
        if len({tensor.span for tensor in tensors}) != 1 or {tensor.role for tensor in tensors} & _FIXED:
            return 0
        return self.copies * sum(tensor.bytes_per_position(opened.dtypes.roles[tensor.role]) for tensor in tensors)

    @property
    def copies(self) -> int:
        """Ranks that have a row of the same token, where the engine counts all of them."""
        parallel = self.opened.setup.parallel
        return parallel.tp // parallel.dcp if self.opened.engine.facts.counts_copies else 1

    def positions(self, kept_bytes: int, row_bytes: int) -> int | None:
        """The number of positions of each sequence that the bytes are; ``None`` if they are no whole number of positions."""
        kept, rest = divmod(kept_bytes, row_bytes * self.opened.batch)
        return None if rest else kept


def _of_layers(opened: Occupancy, formulas: Occupancy) -> Iterator[tuple[str, int]]:
    """The differences of layers: of equal kinds, then of kinds that have a name in common, then of those that took another's place."""
    stored: Counter[LayerKind] = Counter()
    plain: Counter[LayerKind] = Counter()
    for counts, each in ((stored, opened), (plain, formulas)):
        for group in each.stack.groups:
            counts[group.kind] += group.count
    likeness: tuple[Callable[[LayerKind, LayerKind], bool], ...] = (
        lambda kind, other: kind == other,
        lambda kind, other: kind.name == other.name,
        # Both are layers of keys and values, such as a window that an engine reads as full attention.
        lambda kind, other: {each.role for each in kind.tensors()} == {each.role for each in other.tensors()} == _KEYS_VALUES,
    )
    for alike in likeness:
        for kind in list(stored):
            other = next((candidate for candidate in plain if alike(kind, candidate)), None)
            if other is None:
                continue
            both = min(stored[kind], plain[other])
            layer, expected = _Layer(kind, opened), _Layer(other, formulas)
            usual = expected.roles() | (_FIXED if expected.roles() & _FIXED else frozenset())
            added_tensors = [tensor for tensor in layer.tensors if tensor.why and tensor.role not in usual]
            yield from ((tensor.why or "", both * tensor.bytes) for tensor in added_tensors)
            added = layer.bytes - bytes_of(added_tensors) - expected.bytes
            if added:
                if added_tensors:
                    layer = _Layer(kind, opened, [tensor for tensor in layer.tensors if tensor not in added_tensors])
                yield _words(layer, expected), both * added
            for counts, counted in ((stored, kind), (plain, other)):
                counts[counted] -= both
                if not counts[counted]:
                    del counts[counted]
    for kind, count in stored.items():
        yield f"{kind.title} in {count:,} more layers", count * _Layer(kind, opened).bytes
    for kind, count in plain.items():
        yield f"{kind.title} in {count:,} fewer layers", -count * _Layer(kind, formulas).bytes


def _of_ranks(opened: Occupancy) -> Iterator[tuple[str, int]]:
    """The bytes that GPUs hold beyond their share, where each is counted as the fullest one."""
    parallel, left = opened.setup.parallel, request_bytes(opened) - opened.stored_bytes
    if left and parallel.tp == opened.setup.gpus and not opened.engine.facts.counts_copies:
        for group in opened.stack.groups:
            layer, held = _Layer(group.kind, opened), rank_bytes_of(opened, opened.rank_tensors[group.kind])
            added = group.count * (parallel.tp * held - layer.bytes)
            if added:
                yield _copies(layer, whole=held == layer.bytes), added
                left -= added
    # An engine that splits a model may leave layers to the host.
    on_host = opened.engine.facts.splits_layers and left < 0
    yield "layers in host memory" if on_host else "every GPU counted as the fullest", left


def _copies(layer: _Layer, *, whole: bool = False) -> str:
    """The words for copies on several ranks: of a head, where there are fewer heads than ranks, or of whole layers."""
    roles = layer.roles()
    for role, word in ((Role.LATENT, "latent"), (Role.INDEX, "indexer keys"), (Role.STATE, "states")):
        if role in roles:
            return f"{word} on every rank"
    return "all heads on every rank" if whole else "a head on several ranks"


def _words(layer: _Layer, other: _Layer) -> str:
    """The reason why a layer takes other bytes than by the formulas."""
    said = tuple(dict.fromkeys(tensor.why for tensor in layer.tensors if tensor.why))
    if said:
        # Formats of states that are not those of the formulas.
        before = {tensor.dtype for tensor in other.tensors if tensor.role is Role.STATE}
        states = (tensor for tensor in layer.tensors if before and tensor.role is Role.STATE and tensor.dtype not in before)
        return ", ".join((*said, *(f"{_NAMES[tensor.role]} {tensor.dtype}" for tensor in states)))
    if not layer.bytes:
        roles = {tensor.role for tensor in layer.kind.tensors()}
        elsewhere = any(tensor.role in roles for tensors in layer.opened.kind_tensors.values() for tensor in tensors)
        return f"{layer.kind.title} kept with other layers" if elsewhere else f"no {layer.kind.title}"
    if other.roles() & _LATENT and not layer.roles() & _LATENT:
        return "latent expanded per head" if isinstance(layer.kind, LatentAttention) else "latent as keys and as values"
    if other.roles() <= _FIXED:
        words = _of_states(layer.tensors, other.tensors)
    else:
        words = _of_positions(layer, other) if layer.row_bytes else _of_parts(layer, other)
    return ", ".join(words) or _OTHERWISE


def _of_parts(layer: _Layer, other: _Layer) -> Iterator[str]:
    """The causes in a layer whose tensors grow unlike: the factor of each tensor over the formulas, for the largest differences."""
    plain = {tensor.name: tensor for tensor in other.tensors}
    copies = layer.copies if layer.roles() & _LATENT else 1
    if copies > 1:
        yield _copies(layer)
    found: list[tuple[float, str]] = []
    for tensor in layer.tensors:
        was = plain.pop(tensor.name, None)
        format_ = f" {tensor.dtype}" if was is not None and was.dtype != tensor.dtype else ""
        name = tensor.name.replace("_", " ")
        if was is None or not was.bytes:
            found.append((tensor.bytes, f"{name} beside"))
        elif tensor.bytes:
            times = tensor.bytes / copies / was.bytes
            found.append((abs(times - 1) * was.bytes, f"{name}{format_} x {times:.3g}"))
        else:
            plain[tensor.name] = was
    found += [(one.bytes, f"no {one.name.replace('_', ' ')}") for one in plain.values()]
    yield from (words for added, words in sorted(found, key=lambda one: -one[0])[:_MOST_PARTS] if added)


def _of_states(tensors: Iterable[StoredTensor], plain: Iterable[StoredTensor]) -> Iterator[str]:
    """The causes in recurrent states: another format, or more of them."""
    before = {tensor.role: tensor for tensor in plain}
    for tensor in tensors:
        was, name = before.get(tensor.role), _NAMES[tensor.role]
        if was is None:
            yield f"{name} beside states"
        elif tensor.dtype != was.dtype:
            yield f"{name} {tensor.dtype}"
        elif tensor.bytes != was.bytes:
            yield f"{tensor.bytes / was.bytes:.3g} x {name}" if was.bytes else f"{name} beside"


def _of_positions(layer: _Layer, other: _Layer) -> Iterator[str]:
    """The words for why this layer takes other bytes than by the formulas, which keep every token or a window.

    It has a wider row, or another number of tokens.
    """
    row_bytes, tokens = layer.token_bytes or layer.row_bytes, layer.opened.tokens
    yield from _of_rows(layer, row_bytes, other)
    kept = layer.positions(layer.bytes, row_bytes)
    if other.token_bytes:
        if kept is not None and kept != tokens:
            yield f"{'filled up' if kept > tokens else 'cut'} to {kept:,} tokens"
        return
    by_formulas = max(tensor.positions for tensor in other.tensors)
    if layer.token_bytes:
        yield "window not honoured"
    elif kept is not None and kept != by_formulas:
        # A sequence that is shorter than the window is all there.
        shorter = kept > by_formulas == tokens
        yield f"filled up to {kept:,} tokens" if shorter else f"window of {by_formulas:,} kept as {kept:,} tokens"


def _of_rows(layer: _Layer, row_bytes: int, expected: _Layer) -> Iterator[str]:
    """The causes of another number of bytes in a row: copies on several ranks, another format if that explains all, or another layout."""
    expected_bytes = expected.token_bytes or expected.row_bytes
    roles = layer.opened.dtypes.roles
    by_format = sum(tensor.bytes_per_position(roles[tensor.role]) for tensor in layer.kind.tensors())
    if layer.opened.engine.facts.counts_copies and layer.row_bytes > by_format < row_bytes:
        yield _copies(layer)
        # Where every rank has a whole row, its layout shows in the row of one.
        row_bytes = by_format if row_bytes == layer.row_bytes else row_bytes // layer.copies
    if row_bytes == expected_bytes:
        return
    names = ", ".join(dict.fromkeys(name for tensor in layer.tensors for name in _names(tensor)))
    heads, expected_heads = (kind.dims().get("num_key_value_heads") for kind in (layer.kind, expected.kind))
    formats = dict.fromkeys(roles[tensor.role].name for tensor in layer.kind.tensors())
    if heads != expected_heads and row_bytes == by_format:
        yield f"{heads} key/value heads, not {expected_heads}"
    elif row_bytes == by_format:
        yield f"{names} {', '.join(formats)}"
    else:
        yield f"{names} {row_bytes:,} B a token, not {expected_bytes:,}"
