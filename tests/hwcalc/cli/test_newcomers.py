"""What people type who know Ollama, llama.cpp or the name of their card, and what they are told."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import hwcalc
from hwcalc import plan
from hwcalc.report.summary import notes_of, request_lines
from tests.hwcalc.command import Capture, run
from tests.paths import TESTS


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["llama3.1:8b"], "kvplan ollama:llama3.1:8b"),
        (["bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4KM"], "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
        (["Qwen/Qwen3-8B:Q4_K_M"], "kvplan Qwen/Qwen3-8B --engine llamacpp --weights q4_k_m"),
        (["recommend", "Qwen/Qwen3-8B", "--gpu", "rtx-3090 x 2,l4"], "--gpu rtx-3090 --gpus 2"),
        (["plot", "nosuch", "Qwen/Qwen3-8B"], "kvplan plot layers Qwen/Qwen3-8B; kinds: memory, frontier, layers, nodes, cost"),
        (["Llama", "3.1", "8B", "--gpu", "h100"], "kvplan 'Llama 3.1 8B' --gpu h100"),
        (["Qwen/Qwen3-8B", "32k"], "Perhaps: --seq 32k"),
        (["RedHatAI/Qwen3-8B-FP8-dynamic"], "That format of the published model: kvplan Qwen/Qwen3-8B --weights fp8"),
        (["mlx-community/Qwen3-8B-bnb-4bit"], "kvplan Qwen/Qwen3-8B --weights bnb4"),
        # What was typed stays, and the format is the one that the tag has.
        (
            ["ollama:gpt-oss:20b", "--seq", "16k", "--gpu", "rtx-4070"],
            "plan it before: kvplan openai/gpt-oss-20b --seq 16k --engine ollama --gpu rtx-4070",
        ),
        (["explain", "ollama:qwen3:14b-q8_0"], "plan it before: kvplan explain Qwen/Qwen3-14B --weights q8_0 --engine ollama"),
        (["qwen3-8b-fp8"], "kvplan Qwen/Qwen3-8B --weights fp8"),
        (["Qwen/Qwen3-8B", "--gpu", "p5.48xlarge"], "Write: --instance p5.48xlarge"),
        (["cost", "Qwen/Qwen3-8B", "--gpu", "l4"], "Did you mean: kvplan recommend Qwen/Qwen3-8B --gpu l4"),
        (["plot", "memroy", "Qwen/Qwen3-8B"], "Did you mean: kvplan plot memory Qwen/Qwen3-8B;"),
        (
            ["Qwen/Qwen3-14B", "--gpu", "rtx-4070", "--ram", "32", "--quant", "q4_k_m"],
            "This works: kvplan Qwen/Qwen3-14B --weights",
        ),
        (
            ["Qwen/Qwen3-8B", "--engine", "mlx", "--gpu", "m3-pro-18gb", "--ram", "64"],
            "the machine that has so much: --gpu apple-m3-pro-36gb",
        ),
        (["Qwen/Qwen3-8B", "--engine", "llamacpp", "--dtype", "q8"], "Nearest: q8_0."),
        (["Qwen/Qwen3-8B", "--engine", "llamacpp", "--dtype", "fp8"], "Nearest: q8_0."),
        (["llama-server", "-m", "model.gguf", "-c", "8192"], "model.gguf"),
    ],
)
def test_the_hint_is_what_to_type(words: list[str], hint: str, capsys: Capture) -> None:
    """None of these names is known, and each is understood."""
    status, _, said = run(capsys, *words, "--offline")

    assert status in {2, 3}
    assert hint in said


def test_the_first_notes_are_those_that_change_the_answer() -> None:
    """A context that nobody asked for stands before what is always so, and at the head a card with two sizes of memory."""
    planned = plan("Qwen/Qwen3-32B", engine="llamacpp", weights="q4_k_m", gpu="rtx-4060-ti", offline=True)
    notes, _ = notes_of(planned)

    assert request_lines(planned)[1:] == ["'rtx-4060-ti' is taken as rtx-4060-ti-16gb; also known: rtx-4060-ti-8gb."]
    assert any("llama.cpp shortens a context" in note for note in notes[:2])


def test_a_mac_is_told_its_limit_once() -> None:
    """Metal's limit can be raised, and stands first."""
    planned = plan("Qwen/Qwen3-32B", engine="llamacpp", weights="q4_k_m", gpu="m4-24gb", seq=8192, offline=True)
    notes, _ = notes_of(planned, full=True)

    assert "iogpu.wired_limit_mb" in notes[0]
    assert sum("iogpu.wired_limit_mb" in note for note in notes) == 1


