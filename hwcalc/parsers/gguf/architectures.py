"""The architectures that llama.cpp knows, one row each: what its loader does with the keys and tensors of a file, which memory it makes,
and what its graph keeps alive.

A row says what ``load_arch_hparams``, ``load_arch_tensors`` and ``graph`` of the architecture do (src/models/*.cpp) and what
``create_memory`` (src/llama-model.cpp) and the lists of src/llama-arch.cpp say about it, all of llama.cpp 0c1e57098 (v0.5.0). An
architecture without anything special has an empty row. How to add one: ``hwcalc/parsers/README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

SwaType: TypeAlias = Literal["none", "standard", "chunked", "symmetric"]
"""``llama_swa_type``: how far the layers of a window look."""

Pattern: TypeAlias = Literal[
    # ``attention.sliding_window_pattern``, an array or a period; without it the period of the architecture.
    "period",
    # ``attention.sliding_window_pattern``, which must be an array.
    "array",
    "all",
    # All layers that are not recurrent.
    "attention",
    # All layers of a model with ``hyper_connection.count``, else an array.
    "streams",
]
"""Where the layers with a window come from."""


class Window(NamedTuple):
    """How an architecture reads its window."""

    pattern: Pattern = "period"
    period: int = 0
    dense_first: bool = False
    """True if a period begins with its full layer; otherwise it ends with it."""
    kind: SwaType = "standard"
    optional: bool = False
    """True if a file without a window, or with one of 0, has full layers only."""
    default: int | None = None
    """The window of a file that names none; ``None``: it must name one, or :attr:`optional`."""
    forced: int | None = None
    """The window that takes the place of the one of the file."""
    only_layers: int | None = None
    """The number of layers that a model must have for a window."""


Recurrence: TypeAlias = Literal[
    "none",
    "all",
    # Every layer has one beside its attention.
    "beside",
    # The layers without key/value heads.
    "no-keys",
    # The layers without key/value heads and without a feed-forward part.
    "no-keys-no-ffn",
    # All but every ``full_attention_interval``-th, unless ``attention.recurrent_layers`` lists them.
    "interval",
]
"""Which layers have a recurrent state."""

States: TypeAlias = Literal[
    "none",
    # ``ssm.*`` without ``ssm.group_count``.
    "mamba1",
    "mamba2",
    # The keys of Mamba-2, for a gated delta net: heads of keys are groups, heads of values time-step ranks.
    "delta",
    "kda",
    "wkv",
    "short-conv",
    "lightning",
]
"""Which keys give the size of a recurrent state."""

Latents: TypeAlias = Literal[
    "none",
    # Older files lack the keys and keep keys and values of every head.
    "optional",
    "required",
    # The model has latents, but llama.cpp always keeps keys and values of every head.
    "never",
]
"""Whether keys and values are one latent vector (``*_mla`` keys)."""

Memory: TypeAlias = Literal[
    "none",
    # One cache, or two with a window.
    "attention",
    "recurrent",
    "hybrid",
    "dsa",
    # With an indexer as DSA, for all blocks of the file.
    "dsa-or-attention",
    "dsa-window",
    "msa",
    "hybrid-indexer",
    "compressed",
    # All layers read the cache of another model.
    "shared",
]
"""Which memory ``create_memory`` makes."""


class Graph(NamedTuple):
    """What the graph of a pass keeps alive beside, or in place of, what that of an ordinary transformer does."""

    gated: bool = True
    """True if the feed-forward part has a gate: three tensors of its width are alive, without it one."""
    parallel: bool = False
    """True if attention and feed-forward part have the same input, which stays until both are done."""
    positions: bool = False
    """True if a vector is looked up for each position as well (``position_embd``)."""
    biased: bool = False
    """True if a bias for each pair of positions is added to the scores, which flash attention cannot."""
    reads_cache: bool = True
    """True if the graph attends to the cache, if there is one, and not to the batch alone."""
    indexer_mask: bool = True
    """True if an indexer has a mask of its own; otherwise it chooses with that of the attention."""
    weighs_inputs: bool = False
    """True if experts get inputs that are weighed already, so that each has a copy of its own."""
    stream_copies: int = 0
    """Hidden vectors of a token beside the residual stream: copies of the stream, before and after a layer."""
    time_mix_copies: int = 18
    """Hidden vectors of a token that are alive at once where the states of RWKV are updated."""
    draft_outputs: bool = False
    """True if a layer for multi-token prediction has its feed-forward part computed for the outputs alone."""


class Architecture(NamedTuple):
    """One architecture. Every field has the value of an ordinary transformer as its default."""

    memory: Memory = "attention"
    window: Window | None = None
    ignores_window: bool = False
    """True if the layers of the model have a window that llama.cpp does not use."""
    window_without_query: bool = False
    """True if the model's own window counts the tokens before the newest one, so that its layers keep one more."""
    recurrence: Recurrence = "none"
    interval: int = 4
    states: States = "none"
    latents: Latents = "none"
    indexer: bool = False
    cached_layers: int | None = None
    """How many of the first layers have a cache of their own, where the architecture fixes it."""
    shared_layers: bool = False
    """True if ``attention.shared_kv_layers`` counts last layers without a cache of their own."""
    rollback: bool = False
    """True if recurrent states can be kept several times (``n_rs_seq``)."""
    causal: bool = True
    drafts: bool = False
    """True if llama.cpp runs the layers for multi-token prediction (``LLM_GRAPH_TYPE_DECODER_MTP``)."""
    dense_mtp: bool = False
    """True if a context for multi-token prediction is plain attention though the model is not."""
    trunk_only: bool = False
    """True if a hybrid's attention cache leaves out the layers for multi-token prediction."""
    rotates_whole_heads: bool = False
    """True if the loader refuses a rotary dimension that differs from the width of a key."""
    keeps_flash_attention_off: bool = False
    token_shifts: int = 2
    encoder_decoder: bool = False
    encoder: bool = False
    """True if the model reads a text and generates none."""
    runs: bool = True
    """True if llama.cpp can load it; it only knows the name of the others."""
    width_key: str = "embedding_length"
    """The key of the width of a token's vector."""
    widths_without_heads: bool = False
    """True if the widths of keys and values are read although the first layer has no heads."""
    rotates_half: bool = False
    """True if half of the rotary dimension that the file names is rotated in its full layers."""
    ngrams: bool = False
    """True if a layer looks n-grams up, and keeps inputs of a convolution over them (``ple.*``)."""
    indexers_by_context: bool = False
    """True if the training context says which layers have an indexer, in a file that does not list them."""
    pooled_indexer: bool = False
    """True if the indexer scores pools of tokens (``attention.indexer.kpool``)."""
    recurrent_drafts: bool = False
    """True if layers for multi-token prediction may have a recurrent state."""
    loops: bool = False
    """True if the blocks may be run through several times (``num_loops``)."""
    router_block: bool = False
    """True if the file has a block more than it counts, with one head, which chooses adapters."""
    token_output: bool = True
    """True if the token table is loaded a second time as the output, in a file without an output table."""
    skips_drafts: bool = False
    """True if the layers for multi-token prediction are skipped even with ``load_mtp`` (``TENSOR_SKIP``)."""
    always_loaded: tuple[str, ...] = ()
    """How names of tensors begin that those layers have loaded without ``load_mtp`` too: calls that leave ``TENSOR_SKIP`` out."""
    output_norm: str = "output_norm"
    """The name of the norm before the output."""
    graph: Graph = Graph()


