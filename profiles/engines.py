"""Constants of engines: one YAML file per engine in ``engines/``, with the source of every number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.estimate import Estimate, parse_estimate, parse_source, wrong
from hwcalc.profiles.yaml_file import YamlFile, read_yaml

__all__ = [
    "BUILT_IN",
    "BatchClass",
    "Estimate",
    "EstimateSince",
    "RunnerSince",
    "RuntimeProfile",
    "Since",
    "Version",
    "VllmProfile",
    "parse_runtime",
    "parse_vllm",
    "planned_version",
    "runtime_profile",
    "vllm_profile",
]

BUILT_IN: Final = Path(__file__).with_name("engines")
SCHEMA_VERSION: Final = 1

_VERSION = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){1,3}")
_NEWEST: Final = 1_000
"""Stands for the newest patch of a minor version."""
_MINOR: Final = 2
"""Numbers of a version without a patch."""
_SHARE = re.compile(r"0\.[0-9]{1,4}")


Version = tuple[int, ...]


@frozen
class Since:
    """A value that is valid from version ``since`` on."""

    since: Version
    value: str
    source: str


@frozen
class EstimateSince:
    """An estimate that is valid from version ``since`` on."""

    since: Version
    estimate: Estimate


@frozen
class RunnerSince:
    """The models that vLLM's second runner runs by default from version ``since`` on.

    ``models`` is ``all``, ``dense`` (those without experts, and the listed classes), ``unquantized`` (the listed classes, if they have
    neither experts nor quantised weights), or ``none`` (the listed classes alone).
    """

    since: Version
    models: str
    architectures: tuple[str, ...]
    source: str


@frozen
class BatchClass:
    """Defaults of the scheduler for GPUs with at least ``least_gib``, except for the listed names and capabilities.

    It holds from version ``since`` until before ``until``.
    """

    since: Version
    until: Version | None
    least_gib: int
    except_names: tuple[str, ...]
    except_capabilities: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    source: str

    def holds(self, planned: Version) -> bool:
        """Whether the class is that of a planned version (:func:`planned_version`)."""
        return self.since <= planned and (self.until is None or planned < self.until)


@frozen
class VllmProfile:
    """The checked content of ``vllm.yaml``. Estimates have dotted names such as ``graphs.attention``, and are newest first."""

    utilization: tuple[Since, ...]
    graphs_since: Version
    batch_classes: tuple[BatchClass, ...]
    few_rows: int
    """Rows of logits below which torch sorts all of them at once."""
    runner2: tuple[RunnerSince, ...]
    estimates: dict[str, tuple[EstimateSince, ...]]

    def estimate(self, name: str, version: str) -> Estimate:
        """The estimate with this dotted name that holds for a version."""
        planned = planned_version(version)
        return next(entry.estimate for entry in self.estimates[name] if entry.since <= planned)


@frozen
class RuntimeProfile:
    """The checked content of ``runtime.yaml``. Estimates have dotted names such as ``communication.nvlink``."""

    margin: Fraction
    """Share of the GPU that plans leave free by default."""
    estimates: dict[str, Estimate]

    def estimate(self, name: str) -> Estimate:
        """An estimate by its dotted name."""
        return self.estimates[name]


ESTIMATES: Final = {
    "activation": ("hidden_copies", "expert_share", "quantized_expert_share", "encoder_patches", "patch_numbers"),
    "sampler": ("logit_bytes", "few_logit_bytes", "buffer_rows", "runner2_logit_bytes"),
    "graphs": ("attention", "sparse_draft", "state_graph", "state_graphs", "state_share"),
    "non_torch": ("single", "stages", "pcie", "nvlink_pair", "nvlink", "amd"),
    "expert_exchange": ("deepep",),
}
"""The estimates of ``vllm.yaml``: section -> its parts. Each is a list by version, newest first."""
RUNTIME_ESTIMATES: Final = {
    "context": ("cuda", "rocm", "other"),
    "kernels": (),
    "llamacpp": ("cuda", "rocm", "other"),
    "tensorrt_llm": ("graphs",),
    "workspace": ("sm_90", "other"),
    "communication": ("nvlink", "pcie", "expert_parallel"),
    "activation": ("hidden_copies", "logit_bytes", "chunk_tokens"),
    "rotary_bytes": (),
    "uncounted_weights": (),
}
"""The estimates of ``runtime.yaml``: section -> its parts. A section without parts is an estimate itself."""
_OTHER_KEYS: Final = ("schema_version", "id", "recorded", "utilization", "graphs_since", "batch_classes", "runner2")
_RUNNER_MODELS: Final = ("all", "dense", "unquantized", "none")


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


@lru_cache(maxsize=1)
def runtime_profile() -> RuntimeProfile:
    """The constants of every process.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.
    """
    return parse_runtime(read_yaml(BUILT_IN / "runtime.yaml"))


def parse_runtime(file: YamlFile) -> RuntimeProfile:
    """Check the content of ``runtime.yaml``. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    _check_keys(file, ("schema_version", "id", "recorded", "margin", *RUNTIME_ESTIMATES))
    margin = file.data["margin"]
    value = margin.get("value") if isinstance(margin, dict) else None
    if not isinstance(value, str) or set(margin) != {"value", "source"} or _SHARE.fullmatch(value) is None:
        raise wrong(file, "margin", 'must have value ("0.05", in quotes: it is exact) and source')
    return RuntimeProfile(margin=Fraction(value), estimates=_estimates(file, RUNTIME_ESTIMATES))


