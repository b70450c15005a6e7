"""Constants of engines: every number has a source and an order, and a broken file is named."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import astuple

from hwcalc.profiles.catalog import ProfileError, built_in
from hwcalc.profiles.engines import RuntimeFile, VllmFile, runtime_profile, vllm_profile
from hwcalc.profiles.form import Estimate, Facts
from hwcalc.profiles.schema import check, parse_yaml
from scripts.build_profiles import FORMS

TEXT: Final = Path(built_in("engines", "vllm.yaml")).read_text(encoding="utf-8")
RUNTIME_TEXT: Final = Path(built_in("engines", "runtime.yaml")).read_text(encoding="utf-8")


def estimates_in(value: object) -> list[Estimate]:
    """All estimates of a profile, however deep they lie."""
    if isinstance(value, Estimate):
        return [value]
    parts = value if isinstance(value, tuple) else astuple(value) if isinstance(value, Facts) else ()
    return [estimate for part in parts for estimate in estimates_in(part)]


def test_vllm() -> None:
    """What the rest of the program relies on."""
    profile = vllm_profile()

    assert [(entry.since, entry.value) for entry in profile.utilization] == [("0.20", "0.92"), ("0.0", "0.9")]
    assert profile.graphs_since.value == "0.20"
    assert [(one.least_gib, one.max_num_seqs, one.max_num_batched_tokens) for one in profile.batch_classes] == [
        (160, 1024, 16384),
        (70, 1024, 8192),
        (70, 1024, 8192),
        (0, 1024, 2048),
        (0, 256, 2048),
    ]
    assert profile.sampler.few_rows.value == 128
    assert profile.runner2[0].models == "all"
    assert len(estimates_in(profile)) == TEXT.count("expected:")
    for entry in estimates_in(profile):
        assert 0 <= entry.low <= entry.expected <= entry.high
        assert entry.source.strip()


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.33", 14), ("0.17.0", 14), ("0.16.0", 38), ("0.11.1", 38), ("0.11.0", 38), ("0.6.1.post1", 38)],
)
def test_an_estimate_by_version(version: str, expected: int) -> None:
    """The newest entry that is not later than the version; patches count."""
    assert vllm_profile().estimate("sampler.logit_bytes", version).expected == expected
    assert vllm_profile().estimate("sampler.logit_bytes", "0.11.0").low == 14
    assert vllm_profile().estimate("sampler.logit_bytes", "0.11").low == 38


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("schema_version: 1", "schema_version: 2"), "schema_version"),
        (("schema_version: 1", "schema_version: 1\nextra: 1"), "extra"),
        (("low: 268435456, expected: 536870912,", "low: 268435456, most: 1, expected: 536870912,"), "non_torch.amd.0.most"),
        (("  amd:", "  amds:"), "non_torch.amds"),
        (("few_rows: {value: 128", "few_rows: {value: few"), "sampler.few_rows.value"),
        (("models: all", "models: most"), "runner2.0.models"),
        (("architectures: [], source: not by default", "architectures: none, source: not by default"), "runner2.8.architectures"),
        (("since: '0.25', models", "since: '0.26', models"), "runner2"),
        (("value: '0.92'", "value: 0.92"), "utilization.0.value"),
        (("value: '0.92'", "value: '92'"), "utilization.0.value"),
        (("{since: '0.0', value", "{since: '0.1', value"), "utilization"),
        (("{since: '0.20', value", "{since: new, value"), "utilization.0.since"),
        (("graphs_since: {value: '0.20'", "graphs_since: {value: 0.20"), "graphs_since.value"),
        (("since: '0.8.4', least_gib: 0,", "since: '0.8.4', least_gib: 1,"), "batch_classes"),
        (("since: '0.8.4', least_gib: 0,", "since: '0.8.4', least_gib: -1,"), "batch_classes.4.least_gib"),
        (("max_num_seqs: 256", "max_num_seqs: 0"), "batch_classes.4.max_num_seqs"),
        (("except_names: [a100], except_cap", "except_names: a100, except_cap"), "batch_classes.1.except_names"),
    ],
)
def test_a_broken_file(change: tuple[str, str], key: str) -> None:
    """Path, line and key."""
    assert TEXT.count(change[0]) == 1
    file = parse_yaml(TEXT.replace(*change), Path("vllm.yaml"))

    with pytest.raises(ProfileError) as caught:
        check(file, VllmFile)
    assert caught.value.key == key
    assert caught.value.line is not None


def test_runtime() -> None:
    """Every term of a process has a source, and a margin is a share."""
    profile = runtime_profile()

    assert Fraction(profile.margin.value) == Fraction(1, 20)
    assert len(estimates_in(profile)) == RUNTIME_TEXT.count("expected:")
    for estimate in estimates_in(profile):
        assert 0 <= estimate.low <= estimate.expected <= estimate.high
        assert estimate.source.strip()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("schema_version: 1", "schema_version: 2"), "schema_version"),
        (("id: runtime", "id: runtime\nextra: 1"), "extra"),
        (("rotary_bytes: {low: 0,", "rotary_bytes: {low: 3,"), "rotary_bytes"),
        (("rotary_bytes: {low: 0,", "rotary_bytes: {low: -1,"), "rotary_bytes.low"),
        (("rotary_bytes: {low: 0,", "rotary_bytes: {low: .nan,"), "rotary_bytes.low"),
        (("rotary_bytes: {low: 0,", "rotary_bytes: {low: '0',"), "rotary_bytes.low"),
        (("rotary_bytes: {low: 0,", "rotary_bytes: {"), "rotary_bytes.low"),
        (("  sm_90: {", "  sm_91: {"), "workspace.sm_91"),
        (("value: '0.05'", "value: 0.05"), "margin.value"),
        (("value: '0.05'", "value: '5'"), "margin.value"),
    ],
)
def test_a_broken_runtime(change: tuple[str, str], key: str) -> None:
    """Path, line and key."""
    assert RUNTIME_TEXT.count(change[0]) == 1

    with pytest.raises(ProfileError) as caught:
        check(parse_yaml(RUNTIME_TEXT.replace(*change), Path("runtime.yaml")), RuntimeFile)
    assert caught.value.key == key
    assert caught.value.line is not None


def test_a_missing_key() -> None:
    """All sections must be there."""
    for name, form in FORMS.items():
        with pytest.raises(ProfileError, match=f"{name}.yaml: recorded: is missing: it must be a date"):
            check(parse_yaml(f"schema_version: 1\nid: {name}\n", Path(f"{name}.yaml")), form)
