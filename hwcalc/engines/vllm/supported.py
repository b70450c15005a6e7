"""What a release of vLLM accepts: classes of models, GPUs and parallel sizes.

``profiles/engines/vllm/classes.yaml`` has a row for each class that some release does not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.models import model_classes
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.rank_weights import module_of
from hwcalc.engines.stored import check_dealt, check_heads
from hwcalc.engines.vllm.formats import FP8, NVFP4, PER_TOKEN_HEAD, SINCE, TURBOQUANT, check_weights, read_kv_dtype
from hwcalc.engines.vllm.layer_specs import STATE_KINDS, expands_latents
from hwcalc.engines.vllm.rules import nearest_release, rules_of
from hwcalc.engines.vllm.settings import LIMITS_SINCE, TEXT_ALONE_SINCE, cached_kinds, chosen_backend, loads_towers
from hwcalc.errors import UncountedError, UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LayerKind,
    SlidingAttention,
    StreamConvolutions,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import DEFAULT_GPU, ModelSpec, Note, Noted
from hwcalc.profiles.engines import planned_version, since

if TYPE_CHECKING:
    from hwcalc.engines.setup import Parallel
    from hwcalc.engines.vllm.deployment import VllmDeployment

# Prefixes of the classes with cross attention that the V1 engine still runs.
_CROSS: Final = ("Whisper", "CohereAsr", "Nemotron")
_CROSS_UNTIL: Final = 10
_PLAIN_HYBRIDS: Final = "0.10"
"""The first release that runs windowed layers and hybrids without further options."""
_NEVER_ON_V1: Final = "never"

_OWN_CACHES: Final = ("Qwen4Exp",)
"""Classes whose indexers keep the keys of an open group of tokens in a ring, and those of whole groups in blocks of their own."""
_BOTH_WAYS: Final = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})
_AMPERE: Final = 80
_ADA: Final = 89
_B200: Final = 100
_LATENT_SINCE: Final = (0, 7, 1)
_NO_METHODS: Final = frozenset({"bitnet"})


def check_architecture(model: ModelSpec, version: str) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if ``version`` does not run the class of the model."""
    release, name = planned_version(version), model.architecture or ""
    classes = model_classes("vllm")
    classes.check(model)
    known = classes.row(model).words
    cross = any(isinstance(group.kind, CrossAttention) for group in model.stack_for("vllm").groups)
    lost = cross and bool(name) and release[1] > _CROSS_UNTIL and not name.startswith(_CROSS)
    if lost and "until" not in known:
        raise classes.refusal("never", name)
    if "until" in known and release[:2] > since(known["until"])[:2]:
        last = known["until"]
        raise UnsupportedError(
            f"vLLM {version} does not run {name}: needs vLLM <= {last}.",
            hint=f"Use: --engine vllm@{last.rpartition('.')[0]}, or another engine.",
        )
    if "since" in known and release < since(known.get("transformers", known["since"])):
        raise UnsupportedError(
            f"vLLM {version} does not know {name}: needs vLLM >= {known['since']}.", hint=_newer_release(model, known["since"])
        )
    first = known.get("v1")
    if rules_of(release).engine == "V1" and first is not None and (first == _NEVER_ON_V1 or release < since(first)):
        raise UncountedError(
            f"vLLM {version} runs {name} on its older engine (V0), whose pool kvplan does not compute for this model.",
            hint=_newer_release(model, first),
        )


def _newer_release(model: ModelSpec, first: str) -> str:
    """The hint with the first release whose V1 engine runs the class of the model: ``first``, if V0 never ran it alone."""
    first = model_classes("vllm").row(model).words.get("v1", first)
    if first == _NEVER_ON_V1:
        return "Use: --engine transformers"
    first = max(first, _PLAIN_HYBRIDS, key=since) if rules_of(since(first)).hybrid_by_hand else first
    return f"Use: --engine vllm@{first}, or a newer version."


