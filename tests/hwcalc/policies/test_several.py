"""Lists of policies, whose options have commas of their own; and policies as text that is read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import UsageError
from hwcalc.policies.base import Chosen
from hwcalc.policies.parse import parse_policy, policy_list, policy_texts
from tests.hwcalc.policies.drawn import chosen_policies


def texts(given_list: Any) -> list[str | None]:
    """The policies of a list in their own words."""
    return [None if one is None else one.text for one in policy_list(given_list)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "snapkv:compression_ratio=0.5,window_size=32,knorm:compression_ratio=0.5,none",
            ["snapkv:compression_ratio=0.5,window_size=32", "knorm:compression_ratio=0.5", None],
        ),
        ("none,knorm,none", [None, "knorm"]),
        ("knorm,compression_ratio=0.5 , tova", ["knorm:compression_ratio=0.5", "tova"]),
        (
            "adakv:press=(snapkv:compression_ratio=0.5,window_size=8),alpha_safeguard=0.1,knorm",
            ["adakv:press=(snapkv:compression_ratio=0.5,window_size=8),alpha_safeguard=0.1", "knorm"],
        ),
        (
            "perlayercompression:press=knorm,compression_ratios=[0.1,0.5],rkv:budget=64",
            ["perlayercompression:press=knorm,compression_ratios=[0.1,0.5]", "rkv:budget=64"],
        ),
        ('["snapkv", {"compression_ratio": 0.5, "window_size": 8}],none', ["snapkv:compression_ratio=0.5,window_size=8", None]),
        ("SnapKVPress,snapkv,snap_kv", ["snapkv"]),
    ],
)
def test_a_list_in_text(text: str, parts: list[str | None]) -> None:
    """What begins with a name is a policy; ``key=value`` belongs to the one before."""
    assert texts(text) == parts


@pytest.mark.parametrize(
    ("entries", "parts"),
    [
        (None, []),
        ([], []),
        ([None], [None]),
        (["none", "knorm"], [None, "knorm"]),
        (
            ["snapkv:compression_ratio=0.5,window_size=8,none", "knorm"],
            ["snapkv:compression_ratio=0.5,window_size=8", None, "knorm"],
        ),
        (["snapkv", {"compression_ratio": 0.5}], ["snapkv:compression_ratio=0.5"]),
        ([["snapkv", {"compression_ratio": 0.5}], None], ["snapkv:compression_ratio=0.5", None]),
        ((["knorm"], ["adakv", {"press": ["knorm", {}]}]), ["knorm", "adakv:press=knorm"]),
        (parse_policy("knorm:compression_ratio=0.1"), ["knorm:compression_ratio=0.1"]),
    ],
    ids=str,
)
def test_a_list_in_python(entries: Any, parts: list[str | None]) -> None:
    """Text, a name with a dict, ``None``, and a policy that is parsed; a name with a dict alone is one policy."""
    assert texts(entries) == parts


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ",",
        "knorm,",
        ",knorm",
        "compression_ratio=0.5",
        "budget=5,knorm",
        "adakv:press=(knorm,none",
        "knorm)",
        "nonsense,none",
        "x" * 100_001,
    ],
)
def test_what_is_no_list(wrong: str) -> None:
    """Said with what to write."""
    with pytest.raises(UsageError) as caught:
        policy_list(wrong)

    assert caught.value.hint
    assert len(caught.value.message) < 300


@given(st.lists(st.one_of(st.none(), chosen_policies), min_size=1, max_size=5))
def test_a_list_is_cut_where_its_policies_end(several: list[Chosen | None]) -> None:
    """Whatever their options."""
    words = list(dict.fromkeys("none" if one is None else one.text for one in several))

    assert list(policy_texts(",".join(words))) == words
    assert texts(",".join(words)) == [None if word == "none" else word for word in words]


@pytest.mark.parametrize("ratio", [0.00010793578712076092, 5e-324, 0.1 + 0.2, 1 - 2**-53, 2**-13 + 2**-50])
def test_a_ratio_as_python_writes_it(ratio: float) -> None:
    """To the last bit, with as many digits as it takes."""
    chosen = parse_policy(["knorm", {"compression_ratio": ratio}])

    assert chosen is not None
    again = parse_policy(chosen.text)
    assert again is not None
    assert again["compression_ratio"] == ratio


@pytest.mark.parametrize("written", [f"{1 / 3:.30f}", f"0.{'3' * 28}", f".{'3' * 200}"])
def test_a_ratio_of_more_digits_than_a_double_has(written: str) -> None:
    """It is the nearest one."""
    chosen = parse_policy(f"knorm:compression_ratio={written}")

    assert chosen is not None
    assert chosen["compression_ratio"] == 1 / 3


@given(chosen_policies)
def test_a_policy_as_text_is_the_same_policy(chosen: Chosen) -> None:
    """To the last option."""
    again = parse_policy(chosen.text)

    assert again == chosen
    assert again is not None
    assert again.text == chosen.text
