"""The interface of an engine: what holds of it whatever model it runs, and :meth:`Engine.deploy`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from hwcalc.engines.deployment import Deployment, Occupancy, deployed
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.engines.options import Choices, CommandInput, EmittedFile, EngineOption
    from hwcalc.engines.setup import Request, Setup
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import Definition, ModelSpec, Note
    from hwcalc.profiles.hardware_file import Gpu

YES: Final = "yes"
NO: Final = "no"
EVERY_TOKEN: Final = "every token"
BY_MODEL: Final = "by model"

_MOST_DIGITS: Final = 15
"""Longer numbers are beyond all lengths."""


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


class Engine(ABC):
    """The facts and the rules of one engine. It keeps no state between calls."""

    name: ClassVar[str]
    title: ClassVar[str]
    label: ClassVar[str]
    """The name that people use for it."""
    definition: ClassVar[Definition]
    """What the numbers are: ``exact`` (the formulas) or ``engine`` (the rules of this engine)."""
    versions: ClassVar[tuple[str, ...]]
    """Versions whose rules are known, newest first; empty if the engine has no versions."""
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({})
    source: ClassVar[str]
    cache_is: ClassVar[str]
    """What its bytes of cache are, in a few words that ``kvplan engines`` shows next to those of other engines."""
    pool_is: ClassVar[str] = ""
    """What its log calls the tokens of its pool; empty without a pool."""
    pooled: ClassVar[bool] = False
    """Whether the engine allocates a pool when it starts, from which sequences take blocks."""
    groups_share: ClassVar[bool] = True
    """Whether groups of layers take blocks from one pool, each as wide as the widest group's; otherwise each has a pool of its own."""
    counts_copies: ClassVar[bool] = False
    """Whether the stored bytes count what several tensor-parallel ranks each keep, such as a latent, once for each of them."""
    stores_prompts_apart: ClassVar[bool] = False
    """Whether the cache of a prompt is another than that of as many generated tokens."""
    assumed_gpu: ClassVar[str | None] = None
    """The accelerator whose rules apply if the user names none."""
    planned_makers: ClassVar[tuple[str, ...] | None] = None
    """The makers on whose accelerators kvplan knows its rules; ``None`` is all on whose it runs."""
    weight_choices: ClassVar[tuple[str | None, ...]] = ()
    """The formats among which ``--weights auto`` chooses, the better one first; ``None`` is as published. Empty: those of GGUF files."""
    choices: ClassVar[Choices | None] = None
    """What the page of ``kvplan explore`` offers of this engine, by the :meth:`~hwcalc.engines.deployment.Occupancy.form` of its occupancies; an engine without a form has none."""
    drafts_in_cache: ClassVar[bool] = False
    """Whether the layers of a draft share the pool of the model's, so that ``--draft`` changes the cache itself."""
    sums_in_32_bits: ClassVar[bool] = False
    """Whether its kernels add up the products of 16-bit numbers in 32 bits. Where that is not known, the higher rate is a bound all the same."""
    kinds: ClassVar[frozenset[type[LayerKind]] | frozenset[str] | None]
    """Those that it has a rule for, as classes or by their names; every other one is refused. ``None``: all, by the formulas alone."""
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({})
    """Kinds with a window whose other tokens it keeps too: ``EVERY_TOKEN``, or ``BY_MODEL`` where some of its classes do."""
    has_command: ClassVar[bool] = False
    """Whether :meth:`command` can write a plan as the engine's command line."""
    file_remark: ClassVar[str] = ""
    """A sentence on the file that the engine runs, where it runs no model as published; empty for other engines."""
    splits_layers: ClassVar[bool] = False
    """Whether each of several GPUs has a run of layers, and nothing else divides a model: GPUs are pipeline stages."""
    beams_and_samples: ClassVar[bool] = False
    """Whether a request may have both."""
    scatters: ClassVar[bool] = False
    """Whether the branches of a request may run on several data-parallel replicas."""
    deployment: ClassVar[type[Deployment]] = Deployment
    """The class of its deployments: the rules that do not depend on the load."""
    occupancy: ClassVar[type[Occupancy]]
    """The class of what its deployments hold: the rules that do."""

    def version(self, requested: str | None) -> str:
        """The version whose rules apply to the requested one; the newest if the user requests none. ``5.14.2`` has the rules of 5.14."""
        if requested is None:
            return self.versions[0] if self.versions else ""
        if not self.versions:
            raise UnknownNameError(
                f"--engine {self.name}@{brief(requested, 20)}: {self.name} has no versions.",
                option="engine",
                hint=f"Use: --engine {self.name}",
            )
        return self._resolve_version(requested)

    def _resolve_version(self, requested: str) -> str:
        """As :meth:`version`, for an engine with versions.

        By default a known release, its line (``0.5`` for 0.5.23), and what was made of it (``1.4.1`` and ``3.3.6-dev0`` for 1.4 and 3.3.6).
        """
        release = requested.removeprefix("v")
        for known in self.versions:
            if (
                release == known
                or ("." in release and known.startswith(f"{release}."))
                or release.startswith((f"{known}.", f"{known}-"))
            ):
                return known
        raise UnknownNameError(
            f"--engine {self.name}@{brief(requested, 20)}: no rules for that version.",
            option="engine",
            hint=f"Known: {', '.join(self.versions)}.",
        )

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

    def check_options(self, options: Mapping[str, str]) -> dict[str, object]:
        """Parse the engine options. Raises :class:`~hwcalc.errors.UsageError` for an unknown name or a wrong value."""
        parsed: dict[str, object] = {}
        for name, value in options.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"engine option {shown(name, 40)} is not known to {self.name}.", hint=f"Known: {known}.")
            parsed[name] = option.check(name, value)
        return parsed

    def stores(self, kind: type[LayerKind]) -> str:
        """Whether the engine stores layers of this kind, in a word or two: ``YES``, ``EVERY_TOKEN``, ``BY_MODEL`` or ``NO``."""
        return self.unbounded.get(kind, YES) if self._has_rule(kind) else NO

    def _has_rule(self, kind: type[LayerKind]) -> bool:
        """Whether it has a rule for layers of this kind."""
        return self.kinds is None or kind in self.kinds or kind.__name__ in self.kinds

    def refuse_kinds(self, layers: Stack) -> None:
        """Raise an error that names the first kind of these layers without a rule."""
        if self.kinds is None:
            return
        for group in layers.groups:
            if not self._has_rule(type(group.kind)):
                title, name = group.kind.title, group.kind.name
                raise UnsupportedError(
                    f"there is no rule for {name} layers ({title}) in {self.label}.", hint="Use: --engine reference"
                )

    def command(self, planned: CommandInput) -> list[str]:
        """The words of the engine's command line for a plan. Raises an error unless :attr:`has_command`."""
        raise UsageError(f"{self.label} has no command line.", hint="Leave out --emit.")

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        """The file that starts a plan, for an engine that has one in place of a command line."""
        return None

    def flag(self, name: str, value: object) -> str:
        """How the engine spells an option of kvplan; by default as kvplan does, such as ``--seq 4096``."""
        return f"--{name.replace('_', '-')} {value}"

    def check_host(self, host: Gpu, options: Mapping[str, str], gpus: int) -> None:
        """Check that the engine can plan a machine without a GPU. Raises :class:`~hwcalc.errors.UsageError`; by default always."""
        raise UsageError(
            f"--gpu {host.id}: kvplan plans a machine without a GPU as llama.cpp and Ollama run there.",
            hint="Add: --engine llamacpp",
        )

    def names_length(self, gpu: Gpu | None) -> bool:
        """Whether the engine has a length of its own where the user names none: :meth:`~hwcalc.engines.deployment.Occupancy.fitting_length`."""
        return self.splits_layers and gpu is not None

    def names_sizes(self, options: Mapping[str, str]) -> bool:
        """Whether these options name the length or the number of sequences."""
        return False

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns of all requests about this model with these options, which are known to be valid.

        By default, limits of length and number of sequences are numbers that an option names.
        """
        named = [int(value) for value in options.values() if value.isdecimal() and len(value) <= _MOST_DIGITS]
        limits = tuple(limit for number in named for limit in (number - 1, number))
        return Turns(tokens=limits, sequences=limits)

    def weight_choices_of(self, model: ModelSpec) -> tuple[str | None, ...]:
        """The formats among which ``--weights auto`` chooses for this model."""
        from hwcalc.quantization.gguf import published_formats

        return self.weight_choices or published_formats(model)

    def weight_sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        """The bytes of each of them that can be told without opening the model in it."""
        from hwcalc.quantization.gguf import mix_sizes

        return {} if self.weight_choices else mix_sizes(model, self.weight_choices_of(model))

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """The engine whose rules hold with these options; almost always this one."""
        return self

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        """The id of the draft model that an engine option names. The caller loads it as
        :attr:`~hwcalc.engines.setup.Setup.option_draft`.
        """
        return None

    def deploy(self, model: ModelSpec, setup: Setup) -> Deployment:
        """The server that is started so. Raises a :class:`~hwcalc.errors.KvplanError` subclass for what is refused whatever the load."""
        return deployed(self, model, setup)

    def _prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        """The model as the engine builds it, and the request in the engine's terms; by default both unchanged."""
        return model, request

    def open(self, model: ModelSpec, request: Request, notes: Iterable[Note] = ()) -> Occupancy:
        """What a deployment holds under a load, with every default filled in and checked. ``notes`` say what the caller has assumed.

        Raises a :class:`~hwcalc.errors.KvplanError` subclass.
        """
        gpu = request.setup.hardware.gpu
        if gpu is not None and gpu.is_host:
            self.check_host(gpu, request.setup.options, request.setup.gpus)
        occupancy = self.unchecked(model.as_built_by(self.name), request)
        occupancy.tell(*notes)
        return occupancy.checked()

    def unchecked(self, model: ModelSpec, request: Request) -> Occupancy:
        """The occupancy that :meth:`open` returns, without the checks."""
        model, request = self._prepared(model, request)
        return self.deploy(model, request.setup).at(request.load)

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """The tokens of a sequence that an engine option names, where the user gives no length; ``None`` if none does."""
        return None
