"""What decode steps come to, without following them: the same as one by one."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import Chosen, LayerShape, Setting, Start
from hwcalc.policies.counting import CutAbove, CutAtLengths, CutEachStep, Ends, Growing, Walk, ends_of_steps
from hwcalc.policies.outcome import MOST_STEPS, ends_of
from hwcalc.policies.parse import parse_policy

SETTING: Final = Setting(layers=tuple(LayerShape(index=n, heads=4, kv_heads=2, head_dim=16) for n in range(3)), depth=3)
LENGTHS: Final = st.integers(1, 700)
STEPS: Final = st.integers(0, 900)
BASES: Final = ("knorm", "streamingllm", "tova", "snapkv:window_size=4", "pyramidkv:window_size=4", "adakv:press=(knorm)")


def start(length: int, prompt: int, steps: int, layer: int = 0) -> Start:
    """A layer of that length behind a prompt."""
    return Start(length=length, prompt=prompt, steps=steps, layer=layer, setting=SETTING)


def chosen(text: Any) -> Chosen:
    """The policy of that name."""
    found = parse_policy(text)
    assert found is not None
    return found


def both(policy: Chosen, at: Start) -> tuple[Ends | str, Ends | str]:
    """The ends of a policy's decode steps, at once and one by one; or the error."""
    assert policy.policy.decode is not None
    out: list[Ends | str] = []
    for way in ("at once", "one by one"):
        try:
            walk = policy.policy.decode(policy, at)
            assert isinstance(walk, Walk)
            out.append(walk.ends() if way == "at once" else ends_of_steps(at, walk))
        except UsageError as error:
            out.append(str(error))
    return out[0], out[1]


@given(
    length=LENGTHS, steps=STEPS, budget=st.integers(1, 300), every=st.integers(1, 200), prompt=LENGTHS, drop=st.integers(1, 300)
)
def test_walks(length: int, steps: int, budget: int, every: int, prompt: int, drop: int) -> None:
    """All walks with a rule of their own, from any length."""
    at = start(length, prompt, steps)
    walks = (
        Growing(start=at),
        CutEachStep(start=at, budget=budget, drop=min(drop, budget)),
        CutAtLengths(start=at, budget=budget, every=every),
        CutAbove(start=at, budget=budget, every=every),
    )

    for walk in walks:
        assert walk.ends() == ends_of_steps(at, walk), walk


@given(
    length=LENGTHS,
    more=st.integers(0, 700),
    steps=STEPS,
    layer=st.integers(0, 2),
    base=st.sampled_from(BASES),
    interval=st.integers(1, 90),
    target=st.integers(1, 500),
    buffer=st.integers(0, 64),
)
@settings(max_examples=400)
def test_cuts_to_a_target(
    length: int, more: int, steps: int, layer: int, base: str, interval: int, target: int, buffer: int
) -> None:
    """A cut every so many steps, with the errors of the scorer inside."""
    options = f"compression_interval={interval},target_size={target},hidden_states_buffer_size={buffer}"

    at_once, one_by_one = both(chosen(f"decoding:base_press=({base}),{options}"), start(length, length + more, steps, layer))

    assert at_once == one_by_one


@given(
    length=LENGTHS,
    more=st.integers(0, 700),
    steps=STEPS,
    layer=st.integers(0, 2),
    base=st.sampled_from(BASES),
    interval=st.integers(1, 90),
    ratio=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 1e-17, 0.1, 0.5, 0.9, 0.999, 0.9999]),
)
@settings(max_examples=400)
def test_cuts_to_a_share(length: int, more: int, steps: int, layer: int, base: str, interval: int, ratio: float) -> None:
    """The target grows with the text."""
    options = f"compression_interval={interval},target_compression_ratio={ratio:.17f}"

    # A cut to a share is one token more or less than the one before, as the target rounds.
    at_once, one_by_one = both(
        chosen(f"compressionratiodecoding:base_press=({base}),{options}"), start(length, length + more, steps, layer)
    )

    if isinstance(at_once, Ends) and isinstance(one_by_one, Ends) and at_once.largest and one_by_one.largest:
        drops = [one.largest[0] - one.largest[1] for one in (at_once, one_by_one) if one.largest is not None]
        assert drops[0] in (drops[1], drops[1] - 1)
        at_once = replace(at_once, largest=one_by_one.largest)
    assert at_once == one_by_one


@pytest.mark.parametrize(
    "policy",
    [
        "rkv:budget=128",
        "triattention:kv_budget=2048",
        "h2o:budget=512",
        "scissorhands:budget=512",
        "streamingllm:budget=512",
        "decoding:base_press=knorm,compression_interval=1",
        "compressionratiodecoding:base_press=knorm,compression_interval=1",
        "compressionratiodecoding:base_press=knorm,compression_interval=1,target_compression_ratio=0.9999999",
    ],
)
def test_ten_million_steps_take_no_time(policy: str) -> None:
    """More steps than are ever followed."""
    one = chosen(policy)
    found = ends_of(one, 100, 0, 100, 10 * MOST_STEPS, SETTING)

    assert found.cut
    assert found.last <= found.most <= found.most_within


def test_very_many_cuts_of_unlike_layers_are_refused() -> None:
    """A share by PyramidKV depends on each cut before; the error says how many, and what to do."""
    one = chosen("compressionratiodecoding:base_press=(pyramidkv:window_size=4)")
    with pytest.raises(UsageError, match="decode steps are") as caught:
        ends_of(one, 100, 0, 100, 10 * MOST_STEPS, SETTING)

    assert "compression_interval longer" in caught.value.hint
