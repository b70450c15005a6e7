"""Measure how fast the cache is read: once as a whole, which bounds a decode step, and in one step of attention.

The probe fills and sums as many bytes as the engine's tensors take, or as many as it may take. The pieces are so large that reading one
takes longer than starting its kernel. For comparison, a plain copy is timed, and the peak bandwidth of the accelerator's profile is
reported. Each time is the best of several passes after a warm-up pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import ITEM_BYTES
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import LatentAttention, Role
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.probe.devices import Device, default_reserve, holding, is_out_of_memory
from hwcalc.probe.result import Environment  # the JSON Schema needs the class at run time
from hwcalc.text import brief
from hwcalc.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from hwcalc.profiles.hardware_file import Gpu

_DEFAULT_BYTES: Final = {"cuda": 8 * GIB, "mps": GIB}
"""So much that no on-chip cache holds it, and that starting kernels is a small part of the time."""
_CPU_BYTES: Final = 256 * MIB
_COPY_BYTES: Final = 512 * MIB
_PIECE_BYTES: Final = 256 * MIB
"""Reading a piece takes 56 microseconds at 4.8 TB/s, several times longer than starting a kernel."""
LEAST_KEPT_BYTES: Final = 512 * MIB
"""A smaller reading is not saved: an on-chip cache may hold much of it (256 MiB on an MI300X), so it does not measure the memory."""
_PATTERN: Final = 0x3F
"""A byte that makes an ordinary number near one in every floating-point format."""
_SECONDS: Final = 5.0
_FIRST_PART: Final = 64
_FLOATS: Final = frozenset({"fp32", "fp16", "bf16"})
_FUSED: Final = frozenset({"fp16", "bf16"})
_FUSED_WIDTH: Final = 256
"""The widest head, in the formats of ``_FUSED``, for which torch's fused attention supports fewer key heads than query heads."""


class Timing(Record):
    """Bytes moved in the best time; ``bytes`` of a copy are those read and those written."""

    bytes: int
    seconds: float
    passes: int

    @property
    def gbps(self) -> float:
        """10^9 bytes a second."""
        return self.bytes / self.seconds / 1e9


class BandwidthResult(Record):
    """What was measured on one device. ``planned_bytes`` is what the rank's cache takes, of which ``read.bytes`` were read.

    ``attention`` is ``None`` where torch's attention cannot run over this cache, and ``attention_message`` says why.
    """

    environment: Environment
    model: str
    engine: str
    kv_dtype: str
    gpu: str | None
    peak_gbps: float | None
    planned_bytes: int
    read: Timing
    copy: Timing
    attention: Timing | None
    attention_message: str

    @property
    def step_seconds(self) -> float:
        """Seconds to read the planned cache at the measured rate, a lower bound of a decode step."""
        return self.planned_bytes / 1e9 / self.read.gbps

    def share(self, timing: Timing) -> float | None:
        """The rate of a timing as a share of the profile's peak."""
        return None if self.peak_gbps is None else timing.gbps / self.peak_gbps

    def rows(self) -> tuple[tuple[str, int, float, float, float | None], ...]:
        """Name, bytes, seconds, 10^9 bytes a second, and share of the peak of each timing."""
        named = {"read of the cache": self.read, "attention step": self.attention, "plain copy": self.copy}
        return tuple((name, one.bytes, one.seconds, one.gbps, self.share(one)) for name, one in named.items() if one is not None)


