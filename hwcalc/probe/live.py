"""Run a small real model, and compare its cache with the plan and its decoding with a run without a cache.

The model has the planned type, at least one layer of each kind, the planned widths if they are affordable, random weights from a fixed
seed, and windows so short that the sequence exceeds them. Two things are compared: the bytes of the cache object with the plan of the
small config, and the logits of the decoded tokens with those of the whole sequence, computed without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.probe import live_model
from hwcalc.probe.devices import TORCH_NAMES
from hwcalc.probe.live_model import Change, NotRun
from hwcalc.text import brief, quoted

AGREES: Final = "agrees"
DIFFERS: Final = "differs"
NOT_RUN: Final = "not run"
MOST_WEIGHT_BYTES: Final = 2**29
"""The default limit of the weights of the small model."""
_MOST_TOKENS: Final = 4096
_TOLERANCE: Final = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
"""The allowed difference of logits as a share of the largest logit: some hundred rounding errors of the format."""


class LiveLayer(Record):
    """Bytes of one layer's cache for the whole batch, planned and held."""

    layer: int
    """Its number in the planned model."""
    kinds: tuple[str, ...]
    predicted_bytes: int
    measured_bytes: int


class LiveResult(Record):
    """What was run, and how it compares. Where ``status`` is ``not run``, ``reason`` says why and the numbers are zero.

    Bytes are of the small model for ``batch`` sequences of ``prompt_tokens + decode_tokens``. ``measured_bytes`` counts the elements
    that the cache object's tensors show, ``storage_bytes`` the memory behind them. Differences of logits are shares of the largest logit;
    ``control_difference`` is that of the last token computed with nothing before it, which a lost cache would show.
    """

    status: str
    reason: str
    model_type: str
    device: str
    dtype: str
    attention: str
    cache: str = "dynamic"
    torch_version: str = ""
    transformers_version: str = ""
    engine_version: str = ""
    seed: int = 0
    batch: int = 0
    prompt_tokens: int = 0
    decode_tokens: int = 0
    encoder_tokens: int = 0
    weight_bytes: int = 0
    factor: int = 1
    changes: tuple[Change, ...] = ()
    layers: tuple[LiveLayer, ...] = ()
    predicted_bytes: int = 0
    measured_bytes: int = 0
    storage_bytes: int = 0
    logits_difference: float = 0.0
    control_difference: float = 0.0
    tolerance: float = 0.0

    def rows(self) -> tuple[tuple[str, int, int], ...]:
        """Name, predicted and measured bytes of each layer, and of the whole cache."""
        layers = (
            (f"layer {layer.layer}: {' + '.join(layer.kinds)}", layer.predicted_bytes, layer.measured_bytes)
            for layer in self.layers
        )
        return () if self.status == NOT_RUN else (*layers, ("cache", self.predicted_bytes, self.measured_bytes))


def run_live(
    model: ModelSpec,
    device: str = "cpu",
    *,
    dtype: str = "fp32",
    attention: str = "eager",
    cache: str = "dynamic",
    batch: int = 2,
    prompt: int | None = None,
    decode: int = 4,
    encoder: int = 11,
    seed: int = 0,
    most_weight_bytes: int = MOST_WEIGHT_BYTES,
) -> LiveResult:
    """Build a small model, run it and compare. By default, ``prompt`` is long enough to exceed every window.

    ``dtype`` is ``fp32``, ``fp16`` or ``bf16``; ``cache`` is ``dynamic`` or ``static``. To bound the memory, heads and channels are
    divided by the smallest number with which the weights take at most ``most_weight_bytes``. If the model cannot be run, the result
    says so. Raises :class:`~hwcalc.errors.UsageError` for arguments that are out of range.
    """
    words = (
        ("dtype", dtype, tuple(_TOLERANCE)),
        ("attention", attention, ("eager", "sdpa")),
        ("cache", cache, ("dynamic", "static")),
    )
    for name, given, known in words:
        if given not in known:
            raise UsageError(f"{name} is {quoted(given, 40)}.", hint=f"Allowed: {', '.join(known)}.")
    numbers = (
        ("batch", batch, 64),
        ("prompt", prompt, _MOST_TOKENS),
        ("decode", decode, 256),
        ("encoder", encoder, _MOST_TOKENS),
    )
    for name, number, most in numbers:
        if number is not None and not 1 <= number <= most:
            raise UsageError(f"{name} is {number:,}.", hint=f"Allowed: 1 to {most:,}.")
    if most_weight_bytes < 1:
        raise UsageError(f"most_weight_bytes is {most_weight_bytes:,}.", hint="Allowed: 1 or more.")
    result = LiveResult(
        status=NOT_RUN,
        reason="",
        model_type=model.model_type,
        device=device,
        dtype=dtype,
        attention=attention,
        cache=cache,
        seed=seed,
    )
    try:
        versions = live_model.library()
        result = replace(result, torch_version=versions[0], transformers_version=versions[1])
        return _run(model, result, batch, prompt, decode, encoder, most_weight_bytes)
    except NotRun as reason:
        return replace(result, reason=str(reason))


