"""How far the expected speed is from measured ones, next to what other tools reach.

    python benchmarks/speed.py ROWS.jsonl [--measured]

Ours is computed here, on each row of the file (``scripts/speed_rows.py`` says its form), with the parameters of ``profiles/speed``. The roofline
(the bound taken for a forecast) and the usual rule of calculators (a constant share of the bandwidth, the median of the class) are computed on the
same rows. The errors of other tools were measured on 2026-11-23 on 2,108 rows of the same public sources, each tool as it is installed from
PyPI or npm; they are recorded here with their number of rows, and are not computed again. None of them was fitted to these rows, as far as is
known: what compares with them is the column ``unseen``, our error on each row by parameters that were fitted without its source. To fit them
takes a minute. ``--measured`` asks aiconfigurator, which has to be installed, of each row of a server of NVIDIA that states its number of
requests, and prints the table of docs/speed.md: its error, ours, and that of the mean.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.errors import KvplanError  # noqa: E402
from hwcalc.planner.aiconfigurator import NoAnswerError, composed  # noqa: E402
from hwcalc.profiles.gpus import find_gpu  # noqa: E402
from scripts.fit_speed import Fits, counted  # noqa: E402
from scripts.speed_rows import Compared, Row, compared, is_plain, kind_of, opened_row, rows_of  # noqa: E402

PEERS: Final[dict[tuple[str, str], tuple[tuple[str, int, float], ...]]] = {
    ("llama.cpp, NVIDIA", "decode"): (
        ("llmfit 1.1.17", 230, 0.27), ("whichllm 0.5.21", 233, 0.27), ("ridgepoint 0.1.2", 118, 0.28), ("servcalc 0.1.0", 56, 0.50),
    ),
    ("llama.cpp, NVIDIA", "prompt"): (("servcalc 0.1.0", 53, 0.43), ("ridgepoint 0.1.2", 28, 0.45)),
    ("Apple", "decode"): (("llmfit 1.1.17", 69, 0.24), ("whichllm 0.5.21", 70, 0.39)),
    ("AMD, shared memory", "decode"): (("llmfit 1.1.17", 206, 0.26), ("whichllm 0.5.21", 218, 0.29)),
    ("AMD, cards", "decode"): (("llmfit 1.1.17", 45, 0.28), ("whichllm 0.5.21", 57, 0.41)),
    ("Hopper and before, tuned", "at a number"): (
        ("aiconfigurator 0.12.0", 101, 0.14), ("BLIS f90a1e3", 83, 0.41), ("genz-llm 0.0.16", 36, 1.01), ("llm-analysis 0.2.2", 34, 0.56),
    ),
    ("Hopper and before, tuned", "saturated"): (("aiconfigurator 0.12.0", 83, 0.29),),
    ("Hopper and before, tuned", "prompt"): (("aiconfigurator 0.12.0", 9, 0.12), ("genz-llm 0.0.16", 9, 1.30), ("llm-analysis 0.2.2", 9, 1.33)),
    ("Blackwell, tuned", "at a number"): (("aisimulate 0.13 dev", 169, 0.12), ("aiconfigurator 0.12.0", 169, 0.13), ("BLIS f90a1e3", 60, 0.41)),
    ("Blackwell, tuned", "saturated"): (("aisimulate 0.13 dev", 150, 0.23),),
}  # fmt: skip
"""Class and what is predicted -> tool, rows that it answers, and its median error."""
_CLASSES: Final = {
    "llamacpp-nvidia": "llama.cpp, NVIDIA",
    "llamacpp-nvidia-hbm": "llama.cpp, NVIDIA",
    "compiled-nvidia": "ExLlamaV2, gpt-fast, MLC",
    "llamacpp-apple": "Apple",
    "mlx-apple": "Apple",
    "server-hopper": "Hopper and before, tuned",
    "server-blackwell": "Blackwell, tuned",
    "server-blackwell-rtx": "Blackwell, tuned",
    "server-instinct": "AMD Instinct, tuned",
}


def group_of(one: Compared) -> str:
    """The accelerators and engines, as the table of other tools has them."""
    if one.speed_class.startswith("llamacpp-amd"):
        return "AMD, shared memory" if find_gpu(one.row.gpu).category == "unified" else "AMD, cards"
    return _CLASSES.get(one.speed_class, one.speed_class)


def regime_of(row: Row) -> str:
    """What is predicted, as the table of other tools has it."""
    kind = kind_of(row)
    return kind if kind != "serving" else "saturated" if row.saturated else "at a number"


def without_source(rows: list[Row]) -> dict[int, float]:
    """The expected speed of each row, by its id, as a share of the measured one, by parameters that were fitted without its source."""
    fits = Fits(counted(rows)[0])
    ratios: dict[int, float] = {}
    for name in fits.files:
        mine = fits.rows.of(fits.of_class(name))
        for row, measured, expected in zip(mine.rows, mine.seconds, fits.apart(name, "source"), strict=True):
            ratios[row.id] = float(measured / expected)
    return ratios


def composed_ratio(row: Row) -> float | None:
    """The speed that aiconfigurator says of a row, as a share of the measured one; ``None`` where it says nothing."""
    try:
        _, opened, times = opened_row(row)
        found = composed(opened, times, row.prompt, row.output, row.concurrency, row.cached_prefix)
    except (KvplanError, NoAnswerError) as error:
        print(f"not answered: {row.engine}, {row.gpu}, {row.model}: {error}", file=sys.stderr)
        return None
    if row.quantity == "output_tokens_per_s":
        return found.output_tokens_per_s / row.value
    return row.value / (found.prompt_s if row.quantity == "ttft_s" else found.itl_s)


def table(groups: Mapping[tuple[str, str], list[Compared]], unseen: Mapping[int, float]) -> Iterator[str]:
    """The lines of docs/speed.md about aiconfigurator: median errors, all on the rows that it answers."""
    yield "| servers | predicted | rows | aiconfigurator | ours | mean | ours, unseen | mean, unseen |"
    yield "| --- | --- | --: | --: | --: | --: | --: | --: |"
    for (name, regime), those in sorted(groups.items()):
        if not name.endswith("tuned") or "AMD" in name or regime == "saturated":
            continue
        pairs = [(one, ratio) for one in those if (ratio := composed_ratio(one.row)) is not None]
        if not pairs:
            continue
        theirs = [ratio for _, ratio in pairs]
        columns = [theirs]
        for ours in ([one.expected / one.measured for one, _ in pairs], [unseen[one.row.id] for one, _ in pairs]):
            columns += [ours, [(a * b) ** 0.5 for a, b in zip(ours, theirs, strict=True)]]
        errors = " | ".join(
            f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}".replace("%", " %") for ratios in columns
        )
        yield f"| {name.removesuffix(', tuned')} | {regime} | {len(pairs)} of {len(those)} | {errors} |"


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("--measured", action="store_true", help="ask aiconfigurator too")
    options = parser.parse_args(arguments)
    usable = list(filter(is_plain, rows_of(options.rows)))
    found, refused = compared(usable)
    unseen = without_source(usable)
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in found:
        groups[group_of(one), regime_of(one.row)].append(one)
    print(f"{len(usable)} rows, {len(found)} answered, {sum(refused.values())} refused with a reason")
    for reason, number in sorted(refused.items(), key=lambda one: -one[1]):
        print(f"refused, {number} rows: {reason}")
    above = [one.row.id for one in found if one.measured > one.bound * 1.0001]
    print(f"above the bound: {len(above)} {above or ''}")
    print(
        f"{'class':30} {'predicted':12} {'rows':>5} {'kvplan':>8} {'unseen':>7} {'bias':>5} {'in range':>9} {'share':>7} {'bound':>7}  other tools (rows)"
    )
    for (name, regime), those in sorted(groups.items()):
        shares = [one.measured / one.bound for one in those]
        constant = statistics.median(shares)
        errors = [one.error for one in those]
        naive = statistics.median(abs(constant / share - 1) for share in shares)
        roofline = statistics.median(abs(1 / share - 1) for share in shares)
        inside = sum(one.low <= one.measured <= one.high for one in those) / len(those)
        without = statistics.median(abs(unseen[one.row.id] - 1) for one in those)
        bias = statistics.median(one.expected / one.measured for one in those)
        others = ", ".join(f"{tool} {error:.0%} ({rows})" for tool, rows, error in PEERS.get((name, regime), ())) or "none"
        print(
            f"{name:30} {regime:12} {len(those):5} {statistics.median(errors):8.1%} {without:7.1%} {bias:5.2f} {inside:9.0%} {naive:7.0%} {roofline:7.0%}  {others}"
        )
    if options.measured:
        print("\n".join(table(groups, unseen)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
