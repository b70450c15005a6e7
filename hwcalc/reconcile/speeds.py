"""What a benchmark measured beside what was expected: :func:`reconcile_bench`, which also keeps it for later plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, log
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.engines import find_engine
from hwcalc.errors import LogError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, Note
from hwcalc.planner.asked import take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.measured_speed import NO_CALIBRATION, layers_word, scaled
from hwcalc.planner.options import ReconcileOptions, takes
from hwcalc.planner.within_result import TimeInfo
from hwcalc.reconcile.bench import DECODE, PROMPT, SERVING, BenchRun, read_bench
from hwcalc.reconcile.core import log_name

if TYPE_CHECKING:
    from typing import Unpack

    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.step_time import StepTimes

_MOST_TIMES: Final = 16.0
"""A measurement further from what is expected is of something else."""
_HALVINGS: Final = 24
_ROUNDS: Final = 3
_FEW: Final = 1.5
"""With no more requests at once nobody waits, and the first token tells how long a prompt takes."""


class SpeedRow(Record):
    """A figure that was measured, beside its bound, its expected value and the range of that; null where nothing like it was measured.

    ``times`` is the measured time in times of the expected one: above 1 is slower. ``within`` says whether it lies in the range, and
    ``beats_bound`` whether it is faster than anything can be: then what was planned is not what ran.
    """

    run: str
    figure: str
    unit: str
    measured: float
    bound: float
    expected: float | None
    low: float | None
    high: float | None
    times: float | None
    within: bool | None
    beats_bound: bool


class SavedSpeed(Record):
    """Where a measurement was kept, and how many times the expected time decoding and prompts took."""

    path: str
    decode_times: float
    prompt_times: float


class BenchReconciliation(Answer, Record):
    """A benchmark beside a plan of what it ran. ``within`` says whether every figure lies in its range; null is not known."""

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    gpu: str
    gpus: int
    tool: str
    file: str
    within: bool | None
    rows: tuple[SpeedRow, ...]
    decode_times: float | None
    prompt_times: float | None
    saved: SavedSpeed | None
    source: str
    notes: tuple[Note, ...]

    def headline(self) -> str:
        inside = sum(row.within is True for row in self.rows)
        return f"{self.model} on {self.gpus} x {self.gpu}, {self.tool}: {inside:,} of {len(self.rows):,} figures as expected"

    def records(self) -> list[dict[str, Any]]:
        return [{name: getattr(row, name) for name in SpeedRow.__struct_fields__} for row in self.rows]

    __repr__ = Answer.__repr__


@takes(ReconcileOptions)
def reconcile_bench(
    model: ModelLike | None,
    bench: Any,
    *,
    engine: str | None = None,
    calibrate: bool = False,
    **options: Unpack[ReconcileOptions],
) -> BenchReconciliation:
    """Compare the result of a benchmark with the expected speed of what it ran.

    ``bench`` is a path, an open file or text: a result of ``vllm bench serve``, ``sglang.bench_serving``, ``llama-bench``, ``genai-perf`` or ``aiperf``. Without
    ``model`` it is the result's own. Lengths and requests at once are those of the result, and ``options`` say on what it ran: ``gpu``,
    ``tp``, ``weights``. With ``calibrate``, how much slower or faster it was is kept for later plans of this engine, GPU and kind of model.

    Raises :class:`~hwcalc.errors.LogError` if the result cannot be read, and whatever :func:`~hwcalc.library.plan.plan` raises.
    """
    runs = read_bench(bench)
    first = runs[0]
    _, asked = take_options("reconcile", {name: value for name, value in options.items() if value is not None})
    named = engine or first.engine
    if named is None:
        raise UsageError(f"{first.tool} does not say which engine it measured.", hint="Name it: --engine vllm")
    if model is None and first.model is None:
        raise UsageError(f"{first.tool} does not name its model.", hint="Name it: kvplan reconcile MODEL --bench FILE")
    spec, keywords = load_request(model if model is not None else first.model, asked)
    if (found := _gpu(first)) is not None and not {"gpu", "instance"} & keywords.keys():
        keywords["gpu"] = found
    if not {"gpu", "instance"} & keywords.keys():
        raise UsageError("the result does not say on which accelerator it ran.", hint="Name it: --gpu h100")
    if first.weights is not None and spec.weights_format is None and "weights" not in keywords:
        keywords["weights"] = first.weights
    own = keywords.get("engine_options", {})
    known = find_engine(named)[0].options
    stated = {name: value for name, value in first.options.items() if name in known}
    keywords |= {"engine": named, "engine_options": {**stated, **own}, NO_CALIBRATION: True}
    opened = [_opened(spec, keywords, run) for run in runs]
    times = [_times(one) for one in opened]
    rows = tuple(row for run, one, step in zip(runs, opened, times, strict=True) for row in _rows(run, one, step))
    factors = _factors(runs, opened, times)
    setup, notes = opened[0].setup, list(opened[0].notes)
    gpu = setup.hardware.gpu
    assert gpu is not None
    judged = [row.within for row in rows if row.within is not None]
    if any(row.beats_bound for row in rows):
        message = (
            "A figure is faster than the bound of what was planned: another format, more GPUs, cached prompts or speculation ran."
        )
        notes.append(Note(code="beats-bound", message=message))
    chosen = times[0].speed_class
    return BenchReconciliation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=opened[0].engine.name,
        engine_version=opened[0].deployment.version or None,
        gpu=gpu.id,
        gpus=setup.gpus,
        tool=first.tool,
        file=log_name(bench) if not isinstance(bench, str) else "text",
        within=all(judged) if judged else None,
        rows=rows,
        decode_times=None if factors is None else factors[0],
        prompt_times=None if factors is None else factors[1],
        saved=_saved(opened[0], first, factors, bench) if calibrate else None,
        source="bound alone: nothing like it was measured" if chosen is None else chosen.name,
        notes=tuple(dict.fromkeys(notes)),
    )


def _gpu(run: BenchRun) -> str | None:
    """The id of the accelerator that a result names."""
    if run.gpu is None:
        return None
    from hwcalc.hardware.local import FoundGpu, match

    gpu = match(FoundGpu(name=run.gpu.partition(",")[0], vendor="", through="the result", memory_mib=None, by_torch=False), [])
    return None if gpu is None else gpu.id


def _opened(spec: Any, keywords: Mapping[str, Any], run: BenchRun) -> Occupancy:
    length = run.depth + run.prompt + run.output
    named = {"seq": max(length, keywords.get("seq") or 0), "batch": max(1, ceil(run.at_once))}
    return open_request(spec, started=True, **{**keywords, **named})


def _times(opened: Occupancy) -> StepTimes:
    from hwcalc.planner.step_time import step_times

    times = step_times(opened)
    if times is None:
        raise UsageError(
            f"the weights of {opened.model.id} are not counted: no speed is known.", hint="Give their format: --weights bf16"
        )
    return times


_SERVED: Final = ("ttft_s", "itl_s", "e2e_s")


def _expected(run: BenchRun, opened: Occupancy, times: StepTimes) -> dict[str, TimeInfo]:
    """The expected figures of a run, by name."""
    from hwcalc.planner.forecast import forecast, quantity_of

    if run.kind == SERVING:
        from hwcalc.planner.solve import most

        served = min(run.at_once, max(1, most(opened).value))
        found = forecast(times, run.prompt, run.output, served)
        quantities = {name: TimeInfo.of(getattr(found, name)) for name in _SERVED}
        return quantities | {"output_tokens_per_s": TimeInfo.of(found.cycle_s.per_s(served * run.output))}
    if run.kind == PROMPT:
        step, tokens, name = times.prompt(run.prompt, run.depth), run.prompt, "prefill_tokens_per_s"
    else:
        step = times.step(decoding=1, context=run.depth + max(1, run.output // 2))
        tokens, name = 1, "decode_tokens_per_s"
    return {name: TimeInfo.of(quantity_of(step).per_s(tokens))}


def _rows(run: BenchRun, opened: Occupancy, times: StepTimes) -> list[SpeedRow]:
    expected = _expected(run, opened, times)
    rows = []
    for name, value in run.measured.items():
        one = expected[name]
        is_rate = name.endswith("tokens_per_s")
        known = one.expected is not None and one.low is not None and one.high is not None
        ratio = None
        if one.expected is not None:
            ratio = one.expected / value if is_rate else value / one.expected
        rows.append(
            SpeedRow(
                run=run.label,
                figure=name,
                unit="tokens/s" if is_rate else "s",
                measured=value,
                bound=one.bound,
                expected=one.expected,
                low=one.low,
                high=one.high,
                times=ratio,
                within=one.low <= value <= one.high if known else None,  # type: ignore[operator]
                beats_bound=value > one.bound if is_rate else value < one.bound,
            )
        )
    return rows


def _factors(runs: Sequence[BenchRun], opened: Sequence[Occupancy], times: Sequence[StepTimes]) -> tuple[float, float] | None:
    """The factors by which decoding and prompts took longer than expected.

    Where no prompt was measured alone, both are the same number.
    """
    chosen = times[0].speed_class
    if chosen is None:
        return None
    decode_runs, prompt_runs = [], []
    for place, run in enumerate(runs):
        alone = run.at_once <= _FEW
        if run.kind == PROMPT or (run.kind == SERVING and alone and "ttft_s" in run.measured):
            prompt_runs.append((place, "prefill_tokens_per_s" if run.kind == PROMPT else "ttft_s"))
        figure = "decode_tokens_per_s" if run.kind == DECODE else "itl_s" if "itl_s" in run.measured else "output_tokens_per_s"
        if run.kind != PROMPT and figure in run.measured:
            decode_runs.append((place, figure))

    def solved(kept: Sequence[tuple[int, str]], with_factor: Callable[[float], tuple[float, float]]) -> float | None:
        """The median of the factors with which each figure is as measured."""
        found = []
        for place, figure in kept:
            run = runs[place]

            def late(factor: float, run: BenchRun = run, place: int = place, figure: str = figure) -> bool:
                """True if what is expected with this factor is slower than measured."""
                changed = replace(times[place], speed_class=scaled(chosen, *with_factor(factor)))
                value = _expected(run, opened[place], changed)[figure].expected
                assert value is not None
                return value < run.measured[figure] if figure.endswith("per_s") else value > run.measured[figure]

            low, high = -log(_MOST_TIMES), log(_MOST_TIMES)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (low, middle) if late(exp(middle)) else (middle, high)
            found.append(exp(low))
        return median(found) if found else None

    if not prompt_runs:
        both = solved(decode_runs, lambda factor: (factor, factor))
        return None if both is None else (both, both)
    decode = prompt = 1.0
    for _ in range(_ROUNDS):
        prompt = solved(prompt_runs, lambda factor, decode=decode: (decode, factor)) or prompt  # type: ignore[misc]
        decode = solved(decode_runs, lambda factor, prompt=prompt: (factor, prompt)) or decode  # type: ignore[misc]
    return decode, prompt


def _saved(opened: Occupancy, run: BenchRun, factors: tuple[float, float] | None, bench: Any) -> SavedSpeed:
    """Keep the factors. Raises :class:`~hwcalc.errors.LogError` if there are none, or if they are not plausible."""
    from datetime import UTC, datetime
    from pathlib import Path

    from hwcalc.hardware.profiles import keeping
    from hwcalc.profiles.calibration import Measured, Measurement, save_reading, speed_kind
    from hwcalc.text import brief

    gpu = opened.setup.hardware.gpu
    assert gpu is not None
    if factors is None:
        raise LogError(
            "nothing to keep: no speed is expected of this engine on this accelerator.", hint="Compare it without --calibrate."
        )
    if any(not 1.05 / _MOST_TIMES < factor < _MOST_TIMES / 1.05 for factor in factors):
        raise LogError(
            f"it ran {factors[0]:.3g} times as long as expected, and no machine is so far off: it is not kept.",
            hint="Say what it ran on: --gpu, --tp, --weights.",
        )
    decode, prompt = (round(factor, 4) for factor in factors)
    source = f"{run.tool}, {opened.model.id}, {brief(Path(log_name(bench)).name, 80) if not isinstance(bench, str) else 'text'}"
    reading = Measurement(
        values={"decode_times": decode, "prompt_times": prompt},
        measured=Measured(device=gpu.name, date=datetime.now(tz=UTC).date().isoformat(), source=source),
        conditions={"layers": layers_word(opened.model)},
    )
    with keeping(LogError):
        path = save_reading(gpu.id, speed_kind(opened.engine.name), reading)
    return SavedSpeed(path=str(path), decode_times=decode, prompt_times=prompt)
