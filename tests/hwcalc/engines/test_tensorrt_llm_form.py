"""TensorRT-LLM's memory as a form: the same integers as the plan, over a sample of the catalog, one by one and as arrays."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.engines.tensorrt_llm.memory import PoolForm
from hwcalc.planner import solve
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.profiles.catalog import list_models
from tests.effort import cases
from tests.hwcalc.form_answers import differences, form_of

SAMPLED = cases(50, 120)
GIVEN = 20 * 2**30
"""Bytes of a budget of the user's own."""
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GEMMA = "google/gemma-3-27b-it"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
SNAPSHOTS = {"periodic_snapshot_interval": "256", "enable_block_reuse": "true", "max_batch_size": "64"}
UNLIKE = (
    LLAMA,
    GEMMA,
    "google/gemma-4-E2B-it",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-8B",
)
"""Models whose pools are divided in different ways: one, several windows, states, lengths."""
GPUS = ("h100-sxm5-80gb", "l4", "b200-180gb", "b200-180gb", "a100-sxm4-80gb", None)
LAYOUTS = ((1, 1, 1), (1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 1), (2, 1, 3))
OPTIONS: tuple[dict[str, str], ...] = (
    {}, {}, {}, {}, {"manager": "v1"}, {"manager": "v2"}, {"max_attention_window": "512"}, {"avg_seq_len": "3000"},
    {"max_attention_window": "1024,1024,1024,1024,1024,131072"}, {"max_tokens": "100000"}, {"max_batch_size": "64"},
    {"max_num_tokens": "2048"}, SNAPSHOTS, {"enable_attention_dp": "true"}, {"free_gpu_memory_fraction": "0.5"}, {"max_beam_width": "2"},
)  # fmt: skip
LENGTHS = (1, 2, 31, 32, 33, 127, 128, 129, 512, 513, 1_024, 1_025, 8_192, 8_193, 8_194, 32_768, 100_001, 1_000_000)
BATCHES = (1, 1, 2, 3, 8, 33, 256, 2_048, 2_049, 100_000)


def asked_of(draw: random.Random) -> dict[str, Any]:
    """Options by chance, without length and batch."""
    tp, pp, dp = draw.choice(LAYOUTS)
    chosen = {
        "gpu": draw.choice(GPUS),
        "dtype": draw.choice(("auto", "auto", "fp8", "nvfp4")),
        "weights": draw.choice((None, None, "fp8", "nvfp4")),
        "margin": draw.choice((None, None, "5%")),
        "kv_memory": draw.choice((None, None, None, None, f"{GIVEN >> 30}GiB")),
    }
    return {
        "engine": "tensorrt-llm",
        "engine_options": draw.choice(OPTIONS),
        "tp": tp,
        "pp": pp,
        "dp": dp,
        **{name: value for name, value in chosen.items() if value},
    }


def opened_of(model: str, asked: dict[str, Any], seq: int = 4_096, batch: int = 1) -> Occupancy:
    """A request by the options of the command line."""
    return open_request(load_model(model, offline=True), **read_options({**asked, "seq": seq, "batch": batch}).keywords())


def answers(form: MemoryForm | None, curve: Curve) -> list[Callable[[Any, Any], Any]]:
    """All that is asked of a form, or of a cache alone."""
    if form is None:
        return [curve.needed_bytes, curve.total_bytes]
    at_ends = [
        lambda tokens, batch, rule=rule, end=end: rule(form.at(tokens, batch), end)
        for rule in (Memory.left, Memory.holds)
        for end in ENDS
    ]
    return [lambda tokens, batch: form.at(tokens, batch).needed_bytes, curve.total_bytes, *at_ends]


def planned(form: MemoryForm | None, opened: Occupancy) -> list[Any]:
    """The same of a request."""
    found: list[Any] = [opened.needed_bytes, opened.stored_bytes]
    if form is not None:
        budget = opened.budget if opened.setup.hardware.kv_memory is None else None
        found += [GIVEN if budget is None else getattr(budget, end) for end in ENDS] + [solve.holds(opened, end) for end in ENDS]
    return found


