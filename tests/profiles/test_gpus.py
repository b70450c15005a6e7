"""The accelerators' files: all load, their numbers are sourced and in order; the user's own come first; the recipe works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hwcalc.errors import ConfigError, UsageError
from hwcalc.hardware.named import load_gpu
from hwcalc.model import Note
from hwcalc.profiles.catalog import ProfileError, built_in, user_folder
from hwcalc.profiles.gpus import (
    UnknownGpuError,
    _squashed,
    find_gpu,
    gpu_aliases,
    list_gpus,
    nearest,
)
from hwcalc.profiles.hardware_file import GpuFile
from hwcalc.profiles.schema import parse_yaml

BUILT_IN: Final = Path(built_in("gpus"))
FILES: Final = sorted(BUILT_IN.glob("*.yaml"))
IDS: Final = [path.stem for path in FILES]

OWN: Final = """\
schema_version: 1
id: my-card
name: My card
vendor: nvidia
memory_total_mib: 24576
source:
  own: nvidia-smi
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, there and empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = user_folder("gpus")
    assert folder == tmp_path / "config" / "kvplan" / "profiles" / "gpus"
    folder.mkdir(parents=True)
    return folder


def content(gpu_id: str) -> dict[str, Any]:
    """The file as it stands, past the loader."""
    data: dict[str, Any] = yaml.safe_load((BUILT_IN / f"{gpu_id}.yaml").read_text(encoding="utf-8"))
    return data


def test_every_file_is_listed() -> None:
    """A file is an accelerator; there are some of each vendor."""
    assert list_gpus() == tuple(sorted(IDS))
    assert {find_gpu(gpu_id).vendor for gpu_id in IDS} >= {
        "nvidia",
        "amd",
        "apple",
        "intel",
        "google",
        "aws",
        "huawei",
        "tenstorrent",
    }


def test_sources_are_written_for_readers() -> None:
    """A source says where a number is from, in words of small letters, and not by a mark of those who collect them."""
    marks = re.compile(r"(^|; )(SEEN|DATASHEET|VENDOR DOCS|DERIVED)\b|not re-read|index string")

    assert [gpu_id for gpu_id in IDS if marks.search(find_gpu(gpu_id).source)] == []


@pytest.mark.parametrize("gpu_id", IDS)
def test_the_data(gpu_id: str) -> None:
    """Every file loads, says where its numbers are from, keeps its memory figures in order, and writes what is unknown as null."""
    data, gpu = content(gpu_id), find_gpu(gpu_id)

    assert gpu.id == gpu_id
    assert not gpu.user
    assert data["source"]
    assert all(text.strip() for text in data["source"].values())
    assert set(GpuFile.__struct_fields__) - set(data) <= {
        "memory_options_gb",
        "memory_bandwidth_seen_gbps",
        "devices_per_package",
        "gpus_per_node",
        "host_memory",
        "note",
    }
    assert 0 not in data.values()
    sizes = [gpu.torch_total_mib, gpu.memory_total_mib, gpu.memory_marketing_gb and gpu.memory_marketing_gb * 1024]
    known = [size for size in sizes if size is not None]
    assert known == sorted(known)
    assert known
    assert (gpu.memory_total_mib is None) == (gpu.memory_total_basis is None)
    assert (gpu.torch_total_mib is None) == (gpu.torch_total_basis is None)
    if gpu.torch_total_mib is not None:
        assert gpu.torch_total_mib_seen is not None
        assert gpu.torch_total_mib_seen[0] <= gpu.torch_total_mib <= gpu.torch_total_mib_seen[1]
    if gpu.memory_options_gb:
        assert max(gpu.memory_options_gb) == gpu.memory_marketing_gb


@pytest.mark.parametrize("gpu_id", [gpu_id for gpu_id in IDS if find_gpu(gpu_id).vendor == "nvidia"])
def test_the_capability_is_the_architecture(gpu_id: str) -> None:
    """``sm_103`` is 10.3; FP8 attention came with 8.9."""
    gpu = find_gpu(gpu_id)
    if gpu.architecture is None:
        assert gpu.compute_capability is None
        return
    assert gpu.capability is not None
    major, minor = gpu.capability
    assert gpu.architecture == f"sm_{major}{minor}"
    assert gpu.fp8_kv == "native" if (major, minor) >= (8, 9) else gpu.fp8_kv in {"storage", "no"}


