"""The Hub as a source: what a plan asks for and how often, what it is given, and what it keeps."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hwcalc.errors import ModelNotFoundError
from hwcalc.model import RawModel
from hwcalc.sources import resolve
from hwcalc.sources.caches import facts_folder
from tests.hub.repositories import COMMIT, CONFIG, MODEL, TEXT, File, header, index, sharded, weight_file
from tests.hub.server import Hub
from tests.hwcalc.sources.given import OTHER, cached, planned, refused

QWEN = "Qwen/Qwen3-8B"


def test_a_model_that_only_the_hub_knows(hub: Path, loopback: Hub) -> None:
    """The config, the commit, and exact bytes: 64 x 64 elements of two bytes, three of eight."""
    loopback.add("org/name", MODEL)
    raw = planned()

    assert (raw.id, raw.config, raw.source, raw.revision, raw.notes) == ("org/name", CONFIG, "hub", COMMIT, ())
    assert raw.location == f"Hub at {loopback.address.removeprefix('http://')}, commit {COMMIT[:12]}"
    assert raw.weights is not None
    assert raw.weights.bytes_by_dtype == {"BF16": 64 * 64 * 2, "I64": 3 * 8}
    assert raw.weights.elements_by_dtype == {"BF16": 64 * 64, "I64": 3}
    assert (raw.weights.files, raw.weights.tensors, raw.weights.definition) == (1, 2, "exact")
    assert (raw.weights.total_bytes, raw.weights.total_elements) == (64 * 64 * 2 + 3 * 8, 64 * 64 + 3)


def test_a_second_plan_asks_nobody(hub: Path, loopback: Hub) -> None:
    """Config and facts are kept; what differs is only where they came from."""
    loopback.add("org/name", MODEL)
    first = planned()
    asked = len(loopback.asked)
    second = planned()

    assert asked == 2
    assert len(loopback.asked) == asked
    assert (second.config, second.revision, second.weights) == (first.config, first.revision, first.weights)
    assert second.source == "hf-cache"


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_requests_of_a_sharded_model(hub: Path, loopback: Hub, count: int) -> None:
    """One for the config, two to find the index, one for each file's header; never more than two each, never a weight file."""
    files = sharded(count, tensors_each=50)
    loopback.add("org/name", {"config.json": TEXT, **files})
    raw = planned()

    assert raw.weights is not None
    assert raw.weights.bytes_by_dtype == {"BF16": count * 50 * 64 * 64 * 2}
    assert raw.weights.files == count
    assert loopback.paths()[:3] == ["config.json", "model.safetensors", "model.safetensors.index.json"]
    assert sorted(loopback.paths()[3:]) == sorted(name for name in files if name.endswith(".safetensors"))
    assert all(asked.range for asked in loopback.asked[3:])
    # A file has 50 x 64 x 64 x 2 = 409,600 bytes behind its header.
    assert all(asked.sent < 16 * 1024 for asked in loopback.asked if asked.range)


def test_a_header_that_is_longer_than_expected_takes_a_second_request(hub: Path, loopback: Hub) -> None:
    """2,000 tensors: more than the 128 KiB that are asked for first."""
    loopback.add(
        "org/name", {"config.json": TEXT, "model.safetensors": weight_file({f"w{i}" * 12: ("F16", (8,)) for i in range(2000)})}
    )
    raw = planned()

    assert raw.weights is not None
    assert raw.weights.bytes_by_dtype == {"F16": 2000 * 8 * 2}
    assert loopback.paths() == ["config.json", "model.safetensors", "model.safetensors"]


def test_a_server_without_ranges_is_cut_short(hub: Path, loopback: Hub) -> None:
    """The rest of the weight file is not read."""
    start, size = header({"w": ("F32", (16 * 1024**2,))})
    loopback.add("org/name", {"config.json": TEXT, "model.safetensors": File(start, len(start) + size)})
    loopback.fail("model.safetensors", ignore_range=True)
    raw = planned()

    assert raw.weights is not None
    assert raw.weights.bytes_by_dtype == {"F32": 4 * 16 * 1024**2}


