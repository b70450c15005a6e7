"""What a plan says of sequences that have tokens in common."""

from __future__ import annotations

from hwcalc.formulas.frozen import frozen
from hwcalc.model import Definition

__all__ = ["SharingInfo"]


@frozen
class SharingInfo:
    """Tokens that several sequences have in common, and what keeping them once saves.

    ``sequences`` are all that are alive: ``batch`` x ``samples`` x ``beams``. ``shared_tokens`` are kept once for all of them, and
    ``request_tokens`` once for the branches of one request; ``own_tokens`` are those of each sequence alone. ``blocks`` of a paged cache are
    whole ones: ``copied_blocks`` are last blocks of a prompt, of which every branch but one has a copy. ``unshared_bytes`` is the cache
    without sharing. ``support`` says how the engine shares, or that it does not.
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
