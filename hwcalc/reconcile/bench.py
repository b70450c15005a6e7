"""Read what a benchmark of an engine measured: ``vllm bench serve``, ``sglang.bench_serving``, ``llama-bench``, ``genai-perf`` and ``aiperf``.

Results are read as the tools write them: their JSON (one document, or one a line), their CSV where they have one, and what they print.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import field

from hwcalc.errors import LogError
from hwcalc.files import opened
from hwcalc.formulas.record import Record
from hwcalc.reconcile.facts import mix_in_words
from hwcalc.text import brief, printable, quoted

MOST_BYTES: Final = 64 * 1024**2
"""A result with the times of every token is large."""
MOST_RUNS: Final = 200
SERVING: Final = "serving"
PROMPT: Final = "prompt"
DECODE: Final = "decode"
"""What a run measures: requests of many users, a prompt alone, or tokens of one sequence alone."""


class BenchRun(Record):
    """One run of a benchmark: what it was asked for, and ``measured`` figures by name, in seconds and tokens per second.

    ``engine``, ``model``, ``gpu`` and ``weights`` are what the result says of them. ``prompt`` and ``output`` are the mean tokens of a
    request, ``depth`` those in the cache before, and ``at_once`` how many requests were served at once on average.
    """

    tool: str
    kind: str
    prompt: int = 0
    output: int = 0
    depth: int = 0
    at_once: float = 1.0
    engine: str | None = None
    model: str | None = None
    gpu: str | None = None
    weights: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    measured: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def label(self) -> str:
        """The words that tell the run from others of its file."""
        behind = f" at {self.depth:,}" if self.depth else ""
        if self.kind == PROMPT:
            return f"prompt of {self.prompt:,}{behind}"
        if self.kind == DECODE:
            return f"{self.output:,} tokens{behind}"
        return f"{self.at_once:,.3g} at once, {self.prompt:,} + {self.output:,}"


def read_bench(source: Any) -> tuple[BenchRun, ...]:
    """The runs of a result: a path, an open file, or its text. Raises :class:`~hwcalc.errors.LogError` if it is of no known tool."""
    text = _text(source)
    found = tuple(_runs(text))
    runs = tuple(run for run in found if isinstance(run, BenchRun))
    if not runs:
        raise LogError(
            next((why for why in found if isinstance(why, str)), "this is no result of a benchmark that is known."),
            hint="Known: vllm bench serve, sglang.bench_serving, llama-bench, genai-perf, aiperf; their JSON, or what they print.",
        )
    return runs[:MOST_RUNS]


def _text(source: Any) -> str:
    if isinstance(source, str):
        return source
    hint = "Name a file, or - for standard input."
    try:
        if isinstance(source, os.PathLike):
            with opened(Path(source)) as stream:
                data: Any = stream.read(MOST_BYTES + 1)
        else:
            data = source.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have that name"
        raise LogError(f"the result {printable(str(source))} cannot be read ({reason}).", hint=hint) from error
    if len(data) > MOST_BYTES:
        raise LogError(
            f"the result is larger than {MOST_BYTES // 1024**2} MiB.", hint="Save it without the times of every token."
        )
    return data.decode("utf-8", "replace") if isinstance(data, (bytes, bytearray)) else str(data)


def _runs(text: str) -> Iterator[BenchRun | str]:
    """The runs of a text; for one that cannot be used, why."""
    if not text.strip():
        yield "this is no result of a benchmark: it is empty."
    documents = list(_documents(text))
    for document in documents:
        run = _of_document(document)
        if run is not None:
            yield run
    if not documents:
        yield from _of_print(text)


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    """All objects of a JSON document, of one on each line, or the rows of CSV."""
    plain = text.lstrip("\ufeff \r\n\t")
    if plain[:1] in ("{", "["):
        try:
            yield from _objects(json.loads(plain))
        except (ValueError, RecursionError):
            for line in plain.splitlines():
                try:
                    yield from _objects(json.loads(line))
                except (ValueError, RecursionError):
                    continue
    elif "avg_ts" in plain.partition("\n")[0]:
        yield from csv.DictReader(plain.splitlines())


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            yield one


def _of_document(data: Mapping[str, Any]) -> BenchRun | str | None:
    if "avg_ts" in data:
        return _of_llama_bench(data)
    for inner in (data, data.get("records"), data.get("llm_metrics")):
        if isinstance(inner, dict) and isinstance(inner.get("time_to_first_token"), dict):
            return _of_aiperf(inner, data)
    return _of_serving(data) if {"output_throughput", "completed"} <= data.keys() else None


def _number(value: Any) -> float | None:
    """A finite number above 0; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def _unusable(tool: str, data: Mapping[str, Any], *keys: str) -> str:
    """Why a result cannot be used: the first of its keys that is no number above 0, or is missing."""
    wrong = (f"{key} is {quoted(data[key])}, and no number above 0" for key in keys if key in data and _number(data[key]) is None)
    missing = (f"it lacks {key}" for key in keys if key not in data)
    return f"this is no result of {tool} that can be used: {next(chain(wrong, missing), 'it has no time')}."


