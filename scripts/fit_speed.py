"""Fit the step model's parameters to measured speeds, and print how far they are off, class by class.

    python scripts/fit_speed.py ROWS.jsonl [--write]

``ROWS.jsonl`` are rows as ``scripts/speed_rows.py`` reads them; they are not part of this project. ``--write`` puts parameters, ranges, errors
and numbers of rows into ``profiles/speed/*.yaml``, whose other keys say what belongs to a class (then: ``python scripts/build_profiles.py``).

The time of a step is a sum of terms, each a count divided by the share of a rate (``hwcalc/planner/step_time.py``). Here each row becomes its
counts, by evaluating the forecast with parameters that leave one term of the sum. Then the parameters are found that make the error smallest:
the mean of |log(expected / measured)|, rows of a source together weighing as the root of their number, and a small weight that holds
parameters which the rows do not determine where those of the whole family are. The share of a format weighs the more, the fewer rows spend a
tenth of their time on it, and is that of the family where none does; and servers reach no larger share with fewer bits, whose peak is
higher. It is a coordinate descent from fixed starts: the same rows give the same parameters.

Errors are printed three times: of parameters fitted to all rows of the class, and of each row by parameters that were fitted without a third of
the machines and models, its own among them, and without its source. Ranges are made from all three.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import yaml
from msgspec import convert
from msgspec.structs import replace

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.errors import KvplanError  # noqa: E402
from hwcalc.planner.forecast import forecast  # noqa: E402
from hwcalc.planner.step_time import StepTimes  # noqa: E402
from hwcalc.profiles.catalog import built_in  # noqa: E402
from hwcalc.profiles.gpus import find_gpu  # noqa: E402
from hwcalc.profiles.speed import FEW, FOLDER, SpeedClass, SpeedRange, StepParameters, narrowest_first, of_classes, speed_classes  # noqa: E402
from scripts.speed_rows import Row, is_plain, is_tuned, kind_of, opened_row, rows_of  # noqa: E402

Array = Any
MULTIPLIED: Final = ("floats", "eight_bit", "four_bit", "weight_only", "gguf")
PACKED: Final = ("blocks", "superblocks")
COUNTS: Final = (
    "weights", "experts", "cache", *PACKED, *(f"dense {one}" for one in MULTIPLIED), *(f"expert {one}" for one in MULTIPLIED),
    "attention", "step", "sequence", "layer", "exchange", "peer", "link", "stage",
)  # fmt: skip
"""What is counted of a row: seconds at the full rate, or how often something happens."""
BY_HAND: Final = (
    "bf16_matrices", "card_layers", "expert_power", "expert_rows", "integer_matrices", "integer_products", "scale_instructions", "superblock_share",
    "vector_attention",
)  # fmt: skip
"""Parameters that are not fitted: a file has them where they are not the usual ones."""
STARTS: Final[Mapping[str, float]] = {
    "bandwidth_share": 0.8, "expert_bandwidth": 0.7, "cache_times": 1.2, "blocks": 0.4, "superblocks": 0.1,
    "floats": 0.5, "eight_bit": 0.45, "four_bit": 0.35, "weight_only": 0.35, "gguf": 0.2, "expert_compute": 0.5, "attention": 0.25,
    "step": 100.0, "sequence": 2.0, "layer": 30.0, "expert_layer": 60.0, "exchange": 20.0, "peer": 5.0, "link": 0.5, "stage": 40.0,
    "together": 1.0,
}  # fmt: skip
"""Where the search begins: shares, and microseconds."""
NAMES: Final = tuple(STARTS)
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "bandwidth_share": (0.2, 0.97), "expert_bandwidth": (0.2, 1.0), "cache_times": (1.0, 4.0),
    **dict.fromkeys(MULTIPLIED, (0.005, 0.95)), "expert_compute": (0.05, 1.0), "attention": (0.005, 0.95), "link": (0.05, 0.95),
    **dict.fromkeys(PACKED, (0.005, 10.0)), "together": (0.05, 1.0),
}  # fmt: skip
FREE: Final = (0.1, 20_000.0)
OTHERWISE: Final[Mapping[str, float]] = {"bandwidth_share": 1.15, "layer": 2.0, "expert_layer": 2.0}
"""Where the search begins a second time: so many times the first. The better end of both counts."""
HELD: Final = 0.004
"""How much a parameter weighs that leaves that of the family by a factor of e."""
TELLS: Final = 0.1
"""Rows tell of a format's share if they spend at least this part of their time on it."""
ORDERED: Final = ("floats", "eight_bit", "four_bit")
"""Formats by their bits. A kernel that reaches a share of the peak of one reaches no larger share of the higher peak of the next."""
WIDEST: Final = {"local": 1.8, "server": 2.2}
WIDEST_PROMPT: Final = 4.0
"""How wide a range may be. Prompts differ more, as builds and backends have other kernels: a narrow range would not hold."""
COVERED: Final = 0.88
"""The share of rows that a range is to hold, of those that it was made from, and of the same rows predicted without their part."""
COVERED_APART: Final = 0.8
"""The share that it is to hold of the same rows, predicted without their source."""
NARROWEST: Final = {"local": 1.5, "server": 1.8}
"""How wide a range is at least: rows of other machines and models lie further off than those that it was made from."""
SLOWER: Final = {"local": 0.85, "server": 0.8}
"""How far a range goes down at least, though all rows of a class with few models are faster."""
PARTS: Final = 3
"""Into so many parts machines and models are dealt; each is predicted by the others."""
BESIDE: Final = (0.99, 1.01)
"""How far beside the rows the ends of a range lie, so that rounding leaves none out."""
TABLE_BEGINS: Final = "<!-- classes -->"
TABLE_ENDS: Final = "<!-- end of classes -->"
"""Where the table stands in docs/speed.md."""
FEW_TIMES: Final = 1.5
"""How far the ends lie from the expected value at least, where a class has few rows."""


