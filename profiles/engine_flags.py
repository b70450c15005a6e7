"""How the servers of engines are started: their programs, images, flags and variables, from ``engines/<engine>/flags.yaml``, read compiled.

The one table of other programs' words: :mod:`hwcalc.launch` reads commands by it, kvplan's own line takes vLLM's and llama.cpp's names by it, and
``--emit`` writes by it.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, convert, field

from hwcalc.profiles.compiled import names, record
from hwcalc.profiles.form import Date, Facts, Version, Words

SWITCH: Final = ""
VALUE: Final = "1"
VALUES: Final = "+"
"""How many values follow a flag: none, one, or all words up to the next flag."""
_MANY: Final = {"switch": SWITCH, "words": VALUES, "list": VALUES}
_UNREAD: Final = "its file is not read: write the flags that it sets"
_KINDS: Final = {"switch": "switch", "value": "value", "values": "words"}
SWITCH_VALUES: Final = frozenset({"on", "off", "auto", "1", "0", "true", "false", "enabled", "disabled", "-1"})
"""The values of a switch that may stand without one."""


Spelled: TypeAlias = Words | Annotated[tuple[Words, ...], Meta(min_length=1)]
"""A flag, or all its spellings, the one that is written first."""
Flags: TypeAlias = Annotated[tuple[Spelled, ...], Meta(description="a list of flags")]


class _FlagFacts(Facts):
    """A flag of a server.

    ``name`` is the engine's own, with underscores. ``key`` is what a server that was read calls it (``speculative.method`` for a part of one), if
    several engines mean the same. ``takes``: ``switch``, ``value`` (a number, true or false, JSON, or text), ``text``, ``secret``, ``words`` and
    ``list`` up to the next flag, ``numbers`` and ``commas`` with commas between, ``tokens`` with a unit, ``whole`` (a number without one), ``pairs`` (JSON or ``a=1``), ``optional``
    (a switch that may have a value), ``spec`` (``type:key=value``). ``option`` is the option of a plan, ``engine_option`` one of the engine,
    ``together`` an option that several flags say, ``scheduler_option`` one of the scheduler alone, where it has another name than the flag; a name that is ``own`` means something else on kvplan's line. ``since`` and ``negated`` are the
    first releases that have it and its ``--no-`` form; ``values`` the first release of each value, up to ``any_value``. It bears on memory with the
    values of ``only`` alone, and with none of ``absent``; ``values_as`` is what a value means, ``plan_as`` what a plan calls it, ``None`` if it says nothing to a plan. ``off`` spells the negation, which is
    ``off_engine_option``, or unplanned because of ``off_because``. ``because`` is why a plan does not count it. Each of one that ``repeats`` counts, and
    is kept as ``written``. ``bears`` is false where no byte depends on it. With a value that is no number it is the key ``word``; a value to ``ask`` for
    names files elsewhere; ``also`` keeps the value under its own name too; ``role`` is what a switch makes of the server.
    """

    takes: Literal[
        "switch", "value", "text", "secret", "words", "list", "numbers", "commas", "tokens", "whole", "pairs", "optional", "spec"
    ] = "value"
    key: Words | None = None
    option: Words | None = None
    together: Words | None = None
    scheduler_option: Words | None = None
    own: bool = False
    since: Words | None = None
    negated: Words | None = None
    values: Mapping[Words, Words] = MappingProxyType({})
    any_value: Words | None = None
    only: tuple[Words, ...] = ()
    absent: tuple[Words, ...] = ()
    values_as: Mapping[Words, Words | None] = MappingProxyType({})
    plan_as: Mapping[Words, Words | None] = MappingProxyType({})
    off: tuple[Words, ...] = ()
    off_engine_option: Words | None = None
    off_because: Words | None = None
    role: Words | None = None
    repeats: bool = False
    written: bool = False
    variable: Words | None = None
    word: Words | None = None
    ask: bool = False
    also: bool = False
    bears: bool = True


class FlagRow(_FlagFacts):
    """A flag as the file has it. An ``engine_option`` that is true has the flag's own name."""

    flag: Spelled
    name: Words | None = None
    engine_option: Words | Literal[True] | None = None


