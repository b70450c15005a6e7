"""Find similar ids for a mistyped one, by the words and numbers of which names consist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_LONGEST = 200
_SIMILAR = 0.72
_PARTS: Final = r"(?:nvfp|mxfp|fp|bf|int)[0-9]+|[a-z]+|[0-9]+"


def name_parts(name: str) -> tuple[str, ...]:
    """The words and numbers of a name. Capitals and hyphens do not matter, nor whether a number touches its word;
    the name of a format is one word.

    >>> name_parts("gemma3-27b") == name_parts("Gemma-3-27B"), name_parts("Llama-3.1-8B")
    (True, ('llama', '3', '1', '8', 'b'))
    """
    return tuple(re.findall(_PARTS, name.lower()))


def nearest(text: str, ids: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` of ``ids`` that are similar to ``text``, best first.

    If some ids differ only in capitals, only these are returned; if not, and some have the same name in another org, only those; then those
    that have all numbers of the text and at most one word less. Otherwise the most similar spellings.

    >>> known = ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "huggyllama/llama-7b", "openai/gpt-oss-20b"]
    >>> nearest("llama-3.1-8b", known), nearest("llama-3.1-7b", known), nearest("llama 70b", known)
    (('meta-llama/Llama-3.1-8B',), ('meta-llama/Llama-3.1-70B', 'meta-llama/Llama-3.1-8B', 'huggyllama/llama-7b'), ('meta-llama/Llama-3.1-70B',))
    """
    query = text[:_LONGEST].lower().strip("/ ")
    org, _, name = query.rpartition("/")
    if not name:
        return ()
    parts, known = name_parts(name), tuple(ids)
    ranked: list[tuple[int, tuple[int, ...], str]] = []
    for model_id in known:
        low = model_id.lower()
        its_org, _, short = low.rpartition("/")
        if low == query:
            ranked.append((0, (), model_id))
        elif short == name:
            ranked.append((1, (), model_id))
        elif (distance := _distance(parts, name_parts(short), elsewhere=bool(org) and org != its_org)) is not None:
            ranked.append((2, distance, model_id))
    if not ranked:
        return _similar(query, name, known)[:count]
    ranked.sort()
    return tuple(model_id for rank, _, model_id in ranked if rank == ranked[0][0])[:count]


def _distance(asked: Sequence[str], parts: Sequence[str], *, elsewhere: bool) -> tuple[int, ...] | None:
    """Distance of a name from what was asked, by weight; ``None`` if a number, or more than one word, is missing in it."""
    missing, more = list(asked), list(parts)
    for part in parts:
        if part in missing:
            missing.remove(part)
    for part in asked:
        if part in more:
            more.remove(part)
    words = sum(not part.isdigit() for part in missing)
    shared = any(len(part) > 1 and not part.isdigit() and part in parts for part in asked)
    if not shared or words < len(missing) or words > 1:
        return None
    begins = next((place for place, (one, other) in enumerate(zip(asked, parts, strict=False)) if one != other), len(asked))
    more_words = sum(not part.isdigit() for part in more)
    return words + more_words, elsewhere, len(more) - more_words, -begins, sum(map(len, parts))


def _similar(query: str, name: str, ids: Iterable[str]) -> tuple[str, ...]:
    """The ids that are spelled alike."""
    from difflib import SequenceMatcher

    whole, part = SequenceMatcher(b=query, autojunk=False), SequenceMatcher(b=name, autojunk=False)
    ranked: list[tuple[float, str]] = []
    for model_id in ids:
        low, score = model_id.lower(), 0.0
        # The name alone, and with its org if one is asked for.
        for matcher, spelled in ((part, low.rpartition("/")[2]), (whole, low))[: 1 + ("/" in query)]:
            matcher.set_seq1(spelled)
            if matcher.real_quick_ratio() >= _SIMILAR and matcher.quick_ratio() >= _SIMILAR:
                score = max(score, matcher.ratio())
        if score >= _SIMILAR:
            ranked.append((-score, model_id))
    return tuple(model_id for _, model_id in sorted(ranked))