@lru_cache(maxsize=1)
def vllm_profile() -> VllmProfile:
    """The constants of vLLM.

    Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.
    """
    return parse_vllm(read_yaml(BUILT_IN / "vllm.yaml"))


def parse_vllm(file: YamlFile) -> VllmProfile:
    """Check the content of ``vllm.yaml``. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    _check_keys(file, (*_OTHER_KEYS, *ESTIMATES))
    graphs = file.data["graphs_since"]
    if not isinstance(graphs, dict) or set(graphs) != {"value", "source"}:
        raise wrong(file, "graphs_since", "must have value and source")
    return VllmProfile(
        utilization=_utilization(file),
        graphs_since=_version(file, "graphs_since", graphs["value"]),
        batch_classes=_batch_classes(file),
        few_rows=_few_rows(file),
        runner2=_runners(file),
        estimates=_by_version(file),
    )


def _check_keys(file: YamlFile, known: tuple[str, ...]) -> None:
    for key in file.data:
        if key not in known:
            raise wrong(file, str(key), f"is not known. Allowed: {', '.join(known)}")
    for key in known:
        if key not in file.data:
            raise ProfileError(file.path, "is missing", key=key)
    if file.data["schema_version"] != SCHEMA_VERSION or file.data["id"] != file.path.stem:
        raise wrong(file, "schema_version", f"must be {SCHEMA_VERSION}, and id the file's stem")


def _estimates(file: YamlFile, sections: Mapping[str, tuple[str, ...]]) -> dict[str, Estimate]:
    estimates: dict[str, Estimate] = {}
    for section, names in sections.items():
        content = file.data[section]
        if not names:
            estimates[section] = parse_estimate(file, section, content)
            continue
        if not isinstance(content, dict) or set(content) != set(names):
            raise wrong(file, section, f"must have exactly {', '.join(names)}")
        for name in names:
            estimates[f"{section}.{name}"] = parse_estimate(file, f"{section}.{name}", content[name])
    return estimates


def _by_version(file: YamlFile) -> dict[str, tuple[EstimateSince, ...]]:
    estimates: dict[str, tuple[EstimateSince, ...]] = {}
    for section, names in ESTIMATES.items():
        content = file.data[section]
        others = {"few_rows"} if section == "sampler" else set()
        if not isinstance(content, dict) or set(content) != {*names, *others}:
            raise wrong(file, section, f"must have exactly {', '.join((*names, *sorted(others)))}")
        for name in names:
            estimates[f"{section}.{name}"] = _entries_since(file, f"{section}.{name}", content[name])
    return estimates


def _entries_since(file: YamlFile, key: str, content: Any) -> tuple[EstimateSince, ...]:
    if not isinstance(content, list) or not content or not all(isinstance(item, dict) for item in content):
        raise wrong(file, key, "must be a list of mappings with since, low, expected, high and source")
    out = []
    for number, item in enumerate(content):
        here = f"{key}.{number}"
        rest = {name: value for name, value in item.items() if name != "since"}
        since = _version(file, f"{here}.since", item.get("since"))
        out.append(EstimateSince(since=since, estimate=parse_estimate(file, here, rest)))
    _check_order(file, key, [entry.since for entry in out])
    return tuple(out)


def _check_order(file: YamlFile, key: str, versions: list[Version]) -> None:
    if versions != sorted(set(versions), reverse=True) or versions[-1] != (0, 0):
        raise wrong(file, key, 'must go from the newest version to "0.0"')


def _few_rows(file: YamlFile) -> int:
    content = file.data["sampler"].get("few_rows")
    value = content.get("value") if isinstance(content, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or set(content) != {"value", "source"}:
        raise wrong(file, "sampler.few_rows", "must have value (a whole number) and source")
    return value


def _runners(file: YamlFile) -> tuple[RunnerSince, ...]:
    out = []
    for number, item in enumerate(_entries(file, "runner2")):
        key = f"runner2.{number}"
        names = item.get("architectures")
        if set(item) != {"since", "models", "architectures", "source"} or item["models"] not in _RUNNER_MODELS:
            raise wrong(file, f"{key}.models", f"must have since, models ({', '.join(_RUNNER_MODELS)}), architectures and source")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise wrong(file, f"{key}.architectures", "must be a list of names")
        since = _version(file, f"{key}.since", item["since"])
        out.append(
            RunnerSince(since=since, models=item["models"], architectures=tuple(names), source=parse_source(file, key, item))
        )
    _check_order(file, "runner2", [entry.since for entry in out])
    return tuple(out)


def _version(file: YamlFile, key: str, text: Any) -> Version:
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        raise wrong(file, key, 'must name a version in quotes, like "0.21"')
    return tuple(int(part) for part in text.split("."))


def _entries(file: YamlFile, key: str) -> list[dict[str, Any]]:
    content = file.data[key]
    if not isinstance(content, list) or not content or not all(isinstance(item, dict) for item in content):
        raise wrong(file, key, "must be a list of mappings")
    return content


def _utilization(file: YamlFile) -> tuple[Since, ...]:
    out = []
    for number, item in enumerate(_entries(file, "utilization")):
        key = f"utilization.{number}"
        value = item.get("value")
        if set(item) != {"since", "value", "source"} or not isinstance(value, str) or _SHARE.fullmatch(value) is None:
            raise wrong(file, f"{key}.value", 'must have since, value ("0.92", in quotes: it is exact) and source')
        out.append(Since(since=_version(file, f"{key}.since", item["since"]), value=value, source=parse_source(file, key, item)))
    _check_order(file, "utilization", [entry.since for entry in out])
    return tuple(out)


def _batch_classes(file: YamlFile) -> tuple[BatchClass, ...]:
    out = []
    for number, item in enumerate(_entries(file, "batch_classes")):
        key = f"batch_classes.{number}"
        needed = {"least_gib", "max_num_seqs", "max_num_batched_tokens", "source"}
        if not needed <= set(item) <= needed | {"except_names", "except_capabilities", "since", "until"}:
            raise wrong(file, f"{key}.least_gib", f"must have {', '.join(sorted(needed))}")
        for name in ("least_gib", "max_num_seqs", "max_num_batched_tokens"):
            value = item[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < (name != "least_gib"):
                raise wrong(file, f"{key}.{name}", "must be a whole number")
        excepted = []
        for name in ("except_names", "except_capabilities"):
            words = item.get(name, [])
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise wrong(file, f"{key}.{name}", "must be a list of words in quotes")
            excepted.append(tuple(words))
        out.append(
            BatchClass(
                since=_version(file, f"{key}.since", item.get("since", "0.0")),
                until=_version(file, f"{key}.until", item["until"]) if "until" in item else None,
                least_gib=item["least_gib"],
                except_names=excepted[0],
                except_capabilities=excepted[1],
                max_num_seqs=item["max_num_seqs"],
                max_num_batched_tokens=item["max_num_batched_tokens"],
                source=parse_source(file, key, item),
            )
        )
    if out[-1].least_gib != 0:
        raise wrong(file, "batch_classes", "must end with the class of every GPU: least_gib 0")
    return tuple(out)
