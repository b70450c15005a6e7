"""``kvplan gpus`` and ``kvplan instances``: lists, one in full, every format, and what a shell completes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from hwcalc.cli import completion
from hwcalc.hardware import local
from hwcalc.hardware.local import FoundGpu
from hwcalc.profiles.catalog import user_folder
from hwcalc.profiles.gpus import list_gpus
from hwcalc.profiles.instances import list_instances
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import QWEN, Capture, run


def test_the_list(capsys: Capture) -> None:
    """Every accelerator once, with what is sold, reported and seen."""
    status, out, err = run(capsys, "gpus")

    assert status == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(list_gpus())
    assert max(map(len, out.splitlines())) <= 100
    (h200,) = [line.split() for line in out.splitlines() if line.startswith("h200-sxm-141gb")]
    assert h200 == ["h200-sxm-141gb", "nvidia", "141", "143,771", "143,156", "4,800", "989.4", "1,978.9", "native"]
    # 0.994 of nvidia-smi's 46,068 MiB.
    (l40,) = [line.split() for line in out.splitlines() if line.startswith("l40 ")]
    assert l40[4] == "~45,791"
    assert "267 accelerators" in err


def test_words_filter(capsys: Capture) -> None:
    """All must occur, in the id, the name, the maker, the kind or the architecture."""
    found = {line.split()[0] for line in run(capsys, "gpus", "amd", "instinct", "-q")[1].splitlines()[1:]}
    assert found == {
        "mi50-16gb",
        "mi50-32gb",
        "mi60",
        "mi100",
        "mi210",
        "mi250",
        "mi250x",
        "mi300a",
        "mi300x",
        "mi308x",
        "mi325x",
        "mi350x",
        "mi355x",
        "mi455x",
    }
    assert "h100-nvl-94gb" in run(capsys, "gpus", "sm_90")[1]


def test_a_size_of_memory_is_a_word(capsys: Capture) -> None:
    """Of every size that is sold, whole: 4gb is no part of 24gb; as an accelerator it is answered with this list."""
    listed = run(capsys, "gpus", "24gb", "--format", "csv")[1]

    assert {"l4", "rtx-4090", "apple-m4"} <= {line.partition(",")[0] for line in listed.splitlines()}
    assert "rtx-4090" not in run(capsys, "gpus", "4gb")[1]
    assert "kvplan gpus 24gb" in run(capsys, QWEN, "--gpu", "24 GB")[2]


def test_one_in_full(capsys: Capture) -> None:
    """An alias is enough; sources, other names, instances, and the others that have the word in their name."""
    status, out, err = run(capsys, "gpus", "h100")

    assert status == 0
    for text in (
        "NVIDIA H100 80GB HBM3",
        "81,559 MiB",
        "81,082 MiB",
        "aws/p5.48xlarge",
        "3,350 GB/s",
        "h100-sxm",
        "confidence",
        "source",
    ):
        assert text in out
    assert "h100-nvl-94gb, h100-pcie-80gb" in err
    assert "90 GB" not in out
    assert run(capsys, "gpus", "h100", "-q")[2] == ""
    assert "64 GB" in run(capsys, "gpus", "m4-max-64")[1]


def test_formats(capsys: Capture) -> None:
    """CSV has plain numbers, Markdown a table, JSON the whole record by its schema."""
    rows = list(csv.DictReader(io.StringIO(run(capsys, "gpus", "--format", "csv")[1])))
    assert len(rows) == 267
    (l4,) = [row for row in rows if row["id"] == "l4"]
    assert (l4["memory_total_mib"], l4["visible_low_mib"], l4["visible_high_mib"]) == ("23034", "22558", "22589")
    assert run(capsys, "gpus", "apple", "--format", "markdown")[1].startswith("| accelerator | name |")
    assert run(capsys, "gpus", "h100", "--format", "markdown")[0] == 0

    for words in (("gpus",), ("gpus", "h100"), ("gpus", "m4-max-64")):
        document = json.loads(run(capsys, *words, "--json")[1])
        Draft202012Validator(json_schema("gpus")).validate(document)
    document = json.loads(run(capsys, "gpus", "h100", "--json")[1])
    (h100,) = document["gpus"]
    assert h100["visible"]["expected_bytes"] == 81_082 * 1024**2
    assert "oci/bm.gpu.h100.8" in h100["instances"]
    assert h100["interconnect"]["gbps_bidirectional"] == 900


@pytest.mark.parametrize(
    ("command", "word", "near"), [("gpus", "h101", "h100-sxm5-80gb"), ("instances", "p5.48xl", "aws/p5.48xlarge")]
)
def test_unknown(capsys: Capture, command: str, word: str, near: str) -> None:
    """Exit 2, like ``--gpu``, with the nearest; in JSON too."""
    status, out, err = run(capsys, command, word + "-x")
    assert (status, out) == (2, "")
    assert near in err
    status, out, _ = run(capsys, command, "nonsense of a name", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "usage"


def test_local(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """``kvplan gpus local`` is this machine's, with what was found on standard error."""
    found = FoundGpu(name="NVIDIA H200", vendor="nvidia", through="NVML", memory_mib=143_771)
    monkeypatch.setattr(local, "PROBES", (lambda: [found],))
    local.detect.cache_clear()
    status, out, err = run(capsys, "gpus", "local")
    local.detect.cache_clear()

    assert status == 0
    assert "h200-sxm-141gb" in out
    assert "Found NVIDIA H200, 143,771 MiB through NVML" in err


