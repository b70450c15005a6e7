"""What LMDeploy makes of a model and of its settings, what its pool holds, and the budget: a share of what is free once the weights are loaded.

PyTorch takes the state slots off what is free, then ``(max_prefill_token_num + 2 x max_batch_size) x vocab_size x 2`` bytes for a forward
pass, and gives ``cache_max_entry_count`` of the rest to blocks. If those are fewer than 16, it halves the tokens of a prompt until they are
not. TurboMind takes its share of all that is free, and the state slots off that.

Sources: pytorch/engine/executor/base.py _get_runtime_size, update_configs, pytorch/engine/engine.py _get_max_session_len,
pytorch/paging/block_manager; src/turbomind/models/llama/{BlockManager,SequenceManager}.cc and engine/engine.cc of 0.14.0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.lmdeploy.layout import (
    INDEX_APART_SINCE,
    OBJECTS_SINCE,
    PYTORCH,
    PYTORCH_WEIGHTS,
    TURBOMIND,
    TURBOMIND_WEIGHTS,
    LmdeploySettings,
    Piece,
    PoolLayout,
    kept_by,
    plan_layout,
    read_settings,
)
from hwcalc.engines.memory import Budget, BudgetPart, Section, budget_of, communication, estimated, loaded_beside
from hwcalc.engines.models import known_dtype, model_classes
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.pooled import BlockPool, PooledDeployment, PooledOccupancy
from hwcalc.engines.setup import Load
from hwcalc.engines.steps import Step, figure, step
from hwcalc.engines.stored import (
    Blocks,
    Dtypes,
    Held,
    InCommon,
    OwnRule,
    StoredTensor,
    Support,
    blocks_in_common,
    held_blocks,
)
from hwcalc.engines.subjects import AdapterRules, LayerByLayer, Reported, Traits
from hwcalc.errors import UncountedError, UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet, LayerKind, LayerNumbers, NoCache, Role, SparseIndexer
from hwcalc.formulas.arithmetic import larger, mapped
from hwcalc.formulas.tensor import Once
from hwcalc.model import DEFAULT_GPU, Definition, Note, Noted
from hwcalc.profiles.engines import planned_version, runtime_profile, since
from hwcalc.text import brief
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve, Term
    from hwcalc.engines.pool import Allocation, PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.policies.base import Chosen

_LEAST_BLOCKS: Final = 16
"""PyTorch does not start with fewer."""
_TOO_FEW: Final = 2
"""With so few it does not even look for a smaller forward pass."""
_ROLE_FORMATS: Final = {"none": None, "int4": "int4", "int8": "int8", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "turbo_quant": "int4"}  # fmt: skip
_FP32_STATES: Final = "LMDEPLOY_FP32_MAMBA_SSM_DTYPE=1"
_NO_LAYERS: Final = LayerNumbers()


class LmdeployAdapters(AdapterRules):
    """The adapters of ``--adapters``, all on the GPUs from the start, each with its own rank. Source: LMDeploy 0.16, pytorch/models/patch.py."""

    deployment: LmdeployDeployment

    def check(self) -> None:
        if not self.deployment.settings.pytorch:
            raise UnsupportedError(
                "TurboMind loads no adapters.", hint="Leave out --lora, or use: --engine-option backend=pytorch"
            )
        super().check()


class LmdeployDeployment(PooledDeployment):
    """A model on LMDeploy: its settings and the layout of its pool."""

    adapter_class = LmdeployAdapters

    budget_is_fixed = True
    traits = Traits(deals_experts=True)

    def at(self, load: Load) -> LmdeployOccupancy:
        return LmdeployOccupancy(self, load)

    @cached_property
    def settings(self) -> LmdeploySettings:
        """The settings with every default filled in."""
        return read_settings(self.model, self.setup, planned_version(self.version))

    @cached_property
    def layout(self) -> PoolLayout:
        """The pool of one rank."""
        return plan_layout(self.model, self.settings, self.setup.parallel)

    @property
    def block_size(self) -> int:
        return self.settings.block_size

    @cached_property
    def block_pool(self) -> LmdeployPool:
        return LmdeployPool(
            block_size=self.block_size,
            block_bytes=self.layout.block_bytes,
            sequence_blocks=self.pages.pages,
            reserved=self.settings.reserved_blocks,
            settings=self.settings,
            slot_bytes=self.layout.slot_bytes,
        )

    @cached_property
    def budget_of_gpu(self) -> Noted[Budget | None]:
        """The bytes that each GPU has left for the cache, the same under every load; ``None`` if memory or weights are unknown."""
        occupancy, settings, pool, words = self.at(Load(seq=1)), self.settings, self.block_pool, self.model.vocab_size or 0
        found, notes = loaded_beside(occupancy)
        if found is None:
            return Noted(None, notes)
        gpu, memory, weights = found
        # Kernels are loaded by the first forward pass, which comes later.
        context = estimated("context", Section.OVERHEAD, runtime_profile().estimate("context.cuda"))
        parts = (*weights, context, *communication(self.setup.parallel, gpu))
        before, measured = budget_of(occupancy, memory, parts, tokens=settings.prefill_tokens, rows=settings.max_batch_size)
        ends = [shares_of(pool, words, free) for free in (before.low, before.expected, before.high)]
        # What PyTorch keeps for a forward pass is a part: less where little is free.
        runtime, parts = [each.runtime for each in ends], before.parts
        if max(runtime):
            sizes = (min(runtime), runtime[1], max(runtime))
            scores, batch = settings.index_scores_bytes, settings.max_batch_size
            low, expected, high = ((size - scores) // (2 * words) - 2 * batch for size in sizes)
            formula, tokens = "(prefill_tokens + 2 x max_batch_size) x vocab_size x 2", (low, expected, high)
            more_terms: dict[str, Any] = {"index_scores": scores} if scores else {}
            formula += " + index_scores" if scores else ""
            passed = step("forward pass", formula, prefill_tokens=tokens, max_batch_size=batch, vocab_size=words, **more_terms)
            source = f"LMDeploy {self.version} executor/base.py _get_runtime_size"
            more = {"definition": Definition.ENGINE, "steps": (passed,)}
            parts = (*parts, BudgetPart.of("forward pass", Section.ACTIVATIONS, sizes, source, **more))
        # The share that is left alone at the expected end counts at every end, so that the ends stay in order: the range is a little wider.
        low, expected, high = (size - ends[1].unused for size in before.usable)
        budget = replace(
            before,
            requested_bytes=expected,
            usable=(low, expected, high),
            margin_bytes=before.total_bytes - expected,
            parts=parts,
            low=low - sum(part.high for part in parts),
            expected=expected - sum(part.expected for part in parts),
            high=high - sum(part.low for part in parts),
        )
        return Noted(budget, (*notes, *measured))

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        dtype = known_dtype(settings.model_dtype)
        named = _ROLE_FORMATS[settings.form.name]
        kept = known_dtype("fp8_e4m3") if settings.fp8_rows else dtype if named is None else known_dtype(named)
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.CONV: dtype, Role.STATE: known_dtype(settings.state_dtype), Role.INDEX: known_dtype("fp8_scaled_128")}
        kv = "fp8_ds_mla" if settings.fp8_rows else settings.model_dtype if named is None else settings.form.name
        dtypes = Dtypes(kv=kv, roles=MappingProxyType(roles))
        named_form = not is_auto(self.setup.dtype) or "quant_policy" in self.setup.options
        if settings.sparse and settings.release < INDEX_APART_SINCE and named_form:
            message = "LMDeploy keeps the latents of this model in FlashMLA's fp8 rows, whatever quant_policy is."
            return Noted(dtypes, (Note(code="dtype-ignored", message=message),))
        if not is_auto(self.setup.dtype) or settings.form.policy:
            return Noted(dtypes)
        what = "FlashMLA's fp8 rows" if settings.fp8_rows else f"the dtype that the model runs in, {settings.model_dtype}"
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def check_class(self) -> None:
        classes, release = model_classes("lmdeploy"), self.settings.release
        classes.check(self.model, self.settings.backend)
        words = classes.row(self.model).words
        first = words.get(f"{self.settings.backend}_since", words.get("since", "0"))
        if since(first) <= release < since(words.get("until", "9")):
            return
        has, other = (
            (f"is there since {first}", "") if release < since(first) else (f"was there before {words['until']}", "@0.14")
        )
        message = f"LMDeploy {self.version} has no {brief(self.model.architecture or '', 60)}: it {has}."
        raise UnsupportedError(message, hint=f"Use: --engine lmdeploy{other}, or --engine vllm")

    @cached_property
    def accepted(self) -> tuple[Note, ...]:
        """Notes on the settings. Raises an error for what LMDeploy does not have or cannot lay out, or kvplan does not know of it."""
        parallel = self.setup.parallel
        if parallel.pp > 1:
            raise UnsupportedError("LMDeploy has no pipeline parallelism.", hint="Leave out --pp, or use --tp")
        if parallel.dcp > 1:
            message = "LMDeploy's context parallelism (TurboMind's --cp) is not known to kvplan."
            raise UnsupportedError(message, hint="Leave out --dcp, or use --engine vllm")
        ranks = parallel.tp * parallel.dp
        if parallel.ep not in (1, ranks):
            message = f"ep {parallel.ep} is not tp x dp: LMDeploy deals experts out over all {ranks} ranks."
            raise UsageError(message, hint=f"Use --ep {ranks}, or leave it out.")
        blocks = () if self.model.counted is None else self.model.counted.blocks
        if parallel.ep > 1 and not any(weight.copies > 1 for block in blocks for weight in block.weights):
            raise UsageError(f"{self.model.id} has no experts to deal out.", hint="Leave out --ep.")
        if self.setup.draft is not None:
            what = "kvplan does not know what drafts take in LMDeploy."
            raise UncountedError(what, hint="Leave out --draft, or use --engine vllm")
        if self.setup.policy is not None:
            raise UnsupportedError("LMDeploy has no cache policies.", hint="Leave out --policy, or use --engine reference")
        self.layout  # noqa: B018
        return tuple(self._remarks())

    def backend(self) -> str:
        return PYTORCH if self.settings.pytorch else TURBOMIND

    def weight_rules(self) -> Rules:
        return PYTORCH_WEIGHTS if self.settings.pytorch else TURBOMIND_WEIGHTS

    def weight_dtype(self) -> str:
        return self.settings.model_dtype

    def _remarks(self) -> Iterator[Note]:
        settings, options = self.settings, self.setup.options
        if self.setup.hardware.gpu is None:
            message = "No GPU given: max_batch_size and blocks are those of an H100. Set it with --gpu."
            yield Note(code=DEFAULT_GPU, message=message)
        words = model_classes("lmdeploy").row(self.model).words
        has_turbomind = TURBOMIND in words and settings.release >= since(words.get("turbomind_since", "0"))
        if settings.pytorch and "backend" not in options and has_turbomind:
            message = "LMDeploy starts TurboMind for this model unless it is told --backend pytorch, which this plans; else: backend=turbomind."
            yield Note(code="backend", message=message)
        if not settings.pytorch and settings.release >= OBJECTS_SINCE:
            message = "TurboMind has its blocks in slabs since 0.15: a few fewer than are told here may fit."
            yield Note(code="slabs", message=message)
        if settings.window:
            message = f"A prompt lies in blocks as a whole; behind it those outside of {settings.window:,} tokens are freed, of all layers alike."
            yield Note(code="window-freed", message=message)
        if is_on(options.get("enable_prefix_caching")) and settings.window:
            yield Note(code="prefix-caching-off", message="LMDeploy has no prefix caching for a model with a window.")
        if settings.pytorch and is_on(options.get("enable_prefix_caching")) and settings.slots:
            message = "Checkpoints of states borrow idle slots, or those of prefix_cache_state_budget."
            yield Note(code="state-checkpoints", message=message)
        if self.setup.parallel.dp > 1:
            yield Note(code="per-replica", message=f"The pool is that of one of {self.setup.parallel.dp} replicas.")


class LmdeployPolicies(LayerByLayer):
    """LMDeploy has none."""

    def support(self, chosen: Chosen) -> Support:
        how = "LMDeploy has no cache policies; a window frees blocks only where the whole model has one"
        return Support(offered=False, how=how)


class LmdeployOccupancy(PooledOccupancy):
    """What LMDeploy holds under one load.

    With ``enable_prefix_caching`` whole blocks of prompts are kept once, in a trie; the last token of a prompt is computed anew. Samples are requests
    of their own (``n`` is 1), which find the blocks of their prompt; there is no beam search. Windows and TurboMind's recurrent states have no
    prefix caching; in PyTorch recurrent states resume only at checkpoints.

    Sources: pytorch/paging/block_trie.py match, pytorch/engine/executor/base.py, messages.py GenerationConfig; engine/engine.cc of 0.14.0.
    """

    policy_class = LmdeployPolicies

    deployment: LmdeployDeployment

    @cached_property
    def block_pool(self) -> LmdeployPool:
        """The pool. A prompt is in blocks as a whole; where the whole model has a window, blocks that have left it are freed behind the prompt."""
        pool, window, prompt = self.deployment.block_pool, self.deployment.settings.window, self.load.prompt
        if not window or prompt is None:
            return pool
        size, blocks = pool.block_size, pool.sequence_blocks
        # While a token is added, the window of the one before it is held too.
        return replace(pool, sequence_blocks=blocks._replace(most=max(blocks.at(prompt), (window + size - 2) // size + 1)))

    @property
    def blocks(self) -> int:
        """The most blocks that a sequence of the planned length holds at once."""
        return self.block_pool.demand(self.tokens, 1)

    @property
    def unlike_blocks(self) -> int | None:
        return self.blocks_for(self.request.replica_requests) if self.together.unlike else None

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests on one replica."""
        if not self.together.unlike:
            return self.block_pool.demand(self.tokens, requests * self.load.sharing.branches)
        return self.replica.sized(batch=requests).held.total

    def blocks_found(self, tokens: int) -> int:
        """Blocks of this many tokens, at the beginning of a prompt, that another request finds: the last token is computed anew."""
        return max(0, min(tokens, self.load.prompt_tokens - 1)) // self.block_pool.block_size

    @cached_property
    def held(self) -> Held:
        """The blocks that all sequences together take."""
        together, pool = self.together, self.block_pool
        lengths = []
        for tokens, requests in together.lengths:
            most, prefix = pool.demand(tokens, 1), self.blocks_found(min(together.prefix, tokens))
            prompt = self.blocks_found(min(together.prompt, tokens)) if together.forks else prefix
            blocks = Blocks(self.deployment.pages.pages.at(tokens), most, prefix, prompt)
            lengths.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(lengths, together.copies)

    def check(self) -> None:
        self.tell(*self.deployment.accepted)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The blocks of all requests, or all slots, on all tensor-parallel ranks together."""
        layout = self.deployment.layout
        if isinstance(kind, GatedDeltaNet):
            return tuple(self._slots(piece.name, piece.role, piece.dtype, piece.bytes) for piece in layout.states)
        return tuple(map(self._blocks, kept_by(layout, kind)))

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The bytes that rounding adds to a slot of states, whose pieces hold all layers."""
        layout, slots = self.deployment.layout, self.deployment.settings.slots
        padding = layout.slot_bytes - layout.state_layers * sum(piece.bytes for piece in layout.states)
        return (self._slots("state_padding", Role.STATE, "uint8", padding),) if padding and slots else ()

    @cached_property
    def needed_bytes(self) -> int:
        pool = self.block_pool
        return self.blocks_for(self.request.replica_requests) * pool.block_bytes + pool.state_bytes

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The pool, with as many blocks as fit into the budget, or those of the planned sequences and the reserved one; and the slots of states."""
        from hwcalc.engines.pool import Allocation

        size, pool, settings = self.setup.hardware.kv_memory, self.block_pool, self.deployment.settings
        if size is None and self.setup.hardware.gpu is not None:
            size = None if self.budget is None else max(0, self.budget.expected)
        made = None if size is None and settings.num_gpu_blocks is None else self.told(self.pool(size or 0))
        blocks = self.blocks_for(self.request.replica_requests) + settings.reserved_blocks
        blocks = blocks if made is None or made.blocks is None else made.blocks
        buffers = (("kv_pool", blocks, pool.block_bytes, blocks), ("state_pool", settings.slots, pool.slot_bytes, None))
        return tuple(
            Allocation(name=name, layer=-1, dtype="uint8", shape=(count, width), bytes=count * width, blocks=number)
            for name, count, width, number in buffers
            if count * width
        )

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        """The layers with keys and values, which share one block table."""
        from hwcalc.engines.pool import PoolGroup

        settings, layout = self.deployment.settings, self.deployment.layout
        groups = [group for group in self.stack.groups if not isinstance(group.kind, (GatedDeltaNet, SparseIndexer, NoCache))]
        formula, terms = "ceil(tokens / block_size)", {"tokens": self.tokens, "block_size": settings.block_size}
        if settings.window:
            formula, terms = "blocks", {"blocks": self.blocks}
        return (
            PoolGroup(
                kind="+".join(dict.fromkeys(group.kind.name for group in groups)),
                count=layout.layers,
                layers=LayerNumbers(sorted({number for group in groups for number in group.layers})),
                block_size=settings.block_size,
                page_bytes=layout.layer_bytes,
                block_bytes=layout.block_bytes,
                blocks_per_request=self.blocks,
                steps=(step("blocks_per_request", formula, self.blocks, unit="blocks", **terms),),
            ),
        )

    def pool_info(self, pool: BlockPool, budget_bytes: int) -> PoolInfo:
        own, info, planned, settings = (
            self.block_pool,
            super().pool_info(pool, budget_bytes),
            self.budget,
            self.deployment.settings,
        )
        steps, fixed = info.steps, self.setup.hardware.margin or settings.num_gpu_blocks is not None
        if planned is not None and budget_bytes == planned.expected and not fixed:
            # What the share leaves alone, of what is free behind states and a forward pass; TurboMind's share is of all that is free.
            shared = budget_bytes + planned.margin_bytes - (own.state_bytes if settings.pytorch else 0)
            formula, ratio = "free_after_pass - floor(free_after_pass x cache_max_entry_count)", float(settings.ratio)
            margin = step("margin", formula, free_after_pass=shared, cache_max_entry_count=ratio)
            steps = (margin, *steps) if margin.expected == planned.margin_bytes > 0 else steps
        return replace(
            info,
            max_requests=info.max_requests if info.fits else 0,
            max_seq=min(max(self.tokens, self.model.max_position_embeddings or 0), own.session_tokens(budget_bytes)),
            state_slots=own.settings.slots or None,
            needed_bytes=self.request_blocks * own.block_bytes + own.state_bytes,
            steps=steps,
        )

    @property
    def request_blocks(self) -> int:
        return self.blocks_for(1)

    def most_requests(self, usable: int, steps: list[Step]) -> int:
        """As usual; where requests begin alike, those behind the first take fewer blocks."""
        if not self.together.unlike:
            return super().most_requests(usable, steps)
        return bisect_right(range(1, usable + 1), usable, key=self.blocks_for)

    def pool_message(self, pool: BlockPool, budget_bytes: int, requests: int) -> str | None:
        return self.block_pool.message(budget_bytes, self.tokens)

    def most_sequences(self) -> tuple[int, str]:
        return self.deployment.settings.max_batch_size * self.setup.parallel.dp, "max_batch_size"

    def _plan_budget(self) -> Noted[Budget | None]:
        return self.deployment.budget_of_gpu

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.deployment.settings.prefill_tokens
        return tokens, tokens, tokens

    def curve(self) -> Curve | None:
        """The cache; ``None`` where the sequences are of unlike lengths, or have something in common."""
        from hwcalc.engines.forms import Curve, Term

        parallel, layout, pool = self.setup.parallel, self.deployment.layout, self.block_pool
        if not self.request.is_plain:
            return None

        def term(kind: str, size: int, count: int = 1, layers: LayerNumbers = _NO_LAYERS) -> Term:
            """The blocks of a sequence, of so many bytes in each layer."""
            stairs = ((pool.sequence_blocks,),)
            return Term(
                kind=kind, layers=layers, count=count, unit_bytes=size, stairs=stairs, rule="blocks", unit_tokens=pool.block_size
            )

        kept = [group for group in self.stack.groups if not isinstance(group.kind, GatedDeltaNet)]
        sizes = ((group, sum(piece.bytes for piece in kept_by(layout, group.kind))) for group in kept)
        return Curve(
            gpus=((term("blocks", pool.block_bytes),),),
            total=tuple(term(group.kind.name, parallel.tp * size, group.count, group.layers) for group, size in sizes if size),
            once_bytes=pool.state_bytes,
            total_once_bytes=parallel.tp * parallel.dp * pool.state_bytes,
        )

    @cached_property
    def sharing_support(self) -> Support:
        settings, apart = self.deployment.settings, "every sequence is computed and kept by itself"
        if self.load.sharing.beams > 1:
            how = f"LMDeploy has no beam search: {apart}"
        elif settings.window:
            how = f"prefix caching is off for a model with a window: {apart}"
        elif settings.slots:
            how = f"recurrent states are found only at checkpoints, which kvplan does not count: {apart}"
        elif not settings.prefix_caching:
            how = f"prefix caching is off: {apart}; it takes --engine-option enable_prefix_caching=true"
        else:
            return Support(offered=True, how="prefix caching: whole blocks that begin alike are kept once")
        return Support(offered=False, how=how)

    def in_common(self) -> InCommon:
        """The blocks are those of all layers, which have one table."""
        together, size = self.together, self.block_pool.block_size
        prefix = self.blocks_found(together.prefix) * size
        prompt = max(prefix, self.blocks_found(together.prompt) * size) if together.forks else prefix
        return InCommon(prefix, prompt, (blocks_in_common("attention", size, self.held, together),))

    def reported(self) -> Reported:
        settings = self.deployment.settings
        words: dict[str, int | str | bool] = {
            "backend": settings.backend,
            "quant_policy": settings.form.policy,
            "block_size": settings.block_size,
            "max_batches": settings.max_batch_size,
            "window_size": settings.window or -1,
        }
        if settings.slots:
            words["num_state_caches"] = settings.slots
        return Reported(words, (_FP32_STATES,) if settings.slots and settings.state_dtype == "fp32" else ())

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The savings to advise: fewer slots and a smaller forward pass, a cache of fewer bits, weights of fewer bits."""
        from hwcalc.engines.devices import Cost, Saving, computes_fp8

        settings, gpu, batch = self.deployment.settings, self.setup.hardware.gpu, self.request.replica_batch
        if settings.max_batch_size > batch:
            count = str(batch)
            yield Saving(Cost.NOTHING, f"a server for {count} at once", {"engine_options": {"max_batch_size": count}})
        if settings.pytorch and settings.prefill_tokens > 2048:
            yield Saving(Cost.SPEED, "prompts in pieces of 2,048 tokens", {"engine_options": {"max_prefill_token_num": "2048"}})
        if settings.sparse and not settings.fp8_rows:
            yield Saving(Cost.CACHE, "FlashMLA's fp8 rows", {"dtype": "fp8"})
        if not settings.form.policy and not settings.sparse:
            eight = self.engine.facts.eight_bits(gpu) if settings.pytorch else "int8"
            yield Saving(Cost.CACHE, f"{eight} cache", {"dtype": eight})
            yield Saving(Cost.FEW_CACHE_BITS, "int4 cache", {"dtype": "int4"})
        if computes_fp8(gpu):
            yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        yield Saving(Cost.FEW_BITS, "a checkpoint in awq", {"weights": "awq"})

    def _blocks(self, piece: Piece) -> StoredTensor:
        """A piece of the blocks of one layer."""
        tp, blocks, held = self.setup.parallel.tp, self.blocks, self.held.total
        ranks = f" x {tp} ranks" if tp > 1 else ""
        unlike, settings = self.together.unlike, self.deployment.settings
        sequences = f"{self.batch:,} sequences x " if self.batch > 1 and not unlike else ""
        return StoredTensor(
            name=piece.name,
            role=piece.role,
            axes=("bytes of a block",),
            shape=(piece.bytes,),
            dtype=piece.dtype or settings.model_dtype,
            positions=blocks,
            span=OwnRule(f"{blocks:,} blocks of {settings.block_size:,} tokens", blocks),
            bytes=tp * held * piece.bytes,
            rule=f"{sequences}{held if unlike else blocks:,} blocks x {piece.bytes:,} B{ranks}",
        )

    def _slots(self, name: str, role: Role, dtype: str, size: int) -> StoredTensor:
        """All slots of a state, which are there whatever the number of sequences."""
        slots, ranks = self.deployment.settings.slots, self.setup.parallel.tp * self.request.replicas
        return StoredTensor(
            name=name,
            role=role,
            axes=("bytes of a slot",),
            shape=(size,),
            dtype=dtype,
            positions=slots,
            span=Once(),
            bytes=ranks * slots * size,
            rule=f"{slots:,} slots x {size:,} B{f' x {ranks} ranks' if ranks > 1 else ''}",
            once=True,
            why=f"{slots:,} slots of states",
        )


