"""Speeds that aiconfigurator composes from measured kernels, and their mean with the expected speed.

aiconfigurator (NVIDIA, Apache 2.0) is a package of its own with tables of kernels and collectives, measured by release of vLLM, SGLang and
TensorRT-LLM on NVIDIA's servers. It is asked where the user names it, through ``cli_estimate``, its function for one deployment under one
load. Its errors and ours have other causes, and often other signs: the geometric mean of both is off by less than either.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.forecast import forecast
from hwcalc.planner.values import AICONFIGURATOR as NAME
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.step_time import StepTimes

STEP_MODEL: Final = "step model"
"""What an expected speed goes by alone."""
_BACKENDS: Final = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
_SYSTEMS: Final = {
    "a100-pcie-80gb": "a100_pcie", "a100-sxm4-80gb": "a100_sxm", "a30": "a30", "b200-180gb": "b200_sxm", "b300-270gb": "b300_sxm",
    "gb200-186gb": "gb200", "gb300-288gb": "gb300", "h100-pcie-80gb": "h100_pcie", "h100-sxm5-80gb": "h100_sxm",
    "h200-sxm-141gb": "h200_sxm", "l4": "l4", "l40s": "l40s", "rtx-pro-6000-server": "rtx_pro_6000_server",
}  # fmt: skip
"""The accelerators that it has tables of, by their profiles."""
_FORMATS: Final[Mapping[str | None, str | None]] = {
    None: None, **dict.fromkeys(("bf16", "fp16"), "bfloat16"), **dict.fromkeys(("fp8", "fp8_channel"), "fp8"), "fp8_block": "fp8_block",
    "nvfp4": "nvfp4", "int8": "int8_wo", **dict.fromkeys(("int4", "gptq", "awq"), "int4_wo"),
}  # fmt: skip
"""Formats of weights as it names them. As published they are those of the model's config, which it reads."""
_CACHES: Final = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8_e4m3": "fp8"}
_MOST: Final = 4.0
"""How many times as long a term may become, or as short: an answer beyond the square of that is of something else."""


class Composed(Record):
    """What aiconfigurator says of one load. ``source`` names its release, and that of the engine whose kernels were measured."""

    prompt_s: float
    """Of one prompt that is computed alone."""
    itl_s: float
    """Between two tokens of a request, with the prompts of others."""
    output_tokens_per_s: float
    source: str


class NoAnswerError(Exception):
    """The reason why aiconfigurator says nothing of a deployment."""


@lru_cache(maxsize=64)
def _version(system: str, backend: str) -> str:
    """The newest release of the engine that was measured. Kept, as hundreds of files are read for it."""
    from aiconfigurator.sdk.perf_database import get_latest_database_version

    version: str | None = get_latest_database_version(system=system, backend=backend)
    if version is None:
        raise NoAnswerError(f"it has no tables of {backend} on {system}")
    return version