def test_large_files_lie_elsewhere_and_the_token_does_not_go_there(hub: Path, loopback: Hub) -> None:
    """The real Hub redirects weight files to a content network."""
    with Hub() as network:
        network.repositories = loopback.repositories
        loopback.network = network
        loopback.add("org/name", MODEL, token="hf_secret")
        loopback.repositories["org/name"].token = None
        raw = planned(token="hf_secret")

        assert raw.weights is not None
        assert raw.revision == COMMIT
        assert [asked.token for asked in network.asked] == [None]
        assert {asked.token for asked in loopback.asked} == {"Bearer hf_secret"}


def test_small_files_lie_in_a_store(hub: Path, loopback: Hub) -> None:
    """The real Hub sends them there too; with that a config takes two requests, and its commit and its new name are still known."""
    loopback.has_store = True
    loopback.add("org/name", MODEL)
    loopback.add("new-org/new-name", MODEL)
    loopback.names["org/old"] = "new-org/new-name"
    raw, renamed = planned(), planned("org/old")

    assert (raw.revision, raw.notes, raw.weights) == (COMMIT, (), renamed.weights)
    assert loopback.paths()[:3] == ["config.json", "config.json", "model.safetensors"]
    assert [note.code for note in renamed.notes] == ["renamed"]


def test_a_mirror_below_a_path(hub: Path, loopback: Hub) -> None:
    """Proxies of companies are addressed so; a name without an org is not taken for a renamed one."""
    loopback.add("mirror/hf/gpt2", MODEL)
    raw = planned("gpt2", endpoint=f"{loopback.address}/mirror/hf")

    assert (raw.id, raw.source, raw.notes) == ("gpt2", "hub", ())
    assert raw.weights is not None


def test_no_weights_are_no_facts(hub: Path, loopback: Hub) -> None:
    """A repository with other weight files is planned from its config; and nobody asks for what is not wanted."""
    loopback.add("org/name", {"config.json": TEXT, "pytorch_model.bin": b"x"})
    raw = planned()

    assert (raw.weights, raw.notes) == (None, ())
    loopback.add("org/other", MODEL)
    loopback.asked.clear()
    assert resolve("org/other").weights is None
    assert loopback.paths() == ["config.json"]


@pytest.mark.parametrize("damage", ["header", "missing", "index", "outside", "gone", "gated"])
def test_broken_weights_do_not_stop_the_plan(hub: Path, loopback: Hub, damage: str) -> None:
    """The cache needs the config alone; a note says what is wrong."""
    files: dict[str, bytes | File] = {"config.json": TEXT, **sharded(3)}
    if damage == "header":
        files["model-00002-of-00003.safetensors"] = b"\xff" * 4096
    elif damage == "missing":
        del files["model-00002-of-00003.safetensors"]
    elif damage == "index":
        files["model.safetensors.index.json"] = b"<html>"
    elif damage == "outside":
        files["model.safetensors.index.json"] = index({"../../other/model.safetensors": {"w": ("U8", (1,))}})
    elif damage == "gone":
        loopback.fail("model-00002", status=503)
    elif damage == "gated":
        loopback.fail("safetensors", status=403, headers={"X-Error-Code": "GatedRepo"})
    loopback.add("org/name", files)
    raw = planned()

    assert raw.weights is None
    assert raw.config == CONFIG
    assert [note.code for note in raw.notes] == ["weights"]
    assert not any(path.startswith("other") for path in loopback.paths())
    # What may be better next time is asked again next time.
    assert (planned().source == "hub") == (damage == "gone")


def test_the_weights_are_of_the_commit_of_the_config(hub: Path, loopback: Hub) -> None:
    """Whoever pushes between two requests does not mix two models."""
    loopback.add("org/name", {"config.json": TEXT, **sharded(2)})
    planned()

    assert "/main/" in loopback.asked[0].path
    assert all(f"/resolve/{COMMIT}/" in asked.path for asked in loopback.asked[1:])


