"""The forms of the engines' files."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from hwcalc.profiles.schema import Date, Estimate, FactFile, Facts, Whole, Words, WrongKeyError

T = TypeVar("T")
VersionText = Annotated[str, Field(pattern=r"^[0-9]{1,3}(?:\.[0-9]{1,3}){1,3}$", description='a version in quotes, like "0.21"')]
BuildText = Annotated[str, Field(pattern=r"^b[0-9]{1,6}$", description="the name of a build, like b6900")]
ExactShare = Annotated[str, Field(pattern=r"^0\.[0-9]{1,4}$", description='a share of 1 in quotes, like "0.92": it is exact')]

_ACCELERATOR: Final = r"^(?:[0-9]{1,2}\.[0-9]\+?|[a-z][a-z0-9-]*\*?)$"
_ACCELERATOR_WORDS: Final = "a compute capability in quotes ('7.5', '7.5+'), an architecture (gfx942, 'gfx*') or an id"


def _newest_first(entries: list[Any]) -> list[Any]:
    versions = [tuple(map(int, entry.since.split("."))) for entry in entries]
    if not all(newer > older for newer, older in pairwise(versions)) or versions[-1:] != [(0, 0)]:
        raise ValueError('must go from the newest version to "0.0"')
    return entries


def _to_every_gpu(classes: list[BatchDefaults]) -> list[BatchDefaults]:
    if not classes or classes[-1].least_gib != 0:
        raise ValueError("must end with the class of every GPU: least_gib 0")
    return classes


class EngineFile(FactFile):
    """``engines/<id>.yaml``."""

    id: Words
    recorded: Date

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)


class EstimateSince(Estimate):
    """An estimate from version ``since`` on."""

    since: VersionText


ByVersion = Annotated[list[EstimateSince], AfterValidator(_newest_first)]


class Utilization(Facts):
    """vLLM's share of a GPU from version ``since`` on."""

    since: VersionText
    value: ExactShare
    source: Words


class Sourced(Facts, Generic[T]):
    """A value with its source."""

    value: T
    source: Words


class BatchDefaults(Facts):
    """Defaults of vLLM's scheduler for GPUs from ``least_gib`` on, and for some versions."""

    since: VersionText = "0.0"
    until: VersionText | None = None
    least_gib: Annotated[int, Field(ge=0, description="a whole number of GiB")]
    except_names: Annotated[list[Words], Field(default_factory=list, description="a list of words in quotes")]
    except_capabilities: Annotated[list[Words], Field(default_factory=list, description="a list of words in quotes")]
    max_num_seqs: Whole
    max_num_batched_tokens: Whole
    source: Words


class SecondRunner(Facts):
    """The models that vLLM's second runner runs from version ``since`` on."""

    since: VersionText
    models: Annotated[Literal["all", "dense", "unquantized", "none"], Field(description="one of all, dense, unquantized, none")]
    architectures: Annotated[list[Words], Field(description="a list of names")]
    source: Words


class VllmActivation(Facts):
    """Peak of the profile run."""

    hidden_copies: ByVersion
    expert_share: ByVersion
    quantized_expert_share: ByVersion
    encoder_patches: ByVersion
    patch_numbers: ByVersion


class VllmSampler(Facts):
    """Bytes for each logit of the profile run."""

    logit_bytes: ByVersion
    few_rows: Sourced[Whole]
    few_logit_bytes: ByVersion
    buffer_rows: ByVersion
    runner2_logit_bytes: ByVersion


class VllmGraphs(Facts):
    """The pool of CUDA graphs."""

    attention: ByVersion
    sparse_draft: ByVersion
    state_graph: ByVersion
    state_graphs: ByVersion
    state_share: ByVersion


class VllmNonTorch(Facts):
    """What the process takes outside torch."""

    single: ByVersion
    stages: ByVersion
    pcie: ByVersion
    nvlink_pair: ByVersion
    nvlink: ByVersion
    unified: ByVersion
    amd: ByVersion


class VllmExchange(Facts):
    """Buffers with which ranks exchange the tokens of experts."""

    deepep: ByVersion


