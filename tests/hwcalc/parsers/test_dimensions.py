"""Dimensions by hand: the bare equation without a model, and "what if" beside one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import explain, load_model, plan, recommend
from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.load import load
from hwcalc.model import Definition
from hwcalc.planner.asked import Access
from tests.hwcalc.command import QWEN, Capture, run

BARE: Final[dict[str, Any]] = {"layers": 80, "heads": 64, "kv_heads": 8, "head_dim": 128}
WORDS: Final = ("--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128", "--seq", "32k")
LLAMA_70B: Final = {**BARE, "hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256}


# --- the bare equation ------------------------------------------------------------------------------------------------


def test_the_equation() -> None:
    """2 x 80 layers x 8 heads x 128 x 2 B x 32,768 tokens x 8 sequences = 80 GiB, exactly."""
    result = plan(**BARE, seq="32k", batch=8, dtype="fp16")

    assert result.cache.total_bytes == 2 * 80 * 8 * 128 * 2 * 32_768 * 8 == 80 * 2**30
    assert result.cache.definition == "exact"
    assert result.memory.weights.bytes is None
    assert result.to_dict()["model"]["source"] == "options"
    assert not result.warnings


@pytest.mark.parametrize("reader", [[], ["--"]], ids=["quick", "typer"])
@pytest.mark.parametrize("command", [[], ["plan"], ["explain"]])
def test_the_command_line(capsys: Capture, command: list[str], reader: list[str]) -> None:
    """Without a MODEL, in both readers of a line and in explain."""
    status, out, _ = run(capsys, *command, *WORDS, "--users", "8", "--dtype", "fp16", "--json", *reader)

    assert status == 0
    assert json.loads(out)["cache"]["total_bytes"] == 80 * 2**30


def test_what_a_person_reads(capsys: Capture) -> None:
    """Heads, result, and what is missing for the weights with the options that give it."""
    status, out, _ = run(capsys, *WORDS, "--dtype", "fp16")

    assert status == 0
    assert "64 heads, 8 KV heads, head_dim 128" in out
    assert "10,737,418,240 B" in out
    assert "--parameters 70B" in out
    assert "--hidden-size" in out
    status, out, _ = run(capsys, "explain", *WORDS)
    assert status == 0
    assert "= 67,108,864 B per layer" in out


def test_the_weights_of_a_llama() -> None:
    """With its three sizes: Llama-3-70B has 70,553,706,496 parameters (Hugging Face, meta-llama/Meta-Llama-3-70B)."""
    result = plan(**LLAMA_70B, seq=1)

    assert result.model.parameters.total == 70_553_706_496
    assert result.memory.weights.bytes == 2 * 70_553_706_496


def test_the_number_of_parameters() -> None:
    """So many numbers in their format, and a verdict."""
    for engine in ("reference", "vllm", "transformers"):
        result = plan(**BARE, seq="32k", parameters="70B", engine=engine, gpu="h100-sxm5-80gb", gpus=4)
        assert result.memory.weights.bytes == 2 * 70 * 10**9
        assert result.fit is not None
        assert result.fit.fits
    assert plan(**BARE, seq=1, parameters=7).memory.weights.bytes == 14
    assert plan(layers=1, heads=1, head_dim=1, seq=1, parameters=2**40).memory.weights.bytes == 2**41
    fp8 = plan(**BARE, seq=1, parameters="70B", weights="fp8", pp=4, tp=2).memory.weights.bytes
    assert fp8 is not None
    assert 70e9 <= fp8 < 70.1e9


def test_with_hardware_it_says_that_the_weights_are_missing(capsys: Capture) -> None:
    """No verdict without weights, and the way to one; --kv-memory gives the cache its bytes."""
    status, out, _ = run(capsys, *WORDS, "--gpu", "h100")
    assert status == 1
    assert "Give the number of parameters: --parameters 70B" in out
    status, out, _ = run(capsys, *WORDS, "--gpu", "h100", "--kv-memory", "20GiB", "--brief")
    assert status == 0
    assert "Weights are not counted" in out


def test_the_line_that_asks_makes_a_verdict(capsys: Capture) -> None:
    """What the plan says to type next, typed: two H200 hold 128 GB of weights (12 x 80 x 8,192^2 x 2 B) and the cache. A GPU alone would say nothing."""
    _, out, _ = run(capsys, *WORDS, "--brief")
    line = next(line for line in out.splitlines() if line.lstrip().startswith("ask "))
    words = line.split("kvplan ")[1].split()
    assert words[-6:-2] == ["--parameters", "64B", "--gpu", "h200-sxm-141gb"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert "fits on 2 x h200-sxm-141gb" in out


def test_no_hint_gives_the_cache_the_whole_gpu(capsys: Capture, tmp_path: Path) -> None:
    """A model whose weights are not known: what is left for the cache is less than the memory of the GPU."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}))
    words = (str(path), "--assume", "gqa", "--seq", "1k")
    _, out, _ = run(capsys, *words)
    assert "ask" not in out.split()
    status, out, _ = run(capsys, *words, "--gpu", "h100-sxm5-80gb")
    assert status == 1
    assert "weights and all else leave for the cache" in " ".join(out.split())
    assert "--kv-memory SIZE" in out
    assert any("Weights are not counted" in note.message for note in plan(path, seq=1, assume="gqa", kv_memory="1GiB").warnings)
    assert not plan(QWEN, seq=1, kv_memory="1GiB").warnings


