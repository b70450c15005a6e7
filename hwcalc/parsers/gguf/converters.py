"""What llama.cpp's converter does in a way of its own for some architectures.

Converters of models with latent attention, indexers or compressed caches.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.

Converters that read a size in a way of their own: widths, lengths, counts of experts.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.

Converters of models with recurrent states.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.

Converters of models with a window: which keys name it, and which layers have it.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas import CompressedAttention, LatentAttention, Mamba2, NoCache, SparseIndexer
from hwcalc.parsers.gguf.converter_keys import (
    experts_as_wide,
    given,
    granite_moe,
    leading_dense,
    mtp,
    nextn,
    pattern,
    scalar_heads,
    shared_expert,
    window_keys,
)

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.converter_keys import Keys, Source


def latent(source: Source, keys: Keys) -> None:
    """DeepseekV2Model."""
    if "leading_dense_block_count" not in keys:
        keys["leading_dense_block_count"] = 0 if source.number("n_routed_experts") is not None else source.layers
    keys.setdefault("expert_feed_forward_length", keys.get("feed_forward_length"))


def latent_mtp(source: Source, keys: Keys) -> None:
    """Glm4MoeLiteModel, DeepseekV32Model."""
    latent(source, keys)
    mtp(source, keys)


def glm_dsa(source: Source, keys: Keys) -> None:
    """GlmMoeDsaModel: a list says which layers have an indexer of their own."""
    latent_mtp(source, keys)
    if types := source.words("indexer_types"):
        keys["attention.indexer.types"] = [each == "full" for each in types]


def deepseek_ocr(source: Source, keys: Keys) -> None:
    """DeepseekV2Model for DeepSeek-OCR: attention with keys and values for every head."""
    keys |= window_keys(source, listed=False) | given(source, {"rope.dimension_count": "qk_rope_head_dim"})
    latent(source, keys)


def expanded_latent(source: Source, keys: Keys) -> None:
    """MiniCPM3Model: the latent is multiplied out, with a key and a value for every head."""
    if latent := source.first(LatentAttention):
        length = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        keys |= {
            "attention.key_length": length,
            "attention.head_count_kv": source.wanted("num_key_value_heads", "num_attention_heads"),
        }
        for key in ("attention.value_length", "attention.key_length_mla", "attention.value_length_mla"):
            keys.pop(key, None)


def deepseek4(source: Source, keys: Keys) -> None:
    """DeepseekV4Model: the layers for multi-token prediction go into a file of their own."""
    keys |= window_keys(source, listed=False, needed=True)
    own = [(each and each.compress_ratio) or 0 for each in source.kinds(CompressedAttention)]
    keys["attention.compress_ratios"] = source.config.integers("compress_ratios") or own
    keys |= given(source, {"rope.dimension_count": "qk_rope_head_dim"})
    if "intermediate_size" not in source.config.raw:
        keys.pop("feed_forward_length", None)


def dots3(source: Source, keys: Keys) -> None:
    """Dots3NoteModel: layers that slide have latents of their own; the one layer for multi-token prediction slides."""
    latents = source.kinds(LatentAttention)
    full = next((each for each in latents if each and each.window is None), None)
    sliding = next((each for each in latents if each and each.window is not None), None)
    latent(source, keys)
    keys |= window_keys(source, listed=True)
    if not full or not sliding:
        return
    keys |= {
        "attention.kv_lora_rank": full.kv_lora_rank,
        "attention.key_length_mla": full.qk_nope_head_dim + full.qk_rope_head_dim,
        "attention.value_length_mla": full.v_head_dim,
        "attention.key_length_swa": sliding.kv_lora_rank + sliding.qk_rope_head_dim,
        "attention.value_length_swa": sliding.kv_lora_rank,
        "attention.kv_lora_rank_swa": sliding.kv_lora_rank,
        "attention.key_length_mla_swa": sliding.qk_nope_head_dim + sliding.qk_rope_head_dim,
        "attention.value_length_mla_swa": sliding.v_head_dim,
        "attention.indexer.types": [not each for each in pattern(source)],
    }
    nextn(source, keys, 1)
    keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads] + [sliding.num_attention_heads]


def hy4(source: Source, keys: Keys) -> None:
    """HYV4Model."""
    leading_dense(source, keys)
    latent(source, keys)
    if source.first(SparseIndexer):
        keys["attention.indexer.types"] = [each is not None for each in source.kinds(SparseIndexer)]


def minimax_m3(source: Source, keys: Keys) -> None:
    """MiniMaxM3Model: dense layers come first; the indexer of the others has keys and values."""
    experts_as_wide(source, keys)
    frequency = source.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        keys["leading_dense_block_count"] = next((layer for layer, each in enumerate(frequency) if each != 0), len(frequency))
    else:
        keys["leading_dense_block_count"] = next((n for n, each in enumerate(source.kinds(SparseIndexer)) if each), 0)
    names = {"attention.indexer.top_k": "sparse_topk_blocks", "attention.indexer.block_size": "sparse_block_size"}
    keys |= given(source.section("sparse_attention_config"), names)


def kimi_linear(source: Source, keys: Keys) -> None:
    """KimiLinearModel: the length of a value is not written, as no value is kept."""
    scalar_heads(source, keys)
    keys.pop("attention.value_length", None)


def glm5_next(source: Source, keys: Keys) -> None:
    """Glm5NextModel."""
    scalar_heads(source, keys)
    mtp(source, keys)
    behind = keys["block_count"] - source.layers
    keys["attention.head_count_kv"] = [1 if each else 0 for each in source.heads] + [1] * behind
    keys |= given(source, {"attention.indexer.kpool": "index_kpool"})
    if types := source.words("indexer_types"):
        keys["attention.indexer.types"] = [each == "full" for each in types]


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


def qwen_next(source: Source, keys: Keys) -> None:
    """Qwen3NextModel: Qwen3-Next itself does not name the one layer for multi-token prediction that its files have."""
    keys["full_attention_interval"] = source.number("full_attention_interval") or 4
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")
    modules = source.number("mtp_num_hidden_layers") or 1
    keys["attention.recurrent_layers"] = [each is None for each in source.heads] + [False] * modules
    nextn(source, keys, modules)


def qwen_next_moe(source: Source, keys: Keys) -> None:
    """Qwen3NextModel with experts."""
    shared_expert(source, keys)
    qwen_next(source, keys)


def qwen4(source: Source, keys: Keys) -> None:
    """Qwen4ExpTextModel."""
    shared_expert(source, keys)
    keys["full_attention_interval"] = source.number("full_attention_interval") or 4
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")
    ratio = source.number("indexer_compress_ratio") or 0
    keys["attention.recurrent_layers"] = [each is None for each in source.heads]
    keys["attention.compress_ratios"] = [ratio if each else 0 for each in source.heads]
    names = {
        "attention.indexer.head_count": "indexer_n_heads",
        "attention.indexer.key_length": "indexer_head_dim",
        "attention.indexer.top_k": "indexer_budget",
    }
    if looked_up := source.config.integers("ple_layer_ids", minimum=1):
        keys["ple.layers"] = [each - 1 for each in looked_up]
        names |= {"ple.ngram_size": "ngram_size", "ple.conv_kernel": "ple_conv_kernel_size"}
    keys |= given(source, names)


def mamba(_source: Source, keys: Keys) -> None:
    """MambaModel, Mamba2Model: any length, and no attention."""
    keys |= {"context_length": _MILLION, "feed_forward_length": 0, "attention.head_count": 0}


def granite_hybrid(source: Source, keys: Keys) -> None:
    """GraniteHybridModel: without positions, any length; without states, a plain Granite."""
    scalar_heads(source, keys)
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_intermediate_size"})
    keys |= given(source, {"rope.dimension_count": "attn_rotary_emb"})
    if source.first(Mamba2) and source.model.architecture != "BambaForCausalLM":
        keys["context_length"] = _MILLION


def nemotron_h(source: Source, keys: Keys) -> None:
    """NemotronHModel: layers with a feed-forward part alone have its width, all others 0; one layer for multi-token prediction."""
    experts = "expert_count" in keys and _has_experts(source)
    width = source.wanted("moe_intermediate_size" if experts else "intermediate_size")
    alone = _feed_forward_layers(source, "E" if experts else "-")
    heads = [each.keys if each else 0 for each in source.heads]
    keys["attention.head_count"] = source.wanted("num_attention_heads")
    keys["context_length"] = _MILLION
    if not experts:
        for key in ("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count"):
            keys.pop(key, None)
    else:
        keys |= given(source, {"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"})
    count = (source.number("num_nextn_predict_layers") or 0) if experts else 0
    nextn(source, keys, count)
    keys["feed_forward_length"] = [width if each else 0 for each in alone] + [width] * count
    keys["attention.head_count_kv"] = heads + [source.wanted("num_key_value_heads")] * count
    keys["rope.dimension_count"] = source.width // max(1, keys["attention.head_count"])


def _feed_forward_layers(source: Source, letter: str) -> list[bool]:
    """The layers that the converter takes for feed-forward parts: by their letter, or ``moe`` in a list of types."""
    given_types = source.get("hybrid_override_pattern", "layers_block_type")
    if isinstance(given_types, str) and len(given_types) == source.layers:
        return [each == letter for each in given_types]
    if isinstance(given_types, (list, tuple)) and len(given_types) == source.layers:
        return [each == "moe" for each in given_types]
    return [all(isinstance(part, NoCache) for part in layer) for layer in source.model.stack]


def _has_experts(source: Source) -> bool:
    """Whether the file itself names experts: the class has a default for models without."""
    return source.config.has("num_experts_per_tok") or "num_experts_per_tok" in source.top


def plamo2(source: Source, keys: Keys) -> None:
    """Plamo2Model: layers with a state have no heads at all."""
    keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads]


def lfm2(source: Source, keys: Keys) -> None:
    """LFM2Model: the width of the feed-forward layers may be worked out."""
    width = source.number("block_ff_dim", "intermediate_size")
    if width and source.get("block_auto_adjust_ff_dim"):
        width = 2 * width // 3
        factor = source.config.number("block_ffn_dim_multiplier", 1.0)
        multiple = source.number("block_multiple_of", minimum=1) or 1
        width = -(-int(factor * width) // multiple) * multiple
    if width:
        keys["feed_forward_length"] = width
    keys |= given(source, {"shortconv.l_cache": "conv_L_cache"})


def lfm2_moe(source: Source, keys: Keys) -> None:
    """LFM2MoeModel."""
    keys |= given(source, {"leading_dense_block_count": "num_dense_layers", "shortconv.l_cache": "conv_L_cache"})


def rwkv6(source: Source, keys: Keys) -> None:
    """Rwkv6Model: any length; without a width of its own, 3.5 times that of the hidden state in steps of 32."""
    keys["context_length"] = _MILLION
    keys.setdefault("feed_forward_length", 7 * source.width // 64 * 32)


def rwkv7(source: Source, keys: Keys) -> None:
    """Rwkv7Model: the same with 4 times that width."""
    keys["context_length"] = _MILLION
    keys.setdefault("feed_forward_length", 4 * source.width)


def minimax01(source: Source, keys: Keys) -> None:
    """MiniMaxText01Model: layers with a state have the same heads as the others."""
    keys["attention.head_count_kv"] = source.wanted("num_key_value_heads")


def window(source: Source, keys: Keys) -> None:
    """AfmoeModel, Cohere2Model, Gemma2Model, GptOssModel, LagunaModel: the window; which layers have it, llama.cpp knows."""
    keys |= window_keys(source, listed=False)


def window_or_zero(source: Source, keys: Keys) -> None:
    """Phi3MiniModel."""
    keys |= {"attention.sliding_window": 0} | window_keys(source, listed=False)


def listed_window(source: Source, keys: Keys) -> None:
    """MuseGlimmerModel, Exaone4Model, Olmo2Model."""
    keys |= window_keys(source, listed=True)


def windows_and_mtp(source: Source, keys: Keys) -> None:
    """ExaoneMoEModel, Cohere2MoeModel."""
    listed_window(source, keys)
    mtp(source, keys)


def gemma3(source: Source, keys: Keys) -> None:
    """Gemma3Model: no window for a model whose every layer is full."""
    if source.get("sliding_window_pattern") != 1:
        keys |= window_keys(source, listed=False, needed=True)


def gemma3n(source: Source, keys: Keys) -> None:
    """Gemma3NModel."""
    gemma3(source, keys)
    keys["attention.shared_kv_layers"] = source.wanted("num_kv_shared_layers")
    keys["attention.sliding_window_pattern"] = _types(source, 5)


def _types(source: Source, period: int) -> list[bool]:
    """Which layers slide, of a model whose last layers read the cache of others: by its list of types, or by its period."""
    return pattern(source) if source.words("layer_types") else [(layer + 1) % period != 0 for layer in range(source.layers)]


def gemma4(source: Source, keys: Keys) -> None:
    """Gemma4Model: full layers have wider heads, and may have fewer."""
    gemma3(source, keys)
    shared = source.number("num_kv_shared_layers") or 0
    slides = _types(source, 6)
    slides[-1] = False
    keys |= {"attention.shared_kv_layers": shared, "attention.sliding_window_pattern": slides}
    full = next((each for each in source.heads if each and not each.slides), None)
    sliding = next((each for each in source.heads if each and each.slides), None)
    if full and sliding:
        heads = [sliding.keys if each else full.keys for each in slides]
        keys |= {"attention.head_count_kv": source.alike(heads)}
        keys |= {"attention.key_length_swa": sliding.key_length, "attention.value_length_swa": sliding.value_length}
    if source.get("use_double_wide_mlp") and isinstance(width := keys.get("feed_forward_length"), int):
        own = source.layers - shared
        keys["feed_forward_length"] = [width if layer < own else 2 * width for layer in range(source.layers)]
    keys["rope.dimension_count"] = keys["attention.key_length"]
    keys["rope.dimension_count_swa"] = keys.get("attention.key_length_swa", keys["attention.key_length"])
    if not source.get("num_experts"):
        keys.pop("expert_used_count", None)
    if not source.config.has("moe_intermediate_size"):
        keys.pop("expert_feed_forward_length", None)


def mellum(source: Source, keys: Keys) -> None:
    """MellumModel."""
    if source.get("use_sliding_window") in (None, True):
        keys |= window_keys(source, listed=True)


def plamo3(source: Source, keys: Keys) -> None:
    """Plamo3Model: the period itself, or a list."""
    keys |= window_keys(source, listed=False)
    every = source.get("sliding_window_pattern")
    if "attention.sliding_window" in keys:
        keys["attention.sliding_window_pattern"] = every if isinstance(every, int) else pattern(source)


def llama4(source: Source, keys: Keys) -> None:
    """Llama4Model: a window of 0 says that no layer is chunked; the size of chunks llama.cpp knows."""
    keys["feed_forward_length"] = source.wanted("intermediate_size_mlp")
    keys["expert_feed_forward_length"] = source.wanted("intermediate_size")
    types = source.words("layer_types")
    if types and set(types) == {"full_attention"}:
        keys["attention.sliding_window"] = 0


def mimo2(source: Source, keys: Keys) -> None:
    """MimoV2Model: the three layers for multi-token prediction slide."""
    sliding = next((each for each in source.heads if each and each.slides), None)
    listed_window(source, keys)
    nextn(source, keys, 3)
    if sliding:
        keys["attention.head_count_kv"] = [each.keys if each else 0 for each in source.heads] + [sliding.keys] * 3
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"], beyond=True)


def step35(source: Source, keys: Keys) -> None:
    """Step35Model: layers for multi-token prediction are full."""
    full = next((each for each in source.heads if each and not each.slides), None)
    listed_window(source, keys)
    mtp(source, keys)
    behind = keys["block_count"] - source.layers
    if full:
        keys["attention.head_count"] = [each.queries if each else 0 for each in source.heads] + [full.queries] * behind
        keys["attention.head_count_kv"] = [each.keys if each else 0 for each in source.heads] + [full.keys] * behind
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"])
    moe = source.get("moe_layers_enum")
    first = moe.split(",")[0].strip() if isinstance(moe, str) else ""
    keys |= {"leading_dense_block_count": int(first[:9]) if first.isdecimal() and first.isascii() else 0}
    keys |= given(source, {"expert_used_count": "moe_top_k", "expert_shared_feed_forward_length": "share_expert_dim"})


def gpt_oss(source: Source, keys: Keys) -> None:
    """GptOssModel."""
    window(source, keys)
    experts_as_wide(source, keys)


def cohere2_moe(source: Source, keys: Keys) -> None:
    """Cohere2MoeModel."""
    windows_and_mtp(source, keys)
    width, shared = source.wanted("intermediate_size"), source.number("num_shared_experts")
    keys["expert_feed_forward_length"] = width
    if shared:
        keys["expert_shared_feed_forward_length"] = shared * width
    leading_dense(source, keys)


def laguna(source: Source, keys: Keys) -> None:
    """LagunaModel."""
    if source.number("sliding_window"):
        window(source, keys)
    keys |= given(source, {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"})
    if heads := source.config.integers("num_attention_heads_per_layer", length=source.layers):
        keys["attention.head_count"] = heads
    sliding = source.section("rope_parameters").section("sliding_attention")
    if (share := sliding.fraction("partial_rotary_factor")) is not None:
        keys["rope.dimension_count_swa"] = int(share * keys["attention.key_length"])
    leading_dense(source, keys)


def afmoe(source: Source, keys: Keys) -> None:
    """AfmoeModel."""
    window(source, keys)
    keys |= given(source, {"leading_dense_block_count": "num_dense_layers"})


def exaone_moe(source: Source, keys: Keys) -> None:
    """ExaoneMoEModel."""
    windows_and_mtp(source, keys)
    width, shared = source.number("moe_intermediate_size"), source.number("num_shared_experts")
    keys |= {} if width is None else {"expert_shared_feed_forward_length": width * (shared or 0)}
    keys["leading_dense_block_count"] = source.number("first_k_dense_replace", "first_last_k_dense_replace") or 0


def granite_swa(source: Source, keys: Keys) -> None:
    """GraniteSWAModel, GraniteMoeSWAModel."""
    keys |= (
        {"attention.sliding_window": 128}
        | window_keys(source, listed=False)
        | {"attention.sliding_window_pattern": pattern(source)}
    )
    granite_moe(source, keys)
