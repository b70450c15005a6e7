"""A name that is no id: taken for the only model that it can mean, with a note; two are never guessed between."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hwcalc.errors import HubAccessError, HubUnreachableError, ModelNotFoundError
from hwcalc.sources import listing, resolve
from tests.catalog import find_model
from tests.hub.server import Hub
from tests.hwcalc.command import run
from tests.hwcalc.sources.given import CONFIG, cached, refused


@pytest.mark.parametrize(
    ("given", "model_id"),
    [
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("QWEN/QWEN3-8B", "Qwen/Qwen3-8B"),
        ("qwen2.5-coder-32b-instruct", "Qwen/Qwen2.5-Coder-32B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("llama3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("phi4", "microsoft/phi-4"),
        ("qwen-3-8b", "Qwen/Qwen3-8B"),
        ("gpt2", "openai-community/gpt2"),
        ("mistral-small-4", "mistralai/Mistral-Small-4-119B-2603"),
    ],
)
def test_one_match_is_taken_with_a_note(given: str, model_id: str) -> None:
    """In any case, without the org, and for the beginning of one name only; the note comes first."""
    raw = resolve(given)

    assert (raw.id, raw.config) == (model_id, resolve(model_id).config)
    assert (raw.notes[0].code, raw.notes[0].message) == ("model-name", f"{given!r} is read as {model_id}.")


@pytest.mark.parametrize(
    ("given", "model_id", "other"),
    [
        ("gemma-3-4b", "google/gemma-3-4b-it", "google/gemma-3-4b-pt"),
        ("Gemma-3-12B", "google/gemma-3-12b-it", "google/gemma-3-12b-pt"),
        # The config of the base model is a published copy, the other's is not.
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    ],
)
def test_models_with_the_same_plan_are_one_answer(given: str, model_id: str, other: str) -> None:
    """It does not matter which of them was meant; the note says so."""
    raw, (one, two) = resolve(given), (find_model(model_id), find_model(other))

    assert one is not None
    assert two is not None
    assert one["config"] == two["config"]
    assert raw.id == model_id
    assert raw.notes[0].message == f"{given!r} is read as {model_id}; the plan of {other} would be the same."


def test_two_are_never_guessed_between() -> None:
    """The candidates are listed; of many the first, with the command that lists all."""
    few, many = refused("gpt-oss"), refused("qwen3")

    assert (type(few), few.exit_code) == (ModelNotFoundError, 3)
    assert few.message == "'gpt-oss' is not an id, and may mean 2 models."
    assert few.hint == "Did you mean openai/gpt-oss-120b or openai/gpt-oss-20b?"
    assert many.hint.endswith("or others? All of them: kvplan models qwen3")


@pytest.mark.parametrize("family", ["qwen", "Qwen", "llama", "gemma", "phi", "deepseek"])
def test_a_family_is_never_taken_for_one_of_its_models(family: str) -> None:
    """``qwen`` begins Qwen-1_8B-Chat at a hyphen, and all of Qwen3 as well."""
    error = refused(family)

    assert "is not an id, and may mean " in error.message
    assert error.hint.endswith(f"All of them: kvplan models {family}")


def test_a_word_without_a_number_is_never_taken(hub: Path) -> None:
    """It is a family, even where only one of its models is known."""
    cached(hub, "my-org/Zebra-1B")
    error = refused("zebra")

    assert (error.message, error.hint) == (
        "'zebra' is not an id, and is only the beginning of one.",
        "Did you mean my-org/Zebra-1B?",
    )
    assert resolve("zebra-1b").id == "my-org/Zebra-1B"


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("llama3", "meta-llama/Llama-3.1-8B"),
        ("llama 70b", "meta-llama/Llama-3.1-70B"),
        ("google/gemma3-27b", "google/gemma-3-27b-it"),
        ("qwen3-8b-instruct", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8", "Qwen/Qwen3-8B"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B"),
        ("mistal-7b", "mistralai/Mistral-7B-v0.1"),
    ],
)
def test_names_are_compared_by_their_words_and_numbers(given: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As people write them: a number at its word, a blank for a hyphen, one word too much, half a size."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert refused(given).hint.removeprefix("Did you mean ").rstrip("?").split(" or ")[0] == first


def test_blanks_around_a_name_are_nothing() -> None:
    """They come along where a name is copied."""
    assert resolve(" Qwen/Qwen3-8B ").id == "Qwen/Qwen3-8B"


def test_another_org_is_another_model() -> None:
    """``someone/Qwen3-8B`` may have other layers."""
    assert refused("someone/Qwen3-8B").hint == "Did you mean Qwen/Qwen3-8B?"


def test_a_file_comes_first() -> None:
    """Then a folder, then the exact id."""
    Path("qwen3-8b").write_text(json.dumps(CONFIG), encoding="utf-8")

    assert resolve("qwen3-8b").source == "local"


def test_the_cache_has_names_too(hub: Path) -> None:
    """A model in the cache counts if the cache has its config; with the same name as the catalog's it makes two."""
    cached(hub, "my-org/My-Model")
    cached(hub, "my-org/Qwen3-4B", text=None)

    assert (resolve("my-model").id, resolve("my-model").source) == ("my-org/My-Model", "hf-cache")
    assert resolve("qwen3-4b").id == "Qwen/Qwen3-4B"
    cached(hub, "other-org/Qwen3-8B")
    assert refused("qwen3-8b").hint == "Did you mean other-org/Qwen3-8B or Qwen/Qwen3-8B?"