class Flag(_FlagFacts):
    """A flag with its name and all its spellings, and the reason why a plan does not count it, if it has one."""

    spellings: tuple[str, ...]
    name: str
    engine_option: str | None = None
    because: str | None = None

    @property
    def spelled(self) -> str:
        """The spelling that a command is written with."""
        return self.spellings[0]


class FlagsByValues(Facts):
    """Flags by how many values follow: none, one, or all words up to the next flag."""

    switch: Flags = ()
    value: Flags = ()
    values: Flags = ()


class UnplannedFlags(FlagsByValues):
    """Flags that bear on memory in a way that no plan counts, with the reason."""

    because: Words


class Program(Facts):
    """The words that start a server. The program has ``kind`` if it is none; ``launcher`` wraps the engine; ``own`` names fit other programs too.

    A command is written with the ``written`` one, else with the first. One ``by_flag`` takes the model behind a flag alone, where others of
    the engine take it without one.
    """

    text: Words = field(name="words")
    kind: Literal["build", "model", "modelfile"] | None = None
    launcher: Words | None = None
    own: bool = False
    by_flag: bool = False
    written: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words."""
        return tuple(self.text.split())


class Image(Facts):
    """An image of containers: a part of its name, whether its entry point is the server (only with ``tag`` in its tag), and its version.

    ``version`` is the pattern of the version in a tag, ``in_name`` the one in the name; one that is not ``versioned`` has a version of its own.
    """

    repository: Words
    starts: bool = False
    versioned: bool = True
    tag: Words | None = None
    version: Words | None = None
    in_name: Words | None = None


class Container(Facts):
    """How a server runs in a container.

    ``images`` has the image for accelerators of each vendor, and for ``cpu``: ``{version}`` is three numbers, ``{sm}`` the compute capability, and
    ``{build}`` a build, which a release has none of. With ``entry`` the image's own entry point stays. ``words`` are what else the server is told,
    so that others reach it at its ``port``; ``script`` starts one that reads a file by a further ``{command}``. The variable ``downloads`` names
    the folder that models are downloaded to (huggingface_hub's ``HF_HOME``; llama.cpp common/common.cpp ``fs_get_cache_directory``; Ollama
    envconfig/config.go), and ``health`` answers once the server is there.
    """

    images: Mapping[Words, Words]
    port: int
    downloads: Words
    words: tuple[Words, ...] = ()
    entry: bool = False
    script: Words | None = None
    health: Words = "/health"


class Variable(Facts):
    """A variable that bears on memory: as a flag, as the keys ``key`` and ``also``, or by its own name; with a value of ``only`` alone.

    Releases from ``until`` on do not read it.
    """

    name: Words
    flag: Words | None = None
    key: Words | None = None
    also: Words | None = None
    only: tuple[Words, ...] = ()
    engine_option: Words | None = None
    until: Words | None = None


class Parameter(Facts):
    """A parameter of a Modelfile."""

    name: Words
    key: Words | None = None
    engine_option: Words | None = None
    without_effect: bool = False


class Spelling(Facts):
    """How an engine reads names: whether a beginning is enough, ``_`` is ``-``, ``-`` is ``_``, dots go into JSON, and ``+`` appends to a list."""

    abbreviations: bool = False
    underscores: bool = False
    dashes: bool = False
    dotted: bool = False
    plus: bool = False


class Diffusion(Facts):
    """The name of the server of images or films, and the flags and parts of names of models that tell it from one of language models."""

    name: Words
    flags: frozenset[Words]
    models: tuple[Words, ...]


class _Started(Facts):
    """How the server of one engine is started.

    ``called`` are its names elsewhere. With ``by_name`` its flags alone do not tell it. ``programs`` and ``images`` start it. ``positional``: the model may stand without a flag. ``config`` are flags that name a
    file of flags, which count more than the line if ``config_wins``. A line with one of ``excluded`` starts no server, and a program followed by one
    of ``not_started`` neither. ``unnamed`` are not worth a word. ``variables`` is the prefix of the variables that flags have, ``alone`` that of
    variables that nobody sets who does not start a server. Of each release from ``listed_since`` on all flags are known.
    """

    name: Words
    called: tuple[Words, ...] = ()
    by_name: bool = False
    programs: tuple[Program, ...]
    images: tuple[Image, ...]
    container: Container | None = None
    spelling: Spelling
    positional: bool
    config: tuple[Words, ...] = ()
    config_wins: bool = False
    excluded: frozenset[Words] = frozenset()
    not_started: frozenset[Words] = frozenset()
    unnamed: frozenset[Words] = frozenset()
    variables: str | None = None
    alone: Words | None = None
    diffusion: Diffusion | None = None
    environment: tuple[Variable, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    listed_since: Words | None = None


class EngineFlagsFile(_Started):
    """``engines/<id>/flags.yaml``: how an engine's server is started, its flags, and what kvplan makes of each."""

    place: ClassVar[str] = "{0.id}/flags.yaml"
    schema_version: Version
    id: Words
    recorded: Date
    source: Words
    flags: tuple[FlagRow, ...]
    unplanned: Annotated[tuple[UnplannedFlags, ...], Meta(description="a list of rows")]
    without_effect: FlagsByValues

    def contradiction(self) -> tuple[str, str] | None:
        said = [flag for row in self.flags for flag in (*_named(row.flag)["spellings"], *row.off)]
        for group in (*self.unplanned, self.without_effect):
            said += [flag for each in (*group.switch, *group.value, *group.values) for flag in _named(each)["spellings"]]
        twice = next((flag for flag in said if said.count(flag) > 1), None)
        return None if twice is None else ("flags", f"has {twice}, which stands twice in the file")


