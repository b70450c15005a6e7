"""SGLang as an engine, and the command line that serves a plan (flags of ``server_args.py``, 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.options import AUTO, is_on, parse_lora
from hwcalc.engines.sglang.deployment import SglangDeployment, SglangOccupancy
from hwcalc.engines.sglang.layout import KINDS
from hwcalc.engines.sglang.settings import ARGUMENTS, OPTIONS, SWITCHES, eagle_of
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.options import Choices, CommandInput, EngineOption


class Sglang(GeneralEngine):
    """Pools of tokens, of window tokens and of states, by the rules of SGLang."""

    deployment: ClassVar[type[Deployment]] = SglangDeployment
    occupancy: ClassVar[type[Occupancy]] = SglangOccupancy
    name: ClassVar[str] = "sglang"
    title: ClassVar[str] = "SGLang: a pool of tokens, and one each for windows and states"
    label: ClassVar[str] = "SGLang"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "the smallest pools that hold the planned sequences"
    pool_is: ClassVar[str] = "max_total_num_tokens"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    choices: ClassVar[Choices | None] = None
    versions: ClassVar[tuple[str, ...]] = ("0.5.23",)
    source: ClassVar[str] = "SGLang 0.5.23, srt/model_executor/pool_configurator.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def flag(self, name: str, value: object) -> str:
        """How SGLang spells one option of kvplan or one engine option; empty if it has no flag for it, or takes it without one."""
        text = str(value)
        if name in SWITCHES:
            return f"--{name.replace('_', '-')}" if is_on(text) else ""
        if name == "weights":
            return _AS_LOADED.get(text, "")
        if name == "speculative":
            tokens = eagle_of(name, text)[1]
            steps = max(1, tokens - 1)
            return (
                f"--speculative-algorithm EAGLE --speculative-num-steps {steps} --speculative-eagle-topk 1 "
                f"--speculative-num-draft-tokens {tokens}"
            )
        if text == AUTO:
            return ""
        if name == "dsa_backend":
            return f"--dsa-prefill-backend {text} --dsa-decode-backend {text}"
        if name == "dtype":
            return f"{_FLAGS[name]} {_LONG_NAMES.get(text, text)}"
        flag = _FLAGS.get(name) or (f"--{name.replace('_', '-')}" if name in _OWN else "")
        return f"{flag} {text}" if flag else ""

    def command(self, planned: CommandInput) -> list[str]:
        """The words of ``python -m sglang.launch_server`` for a plan, with the further flags that its pools require."""
        parallel, replicated = planned.parallel, is_on(planned.options.get("enable_dp_attention"))
        words = ["python", "-m", "sglang.launch_server", "--model-path", planned.model, "--context-length", str(planned.seq)]
        if planned.revision is not None:
            words += ["--revision", planned.revision]
        if planned.kv_dtype_named:
            words += ["--kv-cache-dtype", _LONG_NAMES.get(planned.kv_dtype, planned.kv_dtype)]
        # Replicas that divide attention alone are ranks of one group.
        sizes = {
            "tp": parallel.tp * parallel.dp if replicated else parallel.tp,
            "pp": parallel.pp,
            "dp": parallel.dp,
            "ep": parallel.ep,
        }
        for name, size in sizes.items():
            if size > 1:
                words += [_FLAGS[name], str(size)]
        if planned.memory_utilization is not None and "mem_fraction_static" not in planned.options:
            words += [_FLAGS["memory_utilization"], str(planned.memory_utilization)]
        if planned.kv_memory is not None and "max_total_tokens" not in planned.options:
            message = "SGLang has no flag for the bytes of its pools."
            raise UnsupportedError(message, hint="Leave out --kv-memory, or name the tokens: --engine-option max_total_tokens=N")
        if planned.weights is not None:
            if planned.weights not in _AS_LOADED:
                message = f"--weights {brief(planned.weights, 20)}: SGLang makes no such weights when it loads a model."
                raise UnsupportedError(message, hint=f"Name a model that is published so, or use: {', '.join(_AS_LOADED)}")
            words += _AS_LOADED[planned.weights].split()
        if planned.lora is not None:
            lora = parse_lora(planned.lora)
            words += ["--enable-lora", "--max-loras-per-batch", str(lora.count), "--max-lora-rank", str(lora.rank)]
            words += ["--lora-target-modules", *_TARGETS[lora.targets]]
        if planned.draft is not None:
            words += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", planned.draft]
        for name, value in planned.options.items():
            words += self.flag(name, value).split()
        for required in planned.requires:
            words += required.flag.split()
        return [*words, *planned.flags]


_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq": "--context-length",
        "dtype": "--kv-cache-dtype",
        "tp": "--tp-size",
        "pp": "--pp-size",
        "dp": "--dp-size",
        "ep": "--ep-size",
        "dcp": "--dcp-size",
        "memory_utilization": "--mem-fraction-static",
        "mamba_scheduler_strategy": "--mamba-radix-cache-strategy",
    }
)
_OWN: Final = (*ARGUMENTS, "attention_backend")
"""Options whose flag is their own name with dashes."""
_AS_LOADED: Final = {"fp8": "--quantization fp8", "bf16": "--dtype bfloat16", "fp16": "--dtype float16"}
"""Formats that SGLang makes of any model as it loads it."""
_TARGETS: Final = {
    "all": ("all",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
"""What ``--lora`` calls a group of layers -> the layers, which SGLang must be told where no adapter is there from the start."""
_LONG_NAMES: Final = {"fp8": "fp8_e4m3", "fp16": AUTO}
