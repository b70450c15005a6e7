"""What LMDeploy makes of a model and of its settings, and what its pool holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.lmdeploy.layout import PYTORCH_WEIGHTS, TURBOMIND_WEIGHTS, Piece, PoolLayout, kept_by, plan_layout
from hwcalc.engines.lmdeploy.pool import LmdeployPool, plan_budget, plan_pool
from hwcalc.engines.lmdeploy.settings import TURBOMIND, LmdeploySettings, read_settings
from hwcalc.engines.models import known_dtype, model_classes
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.pooled import BlockPool, PooledDeployment, PooledOccupancy
from hwcalc.engines.setup import Load
from hwcalc.engines.stored import (
    Blocks,
    Dtypes,
    Held,
    OwnRule,
    SharedBlocks,
    StoredTensor,
    Support,
    blocks_in_common,
    held_blocks,
)
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet, LayerKind, LayerNumbers, NoCache, Role, SparseIndexer
from hwcalc.formulas.tensor import Once
from hwcalc.model import Note, Noted

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve, Term
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.pool import Allocation, PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas.weights import Weight
    from hwcalc.policies.base import Chosen

_OLDEST_GPU: Final = 70
_ROLE_FORMATS: Final = {"none": None, "int4": "int4", "int8": "int8", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "turbo_quant": "int4"}  # fmt: skip
_FP32_STATES: Final = "LMDEPLOY_FP32_MAMBA_SSM_DTYPE=1"
_NO_LAYERS: Final = LayerNumbers()
_APART: Final = "every sequence is computed and kept by itself"


class LmdeployDeployment(PooledDeployment):
    """A model on LMDeploy: its settings and the layout of its pool."""

    budget_is_fixed = True

    def at(self, load: Load) -> LmdeployOccupancy:
        return LmdeployOccupancy(self, load)

    @cached_property
    def settings(self) -> LmdeploySettings:
        """The settings with every default filled in."""
        return read_settings(self.model, self.setup)

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
        """The bytes that each GPU has left for the cache, the same under every load."""
        return plan_budget(self.at(Load(seq=1)), self.block_pool)

    def choose_dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        dtype = known_dtype(settings.model_dtype)
        named = _ROLE_FORMATS[settings.form.name]
        kept = known_dtype("fp8_e4m3") if settings.sparse else dtype if named is None else known_dtype(named)
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.CONV: dtype, Role.STATE: known_dtype(settings.state_dtype), Role.INDEX: known_dtype("fp8_scaled_128")}
        kv = "fp8_ds_mla" if settings.sparse else settings.model_dtype if named is None else settings.form.name
        dtypes = Dtypes(kv=kv, roles=MappingProxyType(roles))
        if settings.sparse and not (is_auto(self.setup.dtype) and "quant_policy" not in self.setup.options):
            message = "LMDeploy keeps the latents of this model in FlashMLA's fp8 rows, whatever quant_policy is."
            return Noted(dtypes, (Note(code="dtype-ignored", message=message),))
        if not is_auto(self.setup.dtype) or settings.form.policy:
            return Noted(dtypes)
        what = "FlashMLA's fp8 rows" if settings.sparse else f"the dtype that the model runs in, {settings.model_dtype}"
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def check_class(self) -> None:
        model_classes("lmdeploy").check(self.model, self.settings.backend)

    @cached_property
    def accepted(self) -> tuple[Note, ...]:
        """Notes on the settings. Raises an error for what LMDeploy does not have or cannot lay out, or kvplan does not know of it."""
        self._check_setup()
        self.layout  # noqa: B018
        return tuple(self._remarks())

    def weight_rules(self) -> Rules:
        return PYTORCH_WEIGHTS if self.settings.pytorch else TURBOMIND_WEIGHTS

    def weight_dtype(self) -> str:
        return self.settings.model_dtype

    def deals_experts(self) -> bool:
        return True

    def policy_support(self, chosen: Chosen) -> Support:
        return Support(
            offered=False, how="LMDeploy has no cache policies; a window frees blocks only where the whole model has one"
        )

    def _check_setup(self) -> None:
        parallel, gpu = self.setup.parallel, self.setup.hardware.gpu
        if parallel.pp > 1:
            raise UnsupportedError("LMDeploy has no pipeline parallelism.", hint="Leave out --pp, or use --tp")
        if parallel.dcp > 1:
            raise UnsupportedError(
                "LMDeploy's context parallelism (TurboMind's --cp) is not known to kvplan.",
                hint="Leave out --dcp, or use --engine vllm",
            )
        ranks = parallel.tp * parallel.dp
        if parallel.ep not in (1, ranks):
            raise UsageError(
                f"ep {parallel.ep} is not tp x dp: LMDeploy deals experts out over all {ranks} ranks.",
                hint=f"Use --ep {ranks}, or leave it out.",
            )
        if parallel.ep > 1 and not any(weight.copies > 1 for weight in self._weights()):
            raise UsageError(f"{self.model.id} has no experts to deal out.", hint="Leave out --ep.")
        if self.setup.draft is not None:
            raise UnsupportedError(
                "kvplan does not know what drafts take in LMDeploy.", hint="Leave out --draft, or use --engine vllm"
            )
        if self.setup.policy is not None:
            raise UnsupportedError("LMDeploy has no cache policies.", hint="Leave out --policy, or use --engine reference")
        if gpu is not None and (gpu.vendor.lower() != "nvidia" or compute_capability(gpu) < _OLDEST_GPU):
            raise UnsupportedError(
                f"LMDeploy's rules for {gpu.name} are not known.",
                hint="Known: NVIDIA GPUs from compute capability 7.0 on. Without --gpu: give a budget with --kv-memory.",
            )

    def _weights(self) -> Iterator[Weight]:
        for block in () if self.model.counted is None else self.model.counted.blocks:
            yield from block.weights

    def _remarks(self) -> Iterator[Note]:
        settings, options = self.settings, self.setup.options
        if self.setup.hardware.gpu is None:
            message = "No GPU given: max_batch_size and blocks are those of an H100. Set it with --gpu."
            yield Note(code="default-gpu", message=message)
        if settings.pytorch and "backend" not in options and TURBOMIND in model_classes("lmdeploy").row(self.model).words:
            message = "LMDeploy starts TurboMind for this model unless it is told --backend pytorch, which this plans; else: backend=turbomind."
            yield Note(code="backend", message=message)
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


class LmdeployOccupancy(PooledOccupancy):
    """What LMDeploy holds under one load.

    With ``enable_prefix_caching`` whole blocks of prompts are kept once, in a trie; the last token of a prompt is computed anew. Samples are requests
    of their own (``n`` is 1), which find the blocks of their prompt; there is no beam search. Windows and TurboMind's recurrent states have no
    prefix caching; in PyTorch recurrent states resume only at checkpoints.

    Sources: pytorch/paging/block_trie.py match, pytorch/engine/executor/base.py, messages.py GenerationConfig; engine/engine.cc of 0.14.0.
    """

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
        replica: LmdeployOccupancy = self.replica.sized(batch=requests)
        return replica.held.total

    def blocks_found(self, tokens: int) -> int:
        """Blocks of this many tokens, at the beginning of a prompt, that another request finds: the last token is computed anew."""
        return max(0, min(tokens, self.request.prompt_tokens - 1)) // self.block_pool.block_size

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

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        """What rounding adds to a slot of states, whose pieces hold all layers."""
        padding = self.deployment.layout.slot_padding
        slots = self.deployment.settings.slots
        return (self._slots("state_padding", Role.STATE, "uint8", padding),) if padding and slots else ()

    def fullest_bytes(self) -> int:
        pool = self.block_pool
        return self.blocks_for(self.request.replica_requests) * pool.block_bytes + pool.state_bytes

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The pool, with as many blocks as fit into the budget, or those of the planned sequences; and the slots of states."""
        blocks, pool = self._allocated_blocks(), self.block_pool
        made = [_buffer("kv_pool", blocks, pool.block_bytes, blocks)] if blocks else []
        if pool.state_bytes:
            made.append(_buffer("state_pool", pool.settings.slots, pool.slot_bytes, None))
        return tuple(made)

    def block_groups(self) -> tuple[PoolGroup, ...]:
        """The layers with keys and values, which share one block table."""
        from hwcalc.engines.pool import PoolGroup
        from hwcalc.engines.steps import step

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
        return plan_pool(self, self.block_pool, budget_bytes)

    def most_sequences(self) -> tuple[int, str]:
        return self.deployment.settings.max_batch_size * self.setup.parallel.dp, "max_batch_size"

    def plan_budget(self) -> Noted[Budget | None]:
        return self.deployment.budget_of_gpu

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.deployment.settings.prefill_tokens
        return tokens, tokens, tokens

    def curve(self) -> Curve | None:
        """The cache; ``None`` where the sequences are of unlike lengths, or have something in common."""
        from hwcalc.engines.forms import Curve

        parallel, layout, pool = self.setup.parallel, self.deployment.layout, self.block_pool
        if not self.request.is_plain:
            return None
        kept = [group for group in self.stack.groups if not isinstance(group.kind, GatedDeltaNet)]
        sizes = ((group, sum(piece.bytes for piece in kept_by(layout, group.kind))) for group in kept)
        return Curve(
            gpus=((self._term("blocks", pool.block_bytes),),),
            total=tuple(
                self._term(group.kind.name, parallel.tp * size, group.count, group.layers) for group, size in sizes if size
            ),
            once_bytes=pool.state_bytes,
            total_once_bytes=parallel.tp * parallel.dp * pool.state_bytes,
        )

    def support_of_sharing(self) -> Support:
        settings = self.deployment.settings
        if self.load.sharing.beams > 1:
            return Support(offered=False, how=f"LMDeploy has no beam search: {_APART}")
        if settings.window:
            return Support(offered=False, how=f"prefix caching is off for a model with a window: {_APART}")
        if settings.slots:
            return Support(
                offered=False, how=f"recurrent states are found only at checkpoints, which kvplan does not count: {_APART}"
            )
        if not settings.prefix_caching:
            return Support(
                offered=False, how=f"prefix caching is off: {_APART}; it takes --engine-option enable_prefix_caching=true"
            )
        return Support(offered=True, how="prefix caching: whole blocks that begin alike are kept once")

    def shared_tokens(self) -> tuple[int, int]:
        together, size = self.together, self.block_pool.block_size
        prefix = self.blocks_found(together.prefix) * size
        return prefix, max(prefix, self.blocks_found(together.prompt) * size) if together.forks else prefix

    def shared_blocks(self) -> tuple[SharedBlocks, ...]:
        """The blocks of all layers, which have one table."""
        return (blocks_in_common("attention", self.block_pool.block_size, self.held, self.together),)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The savings to advise: fewer slots and a smaller forward pass, a cache of fewer bits, weights of fewer bits."""
        from hwcalc.engines.devices import Cost, Saving, computes_fp8

        settings, gpu, batch = self.deployment.settings, self.setup.hardware.gpu, self.request.replica_batch
        if settings.max_batch_size > batch:
            count = str(batch)
            yield Saving(Cost.NOTHING, f"a server for {count} at once", {"engine_options": {"max_batch_size": count}})
        if settings.pytorch and settings.prefill_tokens > 2048:
            yield Saving(Cost.SPEED, "prompts in pieces of 2,048 tokens", {"engine_options": {"max_prefill_token_num": "2048"}})
        if not settings.form.policy and not settings.sparse:
            eight = "fp8" if settings.pytorch and computes_fp8(gpu) else "int8"
            yield Saving(Cost.CACHE, f"{eight} cache", {"dtype": eight})
            yield Saving(Cost.FEW_CACHE_BITS, "int4 cache", {"dtype": "int4"})
        if computes_fp8(gpu):
            yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        yield Saving(Cost.FEW_BITS, "a checkpoint in awq", {"weights": "awq"})

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        settings = self.deployment.settings
        words: dict[str, int | str | bool] = {
            "backend": settings.backend,
            "quant_policy": settings.form.policy,
            "block_size": settings.block_size,
            "max_batches": settings.max_batch_size,
            "window_size": settings.window or -1,
        }
        return words | ({"num_state_caches": settings.slots} if settings.slots else {})

    def environment(self) -> tuple[str, ...]:
        settings = self.deployment.settings
        return (_FP32_STATES,) if settings.slots and settings.state_dtype == "fp32" else ()

    def _allocated_blocks(self) -> int:
        """Blocks of the pool: of the budget of the plan, or without one those of the planned sequences and the reserved one."""
        size, settings = self.setup.hardware.kv_memory, self.deployment.settings
        if size is None and self.setup.hardware.gpu is not None:
            size = None if self.budget is None else max(0, self.budget.expected)
        pool = None if size is None and settings.num_gpu_blocks is None else self.pool(size or 0)
        needed = self.blocks_for(self.request.replica_requests) + settings.reserved_blocks
        return needed if pool is None or pool.blocks is None else pool.blocks

    def _term(self, kind: str, size: int, count: int = 1, layers: LayerNumbers = _NO_LAYERS) -> Term:
        """The blocks of a sequence, of so many bytes in each layer."""
        from hwcalc.engines.forms import Term

        return Term(
            kind=kind,
            layers=layers,
            count=count,
            unit_bytes=size,
            stairs=((self.block_pool.sequence_blocks,),),
            rule="blocks",
            unit_tokens=self.block_pool.block_size,
        )

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
        parallel, slots = self.setup.parallel, self.deployment.settings.slots
        ranks = parallel.tp * parallel.dp
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


def _buffer(name: str, count: int, width: int, blocks: int | None) -> Allocation:
    from hwcalc.engines.pool import Allocation

    return Allocation(name=name, layer=-1, dtype="uint8", shape=(count, width), bytes=count * width, blocks=blocks)
