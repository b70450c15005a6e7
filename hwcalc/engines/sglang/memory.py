"""The memory equation of SGLang: a share of what is free before the weights are loaded, minus the weights, is the pools.

``pools = free after loading - free before x (1 - mem_fraction_static) - what multimodal models reserve`` (SGLang 0.5.23,
``kv_cache_configurator.py`` _profile_available_bytes). What a pass computes with and CUDA graphs lie in the share that is left free.
The default of ``mem_fraction_static`` follows from the accelerator (``arg_groups/memory_hook.py``, MiB).

With ``enable_dp_attention`` replicas divide attention and embedding alone (``models/deepseek_v2.py``: MLPs have the sizes of the whole
group; ``layers/vocab_parallel_embedding.py``). Neither ``moe_dense_tp_size`` nor ``enable_dp_lm_head`` is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.extra_weights import mtp_bytes_rank
from hwcalc.engines.memory import (
    Budget,
    BudgetPart,
    Section,
    beside,
    budget_of,
    communication,
    device_context,
    exact,
    loaded,
    ranked,
)
from hwcalc.engines.rank_weights import GroupRank, Rank, Rules
from hwcalc.engines.sglang.models import shows_images, words_of
from hwcalc.engines.sglang.settings import prompt_tokens
from hwcalc.engines.steps import Step, step
from hwcalc.formulas import KimiDeltaAttention, LatentAttention
from hwcalc.formulas.weights import Block, Weight, WeightRole
from hwcalc.model import Noted
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.sglang.deployment import SglangDeployment
    from hwcalc.model import ModelSpec

_ALWAYS_MIB: Final = 512
_TOKEN_MIB: Final = 1.5
_LEAST_TOKENS: Final = 2048
_RANK_MIB: Final = 1024
_RANKS: Final = 8
_GRAPH_MIB: Final = 2
_REPLICA_GRAPH_MIB: Final = 3
_LARGE_GRAPHS: Final = 300
_BUCKET_MIB: Final = 8
_LATENT_PREFILL_MIB: Final = 1536
_LLAMA_2_TOKENS: Final = 4096
_LARGE_GPU_MIB: Final = 60 * 1024
_LEAST_RESERVED_MIB: Final = 10 * 1024
_IMAGES_MIB: Final = 100
_AITER_SHARE: Final = 0.85
_LONG: Final = 8192
_GRAPHS: Final = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
"""GiB that the accelerator has less than, and the largest batch of a graph with fewer than four ranks and with more; 512 above."""
_LARGEST_GRAPH: Final = 512
_FEW_RANKS: Final = 4
_TOWER: Final = (24, 1024)
"""Layers and width of the vision tower that SGLang compares others with, and takes where a config names none."""
_TOWER_NAMES: Final = (("num_hidden_layers", "depth", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size"))
_UNREAD: Final = {"Qwen3_5": ("depth",), "MiniMaxM3": ("num_hidden_layers", "hidden_size")}
"""Sizes of towers that SGLang does not find, by the beginnings of the names of classes: it reads those configs by classes of its own."""
_BUCKETS: Final = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))


class _SglangRank(GroupRank):
    """The ranks of all replicas divide the output head, too."""

    def ranks(self, block: Block, weight: Weight) -> int:
        return self.shards if weight.role is WeightRole.HEAD else super().ranks(block, weight)


class _SglangRules(Rules):
    engine: ClassVar[str] = "sglang"
    rank: ClassVar[type[Rank]] = _SglangRank


SGLANG: Final = _SglangRules()


def plan_budget(deployment: SglangDeployment, occupancy: Occupancy) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the pools; ``None`` if the memory of the GPU or the size of the weights is unknown.

    Of the load it depends on nothing but the cache of a draft model.
    """
    memory_and_weights = loaded(occupancy)
    if memory_and_weights.value is None:
        return Noted(None, memory_and_weights.notes)
    gpu, memory, weights = memory_and_weights.value
    share = _fraction(deployment)
    extra = beside(occupancy)
    outside = (device_context(gpu), *communication(deployment.setup.parallel, gpu))
    parts = (
        *weights,
        *extra.value,
        *_drafts(deployment),
        *(_of_free(part, share) for part in outside),
        *_images(deployment.model),
    )
    rows = occupancy.request.replica_batch
    budget, notes = budget_of(occupancy, memory, parts, tokens=deployment.settings.chunk, rows=rows, share=share)
    return Noted(budget, (*memory_and_weights.notes, *extra.notes, *notes))


