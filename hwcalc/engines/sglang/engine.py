"""SGLang: a server whatever the load, and what a load takes of its pools."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.devices import Cost, Saving, computes_fp8
from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.facts import Command, Facts, IdleRules, Rest, TradeOff, WeightFormats
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.models import known_dtype, model_classes
from hwcalc.engines.options import AUTO, is_auto, is_on
from hwcalc.engines.pool import Allocation, PoolInfo, PoolShare
from hwcalc.engines.setup import Load
from hwcalc.engines.sglang.command import SglangCommand
from hwcalc.engines.sglang.curve import buffer_of, page_rows, pool_curve
from hwcalc.engines.sglang.layout import KINDS, SWA, PoolLayout, cache_formats, plan_layout, stage_spans
from hwcalc.engines.sglang.pools import (
    EVICTION_INTERVAL,
    Demand,
    Figures,
    LayerPools,
    PoolRules,
    slots_per_request,
)
from hwcalc.engines.sglang.rules import VERSIONS, resolve
from hwcalc.engines.sglang.settings import (
    BLACKWELL,
    FOUR_BITS,
    HOPPER,
    LONGER,
    MAX_LENGTH,
    OPTIONS,
    SglangSettings,
    context_tokens,
    cuts_prompts,
    is_compressed,
    is_sparse_latent,
    read_settings,
    words_of,
)
from hwcalc.engines.steps import Step
from hwcalc.engines.stored import Dtypes, InCommon, OwnRule, StoredTensor, Support, beside_layers, bytes_of, check_heads
from hwcalc.engines.subjects import Reported, Traits, WholePrompts
from hwcalc.errors import UncountedError, UnsupportedError, UsageError
from hwcalc.formulas import CompressedAttention, FullAttention, LatentAttention, LayerKind, NoCache, Role, SlidingAttention
from hwcalc.formulas.arithmetic import last_good
from hwcalc.formulas.stairs import Stair, blocks_stair
from hwcalc.model import DEFAULT_GPU, Definition, Note, Noted
from hwcalc.profiles.engines import planned_version, since
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.options import EngineOption
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.sglang.curve import PoolCurve
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout
    from hwcalc.engines.sglang.memory import SglangAdapters

_MOST_REQUESTS: Final = 4096
_DTYPES: Final = {"fp8_e5m2": "fp8_e5m2", "fp4_mx_block16": "nvfp4", "fp4_e2m1": "nvfp4"}
_OWN_CACHES: Final = ("Inkling", "Zaya", "Glm5Next", "Dots3Note", "Qwen4Exp")
"""Beginnings of the names of classes whose caches kvplan does not know yet."""
_SMALL_SHARE: Final = "0.1"
_OWN_KERNELS: Final = ("GptOss", "Llama4", "Olmo2")
"""Beginnings of the names of classes whose kernel is named for them on consumer GPUs of Blackwell."""


class SglangDeployment(GeneralDeployment):
    """SGLang as it is started: its settings, the layout of its pools, and what a budget becomes."""

    @cached_property
    def settings(self) -> SglangSettings:
        """The settings with every default filled in."""
        return read_settings(self.model, self.setup)

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in pools, of a model other than DeepSeek-V4."""
        return plan_layout(self.model, self.plain_stack, self.settings)

    @cached_property
    def compressed(self) -> CompressedLayout | None:
        """The layers of DeepSeek-V4; ``None`` for every other model."""
        if not is_compressed(self.model):
            return None
        from hwcalc.engines.sglang.deepseek_v4 import compressed_layout

        return compressed_layout(self.plain_stack, self.settings)

    @cached_property
    def pool_rules(self) -> PoolRules:
        """The rules by which a budget becomes pools."""
        if self.compressed is None:
            return LayerPools(settings=self.settings, layout=self.layout)
        from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

        return CompressedPools(settings=self.settings, layout=self.compressed)

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

    @cached_property
    def slots(self) -> int:
        """Slots for states that a request takes."""
        return slots_per_request(self.settings) if self.compressed is None and self.layout.has_states else 0

    def demand(self, tokens: int, sequences: int) -> Demand:
        """The demand of sequences of this length on the pools of a replica. Both numbers may be arrays."""
        page, (whole, windows) = self.settings.page_size, self.pages
        return Demand(sequences, sequences * page * whole.at(tokens), sequences * page * windows.at(tokens))

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """True if the pools of a budget hold so many sequences; of arrays too."""
        return self.pool_rules.holds(self.pool_rules.figures(budget_bytes), self.demand(tokens, sequences))

    @cached_property
    def curve(self) -> PoolCurve:
        """The bytes of the smallest pools that hold sequences which are all alike."""
        return pool_curve(self)

    @cached_property
    def budget_alone(self) -> Noted[Budget | None]:
        """The bytes that each GPU has left for the pools, whatever the load, where no draft model has a cache of its own."""
        from hwcalc.engines.sglang.memory import plan_budget

        return plan_budget(self, self.at(Load(seq=1)))

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        cache = known_dtype(_DTYPES.get(settings.kv_dtype, settings.kv_dtype))
        state = known_dtype(settings.state_dtype or self.model.state_dtype or "fp32")
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), cache)
        roles |= {Role.INDEX: known_dtype("fp8"), Role.STATE: state, Role.CONV: known_dtype("bf16")}
        dtypes = Dtypes(kv=settings.kv_dtype, roles=MappingProxyType(roles))
        if not is_auto(self.setup.dtype):
            return Noted(dtypes)
        message = f"KV dtype auto: {settings.kv_dtype}, SGLang's choice for this model. Set it with --dtype."
        return Noted(dtypes, (Note(code="default-dtype", message=message),))

    @property
    def adapter_rules(self) -> SglangAdapters:
        from hwcalc.engines.sglang.memory import SglangAdapters

        return SglangAdapters(self)

    @cached_property
    def traits(self) -> Traits:
        kernel = self.setup.options.get("attention_backend", AUTO)
        return Traits(
            deals_experts=is_on(self.setup.options.get("enable_dp_attention")),
            attention_kernel="" if kernel == AUTO else kernel,
            # Those that it verifies, of which one is known (``speculative_num_draft_tokens``).
            drafted_tokens=max(0, self.settings.draft_tokens - 1),
        )

    def weight_rules(self) -> Rules:
        from hwcalc.engines.sglang.memory import SGLANG

        return SGLANG

    def check_class(self) -> None:
        """Refuse a class that SGLang does not have, and whose layers transformers' own code cannot run in its place."""
        plain = all(isinstance(group.kind, FullAttention | SlidingAttention | NoCache) for group in self.model.stack.groups)
        row = model_classes("sglang").row(self.model)
        came = row.words.get("since")
        if came is not None and planned_version(self.version) < since(came):
            message = f"SGLang {self.version} has no class {brief(row.name, 60)}, which came with {came}."
            raise UnsupportedError(message, hint=f"Use: --engine sglang@{came}")
        if not plain or "never" in row.words:
            super().check_class()

    @cached_property
    def remarks(self) -> tuple[Note, ...]:
        """Notes on what is assumed. Raises an error for a model or a setup that SGLang refuses, or that kvplan has no rules for."""
        setup, settings, name = self.setup, self.settings, self.model.architecture
        if name is not None and name.startswith(_OWN_CACHES):
            raise UncountedError(
                f"SGLang keeps caches of its own for {name}, which kvplan does not know yet.", hint="Use: --engine reference"
            )
        if setup.policy is not None:
            raise UnsupportedError("SGLang has no cache policies.", hint="Leave out --policy, or use --engine reference")
        if setup.parallel.dcp > 1:
            raise UncountedError("kvplan has no rules for SGLang's decode context parallelism.", hint="Leave out --dcp")
        if is_on(setup.options.get("enable_dp_attention")) and setup.parallel.pp > 1:
            raise UsageError("enable_dp_attention: replicas of one group have no pipeline stages here.", hint="Leave out --pp")
        if settings.swa_ratio is None and settings.own_requests is None:
            raise UsageError("Window tokens by requests need their number.", hint="Give: --engine-option max_running_requests=N")
        for group in self.plain_stack.groups:
            check_heads("SGLang", group.kind, settings.tp)
        self._check_kernels()
        self.compressed or self.layout  # noqa: B018 - refuses kinds without a rule
        return tuple(self._notes())

    def _check_kernels(self) -> None:
        """Raise an error where SGLang has no kernel for a format on the GPU, or no states for a strategy."""
        settings, gpu, model = self.settings, self.setup.hardware.gpu, self.model
        if is_sparse_latent(model) and settings.kv_dtype not in ("bf16", "fp16", "fp8_e4m3"):
            message = f"--dtype {settings.kv_dtype}: DeepSeek DSA only supports bfloat16 or fp8_e4m3."
            raise UnsupportedError(message, hint="Use: --dtype bf16 or fp8_e4m3")
        if gpu is not None and not self.setup.hardware.started:
            self._check_four_bits()
            self._check_plain_states()
        name, like = model.architecture or "", settings.model_backend == "flashinfer"
        kernel = is_auto(self.setup.options.get("attention_backend")) and like and not name.startswith(_OWN_KERNELS)
        if settings.major > BLACKWELL and kernel and not settings.rules.runs_on_consumer:
            message = f"SGLang {self.version} takes trtllm_mha on {gpu.name if gpu else ''}, where that does not run."
            raise UnsupportedError(message, hint="Use: --engine-option attention_backend=flashinfer, or --engine sglang@0.5.7")
        strategy = self.setup.options.get("mamba_scheduler_strategy", "auto")
        if strategy != "auto" and not settings.rules.names_strategy:
            message = f"SGLang {self.version} has no --mamba-scheduler-strategy: it came with 0.5.7."
            raise UnsupportedError(message, hint="Leave out: mamba_scheduler_strategy")
        if strategy.startswith("extra_buffer") and settings.radix:
            name = model.architecture or model.id
            if self.compressed is not None or not self.layout.has_states:
                raise UsageError(f"mamba_scheduler_strategy {strategy} needs mamba state, got {name}.", hint="Leave it out")
            if gpu is not None and "copies_states" not in words_of(model, settings.rules):
                raise UsageError(f"extra_buffer is not supported for {name}.", hint="Use: mamba_scheduler_strategy=no_buffer")
            if strategy.endswith("lazy") and not settings.overlap:
                what = "Lazy extra buffer requires overlap schedule."
                raise UsageError(what, hint="Use: mamba_scheduler_strategy=extra_buffer")

    def _check_four_bits(self) -> None:
        """Raise the error of SGLang where the model's kernel of attention does not read a cache of four bits."""
        settings, kernel = self.settings, self.settings.model_backend
        known_kernel = settings.major in (HOPPER, BLACKWELL) or not is_auto(self.setup.options.get("attention_backend"))
        if (
            settings.kv_dtype not in FOUR_BITS
            or self.compressed is not None
            or not known_kernel
            or not any(settings.rules.fp4_kernels)
        ):
            # On other accelerators the kernel follows from the class, too, where nothing else depends on it.
            return
        latent = any(isinstance(group.kind, LatentAttention) for group in self.plain_stack.groups)
        known = settings.rules.fp4_kernels[latent]
        if settings.kv_dtype == "nvfp4" and settings.rules.fp4_by_method:
            known = ("trtllm_mha", "flashinfer") if not latent else ("flashinfer",)
        elif settings.kv_dtype == "nvfp4" and not latent:
            # It was no error where nobody named a kernel.
            known = (*known, "flashinfer")
        if kernel in known:
            return
        message = f"--dtype {settings.kv_dtype}: the attention backend {kernel} of this model does not read it here."
        raise UnsupportedError(message, hint=f"Use: --dtype fp8_e4m3, or --engine-option attention_backend={known[0]}")

    def _check_plain_states(self) -> None:
        """Raise the error of SGLang where a prefix cache copies no states, and what runs beside it needs that they are copied."""
        settings, name = self.settings, self.model.architecture or self.model.id
        if not settings.radix or settings.strategy != "no_buffer" or "caches_states" not in words_of(self.model, settings.rules):
            return
        if not settings.rules.copies_by_default:
            if settings.drafts and settings.rules.drafts_need_copies:
                message = f"Speculative decoding for {name} is not compatible with radix cache when using no_buffer."
                raise UnsupportedError(
                    message, hint="Use: --engine-option mamba_scheduler_strategy=extra_buffer, or disable_radix_cache=true"
                )
            return
        if settings.page_size > 1 and "page_size" in self.setup.options:
            raise UnsupportedError("no_buffer only supports page_size=1.", hint="Leave out: page_size")
        named = self.setup.options.get("mamba_scheduler_strategy") == "no_buffer"
        if named and not is_on(self.setup.options.get("disable_overlap_schedule")):
            raise UnsupportedError(
                "no_buffer does not support overlap schedule.", hint="Use: --engine-option disable_overlap_schedule=true"
            )
        if settings.model_backend == "trtllm_mha":
            raise UnsupportedError(
                "no_buffer does not support the attention backend trtllm_mha.", hint="Leave out: mamba_scheduler_strategy"
            )

    def _notes(self) -> Iterator[Note]:
        gpu, settings = self.setup.hardware.gpu, self.settings
        if gpu is None:
            message = (
                "No GPU given: what SGLang sets by model and accelerator (max_running_requests, the strategy of states) is left as the options "
                "say, and kernels are those of an H100. Set it with --gpu."
            )
            yield Note(code=DEFAULT_GPU, message=message)
        if gpu is not None and gpu.vendor.lower() != "nvidia":
            yield Note(code="not-cuda", message="SGLang's rules for NVIDIA GPUs are used; other kernels may choose other pages.")
        name = self.model.architecture
        if name is not None and name not in model_classes("sglang").rows:
            message = f"SGLang {self.version} has no class {name}: it runs the model by transformers' own code, if that has it."
            yield Note(code="not-its-own-class", message=message)
        if settings.kv_dtype == "nvfp4" and gpu is None:
            message = (
                "KV dtype nvfp4: prompts are counted as unpacked in fp8, which kernels of a B200 do without. Set it with --gpu."
            )
            yield Note(code="one-scale-layout", message=message)
        if settings.dp > 1:
            message = (
                f"The pool is that of one of {settings.dp} replicas of attention. SGLang's own --tp counts the ranks of all of them: "
                f"this plan is its --tp {settings.tp * settings.dp} --dp {settings.dp}."
            )
            yield Note(code="per-replica", message=message)


