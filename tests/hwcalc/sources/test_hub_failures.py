"""Everything that a Hub can answer and that is no model: unreachable, slow, cut, refused, empty. Each has its exit code and a hint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hwcalc.errors import (
    ConfigError,
    HubAccessError,
    HubError,
    HubUnreachableError,
    KvplanError,
    ModelNotFoundError,
    UnsupportedError,
)
from tests.hub.repositories import COMMIT, CONFIG, MODEL, TEXT, File, sharded
from tests.hub.server import Hub
from tests.hwcalc.command import REPOSITORY, python
from tests.hwcalc.sources.given import cached, planned, refused

QWEN = "Qwen/Qwen3-8B"


def test_a_hub_that_cannot_be_reached(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache and catalog stand in for it with a note; a model of neither is an error of the network."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refused("org/name")
    raw = planned(QWEN, revision="main")

    assert (type(error), error.exit_code) == (HubUnreachableError, 4)
    assert "127.0.0.1:9 cannot be reached: no connection" in error.message
    assert (raw.source, [note.code for note in raw.notes]) == ("catalog", ["hub-unreachable"])
    assert "built-in catalog" in raw.notes[0].message
    cached(hub, QWEN)
    raw = planned(QWEN, refresh=True)
    assert (raw.source, [note.code for note in raw.notes]) == ("hf-cache", ["hub-unreachable"])
    # Another version is another model: nothing stands in for it.
    error = refused(QWEN, revision="v2")
    assert isinstance(error, HubUnreachableError)
    assert error.hint.endswith(f"kvplan {QWEN}")


@pytest.mark.parametrize(
    ("fault", "word", "tries"),
    [
        ({"status": 429}, "asked too often", 3),
        ({"status": 429, "headers": {"Retry-After": "3600"}}, "3,600 seconds", 1),
        ({"status": 429, "headers": {"RateLimit": '"api";r=0;t=240'}}, "240 seconds", 1),
        ({"status": 500}, "status 500", 3),
        ({"status": 503}, "status 503", 3),
        ({"status": 504}, "status 504", 3),
        ({"cut": 10}, "broke off", 3),
        ({"cut": 0}, "broke off", 3),
        ({"silent": True}, "no answer within", 1),
        ({"drip": 0.05}, "too slowly", 1),
        ({"status": 302, "headers": {"Location": "/org/name/resolve/main/config.json"}}, "in a circle", None),
        ({"status": 302, "headers": {"Location": "ftp://127.0.0.1/x"}}, "the request failed", 1),
    ],
)
def test_answers_that_are_none(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], word: str, tries: int | None
) -> None:
    """After a bounded number of tries: exit 4."""
    if "silent" in fault or "drip" in fault:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    loopback.add("org/name", MODEL)
    loopback.fail("config.json", **fault)
    error = refused("org/name")

    assert (type(error), error.exit_code) == (HubUnreachableError, 4)
    assert word in error.message
    assert len(loopback.asked) == tries or (tries is None and len(loopback.asked) < 40)
    assert list(hub.iterdir()) == []


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503, "headers": {"Retry-After": "0"}}, {"cut": 10}])
def test_what_passes_is_tried_again(hub: Path, loopback: Hub, fault: dict[str, Any]) -> None:
    """For the config and for a part of a weight file alike."""
    loopback.add("org/name", {"config.json": TEXT, **sharded(2)})
    loopback.fail("config.json", times=2, **fault)
    loopback.fail("model-00001", times=2, **fault)
    raw = planned()

    assert (raw.config, raw.notes) == (CONFIG, ())
    assert raw.weights is not None
    assert raw.weights.files == 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"<!doctype html><title>Sign in to the hotel</title>", "web page"),
        (b"", "empty"),
        (b"[]", "object"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 1000, "levels deep"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "LFS"),
    ],
)
def test_a_config_that_is_none(hub: Path, loopback: Hub, body: bytes, word: str) -> None:
    """Exit 3, and nothing of it is kept."""
    loopback.add("org/name", {**MODEL, "config.json": body})
    error = refused("org/name")

    assert (type(error), error.exit_code) == (ConfigError, 3)
    assert word in error.message + error.hint
    assert "org/name" in error.message
    assert list(hub.iterdir()) == []


@pytest.mark.parametrize("length", ["", "Content-Length"])
def test_a_hundred_megabytes_are_no_config(hub: Path, loopback: Hub, length: str) -> None:
    """Refused by what the server says, and where it says nothing by what came so far: 16 MiB."""
    loopback.add("org/name", {"config.json": File(b"{", 100 * 1024**2)})
    if not length:
        loopback.fail("config.json", headers={"Content-Length": "", "Connection": "close"})
    error = refused("org/name")

    assert (type(error), error.exit_code) == (ConfigError, 3)
    assert "16 MiB" in error.message


@pytest.mark.parametrize(
    ("repository", "token", "error", "words"),
    [
        ({"token": "hf_owner", "gated": True}, None, HubAccessError, "gated hf auth login"),
        ({"token": "hf_owner", "gated": True}, "hf_me", HubAccessError, "gated ask for access"),
        ({"token": "hf_owner"}, None, HubAccessError, "private hf auth login"),
        ({"token": "hf_owner"}, "hf_me", ModelNotFoundError, "neither in"),
        (None, None, HubAccessError, "no such model"),
        (None, "hf_me", ModelNotFoundError, "neither in"),
        ({"refs": ()}, None, ModelNotFoundError, "no revision main"),
    ],
)
def test_refusals(
    hub: Path, loopback: Hub, repository: dict[str, Any] | None, token: str | None, error: type[KvplanError], words: str
) -> None:
    """Permission is exit 4; what the Hub says is not there is exit 3. Without a token it does not say which."""
    if repository is not None:
        loopback.add("org/name", MODEL, **repository)
    raised = refused("org/name", token=token)

    assert type(raised) is error
    assert raised.exit_code == (3 if error is ModelNotFoundError else 4)
    for word in words.split("  "):
        assert all(part in raised.message + raised.hint for part in word.split(" "))


def test_other_refusals(hub: Path, loopback: Hub) -> None:
    """A status that nobody expects is said."""
    loopback.add("org/name", MODEL)
    loopback.fail(status=451)
    error = refused("org/name")

    assert (type(error), error.exit_code) == (HubError, 4)
    assert "451" in error.message


def test_the_owners_token_opens(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an option, from the environment, and from the place where hf auth login leaves it."""
    loopback.add("org/name", MODEL, token="hf_owner", gated=True)

    assert planned(token="hf_owner").revision == COMMIT
    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    assert planned(refresh=True).source == "hub"


