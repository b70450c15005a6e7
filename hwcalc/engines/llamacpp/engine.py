"""llama.cpp v0.5.0 (commit 0c1e57098): what ``llama_init_from_model`` allocates for a context, and what does not depend on the load.

A context allocates all of its cells when it is made. Their number follows from ``n_ctx``, which is shared by all sequences, and from the
number of sequences; a longer conversation takes no more memory, and one that fills its cells ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from msgspec.structs import replace

from hwcalc.engines.devices import Copied, ModelWeights, check_stages
from hwcalc.engines.engine import BY_MODEL, Engine
from hwcalc.engines.facts import Command, Facts, IdleRules, RequestRules, Rest, Told, TradeOff, Turns, WeightFormats
from hwcalc.engines.forms import ENDS
from hwcalc.engines.general import GeneralDeployment, GeneralEngine
from hwcalc.engines.llamacpp.builds import VERSIONS, BuildRules, build_of, resolve, rules_of
from hwcalc.engines.llamacpp.graph import PIPELINE_COPIES
from hwcalc.engines.llamacpp.layers import ON_HOST, Layers, Run, Runs, Weighed, device_of, divided, splits, weigh
from hwcalc.engines.llamacpp.layout import Layout, host_room, rooms_of
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.rules import RULES
from hwcalc.engines.llamacpp.settings import (
    CELLS,
    MAX_SEQUENCES,
    MOST_DEVICES,
    OPTIONS,
    PLACE_OPTIONS,
    ContextOptions,
    PlaceOptions,
    dtypes_of,
    place_options,
    read_settings,
)
from hwcalc.engines.llamacpp.tensors import (
    grouped,
    loaded,
    loaded_groups,
    model_tensors,
    other_sizes,
    repacked_output,
    weight_groups,
    with_overrides,
)
from hwcalc.engines.memory import BudgetPart, Section, estimated, exact
from hwcalc.engines.options import Choices, is_auto, is_on
from hwcalc.engines.setup import Load, Request, Setup
from hwcalc.engines.stored import Dtypes
from hwcalc.engines.subjects import Traits
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import SlidingAttention, Stack
from hwcalc.formulas.arithmetic import Table
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.parsers.gguf.parse import cached_layers
from hwcalc.profiles.engines import runtime_profile
from hwcalc.profiles.links import host_link
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.forms import MemoryForm
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.engines.options import CommandInput
    from hwcalc.profiles.hardware_file import Gpu


_OF_THE_FILE: Final = frozenset({"n_gpu_layers", "n_cpu_moe", "cpu_moe", "override_tensor"})
"""Options on the tensors of a model."""
_OF_THE_MODEL: Final = _OF_THE_FILE | {"n_ctx", "type_k", "type_v", "n_rs_seq", "ctx_type", "mmproj"}
"""Options of a model that its draft does not follow, or that are said of the draft apart."""
COPIED_TOKENS: Final = 32
"""The tokens of a pass for which a GPU copies weights of the host: the least batch of ``offload_op`` (ggml-cuda.cu, ggml-vulkan.cpp)."""


class LlamacppDeployment(GeneralDeployment):
    """A model on llama.cpp with one setup: the file, the options, the devices, and where layers lie if options say so."""

    has_drawn_form: ClassVar[bool] = True
    """True if the page can draw a context that follows from length and number of sequences."""

    def __init__(self, engine: Engine, model: ModelSpec, setup: Setup, pinned: Runs | None = None) -> None:
        """``pinned`` are the layers of each device at every load, where they are kept as another load has them."""
        super().__init__(engine, model, setup)
        self.pinned = pinned

    def pinned_at(self, runs: Runs) -> Self:
        """The same deployment with its layers on the devices of ``runs``, whatever the load."""
        return type(self)(self.engine, self.model, self.setup, runs)

    # --- the context ------------------------------------------------------------------------------------------------------

    @cached_property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return hparams_of(self.model)

    @cached_property
    def build(self) -> int:
        """The number of the build."""
        return build_of(self.version)

    @cached_property
    def rules(self) -> BuildRules:
        """The rules of the build."""
        return rules_of(self.build)

    @cached_property
    def context(self) -> ContextOptions:
        """The options of the context."""
        return ContextOptions.of(self.setup, self.rules)

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        dtypes = dtypes_of(*self.context.types)
        named = not is_auto(self.setup.dtype) or {"type_k", "type_v"} & self.setup.options.keys()
        message = f"KV dtype {dtypes.kv}: llama.cpp's default. Set it with --dtype."
        return Noted(dtypes, () if named else (Note(code="default-dtype", message=message),))

    @cached_property
    def traits(self) -> Traits:
        return Traits(build=self.build, preallocates=True, pads=not self.context.kv_unified)

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

    def layout_at(self, tokens: int, sequences: int) -> Layout:
        """The layout of ``sequences`` sequences of ``tokens`` tokens, integers or arrays, where no option fixes the context."""
        tokens = self.slot_tokens(tokens)
        batch = self.chosen_batch(tokens, sequences)
        return Layout(self, self.context.settings(self.hparams, tokens * sequences, sequences, batch))

    @cached_property
    def drafting(self) -> LlamacppDeployment | None:
        """The context that drafts beside the main one, of the model's own layers or of a second model; ``None`` without one.

        llama-server makes it of the same options, but for its formats and for what is said of layers and tensors of the model
        (``common_base_params_to_speculative`` of common/speculative.cpp).
        """
        setup, draft = self.setup, self.setup.draft
        own = self.context.load_mtp and self.context.server
        if self.context.drafts or (draft is None and not own):
            return None
        options = {name: value for name, value in setup.options.items() if name not in _OF_THE_MODEL}
        for name, other in (("type_k", "type_k_draft"), ("type_v", "type_v_draft")):
            options |= {name: setup.options[other]} if draft is not None and other in setup.options else {}
        if draft is None:
            return type(self)(self.engine, self.model, replace(setup, options={**options, "ctx_type": "mtp", **self._loaded}))
        options.pop("load_mtp", None)
        options["n_gpu_layers"] = "all"
        return type(self)(self.engine, draft, replace(setup, options=options, draft=None, lora=None, weights=None, dtype=None))

    @cached_property
    def adapters(self) -> tuple[Table, Table, Table] | None:
        """Tables by number of first blocks: the bytes of their adapters at each end of the range; ``None`` without adapters.

        An adapter's tensors lie on the device of the tensor that they change (``llama_adapter_lora_init_impl`` of src/llama-adapter.cpp).
        """
        if self.setup.lora is None:
            return None
        from hwcalc.engines.weights_beside import lora_bytes_by_layer

        found = lora_bytes_by_layer(self.model, self.setup.lora, self.hparams.n_layer_all)
        if found is None:
            message = f"--lora: the layers of {self.model.id} are not known, so that its adapters cannot be planned."
            raise UnsupportedError(message, hint="Leave out --lora.")
        low, expected, high = (Table(accumulate(each, initial=0)) for each in found)
        return low, expected, high

    @property
    def _loaded(self) -> dict[str, str]:
        """The options that say which tensors are loaded, and where."""
        return {name: value for name, value in self.setup.options.items() if name in _OF_THE_FILE}

    @cached_property
    def plain_stack(self) -> Stack:
        """The layers with the kinds of caches that llama.cpp keeps for each block of the file."""
        read, drafts = self.hparams, self.context.drafts
        stack: Stack = self.model.once(("llamacpp layers", drafts), lambda: Stack(cached_layers(read, drafts=drafts)))
        return stack

    # --- the file ---------------------------------------------------------------------------------------------------------

    @cached_property
    def weight_tensors(self) -> tuple[WeightTensor, ...] | None:
        """The tensors of the planned file; ``None`` if they are not known."""
        return model_tensors(self.model, format_name(self.setup.weights))

    @cached_property
    def weight_groups(self) -> tuple[WeightGroup, ...] | None:
        """The tensors of the planned file in groups that differ in their layer alone; ``None`` if they are not known."""
        return weight_groups(self.model, format_name(self.setup.weights))

    @cached_property
    def weighed(self) -> Weighed | None:
        """The bytes of the tensors by the devices on which they may lie; ``None`` if they are not known."""
        if self.weight_groups is None:
            return None
        mtp, overrides, blocks = self.context.load_mtp, self.options.overrides, self.hparams.n_layer_all

        def make() -> Weighed:
            if not overrides:
                groups = loaded_groups(self.weight_groups or (), mtp=mtp)
                return weigh(((group.first, group.blocks) for group in groups), blocks)
            # The user may have named any tensor of a group.
            tensors = with_overrides(loaded(self.weight_tensors or (), mtp=mtp), overrides)
            return weigh(((tensor, (tensor.layer,)) for tensor in tensors), blocks)

        weighed: Weighed = self.model.once(("llamacpp weighed", self.setup.weights, mtp, overrides), make)
        return weighed

    @cached_property
    def layers(self) -> Layers:
        """The layers with the bytes of their weights and caches, on whatever device they lie."""
        return self.layers_under(None)

    def layers_under(self, acted_on: frozenset[int] | None) -> Layers:
        """The layers under a policy that drops tokens in these blocks; ``None`` is all blocks, or no policy."""
        context, single = self.context, self.context.settings(self.hparams, CELLS, 1)
        cache = (
            context.drafts,
            single.type_k,
            single.type_v,
            single.flash_attn,
            single.n_rs_seq,
            self.rules.latent_values,
            acted_on,
        )
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
            message = f"The tensors of {self.model.id} are not known: no verdict. Give a budget with --kv-memory."
            return Noted(None, (Note(code="weights-unknown", message=message),))
        size = weighed.total
        if self.gpus > 1 or (self.gpus and self.gpu is not None):
            size = max(weighed.on_gpu(self.whole_runs, gpu) for gpu in range(self.gpus))
        return Noted((exact("weights", Section.WEIGHTS, size, "tensors of the GGUF file"),))

    def model_weights(self) -> ModelWeights | None:
        weighed, model, weights = self.weighed, self.model, self.setup.weights
        if weighed is None:
            return None
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
        setup, gpus, gpu = self.setup, self.setup.gpus, self.gpu
        options = place_options(setup.options, default=self.rules.default_layers if self.context.server else "all")
        check_stages(self.engine.label, setup.parallel)
        devices = [(device_of(override.buffer), override.buffer) for override in options.overrides]
        if gpu is not None and gpu.is_host:
            # Numbers of layers have no effect where there is no GPU.
            named = next((buffer for device, buffer in devices if device >= 0), None)
            if named is not None:
                raise UsageError(
                    f"engine option override_tensor names {brief(named, 40)}: {gpu.id} has no GPU.", hint="Leave it out."
                )
            return options
        if gpus > MOST_DEVICES:
            raise UsageError(f"llama.cpp uses at most {MOST_DEVICES} GPUs, not {gpus:,}.", hint=f"Use: --gpus {MOST_DEVICES}")
        if len(options.tensor_split) > gpus:
            count = len(options.tensor_split)
            raise UsageError(f"engine option tensor_split has {count} shares for {gpus} GPUs.", hint=f"Add: --gpus {count}")
        if options.main_gpu >= gpus:
            raise UsageError(f"engine option main_gpu={options.main_gpu}: the GPUs are 0 to {gpus - 1}.", hint="Leave it out.")
        over = next((device for device, _ in devices if device >= gpus), None)
        if over is not None:
            raise UsageError(f"engine option override_tensor names GPU {over}: the GPUs are 0 to {gpus - 1}.", hint="Add --gpus.")
        return options

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

    @cached_property
    def rooms(self) -> Mapping[str, int | None]:
        """Bytes of a GPU that may be used at each end of what programs see; ``None`` if its memory is not known."""
        return rooms_of(self.setup.hardware, self.options)

    @cached_property
    def host_rooms(self) -> Mapping[str, int]:
        """Bytes of the host's memory that the model may take at each end, with those of GPUs in the same memory."""
        return {end: host_room(self.setup, self.options, end) for end in ENDS}

    @property
    def shares_memory(self) -> bool:
        """True if GPU and host have the same memory."""
        return self.gpu is not None and self.gpu.shares_host_memory

    @cached_property
    def fits_layers(self) -> bool:
        """True if llama.cpp leaves layers to the host by itself where the GPUs are too small."""
        asked = self.options.n_gpu_layers is not None or self.setup.hardware.kv_memory is not None
        return not asked and self.gpus > 0 and self.weighed is not None and self.rooms["low"] is not None

    @property
    def helped(self) -> bool:
        """True if a GPU copies weights that lie on the host and multiplies large batches with them (``offload_op`` of a backend).

        A machine with one memory has no need of it.
        """
        return self.gpus > 0 and self.gpu is not None and not self.gpu.shares_host_memory

    @property
    def copied(self) -> Copied | None:
        """The copies of a pass to the first GPU, which is asked before others (ggml-backend.cpp); ``None`` if there are none or its link is not known."""
        link = host_link(self.gpu) if self.helped else None
        return None if link is None else Copied(tokens=COPIED_TOKENS, gbps=link.gbps)

    @property
    def reads_sixteen_bit(self) -> bool:
        """True if flash attention reads keys and values as 16-bit floats, and makes copies of others (ggml-cuda/fattn.cu)."""
        return self.gpu is None or self.gpu.vendor.lower() in ("nvidia", "amd")

    @cached_property
    def copies_of_inputs(self) -> int:
        """The number of copies of the inputs of a pass, if GPUs hold all layers: several GPUs work on several batches (src/llama-context.cpp).

        A GPU without a share of the layers counts, and so does an override that finds no tensor.
        """
        options = self.options
        overridden = bool(options.overrides) or options.cpu_moe or options.n_cpu_moe > 0
        plain = options.split_mode == "layer" and not overridden and not options.kv_on_host
        return PIPELINE_COPIES if self.setup.gpus > 1 and plain else 1

    def process_parts(self, device: int) -> tuple[BudgetPart, ...]:
        """The terms of a device that are neither weights, cache nor buffers. A projector lies on the first GPU."""
        own = self._process if device >= 0 else () if self.gpus else self._repacked
        return (*own, *self._projector) if device == (0 if self.gpus else ON_HOST) else own

    @cached_property
    def _projector(self) -> tuple[BudgetPart, ...]:
        """The memory of the projector that reads images or sound: its file and its buffers, as the user says."""
        size = self.options.projector_bytes
        source = (
            "mmproj, as given: the worst case that llama-server adds to what --fit leaves free (tools/server/server-context.cpp)"
        )
        return (exact("projector", Section.OVERHEAD, size, source),) if size else ()

    @cached_property
    def _process(self) -> tuple[BudgetPart, ...]:
        """The memory of a GPU that the process takes outside the buffers."""
        if self.gpu is None:
            return ()
        name = {"nvidia": "cuda", "amd": "rocm"}.get(self.gpu.vendor.lower(), "other")
        return (estimated("process", Section.OVERHEAD, runtime_profile().estimate(f"llamacpp.{name}")),)

    @cached_property
    def _repacked(self) -> tuple[BudgetPart, ...]:
        return repacked_output(self)

    @property
    def knows_devices(self) -> bool:
        """True if memory and weights of each device are known."""
        return self.gpu is not None and self.weighed is not None

    @cached_property
    def form(self) -> MemoryForm | None:
        """The memory at every length and for every number of sequences; ``None`` if options fix the context, or memory is not known."""
        from hwcalc.engines.llamacpp.form import form_of

        return form_of(self)


