"""The settings of vLLM, with every default filled in: formats, block size, batch sizes, drafts, the longest sequence it accepts.

Source: vLLM 0.33, engine/arg_utils.py; for the longest sequence ``_get_and_verify_max_len`` of config.py, since 0.11 of config/model.py. A
config of the tokenizer may lower that; kvplan does not read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.models import model_classes
from hwcalc.engines.options import AUTO, is_auto, is_on
from hwcalc.engines.setup import Parallel
from hwcalc.engines.vllm import formats
from hwcalc.engines.vllm.layer_specs import STATE_KINDS, expands_latents
from hwcalc.engines.vllm.rules import Rules, rules_of
from hwcalc.engines.vllm.specs import ceil_div
from hwcalc.errors import UncountedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
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
from hwcalc.profiles.engines import planned_version, since, vllm_profile
from hwcalc.text import brief
from hwcalc.units import GIB, parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu

# Prefixes of model classes whose config may name the format of the state; else it is that of convolutions.
_NAMED_STATES: Final = ("Qwen3_5", "Qwen4Exp")
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
    """True if windowed layers keep only their window (vLLM's hybrid KV cache manager)."""
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
            sequences, batched, _ = _batches(setup, self.version, tokens, self.whole_from)
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
    options, parallel = setup.options, setup.parallel
    rules, kinds = rules_of(planned_version(version)), cached_kinds(model)
    capability = delta_capability = compute_capability(setup.hardware.gpu)
    if options.get("gdn_prefill_backend", "auto") != "auto":
        delta_capability = _FLASHINFER if options["gdn_prefill_backend"] == "flashinfer" else 0
    model_dtype = _model_dtype(model, _with_dtype(setup), setup.hardware.gpu, rules)
    drafts, whole_from = "speculative" in options or setup.draft is not None, None
    # V0 cuts no prompts of windowed and multimodal models, nor those with adapters or drafts.
    if rules.engine == "V0" and model.counted is not None and model.counted.has_towers:
        whole_from = rules.v0_multimodal
    elif rules.engine == "V0" and (SlidingAttention in kinds or setup.lora is not None or drafts):
        whole_from = 0
    sequences, batched, full_batch = _batches(setup, version, 0, whole_from)
    if (
        loads_towers(model, options)
        and "max_num_batched_tokens" not in options
        and (least := _item_tokens(model, version)) > batched
    ):
        batched, full_batch = least, full_batch and least
    conv = _dtype_option(options, "mamba_cache_dtype", model_dtype)
    prefix_caching, state_caching = _prefix_caching(setup, model, kinds, rules)
    speculation = read_speculation(options.get("speculative"), setup.draft, setup.option_draft)
    # The hybrid KV cache manager does not take chunks with a draft that reads the target's hidden states.
    chunks_drafted = ChunkedAttention in kinds and speculation is not None and speculation.reads_hidden_states
    ahead = is_on(options.get("async_scheduling", "false" if pools(model) else "true"))
    if rules.batches == "runner" and parallel.pp > 1 and not runs_second_runner(model, version, quantized=False):
        ahead = False
    return VllmSettings(
        kv_dtype=_kv_dtype(model, setup.dtype, model_dtype, capability, kinds, rules),
        model_dtype=model_dtype,
        conv=conv,
        state=_state_dtype(options, model, conv, rules),
        capability=capability,
        version=version,
        tp=parallel.tp,
        pp=parallel.pp,
        dcp=parallel.dcp,
        block_size=_number(options, "block_size"),
        batched_tokens=batched,
        full_batch=full_batch,
        whole_from=whole_from,
        sequences=sequences,
        prefix_caching=prefix_caching,
        state_caching=state_caching,
        concurrent_batches=1 if rules.batches == "one" else parallel.pp + ahead,
        hybrid=not is_on(options.get("disable_hybrid_kv_cache_manager")) and not chunks_drafted,
        override=_number(options, "num_gpu_blocks_override"),
        speculation=speculation,
        delta_capability=delta_capability,
    )


def _state_dtype(options: Mapping[str, str], model: ModelSpec, conv: str, rules: Rules) -> str:
    """The format of recurrent states. ``conv`` is the format of convolutions, which is the default of most models."""
    kinds = {type(group.kind) for group in model.stack_for("vllm").groups}
    architecture, default = model.architecture or "", conv
    if KimiDeltaAttention in kinds:
        default = "fp32"
    elif architecture.startswith("NemotronH"):
        default = conv if rules.nemotron_states == "conv" else model.state_dtype or rules.nemotron_states
    elif architecture.startswith(_NAMED_STATES) and rules.config_states:
        default = model.state_dtype or conv
    requested = _dtype_option(options, "mamba_ssm_cache_dtype", default)
    # Older releases ignored the option for some kinds.
    deaf = (GatedDeltaNet in kinds and not rules.gated_delta_dtype) or (
        KimiDeltaAttention in kinds and not rules.kimi_delta_dtype
    )
    return default if deaf else requested


def _prefix_caching(setup: Setup, model: ModelSpec, kinds: frozenset[type[LayerKind]], rules: Rules) -> tuple[bool, str]:
    """True if prefixes are cached, and the recurrent states that are kept: ``all``, the last ones (``align``), or ``none``.

    The default is off for models without attention. Where no states can be kept, vLLM turns prefix caching off for the whole model.
    """
    states = bool(kinds & set(STATE_KINDS))
    default = not states or (rules.hybrid_caching and not kinds <= set(STATE_KINDS))
    requested = is_on(setup.options.get("enable_prefix_caching", "true" if default else "false"))
    if not requested or not states:
        return requested, "none"
    caching = {"no": "none", "last": "align", "all": "none", "both": "align"}[rules.state_caching]
    drafts = "speculative" in setup.options or setup.draft is not None
    if rules.state_caching in ("all", "both") and model_classes("vllm").has(model, "keeps_every_state"):
        caching = caching if drafts and rules.speculated_all == "align" else "all"
    return caching != "none", caching


def cached_kinds(model: ModelSpec) -> frozenset[type[LayerKind]]:
    """The kinds of layers that have a cache which no other layer uses."""
    groups = model.stack_for("vllm").groups
    found: frozenset[type[LayerKind]] = model.once(
        "vllm cached kinds", lambda: frozenset({type(group.kind) for group in groups if group.kind.tensors()} - {SharedCache})
    )
    return found


def _batches(setup: Setup, version: str, tokens: int, whole_from: int | None) -> tuple[int, int, int | None]:
    """``max_num_seqs`` and ``max_num_batched_tokens`` by default, or what options say; and :attr:`VllmSettings.full_batch`.

    The default batch of V0 is a whole prompt of ``tokens``; that of V1 is for long sequences.
    """
    rules, full_batch = rules_of(planned_version(version)), None
    if rules.engine == "V0":
        sequences, batched = V0_SEQUENCES, max(v0_batch(tokens, version, whole=whole_from is not None), whole_from or 0)
    else:
        sequences, batched = batch_defaults(setup.hardware.gpu, version)
        full_batch = batched if rules.batch_within_lengths else None
    user_sequences, user_batched = (_number(setup.options, name) for name in ("max_num_seqs", "max_num_batched_tokens"))
    sequences = user_sequences or sequences
    if user_batched is None:
        return sequences if user_sequences is not None else min(sequences, batched), batched, full_batch
    if user_sequences is not None and user_sequences > user_batched:
        raise UsageError(
            f"max_num_seqs={user_sequences:,} is more than max_num_batched_tokens={user_batched:,}.", hint="vLLM refuses that."
        )
    return min(sequences, user_batched), user_batched, None


_GEMMA_4_VIDEO: Final = 32 * (70 + 2 + 6)
"""Tokens of a video of Gemma 4: 32 frames of 70, with marks and a time (``models/gemma4_mm.py``)."""
_WHOLE_ITEMS: Final = (0, 25)
"""The release of which a log states the larger batch (0.25.1)."""


def _item_tokens(model: ModelSpec, version: str) -> int:
    """The least default batch of a model that reads images and videos in both directions, whose items are never cut; else 0.

    That is Gemma 4, where its config says so (``engine/arg_utils.py`` _get_min_mm_batched_tokens). Other models' items are smaller than any batch.
    """
    text = model.config.get("text_config")
    both = isinstance(text, Mapping) and text.get("use_bidirectional_attention") == "vision"
    whole = both and model.model_type.startswith("gemma4") and "vision" in model.facts.part_types
    return _GEMMA_4_VIDEO if whole and planned_version(version) >= _WHOLE_ITEMS else 0


def _with_dtype(setup: Setup) -> Mapping[str, str]:
    """The options, with the ``dtype`` that makes the planned weights: the model runs in it, and its cache is of it.

    Raises :class:`~hwcalc.errors.UsageError` where the options name another.
    """
    if setup.weights is None:
        return setup.options
    from hwcalc.quantization.planned import format_name

    name, named = format_name(setup.weights) or "", setup.options.get("dtype", "auto")
    flag, value = formats.ALWAYS_MADE.get(name, ("", ""))
    if flag != "dtype":
        return setup.options
    if named != "auto" and _dtype_option(setup.options, "dtype", name) != name:
        message = f"vLLM makes {name} weights by running the model in {value}, and the engine option dtype is {brief(named, 40)}."
        raise UsageError(message, hint="Leave out one of them.")
    return {**setup.options, flag: value}


def _model_dtype(model: ModelSpec, options: Mapping[str, str], gpu: Gpu | None, rules: Rules) -> str:
    """The dtype that the model runs in. fp32 checkpoints are loaded in 16 bits unless the option says ``dtype=float32``."""
    default = model.dtype if model.dtype in ("bf16", "fp16") else "fp16" if pools(model) else "bf16"
    if options.get("dtype", "auto") == "auto":
        lacking = gpu is not None and gpu.vendor.lower() == "nvidia" and 0 < compute_capability(gpu) < _BFLOAT16
        # The releases before 0.9 that kvplan plans on such a GPU refuse bf16 there, and must be told float16.
        if default == "fp16" or not lacking or rules.engine == "V0":
            return default
        return "fp32" if model.model_type in _UNSTABLE_IN_FP16 else "fp16"
    return _dtype_option(options, "dtype", default)


def _kv_dtype(
    model: ModelSpec, requested: str | None, model_dtype: str, capability: int, kinds: frozenset[type[LayerKind]], rules: Rules
) -> str:
    """The KV dtype as vLLM resolves it; ``auto`` is the model dtype."""
    kv_dtype = formats.read_kv_dtype(requested or "auto")
    float_name, family = formats.FLOAT_NAMES.get(kv_dtype), capability // 10
    if float_name is not None:
        if float_name != model_dtype:
            raise UsageError(
                f"--dtype {kv_dtype}: vLLM takes only the dtype that the model runs in, {model_dtype}: that is auto.",
                hint="Use --dtype auto",
            )
        kv_dtype = "auto"
    elif kv_dtype == "auto":
        kv_dtype = formats.checkpoint_kv_dtype(model.quantization) or "auto"
        glm = rules.glm_sparse_fp8 and family == 10 and model.architecture == "GlmMoeDsaForCausalLM"
        kv_dtype = "fp8_e4m3" if glm and kv_dtype == "auto" else kv_dtype
    if CompressedAttention in kinds:
        if float_name is None and (kv_dtype == "auto" or kv_dtype.startswith("fp8")):
            kv_dtype = "fp8_ds_mla"
    elif LatentAttention in kinds and SparseIndexer in kinds:
        if kv_dtype == "auto" and float_name is None:
            kv_dtype = rules.sparse_auto
        if rules.sparse_fp8 == "own" and kv_dtype.startswith("fp8"):
            kv_dtype = "fp8_ds_mla"
        # Sparse backends use DeepSeek's own fp8 layout on SM90 and SM12x, ordinary fp8 on SM10x.
        if family == 12 or (family == 9 and kv_dtype not in ("auto", "nvfp4_ds_mla")):
            kv_dtype = "fp8_ds_mla"
    classes = model_classes("vllm")
    if classes.has(model, "ignores_kv_dtype") or (classes.has(model, "ignored_kv_dtype") and not rules.mimo_v2_dtype):
        return "auto"
    if expands_latents(model, rules):
        kinds -= {LatentAttention}
    formats.check_kv_dtype(kv_dtype, kinds, capability)
    return kv_dtype


def _dtype_option(options: Mapping[str, str], name: str, default: str) -> str:
    value = options.get(name, "auto")
    if value == "auto":
        return default
    dtype = find_dtype(value)
    if dtype is None or dtype.name not in FLOATS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is not known.", hint="Allowed: auto, bfloat16, float16, float32."
        )
    return dtype.name


