"""What the symbols of the formulas mean, each in one line: names of configs as publishers spell them, and names of our own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["MEANINGS"]

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # The request.
        "n": "tokens of one sequence, prompt and output (--seq)",
        "seq": "tokens of one sequence, prompt and output (--seq)",
        "batch": "sequences alive at once (--batch)",
        "gpus": "GPUs of the plan",
        "tp": "GPUs that share every layer (--tp)",
        "pp": "pipeline stages, each with a part of the layers (--pp)",
        "layers": "layers of the model",
        # What attention keeps.
        "num_attention_heads": "query heads; queries are used at once and never cached",
        "num_key_value_heads": "heads that keep keys and values; several query heads may share one",
        "head_dim": "numbers in the vector of one head",
        "v_head_dim": "numbers in the value of one head",
        "hidden_size": "numbers in the vector of one token between layers",
        "window": "newest tokens that a layer looks at",
        "chunk": "tokens of the chunk that a layer looks at",
        "sink": "first tokens that are always kept",
        "kv_lora_rank": "numbers of the latent from which all heads compute keys and values",
        "qk_rope_head_dim": "numbers of the key that carry the position, shared by all heads",
        "qk_nope_head_dim": "numbers of a head's key without position; computed, not cached",
        "index_n_heads": "heads of the indexer; they are not cached",
        "index_head_dim": "numbers of the key by which the indexer finds tokens",
        "index_topk": "tokens that the indexer selects; it bounds what is read, not what is kept",
        "index_extra_elements": "numbers that the indexer keeps beside its key",
        "compress_ratio": "tokens that become one compressed entry",
        # What recurrent layers keep.
        "num_heads": "heads of the recurrence, each with a state of its own",
        "state_layers": "layers that keep a state",
        "state_bytes": "bytes of one number of a state",
        "d_state": "numbers of the state of one channel",
        "d_inner": "channels of the recurrence",
        "d_conv": "taps of the short convolution; the last d_conv - 1 inputs are kept",
        "n_groups": "groups of heads that share the inputs B and C",
        "num_key_heads": "heads of the keys",
        "num_value_heads": "heads of the values, each with a state of its own",
        "key_head_dim": "numbers in the key of one head",
        "value_head_dim": "numbers in the value of one head",
        "qk_head_dim": "numbers in the query and key of one head",
        "lru_width": "channels of the recurrence",
        "attention_hidden_size": "channels of the recurrence",
        "channels": "channels of the convolution",
        # Weights.
        "parameters": "numbers of the block in all its layers",
        "active_parameters": "parameters that one token uses: of the experts only some",
        "bits": "bits of one parameter in its format",
        "scales": "bytes of the scales and zero points that the format keeps beside the numbers",
        "elements": "numbers as the files store them",
        "vocab_size": "entries of the vocabulary: one logit each",
        # A forward pass.
        "element_bytes": "bytes of one number in the dtype in which the model runs",
        "forward_tokens": "tokens that one forward pass takes at once",
        "hidden_copies": "copies of a token's hidden vector that are alive at once, as measured",
        "inner_width": "numbers that the widest layer holds for one token, on one GPU",
        "logits": "logits of one step on one GPU: sequences x entries of the vocabulary",
        "logit_bytes": "bytes that each logit takes while the next token is drawn",
        "sampler_bytes": "bytes that each logit takes while the next token is drawn",
        "hidden_rows": "further hidden vectors that the sampler keeps alive",
        "buffer_rows": "rows of logits in fp32 in which the sampler works",
        "expert_tokens": "tokens that the kernels of the experts take at once",
        "experts_per_token": "experts that each token is sent to",
        "expert_numbers": "numbers that these kernels hold for one token and expert",
        "expert_share": "the part of these buffers that the kernels allocate, as measured",
        "patches": "image patches for each token of the batch",
        "patch_numbers": "numbers of one patch as the tower takes it",
        "encoder_width": "numbers that the widest layer of the tower holds for one patch",
        # Overheads.
        "driver_context": "what the driver keeps for a process",
        "loaded_kernels": "kernels that the first forward pass loads",
        "graph_bytes": "bytes of one CUDA graph",
        "graphs": "graphs that the engine captures",
        "max_position_embeddings": "positions of the table: the model's longest sequence",
        "rotated_width": "numbers of a head that carry the position",
        "rotary_bytes": "bytes of one number of the table",
        # Budget and pool.
        "visible": "memory of the GPU that programs see",
        "utilization": "share of it that the engine may use (--memory-utilization)",
        "margin": "bytes that stay free on purpose (--margin)",
        "budget": "bytes left for the cache, not below 0",
        "kv_memory": "bytes for the cache, as given (--kv-memory)",
        "bytes_per_block": "bytes of one block of the pool in all layers of a GPU",
        "block_size": "tokens of one block",
        "blocks_per_request": "blocks that one request of the planned length takes",
        "null_block": "a block that stands for tokens that have left their window",
        "num_gpu_blocks_override": "blocks as given (engine option num_gpu_blocks_override)",
        "logged_blocks": "blocks of the first pipeline stage, which this release logs",
        "schedulers": "schedulers, each with its share of the blocks",
        "groups": "groups of layers that share the pool",
        "group_tokens": "tokens that a block holds",
        "dcp": "GPUs that share the tokens of a sequence (--dcp)",
        "cache": "the planned cache on the fullest GPU",
        "whole_cache": "the cache of all sequences by the formulas",
        # Speed.
        "weights_of_every_token": "weights that every token uses",
        "weights_of_chosen_experts": "experts that the tokens of a step are sent to, on average",
        "embedding_rows": "rows of the embedding that are looked up",
        "output_head": "the matrix that makes the logits",
        "encoder_weights": "weights of the encoder",
        "sequences": "sequences of one step on one GPU",
        "cache_bytes_each": "bytes of cache that a step reads for one sequence, on one GPU",
        "bandwidth": "bytes per second that the memory delivers at most",
        **{f"flops_{name}": f"operations that may run at the rate of {name}" for name in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")},
        **{f"rate_{name}": f"operations per second in {name}, dense, at most" for name in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")},
    }
)  # fmt: skip
"""Symbol -> its meaning. A test holds that every symbol that an explanation may show is here."""
