"""What llama.cpp's converter does in a way of its own for some architectures, as steps that change the keys that most have.

Every rule is that of ``set_gguf_parameters`` of the named class in conversion/*.py of llama.cpp 0c1e57098. A row of
:mod:`hwcalc.parsers.gguf.from_config` lists the steps of a class in order: several share theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwcalc.formulas import CompressedAttention, LatentAttention, Mamba2, NoCache, SparseIndexer
from hwcalc.parsers.gguf.converter_keys import pattern, window_keys
from hwcalc.parsers.reading import divisible

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.converter_keys import Keys, Source

Step: TypeAlias = "Callable[[Source, Keys], None]"
_MILLION: Final = 2**20


# Steps that several converters share, and functions that make steps.


def given(source: Source, names: Mapping[str, str]) -> Keys:
    """The numbers that the config has, by the GGUF key that each of them becomes."""
    found = {key: source.number(name) for key, name in names.items()}
    return {key: value for key, value in found.items() if value is not None}


def copied(names: Mapping[str, str], *, section: str = "") -> Step:
    """A step: numbers of the config, or of an object in it, under the GGUF keys that they become. What is missing changes nothing."""

    def step(source: Source, keys: Keys) -> None:
        keys |= given(source.section(section) if section else source, names)

    return step


def needed(names: Mapping[str, str]) -> Step:
    """The same for numbers that must be there."""

    def step(source: Source, keys: Keys) -> None:
        keys |= {key: source.wanted(name) for key, name in names.items()}

    return step


def fixed(values: Mapping[str, Any]) -> Step:
    """A step: values that no config changes."""

    def step(_source: Source, keys: Keys) -> None:
        keys |= values

    return step


def without(*names: str) -> Step:
    """A step: keys that are not written."""

    def step(_source: Source, keys: Keys) -> None:
        for name in names:
            keys.pop(name, None)

    return step


def window(*, listed: bool = False) -> Step:
    """A step: the window, and with ``listed`` the layers that have it; otherwise llama.cpp knows them."""

    def step(source: Source, keys: Keys) -> None:
        keys |= window_keys(source, listed=listed)

    return step


def wide(factor: float, multiple: int = 1) -> Step:
    """A step: the width of feed-forward layers where the config has none, in steps of ``multiple``, rounded down."""

    def step(source: Source, keys: Keys) -> None:
        keys.setdefault("feed_forward_length", int(factor * source.width) // multiple * multiple)

    return step


def nextn(source: Source, keys: Keys, count: int | None) -> None:
    """Add the layers for multi-token prediction: they count as blocks, behind the others."""
    if count:
        keys["block_count"] += count
        keys["nextn_predict_layers"] = count


def mtp(source: Source, keys: Keys) -> None:
    """BailingMoeV2Model, Glm4MoeModel, HYV3Model and others: their own layers for multi-token prediction are blocks too."""
    nextn(source, keys, source.number("num_nextn_predict_layers"))


def leading_dense(source: Source, keys: Keys) -> None:
    """Writes how many layers of the list come before the first that is not dense."""
    types = source.words("mlp_layer_types")
    if types is not None:
        keys["leading_dense_block_count"] = next((layer for layer, each in enumerate(types) if each != "dense"), len(types))


def indexer_types(source: Source, keys: Keys) -> None:
    """A list of the layers that have an indexer of their own."""
    if types := source.words("indexer_types"):
        keys["attention.indexer.types"] = [each == "full" for each in types]


experts_as_wide: Final = copied({"expert_feed_forward_length": "intermediate_size"})
"""GptOssModel, MiniMaxM2Model: the one width is that of experts."""
shared_expert: Final = copied({"expert_shared_feed_forward_length": "shared_expert_intermediate_size"})
shared_mlp: Final = copied({"expert_shared_feed_forward_length": "shared_intermediate_size"})
rotary: Final = copied({"rope.dimension_count": "qk_rope_head_dim"})
equal_keys: Final = needed({"attention.head_count_kv": "num_key_value_heads"})
"""Layers with a state have the same heads as the others."""
any_length: Final = fixed({"context_length": _MILLION})


def scalar_heads(source: Source, keys: Keys) -> None:
    """KimiLinearModel, KimiK3Model, JambaModel: layers with a state have query heads all the same, but 0 key/value heads."""
    keys["attention.head_count"] = source.wanted("num_attention_heads")
    keys.setdefault("attention.head_count_kv", 0)


def small_thinker(source: Source, keys: Keys) -> None:
    """SmallThinkerModel: experts under names of their own, and a window where any layer slides."""
    keys |= given(source, {"expert_count": "moe_num_primary_experts", "expert_used_count": "moe_num_active_primary_experts"})
    keys |= given(source, dict.fromkeys(("expert_feed_forward_length", "feed_forward_length"), "moe_ffn_hidden_size"))
    if any(source.config.integers("sliding_window_layout") or ()):
        keys |= window_keys(source, listed=False)


# Latent attention, indexers and compressed caches.


def latent(source: Source, keys: Keys) -> None:
    """DeepseekV2Model."""
    if "leading_dense_block_count" not in keys:
        keys["leading_dense_block_count"] = 0 if source.number("n_routed_experts") is not None else source.layers
    keys.setdefault("expert_feed_forward_length", keys.get("feed_forward_length"))


def expanded_latent(source: Source, keys: Keys) -> None:
    """MiniCPM3Model: the latent is multiplied out, with a key and a value for every head."""
    if latent := source.first(LatentAttention):
        length = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        heads = source.wanted("num_key_value_heads", "num_attention_heads")
        keys |= {"attention.key_length": length, "attention.head_count_kv": heads}
        without("attention.value_length", "attention.key_length_mla", "attention.value_length_mla")(source, keys)


def deepseek4(source: Source, keys: Keys) -> None:
    """DeepseekV4Model: the layers for multi-token prediction go into a file of their own."""
    keys |= window_keys(source, listed=False, needed=True)
    own = [(each and each.compress_ratio) or 0 for each in source.kinds(CompressedAttention)]
    keys["attention.compress_ratios"] = source.config.integers("compress_ratios") or own
    rotary(source, keys)
    if "intermediate_size" not in source.config.raw:
        keys.pop("feed_forward_length", None)


def dots3(source: Source, keys: Keys) -> None:
    """Dots3NoteModel: layers that slide have latents of their own; the one layer for multi-token prediction slides."""
    latents = source.kinds(LatentAttention)
    full = next((each for each in latents if each and each.window is None), None)
    sliding = next((each for each in latents if each and each.window is not None), None)
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
    keys["attention.head_count"] = [*source.query_heads, sliding.num_attention_heads]


def hy4(source: Source, keys: Keys) -> None:
    """HYV4Model."""
    if source.first(SparseIndexer):
        keys["attention.indexer.types"] = [each is not None for each in source.kinds(SparseIndexer)]


def minimax_m3(source: Source, keys: Keys) -> None:
    """MiniMaxM3Model: dense layers come first; the indexer of the others has keys and values."""
    frequency = source.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        first = next((layer for layer, each in enumerate(frequency) if each != 0), len(frequency))
    else:
        first = next((layer for layer, each in enumerate(source.kinds(SparseIndexer)) if each), 0)
    keys["leading_dense_block_count"] = first
    names = {"attention.indexer.top_k": "sparse_topk_blocks", "attention.indexer.block_size": "sparse_block_size"}
    keys |= given(source.section("sparse_attention_config"), names)


def glm5_next(source: Source, keys: Keys) -> None:
    """Glm5NextModel."""
    behind = keys["block_count"] - source.layers
    keys["attention.head_count_kv"] = [1 if each else 0 for each in source.heads] + [1] * behind
    keys |= given(source, {"attention.indexer.kpool": "index_kpool"})


# Widths, lengths and counts of experts.


def four_times(source: Source, keys: Keys) -> None:
    """BloomModel, GPT2Model, StarCoderModel, CodeShellModel, MPTModel, Phi2Model: the width is not read."""
    keys["feed_forward_length"] = 4 * source.width


def as_long_as_wide(source: Source, keys: Keys) -> None:
    """BloomModel, ChatGLMModel: the length is in no newer config, and the width stands in for it."""
    keys["context_length"] = source.number("seq_length") or source.width


def chatglm(source: Source, keys: Keys) -> None:
    """ChatGLMModel."""
    keys["feed_forward_length"] = source.number("ffn_hidden_size", "intermediate_size") or 4 * source.width


def refact(source: Source, keys: Keys) -> None:
    """RefactModel."""
    keys["feed_forward_length"] = -(-int(2 * 4 * source.width / 3) // 256) * 256


def openelm(source: Source, keys: Keys) -> None:
    """OpenELMModel: each layer has its own width."""
    factors, multiple = source.config.sequence("ffn_multipliers"), source.number("ffn_dim_divisor", minimum=1) or 256
    if factors and all(isinstance(each, (int, float)) and abs(each) <= _MILLION for each in factors):
        keys["feed_forward_length"] = [divisible(each * source.width, multiple) for each in factors]


def deci(source: Source, keys: Keys) -> None:
    """DeciModel: any layer may lack its attention, its feed-forward part, or both."""

    def inside(block: Any, key: str) -> Mapping[str, Any]:
        inner = block.get(key) if isinstance(block, Mapping) else None
        return inner if isinstance(inner, Mapping) else {}

    def width(factor: Any) -> int:
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor <= _MILLION:
            return 0
        return -(-int(2 * factor * source.width / 3) // 256) * 256

    blocks = source.config.sequence("block_configs", length=source.layers)
    keys["attention.head_count_kv"] = source.key_heads
    if not blocks:
        return
    # A layer whose attention is one linear map keeps its heads.
    linear = [inside(block, "attention").get("replace_with_linear") is True for block in blocks]
    keys["attention.head_count"] = [
        own or (source.wanted("num_attention_heads") if is_linear else 0)
        for own, is_linear in zip(source.query_heads, linear, strict=True)
    ]
    keys["feed_forward_length"] = [width(inside(block, "ffn").get("ffn_mult")) for block in blocks]


def t5(source: Source, keys: Keys) -> None:
    """T5Model: the blocks are those of the encoder, and the decoder's are counted apart."""
    keys |= {
        "block_count": source.wanted("num_layers", "num_hidden_layers"),
        "context_length": source.number("n_positions") or 512,
    }
    names = {"decoder_block_count": "num_decoder_layers", "feed_forward_length": "d_ff", "attention.head_count": "num_heads"}
    keys |= given(source, {**names, "attention.key_length": "d_kv", "attention.value_length": "d_kv"})
    keys.pop("attention.head_count_kv", None)


