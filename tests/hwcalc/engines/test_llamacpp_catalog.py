"""The catalog on llama.cpp: a plan or a documented refusal, at every length."""

from __future__ import annotations

from hwcalc import load_model
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.library.plan import plan_loaded
from hwcalc.profiles.catalog import list_models

EACH = 9
"""Of so many models one is planned; with 1 it takes minutes, and finds no other fault."""
REQUESTS = (
    {"engine": "llamacpp", "seq": 512},
    {"engine": "llamacpp", "seq": 131_072, "batch": 2, "dtype": "f16"},
    {"engine": "ollama", "weights": "q4_k_m", "gpu": "rtx-4060-ti-16gb"},
)


def test_the_catalog() -> None:
    """Most are planned; the others have a class that the converter does not take, or a cache that llama.cpp refuses."""
    planned = refused = 0
    for name in list_models()[::EACH]:
        model = load_model(name, offline=True)
        for asked in REQUESTS:
            try:
                one = plan_loaded(model, asked)
            except (UnsupportedError, ConfigError):
                refused += 1
                continue
            planned += 1
            assert one.cache.total_bytes > 0 or not model.stack.groups or one.pool is None
            assert asked.get("gpu") is None or one.fit is None or one.fit.all_layers
    assert planned > 9 * refused


def test_sizes_that_nothing_is_laid_out_for() -> None:
    """What ``--weights auto`` goes by is what the plan says, also where a part of the prediction layers always loads (Hy3)."""
    compared = 0
    for name in {*list_models()[4::EACH], "tencent/Hy3-preview", "stepfun-ai/Step-3.7-Flash", "zai-org/GLM-4.5-Air"}:
        model = load_model(name, offline=True)
        try:
            sizes = Llamacpp().weights.sizes(model)
            mix = min((mix for mix in sizes if mix is not None), default=None)
            planned = plan_loaded(model, {"engine": "llamacpp", "seq": 512, "weights": mix}) if mix else None
        except (UnsupportedError, ConfigError):
            continue
        if planned is not None:
            assert sizes[mix] == planned.memory.weights.bytes, name
            compared += 1
    assert compared > 25