def test_who_names_no_card_is_asked_for_one_for_the_home(capsys: Capture) -> None:
    """An engine that leaves to the host what does not fit needs no card of a data centre."""
    _, out, _ = run(capsys, "Qwen/Qwen3-32B", "--engine", "llamacpp", "--weights", "q8_0", "--offline")

    assert "kvplan Qwen/Qwen3-32B --weights q8_0 --engine llamacpp --offline --gpu rtx-4060-ti" in out
    assert "a Mac: m4-24gb; no GPU: cpu-32gb" in out


def test_a_checkpoint_is_told_from_the_file_that_people_run() -> None:
    """Sixteen bits are what a config says, and what nobody runs at home."""
    large, small = (
        plan("Qwen/Qwen3-32B", engine="llamacpp", gpu="rtx-4060-ti", weights=form, offline=True) for form in (None, "q4_k_m")
    )

    assert any("--weights q4_k_m, or auto" in note for note in notes_of(large)[0])
    assert not any("--weights q4_k_m, or auto" in note for note in notes_of(small, full=True)[0])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["Llama 3.1 8B", "H100"], "Perhaps: --gpu H100"),
        (["Llama 3.1 8B", "4xh100"], "Perhaps: --gpu 4xh100"),
        (["Llama 3.1 8B", "vllm@0.30"], "Perhaps: --engine vllm@0.30"),
        (["recommend", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B"], "Several side by side: kvplan compare A B."),
        (["sweep", "Qwen/Qwen3-8B", "--gpu", "8xh200"], "Write: --gpu h200 --gpus 8; compare takes nodes of unlike size"),
    ],
)
def test_a_word_in_the_wrong_place_is_told_its_option(words: list[str], hint: str, capsys: Capture) -> None:
    """An accelerator, an engine, a second model, and a node where an accelerator is taken."""
    status, _, said = run(capsys, *words, "--offline")

    assert status == 2
    assert hint in said


@pytest.mark.parametrize("command", ["sweep", "explore"])
def test_help_offers_no_node_where_none_is_taken(command: str, capsys: Capture) -> None:
    """The short help shows what the command takes."""
    _, out, _ = run(capsys, command, "--help")

    assert "l4, h100, m4-24gb" in out
    assert "4xh100" not in out


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--gpu", "h100"], "--seq 8k --gpu h100 --offline --engine vllm"),
        (["--gpu", "m3-ultra-512gb"], "--seq 8k --gpu m3-ultra-512gb --offline --engine llamacpp"),
        (["--gpu", "h100", "--engine", "reference"], ""),
        (["--gpu", "h100", "--engine", "vllm"], ""),
        (["--gpu", "h100", "--quiet"], ""),
    ],
)
def test_who_plans_no_server_is_told_what_one_holds(words: list[str], asked: str, capsys: Capture) -> None:
    """The formulas hold more than any server does, which needs saying where the user named no engine."""
    status, out, _ = run(capsys, "Qwen/Qwen3-8B", "--context", "8k", *words, "--offline")

    assert status == 0
    assert ("what a server holds: " in out) == bool(asked)
    assert asked in out


@pytest.mark.parametrize("gpu", ["rtx-4070", "m3-pro-18gb", "rx-7900-xtx"])
def test_what_does_not_fit_at_home_is_led_to_the_engine_that_runs_there(gpu: str, capsys: Capture) -> None:
    """With a format that fits, before four cards: the line that is offered fits. A server has other changes."""
    line = ("Qwen/Qwen3-14B", "--seq", "16k", "--offline", "--gpu")
    status, out, _ = run(capsys, *line, gpu)
    first = re.search(r"^  try +(kvplan .*(?:\\\n.*)*)$", out, re.MULTILINE)

    assert status == 1
    assert first is not None
    assert "--engine" in first[1]
    assert run(capsys, *shlex.split(first[1].replace("\\\n", " "))[1:])[0] == 0
    assert "--engine" not in run(capsys, *line, "t4")[1]
    assert "--engine" not in run(capsys, *line, gpu, "--dtype", "fp8")[1]


