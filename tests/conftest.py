"""What every test runs under: no network, nobody's own Hugging Face cache or profiles, and repeatable examples."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

R = TypeVar("R", pytest.TestReport, pytest.CollectReport)

# Before anything imports huggingface_hub, which reads these once. Subprocesses inherit them.
_nobody = Path(tempfile.gettempdir()) / "kvplan-tests-without-home"
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": str(_nobody / "huggingface"),
    "XDG_CONFIG_HOME": str(_nobody / "config"),
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
    # The processors are busy with other tests: threads that wait for each other take longer than one.
    "OMP_NUM_THREADS": "1",
}

# A process that may not keep its bytecode compiles all of the program, which takes longer than what it is started for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests themselves are a million objects that stay: at Python's own threshold a tenth of the time goes into searching them.
gc.set_threshold(50_000)

# Examples are the same on every run; HYPOTHESIS_PROFILE=deep looks for new ones.
settings.register_profile(
    "default", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", parent=settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all is installed (``KVPLAN_TESTS_SKIP=none``), a test that is skipped has failed."""
    return _not_skipped((yield), item.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file of tests."""
    return _not_skipped((yield), collector.nodeid)


def _not_skipped(report: R, name: str) -> R:
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("KVPLAN_TESTS_SKIP") == "none":
        report.outcome, report.longrepr = "failed", f"{name} is skipped: {report.longrepr}"
    return report


NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser that runs as long as this process of tests."""
    from playwright import sync_api

    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    # Debian's own sandbox does not start for root.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=[*arguments, "--disable-gpu", "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a wheel of this checkout."""
    from tests.hwcalc.wheel import build

    return build(tmp_path_factory.mktemp("wheel"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Readline writes the width of its terminal into the environment of a process of tests."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
