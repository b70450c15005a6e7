"""The names that tensors have in a GGUF file, by the ends of their paths in a checkpoint (gguf-py/gguf/tensor_mapping.py, 0c1e57098).

A key is the end of a path without ``.weight`` or ``.bias``; the longest that fits decides. Keys after a slash hold for one kind of block.
What no key fits keeps its path: the file is not known that well, but its bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

__all__ = ["OUTSIDE", "gguf_stem"]

OUTSIDE: Final[Mapping[str, str]] = {
    "embed_tokens": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "shared": "token_embd",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "embed_positions": "position_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "word_embeddings_layernorm": "token_embd_norm",
    "embedding_norm": "token_embd_norm",
    "embed_tokens.embed_norm": "token_embd_norm",
    "pre_ln": "token_embd_norm",
    "lm_head": "output",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "ln_out": "output_norm",
    "hc_head.hc_base": "output_hc_base",
    "hc_head.hc_fn": "output_hc_fn",
    "hc_head.hc_scale": "output_hc_scale",
    "pooler.dense": "cls",
}
"""Tensors outside the layers."""

_INSIDE: Final[Mapping[str, str]] = {
    # attention
    "q_proj": "attn_q", "query": "attn_q",
    "k_proj": "attn_k", "key": "attn_k",
    "v_proj": "attn_v", "value": "attn_v",
    "o_proj": "attn_output", "out_proj": "attn_output", "wo": "attn_output", "attn.c_proj": "attn_output",
    "attention.dense": "attn_output", "self_attention.dense": "attn_output", "self_attn.dense": "attn_output",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "query_key_value": "attn_qkv", "qkv_proj": "attn_qkv", "Wqkv": "attn_qkv", "c_attn": "attn_qkv", "W_pack": "attn_qkv", "wqkv": "attn_qkv",
    "q_norm": "attn_q_norm", "q_layernorm": "attn_q_norm", "q_weight": "attn_q_norm",
    "k_norm": "attn_k_norm", "k_layernorm": "attn_k_norm", "k_weight": "attn_k_norm",
    "self_attn.gate_proj": "attn_gate", "self_attn.g_proj": "attn_gate",
    "sinks": "attn_sinks", "attn_sub_norm": "attn_sub_norm",
    # latent attention
    "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_a_norm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm", "kv_b_proj": "attn_kv_b",
    "self_attn.output_gate": "attn_gate", "self_attn.norm": "attn_norm_2",
    "self_attn.kv_proj": "attn_kv", "self_attn.kv_norm": "attn_kv_a_norm", "o_a_proj": "attn_output_a", "o_b_proj": "attn_output_b",
    "indexer.wq_b": "indexer.attn_q_b", "indexer.wk": "indexer.attn_k", "indexer.k_norm": "indexer.k_norm",
    "indexer.q_norm": "indexer.q_norm", "indexer.weights_proj": "indexer.proj", "indexer.q_proj": "indexer.q_proj",
    "indexer.k_proj": "indexer.k_proj",
    "compressor.kv_proj": "attn_compressor_kv", "compressor.gate_proj": "attn_compressor_gate",
    "compressor.position_bias": "attn_compressor_ape", "compressor.kv_norm": "attn_compressor_norm",
    "compressor.indexer.kv_proj": "indexer_compressor_kv", "compressor.indexer.gate_proj": "indexer_compressor_gate",
    "compressor.indexer.position_bias": "indexer_compressor_ape", "compressor.indexer.kv_norm": "indexer_compressor_norm",
    "compressor.indexer.q_b_proj": "indexer.attn_q_b", "compressor.indexer.scorer.weights_proj": "indexer.proj",
    "attn_hc.base": "hc_attn_base", "attn_hc.fn": "hc_attn_fn", "attn_hc.scale": "hc_attn_scale",
    "ffn_hc.base": "hc_ffn_base", "ffn_hc.fn": "hc_ffn_fn", "ffn_hc.scale": "hc_ffn_scale",
    # feed forward
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "gate_up_proj": "ffn_up",
    "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down", "fc1": "ffn_up", "fc2": "ffn_down", "fc_in": "ffn_up", "fc_out": "ffn_down",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "dense_h_to_4h": "ffn_up", "dense_4h_to_h": "ffn_down",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "input_linear": "ffn_gate", "output_linear": "ffn_down", "ffn_sub_norm": "ffn_sub_norm",
    "residual_layernorm": "ffn_norm_exps", "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale", "residual_mlp.gate_proj": "ffn_gate", "residual_mlp.up_proj": "ffn_up",
    "residual_mlp.down_proj": "ffn_down",
    # experts: "_exps" and "_shexp" are added by what the path says
    "experts.gate_proj": "ffn_gate_exps", "experts.up_proj": "ffn_up_exps", "experts.down_proj": "ffn_down_exps",
    "experts.mlp.gate_proj": "ffn_gate_exps", "experts.mlp.up_proj": "ffn_up_exps", "experts.mlp.down_proj": "ffn_down_exps",
    "experts.w1": "ffn_gate_exps", "experts.w3": "ffn_up_exps", "experts.w2": "ffn_down_exps",
    "shared_expert_gate": "ffn_gate_inp_shexp", "expert_bias": "exp_probs_b", "e_score_correction_bias": "exp_probs_b",
    "fc1_latent_proj": "ffn_latent_down", "fc2_latent_proj": "ffn_latent_up",
    "routed_expert_down_proj": "ffn_routed_down", "routed_expert_up_proj": "ffn_routed_up", "routed_expert_norm": "ffn_routed_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    # norms of a layer
    "norm_0": "attn_norm", "input_layernorm": "attn_norm", "operator_norm": "attn_norm", "ln1": "attn_norm", "pre_mixer_norm": "attn_norm",
    "norm_1": "ffn_norm", "pre_ff_layernorm": "ffn_norm", "ffn_norm": "ffn_norm", "ln2": "ffn_norm", "pre_mlp_norm": "ffn_norm",
    "post_attention_layernorm": "ffn_norm", "post_mixer_norm": "post_attention_norm", "post_mlp_norm": "post_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "norm/norm": "attn_norm",
    # states
    "mamba/in_proj": "ssm_in", "mamba/out_proj": "ssm_out", "mamba/x_proj": "ssm_x", "mamba/bcdt_proj": "ssm_x", "mamba/dt_proj": "ssm_dt",
    "mamba/conv1d": "ssm_conv1d", "mamba/norm": "ssm_norm", "mamba/A_log": "ssm_a", "mamba/D": "ssm_d", "mamba/dt_bias": "ssm_dt",
    "mamba/b_layernorm": "ssm_b_norm", "mamba/c_layernorm": "ssm_c_norm", "mamba/dt_layernorm": "ssm_dt_norm",
    "mamba/B_norm": "ssm_b_norm", "mamba/C_norm": "ssm_c_norm", "mamba/dt_norm": "ssm_dt_norm",
    "delta/in_proj_qkv": "attn_qkv", "delta/in_proj_z": "attn_gate", "delta/in_proj_a": "ssm_alpha", "delta/in_proj_b": "ssm_beta",
    "delta/in_proj_ba": "ssm_ba", "delta/in_proj_qkvz": "attn_qkv", "delta/out_proj": "ssm_out", "delta/conv1d": "ssm_conv1d",
    "delta/A_log": "ssm_a", "delta/dt_bias": "ssm_dt", "delta/norm": "ssm_norm", "delta/o_norm": "ssm_norm", "delta/b_proj": "ssm_beta",
    "delta/f_a_proj": "ssm_f_a", "delta/f_b_proj": "ssm_f_b", "delta/g_a_proj": "ssm_g_a", "delta/g_b_proj": "ssm_g_b",
    "delta/g_proj": "ssm_g", "delta/q_conv1d": "ssm_conv1d_q", "delta/k_conv1d": "ssm_conv1d_k", "delta/v_conv1d": "ssm_conv1d_v",
    "conv/in_proj": "shortconv.in_proj", "conv/out_proj": "shortconv.out_proj", "conv/conv": "shortconv.conv",
    "mlp_res_proj": "ffn_res_score", "self_attention_res_proj": "attn_res_score",
    # multi-token prediction
    "eh_proj": "nextn.eh_proj", "mtp.fc": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm", "shared_head.norm": "nextn.shared_head_norm",
    "mtp.norm": "nextn.shared_head_norm", "embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head",
    "input_proj": "nextn.eh_proj", "token_layernorm": "nextn.enorm", "hidden_layernorm": "nextn.hnorm",
    "final_layernorm": "layer_output_norm",
}  # fmt: skip
"""Tensors of a layer."""

_AFTER: Final = frozenset(
    {
        "gpt_oss", "glm4_moe", "solar_open", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "seed_oss",
        "apertus",
    }
)  # fmt: skip
"""Model types whose norm before the feed-forward part is called ``post_attention_norm``."""
_BOTH_AFTER: Final = frozenset({"olmo2", "olmo3", "exaone4", "exaone_moe"})
"""Model types whose two norms both follow what they belong to."""
_FOUR_NORMS: Final[Mapping[str, str]] = {"norm_1": "post_attention_norm", "norm_2": "ffn_norm", "norm_3": "post_ffw_norm"}
"""The norms of a layer with two before and two after."""
_SHARED: Final = ("shared_expert.", "shared_experts.", "shared_mlp.", "shared_mlp_")


@lru_cache(maxsize=4096)
def gguf_stem(path: str, kind: str, model_type: str = "", *, inside: bool, four_norms: bool = False) -> str:
    """The name of a tensor without the number of its layer, ``.weight`` and ``.bias`` kept.

    >>> gguf_stem("mlp.experts.down_proj.weight", "moe", inside=True)
    'ffn_down_exps.weight'
    >>> gguf_stem("mlp.shared_experts.up_proj.weight", "moe", inside=True), gguf_stem("lm_head.weight", "head", inside=False)
    ('ffn_up_shexp.weight', 'output.weight')
    """
    module, ending = path, ""
    for suffix in (".weight", ".bias"):
        if path.endswith(suffix):
            module, ending = path.removesuffix(suffix), suffix
    if module.endswith(("dt_bias", "correction_bias", "expert_bias")):
        ending = ".bias"
    table = _INSIDE if inside else OUTSIDE
    parts = module.split(".")
    ends = [".".join(parts[at:]) for at in range(len(parts))]
    if inside and four_norms and module in _FOUR_NORMS:
        return f"{_FOUR_NORMS[module]}{ending}"
    if inside and module in ("norm_1", "post_attention_layernorm") and model_type in _AFTER:
        return f"post_attention_norm{ending}"
    if inside and module in ("norm_0", "norm_1") and model_type in _BOTH_AFTER:
        return f"{'post_attention_norm' if module == 'norm_0' else 'post_ffw_norm'}{ending}"
    stem = next((table[key] for end in ends for key in (f"{kind}/{end}", end) if key in table), None)
    if stem is None:
        return path
    if not ending and not stem.startswith("ssm_") and "." not in stem:
        ending = ".weight"
    shared = any(word in f"{module}." for word in _SHARED) and stem in ("ffn_gate", "ffn_up", "ffn_down")
    return f"{stem}{'_shexp' if shared else ''}{ending}"
