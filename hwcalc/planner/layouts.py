"""The parallel layouts that people run: which numbers of GPUs are offered, and how a model is laid out on them.

Sold and rented are 1, 2, 4 or 8 GPUs in a node, and whole nodes beyond. Inside a node a model is cut by tensor parallelism, whose
traffic needs the links of a node; stages of a pipeline and replicas go over nodes. Replicas of a mixture of experts share the experts
where the engine does that: attention is data parallel, and whole experts are dealt out over all ranks. ``docs/layouts.md`` cites who
runs what.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import check_stages
from hwcalc.engines.setup import MOST_RANKS, Parallel
from hwcalc.errors import UsageError
from hwcalc.formulas import LayerKind
from hwcalc.formulas.weights import Part
from hwcalc.model import ModelSpec
from hwcalc.planner.verdict import Layout
from hwcalc.profiles.mig import ALONE

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.profiles.hardware_file import Gpu

_NODE: Final = 8
"""The GPUs of a node if no hardware is named."""


def node_of(gpu: Gpu | None, instance: int | None = None) -> int:
    """The number of GPUs of a node: the ``instance`` count if it is given, else the number in the accelerator's profile."""
    return instance or (_NODE if gpu is None else gpu.node)


@lru_cache(maxsize=256)
def counts(most: int, node: int = _NODE, *, any_layout: bool = False) -> tuple[int, ...]:
    """The numbers of GPUs to try: powers of two up to a node, and whole nodes. With ``any_layout`` also the others up to a node.

    >>> counts(40), counts(16, node=4)
    ((1, 2, 4, 8, 16, 24, 32, 40), (1, 2, 4, 8, 12, 16))
    >>> counts(24, any_layout=True)
    (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)
    """
    inside = range(1, node) if any_layout else (1 << power for power in range(node.bit_length()) if 1 << power < node)
    return tuple(number for number in (*inside, *range(node, most + 1, node)) if number <= most)


def has_experts(model: ModelSpec) -> bool:
    """True if the language model has experts, which ranks can share."""
    blocks = () if model.counted is None else model.counted.blocks
    return model.once(
        "has experts",
        lambda: any(weight.copies > 1 for block in blocks if block.part is Part.LANGUAGE for weight in block.weights),
    )


def layouts(opened: Occupancy, gpus: int, node: int | None = None, *, any_layout: bool = False) -> tuple[Layout, ...]:
    """The layouts of ``gpus`` GPUs, the preferred layout first. ``tp`` divides the attention heads and stays in a node.

    Replicas that the planned sequences leave idle come last. Before them, fewer pipeline stages are better, since a stage waits for the
    one before it. Then a layout that keeps each key and value once is better than one where tensor-parallel ranks keep copies: ranks
    beyond the number of key/value heads, and all ranks of latent attention, hold the same cache. Data-parallel attention avoids the
    copies, and needs as many sequences as replicas. With fewer, tensor parallelism over the whole node is next, which people run for
    latent attention too; what lies between these two is last. Equal layouts go by more tensor parallelism.

    Stages inside a node are for what tensor parallelism cannot cut evenly: 14 heads on 4 GPUs are tp 2 x pp 2. With ``any_layout``
    there is every tp x pp x dp instead, such as pp 7. An engine that splits layers has one layout: a stage on each GPU.

    >>> from hwcalc import load_model
    >>> from hwcalc.planner.context import open_request
    >>> opened = open_request(load_model("meta-llama/Llama-3.1-8B"), seq=4096, batch=2)
    >>> [layout.text for layout in layouts(opened, 4)]
    ['tp 4', 'tp 2, dp 2', 'dp 4']
    >>> [layout.text for layout in layouts(opened, 16)]
    ['tp 8, dp 2', 'tp 8, pp 2', 'tp 4, dp 4', 'tp 2, dp 8', 'dp 16']
    """
    if opened.engine.facts.splits_layers:
        return (Layout(pp=gpus),) if gpus <= max(1, len(opened.model.stack)) else ()
    model, deals, width = (
        opened.model,
        opened.deployment.traits.deals_experts,
        node_of(opened.setup.hardware.gpu) if node is None else node,
    )

    def ranked() -> tuple[Layout, ...]:
        dealt = deals and has_experts(model)
        every = tuple(_every(model, gpus, width) if any_layout else _sensible(model, gpus, width, deals=dealt))
        copies = {tp: copies_of(opened, tp) for tp in {layout.tp for layout in every}}
        full = max(copies)

        def rank(layout: Layout) -> tuple[bool, int, int, int]:
            form = 2 if copies[layout.tp] <= 1 else int(layout.tp == full)
            return layout.dp <= opened.batch, -layout.pp, form, layout.tp

        out = (replace(layout, ep=layout.tp * layout.dp) if dealt and layout.dp > 1 else layout for layout in every)
        return tuple(sorted(out, key=rank, reverse=True))

    # No replica is idle where there are as many sequences as GPUs.
    idle = min(opened.batch, gpus)
    return model.once(("layouts", opened.deployment.weight_rules(), deals, gpus, width, any_layout, idle), ranked)


