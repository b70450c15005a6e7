"""Where engines run, and in which formats: all accelerators and engines against what the engines' own pages, code and wheels say.

``tests/golden/engine_hardware.json`` is that as it was read, apart from the data of the program. Where a later reading says otherwise,
:data:`READ_AGAIN` and :data:`FORMATS_READ_AGAIN` say what and why.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import plan
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.runs_on import OPEN
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from hwcalc.profiles.engine_hardware import Answer, format_runs_on, has_hardware, runs_on
from hwcalc.profiles.gpus import built_in_gpus
from hwcalc.profiles.hardware_file import Gpu
from tests.effort import cases
from tests.paths import GOLDEN

ANSWERS: Final = {"supported": Answer.RUNS, "experimental": Answer.OPEN, "excluded": Answer.NEVER}
READ_AGAIN: Final = {
    # PyTorch's images for ROCm build for these (.ci/docker/almalinux/build.sh), which the first reading had left open.
    ("transformers", gfx): Answer.OPEN
    for gfx in ("gfx900", "gfx906", "gfx908", "gfx1030", "gfx1102", "gfx1151")
}
FORMATS_READ_AGAIN: Final = {
    # Its own news of September 2025 name V100 and later.
    ("lmdeploy", "weights:mxfp4"): {Answer.RUNS},
    # Below 7.5 it unpacks them to bf16, which is no plan of MXFP4.
    ("transformers", "weights:mxfp4"): {Answer.RUNS, Answer.NEVER},
    # Its code compiles block-wise kernels from 8.0 on, and Marlin's are not the only ones for integers.
    ("mistral-rs", "weights:fp8"): {Answer.RUNS, Answer.OPEN, Answer.NEVER},
    ("mistral-rs", "weights:marlin(gptq,awq)"): {Answer.RUNS, Answer.OPEN, Answer.NEVER},
    # kvplan plans the GGUF file that its converter makes of them, and refuses them as --weights.
    ("llamacpp", "weights:awq,gptq,fp8"): {Answer.RUNS},
    # Its cache has a back end of fp8 since 5.22, which the row did not know.
    ("transformers", "cache:fp8"): {Answer.RUNS},
    # Its back end for ROCm takes fp8 whatever the card, and its code for RDNA3 was read at 0.28 and 0.33 alone.
    ("vllm", "cache:fp8"): {Answer.RUNS, Answer.OPEN, Answer.NEVER},
}
FA3: Final = {"attention_backend": "fa3"}
NAMES: Final = {
    "weights:compressed-tensors-int4": ("int4",),
    "weights:int8-w8a8": ("int8",),
    "weights:fp8-finegrained": ("fp8",),
    "weights:bitsandbytes": ("bnb4",),
    "weights:awq,gptq-int4": ("awq", "gptq"),
    "weights:marlin(gptq,awq)": ("awq", "gptq"),
    "weights:mxfp4-compressed-tensors": ("compressed-tensors mxfp4",),
    "weights:nvfp4-compressed-tensors": ("compressed-tensors nvfp4",),
    "weights:fp8-compressed-tensors": ("compressed-tensors fp8",),
    "weights:fp8-modelopt": ("modelopt fp8",),
    "weights:fp8-fbgemm": ("fbgemm-fp8 fp8",),
    "weights:affine-4bit,mxfp4": ("mlx_4bit", "mxfp4"),
    "weights:affine-4bit,mxfp4,mxfp8,nvfp4": ("mlx_4bit", "mxfp4", "mxfp8", "nvfp4"),
    "weights:affine-4bit": ("mlx_4bit",),
    "weights:awq,gptq,fp8,mxfp4,mxfp8,inc,moe_wna16": ("awq", "gptq", "fp8", "mxfp4", "mxfp8"),
    "weights:nvfp4,bitsandbytes,gguf,modelopt": ("nvfp4", "bnb4", "gguf"),
    "dsa": ("sparse latent",),
    "deepseek-v4": ("compressed",),
}
"""Names in the facts -> those by which kvplan asks. All others are lists of its own names after the colon."""
KERNELS: Final = frozenset(
    {
        *("weights:gptq-marlin", "weights:gptq-marlin,awq-marlin", "weights:w4a8-fp8", "weights:fp-quant", "weights:bf16"),
        *("cache:octave", "cache:2,3,4,8 bit"),
    }
)
"""Kernels and layouts of formats that kvplan does not plan apart."""


@lru_cache(maxsize=1)
def facts() -> Mapping[str, Any]:
    """What was read."""
    content: dict[str, Any] = json.loads((GOLDEN / "engine_hardware.json").read_text("utf-8"))
    return content


def numbers(version: str) -> tuple[int, ...]:
    """A version to compare."""
    return tuple(int(part) for part in version.lstrip("vb").split(".") if part.isdecimal())


def fits(needs: Mapping[str, Any], gpu: Gpu) -> bool:
    """Whether an accelerator is one of those that a row of the facts names."""
    if gpu.capability is not None:
        least = needs.get("cuda_min")
        return gpu.compute_capability in needs.get("cuda_list", ()) or (
            least is not None and gpu.capability >= numbers(f"{least}.0")[:2]
        )
    named = [word for key in ("gfx", "xpu", "tpu", "gaudi", "ascend", "neuron") for word in needs.get(key, ())]
    if "apple" in needs and gpu.vendor == "apple":
        return True
    kinds = {"gfx": "amd", "xpu": "intel", "tpu": "google", "ascend": "huawei", "neuron": "aws"}
    whole = any("*" in needs.get(key, ()) and gpu.vendor == maker for key, maker in kinds.items())
    return gpu.architecture in named or gpu.id in named or (whole and gpu.architecture is not None)


def known_of(row: Mapping[str, Any], version: str) -> bool:
    """Whether a row of the facts is about a version."""
    return numbers(row["since"]) <= numbers(version) <= numbers(row["until"])


EACH: Final = [
    (name, *name.partition("-")[::2]) if name.startswith("lmdeploy") else (name, name, "") for name in facts()["engines"]
]
"""The names in the facts, the engine, and the part of it."""


@pytest.mark.parametrize(("name", "engine", "backend"), EACH)
def test_every_accelerator(name: str, engine: str, backend: str) -> None:
    """Of all accelerators, those run that the engine's sources name, and no others."""
    read = facts()["engines"][name]
    assert len(built_in_gpus()) >= len(read["excluded"])
    wrong = {}
    for gpu in built_in_gpus().values():
        expected = Answer.NEVER if gpu.id in read["excluded"] else Answer.OPEN if gpu.id in read["open"] else Answer.RUNS
        expected = READ_AGAIN.get((engine, gpu.architecture or ""), expected)
        answer = runs_on(engine, read["version"], gpu, backend).answer
        if answer is not expected:
            wrong[gpu.id] = (answer.value, expected.value)
    assert not wrong


