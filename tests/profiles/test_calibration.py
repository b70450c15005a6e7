"""What the user's machine measured: written whole or not at all, checked when it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hwcalc.errors import UnwritableFileError
from hwcalc.profiles.calibration import (
    BANDWIDTH,
    SWITCH,
    Calibration,
    Measured,
    Measurement,
    calibration_path,
    enabled,
    load_calibration,
    overheads_kind,
    parse_calibration,
    save_reading,
)
from hwcalc.profiles.catalog import ProfileError

MEASURED = Measured(device="NVIDIA L4", date="2026-11-20", source="a log", driver="580.1", torch="2.13.0")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of nobody's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    return tmp_path


def reading(value: int, date: str = "2026-11-20", **conditions: int | str) -> Measurement:
    """One value that an engine took, under conditions."""
    measured = Measured(device="NVIDIA L4", date=date, source="a log")
    return Measurement(values={"non_torch_bytes": value}, measured=measured, conditions=conditions)


def read(kind: str = "overheads-vllm") -> Calibration:
    """What is there."""
    found = load_calibration("l4", kind)
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All of it, from one file in the user's folder."""
    path = save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 251.5}, measured=MEASURED))

    assert path == tmp_path / "kvplan" / "profiles" / "calibration" / "l4.bandwidth.json"
    assert [entry.name for entry in path.parent.iterdir()] == ["l4.bandwidth.json"]
    found = read(BANDWIDTH)
    assert (found.gpu, found.kind, found.path) == ("l4", "bandwidth", path)
    assert dict(found.readings[0].values) == {"read_gbps": 251.5}
    assert found.readings[0].measured == MEASURED


def test_nothing_measured() -> None:
    """No file is nothing, and neither is a name that no file could have."""
    assert load_calibration("l4", BANDWIDTH) is None
    assert load_calibration("../../etc/passwd", BANDWIDTH) is None
    with pytest.raises(ValueError):
        calibration_path("../l4", BANDWIDTH)
    with pytest.raises(ValueError):
        calibration_path("l4", "overheads-../x")


def test_the_same_conditions_replace_and_others_stay() -> None:
    """Two models have a reading each; measured again, one is replaced."""
    save_reading("l4", overheads_kind("vllm"), reading(1, model="a"))
    save_reading("l4", overheads_kind("vllm"), reading(2, model="b"))
    save_reading("l4", overheads_kind("vllm"), reading(3, model="a"))

    assert [(dict(one.conditions)["model"], one.values["non_torch_bytes"]) for one in read().readings] == [("b", 2), ("a", 3)]


def test_the_newest_that_holds() -> None:
    """By date, then by order; a condition that is not the same, or not there, does not hold."""
    save_reading("l4", "overheads-vllm", reading(1, date="2026-11-20", model="a", tp=1))
    save_reading("l4", "overheads-vllm", reading(2, date="2026-11-19", model="b", tp=1))
    save_reading("l4", "overheads-vllm", reading(3, date="2026-11-20", model="c", tp=2))
    found = read()

    def value(**conditions: int | str) -> Any:
        newest = found.latest("non_torch_bytes", conditions)
        return None if newest is None else newest.values["non_torch_bytes"]

    assert (value(), value(tp=1), value(model="b"), value(tp=4), value(rows=1)) == (3, 1, 2, None, None)
    assert found.latest("graphs_bytes") is None


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """``KVPLAN_NO_CALIBRATION`` with anything but 0."""
    assert enabled()
    monkeypatch.setenv(SWITCH, "0")
    assert enabled()
    monkeypatch.setenv(SWITCH, "1")
    assert not enabled()


GOOD: dict[str, Any] = {
    "schema_version": 1,
    "gpu": "l4",
    "kind": "overheads-vllm",
    "readings": [
        {
            "values": {"non_torch_bytes": 1},
            "conditions": {"model": "a", "tp": 1},
            "measured": {"device": "d", "driver": None, "torch": None, "date": "2026-11-20", "source": "s"},
        }
    ],
}


