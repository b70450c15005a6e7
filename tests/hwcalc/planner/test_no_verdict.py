"""A GPU is named, and nobody knows what the model weighs: there is no verdict, and no way of asking takes that for a yes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import compare, load_model, plan, recommend
from hwcalc.errors import KvplanError, UsageError
from hwcalc.planner.result import NO_VERDICT
from tests.hwcalc.command import Capture, run

UNCOUNTED: Final = "stepfun-ai/step3"
"""A model of the catalog whose vision tower nobody weighs."""
STRANGE: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "quantization_config": {"quant_method": "nobody knows it"},
}
"""A model whose layers are counted, in a format that is not known."""
ASKED: Final = ("--seq", "4k", "--gpu", "h100-sxm5-80gb")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The strange model's folder."""
    (tmp_path / "config.json").write_text(json.dumps(STRANGE), encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_the_command_says_so(capsys: Capture, folder: str, engine: str) -> None:
    """Status 1, no word of fitting, and a warning that says what is missing and what to type."""
    for model in (UNCOUNTED, folder):
        status, out, _ = run(capsys, model, *ASKED, "--engine", engine)

        assert 1 == status
        assert "No verdict on 1 x h100-sxm5-80gb" in " ".join(out.split())
        assert "--kv-memory" in out
        assert "will start" not in out
        assert "fits" not in out


@pytest.mark.parametrize("format_", ["json", "markdown", "csv"])
def test_every_format(capsys: Capture, format_: str) -> None:
    """Status and warning are the same whatever is printed."""
    status, out, err = run(capsys, UNCOUNTED, *ASKED, "--format", format_)

    assert 1 == status
    assert "No verdict" in out + err
    if format_ == "json":
        document = json.loads(out)
        assert document["fit"] is None
        assert [NO_VERDICT] == [warning["code"] for warning in document["warnings"]]


def test_the_engines_own_command_line(capsys: Capture) -> None:
    """``--emit`` prints the command, warns, and has status 1."""
    status, out, err = run(capsys, UNCOUNTED, *ASKED, "--engine", "vllm", "--emit", "vllm")

    assert 1 == status
    assert out.startswith("vllm serve")
    assert "No verdict" in err


def test_python() -> None:
    """``fit`` is null, ``refutes`` is true; a budget by hand brings the verdict back, and without hardware none was asked for."""
    model = load_model(UNCOUNTED)
    unknown = plan(model, seq=4096, gpu="h100-sxm5-80gb")

    assert unknown.fit is None
    assert unknown.refutes
    assert not plan(model, seq=4096).refutes
    assert not plan(model, seq=4096, gpu="h100-sxm5-80gb", kv_memory="8GiB").refutes
    assert plan(model, seq=4096, gpu="h100-sxm5-80gb", kv_memory="1MiB").refutes


def test_compare(capsys: Capture) -> None:
    """A variant without a verdict is none that fits: status 1 where no other fits, and the verdict's column says unknown."""
    status, out, _ = run(capsys, "compare", UNCOUNTED, *ASKED)

    assert 1 == status
    assert "unknown" in out.rpartition("verdict")[2]
    assert 0 == run(capsys, "compare", UNCOUNTED, "--seq", "4k")[0]
    assert 0 == run(capsys, "compare", UNCOUNTED, "Qwen/Qwen3-8B", *ASKED)[0]
    assert [None] == [variant.fits for variant in compare([UNCOUNTED], seq=4096, gpu="h100-sxm5-80gb").variants]


def test_sweep(capsys: Capture) -> None:
    """Rows keep their cache, have no verdict, and carry the warning's code; with no other row the status is 1."""
    status, out, err = run(capsys, "sweep", UNCOUNTED, "--seq", "4k,128k", "--gpu", "h100-sxm5-80gb", "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]

    assert 1 == status
    assert [None, None] == [row["fits"] for row in rows]
    assert [NO_VERDICT, f"beyond-maximum {NO_VERDICT}"] == [row["warning"] for row in rows]
    assert "2 of 2 points have no verdict" in err
    assert "1 of 1 point has no verdict" in run(capsys, "sweep", UNCOUNTED, *ASKED)[2]
    assert 0 == run(capsys, "sweep", UNCOUNTED, "Qwen/Qwen3-8B", "--seq", "4k", "--gpu", "h100-sxm5-80gb")[0]
    assert 0 == run(capsys, "sweep", UNCOUNTED, "--seq", "4k")[0]


def test_check(capsys: Capture, tmp_path: Path) -> None:
    """A check that demands it cannot be checked, which is no pass; one that demands the cache alone still holds."""
    path = tmp_path / "kvplan.yaml"
    demanded = "{model: stepfun-ai/step3, seq: 4k, gpu: h100-sxm5-80gb}"
    path.write_text(f"schema_version: 1\nchecks:\n  - {demanded}\n", encoding="utf-8")
    status, out, _ = run(capsys, "check", str(path))

    assert 1 == status
    assert "fits: No verdict on 1 x h100-sxm5-80gb" in " ".join(out.split())
    assert "1 could not be checked" in out
    (failed,) = json.loads(run(capsys, "check", str(path), "--json")[1])["checks"]
    assert (1, "no-verdict") == (failed["error"]["code"], failed["error"]["type"])
    path.write_text(f"schema_version: 1\nchecks:\n  - {demanded[:-1]}, fits: null, max_cache: 1GiB}}\n", encoding="utf-8")
    assert 0 == run(capsys, "check", str(path))[0]


@pytest.mark.parametrize("format_", ["table", "json", "markdown"])
def test_explain(capsys: Capture, format_: str) -> None:
    """An explanation that was asked about a GPU has the verdict's status: nobody can say, or it does not fit, or it does."""
    status, out, err = run(capsys, "explain", UNCOUNTED, *ASKED, "--format", format_)

    assert 1 == status
    assert "No verdict on 1 x h100-sxm5-80gb" in " ".join(out.split())
    assert "" == err
    status, _, err = run(capsys, "explain", "Qwen/Qwen3-32B", "--seq", "4k", "--gpu", "l4", "--format", format_)
    assert 1 == status
    assert "does not fit" in err
    assert (0, "") == run(capsys, "explain", "Qwen/Qwen3-8B", *ASKED, "--format", format_)[::2]
    assert 0 == run(capsys, "explain", UNCOUNTED, "--seq", "4k", "--format", format_)[0]


@pytest.mark.parametrize("format_", ["table", "json", "markdown", "csv"])
def test_diff(capsys: Capture, format_: str) -> None:
    """Its figures have no verdict: the status and a line on standard error tell it, and of which of the two."""
    status, _, err = run(capsys, "diff", "Qwen/Qwen3-8B", UNCOUNTED, *ASKED, "--format", format_)

    assert 1 == status
    assert "kvplan: B: No verdict on 1 x h100-sxm5-80gb" in err
    status, _, err = run(capsys, "diff", "Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "--seq", "4k", "--gpu", "l4", "--format", format_)
    assert 1 == status
    assert "kvplan: A: does not fit" in err
    assert "B:" not in err
    assert 0 == run(capsys, "diff", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", *ASKED, "--format", format_)[0]
    assert 0 == run(capsys, "diff", "Qwen/Qwen3-8B", UNCOUNTED, "--seq", "4k", "--format", format_)[0]


@pytest.mark.parametrize("gpu, gib", [("l4", 22), ("h100-sxm5-80gb", 79), ("rtx-4090", 23)])
def test_the_hint_is_of_this_gpu(capsys: Capture, gpu: str, gib: int) -> None:
    """By nvidia-smi an L4 has 23,034 MiB, an H100 81,559 and an RTX 4090 24,564: nobody is told of 40 GiB, nor to give the cache what weights take."""
    _, out, _ = run(capsys, UNCOUNTED, "--seq", "4k", "--gpu", gpu)

    assert f"weights and all else leave for the cache of the {gib} GiB that a {gpu} has: --kv-memory SIZE" in " ".join(
        out.split()
    )
    status, out, _ = run(capsys, UNCOUNTED, "--seq", "4k", "--gpu", gpu, "--kv-memory", "8GiB", "--brief")
    assert 0 == status
    assert "Weights are not counted" in out


def test_recommend(folder: str) -> None:
    """There is nothing to recommend by: an error with a way out that helps this model."""
    with pytest.raises(KvplanError) as uncounted:
        recommend(UNCOUNTED, seq=4096)
    with pytest.raises(KvplanError) as strange:
        recommend(folder, seq=4096)

    assert "--kv-memory" in uncounted.value.hint
    assert "--weights bf16" in strange.value.hint
    assert not isinstance(uncounted.value, UsageError)
