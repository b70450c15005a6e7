"""The command and the Hub: what is printed where, what is imported, and that the token never is."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hwcalc.cli import output
from hwcalc.sources.request import tell
from tests.hub.repositories import COMMIT, MODEL, TEXT, sharded
from tests.hub.server import Hub
from tests.hwcalc.command import Capture, python, run
from tests.hwcalc.sources.given import refused

TOKEN = "hf_" + "SeCrEt" * 5


def test_a_plan_from_the_hub(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """One JSON document with the commit; the second time from the cache."""
    loopback.add("org/name", MODEL)
    for source in ("hub", "hf-cache"):
        status, out, err = run(capsys, "org/name", "--seq", "1k", "--json")
        model = json.loads(out)["model"]

        assert (status, err) == (0, "")
        assert (model["source"], model["revision"]) == (source, COMMIT)
    assert len(loopback.asked) == 2


def test_a_hub_that_cannot_be_reached_is_said_on_standard_error(
    hub: Path, loopback: Hub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan goes on from the catalog; without one, exit 4, as JSON where JSON was asked for."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for words in ((), ("--json",), ("-q",)):
        status, out, err = run(capsys, "Qwen/Qwen3-8B@main", *words)
        assert status == 0
        assert "kvplan: The Hub at 127.0.0.1:9 cannot be reached: no connection. Planned from: built-in catalog" in err
    status, out, err = run(capsys, "org/name", "--json")
    error = json.loads(out)["error"]
    assert (status, error["code"], error["type"], err) == (4, 4, "hub-unreachable", "")
    status, out, err = run(capsys, "org/name")
    assert (status, out) == (4, "")
    assert "cannot be reached" in err


@pytest.mark.parametrize(("option", "status"), [(("--offline",), 3), ((), 4)])
def test_offline_and_unknown_is_not_found(
    hub: Path, loopback: Hub, capsys: Capture, option: tuple[str, ...], status: int
) -> None:
    """The contract's two codes."""
    loopback.fail(status=503)

    assert run(capsys, "org/name", *option)[0] == status


