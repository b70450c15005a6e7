"""What comes back of the blocks of a paged cache: :func:`free_blocks`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.answers import Answer
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import Definition
from hwcalc.policies.blocks import (
    blocks_of,
    expected_copies,
    expected_free,
    expected_rewritten,
    filled,
    free_of_survivors,
    free_range,
    freed_by_compaction,
    nominal_free,
    repacked,
)
from hwcalc.text import quoted
from hwcalc.units import parse_tokens

__all__ = ["Compaction", "FreeBlocks", "free_blocks"]

_MOST_TOKENS: Final = 2**22
"""Positions that are looked at one by one, of all heads together."""
_MOST_HEADS: Final = 2**20


@frozen
class Compaction:
    """How survivors move together: ``copies`` of slots of one head of one layer, and slots of the whole table that change.

    ``in_order`` is ``None`` where it depends on the survivors. Averages are rounded.
    """

    copies: int
    slots_changed_in_whole_table: int
    in_order: bool | None


@frozen
class FreeBlocks(Answer):
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
        return [own | {f"{name}_{key}": value for name, part in parts.items() for key, value in vars(part).items()}]

    __repr__ = Answer.__repr__


def free_blocks(
    tokens: int | str,
    *,
    keep: Iterable[Any] | None = None,
    kept: int | str | None = None,
    block_size: int = 16,
    heads: int = 1,
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
    if not 1 <= block_size <= _MOST_TOKENS:
        raise UsageError(f"block_size {quoted(block_size)} is no number of tokens.", hint="Use 16, say.")
    taken = frozenset(number for number in shared if 0 <= number < blocks_of(length, block_size))
    if keep is None:
        stays = parse_tokens(kept if kept is not None else 0, "kept", minimum=0)
        return _random(length, stays, block_size, heads, taken, growing=growing)
    if length > _MOST_TOKENS:
        raise UsageError(
            f"{length:,} tokens are more than are looked at.", hint=f"At most {_MOST_TOKENS:,}; kept=N has no limit."
        )
    return _given(length, _sets(keep, length), block_size, taken, growing=growing)


def _sets(keep: Iterable[Any], tokens: int) -> list[list[int]]:
    """The survivors of each head of each layer."""
    found: list[list[int]] = []
    seen = 0

    def walk(part: Iterable[Any], depth: int) -> None:
        nonlocal seen
        own: list[int] = []
        nested = False
        for one in part:
            seen += 1
            if seen > _MOST_TOKENS:
                raise UsageError("keep has too many positions.", hint=f"At most {_MOST_TOKENS:,} in all heads.")
            if isinstance(one, int) and not isinstance(one, bool):
                own.append(one)
            elif depth and not isinstance(one, (str, bytes)) and isinstance(one, Iterable):
                nested = True
                walk(one, depth - 1)
            else:
                raise UsageError(f"keep has {quoted(one)}, which is no position.", hint="Use whole numbers from 0.")
        if own and nested:
            raise UsageError("keep mixes positions and lists of them.", hint="Give positions, or a list for each head.")
        if not nested:
            found.append(own)

    walk(keep, 2)
    for head in found:
        wrong = next((place for place in head if not 0 <= place < tokens), None)
        if wrong is not None:
            raise UsageError(
                f"keep has position {wrong:,}, of {tokens:,} tokens.", hint=f"Positions go from 0 to {tokens - 1:,}."
            )
        if len(set(head)) < len(head):
            raise UsageError("keep has a position twice.", hint="Give each once.")
    return found


def _given(tokens: int, sets: list[list[int]], block: int, shared: frozenset[int], *, growing: bool) -> FreeBlocks:
    kept = max(map(len, sets), default=0)
    free = free_of_survivors(tokens, sets, block, shared=shared, growing=growing)
    # Shared blocks stay as they are: survivors move together in the others.
    own = [place for place in range(tokens) if place // block not in shared] if shared else range(tokens)
    index = {place: number for number, place in enumerate(own)} if shared else None
    heads = [[index[place] for place in head if place in index] if index is not None else head for head in sets]
    repacks = [repacked(len(own), head, block) for head in heads]
    fills = [filled(len(own), head, block) for head in heads]
    stay = max((one.kept_blocks for one in repacks), default=0)

    def most(parts: list[Any], name: str) -> int:
        return max((getattr(one, name) for one in parts), default=0)

    return _answer(
        tokens,
        kept,
        block,
        len(sets),
        shared,
        free=(free, free, free),
        compacted=blocks_of(len(own), block) - stay,
        repack=Compaction(
            copies=most(repacks, "copies"),
            slots_changed_in_whole_table=most(repacks, "slots_changed_in_whole_table"),
            in_order=all(one.in_order for one in repacks),
        ),
        fill=Compaction(
            copies=most(fills, "copies"),
            slots_changed_in_whole_table=most(fills, "slots_changed_in_whole_table"),
            in_order=all(one.in_order for one in fills),
        ),
        definition=Definition.EXACT,
    )


def _random(tokens: int, kept: int, block: int, heads: int, shared: frozenset[int], *, growing: bool) -> FreeBlocks:
    if kept > tokens:
        raise UsageError(f"kept is {kept:,} of {tokens:,} tokens.", hint="Keep no more than there are.")
    if not 1 <= heads <= _MOST_HEADS:
        raise UsageError(f"heads is {quoted(heads)}.", hint=f"Use 1 to {_MOST_HEADS:,}.")
    if shared:
        raise UsageError("Shared blocks of a random choice are not counted.", hint="Give keep, which tokens stay.")
    ends = free_range(tokens, kept, block, heads, growing=growing)
    return _answer(
        tokens,
        kept,
        block,
        heads,
        shared,
        free=(expected_free(tokens, kept, block, heads, growing=growing), ends.low, ends.high),
        compacted=freed_by_compaction(tokens, kept, block),
        repack=Compaction(
            copies=round(expected_copies(tokens, kept)),
            slots_changed_in_whole_table=round(expected_rewritten(tokens, kept)),
            in_order=True,
        ),
        fill=Compaction(
            copies=round(expected_copies(tokens, kept, fill=True)),
            slots_changed_in_whole_table=round(expected_copies(tokens, kept, fill=True)),
            in_order=None,
        ),
        definition=Definition.ESTIMATE,
    )


def _answer(
    tokens: int,
    kept: int,
    block: int,
    heads: int,
    shared: frozenset[int],
    *,
    free: tuple[float, int, int],
    compacted: int,
    repack: Compaction,
    fill: Compaction,
    definition: Definition,
) -> FreeBlocks:
    held = blocks_of(tokens, block)
    return FreeBlocks(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        tokens=tokens,
        kept=kept,
        block_size=block,
        heads=heads,
        shared=len(shared),
        held=held,
        nominal=nominal_free(tokens, kept, block),
        free=free[0],
        free_low=free[1],
        free_high=free[2],
        free_compacted=compacted,
        kept_blocks=held - compacted,
        repack=repack,
        fill=fill,
        definition=definition,
    )
