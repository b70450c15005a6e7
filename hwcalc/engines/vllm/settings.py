"""The settings of vLLM, with every default filled in: formats, block size, batch sizes, drafts, the longest sequence it accepts.

Source: vLLM 0.33, engine/arg_utils.py; for the longest sequence ``_get_and_verify_max_len`` of config.py, since 0.11 of config/model.py. A
config of the tokenizer may lower that; kvplan does not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.setup import Parallel
from hwcalc.engines.vllm import formats
from hwcalc.engines.vllm.layer_specs import (
    STATE_KINDS,
    caching_of_states,
    default_state_dtype,
    expands_latents,
    hears_state_dtype,
    sparse_kv_dtype,
)
from hwcalc.engines.vllm.rules import Rules, rules_of
from hwcalc.engines.vllm.specs import ceil_div
from hwcalc.errors import UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    LatentAttention,
    LayerKind,
    Role,
    SharedCache,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.profiles.engines import planned_version, vllm_profile
from hwcalc.text import brief
from hwcalc.units import GIB, parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu

# vLLM builds the attention of these without the cache settings, so that they ignore the KV dtype.
_IGNORE_KV_DTYPE: Final = frozenset({"FalconForCausalLM"})
_DEAF_BEFORE: Final = frozenset({"MiMoV2FlashForCausalLM"})

_BFLOAT16: Final = 80
"""The least compute capability with bf16."""
_UNSTABLE_IN_FP16: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that vLLM does not run in fp16 by itself (config/model.py, ``_FLOAT16_NOT_SUPPORTED_MODELS``)."""
_FLASHINFER: Final = 90
"""The compute capability on which vLLM runs the prefill of gated delta nets with FlashInfer, whatever the model."""


