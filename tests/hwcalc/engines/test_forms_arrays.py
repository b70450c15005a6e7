"""A form takes arrays of lengths and of numbers of sequences, and gives of each place what it gives of its two integers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from hwcalc import KvplanError, load_model
from hwcalc.engines.forms import (
    ENDS,
    HOST,
    Blocks,
    Constant,
    Curve,
    Early,
    HostRoom,
    Measured,
    MemoryForm,
    PartForm,
    Pass,
    PerGpu,
    Term,
)
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.stairs import Stair
from hwcalc.planner.context import open_request
from hwcalc.profiles.catalog import list_models
from hwcalc.units import GIB
from tests.effort import cases

LENGTHS: Final = (1, 2, 3, 15, 16, 17, 1_000, 4_096, 4_097, 100_001, 1_000_000)
BATCHES: Final = (1, 2, 7, 255, 256, 257, 1_025, 100_000)
ASKED: Final[tuple[dict[str, Any], ...]] = (
    {"engine": "reference"},
    {"engine": "reference", "tp": 4, "pp": 2, "dp": 3},
    {"engine": "transformers"},
    {"engine": "transformers", "engine_options": {"cache": "static", "max_cache_len": "5000"}},
    {"engine": "mlx"},
    {"engine": "mlx", "engine_options": {"kv_bits": "4"}},
    {"engine": "mlx", "engine_options": {"prompt_cache_size": "2", "prefill_step_size": "500"}},
    {"engine": "mlx", "pp": 2},
    {"engine": "tgi"},
    {"engine": "tgi", "kv_memory": 5 * GIB, "dp": 2},
    {"engine": "mistral-rs"},
    {"engine": "mistral-rs", "pp": 2},
    {"engine": "mistral-rs", "engine_options": {"paged_attn": "off"}, "dp": 2},
    {"engine": "mistral-rs", "engine_options": {"paged_attn": "on", "pa_memory_fraction": "0.999"}},
    {"engine": "vllm", "tp": 2},
    {"engine": "vllm", "engine_options": {"max_num_seqs": "2"}},
    {"engine": "vllm", "engine_options": {"num_gpu_blocks_override": "1000"}},
    {"engine": "vllm@0.11"},
    {"engine": "vllm@0.7", "pp": 3},
    {"engine": "vllm", "dp": 2},
    {"engine": "llamacpp", "engine_options": {"n_gpu_layers": "999"}},
    {"engine": "llamacpp", "pp": 2, "engine_options": {"n_gpu_layers": "999"}},
)
GPUS: Final = ("h100-sxm5-80gb", "l4", "m3-max-128gb")
SAMPLED: Final = cases(16, 25)


def answers(form: MemoryForm) -> Iterator[Callable[[Any, Any], Any]]:
    """All that is asked of a form."""
    yield lambda *point: form.at(*point).needed_bytes
    yield form.curve.total_bytes
    for end in ENDS:
        yield lambda *point, end=end: form.at(*point).left(end)
        yield partial(form.holds, end=end)
        yield lambda *point, end=end: form.at(*point).parts_bytes(end, HOST)


def unlike(form: MemoryForm) -> list[tuple[int, int, Any, Any]]:
    """Where an array has something else than its place alone."""
    tokens, sequences = np.array(LENGTHS)[:, None], np.array(BATCHES)[None, :]
    found = []
    for answer in answers(form):
        every = np.broadcast_to(answer(tokens, sequences), (len(LENGTHS), len(BATCHES)))
        assert every.dtype in (np.int64, np.bool_)
        for (row, column), value in np.ndenumerate(every):
            alone = answer(LENGTHS[row], BATCHES[column])
            assert type(alone) in (int, bool)
            if alone != value:
                found.append((LENGTHS[row], BATCHES[column], alone, value))
    return found


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_catalog(asked: dict[str, Any]) -> None:
    """Of some models drawn from the catalog, each on some accelerator."""
    draw, made = random.Random(18), 0  # noqa: S311 - a sample
    for name in draw.sample(list_models(), SAMPLED):
        try:
            request = open_request(load_model(name, offline=True), seq=1000, gpu=draw.choice(GPUS), **asked)
            form = request.form()
        except KvplanError:
            continue
        if form is not None:
            made += 1
            assert unlike(form) == [], name
    assert made


def term(unit_bytes: int, *stairs: Stair) -> Term:
    """Layers that grow like this."""
    return Term(kind="full", layers=LayerNumbers(), count=3, unit_bytes=unit_bytes, stairs=(stairs,), rule="")


def test_every_piece() -> None:
    """Of a form that has all that a form can have."""
    grows, slides = term(4096, Stair(per=16, add=15)), term(8192, Stair(), Stair(times=2, most=1000))
    amount = Pass(element_bytes=2, width=1e4 / 3, chunk=2048, logits=151_936, logit_bytes=2.5)
    early = Early.of((5, 6, 7), Measured(rule=amount, chunk=2048, readings=((2048, 7, 10**9), (2, 2, 3), (2, 2, 4))))
    parts = (
        PartForm(name="a", section="activations", low=Constant.of(0), expected=amount, high=early),
        PartForm(name="b", section="weights", low=early, expected=early, high=PerGpu(amounts=(Constant.of(10**9), amount))),
        PartForm(name="c", section=HOST, low=amount, expected=amount, high=amount),
    )
    form = MemoryForm(
        curve=Curve(gpus=((grows, slides), (slides,)), total=(grows, slides), once_bytes=77, most_tokens=100_001),
        parts=parts,
        usable=(60 * GIB, 61 * GIB, 64 * GIB),
        total_bytes=80 * GIB,
        most_sequences=256,
        dp=3,
        host=HostRoom(room=(GIB, 2 * GIB, 3 * GIB), shared=True),
    )
    alike = replace(form, parts=(parts[0], parts[2]))
    forms = (form, alike, replace(alike, blocks=Blocks(bytes=12_345, null=1)))

    for one in (*forms, replace(alike, crests=(32, 128)), replace(form, host=HostRoom(room=(GIB, GIB, GIB)))):
        assert unlike(one) == []
        verdicts = {one.holds(tokens, sequences) for tokens in LENGTHS for sequences in BATCHES}
        assert verdicts == {True, False}
