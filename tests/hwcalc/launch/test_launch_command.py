"""``kvplan launch``, and the lines that mean it."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from hwcalc.launch.planned import planned
from hwcalc.launch.read import Given
from tests.hwcalc.command import QWEN, Capture, run

SERVE = f"vllm serve {QWEN} --max-model-len 8K -tp 2"
COMPOSE = """\
services:
  a: {image: 'vllm/vllm-openai:v0.11.0', command: '--model ${MODEL} --max-model-len 4096'}
  b: {image: 'lmsysorg/sglang', command: 'sglang serve --model-path ${OTHER:-Qwen/Qwen3-8B} --context-length 2048'}
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "l4", "--", *SERVE.split()],
        ["launch", "--gpu", "l4", "--", *SERVE.split()],
        [*SERVE.split(), "--gpu", "l4"],
        ["launch", *SERVE.split(), "--gpu=l4"],
        [SERVE, "--gpu", "l4"],
        ["--gpu", "l4", "--", "docker", "run", "vllm/vllm-openai", *SERVE.split()],
        ["serve.sh", "--gpu", "l4"],
        ["-", "--gpu", "l4"],
    ],
)
def test_lines_that_mean_the_same(words: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind ``--``, typed, quoted, in a file, on standard input."""
    (tmp_path / "serve.sh").write_text(f"#!/bin/sh\nexec {SERVE}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(SERVE.encode()))))
    status, out, err = run(capsys, *words, "--brief")

    assert status == 0, err
    assert "8,192 tokens" in out
    assert "tp 2" in out
    assert "on 2 x l4" in out


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "text", [SERVE, f"services:\n  a: {{image: vllm/vllm-openai, command: {SERVE.removeprefix('vllm serve ')}}}\n"]
)
def test_a_text_with_the_mark_of_its_encoding(
    text: str, encoding: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or standard input, planned or checked: all read it."""
    data = text.encode(encoding)
    path = tmp_path / ("a.sh" if text == SERVE else "a.yaml")
    path.write_bytes(data)
    for words in ([str(path)], ["launch", str(path)], ["-"], ["check", str(path)]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        status, out, err = run(capsys, *words, "--gpu", "l40s")
        assert (status, "fits" in out) == (0, True), (words, err)


def test_a_key_that_stands_twice(capsys: Capture, tmp_path: Path) -> None:
    """The last one is read, and both commands say so at its line: what deploys the text would refuse it."""
    path = tmp_path / "a.yaml"
    path.write_text(
        f"# a\nservices:\n  a:\n    command: {QWEN} -tp 2\n    image: vllm/vllm-openai\n    command: {QWEN} --max-model-len 2k\n"
    )
    for words in ([str(path)], ["check", str(path)]):
        status, out, err = run(capsys, *words, "--gpu", "l40s")
        assert (status, "line 6: the key 'command' stands twice, first in line 4" in " ".join((out + err).split())) == (
            0,
            True,
        ), err


@pytest.mark.parametrize(
    "text",
    [
        f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve {QWEN} --max-model-len 50000",
        f"export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\nvllm serve {QWEN} --max-model-len 50000",
        f"docker run -e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm/vllm-openai {QWEN} --max-model-len 50000",
        f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=true sglang serve --model-path {QWEN} --context-length 50000",
    ],
)
def test_a_variable_that_the_text_sets_is_not_demanded(text: str, capsys: Capture, tmp_path: Path) -> None:
    """The engine takes the length, and what is left to say is that the model was made for less."""
    path = tmp_path / "a.sh"
    path.write_text(text)
    for words in ([str(path)], ["check", str(path)]):
        status, out, err = run(capsys, *words, "--gpu", "l40s")
        assert (status, "maximum of 40,960." in out, "refuses" in out) == (0, True, False), err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"vllm serve {QWEN} --tensor-parallel-size -2", "--tensor-parallel-size -2 is below 1, and vLLM will not start."),
        (f"vllm serve {QWEN} -dp.a 2", "--data-parallel-size is not a number: {'a': 2}, and vLLM will not start."),
        (f"text-generation-launcher --model-id {QWEN} --quantize bitsandbytes-nf4", "Leave out --quantize"),
    ],
)
def test_an_error_names_the_flag_of_the_text(line: str, said: str, capsys: Capture, tmp_path: Path) -> None:
    """And no option of kvplan that nobody has typed."""
    path = tmp_path / "a.sh"
    path.write_text(line)
    for words in ([str(path)], ["check", str(path)]):
        status, out, err = run(capsys, *words, "--gpu", "l40s")
        assert (status > 0, said in out + err) == (True, True), err