def bailing2(source: Source, keys: Keys) -> None:
    """BailingMoeV2Model."""
    width, one = source.number("moe_shared_expert_intermediate_size"), source.number("moe_intermediate_size")
    if width is None and one is not None:
        width = one * (source.number("num_shared_experts") or 0)
    if width is not None:
        keys["expert_shared_feed_forward_length"] = width


def ernie_moe(source: Source, keys: Keys) -> None:
    """Ernie4_5_MoeModel: the width of shared experts divides by the key/value heads, as written there."""
    keys |= given(source, {"leading_dense_block_count": "moe_layer_start_index"})
    width, heads = source.number("intermediate_size"), source.number("num_key_value_heads")
    if source.number("moe_num_shared_experts") and width is not None and heads:
        keys["expert_shared_feed_forward_length"] = width // heads


def hunyuan_moe(source: Source, keys: Keys) -> None:
    """HunYuanMoEModel."""
    keys |= given(source, {"expert_shared_feed_forward_length": "intermediate_size"})
    value = source.get("moe_topk")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    if isinstance(first, int) and first > 0:
        keys["expert_used_count"] = first


def stretched(source: Source, keys: Keys) -> None:
    """HunYuanModel: a rotary embedding of the kind ``dynamic`` is written for 256k tokens."""
    if source.rope.get("rope_type", source.rope.get("type")) == "dynamic":
        keys["context_length"] = 256 * 1024


