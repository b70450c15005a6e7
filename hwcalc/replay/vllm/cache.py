"""The blocks of all requests in all groups: what a request finds, whether it gets what it needs, and what it leaves behind.

Source: vLLM 0.33, v1/core/kv_cache_manager.py and kv_cache_coordinator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.record import Record
from hwcalc.replay.pool import BlockPool
from hwcalc.replay.vllm.groups import NEVER, PLAIN, Column, Group, Kept, Names, StateGroup, Table

if TYPE_CHECKING:
    from hwcalc.replay.content import Content

_GROUP: Final = 1 << 56
"""Added to the names of the blocks of each further group."""


class Hit:
    """The prefix that a request finds: ``columns`` of each group, ``tokens``, and where a longer prefix ends of which sparse groups kept no state."""

    __slots__ = ("columns", "junction", "tokens")

    def __init__(self, columns: Sequence[Sequence[Column]], tokens: int, junction: int) -> None:
        self.columns = columns
        self.tokens = tokens
        self.junction = junction


class Held:
    """The blocks of a request, and how many of its tokens are where."""

    __slots__ = ("computed", "content", "filled", "in_flight", "junction", "known", "own", "prompt", "tables")

    def __init__(self, content: Content, prompt: int) -> None:
        self.content = content
        self.prompt = prompt
        self.known = prompt
        """Tokens that it has: its prompt and its output so far."""
        self.computed = 0
        """Tokens whose keys are stored, or will be at the end of a step that is scheduled."""
        self.in_flight = 0
        """Of them those of the step that runs while the next one is scheduled (async scheduling)."""
        self.junction = 0
        self.filled = 0
        """Tokens whose blocks are to be named, at the latest when they are given back."""
        self.own = False
        """True if all its blocks are named that another request may have, too."""
        self.tables: list[Table] = []


class CacheRules(Record):
    """The rules of a deployment's cache."""

    groups: tuple[Group, ...]
    caching: bool
    retention: int | None
    """``prefix_cache_retention_interval``."""
    watermark: int
    """Blocks that an admission leaves free while others run."""
    reserve: bool
    """``scheduler_reserve_full_isl``: whether all known tokens of a request must fit before it is admitted."""
    max_model_len: int
    lookahead: int = 0
    """Tokens behind those of a step for which a draft model needs slots."""
    hash_ahead: int = 0
    """Tokens behind a block that its name covers, because the draft's keys in it follow from them."""
    unsettled: int = 0
    """The last tokens of a request, whose keys a draft of several modules may still change."""


