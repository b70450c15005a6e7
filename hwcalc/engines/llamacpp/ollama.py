"""Ollama: the llama-server that it starts, with its names for what can be set, and what it tells the server by itself.

Since 0.30, Ollama runs every GGUF file as a ``llama-server`` of its own (``llm/llama_server.go``); before, it had a runner with other memory.
Read in the releases 0.30.0 to 0.33.0 (rc2), which agree in all that is here; the build of llama.cpp that each starts is in ``builds.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from hwcalc.engines.facts import Command, IdleRules, Rest, Told, Turns
from hwcalc.engines.llamacpp.builds import NEWEST, OLDEST, ollama_build, rules_of
from hwcalc.engines.llamacpp.devices import LlamacppDevices
from hwcalc.engines.llamacpp.engine import Llamacpp, LlamacppDeployment, LlamacppRequests, LlamacppWeights
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.settings import OPTIONS, ContextOptions
from hwcalc.engines.options import choice_option, integer_option, is_on, options_of
from hwcalc.engines.subjects import AdapterRules
from hwcalc.engines.versions import unknown_version
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.arithmetic import either, smaller
from hwcalc.model import DEFAULT_WEIGHTS, LIBRARY_WEIGHTS, ModelSpec, Note, Noted
from hwcalc.profiles.engines import OLLAMA_PULLS, ollama_name
from hwcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.llamacpp.layers import Runs
    from hwcalc.engines.options import CommandInput, EmittedFile
    from hwcalc.engines.setup import Request, Setup
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.profiles.hardware_file import Gpu

DEFAULT_CONTEXT: Final = 4096
"""Tokens of a slot, where less than the memory of a tier is there, as on a machine without a GPU."""
TIERS: Final = ((47 * GIB, 262_144), (23 * GIB, 32_768))
"""Bytes of all GPUs together -> tokens of a slot (``server/routes.go``, since 0.15.5; before, 4,096 everywhere, and 2,048 until 0.6)."""
ONE_AT_A_TIME: Final = frozenset(
    {
        "mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe",
        "nemotron_h_omni",
    }
)  # fmt: skip
"""Architectures that get one slot, whatever ``OLLAMA_NUM_PARALLEL`` says (``Scheduler.load`` in ``server/sched.go``)."""

_BATCHES: Final = ((32_768, 2048, 60, 2 * GIB), (4096, 1024, 75, 768 * MIB))
"""Above so many tokens: the batch, the most percent of memory that the model may be predicted to take, and bytes for the batch."""
_SMALLEST: Final = 512
_CONSTRAINED: Final = 256
_SMALL_CARD: Final = 8 * GIB
_FREE_PERCENT: Final = 80
_EMBEDDING: Final = 2048


def default_context(vram_bytes: int, most: int | None) -> int:
    """Tokens of a slot where nobody gives ``num_ctx``, on GPUs of so many bytes; not more than the model was trained for.

    >>> default_context(24 * 2**30, 131_072), default_context(16 * 2**30, 131_072), default_context(80 * 2**30, 40_960)
    (32768, 4096, 40960)
    """
    tokens = next((tokens for least, tokens in TIERS if vram_bytes >= least), DEFAULT_CONTEXT)
    return tokens if not most else min(tokens, most)


def predicted_bytes(file_bytes: int, read: Hparams, tokens: int) -> int:
    """Ollama's guess of a model's memory, from which it takes the batch (``PredictServerVRAM``): the file, and a cache of 16 bits.

    It takes the fewest key/value heads of all layers, and the hidden size by the heads for the width of a head, whatever the file says.
    """
    heads = max(read.n_head, default=0)
    shared = min(read.n_head_kv, default=0) or 1
    return file_bytes + 4 * read.n_layer_all * shared * (read.n_embd // heads if heads else 0) * tokens


def auto_batch(tokens: int, predicted: int, available: int, *, cuda_without_flash: bool = False, card_bytes: int = 0) -> int:
    """Tokens of a batch, logical and physical, where nobody gives ``num_batch``. ``tokens`` are those of all slots.

    ``available`` is what the GPUs have free; 0 where that is unknown, and then the batch follows from the context alone.

    >>> auto_batch(4096, 5 * 2**30, 16 * 2**30), auto_batch(8192, 5 * 2**30, 16 * 2**30), auto_batch(65_536, 5 * 2**30, 16 * 2**30)
    (512, 1024, 2048)
    >>> auto_batch(65_536, 10 * 2**30, 16 * 2**30), auto_batch(65_536, 13 * 2**30, 16 * 2**30)
    (1024, 512)
    """
    if cuda_without_flash:
        return either(tokens > DEFAULT_CONTEXT, _CONSTRAINED, _SMALLEST) if 0 < card_bytes <= _SMALL_CARD else _SMALLEST
    chosen = _SMALLEST
    free = available * _FREE_PERCENT // 100
    for above, batch, percent, surcharge in reversed(_BATCHES):
        most: int = smaller(free, available * percent // 100)
        fits = (available == 0) | (predicted == 0) | ((predicted <= most) & (surcharge <= free - predicted))
        chosen = either((tokens > above) & fits, batch, chosen)
    return chosen


def has_flash_attention(gpu: Gpu | None) -> bool:
    """True if Ollama leaves flash attention to llama-server (``auto``) and does not turn it off: not on old cards of NVIDIA's."""
    if gpu is None or gpu.vendor.lower() != "nvidia" or gpu.compute_capability is None:
        return True
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major) >= 6 and (int(major), int(minor or 0)) != (7, 2)


