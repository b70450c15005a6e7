"""Draw the expected speed of measured rows against what was measured, class by class: the picture of docs/speed.md.

    python scripts/plot_speed.py ROWS.jsonl [-o docs/speed.png]

Rows are those of ``scripts/speed_rows.py``. Each point is a measurement; the band is the range of its class, the line is where both agree.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.profiles.speed import speed_classes  # noqa: E402
from scripts.speed_rows import Compared, compared, is_plain, kind_of, rows_of  # noqa: E402

_COLUMNS: Final = 4
_COLOURS: Final = {"decode": "#1f6feb", "prompt": "#c2410c", "serving": "#15803d"}


def main(arguments: list[str] | None = None) -> int:
    """Draw the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "speed.png", help="the picture to write")
    options = parser.parse_args(arguments)
    found, refused = compared(filter(is_plain, rows_of(options.rows)))
    by_class: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        by_class[one.speed_class].append(one)
    names = {one.id: one.name for one in speed_classes()}
    rows = -(-len(by_class) // _COLUMNS)
    figure, axes = plt.subplots(rows, _COLUMNS, figsize=(4 * _COLUMNS, 3.7 * rows), squeeze=False)
    for place in axes.ravel()[len(by_class) :]:
        place.set_axis_off()
    for place, (name, points) in zip(axes.ravel(), sorted(by_class.items()), strict=False):
        ends = np.array(
            [
                min(min(one.measured, one.expected) for one in points) / 1.3,
                max(max(one.measured, one.expected) for one in points) * 1.3,
            ]
        )
        place.plot(ends, ends, color="#555555", linewidth=0.8)
        for kind, colour in _COLOURS.items():
            those = [one for one in points if kind_of(one.row) == kind]
            if those:
                median = float(np.median([one.error for one in those]))
                place.plot(
                    [one.measured for one in those],
                    [one.expected for one in those],
                    linestyle="none",
                    marker=".",
                    markersize=4,
                    color=colour,
                    alpha=0.6,
                    label=f"{kind}, {len(those)} rows: {median:.0%}",
                )
        place.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured", ylabel="expected")
        place.set_title(names[name].replace(" on ", "\non "), fontsize=8)
        place.legend(fontsize=7, loc="upper left")
        place.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(options.output, dpi=70)
    print(f"{options.output}: {len(found)} rows, {sum(refused.values())} without an expected speed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