class VllmFile(EngineFile):
    """``vllm.yaml``, whose comments say what each number is."""

    utilization: Annotated[list[Utilization], AfterValidator(_newest_first)]
    graphs_since: Sourced[VersionText]
    batch_classes: Annotated[list[BatchDefaults], AfterValidator(_to_every_gpu)]
    activation: VllmActivation
    sampler: VllmSampler
    runner2: Annotated[list[SecondRunner], AfterValidator(_newest_first)]
    graphs: VllmGraphs
    non_torch: VllmNonTorch
    expert_exchange: VllmExchange


class ByPlatform(Facts):
    """One estimate for each maker's software."""

    cuda: Estimate
    rocm: Estimate
    other: Estimate


class TensorrtLlm(Facts):
    """What TensorRT-LLM captures."""

    graphs: Estimate


class Workspace(Facts):
    """Workspaces of cuBLAS by architecture."""

    sm_90: Estimate
    other: Estimate


class Communication(Facts):
    """Buffers of collective communication by link."""

    nvlink: Estimate
    pcie: Estimate
    expert_parallel: Estimate


class Activation(Facts):
    """One forward pass of any engine."""

    hidden_copies: Estimate
    logit_bytes: Estimate
    chunk_tokens: Estimate


class RuntimeFile(EngineFile):
    """``runtime.yaml``, whose comments say what each number is."""

    context: ByPlatform
    kernels: Estimate
    llamacpp: ByPlatform
    tensorrt_llm: TensorrtLlm
    workspace: Workspace
    communication: Communication
    activation: Activation
    rotary_bytes: Estimate
    uncounted_weights: Estimate
    margin: Sourced[ExactShare]


class LlamacppFile(EngineFile):
    """``llamacpp.yaml``, whose comments say what each number is."""

    compute: Annotated[dict[Words, Estimate], Field(min_length=1, description="a mapping of moments")]
    host_bandwidth: Estimate


class Refusal(Facts):
    """What a user is told whose model is not run, and what helps."""

    message: Words
    hint: Words


class ClassesFile(EngineFile):
    """``engines/<id>/classes.yaml``: the model classes that an engine runs, a row each, of words and ``word=value``."""

    source: Words
    by: Annotated[Literal["model_type", "architecture"], Field(description="one of model_type, architecture")]
    words: Annotated[dict[Words, Words], Field(min_length=1, description="a mapping of words to what they say")]
    endings: Annotated[dict[Words, Words], Field(default_factory=dict, description="a mapping of ends of names to words")]
    refused: Annotated[dict[Words, Refusal], Field(description="a mapping of words to message and hint")]
    classes: Annotated[dict[Words, list[Words]], Field(min_length=1, description="a mapping of names to lists of words")]

    def place(self) -> tuple[str, ...]:
        return (self.id, "classes.yaml")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for ending, word in self.endings.items():
            if word not in self.words:
                raise WrongKeyError(f"endings.{ending}", f"has the word {word}, which is not among the words")
        for name, row in self.classes.items():
            for entry in row:
                word, _, value = entry.partition("=")
                if word not in self.words:
                    raise WrongKeyError(f"classes.{name}", f"has the word {word}, which is not among the words")
                if word == "as" and value not in self.classes:
                    raise WrongKeyError(f"classes.{name}", f"goes as {value}, which has no row")
        return self


class BuildsFile(EngineFile):
    """``engines/llamacpp/builds.yaml``, whose comments say what each number is."""

    source: Words
    architectures: Annotated[
        dict[BuildText, list[Words]], Field(min_length=1, description="a mapping of builds to lists of names")
    ]
    latents: Whole
    ollama: Annotated[dict[VersionText, Whole], Field(min_length=1, description="a mapping of releases to builds")]
    ollama_vendored: Annotated[dict[VersionText, Whole], Field(min_length=1, description="a mapping of releases to builds")]

    def place(self) -> tuple[str, ...]:
        return (self.id, "builds.yaml")


