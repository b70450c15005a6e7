"""SGLang as an engine: the models it accepts, what its pools hold, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Budget
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.kinds import BY_MODEL
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, is_auto, is_on
from hwcalc.engines.policies import Support
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.request import Request
from hwcalc.engines.sglang.held import allocations, extras, layer_tensors
from hwcalc.engines.sglang.layout import KINDS
from hwcalc.engines.sglang.opened import SglangOpened, of_sglang
from hwcalc.engines.sglang.options import OPTIONS
from hwcalc.engines.sglang.supported import check_class, check_supported
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.formulas import LayerKind, Role, SlidingAttention
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving

__all__ = ["Sglang"]

_MOST_REQUESTS = 4096


class Sglang(GeneralEngine):
    """Pools of tokens, of window tokens and of states, by the rules of SGLang."""

    name: ClassVar[str] = "sglang"
    title: ClassVar[str] = "SGLang: a pool of tokens, and one each for windows and states"
    label: ClassVar[str] = "SGLang"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "the smallest pools that hold the planned sequences"
    pool_is: ClassVar[str] = "max_total_num_tokens"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    choices: ClassVar[Choices | None] = None
    versions: ClassVar[tuple[str, ...]] = ("0.5.23",)
    source: ClassVar[str] = "SGLang 0.5.23, srt/model_executor/pool_configurator.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def unchecked(self, model: ModelSpec, request: Request) -> Opened:
        return SglangOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        own = of_sglang(opened).settings
        cache, state = known_dtype(_DTYPES.get(own.kv_dtype, own.kv_dtype)), own.state_dtype or opened.model.state_dtype or "fp32"
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
        if not is_auto(opened.request.dtype):
            return Noted(dtypes)
        message = f"KV dtype auto: {own.kv_dtype}, SGLang's choice for this model. Set it with --dtype."
        return Noted(dtypes, (Note(code="default-dtype", message=message),))

    def check_class(self, opened: Opened) -> None:
        check_class(opened.model)

    def check(self, opened: Opened) -> None:
        own = of_sglang(opened)
        opened.told(opened.shared("supported", lambda: check_supported(own)))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """What the sequences have in the pools, on all tensor-parallel ranks together."""
        return layer_tensors(kind, of_sglang(opened))

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        return extras(of_sglang(opened))

    def needed_bytes(self, opened: Opened) -> int:
        """The smallest pools that hold the planned sequences."""
        return of_sglang(opened).least_bytes

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        return allocations(of_sglang(opened), stage)

    def prefill_bytes(self, opened: Opened, stage: int) -> int:
        """Prompts lie in the pools from the start."""
        return opened.needed_bytes

    def deals_experts(self, opened: Opened) -> bool:
        return is_on(opened.request.options.get("enable_dp_attention"))

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        own = of_sglang(opened).settings
        most = _MOST_REQUESTS if own.own_requests is None else own.own_requests
        return most * opened.request.parallel.dp, "max_running_requests"

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.sglang.pool import plan_pool

        return Noted(plan_pool(of_sglang(opened), budget_bytes))

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """Without the figures of the pool, one of which is searched for."""
        own = of_sglang(opened)
        return budget_bytes >= 0 and own.held_in(own.sizes(budget_bytes))

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        """Within a family the budget is the same for all lengths and batches."""
        from hwcalc.engines.sglang.memory import plan_budget

        return opened.shared("budget", lambda: plan_budget(of_sglang(opened)))

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.sglang.weights import SGLANG

        return SGLANG

    def chunks(self, opened: Opened) -> tuple[int, int, int]:
        chunk = of_sglang(opened).settings.chunk
        return chunk, chunk, chunk

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.sglang.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.sglang.command import serve

        return serve(planned)

    def settings(self, opened: Opened) -> Mapping[str, int | str | bool]:
        """As SGLang's log names them."""
        own = of_sglang(opened).settings
        return {"page_size": own.page_size, "chunked_prefill_size": own.chunk}

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.sglang.savings import savings

        return savings(of_sglang(opened))

    def sharing_support(self, opened: Opened) -> Support:
        from hwcalc.engines.sglang.savings import sharing_support

        return sharing_support(of_sglang(opened))

    def shared_tokens(self, opened: Opened) -> tuple[int, int]:
        """Whole pages of what is alike."""
        prefix, prompt = super().shared_tokens(opened)
        page = of_sglang(opened).settings.page_size
        return prefix // page * page, prompt // page * page

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.sglang.form import plan_curve

        return plan_curve(of_sglang(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.sglang.form import plan_form

        return plan_form(of_sglang(opened))


_DTYPES = {"fp8_e5m2": "fp8_e5m2", "fp4_mx_block16": "nvfp4"}
