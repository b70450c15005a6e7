"""The model types that are known, what each keeps, and which of them resembles a file: ``types.json``, read where it is needed.

``scripts/known_types.py`` writes the file from what the parsers themselves ask a config for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import log
from typing import Any, Final

from hwcalc import formulas
from hwcalc.data import json_data
from hwcalc.formulas import Layer
from hwcalc.formulas.record import Record
from hwcalc.parsers.config import ALIASES
from hwcalc.parsers.registry import known_families
from hwcalc.text import by_word

NO_CACHE: Final = "no cache"

SHORT_NAMES: Final[Mapping[str, str]] = {
    "full_attention": "gqa", "latent_attention": "mla", "expanded_latent_attention": "mla", "sparse_indexer": "indexer",
    "compressed_attention": "csa", "sliding_attention": "sliding", "chunked_attention": "chunked", "sink_attention": "sink",
    "gated_delta_net": "gdn", "gated_linear_attention": "gla", "kimi_delta_attention": "kda", "lightning_attention": "lightning", "real_gated_lru": "rglru",
    "rwkv_matrix": "rwkv", "matrix_lstm": "mlstm", "short_convolution": "conv", "shared_cache": "shared",
    "cross_attention": "cross", "meta_tokens": "meta", "block_sparse_attention": "infllm",
}  # fmt: skip
"""What people call a kind of layer, where that is shorter than the kind's own name."""
SYNONYMS: Final[Mapping[str, str]] = by_word(
    {
        "gqa": "mha mqa attention full", "sliding": "swa", "indexer": "dsa", "mamba1": "mamba",
        "gdn": "gated_deltanet deltanet", "mla": "latent",
    }
)  # fmt: skip
KeptKinds = frozenset[str]
"""The kinds of layers of a model, by their short names."""


class KnownType(Record):
    """A model type: the combinations of layers that its models have, as ``mamba2+gqa``, and the keys its parser asks for."""

    model_type: str
    families: tuple[str, ...]
    keys: frozenset[str]
    published: int = 0
    """The bits of the number of models of this type in the catalog."""


def family_of(layers: Iterable[Layer]) -> str:
    """The name that people have for what layers keep.

    >>> from hwcalc.formulas import FullAttention, NoCache
    >>> family_of([(FullAttention(num_attention_heads=8, num_key_value_heads=2, head_dim=64, v_head_dim=64),), (NoCache(),)])
    'gqa'
    """
    words = {SHORT_NAMES.get(kind.name, kind.name) for layer in layers for kind in layer} - {"no_cache"}
    families = {f"hwcalc.formulas.{family}": place for place, family in enumerate(formulas.FAMILIES)}
    kinds = sorted(formulas.KINDS.values(), key=lambda kind: families.get(kind.__module__, len(families)))
    order = {word: place for place, word in enumerate(dict.fromkeys(SHORT_NAMES.get(kind.name, kind.name) for kind in kinds))}
    # States before the attention between them: mamba2+gqa.
    ordered = sorted(words, key=lambda word: (word in ("gqa", "sliding", "cross"), order[word]))
    return "+".join(ordered) or NO_CACHE


def read_family(text: str) -> KeptKinds | None:
    """The kinds that ``mamba2+gqa`` names; ``None`` if a word names no kind.

    >>> sorted(read_family("Mamba2 + MQA"))
    ['gqa', 'mamba2']
    """
    words = {re.sub(r"[\s-]+", "_", word.strip().lower()) for word in text.split("+")}
    names = {SHORT_NAMES.get(name, name) for name in formulas.KINDS} - {"no_cache"}
    kinds = frozenset(SYNONYMS.get(word, SHORT_NAMES.get(word, word)) for word in words)
    return kinds if kinds <= names else None


@lru_cache(maxsize=1)
def known_types() -> Mapping[str, KnownType]:
    """Every known model type, in alphabetical order."""
    table: dict[str, Any] = json_data(__file__, "types.json")
    return {
        name: KnownType(
            model_type=name, families=tuple(entry["families"]), keys=frozenset(entry["keys"]), published=entry["published"]
        )
        for name, entry in table.items()
    }


def listed_types() -> list[KnownType]:
    """Every type that has a row in the index, in alphabetical order; one that refuses every file has no families."""
    table = known_types()
    names = sorted(known_families(), key=lambda name: (name.lower(), name))
    return [table.get(name) or KnownType(model_type=name, families=(), keys=frozenset()) for name in names]


@lru_cache(maxsize=1)
def _weights() -> Mapping[str, float]:
    """The weight of each key in telling a model's type: nothing if every type asks for it, most if a single one does."""
    types = known_types().values()
    counts: dict[str, int] = {}
    for known in types:
        for key in known.keys:
            counts[key] = counts.get(key, 0) + 1
    return {key: log(len(types) / count) for key, count in counts.items()}


@lru_cache(maxsize=1)
def _facts() -> Mapping[str, str]:
    """The fact that a name stands for, where it is another name for a single one."""
    named: dict[str, set[str]] = {}
    for fact, names in ALIASES.items():
        for name in names:
            named.setdefault(name, set()).add(fact)
    return {name: next(iter(facts)) for name, facts in named.items() if len(facts) == 1 and name not in ALIASES}


_UNUSED: Final = 0.1
"""How much a key counts against a type that asks for it, where the file lacks it: classes have defaults for many."""
_COMMON: Final = 1.1
"""How much likelier a type is of which there are twice as many published models."""
_UNPUBLISHED: Final = 0.8
"""How much less likely a type is of which the catalog has no model."""
_NAMED_ALIKE: Final = 1.5
"""How much likelier a type is whose name begins like that of the file's type."""


def nearest_types(
    keys: Iterable[str], *, like: str | None = None, among: Sequence[str] | None = None, most: int = 3
) -> tuple[str, ...]:
    """The types whose parsers ask for what a file with these keys has, nearest first; none if no key tells types apart.

    A key counts by how few types ask for it. ``like`` is the unknown type; ``among`` are the types to choose from.

    >>> keys = ["num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim", "index_topk", "index_head_dim", "index_n_heads"]
    >>> nearest_types(keys, like="deepseek_v5")[0]
    'deepseek_v32'
    """
    weights, facts = _weights(), _facts()
    present = {facts.get(key, key) for key in keys if isinstance(key, str)} & weights.keys()
    stem = _stem(like or "")
    scores: list[tuple[float, int, str]] = []
    for known in known_types().values():
        if (among is not None and known.model_type not in among) or known.families == (NO_CACHE,):
            continue
        asked = {facts.get(key, key) for key in known.keys}
        both = sum(weights[key] for key in present & asked)
        missed = sum(weights[key] for key in present - asked)
        unused = sum(weights.get(key, 0.0) for key in asked - present)
        score = both / (both + missed + _UNUSED * unused or 1)
        score *= _UNPUBLISHED if known.published == 0 else _COMMON**known.published
        score *= _NAMED_ALIKE if stem and _stem(known.model_type) == stem else 1
        if both > 0 or among is not None:
            scores.append((-score, len(known.model_type), known.model_type))
    return tuple(name for _, _, name in sorted(scores)[:most])


def _stem(model_type: str) -> str:
    """The letters that a type's name begins with: those of its publisher's family."""
    return re.match(r"[a-z]*", model_type.lower())[0]  # type: ignore[index]
