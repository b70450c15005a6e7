"""SGLang's one radix tree: what is cached of all requests, in a pool of tokens.

A node has the tokens ``start`` to ``end`` of a path; nodes branch at whole pages. What running requests stand on is pinned, all of it from
the root; the rest gives way, whole leaves at a time, in the order of an eviction policy. The pool is three numbers: tokens that are free,
those of nodes that may be evicted, and what is left, which requests hold.

Source: SGLang 0.5.23, mem_cache/unified_radix_cache.py ``checkpoint_into_tree``, mem_cache/unified_cache/unified_tree_core.py,
mem_cache/evict_policy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hwcalc.replay.content import Content

_PATH: Final = 1 << 20
"""More nodes than a path has: a look-up touches each ancestor a little earlier than the node below it."""
_PROTECTED_HITS: Final = 2
"""Hits from which slru keeps a node longer."""


class Node:
    """Tokens of a path in the tree."""

    __slots__ = (
        "children",
        "content",
        "created",
        "end",
        "hits",
        "locks",
        "mark",
        "parent",
        "part",
        "part_locks",
        "priority",
        "queued",
        "start",
        "time",
    )

    def __init__(self, parent: Node | None, content: Content | None, start: int, end: int, *, priority: int, now: int) -> None:
        self.parent = parent
        self.content = content
        """A request's tokens that lead here."""
        self.start = start
        self.end = end
        self.children: dict[int, Node] = {}
        self.locks = 0
        """Running requests that stand on it."""
        self.time = now
        self.created = now + _PATH
        self.hits = 0
        """Publications through it, by requests that had not counted it."""
        self.priority = priority
        self.part = 0
        """The part that it has of a second pool."""
        self.part_locks = 0
        """Running requests that need this part."""
        self.mark: int | None = None
        """Where it ends the window of requests: a number by which they know it."""
        self.queued = False
        """True if it stands among the candidates for eviction."""

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self.end - self.start

    def path(self) -> Iterator[Node]:
        """The node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


_Key = Callable[[Node], Any]
EVICTION: Final[dict[str, _Key]] = {
    "lru": lambda node: node.time,
    "lfu": lambda node: (node.hits, node.time),
    "fifo": lambda node: node.created,
    "mru": lambda node: -node.time,
    "filo": lambda node: -node.created,
    "priority": lambda node: (node.priority, node.time),
    "slru": lambda node: (node.hits >= _PROTECTED_HITS, node.time),
}
"""``radix_eviction_policy`` -> what decides who goes first: the least."""


class RadixCache:
    """A pool of ``size`` tokens in pages, and the tree of what is cached in it."""

    splits_at_prompt = True
    """True if outputs become nodes of their own, which go before their prompts."""

    def __init__(self, size: int, page: int, *, policy: str = "lru", enabled: bool = True) -> None:
        self.size = size
        self.page = page
        self.enabled = enabled
        self.free = size
        self.evictable = 0
        self.root = Node(None, None, 0, 0, priority=0, now=0)
        self._key = EVICTION[policy]
        self._moves_forward = policy == "mru"
        """True if a node that is used goes earlier."""
        self._leaves: list[tuple[Any, int, Node]] = []
        """Candidates for eviction. Those that are no longer are passed over, and those that were used since are put back."""
        self._clock = 0
        self._entries = 0

    @property
    def available(self) -> int:
        """Tokens that are free or may be evicted."""
        return self.free + self.evictable

    @property
    def used(self) -> int:
        """Tokens that requests hold."""
        return self.size - self.free - self.evictable

    def nodes(self) -> Iterator[Node]:
        """All nodes without the root, parents before their children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # Looking up.

    def match(self, content: Content, tokens: int) -> tuple[int, Node]:
        """The number of the first ``tokens`` tokens that are cached, in whole pages, and the node at their end. It is used now.

        A node that is matched in part is split.
        """
        if not self.enabled:
            return 0, self.root
        node, at = self._walk(content, tokens // self.page * self.page)
        if tokens >= self.page:
            self._use(node)
        return at, node

    def _nodes_of(self, content: Content, tokens: int) -> Iterator[tuple[Node, int]]:
        """The nodes that hold the first tokens, from the root, each with up to where it holds them: the last one perhaps not to its end."""
        node, at = self.root, 0
        while at < tokens:
            child = node.children.get(content.chain_at(at + self.page - 1))
            if child is None:
                return
            at = self._common(child, content, tokens)
            yield child, at
            if at < child.end:
                return
            node = child

    def _walk(self, content: Content, tokens: int) -> tuple[Node, int]:
        node, at = self.root, 0
        for node, at in self._nodes_of(content, tokens):
            if at < node.end:
                return self._split(node, at), at
        return node, at

    def peek(self, content: Content, tokens: int) -> int:
        """The number of the first tokens that are cached. Nothing changes."""
        return max((at for _, at in self._nodes_of(content, tokens // self.page * self.page)), default=0)

    def _common(self, node: Node, content: Content, tokens: int) -> int:
        """Up to where a node has the same tokens, in whole pages."""
        most = min(node.end, tokens)
        known = node.content
        assert known is not None
        if content.chain_at(most - 1) == known.chain_at(most - 1):
            return most
        return content.shared_tokens(known, most) // self.page * self.page

    def _use(self, node: Node) -> None:
        """A look-up ends here: the node is used now, and each one above it a little earlier."""
        self._clock += _PATH
        now = self._clock
        above: Node | None = node
        while above is not None:
            above.time = now
            now -= 1
            above = above.parent
        if self._moves_forward:
            self._enqueue(node)

    def _touch(self, node: Node) -> None:
        self._clock += _PATH
        node.time = self._clock
        if self._moves_forward:
            self._enqueue(node)

    def _split(self, node: Node, at: int) -> Node:
        """Split a node; returns its upper part, which is new."""
        parent, content = node.parent, node.content
        assert parent is not None
        assert content is not None
        upper = self._new(parent, content, node.start, at, node.priority)
        upper.hits, upper.created, upper.locks = node.hits, node.created, node.locks
        parent.children[content.chain_at(node.start + self.page - 1)] = upper
        upper.children[content.chain_at(at + self.page - 1)] = node
        node.parent, node.start = upper, at
        self._on_split(upper, node)
        self._touch(node)
        return upper

    def _new(self, parent: Node, content: Content, start: int, end: int, priority: int) -> Node:
        node = Node(parent, content, start, end, priority=priority, now=self._clock + _PATH)
        self._clock += 2 * _PATH
        return node

    # Publishing.

    def insert(self, content: Content, tokens: int, *, kept: int, counted: int, priority: int) -> Node:
        """Put the first ``tokens`` tokens of a request, whole pages, into the tree; returns the node at their end.

        Up to ``kept`` the request already reads the tree's; what else was cached meanwhile it gives back. ``counted`` tokens it had
        published before.
        """
        self._touch(self.root)
        node, at = self.root, 0
        while at < tokens:
            child = node.children.get(content.chain_at(at + self.page - 1))
            if child is None:
                break
            self._touch(child)
            end = self._common(child, content, tokens)
            if end < child.end:
                child = self._split(child, end)
            child.priority = max(child.priority, priority)
            self._meet(child, kept)
            if end > counted:
                child.hits += 1
            node, at = child, end
        if at == tokens:
            return node
        leaf = self._new(node, content, at, tokens, priority)
        node.children[content.chain_at(at + self.page - 1)] = leaf
        self.evictable += leaf.tokens
        self._on_leaf(leaf)
        leaf.hits = int(tokens > counted)
        self._enqueue(leaf)
        return leaf

    def _meet(self, node: Node, kept: int) -> None:
        """A request that publishes comes to a node that is there: it gives its own tokens back."""
        self.free += max(0, node.end - max(kept, node.start))

    # Pinning.

    def lock(self, node: Node) -> int | None:
        """Pin the path to a node. What it returns is for :meth:`unlock`."""
        above: Node | None = node
        while above is not None and above.parent is not None:
            if not above.locks:
                self.evictable -= above.end - above.start
            above.locks += 1
            above = above.parent
        return None

    def unlock(self, node: Node, mark: int | None = None) -> None:
        """Undo what :meth:`lock` did."""
        above: Node | None = node
        while above is not None and above.parent is not None:
            above.locks -= 1
            if not above.locks:
                self.evictable += above.end - above.start
                self._enqueue(above)
            above = above.parent

    # Eviction.

    def evict(self, free: int) -> bool:
        """Evict leaves until so many tokens are free; whether they are."""
        while self.free < free:
            leaf = self._pop()
            if leaf is None:
                return False
            self._delete(leaf)
        return True

    def _enqueue(self, node: Node) -> None:
        if node.locks or node.children or node.parent is None or (node.queued and not self._moves_forward):
            return
        node.queued = True
        self._entries += 1
        heappush(self._leaves, (self._key(node), self._entries, node))

    def _pop(self) -> Node | None:
        """The leaf that goes next."""
        leaves = self._leaves
        while leaves:
            key, _, node = heappop(leaves)
            node.queued = False
            if node.locks or node.children or node.parent is None:
                continue
            if key == self._key(node):
                return node
            if not self._moves_forward:
                self._enqueue(node)
        return None

    def _delete(self, leaf: Node) -> None:
        parent, content = leaf.parent, leaf.content
        assert parent is not None
        assert content is not None
        del parent.children[content.chain_at(leaf.start + self.page - 1)]
        leaf.parent = None
        self.evictable -= leaf.tokens
        self.free += leaf.tokens
        self._enqueue(parent)

    # What other kinds of layers add.

    def _on_split(self, upper: Node, lower: Node) -> None:
        """A node was split."""

    def _on_leaf(self, leaf: Node) -> None:
        """A leaf was added."""
