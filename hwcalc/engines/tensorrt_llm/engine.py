"""TensorRT-LLM as an engine: the models it accepts, what its pool holds, and the budget of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN, Turns
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.tensorrt_llm.deployment import TensorrtDeployment, TensorrtOccupancy
from hwcalc.engines.tensorrt_llm.layout import RULES
from hwcalc.engines.tensorrt_llm.options import (
    OPTIONS,
    SETTINGS_FILE,
    flag_text,
    is_attention_dp,
    read_windows,
    serve,
    settings_file,
)
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.options import Choices, CommandInput, EmittedFile, EngineOption
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
        return flag_text(name, value)

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        from hwcalc.engines.options import EmittedFile

        text = settings_file(planned)
        return EmittedFile(name=SETTINGS_FILE, text=text, environment=(), command=tuple(serve(planned))) if text else None

    def command(self, planned: CommandInput) -> list[str]:
        return serve(planned)

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """Behind each window of ``max_attention_window`` too, where layers of one kind may have different ones."""
        turns, named = super().turns(model, options), options.get("max_attention_window")
        return turns if named is None else turns.also(tokens=read_windows("max_attention_window", named))

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """With attention data parallelism every rank is a replica of the attention."""
        parallel = request.parallel
        if is_attention_dp(request.options) and parallel.tp > 1:
            request = request.changed(tp=1, dp=parallel.tp * parallel.dp)
        return model, request
