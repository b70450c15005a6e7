"""What SGLang is started with: its options by its own names, what it asks of the class of a model, and every default filled in.

A server first settles its arguments by model and accelerator (``arg_groups/``), and then sizes its pools by them. Without an accelerator
nothing is settled: a bare byte budget is divided as the arguments say, and kernels are those of an H100.

Source: SGLang 0.5.23, ``arg_groups/model_override_base.py`` (``get_default_attn_backend``), ``arg_groups/model_overrides/`` and the page
constraints of ``arg_groups/overrides.py``; ``configs/model_config.py`` and ``models/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.models import model_classes
from hwcalc.engines.options import EngineOption, choice_option, integer_option, is_auto, is_on, number_option
from hwcalc.engines.sglang.rules import Rules, planned_rules
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas import (
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConvolution,
    SparseIndexer,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import planned_version, since
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup
    from hwcalc.model import ModelSpec

ATTENTION_BACKENDS: Final = (
    "auto", "fa3", "fa4", "flashinfer", "flashmla", "triton", "torch_native", "flex_attention", "trtllm_mha", "trtllm_mla", "cutedsl_mla",
)  # fmt: skip
ARGUMENTS: Final = (
    "page_size", "mem_fraction_static", "chunked_prefill_size", "max_running_requests", "max_total_tokens", "swa_full_tokens_ratio",
    "mamba_full_memory_ratio", "max_mamba_cache_size", "mamba_ssm_dtype",
)  # fmt: skip
"""Options that have the name of a server argument, whose value stands in the log of a start."""
SWITCHES: Final = ("disable_radix_cache", "disable_overlap_schedule", "enable_dp_attention")
"""The same, without a value."""
MAX_LENGTH: Final = "context_length"
"""The engine option for the longest sequence that a server allows, where that is not the model's own."""
LONGER: Final = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
"""What makes SGLang accept a longer ``--context-length`` than the model's own (``configs/model_config.py`` _derive_context_length)."""

STRATEGIES: Final = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
DSA_BACKENDS: Final = (
    "auto", "flashmla_sparse", "flashmla_kv", "flashmla_auto", "flashinfer_sparse_mla", "fa3", "trtllm", "tilelang",
)  # fmt: skip
_FLAG: Final = choice_option("true", "false", "on", "off")
_STATE_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
_MOST_LAYERS: Final = 64


def _above_0(maximum: int, allowed: str) -> Callable[[str, str], float]:
    """A parser of numbers above 0 and up to ``maximum``."""

    def check(name: str, value: str) -> float:
        number = number_option(maximum)(name, value)
        if not number:
            raise UsageError(f"engine option {name}={brief(value, 40)} is not in range.", hint=f"Allowed: {allowed}.")
        return number

    return check


_SHARE: Final = _above_0(1, "above 0, up to 1")
_NO_CHUNKS: Final = -1


def _chunk(name: str, value: str) -> int:
    """Tokens of a prompt in a batch; -1 takes prompts whole."""
    return _NO_CHUNKS if value.strip() == str(_NO_CHUNKS) else integer_option(1, 2**30)(name, value)


