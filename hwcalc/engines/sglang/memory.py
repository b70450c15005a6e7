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

from hwcalc.engines.memory import Budget, Section, budget_of, communication, device_context, exact, loaded_beside, ranked
from hwcalc.engines.rank_weights import GroupRank, Rank, RankBytes, Rules, module_of
from hwcalc.engines.sglang.settings import SMALL_GPU_GIB, cuts_prompts, is_sparse_latent, prompt_tokens, shows_images, words_of
from hwcalc.engines.steps import Step, figure, step
from hwcalc.engines.subjects import AdapterRules
from hwcalc.engines.weights_beside import adapter_numbers, mtp_bytes_rank
from hwcalc.formulas import KimiDeltaAttention, LatentAttention
from hwcalc.formulas.weights import Block, Weight, WeightRole
from hwcalc.model import Note, Noted
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.sglang.engine import SglangDeployment
    from hwcalc.model import ModelSpec


class SglangAdapters(AdapterRules):
    """Buffers of ``max_loras_per_batch`` adapters of ``max_lora_rank``, of which requests without an adapter need one too.

    They are zero until an adapter is copied there from host memory, where each process has ``max_loaded_loras`` (all that are named, where
    nobody says), pinned. ``all`` modules include the embedding, whole on every rank, and an output layer of its own, whose rows
    are divided; no router is among them. Source: SGLang 0.5.23, lora/mem_pool.py, lora/utils.py, lora/lora.py.
    """

    deployment: SglangDeployment
    reserved_by = "max_loras_per_batch"
    loaded_by = "max_loaded_loras"

    def on_host(self) -> tuple[int, int] | None:
        found = super().on_host()
        return found if found is None or self.deployment.settings.rules.pins_adapters else (found[0], found[0])

    def on_gpu(self) -> RankBytes | None:
        size, model, lora = super().on_gpu(), self.deployment.model, self.lora
        if size is None or model.counted is None:
            return None
        numbers, tables = 0, lora.targets == "all" and self.deployment.settings.rules.adapted_tables
        for block in model.counted.blocks if tables else ():
            for weight in block.weights:
                if weight.role is WeightRole.EMBEDDING and module_of(weight) == "embed_tokens":
                    numbers += adapter_numbers(lora.rank, weight)
                elif weight.role is WeightRole.HEAD:
                    rows, columns = weight.shape
                    numbers += lora.rank * (ceil(rows / self.deployment.parallel.tp) + columns)
        reserved = size.expected + numbers * lora.count * lora.element_bytes
        source = (
            f"SGLang 0.5.23 lora/mem_pool.py: max_loras_per_batch {lora.count:,} x max_lora_rank {lora.rank:,} in {lora.dtype}"
        )
        return RankBytes(low=reserved, expected=reserved, high=reserved, source=source)


