"""vLLM as an engine: its facts, and its options by the names of its flags."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import Engine
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, number_option
from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
from hwcalc.engines.vllm.layer_specs import KINDS
from hwcalc.engines.vllm.rules import VERSIONS, resolve
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.options import CommandInput
    from hwcalc.formulas import LayerKind


_FLAG: Final = choice_option("true", "false", "on", "off")
_STATE_DTYPE: Final = choice_option("auto", "float32", "float16", "bfloat16", "fp32", "fp16", "bf16")
BACK_ENDS: Final = ("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency")
"""Back ends of expert parallelism (``--all2all-backend``). The first is the default, and has no buffers of its own."""
_GDN_BACK_ENDS: Final = ("auto", "flashinfer", "triton", "cutedsl")

OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("block_size", "tokens in a block", "by backend, at least 16", integer_option(1, 2**20)),
            ("max_num_batched_tokens", "tokens in a batch", "by GPU: 2048, 8192 or 16384", integer_option(1, 2**30)),
            ("max_num_seqs", "requests in a batch", "by GPU: 256 or 1024", integer_option(1, 2**30)),
            ("enable_prefix_caching", "keep blocks of finished requests", "true, false without attention", _FLAG),
            ("async_scheduling", "schedule a batch ahead", "true", _FLAG),
            ("disable_hybrid_kv_cache_manager", "keep windowed layers whole", "false", _FLAG),
            ("gdn_prefill_backend", "kernel of gated delta nets' prefill", "by GPU", choice_option(*_GDN_BACK_ENDS)),
            ("enforce_eager", "run without CUDA graphs", "false", _FLAG),
            ("all2all_backend", "how ranks exchange tokens of experts", BACK_ENDS[0], choice_option(*BACK_ENDS)),
            ("mamba_cache_dtype", "dtype of convolution states", "auto", _STATE_DTYPE),
            ("mamba_ssm_cache_dtype", "dtype of recurrent states", "auto", _STATE_DTYPE),
            ("num_gpu_blocks_override", "blocks, whatever the memory", "by memory", integer_option(1, 2**40)),
            ("dtype", "dtype that the model runs in", "auto", _STATE_DTYPE),
            ("cpu_offload_gb", "GiB of weights in host memory, per GPU", "0", number_option(2**20)),
            ("kv_offloading_size", "GiB of host memory for blocks that left the GPU", "none", number_option(2**20)),
            ("speculative", "ngram:N, mtp:N, eagle:, dflash: or draft:MODEL[:N]", "none", lambda _, value: value),
        )
    }
)


class Vllm(Engine):
    """A pool of blocks, by the rules of vLLM."""

    deployment: ClassVar[type[Deployment]] = VllmDeployment
    occupancy: ClassVar[type[Occupancy]] = VllmOccupancy
    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM: blocks of a pool that groups of layers share"
    label: ClassVar[str] = "vLLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks that the planned sequences hold"
    pool_is: ClassVar[str] = "GPU KV cache size"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    drafts_in_cache: ClassVar[bool] = True
    sums_in_32_bits: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    choices: ClassVar[Choices | None] = Choices(dtypes=("fp8", "nvfp4", "fp8_ds_mla"), weights=("bf16", "fp8", "awq", "nvfp4"))
    versions: ClassVar[tuple[str, ...]] = VERSIONS
    source: ClassVar[str] = "vLLM 0.33.0, v1/core/kv_cache_planning.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    scatters: ClassVar[bool] = True

    def resolve_version(self, requested: str) -> str:
        return resolve(requested)

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        from hwcalc.engines.vllm.settings import draft_named

        return draft_named(options.get("speculative"))

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.vllm.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.vllm.command import serve

        return serve(planned)