@pytest.mark.parametrize(
    ("given", "revision"), [("org/name@v1", None), ("org/name", "v1"), ("org/name", COMMIT), ("org/name", "refs/pr/1")]
)
def test_a_revision_is_pinned(hub: Path, loopback: Hub, given: str, revision: str | None) -> None:
    """And kept under its name: the cache answers the next time, also when the commit is named."""
    loopback.add("org/name", MODEL, refs=("main", "v1", "refs/pr/1"))
    raw = planned(given, revision=revision)
    asked = len(loopback.asked)

    assert (raw.source, raw.revision) == ("hub", COMMIT)
    assert planned(given, revision=revision).source == "hf-cache"
    assert planned(f"org/name@{COMMIT}").weights == raw.weights
    assert len(loopback.asked) == asked


def test_a_revision_that_is_none_is_not_asked(hub: Path, loopback: Hub) -> None:
    """Nothing that could leave the repository's part of the Hub or the cache's folder."""
    for revision in ("../main", "a/../../b", "/main", "main?x=1", "a\\b", "%2e%2e", "main\n"):
        assert refused("org/name", revision=revision).exit_code == 2
    assert loopback.asked == []


def test_what_the_hub_calls_a_commit_is_checked(hub: Path, loopback: Hub) -> None:
    """It becomes a folder's name."""
    for number, commit in enumerate(("../../../../evil", "", "main", COMMIT.upper(), COMMIT[:6])):
        loopback.add(f"org/name{number}", MODEL, commit=commit)
        raw = planned(f"org/name{number}")

        assert raw.revision is None
        assert [note.code for note in raw.notes] == ["unpinned"]
    assert list(hub.iterdir()) == []