def _layers(name: str, value: str) -> object:
    return -1 if value.strip() == "-1" else integer_option(0, 100_000)(name, value)


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_ctx": ("n_ctx",),
    "num_batch": ("n_batch", "n_ubatch"),
    "num_gpu": ("n_gpu_layers",),
    "num_parallel": ("n_seq_max",),
    "flash_attention": ("flash_attn",),
    "kv_cache_type": ("type_k", "type_v"),
}
"""Ollama's name -> llama.cpp's."""
_BATCH: Final = frozenset({"n_batch", "n_ubatch"})
_OWN: Final = options_of(
    ("num_ctx", "tokens of one slot, as --seq", "by memory: 4096, 32768 or 262144", integer_option(1, 2**31 - 1)),
    ("num_batch", "tokens of a batch, -b and -ub", "by context and memory: 512 to 2048", integer_option(1, 2**31 - 1)),
    ("num_gpu", "layers on the GPU; -1 is what fits", "-1", _layers),
    ("num_parallel", "slots, OLLAMA_NUM_PARALLEL, as --users", "1", integer_option(1, 256)),
    ("flash_attention", "OLLAMA_FLASH_ATTENTION", "auto", choice_option("auto", "1", "0", "true", "false", "on", "off")),
    ("kv_cache_type", "OLLAMA_KV_CACHE_TYPE, as --dtype", "f16", OPTIONS["type_k"].check),
)
_WITHOUT: Final = frozenset(
    {
        "defaults", "kv_unified", "swa_full", "n_cpu_moe", "cpu_moe", "override_tensor", "tensor_split", "split_mode", "no_kv_offload",
        "no_extra_bufts", "offload_kqv", "fit", "fit_ctx",
    }
)  # fmt: skip
"""Options of llama.cpp that Ollama sets for nobody."""


class OllamaAdapters(AdapterRules):
    """The adapters of a Modelfile, which all answers of its model have. Source: Ollama 0.33, server/sched.go (``AdapterPaths``)."""

    alone = "a model with an ADAPTER is a server of its own, with the weights once more."


