"""What an engine says of itself whatever it runs: :class:`Facts`, and one object each for what it is told and what it reads.

The classes here answer for engines that say nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from hwcalc.engines.devices import computes_fp8
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.memory import BudgetPart
    from hwcalc.engines.options import CacheFormat, Choices, CommandInput, EmittedFile
    from hwcalc.engines.setup import Load, Request, Setup
    from hwcalc.formulas import LayerKind
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu

_MOST_DIGITS: Final = 15
"""Longer numbers are beyond all lengths."""


class TradeOff(Record):
    """What ``kvplan tune`` tries of an option beside the engine's own value: some requests are served sooner by it, and others later.

    With ``of_prefixes`` it bears on requests alone whose prompts begin alike.
    """

    values: tuple[str, ...]
    of_prefixes: bool = False


class Rest(Record):
    """A way in which a server gives up the memory of a model that nobody uses, and gets it back when somebody does.

    ``how`` is what to call, or what happens by itself; ``starts_with`` are the words that the server is started with for it, variables
    first. With ``copied`` the weights move to host memory, in blocks of at most ``host_factor`` times their size; otherwise they are read
    from their files again. ``ends`` says that the process ends, so that nothing of it stays on the GPU.
    """

    name: str
    how: str
    starts_with: tuple[str, ...] = ()
    copied: bool = False
    host_factor: int = 1
    ends: bool = False


class IdleRules:
    """What an engine does with models that nobody uses: by default it keeps each awake until its server is stopped."""

    ways: ClassVar[tuple[Rest, ...]] = ()
    """The usual way first."""
    stays: ClassVar[frozenset[str]] = frozenset({"context", "process", "communication"})
    """Names of the parts of the sum that stay on the GPU while a server sleeps."""
    most_awake: ClassVar[int | None] = None
    """Models of one GPU that are awake at once at most; ``None`` is as many as fit."""
    most_option: ClassVar[str] = ""
    """What sets another number; empty if nothing does."""
    one_process: ClassVar[bool] = False
    """True if all models are in one process, which has one context on the GPU."""
    keeps_host: ClassVar[bool] = False
    """True if a server that is awake keeps the host memory of its sleep."""
    source: ClassVar[str] = ""

    def ways_of(self, occupancy: Occupancy) -> tuple[Rest, ...]:
        """The ways that this server has. Raises :class:`~hwcalc.errors.UnsupportedError` where its release or a part of it has none."""
        return self.ways

    def starts_with(self, total_bytes: int, needed_bytes: int) -> tuple[str, ...]:
        """Words with which a server takes no more than it needs of a GPU that others use too."""
        return ()

    def left_free(self, total_bytes: int, requested_bytes: int) -> int:
        """Bytes of a GPU that a server leaves to what is no part of its sum, such as graphs.

        Of servers that run together all may take it, and the largest of them is expected.
        """
        return 0

    def outside(self, gpu: Gpu) -> BudgetPart | None:
        """The memory of a process on a GPU that the sum of its plan lacks; ``None`` if nothing is missing."""
        return None

    def joins(self, occupancy: Occupancy, free_bytes: int) -> bool:
        """True if the engine starts a model beside others that leave so many bytes of a GPU. By default it tries."""
        return True


class Facts(Record):
    """What holds of an engine whatever it runs; the defaults are those of an engine without a pool."""

    cache_is: str
    """What its bytes of cache are, in a few words that ``kvplan compare`` shows next to those of other engines."""
    pool_is: str = ""
    """What its log calls the tokens of its pool; empty without a pool."""
    pooled: bool = False
    """True if the engine allocates a pool when it starts, from which sequences take blocks."""
    short_pool: str = ""
    """What its server does where it is told no length and its pool holds less than the model's, behind "it starts, and"; empty if it does not start."""
    groups_share: bool = True
    """True if groups of layers take blocks from one pool, each as wide as the widest group's; otherwise each has a pool of its own."""
    counts_copies: bool = False
    """True if the stored bytes count what several tensor-parallel ranks each keep, such as a latent, once for each of them."""
    stores_prompts_apart: bool = False
    """True if the cache of a prompt is another than that of as many generated tokens."""
    drafts_in_cache: bool = False
    """True if the layers of a draft share the pool of the model's, so that ``--draft`` changes the cache itself."""
    sums_in_32_bits: bool = False
    """True if its kernels add up the products of 16-bit numbers in 32 bits. Where that is not known, the higher rate is a bound all the same."""
    mixes_prompts: bool = True
    """True if it begins the prompt of a request while it decodes others, instead of all prompts of a batch first."""
    splits_layers: bool = False
    """True if each of several GPUs has a run of layers, and nothing else divides a model: GPUs are pipeline stages."""
    beams_and_samples: bool = False
    """True if a request may have both."""
    scatters: bool = False
    """True if the branches of a request may run on several data-parallel replicas."""
    unbounded: Mapping[type[LayerKind], str] = MappingProxyType({})
    """Kinds with a window whose other tokens it keeps too: ``EVERY_TOKEN``, or ``BY_MODEL`` where some of its classes do."""
    foreign_formats: tuple[str, ...] | None = None
    """The programs whose own formats of weights it reads, of GGUF files, bitsandbytes, MLX, ExLlamaV2 and ExLlamaV3; ``None`` where it says so itself."""
    assumed_gpu: str | None = None
    """The accelerator whose rules apply if the user names none."""
    planned_on: tuple[str, ...] | None = None
    """The accelerators on which kvplan knows its rules, as rows of ``hardware.yaml`` name them; ``None`` is all on which it runs."""
    longest_option: str = ""
    """The engine option for the longest sequence that its server allows, where users send shorter ones; empty if it has none."""
    states_option: str = ""
    """The engine option for the format of recurrent states, which takes float32, float16 and bfloat16; empty if it has none."""
    users_option: str = ""
    """The engine option for how many sequences a server, or each replica of it, runs at once; empty if it has none."""
    slots_option: str = ""
    """The engine option for the tokens of all its sequences together, where each has a part of them from the start; empty if it has none."""
    default_users: int | None = None
    """Sequences that its server runs at once by default, where each has its memory from the start; ``None`` where they share a pool."""
    cache_formats: tuple[CacheFormat, ...] = ()
    """The formats of its cache by the names that it takes, but for plain floats and those of ggml."""
    int8_cache: str = ""
    """The KV dtype of eight bits for GPUs that do not compute in fp8; empty where that is fp8 too."""
    chunk_option: str = ""
    """The engine option for how many tokens of prompts a step computes at most; empty if it has none."""
    shared_experts_option: str = ""
    """The engine option by which replicas have attention of their own and share experts; empty if it has none."""
    trade_offs: Mapping[str, TradeOff] = MappingProxyType({})
    """The options by which its scheduler trades one time for another, by their names; ``dtype`` is that of the cache."""
    choices: Choices | None = None
    """What the page of ``kvplan explore`` offers of this engine, by the :meth:`~hwcalc.engines.deployment.Occupancy.form` of its occupancies; an engine without a form has none."""
    idle: IdleRules = IdleRules()
    """What it does with models that nobody uses."""
    utilization_of_server: bool = False
    """True if ``memory_utilization`` is a share of the whole memory for this server alone, whatever others on the GPU take."""

    def eight_bits(self, gpu: Gpu | None) -> str:
        """The KV dtype of eight bits to advise on a GPU."""
        return self.int8_cache if self.int8_cache and not computes_fp8(gpu) else "fp8"


