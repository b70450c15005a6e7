"""What the index says of models on a GPU, against the placing of their layers."""

from __future__ import annotations

import random

import pytest

from hwcalc import fit, load_model, plan
from hwcalc.engines.devices import HOST_SHARE
from hwcalc.hardware.named import load_gpu
from hwcalc.library.candidates import catalog
from hwcalc.library.indexing import quick
from hwcalc.planner.asked import take_options
from hwcalc.planner.fitting import hosting
from hwcalc.profiles.model_index import model_index
from hwcalc.units import GIB


@pytest.mark.parametrize(("gpu", "seq"), [("rtx-4060-ti", "16k"), ("rtx-4070", "64k"), ("gtx-1080", "64k")])
def test_what_is_larger_than_the_host_is_judged_as_it_is_placed(gpu: str, seq: str) -> None:
    """Of the weights and the cache that GPU and host hold together alone: by bounds, where they suffice, and by placing every layer."""
    _, asked = take_options("fit", {"gpu": gpu, "seq": seq, "weights": "auto", "engine": "llamacpp"})
    host = hosting(asked, load_gpu(gpu, []), [])
    there = HOST_SHARE * (host.gpu.memory_marketing_gb or 0) * GIB
    given = {one.row.shape: one for one in catalog() if one.row is not None and one.row.shape is not None}
    found = quick(host)
    assert found is not None
    judged = dict[str, bool]()
    for number, one in given.items():
        assert number is not None
        assert one.row is not None
        if found.knows(one.row) and not found.whole(one.row, host.seq):
            smallest = found.smallest(one.row)
            fits, cache = found.apart(one.row, host.seq, smallest), found.layout(one.row, host.seq).cache_on(0)
            if fits and found.weights_bytes(one.row, smallest) + cache > there:
                judged[one.id] = fits

    assert judged
    for name in random.Random(18).sample(sorted(judged), min(8, len(judged))):  # noqa: S311 - any choice will do
        placed = host.apart(load_model(name, offline=True), found.smallest(model_index()[name]))
        assert (placed.verdict.fits, placed.whole) == (True, False), name


@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-9B", "tiiuae/Falcon-H1-1.5B-Base", "Qwen/Qwen3-4B"])
def test_a_row_has_the_speed_of_its_command(name: str) -> None:
    """Of a model with a layer that predicts several tokens too, and of one with two kinds of cache in each layer."""
    rows = fit(name, gpu="rtx-4070", seq="16k", weights="q8_0", every=True).models
    row = next(row for row in rows if name in {row.id, *row.also})
    speed = plan(name, gpu="rtx-4070", seq="16k", weights="q8_0", engine="llamacpp").speed

    assert speed is not None
    assert speed.decode_tokens_per_s is not None
    assert row.decode_tokens_per_s == pytest.approx(speed.decode_tokens_per_s.expected, rel=1e-5)