def _word(value: Any) -> str | None:
    return brief(value.strip(), 120) if isinstance(value, str) and value.strip() else None


_SERVING_MS: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft_s": ("mean_ttft_ms",),
    # The mean of requests, and not of tokens, of which long answers have more.
    "itl_s": ("mean_tpot_ms", "mean_itl_ms"),
    "e2e_s": ("mean_e2el_ms", "mean_e2e_latency_ms"),
}
_SGLANG: Final = ("sglang", "mean_e2e_latency_ms", "input_throughput")
"""Keys that vLLM's results lack."""


_COUNTED: Final = ("completed", "total_input_tokens", "total_output_tokens", "output_throughput", "request_throughput")


def _of_serving(data: Mapping[str, Any]) -> BenchRun | str:
    """A result of ``vllm bench serve`` or ``sglang.bench_serving``, which came of it."""
    measured: dict[str, float] = {}
    for name, keys in _SERVING_MS.items():
        found = next((number for key in keys if (number := _number(data.get(key))) is not None), None)
        if found is not None:
            measured[name] = found / 1000
    throughput = _number(data.get("output_throughput"))
    if throughput is not None:
        measured["output_tokens_per_s"] = throughput
    completed = _number(data.get("completed"))
    totals = (_number(data.get("total_input_tokens")), _number(data.get("total_output_tokens") or data.get("total_output")))
    backend = (_word(data.get("backend")) or _word(data.get("endpoint_type")) or "").lower()
    is_sglang = backend.startswith("sglang") or any(key in data for key in _SGLANG[1:])
    rate = _number(data.get("request_throughput"))
    tool = "sglang.bench_serving" if is_sglang else "vllm bench serve"
    run = _served(
        tool,
        measured,
        completed,
        totals,
        rate,
        engine="sglang" if is_sglang else None if backend and not backend.startswith(("vllm", "openai")) else "vllm",
        model=_word(data.get("model_id")) or _word(data.get("model")),
        most=_number(data.get("max_concurrency")),
    )
    return run or _unusable(tool, data, *_COUNTED, *chain(*_SERVING_MS.values()))


def _served(
    tool: str,
    measured: dict[str, float],
    completed: float | None,
    totals: tuple[float | None, float | None],
    rate: float | None,
    *,
    engine: str | None,
    model: str | None,
    most: float | None,
) -> BenchRun | None:
    """A run of many requests; ``None`` if it does not say how long they are."""
    if completed is None or totals[0] is None or totals[1] is None or not measured:
        return None
    prompt, output = max(1, round(totals[0] / completed)), max(1, round(totals[1] / completed))
    whole = measured.get("e2e_s")
    if whole is None and {"ttft_s", "itl_s"} <= measured.keys():
        whole = measured["ttft_s"] + (output - 1) * measured["itl_s"]
    # As many as arrive in the time of one (Little), which a run that begins and ends empty has fewer of than its limit.
    at_once = None if whole is None or rate is None else rate * whole
    at_once = at_once if at_once is not None else most
    if at_once is None:
        return None
    if most is not None:
        at_once = min(at_once, most)
    return BenchRun(
        tool=tool,
        kind=SERVING,
        prompt=prompt,
        output=output,
        at_once=max(1.0, at_once),
        engine=engine,
        model=model,
        measured=measured,
    )


_UNITS: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}


_LENGTHS: Final = ("input_sequence_length", "output_sequence_length")


