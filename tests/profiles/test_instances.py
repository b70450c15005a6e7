"""The instances' files: all load, all accelerators are known; names and the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml
from msgspec.structs import replace

from hwcalc.errors import ConfigError, UsageError
from hwcalc.hardware.named import load_instance
from hwcalc.model import Note
from hwcalc.profiles.catalog import ProfileError, built_in, user_folder
from hwcalc.profiles.gpus import find_gpu, list_gpus, visible_memory
from hwcalc.profiles.hardware_file import InstanceFile, file_name
from hwcalc.profiles.instances import (
    AmbiguousInstanceError,
    UnknownInstanceError,
    find_instance,
    list_instances,
    nearest_instances,
)
from hwcalc.profiles.schema import parse_instance, read_yaml

BUILT_IN: Final = Path(built_in("instances"))
FILES: Final = sorted(BUILT_IN.glob("*/*.yaml"))
MIB: Final = 1024**2

OWN: Final = """\
schema_version: 1
id: Big.Box
cloud: cellar
accelerator: h100-sxm5-80gb
count: 3
source:
  own: counted
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder of a cloud, there and empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = user_folder("instances")
    assert folder == tmp_path / "config" / "kvplan" / "profiles" / "instances"
    (folder / "cellar").mkdir(parents=True)
    return folder / "cellar"


def test_there_are_as_many_as_the_table_has() -> None:
    """194 instances of four clouds and boxes, no other file, and the names are the files'."""
    assert len(FILES) == 194
    assert {path.parent.name for path in FILES} == {"aws", "gcp", "azure", "oci", "box"}
    assert list_instances() == tuple(sorted(f"{path.parent.name}/{path.stem}" for path in FILES))
    assert {path.suffix for path in BUILT_IN.rglob("*") if path.is_file()} == {".yaml", ".md"}


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}/{path.stem}" for path in FILES])
def test_the_data(path: Path) -> None:
    """Every file loads, says where it is from, names an accelerator that has a file, and is found by its cloud's own spelling."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    instance = replace(parse_instance(read_yaml(path)), path=None, user=False)

    assert instance.accelerator in list_gpus()
    assert instance.source
    assert set(InstanceFile.__struct_fields__) - set(data) <= {"fraction", "memory_mib", "note"}
    assert find_instance(f"{instance.cloud}/{instance.id}") == instance
    assert find_instance(instance.id.upper()) == instance
    if instance.fraction is not None and instance.memory_mib is not None:
        # The cloud's own figure is that share of the card's, within what the card's driver keeps.
        whole = find_gpu(instance.accelerator).memory_total_mib
        assert whole is not None
        assert 0.98 < instance.memory_mib * instance.fraction[1] / (whole * instance.fraction[0]) <= 1


@pytest.mark.parametrize(
    ("name", "gpu_id", "count"),
    [
        ("p5.48xlarge", "h100-sxm5-80gb", 8),
        ("P5.48XLARGE", "h100-sxm5-80gb", 8),
        ("aws/g6.12xlarge", "l4", 4),
        ("Standard_ND96isr_H100_v5", "h100-sxm5-80gb", 8),
        ("ND96isr_H100_v5", "h100-sxm5-80gb", 8),
        ("a2-ultragpu-4g", "a100-sxm4-80gb", 4),
        ("n1-standard + nvidia-tesla-t4 x4", "t4", 4),
        ("BM.GPU.MI300X.8", "mi300x", 8),
        ("DGX GB200 NVL72", "gb200-186gb", 72),
        ("dgx-1 (V100 16 GB)", "v100-sxm2-16gb", 8),
        ("trn2.48xlarge", "trainium2", 16),
    ],
)
def test_names(name: str, gpu_id: str, count: int) -> None:
    """With or without the cloud, in any case; what each has."""
    notes: list[Note] = []
    gpu, found = load_instance(name, notes)

    assert (gpu.id, found) == (gpu_id, count)
    assert [note.code for note in notes] == ["instance"]


def test_a_count_of_chips_is_in_the_unit_of_the_accelerators_file() -> None:
    """Four Ironwood chips of 192 GiB, though software may see two devices in each: the note says so."""
    notes: list[Note] = []
    gpu, count = load_instance("tpu7x-standard-4t", notes)

    assert (gpu.memory_total_mib, count) == (192 * 1024, 4)
    assert "two devices of 96 GiB" in notes[0].message


def test_a_share_of_an_accelerator() -> None:
    """1/8 of an L4: the memory that the cloud says, nothing that was read of a whole one, and no rates."""
    notes: list[Note] = []
    gpu, count = load_instance("g6f.large", notes)
    visible = visible_memory(gpu)

    assert (gpu.memory_total_mib, gpu.memory_marketing_gb, gpu.torch_total_mib, count) == (2861, 3, None, 1)
    assert visible is not None
    assert visible.expected_bytes == int(2861 * 0.994) * MIB
    assert gpu.memory_bandwidth_gbps is None
    assert set(gpu.tflops_dense.values()) == {None}
    assert "1/8 of l4" in notes[0].message
    # A sixth of what nvidia-smi says of an A10.
    assert load_instance("Standard_NV6ads_A10_v5", [])[0].memory_total_mib == 23_028 // 6


@pytest.mark.parametrize(
    "name", ["", " ", "/", "aws/", "p5.48xl", "../aws/p5.48xlarge", "x" * 10_000, "aws/../aws", "\0", "é", ".."]
)
def test_unknown_names(name: str) -> None:
    """An unknown name is an error, whatever is in it."""
    with pytest.raises(UnknownInstanceError):
        find_instance(name)
    with pytest.raises(UsageError, match="not known"):
        load_instance(name, [])


def test_what_may_have_been_meant() -> None:
    """The nearest names come first; nonsense has none."""
    assert nearest_instances("p5.48xlarg")[0] == "aws/p5.48xlarge"
    assert nearest_instances("nd96isr_h100")[0] == "azure/standard-nd96isr-h100-v5"
    assert nearest_instances("!!") == ()
    with pytest.raises(UsageError) as caught:
        load_instance("p5.48xlarg", [])
    assert "aws/p5.48xlarge" in caught.value.hint


def test_a_users_own(own: Path) -> None:
    """The user's file adds an instance or comes before the built-in one, and a plan says so; a name of two clouds needs the cloud."""
    (own / "big.box.yaml").write_text(OWN, encoding="utf-8")
    notes: list[Note] = []

    assert load_instance("big.box", notes)[1] == 3
    assert [note.code for note in notes] == ["instance", "user-profile"]
    assert "cellar/big.box" in list_instances()

    (own / "p5.48xlarge.yaml").write_text(OWN.replace("Big.Box", "p5.48xlarge"), encoding="utf-8")
    with pytest.raises(AmbiguousInstanceError) as caught:
        find_instance("p5.48xlarge")
    assert caught.value.names == ("aws/p5.48xlarge", "cellar/p5.48xlarge")
    with pytest.raises(UsageError) as usage:
        load_instance("p5.48xlarge", [])
    assert usage.value.hint == "Write aws/p5.48xlarge or cellar/p5.48xlarge."
    assert find_instance("cellar/p5.48xlarge").count == 3

    folder = own.with_name("aws")
    folder.mkdir()
    (folder / "p5.48xlarge.yaml").write_text(
        OWN.replace("Big.Box", "p5.48xlarge").replace("cellar", "aws").replace("count: 3", "count: 7"), encoding="utf-8"
    )
    assert (find_instance("aws/p5.48xlarge").count, find_instance("aws/p5.48xlarge").user) == (7, True)