def _number(options: Mapping[str, str], name: str) -> int | None:
    return parse_tokens(options[name], f"engine option {name}") if name in options else None


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
    # What programs see of the memory of an H100, within a GiB.
    memory, name, capability = 79 * GIB, "h100", "9.0"
    if gpu is not None:
        from hwcalc.profiles.gpus import visible_memory

        visible = visible_memory(gpu)
        memory, name = 0 if visible is None else visible.expected_bytes, f"{gpu.id} {gpu.name}".lower()
        capability = gpu.compute_capability or ""
    classes = [entry for entry in vllm_profile().batch_classes if entry.holds(planned_version(version))]
    for entry in classes:
        excepted = capability in entry.except_capabilities or any(word in name for word in entry.except_names)
        if memory >= entry.least_gib * GIB and not excepted:
            return entry.max_num_seqs, entry.max_num_batched_tokens
    return classes[-1].max_num_seqs, classes[-1].max_num_batched_tokens


@lru_cache(maxsize=64)
def default_utilization(version: str) -> str:
    """The share of the GPU that this version uses by default, as an exact decimal: ``0.92`` since 0.20."""
    return next(entry.value for entry in vllm_profile().utilization if since(entry.since) <= planned_version(version))


def graphs_subtracted(version: str) -> bool:
    """True if this version subtracts its estimate of CUDA graphs from the pool."""
    return planned_version(version) >= since(vllm_profile().graphs_since.value)


