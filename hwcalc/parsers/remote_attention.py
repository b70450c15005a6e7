"""Plain attention in files whose code lives with the model: the same layers under other key names.

Where each rule comes from (the model's own modeling file unless another is named):

- Llama-like, keys as transformers names them: aquila, arctic, bailing_moe (Ling, Ring), deepseek (the first), grok-1, internlm,
  internlm2, minicpm, orion, skywork, stablelm_epoch, xverse, Yi. ``head_dim`` absent is hidden_size // heads,
  ``num_key_value_heads`` absent is all heads.
- baichuan, qwen (the first): no key/value head key at all, every head has its own; qwen's width is ``kv_channels``.
- chatglm: ``multi_query_attention`` says whether ``multi_query_group_num`` holds (ChatGLM2 and later, GLM-4); the first
  ChatGLM has neither key. vLLM's ``configs/chatglm.py`` has the same pair with defaults false and 1.
- exaone (3.x), telechat: ``num_layers`` / ``n_layer``, ``n_head``; else as Llama.
- mimo: Qwen2's rule: ``use_sliding_window`` makes layers from ``max_window_layers`` on slide; published files say false.
- phi-msft: ``n_head_kv`` null is all heads. mixformer-sequential (its older name): all heads.
- phi3small: half of its layers are block-sparse, a pattern of what is *read* (16 local blocks and every eighth other, a
  different eighth for each head), so every block is kept by some head.
- plamo: ``n_shared_head`` query heads share one: heads / n_shared_head, rounded up. Where absent it is the class's 8.
- step1, step3_text: ``num_attention_groups`` key/value heads. Step-3's factorised queries (``share_q_dim``) are not cached:
  vLLM's ``step3_text.py`` keeps one key and one value of ``head_dim`` 256 (1,024 bytes a layer and token).
- RefinedWeb (Falcon-40B before its class) has ``n_head_kv``; RefinedWebModel (7B) and gpt_refact have ``multi_query``: one
  head. codeshell: ``num_query_groups`` heads. jais: GPT-2's names, every head its own.

Multi-token-prediction layers (``num_nextn_predict_layers``) follow the stack and are no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims

__all__ = ["read"]


def _chatglm(config: Config, dims: AttentionDims) -> int:
    groups = config.maybe_integer("multi_query_group_num") or 1
    return groups if config.flag("multi_query_attention") else dims.num_attention_heads


def _codeshell(config: Config, dims: AttentionDims) -> int:
    groups = config.maybe_integer("num_query_groups") or 1
    return groups if config.flag("group_query_attention", default=True) else dims.num_attention_heads


def _multi_query(config: Config, dims: AttentionDims) -> int:
    return 1 if config.flag("multi_query", default=True) else dims.num_attention_heads


def _plamo(config: Config, dims: AttentionDims) -> int:
    sharing = config.maybe_integer("n_shared_head") or 8
    return -(-dims.num_attention_heads // sharing)


_KEY_VALUE_HEADS: Final[Mapping[str, Callable[[Config, AttentionDims], int]]] = {
    "chatglm": _chatglm,
    "codeshell": _codeshell,
    "RefinedWebModel": _multi_query,
    "gpt_refact": _multi_query,
    "plamo": _plamo,
}
"""How many key/value heads, where it is not the value of one key."""

# Keys that say how attention is computed, not what is kept.
_COMPUTATION: Final[Mapping[str, tuple[str, ...]]] = {
    "arctic": ("parallel_attn_mlp_res",),
    "bailing_moe": ("max_window_layers", "sliding_window", "use_sliding_window"),
    "bailing_moe_v2": ("max_window_layers", "sliding_window", "use_sliding_window"),
    "grok-1": ("attn_output_multiplier", "max_attn_value"),
    "phi3small": (
        "blocksparse_block_size",
        "blocksparse_homo_head_pattern",
        "blocksparse_num_local_blocks",
        "blocksparse_triton_kernel_block_size",
        "blocksparse_vert_stride",
        "dense_attention_every_n_layers",
    ),
    "step3_text": ("share_q_dim",),
}


def read(config: Config) -> Reading:
    """Read a config whose layers all keep keys and values of one shape."""
    model_type = config.model_type or ""
    config.ignore(*_COMPUTATION.get(model_type, ()))
    count = config.number_of_layers()
    dims = attention_dims(config)
    heads = _KEY_VALUE_HEADS.get(model_type)
    if heads is not None:
        dims = replace(dims, num_key_value_heads=heads(config, dims))
    if model_type == "minicpm":
        # InfLLM-V2: whole-block keys are kept beside the keys. None of its keys is read, so the file is refused by name.
        config.sub("sparse_config")
    if model_type == "mimo" and config.flag("use_sliding_window"):
        first = config.maybe_integer("max_window_layers", minimum=0) or 0
        sliding = dims.sliding(config.integer("sliding_window"))
        return Reading(layers=tuple((sliding if i >= first else dims.full(),) for i in range(count)), config=config)
    if model_type == "mimo":
        config.ignore("max_window_layers", "sliding_window")
    return Reading(layers=((dims.full(),),) * count, config=config)
