"""A request that SGLang has opened, with its settings and the layout of its pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.sglang.held import allocations, extras, layer_tensors
from hwcalc.engines.sglang.layout import PoolLayout, plan_layout, stage_spans
from hwcalc.engines.sglang.models import is_compressed
from hwcalc.engines.sglang.room import Demand, PoolRoom, Room
from hwcalc.engines.sglang.settings import SglangSettings, read_settings
from hwcalc.engines.sglang.sizes import EVICTION_INTERVAL, Sizes, slots_per_request
from hwcalc.engines.sglang.supported import check_class, check_supported
from hwcalc.engines.stored import Dtypes, StoredTensor, bytes_of
from hwcalc.formulas import LayerKind, Role
from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.policies import Support
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout


_MOST_REQUESTS = 4096

_DTYPES = {"fp8_e5m2": "fp8_e5m2", "fp4_mx_block16": "nvfp4"}


class SglangOccupancy(GeneralOccupancy):
    """An opened request with the values that the rules of SGLang use again and again."""

    @cached_property
    def settings(self) -> SglangSettings:
        """The settings with every default filled in."""
        return self.shared("settings", lambda: read_settings(self.model, self.request))

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in pools, of a model other than DeepSeek-V4."""
        return self.shared("layout", lambda: plan_layout(self.model, self.plain_stack, self.settings))

    @cached_property
    def compressed(self) -> CompressedLayout | None:
        """The pools of DeepSeek-V4; ``None`` for every other model."""
        if not is_compressed(self.model):
            return None
        from hwcalc.engines.sglang.deepseek_v4 import compressed_layout

        return self.shared("compressed", lambda: compressed_layout(self.plain_stack, self.settings))

    @cached_property
    def room(self) -> Room:
        """The pools of any budget."""
        return self.shared("room", self._room)

    def _room(self) -> Room:
        if self.compressed is not None:
            from hwcalc.engines.sglang.deepseek_v4_room import CompressedRoom

            return CompressedRoom(settings=self.settings, layout=self.compressed)
        return PoolRoom(settings=self.settings, layout=self.layout)

    def sizes(self, budget: int) -> Sizes:
        """The pools of a budget on each rank."""
        return self.room.sizes(budget)

    def paged(self, tokens: int) -> int:
        """Tokens in whole pages."""
        page = self.settings.page_size
        return -(-tokens // page) * page

    @property
    def window(self) -> int | None:
        """The window as SGLang counts it, where windows have a pool; else ``None``."""
        return self.layout.window if self.compressed is None else self.compressed.window

    @cached_property
    def pages(self) -> tuple[Stair, Stair]:
        """Pages of a sequence in the pool of tokens, and in that of windows, if there is one.

        What has left a window is freed every 128 tokens, in whole pages.
        """
        page = self.settings.page_size
        if self.window is None:
            return blocks_stair(page), Stair(times=0)
        beyond = EVICTION_INTERVAL * max(1, self.settings.draft_tokens) + page
        return blocks_stair(page), blocks_stair(page, self.window + beyond)

    def window_tokens(self, tokens: int) -> int:
        """Places that a sequence takes in the pool of windows."""
        return self.settings.page_size * self.pages[1].at(tokens)

    def held_tokens(self, *, windows: bool) -> int:
        """Places that all sequences together take in the pool of windows, or in the other one; what they share is kept once."""
        together = self.together
        count = self.window_tokens if windows else self.paged
        if windows or not together.unlike:
            return together.branches * sum(many * count(tokens) for tokens, many in together.lengths)
        prefix, prompt = self.shared_tokens()
        common = prefix * together.copies
        for tokens, many in together.lengths:
            own = min(prefix, tokens), min(prompt, tokens)
            common += many * (together.prompts * (own[1] - own[0]) + together.branches * (count(tokens) - own[1]))
        return common

    @property
    def slots(self) -> int:
        """Slots for states that a request takes."""
        return slots_per_request(self.settings) if self.compressed is None and self.layout.has_states else 0

    @cached_property
    def demand(self) -> Demand:
        """What the planned sequences of a replica take of the pools."""
        replica: SglangOccupancy = self.replica
        return Demand(replica.batch, replica.held_tokens(windows=False), replica.held_tokens(windows=True))

    def held_in(self, sizes: Sizes) -> bool:
        """Whether these pools hold the planned sequences of a replica."""
        demand = self.demand
        if sizes.error is not None or demand.requests > sizes.running:
            return False
        if self.room.keeps_tokens and demand.places > sizes.tokens:
            return False
        return sizes.swa_tokens is None or demand.window_places <= sizes.swa_tokens

    def at_once(self, sizes: Sizes) -> int:
        """How many requests of the planned length these pools hold."""
        request = self.replica.request.changed(lengths=(), batch=1)
        one: SglangOccupancy = self.with_request(request)
        if one.together.unlike:
            from bisect import bisect_left

            return bisect_left(
                range(1, sizes.running // request.sharing.branches + 1), x=True, key=partial(one.lacks_room, sizes)
            )
        if sizes.error is not None:
            return 0
        pools = [sizes.running, sizes.tokens if self.room.keeps_tokens else None, sizes.swa_tokens]
        return min(places // each for places, each in zip(pools, one.demand, strict=True) if places is not None and each)

    def lacks_room(self, sizes: Sizes, requests: int) -> bool:
        """Whether these pools do not hold so many requests."""
        many: SglangOccupancy = self.with_request(self.request.changed(batch=requests))
        return not many.held_in(sizes)

    @cached_property
    def least_bytes(self) -> int:
        """The smallest budget of a rank whose pools hold the planned sequences of a replica.

        Where no budget does, because SGLang runs fewer requests or was allowed fewer tokens, it is what the sequences themselves take.
        """
        return self.room.least(self.demand, self._own_bytes())

    def _own_bytes(self) -> int:
        """What the sequences of a replica have in the pools of a rank of the fullest stage."""
        stack, tensors = self.plain_stack, self.replica.kind_tensors
        stages = (stack.groups,) if self.settings.pp == 1 else map(stack.groups_of, stage_spans(len(stack), self.settings.pp))
        sizes = (sum(group.count * bytes_of(tensors[group.kind]) for group in groups) for groups in stages)
        return max(sizes) // self.settings.tp

    def choose_dtypes(self) -> Noted[Dtypes]:
        own = self.settings
        cache, state = known_dtype(_DTYPES.get(own.kv_dtype, own.kv_dtype)), own.state_dtype or self.model.state_dtype or "fp32"
        roles = {
            Role.KEY: cache,
            Role.VALUE: cache,
            Role.LATENT: cache,
            Role.ROPE: cache,
            Role.INDEX: known_dtype("fp8"),
            Role.STATE: known_dtype(state),
            Role.CONV: known_dtype("bf16"),
        }
        dtypes = Dtypes(kv=own.kv_dtype, roles=MappingProxyType(roles))
        if not is_auto(self.request.dtype):
            return Noted(dtypes)
        message = f"KV dtype auto: {own.kv_dtype}, SGLang's choice for this model. Set it with --dtype."
        return Noted(dtypes, (Note(code="default-dtype", message=message),))

    def check_class(self) -> None:
        check_class(self.model)

    def check(self) -> None:
        self.told(self.shared("supported", lambda: check_supported(self)))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """What the sequences have in the pools, on all tensor-parallel ranks together."""
        return layer_tensors(kind, self)

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        return extras(self)

    def fullest_bytes(self) -> int:
        """The smallest pools that hold the planned sequences."""
        return self.least_bytes

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        return allocations(self, stage)

    def prefill_bytes(self, stage: int) -> int:
        """Prompts lie in the pools from the start."""
        return self.needed_bytes

    def deals_experts(self) -> bool:
        return is_on(self.request.options.get("enable_dp_attention"))

    def most_sequences(self) -> tuple[int, str]:
        own = self.settings
        most = _MOST_REQUESTS if own.own_requests is None else own.own_requests
        return most * self.request.parallel.dp, "max_running_requests"

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.sglang.pool import plan_pool

        return Noted(plan_pool(self, budget_bytes))

    def holds(self, budget_bytes: int) -> bool:
        """Without the figures of the pool, one of which is searched for."""
        return budget_bytes >= 0 and self.held_in(self.sizes(budget_bytes))

    def plan_budget(self) -> Noted[Budget | None]:
        """Within a family the budget is the same for all lengths and batches."""
        from hwcalc.engines.sglang.memory import plan_budget

        return self.shared("budget", lambda: plan_budget(self))

    def weight_rules(self) -> Rules:
        from hwcalc.engines.sglang.weights import SGLANG

        return SGLANG

    def chunks(self) -> tuple[int, int, int]:
        chunk = self.settings.chunk
        return chunk, chunk, chunk

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        """As SGLang's log names them."""
        own = self.settings
        return {"page_size": own.page_size, "chunked_prefill_size": own.chunk}

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.sglang.savings import savings

        return savings(self)

    def support_of_sharing(self) -> Support:
        from hwcalc.engines.sglang.savings import sharing_support

        return sharing_support(self)

    def shared_tokens(self) -> tuple[int, int]:
        """Whole pages of what is alike."""
        prefix, prompt = super().shared_tokens()
        page = self.settings.page_size
        return prefix // page * page, prompt // page * page

    def curve(self) -> Curve | None:
        from hwcalc.engines.sglang.form import plan_curve

        return plan_curve(self)

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.sglang.form import plan_form

        return plan_form(self)
