"""Constants of engines: one YAML file per engine in ``engines/``, read compiled, with the source of every number.

What was measured of llama.cpp: how far the buffers that it reserves lie from the derived ones (``engines/llamacpp.yaml``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import Estimate, estimate_of, record

_NEWEST: Final = 1_000
"""Stands for the newest patch of a minor version."""
_MINOR: Final = 2
"""Numbers of a version without a patch."""

Version = tuple[int, ...]


class Since(Record):
    """A value that is valid from version ``since`` on."""

    since: Version
    value: str
    source: str


class RunnerSince(Record):
    """The models that vLLM's second runner runs by default from version ``since`` on.

    ``models`` is ``all``, ``dense`` (those without experts, and the listed classes), ``unquantized`` (the listed classes, if they have
    neither experts nor quantised weights), or ``none`` (the listed classes alone).
    """

    since: Version
    models: str
    architectures: Sequence[str]
    source: str


class BatchClass(Record):
    """Defaults of the scheduler for GPUs with at least ``least_gib``, except for the listed names and capabilities.

    It holds from version ``since`` until before ``until``.
    """

    since: Version = (0, 0)
    until: Version | None = None
    least_gib: int
    except_names: Sequence[str] = ()
    except_capabilities: Sequence[str] = ()
    max_num_seqs: int
    max_num_batched_tokens: int
    source: str

    def holds(self, planned: Version) -> bool:
        """True if the class is that of a planned version (:func:`planned_version`)."""
        return self.since <= planned and (self.until is None or planned < self.until)


class VllmProfile(Record):
    """The content of ``vllm.yaml``. Estimates have dotted names such as ``graphs.attention``, and are newest first."""

    utilization: tuple[Since, ...]
    graphs_since: Version
    batch_classes: tuple[BatchClass, ...]
    few_rows: int
    """Rows of logits below which torch sorts all of them at once."""
    runner2: tuple[RunnerSince, ...]
    estimates: Mapping[str, Sequence[tuple[Version, Estimate]]]
    """Each with the version since which it is valid."""

    def estimate(self, name: str, version: str) -> Estimate:
        """The estimate with this dotted name that holds for a version."""
        planned = planned_version(version)
        return next(estimate for since, estimate in self.estimates[name] if since <= planned)


class RuntimeProfile(Record):
    """The content of ``runtime.yaml``. Estimates have dotted names such as ``communication.nvlink``."""

    margin_text: str
    """Share of the GPU that plans leave free by default, as the file has it."""
    estimates: dict[str, Estimate]

    def estimate(self, name: str) -> Estimate:
        """An estimate by its dotted name."""
        return self.estimates[name]


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
    return tuple(int(part) for part in text.split("."))


@lru_cache(maxsize=1)
def runtime_profile() -> RuntimeProfile:
    """The constants of every process."""
    data = record("engines", "runtime")
    estimates: dict[str, Estimate] = {}
    for section, content in data.items():
        if not isinstance(content, dict) or "value" in content:
            continue
        if "low" in content:
            estimates[section] = estimate_of(content)
        else:
            estimates.update((f"{section}.{name}", estimate_of(part)) for name, part in content.items())
    return RuntimeProfile(margin_text=data["margin"]["value"], estimates=estimates)


@lru_cache(maxsize=1)
def vllm_profile() -> VllmProfile:
    """The constants of vLLM."""
    data = record("engines", "vllm")
    estimates: dict[str, Sequence[tuple[Version, Estimate]]] = {}
    for section, content in data.items():
        for name, entries in content.items() if isinstance(content, dict) else ():
            if isinstance(entries, list):
                estimates[f"{section}.{name}"] = [(_version(entry["since"]), estimate_of(entry)) for entry in entries]
    return VllmProfile(
        utilization=tuple(Since(**_dated(entry)) for entry in data["utilization"]),
        graphs_since=_version(data["graphs_since"]["value"]),
        batch_classes=tuple(BatchClass(**_dated(entry)) for entry in data["batch_classes"]),
        few_rows=data["sampler"]["few_rows"]["value"],
        runner2=tuple(RunnerSince(**_dated(entry)) for entry in data["runner2"]),
        estimates=estimates,
    )


def _dated(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a file with the numbers of its versions."""
    return {**entry, **{name: _version(entry[name]) for name in ("since", "until") if name in entry}}


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))


class LlamacppProfile(Record):
    """The content of ``llamacpp.yaml``."""

    compute: Mapping[str, Estimate]
    """The reserved size as a multiple of the derived one, by the name of the fullest moment."""
    host_bandwidth: Estimate
    """GB/s."""


@lru_cache(maxsize=1)
def llamacpp_profile() -> LlamacppProfile:
    """The constants of llama.cpp."""
    data = record("engines", "llamacpp")
    return LlamacppProfile(
        compute={name: estimate_of(entry) for name, entry in data["compute"].items()},
        host_bandwidth=estimate_of(data["host_bandwidth"]),
    )


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
    data = record("engines", "llamacpp/builds")
    return LlamacppBuilds(
        architectures={name: int(build[1:]) for build, names in data["architectures"].items() for name in names},
        latents=data["latents"],
        ollama={**data["ollama"], **data["ollama_vendored"]},
    )


def ollama_name(model: str, weights: str | None) -> str | None:
    """The name in Ollama's library of a model in a GGUF format, or as it was published; ``None`` if it has none.

    >>> ollama_name("Qwen/Qwen3-14B", "q4_k_m"), ollama_name("openai/gpt-oss-20b", None), ollama_name("Qwen/Qwen3-14B", "iq3_xxs")
    ('qwen3:14b-q4_K_M', 'gpt-oss:20b', None)
    """
    data = record("engines", "ollama/library")
    if weights is None:
        published: str | None = data["published"].get(model)
        return published
    name, form = data["models"].get(model), data["formats"].get(weights)
    return f"{name}-{form}" if name and form else None
