"""Run a small real model, and compare its cache with the plan and its decoding with a run without a cache.

The model has the planned type, at least one layer of each kind, the planned widths if they are affordable, random weights from a fixed
seed, and windows so short that the sequence exceeds them. Two things are compared: the bytes of the cache object with the plan of the
small config, and the logits of the decoded tokens with those of the whole sequence, computed without a cache.
"""

from __future__ import annotations

from typing import Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.probe.live_model import WINDOW, Change, Small, smaller
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

    @property
    def difference_bytes(self) -> int:
        """Measured minus predicted."""
        return self.measured_bytes - self.predicted_bytes

    @property
    def cache_agrees(self) -> bool:
        """Whether the cache and each of its layers have the planned bytes."""
        same = all(layer.predicted_bytes == layer.measured_bytes for layer in self.layers)
        return self.status != NOT_RUN and self.difference_bytes == 0 and same

    @property
    def logits_agree(self) -> bool:
        """Whether decoding with the cache gives the same logits as without, and a lost cache would have been noticed."""
        return self.status != NOT_RUN and self.logits_difference <= self.tolerance < self.control_difference

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
    _check(dtype, attention, cache, batch, prompt, decode, encoder, most_weight_bytes)
    from hwcalc.probe.live_model import NotRun, library

    common: dict[str, Any] = {
        "model_type": model.model_type,
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "cache": cache,
        "seed": seed,
    }
    try:
        common["torch_version"], common["transformers_version"] = library()
        return _run(model, common, batch, prompt, decode, encoder, most_weight_bytes)
    except NotRun as reason:
        return LiveResult(status=NOT_RUN, reason=str(reason), **common)


def _check(
    dtype: str, attention: str, cache: str, batch: int, prompt: int | None, decode: int, encoder: int, most_weight_bytes: int
) -> None:
    for name, given, known in (
        ("dtype", dtype, tuple(_TOLERANCE)),
        ("attention", attention, ("eager", "sdpa")),
        ("cache", cache, ("dynamic", "static")),
    ):
        if given not in known:
            raise UsageError(f"{name} is {quoted(given, 40)}.", hint=f"Allowed: {', '.join(known)}.")
    numbers = {
        "batch": (batch, 64),
        "prompt": (prompt, _MOST_TOKENS),
        "decode": (decode, 256),
        "encoder": (encoder, _MOST_TOKENS),
    }
    for name, (number, most) in numbers.items():
        if number is not None and not 1 <= number <= most:
            raise UsageError(f"{name} is {number:,}.", hint=f"Allowed: 1 to {most:,}.")
    if most_weight_bytes < 1:
        raise UsageError(f"most_weight_bytes is {most_weight_bytes:,}.", hint="Allowed: 1 or more.")


def _run(
    model: ModelSpec, common: dict[str, Any], batch: int, prompt: int | None, decode: int, encoder: int, most: int
) -> LiveResult:
    import torch

    from hwcalc.probe.live_model import NotRun, feed, full_config, make

    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[common["dtype"]]
    full = full_config(model)

    def build(config: Any, where: str) -> Any:
        return make(config, dtype=torch_dtype, device=where, attention=common["attention"], seed=common["seed"])

    small, factor, spec, weight_bytes = smaller(full, model, build, most)
    windows = [tensor.span.positions(2**40) for layer in spec.stack for kind in layer for tensor in kind.tensors()]
    closed = max((size for size in windows if 1 < size <= _MOST_TOKENS), default=0)
    prompt = max(closed, WINDOW) + 7 if prompt is None else prompt
    static = common["cache"] == "static"
    opened = _open(spec, common, seq=prompt + decode, batch=batch, encoder=encoder)
    layers = _layers(opened, small)
    predicted = _predicted(opened)
    built = fed = None
    try:
        try:
            built = build(small.config, common["device"])
            fed = feed(
                built,
                batch=batch,
                prompt=prompt,
                decode=decode,
                encoder=opened.encoder_tokens or encoder,
                seed=common["seed"],
                static=static,
            )
        except NotRun:
            raise
        except Exception as error:
            raise NotRun(f"it does not run on {common['device']}: {type(error).__name__}: {brief(str(error), 160)}") from error
        result = LiveResult(
            status=AGREES,
            reason="",
            **common,
            engine_version=opened.version,
            batch=batch,
            prompt_tokens=prompt,
            decode_tokens=decode,
            encoder_tokens=opened.encoder_tokens,
            weight_bytes=weight_bytes,
            factor=factor,
            changes=small.changes,
            predicted_bytes=predicted,
            tolerance=_TOLERANCE[common["dtype"]],
            **_measured(fed, layers),
        )
    finally:
        # Free everything on the device, also after an error.
        built = fed = None
        _empty(common["device"])
    return _judged(result)


