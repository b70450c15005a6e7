"""Reports: every format says the same numbers, and explain's equations hold."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

from hwcalc.documents import ErrorInfo, dumps, error_document, escaped
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.formulas import KINDS, LayerNumbers
from hwcalc.library.explain import Explanation, explain
from hwcalc.library.layer_bytes import stored
from hwcalc.library.plan import plan
from hwcalc.planner.result import Plan
from hwcalc.profiles.catalog import list_models
from hwcalc.report.explain import explain_markdown, explain_text
from hwcalc.report.exports import plan_csv, plan_markdown
from hwcalc.report.schema import DOCUMENTS, json_schema
from hwcalc.report.summary import shares
from hwcalc.report.table import plan_table
from hwcalc.report.text import abbreviated, layer_words, percent
from hwcalc.report.view import View
from hwcalc.text import TIMES, clean
from tests.effort import sample

QWEN3 = {
    "model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "hidden_size": 4096, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "_name_or_path": "Qwen/Qwen3-8B",
}  # fmt: skip
# One model of each shape that a report has to get right.
SHOWN = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "google/gemma-3-27b-it",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "tiiuae/Falcon-H1-34B-Base",
    "ai21labs/Jamba-v0.1",
    "meta-llama/Llama-3.2-90B-Vision-Instruct",
    "fla-hub/rwkv7-0.4B-world",
)
REQUESTS: tuple[dict[str, Any], ...] = (
    {"seq": "32k"},
    {"seq": 5000, "batch": 3, "dtype": "q8_0"},
    {"seq": 17, "batch": 2, "engine": "transformers"},
    {"seq": 4096, "batch": 2, "engine": "transformers", "engine_options": {"cache": "static"}},
    {"seq": 4096, "batch": 3, "engine": "transformers", "engine_options": {"cache": "quantized"}},
    {"seq": 4096, "engine": "transformers", "engine_options": {"cache": "quantized", "quant_backend": "hqq", "nbits": 3}},
    {"seq": 4096, "engine": "transformers", "engine_options": {"cache": "quantized", "quant_backend": "fp8"}},
    {"seq": 4096, "batch": 2, "engine": "transformers@5.14"},
)


@pytest.fixture(name="explanations", scope="module")
def _explanations() -> list[Explanation]:
    """Every shown model under every request that its engine accepts."""
    out = []
    for model in SHOWN:
        for request in REQUESTS:
            try:
                out.append(explain(model, **request))
            except UnsupportedError:
                continue

    assert len(out) > 4 * len(SHOWN)
    return out


@pytest.fixture(name="all_plans", scope="module")
def _all_plans(explanations: list[Explanation]) -> list[Plan]:
    return [one.plan for one in explanations]


def byte_figures(text: str) -> set[int]:
    """Every exact byte figure of a report: digits with separators before a B."""
    return {int(match.replace(",", "")) for match in re.findall(r"(?<![\d.])(\d{1,3}(?:,\d{3})*) B\b", text)}


def value(product: str) -> int:
    """What an explanation's numbers multiply out to."""
    text = product.removesuffix(" B").replace(TIMES, "*").replace(",", "")

    assert re.fullmatch(r"(ceil|[\d+*/() -])+", text), text
    exact = re.sub(r"\d+", r"Fraction(\g<0>)", text)
    names = {"Fraction": Fraction, "ceil": math.ceil}
    result = Fraction(eval(exact, {"__builtins__": {}}, names))  # noqa: S307 - digits and signs alone, as just checked
    assert result.denominator == 1
    return result.numerator


# --- the table --------------------------------------------------------------------------------------------------------


