"""vLLM as an engine: the models it accepts, the contents of its pool, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, is_auto
from hwcalc.engines.policies import PagedGroup, Support
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.request import Request
from hwcalc.engines.sharing import SharedBlocks
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import Dtypes, StoredTensor, beside_layers
from hwcalc.engines.vllm import formats, versions
from hwcalc.engines.vllm.builder import KINDS
from hwcalc.engines.vllm.classes import check_architecture
from hwcalc.engines.vllm.opened import VllmOpened, of_vllm
from hwcalc.engines.vllm.options import OPTIONS
from hwcalc.engines.vllm.placed import LayerCache
from hwcalc.engines.vllm.pool import group_infos, plan_pool, usable_blocks
from hwcalc.engines.vllm.room import InRooms
from hwcalc.engines.vllm.sharing import blocks_of_groups, check_sharing, hits_of, sharing_support
from hwcalc.engines.vllm.specs import LayerSpec, StateSpec, ceil_div
from hwcalc.engines.vllm.supported import check_supported
from hwcalc.formulas import LayerKind, Role, SparseIndexer
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.policies.base import Chosen
from hwcalc.units import human_bytes

__all__ = ["Vllm"]

_ROLES: Final = {"latent": Role.LATENT, "window_latent": Role.LATENT, "compressed_latent": Role.LATENT}


class Vllm(InRooms, Engine):
    """A pool of blocks, by the rules of vLLM."""

    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM: blocks of a pool that groups of layers share"
    label: ClassVar[str] = "vLLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks that the planned sequences hold"
    pool_is: ClassVar[str] = "GPU KV cache size"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    drafts_in_cache: ClassVar[bool] = True
    sums_in_32_bits: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    choices: ClassVar[Choices | None] = Choices(dtypes=("fp8", "nvfp4", "fp8_ds_mla"), weights=("bf16", "fp8", "awq", "nvfp4"))
    versions: ClassVar[tuple[str, ...]] = versions.VERSIONS
    source: ClassVar[str] = "vLLM 0.33.0, v1/core/kv_cache_planning.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    scatters: ClassVar[bool] = True

    def sharing_support(self, opened: Opened) -> Support:
        return sharing_support(of_vllm(opened).settings, opened.request)

    def shared_tokens(self, opened: Opened) -> tuple[int, int]:
        planned, together = of_vllm(opened), opened.together
        hits = hits_of(planned.layout, planned.settings, together.prefix, together.prompt)
        return hits.prefix, max(hits.prefix, hits.prompt) if together.forks else hits.prefix

    def shared_blocks(self, opened: Opened) -> tuple[SharedBlocks, ...]:
        planned = of_vllm(opened)
        return blocks_of_groups(planned.held, planned.settings, planned.together)

    def resolve_version(self, requested: str) -> str:
        return versions.resolve(requested)

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        from hwcalc.engines.vllm.speculation import draft_named

        return draft_named(options.get("speculative"))

    def unchecked(self, model: ModelSpec, request: Request) -> VllmOpened:
        return VllmOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        settings = of_vllm(opened).settings
        roles = formats.role_formats(
            settings.kv_dtype,
            opened.model,
            known_dtype(settings.model_dtype),
            known_dtype(settings.conv),
            known_dtype(settings.state),
        )
        dtypes = Dtypes(
            kv=settings.model_dtype if settings.kv_dtype == "auto" else settings.kv_dtype, roles=MappingProxyType(roles)
        )
        if not is_auto(opened.request.dtype):
            return Noted(dtypes)
        what = f"the model's dtype, {settings.model_dtype}" if settings.kv_dtype == "auto" else settings.kv_dtype
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def check_class(self, opened: Opened) -> None:
        check_architecture(opened.model, opened.version)

    def check(self, opened: Opened) -> None:
        planned = of_vllm(opened)
        opened.told(opened.shared("supported", lambda: check_supported(planned)))
        check_sharing(planned.settings, opened.request)
        # Plan the layout here, since vLLM refuses a model that it cannot lay out.
        planned.layout  # noqa: B018
        opened.tell(*opened.shared("remarks", lambda: tuple(_remarks(planned))))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """The blocks of all requests, on all tensor-parallel ranks together."""
        return tuple(_stored(opened, *cached) for cached in of_vllm(opened).kind_caches[kind])

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        """What requests take beside the pages of packed layers: draft layers, unpacked layers, and unused space in blocks."""
        planned = of_vllm(opened)
        held, width, ranks = planned.all_bytes, sum(planned.layout.stage_bytes), opened.request.parallel.tp
        pages = held.layers + held.outer + held.drafts
        sizes = {
            "draft_layers": held.drafts,
            "unpacked_layers": held.outer,
            "unused_block_space": planned.all_blocks * width - pages,
        }
        extras = tuple(
            _extra(opened, name, ranks * size, _of_all(opened, _counted(planned, name, size)))
            for name, size in sizes.items()
            if size
        )
        return (*extras, *_prompt_blocks(planned, width))

    def needed_bytes(self, opened: Opened) -> int:
        planned = of_vllm(opened)
        return planned.blocks_for(opened.request.replica_requests) * max(planned.layout.stage_bytes, default=0)

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        """The buffers of the pool, with as many blocks as fit into the budget of the plan.

        Without a budget there are the blocks of the planned sequences and the null block.
        """
        from hwcalc.engines.vllm.buffers import pool_buffers

        planned = of_vllm(opened)
        return pool_buffers(planned.layout, planned.settings.override or _blocks_of_budget(planned), stage)

    def deals_experts(self, opened: Opened) -> bool:
        from hwcalc.engines.vllm.flags import FLAGS

        return planned_version(opened.version) >= versions.since(FLAGS["dp"].since)

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        return of_vllm(opened).settings.sequences * opened.request.parallel.dp, "max_num_seqs"

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        """Computed from the layout, if the layout and the batch are the same at every length. By default V0's batch is a whole prompt."""
        from hwcalc.engines.vllm.defaults import runs_v0

        planned = of_vllm(opened)
        settings, layout = planned.settings, planned.layout
        by_prompt = runs_v0(opened.version) and "max_num_batched_tokens" not in opened.request.options
        if opened.evicted is not None or planned.together.unlike:
            return None
        if layout.depends_on_length or by_prompt or not any(layout.stage_bytes):
            return None
        usable = usable_blocks(layout, settings, budget_bytes)
        own = usable // layout.schedulers // ceil_div(opened.request.replica_batch, layout.schedulers)
        length = layout.longest(own, bound)
        return length if settings.same_batches(length) else None

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.vllm.form import plan_curve

        return plan_curve(of_vllm(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.vllm.form import plan_form

        return plan_form(of_vllm(opened))

    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        tokens = of_vllm(opened).settings.batched_tokens
        return tokens, tokens, tokens

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.vllm.savings import savings

        return savings(of_vllm(opened), short_bytes)

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.vllm.command import flag_text

        return flag_text(name, value)

    def groups(self, opened: Opened) -> tuple[PoolGroup, ...]:
        return group_infos(of_vllm(opened).held, opened.tokens)

    def policy_support(self, opened: Opened, chosen: Chosen) -> Support:
        from hwcalc.engines.vllm.policy_support import policy_support

        return policy_support(of_vllm(opened), chosen)

    def prefill_bytes(self, opened: Opened, stage: int) -> int:
        """Prompts that are read lie in the blocks of the pool, which the plan counts; all stages have as many blocks."""
        return opened.needed_bytes

    def scored_at_once(self, opened: Opened) -> tuple[int, int]:
        """The prompts that end in one batch, which begins with the rest of one."""
        from hwcalc.engines.vllm.evicting import prompts_at_once

        batch, tokens = opened.request.replica_batch, of_vllm(opened).settings.batched_tokens
        prompt = max(1, opened.request.prompt_tokens - opened.ahead)
        return min(batch, prompts_at_once(tokens, prompt)), min(tokens, batch * prompt)

    def paged_groups(self, opened: Opened) -> tuple[PagedGroup, ...]:
        if opened.evicted is None:
            return ()
        from hwcalc.engines.vllm.evicting import paged_groups

        return paged_groups(of_vllm(opened).layout, of_vllm(opened).held, opened, opened.evicted)

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        planned = of_vllm(opened)
        settings, layout = planned.settings, planned.layout
        notes: tuple[Note, ...] = ()
        if settings.override is not None and settings.override * max(layout.stage_bytes, default=0) > budget_bytes:
            message = (
                f"num_gpu_blocks_override={settings.override:,} is more than the budget holds: vLLM's check passes over it, "
                "and the allocation runs out of memory."
            )
            notes = (Note(code="override-beyond-budget", message=message),)
        bound = max(opened.tokens, opened.model.max_position_embeddings or 0)
        pool = plan_pool(layout, settings, budget_bytes, opened.tokens, bound)
        if opened.evicted is not None and any(layout.stage_bytes):
            from hwcalc.engines.vllm.policy_pool import under_policy

            pool = under_policy(planned, pool, bound)
        if opened.together.grouped:
            from hwcalc.engines.vllm.request_pool import of_requests

            pool = of_requests(planned, pool)
        return Noted(pool, notes)

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """The same answer as :meth:`PoolInfo.holds`, without planning the pool: each scheduler has the blocks of its requests."""
        planned = of_vllm(opened)
        layout = planned.layout
        if budget_bytes < 0 or not any(layout.stage_bytes):
            return budget_bytes >= 0
        own = usable_blocks(layout, planned.settings, budget_bytes) // layout.schedulers
        return own >= planned.blocks_for(ceil_div(opened.request.replica_requests, layout.schedulers))

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        """Within a family the budget depends only on the largest batch, and on what a policy takes to score."""
        from hwcalc.engines.vllm.memory import plan_budget

        settings = of_vllm(opened).settings
        policy: tuple[BudgetPart, ...] = ()
        if opened.request.policy is not None and opened.request.hardware.gpu is not None:
            from hwcalc.engines.peaks import policy_part

            policy = policy_part(opened)
        return opened.shared(
            ("budget", settings.sequences, settings.batched_tokens, policy),
            lambda: plan_budget(
                opened,
                sequences=settings.sequences,
                batched_tokens=settings.batched_tokens,
                speculation=settings.speculation,
                policy=policy,
            ),
        )

    def environment(self, opened: Opened) -> tuple[str, ...]:
        from hwcalc.engines.vllm.lengths import LONGER, longest_accepted

        longest = longest_accepted(opened.model, of_vllm(opened).settings.rules)
        return (LONGER,) if longest is not None and opened.tokens > longest else ()

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.vllm.command import serve

        return serve(planned)

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.vllm.weights import VLLM

        return VLLM

    def weight_dtype(self, opened: Opened) -> str:
        """The model dtype. A float32 checkpoint is loaded in 16 bits unless the option ``dtype`` says otherwise."""
        return of_vllm(opened).settings.model_dtype

    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.vllm.memory import weight_parts

        return weight_parts(opened)


def _remarks(opened: VllmOpened) -> Iterator[Note]:
    """Notes on the settings."""
    model, request, settings = opened.model, opened.request, opened.settings
    if model.architecture == "FalconForCausalLM" and not is_auto(request.dtype) and settings.kv_dtype == "auto":
        message = "vLLM builds Falcon's attention without the cache settings: --dtype is ignored."
        yield Note(code="dtype-ignored", message=message)
    chosen = (
        None
        if "dtype" in request.options or model.dtype == "fp16"
        else {"fp16": "float16", "fp32": "float32"}.get(settings.model_dtype)
    )
    if chosen is not None and request.hardware.gpu is not None:
        message = f"{request.hardware.gpu.id} has no bfloat16: vLLM runs the model in {chosen} instead."
        yield Note(code="no-bfloat16", message=message)
    if settings.speculation is not None and settings.speculation.method == "mtp":
        yield Note(code="draft-layers", message="The drafting layers keep their cache in the same pool.")
    if "kv_offloading_size" in request.options:
        size = request.options["kv_offloading_size"]
        message = f"kv_offloading_size: {size} GiB of host memory; the pool on the GPU stays as it is."
        yield Note(code="host-memory", message=message)
    if request.parallel.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {request.parallel.dp} replicas.")


def _blocks_of_budget(opened: VllmOpened) -> int:
    """Blocks of the pool: as many as fit into the budget of the plan, or without a budget those that the planned sequences need."""
    size = opened.request.hardware.kv_memory
    if size is None and opened.request.hardware.gpu is not None:
        size = None if opened.budget is None else max(0, opened.budget.expected)
    pool = None if size is None else opened.pool(size)
    needed = opened.blocks_for(opened.request.replica_requests) + 1
    return needed if pool is None or pool.blocks is None else pool.blocks


def _stored(opened: Opened, cache: LayerCache, spec: LayerSpec, blocks: int, held: int) -> StoredTensor:
    recurrent = isinstance(spec, StateSpec)
    state = recurrent or cache.name.endswith("_state")
    role = Role.STATE if state else Role.INDEX if cache.name == "indexer_keys" else _ROLES.get(cache.name, Role.KEY)
    return StoredTensor(
        name=cache.name,
        role=role,
        axes=("bytes of a block",),
        shape=(spec.page,),
        dtype=opened.dtypes.state if state else _format(opened, cache, role),
        positions=blocks,
        span=OwnRule(f"{blocks:,} blocks of {spec.block_size:,} tokens", blocks),
        bytes=opened.request.parallel.tp * held * spec.page,
        rule=_of_all(opened, f"{held if opened.together.unlike else blocks:,} blocks x {spec.page:,} B"),
        why=_why_state(spec, blocks) if isinstance(spec, StateSpec) else None,
    )


def _format(opened: Opened, cache: LayerCache, role: Role) -> str:
    """The format of a cache that is no state: an indexer's keys are in fp8 with scales, whatever the format of the others."""
    kind = opened.stack.groups[cache.kind].kind if cache.kind >= 0 else None
    unscaled = isinstance(kind, SparseIndexer) and not kind.index_quantized
    return opened.dtypes.roles[Role.INDEX].name if role is Role.INDEX and not unscaled else opened.dtypes.kv


def _why_state(spec: StateSpec, blocks: int) -> str:
    return f"state in {blocks:,} {'block' if blocks == 1 else 'blocks'} of {human_bytes(spec.page)}"


def _of_all(opened: Opened, counted: str) -> str:
    """The bytes of one request on a rank as those of all requests on all ranks, in words and numbers."""
    tp = opened.request.parallel.tp
    sequences = f"{opened.batch:,} sequences x " if opened.batch > 1 and not opened.together.unlike else ""
    return f"{sequences}{counted}{f' x {tp} ranks' if tp > 1 else ''}"


def _counted(opened: VllmOpened, name: str, size: int) -> str:
    """The bytes beside the layers in words and numbers, of one sequence or of all."""
    one = 1 if opened.together.unlike else opened.batch
    if name != "unused_block_space":
        return f"{size // one:,} B"
    blocks, width = opened.all_blocks // one, sum(opened.layout.stage_bytes)
    return f"({blocks:,} blocks x {width:,} B - {blocks * width - size // one:,} B of pages)"


def _prompt_blocks(opened: VllmOpened, width: int) -> Iterator[StoredTensor]:
    """What requests take under a policy while their prompts are read, beyond what they take later."""
    peak, ranks, replicas = opened.prompt_peak, opened.request.parallel.tp, opened.request.parallel.dp
    if peak is None:
        return
    each, fuller = divmod(opened.batch, replicas)
    many = sum(min(each + (number < fuller), peak.at_once) for number in range(replicas))
    more = peak.blocks - opened.blocks
    counted = f"{many:,} prompts x {more:,} blocks x {width:,} B{f' x {ranks} ranks' if ranks > 1 else ''}"
    yield _extra(opened, "prompt_blocks", many * more * width * ranks, counted)


def _extra(opened: Opened, name: str, size: int, counted: str) -> StoredTensor:
    words = {
        "draft_layers": "blocks of the layers that draft",
        "unpacked_layers": "outer layers at the model's dtype, beyond a packed layer's bytes",
        "unused_block_space": "a block is as wide as the widest group",
        "prompt_blocks": "a prompt is in blocks before it is cut",
    }[name]
    return beside_layers(name, size, f"{counted}: {words}", words)
