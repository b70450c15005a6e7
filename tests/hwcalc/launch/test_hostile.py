"""Texts that mean harm get an answer or a documented error, soon, and nothing in them is run or fetched."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from hwcalc import KvplanError, read_launch

SERVER: Final = "vllm serve acme/small --max-num-seqs 3"
BOMB: Final = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS: Final = {
    "bomb": BOMB,
    "bomb of merges": "a: &a {x: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1 or ''}], y: *a{n - 1 or ''}}}\n" for n in range(1, 60)),
    "an alias of itself": "a: &a [*a]\nservices: {x: {image: vllm/vllm-openai}}\n",
    "deep brackets": "services: " + "[" * 20_000,
    "deep mappings": "".join(f"{' ' * n}k:\n" for n in range(300)),
    "deep JSON": '{"apiVersion":' * 5_000,
    "a tag": "services: !!python/object/apply:os.system ['touch pwned']\n",
    "two keys": "services: {a: {image: vllm/vllm-openai, command: --model x, command: --model y}}\n",
    "many values": "services:\n" + "  a: {image: x}\n" * 60_000,
    "large": "vllm serve " + "x" * 10 * 1024**2,
    "quotes": "vllm serve " + "'\"" * 50_000,
    "substitutions": "vllm serve " + '"$(' * 150_000,
    "braces": "vllm serve " + "${A:-" * 25_000,
    "templates": "a: " + "{{" * 300_000,
    "templates of a shell": "vllm serve " + "{{" * 20_000,
    "backticks": "vllm serve " + "`a" * 40_000,
    "a growing variable": "A=xxxxxxxx\n" + "A=$A$A\n" * 200 + "vllm serve $A",
    "many commands": "true;" * 150_000,
    "many flags": "vllm serve m " + "--zzz " * 20_000,
    "many documents": "a: 1\n---\n" * 30_000,
    "here documents": "cat <<A " * 10_000,
    "a pattern": "A=" + "x" * 50_000 + "\nvllm serve ${A##*x*x*x*x*y}",
    "blanks": " \n" * 200_000 + "FROM",
    "JSON in a flag": "vllm serve m --hf-overrides '" + "[" * 100_000 + "'",
    "dots": "vllm serve m --hf-overrides" + ".a" * 50_000 + " 1",
    "binary": "\x00\x01\x02\ud800" * 1000,
    "macros": "macros: {a: '${b}${b}', b: '${a}${a}'}\nmodels: {x: {cmd: '${a}'}}\n",
    "services that extend": "services:\n"
    + "".join(f"  s{n}: {{extends: s{n + 1}, image: vllm/vllm-openai}}\n" for n in range(900)),
    "a sum": "vllm serve m -tp $((" + "9**" * 10_000 + "9))",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_hostile_text(text: str) -> None:
    """An answer, or one of kvplan's own errors."""
    servers = []
    with suppress(KvplanError):
        servers = read_launch(text)

    assert all(server.to_dict()["engine"] for server in servers)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve $(touch pwned; echo acme/small)",
        "vllm serve `touch pwned`",
        "touch pwned; vllm serve acme/small",
        ": ${X:=$(touch pwned)}; vllm serve acme/small",
        "vllm serve acme/small --config <(touch pwned)",
        "eval 'touch pwned'; source ./evil.sh; vllm serve acme/small > pwned",
        "services: {a: {image: vllm/vllm-openai, command: --model acme/small, env_file: /etc/passwd}}",
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nspec: {model: {uri: 'http://example.invalid/x'}}\n",
    ],
)
def test_nothing_is_run_or_fetched(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process, no file, no connection."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    for module, name in ((os, "system"), (subprocess, "Popen"), (socket.socket, "connect")):
        monkeypatch.setattr(module, name, refuse)

    assert len(read_launch(text)) <= 1
    assert not list(tmp_path.iterdir())


def test_secrets_are_not_repeated() -> None:
    """Neither the value of a key nor a token of the Hub."""
    token = "hf_" + "a" * 34
    [server] = read_launch(
        f"HF_TOKEN={token} vllm serve acme/small --api-key sk-1234567890abcdef --hf-token {token} --model-{token} x"
    )

    said = f"{server.to_dict()} {server!r}"
    assert token not in said
    assert "sk-1234567890abcdef" not in said


def test_the_last_of_two_keys_counts() -> None:
    """As for the tools that deploy manifests."""
    [server] = read_launch(TEXTS["two keys"])

    assert server.model == "y"


def test_a_text_that_is_too_large_says_so() -> None:
    """With what is read."""
    with pytest.raises(KvplanError, match="more than 4,194,304 characters"):
        read_launch(TEXTS["large"])
