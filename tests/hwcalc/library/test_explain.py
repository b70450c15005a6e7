"""An explanation says what the plan says: every result is a figure of the plan, and every formula gives it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import explain, load_model
from hwcalc.documents import dumps
from hwcalc.engines import ENGINES
from hwcalc.errors import KvplanError
from hwcalc.formulas import KINDS
from hwcalc.library.explain import Explanation, TensorExplanation
from hwcalc.library.explained import SECTIONS, ExplainedFigure, names_in
from hwcalc.planner.solve import holds
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.profiles.catalog import list_models
from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.glossary import meaning_of
from hwcalc.profiles.gpus import list_gpus
from hwcalc.text import TIMES
from tests.hwcalc.command import Capture, run
from tests.tiny_configs import TINY_LLAMA

TOKENS: Final = 32_768
OLDER: Final = ("vllm@0.6", "vllm@0.8", "vllm@0.10", "vllm@0.20", "vllm", "transformers@4.57")
REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    # V0's batch is a whole prompt up to 32,768 tokens, and each stage has a scheduler: the budget changes with the length.
    {"model": "bigscience/bloom", "seq": 32_769, "batch": 2, "engine": "vllm@0.6", "gpu": "mi325x", "pp": 2},
    {"model": "meta-llama/Llama-3.1-70B-Instruct", "seq": "32k", "batch": 4, "engine": "vllm", "gpu": "h100-sxm5-80gb", "tp": 4},
    {"model": "meta-llama/Llama-3.1-70B-Instruct", "seq": "32k", "engine": "vllm@0.10", "gpu": "h100-sxm5-80gb", "tp": 2, "pp": 2},
    {"model": "deepseek-ai/DeepSeek-V3", "seq": "8k", "batch": 64, "engine": "vllm", "gpu": "h200", "tp": 8},
    {"model": "openai/gpt-oss-20b", "seq": "32k", "engine": "vllm", "gpu": "l4"},
    {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "seq": "64k", "engine": "vllm", "gpu": "h100-sxm5-80gb", "tp": 4},
    {"model": "Qwen/Qwen3-8B", "seq": "32k", "batch": 8, "engine": "transformers", "gpu": "l4"},
    {"model": "Qwen/Qwen3-8B", "seq": "32k", "engine": "transformers", "gpu": "h100-sxm5-80gb", "weights": "int4"},
    {"model": "google/gemma-3-27b-it", "seq": "128k", "gpu": "a100-sxm4-80gb", "tp": 2, "weights": "fp8", "margin": "7%"},
    {"model": "deepseek-ai/DeepSeek-V3.2", "seq": "64k", "batch": 3, "gpu": "h200", "tp": 8, "dp": 2},
    {"model": "tiiuae/falcon-mamba-7b", "seq": "1M", "gpu": "l4"},
    {"model": "Qwen/Qwen3-8B", "seq": "8k", "batch": 64, "kv_memory": "10GiB"},
    {"model": "Qwen/Qwen3-8B", "seq": "8k", "batch": 64, "kv_memory": "10GiB", "engine": "vllm"},
    {"model": "openai/gpt-oss-120b", "seq": "8k"},
    {"model": "deepseek-ai/DeepSeek-V4-Flash", "seq": "32k", "engine": "vllm", "gpu": "h200", "tp": 4},
    {"model": "Qwen/Qwen2.5-VL-72B-Instruct", "seq": "32k", "engine": "vllm", "gpu": "h200", "tp": 2},
    {"model": "Qwen/Qwen3.5-35B-A3B", "seq": "8k", "engine": "sglang", "gpu": "h200", "tp": 4, "pp": 2},
    {"model": "openai/gpt-oss-120b", "seq": "8k", "batch": 4, "engine": "sglang", "gpu": "h200", "dp": 2},
    {"model": "deepseek-ai/DeepSeek-V4-Flash", "seq": "8k", "engine": "sglang", "gpu": "h200", "tp": 4},
    {"model": "google/gemma-3-27b-it", "seq": "8k", "engine": "tensorrt-llm", "gpu": "h200", "engine_options": {"max_batch_size": "16"}},
    {"model": "google/gemma-3-27b-it", "seq": "8k", "engine": "tensorrt-llm", "gpu": "h200", "engine_options": {"manager": "v1", "max_attention_window": "1024,1024,1024,1024,1024,8192"}},
    {"model": "openai/gpt-oss-20b", "seq": "8k", "engine": "mlx", "gpu": "m4-max-64gb"},
    {"model": "Qwen/Qwen3.5-35B-A3B", "seq": "8k", "engine": "mistral-rs", "gpu": "h200"},
    {"model": "Qwen/Qwen3-8B", "seq": "8k", "engine": "tgi", "gpu": "h200", "tp": 2},
    {"model": "Qwen/Qwen3.5-35B-A3B", "seq": "8k", "engine": "lmdeploy", "gpu": "h200", "engine_options": {"max_batch_size": "64"}},
)  # fmt: skip


def explained_as(request: dict[str, Any]) -> Explanation:
    """The explanation of a request."""
    options = dict(request)
    return explain(options.pop("model"), **options)


@pytest.fixture(name="explanations", scope="module")
def _explanations() -> list[Explanation]:
    return [explained_as(request) for request in REQUESTS]


def at(found: Any, place: str) -> Any:
    """The value at a place of a document: ``memory.weights.parts.1.bytes``."""
    for name in place.split("."):
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def value(numbers: str) -> float:
    """What the numbers of a figure give, in floating point as engines count."""
    text = numbers.replace(TIMES, "*").replace(",", "@").replace("@ ", ", ").replace("@", "")

    assert re.fullmatch(r"(?:floor|ceil|max|min|round|[\d.+*/(), e-])*", text), text
    functions = {"floor": math.floor, "ceil": math.ceil, "max": max, "min": min, "round": round}
    return float(eval(text, {"__builtins__": {}}, functions))  # noqa: S307 - digits, signs and five functions, as just checked


def value_of_rule(rule: str) -> float:
    """What an engine's own rule gives: its arithmetic, without the words that say what is counted."""
    return value(
        re.sub(
            r" of pages| pages of [\d,]+| a group| \b(?:blocks|slots|tokens|prompts|B|ranks|sequences|groups|bits|scale)\b",
            "",
            rule.partition(":")[0],
        )
    )


