"""The whole catalog loads, its files agree with their names, and its recipe works."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from hwcalc.profiles import catalog
from hwcalc.profiles.catalog import (
    FIELDS,
    ProfileError,
    built_in,
    find_entry,
    is_model_id,
    list_models,
    parse_entry,
    user_folder,
)
from tests.catalog import find_model
from tests.paths import ROOT

BUILT_IN: Final = Path(built_in("models"))
FILES: Final = sorted(BUILT_IN.glob("*/*.json"))
PUBLISHED_FILES: Final = (
    r"(a copy in [\w.-]+/[\w.-]+, [\w./-]+, )?config\.json( and hf_quant_config\.json)? of https://huggingface\.co/"
)
"""The sources of a config that is called published: the file, or a copy of it that names its repository and path.

Whatever else a source names, its keys were not seen in a published file."""
FIDELITIES: Final = {"published", "published keys, re-serialised", "reconstructed, geometry cross-checked"}


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """``scripts/build_catalog.py``."""
    spec = importlib.util.spec_from_file_location("build_catalog", ROOT / "scripts" / "build_catalog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = user_folder("models")
    assert folder == tmp_path / "config" / "kvplan" / "profiles" / "models"
    return folder


def write(folder: Path, model_id: str, content: object) -> Path:
    """Put a file of this content, or this object as JSON, where the model belongs."""
    path = folder / f"{model_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def numbers(value: Any) -> Iterator[float]:
    """Every float in a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("owner", sorted({path.parent.name for path in FILES}))
def test_files_of_the_catalog(owner: str) -> None:
    """Each file is valid, complete, named after its id, dated, sourced, and strict JSON with finite numbers."""
    for path in FILES:
        if path.parent.name == owner:
            assert_that_it_is_whole(path)


def assert_that_it_is_whole(path: Path) -> None:
    """One file of the catalog."""
    entry = parse_entry(path.read_text(encoding="utf-8"), path)
    model_id = f"{path.parent.name}/{path.name.removesuffix('.json')}"
    released = date.fromisoformat(entry["released"]) if entry["released"] else None

    assert tuple(entry) == FIELDS
    assert entry["id"] == model_id
    assert isinstance(entry["config"]["model_type"], str)
    assert all(map(math.isfinite, numbers(entry)))
    assert entry["source"].endswith(f"https://huggingface.co/{model_id}")
    assert entry["fidelity"] in FIDELITIES
    assert entry["fidelity"].startswith("published") is bool(re.fullmatch(PUBLISHED_FILES + re.escape(model_id), entry["source"]))
    assert released is None or released <= date.fromisoformat(entry["recorded"])
    assert not (entry["parameters"] and entry["stored_elements"])
    assert find_model(model_id) == entry


def test_ids_are_unique_in_any_case() -> None:
    """As many models as docs/models.md says, and none whose file would fall on another's where file names ignore case."""
    ids = [f"{path.parent.name}/{path.name.removesuffix('.json')}" for path in FILES]
    orgs = {path.parent.name for path in FILES}

    said = re.search(r"catalog of (\d+) models", (ROOT / "docs/models.md").read_text(encoding="utf-8"))

    assert said is not None
    assert len(ids) == int(said[1])
    assert [name for name, count in Counter(map(str.lower, ids)).items() if count > 1] == []
    assert [name for name, count in Counter(map(str.lower, orgs)).items() if count > 1] == []
    assert set(list_models()) == set(ids)


def test_listing_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids come from file names; one model is one file."""
    opened: list[str] = []
    read = catalog.read_text

    def spy(path: str, largest: int) -> str:
        opened.append(Path(path).name)
        return read(path, largest)

    monkeypatch.setattr(catalog, "read_text", spy)

    assert list_models() == tuple(sorted(list_models(), key=str.lower))
    assert opened == []
    assert find_model("Qwen/Qwen3-8B") is not None
    assert opened == ["Qwen3-8B.json"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "a/", "/a", "a/b/c", "../../etc/passwd", "a/../b", "a/..", "../b", "./b", "a/.b", ".a/b", "a\\b", "a/b\\c"),
        *("models--x", "a--b/c", "a/b--c", "a\0/b", "a/b\0", "a/b\n", " a/b", "a/b ", "a b/c", "a/ü", "~/a", "a/b@main", "-a/b"),
        *("C:/a", "a" * 10_000, f"{'a' * 97}/b", f"a/{'b' * 97}"),
    ],
)
def test_what_is_not_an_id_reads_no_file(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict form of id: nothing else ever becomes a path."""
    monkeypatch.setattr("hwcalc.profiles.catalog.os.path.lexists", lambda path: pytest.fail(f"looked for {path}"))

    assert not is_model_id(text)
    assert find_model(text) is None


def test_case_is_never_guessed(own: Path) -> None:
    """``qwen/qwen3-8b`` is not ``Qwen/Qwen3-8B``, also where the file system says it is."""
    write(own, "qwen/qwen3-8b", {"schema_version": 1, "id": "Qwen/Qwen3-8B", "config": {"model_type": "x"}})
    found = find_model("Qwen/Qwen3-8B")

    assert find_model("qwen/qwen3-8b") is None
    assert found is not None
    assert found["config"]["model_type"] in {"qwen3", "x"}


