"""The groups of layers that share a block table, and what each keeps of a request: every token, a window, a chunk, or a state.

A group knows its rule; what a request holds in it is a :class:`Table`, a list of columns of ``size`` tokens each. A column is ``GONE`` (vLLM's
null block: never held, or given back), ``PLAIN`` (a block without a name), or the name of a block that can be found again.

Source: vLLM 0.33, v1/core/single_type_kv_cache_manager.py; rules by version are those of the deployment that made the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.replay.pool import BlockPool

GONE: Final = None
PLAIN: Final = 0
Column = int | None
Names = Callable[[int, int], Sequence[int]]
"""The names of the blocks ``start`` to ``stop`` of a request, in a group."""
NEVER: Final = 2**62
"""A number of tokens that no request has."""


class Table:
    """The columns that a request holds in a group."""

    __slots__ = ("allocated", "checkpoint", "columns", "hashed", "last_state", "retired")

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.hashed = 0
        """Leading columns that have been named, or never will be."""
        self.retired = 0
        """Leading columns that are gone; of states those that were looked at for that."""
        self.allocated = False
        """True if the request has got blocks in this group itself, not by a hit alone (states)."""
        self.last_state: int | None = None
        """The column of the state before the current one (states)."""
        self.checkpoint = False
        """True if this step exports a state from inside the prompt (states)."""


class Kept:
    """Tokens of a request at which blocks must be findable: its resend's last block, and where a shared prefix ends."""

    __slots__ = ("boundaries", "dense", "interval")

    def __init__(self, boundaries: Sequence[int], interval: int | None) -> None:
        self.boundaries = boundaries
        self.interval = interval
        """``prefix_cache_retention_interval``: ``None`` keeps every block, 0 only those at the boundaries."""
        self.dense = interval is None


