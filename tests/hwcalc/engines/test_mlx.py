"""The rules of mlx-lm beyond the bytes of its caches: worked cases, refusals, the fullest moment, forms, and its command line."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Section
from hwcalc.engines.mlx.layers import Chunked, Grown, Pieces, Rotating
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.stairs import stairs_at
from hwcalc.planner.context import open_request
from hwcalc.reconcile import reconcile
from hwcalc.reconcile.dialects.mlx import MlxLog
from hwcalc.report.emit import emitted, remarks_on
from tests.hwcalc.form_answers import differences, form_of

MAC: Final = "apple-m3-ultra"
LLAMA: Final = "meta-llama/Llama-3.1-8B"
GEMMA: Final = "google/gemma-3-27b-it"


def opened(model: str, **options: Any) -> Occupancy:
    """A request to mlx; a draft is named."""
    if "draft" in options:
        options |= {"draft": load_model(options["draft"])}
    return open_request(load_model(model), **{"seq": 1000, "engine": "mlx", **options})


def parts_of(request: Occupancy) -> Mapping[str, int]:
    """The expected bytes of each part of the equation."""
    assert request.budget is not None
    return {part.name: part.expected for part in request.budget.parts}


def test_the_worked_case() -> None:
    """5,000 tokens in pieces of 2,048, 2,048 and 904 take 5,120 slots of 131,072 bytes."""
    assert plan(LLAMA, seq=5000, engine="mlx").cache.total_bytes == 5120 * 131_072 == 671_088_640


def test_a_quantized_cache_starts_at_5000_tokens() -> None:
    """8 bits and two numbers of 2 bytes for each 64: 8.5 bits a number, from 5,000 tokens on."""
    options = {"kv_bits": 8}
    assert plan(LLAMA, seq=4999, engine="mlx", engine_options=options).cache.total_bytes == 5120 * 131_072
    assert plan(LLAMA, seq=5000, engine="mlx", engine_options=options).cache.total_bytes == 5120 * 65_536 * 17 // 16
    assert plan(LLAMA, seq=5000, engine="mlx", dtype="int8").cache.total_bytes == 5120 * 65_536 * 17 // 16


def test_indexer_keys_are_stored_twice_on_every_layer() -> None:
    """DeepSeek-V3.2 and GLM-5.2: 1,152 bytes of the latent and 2 x 256 of the indexer a token and layer."""
    for name, layers in (("deepseek-ai/DeepSeek-V3.2", 61), ("zai-org/GLM-5.2", 78)):
        assert plan(name, seq=300, engine="mlx", dtype="bf16").cache.total_bytes == 512 * layers * (1152 + 512)


def test_the_fullest_moment_of_a_prompt() -> None:
    """Gemma 3, 3,000 tokens: behind the first 2,048 a window of 1,024 holds all of them, and behind all of them 1,023 + 952."""
    request = opened(GEMMA, seq=3000, gpu=MAC)
    layer = 2 * 16 * 128 * 2
    now = (10 * 3072 + 52 * (1023 + 952)) * layer
    fullest = (10 * 2048 + 52 * 2048) * layer

    assert request.needed_bytes == now
    assert parts_of(request)["prompt pieces"] == max(0, fullest - now)
    long = opened(GEMMA, seq=4100, gpu=MAC)
    assert parts_of(long)["prompt pieces"] == (10 * 4096 + 52 * (1023 + 2048) - 10 * 4352 - 52 * (1023 + 4)) * layer


def test_the_fullest_moment_is_the_most_of_all_moments() -> None:
    """Cache and prompt pieces together are what the fullest earlier moment takes, and never less than that of a shorter prompt."""
    most = 0
    for tokens in range(100, 9000, 171):
        request = opened("openai/gpt-oss-20b", seq=tokens, gpu=MAC)
        total = request.needed_bytes + parts_of(request)["prompt pieces"]
        assert total >= most, tokens
        most = total


def test_before_it_is_quantized_a_cache_is_whole() -> None:
    """6,144 tokens: the piece that reaches 5,000 is stored in bf16 first."""
    request = opened(LLAMA, seq=6144, gpu=MAC, engine_options={"kv_bits": "4"})

    assert parts_of(request)["prompt pieces"] == 6144 * 131_072 - request.needed_bytes


def test_the_caches_of_earlier_requests() -> None:
    """The server keeps ten; here each is as long as a planned one."""
    request = opened(LLAMA, seq=256, batch=3, gpu=MAC, engine_options={"prompt_cache_size": "10"})

    assert parts_of(request)["prompt cache"] == 10 * 256 * 131_072


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {}, UnsupportedError, "no model file for deepseek_v4"),
        ("tiiuae/falcon-7b", {}, UnsupportedError, "no model file for falcon"),
        ("microsoft/phi-2", {}, UnsupportedError, "phi-msft"),
        (GEMMA, {"engine_options": {"kv_bits": "8"}}, UnsupportedError, "RotatingKVCache Quantization NYI"),
        ("deepseek-ai/DeepSeek-V3", {"engine_options": {"kv_bits": "8"}}, UnsupportedError, "quantized latent"),
        ("google/gemma-2-9b-it", {"engine_options": {"kv_bits": "8"}}, UnsupportedError, "cannot read a quantized cache"),
        ("stabilityai/stablelm-2-zephyr-1_6b", {"engine_options": {"kv_bits": "8"}}, UnsupportedError, "cannot read a quantized"),
        ("microsoft/Phi-3-small-8k-instruct", {"engine_options": {"kv_bits": "8"}}, UnsupportedError, "cannot read a quantized"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"draft": "Qwen/Qwen3-0.6B"}, UnsupportedError, "trimmable prompt cache"),
        ("EleutherAI/gpt-neox-20b", {"engine_options": {"kv_bits": "8"}}, UsageError, "head of 96"),
        (LLAMA, {"engine_options": {"kv_bits": "7"}}, UsageError, "kv_bits=7"),
        (LLAMA, {"engine_options": {"kv_group_size": "64"}}, UsageError, "belongs to kv_bits"),
        (LLAMA, {"dtype": "fp8"}, KvplanError, "mlx-lm keeps its cache"),
        (LLAMA, {"dtype": "int8", "engine_options": {"kv_bits": "8"}}, UsageError, "both say the bits"),
        (LLAMA, {"gpu": "mi300x"}, UnsupportedError, "Apple's chips"),
        (LLAMA, {"tp": 3}, UsageError, "evenly"),
        (LLAMA, {"pp": 2}, UnsupportedError, "no pipeline"),
        (LLAMA, {"tp": 2, "pp": 2}, UnsupportedError, "not by both"),
        (GEMMA, {"tp": 2}, UnsupportedError, "no shard"),
        ("Qwen/Qwen3-30B-A3B", {"tp": 2, "ep": 2}, UsageError, "expert parallelism"),
    ],
)
def test_what_is_refused(model: str, options: dict[str, Any], error: type[KvplanError], words: str) -> None:
    """With the reason, and what to type in its place."""
    with pytest.raises(error, match=re.escape(words)) as raised:
        opened(model, **options)
    assert raised.value.hint


def test_layers_with_a_window_are_those_of_the_pattern() -> None:
    """mlx-lm's Gemma 3 has no layer_types: every sixth layer is full, or what the pattern says."""
    config = dict(load_model("google/gemma-3-1b-it").config)
    count = int(config["num_hidden_layers"])
    for pattern in (None, 3):
        types = ["full_attention" if (number + 1) % (pattern or 6) == 0 else "sliding_attention" for number in range(count)]
        given = {key: value for key, value in config.items() if key != "sliding_window_pattern"} | {"layer_types": types}
        if pattern is None:
            assert plan(given, seq=100, engine="mlx").cache.total_bytes == plan(config, seq=100, engine="mlx").cache.total_bytes
            continue
        with pytest.raises(UnsupportedError, match="sliding_window_pattern \\(6\\)"):
            plan(given, seq=100, engine="mlx")
        plan(given | {"sliding_window_pattern": pattern}, seq=100, engine="mlx")