def test_the_users_own_file_comes_first(own: Path) -> None:
    """The same format, only three keys needed; it replaces by id and adds new ids."""
    mine = {"schema_version": 1, "id": "Qwen/Qwen3-8B", "config": {"model_type": "mine"}}
    path = write(own, "Qwen/Qwen3-8B", mine)
    write(own, "me/mine", {**mine, "id": "me/mine"})
    (own / "me" / "notes.txt").write_text("not a model", encoding="utf-8")
    entry = find_entry("Qwen/Qwen3-8B")

    assert entry is not None
    assert (entry.data, entry.path, entry.user) == (mine, path, True)
    assert "me/mine" in list_models()
    assert len(list_models()) == len(FILES) + 1


GOOD: Final[dict[str, Any]] = {"schema_version": 1, "id": "me/mine", "config": {"model_type": "llama"}}
COUNTS: Final[dict[str, Any]] = {"total": 1, "definition": "published"}


@pytest.mark.parametrize("key", FIELDS)
@pytest.mark.parametrize("value", [-1, 0, 2**70, 1.5, True, "", " ", "x", [], [1], {}, {"total": "x"}, math.nan, math.inf, None])
def test_a_broken_value_stops_with_path_line_and_key(own: Path, key: str, value: object) -> None:
    """Whatever a user's file holds under a known key is good or an error that names file, line and key."""
    lines = [f"{json.dumps(name)}: {json.dumps(item)}" for name, item in (GOOD | {key: value}).items()]
    path = write(own, "me/mine", "{\n" + ",\n".join(lines) + "\n}")
    fine = (value is None and key not in GOOD) or (
        isinstance(value, str) and value.strip() and key in {"source", "fidelity"}
    ) or (key == "config" and isinstance(value, dict) and value) or (key == "weight_bytes" and value == {})  # fmt: skip
    if fine:
        assert find_model("me/mine") is not None
        return
    with pytest.raises(ProfileError) as raised:
        find_model("me/mine")

    assert raised.value.path == path
    assert raised.value.key == key
    assert raised.value.line == list(GOOD | {key: value}).index(key) + 2
    assert str(raised.value).startswith(f"{path}, line {raised.value.line}: {key}: ")


@pytest.mark.parametrize(
    ("content", "key", "line"),
    [
        ("", None, 1),
        ('{"id": 1,\n "id"}', None, 2),
        ("[]", None, 1),
        ("[" * 100_000, None, None),
        ('{"id": ' + "1" * 10_000 + "}", None, None),
        (json.dumps(GOOD | {"parametres": COUNTS}, indent=1), "parametres", None),
        (json.dumps({"id": "me/mine", "config": {}}), "schema_version", None),
        (json.dumps(GOOD | {"schema_version": 2}), "schema_version", 1),
        (json.dumps(GOOD | {"id": "me/other"}, indent=1), "id", 3),
        (json.dumps(GOOD | {"parameters": COUNTS | {"total": -1}}), "parameters", 1),
        (json.dumps(GOOD | {"parameters": COUNTS | {"billions": 8}}), "parameters", 1),
        (json.dumps(GOOD | {"parameters": {"total": 1}}), "parameters", 1),
        (json.dumps(GOOD | {"weight_bytes": {"bf16": -2}}), "weight_bytes", 1),
        (json.dumps(GOOD | {"released": "2026-13-01"}), "released", 1),
    ],
)
def test_a_broken_file_stops(own: Path, content: str, key: str | None, line: int | None) -> None:
    """Nothing is skipped in silence: not JSON, an unknown key, a missing key, another id, another schema."""
    path = write(own, "me/mine", content)
    with pytest.raises(ProfileError, match=re.escape(str(path))) as raised:
        find_model("me/mine")

    assert raised.value.key == key
    assert line is None or raised.value.line == line


def test_a_file_that_is_none(own: Path) -> None:
    """A folder in the place of a file, and bytes that are not text."""
    (own / "me" / "folder.json").mkdir(parents=True)
    write(own, "me/bytes", "").write_bytes(b'{"id": "\xff"}')
    (own / "me" / "gone.json").symlink_to(own / "nowhere")

    for name in ("folder", "bytes", "gone"):
        with pytest.raises(ProfileError, match=r"regular file|UTF-8"):
            find_model(f"me/{name}")


CONFIG: Final[dict[str, Any]] = {
    "vocab_size": 7,
    "model_type": "llama",
    "architectures": ["L"],
    "layer_types": ["full_attention"] * 20,
    "blocks": [{"b": 1, "a": None}],
    "empty": [{}, []],
    "time_step_limit": [0.0, math.inf],
}