def check_supported(deployment: VllmDeployment) -> Noted[None]:
    """Raise an error for a model, a GPU or parallel sizes that this release does not support. Notes say what is assumed."""
    model, setup, version, rules = deployment.model, deployment.setup, deployment.version, deployment.settings.rules
    gpu = setup.hardware.gpu
    if (model.architecture or "").startswith(_OWN_CACHES):
        raise UncountedError(
            f"vLLM keeps the indexers of {model.architecture} in rings and blocks of their own, which kvplan does not know yet.",
            hint="Use: --engine reference",
        )
    if is_on(setup.options.get("language_model_only")) and planned_version(version) < since(TEXT_ALONE_SINCE):
        raise UnsupportedError(
            f"vLLM {version} has no --language-model-only: it came with {TEXT_ALONE_SINCE}.",
            hint=f"Use: --engine vllm@{TEXT_ALONE_SINCE}, or a newer version.",
        )
    limits = setup.options.get("limit_mm_per_prompt")
    if limits is not None and planned_version(version) < since(LIMITS_SINCE):
        raise UnsupportedError(
            f"What vLLM {version} does with limit_mm_per_prompt is not known to kvplan: since {LIMITS_SINCE} it leaves towers out.",
            hint=f"Use: --engine vllm@{LIMITS_SINCE}, or a newer version.",
        )
    if rules.engine == "V0":
        _check_v0(deployment)
    _check_runs_v1(deployment)
    _check_release(deployment)
    _check_backends(deployment)
    _check_ranks(model, setup.parallel)
    method = str((model.quantization or {}).get("quant_method", "")).lower()
    if method in _NO_METHODS and setup.weights is None:
        # No release reads it (layers/quantization/__init__.py).
        raise UnsupportedError(
            f"vLLM has no quantisation method {method}: it refuses the checkpoint.",
            hint="Use: --engine transformers, or --weights bf16 for a checkpoint that is not quantised.",
        )
    _check_hybrid(deployment)
    notes = []
    reasons = {
        "states": bool(cached_kinds(model) & set(STATE_KINDS)),
        "drafts": deployment.settings.speculation is not None,
        "amd": gpu is not None and gpu.vendor.lower() == "amd",
        "stages": setup.parallel.pp > 1,
    }
    refused = [each for each in rules.v1_asked if reasons[each]]
    if refused:
        how = "with Ray (--distributed-executor-backend ray)" if "stages" in refused else "if VLLM_USE_V1=1 is set"
        message = f"This is the V1 engine, which vLLM {version} runs here only {how}; else it runs V0."
        notes.append(Note(code="engine-asked", message=message))
    notes += check_weights(deployment)
    nearest = nearest_release(version)
    if nearest is not None:
        message = f"The code of vLLM {version} was not read: the rules of the nearest release that was, {nearest}, are used."
        notes.append(Note(code="version-unknown", message=message))
    if model.architecture is None and model.gguf is None:
        message = "The config names no architectures: vLLM would take the model without its head, for embeddings. Planned as one that generates."
        notes.append(Note(code="no-architectures", message=message))
    if gpu is None:
        message = "No GPU given: block sizes and batches are those of an H100. Set it with --gpu."
        notes.append(Note(code=DEFAULT_GPU, message=message))
    elif gpu.vendor.lower() != "nvidia":
        message = "vLLM's rules for NVIDIA GPUs are used; other backends may choose other blocks."
        notes.append(Note(code="not-cuda", message=message))
    return Noted(None, tuple(notes))


def _check_v0(deployment: VllmDeployment) -> None:
    """Raise an error for a model whose cache V0 does not keep as equal layers of keys and values, or of latents."""
    kinds = [group.kind for group in deployment.model.stack_for("vllm").groups if group.kind.tensors()]
    plain = all(isinstance(kind, (AttentionKind, LatentAttention)) and not isinstance(kind, CrossAttention) for kind in kinds)
    if not plain or len({spec.page for spec in deployment.layout.declared}) != 1:
        raise UncountedError(
            f"vLLM {deployment.version} runs on its older engine (V0); kvplan knows its pool only for layers of equal attention.",
            hint=_newer_release(deployment.model, _PLAIN_HYBRIDS),
        )
    if any(isinstance(kind, LatentAttention) for kind in kinds) and planned_version(deployment.version) < _LATENT_SINCE:
        raise UnsupportedError(
            f"vLLM {deployment.version} keeps full keys and values of this model: multi-head latent attention came with 0.7.1.",
            hint="Use: --engine vllm@0.7, or a newer version.",
        )


