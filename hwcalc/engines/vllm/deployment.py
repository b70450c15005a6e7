"""A model that vLLM serves, and what a load takes of its pool of blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Deployment, Occupancy
from hwcalc.engines.options import is_auto
from hwcalc.engines.pool import PoolShare
from hwcalc.engines.stored import Blocks, Dtypes, InCommon, OwnRule, StoredTensor, beside_layers, blocks_in_common, held_blocks
from hwcalc.engines.subjects import Reported, Traits
from hwcalc.engines.vllm import formats, policies
from hwcalc.engines.vllm.layer_specs import SpecBuilder
from hwcalc.engines.vllm.layout import PoolLayout, RequestBytes, longest, plan_layout, pool_buffers
from hwcalc.engines.vllm.memory import plan_budget, savings, weight_parts
from hwcalc.engines.vllm.pool import LIMITED_BY, BlockPool, group_infos, lacking, plan_curve, plan_form, plan_pool
from hwcalc.engines.vllm.rules import REPLICAS_SINCE
from hwcalc.engines.vllm.settings import LONGER, MAX_LENGTH, VllmSettings, backend_variable, longest_accepted, read_settings
from hwcalc.engines.vllm.specs import CrossSpec, LayerSpec, StateSpec, ceil_div
from hwcalc.engines.vllm.supported import check_architecture, check_supported
from hwcalc.engines.vllm.weights import VLLM, VllmAdapters
from hwcalc.errors import UsageError
from hwcalc.formulas import LayerKind, Role, SparseIndexer
from hwcalc.formulas.arithmetic import mapped
from hwcalc.model import Note, Noted
from hwcalc.profiles.engines import planned_version, since
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.pool import Allocation, PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.stored import Held, Support
    from hwcalc.engines.vllm.layout import BlockGroup, LayerCache
    from hwcalc.engines.vllm.policies import PromptPeak


_ROLES: Final = {
    "latent": Role.LATENT,
    "window_latent": Role.LATENT,
    "compressed_latent": Role.LATENT,
    "convolutions": Role.CONV,
}


class VllmDeployment(Deployment):
    """A model that vLLM serves: its settings, its layers in blocks, and what vLLM refuses and remarks before it knows the load."""

    adapter_class = VllmAdapters

    @cached_property
    def settings(self) -> VllmSettings:
        """The settings with every default filled in, where a batch is full."""
        return read_settings(self.model, self.setup, self.version)

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in groups that share blocks, where a batch is full."""
        return plan_layout(self.model, self.settings)

    @cached_property
    def block_pool(self) -> BlockPool | None:
        """The rule by which vLLM makes blocks of a budget; ``None`` if no layer has a cache."""
        return BlockPool.of(self.layout, self.settings.override)

    @cached_property
    def checks_blocks(self) -> bool:
        """True if the check before start-up asks for the blocks of a request and no more, so that whoever has these starts."""
        rules, override = self.layout.rules, self.settings.override
        if override is not None and not rules.override_checked:
            return False
        return (rules.check != "model" or self.settings.pp == 1) and (rules.checks_packed_width or not self.layout.packed)

    def length(self, tokens: int) -> int:
        """``max_model_len`` of a server for sequences of so many tokens: as long as they are, unless the user names it."""
        return tokens if self.max_length is None else self.max_length

    def blocks_of(self, tokens: int) -> int:
        """The blocks of a sequence of so many tokens that keeps everything and shares nothing; of an array of lengths an array."""
        if not self.layout.encodes:
            return self.layout.demand.at(tokens)

        def blocks(length: int) -> int:
            batched_tokens = self.settings.for_length(self.length(length), self.setup).batched_tokens
            return self.layout.for_length(self.length(length), batched_tokens).demand.at(length)

        of_each: int = mapped(blocks, tokens)
        return of_each

    @cached_property
    def curve(self) -> Curve:
        """The cache of sequences that are alike and keep everything, at every length and for every number of them."""
        return plan_curve(self)

    @cached_property
    def form(self) -> MemoryForm | None:
        """The memory of a GPU for such sequences; ``None`` without a budget, or where vLLM asks for more than blocks."""
        return plan_form(self)

    @cached_property
    def budgets(self) -> dict[Hashable, Noted[Budget | None]]:
        """The budgets by the size of a batch and by what a policy takes: all that a load changes of them."""
        return {}

    @cached_property
    def accepted(self) -> Noted[None]:
        """Notes on what is assumed of a model and a setup that this release runs. Raises an error if it does not run them."""
        return check_supported(self)

    @cached_property
    def remarks(self) -> tuple[Note, ...]:
        """Notes on the settings."""
        model, setup, settings, notes = self.model, self.setup, self.settings, {}
        if model.architecture == "FalconForCausalLM" and not is_auto(setup.dtype) and settings.kv_dtype == "auto":
            notes["dtype-ignored"] = "vLLM builds Falcon's attention without the cache settings: --dtype is ignored."
        chosen = {"fp16": "float16", "fp32": "float32"}.get(settings.model_dtype)
        named, gpu = "dtype" in setup.options or model.dtype == "fp16", setup.hardware.gpu
        if chosen is not None and not named and gpu is not None:
            notes["no-bfloat16"] = f"{gpu.id} has no bfloat16: vLLM runs the model in {chosen} instead."
        if settings.speculation is not None and settings.speculation.method == "mtp":
            notes["draft-layers"] = "The drafting layers keep their cache in the same pool."
        if "kv_offloading_size" in setup.options:
            size = setup.options["kv_offloading_size"]
            notes["host-memory"] = f"kv_offloading_size: {size} GiB of host memory; the pool on the GPU stays as it is."
        if setup.parallel.dp > 1:
            notes["per-replica"] = f"The pool is that of one of {setup.parallel.dp} replicas."
        return tuple(Note(code=code, message=message) for code, message in notes.items())

    def check_class(self) -> None:
        check_architecture(self.model, self.version)

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        kv_dtype, what = settings.kv_dtype, settings.kv_dtype
        if kv_dtype == "auto":
            kv_dtype, what = settings.model_dtype, f"the model's dtype, {settings.model_dtype}"
        dtypes = Dtypes(kv=kv_dtype, roles=MappingProxyType(formats.role_formats(self.model, settings)))
        if not is_auto(self.setup.dtype):
            return Noted(dtypes)
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def weight_rules(self) -> Rules:
        return VLLM

    def weight_dtype(self) -> str:
        """The model dtype. A float32 checkpoint is loaded in 16 bits unless the option ``dtype`` says otherwise."""
        return self.settings.model_dtype

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        return weight_parts(self)

    @cached_property
    def traits(self) -> Traits:
        dealt = planned_version(self.version) >= since(REPLICAS_SINCE)
        return Traits(deals_experts=dealt, drafted_tokens=self.settings.speculated)