FILE: Final = """{
  "schema_version": 1,
  "id": "me/mine",
  "released": null,
  "recorded": "2026-11-20",
  "source": "config.json of https://huggingface.co/me/mine",
  "fidelity": "published",
  "parameters": {"total": 8, "active": null, "mtp": null, "definition": "published"},
  "stored_elements": null,
  "weight_bytes": null,
  "config": {
    "architectures": ["L"],
    "blocks": [{"a": null, "b": 1}],
    "empty": [{}, []],
    "layer_types": [
      "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "full_attention"
    ],
    "model_type": "llama",
    "vocab_size": 7
  }
}
"""


def written(folder: Path, config: dict[str, Any]) -> str:
    """Write the script's input."""
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def test_the_writer_gives_the_same_bytes_for_the_same_facts(builder: ModuleType, tmp_path: Path) -> None:
    """Keys in order, whatever their order in the input; a second run keeps the day of the facts."""
    target = tmp_path / "models"
    path = target / "me" / "mine.json"
    options = ["--id", "me/mine", "--parameters", "8", "--target", str(target), "--recorded"]

    assert builder.main([written(tmp_path, CONFIG), *options, "2026-11-20"]) == 0
    assert path.read_text(encoding="utf-8") == FILE
    assert builder.main([written(tmp_path, dict(reversed(CONFIG.items()))), *options, "2027-01-01"]) == 0
    assert path.read_text(encoding="utf-8") == FILE
    assert builder.main([written(tmp_path, CONFIG), *options, "2027-01-01", "--released", "2026-01-01"]) == 0
    assert '"recorded": "2027-01-01"' in path.read_text(encoding="utf-8")


def test_the_catalogs_files_are_as_the_writer_writes_them(builder: ModuleType) -> None:
    """No file was edited by hand into another layout."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        entry = json.loads(text)

        assert builder.pretty({**entry, "config": builder.ordered(entry["config"])}) + "\n" == text, path


@pytest.mark.parametrize(
    ("model_id", "config"),
    [("../mine", CONFIG), ("me/mine", {"model_type": "x", "rope": {"theta": math.inf}})],
    ids=["a path", "an infinity"],
)
def test_the_writer_refuses_what_the_catalog_cannot_hold(
    builder: ModuleType, tmp_path: Path, model_id: str, config: dict[str, Any]
) -> None:
    """Ids that are paths, numbers that are not finite."""
    with pytest.raises(SystemExit) as raised:
        builder.main([written(tmp_path, config), "--id", model_id, "--target", str(tmp_path / "models")])

    assert isinstance(raised.value.code, str)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("model_id", "count", "total", "stored"),
    [
        ("me/mine", 18_164_649_200, 18_164_649_200, None),
        ("me/mine-NVFP4", 18_164_649_200, None, 18_164_649_200),
        ("me/mine-NVFP4", 30_000_000_000, None, None),
        ("me/mine", None, None, None),
    ],
)
def test_stored_elements_are_no_parameters(
    builder: ModuleType, model_id: str, count: int | None, total: int | None, stored: int | None
) -> None:
    """Two 4-bit weights share one element: such a count stands apart, and the number of parameters is unknown."""
    entry = builder.entry_of(model_id, CONFIG, released=None, count=count, recorded="2026-11-20")

    assert (entry["parameters"] or {}).get("total") == total
    assert entry["stored_elements"] == stored


def test_lists_of_modules_are_short(builder: ModuleType, tmp_path: Path) -> None:
    """The experts of a layer are one name, norms none; ``hf_quant_config.json`` is taken in; the scheme is the same."""
    names = [f"model.layers.0.mlp.experts.{i}.up_proj" for i in range(3)] + ["model.layers.0.input_layernorm", "lm_head"]
    config, quantization = tmp_path / "config.json", tmp_path / "hf_quant_config.json"
    config.write_text(json.dumps({"model_type": "x"}), encoding="utf-8")
    quantization.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": names}}), encoding="utf-8")
    target = tmp_path / "models"
    builder.main([str(config), "--id", "me/mine", "--quantization", str(quantization), "--target", str(target)])
    written = json.loads((target / "me" / "mine.json").read_text(encoding="utf-8"))["config"]["quantization_config"]

    assert written == {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "exclude_modules": ["model.layers.0.mlp.experts", "lm_head"],
    }


def test_the_recipe_adds_a_model(builder: ModuleType, own: Path, tmp_path: Path) -> None:
    """Steps 1 and 2 of ``profiles/models/README.md``; at most five steps are written there."""
    words = [
        written(tmp_path, CONFIG),
        "--id",
        "org/name",
        "--released",
        "2026-01-31",
        "--parameters",
        "8190735360",
        "--target",
        str(own),
    ]
    recipe = (BUILT_IN / "README.md").read_text(encoding="utf-8").partition("## Add a model")[2].partition("##")[0]

    assert builder.main(words) == 0
    found = find_model("org/name")
    assert found is not None
    assert (found["released"], found["parameters"]["total"]) == ("2026-01-31", 8_190_735_360)
    assert 1 <= len(re.findall(r"^\d+\. ", recipe, re.MULTILINE)) <= 5
    assert " ".join(["build_catalog.py config.json", *words[1:7]]) in recipe
