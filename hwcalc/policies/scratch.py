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
    return rows + repeated + max(3 * scores * size + _INDEX + size, scores * window_bytes(size))


def _window(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    window = chosen["window_size"]
    return 0 if window is None else window_tensors(window, keys, shape, setting)


BY_WINDOW: Final = InPrefill(bytes=_window)
"""The scores of the last ``window_size`` queries."""


def looking(chosen: Chosen) -> tuple[Chosen, ...]:
    """The policy and those inside that look at the keys: none where nothing is to go."""
    made = chosen.policy.in_prefill
    return chosen.whole if chosen.ratio or (made is not None and made.always) else ()


def weight_bytes(element_bytes: int) -> int:
    """Bytes of a score and of its weight while eager attention makes one of the other.

    In fp32 that is 4 + 4; in 16 bits the score, an fp32 copy and an fp32 softmax, 2 + 4 + 4.
    """
    return 2 * element_bytes if element_bytes >= 4 else element_bytes + 8


def window_bytes(element_bytes: int) -> int:
    """Bytes of a score of a window with its weight: as :func:`weight_bytes`, and the score with a mask on it."""
    return element_bytes + weight_bytes(element_bytes)


def repeats(shape: LayerShape) -> bool:
    """Whether keys are copied for each query head. A single one is looked at from all heads."""
    return 1 < shape.kv_heads < shape.heads


def statistics_bytes(chosen: Chosen, queries: int, shape: LayerShape, setting: Setting) -> int:
    """What Expected Attention makes of the queries of so many tokens: their mean and covariance, and rotations of positions to come."""
    size, batch, dim = setting.element_bytes, setting.batch, shape.head_dim
    ahead: int = chosen["n_future_positions"]
    width = shape.heads * dim * size
    rows: int = batch * max(0, queries - chosen["n_sink"]) * width
    statistics = batch * width + rows + (rows + batch * width * dim if chosen["use_covariance"] else 0)
    return statistics + ahead * (_INDEX + 2 * dim * size) + (2 + 3 * ahead) * dim * dim * size


def eager_scores(tokens: int, setting: Setting) -> tuple[Extra, ...]:
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
    a_score = window_bytes(size)
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
            bytes=statistics_bytes(chosen, tokens, widest, setting),
            formula=f"batch x heads x head_dim x {size} x ({rows}) + {turned}",
            when="in the prefill, one layer at a time",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, ExpectedAttentionPress.get_query_statistics",
            by_query=True,
        ),
    )


