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
    "RuntimeProfile",
    "Since",
    "VllmProfile",
    "parse_runtime",
    "parse_vllm",
    "runtime_profile",
    "vllm_profile",
]

BUILT_IN: Final = Path(__file__).with_name("engines")
SCHEMA_VERSION: Final = 1

_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_SHARE = re.compile(r"0\.[0-9]{1,4}")


@frozen
class Since:
    """A value that is valid from version ``since`` on."""

    since: tuple[int, int]
    value: str
    source: str


@frozen
class BatchClass:
    """Defaults of the scheduler for GPUs with at least ``least_gib``, except for the listed names and capabilities."""

    least_gib: int
    except_names: tuple[str, ...]
    except_capabilities: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    source: str


@frozen
class VllmProfile:
    """The checked content of ``vllm.yaml``. Estimates have dotted names such as ``graphs.attention``."""

    utilization: tuple[Since, ...]
    graphs_since: tuple[int, int]
    batch_classes: tuple[BatchClass, ...]
    estimates: dict[str, Estimate]

    def estimate(self, name: str) -> Estimate:
        """An estimate by its dotted name."""
        return self.estimates[name]


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
    "activation": ("logit_bytes", "encoder_patches"),
    "graphs": ("attention", "state_graph", "state_graphs", "state_share"),
    "non_torch": ("process",),
}
"""The estimates of ``vllm.yaml``: section -> its parts. A section without parts is an estimate itself."""
RUNTIME_ESTIMATES: Final = {
    "context": ("cuda", "rocm", "other"),
    "kernels": (),
    "workspace": ("sm_90", "other"),
    "communication": ("nvlink", "pcie", "expert_parallel"),
    "activation": ("hidden_copies", "logit_bytes", "chunk_tokens"),
    "rotary_bytes": (),
    "uncounted_weights": (),
}
"""The estimates of ``runtime.yaml``: section -> its parts."""
_OTHER_KEYS: Final = ("schema_version", "id", "recorded", "utilization", "graphs_since", "batch_classes")


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
        estimates=_estimates(file, ESTIMATES),
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


def _version(file: YamlFile, key: str, text: Any) -> tuple[int, int]:
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        raise wrong(file, key, 'must name a version in quotes, like "0.21"')
    major, _, minor = text.partition(".")
    return int(major), int(minor)


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
    if out != sorted(out, key=lambda entry: entry.since, reverse=True) or out[-1].since != (0, 0):
        raise wrong(file, "utilization", 'must go from the newest version to "0.0"')
    return tuple(out)


def _batch_classes(file: YamlFile) -> tuple[BatchClass, ...]:
    out = []
    for number, item in enumerate(_entries(file, "batch_classes")):
        key = f"batch_classes.{number}"
        needed = {"least_gib", "max_num_seqs", "max_num_batched_tokens", "source"}
        if not needed <= set(item) <= needed | {"except_names", "except_capabilities"}:
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
