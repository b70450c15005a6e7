"""vLLM as an engine: the models it accepts, the contents of its pool, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import Engine
from hwcalc.engines.options import Choices, EngineOption
from hwcalc.engines.vllm import versions
from hwcalc.engines.vllm.builder import KINDS
from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
from hwcalc.engines.vllm.options import OPTIONS
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.formulas import LayerKind


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
    versions: ClassVar[tuple[str, ...]] = versions.VERSIONS
    source: ClassVar[str] = "vLLM 0.33.0, v1/core/kv_cache_planning.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    scatters: ClassVar[bool] = True

    def resolve_version(self, requested: str) -> str:
        return versions.resolve(requested)

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        from hwcalc.engines.vllm.speculation import draft_named

        return draft_named(options.get("speculative"))

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.vllm.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.vllm.command import serve

        return serve(planned)
