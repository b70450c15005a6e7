"""mlx-lm itself, on the CPU: its cache classes and small models of random geometry hold what is planned.

MLX computes when somebody asks for a value: a model is built and fed here, and nothing of it is ever computed. A new release of mlx-lm is
checked by changing one pin in ``pyproject.toml`` and running this file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.mlx.layers import chunked_slots, grown_slots, rotating_slots
from hwcalc.engines.models import model_classes
from tests.effort import cases, sample

mx = pytest.importorskip(
    "mlx.core", reason="mlx is not installed here: pip install 'kvplan[test]' on Linux or a Mac", exc_type=ImportError
)
pytest.importorskip("mlx_lm.utils", reason="mlx-lm is not installed here: pip install 'kvplan[test]'", exc_type=ImportError)

SEED: Final = 20261122
CLASS_ROWS: Final = cases(200, 600)
MODEL_ROWS: Final = 4
"""Of each model type."""
Config = dict[str, Any]


def pieces(prompt: int, alone: int, size: int) -> list[int]:
    """How many tokens come at once, one after the other."""
    whole, rest = divmod(prompt, size)
    return [*[size] * whole, *([rest] if rest else []), *[1] * alone]


def held(cache: Any, counts: list[int]) -> int:
    """Slots of a cache that got so many tokens at once."""
    for count in counts:
        if hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()
        array = mx.zeros((1, 1, count, 1))
        cache.update_and_fetch(array, array)
    return int(cache.keys.shape[2])


def test_slots_are_those_of_the_classes() -> None:
    """Pieces, prompts, tokens that come alone, windows and chunks of any size."""
    caches, rng = import_module("mlx_lm.models.cache"), random.Random(SEED)  # noqa: S311
    for _ in range(CLASS_ROWS):
        size = rng.choice((1, 2, 7, 64, 255, 256, 257, 512, 1000, rng.randint(1, 600)))
        prompt, alone = rng.randint(1, 150 if size < 20 else 2500), rng.choice((0, 0, 1, 2, rng.randint(3, 300)))
        window = rng.choice((1, 2, 128, 256, 512, rng.randint(3, 1500)))
        counts = pieces(prompt, alone, size)
        shape = f"{prompt} + {alone} tokens in pieces of {size}, window {window}"

        assert held(caches.KVCache(), counts) == grown_slots(prompt, alone, size), shape
        keep = rng.choice((0, min(4, window - 1)))
        assert held(caches.RotatingKVCache(window, keep), counts) == rotating_slots(prompt, alone, size, window), shape
        assert held(caches.ChunkedKVCache(window), counts) == chunked_slots(prompt, alone, size, window), shape


def test_a_batch_is_as_many_times_the_longest() -> None:
    """Shorter sequences are padded on the left."""
    caches = import_module("mlx_lm.models.cache")
    for lengths in ((300, 20), (1, 256, 255), (700, 700)):
        batch = caches.BatchKVCache([max(lengths) - length for length in lengths])
        array = mx.zeros((len(lengths), 1, max(lengths), 1))
        batch.update_and_fetch(array, array)

        assert batch.keys.shape[2] == grown_slots(max(lengths), 0, 2048)


def test_the_table_of_files_is_the_library() -> None:
    """Model files, their other names, which make their cache and which can be divided."""
    utils = import_module("mlx_lm.utils")
    renamed = {name: file for name, file in utils.MODEL_REMAPPING.items() if name != "phi-msft"}
    rows = {name: row.words for name, row in model_classes("mlx").rows.items()}
    assert renamed == {name: words["as"] for name, words in rows.items() if "as" in words}
    own, sharded = set(), set()
    for file in {name for name, words in rows.items() if "file" in words} - {"olmo"}:
        model = import_module(f"mlx_lm.models.{file}").Model
        own |= {file} if hasattr(model, "make_cache") else set()
        sharded |= {file} if hasattr(model, "shard") else set()
    assert own == {name for name, words in rows.items() if "own_cache" in words}
    assert sharded == {name for name, words in rows.items() if "sharded" in words}


def small(rng: random.Random, **keys: Any) -> Config:
    """The common keys of a small decoder, of random geometry."""
    groups = rng.choice((1, 2, 4))
    heads = groups * rng.choice((1, 2, 3))
    head = rng.choice((32, 64, 128))
    return {
        "hidden_size": heads * head,
        "intermediate_size": 64,
        "num_hidden_layers": rng.randint(1, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "vocab_size": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1 << 17,
        "tie_word_embeddings": True,
        **keys,
    }


def windowed(rng: random.Random, **keys: Any) -> Config:
    """Layers with a window among full ones."""
    layers = rng.randint(2, 6)
    types = [rng.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    types[:2] = rng.sample(("sliding_attention", "full_attention"), 2)
    window = rng.choice((16, 100, 300))
    return small(rng, num_hidden_layers=layers, layer_types=types, sliding_window=window, **keys)


def latent(rng: random.Random, **keys: Any) -> Config:
    """Latent attention with dense layers alone."""
    ranks = {
        "q_lora_rank": 32,
        "kv_lora_rank": rng.choice((32, 64)),
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 48,
        "v_head_dim": 32,
    }
    heads = rng.choice((2, 4))
    layers = rng.randint(1, 4)
    experts = {"first_k_dense_replace": layers, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1}
    shared = {"num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": layers}
    out = small(rng, **shared, **ranks, **experts, num_experts_per_tok=2, moe_layer_freq=1, **keys)
    del out["head_dim"]
    return out


def indexed(rng: random.Random, **keys: Any) -> Config:
    """The same with an indexer, in every layer."""
    return latent(rng, index_head_dim=rng.choice((16, 32)), index_n_heads=2, index_topk=1 << 15, **keys)


def delta(rng: random.Random, **keys: Any) -> Config:
    """Gated delta nets, with full attention on every so many layers."""
    linear = {
        "linear_num_value_heads": rng.choice((4, 8)),
        "linear_num_key_heads": rng.choice((2, 4)),
        "linear_key_head_dim": rng.choice((16, 32)),
        "linear_value_head_dim": rng.choice((16, 32)),
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": rng.choice((2, 3)),
    }
    experts = {"num_experts": 0, "num_experts_per_tok": 1, "decoder_sparse_step": 1, "shared_expert_intermediate_size": 32}
    layers = {"num_hidden_layers": rng.randint(3, 7), "mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True}
    return small(rng, **linear, **experts, **layers, partial_rotary_factor=0.25, **keys)


def mimo(rng: random.Random) -> Config:
    """MiMo-V2: layers with a window have heads of their own, and the window is that of the tokens before the query."""
    pattern = [0, 1, *(rng.choice((0, 1)) for _ in range(rng.randint(0, 3)))]
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4}
    widths = {"head_dim": 48, "v_head_dim": 32, "swa_head_dim": 48, "swa_v_head_dim": 32}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": None, "moe_intermediate_size": 32}
    routing = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
    ropes = {"partial_rotary_factor": 0.5, "swa_rope_theta": 10000.0, "layernorm_epsilon": 1e-5, "routed_scaling_factor": 1.0}
    layers = {"num_hidden_layers": len(pattern), "hybrid_layer_pattern": pattern, "moe_layer_freq": [0] * len(pattern)}
    windows = {"sliding_window_size": rng.choice((16, 100))}
    sinks = {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    return small(rng) | heads | widths | experts | routing | ropes | layers | windows | sinks


def scout(rng: random.Random) -> Config:
    """Llama 4: three layers in chunks, and a full one."""
    text = small(rng, num_hidden_layers=4, attention_chunk_size=rng.choice((64, 300)), model_type="llama4_text")
    text |= {
        "intermediate_size_mlp": 64,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
    }
    text |= {
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "no_rope_layers": [1, 1, 1, 0],
        "attention_bias": False,
    }
    text["rope_scaling"] = None
    return {"text_config": text}


SMALL: Final[Mapping[str, Callable[[random.Random], Config]]] = {
    "llama": small,
    "qwen2": small,
    "qwen3": small,
    "mistral": lambda rng: small(rng, sliding_window=16),
    "phi3": lambda rng: {**small(rng, sliding_window=16), "rope_scaling": None},
    "gemma2": lambda rng: small(rng, sliding_window=16, query_pre_attn_scalar=32),
    "olmo3": windowed,
    "gpt_oss": lambda rng: windowed(rng, num_local_experts=2, num_experts_per_tok=1),
    "gemma3_text": lambda rng: small(
        rng, num_hidden_layers=7, sliding_window=40, sliding_window_pattern=3, query_pre_attn_scalar=32
    ),
    "deepseek_v2": lambda rng: latent(
        rng, rope_scaling={"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}
    ),
    "deepseek_v3": latent,
    "deepseek_v32": indexed,
    "qwen3_next": delta,
    "llama4": scout,
    "mimo_v2_flash": mimo,
    "exaone4": lambda rng: small(rng, num_hidden_layers=5, rope_scaling=None, sliding_window=40, sliding_window_pattern="LLG"),
    "cohere2": lambda rng: small(
        rng, num_hidden_layers=5, sliding_window=40, sliding_window_pattern=2, layer_norm_eps=1e-5, logit_scale=1.0
    ),
}
"""Model type -> a small config of it."""
_CLASSES: Final = {
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
}


def config_of(model_type: str, rng: random.Random) -> Config:
    """A small config of the model type, as a file would have it."""
    name = _CLASSES.get(model_type, f"{model_type.title().replace('_', '')}ForCausalLM")
    return {"model_type": model_type, "architectures": [name], **SMALL[model_type](rng)}


def drawn() -> list[tuple[str, int]]:
    """A model type and the seed of a config, many times."""
    return [(model_type, SEED + 1000 * number + row) for number, model_type in enumerate(SMALL) for row in range(MODEL_ROWS)]


def built(config: Config) -> Any:
    """The model of mlx-lm, of which nothing is computed."""
    classes, arguments = import_module("mlx_lm.utils")._get_classes(config)
    model = classes(arguments.from_dict(config))
    model.set_dtype(mx.bfloat16)
    return model


def fed(config: Config, counts: list[int], batch: int, quantize: Callable[[list[Any]], None]) -> int:
    """The bytes of the caches behind the last tokens."""
    model = built(config)
    cache = import_module("mlx_lm.models.cache").make_prompt_cache(model)
    for count in counts:
        model(mx.zeros((batch, count), mx.int32), cache=cache)
        quantize(cache)
    return sum(one.nbytes for one in cache)


@pytest.mark.parametrize(("model_type", "seed"), drawn())
def test_bytes_are_those_of_small_models(model_type: str, seed: int) -> None:
    """Random geometry, prompts and pieces; one sequence or several."""
    rng = random.Random(seed)  # noqa: S311
    config, size, batch = config_of(model_type, rng), rng.choice((50, 128, 256, 300)), rng.choice((1, 1, 3))
    prompt, alone = rng.randint(1, 700), rng.choice((0, 1, 7))
    options = {"prefill_step_size": size}

    planned = plan(
        config, seq=prompt + alone, prompt=prompt, batch=batch, engine="mlx", dtype="bf16", engine_options=options
    ).cache.total_bytes

    assert planned == fed(config, pieces(prompt, alone, size), batch, lambda _: None)


@pytest.mark.parametrize("bits", sample([2, 3, 4, 5, 6, 8], 3))
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "deepseek_v2", "qwen3_next", "deepseek_v32", "llama4"])
def test_quantized_bytes_are_those_of_small_models(model_type: str, bits: int) -> None:
    """Whatever can be quantized is, behind the first piece that reaches the start."""
    rng = random.Random(SEED + bits)  # noqa: S311
    generate = import_module("mlx_lm.generate")
    for start in (0, 200):
        config, size, group = config_of(model_type, rng), rng.choice((64, 128, 256)), 32
        prompt, alone = rng.randint(1, 600), rng.choice((0, 3, 300))
        options = {"prefill_step_size": size, "kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}

        planned = plan(config, seq=prompt + alone, prompt=prompt, engine="mlx", dtype="bf16", engine_options=options)

        real = fed(
            config,
            pieces(prompt, alone, size),
            1,
            partial(generate.maybe_quantize_kv_cache, quantized_kv_start=start, kv_group_size=group, kv_bits=bits),
        )
        assert planned.cache.total_bytes == real, (config, options, prompt, alone)


def test_real_geometry_of_catalog_models() -> None:
    """Models of every kind as they were published, behind 300 tokens."""
    for name in (
        "Qwen/Qwen3-8B",
        "google/gemma-2-9b-it",
        "openai/gpt-oss-20b",
        "zai-org/GLM-5.2",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
    ):
        model = load_model(name)
        planned = plan(model, seq=300, engine="mlx", dtype="bf16").cache.total_bytes
        assert planned == fed(dict(model.config), [300], 1, lambda _: None), name