@pytest.mark.parametrize(("size", "refused"), [(2, False), (3, True)])
def test_too_few_gpus_for_a_size_that_no_number_of_them_helps(size: int, refused: bool, capsys: Capture, tmp_path: Path) -> None:
    """Its 32 query heads split over two GPUs, and over three on no machine: that is said first, as it is with three."""
    path = tmp_path / "a.sh"
    path.write_text(f"docker run --gpus 1 vllm/vllm-openai --model {QWEN} -tp {size} --max-model-len 8192")
    words = [str(path), "--gpu", "l40s"]
    status, _, err = run(capsys, *words)
    on_enough = run(capsys, *words, "--gpus", str(size))

    assert ("cannot split 32 attention heads over tp 3" in err, "Give it" in err) == (refused, not refused)
    assert (on_enough[0], on_enough[2]) == (status, err) if refused else on_enough[0] == 0


def test_an_instance_with_fewer_gpus_than_its_server(capsys: Capture, tmp_path: Path) -> None:
    """A g6e.2xlarge has one L40S by AWS' table: no such node can run a pod with four."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  nodeSelector: {node.kubernetes.io/instance-type: g6e.2xlarge}\n"
        f"  containers:\n  - {{image: vllm/vllm-openai, args: [{QWEN}, -tp, '4'], resources: {{limits: {{nvidia.com/gpu: 4}}}}}}\n"
    )
    _, _, err = run(capsys, str(path))

    assert "has 4 GPUs, and g6e.2xlarge has 1: no such node can run it." in err


def test_a_config_on_standard_input_is_still_a_model(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is lost by looking at its beginning."""
    config = json.dumps(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "hidden_size": 64,
            "vocab_size": 9,
            "intermediate_size": 8,
            "torch_dtype": "float16",
        }
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(config.encode()))))
    status, out, _ = run(capsys, "-", "--seq", "1k", "--json")

    assert status == 0
    assert json.loads(out)["model"]["source"] == "stdin"


