"""The models, lengths and lists of sizes that are tried, what a step is given for them, and how its cases are run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Allocation
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from hwcalc.probe.allocator import AllocatorSettings, environment_settings, predict
from hwcalc.probe.devices import Device, default_reserve, open_device
from hwcalc.units import MIB
from scripts.gpu_proof.record import CaseRecord, failed, skipped

MODELS: Final = (
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "google/gemma-2-9b-it",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-20b",
    "microsoft/phi-4",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "state-spaces/mamba-1.4b-hf",
    "tiiuae/Falcon-H1-1.5B-Base",
    "facebook/bart-large",
    "LiquidAI/LFM2-1.2B",
)
"""Twenty models of the catalog: full, sliding, chunked, latent and sparse attention, state spaces, delta nets, cross attention."""
DTYPES: Final = ("bf16", "fp8", "q8_0")
POOLED_DTYPE: Final = "bf16"
"""The dtype in which the models of the pool are laid out as vLLM's pool of blocks."""
POOLED: Final = (*(name for name in MODELS if name != "facebook/bart-large"), "tiiuae/falcon-7b")
"""The models of the pool: vLLM no longer runs BART, and Falcon has one KV head for all."""
LISTS: Final = 200

_LENGTHS: Final = (262_139, 131_071, 65_537, 30_011, 16_381, 8_191, 4_099, 2_053, 1_021, 509, 127, 31)
"""Primes, so that no tensor is a round number of bytes."""
_SIZES: Final = (
    1,
    512,
    513,
    4_000,
    MIB - 1,
    MIB,
    MIB + 1,
    5 * MIB,
    10 * MIB - 512,
    10 * MIB - 1,
    10 * MIB,
    39 * MIB // 2,
    21 * MIB,
)
_LARGEST: Final = 96 * MIB


class TooLargeError(KvplanError):
    """A case does not fit the device, or what of it may be used."""


def allocations(opened: Occupancy) -> tuple[Allocation, ...]:
    """The tensors of the fullest rank."""
    return opened.allocation(fullest_stage(opened))


def longest(name: str, engine: str, dtype: str, most_bytes: int, settings: AllocatorSettings) -> Occupancy:
    """The longest sequence of a fixed list that the model knows and whose cache takes at most ``most_bytes`` of the device.

    Raises :class:`TooLargeError` if nothing fits.
    """
    model = load_model(name, offline=True)
    limit = model.max_position_embeddings
    for seq in _LENGTHS:
        if limit is None or seq <= limit:
            opened = open_request(model, seq=seq, engine=engine, dtype=dtype)
            if predict((one.bytes for one in allocations(opened)), settings).reserved_bytes <= most_bytes:
                return opened
    raise TooLargeError(f"it does not fit: even {_LENGTHS[-1]} tokens take more than {most_bytes:,} bytes")


def operations(number: int) -> Iterator[int]:
    """One random list of sizes to allocate. In odd lists some tensors are freed on the way: -1 is the first that is held, -2 the next.

    >>> [list(operations(1)) == list(operations(1)), min(operations(0)) > 0, min(operations(1)) < 0]
    [True, True, True]
    """
    rng = random.Random(f"kvplan {number}")  # noqa: S311 - no secret
    held = 0
    for _ in range(rng.randrange(4, 40)):
        if number % 2 and held and rng.random() < 0.3:
            yield -1 - rng.randrange(held)
            held -= 1
        else:
            held += 1
            yield rng.choice(
                (rng.choice(_SIZES), rng.randrange(1, 2 * MIB), rng.randrange(1, 40 * MIB), rng.randrange(1, _LARGEST))
            )


Case = tuple[str, Callable[[], CaseRecord]]
"""What a case is called, and what measures it."""

_MOST_REASONS: Final = 3
"""After so many broken cases in a row a CUDA context is taken to be lost."""


class Run(Record):
    """``load`` imports torch. ``most_bytes`` bounds what is allocated; ``until`` is when no further case may begin."""

    load: Callable[[], Any]
    until: float
    environment: Mapping[str, str]
    device_name: str = "cuda"
    most_bytes: int | None = None
    clock: Callable[[], float] = monotonic

    @property
    def settings(self) -> AllocatorSettings:
        """The allocator's settings of this process."""
        return environment_settings(self.environment)

    def opened(self) -> Device:
        """The device, warmed up."""
        device = open_device(self.device_name, torch=self.load())
        device.warm_up()
        return device

    def usable_bytes(self, device: Device) -> int:
        """The bytes of the device that may be allocated: what is free, less the reserve that the probe leaves."""
        free = device.free_bytes() or 0
        usable = max(0, free - default_reserve(device))
        return usable if self.most_bytes is None else min(usable, self.most_bytes)


def cases(run: Run, todo: Iterable[Case]) -> Iterator[CaseRecord]:
    """Run cases until the time is up. An error of one case is its record, and the others go on.

    A case that kvplan refuses to plan has no prediction that could be wrong: it is skipped, with the reason.
    """
    broken = 0
    for name, measure in todo:
        if run.clock() >= run.until:
            yield skipped(name, "no time was left")
        elif broken >= _MOST_REASONS:
            yield skipped(name, "the cases before it failed")
        else:
            try:
                yield measure()
                broken = 0
            except TooLargeError as reason:
                yield skipped(name, reason.message)
            except UnsupportedError as reason:
                yield skipped(name, f"kvplan does not plan it: {reason.message}")
            except Exception as error:
                broken += 1
                yield failed(name, error)
