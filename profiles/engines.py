"""Constants of engines: one YAML file per engine in ``engines/``, read compiled, with the source of every number.

What was measured of llama.cpp: how far the buffers that it reserves lie from the derived ones (``engines/llamacpp.yaml``).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import record
from hwcalc.profiles.form import Date, Estimate, FactFile, Facts, Listed, Whole, Words, ruled

_NEWEST: Final = 1_000
"""Stands for the newest patch of a minor version."""
_MINOR: Final = 2
"""Numbers of a version without a patch."""

Version = tuple[int, ...]


def _numbers(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def _newest_first(entries: Sequence[Mapping[str, str]]) -> str | None:
    versions = [_numbers(entry["since"]) for entry in entries]
    falls = all(newer > older for newer, older in pairwise(versions)) and versions[-1:] == [(0, 0)]
    return None if falls else 'must go from the newest version to "0.0"'


def _to_every_gpu(classes: Sequence[Mapping[str, int]]) -> str | None:
    ends = bool(classes) and classes[-1]["least_gib"] == 0
    return None if ends else "must end with the class of every GPU: least_gib 0"


VersionText: TypeAlias = Annotated[
    str, Meta(pattern=r"^[0-9]{1,3}(?:\.[0-9]{1,3}){1,3}$", description='a version in quotes, like "0.21"')
]
ExactShare: TypeAlias = Annotated[
    str, Meta(pattern=r"^0\.[0-9]{1,4}$", description='a share of 1 in quotes, like "0.92": it is exact')
]
Names: TypeAlias = Annotated[tuple[Words, ...], Meta(description="a list of names")]
Quoted: TypeAlias = Annotated[tuple[Words, ...], Meta(description="a list of words in quotes")]


class EngineFile(FactFile):
    """``engines/<id>.yaml``."""

    id: Words
    recorded: Date


class EstimateSince(Estimate):
    """An estimate from version ``since`` on."""

    since: VersionText


ByVersion: TypeAlias = Annotated[tuple[EstimateSince, ...], ruled(_newest_first)]


class Utilization(Facts):
    """vLLM's share of a GPU from version ``since`` on."""

    since: VersionText
    value: ExactShare
    source: Words


class SourcedVersion(Facts):
    """A version with its source."""

    value: VersionText
    source: Words


class SourcedWhole(Facts):
    """A whole number with its source."""

    value: Whole
    source: Words


class SourcedShare(Facts):
    """A share with its source."""

    value: ExactShare
    source: Words


class BatchDefaults(Facts):
    """Defaults of vLLM's scheduler for GPUs with at least ``least_gib``, except for the listed names and capabilities.

    They hold from version ``since`` until before ``until``.
    """

    since: VersionText = "0.0"
    until: VersionText | None = None
    least_gib: Annotated[int, Meta(ge=0, description="a whole number of GiB")]
    except_names: Quoted = ()
    except_capabilities: Quoted = ()
    max_num_seqs: Whole
    max_num_batched_tokens: Whole
    source: Words

    def holds(self, planned: Version) -> bool:
        """True if they are those of a planned version (:func:`planned_version`)."""
        return since(self.since) <= planned and (self.until is None or planned < since(self.until))


class SecondRunner(Facts):
    """The models that vLLM's second runner runs by default from version ``since`` on.

    ``models`` is ``all``, ``dense`` (those without experts, and the listed classes), ``unquantized`` (the listed classes, if they have
    neither experts nor quantised weights), or ``none`` (the listed classes alone).
    """

    since: VersionText
    models: Annotated[Literal["all", "dense", "unquantized", "none"], Meta(description="one of all, dense, unquantized, none")]
    architectures: Names
    source: Words


class VllmActivation(Facts):
    """Peak of the profile run."""

    hidden_copies: ByVersion
    expert_share: ByVersion
    quantized_expert_share: ByVersion
    encoder_patches: ByVersion
    patch_numbers: ByVersion