@pytest.mark.parametrize(
    ("gpu_id", "sold", "reported", "torch"),
    [
        ("h100-sxm5-80gb", 80, 81559, 81082),
        ("h200-sxm-141gb", 141, 143771, 143156),
        ("b200-180gb", 180, 183359, 182631),
        ("mi300x", 192, 196592, 196592),
        # No device was read by name: 22.03 GiB x 1,024 = 22,558.72 in out-of-memory texts.
        ("l4", 24, 23034, 22558),
        # 24,563 MiB was read on Windows, where the driver keeps nothing; 23.52 GiB x 1,024 = 24,084.48 on Linux.
        ("rtx-4090", 24, 24564, 24084),
        # Only a reading from Windows: unknown.
        ("rtx-5080", 16, 16303, None),
        ("rubin-288gb", 288, None, None),
    ],
)
def test_three_memory_figures(gpu_id: str, sold: int, reported: int | None, torch: int | None) -> None:
    """What is sold, what the tool reports and what a program sees are three numbers."""
    gpu = find_gpu(gpu_id)

    assert (gpu.memory_marketing_gb, gpu.memory_total_mib, gpu.torch_total_mib) == (sold, reported, torch)


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("h100", "h100-sxm5-80gb"),
        ("H100", "h100-sxm5-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("mi300x", "mi300x"),
        ("l4", "l4"),
        ("a100", "a100-sxm4-80gb"),
        (" L40S ", "l40s"),
        ("m4 max", "apple-m4-max-40c"),
    ],
)
def test_names(name: str, gpu_id: str) -> None:
    """Aliases, capitals, spaces and the vendor's name."""
    assert find_gpu(name).id == gpu_id


@pytest.mark.parametrize(
    ("name", "gpu_id", "size"),
    [
        ("m4-max-128", "apple-m4-max-40c-128gb", 128),
        ("m4 max 64 GB", "apple-m4-max-40c-64gb", 64),
        ("Apple M4 Max 48", "apple-m4-max-40c-48gb", 48),
        # Only the one with 32 cores has 36 GB.
        ("m4-max-36", "apple-m4-max-32c-36gb", 36),
        ("m3-max-96gb", "apple-m3-max-30c-96gb", 96),
        ("apple-m4-max-128gb", "apple-m4-max-40c-128gb", 128),
        ("m3-ultra-512", "apple-m3-ultra-512gb", 512),
        ("apple-m3-ultra-96gb", "apple-m3-ultra-96gb", 96),
        ("m1-8", "apple-m1-8gb", 8),
        # A file of its own for each size.
        ("a100-40", "a100-sxm4-40gb", 40),
    ],
)
def test_a_size_of_memory_in_the_name(name: str, gpu_id: str, size: int) -> None:
    """The one of that name that comes with so much; its id finds it again."""
    gpu, notes = find_gpu(name), list[Note]()

    assert (gpu.id, gpu.memory_marketing_gb) == (gpu_id, size)
    assert find_gpu(gpu_id).id == gpu_id
    assert load_gpu(name, notes).id == gpu_id
    assert "memory-option" not in {note.code for note in notes}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("m4-max-100", "apple-m4-max-40c-128gb"),
        ("m4-max-40c-36", "apple-m4-max-40c-48gb"),
        ("m4-max-0", "apple-m4-max-40c"),
        ("h100-94", "h100-nvl-94gb"),
    ],
)
def test_a_size_that_is_not_sold(name: str, near: str) -> None:
    """Unknown; the sizes that there are come as what may have been meant."""
    with pytest.raises(UnknownGpuError) as caught:
        find_gpu(name)
    assert near in caught.value.nearest