_DRAFT_TABLES: Final = ("nextn.embed_tokens", "nextn.shared_head")
_DRAFT_FFN: Final = (*_DRAFT_TABLES, "ffn_gate", "ffn_up", "ffn_down", "exp_probs_b")
_LISTED: Final = Window(pattern="array")
_NO_GATE: Final = Graph(gated=False)
_UNGATED: Final = Architecture(graph=_NO_GATE)
_BERT: Final = Architecture(memory="none", encoder=True, token_output=False)
_DIFFUSION: Final = Architecture(memory="none", causal=False)
_MAMBA: Final = Architecture(memory="recurrent", recurrence="all", states="mamba1")
_RWKV: Final = Architecture(memory="recurrent", recurrence="all", states="wkv")
_DSA: Final = Architecture(memory="dsa", latents="required", indexer=True, drafts=True, dense_mtp=True)
_HYBRID_MAMBA: Final = Architecture(memory="hybrid", recurrence="no-keys", states="mamba2")
_DELTA: Final = Architecture(memory="hybrid", recurrence="interval", states="delta", drafts=True, dense_mtp=True, trunk_only=True)
_NEMOTRON: Final = Architecture(memory="hybrid", recurrence="no-keys-no-ffn", states="mamba2", rollback=True, graph=_NO_GATE)
_LFM2: Final = Architecture(
    memory="hybrid", recurrence="no-keys", states="short-conv", rollback=True, output_norm="token_embd_norm"
)
_KDA: Final = Architecture(memory="hybrid", recurrence="no-keys", states="kda", latents="required")
_WHOLE: Final = Architecture(rotates_whole_heads=True)