@pytest.mark.parametrize(
    ("change", "line", "key"),
    [
        (("count: 3", "count: 0"), 5, "count"),
        (("count: 3", "count: true"), 5, "count"),
        (("count: 3", "count: 1.5"), 5, "count"),
        (("count: 3", "count: 1000000"), 5, "count"),
        (("count: 3", "count: 3\nfraction: 1/8"), 6, "fraction"),
        (("count: 3", "count: 1\nfraction: 9/8"), 6, "fraction"),
        (("count: 3", "count: 1\nfraction: 0.125"), 6, "fraction"),
        (("count: 3", "count: 1\nmemory_mib: 100"), 6, "memory_mib"),
        (("count: 3", "count: 3\nprice: 1"), 6, "price"),
        (("h100-sxm5-80gb", "../x"), 4, "accelerator"),
        (("Big.Box", "other"), 2, "id"),
        (("cloud: cellar", "cloud: Attic"), 3, "cloud"),
        (("cloud: cellar", "cloud: attic"), 2, "id"),
        (("source:\n  own: counted\n", ""), None, "source"),
        (("own: counted", "own: "), 7, "source.own"),
    ],
)
def test_a_broken_file(own: Path, change: tuple[str, str], line: int | None, key: str) -> None:
    """Path, line and key; the command says it as an error of the file."""
    assert OWN.count(change[0]) == 1
    (own / "big.box.yaml").write_text(OWN.replace(*change), encoding="utf-8")

    with pytest.raises(ProfileError) as caught:
        find_instance("big.box")
    assert (caught.value.line, caught.value.key) == (line, key)
    with pytest.raises(ConfigError, match=r"big\.box\.yaml"):
        load_instance("big.box", [])


def test_an_instance_of_an_unknown_accelerator(own: Path) -> None:
    """A user's file may name what nobody knows: the error names the file and what is near."""
    (own / "big.box.yaml").write_text(OWN.replace("h100-sxm5-80gb", "h100-sxm6-80gb"), encoding="utf-8")

    with pytest.raises(ConfigError, match=r"big\.box\.yaml: accelerator: 'h100-sxm6-80gb'") as caught:
        load_instance("big.box", [])
    assert "h100-sxm5-80gb" in caught.value.hint


def test_every_key_is_in_the_readme() -> None:
    """What a file may have, and where one's own lie."""
    readme = (BUILT_IN / "README.md").read_text(encoding="utf-8")

    assert all(f"`{key}`" in readme for key in InstanceFile.__struct_fields__)
    assert "$XDG_CONFIG_HOME/kvplan/profiles/instances" in readme


def test_file_names() -> None:
    """Nothing of a name leads out of its folder."""
    assert file_name("../..//x") == "x"
    assert file_name("Standard_NC24ads_A100_v4") == "standard-nc24ads-a100-v4"
    assert file_name("...") == ""
