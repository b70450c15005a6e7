"""The requests that llama.cpp refuses: ``llama_init_from_model`` and the constructors of its contexts and caches (src/*.cpp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.errors import ConfigError, UnsupportedError, UsageError
from hwcalc.formulas.formats import FLOATS
from hwcalc.quantization.ggml import MIXES
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppOccupancy
    from hwcalc.formulas import DType
    from hwcalc.parsers.gguf.hparams import Hparams


def check_context(occupancy: LlamacppOccupancy) -> None:
    """Raise an error if llama.cpp refuses the model or the request."""
    _check_model(occupancy)
    _check_sizes(occupancy)
    _check_cache_types(occupancy)


def _check_model(occupancy: LlamacppOccupancy) -> None:
    read = occupancy.hparams
    row = read.architecture
    if not row.runs:
        raise UnsupportedError(f"llama.cpp knows the name {read.arch}, but has no code for it.", hint="Use: --engine reference")
    if row.rotates_whole_heads and read.n_head[0] and read.n_rot != read.head_k:
        raise ConfigError(
            f"llama.cpp refuses this {read.arch} file: rope.dimension_count is {read.n_rot}, but a key has {read.head_k}."
        )
    window = row.window
    empty = window is not None and window.pattern != "attention" and not any(read.is_swa)
    if empty and read.swa_type != "none" and row.memory in ("attention", "shared"):
        raise ConfigError(f"llama.cpp refuses this {read.arch} file: it names a window, but no layer has it.")
    if wrong := _shared_with_nobody(read):
        raise ConfigError(f"llama.cpp refuses this {read.arch} file: layer {wrong} shares the cache of a layer of another kind.")
    if occupancy.settings.drafts and not (read.n_layer_nextn and row.drafts):
        what = f"llama.cpp does not run the layers for multi-token prediction of {read.arch}."
        if not read.n_layer_nextn:
            what = "this model has no layers for multi-token prediction."
        raise UnsupportedError(f"ctx_type=mtp: {what}", hint="Leave out --engine-option ctx_type=mtp")


def _shared_with_nobody(read: Hparams) -> int | None:
    """The number of a layer that reuses a cache with another reach, full or with a window, than its own.

    It is ``None`` if there is none.
    """
    first = read.kv_from_start
    if first is None:
        return None
    for layer in range(first, read.n_layer):
        source = first - (2 if read.is_swa[layer] else 1)
        if source < 0 or read.is_swa[source] != read.is_swa[layer]:
            return layer
    return None


def _check_sizes(occupancy: LlamacppOccupancy) -> None:
    one = occupancy.settings
    if not one.n_ctx_asked:
        raise UsageError("n_ctx is 0, and the file names no context length.", hint="Use: --engine-option n_ctx=4096")
    if occupancy.request.replica_batch > one.n_seq_max:
        raise UsageError(
            f"n_seq_max {one.n_seq_max:,} is fewer than the {occupancy.request.replica_batch:,} sequences that are planned.",
            hint=f"Use: --engine-option n_seq_max={occupancy.request.replica_batch}, or a smaller --batch",
        )
    if not one.n_batch and not one.n_ubatch:
        raise UsageError("n_batch and n_ubatch cannot both be 0.", hint="Use: --engine-option n_batch=2048")
    if one.n_outputs < one.n_seq_max:
        # GGML_ASSERT of llama_context::output_reserve: one output for each sequence.
        raise UsageError(
            f"llama.cpp stops if a batch ({one.n_outputs:,} tokens) is smaller than n_seq_max ({one.n_seq_max:,}).",
            hint=f"Use: --engine-option n_ctx={256 * one.n_seq_max}",
        )


def _check_cache_types(occupancy: LlamacppOccupancy) -> None:
    one, read = occupancy.settings, occupancy.hparams
    key, value = one.type_k, one.type_v
    if (read.is_mla or read.architecture.memory == "compressed") and key != value:
        raise UnsupportedError(
            f"llama.cpp keeps one latent for keys and values of this model: type_k {key.name} and type_v {value.name} must be the same.",
            hint=f"Use: --dtype {key.name}",
        )
    if value.block_elements > 1 and not one.flash_attn:
        raise UnsupportedError(
            f"quantized V cache ({value.name}) requires flash attention, which is off.",
            hint="Use: --engine-option flash_attn=auto, or --engine-option type_v=f16",
        )
    if not one.flash_attn:
        return
    for name, dtype, width in (("K", key, read.head_width_k), ("V", value, read.head_width_v)):
        if dtype.block_elements > 1:
            _check_blocks(name, dtype, [width(layer) for layer in range(read.n_layer)])


def _check_blocks(name: str, dtype: DType, widths: list[int]) -> None:
    block = dtype.block_elements
    wrong = next((width for width in widths if width % block), None)
    if wrong is not None:
        raise UnsupportedError(
            f"{name} cache type {dtype.name} with blocks of {block} does not divide heads of {wrong}.",
            hint="Use: --dtype f16, or a model with wider heads",
        )


def check_weights(weights: str | None) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` for a format of ``--weights`` that no GGUF file has."""
    name = format_name(weights)
    if name is None or name in FLOATS or name in MIXES:
        return
    nearest = {"mxfp4": "mxfp4_moe", "int8": "q8_0", "fp8": "q8_0"}.get(name, "q4_k_m")
    raise UnsupportedError(
        f"llama.cpp runs GGUF files, and llama-quantize makes none in {name}.",
        hint=f"Use: --weights {nearest}, or another mix that llama-quantize makes (kvplan dtypes lists them).",
    )
