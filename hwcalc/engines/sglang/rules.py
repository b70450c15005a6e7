"""The releases of SGLang, and one table of the rules of its pools and defaults that changed between them.

Each row was read in the Python of the releases, whose own resolution of arguments and pool configurators were run
(``tests/golden/sglang_versions.json``). The newest entry of a rule is what the rest of this package describes; an older one is a difference
to it. The classes that a release has stand in ``profiles/engines/sglang/classes.yaml``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hwcalc.engines.versions import Rule, listed, on, rules_at, unknown_version
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup

VERSIONS: Final = ("0.5.23", "0.5.22", "0.5.21", "0.5.20", "0.5.19", "0.5.18", "0.5.17", "0.5.16")
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


class Rules(Record):
    """What holds in one release. The fields are the rules of :data:`TABLE`."""

    version: str
    """The release."""
    small_gpu_chunk: int
    """Tokens of a prompt in a batch on GPUs of 20 to 35 GiB."""
    small_gpu_graphs: tuple[int, int]
    """The largest batch of a graph on them, with fewer than four ranks and with more."""
    graph_within_requests: bool
    """Whether the largest batch of a graph is at most ``max_running_requests``, where that is named."""
    unknown_gpu_share: float
    """The share of the memory of a GPU whose size is unknown."""
    image_cache_mib: int
    """MiB of the pools that are left for embeddings of images."""
    padding_slot: bool
    """Whether the slot of states that pads the pool is counted, and that of each draft's copies."""
    states_by_stage: bool
    """Whether a pipeline stage counts the states of its own layers alone. Before, each stage counts those of all layers."""
    least_one_request: bool
    """Whether a replica has one request at the least. Before, fewer requests than replicas leave none."""
    raw_tilelang: bool
    """Whether sparse latents in fp8 have no scales for the kernels of ``tilelang``, too."""
    index_fp8: tuple[str, ...]
    """The accelerators where the indexer of MiniMax-M3 is in fp8, as its cache is: ``blackwell`` with its own kernels, and ``hopper``."""
    unnamed_kernels: tuple[str, ...]
    """Beginnings of the names of classes that do not name their kernel on Blackwell yet: they take the usual one."""
    nemotron_on_trtllm: bool
    """Whether Nemotron hybrids are read by TensorRT-LLM's kernel on Blackwell. Before, by FlashInfer."""
    counts_latent_scales: bool
    """Whether a token of sparse latents in fp8 is counted with its scales, which it is stored with."""
    unlike_on_fa4: bool
    """Whether keys and values of different widths are read by FlashAttention 4 on Blackwell."""
    graphless: tuple[str, ...]
    """Where prompts run in no graphs: with Kimi's ``delta`` attention, ``latent`` attention without indexers and with them (``sparse latent``),
    in ``nemotron`` hybrids, with ``replicas`` of attention, and with ``adapters``."""
    piecewise_images: tuple[str, ...]
    """Beginnings of the names of classes with towers whose prompts run in graphs of pieces, which replicas and stages do without."""
    graphs_with_stages: bool
    """Whether prompts run in graphs on pipeline stages."""
    shares_indexers: bool
    """Whether layers that take the indexer of another one have none of their own."""
    windows_by_stage: bool
    """Whether a pipeline stage counts its own windowed layers alone. Before, each stage counts those of the whole model."""
    fp4_by_method: bool
    """Whether each format of four bits says what its scales and its place for unpacking take. Before, all have scales once for each layer."""
    fp4_workspace: bool
    """Whether keys and values of four bits have a place where one layer is unpacked, whatever the kernel, until ``fp4_by_method``."""
    compressed_row_padding: bool
    """Whether DeepSeek-V4's rows are counted with the padding of their pages."""
    compressed_ring_by_page: bool
    """Whether a ring of compressors of 4 tokens is counted for each page of the pool. Before, for each window."""
    compressed_window_cap: bool
    """Whether DeepSeek-V4's windows follow from the requests where nobody names their ratio."""
    compressed_window_check: bool
    """Whether a pool of DeepSeek-V4's windows that holds no request is refused."""


