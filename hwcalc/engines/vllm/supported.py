"""What a release of vLLM accepts: model classes, GPUs and parallel sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.stored import check_heads
from hwcalc.engines.vllm.classes import PLAIN_HYBRIDS, expands_latents, newer_release
from hwcalc.engines.vllm.formats import check_weights, first_release, read_kv_dtype
from hwcalc.engines.vllm.layer_specs import STATE_KINDS
from hwcalc.engines.vllm.settings import cached_kinds
from hwcalc.engines.vllm.versions import nearest_release, since
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, CompressedAttention, CrossAttention, LatentAttention, LayerKind, SlidingAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.setup import Parallel
    from hwcalc.engines.vllm.deployment import VllmDeployment

_OWN_CACHES: Final = ("Inkling", "Qwen4Exp", "Zaya")
_VENDORS: Final = ("nvidia", "amd")
_LEAST_CAPABILITY: Final = 70
"""Compute capability 7.0, which vLLM's installation page requires."""
_AMPERE: Final = 80
_B200: Final = 100
_LATENT_SINCE: Final = (0, 7, 1)
_NO_METHODS: Final = frozenset({"bitnet"})


def check_supported(deployment: VllmDeployment) -> Noted[None]:
    """Raise an error for a model, a GPU or parallel sizes that this release does not support. Notes say what is assumed."""
    model, gpu = deployment.model, deployment.setup.hardware.gpu
    if (model.architecture or "").startswith(_OWN_CACHES):
        raise UnsupportedError(
            f"vLLM keeps the short convolutions of {model.architecture} in caches of their own, which kvplan does not know yet.",
            hint="Use: --engine reference",
        )
    if deployment.settings.rules.engine == "V0":
        _check_v0(deployment)
    _check_engine(deployment)
    _check_ranks(model, deployment.setup.parallel)
    _check_method(deployment)
    _check_release(deployment)
    notes = [*_asked_for(deployment), *check_weights(deployment)]
    nearest = nearest_release(deployment.version)
    if nearest is not None:
        message = (
            f"The code of vLLM {deployment.version} was not read: the rules of the nearest release that was, {nearest}, are used."
        )
        notes.append(Note(code="version-unknown", message=message))
    if gpu is None:
        message = "No GPU given: block sizes and batches are those of an H100. Set it with --gpu."
        notes.append(Note(code="default-gpu", message=message))
    elif gpu.vendor.lower() not in _VENDORS or 0 < compute_capability(gpu) < _LEAST_CAPABILITY:
        raise UnsupportedError(
            f"vLLM's rules for {gpu.name} are not known.",
            hint="Known: NVIDIA GPUs from compute capability 7.0 on, and AMD's. Without --gpu: give a budget with --kv-memory.",
        )
    elif gpu.vendor.lower() != "nvidia":
        message = "vLLM's rules for NVIDIA GPUs are used; other backends may choose other blocks."
        notes.append(Note(code="not-cuda", message=message))
    return Noted(None, tuple(notes))


def _check_v0(deployment: VllmDeployment) -> None:
    """Raise an error for a model whose cache V0 does not keep as equal layers of keys and values, or of latents."""
    kinds = [group.kind for group in deployment.model.stack_for("vllm").groups if group.kind.tensors()]
    plain = all(isinstance(kind, (AttentionKind, LatentAttention)) and not isinstance(kind, CrossAttention) for kind in kinds)
    if not plain or len({spec.page for spec in deployment.layout.declared}) != 1:
        raise UnsupportedError(
            f"vLLM {deployment.version} runs on its older engine (V0); kvplan knows its pool only for layers of equal attention.",
            hint=newer_release(deployment.model, PLAIN_HYBRIDS),
        )
    if any(isinstance(kind, LatentAttention) for kind in kinds) and planned_version(deployment.version) < _LATENT_SINCE:
        raise UnsupportedError(
            f"vLLM {deployment.version} keeps full keys and values of this model: multi-head latent attention came with 0.7.1.",
            hint="Use: --engine vllm@0.7, or a newer version.",
        )