def runs_v0(version: str) -> bool:
    """True if this version runs the V0 engine by default."""
    return rules_of(planned_version(version)).engine == "V0"


def v0_batch(seq: int, version: str, *, whole: bool = False) -> int:
    """The default of ``max_num_batched_tokens`` in V0: a whole prompt, or chunks for prompts beyond 32,768 tokens unless ``whole``.

    >>> v0_batch(20_000, "0.7"), v0_batch(512, "0.7"), v0_batch(131_072, "0.7"), v0_batch(131_072, "0.6.4")
    (20000, 2048, 2048, 512)
    """
    if seq > _LONGEST_WHOLE and not whole:
        return rules_of(planned_version(version)).v0_chunk
    return max(_V0_LEAST, seq)


DRAFTED: Final = ("eagle", "dflash", "draft")
"""The methods with a model of their own."""


class Speculation(Record):
    """``method`` drafts ``tokens`` tokens at a time. ``model`` is the draft model, if the method has one."""

    method: str
    tokens: int
    model: ModelSpec | None = None

    @property
    def reads_hidden_states(self) -> bool:
        """True if the draft takes hidden states of the target (``use_eagle`` in vLLM)."""
        return self.method in ("eagle", "mtp", "dflash")


def model_and_tokens(rest: str) -> tuple[str, int]:
    """The model and the number of tokens in ``MODEL`` or ``MODEL:N``."""
    name, _, count = rest.rpartition(":")
    return (name, parse_tokens(count)) if name and count.isdecimal() else (rest, 1)