def _check_runs_v1(deployment: VllmDeployment) -> None:
    """Raise an error where a release of V1 runs V0 for this GPU, dtype or draft: V0's rules are known for releases before 0.8."""
    settings, gpu = deployment.settings, deployment.setup.hardware.gpu
    if not settings.rules.v0_where:
        return
    speculation = settings.speculation
    unlike_hopper = settings.kv_dtype.startswith("fp8") and settings.capability // 10 != 9
    but_b200 = unlike_hopper and settings.capability != _B200
    before_ampere = gpu is not None and 0 < compute_capability(gpu) < _AMPERE
    drafts = speculation is not None and speculation.method == "draft"
    rows = (
        ("capability", before_ampere, "compute capability below 8.0"),
        ("fp8", unlike_hopper, "an fp8 cache on this GPU"),
        ("fp8 but 10.0", but_b200, "an fp8 cache on this GPU"),
        ("fp8 by default", but_b200 and not chosen_backend(deployment.setup.options), "an fp8 cache on this GPU by default"),
        ("draft", drafts, "a draft model"),
        ("fp32", settings.model_dtype == "fp32", "float32"),
    )
    holding = {key: words for key, holds, words in rows if holds}
    reason = next((holding[key] for key in settings.rules.v0_where if key in holding), None)
    if reason:
        raise UncountedError(
            f"vLLM {deployment.version} runs its older engine (V0) for {reason}; kvplan knows V0 only before 0.8.",
            hint=f"Use: --engine vllm@{'0.12' if 'fp8' in reason else '0.10.2'}, or a newer version.",
        )


def _check_release(deployment: VllmDeployment) -> None:
    """Raise an error for formats and parallel sizes that this release does not have yet."""
    model, setup, settings, version = deployment.model, deployment.setup, deployment.settings, deployment.version
    rules, kinds = settings.rules, cached_kinds(model)
    first = None if is_auto(setup.dtype) else SINCE.get(read_kv_dtype(setup.dtype or ""))
    if first is not None and planned_version(version) < since(first):
        raise UnsupportedError(
            f"vLLM {version} does not know --kv-cache-dtype {setup.dtype}.", hint=f"Use: --engine vllm@{first}, or --dtype fp8"
        )
    if setup.parallel.dcp > 1 and not rules.dcp:
        raise UnsupportedError(
            f"vLLM {version} has no decode context parallelism.", hint="Leave out --dcp, or use --engine vllm@0.10.2"
        )
    latent = LatentAttention in kinds and not expands_latents(model, rules)
    if latent and settings.kv_dtype.startswith("fp8") and not rules.latent_fp8:
        raise UnsupportedError(f"vLLM {version} has no fp8 cache for latent attention.", hint="Use --dtype auto")
    if CompressedAttention in kinds and not rules.compressed_auto and setup.dtype in (None, "auto"):
        raise UnsupportedError(f"vLLM {version} runs {model.architecture} only where fp8 is named.", hint="Use: --dtype fp8")
    speculates = rules.hybrid_speculation == "all" or (
        rules.hybrid_speculation == model.model_type and settings.state_caching != "align"
    )
    if settings.speculation is not None and kinds & set(STATE_KINDS) and not speculates:
        raise UnsupportedError(f"vLLM {version} does not draft tokens for {model.architecture}.", hint="Leave out the draft.")
    streams = any(isinstance(group.kind, StreamConvolutions) for group in model.stack_for("vllm").groups)
    speculation = settings.speculation
    if (
        streams
        and speculation is not None
        and speculation.method == "mtp"
        and speculation.tokens > 1
        and not rules.inkling_depths
    ):
        message = f"vLLM {version} drafts one token of {model.architecture}, not {speculation.tokens}."
        raise UnsupportedError(message, hint="Use: speculative=mtp:1, or --engine vllm@0.28")
    if CompressedAttention in kinds and setup.parallel.pp > 1 and not rules.compressed_pp:
        raise UnsupportedError(f"vLLM {version} has no pipeline stages for {model.architecture}.", hint="Leave out --pp")


