"""Requests by chance to every engine that has forms: the cache, the parts, the verdict at each end and the refusals are those of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hwcalc import KvplanError, load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, Curve, MemoryForm
from hwcalc.engines.memory import Section
from hwcalc.model import ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.profiles.catalog import list_models
from hwcalc.units import GIB
from tests.effort import cases, sample
from tests.hwcalc.engines.vllm_rows import rows

REQUESTS: Final = cases(40, 150)
POINTS: Final = 3
VERSIONS: Final = {
    "transformers": ("", "", "@4.57", "@5.5", "@5.14"),
    "vllm": ("", "", "", "@0.27", "@0.19", "@0.15", "@0.11", "@0.10", "@0.9", "@0.8", "@0.7", "@0.6"),
}
OPTIONS: Final[dict[str, tuple[dict[str, str], ...]]] = {
    "reference": ({},),
    "transformers": (
        {}, {}, {"cache": "static"}, {"cache": "static", "max_cache_len": "5000"}, {"cache": "quantized"},
        {"cache": "quantized", "quant_backend": "hqq", "nbits": "3"}, {"cache": "quantized", "quant_backend": "fp8"}, {"cache": "offloaded"},
    ),
    "tgi": ({}, {}, {"attention": "paged"}, {"attention": "flashdecoding"}, {"max_batch_prefill_tokens": "1000"}, {"max_concurrent_requests": "4"}),
    "mistral-rs": (
        {}, {}, {"paged_attn": "off"}, {"paged_attn": "on"}, {"pa_context_len": "8192"}, {"pa_memory_mb": "8192"},
        {"pa_memory_fraction": "0.995"}, {"pa_block_size": "8"}, {"max_seqs": "200"},
    ),
    "mlx": (
        {}, {}, {"kv_bits": "4"}, {"kv_bits": "8", "quantized_kv_start": "0"}, {"prompt_cache_size": "3"}, {"prefill_step_size": "500"},
        {"max_kv_size": "4096"}, {"max_kv_size": "1000", "prefill_step_size": "100"},
    ),
    "vllm": (
        {}, {}, {}, {"enable_prefix_caching": "true"}, {"num_gpu_blocks_override": "1000"}, {"max_num_seqs": "64"}, {"block_size": "32"},
        {"max_num_batched_tokens": "4096"}, {"disable_hybrid_kv_cache_manager": "true"},
    ),
}  # fmt: skip
DTYPES: Final = {
    "reference": ("fp8", "q4_0"), "transformers": ("fp16",), "tgi": ("fp8", "fp16"), "mistral-rs": ("fp8",), "mlx": ("fp16", "int8"), "vllm": ("fp8",),
}  # fmt: skip
WEIGHTS: Final = {
    "reference": "q4_k_m", "transformers": "bnb4", "tgi": "fp8", "mistral-rs": "q4_k_m", "mlx": "mlx_4bit", "vllm": "fp8",
}  # fmt: skip
LAYOUTS: Final[tuple[dict[str, int], ...]] = (
    {}, {}, {}, {"tp": 2}, {"tp": 4}, {"pp": 2}, {"dp": 2}, {"tp": 2, "dp": 3}, {"pp": 4, "dp": 2},
)  # fmt: skip
GPUS: Final = ("h100-sxm5-80gb", "h100-sxm5-80gb", "rtx-4090", "m3-max-128gb", "mi300x", None)
LENGTHS: Final = (
    1, 2, 3, 7, 15, 16, 17, 31, 33, 127, 129, 255, 257, 500, 999, 1000, 1025, 2047, 2049, 4096, 4097, 4999, 5000, 5001, 8193, 32_768, 32_769,
    100_001, 262_145, 1_000_000,
)  # fmt: skip
BATCHES: Final = (1, 1, 2, 3, 9, 10, 18, 19, 32, 33, 100, 128, 129, 256, 257, 1024, 1025, 100_000)


def requests(engine: str, models: tuple[ModelSpec, ...]) -> Iterator[tuple[dict[str, Any], Occupancy]]:
    """Requests that the engine accepts."""
    draw = random.Random(f"forms of {engine}")  # noqa: S311 - a sample
    for model in draw.choices(models, k=REQUESTS):
        asked: dict[str, Any] = {
            "engine": engine + draw.choice(VERSIONS.get(engine, ("",))),
            "gpu": draw.choice(GPUS),
            "dtype": draw.choice((None, None, *DTYPES[engine])),
            "weights": draw.choice((None, WEIGHTS[engine])),
            "kv_memory": draw.choice((*(None,) * 8, GIB // 8, 40 * GIB)),
            "engine_options": draw.choice(OPTIONS[engine]),
            "seq": draw.choice(LENGTHS),
            "batch": draw.choice(BATCHES),
            **draw.choice(LAYOUTS),
        }
        try:
            yield {"model": model.id, **asked}, open_request(model, **asked)
        except KvplanError:
            continue


def unlike(
    request: Occupancy, curve: Curve, form: MemoryForm | None, tokens: int, sequences: int
) -> dict[str, tuple[object, object]]:
    """Where a form says something else than the engine."""
    try:
        asked = request.changed(seq=tokens, batch=sequences)
        needed = asked.needed_bytes
    except KvplanError as error:
        refused = curve.most_tokens is not None and tokens > curve.most_tokens
        return {} if refused else {"refused": (False, error.message)}
    found: dict[str, tuple[object, object]] = {
        "needed": (curve.needed_bytes(tokens, -(-sequences // request.setup.parallel.dp)), needed),
        "total": (curve.total_bytes(tokens, sequences), asked.stored_bytes),
        "most": (curve.most_tokens is None or tokens <= curve.most_tokens, True),
    }
    if form is not None:
        said = form.at(tokens, sequences)
        for end in ENDS:
            size = solve.budget_bytes(asked, end)
            assert size is not None
            found[f"left {end}"] = said.left(end), size
            found[f"holds {end}"] = said.holds(end), solve.holds_in(asked, size, end)
            parts = asked.budget.parts if form.parts and asked.budget is not None else None
            for section in () if parts is None else Section:
                needed = sum(getattr(part, end) for part in parts or () if part.section is section)
                found[f"{section} {end}"] = said.parts_bytes(end, section.value), needed
    return {name: both for name, both in found.items() if both[0] != both[1]}


@pytest.mark.parametrize("engine", OPTIONS)
def test_every_number_and_verdict(engine: str) -> None:
    """Of models of the catalog, and of some that are not in it, Whisper among them."""
    others = tuple(load_model(row["config"]) for row in rows().values() if row.get("config"))
    models = (*(load_model(name, offline=True) for name in list_models()), *others)
    draw, compared, fitting = random.Random(18), 0, 0  # noqa: S311 - a sample
    for asked, request in requests(engine, models):
        curve, form = request.curve(), request.form()
        known = solve.budget_bytes(request) is not None
        assert form is None or known, asked
        for _ in range(POINTS if curve is not None else 0):
            tokens, sequences = draw.choice(LENGTHS), draw.choice(BATCHES)
            assert curve is not None
            assert unlike(request, curve, form, tokens, sequences) == {}, (asked, tokens, sequences)
            compared += 1
            fitting += form is not None and form.holds(tokens, sequences)
    assert compared > REQUESTS / 2
    assert fitting > REQUESTS / 10


@pytest.mark.parametrize("engine", OPTIONS)
def test_every_ordinary_request_has_a_form(engine: str) -> None:
    """Every model of the catalog that the engine accepts, with its defaults, has a curve, and a form wherever its budget is known."""
    for name in sample(list_models(), 50):
        for gpu in ("h100-sxm5-80gb", "m3-max-128gb"):
            try:
                request = open_request(load_model(name, offline=True), engine=engine, gpu=gpu, seq=1000)
            except KvplanError:
                continue

            assert request.curve() is not None, name
            assert (request.form() is None) == (request.budget is None), name