def drafted_tokens(method: str, count: str) -> int:
    """The tokens that ``ngram:N`` or ``mtp:N`` drafts at once: 1 where ``count`` is empty."""
    return parse_tokens(count or "1", f"engine option speculative={method}:N")


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
    if method in ("ngram", "mtp"):
        return Speculation(method=method, tokens=drafted_tokens(method, rest))
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


TEXT_ALONE_SINCE: Final = "0.17"
"""The first release with ``--language-model-only`` (``engine/arg_utils.py``)."""
LIMITS_SINCE: Final = "0.15"
"""The first release that leaves out towers of which ``--limit-mm-per-prompt`` takes nothing."""


def parse_limits(name: str, value: str) -> dict[str, int]:
    """The most items of each kind in a prompt: ``{"image": 0, "video": 0}``, or ``image=0,video=0``.

    >>> parse_limits("limit_mm_per_prompt", '{"video": 0, "image": 2}')
    {'image': 2, 'video': 0}
    """
    written = value.strip().removeprefix("{").removesuffix("}")
    found = re.findall(r"""['"]?([a-z_]{1,20})['"]?\s{0,9}[:=]\s{0,9}([0-9]{1,9})\s{0,9}(?:,\s{0,9}|$)""", written)
    bare = re.sub(r"['\"\s]", "", written)
    if not found or len(bare) != sum(len(kind) + 1 + len(count) for kind, count in found) + bare.count(","):
        raise UsageError(
            f"engine option {name}={brief(value, 60)} names no kinds with their numbers.",
            hint=f'Write: --engine-option {name}=image=0,video=0, or as vLLM does: {{"image": 0, "video": 0}}',
        )
    return {kind: int(count) for kind, count in sorted(found)}