def eagle_of(name: str, value: str) -> tuple[int, int]:
    """Layers of the draft and tokens that it proposes, of ``eagle:1:4``."""
    words = value.lower().split(":")
    counts = words[1:]
    numbers = all(one.isascii() and one.isdecimal() for one in counts)
    if words[0] not in ("eagle", "mtp", "nextn") or len(counts) > 2 or not numbers:
        message = f"engine option {name}={brief(value, 40)} is not known."
        raise UsageError(message, hint="Allowed: eagle:DRAFT_LAYERS:DRAFT_TOKENS, such as eagle:1:4.")
    layers, tokens = (int(one[:9]) for one in (*counts, *("1", "4")[len(counts) :]))
    if not 1 <= layers <= _MOST_LAYERS or not 1 <= tokens <= _MOST_LAYERS:
        what = f"engine option {name}={brief(value, 40)} is out of range."
        raise UsageError(what, hint=f"Allowed: 1 to {_MOST_LAYERS} layers and tokens.")
    return layers, tokens


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            (MAX_LENGTH, "tokens of the longest sequence that the server allows", "the model's own", integer_option(1, 2**40)),
            ("page_size", "tokens in a page", "1, or what the attention backend needs", integer_option(1, 2**20)),
            ("mem_fraction_static", "share of the GPU for weights and pools", "by GPU", _SHARE),
            ("chunked_prefill_size", "tokens of a prompt in a batch, -1 for all", "by GPU: 2048 to 16384", _chunk),
            ("max_running_requests", "requests at once", "2048 to 4096, by the pool", integer_option(1, 2**30)),
            ("max_total_tokens", "most tokens of the pool", "by memory", integer_option(1, 2**50)),
            ("swa_full_tokens_ratio", "window tokens for each token", "0.8, DeepSeek-V4 0.1", _SHARE),
            ("disable_radix_cache", "keep nothing of finished requests", "false", _FLAG),
            ("disable_overlap_schedule", "wait for each batch before the next one", "false", _FLAG),
            ("mamba_full_memory_ratio", "bytes of states for each byte of attention", "0.9", _above_0(1_000, "above 0")),
            ("max_mamba_cache_size", "slots for states", "by memory", integer_option(1, 2**30)),
            ("mamba_scheduler_strategy", "how the prefix cache copies states", "auto", choice_option(*STRATEGIES)),
            ("mamba_ssm_dtype", "dtype of recurrent states", "auto", choice_option(*_STATE_DTYPES)),
            ("attention_backend", "kernel of attention", "by model and GPU", choice_option(*ATTENTION_BACKENDS)),
            ("dsa_backend", "kernel of sparse latent attention", "auto", choice_option(*DSA_BACKENDS)),
            ("enable_dp_attention", "replicas divide attention alone", "false", _FLAG),
            ("speculative", "eagle:DRAFT_LAYERS:DRAFT_TOKENS", "none", eagle_of),
        )
    }
)

_LENGTHS: Final = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys of the longest sequence; the first that the text part has counts (``CONTEXT_LENGTH_KEYS``)."""
_NO_LENGTH: Final = 2048
SMALL_GPU_GIB: Final = 35
"""GiB below which an accelerator has smaller batches than others."""
_CLASS_LENGTHS: Final = {"step3p5": 128_000, "step3p7": 128_000}
"""``max_seq_len`` of classes of SGLang's own, whatever ``max_position_embeddings`` says (``Step3p5Config``)."""
_TEXT_ONLY_READ: Final = frozenset({"step3p7"})
"""Model types whose class reads the text part alone, and has defaults where there is none."""
_STRETCHED: Final = frozenset({"linear", "dynamic"})
"""Kinds of rotary embeddings whose factor counts; those of the others are already part of the length."""


def words_of(model: ModelSpec, rules: Rules) -> Mapping[str, str]:
    """The words of the model's class in ``profiles/engines/sglang/classes.yaml`` that hold in a release."""
    words, planned = model_classes("sglang").row(model).words, planned_version(rules.version)
    return {word: value for word, value in words.items() if not value or since(value) <= planned}


def context_tokens(model: ModelSpec) -> int:
    """The longest sequence as SGLang reads it (``get_context_length``); requests at once follow from it."""
    text, top = model.config.get("text_config"), model.config.get("model_type")
    own: Mapping[str, Any] = text if isinstance(text, Mapping) else {} if str(top) in _TEXT_ONLY_READ else model.config
    defaults = {"max_seq_len": _CLASS_LENGTHS.get(str(top)), "max_position_embeddings": model.max_position_embeddings}
    lengths = {**defaults, **own}
    longest = next((length for key in _LENGTHS if isinstance(length := lengths.get(key), int) and length > 0), _NO_LENGTH)
    scalings = model.facts.rope_scalings
    # A factor for one kind of layer (Gemma 3) is none of the model.
    factor = scalings[0].factor if len(scalings) == 1 and "gemma3" not in model.model_type else None
    return int(longest * factor) if factor and scalings[0].kind in _STRETCHED and not scalings[0].original_tokens else longest


