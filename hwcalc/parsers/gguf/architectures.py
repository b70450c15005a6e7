"""The architectures that llama.cpp knows, one row each: what its loader does with the keys of a file, and which memory it makes.

A row says what ``load_arch_hparams`` of the architecture does (src/models/*.cpp) and what ``create_memory`` (src/llama-model.cpp) and the
lists of src/llama-arch.cpp say about it, all of llama.cpp 0c1e57098 (v0.5.0). An architecture without anything special has an empty row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.formulas.frozen import frozen, replace

__all__ = ["ARCHITECTURES", "Architecture", "Latents", "Memory", "Pattern", "Recurrence", "States", "SwaType", "Window"]


class SwaType(enum.StrEnum):
    """``llama_swa_type``: how far the layers of a window look."""

    NONE = "none"
    STANDARD = "standard"
    CHUNKED = "chunked"
    SYMMETRIC = "symmetric"


class Pattern(enum.StrEnum):
    """Where the layers with a window come from."""

    PERIOD = "period"
    """``attention.sliding_window_pattern``, an array or a period; without it the period of the architecture."""
    ARRAY = "array"
    """``attention.sliding_window_pattern``, which must be an array."""
    ALL = "all"
    ATTENTION = "attention"
    """All layers that are not recurrent."""
    STREAMS = "streams"
    """All layers of a model with ``hyper_connection.count``, else an array."""


@frozen
class Window:
    """How an architecture reads its window."""

    pattern: Pattern = Pattern.PERIOD
    period: int = 0
    dense_first: bool = False
    """Whether a period begins with its full layer; otherwise it ends with it."""
    kind: SwaType = SwaType.STANDARD
    optional: bool = False
    """Whether a file without a window, or with one of 0, has full layers only."""
    default: int | None = None
    """The window of a file that names none; ``None``: it must name one, or :attr:`optional`."""
    forced: int | None = None
    """The window that takes the place of the one of the file."""
    only_layers: int | None = None
    """The number of layers that a model must have for a window."""


class Recurrence(enum.StrEnum):
    """Which layers have a recurrent state."""

    NONE = "none"
    ALL = "all"
    BESIDE = "beside"
    """Every layer has one beside its attention."""
    NO_KEYS = "no-keys"
    """The layers without key/value heads."""
    NO_KEYS_NO_FFN = "no-keys-no-ffn"
    """The layers without key/value heads and without a feed-forward part."""
    INTERVAL = "interval"
    """All but every ``full_attention_interval``-th, unless ``attention.recurrent_layers`` lists them."""


class States(enum.StrEnum):
    """Which keys give the size of a recurrent state."""

    NONE = "none"
    MAMBA1 = "mamba1"
    """``ssm.*`` without ``ssm.group_count``."""
    MAMBA2 = "mamba2"
    DELTA = "delta"
    """The keys of Mamba-2, for a gated delta net: heads of keys are groups, heads of values time-step ranks."""
    KDA = "kda"
    WKV = "wkv"
    SHORT_CONV = "short-conv"
    LIGHTNING = "lightning"


class Latents(enum.StrEnum):
    """Whether keys and values are one latent vector (``*_mla`` keys)."""

    NONE = "none"
    OPTIONAL = "optional"
    """Older files lack the keys and keep keys and values of every head."""
    REQUIRED = "required"
    NEVER = "never"
    """The model has latents, but llama.cpp always keeps keys and values of every head."""


class Memory(enum.StrEnum):
    """Which memory ``create_memory`` makes."""

    NONE = "none"
    ATTENTION = "attention"
    """One cache, or two with a window."""
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    DSA = "dsa"
    DSA_OR_ATTENTION = "dsa-or-attention"
    """With an indexer as DSA, for all blocks of the file."""
    DSA_WINDOW = "dsa-window"
    MSA = "msa"
    HYBRID_INDEXER = "hybrid-indexer"
    COMPRESSED = "compressed"
    SHARED = "shared"
    """All layers read the cache of another model."""


@frozen
class Architecture:
    """One architecture. Every field has the value of an ordinary transformer as its default."""

    memory: Memory = Memory.ATTENTION
    window: Window | None = None
    ignores_window: bool = False
    """Whether the layers of the model have a window that llama.cpp does not use."""
    window_without_query: bool = False
    """Whether the model's own window counts the tokens before the newest one, so that its layers keep one more."""
    recurrence: Recurrence = Recurrence.NONE
    interval: int = 4
    states: States = States.NONE
    latents: Latents = Latents.NONE
    indexer: bool = False
    cached_layers: int | None = None
    """How many of the first layers have a cache of their own, where the architecture fixes it."""
    shared_layers: bool = False
    """Whether ``attention.shared_kv_layers`` counts last layers without a cache of their own."""
    rollback: bool = False
    """Whether recurrent states can be kept several times (``n_rs_seq``)."""
    causal: bool = True
    drafts: bool = False
    """Whether llama.cpp runs the layers for multi-token prediction (``LLM_GRAPH_TYPE_DECODER_MTP``)."""
    dense_mtp: bool = False
    """Whether a context for multi-token prediction is plain attention though the model is not."""
    trunk_only: bool = False
    """Whether a hybrid's attention cache leaves out the layers for multi-token prediction."""
    rotates_whole_heads: bool = False
    """Whether the loader refuses a rotary dimension that differs from the width of a key."""
    keeps_flash_attention_off: bool = False
    token_shifts: int = 2
    encoder_decoder: bool = False
    encoder: bool = False
    """Whether the model reads a text and generates none."""
    runs: bool = True
    """Whether llama.cpp can load it; it only knows the name of the others."""


