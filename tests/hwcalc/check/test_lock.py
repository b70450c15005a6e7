"""The lock: offline, deterministic, whole or not at all, and a change of a model is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hwcalc.check.file import LockError
from hwcalc.check.models import SCHEMA_VERSION, Lock, _digest, read_lock, write_lock
from hwcalc.check.result import CheckDocument, Judged
from hwcalc.check.run import CheckOptions, run_checks
from hwcalc.errors import ModelNotFoundError
from hwcalc.model import Note, Parameters, RawModel, WeightFacts
from hwcalc.planner.asked import Access
from tests.hwcalc.check.files import PER_TOKEN, TINY, check_file, read_check_file, tiny_model, write
from tests.hwcalc.sources.gguf.given import KEYS, SHAPES, gguf_bytes

CHECK = {"model": "./tiny", "seq": 1024, "max_cache": "1GiB"}


def run(path: str, lock: str = "use") -> CheckDocument:
    """One file, without network."""
    return run_checks([read_check_file(path)], CheckOptions(lock=lock, access=Access(offline=True)))


def locked(path: str) -> Judged:
    """What the only check says about its lock."""
    (check,) = run(path).checks
    return next(item for item in check.requirements if item.name == "lock")


def test_a_locked_model_need_not_be_there(tmp_path: Path) -> None:
    """The facts are in the lock: without model, cache and network the bytes are the same."""
    path = check_file(tmp_path, CHECK)
    written = run(path, "write")
    shutil.rmtree(tmp_path / "tiny")
    later = run(path)

    assert written.files[0].lock == f"{path}.lock"
    assert (written.files[0].lock_written, later.files[0].lock_written) == (True, False)
    for document in (written, later):
        assert document.summary.exit_code == 0
        assert document.checks[0].plan is not None
        assert document.checks[0].plan.cache_bytes == 1024 * PER_TOKEN
    assert locked(path).message == "not on this machine: taken from the lock"
    with pytest.raises(ModelNotFoundError):
        run(path, "write")
    assert run(path, "ignore").summary.exit_code == 3


@pytest.mark.parametrize("draft", [{"draft": "./draft"}, {"engine_options": {"speculative": "draft:./draft:3"}}], ids=str)
def test_a_draft_is_locked_too(tmp_path: Path, draft: dict[str, Any]) -> None:
    """Whether a key or an engine option names it: it comes from the lock, and a change of it is noticed."""
    path = check_file(tmp_path, {**CHECK, "engine": "vllm", **draft})
    shutil.copytree(tmp_path / "tiny", tmp_path / "draft")
    written = run(path, "write")
    shutil.move(tmp_path / "draft", tmp_path / "gone")
    later = run(path)

    lock = read_lock(f"{path}.lock", "")
    assert lock is not None
    assert list(lock.models) == ["./draft", "./tiny"]
    assert (written.checks[0].error, later.checks[0].error) == (None, None)
    assert written.checks[0].plan == later.checks[0].plan
    assert [item.message for item in later.checks[0].requirements if item.name == "lock"] == [
        "the same as in the lock",
        "not on this machine: taken from the lock",
    ]
    shutil.move(tmp_path / "gone", tmp_path / "draft")
    write(tmp_path / "draft" / "config.json", {**TINY, "num_hidden_layers": 3})
    assert run(path).checks[0].status == "fail"


def test_a_draft_that_is_not_in_the_lock(tmp_path: Path) -> None:
    """No other source is asked."""
    path = check_file(tmp_path, {**CHECK, "engine": "vllm"})
    run(path, "write")
    check_file(tmp_path, {**CHECK, "engine": "vllm", "engine_options": {"speculative": "draft:Qwen/Qwen3-4B"}})
    error = run(path).checks[0].error

    assert error is not None
    assert "the lock does not have Qwen/Qwen3-4B" in error.message


@pytest.mark.parametrize(
    "wrong", [{"engine": "no-such"}, {"engine": "vllm", "engine_options": {"speculative": "draft:-"}}], ids=str
)
def test_a_draft_that_cannot_be_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The check is an error of usage, with a lock or without."""
    document = run(check_file(tmp_path, {**CHECK, **wrong}))

    assert document.checks[0].error is not None
    assert document.summary.exit_code == 2


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order of the checks; a second writing changes nothing, and says so."""
    one, two = {"model": "Qwen/Qwen3-8B", "max_cache": 1}, {"model": "openai/gpt-oss-20b", "max_cache": 1}
    first, second = check_file(tmp_path / "a", one, two), check_file(tmp_path / "b", two, one)
    for path in (first, second):
        run(path, "write")
    data = Path(f"{first}.lock").read_bytes()
    before = Path(f"{first}.lock").stat().st_mtime_ns

    assert data == Path(f"{second}.lock").read_bytes()
    assert data.endswith(b"}\n")
    assert list(json.loads(data)["models"]) == ["Qwen/Qwen3-8B", "openai/gpt-oss-20b"]
    assert str(tmp_path).encode() not in data
    assert run(first, "write").files[0].lock_written is False
    assert Path(f"{first}.lock").stat().st_mtime_ns == before


def test_a_changed_config_fails(tmp_path: Path) -> None:
    """The keys that memory depends on are named with both values, and the command that accepts the change."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    tiny_model(tmp_path, num_key_value_heads=2, num_hidden_layers=3)
    document = run(path)
    judged = locked(path)

    assert document.checks[0].status == "fail"
    assert document.summary.exit_code == 1
    assert "model config changed since the lock" in judged.message
    assert "num_key_value_heads 4 -> 2" in judged.message
    assert "num_hidden_layers 2 -> 3" in judged.message
    assert f"kvplan check --lock {path}" in judged.message
    # Figures of the lock would be those of another model.
    assert (document.checks[0].plan, document.checks[0].verdict) == (None, None)
    assert [item.name for item in document.checks[0].requirements] == ["lock"]
    run(path, "write")
    assert run(path).checks[0].status == "pass"