class SglangOccupancy(GeneralOccupancy):
    """What the pools of SGLang hold under a load."""

    policy_class = WholePrompts

    deployment: SglangDeployment

    @property
    def settings(self) -> SglangSettings:
        """The settings of the server."""
        return self.deployment.settings

    def check(self) -> None:
        self.check_length()
        if self.load.sharing.beams > 1:
            raise UnsupportedError("SGLang has no beam search.", hint="Leave out --beams, or use: --samples")
        self.tell(*self.deployment.remarks)

    @cached_property
    def held(self) -> Demand:
        """The demand of all planned sequences, as if one replica ran them; what they share counts once."""
        together = self.together
        if self.load.is_alike:
            return self.deployment.demand(self.tokens, self.batch)
        sizes = [(self.deployment.demand(tokens, 1), tokens, requests) for tokens, requests in together.lengths]
        windows = together.branches * sum(requests * each.window_places for each, _, requests in sizes)
        if not together.unlike:
            whole = together.branches * sum(requests * each.places for each, _, requests in sizes)
            return Demand(self.batch, whole, windows)
        common = self.in_common()
        prefix, prompt = common.prefix, common.prompt
        whole = prefix * together.copies
        for each, tokens, requests in sizes:
            own_prefix, own_prompt = min(prefix, tokens), min(prompt, tokens)
            whole += requests * (together.prompts * (own_prompt - own_prefix) + together.branches * (each.places - own_prompt))
        return Demand(self.batch, whole, windows)

    @property
    def demand(self) -> Demand:
        """The demand of a replica's planned sequences on its pools."""
        return self.replica.held

    def sizes(self, budget: int) -> Figures:
        """The pools of a budget on each rank as SGLang logs them."""
        rules = self.deployment.pool_rules
        return rules.logged(rules.figures(budget))[0]

    def holds(self, budget_bytes: int) -> bool:
        rules = self.deployment.pool_rules
        return budget_bytes >= 0 and rules.holds(rules.figures(budget_bytes), self.demand)

    def pool_shares(self, budget_bytes: int) -> tuple[PoolShare, ...]:
        deployment, rules = self.deployment, self.deployment.pool_rules
        figures = rules.figures(budget_bytes)
        starts = rules.error(figures) is None

        def share(place: int, name: str, total: int) -> PoolShare:
            def of_sequence(tokens: int) -> int:
                return list(rules.places(figures, deployment.demand(tokens, 1)))[place][2]

            runs = name.startswith("running")
            return PoolShare(name=name, total=total if starts else -1, of_sequence=of_sequence, waits=runs)

        places = rules.places(figures, deployment.demand(1, 1))
        return tuple(share(place, name.replace("_", " "), have) for place, (name, have, _) in enumerate(places))

    def at_once(self, figures: Figures, steps: list[Step] | None = None) -> int:
        """The number of requests of the planned length that these pools hold."""
        rules, replica = self.deployment.pool_rules, self.replica
        single = replica.under(replace(replica.load, lengths=(), batch=1))
        if not single.together.unlike:
            return rules.most(figures, single.held, None if self.together.unlike else steps)
        numbers = range(1, figures.running // self.load.sharing.branches + 1)
        return bisect_left(numbers, x=True, key=lambda number: not rules.holds(figures, single.sized(batch=number).held))

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the smallest pools of a rank that hold the planned sequences of a replica.

        Where no budget does, because SGLang runs fewer requests or was allowed fewer tokens, it is what the sequences themselves take.
        """
        replica, deployment = self.replica, self.deployment
        if replica.load.is_alike:
            return deployment.curve.needed_bytes(self.tokens, replica.batch)
        stack, stages = self.deployment.plain_stack, stage_spans(len(self.deployment.plain_stack), self.settings.pp)
        tensors = replica.kind_tensors
        sizes = (sum(group.count * bytes_of(tensors[group.kind]) for group in stack.groups_of(stage)) for stage in stages)
        return deployment.pool_rules.least(replica.held, max(sizes) // self.settings.tp)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The tensors of the sequences in the pools: their rows, and both states in every slot of a request, on all tensor-parallel ranks."""
        deployment, tp, page, held, stored = (
            self.deployment,
            self.settings.tp,
            self.settings.page_size,
            self.held,
            list[StoredTensor](),
        )
        ranks = f" x {tp} ranks" if tp > 1 else ""

        def add(name: str, role: Role, dtype: str, *, axis: str, width: int, count: int, unit: str, size: int, rule: str) -> None:
            stored.append(
                StoredTensor(
                    name=name,
                    role=role,
                    axes=(axis,),
                    shape=(width,),
                    dtype=dtype,
                    positions=count,
                    span=OwnRule(f"{count:,} {unit}", count),
                    bytes=size * tp,
                    rule=f"{rule}{ranks}",
                    why=f"state x {count:,} slots" if unit == "slots" and count > 1 else None,
                )
            )

        if deployment.compressed is not None:
            assert isinstance(kind, CompressedAttention)
            for each in page_rows(kind, deployment.compressed):
                pages, unit = (held.window_places if each.windows else held.places) // page, f"pages of {page:,} tokens"
                rule, size = f"{pages:,} {unit} x {each.bytes:,} B", pages * each.bytes
                add(
                    each.name,
                    each.role,
                    "fp8_e4m3",
                    axis="bytes of a page",
                    width=each.bytes,
                    count=pages,
                    unit=unit,
                    size=size,
                    rule=rule,
                )
            return tuple(stored)
        sequences = f"{self.batch:,} sequences x " if self.batch > 1 else ""
        layout, one, slots = deployment.layout, deployment.demand(self.tokens, 1), deployment.slots
        windows = layout.pools[kind] == SWA
        places, total = (one.window_places, held.window_places) if windows else (one.places, held.places)
        tokens = f"{total:,} tokens in pages of {page:,}" if self.together.unlike else f"{sequences}{places:,} tokens"
        for row in layout.rows[kind]:
            rule, axis = f"{tokens} x {row.bytes:,} B", "numbers of a token on a rank"
            size = total * row.bytes
            add(row.name, row.role, row.dtype, axis=axis, width=row.elements, count=places, unit="tokens", size=size, rule=rule)
        names = (("conv_state", Role.CONV, "bf16"), ("recurrent_state", Role.STATE, self.dtypes.state))
        for (name, role, dtype), width in zip(names, layout.state_bytes.get(kind, (0, 0)), strict=True):
            if width:
                rule, axis = f"{sequences}{slots:,} slots x {width:,} B", "bytes of a slot on a rank"
                size = self.batch * slots * width
                add(name, role, dtype, axis=axis, width=width, count=slots, unit="slots", size=size, rule=rule)
        return tuple(stored)

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The rest of the smallest pools that hold the sequences: one pool is full before the other ones are, and each has a share."""
        deployment, ratio, ranks = self.deployment, self.settings.swa_ratio, self.settings.tp * self.request.replicas
        stored = sum(group.count * bytes_of(self.kind_tensors[group.kind]) for group in self.stack.groups)
        rest, states, requests = self.needed_bytes * self.settings.pp * ranks - stored, 0, 0
        if deployment.compressed is not None:
            from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

            # The compressors of 128 tokens. Where no pools hold the sequences there are none.
            rules, stages = deployment.pool_rules, deployment.compressed.stages
            assert isinstance(rules, CompressedPools)
            counts = [rules.requests_with_states(place, self.needed_bytes) for place in range(len(stages))]
            states, requests = min(ranks * sum(map(rules.states_bytes, stages, counts)), max(0, rest)), max(counts)
        unfilled = "states have a fixed share of the memory"
        if deployment.window is not None:
            unfilled = f"window pool for {'all running requests' if ratio is None else f'{ratio:g} of the tokens'}"
        extras = (
            ("compressor_states", states, f"compressors of {requests:,} requests", f"compressors for {requests:,} requests"),
            (
                "unfilled_pools",
                rest - states,
                "pools have fixed shares of the memory, and one is full before the others",
                unfilled,
            ),
        )
        return tuple(beside_layers(name, size, f"{size:,} B: {rule}", why) for name, size, rule, why in extras if size > 0)

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The buffers of a rank of a pipeline stage; none is empty.

        A buffer is one row of one layer, in pages, of which it has one more than the pool's tokens take, and one slot more.
        """
        deployment, hardware, page = self.deployment, self.setup.hardware, self.settings.page_size
        size = hardware.kv_memory
        if size is None and hardware.gpu is not None and self.budget is not None:
            size = max(0, self.budget.expected)
        # Without a budget, the smallest pools that hold the planned sequences.
        sizes = self.sizes(self.needed_bytes if size is None else size)
        pages, swa_pages, slots = sizes.tokens // page + 1, (sizes.swa_tokens or 0) // page + 1, (sizes.slots or 0) + 1
        if deployment.compressed is not None:
            from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

            # The pools of DeepSeek-V4, each of all layers of the stage together.
            rules, compressed = deployment.pool_rules, deployment.compressed
            assert isinstance(rules, CompressedPools)
            kept = compressed.stages[stage]
            states = rules.states_bytes(kept, sizes.running)
            buffers = [
                buffer_of("windows", -1, "uint8", swa_pages, round(page * compressed.swa_bytes(kept))),
                buffer_of("compressed", -1, "uint8", pages, round(page * compressed.compressed_bytes(kept))),
                Allocation(name="compressor_states", layer=-1, dtype="uint8", shape=(states,), bytes=states),
            ]
            return tuple(buffer for buffer in buffers if buffer.bytes)
        layout, layers, buffers = deployment.layout, self.deployment.plain_stack.layers, list[Allocation]()
        for number in stage_spans(len(layers), self.settings.pp)[stage]:
            name = f"layers.{number}."
            for kind in layers[number]:
                rows = swa_pages if layout.pools[kind] == SWA else pages
                buffers += [buffer_of(name + row.name, number, row.dtype, rows, page * row.bytes) for row in layout.rows[kind]]
                conv, state = layout.state_bytes.get(kind, (0, 0))
                buffers.append(buffer_of(name + "conv_state", number, "bf16", slots, conv))
                buffers.append(buffer_of(name + "recurrent_state", number, self.dtypes.state, slots, state))
        return tuple(buffer for buffer in buffers if buffer.bytes)

    def most_sequences(self) -> tuple[int, str]:
        settings = self.settings
        most = _MOST_REQUESTS if settings.own_requests is None else settings.own_requests
        return most * self.setup.parallel.dp, "max_running_requests"

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The pools of one replica. ``tokens`` is ``max_total_num_tokens`` and ``max_requests`` is ``max_running_requests``."""
        from hwcalc.engines.sglang.memory import fraction_steps

        rules, page, steps = self.deployment.pool_rules, self.settings.page_size, list[Step]()
        figures = rules.figures(max(0, budget_bytes), steps)
        (sizes, cell), error, at_once = rules.logged(figures), rules.error(figures), self.at_once(figures, steps)
        message = error
        if message is None and not at_once:
            message = f"The input ({self.tokens} tokens) is longer than the pool ({sizes.tokens} tokens)."
        starts = error is None and sizes.tokens and cell
        longest = 0
        if error is None:
            longest = min(max(self.tokens, self.model.max_position_embeddings or 0), figures.tokens)
            longest = last_good(longest, lambda tokens: rules.holds(figures, self.deployment.demand(tokens, 1)))
        info = PoolInfo(
            budget_bytes=budget_bytes,
            tokens=sizes.tokens if error is None else None,
            bytes_per_token=round(cell),
            blocks=sizes.tokens // page,
            block_size=page,
            bytes_per_block=round(cell * page),
            blocks_per_request=self.deployment.pages[0].at(self.tokens),
            max_requests=sizes.running,
            max_seq=longest,
            swa_tokens=sizes.swa_tokens,
            state_slots=sizes.slots if error is None else None,
            needed_bytes=self.needed_bytes,
            fits=at_once > 0 and budget_bytes >= 0,
            message=message,
            steps=(*fraction_steps(self.deployment), *steps) if starts else (),
            at_once=at_once,
        )
        return Noted(info)

    def _plan_budget(self) -> Noted[Budget | None]:
        """The budget, which is the same for all lengths and batches unless a draft has a cache."""
        if self.setup.draft is None:
            return self.deployment.budget_alone
        from hwcalc.engines.sglang.memory import plan_budget

        return plan_budget(self.deployment, self)

    def chunks(self) -> tuple[int, int, int]:
        chunk = self.settings.chunk
        return chunk, chunk, chunk

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """A smaller pool of windows, states without copies, and formats of eight bits."""
        settings, deployment = self.settings, self.deployment
        if settings.swa_ratio is not None and deployment.window is not None and settings.swa_ratio > float(_SMALL_SHARE):
            yield Saving(Cost.CACHE, "a smaller pool of windows", {"engine_options": {"swa_full_tokens_ratio": _SMALL_SHARE}})
        if deployment.slots > 1:
            yield Saving(Cost.CACHE, "a smaller pool of states", {"engine_options": {"mamba_full_memory_ratio": _SMALL_SHARE}})
        if settings.element_bytes > 1 and deployment.compressed is None:
            yield Saving(Cost.CACHE, "fp8_e4m3 cache", {"dtype": "fp8_e4m3"})
        if computes_fp8(self.setup.hardware.gpu):
            yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})

    @cached_property
    def sharing_support(self) -> Support:
        """The support for shared beginnings: the radix cache keeps them once, in whole pages; recurrent states are not shared."""
        if not self.settings.radix:
            return Support(offered=False, how="disable_radix_cache: every sequence is kept by itself")
        if self.deployment.compressed is None and self.deployment.layout.has_states:
            how = "states are kept for each sequence; kvplan counts no prefix that their copies allow to share"
            return Support(offered=False, how=how)
        return Support(offered=True, how=f"the radix cache: common tokens are kept once, in pages of {self.settings.page_size:,}")

    def in_common(self) -> InCommon:
        """Whole pages of what is alike."""
        page = self.settings.page_size
        prefix, prompt = self.together.common_tokens
        return InCommon(prefix // page * page, prompt // page * page)

    def reported(self) -> Reported:
        """As SGLang's log names them."""
        settings = self.settings
        chunk = settings.chunk if cuts_prompts(self.setup) else -1
        longer = (self.deployment.max_length or self.tokens) > context_tokens(self.model)
        return Reported({"page_size": settings.page_size, "chunked_prefill_size": chunk}, (LONGER,) if longer else ())

    def curve(self) -> Curve | None:
        """The cache of sequences that are alike; ``None`` for others, or with a draft."""
        return self.deployment.curve if self.request.is_plain and self.deployment.max_length is None else None

    def form(self) -> MemoryForm | None:
        """The memory of a GPU for sequences that are alike; ``None`` for others, or if the budget is unknown."""
        from hwcalc.engines.general_form import form_with

        return form_with(self, pools=self.deployment) if self.deployment.max_length is None else None


class SglangIdle(IdleRules):
    """The memory saver: weights and pools are unmapped. The context stays on the GPU, and so do CUDA graphs without the variable.

    Source: SGLang 0.5.23, managers/scheduler_components/weight_updater.py, model_runner_components/load_model_utils.py,
    runner_backend/full_cuda_graph_backend.py.
    """

    _STARTS = ("SGLANG_MEMORY_SAVER_CUDA_GRAPH=true", "--enable-memory-saver")
    ways = (
        Rest(
            name="backup",
            how="POST /release_memory_occupation; POST /resume_memory_occupation",
            starts_with=(*_STARTS, "--enable-weights-cpu-backup"),
            copied=True,
        ),
        Rest(
            name="no backup",
            how="POST /release_memory_occupation; POST /resume_memory_occupation, POST /update_weights_from_disk",
            starts_with=_STARTS,
        ),
    )
    source = "SGLang 0.5.23 managers/scheduler_components/weight_updater.py"

    def left_free(self, total_bytes: int, requested_bytes: int) -> int:
        """The bytes that the default of ``mem_fraction_static`` leaves to activations and graphs."""
        return total_bytes - requested_bytes


class Sglang(GeneralEngine):
    """Pools of tokens, of window tokens and of states, by the rules of SGLang."""

    deployment: ClassVar[type[Deployment]] = SglangDeployment
    occupancy: ClassVar[type[Occupancy]] = SglangOccupancy
    scheduler: ClassVar[str | None] = "hwcalc.replay.sglang.settings"
    name: ClassVar[str] = "sglang"
    title: ClassVar[str] = "SGLang: a pool of tokens, and one each for windows and states"
    label: ClassVar[str] = "SGLang"
    definition: ClassVar[Definition] = Definition.ENGINE
    facts: ClassVar[Facts] = Facts(
        cache_formats=cache_formats(VERSIONS[0]),
        # BASE_QUANTIZATION_METHODS of layers/quantization/__init__.py.
        foreign_formats=("GGUF files", "bitsandbytes"),
        idle=SglangIdle(),
        states_option="mamba_ssm_dtype",
        users_option="max_running_requests",
        chunk_option="chunked_prefill_size",
        shared_experts_option="enable_dp_attention",
        trade_offs=MappingProxyType(
            {
                "chunked_prefill_size": TradeOff(values=("1024", "2048", "4096", "8192", "16384")),
                "max_running_requests": TradeOff(values=("16", "32", "64", "128", "256")),
                "disable_radix_cache": TradeOff(values=("true",), of_prefixes=True),
                "dtype": TradeOff(values=("fp8_e4m3",)),
            }
        ),
        cache_is="the smallest pools that hold the planned sequences",
        pool_is="max_total_num_tokens",
        pooled=True,
        # max_req_len in managers/tp_worker.py is at most the tokens of the pool.
        short_pool="refuses longer requests",
        counts_copies=True,
        assumed_gpu="h100-sxm5-80gb",
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL}),
        planned_on=("5.0+", "rubin-288gb", "gfx*"),
        longest_option=MAX_LENGTH,
    )
    weights: ClassVar[WeightFormats] = WeightFormats(None, "fp8", "awq")
    command: ClassVar[Command] = SglangCommand()
    versions: ClassVar[tuple[str, ...]] = VERSIONS
    source: ClassVar[str] = "SGLang 0.5.23, srt/model_executor/pool_configurator.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def _resolve_version(self, requested: str) -> str:
        return resolve(requested)
