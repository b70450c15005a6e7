"""Find similar ids for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]

_LONGEST = 200
_SIMILAR = 0.72


def nearest(text: str, ids: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` of ``ids`` that are similar to ``text``, best first.

    If some ids differ only in capitals, only these are returned; if not, and some have the same name in another org, only those.
    Otherwise names that begin or end with the text come first, and then the most similar ones.

    >>> known = ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "openai/gpt-oss-20b"]
    >>> nearest("llama-3.1-8b", known), nearest("llama-3.1-7b", known)
    (('meta-llama/Llama-3.1-8B',), ('meta-llama/Llama-3.1-70B', 'meta-llama/Llama-3.1-8B'))
    """
    from difflib import SequenceMatcher

    query = text[:_LONGEST].lower().strip("/ ")
    name = query.rpartition("/")[2]
    if not name:
        return ()
    whole, part = SequenceMatcher(b=query, autojunk=False), SequenceMatcher(b=name, autojunk=False)
    ranked: list[tuple[int, float, str]] = []
    for model_id in ids:
        low = model_id.lower()
        short = low.rpartition("/")[2]
        if low == query:
            ranked.append((0, 0.0, model_id))
        elif short == name:
            ranked.append((1, 0.0, model_id))
        elif short.startswith(f"{name}-") or short.endswith(f"-{name}"):
            ranked.append((2, float(len(short)), model_id))
        else:
            score = _ratio(part, short)
            if "/" in query:
                score = max(score, _ratio(whole, low))
            if score >= _SIMILAR:
                ranked.append((3, -score, model_id))
    ranked.sort()
    if ranked and ranked[0][0] < 2:
        ranked = [row for row in ranked if row[0] == ranked[0][0]]
    return tuple(model_id for *_, model_id in ranked[:count])


def _ratio(matcher: object, text: str) -> float:
    from difflib import SequenceMatcher

    assert isinstance(matcher, SequenceMatcher)
    matcher.set_seq1(text)
    if matcher.real_quick_ratio() < _SIMILAR or matcher.quick_ratio() < _SIMILAR:
        return 0.0
    return matcher.ratio()