class OllamaDeployment(LlamacppDeployment):
    """llama.cpp's deployment with Ollama's defaults."""

    adapter_class = OllamaAdapters
    has_drawn_form = False

    def __init__(
        self, engine: Engine, model: ModelSpec, setup: Setup, pinned: Runs | None = None, *, cuts_context: bool = True
    ) -> None:
        """``cuts_context`` says whether a context is no longer than the model was trained for."""
        super().__init__(engine, model, setup, pinned)
        self.cuts_context = cuts_context

    def unlimited(self) -> Self:
        """The same deployment, whose context is as long as it is asked to be."""
        return type(self)(self.engine, self.model, self.setup, cuts_context=False)

    @cached_property
    def build(self) -> int:
        return ollama_build(self.version)

    @cached_property
    def context(self) -> ContextOptions:
        """The options of the context, with what Ollama tells llama-server where the user says nothing."""
        context, options = ContextOptions.of(self.setup, self.rules), self.setup.options
        if "flash_attn" not in options and not has_flash_attention(self.gpu):
            context = replace(context, flash_attn=False)
        if options.keys() & _BATCH:
            # Ollama has one number for both.
            n_batch = int(options.get("n_ubatch", options.get("n_batch", "")))
            context = replace(context, n_batch=n_batch, n_ubatch=n_batch)
        return context

    @property
    def most_slots(self) -> int:
        """The most slots: 1 for some architectures and for embedding models."""
        alone = self.hparams.arch in ONE_AT_A_TIME or not self.hparams.causal
        return 1 if alone else super().most_slots

    def slot_tokens(self, tokens: int) -> int:
        """The tokens of a slot: at most those that the model was trained for."""
        most = self.hparams.n_ctx_train if self.cuts_context else 0
        return smaller(tokens, most) if most else tokens

    def chosen_batch(self, tokens: int, sequences: int) -> int | None:
        options = self.setup.options
        if options.keys() & _BATCH:
            return None
        if not self.hparams.causal:
            batch: int = smaller(_EMBEDDING, tokens)
            return batch
        cells, available = tokens * sequences, self.vram_bytes
        predicted = self.predicted(cells)
        flash = options.get("flash_attn", "auto" if has_flash_attention(self.gpu) else "off")
        cuda = self.gpu is not None and self.gpu.vendor.lower() == "nvidia"
        without_flash = cuda and flash != "auto" and not is_on(flash)
        card_bytes = available // self.setup.gpus
        return auto_batch(cells, predicted, available, cuda_without_flash=without_flash, card_bytes=card_bytes)

    @cached_property
    def vram_bytes(self) -> int:
        """The memory of all GPUs together, as programs see it; 0 without a GPU."""
        if self.gpu is None or self.gpu.is_host:
            return 0
        from hwcalc.profiles.gpus import visible_memory

        visible = visible_memory(self.gpu)
        return 0 if visible is None else visible.expected_bytes * self.setup.gpus

    def predicted(self, cells: int) -> int:
        """Ollama's guess of the model's memory, with a context of so many tokens."""
        return predicted_bytes(self._file_bytes, self.hparams, cells)

    @cached_property
    def _file_bytes(self) -> int:
        """The size of the file; 0 if it is not known."""
        return sum(len(group.blocks) * group.first.bytes for group in self.weight_groups or () if not group.first.copy)


class OllamaDevices(LlamacppDevices):
    """Ollama chooses the length of a context by the memory of all GPUs."""

    occupancy: OllamaOccupancy

    def fitting_length(self) -> Noted[int | None]:
        """The context by the memory of all GPUs together, which Ollama takes whether or not it fits."""
        vram, most = self.occupancy.deployment.vram_bytes, self.occupancy.hparams.n_ctx_train
        tokens = default_context(vram, most)
        own_context = _parameter(self.occupancy.model, "num_ctx")
        if own_context is not None:
            tokens = min(own_context, most or own_context)
            message = f"Planned for {tokens:,} tokens, num_ctx of the model's own parameters. Set it with --seq."
            return Noted(tokens, (Note(code="ollama-context", message=message),))
        tiers = ", ".join(f"{size:,} from {least // 2**30} GiB" for least, size in reversed(TIERS))
        by_tier = f"{DEFAULT_CONTEXT:,} tokens by default, {tiers} of GPU memory"
        why = "the model was trained for no more" if tokens == most else by_tier
        message = f"Planned for {tokens:,} tokens, Ollama's own num_ctx: {why}. Set it with --seq."
        return Noted(tokens, (Note(code="ollama-context", message=message),))


