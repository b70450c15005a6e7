"""Measured speeds, read from a file of rows: what was run, as keywords of a plan, and what was measured.

A row is a JSON object on a line of its own: source, engine, backend, gpu, gpus, tp, pp, dp, ep, model, weight_dtype, kv_dtype, prompt, output,
depth, batch, metric, value, flags. The rows are other people's measurements, and are not part of this project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines import ENGINES as ENGINES_KNOWN
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.llamacpp.builds import OLDEST
from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.plan import open_loaded
from hwcalc.library.speed import speed
from hwcalc.model import ModelSpec
from hwcalc.planner.solve import most
from hwcalc.planner.step_time import StepTimes, step_times
from hwcalc.profiles.gpus import find_gpu
from hwcalc.profiles.speed import backends_of

ENGINES: Final = {
    "llama.cpp": "llamacpp",
    "ollama/llama.cpp": "llamacpp",
    "LLMBoost (vllm)": "vllm",
    "TensorRT-LLM": "tensorrt-llm",
    "mlx-lm": "mlx",
    "ATOM": "atom",
}
"""The engines of rows, as this project calls them, where the names differ."""
_LLAMA: Final = {
    "model_type": "mistral",
    "torch_dtype": "bfloat16",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
MODELS: Final[Mapping[str, Any]] = {
    "custom/llama-3.1-405b": "meta-llama/Llama-3.1-405B",
    "custom/gemma-3-4b": "google/gemma-3-4b-it",
    "custom/gemma-3-12b": "google/gemma-3-12b-it",
    # GGUF files were made of the model in 16 bits.
    "nvidia/Gemma-4-31B-IT-NVFP4": "google/gemma-4-31B-it",
    # The language part, which a file of llama.cpp has.
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": _LLAMA
    | {"hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "vocab_size": 131072},
    # The language parts of mistralai/Ministral-3-8B-Instruct-2512 and Ministral-3-14B-Instruct-2512.
    "custom/ministral-3-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34, "vocab_size": 131072},
    "custom/ministral-3-14b": _LLAMA
    | {"hidden_size": 5120, "intermediate_size": 16384, "num_hidden_layers": 40, "vocab_size": 131072},
}
"""The models of rows that have another id in the catalog, or none."""
_WORDS: Final = {
    "4-bit": "int4",
    "bf16": "bf16",
    "fp16": "fp16",
    "f16": "fp16",
    "int8wo": "int8",
    "int4 g32": "int4",
    "gptq g128": "gptq",
    "q8_k_xl": "q8_0",
    "q4_k_xl": "q4_k_m",
    "mlx bf16": "bf16",
    "mlx q4": "mlx_4bit",
    "mlx q5": "mlx_5bit",
    "mlx q6": "mlx_6bit",
    "mlx q8": "mlx_8bit",
    "mlx q4 g32": "mlx_4bit",
    "mlx q5 g32": "mlx_5bit",
}
_MEASURES: Final = {
    "decode_tps": "decode_tokens_per_s",
    "tpot_s": "itl_s",
    "ttft_s": "ttft_s",
    "prefill_tps": "prefill_tokens_per_s",
    "e2e_output_tps": "output_tokens_per_s",
}
"""The measured quantities by the names that :func:`hwcalc.speed` gives them."""
MIXING: Final = ("vllm", "sglang", "tensorrt-llm", "atom")
"""Engines that mix prompts into their steps, where they are planned by the formulas."""
_LEFT_OUT: Final = ("bad:", "speculative", "neighbours", "unit ambiguous", "small host", "pcie tp")
"""Beginnings or parts of flags of rows that no model of a plain run can be measured on: small hosts (a Raspberry Pi) launch kernels late, and
cards that exchanged over PCIe have a faster link in their profiles."""
UNTUNED: Final = ("sgl-cookbook", "InferenceX token-position", "ree2raz inference-bench", "mlc llm-perf-bench")
"""Sources that measured servers as they start by default, or old or small runs: they are no part of what the parameters are fitted to."""

ATTENTION_APART: Final = ("TensorRT-LLM perf-overview 1.0",)
"""Sources whose rows name a tensor parallel size, and whose pages say that models with experts ran with attention data parallel over it."""


class Row(Struct, frozen=True):
    """One measurement. ``saturated`` rows state no concurrency: as many requests as fit."""

    id: int
    source: str
    group: str
    """The class and regime that the file itself names."""
    engine: str
    backend: str | None
    build: int | None
    """The build of llama.cpp, where the row names one."""
    gpu: str
    model: str
    keywords: Mapping[str, Any]
    prompt: int
    output: int
    cached_prefix: int
    concurrency: int
    saturated: bool
    quantity: str
    value: float
    flags: tuple[str, ...]
    file_bytes: int | None


def is_plain(row: Row, *, untuned: bool = False, even: str = "") -> bool:
    """True if it was measured on a tuned server, or anywhere else, in a plain run. A flag with ``even`` in it does not matter."""
    left_out = any(part in flag for flag in row.flags for part in _LEFT_OUT if part != even)
    return not left_out and (untuned or is_tuned(row))


def is_tuned(row: Row) -> bool:
    """False for servers that were started with the defaults of their engine. A program on one machine has nothing to tune."""
    return row.source not in UNTUNED or row.group.startswith("local")


@cache
def model_of(name: str) -> ModelSpec:
    """The model of a row."""
    known = MODELS.get(name, name)
    return load_model(dict(known) if isinstance(known, dict) else known, offline=True)


def weights_of(row: Mapping[str, Any]) -> str | None:
    """The weights as a value of ``--weights``; ``None`` as published."""
    local = row["engine"] in ("llama.cpp", "ollama/llama.cpp")
    if row.get("weights_kv"):
        return str(row["weights_kv"])
    label = str(row["weight_dtype"]).strip()
    if label == "as published" or (label.lower() == "fp8" and "deepseek" in row["model"].lower()):
        return None
    words = label.lower()
    if local and words in ("mxfp4", "4-bit"):
        # llama.cpp has a file type of its own for experts in MXFP4; what others call 4 bits is Q4_0 there.
        return "mxfp4_moe" if words == "mxfp4" else "q4_0"
    if words in _WORDS:
        return _WORDS[words]
    # The words of llama-bench: "llama 8B Q4_K - Medium".
    last = re.search(r"(iq|q|tq|mxfp)\d\w*(?: - (small|medium|large))?$", words)
    if last is not None:
        name, _, size = last[0].partition(" - ")
        return name + (f"_{size[0]}" if size else "")
    if words.endswith(("f16", "bf16")):
        return "bf16" if words.endswith("bf16") else "fp16"
    if words.startswith("exl2"):
        return f"exl2_{float(words.split()[1]):g}bpw"
    # gpt-oss is published in MXFP4.
    return {"fp4": "nvfp4", "mxfp4": None}.get(words, words)


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file that measure one of :data:`_MEASURES`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        if data["metric"] not in _MEASURES:
            continue
        engine = ENGINES.get(data["engine"], data["engine"])
        batch = data.get("batch")
        quantity, value = _MEASURES[data["metric"]], float(data["value"])
        prompt, depth, output = data["prompt"], data["depth"], data["output"]
        if quantity == "decode_tokens_per_s":
            # What lies in the cache before the first token that is timed.
            prompt, depth = max(1, prompt + depth), 0
        else:
            prompt += depth
        sizes = {name: max(1, data.get(name) or 1) for name in ("tp", "pp", "dp", "ep")}
        layout = re.fullmatch(r"tp(\d+)pp(\d+)dp(\d+)x(\d+)", str(data.get("layout")))
        if not data.get("tp") and layout is not None:
            # The publisher says how many accelerators there were: servers of their own, each as large as it has to be. This is of one.
            tp, pp, dp, servers = map(int, layout.groups())
            sizes |= {"tp": tp, "pp": pp, "dp": dp}
            value /= servers
        if data["source"] in ATTENTION_APART and data["moe"] and sizes["dp"] == 1:
            sizes |= {"tp": 1, "dp": sizes["tp"], "ep": sizes["tp"]}
        sizes["gpus"] = sizes["tp"] * sizes["pp"] * sizes["dp"]
        keywords: dict[str, Any] = {**sizes, "weights": weights_of(data), "gpu": data["gpu"]}
        if data["kv_dtype"] == "fp8":
            keywords["dtype"] = "fp8"
        yield Row(
            id=data["id"],
            source=data["source"],
            group=f"{data['class']} {data.get('regime')}",
            engine=engine,
            backend=data.get("backend"),
            build=int(build[1]) if (build := re.fullmatch(r"b(\d{4,})", str(data.get("engine_version")))) else None,
            gpu=data["gpu"],
            model=data["model"],
            keywords={name: value for name, value in keywords.items() if value is not None},
            prompt=prompt,
            output=max(1, output),
            cached_prefix=depth,
            concurrency=max(1, int(batch or 1)),
            saturated=batch is None,
            quantity=quantity,
            value=value,
            flags=tuple(data["flags"]),
            file_bytes=data.get("weight_file_bytes"),
        )


def opened_row(row: Row) -> tuple[Row, Occupancy, StepTimes]:
    """The row, with the requests that fit where it states no number, its occupancy, and its steps. Raises a :class:`~hwcalc.errors.KvplanError`.

    What an engine's own rules refuse was measured all the same, and is planned by the formulas.
    """
    keywords = {"seq": row.prompt + row.output, "batch": row.concurrency, "prompt": row.prompt, **row.keywords}
    known = row.engine in ENGINES_KNOWN
    shares = find_engine(row.engine)[0].facts.shared_experts_option if known else ""
    if shares and row.keywords["dp"] > 1 and row.keywords["ep"] > 1:
        keywords["engine_options"] = {shares: "true"}
    model = model_of(row.model)
    try:
        opened, _ = open_loaded(model, {**keywords, "engine": row.engine if known else DEFAULT})
    except KvplanError:
        keywords.pop("engine_options", None)
        opened, _ = open_loaded(model, {**keywords, "engine": DEFAULT})
        known = False
    times = step_times(opened)
    if times is None:
        raise UsageError("its weights are not counted.")
    if row.saturated:
        row = replace(row, concurrency=max(1, most(opened).value))
    return row, opened, times if known else replace(times, mixes_prompts=row.engine in MIXING)


class Compared(Struct, frozen=True):
    """A row next to what :func:`hwcalc.speed` says of it: as speeds, whatever was measured, so that more is faster."""

    row: Row
    speed_class: str
    measured: float
    bound: float
    expected: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The distance of the expected speed from the measured one, as a share of it."""
        return abs(self.expected / self.measured - 1)


