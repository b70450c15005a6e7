"""``kvplan policies``: the cache policies, what each keeps, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.documents import document_of
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from hwcalc.policies.base import PolicyOption
    from hwcalc.report.records import PolicyInfo, PolicyOptionInfo

__all__ = ["EXAMPLES", "OPTIONS", "policy_infos", "run"]

OPTIONS = (
    Option(
        "name",
        (),
        "[NAME]",
        "One policy, by its name or that of its class in kvpress, with its options.",
        complete="policy_names",
    ),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("All of them", "kvplan policies"),
    Example("One: what it keeps, its formula, memory, kernel and options", "kvplan policies snapkv"),
    Example("For a script", "kvplan policies --json"),
)

_HEADER: Final = (
    "policy",
    "class in kvpress",
    "effect",
    "definition",
    "option",
    "default",
    "meaning",
    "keeps",
    "formula",
    "kernel",
    "source",
)


def run(*, name: str | None, **output: Any) -> Answer:
    """List the cache policies, or explain one.

    Which tokens stay, the formula, memory beside the cache, the attention kernel, options, published quality, and the source.
    """
    from hwcalc.report.listing import listing

    view = view_of(**output)
    found = policy_infos(name)
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION

        return answer({"schema_version": SCHEMA_VERSION, "policies": [document_of(policy) for policy in found]})
    if view.format == "csv":
        return Answer(text=listing(_HEADER, [row for policy in found for row in _csv_rows(policy)], format_="csv"))
    if name is not None:
        return Answer(text=_one(found[0], view), remarks=() if view.quiet else (_in_a_plan(found[0]),))
    rows: list[tuple[str, ...]] = [
        (policy.name, policy.effect.text, policy.title, policy.kernel, policy.source) for policy in found
    ]
    header: tuple[str, ...] = ("policy", "memory", "what", "attention", "source")
    if view.format == "table":
        # A line or two for each: reasons and sources stand beside the policy alone.
        header, rows = header[:4], [(*row[:3], _in_short(row[3])) for row in rows]
    text = listing(header, rows, format_=view.format, color=view.color, width=view.width)
    return Answer(text=text, remarks=() if view.quiet else _MORE)


def _in_short(kernel: str) -> str:
    """The name of the attention kernel, without the reason for it."""
    return kernel.partition(":")[0].partition(";")[0]


_MORE: Final = (
    "memory: frees - dropped tokens are no longer stored; masks, zeroes, reads less - all are stored, and no memory comes back",
    "attention: the kernels with which kvpress, or the policy's own code, can run it",
    "one policy with its formula and options: kvplan policies NAME",
    "a plan with one: kvplan MODEL --policy NAME:key=value,...",
)


def _in_a_plan(policy: PolicyInfo) -> str:
    """The option of a plan that names the policy, with an option that it must have or that people set."""
    return f"in a plan: kvplan MODEL --policy {shell_word(_written(policy))}"


def _written(policy: PolicyInfo) -> str:
    """The text of the policy with its required options, else with the first option on how much it keeps."""
    needed = [one for one in policy.options if one.required or one.kind in _PARTS]
    usual = [one for one in policy.options if one.kind == "ratio" or one.name.endswith("budget")][:1]
    words = [f"{one.name}={_SAMPLES.get(one.kind, one.default)}" for one in needed or usual]
    return f"{policy.name}:{','.join(words)}" if words else policy.name


_PARTS: Final = frozenset({"prefill", "decoding"})
"""Kinds of options of which a policy may have any, but not none."""
_SAMPLES: Final = {
    "ratio": "0.5",
    "count": "1024",
    "number": "0",
    "scorer": "(snapkv:compression_ratio=0.5)",
    "base": "(knorm:compression_ratio=0.5)",
    "prefill": "(snapkv:compression_ratio=0.5)",
    "decoding": "(decoding:base_press=knorm)",
    "prefills": "[(snapkv:compression_ratio=0.5),(knorm:compression_ratio=0.5)]",
    "shares": "[0.5,0.5,...]",
}
"""An example of a value, by the kind of an option."""


def policy_infos(name: str | None) -> list[PolicyInfo]:
    """All policies, or the one with this name. Raises :class:`~hwcalc.errors.UsageError` if it is unknown."""
    from hwcalc.policies.base import quality_of
    from hwcalc.policies.parse import find_policy, policies
    from hwcalc.report.records import PolicyInfo

    chosen = policies().values() if name is None else (find_policy(name.partition(":")[0]),)
    return [
        PolicyInfo(
            name=policy.name,
            press=policy.press,
            title=policy.title,
            aliases=policy.aliases,
            role=policy.role.value,
            effect=policy.effect,
            keeps=policy.keeps,
            formula=policy.formula,
            memory=policy.memory,
            kernel=policy.kernel,
            definition=policy.definition,
            source=policy.source,
            options=tuple(_option(option) for option in policy.options if not option.name.startswith("_")),
            quality=quality_of(policy.name),
        )
        for policy in chosen
    ]


def _option(option: PolicyOption) -> PolicyOptionInfo:
    from hwcalc.report.records import PolicyOptionInfo

    default = (
        "" if option.default is None else str(option.default).lower() if isinstance(option.default, bool) else f"{option.default}"
    )
    return PolicyOptionInfo(name=option.name, kind=option.kind, default=default, required=option.required, help=option.help)


def _one(policy: PolicyInfo, view: View) -> str:
    """A policy as tables: its facts, its options, and published figures."""
    from hwcalc.report.listing import listing
    from hwcalc.report.policy import MEMORY

    facts = (
        ("policy", policy.name),
        ("what", policy.title),
        ("class in kvpress", policy.press or _WITHOUT_PRESS[policy.definition]),
        ("keeps", policy.keeps),
        ("formula", policy.formula),
        ("memory", MEMORY[policy.effect.value]),
        ("beside the cache", policy.memory),
        ("attention", policy.kernel),
        ("numbers", _NUMBERS[policy.definition]),
        ("source", policy.source),
    )
    text = listing(("", ""), facts, format_=view.format, color=view.color, width=view.width)
    if policy.options:
        rows = [(one.name, "required" if one.required else one.default or "none", one.help) for one in policy.options]
        text += "\n" + listing(("option", "default", "meaning"), rows, format_=view.format, color=view.color, width=view.width)
    if policy.quality:
        figures = [
            (one.model, one.benchmark, f"{one.budget:,}", f"{one.accuracy:g}", f"{one.full_accuracy:g}") for one in policy.quality
        ]
        header = ("model", "benchmark", "budget", "accuracy %", "whole cache %")
        text += "\n" + listing(header, figures, format_=view.format, right=(2, 3, 4), color=view.color, width=view.width)
        sources = ", ".join(dict.fromkeys(one.source for one in policy.quality))
        text += f"\nright answers as published by {sources}, no promise\n"
    return text


_NUMBERS: Final = {
    "engine": "as its code keeps them; the code was run and compared",
    "published": "as its paper says: no code of it was run",
}
"""How the numbers of a policy are known."""
_WITHOUT_PRESS: Final = {"engine": "none: it has code of its own", "published": "none: it is planned by its paper"}


def _csv_rows(policy: PolicyInfo) -> list[tuple[str, ...]]:
    common = (policy.keeps, policy.formula, policy.kernel, policy.source)
    first = (policy.name, policy.press, policy.effect.text, policy.definition)
    options = [(one.name, one.default, one.help) for one in policy.options] or [("", "", "")]
    return [(*first, *option, *common) for option in options]
