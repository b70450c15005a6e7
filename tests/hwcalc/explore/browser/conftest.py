"""A browser for the tests of the page: Debian's Chromium, which the machine has or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hwcalc.explore.browser.models import HOSTILE, MODELS, hostile_config
from tests.hwcalc.explore.browser.watched import Watched, opened


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of the tests have."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def page_file(shared: Path, browser: Any) -> Path:
    """The page of all models. The first process that asks makes it, the others wait."""
    return made(shared / "kvplan-page.html", MODELS, gpu="l4,h100,b200")


@pytest.fixture(scope="session")
def small_file(shared: Path, browser: Any) -> Path:
    """A page with two models, which is made and drawn fast."""
    return made(shared / "kvplan-small.html", ["Qwen/Qwen3-8B", "google/gemma-3-12b-it"], gpu="l4,h100")


@pytest.fixture(scope="session")
def hostile_file(shared: Path, browser: Any) -> Path:
    """A page with a model whose name and config have scripts in them."""
    return made(
        shared / "kvplan-hostile.html", [hostile_config(), {**hostile_config(), "_name_or_path": f"{HOSTILE}2"}], gpu="l4"
    )


def made(path: Path, models: Any, **options: Any) -> Path:
    """The page in this file, which is written once."""
    from filelock import FileLock

    from hwcalc.explore.build import explore
    from hwcalc.files import write_file

    with FileLock(f"{path}.lock"):
        if not path.exists():
            write_file(str(path), explore(models, **options).encode(), "--output")
    return path


@pytest.fixture(scope="session")
def _page(browser: Any, page_file: Path) -> Iterator[Watched]:
    with opened(browser, page_file.as_uri()) as watched:
        yield watched


@pytest.fixture(scope="session")
def _small(browser: Any, small_file: Path) -> Iterator[Watched]:
    with opened(browser, small_file.as_uri()) as watched:
        yield watched


@pytest.fixture
def page(_page: Watched) -> Iterator[Watched]:
    """The page of all models, opened from disk once. Whatever it should not do fails the test that made it do so."""
    yield _page
    _page.check()


@pytest.fixture
def small(_small: Watched) -> Iterator[Watched]:
    """The page of two models, likewise."""
    yield _small
    _small.check()
