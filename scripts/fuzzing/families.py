"""What is fuzzed: one function for each kind of input. It makes a case from a generator of random numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hwcalc.profiles.catalog import built_in
from scripts.fuzzing import calls, pictures, texts
from scripts.fuzzing.case import CONFIG_HOME, Case
from scripts.fuzzing.gguf_files import gguf
from scripts.fuzzing.keywords import keyword_words
from scripts.fuzzing.mutate import SECRET, STRANGE, damaged, damaged_bytes, damaged_text, encoded, places, strange
from scripts.fuzzing.servers import answers, page_request
from scripts.fuzzing.words import GPUS, any_words, plan_words

LARGEST: Final = 1024**2
"""Bytes of a document that stays within the stated memory and time; larger ones may take more."""

LOGS: Final = Path(__file__).resolve().parents[2] / "tests" / "logs"

_CHECKS: Final = """\
schema_version: 1
defaults: {engine: vllm, gpu: l4}
checks:
  - {name: chat, model: meta-llama/Llama-3.1-8B, seq: 16k, concurrency: 2, dtype: fp8, headroom: 1%}
  - {name: long, model: Qwen/Qwen3-8B, seq: 32k, gpu: h100-sxm5-80gb, max_cache: 20GiB, min_concurrency: 4}
  - {model: config.json, engine: reference, gpu: null, seq: 32k, max_bytes_per_token: 512KiB}
"""

_FLEET: Final = """\
schema_version: 1
defaults: {engine: vllm}
models:
  - {model: Qwen/Qwen3-8B, users: 40, prompt: 3k, output: 1k, weights: fp8}
  - {name: small, model: config.json, users: 12, seq: 8k, dtype: fp8}
nodes:
  - {gpu: 4xl40s, count: 2}
  - {instance: aws/g6.12xlarge, rent: {at_most: 3}}
  - {gpu: h100, gpus: 2, rent: true, price: 2.50/h}