def _of_aiperf(data: Mapping[str, Any], whole: Mapping[str, Any]) -> BenchRun | str:
    """An export of ``genai-perf`` or ``aiperf``: each metric with its unit and its mean."""

    def mean(name: str) -> float | None:
        metric = data.get(name)
        if not isinstance(metric, dict):
            return _number(metric)
        value = _number(metric.get("avg"))
        return None if value is None else value * _UNITS.get(str(metric.get("unit", "")).lower(), 1.0)

    names = {"ttft_s": "time_to_first_token", "itl_s": "inter_token_latency", "e2e_s": "request_latency"}
    measured = {name: value for name, key in names.items() if (value := mean(key)) is not None}
    if (throughput := mean("output_token_throughput")) is not None:
        measured["output_tokens_per_s"] = throughput
    lengths = tuple(map(mean, _LENGTHS))
    config = whole.get("input_config")
    config = config if isinstance(config, dict) else {}
    tool = "aiperf" if "aiperf_version" in whole or "schema_version" in whole else "genai-perf"
    run = _served(
        tool,
        measured,
        1.0,
        (lengths[0], lengths[1]),
        mean("request_throughput"),
        engine=None,
        model=next((name for name in _find(config, ("model_names", "model"))), None),
        most=None,
    )
    figures = (*_LENGTHS, "request_throughput", *names.values())
    means = {key: data[key].get("avg") if isinstance(data[key], dict) else data[key] for key in figures if key in data}
    return run or _unusable(tool, means, *figures)


def _find(config: Any, keys: Iterable[str], depth: int = 4) -> Iterator[str]:
    """The names that an input configuration has under these keys, wherever it has them."""
    if not isinstance(config, dict) or not depth:
        return
    for key in keys:
        value = config.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if (word := _word(value)) is not None:
            yield word
    for value in config.values():
        yield from _find(value, keys, depth - 1)


def _of_llama_bench(data: Mapping[str, Any]) -> BenchRun | str | None:
    """A test of ``llama-bench``: ``pp`` is a prompt alone, ``tg`` tokens alone. Both together have one rate, which is left out."""
    rate = _number(data.get("avg_ts"))
    prompt, output, depth = (int(_number(data.get(name)) or 0) for name in ("n_prompt", "n_gen", "n_depth"))
    if rate is None:
        return _unusable("llama-bench", data, "avg_ts")
    if bool(prompt) is bool(output):
        return None
    options = {}
    if (ubatch := _number(data.get("n_ubatch"))) is not None:
        options["n_ubatch"] = str(int(ubatch))
    return BenchRun(
        tool="llama-bench",
        kind=PROMPT if prompt else DECODE,
        prompt=prompt,
        output=output,
        depth=depth,
        engine="llamacpp",
        gpu=_word(data.get("gpu_info")),
        weights=mix_in_words(data.get("model_type")),
        options=options,
        measured={"prefill_tokens_per_s" if prompt else "decode_tokens_per_s": rate},
    )


_LABELS: Final[Mapping[str, str]] = {
    "successful requests": "completed",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "backend": "backend",
    "input token throughput (tok/s)": "input_throughput",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
    "mean e2el (ms)": "mean_e2el_ms",
    "mean e2e latency (ms)": "mean_e2e_latency_ms",
}
"""What the tools print -> the key of the same figure in their JSON."""
_TEST: Final = re.compile(r"(pp|tg)([0-9]{1,9})(?: @ d([0-9]{1,9}))?")
_TITLE: Final = "serving benchmark result"


def _of_print(text: str) -> Iterator[BenchRun | str]:
    """The runs that a tool printed: results of servers, each below its title, and the table of ``llama-bench``."""
    found: dict[str, Any] = {}
    header: list[str] = []
    for line in text.splitlines():
        lowered = line.strip().lower()
        if _TITLE in lowered:
            if found:
                yield _of_serving(found)
            found = {}
            continue
        if lowered.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if "t/s" in cells:
                header = cells
            elif header and len(cells) == len(header):
                yield from _of_row(dict(zip(header, cells, strict=True)))
            continue
        label, colon, value = line.partition(":")
        key = _LABELS.get(label.strip().lower())
        if colon and key is not None:
            found[key] = value.strip()
    if found:
        yield _of_serving(found)


def _of_row(row: Mapping[str, str]) -> Iterator[BenchRun | str]:
    """A row of the table of ``llama-bench``."""
    test = _TEST.fullmatch(row.get("test", ""))
    if test is None:
        return
    side = {"pp": "n_prompt", "tg": "n_gen"}[test[1]]
    rate = row.get("t/s", "").replace("\u00b1", " ").split()
    data: dict[str, Any] = {side: test[2], "n_depth": test[3] or "0", "avg_ts": rate[0] if rate else ""}
    run = _of_llama_bench({**data, "model_type": row.get("model"), "n_ubatch": row.get("n_ubatch")})
    if run is not None:
        yield run
