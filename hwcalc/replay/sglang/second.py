"""Pools beside that of tokens: those of windows, and slots for recurrent states. The tree has parts of both.

What a node has of the second pool may go before the node itself: then its tokens are found, and cannot be used for want of a window or a
state at their end. The second pool has an order of its own in which its parts go, the least recently used first.

Source: SGLang 0.5.23, mem_cache/unified_cache/components/swa.py, components/mamba.py, mem_cache/allocator/swa.py,
mem_cache/common.py ``free_swa_out_of_window_slots``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        tokens = tokens // self.page * self.page
        node, at, found = self.root, 0, 0
        while at < tokens:
            child = node.children.get(content.chain_at(at + self.page - 1))
            if child is None:
                break
            at = self._common(child, content, tokens)
            if at < child.end:
                break
            node = child
            found = node.end if node.part else found
        return found

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