def questions() -> Iterator[tuple[str, str, str]]:
    """Engine, name and version of each question on formats: at the first and last version of each row."""
    asked = {
        (row["engine"], row["name"], version)
        for row in facts()["formats"]
        for version in (row["since"], row["until"])
        if row["name"] not in KERNELS and not version.startswith("b")
    }
    yield from sorted(asked)


@pytest.mark.parametrize(("engine", "name", "version"), list(questions()))
def test_every_format(engine: str, name: str, version: str) -> None:
    """Of all accelerators, a format runs on those that the sources name; what they exclude is refused."""
    rows = [row for row in facts()["formats"] if (row["engine"], row["name"]) == (engine, name) and known_of(row, version)]
    section, _, listed = name.partition(":")
    section = section if listed else "attention"
    wrong = {}
    for gpu in built_in_gpus().values():
        named = [ANSWERS[row["status"]] for row in rows if fits(row["needs"], gpu)]
        if not named:
            continue
        expected = min(named, key=list(Answer).index)
        allowed = {expected} | FORMATS_READ_AGAIN.get((engine, name), set())
        backend = rows[0]["backend"] if engine == "lmdeploy" and len({row["backend"] for row in rows}) == 1 else ""
        for spelled in NAMES.get(name, listed.split(",")):
            found = format_runs_on(engine, version.lstrip("v"), section, (spelled,), gpu, backend)
            answer = Answer.RUNS if found is None else found.answer
            if answer not in allowed:
                wrong[gpu.id, spelled] = (answer.value, expected.value)
    assert not wrong


MODELS: Final = (
    *("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"),
    *("Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it", "mistralai/Mistral-7B-v0.1"),
)
WEIGHTS: Final = (None, None, "fp8", "awq", "gptq", "nvfp4", "mxfp4", "int8", "q4_k_m", "bnb4")
DTYPES: Final = (None, None, None, "fp8", "fp8_e4m3", "nvfp4", "q8_0", "int8_per_token_head")


PLANS: Final = cases(250, 500)


