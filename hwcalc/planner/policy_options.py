"""The options of a plan about what is dropped of the cache, and what sequences have in common: rows of the table of all options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.planner.option import PlanOption

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

OF_POLICY: Final = ("policy_rules", "compaction")
"""Options that say something of the policy, and need one."""

POLICY_OPTIONS: Final[tuple[PlanOption, ...]] = (
    PlanOption(
        "prompt",
        "tokens",
        "N",
        "Tokens of the prompt, of those of --seq; the rest is generated. Default: all.",
        helps={"strategies": "Tokens of the prompt, of those of --seq; the rest is generated. Default: 1."},
        check="Tokens of the prompt, of those of seq. Default: all.",
        document="prompt",
        in_reconciliation=True,
        group="workload",
        also_in=("strategies",),
    ),
    PlanOption(
        "policy",
        "policy",
        "P",
        "Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies. Default: none, every token is kept.",
        complete="policies",
        helps=dict.fromkeys(
            ("compare", "sweep"),
            "Cache policies: snapkv:compression_ratio=0.5,knorm:compression_ratio=0.5,none. See: kvplan policies.",
        ),
        lists=("compare", "sweep"),
        check="Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies.",
        document="policy",
        in_reconciliation=True,
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
        in_reconciliation=True,
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
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "shared_prefix",
        "from zero",
        "N",
        "Tokens that all sequences begin with, kept once where the engine can. Default: 0.",
        check="Tokens that all sequences begin with, kept once where the engine can.",
        document="shared_prefix",
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "lengths",
        "lengths",
        "N,N",
        "Sequences of unlike lengths in place of --seq: 1k,2k,8k. Each has its share of --batch. Default: all are alike.",
        check="Unlike lengths in place of seq: 1k,2k,8k. Each has its share of batch.",
        document="lengths",
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


def with_policy(options: Mapping[str, Any], policy: Chosen | None, axis: Sequence[Chosen | None]) -> dict[str, Any]:
    """The options of one plan of several that differ in their policy. A plan without one takes nothing of what is said of the others."""
    if policy is not None:
        return {**options, "policy": policy}
    return {name: value for name, value in options.items() if name not in OF_POLICY or not any(axis)}
