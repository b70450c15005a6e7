"""Which keys bear on memory by their names: words between underscores, and not those that only look like one."""

from __future__ import annotations

import pytest

from hwcalc import load_model
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


def test_keys_of_nobody_are_said() -> None:
    """What the class of a known type passes over changes no byte, and is not passed over in silence."""
    llama = {
        "model_type": "llama", "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
        "intermediate_size": 11_008, "vocab_size": 32_000,
    }  # fmt: skip
    said, silent = load_model({**llama, "lookback": 1024, "attn": {"window": 1024}, "zork": 7}), load_model(llama)

    assert said.stack == silent.stack
    assert said.parameters == silent.parameters
    (note,) = [note for note in said.notes if note.code == "without-effect"]
    assert all(key in note.message for key in ("lookback", "attn.window", "zork"))
    assert not any(note.code == "without-effect" for note in silent.notes)