@pytest.mark.parametrize("name", ["qwen3:14b", "gpt-oss:20b"])
def test_a_name_of_ollama_is_answered_with_a_line_that_runs(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody need pull the model to plan it, and the options that were typed are in the line."""
    monkeypatch.setenv("OLLAMA_MODELS", "/nowhere")
    status, _, said = run(capsys, name, "--gpu", "rtx-4070", "--seq", "16k", "--offline")
    words = shlex.split(said.rpartition("Before it is pulled: ")[2])

    assert status == 3
    assert f"kvplan ollama:{name}" in said
    assert words[words.index("--engine") + 1] == "ollama"
    assert words[words.index("--gpu") + 1] == "rtx-4070"
    assert run(capsys, *words[1:])[0] == 0


def test_weights_of_16_bits_that_lie_on_the_host_are_told_smaller_ones(capsys: Capture) -> None:
    """A first plan names no format; the hint is on its first screen, and not where all of it lies on the GPU."""
    words = ("--engine", "llamacpp", "--seq", "16k", "--ram", "64", "--brief", "--offline")
    partly = run(capsys, "Qwen/Qwen3-14B", *words, "--gpu", "rtx-4070")[1]
    whole = run(capsys, "Qwen/Qwen3-14B", *words, "--gpu", "rtx-pro-6000-ws")[1]

    assert "  hint     Planned are weights as the checkpoint has them." in partly
    assert "  hint " not in whole
    assert "  hint " not in run(capsys, "Qwen/Qwen3-14B", *words, "--gpu", "rtx-4070", "--weights", "auto")[1]


def test_what_a_narrow_list_of_models_leaves_out_is_said(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns by name, and nothing about GiB where no column has any; the longest is a part of the answer."""
    monkeypatch.setenv("COLUMNS", "80")
    words = ("fit", "--gpu", "RTX 4070 12 GB", "--ram", "64", "--seq", "16k")
    _, narrow, _ = run(capsys, *words)
    monkeypatch.setenv("COLUMNS", "160")
    _, wide, _ = run(capsys, *words)

    assert "Left out at this width: parameters, weights, KV, total, free. All:" in narrow
    assert "longest is what surely fits" in narrow
    assert "GiB of the GPU" not in narrow
    assert "Left out" not in wide
    assert "weights, KV, total, free: GiB of the GPU; longest is what surely fits" in wide


def test_a_policy_that_drops_nothing_is_said_beside_others(capsys: Capture) -> None:
    """By default its ratio is 0: the sentence of a plan says what to write."""
    line = (
        "snapkv drops nothing here: its compression_ratio, the share that is dropped, is 0. Write: snapkv:compression_ratio=0.5"
    )
    words = ("Qwen/Qwen3-8B", "--seq", "8k", "--gpu", "h100", "--offline")
    _, _, said = run(capsys, "compare", *words, "--policy", "none,snapkv")
    _, out, _ = run(capsys, *words, "--policy", "snapkv")

    assert line in said
    assert line in " ".join(out.split())


def test_the_policies_that_an_engine_lacks_are_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column that says so may be left out."""
    monkeypatch.setenv("COLUMNS", "80")
    policies = "none,snapkv:compression_ratio=0.5,knorm:compression_ratio=0.5"
    words = ("--seq", "8k", "--gpu", "h100", "--engine", "vllm", "--policy", policies, "--offline")
    _, out, _ = run(capsys, "compare", "Qwen/Qwen3-8B", *words)

    assert "vllm lacks snapkv:compression_ratio=0.5, knorm:compression_ratio=0.5: planned as if" in " ".join(out.split())
    # What policies are compared for stands before what every plan has, with its meaning.
    header = next(line for line in out.splitlines() if line.endswith("  in all"))
    assert {"kept", "saved", "peak", "in all"} <= set(re.split("  +", header.strip()))
    assert "in all: with the policy the plan needs less memory (saves) or more (loses)" in " ".join(out.split())
    assert run(capsys, "help", "in all")[1].startswith("in all")


def test_what_does_not_fit_is_led_to_what_to_try(capsys: Capture) -> None:
    """The line that is printed is not the plan that failed: it fits when it is typed, with the options that were given."""
    words = ("--seq", "8k", "--users", "2", "--offline")
    nodes = ("--gpu", "4xh100,l4", "--engine", "vllm", "--engine-option", "max_num_seqs=64")
    _, out, _ = run(capsys, "compare", "Qwen/Qwen3-4B", "Qwen/Qwen3-32B", *words, *nodes)
    _, small, _ = run(capsys, "compare", "Qwen/Qwen3-4B", "Qwen/Qwen3-1.7B", *words, "--gpu", "l4")
    line = out.partition("\ntry: ")[2].partition("\n\n")[0].replace("\\\n", "")
    told, _, _ = run(capsys, *shlex.split(line)[1:])

    assert told == 0
    assert {"Qwen/Qwen3-32B", "--offline", "max_num_seqs=64"} <= set(shlex.split(line))
    assert "\ntry" not in small
    comparison = hwcalc.compare("Qwen/Qwen3-32B", gpu="4xh100,l4", engine="vllm,sglang", seq="8k")
    for variant in comparison.variants:
        told, plan, _ = run(capsys, *shlex.split(variant.command or "")[1:], "--json")
        assert json.loads(plan)["memory"]["per_gpu"]["total"] == variant.total_per_gpu_bytes
        assert told == (0 if variant.fits else 1)


def test_each_row_that_does_not_fit_has_what_makes_it_fit(capsys: Capture) -> None:
    """The first change that its plan offers, which fits when it is typed; rows with the same change share a line."""
    words = ("Qwen/Qwen3-8B", "--engine", "vllm,sglang,mlx,llamacpp", "--gpu", "l4", "--seq", "32k", "--users", "4", "--offline")
    _, out, _ = run(capsys, "compare", *words)
    told = dict(line.strip().split(": ") for line in out.partition("What makes it fit:\n")[2].partition("\n\n")[0].splitlines())
    comparison = json.loads(run(capsys, "compare", *words, "--json")[1])["variants"]
    helped: dict[str, list[str]] = {}
    for variant in comparison:
        if not variant["fits"]:
            first = variant["suggestions"][0]
            helped.setdefault(first["effect"].partition(";")[0], []).append(variant["engine"])
            status, _, _ = run(capsys, *shlex.split(first["command"])[1:])
            assert status == 0

    assert told == {"; ".join(engines): cure for cure, engines in helped.items()}
    assert any(len(engines) > 1 for engines in helped.values())
    assert comparison[-1]["fits"]


def test_the_help_of_a_page_says_where_it_is_written(capsys: Capture) -> None:
    """Without an option it is in this folder."""
    _, out, _ = run(capsys, "explore", "--help")

    assert "kvplan.html" in out


def test_a_longer_word_for_a_key_of_a_check(capsys: Capture, tmp_path: Path) -> None:
    """It begins as the key does."""
    file = tmp_path / "kvplan.yaml"
    file.write_text("schema_version: 1\nchecks:\n  - {name: a, model: Qwen/Qwen3-8B, sequence: 8k}\n", encoding="utf-8")
    _, out, said = run(capsys, "check", str(file), "--offline")

    assert "Did you mean seq?" in out + said


def test_a_document_of_kvplan_is_no_model(capsys: Capture, tmp_path: Path) -> None:
    """Who looks for what changed between two answers is told how checks are compared."""
    file = tmp_path / "before.json"
    file.write_text('{"schema_version": "1", "kvplan_version": "0.1.0", "checks": []}', encoding="utf-8")
    status, _, said = run(capsys, "diff", str(file), str(file))

    assert status == 3
    assert "is a JSON document of kvplan check that kvplan wrote" in said
    assert "kvplan check --baseline FILE" in said


@pytest.mark.parametrize(
    "words",
    [
        ("instances",),
        ("reconcile", str(TESTS / "logs/vllm/v0-0.7-llama-3.1-8b-20k.log"), "--gpu", "l4"),
        ("tune", "Qwen/Qwen3-8B", "--gpu", "l4", "--trace", "prompt=2k output=9 requests=3", "--ttft", "2s"),
    ],
)
def test_a_table_leaves_out_what_a_terminal_has_no_room_for(
    words: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a table is broken by the terminal, and what is left out is named."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, err = run(capsys, *words)
    table = [line for line in out.splitlines() if "  " in line.strip()]

    assert max(map(len, table)) <= 80
    assert "Left out at this width: " in out + err


def test_a_command_of_a_hint_ends_it(capsys: Capture) -> None:
    """Nothing stands behind it that would be copied with it."""
    _, _, err = run(capsys, "RedHatAI/Qwen3-8B-FP8-dynamic", "--endpoint", "http://127.0.0.1:9")
    assert err.endswith(": kvplan Qwen/Qwen3-8B --weights fp8\n")