def test_a_file_of_several_servers(capsys: Capture, tmp_path: Path) -> None:
    """Each is planned; what is open is asked for; ``--set`` and ``--env-file`` give it."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    (tmp_path / "env").write_text("# none\nexport OTHER=gpt2\nMODEL='gpt2'\n")

    status, out, _ = run(capsys, str(path))
    assert status == 2
    assert "--set MODEL=ORG/NAME" in out
    assert "== b: sglang Qwen/Qwen3-8B (line 3)" in out

    status, out, _ = run(capsys, str(path), "--env-file", str(tmp_path / "env"), "--set", f"MODEL={QWEN}", "--json")
    servers = json.loads(out)["servers"]
    assert status == 0
    assert [each["server"]["model"] for each in servers] == [QWEN, "gpt2"]
    assert [each["plan"]["request"]["seq"] for each in servers] == [4096, 2048]
    assert [each["error"] for each in servers] == [None, None]

    # The load of one server is told by its name.
    _, out, _ = run(capsys, str(path), "--set", f"MODEL={QWEN}", "--set", "b.seq=1k", "--set", "b.users=3", "--json")
    requests = [each["plan"]["request"] for each in json.loads(out)["servers"]]
    assert {(each["seq"], each["batch"]) for each in requests} == {(4096, 1), (1024, 3)}


def test_what_is_left_open_is_a_warning_of_the_plan(capsys: Capture) -> None:
    """Said with -q too: what was taken, and what to add. Qwen3-8B has 40,960 tokens, and vLLM one GPU."""
    line = f"vllm serve {QWEN} -tp $GPUS --max-model-len $LEN --kv-cache-dtype $KIND"
    status, out, err = run(capsys, line, "--gpu", "l40s", "-q", "--json")
    warnings = [each["message"] for each in json.loads(out)["servers"][0]["plan"]["warnings"] if each["code"] == "left-open"]

    assert status == 0
    assert err == ""
    assert sorted(warnings) == [
        "--kv-cache-dtype $KIND is left open: planned as its default. Add: --set KIND=VALUE",
        "--max-model-len $LEN is left open: planned as 40,960. Add: --set LEN=VALUE",
        "--tensor-parallel-size $GPUS is left open: planned as 1. Add: --set GPUS=VALUE",
    ]
    # What an option says is not open any more.
    _, out, err = run(capsys, line, "--gpu", "l40s", "--seq", "8k", "--dtype", "fp8", "--set", "GPUS=2", "--brief")
    assert "is left open" not in out
    assert "tp=" not in err


def test_what_the_plan_is_without_is_said(capsys: Capture) -> None:
    """Dropped flags by name, those that bear on memory with the reason, and those that nobody knows."""
    line = f"vllm serve {QWEN} --port 8000 --hf-overrides {{}} --foo 3 --max-model-len ${{LEN:-4096}}"
    _, _, err = run(capsys, line)

    assert "left out, because no byte that is planned depends on it: --port." in err
    assert "warning: the plan is without --hf-overrides, which may bear on memory: it changes the model." in err
    assert "not known of vllm: --foo." in err
    assert "left open: max_model_len=${LEN:-4096} (default taken)." in err
    _, _, err = run(capsys, f"docker run --gpus all vllm/vllm-openai --model {QWEN}")
    assert "left open: how many GPUs it has (--gpus all)." in err


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["launch"], "no command and no file", "kvplan launch FILE"),
        (["launch", "nowhere.yaml"], "is no file here", "kvplan help launch"),
        (["launch", "--", "docker", "run", "nginx"], "starts a server that kvplan knows", "kvplan help launch"),
        (["launch", SERVE, "--set", "MODEL"], "has no value", "--set NAME=VALUE"),
        (["launch", SERVE, "--env-file", "nowhere"], "cannot be read", "Name a file"),
        (["launch", "vllm serve /models"], "/models", "--set model=ORG/NAME"),
        (["llama-server", "-m", "./x-Q4_K_M.gguf"], "there is no file x-Q4_K_M.gguf", "--set model=ORG/NAME"),
        (["vllm", "serve", "$M"], "leaves its model open", "--set M="),
        # Behind -- every word is the command's: --gpu would be vLLM's --gpu-memory-utilization.
        (
            ["--seq", "1k", "--", "vllm", "serve", "gpt2", "--gpu", "l4"],
            "--gpu is kvplan's",
            "kvplan --seq 1k --gpu l4 -- vllm serve gpt2",
        ),
        (["vlm", "serve", "gpt2"], "vlm serve starts no server", "kvplan -- vllm serve MODEL"),
        (["--", "vllm", "bench", "serve", "--model", "gpt2"], "vllm bench starts no server", "kvplan -- vllm serve MODEL"),
        (["llama-serve", "gpt2"], "llama-serve gpt2 starts no server", "kvplan -- llama-server MODEL"),
    ],
)
def test_what_is_wrong(words: list[str], said: str, hint: str, capsys: Capture) -> None:
    """With what to type instead."""
    status, _, err = run(capsys, *words)

    assert status in {2, 3}
    assert said in err
    assert hint in err


def test_replicas_are_said(capsys: Capture) -> None:
    """The plan is of one."""
    pod = f"{{containers: [{{image: 'vllm/vllm-openai:v0.11.0', args: [--model, {QWEN}]}}]}}"
    text = f"kind: Deployment\napiVersion: apps/v1\nmetadata: {{name: chat}}\nspec: {{replicas: 3, template: {{spec: {pod}}}}}\n"
    _, _, err = run(capsys, "launch", text, "--brief")

    assert "chat: 3 replicas: the plan is of one of them." in err


def test_a_beginning_of_the_engines_flag_is_the_engines(capsys: Capture) -> None:
    """Where kvplan means the same by it: SGLang takes --context for --context-length."""
    _, out, _ = run(capsys, "--json", "--", "sglang", "serve", "--model-path", QWEN, "--context", "2048")

    assert json.loads(out)["servers"][0]["plan"]["request"]["seq"] == 2048


def test_a_key_is_set_by_its_name(capsys: Capture) -> None:
    """Where a container hides the model."""
    status, out, _ = run(capsys, "launch", "vllm serve /models/x -tp 2", "--set", f"model={QWEN}", "--set", "tp=1", "--json")
    [server] = json.loads(out)["servers"]

    assert status == 0
    assert (server["plan"]["model"]["id"], server["plan"]["request"]["tp"]) == (QWEN, 1)
    assert server["server"]["unresolved"] == []


@pytest.mark.parametrize(
    ("said", "sets", "weights"),
    [
        ("-m ./Qwen3-8B-Q4_K_M.gguf", [f"model={QWEN}"], "q4_k_m"),
        ("-m /m/Qwen3-8B-Q5_K_M.gguf", [f"model={QWEN}"], "q5_k_m"),
        ("-m $DIR/Qwen3-8B-F16.gguf", [f"model={QWEN}"], "fp16"),
        ("-hf org/x-GGUF:Q8_0", [f"model={QWEN}"], "q8_0"),
        ("-hf org/x-GGUF --hf-file x.Q6_K.gguf", [f"model={QWEN}"], "q6_k"),
        # What the user says counts more.
        ("-m ./Qwen3-8B-Q4_K_M.gguf", [f"model={QWEN}", "weights=q8_0"], "q8_0"),
        # The experts of gpt-oss are published so.
        ("-m ./gpt-oss-20b-mxfp4.gguf", ["model=openai/gpt-oss-20b"], None),
    ],
)
def test_a_model_that_is_named_has_the_weights_of_the_text(said: str, sets: list[str], weights: str | None) -> None:
    """The format that a file or a repository states."""
    [server] = Given.of(sets).servers(f"llama-server {said} -c 4096")
    told = planned(server)

    assert told.model == sets[0].partition("=")[2]
    assert told.options.get("weights") == weights


def test_weights_that_no_rule_counts_are_said(capsys: Capture) -> None:
    """Of a mix that its publisher chose tensor by tensor only the file says what is in it."""
    _, _, err = run(capsys, "llama-server -m x-UD-Q4_K_XL.gguf -c 4096", "--set", f"model={QWEN}", "--brief")

    assert "warning: no rule says what is in UD-Q4_K_XL weights" in err
    assert "--set weights=q4_k_m" in err


def test_a_file_that_is_no_config_may_start_a_server(capsys: Capture, tmp_path: Path) -> None:
    """By its name, or as ``kvplan launch`` says."""
    text = f'FROM vllm/vllm-openai:v0.11.0\nCMD ["--model", "{QWEN}", "--max-model-len", "2048"]\n'
    for name in ("small.Dockerfile", "small"):
        (tmp_path / name).write_text(text, encoding="utf-8")

    status, out, _ = run(capsys, str(tmp_path / "small.Dockerfile"), "--brief")
    assert (status, "engine vllm 0.11.0 · 2,048 tokens" in out) == (0, True)
    _, _, err = run(capsys, str(tmp_path / "small"))
    assert "kvplan launch FILE" in err


@pytest.mark.parametrize("more", ["", " --kv-unified"])
@pytest.mark.parametrize(
    "load",
    [
        "--set small.users=8 --set small.seq=16k",
        "--set small.users=8",
        "--set small.seq=16k --set chat.seq=16k",
        "--users 8 --seq 16k",
        "--users 8 --set small.seq=16k",
    ],
)
def test_a_load_beyond_the_text_is_cured_by_what_is_said(
    load: str, more: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run: what is said of each server names all that is too much, in the words in which it was given."""
    monkeypatch.chdir(tmp_path)
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda"
    small = f"small: {{image: '{image}', command: '-hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 32768 -np 4{more}'}}"
    chat = f"chat: {{image: 'vllm/vllm-openai:v0.11.0', command: '--model {QWEN} --max-model-len 8192'}}"
    Path("compose.yaml").write_text(f"services:\n  {small}\n  {chat}\n", encoding="utf-8")
    words = ["compose.yaml", "--gpu", "l4", "--brief", *shlex.split(load)]
    _, out, _ = run(capsys, *words)
    told = re.findall(r"not planned: .*[^.]\. Give (.+), or change the text\.", out)
    given = {word for each in told for word in shlex.split(each)}

    assert told
    assert {word.partition("=")[0] for word in given if "=" in word} <= {word.partition("=")[0] for word in words}
    assert {word for word in given if word in ("--users", "--seq")} <= {*words}
    _, cured, _ = run(capsys, *words, *(word for each in told for word in shlex.split(each)))
    assert "not planned" in out
    assert "not planned" not in cured


def test_a_manifest_that_stops_being_yaml(tmp_path: Path, capsys: Capture) -> None:
    """What stands before that place is planned, and a warning says where it is."""
    text = (
        "services:\n  big:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model Qwen/Qwen3-8B\n"
        " small:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model Qwen/Qwen3-0.6B\n"
    )
    (tmp_path / "compose.yaml").write_text(text, encoding="utf-8")
    _, out, error = run(capsys, str(tmp_path / "compose.yaml"), "--gpu", "l40s")
    assert "Qwen/Qwen3-8B" in out
    assert "compose.yaml:5: not YAML" in error
    (tmp_path / "compose.yaml").write_text(text.replace(" small", "  small"), encoding="utf-8")
    assert "not YAML" not in run(capsys, str(tmp_path / "compose.yaml"), "--gpu", "l40s")[2]
