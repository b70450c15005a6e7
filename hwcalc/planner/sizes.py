"""The parallel sizes of a request: as the user gave them, or as an engine divides a model over so many GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.devices import check_stages
from hwcalc.engines.setup import MOST_RANKS, Parallel
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.gpus import Gpu

def parallel_sizes(
    gpus: int | None, sizes: Parallel, *, default: bool = False, choose: Callable[[int, Parallel], Parallel] | None = None
) -> Parallel:
    """The parallel sizes for ``gpus`` GPUs. Without other sizes they are what ``choose`` says, or else all tensor parallel.

    Otherwise it must equal tp x pp x dp. If it is a ``default``, it may also be more. Raises :class:`~hwcalc.errors.UsageError`.
    """
    ranks = sizes.tp * sizes.pp * sizes.dp
    if gpus is None or gpus == ranks or (default and 1 < ranks < gpus):
        return _checked(sizes)
    if ranks == 1:
        return _checked(replace(sizes, tp=gpus) if choose is None else choose(gpus, sizes))
    if default:
        raise UsageError(
            f"tp {sizes.tp} x pp {sizes.pp} x dp {sizes.dp} = {ranks:,}, but the instance gives {gpus:,} GPUs.",
            hint="Use no more than it has.",
        )
    raise UsageError(
        f"gpus is {gpus:,}, but tp {sizes.tp} x pp {sizes.pp} x dp {sizes.dp} = {ranks:,}.",
        hint="Leave out --gpus, or make them equal.",
    )


def sizes_for(
    engine: Engine, model: ModelSpec, gpu: Gpu | None, gpus: int | None, sizes: Parallel, *, instance: bool = False
) -> Parallel:
    """The parallel sizes of so many GPUs of this kind, or of an instance that has them, from those that the user gave."""
    if engine.splits_layers:
        check_stages(engine.label, sizes)

    def choose(number: int, given: Parallel) -> Parallel:
        if engine.splits_layers:
            return replace(given, pp=number)
        if not 1 <= number <= MOST_RANKS or gpu is None:
            return replace(given, tp=number)
        from hwcalc.planner.layouts import chosen_sizes, node_of

        return chosen_sizes(model, number, given, node_of(gpu, number if instance else None))

    return parallel_sizes(gpus, sizes, default=instance, choose=choose)


def _checked(sizes: Parallel) -> Parallel:
    """Check that dcp divides tp, and ep divides tp x dp: both reuse ranks that must exist."""
    if sizes.tp % sizes.dcp:
        raise UsageError(f"dcp {sizes.dcp} does not divide tp {sizes.tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    ranks = sizes.tp * sizes.dp
    if ranks % sizes.ep:
        raise UsageError(
            f"ep {sizes.ep} does not divide tp x dp = {ranks:,}.",
            hint=f"ep reuses the ranks of tp and dp: use --ep {ranks}, or leave it out.",
        )
    return sizes