@pytest.mark.parametrize("token", ["hf_a\nX-Evil: 1", "hf_\u00e4", "hf x", "\x00"])
def test_a_token_that_is_none_is_not_repeated(hub: Path, loopback: Hub, token: str) -> None:
    """A client would quote it."""
    error = refused("org/name", token=token)

    assert error.exit_code == 2
    assert "hf_" not in error.message + error.hint
    assert loopback.asked == []


@pytest.mark.parametrize(
    "address", ["hf-mirror.com", "ftp://x", "http://", "http://a b", "http://x/?q=1", "http://x:99999", "http://[", "file:///etc"]
)
def test_an_address_that_is_none(hub: Path, loopback: Hub, address: str) -> None:
    """Exit 2, with the form that is wanted."""
    error = refused("org/name", endpoint=address)

    assert error.exit_code == 2
    assert "https://" in error.hint


def test_a_password_in_the_address_is_not_repeated(hub: Path, loopback: Hub) -> None:
    """Mirrors are given so."""
    loopback.add("org/name", MODEL)
    raw = planned(endpoint=loopback.address.replace("//", "//me:s3cret@") + "/")
    error = refused("org/other", endpoint=loopback.address.replace("//", "//me:s3cret@"))

    assert raw.source == "hub"
    assert "s3cret" not in raw.location + error.message + error.hint


