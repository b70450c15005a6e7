"""TensorRT-LLM: a server whatever the load, what a load takes of the manager's pools and a rank allocates, and ``trtllm-serve`` for a plan.

What has no flag stands in a YAML file. Flags: commands/serve.py; the file: llmapi/llm_args.py (``KvCacheConfig``) of the sources of 1.4; read,
not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.devices import Cost, Saving, computes_fp4, computes_fp8
from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN
from hwcalc.engines.facts import Command, Facts, IdleRules, RequestRules, Rest, Told, Turns, WeightFormats
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.models import known_dtype
from hwcalc.engines.options import AUTO, EmittedFile, check_one_replica, is_on, size_option
from hwcalc.engines.pool import Allocation, PoolGroup
from hwcalc.engines.setup import Load
from hwcalc.engines.stored import (
    Blocks,
    Dtypes,
    Held,
    InCommon,
    OwnRule,
    StoredTensor,
    Support,
    beside_layers,
    blocks_in_common,
    check_heads,
    held_blocks,
)
from hwcalc.engines.subjects import Reported, Traits
from hwcalc.engines.tensorrt_llm.layout import RULES, Layout, Piece, Stage
from hwcalc.engines.tensorrt_llm.pool import Needs, plan_pool
from hwcalc.engines.tensorrt_llm.settings import (
    OPTIONS,
    Settings,
    check_supported,
    class_words,
    is_attention_dp,
    read_settings,
    read_windows,
)
from hwcalc.engines.tensorrt_llm.storage import FOREVER, in_pages, page_bytes
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, CompressedAttention, LayerKind, LayerNumbers, Role, SlidingAttention, Stack
from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.profiles.engine_flags import engine_flags

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.options import CommandInput
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.setup import Request, Setup
    from hwcalc.engines.tensorrt_llm.memory import TensorrtAdapters
    from hwcalc.formulas.hybrid import Group

_SMALL_BATCH: Final = 2048
_BESIDE: Final = {
    "idle_states": ("states of max_batch_size requests, and of dummy requests", "states for max_batch_size requests"),
    "prompt_read": (
        "one prompt lies whole in the pools of windows while it is read",
        "a prompt whole in the windows while it is read",
    ),
    "other_pools": (
        "pools have fixed shares, in whole pages: what the others get while the fullest has enough",
        "several pools with fixed shares",
    ),
    "whole_pages": ("the pool has whole pages of the driver", "whole pages of memory"),
    "unequal_windows": ("each window has an equal share of the memory", "an equal share for each window"),
}
"""What the manager keeps besides blocks, and the same in fewer words, for a comparison with other engines."""


class TensorrtDeployment(GeneralDeployment):
    """TensorRT-LLM as it is started: its settings, and the layers as its cache manager sees them."""

    def __init__(self, engine: Engine, model: ModelSpec, setup: Setup, beams: int = 1) -> None:
        """``beams`` are those of the requests for which it is started, where ``max_beam_width`` does not say."""
        super().__init__(engine, model, setup)
        self.beams = beams

    def at(self, load: Load) -> Occupancy:
        """The deployment under a load: a server that runs as many beams."""
        beams = load.sharing.beams
        server = self if beams == self.beams else type(self)(self.engine, self.model, self.setup, beams)
        return self.engine.occupancy(server, load)

    @cached_property
    def noted_settings(self) -> Noted[Settings]:
        """The settings with every default filled in, and notes on what was assumed."""
        return read_settings(self.model, self.setup, self.beams)

    @property
    def settings(self) -> Settings:
        """The settings with every default filled in."""
        return self.noted_settings.value

    def _windows_of(self, group: Group) -> frozenset[int]:
        """The windows of the layers of one kind, in longer sequences; none keeps all tokens."""
        settings = self.settings
        if settings.window_pattern is not None:
            return frozenset(settings.window_pattern[number % len(settings.window_pattern)] for number in group.layers)
        if settings.v2 and settings.derives_windows and isinstance(group.kind, SlidingAttention):
            return frozenset((group.kind.window,))
        return frozenset()

    @cached_property
    def most_tokens(self) -> int | None:
        """The longest sequence in which the layers of every kind have one window; ``None`` if any length will do."""
        several = (windows for group in self.plain_stack.groups if len(windows := self._windows_of(group)) > 1)
        return min((min(windows) for windows in several), default=None)

    def pieces(self, stack: Stack, length: int) -> dict[LayerKind, tuple[Piece, ...]]:
        """The buffers of one layer of each kind where sequences have so many tokens, each with its window."""
        pieces = {}
        for group in stack.groups:
            windows = {min(length, window) for window in self._windows_of(group)} or {length}
            if len(windows) > 1:
                message = f"max_attention_window gives layers of one kind ({group.kind.title}) different windows."
                raise UsageError(message, hint="Give one window for all layers, or one for each kind.")
            (window,) = windows
            # A window as long as the sequence keeps all tokens.
            rule = RULES[type(group.kind)]
            pieces[group.kind] = rule(group.kind, self.settings, None if window == length else window)
        return pieces

    @cached_property
    def layouts(self) -> tuple[tuple[int | None, Layout], ...]:
        """The layers of every stage for each range of lengths, with its last length: a window that is longer than a sequence is none."""
        ends = sorted({window for group in self.plain_stack.groups for window in self._windows_of(group)})
        if self.most_tokens is not None:
            ends = [window for window in ends if window <= self.most_tokens]
            return (*((end, self._layout(end)) for end in ends[:-1]), (None, self._layout(ends[-1])))
        return (*((end, self._layout(end)) for end in ends), (None, self._layout(FOREVER)))

    def layout(self, length: int) -> Layout:
        """The layers of every stage for sequences of so many tokens."""
        return next(layout for last, layout in self.layouts if last is None or length <= last)

    def _layout(self, length: int) -> Layout:
        from hwcalc.engines.stored import stage_spans

        stack = self.plain_stack
        pieces = self.pieces(stack, length)
        spans = stage_spans(self.at(Load(seq=1)))
        stages = (stack.groups,) if len(spans) == 1 else map(stack.groups_of, spans)
        return Layout(
            stages=tuple(Stage(kinds=tuple((pieces[group.kind], group.count) for group in groups)) for groups in stages),
            settings=self.settings,
            kinds=tuple(pieces.items()),
            compressed=any(isinstance(kind, CompressedAttention) for kind in pieces),
        )

    def needs(self, tokens: int, sequences: int) -> Needs:
        """The needs that so many sequences of so many tokens have of the pools of a replica."""
        return Needs.alike(self.layout(tokens), tokens, sequences)

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        settings = self.settings
        kv = "fp8_e4m3" if settings.kv_dtype in ("fp8", "fp8_ds_mla") else settings.kv_dtype
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), known_dtype(kv))
        roles |= {
            Role.INDEX: known_dtype("fp8_scaled_128"),
            Role.STATE: known_dtype(settings.state_dtype),
            Role.CONV: known_dtype(settings.model_dtype),
        }
        return Noted(Dtypes(kv=settings.kv_dtype, roles=MappingProxyType(roles)), self.noted_settings.notes)

    @property
    def adapter_rules(self) -> TensorrtAdapters:
        from hwcalc.engines.tensorrt_llm.memory import TensorrtAdapters

        return TensorrtAdapters(self)

    @cached_property
    def traits(self) -> Traits:
        return Traits(deals_experts=is_attention_dp(self.setup.options))

    def weight_rules(self) -> Rules:
        from hwcalc.engines.tensorrt_llm.memory import TENSORRT

        return TENSORRT

    @cached_property
    def remarks(self) -> tuple[Note, ...]:
        """Notes on the settings."""
        settings, messages = self.settings, {}
        cut = settings.window_pattern is not None or (settings.v2 and settings.derives_windows) or settings.scratch
        if not cut and any(group.kind.numbers().get("window") for group in self.plain_stack.groups):
            messages["window-not-honoured"] = (
                "Windowed layers keep all tokens: TensorRT-LLM cuts them only with --engine-option max_attention_window."
            )
        if settings.host_bytes:
            messages["host-memory"] = (
                "host_cache_size keeps blocks of finished requests in host memory; the pool on the GPU stays as it is."
            )
        if self.setup.parallel.dp > 1:
            messages["per-replica"] = f"The pool is that of one of {self.setup.parallel.dp} replicas."
        return tuple(Note(code=code, message=message) for code, message in messages.items())


class TensorrtOccupancy(GeneralOccupancy):
    """What the pools of TensorRT-LLM hold under a load."""

    deployment: TensorrtDeployment

    @property
    def settings(self) -> Settings:
        """The settings of the server."""
        return self.deployment.settings

    def check(self) -> None:
        deployment = self.deployment
        check_supported(self.model, self.setup)
        for group in self.deployment.plain_stack.groups:
            check_heads("TensorRT-LLM", group.kind, self.settings.tp)
        has_states = any(piece.state for pieces in self.pieces.values() for piece in pieces)
        # A model without a named class may be any.
        if has_states and self.model.architecture is not None and "states" not in class_words(self.model):
            message = f"TensorRT-LLM's PyTorch back end keeps no recurrent states of {self.model.architecture}."
            raise UnsupportedError(message, hint="Plan it with --engine vllm or transformers.")
        self.layout  # noqa: B018 - so that a layer that it cannot split is told now
        self.tell(*deployment.remarks)

    @cached_property
    def pieces(self) -> dict[LayerKind, tuple[Piece, ...]]:
        """The buffers of one layer of each kind, each with its window."""
        return self.deployment.pieces(self.stack, self.tokens)

    @property
    def layout(self) -> Layout:
        """The layers of every stage. It depends on the length only where that is shorter than a window."""
        return self.deployment.layout(self.tokens)

    def held(self, window: int | None) -> Held:
        """The blocks that all sequences together take in the pool of one window."""
        size, together, layout = self.settings.block, self.together, self.layout
        parts = []
        for tokens, requests in together.lengths:
            most = layout.blocks(window, tokens)
            prefix = min(together.prefix, tokens - 1) // size
            prompt = max(prefix, min(together.prompt, tokens) // size) if together.forks else prefix
            blocks = Blocks(max(most, ceil_div(tokens, size)), most, prefix, prompt)
            parts.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(parts, together.copies)

    @cached_property
    def needs(self) -> Needs:
        """The needs that the planned sequences have of the pools, were they all on this replica; what they share is kept once."""
        if not self.together.unlike:
            return self.deployment.needs(self.tokens, self.batch)
        blocks = {window: self.held(window).total for window in self.layout.windows}
        return Needs(self.layout, self.tokens, self.batch, blocks)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The buffers of one layer, of all sequences on all tensor-parallel ranks together."""
        size, tp, batch, stored = self.settings.block, self.setup.parallel.tp, self.batch, list[StoredTensor]()
        for piece in self.pieces.get(kind, ()):
            blocks, held, words = 1, batch, f"{batch:,} x {piece.state:,} B"
            positions, span, width = 1, OwnRule("1 slot", 1), piece.state
            if not piece.state:
                blocks, held = self.layout.blocks(piece.window, self.tokens), self.needs.blocks[piece.window]
                positions, width = blocks * size, piece.row
                span = OwnRule(f"{blocks:,} blocks of {size:,} tokens", positions)
                words = f"{held:,} blocks x {size:,} x {piece.row:,} B"
            stored.append(
                StoredTensor(
                    name=piece.name,
                    role=piece.role,
                    axes=("bytes of a slot" if piece.state else "bytes of a token",),
                    shape=(width,),
                    dtype=piece.dtype,
                    positions=positions,
                    span=span,
                    bytes=held * (1 if piece.state else size) * width * tp,
                    rule=f"{words}{f' x {tp} ranks' if tp > 1 else ''}",
                )
            )
        return tuple(stored)

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The tensors that the manager keeps besides the blocks of the planned sequences, on all GPUs."""
        sizes = dict.fromkeys(_BESIDE, 0)
        for number in range(len(self.layout.stages)):
            for name, size in self._beside(number):
                sizes[name] += max(0, size) * self.setup.parallel.tp
        return tuple(
            beside_layers(name, size, f"{size:,} B: {_BESIDE[name][0]}", _BESIDE[name][1]) for name, size in sizes.items() if size
        )

    def _beside(self, number: int) -> Iterator[tuple[str, int]]:
        """The names and bytes of these further tensors on one rank of a stage, of all replicas together."""
        settings, layout, dp, replica = self.settings, self.layout, self.request.replicas, self.replica
        stage, needs = layout.stages[number], replica.needs if settings.v2 else self.needs
        used = sum(needs.blocks[window] * settings.block * layout.rows(stage, window) for window in layout.windows)
        if not settings.v2:
            yield "unequal_windows", layout.needed(stage, needs.blocks) - used
            return
        idle, storage = layout.slots * stage.state, needs.storages[number]
        yield "idle_states", dp * idle - self.batch * stage.state
        more = needs.on_stages[number] - used - max(idle, replica.batch * stage.state)
        # The slots that the pools have for a prompt while it is read, besides those that it keeps.
        demands = zip(storage.pools, needs.demand(storage), needs.demand(storage, reading=False), strict=True)
        read = max(0, min(more, sum((most - kept) * sum(sizes) for (sizes, _), most, kept in demands)))
        yield "prompt_read", dp * read
        one_pool = all(sum(len(sizes) for sizes, _ in storage.pools) == 1 for storage in self.needs.storages)
        yield "whole_pages" if one_pool else "other_pools", dp * (more - read)

    @cached_property
    def needed_bytes(self) -> int:
        return self.replica.needs.largest_budget

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The pools of a rank, with the blocks of the byte budget where one is given, else of the planned sequences."""
        settings, given, sizes = self.settings, self.setup.hardware.kv_memory, dict[str, tuple[int, ...]]()
        layout, needs = self.replica.layout, self.replica.needs
        if settings.v2:
            # Each size of a slot has a pool of its own in whole pages; there are pages of the quota that no pool can use.
            storage, quota = needs.storages[stage], layout.quotas(needs.least_budget if given is None else given)[stage]
            slots, page = storage.slots(quota), page_bytes(quota)
            for place, ((slot_sizes, _), count) in enumerate(zip(storage.pools, slots or [], strict=slots is not None)):
                for number, size in enumerate(slot_sizes):
                    sizes[f"{place}.{number}"] = (ceil_div(count * size, page) * page,)
            sizes["rest"] = (in_pages(quota) - sum(size for (size,) in sizes.values()),)
        else:
            pools = needs.blocks if given is None else layout.pool_blocks(given)
            for window in layout.windows:
                name, blocks, row = str(window or "full"), pools[window], layout.rows(layout.stages[stage], window)
                sizes[name] = (blocks, row * settings.block)
                if layout.several and given is None:
                    # Every window has as much memory as the one that needs most.
                    sizes[name] = (layout.needed(layout.stages[stage], needs.blocks) // len(layout.windows),)
        return tuple(
            Allocation(name=f"pool.{name}", layer=-1, dtype="uint8", shape=shape, bytes=prod(shape))
            for name, shape in sizes.items()
            if prod(shape)
        )

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        """The pools as a plan reports them, each with the layers that have it, and the states."""
        layout, size, infos = self.layout, self.settings.block, list[PoolGroup]()
        windows: dict[int | None, list[int]] = {}
        states: list[int] = []
        for group in self.stack.groups:
            for piece in self.pieces[group.kind]:
                (states if piece.state else windows.setdefault(piece.window, [])).extend(group.layers)
        rows = []
        for window, layers in windows.items():
            block_bytes = size * max(layout.rows(stage, window) for stage in layout.stages)
            rows.append(("full" if window is None else "window", layers, block_bytes, layout.blocks(window, self.tokens)))
        if states:
            rows.append(("state", states, max(stage.state for stage in layout.stages), 1))
        for kind, layers, block_bytes, blocks in rows:
            numbers = LayerNumbers(sorted(dict.fromkeys(layers)))
            info = PoolGroup(
                kind=kind,
                count=len(numbers),
                layers=numbers,
                block_size=size,
                page_bytes=None,
                block_bytes=block_bytes,
                blocks_per_request=blocks,
            )
            infos.append(info)
        return tuple(infos)

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        return Noted(plan_pool(self, budget_bytes))

    def holds(self, budget_bytes: int) -> bool:
        return self.replica.needs.holds(budget_bytes)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.sequences * self.setup.parallel.dp, "max_batch_size"

    def _plan_budget(self) -> Noted[Budget | None]:
        from hwcalc.engines.tensorrt_llm.memory import plan_budget

        return plan_budget(self)

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.settings.batched_tokens
        return tokens, tokens, tokens

    def curve(self) -> Curve | None:
        """The cache of sequences that are alike; ``None`` for others, or with a draft."""
        from hwcalc.engines.tensorrt_llm.memory import PoolCurve

        if not self.request.is_plain:
            return None
        return PoolCurve(gpus=(), total=(), most_tokens=self.deployment.most_tokens, deployment=self.deployment)

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.tensorrt_llm.memory import plan_form

        return plan_form(self)

    @cached_property
    def sharing_support(self) -> Support:
        """Block reuse, and beams that fork from one prompt."""
        settings, sharing = self.settings, self.load.sharing
        if settings.reuse:
            return Support(offered=True, how="block reuse: whole blocks that begin alike are kept once")
        if sharing.beams > 1 and not sharing.prefix and sharing.samples == 1:
            return Support(offered=True, how="beams have the whole blocks of their prompt once, and the others each")
        how = "block reuse is off; it takes --engine-option enable_block_reuse=true"
        return Support(offered=False, how=how)

    def in_common(self) -> InCommon:
        size, together = self.settings.block, self.together
        kinds = {window: "full" if window is None else "window" for window in self.layout.windows}
        blocks = (blocks_in_common(kind, size, self.held(window), together) for window, kind in kinds.items())
        prefix, prompt = together.common_tokens
        return InCommon(prefix // size * size, max(prefix, prompt) // size * size, tuple(blocks))

    def reported(self) -> Reported:
        return Reported({"tokens_per_block": self.settings.block, "manager": "v2" if self.settings.v2 else "v1"})

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The options that take less memory of a GPU. Weights are as published: TensorRT-LLM makes none while loading."""
        settings, gpu, batch = self.settings, self.setup.hardware.gpu, self.request.replica_batch
        if settings.sequences > batch:
            yield Saving(Cost.NOTHING, f"a server for {batch} at once", {"engine_options": {"max_batch_size": str(batch)}})
        if computes_fp8(gpu):
            yield Saving(Cost.CACHE, "fp8 cache", {"dtype": "fp8"})
            yield Saving(Cost.WEIGHTS, "a checkpoint in fp8", {"weights": "fp8"})
        if settings.batched_tokens > _SMALL_BATCH:
            options = {"engine_options": {"max_num_tokens": str(_SMALL_BATCH)}}
            yield Saving(Cost.SPEED, f"batches of {_SMALL_BATCH}, which read prompts slower", options)
        few = "nvfp4" if computes_fp4(gpu) else "awq"
        yield Saving(Cost.FEW_BITS, f"a checkpoint in {few}", {"weights": few})
        if computes_fp4(gpu):
            yield Saving(Cost.FEW_CACHE_BITS, "nvfp4 cache", {"dtype": "nvfp4"})


class TensorrtCommand(Command):
    """``trtllm-serve`` for a plan, with a settings file for what has no flag."""

    known = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """The options as asked for: those in a settings file count more than the flags."""
        cache, sparse = (_mapping(said.extra.get(name)) for name in ("kv_cache_config", "sparse_attention_config"))
        if not cache and not sparse:
            return said.options
        changed: dict[str, Any] = {option: cache[name] for name, option in _SAID_BY_PLAN.items() if cache.get(name) is not None}
        if str(changed.get("dtype")).lower() == AUTO:
            del changed["dtype"]
        knobs: dict[str, Any] = {name: cache[name] for name in (*_OF_CACHE, "enable_block_reuse") if cache.get(name) is not None}
        if isinstance(knobs.get("enable_block_reuse"), bool):
            knobs["enable_block_reuse"] = str(knobs["enable_block_reuse"]).lower()
        if isinstance(cache.get("max_attention_window"), list):
            knobs["max_attention_window"] = ",".join(map(str, cache["max_attention_window"]))
        if isinstance(cache.get("use_kv_cache_manager_v2"), bool):
            knobs["manager"] = "v2" if cache["use_kv_cache_manager_v2"] else "v1"
        knobs["periodic_snapshot_interval"] = _mapping(cache.get("mamba_state_config")).get("periodic_snapshot_interval")
        knobs["indexer_k_dtype"] = sparse.get("indexer_k_dtype")
        return said.changed(**changed, engine_options=said.knobs(**knobs))

    def flag(self, name: str, value: object) -> str:
        """TensorRT-LLM's spelling of one option; as an entry of the settings file where it has no flag."""
        if name in ("enable_attention_dp", "enable_block_reuse"):
            return f"{name}: {str(is_on(str(value))).lower()}"
        if name in _OF_CACHE:
            return f"{name}: {value}"
        key = "kv_cache_dtype" if name == "dtype" else name
        return _FLAGS.text(key, value)

    def file(self, planned: CommandInput) -> EmittedFile | None:
        text = settings_file(planned)
        return EmittedFile(name=SETTINGS_FILE, text=text, environment=(), command=tuple(self.words(planned))) if text else None

    def words(self, planned: CommandInput) -> list[str]:
        """The words of ``trtllm-serve``. What has no flag stands in the settings file, which is named last."""
        if planned.weights is not None:
            from hwcalc.quantization.planned import format_name, unmade

            raise unmade("TensorRT-LLM", format_name(planned.weights) or "", planned.model)
        for name in ("lora", "draft"):
            if getattr(planned, name) is not None:
                raise UsageError(
                    f"kvplan cannot write --{name} on the command line of trtllm-serve.", hint=f"Leave out --{name}."
                )
        parallel, options = planned.parallel, dict(planned.options)
        tp = parallel.tp
        if is_attention_dp(options):
            tp *= parallel.dp
        else:
            check_one_replica(planned, "TensorRT-LLM")
        of = _FLAGS.words
        words = [*_FLAGS.program, planned.model, *of("seq", planned.seq)]
        for name, ranks in (("tp", tp), ("pp", parallel.pp), ("ep", parallel.ep)):
            if ranks > 1:
                words += of(name, ranks)
        if planned.revision is not None:
            words += of("revision", planned.revision)
        if planned.kv_dtype_named and planned.kv_dtype in ("fp8", "nvfp4"):
            words += of("kv_cache_dtype", planned.kv_dtype)
        if planned.memory_utilization is not None and "free_gpu_memory_fraction" not in options:
            words += of("memory_utilization", planned.memory_utilization)
        for name, value in options.items():
            if name in _FLAGS.written and name not in _IN_FILE:
                words += of(name, value)
        return [*words, *(of("config", SETTINGS_FILE) if settings_file(planned) else [])]


class TensorrtRequests(RequestRules):
    """Requests, where attention data parallelism makes replicas of tensor-parallel ranks."""

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns of the base class, and one behind each window of ``max_attention_window``."""
        turns, named = super().turns(model, options), options.get("max_attention_window")
        return turns if named is None else turns.also(tokens=read_windows("max_attention_window", named))

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """With attention data parallelism every rank is a replica of the attention."""
        parallel = request.setup.parallel
        if is_attention_dp(request.setup.options) and parallel.tp > 1:
            request = request.changed(tp=1, dp=parallel.tp * parallel.dp)
        return model, request


class TensorrtIdle(IdleRules):
    """Memory by tags (a prototype of the PyTorch backend): weights are kept in pinned host memory, the cache is dropped.

    Source: docs on runtime memory checkpointing, _torch/virtual_memory.py; read, not run. CUDA graphs are counted as if they stayed.
    """

    ways = (
        Rest(
            name="released",
            how="POST /release_memory; POST /resume_memory (in Python: llm.release(), llm.resume())",
            starts_with=("--enable_sleep_mode",),
            copied=True,
        ),
    )
    stays = IdleRules.stays | {"workspaces", "CUDA graphs"}
    source = "TensorRT-LLM _torch/virtual_memory.py, SleepConfig"


class TensorrtLlm(GeneralEngine):
    """A pool of blocks, by the rules of TensorRT-LLM's PyTorch back end."""

    deployment = TensorrtDeployment
    occupancy = TensorrtOccupancy
    request_class = TensorrtRequests
    name = "tensorrt-llm"
    title = "TensorRT-LLM: blocks of a share of what is left after loading"
    label = "TensorRT-LLM"
    definition = Definition.ENGINE
    facts = Facts(
        idle=TensorrtIdle(),
        # QuantAlgo of models/modeling_utils.py.
        foreign_formats=(),
        states_option="mamba_ssm_cache_dtype",
        users_option="max_batch_size",
        chunk_option="max_num_tokens",
        shared_experts_option="enable_attention_dp",
        cache_is="blocks of the planned sequences; states and windows of max_batch_size requests",
        pool_is="max tokens in paged KV cache",
        pooled=True,
        # The managers of the cache cut max_seq_len, or the window of attention (see plan_pool).
        short_pool="takes what it holds as max_seq_len",
        counts_copies=True,
        groups_share=False,
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}),
    )
    weights = WeightFormats(None, "fp8", "nvfp4")
    command = TensorrtCommand()
    versions = ("1.4",)
    source = "TensorRT-LLM 1.4 (sources read, not run), _torch/pyexecutor"
    kinds = frozenset(RULES)
    options = OPTIONS


