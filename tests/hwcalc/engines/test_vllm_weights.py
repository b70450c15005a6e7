"""Bytes of parameters per rank: what vLLM's own model classes build, and the arithmetic of a few layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pytest

from hwcalc import ModelSpec, load_model, plan
from hwcalc.engines import rank_weights
from hwcalc.engines.setup import Parallel
from hwcalc.engines.vllm.weights import VLLM, VllmRank, absorbed_bytes_rank
from hwcalc.quantization.planned import planned_scheme
from hwcalc.quantization.scheme import uniform_scheme
from tests.golden_configs import config_as_run
from tests.hwcalc.engines.vllm_rows import rows
from tests.paths import GOLDEN as ROWS

param_bytes_rank = partial(rank_weights.rank_weight_bytes, rules=VLLM)
DTYPES: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
MORE: Final = json.loads((ROWS / "vllm_weights.json").read_text(encoding="utf-8"))["cases"]

GOLDEN: Final = {name: row for name, row in rows().items() if "param_bytes_rank" in row["result"]}

# Rows whose config was cut to the keys that bear on the cache, with the published keys that its run had.
COMPLETE: Final[Mapping[str, Mapping[str, Any]]] = {
    "whisper-large-v3": {"encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128, "vocab_size": 51866},
    "gemma-3-12b_pp2": {"vision_config": load_model("google/gemma-3-27b-it").config["vision_config"]},
}
# Rows that are not exact, and why.
NOT_EXACT: Final = {
    "gemma-3n-e4b": "the row's config has no sizes of the towers: their weights are not counted",
    "kimi-k3_tp8": "0.0004 %: small tensors of the residual stream and of the vision tower",
}
NOT_EXACT_MORE: Final = {
    ("stabilityai/stablelm-2-12b", 4): "0.005 %: the norms of queries and keys are as wide as all heads of vLLM's own count",
    ("skt/A.X-K1", 4): "0.000 %: one norm",
}


def on_a_rank(name: str, tp: int = 1) -> tuple[ModelSpec, VllmRank]:
    """A model, and a rank that has a share of it."""
    model = load_model(name)
    return model, VllmRank(model, Parallel(tp=tp))


def config(name: str) -> Mapping[str, Any] | str:
    """The row's config, whole."""
    row = GOLDEN[name]
    return {**row["config"], **COMPLETE.get(name, {})} if "config" in row else config_as_run(row["model"])


@pytest.mark.parametrize("name", sorted(set(GOLDEN) - set(NOT_EXACT)))
def test_what_vllm_builds(name: str) -> None:
    """The bytes of every rank are exact."""
    options, result = GOLDEN[name]["options"], GOLDEN[name]["result"]
    model = load_model(config(name))

    ours = param_bytes_rank(
        model,
        weight_dtype=DTYPES[result["effective"]["dtype"]],
        parallel=Parallel(tp=options.get("tp", 1), pp=options.get("pp", 1)),
    )
    assert ours == tuple(result["param_bytes_rank"])


def test_the_rows_that_are_not_exact() -> None:
    """They are few; what is counted is within half a percent."""
    for name in NOT_EXACT:
        options, result = GOLDEN[name]["options"], GOLDEN[name]["result"]
        model = load_model(config(name))
        ours = param_bytes_rank(
            model, weight_dtype=DTYPES[result["effective"]["dtype"]], parallel=Parallel(tp=options.get("tp", 1))
        )
        if model.counted is None:
            assert ours is None
        else:
            assert ours == pytest.approx(result["param_bytes_rank"], rel=0.005)
    assert len(NOT_EXACT) < 0.05 * len(GOLDEN)