_ALWAYS_MIB: Final = 512
_TOKEN_MIB: Final = 1.5
_LEAST_TOKENS: Final = 2048
_RANK_MIB: Final = 128
_GRAPH_MIB: Final = 2
_REPLICA_GRAPH_MIB: Final = 3
_LARGE_GRAPHS: Final = 300
_BUCKET_MIB: Final = 8
_LATENT_PREFILL_MIB: Final = 1536
_LLAMA_2_TOKENS: Final = 4096
_LARGE_GPU_MIB: Final = 60 * 1024
_LEAST_RESERVED_MIB: Final = 10 * 1024
_AITER_SHARE: Final = 0.85
_LONG: Final = 8192
_GRAPHS: Final = ((20, (8, 8)), (SMALL_GPU_GIB, None), (60, (32, 160)), (160, (256, 512)))
"""GiB that the accelerator has less than, and the largest batch of a graph with fewer than four ranks and with more. ``None``: those of the
release."""
_LARGEST_GRAPHS: Final = (512, 512)
_FEW_RANKS: Final = 4
_TOWER: Final = (24, 1024)
"""Layers and width of the vision tower that SGLang compares others with, and takes where a config names none."""
_TOWER_NAMES: Final = (("num_hidden_layers", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size"))
"""Names of both in a config. Towers whose layers are called ``depth`` have the usual number: the transformers that every release is
pinned to (4.57.1 to 5.19.0) know no other name for it."""
_UNREAD: Final = {"MiniMaxM3": ("num_hidden_layers", "hidden_size")}
"""Sizes of towers that SGLang does not find, by the beginnings of the names of classes: it reads those configs by classes of its own."""
_LONG_WITHOUT_GRAPHS: Final = ("Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM")
"""Classes whose prompts ran in no graphs at first (``piecewise_cuda_graph_disabled_model_archs``)."""
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
    found, notes = loaded_beside(occupancy)
    if found is None:
        return Noted(None, notes)
    gpu, memory, weights = found
    named, model = deployment.settings.fraction or deployment.setup.hardware.memory_utilization, deployment.model
    share = default_fraction(deployment) if named is None else named
    if share <= 0:
        # Of many replicas the default reserves more than there is.
        message = f"SGLang's own mem_fraction_static is {share:g} here. Set it with --engine-option mem_fraction_static=0.8."
        share, notes = 0.0, (*notes, Note(code="no-share", message=message))
    parts = list(weights)
    if deployment.settings.drafts and model.facts.mtp_modules:
        # Layers that draft come with the model; they are loaded before the pools are sized.
        size = mtp_bytes_rank(model, deployment.parallel, rules=SGLANG)
        parts += [] if size is None else [ranked("draft weights", Section.WEIGHTS, size)]
    for part in (device_context(gpu), *communication(deployment.setup.parallel, gpu)):
        # It is allocated before the weights: the pools lose so much, the rest comes off what stays free.
        source = f"{part.source}; {share:g} of it, since the share is of what is free"
        low, expected, high = int(part.low * share), ceil(part.expected * share), ceil(part.high * share)
        parts.append(replace(part, low=low, expected=expected, high=high, source=source, steps=()))
    images = deployment.settings.rules.image_cache_mib if shows_images(model, deployment.settings.rules) else 0
    if images:
        steps = (step("image cache", "cache_mib x mib", cache_mib=images, mib=MIB),)
        source = f"SGLang {deployment.version} SGLANG_VLM_CACHE_SIZE_MB: embeddings of images"
        parts.append(replace(exact("image cache", Section.OVERHEAD, images * MIB, source), steps=steps))
    rows = occupancy.request.replica_batch
    budget, measured = budget_of(occupancy, memory, tuple(parts), tokens=deployment.settings.chunk, rows=rows, share=share)
    return Noted(budget, (*notes, *measured))


def default_fraction(deployment: SglangDeployment, steps: list[Step] | None = None) -> float:
    """The default of ``mem_fraction_static``: activations, ranks and CUDA graphs have the rest.

    An H100 of 81,559 MiB reserves 512 + 1.5 x 8192 + 128 + 2 x 256 + 8 x 58 = 13,904 MiB: 0.83.
    """
    gpu, settings = deployment.setup.hardware.gpu, deployment.settings
    assert gpu is not None
    if gpu.memory_total_mib is None:
        return settings.rules.unknown_gpu_share
    formula = f"{_ALWAYS_MIB} + {_TOKEN_MIB} x chunk_tokens + {_RANK_MIB} x ranks + graphs_mib"
    least = f"max({formula}, {_LEAST_RESERVED_MIB})" if gpu.memory_total_mib > _LARGE_GPU_MIB else formula
    draft = settings.rules.draft_mib if settings.drafts else 0
    reserved = figure(
        steps,
        "reserved_mib",
        f"{least} + draft_mib" if draft else least,
        unit="MiB",
        **({"draft_mib": draft} if draft else {}),
        chunk_tokens=max(prompt_tokens(deployment.setup, settings.rules), _LEAST_TOKENS),
        ranks=settings.tp * settings.dp * settings.pp,
        graphs_mib=_graphs_mib(deployment, gpu.memory_total_mib),
    )
    # What a vision tower and AMD's kernels leave of the share.
    beside = _of_tower(deployment.model) if shows_images(deployment.model, settings.rules) else 1.0
    if gpu.vendor.lower() == "amd" and settings.context > _LONG:
        beside *= _AITER_SHARE
    return figure(
        steps,
        "mem_fraction_static",
        "round((gpu_mib - reserved_mib) / gpu_mib, 3)" + ("" if beside == 1 else " x share_beside"),
        unit="of the GPU",
        gpu_mib=gpu.memory_total_mib,
        reserved_mib=reserved,
        **({} if beside == 1 else {"share_beside": beside}),
    )


def fraction_steps(deployment: SglangDeployment) -> tuple[Step, ...]:
    """The steps from which the default share follows; none where the share is named, or no GPU is."""
    hardware, steps = deployment.setup.hardware, list[Step]()
    known = hardware.gpu is not None and hardware.gpu.memory_total_mib is not None and hardware.kv_memory is None
    if known and deployment.settings.fraction is None and hardware.memory_utilization is None:
        default_fraction(deployment, steps)
    return tuple(steps)


def _graphs_mib(deployment: SglangDeployment, total_mib: int) -> float:
    """MiB that the graphs of decode steps and of prompts reserve. Those of prompts are a flat amount for latents, else they follow the number of lengths."""
    settings, options, model = deployment.settings, deployment.setup.options, deployment.model
    rules, few = settings.rules, settings.tp * settings.dp < _FEW_RANKS
    batches = next((batches for below, batches in _GRAPHS if total_mib < below * 1024), _LARGEST_GRAPHS) or rules.small_gpu_graphs
    graph = batches[0] if few else batches[1]
    if rules.graph_within_requests and "max_running_requests" in options:
        # What SGLang limits by itself comes later.
        graph = min(graph, int(options["max_running_requests"]))
    size: float = _GRAPH_MIB * graph
    if settings.dp > 1:
        size += (_REPLICA_GRAPH_MIB + (_TOKEN_MIB if graph > _LARGE_GRAPHS else 0)) * graph * settings.dp
    kinds = {type(group.kind) for group in model.stack.groups}
    # Graphs of prompts are not captured everywhere (``disable_breakable_cudagraph_if_incompatible``).
    pieces = shows_images(model, rules) and (model.architecture or "").startswith(rules.piecewise_images or ("-",))
    pictures = shows_images(model, rules) and not pieces and "graphs_with_images" not in words_of(model, rules)
    nemotron = (model.architecture or "").startswith("NemotronH")
    plain_latent = LatentAttention in kinds and not is_sparse_latent(model)
    like = (
        ("delta", KimiDeltaAttention in kinds), ("latent", plain_latent), ("sparse latent", is_sparse_latent(model)),
        ("nemotron", nemotron), ("Qwen3-Next", model.architecture in _LONG_WITHOUT_GRAPHS), ("replicas", settings.dp > 1),
        ("adapters", deployment.setup.lora is not None), ("drafts", settings.drafts), ("all", True),
    )  # fmt: skip
    graphless = any(name in rules.graphless for name, is_so in like if is_so) and not pieces
    staged = (settings.pp > 1 and (pieces or not rules.graphs_with_stages)) or (pieces and settings.dp > 1)
    if staged or deployment.compressed is not None or pictures or graphless:
        return size
    if LatentAttention in kinds:
        return size + _LATENT_PREFILL_MIB
    if not cuts_prompts(deployment.setup):
        # The longest graph of a prompt has as many tokens as a chunk: none are captured.
        return size
    chunk = prompt_tokens(deployment.setup, rules)
    longest = min(chunk, settings.total_tokens or chunk)
    return size + _BUCKET_MIB * prefill_buckets(min(longest, _LLAMA_2_TOKENS) if "llama-2" in model.id.lower() else longest)


def prefill_buckets(most: int) -> int:
    """Lengths for which a prefill graph is captured (``generate_prefill_cuda_graph_batch_sizes``).

    >>> [prefill_buckets(chunk) for chunk in (2048, 4096, 8192, 16384)]
    [42, 50, 58, 74]
    """
    ranges: Iterable[range] = (*(range(*one) for one in _BUCKETS), range(4608, most + 1, 512))
    return sum(size <= most for one in ranges for size in one)


def _of_tower(model: ModelSpec) -> float:
    """The factor by which a vision tower reduces the share: smaller the larger the tower is (``adjust_mem_fraction_for_vlm``)."""
    sizes = []
    tower = model.config.get("vision_config")
    unread = next((names for name, names in _UNREAD.items() if (model.architecture or "").startswith(name)), ())
    for names, usual in zip(_TOWER_NAMES, _TOWER, strict=True):
        values = [tower.get(name) for name in names if name not in unread] if isinstance(tower, Mapping) else []
        sizes.append(next((value for value in values if isinstance(value, int)), usual))
    ratio = sizes[0] * sizes[1] ** 2 / (_TOWER[0] * _TOWER[1] ** 2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