def test_no_size_is_the_largest() -> None:
    """And a note says so, with another to choose."""
    notes: list[Note] = []

    assert load_gpu("m4-max", notes).memory_marketing_gb == 128
    assert [note.code for note in notes] == ["gpu-name", "memory-option", "metal-limit"]
    assert notes[1].message == "m4-max: planned 128 GB of memory; also m4-max-48gb, m4-max-64gb."
    assert all(find_gpu(f"m4-max-{size}gb").memory_marketing_gb == size for size in (48, 64))
    assert find_gpu("apple-m4-max-40c-64gb").memory_marketing_gb == 64
    # 55,662.79 x 10^6 bytes, read of a Mac with 64 GB, are 51.84 GiB.
    load_gpu("m4-max-64", notes := [])
    assert "51.84 GiB" in notes[0].message
    # One size: nothing to say of it.
    load_gpu("apple-m4-max-32c", notes := [])
    assert [note.code for note in notes] == ["metal-limit"]


def test_a_size_of_a_users_own(own: Path) -> None:
    """Any file with several sizes; what was read of the largest is not said of another."""
    text = OWN.replace("memory_total_mib: 24576", "memory_marketing_gb: 24\nmemory_options_gb: [12, 24]\nmemory_total_mib: 24576")
    (own / "my-card.yaml").write_text(text, encoding="utf-8")

    assert find_gpu("my-card-24").memory_total_mib == 24576
    assert find_gpu("my card 12gb").memory_total_mib is None
    assert find_gpu("my-card-12").memory_marketing_gb == 12


def test_no_two_accelerators_share_a_name() -> None:
    """Without hyphens and maker, every id and alias still names one accelerator."""
    names: dict[str, set[str]] = {}
    for name, gpu_id in {**{gpu_id: gpu_id for gpu_id in IDS}, **gpu_aliases()}.items():
        names.setdefault(_squashed(name), set()).add(gpu_id)
    assert {name: ids for name, ids in names.items() if len(ids) > 1} == {}


def test_every_alias_names_an_accelerator() -> None:
    """And is none itself."""
    assert set(gpu_aliases().values()) <= set(IDS)
    assert not set(gpu_aliases()) & set(IDS)
    assert all(find_gpu(alias).id == gpu_id for alias, gpu_id in gpu_aliases().items())


@pytest.mark.parametrize("name", ["", " ", "-", "h101", "../h100-sxm5-80gb", "x" * 10_000, "h100\n", "H100.yaml", "é", "\0"])
def test_unknown_names(name: str) -> None:
    """An unknown name is an error that knows what is near."""
    if name == "h100\n":
        assert find_gpu(name).id == "h100-sxm5-80gb"
        return
    with pytest.raises(UnknownGpuError):
        find_gpu(name)
    with pytest.raises(UsageError, match="not known"):
        load_gpu(name, [])


def test_what_may_have_been_meant() -> None:
    """The nearest ids come first; nonsense has none."""
    assert nearest("h101")[0] == "h100-sxm5-80gb"
    assert "rtx-4090" in nearest("rtx 409")
    assert nearest("!!") == ()
    with pytest.raises(UsageError) as caught:
        load_gpu("h101", [])
    assert "h100-sxm5-80gb" in caught.value.hint


def test_a_users_own(own: Path) -> None:
    """The user's file comes first, adds an id, and a plan says so."""
    (own / "my-card.yaml").write_text(OWN, encoding="utf-8")
    (own / "l4.yaml").write_text(OWN.replace("my-card", "l4"), encoding="utf-8")
    notes: list[Note] = []

    assert load_gpu("my-card", notes).memory_total_mib == 24576
    assert load_gpu("NVIDIA L4", notes).name == "My card"
    assert [note.code for note in notes] == ["user-profile", "user-profile"]
    assert "my-card.yaml" in notes[0].message
    assert {"my-card", "l4", "h100-sxm5-80gb"} <= set(list_gpus())

    (own / "my-card.yaml").write_text(OWN.replace("24576", "24000"), encoding="utf-8")
    assert load_gpu("my-card", []).memory_total_mib in {24000, 24576}