def _fraction(deployment: SglangDeployment) -> float:
    """``mem_fraction_static``: the share of memory that the user names, or the default."""
    named = deployment.settings.fraction
    if named is not None:
        return named
    if deployment.setup.hardware.memory_utilization is not None:
        return deployment.setup.hardware.memory_utilization
    return default_fraction(deployment)


def _of_free(part: BudgetPart, share: float) -> BudgetPart:
    """A part that is allocated before the weights, times ``share``: the pools lose that much, the rest comes off what stays free."""
    return replace(
        part,
        low=int(part.low * share),
        expected=ceil(part.expected * share),
        high=ceil(part.high * share),
        source=f"{part.source}; {share:g} of it, since the share is of what is free",
        steps=(),
    )


def default_fraction(deployment: SglangDeployment) -> float:
    """The default of ``mem_fraction_static``.

    An H100 of 81,559 MiB reserves 512 + 1.5 x 8192 + 128 + 2 x 256 + 8 x 58 = 13,904 MiB: 0.83.
    """
    gpu = deployment.setup.hardware.gpu
    assert gpu is not None
    if gpu.memory_total_mib is None:
        return 0.95
    return round((gpu.memory_total_mib - _reserved_mib(deployment)) / gpu.memory_total_mib, 3) * _times(deployment)


def fraction_steps(deployment: SglangDeployment) -> tuple[Step, ...]:
    """How the default comes about; nothing where the share is named, or no GPU is."""
    hardware = deployment.setup.hardware
    total = None if hardware.gpu is None or hardware.kv_memory is not None else hardware.gpu.memory_total_mib
    if total is None or deployment.settings.fraction is not None or hardware.memory_utilization is not None:
        return ()
    graphs, times = _graphs_mib(deployment), _times(deployment)
    ranks = deployment.settings.tp * deployment.settings.dp * deployment.settings.pp
    formula = f"{_ALWAYS_MIB} + {_TOKEN_MIB} x chunk_tokens + {_RANK_MIB // _RANKS} x ranks + graphs_mib"
    chunk, reserved = max(prompt_tokens(deployment.setup), _LEAST_TOKENS), _reserved_mib(deployment)
    return (
        step(
            "reserved_mib",
            f"max({formula}, {_LEAST_RESERVED_MIB})" if total > _LARGE_GPU_MIB else formula,
            reserved,
            unit="MiB",
            chunk_tokens=chunk,
            ranks=ranks,
            graphs_mib=graphs,
        ),
        step(
            "mem_fraction_static",
            "round((gpu_mib - reserved_mib) / gpu_mib, 3)" + ("" if times == 1 else " x share_beside"),
            default_fraction(deployment),
            unit="of the GPU",
            gpu_mib=total,
            reserved_mib=reserved,
            **({} if times == 1 else {"share_beside": times}),
        ),
    )


def _reserved_mib(deployment: SglangDeployment) -> float:
    """What stays free for activations, ranks and CUDA graphs."""
    gpu, settings = deployment.setup.hardware.gpu, deployment.settings
    reserved = _ALWAYS_MIB + _TOKEN_MIB * max(prompt_tokens(deployment.setup), _LEAST_TOKENS)
    reserved += settings.tp * settings.dp * settings.pp / _RANKS * _RANK_MIB
    reserved += _graphs_mib(deployment)
    large = gpu is not None and (gpu.memory_total_mib or 0) > _LARGE_GPU_MIB
    return max(reserved, _LEAST_RESERVED_MIB) if large else reserved


def _graphs_mib(deployment: SglangDeployment) -> float:
    """What graphs of decode steps and of prompts reserve."""
    gpu, settings, options = deployment.setup.hardware.gpu, deployment.settings, deployment.setup.options
    graph = _graph_batch((gpu.memory_total_mib or 0) if gpu is not None else 0, settings.tp * settings.dp)
    if "max_running_requests" in options:
        # What SGLang limits by itself comes later.
        graph = min(graph, int(options["max_running_requests"]))
    size: float = _GRAPH_MIB * graph
    if settings.dp > 1:
        size += (_REPLICA_GRAPH_MIB + (_TOKEN_MIB if graph > _LARGE_GRAPHS else 0)) * graph * settings.dp
    return size + (_prompt_graphs_mib(deployment, prompt_tokens(deployment.setup)) if _prompts_in_graphs(deployment) else 0)


