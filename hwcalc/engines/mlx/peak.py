"""What mlx-lm needs besides the cache of the planned moment: while a prompt is read, while a layer grows, and for earlier requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from hwcalc.engines.forms import Amount, Asked, Constant, Fullest, Moment, Product
from hwcalc.engines.general_form import growing
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.engines.mlx.layers import quantized_at
from hwcalc.engines.mlx.slots import Grown, Pieces
from hwcalc.engines.steps import step
from hwcalc.formulas import Role
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.mlx.deployment import MlxOccupancy
    from hwcalc.engines.stored import StoredTensor

_SOURCE: Final = "mlx-lm 0.32.2 models/cache.py"
_OF_BITS: Final = frozenset({"kv_bits", "kv_group_size", "quantized_kv_start"})


def parts(occupancy: MlxOccupancy) -> Iterator[BudgetPart]:
    """The parts of the memory equation that come from the cache classes."""
    if _has_peak(occupancy):
        yield _peak_part(occupancy)
    yield _growth_part(occupancy)
    kept = occupancy.deployment.number("prompt_cache_size", 0)
    if kept:
        yield _earlier_part(occupancy, kept)


def _tensors(occupancy: MlxOccupancy) -> Iterator[StoredTensor]:
    """The tensors of the fullest rank that grow."""
    return (tensor for stored in occupancy.rank_tensors.values() for tensor in stored if isinstance(tensor.span, Pieces))


def _has_peak(occupancy: MlxOccupancy) -> bool:
    """Whether the cache can be larger before the planned moment: some layers let go of tokens, or are quantized."""
    return occupancy.deployment.bits is not None or any(not isinstance(tensor.span, Grown) for tensor in _tensors(occupancy))


def _peak_part(occupancy: MlxOccupancy) -> BudgetPart:
    """The most that the cache takes at an earlier moment, beyond what the plan counts."""
    now, most = _peak(occupancy)
    size, forms = max(0, most - now), _beyond(occupancy) or Asked(rule=cache(lambda tokens: _beyond_at(occupancy, tokens)))
    return BudgetPart(
        name="prompt pieces",
        section=Section.ACTIVATIONS,
        low=size,
        expected=size,
        high=size,
        source=f"{_SOURCE}: the cache at its fullest while the prompt is read, beyond the planned moment",
        definition=Definition.ENGINE,
        steps=(step("prompt_pieces", "max(fullest_cache - cache, 0)", size, fullest_cache=most, cache=now),),
        grows=(forms, forms, forms),
    )


def _peak(occupancy: MlxOccupancy) -> tuple[int, int]:
    """The cache at the planned moment, and at its fullest before."""
    return occupancy.needed_bytes, max((one.needed_bytes for one in _earlier(occupancy)), default=0)


def _beyond_at(occupancy: MlxOccupancy, tokens: int) -> int:
    """Bytes by which one sequence takes more at an earlier moment than the plan counts at its end."""
    now, most = _peak(occupancy.sized(seq=tokens, batch=1))
    return max(0, most - now)


def _earlier(occupancy: MlxOccupancy) -> Iterator[Occupancy]:
    """The moments at which the cache can be fullest: behind the last whole piece, at the end of the prompt, before it is quantized."""
    request, size = occupancy.request, occupancy.pieces[0]
    prompt = request.prompt_tokens
    for tokens in {prompt // size * size, prompt}:
        if tokens:
            yield occupancy.with_request(request.changed(seq=tokens, prompt=None))
    bits = occupancy.deployment.bits
    if bits is not None:
        tokens = min(quantized_at(occupancy, bits), request.seq)
        options = {name: value for name, value in request.options.items() if name not in _OF_BITS}
        plain = request.changed(seq=tokens, options=options, dtype=occupancy.dtypes.roles[Role.KEY].name)
        yield occupancy.engine.unchecked(occupancy.model, plain)


def _beyond(occupancy: MlxOccupancy) -> Fullest | None:
    """The bytes of the fullest moment beyond the cache, as a form; ``None`` if the cache is no sum of stairs, or the stages of a pipeline are fullest at other moments."""
    if occupancy.request.parallel.pp > 1 or occupancy.deployment.bits is not None:
        return None
    products: list[Product] = []
    for group in occupancy.stack.groups:
        for tensor in occupancy.rank_tensors[group.kind]:
            span = tensor.span
            if not isinstance(span, Pieces):
                continue
            if tensor.position_bytes is None or not span.has_stairs:
                return None
            size = group.count * tensor.position_bytes
            products += [Product(size, ("sequences",), span.at_pieces), Product(-size, ("sequences",), span.stairs())]
    return Fullest(moments=(Moment(1.0, (Product(0),)), Moment(1.0, tuple(products))), chunk=None, up=False)


def _growth_part(occupancy: MlxOccupancy) -> BudgetPart:
    """A layer grows by concatenation: for a moment the old and the new array of keys, or of values, exist together."""
    largest = _largest(occupancy)
    growth: Amount | None = None if occupancy.deployment.bits is not None else growing(occupancy, _tensors(occupancy))
    growth = growth or Asked(rule=cache(lambda tokens: _largest(occupancy.sized(seq=tokens, batch=1))))
    return BudgetPart(
        name="cache growth",
        section=Section.ACTIVATIONS,
        low=0,
        expected=largest,
        high=largest,
        source=f"{_SOURCE} KVCache.update_and_fetch: mx.concatenate of the largest array of a layer",
        grows=(Constant.of(0), growth, growth),
    )


def _largest(occupancy: MlxOccupancy) -> int:
    return max((tensor.bytes for tensor in _tensors(occupancy)), default=0)


def _earlier_part(occupancy: MlxOccupancy, kept: int) -> BudgetPart:
    """The part for the caches of earlier requests: the server keeps at most ``kept``, each as long as a planned request."""
    request_bytes = occupancy.sized(batch=1).needed_bytes
    each = Asked(rule=cache(lambda tokens: kept * occupancy.sized(seq=tokens, batch=1).needed_bytes), alone=True)
    return BudgetPart(
        name="prompt cache",
        section=Section.OVERHEAD,
        low=0,
        expected=kept * request_bytes,
        high=kept * request_bytes,
        source="mlx-lm 0.32.2 server.py --prompt-cache-size: caches of earlier requests, each as long as a planned one",
        steps=(
            step(
                "prompt_cache",
                "kept_caches x sequence_bytes",
                kept * request_bytes,
                kept_caches=kept,
                sequence_bytes=request_bytes,
            ),
        ),
        grows=(Constant.of(0), each, each),
    )