class Rows:
    """Rows with their counts: ``counts[row, count]``, and what was measured, in seconds.

    ``stretches`` say how many times as long a prompt takes if pipeline stages compute it one after another, and ``most`` what share of the
    bandwidth the accelerator was seen to reach.
    """

    def __init__(
        self, rows: Sequence[Row], counts: Array, seconds: Array, bounds: Array, experts: Array, stretches: Array, most: Array
    ) -> None:
        self.rows, self.counts, self.seconds, self.bounds, self.experts = list(rows), counts, seconds, bounds, experts
        self.stretches, self.most = stretches, most
        self.sources = np.array([row.source for row in rows])
        self.kinds = np.array([kind_of(row) for row in rows])
        numbers = Counter(self.sources.tolist())
        weights = np.array([numbers[source] ** -0.5 for source in self.sources])
        self.weights = weights / weights.sum() if len(rows) else weights

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, mask: Array) -> Rows:
        """Some of the rows."""
        kept = [row for row, keep in zip(self.rows, mask, strict=True) if keep]
        arrays = (self.counts, self.seconds, self.bounds, self.experts, self.stretches, self.most)
        return Rows(kept, *(array[mask] for array in arrays))


def counting(by_hand: Sequence[float]) -> StepParameters:
    """Parameters with which a forecast gives the counts: place by place one term of the sum is left at its full rate.

    ``by_hand`` are those of :data:`BY_HAND`.
    """
    index = {name: number for number, name in enumerate(COUNTS)}

    def only(name: str, rate: float = 1.0, others: float = 1e30) -> Array:
        values = np.full(len(COUNTS), others)
        values[index[name]] = rate
        return values

    def times(name: str) -> Array:
        values = np.zeros(len(COUNTS))
        values[index[name]] = 1.0
        return values

    cache_times, dense = np.zeros(len(COUNTS)), np.full(len(COUNTS), 1e30)
    cache_times[index["cache"]] = 1e30
    shares = {}
    for one in MULTIPLIED:
        shares[one] = only(f"dense {one}", others=1e60)
        shares[one][index[f"expert {one}"]] = 1e30
    for one in MULTIPLIED:
        dense[index[f"expert {one}"]] = 1e-30
    values: dict[str, Any] = {
        "bandwidth_share": only("weights"),
        "expert_bandwidth": only("experts", 1e-30),
        "cache_times": cache_times,
        "compute_shares": shares,
        "unpack_shares": {one: only(one) for one in PACKED},
        "expert_compute": dense,
        "attention_share": only("attention"),
        "step_us": times("step"),
        "sequence_us": times("sequence"),
        "layer_us": times("layer"),
        "exchange_us": times("exchange"),
        "peer_us": times("peer"),
        "link_share": only("link"),
        "stage_us": times("stage"),
    }
    values.update(zip(BY_HAND, by_hand, strict=True))
    return StepParameters(**values)


