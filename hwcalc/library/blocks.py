"""Blocks that a paged cache gets back: :func:`free_blocks`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from itertools import islice
from operator import index
from typing import Any, Final

from msgspec.structs import asdict

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.planner.values import read_flag
from hwcalc.policies import blocks as counted
from hwcalc.text import quoted
from hwcalc.units import parse_tokens

_MOST_TOKENS: Final = 2**21
"""Positions that are looked at one by one, of all heads together."""
_MOST_HEADS: Final = 2**20


class Compaction(Record):
    """Moves of survivors: ``copies`` of slots of one head of one layer, and slots of the whole table that change.

    ``in_order`` is ``None`` where it depends on the survivors. Averages are rounded.
    """

    copies: int
    slots_changed_in_whole_table: int
    in_order: bool | None


class FreeBlocks(Answer, Record):
    """Blocks of a sequence of ``tokens`` tokens of which ``kept`` stay in each head.

    ``nominal`` blocks would be filled by the dropped tokens; ``free`` are free as they lie: exact for given survivors, else expected for a
    random choice of each head on its own, between ``free_low`` and ``free_high``. ``free_compacted`` are free when survivors move together:
    ``repack`` in order, ``fill`` into the holes. ``shared`` blocks, which others hold too, cannot go.
    """

    schema_version: str
    kvplan_version: str
    tokens: int
    kept: int
    block_size: int
    heads: int
    shared: int
    held: int
    nominal: int
    free: int | float
    free_low: int
    free_high: int
    free_compacted: int
    kept_blocks: int
    repack: Compaction
    fill: Compaction
    definition: Definition

    def headline(self) -> str:
        """The answer in one line."""
        free = f"{self.free:,}" if self.definition is Definition.EXACT else f"about {self.free:,.1f}"
        return f"{self.kept:,} of {self.tokens:,} tokens kept: {free} of {self.held:,} blocks free, {self.free_compacted:,} after compaction"

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        parts = {"repack": self.repack, "fill": self.fill}
        own = {name: value for name, value in self.to_dict().items() if name not in parts}
        return [own | {f"{name}_{key}": value for name, part in parts.items() for key, value in asdict(part).items()}]

    __repr__ = Answer.__repr__


def free_blocks(
    tokens: int | str,
    *,
    keep: Iterable[Any] | None = None,
    kept: int | str | None = None,
    block_size: int | str = 16,
    heads: int | str = 1,
    shared: Collection[int] = (),
    growing: bool = False,
) -> FreeBlocks:
    """Blocks that come back when tokens of one sequence are dropped, without compaction and with it.

    ``keep`` are the positions that stay: of all heads alike, or a list for each head, or for each layer a list of heads. Or give ``kept``,
    how many stay, for ``heads`` heads that choose at random on their own; heads of all layers that share the blocks count. ``shared`` are
    numbers of blocks that others hold too. With ``growing`` the next token is written behind the last one, so that a last block that is not
    full stays. Raises :class:`~hwcalc.errors.UsageError`.

    >>> free_blocks(16_000, keep=range(0, 16_000, 10))
    <FreeBlocks: 1,600 of 16,000 tokens kept: 0 of 1,000 blocks free, 900 after compaction>
    >>> free_blocks(16_000, kept=1_600)
    <FreeBlocks: 1,600 of 16,000 tokens kept: about 185.1 of 1,000 blocks free, 900 after compaction>
    """
    length = parse_tokens(tokens, "tokens")
    if (keep is None) == (kept is None):
        raise UsageError("free_blocks takes keep, which tokens stay, or kept, how many.", hint="Give one of the two.")
    size, goes_on = _at_most(block_size, "block_size", _MOST_TOKENS), read_flag(growing, "growing")
    hint = "Give the numbers of blocks: [0, 1]."
    listed = _listed(shared, "shared", hint, _MOST_TOKENS)
    others = [_number(one) for one in listed]
    if None in others:
        raise UsageError(f"shared has {quoted(listed[others.index(None)])}, which is no whole number.", hint=hint)
    held = counted.blocks_of(length, size)
    taken = frozenset(number for number in others if number is not None and 0 <= number < held)
    if keep is None:
        stays = parse_tokens(kept if kept is not None else 0, "kept", minimum=0)
        found = _random(length, stays, size, _at_most(heads, "heads", _MOST_HEADS), taken, growing=goes_on)
    elif length > _MOST_TOKENS:
        raise UsageError(
            f"{length:,} tokens are more than are looked at.", hint=f"At most {_MOST_TOKENS:,}; kept=N has no limit."
        )
    else:
        found = _given(length, _sets(keep, length), size, taken, growing=goes_on)
    return FreeBlocks(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        tokens=length,
        block_size=size,
        shared=len(taken),
        held=held,
        nominal=counted.nominal_free(length, found["kept"], size),
        kept_blocks=held - found["free_compacted"],
        **found,
    )


def _at_most(value: int | str, what: str, most: int) -> int:
    number = parse_tokens(value, what)
    if number > most:
        raise UsageError(f"{what} is out of range: {number:,}", hint=f"Allowed: a whole number from 1 to {most:,}.")
    return number


def _listed(given: object, what: str, hint: str, room: int) -> list[Any]:
    """The items of a list, an array or a generator, of which no more is asked for than may be looked at."""
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is no list of whole numbers: {quoted(given)}", hint=hint)
    try:
        found = list(islice(given, room + 1))
    except Exception as error:  # it may be anything that says it can be gone through
        raise UsageError(f"{what} cannot be read: {quoted(given)}", hint=hint) from error
    if len(found) > room:
        raise UsageError(f"{what} has too many numbers.", hint=f"At most {_MOST_TOKENS:,} in all.")
    # A set has no order of its own.
    return sorted(found) if isinstance(given, AbstractSet) and all(type(one) is int for one in found) else found


def _number(value: object) -> int | None:
    """A whole number of any type, NumPy's too."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the value may be anything, and so may be what its __index__ raises
        return None


