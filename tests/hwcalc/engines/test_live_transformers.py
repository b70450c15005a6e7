"""The pinned transformers builds small models on the meta device, feeds them, and its cache is what was planned.

A new release of transformers is checked by changing one pin in ``pyproject.toml`` and running this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from hwcalc import plan
from tests.effort import sample

TOKENS: Final = 40
"""Fed in all: a prefill and one decode step. More than every window below, so that windows are seen to close."""
ENCODER_TOKENS: Final = 24
STATIC_LENGTH: Final = 48

_COUNTERS: Final = frozenset({"cumulative_length", "indexer_cumulative_length", "_sliding_window_tensor"})
"""Tensors of a cache layer that count positions; they are no cache."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model type, the class that runs it, and what makes it small."""

    model_type: str
    architecture: str
    keys: dict[str, Any] = field(default_factory=dict)
    static: bool = True
    """Whether the library has a static cache for it that runs on the meta device."""


def _small(**keys: Any) -> dict[str, Any]:
    """The common keys at a size that runs in milliseconds."""
    common = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return common | keys


def _latent(**keys: Any) -> dict[str, Any]:
    dims = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
    return _small(num_key_value_heads=4, **dims) | keys


_WINDOW: Final = {"sliding_window": 16}
_INDEXER: Final = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 8}
_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA2: Final = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8}
_KIMI_LAYERS: Final = {
    "kda_layers": [1, 2, 3],
    "full_attn_layers": [4],
    "num_heads": 4,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
}

