"""The options that a user gave, parsed: :class:`Asked`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import field

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record, repr_without
from hwcalc.planner.options import DIMENSIONS, HOST_MEMORY, OPTIONS, OTHER_NAMES, ROWS, PlanOption, options_of
from hwcalc.planner.values import unit_text
from hwcalc.text import brief, did_you_mean, quoted, shell_word, shown

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.profiles.hardware_file import Gpu

_LENGTHS: Final = ("sequence", "length", "max_model_len", "max_seq_len", "n_ctx", "tokens")
"""What others call ``seq``, and kvplan does not take."""


def _is_default(name: str, value: object) -> bool:
    """True if a value is that of an option which was not given."""
    default = ROWS[name].default if name in ROWS else None
    return type(value) is type(default) and value == default


def by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options by their names, where some were given by another one, such as ``users`` for ``batch``.

    Raises :class:`~hwcalc.errors.UsageError` if an option is given by two names.
    """
    named: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, value in given.items():
        own = OTHER_NAMES.get(name, name)
        if own in named and (value is None or _is_default(own, value)):
            continue
        if named.get(own) is not None and not _is_default(own, named[own]):
            raise UsageError(f"{spelled[own]} and {name} are the same option.", hint="Give one of them.")
        if value is not None or name not in OTHER_NAMES:
            named[own], spelled[own] = value, name
    return named


def engines_with_host() -> tuple[str, ...]:
    """The engines that leave a part of a model to the host: those with the option :data:`HOST_MEMORY`."""
    from hwcalc.engines import ENGINES, find_engine

    return tuple(name for name in ENGINES if HOST_MEMORY in find_engine(name)[0].options)


class Access(Record):
    """How models are fetched: only from this machine or also from the Hub, with which token and from which address."""

    offline: bool = False
    token: str | None = None
    endpoint: str | None = None

    def __repr__(self) -> str:
        return repr_without(self, "token")


class Asked(Record):
    """The parsed options of a plan, as attributes: one that was not given has its default.

    Numbers are parsed, but the names of models and GPUs have not been looked up.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """The options that the user gave."""

    def __getattr__(self, name: str) -> Any:
        if name not in ROWS:
            raise AttributeError(f"there is no option {name}")
        return self.values.get(name, ROWS[name].default)

    def __repr__(self) -> str:
        return f"Asked({ {name: value for name, value in self.values.items() if name != 'token'} })"

    @property
    def engine_options(self) -> Mapping[str, str]:
        """The engine's own options by its own names."""
        named: Mapping[str, str] = self.values.get("engine_options", {})
        return named if self.ram is None else {HOST_MEMORY: unit_text(self.ram), **named}

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that the user gave."""
        return frozenset(self.values)

    @property
    def access(self) -> Access:
        """The options of how models are fetched."""
        return Access(**{name: value for name, value in self.values.items() if name in Access.__struct_fields__})

    @property
    def dimensions(self) -> dict[str, Any]:
        """The given dimensions of a model, or its layers, by option."""
        return {name: value for name, value in self.values.items() if name in DIMENSIONS}

    def keywords(self) -> dict[str, Any]:
        """The given options about the request, by name. The draft is left out: it is a model that has not been loaded yet."""
        return {name: value for name, value in self.values.items() if not ROWS[name].reads_model and name != "draft"}

    def changed(self, **values: Any) -> Asked:
        """The options with other values."""
        return Asked(values={**self.values, **values})


def uses_ram(engine: Engine, gpu: Gpu | None) -> bool:
    """True if the memory of the host is the engine's to use, beside that of the GPU."""
    return HOST_MEMORY in engine.options and (gpu is None or gpu.is_host or not gpu.shares_host_memory)