def counted(rows: Sequence[Row]) -> tuple[Rows, list[str]]:
    """The counts of rows, and why others have none."""
    usual = StepParameters(bandwidth_share=1.0, compute_shares={})
    by_hand = attrgetter(*BY_HAND)
    classes = {
        numbers: _class_of(counting(numbers))
        for numbers in {by_hand(one.parameters) for one in (*speed_classes(), _class_of(usual))}
    }
    kept, counts, seconds, bounds, experts, stretches, most, refused = [], [], [], [], [], [], [], []
    for row in rows:
        try:
            found, _, times = opened_row(row)
        except KvplanError as error:
            refused.append(f"{row.engine}, {row.model}: {error}")
            continue
        owner = class_of(speed_classes(), found)
        numbers = by_hand(usual if owner is None else owner.parameters)
        # Counts are at the full rate, and what was seen limits their shares.
        free = tuple(replace(place, seen=None) for place in times.places)
        count, bound = seconds_of(found, replace(times, places=free, speed_class=classes[numbers]))
        kept.append(found)
        counts.append(count)
        bounds.append(bound)
        experts.append(times.has_experts)
        seconds.append(measured_seconds(found))
        stretches.append(stretch_of(found, times))
        gpu = times.places[0]
        most.append(1.0 if gpu.seen is None or gpu.bandwidth is None else gpu.seen / gpu.bandwidth)
    arrays = map(np.array, (counts, seconds, bounds, experts, stretches, most))
    return Rows(kept, *arrays), refused


def class_of(classes: Iterable[SpeedClass], row: Row) -> SpeedClass | None:
    """The class that a row belongs to."""
    return of_classes(classes, row.engine, find_gpu(row.gpu), row.backend, row.build)