def _check_backends(deployment: VllmDeployment) -> None:
    """Raise an error for a KV dtype that no backend of attention keeps for these layers (``validate_configuration`` of each).

    FlashInfer alone keeps nvfp4, and fp8 where Triton lacks it. Triton and TurboQuant keep the rest, and cannot split a context.
    """
    model, settings, setup = deployment.model, deployment.settings, deployment.setup
    kv_dtype, capability, rules = settings.kv_dtype, settings.capability, settings.rules
    title = f"vLLM {deployment.version} keeps no {kv_dtype} cache"
    if settings.dcp > 1 and kv_dtype in (*PER_TOKEN_HEAD, *TURBOQUANT):
        raise UnsupportedError(f"{title} with decode context parallelism.", hint="Use: --dtype auto, or leave out --dcp")
    nvfp4, turboquant, chosen = kv_dtype in NVFP4, kv_dtype in TURBOQUANT, chosen_backend(setup.options)
    if kv_dtype in FP8:
        _check_fp8(deployment, chosen)
    flashinfer = nvfp4 or (kv_dtype in FP8 and (chosen == "FLASHINFER" or (capability < _ADA and rules.triton_fp8_checked)))
    if not (flashinfer or turboquant):
        return
    kinds = [group.kind for group in model.stack_for("vllm").groups if isinstance(group.kind, AttentionKind)]
    # On datacenter Blackwell FlashInfer has kernels of TensorRT-LLM, elsewhere its own.
    own_kernels, heads, block = capability // 10 != _B200 // 10, rules.flashinfer_heads, settings.block_size
    blocks = (16, 32, 64) if own_kernels else (16, 32, 64, 128, 256, 512, 1024)
    widths = sorted({kind.head_dim for kind in kinds})
    text_alone = rules.text_alone_one_way and not loads_towers(model, setup.options)
    other = "fp8" if capability >= _ADA else "int8_per_token_head"
    # Whether it is refused, for what, and what to use besides another KV dtype; the first that holds counts.
    rows = (
        (
            _reads_both_ways(model) and not text_alone,
            f"for {model.architecture}: it attends to images in both directions, which the backend of that format cannot.",
            "--engine-option language_model_only=true" if rules.text_alone_one_way else "",
        ),
        (_has_sinks(model) and (turboquant or own_kernels), "for attention with sinks.", ""),
        (
            flashinfer and not set(widths) <= set(heads),
            f"for heads of {_numbers(widths)}: FlashInfer, its only backend here, has heads of {_numbers(heads)}.",
            "",
        ),
        (nvfp4 and own_kernels and 64 in widths, f"for heads of 64 on compute capability {capability / 10}.", ""),
        (nvfp4 and any(kind.head_dim != kind.v_head_dim for kind in kinds), "where keys and values are not of one width.", ""),
        (flashinfer and any(isinstance(kind, CrossAttention) for kind in kinds), "for cross attention.", ""),
        (
            flashinfer and block is not None and block not in blocks,
            f"in blocks of {block} tokens.",
            "--engine-option block_size=64",
        ),
        (
            nvfp4 and own_kernels and settings.dcp > 1,
            f"with decode context parallelism on compute capability {capability / 10}.",
            "",
        ),
    )
    for refused, why, besides in rows:
        if refused:
            raise UnsupportedError(f"{title} {why}", hint=f"Use: --dtype {other}{f', or {besides}' if besides else ''}")


def _check_fp8(deployment: VllmDeployment, chosen: str) -> None:
    """Raise an error where the back end of attention that is ``chosen``, or else the default, keeps no fp8 cache on this GPU.

    FlashAttention keeps one on SM90 alone (``flash_attn_supports_fp8``).
    """
    settings, gpu = deployment.settings, deployment.setup.hardware.gpu
    rules, family = settings.rules, settings.capability // 10
    if family in (9, 10) or (gpu is not None and gpu.vendor.lower() != "nvidia"):
        return
    title = f"vLLM {deployment.version} keeps no {settings.kv_dtype} cache on compute capability {settings.capability / 10}"
    latent, by_hand = LatentAttention in cached_kinds(deployment.model), rules.fp8_by_hand and rules.engine == "V1"
    triton = settings.capability >= _ADA or not (by_hand or rules.triton_fp8_checked)
    keeps = ("FLASHINFER", *(("TRITON_ATTN", "TRITON_ATTN_VLLM_V1") if triton else ()))
    use = f"Use: --engine-option attention_backend={keeps[0]}"
    if by_hand and latent:
        raise UnsupportedError(f"{title} for latent attention.", hint="Use: --dtype auto")
    if by_hand and not chosen:
        raise UnsupportedError(f"{title} with its default back end, FlashAttention.", hint=f"{use}, or --dtype auto")
    if chosen.startswith("FLASH_ATTN") or (by_hand and chosen not in keeps) or (chosen.startswith("TRITON") and not triton):
        raise UnsupportedError(f"{title} with the back end {chosen}.", hint=f"{use}, or --dtype auto")


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _reads_both_ways(model: ModelSpec) -> bool:
    """True if the tokens of an image see one another, also those behind them (``is_mm_prefix_lm``)."""
    text = model.config.get("text_config")
    named = text.get("use_bidirectional_attention") if isinstance(text, Mapping) else None
    return model.model_type in _BOTH_WAYS or (model.model_type.startswith("gemma4") and named == "vision")