def _check_engine(deployment: VllmDeployment) -> None:
    """Raise an error where a release of V1 runs V0 for this GPU, dtype or draft: V0's rules are known for releases before 0.8."""
    settings, gpu = deployment.settings, deployment.setup.hardware.gpu
    if not settings.rules.v0_where:
        return
    speculation = settings.speculation
    unlike_hopper = settings.kv_dtype.startswith("fp8") and settings.capability // 10 != 9
    reasons = {
        "capability": gpu is not None and 0 < compute_capability(gpu) < _AMPERE and "compute capability below 8.0",
        "fp8": unlike_hopper and "an fp8 cache on this GPU",
        "fp8 but 10.0": unlike_hopper and settings.capability != _B200 and "an fp8 cache on this GPU",
        "draft": speculation is not None and speculation.method == "draft" and "a draft model",
        "fp32": settings.model_dtype == "fp32" and "float32",
    }
    reason = next((reasons[each] for each in settings.rules.v0_where if reasons[each]), None)
    if reason:
        raise UnsupportedError(
            f"vLLM {deployment.version} runs its older engine (V0) for {reason}; kvplan knows V0 only before 0.8.",
            hint="Use: --engine vllm@0.10.2, or a newer version.",
        )


def _asked_for(deployment: VllmDeployment) -> Iterator[Note]:
    """A note where a release runs V1 only if it is told to."""
    gpu, where = deployment.setup.hardware.gpu, deployment.settings.rules.v1_asked
    if not where:
        return
    reasons = {
        "states": bool(cached_kinds(deployment.model) & set(STATE_KINDS)),
        "drafts": deployment.settings.speculation is not None,
        "amd": gpu is not None and gpu.vendor.lower() == "amd",
        "stages": deployment.setup.parallel.pp > 1,
    }
    refused = [each for each in where if reasons[each]]
    if refused:
        how = "with Ray (--distributed-executor-backend ray)" if "stages" in refused else "if VLLM_USE_V1=1 is set"
        yield Note(
            code="engine-asked",
            message=f"This is the V1 engine, which vLLM {deployment.version} runs here only {how}; else it runs V0.",
        )


def _check_method(deployment: VllmDeployment) -> None:
    """Raise an error for a checkpoint in a format that no release reads (layers/quantization/__init__.py)."""
    method = str((deployment.model.quantization or {}).get("quant_method", "")).lower()
    if method in _NO_METHODS and deployment.setup.weights is None:
        raise UnsupportedError(
            f"vLLM has no quantisation method {method}: it refuses the checkpoint.",
            hint="Use: --engine transformers, or --weights bf16 for a checkpoint that is not quantised.",
        )


def _check_release(deployment: VllmDeployment) -> None:
    """Raise an error for what this release does not have yet."""
    model, parallel, options = deployment.model, deployment.setup.parallel, deployment.setup.options
    rules, version, kinds = deployment.settings.rules, deployment.version, cached_kinds(deployment.model)
    first = None if is_auto(deployment.setup.dtype) else first_release(read_kv_dtype(deployment.setup.dtype or ""))
    if first is not None and planned_version(version) < since(first):
        raise UnsupportedError(
            f"vLLM {version} does not know --kv-cache-dtype {deployment.setup.dtype}.",
            hint=f"Use: --engine vllm@{first}, or --dtype fp8",
        )
    if parallel.dcp > 1 and not rules.dcp:
        raise UnsupportedError(
            f"vLLM {version} has no decode context parallelism.", hint="Leave out --dcp, or use --engine vllm@0.10.2"
        )
    latent = LatentAttention in kinds and not expands_latents(model, rules)
    if latent and deployment.settings.kv_dtype.startswith("fp8") and not rules.latent_fp8:
        raise UnsupportedError(f"vLLM {version} has no fp8 cache for latent attention.", hint="Use --dtype auto")
    if CompressedAttention in kinds and not rules.compressed_auto and deployment.setup.dtype in (None, "auto"):
        raise UnsupportedError(f"vLLM {version} runs {model.architecture} only where fp8 is named.", hint="Use: --dtype fp8")
    last = deployment.settings.state_caching == "align"
    speculates = rules.hybrid_speculation == "all" or (rules.hybrid_speculation == model.model_type and not last)
    if deployment.settings.speculation is not None and kinds & set(STATE_KINDS) and not speculates:
        raise UnsupportedError(f"vLLM {version} does not draft tokens for {model.architecture}.", hint="Leave out the draft.")
    if CompressedAttention in kinds and parallel.pp > 1 and not rules.compressed_pp:
        raise UnsupportedError(f"vLLM {version} has no pipeline stages for {model.architecture}.", hint="Leave out --pp")
    if model.model_type == "lfm2_moe" and last and not rules.lfm2_moe_caching:
        raise UnsupportedError(
            f"vLLM {version} has no prefix caching for {model.architecture}.", hint="Leave out: enable_prefix_caching=true"
        )
    if (model.architecture or "").startswith("KimiLinear") and deployment.settings.state != "fp32":
        raise UnsupportedError(
            f"vLLM {version} runs {model.architecture} only with mamba_ssm_cache_dtype=float32.",
            hint="Leave out: mamba_ssm_cache_dtype",
        )
    if (model.architecture or "").startswith("NemotronH") and not rules.nemotron_head_dim and _has_own_head_dim(model):
        raise UnsupportedError(
            f"vLLM {version} builds heads of hidden_size / num_attention_heads, which this checkpoint's do not fit.",
            hint="Use: --engine vllm@0.10.1, or a newer version.",
        )
    by_hand = is_on(options.get("enforce_eager")) and not is_on(options.get("enable_prefix_caching", "true"))
    if rules.hybrid_by_hand and kinds & set(STATE_KINDS) and not by_hand:
        raise UnsupportedError(
            f"vLLM {version} runs {model.architecture} only without CUDA graphs and prefix caching.",
            hint="Use: --engine-option enforce_eager=true --engine-option enable_prefix_caching=false, or --engine vllm@0.10",
        )