CASES: Final = (
    # One key and value per head and token, heads shared or not.
    Case(model_type="llama", architecture="LlamaForCausalLM", keys=_small()),
    Case(model_type="qwen3", architecture="Qwen3ForCausalLM", keys=_small(head_dim=32)),
    Case(model_type="mixtral", architecture="MixtralForCausalLM", keys=_small(num_local_experts=4, num_experts_per_tok=2)),
    Case(model_type="smollm3", architecture="SmolLM3ForCausalLM", keys=_small()),
    Case(model_type="gpt2", architecture="GPT2LMHeadModel", keys={"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128}),
    Case(
        model_type="gpt_bigcode",
        architecture="GPTBigCodeForCausalLM",
        keys={"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    ),
    Case(
        model_type="falcon",
        architecture="FalconForCausalLM",
        keys={"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128},
    ),
    Case(
        model_type="bloom",
        architecture="BloomForCausalLM",
        keys={"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    ),
    Case(
        model_type="mpt",
        architecture="MptForCausalLM",
        keys={"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 128},
        static=False,
    ),
    Case(
        model_type="opt",
        architecture="OPTForCausalLM",
        keys={
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "vocab_size": 128,
            "word_embed_proj_dim": 64,
        },
        static=False,
    ),
    # Windows and chunks, closed long before the last token.
    Case(model_type="mistral", architecture="MistralForCausalLM", keys=_small(**_WINDOW)),
    Case(model_type="phi3", architecture="Phi3ForCausalLM", keys=_small(**_WINDOW)),
    Case(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        keys=_small(use_sliding_window=True, max_window_layers=2, **_WINDOW),
    ),
    Case(model_type="gemma2", architecture="Gemma2ForCausalLM", keys=_small(head_dim=32, **_WINDOW)),
    Case(
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        keys=_small(head_dim=32, **_WINDOW, num_hidden_layers=7),
    ),
    Case(
        model_type="gemma3n_text",
        architecture="Gemma3nForCausalLM",
        keys=_small(
            head_dim=32,
            **_WINDOW,
            num_hidden_layers=10,
            num_kv_shared_layers=5,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=128,
            activation_sparsity_pattern=[0.0] * 10,
        ),
    ),
    Case(model_type="gpt_oss", architecture="GptOssForCausalLM", keys=_small(head_dim=32, num_local_experts=4, **_WINDOW)),
    Case(model_type="cohere2", architecture="Cohere2ForCausalLM", keys=_small(**_WINDOW)),
    Case(model_type="olmo3", architecture="Olmo3ForCausalLM", keys=_small(**_WINDOW)),
    Case(
        model_type="llama4_text",
        architecture="Llama4ForCausalLM",
        keys=_small(attention_chunk_size=16, head_dim=16, intermediate_size_mlp=64, num_local_experts=4, num_experts_per_tok=1),
    ),
    # Latents, indexers, compressed entries.
    Case(model_type="deepseek_v2", architecture="DeepseekV2ForCausalLM", keys=_latent(first_k_dense_replace=4)),
    Case(model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", keys=_latent(first_k_dense_replace=4)),
    Case(model_type="minicpm3", architecture="MiniCPM3ForCausalLM", keys=_latent()),
    Case(
        model_type="deepseek_v32",
        architecture="DeepseekV32ForCausalLM",
        keys=_latent(first_k_dense_replace=4, **_INDEXER),
    ),
    Case(
        model_type="glm_moe_dsa",
        architecture="GlmMoeDsaForCausalLM",
        keys=_latent(mlp_layer_types=["dense"] * 4, **_INDEXER),
    ),
    Case(model_type="deepseek_v4", architecture="DeepseekV4ForCausalLM", keys=_small(num_key_value_heads=1), static=False),
    # States, alone and beside attention.
    Case(
        model_type="mamba",
        architecture="MambaForCausalLM",
        keys={"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "vocab_size": 128},
    ),
    Case(
        model_type="falcon_mamba",
        architecture="FalconMambaForCausalLM",
        keys={"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "vocab_size": 128},
    ),
    Case(
        model_type="mamba2",
        architecture="Mamba2ForCausalLM",
        keys={
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "vocab_size": 128,
        },
    ),
    Case(
        model_type="jamba",
        architecture="JambaForCausalLM",
        keys=_small(num_hidden_layers=8, mamba_d_state=8, use_mamba_kernels=False, num_experts=2),
    ),
    Case(model_type="bamba", architecture="BambaForCausalLM", keys=_small(attn_layer_indices=[1], **_MAMBA2)),
    Case(
        model_type="falcon_h1",
        architecture="FalconH1ForCausalLM",
        keys=_small(mamba_d_ssm=128, mamba_n_groups=1, **_MAMBA2),
    ),
    Case(
        model_type="granitemoehybrid",
        architecture="GraniteMoeHybridForCausalLM",
        keys=_small(
            layer_types=["mamba", "attention", "mamba", "mamba"],
            num_local_experts=0,
            shared_intermediate_size=64,
            **_MAMBA2,
        ),
    ),
    Case(
        model_type="nemotron_h",
        architecture="NemotronHForCausalLM",
        keys=_small(
            head_dim=16,
            mamba_num_heads=8,
            mamba_head_dim=16,
            ssm_state_size=8,
            n_groups=2,
            layers_block_type=["mamba", "attention", "mlp", "mamba"],
        ),
    ),
    Case(
        model_type="qwen3_next",
        architecture="Qwen3NextForCausalLM",
        keys=_small(
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            shared_expert_intermediate_size=32,
            **_EXPERTS,
        ),
    ),
    Case(model_type="olmo_hybrid", architecture="OlmoHybridForCausalLM", keys=_small()),
    Case(
        model_type="kimi_linear",
        architecture="KimiLinearForCausalLM",
        keys=_latent(linear_attn_config=_KIMI_LAYERS, num_experts_per_token=2, **_EXPERTS),
    ),
    Case(
        model_type="lfm2",
        architecture="Lfm2ForCausalLM",
        keys=_small(conv_L_cache=3, layer_types=["conv", "conv", "full_attention", "conv"]),
    ),
    Case(
        model_type="minimax",
        architecture="MiniMaxForCausalLM",
        keys=_small(head_dim=16, num_local_experts=4, block_size=16),
        static=False,
    ),
    # Layers that run several times on a token, each time with a cache of its own or reading that of the last run.
    Case(
        model_type="dory",
        architecture="DoryForCausalLM",
        keys=_small(num_hidden_layers=8, head_dim=16, n_input_layers=2, n_output_layers=3, n_recurrent_loops=3, **_WINDOW),
    ),
    Case(
        model_type="dory",
        architecture="DoryForCausalLM",
        keys=_small(
            num_hidden_layers=8, head_dim=16, n_input_layers=2, n_output_layers=2, recurrent_kv_cache_mode="last_loop", **_WINDOW
        ),
        static=False,
    ),
    Case(
        model_type="inkling2_loop_text",
        architecture="Inkling2LoopForCausalLM",
        keys={
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 1,
            "swa_head_dim": 16,
            "sliding_window_size": 16,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
            "n_layers_per_attn_res_block": 1,
            "loop_layer_index_start": 1,
            "loop_layer_index_end": 3,
            "loop_num_passes": 3,
            "vocab_size": 128,
            "unpadded_vocab_size": 120,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "eos_token_id": 2,
        },
    ),
    Case(
        model_type="lara_mini",
        architecture="LaraMiniForCausalLM",
        keys=_small(
            num_hidden_layers=6,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            shared_expert_intermediate_size=32,
            **_EXPERTS,
            **_WINDOW,
        ),
    ),
    # Types of their own that another type's class runs.
    Case(model_type="exaone", architecture="LlamaForCausalLM", keys=_small()),
    Case(
        model_type="sarvam_mla",
        architecture="DeepseekV3ForCausalLM",
        keys=_latent(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    ),
    Case(
        model_type="sarvam_moe",
        architecture="Glm4MoeForCausalLM",
        keys=_small(head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    ),
    # An encoder, whose keys and values are cached once.
    Case(
        model_type="t5",
        architecture="T5ForConditionalGeneration",
        keys={
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "vocab_size": 128,
        },
        static=False,
    ),
    Case(
        model_type="bart",
        architecture="BartForConditionalGeneration",
        keys={
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": 128,
        },
        static=False,
    ),
)

IDS: Final = [case.model_type for case in CASES]


def cache_bytes(thing: Any, seen: set[int]) -> int:
    """Bytes of every tensor that a cache holds, each once, counters left out."""
    import torch

    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        size: int = thing.numel() * thing.element_size()
        return size
    if isinstance(thing, dict):
        return sum(cache_bytes(value, seen) for key, value in thing.items() if key not in _COUNTERS)
    if isinstance(thing, (list, tuple)):
        return sum(cache_bytes(value, seen) for value in thing)
    if type(thing).__module__.startswith("transformers."):
        return cache_bytes(vars(thing), seen)
    return 0


def build(case: Case) -> Any:
    """The model, without weights."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[case.model_type](**case.keys)
    with torch.device("meta"):
        model = getattr(transformers, case.architecture)._from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    return model.eval()


def ids(count: int) -> Any:
    """``count`` token ids."""
    import torch

    return torch.zeros(1, count, dtype=torch.long, device="meta")


def feed(model: Any, cache: Any = None) -> Any:
    """Prefill all but one token, decode one, and give back the cache."""
    import torch

    given = {} if cache is None else {"cache": cache}
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            first = model(input_ids=ids(ENCODER_TOKENS), decoder_input_ids=ids(TOKENS - 1), use_cache=True, **given)
            encoded = (first.encoder_last_hidden_state,)
            cache = first.cache
            model(encoder_outputs=encoded, decoder_input_ids=ids(1), cache=cache, use_cache=True)
            return cache
        first = model(input_ids=ids(TOKENS - 1), use_cache=True, **given)
        model(input_ids=ids(1), use_cache=True, cache=first.cache)
        return first.cache


def documents(case: Case, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config as a file with few keys would give it, and as the library writes it, every key filled in."""
    short = {"model_type": case.model_type, "architectures": [case.architecture], **case.keys}
    return short, json.loads(model.config.to_json_string(use_diff=False))


@pytest.mark.parametrize("case", sample(CASES, 18), ids=lambda case: case.model_type)
def test_dynamic_cache(case: Case) -> None:
    """The model's own cache after prefill and decode takes the bytes planned for its config, short or written out."""
    model = build(case)

    expected = cache_bytes(feed(model), set())

    for document in documents(case, model):
        planned = plan(document, seq=TOKENS, encoder_seq=ENCODER_TOKENS, dtype="bf16", engine="transformers")
        assert planned.cache.total_bytes == expected


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.model_type) for case in sample([case for case in CASES if case.static], 13)]
)
def test_static_cache(case: Case) -> None:
    """A static cache of 48 positions takes the bytes planned for it, however few tokens are fed."""
    import transformers

    model = build(case)
    cache: Any = transformers.StaticCache(config=model.config, max_cache_len=STATIC_LENGTH)

    expected = cache_bytes(feed(model, cache), set())

    options = {"cache": "static", "max_cache_len": STATIC_LENGTH}
    for document in documents(case, model):
        planned = plan(document, seq=TOKENS, dtype="bf16", engine="transformers", engine_options=options)
        assert planned.cache.total_bytes == expected


def test_enough_types() -> None:
    """At least 25 model types are built live."""
    assert len(set(IDS)) >= 25