@pytest.mark.parametrize("row", MORE, ids=lambda row: f"{row['model']} tp{row.get('tp', 1)} pp{row.get('pp', 1)}")
def test_more_families_on_several_ranks(row: Mapping[str, Any]) -> None:
    """The same for models that the other rows have on one GPU only."""
    ours = param_bytes_rank(
        load_model(config_as_run(row["model"])),
        weight_dtype=DTYPES[row["dtype"]],
        parallel=Parallel(tp=row.get("tp", 1), pp=row.get("pp", 1)),
    )

    if (row["model"], row.get("tp", 1)) in NOT_EXACT_MORE:
        assert ours == pytest.approx(row["param_bytes_rank"], rel=0.0001)
    else:
        assert ours == tuple(row["param_bytes_rank"])


def test_llama_on_two_ranks() -> None:
    """All matrices halve, norms do not: 65 norms of 4,096 in 2 bytes stay whole.

    16,060,522,496 = 2 x 8,030,261,248; without norms 16,059,990,016; half of it and 532,480 are 8,030,527,488.
    """
    model = load_model("meta-llama/Llama-3.1-8B")

    assert 2 * 65 * 4096 == 532_480
    assert param_bytes_rank(model, parallel=Parallel(tp=2)) == ((16_060_522_496 - 532_480) // 2 + 532_480,) == (8_030_527_488,)


def test_key_value_heads_are_repeated() -> None:
    """16 ranks, 8 heads: each rank has one whole key head, as with 8 ranks; all else is a sixteenth."""
    model = load_model("meta-llama/Llama-3.1-8B")
    keys_and_values = 32 * 2 * 1024 * 4096 * 2
    norms = 65 * 4096 * 2
    rest = 16_060_522_496 - keys_and_values - norms

    assert param_bytes_rank(model, parallel=Parallel(tp=16)) == (rest // 16 + keys_and_values // 8 + norms,) == (1_037_836_288,)


def test_a_vocabulary_is_padded() -> None:
    """OPT-125m has 50,272 rows: 50,304 is the next multiple of 64, 32 rows of 768 more, once, as the head is tied."""
    model = load_model("facebook/opt-125m")
    assert model.counted is not None

    assert param_bytes_rank(model, weight_dtype="fp16") == (2 * (model.counted.total + 32 * 768),)


def test_experts_are_dealt_out_or_cut() -> None:
    """128 experts over 8 ranks: 16 whole ones, or an eighth of each; the same bytes, and with ranks of dp they are cut further."""
    model = load_model("Qwen/Qwen3-30B-A3B")
    cut, dealt = param_bytes_rank(model, parallel=Parallel(tp=8)), param_bytes_rank(model, parallel=Parallel(tp=8, ep=8))
    whole = param_bytes_rank(model, parallel=Parallel(tp=8, dp=2))
    assert cut is not None
    assert whole is not None

    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert cut == dealt
    assert cut[0] - whole[0] == experts // 8 - experts // 16


def test_pipeline_stages() -> None:
    """The first stage has the embedding, the last one norm and head; gpt-oss has both tables everywhere."""
    model = load_model("meta-llama/Llama-3.1-8B")
    table, layer = 128_256 * 4096 * 2, (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096 + 2 * 4096) * 2

    assert param_bytes_rank(model, parallel=Parallel(pp=2)) == (16 * layer + table, 16 * layer + table + 8192)
    assert [len(stage) for stage in VLLM.spans(61, 4)] == [15, 15, 16, 15]
    assert [len(stage) for stage in VLLM.spans(3, 4)] == [1, 1, 1, 0]
    oss = param_bytes_rank(load_model("openai/gpt-oss-120b"), parallel=Parallel(pp=2))
    assert oss is not None
    assert oss[0] == oss[1]


@pytest.mark.parametrize("dtype", [None, "bf16", "fp16"])
def test_fp32_checkpoints_are_loaded_in_16_bits(dtype: str | None) -> None:
    """fp32 checkpoints run in 16 bits, and in 32 bits only if requested."""
    model = load_model({**load_model("facebook/opt-125m").config, "torch_dtype": "float32"})
    assert model.dtype == "fp32"

    small, large = param_bytes_rank(model, weight_dtype=dtype), param_bytes_rank(model, weight_dtype="fp32")
    assert small is not None
    assert large == (2 * small[0],)


def test_quantised_weights() -> None:
    """One byte for each number of a matrix, two for the rest: embedding, head and norms."""
    model = load_model("meta-llama/Llama-3.1-8B")
    half = (2 * 128_256 * 4096 + 65 * 4096) * 2

    scales = 32 * 7 * 4
    assert param_bytes_rank(model, scheme=uniform_scheme("fp8")) == ((16_060_522_496 - half) // 2 + half + scales,)


def test_absorbed_projections() -> None:
    """DeepSeek-V3 on 8 ranks: 16 heads x (128 + 128) rows x 512 x 2 bytes x 61 layers."""
    model = load_model("deepseek-ai/DeepSeek-V3")

    assert absorbed_bytes_rank(model, parallel=Parallel(tp=8, pp=1)) == 61 * 16 * 256 * 512 * 2
    assert absorbed_bytes_rank(load_model("meta-llama/Llama-3.1-8B"), parallel=Parallel(tp=1, pp=1)) == 0


def test_widths() -> None:
    """The widest layer: a gated MLP is three times its inside; experts count as often as a token goes to one."""
    assert rank_weights.layer_width(*on_a_rank("meta-llama/Llama-3.1-8B")) == 3 * 14_336
    assert rank_weights.layer_width(*on_a_rank("meta-llama/Llama-3.1-8B", tp=2)) == 3 * 7_168
    # 8 of 128 experts of 768: what they give, 8 x 2,048, is wider than 8 x 2 x 768; and 8 x 768 goes into the last matrix.
    assert rank_weights.layer_width(*on_a_rank("Qwen/Qwen3-30B-A3B")) == 8 * 2048 + 8 * 768
    assert rank_weights.layer_width(*on_a_rank("meta-llama/Llama-3.1-8B"), towers=True) == 0
    # SigLIP: 2 x 4,304 in the MLP and four copies of 1,152.
    assert rank_weights.layer_width(*on_a_rank("google/gemma-3-27b-it"), towers=True) == 2 * 4304 + 4 * 1152


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_ranks_together_hold_the_model(tp: int) -> None:
    """No rank count makes a rank hold less than its share, or more than the whole."""
    for name in ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct", "ai21labs/Jamba-v0.1"):
        model = load_model(name)
        whole, mine = param_bytes_rank(model), param_bytes_rank(model, parallel=Parallel(tp=tp))
        assert whole is not None
        assert mine is not None
        assert whole[0] <= mine[0] * tp
        assert mine[0] <= whole[0]


def test_a_quantised_models_ranks_and_stages_add_up() -> None:
    """DeepSeek-V4-Flash keeps routed experts in four bits. Cut into stages, its layers are counted once: the head alone may differ."""
    model = load_model("deepseek-ai/DeepSeek-V4-Flash")
    scheme, known = planned_scheme(model, None)
    whole = param_bytes_rank(model, scheme=scheme)
    cut = param_bytes_rank(model, parallel=Parallel(pp=4), scheme=scheme)

    assert known
    assert whole is not None
    assert cut is not None
    weights = plan(model, seq=1).memory.weights.bytes
    assert weights is not None
    assert abs(whole[0] - weights) < weights * 0.005
    assert abs(sum(cut) - whole[0]) < whole[0] * 0.005


@pytest.mark.parametrize(("name", "differ"), [("meta-llama/Llama-3.1-8B", False), ("Qwen/Qwen3-30B-A3B", True)])
def test_replicas_matter_to_experts_alone(name: str, differ: bool) -> None:
    """Each replica of a dense model holds as much as one server does; those of a mixture of experts divide each expert."""
    model = load_model(name)
    alone, replicas = (param_bytes_rank(model, Parallel(tp=2, dp=dp)) for dp in (1, 4))
    assert (alone != replicas) is differ
    assert (VLLM.sizes(model, Parallel(tp=2)) != VLLM.sizes(model, Parallel(tp=2, dp=4))) is differ
