"""Command lines: words that mean something, with some that do not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from hwcalc.cli.options import COMMANDS, Option, find_command
from hwcalc.engines import ENGINES as KNOWN
from hwcalc.engines import find_engine
from scripts.fuzzing.mutate import HOSTILE, strange

ENGINES: Final = (
    *KNOWN, "all", "transformers@5.13", "transformers@4.57", "vllm@0.33", "vllm@0.25.1", "vllm@0.19", "vllm@0.11", "vllm@0.8.5",
)  # fmt: skip
"""Every engine and older releases; ``all`` is a row for each."""
_ODD_ENGINES: Final = ("ALL", "all@1", "all,vllm", "vllm,vllm", "sglang@0", "tensorrt_llm", "mlx@", "lmdeploy@main")
GPUS: Final = (
    "l4",
    "h100-sxm5-80gb",
    "t4",
    "a100-sxm4-80gb",
    "mi300x",
    "apple-m4-max-40c-64gb",
    "rtx-4090",
    "b200-180gb",
    "tpu-v5e",
    "gaudi3",
    "cpu-32gb",
)
MODELS: Final = (
    "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "google/gemma-3-27b-it", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "ai21labs/AI21-Jamba2-Mini",
    "nosuch/model", "config.json", ".", "-", "Qwen/Qwen3-8B@main", "folder/config.json",
)  # fmt: skip

VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "seq": ("1", "4k", "32k", "1m", "131072", "10**9", "1000000000", "1k,4k", "1k..16k", "1..100:7", "4k-8k"),
    "batch": ("1", "2", "64", "100000", "1,2,4", "1..64"),
    "dtype": ("auto", "fp8", "bf16", "q8_0", "q8_0:q4_0", "fp8_e5m2", "nvfp4", "fp32", "int8", "fp8,bf16", "fp8_ds_mla"),
    "weights": ("bf16", "fp8", "awq", "nvfp4", "int4", "fp8,bf16", "mxfp4"),
    "engine": (*ENGINES, *_ODD_ENGINES),
    "gpu": GPUS,
    "gpus": ("1", "2", "8", "1000000"),
    "instance": ("p5.48xlarge", "g4dn.12xlarge", "g6.xlarge"),
    "tp": ("1", "2", "8", "3", "1024", "1,2"),
    **dict.fromkeys(("pp", "dp", "dcp", "ep"), ("1", "2", "4", "7")),
    "memory_utilization": ("0.9", "90%", "1", "0.01", "1.5"),
    "kv_memory": ("60GiB", "1", "10GB", "1e30", "100%"),
    "margin": ("5%", "0", "99%"),
    "lora": ("rank=16,count=8", "rank=16", "rank=999999999,count=99999999"),
    "draft": ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "nosuch/x", "config.json"),
    "encoder_seq": ("0", "1500", "10000000"),
    "engine_options": (
        "cache=static",
        "block_size=16",
        "enable_prefix_caching=true",
        "max_num_batched_tokens=8192",
        "x",
        "cache=quantized",
        *(f"{option}={value}" for name in KNOWN for option in find_engine(name)[0].options for value in ("0", "1", "64", "true")),
    ),
    "policy": (
        "none",
        "snapkv:compression_ratio=0.5,window_size=8",
        "knorm:compression_ratio=0.5",
        "adakv:press=(knorm:compression_ratio=0.9)",
        "quest",
        "h2o:budget=64",
        "rkv:budget=1m",
        "triattention:budget=2048",
        "dms:threshold=0",
        "think:key_channel_compression_ratio=0.5",
        "decoding:base_press=knorm,compression_interval=1,target_size=1",
        "observedattention",
        "finch:compression_ratio=0.5",
        "perlayercompression:press=(knorm:compression_ratio=0.5),compression_ratios=[1,0]",
        "chunkkv:press=(knorm:compression_ratio=0.5)",
        "composed:presses=[(knorm:compression_ratio=0.5),(snapkv:compression_ratio=0.5)]",
        "pyramidkv:compression_ratio=1",
        "duoattention",
        "rkv:budget=nan",
        '["knorm", {"compression_ratio": 0.5}]',
        "composed:presses=[((((knorm))))]",
        "quest,none,knorm",
        "kn\x1b[31morm",
    ),
    **dict.fromkeys(("prompt", "shared_prefix"), ("0", "1", "2", "64", "1k", "4k", "32k", "1000000000000")),
    **dict.fromkeys(("samples", "beams"), ("0", "1", "2", "8", "33", "1000000000")),
    "lengths": (
        "1k,2k,8k",
        "1",
        "1,1,1",
        "uniform:1..32k",
        "uniform:5..1",
        "uniform:1..1000000000000",
        "1,,2",
        "0,64",
        "1000000000000",
    ),
    "fill": ("0", "1", "50%", "100%", "101%", "nan", "1e-9"),
    "block_size": ("0", "1", "16", "1000000000"),
    "compaction": ("repack", "fill", "none"),
    "policy_rules": ("kvpress", "paper"),
    "strategy": ("recompute", "growth", "slots", "pages", "offload", "x"),
    "assume": ("gqa", "mla"),
    "revision": ("main", "refs/pr/1", "0" * 40),
    "token": ("hf_x",),
    "endpoint": ("http://127.0.0.1:9", "file:///etc/passwd", "ftp://x", "http://u:p@127.0.0.1:9"),
    "format_": ("table", "json", "markdown", "csv", "jsonl", "junit", "sarif", "github", "JSON", "parquet"),
    "output": (
        "out.csv",
        "out.json",
        "out.jsonl",
        "out.txt",
        "/dev/null",
        "none/out.json",
        "sarif=out.sarif",
        "junit=out.xml",
        ".",
    ),
    "out": ("points", "none/points", "/dev/null", "check.yaml"),
    "dask": ("127.0.0.1:9", "tcp://127.0.0.1:9", "tcp://", "x:y", "file:///etc/passwd"),
    "receipt": ("receipt.json", "/dev/null", "none/x"),
    "sort": ("price", "gpus", "memory", "speed"),
    "log": ("log.txt", "-", "none.txt", "/dev/null"),
    "tolerance": ("1%", "0", "200%", "-1"),
    "dialect": (*KNOWN, "prometheus", "x"),
    "baseline": ("base.json", "none.json", "/dev/null"),
    "max_growth": ("5%", "-5%", "x"),
    "files": ("check.yaml", "-", "none.yaml"),
}
"""What people give to an option; the rest comes from hostile and strange values."""

_SAFE_PATHS: Final = frozenset({"output", "out", "dask", "receipt"})
"""Options that write, and one that calls another machine: nothing invented is given to them."""

_OPTION_VALUES: Final = (
    "0", "1", "2", "7", "16", "64", "4096", "1000000000000", "-1", "0.5", "nan", "inf", "1e30", "auto", "true", "false", "on", "off", "none",
    "", "x", "v1", "fp8", "draft:4", "$(touch owned)", "\u202e", "1" * 400, "=", "[1]",
)  # fmt: skip
"""What an option of an engine may be given, and what it may not."""

_LINES: Final = (
    (), ("--json",), ("--seq", "4k"), ("--seq", "32k", "--batch", "8", "--dtype", "fp8"), ("--engine", "vllm"), ("--format", "csv"),
    ("--format", "markdown"), ("--quiet",), ("--assume", "gqa"), ("--emit", "vllm", "--engine", "vllm"),
    ("--engine", "all"), ("--engine", "all", "--gpu", "h100", "--format", "markdown"), ("--engine", "sglang", "--gpu", "h100"),
    ("--engine", "tensorrt-llm", "--gpu", "h100"), ("--engine", "mlx", "--gpu", "apple-m4-max-40c-64gb"), ("--engine", "mistral-rs"),
    ("--engine", "lmdeploy", "--emit", "lmdeploy"), ("--engine", "tgi"),
)  # fmt: skip


def plan_words(chance: random.Random, model: str = "config.json") -> tuple[str, ...]:
    """A command that plans one model, mostly as people type it."""
    if chance.random() < 0.75:
        line = chance.choice(_LINES)
        # A row for every engine takes as long as fifteen plans.
        line = () if "all" in line and chance.random() < 0.8 else line
        # A table takes three times as long as a document, and most of what is looked for comes before either.
        return (model, *line) if chance.random() < 0.3 or {"--json", "--format", "--emit"} & {*line} else (model, *line, "--json")
    words = [model]
    command = chance.choices(("plan", "explain", "diff", "compare", "sweep", "recommend"), (75, 12, 2, 2, 3, 0.1))[0]
    if command != "plan":
        words = [command, model, *([chance.choice(MODELS[:6])] if command in {"diff", "compare"} else [])]
    for name, share in {
        "engine": 0.6,
        "gpu": 0.4,
        "seq": 0.5,
        "batch": 0.3,
        "dtype": 0.3,
        "tp": 0.2,
        "weights": 0.1,
        "pp": 0.1,
        "policy": 0.3,
        "prompt": 0.2,
        "shared_prefix": 0.1,
        "samples": 0.1,
    }.items():
        if chance.random() < share and not (command == "recommend" and name in {"gpu", "tp", "pp"}):
            value = chance.choice(VALUES[name])
            words += [f"--{name.replace('_', '-')}", value if name == "policy" else value.split(",")[0].split("..")[0]]
    words += _of_engine(words, chance)
    if chance.random() < 0.6:
        words.append("--json")
    return tuple(words)


def _of_engine(words: list[str], chance: random.Random) -> list[str]:
    """Options of the engine that is asked for, often with values that it does not take."""
    name = words[words.index("--engine") + 1].partition("@")[0] if "--engine" in words else ""
    if name not in KNOWN:
        return []
    options = [*find_engine(name)[0].options]
    few = chance.sample(options, min(len(options), chance.choice((0, 0, 1, 1, 2))))
    return [word for option in few for word in ("--engine-option", f"{option}={chance.choice(_OPTION_VALUES)}")]


_OUTPUTS: Final = (
    "out.svg",
    "out.svg",
    "out.png",
    "out.pdf",
    "out.SVG",
    "out",
    ".svg",
    "none/out.svg",
    "/dev/null",
    "/dev/full",
    ".",
)


def picture_words(chance: random.Random, models: tuple[str, ...]) -> tuple[str, ...]:
    """A page or a picture of these models. A page takes seconds, so most are pictures, and pages have one GPU."""
    page = chance.random() < 0.05
    words = ["explore" if page else "plot", *models]
    if page:
        words += ["--gpu", chance.choice(GPUS), "-o", chance.choice(("-", "-", "page.html", "/dev/full", "none/page.html"))]
    else:
        words += ["--kind", chance.choice(("memory", "memory", "frontier", "layers"))]
        words += ["-o", chance.choice(_OUTPUTS)] if chance.random() < 0.3 else []
        words += ["--gpu", chance.choice(GPUS)] if chance.random() < 0.6 else []
    for name in ("engine", "seq", "batch", "dtype", "weights", "tp", "memory_utilization", "margin"):
        if chance.random() < 0.25:
            words += [f"--{name.replace('_', '-')}", chance.choice(VALUES[name]).split(",")[0].split("..")[0]]
    return tuple(words)


_FOREIGN: Final = (
    "-tp",
    "-tp=2",
    "--max-model-len",
    "--max-model-len=32k",
    "-ep",
    "--block-size=16",
    "--enforce-eager",
    "--users",
    "chek",
)
"""Names of vLLM's options, others', and a mistyped command."""


def any_words(chance: random.Random) -> tuple[str, ...]:
    """A command line of any command, with options of any value."""
    command = chance.choice([*COMMANDS])
    if command == "probe" or (
        command in {"recommend", "models", "gpus", "instances", "explore", "fit"} and chance.random() < 0.9
    ):
        command = "plan"  # probe measures the machine; the others answer for every GPU or model that there is
    options: tuple[Option, ...] = find_command(command).options
    # Without one, the accelerator is looked for by packages that are large.
    words = [command, "--gpu", chance.choice(GPUS)] if command == "fit" else [command]
    for option in options:
        if not option.flags:
            count = chance.choice((0, 1, 1, 1, 2, 3)) if option.kind == "list" else chance.choice((0, 1, 1, 1, 1, 1, 2))
            values = VALUES.get(option.name, MODELS)
            words += [_value(option, values, chance, 0.12) for _ in range(count)]
        elif option.name in {"refresh", "all", "serve", "open"}:
            continue  # the Hub is not there, a sweep of all models takes as long as it says, and so does a server
        elif chance.random() < 2.2 / len(options):
            flag = chance.choice(option.flags)
            if option.kind == "flag":
                words.append(flag)
            else:
                value = _value(option, VALUES.get(option.name, ("x", "1")), chance, 0.25)
                words += [f"{flag}={value}"] if chance.random() < 0.3 and flag.startswith("--") else [flag, value]
    if chance.random() < 0.01:
        words.insert(chance.randrange(len(words) + 1), chance.choice(("--", "--help", "--version", "--nosuch", "-", "-z", "")))
    if chance.random() < 0.05:
        words.insert(chance.randrange(len(words) + 1), chance.choice(_FOREIGN))
    return tuple(words)


def _value(option: Option, values: tuple[str, ...], chance: random.Random, odd: float) -> str:
    if option.name in _SAFE_PATHS or chance.random() >= odd:
        return chance.choice(values)
    return _text(strange(chance) if chance.random() < 0.5 else chance.choice(HOSTILE))


def _text(value: Any) -> str:
    """A value as a word of a command line, which holds no NUL."""
    return str(value)[:6000].replace("\x00", "?")
