"""What share of an accelerator's rates an engine reaches: one YAML file per class of engine and hardware in ``speed/``, read compiled.

The parameters were fitted to public measurements by ``scripts/fit_speed.py``; each file says to how many, and how far they lie apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import convert, field
from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import records

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

FOLDER: Final = "speed"


class StepParameters(Record):
    """The parameters of a step's time. Shares are parts of what the accelerator's profile says; times are microseconds."""

    bandwidth_share: float
    """Of the memory bandwidth, while weights are read."""
    cache_times: float = 1.0
    """How often the bytes of the cache count: attention reads them less evenly than matrices are read."""
    expert_power: float = 1.0
    """t tokens of a step choose experts as if t to this power were drawn at random: tokens of one text are alike."""
    compute_shares: Mapping[str, float]
    """Of the peak rate, by how the weights are multiplied: ``floats``, ``eight_bit``, ``four_bit``, ``weight_only``, ``gguf``."""
    expert_compute: float = 1.0
    """How much of those shares the matrices of experts reach."""
    attention_share: float = 0.4
    """Of the peak rate, in attention."""
    step_us: float = 0.0
    """Of each step: scheduling, sampling, and the launch of it all."""
    sequence_us: float = 0.0
    """Of each sequence that a step decodes."""
    layer_us: float = 0.0
    """Of each layer: its kernels are launched and begin to read one after another."""
    expert_layer_us: float | None = None
    """The same for layers of models with experts; those of ``layer_us`` if that is ``None``."""
    exchange_us: float = 0.0
    """Of each layer whose ranks exchange what they computed: the latency of two exchanges."""
    link_share: float = 0.6
    """Of the bandwidth of the link between accelerators."""
    stage_us: float = 0.0
    """Of each further pipeline stage."""


class SpeedRange(Record):
    """From the expected speed to the low and the high one: factors between which four of five measurements lie."""

    low: float
    high: float


class SpeedClass(Record):
    """Engines and accelerators that reach alike shares, and with which error that is known.

    ``ranges`` and ``errors`` go by what is predicted: ``decode``, ``prompt`` and ``serving`` (prompts and steps mixed, under load).
    ``backends`` are other parameters where the engine runs on another one of its backends.
    """

    id: str
    name: str
    engines: Sequence[str]
    vendors: Sequence[str]
    categories: Sequence[str] = ()
    architectures: Sequence[str] = ()
    memory_types: Sequence[str] = ()
    """The beginnings of the names of memories: ``HBM``. Empty are all, as with categories and architectures."""
    parameters: StepParameters
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    ranges: Mapping[str, SpeedRange]
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    rows: Mapping[str, int]
    sources: Sequence[str]
    source: str
    note: str | None = None

    @property
    def measurements(self) -> int:
        """The number of measurements that the parameters were fitted to."""
        return sum(self.rows.values())

    def covers(self, engine: str, gpu: Gpu) -> bool:
        """Whether the engine on this accelerator belongs to the class."""
        return (
            engine in self.engines
            and gpu.vendor in self.vendors
            and (not self.categories or gpu.category in self.categories)
            and (not self.architectures or gpu.architecture in self.architectures)
            and (not self.memory_types or (gpu.memory_type or "").startswith(tuple(self.memory_types)))
        )

    def on(self, backend: str | None) -> SpeedClass:
        """The class with the parameters of a backend, where they differ."""
        changes = None if backend is None else self.backends.get(backend)
        if not changes:
            return self
        shares = {**self.parameters.compute_shares, **changes.get("compute_shares", {})}
        return replace(self, parameters=replace(self.parameters, **{**changes, "compute_shares": shares}))


@lru_cache(maxsize=1)
def speed_classes() -> tuple[SpeedClass, ...]:
    """All classes, the narrowest first: one of some architectures comes before one of all."""
    classes = [convert(dict(data, schema_version=None), SpeedClass) for data in records(FOLDER).values()]
    return tuple(sorted(classes, key=lambda one: (not one.architectures, not one.memory_types, not one.categories, one.id)))


def find_speed_class(engine: str, gpu: Gpu, backend: str | None = None) -> SpeedClass | None:
    """The class of an engine on an accelerator; ``None`` if nothing like it was measured."""
    for one in speed_classes():
        if one.covers(engine, gpu):
            return one.on(backend)
    return None