class LlamacppWeights(WeightFormats):
    """The mixes of GGUF files, of which llama.cpp leaves out tensors that it does not load."""

    def sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        from hwcalc.quantization.gguf import mix_sizes

        return mix_sizes(model, self.of(model), hparams_of(model).architecture.always_loaded)


class LlamacppCommand(Command):
    """``llama-server`` for a plan."""

    known = True

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.llamacpp.command import flag_text

        return flag_text(name, value)

    def asked(self, said: Told) -> Mapping[str, Any]:
        from hwcalc.engines.llamacpp.command import asked

        return asked(said)

    def settings(self, changed: Mapping[str, Any], setup: Setup, load: Load) -> Mapping[str, Any]:
        """The changes in llama.cpp's options: length and number of sequences make the context of all slots."""
        if not changed.keys() & {"seq", "batch"}:
            return changed
        seq, batch = changed.get("seq", load.seq), changed.get("batch", load.sequences)
        others = {name: value for name, value in changed.items() if name not in ("seq", "batch")}
        return {"n_ctx": seq * batch, **({"n_seq_max": batch} if "batch" in changed else {}), **others}

    def words(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.llamacpp.command import serve

        return serve(planned)

    def first(self, planned: CommandInput) -> tuple[tuple[str, ...], str]:
        """A comment on what has no flag, and on where a file comes from that the model's publisher does not have."""
        from hwcalc.engines.llamacpp.command import where_it_comes_from

        by_itself = planned.partly_on_host and not _OF_THE_FILE & planned.options.keys()
        said = ["the part in host memory has no flag: llama-server puts it there by itself"] if by_itself else []
        where = where_it_comes_from(planned) if planned.made else ""
        return (), "; ".join([*said, *([where] if where else [])])


class LlamacppRequests(RequestRules):
    """Requests, where ``n_ctx`` names the context of all slots."""

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """The model as the file has it: without layers for multi-token prediction if the options say so (``mtp_layers=0``)."""
        request = self.of_file(model, request)
        if request.setup.options.get("mtp_layers") is None or model.gguf is not None:
            return model, request
        from hwcalc.parsers.gguf.from_config import without_prediction

        return model.once("llamacpp without prediction", lambda: without_prediction(model)), request

    def of_file(self, model: ModelSpec, request: Request) -> Request:
        """The request with the weights of the files that people run, where those are not as published."""
        from hwcalc.quantization.gguf import kept_experts

        kept = kept_experts(model) if request.setup.weights is None else None
        # Experts in MXFP4 are kept, and the rest has eight bits.
        return request if kept is None else request.changed(weights=kept)

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """The tokens of each sequence that ``n_ctx`` leaves; ``None`` without ``n_ctx``."""
        if "n_ctx" not in options:
            return None
        self.check_options(options)
        named = read_settings(Request.of(seq=1, batch=max(1, batch), options=options), hparams_of(model))
        return min(named.n_ctx_asked, named.slot_tokens) or None

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns with those of llama.cpp: the most slots of a context, and the tokens of a batch, which a short trained length limits."""
        return super().turns(model, options).also(sequences=(MAX_SEQUENCES, hparams_of(model).n_ctx_train))

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """Ollama, if the options say so: it is this engine with other defaults."""
        if is_on(options.get("ollama")):
            from hwcalc.engines import find_engine

            return find_engine("ollama")[0]
        return self.engine

    def check_host(self, host: Gpu, options: Mapping[str, str], gpus: int) -> None:
        if gpus > 1:
            raise UsageError(f"--gpus {gpus:,}: {host.id} is a machine without a GPU.", hint="Leave out --gpus.")
        if host.torch_total_mib is None and "host_memory" not in options:
            from hwcalc.hardware.local import EXAMPLE, this_machine

            here = this_machine()
            also = "" if here is None else f" This machine: --gpu {here}"
            raise UsageError(f"--gpu {host.id}: how much memory does the machine have?", hint=f"Say it: --gpu {EXAMPLE}.{also}")


class LlamacppIdle(IdleRules):
    """A router starts a llama-server for each model that a request names, and ends the one that was used least recently.

    A server alone can give up model and context too, and keeps its context on the GPU. Source: llama.cpp, common/common.h
    (``models_max``), tools/server/server-models.cpp (``unload_lru``), ``--sleep-idle-seconds`` in common/arg.cpp.
    """

    ways: ClassVar[tuple[Rest, ...]] = (
        Rest(name="router", how="a request that names another model; llama-server is started without a model", ends=True),
        Rest(name="sleeping", how="no request for so many seconds", starts_with=("--sleep-idle-seconds", "300")),
    )
    most_awake: ClassVar[int | None] = 4
    most_option: ClassVar[str] = "--models-max"
    source: ClassVar[str] = "llama.cpp tools/server/server-models.cpp"


class Llamacpp(GeneralEngine):
    """The contexts of llama.cpp."""

    deployment = LlamacppDeployment
    occupancy = LlamacppOccupancy
    request_class = LlamacppRequests
    scheduler: ClassVar[str | None] = "hwcalc.replay.llamacpp.settings"
    name = "llamacpp"
    title = "llama.cpp: llama-server and bindings"
    label = "llama.cpp"
    definition = Definition.ENGINE
    facts = Facts(
        idle=LlamacppIdle(),
        users_option="n_seq_max",
        slots_option="n_ctx",
        default_users=4,
        chunk_option="n_ubatch",
        trade_offs=MappingProxyType(
            {
                "n_ubatch": TradeOff(values=("128", "256", "1024", "2048")),
                "n_seq_max": TradeOff(values=("2", "4", "8", "16")),
                "dtype": TradeOff(values=("q8_0",)),
            }
        ),
        cache_is="cells of the whole context, from the start",
        pool_is="n_ctx",
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL}),
        choices=Choices(
            dtypes=("q8_0", "q4_0"),
            weights=("bf16", "q8_0", "q6_k", "q4_k_m"),
            # With layers left to the host, what is there follows from length and batch.
            options=MappingProxyType({"n_gpu_layers": "all"}),
        ),
        splits_layers=True,
    )
    weights = LlamacppWeights()
    command: ClassVar[Command] = LlamacppCommand()
    versions = VERSIONS
    source = "llama.cpp 0c1e57098 (v0.5.0)"
    kinds = frozenset(RULES)
    options = MappingProxyType({**OPTIONS, **PLACE_OPTIONS})

    def _resolve_version(self, requested: str) -> str:
        """A build, ``b6900``, or a release, ``v0.5.0`` for ``0.5``."""
        return resolve(requested)
