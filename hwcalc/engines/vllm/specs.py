"""What one layer asks of the pool: the bytes of a block, the tokens in it, and how many a request needs.

A page is the bytes of one block of one layer on one rank: heads x (block size / tokens per state) x bytes per head and token.

>>> spec = attention_spec("full", block_size=16, heads=8, row=512, tag="bf16")
>>> spec.page
65536

Source: vLLM 0.33, v1/kv_cache_interface.py.
"""

from __future__ import annotations

from typing import NamedTuple

from hwcalc.formulas.frozen import frozen

__all__ = ["Limits", "Spec", "attention_spec", "blocks_of", "ceil_div", "state_spec"]

FULL_FORMS = frozenset({"full", "mla"})
LATENT_FORMS = frozenset({"mla", "sliding_mla"})


class Spec(NamedTuple):
    """The cache of one layer on one rank.

    ``form`` is full, mla, sliding, sliding_mla, chunked, cross or state; ``limit`` the window or chunk; ``states`` how many blocks
    a request holds of a recurrent state, whatever its length; ``tag`` what else must be equal for a merge.
    """

    form: str
    block_size: int
    page: int
    limit: int = 0
    states: int = 0
    tag: str = ""


@frozen
class Limits:
    """The numbers of the engine that blocks per request depend on, beside the length."""

    in_flight: int
    """Tokens that are scheduled and not yet settled: batches in flight x the largest batch."""
    retained: int
    """Tokens below the window that draft modules may read again."""
    dcp: int
    encoder_tokens: int


def ceil_div(number: int, divisor: int) -> int:
    """Division of whole numbers, rounded up."""
    return -(-number // divisor)


def attention_spec(
    form: str,
    *,
    block_size: int,
    heads: int,
    row: int,
    tag: str,
    limit: int = 0,
    per_state: int = 1,
    alignment: int = 1,
) -> Spec:
    """``row`` is the bytes of one head and state; ``per_state`` tokens make one state; pages are rounded up to ``alignment``."""
    page = ceil_div(heads * (block_size // per_state) * row, alignment) * alignment
    return Spec(form=form, block_size=block_size, page=page, limit=limit, tag=tag)


def state_spec(*, block_size: int, bytes_: int, states: int, padded: int, tag: str) -> Spec:
    """A recurrent state, stretched to the page of the attention beside it."""
    return Spec(form="state", block_size=block_size, page=max(bytes_, padded), states=states, tag=tag)


def blocks_of(spec: Spec, length: int, limits: Limits) -> int:
    """Blocks that one request of ``length`` tokens may hold at once.

    A window of three may start inside a block: with blocks of two, BCD of ABCD lies in [AB][CD], so one block more.
    """
    if spec.form in FULL_FORMS:
        return ceil_div(ceil_div(length, limits.dcp), spec.block_size)
    if spec.form in ("sliding", "sliding_mla"):
        kept = min(spec.limit - 1 + limits.retained + limits.in_flight, length)
        return ceil_div(kept, spec.block_size) + 1
    if spec.form == "chunked":
        return ceil_div(min(spec.limit + limits.in_flight, length), spec.block_size)
    if spec.form == "cross":
        return ceil_div(limits.encoder_tokens, spec.block_size)
    return spec.states