def test_heads_by_default() -> None:
    """Every query head has its own keys; a width that the heads share."""
    assert plan(layers=1, heads=4, head_dim=8, seq=1, dtype="fp16").cache.total_bytes == 2 * 4 * 8 * 2
    assert plan(layers=1, heads=4, hidden_size=32, seq=1, dtype="fp16").cache.total_bytes == 2 * 4 * 8 * 2


def test_in_python() -> None:
    """Explain and recommend take it too."""
    assert explain(**BARE, seq="32k").plan.cache.total_bytes == 10 * 2**30
    assert recommend(**BARE, seq="32k", parameters="8B", gpu="h100-sxm5-80gb").offers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no MODEL is named"),
        (["--seq", "4k"], "no MODEL is named"),
        (["--layers", "80"], "needs --heads"),
        (["--heads", "64"], "needs --layers"),
        (["--layers", "80", "--heads", "64"], "needs --head-dim"),
        (["--layers", "80", "--heads", "64", "--hidden-size", "100"], "do not divide --hidden-size"),
        (["--layers", "80", "--heads", "64", "--kv-heads", "5", "--head-dim", "128"], "--kv-heads 5 does not divide --heads 64"),
        (["--layers", "80", "--heads", "64", "--kv-heads", "128", "--head-dim", "128"], "does not divide"),
        (["--layers", "0", "--heads", "64", "--head-dim", "128"], "layers is out of range"),
        (["--layers=-1", "--heads", "64", "--head-dim", "128"], "layers is out of range: '-1'"),
        (["--layers", "1000000000", "--heads", "64", "--head-dim", "128"], "--layers is 1,000,000,000"),
        (["--layers", "80", "--heads", "nan", "--head-dim", "128"], "heads is not a number"),
        (["--layers", "80", "--heads", "64", "--head-dim", "1e400"], "--head-dim is not a number"),
        (["--layers", "80", "--heads", "64", "--head-dim", "1099511627776"], "--head-dim (head_dim) is"),
        (["--layers", "80", "--heads", "64", "--head-dim", "128.5"], "--head-dim is not a whole number"),
        (["--layers", "80", "--heads", "64", "--head-dim", "128", "--parameters", "0"], "parameters is out of range"),
        (["--layers", "80", "--heads", "64", "--head-dim", "128", "--parameters", "lots"], "parameters is not a number"),
        (["--layers", "80", "--heads", "64", "--head-dim", "128"], "does not state its longest sequence"),
    ],
)
def test_what_makes_no_sense(capsys: Capture, words: list[str], said: str) -> None:
    """Exit 2, in words that name the option."""
    status, out, err = run(capsys, "plan", *words)

    assert (status, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("value", [True, 1.5, float("nan"), float("inf"), [], {}, b"8", "", "8 heads", 10**30, -5])
@pytest.mark.parametrize("name", ["layers", "heads", "kv_heads", "head_dim", "parameters", "vocab_size"])
def test_hostile_values(name: str, value: Any) -> None:
    """A usage error, from Python too."""
    with pytest.raises(UsageError, match=name):
        plan(**{**LLAMA_70B, "seq": 8, name: value})


# --- what if ----------------------------------------------------------------------------------------------------------


def test_what_if() -> None:
    """Qwen3-8B with half the key/value heads and four more layers: every number is assumed, and a note names the changes."""
    result = plan(QWEN, seq="4k", kv_heads=4, layers=40)

    assert result.cache.total_bytes == 2 * 40 * 4 * 128 * 2 * 4096
    assert result.cache.definition == "assumed"
    assert result.memory.weights.definition == "assumed"
    assert result.model.parameters.definition == "assumed"
    note = next(note.message for note in result.notes if note.code == "what-if")
    assert "num_hidden_layers 40 instead of 36" in note
    assert "num_key_value_heads 4 instead of 8" in note


def test_under_the_names_of_the_file() -> None:
    """GPT-2 calls layers ``n_layer``; a document of several parts has them one level deeper."""
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float16"}
    assert plan(gpt2, seq=1, layers=6).cache.total_bytes * 2 == plan(gpt2, seq=1).cache.total_bytes
    nested = {"model_type": "qwen2_vl", "text_config": {
        "model_type": "qwen2_vl_text", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}}  # fmt: skip
    assert plan(nested, seq=1, kv_heads=1).cache.total_bytes * 2 == plan(nested, seq=1).cache.total_bytes


def test_files_of_another_model_do_not_count() -> None:
    """The published weights are those of the model as it is."""
    changed, own = plan(QWEN, seq=1, layers=35).memory.weights.bytes, plan(QWEN, seq=1).memory.weights.bytes
    assert changed is not None
    assert own is not None
    assert changed < own


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (QWEN, ["--kv-heads", "5"], "--kv-heads (num_key_value_heads) is 5"),
        ("deepseek-ai/DeepSeek-V3", ["--kv-heads", "8"], "--kv-heads changes nothing: a deepseek_v3 model with latent attention"),
        (QWEN, ["--parameters", "70B"], "leave out the MODEL"),
        (QWEN, ["--layers", "1001"], "--layers (num_hidden_layers) is 1001"),
        ("openai/gpt-oss-20b", ["--layers", "80"], "do not go together"),
    ],
)
def test_what_the_model_cannot_be(capsys: Capture, model: str, words: list[str], said: str) -> None:
    """Exit 2: what is wrong with the changed config is wrong with the options."""
    status, out, err = run(capsys, model, "--seq", "4k", *words)

    assert (status, out) == (2, "")
    assert said in err


