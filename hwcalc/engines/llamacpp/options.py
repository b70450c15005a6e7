"""The options of llama.cpp: of a context, and of where layers and tensors lie and how much memory stays free.

Those of a context have the names of ``llama_context_params`` and ``llama_model_params`` (include/llama.h).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from hwcalc.engines.devices import check_stages
from hwcalc.engines.options import EngineOption, choice_option, integer_option
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief
from hwcalc.units import MIB, parse_bytes

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import Override
    from hwcalc.engines.setup import Setup
    from hwcalc.formulas import DType

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""``kv_cache_types`` (common/arg.cpp)."""

_MOST: Final = 2**31 - 1
_CONTEXTS: Final = ("default", "mtp")
_WORDS: Final = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def is_switched_on(value: str) -> bool:
    """Whether a switch is on, from a value that was checked."""
    return _WORDS[value.lower()]


def switch(name: str, value: str) -> bool:
    """Whether a switch is on, from the text of the option. Raises an error for other words."""
    if value.lower() not in _WORDS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is not known.", hint="Allowed: true, false (or 1, 0, on, off)."
        )
    return is_switched_on(value)


def _auto_switch(name: str, value: str) -> bool | None:
    # LLAMA_FLASH_ATTN_TYPE_AUTO is -1.
    return None if value.lower() in ("auto", "-1") else switch(name, value)


def _context_type(name: str, value: str) -> str:
    """The context type, from its word or its number in ``llama_context_type``."""
    word = _CONTEXTS[int(value)] if value in ("0", "1") else value
    return choice_option(*_CONTEXTS)(name, word)


_NEAREST: Final = (("16", "f16"), ("32", "f32"), ("8", "q8_0"), ("5", "q5_1"), ("4", "q4_0"))
"""The cache that people mean by a number of bits: fp8, q4."""


@cache
def _cache_dtypes() -> frozenset[DType]:
    return frozenset(found for known in CACHE_TYPES if (found := find_dtype(known)) is not None)


@lru_cache(maxsize=64)
def cache_type(name: str, value: str) -> DType:
    """The format of keys or of values. Raises :class:`~hwcalc.errors.UnsupportedError` for one that llama.cpp has no cache in."""
    dtype = find_dtype(value.strip().lower())
    if dtype is None or dtype not in _cache_dtypes():
        near = next((f"Nearest: {name}. " for bits, name in _NEAREST if bits in value), "")
        raise UnsupportedError(
            f"{name} {brief(value, 40)}: llama.cpp has no cache in this format.", hint=f"{near}Allowed: {', '.join(CACHE_TYPES)}."
        )
    return dtype


def _option(name: str, text: str, default: str, check: Callable[[str, str], object]) -> EngineOption:
    return EngineOption(name=name, help=text, default=default, check=check)


_CACHE: Final = f"one of {', '.join(CACHE_TYPES)}"

OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        option.name: option
        for option in (
            _option(
                "n_ctx",
                "tokens of all sequences together; 0 is the model's own context (-c)",
                "seq x batch",
                integer_option(0, _MOST),
            ),
            _option("n_seq_max", "sequences at once, llama-server's slots (-np)", "batch", integer_option(0, _MOST)),
            _option("kv_unified", "one buffer for all sequences in place of one for each (-kvu)", "false", switch),
            _option("n_batch", "most tokens of a batch (-b)", "2048", integer_option(0, _MOST)),
            _option("n_ubatch", "most tokens that are computed at once (-ub)", "512", integer_option(0, _MOST)),
            _option("type_k", f"format of keys: {_CACHE} (-ctk)", "f16", cache_type),
            _option("type_v", f"format of values (-ctv): {_CACHE}", "f16", cache_type),
            _option(
                "swa_full", "whether layers with a window keep all tokens (--swa-full)", "false; true with defaults=api", switch
            ),
            _option("flash_attn", "flash attention: auto, on or off (-fa)", "auto", _auto_switch),
            _option("n_rs_seq", "older recurrent states kept for each sequence, for speculation", "0", integer_option(0, 1024)),
            _option("load_mtp", "load the layers for multi-token prediction (--spec-type draft-mtp)", "false", switch),
            _option(
                "ctx_type",
                "which context: the main one, or that of multi-token prediction",
                "default",
                _context_type,
            ),
            _option(
                "defaults",
                "whose defaults: of llama-server and llama-cli, or of the library",
                "server",
                choice_option("api", "server"),
            ),
            _option("ollama", "start as Ollama does", "false", switch),
        )
    }
)