def measure_bandwidth(
    opened: Occupancy,
    device: Device,
    *,
    gpu: Gpu | None = None,
    most_bytes: int | None = None,
    reserve_bytes: int | None = None,
    repeats: int = 7,
) -> BandwidthResult:
    """Measure on ``device`` with at most ``most_bytes`` of cache, and leave at least the reserve free.

    ``gpu`` is the profile to compare with, by default that of the plan. Everything on the device is freed in the end, also after an
    error. Raises :class:`~hwcalc.errors.UsageError` if memory runs out, with a smaller ``most_bytes`` as hint, and
    :class:`~hwcalc.errors.UnsupportedError` if the model keeps no cache.
    """
    if most_bytes is not None and most_bytes < MIB:
        raise UsageError(
            f"max-bytes is {most_bytes:,}.", hint=f"Allowed: {MIB:,} or more; less is not memory but a chip's cache."
        )
    if not 1 <= repeats <= 1000:
        raise UsageError(f"repeats is {repeats:,}.", hint="Allowed: 1 to 1,000.")
    device.warm_up()
    reserve = default_reserve(device) if reserve_bytes is None else reserve_bytes
    free = device.free_bytes()
    most = _DEFAULT_BYTES.get(device.kind, _CPU_BYTES) if most_bytes is None else most_bytes
    copied = min(_COPY_BYTES, most)
    if free is not None:
        most = min(most, free - reserve)
        copied = min(copied, (free - reserve) // 2)
    if most < MIB or copied < MIB:
        raise UsageError(
            f"{free or 0:,} bytes are free on {device.label}, less a reserve of {reserve:,} too few to measure with.",
            hint="Free some, or leave less alone: --reserve 0",
        )
    allocations = opened.allocation(fullest_stage(opened))
    if not allocations:
        raise UnsupportedError("there is nothing to read: no layer of this model keeps anything.")
    gpu = opened.setup.hardware.gpu if gpu is None else gpu
    try:
        read = read_time(min(most, sum(allocation.bytes for allocation in allocations)), device, repeats)
        with holding(device) as held:
            held += [device.empty((copied // 4,), "fp32").fill_(1.0) for _ in range(2)]
            copy = best_time(lambda: held[1].copy_(held[0]), 2 * (copied // 4 * 4), device, repeats)
        attention, message = _attention(opened, device, most, None if free is None else free - reserve, repeats)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error, device.torch):
            raise
        raise UsageError(
            f"out of memory on {device.label} while {most:,} bytes were measured.", hint=f"Take less: --max-bytes {most // 2}"
        ) from error
    return BandwidthResult(
        environment=device.environment(),
        model=opened.model.id,
        engine=opened.engine.name,
        kv_dtype=opened.dtypes.kv,
        gpu=None if gpu is None else gpu.id,
        peak_gbps=None if gpu is None or gpu.memory_bandwidth_gbps is None else float(gpu.memory_bandwidth_gbps),
        planned_bytes=sum(allocation.bytes for allocation in allocations),
        read=read,
        copy=copy,
        attention=attention,
        attention_message=message,
    )


def save_bandwidth(result: BandwidthResult) -> Path:
    """Save the result in the user's calibration of this accelerator, which plans then use. Returns the path of the file.

    Raises :class:`~hwcalc.errors.UsageError` if the accelerator has no profile.
    """
    from hwcalc.hardware.profiles import keeping
    from hwcalc.profiles.calibration import BANDWIDTH, Measured, Measurement, save_reading

    if result.gpu is None:
        raise UsageError("a calibration belongs to an accelerator's profile.", hint="Name it: --gpu; see: kvplan gpus")
    values = {"read_gbps": result.read.gbps, "copy_gbps": result.copy.gbps}
    if result.attention is not None:
        values["attention_gbps"] = result.attention.gbps
    environment = result.environment
    measured = Measured(
        device=environment.device_name or environment.device,
        date=environment.date[:10],
        source="kvplan probe --bandwidth",
        driver=environment.driver,
        torch=environment.torch,
    )
    conditions: dict[str, int | str] = {"model": result.model, "dtype": result.kv_dtype, "bytes": result.read.bytes}
    with keeping(UsageError):
        return save_reading(result.gpu, BANDWIDTH, Measurement(values=values, conditions=conditions, measured=measured))


def read_time(size: int, device: Device, repeats: int) -> Timing:
    """Time the sum of so many bytes. It does not matter to which tensors they belong."""
    with holding(device) as words:
        for start in range(0, size, _PIECE_BYTES):
            words.append(_filled(min(_PIECE_BYTES, size - start), device))
        read = sum(4 * word.numel() for word in words)
        return best_time(lambda: [word.sum() for word in words], read, device, repeats)


def _filled(size: int, device: Device) -> Any:
    """A filled buffer as four-byte words, without up to three bytes at its end. Writing makes sure that its pages exist."""
    flat = device.empty((size,), "uint8")
    return flat.fill_(_PATTERN)[: size // 4 * 4].view(device.torch.float32)


class _AttentionLayer(Record):
    """One attention layer on one rank. The values of a latent layer are the first part of its keys."""

    heads: int
    kv_heads: int
    tokens: int
    key_width: int
    value_width: int
    latent: bool

    @property
    def row(self) -> int:
        """The elements of one position of one sequence."""
        return self.kv_heads * (self.key_width + (0 if self.latent else self.value_width))

    def copied(self, dtype: str) -> int:
        """The number of times that torch copies the cache, rounded up: without a fused kernel it repeats keys and values for every head
        that shares them, scales the repeated keys into another copy, and does so in four bytes.

        Source: pytorch, aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
        """
        if dtype in _FUSED and self.key_width == self.value_width <= _FUSED_WIDTH:
            return 0
        repeats, both = -(-self.heads // self.kv_heads), self.key_width + self.value_width
        elements = repeats * (self.key_width + both) if repeats > 1 else self.key_width
        # Formats of two bytes are first converted as they are, then repeated.
        times = 1 if dtype == "fp32" else 2
        return -(-times * (elements + (both if times == 2 else 0)) * self.kv_heads // self.row)


def _attention(opened: Occupancy, device: Device, most: int, room: int | None, repeats: int) -> tuple[Timing | None, str]:
    """Time one query token of each sequence over as many attention layers as fit into ``most`` bytes; or say why that is impossible.

    torch's own copies must fit into ``room`` bytes as well.
    """
    names = {opened.dtypes.roles[role].name for role in (Role.KEY, Role.VALUE, Role.LATENT)}
    if len(names) > 1 or not names <= _FLOATS:
        return None, f"torch's attention does not read {opened.dtypes.kv}"
    dtype = names.pop()
    layers = _attention_layers(opened)
    if not layers:
        return None, "no layer has attention over a cache"
    if room is not None:
        most = min(most, room // (1 + max(layer.copied(dtype) for layer in layers)))
    try:
        # A step may take minutes on a CPU: timing a small part first shows how much can be timed.
        small = max(MIB, most // _FIRST_PART)
        first = _steps(layers, opened, dtype, device, small, 1)
        affordable = int(first.bytes * _SECONDS / 4 / first.seconds)
        return (first if affordable < small else _steps(layers, opened, dtype, device, min(most, affordable), repeats)), ""
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error, device.torch):
            return None, "torch's attention takes more memory than there is: take less with --max-bytes"
        words = str(error).splitlines() or [type(error).__name__]
        return None, f"torch's attention does not run: {brief(words[0], 120)}"


def _steps(layers: Iterable[_AttentionLayer], opened: Occupancy, dtype: str, device: Device, most: int, repeats: int) -> Timing:
    """Time attention over as many layers as fit into ``most`` bytes; at least over a part of the sequences or positions of the first."""
    size = 0
    with holding(device) as calls, device.torch.no_grad():
        for layer in layers:
            row = layer.row * ITEM_BYTES[dtype]
            fit = max(0 if calls else 1, (most - size) // row)
            batch = min(opened.request.replica_batch, fit // layer.tokens)
            if calls and not batch:
                break
            tokens = layer.tokens if batch else fit
            calls.append(_call(layer, max(1, batch), tokens, dtype, device))
            size += max(1, batch) * tokens * row
        return best_time(lambda: _attend(calls, device), size, device, repeats)


def _call(layer: _AttentionLayer, batch: int, tokens: int, dtype: str, device: Device) -> tuple[Any, Any, Any]:
    """Query, keys and values of one call of attention, filled or at least taken. The values of a latent are a part of its keys."""
    query = device.empty((batch, layer.heads, 1, layer.key_width), dtype).fill_(1.0)
    keys = device.empty((batch, layer.kv_heads, tokens, layer.key_width), dtype).fill_(1.0)
    if layer.latent:
        return query, keys, keys[..., : layer.value_width]
    return query, keys, device.empty((batch, layer.kv_heads, tokens, layer.value_width), dtype).fill_(1.0)


def _attend(calls: Iterable[tuple[Any, Any, Any]], device: Device) -> None:
    attend = device.torch.nn.functional.scaled_dot_product_attention
    for query, keys, values in calls:
        attend(query, keys, values, enable_gqa=query.shape[1] != keys.shape[1])


def _attention_layers(opened: Occupancy) -> list[_AttentionLayer]:
    """The attention layers of the fullest stage, as sharded for one tensor-parallel rank."""
    request, layers = opened.request, opened.model.stack_for(opened.engine.name).layers
    rules = opened.deployment.weight_rules()
    stage = rules.spans(len(layers), request.setup.parallel.pp)[fullest_stage(opened)]
    out = []
    for kind in (rules.shard(opened.model, kind, request.setup.parallel.tp) for number in stage for kind in layers[number]):
        if isinstance(kind, LatentAttention):
            tokens, width = kind.span.positions(opened.tokens), kind.kv_lora_rank + kind.qk_rope_head_dim
            kv_heads, value_width = 1, kind.kv_lora_rank
        elif isinstance(kind, AttentionKind):
            tokens, width = kind.span.positions(opened.tokens, opened.encoder_tokens), kind.head_dim
            kv_heads, value_width = kind.num_key_value_heads, kind.v_head_dim
        else:
            continue
        layer = _AttentionLayer(
            heads=kind.num_attention_heads,
            kv_heads=kv_heads,
            tokens=tokens,
            key_width=width,
            value_width=value_width,
            latent=isinstance(kind, LatentAttention),
        )
        out += [layer] if tokens else []
    return out


def best_time(work: Callable[[], object], size: int, device: Device, repeats: int) -> Timing:
    """The shortest of several passes after a warm-up pass. It waits for the device before it reads the clock, and ends after seconds."""

    def finished() -> float:
        work()
        if device.kind == "cuda":
            device.torch.cuda.synchronize(device.label)
        elif device.kind == "mps":
            device.torch.mps.synchronize()
        return perf_counter()

    began = finished()
    best, passes = float("inf"), 0
    while passes < repeats and (not passes or perf_counter() - began < _SECONDS):
        start = perf_counter()
        best = min(best, finished() - start)
        passes += 1
    return Timing(bytes=size, seconds=max(best, 1e-9), passes=passes)
