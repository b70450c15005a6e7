"""Options of policies that bear on quality alone, and those that do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import asdict

from hwcalc import load_model, plan
from hwcalc.errors import UsageError
from hwcalc.policies.base import Policy, PolicyOption
from hwcalc.policies.parse import policies
from tests.hwcalc.command import QWEN

ANYTHING: Final = ("word", "x y", 0, -1, 2.5, 10**15, True, False)
NEEDED: Final[dict[str, Any]] = {
    "scorer": "knorm",
    "prefill": "knorm",
    "prefills": ["knorm"],
    "number": 2,
    "ratio": 0.5,
    "count": 8,
}
OF_QUALITY: Final = [(name, one.name) for name, policy in policies().items() for one in policy.options if one.kind == "any"]


def value(option: PolicyOption) -> Any:
    """A value of an option that must be given."""
    return [0.5] * 36 if option.kind == "shares" else NEEDED[option.kind]


def outcome(policy: Policy, more: dict[str, Any]) -> tuple[object, ...]:
    """Every number of a plan on which a policy bears."""
    given = {one.name: value(one) for one in policy.options if one.required}
    if any(one.name == "compression_ratio" for one in policy.options):
        given["compression_ratio"] = 0.5
    planned = plan(load_model(QWEN), seq=4000, prompt=3900, engine="transformers", policy=[policy.name, {**given, **more}])
    assert planned.policy is not None
    numbers = {name: each for name, each in asdict(planned.policy).items() if name not in {"name", "options"}}
    return planned.cache, planned.memory, numbers


@pytest.mark.parametrize(("name", "option"), OF_QUALITY)
def test_what_bears_on_quality_alone_changes_no_number(name: str, option: str) -> None:
    """Whatever is given, since it is taken as it is."""
    policy = policies()[name]
    plain = outcome(policy, {})

    assert all(outcome(policy, {option: each}) == plain for each in ANYTHING)


@pytest.mark.parametrize(
    ("policy", "option"),
    [
        ("noncausalattn", "chunk_size"),
        ("compactor", "chunk_size"),
        ("expectedattention", "n_future_positions"),
        ("expectedattention", "use_covariance"),
    ],
)
@pytest.mark.parametrize("given", ["word", "-1", "2.5"])
def test_a_number_of_what_is_made_beside_the_cache(policy: str, option: str, given: str) -> None:
    """It is read as what it is."""
    with pytest.raises(UsageError, match=option):
        plan(QWEN, seq=4000, policy=f"{policy}:compression_ratio=0.5,{option}={given}")


def test_no_chunk_is_of_no_tokens() -> None:
    """Source: kvpress 0.5.5, non_causal_chunked_attn: chunk_size must be positive."""
    with pytest.raises(UsageError, match="chunk_size"):
        plan(QWEN, seq=4000, policy="noncausalattn:compression_ratio=0.5,chunk_size=0")
