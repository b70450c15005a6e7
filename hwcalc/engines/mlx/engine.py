"""mlx-lm: each layer has a cache of its own, which grows with the tokens; there is no pool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mlx.deployment import MlxOccupancy
from hwcalc.engines.mlx.layers import RULES
from hwcalc.engines.mlx.models import as_read
from hwcalc.engines.mlx.options import OPTIONS
from hwcalc.engines.options import Choices, EngineOption
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.setup import Request


class Mlx(GeneralEngine):
    """The caches of mlx-lm. Bytes are those of their arrays, of which those behind the last token are room."""

    occupancy: ClassVar[type[Occupancy]] = MlxOccupancy
    name: ClassVar[str] = "mlx"
    title: ClassVar[str] = "mlx-lm, the caches of MLX"
    label: ClassVar[str] = "MLX"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "arrays at their largest, while a prompt is read or behind it"
    versions: ClassVar[tuple[str, ...]] = ("0.32.2",)
    source: ClassVar[str] = "mlx-lm 0.32.2, models/cache.py and generate.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    has_command: ClassVar[bool] = True
    stores_prompts_apart: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "mlx_8bit", "mlx_6bit", "mlx_4bit")
    choices: ClassVar[Choices | None] = Choices(weights=("bf16", "mlx_8bit", "mlx_4bit"))
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.mlx.command import flag

        return flag(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.mlx.command import serve

        return serve(planned)

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        return as_read(model), request
