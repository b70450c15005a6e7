"""A request that LMDeploy has opened, with its settings and the layout of its pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.capability import compute_capability
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.lmdeploy.classes import TURBOMIND, check_architecture, runs
from hwcalc.engines.lmdeploy.groups import group_infos
from hwcalc.engines.lmdeploy.layout import Piece, PoolLayout, kept_by, plan_layout
from hwcalc.engines.lmdeploy.settings import LmdeploySettings, read_settings
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.policies import Support
from hwcalc.engines.sharing import Blocks, Held, SharedBlocks, held_blocks
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet, LayerKind, Role
from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.formulas.tensor import Once
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.formulas.weights import Weight
    from hwcalc.policies.base import Chosen


_OLDEST_GPU: Final = 70

_ROLE_FORMATS: Final = {"none": None, "int4": "int4", "int8": "int8", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "turbo_quant": "int4"}  # fmt: skip

_FP32_STATES: Final = "LMDEPLOY_FP32_MAMBA_SSM_DTYPE=1"


class LmdeployOccupancy(Occupancy):
    """An opened request with the values that the rules of LMDeploy use again and again."""

    @cached_property
    def settings(self) -> LmdeploySettings:
        """The settings with every default filled in."""
        return self.shared("settings", lambda: read_settings(self.model, self.request))

    @cached_property
    def layout(self) -> PoolLayout:
        """The pool of one rank."""
        return self.shared("layout", lambda: plan_layout(self.model, self.settings, self.request.parallel))

    @property
    def state_bytes(self) -> int:
        """All slots of recurrent states, on one rank."""
        return self.settings.slots * self.layout.slot_bytes

    @cached_property
    def block_stair(self) -> Stair:
        """The most blocks that a sequence holds at once, by its tokens.

        A prompt is in blocks as a whole. Where the whole model has a window, blocks that have left it are freed behind the prompt.
        """
        size, window, prompt = self.settings.block_size, self.settings.window, self.request.prompt
        if not window or prompt is None:
            return blocks_stair(size)
        # While a token is added, the window of the one before it is held too.
        return blocks_stair(size)._replace(most=max(-(-prompt // size), (window + size - 2) // size + 1))

    def blocks_of(self, tokens: int) -> int:
        """The most blocks that a sequence of so many tokens holds at once."""
        return self.block_stair.at(tokens)

    @property
    def blocks(self) -> int:
        """Blocks of one sequence of the planned length."""
        return self.blocks_of(self.tokens)

    def found(self, tokens: int) -> int:
        """Blocks of this many tokens, at the beginning of a prompt, that another request finds: the last token is computed anew."""
        return max(0, min(tokens, self.request.prompt_tokens - 1)) // self.settings.block_size

    @cached_property
    def held(self) -> Held:
        """The blocks that all sequences together take."""
        together = self.together
        lengths = []
        for tokens, requests in together.lengths:
            most, prefix = self.blocks_of(tokens), self.found(min(together.prefix, tokens))
            prompt = self.found(min(together.prompt, tokens)) if together.forks else prefix
            blocks = Blocks(-(-tokens // self.settings.block_size), most, prefix, prompt)
            lengths.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(lengths, together.copies)

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests on one replica."""
        if not self.together.unlike:
            return requests * self.request.sharing.branches * self.blocks
        replica: LmdeployOccupancy = self.replica.sized(batch=requests)
        return replica.held.total

    def choose_dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        own = known_dtype(settings.model_dtype)
        named = _ROLE_FORMATS[settings.form.name]
        kept = known_dtype("fp8_e4m3") if settings.sparse else own if named is None else known_dtype(named)
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.CONV: own, Role.STATE: known_dtype(settings.state_dtype), Role.INDEX: known_dtype("fp8_scaled_128")}
        kv = "fp8_ds_mla" if settings.sparse else settings.model_dtype if named is None else settings.form.name
        dtypes = Dtypes(kv=kv, roles=MappingProxyType(roles))
        if settings.sparse and not (is_auto(self.request.dtype) and "quant_policy" not in self.request.options):
            message = "LMDeploy keeps the latents of this model in FlashMLA's fp8 rows, whatever quant_policy is."
            return Noted(dtypes, (Note(code="dtype-ignored", message=message),))
        if not is_auto(self.request.dtype) or settings.form.policy:
            return Noted(dtypes)
        what = "FlashMLA's fp8 rows" if settings.sparse else f"the dtype that the model runs in, {settings.model_dtype}"
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def check_class(self) -> None:
        check_architecture(self.model, self.settings.backend)

    def check(self) -> None:
        _check_request(self)
        # Plan the layout here, since LMDeploy refuses a model that it cannot lay out.
        self.layout  # noqa: B018
        self.tell(*self.shared("remarks", lambda: tuple(_remarks(self))))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The blocks of all requests, or all slots, on all tensor-parallel ranks together."""
        if isinstance(kind, GatedDeltaNet):
            return tuple(_slots(self, piece.name, piece.role, piece.dtype, piece.bytes) for piece in self.layout.states)
        return tuple(_blocks(self, piece) for piece in kept_by(self.layout, kind))

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        """What rounding adds to a slot of states, whose pieces hold all layers."""
        padding = self.layout.slot_padding
        return (_slots(self, "state_padding", Role.STATE, "uint8", padding),) if padding and self.settings.slots else ()

    def fullest_bytes(self) -> int:
        return self.blocks_for(self.request.replica_requests) * self.layout.block_bytes + self.state_bytes

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The pool, with as many blocks as fit into the budget, or those of the planned sequences; and the slots of states."""
        blocks, width = _allocated_blocks(self), self.layout.block_bytes
        made = [_buffer("kv_pool", blocks, width, blocks)] if blocks else []
        if self.state_bytes:
            made.append(_buffer("state_pool", self.settings.slots, self.layout.slot_bytes, None))
        return tuple(made)

    def block_groups(self) -> tuple[PoolGroup, ...]:
        return group_infos(self)

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.lmdeploy.pool import plan_pool

        bound = max(self.tokens, self.model.max_position_embeddings or 0)
        return Noted(plan_pool(self, budget_bytes, bound))

    def holds(self, budget_bytes: int) -> bool:
        """The same answer as :meth:`PoolInfo.holds`, without planning the pool."""
        from hwcalc.engines.lmdeploy.pool import holds

        return holds(self, budget_bytes)

    def longest(self, budget_bytes: int, bound: int) -> int | None:
        from hwcalc.engines.lmdeploy.pool import longest

        return longest(self, budget_bytes, bound)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.max_batch_size * self.request.parallel.dp, "max_batch_size"

    def plan_budget(self) -> Noted[Budget | None]:
        """The same within a family: nothing of it follows from length and batch."""
        from hwcalc.engines.lmdeploy.memory import plan_budget

        return self.shared("budget", lambda: plan_budget(self))

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.equation import rank_weights_part

        return rank_weights_part(self)

    def weight_rules(self) -> Rules:
        from hwcalc.engines.lmdeploy.weights import PYTORCH_WEIGHTS, TURBOMIND_WEIGHTS

        return PYTORCH_WEIGHTS if self.settings.pytorch else TURBOMIND_WEIGHTS

    def weight_dtype(self) -> str:
        return self.settings.model_dtype

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.settings.prefill_tokens
        return tokens, tokens, tokens

    def deals_experts(self) -> bool:
        return True

    def support_of_sharing(self) -> Support:
        from hwcalc.engines.lmdeploy.sharing import sharing_support

        return sharing_support(self)

    def shared_tokens(self) -> tuple[int, int]:
        together = self.together
        size = self.settings.block_size
        prefix = self.found(together.prefix) * size
        return prefix, max(prefix, self.found(together.prompt) * size) if together.forks else prefix

    def shared_blocks(self) -> tuple[SharedBlocks, ...]:
        from hwcalc.engines.lmdeploy.sharing import blocks_of_group

        return blocks_of_group(self)

    def policy_support(self, chosen: Chosen) -> Support:
        return Support(
            offered=False, how="LMDeploy has no cache policies; a window frees blocks only where the whole model has one"
        )

    def curve(self) -> Curve | None:
        from hwcalc.engines.lmdeploy.form import plan_curve

        return plan_curve(self)

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.lmdeploy.form import plan_form

        return plan_form(self)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.lmdeploy.savings import savings

        return savings(self)

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        one = self.settings
        words: dict[str, int | str | bool] = {
            "backend": one.backend,
            "quant_policy": one.form.policy,
            "block_size": one.block_size,
            "max_batches": one.max_batch_size,
            "window_size": one.window or -1,
        }
        return words | ({"num_state_caches": one.slots} if one.slots else {})

    def environment(self) -> tuple[str, ...]:
        one = self.settings
        return (_FP32_STATES,) if one.slots and one.state_dtype == "fp32" else ()


