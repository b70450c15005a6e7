"""The settings of vLLM for a request, with every default filled in: formats, block size, batch sizes, speculation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.capability import compute_capability
from hwcalc.engines.request import Request
from hwcalc.engines.vllm import formats
from hwcalc.engines.vllm.blocks import sparse_kv_dtype
from hwcalc.engines.vllm.classes import expands_latents
from hwcalc.engines.vllm.defaults import batch_defaults
from hwcalc.engines.vllm.rules import Rules, rules_of
from hwcalc.engines.vllm.runner import runs_second_runner
from hwcalc.engines.vllm.speculation import Speculation, read_speculation
from hwcalc.engines.vllm.states import STATE_KINDS, caching_of_states, default_state_dtype, hears_state_dtype
from hwcalc.errors import UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    LatentAttention,
    LayerKind,
    SharedCache,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.profiles.engines import planned_version
from hwcalc.text import brief
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["VllmSettings", "cached_kinds", "read_settings"]

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
    """Everything that the plan of the pool needs beside the layers. ``kv_dtype`` is the resolved KV dtype, as vLLM spells it."""

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

    def sized(self, request: Request) -> VllmSettings:
        """The settings for a request that differs only in length and batch."""
        if self.rules.engine == "V0":
            sequences, batched, full = _batches(request, self.version, whole_from=self.whole_from)
            return replace(self, sequences=sequences, batched_tokens=batched, full_batch=full)
        if self.full_batch is None:
            return self
        batched = min(self.full_batch, self.sequences * request.seq)
        return self if batched == self.batched_tokens else replace(self, batched_tokens=batched)

    def same_batches(self, seq: int) -> bool:
        """Whether the batch sizes are the same if the longest sequence has ``seq`` tokens."""
        full = self.full_batch
        return full is None or (self.batched_tokens == full and self.sequences * seq >= full)


def read_settings(model: ModelSpec, request: Request, version: str) -> VllmSettings:
    """Fill in the defaults of vLLM. Raises a :class:`~hwcalc.errors.KvplanError` subclass for a wrong value."""
    options = request.options
    rules = rules_of(planned_version(version))
    capability = compute_capability(request.hardware.gpu)
    model_dtype = _model_dtype(model, options.get("dtype"), request.hardware.gpu, rules)
    kinds = cached_kinds(model)
    whole_from = _whole_from(request, model, kinds, rules)
    sequences, batched, full_batch = _batches(request, version, whole_from=whole_from)
    conv = _dtype_option(options, "mamba_cache_dtype", model_dtype)
    prefix_caching, state_caching = _prefix_caching(request, model, kinds, rules)
    speculation = read_speculation(options.get("speculative"), request.draft, request.option_draft)
    # The hybrid KV cache manager does not take chunks beside a draft that reads the target's hidden states.
    chunks_drafted = ChunkedAttention in kinds and speculation is not None and speculation.reads_hidden_states
    return VllmSettings(
        kv_dtype=_kv_dtype(model, request.dtype, model_dtype, capability, kinds, rules),
        model_dtype=model_dtype,
        conv=conv,
        state=_state_dtype(options, model, conv, rules),
        capability=capability,
        version=version,
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        dcp=request.parallel.dcp,
        block_size=_number(options.get("block_size"), "block_size"),
        batched_tokens=batched,
        full_batch=full_batch,
        whole_from=whole_from,
        sequences=sequences,
        prefix_caching=prefix_caching,
        state_caching=state_caching,
        concurrent_batches=_concurrent_batches(options, model, version, request.parallel.pp),
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


def _prefix_caching(request: Request, model: ModelSpec, kinds: frozenset[type[LayerKind]], rules: Rules) -> tuple[bool, str]:
    """Whether prefixes are cached, and what is kept of recurrent states. The default is off for models without attention."""
    states = bool(kinds & set(STATE_KINDS))
    default = not states or (rules.hybrid_caching and not kinds <= set(STATE_KINDS))
    requested = _flag(request.options.get("enable_prefix_caching"), default=default)
    drafts = "speculative" in request.options or request.draft is not None
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
    """The kinds of layers that have their own cache."""
    groups = model.stack_for("vllm").groups
    found: frozenset[type[LayerKind]] = model.once(
        "vllm cached kinds",
        lambda: frozenset({type(group.kind) for group in groups if group.kind.tensors()} - {SharedCache}),
    )
    return found


def _whole_from(request: Request, model: ModelSpec, kinds: frozenset[type[LayerKind]], rules: Rules) -> int | None:
    """:attr:`VllmSettings.whole_from`: V0 cuts no prompts of windowed and multimodal models, nor beside adapters or drafts."""
    if rules.engine != "V0":
        return None
    if model.counted is not None and model.counted.has_towers:
        return rules.v0_multimodal
    drafts = "speculative" in request.options or request.draft is not None
    return 0 if SlidingAttention in kinds or request.lora is not None or drafts else None


def _batches(request: Request, version: str, *, whole_from: int | None) -> tuple[int, int, int | None]:
    """``max_num_seqs``, ``max_num_batched_tokens`` and :attr:`VllmSettings.full_batch`."""
    rules = rules_of(planned_version(version))
    sequences, batched = batch_defaults(request.hardware.gpu, version, request.seq, whole=whole_from is not None)
    batched = max(batched, whole_from or 0)
    user_sequences = _number(request.options.get("max_num_seqs"), "max_num_seqs")
    user_batched = _number(request.options.get("max_num_batched_tokens"), "max_num_batched_tokens")
    sequences = user_sequences or sequences
    if user_batched is None:
        if user_sequences is None:
            sequences = min(sequences, batched)
        if not rules.batch_within_lengths:
            return sequences, batched, None
        return sequences, min(batched, sequences * request.seq), batched
    if user_sequences is not None and user_sequences > user_batched:
        raise UsageError(
            f"max_num_seqs={user_sequences:,} is more than max_num_batched_tokens={user_batched:,}.", hint="vLLM refuses that."
        )
    return min(sequences, user_batched), user_batched, None


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
    model: ModelSpec,
    requested: str | None,
    model_dtype: str,
    capability: int,
    kinds: frozenset[type[LayerKind]],
    rules: Rules,
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
