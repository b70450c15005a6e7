"""Files of models whose code lives with the model: the keys that matter.

NEMOTRON is not published: one block of each sort. PLAMO_2_1B has the head_dim that an engine may add, which is not its width.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
BF16 = 2
FP32 = 4


def config(model_type: str, layers: int, **keys: Any) -> Json:
    """A file of this type, in bf16."""
    return {"model_type": model_type, "num_hidden_layers": layers, "torch_dtype": "bfloat16", **keys}


def llama_like(model_type: str, layers: int, hidden: int, heads: int, **keys: Any) -> Json:
    """A file with the usual three numbers."""
    return config(model_type, layers, hidden_size=hidden, num_attention_heads=heads, **keys)


BAICHUAN_13B = llama_like("baichuan", 40, 5120, 40, model_max_length=4096, z_loss_weight=0)
CHATGLM3 = config(
    "chatglm", 28, hidden_size=4096, num_attention_heads=32, kv_channels=128, multi_query_attention=True, multi_query_group_num=2,
    num_layers=28, seq_length=8192, padded_vocab_size=65024, ffn_hidden_size=13696,
)  # fmt: skip
CHATGLM_6B = config("chatglm", 28, hidden_size=4096, num_attention_heads=32, inner_hidden_size=16384, max_sequence_length=2048)
INTERNLM25_20B = llama_like("internlm2", 48, 6144, 48, num_key_value_heads=8, attn_implementation="eager")
QWEN_1_8B = llama_like("qwen", 24, 2048, 16, kv_channels=128, seq_length=8192, use_logn_attn=True, scale_attn_weights=True)
EXAONE = {
    "model_type": "exaone", "num_layers": 30, "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 80, "torch_dtype": "bfloat16",
}  # fmt: skip
PHI_2 = {"model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_head_kv": None, "n_layer": 32, "n_positions": 2048}
PHI_3_SMALL = llama_like(
    "phi3small", 32, 4096, 32, num_key_value_heads=8, blocksparse_block_size=64, blocksparse_num_local_blocks=16,
    blocksparse_vert_stride=8, dense_attention_every_n_layers=2,
)  # fmt: skip
GROK_1 = llama_like("grok-1", 64, 6144, 48, num_key_value_heads=8, attn_output_multiplier=0.088, max_attn_value=30.0)
LING_MINI = llama_like("bailing_moe", 20, 2048, 16, num_key_value_heads=4, head_dim=128, max_window_layers=20)
ARCTIC = llama_like("arctic", 35, 7168, 56, num_key_value_heads=8, parallel_attn_mlp_res=True)
STEP_3 = {
    "model_type": "step3_vl",
    "text_config": config("step3_text", 61, hidden_size=7168, num_attention_heads=64, num_attention_groups=1, head_dim=256,
                          share_q_dim=2048, share_expert_dim=5120, max_position_embedding=65536),
}  # fmt: skip
PLAMO_13B = llama_like("plamo", 40, 5120, 40, n_shared_head=8)
FALCON_7B_OLD = {"model_type": "RefinedWebModel", "n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}
FALCON_40B_OLD = {"model_type": "RefinedWeb", "n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192}
MIMO_7B = llama_like(
    "mimo", 36, 4096, 32, num_key_value_heads=8, head_dim=128, sliding_window=32768, max_window_layers=32, use_sliding_window=False,
    num_nextn_predict_layers=1,
)  # fmt: skip
TELECHAT = {"model_type": "telechat", "n_layer": 30, "n_head": 32, "hidden_size": 4096, "training_seqlen": 8192}


def block(**attention: Any) -> Json:
    """One entry of block_configs."""
    return {"attention": {"no_op": False, "replace_with_linear": False, **attention}, "ffn": {"no_op": True}}


NEMOTRON = llama_like(
    "nemotron-nas", 7, 8192, 64, num_key_value_heads=None,
    block_configs=[
        block(n_heads_in_group=8),
        block(n_heads_in_group=None, no_op=True),
        block(n_heads_in_group=None, replace_with_linear=True),
        block(n_heads_in_group=16),
        block(n_heads_in_group=8, window_length=512),
        block(n_heads_in_group=8, window_length=512, num_sink_tokens=4, use_prefill_window_in_sink_attention=True),
        block(n_heads_in_group=8, window_length=512, num_sink_tokens=4, unshifted_sink=True),
    ],
)  # fmt: skip
OPENELM_1_1B = {
    "model_type": "openelm", "num_transformer_layers": 28, "model_dim": 2048, "head_dim": 64, "max_context_length": 2048,
    "num_kv_heads": [4] * 3 + [5] * 7 + [6] * 8 + [7] * 6 + [8] * 4,
    "num_query_heads": [16] * 3 + [20] * 7 + [24] * 8 + [28] * 6 + [32] * 4,
    "num_gqa_groups": 4, "qkv_multipliers": [0.5, 1.0], "share_input_output_layers": True, "torch_dtype": "bfloat16",
}  # fmt: skip
HUNYUAN_LARGE = llama_like("hunyuan", 64, 6400, 80, num_key_value_heads=8, use_cla=True, cla_share_factor=2, kv_lora_rank=None)
OURO = llama_like("ouro", 24, 2048, 16, num_key_value_heads=16, total_ut_steps=4, layer_types=["full_attention"] * 24)
MINIMAX_M1 = llama_like("minimax_m1", 80, 6144, 64, num_key_value_heads=8, head_dim=128, attn_type_list=([0] * 7 + [1]) * 10)
RING_MINI_LINEAR = llama_like(
    "bailing_moe_linear", 20, 2048, 16, num_key_value_heads=4, head_dim=128, layer_group_size=5, group_norm_size=4
)
PLAMO_2_1B = config(
    "plamo2", 16, hidden_size=2048, num_attention_heads=16, num_key_value_heads=1, hidden_size_per_head=128, head_dim=99,
    mamba_enabled=True, mamba_step=2, mamba_num_heads=32, mamba_d_state=64, mamba_d_conv=4, mamba_chunk_size=256,
    attention_window_size=2048, full_attention_idx=None,
)  # fmt: skip
PHI_4_FLASH = llama_like(
    "phi4flash", 32, 2560, 40, num_key_value_heads=20, mb_per_layer=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
    mamba_dt_rank=160, sliding_window=512,
)  # fmt: skip
RWKV_5 = config(
    "rwkv5", 32, hidden_size=2560, attention_hidden_size=2560, head_size=64, num_attention_heads=64, context_length=4096
)
RWKV_6 = config("rwkv6", 32, hidden_size=4096, attention_hidden_size=4096, head_size=64, head_size_divisor=8)
RWKV_7 = config("rwkv7", 24, hidden_size=1024, head_dim=64, num_heads=None, attn=None, attn_mode="chunk", value_dim=[1024] * 24)
KIMI_K3 = {
    "model_type": "kimi_k3",
    "dtype": "bfloat16",
    "text_config": config(
        "kimi_linear", 93, hidden_size=7168, num_attention_heads=96, num_key_value_heads=96, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536, mla_use_nope=True, attn_res_block_size=12,
        linear_attn_config={
            "full_attn_layers": [*range(4, 93, 4), 93], "kda_layers": [i for i in range(1, 93) if i % 4], "num_heads": 96,
            "head_dim": 128, "short_conv_kernel_size": 4,
        },
    ),
}  # fmt: skip
DEEPSEEK_REF = config(
    "deepseek_ref", 4, hidden_size=7168, num_attention_heads=128, num_key_value_heads=1, head_dim=512, sliding_window=128,
    index_head_dim=128, index_n_heads=64, index_topk=1024, q_lora_rank=1536, o_lora_rank=1024, o_groups=16, qk_rope_head_dim=64,
    num_hash_layers=3, compress_rope_theta=160000, compress_ratios=[128, 128, 4, 128, 0], num_nextn_predict_layers=1,
)  # fmt: skip
MINIMAX_M3 = llama_like(
    "minimax_m3", 60, 6144, 64, num_key_value_heads=4, head_dim=128, num_mtp_modules=7, num_nextn_predict_layers=1,
    sparse_attention_config={
        "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_block_size": 128,
        "sparse_disable_index_value": [0] * 3 + [1] * 57, "use_sparse_attention": True,
    },
)  # fmt: skip
TELECHAT3_36B = llama_like(
    "telechat3", 64, 6144, 48, num_key_value_heads=8, head_dim=128, intermediate_size=24576, vocab_size=131072,
    attention_bias=False, mlp_bias=False, share_attention=False, share_ffn=False,
)  # fmt: skip
SDAR_8B = llama_like(
    "sdar", 36, 4096, 32, num_key_value_heads=8, head_dim=128, intermediate_size=12288, vocab_size=151936,
    use_sliding_window=False, sliding_window=None, max_window_layers=36,
)  # fmt: skip
SDAR_30B = llama_like(
    "sdar_moe", 48, 2048, 32, num_key_value_heads=4, head_dim=128, intermediate_size=6144, vocab_size=151936, num_experts=128,
    num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False,
)  # fmt: skip
SMALLTHINKER_4B = llama_like(
    "smallthinker", 32, 1536, 12, num_key_value_heads=2, head_dim=128, vocab_size=151936, moe_ffn_hidden_size=768,
    moe_num_primary_experts=32, moe_num_active_primary_experts=4, rope_layout=[1] * 32, sliding_window_layout=[0] * 32,
    sliding_window_size=4096, tie_word_embeddings=True,
)  # fmt: skip
SMALLTHINKER_21B = {
    **{key: value for key, value in SMALLTHINKER_4B.items() if key != "model_type"},
    "architectures": ["SmallThinkerForCausalLM"], "num_hidden_layers": 52, "hidden_size": 2560, "num_attention_heads": 28,
    "num_key_value_heads": 4, "moe_num_primary_experts": 64, "moe_num_active_primary_experts": 6, "tie_word_embeddings": False,
    "rope_layout": [0, 1, 1, 1] * 13, "sliding_window_layout": [0, 1, 1, 1] * 13,
}  # fmt: skip
SARVAM_30B = llama_like(
    "sarvam_moe", 19, 4096, 64, num_key_value_heads=4, head_dim=64, intermediate_size=8192, vocab_size=262144, num_experts=128,
    num_shared_experts=1, num_experts_per_tok=6, moe_intermediate_size=1024, first_k_dense_replace=1, use_qk_norm=True,
    use_qkv_bias=False, use_bias=False, max_window_layers=19,
)  # fmt: skip
KLEAR = llama_like(
    "Klear", 32, 2048, 32, num_key_value_heads=4, attention_bias=False, intermediate_size=8064, moe_intermediate_size=896,
    num_experts=256, num_experts_per_tok=8, n_shared_experts=1, decoder_sparse_step=1, mlp_only_layers=[], vocab_size=151936,
    max_position_embeddings=65536, sliding_window=None, use_sliding_window=False, tie_word_embeddings=False,
    architectures=["KlearMoeForCausalLM"],
)  # fmt: skip
PANGU_7B = llama_like(
    "PanguEmbedded", 34, 4096, 32, num_key_value_heads=8, intermediate_size=12800, vocab_size=153376, bias=True,
    max_position_embeddings=32768, tie_word_embeddings=False, architectures=["PanguEmbeddedForCausalLM"],
)  # fmt: skip
PANGU_PRO_MOE = llama_like(
    "PanguProMoE", 48, 5120, 40, num_key_value_heads=8, moe_intermediate_size=1344, shared_expert_intermediate_size=5376,
    num_experts=64, num_experts_per_tok=8, vocab_size=153376, max_position_embeddings=131072, tie_word_embeddings=False,
    architectures=["PanguProMoEForCausalLM"],
)  # fmt: skip
BAICHUAN_M1 = llama_like(
    "baichuan_m1", 40, 5120, 20, num_key_value_heads=2, num_swa_attention_heads=40, num_swa_key_value_heads=8, conv_window=2,
    sliding_window=8192, sliding_window_layers=list(range(1, 40, 2)), intermediate_size=17408, vocab_size=133120,
    max_position_embeddings=32768, tie_word_embeddings=False, architectures=["BaichuanM1ForCausalLM"],
)  # fmt: skip
FLA = {
    "hidden_size": 2048,
    "vocab_size": 32000,
    "hidden_ratio": 4,
    "intermediate_size": None,
    "attn": None,
    "tie_word_embeddings": False,
}
DELTA_NET = config(
    "delta_net", 24, **FLA, num_heads=16, expand_k=1, expand_v=1, use_gate=False, use_short_conv=True, conv_size=4, use_beta=True,
    architectures=["DeltaNetForCausalLM"],
)  # fmt: skip
GATED_DELTANET = config(
    "gated_deltanet", 21, **FLA, num_heads=6, head_dim=256, expand_v=2, use_gate=True, use_short_conv=True, conv_size=4,
    architectures=["GatedDeltaNetForCausalLM"],
)  # fmt: skip
GLA = config(
    "gla", 24, **FLA, num_heads=4, num_kv_heads=None, expand_k=0.5, expand_v=1, use_short_conv=False, conv_size=4,
    share_conv_kernel=True, architectures=["GLAForCausalLM"],
)  # fmt: skip
GSA = config(
    "gsa", 24, **FLA, num_heads=4, num_kv_heads=None, expand_k=1, expand_v=1, num_slots=64, use_short_conv=False, conv_size=4,
    architectures=["GSAForCausalLM"],
)  # fmt: skip
HGRN2 = config(
    "hgrn2", 24, **FLA, num_heads=16, expand_ratio=128, use_short_conv=False, conv_size=4, architectures=["HGRN2ForCausalLM"]
)
SAMBA = config(
    "samba", 18, hidden_size=2304, vocab_size=32000, state_size=16, expand=2, intermediate_size=4608, conv_kernel=4,
    time_step_rank=144, hidden_ratio=4, tie_word_embeddings=False, architectures=["SambaForCausalLM"],
    attn={"layers": list(range(1, 18, 2)), "num_heads": 18, "num_kv_heads": 18, "qkv_bias": False, "window_size": 2048},
)  # fmt: skip
JET_NEMOTRON = llama_like(
    "jet_nemotron", 28, 1536, 12, num_key_value_heads=2, intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True,
    layer_types=[{15: "attn", 20: "attn", 21: "swa", 22: "swa"}.get(number, "jet") for number in range(28)],
    efficient_attention_config={
        "jet": {"mode": "chunk", "expand_v": 2.0, "num_heads": 12, "head_dim": 96, "conv_size": 4, "dconv_generator_reduction": 8},
        "swa": {"window_size": 1152},
    },
    architectures=["JetNemotronForCausalLM"],
)  # fmt: skip
HYMBA_1_5B = llama_like(
    "hymba", 32, 1600, 25, num_key_value_heads=5, intermediate_size=5504, vocab_size=32001, mamba_d_conv=4, mamba_d_state=16,
    mamba_dt_rank=100, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, mamba_inner_layernorms=True, num_mamba=1,
    num_memory_tokens=128, memory_tokens_interspersed_every=0, sliding_window=1024, global_attn_idx=[0, 15, 31], kv_weight_reuse=False,
    kv_reuse_every_i_layer=-1, kv_reuse_group=[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12], [13, 14], [16, 17, 18], [19, 20],
                                               [21, 22], [23, 24], [25, 26], [27, 28], [29, 30]],
    attn_hidden_size=-1, kq_head_dim=-1, v_head_dim=128, kq_norm="none", layer_type=["h"] * 32, mlp_hidden_act="silu", num_experts=1,
    num_experts_per_tok=1, conv_dim={str(number): 3200 for number in range(32)}, max_position_embeddings=8192, seq_length=8192,
    use_mamba_kernels=True, tie_word_embeddings=True, architectures=["HymbaForCausalLM"],
)  # fmt: skip
MINICPM_SALA = llama_like(
    "minicpm_sala", 32, 4096, 32, num_key_value_heads=2, head_dim=128, intermediate_size=16384, vocab_size=73448, lightning_nh=32,
    lightning_nkv=32, lightning_head_dim=128, lightning_scale="1/sqrt(d)", lightning_use_rope=True, attn_use_rope=False, qk_norm=True,
    use_output_gate=True, use_output_norm=True, attn_use_output_gate=True, attention_bias=False, max_position_embeddings=524288,
    mixer_types=["minicpm4" if number in (0, 9, 16, 17, 22, 29, 30, 31) else "lightning-attn" for number in range(32)],
    sparse_config={"kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 2048, "topk": 64,
                   "use_nope": False, "dense_len": 8192},
    tie_word_embeddings=False, architectures=["MiniCPMSALAForCausalLM"],
)  # fmt: skip
