"""Put published deployments beside what kvplan says of them: the tables of ``docs/cost.md``.

    python scripts/deployments.py [--write]

The statements, each with its source and date, are ``docs/deployments.yaml``. The speed, the plan and the prices of kvplan are asked the same.
Without ``--write`` the tables are printed; with it the page is renewed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from msgspec import Struct, convert
from msgspec.structs import replace

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc import plan, speed  # noqa: E402
from hwcalc.hardware.prices import Price, money, prices  # noqa: E402
from hwcalc.planner.cost import usd_per_million_tokens  # noqa: E402
from hwcalc.profiles.gpus import find_gpu  # noqa: E402
from hwcalc.profiles.instances import find_instance  # noqa: E402

PAGE: Final = ROOT / "docs" / "cost.md"
STATEMENTS: Final = ROOT / "docs" / "deployments.yaml"
BEGINS: Final = "<!-- deployments -->"
ENDS: Final = "<!-- end of deployments -->"


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Who said something, on which day or in which month, and where it stands."""

    who: str
    date: str
    url: str


class Statement(Struct, frozen=True, forbid_unknown_fields=True):
    """What a source says of a deployment: its speed and price, or, without a speed, that it runs or does not."""

    source: str
    model: str
    options: dict[str, Any]
    load: tuple[int, int, int]
    """Tokens of a prompt and of an answer, and how many requests are served at once."""
    part: str = ""
    runs: bool = True
    tokens_per_s: float | None = None
    counted: Literal["output", "decode", "total"] = "output"
    usd_per_hour: Decimal | None = None
    usd_per_million: Decimal | None = None
    note: str = ""

    @property
    def speed_options(self) -> dict[str, Any]:
        """Keywords of :func:`hwcalc.speed`."""
        return {**dict(zip(("prompt", "output", "concurrency"), self.load, strict=True)), **self.options}

    @property
    def hourly(self) -> Decimal | None:
        """Dollars an hour, or what follows from those per million tokens."""
        if self.usd_per_hour is not None or self.usd_per_million is None or self.tokens_per_s is None:
            return self.usd_per_hour
        return self.usd_per_million * Decimal(self.tokens_per_s) * 3600 / 1_000_000


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``docs/deployments.yaml``."""

    sources: dict[str, Source]
    statements: list[Statement]


class Answer(Struct, frozen=True):
    """What kvplan says of a statement. Speeds count what the statement counts, and are missing where it names none."""

    gpus: str
    fits: bool
    most: int
    """Requests of these lengths that fit at once, by the expected value."""
    price: Price | None
    """The cheapest row of the built-in prices for these GPUs, or that of the named machine."""
    low: float | None = None
    high: float | None = None
    bound: float | None = None


def published() -> Published:
    """The sources and statements of ``docs/deployments.yaml``."""
    return convert(yaml.safe_load(STATEMENTS.read_text(encoding="utf-8")), Published)


def answered(said: Statement) -> Answer:
    """What kvplan says of the same deployment."""
    prompt, output, _ = said.load
    fit = plan(said.model, seq=prompt + output, **said.options).fit
    assert fit is not None
    assert fit.gpu is not None
    gpu, instance = find_gpu(fit.gpu), said.options.get("instance")
    price = prices().of_gpus(gpu, fit.gpus) if instance is None else prices().of_instance(find_instance(instance))
    answer = Answer(gpus=f"{fit.gpus} x {gpu.id}", fits=fit.fits, most=fit.expected_max_batch or 0, price=price)
    if said.tokens_per_s is None:
        return answer
    found = speed(said.model, **said.speed_options)
    rate = found.decode_tokens_per_s if said.counted == "decode" else found.output_tokens_per_s
    times = (prompt + output) / output if said.counted == "total" else 1
    low, high, bound = (None if end is None else times * end for end in (rate.low, rate.high, rate.bound))
    return replace(answer, low=low, high=high, bound=bound)


def verdict(said: Statement, answer: Answer) -> tuple[str, float]:
    """How the answer lies to the statement, and how many times they differ where the statement lies outside of it."""
    stated = said.tokens_per_s
    if stated is None:
        return ("agrees" if said.runs == answer.fits else "differs"), 1
    assert answer.bound is not None
    if stated > answer.bound:
        return "the bound", stated / answer.bound
    if answer.low is None or answer.high is None:
        return "below the bound", 1
    if answer.low <= stated <= answer.high:
        return "in the range", 1
    return ("ours is faster", answer.low / stated) if stated < answer.low else ("ours is slower", stated / answer.high)


def table() -> str:
    """The tables of all statements and of their prices, how many agree, the notes on them, and their sources."""
    lines = [
        "| | said by | served, prompt + answer, at once | tokens/s | ours | fit | |",
        "| --: | --- | --- | --: | --: | --: | --- |",
    ]
    dollars = [
        "| | $ per million | ours, same price | ours, dated price | whose price |",
        "| --: | --: | --: | --: | --- |",
    ]
    told, notes, found = published(), [], Counter[str]()
    for number, said in enumerate(told.statements, 1):
        answer, source = answered(said), told.sources[said.source]
        kind, times = verdict(said, answer)
        found[kind] += 1
        outside = f"{times:.1f} x the bound" if kind == "the bound" else f"{kind}, {times:.2f} x"
        who = f"[{source.who}, {source.date}][{said.source}]{f', {said.part}' if said.part else ''}"
        lines.append(f"| {number} | {who} | {' | '.join(_cells(said, answer))} | {kind if times == 1 else outside} |")
        dollars += [f"| {number} | {' | '.join(costs)} |"] if any(costs := _prices(said, answer)) else []
        notes += [f"- {number}: {said.note}"] if said.note else []
    runs = found["agrees"] + found["differs"]
    sums = (
        f"Of {found.total() - runs} speeds {found['in the range']} lie in the range, {found['ours is faster']} below it, "
        f"{found['ours is slower']} above it and {found['the bound']} above the bound; for {found['below the bound']} there is a bound alone. "
        f"Of {runs} statements that something runs or does not {found['agrees']} agree."
    )
    return "\n".join(
        [*lines, "", sums, "", *dollars, "", *notes, "", *(f"[{name}]: {source.url}" for name, source in told.sources.items())]
    )


def _cells(said: Statement, answer: Answer) -> list[str]:
    """The cells of a statement between its source and the verdict."""
    prompt, output, concurrency = said.load
    weights, cache = said.options.get("weights"), said.options.get("dtype")
    formats = f"{f' in {weights}' if weights else ''}{f', cache in {cache}' if cache else ''}"
    what = f"{said.model.rpartition('/')[2]}{formats}, {said.options['engine']}, {answer.gpus}"
    counted = {"output": "", "decode": ", decoding alone", "total": ", prompts counted"}[said.counted]
    stated = ("runs" if said.runs else "does not run") if said.tokens_per_s is None else f"{said.tokens_per_s:,.0f}"
    ours = "" if answer.bound is None else f"at most {answer.bound:,.0f}"
    if answer.low is not None:
        ours = f"{answer.low:,.0f} to {answer.high:,.0f}"
    return [
        f"{what}; {prompt:,} + {output:,}, {concurrency:,}{counted}",
        stated,
        ours,
        f"{answer.most:,}" if answer.fits else "no",
    ]


def _prices(said: Statement, answer: Answer) -> list[str]:
    """Dollars per million tokens as stated, and ours at the price of the statement and at a dated one."""
    price = answer.price
    dated = _dollars(None if price is None else price.usd_per_hour, answer)
    return [
        _stated_dollars(said),
        _dollars(said.hourly, answer),
        dated,
        f"{price.name}, {price.date}" if price is not None and dated else "",
    ]


def _stated_dollars(said: Statement) -> str:
    """Dollars per million tokens as stated, with those of the statement's own speed and price where they are others."""
    stated, hourly = said.usd_per_million, said.hourly
    if stated is None or hourly is None or said.tokens_per_s is None:
        return ""
    made = Decimal(usd_per_million_tokens(float(hourly), said.tokens_per_s))
    same = made.quantize(stated) == stated or abs(made / stated - 1) < Decimal("0.01")
    return f"{money(stated)}{'' if same else f', by its speed {money(made)}'}"


def _dollars(hourly: Decimal | None, answer: Answer) -> str:
    """Dollars per million tokens at the ends of the speeds, or at the bound."""
    if hourly is None or answer.bound is None:
        return ""
    if answer.low is None or answer.high is None:
        return f"at least {money(usd_per_million_tokens(float(hourly), answer.bound))}"
    return f"{money(usd_per_million_tokens(float(hourly), answer.high))} to {money(usd_per_million_tokens(float(hourly), answer.low))}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or renew the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="renew the table of docs/cost.md")
    if not parser.parse_args(arguments).write:
        print(table())
        return 0
    text = PAGE.read_text(encoding="utf-8")
    before, begins, rest = text.partition(f"{BEGINS}\n")
    PAGE.write_text(f"{before}{begins}{table()}\n{ENDS}{rest.partition(ENDS)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