def test_this_machine_answers_before_the_hub(hub: Path, loopback: Hub) -> None:
    """The cache, then the catalog, unless someone asks for what only the Hub can say."""
    cached(hub)
    loopback.add("org/name", MODEL)
    loopback.add(QWEN, MODEL)

    assert (resolve("org/name").source, planned(QWEN).source, loopback.asked) == ("hf-cache", "catalog", [])
    assert planned(QWEN, revision="main").source == "hub"
    assert resolve("org/name", refresh=True).revision == COMMIT
    assert resolve("org/name").revision == COMMIT
    for option in ({"token": "hf_x"}, {"endpoint": loopback.address}):
        loopback.add("openai/gpt-oss-20b", MODEL)
        assert resolve("openai/gpt-oss-20b", refresh=False, **option).source in {"hub", "hf-cache"}  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["option", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_offline(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Nobody is asked, and an unknown model is not found, which is no failure of the network."""
    loopback.add("org/name", MODEL)
    if how != "option":
        monkeypatch.setenv(how, "1")
    error = refused("org/name", offline=how == "option", refresh=True)

    assert (type(error), error.exit_code) == (ModelNotFoundError, 3)
    assert "offline" in error.message
    assert planned(QWEN, offline=how == "option", revision=None).source == "catalog"
    assert loopback.asked == []


def test_a_renamed_model(hub: Path, loopback: Hub) -> None:
    """Its new name is said and used; the cache knows it by the one that was asked for, so that the next plan finds it."""
    loopback.add("new-org/new-name", MODEL)
    loopback.names["org/name"] = "new-org/new-name"
    loopback.names["old-name"] = "new-org/new-name"
    raw = planned()

    assert (raw.id, raw.revision, [note.code for note in raw.notes]) == ("org/name", COMMIT, ["renamed"])
    assert "new-org/new-name" in raw.notes[0].message
    assert loopback.asked[-1].path.startswith("/new-org/new-name/resolve/")
    assert planned().source == "hf-cache"
    assert (planned("old-name").id, planned("old-name").source) == ("old-name", "hf-cache")


PARAMS = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "hidden_dim": 128,
    "vocab_size": 256,
    "norm_eps": 1e-5,
}


def test_params_json_is_read(hub: Path, loopback: Hub) -> None:
    """Mistral's own format, with weights under its own name; from the cache the second time."""
    weights = weight_file({"w": ("BF16", (8, 8))})
    loopback.add("org/name", {"params.json": json.dumps(PARAMS).encode(), "consolidated.safetensors": weights})
    first, second = planned(), planned()

    for raw, source in ((first, "hub"), (second, "hf-cache")):
        assert raw.source == source
        assert raw.config["model_type"] == "mistral"
        assert (raw.config["num_key_value_heads"], raw.config["head_dim"], raw.config["sliding_window"]) == (2, 16, None)
        assert raw.weights is not None
        assert raw.weights.bytes_by_dtype == {"BF16": 8 * 8 * 2}


def test_modelopt_says_it_in_a_file_of_its_own(hub: Path, loopback: Hub) -> None:
    """It is asked for only where the dtypes tell of it, and kept."""
    quant = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    files = {"config.json": TEXT, "hf_quant_config.json": json.dumps(quant).encode()}
    loopback.add("org/name", {**files, "model.safetensors": weight_file({"w": ("F8_E4M3", (8,)), "s": ("F32", (1,))})})
    loopback.add("org/plain", {**files, "model.safetensors": weight_file({"w": ("BF16", (8,))})})

    for raw in (planned(), planned()):
        said = raw.config["quantization_config"]
        assert (said["quant_method"], said["quant_algo"], said["exclude_modules"]) == ("modelopt", "FP8", ["lm_head"])
        assert [note.code for note in raw.notes] == ["quantization"]
    assert "quantization_config" not in planned("org/plain").config
    assert loopback.paths("org/plain") == ["config.json", "model.safetensors"]


def test_two_users_at_once(hub: Path, loopback: Hub) -> None:
    """One cache, many readers: each gets the whole model, and the cache is whole afterwards."""
    loopback.add("org/name", {"config.json": TEXT, **sharded(5)})
    answers: list[RawModel] = []
    threads = [threading.Thread(target=lambda: answers.append(planned())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(answers) == 8
    assert len({str(answer.weights) for answer in answers}) == 1
    assert all(answer.config == CONFIG and answer.revision == COMMIT for answer in answers)
    assert planned().source == "hf-cache"
    folder = facts_folder()
    assert folder is not None
    for place in (hub, folder):
        assert [path for path in place.rglob("*") if path.name.startswith(".") or path.name.endswith(".tmp")] == []


def test_the_cache_is_huggingface_hubs(hub: Path, loopback: Hub) -> None:
    """Its own look into the cache finds what was kept."""
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    loopback.add("org/name", MODEL)
    planned()
    path = try_to_load_from_cache("org/name", "config.json", cache_dir=hub)

    assert isinstance(path, str)
    assert Path(path).read_bytes() == TEXT
    found = scan_cache_dir(hub)
    assert found.warnings == []
    assert [(repo.repo_id, *(revision.commit_hash for revision in repo.revisions)) for repo in found.repos] == [
        ("org/name", COMMIT)
    ]


def test_caches_that_cannot_be_written(hub: Path, loopback: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    loopback.add("org/name", MODEL)

    assert planned().source == "hub"
    assert planned().weights == planned().weights


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"schema_version": 1, "bytes_by_dtype": {"BF16": -1}}', "\ud800", "[" * 5000]
)
def test_broken_facts_are_read_again(hub: Path, loopback: Hub, content: str) -> None:
    """A cache is never an error."""
    loopback.add("org/name", MODEL)
    raw = planned()
    folder = facts_folder()
    assert folder is not None
    path = folder / "org--name" / f"{COMMIT}.json"
    path.write_text(content, encoding="utf-8", errors="surrogatepass")

    assert planned(refresh=True).weights == raw.weights
    assert planned().weights == raw.weights


def test_weight_files_in_the_cache_and_in_a_folder(hub: Path, loopback: Hub, tmp_path: Path) -> None:
    """Their headers are read where they lie."""
    config = cached(hub, text=TEXT.decode(), commit=OTHER)
    for folder in (config.parent, tmp_path / "mine"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").exists() or (folder / "config.json").write_bytes(TEXT)
        for name, file in sharded(2).items():
            (folder / name).write_bytes(file if isinstance(file, bytes) else file.part(0, file.size))

    for model in ("org/name", str(tmp_path / "mine"), str(tmp_path / "mine" / "config.json")):
        raw = planned(model)
        assert raw.weights is not None
        assert raw.weights.bytes_by_dtype == {"BF16": 2 * 3 * 64 * 64 * 2}
    assert loopback.asked == []
    (tmp_path / "mine" / "model-00001-of-00002.safetensors").unlink()
    raw = planned(str(tmp_path / "mine"))
    assert (raw.weights, [note.code for note in raw.notes]) == (None, ["weights"])