FIT_TARGET_MIB: Final = 1024
"""common/common.h ``fit_params_target``: what ``--fit`` leaves free on each device."""
FIT_CTX: Final = 4096
"""common/common.h ``fit_params_min_ctx``: ``--fit`` does not shrink a context below it."""
MOST_DEVICES: Final = 16
"""src/llama.cpp ``llama_max_devices``."""
_MOST_GBPS: Final = 20_000
_MOST_LAYERS: Final = 100_000


def _layers(name: str, value: str) -> int | str:
    text = {"-1": "auto", "-2": "all"}.get(value.strip(), value.strip().lower())
    return text if text in ("auto", "all") else integer_option(0, _MOST_LAYERS)(name, text)


def _shares(name: str, value: str) -> tuple[float, ...]:
    parts = re.split(r"[,/]+", value.strip()[:400])
    if not all(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", part, re.ASCII) for part in parts) or len(parts) > MOST_DEVICES:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is no list of shares.",
            hint=f"One number a GPU, {MOST_DEVICES} at most: {name}=3,1",
        )
    return tuple(map(float, parts))


def _overrides(name: str, value: str) -> tuple[Override, ...]:
    from hwcalc.engines.llamacpp.tensors import overrides

    return overrides(value)


def _bytes(name: str, value: str) -> int:
    return parse_bytes(value, f"engine option {name}")


def _gbps(name: str, value: str) -> float:
    text = value.strip()[:40]
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", text, re.ASCII) or not 1 <= float(text) <= _MOST_GBPS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is no bandwidth: from 1 to {_MOST_GBPS:,} GB/s.",
            hint=f"Two channels of DDR5-5600 have 89.6 GB/s, of DDR4-3200 51.2: {name}=51.2",
        )
    return float(text)


def _options(*options: EngineOption) -> Mapping[str, EngineOption]:
    return MappingProxyType({option.name: option for option in options})


PLACE_OPTIONS: Final = _options(
    _option("n_gpu_layers", "layers on the GPU: a number, all, or auto (what fits)", "auto", _layers),
    _option("n_cpu_moe", "layers, from the first, whose experts stay in host memory", "0", integer_option(0, _MOST_LAYERS)),
    _option("cpu_moe", "keep all experts in host memory", "false", switch),
    _option("override_tensor", "tensors on another device: PATTERN=CPU", "", _overrides),
    _option("tensor_split", "share of the layers on each GPU: 3,1", "by free memory", _shares),
    _option("split_mode", "how several GPUs divide the model", "layer", choice_option("none", "layer", "row")),
    _option("main_gpu", "the GPU that is used with split_mode=none", "0", integer_option(0, MOST_DEVICES - 1)),
    _option("no_kv_offload", "keep the cache in host memory", "false", switch),
    _option("fit", "leave layers in host memory where the GPU is too small", "true", switch),
    _option("fit_target", "MiB of each GPU that stay free", str(FIT_TARGET_MIB), integer_option(0, 2**30)),
    _option("fit_ctx", "the shortest context that fitting by itself leads to", str(FIT_CTX), integer_option(1)),
    _option("no_extra_bufts", "keep weights as they are, not repacked for the processor (-nr)", "false", switch),
    _option("host_bandwidth", "GB/s that the memory of the host delivers", "89.6", _gbps),
    _option("host_memory", "memory of the host that llama.cpp may take: 64GiB", "not known", _bytes),
)