class VllmSettings(Record):
    """All settings on which the layout of the pool depends. ``kv_dtype`` is the resolved KV dtype, as vLLM spells it."""

    kv_dtype: str
    model_dtype: str
    """The dtype that the model runs in."""
    conv: str
    """The dtype of convolution states."""
    state: str
    """The dtype of recurrent states."""
    capability: int
    """Compute capability of the GPU: 90 for 9.0."""
    version: str
    tp: int
    pp: int
    dcp: int
    block_size: int | None
    batched_tokens: int
    """``max_num_batched_tokens``."""
    full_batch: int | None
    """The default of ``batched_tokens`` for long sequences; ``None`` if the user sets it. A batch never has more than all tokens."""
    whole_from: int | None
    """The least tokens of V0's batch for a model whose prompts it never cuts; ``None`` if it cuts long ones, and in V1."""
    sequences: int
    """``max_num_seqs``."""
    prefix_caching: bool
    state_caching: str
    """What prefix caching keeps of recurrent states: ``none``, ``align`` or ``all``, as ``mamba_cache_mode``."""
    concurrent_batches: int
    """Batches that are scheduled and not finished."""
    hybrid: bool
    """Whether windowed layers keep only their window (vLLM's hybrid KV cache manager)."""
    override: int | None
    """``num_gpu_blocks_override``."""
    speculation: Speculation | None
    delta_capability: int
    """As ``capability``, for the prefill of gated delta nets: 90 with FlashInfer's kernel, 0 with another, whatever the GPU."""

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in the model dtype."""
        return FLOATS[self.model_dtype].number_bytes

    @property
    def speculated(self) -> int:
        """Tokens that are drafted at a time; 0 without speculative decoding."""
        return 0 if self.speculation is None else self.speculation.tokens

    @property
    def rules(self) -> Rules:
        """The rules of this version."""
        return rules_of(planned_version(self.version))

    def for_length(self, tokens: int, setup: Setup) -> VllmSettings:
        """The settings where the longest sequence has so many tokens: a default batch has no more tokens than all sequences."""
        if self.rules.engine == "V0":
            sequences, batched = _v0_batches(setup, self.version, tokens, whole_from=self.whole_from)
        elif self.full_batch is None:
            return self
        else:
            sequences, batched = self.sequences, min(self.full_batch, self.sequences * tokens)
        if (sequences, batched) == (self.sequences, self.batched_tokens):
            return self
        return replace(self, sequences=sequences, batched_tokens=batched)

    @property
    def full_from(self) -> int:
        """The shortest sequence, in tokens, with which a default batch is full; shorter sequences give a smaller batch."""
        return 1 if self.full_batch is None else ceil_div(self.full_batch, self.sequences)


def read_settings(model: ModelSpec, setup: Setup, version: str) -> VllmSettings:
    """The settings with the defaults of vLLM filled in, where a batch is full.

    Raises a :class:`~hwcalc.errors.KvplanError` subclass for a wrong value.
    """
    options = setup.options
    rules = rules_of(planned_version(version))
    capability = compute_capability(setup.hardware.gpu)
    model_dtype = _model_dtype(model, options.get("dtype"), setup.hardware.gpu, rules)
    kinds = cached_kinds(model)
    whole_from = _whole_from(setup, model, kinds, rules)
    sequences, batched, full_batch = _batches(setup, version, whole_from=whole_from)
    conv = _dtype_option(options, "mamba_cache_dtype", model_dtype)
    prefix_caching, state_caching = _prefix_caching(setup, model, kinds, rules)
    speculation = read_speculation(options.get("speculative"), setup.draft, setup.option_draft)
    # The hybrid KV cache manager does not take chunks with a draft that reads the target's hidden states.
    chunks_drafted = ChunkedAttention in kinds and speculation is not None and speculation.reads_hidden_states
    return VllmSettings(
        kv_dtype=_kv_dtype(model, setup.dtype, model_dtype, capability, kinds, rules),
        model_dtype=model_dtype,
        conv=conv,
        state=_state_dtype(options, model, conv, rules),
        capability=capability,
        version=version,
        tp=setup.parallel.tp,
        pp=setup.parallel.pp,
        dcp=setup.parallel.dcp,
        block_size=_number(options.get("block_size"), "block_size"),
        batched_tokens=batched,
        full_batch=full_batch,
        whole_from=whole_from,
        sequences=sequences,
        prefix_caching=prefix_caching,
        state_caching=state_caching,
        concurrent_batches=_concurrent_batches(options, model, version, setup.parallel.pp),
        hybrid=not _flag(options.get("disable_hybrid_kv_cache_manager"), default=False) and not chunks_drafted,
        override=_number(options.get("num_gpu_blocks_override"), "num_gpu_blocks_override"),
        speculation=speculation,
        delta_capability=_delta_capability(options.get("gdn_prefill_backend"), capability),
    )


def _state_dtype(options: Mapping[str, str], model: ModelSpec, conv: str, rules: Rules) -> str:
    """The format of recurrent states. Some kinds ignored the option ``mamba_ssm_cache_dtype`` in older releases."""
    default = default_state_dtype(model, conv, rules)
    requested = _dtype_option(options, "mamba_ssm_cache_dtype", default)
    return requested if hears_state_dtype(model, rules) else default


def _prefix_caching(setup: Setup, model: ModelSpec, kinds: frozenset[type[LayerKind]], rules: Rules) -> tuple[bool, str]:
    """Whether prefixes are cached, and what is kept of recurrent states. The default is off for models without attention."""
    states = bool(kinds & set(STATE_KINDS))
    default = not states or (rules.hybrid_caching and not kinds <= set(STATE_KINDS))
    requested = _flag(setup.options.get("enable_prefix_caching"), default=default)
    drafts = "speculative" in setup.options or setup.draft is not None
    caching = caching_of_states(model, rules, drafts=drafts) if requested and states else "none"
    return requested and (not states or caching != "none"), caching


def _concurrent_batches(options: Mapping[str, str], model: ModelSpec, version: str, pp: int) -> int:
    """Batches that are scheduled and not finished: one a stage, and one more with async scheduling."""
    rules = rules_of(planned_version(version))
    if rules.batches == "one":
        return 1
    ahead = _flag(options.get("async_scheduling"), default=True)
    if rules.batches == "runner" and pp > 1 and not runs_second_runner(model, version, quantized=False):
        ahead = False
    return pp + ahead


def _delta_capability(back_end: str | None, capability: int) -> int:
    if back_end in (None, "auto"):
        return capability
    return _FLASHINFER if back_end == "flashinfer" else 0


def cached_kinds(model: ModelSpec) -> frozenset[type[LayerKind]]:
    """The kinds of layers that have a cache which no other layer uses."""
    groups = model.stack_for("vllm").groups
    found: frozenset[type[LayerKind]] = model.once(
        "vllm cached kinds", lambda: frozenset({type(group.kind) for group in groups if group.kind.tensors()} - {SharedCache})
    )
    return found


def _whole_from(setup: Setup, model: ModelSpec, kinds: frozenset[type[LayerKind]], rules: Rules) -> int | None:
    """:attr:`VllmSettings.whole_from`: V0 cuts no prompts of windowed and multimodal models, nor those with adapters or drafts."""
    if rules.engine != "V0":
        return None
    if model.counted is not None and model.counted.has_towers:
        return rules.v0_multimodal
    drafts = "speculative" in setup.options or setup.draft is not None
    return 0 if SlidingAttention in kinds or setup.lora is not None or drafts else None


def _batches(setup: Setup, version: str, *, whole_from: int | None) -> tuple[int, int, int | None]:
    """``max_num_seqs``, ``max_num_batched_tokens`` for long sequences, and :attr:`VllmSettings.full_batch`."""
    rules = rules_of(planned_version(version))
    if rules.engine == "V0":
        return *_v0_batches(setup, version, 0, whole_from=whole_from), None
    sequences, batched, named = _with_options(setup, *batch_defaults(setup.hardware.gpu, version))
    return sequences, batched, None if named or not rules.batch_within_lengths else batched


def _v0_batches(setup: Setup, version: str, tokens: int, *, whole_from: int | None) -> tuple[int, int]:
    """``max_num_seqs`` and ``max_num_batched_tokens`` of V0, whose default batch is a whole prompt of ``tokens``."""
    batched = max(v0_batch(tokens, version, whole=whole_from is not None), whole_from or 0)
    return _with_options(setup, V0_SEQUENCES, batched)[:2]


def _with_options(setup: Setup, sequences: int, batched: int) -> tuple[int, int, bool]:
    """The defaults of ``max_num_seqs`` and ``max_num_batched_tokens``, or what options say; and whether one names the batch."""
    user_sequences = _number(setup.options.get("max_num_seqs"), "max_num_seqs")
    user_batched = _number(setup.options.get("max_num_batched_tokens"), "max_num_batched_tokens")
    sequences = user_sequences or sequences
    if user_batched is None:
        return sequences if user_sequences is not None else min(sequences, batched), batched, False
    if user_sequences is not None and user_sequences > user_batched:
        raise UsageError(
            f"max_num_seqs={user_sequences:,} is more than max_num_batched_tokens={user_batched:,}.", hint="vLLM refuses that."
        )
    return min(sequences, user_batched), user_batched, True


def _model_dtype(model: ModelSpec, requested: str | None, gpu: Gpu | None, rules: Rules) -> str:
    """The dtype that the model runs in. fp32 checkpoints are loaded in 16 bits unless the option says ``dtype=float32``."""
    default = model.dtype if model.dtype in ("bf16", "fp16") else "bf16"
    if requested in (None, "auto"):
        lacking = gpu is not None and gpu.vendor.lower() == "nvidia" and 0 < compute_capability(gpu) < _BFLOAT16
        # The releases before 0.9 that kvplan plans on such a GPU refuse bf16 there, and must be told float16.
        if default == "fp16" or not lacking or rules.engine == "V0":
            return default
        return "fp32" if model.model_type in _UNSTABLE_IN_FP16 else "fp16"
    dtype = find_dtype(requested or "")
    if dtype is None or dtype.name not in FLOATS:
        raise UsageError(
            f"engine option dtype={brief(requested or '', 40)} is not known.", hint="Allowed: auto, bfloat16, float16, float32."
        )
    return dtype.name


def _kv_dtype(
    model: ModelSpec, requested: str | None, model_dtype: str, capability: int, kinds: frozenset[type[LayerKind]], rules: Rules
) -> str:
    """The KV dtype as vLLM resolves it; ``auto`` is the model dtype."""
    kv_dtype = formats.read_kv_dtype(requested or "auto")
    float_name = formats.float_name(kv_dtype)
    if float_name is not None:
        if float_name != model_dtype:
            raise UsageError(
                f"--dtype {kv_dtype}: vLLM takes only the dtype that the model runs in, {model_dtype}.", hint="Use --dtype auto"
            )
        kv_dtype = "auto"
    elif kv_dtype == "auto":
        kv_dtype = formats.checkpoint_kv_dtype(model.quantization) or "auto"
        if (
            kv_dtype == "auto"
            and rules.glm_sparse_fp8
            and capability // 10 == 10
            and model.architecture == "GlmMoeDsaForCausalLM"
        ):
            kv_dtype = "fp8_e4m3"
    if CompressedAttention in kinds:
        if float_name is None and (kv_dtype == "auto" or kv_dtype.startswith("fp8")):
            kv_dtype = "fp8_ds_mla"
    elif LatentAttention in kinds and SparseIndexer in kinds:
        if kv_dtype == "auto" and float_name is None:
            kv_dtype = rules.sparse_auto
        if rules.sparse_fp8 == "own" and kv_dtype.startswith("fp8"):
            kv_dtype = "fp8_ds_mla"
        kv_dtype = sparse_kv_dtype(kv_dtype, capability, keep=kv_dtype in ("auto", "nvfp4_ds_mla"))
    if model.architecture in _IGNORE_KV_DTYPE or (model.architecture in _DEAF_BEFORE and not rules.mimo_v2_dtype):
        return "auto"
    if expands_latents(model, rules):
        kinds -= {LatentAttention}
    formats.check_kv_dtype(kv_dtype, kinds, capability)
    return kv_dtype


def _dtype_option(options: Mapping[str, str], name: str, default: str) -> str:
    value = options.get(name)
    if value in (None, "auto"):
        return default
    dtype = find_dtype(str(value))
    if dtype is None or dtype.name not in FLOATS:
        raise UsageError(
            f"engine option {name}={brief(str(value), 40)} is not known.", hint="Allowed: auto, bfloat16, float16, float32."
        )
    return dtype.name


def _number(value: str | None, name: str) -> int | None:
    return None if value is None else parse_tokens(value, f"engine option {name}")


def _flag(value: str | None, *, default: bool) -> bool:
    return default if value is None else value.lower() in ("true", "1", "on", "yes")


H100_BYTES: Final = 79 * GIB
"""What programs see of the memory of an H100, within a GiB: batches are larger from 70 and 160 GiB on."""
_LONGEST_WHOLE: Final = 32_768
"""V0 cuts longer prompts into chunks by default (engine/arg_utils.py create_engine_config)."""
_V0_LEAST: Final = 2048
V0_SEQUENCES: Final = 256
"""The default of ``max_num_seqs`` in V0, whatever the GPU."""


def batch_defaults(gpu: Gpu | None, version: str) -> tuple[int, int]:
    """The defaults of ``max_num_seqs`` and ``max_num_batched_tokens`` on this GPU; without a GPU, those on an H100. Those of V0 differ.

    GPUs with at least 160 GiB have 1,024 and 16,384; those with at least 70 GiB have 1,024 and 8,192, except A100 and GB10; all others
    have 256 and 2,048.
    """
    if gpu is None:
        return _batch_class(version, H100_BYTES, "h100", "9.0")
    return _batch_class(version, total_bytes(gpu) or 0, f"{gpu.id} {gpu.name}".lower(), gpu.compute_capability or "")


@lru_cache(maxsize=256)
def _batch_class(version: str, memory: int, name: str, capability: str) -> tuple[int, int]:
    planned = planned_version(version)
    classes = [entry for entry in vllm_profile().batch_classes if entry.holds(planned)]
    for entry in classes:
        excepted = capability in entry.except_capabilities or any(word in name for word in entry.except_names)
        if memory >= entry.least_gib * GIB and not excepted:
            return entry.max_num_seqs, entry.max_num_batched_tokens
    return classes[-1].max_num_seqs, classes[-1].max_num_batched_tokens


@lru_cache(maxsize=64)
def default_utilization(version: str) -> str:
    """The share of the GPU that this version uses by default, as an exact decimal: ``0.92`` since 0.20."""
    return next(entry.value for entry in vllm_profile().utilization if entry.since <= planned_version(version))


def graphs_subtracted(version: str) -> bool:
    """Whether this version subtracts its estimate of CUDA graphs from the pool."""
    return planned_version(version) >= vllm_profile().graphs_since


def runs_v0(version: str) -> bool:
    """Whether this version runs the V0 engine by default."""
    return rules_of(planned_version(version)).engine == "V0"


def v0_batch(seq: int, version: str, *, whole: bool = False) -> int:
    """The default of ``max_num_batched_tokens`` in V0: a whole prompt, or chunks for prompts beyond 32,768 tokens unless ``whole``.

    >>> v0_batch(20_000, "0.7"), v0_batch(512, "0.7"), v0_batch(131_072, "0.7"), v0_batch(131_072, "0.6.4")
    (20000, 2048, 2048, 512)
    """
    if seq > _LONGEST_WHOLE and not whole:
        return rules_of(planned_version(version)).v0_chunk
    return max(_V0_LEAST, seq)


def batch_is_chunked(seq: int, batched_tokens: int) -> bool:
    """Whether the longest prompt does not fit into a batch. V0 refuses that unless it may cut prompts into chunks."""
    return batched_tokens < seq


def total_bytes(gpu: Gpu) -> int | None:
    """Bytes of memory that torch sees, measured or estimated (:func:`hwcalc.profiles.gpus.visible_memory`)."""
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    return None if visible is None else visible.expected_bytes


_WITHOUT_MODEL: Final = ("ngram", "mtp")
DRAFTED: Final = ("eagle", "dflash", "draft")
"""The methods with a model of their own."""


class Speculation(Record):
    """``method`` drafts ``tokens`` tokens at a time. ``model`` is the draft model, if the method has one."""

    method: str
    tokens: int
    model: ModelSpec | None = None

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the draft takes hidden states of the target (``use_eagle`` in vLLM)."""
        return self.method in ("eagle", "mtp", "dflash")


