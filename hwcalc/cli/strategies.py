"""``kvplan strategies``: ways of allocating a model's cache side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import (
    OPTIONAL_MODEL,
    OUTPUT,
    Example,
    Option,
    given_options,
    plan_options,
    reading,
    say_unreachable,
    view_of,
)
from hwcalc.cli.output import Answer, answer

if TYPE_CHECKING:
    from hwcalc.cli.output import View
    from hwcalc.planner.strategies_result import Strategies

__all__ = ["EXAMPLES", "OPTIONS", "explained", "run"]

_OWN: Final = (
    Option(
        "fill",
        ("--fill",),
        "F",
        "Share of --seq that each sequence has now, for what is wasted: 50%, the default.",
        group="workload",
    ),
    Option(
        "lengths",
        ("--lengths",),
        "N,...",
        "Tokens that the sequences have now: 1k,2k,8k; uniform:1..32k is any, equally likely.",
        group="workload",
    ),
    Option("block_size", ("--block-size",), "N", "Tokens of a block. Default: the engine's own, or 16.", group="engine"),
    Option("explain", ("--explain",), "NAME", "Derive each number of one strategy: recompute, pages, ...", complete="strategies"),
)
OPTIONS = (OPTIONAL_MODEL, *plan_options("strategies"), *_OWN, *OUTPUT)
EXAMPLES: Final = (
    Example("What does each way of keeping a cache take?", "kvplan strategies Qwen/Qwen3-8B --seq 32k --batch 4"),
    Example("What do short sequences waste?", "kvplan strategies Qwen/Qwen3-8B --seq 32k --lengths 1k,2k,8k"),
    Example("Where does a number come from?", "kvplan strategies Qwen/Qwen3-8B --seq 2000 --explain recompute"),
)


def run(*, model: str | None, explain: str | None = None, **options: Any) -> Answer:
    """Compare ways of allocating a cache: bytes, waste, operations.

    No cache at all, growth by concatenation, slots, pages and host memory; and the same model as MHA, GQA and MQA.
    """
    from hwcalc.library.strategies import strategies

    view, given = view_of(**options), given_options("strategies", options)
    own = {option.name: options[option.name] for option in _OWN if options.get(option.name) is not None}
    with reading(model, "strategies"):
        found = strategies(model, **own, **given)
    say_unreachable(found.notes)
    return _answer(found, view) if explain is None else explained(found, explain, view)


def explained(found: Strategies, name: str, view: View) -> Answer:
    """The answer that derives the numbers of a single strategy."""
    from hwcalc.library.strategies import only_strategy

    kept = only_strategy(found, name)
    if view.format in {"json", "csv"}:
        return _answer(kept, view)
    from hwcalc.report.strategies import strategy_text

    return Answer(text=strategy_text(kept, format_=view.format, width=view.width, color=view.color))


def _answer(found: Strategies, view: View) -> Answer:
    if view.format == "json":
        return answer(found.to_dict())
    from hwcalc.report.strategies import strategies_csv, strategies_text

    if view.format == "csv":
        return Answer(text=strategies_csv(found))
    text = strategies_text(found, format_=view.format, color=view.color, width=view.width, quiet=view.quiet)
    return Answer(text=text)
