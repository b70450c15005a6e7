"""Keys that name the kind of attention in one word, such as ``"attention_type": "gqa"``.

Most classes do not read them: they say again what heads and windows say, and are read as long as they say the same. A word that
says otherwise, or that is not known, stays unread, so that the plan stops. BigBird's classes have the key: their sparse encoder keeps
nothing, and their decoder attends fully whatever the key says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hwcalc.formulas import FullAttention, LatentAttention, Layer, LayerKind
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.sliding import SlidingAttention
from hwcalc.parsers.config import Config

__all__ = ["read_attention_words"]

Test = Callable[[LayerKind], bool]


def _full(kind: LayerKind) -> bool:
    return isinstance(kind, FullAttention)


def _every_head(kind: LayerKind) -> bool:
    return isinstance(kind, AttentionKind) and kind.num_key_value_heads == kind.num_attention_heads


def _one_head(kind: LayerKind) -> bool:
    return isinstance(kind, AttentionKind) and kind.num_key_value_heads == 1


_WORDS: Final[Mapping[Test, tuple[str, ...]]] = {
    _full: ("full", "full_attention", "global", "causal", "softmax", "standard", "default"),
    _every_head: ("mha", "multi_head", "multihead", "multi_head_attention", "multihead_attention"),
    (lambda kind: isinstance(kind, AttentionKind)): ("gqa", "grouped_query", "grouped_query_attention"),
    _one_head: ("mqa", "multi_query", "multiquery", "multi_query_attention", "multiquery_attention"),
    (lambda kind: isinstance(kind, LatentAttention)): ("mla", "latent", "multi_head_latent_attention"),
    (lambda kind: isinstance(kind, SlidingAttention)): ("swa", "sliding", "sliding_window", "sliding_attention"),
}
_OF_AN_ENCODER: Final = ("block_sparse", "original_full")
_TESTS: Final = {word: test for test, words in _WORDS.items() for word in words}


def read_attention_words(config: Config, keys: Iterable[str], layers: Iterable[Layer]) -> None:
    """Mark those of ``keys`` as read whose word is true of what every layer keeps."""
    for key in keys:
        word = config.raw.get(key)
        test = _TESTS.get(word.strip().lower().replace("-", "_")) if isinstance(word, str) else None
        holds = test is not None and all(any(map(test, layer)) for layer in set(layers))
        if holds or (word in _OF_AN_ENCODER and config.knows(key)):
            config.ignore(key)
