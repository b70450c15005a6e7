"""Weight headers that this machine has lost, or never had: they are read again where that is possible."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hwcalc.sources.caches import facts_folder
from tests.hub.repositories import COMMIT, MODEL, TEXT, File, sharded, weight_file
from tests.hub.server import Hub
from tests.hwcalc.sources.given import OTHER, cached, planned


def facts_file() -> Path:
    """Where the facts of ``org/name`` lie."""
    folder = facts_folder()
    assert folder is not None
    return folder / "org--name" / f"{COMMIT}.json"


@pytest.mark.parametrize("how", ["deleted", "corrupt", "not writable", "another program"])
def test_lost_facts_are_read_again(hub: Path, loopback: Hub, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config from the cache, the headers from the Hub, one request; kept again, so that the next plan asks nobody."""
    loopback.add("org/name", MODEL)
    if how == "not writable":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    if how == "another program":
        cached(hub, commit=COMMIT, text=TEXT.decode())
    else:
        planned()
    if how == "deleted":
        shutil.rmtree(facts_file().parent)
    elif how == "corrupt":
        facts_file().write_bytes(b"{")
    loopback.asked.clear()
    raw = planned()

    assert (raw.source, raw.notes, loopback.paths()) == ("hf-cache", (), ["model.safetensors"])
    assert raw.weights is not None
    assert raw.weights.bytes_by_dtype == {"BF16": 64 * 64 * 2, "I64": 3 * 8}
    assert planned().weights == raw.weights
    assert len(loopback.asked) == (2 if how == "not writable" else 1)


def test_offline_nothing_is_asked_and_nothing_is_said(hub: Path, loopback: Hub) -> None:
    """The config is enough."""
    loopback.add("org/name", MODEL)
    cached(hub, commit=COMMIT, text=TEXT.decode())
    raw = planned(offline=True)

    assert (raw.weights, raw.notes, loopback.asked) == (None, (), [])


@pytest.mark.parametrize("why", ["down", "refused", "other commit", "no address", "other repository"])
def test_a_hub_that_does_not_answer_is_noted(hub: Path, loopback: Hub, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan goes on from the cache, and the next one tries again."""
    if why != "other repository":
        loopback.add("org/name", MODEL)
    cached(hub, commit=OTHER if why == "other commit" else COMMIT, text=TEXT.decode())
    if why == "down":
        loopback.fail(status=503)
    elif why == "refused":
        loopback.fail(status=403)
    elif why == "no address":
        monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    for _ in range(2):
        raw = planned()
        assert (raw.source, raw.weights, [note.code for note in raw.notes]) == ("hf-cache", None, ["weights"])
    monkeypatch.setenv("HF_ENDPOINT", loopback.address)
    loopback.faults.clear()
    loopback.add("org/name", MODEL)
    assert (planned().weights is None) == (why == "other commit")


def test_a_repository_without_safetensors_is_asked_once(hub: Path, loopback: Hub) -> None:
    """That there are none is kept like everything else; who asks the Hub itself asks anew."""
    files: dict[str, bytes | File] = {"config.json": TEXT, "pytorch_model.bin": b"x"}
    loopback.add("org/name", files)
    planned()
    loopback.asked.clear()

    for _ in range(2):
        raw = planned()
        assert (raw.source, raw.weights, raw.notes, loopback.asked) == ("hf-cache", None, (), [])
    loopback.add("org/name", MODEL)
    assert planned(refresh=True).weights is not None


def test_notes_of_the_reading_are_kept(hub: Path, loopback: Hub) -> None:
    """A missing file and a new name are said in every plan, not in the first alone."""
    files: dict[str, bytes | File] = {"config.json": TEXT, **sharded(3)}
    del files["model-00002-of-00003.safetensors"]
    loopback.add("org/name", files)
    loopback.add("new-org/new-name", MODEL)
    loopback.names["org/old"] = "new-org/new-name"
    first = [planned().notes, planned("org/old").notes]
    loopback.asked.clear()

    assert [[note.code for note in notes] for notes in first] == [["weights"], ["renamed"]]
    assert [planned().notes, planned("org/old").notes] == first
    assert loopback.asked == []
    assert planned("org/old", refresh=True).notes == first[1]


def test_a_config_of_another_program_gets_its_quantisation(hub: Path, loopback: Hub) -> None:
    """ModelOpt's second file is asked for like in a first plan, and kept."""
    quant = b'{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}'
    weights = weight_file({"w": ("F8_E4M3", (8,)), "s": ("F32", (1,))})
    loopback.add("org/name", {"config.json": TEXT, "hf_quant_config.json": quant, "model.safetensors": weights})
    cached(hub, commit=COMMIT, text=TEXT.decode())

    assert planned().config["quantization_config"]["quant_algo"] == "FP8"
    assert planned().config["quantization_config"]["quant_algo"] == "FP8"
    assert loopback.paths() == ["model.safetensors", "hf_quant_config.json"]