def hy3(source: Source, keys: Keys) -> None:
    """HYV3Model."""
    if (width := source.number("moe_intermediate_size")) is not None:
        shared = source.number("num_shared_experts")
        keys["expert_shared_feed_forward_length"] = width * (1 if shared is None else shared)
    without("leading_dense_block_count", "expert_shared_count")(source, keys)


def hrm(source: Source, keys: Keys) -> None:
    """HrmTextModel: both stacks run several times, and every time has a cache of its own."""
    per_stack = source.number("num_layers_per_stack") or source.wanted("num_hidden_layers")
    keys["block_count"] = per_stack * source.wanted("H_cycles") * (source.wanted("L_cycles") + 1)


# Recurrent states.


def interval(source: Source, keys: Keys) -> None:
    """Qwen3NextModel, Qwen4ExpTextModel: how often a layer has attention."""
    keys["full_attention_interval"] = source.number("full_attention_interval") or 4
    equal_keys(source, keys)
    keys["attention.recurrent_layers"] = [each is None for each in source.heads]


def qwen_next(source: Source, keys: Keys) -> None:
    """Qwen3NextModel: Qwen3-Next itself does not name the one layer for multi-token prediction that its files have."""
    modules = source.number("mtp_num_hidden_layers") or 1
    keys["attention.recurrent_layers"] += [False] * modules
    nextn(source, keys, modules)


