"""Cache and parameters of models whose code lives with the model: arithmetic written out from that code, and published sizes."""

from __future__ import annotations

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, UnreadKeysError, UnsupportedError
from hwcalc.formulas.weights import Weights
from hwcalc.parsers.config import Config
from tests.hwcalc.parsers.remote_configs import (
    BAICHUAN_M1,
    BF16,
    DELTA_NET,
    FP32,
    GATED_DELTANET,
    GLA,
    GSA,
    HGRN2,
    HYMBA_1_5B,
    JET_NEMOTRON,
    KLEAR,
    MINICPM_SALA,
    PANGU_7B,
    PANGU_PRO_MOE,
    SAMBA,
    SDAR_8B,
    SMALLTHINKER_21B,
    Json,
)
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


@pytest.mark.parametrize(
    "model",
    [KLEAR, PANGU_PRO_MOE, BAICHUAN_M1, {**SDAR_8B, "architectures": ["SDARForCausalLM"]}, SMALLTHINKER_21B],
    ids=["klear", "pangu", "baichuan", "sdar", "smallthinker"],
)
def test_vllm_does_not_run_models_that_need_a_fork(model: Json) -> None:
    """Klear's page gives a fork of vLLM, as Baichuan M1's does, and Pangu Pro MoE ran with a plug-in for Ascend alone.

    SDAR (diffusion in blocks) and SmallThinker are in no registry of vLLM either.
    """
    with pytest.raises(UnsupportedError, match="vLLM does not run"):
        plan(model, seq=8, engine="vllm")


def test_blt_is_refused_with_its_reason() -> None:
    """BLT's global model has an entry for each patch, which ends where an entropy model says so."""
    with pytest.raises(UnsupportedError, match="patches of bytes, and how many there are depends on the text"):
        plan({"model_type": "blt", "architectures": ["BltForCausalLM"]}, seq=8)


# --- flash-linear-attention ------------------------------------------------------------------------------------------

HIDDEN = 2048
WIDTH = 5632
"""Two thirds of 4 x 2,048, rounded up to a multiple of 256."""
REST = 3 * HIDDEN * WIDTH + 2 * HIDDEN
"""The MLP and the norms of a layer."""
ENDS = 2 * 32000 * HIDDEN + HIDDEN

STATES = [
    # 16 heads of 128 x 128, and the last three inputs of three convolutions.
    (DELTA_NET, 24 * (16 * 128 * 128 * FP32 + 3 * 2048 * 3 * BF16)),
    # 6 heads of 256 x 512.
    (GATED_DELTANET, 21 * (6 * 256 * 512 * FP32 + (2 * 1536 + 3072) * 3 * BF16)),
    # 4 heads: half of 2,048 is 256 keys each, 512 values.
    (GLA, 24 * 4 * 256 * 512 * FP32),
    # Keys into 64 slots, slots into values.
    (GSA, 24 * 4 * (512 * 64 + 64 * 512) * FP32),
    (HGRN2, 24 * 16 * 128 * 128 * FP32),
]


@pytest.mark.parametrize(("model", "state"), STATES, ids=[row[0]["model_type"] for row in STATES])
def test_states_of_fla(model: Json, state: int) -> None:
    """A sequence takes its states and nothing for each token, also in transformers, which keeps whole kernels of convolutions."""
    planned = plan(model, seq=1000).cache
    assert planned.total_bytes == planned.state_bytes_per_sequence == state
    whole = {"delta_net": 24 * 3 * 2048, "gated_deltanet": 21 * (2 * 1536 + 3072)}.get(model["model_type"], 0)
    assert plan(model, seq=1000, engine="transformers").cache.total_bytes == state + whole * BF16


MIXERS = [
    (DELTA_NET, 24 * (4 * HIDDEN * HIDDEN + HIDDEN * 16 + 3 * HIDDEN * 4 + 128)),
    (GATED_DELTANET, 21 * (HIDDEN * (2 * 1536 + 3 * 3072 + 2 * 6) + 2 * 6 + (2 * 1536 + 3072) * 4 + 512)),
    (GLA, 24 * (HIDDEN * (2 * 1024 + 3 * 2048 + 16) + 16 * 1024 + 1024 + 512)),
    (GSA, 24 * (4 * HIDDEN * HIDDEN + HIDDEN * 4 * 64 + HIDDEN)),
    (HGRN2, 24 * (4 * HIDDEN * HIDDEN + HIDDEN) + 24 * HIDDEN),
]


@pytest.mark.parametrize(("model", "mixers"), MIXERS, ids=[row[0]["model_type"] for row in MIXERS])
def test_parameters_of_fla(model: Json, mixers: int) -> None:
    """Projections, gates, filters and a norm of each layer, the MLPs and both ends; HGRN-2 has a lower bound for each layer."""
    assert weigh(model).total == mixers + model["num_hidden_layers"] * REST + ENDS


