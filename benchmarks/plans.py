"""Processor time of vLLM's plans with a GPU over the whole catalog, of first plans, and of models of very many layers.

Run it where kvplan is installed::

    python benchmarks/plans.py [--gpu GPU] [--every N]

Every model of the catalog is planned with two formats of the cache, on one and two GPUs, in twelve sizes each. What an engine refuses is
counted, but its time is not. Plans that fit and plans that do not are counted apart and together; the first plan of a model, and of a
family (the same but for length and batch), by themselves as well. ``json.dumps`` of one plan, between the models, says how fast the machine
is: the bar of a plan is so many of these, about a millisecond on an idle core. What advice takes where it is read is counted apart.

Models of 1,000 and 10,000 layers follow: all equal, in a pattern of six, and all unlike each other, with a sequence that fits and one that
does not, with its advice; the garbage collector rests meanwhile.

It ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections import defaultdict

from msgspec.structs import replace

from hwcalc import Plan, load_model, plan
from hwcalc.errors import KvplanError
from hwcalc.formulas import LayerKind, Stack
from hwcalc.formulas.attention import FullAttention, SlidingAttention
from hwcalc.model import ModelSpec
from hwcalc.profiles.catalog import list_models

LIMIT_UNITS = 4.7
"""Times that a plan may take of ``json.dumps`` of one, whether it fits or not, averaged over the catalog."""
LIMIT_UNFIT = 14
"""Times that a plan which does not fit may take of one that does, the first one of a model too."""
LIMIT_LAYERS_S = 0.1
"""Of the first plan of a model of 10,000 layers, equal ones and those of a pattern, whether it fits or not."""
LENGTHS = {"fits": 16, "does not fit": 100_000}
"""Tokens of a sequence with which models of very many layers fit on one GPU, and do not."""
LIMIT_GROWTH = 12
"""Times that 10,000 layers may take of 1,000."""
DTYPES = ("auto", "fp8")
RANKS = (1, 2)
SIZES = (
    (1_000, 1), (2_048, 4), (4_096, 8), (8_192, 64), (12_345, 2), (16_384, 4), (20_000, 1), (32_768, 16), (50_000, 2),
    (65_536, 32), (100_000, 1), (131_072, 4),
)  # fmt: skip
BASE = "meta-llama/Llama-3.1-8B"


def seconds_of(model: ModelSpec, **options: object) -> tuple[float, Plan | None]:
    """Processor time of a plan, and the plan; ``None`` if the engine refuses it."""
    started = time.process_time()
    try:
        made = plan(model, engine="vllm", **options)  # type: ignore[arg-type]
    except KvplanError:
        made = None
    return time.process_time() - started, made


def catalog(gpu: str, every: int) -> bool:
    """Plan the catalog. Returns whether all bars are met."""
    times: dict[tuple[str, bool], list[float]] = defaultdict(list)
    advice: list[float] = []
    refused = asked = 0
    _, example = seconds_of(load_model(BASE), seq=1_000, gpu=gpu)
    assert example is not None
    document, units = example.to_dict(), []
    for name in list_models()[::every]:
        try:
            model = load_model(name, offline=True)
        except KvplanError:
            continue
        kind = "model"
        for dtype, tp in itertools.product(DTYPES, RANKS):
            kind = "model" if kind == "model" else "family"
            for seq, batch in SIZES:
                taken, made = seconds_of(model, gpu=gpu, dtype=dtype, tp=tp, seq=seq, batch=batch)
                asked += 1
                if made is None:
                    refused += 1
                    continue
                times[kind, made.fit is None or made.fit.fits].append(taken)
                kind = "later"
                if made.fit is not None and not made.fit.fits:
                    started = time.process_time()
                    len(made.fit.suggestions)
                    advice.append(time.process_time() - started)
        started = time.process_time()
        json.dumps(document)
        units.append(time.process_time() - started)
    print(
        f"{asked:,} requests on {gpu}, {refused / asked:.0%} refused; json.dumps of a plan {statistics.median(units) * 1e6:.0f} us"
    )
    for kind, words in {"model": "first of a model", "family": "first of a family", "later": "later ones"}.items():
        print(f"  {words:18}", "  ".join(_line(what, times[kind, what == "fits"]) for what in ("fits", "does not fit")))
    fit, unfit = ([taken for (_, fits), some in times.items() if fits is wanted for taken in some] for wanted in (True, False))
    together = statistics.fmean(fit + unfit) * 1e3
    ratios = [statistics.fmean(unfit) / statistics.fmean(fit)]
    if times["model", True] and times["model", False]:
        ratios.append(statistics.fmean(times["model", False]) / statistics.fmean(times["model", True]))
    print("  all               ", _line("fits", fit), "", _line("does not fit", unfit), "", _line("its advice", advice))
    of_unit = together / (statistics.median(units) * 1e3)
    print(
        f"  together {together:.2f} ms, {1e3 / together:,.0f} plans a second; {of_unit:.1f} x json.dumps (limit {LIMIT_UNITS} x); "
        f"{' and first '.join(f'{ratio:.1f} x' for ratio in ratios)} for one that does not fit (limit {LIMIT_UNFIT} x)"
    )
    return of_unit <= LIMIT_UNITS and max(ratios) <= LIMIT_UNFIT


def _line(what: str, times: list[float]) -> str:
    return f"{what} {statistics.fmean(times) * 1e3:6.2f} ms ({len(times):,})" if times else f"{what}: none"


def stack(kind: str, count: int) -> Stack:
    """So many layers: all equal, five with a window and one without in turns, or all unlike."""

    def full(heads: int, width: int) -> LayerKind:
        return FullAttention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=width, v_head_dim=width)

    window = SlidingAttention(num_attention_heads=8, num_key_value_heads=2, head_dim=64, v_head_dim=64, window=1024)
    each = {
        "equal": lambda _: full(2, 64),
        "pattern": lambda number: window if number % 6 else full(2, 64),
        "unlike": lambda number: full(1 + number % 100, 8 + 8 * (number // 100)),
    }[kind]
    kinds: dict[LayerKind, LayerKind] = {}
    return Stack(tuple((kinds.setdefault(one, one),) for one in map(each, range(count))))


def layers(gpu: str) -> bool:
    """Plan models of very many layers. Returns whether all bars are met."""
    good, base = True, load_model(BASE)
    for kind, (what, seq) in itertools.product(("equal", "pattern", "unlike"), LENGTHS.items()):
        taken = {count: min(_seconds_of_layers(base, kind, count, seq, gpu) for _ in range(3)) for count in (1_000, 10_000)}
        growth, limited = taken[10_000] / taken[1_000], kind != "unlike"
        bar = f", limit {LIMIT_LAYERS_S} s" if limited else ""
        # Advice on 10,000 layers tries layouts that 1,000 have no need of.
        grows = what == "fits"
        bound = f" (limit {LIMIT_GROWTH} x)" if grows else ""
        print(f"10,000 layers, {kind}, {what}: {taken[10_000]:.3f} s{bar}; {growth:.1f} x 1,000{bound}")
        good &= (not grows or growth <= LIMIT_GROWTH) and (not limited or taken[10_000] <= LIMIT_LAYERS_S)
    return good


def _seconds_of_layers(base: ModelSpec, kind: str, count: int, seq: int, gpu: str) -> float:
    model = replace(base, stack=stack(kind, count))
    # As the source of a model has it.
    _ = model.stack.groups
    # The passes of Python's garbage collector grow with all that is alive, faster than what is measured.
    gc.disable()
    try:
        started = time.process_time()
        made = plan(model, engine="vllm", seq=seq, gpu=gpu)
        # The advice too, where it does not fit.
        assert made.fit is not None
        tuple(made.fit.suggestions)
        return time.process_time() - started
    finally:
        gc.enable()
        gc.collect()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", default="h100", help="the accelerator")
    parser.add_argument("--every", type=int, default=1, help="plan every Nth model of the catalog")
    arguments = parser.parse_args()
    met = [catalog(arguments.gpu, arguments.every), layers(arguments.gpu)]
    if not all(met):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
