"""SGLang's scheduler where layers have windows or recurrent states, which have pools of their own. The tree has parts of both pools.

What a node has of the second pool may go before the node itself: then its tokens are found, and cannot be used for want of a window or a
state at their end. The second pool has an order of its own in which its parts go, the least recently used first.

Source: SGLang 0.5.23, managers/schedule_batch.py ``maybe_evict_swa``, mem_cache/prefill_budget.py ``SWAPrefillBudget``,
mem_cache/common.py ``free_swa_out_of_window_slots``, mem_cache/unified_cache/components/swa.py, components/mamba.py, mem_cache/allocator/swa.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwcalc.replay.sglang.admission import Admission
from hwcalc.replay.sglang.live import Live
from hwcalc.replay.sglang.rules import CLIP, EVICTION_INTERVAL
from hwcalc.replay.sglang.scheduler import SglangScheduler
from hwcalc.replay.sglang.tree import Node, RadixCache

if TYPE_CHECKING:
    from hwcalc.replay.content import Content


class Recency:
    """Nodes by their last use."""

    def __init__(self) -> None:
        self._end = Node(None, None, 0, 0, priority=0, now=0)
        self._newer: dict[Node, Node] = {self._end: self._end}
        self._older: dict[Node, Node] = {self._end: self._end}

    def __contains__(self, node: Node) -> bool:
        return node in self._newer

    def use(self, node: Node) -> None:
        """A node is used now."""
        self.remove(node)
        self._put(self._older[self._end], node)

    def put_before(self, node: Node, other: Node) -> None:
        """Put ``node`` where it goes just before ``other``."""
        self._put(self._older[other], node)

    def _put(self, older: Node, node: Node) -> None:
        newer = self._newer[older]
        self._newer[older] = self._older[newer] = node
        self._newer[node], self._older[node] = newer, older

    def remove(self, node: Node) -> None:
        """A node has no part any more."""
        if node in self._newer:
            newer, older = self._newer.pop(node), self._older.pop(node)
            self._newer[older], self._older[newer] = newer, older

    def first(self) -> Node | None:
        """The node that goes first: the least recently used that nobody pins."""
        node = self._newer[self._end]
        while node is not self._end:
            if not node.part_locks:
                return node
            node = self._newer[node]
        return None


class SecondCache(RadixCache):
    """A pool of tokens, its tree, and a second pool of ``second`` tokens or slots."""

    splits_at_prompt = False

    def __init__(self, size: int, page: int, second: int, *, policy: str = "lru", enabled: bool = True) -> None:
        super().__init__(size, page, policy=policy, enabled=enabled)
        self.second_size = self.second_free = second
        self.second_evictable = 0
        self.recency = Recency()

    @property
    def second_used(self) -> int:
        """The part of the second pool that requests hold."""
        return self.second_size - self.second_free - self.second_evictable

    def evict_second(self, free: int) -> bool:
        """Evict until so much of the second pool is free; whether it is."""
        while self.second_free < free:
            node = self.recency.first()
            if node is None:
                return False
            if node.locks or node.children:
                self._drop_part(node)
            else:
                self._delete(node)
        return True

    def _set_part(self, node: Node, part: int) -> None:
        """A node gets a part of the second pool that a request had."""
        node.part = part
        self.recency.use(node)
        if not node.part_locks:
            self.second_evictable += part

    def _drop_part(self, node: Node) -> None:
        if node.part:
            self.second_free += node.part
            if not node.part_locks:
                self.second_evictable -= node.part
            node.part = 0
            self.recency.remove(node)

    def _delete(self, leaf: Node) -> None:
        self._drop_part(leaf)
        super()._delete(leaf)

    def _pin_part(self, node: Node) -> None:
        if not node.part_locks:
            self.second_evictable -= node.part
        node.part_locks += 1

    def _unpin_part(self, node: Node) -> None:
        node.part_locks -= 1
        if not node.part_locks:
            self.second_evictable += node.part


class StateCache(SecondCache):
    """Slots for the states of linear attention and the like: a node has the state at its end, or none."""

    _leaf: Node | None = None
    """The leaf that was added last."""

    def match(self, content: Content, tokens: int) -> tuple[int, Node]:
        if not self.enabled or tokens < self.page:
            return 0, self.root
        node, _ = self._walk(content, tokens // self.page * self.page)
        while node.parent is not None and not node.part:
            node = node.parent
        if node.part:
            self.recency.use(node)
        self._use(node)
        return node.end, node

    def peek(self, content: Content, tokens: int) -> int:
        # A look-up would split nodes; what it finds ends at a state.
        nodes = self._nodes_of(content, tokens // self.page * self.page)
        return max((at for node, at in nodes if node.part and at == node.end), default=0)

    def insert(self, content: Content, tokens: int, *, kept: int, counted: int, priority: int) -> Node:
        self._leaf = None
        return super().insert(content, tokens, kept=kept, counted=counted, priority=priority)

    def _on_leaf(self, leaf: Node) -> None:
        self._leaf = leaf

    def put_state(self, node: Node) -> bool:
        """Give the node that was published the state at its end; whether it had none."""
        had = bool(node.part)
        if had:
            self.recency.use(node)
        else:
            self._set_part(node, 1)
        if node is not self._leaf:
            self._touch(node)
        return not had

    def lock(self, node: Node) -> int | None:
        super().lock(node)
        if node.parent is not None:
            self._pin_part(node)
        return None

    def unlock(self, node: Node, mark: int | None = None) -> None:
        if node.parent is not None:
            self._unpin_part(node)
        super().unlock(node, mark)


class WindowCache(SecondCache):
    """A pool for windows: of a node in the tree it has all tokens or none."""

    def __init__(self, size: int, page: int, second: int, window: int, *, policy: str = "lru", enabled: bool = True) -> None:
        super().__init__(size, page, second, policy=policy, enabled=enabled)
        self.window = window
        self.window_pages = -(-max(window, page) // page) * page
        self.gone = 0
        """Up to where the tokens of the request that publishes have left its window."""
        self.branch = 0
        """Up to where the last look-up found tokens, windows aside."""
        self._marks = 0

    def match(self, content: Content, tokens: int) -> tuple[int, Node]:
        if not self.enabled or tokens < self.page:
            self.branch = 0
            return 0, self.root
        last, self.branch = self._walk(content, tokens // self.page * self.page)
        best, covered = self.root, float("inf")
        for node in reversed(list(last.path())):
            covered = covered + node.tokens if node.part else 0
            if node.part and covered >= self.window:
                best = node
        self._use_window(best)
        self._use(best)
        return best.end, best

    def _use_window(self, node: Node) -> None:
        """The window that ends at a node is used."""
        used, covered = list[Node](), 0
        for each in node.path():
            if covered >= self.window + self.page:
                break
            if each.part:
                used.append(each)
            covered += each.tokens
        for each in reversed(used):
            self.recency.use(each)

    def evict(self, free: int) -> bool:
        whole = super().evict(free)
        return self.evict_second(free) and whole if self.enabled else whole and self.second_free >= free

    def lock(self, node: Node) -> int | None:
        super().lock(node)
        covered, mark = 0, None
        for each in node.path():
            if covered >= self.window:
                break
            self._pin_part(each)
            covered += each.tokens
            if covered >= self.window:
                if each.mark is None:
                    self._marks += 1
                    each.mark = self._marks
                mark = each.mark
        return mark

    def unlock(self, node: Node, mark: int | None = None) -> None:
        for each in node.path():
            self._unpin_part(each)
            if mark is not None and each.mark == mark:
                break
        super().unlock(node, mark)

    def insert(self, content: Content, tokens: int, *, kept: int, counted: int, priority: int) -> Node:
        node = super().insert(content, tokens, kept=kept, counted=counted, priority=priority)
        self._use_window(node)
        return node

    def _meet(self, node: Node, kept: int) -> None:
        if kept >= node.end:
            return
        start, end = max(kept, node.start), node.end
        if not node.part and self.gone < node.end:
            # The request's window takes the place of the one that the node has lost.
            alive = max(node.start, self.gone)
            if alive > node.start:
                self._split(node, alive)
            self._set_part(node, node.tokens)
            self.free += node.end - alive
            end = alive
        if start < end:
            self.free += end - start
            self.second_free += end - min(end, max(start, self.gone))

    def _on_leaf(self, leaf: Node) -> None:
        alive = max(leaf.start, self.gone)
        if alive >= leaf.end:
            return
        if alive > leaf.start:
            self._split(leaf, alive)
        upper, tail = None, -(-self.window // self.page) * self.page
        if leaf.tokens > tail:
            upper = self._split(leaf, leaf.end - tail)
            self._set_part(upper, upper.tokens)
        self._set_part(leaf, leaf.tokens)

    def _on_split(self, upper: Node, lower: Node) -> None:
        upper.part_locks = lower.part_locks
        upper.mark, lower.mark = lower.mark, None
        if lower.part:
            upper.part, lower.part = upper.tokens, lower.tokens
            self.recency.put_before(upper, lower)


_UNDER_WAY = 2
"""Chunks of a prompt whose second last has been looked at, where batches overlap."""


class _SecondScheduler(SglangScheduler):
    """A scheduler with a second pool."""

    cache: SecondCache

    def _second(self) -> tuple[int, ...]:
        return self.cache.second_used, self.cache.second_evictable

    def totals(self, turns: int) -> dict[str, Any]:
        used, _ = self.more_columns
        return {
            **super().totals(turns),
            f"peak_{used}": max(self.steps.column(used), default=0),
            "final_second_pool": list(self._second()),
        }


class WindowAdmission(Admission):
    """Admission by two pools: what leaves a window need not fit."""

    cache: WindowCache
    window_total = 0
    """Tokens of the pool of windows that are promised."""

    @property
    def window_left(self) -> int:
        """Tokens of the pool of windows that nobody was promised."""
        return self.cache.second_free + self.cache.second_evictable - self.window_total

    @property
    def has_room(self) -> bool:
        return super().has_room and self.window_left > 0

    def chunk_room(self, most: int) -> int | None:
        room = min(most, int(self.left), self.window_left - self.rules.page_size)
        return room if room > 0 else None

    def _window_tokens(self, extend: int, to_come: int, limit: int | None) -> int:
        """The most tokens of the pool of windows that a prompt takes."""
        window = self.cache.window
        taken = extend if limit is None else min(extend, limit)
        return max(taken - window, 0) + min(extend + to_come, window) + self.rules.page_size

    def check(self, live: Live, extend: int) -> tuple[bool, int | None]:
        fits, limit = super().check(live, extend)
        if not fits:
            return False, None
        to_come, page = max(0, min(live.left, CLIP)), self.rules.page_size
        needed = self._window_tokens(self.rules.pages(extend), to_come, limit)
        if needed < self.window_left:
            return True, limit
        if limit is None or needed < self.cache.second_size:
            return False, None
        # It never fits as it is: smaller chunks take less.
        most = (self.window_left - self._window_tokens(0, to_come, None)) // page * page
        return (True, min(limit, most)) if most > 0 else (False, None)

    def charge(self, extend: int, to_come: int) -> None:
        self.window_total += self._window_tokens(self.rules.pages(extend), to_come, self.chunk_left)
        super().charge(extend, to_come)

    def _fits_whole(self, live: Live, extend: int, needed: int) -> bool:
        to_come = max(0, min(live.left, CLIP))
        return (
            super()._fits_whole(live, extend, needed)
            and self._window_tokens(extend, to_come, self.chunk_left) <= self.window_left
        )

    def _lasts(self, needed: int) -> bool:
        return True


class WindowScheduler(_SecondScheduler):
    """A scheduler of a model with windows."""

    cache: WindowCache
    more_columns = ("used_window_tokens", "evictable_window_tokens")
    admits = WindowAdmission

    def _new_cache(self) -> WindowCache:
        rules = self.rules
        assert rules.swa_tokens is not None
        return WindowCache(
            rules.max_total_num_tokens,
            rules.page_size,
            rules.swa_tokens,
            rules.sliding_window,
            policy=rules.radix_eviction_policy,
            enabled=not rules.disable_radix_cache,
        )

    def steps_alike(self) -> int:
        # Windows give something back now and then.
        return 0

    def _spend(self, tokens: int) -> None:
        super()._spend(tokens)
        self.cache.second_free -= tokens

    def _look_up(self, live: Live) -> None:
        super()._look_up(live)
        live.branch = self.cache.branch if self.cache.branch > live.prefix else None

    def _before_extend(self, admitted: list[Live]) -> None:
        if self.cache.enabled:
            return
        for live in admitted:
            done = live.prefix
            if self.rules.overlap:
                # The chunk before is still computed.
                if live.chunks < _UNDER_WAY:
                    continue
                done -= self.rules.chunked_prefill_size or 0
            self._slide(live, done)

    def _take_decode(self) -> None:
        window, steps = self.cache.window, self.running.steps
        for live in self.running:
            if steps > live.since:
                known = live.offset + steps - self._in_flight(live)
                if known - window >= live.window_start + EVICTION_INTERVAL:
                    self._slide(live, known)
        super()._take_decode()

    def _slide(self, live: Live, tokens: int) -> None:
        """Give back what of a request's first tokens is behind its window and its own."""
        cache, page = self.cache, self.rules.page_size
        if tokens - cache.window <= live.window_start:
            return
        start = max(live.window_start, live.protected)
        until = (tokens - (cache.window_pages if cache.enabled else cache.window)) // page * page
        cache.second_free += max(0, until - start)
        live.window_start = max(start, until)

    def _publish(self, live: Live, tokens: int, *, finished: bool = False) -> None:
        cache = self.cache
        if not cache.enabled:
            return
        branch = live.branch
        # The window at a branch is published first, so that others find it.
        stops = branch is not None and live.protected < branch <= tokens
        if stops:
            assert branch is not None
            tokens = branch
        if not finished:
            self._slide(live, tokens - 1)
        cache.gone = live.window_start
        super()._publish(live, tokens, finished=finished)
        if stops:
            live.branch = None
            if not finished:
                self._slide(live, live.end - 1)

    def _release(self, live: Live) -> None:
        self.cache.second_free += self.rules.pages(live.stored) - max(live.protected, live.window_start)
        super()._release(live)