_SAID_BY_PLAN: Final = {"max_gpu_total_bytes": "kv_memory", "dtype": "dtype", "free_gpu_memory_fraction": "memory_utilization"}
"""Entries of ``kv_cache_config`` -> the options of a plan that they are."""
_OF_CACHE: Final = frozenset({"tokens_per_block", "max_tokens", "avg_seq_len", "host_cache_size", "mamba_ssm_cache_dtype"})
_FLAGS: Final = engine_flags("tensorrt-llm")
_IN_FILE: Final = _OF_CACHE | {"enable_attention_dp"}
"""Options that older releases have no flag for, and that stand in the settings file."""
_LONG: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
SETTINGS_FILE: Final = "kvplan.yaml"


def settings_file(planned: CommandInput) -> str:
    """The entries of the settings file, as YAML; empty if every option has a flag."""
    options, cache = planned.options, {}
    if planned.kv_memory is not None:
        cache["max_gpu_total_bytes"] = str(planned.kv_memory)
    if planned.kv_dtype_named and planned.kv_dtype == "fp8_ds_mla":
        cache["dtype"] = planned.kv_dtype
    for name, value in options.items():
        if name == "host_cache_size":
            cache[name] = str(size_option(name, value))
        elif name in _OF_CACHE:
            cache[name] = _LONG.get(value, value)
        elif name == "enable_block_reuse":
            cache[name] = str(is_on(value)).lower()
        elif name == "max_attention_window":
            cache[name] = f"[{value}]"
        elif name == "manager":
            cache["use_kv_cache_manager_v2"] = str(value == "v2").lower()
    entries = "".join(f"  {name}: {value}\n" for name, value in cache.items())
    if "periodic_snapshot_interval" in options:
        entries += f"  mamba_state_config:\n    periodic_snapshot_interval: {options['periodic_snapshot_interval']}\n"
    lines = [f"kv_cache_config:\n{entries}"] if entries else []
    if is_attention_dp(options):
        lines.append("enable_attention_dp: true\n")
    if "indexer_k_dtype" in options:
        lines.append(f"sparse_attention_config:\n  algorithm: dsa\n  indexer_k_dtype: {options['indexer_k_dtype']}\n")
    return "".join(lines)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