class PlaceOptions(Record):
    """The options, parsed. ``n_gpu_layers`` is ``None`` where llama.cpp fits the layers by itself, and -1 for all."""

    n_gpu_layers: int | None
    n_cpu_moe: int
    cpu_moe: bool
    overrides: tuple[Override, ...]
    tensor_split: tuple[float, ...]
    split_mode: Literal["none", "layer", "row"]
    main_gpu: int
    kv_on_host: bool
    target_bytes: int
    shortest: int
    no_repack: bool
    host_bytes: int | None
    host_gbps: float | None


def place_options(options: Mapping[str, str], *, fits_itself: bool = True) -> PlaceOptions:
    """Parse the options of a request. ``fits_itself`` says whether the program fits layers if no option says where they lie.

    As common/fit.cpp, it does not where the user says so.
    """
    return _place_options(tuple(options.items()), fits_itself=fits_itself)


@lru_cache(maxsize=64)
def _place_options(given: tuple[tuple[str, str], ...], *, fits_itself: bool) -> PlaceOptions:
    options = dict(given)

    def value(name: str) -> Any:
        return PLACE_OPTIONS[name].check(name, options[name]) if name in options else None

    def on(name: str) -> bool:
        return switch(name, options.get(name, PLACE_OPTIONS[name].default))

    layers = value("n_gpu_layers")
    said = options.keys() & {"n_cpu_moe", "cpu_moe", "override_tensor", "tensor_split"}
    fixed = bool(said) or options.get("split_mode") == "row" or not on("fit") or not fits_itself
    if layers in (None, "auto"):
        layers = -1 if fixed else None
    target, shortest, host = value("fit_target"), value("fit_ctx"), value("host_memory")
    return PlaceOptions(
        n_gpu_layers=layers if layers is None or isinstance(layers, int) else -1,
        n_cpu_moe=value("n_cpu_moe") or 0,
        cpu_moe=on("cpu_moe"),
        overrides=value("override_tensor") or (),
        tensor_split=value("tensor_split") or (),
        split_mode=value("split_mode") or "layer",
        main_gpu=value("main_gpu") or 0,
        kv_on_host=on("no_kv_offload"),
        target_bytes=(FIT_TARGET_MIB if target is None else target) * MIB,
        shortest=FIT_CTX if shortest is None else shortest,
        no_repack=on("no_extra_bufts"),
        host_bytes=host,
        host_gbps=value("host_bandwidth"),
    )


def checked_options(setup: Setup, label: str, *, fits_itself: bool) -> PlaceOptions:
    """The options on where layers lie, checked against the number of GPUs."""
    from hwcalc.engines.llamacpp.fitting import device_of

    options, gpus, gpu = place_options(setup.options, fits_itself=fits_itself), setup.gpus, setup.hardware.gpu
    check_stages(label, setup.parallel)
    if gpu is not None and gpu.is_host:
        # Numbers of layers have no effect where there is no GPU.
        named = next((one.buffer for one in options.overrides if device_of(one.buffer) >= 0), None)
        if named is not None:
            raise UsageError(
                f"engine option override_tensor names {brief(named, 40)}: {gpu.id} has no GPU.", hint="Leave it out."
            )
        return options
    if gpus > MOST_DEVICES:
        raise UsageError(f"llama.cpp uses at most {MOST_DEVICES} GPUs, not {gpus:,}.", hint=f"Use: --gpus {MOST_DEVICES}")
    if len(options.tensor_split) > gpus:
        count = len(options.tensor_split)
        raise UsageError(f"engine option tensor_split has {count} shares for {gpus} GPUs.", hint=f"Add: --gpus {count}")
    if options.main_gpu >= gpus:
        raise UsageError(f"engine option main_gpu={options.main_gpu}: the GPUs are 0 to {gpus - 1}.", hint="Leave it out.")
    over = next((device for one in options.overrides if (device := device_of(one.buffer)) >= gpus), None)
    if over is not None:
        raise UsageError(f"engine option override_tensor names GPU {over}: the GPUs are 0 to {gpus - 1}.", hint="Add --gpus.")
    return options