def test_instances(capsys: Capture) -> None:
    """All of them; those with an accelerator, by its id or another name; one in full."""
    status, out, err = run(capsys, "instances")
    assert status == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} >= {"aws/p5.48xlarge", "box/dgx-h100", "gcp/tpu7x-standard-4t"}
    assert "194 instances" in err

    out = run(capsys, "instances", "h100", "nvswitch")[1]
    assert {line.split()[0] for line in out.splitlines()[1:]} == {
        "aws/p5.48xlarge", "azure/standard-nd96isr-h100-v5", "box/dgx-h100", "gcp/a3-edgegpu-8g", "gcp/a3-megagpu-8g", "oci/bm.gpu.h100.8",
    }  # fmt: skip
    assert len(run(capsys, "instances", "trillium")[1].splitlines()) == 4

    out = run(capsys, "instances", "p5.48xlarge")[1]
    for text in ("8 x h100-sxm5-80gb", "NVSwitch", "79.18 GiB", "karpenter", "--instance aws/p5.48xlarge"):
        assert text in out
    assert "1/8 of l4" in run(capsys, "instances", "g6f.large")[1]
    assert run(capsys, "instances", "4090")[0] == 2


def test_formats_of_instances(capsys: Capture) -> None:
    """CSV, Markdown, and JSON by its schema."""
    rows = list(csv.DictReader(io.StringIO(run(capsys, "instances", "--format", "csv")[1])))
    assert len(rows) == len(list_instances())
    (p5,) = [row for row in rows if row["name"] == "aws/p5.48xlarge"]
    assert (p5["count"], p5["visible_bytes_each"]) == ("8", str(81_082 * 1024**2))
    shown = re.search(r"^aws/p5.48xlarge .* \$([\d.]+) +([\d-]+)  NVSwitch$", run(capsys, "instances", "h100")[1], re.MULTILINE)
    assert shown is not None
    assert (float(p5["usd_per_hour"]), p5["price_date"]) == (float(shown[1]), shown[2])
    assert p5["price_source"].startswith("https://")
    assert run(capsys, "instances", "l4", "--format", "markdown")[1].startswith("| instance |")
    for words in (("instances",), ("instances", "g6f.large")):
        document = json.loads(run(capsys, *words, "--json")[1])
        Draft202012Validator(json_schema("instances")).validate(document)
    assert document["instances"][0]["fraction"] == "1/8"