def _run(
    model: ModelSpec, result: LiveResult, batch: int, prompt: int | None, decode: int, encoder: int, most: int
) -> LiveResult:
    """The result with what was measured. Everything on the device is freed, also after an error."""
    import gc

    import torch

    torch_dtype = getattr(torch, TORCH_NAMES[result.dtype])

    def build(config: Any, where: str) -> Any:
        return live_model.make(config, dtype=torch_dtype, device=where, attention=result.attention, seed=result.seed)

    small, factor, spec, weight_bytes = live_model.smaller(live_model.full_config(model), model, build, most)
    windows = [tensor.span.positions(2**40) for layer in spec.stack for kind in layer for tensor in kind.tensors()]
    closed = max((size for size in windows if 1 < size <= _MOST_TOKENS), default=0)
    prompt = max(closed, live_model.WINDOW) + 7 if prompt is None else prompt
    opened = open_small(
        spec,
        result.transformers_version,
        seq=prompt + decode,
        batch=batch,
        dtype=result.dtype,
        encoder_seq=encoder,
        engine_options={"cache": result.cache},
    )
    result = replace(
        result,
        engine_version=opened.deployment.version,
        batch=batch,
        prompt_tokens=prompt,
        decode_tokens=decode,
        encoder_tokens=opened.encoder_tokens,
        weight_bytes=weight_bytes,
        factor=factor,
        changes=small.changes,
        predicted_bytes=opened.stored_bytes,
        tolerance=_TOLERANCE[result.dtype],
    )
    built = fed = None
    try:
        try:
            built = build(small.config, result.device)
            encoded, static = opened.encoder_tokens or encoder, result.cache == "static"
            fed = live_model.feed(
                built, batch=batch, prompt=prompt, decode=decode, encoder=encoded, seed=result.seed, static=static
            )
        except NotRun:
            raise
        except Exception as error:
            raise NotRun(f"it does not run on {result.device}: {type(error).__name__}: {brief(str(error), 160)}") from error
        return _judged(result, fed, opened, small.layers)
    finally:
        built = fed = None
        gc.collect()
        if result.device.startswith("cuda"):
            torch.cuda.empty_cache()
        elif result.device.startswith("mps"):
            torch.mps.empty_cache()


def _judged(result: LiveResult, fed: live_model.RunOutput, opened: Occupancy, numbers: Sequence[int]) -> LiveResult:
    """The result with bytes, differences of logits, its status, and a reason that lists everything that does not agree.

    ``numbers`` are those of the small model's layers in the planned model.
    """
    stack = opened.stack.layers
    if len(numbers) != len(stack):
        numbers = range(len(stack))
    planned = [sum(tensor.bytes for kind in layer for tensor in opened.kind_tensors[kind]) for layer in stack]
    counted = [row for row in zip(numbers, stack, planned, strict=True) if row[2]]
    held = [size for size in live_model.cache_layers(fed.cache) or () if size]
    scale = float(fed.anew.abs().max())
    logits, control = (
        float(difference.abs().max()) / scale if scale else 0.0
        for difference in (fed.cached - fed.anew, fed.alone - fed.anew[:, -1:])
    )
    result = replace(
        result,
        status=AGREES,
        layers=tuple(
            LiveLayer(layer=number, kinds=tuple(kind.name for kind in layer), predicted_bytes=size, measured_bytes=measured)
            for (number, layer, size), measured in zip(counted, held, strict=True)
        )
        if len(held) == len(counted)
        else (),
        measured_bytes=live_model.tensor_bytes(fed.cache, set()),
        storage_bytes=live_model.tensor_bytes(fed.cache, set(), storage=True),
        logits_difference=logits,
        control_difference=control,
    )
    wrong = []
    same = all(layer.predicted_bytes == layer.measured_bytes for layer in result.layers)
    if not same or result.measured_bytes != result.predicted_bytes:
        wrong.append(f"the cache holds {result.measured_bytes:,} bytes, planned were {result.predicted_bytes:,}")
    if not logits <= result.tolerance:
        wrong.append(f"logits with the cache differ by {logits:.2g} of the largest, allowed is {result.tolerance:g}")
    elif not control > result.tolerance:
        wrong.append("a lost cache would not be seen in the logits")
    return replace(result, status=DIFFERS, reason="; ".join(wrong)) if wrong else result


def open_small(spec: ModelSpec, version: str, **keywords: Any) -> Occupancy:
    """The small config opened with the rules of this version of transformers, or of the newest known one."""
    from hwcalc.planner.context import open_request

    for engine in (f"transformers@{'.'.join(version.split('.')[:2])}", "transformers"):
        try:
            return open_request(spec, engine=engine, **keywords)
        except UsageError as error:
            refusal = error.message
        except KvplanError as error:
            raise NotRun(error.message) from error
    raise NotRun(refusal)