TABLE: Final[tuple[Rule, ...]] = (
    Rule("small_gpu_chunk", (("0.5.20", 4096), ("0.0", 2048)), _MEMORY),
    Rule("small_gpu_graphs", (("0.5.20", (48, 160)), ("0.0", (24, 80))), _MEMORY),
    on("graph_within_requests", "0.5.22", _MEMORY),
    Rule("unknown_gpu_share", (("0.5.20", 0.95), ("0.0", 0.88)), _MEMORY),
    Rule("image_cache_mib", (("0.5.18", 100), ("0.0", 0)), f"{_CONFIGURATOR} mm_runtime_reservation_gb"),
    on("padding_slot", "0.5.17", f"{_CONFIGURATOR} _handle_max_mamba_cache"),
    on("states_by_stage", "0.5.17", f"{_CONFIGURATOR} _handle_max_mamba_cache"),
    on("least_one_request", "0.5.23", f"{_CONFIGURATOR} resolve_max_num_reqs"),
    on("raw_tilelang", "0.5.22", f"{_CONFIGURATOR} calculate_mla_kv_cache_dim"),
    Rule(
        "index_fp8",
        (("0.5.23", ("blackwell", "hopper")), ("0.5.21", ("blackwell",)), ("0.0", ())),
        "mem_cache/memory_pool.py get_minimax_sparse_index_dtype",
    ),
    Rule(
        "unnamed_kernels",
        (("0.5.22", ()), ("0.5.17", ("Exaone", "MiMoV2")), ("0.0", ("Exaone", "MiMoV2", "Lfm2Moe"))),
        "arg_groups/model_overrides/exaone.py, mimo_v2.py; arg_groups/overrides.py _lfm2_overrides",
    ),
    on("counts_latent_scales", "0.5.17", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size"),
    on("nemotron_on_trtllm", "0.5.19", "arg_groups/model_overrides/nemotron_h.py"),
    on("unlike_on_fa4", "0.5.17", "arg_groups/model_override_base.py get_default_attn_backend"),
    Rule(
        "graphless",
        (
            ("0.5.20", ("delta",)),
            ("0.5.18", ()),
            ("0.5.17", ("latent", "nemotron")),
            ("0.0", ("latent", "sparse latent", "replicas", "adapters")),
        ),
        "arg_groups/cuda_graph_hook.py disable_breakable_cudagraph_if_incompatible",
    ),
    Rule(
        "piecewise_images",
        (
            ("0.5.22", ()),
            ("0.5.19", ("MiniMaxM3Sparse",)),
            ("0.5.18", ("MiniMaxM3Sparse", "Cohere2Vision")),
            ("0.0", ("MiniMaxM3Sparse", "Cohere2Vision", "KimiK25")),
        ),
        "configs/model_config.py multimodal_piecewise_cuda_graph_supported_model_archs",
    ),
    Rule("graphs_with_stages", (("0.5.19", False), ("0.0", True)), "server_args.py _apply_cuda_graph_compatibility"),
    on("shares_indexers", "0.5.18", f"{_POOLS} DefaultPoolConfigurator._compute_dsa_indexer_cell_size"),
    on("windows_by_stage", "0.5.21", f"{_POOLS} HybridSWAPoolConfigurator"),
    on("fp4_by_method", "0.5.21", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size"),
    on("fp4_workspace", "0.5.16", f"{_POOLS} DefaultPoolConfigurator._compute_cell_size"),
    on("compressed_row_padding", "0.5.21", f"{_POOLS} DSV4PoolConfigurator._get_paged_kv_bytes_per_token"),
    on("compressed_ring_by_page", "0.5.21", f"{_POOLS} DSV4PoolConfigurator._get_bytes_per_swa_token"),
    on("compressed_window_cap", "0.5.21", f"{_POOLS} DSV4PoolConfigurator._resolve_swa_cap_tokens"),
    on("compressed_window_check", "0.5.20", f"{_POOLS} DSV4PoolConfigurator._compute_dsv4_sizes"),
)


@lru_cache(maxsize=64)
def rules_of(version: str) -> Rules:
    """The rules of one release, such as ``0.5.20``.

    >>> rules_of("0.5.19").small_gpu_chunk, rules_of("0.5.20").small_gpu_chunk
    (2048, 4096)
    """
    return rules_at(Rules, TABLE, planned_version(version), version=version)


def planned_rules(setup: Setup) -> Rules:
    """The rules of the release that a setup names; those of the newest where it names none."""
    return rules_of(NEWEST if setup.engine_version is None else resolve(setup.engine_version))
