"""Other names of keys, in files of models whose code lives with the model.

A model type that transformers has a class for is read by that class's own aliases (``class_defaults.json``). These names must not
contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ALIASES", "LEGACY_KEYS"]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "model_dim"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers", "num_transformer_layers", "num_decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "num_query_heads"),
    "num_key_value_heads": (
        "num_kv_heads",
        "n_kv_heads",
        "kv_n_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_dim": ("attention_head_dim", "kv_channels", "d_kv", "head_size"),
    "intermediate_size": ("n_inner", "d_ff", "ffn_hidden_size", "ffn_dim"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": (
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "model_max_length",
        "max_position_embedding",
        "max_context_length",
        "context_length",
        "training_seqlen",
        "ctx_len",
        "max_length",
    ),
    "sliding_window": ("sliding_window_size", "attention_window_size", "window_size"),
}

LEGACY_KEYS: Mapping[str, Mapping[str, str]] = {
    "bloom": {"hidden_size": "n_embed"},
    "falcon": {"hidden_size": "n_embed"},
    "lfm2": {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
    "lfm2_moe": {"tie_word_embeddings": "tie_embedding"},
}
"""Keys of early files that a config class still takes, and that win over the current name."""
