"""The command that ``--emit`` writes is read back to the same plan, on every engine that has one, and so is a manifest.

``KVPLAN_ROUND_TRIPS=5000 pytest tests/hwcalc/launch/test_round_trip.py`` draws as many plans as that of all engines together.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc
from hwcalc import plan, read_launch
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError
from hwcalc.launch.planned import planned
from hwcalc.launch.read import Given
from hwcalc.planner.result import Plan
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.report.emit import emitted, emitters
from hwcalc.report.manifest import CHART, CHART_ENGINE, FORMS

PLANS: Final = int(os.environ.get("KVPLAN_ROUND_TRIPS", "36"))
MODELS: Final = (
    "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-12b-it", "mistralai/Mixtral-8x7B-Instruct-v0.1", "openai/gpt-oss-20b",
    "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2",
)  # fmt: skip
QUANTIZED: Final = ("openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3.2")
"""Models that are published in few bits. They are not drawn in 16 bits, which no server makes of them."""
VALUES: Final = (
    "true", "false", "on", "off", "2", "8", "16", "32", "64", "4k", "0.5", "32k", "64GiB", "fp8", "float32", "auto", "ngram:4", "mtp:1", "1,1",
    "v1", "v2", "q8_0", "fa3", "triton", "all", "none", "layer", "paged", "flashdecoding", "no_buffer", "extra_buffer", "512", "8192", "1", "0",
    "turbomind",
)  # fmt: skip
"""Something for each type of option; what a check refuses is passed over."""
ON_THE_MACHINE: Final = {
    "host_bandwidth",
    "host_memory",
    "flash_mla",
    "fp32_mamba_ssm_dtype",
    "mmproj",
    "mtp_layers",
    "ollama",
    "defaults",
    "ctx_type",
}
"""Options that say what a machine has, what is installed there, or what a file holds, and that no server is told."""
THE_LOAD: Final = {"n_ctx", "n_seq_max", "num_ctx", "num_parallel"}
"""Options that say what length and number of sequences say too."""
UNTOLD: Final[Mapping[str, tuple[str, ...]]] = {
    # llama.cpp and Ollama take what is free on all GPUs that they see, and mlx-lm the memory of the machine.
    "llamacpp": ("memory_utilization", "kv_memory", "pp"),
    "ollama": ("memory_utilization", "kv_memory", "pp"),
    "mlx": ("memory_utilization", "kv_memory"),
    # A pool whose size has a flag has no share of the GPU, which only the verdict is by.
    "mistral-rs": ("memory_utilization",),
    # vLLM's slots of adapters are those of all layers that it adapts.
    "vllm": ("lora",),
}
"""What a plan says of a server, and no flag of its command."""


@cache
def accepted(engine: str) -> Mapping[str, tuple[str, ...]]:
    """Engine option -> the values of :data:`VALUES` that it takes."""
    out: dict[str, tuple[str, ...]] = {}
    for name, option in find_engine(engine)[0].options.items():
        if name in ON_THE_MACHINE | THE_LOAD:
            continue
        for value in VALUES:
            try:
                option.check(name, value)
            except KvplanError:
                continue
            # A share of nothing is refused where it is planned.
            if not (("fraction" in name or "usage" in name) and value == "0"):
                out[name] = (*out.get(name, ()), value)
    return out


def drawn(engine: str, number: int) -> tuple[str, dict[str, Any]]:
    """A model and the options of a plan on this engine; the number decides which."""
    pick = random.Random(f"{engine} {number}")  # noqa: S311 - no secret
    model = pick.choice(MODELS)
    version = pick.choice((None, *find_engine(engine)[0].versions))
    gpus = ("m4-max-128gb",) if engine == "mlx" else ("h100-sxm5-80gb", "l4", "a100-sxm4-80gb", "b200-180gb")
    options: dict[str, Any] = {
        "engine": engine if version is None else f"{engine}@{version}",
        "seq": pick.choice((1000, 4096, 10_000, 32_768)),
        "gpu": pick.choice(gpus),
        "offline": True,
    }
    if engine in ("llamacpp", "ollama"):
        options["weights"] = pick.choice(("q4_k_m", "q8_0"))
    elif pick.random() < 0.15:
        options["weights"] = pick.choice(("fp8", "q4_k_m") if model in QUANTIZED else ("fp8", "bf16", "fp16", "q4_k_m"))
    likely: tuple[tuple[float, str, tuple[Any, ...]], ...] = (
        (0.5, "batch", (2, 4, 8)),
        (0.35, "tp", (2, 4)),
        (0.1, "pp", (2,)),
        (0.1, "dp", (2,)),
        (0.06, "ep", (2, 4)),
        (0.04, "dcp", (2,)),
        (
            0.35,
            "dtype",
            ("q8_0", "q4_0", "fp16") if engine in ("llamacpp", "ollama") else ("fp8", "fp8_e5m2", "bf16", "int8", "nvfp4"),
        ),
        (0.3, "memory_utilization", (0.8, 0.85, 0.95)),
        (0.05 * (engine != "mistral-rs"), "kv_memory", ("4GiB", 3 * 2**30 + 12_345)),
        (0.1, "lora", ("rank=16", "rank=64,count=4", "rank=8,targets=attention")),
        (0.04, "draft", ("Qwen/Qwen3-0.6B",)),
    )
    options |= {name: pick.choice(values) for chance, name, values in likely if pick.random() < chance}
    names = pick.sample(sorted(accepted(engine)), min(len(accepted(engine)), pick.choice((0, 1, 1, 2))))
    if names:
        options["engine_options"] = {name: pick.choice(accepted(engine)[name]) for name in names}
    return model, options


def numbers(value: Any) -> Any:
    """What a plan counts, without the words that say how."""
    if isinstance(value, dict):
        return {name: numbers(each) for name, each in value.items() if name not in ("steps", "formats", "requires")}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    return value if isinstance(value, (int, float)) else None


def counted(made: Plan) -> dict[str, Any]:
    """The bytes of memory, pool and cache, with all that they are made of."""
    document = made.to_dict()
    return {name: numbers(document.get(name)) for name in ("memory", "pool", "cache")}


def read_back(model: str, options: Mapping[str, Any], text: str) -> Plan:
    """The plan of the command, with what no command says: the load, the machine, and of which model a file is, whose name states the format."""
    engine = options["engine"].partition("@")[0]
    [server] = Given.of([f"model={model}"] if engine in ("llamacpp", "ollama") else []).servers(text)
    assert not server.unknown
    assert not server.unplanned
    told = planned(server)
    more: dict[str, Any] = {"offline": True, "gpu": options["gpu"], "engine": options["engine"], "batch": options.get("batch", 1)}
    more |= {name: options[name] for name in UNTOLD.get(engine, ()) if name in options}
    if engine in ("llamacpp", "ollama"):
        assert int(told.options.get("batch", 1)) == more["batch"]
    assert told.model == model
    if engine == "ollama" and "weights" not in told.options:
        # The usual tag of a model does not say its format.
        more["weights"] = options["weights"]
    if "seq" not in told.options or find_engine(engine)[0].facts.longest_option in options.get("engine_options", {}):
        more["seq"] = options["seq"]
    return plan(model, **planned(server, more).options)


def written(engine: str, what: str, count: int) -> Iterator[tuple[str, dict[str, Any], Plan, str]]:
    """So many plans that can be written so: the model, the options, the plan, and the text."""
    number = 0
    while count:
        model, options = drawn(engine, number)
        number += 1
        assert number < 10_000
        try:
            made = plan(model, **options)
            text = emitted(made, what)
        except KvplanError:
            continue
        if made.pool is not None and made.pool.requires:
            # The command has a flag more than the plan, without which its engine does not start.
            continue
        count -= 1
        yield model, options, made, text


@pytest.mark.parametrize("engine", emitters())
def test_a_command_is_read_back_to_its_plan(engine: str) -> None:
    """Whatever model, release, accelerator, layout and options: each byte is the same."""
    for model, options, made, text in written(engine, engine, PLANS // len(emitters())):
        assert counted(read_back(model, options, text)) == counted(made), (model, options, text)


@pytest.mark.parametrize("form", FORMS)
def test_a_manifest_is_read_back_to_its_plan(form: str) -> None:
    """With as many accelerators, which Kubernetes names."""
    for engine in emitters() if form != CHART else (CHART_ENGINE,):
        if engine_flags(engine).container is None:
            continue
        for model, options, made, text in written(engine, form, max(1, PLANS // 216)):
            assert counted(read_back(model, options, text)) == counted(made), (model, options, text)
            [server] = read_launch(text)
            assert made.fit is not None
            assert server.settings["gpus_per_replica"] == made.fit.gpus
            if form != "compose":
                assert planned(server).options["gpu"] == made.fit.gpu


@pytest.mark.parametrize("engine", emitters())
def test_what_fits_passes_the_check_of_its_text(engine: str, tmp_path: Path) -> None:
    """Also SGLang's, which does not say 8,192 tokens, and starts with a pool of fewer than the model's 131,072."""
    model, gpu = "meta-llama/Llama-3.2-3B-Instruct", "m4-max-128gb" if engine == "mlx" else "l4"
    weights: dict[str, Any] = {"weights": "q4_k_m"} if engine in ("llamacpp", "ollama") else {}
    made = plan(model, engine=engine, gpu=gpu, seq=8192, offline=True, **weights)
    path = tmp_path / "serve"
    path.write_text(emitted(made, engine), encoding="utf-8")
    # A file of weights is on the server.
    [check] = hwcalc.check(str(path), gpu=gpu, offline=True, env={"model": model} if weights else None).checks

    assert made.fit is not None
    assert made.fit.fits
    assert (check.status, [note.code for note in check.warnings]) == ("pass", ["short-pool"] if engine == "sglang" else [])


def test_the_length_of_sglang_is_said_again_or_named() -> None:
    """Its server allows the model's own 131,072 tokens, which an L4 does not hold, until an option names a length that is written."""
    llama: dict[str, Any] = {"engine": "sglang", "gpu": "l4", "weights": "fp8", "offline": True}
    told = {"gpu": "l4", "offline": True}

    def back(text: str, **more: Any) -> Plan:
        [server] = read_launch(text)
        again = planned(server, told | more)
        assert again.model is not None
        return plan(again.model, **again.options)

    made = plan(MODELS[1], seq=8192, **llama)
    text = emitted(made, "kubernetes")
    assert made.fit is not None
    assert made.fit.fits
    assert "--context-length" not in text
    assert back(text).request.seq == 131_072
    assert counted(back(text, seq=8192)) == counted(made)

    named = plan(MODELS[1], seq=8192, engine_options={"context_length": "8k"}, **llama)
    same = back(emitted(named, "kubernetes"))
    assert (same.request.seq, counted(same)) == (8192, counted(named))
    assert same.fit is not None
    assert same.fit.fits