survive: 1
growth: 1.5x
rolling: false
"""
_PRICES: Final = """\
provider,instance,accelerator_id,count,usd_per_hour,kind,region,date,source
own,,l4,1,0.70,on_demand,us-east-1,2026-10-01,contract
aws,g6.xlarge,l4,1,0.80,spot,,,list
own,box,h100-sxm5-80gb,8,19.5,on_demand,any,2026-02-28,offer
"""


@lru_cache(maxsize=1)
def configs() -> tuple[dict[str, Any], ...]:
    """The configs of the catalog. They are not changed: what damages a document copies it first."""
    return tuple(json.loads(path.read_bytes())["config"] for path in sorted(Path(built_in("models")).glob("*/*.json")))


@lru_cache(maxsize=1)
def logs() -> tuple[str, ...]:
    """The engines' logs that the tests hold, without what fills most of the long ones."""
    found = [path for path in sorted(LOGS.rglob("*")) if path.suffix in {".log", ".prom", ".txt"}]
    return tuple("\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[:150]) + "\n" for path in found)


@lru_cache(maxsize=1)
def profiles() -> tuple[tuple[str, str], ...]:
    """Folder and text of built-in profiles."""
    found = [("gpus", path.read_text(encoding="utf-8")) for path in sorted(Path(built_in("gpus")).glob("*.yaml"))]
    return *found, *(
        ("instances", path.read_text(encoding="utf-8")) for path in sorted(Path(built_in("instances")).glob("*/*.yaml"))
    )


def config(chance: random.Random) -> Case:
    """A model's config: damaged, of another type, as damaged text, or swollen to a megabyte."""
    document = chance.choice(configs())
    kind = chance.random()
    if kind < 0.002:
        data = _swollen(document, chance)
    elif kind < 0.06:
        data = encoded(damaged_text(json.dumps(document), chance, chance.choice((1, 2, 5))))
    else:
        changed = damaged(document, chance, configs(), chance.choice((1, 1, 2, 3, 6, 12)))
        if chance.random() < 0.2:
            changed["model_type"] = chance.choice(configs()).get("model_type")
        if chance.random() < 0.1:
            changed["quantization_config"] = _quantization(chance)
        data = json.dumps(changed).encode()
    if chance.random() < 0.03:
        return Case(family="config", words=plan_words(chance, "-"), files={}, stdin=data)
    return Case(family="config", words=plan_words(chance), files={"config.json": data})


def _quantization(chance: random.Random) -> Any:
    found = [document["quantization_config"] for document in configs() if "quantization_config" in document]
    return damaged(chance.choice(found), chance, found, chance.choice((0, 1, 3)))


def _swollen(document: dict[str, Any], chance: random.Random) -> bytes:
    """A config with one place swollen: up to :data:`LARGEST` bytes."""
    changed = damaged(document, chance, configs(), 1)
    if chance.random() < 0.3:
        changed["quantization_config"] = _quantization(chance)
    spots = places(changed) or [(changed, "layer_types")]
    container, key = chance.choice(spots)
    size = chance.choice((1_000, 30_000, 200_000, LARGEST - 50_000))
    names = ("model.layers.{}.self_attn.q_proj", "{}", "a.{}" * 30, "layer_{}", "re:.*{}.*(a+)+$", "model.layers.{}")
    name = chance.choice(names)
    value = container[key]
    unit = len(name) + 8 + len(json.dumps(value))
    match chance.randrange(6):
        case 0:
            container[key] = {name.replace("{}", str(number)): value for number in range(size // unit)}
        case 1:
            container[key] = [value] * (size // (len(json.dumps(value)) + 2))
        case 2:
            container[key] = [name.replace("{}", str(number)) for number in range(size // (len(name) + 8))]
        case 3:
            container[key] = name.replace("{}", "7") * (size // len(name))
        case 4:
            container[key] = [chance.choice(STRANGE[:24]) for _ in range(min(size // 8, 50_000))]
        case _:
            text = json.dumps(changed)
            return (text[:-1] + ', "x": ' + chance.choice(("[[],", '{"a":', "[1,", '"\\u0041', "[{},")) * (size // 5))[
                :LARGEST
            ].encode()
    return json.dumps(changed).encode()[:LARGEST]


def arguments(chance: random.Random) -> Case:
    """A command line of any command."""
    files = {"config.json": json.dumps(chance.choice(configs())).encode(), "check.yaml": _CHECKS.encode(), "base.json": b"{}"}
    if chance.random() < 0.2:
        files["log.txt"] = chance.choice(logs()).encode()
    return Case(family="arguments", words=any_words(chance), files=files)


def check(chance: random.Random) -> Case:
    """A check file."""
    text = damaged_text(_CHECKS, chance, chance.choice((1, 1, 2, 4)))
    words = ["check", "check.yaml", "--offline"]
    if chance.random() < 0.6:
        words += ["--format", chance.choice(("table", "json", "markdown", "csv", "junit", "sarif", "github"))]
    return Case(
        family="check",
        words=tuple(words),
        files={"check.yaml": encoded(text), "config.json": json.dumps(chance.choice(configs())).encode()},
    )


def fleet(chance: random.Random) -> Case:
    """A fleet's file."""
    text = damaged_text(_FLEET, chance, chance.choice((0, 1, 2, 4)))
    words = [
        "fleet",
        "fleet.yaml",
        "--offline",
        *chance.choice(((), ("--json",), ("--survive", "1"), ("--growth", "1e3"), ("--emit", "compose"))),
    ]
    return Case(
        family="fleet",
        words=tuple(words),
        files={"fleet.yaml": encoded(text), "config.json": json.dumps(chance.choice(configs())).encode()},
    )


def prices(chance: random.Random) -> Case:
    """A table of prices of the user's own."""
    text = damaged_text(_PRICES, chance, chance.choice((0, 1, 2, 4)))
    what = chance.choice(
        (("Qwen/Qwen3-1.7B", "--gpu", "l4"), ("recommend", "Qwen/Qwen3-1.7B", "--gpu", "l4,h100", "--sort", "cost"))
    )
    more = chance.choice(((), ("--json",), ("--price", f"l4={strange(chance)}/h"), ("--own", "2xl4", "--kwh", "0.3")))
    return Case(family="prices", words=(*what, "--prices", "prices.csv", *more), files={"prices.csv": encoded(text)})


def profile(chance: random.Random) -> Case:
    """A profile of the user's own: an accelerator, an instance, a model of the catalog, measured overheads."""
    home = f"{CONFIG_HOME}/kvplan"
    kind = chance.random()
    if kind < 0.25:
        entry = {"schema_version": 1, "id": "org/own", "config": chance.choice(configs())}
        text = json.dumps(damaged(entry, chance, configs(), chance.choice((0, 1, 2))))
        name = f"{home}/profiles/models/org/own.json"
        words: tuple[str, ...] = chance.choice((("org/own",), ("models", "own"), ("org/own", "--json")))
    elif kind < 0.35:
        folder, text = (
            "calibration",
            json.dumps({"schema_version": 1, "engine": "vllm", "gpu": "l4", "overheads": strange(chance)}),
        )
        name = f"{home}/calibration/vllm/l4.json"
        words = ("Qwen/Qwen3-1.7B", "--gpu", "l4", "--engine", "vllm")
    else:
        folder, text = chance.choice(profiles())
        name = f"{home}/profiles/{folder}/own.yaml"
        lines = [line if not line.startswith("id:") else "id: own" for line in text.splitlines()]
        text = "\n".join(lines) + "\n"
        name_of = {"gpus": "--gpu", "instances": "--instance"}[folder]
        words = ("Qwen/Qwen3-1.7B", name_of, "own") if chance.random() < 0.9 else (folder, "own")
        words = (*words, *chance.choice(((), ("--json",), ("--format", "csv"))))
    if chance.random() < 0.9:
        text = damaged_text(text, chance, chance.choice((1, 1, 2, 4)))
    if chance.random() < 0.02:
        text = chance.choice(("[", "{", "- ", "? ", "a: &a [*a,", '"', "|\n", "!!python/object:os.system ")) * chance.choice(
            (100, 30_000)
        )
    return Case(family="profile", words=words, files={name: encoded(text)[:LARGEST]})


def log(chance: random.Random) -> Case:
    """An engine's log or its metrics."""
    text = damaged_text(chance.choice(logs()), chance, chance.choice((0, 1, 2, 5, 12)))
    if chance.random() < 0.01:
        text = chance.choice(("\n", text, text[:100], " ", "a")) * (200_000 // (len(text) + 1) + 1)
    words = ["reconcile", chance.choice(("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "Qwen/Qwen3-1.7B")), "--log", "log.txt"]
    for more in (
        ("--gpu", chance.choice(GPUS)),
        ("--json",),
        ("--verbose",),
        ("--calibrate",),
        ("--seq", "8k"),
        ("--engine", "vllm@0.11"),
    ):
        if chance.random() < 0.3:
            words += more
    return Case(family="log", words=tuple(words), files={"log.txt": encoded(text)[:LARGEST]})


def header(chance: random.Random) -> Case:
    """The header of a weight file, or an index, damaged."""
    rows, end = _tensors(chance, chance.randrange(12))
    document: Any = rows
    if chance.random() < 0.7:
        document = damaged(rows, chance, [rows], chance.choice((1, 2, 4)))
    text = json.dumps(document)
    if chance.random() < 0.3:
        text = damaged_text(text, chance, 2)
    body = encoded(text)
    length = len(body) if chance.random() < 0.9 else int(chance.choice((0, 1, 2**63, len(body) + 1, 10**8)))
    file = length.to_bytes(8, "little") + body + bytes(min(end, 4096))
    if chance.random() < 0.2:
        file = damaged_bytes(file, chance, 2)
    files = {"folder/config.json": json.dumps(chance.choice(configs())).encode()}
    if chance.random() < 0.3:
        index: Any = {"metadata": {"total_size": end}, "weight_map": dict.fromkeys(rows, "model-1.safetensors")}
        index = damaged(index, chance, [index], chance.choice((0, 1, 3)))
        files |= {"folder/model.safetensors.index.json": json.dumps(index).encode(), "folder/model-1.safetensors": file}
    else:
        files["folder/model.safetensors"] = file
    return Case(family="header", words=plan_words(chance, "folder"), files=files)


def weights(chance: random.Random) -> Case:
    """Sound weight files that hold a part of a model, or another one, beside its config."""
    shards = chance.choice((1, 1, 2, 4))
    files = {"folder/config.json": json.dumps(chance.choice(configs())).encode()}
    where: dict[str, str] = {}
    for shard in range(shards):
        rows, end = _tensors(chance, chance.choice((0, 1, 3, 30)), shard)
        name = "model.safetensors" if shards == 1 else f"model-{shard}.safetensors"
        where |= dict.fromkeys(rows, name)
        body = json.dumps(rows).encode()
        # A hole in the file would take no disk, but a case is kept as bytes: only small files have their whole length.
        files[f"folder/{name}"] = len(body).to_bytes(8, "little") + body + bytes(end if end < 100_000 else 0)
    if shards > 1:
        files["folder/model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    return Case(family="weights", words=plan_words(chance, "folder"), files=files)


def _tensors(chance: random.Random, count: int, shard: int = 0) -> tuple[dict[str, Any], int]:
    """Rows of a header without gaps, and the bytes of their tensors."""
    rows: dict[str, Any] = {}
    end = 0
    for number in range(count):
        shape = [chance.choice((0, 1, 8, 64, 300)) for _ in range(chance.randrange(3))]
        dtype, width = chance.choice((("BF16", 2), ("F32", 4), ("I32", 4), ("U8", 1), ("F8_E4M3", 1), ("I64", 8)))
        size = width
        for axis in shape:
            size *= axis
        name = chance.choice(
            ("model.layers.{}.self_attn.q_proj.weight", "lm_head.{}.weight", "x.{}.qweight", "visual.blocks.{}.w")
        )
        rows[name.format(f"{shard}.{number}")] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return rows, end


def picture(chance: random.Random) -> Case:
    """A page, or a picture in a file or in the terminal."""
    return pictures.picture(chance, configs())


def keywords(chance: random.Random) -> Case:
    """A call of a function of the library with any value."""
    return Case(family="keywords", words=keyword_words(chance), files={})


def library(chance: random.Random) -> Case:
    """A damaged model in the hands of the library: no command line and no files."""
    return calls.library(chance, configs())


def stream(chance: random.Random) -> Case:
    """A damaged model in an open file that the library reads."""
    return calls.stream(chance, configs())


def tool(chance: random.Random) -> Case:
    """A request of an agent to ``kvplan mcp``."""
    return calls.tool(chance, configs())


def hub(chance: random.Random) -> Case:
    """A model of a Hub that answers what no Hub should."""
    rows, end = _tensors(chance, chance.randrange(6))
    body = json.dumps(rows).encode()
    header = len(body).to_bytes(8, "little") + body + bytes(min(end, 4096))
    config = damaged(chance.choice(configs()), chance, configs(), chance.choice((0, 0, 1, 3)))
    words = ["org/name", "--seq", "1k"]
    for more in (
        ("--json",),
        ("--revision", chance.choice(("main", "x/y", "../outside", "a" * 40))),
        ("--gpu", "l4"),
        ("--verbose",),
    ):
        if chance.random() < 0.25:
            words += more
    return Case(family="hub", words=tuple(words), files=answers(config, header, chance))


def page(chance: random.Random) -> Case:
    """A request for the page that is served, with something wrong in it."""
    return Case(family="page", words=(), files={}, stdin=page_request(chance))


_LINKED: Final = (
    "check.yaml",
    "check.yaml.lock",
    "base.json",
    "config.json",
    "log.txt",
    "models.txt",
    "out.json",
    "out.csv",
    "receipt.json",
)
_TARGETS: Final = (
    "../outside/file",
    "../outside",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/proc/self/mem",
    "/nosuch/x",
    ".",
    "check.yaml",
    "config.json",
)


def links(chance: random.Random) -> Case:
    """Links and pipes where files are read and written."""
    words = chance.choice((
        ("check", "check.yaml", "--lock", "--offline"), ("check", "check.yaml", "--offline", "-o", "out.json"),
        ("check", "check.yaml", "--offline", "--baseline", "base.json"), ("check", "check.yaml", "--offline", "--output", "sarif=out.json"),
        ("sweep", "Qwen/Qwen3-1.7B", "--seq", "1k", "-o", "out.csv"), ("sweep", "@models.txt", "--seq", "1k"),
        ("config.json",), ("folder",), ("explain", "config.json"), ("reconcile", "Qwen/Qwen3-8B", "--log", "log.txt"),
        ("probe", "--verify", "receipt.json"), ("compare", "config.json", "Qwen/Qwen3-1.7B"), ("sweep", "Qwen/Qwen3-1.7B", "--seq", "1k", "-o", "receipt.json"),
    ))  # fmt: skip
    text = json.dumps(chance.choice(configs())).encode()
    files = {
        "check.yaml": _CHECKS.encode(),
        "config.json": text,
        "base.json": b"{}",
        "models.txt": b"Qwen/Qwen3-1.7B\n",
        "folder/config.json": text,
    }
    files |= {"log.txt": chance.choice(logs()).encode(), "receipt.json": b"{}"}
    names = chance.sample(
        (*_LINKED, "folder/config.json", "folder/model.safetensors", "folder/params.json"), chance.choice((1, 1, 2, 4))
    )
    # To wait for the writer of a pipe takes seconds.
    piped = tuple(names[:1]) if chance.random() < 0.1 else ()
    linked = {name: chance.choice((*_TARGETS, *_LINKED)) for name in names if name not in piped}
    return Case(family="links", words=words, files=files, links=linked, pipes=piped)


CALLED: Final = frozenset({"hub", "keywords", "launch", "library", "page", "stream", "tool", "trace"})
"""Kinds of input that are no command line alone."""

FAMILIES: Final[Mapping[str, Callable[[random.Random], Case]]] = {
    "config": config,
    "arguments": arguments,
    "check": check,
    "fleet": fleet,
    "prices": prices,
    "profile": profile,
    "log": log,
    "header": header,
    "weights": weights,
    "gguf": gguf,
    "picture": picture,
    "library": library,
    "stream": stream,
    "tool": tool,
    "keywords": keywords,
    "hub": hub,
    "page": page,
    "links": links,
    "launch": texts.launch,
    "trace": texts.trace,
}
"""A new kind of input is one function and one line here."""

WEIGHTS: Final[Mapping[str, int]] = {
    "library": 420, "stream": 150, "launch": 50, "trace": 30, "keywords": 140, "page": 60, "tool": 20,
    "config": 50, "gguf": 20, "check": 12, "header": 10, "weights": 8, "log": 10, "links": 8, "hub": 5, "profile": 3, "arguments": 3,
    "prices": 3, "fleet": 1,
    "picture": 1,
}  # fmt: skip
"""How many cases belong to each family, of a thousand. Those of the first line take one to three milliseconds of the processor; a
command takes ten to thirty, a picture 150, and a page (``explore``, a twentieth of the pictures and of the arguments) seconds."""


def case_of(seed: int, number: int, families: Mapping[str, int] = WEIGHTS) -> Case:
    """The case of this number: the same for the same seed, whatever ran before."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311 - nothing secret is made
    name = chance.choices([*families], [*families.values()])[0]
    made = FAMILIES[name](chance)
    if chance.random() < 0.02 and made.files and name not in {"links", "library"}:
        # The secret stands where nobody would put it.
        target = chance.choice([*made.files])
        data = made.files[target]
        at = chance.randrange(len(data) + 1)
        return Case(
            family=made.family,
            words=made.words,
            files={**made.files, target: data[:at] + SECRET.encode() + data[at:]},
            stdin=made.stdin,
        )
    return made