class HardwareNeed(Facts):
    """What one source says of some accelerators; :mod:`hwcalc.profiles.engine_hardware` says how it reads."""

    formats: Annotated[list[Words], Field(default_factory=list, description="a list of names")]
    accelerators: Annotated[
        list[Annotated[str, Field(pattern=_ACCELERATOR, description=_ACCELERATOR_WORDS)]],
        Field(min_length=1, description="a list of accelerators"),
    ]
    answer: Annotated[Literal["runs", "open", "never"], Field(description="one of runs, open, never")]
    backend: Words | None = None
    since: VersionText = "0.0"
    until: VersionText | None = None
    source: Words
    note: Words | None = None


class EngineHardwareFile(EngineFile):
    """``engines/<id>/hardware.yaml``: on which accelerators an engine runs, and which formats need more."""

    runs: Annotated[list[HardwareNeed], Field(min_length=1, description="a list of rows")]
    weights: Annotated[list[HardwareNeed], Field(default_factory=list, description="a list of rows")]
    cache: Annotated[list[HardwareNeed], Field(default_factory=list, description="a list of rows")]
    attention: Annotated[list[HardwareNeed], Field(default_factory=list, description="a list of rows")]

    def place(self) -> tuple[str, ...]:
        return (self.id, "hardware.yaml")

    @model_validator(mode="after")
    def _named(self) -> Self:
        for section in ("runs", "weights", "cache", "attention"):
            for number, row in enumerate(getattr(self, section)):
                if bool(row.formats) == (section == "runs"):
                    wrong = "has formats, which only weights, cache and attention have" if row.formats else "has no formats"
                    raise WrongKeyError(f"{section}.{number}", wrong)
        return self


Spelled = Words | Annotated[list[Words], Field(min_length=1)]
"""A flag, or all its spellings, the one that is written first."""


class FlagsByValues(Facts):
    """Flags by how many values follow: none, one, or all words up to the next flag."""

    switch: list[Spelled] = Field(default_factory=list, description="a list of flags")
    value: list[Spelled] = Field(default_factory=list, description="a list of flags")
    values: list[Spelled] = Field(default_factory=list, description="a list of flags")


class UnplannedFlags(FlagsByValues):
    """Flags that bear on memory in a way that no plan counts, with the reason."""

    because: Words


class FlagRow(Facts):
    """A flag that bears on memory, or is an option of a plan: ``flags`` of ``engines/<id>/flags.yaml``, where ``hwcalc.profiles.engine_flags.Flag`` says what each key means."""

    flag: Spelled
    name: Words | None = None
    key: Words | None = None
    takes: Literal[
        "switch", "value", "text", "secret", "words", "list", "numbers", "commas", "tokens", "whole", "pairs", "optional", "spec"
    ] = "value"
    option: Words | None = None
    engine_option: Words | Literal[True] | None = None
    together: Words | None = None
    scheduler_option: Words | None = None
    own: bool = False
    since: Words | None = None
    negated: Words | None = None
    values: dict[Words, Words] = Field(default_factory=dict)
    any_value: Words | None = None
    only: list[Words] = Field(default_factory=list)
    absent: list[Words] = Field(default_factory=list)
    values_as: dict[Words, Words | None] = Field(default_factory=dict)
    plan_as: dict[Words, Words | None] = Field(default_factory=dict)
    off: list[Words] = Field(default_factory=list)
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


class ProgramRow(Facts):
    """The words that start a server."""

    words: Words
    kind: Literal["build", "model", "modelfile"] | None = None
    launcher: Words | None = None
    own: bool = False
    written: bool = False


class ImageRow(Facts):
    """An image of containers: a part of its name, whether its entry point is the server, and where its version stands."""

    repository: Words
    starts: bool = False
    versioned: bool = True
    tag: Words | None = None
    version: Words | None = None
    in_name: Words | None = None


class ContainerRow(Facts):
    """How the server runs in a container: ``hwcalc.profiles.engine_flags.Container`` says what each key means."""

    images: dict[Words, Words]
    port: int
    downloads: Words
    words: list[Words] = Field(default_factory=list)
    entry: bool = False
    script: Words | None = None
    health: Words = "/health"