_LISTED: Final = Window(pattern=Pattern.ARRAY)
_BERT: Final = Architecture(memory=Memory.NONE, encoder=True)
_DIFFUSION: Final = Architecture(memory=Memory.NONE, causal=False)
_MAMBA: Final = Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, states=States.MAMBA1)
_RWKV: Final = Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, states=States.WKV)
_HYBRID_MAMBA: Final = Architecture(memory=Memory.HYBRID, recurrence=Recurrence.NO_KEYS, states=States.MAMBA2)
_DELTA: Final = Architecture(
    memory=Memory.HYBRID, recurrence=Recurrence.INTERVAL, states=States.DELTA, drafts=True, dense_mtp=True, trunk_only=True
)
_NEMOTRON: Final = Architecture(memory=Memory.HYBRID, recurrence=Recurrence.NO_KEYS_NO_FFN, states=States.MAMBA2, rollback=True)
_KDA: Final = Architecture(memory=Memory.HYBRID, recurrence=Recurrence.NO_KEYS, states=States.KDA, latents=Latents.REQUIRED)
_WHOLE: Final = Architecture(rotates_whole_heads=True)

_ORDINARY: Final = (
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chameleon", "chatglm", "codeshell",
    "cogvlm", "command-r", "dbrx", "deepseek", "deepseek2-ocr", "dots1", "ernie4_5", "ernie4_5-moe", "eagle3", "exaone",
    "gemma", "glm4", "gpt2", "gptneox", "granite", "granitemoe", "graniteswitch", "grovemoe", "hrm_text",
    "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "internlm2", "jais", "jais2", "maincoder", "minicpm", "minimax-m2",
    "mistral3", "mpt", "nanbeige", "nemotron", "olmo", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2",
    "plamo", "pockettts", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3tts", "qwen3vl",
    "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2", "talkie", "xverse",
)  # fmt: skip
"""Architectures whose every block has keys and values for every token."""

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        **{name: Architecture() for name in _ORDINARY},
        # A window in these files is one of the model, but llama.cpp keeps all tokens.
        "llama": Architecture(rotates_whole_heads=True, ignores_window=True),
        **dict.fromkeys(("phi3", "phimoe"), Architecture(ignores_window=True)),
        **dict.fromkeys(("deci", "falcon", "llama-embed"), _WHOLE),
        "gptj": Architecture(runs=False),
        **dict.fromkeys(("glm4moe", "hy_v3"), Architecture(drafts=True)),
        "grok": Architecture(keeps_flash_attention_off=True),
        # Windows, with the period of the architecture.
        "afmoe": Architecture(window=Window(period=4, optional=True)),
        "cohere2": Architecture(window=Window(period=4)),
        "cohere2moe": Architecture(drafts=True, window=Window(period=4, dense_first=True)),
        "exaone4": Architecture(window=Window(period=4, default=4096, only_layers=64)),
        "exaone-moe": Architecture(window=Window(period=4)),
        "gemma2": Architecture(window=Window(period=2, default=4096)),
        "gemma3": Architecture(window=Window(period=6, optional=True)),
        "gemma3n": Architecture(window=Window(period=5), cached_layers=20),
        "gpt-oss": Architecture(window=Window(period=2)),
        "laguna": Architecture(window=Window(period=4, dense_first=True, optional=True)),
        "llama4": Architecture(window=Window(period=4, kind=SwaType.CHUNKED, forced=8192, default=8192)),
        "mellum": Architecture(window=Window(period=4, optional=True)),
        "muse-glimmer": Architecture(window=Window(period=4)),
        "olmo2": Architecture(window=Window(period=4, optional=True)),
        "plamo3": Architecture(window=Window(period=8, optional=True)),
        "smallthinker": Architecture(window=Window(period=4, dense_first=True, optional=True, forced=4096)),
        # Windows, with a list of layers.
        "dflash": Architecture(window=Window(pattern=Pattern.STREAMS, optional=True)),
        "gemma4": Architecture(window=_LISTED, shared_layers=True),
        "gemma4-assistant": Architecture(window=_LISTED, memory=Memory.SHARED),
        "granite_swa": Architecture(window=_LISTED),
        "maple": Architecture(window=_LISTED),
        "mimo2": Architecture(drafts=True, window=_LISTED, window_without_query=True),
        "spark2_5": Architecture(window=_LISTED),
        "step35": Architecture(drafts=True, window=_LISTED),
        # No cache: encoders, and models that generate a whole text at once.
        **dict.fromkeys(
            ("bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "neo-bert", "nomic-bert", "nomic-bert-moe", "wavtokenizer-dec"),
            _BERT,
        ),
        "modern-bert": Architecture(
            memory=Memory.NONE, encoder=True, window=Window(period=3, dense_first=True, optional=True, kind=SwaType.SYMMETRIC)
        ),
        "gemma-embedding": Architecture(
            memory=Memory.NONE, encoder=True, window=Window(period=6, kind=SwaType.SYMMETRIC), causal=False
        ),
        **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
        "t5": Architecture(encoder_decoder=True),
        "t5encoder": Architecture(encoder=True),
        # Latents and indexers.
        "deepseek2": Architecture(latents=Latents.OPTIONAL, drafts=True),
        "mistral4": Architecture(latents=Latents.OPTIONAL),
        **{name: Architecture(latents=Latents.NEVER) for name in ("minicpm3", "plm")},
        **{
            name: Architecture(memory=Memory.DSA, latents=Latents.REQUIRED, indexer=True, drafts=True, dense_mtp=True)
            for name in ("deepseek32", "glm-dsa")
        },
        "hy_v4": Architecture(memory=Memory.DSA_OR_ATTENTION, latents=Latents.REQUIRED, indexer=True),
        "dots3note": Architecture(
            memory=Memory.DSA_WINDOW, latents=Latents.REQUIRED, indexer=True, window=_LISTED, dense_mtp=True
        ),
        "minimax-m3": Architecture(memory=Memory.MSA, indexer=True),
        "deepseek4": Architecture(
            memory=Memory.COMPRESSED, indexer=True, window=Window(pattern=Pattern.ALL), rollback=True, drafts=True, dense_mtp=True
        ),
        # Recurrent states.
        "mamba": _MAMBA,
        "mamba2": Architecture(memory=Memory.RECURRENT, recurrence=Recurrence.ALL, states=States.MAMBA2),
        **dict.fromkeys(("arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"), _RWKV),
        "jamba": Architecture(memory=Memory.HYBRID, recurrence=Recurrence.NO_KEYS, states=States.MAMBA1),
        "falcon-h1": Architecture(memory=Memory.HYBRID, recurrence=Recurrence.BESIDE, states=States.MAMBA2),
        "granitehybrid": _HYBRID_MAMBA,
        "plamo2": _HYBRID_MAMBA,
        "nemotron_h": _NEMOTRON,
        "lfm2": Architecture(
            memory=Memory.HYBRID,
            recurrence=Recurrence.NO_KEYS,
            states=States.SHORT_CONV,
            rollback=True,
            window=Window(pattern=Pattern.ATTENTION, optional=True),
        ),
        "lfm2moe": Architecture(memory=Memory.HYBRID, recurrence=Recurrence.NO_KEYS, states=States.SHORT_CONV, rollback=True),
        "nemotron_h_moe": replace(_NEMOTRON, drafts=True, dense_mtp=True),
        "minimax-01": Architecture(
            memory=Memory.HYBRID, recurrence=Recurrence.INTERVAL, interval=8, states=States.LIGHTNING, trunk_only=True
        ),
        "qwen3next": _DELTA,
        **{name: replace(_DELTA, rollback=True) for name in ("qwen35", "qwen35moe")},
        "qwen4exp": replace(_DELTA, memory=Memory.HYBRID_INDEXER, indexer=True, rollback=True, drafts=False, dense_mtp=False),
        "kimi-linear": _KDA,
        "kimi-k3": replace(_KDA, rollback=True),
        "bailingmoe3": replace(_KDA, rollback=True, drafts=True, dense_mtp=True),
        "glm5-next": replace(_KDA, memory=Memory.HYBRID_INDEXER, indexer=True, rollback=True, dense_mtp=True, trunk_only=True),
    }
)
