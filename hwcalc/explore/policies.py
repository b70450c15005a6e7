"""Well-known cache policies: the whole answer of a plan with each, at some lengths and numbers of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import KvplanError
from hwcalc.explore.sampled import sampled_lengths
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import plan_opened
from hwcalc.policies.parse import parse_policy

if TYPE_CHECKING:
    from hwcalc.engines.base import Opened
    from hwcalc.model import ModelSpec
    from hwcalc.planner.result import Plan

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
_COLUMNS: Final[Mapping[str, Callable[[Plan], Any]]] = {
    "total_bytes": lambda plan: plan.cache.total_bytes,
    "per_gpu_bytes": lambda plan: plan.cache.per_gpu_bytes,
    **{name: lambda plan, name=name: getattr(plan.memory.per_gpu, name) for name in ("weights", "activations", "overhead")},
    **{
        name: lambda plan, name=name: getattr(plan.fit, name)
        for name in (
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
    },
}
"""The numbers of an answer."""


def policy_rows(
    model: ModelSpec, gpu: str, engines: Mapping[str, Mapping[str, str]], text: Callable[[str], int]
) -> dict[str, Any] | None:
    """Each policy by each engine (``PolicyRows`` in ``page/types.d.ts``); ``None`` for a model on which no policy acts.

    ``engines`` have the engine options of every state, and ``text`` gives the place of a text in the payload. An engine that lacks the
    policy is not planned as if it had it: a text says what it would take.
    """
    if not any(kind.acts_by_token for layer in model.stack for kind in layer):
        return None
    lengths = sampled_lengths(model, _FACTOR)
    rows = [_row(model, policy, lengths, {"gpu": gpu}, engines, text) for policy in POLICIES]
    return {"gpu": gpu, "lengths": list(lengths), "batches": list(BATCHES), "rows": rows}


def _row(
    model: ModelSpec,
    policy: str,
    lengths: Sequence[int],
    given: Mapping[str, Any],
    engines: Mapping[str, Mapping[str, str]],
    text: Callable[[str], int],
) -> dict[str, Any]:
    chosen = parse_policy(policy)
    assert chosen is not None
    answers = {}
    for engine, options in engines.items():
        given = {**given, "policy": policy, "engine": engine, "engine_options": options}
        answers[engine] = _answers(model, lengths, given, text)
    return {"policy": policy, "title": chosen.policy.title, "memory": chosen.policy.effect.text, "engines": answers}


def _answers(
    model: ModelSpec, lengths: Sequence[int], given: Mapping[str, Any], text: Callable[[str], int]
) -> dict[str, Any] | int:
    """The numbers of one engine, or the text that says why there are none."""
    try:
        opened = open_request(model, **read_options({**given, "seq": lengths[-1]}).keywords())
    except KvplanError as error:
        return text(_told(error))
    asked = opened.request.policy
    assert asked is not None
    support = opened.engine.policy_support(opened, asked.chosen)
    if not support.offered:
        return text(support.how)
    points = list(_points(opened, lengths))
    columns: dict[str, list[Any]] = {
        name: [read(point) if not isinstance(point, str) else None for point in points] for name, read in _COLUMNS.items()
    }
    columns["refused"] = [text(point) if isinstance(point, str) else None for point in points]
    return {name: _joined(values) for name, values in columns.items()}


def _points(opened: Opened, lengths: Sequence[int]) -> Iterator[Plan | str]:
    """The plan of each point, or why there is none."""
    for seq, batch in product(lengths, BATCHES):
        try:
            plan = plan_opened(opened.sized(seq=seq, batch=batch).checked())
        except KvplanError as error:
            yield _told(error)
            continue
        yield plan if plan.fit is not None else "What the model needs beside its cache is not known: no verdict."


def _told(error: KvplanError) -> str:
    return f"{error.message} {error.hint}".strip()


def _joined(values: Sequence[Any]) -> Any:
    """A column: one value where all are equal."""
    return values[0] if all(value == values[0] for value in values) else list(values)
