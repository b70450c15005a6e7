"""Well-known cache policies: the whole answer of a plan with each, at some lengths and numbers of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import KvplanError
from hwcalc.explore.axes import plan_options
from hwcalc.explore.runs import sentence
from hwcalc.explore.sampled import sampled_lengths
from hwcalc.planner.context import open_request
from hwcalc.planner.fit import Search, plan_fit
from hwcalc.planner.plan import plan_memory
from hwcalc.policies.base import Effect
from hwcalc.policies.parse import parse_policy

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.model import ModelSpec
    from hwcalc.planner.solve import Most
    from hwcalc.planner.verdict import Verdict

__all__ = ["BATCHES", "POLICIES", "policy_rows"]

POLICIES: Final = (
    "streamingllm:compression_ratio=0.5",
    "h2o:budget=1024",
    "snapkv:compression_ratio=0.5",
    "pyramidkv:compression_ratio=0.5",
    "expectedattention:compression_ratio=0.5",
    "quest",
    "rkv:budget=1024",
    "triattention",
)
"""As ``--policy`` takes them. A ratio is the share of the tokens that goes."""
BATCHES: Final = (1, 8)
_FACTOR: Final = 4
_LEAST: Final = 512
_SECTIONS: Final = ("weights", "activations", "overhead")
_VERDICT: Final = (
    "usable_bytes",
    "needed_bytes",
    "needed_low_bytes",
    "needed_high_bytes",
    "verdict",
    "max_seq",
    "expected_max_seq",
    "max_batch",
    "expected_max_batch",
)
_COLUMNS: Final = ("total_bytes", "per_gpu_bytes", *_SECTIONS, *_VERDICT)
"""The numbers of an answer."""
_UNKNOWN: Final = "What the model needs beside its cache is not known: no verdict."


def policy_rows(
    model: ModelSpec, engines: Sequence[str], text: Callable[[str], int], fixed: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Each policy by each engine (``PolicyRows`` in ``page/types.d.ts``); ``None`` for a model on which no policy acts.

    ``text`` gives the place of a text in the payload, and ``fixed`` are a GPU and other options that all plans have, parsed. An engine that lacks the policy is not planned as if it had it: a text says what it would take.
    """
    if not any(kind.acts_by_token for layer in model.stack for kind in layer):
        return None
    lengths = sampled_lengths(model, _FACTOR, _LEAST)
    rows = []
    for policy in POLICIES:
        chosen = parse_policy(policy)
        assert chosen is not None
        answers = {
            engine: _answers(model, lengths, {**fixed, **plan_options(engine), "policy": chosen}, text) for engine in engines
        }
        rows.append({"policy": policy, "title": chosen.policy.title, "memory": _memory(chosen.policy.effect), "engines": answers})
    return {"gpu": fixed["gpu"], "lengths": list(lengths), "batches": list(BATCHES), "rows": rows}


def _memory(effect: Effect) -> str:
    return "frees memory" if effect is Effect.FREES else f"{effect.text}, frees nothing"


def _answers(
    model: ModelSpec, lengths: Sequence[int], given: Mapping[str, Any], text: Callable[[str], int]
) -> dict[str, Any] | int:
    """The numbers of one engine, or the text that says why there are none."""
    try:
        opened = open_request(model, seq=lengths[-1], **given)
    except KvplanError as error:
        return text(sentence(error))
    support = opened.policy_support(given["policy"])
    if not support.offered:
        return text(support.how)
    found = list(_points(opened, lengths))
    columns: dict[str, list[Any]] = {
        name: [None if isinstance(point, str) else point[name] for point in found] for name in _COLUMNS
    }
    columns["refused"] = [text(point) if isinstance(point, str) else None for point in found]
    return {name: _joined(values) for name, values in columns.items()}


def _points(opened: Occupancy, lengths: Sequence[int]) -> Iterator[Mapping[str, Any] | str]:
    """The answer at each point, or why there is none."""
    search = _Once()
    for seq, batch in product(lengths, BATCHES):
        try:
            yield _point(opened.sized(seq=seq, batch=batch).checked(), search)
        except KvplanError as error:
            yield sentence(error)


def _point(opened: Occupancy, search: Search) -> Mapping[str, Any] | str:
    """The numbers of a plan."""
    _, fit = plan_fit(opened, opened.needed_bytes, search=search)
    if fit is None:
        return _UNKNOWN
    total, needed, definition = opened.stored_bytes, opened.needed_bytes, opened.engine.definition
    memory = plan_memory(opened, cache_bytes=total, rank_bytes=needed, definition=definition, budget=fit.budget)
    sections = {name: getattr(memory.per_gpu, name) for name in _SECTIONS}
    return {"total_bytes": total, "per_gpu_bytes": needed, **sections, **{name: getattr(fit, name) for name in _VERDICT}}


class _Once(Search):
    """How many sequences fit depends on their length alone, and how long they may be on their number: each is searched for once."""

    def __init__(self) -> None:
        self._most: dict[int, tuple[Most, Most]] = {}
        self._longest: dict[int, tuple[Most, Most]] = {}

    def most(self, opened: Occupancy) -> tuple[Most, Most]:
        if opened.tokens not in self._most:
            self._most[opened.tokens] = super().most(opened)
        return self._most[opened.tokens]

    def longest(self, opened: Occupancy) -> tuple[Most, Most]:
        if opened.batch not in self._longest:
            self._longest[opened.batch] = super().longest(opened)
        return self._longest[opened.batch]

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[None, None]:
        """The page does not show it."""
        return None, None


def _joined(values: Sequence[Any]) -> Any:
    """A column: one value where all are equal."""
    return values[0] if all(value == values[0] for value in values) else list(values)