def test_nothing_is_said_to_start_that_the_engine_excludes() -> None:
    """Of random plans over all accelerators, engines and versions, no plan is made of what the facts exclude; what is open is a warning."""
    dice, gpus, planned = random.Random(32), list(built_in_gpus().values()), 0  # noqa: S311
    engines = [name for name in ENGINES if has_hardware(name)]
    for _ in range(PLANS):
        gpu, name, model = dice.choice(gpus), dice.choice(engines), dice.choice(MODELS)
        version, weights, dtype = dice.choice(find_engine(name)[0].versions), dice.choice(WEIGHTS), dice.choice(DTYPES)
        case = f"{model} --engine {name}@{version} --gpu {gpu.id} --weights {weights} --dtype {dtype}"
        try:
            made = plan(
                model, engine=f"{name}@{version}", gpu=gpu.id, weights=weights, dtype=dtype, seq=4096, tp=dice.choice((1, 8))
            )
        except KvplanError:
            continue
        planned += 1
        warned = any(note.code == OPEN for note in made.warnings)
        newest = find_engine(name)[0].versions[0]
        # LMDeploy is planned by its PyTorch engine unless TurboMind is named.
        read = facts()["engines"].get("lmdeploy-pytorch" if name == "lmdeploy" else name)
        if read is not None and version == newest:
            again = READ_AGAIN.get((name, gpu.architecture or ""))
            assert gpu.id not in read["excluded"] or (again is Answer.OPEN and warned), case
            assert gpu.id not in read["open"] or warned, case
        kept = {"fp8_e4m3": "fp8"}.get(made.request.kv_dtype, made.request.kv_dtype)
        for section, form in (("weights", weights), ("cache", kept)):
            for row in facts()["formats"]:
                asked = NAMES.get(row["name"], row["name"].partition(":")[2].split(","))
                about = (
                    row["engine"] == name and row["name"].startswith(section) and form in asked and row["backend"] != "turbomind"
                )
                if about and known_of(row, version) and row["status"] == "excluded" and fits(row["needs"], gpu):
                    others = [
                        one
                        for one in facts()["formats"]
                        if (one["engine"], one["name"]) == (name, row["name"])
                        and known_of(one, version)
                        and fits(one["needs"], gpu)
                    ]
                    better = any(one["status"] != "excluded" for one in others)
                    assert better or (name, row["name"]) in FORMATS_READ_AGAIN, case
    assert planned > PLANS // 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "vllm", "gpu": "rx-580"}, "does not run on AMD Radeon RX 580 [(]gfx803[)]"),
        ({"engine": "vllm", "gpu": "mi50-32gb"}, "does not run on"),
        ({"engine": "vllm", "gpu": "v100-sxm2-32gb"}, "does not run on .* begin at compute capability 7.5"),
        (
            {"engine": "vllm", "gpu": "t4", "model": "openai/gpt-oss-20b"},
            "does not run mxfp4 weights .*: no kernel of it is for compute capability below 8.0",
        ),
        ({"engine": "sglang", "gpu": "mi300x", "model": "openai/gpt-oss-20b"}, "does not run mxfp4 weights"),
        ({"engine": "vllm", "gpu": "t4", "dtype": "fp8"}, "does not run a cache in fp8"),
        ({"engine": "vllm", "gpu": "h100-sxm5-80gb", "dtype": "fp8_inc"}, "does not run a cache in fp8_inc .* for Intel Gaudi"),
        (
            {"engine": "vllm@0.25", "gpu": "l4", "dtype": "nvfp4"},
            "does not run a cache in nvfp4 .*: that needs compute capability 10.0, 10.3",
        ),
        (
            {"engine": "vllm", "gpu": "a100-sxm4-80gb", "model": "deepseek-ai/DeepSeek-V3.2", "tp": 8},
            "does not run sparse latent attention",
        ),
        ({"engine": "transformers", "gpu": "a100-sxm4-80gb", "weights": "fp8"}, "unpacks fp8 to bf16"),
        ({"engine": "sglang", "gpu": "t4"}, "does not run on"),
        ({"engine": "tgi", "gpu": "rtx-5090"}, "does not run on"),
        ({"engine": "vllm", "gpu": "mi455x"}, "no source says that it does"),
        # By rules that are not known: Gaudi's back end is another program, and below 7.5 plain transformers run.
        ({"engine": "tgi", "gpu": "gaudi3"}, r"TGI runs on Intel Gaudi 3 [(]OAM, gaudi3[)], by rules that kvplan does not know"),
        (
            {"engine": "tgi", "gpu": "v100-sxm2-32gb"},
            "rules for .* are not known: it runs there without flash and paged attention",
        ),
        # FlashAttention 3 takes no latents below 9.0, FlashMLA runs on 9.0 and 10.x.
        (
            {"engine": "sglang", "gpu": "a100-sxm4-80gb", "model": "deepseek-ai/DeepSeek-V2-Lite", "engine_options": FA3},
            "does not run fa3 attention .*: that needs compute capability 9.0",
        ),
        (
            {"engine": "sglang", "gpu": "l4", "engine_options": {"attention_backend": "flashmla"}},
            "does not run flashmla attention .* that needs compute capability 9.0, 10.0, 10.3",
        ),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    """What the engine excludes is refused, with the reason."""
    given = {"model": "Qwen/Qwen3-8B", "seq": 4096, **options}
    with pytest.raises(UnsupportedError, match=words) as raised:
        plan(given.pop("model"), **given)
    assert "--hardware" in raised.value.hint


