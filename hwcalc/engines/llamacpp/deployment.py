"""A request that llama.cpp has opened, with the hyperparameters of the model and the settings of its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from hwcalc.engines.budget import Section
from hwcalc.engines.costs import exact
from hwcalc.engines.devices import ModelWeights, Placement
from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.llamacpp.assignment import PINNED, weights_on
from hwcalc.engines.llamacpp.place_options import PlaceOptions, checked_options
from hwcalc.engines.llamacpp.refusals import check_context, check_weights
from hwcalc.engines.llamacpp.rules import RULES, ngram_state
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES, Settings, dtypes_of, read_settings, settings_at
from hwcalc.engines.llamacpp.weighing import weighed_of
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_auto
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.stored import Dtypes, StoredTensor, bytes_of
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import Full, LayerKind, Stack
from hwcalc.model import Definition, Note
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.parsers.gguf.parse import cached_layers
from hwcalc.quantization.planned import format_name
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.devices import DeviceReads
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.engines.policies import Support
    from hwcalc.engines.saving import Saving
    from hwcalc.engines.setup import Request
    from hwcalc.policies.base import Chosen


_AS_PUBLISHED: Final = "Planned are weights as the checkpoint has them. Most run a smaller file: --weights q4_k_m, or auto."
T = TypeVar("T")


class LlamacppOccupancy(GeneralOccupancy):
    """An opened request with the values that the rules of llama.cpp use again and again."""

    @cached_property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return hparams_of(self.model)

    def started(self) -> Request:
        """The request as the server is started."""
        return self.request

    @cached_property
    def plain_settings(self) -> Settings:
        """The settings with every default filled in, if nothing is dropped."""
        started = self.started()
        if not self.together.unlike or "n_ctx" in started.options:
            return read_settings(started, self.hparams)
        # One cell of a buffer that all sequences use can belong to several of them.
        cells = sum(run.positions for run in self.replica.together.runs(Full()))
        return read_settings(started.changed(options={**started.options, "n_ctx": str(cells)}), self.hparams)

    @cached_property
    def settings(self) -> Settings:
        """The settings with every default filled in. Under a policy a context has fewer cells, unless the user says how many."""
        plain = self.plain_settings
        if self.evicted is None or not self.evicted.most or "n_ctx" in self.request.options:
            return plain
        from hwcalc.engines.llamacpp.evicting import context_tokens, cut_settings

        shifted, request = self.unshifted is None, self.started()
        tokens = context_tokens(self, self.evicted, plain, shifted=shifted)
        made = read_settings(request.changed(options={**request.options, "n_ctx": str(tokens)}), self.hparams)
        return cut_settings(made, plain, shifted=shifted)

    @property
    def most_slots(self) -> int:
        """How many sequences a context may have."""
        return MAX_SEQUENCES

    def settings_at(self, tokens: int, sequences: int) -> Settings:
        """The settings at another length and number of sequences, integers or arrays, where no option fixes the context."""
        return settings_at(self.started(), self.hparams, tokens, sequences)

    def holding(self, counts: Mapping[int, int]) -> LlamacppOccupancy:
        """The same: cells are there from the start."""
        return self

    @property
    def cuts_prompts(self) -> bool:
        """Whether a prompt that is longer than the context is cut."""
        return False

    def shift_words(self, cells: int, sinks: int) -> tuple[str, tuple[str, ...]]:
        """How a context of so many cells a sequence is asked for that keeps the first ``sinks`` tokens, and its flags."""
        flags = ("--context-shift", "--keep", f"{sinks}")
        return f"-c {cells * self.request.replica_batch} {' '.join(flags)}", flags

    @cached_property
    def unshifted(self) -> str | None:
        """Why context shift does not do what the policy of the request does; ``None`` if it does."""
        from hwcalc.engines.llamacpp.evicting import shifts

        asked = self.request.policy
        assert asked is not None
        prompt = self.request.prompt_tokens
        return shifts(asked.chosen, prompt, self.hparams, self.plain_settings, cuts_prompts=self.cuts_prompts)

    @cached_property
    def uncut(self) -> LlamacppOccupancy:
        """The request for layers that a policy leaves alone."""
        kept = self.evicted is None or self.unshifted is None
        return self if kept else self.without_policy()

    @cached_property
    def plain_stack(self) -> Stack:
        """What llama.cpp keeps for each block of the file in the context that is planned."""
        read, drafts = self.hparams, self.plain_settings.drafts
        made: Stack = self.model.once(("llamacpp layers", drafts), lambda: Stack(cached_layers(read, drafts=drafts)))
        return made

    @cached_property
    def place_options(self) -> PlaceOptions:
        """The options that say where layers lie."""
        fits_itself = self.settings.server
        make = partial(checked_options, self.request, self.engine.label, fits_itself=fits_itself)
        options: PlaceOptions = self.shared("place options", make)
        return options

    @property
    def gpus(self) -> int:
        """The GPUs that layers can lie on; 0 for a machine without any."""
        gpu = self.request.hardware.gpu
        return 0 if gpu is not None and gpu.is_host else self.request.gpus

    @cached_property
    def weight_tensors(self) -> tuple[WeightTensor, ...] | None:
        """The tensors of the planned file; ``None`` if they are not known."""
        from hwcalc.engines.llamacpp.groups import weight_tensors

        tensors: tuple[WeightTensor, ...] | None = self.shared("weight tensors", lambda: weight_tensors(self))
        return tensors

    @cached_property
    def weight_groups(self) -> tuple[WeightGroup, ...] | None:
        """The same tensors, alike ones together."""
        from hwcalc.engines.llamacpp.groups import weight_groups

        return weight_groups(self.model, format_name(self.request.weights))

    @cached_property
    def largest_tensors(self) -> tuple[tuple[int, int], ...]:
        """Bytes of the largest tensor of each block: among its experts, and among all else. Empty if they are not known."""
        largest: tuple[tuple[int, int], ...] = self.model.once(("llamacpp largest", self.request.weights), self._largest_tensors)
        return largest

    def _largest_tensors(self) -> tuple[tuple[int, int], ...]:
        most = [[0, 0] for _ in range(self.hparams.n_layer_all)]
        for group in self.weight_groups or ():
            tensor = group.first
            for layer in () if tensor.tower else group.blocks:
                if 0 <= layer < len(most):
                    most[layer][not tensor.expert] = max(most[layer][not tensor.expert], tensor.bytes)
        return tuple((experts, other) for experts, other in most)

    @cached_property
    def kind_bytes(self) -> dict[LayerKind, int]:
        """Bytes of cache and states of one layer of each kind."""
        return {kind: bytes_of(tensors) for kind, tensors in self.kind_tensors.items()}

    def kept(self, key: str, make: Callable[[], T]) -> T:
        """Call ``make`` once for this request alone, and return the result."""
        if key not in self._answers:
            self._answers[key] = make()
        answer: T = self._answers[key]
        return answer

    @cached_property
    def _answers(self) -> dict[str, Any]:
        return {}

    def choose_dtypes(self) -> Noted[Dtypes]:
        one = self.settings
        found = dtypes_of(one.type_k, one.type_v)
        named = not is_auto(self.request.dtype) or {"type_k", "type_v"} & self.request.options.keys()
        return Noted(found, () if named else (_default_dtype(found.kv),))

    def check(self) -> None:
        if self.request.sharing.beams > 1:
            raise UnsupportedError("llama.cpp has no beam search.", hint="Leave out --beams, or use: --samples")
        check_weights(self.request.weights)
        check_context(self)
        self.place_options  # noqa: B018 - refuses what cannot be
        if self.request.weights is None and self.model.gguf is None and self.request.hardware.gpu is not None:
            self.tell(Note(code="default-weights", message=_AS_PUBLISHED))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return RULES[type(kind).__name__](kind, self if kind.kept is not None else self.uncut)

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        return ngram_state(self)

    def most_sequences(self) -> tuple[int, str] | None:
        request, one = self.request, self.settings
        limits = [(one.n_seq_max if "n_seq_max" in request.options else MAX_SEQUENCES, "n_seq_max")]
        if "n_ctx" in request.options:
            limits.append((max(request.replica_batch, one.n_ctx_asked // request.seq), "n_ctx"))
        most, name = min(limits)
        return request.parallel.dp * most, name

    def curve(self) -> Curve | None:
        from hwcalc.engines.llamacpp.form import curve_of

        return curve_of(self)

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.llamacpp.form import form_of

        # A family begins with the answers of the one that it was pinned from.
        form: MemoryForm | None = self.shared(("form", self.deployment.known(PINNED) is not None), lambda: form_of(self))
        return form

    def longest(self, budget_bytes: int, bound: int) -> int | None:
        """With ``n_ctx``, the length does not depend on the memory."""
        if "n_ctx" not in self.request.options:
            return None
        return min(bound, self.settings.n_ctx_seq) if self.needed_bytes <= budget_bytes else 0

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The context itself: its cells do not follow from the memory, but it must fit."""
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
        """Whether its context fits: there is no pool to be filled."""
        return self.needed_bytes <= budget_bytes

    def scored_at_once(self) -> tuple[int, int]:
        """The prompts that end in one batch of ``n_ubatch``. In one buffer for all sequences each token has scores of all their cells."""
        one, batch = self.settings, self.request.replica_batch
        prompt = max(1, self.request.prompt_tokens - self.ahead)
        rows = min(one.n_ubatch, batch * prompt) * (batch if one.kv_unified else 1)
        return min(batch, 1 + (one.n_ubatch - 1) // prompt), rows

    def prefill_bytes(self, stage: int) -> int:
        """A context has all its cells from the start."""
        return self.needed_bytes

    def pads(self) -> bool:
        from hwcalc.engines.llamacpp.sharing import is_unified

        return not is_unified(self.request)

    def support_of_sharing(self) -> Support:
        from hwcalc.engines.llamacpp.sharing import sharing_support

        return sharing_support(self)

    def policy_support(self, chosen: Chosen) -> Support:
        from hwcalc.engines.llamacpp.evicting import support

        return support(self, chosen, self.unshifted, self.shift_words)

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        """As the log of llama.cpp names them."""
        return self.settings.named

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.llamacpp.savings import savings

        return savings(self, short_bytes)

    def own_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Lengths and numbers of sequences together are the context of all slots."""
        if not settings.keys() & {"seq", "batch"}:
            return settings
        seq, batch = settings.get("seq", self.tokens), settings.get("batch", self.batch)
        others = {name: value for name, value in settings.items() if name not in ("seq", "batch")}
        return {"n_ctx": seq * batch, **({"n_seq_max": batch} if "batch" in settings else {}), **others}

    def preallocates(self) -> bool:
        return True

    def fullest_bytes(self) -> int:
        placement = self.placement()
        if placement is not None:
            return placement.devices[placement.fullest].cache_bytes
        if not self.gpus or (self.gpus == 1 and self.request.hardware.gpu is None):
            return self.stored_bytes
        from hwcalc.engines.llamacpp.placement import assignment_of, cache_on

        assignment = assignment_of(self)
        return max(cache_on(gpu, assignment, self) for gpu in range(self.request.gpus))

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The cache of the blocks on a GPU; without one named, the whole cache is on one device."""
        from hwcalc.engines.rank_allocation import allocations_of

        if self.place_options.kv_on_host:
            return ()
        from hwcalc.engines.llamacpp.placement import assignment_of

        blocks = assignment_of(self).blocks
        return allocations_of(
            self, (number for number, device in enumerate(blocks) if device == stage), extras=bool(blocks) and blocks[-1] == stage
        )

    def placement(self) -> Placement | None:
        if self.request.hardware.gpu is None:
            return None
        from hwcalc.engines.llamacpp.placement import placement_of

        return placement_of(self)

    def plan_budget(self) -> Noted[Budget | None]:
        from hwcalc.engines.llamacpp.equation import budget_of
        from hwcalc.engines.llamacpp.placement import placement_of
        from hwcalc.engines.llamacpp.repack import repacked_note

        placement = placement_of(self)
        if placement is None:
            return Noted(None, (_unknown_weights(self),))
        budget = budget_of(self, self.place_options, placement)
        return Noted(budget.value, (*budget.notes, *_on_host(self), *repacked_note(self)))

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """The tensors on the GPU with most of them, with all layers on GPUs; without a GPU on the only device there is."""
        weighed = weighed_of(self)
        if weighed is None:
            return Noted(None, (_unknown_weights(self),))
        size = weighed.total
        if self.gpus > 1 or (self.gpus and self.request.hardware.gpu is not None):
            from hwcalc.engines.llamacpp.placement import whole_assignment

            size = max(weights_on(gpu, whole_assignment(self), weighed) for gpu in range(self.request.gpus))
        return Noted((exact("weights", Section.WEIGHTS, size, "tensors of the GGUF file"),))

    def model_weights(self) -> ModelWeights | None:
        weighed, model = weighed_of(self), self.model
        if weighed is None:
            return None
        from hwcalc.engines.llamacpp.tensors import grouped
        from hwcalc.engines.llamacpp.weights import other_sizes

        mtp = self.settings.load_mtp
        groups = model.once(("llamacpp groups", self.request.weights, mtp), lambda: grouped(self.weight_groups or (), mtp=mtp))
        if model.gguf is not None and model.gguf.tensors and self.request.weights is None:
            return ModelWeights(
                bytes=weighed.total, definition=Definition.EXACT, source="tensors of the GGUF file", groups=groups
            )
        # A file of this format does not exist yet, or is not at hand.
        name = self.request.weights or model.dtype or "as published"
        return ModelWeights(
            bytes=weighed.total,
            definition=model.definition(Definition.ENGINE),
            source=f"tensors that llama.cpp's converter and quantiser write for {name}",
            groups=groups,
            other_bytes=other_sizes(model, self.request.weights, mtp=mtp),
        )

    def reads(self) -> Noted[tuple[DeviceReads, ...]]:
        from hwcalc.engines.llamacpp.reads import reads_of

        return reads_of(self)

    def lacking(self, end: str) -> str | None:
        placement = self.placement()
        if placement is None or not placement.gpus or self.request.hardware.kv_memory is not None:
            return None
        from hwcalc.engines.llamacpp.equation import OPPOSITE, host_room, room_of

        room = room_of(self.request.hardware, self.place_options, end)
        others = (share for place, share in enumerate(placement.gpus) if place != placement.fullest)
        if room is not None and any(share.needed(OPPOSITE[end]) > room for share in others):
            return "cache"
        host = host_room(self.request, self.place_options, placement.on_gpus, end)
        return "host memory" if placement.host.needed(OPPOSITE[end]) > host else None

    def entire(self) -> Self:
        from hwcalc.engines.llamacpp.placement import assignment_of

        # Without a GPU it is asked for hardware that is still to be found.
        if self.request.hardware.gpu is not None and (not self.gpus or assignment_of(self).everything):
            return self
        request = whole(self.request)
        if request is self.request:
            return self
        entire: Any = self.engine.open(self.model, request)
        return cast("Self", entire)

    def pinned(self) -> Self:
        if (
            self.deployment.known(PINNED) is not None
            or self.request.hardware.gpu is None
            or self.place_options.n_gpu_layers is not None
        ):
            return self
        from hwcalc.engines.llamacpp.placement import assignment_of

        return type(self)(self.deployment.seen_as(self.setup, **{PINNED: assignment_of(self)}), self.load)

    def fitting_length(self) -> Noted[int | None]:
        """The longest context, in steps of 256 tokens, with which everything surely fits on the GPUs (common/fit.cpp, step 2)."""
        options = self.place_options
        if self.request.hardware.kv_memory is not None or weighed_of(self) is None or "n_ctx" in self.request.options:
            return Noted(None)
        if not self.settings.server or _surely_fits(self.entire()):
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
            ("until all layers fit on the GPU" if self.gpus else "until everything fits")
            if tokens > shortest
            else f"to {shortest:,} before it leaves layers to the host"
        )
        message = (
            f"Planned for {tokens:,} of the model's {self.tokens:,} tokens: llama.cpp shortens a context that is not asked for, {how}. "
            "Set it with --seq."
        )
        return Noted(tokens, (Note(code="shorter-context", message=message),))


