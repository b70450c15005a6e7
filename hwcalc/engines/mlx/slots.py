"""The cache classes of mlx-lm, by the slots that they hold: a prompt goes in pieces, and what comes behind it token by token.

A slot holds one token. ``KVCache`` and ``ChunkedKVCache`` grow in steps of 256 slots; a ``RotatingKVCache`` joins what it keeps and
the whole next piece of a prompt, and is cut to its window by the first token that comes alone. So 2,048 tokens at once in a window of 128
take 2,048 slots, the next 2,048 take 127 + 2,048, and the token behind them 128.
Source: mlx-lm 0.32.2 models/cache.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from hwcalc.formulas.stairs import Stair, blocks_stair, stairs_at
from hwcalc.formulas.tensor import Span

STEP: Final = 256
"""Slots by which a cache grows."""


def _steps(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


@lru_cache(maxsize=4096)
def grown_slots(prompt: int, alone: int, piece: int) -> int:
    """Slots of a ``KVCache`` after a prompt in pieces, and so many tokens that came alone.

    >>> grown_slots(300, 0, 2048), grown_slots(100, 200, 2048), grown_slots(5000, 0, 2048)
    (512, 512, 5120)
    """
    slots = _piece_slots(prompt, piece) if piece % STEP else _steps(prompt)
    held = prompt + alone
    return slots if held <= slots else slots + _steps(held - slots)


def _piece_slots(prompt: int, piece: int) -> int:
    """The slots after a prompt, for pieces that are no multiple of 256: slots that are not full are cut off before the cache grows."""
    slots = held = 0
    while held < prompt:
        # Pieces that fit into free slots change nothing.
        held += max(0, min(slots, prompt) - held) // piece * piece
        taken = min(piece, prompt - held)
        if taken and held + taken > slots:
            slots = (held if held % STEP else slots) + _steps(taken)
        held += taken
    return slots


def rotating_slots(prompt: int, alone: int, piece: int, window: int) -> int:
    """Slots of a ``RotatingKVCache``. A piece of one token counts among those that come alone.

    >>> [rotating_slots(2048, 0, 2048, 128), rotating_slots(4096, 0, 2048, 128), rotating_slots(2048, 10, 2048, 128)]
    [2048, 2175, 128]
    >>> rotating_slots(100, 400, 2048, 4096)
    612
    """
    last = (prompt - 1) % piece + 1 if prompt else 0
    if last == 1:
        alone += prompt if piece == 1 else 1
        prompt -= prompt if piece == 1 else 1
        last = min(prompt, piece)
    slots = min(prompt - last, window - 1) + last
    if not alone:
        return slots
    return window if slots >= window else min(window, slots + _steps(alone))


def chunked_slots(prompt: int, alone: int, piece: int, chunk: int) -> int:
    """Slots of a ``ChunkedKVCache``: what is older than the chunk is cut off before the next piece, or the next token, comes.

    >>> chunked_slots(12288, 0, 2048, 8192), chunked_slots(12288, 5, 2048, 8192)
    (10240, 8448)
    """
    last = 1 if alone else (prompt - 1) % piece + 1
    if prompt + alone - last > chunk:
        return chunk + _steps(last)
    return grown_slots(prompt, alone, piece)


class Pieces(Span):
    """The slots of a cache class. ``piece`` is ``prefill_step_size``, and ``prompt`` the tokens of the prompt; 0 is all."""

    __slots__ = ()

    def __init__(self, piece: int, prompt: int, *numbers: int) -> None:
        super().__init__(piece, prompt, *numbers)

    def parts(self, tokens: int) -> tuple[int, int]:
        """Of so many tokens those of the prompt, and those that came alone."""
        prompt = min(tokens, self.numbers[1] or tokens)
        return prompt, tokens - prompt

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        if self.has_stairs:
            return stairs_at(self.stairs(), tokens)
        return self.slots(*self.parts(tokens)) if tokens > 0 else 0

    def slots(self, prompt: int, alone: int) -> int:
        """The slots after a prompt and so many tokens that came alone."""
        raise NotImplementedError

    @property
    def has_stairs(self) -> bool:
        """Whether :meth:`stairs` are known."""
        return False

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        """The slots behind the last whole piece of a prompt of so many tokens, none of which is left over. Only with :attr:`has_stairs`."""
        raise NotImplementedError


class Grown(Pieces):
    """Every token, in steps of 256 slots."""

    __slots__ = ()

    def __init__(self, piece: int, prompt: int) -> None:
        super().__init__(piece, prompt)

    def slots(self, prompt: int, alone: int) -> int:
        return grown_slots(prompt, alone, self.numbers[0])

    @property
    def has_stairs(self) -> bool:
        return self.numbers[0] % STEP == 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        return (blocks_stair(STEP, times=STEP),)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        return (Stair(times=self.numbers[0], per=self.numbers[0]),)

    @property
    def text(self) -> str:
        return f"roundup(n, {STEP})" if self.numbers[0] % STEP == 0 else f"n in pieces of {self.numbers[0]:,}, in steps of {STEP}"


class Rotating(Pieces):
    """The last ``window`` tokens once one came alone; behind a prompt all of its last piece and ``window`` - 1 before it."""

    __slots__ = ()

    def __init__(self, piece: int, prompt: int, window: int) -> None:
        super().__init__(piece, prompt, window)

    def slots(self, prompt: int, alone: int) -> int:
        piece, _, window = self.numbers
        return rotating_slots(prompt, alone, piece, window)

    @property
    def has_stairs(self) -> bool:
        piece, prompt, window = self.numbers
        return not prompt and piece > 1 and window // piece < 16

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        """The last piece, what is kept before it, and the step by which a piece of one token grows a window that is not full."""
        piece, _, window = self.numbers
        alone = min(window, STEP) - 1
        out = [Stair(), Stair(times=-piece, per=piece, add=-1), Stair(times=alone, most=1), Stair(times=-alone, per=2, most=1)]
        full, rest = divmod(window - 1, piece)
        for number in range(1, full + 1):
            held = number * piece
            out.append(Stair(times=piece, per=held + 1, most=1))
            more = min(window, held + STEP) - held - 1
            out += [Stair(times=more, per=held + 1, most=1), Stair(times=-more, per=held + 2, most=1)]
        out.append(Stair(times=rest, per=(full + 1) * piece + 1, most=1))
        return tuple(stair for stair in out if stair.times)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        piece, _, window = self.numbers
        full, rest = divmod(window - 1, piece)
        before = [Stair(times=piece, per=(number + 1) * piece, most=1) for number in range(1, full + 1)]
        last = Stair(times=rest, per=(full + 2) * piece, most=1)
        return (Stair(times=piece, per=piece, most=1), *before, *((last,) if rest else ()))

    @property
    def text(self) -> str:
        piece, prompt, window = self.numbers
        if prompt:
            return f"min(n, {window:,}) behind a prompt of {prompt:,}"
        return f"the last piece of n (of {piece:,}) and min(the rest, {window - 1:,})"


class Chunked(Pieces):
    """The newest ``chunk`` tokens and the piece behind them, in steps of 256 slots."""

    __slots__ = ()

    def __init__(self, piece: int, prompt: int, chunk: int) -> None:
        super().__init__(piece, prompt, chunk)

    def slots(self, prompt: int, alone: int) -> int:
        piece, _, chunk = self.numbers
        return chunked_slots(prompt, alone, piece, chunk)

    @property
    def has_stairs(self) -> bool:
        piece, prompt, chunk = self.numbers
        return not prompt and piece % STEP == 0 and chunk % piece == 0

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        """Behind the chunk and one more piece, each piece lets go of the one before it."""
        piece, _, chunk = self.numbers
        let_go = (Stair(times=-piece, per=piece, add=-1), Stair(times=piece, per=piece, add=-1, most=chunk // piece))
        return (blocks_stair(STEP, times=STEP), *let_go)

    @property
    def at_pieces(self) -> tuple[Stair, ...]:
        piece, _, chunk = self.numbers
        return (Stair(times=piece, per=piece, most=chunk // piece + 1),)

    @property
    def text(self) -> str:
        return f"min(roundup(n, {STEP}), {self.numbers[2]:,} and the last piece)"
