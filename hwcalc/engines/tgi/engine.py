"""Hugging Face Text Generation Inference: its options, and the command line of ``text-generation-launcher``.

Sources: ``launcher/src/main.rs`` of 3.3.6-dev0 (commit db931fcf42da), read, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import EVERY_TOKEN, Turns
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, number_option
from hwcalc.engines.tgi.deployment import (
    BLOCKS,
    FRACTION,
    KV_NAMES,
    QUANTIZED,
    REQUESTS,
    RULES,
    WIGGLE_ROOM,
    TgiDeployment,
    TgiOccupancy,
    wiggle_room,
)
from hwcalc.errors import UsageError
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.options import CommandInput

_SWITCH: Final = choice_option("true", "false", "1", "0")
_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("attention", "back end, which decides the tokens of a block", "by head width and GPU", choice_option("auto", *BLOCKS)),
    ("cuda_memory_fraction", "share of the GPU", str(FRACTION), number_option(1)),
    ("wiggle_room", "share of that for weights and cache (TGI_WIGGLE_ROOM)", str(WIGGLE_ROOM), wiggle_room),
    ("max_batch_prefill_tokens", "tokens of the warm-up", "by GPU and model, or 4096", integer_option(1, 2**30)),
    ("max_concurrent_requests", "requests at once", str(REQUESTS), integer_option(1, 2**20)),
    ("prefix_caching", "keep blocks of finished requests", "with flashinfer", _SWITCH),
)
_FLAGS: Final = {
    "cuda_memory_fraction": "--cuda-memory-fraction",
    "max_batch_prefill_tokens": "--max-batch-prefill-tokens",
    "max_concurrent_requests": "--max-concurrent-requests",
}
_OTHER_FLAGS: Final = {"seq": "--max-total-tokens", "tp": "--num-shard", "memory_utilization": "--cuda-memory-fraction"}
_VARIABLES: Final = {"attention": "ATTENTION", "prefix_caching": "PREFIX_CACHING", "wiggle_room": "TGI_WIGGLE_ROOM"}
"""Engine option -> the variable of the environment that it is."""
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}


class Tgi(GeneralEngine):
    """Text Generation Inference: a pool of blocks, counted as after its warm-up."""

    deployment: ClassVar[type[Deployment]] = TgiDeployment
    occupancy: ClassVar[type[Occupancy]] = TgiOccupancy
    name: ClassVar[str] = "tgi"
    title: ClassVar[str] = "Text Generation Inference: blocks for every token of every layer"
    label: ClassVar[str] = "TGI"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences"
    pool_is: ClassVar[str] = "KV-cache blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("3.3.6",)
    source: ClassVar[str] = "TGI db931fcf42da (3.3.6-dev0), models/flash_causal_lm.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "bnb4")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """ROCm takes no prompt that is longer than a window, and a prompt has a token less than its sequence."""
        window = model.config.get("sliding_window")
        return super().turns(model, options).also(tokens=(window + 1,) if isinstance(window, int) else ())

    def flag(self, name: str, value: object) -> str:
        """How TGI spells one option of kvplan or one engine option; empty if it has no flag for it."""
        if name in _VARIABLES:
            return f"{_VARIABLES[name]}={value}"
        if name == "dtype":
            return " ".join(_kv_dtype(str(value)))
        if name == "weights":
            return f"--quantize {QUANTIZED[str(value)]}" if str(value) in QUANTIZED else ""
        names = {**_OTHER_FLAGS, **_FLAGS}
        return f"{names[name]} {value}" if name in names else ""

    def command(self, planned: CommandInput) -> list[str]:
        """The words for a plan. Raises :class:`~hwcalc.errors.UsageError` for what the launcher cannot be told."""
        from hwcalc.engines.options import check_one_replica
        from hwcalc.quantization.planned import format_name

        for name in ("draft", "kv_memory"):
            if getattr(planned, name) is not None:
                option = name.replace("_", "-")
                raise UsageError(f"text-generation-launcher has no flag for --{option}.", hint=f"Leave out --{option}.")
        if planned.lora is not None:
            raise UsageError("--lora names no adapter that TGI could load.", hint="Leave out --lora.")
        check_one_replica(planned, "TGI")
        words = ["text-generation-launcher", "--model-id", planned.path or planned.model]
        words += ["--revision", planned.revision] if planned.revision is not None else []
        words += ["--sharded", "true", "--num-shard", str(planned.parallel.tp)] if planned.parallel.tp > 1 else []
        words += ["--max-total-tokens", str(planned.seq), "--max-input-tokens", str(max(1, planned.seq - 1))]
        words += _kv_dtype(planned.kv_dtype) if planned.kv_dtype_named else []
        if planned.weights is not None:
            # The deployment has refused all others.
            name = format_name(planned.weights) or ""
            words += ["--dtype", _DTYPES[name]] if name in _DTYPES else ["--quantize", QUANTIZED[name]]
        if planned.memory_utilization is not None and "cuda_memory_fraction" not in planned.options:
            words += ["--cuda-memory-fraction", str(planned.memory_utilization)]
        for name, value in planned.options.items():
            words += [_FLAGS[name], value] if name in _FLAGS else []
        options = planned.options.items()
        variables = [f"{_VARIABLES[name]}={value}" for name, value in options if name in _VARIABLES and value != "auto"]
        return [*(["env", *variables] if variables else []), *words, *planned.flags]


def _kv_dtype(name: str) -> list[str]:
    return ["--kv-cache-dtype", KV_NAMES[name]] if name in KV_NAMES else ["--dtype", _DTYPES[name]]