class EngineFlags(_Started):
    """How the server of one engine is started, with all its flags."""

    engine: str
    flags: tuple[Flag, ...]

    @property
    def program(self) -> tuple[str, ...]:
        """The words that a command begins with."""
        return next((each.words for each in self.programs if each.written), self.programs[0].words)

    @property
    def flags_take_model(self) -> bool:
        """True if a flag or a word of the command names the model."""
        return self.positional or any(flag.key == "model" for flag in self.flags)

    @cached_property
    def spelled(self) -> Mapping[str, Flag]:
        """Spelling -> flag, without the negations."""
        return {spelling: flag for flag in self.flags for spelling in flag.spellings}

    @cached_property
    def negations(self) -> Mapping[str, Flag]:
        """Spelling of the negation of a switch -> the switch."""
        out = {
            f"--no-{each[2:]}": flag for each, flag in self.spelled.items() if flag.takes == "switch" and each.startswith("--")
        }
        return {each: flag for each, flag in out.items() if each not in self.spelled} | {
            each: flag for flag in self.flags for each in flag.off
        }

    def find(self, spelled: str) -> tuple[Flag | None, bool]:
        """The flag of a spelling, and whether it is its negation."""
        name = spelled
        if name.startswith("--"):
            name = name.replace("_", "-") if self.spelling.underscores else name
            name = "--" + name[2:].replace("-", "_") if self.spelling.dashes else name
        for each in (spelled, name):
            if each in self.spelled:
                return self.spelled[each], False
            if each in self.negations:
                return self.negations[each], True
        if not name.startswith("--") and len(name) > 4 and f"-{name}" in self.spelled:
            # A hyphen is missing.
            return self.spelled[f"-{name}"], False
        if self.spelling.abbreviations and name.startswith("--") and len(name) > 3:
            near = {id(flag): (flag, False) for each, flag in self.spelled.items() if each.startswith(name)}
            near |= {id(flag): (flag, True) for each, flag in self.negations.items() if each.startswith(name)}
            if len(near) == 1:
                return next(iter(near.values()))
        return None, False

    @cached_property
    def named(self) -> Mapping[str, Flag]:
        """Name -> flag."""
        return {flag.name: flag for flag in reversed(self.flags)}

    @cached_property
    def flag_of(self) -> Mapping[str, Flag]:
        """Name -> the flag that is written for it: a key of a server (``kv_cache_dtype``), an option of the engine or of a plan, or the flag's own name."""
        flags = self.flags[::-1]
        options = {flag.option: flag for flag in flags if flag.option is not None}
        engine_options = {flag.engine_option: flag for flag in flags if flag.engine_option is not None}
        keys = {flag.key: flag for flag in flags if flag.key is not None}
        scheduler = {flag.scheduler_option: flag for flag in flags if flag.scheduler_option is not None}
        return {**self.named, **scheduler, **options, **engine_options, **keys}

    @cached_property
    def written(self) -> Mapping[str, str]:
        """Name of :attr:`flag_of`, or an option of the engine that a negation is -> how a command spells it."""
        off = {flag.off_engine_option: flag.off[0] for flag in self.flags if flag.off_engine_option is not None}
        return {**{name: flag.spelled for name, flag in self.flag_of.items()}, **off}

    def words(self, name: str, *values: object) -> list[str]:
        """The words of a command for a name of :attr:`written`: its flag, and the values behind it.

        >>> engine_flags("vllm").words("max_model_len", 4096)
        ['--max-model-len', '4096']
        """
        return [self.written[name], *map(str, values)]

    def text(self, name: str, value: object) -> str:
        """The flag of a name with its value, as text; empty if the engine has no flag for it.

        >>> engine_flags("vllm").text("max_model_len", 4096), engine_flags("vllm").text("n_ctx", 4096)
        ('--max-model-len 4096', '')
        """
        return " ".join(self.words(name, value)) if name in self.written else ""

    def is_switch(self, name: str) -> bool:
        """True if the flag of a name has no value.

        >>> engine_flags("vllm").is_switch("enable_chunked_prefill"), engine_flags("vllm").is_switch("watermark")
        (True, False)
        """
        return name in self.flag_of and self.flag_of[name].takes == "switch"

    def negated(self, name: str) -> str:
        """The words with which a command turns off the switch of this name.

        >>> engine_flags("vllm").negated("enable_prefix_caching"), engine_flags("llamacpp").negated("kv_unified")
        ('--no-enable-prefix-caching', '-no-kvu')
        """
        flag = self.flag_of[name]
        return flag.off[0] if flag.off else f"--no-{flag.spelled.removeprefix('--')}"

    @cached_property
    def option_variables(self) -> Mapping[str, str]:
        """Engine option -> the variable of the environment that it is."""
        return {row.engine_option: row.name for row in self.environment if row.engine_option is not None}

    @cached_property
    def options(self) -> Mapping[str, tuple[str, ...]]:
        """Option of a plan -> the flags that kvplan's own line takes for it, without one letter, which is kvplan's."""
        out: dict[str, tuple[str, ...]] = {}
        for flag in self.flags:
            if flag.option is not None and not flag.own:
                long = tuple(each for each in flag.spellings if len(each) > 2)
                out[flag.option] = (*out.get(flag.option, ()), *long)
        return out

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Engine options whose flag has the same name and a value."""
        return tuple(flag.engine_option for flag in self._own_options if flag.engine_option and flag.takes != "switch")

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Engine options whose flag is a switch of the same name."""
        return tuple(flag.engine_option for flag in self._own_options if flag.engine_option and flag.takes == "switch")

    @property
    def _own_options(self) -> list[Flag]:
        return [flag for flag in self.flags if flag.engine_option == flag.name and flag.option is None and not flag.own]

    @cached_property
    def together(self) -> Mapping[str, tuple[str, ...]]:
        """Option -> the flags that say it in common."""
        out: dict[str, tuple[str, ...]] = {}
        for flag in self.flags:
            if flag.together is not None:
                out[flag.together] = (*out.get(flag.together, ()), *flag.spellings)
        return out

    @cached_property
    def takes(self) -> Mapping[str, str]:
        """Flag that a plan leaves out -> how many values follow it."""
        out: dict[str, str] = {}
        for flag in self.flags:
            if flag.option or flag.engine_option or flag.together or flag.key in ("model", "revision"):
                continue
            many = _MANY.get(flag.takes, VALUE)
            out |= dict.fromkeys(flag.spellings, many)
            if many == SWITCH:
                out |= dict.fromkeys((each for each, switch in self.negations.items() if switch is flag), SWITCH)
        return out

    @cached_property
    def unplanned(self) -> Mapping[str, str]:
        """Flag that bears on memory in a way that no plan counts -> the reason."""
        out = {each: flag.because for flag in self.flags if flag.because for each in flag.spellings}
        for each, flag in self.negations.items():
            reason = flag.off_because or flag.because
            if reason:
                out[each] = reason
        return out