def test_a_form_is_its_requests() -> None:
    """Both managers, windows, states and layouts; at lengths and batches by chance, one by one and as arrays."""
    draw, compared, kinds, verdicts = random.Random(18), 0, set(), set()  # noqa: S311 - a sample
    models = sorted(list_models())
    for _ in range(SAMPLED):
        name, asked = draw.choice((draw.choice(models), draw.choice(UNLIKE))), asked_of(draw)
        try:
            opened = opened_of(name, asked)
        except KvplanError:
            continue
        form, curve = opened.form(), opened.curve()
        assert curve is not None, (name, asked)
        assert (form is None) == (opened.budget is None and "kv_memory" not in asked), (name, asked)
        points = [(draw.choice((*LENGTHS, draw.randint(1, 40_000))), draw.choice(BATCHES)) for _ in range(4)]
        if form is None:
            # A cache alone is asked for the sequences of one replica, and all have as many.
            points = [(tokens, -(-batch // curve_replicas(opened)) * curve_replicas(opened)) for tokens, batch in points]
        alone = [[rule(*point) for point in points] for rule in answers(form, curve)]
        if form is None:
            alone[0] = [curve.needed_bytes(tokens, batch // curve_replicas(opened)) for tokens, batch in points]
        for place, (tokens, batch) in enumerate(points):
            of_request = planned(form, opened.sized(seq=tokens, batch=batch))
            assert [values[place] for values in alone] == of_request, (name, asked, tokens, batch)
            verdicts |= {tuple(of_request[5:])}
            compared += 1
        compare_arrays(form, curve, points)
        kinds.add((type(form), opened.settings.v2))  # type: ignore[attr-defined]
    assert compared > SAMPLED
    assert {(PoolForm, True), (PoolForm, False), (type(None), True)} <= kinds
    assert {(True, True, True), (False, False, False)} < verdicts


def curve_replicas(opened: Occupancy) -> int:
    """How many replicas share the sequences."""
    return opened.setup.parallel.dp


def compare_arrays(form: MemoryForm | None, curve: Curve, points: list[tuple[int, int]]) -> None:
    """Of arrays of points as of each point, side by side and as the columns and rows of a table."""
    tokens, batches = (np.array(column) for column in zip(*points, strict=True))
    columns: Any = tokens[:, None]
    rows: Any = batches[None, :]
    for rule in answers(form, curve):
        alone = [rule(*point) for point in points]
        assert np.broadcast_to(rule(tokens, batches), tokens.shape).tolist() == alone
        every = np.broadcast_to(rule(columns, rows), (len(points), len(points)))
        assert every.diagonal().tolist() == alone


@pytest.mark.parametrize("model", [LLAMA, GEMMA, "Qwen/Qwen3-8B"])
@pytest.mark.parametrize(("seq", "batch"), [(4_096, 3), (700, 2_000)])
def test_a_form_is_its_plan(model: str, seq: int, batch: int) -> None:
    """Every number, with the solvers; and a page does not draw it, because it knows no rule of pools."""
    asked: dict[str, Any] = {"engine": "tensorrt-llm", "gpu": "h100-sxm5-80gb", "tp": 2, "dp": 2}
    form = form_of(opened_of(model, asked, seq, batch))
    assert form is not None
    assert not form.drawable
    assert differences(form, plan(model, seq=seq, batch=batch, offline=True, **asked)) == {}


def test_one_pool_has_the_whole_budget() -> None:
    """Of 32 layers with 8 heads of 128 numbers, keys and values in 16 bits, in blocks of 32 tokens and in whole pages."""
    curve = opened_of(LLAMA, {"engine": "tensorrt-llm"}).curve()
    assert curve is not None
    block = 32 * 2 * 8 * 128 * 2 * 32
    # 100 tokens are 4 blocks of 4 MiB, which is a multiple of a page of 2 MiB.
    assert (block, curve.needed_bytes(100, 1), curve.needed_bytes(100, 3)) == (2**22, 4 * block, 12 * block)
    # 2,048 sequences have 32 GiB, whose pages have 32 MiB.
    assert curve.needed_bytes(100, 2_048) == 2_048 * 4 * block


def test_states_that_are_kept_now_and_then_have_a_form() -> None:
    """Snapshots of states take slots as the pool has tokens; one by one, as arrays, and of more sequences."""
    asked = {"engine": "tensorrt-llm", "gpu": "b200-180gb", "tp": 2, "engine_options": SNAPSHOTS}
    opened = opened_of(NEXT, asked, seq=2_048)
    form, curve = opened.form(), opened.curve()
    assert form is not None
    assert curve is not None
    points = [(256, 1), (2_048, 3), (32_768, 64), (100_001, 2_048)]
    for tokens, batch in points:
        assert [rule(tokens, batch) for rule in answers(form, curve)] == planned(form, opened.sized(seq=tokens, batch=batch))
    compare_arrays(form, curve, points)


def test_layers_of_a_kind_with_several_windows_have_a_form_up_to_the_first() -> None:
    """Longer sequences the engine refuses, and so does the form."""
    asked = {"engine": "tensorrt-llm", "gpu": "h100-sxm5-80gb", "engine_options": {"max_attention_window": "512,131072"}}
    opened = opened_of(LLAMA, asked, seq=256)
    form = opened.form()
    assert form is not None
    assert form.curve.most_tokens == 512
    assert form.at(512, 3).needed_bytes == opened.sized(seq=512, batch=3).needed_bytes
    assert form.holds(512, 1)
    assert not form.holds(513, 1)
    with pytest.raises(KvplanError):
        opened_of(LLAMA, asked, seq=513)
