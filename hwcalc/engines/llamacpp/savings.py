"""What llama.cpp can be told so that it takes less memory of a GPU.

Formats of weights are other files, or the one that ``llama-quantize`` makes. Experts in host memory cost least of what lies there: of each
token's work they are the smallest part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import Cost, Saving, host_holds
from hwcalc.engines.options import is_on
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppOccupancy

_FORMATS: Final = (
    (Cost.WEIGHTS, "q8_0"),
    (Cost.WEIGHTS, "q6_k"),
    (Cost.WEIGHTS, "q5_k_m"),
    (Cost.WEIGHTS, "q4_k_m"),
    (Cost.FEW_BITS, "iq4_xs"),
    (Cost.FEWER_BITS, "q3_k_m"),
    (Cost.FEWER_BITS, "iq3_xxs"),
    (Cost.FEWER_BITS, "q2_k"),
)
"""Formats that publishers offer, the larger first. Q4_K_M is what most people run: nobody buys a card to do without it."""
_EIGHT_BITS: Final = "q8_0"
_FOUR_BITS: Final = "q4_0"
_SPARE: Final = (0, GIB // 2, 2 * GIB)
"""Bytes that the card needs besides, where experts are multiplied on it from a copy (:mod:`~hwcalc.engines.llamacpp.buffers`)."""
_BATCH: Final = 512
_SMALL_BATCH: Final = 128


def savings(occupancy: LlamacppOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings for the planned GPU, of which it lacks ``short_bytes``."""
    yield from _free(occupancy)
    yield from _cache(occupancy)
    for cost, name in _FORMATS:
        yield Saving(cost, f"a file in {name.upper()}", {"weights": name})
    settings = occupancy.settings
    if settings.n_ubatch > _SMALL_BATCH:
        size = _BATCH if settings.n_ubatch > _BATCH else _SMALL_BATCH
        yield Saving(Cost.SPEED, f"batches of {size}, which read prompts slower", {"engine_options": {"n_ubatch": str(size)}})
    yield from _on_host(occupancy, short_bytes)


def _free(occupancy: LlamacppOccupancy) -> Iterator[Saving]:
    """The savings that cost nothing, or nearly nothing: settings of the user that are taken back."""
    one, options = occupancy.settings, occupancy.request.options
    if one.swa_full and any(occupancy.hparams.is_swa):
        yield Saving(Cost.NOTHING, "windows keep only their tokens", {"engine_options": {"swa_full": "false"}})
    if one.n_seq_max > occupancy.request.replica_batch:
        count = str(occupancy.request.replica_batch)
        yield Saving(Cost.NOTHING, f"slots for {count} at once", {"engine_options": {"n_seq_max": count}})
    if one.flash_attn_asked is False and "flash_attn" in options:
        yield Saving(Cost.NOTHING, "flash attention", {"engine_options": {"flash_attn": "on"}})


def _cache(occupancy: LlamacppOccupancy) -> Iterator[Saving]:
    """The savings by caches of eight and of four bits, which need flash attention."""
    one, options = occupancy.settings, occupancy.request.options
    flash = {"flash_attn": "on"} if one.flash_attn_asked is False and "flash_attn" in options else {}
    for cost, name in ((Cost.CACHE, _EIGHT_BITS), (Cost.FEW_CACHE_BITS, _FOUR_BITS)):
        separate = {"type_k": name, "type_v": name} if {"type_k", "type_v"} & options.keys() else {}
        settings = ({} if separate else {"dtype": name}) | (
            {"engine_options": {**separate, **flash}} if separate or flash else {}
        )
        yield Saving(cost, f"{name} cache", settings)


def _on_host(occupancy: LlamacppOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings by host memory: experts of as few layers as needed, those of all layers, or all layers that do not fit."""
    gpu, weighed = occupancy.request.hardware.gpu, occupancy.deployment.weighed
    if short_bytes <= 0 or weighed is None or occupancy.request.hardware.kv_memory is not None:
        return
    if not host_holds(gpu, short_bytes) or is_on(occupancy.request.options.get("cpu_moe")):
        return
    experts = [experts for experts, _ in weighed.blocks]
    if any(experts):
        before = int(occupancy.request.options.get("n_cpu_moe", "0"))
        enough = (_layers(experts, before, (short_bytes + spare) * occupancy.request.gpus) for spare in _SPARE)
        for count in dict.fromkeys(filter(None, enough)):
            what = f"experts of the first {count} layers in host memory, slower"
            yield Saving(Cost.PARTLY, what, {"engine_options": {"n_cpu_moe": str(count)}})
        yield Saving(Cost.PARTLY, "all experts in host memory, slower", {"engine_options": {"cpu_moe": "true"}})
    yield Saving(Cost.PARTLY, "layers in host memory as far as needed, much slower", {"engine_options": {"n_gpu_layers": "auto"}})


def _layers(experts: Sequence[int], before: int, wanted: int) -> int | None:
    """The number of first layers whose experts have ``wanted`` bytes more than those of the first ``before`` layers.

    It is ``None`` if all have fewer.
    """
    moved = 0
    for number, size in enumerate(experts):
        moved += size if number >= before else 0
        if moved >= wanted:
            return number + 1
    return None