def _check_request(opened: LmdeployOccupancy) -> None:
    """Raise an error for what LMDeploy does not have, or kvplan does not know of it."""
    request, gpu = opened.request, opened.request.hardware.gpu
    if request.parallel.pp > 1:
        raise UnsupportedError("LMDeploy has no pipeline parallelism.", hint="Leave out --pp, or use --tp")
    if request.parallel.dcp > 1:
        raise UnsupportedError(
            "LMDeploy's context parallelism (TurboMind's --cp) is not known to kvplan.",
            hint="Leave out --dcp, or use --engine vllm",
        )
    if request.parallel.ep not in (1, request.parallel.tp * request.parallel.dp):
        ranks = request.parallel.tp * request.parallel.dp
        raise UsageError(
            f"ep {request.parallel.ep} is not tp x dp: LMDeploy deals experts out over all {ranks} ranks.",
            hint=f"Use --ep {ranks}, or leave it out.",
        )
    if request.parallel.ep > 1 and not any(weight.copies > 1 for weight in _weights(opened)):
        raise UsageError(f"{opened.model.id} has no experts to deal out.", hint="Leave out --ep.")
    if request.draft is not None:
        raise UnsupportedError(
            "kvplan does not know what drafts take in LMDeploy.", hint="Leave out --draft, or use --engine vllm"
        )
    if request.policy is not None:
        raise UnsupportedError("LMDeploy has no cache policies.", hint="Leave out --policy, or use --engine reference")
    if gpu is not None and (gpu.vendor.lower() != "nvidia" or compute_capability(gpu) < _OLDEST_GPU):
        raise UnsupportedError(
            f"LMDeploy's rules for {gpu.name} are not known.",
            hint="Known: NVIDIA GPUs from compute capability 7.0 on. Without --gpu: give a budget with --kv-memory.",
        )


