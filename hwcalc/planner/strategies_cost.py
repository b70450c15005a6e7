"""What passes compute and read with a cache and without one, for all sequences of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hwcalc.engines.steps import Step, step
from hwcalc.formulas.flops import decode_work, pairs_cached, passes_work, prefill_work, selected_tokens, steps_work
from hwcalc.formulas.record import Record
from hwcalc.planner.speed import speed_bound
from hwcalc.planner.speed_work import cache_bytes_read
from hwcalc.planner.strategies_steps import named, with_sum
from hwcalc.planner.weight_share import Use, WeightShare
from hwcalc.planner.weight_use import weight_shares

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import LayerKind
    from hwcalc.formulas.flops import Work
    from hwcalc.planner.result import SpeedInfo
    from hwcalc.planner.strategies_load import Lengths

class Cost(Record):
    """The operations of the last step and of all passes, alone for attention and with the weights, and what the step reads."""

    attention_step: int
    step: int | None
    attention_total: int
    total: int | None
    cache_bytes: int
    weight_bytes: int | None
    seconds: float | None
    steps: tuple[Step, ...]


class _Weights(Record):
    """Operations with the weights: of each token, of each pass (for its last token) and of the encoder, which passes once."""

    token: int
    each_pass: int
    encoder: int
    shares: tuple[WeightShare, ...]

    def read_bytes(self, tokens: int) -> int:
        """Bytes of weights that one pass of so many tokens reads."""
        return int(sum(share.touched_bytes(tokens) for share in self.shares if share.use is not Use.ENCODER))


def costs(opened: Occupancy, lengths: Lengths) -> tuple[Cost, Cost]:
    """The cost with a cache, and the one without: each pass then takes the whole text so far.

    A prompt is one pass and each token behind it another one, up to the last token, so that the cache holds all of them in the end.
    """
    weights, bound = _weights(opened), _bound(opened, lengths)
    return _cached(opened, lengths, weights, bound), _recomputed(opened, lengths, weights, bound)


def _cached(opened: Occupancy, lengths: Lengths, weights: _Weights | None, bound: SpeedInfo | None) -> Cost:
    count = _Counted(opened=opened, lengths=lengths)
    last = count.of("step", lambda kind, told: decode_work(kind, lengths.seq, lengths.encoder_tokens, selected=told))
    every = count.of(
        "total",
        lambda kind, told: (
            *prefill_work(kind, lengths.prompt, lengths.encoder_tokens, selected=told),
            *steps_work(kind, lengths.prompt, lengths.seq, lengths.encoder_tokens, selected=told),
        ),
    )
    roles, encoder = opened.dtypes.roles, lengths.encoder_tokens
    read = lengths.batch * cache_bytes_read(opened.stack, roles, seq=lengths.seq, encoder_tokens=encoder)
    seconds = None if bound is None else bound.decode_step_s_bound
    return _cost(lengths, weights, last=(*last, 1), every=(*every, lengths.seq), read=read, seconds=seconds)


def _recomputed(opened: Occupancy, lengths: Lengths, weights: _Weights | None, bound: SpeedInfo | None) -> Cost:
    count, seq, encoder = _Counted(opened=opened, lengths=lengths), lengths.seq, lengths.encoder_tokens
    last = count.of("step", lambda kind, told: prefill_work(kind, seq, encoder, selected=told))
    every = count.of("total", lambda kind, told: passes_work(kind, lengths.prompt, seq, encoder, selected=told))
    passed = pairs_cached(seq) - pairs_cached(lengths.prompt - 1)
    return _cost(lengths, weights, last=(*last, seq), every=(*every, passed), read=0, seconds=_prompts_s(bound, lengths.batch))


def _prompts_s(bound: SpeedInfo | None, batch: int) -> float | None:
    """The least time for the prompts of all sequences: as often as one takes, where computing it takes longest."""
    if bound is None or bound.prefill_s_bound is None:
        return None
    return bound.prefill_s_bound * (batch if bound.prefill_bound_by == "compute" else 1)


def _cost(
    lengths: Lengths,
    weights: _Weights | None,
    *,
    last: tuple[int, tuple[Step, ...], int],
    every: tuple[int, tuple[Step, ...], int],
    read: int,
    seconds: float | None,
) -> Cost:
    """``last`` and ``every`` are the operations of attention with their steps, and the tokens that pass for each sequence."""
    passes = lengths.seq - lengths.prompt + 1
    step_all, step_steps = _with_weights("step", last[0], last[2], 1, lengths, weights)
    total_all, total_steps = _with_weights("total", every[0], every[2], passes, lengths, weights)
    return Cost(
        attention_step=last[0],
        step=step_all,
        attention_total=every[0],
        total=total_all,
        cache_bytes=read,
        weight_bytes=None if weights is None else weights.read_bytes(lengths.batch * last[2]),
        seconds=seconds,
        steps=(*last[1], *step_steps, *every[1], *total_steps),
    )


def _with_weights(
    name: str, attention: int, tokens: int, passes: int, lengths: Lengths, weights: _Weights | None
) -> tuple[int | None, tuple[Step, ...]]:
    """Operations with the weights too, and how they come about."""
    if weights is None:
        return None, ()
    own = weights.encoder if name == "total" else 0
    each = tokens * weights.token + passes * weights.each_pass + own
    terms = {
        "sequences": lengths.batch,
        "passed_tokens": tokens,
        "token_operations": weights.token,
        "passes": passes,
        "head_operations": weights.each_pass,
    }
    formula = "passed_tokens x token_operations + passes x head_operations"
    if own:
        formula, terms = f"{formula} + encoder_operations", terms | {"encoder_operations": own}
    size = lengths.batch * each
    first = step(f"weights_{name}", f"sequences x ({formula})", size, unit="operations", **terms)
    both = {f"attention_{name}": attention, f"weights_{name}": size}
    whole = step(f"{name}_operations", " + ".join(both), attention + size, unit="operations", **both)
    return attention + size, (first, whole)


class _Counted(Record):
    """Counts operations of attention, kind by kind."""

    opened: Occupancy
    lengths: Lengths

    def of(self, name: str, work: Callable[[LayerKind, int | None], tuple[Work, ...]]) -> tuple[int, tuple[Step, ...]]:
        """All operations, with how they come about. ``work`` is that of one layer of a kind for one sequence."""
        selected, total = selected_tokens(self.opened.stack), 0
        steps: list[Step] = []
        for group in self.opened.stack.groups:
            own = _joined(work(group.kind, selected))
            size = group.count * self.lengths.batch * sum(pairs * each for pairs, each in own)
            if not size:
                continue
            total += size
            terms = {"kind_layers": group.count, "sequences": self.lengths.batch}
            products = []
            for number, (pairs, each) in enumerate(own):
                again = f"_{number + 1}" if number else ""
                terms |= {f"pairs{again}": pairs, f"pair_operations{again}": each}
                products.append(f"pairs{again} x pair_operations{again}")
            summed = products[0] if len(products) == 1 else f"({' + '.join(products)})"
            label = named(f"{group.kind.name}_{name}", steps)
            steps.append(step(label, f"kind_layers x sequences x {summed}", size, unit="operations", **terms))
        return total, with_sum(f"attention_{name}", steps, total, "operations")


def _joined(work: Iterable[Work]) -> tuple[Work, ...]:
    """Work of as many operations for a pair together."""
    sums: dict[int, int] = {}
    for pairs, each in work:
        sums[each] = sums.get(each, 0) + pairs
    return tuple((pairs, each) for each, pairs in sums.items() if pairs)


def _weights(opened: Occupancy) -> _Weights | None:
    model, request = opened.model, opened.request
    found: tuple[WeightShare, ...] | None = model.once(
        ("weight shares", request.weights, None), lambda: weight_shares(model, request.weights, None)
    )
    if found is None:
        return None
    sums = dict.fromkeys(Use, 0)
    for share in found:
        sums[share.use] += share.flops_per_token
    return _Weights(
        shares=found,
        token=sums[Use.ALWAYS] + sums[Use.CHOSEN],
        each_pass=sums[Use.LAST],
        encoder=sums[Use.ENCODER] * opened.encoder_tokens,
    )


def _bound(opened: Occupancy, lengths: Lengths) -> SpeedInfo | None:
    """The bounds on the time of a step and of a prompt, where an accelerator is named."""
    gpu = opened.request.hardware.gpu
    if gpu is None:
        return None
    return speed_bound(
        opened.model,
        gpu=gpu,
        seq=lengths.seq,
        batch=lengths.batch,
        roles=opened.dtypes.roles,
        engine=opened.engine.name,
        encoder_tokens=lengths.encoder_tokens,
        weights=opened.request.weights,
    ).value
