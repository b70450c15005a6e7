"""What share of an accelerator's rates an engine reaches: one YAML file per class of engine and hardware in ``speed/``, read compiled.

The parameters were fitted to public measurements by ``scripts/fit_speed.py``; each file says to how many, and how far they lie apart.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from msgspec import Meta, convert, field
from msgspec.structs import asdict, replace

from hwcalc.profiles.compiled import records
from hwcalc.profiles.form import Date, FactFile, Facts, Listed, Words, one_of

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

FOLDER: Final = "speed"
MOST_REACHED: Final = 0.91
"""The largest share of the bound's speed that was measured, but for one row of 4,300: the fast end of a range goes no further."""
_UNTUNED_WIDER: Final = 1.3
"""How much wider each side of the range is for servers by default settings, which differ more."""
FEW: Final = 20
"""Classes with fewer measurements say so."""


Reached: TypeAlias = Annotated[float, Meta(gt=0, le=1, description="a share above 0 and up to 1")]
Times: TypeAlias = Annotated[float, Meta(ge=0, le=100_000, description="a number from 0 to 100,000")]
Count: TypeAlias = Annotated[int, Meta(ge=0, description="a whole number")]
Kind: TypeAlias = Annotated[str, one_of("decode", "prompt", "serving")]
Multiplied: TypeAlias = Annotated[str, one_of("floats", "eight_bit", "four_bit", "weight_only", "gguf")]


