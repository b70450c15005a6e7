"""What is published of the quality of a policy: figures of others, with their source, and no promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.formulas.record import Record

__all__ = ["Quality", "quality_of"]


class Quality(Record):
    """One published figure: accuracy in percent with ``budget`` tokens, beside that of the whole cache."""

    policy: str
    model: str
    benchmark: str
    budget: int
    accuracy: float
    full_accuracy: float
    source: str


_README: Final = "WeianMao/triattention 01aed81"
_MODELS: Final = (
    ("Qwen3-8B", 2048),
    ("DeepSeek-R1-Distill-Llama-8B", 512),
    ("DeepSeek-R1-Distill-Qwen-7B", 2048),
    ("gpt-oss-20b", 2048),
)
_FULL: Final = ((57.1, 40.8), (50.4, 31.4), (43.8, 34.2), (69.2, 60.0))
_AIME: Final = (
    ("snapkv", ((34.6, 20.0), (5.0, 6.7), (34.6, 25.0), (48.3, 36.7))),
    ("rkv", ((25.4, 17.5), (25.8, 11.2), (34.6, 23.3), (49.6, 39.2))),
    ("triattention", ((42.1, 32.9), (33.8, 19.6), (42.5, 30.0), (59.2, 49.2))),
)
_BUDGETS: Final[Mapping[str, tuple[tuple[str, int, float, float], ...]]] = {
    "triattention": (("MATH-500", 1024, 68.4, 69.6), ("AIME24", 4096, 54.6, 57.1), ("AIME25", 3072, 40.8, 40.8)),
}


def quality_of(policy: str) -> tuple[Quality, ...]:
    """All that is known here of a policy; nothing is known of most."""
    found = [
        Quality(
            policy=name, model=model, benchmark=benchmark, budget=budget, accuracy=accuracy, full_accuracy=full, source=_README
        )
        for name, columns in _AIME
        if name == policy
        for (model, budget), scores, fulls in zip(_MODELS, columns, _FULL, strict=True)
        for benchmark, accuracy, full in zip(("AIME24", "AIME25"), scores, fulls, strict=True)
    ]
    found += [
        Quality(
            policy=policy, model="Qwen3-8B", benchmark=name, budget=budget, accuracy=accuracy, full_accuracy=full, source=_README
        )
        for name, budget, accuracy, full in _BUDGETS.get(policy, ())
    ]
    return tuple(found)