def composed(opened: Occupancy, times: StepTimes, prompt: int, output: int, concurrency: int, cached_prefix: int) -> Composed:
    """What it says of ``concurrency`` requests at once on all replicas. Raises :class:`NoAnswerError`.

    A missing package is a :class:`~hwcalc.errors.UsageError`.
    """
    try:
        from importlib.metadata import version

        from aiconfigurator.cli.api import cli_estimate
    except ImportError as error:
        message = f"measured={NAME!r} needs the package {NAME}, which is not installed here."
        raise UsageError(message, hint=f"Install it: pip install 'hwcalc[{NAME}]'") from error
    backend, system = _BACKENDS.get(opened.engine.name), _SYSTEMS.get(times.gpu.id)
    weights = format_name(opened.setup.weights)
    if backend is None or system is None or weights not in _FORMATS:
        unknown = opened.engine.name if backend is None else times.gpu.id if system is None else f"weights {weights}"
        raise NoAnswerError(f"it has no tables of {unknown}")
    ranks = times.tp * times.replicas
    whole = min(times.whole_experts, ranks)
    form = _FORMATS[weights]
    try:
        measured = _version(system, backend)
        with _silent(), TemporaryDirectory(prefix="kvplan-") as folder:
            Path(folder, "config.json").write_text(json.dumps(opened.model.config, default=_plain), encoding="utf-8")
            load: dict[str, Any] = {
                "model_path": folder, "system_name": system, "backend_name": backend, "backend_version": measured, "isl": prompt,
                "osl": output, "prefix": cached_prefix, "tp_size": times.tp, "pp_size": times.pp, "attention_dp_size": times.replicas,
                "moe_tp_size": ranks // whole, "moe_ep_size": whole, "gemm_quant_mode": form, "moe_quant_mode": form,
                "kvcache_quant_mode": _CACHES.get(opened.dtypes.kv), "nextn": times.verified_tokens - 1,
                "nextn_accepted": times.accepted_tokens - 1 if times.verified_tokens > 1 else None,
            }  # fmt: skip
            batch = max(1, round(concurrency / times.servers))
            loaded = cli_estimate(**load, batch_size=batch, ctx_tokens=times.chunk)
            alone = cli_estimate(**load, batch_size=1, mode="static_ctx")
    except NoAnswerError:
        raise
    except Exception as error:
        # Whatever another program cannot do is no error of this one.
        raise NoAnswerError(brief(str(error) or type(error).__name__, 200)) from error
    servers = times.servers // times.replicas
    return Composed(
        prompt_s=float(alone.ttft) / 1e3,
        itl_s=float(loaded.tpot) / 1e3,
        output_tokens_per_s=float(loaded.raw["tokens/s"]) * servers,
        source=f"{NAME} {version(NAME)}, kernels of {opened.engine.label} {measured}",
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Keep it from telling of each table that it takes from another release."""
    loggers = [logging.getLogger(name) for name in (NAME, f"{NAME}_core")]
    levels = [logger.level for logger in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def _plain(value: Any) -> Any:
    """A value of a config for JSON: its mappings and sequences cannot be changed, which JSON does not know."""
    return dict(value) if isinstance(value, Mapping) else list(value)


def averaged(opened: Occupancy, times: StepTimes, **load: int) -> tuple[StepTimes, str]:
    """The steps with the mean, and what they go by, as the source of a speed begins; where it has no answer the steps as they are.

    The occupancy is told a note then.
    """
    if times.speed_class is None:
        return times, STEP_MODEL
    try:
        theirs = composed(opened, times, **load)
    except NoAnswerError as error:
        message = f"{NAME} says nothing of this: {str(error).rstrip('.')}. The expected speed is without it."
        opened.tell(Note(code="not-composed", message=message))
        return times, STEP_MODEL
    return with_mean(times, theirs, **load), f"mean of {STEP_MODEL} and {theirs.source}"


def with_mean(times: StepTimes, theirs: Composed, prompt: int, output: int, concurrency: int, cached_prefix: int) -> StepTimes:
    """The steps with the terms of prompts and of decoding so much longer or shorter that the time between tokens is the mean with what it says.

    That of a prompt is nearly so: it has a few terms of decoding.
    """
    chosen, load = times.speed_class, (prompt, output, concurrency, cached_prefix)
    assert chosen is not None

    def changed(decode_times: float, prompt_times: float) -> StepTimes:
        return replace(times, speed_class=replace(chosen, parameters=chosen.parameters.slower(decode_times, prompt_times)))

    ours = forecast(times, *load)
    # No term becomes so short that a step or a prompt is faster than the fast end of its range, which keeps to the bound.
    least = max(1 / _MOST, *(one.low / one.expected for one in (ours.prefill_s, ours.step_s)))
    prompts = min(max((theirs.prompt_s / ours.prefill_s.expected) ** 0.5, least), _MOST)
    if output == 1:
        return changed(prompts, prompts)
    # The time between tokens grows evenly with the terms of decoding.
    once, twice = (forecast(changed(number, prompts), *load).itl_s.expected for number in (1.0, 2.0))
    decoding = 1 + ((theirs.itl_s * ours.itl_s.expected) ** 0.5 - once) / (twice - once)
    return changed(min(max(decoding, least), _MOST), prompts)