def is_compressed(model: ModelSpec) -> bool:
    """DeepSeek-V4: a window, and one entry for every group of tokens."""
    return any(isinstance(group.kind, CompressedAttention) for group in model.stack.groups)


def is_sparse_latent(model: ModelSpec) -> bool:
    """DeepSeek-V3.2 and its kin: latents with an indexer (``is_deepseek_dsa``)."""
    kinds = {type(group.kind) for group in model.stack.groups}
    return kinds >= {LatentAttention, SparseIndexer}


def shows_images(model: ModelSpec, rules: Rules) -> bool:
    """True if SGLang loads the towers of a model, so that it reserves memory for images (``enable_multimodal``)."""
    parts = model.facts.part_types
    return bool(parts.keys() & {"vision", "audio"}) and "text_alone" not in words_of(model, rules)


FOUR_BITS: Final = ("nvfp4", "fp4_mx_block16", "fp4_e2m1")
_SPELLINGS: Final = {"bfloat16": "bf16", "fp8": "fp8_e4m3"}
OLD_SPELLINGS: Final = {"fp4_e2m1": "fp4_mx_block16"}
"""Words of releases before 0.5.16, whose cells have the same bytes, with those that came in their place."""
_STATE_NAMES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SWA_RATIO: Final = 0.8
_DSV4_RATIO: Final = 0.1
_DSV4_REQUESTS: Final = 256
_EAGLE_REQUESTS: Final = 48
_MAMBA_RATIO: Final = 0.9
_CHUNKS: Final = ((20, 2048), (SMALL_GPU_GIB, 0), (60, 4096), (160, 8192))
"""GiB that the accelerator has less than, and its tokens of a prompt in a batch; 16,384 above. 0: those of the release."""
_LARGEST_CHUNK: Final = 16_384
_USUAL_CHUNK: Final = 8192
_MOST_PREFILL: Final = 16_384
"""The default of ``max_prefill_tokens``."""
BLACKWELL: Final = 10
"""Compute capability of B200 and its kin, for which kernels of TensorRT-LLM are built; consumer GPUs of that generation have 12."""
_CONSUMER: Final = 12
HOPPER: Final = 9
_DEEPSEEK: Final = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM"),
        *("PixtralForConditionalGeneration", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM", "LongcatFlashForCausalLM"),
        "KimiK3ForConditionalGeneration",
    }
)
"""Classes whose latents are read by TensorRT-LLM's kernel on Blackwell (``_deepseek_family_overrides``, ``kimi_k3.py``)."""
_ON_FLASHINFER: Final = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "GraniteMoeHybridForCausalLM"})
_ON_TRITON: Final = frozenset(
    {
        *("FalconH1ForCausalLM", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration", "DiffusionGemmaForBlockDiffusion"),
        *("MiniCPMV4_6ForConditionalGeneration", "MiniCPMV4_7ForConditionalGeneration", "EmbeddingGemma2Model"),
    }
)
_ON_TRITON_IF_CACHED: Final = frozenset(
    {
        *("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"),
        *("InternS2PreviewForConditionalGeneration", "InternS2MobiusForConditionalGeneration"),
    }
)
"""Classes that keep pages of one token on Blackwell with a prefix cache, unless they draft or their strategy was named."""
_ON_FA4: Final = frozenset(
    {"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}
)
_NEMOTRON: Final = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Omni_Reasoning_V3")
_ON_TRTLLM: Final = frozenset(
    {
        *("GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
        *("Llama4ForConditionalGeneration", "Llama4ForCausalLM", "Olmo2ForCausalLM", "BeamForCausalLM", "Exaone4ForCausalLM"),
        *("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", *_NEMOTRON),
    }
)
_SMALL_PAGES: Final = (32, 64)
_TRTLLM_PAGES: Final = (16, 32, 64, 128)
_USUAL_PAGE: Final = 64
_FA4_PAGE: Final = 128
_DSV4_PAGE: Final = 256
_MINIMAX_PAGE: Final = 128


STATE_KINDS: Final = (GatedDeltaNet, Mamba2, Mamba1, KimiDeltaAttention, LightningAttention, ShortConvolution)
"""Kinds of layers with a recurrent state."""


class SglangSettings(Record):
    """The settings by which pools are sized. ``requests`` is ``None`` where SGLang takes as many as it thinks right.

    ``swa_ratio`` is ``None`` where window tokens follow from the number of requests. ``backend`` decodes; ``model_backend`` is that of the
    model whatever the format of the cache. ``unpacks`` says that prompts in four bits are first
    made fp8. ``splits`` says that windows have a pool of their own.
    """

    rules: Rules
    splits: bool
    kv_dtype: str
    element_bytes: int
    backend: str
    model_backend: str
    unpacks: bool
    major: int
    page_size: int
    chunk: int
    requests: int | None
    total_tokens: int | None
    swa_ratio: float | None
    radix: bool
    overlap: bool
    mamba_ratio: float
    mamba_slots: int | None
    strategy: str
    state_dtype: str | None
    dsa_backend: str
    draft_layers: int
    draft_tokens: int
    tp: int
    pp: int
    dp: int
    context: int
    fraction: float | None

    @property
    def own_requests(self) -> int | None:
        """Requests of one replica, as the user limits them."""
        return None if self.requests is None else max(int(self.rules.least_one_request), self.requests // self.dp)

    @property
    def halves_tokens(self) -> bool:
        """True if no more requests run than half the tokens of the pool, at two tokens each."""
        return self.own_requests is None or self.rules.named_limit == "tokens"

    @property
    def raw_latents(self) -> bool:
        """True if sparse latents in fp8 are counted without scales, as some kernels read them."""
        raw = self.dsa_backend == "trtllm" or not self.rules.counts_latent_scales
        return raw or (self.rules.raw_tilelang and self.dsa_backend == "tilelang")

    @property
    def drafts(self) -> bool:
        """True if a draft proposes tokens."""
        return self.draft_layers > 0


def read_settings(model: ModelSpec, setup: Setup) -> SglangSettings:
    """The settings of a setup. Raises the error of SGLang for a KV dtype that it does not take."""
    options, major, rules = setup.options, compute_capability(setup.hardware.gpu) // 10, planned_rules(setup)
    words = words_of(model, rules)
    kv_dtype = _kv_dtype(model, setup.dtype, major, rules)
    settled = setup.hardware.gpu is not None
    radix = not is_on(options.get("disable_radix_cache")) and not (settled and model.architecture in rules.without_prefix_cache)
    states, name = any(isinstance(group.kind, STATE_KINDS) for group in model.stack.groups), model.architecture or ""
    overlap, stages = not is_on(options.get("disable_overlap_schedule")), setup.parallel.pp
    page, named_strategy = _option(options, "page_size"), options.get("mamba_scheduler_strategy", "auto")
    layers, tokens = _option(options, "speculative") or (0, 0)
    overlap = overlap and (not layers or rules.drafts_overlap)
    named = _option(options, "max_running_requests")
    if rules.own_kernels == "cached" and layers and name.startswith(rules.drafts_drop_cache or ("-",)):
        radix = False
    replicas = setup.parallel.dp if is_on(options.get("enable_dp_attention")) else 1
    cached = radix and not layers and not named_strategy.startswith("extra_buffer")
    kernel = options.get("attention_backend", "auto")
    backend = attention_backend(
        model,
        major,
        rules=rules,
        named=kernel,
        kv_dtype=kv_dtype,
        cached=cached,
        own_kernel=rules.own_kernels == "always" or (radix and rules.own_kernels == "cached"),
        tree=layers > 0 and (page or 1) > 1 and kv_dtype != "nvfp4",
    )
    strategy = named_strategy if states and radix else "none"
    if strategy == "auto":
        # States of some classes are copied while the next batch is computed; pages that SGLang sets before it settles that allow it too.
        paged = (page or 1) > 1 or (
            backend == "trtllm_mha"
            and (model.architecture in _ON_TRITON_IF_CACHED or (layers > 0 and model.architecture in _NEMOTRON))
        )
        copies = rules.copies_by_default and settled and (overlap or paged) and "copies_states" in words
        strategy = "extra_buffer" if copies else "no_buffer"
    # Four bits are decoded by one kernel; prompts are unpacked first where it is not that of the model, too.
    decoded = kv_dtype == "nvfp4" and rules.fp4_by_method and is_blackwell(major) and backend not in ("dsa", "dsv4")
    own_backend = "trtllm_mha" if decoded else backend
    if named is None:
        # States of drafts cannot be counted without a number.
        usual = _EAGLE_REQUESTS if layers > 0 and (settled or states) else None
        named = _DSV4_REQUESTS if settled and is_compressed(model) else usual
    # Before states were copied by default, the prefix cache of states had pages of one token, which this kernel does not read.
    alone = not rules.copies_by_default and settled and strategy == "no_buffer" and "caches_states" in words
    alone = alone and (rules.own_kernels != "never" or name in _ON_TRITON_IF_CACHED)
    if alone and (name.startswith(rules.drafts_drop_cache or ("-",)) if layers else own_backend == "trtllm_mha"):
        radix, strategy, alone = False, "none", False
    ratio = _option(options, "swa_full_tokens_ratio")
    unsplit = name == "GptOssForCausalLM" and {own_backend, "drafts" if layers else ""} & {*rules.gpt_oss_unsplit}
    return SglangSettings(
        rules=rules,
        splits=("splits_windows" in words and not unsplit) or is_compressed(model),
        kv_dtype=kv_dtype,
        element_bytes=2 if kv_dtype in ("bf16", "fp16") else 1,
        backend=own_backend,
        model_backend=backend,
        unpacks=major != BLACKWELL or backend == "flashinfer",
        major=major,
        page_size=1
        if alone and rules.single_token_pages
        else page_size(
            model, major, own_backend, page, words=words, settled=settled, chosen=is_auto(kernel) and rules.kernel_sets_page
        ),
        # Replicas that divide attention alone divide the batch of a pass, too (``handle_data_parallelism``).
        chunk=prompt_tokens(setup, rules) // replicas,
        requests=named,
        total_tokens=_option(options, "max_total_tokens"),
        # Windows of whole prompts have no bound by the number of requests.
        swa_ratio=_swa_ratio(
            model,
            ratio,
            by_request=named is not None and cuts_prompts(setup) and (rules.windows_by_requests or is_compressed(model)),
            radix=radix,
            capped=rules.compressed_window_cap and not settled,
        ),
        radix=radix,
        # Stages of a pipeline wait for each batch, too (``_pipeline_parallel_overlap_disable``).
        overlap=overlap and strategy != "no_buffer" and (stages == 1 or not settled),
        mamba_ratio=_option(options, "mamba_full_memory_ratio") or _MAMBA_RATIO,
        mamba_slots=_option(options, "max_mamba_cache_size") if rules.named_state_slots or not radix else None,
        strategy=strategy,
        state_dtype=_STATE_NAMES.get(options.get("mamba_ssm_dtype", "auto"), None if rules.config_state_dtype else "fp32"),
        dsa_backend=_dsa_backend(options.get("dsa_backend", "auto"), kv_dtype, major, words),
        draft_layers=layers,
        draft_tokens=tokens,
        tp=setup.parallel.tp,
        pp=stages,
        dp=replicas,
        context=_option(options, MAX_LENGTH) or context_tokens(model),
        fraction=_option(options, "mem_fraction_static"),
    )


def _option(options: Mapping[str, str], name: str) -> Any:
    """The value of an option, or nothing."""
    return OPTIONS[name].check(name, options[name]) if name in options else None


def _kv_dtype(model: ModelSpec, requested: str | None, major: int, rules: Rules) -> str:
    """The KV dtype by its short name. Raises :class:`~hwcalc.errors.UnknownNameError` for one that SGLang does not take."""
    if is_auto(requested):
        # The files may ask for a cache in fp8 (``kv_cache_quant_algo``).
        scheme = model.quantization or {}
        sections = [section for section in (scheme, scheme.get("quantization")) if isinstance(section, Mapping)]
        declared = "FP8" in (str(section.get("kv_cache_quant_algo")).upper() for section in sections)
        if is_compressed(model) or declared or (is_sparse_latent(model) and major >= BLACKWELL):
            return "fp8_e4m3"
        # The dtype of the text part, of which float32 and none at all are float16, and bfloat16 for Gemma (``_get_and_verify_dtype``).
        text = model.config.get("text_config")
        config = text if isinstance(text, Mapping) else model.config
        named = str(config.get("dtype") or config.get("torch_dtype") or model.config.get("dtype") or "").removeprefix("torch.")
        if named in ("bfloat16", "float16"):
            return "bf16" if named == "bfloat16" else "fp16"
        if not config:
            return "fp16" if model.dtype in ("fp16", "fp32") else "bf16"
        gemma = str(config.get("model_type", "")).startswith("gemma")
        return "bf16" if gemma or scheme.get("quant_method") == "mxfp4" else "fp16"
    spelled = (requested or "").strip().lower()
    if spelled not in (*rules.kv_dtypes, *_SPELLINGS):
        message = f"--dtype {shown(requested or '', 40)}: SGLang {rules.version} does not take it as --kv-cache-dtype."
        newer = next((new for new, old in OLD_SPELLINGS.items() if old == spelled), None)
        if newer in rules.kv_dtypes:
            raise UnknownNameError(message, option="dtype", hint=f"Use: --dtype {newer}")
        if spelled in OLD_SPELLINGS:
            message = f"--dtype {spelled}: SGLang {rules.version} does not take it; it is the word of releases before 0.5.16."
            raise UnknownNameError(message, option="dtype", hint=f"Use: --dtype {OLD_SPELLINGS[spelled]}")
        raise UnknownNameError(message, option="dtype", hint=f"Known: {', '.join(rules.kv_dtypes)}.")
    return _SPELLINGS.get(spelled, spelled)


def prompt_tokens(setup: Setup, rules: Rules) -> int:
    """Tokens of a prompt in a batch, of all replicas together. A batch of whole prompts has up to ``max_prefill_tokens``."""
    named: int | None = _option(setup.options, "chunked_prefill_size")
    if named is not None:
        return _MOST_PREFILL if named == _NO_CHUNKS else named
    gpu = setup.hardware.gpu
    if gpu is None or gpu.memory_total_mib is None:
        return _USUAL_CHUNK
    below = next((chunk for below, chunk in _CHUNKS if gpu.memory_total_mib < below * 1024), _LARGEST_CHUNK)
    return below or rules.small_gpu_chunk


def cuts_prompts(setup: Setup) -> bool:
    """True if long prompts are computed in several batches."""
    named: int | None = _option(setup.options, "chunked_prefill_size")
    return named != _NO_CHUNKS


def _swa_ratio(model: ModelSpec, named: float | None, *, by_request: bool, radix: bool, capped: bool) -> float | None:
    """Window tokens for each token; ``None`` where their number follows from that of the requests.

    That is so without a prefix cache, whatever the ratio, and for DeepSeek-V4 (``capped``) while nobody has set one, as a server does.
    """
    if is_compressed(model):
        return named or (None if by_request and capped else _DSV4_RATIO)
    if by_request and not radix:
        return None
    return named or _SWA_RATIO


def _dsa_backend(named: str, kv_dtype: str, major: int, words: Mapping[str, str]) -> str:
    if named != "auto":
        return named
    if kv_dtype != "fp8_e4m3" or major < BLACKWELL:
        return "flashmla_sparse"
    return "flashinfer_sparse_mla" if major > BLACKWELL and "scaled_on_consumer" in words else "trtllm"


def is_blackwell(major: int) -> bool:
    """True if an accelerator is of the generation that computes in four bits."""
    return major in (BLACKWELL, _CONSUMER)


def attention_backend(
    model: ModelSpec, major: int, *, rules: Rules, named: str, kv_dtype: str, cached: bool, own_kernel: bool, tree: bool
) -> str:
    """The backend of decoding.

    ``cached`` says that a prefix cache keeps states with a strategy that nobody named, and nothing drafts; ``own_kernel`` that hybrids have
    theirs; ``tree`` that drafts are checked
    in pages of more than one token, which kernels that are taken by default do not.
    """
    if is_compressed(model):
        return "dsv4"
    if is_sparse_latent(model):
        return "dsa"
    if named != "auto":
        return named
    latent = any(isinstance(group.kind, LatentAttention) for group in model.stack.groups)
    if (model.architecture or "").startswith("Gemma4") and major != BLACKWELL:
        return "triton"
    if major == HOPPER:
        return "flashinfer" if tree and not latent else "fa3"
    if major != BLACKWELL:
        return "triton" if latent else "flashinfer"
    if latent:
        return "trtllm_mla" if model.architecture in _DEEPSEEK else "flashinfer"
    name = model.architecture
    unnamed = (name or "").startswith(rules.unnamed_kernels or ("-",))
    if (name or "").startswith(rules.on_triton or ("-",)):
        return "triton"
    if name in _ON_FLASHINFER and not unnamed:
        return "flashinfer"
    if (name in _ON_TRITON and own_kernel) or (name in _ON_TRITON_IF_CACHED and (cached or tree)):
        return "triton"
    if "minimax_sparse" in words_of(model, rules):
        return "trtllm_mha" if kv_dtype == "fp8_e4m3" else "fa4"
    if name in _NEMOTRON and not rules.nemotron_on_trtllm and own_kernel:
        return "flashinfer"
    kinds = [group.kind for group in model.stack.groups]
    names_kernel = name in (*_ON_FA4, *_ON_TRTLLM) and not unnamed
    if tree and not names_kernel:
        return "flashinfer"
    unlike = any(isinstance(kind, AttentionKind) and kind.head_dim != kind.v_head_dim for kind in kinds)
    return "fa4" if (unlike and rules.unlike_on_fa4) or (name in _ON_FA4 and names_kernel) else "trtllm_mha"


def page_size(
    model: ModelSpec, major: int, backend: str, named: int | None, *, words: Mapping[str, str], settled: bool, chosen: bool
) -> int:
    """Tokens in a page. A server that knows its accelerator corrects what is named; without one it is taken as it is.

    ``chosen`` says that SGLang chose the backend.
    """
    if backend == "dsv4":
        return named if named is not None and not settled else _DSV4_PAGE
    if backend == "dsa":
        return named if named is not None and not settled else _USUAL_PAGE
    if named is None and "minimax_sparse" in words and (major in (HOPPER, BLACKWELL) or not settled):
        named = _MINIMAX_PAGE
    if not settled:
        return named or 1
    if chosen and backend == "triton" and major == BLACKWELL and model.architecture in _ON_TRITON_IF_CACHED:
        return 1
    if backend == "flashmla":
        return _USUAL_PAGE
    if backend in ("trtllm_mla", "cutedsl_mla"):
        return named if named in _SMALL_PAGES else _USUAL_PAGE
    if backend == "trtllm_mha":
        return named if named in _TRTLLM_PAGES else _USUAL_PAGE
    if backend == "fa4" and major == BLACKWELL:
        return _FA4_PAGE
    return named or 1