class StateScheduler(_SecondScheduler):
    """A scheduler of a model with recurrent states, whose strategy is ``no_buffer``."""

    cache: StateCache
    more_columns = ("used_slots", "evictable_slots")

    def _new_cache(self) -> StateCache:
        rules = self.rules
        assert rules.state_slots is not None
        return StateCache(
            rules.max_total_num_tokens,
            rules.page_size,
            rules.state_slots,
            policy=rules.radix_eviction_policy,
            enabled=not rules.disable_radix_cache,
        )

    def _look_up(self, live: Live) -> None:
        super()._look_up(live)
        node = live.node
        if node is None or not node.part or live.slot:
            return
        # The state is copied for the request.
        if not self.cache.second_free:
            mark = self.cache.lock(node)
            self.cache.evict_second(1)
            self.cache.unlock(node, mark)
        self._take_slot(live)

    def _take_slot(self, live: Live) -> None:
        self.cache.second_free -= 1
        live.slot = True

    def _let_go(self, live: Live) -> None:
        if live.slot:
            self._give_slot(live)

    def _give_slot(self, live: Live) -> None:
        self.cache.second_free += 1
        live.slot = False

    def _before_extend(self, admitted: list[Live]) -> None:
        new = [live for live in admitted if not live.slot]
        if self.cache.enabled:
            self.cache.evict_second(len(new))
        for live in new:
            self._take_slot(live)

    def _publish(self, live: Live, tokens: int, *, finished: bool = False) -> None:
        cache = self.cache
        if not cache.enabled:
            return
        if not finished:
            cache.evict_second(1)
            cache.second_free -= 1
        super()._publish(live, tokens)
        assert live.node is not None
        taken = cache.put_state(live.node)
        if finished:
            live.slot = not taken
        elif not taken:
            cache.second_free += 1

    def _release(self, live: Live) -> None:
        if live.slot:
            self._give_slot(live)
        super()._release(live)