def test_a_key_without_bytes_may_change(tmp_path: Path) -> None:
    """Who saved the file with which library does not matter."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    tiny_model(tmp_path, transformers_version="9.9", _name_or_path="elsewhere")

    assert locked(path).message == "the same as in the lock"


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "no-such-type"}'])
def test_a_config_that_broke_fails(tmp_path: Path, content: str) -> None:
    """What can no longer be read is a change, too."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    write(tmp_path / "tiny" / "config.json", content)

    assert locked(path).holds is False
    assert "can no longer be used" in locked(path).message


def test_a_cache_is_compared_with_what_came_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the Hugging Face cache: the main branch moves on, and the keys that changed are named."""
    folder = tmp_path / "hub" / "models--org--name"
    for commit, heads in (("1" * 40, 4), ("2" * 40, 8)):
        write(folder / "snapshots" / commit / "config.json", {**TINY, "num_key_value_heads": heads})
    write(folder / "refs" / "main", "1" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    path = check_file(tmp_path, {"model": "org/name", "seq": 1024, "max_cache": "1GiB"})
    run(path, "write")
    assert locked(path).message == "the same as in the lock"
    write(folder / "refs" / "main", "2" * 40)

    assert "num_key_value_heads 4 -> 8" in locked(path).message


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "Qwen3-0.6B"])
def test_a_model_of_the_catalog_is_compared_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    """A check may leave out the publisher, as a plan does."""
    path = check_file(tmp_path, {"model": name, "seq": 1024, "max_cache": "1GiB"})
    run(path, "write")
    assert locked(path).message == "the same as in the lock"


def test_infinity_in_a_config_is_no_obstacle(tmp_path: Path) -> None:
    """Mamba's files have it; the lock is strict JSON, and the comparison knows."""
    path = check_file(tmp_path, CHECK)
    write(tmp_path / "tiny" / "config.json", json.dumps({**TINY, "time_step_limit": [0.0, float("inf")]}))
    run(path, "write")
    json.loads(Path(f"{path}.lock").read_text(encoding="utf-8"), parse_constant=pytest.fail)

    assert locked(path).message == "the same as in the lock"