class LmdeployPool(BlockPool):
    """Blocks behind the slots of recurrent states, which are there whatever is planned."""

    settings: LmdeploySettings
    slot_bytes: int

    @property
    def state_bytes(self) -> int:
        """Bytes of all slots of recurrent states."""
        return self.settings.slots * self.slot_bytes

    def blocks(self, budget_bytes: int, steps: list[Step] | None = None) -> int:
        settings = self.settings
        if settings.num_gpu_blocks is not None:
            name = "num_gpu_blocks" if settings.pytorch else "cache_max_entry_count"
            return figure(steps, "blocks", name, unit="blocks", **{name: settings.num_gpu_blocks})
        formula, terms = "floor(budget / bytes_per_block)", {"budget": larger(budget_bytes, 0)}
        if settings.slots:
            formula = "max(0, floor((budget - slots x slot_bytes) / bytes_per_block))"
            terms |= {"slots": settings.slots, "slot_bytes": self.slot_bytes}
        return figure(steps, "blocks", formula, unit="blocks", **terms, bytes_per_block=max(1, self.block_bytes))

    def starts(self, budget_bytes: int) -> bool:
        starts: bool = mapped(lambda size: size >= 0 and self.refusal(size) is None, budget_bytes)
        return starts

    def session_tokens(self, budget_bytes: int) -> int:
        """The longest session. With a window the blocks behind it are freed, and only the prompt must fit."""
        settings, blocks = self.settings, self.blocks(budget_bytes)
        behind = (blocks - self.reserved) * self.block_size
        if settings.window and settings.window <= behind:
            return max(0, behind)
        return max(0, blocks - settings.spare_blocks) * self.block_size

    def hold(self, budget_bytes: int, tokens: int, sequences: int, demand: int | None = None) -> bool:
        held = super().hold(budget_bytes, tokens, sequences, demand)
        # With a window a session has no end.
        return held if self.settings.window else held & (tokens <= mapped(self.session_tokens, budget_bytes))

    def longest(self, budget_bytes: int, sequences: int, bound: int) -> int:
        most = bound if self.settings.window else min(bound, self.session_tokens(budget_bytes))
        return super().longest(budget_bytes, sequences, most)

    def refusal(self, budget_bytes: int) -> str | None:
        """The reason why LMDeploy does not start with this budget, in its own words; ``None`` if it does."""
        settings, blocks = self.settings, self.blocks(budget_bytes)
        fixed = (settings.num_gpu_blocks or 0) * self.block_bytes
        if fixed and fixed + self.state_bytes > budget_bytes:
            return f"CUDA out of memory. Tried to allocate {fixed / GIB:,.2f} GiB."
        if settings.slots and budget_bytes <= self.state_bytes:
            if settings.pytorch:
                return "No enough gpu memory for state cache. Please reduce max_batch_size."
            return "Please decrease max_batch_size to reduce total linear state size or increase cache_max_entry_count."
        if settings.pytorch and blocks < _LEAST_BLOCKS:
            return f"No enough gpu memory for {'kv cache' if blocks <= _TOO_FEW else 'runtime'}."
        return None

    def message(self, budget_bytes: int, tokens: int) -> str | None:
        """The reason why LMDeploy does not start, or takes no request of so many tokens."""
        refused, longest = self.refusal(budget_bytes), self.session_tokens(budget_bytes)
        # With a window a session has no end, but its blocks must be there.
        fits = self.settings.window and self.demand(tokens, 1) <= self.blocks(budget_bytes) - self.reserved
        if refused is not None or tokens <= longest or fits:
            return refused
        if self.settings.pytorch:
            return f"A session has at most {longest:,} tokens: one block is reserved, and sessions end a block earlier."
        return f"`session_len` truncated to {longest} due to limited KV cache memory"


