"""Renew the prices of clouds that publish whole tables: the newest tables of karpenter's providers (Apache-2.0), into ``profiles/prices``.

    python scripts/renew_prices.py [aws azure gcp]

Only the table of that source is replaced in ``profiles/prices/<cloud>.yaml``, with the commit in its source and its day; then run
``python scripts/build_profiles.py``. Instances are those of ``profiles/instances``, each with its cheapest region in the United States.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.compiled import records
from hwcalc.profiles.schema import read_yaml


class Source(NamedTuple):
    """A published table: its repository, its file there, and the regions of the United States that it has."""

    repository: str
    path: str
    regions: str


class Published(NamedTuple):
    """A text of a table, the commit that it is from, and its day."""

    text: str
    commit: str
    date: str


SOURCES: Final[Mapping[str, Source]] = {
    "aws": Source("aws/karpenter-provider-aws", "pkg/providers/pricing/zz_generated.pricing_aws.go", "us-east-1"),
    "azure": Source(
        "Azure/karpenter-provider-azure",
        "pkg/providers/pricing/zz_generated.pricing.go",
        "(?:north|south|west)?centralus|(?:east|west)us[23]?",
    ),
    "gcp": Source("cloudpilot-ai/karpenter-provider-gcp", "pkg/providers/pricing/initial-prices.json", "us-[a-z0-9-]+"),
}
_REGION: Final = re.compile(r'^\s*(?:initialOnDemandPrices\[)?"([a-z0-9-]+)"(?:\] = map\[string\]float64|:) ?\{')
_PRICE: Final = re.compile(r'"([^"]+)":\s*([0-9.]+)')
_GENERATED: Final = re.compile(r"^// generated at (\d{4}-\d\d-\d\d)T", re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9 _.+/-]*")


def main(arguments: list[str] | None = None) -> int:
    """Write the files of the clouds that are named, by default of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clouds", nargs="*", metavar="CLOUD", help=f"of {', '.join(SOURCES)}; default: all")
    clouds = parser.parse_args(arguments).clouds or [*SOURCES]
    if unknown := sorted({*clouds} - SOURCES.keys()):
        parser.error(f"no source of {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    for cloud in clouds:
        path = Path(built_in("prices", f"{cloud}.yaml"))
        renewed = with_table(read_yaml(path).data, cloud, fetched(SOURCES[cloud]))
        path.write_text(file_text(renewed), encoding="utf-8")
        print(f"{path}: written", file=sys.stderr)
    return 0


def fetched(source: Source) -> Published:
    """The newest table. GitHub says which commit it is from; its day is the one that it states, else that of the commit."""
    (newest,) = json.loads(_read(f"https://api.github.com/repos/{source.repository}/commits?path={source.path}&per_page=1"))
    text = _read(f"https://raw.githubusercontent.com/{source.repository}/{newest['sha']}/{source.path}")
    stated = _GENERATED.search(text)
    return Published(text, newest["sha"], newest["commit"]["committer"]["date"][:10] if stated is None else stated[1])


def _read(address: str) -> str:
    with urlopen(Request(address, headers={"User-Agent": "kvplan"}), timeout=60) as answer:  # noqa: S310 - both addresses are https
        text: str = answer.read().decode()
    return text


def with_table(file: Mapping[str, Any], cloud: str, published: Published) -> dict[str, Any]:
    """The content of a cloud's file with the table of this source in place of an older one."""
    source = SOURCES[cloud]
    address = f"https://github.com/{source.repository}"
    table = {
        "source": f"{address}/blob/{published.commit}/{source.path}",
        "date": published.date,
        "prices": [*rows(cloud, published.text)],
    }
    if not table["prices"]:
        raise SystemExit(f"{address}: no instance of profiles/instances/{cloud} has a price there: its form is another one")
    kept = [other for other in file["tables"] if not other["source"].startswith(f"{address}/")]
    return {**file, "tables": [table, *kept]}


def rows(cloud: str, text: str) -> Iterator[dict[str, Any]]:
    """The rows of a cloud's instances that the table prices, in the order of their names."""
    cheapest: dict[tuple[str, str], tuple[float, str]] = {}
    for region, kind, instance, usd in _published(text):
        if usd and re.fullmatch(SOURCES[cloud].regions, region):
            key = instance, kind
            cheapest[key] = min(cheapest.get(key, (usd, region)), (usd, region))
    names = sorted(content["id"] for content in records("instances").values() if content["cloud"] == cloud)
    for name in names:
        for kind in ("on_demand", "spot"):
            if (name, kind) in cheapest:
                usd, region = cheapest[name, kind]
                row = {"instance": name, "kind": kind, "region": region, "usd_per_hour": round(usd, 5)}
                yield {key: value for key, value in row.items() if value != "on_demand"}


def _published(text: str) -> Iterator[tuple[str, str, str, float]]:
    """Region, kind, instance and dollars an hour of each price of a table, which is JSON or source text in Go."""
    if text.startswith("{"):
        for region, kinds in json.loads(text)["prices"].items():
            for kind, sold in kinds.items():
                yield from ((region, kind, instance, float(usd)) for instance, usd in sold.items())
        return
    region = ""
    for line in text.splitlines():
        if begun := _REGION.match(line):
            region = begun[1]
        else:
            yield from ((region, "on_demand", instance, float(usd)) for instance, usd in _PRICE.findall(line))


def file_text(content: Mapping[str, Any]) -> str:
    """The text of a file of prices: a line for each price."""
    lines = [f"schema_version: {content['schema_version']}", f"provider: {content['provider']}", "tables:"]
    for table in content["tables"]:
        lines += [f"  - source: {table['source']}", f"    date: '{table['date']}'", "    prices:"]
        for row in table["prices"]:
            lines.append(f"      - {{{', '.join(f'{key}: {_value(value)}' for key, value in row.items())}}}")
    return "\n".join(lines) + "\n"


def _value(value: str | float) -> str:
    """A value as YAML has it: words that could mean something else are in quotes, whole numbers without a point."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return f"{value:g}" if value == int(value) else repr(value)


if __name__ == "__main__":
    sys.exit(main())
