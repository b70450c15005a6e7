"""What vLLM takes of a GPU beside weights, activations and cache: memory outside torch, and the pool of CUDA graphs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.costs import estimated
from hwcalc.engines.steps import step
from hwcalc.engines.vllm.runner import has_states
from hwcalc.formulas import SparseIndexer
from hwcalc.profiles.engines import vllm_profile

if TYPE_CHECKING:
    from hwcalc.engines.setup import Parallel
    from hwcalc.engines.vllm.speculation import Speculation
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.gpus import Gpu


def outside_torch(parallel: Parallel, gpu: Gpu, version: str, back_end: str | None) -> tuple[BudgetPart, ...]:
    """Kernels, handles and communication; and the buffers of an expert exchange, if the chosen back end has them."""
    exchanges = parallel.ep > 1 and (back_end or "").startswith("deepep")
    return _outside_torch(_link(parallel, gpu), version, exchanges)


@lru_cache(maxsize=256)
def _outside_torch(link: str, version: str, exchanges: bool) -> tuple[BudgetPart, ...]:
    profile = vllm_profile()
    parts = [estimated("non-torch", Section.OVERHEAD, profile.estimate(f"non_torch.{link}", version))]
    if exchanges:
        parts.append(estimated("expert exchange", Section.OVERHEAD, profile.estimate("expert_exchange.deepep", version)))
    return tuple(parts)


def _link(parallel: Parallel, gpu: Gpu) -> str:
    """How ranks are linked: the name of the profile's entry."""
    if gpu.vendor.lower() == "amd":
        return "amd"
    if parallel.tp == 1:
        return "stages" if parallel.pp > 1 else "single"
    if "nvlink" not in str(gpu.interconnect.get("kind") or "").lower():
        return "pcie"
    return "nvlink_pair" if parallel.tp == 2 else "nvlink"


def graphs(model: ModelSpec, version: str, left: int, speculation: Speculation | None) -> BudgetPart:
    """The memory of CUDA graphs as vLLM estimates it. For models with recurrent states the estimate is per graph.

    ``left`` is what the other parts leave of the GPU, in bytes.
    """
    profile = vllm_profile()
    if speculation is not None and speculation.method == "mtp" and _is_sparse(model):
        return _graphs("graphs.sparse_draft", version)
    if not has_states(model):
        return _graphs("graphs.attention", version)
    graph, count = profile.estimate("graphs.state_graph", version), profile.estimate("graphs.state_graphs", version)
    share = profile.estimate("graphs.state_share", version)
    sizes, counts = ((one.low, one.expected, one.high) for one in (graph, count))
    low, expected, high = (int(size * number) for size, number in zip(sizes, counts, strict=True))
    high = max(high, int(max(0, left) * share.high))
    return BudgetPart(
        name="CUDA graphs",
        section=Section.OVERHEAD,
        low=low,
        expected=expected,
        high=high,
        source=f"{graph.source}; {share.source}",
        steps=(step("CUDA graphs", "graph_bytes x graphs", (low, expected, high), graph_bytes=sizes, graphs=counts),),
    )


@lru_cache(maxsize=256)
def _graphs(name: str, version: str) -> BudgetPart:
    return estimated("CUDA graphs", Section.OVERHEAD, vllm_profile().estimate(name, version))


def _is_sparse(model: ModelSpec) -> bool:
    return any(isinstance(group.kind, SparseIndexer) for group in model.stack.groups)
