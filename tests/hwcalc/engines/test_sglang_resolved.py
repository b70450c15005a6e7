"""Arguments that SGLang 0.5.23 itself resolved for a GPU, and the pools that it made by them (``tests/golden/sglang_resolved.json``)."""

from __future__ import annotations

import json
from typing import Any, Final

from hwcalc import load_model
from hwcalc.engines import find_engine
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.engines.sglang.memory import default_fraction
from hwcalc.errors import UsageError
from hwcalc.profiles.gpus import find_gpu
from tests.paths import GOLDEN

_REFUSED: Final = {("tiiuae/Falcon-H1-34B-Instruct", 8), ("microsoft/phi-4", 8)}
"""Models on so many ranks for which its pools were sized without the model: its classes then fail, as their heads do not divide."""
_CASES: Final = json.loads((GOLDEN / "sglang_resolved.json").read_text(encoding="utf-8"))["cases"]


def _planned(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case."""
    parallel = Parallel(**{name: case.get(name, 1) for name in ("tp", "pp", "dp")})
    hardware = Hardware(gpu=find_gpu(case["gpu"]))
    request = Request.of(seq=1024, dtype=case.get("dtype"), parallel=parallel, hardware=hardware, options=case.get("options", {}))
    opened = find_engine("sglang")[0].open(load_model(case["model"]), request)
    assert isinstance(opened, SglangOccupancy)
    sizes, own = opened.sizes(case["budget_bytes"]), opened.settings
    return {
        "page_size": own.page_size,
        "chunk": own.chunk,
        "fraction": default_fraction(opened.deployment),
        "tokens": sizes.tokens,
        "swa": sizes.swa_tokens or None,
        "running": sizes.running,
        "slots": sizes.slots,
        "each": opened.deployment.slots or None,
    }


def test_what_a_gpu_and_a_model_settle_is_that_of_the_engine() -> None:
    """Pages, tokens of a prompt, share of the memory, pools, slots and requests of every case."""
    unlike, refused = {}, set()
    for number, case in enumerate(_CASES):
        try:
            planned = _planned(case)
        except UsageError:
            refused.add((case["model"], case["tp"]))
            continue
        wanted = {name: value or None if name == "swa" else value for name, value in case["found"].items()}
        if planned != wanted:
            unlike[number, case["model"]] = {
                name: (planned[name], value) for name, value in wanted.items() if planned[name] != value
            }
    assert not unlike
    assert refused == _REFUSED
