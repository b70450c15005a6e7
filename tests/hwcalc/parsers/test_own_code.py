"""Cache and parameters of models whose code lives with the model: arithmetic written out from that code, and published sizes."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.errors import UnreadKeysError, UnsupportedError
from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from tests.hwcalc.parsers.remote_configs import BAICHUAN_M1, BF16, KLEAR, PANGU_7B, PANGU_PRO_MOE, Json
from tests.hwcalc.parsers.weights.counted import read_weights


def weigh(model: Json) -> Weights:
    """The weights of a file."""
    level = Config(model)
    weights = read_weights(level, level)
    assert weights is not None
    return weights


def test_klear() -> None:
    """Klear-46B-A2.5B (mlx-lm, Klear.py): heads of 2,048 / 32 = 64, and an MLP of 256 experts, a shared one and what mixes both."""
    attention = 2 * 2048 * 2048 + 2 * 2048 * 4 * 64 + 2 * 64
    expert, mixing = 3 * 2048 * 896, 2048 * 2 + 2
    layer = attention + (256 + 1) * expert + 2048 * 256 + 256 + mixing + 2 * 2048
    weights = weigh(KLEAR)
    assert weights.total == 32 * layer + 2 * 151936 * 2048 + 2048
    assert round(weights.total / 1e9) == 46
    assert weights.total - weights.active == 32 * (256 - 8) * expert
    assert plan(KLEAR, seq=1000).cache.total_bytes == 32 * 2 * 4 * 64 * BF16 * 1000


def test_klear_layers_without_experts() -> None:
    """A layer that mlp_only_layers names has a plain MLP, and no mixing."""
    sparse = (256 + 1) * 3 * 2048 * 896 + 2048 * 256 + 256 + 2048 * 2 + 2
    assert weigh(KLEAR).total - weigh(KLEAR | {"mlp_only_layers": [3]}).total == sparse - 3 * 2048 * 8064


def test_pangu_embedded() -> None:
    """openPangu-Embedded-7B (modeling_openpangu_dense.py): Llama with biases on all four projections, which one key takes away."""
    attention, biases = 2 * 4096 * 4096 + 2 * 4096 * 1024, 4096 + 2 * 1024 + 4096
    layer = attention + biases + 3 * 4096 * 12800 + 2 * 4096
    assert weigh(PANGU_7B).total == 34 * layer + 2 * 153376 * 4096 + 4096
    assert weigh(PANGU_7B).total - weigh(PANGU_7B | {"bias": False}).total == 34 * biases
    assert weigh({key: value for key, value in PANGU_7B.items() if key != "bias"}).total == weigh(PANGU_7B).total
    assert plan(PANGU_7B, seq=1000).cache.total_bytes == 34 * 2 * 8 * 128 * BF16 * 1000


def test_pangu_pro_moe() -> None:
    """Pangu Pro MoE (arXiv:2505.21411: 71.99 billion parameters, 64 experts): all projections have biases, each expert a scale."""
    attention = 2 * 5120 * 5120 + 2 * 5120 * 1024 + 5120 + 2 * 1024 + 5120
    moe = 64 * 3 * 5120 * 1344 + 3 * 5120 * 5376 + 5120 * 64 + 64
    weights = weigh(PANGU_PRO_MOE)
    assert weights.total == 48 * (attention + moe + 2 * 5120) + 2 * 153376 * 5120 + 5120
    assert round(weights.total / 1e9, 2) == 71.99
    assert plan(PANGU_PRO_MOE, seq=1000).cache.total_bytes == 48 * 2 * 8 * 128 * BF16 * 1000


def test_pangu_with_learned_sinks_is_refused() -> None:
    """The second Pangu Pro MoE has learned keys before the first token: another model under the same name."""
    with pytest.raises(UnreadKeysError, match="param_sink_number"):
        plan(PANGU_PRO_MOE | {"param_sink_number": 128}, seq=8)


def test_baichuan_m1() -> None:
    """Baichuan-M1-14B: 20 full layers with 2 key/value heads of 256, 20 sliding ones with 8 of 128, two taps over both."""
    full = 5120 * (5120 + 2 * 2 * 256) + 5120 * 5120 + 2 * 2 * 2
    sliding = 5120 * (5120 + 2 * 8 * 128) + 5120 * 5120 + 2 * 2 * 8
    rest = 3 * 5120 * 17408 + 2 * 5120
    assert weigh(BAICHUAN_M1).total == 20 * (full + sliding) + 40 * rest + 2 * 133120 * 5120 + 5120
    planned = plan(BAICHUAN_M1, seq=10_000).cache
    kept = 20 * 2 * 2 * 256 * 10_000 + 20 * 2 * 8 * 128 * 8192
    last = 20 * 2 * (2 * 256 + 8 * 128)
    assert planned.total_bytes == (kept + last) * BF16
    assert planned.state_bytes_per_sequence == last * BF16
    # The model's own code keeps one key and one value before the convolution, where other models keep as many as taps.
    short = plan(BAICHUAN_M1, seq=1000, engine="transformers").cache.total_bytes
    assert short == (20 * 2 * (2 * 256 + 8 * 128) * 1000 + last) * BF16


@pytest.mark.parametrize("model", [KLEAR, PANGU_PRO_MOE, BAICHUAN_M1], ids=["klear", "pangu", "baichuan"])
def test_vllm_does_not_run_models_that_need_a_fork(model: Json) -> None:
    """Klear's page gives a fork of vLLM, as Baichuan M1's does, and Pangu Pro MoE ran with a plug-in for Ascend alone."""
    with pytest.raises(UnsupportedError, match="vLLM does not run"):
        plan(model, seq=8, engine="vllm")
