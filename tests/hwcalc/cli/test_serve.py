"""``kvplan explore --serve``: the address that it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from scripts import interrupts
from tests.hwcalc.command import REPOSITORY, Capture, run


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command and the address that it printed."""
    command = [sys.executable, "-m", "hwcalc", "explore", "--serve", "--gpu", "l4", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(number: signal.Signals) -> None:
    """One line on standard output, the address, which gives the page; a signal ends it as it ends every command."""
    interrupts.heed_signals()
    with serving() as (process, address):
        with urlopen(address, timeout=10) as page:  # noqa: S310 - the address of this machine
            text, policy = page.read().decode(), page.headers["Content-Security-Policy"]
        process.send_signal(number)
        out, err = process.communicate(timeout=10)

    assert '"live":true' in text
    assert "connect-src 'self'" in policy
    assert (128 + number, "") == (process.returncode, out)
    assert err == "kvplan: the page is at the address below, for this machine alone. Ctrl-C ends it.\n"
    assert address.split("/")[3] not in err


def test_an_address_that_nobody_reads(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without standard output a server would run for nobody."""
    monkeypatch.setattr("sys.stdout", None)
    status, _, err = run(capsys, "explore", "--serve")

    assert status == 2
    assert "kvplan: standard output is closed, so nobody would learn the address.\n" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--serve", "-o", "page.html"), "--serve writes no file."),
        (("--port", "8000"), "--port needs --serve."),
        (("--serve", "--port", "0"), "--port '0' is no port."),
        (("--serve", "--port", "65536"), "--port '65536' is no port."),
        (("--serve", "--port", "http"), "--port 'http' is no port."),
    ],
)
def test_wrong_options(capsys: Capture, words: tuple[str, ...], message: str) -> None:
    """What cannot be meant is refused before anything is worked out."""
    status, out, err = run(capsys, "explore", *words)

    assert (2, "") == (status, out)
    assert f"kvplan: {message}\n" in err