def test_a_model_that_the_lock_lacks(tmp_path: Path) -> None:
    """An error of that check alone, with the command that adds it."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    check_file(tmp_path, CHECK, {**CHECK, "model": "Qwen/Qwen3-8B"})
    first, second = run(path).checks

    assert first.status == "pass"
    assert second.error is not None
    assert (second.error.code, second.error.type) == (3, "lock")
    assert second.error.hint == f"Add it: kvplan check --lock {path}"


def _edited(document: dict[str, Any]) -> str:
    document["models"]["./tiny"]["config"]["num_key_value_heads"] = 8
    return json.dumps(document)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda document: json.dumps(document)[:100], "cannot be read"),
        (lambda _: "", "is empty"),
        (lambda _: "[1]", "must be a JSON object"),
        (lambda _: "{}", "schema_version null"),
        (lambda document: json.dumps({**document, "schema_version": 99}), "schema_version 99"),
        (lambda document: json.dumps({**document, "schema_version": True}), "schema_version true"),
        (lambda document: json.dumps({**document, "models": []}), "is not a lock"),
        (lambda document: json.dumps({**document, "more": 1}), "is not a lock"),
        (_edited, "does not match its digest"),
        (lambda document: "<<<<<<< HEAD\n" + json.dumps(document), "is not JSON"),
        (lambda _: "[" * 100_000, "cannot be read"),
    ],
)
def test_a_broken_lock(tmp_path: Path, broken: Any, said: str) -> None:
    """One error, exit 3, with the command that mends it, at the lock; no check of its file is made."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    lock = Path(f"{path}.lock")
    write(lock, broken(json.loads(lock.read_text(encoding="utf-8"))))

    document = run(path)
    [found] = document.checks
    assert (found.file, document.summary.exit_code) == (str(lock), 3)
    assert found.error is not None
    assert said in found.error.message
    assert f"kvplan check --lock {path}" in found.error.hint


@pytest.mark.parametrize(
    "change",
    [
        {"id": 5},
        {"source": "elsewhere"},
        {"config": []},
        {"revision": 5},
        {"notes": [["a"]]},
        {"notes": 5},
        {"parameters": {"total": "x"}},
        {"parameters": {"nothing": 1}},
        {"weights": {"bytes_by_dtype": {"BF16": -1}}},
        {"weights": []},
        {"more": 1},
    ],
)
def test_an_entry_of_the_wrong_shape(tmp_path: Path, change: dict[str, Any]) -> None:
    """A digest can be made by anyone: the entries are checked as well."""
    from hwcalc.check.models import _digest

    path = check_file(tmp_path, CHECK)
    run(path, "write")
    lock = Path(f"{path}.lock")
    document = json.loads(lock.read_text(encoding="utf-8"))
    document["models"]["./tiny"] |= change
    write(lock, document | {"digest": _digest({key: document[key] for key in ("models", "checks")})})

    with pytest.raises(LockError, match="an entry that is not one of a lock"):
        read_lock(str(lock), "mend")