def _sensible(model: ModelSpec, gpus: int, node: int, *, deals: bool) -> Iterator[Layout]:
    """The layouts that people run: every node is laid out alike, and pipeline stages come only with the largest ``tp``.

    Where experts are dealt out over ranks, a layout has no stages together with replicas.
    """
    inside = _inside(gpus, node)
    sizes = [tp for tp in _divisors(inside) if divides(model, tp)]
    for tp in sizes:
        stages = {1}
        if tp == sizes[-1]:
            stages = {in_node * nodes for in_node in _divisors(inside // tp) for nodes in _divisors(gpus // inside)}
        for pp in sorted(stages):
            dp = gpus // (tp * pp)
            if pp <= max(1, len(model.stack)) and not (deals and pp > 1 and dp > 1):
                yield Layout(tp=tp, pp=pp, dp=dp)


def _every(model: ModelSpec, gpus: int, node: int) -> Iterator[Layout]:
    for tp in _divisors(gpus):
        for pp in _divisors(gpus // tp) if tp <= node and divides(model, tp) else ():
            if pp <= max(1, len(model.stack)):
                yield Layout(tp=tp, pp=pp, dp=gpus // (tp * pp))


def _chosen_sizes(model: ModelSpec, gpus: int, sizes: Parallel, node: int) -> Parallel:
    """The parallel sizes where the user gives the number of GPUs alone: tensor parallelism inside a node, pipeline stages over nodes.

    With ``ep`` the rest are replicas, which share the experts. Where the model has too few layers for that, all are tensor parallel.
    """
    tp = max(tp for tp in _divisors(_inside(gpus, node)) if divides(model, tp))
    rest = gpus // tp
    if sizes.ep > tp:
        return replace(sizes, tp=tp, dp=rest)
    if rest > max(1, len(model.stack)) or tp % sizes.dcp:
        return replace(sizes, tp=gpus)
    return replace(sizes, tp=tp, pp=rest)


def _inside(gpus: int, node: int) -> int:
    """The number of ``gpus`` GPUs that are in each node."""
    return gpus if gpus <= node else gcd(gpus, node)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, number + 1) if number % size == 0)


def divides(model: ModelSpec, tp: int) -> bool:
    """True if ``tp`` divides the attention heads of every layer."""
    groups = model.stack.groups

    def heads() -> frozenset[int]:
        return frozenset(dims["num_attention_heads"] for group in groups if "num_attention_heads" in (dims := group.kind.dims()))

    return not any(count % tp for count in model.once("attention heads", heads))


def copies_of(opened: Occupancy, tp: int) -> int:
    """The number of ranks of ``tp`` that keep the same keys and values: 1 if each has its own, ``tp`` for latent attention."""
    rules, model = opened.deployment.weight_rules(), opened.model

    def elements(kind: LayerKind) -> int:
        """The number of elements that a layer caches for one position."""
        return sum(prod(tensor.shape) for tensor in kind.tensors())

    def count() -> int:
        kinds = [(group.count, group.kind) for group in opened.stack.groups if "num_attention_heads" in group.kind.dims()]
        whole = sum(number * elements(kind) for number, kind in kinds)
        part = sum(number * elements(rules.shard(model, kind, tp)) for number, kind in kinds)
        return tp * part // whole if whole else 1

    return int(model.once((opened.engine.name, "copies", tp), count))


def sizes_for(
    engine: Engine, model: ModelSpec, gpu: Gpu | None, gpus: int | None, sizes: Parallel, *, instance: bool = False
) -> Parallel:
    """The parallel sizes of so many GPUs of this kind, or of an ``instance`` that has them, from those that the user gave.

    Without sizes they follow from the number of GPUs. Otherwise it must equal tp x pp x dp; an instance may have more. Raises
    :class:`~hwcalc.errors.UsageError`, also where dcp or ep do not reuse whole ranks.
    """
    if engine.facts.splits_layers:
        check_stages(engine.label, sizes)
    ranks = sizes.tp * sizes.pp * sizes.dp
    if gpu is not None and gpu.slice_of is not None and max(gpus or 1, ranks) > 1:
        raise UsageError(
            f"a model runs on one MIG slice, not on {max(gpus or 1, ranks):,}: {ALONE}.",
            hint=f"Plan a server of one: --gpu {gpu.id}",
        )
    if gpus is not None and gpus != ranks and not (instance and 1 < ranks < gpus):
        if ranks == 1:
            if engine.facts.splits_layers:
                return replace(sizes, pp=gpus)
            if not 1 <= gpus <= MOST_RANKS or gpu is None:
                return replace(sizes, tp=gpus)
            return _chosen_sizes(model, gpus, sizes, node_of(gpu, gpus if instance else None))
        product = f"tp {sizes.tp} x pp {sizes.pp} x dp {sizes.dp} = {ranks:,}"
        if instance:
            raise UsageError(f"{product}, but the instance gives {gpus:,} GPUs.", hint="Use no more than it has.")
        raise UsageError(f"gpus is {gpus:,}, but {product}.", hint="Leave out --gpus, or make them equal.")
    if sizes.tp % sizes.dcp:
        raise UsageError(f"dcp {sizes.dcp} does not divide tp {sizes.tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    group = sizes.tp * sizes.dp
    if group % sizes.ep:
        raise UsageError(
            f"ep {sizes.ep} does not divide tp x dp = {group:,}.",
            hint=f"ep reuses the ranks of tp and dp: use --ep {group}, or leave it out.",
        )
    return sizes
