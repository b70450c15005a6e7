"""The releases of vLLM, how they are spelled, and one table of the rules of its planner that changed between them.

Each row was read in the Python of the releases and run there (``tests/golden/vllm_versions.json``). The newest entry of a rule is what
the rest of this package describes; an older one is a difference to it.
"""

import re
from functools import lru_cache
from typing import Annotated, Final

from hwcalc.engines.versions import Rule, listed, off, on, rules_at, unknown_version
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import Version, planned_version

VERSIONS: Final = tuple(f"0.{number}" for number in range(33, 5, -1))
NEWEST: Final = VERSIONS[0]
RELEASES: Final = (
    *("0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4", "0.6.5", "0.6.6", "0.7.0", "0.7.1", "0.7.2", "0.7.3"),
    *("0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.9.0", "0.9.0.1", "0.9.1", "0.9.2"),
    *("0.10.0", "0.10.1", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1"),
    *("0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2"),
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0"),
    *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
"""The releases whose code was read for the rules, oldest first."""
REPLICAS_SINCE: Final = "0.8.3"
"""The first release with ``--data-parallel-size``, whose replicas share experts."""
_UNRELEASED: Final = r"v?(0\.[0-9]{1,3}\.[0-9]{1,3})(?:\.?(?:rc|a|b|dev)[0-9]*)?(?:\+[\w.]+)?"
"""A candidate, a development version or a build with a local label."""


@lru_cache(maxsize=256)
def resolve(requested: str) -> str:
    """The release that a spelling names: ``0.20.1`` for ``v0.20.1``, and ``0.20``, its last patch, for ``0.20``."""
    parts = requested.removeprefix("v").split(".")
    if parts[-1].startswith("post"):
        parts.pop()
    if 2 <= len(parts) <= 4 and all(part.isdecimal() and len(part) < 4 for part in parts):
        version = [int(part) for part in parts]
        if f"{version[0]}.{version[1]}" in VERSIONS:
            return ".".join(map(str, version))
    unreleased = re.fullmatch(_UNRELEASED, requested)
    released = unreleased[1] if unreleased and unreleased[1].rpartition(".")[0] in VERSIONS else None
    use = f"Use: --engine vllm@{released}. " if released else ""
    raise unknown_version("vllm", requested, hint=f"{use}{listed(VERSIONS)}.")


@lru_cache(maxsize=256)
def nearest_release(version: str) -> str | None:
    """The release whose rules hold for a version that was not read; ``None`` for one that was, and for one without a patch.

    >>> nearest_release("0.20.99"), nearest_release("0.15.0"), nearest_release("0.20.1"), nearest_release("0.20")
    ('0.20.2', '0.15.1', None, None)
    """
    if version in RELEASES or version in VERSIONS:
        return None
    planned = planned_version(version)
    same_line = [release for release in RELEASES if planned_version(release)[:2] == planned[:2]]
    return next((release for release in reversed(same_line) if planned_version(release) <= planned), same_line[0])


_UTILS: Final = "v1/core/kv_cache_utils.py"
_SPECS: Final = "v1/kv_cache_interface.py"
_MODELS: Final = "model_executor/models/config.py"
_ORACLE: Final = "engine/arg_utils.py _is_v1_supported_oracle"
_CHECK: Final = f"{_UTILS} check_enough_kv_cache_memory"
_CUDA: Final = "platforms/cuda.py check_and_update_config"
_RUNNER: Final = "v1/worker/gpu_model_runner.py get_kv_cache_spec"


class Rules(Record):
    """The rules of one release. Each rule annotates its field."""

    engine: Annotated[str, Rule((("0.8", "V1"), ("0.0", "V0")), _ORACLE)]
    """The engine that runs by default: ``V0`` or ``V1``. V0 has no groups, no null block, and keeps every token of every layer."""
    v0_where: Annotated[
        tuple[str, ...],
        Rule(
            (
                ("0.11", ()),
                ("0.10.2", ("fp8 by default",)),
                ("0.10", ("capability", "fp8 but 10.0", "draft")),
                ("0.9", ("capability", "fp8", "draft")),
                ("0.8", ("capability", "fp8", "draft", "fp32")),
                ("0.0", ()),
            ),
            _ORACLE,
        ),
    ]
    """The conditions under which a release of V1 runs V0 instead: ``capability`` below 8.0, ``fp8`` without FlashAttention 3 (``but 10.0``: unless on
    a B200), ``fp32``, a model as ``draft``."""
    v1_asked: Annotated[
        tuple[str, ...], Rule((("0.10.2", ()), ("0.9", ("states",)), ("0.8", ("stages", "drafts", "amd")), ("0.0", ())), _ORACLE)
    ]
    """The requests that run on V0 unless V1 is asked for: recurrent ``states``, pipeline ``stages``, ``drafts``, a GPU of ``amd``."""
    v0_multimodal: Annotated[int, Rule((("0.6.3", 5120), ("0.0", 4096)), "config.py SchedulerConfig")]
    """The least tokens of V0's batch for models that read images or sound."""
    v0_chunk: Annotated[int, Rule((("0.6.5", 2048), ("0.0", 512)), "config.py SchedulerConfig")]
    """Tokens of V0's batch for prompts that it cuts."""
    expert_buffers_kept: Annotated[bool, on("0.13", "v1/worker/workspace.py")]
    """True if the buffers of the expert kernels stay allocated while the profile run samples."""
    stage_remainder: Annotated[str, Rule((("0.8", "before the last"), ("0.0", "last")), "distributed/utils.py get_pp_indices")]
    """The pipeline stages that have one layer more: those ``before the last``, or only the ``last``, which has all of the remainder."""
    dcp: Annotated[bool, on("0.10.2", "engine/arg_utils.py")]
    """True if there is decode context parallelism."""
    latent_row_alignment: Annotated[
        int, Rule((("0.8", 1), ("0.7.2", 256), ("0.0", 1)), "worker/cache_engine.py get_cache_block_size")
    ]
    """Bytes of which a token's row of a latent cache is a multiple."""
    kimi_k2_latents: Annotated[bool, on("0.10", "config/__init__.py is_deepseek_mla")]
    """True if Kimi-K2's attention is latent. Before, vLLM keeps keys and values of every head."""
    latent_fp8: Annotated[bool, on("0.10.2", "v1/attention/backends/mla/flashmla.py")]
    """True if latent attention has an fp8 cache."""
    hybrid_by_hand: Annotated[bool, Rule((("0.10", False), ("0.9.2", True), ("0.0", False)), _RUNNER)]
    """True if hybrids run only without CUDA graphs and prefix caching, and with a block size that holds a state."""
    states_follow_cache: Annotated[bool, off("0.10.1", _RUNNER)]
    """True if recurrent states have the dtype of the KV cache."""
    logged_tokens: Annotated[str, Rule((("0.20.1", "request"), ("0.0", "group")), f"{_UTILS} _report_kv_cache_config")]
    """The log's tokens: ``group`` is the tokens of one group's share of the blocks, ``request`` is concurrency x length."""
    logs_own_blocks: Annotated[bool, Rule((("0.11.1", False), ("0.8", True), ("0.0", False)), f"{_UTILS} get_kv_cache_configs")]
    """True if each stage logs its own blocks, before the smallest number of all stages is taken."""
    logged_block: Annotated[str, Rule((("0.11", "group"), ("0.0", "config")), f"{_UTILS} _get_kv_cache_config_uniform_type")]
    """The block size that the log multiplies for a single group: that of the ``config``, or of the ``group``."""
    concurrency: Annotated[
        str, Rule((("0.9.1", "blocks"), ("0.0", "length")), f"{_UTILS} get_max_concurrency_for_kv_cache_config")
    ]
    """The log's concurrency: all ``blocks`` over those of a request, or all tokens over its ``length``."""
    check: Annotated[
        str,
        Rule(
            (("0.19", "groups"), ("0.17", "first"), ("0.14", "model"), ("0.8", "layers"), ("0.0", "tokens")),
            f"{_UTILS} _max_memory_usage_bytes_from_groups, check_enough_kv_cache_memory",
        ),
    ]
    """The need of one request by the check before start-up, compared with the budget.

    ``tokens``: as many tokens as the blocks have (V0). ``layers``: the sum over layers, before windowed layers are promoted. ``model``: the blocks of the first group, of the whole model
    on one rank. ``first``: the blocks of the first group, on each stage. ``groups``: the blocks of all groups.
    """
    null_block_reserved: Annotated[bool, on("0.29", f"{_UTILS} get_kv_cache_configs")]
    """True if the check leaves the null block out of the budget."""
    override_checked: Annotated[bool, Rule((("0.20.1", True), ("0.8", False), ("0.0", True)), f"{_UTILS} get_kv_cache_configs")]
    """True if the check compares with ``num_gpu_blocks_override`` instead of the budget."""
    estimate: Annotated[str, Rule((("0.9.1", "told"), ("0.8.4", "cut"), ("0.0", "none")), _CHECK)]
    """The longest length that fits, in the error: ``told``, ``cut`` before the number, or ``none``."""
    gib_unit: Annotated[str, Rule((("0.8.3", "GiB"), ("0.0", "GB")), _CHECK)]
    gib_digits: Annotated[str, Rule((("0.14", "short"), ("0.0", "fixed")), f"{_UTILS} _check_enough_kv_cache_memory")]
    """The decimals of GiB in the error: ``fixed`` has two decimals, ``short`` at most two."""
    possessive: Annotated[str, Rule((("0.22", "model's"), ("0.0", "models's")), f"{_UTILS} _check_enough_kv_cache_memory")]
    groups_layers: Annotated[bool, on("0.9.1", f"{_UTILS} get_kv_cache_config")]
    """True if layers of different kinds get groups. Before, windowed layers are kept whole where full ones exist."""
    groups_by_stage: Annotated[bool, off("0.11", f"{_UTILS} get_kv_cache_configs")]
    """True if each pipeline stage forms groups of its own layers."""
    group_ratio: Annotated[
        str, Rule((("0.18", "1.5"), ("0.12", "1.25"), ("0.0", "1")), f"{_UTILS} _get_kv_cache_groups_uniform_page_size")
    ]
    """A group has as many layers as the commonest kind, if that has less than this times as many as the rarest; else as the rarest."""
    strided_groups: Annotated[bool, on("0.11", f"{_UTILS} _get_kv_cache_groups_uniform_page_size")]
    """True if a group takes every n-th layer of its kind. Before, it takes layers in a row, and the last group is shorter."""
    sums_page_sizes: Annotated[bool, on("0.11", f"{_SPECS} UniformTypeKVCacheSpecs")]
    """True if layers of one kind with pages of different sizes form one group."""
    cuts_mixed_group: Annotated[bool, on("0.17", f"{_UTILS} _project_kv_cache_groups_to_worker")]
    """True if a pipeline stage has only its own layers of a group with pages of different sizes. Before, it pays for all of them."""
    pages_grow: Annotated[bool, on("0.12", f"{_UTILS} unify_kv_cache_spec_page_size")]
    """True if a block of a small page gets more tokens, so that all pages are of one size."""
    pads_attention: Annotated[bool, on("0.24", f"{_UTILS} unify_kv_cache_spec_page_size")]
    """True if an attention page that does not divide the largest one is padded."""
    pads_states: Annotated[bool, on("0.26", f"{_UTILS} unify_kv_cache_spec_page_size")]
    """True if a state that is smaller than the largest page is padded."""
    promotes_latents: Annotated[bool, on("0.27", f"{_UTILS} _try_get_full_allocation_fallback_groups")]
    """True if windowed layers are kept whole if a latent page cannot be brought to the size of the others."""
    keeps_latent_windows_whole: Annotated[bool, off("0.31", f"{_SPECS} SlidingWindowMLASpec, replace_as")]
    """True if windowed latent layers can be kept whole. Since, they have a field (``bounded_replay``) that whole ones lack, and vLLM ends."""
    promoted_block: Annotated[bool, on("0.27", f"{_UTILS} _promote_local_kv_cache_specs")]
    """True if a windowed layer that is kept whole takes the block size of the full layers."""
    windows: Annotated[bool, on("0.8.3", _RUNNER)]
    """True if windowed layers keep less than all tokens."""
    chunks: Annotated[
        str, Rule((("0.14", "groups"), ("0.10.1", "whole"), ("0.10", "groups"), ("0.0", "full")), "config/vllm.py __post_init__")
    ]
    """Chunked layers (Llama 4): ``groups`` of their own; kept ``whole``, but checked as chunks; or ``full`` in every respect."""
    value_width: Annotated[
        str, Rule((("0.21", "all"), ("0.20", "grouped"), ("0.0", "no")), f"{_SPECS} SlidingWindowSpec; models/mimo_v2_flash.py")
    ]
    """Where a layer has the width of its values: in ``all`` layers; not in windowed ones that are kept whole (``grouped``); or ``no``."""
    window_block_fixed: Annotated[
        bool,
        Rule((("0.30", False), ("0.25", True), ("0.0", False)), "model_executor/layers/attention/attention.py get_kv_cache_spec"),
    ]
    """True if windowed layers keep blocks of the kernel's size under a larger ``block_size``."""
    packed: Annotated[
        str, Rule((("0.27", "pages"), ("0.23", "slots"), ("0.0", "tuples")), f"{_UTILS} _get_kv_cache_config_packed")
    ]
    """DeepSeek-V4's blocks: ``pages`` side by side, ``slots`` by page size, ``tuples`` of one page of each size."""
    checks_packed_width: Annotated[bool, on("0.29", f"{_UTILS} _max_memory_usage_bytes_from_groups")]
    """True if the check counts DeepSeek-V4's blocks as wide as they are. Before, as ``tuples``."""
    batches: Annotated[
        str, Rule((("0.29", "stages"), ("0.26", "runner"), ("0.0", "one")), "config/vllm.py max_concurrent_batches")
    ]
    """Batches in flight: ``one``; ``runner``: one a stage, and one more on the V2 runner or with a single stage; ``stages``: always."""
    hybrid_caching: Annotated[bool, on("0.28", "engine/arg_utils.py _set_default_chunked_prefill_and_prefix_caching_args")]
    """True if hybrid models cache prefixes by default."""
    state_caching: Annotated[
        str, Rule((("0.28", "last"), ("0.15", "both"), ("0.11.1", "all"), ("0.0", "no")), f"{_MODELS} MambaModelConfig")
    ]
    """Recurrent states under prefix caching: ``no``; ``all`` blocks' states or nothing; ``both`` all or the last; the ``last`` ones."""
    attention_free_block: Annotated[
        str, Rule((("0.18", "block"), ("0.15", "asked"), ("0.12", "user"), ("0.0", "length")), f"{_MODELS} MambaModelConfig")
    ]
    """The tokens in a block of a model without attention that caches prefixes: the ``block`` size, one that must be ``asked`` for,
    that of the ``user`` or else the length, or the whole ``length``."""
    lfm2_moe_caching: Annotated[bool, on("0.16", "model_executor/models/lfm2_moe.py")]
    """True if Lfm2Moe starts with prefix caching, where states can be cached at all."""
    inkling_depths: Annotated[bool, on("0.28", "config/speculative.py __post_init__")]
    """True if Inkling drafts more than one token."""
    hybrid_speculation: Annotated[
        str,
        Rule(
            (("0.17", "all"), ("0.10.2", "qwen3_next"), ("0.0", "no")),
            "model_executor/layers/mamba/abstract.py get_kv_cache_spec",
        ),
    ]
    """Hybrids that may draft tokens: ``all``, only ``qwen3_next``, or ``no`` hybrid."""
    kept_states: Annotated[
        str,
        Rule(
            (("0.29", "sparse"), ("0.26", "also at junctions"), ("0.0", "ends")),
            "v1/core/single_type_kv_cache_manager.py reachable_block_mask",
        ),
    ]
    """Where prefix caching keeps a recurrent state: at the ``ends`` of prompts; ``also at junctions``, where prompts part; ``sparse``: the
    same, and windows are kept there alone."""
    forks_samples: Annotated[bool, off("0.6.4", "sequence.py ParallelSampleSequenceGroup")]
    """True if the samples of a request are forked from one sequence. Since, they are requests of their own."""
    forks_beams: Annotated[bool, off("0.6.3", "sampling_params.py use_beam_search")]
    """True if beams are forked. Since, beam search runs above the engine, in requests of one token."""
    speculated_all: Annotated[str, Rule((("0.22", "block"), ("0.20", "align"), ("0.0", "none")), f"{_MODELS} MambaModelConfig")]
    """Drafting while ``all`` states are kept: each token takes a ``block``, ``none``, or the last states are kept: ``align``."""
    retains_for_modules: Annotated[
        bool, on("0.28", f"{_UTILS} get_kv_cache_configs; config/vllm.py num_prefill_lookahead_tokens")
    ]
    """True if windowed layers keep more tokens where several layers of multi-token prediction read ahead."""
    speculated_states: Annotated[bool, on("0.15", f"{_SPECS} MambaSpec.max_memory_usage_bytes")]
    """True if each speculated token takes a block of a state."""
    hybrid_step: Annotated[str, Rule((("0.20", "user"), ("0.0", "kernel")), "platforms/interface.py _align_hybrid_block_size")]
    """A hybrid's attention block grows in steps of: ``kernel``, or ``user`` for the larger of the kernel's and the user's block."""
    latent_hybrid_step: Annotated[int, Rule((("0.27", 128), ("0.20", 16), ("0.11.1", 64), ("0.0", 16)), "platforms/interface.py")]
    """The least step for a hybrid with latent attention."""
    mamba2_checkpoint: Annotated[bool, on("0.32", "model_executor/layers/mamba/mamba_mixer2.py")]
    gated_delta_checkpoint: Annotated[bool, on("0.33", "model_executor/layers/mamba/gdn")]
    kimi_k3_checkpoint: Annotated[bool, on("0.29", "models/kimi_k3")]
    windows_by_default: Annotated[bool, off("0.10.1", "config.py ModelConfig.__post_init__, model_executor/models/gemma3n.py")]
    """True if a full layer of Gemma 3n takes the window of the windowed ones."""
    nemotron_head_dim: Annotated[bool, on("0.10.1", "model_executor/models/nemotron_h.py")]
    """True if Nemotron-H has heads of ``head_dim``. Before, they have ``hidden_size / num_attention_heads``."""
    nemotron_states: Annotated[
        str, Rule((("0.20", "fp32"), ("0.13", "fp16"), ("0.0", "conv")), f"{_MODELS} NemotronHForCausalLMConfig")
    ]
    """The default of Nemotron-H's states: ``conv`` is the format of convolutions."""
    gated_delta_dtype: Annotated[bool, on("0.17", "model_executor/layers/mamba/mamba_utils.py")]
    """True if ``mamba_ssm_cache_dtype`` holds for gated delta nets."""
    kimi_delta_dtype: Annotated[bool, on("0.30", "models/kimi_k3/nvidia/kda.py")]
    """True if it holds for Kimi's delta attention, whose states are fp32 otherwise."""
    config_states: Annotated[bool, on("0.17", f"{_MODELS} Qwen3_5ForConditionalGenerationConfig")]
    """True if Qwen3.5's states have the format that the config names."""
    latent_block: Annotated[int, Rule((("0.18", 16), ("0.8", 64), ("0.0", 16)), _CUDA)]
    """The block size of multi-head latent attention on SM90."""
    latent_block_forced: Annotated[str, Rule((("0.18", "no"), ("0.11.1", "multiple"), ("0.8", "equal"), ("0.0", "no")), _CUDA)]
    """The block size of a user that SM90 does not replace by :attr:`latent_block`: any (``no``), a ``multiple``, or an ``equal`` one."""
    sparse_block_forced: Annotated[bool, off("0.18", _CUDA)]
    """True if sparse latent attention takes blocks of 64 whatever the user's."""
    latent_block_sm10x: Annotated[int, Rule((("0.18", 0), ("0.15", 64), ("0.10.1", 128), ("0.0", 16)), _CUDA)]
    """The block size of latent attention on SM10x; 0 if it depends on the width of the keys."""
    wide_head_step: Annotated[
        int, Rule((("0.18", 16), ("0.11.1", 32), ("0.0", 16)), f"{_MODELS} HybridAttentionMambaModelConfig")
    ]
    """The step of a hybrid's block on SM10x with heads of 256."""
    wide_fp8_block: Annotated[int, Rule((("0.31", 64), ("0.0", 16)), "v1/attention/backends/flash_attn.py")]
    """The block size on SM90 of an fp8 cache with heads of 512 (Gemma 4)."""
    sparse_auto: Annotated[str, Rule((("0.11.1", "auto"), ("0.0", "fp8_ds_mla")), f"{_MODELS} DeepseekV32ForCausalLM")]
    """DeepSeek-V3.2's cache for ``auto``: ``fp8_ds_mla`` or ``auto``."""
    mimo_v2_dtype: Annotated[bool, on("0.32", "models/mimo_v2.py")]
    """True if MiMo-V2's attention hears of the KV dtype."""
    sparse_fp8: Annotated[str, Rule((("0.18", "gpu"), ("0.0", "own")), f"{_MODELS} DeepseekV32ForCausalLM")]
    """DeepSeek-V3.2's cache for fp8: its ``own`` layout of 656 bytes on every GPU, or by the ``gpu``."""
    compressed_blocks: Annotated[
        tuple[int, ...], Rule((("0.27", (128, 256)), ("0.0", (256,))), "v1/attention/backends/mla/indexer.py")
    ]
    """The block sizes of compressed latent attention that may be asked for."""
    compressed_auto: Annotated[bool, on("0.30", "models/deepseek_v4/attention.py")]
    """True if DeepSeek-V4 takes ``auto``. Before, fp8 must be named."""
    compressed_pp: Annotated[bool, on("0.21", "models/deepseek_v4")]
    """True if DeepSeek-V4 runs on pipeline stages."""
    flashinfer_heads: Annotated[
        tuple[int, ...], Rule((("0.22", (64, 128, 256, 512)), ("0.0", (64, 128, 256))), "v1/attention/backends/flashinfer.py")
    ]
    """The widths of heads that FlashInfer has."""
    text_alone_one_way: Annotated[bool, on("0.27", "transformers_utils/model_arch_config_convertor.py is_mm_prefix_lm")]
    """True if a model that reads images in both directions is planned without them where it is served for text alone."""
    fp8_by_hand: Annotated[bool, off("0.12", "platforms/cuda.py is_kv_cache_dtype_supported")]
    """True if the default back end refuses an fp8 cache but on SM90 and SM10x, whatever other back ends would do."""
    triton_fp8_checked: Annotated[bool, on("0.24", "v1/attention/backends/triton_attn.py")]
    """True if Triton refuses an fp8 cache below compute capability 8.9."""
    glm_sparse_fp8: Annotated[bool, on("0.32", f"{_MODELS} GlmMoeDsaForCausalLM")]
    """True if GLM-5's cache is fp8 on SM10x by default."""
    batch_within_lengths: Annotated[bool, on("0.11.1", "engine/arg_utils.py")]
    """True if the default batch is at most all requests' longest sequences."""
    whole_encoder: Annotated[bool, on("0.11", f"{_SPECS} CrossAttentionSpec")]
    """True if cross attention reserves as many tokens as a batch has. Before, those of the longest input of the encoder."""
    states_checked: Annotated[bool, on("0.20", "config/compilation.py")]
    """True if a start with more ``max_num_seqs`` than state blocks is refused."""
    multiplies_yarn: Annotated[bool, off("0.30", "config/model.py _get_and_verify_max_len")]
    """True if the longest sequence of a YaRN model is its original length times the factor. Since, it is what the config says."""


@lru_cache(maxsize=64)
def rules_of(version: Version) -> Rules:
    """The rules of one release."""
    return rules_at(Rules, version)
