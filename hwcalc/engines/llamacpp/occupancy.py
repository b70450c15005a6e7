"""What a model on llama.cpp holds under one load, and the loads that it refuses.

Refusals are those of ``llama_init_from_model`` and the constructors of its contexts and caches (src/*.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.llamacpp.builds import COPIES_SINCE, DRAFTS_SINCE, known_since
from hwcalc.engines.llamacpp.devices import LlamacppDevices
from hwcalc.engines.llamacpp.graph import most_converted
from hwcalc.engines.llamacpp.layers import ON_HOST
from hwcalc.engines.llamacpp.layout import Layout, budget_beside
from hwcalc.engines.llamacpp.rules import RULES, CacheContext, ngram_state
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES, Settings
from hwcalc.engines.llamacpp.tensors import repacked_note
from hwcalc.engines.memory import Section, exact
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.stored import StoredTensor
from hwcalc.engines.subjects import Reported, without_policy
from hwcalc.errors import ConfigError, UnsupportedError, UsageError
from hwcalc.formulas import LayerKind
from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.tensor import Full
from hwcalc.model import DEFAULT_WEIGHTS, Note, Noted
from hwcalc.parsers.gguf.hparams import Hparams
from hwcalc.quantization.ggml import KEPT_EXPERTS, MIXES
from hwcalc.quantization.planned import format_name
from hwcalc.units import MIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.llamacpp.engine import LlamacppDeployment
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.pool import Allocation
    from hwcalc.engines.stored import Support
    from hwcalc.engines.subjects import PolicyRules


def _check_build(occupancy: LlamacppOccupancy) -> None:
    """Refuse what the planned build does not know, and say what it does otherwise than builds of today."""
    deployment, read, one = occupancy.deployment, occupancy.hparams, occupancy.settings
    build, rules = deployment.build, deployment.rules
    first = known_since(read.arch, latent=read.is_mla)
    if first > build:
        raise UnsupportedError(
            f"llama.cpp b{build} does not know {read.arch}{' with latents' if read.is_mla else ''}: b{first} is the first build that does.",
            hint=f"Use: --engine llamacpp@b{first}, or a later one",
        )
    if (one.drafts or one.load_mtp) and not rules.drafts:
        message = f"llama.cpp b{build} has no multi-token prediction: b{DRAFTS_SINCE} is the first build that has."
        raise UnsupportedError(message, hint=f"Use: --engine llamacpp@b{DRAFTS_SINCE}, or a later one")
    if rules.default_layers == "none" and one.server and deployment.gpus and "n_gpu_layers" not in deployment.setup.options:
        message = f"llama.cpp b{build} leaves all layers to the host by default. Set them with --engine-option n_gpu_layers=all."
        occupancy.tell(Note(code="no-offload", message=message))
    if deployment.gpu is not None and deployment.gpus and not rules.copies_reserved and deployment.reads_sixteen_bit:
        size = 2 * one.n_stream * one.n_ctx_seq * most_converted(read, one)
        if size and one.flash_attn:
            message = (
                f"llama.cpp b{build} takes up to {human_bytes(size)} more while it runs: CUDA makes copies of a layer's keys and values in 16 bits, "
                f"which builds before b{COPIES_SINCE} do not reserve."
            )
            occupancy.tell(Note(code="not-reserved", message=message))


def _check_model(occupancy: LlamacppOccupancy) -> None:
    read = occupancy.hparams
    row = read.architecture
    if not row.runs:
        raise UnsupportedError(f"llama.cpp knows the name {read.arch}, but has no code for it.", hint="Use: --engine reference")
    if row.rotates_whole_heads and read.n_head[0] and read.n_rot != read.head_k:
        raise ConfigError(
            f"llama.cpp refuses this {read.arch} file: rope.dimension_count is {read.n_rot}, but a key has {read.head_k}."
        )
    window = row.window
    empty = window is not None and window.pattern != "attention" and not any(read.is_swa)
    if empty and read.swa_type != "none" and row.memory in ("attention", "shared"):
        raise ConfigError(f"llama.cpp refuses this {read.arch} file: it names a window, but no layer has it.")
    first = read.n_layer if read.kv_from_start is None else read.kv_from_start
    # A layer that reuses a cache must have the reach, full or with a window, of the one that it takes.
    sources = ((layer, first - (2 if read.is_swa[layer] else 1)) for layer in range(first, read.n_layer))
    if wrong := next((layer for layer, at in sources if at < 0 or read.is_swa[at] != read.is_swa[layer]), None):
        raise ConfigError(f"llama.cpp refuses this {read.arch} file: layer {wrong} shares the cache of a layer of another kind.")
    one = occupancy.settings
    named = "ctx_type=mtp" if one.drafts else "load_mtp=true" if one.load_mtp and one.server else None
    if named is not None and not (read.n_layer_nextn and row.drafts):
        what = f"llama.cpp does not run the layers for multi-token prediction of {read.arch}."
        if not read.n_layer_nextn:
            what = "this model has no layers for multi-token prediction."
        raise UnsupportedError(f"{named}: {what}", hint=f"Leave out --engine-option {named}")


_VOCABULARIES: Final = 128
"""``SPEC_VOCAB_MAX_SIZE_DIFFERENCE`` (common/speculative.cpp)."""


def _check_draft(occupancy: LlamacppOccupancy) -> None:
    draft = occupancy.deployment.drafting
    if draft is None:
        return
    if draft.weighed is None and draft.model is not occupancy.model:
        message = f"The weights of the draft {draft.model.id} are not known, and not counted."
        occupancy.tell(Note(code="draft-unknown", message=message))
    own, other = occupancy.hparams.n_vocab, draft.hparams.n_vocab
    if own and other and abs(own - other) > _VOCABULARIES:
        raise UnsupportedError(
            f"--draft {draft.model.id}: llama.cpp refuses a draft with {other:,} tokens for a model with {own:,}.",
            hint=f"Their numbers may differ by {_VOCABULARIES}: a small model of the same family, as --draft.",
        )
    one = draft.context.settings(draft.hparams, occupancy.settings.n_ctx, occupancy.settings.n_seq_max)
    _check_cache_types(one, draft.hparams)


def _check_sizes(occupancy: LlamacppOccupancy) -> None:
    one = occupancy.settings
    if not one.n_ctx_asked:
        raise UsageError("n_ctx is 0, and the file names no context length.", hint="Use: --engine-option n_ctx=4096")
    if occupancy.request.replica_batch > one.n_seq_max:
        message = f"n_seq_max {one.n_seq_max:,} is fewer than the {occupancy.request.replica_batch:,} sequences that are planned."
        raise UsageError(message, hint=f"Use: --engine-option n_seq_max={occupancy.request.replica_batch}, or a smaller --users")
    if not one.n_batch and not one.n_ubatch:
        raise UsageError("n_batch and n_ubatch cannot both be 0.", hint="Use: --engine-option n_batch=2048")
    if one.n_outputs < one.n_seq_max:
        # GGML_ASSERT of llama_context::output_reserve: one output for each sequence.
        message = f"llama.cpp stops if a batch ({one.n_outputs:,} tokens) is smaller than n_seq_max ({one.n_seq_max:,})."
        raise UsageError(message, hint=f"Use: --engine-option n_ctx={CELLS * one.n_seq_max}")


def _check_cache_types(one: Settings, read: Hparams) -> None:
    key, value = one.type_k, one.type_v
    if (read.is_mla or read.architecture.memory == "compressed") and key != value:
        raise UnsupportedError(
            f"llama.cpp keeps one latent for keys and values of this model: type_k {key.name} and type_v {value.name} must be the same.",
            hint=f"Use: --dtype {key.name}",
        )
    if value.block_elements > 1 and not one.flash_attn:
        message = f"quantized V cache ({value.name}) requires flash attention, which is off."
        raise UnsupportedError(message, hint="Use: --engine-option flash_attn=auto, or --engine-option type_v=f16")
    if not one.flash_attn:
        return
    for name, dtype, width in (("K", key, read.head_width_k), ("V", value, read.head_width_v)):
        block = dtype.block_elements
        layers = range(read.n_layer, read.n_layer_all) if one.drafts else range(read.n_layer)
        wrong = next((wide for layer in layers if (wide := width(layer)) % block), None)
        if wrong is not None:
            message = f"{name} cache type {dtype.name} with blocks of {block} does not divide heads of {wrong}."
            raise UnsupportedError(message, hint="Use: --dtype f16, or a model with wider heads")


_NO_PROJECTOR: Final = (
    "Planned is text alone. With --mmproj a projector takes its file and its buffers besides: llama-server's log says how much "
    "(estimated worst-case memory usage of mmproj), and --engine-option mmproj=SIZE counts it."
)


class LlamacppOccupancy(GeneralOccupancy):
    """What llama.cpp holds under a load: a context with its settings, and its :attr:`layout`."""

    device_class = LlamacppDevices

    deployment: LlamacppDeployment
    cuts_prompts: bool = False
    """True if a prompt that is longer than the context is cut."""

    @property
    def as_published(self) -> Note:
        """A note on a plan without a format of the weights."""
        message = "Planned are weights as the checkpoint has them. Most run a smaller file: --weights q4_k_m, or auto."
        return Note(code=DEFAULT_WEIGHTS, message=message)

    @property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return self.deployment.hparams

    def _settings_with(self, cells: int | None) -> Settings:
        """The settings for the planned sequences with so many cells together; ``None`` is as the options say, or a cell for each token."""
        deployment, request = self.deployment, self.request
        context, tokens = deployment.context, deployment.slot_tokens(request.load.seq)
        slots = context.slots(request.replica_batch)
        if cells is None:
            cells = tokens * request.replica_batch if context.n_ctx is None else context.n_ctx
        batch = deployment.chosen_batch(tokens, request.load.batch)
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
        from hwcalc.engines.llamacpp.policies import context_tokens

        shifted = self.unshifted is None
        made = self._settings_with(context_tokens(self, self.evicted, plain, shifted=shifted))
        # Layers with a window keep their number of cells, unless the context shifts.
        return made if shifted else replace(made, cells_swa=plain.cells_swa)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the devices under the load."""
        deployment, evicted = self.deployment, self.evicted
        if evicted is None:
            return Layout(deployment, self.settings)
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

    @cached_property
    def needed_bytes(self) -> int:
        return self.layout.needed_bytes

    def shift_words(self, cells: int, sinks: int) -> tuple[str, tuple[str, ...]]:
        """The text and the flags that start a context with ``cells`` cells a sequence which keeps the first ``sinks`` tokens."""
        flags = ("--context-shift", "--keep", f"{sinks}")
        return f"-c {cells * self.request.replica_batch} {' '.join(flags)}", flags

    @cached_property
    def unshifted(self) -> str | None:
        """The reason why context shift does not do what the policy of the request does; ``None`` if it does."""
        from hwcalc.engines.llamacpp.policies import unshifted

        return unshifted(self)

    @cached_property
    def uncut(self) -> Self:
        """The occupancy for layers on which the policy does not act: without the policy, if context shift carries it out."""
        kept = self.evicted is None or self.unshifted is None
        return self if kept else without_policy(self)

    def check(self) -> None:
        self.settings  # noqa: B018 - refuses more sequences than a context may have
        if self.load.sharing.beams > 1:
            raise UnsupportedError("llama.cpp has no beam search.", hint="Leave out --beams, or use: --samples")
        name = format_name(self.setup.weights)
        if name is not None and name not in FLOATS and name not in MIXES:
            nearest = {**KEPT_EXPERTS, "int8": "q8_0", "fp8": "q8_0"}.get(name, "q4_k_m")
            raise UnsupportedError(
                f"llama.cpp runs GGUF files, and llama-quantize makes none in {name}.",
                hint=f"Use: --weights {nearest}, or another mix that llama-quantize makes (kvplan dtypes lists them).",
            )
        _check_build(self)
        _check_model(self)
        _check_sizes(self)
        _check_cache_types(self.settings, self.hparams)
        _check_draft(self)
        self.deployment.options  # noqa: B018 - refuses what cannot be
        counted = self.model.counted
        if (
            counted is not None
            and counted.has_towers
            and self.setup.hardware.gpu is not None
            and "mmproj" not in self.setup.options
        ):
            self.tell(Note(code="no-projector", message=_NO_PROJECTOR))
        if self.setup.weights is None and self.model.gguf is None and self.setup.hardware.gpu is not None:
            self.tell(self.as_published)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        settings = self.settings if kind.kept is not None else self.uncut.settings
        return RULES[type(kind).__name__](kind, CacheContext(settings, self.hparams, self.batch))

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        return ngram_state(CacheContext(self.settings, self.hparams, self.batch))

    def most_sequences(self) -> tuple[int, str] | None:
        request, one = self.request, self.settings
        limits = [(one.n_seq_max if "n_seq_max" in request.setup.options else MAX_SEQUENCES, "n_seq_max")]
        if "n_ctx" in request.setup.options:
            limits.append((max(request.replica_batch, one.n_ctx_asked // request.load.seq), "n_ctx"))
        most, name = min(limits)
        return request.setup.parallel.dp * most, name

    @property
    def _follows_load(self) -> bool:
        """True if the context follows from length and number of sequences alone."""
        request, options = self.request, self.setup.options
        fixed = options.keys() & {"n_ctx", "n_seq_max", "kv_unified"}
        return request.is_plain and not fixed and options.get("defaults", "server") == "server"

    def curve(self) -> Curve | None:
        if not self._follows_load:
            return None
        from hwcalc.engines.llamacpp.form import placed_curve

        form = self.deployment.form if self.setup.hardware.kv_memory is None else None
        return placed_curve(self.deployment) if form is None else form.curve

    def form(self) -> MemoryForm | None:
        if not self._follows_load:
            return None
        if self.setup.hardware.kv_memory is None:
            return self.deployment.form
        from hwcalc.engines.general_form import form_with

        return form_with(self)

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The pool: the cells of the context, which do not follow from the budget."""
        needed = self.needed_bytes
        one = self.settings
        return Noted(
            PoolInfo(
                budget_bytes=budget_bytes,
                tokens=one.n_ctx,
                max_seq=one.slot_tokens if self.evicted is None else max(self.tokens, one.slot_tokens),
                swa_tokens=one.n_stream * one.cells_swa if any(self.hparams.is_swa) else None,
                needed_bytes=needed,
                fits=needed <= budget_bytes,
            )
        )

    @property
    def policies(self) -> PolicyRules:
        from hwcalc.engines.llamacpp.policies import LlamacppPolicies

        return LlamacppPolicies(self)

    def reported(self) -> Reported:
        """The settings by the names that llama.cpp's log has for them when a context is made."""
        from hwcalc.engines.llamacpp.command import cache_type

        names = ("n_seq_max", "n_ctx", "n_batch", "n_ubatch", "n_rs_seq", "kv_unified", "swa_full")
        one = self.settings
        attention = "auto" if one.flash_attn_asked is None else "on" if one.flash_attn_asked else "off"
        types = {"type_k": cache_type(one.type_k.name), "type_v": cache_type(one.type_v.name)}
        settings = {name: getattr(one, name) for name in names}
        return Reported({**settings, "n_ctx_seq": one.slot_tokens, "flash_attn": attention, **types})

    @cached_property
    def sharing_support(self) -> Support:
        from hwcalc.engines.llamacpp.policies import sharing_support

        return sharing_support(self)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.llamacpp.policies import savings

        return savings(self, short_bytes)

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The cache of the blocks on a GPU; without one named, the whole cache is on one device."""
        from hwcalc.engines.stored import allocations_of

        if self.deployment.options.kv_on_host:
            return ()
        blocks = self.layout.assignment.blocks
        numbers = (number for number, device in enumerate(blocks) if device == stage)
        return allocations_of(self, numbers, extras=bool(blocks) and blocks[-1] == stage)

    def _plan_budget(self) -> Noted[Budget | None]:
        deployment = self.deployment
        if deployment.weighed is None:
            return Noted(None, deployment.weight_parts().notes)
        placement = self.layout.placement
        share = placement.devices[placement.fullest]
        layers = f"layers {share.layers.text}" if share.layers else "no layer"
        experts = " without the experts of some" if placement.experts_on_host else ""
        source = f"tensors of {layers}{' and the output' if share.output else ''}{experts}"
        parts = (exact("weights", Section.WEIGHTS, share.weights_bytes, source), *share.parts)
        budget = budget_beside(self.setup.hardware, deployment.options, parts)
        repacked = () if deployment.gpus else repacked_note(deployment)
        return Noted(budget.value, (*budget.notes, *self._host_notes, *self._adapter_notes, *repacked))

    @property
    def _adapter_notes(self) -> tuple[Note, ...]:
        """A note where llama.cpp would fit layers beside adapters that it does not count (common/fit.cpp measures models and contexts)."""
        deployment = self.deployment
        if deployment.adapters is None or not deployment.fits_layers:
            return ()
        size = max(part.high for share in self.layout.placement.gpus for part in share.parts if part.name == "adapters")
        target = ceil_div(deployment.options.target_bytes + size, MIB)
        message = (
            f"llama-server's own --fit does not count adapters; with -fitt {target} it leaves room for them, as this plan does."
        )
        return (Note(code="adapters-not-fitted", message=message),)

    @property
    def _host_notes(self) -> tuple[Note, ...]:
        """A note where nobody can say that the host has the memory that is needed of it."""
        deployment = self.deployment
        if deployment.gpu is None or deployment.shares_memory or deployment.options.host_bytes is not None:
            return ()
        needed = self.layout.needed_on(ON_HOST, "high")
        if needed <= deployment.host_rooms["low"]:
            return ()
        message = (
            f"{human_bytes(needed)} must be free in host memory, and kvplan does not know how much there is. "
            "Say it: --ram 64, in GB."
        )
        return (Note(code="host-memory-unknown", message=message),)

    @cached_property
    def pinned(self) -> Self:
        """The same load, whose other lengths and batches keep every layer on the device that it has under this one."""
        return type(self)(self.deployment.pinned_at(self.layout.runs), self.load)

    @property
    def surely_fits(self) -> bool:
        """True if every GPU holds its part at the high end of the estimates."""
        layout, room = self.layout, self.deployment.rooms["low"]
        return self.deployment.weighed is not None and room is not None and layout.hold(layout.main, room, "low")