def every_figure(explanation: Explanation) -> Iterator[tuple[str, ExplainedFigure]]:
    """All figures, with the name of their section."""
    for section in explanation.sections:
        for figure in section.figures:
            yield section.name, figure


def check_tensor(tensor: TensorExplanation, *, shared: bool = False) -> None:
    """The printed equation gives the bytes of a layer for the whole batch, and those of its blocks the blocks."""
    assert tensor.bytes == tensor.count * tensor.bytes_per_layer
    if "own layout" not in tensor.formula:
        equation = tensor.numbers or tensor.formula
        assert value_of_rule(equation) == tensor.bytes_per_layer, tensor
    if tensor.blocks is not None:
        assert value(tensor.count_numbers) == tensor.blocks
        # Blocks that are shared are fewer than those of all sequences.
        assert shared or f"{tensor.blocks:,} blocks" in tensor.formula
    if tensor.block_formula:
        assert f"{int(value_of_rule(tensor.block_numbers)):,} B" in tensor.formula, tensor


def check(explanation: Explanation) -> None:
    """Every result is the plan's figure, and the numbers give it."""
    plan = explanation.plan.to_dict()
    for kind in explanation.kinds:
        for tensor in kind.tensors:
            check_tensor(tensor, shared=explanation.plan.sharing is not None)
    for section, figure in every_figure(explanation):
        told = at(plan, figure.figure) if figure.figure else None
        if told is not None:
            assert math.isclose(told, figure.result, rel_tol=1e-12, abs_tol=1 if section == "speed" else 0), figure
        else:
            assert figure.name.startswith("files"), figure
        if figure.numbers:
            # Seconds and large fractions are printed with six digits.
            exact = figure.unit == "bytes" and section != "speed"
            assert math.isclose(value(figure.numbers), figure.result, rel_tol=1e-12 if exact else 2e-5, abs_tol=1), figure
        if figure.low is not None and figure.high is not None:
            assert figure.low <= figure.result <= figure.high, figure
        assert figure.definition
    for limit in explanation.limits:
        assert at(plan, limit.figure) == limit.value
        if limit.needs is not None and limit.of is not None and limit.name != "fewest":
            assert limit.needs <= limit.of, limit
        if limit.next_needs is not None and limit.next_of is not None:
            assert limit.next_needs > limit.next_of, limit
            assert limit.next_value == limit.value + 1
    for one in explanation.quoted:
        assert int(value(one.numbers) + 1e-6) == pytest.approx(one.result, rel=1e-6)
        assert one.result != one.actual
        assert one.ignores


