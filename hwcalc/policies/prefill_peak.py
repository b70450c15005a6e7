"""The most memory that a prefill of kvpress takes above the weights, on transformers' Llama and Qwen3: what lives at once, step by step.

Each number is one tensor that the code of transformers 5.2.0 or kvpress 0.5.5 holds at that point; peaks of the CPU allocator, one thread,
confirm them byte by byte in fp32. Oracle rows: tests/golden/eviction.json and eviction_more.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.model import Definition
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, Count, LayerShape, Left, Role, Setting, State
from hwcalc.policies.scratch import repeats, statistics_bytes, weight_bytes, window_bytes

__all__ = ["MEASURED_MODELS", "Peak", "Widths", "peak_of"]

MEASURED_MODELS: Final = frozenset({"llama", "qwen3"})
"""Model types whose peaks were measured."""

_INDEX: Final = 8
"""Bytes of an int64: a position, and one of the three indices of a masked pair."""
_WINDOWED: Final = frozenset({"snapkv", "pyramidkv", "tova", "simlayerkv", "finch"})
_EXPECTED: Final = frozenset({"expectedattention"})
_PLAIN: Final = frozenset(
    {"knorm", "keydiff", "random", "streamingllm", "observedattention", "adakv", "duoattention", "keyrerotation", "perlayercompression",
     "composed", "think", "criticalkv", "chunkkv", "chunk", "decoding",
     "compressionratiodecoding", "prefilldecoding"}
)  # fmt: skip
"""Policies whose own tensors are smaller than those of the MLP."""
_AT_LEAST: Final = frozenset({"block", "dms", "merging", "lagkv", "finch", "criticaladakv", "entropygatedchunkkv"})
"""Policies whose own tensors may be more than what is counted here."""
_FLASH_KEYS: Final = 512
_FLASH_QUERIES: Final = ((768, 256), (192, 64), (0, 32))
"""Tiles of torch's attention on the CPU: keys, and queries from so many tokens on."""


@frozen
class Widths:
    """The widths of a decoder layer: hidden states, and the gated MLP."""

    hidden: int
    mlp: int


@frozen
class Peak:
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
    tokens = prompt - 1 if chosen is not None and chosen.policy.name == "finch" else prompt
    names = {one.policy.name for one in parts}
    if names - _PLAIN - _WINDOWED - _EXPECTED - _AT_LEAST:
        return None
    known = setting.element_bytes == 4 and not names & _AT_LEAST
    low, high = (
        _Prefill(chosen=chosen, tokens=tokens, ends=ends, setting=setting, widths=widths).peak
        for ends in (
            tuple((left.stored.low, left.masked.total.low if left.masked else 0) for left in state.layers),
            tuple((left.stored.high, left.masked.total.high if left.masked else 0) for left in state.layers),
        )
    )
    return Peak(low=low, high=high, definition=Definition.MEASURED if known else Definition.ESTIMATE)


@frozen
class _Prefill:
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
        return most + self._streaming

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
        """What a policy makes while it scores so many keys of a layer."""
        size, batch = self.setting.element_bytes, self.setting.batch
        repeated = batch * keys * shape.heads * shape.head_dim * size if repeats(shape) else 0
        width = shape.heads * shape.head_dim * size
        if one.policy.name in _EXPECTED:
            return statistics_bytes(one, self.tokens, shape, self.setting)
        window = _window(one)
        if window is None or self.setting.attention == EAGER:
            return 0
        scores = batch * shape.heads * window * keys
        return batch * window * width + repeated + max(3 * scores * size + _INDEX + size, scores * window_bytes(size))

    def _buffered(self, shape: LayerShape) -> int:
        """DMS keeps the scores of the prompt: those of the window are a view of them."""
        found = 0 if self.chosen is None else sum(one.policy.name == "dms" for one in self.chosen.whole)
        return found * self.row * shape.kv_heads

    @property
    def _streaming(self) -> int:
        """DuoAttention's mask: a byte for each head."""
        duo = self.chosen is not None and any(one.policy.name == "duoattention" for one in self.chosen.whole)
        return sum(shape.kv_heads for shape in self.setting.layers) if duo else 0


def _window(one: Chosen) -> int | None:
    """The last queries that score the keys; nothing where a policy has none."""
    if one.policy.name not in _WINDOWED:
        return None
    if one.policy.name == "simlayerkv":
        window: int = one["n_last"]
        return None if one["lazy_threshold"] == 1 else window
    return 1 if one.policy.name == "tova" else one["window_size"]


def _before(chosen: Chosen | None, tokens: int, setting: Setting) -> Iterator[tuple[Chosen, tuple[int, ...]]]:
    """Each policy that scores, with the length of each layer that it sees."""
    lengths = (tokens,) * len(setting.layers)
    if chosen is not None and chosen.policy.role is Role.DECODING:
        chosen = chosen.get("prefilling_press")
    if chosen is None:
        return
    if chosen.policy.name == "perlayercompression":
        ratios = chosen["compression_ratios"]
        lengths = tuple(tokens if ratios[shape.index] else 0 for shape in setting.layers)
    if chosen.policy.name != "composed":
        for one in _scoring(chosen):
            yield one, lengths
        return
    state = State(hidden=tokens, layers=tuple(Left(stored=Count.of(tokens)) for _ in lengths))
    for inner in chosen["presses"]:
        for one in _scoring(inner):
            yield one, tuple(left.stored.high for left in state.layers)
        state = inner.policy.prefill(inner, state, setting)


def _scoring(chosen: Chosen) -> tuple[Chosen, ...]:
    """The policies that look at the keys: none where nothing is to go."""
    always = chosen.policy.name in {"dms", "simlayerkv", "perlayercompression"}
    return chosen.whole if always or chosen.ratio else ()
