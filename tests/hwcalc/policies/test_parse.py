"""Policies from text and from Python: what is read, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import keep
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.policies.parse import NOT_COUNTED, TABLES, find_policy, parse_policy, policies
from tests.hwcalc.policies.tiny import tiny


@pytest.mark.parametrize("spelling", ["snapkv", "SnapKVPress", "SNAPKV", "snap_kv", "SnapKV", "snapkvpress"])
def test_names(spelling: str) -> None:
    """In any case, with ``Press`` or without."""
    assert find_policy(spelling).name == "snapkv"


def test_aliases() -> None:
    """Names that people use."""
    assert [find_policy(name).name for name in ("l2norm", "streaming", "duo", "expected", "r1kv")] == [
        "knorm", "streamingllm", "duoattention", "expectedattention", "rkv",
    ]  # fmt: skip


def test_every_name_means_one_policy() -> None:
    """No two policies share a spelling, and every file of the table has some."""
    spellings = [
        spelling for one in policies().values() for spelling in {one.name, one.press.lower().removesuffix("press"), *one.aliases}
    ]

    assert len([one for one in spellings if one]) == len({one for one in spellings if one})
    assert len(policies()) > len(TABLES)
    assert not policies().keys() & NOT_COUNTED.keys()


def test_nothing_keeps_everything() -> None:
    """``None``, and the word."""
    assert parse_policy(None) is parse_policy("none") is parse_policy(" None ") is None
    assert keep(tiny(), None, prompt=50, decode=2).per_layer == [50] * 4


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("snapkv:compression_ratio=0.5,window_size=32", ["SnapKVPress", {"compression_ratio": 0.5, "window_size": 32}]),
        ("adakv:press=(knorm:compression_ratio=0.5)", ["adakv", {"press": ["knorm", {"compression_ratio": 0.5}]}]),
        ("adakv:press=knorm", ["adakv", {"press": ["knorm"]}]),
        ('["adakv", {"press": ["knorm", {"compression_ratio": 0.25}]}]', ["adakv", {"press": "knorm:compression_ratio=0.25"}]),
        (
            "composed:presses=[(snapkv:compression_ratio=0.5),knorm]",
            ["composed", {"presses": [["snapkv", {"compression_ratio": 0.5}], ["knorm", {}]]}],
        ),
        (
            "perlayercompression:press=knorm,compression_ratios=[0.1,0.5]",
            ["perlayercompression", {"press": ["knorm", {}], "compression_ratios": [0.1, 0.5]}],
        ),
        ("duo:head_compression_ratio=0.5,sink_size=16", ["duo", {"head_compression_ratio": 0.5, "sink_size": "16"}]),
        ("dms:press=knorm,threshold=-0.6,decoding=true", ["dms", {"press": ["knorm"], "threshold": -0.6, "decoding": True}]),
    ],
)
def test_text_and_python_say_the_same(text: str, listed: Any) -> None:
    """A policy in text, and as a name with options; and its own text is read back."""
    chosen = parse_policy(text)

    assert chosen is not None
    assert chosen == parse_policy(listed) == parse_policy(chosen.text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("snapkw", "not known"),
        ("KVComposePress", "known, but not what it keeps"),
        ("", "not known"),
        ("snapkv:ratio=0.5", "no option"),
        ("snapkv:compression_ratio", "KEY=VALUE"),
        ("snapkv:compression_ratio=0.5,compression_ratio=0.6", "twice"),
        ("snapkv:compression_ratio=1", "out of range"),
        ("snapkv:compression_ratio=nan", "not a number"),
        ("snapkv:compression_ratio=half", "not a number"),
        ("snapkv:window_size=0", "out of range"),
        ("snapkv:window_size=1.5", "not a whole number"),
        ("pyramidkv:beta=0.5", "out of range"),
        ("adakv", "needs press"),
        ("adakv:press=(adakv:press=knorm)", "takes a scorer"),
        ("adakv:press=(knorm:compression_ratio=0.5", "brackets"),
        ("adakv:press=(snapkv:budget=10)", "no budget inside"),
        ("dms:press=knorm", "needs threshold"),
        ("dms:press=knorm,threshold=0,decoding=perhaps", "neither true nor false"),
        ("decoding:base_press=duo", "takes a scorer"),
        ("prefilldecoding", "neither part"),
        ("composed:presses=[]", "not known"),
        ("h2o", "needs budget"),
        ("[1]", "no policy"),
        ("[", "no policy"),
        (["snapkv", 3], "no policy"),
        (7, "no policy"),
        (["snapkv", {"compression_ratio": True}], "not a number"),
        (["perlayercompression", {"press": ["knorm"], "compression_ratios": []}], "not a list"),
    ],
)
def test_errors(given: object, words: str) -> None:
    """What was given, and what is allowed."""
    with pytest.raises(UsageError, match=words) as raised:
        parse_policy(given)

    assert raised.value.hint


def test_a_near_name_is_offered() -> None:
    """With all that are known."""
    with pytest.raises(UnknownNameError) as raised:
        parse_policy("pyramidvk")

    assert "Did you mean pyramidkv?" in raised.value.hint


def test_depth_is_bounded() -> None:
    """Policies inside each other, in text and in Python."""
    text = "criticalkv:press=(" * 12 + "knorm" + ")" * 12
    nested: Any = ["knorm", {}]
    for _ in range(12):
        nested = ["criticalkv", {"press": nested}]
    for given in (text, nested):
        with pytest.raises(UsageError, match="deep"):
            parse_policy(given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": 0}, "prompt is out of range"),
        ({"prompt": 10, "decode": -1}, "decode is out of range"),
        ({"prompt": 10, "decode": "2M"}, "At most|steps"),
        ({"prompt": 10, "attention": "fast"}, "attention 'fast' is not known"),
        ({"prompt": 10, "rules": "mine"}, "rules 'mine' is not known"),
        ({"prompt": 10, "batch": 0}, "batch"),
    ],
)
def test_arguments_of_keep(options: dict[str, Any], words: str) -> None:
    """Lengths, kernels and rules are checked."""
    with pytest.raises(UsageError, match=words):
        keep(tiny(), "knorm", **options)


@pytest.mark.parametrize(
    ("policy", "attention", "words"),
    [
        ("adakv:press=(knorm:compression_ratio=0.5)", "eager", "does not work with eager"),
        ("observedattention:compression_ratio=0.5", "sdpa", "reads the scores"),
        ("chunkkv:press=(observedattention:compression_ratio=0.5)", None, "does not work with eager"),
        ("snapkv:compression_ratio=0.5,budget=10", None, "a ratio and a budget"),
        ("snapkv:divide_length=10", None, "needs a budget"),
        (
            "composed:presses=[(duo:head_compression_ratio=0.5,sink_size=4,recent_size=8),(knorm:compression_ratio=0.5)]",
            None,
            "must come last",
        ),
        ("composed:presses=[(adakv:press=knorm)]", None, "cannot contain"),
        ("composed:presses=[finch]", None, "does not work inside"),
        (
            "composed:presses=[(knorm:compression_ratio=0.5),(snapkv:compression_ratio=0.5)]",
            "eager",
            "has seen 200 tokens and not 100",
        ),
        ("perlayercompression:press=knorm,compression_ratios=[0.5]", None, "1 ratios for 4 layers"),
        ("rkv:budget=8", None, "has no place"),
        ("snapkv:budget=64", None, "has no place"),
        ("finch:compression_ratio=0.5,chunk_length=10,window_size=8", None, "chunk_length"),
        ("duo:head_scores=[[1,2]]", None, "head_scores"),
    ],
)
def test_what_cannot_work_is_an_error(policy: str, attention: str | None, words: str) -> None:
    """As kvpress asserts, in words."""
    given: object = ["duo", {"head_scores": [[1, 2]]}] if policy.startswith("duo:head") else policy
    with pytest.raises(UsageError, match=words):
        keep(tiny(), given, prompt=200, attention=attention)


def test_steps_are_bounded() -> None:
    """Layers that go unlike ways are followed one by one, and not for ever; where nothing is cut, nothing is followed."""
    policy = "decoding:base_press=(pyramidkv:window_size=8)"
    with pytest.raises(UsageError, match="4 layers that differ"):
        keep(
            tiny(),
            f"prefilldecoding:prefilling_press=(pyramidkv:compression_ratio=0.6,window_size=8),decoding_press=({policy})",
            prompt=999,
            decode=300_000,
        )

    # 1.95 x 999 x 0.4 = 779.2 in the first layer
    assert keep(tiny(), "pyramidkv:compression_ratio=0.6,window_size=8", prompt=999, decode=1_000_000).series[-1] == 1_000_779
