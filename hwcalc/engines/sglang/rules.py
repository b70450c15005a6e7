"""The releases of SGLang, and one table of the rules of its pools and defaults that changed between them.

Each row was read in the Python of the releases, whose own resolution of arguments and pool configurators were run
(``tests/golden/sglang_versions.json``). The newest entry of a rule is what the rest of this package describes; an older one is a difference
to it. The classes that a release has stand in ``profiles/engines/sglang/classes.yaml``.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final

from hwcalc.engines.versions import Rule, listed, off, on, rules_at, unknown_version
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup

VERSIONS: Final = tuple(f"0.5.{number}" for number in range(23, 5, -1))
"""The releases whose code was read for the rules, newest first."""
NEWEST: Final = VERSIONS[0]
_LINE: Final = "0.5"
ARGUMENTS_SINCE: Final = {
    "0.5.23": "aux_hidden_state_capture",
    "0.5.22": "attn_dp_size",
    "0.5.21": "boundary_reduction",
    "0.5.20": "dsv4_attn_backend",
    "0.5.19": "enable_layernorm_sp",
    "0.5.18": "language_model_only",
    "0.5.17": "mamba_max_states_per_path",
    "0.5.16": "enable_flexkv",
    "0.5.15": "bf16_gemm_backend",
    "0.5.14": "cuda_graph_config",
    "0.5.13": "dsa_topk_backend",
    "0.5.12": "detokenizer_worker_num",
    "0.5.11": "enable_mis",
    "0.5.10": "enable_hisparse",
    "0.5.9": "attn_cp_size",
    "0.5.8": "enable_prefill_delayer",
    "0.5.7": "enable_multi_layer_eagle",
    "0.5.6": "enable_fused_qk_norm_rope",
}
"""Each release with a server argument that came with it and stayed: a start prints them all (``server_args.py``)."""


@lru_cache(maxsize=256)
def resolve(requested: str) -> str:
    """The release that a spelling names: ``0.5.20`` for ``v0.5.20`` and ``0.5.20.post1``, and the newest for ``0.5``."""
    spelled = requested.removeprefix("v")
    release, post, number = spelled.partition(".post")
    if spelled == _LINE:
        return NEWEST
    if release in VERSIONS and (not post or number.isdecimal()):
        return release
    raise unknown_version("sglang", requested, hint=f"{listed(VERSIONS)} ({', '.join(reversed(VERSIONS))}).")


_MEMORY: Final = "arg_groups/memory_hook.py handle_gpu_memory_settings"
_POOLS: Final = "model_executor/pool_configurator.py"
_CONFIGURATOR: Final = "mem_cache/kv_cache_configurator.py"
_MIXIN: Final = "model_executor/model_runner_kv_cache_mixin.py"


class Rules(Record):
    """The rules of one release. Each rule annotates its field."""

    version: str
    """The release."""
    small_gpu_chunk: Annotated[int, Rule((("0.5.20", 4096), ("0.0", 2048)), _MEMORY)]
    """Tokens of a prompt in a batch on GPUs of 20 to 35 GiB."""
    small_gpu_graphs: Annotated[tuple[int, int], Rule((("0.5.20", (48, 160)), ("0.0", (24, 80))), _MEMORY)]
    """The largest batch of a graph on them, with fewer than four ranks and with more."""
    graph_within_requests: Annotated[bool, on("0.5.22", _MEMORY)]
    """True if the largest batch of a graph is at most ``max_running_requests``, where that is named."""
    draft_mib: Annotated[
        int, Rule((("0.5.14", 0), ("0.5.10", 4096), ("0.0", 2048)), "server_args.py _handle_gpu_memory_settings")
    ]
    """MiB of a GPU that a draft has beyond what every model reserves."""
    unknown_gpu_share: Annotated[float, Rule((("0.5.20", 0.95), ("0.0", 0.88)), _MEMORY)]
    """The share of the memory of a GPU whose size is unknown."""
    image_cache_mib: Annotated[int, Rule((("0.5.18", 100), ("0.0", 0)), f"{_CONFIGURATOR} mm_runtime_reservation_gb")]
    """MiB of the pools that are left for embeddings of images."""
    fp4_kernels: Annotated[
        tuple[tuple[str, ...], tuple[str, ...]],
        Rule(
            (
                ("0.5.17", (("triton", "torch_native", "flex_attention", "trtllm_mha"), ("flashinfer",))),
                ("0.5.16", (("triton", "torch_native", "flex_attention", "trtllm_mha"), ("flashinfer", "cutlass_mla"))),
                (
                    "0.5.7",
                    (
                        ("triton", "torch_native", "flex_attention", "trtllm_mha"),
                        ("flashinfer", "trtllm_mla", "flashmla", "cutlass_mla"),
                    ),
                ),
                ("0.0", ((), ())),
            ),
            "arg_groups/kv_cache_hook.py handle_kv4_compatibility",
        ),
    ]
    """The kernels of attention that read keys and values of four bits, and latents. Of ``nvfp4``, since ``fp4_by_method``, others do. Empty
    where SGLang does not look."""
    kv_dtypes: Annotated[
        tuple[str, ...],
        Rule(
            (
                ("0.5.16", ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")),
                ("0.0", ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1")),
            ),
            "server_args.py kv_cache_dtype",
        ),
    ]
    """The values of ``--kv-cache-dtype``."""
    copies_by_default: Annotated[bool, on("0.5.14", "server_args.py _handle_mamba_radix_cache")]
    """True if states are copied while the next batch is computed where nobody says otherwise, and what cannot be is refused. Before, the
    prefix cache copies nothing and the next batch waits."""
    single_token_pages: Annotated[
        bool, Rule((("0.5.14", False), ("0.5.11", True), ("0.0", False)), "server_args.py _handle_mamba_radix_cache")
    ]
    """True if a prefix cache that copies no states sets pages of one token. Since, it refuses others."""
    drafts_drop_cache: Annotated[
        tuple[str, ...],
        Rule(
            (("0.5.10", ()), ("0.5.9", ("",)), ("0.5.8", ("NemotronH",)), ("0.0", ())), "server_args.py _handle_mamba_radix_cache"
        ),
    ]
    """Beginnings of the names of classes whose prefix cache a draft turns off, if it copies no states."""
    drafts_overlap: Annotated[bool, on("0.5.11", "environ.py SGLANG_ENABLE_SPEC_V2")]
    """True if drafts are checked while the next batch is made (``SGLANG_ENABLE_SPEC_V2``)."""
    drafts_need_copies: Annotated[bool, on("0.5.10", "server_args.py _handle_mamba_radix_cache")]
    """True if a draft is refused beside a prefix cache that copies no states."""
    own_kernels: Annotated[
        str,
        Rule((("0.5.9", "always"), ("0.5.7", "cached"), ("0.0", "never")), "server_args.py _handle_model_specific_adjustments"),
    ]
    """The times at which hybrids have a kernel of their own on Blackwell: ``always``, with a prefix cache alone (``cached``), or ``never``."""
    runs_on_consumer: Annotated[bool, on("0.5.7", "server_args.py _handle_attention_backend_compatibility")]
    """True if SGLang takes a kernel that consumer GPUs of Blackwell have. Before, it ends there unless one is named."""
    names_strategy: Annotated[bool, on("0.5.7", "server_args.py mamba_scheduler_strategy")]
    """True if there is ``--mamba-scheduler-strategy``."""
    kernel_sets_page: Annotated[bool, on("0.5.14", "server_args.py _handle_model_specific_adjustments")]
    """True if hybrids whose kernel on Blackwell SGLang chooses have its page, whatever is named."""
    without_prefix_cache: Annotated[
        tuple[str, ...],
        Rule(
            (
                ("0.5.14", ()),
                ("0.5.13", ("KimiLinearForCausalLM",)),
                ("0.0", ("KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM")),
            ),
            "server_args.py _handle_mamba_radix_cache",
        ),
    ]
    """Classes whose prefix cache SGLang turns off."""
    named_limit: Annotated[
        str, Rule((("0.5.14", "tokens"), ("0.5.10", "usual"), ("0.0", "nothing")), f"{_MIXIN} _resolve_max_num_reqs")
    ]
    """The limit of a ``max_running_requests`` that is named: half the ``tokens`` of the pool, what SGLang itself would take (``usual``), or
    ``nothing``."""
    requests_from_profile: Annotated[bool, off("0.5.10", f"{_MIXIN} init_memory_pool")]
    """True if what SGLang itself would take follows from the tokens of all layers that memory allows, before pages, ``max_total_tokens``
    and windows."""
    draft_layers_counted: Annotated[str, Rule((("0.5.15", "all"), ("0.5.14", "whole"), ("0.0", "no")), _POOLS)]
    """Where a token is counted with the layers of a draft: in ``all`` pools, in those without windows of their own (``whole``), or ``no``."""
    windows_by_requests: Annotated[bool, on("0.5.14", f"{_POOLS} SWAChunkCapPoolConfigurator")]
    """True if windows without a prefix cache follow from a named number of requests."""
    windows_from_tokens: Annotated[bool, off("0.5.11", f"{_MIXIN} _resolve_hybrid_swa_tokens")]
    """True if both pools are solved from whole tokens of all layers, in whole pages, to which ``max_total_tokens`` applies. Since, from
    bytes."""
    window_check: Annotated[bool, on("0.5.16", f"{_POOLS} HybridSWAPoolConfigurator")]
    """True if a pool of windows that holds no request is refused."""
    weights_check: Annotated[bool, on("0.5.14", f"{_MIXIN} _profile_available_bytes")]
    """True if SGLang says that weights leave nothing. Before, it says that the memory is not enough."""
    padding_slot: Annotated[bool, on("0.5.17", f"{_CONFIGURATOR} _handle_max_mamba_cache")]
    """True if the slot of states that pads the pool is counted, and that of each draft's copies."""
    state_copies: Annotated[
        str,
        Rule((("0.5.10", "overlap"), ("0.5.8", "drafts"), ("0.5.7", "any"), ("0.0", "none")), f"{_MIXIN} _calculate_mamba_ratio"),
    ]
    """By what a request has slots for copies of its states: ``overlap`` of batches, ``drafts`` (one, and two without), ``any`` prefix cache
    (two, and one with drafts that copy), or ``none``."""
    draft_states: Annotated[
        str,
        Rule(
            (("0.5.13", "request"), ("0.5.8", "named"), ("0.5.7", "cached"), ("0.0", "slot")), f"{_MIXIN} handle_max_mamba_cache"
        ),
    ]
    """The holder of a draft's states: each ``request`` that has slots, each that is ``named``, of which memory comes before the slots,
    those of all replicas with a prefix cache alone (``cached``), or each ``slot``."""
    usual_state_slots: Annotated[int, Rule((("0.5.9", 0), ("0.0", 512)), f"{_MIXIN} handle_max_mamba_cache")]
    """Slots for states without a prefix cache where nobody names a number of requests; 0 where they have a share of the memory."""
    named_state_slots: Annotated[bool, on("0.5.7", f"{_MIXIN} handle_max_mamba_cache")]
    """True if a number of slots for states that is named counts with a prefix cache, too."""
    delta_replicas: Annotated[bool, off("0.5.7", "model_executor/model_runner.py handle_max_mamba_cache")]
    """True if replicas share the slots of gated delta nets, however they are counted, and no others."""
    draft_headroom: Annotated[bool, off("0.5.7", "model_executor/model_runner.py init_memory_pool")]
    """True if a draft adds the tokens that all requests draft and check to the pool."""
    config_state_dtype: Annotated[bool, on("0.5.9", "configs/mamba_utils.py mamba2_state_dtype")]
    """True if states have the dtype that the config names. Before, they have 32 bits unless the user says otherwise."""
    attention_by_stage: Annotated[bool, on("0.5.8", f"{_MIXIN} profile_max_num_token")]
    """True if a pipeline stage of a model with states counts its own attention alone. Before, it counts that of all layers."""
    states_by_stage: Annotated[bool, on("0.5.17", f"{_CONFIGURATOR} _handle_max_mamba_cache")]
    """True if a pipeline stage counts the states of its own layers alone. Before, each stage counts those of all layers."""
    least_one_request: Annotated[bool, on("0.5.23", f"{_CONFIGURATOR} resolve_max_num_reqs")]
    """True if a replica has one request at the least. Before, fewer requests than replicas leave none."""
    raw_tilelang: Annotated[bool, on("0.5.22", f"{_CONFIGURATOR} calculate_mla_kv_cache_dim")]
    """True if sparse latents in fp8 have no scales for the kernels of ``tilelang``, too."""
    index_fp8: Annotated[
        tuple[str, ...],
        Rule(
            (("0.5.23", ("blackwell", "hopper")), ("0.5.21", ("blackwell",)), ("0.0", ())),
            "mem_cache/memory_pool.py get_minimax_sparse_index_dtype",
        ),
    ]
    """The accelerators where the indexer of MiniMax-M3 is in fp8, as its cache is: ``blackwell`` with its own kernels, and ``hopper``."""
    unnamed_kernels: Annotated[
        tuple[str, ...],
        Rule(
            (("0.5.22", ()), ("0.5.17", ("Exaone", "MiMoV2")), ("0.0", ("Exaone", "MiMoV2", "Lfm2Moe"))),
            "arg_groups/model_overrides/exaone.py, mimo_v2.py; arg_groups/overrides.py _lfm2_overrides",
        ),
    ]
    """Beginnings of the names of classes that do not name their kernel on Blackwell yet: they take the usual one."""
    on_triton: Annotated[
        tuple[str, ...],
        Rule(
            (("0.5.13", ()), ("0.5.10", ("Gemma4", "GraniteMoeHybrid")), ("0.0", ("GraniteMoeHybrid", "Qwen3Next", "Qwen3_5"))),
            "server_args.py _handle_model_specific_adjustments",
        ),
    ]
    """Beginnings of the names of classes that Triton's kernel reads on Blackwell, and no longer does since."""
    nemotron_on_trtllm: Annotated[bool, on("0.5.19", "arg_groups/model_overrides/nemotron_h.py")]
    """True if Nemotron hybrids are read by TensorRT-LLM's kernel on Blackwell. Before, by FlashInfer."""
    counts_latent_scales: Annotated[bool, on("0.5.17", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size")]
    """True if a token of sparse latents in fp8 is counted with its scales, which it is stored with."""
    unlike_on_fa4: Annotated[bool, on("0.5.17", "arg_groups/model_override_base.py get_default_attn_backend")]
    """True if keys and values of different widths are read by FlashAttention 4 on Blackwell."""
    graphless: Annotated[
        tuple[str, ...],
        Rule(
            (
                ("0.5.20", ("delta",)),
                ("0.5.18", ()),
                ("0.5.17", ("latent", "nemotron")),
                ("0.5.15", ("latent", "sparse latent", "replicas", "adapters")),
                ("0.5.13", ("Qwen3-Next", "replicas", "adapters")),
                ("0.5.11", ("Qwen3-Next", "sparse latent", "replicas", "adapters")),
                ("0.5.10", ("Qwen3-Next", "sparse latent", "replicas", "adapters", "drafts")),
                ("0.0", ("all",)),
            ),
            "arg_groups/cuda_graph_hook.py disable_breakable_cudagraph_if_incompatible; server_args.py _handle_piecewise_cuda_graph",
        ),
    ]
    """Where prompts run in no graphs: with Kimi's ``delta`` attention, ``latent`` attention without indexers and with them (``sparse latent``),
    in ``nemotron`` hybrids and ``Qwen3-Next``, with ``replicas`` of attention, with ``adapters``, with ``drafts``, and with ``all``."""
    adapted_tables: Annotated[bool, on("0.5.10", "server_args.py check_lora_server_args")]
    """True if adapters of ``all`` modules have buffers for embedding and output layer. Before, ``csgmv``, which is the usual back end, had none."""
    pins_adapters: Annotated[bool, on("0.5.8", "lora/lora.py")]
    """True if adapters in host memory are pinned."""
    piecewise_images: Annotated[
        tuple[str, ...],
        Rule(
            (
                ("0.5.22", ()),
                ("0.5.19", ("MiniMaxM3Sparse",)),
                ("0.5.18", ("MiniMaxM3Sparse", "Cohere2Vision")),
                ("0.5.16", ("MiniMaxM3Sparse", "Cohere2Vision", "KimiK25")),
                ("0.5.14", ("Cohere2Vision",)),
                ("0.0", ()),
            ),
            "configs/model_config.py multimodal_piecewise_cuda_graph_supported_model_archs",
        ),
    ]
    """Beginnings of the names of classes with towers whose prompts run in graphs of pieces, which replicas and stages do without."""
    graphs_with_stages: Annotated[
        bool, Rule((("0.5.19", False), ("0.5.15", True), ("0.0", False)), "server_args.py _apply_cuda_graph_compatibility")
    ]
    """True if prompts run in graphs on pipeline stages."""
    shares_indexers: Annotated[bool, on("0.5.18", f"{_POOLS} DefaultPoolConfigurator._compute_dsa_indexer_cell_size")]
    """True if layers that take the indexer of another one have none of their own."""
    windows_by_stage: Annotated[
        bool, on("0.5.21", "model_executor/model_runner_components/layer_setup.py adjust_hybrid_swa_layer_ids")
    ]
    """True if a pipeline stage of a model with windows counts its own layers alone. Before, it counts the next stage's first one, too."""
    profiled_layers: Annotated[
        str, Rule((("0.5.9", "own"), ("0.5.8", "stage"), ("0.0", "full")), f"{_MIXIN} set_num_tokens_hybrid_swa")
    ]
    """The layers that a whole token is counted with before both pools are solved: its ``own``; or as many as the ``stage`` has or keep
    ``full`` tokens, each as large as those, and windowed ones of another size. Then pools follow from numbers of layers, not from bytes."""
    gpt_oss_unsplit: Annotated[
        tuple[str, ...],
        Rule(
            (("0.5.10", ()), ("0.5.9", ("trtllm_mha",)), ("0.0", ("trtllm_mha", "drafts"))),
            "server_args.py _handle_model_specific_adjustments",
        ),
    ]
    """Where GPT-OSS keeps every token of its windows: on the kernel ``trtllm_mha``, and with ``drafts``."""
    fp4_by_method: Annotated[bool, on("0.5.21", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size")]
    """True if each format of four bits says what its scales and its place for unpacking take. Before, all have scales once for each layer."""
    fp4_workspace: Annotated[bool, on("0.5.16", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size")]
    """True if keys and values of four bits have a place where one layer is unpacked, whatever the kernel, until ``fp4_by_method``."""
    compressed_row_padding: Annotated[bool, on("0.5.21", f"{_POOLS} DSV4PoolConfigurator._get_paged_kv_bytes_per_token")]
    """True if DeepSeek-V4's rows are counted with the padding of their pages."""
    compressed_ring_by_page: Annotated[bool, on("0.5.21", f"{_POOLS} DSV4PoolConfigurator._get_bytes_per_swa_token")]
    """True if a ring of compressors of 4 tokens is counted for each page of the pool. Before, for each window."""
    compressed_window_cap: Annotated[bool, on("0.5.21", f"{_POOLS} DSV4PoolConfigurator._resolve_swa_cap_tokens")]
    """True if DeepSeek-V4's windows follow from the requests where nobody names their ratio."""
    compressed_by_stage: Annotated[bool, on("0.5.13", f"{_POOLS} DSV4PoolConfigurator")]
    """True if a pipeline stage counts its own layers of DeepSeek-V4 alone."""
    compressed_states_by_request: Annotated[bool, on("0.5.15", f"{_POOLS} DSV4PoolConfigurator._get_c128_state_fixed_bytes")]
    """True if compressors of 128 tokens are counted for each request. Before, for each token of a window."""
    compressed_window_check: Annotated[bool, on("0.5.20", f"{_POOLS} DSV4PoolConfigurator._compute_dsv4_sizes")]
    """True if a pool of DeepSeek-V4's windows that holds no request is refused."""


@lru_cache(maxsize=64)
def rules_of(version: str) -> Rules:
    """The rules of one release, such as ``0.5.20``.

    >>> rules_of("0.5.19").small_gpu_chunk, rules_of("0.5.20").small_gpu_chunk
    (2048, 4096)
    """
    return rules_at(Rules, planned_version(version), version=version)


def planned_rules(setup: "Setup") -> Rules:
    """The rules of the release that a setup names; those of the newest where it names none."""
    return rules_of(NEWEST if setup.engine_version is None else resolve(setup.engine_version))