def check_ram(engine: Engine, asked: Asked, gpu: Gpu | None) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` where the memory of the host is given, and the engine or the GPU has no use for it.

    A GPU that computes in the memory of the host has the size of that in its profile.
    """
    if HOST_MEMORY in asked.engine_options and gpu is not None and gpu.shares_host_memory and not gpu.is_host:
        name = "--ram" if asked.ram is not None else f"--engine-option {HOST_MEMORY}"
        size = "" if gpu.memory_marketing_gb is None else f", {gpu.memory_marketing_gb:g} GB"
        message = f"{name}: the memory of {gpu.id} is the host's{size}."
        from hwcalc.profiles.gpus import other_sizes

        named = " or ".join(f"--gpu {one}" for one in other_sizes(gpu)) or "kvplan gpus unified"
        raise UsageError(message, hint=f"Leave it out, or name the machine that has so much: {named}")
    own = asked.values.get("engine_options", {})
    if asked.ram is not None and HOST_MEMORY not in engine.options:
        others = " or ".join(engines_with_host())
        if asked.engine is None:
            message = "--ram is for an engine that leaves layers to the host, and none is named."
            raise UsageError(message, hint=f"Add: --engine {others}")
        message = f"--ram: {engine.label} is planned on the GPU alone."
        raise UsageError(message, hint=f"Leave it out, or plan with --engine {others}, which leave layers to the host.")
    if asked.ram is not None and HOST_MEMORY in own:
        raise UsageError(f"--ram and the engine option {HOST_MEMORY} are the same.", hint="Give one of them.")


def read_options(given: Mapping[str, Any]) -> Asked:
    """Parse options from text or Python values. ``None`` counts as not given, unless the option has a default.

    Raises :class:`~hwcalc.errors.UsageError` for the first wrong value, in the order of :data:`OPTIONS`.
    """
    values: dict[str, Any] = {}
    for row in OPTIONS:
        value = given.get(row.name)
        if value is None and (row.default is None or row.name not in given):
            continue
        if row.lists and isinstance(value, (str, list, tuple, range)):
            _check_single(row, value)
        # The default stands for itself, and most options of most plans have it.
        is_default = type(value) is type(row.default) and value == row.default
        try:
            values[row.name] = value if is_default else row.read(value)
        except UsageError as error:
            if not isinstance(value, str) or not (meant := option_meant(value)) or given.get(meant) is not None:
                raise
            raise UsageError(error.message, hint=f"Perhaps: --{meant} {shell_word(value)}") from error
    gpu, count = counted_once(values.get("gpu"), values.get("gpus"))
    if count is not None:
        values |= {"gpu": gpu, "gpus": count}
    return Asked(values=values)


def option_meant(word: str) -> str:
    """The option whose value the word is, for tokens and for an engine or an accelerator that is known; else empty.

    >>> option_meant("32k"), option_meant("vllm@0.9"), option_meant("2xh100"), option_meant("word")
    ('seq', 'engine', 'gpu', '')
    """
    from hwcalc.engines import ENGINES, spelled
    from hwcalc.hardware.named import counted, gpu_named, host_named

    if re.fullmatch(r"[0-9]{1,4}[kKmM]", word):
        return "seq"
    if spelled(word.partition("@")[0].lower()) in ENGINES:
        return "engine"
    if host_named(word) is not None:
        return "gpu"
    with suppress(KvplanError):
        gpu_named(counted(word)[0] or "")
        return "gpu"
    return ""


def counted_once(gpu: object, gpus: int | None) -> tuple[str | None, int | None]:
    """As :func:`~hwcalc.hardware.named.counted`. Raises :class:`~hwcalc.errors.UsageError` if ``gpus`` is another number than the word has."""
    if gpu is None:
        return None, None
    if not isinstance(gpu, str):
        raise UsageError(f"gpu must be a string (got {quoted(gpu)}).", hint='Write gpu="...".')
    from hwcalc.hardware.named import counted

    name, count = counted(gpu)
    if count is not None and gpus not in (None, count):
        raise UsageError(f"--gpu {shown(gpu, 40)} and --gpus {gpus:,} differ.", hint="Give one number.")
    return name, count


def _check_single(row: PlanOption, value: str | Sequence[Any]) -> None:
    """Raise an error for a list where the option takes a single value. Its hint names a command that takes lists."""
    if not isinstance(value, str):
        if row.type == "policy":
            # A name with its options.
            return
        hint = f"Take one of them, or hwcalc.{row.lists[0]}, which plans each."
        raise UsageError(f"{row.name}={quoted(value, 60)} is a list, and one is taken here.", hint=hint)
    several = row.type == "text" and "," in value.strip(", ")
    if row.type in ("tokens", "count") and ("," in value.strip(", ") or ".." in value):
        several = ".." in value
    if row.type == "policy" and "," in value:
        from hwcalc.policies.parse import policy_texts

        several = len(policy_texts(value)) > 1
    if several:
        raise UsageError(
            f"--{row.name} {shown(value, 60)} is a list, and one is taken here.",
            hint=f"Several side by side: kvplan {row.lists[0]} MODEL --{row.name} {brief(value, 60)}",
        )


def take_options(command: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Asked]:
    """Check and parse the options of ``command`` that take one value.

    Returns the given options about the request, unparsed, and all options, parsed. Raises :class:`~hwcalc.errors.UsageError` for an
    unknown name or a wrong value.
    """
    given = by_name(given)
    known = {row.name: row for row in options_of(command) if command not in row.lists}
    unknown = sorted(set(given) - set(known))
    if unknown:
        every = sorted(row.name for row in options_of(command))
        lengths = _LENGTHS if "seq" in every else ()
        meant = did_you_mean(str(unknown[0]), [*every, *OTHER_NAMES, *lengths])
        meant = next(("Did you mean seq? " for length in lengths if f" {length}?" in meant), meant)
        raise UsageError(f"{command} takes no {shown(unknown[0], 40)}.", hint=f"{meant}Known: {', '.join(every)}.")
    asked = read_options(given)
    return {name: value for name, value in given.items() if value is not None and not known[name].reads_model}, asked
