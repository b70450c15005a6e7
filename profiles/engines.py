"""Constants of engines: one YAML file each in ``engines/``, with the source of every number."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from formulas.frozen import frozen
from profiles.catalog import ProfileError
from profiles.yaml_file import YamlFile, read_yaml

__all__ = ["BUILT_IN", "BatchClass", "Estimate", "Since", "VllmProfile", "parse_vllm", "vllm_profile"]

BUILT_IN: Final = Path(__file__).with_name("engines")
SCHEMA_VERSION: Final = 1

_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_SHARE = re.compile(r"0\.[0-9]{1,4}")


@frozen
class Estimate:
    """A number that is not exact: low, expected, high, and where it comes from."""

    low: float
    expected: float
    high: float
    source: str


@frozen
class Since:
    """A value that holds from a version on."""

    since: tuple[int, int]
    value: str
    source: str


@frozen
class BatchClass:
    """Defaults of the scheduler for GPUs from a size on, but for those named."""

    least_gib: int
    except_names: tuple[str, ...]
    except_capabilities: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    source: str


@frozen
class VllmProfile:
    """``vllm.yaml``, checked. Estimates go by dotted name: ``graphs.attention``."""

    utilization: tuple[Since, ...]
    graphs_since: tuple[int, int]
    batch_classes: tuple[BatchClass, ...]
    estimates: dict[str, Estimate]

    def estimate(self, name: str) -> Estimate:
        """An estimate by its dotted name."""
        return self.estimates[name]


ESTIMATES: Final = {
    "total_share": ("of_tool", "of_tool_amd", "of_marketing"),
    "activation": ("hidden_copies", "logit_bytes", "encoder_patches"),
    "graphs": ("attention", "state_graph", "state_graphs", "state_share"),
    "non_torch": ("process", "nvlink", "pcie", "expert_parallel"),
    "workspace": ("sm_90", "other"),
    "rotary_bytes": (),
    "context": (),
    "uncounted_weights": (),
}
"""Sections of estimates and what each holds; one without parts is an estimate itself."""
_OTHER_KEYS: Final = ("schema_version", "id", "recorded", "utilization", "graphs_since", "batch_classes")


@lru_cache(maxsize=1)
def vllm_profile() -> VllmProfile:
    """The constants of vLLM. Raises :class:`~profiles.catalog.ProfileError` with path, line and key if the file is broken."""
    return parse_vllm(read_yaml(BUILT_IN / "vllm.yaml"))


def parse_vllm(file: YamlFile) -> VllmProfile:
    """Check the content of ``vllm.yaml``. Raises :class:`~profiles.catalog.ProfileError`."""
    known = (*_OTHER_KEYS, *ESTIMATES)
    for key in file.data:
        if key not in known:
            raise _wrong(file, str(key), f"is not known. Allowed: {', '.join(known)}")
    for key in known:
        if key not in file.data:
            raise ProfileError(file.path, "is missing", key=key)
    if file.data["schema_version"] != SCHEMA_VERSION or file.data["id"] != file.path.stem:
        raise _wrong(file, "schema_version", f"must be {SCHEMA_VERSION}, and id the file's stem")
    estimates: dict[str, Estimate] = {}
    for section, names in ESTIMATES.items():
        content = file.data[section]
        if not names:
            estimates[section] = _estimate(file, section, content)
            continue
        if not isinstance(content, dict) or set(content) != set(names):
            raise _wrong(file, section, f"must have exactly {', '.join(names)}")
        for name in names:
            estimates[f"{section}.{name}"] = _estimate(file, f"{section}.{name}", content[name])
    graphs = file.data["graphs_since"]
    if not isinstance(graphs, dict) or set(graphs) != {"value", "source"}:
        raise _wrong(file, "graphs_since", "must have value and source")
    return VllmProfile(
        utilization=_utilization(file),
        graphs_since=_version(file, "graphs_since", graphs["value"]),
        batch_classes=_batch_classes(file),
        estimates=estimates,
    )


def _wrong(file: YamlFile, key: str, problem: str) -> ProfileError:
    return ProfileError(file.path, problem, line=file.line(key), key=key)


def _estimate(file: YamlFile, key: str, content: Any) -> Estimate:
    if not isinstance(content, dict) or set(content) != {"low", "expected", "high", "source"}:
        raise _wrong(file, key, "must have low, expected, high and source")
    numbers = [content[name] for name in ("low", "expected", "high")]
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) and math.isfinite(item) for item in numbers):
        raise _wrong(file, key, "low, expected and high must be numbers")
    if numbers[0] < 0 or numbers != sorted(numbers):
        raise _wrong(file, key, "must have 0 <= low <= expected <= high")
    return Estimate(low=numbers[0], expected=numbers[1], high=numbers[2], source=_source(file, key, content))


def _source(file: YamlFile, key: str, content: dict[str, Any]) -> str:
    source = content.get("source")
    if not isinstance(source, str) or not source.strip():
        raise _wrong(file, key, "must have a source in words")
    return source


def _version(file: YamlFile, key: str, text: Any) -> tuple[int, int]:
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        raise _wrong(file, key, 'must name a version in quotes, like "0.21"')
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _entries(file: YamlFile, key: str) -> list[dict[str, Any]]:
    content = file.data[key]
    if not isinstance(content, list) or not content or not all(isinstance(item, dict) for item in content):
        raise _wrong(file, key, "must be a list of mappings")
    return content


def _utilization(file: YamlFile) -> tuple[Since, ...]:
    out = []
    for number, item in enumerate(_entries(file, "utilization")):
        key = f"utilization.{number}"
        value = item.get("value")
        if set(item) != {"since", "value", "source"} or not isinstance(value, str) or _SHARE.fullmatch(value) is None:
            raise _wrong(file, f"{key}.value", 'must have since, value ("0.92", in quotes: it is exact) and source')
        out.append(Since(since=_version(file, f"{key}.since", item["since"]), value=value, source=_source(file, key, item)))
    if out != sorted(out, key=lambda entry: entry.since, reverse=True) or out[-1].since != (0, 0):
        raise _wrong(file, "utilization", 'must go from the newest version to "0.0"')
    return tuple(out)


def _batch_classes(file: YamlFile) -> tuple[BatchClass, ...]:
    out = []
    for number, item in enumerate(_entries(file, "batch_classes")):
        key = f"batch_classes.{number}"
        needed = {"least_gib", "max_num_seqs", "max_num_batched_tokens", "source"}
        if not needed <= set(item) <= needed | {"except_names", "except_capabilities"}:
            raise _wrong(file, f"{key}.least_gib", f"must have {', '.join(sorted(needed))}")
        for name in ("least_gib", "max_num_seqs", "max_num_batched_tokens"):
            value = item[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < (name != "least_gib"):
                raise _wrong(file, f"{key}.{name}", "must be a whole number")
        excepted = []
        for name in ("except_names", "except_capabilities"):
            words = item.get(name, [])
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise _wrong(file, f"{key}.{name}", "must be a list of words in quotes")
            excepted.append(tuple(words))
        out.append(
            BatchClass(
                least_gib=item["least_gib"],
                except_names=excepted[0],
                except_capabilities=excepted[1],
                max_num_seqs=item["max_num_seqs"],
                max_num_batched_tokens=item["max_num_batched_tokens"],
                source=_source(file, key, item),
            )
        )
    if out[-1].least_gib != 0:
        raise _wrong(file, "batch_classes", "must end with the class of every GPU: least_gib 0")
    return tuple(out)
