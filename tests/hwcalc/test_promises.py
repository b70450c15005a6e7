"""What is promised holds: planned at what an answer says that fits, it fits as surely as was said, and one more does not.

Every engine, models of every kind, random requests, and nothing but the public functions. ``PROMISES_CASES`` is the number of requests of each
engine, and ``PROMISES_SEED`` another seed: ``PROMISES_CASES=1000 pytest tests/hwcalc/test_promises.py`` takes some minutes.

Three things limit a request beside its memory. An answer that ends at one of them promises nothing of one more: the longest sequence of the model
(``limiting_seq`` is not the cache), sequences that the engine never runs at once (``limiting`` is the name of an option), and the largest number
that a request may have.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import pytest
from msgspec.structs import asdict

import hwcalc
from hwcalc import KvplanError, ModelSpec, Plan, load_model
from hwcalc.engines import ENGINES
from hwcalc.profiles.gpus import find_gpu
from tests.effort import cases
from tests.hwcalc.command import read_plan

CASES: Final = int(os.environ.get("PROMISES_CASES", cases(4, 6)))
SEED: Final = os.environ.get("PROMISES_SEED", "1")
MODELS: Final = {
    "grouped queries": ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen2.5-14B-Instruct", "google/gemma-2b"),
    "every head": ("01-ai/Yi-1.5-34B", "openai-community/gpt2", "facebook/opt-1.3b", "bigscience/bloom"),
    "latent attention": ("deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Base", "zai-org/GLM-4.7-Flash", "deepseek-ai/DeepSeek-V2-Lite"),
    "latent attention with an indexer": ("deepseek-ai/DeepSeek-V3.2", "nvidia/GLM-5-NVFP4"),
    "compressed attention": ("deepseek-ai/DeepSeek-V4-Flash",),
    "windows": ("google/gemma-3-27b-it", "google/gemma-2-27b", "mistralai/Mistral-7B-v0.1", "openai/gpt-oss-20b", "openai/gpt-oss-120b"),
    "chunks": ("meta-llama/Llama-4-Scout-17B-16E-Instruct",),
    "states": ("state-spaces/mamba-1.4b-hf", "RWKV/rwkv-5-world-3b", "fla-hub/rwkv7-0.4B-world", "tiiuae/falcon-mamba-7b"),
    "states and attention": (
        "ai21labs/AI21-Jamba2-3B", "Zyphra/Zamba2-1.2B-instruct", "nvidia/Nemotron-H-56B-Base-8K", "Qwen/Qwen3-Coder-Next",
        "nvidia/Qwen3.6-27B-NVFP4", "LiquidAI/LFM2-1.2B", "tiiuae/Falcon-H1-0.5B-Base", "moonshotai/Kimi-Linear-48B-A3B-Base",
        "MiniMaxAI/MiniMax-Text-01",
    ),
    "an encoder": ("facebook/bart-large", "meta-llama/Llama-3.2-90B-Vision-Instruct"),
    "experts": ("mistralai/Mixtral-8x22B-Instruct-v0.1", "nvidia/Qwen3-235B-A22B-NVFP4", "allenai/OLMoE-1B-7B-0924"),
    "layers that share": ("google/gemma-4-26B-A4B", "tencent/Hunyuan-7B-Instruct", "microsoft/Phi-4-mini-flash-reasoning"),
    "pictures": ("Qwen/Qwen3-VL-2B-Instruct", "llava-hf/llava-1.5-7b-hf"),
}  # fmt: skip
GPUS: Final = (
    "l4", "a10g", "rtx-4090", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb", "mi300x", "l40s", "rtx-4060-ti-16gb", "m4-max-64gb",
)  # fmt: skip
AT_HOME: Final = ("m4-max-64gb", "m4-24gb", "rtx-4060-ti-16gb", "rtx-4090", "l4", "h100-sxm5-80gb")
DTYPES: Final = {
    "vllm": ("fp8",), "sglang": ("fp8_e5m2",), "mistral-rs": ("fp8",), "llamacpp": ("q8_0",), "ollama": ("q8_0",), "tensorrt-llm": ("fp8",),
    "lmdeploy": ("int8",), "reference": ("fp8", "int4"),
}  # fmt: skip
WEIGHTS: Final = {"llamacpp": ("q4_k_m", "q8_0"), "ollama": ("q4_k_m",), "mistral-rs": ("q8_0",), "mlx": ("mlx-4bit",)}
OPTIONS: Final = {
    "vllm": ({"max_num_seqs": "7"}, {"max_num_batched_tokens": "2048"}, {"enforce_eager": "true"}, {"block_size": "32"}),
    "sglang": ({"max_running_requests": "9"}, {"page_size": "64"}, {"enable_dp_attention": "true"}),
    "mistral-rs": ({"max_seqs": "200"}, {"pa_block_size": "16"}, {"paged_attn": "off"}, {"paged_attn": "on"}),
    "tensorrt-llm": ({"max_batch_size": "5"}, {"max_num_tokens": "2048"}, {"enable_block_reuse": "true"}),
    "lmdeploy": ({"max_batch_size": "6"}, {"backend": "pytorch"}),
    "llamacpp": ({"n_gpu_layers": "all"}, {"flash_attn": "off"}, {"swa_full": "true"}, {"kv_unified": "true"}, {"n_ubatch": "2048"}),
    "ollama": ({"num_gpu": "999"}, {"num_batch": "1024"}),
    "transformers": ({"cache": "static"}, {"cache": "offloaded"}),
    "tgi": ({"max_concurrent_requests": "300"}, {"attention": "paged"}),
}  # fmt: skip
POLICIES: Final = ("streamingllm", "h2o:budget=512")
LARGEST: Final = 10**9
"""A number that every request may have, and no answer below it is without a limit."""
_OF_PLAN: Final = ("verdict", "fits", "max_seq", "expected_max_seq", "max_batch", "expected_max_batch", "usable_bytes")


@lru_cache(maxsize=64)
def model_of(name: str) -> ModelSpec:
    """A model of the catalog, read once."""
    return load_model(name, offline=True)


def requests(engine: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Random requests without an end, some of which the engine refuses."""
    dice = random.Random(f"{engine} {SEED}")  # noqa: S311 - cases, not secrets
    while True:
        name = dice.choice(dice.choice([*MODELS.values()]))
        asked: dict[str, Any] = {"engine": engine, "seq": int(2 ** dice.uniform(5, 17)), "batch": int(2 ** dice.uniform(0, 6))}
        asked["gpu"] = dice.choice(AT_HOME if engine in ("llamacpp", "ollama", "mlx") else GPUS)
        layout = dice.random()
        if layout < 0.3:
            asked["gpus"] = dice.choice((2, 4, 8, 8, 16))
        elif layout < 0.5:
            asked |= {
                dice.choice(("tp", "pp", "dp")): dice.choice((2, 4, 8)),
                dice.choice(("tp", "pp", "dp")): dice.choice((1, 2)),
            }
        for chance, name_of, values in (
            (0.2, "dtype", DTYPES.get(engine)),
            (0.3, "weights", WEIGHTS.get(engine, ("fp8", "awq", "bf16"))),
            (0.3, "engine_options", OPTIONS.get(engine)),
            (0.1, "margin", (0.02, "25%")),
            (0.1, "memory_utilization", (0.5, 0.95)),
            (0.1, "kv_memory", ("512MiB", "8GiB")),
            (0.1, "prompt", (16, 1000)),
            (0.07, "shared_prefix", (64, 1000)),
            (0.07, "samples", (2, 4)),
            (0.05, "beams", (2, 4)),
            (0.04, "policy", POLICIES),
        ):
            if values is not None and dice.random() < chance:
                asked[name_of] = dice.choice(values)
        yield name, asked


