"""The names that published configs have for numbers, types of layers and what bears on no cache: all that is read from a file of an unknown type.

A name counts letter by letter. What has any other is not read, and listed (:func:`not_read`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeGuard

from hwcalc.formulas import MAX_DIMENSION
from hwcalc.parsers.config import ALIASES, LONGEST_SEQUENCE, bears_by_name
from hwcalc.parsers.reading import LEGACY_TYPES
from hwcalc.parsers.written import kind_names
from hwcalc.text import by_word

NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "mamba1": {"d_state": "mamba_d_state", "d_conv": "mamba_d_conv"},
    "mamba2": {
        "num_heads": "mamba_n_heads mamba_num_heads", "head_dim": "mamba_d_head mamba_head_dim", "d_state": "mamba_d_state ssm_state_size",
        "n_groups": "mamba_n_groups n_groups", "d_conv": "mamba_d_conv conv_kernel",
    },
    "gated_delta_net": {
        "num_key_heads": "linear_num_key_heads", "num_value_heads": "linear_num_value_heads", "key_head_dim": "linear_key_head_dim",
        "value_head_dim": "linear_value_head_dim", "d_conv": "linear_conv_kernel_dim",
    },
    "real_gated_lru": {"lru_width": "lru_width", "d_conv": "conv1d_width"}, "short_convolution": {"d_conv": "conv_L_cache"},
    "sliding_attention": {"window": "sliding_window"}, "chunked_attention": {"chunk": "attention_chunk_size"}, "latent_attention": {"window": ""},
}  # fmt: skip
"""The names of the parameters of each kind. Those of attention that are not here are names themselves; all have their aliases."""
PARAMETERS: Final = frozenset(name for fields in NAMES.values() for names in fields.values() for name in names.split())
SIGNS: Final[Mapping[str, str]] = {
    "mamba1": "mamba_dt_rank", "mamba2": "mamba_n_heads mamba_num_heads mamba_d_head mamba_head_dim",
    "gated_delta_net": "linear_num_key_heads linear_num_value_heads", "real_gated_lru": "lru_width",
}  # fmt: skip
"""The names by which a file says which kind of state it has: it may call every kind ``linear_attention`` or ``mamba``."""
FAMILIES: Final[Mapping[str, Collection[str]]] = {"mamba": ("mamba1", "mamba2"), "linear_attention": tuple(SIGNS)}
BESIDE: Final[Mapping[str, str]] = {
    "latent_attention": "q_lora_rank qk_head_dim head_dim", "sliding_attention": "use_sliding_window", "mamba1": "mamba_dt_rank mamba_expand",
    "mamba2": "mamba_expand expand mamba_chunk_size chunk_size",
}  # fmt: skip
"""What files have beside a kind, and what bears on no byte of its cache."""
SWITCHES: Final = {
    "use_mla": "kv_lora_rank",
    "use_sliding_window": "sliding_window",
    "multi_query_attention": "multi_query_group_num",
}
"""Flags that, where they are false, switch a number off."""
_WITHOUT_EFFECT: Final = by_word({
    "what layers compute":
        "attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout dropout embd_pdrop embedding_dropout hidden_dropout "
        "hidden_dropout_prob resid_pdrop residual_dropout activation_dropout initializer_range initializer_factor init_std rms_norm_eps layer_norm_eps "
        "layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon rope_theta rope_scaling rope_parameters rope_ratio rope_local_base_freq rotary_emb_base "
        "rotary_pct partial_rotary_factor no_rope_layers no_rope_layer_interval original_max_position_embeddings attention_multiplier "
        "embedding_multiplier residual_multiplier logits_scaling logit_scale attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar "
        "swiglu_limit scale_emb scale_depth dim_model_base hc_eps hc_sinkhorn_iters time_step_floor time_step_limit time_step_max time_step_min "
        "time_step_rank num_logits_to_keep pretraining_tp ep_size type_vocab_size vocab_size_per_layer_input pad_vocab_size_multiple",
    "how text is made, which files of early versions say":
        "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty "
        "length_penalty max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix "
        "remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature top_k top_p typical_p problem_type "
        "finetuning_task task_specific_params tf_legacy_loss torchscript use_bfloat16 ignore_index",
    "flags and words":
        "tie_word_embeddings use_cache return_dict output_attentions output_hidden_states output_router_logits gradient_checkpointing cache_implementation "
        "attn_implementation _attn_implementation use_flash_attn hidden_act hidden_activation activation_function mlp_hidden_act mamba_hidden_act "
        "position_embedding_type rope_interleave rope_interleaved use_mrope alibi norm_type rms_norm rmsnorm use_qk_norm qk_norm qk_norm_type qk_layernorm "
        "attention_bias mlp_bias use_bias qkv_bias use_qkv_bias add_qkv_bias lm_head_bias use_conv_bias conv_bias mamba_proj_bias mamba_conv_bias "
        "mamba_rms_norm mamba_norm_before_gate use_mamba_kernels attn_output_gate attention_softmax_in_fp32 scale_attn_weights residual_in_fp32 "
        "rescale_prenorm_residual use_parallel_residual parallel_attn fused_add_norm mup_enabled norm_topk_prob scoring_func score_function topk_method "
        "seq_aux indexer_rope_interleave use_associative_scan normalization_function output_gate_type is_decoder projector_hidden_act use_grouped_topk use_routing_bias moe_renormalize use_mtp mlp_layer_types add_cross_attention",
    "experts, and layers that predict further tokens":
        "num_experts num_local_experts n_routed_experts n_shared_experts num_shared_experts num_experts_per_tok moe_intermediate_size moe_layer_freq "
        "moe_shared_expert_intermediate_size shared_expert_intermediate_size shared_intermediate_size n_group topk_group first_k_dense_replace "
        "decoder_sparse_step mlp_only_layers num_dense_layers interleave_moe_layer_step expert_layer_period expert_layer_offset routed_scaling_factor "
        "router_aux_loss_coef router_jitter_noise aux_loss_alpha route_scale num_expert_group num_expert_groups num_limited_groups moe_router_dtype "
        "expert_dtype num_nextn_predict_layers mtp_num_hidden_layers mtp_transformer_layers num_mtp_modules",
    "other parts, and what is no part":
        "vision_config audio_config vision_feature_layer vision_feature_select_strategy vision_soft_tokens_per_image image_seq_length "
        "mm_tokens_per_image spatial_merge_size projector_hidden_size transformers_version generation_config id2label label2id auto_map "
        "architectures model_type compression_config quantization_config _name_or_path tokenizer_class processor_class chat_template "
        "keys_to_ignore_at_inference mlp_layer_types add_cross_attention",
})  # fmt: skip
"""Names that bear on no byte of the cache of any model. All else is listed."""
READ_OF_ANY: Final = frozenset({"dtype", "torch_dtype", "quantization_config", *LONGEST_SEQUENCE}).union(
    *((fact, *ALIASES[fact]) for fact in ("max_position_embeddings", "vocab_size"))
)
"""What is read from a file whatever its type."""
READ_LATER: Final = READ_OF_ANY.union(*((fact, *ALIASES[fact]) for fact in ("hidden_size", "intermediate_size")))
"""The same, and what bears on weights alone."""
_OF_TOWERS: Final = r"vision|image|video|audio"
"""Words of keys about other parts, around the level of a language model."""
_DEEPEST: Final = 3
"""How deep nested objects are searched. A deeper one is listed as a whole."""
_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, "", [], (), {})


def is_number(value: object) -> TypeGuard[int]:
    """True for a whole number that may be a dimension."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION


def not_read(raw: Mapping[Any, Any], used: Collection[str]) -> dict[str, Any]:
    """What has a name that is not known and is not among the keys that were used, by dotted path, unless it says nothing.

    >>> not_read({"rope_theta": 1e6, "hidden_act": "silu", "zeta": {"rank": 64, "ratio": 0}, "mixer": "mla", "head_dim": 64}, {"head_dim"})
    {'zeta.rank': 64, 'mixer': 'mla'}
    """
    found = ((path, key, value) for path, key, value in _values(raw, used) if key not in SWITCHES)
    return {path: value for path, key, value in found if value not in _NOTHING or (value is False and bears_by_name(key))}


def not_read_of(around: Mapping[Any, Any], used: Collection[str]) -> dict[str, Any]:
    """The same of what stands in a document around the level of its language model, but for what the name says to be of a tower."""
    return {path: value for path, value in not_read(around, used).items() if not re.search(_OF_TOWERS, path)}


def _values(raw: Mapping[Any, Any], used: Collection[str], outer: str = "", depth: int = 1) -> Iterator[tuple[str, str, Any]]:
    """The values of a file, those of nested objects too, with path and key."""
    for name, value in raw.items():
        key, path = str(name), f"{outer}{name}"
        if path in used or key.endswith(("_token_id", "_token_index")):
            continue
        if key == "quantization_config" and isinstance(value, Mapping):
            # A format of the cache may be among those of the weights.
            yield from (
                (f"{path}.{inner}", str(inner), item)
                for inner, item in value.items()
                if str(inner).startswith("kv_cache") and item
            )
        elif isinstance(value, Mapping) and depth < _DEEPEST and key not in _WITHOUT_EFFECT:
            yield from _values(value, used, f"{path}.", depth + 1)
        elif key not in _WITHOUT_EFFECT:
            yield path, key, value


def kind_of(word: str) -> str | None:
    """The kind or the family that a type of layers stands for; ``None`` if no published config and no kind is called so.

    >>> kind_of("swa"), kind_of("recurrent"), kind_of("warp")
    ('sliding_attention', 'linear_attention', None)
    """
    return _kinds_by_name().get(word)


@lru_cache(maxsize=1)
def _kinds_by_name() -> Mapping[str, str]:
    kinds = kind_names() | {"mlp": "no_cache", "moe": "no_cache"} | {name: name for name in FAMILIES}
    return {word: kinds[usual] for word, usual in LEGACY_TYPES.items()} | kinds


MOST_NAMED: Final = 8
_LONGEST_NAMED: Final = 80
"""How many keys a message names, and with how many characters each."""


def named_keys(keys: Sequence[str]) -> str:
    """The first keys, cut, as a list in words."""
    named = ", ".join(key if len(key) <= _LONGEST_NAMED else f"{key[:_LONGEST_NAMED]}..." for key in keys[:MOST_NAMED])
    return named + (", ..." if len(keys) > MOST_NAMED else "")
