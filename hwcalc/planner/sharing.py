"""What a plan says of sequences that have tokens in common: :func:`sharing_info`; what may be asked: :func:`check_sharing`."""

from __future__ import annotations

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.engines.setup import Request
from hwcalc.engines.steps import Step, step
from hwcalc.errors import UsageError
from hwcalc.planner.result import SharingInfo
from hwcalc.units import MOST_TOKENS


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
    if len(named) > 1 and not engine.beams_and_samples:
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
    request, together, support = opened.request, opened.together, opened.sharing_support
    unshared = opened.unshared.stored_bytes
    groups = opened.shared_blocks()
    prefix, prompt = opened.shared_tokens()
    once = (
        [sum(getattr(group, name) for group in groups) for name in ("shared", "request", "own", "copied")]
        if groups
        else [None] * 4
    )
    longest = together.lengths[0][0]
    return SharingInfo(
        definition=opened.model.definition(opened.engine.definition),
        offered=support.offered,
        support=support.how,
        sequences=opened.batch,
        shared_tokens=prefix,
        request_tokens=prompt - prefix,
        own_tokens=longest - prompt,
        shared_blocks=once[0],
        request_blocks=once[1],
        own_blocks=once[2],
        copied_blocks=once[3],
        unshared_bytes=unshared,
        saved_bytes=unshared - opened.stored_bytes,
        low_bytes=_beams_together(opened),
        padded_tokens=_padded(opened),
        lengths=request.load.lengths_of if request.load.lengths else (),
        groups=groups,
        steps=_steps(opened, prefix, prompt),
    )


def _beams_together(opened: Occupancy) -> int | None:
    """Bytes of the cache while beams share all tokens but the last; ``None`` without beams."""
    request = opened.request
    if request.load.sharing.beams == 1 or request.setup.policy is not None or not opened.together.prompt:
        return None
    return opened.with_request(
        request.changed(prompt=max(request.load.sharing.prefix, request.load.prompt_tokens, request.load.seq - 1))
    ).stored_bytes


def _padded(opened: Occupancy) -> int:
    """The number of positions of a padded batch that hold no token."""
    if not opened.load.lengths:
        return 0
    asked, kept = (
        sum(tokens * count for tokens, count in lengths) for lengths in (opened.load.lengths_of, opened.together.lengths)
    )
    return (kept - asked) * opened.load.sharing.branches


def _steps(opened: Occupancy, prefix: int, prompt: int) -> tuple[Step, ...]:
    """The steps that derive the tokens of all sequences and the tokens that the cache keeps."""
    together = opened.together
    if len(together.lengths) > 1:
        return ()
    ((tokens, requests),) = together.lengths
    kept = together.copies * prefix + requests * together.prompts * (prompt - prefix) + together.sequences * (tokens - prompt)
    return (
        step(
            "sequences",
            "requests x branches",
            together.sequences,
            unit="sequences",
            requests=requests,
            branches=together.branches,
        ),
        step(
            "kept_tokens",
            "copies x shared_tokens + requests x prompts x request_tokens + sequences x own_tokens",
            kept,
            unit="tokens",
            copies=together.copies,
            shared_tokens=prefix,
            requests=requests,
            prompts=together.prompts,
            request_tokens=prompt - prefix,
            sequences=together.sequences,
            own_tokens=tokens - prompt,
        ),
    )