class VariableRow(Facts):
    """A variable of the environment that bears on memory."""

    name: Words
    flag: Words | None = None
    key: Words | None = None
    also: Words | None = None
    only: list[Words] = Field(default_factory=list)
    engine_option: Words | None = None


class ParameterRow(Facts):
    """A parameter of a Modelfile."""

    name: Words
    key: Words | None = None
    engine_option: Words | None = None
    without_effect: bool = False


class SpellingRow(Facts):
    """How an engine reads the names of its flags."""

    abbreviations: bool = False
    underscores: bool = False
    dashes: bool = False
    dotted: bool = False
    plus: bool = False


class DiffusionRow(Facts):
    """How a server of images or films is told from one of language models."""

    name: Words
    flags: list[Words]
    models: list[Words]


class EngineFlagsFile(EngineFile):
    """``engines/<id>/flags.yaml``: how an engine's server is started, its flags, and what kvplan makes of each."""

    source: Words
    name: Words
    called: list[Words] = Field(default_factory=list)
    by_name: bool = False
    programs: list[ProgramRow]
    images: list[ImageRow]
    container: ContainerRow | None = None
    spelling: SpellingRow
    positional: bool
    config: list[Words] = Field(default_factory=list)
    config_wins: bool = False
    excluded: list[Words] = Field(default_factory=list)
    not_started: list[Words] = Field(default_factory=list)
    unnamed: list[Words] = Field(default_factory=list)
    variables: str | None = None
    alone: Words | None = None
    diffusion: DiffusionRow | None = None
    flags: list[FlagRow]
    unplanned: Annotated[list[UnplannedFlags], Field(description="a list of rows")]
    without_effect: FlagsByValues
    environment: list[VariableRow] = Field(default_factory=list)
    parameters: list[ParameterRow] = Field(default_factory=list)

    def place(self) -> tuple[str, ...]:
        return (self.id, "flags.yaml")

    @model_validator(mode="after")
    def _once(self) -> Self:
        said = [flag for row in self.flags for flag in (*_spellings(row.flag), *row.off)]
        for group in (*self.unplanned, self.without_effect):
            said += [flag for each in (*group.switch, *group.value, *group.values) for flag in _spellings(each)]
        twice = next((flag for flag in said if said.count(flag) > 1), None)
        if twice is not None:
            raise WrongKeyError("flags", f"has {twice}, which stands twice in the file")
        return self


def _spellings(flag: str | list[str]) -> list[str]:
    return [flag] if isinstance(flag, str) else flag


class VendorRow(Facts):
    """How a manifest asks for accelerators of a vendor."""

    resource: Words
    label: Words | None = None
    devices: list[Words] = Field(default_factory=list)
    visible: Words | None = None


class LibraryFile(EngineFile):
    """``engines/ollama/library.yaml``: names of models by their ids, and how the library spells formats."""

    source: Words
    formats: dict[Words, Words]
    models: dict[Words, Words]
    published: dict[Words, Words]

    def place(self) -> tuple[str, ...]:
        return (self.id, "library.yaml")


class LaunchFile(FactFile):
    """``launch.yaml``: what commands and manifests are made of, whatever engine they start."""

    id: Literal["launch"]
    recorded: Date
    source: Words
    wrappers: list[Words]
    processes: dict[Words, Words]
    shells: list[Words]
    containers: list[Words]
    container_switches: list[Words]
    visible_devices: list[Words]
    resources: list[Words]
    slices: Words
    vendors: dict[Words, VendorRow]
    shared_memory: Words
    gpu_labels: list[Words]
    instance_labels: list[Words]
    accelerators: dict[Words, Words]

    def place(self) -> tuple[str, ...]:
        return ("launch.yaml",)


FORMS: Final[dict[str, type[EngineFile]]] = {"llamacpp": LlamacppFile, "runtime": RuntimeFile, "vllm": VllmFile}
"""The form of each engine's file."""
ENGINE_FORMS: Final[dict[str, type[EngineFile]]] = {
    "builds": BuildsFile,
    "classes": ClassesFile,
    "flags": EngineFlagsFile,
    "hardware": EngineHardwareFile,
    "library": LibraryFile,
}
"""The form of each file in an engine's folder."""
