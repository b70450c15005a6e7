"""Policies that choose within or among chunks of the prompt."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import EAGER, Choice, Chosen, Count, Effect, Policy, PolicyOption, Role, Scored, Setting, State
from hwcalc.policies.counting import check_attention, check_scores, check_unmasked, each_layer, kept, scorer_budget
from hwcalc.policies.options import INNER
from hwcalc.policies.scorers import SHARE_FORMULA
from hwcalc.policies.scratch import AT_LEAST, SMALL
from hwcalc.policies.worked import by_chunks, each_chunk, share_or_budget

__all__ = ["POLICIES", "whole_chunks"]

_KERNEL: Final = "not eager: it takes no scores of the model"


def whole_chunks(tokens: int, ratio: float, chunk: int) -> Count:
    """Tokens of the chunks that stay. The last chunk is short, and whether it stays depends on the text.

    >>> whole_chunks(100, 0.5, 20), whole_chunks(1000, 0.7, 16)
    (Count(low=40, high=40), Count(low=280, high=288))
    """
    chunks = ceil(tokens / chunk)
    stay = max(1, int(chunks * (1 - ratio)))
    short = (stay - 1) * chunk + (tokens % chunk or chunk)
    return Count(low=short, high=short if stay == chunks else stay * chunk)


def _check(chosen: Chosen, setting: Setting, keys: int, queries: int) -> None:
    check_scores(chosen["press"], Scored(keys=keys, queries=queries, attention=setting.attention))


def _chunkkv(chosen: Chosen, state: State, setting: Setting) -> State:
    """Whole chunks stay, in every head the same; a prompt below one chunk is left to the scorer."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    inner: Chosen = chosen["press"]
    if all(layer.stored.high < chunk for layer in state.layers):
        return inner.policy.prefill(inner, state, setting)
    for layer in state.layers:
        _check(chosen, setting, layer.stored.low, state.hidden)
    check_unmasked(state)

    def stays(number: int, tokens: int) -> Count:
        if tokens >= chunk:
            return whole_chunks(tokens, ratio, chunk)
        return Count.of(scorer_budget(inner, ratio, tokens, setting.layers[number].index, setting.depth))

    def counted(number: int, stored: Count) -> Count:
        ends = (stays(number, stored.low), stays(number, stored.high))
        return Count(low=min(end.low for end in ends), high=max(end.high for end in ends))

    return state.with_stored(tuple(counted(number, layer.stored) for number, layer in enumerate(state.layers)))


def _within_chunks(chosen: Chosen, state: State, setting: Setting) -> State:
    """A share of each chunk stays, of the short last one too."""
    ratio = chosen.ratio
    chunk: int = chosen["chunk_length"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    for layer in state.layers:
        whole, rest = divmod(layer.stored.low, chunk)
        # Hidden states are cut where keys are: behind another policy there are more of them than keys in the last chunk.
        for size, before in ((chunk, 0),) * (whole > 0) + ((rest, whole * chunk),) * (rest > 0):
            _check(chosen, setting, size, min(chunk, state.hidden - before))

    def stays(_: int, tokens: int) -> int:
        whole, rest = divmod(tokens, chunk)
        return whole * kept(chunk, ratio) + (kept(rest, ratio) if rest else 0)

    return each_layer(state, stays)


def _in_blocks(chosen: Chosen, state: State, setting: Setting) -> State:
    """The share of the whole prompt stays; it is found by going through the prompt in blocks."""
    ratio, block = chosen.ratio, chosen["block_size"]
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    for layer in state.layers:
        tokens, stays = layer.stored.low, kept(layer.stored.low, ratio)
        if tokens != state.hidden:
            raise UsageError("block takes a whole prompt: nothing may be dropped before it.", hint="Put it first.")
        for size in {min(block, tokens - stays), (tokens - stays) % block} - {0}:
            _check(chosen, setting, stays + size, stays + size)
    return each_layer(state, lambda _, tokens: kept(tokens, ratio))


def _by_entropy(chosen: Chosen, state: State, setting: Setting) -> State:
    """Chunks whole or in part: exactly the share of the tokens stays."""
    if chosen["low_entropy_chunk_length"] >= chosen["chunk_length"]:
        raise UsageError("entropygatedchunkkv: low_entropy_chunk_length must be below chunk_length.", hint="Make it smaller.")
    ratio = chosen.ratio
    if ratio == 0:
        return state
    check_attention(chosen, setting.attention)
    for layer in state.layers:
        _check(chosen, setting, layer.stored.low, state.hidden)
    return each_layer(state, lambda _, tokens: kept(tokens, ratio))


def _chunk(default: int, name: str = "chunk_length") -> PolicyOption:
    return PolicyOption(name=name, kind="count", default=default, help="tokens of a chunk", least=1)


def _wrapper(name: str, press: str, title: str, source: str, **facts: Any) -> Policy:
    common: dict[str, Any] = {"role": Role.PREFILL, "effect": Effect.FREES, "forbids": EAGER, "kernel": _KERNEL}
    return Policy(name=name, press=press, title=title, source=source, memory="as the scorer inside", **(common | facts))


POLICIES: Final = (
    _wrapper(
        "chunkkv", "ChunkKVPress", "ChunkKV", "arXiv:2502.00299", options=(INNER, _chunk(20)), prefill=_chunkkv, worked=by_chunks, in_prefill=SMALL,
        chooses=Choice.EACH_LAYER, chunk_option="chunk_length",
        keeps="whole chunks of chunk_length tokens, the same in every head of a layer",
        formula="k chunks of c tokens, k = max(1, int(ceil(n / c) x (1 - r))); c - n mod c fewer in layers that choose the short last one",
    ),
    _wrapper(
        "entropygatedchunkkv", "EntropyGatedChunkKVPress", "ChunkKV, gated by entropy", "arXiv:2502.00299", prefill=_by_entropy, worked=share_or_budget, in_prefill=AT_LEAST,
        chooses=Choice.EACH_LAYER,
        options=(
            INNER,
            _chunk(10),
            PolicyOption(name="low_entropy_chunk_length", kind="count", default=4, help="tokens of a chunk with one high score", least=1),
        ),
        keeps="chunks whole or their highest tokens", formula=SHARE_FORMULA,
    ),
    _wrapper(
        "chunk", "ChunkPress", "scores within chunks", "arXiv:2408.00167", options=(INNER, _chunk(1024)), prefill=_within_chunks, worked=each_chunk, in_prefill=SMALL,
        keeps="a share of each chunk", formula="the sum of max(1, int(chunk x (1 - compression_ratio))) over the chunks",
    ),
    _wrapper(
        "block", "BlockPress", "block by block", "arXiv:2504.15364", options=(INNER, _chunk(128, "block_size")), prefill=_in_blocks, worked=share_or_budget, in_prefill=AT_LEAST,
        keeps="the highest scores, found block by block", formula=SHARE_FORMULA,
    ),
)  # fmt: skip
