"""The blocks of a request as a function of its length, against the count group by group."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.engines.vllm.layout import BlockDemand, longest
from hwcalc.engines.vllm.specs import ChunkSpec, CrossSpec, FullSpec, LayerSpec, Limits, StateSpec, WindowSpec

SPECS = st.sampled_from((1, 2, 3, 16, 48)).flatmap(
    lambda block: st.one_of(
        st.just(FullSpec(block_size=block, page=block)),
        st.just(CrossSpec(block_size=block, page=block)),
        st.builds(lambda limit: WindowSpec(block_size=block, page=block, limit=limit), st.integers(1, 60)),
        st.builds(lambda limit: ChunkSpec(block_size=block, page=block, limit=limit), st.integers(1, 60)),
        st.builds(
            lambda states, every: StateSpec(block_size=block, page=block, states=states, every=every),
            st.integers(1, 4),
            st.booleans(),
        ),
    )
)
GROUPS = st.lists(st.lists(SPECS, min_size=1, max_size=3, unique=True), min_size=1, max_size=4)
LIMITS = st.builds(
    lambda batches, tokens, retained, dcp, encoder: Limits(
        batches=batches, batched_tokens=tokens, retained=retained, dcp=dcp, encoder_tokens=encoder
    ),
    st.integers(1, 2),
    st.sampled_from((1, 5, 100)),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(0, 100),
)


@given(groups=GROUPS, limits=LIMITS, blocks=st.integers(-3, 200), bound=st.integers(0, 1500))
def test_the_longest_request_is_the_last_that_fits(
    groups: list[list[LayerSpec]], limits: Limits, blocks: int, bound: int
) -> None:
    """Each group takes what its neediest layer takes; the longest request is found as by trying every length."""
    demand = BlockDemand.of(tuple(spec.stairs(limits) for spec in specs) for specs in groups)
    taken = [sum(max(spec.blocks(length, limits) for spec in specs) for specs in groups) for length in range(1, bound + 1)]

    assert [demand.at(length) for length in range(1, bound + 1)] == taken
    lengths: Any = np.arange(1, bound + 1)
    assert (demand.at(lengths) + 0 * lengths).tolist() == taken
    assert longest(demand.at, blocks, bound) == max(
        (length for length in range(1, bound + 1) if taken[length - 1] <= blocks), default=0
    )
