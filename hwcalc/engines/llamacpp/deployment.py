"""A model on llama.cpp: :class:`LlamacppDeployment` has what does not depend on the load, :class:`LlamacppOccupancy` what a load takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Self, cast

from hwcalc.engines.devices import ModelWeights, Placement
from hwcalc.engines.forms import ENDS
from hwcalc.engines.general import GeneralDeployment, GeneralOccupancy
from hwcalc.engines.llamacpp.buffers import ModelMoments
from hwcalc.engines.llamacpp.equation import budget_beside, host_room, process, room_of, weights_part
from hwcalc.engines.llamacpp.fitting import ON_HOST, Run, Runs, divided, splits
from hwcalc.engines.llamacpp.layers import Layers, Weighed, weigh
from hwcalc.engines.llamacpp.layout import Layout, copies_of_inputs
from hwcalc.engines.llamacpp.options import PlaceOptions, checked_options
from hwcalc.engines.llamacpp.refusals import check_context, check_weights
from hwcalc.engines.llamacpp.rules import RULES, CacheContext, ngram_state
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES, ContextOptions, Settings, dtypes_of
from hwcalc.engines.llamacpp.tensors import repacked_note, repacked_output
from hwcalc.engines.memory import BudgetPart, Section, exact
from hwcalc.engines.options import is_auto
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import Full, LayerKind, Stack
from hwcalc.model import Definition, Note, Noted
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.parsers.gguf.parse import cached_layers
from hwcalc.quantization.planned import format_name
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.devices import DeviceReads, Saving
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.pool import Allocation
    from hwcalc.engines.stored import Support
    from hwcalc.policies.base import Chosen
    from hwcalc.profiles.hardware_file import Gpu


_AS_PUBLISHED: Final = "Planned are weights as the checkpoint has them. Most run a smaller file: --weights q4_k_m, or auto."


class LlamacppDeployment(GeneralDeployment):
    """A model on llama.cpp with one setup: the file, the options, the devices, and where layers lie if options say so."""

    pinned: Runs | None = None
    """The layers of each device at every load, where they are kept as another load has them."""

    def pinned_at(self, runs: Runs) -> Self:
        """The same deployment with its layers on the devices of ``runs``, whatever the load."""
        other = type(self)(self.engine, self.model, self.setup)
        other.pinned = runs
        return other

    # --- the context ------------------------------------------------------------------------------------------------------

    @cached_property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return hparams_of(self.model)

    @cached_property
    def context(self) -> ContextOptions:
        """The options of the context."""
        return ContextOptions.of(self.setup)

    def choose_dtypes(self) -> Noted[Dtypes]:
        dtypes = dtypes_of(*self.context.types)
        named = not is_auto(self.setup.dtype) or {"type_k", "type_v"} & self.setup.options.keys()
        return Noted(dtypes, () if named else (_default_dtype(dtypes.kv),))

    def preallocates(self) -> bool:
        return True

    def pads(self) -> bool:
        return not self.context.kv_unified

    @property
    def most_slots(self) -> int:
        """The most sequences of a context."""
        return MAX_SEQUENCES

    def slot_tokens(self, tokens: int) -> int:
        """The tokens of the slot of a sequence of ``tokens`` tokens; integers or arrays."""
        return tokens

    def chosen_batch(self, tokens: int, sequences: int) -> int | None:
        """The n_batch and n_ubatch that the program chooses for a load, integers or arrays; ``None`` if they are as the options say."""
        return None

    def settings_at(self, tokens: int, sequences: int) -> Settings:
        """The settings for so many sequences of so many tokens, integers or arrays, where no option fixes the context."""
        tokens = self.slot_tokens(tokens)
        return self.context.settings(self.hparams, tokens * sequences, sequences, self.chosen_batch(tokens, sequences))

    @cached_property
    def plain_stack(self) -> Stack:
        """The layers with the kinds of caches that llama.cpp keeps for each block of the file."""
        read, drafts = self.hparams, self.context.drafts
        stack: Stack = self.model.once(("llamacpp layers", drafts), lambda: Stack(cached_layers(read, drafts=drafts)))
        return stack

    def layout(self, settings: Settings) -> Layout:
        """What each device holds in a context, or in an array of contexts, with these settings."""
        return Layout(self, settings)

    def layout_at(self, tokens: int, sequences: int) -> Layout:
        """What each device holds for ``sequences`` sequences of ``tokens`` tokens, where no option fixes the context."""
        return Layout(self, self.settings_at(tokens, sequences))

    # --- the file ---------------------------------------------------------------------------------------------------------

    @cached_property
    def weight_tensors(self) -> tuple[WeightTensor, ...] | None:
        """The tensors of the planned file; ``None`` if they are not known."""
        from hwcalc.engines.llamacpp.groups import model_tensors

        return model_tensors(self.model, format_name(self.setup.weights))

    @cached_property
    def weight_groups(self) -> tuple[WeightGroup, ...] | None:
        """The tensors of the planned file in groups that differ in their layer alone; ``None`` if they are not known."""
        from hwcalc.engines.llamacpp.groups import weight_groups

        return weight_groups(self.model, format_name(self.setup.weights))

    @cached_property
    def weighed(self) -> Weighed | None:
        """The bytes of the tensors by the devices on which they may lie; ``None`` if they are not known."""
        if self.weight_groups is None:
            return None
        key = ("llamacpp weighed", self.setup.weights, self.context.load_mtp, self.options.overrides)
        weighed: Weighed = self.model.once(key, self._weigh)
        return weighed

    def _weigh(self) -> Weighed:
        from hwcalc.engines.llamacpp.tensors import loaded, loaded_groups

        mtp, overrides, blocks = self.context.load_mtp, self.options.overrides, self.hparams.n_layer_all
        if not overrides:
            groups = loaded_groups(self.weight_groups or (), mtp=mtp)
            return weigh(((group.first, group.blocks) for group in groups), blocks)
        from hwcalc.engines.llamacpp.tensors import with_overrides

        # The user may have named any tensor of a group.
        tensors = with_overrides(loaded(self.weight_tensors or (), mtp=mtp), overrides)
        return weigh(((tensor, (tensor.layer,)) for tensor in tensors), blocks)

    @cached_property
    def layers(self) -> Layers:
        """The layers with the bytes of their weights and caches, on whatever device they lie."""
        return self.layers_under(None)

    def layers_under(self, acted_on: frozenset[int] | None) -> Layers:
        """The layers under a policy that drops tokens in these blocks; ``None`` is all blocks, or no policy."""
        context, single = self.context, self.context.settings(self.hparams, CELLS, 1)
        cache = (context.drafts, single.type_k, single.type_v, single.flash_attn, single.n_rs_seq, acted_on)
        file = (self.setup.weights, context.load_mtp, self.options.overrides)

        def made() -> Layers:
            weighed = self.weighed
            if weighed is None:
                weighed = Weighed(blocks=((0, 0),) * self.hparams.n_layer_all)
            return Layers(self.hparams, self.plain_stack, single, weighed, self.weight_groups or (), acted_on)

        layers: Layers = self.model.once(("llamacpp sums", cache, file), made)
        return layers

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """The weights on the GPU with most of them, if all layers lie on GPUs; without a GPU, those of the whole model."""
        weighed = self.weighed
        if weighed is None:
            return Noted(None, (self.unknown_weights,))
        size = weighed.total
        if self.gpus > 1 or (self.gpus and self.gpu is not None):
            size = max(weighed.on_gpu(self.whole_runs, gpu) for gpu in range(self.gpus))
        return Noted((exact("weights", Section.WEIGHTS, size, "tensors of the GGUF file"),))

    @property
    def unknown_weights(self) -> Note:
        """The note on a model whose tensors are not known."""
        message = f"The tensors of {self.model.id} are not known: no verdict. Give a budget with --kv-memory."
        return Note(code="weights-unknown", message=message)

    def model_weights(self) -> ModelWeights | None:
        weighed, model, weights = self.weighed, self.model, self.setup.weights
        if weighed is None:
            return None
        from hwcalc.engines.llamacpp.tensors import grouped
        from hwcalc.engines.llamacpp.weights import other_sizes

        mtp = self.context.load_mtp
        groups = model.once(("llamacpp groups", weights, mtp), lambda: grouped(self.weight_groups or (), mtp=mtp))
        if model.gguf is not None and model.gguf.tensors and weights is None:
            return ModelWeights(
                bytes=weighed.total, definition=Definition.EXACT, source="tensors of the GGUF file", groups=groups
            )
        # A file of this format does not exist yet, or is not at hand.
        return ModelWeights(
            bytes=weighed.total,
            definition=model.definition(Definition.ENGINE),
            source=f"tensors that llama.cpp's converter and quantiser write for {weights or model.dtype or 'as published'}",
            groups=groups,
            other_bytes=other_sizes(model, weights, mtp=mtp),
        )

    # --- the devices ------------------------------------------------------------------------------------------------------

    @property
    def gpu(self) -> Gpu | None:
        """The accelerator, or the machine without one."""
        return self.setup.hardware.gpu

    @property
    def gpus(self) -> int:
        """The GPUs that layers can lie on; 0 for a machine without any."""
        return 0 if self.gpu is not None and self.gpu.is_host else self.setup.gpus

    @cached_property
    def options(self) -> PlaceOptions:
        """The options on where layers lie. Raises :class:`~hwcalc.errors.UsageError` for options that contradict the hardware."""
        return checked_options(self.setup, self.engine.label, fits_itself=self.context.server)

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """The end of the share of each GPU in the layers, from 0 to 1; an unused GPU ends where it starts."""
        if self.options.split_mode == "none":
            return tuple(float(number >= self.options.main_gpu) for number in range(self.gpus))
        return splits(self.options.tensor_split, self.gpus)

    @cached_property
    def whole_runs(self) -> Runs:
        """The runs of layers on the GPUs: as many as the options say, or all, without the experts that options keep on the host."""
        options, blocks = self.options, self.hparams.n_layer_all
        layers = options.n_gpu_layers
        runs = divided(blocks, blocks + 1 if layers is None or layers < 0 else layers, self.ends)
        hosted = blocks if options.cpu_moe else min(blocks, options.n_cpu_moe)
        if not hosted:
            return runs
        gpus = (Run(start, end, start, max(start, min(end, hosted))) for start, end, *_ in runs.gpus)
        return runs._replace(gpus=tuple(gpus))

    @property
    def hosted_runs(self) -> Runs:
        """The runs with all layers on the host."""
        return divided(self.hparams.n_layer_all, 0, self.ends)

    @cached_property
    def rooms(self) -> Mapping[str, int | None]:
        """Bytes of a GPU that may be used at each end of what programs see; ``None`` if its memory is not known."""
        return {end: room_of(self.setup.hardware, self.options, end) for end in ENDS}

    @cached_property
    def host_rooms(self) -> Mapping[str, int]:
        """Bytes of the host's memory that the model may take at each end, with those of GPUs in the same memory."""
        return {end: host_room(self.setup, self.options, end) for end in ENDS}

    @property
    def shares_memory(self) -> bool:
        """Whether GPU and host have the same memory."""
        return self.gpu is not None and self.gpu.shares_host_memory

    @cached_property
    def fits_layers(self) -> bool:
        """Whether llama.cpp leaves layers to the host by itself where the GPUs are too small."""
        asked = self.options.n_gpu_layers is not None or self.setup.hardware.kv_memory is not None
        return not asked and self.gpus > 0 and self.weighed is not None and self.rooms["low"] is not None

    @property
    def helped(self) -> bool:
        """Whether a GPU copies weights that lie on the host and multiplies large batches with them (``offload_op`` of a backend).

        A machine with one memory has no need of it.
        """
        return self.gpus > 0 and self.gpu is not None and not self.gpu.shares_host_memory

    @cached_property
    def copies_of_inputs(self) -> int:
        """The number of copies of the inputs of a pass, if GPUs hold all layers."""
        return copies_of_inputs(self)

    def moments(self, settings: Settings) -> ModelMoments:
        """The moments of a pass in contexts with such settings."""
        sixteen_bit = self.gpu is None or self.gpu.vendor.lower() in ("nvidia", "amd")
        return ModelMoments(self.hparams, settings, sixteen_bit=sixteen_bit, once=self.model.once)

    @cached_property
    def process(self) -> BudgetPart | None:
        """The memory of a GPU that the process takes outside the buffers; ``None`` without a GPU."""
        return None if self.gpu is None else process(self.gpu)

    def process_parts(self, device: int) -> tuple[BudgetPart, ...]:
        """The terms of a device that are neither weights, cache nor buffers."""
        if device >= 0:
            return () if self.process is None else (self.process,)
        return () if self.gpus else self._repacked

    @cached_property
    def _repacked(self) -> tuple[BudgetPart, ...]:
        return repacked_output(self)

    @cached_property
    def repacked_note(self) -> tuple[Note, ...]:
        """The note on weights that are laid out anew for the processor."""
        return repacked_note(self)

    @property
    def knows_devices(self) -> bool:
        """Whether memory and weights of each device are known."""
        return self.gpu is not None and self.weighed is not None

    @property
    def on_one_device(self) -> bool:
        """Whether a single device holds everything."""
        return not self.gpus or (self.gpus == 1 and self.gpu is None)

    @cached_property
    def form(self) -> MemoryForm | None:
        """The memory at every length and for every number of sequences; ``None`` if options fix the context, or memory is not known."""
        from hwcalc.engines.llamacpp.form import form_of

        return form_of(self)