def _sets(keep: Iterable[Any], tokens: int) -> list[list[int]]:
    """The survivors of each head of each layer."""
    found: list[list[int]] = []
    room = _MOST_TOKENS
    hint = "Use whole numbers from 0, or a list of them for each head."

    def walk(part: object, depth: int) -> None:
        nonlocal room
        entries = _listed(part, "keep", hint, room)
        room -= len(entries)
        numbers = entries if all(type(entry) is int for entry in entries) else [_number(entry) for entry in entries]
        own = [number for number in numbers if number is not None]
        if own and len(own) < len(entries):
            raise UsageError("keep mixes positions and what is none.", hint="Give positions, or a list for each head.")
        if len(own) == len(entries):
            found.append(own)
            return
        for one in entries:
            if not depth:
                raise UsageError(f"keep has {quoted(one)}, which is no position.", hint=hint)
            walk(one, depth - 1)

    walk(keep, 2)
    for head in found:
        if head and not 0 <= min(head) <= max(head) < tokens:
            wrong = min(head) if min(head) < 0 else max(head)
            raise UsageError(
                f"keep has position {quoted(wrong)}, of {tokens:,} tokens.", hint=f"Positions go from 0 to {tokens - 1:,}."
            )
        if len(set(head)) < len(head):
            raise UsageError("keep has a position twice.", hint="Give each once.")
    return found


def _given(tokens: int, sets: list[list[int]], block: int, shared: frozenset[int], *, growing: bool) -> dict[str, Any]:
    """The fields of :class:`FreeBlocks` that follow from the survivors of each head."""
    free = counted.free_of_survivors(tokens, sets, block, shared=shared, growing=growing)
    # Shared blocks stay as they are: survivors move together in the others, which are counted as if they lay in a row.
    fixed = sorted(shared)
    own = tokens - sum(min(block, tokens - number * block) for number in fixed)
    heads = sets
    if fixed:
        heads = [
            [place - block * bisect_left(fixed, place // block) for place in head if place // block not in shared]
            for head in sets
        ]
    repacks = [counted.repacked(own, head, block) for head in heads]

    def most(parts: list[counted.Compacted]) -> Compaction:
        return Compaction(
            copies=max((part.copies for part in parts), default=0),
            slots_changed_in_whole_table=max((part.slots_changed_in_whole_table for part in parts), default=0),
            in_order=all(part.in_order for part in parts),
        )

    return {
        "kept": max(map(len, sets), default=0),
        "heads": len(sets),
        **dict.fromkeys(("free", "free_low", "free_high"), free),
        "free_compacted": counted.blocks_of(own, block) - max((one.kept_blocks for one in repacks), default=0),
        "repack": most(repacks),
        "fill": most([counted.filled(own, head, block) for head in heads]),
        "definition": Definition.EXACT,
    }


def _random(tokens: int, kept: int, block: int, heads: int, shared: frozenset[int], *, growing: bool) -> dict[str, Any]:
    """The fields of :class:`FreeBlocks` where each head keeps a random choice."""
    if kept > tokens:
        raise UsageError(f"kept is {kept:,} of {tokens:,} tokens.", hint="Keep no more than there are.")
    if shared:
        raise UsageError("Shared blocks of a random choice are not counted.", hint="Give keep, which tokens stay.")
    ends = counted.free_range(tokens, {kept: heads}, block, growing=growing)
    copies, filling = round(counted.expected_copies(tokens, kept)), round(counted.expected_copies(tokens, kept, fill=True))
    changed = round(counted.expected_rewritten(tokens, kept))
    return {
        "kept": kept,
        "heads": heads,
        "free": counted.expected_free(tokens, {kept: heads}, block, growing=growing),
        "free_low": ends.low,
        "free_high": ends.high,
        "free_compacted": counted.freed_by_compaction(tokens, kept, block),
        "repack": Compaction(copies=copies, slots_changed_in_whole_table=changed, in_order=True),
        "fill": Compaction(copies=filling, slots_changed_in_whole_table=filling, in_order=None),
        "definition": Definition.ESTIMATE,
    }
