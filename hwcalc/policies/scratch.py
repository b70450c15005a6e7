"""Memory that a policy takes besides the cache while it works: the peak of a prefill of kvpress above the weights, step by step.

Each number is a tensor that the code of transformers 5.2.0 or kvpress 0.5.5 holds at that point, on Llama and Qwen3. Peaks of the CPU
allocator, one thread, confirm them byte by byte in fp32. Oracle rows: tests/golden/eviction.json and eviction_more.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, Extra, InPrefill, LayerShape, Role, Setting, State

_FIT: Final = "peaks of transformers 5.2.0 on the CPU, fitted over 256, 512 and 1,024 tokens"
_INDEX: Final = 8
"""Bytes of a position."""

SMALL: Final = InPrefill()
"""Smaller than the tensors of the MLP."""
AT_LEAST: Final = InPrefill(complete=False)
"""Perhaps more than what is counted."""


def window_tensors(window: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    """The last queries, their scores of so many keys with mask and softmax, and keys repeated for each head.

    Eager attention has made the scores already.
    """
    if setting.attention == EAGER:
        return 0
    size, batch = setting.element_bytes, setting.batch
    repeated = batch * keys * shape.heads * shape.head_dim * size if repeats(shape) else 0
    scores = batch * shape.heads * window * keys
    rows = batch * window * shape.heads * shape.head_dim * size
    return rows + repeated + max(3 * scores * size + _INDEX + size, scores * (size + weight_bytes(size)))


def _window(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    window = chosen.values.get("window_size", 1)
    return 0 if window is None else window_tensors(window, keys, shape, setting)


BY_WINDOW: Final = InPrefill(bytes=_window)
"""The scores of the last ``window_size`` queries, or of the last one."""


def looking(chosen: Chosen) -> tuple[Chosen, ...]:
    """The policy and those inside that look at the keys: none where nothing is to go."""
    made = chosen.policy.in_prefill
    return chosen.whole if chosen.ratio or (made is not None and made.always) else ()


def weight_bytes(element_bytes: int) -> int:
    """Bytes of a score and of its weight while eager attention makes one of the other.

    In fp32 that is 4 + 4; in 16 bits the score, an fp32 copy and an fp32 softmax, 2 + 4 + 4.
    """
    return 2 * element_bytes if element_bytes >= 4 else element_bytes + 8


def repeats(shape: LayerShape) -> bool:
    """True if keys are copied for each query head. A single one is looked at from all heads."""
    return 1 < shape.kv_heads < shape.heads


def statistics_bytes(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    """The bytes that Expected Attention makes of so many tokens' queries: mean, covariance, rotations of positions to come."""
    size, batch, dim = setting.element_bytes, setting.batch, shape.head_dim
    ahead: int = chosen["n_future_positions"]
    width = shape.heads * dim * size
    rows: int = batch * max(0, queries - chosen["n_sink"]) * width
    statistics = batch * width + rows + (rows + batch * width * dim if chosen["use_covariance"] else 0)
    return statistics + ahead * (_INDEX + 2 * dim * size) + (2 + 3 * ahead) * dim * dim * size