class VllmSampler(Facts):
    """Bytes for each logit of the profile run. With fewer than ``few_rows`` of them torch sorts all at once."""

    logit_bytes: ByVersion
    few_rows: SourcedWhole
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

    utilization: Annotated[tuple[Utilization, ...], ruled(_newest_first)]
    graphs_since: SourcedVersion
    batch_classes: Annotated[tuple[BatchDefaults, ...], ruled(_to_every_gpu)]
    activation: VllmActivation
    sampler: VllmSampler
    runner2: Annotated[tuple[SecondRunner, ...], ruled(_newest_first)]
    graphs: VllmGraphs
    non_torch: VllmNonTorch
    expert_exchange: VllmExchange

    def estimate(self, name: str, version: str) -> Estimate:
        """The estimate with a dotted name such as ``graphs.attention`` that holds for a version."""
        planned = planned_version(version)
        entries: Sequence[EstimateSince] = attrgetter(name)(self)
        return next(entry for entry in entries if since(entry.since) <= planned)


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
    margin: SourcedShare
    """Share of the GPU that plans leave free by default."""

    def estimate(self, name: str) -> Estimate:
        """An estimate by its dotted name, such as ``communication.nvlink``."""
        estimate: Estimate = attrgetter(name)(self)
        return estimate


class LlamacppFile(EngineFile):
    """``llamacpp.yaml``, whose comments say what each number is."""

    compute: Annotated[Mapping[Words, Estimate], Meta(min_length=1, description="a mapping of moments")]
    """The reserved size as a multiple of the derived one, by the name of the fullest moment."""
    host_bandwidth: Estimate
    """GB/s."""


class BuildsFile(EngineFile):
    """``engines/llamacpp/builds.yaml``, whose comments say what each number is."""

    place: ClassVar[str] = "{0.id}/builds.yaml"
    source: Words
    architectures: Annotated[
        Mapping[Annotated[str, Meta(pattern=r"^b[0-9]{1,6}$", description="the name of a build, like b6900")], tuple[Words, ...]],
        Meta(min_length=1, description="a mapping of builds to lists of names"),
    ]
    latents: Whole
    ollama: Annotated[Mapping[VersionText, Whole], Meta(min_length=1, description="a mapping of releases to builds")]
    ollama_vendored: Annotated[Mapping[VersionText, Whole], Meta(min_length=1, description="a mapping of releases to builds")]


class LibraryFile(EngineFile):
    """``engines/ollama/library.yaml``: names of models by their ids, and how the library spells formats."""

    place: ClassVar[str] = "{0.id}/library.yaml"
    source: Words
    formats: Mapping[Words, Words]
    models: Mapping[Words, Words]
    published: Mapping[Words, Words]


Copies: TypeAlias = Annotated[
    Mapping[Words, Mapping[Words, tuple[Words, ...]]], Meta(description="a mapping of models to repositories and their formats")
]


class PublishedFile(EngineFile):
    """``engines/<id>/published.yaml``: repositories of the Hub that have models of the catalog in other formats, the best known first."""

    place: ClassVar[str] = "{0.id}/published.yaml"
    source: Words
    models: Copies
    in_parts: Copies = MappingProxyType({})
    """Those whose file of a model is cut in several."""


class Refusal(Facts):
    """What a user is told whose model is not run, and what helps."""

    message: Words
    hint: Words


class ClassesFile(EngineFile):
    """``engines/<id>/classes.yaml``: the model classes that an engine runs, a row each, of words and ``word=value``."""

    place: ClassVar[str] = "{0.id}/classes.yaml"
    source: Words
    by: Annotated[Literal["model_type", "architecture"], Meta(description="one of model_type, architecture")]
    words: Annotated[Mapping[Words, Words], Meta(min_length=1, description="a mapping of words to what they say")]
    endings: Annotated[Mapping[Words, Words], Meta(description="a mapping of ends of names to words")] = MappingProxyType({})
    refused: Annotated[Mapping[Words, Refusal], Meta(description="a mapping of words to message and hint")]
    classes: Annotated[Mapping[Words, Listed], Meta(min_length=1, description="a mapping of names to lists of words")]

    def contradiction(self) -> tuple[str, str] | None:
        for ending, word in self.endings.items():
            if word not in self.words:
                return f"endings.{ending}", f"has the word {word}, which is not among the words"
        for name, row in self.classes.items():
            for entry in row:
                word, _, value = entry.partition("=")
                if word not in self.words:
                    return f"classes.{name}", f"has the word {word}, which is not among the words"
                if word == "as" and value not in self.classes:
                    return f"classes.{name}", f"goes as {value}, which has no row"
        return None


