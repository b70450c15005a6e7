"""What a plan says of its cache policy: :func:`policy_info`."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.evicting import Evicted
from hwcalc.engines.peaks import inner_vectors, peak_steps, peaks_of, whole_bytes
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition, Note
from hwcalc.planner.policy_blocks import policy_blocks
from hwcalc.planner.policy_result import PolicyInfo, PolicyLayers
from hwcalc.policies.base import EAGER, PAPER, Chosen, Count, Effect, quality_of
from hwcalc.text import brief
from hwcalc.units import human_bytes

NOT_OFFERED: Final = "policy-not-offered"
LOSES: Final = "policy-loses"
DROPS_NOTHING: Final = "policy-drops-nothing"
_NAME: Final = 40
"""Characters of a policy's name in a message."""


def cache_definition(opened: Occupancy, evicted: Evicted) -> Definition:
    """What the numbers of a cache are on which a policy works."""
    asked, chosen = opened.request.policy, evicted.chosen
    assert asked is not None
    if not evicted.ends:
        return opened.engine.definition
    if not opened.policy_support(chosen).offered:
        return Definition.ASSUMED
    if not evicted.is_exact:
        return Definition.ESTIMATE
    if asked.rules == PAPER or any(one.policy.definition is Definition.PUBLISHED for one in chosen.whole):
        return Definition.PUBLISHED
    return Definition.ENGINE


def policy_info(opened: Occupancy, evicted: Evicted) -> PolicyInfo:
    """What the policy leaves, layer by layer, and what it costs."""
    asked, lows = opened.request.policy, evicted.lows
    assert asked is not None
    support = opened.policy_support(asked.chosen)
    plain = opened.without_policy()
    peaks = peaks_of(opened)
    prompt = opened.sized(seq=opened.request.prompt_tokens)
    most = opened.stored_bytes
    masked = _masked(evicted)
    rooms = inner_vectors(opened)
    needs = peaks.cache + peaks.beyond(rooms[1])
    return PolicyInfo(
        name=asked.chosen.text,
        effect=asked.chosen.policy.effect,
        rules=asked.rules,
        attention=evicted.setting.attention,
        offered=support.offered,
        support=support.how,
        definition=opened.model.definition(cache_definition(opened, evicted)),
        prompt=evicted.prompt,
        output=evicted.steps,
        layers=_layers(evicted),
        full_bytes=plain.stored_bytes,
        prefill_bytes=prompt.holding(evicted.behind_prompt).stored_bytes,
        prefill_low_bytes=prompt.holding(lows.behind_prompt).stored_bytes,
        most_bytes=most,
        most_low_bytes=most if evicted.is_exact else opened.holding(lows.most).stored_bytes,
        last_bytes=opened.holding(evicted.last).stored_bytes if evicted.steps else most,
        # Branches of a request that cut their own caches no longer share a prompt, and may take more than without the policy.
        saved_bytes=max(0, plain.stored_bytes - most),
        masked_pairs=None if masked is None else masked.high,
        masked_low_pairs=None if masked is None else masked.low,
        prefill_peak_bytes=peaks.prefill,
        full_prefill_peak_bytes=whole_bytes(opened),
        loses=needs > plain.needed_bytes,
        blocks=policy_blocks(opened, evicted),
        beside=peaks.extras,
        quality=quality_of(asked.chosen.policy.name),
        steps=peak_steps(peaks, rooms),
        options=dict(support.options),
        flags=support.flags,
        environment=support.environment,
    )


def _masked(evicted: Evicted) -> Count | None:
    """Pairs of a token and a head without weight, in all layers of a sequence; ``None`` where nothing is masked."""
    found = [left.masked.total for left in evicted.state.layers if left.masked is not None]
    if not found:
        return None
    return evicted.state.masked_total or Count(low=sum(one.low for one in found), high=sum(one.high for one in found))


def _layers(evicted: Evicted) -> tuple[PolicyLayers, ...]:
    """The layers on which the policy acts, those together that it leaves alike."""
    alike: dict[tuple[int, int, int, int, int | None], list[int]] = {}
    for (number, ends), left in zip(evicted.ends.items(), evicted.state.layers, strict=True):
        read = None if left.read is None or left.read.high == left.stored.high else left.read.high
        alike.setdefault((left.stored.high, left.stored.low, evicted.most[number], ends.last, read), []).append(number)
    return tuple(
        PolicyLayers(layers=LayerNumbers(dict.fromkeys(numbers)), kept=kept, kept_low=low, most=most, last=last, read=read)
        for (kept, low, most, last, read), numbers in alike.items()
    )


def policy_notes(chosen: Chosen, attention: str, *, acted: int, layers: int) -> list[Note]:
    """What a reader must know of a policy that acts on so many of the layers."""
    if not acted:
        message = "The policy has no effect: no layer of this model keeps every token. Windows, states and shared caches keep what they keep."
        return [Note(code="policy-no-effect", message=message)]
    found = []
    if acted < layers:
        message = f"The policy acts on {acted:,} of {layers:,} layers: windows, states and shared caches keep what they keep."
        found.append(Note(code="policy-layers", message=message))
    if any(one.policy.effect is Effect.MASKS for one in chosen.whole):
        found.append(Note(code="policy-masks", message="Masked tokens are stored: no memory comes back. kvpress fakes the mask."))
    if attention == EAGER:
        message = "Eager attention makes n x n scores in the prefill, which may take more than the policy saves."
        found.append(Note(code="policy-eager", message=message))
    return found


def policy_warnings(opened: Occupancy, info: PolicyInfo) -> list[Note]:
    """That the engine lacks the policy, and that it takes more memory than it saves."""
    if not info.layers:
        return []
    found, name = [], brief(info.name, _NAME)
    if nothing := _drops_nothing(opened, info):
        found.append(Note(code=DROPS_NOTHING, message=f"{name} drops nothing here: {nothing}"))
    if not info.offered:
        label = opened.engine.label
        message = f"{label} has no cache policy {name}: planned as if it had. {info.support}".rstrip()
        found.append(Note(code=NOT_OFFERED, message=message))
    if info.loses:
        message = (
            f"{name} takes more memory than it saves: {human_bytes(info.prefill_peak_bytes)} of cache and scratch in the "
            f"prefill on a GPU, {human_bytes(info.full_prefill_peak_bytes)} of cache without it."
        )
        found.append(Note(code=LOSES, message=message))
    return found


def _drops_nothing(opened: Occupancy, info: PolicyInfo) -> str:
    """Why a policy that drops tokens keeps all of them, and what to write; empty where it drops some."""
    asked = opened.request.policy
    assert asked is not None
    whole = info.prompt + info.output
    dropped = any(group.kept_low < info.prompt or group.last < whole for group in info.layers)
    if dropped or info.masked_pairs or asked.chosen.policy.effect in (Effect.READS_LESS, Effect.ZEROES):
        return ""
    unset = next((one for one in asked.chosen.whole if one.get("compression_ratio") == 0 and not one.get("budget")), None)
    if unset is not None:
        return f"its compression_ratio, the share that is dropped, is 0. Write: {unset.policy.name}:compression_ratio=0.5"
    return f"its options keep all {whole:,} tokens. See: kvplan policies {asked.chosen.policy.name}"
