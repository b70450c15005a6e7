"""``kvplan explain`` and ``kvplan strategies``: where every byte comes from, and what other ways of allocation would take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import (
    OPTIONAL_MODEL,
    OUTPUT,
    PLANNING,
    Option,
    command,
    given_options,
    plan_options,
    reading,
    say_unreachable,
)
from hwcalc.cli.output import Answer, formatted, view_of, why_not
from hwcalc.errors import UsageError
from hwcalc.library.explained import SECTIONS
from hwcalc.report.view import View
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import Strategies


@command(
    (
        *PLANNING,
        Option(
            "only",
            ("--only",),
            "PART",
            f"Only these parts, separated by commas: {', '.join(SECTIONS)}. Default: all that are known.",
            "list",
            complete="explain_parts",
            group="output",
        ),
        Option(
            "strategy",
            ("--strategy",),
            "NAME",
            "A way of allocation in place of the plan: recompute, growth, slots, pages, offload, engine.",
            complete="strategies",
            group="output",
        ),
    ),
    {
        "Where does every byte come from?": "kvplan explain Qwen/Qwen3-8B --seq 32k",
        "Why is a latent cache so small?": "kvplan explain deepseek-ai/DeepSeek-V3 --seq 32k",
        "What a block of vLLM holds": "kvplan explain Qwen/Qwen3-8B --engine vllm --seq 32k",
    },
)
def explain(*, model: str | None, only: list[str] | None = None, strategy: str | None = None, **options: Any) -> Answer:
    """Explain every byte: each formula with its numbers.

    Formula, numbers and result of cache, weights and, with hardware, of everything up to the verdict.

    The status is 1 if an accelerator is named and the plan is not known to fit it.
    """
    from hwcalc.library.explain import explain

    view, given, parts = view_of(**options), given_options("explain", options), _parts(only)
    if strategy is not None:
        # As ``kvplan strategies --explain`` derives it.
        from hwcalc.library.strategies import strategies

        with reading(model, "explain"):
            found = strategies(model, **given)
        say_unreachable(found.notes)
        return explained(found, strategy, view)
    with reading(model, "explain"):
        explanation = explain(model, **given)
    explanation = explanation.only(parts) if parts else explanation
    planned = explanation.plan
    say_unreachable(planned.notes)
    # That nobody can say is a warning of the explanation itself; rows have no place for one.
    remarks, status = () if planned.fit is None else why_not(planned), 1 if planned.refutes else 0
    from hwcalc.report.explain import explain_csv, explain_markdown, explain_text

    if view.format == "csv":
        remarks = (*(f"warning: {note.message}" for note in planned.warnings), *remarks)
    text = explain_markdown if view.format == "markdown" else explain_text
    return formatted(explanation, view, text, explain_csv, status=status, remarks=remarks)


def _parts(only: list[str] | None) -> tuple[str, ...]:
    """The parts that ``--only`` names, each of which may be a list; none is all."""
    names = tuple(name.strip().lower() for text in only or () for name in text.split(","))
    wrong = next((name for name in names if name not in SECTIONS), None)
    if wrong is not None:
        raise UsageError(f"--only {shown(wrong, 40)} is no part of an explanation.", hint=f"Allowed: {', '.join(SECTIONS)}.")
    return names


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


@command(
    (OPTIONAL_MODEL, *plan_options("strategies"), *_OWN, *OUTPUT),
    {
        "What does each way of keeping a cache take?": "kvplan strategies Qwen/Qwen3-8B --seq 32k --users 4",
        "What do short sequences waste?": "kvplan strategies Qwen/Qwen3-8B --seq 32k --lengths 1k,2k,8k",
        "Where does a number come from?": "kvplan strategies Qwen/Qwen3-8B --seq 2000 --explain recompute",
    },
)
def strategies(*, model: str | None, explain: str | None = None, **options: Any) -> Answer:
    """Compare ways of allocating a cache: bytes, waste, operations.

    No cache at all, growth by concatenation, slots, pages and host memory; and the same model as MHA, GQA and MQA.
    """
    from hwcalc.library.strategies import strategies

    view, given = view_of(**options), given_options("strategies", options)
    own = {option.name: options[option.name] for option in _OWN if options.get(option.name) is not None}
    with reading(model, "strategies"):
        found = strategies(model, **own, **given)
    say_unreachable(found.notes)
    return _strategies_answer(found, view) if explain is None else explained(found, explain, view)


def explained(found: Strategies, name: str, view: View) -> Answer:
    """The answer that derives the numbers of a single strategy."""
    from hwcalc.library.strategies import only_strategy

    kept = only_strategy(found, name)
    if view.format in {"json", "csv"}:
        return _strategies_answer(kept, view)
    from hwcalc.report.strategies import strategy_text

    return Answer(text=strategy_text(kept, view))


def _strategies_answer(found: Strategies, view: View) -> Answer:
    from hwcalc.report.strategies import strategies_csv, strategies_text

    return formatted(found, view, strategies_text, strategies_csv)