def _times(deployment: SglangDeployment) -> float:
    """What a vision tower and AMD's kernels leave of the share."""
    gpu, share = deployment.setup.hardware.gpu, 1.0
    if shows_images(deployment.model):
        share *= _of_tower(deployment.model)
    if gpu is not None and gpu.vendor.lower() == "amd" and deployment.settings.context > _LONG:
        share *= _AITER_SHARE
    return share


def _prompts_in_graphs(deployment: SglangDeployment) -> bool:
    """Whether graphs of prompts are captured (``disable_breakable_cudagraph_if_incompatible``)."""
    model = deployment.model
    if (
        deployment.settings.pp > 1
        or deployment.compressed is not None
        or (shows_images(model) and "graphs_with_images" not in words_of(model))
    ):
        return False
    return not any(isinstance(group.kind, KimiDeltaAttention) for group in model.stack.groups)


def _prompt_graphs_mib(deployment: SglangDeployment, chunk: int) -> int:
    """What graphs of prompts reserve: a flat amount for latents, else by the number of lengths."""
    if _is_latent(deployment.model):
        return _LATENT_PREFILL_MIB
    longest = min(chunk, deployment.settings.total_tokens or chunk)
    if "llama-2" in deployment.model.id.lower():
        longest = min(longest, _LLAMA_2_TOKENS)
    return _BUCKET_MIB * prefill_buckets(longest)


def prefill_buckets(most: int) -> int:
    """Lengths for which a prefill graph is captured (``generate_prefill_cuda_graph_batch_sizes``).

    >>> [prefill_buckets(chunk) for chunk in (2048, 4096, 8192, 16384)]
    [42, 50, 58, 74]
    """
    ranges: Iterable[range] = (*(range(*one) for one in _BUCKETS), range(4608, most + 1, 512))
    return sum(size <= most for one in ranges for size in one)


def _graph_batch(total_mib: int, ranks: int) -> int:
    for below, few, many in _GRAPHS:
        if total_mib < below * 1024:
            return few if ranks < _FEW_RANKS else many
    return _LARGEST_GRAPH


def _is_latent(model: ModelSpec) -> bool:
    return any(isinstance(group.kind, LatentAttention) for group in model.stack.groups)


def _of_tower(model: ModelSpec) -> float:
    """The factor by which a vision tower reduces the share: smaller the larger the tower is (``adjust_mem_fraction_for_vlm``)."""
    sizes = []
    tower = model.config.get("vision_config")
    unread = next((names for name, names in _UNREAD.items() if (model.architecture or "").startswith(name)), ())
    for names, usual in zip(_TOWER_NAMES, _TOWER, strict=True):
        named_sizes = (
            [tower[name] for name in names if name not in unread and isinstance(tower.get(name), int)]
            if isinstance(tower, Mapping)
            else []
        )
        sizes.append(named_sizes[0] if named_sizes else usual)
    ratio = sizes[0] * sizes[1] ** 2 / (_TOWER[0] * _TOWER[1] ** 2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def _images(model: ModelSpec) -> tuple[BudgetPart, ...]:
    if not shows_images(model):
        return ()
    source = "SGLang 0.5.23 SGLANG_VLM_CACHE_SIZE_MB: embeddings of images"
    part = exact("image cache", Section.OVERHEAD, _IMAGES_MIB * MIB, source)
    steps = (step("image cache", "cache_mib x mib", _IMAGES_MIB * MIB, unit="bytes", cache_mib=_IMAGES_MIB, mib=MIB),)
    return (replace(part, steps=steps),)


def _drafts(deployment: SglangDeployment) -> tuple[BudgetPart, ...]:
    """Weights of the layers that draft, where they come with the model; they are loaded before the pools are sized."""
    if not deployment.settings.drafts or not deployment.model.facts.mtp_modules:
        return ()
    size = mtp_bytes_rank(deployment.model, deployment.parallel, rules=SGLANG)
    return () if size is None else (ranked("draft weights", Section.WEIGHTS, size),)