def test_options_of_fla() -> None:
    """What a file may switch on or off: convolutions, shared keys, gates, and steps."""
    assert weigh(DELTA_NET | {"use_gate": True}).total - weigh(DELTA_NET).total == 24 * HIDDEN * HIDDEN
    assert weigh(DELTA_NET).total - weigh(DELTA_NET | {"use_beta": False}).total == 24 * HIDDEN * 16
    bare = plan(DELTA_NET | {"use_short_conv": False}, seq=8).cache
    assert bare.total_bytes == 24 * 16 * 128 * 128 * FP32
    shared = GLA | {"num_kv_heads": 2, "use_short_conv": True, "share_conv_kernel": False}
    fewer = HIDDEN * (512 + 1024) + (16 + 1) * 512
    assert weigh(GLA).total - weigh(shared).total == 24 * (fewer - (1024 + 512 + 1024) * 4)
    assert plan(shared, seq=8).cache.total_bytes == plan(GLA, seq=8).cache.total_bytes + 24 * (1024 + 512 + 1024) * 3 * BF16
    with pytest.raises(UnreadKeysError, match="share_conv_kernel"):
        plan(GLA | {"use_short_conv": True}, seq=8)


def test_hybrids_of_fla() -> None:
    """Layers that ``attn`` names keep keys and values, within a window if it has one."""
    attn = {"layers": [5, 11], "num_heads": 16, "num_kv_heads": 4, "window_size": 100, "qkv_bias": True}
    planned = plan(GLA | {"attn": attn}, seq=1000).cache
    assert planned.total_bytes == 22 * 4 * 256 * 512 * FP32 + 2 * 2 * 4 * 128 * 100 * BF16
    attention = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * 512 + HIDDEN + 2 * 512
    assert weigh(GLA | {"attn": attn}).total == MIXERS[2][1] * 22 // 24 + 2 * attention + 24 * REST + ENDS


def test_samba() -> None:
    """Nine layers of Mamba-1 with 4,608 channels, nine with a window of 2,048 and 18 heads of 128."""
    state = 9 * (4608 * 16 * FP32 + 4608 * 3 * BF16)
    assert plan(SAMBA, seq=4096).cache.total_bytes == state + 9 * 2 * 2304 * 2048 * BF16
    mamba = 2304 * 9216 + 4608 * 5 + 4608 * (144 + 32) + 144 * 4608 + 4608 + 4608 * 16 + 4608 + 4608 * 2304
    rest = 3 * 2304 * 6144 + 2 * 2304
    assert weigh(SAMBA).total == 9 * (mamba + 4 * 2304 * 2304) + 18 * rest + 2 * 32000 * 2304 + 2304
    assert weigh({key: value for key, value in SAMBA.items() if key != "attn"}).total == weigh(SAMBA).total


def test_jet_nemotron() -> None:
    """Two full layers, two with a window, and 24 delta nets with 12 heads of 96 x 192 that convolve their values."""
    states = 24 * (12 * 96 * 192 * FP32 + 2304 * 3 * BF16)
    planned = plan(JET_NEMOTRON, seq=65_536).cache
    assert planned.total_bytes == states + 2 * 2 * 256 * (65_536 + 1152) * BF16
    delta = 1536 * (2 * 1152 + 3 * 2304 + 2 * 12) + 2 * 12 + 192 + 1536 * 288 + 288 * 9216 + 9216
    attention = 2 * 1536 * 1536 + 2 * 1536 * 256 + 1536 + 2 * 256
    rest = 3 * 1536 * 8960 + 2 * 1536
    assert weigh(JET_NEMOTRON).total == 24 * delta + 4 * attention + 28 * rest + 151936 * 1536 + 1536


def test_jet_nemotron_in_sglang() -> None:
    """SGLang stores a convolution over queries and keys as well (configs/jet_nemotron.py), and every token of windowed layers."""
    layer = load_model(JET_NEMOTRON).stack_for("sglang").layers[0]
    assert [tensor.shape for kind in layer for tensor in kind.tensors()] == [(2 * 1152 + 2304,), (12, 96, 192)]
    kept = plan(JET_NEMOTRON, seq=65_536, engine="sglang").cache
    assert kept.bytes_per_sequence - kept.state_bytes_per_sequence >= 4 * 2 * 256 * BF16 * 65_536
    with pytest.raises(UnsupportedError, match="vLLM does not run JetNemotronForCausalLM"):
        plan(JET_NEMOTRON, seq=8, engine="vllm")