def test_table_of_a_plain_model() -> None:
    """36 layers x 32,768 tokens x 8 heads x 256 x 1 byte: model, request, figures, one full bar, notes."""
    total = 36 * 32_768 * 8 * 256
    text = plan_table(plan(QWEN3, seq="32k", dtype="fp8"))

    lines = text.splitlines()
    assert lines[0].startswith("Qwen/Qwen3-8B  qwen3")
    assert lines[1] == "engine reference · 32,768 tokens × 1 sequence · weights bf16 · KV dtype fp8"  # noqa: RUF001
    assert lines[3].startswith(f"KV cache  2.25 GiB  =  {total:,} B  exact")
    assert "36 layers: 36 full attention · 32 heads, 8 KV heads, head_dim 128" in lines
    assert f"{36 * 8 * 256:,} B" in text
    assert "full attention  36 layers 0-35 · every token · fp8" in text
    # One group of layers needs no bar, and letters that are all the same are left out.
    assert "█" not in text
    assert "FFF" not in text


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"])
@pytest.mark.parametrize("engine", ["reference", "vllm", "llamacpp", "ollama"])
@pytest.mark.parametrize("weights", [None, "q4_k_m", "fp8"])
def test_the_head_names_the_planned_weights(model: str, engine: str, weights: str | None) -> None:
    """A format that the head names without more is that of a plan with ``--weights`` of it: it takes the same bytes."""
    try:
        planned = plan(model, engine=engine, weights=weights, seq=4096)
    except KvplanError:
        assert weights is not None
        return
    head = plan_table(planned, width=80).partition("\n\n")[0]
    named = re.search(r"weights ([a-z0-9_]+|as published(?: \([a-z0-9_]+\))?) · KV dtype", " ".join(head.split()))

    assert named is not None
    assert all(len(line) <= 80 for line in head.splitlines())
    if weights is not None:
        assert named[1] == weights
    elif named[1].startswith("as published ("):
        held = {form.format for part in planned.memory.weights.parts for form in part.formats}
        assert named[1].removeprefix("as published (").removesuffix(")") in held
    elif engine in {"llamacpp", "ollama"}:
        again = plan(model, engine=engine, weights=named[1], seq=4096)
        assert again.memory.weights.bytes == planned.memory.weights.bytes


def test_every_figure_of_the_table_is_in_the_json(all_plans: list[Plan]) -> None:
    """A table shows numbers of the document and sums of its tensors over a layer group, nothing else."""
    for one in all_plans:
        cache = one.to_dict()["cache"]
        known = {number for number in cache.values() if isinstance(number, int)}
        known |= {sum(tensor["bytes"] for tensor in cache["tensors"] if tensor["kind"] == kind) for kind in (*KINDS, "model")}
        known |= {share.bytes for share in shares(one)}
        known |= {one.memory.weights.bytes or 0, one.memory.total_bytes or 0}
        assert byte_figures(plan_table(one, quiet=True)) <= known
        assert byte_figures(plan_markdown(one, quiet=True)) <= known
        assert one.cache.total_bytes in byte_figures(plan_table(one))


def test_shares_add_up(all_plans: list[Plan]) -> None:
    """The bars are the whole cache, and their layers all layers."""
    for one in all_plans:
        assert sum(share.bytes for share in shares(one)) == one.cache.total_bytes
        assert sum(share.count for share in shares(one)) == sum(layer.count for layer in one.model.layers)


def test_reports_fit_a_terminal(explanations: list[Explanation]) -> None:
    """Lines are wrapped on a terminal, and in a pipe they are as long as they need to be."""
    for explained in sample(explanations, 40):
        one = explained.plan
        for columns in (80, 100):
            for text in (plan_table(one, width=columns), explain_text(explained, View(width=columns))):
                # A list of layers is a word, which is not cut.
                assert max(map(len, text.splitlines())) <= max(columns, 16 + max(map(len, text.split())))
                assert not any(line.endswith(" ") for line in text.splitlines())
        assert not any(line.startswith(" " * 12) for line in plan_table(one, detail="full").splitlines())


def test_any_catalog_model_can_be_shown_and_explained() -> None:
    """No model's names or numbers break a report, and every equation holds: a share of the catalog in every run."""
    for model in sample(list_models(), 150):
        told = explain(model, seq=5000, batch=2)
        one = told.plan
        assert plan_table(one)
        assert plan_csv(one)
        assert sum(part.bytes for part in told.kinds) == one.cache.total_bytes
        for part in told.kinds:
            for tensor in part.tensors:
                assert value(tensor.numbers) == tensor.bytes_per_layer, (model, tensor)


def test_hybrids_show_each_kind() -> None:
    """Qwen3-Next: 36 delta-net layers with a fixed state beside 12 attention layers."""
    text = plan_table(plan("Qwen/Qwen3-Next-80B-A3B-Instruct", seq="32k"))

    assert "48 layers: 36 gated delta net, 12 full attention" in text
    assert "fixed state" in text
    # 36 layers x (32 heads x 128 x 128 x 4 bytes + (2 x 16 x 128 + 32 x 128) channels x 3 columns x 2 bytes).
    assert f"{36 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2):,} B" in text
    # 12 layers x 32,768 tokens x 2 heads x (256 + 256) x 2 bytes.
    assert f"{12 * 32_768 * 2 * 512 * 2:,} B" in text