def eager_scores(chosen: Chosen | None, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The scores, their softmax and a mask that eager attention makes in a layer, each tokens x tokens.

    In fp32 that is 8 bytes a head and 4 of a mask, in 16 bits 10 and 2.
    At 32,768 tokens and 32 heads of fp32: 260 x 32,768 x 32,768 bytes = 260 GiB.
    """
    if not setting.layers:
        return ()
    size = setting.element_bytes
    heads = max(layer.heads for layer in setting.layers)
    a_head = weight_bytes(size)
    return (
        Extra(
            name="eager attention scores",
            bytes=setting.batch * (a_head * heads + size) * tokens * tokens,
            formula=f"batch x ({a_head} x heads + {size}) x n x n",
            when="in the prefill, one layer at a time",
            definition=Definition.MEASURED,
            source=_FIT,
            by_query=True,
        ),
    )


def window_scores(window: int, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The scores of the last queries, a mask and an fp32 softmax: window x tokens each. In 16 bits there is an fp32 copy of the scores too.

    Where heads share keys, the keys are repeated for each head before.
    """
    if not setting.layers:
        return ()
    window = min(window, tokens)
    size, widest = setting.element_bytes, max(setting.layers, key=lambda layer: layer.heads)
    # The score with a mask on it, and its weight.
    a_score = size + weight_bytes(size)
    repeated = widest.head_dim * size if repeats(widest) else 0
    keys = f" + {widest.head_dim:,} x {size}" if repeated else ""
    return (
        Extra(
            name="scores of the window",
            bytes=setting.batch * widest.heads * tokens * (window * a_score + repeated),
            formula=f"batch x heads x n x ({window:,} x {a_score}{keys})",
            when="while a layer is scored",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, compute_window_attention: repeat_kv, scores, mask and fp32 softmax",
        ),
    )


def query_statistics(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The queries of the prompt, made once more and centred, with their covariance: of the tokens whose hidden states are at hand."""
    if not setting.layers:
        return ()
    widest, size = max(setting.layers, key=lambda layer: layer.heads), setting.element_bytes
    sinks, ahead = chosen["n_sink"], chosen["n_future_positions"]
    rows = f"2 x (n - {sinks:,}) + 1 + head_dim" if chosen["use_covariance"] else f"n - {sinks:,} + 1"
    turned = f"{ahead:,} x ({_INDEX} + 2 x head_dim x {size}) + {2 + 3 * ahead:,} x head_dim x head_dim x {size}"
    return (
        Extra(
            name="statistics of queries",
            bytes=statistics_bytes(chosen, tokens, tokens, widest, setting),
            formula=f"batch x heads x head_dim x {size} x ({rows}) + {turned}",
            when="in the prefill, one layer at a time",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, ExpectedAttentionPress.get_query_statistics",
            by_query=True,
        ),
    )


def chunk_scores(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Scores of the tokens of each chunk of a prompt with each other, without a mask, and the queries and repeated keys that make them."""
    if not setting.layers:
        return ()
    size, widest, chunk = setting.element_bytes, max(setting.layers, key=lambda layer: layer.heads), chosen["chunk_size"]
    padded, copies = ceil(tokens / chunk) * chunk, 2 if repeats(widest) else 1
    numbers = f"{chunk:,} x {weight_bytes(size)} + {copies} x head_dim x {size}"
    return (
        Extra(
            name="scores of chunks",
            bytes=setting.batch * widest.heads * padded * (chunk * weight_bytes(size) + copies * widest.head_dim * size),
            formula=f"batch x heads x ceil(n / {chunk:,}) x {chunk:,} x ({numbers})",
            when="in the prefill, one layer at a time",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, NonCausalAttnPress.non_causal_chunked_attn",
            by_query=True,
        ),
    )


def similarity(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The matrix of similarities between all keys of a head, for all heads of a layer, and the scores of the window.

    It is of all that is there at a cut: the prompt, or a full buffer.
    """
    heads = max((layer.kv_heads for layer in setting.layers), default=0)
    similarities = Extra(
        name="similarities of keys",
        bytes=setting.batch * heads * tokens * tokens * setting.element_bytes,
        formula=f"batch x kv_heads x n x n x {setting.element_bytes}",
        when="at each cut, one layer at a time",
        definition=Definition.ESTIMATE,
        source="Zefan-Cai/R-KV d15c976, cal_similarity",
    )
    return similarities, *window_scores(chosen["window_size"], tokens, setting)


def page_keys(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The least and the greatest key of every page, in all layers: two keys for a page of keys and values."""
    page = chosen["chunk_size"]
    elements = sum(2 * layer.kv_heads * layer.head_dim for layer in setting.layers)
    return (
        Extra(
            name="keys of pages",
            bytes=setting.batch * ceil(tokens / page) * elements * setting.element_bytes,
            formula=f"batch x ceil(n / {page:,}) x 2 x kv_heads x head_dim x {setting.element_bytes} x layers",
            when="always, all layers",
            definition=Definition.ENGINE,
            source="mit-han-lab/Quest 01c1623",
            lasting=True,
        ),
    )


MEASURED_MODELS: Final = frozenset({"llama", "qwen3"})
"""Model types whose peaks were measured."""

_FLASH_KEYS: Final = 512
_FLASH_QUERIES: Final = ((768, 256), (192, 64), (0, 32))
"""Tiles of torch's attention on the CPU: keys, and queries from so many tokens on."""


class Widths(Record):
    """The widths of a decoder layer: hidden states, and the gated MLP."""

    hidden: int
    mlp: int


class Peak(Record):
    """The most bytes at once above the weights. They differ where the text decides how many tokens are kept or masked."""

    low: int
    high: int
    definition: Definition


def peak_of(chosen: Chosen | None, prompt: int, state: State, setting: Setting, widths: Widths) -> Peak | None:
    """The peak of the prefill; ``None`` where kvpress has no such policy, or where what the policy itself makes was not counted."""
    parts = () if chosen is None else chosen.whole
    foreign = any(not part.policy.press or part.get("budget") is not None for part in parts)
    made = [part.policy.in_prefill for part in parts if part.policy.in_prefill is not None]
    if not setting.layers or setting.rules != KVPRESS or foreign or len(made) < len(parts):
        return None
    tokens = prompt - (chosen is not None and chosen.policy.has_delimiter)
    known = setting.element_bytes == 4 and all(one.complete for one in made)
    sizes = []
    for end in ("low", "high"):
        left = [(getattr(layer.stored, end), getattr(layer.masked.total, end) if layer.masked else 0) for layer in state.layers]
        sizes.append(_peak_bytes(chosen, tokens, left, setting, widths))
    return Peak(low=sizes[0], high=sizes[1], definition=Definition.MEASURED if known else Definition.ESTIMATE)


def _peak_bytes(chosen: Chosen | None, tokens: int, left: list[tuple[int, int]], setting: Setting, widths: Widths) -> int:
    """The most of all layers: in the attention, behind it where the policy works, and in the MLP.

    ``left`` are the tokens left of each layer, and the pairs masked in it.
    """
    size, batch, eager = setting.element_bytes, setting.batch, setting.attention == EAGER
    # One number of each token.
    row = batch * tokens * size
    # Embeddings, positions, the two rotary tables, and the mask of eager attention.
    always = row * widths.hidden + tokens * (_INDEX + 2 * setting.layers[0].head_dim * size) + (row * tokens if eager else 0)
    parts = () if chosen is None else chosen.whole
    made = [part.policy.in_prefill for part in parts if part.policy.in_prefill is not None]
    key_scores, befores = sum(one.key_scores for one in made), list(_before(chosen, tokens, setting))
    most, cached = 0, 0
    for number, (shape, (stays, pairs)) in enumerate(zip(setting.layers, left, strict=True)):
        # The first layer's input is the embeddings.
        own = row * widths.hidden if number else 0
        held, whole = always + cached + own, 2 * row * shape.kv_heads * shape.head_dim
        most = max(most, held + whole + _attention_bytes(tokens, shape, setting, widths))
        # Behind the attention there are its input and its output; a policy sees the layer as the one before it left it.
        weights = row * shape.heads * tokens if eager else 0
        behind = held + 2 * row * widths.hidden + weights
        for one, lengths in befores:
            keys, looks = lengths[number], one.policy.in_prefill
            scores = 0 if looks is None or looks.bytes is None else looks.bytes(one, tokens, keys, shape, setting)
            most = max(most, behind + whole // tokens * keys + scores)
        # Scores of keys stay behind a layer.
        cached += whole // tokens * stays + 3 * _INDEX * pairs * batch + key_scores * row * shape.kv_heads
        # The scores of eager attention live until the layer ends.
        most = max(most, always + cached + own + weights + row * (2 * widths.hidden + 3 * widths.mlp))
    return most + sum(one.head_bytes for one in made) * sum(shape.kv_heads for shape in setting.layers)


def _attention_bytes(tokens: int, shape: LayerShape, setting: Setting, widths: Widths) -> int:
    """Inside the attention: its input and queries, and scores with their softmax, or the tiles of torch's own kernel."""
    size, batch = setting.element_bytes, setting.batch
    queries = batch * tokens * size * shape.heads * shape.head_dim
    own = batch * tokens * size * widths.hidden + queries
    if setting.attention == EAGER:
        scores = batch * shape.heads * tokens * tokens
        copies = 2 * queries if repeats(shape) else 0
        return own + copies + max(2 * scores * size + _INDEX + size, scores * weight_bytes(size))
    rows = next(rows for least, rows in _FLASH_QUERIES if tokens >= least)
    rows, columns = min(rows, tokens), min(_FLASH_KEYS, tokens)
    tiles = 4 * rows * (columns + 2 + shape.head_dim) + (0 if size >= 4 else size * rows * (columns + columns % 2))
    return own + queries + 4 * batch * shape.heads * tokens + tiles


def _before(chosen: Chosen | None, tokens: int, setting: Setting) -> Iterable[tuple[Chosen, tuple[int, ...]]]:
    """Each policy that looks at keys, with the length of each layer that it sees."""
    if chosen is not None and chosen.policy.role is Role.DECODING:
        chosen = chosen.get("prefilling_press")
    if chosen is None:
        return ()
    made, lengths = chosen.policy.in_prefill, (tokens,) * len(setting.layers)
    if made is not None and made.seen is not None:
        return made.seen(chosen, tokens, setting)
    return [(one, lengths) for one in looking(chosen)]
