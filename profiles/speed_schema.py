"""The form of the files in ``speed/``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwcalc.profiles.schema import Date, FactFile, Facts, Words

Share = Annotated[float, Field(gt=0, le=1, description="a share above 0 and up to 1")]
Times = Annotated[float, Field(ge=0, le=100_000, description="a number from 0 to 100,000")]
Count = Annotated[int, Field(ge=0, description="a whole number")]
Kind = Literal["decode", "prompt", "serving"]
Multiplied = Literal["floats", "eight_bit", "four_bit", "weight_only", "gguf"]
Names = Annotated[list[Words], Field(description="a list of words")]


class ParametersFacts(Facts):
    """``parameters``: those of :class:`~hwcalc.profiles.speed.StepParameters`."""

    bandwidth_share: Share
    expert_bandwidth: Share = 1.0
    cache_times: Annotated[float, Field(ge=1, le=4, description="a number from 1 to 4")] = 1.0
    expert_power: Annotated[float, Field(ge=0.5, le=1, description="a number from 0.5 to 1")] = 0.8
    compute_shares: dict[Multiplied, Share]
    unpack_shares: dict[Literal["blocks", "superblocks"], Times] = Field(default_factory=dict)
    integer_products: Times = 4.0
    integer_matrices: bool = True
    superblock_share: Share = 0.75
    expert_compute: Share = 1.0
    expert_rows: Times = 0.0
    attention_share: Share = 0.4
    step_us: Times = 0.0
    sequence_us: Times = 0.0
    layer_us: Times = 0.0
    expert_layer_us: Times | None = None
    exchange_us: Times = 0.0
    peer_us: Times = 0.0
    link_share: Share = 0.6
    stage_us: Times = 0.0
    stages_together: Share = 1.0


class RangeFacts(Facts):
    """Low and high, as factors of the expected speed."""

    low: Share
    high: Annotated[float, Field(ge=1, le=4, description="a factor from 1 to 4")]


class SpeedClassFile(FactFile):
    """``speed/<id>.yaml``."""

    id: Words
    name: Words
    recorded: Date
    engines: Names
    vendors: Names
    categories: Names = Field(default_factory=list)
    architectures: Names = Field(default_factory=list)
    memory_types: Names = Field(default_factory=list)
    backends: Names = Field(default_factory=list)
    usual_backend: bool = False
    before_build: Count | None = None
    family: Literal["local", "server"]
    parameters: ParametersFacts
    ranges: dict[Kind, RangeFacts]
    errors: dict[Kind, dict[str, float]] = Field(default_factory=dict)
    rows: dict[Kind, Count]
    sources: Names
    source: Words
    untuned_times: Annotated[float, Field(ge=1, le=10, description="a factor from 1 to 10")] | None = None
    note: Words | None = None

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)
