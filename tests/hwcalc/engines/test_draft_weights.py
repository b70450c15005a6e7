"""Weights of drafts: whole models, EAGLE heads that share tables, and the model's own layers of multi-token prediction."""

from __future__ import annotations

from typing import Final

from hwcalc import load_model
from hwcalc.engines.setup import Parallel
from hwcalc.engines.vllm.weights import VLLM
from hwcalc.engines.weights_beside import draft_bytes_rank, eagle_bytes_rank, mtp_bytes_rank

TABLE: Final = 128_256 * 4096 * 2
LAYER: Final = (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096 + 2 * 4096) * 2
HEAD: Final = {**load_model("meta-llama/Llama-3.1-8B").config, "num_hidden_layers": 1}
"""A head of one layer as wide as its target."""


def test_a_draft_model_is_cut_as_its_target() -> None:
    """Llama-3.2-1B, tied: 1,235,814,400 parameters, of which 33 norms of 2,048 are whole on each of two ranks."""
    draft = load_model("meta-llama/Llama-3.2-1B")
    one, two = draft_bytes_rank(draft), draft_bytes_rank(draft, parallel=Parallel(tp=2))

    assert one is not None
    assert two is not None
    assert one.low == one.expected == one.high == 2 * 1_235_814_400
    assert two.expected == (1_235_814_400 - 33 * 2048) + 2 * 33 * 2048


def test_vllm_pads_the_drafts_vocabulary() -> None:
    """The vocabulary of 50,272 rows of 768 is padded to 50,304."""
    draft = load_model("facebook/opt-125m")
    assert draft.counted is not None
    found = draft_bytes_rank(draft, rules=VLLM)

    assert found is not None
    assert found.expected == 2 * (draft.counted.total + 32 * 768)


def test_an_eagle_head_shares_the_targets_tables() -> None:
    """One layer and the last norm; with several stages it keeps its embedding, and high has both tables of its own."""
    draft, target = load_model(HEAD), load_model("meta-llama/Llama-3.1-8B")
    one, staged = eagle_bytes_rank(draft, target), eagle_bytes_rank(draft, target, parallel=Parallel(pp=2))

    assert one is not None
    assert staged is not None
    assert (one.low, one.expected, one.high) == (LAYER + 8192, LAYER + 8192, LAYER + 8192 + 2 * TABLE)
    assert staged.low == LAYER + 8192 + TABLE


def test_a_head_of_fewer_rows_is_its_own() -> None:
    """EAGLE-3 predicts among 32,000 of the target's 128,256 tokens; another width shares nothing."""
    target = load_model("meta-llama/Llama-3.1-8B")
    fewer = eagle_bytes_rank(load_model({**HEAD, "draft_vocab_size": 32_000}), target)
    narrow = eagle_bytes_rank(load_model({**HEAD, "hidden_size": 2048, "head_dim": 128}), target)

    assert fewer is not None
    assert narrow is not None
    assert fewer.low == LAYER + 8192 + TABLE
    assert narrow.low == narrow.high


def test_layers_of_multi_token_prediction() -> None:
    """DeepSeek-V3's: a layer of attention and 257 experts, a projection of 2 x 7,168, four more norms; tables are the model's."""
    model = load_model("deepseek-ai/DeepSeek-V3")
    latent = (1536 + 576) * 7168 + 1536 + 512 + 24_576 * 1536 + 32_768 * 512 + 7168 * 16_384
    experts = 257 * 3 * 2048 * 7168 + 256 * 7168
    layer = latent + experts + 2 * 7168 * 7168 + 5 * 7168
    table = 129_280 * 7168
    one, staged = mtp_bytes_rank(model), mtp_bytes_rank(model, parallel=Parallel(pp=2))
    dealt = mtp_bytes_rank(model, parallel=Parallel(ep=8))

    assert one is not None
    assert staged is not None
    assert dealt is not None
    assert one.low == one.expected == 2 * layer
    assert one.high == staged.expected == 2 * (layer + table)
    assert one.expected - dealt.expected == 2 * (256 - 32) * 3 * 2048 * 7168


def test_a_model_without_such_layers_has_none() -> None:
    """Llama has no layers of multi-token prediction."""
    assert mtp_bytes_rank(load_model("meta-llama/Llama-3.1-8B")) is None
