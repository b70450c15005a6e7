"""Tests of a room that reads and writes a user's measurements."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's profiles, and measurements switched on."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KVPLAN_NO_CALIBRATION", raising=False)
    return tmp_path