def test_text_from_outside_cannot_move_the_cursor() -> None:
    """Escape sequences, markup and pipes in a model's name are shown, not obeyed."""
    told = explain({**QWEN3, "_name_or_path": "a\x1b[31m|[red]b[/red]\n|c\u202e"}, seq=8)
    one = told.plan

    for text in (plan_table(one), plan_table(one, color=True), explain_text(told, View())):
        assert "\x1b[31m" not in text
        assert "[red]b[/red]" in text
        assert "\u202e" not in text
    # The name as a Python string is written, so that each letter can be told: a, \\x1b, [31m, ... Markdown gets a backslash before
    # each of its own signs: the backslash, the bracket and the bar.
    shown = ("a", "\\", "x1b", "[", "31m", "|", "[", "red", "]", "b", "[", "/red", "]", "\\", "n", "|", "c", "\\", "u202e")
    escaped = "".join(f"\\{part}" if part in "\\[]|" else part for part in shown)
    assert plan_markdown(one).splitlines()[0] == f"### {escaped}"


def test_colour_changes_no_character() -> None:
    """Without its escape sequences a coloured table is the plain one."""
    one = plan(QWEN3, seq="1M")
    bare = re.sub(r"\x1b\[[0-9;]*m", "", plan_table(one, color=True))

    assert [line.rstrip() for line in bare.splitlines()] == plan_table(one).splitlines()


# --- explain ----------------------------------------------------------------------------------------------------------


def test_equations_hold(explanations: list[Explanation]) -> None:
    """Numbers multiply out to the bytes; a tensor that is no plain product says its engine's rule."""
    for one in explanations:
        for part in one.kinds:
            assert sum(tensor.bytes for tensor in part.tensors) == part.bytes
            assert part.why
            assert part.source
            for tensor in part.tensors:
                assert tensor.bytes_per_layer * tensor.count == tensor.bytes
                assert "own layout" not in tensor.formula
                if tensor.numbers:
                    assert value(tensor.numbers) == tensor.bytes_per_layer


def test_explain_of_block_dtypes() -> None:
    """q8_0 keys are blocks of 32 elements and 34 bytes, and the block stands in the formula."""
    (part,) = explain(QWEN3, seq=1000, batch=2, dtype="q8_0:q4_0").kinds
    keys, values = part.tensors

    assert keys.formula == "batch × n × num_key_value_heads × head_dim / 32 × 34 B"  # noqa: RUF001
    assert keys.numbers == "2 × 1,000 × 8 × 128 / 32 × 34 B"  # noqa: RUF001
    assert keys.bytes_per_layer == 2 * 1000 * 8 * 4 * 34
    assert values.dtype_meaning == "18 B per 32 elements"


def test_explain_rounds_started_blocks_up() -> None:
    """A row of 100 elements takes four blocks of 32, and the formula says so."""
    (part,) = explain({**QWEN3, "head_dim": 100}, seq=10, dtype="q8_0").kinds

    assert part.tensors[0].numbers == "10 × 8 × ceil(100 / 32) × 34 B"  # noqa: RUF001
    assert part.tensors[0].bytes_per_layer == 10 * 8 * 4 * 34


def test_explain_names_each_tensor_of_a_latent_model() -> None:
    """DeepSeek-V3.2 keeps a latent, a rotary key and an indexer key in each of 61 layers."""
    text = explain_text(explain("deepseek-ai/DeepSeek-V3.2", seq="32k"), View())

    # 61 layers x 32,768 tokens x 512 x 2 bytes; x 64 x 2 bytes; x 132 bytes.
    for size in (61 * 32_768 * 512 * 2, 61 * 32_768 * 64 * 2, 61 * 32_768 * 132, 2_566_520_832):
        assert f"{size:,} B" in text
    assert all(name in text for name in ("latent", "rope_key", "indexer_keys"))