def test_an_exact_id_does_not_look_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it costs nothing."""
    monkeypatch.setattr(listing, "meant", lambda _: pytest.fail("an exact id needs no match"))

    assert resolve("Qwen/Qwen3-8B").notes == ()


def test_a_name_needs_no_network(loopback: Hub) -> None:
    """The Hub is not asked for what is known here."""
    assert resolve("qwen3-8b").id == "Qwen/Qwen3-8B"
    assert loopback.asked == []


def test_the_nearest_is_suggested_where_the_hub_refuses(loopback: Hub) -> None:
    """The Hub answers an id that does not exist as it answers a private one."""
    loopback.add("nobody/else", {})
    with pytest.raises((HubAccessError, ModelNotFoundError)) as caught:
        resolve("qwen/Qwen-3-8B")

    assert caught.value.hint.startswith("Did you mean Qwen/Qwen3-8B")


def test_the_nearest_is_suggested_without_a_network(monkeypatch: pytest.MonkeyPatch, loopback: Hub) -> None:
    """Nobody listens at this address; the hint about the network stays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(HubUnreachableError) as half:
            resolve("Qwen/Qwen3-8")
        with pytest.raises(HubUnreachableError) as caught:
            resolve("qwen/Qwen-3-8B")

    assert caught.value.hint.startswith("Did you mean Qwen/Qwen3-8B")
    assert half.value.hint.startswith("Did you mean Qwen/Qwen3-8B")
    assert caught.value.message.startswith("'qwen/Qwen-3-8B' is not known here, and the Hub ")
    assert len(caught.value.hint.splitlines()[0]) > len("Did you mean Qwen/Qwen3-8B?")


def test_what_a_person_sees(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with a note; candidates and exit 3; the same in JSON."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, table, _ = run(capsys, "qwen3-0.6b", "--seq", "4k")
    refused_status, nothing, said = run(capsys, "gpt-oss", "--seq", "4k")
    _, document, _ = run(capsys, "QWEN/qwen3-0.6b", "--seq", "4k", "--json")

    assert status == 0
    assert "'qwen3-0.6b' is read as Qwen/Qwen3-0.6B." in table
    assert (refused_status, nothing) == (3, "")
    assert "Did you mean openai/gpt-oss-120b or openai/gpt-oss-20b?" in said
    assert json.loads(document)["model"]["id"] == "Qwen/Qwen3-0.6B"
    assert "model-name" in {note["code"] for note in json.loads(document)["notes"]}
