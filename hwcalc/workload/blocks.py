"""Names for the contents of blocks: two blocks have one name if they hold the same tokens behind the same tokens."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwcalc.workload.request import Request

Piece = tuple[Hashable, int, int]
"""The id of a segment, the first of its tokens, and how many."""


class BlockNames:
    """Numbers for the whole blocks of requests, as a prefix cache tells them apart: by their tokens and all tokens before them.

    >>> from hwcalc.workload.request import Request, Segment
    >>> names, system = BlockNames(16), Segment("system", 40)
    >>> names.of(Request(number=0, prompt_tokens=70, output_tokens=9, prefix=(system,)))
    (0, 1, 2, 3)
    >>> names.of(Request(number=1, prompt_tokens=70, output_tokens=9, prefix=(system,)))
    (0, 1, 4, 5)

    Blocks 0 and 1 are of the system prompt alone; the third one ends with tokens of the request's own.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[int, tuple[Piece, ...]], int] = {}
        self.count = 0
        """How many names there are: they are 0 to this number."""

    def of(self, request: Request, tokens: int | None = None) -> tuple[int, ...]:
        """The names of the request's first whole blocks: those in the first ``tokens`` tokens of prompt and output, or in the prompt.

        Blocks with tokens of the request's own get new names at every call, and so do all blocks behind them.
        """
        whole = (request.prompt_tokens if tokens is None else tokens) // self.block_size
        names: list[int] = []
        before = -1
        for pieces in self._blocks(request, whole):
            key = (before, pieces)
            name = self._names.get(key)
            before = self._names[key] = self._new() if name is None else name
            names.append(before)
        names += [self._new() for _ in range(whole - len(names))]
        return tuple(names)

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _blocks(self, request: Request, whole: int) -> Iterator[tuple[Piece, ...]]:
        """The pieces of each whole block, up to the first block with a token of the request's own."""
        pieces, room = list[Piece](), self.block_size
        segments = [(segment.id, segment.tokens) for segment in request.prefix]
        if request.output_id is not None and request.prefix_tokens == request.prompt_tokens:
            segments.append((request.output_id, request.output_tokens))
        for name, tokens in segments:
            start = 0
            while start < tokens and whole > 0:
                taken = min(room, tokens - start)
                pieces.append((name, start, taken))
                start, room = start + taken, room - taken
                if not room:
                    yield tuple(pieces)
                    pieces, room, whole = [], self.block_size, whole - 1