def planned(name: str, asked: dict[str, Any], **change: Any) -> Plan | None:
    """The plan with a change; ``None`` if it is refused."""
    try:
        return hwcalc.plan(model_of(name), **{**asked, **change})
    except KvplanError:
        return None


def judged(cases: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any], Plan]]:
    """Those of the requests that have a verdict, with their plans."""
    for name, asked in cases:
        plan = planned(name, asked)
        if plan is not None and plan.fit is not None:
            yield name, asked, plan


def verdict(name: str, asked: dict[str, Any], **change: Any) -> str:
    """The word of its verdict."""
    plan = planned(name, asked, **change)
    return "refused" if plan is None or plan.fit is None else plan.fit.verdict.value


def layout_of(plan: Plan) -> dict[str, int]:
    """The parallel sizes of a plan."""
    return {size: getattr(plan.request, size) for size in ("tp", "pp", "dp", "dcp", "ep")}


def with_layout(asked: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The request in the layout that was planned."""
    return {**asked, "gpus": None, **layout_of(plan)}


SURE: Final = frozenset({"fits"})
LIKELY: Final = frozenset({"fits", "probably"})


def broken(name: str, asked: dict[str, Any], plan: Plan) -> Iterator[str]:
    """The promises of a plan that do not hold."""
    fit = plan.fit
    assert fit is not None
    asked = with_layout(asked, plan)
    for sizes, most, limiting, words in (
        ("batch", fit.max_batch, fit.limiting, SURE),
        ("batch", fit.expected_max_batch, fit.expected_limiting, LIKELY),
        ("seq", fit.max_seq, fit.limiting_seq, SURE),
        ("seq", fit.expected_max_seq, fit.expected_limiting_seq, LIKELY),
    ):
        assert most is not None
        told = f"{sizes} {'surely' if words is SURE else 'expected'} {most}"
        # A sequence that is shorter than its prompt, or than what all have in common, is all of it.
        cut = ("prompt", "shared_prefix") if sizes == "seq" else ()
        short = {part: most for part in cut if most < (asked.get(part) or 0)}
        there = {sizes: min(most, LARGEST), **short}
        # Where it does not surely fit, llama.cpp may move layers between GPUs; the limits keep them where they are.
        said = verdict(name, asked, **there) if most else words
        if most and said not in words and verdict(name, with_layers(asked, plan), **there) not in words:
            yield f"{told}: there it is {said}"
        beyond = limiting is None or (sizes == "seq" and limiting in ("model length", "planned length"))
        fixed = None if beyond or most >= LARGEST else placed(asked, plan)
        if fixed is not None and (said := verdict(name, fixed, **{sizes: most + 1})) in words:
            yield f"{told} by {limiting}: one more is {said}"
    yield from broken_gpus(name, asked, plan)
    for line in fit.suggestions if fit.verdict.value != "fits" else ():
        said_for, given = read_plan(line.command)
        again = verdict(said_for, given)
        if again != ("probably" if line.effect.endswith("probably fits") else "fits"):
            yield f"try {line.command}: {line.effect}: there it is {again}"


def with_layers(asked: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The request with as many layers on the GPUs as the plan has there, as ``docs/llamacpp.md`` says of its limits."""
    option = {"llamacpp": "n_gpu_layers", "ollama": "num_gpu"}.get(plan.request.engine)
    if option is None or asked.get("kv_memory"):
        return asked
    assert plan.fit is not None
    return {**asked, "engine_options": {**asked.get("engine_options", {}), option: str(plan.fit.gpu_layers)}}


def placed(asked: dict[str, Any], plan: Plan) -> dict[str, Any] | None:
    """The request with every layer where the plan has it; ``None`` if no option says that.

    By itself llama.cpp leaves more layers to the host where sequences grow, so that one more fits there too.
    """
    made, fit = with_layers(asked, plan), plan.fit
    assert fit is not None
    moves = made is not asked and (fit.gpus > 1 or any(len(device.experts) for device in plan.memory.devices))
    return None if moves else made


def broken_gpus(name: str, asked: dict[str, Any], plan: Plan) -> Iterator[str]:
    """What is said of the fewest GPUs and does not hold. Fewer are those that are sold: half as many in a node, or a node less."""
    fit = plan.fit
    assert fit is not None
    if plan.request.engine in ("llamacpp", "ollama"):
        # What they leave in the memory of the host fits too; the fewest are those that hold all of it.
        return
    for layout, words in ((fit.min_layout, LIKELY), (fit.sure_min_layout, SURE)):
        if layout is None:
            continue
        said = verdict(name, {**asked, **asdict(layout), "dcp": 1})
        if said not in words:
            yield f"fewest {layout}: there it is {said}"
        node = find_gpu(asked["gpu"]).node
        fewer = layout.gpus - node if layout.gpus > node else layout.gpus // 2
        if fewer and layout.gpus != fit.gpus:
            free = {**asked, "gpus": fewer, "tp": 1, "pp": 1, "dp": 1, "dcp": 1, "ep": 1}
            if (said := verdict(name, free)) in words:
                yield f"fewest {layout}: on {fewer} GPUs it is {said}"


@pytest.mark.parametrize("engine", [*ENGINES])
def test_a_plan_holds_what_it_promises(engine: str) -> None:
    """Its longest, its most, its fewest, and each change that it offers."""
    cases = islice(judged(requests(engine)), CASES)
    wrong = [(name, asked, line) for name, asked, plan in cases for line in broken(name, asked, plan)]
    assert not wrong, "\n".join(map(str, wrong))


def laid_out(engine: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Random requests that name a number of GPUs and no layout."""
    dice = random.Random(f"{engine} layouts {SEED}")  # noqa: S311 - cases, not secrets
    for name, asked in requests(engine):
        batch = dice.choice((1, 2, 5, 8, 40, 200))
        plain = {
            key: value for key, value in asked.items() if key not in ("tp", "pp", "dp", "kv_memory", "samples", "shared_prefix")
        }
        yield name, {**plain, "gpus": dice.choice((2, 4, 8, 8, 16)), "batch": batch}


@pytest.mark.parametrize("engine", [*ENGINES])
def test_one_question_has_one_answer(engine: str) -> None:
    """Plan, compare, sweep and recommend say the same of so many GPUs, in the same layout."""
    wrong: list[object] = []
    for name, asked, plan in islice(judged(laid_out(engine)), max(4, CASES // 3)):
        model, fit = model_of(name), plan.fit
        assert fit is not None
        found = hwcalc.compare(model, **asked).variants[0]
        if {each: getattr(found, each) for each in _OF_PLAN} != {each: getattr(fit, each) for each in _OF_PLAN}:
            wrong.append((name, asked, "compare", found.verdict, fit.verdict))
        # More points than are planned one by one.
        grid = {**asked, "seq": [asked["seq"], *range(100, 106)], "batch": [asked["batch"], *range(1, 11)]}
        row = next(iter(hwcalc.sweep(model, **grid)))
        if (row.fits, row.tp, row.cache_per_gpu_bytes) != (fit.verdict.value, plan.request.tp, plan.cache.per_gpu_bytes):
            wrong.append((name, asked, "sweep", row.fits, row.tp, fit.verdict, plan.request.tp))
        if not fit.fits:
            layouts = [planned(name, {**asked, **sizes}) for sizes in every_layout(asked["gpus"])]
            wrong += [
                (name, asked, "fits as", layout_of(one))
                for one in layouts
                if one is not None and one.fit is not None and one.fit.fits
            ]
    assert not wrong, "\n".join(map(str, wrong))


def every_layout(gpus: int) -> list[dict[str, int]]:
    """Ranks that divide a node, with replicas, whose experts are dealt out or not."""
    ranks = [tp for tp in (1, 2, 4, 8) if gpus % tp == 0]
    return [{"tp": tp, "dp": gpus // tp, "ep": ep} for tp in ranks for ep in {1, gpus}]


@pytest.mark.parametrize("engine", [*ENGINES])
def test_what_is_recommended_is_planned(engine: str) -> None:
    """A plan on so many of these GPUs has the layout of the offer, and holds what the offer says."""
    wrong: list[object] = []
    for name, asked, _ in islice(judged(laid_out(engine)), max(3, CASES // 4)):
        wanted = {key: value for key, value in asked.items() if key not in ("gpu", "gpus")}
        try:
            offers = hwcalc.recommend(model_of(name), gpu=[asked["gpu"], "l4", "h100-sxm5-80gb"], max_gpus=8, **wanted).offers
        except KvplanError:
            continue
        for offer in offers:
            free = {**wanted, "gpu": offer.gpu, "gpus": offer.gpus}
            plan = planned(name, free)
            if plan is None or plan.fit is None:
                wrong.append((name, free, "refused"))
                continue
            told = (offer.verdict, offer.tp, offer.pp, offer.dp, offer.ep, offer.max_batch, offer.max_seq)
            sizes = layout_of(plan)
            said = (plan.fit.verdict, *(sizes[size] for size in ("tp", "pp", "dp", "ep")), plan.fit.max_batch, plan.fit.max_seq)
            if told != said:
                wrong.append((name, free, told, said))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("engine", [*ENGINES])
def test_what_can_run_is_planned(engine: str) -> None:
    """Each row of a list is a command, whose plan is as sure, and as long."""
    dice = random.Random(f"{engine} rows {SEED}")  # noqa: S311 - cases, not secrets
    gpu = dice.choice(AT_HOME if engine in ("llamacpp", "ollama", "mlx") else GPUS)
    asked: dict[str, Any] = {"engine": engine, "gpu": gpu, "seq": dice.choice((2000, 8192)), "batch": dice.choice((1, 4, 30))}
    if dice.random() < 0.6:
        asked["gpus"] = dice.choice((2, 4, 8))
    try:
        rows = hwcalc.fit(
            dice.choice(("llama", "qwen3", "deepseek", "gemma", "mistral")), limit=max(3, CASES // 4), **asked
        ).models
    except KvplanError:
        return
    wrong: list[object] = []
    for row in rows:
        name, given = read_plan(row.command)
        plan = planned(name, given)
        if plan is None or plan.fit is None:
            wrong.append((row.command, "refused"))
        elif (row.verdict, row.max_seq) != (plan.fit.verdict, plan.fit.max_seq):
            wrong.append((row.command, row.verdict, row.max_seq, plan.fit.verdict, plan.fit.max_seq))
    assert not wrong, "\n".join(map(str, wrong))
