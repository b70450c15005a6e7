"""Small grids are evaluated as large ones are, so that these tests see arrays too."""

from __future__ import annotations

import pytest

from hwcalc.sweep import rows


@pytest.fixture(autouse=True)
def _as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "FEW", 0)
