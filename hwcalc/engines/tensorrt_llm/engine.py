"""TensorRT-LLM as an engine, and the command line of ``trtllm-serve`` for a plan.

What has no flag stands in a YAML file. Flags: commands/serve.py; the file: llmapi/llm_args.py (``KvCacheConfig``) of the sources of 1.4; read,
not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN, Turns
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.options import EmittedFile, check_one_replica, is_on
from hwcalc.engines.tensorrt_llm.deployment import TensorrtDeployment, TensorrtOccupancy
from hwcalc.engines.tensorrt_llm.layout import RULES
from hwcalc.engines.tensorrt_llm.settings import OPTIONS, is_attention_dp, read_windows
from hwcalc.errors import UsageError
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.options import Choices, CommandInput, EngineOption
    from hwcalc.engines.setup import Request


class TensorrtLlm(GeneralEngine):
    """A pool of blocks, by the rules of TensorRT-LLM's PyTorch back end."""

    deployment: ClassVar[type[Deployment]] = TensorrtDeployment
    occupancy: ClassVar[type[Occupancy]] = TensorrtOccupancy
    name: ClassVar[str] = "tensorrt-llm"
    title: ClassVar[str] = "TensorRT-LLM: blocks of a share of what is left after loading"
    label: ClassVar[str] = "TensorRT-LLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences; states and windows of max_batch_size requests"
    pool_is: ClassVar[str] = "max tokens in paged KV cache"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    groups_share: ClassVar[bool] = False
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "nvfp4")
    choices: ClassVar[Choices | None] = None
    versions: ClassVar[tuple[str, ...]] = ("1.4",)
    source: ClassVar[str] = "TensorRT-LLM 1.4 (sources read, not run), _torch/pyexecutor"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}
    )
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def flag(self, name: str, value: object) -> str:
        """How TensorRT-LLM spells one option; as an entry of the settings file where it has no flag."""
        if name in ("enable_attention_dp", "enable_block_reuse"):
            return f"{name}: {str(is_on(str(value))).lower()}"
        if name in _OF_CACHE:
            return f"{name}: {value}"
        return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        text = settings_file(planned)
        return EmittedFile(name=SETTINGS_FILE, text=text, environment=(), command=tuple(self.command(planned))) if text else None

    def command(self, planned: CommandInput) -> list[str]:
        """The words of ``trtllm-serve``. What has no flag stands in the settings file, which is named last."""
        for name in ("weights", "lora", "draft"):
            if getattr(planned, name) is not None:
                message = f"kvplan cannot write {name} on the command line of trtllm-serve."
                raise UsageError(message, hint=f"Leave out --{name}, or name a model that is published so.")
        parallel, options = planned.parallel, dict(planned.options)
        tp = parallel.tp
        if is_attention_dp(options):
            tp *= parallel.dp
        else:
            check_one_replica(planned, "TensorRT-LLM")
        words = ["trtllm-serve", planned.model, _FLAGS["seq"], str(planned.seq)]
        for name, ranks in (("tp", tp), ("pp", parallel.pp), ("ep", parallel.ep)):
            if ranks > 1:
                words += [_FLAGS[name], str(ranks)]
        if planned.revision is not None:
            words += [_FLAGS["revision"], planned.revision]
        if planned.kv_dtype_named and planned.kv_dtype in ("fp8", "nvfp4"):
            words += [_FLAGS["dtype"], planned.kv_dtype]
        if planned.memory_utilization is not None and "free_gpu_memory_fraction" not in options:
            words += [_FLAGS["memory_utilization"], str(planned.memory_utilization)]
        for name, value in options.items():
            if name in _FLAGS:
                words += [_FLAGS[name], value]
        return [*words, *(["--config", SETTINGS_FILE] if settings_file(planned) else [])]

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """Behind each window of ``max_attention_window`` too, where layers of one kind may have different ones."""
        turns, named = super().turns(model, options), options.get("max_attention_window")
        return turns if named is None else turns.also(tokens=read_windows("max_attention_window", named))

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """With attention data parallelism every rank is a replica of the attention."""
        parallel = request.setup.parallel
        if is_attention_dp(request.setup.options) and parallel.tp > 1:
            request = request.changed(tp=1, dp=parallel.tp * parallel.dp)
        return model, request


_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq": "--max_seq_len",
        "tp": "--tp_size",
        "pp": "--pp_size",
        "ep": "--ep_size",
        "memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_batch_size": "--max_batch_size",
        "max_num_tokens": "--max_num_tokens",
        "max_beam_width": "--max_beam_width",
        "dtype": "--kv_cache_dtype",
        "revision": "--hf_revision",
    }
)
_OF_CACHE: Final = frozenset({"tokens_per_block", "max_tokens", "avg_seq_len", "host_cache_size", "mamba_ssm_cache_dtype"})
_LONG: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
SETTINGS_FILE: Final = "kvplan.yaml"


def settings_file(planned: CommandInput) -> str:
    """The entries of the settings file, as YAML; empty if every option has a flag."""
    options, cache = planned.options, {}
    if planned.kv_memory is not None:
        cache["max_gpu_total_bytes"] = str(planned.kv_memory)
    if planned.kv_dtype_named and planned.kv_dtype == "fp8_ds_mla":
        cache["dtype"] = planned.kv_dtype
    for name, value in options.items():
        if name in _OF_CACHE:
            cache[name] = _LONG.get(value, value)
        elif name == "enable_block_reuse":
            cache[name] = str(is_on(value)).lower()
        elif name == "max_attention_window":
            cache[name] = f"[{value}]"
        elif name == "manager":
            cache["use_kv_cache_manager_v2"] = str(value == "v2").lower()
    entries = "".join(f"  {name}: {value}\n" for name, value in cache.items())
    if "periodic_snapshot_interval" in options:
        entries += f"  mamba_state_config:\n    periodic_snapshot_interval: {options['periodic_snapshot_interval']}\n"
    lines = [f"kv_cache_config:\n{entries}"] if entries else []
    if is_attention_dp(options):
        lines.append("enable_attention_dp: true\n")
    if "indexer_k_dtype" in options:
        lines.append(f"sparse_attention_config:\n  algorithm: dsa\n  indexer_k_dtype: {options['indexer_k_dtype']}\n")
    return "".join(lines)