def test_two_groups_of_one_kind_on_the_same_layers() -> None:
    """Tensors go to the group that they belong to, in order."""
    for model in sample(list_models(), 150):
        one = plan(model, seq=100)
        groups = stored(one)
        assert [layer for layer, _ in groups if layer is not None] == list(one.model.layers)
        assert tuple(tensor for _, tensors in groups for tensor in tensors) == one.cache.tensors


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_schemas_are_schemas(document: str) -> None:
    """Valid against the metaschema, closed, and described."""
    schema = json_schema(document)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    # A number in the YAML that people write, text in what kvplan prints.
    assert schema["properties"]["schema_version"] == {"const": 1 if document.endswith("-file") else "1"}
    assert schema["description"]


def test_plans_fit_their_schema(explanations: list[Explanation]) -> None:
    """Real documents, read back from their text."""
    plan_validator = jsonschema.Draft202012Validator(json_schema("plan"))
    explain_validator = jsonschema.Draft202012Validator(json_schema("explain"))
    for one in explanations:
        plan_validator.validate(json.loads(dumps(one.plan.to_dict())))
        explain_validator.validate(json.loads(dumps(one.to_dict())))


def test_the_schema_is_closed() -> None:
    """A key more or less, a fraction or a negative number does not fit."""
    validator = jsonschema.Draft202012Validator(json_schema("plan"))
    document = plan(QWEN3, seq=8).to_dict()

    assert validator.is_valid(document)
    assert not validator.is_valid({**document, "more": 1})
    assert not validator.is_valid({key: item for key, item in document.items() if key != "notes"})
    for wrong in (1.5, -1, "1", None):
        assert not validator.is_valid({**document, "cache": {**document["cache"], "total_bytes": wrong}})


@pytest.mark.parametrize(
    "words", [["models"], ["engines"], ["engines", "transformers"], ["dtypes"], ["no/model"], ["--nonsense"]]
)
def test_other_documents_fit_their_schemas(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Lists and errors as the command prints them."""
    from hwcalc.cli import main

    main([*words, "--json"])
    document = words[0] if words[0] in DOCUMENTS else "error"

    jsonschema.Draft202012Validator(json_schema(document)).validate(json.loads(capsys.readouterr().out))


def test_documents_hold_integers_only(explanations: list[Explanation]) -> None:
    """No fraction and no NaN anywhere: a float in the text would be read back as one."""

    def refuse(text: str) -> None:
        raise AssertionError(text)

    for one in explanations:
        json.loads(dumps(one.to_dict()), parse_float=refuse, parse_constant=refuse)


def test_nan_is_no_json() -> None:
    """It is an error where it arises, not a document that others cannot read."""
    with pytest.raises(ValueError, match="Out of range float values"):
        dumps({"bytes": math.nan})


def test_json_is_unicode_and_can_be_ascii() -> None:
    """Names stand as they are; the ASCII form reads back the same, lone surrogates too."""
    document = error_document(ErrorInfo(code=2, type="usage", message="modèle 模型 \ud800 🙂", hint=""))

    assert "模型" in dumps(document)
    assert escaped(dumps(document)).isascii()
    assert json.loads(escaped(dumps(document))) == document


def test_csv_adds_up(all_plans: list[Plan]) -> None:
    """One row a tensor; the bytes column is the total."""
    for one in all_plans:
        rows = list(csv.DictReader(io.StringIO(plan_csv(one))))
        assert len(rows) == len(one.cache.tensors)
        assert sum(int(row["bytes"]) for row in rows) == one.cache.total_bytes
        assert {row["model"] for row in rows} <= {one.model.id}


def test_markdown_tables_are_even(explanations: list[Explanation]) -> None:
    """Every row of a table has as many cells as its header."""
    for one in explanations:
        for text in (plan_markdown(one.plan), explain_markdown(one, View())):
            for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
                assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


# --- words ------------------------------------------------------------------------------------------------------------


def test_words() -> None:
    """Small helpers at their edges."""
    assert LayerNumbers().text == ""
    assert LayerNumbers([0, 1, 2, 5]).text == "0-2,5"
    assert percent(0, 0) == "0.0 %"
    assert percent(1, 3) == "33.3 %"
    assert percent(2, 3) == "66.7 %"
    assert abbreviated("0-35") == "0-35"
    assert len(abbreviated(",".join(map(str, range(0, 400, 2))))) <= 30
    assert layer_words(56, LayerNumbers(range(28))) == "56 in 28 layers 0-27"
    assert clean("naïve 模型") == "naïve 模型"