def test_options_of_the_hub(hub: Path, loopback: Hub, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand before the environment."""
    loopback.add("org/name", MODEL, token=TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_other")

    assert run(capsys, "org/name", "--endpoint", loopback.address, "--token", TOKEN)[0] == 0
    assert run(capsys, "org/name", "--endpoint", "nonsense", "--revision", "x")[0] == 2


FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"status": 401},
    {"status": 403, "headers": {"X-Error-Code": "GatedRepo", "X-Error-Message": TOKEN}},
    {"status": 400, "body": TOKEN.encode(), "headers": {"X-HF-Warning": f"token; {TOKEN}", "X-Request-Id": TOKEN}},
    {"status": 404, "headers": {"X-Error-Code": TOKEN}},
    {"status": 503, "body": TOKEN.encode()},
    {"status": 302, "headers": {"Location": f"/{TOKEN}/resolve/main/config.json"}},
    {"status": 302, "headers": {"Location": f"nonsense://{TOKEN}"}},
    {"status": 200, "body": b'{"' + TOKEN.encode()},
    {"headers": {"X-Repo-Commit": TOKEN, "ETag": TOKEN}},
    {"headers": {"Content-Length": TOKEN}},
    {"cut": 7},
)


@pytest.mark.parametrize("given", ["option", "HF_TOKEN", "as a line"])
def test_the_token_is_never_printed(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, capsys: Capture, given: str
) -> None:
    """Whatever the Hub answers, even with tracebacks on; nor does it stay in a file."""
    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    words = ["--token", TOKEN] if given == "option" else ["--token", f"{TOKEN}\nX: y"] if given == "as a line" else []
    if given == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    for number, fault in enumerate(FAULTS):
        for form in ("--json", "--format=table"):
            loopback.add("org/name", MODEL)
            loopback.faults.clear()
            if fault:
                loopback.fail("config.json", **fault)
            status, out, err = run(capsys, f"org/name@{COMMIT if number else 'main'}", form, *words)

            assert TOKEN not in out + err
            assert status in {0, 2, 3, 4}
    assert any(asked.token == f"Bearer {TOKEN}" for asked in loopback.asked) == (given != "as a line")
    assert not [path for path in hub.parent.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.parametrize("hidden", [TOKEN, TOKEN[:-1] + "\u200b" + TOKEN[-1]], ids=["plain", "with an invisible letter"])
def test_a_token_that_the_hub_sends_is_kept_and_not_printed(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, capsys: Capture, hidden: str
) -> None:
    """The cache has what came; of a token with a letter in it that nobody sees, not more than its last letter is printed."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    config = {**json.loads(TEXT), "model_type": f"x{hidden}", "architectures": [hidden]}
    loopback.add("org/name", {"config.json": json.dumps(config, ensure_ascii=False).encode()})
    for form in ("--json", "--format=table"):
        status, out, err = run(capsys, "org/name", form)
        assert status == 3
        assert "***" in out + err
        assert TOKEN[:-1] not in out + err
    kept = [path for path in hub.parent.rglob("*") if path.is_file() and hidden.encode() in path.read_bytes()]
    assert kept


def test_the_token_is_in_no_log(hub: Path, loopback: Hub) -> None:
    """Not in huggingface_hub's either, in a process of its own."""
    loopback.add("org/name", MODEL, token="hf_owner")
    more = {"HF_TOKEN": TOKEN, "HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug", "KVPLAN_DEBUG": "1", "PYTHONDEVMODE": "1"}
    done = python("-m", "hwcalc", "org/name", env=_environment(more))

    assert done.returncode == 3
    assert TOKEN not in done.stdout + done.stderr
    assert [asked.token for asked in loopback.asked] == [f"Bearer {TOKEN}"]


def _environment(more: dict[str, str]) -> dict[str, str]:
    import os

    from tests.hwcalc.command import REPOSITORY

    return dict(os.environ) | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"} | more


def test_a_fresh_process_asks_no_more_than_this_one(hub: Path, loopback: Hub) -> None:
    """The client itself asks for nothing beside: a plan of three files from empty caches."""
    loopback.add("org/name", {"config.json": TEXT, **sharded(3)})
    done = python("-m", "hwcalc", "org/name", "--json", env=_environment({}))

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"]["source"] == "hub"
    assert len(loopback.asked) == 1 + 2 + 3


def test_a_plan_from_a_warm_cache_is_light(hub: Path, loopback: Hub) -> None:
    """No huggingface_hub, and no request. How long it takes is in ``benchmarks/startup.py``."""
    loopback.add("org/name", {"config.json": TEXT, **sharded(3)})
    python("-m", "hwcalc", "org/name", "--json", env=_environment({}))
    loopback.asked.clear()
    done = python("-X", "importtime", "-m", "hwcalc", "org/name", "--json", env=_environment({}))

    assert done.returncode == 0
    assert "huggingface_hub" not in done.stderr
    assert loopback.asked == []


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_late_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, after a while; the line is empty in the end."""
    monkeypatch.setattr(output, "PATIENCE", 0.05)
    terminal = Terminal()
    with output.shown_progress(terminal):
        tell("asking")
        assert terminal.getvalue() == ""
        deadline = time.monotonic() + 5
        while "asking" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        tell("one of two")
    written = terminal.getvalue()

    assert "kvplan: asking ..." in written
    # rich clears the line and shows the cursor again.
    assert written.endswith(("\x1b[2K", "\x1b[?25h"))


def test_what_is_quick_is_not_shown() -> None:
    """An answer within half a second leaves the terminal as it was."""
    terminal = Terminal()
    with output.shown_progress(terminal):
        tell("asking")
    tell("after the end")

    assert terminal.getvalue() == ""


def test_no_progress_in_a_pipe(hub: Path, loopback: Hub, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    monkeypatch.setattr(output, "PATIENCE", 0.0)
    loopback.add("org/name", MODEL)

    assert run(capsys, "org/name", "--json")[2] == ""


@pytest.mark.parametrize("wrong", [("--seq", "x"), ("--users", "0"), ("--encoder-seq", "-1"), ("--engine-option", "x")])
def test_a_number_that_is_none_is_said_before_the_hub_is_asked(
    hub: Path, loopback: Hub, capsys: Capture, wrong: tuple[str, str]
) -> None:
    """It would be wrong for any model."""
    loopback.add("org/name", MODEL)

    assert run(capsys, "org/name", *wrong)[0] == 2
    assert loopback.asked == []


def test_a_misspelt_command_is_still_guessed(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """Though the Hub may be asked for it."""
    assert "kvplan engines" in run(capsys, "engine")[2]
    assert refused("engine").exit_code == 4