def draft_named(value: str | None) -> str | None:
    """The id of the model in ``draft:MODEL[:N]``, ``eagle:…`` or ``dflash:…``, a value of the option ``speculative``."""
    method, _, rest = (value or "").partition(":")
    return model_and_tokens(rest)[0] if method in DRAFTED and rest else None


def model_and_tokens(rest: str) -> tuple[str, int]:
    """The model and the number of tokens in ``MODEL`` or ``MODEL:N``."""
    name, _, count = rest.rpartition(":")
    return (name, parse_tokens(count)) if name and count.isdecimal() else (rest, 1)


def read_speculation(value: str | None, draft: ModelSpec | None, option_draft: ModelSpec | None) -> Speculation | None:
    """Read the option ``speculative``. ``--draft MODEL`` is the same as ``speculative=draft:MODEL``.

    ``draft`` is the loaded model of ``--draft``, and ``option_draft`` the loaded model that the option names. Raises
    :class:`~hwcalc.errors.UsageError` for a wrong value, or if both name a draft.
    """
    if value is None:
        return None if draft is None else Speculation(method="draft", tokens=1, model=draft)
    if draft is not None:
        raise UsageError("--draft and the engine option speculative both name a draft.", hint="Give one of them.")
    method, _, rest = value.partition(":")
    if method in _WITHOUT_MODEL:
        return Speculation(method=method, tokens=parse_tokens(rest or "1", f"engine option speculative={method}:N"))
    if method in DRAFTED and rest:
        name, tokens = model_and_tokens(rest)
        if option_draft is None:
            raise UsageError(
                f"engine option speculative={brief(value, 60)}: {brief(name, 60)} was not loaded.", hint="Give the draft's model."
            )
        return Speculation(method=method, tokens=tokens, model=option_draft)
    raise UsageError(
        f"engine option speculative={brief(value, 60)} is not known.",
        hint="Allowed: ngram:N, mtp:N, eagle:MODEL[:N], dflash:MODEL[:N], draft:MODEL[:N].",
    )


