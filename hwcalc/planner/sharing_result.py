"""What a plan says of sequences that have tokens in common."""

from __future__ import annotations

from hwcalc.engines.sharing import SharedBlocks
from hwcalc.engines.steps import Step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

class SharingInfo(Record):
    """Tokens that several sequences have in common, and what keeping them once saves.

    ``sequences`` are all that are alive: ``batch`` x ``samples`` x ``beams``; ``lengths`` are their tokens and how many requests have as many,
    where they are unlike. ``shared_tokens`` are kept once for all of them, and ``request_tokens`` once for the branches of one request;
    ``own_tokens`` are those of each sequence alone, of the longest. ``padded_tokens`` are kept beside them for no other reason than that a
    sequence is shorter than the longest.

    Of a paged cache, ``groups`` has the blocks of each group of layers, and the other blocks are of all groups together:
    ``shared_blocks`` once for all, ``request_blocks`` of each request and ``own_blocks`` of each sequence. ``copied_blocks`` are last blocks
    of prompts that are not kept once, though all their tokens are the same: every branch but one has its own.

    ``unshared_bytes`` is the cache with every sequence by itself. ``low_bytes`` is the cache while beams still share all but their last
    block; they may part at the first token, and the plan has room for that. ``support`` says how the engine shares, or that it does not.
    """

    definition: Definition
    offered: bool
    support: str
    sequences: int
    shared_tokens: int
    request_tokens: int
    own_tokens: int
    shared_blocks: int | None
    request_blocks: int | None
    own_blocks: int | None
    copied_blocks: int | None
    unshared_bytes: int
    saved_bytes: int
    low_bytes: int | None = None
    padded_tokens: int = 0
    lengths: tuple[tuple[int, int], ...] = ()
    groups: tuple[SharedBlocks, ...] = ()
    steps: tuple[Step, ...] = ()