@pytest.mark.parametrize(
    ("files", "card", "error", "words"),
    [
        (
            {"adapter_config.json": b'{"base_model_name_or_path": "org/base"}'},
            {},
            UnsupportedError,
            ["adapter", "kvplan org/base"],
        ),
        ({"adapter_config.json": b"{"}, {"base_model": ["org/base"]}, UnsupportedError, ["adapter", "kvplan org/base"]),
        ({"adapter_config.json": b'{"base_model_name_or_path": "\\u001b[31m"}'}, {}, UnsupportedError, ["adapter", "its page"]),
        ({"x-q4.gguf": b"GGUF"}, {"base_model": "org/base"}, ConfigError, ["'x-q4.gguf' of 'org/name' ends within its header"]),
        (
            {"a/config.json": TEXT, "b/config.json": TEXT},
            {},
            ModelNotFoundError,
            ["'a', 'b'", "hf download org/name a/config.json"],
        ),
        ({"a/config.json": TEXT}, {}, ModelNotFoundError, ["its config in a folder: 'a'"]),
        ({"README.md": b"", ".gitattributes": b""}, {}, ModelNotFoundError, ["is empty"]),
        ({"model.onnx": b""}, {}, ModelNotFoundError, ["no config.json"]),
        ({}, {}, ModelNotFoundError, ["is empty"]),
    ],
)
def test_a_repository_without_config(
    hub: Path, loopback: Hub, files: dict[str, bytes], card: dict[str, Any], error: type[KvplanError], words: list[str]
) -> None:
    """What it holds instead, and what to type next: exit 3."""
    loopback.add("org/name", files, card=card)
    raised = refused("org/name")

    assert (type(raised), raised.exit_code) == (error, 3)
    assert all(word in f"{raised.message} {raised.hint}" for word in words)


def test_a_mirror_that_lists_no_files(hub: Path, loopback: Hub) -> None:
    """A config is found without the list; without a config the model is not found."""
    loopback.has_listing = False
    loopback.add("org/name", MODEL)
    loopback.add("org/other", {})

    assert planned().source == "hub"
    assert isinstance(refused("org/other"), ModelNotFoundError)


@pytest.mark.parametrize("wrong", ["HF_HOME", "folder", "bytes", "endless", "pipe", "large", "HF_HUB_DOWNLOAD_TIMEOUT"])
def test_settings_that_are_none(hub: Path, loopback: Hub, tmp_path: Path, wrong: str) -> None:
    """Of huggingface_hub's own: wrong usage with a way out, in a process that reads them."""
    (tmp_path / "bytes").write_bytes(b"hf_\xff\xfe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"hf_" + b"a" * 2**17)
    os.mkfifo(tmp_path / "pipe")
    more = {
        "HF_HOME": {"HF_HOME": str(tmp_path / "bytes")},
        "HF_HUB_DOWNLOAD_TIMEOUT": {"HF_HUB_DOWNLOAD_TIMEOUT": "abc"},
    }.get(wrong, {"HF_TOKEN_PATH": str(tmp_path / wrong)})
    done = python("-m", "hwcalc", "no/such", env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"} | more)

    assert (done.returncode, done.stdout) == (2, "")
    assert ("HF_HUB_DOWNLOAD_TIMEOUT" if wrong.endswith("TIMEOUT") else "HF_TOKEN_PATH") in done.stderr
    assert loopback.asked == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SSL_CERT_FILE", "/no/such/file", "SSL_CERT_FILE or another variable names a certificate that is not there"),
        ("https_proxy", "socks5://127.0.0.1:1", "the proxy of the environment needs a package that is not installed"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "99999999999999999999", "a request takes no such time"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1", "a request takes no such time"),
    ],
)
def test_an_environment_in_which_nothing_is_reached(hub: Path, loopback: Hub, name: str, value: str, said: str) -> None:
    """Words, and no name of a Python exception; nothing is asked."""
    settings = {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", name: value}
    done = python("-m", "hwcalc", "no/such", env=dict(os.environ) | settings)

    assert (done.returncode, done.stdout) == (2 if name.endswith("TIMEOUT") else 4, "")
    assert said in done.stderr
    assert "Error" not in done.stderr
    assert loopback.asked == []