@pytest.mark.parametrize(
    ("model", "options", "limit"),
    [
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {}, (1, "ChunkedKVCache")),
        (LLAMA, {"engine_options": {"kv_bits": "8"}}, (1, "kv_bits")),
        (LLAMA, {"draft": "meta-llama/Llama-3.2-1B"}, (1, "draft model")),
        (LLAMA, {"engine_options": {"decode_concurrency": "7"}, "dp": 2}, (14, "decode_concurrency")),
    ],
)
def test_how_many_the_server_runs_at_once(model: str, options: dict[str, Any], limit: tuple[int, str]) -> None:
    """One where caches cannot be joined."""
    request = opened(model, **options)
    assert request.most_sequences() == limit


def test_stages_have_the_last_layers_on_rank_0() -> None:
    """36 layers of Qwen2.5-3B on five machines: low ranks, which have the last layers, get the extra one."""
    request = opened("Qwen/Qwen2.5-3B", pp=5)

    assert [len(span) for span in request.deployment.weight_rules().spans(36, 5)] == [7, 7, 7, 7, 8]


def test_stairs_are_the_slots() -> None:
    """At every length, and behind the last whole piece."""
    rng = random.Random(17)  # noqa: S311
    for _ in range(2000):
        piece, tokens = rng.choice((2, 7, 256, 512, 2048)), rng.randint(1, rng.choice((10, 3000, 30_000)))
        window = rng.choice((1, 2, 3, 128, 512, 513, 4096, rng.randint(1, 9000)))
        spans: tuple[Pieces, ...] = (
            Grown(piece, 0),
            Rotating(piece, 0, window),
            Chunked(piece, 0, piece * rng.choice((1, 2, 8))),
        )
        for span in spans:
            if span.has_stairs:
                assert stairs_at(span.stairs(), tokens) == span.positions(tokens), (span, tokens)
                assert stairs_at(span.at_pieces, tokens) == span.positions(tokens // piece * piece), (span, tokens)


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"dp": 2}], ids=str)
@pytest.mark.parametrize(
    "model", [LLAMA, GEMMA, "openai/gpt-oss-20b", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
)
def test_a_form_is_its_plans(model: str, layout: dict[str, Any]) -> None:
    """To the byte, at lengths around pieces and windows."""
    try:
        form = form_of(opened(model, gpu=MAC, **layout))
    except UnsupportedError:
        assert "tp" in layout
        return
    assert form is not None
    for tokens in (2, 128, 255, 256, 257, 2047, 2048, 2049, 4096, 4097, 5000, 20_481):
        for batch in (1, 3):
            made = plan(model, seq=tokens, batch=batch, engine="mlx", gpu=MAC, **layout)
            assert differences(form, made) == {}, (tokens, batch)


def test_the_command_line() -> None:
    """The server, or the command that has max_kv_size; several machines through mlx.launch."""

    def line(model: str = "Qwen/Qwen3-8B", **wanted: Any) -> str:
        return emitted(plan(model, **{"seq": 4096, "engine": "mlx", **wanted}), "mlx")

    assert line() == "mlx_lm.server --model Qwen/Qwen3-8B"
    assert line(engine_options={"kv_bits": 4, "quantized_kv_start": 0}).endswith("--kv-bits 4 --quantized-kv-start 0")
    assert line(dtype="int8").endswith("--kv-bits 8")
    assert line(engine_options={"max_kv_size": 1024}) == "mlx_lm.generate --model Qwen/Qwen3-8B --max-kv-size 1024"
    assert line(tp=2).startswith("mlx.launch -n 2 mlx_lm.server ")
    assert line("Qwen/Qwen2.5-3B", pp=2).endswith("--pipeline")
    # mlx-community has it in four bits, and nobody is known to have it in two.
    assert line(weights="mlx_4bit") == "mlx_lm.server --model mlx-community/Qwen3-8B-4bit"
    said = remarks_on(plan("Qwen/Qwen3-8B", seq=4096, engine="mlx", weights="mlx_4bit"), "mlx")
    assert said == ("Needs pip install mlx-lm.",)
    assert line(weights="mlx_2bit") == "mlx_lm.server --model ./Qwen3-8B-2bit"
    first = "First: mlx_lm.convert --hf-path Qwen/Qwen3-8B --mlx-path ./Qwen3-8B-2bit -q --q-bits 2"
    said = remarks_on(plan("Qwen/Qwen3-8B", seq=4096, engine="mlx", weights="mlx_2bit"), "mlx")
    assert said[0] == first
    # The Hub finds converted models by their library; a plan as published is of none.
    assert said[1].startswith("Needs pip install mlx-lm. ")
    assert said[1].endswith(" converted it: https://huggingface.co/models?library=mlx&search=Qwen3-8B")
    assert remarks_on(plan("Qwen/Qwen3-8B", seq=4096, engine="mlx"), "mlx") == ("Needs pip install mlx-lm.",)
    with pytest.raises(UsageError, match="does not make fp8 weights"):
        line(weights="fp8")
    with pytest.raises(UnsupportedError, match="no adapter"):
        line(lora="rank=16")


def test_a_prompt_matters_without_a_gpu() -> None:
    """A window behind a prompt of all tokens, and behind one with tokens that came alone."""
    whole, apart = (plan(GEMMA, seq=3000, prompt=prompt, engine="mlx") for prompt in (None, 2900))

    assert whole.cache.total_bytes > apart.cache.total_bytes
    assert "no-policy" not in {note.code for note in apart.notes}
    assert "no-policy" in {note.code for note in plan(GEMMA, seq=3000, prompt=2900).notes}


def test_what_is_printed_beside_a_plan() -> None:
    """The answer came token by token: windows of Gemma 3 are full, and no more."""
    log = "Prompt: 3000 tokens, 98.7 tokens-per-sec\nGeneration: 100 tokens, 35.4 tokens-per-sec\nPeak memory: 58.000 GB\n"
    found = reconcile(GEMMA, log, gpu=MAC)

    assert found.dialect == "mlx"
    assert [row.name for row in found.rows] == ["peak"]
    planned = plan(GEMMA, seq=3100, prompt=3000, engine="mlx", gpu=MAC)
    assert planned.fit is not None
    assert planned.fit.budget is not None
    sections = (Section.WEIGHTS, Section.ACTIVATIONS)
    held = sum(part.expected for part in planned.fit.budget.parts if part.section in sections)
    assert found.rows[0].predicted == planned.cache.total_bytes + held


def test_what_it_prints() -> None:
    """GB are decimal; the warning has whole MiB."""
    parser = MlxLog()
    for number, line in enumerate(("Prompt: 300 tokens, 98.762 tokens-per-sec", "Peak memory: 17.105 GB"), 1):
        parser.feed(number, line)
    parser.feed(
        3, "[WARNING] Generating with a model that requires 15000 MB which is close to the maximum recommended size of 16384 MB."
    )

    values = {
        name: (fact.value, fact.low, fact.high) for name in ("peak_bytes", "limit_bytes") if (fact := parser.facts.last(name))
    }
    assert values == {
        "peak_bytes": (17_105_000_000, 17_104_500_000, 17_105_500_000),
        "limit_bytes": (16384 << 20, 16384 << 20, (16385 << 20) - 1),
    }
