"""Which keys bear on memory by their names: words between underscores, and not those that only look like one."""

from __future__ import annotations

import pytest

from hwcalc.parsers.config import bears_on_memory


@pytest.mark.parametrize("key", ["heads", "my_heads", "heads_of_mine", "a_key_value_b", "sinks", "heads\n", "attention_type"])
def test_a_word_of_its_own_bears_on_memory(key: str) -> None:
    """At the start, at the end, between others, and before a line feed."""
    assert bears_on_memory(key, 8)


@pytest.mark.parametrize(
    "key", ["headstrong", "ahead", "key_values", "heads\n\n", "", "_", "sinking", "rope_linear", "expert_heads"]
)
def test_a_part_of_a_word_does_not(key: str) -> None:
    """Nor does a word beside another that has nothing to do with the cache."""
    assert not bears_on_memory(key, 8)