def _surely_fits(own: LlamacppOccupancy) -> bool:
    """Whether every GPU holds its part at the high end of the estimates."""
    from hwcalc.engines.llamacpp.equation import room_of
    from hwcalc.engines.llamacpp.placement import placement_of

    room, placement = room_of(own.request.hardware, own.place_options, "low"), placement_of(own)
    return placement is not None and room is not None and all(share.needed("high") <= room for share in placement.main)


def _on_host(opened: LlamacppOccupancy) -> tuple[Note, ...]:
    """A note where nobody can say that the host has the memory that is needed of it."""
    from hwcalc.engines.llamacpp.equation import host_room
    from hwcalc.engines.llamacpp.placement import placement_of

    placement, gpu = placement_of(opened), opened.request.hardware.gpu
    if placement is None or gpu is None or gpu.shares_host_memory or opened.place_options.host_bytes is not None:
        return ()
    needed = placement.host.needed("high")
    if needed <= host_room(opened.request, opened.place_options, placement.on_gpus, "low"):
        return ()
    message = (
        f"{human_bytes(needed)} must be free in host memory, and kvplan does not know how much there is. "
        "Say it with --engine-option host_memory=64GiB."
    )
    return (Note(code="host-memory-unknown", message=message),)


def _unknown_weights(opened: LlamacppOccupancy) -> Note:
    message = f"The tensors of {opened.model.id} are not known: no verdict. Give a budget with --kv-memory."
    return Note(code="weights-unknown", message=message)


@lru_cache(maxsize=16)
def _default_dtype(kv: str) -> Note:
    return Note(code="default-dtype", message=f"KV dtype {kv}: llama.cpp's default. Set it with --dtype.")


def whole(request: Request) -> Request:
    """The request with all layers on the GPUs, where the user leaves that to llama.cpp."""
    from hwcalc.engines.llamacpp.place_options import place_options

    if place_options(request.options, fits_itself=request.options.get("defaults") != "api").n_gpu_layers is not None:
        return request
    return request.changed(options={**request.options, "n_gpu_layers": "all"})