def qwen4(source: Source, keys: Keys) -> None:
    """Qwen4ExpTextModel."""
    ratio = source.number("indexer_compress_ratio") or 0
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


def granite_hybrid(source: Source, keys: Keys) -> None:
    """GraniteHybridModel: without positions, any length; without states, a plain Granite."""
    keys |= given(source, {"rope.dimension_count": "attn_rotary_emb"})
    if source.first(Mamba2) and source.model.architecture != "BambaForCausalLM":
        any_length(source, keys)


def nemotron_h(source: Source, keys: Keys) -> None:
    """NemotronHModel: layers with a feed-forward part alone have its width, all others 0; one layer for multi-token prediction."""
    # The class has a default for models without experts: the file itself must name them.
    experts = "expert_count" in keys and (source.config.has("num_experts_per_tok") or "num_experts_per_tok" in source.top)
    width = source.wanted("moe_intermediate_size" if experts else "intermediate_size")
    alone = _feed_forward_layers(source, "E" if experts else "-")
    keys["attention.head_count"] = source.wanted("num_attention_heads")
    any_length(source, keys)
    if not experts:
        without("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count")(source, keys)
    else:
        keys |= given(source, {"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"})
    count = (source.number("num_nextn_predict_layers") or 0) if experts else 0
    nextn(source, keys, count)
    keys["feed_forward_length"] = [width if each else 0 for each in alone] + [width] * count
    keys["attention.head_count_kv"] = source.key_heads + [source.wanted("num_key_value_heads")] * count
    keys["rope.dimension_count"] = source.width // max(1, keys["attention.head_count"])


def _feed_forward_layers(source: Source, letter: str) -> list[bool]:
    """The layers that the converter takes for feed-forward parts: by their letter, or ``moe`` in a list of types."""
    types = source.get("hybrid_override_pattern", "layers_block_type")
    if isinstance(types, (str, list, tuple)) and len(types) == source.layers:
        return [each == (letter if isinstance(types, str) else "moe") for each in types]
    return [all(isinstance(part, NoCache) for part in layer) for layer in source.model.stack]


def plamo2(source: Source, keys: Keys) -> None:
    """Plamo2Model: layers with a state have no heads at all."""
    keys["attention.head_count"] = source.query_heads


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


# Windows: which keys name them, and which layers have them.


def gemma3(source: Source, keys: Keys) -> None:
    """Gemma3Model, Gemma3NModel, Gemma4Model: no window for a model whose every layer is full."""
    if source.get("sliding_window_pattern") != 1:
        keys |= window_keys(source, listed=False, needed=True)


def gemma3n(source: Source, keys: Keys) -> None:
    """Gemma3NModel."""
    keys["attention.shared_kv_layers"] = source.wanted("num_kv_shared_layers")
    keys["attention.sliding_window_pattern"] = _types(source, 5)
    keys["embedding_length_per_layer_input"] = source.number("hidden_size_per_layer_input") or 0


