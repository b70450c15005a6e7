"""The options of a plan about what is dropped of the cache, and what sequences have in common: rows of the table of all options."""

from __future__ import annotations

from typing import Final

from hwcalc.planner.option import PlanOption

__all__ = ["POLICY_OPTIONS"]

POLICY_OPTIONS: Final[tuple[PlanOption, ...]] = (
    PlanOption(
        "prompt",
        "tokens",
        "N",
        "Tokens of the prompt, of those of --seq; the rest is generated. Default: all.",
        helps={"strategies": "Tokens of the prompt, of those of --seq; the rest is generated. Default: 1."},
        check="Tokens of the prompt, of those of seq. Default: all.",
        document="prompt",
        group="workload",
        also_in=("strategies",),
    ),
    PlanOption(
        "policy",
        "policy",
        "P",
        "Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies. Default: none, every token is kept.",
        complete="policies",
        check="Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies.",
        document="policy",
        group="workload",
    ),
    PlanOption(
        "policy_rules",
        "policy rules",
        "R",
        "Whose rules a policy follows where they differ: kvpress or paper. Default: kvpress.",
        complete="policy_rules",
        check="Whose rules a policy follows where they differ: kvpress or paper.",
        document="policy_rules",
        group="workload",
    ),
    PlanOption(
        "compaction",
        "compaction",
        "C",
        "What a policy does with the blocks of a paged cache: repack, fill or none. Default: repack.",
        complete="compactions",
        check="What a policy does with the blocks of a paged cache: repack, fill or none.",
        document="compaction",
        group="workload",
    ),
    PlanOption(
        "shared_prefix",
        "from zero",
        "N",
        "Tokens that all sequences begin with, kept once where the engine can. Default: 0.",
        check="Tokens that all sequences begin with, kept once where the engine can.",
        document="shared_prefix",
        group="workload",
    ),
    *(
        PlanOption(
            name,
            "count",
            "N",
            f"{words} of each sequence of --batch, behind one prompt. Default: 1.",
            default=1,
            check=f"{words} of each sequence, behind one prompt.",
            document=name,
            group="workload",
        )
        for name, words in {"samples": "Parallel samples", "beams": "Beams"}.items()
    ),
)