def compared(rows: Iterable[Row], *, tuned: bool = True) -> tuple[list[Compared], dict[str, int]]:
    """The rows next to what the call says of each, and how many were refused or have no expected speed, by the reason."""
    found: list[Compared] = []
    refused: dict[str, int] = {}
    for row in rows:
        try:
            answer = speed(
                model_of(row.model),
                engine=row.engine if row.build is None or row.build < OLDEST else f"{row.engine}@b{row.build}",
                prompt=row.prompt,
                output=row.output,
                concurrency="max" if row.saturated else row.concurrency,
                cached_prefix=row.cached_prefix,
                # Where the backends of an engine are not told apart, a row names the only one.
                backend=row.backend if backends_of(row.engine, find_gpu(row.gpu)) else None,
                tuned=tuned,
                **row.keywords,
            )
        except KvplanError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
            continue
        value = getattr(answer, row.quantity)
        if value.expected is None:
            reason = answer.notes[-1].message
            refused[reason] = refused.get(reason, 0) + 1
            continue
        ends = (row.value, value.bound, value.expected, value.low, value.high)
        if row.quantity in ("ttft_s", "itl_s"):
            measured, bound, expected, high, low = (1 / end for end in ends)
        else:
            measured, bound, expected, low, high = ends
        found.append(
            Compared(row, answer.speed_class or "", measured=measured, bound=bound, expected=expected, low=low, high=high)
        )
    return found, refused


def kind_of(row: Row) -> str:
    """The kind of what a row measures, as the classes have ranges of it."""
    return {"decode_tokens_per_s": "decode", "ttft_s": "prompt", "prefill_tokens_per_s": "prompt"}.get(row.quantity, "serving")
