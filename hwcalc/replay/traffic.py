"""The figures of a replay, without its rows: quantiles, goodput, throughput, and all of it together (:class:`Traffic`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from hwcalc.documents import Answer
from hwcalc.formulas.record import Record
from hwcalc.model import Note

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hwcalc.library.parts import Part

QUANTILES: Final = (50, 90, 95, 99)
"""The quantiles that are told, in percent."""


class Spread(Record):
    """The spread of values: their mean, quantiles, and the largest."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: NDArray[Any], weights: NDArray[Any] | None = None) -> Spread | None:
        """The spread of values, each of which counts as often as its weight says; ``None`` if there are none.

        A quantile is the least value that so many do not exceed.
        """
        from numpy import argsort, cumsum, ones, searchsorted

        if not len(values):
            return None
        counts = ones(len(values)) if weights is None else weights
        total = float(counts.sum())
        if not total:
            return None
        order = argsort(values, kind="stable")
        ordered, upto = values[order], cumsum(counts[order])
        places = [min(int(searchsorted(upto, total * percent / 100 * (1 - 1e-12))), len(ordered) - 1) for percent in QUANTILES]
        mean = float((values * counts).sum()) / total
        return cls(
            mean=mean,
            **{f"p{percent}": float(ordered[place]) for percent, place in zip(QUANTILES, places, strict=True)},
            max=float(ordered[-1]),
        )


class Limits(Record):
    """The longest that users wait, in the clock's unit; ``None`` is as long as it takes."""

    ttft: float | None = None
    """Until the first token."""
    itl: float | None = None
    """From one token to the next, on average over a request."""
    e2e: float | None = None
    """Until the last token."""

    @property
    def any(self) -> bool:
        """True if there is a limit."""
        return (self.ttft, self.itl, self.e2e) != (None, None, None)


class Goodput(Record):
    """Requests that were served within all limits: how many, their share of all, and per second."""

    limits: Limits
    requests: int
    share: float
    requests_per_s: float | None


class Throughput(Record):
    """Of the time from the first arrival to the last token."""

    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float


class Prefill(Record):
    """The servers for prompts, where others generate: their pools, and in ``computed`` the time from a request's arrival until its prompt is."""

    gpu: str | None
    replicas: int
    capacity: int
    settings: dict[str, Any]
    totals: dict[str, Any]
    use: Spread | None
    running: Spread | None
    waiting: Spread | None
    computed: Spread | None


class Traffic(Answer, Record):
    """The figures of a replay, without its rows. Times are seconds, or steps where steps take no time (``clock``).

    ``hit_share`` is the share of looked-up tokens that the prefix cache held; null where a trace does not say what prompts have in common.
    A server's pool holds ``capacity`` blocks or tokens (``unit``). ``use`` is the share of it that requests hold, ``running`` and ``waiting`` are requests, each over the time of the
    replay. ``queue`` is from arrival to the first scheduled token, ``ttft`` to the first token, ``tpot`` the mean time of a further token
    of a request, ``itl`` the time between two tokens, over all tokens, and ``e2e`` is until the last token. Where prompts have servers of
    their own (``prefill``), pool, settings and totals are those of the servers for tokens, and ``hit_share`` is of the prompts.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    gpu: str | None
    workload: str
    requests: int
    finished: int
    replicas: int
    clock: str
    unit: str
    capacity: int
    settings: dict[str, Any]
    totals: dict[str, Any]
    use: Spread | None
    running: Spread | None
    waiting: Spread | None
    hit_share: float | None
    queue: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    throughput: Throughput | None
    goodput: Goodput | None
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]
    prefill: Prefill | None = None

    def headline(self) -> str:
        """The answer in one line."""
        most = "" if self.use is None else f", {100 * self.use.max:.0f} % of {self.capacity:,} {self.unit} at the peak"
        return f"{self.model}: {self.finished:,} of {self.requests:,} requests in {self.totals['model_steps']:,} steps{most}"

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        row: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("model", "engine", "gpu", "workload", "requests", "finished", "replicas", "clock", "unit", "capacity")
        }
        row |= {name: value for name, value in self.totals.items() if not isinstance(value, dict)}
        for name in ("use", "running", "waiting", "queue", "ttft", "tpot", "itl", "e2e"):
            spread: Spread | None = getattr(self, name)
            row |= {f"{name}_{of}": None if spread is None else getattr(spread, of) for of in ("mean", "p50", "p95", "p99")}
        row["hit_share"] = self.hit_share
        row["output_tokens_per_s"] = None if self.throughput is None else self.throughput.output_tokens_per_s
        row["goodput_share"] = None if self.goodput is None else self.goodput.share
        return [row]

    __repr__ = Answer.__repr__


_DOCUMENT: Final = "kvplan_traffic"
"""The key of the metadata that has a whole :class:`Traffic`."""


def write_traffic(file: IO[bytes], traffic: Traffic, stamp: Mapping[str, str]) -> None:
    """Write the row of a replay as a file of a dataset: model and engine are in its path, and the whole of it is in the metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hwcalc.library.parts import SETTING

    row = {"setting": stamp[SETTING], **traffic.records()[0]}
    del row["model"], row["engine"]
    kinds = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
    # What is unknown in one replay is a number in others.
    kind_of = {name: pa.string() if name == "gpu" else kinds.get(type(value), pa.float64()) for name, value in row.items()}
    metadata = {**stamp, _DOCUMENT: msgspec.json.encode(traffic)}
    pq.write_table(pa.Table.from_pylist([row], pa.schema(kind_of.items(), metadata)), file, compression="zstd")


def read_traffic(path: Path, _: Part) -> Traffic:
    """The traffic of the replay that has this file."""
    from hwcalc.library.parts import metadata_of

    return msgspec.json.decode(metadata_of(path)[_DOCUMENT.encode()], type=Traffic)


class Timeline(Record):
    """A replay over time, in parts of equal length that end at ``times`` (seconds, or steps).

    ``use`` is the mean share of the pool that is in use in each, ``use_max`` the largest; ``running`` and ``waiting`` are requests on
    average, of all servers together.
    """

    title: str
    caption: str
    clock: str
    times: tuple[float, ...]
    use: tuple[float, ...]
    use_max: tuple[float, ...]
    running: tuple[float, ...]
    waiting: tuple[float, ...]

    @property
    def unit(self) -> tuple[str, float]:
        """The unit in which people read the times, and how many of the clock's units it is."""
        if self.clock == "steps":
            return "steps", 1.0
        longest = self.times[-1]
        return ("hours", 3600.0) if longest > 3 * 3600 else ("minutes", 60.0) if longest > 300 else ("seconds", 1.0)