def test_hymba() -> None:
    """Hymba-1.5B: 3 full layers and 14 with a window make keys of 5 x 64 and values of 5 x 128; 15 read them; all have Mamba-1.

    128 meta tokens stand before each sequence: 8,192 tokens are 8,320 on a full layer, and 1,152 on one with a window.
    """
    mamba = 32 * (3200 * 16 * FP32 + 3200 * 3 * BF16)
    planned = plan(HYMBA_1_5B, seq=8192).cache
    assert planned.total_bytes == mamba + 5 * (64 + 128) * BF16 * (3 * (8192 + 128) + 14 * (1024 + 128))
    assert plan(HYMBA_1_5B, seq=100).cache.total_bytes == mamba + 17 * 5 * (64 + 128) * BF16 * (100 + 128)
    # In its own code states are in the model's dtype, convolutions keep all four columns, and windows are whole between two steps.
    own = 32 * (3200 * 16 + 3200 * 4) * BF16
    assert plan(HYMBA_1_5B, seq=8192, engine="transformers").cache.total_bytes == own + planned.total_bytes - mamba


def test_hymba_meets_its_class() -> None:
    """1,522,797,824 is the sum of the parameters of the class built on the meta device, as are the numbers of the changed files."""
    keys_values = 1600 * 5 * (64 + 128)
    shared = (
        1600 * (2 * 3200 + 1600) + 3200 * 5 + 3200 * (100 + 32) + 100 * 3200 + 3200 + 3200 * 16 + 3200 + 100 + 2 * 16 + 2 * 3200
    )
    layer = shared + 3200 * 1600 + 3 * 1600 * 5504 + 2 * 1600
    assert weigh(HYMBA_1_5B).total == 32 * layer + 17 * keys_values + 32001 * 1600 + 1600 + 128 * 1600 == 1_522_797_824
    every = HYMBA_1_5B | {"kv_reuse_group": None, "kv_reuse_every_i_layer": 4}
    assert weigh(HYMBA_1_5B).total - weigh(every).total == (17 - 8) * keys_values
    assert weigh(HYMBA_1_5B | {"kq_norm": "perhead-rms"}).total - weigh(HYMBA_1_5B).total == 32 * (5 + 25) * 64
    assert weigh(HYMBA_1_5B | {"kq_norm": "rms"}).total - weigh(HYMBA_1_5B).total == 32 * 2 * 64
    assert weigh(HYMBA_1_5B).total - weigh(HYMBA_1_5B | {"mlp_hidden_act": "relu2"}).total == 32 * 1600 * 5504


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_tokens_interspersed_every", 256),
        ("kq_head_dim", 32),
        ("kv_reuse_group", [7]),
        ("kv_reuse_group", [[1, "2"]]),
        ("num_key_value_heads", 4),
        ("mamba_expand", 0.3),
        ("global_attn_idx", None),
    ],
)
def test_hymba_refuses_what_its_class_cannot_build(key: str, value: object) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match=key):
        load_model(HYMBA_1_5B | {key: value})


def test_minicpm_sala() -> None:
    """Eight layers of 2 heads keep keys and values, and from 8,192 tokens on means of 32 and of 128 keys; 24 keep 32 x 128 x 128."""
    states, row = 24 * 32 * 128 * 128 * FP32, 2 * 128 * BF16
    assert plan(MINICPM_SALA, seq=8191).cache.total_bytes == states + 8 * row * 2 * 8191
    means = (65_536 - 32) // 16 + 1 + (65_536 - 128) // 64 + 1
    planned = plan(MINICPM_SALA, seq=65_536).cache
    assert planned.total_bytes == states + 8 * row * (2 * 65_536 + means + 31 + 127)
    # Its own code keeps the means of a batch beside those of each sequence.
    own = plan(MINICPM_SALA, seq=65_536, engine="transformers").cache
    assert own.total_bytes - planned.total_bytes == 8 * row * means
    plain = {key: value for key, value in MINICPM_SALA.items() if key != "sparse_config"}
    assert plan(plain, seq=65_536).cache.total_bytes == states + 8 * row * 2 * 65_536


def test_minicpm_sala_meets_its_published_size() -> None:
    """18.95 GB of bf16 weights: four matrices and a gate on every layer, and norms on those of lightning attention."""
    square, narrow = 4096 * 4096, 4096 * 256
    rest = 3 * 4096 * 16384 + 2 * 4096
    sparse, lightning = 3 * square + 2 * narrow, 5 * square + 2 * 128 + 4096
    weights = weigh(MINICPM_SALA)
    assert weights.total == 8 * sparse + 24 * lightning + 32 * rest + 2 * 73448 * 4096 + 4096
    assert round(weights.total * BF16 / 1e9, 2) == 18.95


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mixer_types", ["minicpm4"]),
        ("mixer_types", ["swa"] * 32),
        ("lightning_nh", 16),
        ("lightning_head_dim", 64),
        ("sparse_config", {"kernel_stride": 24}),
        ("sparse_config", {"use_nope": True}),
    ],
)
def test_minicpm_sala_refuses_what_its_class_does_not_do(key: str, value: object) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match=key):
        load_model(MINICPM_SALA | {key: value})
