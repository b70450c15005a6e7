"""Published tables of prices are read as they are written, and replace their own table of a file alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.schema import PriceFile, check, parse_yaml, read_yaml
from tests.paths import ROOT

# Lines in the form of the published tables, with their prices of these days.
AWS: Final = """\
// generated at 2026-07-20T13:13:25Z for us-east-1

var InitialOnDemandPricesAWS = map[string]map[ec2types.InstanceType]float64{
\t// us-east-1
\t"us-east-1": {
\t\t// g6f family
\t\t"g6f.2xlarge": 0.475000, "g6f.large": 0.202000, "m5.large": 0.096000,
\t\t"p5.48xlarge": 55.040000,
\t},
}
"""
AZURE: Final = """\
// generated at 2026-06-18T15:01:18Z

func init() {
\t// australiaeast
\tinitialOnDemandPrices["australiaeast"] = map[string]float64{
\t\t"Standard_NC24ads_A100_v4":  1.000000,
\t}

\t// centralus
\tinitialOnDemandPrices["centralus"] = map[string]float64{
\t\t"Standard_NC24ads_A100_v4":  4.041000,
\t}

\t// eastus
\tinitialOnDemandPrices["eastus"] = map[string]float64{
\t\t"Standard_D2_v2":            0.114000,
\t\t"Standard_NC24ads_A100_v4":  3.673000,
\t}
}
"""
GCP: Final = (
    '{"prices":{"asia-east1":{"on_demand":{"g2-standard-4":0.1},"spot":{}},'
    '"us-central1":{"on_demand":{"g2-standard-4":0.706832276,"e2-small":0.01},"spot":{"g2-standard-4":0.283}},'
    '"us-east4":{"on_demand":{"g2-standard-4":0.704523},"spot":{"g2-standard-4":0.3106}}}}'
)


@pytest.fixture(scope="module")
def renewer() -> ModuleType:
    """``scripts/renew_prices.py``."""
    spec = importlib.util.spec_from_file_location("renew_prices", ROOT / "scripts" / "renew_prices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_of_published_tables(renewer: ModuleType) -> None:
    """Known instances alone, each in its cheapest region of the United States."""
    assert list(renewer.rows("aws", AWS)) == [
        {"instance": "g6f.2xlarge", "region": "us-east-1", "usd_per_hour": 0.475},
        {"instance": "g6f.large", "region": "us-east-1", "usd_per_hour": 0.202},
        {"instance": "p5.48xlarge", "region": "us-east-1", "usd_per_hour": 55.04},
    ]
    assert list(renewer.rows("azure", AZURE)) == [
        {"instance": "Standard_NC24ads_A100_v4", "region": "eastus", "usd_per_hour": 3.673}
    ]
    assert list(renewer.rows("gcp", GCP)) == [
        {"instance": "g2-standard-4", "region": "us-east4", "usd_per_hour": 0.70452},
        {"instance": "g2-standard-4", "kind": "spot", "region": "us-central1", "usd_per_hour": 0.283},
    ]


def test_a_table_replaces_its_own(renewer: ModuleType) -> None:
    """The others of the file stay, the file holds its form, and the source names the commit."""
    before = read_yaml(Path(built_in("prices", "aws.yaml"))).data
    renewed = renewer.with_table(before, "aws", renewer.Published(AWS, "0" * 40, "2026-07-20"))
    read = parse_yaml(renewer.file_text(renewed), Path("aws.yaml"))

    check(read, PriceFile)
    assert read.data == renewed
    assert renewed["tables"][0]["source"].endswith(f"/blob/{'0' * 40}/pkg/providers/pricing/zz_generated.pricing_aws.go")
    assert renewed["tables"][1:] == before["tables"][1:]
    with pytest.raises(SystemExit, match="has a price there"):
        renewer.with_table(before, "aws", renewer.Published("<html>", "0" * 40, "2026-07-20"))


@pytest.mark.parametrize("path", sorted(Path(built_in("prices")).glob("*.yaml")), ids=lambda path: path.stem)
def test_files_are_as_the_script_writes_them(renewer: ModuleType, path: Path) -> None:
    """A renewal changes the lines of prices that changed, and no other."""
    assert renewer.file_text(read_yaml(path).data) == path.read_text(encoding="utf-8")