def _has_own_head_dim(model: ModelSpec) -> bool:
    kinds = (group.kind for group in model.stack_for("vllm").groups)
    return any(
        isinstance(kind, AttentionKind) and kind.head_dim * kind.num_attention_heads != model.hidden_size for kind in kinds
    )


def _distinct_heads(attention: Iterable[AttentionKind | LatentAttention]) -> tuple[LayerKind, ...]:
    """The first layer of each number of heads."""
    first: dict[tuple[int, int | None], LayerKind] = {}
    for kind in attention:
        first.setdefault((kind.num_attention_heads, kind.num_key_value_heads if isinstance(kind, AttentionKind) else None), kind)
    return tuple(first.values())


def _check_ranks(model: ModelSpec, parallel: Parallel) -> None:
    """Raise an error for parallel sizes that vLLM refuses when it starts."""
    kinds = [group.kind for group in model.stack_for("vllm").groups]
    attention = [kind for kind in kinds if isinstance(kind, (AttentionKind, LatentAttention))]
    # Layers with as many heads are refused alike.
    for kind in model.once("vllm heads", lambda: _distinct_heads(attention)):
        check_heads("vLLM", kind, parallel.tp)
    if parallel.ep not in (1, parallel.tp * parallel.dp):
        raise UsageError(
            f"ep {parallel.ep} is not tp x dp: vLLM deals experts out over all {parallel.tp * parallel.dp} ranks.",
            hint=f"Use --ep {parallel.tp * parallel.dp}, or leave it out.",
        )
    if parallel.ep == 1 and parallel.tp * parallel.dp > 1:
        from hwcalc.engines.vllm.weights import check_experts

        check_experts(model, parallel.tp * parallel.dp)
    if parallel.dcp == 1:
        return
    if parallel.tp % parallel.dcp:
        raise UsageError(f"dcp {parallel.dcp} does not divide tp {parallel.tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    if any(isinstance(kind, (SlidingAttention, ChunkedAttention, CompressedAttention)) for kind in kinds):
        raise UsageError("vLLM has no dcp for windowed attention.", hint="Leave out --dcp.")
    for kind in attention:
        if not isinstance(kind, AttentionKind) or isinstance(kind, CrossAttention):
            continue
        most = parallel.tp // kind.num_key_value_heads
        if most < parallel.dcp:
            raise UsageError(
                f"dcp {parallel.dcp} needs {parallel.dcp} ranks for each of the {kind.num_key_value_heads} key/value heads; "
                f"tp {parallel.tp} has {most}.",
                hint=f"Use --tp {parallel.dcp * kind.num_key_value_heads}, or leave out --dcp.",
            )