class StepParameters(Facts):
    """The parameters of a step's time. Shares are parts of what the accelerator's profile says; times are microseconds."""

    bandwidth_share: Reached
    """Of the memory bandwidth, while weights are read."""
    expert_bandwidth: Reached = 1.0
    """How much of that share the experts of a step reach: each has few tokens, and many are read one after another."""
    cache_times: Annotated[float, Meta(ge=1, le=4, description="a number from 1 to 4")] = 1.0
    """How often the bytes of the cache count: attention reads them less evenly than matrices are read."""
    expert_power: Annotated[float, Meta(ge=0.5, le=1, description="a number from 0.5 to 1")] = 0.8
    """t tokens of a step choose experts as if t to this power were drawn at random: tokens of one text are alike. Routing does not depend on
    the accelerator: fitted by itself, it is 0.63 to 0.84 where rows tell of it, and taken for all."""
    compute_shares: Mapping[Multiplied, Reached]
    """Of the peak rate, by how the weights are multiplied: ``floats``, ``eight_bit``, ``four_bit``, ``weight_only``, ``gguf``."""
    unpack_shares: Mapping[Annotated[str, one_of("blocks", "superblocks")], Times] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Of the peak rate of 32-bit numbers, while quantised weights are unpacked: of ``blocks`` and of ``superblocks`` of GGUF."""
    integer_products: Times = 4.0
    """Products of 8-bit integers that an instruction adds up (DP4A), by which llama.cpp multiplies unpacked weights; Metal has none: 1."""
    integer_matrices: bool = True
    """Whether matrices of quantised weights may be multiplied at the rate of 8-bit integers. llama.cpp's kernels for Vulkan unpack them to 16
    bits, and those for ROCm reach the same share of the 16-bit rate on RDNA 3 and RDNA 4, whose rate of integers is twice as high."""
    bf16_matrices: str = ""
    """The beginning of the architectures on which matrices in bf16 are multiplied in 16 bits; on others they are in 32 bits. llama.cpp's kernels
    for Vulkan take 32 bits where the driver has none for bf16, as RADV before RDNA 4 (ggml-org/llama.cpp#12554)."""
    scale_instructions: Times = 0.0
    """Instructions for each block of 32 products of 8-bit integers, whose sum is multiplied by the scales of both factors in 32 bits. llama.cpp's
    kernels for CUDA and ROCm take four: two to make the sum a float, one for the product of the scales, and one to multiply and add."""
    superblock_share: Reached = 0.75
    """How much of the share of GGUF's blocks its superblocks reach, while matrices are multiplied: their scales are packed too, so that
    unpacking takes more instructions. Measured from 0.73 (Metal) and 0.77 (CUDA) to 0.84 (HIP), and taken for all."""
    expert_compute: Reached = 1.0
    """How much of those shares the matrices of experts reach."""
    expert_rows: Times = 0.0
    """Rows that each expert of a step computes besides those of its tokens: kernels compute whole tiles, and its last one is not full."""
    attention_share: Reached = 0.4
    """Of the peak rate, in attention."""
    vector_attention: bool = False
    """Whether that is the rate of 32-bit numbers."""
    step_us: Times = 0.0
    """Of each step: scheduling, sampling, and the launch of it all."""
    sequence_us: Times = 0.0
    """Of each sequence that a step decodes."""
    layer_us: Times = 0.0
    """Of each layer: its kernels are launched and begin to read one after another."""
    card_layers: Times = 1.0
    """How many times as long that is on a card as on a processor that shares its memory. llama.cpp on AMD takes 3.9 times as long with ROCm and 3.6
    with Vulkan, where each was fitted by itself."""
    expert_layer_us: Times | None = None
    """The same for layers of models with experts; those of ``layer_us`` if that is ``None``."""
    exchange_us: Times = 0.0
    """Of each layer whose ranks exchange what they computed: the latency of two exchanges."""
    peer_us: Times = 0.0
    """Of each layer, for each other rank with which it exchanges."""
    copied_share: Reached = 0.6
    """Of the bandwidth of the link to the host, while weights are copied out of its memory. Where that is pinned it is 0.8 and more; a file that
    is mapped is not, and copies at half of that (docs/speed.md)."""
    copied_power: Annotated[float, Meta(ge=0.5, le=1, description="a number from 0.5 to 1")] = 0.6
    """As ``expert_power``, of the passes of a prompt that copy experts, each a long run of one text. With it prompts of gpt-oss-120b reach the
    same share of the link at all batches from 256 to 8,192 tokens (docs/speed.md)."""
    link_share: Reached = 0.6
    """Of the bandwidth of the link between accelerators."""
    stage_us: Times = 0.0
    """Of each further pipeline stage."""
    stages_together: Reached = 1.0
    """How much of the chunks of a prompt the stages compute at the same time: with 0 one after another."""

    def layer_on(self, gpu: "Gpu", *, experts: bool) -> float:
        """The microseconds of a layer on an accelerator, in a model with experts or without."""
        layer_us = self.layer_us if not experts or self.expert_layer_us is None else self.expert_layer_us
        return layer_us * (1.0 if gpu.category == "unified" else self.card_layers)

    def slower(self, times: float, arithmetic_times: float) -> "StepParameters":
        """Parameters with which matrices and attention, which prompts are made of, take ``arithmetic_times`` as long, and other terms ``times``."""
        changes: dict[str, Any] = {}
        for name, value in asdict(self).items():
            factor = arithmetic_times if name in ("compute_shares", "attention_share") else times
            if isinstance(value, Mapping):
                changes[name] = {key: share / factor for key, share in value.items()}
            elif name.endswith("_share"):
                changes[name] = value / factor
            elif name.endswith("_us") and value is not None:
                changes[name] = value * factor
        return replace(self, **changes)


class SpeedRange(Facts):
    """From the expected speed to the low and the high one: factors between which four of five measurements lie."""

    low: Reached
    high: Annotated[float, Meta(ge=1, le=4, description="a factor from 1 to 4")]


def backend_words(backend: str) -> str:
    """The name of a backend, in the words of the classes."""
    return backend.lower().replace("hip", "rocm").replace("rocwmma", "rocm")


class SpeedClass(FactFile):
    """Engines and accelerators that reach alike shares, and with which error that is known.

    ``ranges`` and ``errors`` go by what is predicted: ``decode``, ``prompt`` and ``serving`` (prompts and steps mixed, under load). The
    errors are those of the rows that it was fitted to, and, as ``apart_``, those of each row without its source.
    """

    id: Words
    name: Words
    recorded: Date
    engines: Listed
    vendors: Listed
    categories: Listed = ()
    architectures: Listed = ()
    memory_types: Listed = ()
    """The beginnings of the names of memories: ``HBM``. Empty are all, as with categories and architectures."""
    backends: Listed = ()
    """Words in the names of the engine's backends, where it has several that differ."""
    usual_on: Listed = ()
    """Categories of accelerators on which the class holds where no backend is named: ``unified`` stands for those without a category too."""
    before_build: Count | None = None
    """The build of the engine from which on the class no longer holds, as its kernels changed."""
    family: Annotated[str, one_of("local", "server")]
    """``local`` or ``server``: what parameters are taken from that the rows of the class do not determine."""
    parameters: StepParameters
    ranges: Mapping[Kind, SpeedRange]
    errors: Mapping[Kind, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    rows: Mapping[Kind, Count]
    sources: Listed
    source: Words
    untuned_times: Annotated[float, Meta(ge=1, le=10, description="a factor from 1 to 10")] | None = None
    """How much longer servers take that are started with the defaults of their engine, by measurements; ``None`` where none are known."""
    note: Words | None = None

    @property
    def measurements(self) -> int:
        """The number of measurements that the parameters were fitted to."""
        return sum(self.rows.values())

    @property
    def untuned(self) -> "SpeedClass":
        """The class of servers that are started with the defaults of their engine: all that is not reading or computing at full rate takes longer."""
        times = self.untuned_times
        if times is None:
            return self
        parameters, wider = self.parameters.slower(times, times), {}
        for kind, spread in self.ranges.items():
            wider[kind] = SpeedRange(low=spread.low / _UNTUNED_WIDER, high=spread.high * _UNTUNED_WIDER)
        return replace(self, parameters=parameters, ranges=wider, name=f"{self.name}, by default settings")

    @property
    def text(self) -> str:
        """The class, and what it was fitted to, in words."""
        errors = {kind: found["median"] for kind, found in self.errors.items() if "median" in found}
        off = ", ".join(f"{kind} {100 * error:.0f} %" for kind, error in errors.items())
        of = f"{self.measurements:,} measurements of {len(self.sources):,} source{'s' * (len(self.sources) != 1)}"
        engines = ", which are not told apart" if len(self.engines) > 1 and self.family == "server" else ""
        few = "few measurements, wide range: " if self.measurements < FEW else ""
        return f"{few}{self.name}{engines}, fitted to {of}" + (f"; median error {off}" if off else "")

    def range_of(self, kind: str) -> tuple[float, float]:
        """Low and high as factors of the expected speed. Decoding alone and under load stand for each other where one of them has none."""
        spread = self.ranges.get(kind) or self.ranges.get("decode") or self.ranges["serving"]
        return spread.low, spread.high

    def covers(self, engine: str, gpu: "Gpu", backend: str | None = None, build: int | None = None) -> bool:
        """True if the engine on this accelerator belongs to the class, with this backend and of this build, by default the newest."""
        words = backend_words(backend or "")
        return (
            engine in self.engines
            and gpu.vendor in self.vendors
            and (not self.categories or gpu.category in self.categories)
            and (not self.architectures or gpu.architecture in self.architectures)
            and (not self.memory_types or (gpu.memory_type or "").startswith(tuple(self.memory_types)))
            and (
                not self.backends
                or any(word in words for word in self.backends)
                or (not words and (gpu.category or "unified") in self.usual_on)
            )
            and (self.before_build is None or (build is not None and build < self.before_build))
        )


def narrowest_first(classes: Iterable[SpeedClass]) -> tuple[SpeedClass, ...]:
    """Classes so that one of some accelerators or builds comes before one of more of them, and so does one of a driver before one of all."""

    def key(one: SpeedClass) -> tuple[Any, ...]:
        return (
            not one.architectures,
            not one.memory_types,
            not one.categories,
            one.before_build is None,
            bool(one.usual_on),
            one.id,
        )

    return tuple(sorted(classes, key=key))


def of_classes(
    classes: Iterable[SpeedClass], engine: str, gpu: "Gpu", backend: str | None = None, build: int | None = None
) -> SpeedClass | None:
    """The first class that covers the engine on the accelerator."""
    return next((speed_class for speed_class in classes if speed_class.covers(engine, gpu, backend, build)), None)


@lru_cache(maxsize=1)
def speed_classes() -> tuple[SpeedClass, ...]:
    """All classes, the narrowest first."""
    return narrowest_first(convert(data, SpeedClass) for data in records(FOLDER).values())


@lru_cache(maxsize=1)
def measured_engines() -> frozenset[str]:
    """The engines of all classes."""
    return frozenset(name for speed_class in speed_classes() for name in speed_class.engines)


def backends_of(engine: str, gpu: "Gpu") -> tuple[str, ...]:
    """The words by which backends of an engine are told apart on accelerators like this one; empty if they are not."""
    classes = (one for one in speed_classes() if engine in one.engines and gpu.vendor in one.vendors)
    return tuple(sorted({word for one in classes for word in one.backends}))


def find_speed_class(engine: str, gpu: "Gpu", backend: str | None = None, build: int | None = None) -> SpeedClass | None:
    """The class of an engine on an accelerator; ``None`` if nothing like it was measured, such as a part of an accelerator."""
    return None if gpu.part else of_classes(speed_classes(), engine, gpu, backend, build)
