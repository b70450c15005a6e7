"""Translate ``params.json``, the format of Mistral's and Meta's own code, to the equivalent config of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.text import printable

__all__ = ["config_from_params"]

_RENAMED: Final = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "tied_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "model_max_length": "max_position_embeddings",
}
_EXPERTS: Final = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}

# These keys describe training, storage, longer contexts or an additional tower. They do not change the cache of a layer.
_HARMLESS: Final = frozenset(
    {
        *("causal", "dropout", "ffn_dim_multiplier", "is_causal", "lora", "max_batch_size", "multiple_of", "quantization"),
        *("rope_scaling", "rope_scaling_factor", "use_biases", "use_scaled_rope", "vision_encoder", "yarn", "llama_4_scaling"),
        *("max_seq_len", "activation_dim", "multimodal", "ragged_attention", "use_qk_norm"),
    }
)
_NEEDED: Final = ("dim", "n_layers", "n_heads")


def config_from_params(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config that ``params`` describes: ``mixtral`` if it has experts, ``llama`` if it is Meta's, otherwise ``mistral``.

    >>> config = config_from_params({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 96}, "params.json")
    >>> config["model_type"], config["hidden_size"], config["num_key_value_heads"]
    ('mistral', 64, 2)

    The parser checks the values later. Raises :class:`~hwcalc.errors.ConfigError` if the file has another format, and
    :class:`~hwcalc.errors.UnsupportedError` if it describes something that these model types do not have. Messages call the file
    ``name``.
    """
    missing = [key for key in _NEEDED if params.get(key) is None]
    if missing:
        raise ConfigError(
            f"{name} is no description of a model in Mistral's format: it lacks {', '.join(missing)}.",
            hint="Give a repository or folder with a config.json.",
        )
    experts = params.get("moe")
    used = {*_RENAMED, *_HARMLESS, "sliding_window", "moe"}
    foreign = [key for key, value in params.items() if key not in used and value not in (None, False)]
    if isinstance(experts, Mapping):
        foreign += [f"moe.{key}" for key, value in experts.items() if key not in _EXPERTS and value not in (None, False)]
    if foreign:
        listed = ", ".join(printable(str(key))[:40] for key in sorted(foreign)[:8])
        raise UnsupportedError(
            f"{name} has keys that kvplan does not know in this format: {listed}.",
            hint="Give the same model with a config.json: most publishers have one beside it.",
        )
    config = {new: params[old] for old, new in _RENAMED.items() if params.get(old) is not None}
    heads = params["n_heads"]
    config.setdefault("num_key_value_heads", heads)
    if "head_dim" not in config and all(type(size) is int and size > 0 for size in (params["dim"], heads)):
        config["head_dim"] = params["dim"] // heads
    if params.get("vocab_size") == -1:  # Meta: only the tokenizer knows the size
        del config["vocab_size"]
    if "hidden_dim" not in params:
        return _meta_config(params, config)
    config["sliding_window"] = params.get("sliding_window")
    if isinstance(config["sliding_window"], list):
        raise UnsupportedError(
            f"{name} has a window of its own for each layer, which kvplan does not read in this format.",
            hint="Give the same model with a config.json: most publishers have one beside it.",
        )
    if not experts:
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **config}
    if not isinstance(experts, Mapping):
        raise ConfigError(f"{name} must have an object as moe.", hint="Give a repository or folder with a config.json.")
    config |= {new: experts[old] for old, new in _EXPERTS.items() if old in experts}
    return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **config}


def _meta_config(params: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The config of a Llama in Meta's format. The MLP width follows from a rule: 2/3 of 4 x dim, rounded up to a multiple.

    dim 4096, multiple_of 256: 8 x 4096 // 3 = 10,922, and the next multiple of 256 is 11,008.
    """
    dim, multiple, factor = params["dim"], params.get("multiple_of", 256), params.get("ffn_dim_multiplier")
    if type(dim) is int and type(multiple) is int and multiple > 0 and 0 < dim < 2**31:
        width = 8 * dim // 3
        if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 100:
            width = int(factor * width)
        config["intermediate_size"] = -(-width // multiple) * multiple
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
