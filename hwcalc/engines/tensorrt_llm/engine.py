"""TensorRT-LLM as an engine: the models it accepts, what its pool holds, and the budget of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy
from hwcalc.engines.tensorrt_llm.options import OPTIONS, is_attention_dp
from hwcalc.engines.tensorrt_llm.pieces import RULES
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput, EmittedFile
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.options import Choices, EngineOption
    from hwcalc.engines.setup import Request


class TensorrtLlm(GeneralEngine):
    """A pool of blocks, by the rules of TensorRT-LLM's PyTorch back end."""

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
        from hwcalc.engines.tensorrt_llm.command import flag_text

        return flag_text(name, value)

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        from hwcalc.engines.command import EmittedFile
        from hwcalc.engines.tensorrt_llm.command import SETTINGS_FILE, serve, settings_file

        text = settings_file(planned)
        return EmittedFile(name=SETTINGS_FILE, text=text, environment=(), command=tuple(serve(planned))) if text else None

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.tensorrt_llm.command import serve

        return serve(planned)

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """With attention data parallelism every rank is a replica of the attention."""
        parallel = request.parallel
        if is_attention_dp(request.options) and parallel.tp > 1:
            request = request.changed(tp=1, dp=parallel.tp * parallel.dp)
        return model, request
