"""The most memory that a prefill of kvpress takes above the weights, on transformers' Llama and Qwen3: what lives at once, step by step.

Each number is one tensor that the code of transformers 5.2.0 or kvpress 0.5.5 holds at that point; peaks of the CPU allocator, one thread,
confirm them byte by byte in fp32. Oracle rows: tests/golden/eviction.json and eviction_more.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, InPrefill, LayerShape, Role, Setting, State
from hwcalc.policies.scratch import looking, repeats, weight_bytes

__all__ = ["MEASURED_MODELS", "Peak", "Widths", "peak_of"]

MEASURED_MODELS: Final = frozenset({"llama", "qwen3"})
"""Model types whose peaks were measured."""

_INDEX: Final = 8
"""Bytes of an int64: a position, and one of the three indices of a masked pair."""
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