def chunk_scores(chunk: int, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Scores of the tokens of each chunk of a prompt with each other, without a mask, and the queries and repeated keys that make them."""
    if not setting.layers:
        return ()
    size, widest = setting.element_bytes, max(setting.layers, key=lambda layer: layer.heads)
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


def similarity(tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The matrix of similarities between all keys of a head, for all heads of a layer."""
    heads = max((layer.kv_heads for layer in setting.layers), default=0)
    size = setting.batch * heads * tokens * tokens * setting.element_bytes
    return (
        Extra(
            name="similarities of keys",
            bytes=size,
            formula=f"batch x kv_heads x n x n x {setting.element_bytes}",
            when="at each cut, one layer at a time",
            definition=Definition.ESTIMATE,
            source="Zefan-Cai/R-KV d15c976, cal_similarity",
        ),
    )


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
    if (
        not setting.layers
        or setting.rules != KVPRESS
        or any(not one.policy.press or one.get("budget") is not None for one in parts)
    ):
        return None
    made = [one.policy.in_prefill for one in parts]
    if None in made:
        return None
    tokens = prompt - (chosen is not None and chosen.policy.has_delimiter)
    known = setting.element_bytes == 4 and all(one is not None and one.complete for one in made)
    low, high = (
        _Prefill(chosen=chosen, tokens=tokens, ends=ends, setting=setting, widths=widths).peak
        for ends in (
            tuple((left.stored.low, left.masked.total.low if left.masked else 0) for left in state.layers),
            tuple((left.stored.high, left.masked.total.high if left.masked else 0) for left in state.layers),
        )
    )
    return Peak(low=low, high=high, definition=Definition.MEASURED if known else Definition.ESTIMATE)


class _Prefill(Record):
    """One prefill of so many tokens. ``ends`` are the tokens left of each layer, and the pairs masked in it."""

    chosen: Chosen | None
    tokens: int
    ends: tuple[tuple[int, int], ...]
    setting: Setting
    widths: Widths

    @property
    def row(self) -> int:
        """Bytes of one number of each token."""
        return self.setting.batch * self.tokens * self.setting.element_bytes

    @property
    def always(self) -> int:
        """Embeddings, positions, the two rotary tables, and the mask of eager attention."""
        size, shape = self.setting.element_bytes, self.setting.layers[0]
        tables = self.tokens * (_INDEX + 2 * shape.head_dim * size)
        mask = self.row * self.tokens if self.setting.attention == EAGER else 0
        return self.row * self.widths.hidden + tables + mask

    @property
    def peak(self) -> int:
        """The most of all layers: in the attention, behind it where the policy works, and in the MLP."""
        most, cached = 0, 0
        befores = list(_before(self.chosen, self.tokens, self.setting))
        for number, (shape, (stays, pairs)) in enumerate(zip(self.setting.layers, self.ends, strict=True)):
            # The first layer's input is the embeddings.
            held = self.always + cached + (self.row * self.widths.hidden if number else 0)
            whole = 2 * self.row * shape.kv_heads * shape.head_dim
            most = max(most, held + whole + self._attention(shape))
            # Behind the attention there are its input and its output; a policy sees the layer as the one before it left it.
            weights = self.row * shape.heads * self.tokens if self.setting.attention == EAGER else 0
            behind = held + 2 * self.row * self.widths.hidden + weights
            for one, lengths in befores:
                keys = lengths[number]
                most = max(most, behind + whole // self.tokens * keys + self._scores(one, shape, keys))
            cached += whole // self.tokens * stays + 3 * _INDEX * pairs * self.setting.batch + self._buffered(shape)
            held = self.always + cached + (self.row * self.widths.hidden if number else 0)
            # The scores of eager attention live until the layer ends.
            most = max(most, held + weights + self.row * (2 * self.widths.hidden + 3 * self.widths.mlp))
        return most + self._for_heads

    def _attention(self, shape: LayerShape) -> int:
        """Inside the attention: its input and queries, and scores with their softmax, or the tiles of torch's own kernel."""
        size, batch, queries = self.setting.element_bytes, self.setting.batch, self.row * shape.heads * shape.head_dim
        own = self.row * self.widths.hidden + queries
        if self.setting.attention == EAGER:
            scores = batch * shape.heads * self.tokens * self.tokens
            copies = 2 * queries if repeats(shape) else 0
            return own + copies + max(2 * scores * size + _INDEX + size, scores * weight_bytes(size))
        rows = next(rows for least, rows in _FLASH_QUERIES if self.tokens >= least)
        rows, columns = min(rows, self.tokens), min(_FLASH_KEYS, self.tokens)
        tiles = 4 * rows * (columns + 2 + shape.head_dim) + (0 if size >= 4 else size * rows * (columns + columns % 2))
        return own + queries + 4 * batch * shape.heads * self.tokens + tiles

    def _scores(self, one: Chosen, shape: LayerShape, keys: int) -> int:
        """What a policy makes while it looks at so many keys of a layer."""
        made = one.policy.in_prefill
        return 0 if made is None or made.bytes is None else made.bytes(one, self.tokens, keys, shape, self.setting)

    def _buffered(self, shape: LayerShape) -> int:
        """Scores of keys that stay behind a layer."""
        return sum(made.key_scores for made in self._made) * self.row * shape.kv_heads

    @property
    def _for_heads(self) -> int:
        """What is there for each head all the time."""
        return sum(made.head_bytes for made in self._made) * sum(shape.kv_heads for shape in self.setting.layers)

    @property
    def _made(self) -> tuple[InPrefill, ...]:
        """What the policies make."""
        parts = () if self.chosen is None else self.chosen.whole
        return tuple(one.policy.in_prefill for one in parts if one.policy.in_prefill is not None)


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
