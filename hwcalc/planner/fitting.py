"""Many models on one GPU: for each model the best format that fits with the planned load, and the figures of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import HOST_SHARE
from hwcalc.engines.engine import Engine
from hwcalc.engines.memory import Section
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.layouts import node_of, sizes_for
from hwcalc.planner.options import Asked
from hwcalc.planner.solve import laid_out
from hwcalc.planner.values import is_auto
from hwcalc.planner.verdict import Verdict
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.planner.result import SpeedInfo
    from hwcalc.profiles.hardware_file import Gpu

_LEAST_BITS: Final = 3
"""Every format that is chosen has more bits to a weight."""
_WITH_HOST: Final = 1 + HOST_SHARE + 1
"""More times the memory of the GPUs than GPU and host together can be expected to have: one more, for what is sold as less than it has."""


class Hosting(Record):
    """The engine, the hardware and the options with which all models are planned."""

    engine: Engine
    engine_version: str | None
    gpu: Gpu
    seq: int
    asked: Asked

    def seq_for(self, longest: int | None) -> int:
        """The planned tokens of a model: those that the user names, or else at most its maximum length ``longest``."""
        return self.seq if longest is None or self.asked.seq is not None else min(self.seq, longest)

    def hopeless(self, parameters: int | None) -> bool:
        """Whether a model of so many parameters fits in no format of ``--weights auto``, even with a part of it on the host."""
        gpu, gpus = self.gpu, self.asked.gpus or 1
        if parameters is None or gpu.memory_marketing_gb is None or not is_auto(self.asked.weights):
            return False
        times = _WITH_HOST if self.engine.splits_layers and not gpu.shares_host_memory else 1
        return parameters * _LEAST_BITS > 8 * times * gpus * gpu.memory_marketing_gb * GIB

    def request(self, model: ModelSpec, weights: str | None) -> Request:
        """The request for this model with its weights in this format."""
        parallel = sizes_for(self.engine, model, self.gpu, self.asked.gpus, Parallel())
        return self.request_for(self.seq_for(model.max_position_embeddings), parallel, weights)

    def request_for(self, seq: int, parallel: Parallel, weights: str | None) -> Request:
        """The request for ``seq`` tokens with these parallel sizes and this format of weights."""
        asked = self.asked
        return Request.of(
            seq=seq,
            batch=asked.batch,
            dtype=asked.dtype,
            engine_version=self.engine_version,
            parallel=parallel,
            hardware=Hardware(gpu=self.gpu, memory_utilization=asked.memory_utilization, margin=asked.margin),
            weights=weights,
            options=dict(asked.engine_options),
        )

    def best(self, model: ModelSpec, *, stored: bool = False) -> Fitted:
        """The figures of the model in the format that the user names, or in the best format; with ``stored``, in the format of its file.

        Where nothing fits as a whole, the engine may leave a part in the memory of the host. Raises the error of the engine if it does
        not run the model, and :class:`UnsupportedError` where its memory is not known.
        """
        named = None if stored else self.asked.weights
        if is_auto(named):
            from hwcalc.planner.auto_weights import largest_that_fits

            whole = largest_that_fits(self.engine, model, self.request(model, None), node_of(self.gpu))
            named = whole.setup.weights
        else:
            whole = laid_out(self.engine.open(model, self.request(model, named)), node_of(self.gpu)).entire()
        fitted = _judged(whole)
        return fitted if fitted.verdict is Verdict.FITS or not self.engine.splits_layers else self.apart(model, named)

    def apart(self, model: ModelSpec, weights: str | None) -> Fitted:
        """The figures of the model in this format, with its layers on GPU and host as the engine places them by itself."""
        return _judged(self.engine.open(model, self.request(model, weights)))


def _judged(opened: Occupancy) -> Fitted:
    """The figures of an occupancy. Raises :class:`UnsupportedError` if its memory is not known."""
    budget = opened.budget
    if budget is None:
        raise UnsupportedError(f"what {opened.model.id} needs beside its cache is not known.", hint="")
    placement = opened.placement()
    return Fitted(
        opened=opened,
        verdict=solve.verdict_of(opened),
        weights_bytes=sum(part.expected for part in budget.parts if part.section is Section.WEIGHTS and part.name == "weights"),
        needed_bytes=budget.requested_bytes - budget.expected + opened.needed_bytes,
        usable_bytes=budget.requested_bytes,
        gpu_layers=None if placement is None else placement.gpu_layers,
        all_layers=None if placement is None else placement.all_layers,
        host_bytes=None if placement is None else placement.host.weights_bytes + placement.host.cache_bytes,
        host_experts=None if placement is None else len(placement.experts_on_host),
    )


class Fitted(Record):
    """A model in its best format. Bytes are those of the fullest GPU."""

    opened: Occupancy
    verdict: Verdict
    weights_bytes: int
    needed_bytes: int
    usable_bytes: int
    gpu_layers: int | None = None
    all_layers: int | None = None
    host_bytes: int | None = None
    host_experts: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it fits by the expected value."""
        return self.verdict.fits

    @property
    def whole(self) -> bool:
        """Whether all of it lies on the GPU."""
        return self.gpu_layers == self.all_layers and not self.host_experts

    @property
    def longest(self) -> int:
        """The most tokens that each sequence can have for certain."""
        return solve.longest(self.opened, "low").value

    @property
    def expected_longest(self) -> int:
        """The most tokens that each sequence can have by the expected value."""
        return solve.longest(self.opened).value

    @property
    def speed(self) -> SpeedInfo | None:
        """The bound on speed."""
        from hwcalc.planner.speed import bound_of

        return bound_of(self.opened)


def hosting(asked: Asked, gpu: Gpu, seq: int) -> Hosting:
    """The engine and the hardware that the options name; ``seq`` is the length where the options name none.

    Raises :class:`~hwcalc.errors.UsageError` for unknown names.
    """
    engine, version = find_engine(asked.engine)
    engine.check_options(asked.engine_options)
    if gpu.is_host:
        engine.check_host(gpu, asked.engine_options, asked.gpus or 1)
    return Hosting(engine=engine, engine_version=engine.version(version) or None, gpu=gpu, seq=asked.seq or seq, asked=asked)