def _has_sinks(model: ModelSpec) -> bool:
    """True if some attention has a learned sink for each head."""
    blocks = model.counted.blocks if model.counted is not None else ()
    return any(module_of(weight) == "sinks" for block in blocks for weight in block.weights)


def _check_hybrid(deployment: VllmDeployment) -> None:
    """Raise an error for what this release does not have yet of recurrent states, and of the models that have them."""
    model, settings, version, options = deployment.model, deployment.settings, deployment.version, deployment.setup.options
    rules, architecture = settings.rules, model.architecture or ""
    if model.model_type == "lfm2_moe" and settings.state_caching == "align" and not rules.lfm2_moe_caching:
        raise UnsupportedError(
            f"vLLM {version} has no prefix caching for {model.architecture}.", hint="Leave out: enable_prefix_caching=true"
        )
    if architecture.startswith("KimiLinear") and settings.state != "fp32":
        raise UnsupportedError(
            f"vLLM {version} runs {architecture} only with mamba_ssm_cache_dtype=float32.",
            hint="Leave out: mamba_ssm_cache_dtype",
        )
    own_head_dim = (
        isinstance(kind, AttentionKind) and kind.head_dim * kind.num_attention_heads != model.hidden_size
        for kind in (group.kind for group in model.stack_for("vllm").groups)
    )
    if architecture.startswith("NemotronH") and not rules.nemotron_head_dim and any(own_head_dim):
        raise UnsupportedError(
            f"vLLM {version} builds heads of hidden_size / num_attention_heads, which this checkpoint's do not fit.",
            hint="Use: --engine vllm@0.10.1, or a newer version.",
        )
    by_hand = is_on(options.get("enforce_eager")) and not is_on(options.get("enable_prefix_caching", "true"))
    if rules.hybrid_by_hand and cached_kinds(model) & set(STATE_KINDS) and not by_hand:
        raise UnsupportedError(
            f"vLLM {version} runs {model.architecture} only without CUDA graphs and prefix caching.",
            hint="Use: --engine-option enforce_eager=true --engine-option enable_prefix_caching=false, or --engine vllm@0.10",
        )


def _check_ranks(model: ModelSpec, parallel: Parallel) -> None:
    """Raise an error for parallel sizes that vLLM refuses when it starts."""
    tp, dcp, ranks = parallel.tp, parallel.dcp, parallel.tp * parallel.dp
    kinds = [group.kind for group in model.stack_for("vllm").groups]
    attention = [kind for kind in kinds if isinstance(kind, (AttentionKind, LatentAttention))]
    # Layers with as many heads are refused alike: the first of them counts.
    heads: dict[tuple[int, int | None], LayerKind] = {}
    for kind in attention:
        heads.setdefault((kind.num_attention_heads, kind.num_key_value_heads if isinstance(kind, AttentionKind) else None), kind)
    for each in heads.values():
        check_heads("vLLM", each, tp)
    if parallel.ep not in (1, ranks):
        raise UsageError(
            f"ep {parallel.ep} is not tp x dp: vLLM deals experts out over all {ranks} ranks.",
            hint=f"Use --ep {ranks}, or leave it out.",
        )
    if parallel.ep == 1 and ranks > 1:
        from hwcalc.engines.vllm.weights import check_experts

        check_experts(model, ranks)
    if dcp == 1:
        return
    if tp % dcp:
        raise UsageError(f"dcp {dcp} does not divide tp {tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    if any(isinstance(kind, (SlidingAttention, ChunkedAttention, CompressedAttention)) for kind in kinds):
        raise UsageError("vLLM has no dcp for windowed attention.", hint="Leave out --dcp.")
    for kind in attention:
        if not isinstance(kind, CrossAttention):
            check_dealt(kind, tp, dcp)