def without(unplanned: Mapping[str, str]) -> list[str]:
    """A sentence for each reason why a plan does not count a flag that may bear on memory.

    >>> without({"--hf-overrides": "it changes the model", "--model-impl": "it changes the model"})
    ['the plan is without --hf-overrides, --model-impl, which may bear on memory: it changes the model.']
    """
    flags: dict[str, list[str]] = {}
    for flag, reason in unplanned.items():
        flags.setdefault(reason, []).append(flag)
    return [f"the plan is without {', '.join(each)}, which may bear on memory: {reason}." for reason, each in flags.items()]


def engines() -> tuple[str, ...]:
    """The engines whose flags are known."""
    return tuple(name.partition("/")[0] for name in names("engines") if name.endswith("/flags"))


@lru_cache(maxsize=16)
def engine_flags(engine: str) -> EngineFlags:
    """The flags of this engine.

    >>> flags = engine_flags("vllm")
    >>> flags.options["seq"], flags.takes["--host"], flags.unplanned["--hf-overrides"]
    (('--max-model-len',), '1', 'it changes the model')
    >>> engine_flags("llamacpp").spelled["-ub"].engine_option
    'n_ubatch'
    """
    file = convert(record("engines", f"{engine}/flags"), EngineFlagsFile)
    flags = [_flag(row) for row in file.flags]
    for group in (*file.unplanned, file.without_effect):
        because = group.because if isinstance(group, UnplannedFlags) else None
        for kind, takes in _KINDS.items():
            said: dict[str, Any] = {"takes": takes, "because": because, "bears": because is not None}
            flags += [Flag(**_named(each), **said) for each in getattr(group, kind)]
    flags += [Flag(**_named(each), takes="text", because=_UNREAD) for each in file.config]
    started = {name: getattr(file, name) for name in _Started.__struct_fields__}
    return EngineFlags(**started | {"engine": file.id, "called": (file.id, file.name, *file.called), "flags": tuple(flags)})


def _flag(row: FlagRow) -> Flag:
    """The flag of a row."""
    named = _named(row.flag, row.name)
    option = named["name"] if row.engine_option is True else row.engine_option
    return Flag(**{name: getattr(row, name) for name in _FlagFacts.__struct_fields__}, **named, engine_option=option)


def _named(flag: Spelled, name: str | None = None) -> dict[str, Any]:
    """The spellings of a flag, and its name: by default the first long spelling, with underscores."""
    spellings = (flag,) if isinstance(flag, str) else flag
    name = name or next((each for each in spellings if each.startswith("--")), spellings[0])
    return {"spellings": spellings, "name": name.lstrip("-").replace("-", "_")}