LONGER: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
"""What makes vLLM accept a longer ``--max-model-len``. Every release that is known here reads it."""
_STRETCHED_ALREADY: Final = frozenset({"su", "longrope", "llama3"})
"""Kinds of rotary scaling with which a config names the stretched length."""
_YARN: Final = "yarn"


def longest_accepted(model: ModelSpec, rules: Rules) -> int | None:
    """The largest ``--max-model-len`` for this model; ``None`` if its config names no length."""
    facts = model.facts
    longest = facts.model_max_length or model.max_position_embeddings
    if longest is None:
        return None
    factor = 1.0
    # Gemma 3 names the stretched length, though its kind of scaling does not say so.
    for scaling in () if "gemma3" in model.model_type else facts.rope_scalings:
        if scaling.kind in _STRETCHED_ALREADY or (scaling.kind == _YARN and not rules.multiplies_yarn):
            continue
        factor = scaling.factor or factor
        if scaling.kind == _YARN and scaling.original_tokens is not None:
            longest = scaling.original_tokens
    return max(int(longest * factor), facts.model_max_length or 0)


def runs_second_runner(model: ModelSpec, version: str, *, quantized: bool) -> bool:
    """Whether this version runs the model with its second model runner by default. ``quantized`` says whether its weights are."""
    from hwcalc.engines.rank_weights import expert_width
    from hwcalc.engines.vllm.weights import VllmRank

    planned = planned_version(version)
    rule = next(entry for entry in vllm_profile().runner2 if entry.since <= planned)
    listed = model.architecture in rule.architectures
    has_experts = model.once("vllm experts", lambda: bool(expert_width(model, VllmRank(model, Parallel()))[0]))
    if rule.models == "all":
        return True
    if rule.models == "dense":
        return listed or not (has_experts or has_states(model))
    if rule.models == "unquantized":
        return listed and not has_experts and not quantized
    return listed


def has_states(model: ModelSpec) -> bool:
    """Whether layers keep a recurrent state."""
    groups = model.stack.groups
    return model.once("has states", lambda: any(tensor.role is Role.STATE for group in groups for tensor in group.kind.tensors()))