def test_results_are_the_plans(explanations: list[Explanation]) -> None:
    """No second computation: each result lies in the plan's document, and its formula gives it."""
    for one in explanations:
        check(one)
        assert one.plan.fit is None or {"weights", "pool", "verdict"} <= {section.name for section in one.sections}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_results_are_the_plans_for_any_model_and_engine(data: st.DataObject) -> None:
    """The same for drawn models, engines, GPUs, layouts and sizes."""
    request = {
        "model": data.draw(st.sampled_from(list_models())),
        "engine": data.draw(st.sampled_from((*sorted(ENGINES), *OLDER))),
        "gpu": data.draw(st.sampled_from((None, *list_gpus()))),
        "seq": data.draw(st.integers(1, 200_000)),
        "batch": data.draw(st.integers(1, 300)),
        "tp": data.draw(st.sampled_from((1, 2, 4, 8))),
        "pp": data.draw(st.sampled_from((1, 1, 2))),
        "dp": data.draw(st.sampled_from((1, 1, 2))),
        "weights": data.draw(st.sampled_from((None, None, "fp8", "int4"))),
    }
    try:
        told = explained_as(request)
    except KvplanError:
        return

    check(told)
    assert json.loads(dumps(told.to_dict()))["sections"]


@pytest.mark.parametrize("request_", REQUESTS[:7], ids=lambda request: f"{request['model']}-{request.get('engine')}")
def test_limits_are_limits(request_: dict[str, Any]) -> None:
    """The plan fits at the answer and not at the next number, as planning again says."""
    from hwcalc.library.explain_memory import ANSWERS
    from hwcalc.library.plan import load_request
    from hwcalc.planner.asked import take_options
    from hwcalc.planner.context import open_request

    told, options = explained_as(request_), dict(request_)
    model = options.pop("model")
    spec, request = load_request(model, take_options("explain", options)[1])
    opened = open_request(spec, **request)
    for limit in told.limits:
        varies = next((varies for _, name, varies, *_ in ANSWERS if name == limit.name), None)
        if varies is None or limit.value in (0, UNLIMITED):
            continue
        assert holds(opened.changed(**{varies: limit.value}), limit.end)
        if limit.next_value is not None:
            assert not holds(opened.changed(**{varies: limit.next_value}), limit.end)


# --- symbols ----------------------------------------------------------------------------------------------------------


def test_every_symbol_is_explained(explanations: list[Explanation]) -> None:
    """A symbol has a meaning, or it is the name of a figure or of a part that was shown before."""
    for one in explanations:
        names = {symbol.name for symbol in one.symbols}
        assert len(names) == len(one.symbols)
        known = {"usable", "needs", "weights", "activations", "overhead"}
        for section, figure in every_figure(one):
            own = set(names_in(figure.formula))
            assert section == "weights" or own <= names | known, (figure, own - names - known)
            known |= {figure.name, re.sub(r"[^A-Za-z0-9]+", "_", figure.name)}
        for quoted in one.quoted:
            assert set(names_in(quoted.formula)) <= names | {"weights"}, quoted


def test_every_dimension_has_a_meaning() -> None:
    """A new kind of layer brings meanings for its numbers."""
    dims = {name for kind in KINDS.values() for name in kind.__struct_fields__} - {"overlap", "index_quantized"}

    assert [name for name in dims if not meaning_of(name)] == []


def test_meanings_are_short() -> None:
    """One line each, in plain words."""
    for name, meaning in record(TOP, "glossary")["symbols"].items():
        assert 8 < len(meaning) <= 78, name