@pytest.mark.parametrize(
    ("change", "line", "key"),
    [
        (("24576", "zero"), 5, "memory_total_mib"),
        (("24576", "-1"), 5, "memory_total_mib"),
        (("24576", "0"), 5, "memory_total_mib"),
        (("24576", "true"), 5, "memory_total_mib"),
        (("24576", "24576\ntorch_total_mib_seen: [24000, 30000]"), 6, "torch_total_mib_seen"),
        (("24576", "24576\ntorch_total_mib: 23000\ntorch_total_mib_seen: [24000, 24100]"), 7, "torch_total_mib_seen"),
        (("24576", "24576.5"), 5, "memory_total_mib"),
        (("24576", "24576\ntdp_w: .inf"), 6, "tdp_w"),
        (("24576", "24576\ntdp_w: .nan"), 6, "tdp_w"),
        (("24576", "24576\ntflops_dense: {bf17: 1}"), 6, "tflops_dense.bf17"),
        (("24576", "24576\ninterconnect: [1]"), 6, "interconnect"),
        (("24576", "24576\ntorch_total_mib: 24577"), 6, "torch_total_mib"),
        (("24576", "24576\nmemory_marketing_gb: 23"), 5, "memory_total_mib"),
        (("24576", "24576\ntorch_total_mib_seen: [2, 1]"), 6, "torch_total_mib_seen"),
        (("24576", "24576\ncompute_capability: 9.0"), 6, "compute_capability"),
        (("24576", "24576\nmemory: 1"), 6, "memory"),
        (("24576", "24576\nname: Again"), 6, "name"),
        (("schema_version: 1", "schema_version: 2"), 1, "schema_version"),
        (("id: my-card", "id: other"), 2, "id"),
        (("name: My card\n", ""), None, "name"),
        (("vendor: nvidia", "vendor: "), 4, "vendor"),
        (("source:\n  own: nvidia-smi\n", ""), None, "source"),
        (("  own: nvidia-smi", "  own: 3"), 7, "source.own"),
        (("24576", "[24576"), 6, None),
        (("24576", "&a 24576\ntdp_w: *a"), 5, None),
    ],
)
def test_a_broken_file(own: Path, change: tuple[str, str], line: int | None, key: str | None) -> None:
    """It stops with path, line and key."""
    path = own / "my-card.yaml"
    assert change[0] in OWN
    path.write_text(OWN.replace(*change), encoding="utf-8")

    with pytest.raises(ProfileError) as caught:
        find_gpu("my-card")
    assert caught.value.path == path
    assert (caught.value.line, caught.value.key) == (line, key)
    with pytest.raises(ConfigError, match=r"my-card\.yaml"):
        load_gpu("my-card", [])


@pytest.mark.parametrize("text", ["", "- 1", "3", "\0", "{" * 5000, "a: " + "[" * 5000, "a: !!python/object:os.system 1"])
def test_no_mapping(own: Path, text: str) -> None:
    """Anything else than a mapping is an error of the same kind."""
    (own / "my-card.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(ProfileError):
        find_gpu("my-card")


def test_files_that_cannot_be_read(own: Path) -> None:
    """A folder, bytes that are no text, and a file that is too large."""
    (own / "a.yaml").mkdir()
    (own / "b.yaml").write_bytes(b"\xff\xfe\xff")
    (own / "c.yaml").write_text("#" * (1024**2 + 1), encoding="utf-8")

    for name in "abc":
        with pytest.raises(ProfileError):
            find_gpu(name)


def test_the_recipe(own: Path) -> None:
    """A copy of a relative's file under another id works at once."""
    text = (BUILT_IN / "h200-sxm-141gb.yaml").read_text(encoding="utf-8")
    (own / "h210.yaml").write_text(text.replace("id: h200-sxm-141gb", "id: h210"), encoding="utf-8")

    assert find_gpu("h210").torch_total_mib == 143156
    readme = (BUILT_IN / "README.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in readme for key in GpuFile.__struct_fields__)


def test_lines_of_nested_keys() -> None:
    """A nested key is written with dots."""
    file = parse_yaml("a:\n  b: 1\nc:\n- d: 2\n", Path("x.yaml"))

    assert (file.lines.get("a"), file.lines.get("a.b"), file.lines.get("c.0.d"), file.lines.get("z")) == (1, 2, 4, None)