def _weights(opened: Occupancy) -> Iterator[Weight]:
    for block in () if opened.model.counted is None else opened.model.counted.blocks:
        yield from block.weights


def _remarks(opened: LmdeployOccupancy) -> Iterator[Note]:
    """Notes on the settings."""
    request, settings, options = opened.request, opened.settings, opened.request.options
    if request.hardware.gpu is None:
        yield Note(code="default-gpu", message="No GPU given: max_batch_size and blocks are those of an H100. Set it with --gpu.")
    if settings.pytorch and "backend" not in options and runs(opened.model.architecture, TURBOMIND):
        message = "LMDeploy starts TurboMind for this model unless it is told --backend pytorch, which this plans; else: backend=turbomind."
        yield Note(code="backend", message=message)
    if settings.window:
        message = f"A prompt lies in blocks as a whole; behind it those outside of {settings.window:,} tokens are freed, of all layers alike."
        yield Note(code="window-freed", message=message)
    if is_on(options.get("enable_prefix_caching")) and settings.window:
        yield Note(code="prefix-caching-off", message="LMDeploy has no prefix caching for a model with a window.")
    if settings.pytorch and is_on(options.get("enable_prefix_caching")) and settings.slots:
        yield Note(
            code="state-checkpoints", message="Checkpoints of states borrow idle slots, or those of prefix_cache_state_budget."
        )
    if request.parallel.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {request.parallel.dp} replicas.")


def _allocated_blocks(opened: LmdeployOccupancy) -> int:
    """Blocks of the pool: of the budget of the plan, or without one those of the planned sequences and the reserved one."""
    size = opened.request.hardware.kv_memory
    if size is None and opened.request.hardware.gpu is not None:
        size = None if opened.budget is None else max(0, opened.budget.expected)
    pool = None if size is None and opened.settings.num_gpu_blocks is None else opened.pool(size or 0)
    needed = opened.blocks_for(opened.request.replica_requests) + opened.settings.reserved_blocks
    return needed if pool is None or pool.blocks is None else pool.blocks


def _buffer(name: str, count: int, width: int, blocks: int | None) -> Allocation:
    from hwcalc.engines.allocation import Allocation

    return Allocation(name=name, layer=-1, dtype="uint8", shape=(count, width), bytes=count * width, blocks=blocks)


def _blocks(opened: LmdeployOccupancy, piece: Piece) -> StoredTensor:
    """A piece of the blocks of one layer."""
    tp, blocks, held = opened.request.parallel.tp, opened.blocks, opened.held.total
    ranks = f" x {tp} ranks" if tp > 1 else ""
    unlike = opened.together.unlike
    sequences = f"{opened.batch:,} sequences x " if opened.batch > 1 and not unlike else ""
    return StoredTensor(
        name=piece.name,
        role=piece.role,
        axes=("bytes of a block",),
        shape=(piece.bytes,),
        dtype=piece.dtype or opened.settings.model_dtype,
        positions=blocks,
        span=OwnRule(f"{blocks:,} blocks of {opened.settings.block_size:,} tokens", blocks),
        bytes=tp * held * piece.bytes,
        rule=f"{sequences}{held if unlike else blocks:,} blocks x {piece.bytes:,} B{ranks}",
    )


def _slots(opened: LmdeployOccupancy, name: str, role: Role, dtype: str, size: int) -> StoredTensor:
    """All slots of a state, which are there whatever the number of sequences."""
    parallel, slots = opened.request.parallel, opened.settings.slots
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