def test_everything_that_counts_is_kept(tmp_path: Path) -> None:
    """A description goes into the lock and comes back; remarks about how it was found stay behind."""
    weights = WeightFacts(bytes_by_dtype={"BF16": 8}, elements_by_dtype={"BF16": 4}, files=1, tensors=1)
    raw = RawModel(
        id="org/name",
        config={"b": 1, "a": {"z": 1, "y": None}},
        source="hub",
        location="wherever",
        revision="0" * 40,
        parameters=Parameters(total=4, active=4),
        weights=weights,
        notes=(Note(code="fidelity", message="kept"), Note(code="hub-unreachable", message="left")),
    )
    path = str(tmp_path / "lock")
    asked = {"chat": {"model": "org/name", "seq": "16k"}}
    assert write_lock(path, Lock(models={"org/name": raw}, checks=asked), "mend")
    lock = read_lock(path, "mend")
    assert lock is not None
    assert lock.checks == asked
    found = lock.models["org/name"]

    assert (found.id, found.config, found.source, found.revision) == (raw.id, raw.config, raw.source, raw.revision)
    assert list(found.config) == ["b", "a"]
    assert (found.parameters, found.weights) == (raw.parameters, weights)
    assert found.notes == (Note(code="fidelity", message="kept"),)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def test_a_gguf_file_is_locked_with_its_tensors(tmp_path: Path) -> None:
    """The header is in the lock: without the file the bytes are the same, and a change of it is noticed."""
    file = tmp_path / "x.gguf"
    file.write_bytes(gguf_bytes())
    path = check_file(tmp_path, {"model": "./x.gguf", "engine": "reference", "seq": 1000, "max_cache": 1024_000})
    run(path, "write")
    lock = read_lock(f"{path}.lock", "")
    assert lock is not None
    assert {one.name: (one.type, one.shape) for one in lock.models["./x.gguf"].tensors} == dict(SHAPES)
    assert locked(path).message == "the same as in the lock"
    file.unlink()
    assert locked(path).message == "not on this machine: taken from the lock"
    assert run(path).summary.exit_code == 0
    file.write_bytes(gguf_bytes({**KEYS, "llama.attention.head_count_kv": 4}))
    assert "llama.attention.head_count_kv 2 -> 4" in locked(path).message

    entry = json.loads(Path(f"{path}.lock").read_text(encoding="utf-8"))["models"]["./x.gguf"]
    for row in (None, [], ["a"], ["a", "q9_z", 256], ["a", "f32", -1], ["a", "f32", True], ["a", "q4_k", 100], [1, "f32", 1]):
        models = {"./x.gguf": {**entry, "tensors": [row]}}
        digest = _digest({"models": models, "checks": {}})
        document = {"schema_version": SCHEMA_VERSION, "digest": digest, "models": models, "checks": {}}
        Path(f"{path}.lock").write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(LockError, match="not one of a lock"):
            read_lock(f"{path}.lock", "")


def test_a_lock_of_version_1_is_read(tmp_path: Path) -> None:
    """It has no checks, and its digest is over the models alone."""
    path = check_file(tmp_path, CHECK)
    run(path, "write")
    lock = Path(f"{path}.lock")
    models = json.loads(lock.read_text(encoding="utf-8"))["models"]
    write(lock, {"schema_version": 1, "digest": _digest(models), "models": models})

    read = read_lock(str(lock), "")
    assert read is not None
    assert (list(read.models), read.checks) == (["./tiny"], {})
    assert locked(path).message == "the same as in the lock"
    assert run(path, "write").files[0].lock_written is True


def test_what_was_changed_since_the_lock_is_said(tmp_path: Path) -> None:
    """It fails nothing, and a check that fails says it, at the line of the key; a check of another name is not compared."""
    path = check_file(tmp_path, {**CHECK, "name": "one", "max_cache": "2GiB"})
    run(path, "write")
    check_file(tmp_path, {**CHECK, "name": "one", "seq": 2048, "max_cache": 1024 * PER_TOKEN}, {**CHECK, "name": "two"})
    first, second = run(path).checks

    assert [(change.key, change.before, change.after, change.since) for change in first.changes] == [
        ("seq", "1k", "2k", "lock"),
        ("max_cache", "2GiB", str(1024 * PER_TOKEN), "lock"),
    ]
    limit = next(item for item in first.requirements if item.name == "max_cache")
    assert (limit.holds, [edit.yaml for edit in limit.edits]) == (False, ["seq: 1k"])
    assert (second.status, second.changes) == ("pass", ())


def test_checks_without_a_name_are_told_when_a_lock_is_written(tmp_path: Path) -> None:
    """Of them nothing says later what changed."""
    named, nameless = {**CHECK, "name": "one"}, {key: value for key, value in CHECK.items() if key != "name"}

    def said(*checks: dict[str, Any]) -> list[str]:
        return [note.message for note in run(check_file(tmp_path, *checks), "write").files[0].notes if note.code == "nameless"]

    assert said(named) == []
    assert [(text[:30], text[-15:]) for text in said(named, nameless)] == [("The check in line 1 has no nam", "give it a name.")]
    assert [text[:40] for text in said(nameless, nameless)] == ["2 checks have no name, the first in line"]
