"""Which keys of a config bear on memory, by their names: the one table of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["bearing_inside", "bears_on_memory", "weighs"]

# A key with one of these words may bear on the cache. If the file has it, its value is not empty and nobody has read it, the
# plan stops.
_BEARING = re.compile(
    r"(?:^|_)(?:"
    r"kv|key_value|head_dim|head_size|heads|n_head|multi_query|window|chunk|sink|sinks|layer_types|layer_block_type|"
    r"layers_block_type|block_type|block_types|block_configs|pattern|local_attn|local_attention|global_attn|"
    r"global_attention|full_attn|full_attention|sparse_attention|attention_layers|attention_type|attention_types|"
    r"attention_groups|attention_period|attention_method|attn_layer|attn_type|attn_types|latent|compress|compressed|"
    r"compression|compressor|indexer|index|state|states|conv|conv1d|ssm|mamba|lru|rnn|recurrent|linear|delta|lightning|cla|"
    r"cache|cross|swa|cycles|every_n|layer_period"
    r")(?:_|$)"
)
# Exceptions: a key that also has one of these words has not borne on the cache in any config seen.
_HARMLESS = re.compile(
    r"use_cache|expert|_token_i(d|nde)|token_index|cache_implementation|attn_implementation|attn_impl$|dropout|logit|initializer|"
    r"_init|init_|_std$|norm|bias$|scale|scaling|rope|rotary|softmax|tie_|_dtype$|quant|pruned_heads|cross_entropy|vision|image|"
    r"video|audio|_eps$|epsilon|_fusion|_act$|activation|clip|temperature|loss|^mlp_|_mlp_|^mtp_|_mtp_|chunk_size_feed_forward|"
    r"for_llm_compressor|^compression_config$|classif|output_hidden_states|^ignore_index$"
)
# A key with one of these words bears on the weights: widths and numbers of matrices.
_WEIGHING = re.compile(
    r"intermediate_size|(^|_)(ffn|ff|inner)_(dim|size|hidden_size|hidden_dim)$|(^|_)d_ff$|^n_inner$|^vocab_size$|^word_embed_proj_dim$|"
    r"(^|_)(num|n|routed|shared|local)_(\w+_)?experts$|expert_layer_|moe_layer_freq|first_k_dense|lora_rank$|^(hidden_size|n_embd|d_model)$"
)

_DEEPEST: Final = 3
"""How deep nested objects are searched."""
_MOST: Final = 1_000
"""How many keys of nested objects are listed."""


def bears_on_memory(key: object, value: object) -> bool:
    """Whether a key that nobody has read may change the cache: its name says so, and its value is not empty.

    >>> bears_on_memory("kv_lora_rank", 512), bears_on_memory("kv_lora_rank", None), bears_on_memory("rope_theta", 1e6)
    (True, False, False)
    """
    # A dict handed in from Python may have keys of any type.
    name = str(key)
    if value in (None, False, "", 0, [], {}):
        return False
    return _BEARING.search(name) is not None and not _HARMLESS.search(name)


def weighs(key: object, value: object) -> bool:
    """Whether a key bears on the weights, by its name, and says something.

    >>> weighs("intermediate_size", 14336), weighs("num_experts_per_tok", 8), weighs("n_shared_experts", 0)
    (True, False, False)
    """
    return value not in (None, False, "", 0, [], {}) and bool(_WEIGHING.search(str(key)))


def bearing_inside(waiting: Iterable[tuple[str, Any]]) -> list[str]:
    """The dotted paths of such keys in nested objects, of which the outermost are given with their paths."""
    level, found = list(waiting), list[str]()
    for _ in range(_DEEPEST):
        objects = [(path, value) for path, value in level if isinstance(value, Mapping) and not _HARMLESS.search(path)]
        level = [(f"{path}.{key}", (key, item)) for path, value in objects for key, item in value.items()]
        found += [path for path, (key, item) in level if bears_on_memory(key, item)]
        if len(found) > _MOST:
            break
        level = [(path, item) for path, (_, item) in level]
    return found[:_MOST]