class PagedCache:
    """The blocks of all requests, taken from one pool by all groups."""

    def __init__(self, rules: CacheRules, blocks: int) -> None:
        self.rules = rules
        self.groups = rules.groups
        self.pool = BlockPool(blocks)
        self.states = [group for group in self.groups if isinstance(group, StateGroup)]
        sizes = [group.size for group in self.groups]
        self.alignment = lcm(*sizes)
        for group in self.groups:
            group.alignment = self.alignment
        self._alike = _alike(self.groups)
        self._only = self.groups[0] if len(self.groups) == 1 and type(self.groups[0]) is Group else None
        """The one group that there is, if it keeps every token."""
        self._dense = Kept((), rules.retention)

    def begin_step(self) -> None:
        """States that were named in the step before are computed now."""
        for group in self.states:
            group.fresh.clear()

    def look_up(self, held: Held) -> Hit:
        """The longest prefix of the request's tokens, all but the last, that every group has."""
        if not self.rules.caching:
            return Hit([()] * len(self.groups), 0, 0)
        length, longest, found = held.known - 1, 0, dict[int, tuple[list[list[Column]], int]]()
        simple = len(self._alike) == 2 and type(self._alike[0][0]) is Group
        while True:
            current = length
            for number, groups in enumerate(self._alike):
                if number in found and type(groups[0]) is Group:
                    current = min(current, found[number][1])
                    continue
                names = [self._names(held, group) for group in groups]
                found[number] = groups[0].find(self.pool, names, current)
                current = found[number][1]
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if simple or len(self._alike) == 1:
                break
        columns: list[Sequence[Column]] = [()] * len(self.groups)
        for groups, (hits, _) in zip(self._alike, found.values(), strict=True):
            for group, own in zip(groups, hits, strict=True):
                columns[group.number] = own[: -(-length // group.size)] if type(group) is Group else own
        return Hit(columns, length, longest if longest > length else 0)

    def admit(self, held: Held, hit: Hit, tokens: int, *, others_run: bool) -> bool:
        """Give a request the blocks of its hit and of ``tokens`` more, without names; whether they were there. If not, nothing has changed."""
        rules, pool = self.rules, self.pool
        left = pool.free - (rules.watermark if others_run else 0)
        if rules.reserve and self._needed(held, hit, min(held.known, rules.max_model_len), admission=True) > left:
            return False
        total = hit.tokens + tokens
        slots = min(total + rules.lookahead, rules.max_model_len)
        if self._needed(held, hit, slots) > left:
            return False
        held.junction = hit.junction
        for group, table, columns in zip(self.groups, held.tables, hit.columns, strict=True):
            if columns:
                group.adopt(table, columns, hit.tokens, pool)
        for group, table in zip(self.groups, held.tables, strict=True):
            group.extend(table, slots, pool)
        return True

    def split(self, held: Held, start: int, tokens: int, most: int) -> int:
        """The tokens of a chunk that ends where states can be kept. Source: scheduler.py ``_mamba_block_aligned_split``."""
        end_of_prefill = max(held.prompt, held.known - 1)
        if start >= end_of_prefill:
            return tokens
        size = self.states[0].size
        end, last_kept = start + tokens, (held.known - 1) // size * size
        position = (end_of_prefill - 1) // size * size
        inside = end >= end_of_prefill and all(group.exports(start, end, position) for group in self.states)
        if inside:
            last_kept = 0
        if end < end_of_prefill:
            aligned = end // size * size
            if aligned > start or size <= most:
                end = aligned
        stops = [
            0 if inside or not start % size else (start // size + 1) * size,
            last_kept,
            start + (held.junction - start) // size * size if start < held.junction < end else 0,
        ]
        end = min([stop for stop in stops if start < stop < end], default=end)
        return max(end - start, 0)

    def grow(self, held: Held, tokens: int) -> bool:
        """Give a running request blocks for ``tokens`` more tokens; whether they were there."""
        pool, total = self.pool, held.computed + tokens
        slots = min(total + self.rules.lookahead, self.rules.max_model_len)
        processed = max(0, held.computed - held.in_flight)
        for group, table in zip(self.groups, held.tables, strict=True):
            group.drop(table, processed, pool)
        if self._needed(held, None, slots) > pool.free:
            return False
        for group, table in zip(self.groups, held.tables, strict=True):
            group.extend(table, slots, pool)
        self.publish(held, min(total, held.known))
        return True

    def publish(self, held: Held, tokens: int) -> None:
        """Name the blocks that the first ``tokens`` tokens fill."""
        rules = self.rules
        if not rules.caching:
            return
        if rules.hash_ahead:
            tokens = min(tokens - rules.unsettled, held.known - rules.hash_ahead)
        if len(self.groups) > 1:
            tokens = tokens // self.alignment * self.alignment
        if held.own:
            held.filled = max(held.filled, tokens)
            return
        self._name(held, tokens)
        # Nobody else can have what follows, so that it has time until it is given back.
        held.own = self._only is not None and held.tables[0].hashed >= len(
            held.content.shared(self._only.size, self.rules.hash_ahead)
        )

    def _name(self, held: Held, tokens: int) -> None:
        """Name them in each group that keeps some."""
        kept, rules = self._dense, self.rules
        for group, table in zip(self.groups, held.tables, strict=True):
            if tokens // group.size > table.hashed:
                if group.sparse and kept is self._dense and not self._dense.dense:
                    boundaries = (held.prompt - 1, held.junction) if held.junction else (held.prompt - 1,)
                    kept = Kept(boundaries, rules.retention)
                group.publish(table, tokens, self._names(held, group), kept, self.pool)

    def release(self, held: Held, *, ended: bool = False) -> None:
        """Take everything back from a request, which may come back if it has not ``ended``."""
        unfound = 0
        if held.own:
            if ended:
                unfound = max(0, held.filled // self.groups[0].size - held.tables[0].hashed)
            else:
                self._name(held, held.filled)
            held.own, held.filled = False, 0
        for group, table in zip(self.groups, held.tables, strict=True):
            group.release(table, self.pool, unfound)
        held.tables = []

    def open(self, held: Held) -> None:
        """Begin tables for a request that holds nothing."""
        held.tables = [Table() for _ in self.groups]

    def is_settled(self, held: Held) -> bool:
        """True if the request only takes further blocks, in which nobody else can find anything."""
        return self._only is not None and (held.own or not self.rules.caching)

    def catch_up(self, held: Held) -> None:
        """Enter the blocks that a settled request has taken into its table."""
        assert self._only is not None
        columns = held.tables[0].columns
        columns += [PLAIN] * (-(-held.computed // self._only.size) - len(columns))

    def next_change(self, held: Held, lag: int) -> int:
        """The tokens before a decoding step of the request from which on it takes or gives back blocks."""
        change = NEVER
        for group, table in zip(self.groups, held.tables, strict=True):
            change = min(change, group.next_change(table, lag))
        return change

    def _needed(self, held: Held, hit: Hit | None, tokens: int, *, admission: bool = False) -> int:
        """Free blocks that the request needs in all groups for ``tokens`` tokens."""
        needed, pool = 0, self.pool
        start = held.computed if hit is None else hit.tokens
        end = max(held.prompt, held.known - 1) if self.rules.retention == 0 else 0
        for number, (group, table) in enumerate(zip(self.groups, held.tables, strict=True)):
            columns: Sequence[Column] = () if hit is None else hit.columns[number]
            needed += group.needed(table, tokens, columns, start, pool, admission=admission, end=end)
        return needed

    def _names(self, held: Held, group: Group) -> Names:
        """The names of blocks of a request in a group."""
        of_content = partial(held.content.names, group.size, ahead=self.rules.hash_ahead)
        offset = group.number * _GROUP
        if not offset:
            return of_content

        def names(start: int, stop: int) -> Sequence[int]:
            return [name + offset for name in of_content(start, stop)]

        return names


def _alike(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that follow one rule together, those that keep every token first."""
    kinds: dict[object, list[Group]] = {}
    for group in groups:
        kinds.setdefault(group.rule, []).append(group)
    return sorted(kinds.values(), key=lambda alike: type(alike[0]) is not Group)