@lru_cache(maxsize=256)
def planned_version(text: str) -> Version:
    """The numbers of a version that is planned, to compare with ``since``. Two numbers stand for the newest patch of them.

    >>> planned_version("0.20.1") < planned_version("0.20") < planned_version("0.21")
    True
    >>> planned_version("0.6.1.post2")
    (0, 6, 1)
    """
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers) if len(numbers) > _MINOR else (*numbers, _NEWEST)


@lru_cache(maxsize=1024)
def since(text: str) -> Version:
    """The first release that a version of two numbers means: ``(0, 20)`` comes before every 0.20.x."""
    return _numbers(text)


@lru_cache(maxsize=1)
def runtime_profile() -> RuntimeFile:
    """The constants of every process."""
    return convert(record("engines", "runtime"), RuntimeFile)


@lru_cache(maxsize=1)
def vllm_profile() -> VllmFile:
    """The constants of vLLM."""
    return convert(record("engines", "vllm"), VllmFile)


@lru_cache(maxsize=1)
def llamacpp_profile() -> LlamacppFile:
    """The constants of llama.cpp."""
    return convert(record("engines", "llamacpp"), LlamacppFile)


class LlamacppBuilds(Record):
    """The content of ``llamacpp/builds.yaml``."""

    architectures: Mapping[str, int]
    """An architecture -> the first build that knows it; older builds know all others."""
    latents: int
    """The first build that keeps latents."""
    ollama: Mapping[str, int]
    """A release of Ollama -> the build that it and those after it start, or have in themselves; newest first."""


@lru_cache(maxsize=1)
def llamacpp_builds() -> LlamacppBuilds:
    """The builds of llama.cpp that brought architectures, and those of Ollama.

    >>> llamacpp_builds().architectures["gpt-oss"], llamacpp_builds().ollama["0.30.1"]
    (6096, 9479)
    """
    file = convert(record("engines", "llamacpp/builds"), BuildsFile)
    return LlamacppBuilds(
        architectures={name: int(build[1:]) for build, names in file.architectures.items() for name in names},
        latents=file.latents,
        ollama={**file.ollama, **file.ollama_vendored},
    )


OLLAMA_PULLS: Final = "q4_k_m"
"""The format of what ``ollama run NAME`` pulls for the models of its library that are not stored as they were published."""


def ollama_name(model: str, weights: str | None) -> str | None:
    """The name in Ollama's library of a model in a GGUF format, or as it was published; ``None`` if it has none.

    >>> ollama_name("Qwen/Qwen3-14B", "q4_k_m"), ollama_name("openai/gpt-oss-20b", None), ollama_name("Qwen/Qwen3-14B", "iq3_xxs")
    ('qwen3:14b-q4_K_M', 'gpt-oss:20b', None)
    """
    file = _ollama_library()
    if weights is None:
        return file.published.get(model)
    name, form = file.models.get(model), file.formats.get(weights)
    return f"{name}-{form}" if name and form else None


@lru_cache(maxsize=1)
def _ollama_library() -> LibraryFile:
    return convert(record("engines", "ollama/library"), LibraryFile)


def published_copy(engine: str, model: str, weights: str, *, in_parts: bool = True) -> str | None:
    """A repository of the Hub that has a model of the catalog in a format of an engine; ``None`` if none is known.

    Without ``in_parts`` the model is one file there.

    >>> published_copy("llamacpp", "Qwen/Qwen3-14B", "q4_k_m"), published_copy("llamacpp", "Qwen/Qwen3-14B", "q3_k_l")
    ('Qwen/Qwen3-14B-GGUF', 'MaziyarPanahi/Qwen3-14B-GGUF')
    """
    file = _published(engine)
    tables = (file.models, file.in_parts) if in_parts else (file.models,)
    return next((name for table in tables for name, formats in table.get(model, {}).items() if weights in formats), None)


@lru_cache(maxsize=2)
def _published(engine: str) -> PublishedFile:
    return convert(record("engines", f"{engine}/published"), PublishedFile)