def _measured(fed: Any, layers: list[LiveLayer]) -> dict[str, Any]:
    """The measured fields of the result: bytes of each layer and of the whole cache, and differences of logits."""
    from hwcalc.probe.live_model import cache_layers, tensor_bytes

    held = [size for size in cache_layers(fed.cache) or () if size]
    counted = [layer for layer in layers if layer.predicted_bytes]
    paired = len(held) == len(counted)
    scale = float(fed.anew.abs().max())
    return {
        "layers": tuple(_with(layer, size) for layer, size in zip(counted, held, strict=True)) if paired else (),
        "measured_bytes": tensor_bytes(fed.cache, set()),
        "storage_bytes": tensor_bytes(fed.cache, set(), storage=True),
        "logits_difference": _share(fed.cached - fed.anew, scale),
        "control_difference": _share(fed.alone - fed.anew[:, -1:], scale),
    }


def _open(spec: ModelSpec, common: dict[str, Any], *, seq: int, batch: int, encoder: int) -> Occupancy:
    """The small config opened with the rules of the installed transformers, or of the newest known version."""
    from hwcalc.planner.context import open_request
    from hwcalc.probe.live_model import NotRun

    keywords: dict[str, Any] = {"seq": seq, "batch": batch, "dtype": common["dtype"], "encoder_seq": encoder}
    keywords["engine_options"] = {"cache": common["cache"]}
    version = ".".join(common["transformers_version"].split(".")[:2])
    for engine in (f"transformers@{version}", "transformers"):
        try:
            return open_request(spec, engine=engine, **keywords)
        except UsageError as error:
            refusal = error.message
        except KvplanError as error:
            raise NotRun(error.message) from error
    raise NotRun(refusal)


def _layers(opened: Occupancy, small: Small) -> list[LiveLayer]:
    stack = opened.stack.layers
    numbers = small.layers if len(small.layers) == len(stack) else range(len(stack))
    return [
        LiveLayer(
            layer=number,
            kinds=tuple(kind.name for kind in layer),
            predicted_bytes=sum(tensor.bytes for kind in layer for tensor in opened.kind_tensors[kind]),
            measured_bytes=0,
        )
        for number, layer in zip(numbers, stack, strict=True)
    ]


def _predicted(opened: Occupancy) -> int:
    return opened.stored_bytes


def _with(layer: LiveLayer, size: int) -> LiveLayer:
    return LiveLayer(layer=layer.layer, kinds=layer.kinds, predicted_bytes=layer.predicted_bytes, measured_bytes=size)


def _share(difference: Any, scale: float) -> float:
    return float(difference.abs().max()) / scale if scale else 0.0


def _judged(result: LiveResult) -> LiveResult:
    """The result with its status, and a reason that lists everything that does not agree."""
    wrong = []
    if not result.cache_agrees:
        wrong.append(f"the cache holds {result.measured_bytes:,} bytes, planned were {result.predicted_bytes:,}")
    if not result.logits_difference <= result.tolerance:
        wrong.append(
            f"logits with the cache differ by {result.logits_difference:.2g} of the largest, allowed is {result.tolerance:g}"
        )
    elif not result.control_difference > result.tolerance:
        wrong.append("a lost cache would not be seen in the logits")
    from msgspec.structs import replace

    return replace(result, status=DIFFERS, reason="; ".join(wrong)) if wrong else result


def _empty(device: str) -> None:
    """Return the memory that the allocator keeps to the driver."""
    import gc

    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device.startswith("mps"):
        torch.mps.empty_cache()