class OllamaOccupancy(LlamacppOccupancy):
    """What Ollama's llama-server holds under a load."""

    device_class = OllamaDevices

    deployment: OllamaDeployment
    cuts_prompts = True
    """Ollama keeps num_keep tokens and about half of the rest. Source: llm/llama_server.go, ``contextShiftPromptLimit``."""

    @property
    def as_published(self) -> Note:
        if stored := ollama_name(self.model.id, None):
            usual = LlamacppWeights().of(self.model)[0]
            other = f" Others publish a file in another mix: --weights {usual}." if usual else ""
            return Note(code=LIBRARY_WEIGHTS, message=f"Planned is the file of Ollama's library, {stored}.{other}")
        name = ollama_name(self.model.id, OLLAMA_PULLS)
        if name is None:
            return super().as_published
        others = f"ollama run {name} runs others: plan them with --weights {OLLAMA_PULLS}."
        return Note(code=DEFAULT_WEIGHTS, message=f"Planned are weights as the checkpoint has them. {others}")

    def shift_words(self, cells: int, sinks: int) -> tuple[str, tuple[str, ...]]:
        return f"num_ctx {cells}, num_keep {sinks}", (f"num_keep {sinks}",)

    def check(self) -> None:
        arch, one = self.hparams.arch, self.settings
        if one.n_seq_max > self.deployment.most_slots:
            message = f"Ollama gives {arch} one slot, whatever OLLAMA_NUM_PARALLEL says: {one.n_seq_max:,} sequences take turns."
            raise UnsupportedError(message, hint="Leave out --users, or use --engine llamacpp")
        if one.type_k != one.type_v:
            message = f"Ollama keeps keys and values in one format, not {one.type_k.name} and {one.type_v.name}."
            raise UnsupportedError(message, hint=f"Use: --dtype {one.type_v.name}, or --engine llamacpp")
        super().check()
        if self.hparams.n_ctx_train and self.tokens > self.hparams.n_ctx_train:
            message = f"Ollama cuts num_ctx to the {self.hparams.n_ctx_train:,} tokens that the model was trained for."
            self.tell(Note(code="context-cut", message=message))

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The savings that Ollama has settings for."""
        for one in super().savings(short_bytes):
            if one.settings.get("engine_options", {}).keys() <= self.engine.options.keys():
                yield one


class OllamaCommand(Command):
    """A Modelfile for a plan."""

    known = True

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.llamacpp.command import ollama_flag

        return ollama_flag(name, value)

    def asked(self, said: Told) -> Mapping[str, Any]:
        from hwcalc.engines.llamacpp.command import asked_of_ollama

        return asked_of_ollama(said)

    def file(self, planned: CommandInput) -> EmittedFile | None:
        from hwcalc.engines.llamacpp.command import modelfile

        return modelfile(planned)

    def server(self, planned: CommandInput, variables: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        from hwcalc.engines.llamacpp.command import ollama_server

        return ollama_server(variables) if variables else ((), "")

    def first(self, planned: CommandInput) -> tuple[tuple[str, ...], str]:
        """A comment on where a file comes from that neither the model's publisher nor Ollama's library has."""
        from hwcalc.engines.llamacpp.command import in_library, where_it_comes_from

        if not planned.made or in_library(planned):
            return (), ""
        where = where_it_comes_from(planned, in_parts=False)
        pulled = None if planned.weights is not None else ollama_name(planned.model, OLLAMA_PULLS)
        other = "" if pulled is None else f"ollama run {pulled} runs other weights: --weights {OLLAMA_PULLS} plans them."
        return (), " ".join(filter(None, (other, where)))


class OllamaWeights(LlamacppWeights):
    """The formats of GGUF files. What Ollama's library has as it was published is its own file, in place of the one that llama.cpp's users run."""

    def of(self, model: ModelSpec) -> tuple[str | None, ...]:
        names = super().of(model)
        return names if ollama_name(model.id, None) is None else (None, *names[1:])


class OllamaRequests(LlamacppRequests):
    """Requests, where ``num_ctx`` and ``num_parallel`` name length and number of sequences, or the model's own Modelfile does."""

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """The model and the request with the parameters of the model's Modelfile filled in, by llama.cpp's names."""
        model, request = super().prepared(model, request)
        named: dict[str, str] = {}
        for name in ("num_batch", "num_gpu"):
            value = _parameter(model, name)
            if value is not None and value >= -1 and not {name, *_NAMES[name]} & request.setup.options.keys():
                named[name] = str(value)
        given = {**named, **request.setup.options}
        # The context of a slot, and how many there are, are seq and batch.
        seq, batch = given.pop("num_ctx", None), given.pop("num_parallel", None)
        options: dict[str, str] = {}
        for name, text in given.items():
            translated = "auto" if (name, text) == ("num_gpu", "-1") else text
            options |= dict.fromkeys(_NAMES.get(name, (name,)), translated)
        if seq is None and batch is None and options == request.setup.options:
            return model, request
        return model, request.changed(
            options=options,
            seq=request.load.seq if seq is None else integer_option(1)("num_ctx", seq),
            batch=request.load.batch if batch is None else integer_option(1)("num_parallel", batch),
        )

    def of_file(self, model: ModelSpec, request: Request) -> Request:
        """The request itself: the files of Ollama's library have the weights as published."""
        return request

    def names_sizes(self, options: Mapping[str, str]) -> bool:
        return bool(options.keys() & {"num_ctx", "num_parallel"})

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns with 1 sequence added, since some models have a single slot."""
        return super().turns(model, options).also(sequences=(1,))

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        if "num_ctx" in options:
            return integer_option(1)("num_ctx", options["num_ctx"])
        return super().length_named(model, batch, options)

    def names_length(self, gpu: Gpu | None) -> bool:
        return True


class OllamaIdle(IdleRules):
    """A llama-server for each model, which ends when nobody has used it for a time, or another model needs its place.

    Another model is started next to loaded ones where Ollama's guess of it is at most 80 % of the memory that is free. Source: Ollama 0.33,
    server/sched.go (``defaultModelsPerGPU``, ``load``), envconfig/config.go.
    """

    ways = (
        Rest(
            name="unloaded",
            how="nobody uses it for OLLAMA_KEEP_ALIVE (5 minutes by default), or another needs its place",
            ends=True,
        ),
    )
    most_awake = 3
    most_option = "OLLAMA_MAX_LOADED_MODELS"
    source = "Ollama 0.33 server/sched.go"

    def joins(self, occupancy: Occupancy, free_bytes: int) -> bool:
        assert isinstance(occupancy, OllamaOccupancy)
        return occupancy.deployment.predicted(occupancy.load.seq * occupancy.load.sequences) <= free_bytes * _FREE_PERCENT // 100


class Ollama(Llamacpp):
    """The llama-server that Ollama starts."""

    deployment = OllamaDeployment
    occupancy = OllamaOccupancy
    request_class = OllamaRequests
    # Ollama has a queue of its own before the slots, and shifts contexts.
    scheduler = None
    name = "ollama"
    title = "Ollama: llama-server with Ollama's settings"
    label = "Ollama"
    versions = ("0.33", "0.32", "0.31", "0.30")
    facts = replace(Llamacpp.facts, choices=None, idle=OllamaIdle(), default_users=1)
    weights = OllamaWeights()
    command = OllamaCommand()
    source = "Ollama 0.33.0, llm/llama_server.go, server/sched.go"
    options = MappingProxyType({**_OWN} | {name: option for name, option in Llamacpp.options.items() if name not in _WITHOUT})

    def _resolve_version(self, requested: str) -> str:
        """``0.31.1`` has the rules of 0.31; a release that starts a build with other rules than the last of its line keeps its name."""
        numbers = requested.strip().removeprefix("v").split("-")[0].split(".")
        minor = ".".join(numbers[:2])
        if minor in self.versions and all(part.isdecimal() and len(part) < 4 for part in numbers[2:]):
            whole = ".".join(numbers[:3])
            return minor if rules_of(ollama_build(whole)) == rules_of(ollama_build(minor)) else whole
        build = (
            ollama_build(requested)
            if re.fullmatch(r"v?[0-9]{1,2}(\.[0-9]{1,3}){1,2}(-[A-Za-z0-9]{1,12})?", requested.strip())
            else 0
        )
        older = "Before 0.30 Ollama ran models by a program of its own"
        if minor not in self.versions and build >= OLDEST and build < NEWEST:
            older += f", and those that it did not know by llama.cpp b{build}: --engine llamacpp@b{build}"
        raise unknown_version(self.name, requested, hint=f"Known: {', '.join(self.versions)}. {older}.")


def _parameter(model: ModelSpec, name: str) -> int | None:
    """The value of a parameter in the model's Modelfile; ``None`` if it is not there."""
    value = None if model.gguf is None else model.gguf.keys.get(f"ollama.{name}")
    return int(value) if isinstance(value, (int, float)) and 0 < abs(value) < 2**31 else None