def _types(source: Source, period: int) -> list[bool]:
    """For each layer, True if it slides, where the last layers read the cache of others: by a list of types or a period."""
    return pattern(source) if source.words("layer_types") else [(layer + 1) % period != 0 for layer in range(source.layers)]


def gemma4(source: Source, keys: Keys) -> None:
    """Gemma4Model: full layers have wider heads, and may have fewer."""
    shared = source.number("num_kv_shared_layers") or 0
    slides = _types(source, 6)
    slides[-1] = False
    keys |= {"attention.shared_kv_layers": shared, "attention.sliding_window_pattern": slides}
    keys["embedding_length_per_layer_input"] = source.number("hidden_size_per_layer_input") or 0
    full, sliding = source.example(slides=False), source.example(slides=True)
    if full and sliding:
        keys["attention.head_count_kv"] = source.alike([sliding.keys if each else full.keys for each in slides])
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
    every = source.get("sliding_window_pattern")
    if "attention.sliding_window" in keys:
        keys["attention.sliding_window_pattern"] = every if isinstance(every, int) else pattern(source)


def llama4(source: Source, keys: Keys) -> None:
    """Llama4Model: a window of 0 says that no layer is chunked; the size of chunks llama.cpp knows."""
    types = source.words("layer_types")
    if types and set(types) == {"full_attention"}:
        keys["attention.sliding_window"] = 0


def mimo2(source: Source, keys: Keys) -> None:
    """MimoV2Model: the three layers for multi-token prediction slide."""
    nextn(source, keys, 3)
    if sliding := source.example(slides=True):
        keys["attention.head_count_kv"] = source.key_heads + [sliding.keys] * 3
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"], beyond=True)


def step35(source: Source, keys: Keys) -> None:
    """Step35Model: layers for multi-token prediction are full."""
    behind = keys["block_count"] - source.layers
    if full := source.example(slides=False):
        keys["attention.head_count"] = source.query_heads + [full.queries] * behind
        keys["attention.head_count_kv"] = source.key_heads + [full.keys] * behind
    keys["attention.sliding_window_pattern"] = pattern(source, keys["block_count"])
    moe = source.get("moe_layers_enum")
    first = moe.split(",")[0].strip() if isinstance(moe, str) else ""
    keys |= {"leading_dense_block_count": int(first[:9]) if first.isdecimal() and first.isascii() else 0}
    keys |= given(source, {"expert_used_count": "moe_top_k", "expert_shared_feed_forward_length": "share_expert_dim"})


def cohere2_moe(source: Source, keys: Keys) -> None:
    """Cohere2MoeModel."""
    width, shared = source.wanted("intermediate_size"), source.number("num_shared_experts")
    keys["expert_feed_forward_length"] = width
    if shared:
        keys["expert_shared_feed_forward_length"] = shared * width


def laguna(source: Source, keys: Keys) -> None:
    """LagunaModel."""
    if source.number("sliding_window"):
        keys |= window_keys(source, listed=False)
    shared_expert(source, keys)
    if heads := source.config.integers("num_attention_heads_per_layer", length=source.layers):
        keys["attention.head_count"] = heads
    sliding = source.section("rope_parameters").section("sliding_attention")
    if (share := sliding.fraction("partial_rotary_factor")) is not None:
        keys["rope.dimension_count_swa"] = int(share * keys["attention.key_length"])


def exaone_moe(source: Source, keys: Keys) -> None:
    """ExaoneMoEModel."""
    width, shared = source.number("moe_intermediate_size"), source.number("num_shared_experts")
    keys |= {} if width is None else {"expert_shared_feed_forward_length": width * (shared or 0)}
    keys["leading_dense_block_count"] = source.number("first_k_dense_replace", "first_last_k_dense_replace") or 0


def granite_swa(source: Source, keys: Keys) -> None:
    """GraniteSWAModel, GraniteMoeSWAModel."""
    keys |= {"attention.sliding_window": 128} | window_keys(source, listed=False)
    keys["attention.sliding_window_pattern"] = pattern(source)
