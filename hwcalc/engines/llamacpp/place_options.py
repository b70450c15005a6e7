"""The options that say where layers and tensors lie, and how much memory stays free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from hwcalc.engines.options import EngineOption, choice_option, integer_option
from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.text import brief
from hwcalc.units import MIB, parse_bytes

__all__ = ["FIT_CTX", "FIT_TARGET_MIB", "MOST_DEVICES", "PLACE_OPTIONS", "Override", "PlaceOptions", "place_options"]

FIT_TARGET_MIB: Final = 1024
"""common/common.h ``fit_params_target``: what ``--fit`` leaves free on each device."""
FIT_CTX: Final = 4096
"""common/common.h ``fit_params_min_ctx``: ``--fit`` does not shrink a context below it."""
MOST_DEVICES: Final = 16
"""src/llama.cpp ``llama_max_devices``."""
_SWITCH: Final = ("true", "1", "on", "yes", "false", "0", "off", "no")
_LONGEST_PATTERNS: Final = 2000
_MOST_LAYERS: Final = 100_000
_BUFFER: Final = re.compile(r"(?i:cpu)|[A-Za-z]{1,16}([0-9]{1,2})", re.ASCII)
_REPEATED: Final = re.compile(r"\([^)]*[+*][^)]*\)[+*{]")
_MOST_REPEATS: Final = 8


@frozen
class Override:
    """Tensors whose name the pattern finds lie on this device: the number of a GPU, or -1 for the host."""

    pattern: str
    device: int


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
    """``pattern=buffer,pattern=buffer``: a buffer is ``CPU`` or a GPU by its number, such as ``CUDA1``."""
    out = []
    for one in filter(None, value[:_LONGEST_PATTERNS].split(",")):
        pattern, _, buffer = one.rpartition("=")
        found = _BUFFER.fullmatch(buffer.strip())
        slow = _REPEATED.search(pattern) or sum(map(pattern.count, "*+{")) > _MOST_REPEATS
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            found = None
        if not pattern or found is None or slow:
            raise UsageError(
                f"engine option {name}={brief(one, 60)} is not understood.",
                hint=f"A pattern of tensor names and where they go, CPU or a GPU: {name}='\\.ffn_.*_exps\\.=CPU'",
            )
        out.append(Override(pattern=pattern, device=int(found[1]) if found[1] else -1))
    return tuple(out)


def _bytes(name: str, value: str) -> int:
    return parse_bytes(value, f"engine option {name}")


def _options(*options: EngineOption) -> Mapping[str, EngineOption]:
    return MappingProxyType({option.name: option for option in options})


PLACE_OPTIONS: Final = _options(
    EngineOption("n_gpu_layers", "layers on the GPU: a number, all, or auto (what fits)", "auto", _layers),
    EngineOption("n_cpu_moe", "layers, from the first, whose experts stay in host memory", "0", integer_option(0, _MOST_LAYERS)),
    EngineOption("cpu_moe", "keep all experts in host memory", "false", choice_option(*_SWITCH)),
    EngineOption("override_tensor", "tensors on another device: PATTERN=CPU", "", _overrides),
    EngineOption("tensor_split", "share of the layers on each GPU: 3,1", "by free memory", _shares),
    EngineOption("split_mode", "how several GPUs divide the model", "layer", choice_option("none", "layer", "row")),
    EngineOption("main_gpu", "the GPU that is used with split_mode=none", "0", integer_option(0, MOST_DEVICES - 1)),
    EngineOption("no_kv_offload", "keep the cache in host memory", "false", choice_option(*_SWITCH)),
    EngineOption("fit", "leave layers in host memory where the GPU is too small", "on", choice_option("on", "off")),
    EngineOption("fit_target", "MiB of each GPU that stay free", str(FIT_TARGET_MIB), integer_option(0, 2**30)),
    EngineOption("fit_ctx", "the shortest context that fitting by itself leads to", str(FIT_CTX), integer_option(1)),
    EngineOption("host_memory", "memory of the host that llama.cpp may take: 64GiB", "not known", _bytes),
)


@frozen
class PlaceOptions:
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
    host_bytes: int | None


def place_options(options: Mapping[str, str], *, fits_itself: bool = True) -> PlaceOptions:
    """Parse the options of a request. ``fits_itself`` says whether the program fits layers if no option says where they lie.

    As common/fit.cpp, it does not where the user says so.
    """

    def value(name: str) -> object:
        return PLACE_OPTIONS[name].check(name, options[name]) if name in options else None

    def switch(name: str) -> bool:
        return str(value(name) or "no").lower() in _SWITCH[:4]

    layers = value("n_gpu_layers")
    said = options.keys() & {"n_cpu_moe", "cpu_moe", "override_tensor", "tensor_split"}
    fixed = bool(said) or options.get("split_mode") == "row" or options.get("fit") == "off" or not fits_itself
    if layers in (None, "auto"):
        layers = -1 if fixed else None
    target, shortest, host = value("fit_target"), value("fit_ctx"), value("host_memory")
    return PlaceOptions(
        n_gpu_layers=layers if layers is None or isinstance(layers, int) else -1,
        n_cpu_moe=int(str(value("n_cpu_moe") or 0)),
        cpu_moe=switch("cpu_moe"),
        overrides=value("override_tensor") or (),  # type: ignore[arg-type]
        tensor_split=value("tensor_split") or (),  # type: ignore[arg-type]
        split_mode=value("split_mode") or "layer",  # type: ignore[arg-type]
        main_gpu=int(str(value("main_gpu") or 0)),
        kv_on_host=switch("no_kv_offload"),
        target_bytes=(FIT_TARGET_MIB if target is None else int(str(target))) * MIB,
        shortest=FIT_CTX if shortest is None else int(str(shortest)),
        host_bytes=host if isinstance(host, int) else None,
    )