_SOUND: Final = frozenset({"audio"})


def loads_towers(model: ModelSpec, options: Mapping[str, str]) -> bool:
    """True if vLLM loads what reads images and sound: unless ``language_model_only`` is set, or nothing of what they read is taken, and
    the class marks its towers. Raises an error if it leaves out some of several towers.
    """
    words = model_classes("vllm").row(model).words
    if "towers_always" in words:
        return True
    if is_on(options.get("language_model_only")):
        return False
    limits = options.get("limit_mm_per_prompt")
    if limits is None:
        return True
    none = {kind for kind, count in parse_limits("limit_mm_per_prompt", limits).items() if not count}
    # A config without a part of its own for sound has no tower for it, whatever its class can have.
    towers = [frozenset(kinds.split("/")) for kinds in words["towers"].split("+")] if "towers" in words else []
    towers = [kinds for kinds in towers if kinds != _SOUND or model.config.get("audio_config")]
    left_out = [kinds <= none for kinds in towers]
    if any(left_out) and not all(left_out):
        takes = " and ".join("/".join(sorted(kinds)) for kinds in towers)
        raise UncountedError(
            f"{model.architecture} has towers for {takes}; kvplan plans it with all of them or with none.",
            hint="Leave out limit_mm_per_prompt, or use: --engine-option language_model_only=true",
        )
    return not any(left_out)


MAX_LENGTH: Final = "max_model_len"
"""The engine option for the longest sequence that a server allows, where that is more than the planned sequences have."""
BACKEND_FLAG_SINCE: Final = "0.13"
"""The first release with ``--attention-backend`` (pull request 26315); older ones read a variable."""


def parse_attention_backend(name: str, value: str) -> str:
    """The name of a back end of attention, in capitals as vLLM has it (``AttentionBackendEnum``). Releases have different ones."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]{1,60}", value.upper()):
        raise UsageError(
            f"engine option {name} is no name of a back end: {brief(value, 40)}",
            hint=f"Give one that the release has, such as FLASHINFER, or {AUTO}.",
        )
    return value.upper()


def chosen_backend(options: Mapping[str, str]) -> str:
    """The back end of attention that the options choose; empty where they leave it to vLLM."""
    value = options.get("attention_backend")
    return "" if value is None or is_auto(value) else parse_attention_backend("attention_backend", value)


def backend_variable(options: Mapping[str, str], version: str) -> str:
    """The variable that chooses the back end of attention, in a release that has no flag for it; else empty."""
    value = chosen_backend(options)
    return f"VLLM_ATTENTION_BACKEND={value}" if value and planned_version(version) < since(BACKEND_FLAG_SINCE) else ""


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
    """True if this version runs the model with its second model runner by default. ``quantized`` says whether its weights are."""
    from hwcalc.engines.rank_weights import expert_width
    from hwcalc.engines.vllm.weights import VllmRank

    planned = planned_version(version)
    rule = next(entry for entry in vllm_profile().runner2 if since(entry.since) <= planned)
    listed = model.architecture in rule.architectures
    has_experts = model.once("vllm experts", lambda: bool(expert_width(model, VllmRank(model, Parallel()))[0]))
    if rule.models == "all":
        return True
    if rule.models == "dense":
        return listed or not (has_experts or has_states(model))
    if rule.models == "unquantized":
        return listed and not has_experts and not quantized
    return listed


def pools(model: ModelSpec) -> bool:
    """True if vLLM's default for the class is the pooling runner, which schedules no batch ahead (``--runner auto``)."""
    classes = model_classes("vllm")
    return classes.by_ending(model) == "pools" and not classes.has(model, "generates")


def has_states(model: ModelSpec) -> bool:
    """True if layers keep a recurrent state."""
    groups = model.stack.groups
    return model.once("has states", lambda: any(tensor.role is Role.STATE for group in groups for tensor in group.kind.tensors()))