class VllmOccupancy(Occupancy):
    """A load on vLLM: the blocks that it takes of the pool, and the pool that a budget gives."""

    policy_class = policies.VllmPolicies

    deployment: VllmDeployment

    @property
    def length(self) -> int:
        """``max_model_len``: a request of so many tokens must fit before the server starts."""
        return self.deployment.length(self.tokens)

    @cached_property
    def settings(self) -> VllmSettings:
        """The settings with the batch of ``max_model_len``."""
        return self.deployment.settings.for_length(self.length, self.setup)

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in groups that share blocks, for sequences of up to ``max_model_len``."""
        return self.deployment.layout.for_length(self.length, self.settings.batched_tokens)

    @property
    def group_reasons(self) -> tuple[str, ...]:
        return SpecBuilder(self.model, self.settings, self.model.stack_for("vllm")).reasons()

    @cached_property
    def held(self) -> PoolLayout:
        """The layout with what a request holds of it: under a policy less than the tokens of its length, in groups that the policy cuts."""
        return self.layout if self.evicted is None else policies.held_layout(self, self.evicted)

    @cached_property
    def prompt_peak(self) -> PromptPeak | None:
        """The peak of a request under a policy while its prompt is read; ``None`` where it is no more than afterwards."""
        # Layers have other numbers of tokens than the planned ones after all prompts have been read.
        return None if self.setup.policy is None or self.counts is not None else policies.prompt_peak(self)

    @cached_property
    def blocks(self) -> int:
        """Blocks of one request, in all groups together."""
        if self.setup.policy is not None:
            return self.held.total_blocks(self.tokens)
        return (
            self.deployment.blocks_of(self.tokens)
            if self.deployment.max_length is None
            else self.layout.total_blocks(self.tokens)
        )

    @cached_property
    def by_kind(self) -> PoolLayout:
        """The layout with the kinds of layers as the request has them."""
        return self.layout if self.evicted is None else replace(self.held, caches=policies.renumbered(self, self.evicted))

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests on one replica: under a policy with those whose prompts are being read."""
        if self._is_plain:
            return requests * self.deployment.blocks_of(self.load.seq)
        peak, branches = self.prompt_peak, self.load.sharing.branches
        reading = 0 if peak is None else min(requests * branches, peak.at_once) * (peak.blocks - self.blocks)
        if not self.together.unlike:
            return requests * branches * self.blocks + reading
        replica: VllmOccupancy = self.replica.sized(batch=requests)
        return replica.all_blocks + reading

    def most_requests(self, blocks: int) -> int:
        """The most requests of the planned length that take no more than so many blocks."""
        if self._is_plain:
            return blocks // max(1, self.blocks)
        return longest(self.blocks_for, blocks, blocks)

    @cached_property
    def request_bytes(self) -> RequestBytes:
        """The bytes of one request on one rank of every stage, added up."""
        return self.by_kind.taken(lambda group: self.by_kind.blocks(group, self.tokens))

    def held_in(self, group: BlockGroup) -> Held:
        """The blocks that all sequences together take in one group."""
        layout, together, spec = self.held, self.together, group.specs[0]
        parts, copies, size = [], 1, spec.block_size * layout.limits.dcp
        # What a policy leaves of a sequence begins with the prefix too.
        cut = any(member in layout.cut for member in group.members)
        for tokens, requests in together.lengths:
            hits = policies.hits_of(layout, self.settings, min(together.prefix, tokens), min(together.prompt, tokens))
            copies, most = max(copies, hits.copies), layout.blocks(group, tokens)
            prompt = hits.prompt if together.forks else hits.prefix
            blocks = Blocks(most if cut else max(most, ceil_div(tokens, size)), most, hits.prefix // size, prompt // size)
            if isinstance(spec, CrossSpec) or (isinstance(spec, StateSpec) and not spec.every):
                blocks = Blocks(most, most, 0, 0)
            parts.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(parts, min(together.requests * together.prompts, copies * together.copies * layout.schedulers))

    @cached_property
    def all_blocks(self) -> int:
        """The blocks that all sequences together take in all groups."""
        if self._is_plain:
            return self.batch * self.deployment.blocks_of(self.tokens)
        if not self.together.unlike:
            return self.batch * self.blocks
        return sum(self.held_in(group).total for group in self.layout.stage_groups[0])

    @cached_property
    def all_bytes(self) -> RequestBytes:
        """The bytes of all sequences on one rank of every stage, added up."""
        each, batch = self.request_bytes, self.batch
        if self.together.unlike:
            return self.by_kind.taken(lambda group: self.held_in(group).total)
        if batch == 1:
            return each
        kinds = tuple((cache, spec, batch * blocks) for cache, spec, blocks in each.kinds)
        return RequestBytes(kinds, batch * each.layers, batch * each.outer, batch * each.drafts)

    @cached_property
    def kind_caches(self) -> dict[LayerKind, list[tuple[LayerCache, LayerSpec, int, int]]]:
        """For each kind of layer, the caches of one layer, each with the blocks of one sequence and of all sequences."""
        kinds = [group.kind for group in self.stack.groups]
        caches: dict[LayerKind, list[tuple[LayerCache, LayerSpec, int, int]]] = {kind: [] for kind in kinds}
        for (cache, spec, blocks), (_, _, held) in zip(self.request_bytes.kinds, self.all_bytes.kinds, strict=True):
            caches[kinds[cache.kind]].append((cache, spec, blocks, held))
        return caches

    @cached_property
    def sharing_support(self) -> Support:
        return policies.sharing_support(self.settings, self.request)

    def in_common(self) -> InCommon:
        """The blocks are those of each group, as a plan reports them: of the longest sequence."""
        together, dcp = self.together, self.layout.limits.dcp
        hits = policies.hits_of(self.layout, self.settings, together.prefix, together.prompt)
        blocks = (
            blocks_in_common(group.form, group.specs[0].block_size, self.held_in(group), together, ranks=dcp)
            for group in self.held.groups
        )
        return InCommon(hits.prefix, max(hits.prefix, hits.prompt) if together.forks else hits.prefix, tuple(blocks))

    def reported(self) -> Reported:
        accepted = longest_accepted(self.model, self.settings.rules)
        chosen = backend_variable(self.setup.options, self.deployment.version)
        return Reported(
            environment=(LONGER,) if accepted is not None and self.length > accepted else (), chosen=(chosen,) if chosen else ()
        )

    def check(self) -> None:
        deployment = self.deployment
        self.told(deployment.accepted)
        policy, longest_allowed = self.setup.policy, deployment.max_length
        self.check_length()
        if longest_allowed is not None and policy is not None:
            raise UsageError(
                f"a policy is planned for a server that allows the planned length, not with {MAX_LENGTH}.",
                hint=f"Leave out: --engine-option {MAX_LENGTH}",
            )
        policies.check_sharing(self.settings, self.request)
        # vLLM refuses a model that it cannot lay out.
        deployment.layout  # noqa: B018
        self.tell(*deployment.remarks)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The blocks of all requests, on all tensor-parallel ranks together."""
        tensors, unlike = [], self.together.unlike
        for cache, spec, blocks, held in self.kind_caches[kind]:
            role, dtype, why = _ROLES.get(cache.name, Role.KEY), self.dtypes.kv, None
            if isinstance(spec, StateSpec) or cache.name.endswith("_state"):
                role, dtype = Role.STATE, self.dtypes.state
            elif cache.name == "indexer_keys":
                role = Role.INDEX
                # An indexer's keys are mostly in fp8 with scales, whatever the format of the others.
                if not isinstance(kind, SparseIndexer) or kind.index_quantized:
                    dtype = self.dtypes.roles[Role.INDEX].name
            if isinstance(spec, StateSpec):
                why = f"state in {blocks:,} {'block' if blocks == 1 else 'blocks'} of {human_bytes(spec.page)}"
            tensors.append(
                StoredTensor(
                    name=cache.name,
                    role=role,
                    axes=("bytes of a block",),
                    shape=(spec.page,),
                    dtype=dtype,
                    positions=blocks,
                    span=OwnRule(f"{blocks:,} blocks of {spec.block_size:,} tokens", blocks),
                    bytes=self.setup.parallel.tp * held * spec.page,
                    rule=self._of_all(f"{held if unlike else blocks:,} blocks x {spec.page:,} B"),
                    why=why,
                )
            )
        return tuple(tensors)

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The bytes that requests take outside the pages of packed layers: draft layers, unpacked layers, and unused space in blocks.

        Under a policy also the blocks that requests take only while their prompts are read.
        """
        held, width, ranks = self.all_bytes, sum(self.layout.stage_bytes), self.setup.parallel.tp
        # The formulas are those of one request, or of all if their lengths differ.
        requests, extras = 1 if self.together.unlike else self.batch, []
        unused = self.all_blocks * width - held.layers - held.outer - held.drafts
        blocks = self.all_blocks // requests
        of_blocks = f"({blocks:,} blocks x {width:,} B - {blocks * width - unused // requests:,} B of pages)"
        outer, drafts = (f"{size // requests:,} B" for size in (held.outer, held.drafts))
        for name, size, counted, words in (
            ("draft_layers", held.drafts, drafts, "blocks of the layers that draft"),
            ("unpacked_layers", held.outer, outer, "outer layers at the model's dtype, beyond a packed layer's bytes"),
            ("unused_block_space", unused, of_blocks, "a block is as wide as the widest group"),
        ):
            if size:
                extras.append(beside_layers(name, ranks * size, f"{self._of_all(counted)}: {words}", words))
        peak, replicas = self.prompt_peak, self.request.replicas
        if peak is not None:
            each, fuller = divmod(self.batch, replicas)
            many, more = sum(min(each + (number < fuller), peak.at_once) for number in range(replicas)), peak.blocks - self.blocks
            counted = f"{many:,} prompts x {more:,} blocks x {width:,} B{f' x {ranks} ranks' if ranks > 1 else ''}"
            words = "a prompt is in blocks before it is cut"
            extras.append(beside_layers("prompt_blocks", many * more * width * ranks, f"{counted}: {words}", words))
        return tuple(extras)

    def _of_all(self, counted: str) -> str:
        """The formula for all requests on all ranks: ``counted``, that of one request on one rank, times sequences and ranks."""
        tp = self.setup.parallel.tp
        sequences = f"{self.batch:,} sequences x " if self.batch > 1 and not self.together.unlike else ""
        return f"{sequences}{counted}{f' x {tp} ranks' if tp > 1 else ''}"

    @cached_property
    def stored_bytes(self) -> int:
        # The bytes of all tensors add up to whole blocks.
        return self.deployment.curve.total_bytes(self.tokens, self.batch) if self._is_plain else super().stored_bytes

    @cached_property
    def needed_bytes(self) -> int:
        return self.blocks_for(self.request.replica_requests) * max(self.layout.stage_bytes, default=0)

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The buffers of the pool, with as many blocks as fit into the budget of the plan.

        Without a budget there are the blocks of the planned sequences and the null block.
        """
        blocks, size = self.settings.override, self.setup.hardware.kv_memory
        if size is None and self.setup.hardware.gpu is not None and not blocks:
            size = None if self.budget is None else max(0, self.budget.expected)
        if not blocks and size is not None:
            pool = self.told(self.pool(size))
            blocks = None if pool is None else pool.blocks
        if blocks is None:
            blocks = self.blocks_for(self.request.replica_requests) + 1
        return pool_buffers(self.layout, blocks, stage)

    def pool_shares(self, budget_bytes: int) -> tuple[PoolShare, ...]:
        pool, blocks_of = self.deployment.block_pool, self.deployment.blocks_of
        if pool is None:
            return ()
        total = pool.scheduler_blocks(budget_bytes)
        return (PoolShare(name="blocks", total=total, of_sequence=blocks_of, copies=pool.schedulers),)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.sequences * self.setup.parallel.dp, LIMITED_BY

    def curve(self) -> Curve | None:
        return self.deployment.curve if self._is_plain else None

    def form(self) -> MemoryForm | None:
        return self.deployment.form if self._is_plain else None

    @property
    def _is_plain(self) -> bool:
        """True if all sequences are alike, share nothing and keep everything, and are as long as the server allows."""
        return self.setup.policy is None and self.load.is_alike and self.deployment.max_length is None

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.settings.batched_tokens
        return tokens, tokens, tokens

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        return savings(self, short_bytes)

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        return group_infos(self.held, self.tokens)

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        settings, layout = self.settings, self.layout
        notes: tuple[Note, ...] = ()
        if settings.override is not None and settings.override * max(layout.stage_bytes, default=0) > budget_bytes:
            message = (
                f"num_gpu_blocks_override={settings.override:,} is more than the budget holds: vLLM's check ignores it, "
                "and the allocation runs out of memory."
            )
            notes = (Note(code="override-beyond-budget", message=message),)
        return Noted(plan_pool(self, self.deployment.block_pool, budget_bytes), notes)

    def holds(self, budget_bytes: int) -> bool:
        """True if each scheduler has the blocks of its requests, and vLLM starts to serve one of them."""
        pool = self.deployment.block_pool
        if budget_bytes < 0 or pool is None:
            return budget_bytes >= 0
        if not pool.holds(budget_bytes, self.blocks_for(ceil_div(self.request.replica_requests, pool.schedulers))):
            return False
        # vLLM has no words for what a policy cuts, and elsewhere its check is mostly that of the blocks.
        if self.evicted is not None or (self.deployment.checks_blocks and self.length == self.tokens):
            return True
        return lacking(self.layout, self.settings, budget_bytes, self.length) is None

    def _plan_budget(self) -> Noted[Budget | None]:
        settings = self.settings
        policy: tuple[BudgetPart, ...] = ()
        if self.setup.policy is not None and self.setup.hardware.gpu is not None:
            from hwcalc.engines.policies import policy_part

            policy = policy_part(self)
        # V0 looks at whether the longest prompt fits into a batch.
        chunked = settings.rules.engine == "V0" and settings.batched_tokens < self.length
        known, key = self.deployment.budgets, (settings.sequences, settings.batched_tokens, chunked, policy)
        if key not in known:
            known[key] = plan_budget(self, sequences=settings.sequences, batched_tokens=settings.batched_tokens, policy=policy)
        return known[key]
