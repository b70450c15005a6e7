"""What a plan says of sequences that have tokens in common: :func:`sharing_info`; what may be asked: :func:`check_sharing`."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy, without_sharing
from hwcalc.engines.engine import Engine
from hwcalc.engines.setup import Request
from hwcalc.engines.steps import Step, figure
from hwcalc.errors import UsageError
from hwcalc.planner.result import SharingInfo
from hwcalc.units import MOST_TOKENS

_BLOCKS: Final = ("shared", "request", "own", "copied")


def check_sharing(engine: Engine, request: Request) -> None:
    """Check that what sequences have in common is a part of them. Raises :class:`~hwcalc.errors.UsageError`."""
    sharing, prompt = request.load.sharing, request.load.prompt_tokens
    shortest = request.load.lengths_of[-1][0]
    if sharing.prefix > prompt or sharing.prefix > shortest:
        what, tokens = ("shortest sequence", shortest) if shortest < prompt else ("prompt", prompt)
        raise UsageError(
            f"shared_prefix is {sharing.prefix:,} tokens, and the {what} has {tokens:,}.",
            hint=f"Use: --shared-prefix {tokens} or fewer, or a longer --{'prompt' if request.load.prompt is not None else 'seq'}",
        )
    named = [name for name in ("samples", "beams") if getattr(sharing, name) > 1]
    if named and request.load.prompt is None:
        raise UsageError(
            f"{named[0]} {getattr(sharing, named[0]):,}: how many tokens they have in common is not said.",
            hint=f"Say how many of the {request.load.seq:,} tokens of a sequence are the prompt, such as: --prompt {max(1, request.load.seq // 2)}",
        )
    if len(named) > 1 and not engine.facts.beams_and_samples:
        raise UsageError(
            f"{engine.label} takes samples or beams of a request, not both.", hint="Give one of --samples and --beams."
        )
    if request.setup.policy is not None and 0 < prompt <= sharing.prefix:
        raise UsageError(
            f"a policy acts behind the shared prefix, and of {prompt:,} tokens of the prompt none are there.",
            hint="Use a shorter --shared-prefix, or leave out --policy.",
        )
    if request.load.sequences > MOST_TOKENS:
        raise UsageError(
            f"batch x samples x beams is {request.load.sequences:,} sequences.", hint=f"At most {MOST_TOKENS:,} are planned."
        )


def sharing_info(opened: Occupancy) -> SharingInfo:
    """The section of a plan on shared tokens: how many tokens sequences have in common, and the bytes that this saves."""
    load, together, support = opened.load, opened.together, opened.sharing_support
    sharing, unshared, common = load.sharing, without_sharing(opened).stored_bytes, opened.in_common()
    prefix, prompt, groups = common.prefix, common.prompt, common.blocks
    blocks = {name: sum(getattr(group, name) for group in groups) if groups else None for name in _BLOCKS}
    low_bytes, padded = None, 0
    if sharing.beams > 1 and opened.setup.policy is None and together.prompt:
        # While beams share all tokens but the last.
        alike = max(sharing.prefix, load.prompt_tokens, load.seq - 1)
        low_bytes = opened.under(replace(opened.load, prompt=alike)).stored_bytes
    if load.lengths:
        # Positions of a padded batch that hold no token.
        asked, kept = (sum(tokens * count for tokens, count in lengths) for lengths in (load.lengths_of, together.lengths))
        padded = (kept - asked) * sharing.branches
    longest, steps = together.lengths[0][0], list[Step]()
    if len(together.lengths) == 1:
        requests = together.lengths[0][1]
        figure(steps, "sequences", "requests x branches", unit="sequences", requests=requests, branches=together.branches)
        figure(
            steps,
            "kept_tokens",
            "copies x shared_tokens + requests x prompts x request_tokens + sequences x own_tokens",
            unit="tokens",
            copies=together.copies,
            shared_tokens=prefix,
            requests=requests,
            prompts=together.prompts,
            request_tokens=prompt - prefix,
            sequences=together.sequences,
            own_tokens=longest - prompt,
        )
    return SharingInfo(
        definition=opened.model.definition(opened.engine.definition),
        offered=support.offered,
        support=support.how,
        sequences=opened.batch,
        shared_tokens=prefix,
        request_tokens=prompt - prefix,
        own_tokens=longest - prompt,
        **{f"{name}_blocks": count for name, count in blocks.items()},
        unshared_bytes=unshared,
        saved_bytes=unshared - opened.stored_bytes,
        low_bytes=low_bytes,
        padded_tokens=padded,
        lengths=load.lengths_of if load.lengths else (),
        groups=groups,
        steps=tuple(steps),
    )