class Group:
    """A group that keeps every token; the base of all others."""

    sparse = False
    """True if ``prefix_cache_retention_interval`` bears on it."""

    def __init__(self, number: int, size: int, *, cap: int | None = None, rule: Hashable = None) -> None:
        self.number = number
        self.size = size
        self.rule = rule
        """Equal for groups that are looked up together."""
        self.cap = cap
        """The most blocks for which the check at admission asks."""
        self.alignment = size
        """Tokens of which a hit must be a multiple; set by the cache that the group belongs to."""

    # What is found.

    def find(self, pool: BlockPool, names: Sequence[Names], tokens: int) -> tuple[list[list[Column]], int]:
        """The columns of a hit of at most ``tokens`` tokens in groups of this rule, and its tokens. ``names`` are those of each group."""
        most = tokens // self.size
        hits: list[list[Column]] = [[*pool.found(each(0, most))] for each in names]
        length = min(map(len, hits))
        length = length * self.size // self.alignment * self.alignment // self.size
        for columns in hits:
            del columns[length:]
        return hits, length * self.size

    # What a request needs and gets.

    def skipped_tokens(self, computed: int) -> int:
        """Tokens before those to which the next one attends."""
        return 0

    def needed(
        self, table: Table, tokens: int, hit: Sequence[Column], start: int, pool: BlockPool, *, admission: bool, end: int
    ) -> int:
        """Free blocks that ``tokens`` tokens need beyond what the request holds; a hit on a free block takes that block."""
        blocks = -(-tokens // self.size)
        if not hit and table.columns:
            return max(blocks - len(table.columns), 0)
        if admission and self.cap is not None:
            blocks = min(blocks, self.cap)
        skipped = self.skipped_tokens(start) // self.size
        return max(blocks - max(skipped, len(hit)), 0) + pool.idle([column for column in hit[skipped:] if column])

    def adopt(self, table: Table, hit: Sequence[Column], start: int, pool: BlockPool) -> None:
        """Take the blocks of a hit, with which the request starts at token ``start``."""
        skipped = self.skipped_tokens(start) // self.size
        kept = hit[skipped:]
        pool.hold([column for column in kept if column])
        table.columns = [*[GONE] * skipped, *kept]
        table.hashed = len(table.columns)
        table.retired = next((number for number, column in enumerate(table.columns) if column is not GONE), len(table.columns))

    def extend(self, table: Table, tokens: int, pool: BlockPool) -> None:
        """Take blocks for ``tokens`` tokens. They must be there."""
        more = -(-tokens // self.size) - len(table.columns)
        if more > 0:
            pool.take(more)
            table.columns += [PLAIN] * more

    def drop(self, table: Table, processed: int, pool: BlockPool) -> None:
        """Give back what the next tokens do not read, where so many tokens have been computed for certain."""

    def publish(self, table: Table, tokens: int, names: Names, kept: Kept, pool: BlockPool) -> list[int]:
        """Name the blocks that ``tokens`` tokens fill, so that others find them; returns those that were named."""
        full, columns = tokens // self.size, table.columns
        start = table.hashed
        if full <= start:
            return []
        table.hashed = full
        if self.sparse and not kept.dense:
            wanted = [number for number in self.reachable(start, full, kept) if columns[number] is PLAIN]
        elif table.retired <= start:
            named = pool.name(names(start, full))
            columns[start:full] = named
            return []
        else:
            wanted = [number for number in range(max(start, table.retired), full) if columns[number] is PLAIN]
        blocks = []
        for number in wanted:
            block = columns[number] = pool.name(names(number, number + 1))[0]
            blocks.append(block)
        return blocks

    def reachable(self, start: int, stop: int, kept: Kept) -> Iterable[int]:
        """The columns of ``start`` to ``stop`` that a hit may need under sparse retention, in order."""
        return range(start, stop)

    def release(self, table: Table, pool: BlockPool, ended: int = 0) -> None:
        """Give everything back; ``ended`` of the blocks without a name are full of what nobody looks for again."""
        named = [column for column in table.columns if column]
        pool.release(named, table.columns.count(PLAIN) - ended, ended)
        table.columns = []

    def next_change(self, table: Table, lag: int) -> int:
        """The tokens before a step that decodes, from which on something changes in this group: a block is taken or given back.

        ``lag`` is how many tokens behind the computed ones are certain.
        """
        return len(table.columns) * self.size

    def _give_back(self, table: Table, stop: int, pool: BlockPool) -> None:
        """Give back the columns before ``stop``."""
        columns, start = table.columns, table.retired
        stop = min(stop, len(columns))
        if stop <= start:
            return
        gone = columns[start:stop]
        columns[start:stop] = [GONE] * (stop - start)
        table.retired = stop
        pool.release([column for column in gone if column], gone.count(PLAIN))


class WindowGroup(Group):
    """A group that keeps the last ``window`` tokens, and ``retained`` before them that drafts may still read."""

    sparse = True

    def __init__(self, number: int, size: int, *, window: int, retained: int, cap: int, rule: Hashable = None) -> None:
        super().__init__(number, size, cap=cap, rule=rule)
        self.window = window
        self.retained = retained
        self.run = -(-(window - 1) // size)
        """Blocks in a row that a hit needs."""

    def skipped_tokens(self, computed: int) -> int:
        return max(0, computed - self.window + 1 - self.retained)

    def find(self, pool: BlockPool, names: Sequence[Names], tokens: int) -> tuple[list[list[Column]], int]:
        """Search from the right for as many blocks in a row as a window spans, or fewer at the very beginning."""
        most, run, length = tokens // self.size, 0, 0
        every = [each(0, most) for each in names]
        for number in range(most - 1, -1, -1):
            if all(pool.find(each[number]) is not None for each in every):
                if run == 0 and self.size != self.alignment and (number + 1) * self.size % self.alignment:
                    continue
                run += 1
                if run >= self.run:
                    length = number + run
                    break
            else:
                run = 0
        else:
            length = run
            while length * self.size % self.alignment:
                length -= 1
        first = max(0, length - run)
        hits: list[list[Column]] = [[*[GONE] * first, *(pool.find(name) for name in each[first:length])] for each in every]
        return hits, length * self.size

    def drop(self, table: Table, processed: int, pool: BlockPool) -> None:
        self._give_back(table, self.skipped_tokens(processed) // self.size, pool)

    def reachable(self, start: int, stop: int, kept: Kept) -> Iterable[int]:
        if self.alignment % self.size:
            return range(start, stop)
        wanted = set[int]()
        if kept.interval:
            segment = kept.interval // self.size
            if self.run >= segment:
                return range(start, stop)
            wanted.update(number for number in range(start, stop) if number % segment >= segment - self.run)
        for boundary in kept.boundaries:
            end = boundary // self.alignment * self.alignment // self.size
            wanted.update(range(max(start, end - self.run), min(stop, end)))
        return sorted(wanted)

    def next_change(self, table: Table, lag: int) -> int:
        leaves = (table.retired + 1) * self.size + self.window - 1 + self.retained + lag
        return min(len(table.columns) * self.size, leaves)


class ChunkGroup(Group):
    """A group that keeps the tokens of the current chunk of ``chunk`` tokens."""

    def __init__(self, number: int, size: int, *, chunk: int, cap: int, rule: Hashable = None) -> None:
        super().__init__(number, size, cap=cap, rule=rule)
        self.chunk = chunk

    def skipped_tokens(self, computed: int) -> int:
        return computed // self.chunk * self.chunk

    def find(self, pool: BlockPool, names: Sequence[Names], tokens: int) -> tuple[list[list[Column]], int]:
        """Blocks before the chunk count as found; those of the chunk are looked up from the left."""
        first, most = tokens // self.chunk * self.chunk // self.size, tokens // self.size
        found = [pool.found(each(first, most)) for each in names]
        length = min(map(len, found))
        return [[*[GONE] * first, *blocks[:length]] for blocks in found], (first + length) * self.size

    def drop(self, table: Table, processed: int, pool: BlockPool) -> None:
        self._give_back(table, self.skipped_tokens(processed) // self.size, pool)

    def next_change(self, table: Table, lag: int) -> int:
        leaves = -(-(table.retired + 1) * self.size // self.chunk) * self.chunk + lag
        return min(len(table.columns) * self.size, leaves)


class StateGroup(Group):
    """A group of recurrent states that are kept at the ends of blocks (``mamba_cache_mode`` ``align``): the current one, the one before it
    until the next step, and where the kernels export it, one from inside the last chunk of a prompt.
    """

    sparse = True

    def __init__(self, number: int, size: int, *, checkpoint_alignment: int | None, rule: Hashable = None) -> None:
        super().__init__(number, size, rule=rule)
        self.checkpoint_alignment = checkpoint_alignment
        """The multiple of tokens at which kernels export a state from inside a prompt; ``None`` if they do not."""
        self.fresh = set[int]()
        """The states that were named in this step, which are not computed before its end."""

    def skipped_tokens(self, computed: int) -> int:
        return max(0, computed - 1)

    def find(self, pool: BlockPool, names: Sequence[Names], tokens: int) -> tuple[list[list[Column]], int]:
        """The last state that is there."""
        most = tokens // self.size
        every = [each(0, most) for each in names]
        for number in range(most - 1, -1, -1):
            blocks = [pool.find(each[number]) for each in every]
            if None not in blocks and not (number + 1) * self.size % self.alignment:
                return [[*[GONE] * number, block] for block in blocks], (number + 1) * self.size
        return [[] for _ in names], 0

    def exports(self, start: int, end: int, position: int) -> bool:
        """True if the kernels can export the state at ``position`` from the chunk of tokens ``start`` to ``end``."""
        return checkpoint_valid(start, end, position, hash_size=self.size, size=self.size, alignment=self.checkpoint_alignment)

    def needed(
        self, table: Table, tokens: int, hit: Sequence[Column], start: int, pool: BlockPool, *, admission: bool, end: int
    ) -> int:
        if hit and hit[-1] in self.fresh:
            # It waits for the next step.
            return pool.total + 1
        columns = table.columns
        more = -(-tokens // self.size) - len(hit) - len(columns)
        position = (tokens - 1) // self.alignment * self.alignment
        column = -(-tokens // self.size) - 2
        exported = (
            tokens >= end
            and position > 0
            and column >= 0
            and self.exports(start, tokens, position)
            and (column >= len(columns) or columns[column] is GONE)
        )
        if not admission:
            table.checkpoint = exported
        if more > 0:
            more = min(more, 1 + exported)
        return more + pool.idle([each for each in hit if each])

    def adopt(self, table: Table, hit: Sequence[Column], start: int, pool: BlockPool) -> None:
        super().adopt(table, hit, start, pool)
        table.retired = 0

    def extend(self, table: Table, tokens: int, pool: BlockPool) -> None:
        columns, blocks = table.columns, -(-tokens // self.size)
        before = len(columns)
        if blocks > before or table.checkpoint:
            if table.allocated or before:
                table.last_state = before - 1
            columns += [GONE] * (blocks - 1 - table.checkpoint - before)
            more = max(blocks - len(columns), 0)
            pool.take(more)
            columns += [PLAIN] * more
        table.allocated = True

    def drop(self, table: Table, processed: int, pool: BlockPool) -> None:
        columns = table.columns
        if processed > 1:
            stop = min((processed - 1) // self.size, len(columns))
            if stop > table.retired:
                self._give_back(table, stop, pool)
        last = table.last_state
        if last is not None and last < -(-processed // self.size) - 1 and columns[last] is not GONE:
            column, columns[last] = columns[last], GONE
            pool.release([column] if column else [], int(not column))

    def publish(self, table: Table, tokens: int, names: Names, kept: Kept, pool: BlockPool) -> list[int]:
        start, full = table.hashed, tokens // self.size
        if full <= start:
            return []
        table.hashed = full
        wanted = range(start, full) if kept.dense else self.reachable(start, full, kept)
        blocks = []
        for number in wanted:
            if table.columns[number] is PLAIN:
                block = table.columns[number] = pool.name(names(number, number + 1))[0]
                blocks.append(block)
        self.fresh.update(blocks)
        return blocks

    def reachable(self, start: int, stop: int, kept: Kept) -> Iterable[int]:
        wanted = set[int]()
        if kept.interval:
            segment = kept.interval // self.size
            if segment <= 1:
                return range(start, stop)
            wanted.update(range((start + segment) // segment * segment - 1, stop, segment))
        ends = [boundary // self.alignment * self.alignment // self.size - 1 for boundary in kept.boundaries]
        wanted.update(number for number in ends if start <= number < stop)
        return sorted(wanted)

    def next_change(self, table: Table, lag: int) -> int:
        held = sum([column is not GONE for column in table.columns[table.retired :]])
        # More than the current state: another is given back in one of the next steps.
        return 0 if held > 1 else len(table.columns) * self.size


def checkpoint_valid(start: int, end: int, position: int, *, hash_size: int, size: int, alignment: int | None) -> bool:
    """True if kernels that export states at multiples of ``alignment`` can export the one at ``position`` from the chunk ``start`` to ``end``.

    Source: v1/kv_cache_interface.py ``is_mamba_prefill_checkpoint_valid``.
    """
    if alignment is None or start % hash_size or not start + hash_size <= position < end:
        return False
    return -(-end // size) - 2 > (start - 1) // size and (position - start) % alignment == 0
