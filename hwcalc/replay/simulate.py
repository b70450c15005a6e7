"""Replay requests on a deployment: :func:`simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.replay.core import Scheduler, StepLoad, replay
from hwcalc.replay.result import Simulation
from hwcalc.workload.request import Request, Workload
from hwcalc.workload.rows import workload_of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.model import ModelLike

ENGINES = ("vllm",)
"""Engines with rules of their scheduler."""


def simulate(
    model: ModelLike,
    requests: Workload | Iterable[Request] | Iterable[Sequence[Any]] | str,
    *,
    engine: str = "vllm",
    blocks: int | None = None,
    seconds: Callable[[StepLoad], float] | None = None,
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> Simulation:
    """Replay ``requests`` on the deployment that these options describe, step by step as its engine schedules them.

    ``requests`` are a :class:`~hwcalc.workload.request.Workload` or rows of arrival, prompt tokens, output tokens, and if wanted a prefix
    group, its tokens and a priority. ``blocks`` are those of the pool that requests get; without it the pool is the plan's, which takes
    hardware (``gpu``). Arrivals count steps, unless ``seconds`` says how long a step takes; then they are seconds. ``watch`` is called
    with the number of finished requests now and then. All other keywords are those of :func:`hwcalc.plan`, and ``engine_options`` has the
    options of the engine's scheduler too.

    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 512,
    ...           "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    >>> s = simulate(config, [(0, 100, 20)], blocks=64, engine_options={"async_scheduling": "false"})
    >>> s.totals["model_steps"], s.totals["peak_used_blocks"], s.requests
    (20, 8, [(0, 0, 19, 0, 0)])

    Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    workload = as_workload(requests)
    scheduler, occupancy = scheduler_for(model, engine=engine, blocks=blocks, **options)
    clock = replay(scheduler, workload, seconds=seconds, watch=watch)
    return Simulation(workload=workload, occupancy=occupancy, scheduler=scheduler, clock=clock)


def as_workload(requests: Workload | Iterable[Request] | Iterable[Sequence[Any]] | str) -> Workload:
    """The workload of whatever names one."""
    if isinstance(requests, Workload):
        return requests
    listed: list[Any] = list(requests)
    return Workload.of(listed) if listed and isinstance(listed[0], Request) else workload_of_rows(listed)


def scheduler_for(model: ModelLike, *, engine: str, blocks: int | None, **options: Any) -> tuple[Scheduler, Occupancy]:
    """The scheduler of the deployment that these options describe, and the deployment."""
    from hwcalc.engines import find_engine
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.library.plan import load_request
    from hwcalc.planner.context import open_request
    from hwcalc.planner.options import take_options
    from hwcalc.replay.vllm.settings import scheduler_of, split_options

    name = find_engine(engine)[0].name
    of_plan, of_scheduler = split_options(_named(options.pop("engine_options", None)))
    _, asked = take_options("plan", {**options, "engine": engine, "engine_options": of_plan})
    spec, request = load_request(model, asked)
    occupancy = open_request(spec, **request)
    if isinstance(occupancy, VllmOccupancy):
        return scheduler_of(occupancy, of_scheduler, blocks_of(occupancy, blocks)), occupancy
    raise UnsupportedError(f"The replay has no rules of {name}'s scheduler.", hint=f"Use: --engine {' or '.join(ENGINES)}")


def _named(options: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Engine options by name; they may be written ``name=value``."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        options = dict(option.partition("=")[::2] for option in options)
    return {
        name: value if value is None else str(value).lower() if isinstance(value, bool) else value
        for name, value in options.items()
    }


def blocks_of(occupancy: VllmOccupancy, blocks: int | None) -> int:
    """The blocks that requests get: those given, or those of the plan's pool."""
    if blocks is not None:
        if blocks < 1:
            raise UsageError(f"blocks is {blocks:,}.", hint="Allowed: 1 or more.")
        return blocks
    hardware, pool = occupancy.setup.hardware, occupancy.deployment.block_pool
    of_gpu = occupancy.budget if hardware.gpu is not None and hardware.kv_memory is None else None
    budget = hardware.kv_memory if of_gpu is None else max(0, of_gpu.expected)
    if budget is None or pool is None:
        raise UsageError(
            "A replay needs the blocks of a pool.", hint="Give hardware (--gpu h100), --kv-memory 40GiB, or --blocks N."
        )
    return pool.scheduler_blocks(budget)