class Shares(NamedTuple):
    """What becomes of the free memory: bytes for a forward pass, for the cache (blocks and states), and what stays free."""

    runtime: int
    cache: int
    unused: int


def shares_of(pool: LmdeployPool, vocab_size: int, free: int) -> Shares:
    """The shares that LMDeploy makes of ``free`` bytes, the fewest of all ranks, in floating point.

    Llama-3-8B on an H100 with 60 GiB free: the forward pass gets (8,192 + 2 x 1,024) x 128,256 x 2 = 2,626,682,880 bytes, and blocks
    int(61,797,826,560 x 0.8) = 49,438,261,248, which are 5,893 of 8,388,608. Indexers have a buffer of theirs beside it.
    """
    settings, states = pool.settings, pool.state_bytes
    if settings.num_gpu_blocks is not None:
        return Shares(0, free, 0)
    if not settings.pytorch:
        cache = int(free * settings.ratio) if free > 0 else free
        return Shares(0, cache, free - cache)
    left, block = free - states, max(1, pool.block_bytes)
    tokens = settings.prefill_tokens
    while True:
        runtime = (tokens + 2 * settings.max_batch_size) * vocab_size * 2 + settings.index_scores_bytes
        shared = int((left - runtime) * settings.ratio)
        blocks = shared // block
        if blocks >= _LEAST_BLOCKS or blocks <= _TOO_FEW or tokens <= 1:
            break
        tokens //= 2
    if left < runtime:
        return Shares(runtime, free - runtime, 0)
    return Shares(runtime, states + shared, free - runtime - states - shared)