@pytest.mark.parametrize("command", ["gpus", "instances"])
def test_a_broken_file_of_a_users_own(capsys: Capture, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others are listed, and standard error names the file; who asks for that one gets exit 3, no traceback."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("gpus")
    assert folder is not None
    broken = folder / "bad.yaml" if command == "gpus" else folder.with_name("instances") / "sky" / "bad.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("{", encoding="utf-8")
    known = list_gpus() if command == "gpus" else list_instances()
    (name,) = (one for one in known if one.endswith("bad"))
    listing: tuple[tuple[str, ...], ...] = ((command,), (command, "--quiet"), (command, "h100"), ("gpus", "l4"))
    for words in listing:
        status, out, err = run(capsys, *words)
        assert status == 0
        assert out
        assert err.count("bad.yaml") == 1, words
    status, out, err = run(capsys, command, "--json")
    assert (status, [one.get("name" if command == "instances" else "id") for one in json.loads(out)[command]]) == (
        0,
        [one for one in known if one != name],
    )
    assert "bad.yaml" in err
    asking: tuple[tuple[str, ...], ...] = (
        (command, "bad"),
        (command, name),
        ("plan", QWEN, "--seq", "1k", f"--{command[:-1]}", name),
    )
    for words in asking:
        status, out, err = run(capsys, *words)
        assert (status, out) == (3, ""), words
        assert "bad.yaml" in err


def test_a_broken_file_that_hides_a_known_accelerator(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is no longer listed, and nor are the instances that have it: the user's word counts, and it cannot be read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("gpus")
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "l4.yaml").write_text("{", encoding="utf-8")

    for command, gone, left in (("gpus", "l4", "l40s"), ("instances", "aws/g6.xlarge", "aws/g6e.xlarge")):
        status, out, err = run(capsys, command, "--format", "csv", "--quiet")
        listed = {row[0] for row in csv.reader(io.StringIO(out))}
        assert (status, gone in listed, left in listed) == (0, False, True)
        assert err.count("l4.yaml") == 1
    status, out, err = run(capsys, "plan", QWEN, "--seq", "1k", "--gpu", "l4")
    assert (status, out) == (3, "")
    assert "l4.yaml" in err


def test_a_broken_file_and_this_machine(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """--gpu local looks through all profiles, and completion too: neither is stopped."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("gpus")
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text("{", encoding="utf-8")
    found = FoundGpu(name="NVIDIA L4", vendor="nvidia", memory_mib=23_034, capability=(8, 9), through="a test")
    monkeypatch.setattr(local, "detect", lambda: local.LocalGpus(first=found, count=1, others=()))
    status, out, _ = run(capsys, "plan", QWEN, "--seq", "1k", "--gpu", "local", "--json")

    assert status == 0
    document = json.loads(out)
    assert document["fit"]["gpu"] == "l4"
    assert any("bad.yaml" in note["message"] for note in document["notes"])
    assert "nvidia" in completion.vendors("")
    assert "datacenter" in completion.categories("")


def test_a_folder_that_cannot_be_read(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same, where a folder is the matter."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_folder("gpus")
    assert folder is not None
    folder.mkdir(parents=True)

    def refused(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refused)
    for command in ("gpus", "instances"):
        status, out, err = run(capsys, command)
        assert (status, out) == (3, "")
        assert "Permission denied" in err


@pytest.mark.parametrize("command", ["gpus", "instances"])
@pytest.mark.parametrize("word", ["\0", "é", "x" * 100_000, "../../etc/passwd", "a/b/c", "%s", "[bold]", "\x1b[31m"])
def test_hostile_words(capsys: Capture, command: str, word: str) -> None:
    """A message and exit 2; nothing that moves the cursor."""
    status, out, err = run(capsys, command, word)

    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert len(err) < 1000


def test_completion() -> None:
    """Ids and other names, a Mac's sizes, instances with their cloud or without."""
    assert completion.gpus("h200-s") == ["h200-sxm-141gb", "h200-sxm"]
    assert "local" in completion.gpus("")
    assert completion.gpus("apple-m4-max-40c") == [
        "apple-m4-max-40c",
        "apple-m4-max-40c-48gb",
        "apple-m4-max-40c-64gb",
        "apple-m4-max-40c-128gb",
    ]
    assert completion.instances("p5.4") == ["p5.48xlarge", "p5.4xlarge"]
    assert completion.instances("aws/p5.4") == ["aws/p5.48xlarge", "aws/p5.4xlarge"]
    assert set(completion.instances("")) == set(list_instances())
    assert completion.instances("zzz") == []
