"""Converters that read a size in a way of their own: widths, lengths, counts of experts.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.parsers.gguf.from_config.shared import given, mtp

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = [
    "bailing2",
    "bloom",
    "chatglm",
    "command_r",
    "dbrx",
    "deci",
    "encoder",
    "ernie_moe",
    "falcon",
    "four_times",
    "hrm",
    "hunyuan_dense",
    "hunyuan_moe",
    "hy3",
    "openelm",
    "plamo",
    "refact",
    "stretched",
    "t5",
]

_MILLION: Final = 2**20


def four_times(source: Source, keys: Keys) -> None:
    """BloomModel, GPT2Model, StarCoderModel, CodeShellModel, MPTModel, Phi2Model: the width is not read."""
    keys["feed_forward_length"] = 4 * source.width


def falcon(source: Source, keys: Keys) -> None:
    """FalconModel."""
    four_times(source, keys)
    keys["context_length"] = 2048


def bloom(source: Source, keys: Keys) -> None:
    """BloomModel: the length is in no newer config, and the width stands in for it."""
    four_times(source, keys)
    keys["context_length"] = source.number("seq_length") or source.width


def chatglm(source: Source, keys: Keys) -> None:
    """ChatGLMModel: the same."""
    keys["context_length"] = source.number("seq_length") or source.width
    keys["feed_forward_length"] = source.number("ffn_hidden_size", "intermediate_size") or 4 * source.width


def refact(source: Source, keys: Keys) -> None:
    """RefactModel."""
    keys["feed_forward_length"] = -(-int(2 * 4 * source.width / 3) // 256) * 256


def command_r(source: Source, keys: Keys) -> None:
    """CommandR2Model: the tokenizer's length counts before the model's."""
    keys |= given(source, {"context_length": "model_max_length"})


def plamo(_source: Source, keys: Keys) -> None:
    """PlamoModel: the length is not in the config."""
    keys["context_length"] = 4096


def dbrx(source: Source, keys: Keys) -> None:
    """DbrxModel: experts are in an object of their own."""
    experts = source.section("ffn_config")
    names = {"feed_forward_length": "ffn_hidden_size", "expert_count": "moe_num_experts", "expert_used_count": "moe_top_k"}
    keys |= given(experts, names)


def openelm(source: Source, keys: Keys) -> None:
    """OpenELMModel: each layer has its own width."""
    factors, multiple = source.config.sequence("ffn_multipliers"), source.number("ffn_dim_divisor", minimum=1) or 256
    if factors and all(isinstance(each, (int, float)) and abs(each) <= _MILLION for each in factors):
        keys["feed_forward_length"] = [_divisible(each * source.width, multiple) for each in factors]


def _divisible(value: float, divisor: int) -> int:
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def deci(source: Source, keys: Keys) -> None:
    """DeciModel: any layer may lack its attention, its feed-forward part, or both."""
    blocks = source.config.sequence("block_configs", length=source.layers)
    keys["attention.head_count_kv"] = [each.keys if each else 0 for each in source.heads]
    if not blocks:
        return
    keys["attention.head_count"] = [
        each.queries if each else _linear(source, block) for each, block in zip(source.heads, blocks, strict=True)
    ]
    keys["feed_forward_length"] = [_width(source, _inside(block, "ffn").get("ffn_mult")) for block in blocks]


def _inside(block: Any, key: str) -> Mapping[str, Any]:
    inner = block.get(key) if isinstance(block, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _linear(source: Source, block: Any) -> int:
    """A layer whose attention is one linear map keeps its heads."""
    return source.wanted("num_attention_heads") if _inside(block, "attention").get("replace_with_linear") is True else 0


def _width(source: Source, factor: Any) -> int:
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor <= _MILLION:
        return 0
    return -(-int(2 * factor * source.width / 3) // 256) * 256


def encoder(source: Source, keys: Keys) -> None:
    """BertModel."""
    keys["attention.causal"] = False
    keys["attention.head_count"] = source.wanted("num_attention_heads")


def t5(source: Source, keys: Keys) -> None:
    """T5Model: the blocks are those of the encoder, and the decoder's are counted apart."""
    keys |= {
        "block_count": source.wanted("num_layers", "num_hidden_layers"),
        "context_length": source.number("n_positions") or 512,
    }
    keys |= given(
        source, {"decoder_block_count": "num_decoder_layers", "feed_forward_length": "d_ff", "attention.head_count": "num_heads"}
    )
    if (length := source.number("d_kv")) is not None:
        keys |= {"attention.key_length": length, "attention.value_length": length}
    keys.pop("attention.head_count_kv", None)


def bailing2(source: Source, keys: Keys) -> None:
    """BailingMoeV2Model."""
    width = source.number("moe_shared_expert_intermediate_size")
    if width is None and (one := source.number("moe_intermediate_size")) is not None:
        width = one * (source.number("num_shared_experts") or 0)
    keys |= {} if width is None else {"expert_shared_feed_forward_length": width}
    mtp(source, keys)


def ernie_moe(source: Source, keys: Keys) -> None:
    """Ernie4_5_MoeModel: the width of shared experts divides by the key/value heads, as written there."""
    keys |= given(source, {"leading_dense_block_count": "moe_layer_start_index"})
    width, heads = source.number("intermediate_size"), source.number("num_key_value_heads")
    if source.number("moe_num_shared_experts") and width is not None and heads:
        keys["expert_shared_feed_forward_length"] = width // heads


def hunyuan_moe(source: Source, keys: Keys) -> None:
    """HunYuanMoEModel."""
    keys |= given(source, {"expert_shared_feed_forward_length": "intermediate_size"})
    for name in ("moe_topk",):
        value = source.get(name)
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(first, int) and first > 0:
            keys["expert_used_count"] = first
    stretched(source, keys)


def stretched(source: Source, keys: Keys) -> None:
    """HunYuanModel: a rotary embedding of the kind ``dynamic`` is written for 256k tokens."""
    if source.rope.get("rope_type", source.rope.get("type")) == "dynamic":
        keys["context_length"] = 256 * 1024


def hunyuan_dense(source: Source, keys: Keys) -> None:
    """HunYuanModel: a count of experts in the config of a dense model is left out."""
    keys.pop("expert_count", None)
    stretched(source, keys)


def hy3(source: Source, keys: Keys) -> None:
    """HYV3Model."""
    if (width := source.number("moe_intermediate_size")) is not None:
        shared = source.number("num_shared_experts")
        keys["expert_shared_feed_forward_length"] = width * (1 if shared is None else shared)
    for key in ("leading_dense_block_count", "expert_shared_count"):
        keys.pop(key, None)
    mtp(source, keys)


def hrm(source: Source, keys: Keys) -> None:
    """HrmTextModel: both stacks run several times, and every time has a cache of its own."""
    per_stack = source.number("num_layers_per_stack") or source.wanted("num_hidden_layers")
    keys["block_count"] = per_stack * source.wanted("H_cycles") * (source.wanted("L_cycles") + 1)