class Told(Record):
    """What a server was told: the ``options`` of a plan that its flags name, and all that was read of it.

    ``settings`` has the words that all engines mean alike, such as ``dp`` and ``speculative``, and ``extra`` the engine's own.
    """

    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    extra: Mapping[str, Any]

    def changed(self, **options: Any) -> dict[str, Any]:
        """The options with others; ``None`` leaves one out."""
        return {name: value for name, value in {**self.options, **options}.items() if value is not None}

    def on_all_gpus(self, size: str = "tp") -> Mapping[str, int]:
        """``size`` with a rank on each GPU that the server has, for an engine that takes all it sees; empty if the size was named."""
        gpus = self.settings.get("gpus_per_replica")
        return {size: gpus} if size not in self.options and isinstance(gpus, int) and gpus > 1 else {}

    def knobs(self, **options: Any) -> dict[str, str]:
        """The options of the engine with others; ``None`` leaves one out."""
        held = {**self.options.get("engine_options", {}), **options}
        return {name: str(value) for name, value in held.items() if value is not None}


class Command:
    """How the engine is told a plan: by flags, on its command line, or in a file."""

    known: ClassVar[bool] = False
    """True if :meth:`words` can write a plan as the engine's command line."""
    joins_nodes: ClassVar[bool] = False
    """True if :meth:`on_nodes` has the flags that make one server of several nodes."""

    def flag(self, name: str, value: object) -> str:
        """The engine's spelling of an option of kvplan; by default kvplan's own, such as ``--seq 4096``."""
        return f"--{name.replace('_', '-')} {value}"

    def settings(self, changed: Mapping[str, Any], setup: Setup, load: Load) -> Mapping[str, Any]:
        """The changed settings of a plan of which each has a :meth:`flag`.

        An engine may count several of them as a single setting, or not be told one of them at all.
        """
        return changed

    def words(self, planned: CommandInput) -> list[str]:
        """The words of the engine's command line for a plan. Raises an error for what the engine cannot be told."""
        raise NotImplementedError

    def asked(self, said: Told) -> Mapping[str, Any]:
        """The options of a plan for what a server of this engine was told, where they are not simply its flags' values."""
        return said.options

    def first(self, planned: CommandInput) -> tuple[tuple[str, ...], str]:
        """A command that has to run before, such as one that converts the model, and a sentence; both empty if nothing is to be done."""
        return (), ""

    def on_nodes(self, planned: CommandInput, nodes: int) -> str:
        """A sentence on what each of several nodes is told, of which every one has the same number of GPUs."""
        return "What each node is told, the engine's documentation says."

    def file(self, planned: CommandInput) -> EmittedFile | None:
        """The file that starts a plan, for an engine that has one in place of a command line."""
        return None

    def server(self, planned: CommandInput, variables: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """The command that starts the server of a file with these variables, and a remark on one that runs already; both empty without a server."""
        return (), ""


class WeightFormats:
    """The formats among which ``--weights auto`` chooses."""

    def __init__(self, *names: str | None) -> None:
        """``names`` has the better one first; ``None`` is as published. Without names, the formats are those of GGUF files."""
        self.names = names

    @property
    def are_mixes(self) -> bool:
        """True if they are the mixes of GGUF files."""
        return not self.names

    def of(self, model: ModelSpec) -> tuple[str | None, ...]:
        """The formats for this model."""
        from hwcalc.quantization.gguf import published_formats

        return self.names or published_formats(model)

    def sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        """The bytes of each of them that can be told without opening the model in it."""
        from hwcalc.quantization.gguf import mix_sizes

        return {} if self.names else mix_sizes(model, self.of(model))


class Turns(Struct, frozen=True):
    """Numbers behind which an engine may answer otherwise whether it runs a request.

    With ``tokens=(4096,)``, all lengths up to 4,096 are accepted or refused alike, and so are all longer ones; ``sequences`` are those of a
    replica. What is refused alike has one reason, and the numbers that its message names do not fall as length or sequences grow.
    """

    tokens: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()

    def also(self, *, tokens: tuple[int, ...] = (), sequences: tuple[int, ...] = ()) -> Turns:
        """These turns with further lengths and numbers of sequences."""
        return Turns(tokens=(*self.tokens, *tokens), sequences=(*self.sequences, *sequences))


def longest_named(engine: Engine, options: Mapping[str, str]) -> int | None:
    """The tokens of the longest sequence that a server with these options allows; ``None`` if no option names them."""
    name = engine.facts.longest_option
    return parse_tokens(options[name], f"engine option {name}") if name in options else None


class RequestRules:
    """How an engine reads a request: what its options say of it, and which machines it knows."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def check_options(self, options: Mapping[str, str]) -> dict[str, object]:
        """Parse the engine options. Raises :class:`~hwcalc.errors.UsageError` for an unknown name or a wrong value."""
        engine, parsed = self.engine, dict[str, object]()
        for name, value in options.items():
            option = engine.options.get(name)
            if option is None:
                known = ", ".join(engine.options) or "none"
                raise UsageError(f"engine option {shown(name, 40)} is not known to {engine.name}.", hint=f"Known: {known}.")
            parsed[name] = option.check(name, value)
        return parsed

    def options_in_full(self, options: Mapping[str, str]) -> dict[str, str]:
        """The engine options, checked, with their numbers written out: ``32k`` is 32,768 here, and 32,000 or an error to an engine.

        Sizes stay as they are: ``64GiB`` says the same everywhere.
        """
        full = dict(options)
        for name, number in self.check_options(options).items():
            written = options[name].strip().lower()
            if type(number) is int and number >= 0 and not written.isdecimal() and not written.endswith("b"):
                full[name] = str(number)
        return full

    def check_host(self, host: Gpu, options: Mapping[str, str], gpus: int) -> None:
        """Check that the engine can plan a machine without a GPU. Raises :class:`~hwcalc.errors.UsageError`; by default always."""
        raise UsageError(
            f"--gpu {host.id}: of a machine without a GPU kvplan knows the rules of llama.cpp and Ollama alone.",
            hint="Use: --engine llamacpp",
        )

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """The engine whose rules hold with these options; almost always this one."""
        return self.engine

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """The model as the engine builds it, and the request in the engine's terms; by default both unchanged."""
        return model, request

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns of all requests about this model with these options, which are known to be valid.

        By default, limits of length and number of sequences are numbers that an option names.
        """
        named = [int(value) for value in options.values() if value.isdecimal() and len(value) <= _MOST_DIGITS]
        limits = tuple(limit for number in named for limit in (number - 1, number))
        return Turns(tokens=limits, sequences=limits)

    def names_length(self, gpu: Gpu | None) -> bool:
        """True if the engine has a length of its own: :meth:`~hwcalc.engines.subjects.Devices.fitting_length`."""
        return self.engine.facts.splits_layers and gpu is not None

    def names_sizes(self, options: Mapping[str, str]) -> bool:
        """True if these options name the length or the number of sequences."""
        return self.engine.facts.longest_option in options

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """The tokens of a sequence that an engine option names, where the user gives no length; ``None`` if none does."""
        return longest_named(self.engine, options)

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        """The id of the draft model that an engine option names. The caller loads it as
        :attr:`~hwcalc.engines.setup.Setup.option_draft`.
        """
        return None
