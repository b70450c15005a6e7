"""What every test runs under: no network, nobody's own Hugging Face cache or profiles, and repeatable examples."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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

# Examples are the same on every run; HYPOTHESIS_PROFILE=deep looks for new ones.
settings.register_profile(
    "default", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", parent=settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readline writes the width of its terminal into the environment of a process of tests."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
