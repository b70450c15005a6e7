"""What mlx-lm needs beside the cache of the planned moment: while a prompt is read, while a layer grows, and for earlier requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.forms import Constant, Fullest
from hwcalc.engines.general_form import growing
from hwcalc.engines.mlx.layers import pieces, quantized_at
from hwcalc.engines.mlx.options import bits_of, number_of
from hwcalc.engines.mlx.slots import Grown, Pieces
from hwcalc.engines.moments import Moment, Product
from hwcalc.engines.steps import step
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import Role
from hwcalc.formulas.frozen import replace
from hwcalc.model import Definition

__all__ = ["has_form", "parts"]

_SOURCE: Final = "mlx-lm 0.32.2 models/cache.py"
_OF_BITS: Final = frozenset({"kv_bits", "kv_group_size", "quantized_kv_start"})


def parts(opened: Opened) -> Iterator[BudgetPart]:
    """The parts of the memory equation that come from the cache classes."""
    if _has_peak(opened):
        yield _peak_part(opened)
    yield _growth_part(opened)
    kept = number_of(opened, "prompt_cache_size", 0)
    if kept:
        yield _earlier_part(opened, kept)


def _tensors(opened: Opened) -> Iterator[StoredTensor]:
    """The tensors of the fullest rank that grow."""
    return (tensor for stored in opened.rank_tensors.values() for tensor in stored if isinstance(tensor.span, Pieces))


def _has_peak(opened: Opened) -> bool:
    """Whether the cache can be larger before the planned moment: some layers let go of tokens, or are quantized."""
    return bits_of(opened) is not None or any(not isinstance(tensor.span, Grown) for tensor in _tensors(opened))


def has_form(opened: Opened) -> bool:
    """Whether all that grows here can be written as stairs."""
    if "prompt_cache_size" in opened.request.options or bits_of(opened) is not None:
        return False
    return not _has_peak(opened) or (opened.request.parallel.pp == 1 and _beyond(opened) is not None)


def _peak_part(opened: Opened) -> BudgetPart:
    """The most that the cache takes at an earlier moment, beyond what the plan counts."""
    now, most = opened.needed_bytes, max((one.needed_bytes for one in _earlier(opened)), default=0)
    size, forms = max(0, most - now), _beyond(opened)
    return BudgetPart(
        name="prompt pieces",
        section=Section.ACTIVATIONS,
        low=size,
        expected=size,
        high=size,
        source=f"{_SOURCE}: the cache at its fullest while the prompt is read, beyond the planned moment",
        definition=Definition.ENGINE,
        steps=(step("prompt_pieces", "max(fullest_cache - cache, 0)", size, fullest_cache=most, cache=now),),
        grows=None if forms is None else (forms, forms, forms),
    )


def _earlier(opened: Opened) -> Iterator[Opened]:
    """The moments at which the cache can be fullest: behind the last whole piece, at the end of the prompt, before it is quantized."""
    request, size = opened.request, pieces(opened)[0]
    prompt = request.prompt_tokens
    for tokens in {prompt // size * size, prompt}:
        if tokens:
            yield opened.with_request(replace(request, seq=tokens, prompt=None))
    bits = bits_of(opened)
    if bits is not None:
        tokens = min(quantized_at(opened, bits), request.seq)
        options = {name: value for name, value in request.options.items() if name not in _OF_BITS}
        plain = replace(request, seq=tokens, options=options, dtype=opened.dtypes.roles[Role.KEY].name)
        yield opened.engine.unchecked(opened.model, plain)


def _beyond(opened: Opened) -> Fullest | None:
    """The same as a rule; ``None`` if it has no such form (:meth:`Mlx.form` then has none either)."""
    products: list[Product] = []
    for group in opened.stack.groups:
        for tensor in opened.rank_tensors[group.kind]:
            span = tensor.span
            if not isinstance(span, Pieces):
                continue
            if tensor.position_bytes is None or not span.has_stairs:
                return None
            size = group.count * tensor.position_bytes
            products += [Product(size, ("sequences",), span.at_pieces), Product(-size, ("sequences",), span.stairs())]
    return Fullest(moments=(Moment(1.0, (Product(0),)), Moment(1.0, tuple(products))), chunk=None, up=False)


def _growth_part(opened: Opened) -> BudgetPart:
    """A layer grows by concatenation: for a moment the old and the new array of keys, or of values, exist together."""
    sizes = sorted((tensor.bytes for tensor in _tensors(opened)), reverse=True)
    largest = sizes[0] if sizes else 0
    growth = growing(opened, _tensors(opened))
    return BudgetPart(
        name="cache growth",
        section=Section.ACTIVATIONS,
        low=0,
        expected=largest,
        high=largest,
        source=f"{_SOURCE} KVCache.update_and_fetch: mx.concatenate of the largest array of a layer",
        grows=None if growth is None else (Constant.of(0), growth, growth),
    )


def _earlier_part(opened: Opened, kept: int) -> BudgetPart:
    """The server keeps the caches of earlier requests: at most so many, each here as long as a planned one."""
    one = opened.with_request(replace(opened.request, batch=1)).needed_bytes
    return BudgetPart(
        name="prompt cache",
        section=Section.OVERHEAD,
        low=0,
        expected=kept * one,
        high=kept * one,
        source="mlx-lm 0.32.2 server.py --prompt-cache-size: caches of earlier requests, each as long as a planned one",
        steps=(step("prompt_cache", "kept_caches x sequence_bytes", kept * one, kept_caches=kept, sequence_bytes=one),),
    )