def test_good_is_good(tmp_path: Path) -> None:
    """What the changes below start from is read."""
    assert parse_calibration(GOOD, tmp_path / "l4.overheads-vllm.json").readings[0].values["non_torch_bytes"] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 2),
        ("schema_version", True),
        ("gpu", "l40"),
        ("gpu", 4),
        ("kind", "bandwidth"),
        ("kind", "speed"),
        ("kind", None),
        ("readings", {}),
        ("readings", [1]),
        ("extra", 1),
        ("readings.0.values", {}),
        ("readings.0.values", {"speed": 1}),
        ("readings.0.values.non_torch_bytes", -1),
        ("readings.0.values.non_torch_bytes", 1.5),
        ("readings.0.values.non_torch_bytes", True),
        ("readings.0.values.non_torch_bytes", 2**60),
        ("readings.0.values.non_torch_bytes", "1"),
        ("readings.0.conditions", []),
        ("readings.0.conditions.color", "red"),
        ("readings.0.conditions.tp", "1"),
        ("readings.0.conditions.model", 1),
        ("readings.0.measured.date", "yesterday"),
        ("readings.0.measured.source", ""),
        ("readings.0.measured.device", "d" * 501),
        ("readings.0.measured.driver", 5),
        ("readings.0.measured.extra", "x"),
    ],
)
def test_one_wrong_value_is_named(tmp_path: Path, key: str, value: object) -> None:
    """The error says which file and which key."""
    document = json.loads(json.dumps(GOOD))
    *outer, last = key.split(".")
    place: Any = document
    for name in outer:
        place = place[int(name) if name.isdecimal() else name]
    place[last] = value
    path = tmp_path / "l4.overheads-vllm.json"

    with pytest.raises(ProfileError) as caught:
        parse_calibration(document, path)

    assert caught.value.path == path
    wanted = key.rpartition(".")[0] if last in ("extra", "color") else key
    assert (caught.value.key or "").startswith(wanted) or last in ("kind", "extra")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "must be a mapping with schema_version, gpu, kind, readings"),
        ("[" * 100_000, "cannot be read|can be read|not JSON"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ("\x00", "not JSON"),
        (" " * (1024**2 + 1), "larger than"),
    ],
)
def test_a_broken_file(text: str, part: str) -> None:
    """Says what is wrong with it, and is not written over."""
    path = calibration_path("l4", BANDWIDTH)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ProfileError, match=part):
        load_calibration("l4", BANDWIDTH)
    with pytest.raises(ProfileError):
        save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 1.0}, measured=MEASURED))
    assert path.read_text(encoding="utf-8") == text


def test_other_things_in_its_place() -> None:
    """A folder, a dangling link, bytes that are no text."""
    path = calibration_path("l4", BANDWIDTH)
    assert path is not None
    path.mkdir(parents=True)
    with pytest.raises(ProfileError):
        load_calibration("l4", BANDWIDTH)
    path.rmdir()
    path.symlink_to(path.with_name("nowhere"))
    with pytest.raises(ProfileError, match="cannot be read"):
        load_calibration("l4", BANDWIDTH)
    path.unlink()
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(ProfileError, match="UTF-8"):
        load_calibration("l4", BANDWIDTH)


@pytest.mark.parametrize("values", [{"read_gbps": float("nan")}, {"read_gbps": 0.0}, {"non_torch_bytes": 1}, {}])
def test_what_could_not_be_read_is_not_written(values: dict[str, float], tmp_path: Path) -> None:
    """A bad reading is the caller's error, and leaves no file."""
    with pytest.raises(ValueError):
        save_reading("l4", BANDWIDTH, Measurement(values=values, measured=MEASURED))
    assert not (tmp_path / "kvplan").exists()


def test_killed_while_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is whole, and nothing else is left in the folder."""
    path = save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 1.0}, measured=MEASURED))
    before = path.read_text(encoding="utf-8")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 2.0}, measured=MEASURED))

    assert path.read_text(encoding="utf-8") == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Says so."""
    (tmp_path / "kvplan").write_text("a file", encoding="utf-8")
    with pytest.raises(UnwritableFileError, match="cannot be written"):
        save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 1.0}, measured=MEASURED))


def test_changed_on_disk_is_read_again() -> None:
    """Two readings in a row, each seen."""
    save_reading("l4", "overheads-vllm", reading(1, model="a"))
    assert len(read().readings) == 1
    save_reading("l4", "overheads-vllm", reading(2, model="b"))
    assert len(read().readings) == 2