_ORDINARY: Final = (
    "arctic", "baichuan", "bailingmoe", "bitnet", "chameleon", "chatglm", "cogvlm", "dbrx", "deepseek", "deepseek2-ocr", "dots1",
    "ernie4_5", "ernie4_5-moe", "eagle3", "exaone", "gemma", "granite", "granitemoe", "grovemoe", "hrm_text", "hunyuan-dense",
    "hunyuan-moe", "hunyuan_vl", "internlm2", "jais", "maincoder", "minicpm", "minimax-m2", "mistral3", "olmo", "olmoe",
    "openelm", "orion", "paddleocr", "pangu-embedded", "plamo", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe",
    "qwen3tts", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "talkie", "xverse",
)  # fmt: skip
"""Architectures whose every block has keys and values for every token."""

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType({
    **dict.fromkeys(_ORDINARY, Architecture()),
    **dict.fromkeys(("apertus", "arcee", "bloom", "codeshell", "gptneox", "jais2", "nemotron", "phi2", "pockettts", "starcoder2"),
        _UNGATED),
    **dict.fromkeys(("gpt2", "mpt", "starcoder"), Architecture(graph=Graph(gated=False, positions=True))),
    "bailingmoe2": Architecture(skips_drafts=True),
    "command-r": Architecture(graph=Graph(parallel=True)),
    "glm4": Architecture(skips_drafts=True),
    "graniteswitch": Architecture(router_block=True),
    "nanbeige": Architecture(loops=True),
    # A window in these files is one of the model, but llama.cpp keeps all tokens.
    "llama": Architecture(rotates_whole_heads=True, ignores_window=True),
    **dict.fromkeys(("phi3", "phimoe"), Architecture(ignores_window=True)),
    "deci": _WHOLE,
    "falcon": _WHOLE._replace(graph=_NO_GATE),
    "llama-embed": _WHOLE._replace(graph=Graph(reads_cache=False)),
    "gptj": _UNGATED._replace(runs=False),
    "glm4moe": Architecture(drafts=True),
    "hy_v3": Architecture(drafts=True, always_loaded=_DRAFT_FFN),
    "grok": Architecture(keeps_flash_attention_off=True),
    # Windows, with the period of the architecture.
    "afmoe": Architecture(window=Window(period=4, optional=True)),
    "cohere2": Architecture(window=Window(period=4), graph=Graph(parallel=True)),
    "cohere2moe": Architecture(drafts=True, always_loaded=_DRAFT_TABLES, window=Window(period=4, dense_first=True),
        graph=Graph(parallel=True)),
    "exaone4": Architecture(window=Window(period=4, default=4096, only_layers=64), skips_drafts=True),
    "exaone-moe": Architecture(window=Window(period=4), skips_drafts=True),
    "gemma2": Architecture(window=Window(period=2, default=4096)),
    "gemma3": Architecture(window=Window(period=6, optional=True)),
    "gemma3n": Architecture(window=Window(period=5), cached_layers=20, graph=Graph(stream_copies=6)),
    "gpt-oss": Architecture(window=Window(period=2)),
    "laguna": Architecture(window=Window(period=4, dense_first=True, optional=True)),
    "llama4": Architecture(window=Window(period=4, kind="chunked", forced=8192, default=8192), graph=Graph(weighs_inputs=True)),
    "mellum": Architecture(window=Window(period=4, optional=True)),
    "muse-glimmer": Architecture(window=Window(period=4)),
    "olmo2": Architecture(window=Window(period=4, optional=True)),
    "plamo3": Architecture(window=Window(period=8, optional=True)),
    "smallthinker": Architecture(window=Window(period=4, dense_first=True, optional=True, forced=4096)),
    # Windows, with a list of layers.
    "dflash": Architecture(window=Window(pattern="streams", optional=True)),
    "gemma4": Architecture(window=_LISTED, shared_layers=True),
    "gemma4-assistant": Architecture(window=_LISTED, memory="shared"),
    "granite_swa": Architecture(window=_LISTED),
    "maple": Architecture(window=_LISTED),
    "mimo2": Architecture(drafts=True, window=_LISTED, window_without_query=True),
    "spark2_5": Architecture(window=_LISTED),
    "step35": Architecture(drafts=True, always_loaded=(*_DRAFT_FFN, "attn_q_norm", "attn_k_norm", "attn_gate"), window=_LISTED,
        rotates_half=True),
    # No cache: encoders, and models that generate a whole text at once.
    **dict.fromkeys(("eurobert", "jina-bert-v2", "neo-bert", "nomic-bert"), _BERT),
    **dict.fromkeys(("jina-bert-v3", "nomic-bert-moe"), _BERT._replace(graph=_NO_GATE)),
    "bert": _BERT._replace(graph=Graph(gated=False, positions=True)),
    "modern-bert": _BERT._replace(window=Window(period=3, dense_first=True, optional=True, kind="symmetric")),
    "wavtokenizer-dec": _BERT._replace(width_key="features_length", graph=_NO_GATE),
    "gemma-embedding": Architecture(memory="none", encoder=True, window=Window(period=6, kind="symmetric"), causal=False),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    "t5": Architecture(encoder_decoder=True, graph=Graph(biased=True)),
    "t5encoder": Architecture(encoder=True, graph=Graph(biased=True, reads_cache=False)),
    # Latents and indexers.
    "deepseek2": Architecture(latents="optional", drafts=True),
    "mistral4": Architecture(latents="optional"),
    "minicpm3": Architecture(latents="never"),
    "plm": Architecture(latents="never", graph=_NO_GATE),
    "deepseek32": _DSA,
    "glm-dsa": _DSA._replace(indexers_by_context=True),
    "hy_v4": Architecture(memory="dsa-or-attention", latents="required", indexer=True),
    "dots3note": Architecture(memory="dsa-window", latents="required", indexer=True, window=_LISTED, dense_mtp=True,
        skips_drafts=True),
    "minimax-m3": Architecture(memory="msa", indexer=True),
    "deepseek4": Architecture(memory="compressed", indexer=True, window=Window(pattern="all"), rollback=True, drafts=True,
        dense_mtp=True, graph=Graph(stream_copies=8)),
    # Recurrent states.
    "mamba": _MAMBA,
    "mamba2": Architecture(memory="recurrent", recurrence="all", states="mamba2"),
    **dict.fromkeys(("arwkv7", "rwkv7"), _RWKV),
    **dict.fromkeys(("rwkv6", "rwkv6qwen2"), _RWKV._replace(graph=Graph(time_mix_copies=13))),
    "jamba": Architecture(memory="hybrid", recurrence="no-keys", states="mamba1"),
    "falcon-h1": Architecture(memory="hybrid", recurrence="beside", states="mamba2"),
    "granitehybrid": _HYBRID_MAMBA,
    "plamo2": _HYBRID_MAMBA._replace(widths_without_heads=True),
    "nemotron_h": _NEMOTRON,
    "lfm2": _LFM2._replace(window=Window(pattern="attention", optional=True)),
    "lfm2moe": _LFM2,
    "nemotron_h_moe": _NEMOTRON._replace(drafts=True, dense_mtp=True, graph=Graph(gated=False, draft_outputs=True)),
    "minimax-01": Architecture(memory="hybrid", recurrence="interval", interval=8, states="lightning", trunk_only=True),
    "qwen3next": _DELTA._replace(graph=Graph(draft_outputs=True)),
    **{name: _DELTA._replace(rollback=True) for name in ("qwen35", "qwen35moe")},
    "qwen4exp": _DELTA._replace(memory="hybrid-indexer", indexer=True, rollback=True, drafts=False, dense_mtp=False, ngrams=True,
        graph=Graph(indexer_mask=False)),
    "kimi-linear": _KDA,
    "kimi-k3": _KDA._replace(rollback=True),
    "bailingmoe3": _KDA._replace(rollback=True, drafts=True, dense_mtp=True),
    "glm5-next": _KDA._replace(memory="hybrid-indexer", indexer=True, rollback=True, dense_mtp=True, trunk_only=True,
        pooled_indexer=True, recurrent_drafts=True),
})  # fmt: skip
