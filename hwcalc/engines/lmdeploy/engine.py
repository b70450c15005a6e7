"""LMDeploy as an engine: the models it accepts, the contents of its pool, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN, Engine
from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy
from hwcalc.engines.lmdeploy.layout import KINDS
from hwcalc.engines.lmdeploy.options import OPTIONS
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.options import EngineOption


class Lmdeploy(Engine):
    """A pool of blocks of all layers, and slots of recurrent states, by the rules of LMDeploy."""

    occupancy: ClassVar[type[Occupancy]] = LmdeployOccupancy
    name: ClassVar[str] = "lmdeploy"
    title: ClassVar[str] = "LMDeploy: its PyTorch back end, and TurboMind"
    label: ClassVar[str] = "LMDeploy"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences, and all slots of states"
    pool_is: ClassVar[str] = "num_gpu_blocks x block_size"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    scatters: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    versions: ClassVar[tuple[str, ...]] = ("0.14",)
    source: ClassVar[str] = "LMDeploy 0.14.0, pytorch/engine/cache_engine.py, executor/base.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}
    )
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.lmdeploy.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.lmdeploy.command import serve

        return serve(planned)
