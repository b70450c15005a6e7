"""Rows of a sweep over GGUF files."""

from __future__ import annotations

from pathlib import Path

from hwcalc import load_model
from hwcalc.sweep.grid import Grid
from tests.hwcalc.sources.gguf.given import gguf_bytes
from tests.hwcalc.sweep.test_sweep import LLAMA, rows


def test_a_row_names_the_engine_of_its_file(tmp_path: Path) -> None:
    """Also where nothing could be planned: a GGUF file is planned as llama.cpp runs it, a config by the formulas."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes())
    models = (load_model(str(file)), load_model(LLAMA))
    found = rows(Grid(models=models, seqs=(1024,), dtypes=(None, "fp8_ds_mla")))
    assert [(row["engine"], bool(row["error"])) for row in found] == [
        ("llamacpp", False),
        ("llamacpp", True),
        ("reference", False),
        ("reference", True),
    ]
