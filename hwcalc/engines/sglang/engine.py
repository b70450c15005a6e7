"""SGLang as an engine: the models it accepts, what its pools hold, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.sglang.deployment import SglangDeployment, SglangOccupancy
from hwcalc.engines.sglang.layout import KINDS
from hwcalc.engines.sglang.options import OPTIONS, flag_text, serve
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition

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
        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        return serve(planned)