class LlamacppOccupancy(GeneralOccupancy):
    """What llama.cpp holds under a load: a context with its settings, and its :attr:`layout`."""

    deployment: LlamacppDeployment

    @property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return self.deployment.hparams

    @property
    def plain_stack(self) -> Stack:
        return self.deployment.plain_stack

    def _settings_with(self, cells: int | None) -> Settings:
        """The settings for the planned sequences with so many cells together; ``None`` is as the options say, or a cell for each token."""
        deployment, request = self.deployment, self.request
        context, tokens = deployment.context, deployment.slot_tokens(request.seq)
        slots = context.slots(request.replica_batch)
        if cells is None:
            cells = tokens * request.replica_batch if context.n_ctx is None else context.n_ctx
        batch = deployment.chosen_batch(tokens, request.batch)
        return context.settings(self.hparams, cells or self.hparams.n_ctx_train, slots, batch)

    @cached_property
    def plain_settings(self) -> Settings:
        """The settings with every default filled in, if nothing is dropped."""
        if not self.together.unlike or self.deployment.context.n_ctx is not None:
            return self._settings_with(None)
        # One cell of a buffer that all sequences use can belong to several of them.
        return self._settings_with(sum(run.positions for run in self.replica.together.runs(Full())))

    @cached_property
    def settings(self) -> Settings:
        """The settings with every default filled in. Under a policy a context has fewer cells, unless the user says how many."""
        plain = self.plain_settings
        if self.evicted is None or not self.evicted.most or self.deployment.context.n_ctx is not None:
            return plain
        from hwcalc.engines.llamacpp.policies import context_tokens, cut_settings

        shifted = self.unshifted is None
        tokens = context_tokens(self, self.evicted, plain, shifted=shifted)
        return cut_settings(self._settings_with(tokens), plain, shifted=shifted)

    @cached_property
    def layout(self) -> Layout:
        """What each device holds under the load."""
        deployment, evicted = self.deployment, self.evicted
        if evicted is None:
            return deployment.layout(self.settings)
        from hwcalc.engines.policies import policy_part

        return Layout(
            deployment,
            self.settings,
            layers=deployment.layers_under(None if self.uncut is self else frozenset(evicted.most)),
            uncut=self.uncut.settings,
            scored=lambda layers: policy_part(self, layers),
        )

    @cached_property
    def stored_bytes(self) -> int:
        return self.layout.total_bytes

    def fullest_bytes(self) -> int:
        return self.layout.needed_bytes

    def holding(self, counts: Mapping[int, int]) -> Self:
        """The same occupancy: a context has all its cells from the start, whatever tokens it keeps."""
        return self

    @property
    def cuts_prompts(self) -> bool:
        """Whether a prompt that is longer than the context is cut."""
        return False

    def shift_words(self, cells: int, sinks: int) -> tuple[str, tuple[str, ...]]:
        """The text and the flags that start a context with ``cells`` cells a sequence which keeps the first ``sinks`` tokens."""
        flags = ("--context-shift", "--keep", f"{sinks}")
        return f"-c {cells * self.request.replica_batch} {' '.join(flags)}", flags

    @cached_property
    def unshifted(self) -> str | None:
        """Why context shift does not do what the policy of the request does; ``None`` if it does."""
        from hwcalc.engines.llamacpp.policies import shifts

        asked = self.request.policy
        assert asked is not None
        prompt = self.request.prompt_tokens
        return shifts(asked.chosen, prompt, self.hparams, self.plain_settings, cuts_prompts=self.cuts_prompts)

    @cached_property
    def uncut(self) -> Self:
        """The occupancy for layers on which the policy does not act: without the policy, if context shift carries it out."""
        kept = self.evicted is None or self.unshifted is None
        return self if kept else self.without_policy()

    def choose_dtypes(self) -> Noted[Dtypes]:
        self.settings  # noqa: B018 - refuses more sequences than a context may have
        return self.deployment.choose_dtypes()

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        return self.deployment.weight_parts()

    def check(self) -> None:
        if self.request.sharing.beams > 1:
            raise UnsupportedError("llama.cpp has no beam search.", hint="Leave out --beams, or use: --samples")
        check_weights(self.request.weights)
        check_context(self)
        self.deployment.options  # noqa: B018 - refuses what cannot be
        if self.request.weights is None and self.model.gguf is None and self.request.hardware.gpu is not None:
            self.tell(Note(code="default-weights", message=_AS_PUBLISHED))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        settings = self.settings if kind.kept is not None else self.uncut.settings
        return RULES[type(kind).__name__](kind, CacheContext(settings, self.hparams, self.batch))

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        return ngram_state(CacheContext(self.settings, self.hparams, self.batch))

    def most_sequences(self) -> tuple[int, str] | None:
        request, one = self.request, self.settings
        limits = [(one.n_seq_max if "n_seq_max" in request.options else MAX_SEQUENCES, "n_seq_max")]
        if "n_ctx" in request.options:
            limits.append((max(request.replica_batch, one.n_ctx_asked // request.seq), "n_ctx"))
        most, name = min(limits)
        return request.parallel.dp * most, name

    def most_tokens(self) -> int | None:
        """The most tokens of a sequence with ``n_ctx``, where the length does not depend on the memory; else ``None``."""
        return None if self.deployment.context.n_ctx is None else self.settings.n_ctx_seq

    def curve(self) -> Curve | None:
        from hwcalc.engines.llamacpp.form import curve_of, is_drawn_from

        return curve_of(self.deployment) if is_drawn_from(self.request) else None

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.llamacpp.form import is_drawn_from

        if not is_drawn_from(self.request):
            return None
        if self.request.hardware.kv_memory is None:
            return self.deployment.form
        from hwcalc.engines.general_form import form_with

        return form_with(self)

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The pool: the cells of the context, which do not follow from the budget."""
        needed = self.needed_bytes
        one = self.settings
        return Noted(
            PoolInfo(
                budget_bytes=budget_bytes,
                tokens=one.n_ctx,
                bytes_per_token=None,
                blocks=None,
                block_size=None,
                bytes_per_block=None,
                blocks_per_request=None,
                max_concurrency=None,
                max_requests=None,
                max_seq=one.n_ctx_seq if self.evicted is None else max(self.tokens, one.n_ctx_seq),
                swa_tokens=one.n_stream * one.cells_swa if any(self.hparams.is_swa) else None,
                state_slots=None,
                needed_bytes=needed,
                fits=needed <= budget_bytes,
                message=None,
                requires=(),
                definition=Definition.ENGINE,
            )
        )

    def holds(self, budget_bytes: int) -> bool:
        """Whether the context fits into the budget, which has no blocks to fill."""
        return self.needed_bytes <= budget_bytes

    def scored_at_once(self) -> tuple[int, int]:
        """The number of prompts in one batch of ``n_ubatch``, and the number of rows of scores.

        In one buffer for all sequences, each token has scores of the cells of all of them.
        """
        settings, batch = self.settings, self.request.replica_batch
        prompt = max(1, self.request.prompt_tokens - self.ahead)
        rows = min(settings.n_ubatch, batch * prompt) * (batch if settings.kv_unified else 1)
        return min(batch, 1 + (settings.n_ubatch - 1) // prompt), rows

    def prefill_bytes(self, stage: int) -> int:
        """Bytes of the cache after the prompt: those of all cells, which a context has from the start."""
        return self.needed_bytes

    def support_of_sharing(self) -> Support:
        from hwcalc.engines.llamacpp.policies import sharing_support

        return sharing_support(self)

    def policy_support(self, chosen: Chosen) -> Support:
        from hwcalc.engines.llamacpp.policies import support

        return support(self, chosen, self.unshifted, self.shift_words)

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        """The settings of the context by the names of llama.cpp's log."""
        return self.settings.named

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.llamacpp.savings import savings

        return savings(self, short_bytes)

    def own_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a change in llama.cpp's options: length and number of sequences make the context of all slots."""
        if not settings.keys() & {"seq", "batch"}:
            return settings
        seq, batch = settings.get("seq", self.tokens), settings.get("batch", self.batch)
        others = {name: value for name, value in settings.items() if name not in ("seq", "batch")}
        return {"n_ctx": seq * batch, **({"n_seq_max": batch} if "batch" in settings else {}), **others}

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The cache of the blocks on a GPU; without one named, the whole cache is on one device."""
        from hwcalc.engines.stored import allocations_of

        if self.deployment.options.kv_on_host:
            return ()
        blocks = self.layout.assignment.blocks
        numbers = (number for number, device in enumerate(blocks) if device == stage)
        return allocations_of(self, numbers, extras=bool(blocks) and blocks[-1] == stage)

    def placement(self) -> Placement | None:
        return self.layout.placement if self.deployment.knows_devices else None

    def plan_budget(self) -> Noted[Budget | None]:
        deployment = self.deployment
        if deployment.weighed is None:
            return Noted(None, (deployment.unknown_weights,))
        placement = self.layout.placement
        parts = (weights_part(placement), *placement.devices[placement.fullest].parts)
        budget = budget_beside(self.setup.hardware, deployment.options, parts)
        return Noted(budget.value, (*budget.notes, *_on_host(self), *deployment.repacked_note))

    def reads(self) -> Noted[tuple[DeviceReads, ...]]:
        from hwcalc.engines.llamacpp.reads import reads_of

        return reads_of(self)

    def lacking(self, end: str) -> str | None:
        if not self.deployment.knows_devices or not self.deployment.gpus or self.request.hardware.kv_memory is not None:
            return None
        room, layout = self.deployment.rooms[end], self.layout
        others = [gpu for gpu in layout.main if gpu != layout.fullest]
        if room is not None and not layout.hold(others, room, end):
            return "cache"
        return None if layout.host_holds(end) else "host memory"

    def entire(self) -> Self:
        # Without a GPU it is asked for hardware that is still to be found.
        if self.request.hardware.gpu is not None and (not self.deployment.gpus or self.layout.assignment.everything):
            return self
        if self.deployment.options.n_gpu_layers is not None:
            return self
        entire: Any = self.engine.open(self.model, self.request.changed(options={**self.setup.options, "n_gpu_layers": "all"}))
        return cast("Self", entire)

    def pinned(self) -> Self:
        deployment = self.deployment
        if deployment.pinned is not None or deployment.gpu is None or deployment.options.n_gpu_layers is not None:
            return self
        return self._pinned

    @cached_property
    def _pinned(self) -> Self:
        return type(self)(self.deployment.pinned_at(self.layout.runs), self.load)

    def fitting_length(self) -> Noted[int | None]:
        """The longest context, in steps of 256 tokens, with which everything surely fits on the GPUs (common/fit.cpp, step 2)."""
        options, hardware = self.deployment.options, self.request.hardware
        if hardware.kv_memory is not None or self.deployment.weighed is None or self.deployment.context.n_ctx is not None:
            return Noted(None)
        if not self.deployment.context.server or _surely_fits(self.entire()):
            return Noted(None)
        shortest, longest = min(options.shortest, self.tokens), self.tokens
        entire = self.entire()
        low, high = shortest // CELLS, longest // CELLS
        while high - low > 1:
            middle = (low + high) // 2
            if _surely_fits(entire.sized(seq=middle * CELLS)):
                low = middle
            else:
                high = middle
        tokens = max(shortest, low * CELLS)
        if tokens >= self.tokens:
            return Noted(None)
        how = (
            ("until all layers fit on the GPU" if self.deployment.gpus else "until everything fits")
            if tokens > shortest
            else f"to {shortest:,} before it leaves layers to the host"
        )
        message = (
            f"Planned for {tokens:,} of the model's {self.tokens:,} tokens: llama.cpp shortens a context that is not asked for, {how}. "
            "Set it with --seq."
        )
        return Noted(tokens, (Note(code="shorter-context", message=message),))


def _surely_fits(occupancy: LlamacppOccupancy) -> bool:
    """Whether every GPU holds its part at the high end of the estimates."""
    layout, room = occupancy.layout, occupancy.deployment.rooms["low"]
    return occupancy.deployment.weighed is not None and room is not None and layout.hold(layout.main, room, "low")


def _on_host(occupancy: LlamacppOccupancy) -> tuple[Note, ...]:
    """A note where nobody can say that the host has the memory that is needed of it."""
    deployment = occupancy.deployment
    if deployment.gpu is None or deployment.shares_memory or deployment.options.host_bytes is not None:
        return ()
    needed = occupancy.layout.needed_on(ON_HOST, "high")
    if needed <= deployment.host_rooms["low"]:
        return ()
    message = (
        f"{human_bytes(needed)} must be free in host memory, and kvplan does not know how much there is. "
        "Say it with --engine-option host_memory=64GiB."
    )
    return (Note(code="host-memory-unknown", message=message),)


@lru_cache(maxsize=16)
def _default_dtype(kv: str) -> Note:
    return Note(code="default-dtype", message=f"KV dtype {kv}: llama.cpp's default. Set it with --dtype.")
