"""``kvplan explore`` and ``hwcalc.explore``: one file, whole or not at all."""

from __future__ import annotations

import json
import shlex
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import hwcalc
from hwcalc.errors import UsageError
from hwcalc.explore.build import MOST_MODELS, page_of
from hwcalc.explore.runs import PageAxes
from tests.hwcalc.command import QWEN, Capture, run

_FAST = ("--gpu", "l4")
_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a single engine without dimensions by hand, for tests of anything else."""
    monkeypatch.setattr("hwcalc.explore.build.PageAxes", partial(PageAxes, engines=("reference",)))
    monkeypatch.setattr("hwcalc.explore.build.MOST_BY_HAND", 0)


def _payload(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.split('id="payload">', 1)[1].split("</script>", 1)[0])
    return found


def _line(model: dict[str, Any]) -> str:
    """The start of a model's command lines."""
    return " ".join(["kvplan", *([] if model["argument"] is None else [model["argument"]]), *model["words"]])


@pytest.mark.usefixtures("formulas")
def test_a_file_is_written(capsys: Capture, tmp_path: Path) -> None:
    """Nothing on standard output; where it is on standard error. Standard output has the same page."""
    target = tmp_path / "page.html"

    status, out, err = run(capsys, "explore", QWEN, *_FAST, "-o", str(target))
    assert (status, out) == (0, "")
    assert err.startswith(f"kvplan: 1 model in '{target}', 0.")
    assert run(capsys, "explore", QWEN, *_FAST, "-o", "-") == (0, target.read_text(encoding="utf-8"), "")
    assert hwcalc.explore(QWEN, gpu="l4") == target.read_text(encoding="utf-8")


@pytest.mark.usefixtures("formulas")
def test_the_file_has_a_name_of_its_own(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is said."""
    monkeypatch.chdir(tmp_path)
    _, _, err = run(capsys, "explore", QWEN, *_FAST)

    assert "'kvplan.html'" in err
    assert [path.name for path in tmp_path.iterdir()] == ["kvplan.html"]


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((QWEN, "nobody/nothing"), 3, "nobody/nothing"),
        ((QWEN, "--gpu", "h900"), 2, "h900"),
        ((QWEN, "--engine", "ollama"), 2, "the page has no ollama"),
        ((QWEN, "--engine", "vllm@0.11"), 2, "newest rules"),
        ((QWEN, "--gpus", "4", "--tp", "3"), 2, "tp 3 does not divide 4"),
        ((QWEN, "--weights", "auto"), 2, "auto"),
        ((QWEN, "--dtype", "fp99"), 2, "fp99"),
        ((QWEN, "--weights", "q99"), 2, "q99"),
        ((QWEN, "--open", "-o", "-"), 2, "--open"),
        ((QWEN, "--pp", "2"), 2, "--pp"),
        ((QWEN, "--seq", "64"), 2, "begin at 128 tokens"),
        ((QWEN, "-o", "."), 74, "it is a folder"),
    ],
)
def test_what_is_wrong_leaves_no_file(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int, says: str
) -> None:
    """The usual error, also for one model of several."""
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capsys, "explore", *words, *(() if "--gpu" in words else _FAST), "--offline")

    assert (found, out) == (status, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_no_page(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a megabyte of HTML helps nobody there."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    status, out, err = run(capsys, "explore", QWEN, *_FAST, "-o", "-")

    assert (status, out) == (2, "")
    assert "-o page.html" in err


def test_what_is_chosen_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of the command line, in lists where those lack them."""
    monkeypatch.setattr("hwcalc.explore.build.MOST_BY_HAND", 0)
    page = hwcalc.explore(
        QWEN, seq="2M", batch=3, dtype="fp8_e5m2", weights="gptq", engine="vllm", gpus=6, tp=3, gpu=["l4", "h100"]
    )
    payload = _payload(page)

    assert payload["first"] == {
        "seq": 2 << 20, "batch": 3, "dtype": "fp8_e5m2", "weights": "gptq", "engine": "vllm", "count": 6, "tp": 3,
    }  # fmt: skip
    assert payload["lengths"]["most"] == 2 << 20
    assert 3 in payload["batches"]
    assert {"count": 6, "tp": 3, "pp": 1} in payload["layouts"]
    assert [gpu["id"] for gpu in payload["gpus"]] == ["l4", "h100-sxm5-80gb"]
    assert "fp8_e5m2" in payload["models"][0]["engines"]["vllm"]["dtypes"]


@pytest.mark.usefixtures("formulas")
def test_every_state_has_the_other_options() -> None:
    """They are in the command lines of the page, and so is how a model was read."""
    (model,) = _payload(hwcalc.explore(QWEN, gpu="l4", margin="10%", memory_utilization=0.5, layers=4))["models"]

    assert _line(model) == "kvplan Qwen/Qwen3-8B --memory-utilization 0.5 --margin 10% --layers 4"


@pytest.mark.usefixtures("formulas")
def test_without_a_model_it_is_the_bare_equation(capsys: Capture) -> None:
    """Of the dimensions of a Llama, or of those that are given. Its command line plans it again."""
    (model,) = _payload(hwcalc.explore(gpu="l4"))["models"]
    (own,) = _payload(hwcalc.explore(gpu="l4", layers=40))["models"]

    assert _line(model).startswith("kvplan --layers 32 --heads 32 --kv-heads 8 --head-dim 128 ")
    assert _line(own).startswith("kvplan --layers 40 --heads 32 ")
    assert run(capsys, *shlex.split(_line(model))[1:], "--seq", "4k", "--gpu", "l4")[0] == 0


@pytest.mark.usefixtures("formulas")
def test_models_without_a_name_of_their_own_have_one_on_the_page() -> None:
    """Two configs from Python are both called config."""
    models = _payload(hwcalc.explore([_CONFIG, _CONFIG], gpu="l4"))["models"]

    assert [(model["id"], model["argument"]) for model in models] == [("config", "-"), ("config (2)", "-")]


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(1)</script>",
        "a\u2028b\u202egpj",
        "x" * 200,
        "\x1b]0;title\x07",
        "\"'`\\",
        "{{script}}",
    ],
)
def test_a_hostile_name_is_text(name: str) -> None:
    """The page has the elements of any other page, and is written as any other."""
    hostile = {**_CONFIG, "_name_or_path": name, "architectures": [name], "quantization_config": {"quant_method": name}}
    page = hwcalc.explore(hostile, gpu="l4")

    assert page.count("<") == _harmless().count("<")
    assert page.encode()
    assert page.isascii()
    (model,) = _payload(page)["models"]
    assert len(model["id"]) <= 200
    assert model["id"].isprintable()


