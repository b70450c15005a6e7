"""mistral.rs: PagedAttention on CUDA, and caches that grow by 512 positions where it is off; and ``mistralrs serve`` for a plan.

Source of the command line: mistralrs-cli/src/args of 0.9.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import EVERY_TOKEN
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mistral_rs.deployment import FRACTION, ISQ, MOST_SEQUENCES, MistralDeployment, MistralOccupancy
from hwcalc.engines.mistral_rs.layers import RULES
from hwcalc.engines.mistral_rs.pool import SPARE_TOKENS
from hwcalc.engines.options import (
    Choices,
    CommandInput,
    EngineOption,
    check_one_replica,
    choice_option,
    integer_option,
    number_option,
)
from hwcalc.errors import UsageError
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.formulas.hybrid import pipeline_stages
from hwcalc.model import Definition
from hwcalc.quantization.planned import format_name
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy


def _block(name: str, value: str) -> int:
    size = integer_option(1)(name, value)
    if size not in (8, 16, 32):
        raise UsageError(f"mistral.rs: Block size must be in [8, 16, 32], got {size}.", hint=f"Use: --engine-option {name}=32")
    return size


_MEMORY: Final = integer_option(1)

_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("paged_attn", "PagedAttention", "auto: with CUDA", choice_option("auto", "on", "off")),
    ("pa_context_len", "tokens for which the pool is made", "none", _MEMORY),
    ("pa_memory_mb", "MB (2^20 bytes) of the pool", "by pa_memory_fraction", _MEMORY),
    ("pa_memory_fraction", "share of the GPU for weights and cache", str(FRACTION), number_option(1)),
    ("pa_block_size", "tokens in a block: 8, 16 or 32", "32", _block),
    ("pa_cache_type", "format of the pool", "auto", choice_option("auto", "f8e4m3")),
    ("max_seqs", "sequences at once", str(MOST_SEQUENCES), integer_option(1, 2**20)),
    ("prefix_cache_n", "prefixes kept where there is no pool", "16", integer_option(0, 2**20)),
    ("pa_gpu_mem", "pa_memory_mb in the Python package", "none", _MEMORY),
    ("pa_gpu_mem_usage", "pa_memory_fraction in the Python package", "none", number_option(1)),
    ("pa_ctxt_len", "pa_context_len in older servers", "none", _MEMORY),
    ("pa_blk_size", "pa_block_size in older servers", "none", _block),
)


class MistralRs(GeneralEngine):
    """The caches of mistral.rs."""

    deployment: ClassVar[type[Deployment]] = MistralDeployment
    occupancy: ClassVar[type[Occupancy]] = MistralOccupancy
    name: ClassVar[str] = "mistral-rs"
    title: ClassVar[str] = "mistral.rs: PagedAttention, or caches that grow by 512"
    label: ClassVar[str] = "mistral.rs"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "pages of the planned sequences, and all slots of states"
    pool_is: ClassVar[str] = "GPU blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("0.9.2",)
    source: ClassVar[str] = "mistral.rs 9e922623f24b (0.9.2), paged_attention/mod.rs"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "q8_0", "q4_k_m")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def flag(self, name: str, value: object) -> str:
        """How mistral.rs spells one option of kvplan or one engine option; empty if it has no flag for it."""
        if name == "dtype":
            return " ".join(_kv_dtype(str(value)))
        if name == "memory_utilization":
            return f"--pa-memory-fraction {value}"
        if name == "seq":
            return f"--max-seq-len {value}"
        if name == "weights":
            return f"--isq {ISQ[str(value)]}" if str(value) in ISQ else ""
        return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""

    def command(self, planned: CommandInput) -> list[str]:
        """The words of ``mistralrs serve`` for a plan. Raises :class:`~hwcalc.errors.UsageError` for what it cannot be told."""
        for name in ("lora", "draft"):
            if getattr(planned, name) is not None:
                raise UsageError(f"--{name} names no files that mistral.rs could load.", hint=f"Leave out --{name}.")
        check_one_replica(planned, "mistral.rs")
        words, parallel = ["mistralrs", "serve", "-m", planned.path or planned.model], planned.parallel
        if parallel.gpus > 1:
            # NCCL takes all GPUs that it sees. With pipeline stages it is off, and layers are mapped to GPUs.
            seen = f"CUDA_VISIBLE_DEVICES={','.join(str(number) for number in range(parallel.gpus))}"
            words = ["env", seen, *(["MISTRALRS_NO_NCCL=1"] if parallel.pp > 1 else []), *words]
        tokens = planned.seq + (SPARE_TOKENS if planned.options.get("paged_attn") == "on" else 0)
        words += ["--max-seq-len", str(tokens), "--max-batch-size", str(planned.batch)]
        if parallel.pp > 1:
            stages = pipeline_stages(planned.layers, parallel.pp)
            words += ["--device-layers", ";".join(f"{number}:{len(stage)}" for number, stage in enumerate(stages))]
        if planned.kv_dtype_named:
            words += _kv_dtype(planned.kv_dtype)
        if planned.weights is not None:
            # The engine has accepted the format.
            name = format_name(planned.weights) or ""
            words += ["--dtype", _FLOATS[name]] if name in _FLOATS else ["--isq", ISQ[name]]
        # The three flags for the size of the pool exclude each other; that of an option is the nearest to the user's wish.
        if _SIZES.isdisjoint(planned.options):
            if planned.kv_memory is not None:
                words += ["--pa-memory-mb", str(planned.kv_memory // MIB)]
            elif planned.memory_utilization is not None:
                words += ["--pa-memory-fraction", str(planned.memory_utilization)]
        for name, value in planned.options.items():
            words += [_FLAGS[name], value]
        return [*words, *(word for required in planned.requires for word in required.flag.split()), *planned.flags]


_FLAGS: Final = {
    "paged_attn": "--paged-attn",
    "pa_context_len": "--pa-context-len",
    "pa_memory_mb": "--pa-memory-mb",
    "pa_memory_fraction": "--pa-memory-fraction",
    "pa_block_size": "--pa-block-size",
    "pa_cache_type": "--pa-cache-type",
    "max_seqs": "--max-seqs",
    "prefix_cache_n": "--prefix-cache-n",
    "pa_gpu_mem": "--pa-memory-mb",
    "pa_gpu_mem_usage": "--pa-memory-fraction",
    "pa_ctxt_len": "--pa-context-len",
    "pa_blk_size": "--pa-block-size",
}
_SIZES: Final = frozenset(
    name for name, flag in _FLAGS.items() if flag in {"--pa-context-len", "--pa-memory-mb", "--pa-memory-fraction"}
)
_FLOATS: Final = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}


def _kv_dtype(name: str) -> list[str]:
    return ["--dtype", _FLOATS[name]] if name in _FLOATS else ["--pa-cache-type", "f8e4m3"]