def test_its_own_number_changes_nothing() -> None:
    """That is no error: the same model, assumed."""
    assert plan(QWEN, seq=1, kv_heads=8).cache.total_bytes == plan(QWEN, seq=1).cache.total_bytes


def test_beside_an_unknown_type() -> None:
    """Both at once: read as a type, with other dimensions."""
    config = {"model_type": "x", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "bfloat16"}
    assert (
        plan(config, seq=1, assume="gqa", layers=4).cache.total_bytes == 2 * plan(config, seq=1, assume="gqa").cache.total_bytes
    )
    assert plan(config, seq=1, assume="llama", layers=4).cache.definition == Definition.ASSUMED


@pytest.mark.parametrize("command", [["compare", QWEN], ["sweep", QWEN], ["recommend", QWEN]])
def test_in_other_commands(capsys: Capture, command: list[str]) -> None:
    """The same options, where they make sense."""
    status, out, _ = run(capsys, *command, "--seq", "4k", "--kv-heads", "4")
    assert status == 0
    assert out != run(capsys, *command, "--seq", "4k")[1]


def test_what_names_the_model_on_a_command_line() -> None:
    """For commands that can be pasted."""
    assert load(None, Access(), dimensions=BARE).read_with == WORDS[:8]
    assert load(QWEN, Access(), dimensions={"layers": 40}).read_with == ("--layers", "40")
    assert (load_model(QWEN).address, load_model(QWEN).read_with) == (QWEN, ())
    config = {"model_type": "x", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert load_model(config, assume="mha").read_with == ("--assume", "mha")


def test_a_model_that_was_read_already() -> None:
    """Its config is not read again, so that its dimensions stay."""
    with pytest.raises(KvplanError, match="keeps its dimensions"):
        plan(load_model(QWEN), seq=1, layers=3)


@pytest.mark.parametrize(
    "words, number",
    [
        (("--layers", "40", "--heads", "40", "--head-dim", "128"), "13B"),  # 12 x 40 x (40 x 128)^2 = 12.58e9, as OPT-13B
        (("--layers", "12", "--heads", "12", "--head-dim", "64"), "85M"),  # 12 x 12 x (12 x 64)^2 = 84.9e6, as GPT-2
        (("--layers-of", "4*mamba2(heads=8,head_dim=64,d_state=128,conv=4)"), "8B"),
    ],
)
def test_the_next_command_has_as_many_parameters_as_such_layers_usually_have(
    capsys: Capture, words: tuple[str, ...], number: str
) -> None:
    """And says that the number is the user's to write."""
    out = run(capsys, *words, "--seq", "2k")[1]

    assert f"--parameters {number} --gpu" in out
    assert f"with {number} parameters: give your own number" in out