@cache
def _harmless() -> str:
    """A page of the same model with a harmless name."""
    return hwcalc.explore({**_CONFIG, "quantization_config": {"quant_method": "x"}}, gpu="l4")


def test_too_many_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any is planned."""
    monkeypatch.setattr("hwcalc.explore.build.load_each", None)
    with pytest.raises(UsageError, match=f"at most {MOST_MODELS} models"):
        page_of([_CONFIG] * (MOST_MODELS + 1), {})


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("-x.json", "./-x.json"),
        ("$(touch owned).json", "'$(touch owned).json'"),
        ("it's.json", "'it'\"'\"'s.json'"),
        ("\x03\n\x1bc.json", "$'\\x03\\n\\x1bc.json'"),
        ("\u202egnp.json", "$'\\u202egnp.json'"),
    ],
)
def test_names_in_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, word: str) -> None:
    """What somebody copies from the page into a terminal is a name for the shell, for the terminal and for kvplan."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(json.dumps(_CONFIG), encoding="utf-8")
    (model,) = _payload(hwcalc.explore(name, gpu="l4"))["models"]

    assert model["argument"] == word


def test_a_node_is_named_as_of_a_plan() -> None:
    """``4xl40s`` is four of them; the numbers of several nodes can be chosen, and the page knows which were named."""
    one, several = (_payload(hwcalc.explore(QWEN, gpu=nodes)) for nodes in ("4xl40s", "3xl40s,h100,16xh100"))

    assert one["first"] == {"gpu": "l40s", "count": 4}
    assert several["first"] == {"gpu": "l40s", "count": 3}
    assert [gpu["id"] for gpu in several["gpus"]] == ["l40s", "h100-sxm5-80gb"]
    assert [tuple(node.values()) for node in several["nodes"]] == [("l40s", 3), ("h100-sxm5-80gb", 1), ("h100-sxm5-80gb", 16)]
    assert {1, 3, 16} <= {layout["count"] for layout in several["layouts"]}
    assert {layout["tp"] for layout in several["layouts"] if layout["count"] == 16} == {1, 2, 4, 8}
    with pytest.raises(UsageError, match="names more than one accelerator"):
        hwcalc.explore(QWEN, gpu="l4,2xl40s", gpus=2)
