"""The layers of a decode step and of a prompt, where they are not those of the model at the planned length."""

from __future__ import annotations

from hwcalc.engines.deployment import Occupancy
from hwcalc.formulas import LatentAttention, Stack
from hwcalc.formulas.record import Record

class Passes(Record):
    """``decode`` are the layers with the tokens that a step reads, and ``prompt`` those of a prompt of ``prompt_tokens`` tokens.

    ``beside_bytes`` are read in a step for each sequence beside the cache, on one rank: the keys of pages.
    """

    decode: Stack
    prompt: Stack
    prompt_tokens: int
    beside_bytes: int = 0


def whole_passes(stack: Stack, tokens: int) -> Passes:
    """A step, and a prompt of so many tokens, on the same layers."""
    return Passes(decode=stack, prompt=stack, prompt_tokens=tokens)


def passes_of(opened: Occupancy) -> Passes | None:
    """What a step and a prompt compute on; ``None`` if they are the layers of the model, each as long as the sequence."""
    evicted, plain = opened.evicted, opened.plain_stack
    prompt = opened.tokens if opened.request.prompt is None else opened.request.prompt_tokens
    if evicted is None:
        if prompt == opened.tokens and not opened.expands_latents():
            return None
        return whole_passes(_as_stored(plain, opened), prompt)
    from hwcalc.engines.peaks import pages_bytes

    return Passes(
        decode=_as_stored(evicted.read_stack, opened),
        prompt=_as_stored(plain, opened),
        prompt_tokens=opened.request.prompt_tokens,
        beside_bytes=pages_bytes(opened),
    )


def _as_stored(stack: Stack, opened: Occupancy) -> Stack:
    """Latents as keys and values of every head, if the engine stores them so."""
    if not opened.expands_latents():
        return stack
    return Stack(
        tuple(tuple(kind.expanded() if isinstance(kind, LatentAttention) else kind for kind in layer) for layer in stack)
    )