def test_each_symbol_is_told_once(capsys: Capture) -> None:
    """In the text a newcomer reads each meaning at the first formula that has the symbol."""
    _, out, _ = run(capsys, "explain", "google/gemma-3-27b-it", "--seq", "32k", "--gpu", "h200", "--engine", "vllm")

    assert 1 == out.count("heads that keep keys and values; several query heads may share one")
    assert 1 == out.count("numbers in the vector of one head")


# --- what a person sees -----------------------------------------------------------------------------------------------


def test_sections_are_in_order(capsys: Capture) -> None:
    """Cache (then policy and sharing, where there are any), weights, activations, overhead, pool, verdict, limits, speed, and what is often quoted."""
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-8B", "--seq", "32k", "--gpu", "h100", "--engine", "vllm")
    titles = [line for line in out.splitlines() if line in {*SECTIONS, "sum"} or line.startswith("often quoted")]

    assert titles == ["sum", *(one for one in SECTIONS[3:-1] if one != "devices"), "often quoted, and wrong for this model"]


def test_devices_come_before_the_pool(capsys: Capture) -> None:
    """An engine that leaves layers to the host says what each device holds."""
    _, out, _ = run(
        capsys, "explain", "Qwen/Qwen3-8B", "--seq", "32k", "--gpu", "rtx-3060-12gb", "--engine", "llamacpp", "--weights", "q8_0"
    )
    titles = [line for line in out.splitlines() if line in {*SECTIONS, "sum"}]

    assert titles == ["sum", *SECTIONS[3:-1]]
    assert re.search(r"^  host has layers 0-[0-9]+\.$", out, re.MULTILINE)


def test_without_hardware(capsys: Capture) -> None:
    """What is known, and one line that says what an accelerator would add."""
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-8B", "--seq", "32k")

    assert "\nweights\n" in out
    assert "\nverdict\n" not in out
    assert 1 == out.count("--gpu GPU adds activations, overhead, the pool, the verdict, limits and speed.")
    assert "--gpu GPU" not in run(capsys, "explain", "Qwen/Qwen3-8B", "--seq", "32k", "--gpu", "h100")[1]


def test_only(capsys: Capture) -> None:
    """One section alone, or several."""
    words = ("explain", "Qwen/Qwen3-8B", "--seq", "32k", "--gpu", "h100")
    _, out, _ = run(capsys, *words, "--only", "weights,pool", "--only", "limits")
    told = json.loads(run(capsys, *words, "--only", "speed", "--json")[1])

    assert [line for line in out.splitlines() if line in SECTIONS] == ["weights", "pool", "limits"]
    assert "full attention:" not in out
    assert ([], ["speed"], []) == (told["explain"], [section["name"] for section in told["sections"]], told["limits"])
    status, _, err = run(capsys, *words, "--only", "wieghts")
    assert 2 == status
    assert f"Allowed: {', '.join(SECTIONS)}." in err


def test_quantised_weights_say_what_stays(capsys: Capture) -> None:
    """gpt-oss: only the experts are in mxfp4."""
    _, out, _ = run(capsys, "explain", "openai/gpt-oss-20b", "--seq", "8k", "--only", "weights")

    # 24 layers x 32 experts x (2,880 x 5,760 + 2,880 x 2,880) numbers of 4 bits, and a byte of scale for 32 of them.
    numbers = 24 * 32 * (2880 * 5760 + 2880 * 2880)
    assert f"{numbers:,} {TIMES} 4 / 8 + {numbers // 32:,} = {numbers // 2 + numbers // 32:,} B" in out
    assert "Not in mxfp4 but in bf16:" in out