def test_fa3_without_latents() -> None:
    """From 8.0 on SGLang runs FlashAttention 3 for models without latents."""
    assert plan("Qwen/Qwen3-8B", engine="sglang", gpu="a100-sxm4-80gb", seq=4096, engine_options=FA3).fit is not None


def test_who_runs_there_is_named() -> None:
    """A hint names an engine that runs on the accelerator, or says that none is known."""
    with pytest.raises(UnsupportedError) as raised:
        plan("Qwen/Qwen3-8B", engine="tgi", gpu="v100-sxm2-32gb", seq=4096)
    assert "Use: --engine llamacpp." in raised.value.hint
    with pytest.raises(UnsupportedError) as raised:
        plan("Qwen/Qwen3-8B", engine="llamacpp", gpu="tpu-v5e", seq=4096)
    assert "kvplan knows no engine's rules there" in raised.value.hint


def test_an_older_version_is_named() -> None:
    """Where an older release runs, the hint names it, and it is planned."""
    with pytest.raises(UnsupportedError) as raised:
        plan("Qwen/Qwen3-8B", engine="vllm", gpu="v100-sxm2-32gb", seq=4096)
    assert "--engine vllm@0.19 " in raised.value.hint
    assert plan("Qwen/Qwen3-8B", engine="vllm@0.19", gpu="v100-sxm2-32gb", seq=4096).fit is not None


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "vllm", "gpu": "rx-7600-xt"},
        {"engine": "vllm", "gpu": "mi210", "weights": "awq"},
        {"engine": "mistral-rs", "gpu": "t4"},
        {"engine": "transformers", "gpu": "tpu-v6e"},
    ],
)
def test_what_is_open_is_a_warning(options: dict[str, Any]) -> None:
    """A plan is made, warns, and does not say that the engine will start."""
    made = plan("Qwen/Qwen3-0.6B", seq=4096, **options)
    assert [note.code for note in made.warnings] == [OPEN]
    assert "will start" not in str(made) or ", if it runs there" in str(made)


def test_advice_stays_with_what_runs() -> None:
    """No change that makes a plan fit takes it to a format or accelerator that the engine excludes, or of which it is open."""
    made = plan("Qwen/Qwen3-32B", engine="vllm", gpu="mi210", seq=32768, batch=8)
    assert made.fit is not None
    assert made.fit.suggestions
    assert not [one for one in made.fit.suggestions if "awq" in one.command or "int8_per_token_head" in one.command]


def test_an_accelerator_of_the_users_own() -> None:
    """One whose file does not say what it is is open; a built-in one of which that is not known is refused."""
    unknown = built_in_gpus()["mi455x"]
    assert runs_on("vllm", "0.33", unknown).answer is Answer.NEVER
    assert runs_on("vllm", "0.33", replace(unknown, user=True)).answer is Answer.OPEN


def test_a_log_is_not_refused() -> None:
    """What has started is known to run: a fork, or a source build. Its rules hold all the same."""
    asked: dict[str, Any] = {"seq": 4096, "engine": "vllm", "gpu": "v100-sxm2-32gb"}
    opened = open_request(load_model("Qwen/Qwen3-8B"), started=True, **asked)
    assert not opened.hardware_warnings
    with pytest.raises(UnsupportedError, match="does not run on"):
        open_request(load_model("Qwen/Qwen3-8B"), **asked)
    with pytest.raises(UnsupportedError, match="rules for Apple M4"):
        open_request(load_model("Qwen/Qwen3-8B"), started=True, **{**asked, "gpu": "apple-m4"})


def test_no_format_is_chosen_that_is_open() -> None:
    """``--weights auto`` takes a format that runs for all that is known: no NVFP4 of TensorRT-LLM on Ada, no AWQ of vLLM on AMD."""
    assert plan("meta-llama/Llama-3.1-8B", engine="tensorrt-llm", gpu="l4", weights="auto", seq=4096).request.weights != "nvfp4"
    assert plan("meta-llama/Llama-3.1-70B", engine="vllm", gpu="mi210", weights="auto", seq=4096).request.weights in (
        None,
        "fp8",
        "bf16",
    )
