"""Replay public traces, and write the pictures and tables of docs/traffic.md: what each is, and what one learns from it.

    python scripts/traffic_pictures.py FOLDER

The folder has the traces as they are published, the first 2,000 requests of each: azure_2023_code.csv, azure_2023_conv.csv,
mooncake_conversation.jsonl and mooncake_synthetic.jsonl; a suffix before the dot does not matter. They are no part of this project.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc import simulate  # noqa: E402
from hwcalc.plot.timeline import save_timeline  # noqa: E402
from hwcalc.replay.result import Simulation  # noqa: E402
from hwcalc.units import human_duration  # noqa: E402

MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"
LIMITS: Final[dict[str, Any]] = {"ttft": "2s", "itl": "50ms"}
REQUESTS: Final = 2000
PAGE: Final = ROOT / "docs" / "traffic.md"


class Shown(Struct, frozen=True):
    """A trace on a server; ``changed`` are the settings that are compared, of which the first is drawn."""

    trace: str
    changed: tuple[dict[str, Any], ...]
    options: dict[str, Any]

    @property
    def picture(self) -> str:
        """The name of its picture."""
        return f"traffic-{self.trace.replace('_', '-')}.svg"


_PREFIX: Final = {"route": "prefix"}
SHOWN: Final = (
    Shown(
        trace="azure_2023_code",
        options={"gpu": "h100", "seq": "8k"},
        changed=tuple({"max_num_batched_tokens": size} for size in ("8192", "2048", "1024", "512")),
    ),
    Shown(
        trace="azure_2023_conv",
        options={"gpu": "l40s", "seq": "8k"},
        changed=({"replicas": 1}, {"replicas": 2}),
    ),
    Shown(
        trace="mooncake_conversation",
        options={"replicas": 4},
        changed=({"gpu": "h100", **_PREFIX}, {"gpu": "h100", "route": "least-requests"}, {"gpu": "h200", **_PREFIX}),
    ),
    Shown(
        trace="mooncake_synthetic",
        options={"gpu": "h100", "replicas": 4},
        changed=(_PREFIX, {"route": "least-requests"}),
    ),
)


def replayed(shown: Shown, path: Path, changed: dict[str, Any]) -> Simulation:
    """The trace on the server with these settings."""
    given = dict(changed)
    of_engine = {name: given.pop(name) for name in ("max_num_batched_tokens",) if name in given}
    return simulate(MODEL, path, requests=REQUESTS, engine_options=of_engine, **shown.options, **LIMITS, **given)


def row(changed: dict[str, Any], simulation: Simulation) -> str:
    """A row of the table of a trace."""
    traffic = simulation.traffic
    assert traffic.ttft is not None
    assert traffic.itl is not None
    assert traffic.use is not None
    assert traffic.goodput is not None
    cells = [
        ", ".join(f"`{name}={value}`" for name, value in changed.items()),
        human_duration(traffic.ttft.p50),
        human_duration(traffic.ttft.p95),
        human_duration(traffic.itl.p95),
        f"{100 * traffic.use.mean:.0f} %, {100 * traffic.use.max:.0f} %",
        "not known" if traffic.hit_share is None else f"{100 * traffic.hit_share:.1f} %",
        f"{100 * traffic.goodput.share:.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures, and the tables into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of the traces")
    folder = parser.parse_args(arguments).folder
    page = PAGE.read_text(encoding="utf-8")
    for shown in SHOWN:
        path = next(iter(sorted(folder.glob(f"{shown.trace}*"))), None)
        if path is None:
            print(f"{folder} has no {shown.trace}.", file=sys.stderr)
            return 1
        lines = [
            "| | first token p50 | first token p95 | next token p95 | pool in use, mean and most | found in the cache | within 2 s and 50 ms |",
            "| --- | --: | --: | --: | --: | --: | --: |",
        ]
        for number, changed in enumerate(shown.changed):
            simulation = replayed(shown, path, changed)
            lines.append(row(changed, simulation))
            if number == 0:
                save_timeline(simulation.timeline, PAGE.parent / shown.picture)
        text = "\n".join(lines)
        before, mark, after = page.partition(f"<!-- {shown.trace} -->\n")
        _, end, after = after.partition("<!-- end -->")
        page = f"{before}{mark}{text}\n{end}{after}"
        print(f"{shown.trace}\n{text}")
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
