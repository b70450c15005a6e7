"""transformers repeats a batch for samples and beams: the cache that ``generate`` leaves is what was planned."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
import transformers

from hwcalc import plan

SMALL: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}
PROMPT: Final = 11
SEQ: Final = 20


@pytest.fixture(scope="module")
def model() -> Any:
    """Two layers."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{k: v for k, v in SMALL.items() if k != "model_type"})).eval()


def _left(model: Any, rows: int, **options: Any) -> int:
    """Bytes of the cache that a generation leaves."""
    ids = torch.arange(1, PROMPT + 1).repeat(rows, 1)
    with torch.no_grad():
        # The last token that is made is not fed again.
        made = model.generate(ids, max_new_tokens=SEQ - PROMPT + 1, use_cache=True, return_dict_in_generate=True, **options)
    return sum(t.nbytes for layer in made.cache.layers for t in (layer.keys, layer.values))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {"do_sample": False}),
        ({"samples": 4}, {"do_sample": True, "num_return_sequences": 4}),
        ({"beams": 3}, {"do_sample": False, "num_beams": 3}),
        ({"beams": 3}, {"do_sample": False, "num_beams": 3, "num_return_sequences": 2}),
    ],
    ids=str,
)
def test_the_cache_that_is_left(model: Any, rows: int, asked: dict[str, int], options: dict[str, Any]) -> None:
    """Every branch has its own prompt."""
    made = plan(SMALL, seq=SEQ, batch=rows, engine="transformers", dtype="fp32", prompt=PROMPT, **asked)  # type: ignore[arg-type]
    assert made.cache.total_bytes == _left(model, rows, **options)
    if asked:
        assert made.sharing is not None
        assert not made.sharing.offered