def test_tied_and_drafting_layers(capsys: Capture) -> None:
    """A tied head is counted once; drafting layers are in the files, and not in the sum."""
    tied = run(capsys, "explain", "Qwen/Qwen3-4B", "--seq", "8k", "--only", "weights")[1]
    mtp = run(capsys, "explain", "deepseek-ai/DeepSeek-V3", "--seq", "8k", "--only", "weights")[1]

    assert "The output head is the embedding (tied): it is counted once." in tied
    assert "tied" not in mtp
    assert "in the files for multi-token prediction, and not in the sum" in mtp


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_every_figure_is_printed(capsys: Capture, explanations: list[Explanation], format_: str) -> None:
    """Text and Markdown have the exact bytes of each figure."""
    _, out, _ = run(capsys, "explain", "meta-llama/Llama-3.1-70B-Instruct", "--seq", "32k", "--users", "4", "--engine", "vllm",
                    "--gpu", "h100-sxm5-80gb", "--tp", "4", "--format", format_)  # fmt: skip
    flat = re.sub(r"\s+", " ", out).replace("\\", "")

    for _, figure in every_figure(explanations[1]):
        if figure.unit == "bytes":
            assert f"{round(figure.result):,} B" in flat, figure
    for one in explanations[1].quoted:
        assert f"{one.result:,} B" in flat
        assert f"{one.actual:,} B" in flat


def test_blocks_of_an_engine() -> None:
    """16 tokens x 2 of 8 key/value heads on a GPU x (128 + 128) x 2 bytes; a padded block has no formula."""
    told = explain("meta-llama/Llama-3.1-70B-Instruct", seq="32k", engine="vllm", tp=4)
    (tensor,) = told.kinds[0].tensors

    heads = "num_key_value_heads / tp"
    assert (
        tensor.block_formula
        == f"block_size {TIMES} ({heads} {TIMES} head_dim {TIMES} 2 B + {heads} {TIMES} v_head_dim {TIMES} 2 B)"
    )
    assert tensor.block_numbers == f"16 {TIMES} (8 / 4 {TIMES} 128 {TIMES} 2 B + 8 / 4 {TIMES} 128 {TIMES} 2 B)"
    assert (16_384,) == told.plan.cache.tensors[0].shape
    assert 16 * (2 * 128 * 2 + 2 * 128 * 2) == 16_384
    padded = explain("Qwen/Qwen3-Next-80B-A3B-Instruct", seq="32k", engine="vllm").kinds
    assert any(not tensor.block_formula for kind in padded for tensor in kind.tensors)
    assert not explain("Qwen/Qwen3-8B", seq="32k").kinds[0].tensors[0].block_formula


def test_weights_of_files(tmp_path: Path, capsys: Capture) -> None:
    """Where the headers of the files are read, they are the figures; the config says which blocks they are."""
    config = TINY_LLAMA | {"max_position_embeddings": 1000, "torch_dtype": "bfloat16"}
    counted = load_model(config).counted
    assert counted is not None
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size = 2 * counted.total
    header = json.dumps({"w": {"dtype": "BF16", "shape": [counted.total], "data_offsets": [0, size]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    told = explain(str(tmp_path), seq=100)
    _, out, _ = run(capsys, "explain", str(tmp_path), "--seq", "100", "--only", "weights")

    check(told)
    assert f"files, BF16  {size:,} B" in re.sub(r" {2,}", "  ", out)
    assert f"together {counted.total:,}." in re.sub(r"\s+", " ", out)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (
            "h200",
            ("A block has 576 tokens", "in steps of 64 ", "keeps 3 states", "one that the kernel of the prefill writes for it"),
        ),
        ("a100", ("A block has 544 tokens", "in steps of 16 ", "keeps 2 states", "for prefix caching")),
    ],
)
def test_blocks_of_states_have_reasons(gpu: str, said: tuple[str, ...]) -> None:
    """Numbers of vLLM itself for Qwen3-Next on one rank: FlashInfer's kernel on Hopper writes a state more, at the ends of chunks of 64 tokens.

    Keys and values of a token take 2 x 2 heads x 256 x 2 B = 2,048 B.
    """
    made = explain("Qwen/Qwen3-Next-80B-A3B-Instruct", engine="vllm", gpu=gpu, gpus=2, pp=2, seq=32_768)
    text = " ".join(made.group_reasons)

    for each in (*said, "attention takes 2,048 B a token"):
        assert each in text
    assert made.to_dict()["group_reasons"] == list(made.group_reasons)
    assert explain("Qwen/Qwen3-8B", engine="vllm", gpu=gpu, seq=32_768).group_reasons == ()
