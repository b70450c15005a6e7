"""What a plan says of its cache policy: :func:`policy_info`."""

from __future__ import annotations

from hwcalc.engines.base import Opened
from hwcalc.engines.evicting import Evicted
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition
from hwcalc.planner.policy_blocks import policy_blocks
from hwcalc.planner.policy_result import PolicyInfo, PolicyLayers
from hwcalc.policies.outcome import extras_of
from hwcalc.policies.quality import quality_of

__all__ = ["policy_info"]


def policy_info(opened: Opened, evicted: Evicted) -> PolicyInfo:
    """What the policy leaves, layer by layer, and what it costs."""
    asked, prompt = opened.request.policy, opened.request.prompt_tokens
    assert asked is not None
    support = opened.engine.policy_support(opened, asked.chosen)
    full = opened.without_policy().stored_bytes
    alike: dict[tuple[int, int, int, int], list[int]] = {}
    for (number, course), left in zip(evicted.courses.items(), evicted.state.layers, strict=True):
        key = (left.stored.high, left.stored.low, evicted.most[number], course.last)
        alike.setdefault(key, []).append(number)
    beside = extras_of(asked.chosen, prompt, evicted.setting)
    return PolicyInfo(
        name=asked.chosen.text,
        effect=asked.chosen.policy.effect,
        rules=asked.rules,
        attention=evicted.setting.attention,
        offered=support.offered,
        support=support.how,
        definition=Definition.ENGINE if support.offered else Definition.ASSUMED,
        prompt=prompt,
        output=opened.tokens - prompt,
        layers=tuple(
            PolicyLayers(layers=LayerNumbers(dict.fromkeys(numbers)), kept=kept, kept_low=low, most=most, last=last)
            for (kept, low, most, last), numbers in alike.items()
        ),
        full_bytes=full,
        prefill_bytes=opened.stored_bytes,
        most_bytes=opened.stored_bytes,
        last_bytes=opened.stored_bytes,
        saved_bytes=full - opened.stored_bytes,
        prefill_peak_bytes=0,
        full_prefill_peak_bytes=0,
        loses=False,
        blocks=policy_blocks(opened, evicted),
        beside=beside,
        quality=quality_of(asked.chosen.policy.name),
    )