def stretch_of(row: Row, times: StepTimes) -> float:
    """The factor by which a prompt takes longer if its chunks pass one stage after another, and not all stages at once."""
    passes = -(-(row.prompt - row.cached_prefix) // times.chunk)
    return passes * times.pp / (passes + times.pp - 1) if kind_of(row) == "prompt" else 1.0


def _class_of(parameters: StepParameters) -> SpeedClass:
    spread = {"decode": SpeedRange(low=1.0, high=1.0)}
    return SpeedClass(
        schema_version=1,
        id="",
        name="",
        recorded="",
        source="",
        engines=(),
        vendors=(),
        family="local",
        parameters=parameters,
        ranges=spread,
        rows={},
        sources=(),
    )


def seconds_of(row: Row, times: StepTimes) -> tuple[Any, float]:
    """The expected time and the bound of what a row measures."""
    with np.errstate(all="ignore"):
        found = forecast(times, row.prompt, row.output, row.concurrency, row.cached_prefix)
    quantity = {
        "decode_tokens_per_s": found.step_s,
        "itl_s": found.itl_s,
        "ttft_s": found.ttft_s,
        "prefill_tokens_per_s": found.prefill_s,
        "output_tokens_per_s": found.cycle_s,
    }[row.quantity]
    return quantity.expected, quantity.bound


def measured_seconds(row: Row) -> float:
    """The measured time of the same: of a step, of a prompt, or of as many requests as are served at once."""
    tokens = {
        "decode_tokens_per_s": row.concurrency,
        "prefill_tokens_per_s": row.prompt - row.cached_prefix,
        "output_tokens_per_s": row.concurrency * row.output,
    }
    return tokens[row.quantity] / row.value if row.quantity in tokens else row.value


def expected(rows: Rows, values: Mapping[str, float]) -> Array:
    """The expected times, never below the bound."""
    count = dict(zip(COUNTS, rows.counts.T, strict=True))
    share = np.minimum(values["bandwidth_share"], rows.most)
    reading = (count["weights"] + count["experts"] / values["expert_bandwidth"]) / share
    total = np.hypot(reading, sum(count[one] / values[one] for one in PACKED)) + values["cache_times"] * count["cache"] / share
    for one in ("attention", "link"):
        total = total + count[one] / values[one]
    for one in MULTIPLIED:
        total = total + (count[f"dense {one}"] + count[f"expert {one}"] / values["expert_compute"]) / values[one]
    layers = np.where(rows.experts, values["expert_layer"], values["layer"])
    total = total + count["layer"] * layers
    for one in ("step", "sequence", "exchange", "peer", "stage"):
        total = total + count[one] * values[one]
    together = values["together"]
    return np.maximum(total * (together + (1 - together) * rows.stretches), rows.bounds)


def telling(rows: Rows, name: str) -> int:
    """The number of rows that spend so much of their time on matrices of this format that they tell of its share."""
    count = sum(rows.counts[:, COUNTS.index(f"{kind} {name}")] for kind in ("dense", "expert"))
    return int(np.sum(count / STARTS[name] > TELLS * rows.seconds))


def in_order(values: Mapping[str, float], family: str) -> dict[str, float]:
    """The parameters of servers, with no smaller share for fewer bits, and one bandwidth for all weights: one kernel reads all experts.

    Local engines have kernels of their own for each format, and small ones for experts.
    """
    out = dict(values)
    if family.startswith("server"):
        out["expert_bandwidth"] = 1.0
        for more, fewer in reversed(list(pairwise(ORDERED))):
            out[more] = max(out[more], out[fewer])
    return out


def fitted(rows: Rows, start: Mapping[str, float], family: str) -> dict[str, float]:
    """The parameters with the smallest error."""
    if not len(rows):
        return dict(start)
    origin = np.log([start[name] for name in NAMES])
    lowest, highest = (np.log([LIMITS.get(name, FREE)[end] for name in NAMES]) for end in (0, 1))
    rows_of_format = {name: telling(rows, name) for name in MULTIPLIED}
    held = HELD * np.array([max(1.0, FEW / max(rows_of_format.get(name, FEW), 1)) for name in NAMES])
    free = [number for number, name in enumerate(NAMES) if rows_of_format.get(name, FEW)]

    def values_at(place: Array) -> dict[str, float]:
        return in_order(dict(zip(NAMES, np.exp(place).tolist(), strict=True)), family)

    def cost(place: Array) -> float:
        errors = np.log(expected(rows, values_at(place)) / rows.seconds)
        return float((rows.weights * (np.sqrt(errors**2 + 0.0025) - 0.05)).sum() + (held * (place - origin) ** 2).sum())

    def descended(place: Array) -> tuple[float, Array]:
        best, lengths = cost(place), np.full(len(NAMES), 0.3)
        for _ in range(60):
            for number in free:
                for sign in (1, -1):
                    tried = place.copy()
                    tried[number] = np.clip(tried[number] + sign * lengths[number], lowest[number], highest[number])
                    if (value := cost(tried)) < best - 1e-9:
                        place, best = tried, value
                        lengths[number] *= 1.3
                        break
                else:
                    lengths[number] *= 0.5
            if lengths[free].max() < 0.002:
                break
        return best, place

    # Reading and launches stand for each other: where one is at its best for the other, the descent may end too early.
    otherwise = origin + np.log([OTHERWISE.get(name, 1.0) for name in NAMES])
    places = [descended(np.clip(start, lowest, highest)) for start in (origin, otherwise)]
    return values_at(min(places, key=lambda one: one[0])[1])


class Fits:
    """Parameters of the classes of rows, and of the families that they are in.

    ``marks`` are what rows are left out of a fit by, to see how far off it is without them: their source, and one of three parts into
    which their machines and models are dealt.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.files = {
            path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(built_in(FOLDER)).glob("*.yaml"))
        }
        classes = narrowest_first(convert(data, SpeedClass) for data in self.files.values())
        of_rows = [class_of(classes, row) for row in rows.rows]
        self.owners = np.array([getattr(one, "id", "") for one in of_rows])
        self.families = np.array([getattr(one, "family", "") for one in of_rows])
        self.tuned = np.array([is_tuned(row) for row in rows.rows])
        parts = (crc32(f"{row.source} {row.gpu} {row.model}".encode()) % PARTS for row in rows.rows)
        self.marks = {"source": rows.sources, "part": np.array(list(parts))}
        self._kept: dict[Any, dict[str, float]] = {}

    def of_class(self, name: str) -> Array:
        """For each row of tuned servers, True if it is of the class."""
        return (self.owners == name) & self.tuned

    def fitted(self, name: str, left_out: Array) -> dict[str, float]:
        """The parameters of a class, fitted without some rows, as is what they are held to."""
        family = self.files[name]["family"]
        if (key := (family, left_out.tobytes())) not in self._kept:
            around = (self.families == family) & self.tuned & ~left_out
            self._kept[key] = fitted(self.rows.of(around), STARTS, family)
        return fitted(self.rows.of(self.of_class(name) & ~left_out), self._kept[key], family)

    def apart(self, name: str, by: str) -> Array:
        """The expected times of the rows of a class, each by parameters that were fitted without all rows of its mark."""
        mine, marks = self.of_class(name), self.marks[by]
        out = np.zeros(len(self.rows))
        for mark in np.unique(marks[mine]):
            there = mine & (marks == mark)
            out[there] = expected(self.rows.of(there), self.fitted(name, marks == mark))
        return out[mine]


def range_of(ratios: Sequence[Array], apart: Sequence[Array], widest: float, family: str) -> tuple[float, float]:
    """The range of measured / expected speed: the narrowest up to ``widest`` that holds :data:`COVERED` of all ``ratios``, or as many as it
    can, and :data:`COVERED_APART` of each of them and of those ``apart``, predicted without their part or source; where there is none, a wider one.
    """
    together = np.concatenate(ratios)
    narrowest, slower = NARROWEST[family], SLOWER[family]
    ends = np.sort(np.concatenate([together, *apart, [slower]]))
    low, high = (one.ravel() for one in np.meshgrid(ends, ends, indexing="ij"))
    some = (low <= high) & (low <= slower)
    low, high = low[some], high[some]

    def held(of: Array, enough: float) -> Array:
        ordered = np.sort(of)
        inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "left")
        return np.minimum(inside / len(ordered), enough)

    honest = sum(held(one, COVERED_APART) for one in (*ratios, *apart))
    narrow = high <= low * widest * BESIDE[0] / BESIDE[1]
    allowed = narrow if honest[narrow].max() == honest.max() else honest == honest.max()
    best = np.lexsort((high / low, -held(together, COVERED) * narrow, -honest, ~allowed))[0]
    first, last = float(low[best]), float(high[best])
    if last / first < narrowest:
        more = (narrowest / (last / first)) ** 0.5
        first, last = first / more, last * more
    return min(round(first * BESIDE[0], 2), 1.0), max(round(last * BESIDE[1], 2), 1.0)


def errors_of(rows: Rows, times: Array) -> dict[str, Any]:
    """Median error and bias of speeds, and what 80 % of the rows lie between."""
    ratios = rows.seconds / times
    return {
        "rows": len(rows),
        "sources": len(set(rows.sources.tolist())),
        "median": float(np.median(np.abs(ratios - 1))),
        "bias": float(np.median(ratios)),
        "low": float(np.quantile(1 / ratios, 0.1)),
        "high": float(np.quantile(1 / ratios, 0.9)),
    }


def parameters_of(values: Mapping[str, float]) -> dict[str, Any]:
    """The parameters as a file has them."""
    packed = {one: round(values[one], 3) for one in PACKED}
    found: dict[str, Any] = {
        "bandwidth_share": round(values["bandwidth_share"], 3),
        "expert_bandwidth": round(values["expert_bandwidth"], 3),
        "cache_times": round(values["cache_times"], 2),
        "compute_shares": {one: round(values[one], 3) for one in MULTIPLIED},
        "unpack_shares": packed,
        "expert_compute": round(values["expert_compute"], 3),
        "attention_share": round(values["attention"], 3),
        "step_us": round(values["step"], 1),
        "sequence_us": round(values["sequence"], 2),
        "layer_us": round(values["layer"], 1),
        "expert_layer_us": round(values["expert_layer"], 1),
        "exchange_us": round(values["exchange"], 1),
        "peer_us": round(values["peer"], 2),
        "link_share": round(values["link"], 3),
        "stage_us": round(values["stage"], 1),
        "stages_together": round(values["together"], 2),
    }
    return found


def fit_class(name: str, mine: Rows, values: Mapping[str, float], apart: Mapping[str, Array], family: str) -> dict[str, Any]:
    """The content of the file of a class, printed as well. ``apart`` are the expected times without a row's part or source."""
    times = expected(mine, values)
    out: dict[str, Any] = {"parameters": parameters_of(values), "ranges": {}, "errors": {}, "rows": {}}
    for kind in ("decode", "prompt", "serving"):
        mask = mine.kinds == kind
        if not mask.any():
            continue
        some = mine.of(mask)
        widest = WIDEST_PROMPT if kind == "prompt" else WIDEST[family]
        of_parts, of_sources = (apart[by][mask] / some.seconds for by in ("part", "source"))
        # Without its one source a class is but its family, which says nothing of its range; nor do few rows.
        several = mask.sum() >= FEW and len(set(some.sources.tolist())) > 1
        ratios = [times[mask] / some.seconds, *([of_parts] if mask.sum() >= FEW else [])]
        # Of each split by itself: rows of one number of requests, and saturated ones, err by unlike terms.
        unseen = [one[those] for _, those in splits(some) for one in ([of_parts, of_sources] if several else [])]
        low, high = range_of(ratios, unseen, widest, family)
        if mask.sum() < FEW:
            low, high = min(low, round(1 / FEW_TIMES, 2)), max(high, FEW_TIMES)
        out["ranges"][kind] = {"low": low, "high": high}
        out["rows"][kind] = int(mask.sum())
        for title, those in splits(some):
            errors = [errors_of(some.of(those), one[mask][those]) for one in (times, apart["part"], apart["source"])]
            print(
                f"{name:26} {title:14} {errors[0]['rows']:5} {errors[0]['sources']:7} | "
                + " | ".join(f"{one['median']:6.1%} {one['bias']:.2f} {one['low']:.2f}..{one['high']:.2f}" for one in errors)
                + f" | {low:.2f}..{high:.2f} ({high / low:.2f}) holds "
                + ", ".join(f"{held_by(one[those], low, high):.0%}" for one in (of_parts, of_sources))
            )
            if title == kind:
                out["errors"][kind] = {
                    f"{prefix}{key}": round(one[key], 3)
                    for prefix, one in zip(("", "part_", "apart_"), errors, strict=True)
                    for key in ("median", "bias")
                } | {"part_held": held_by(of_parts, low, high), "apart_held": held_by(of_sources, low, high)}
    if out["rows"].get("decode", FEW) < FEW <= out["rows"].get("serving", 0):
        # Steps under load are steps too.
        del out["ranges"]["decode"]
    if "prompt" not in out["ranges"]:
        out["ranges"]["prompt"] = {"low": 0.6, "high": 1.6}
    out["sources"] = sorted(set(mine.sources.tolist()))
    return out


def held_by(ratios: Array, low: float, high: float) -> float:
    """The share of rows that lie in the range."""
    return round(float(np.mean((ratios >= low) & (ratios <= high))), 2)


def splits(rows: Rows) -> list[tuple[str, Array]]:
    """All rows of a kind, and those of requests in numbers that are not stated by themselves."""
    kind = str(rows.kinds[0])
    saturated = np.array([row.saturated for row in rows.rows])
    parts = [(kind, np.full(len(rows), True))]  # noqa: FBT003 - the value that fills the array
    if saturated.any() and not saturated.all():
        parts += [("- at a number", ~saturated), ("- saturated", saturated)]
    return parts


def table() -> str:
    """The table of classes in docs/speed.md, from the files."""
    files = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(built_in(FOLDER)).glob("*.yaml"))
    }
    lines = [
        "| class | predicted | rows | error | bias | other machines | other sources | range | holds |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, data in files.items():
        for kind, rows in data["rows"].items():
            error, spread = data["errors"][kind], data["ranges"].get(kind) or data["ranges"]["serving"]
            alone = len(data["sources"]) == 1
            apart = "one source" if alone else f"{100 * error['apart_median']:.0f} %"
            holds = f"{100 * error['part_held']:.0f} %" + ("" if alone else f", {100 * error['apart_held']:.0f} %")
            lines.append(
                f"| {name} | {kind} | {rows:,} | {100 * error['median']:.0f} % | {error['bias']:.2f} | {100 * error['part_median']:.0f} % | {apart}"
                f" | {spread['low']:.2f}\N{EN DASH}{spread['high']:.2f} | {holds} |"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Fit, print, and write if that is wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("--write", action="store_true", help="write profiles/speed/*.yaml")
    parser.add_argument("--only", default="", help="only classes whose id has this in it")
    options = parser.parse_args(arguments)
    usable = [row for row in rows_of(options.rows) if is_plain(row, untuned=True)]
    rows, refused = counted(usable)
    for reason, number in Counter(refused).most_common():
        print(f"left out, {number} rows: {reason}", file=sys.stderr)
    fits = Fits(rows)
    print(f"{len(rows)} rows, {np.sum(fits.owners == '')} of no class")
    print(
        f"{'class':26} {'measured':14} rows sources | all rows: error, bias, 80 % | without its part | without its source | range (width) holds"
    )
    for name, data in fits.files.items():
        mine = rows.of(fits.of_class(name))
        if options.only not in name or not len(mine):
            continue
        values = fits.fitted(name, np.zeros(len(rows), dtype=bool))
        apart = {by: fits.apart(name, by) for by in fits.marks}
        # What is not fitted stays.
        kept = {key: data["parameters"][key] for key in BY_HAND if key in data["parameters"]}
        found = fit_class(name, mine, values, apart, data["family"])
        data.update(found | {"parameters": found["parameters"] | kept})
        untuned = rows.of((fits.owners == name) & ~fits.tuned)
        if len(untuned):
            report = errors_of(untuned, expected(untuned, values))
            data["untuned_times"] = round(max(1.0, report["bias"]), 2)
            print(
                f"{name:26} {'untuned':14} {report['rows']:5} {report['sources']:7} | {report['median']:7.1%} {report['bias']:.2f}"
            )
        data["recorded"] = datetime.now(UTC).date().isoformat()
    if options.write:
        for name, data in fits.files.items():
            text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=150, allow_unicode=True)
            Path(built_in(FOLDER, f"{name}.yaml")).write_text(text, encoding="utf-8")
        page = ROOT / "docs" / "speed.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(TABLE_BEGINS)
        page.write_text(f"{before}{TABLE_BEGINS}\n{table()}\n{TABLE_ENDS}{rest.partition(TABLE_ENDS)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
