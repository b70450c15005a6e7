"""``kvplan check`` of commands and manifests: each server must start, and a finding stands at the flag that is wrong."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc
from tests.hwcalc.command import QWEN, Capture, run

# 36 layers x 8 heads x 128 numbers x key and value x 2 bytes: 144 KiB a token. 576 MiB are 4,096 tokens, and vLLM keeps a block of 16 for itself.
MEMORY: Final = 576 * 1024**2
HOLDS: Final = 4096 - 16
COMPOSE: Final = f"""\
x-common: &common
  image: vllm/vllm-openai:v0.11.0
services:
  fits:
    <<: *common
    command: --model {QWEN} --max-model-len 4096
  long:
    <<: *common
    command:
    - --model={QWEN}
    - --max-model-len
    - "40000"
  open:
    <<: *common
    command: --model ${{MODEL}} --tensor-parallel-size $TP
"""
DEPLOYMENT: Final = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
      containers:
      - image: vllm/vllm-openai:v0.11.0
        args: [--model={QWEN}, --max-model-len=8192, --tensor-parallel-size, "2"]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
SERVICE: Final = "apiVersion: v1\nkind: Service\nmetadata: {name: chat}\n"


def checked(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON document."""
    status, out, err = run(capsys, "check", *words, "--json")
    assert err == ""
    return status, json.loads(out)


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Compose file in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(COMPOSE, encoding="utf-8")
    return "compose.yaml"


def test_each_server_is_a_check(compose: str, capsys: Capture) -> None:
    """What fits, what does not, and what is left open: at its own line, with what to set."""
    status, found = checked(capsys, compose, "--gpu", "l4")

    said = [(check["name"], check["status"], check["line"]) for check in found["checks"]]
    assert said == [("fits", "pass", 5), ("long", "fail", 8), ("open", "error", 15), ("open", "error", 15)]
    assert (status, found["summary"]["exit_code"]) == (2, 2)
    [fits] = found["checks"][1]["requirements"]
    assert (fits["name"], fits["line"], fits["column"]) == ("fits", 11, 7)
    assert fits["edits"][0]["flags"].startswith("--max-model-len ")
    assert found["checks"][1]["server"]["max_model_len"] == 40_000
    assert found["checks"][2]["error"] == {
        "code": 2,
        "type": "open",
        "message": "the server 'open' leaves its model open: model=${MODEL}.",
        "hint": "Add: --set MODEL=ORG/NAME",
    }


def test_what_is_left_open_is_set(compose: str, capsys: Capture) -> None:
    """With --set and --env-file, as of kvplan launch; each option of a plan that stays open is named at its flag."""
    status, found = checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}")
    [open_] = [check for check in found["checks"] if check["name"] == "open"]
    assert (status, open_["line"], open_["error"]["hint"]) == (2, 15, "Add: --set TP=VALUE")
    assert open_["column"] == COMPOSE.split("\n")[14].index("--tensor") + 1

    Path("env").write_text(f"MODEL={QWEN}\nTP=2\n", encoding="utf-8")
    status, found = checked(capsys, compose, "--gpu", "l4", "--env-file", "env")
    assert status == 1
    assert [check["status"] for check in found["checks"]] == ["pass", "fail", "pass"]
    assert hwcalc.check(compose, gpu="l4", env={"MODEL": QWEN, "TP": "2"}).to_dict() == found


def test_a_model_of_ollama_that_is_not_here(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be pulled, or named by its repository; then it is planned."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    file = tmp_path / "Modelfile"
    file.write_text("FROM llama3.1:8b\nPARAMETER num_ctx 8192\n", encoding="utf-8")
    status, found = checked(capsys, str(file), "--gpu", "l4")

    assert (status, found["checks"][0]["error"]["type"]) == (3, "model-not-found")
    assert found["checks"][0]["error"]["hint"].startswith("Pull it: ollama pull llama3.1:8b.")
    assert found["checks"][0]["error"]["hint"].endswith(" Or name its model: --set 'ollama llama3.1:8b.model=ORG/NAME'")
    assert checked(capsys, str(file), "--gpu", "l4", "--set", f"model={QWEN}")[0] == 0


def test_a_setting_of_one_server(tmp_path: Path, capsys: Capture) -> None:
    """It counts more than that of every server, and no other server has it. The hint of a server names its own setting."""
    path = tmp_path / "compose.yaml"
    serve = "{image: 'vllm/vllm-openai:v0.11.0', command: --model /models/x --max-model-len 4096}"
    path.write_text(f"services:\n  big.one: {serve}\n  small: {serve}\n", encoding="utf-8")
    status, left = checked(capsys, str(path), "--gpu", "l4")
    assert status == 2
    assert [check["error"]["hint"] for check in left["checks"]] == [
        "Add: --set big.one.model=ORG/NAME",
        "Add: --set small.model=ORG/NAME",
    ]

    def planned(*sets: str) -> list[tuple[Any, ...]]:
        words = [word for each in sets for word in ("--set", each)]
        return [
            (check["model"], check["plan"] and check["plan"]["fit"]["gpu"])
            for check in checked(capsys, str(path), *words)[1]["checks"]
        ]

    sets = (f"model={QWEN}", "gpu=l4", "big.one.gpu=l40s")
    assert planned(*sets) == planned(*reversed(sets)) == [(QWEN, "l40s"), (QWEN, "l4")]
    assert planned(f"small.model={QWEN}", "gpu=l4")[0] == ("/models/x", None)


def test_a_set_without_effect_is_noted(tmp_path: Path, capsys: Capture) -> None:
    """A name that no file has, a variable that the file gives a value itself, and a server that is none; what has an effect is not."""
    path = tmp_path / "serve.sh"
    path.write_text(f"TP=1\nvllm serve {QWEN} -tp $TP --max-model-len $LEN --port $PORT\n", encoding="utf-8")
    sets = ("TP=4", "NOPE=3", "LEN=4096", "PORT=1", "other.gpu=l4", "gpu=l4", "gpuu=l4")
    status, found = checked(capsys, str(path), *(word for each in sets for word in ("--set", each)))

    notes = [note["message"] for note in found["files"][0]["notes"]]
    assert (status, [note.split()[1] for note in notes]) == (0, ["TP", "NOPE", "other.gpu", "gpuu"])
    # What is allowed is named.
    assert "no file has a variable of that name" in notes[1]
    assert f"Servers: vllm {QWEN}. Left open: nothing." in notes[1]
    assert f"no server is called other. Servers: vllm {QWEN}." in notes[2]
    assert "Did you mean gpu?" in notes[3]
    assert "Left open: LEN." in checked(capsys, str(path), "--set", "LENN=4096")[1]["files"][0]["notes"][0]["message"]


def test_the_name_of_a_server_is_that_of_its_text(tmp_path: Path, capsys: Capture) -> None:
    """Whatever model and variables are given, one name stands in the output and takes the settings of the server."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve $MODEL --max-model-len 4096\nvllm serve ${{M:-{QWEN}}} --max-model-len 4096\n", encoding="utf-8")
    names, gpus = ["vllm $MODEL", f"vllm {QWEN}"], ["l4", "l40s"]
    own = [word for name, gpu in zip(names, gpus, strict=True) for word in ("--set", f"{name}.gpu={gpu}")]
    for more in (
        ("--set", "MODEL=Qwen/Qwen3-0.6B"),
        ("--set", "model=Qwen/Qwen3-0.6B"),
        ("--set", f"MODEL={QWEN}", "--set", "M=o/m"),
    ):
        checks = checked(capsys, str(path), *own, *more)[1]["checks"]
        assert [check["name"] for check in checks] == names
    assert [
        check["plan"]["fit"]["gpu"] for check in checked(capsys, str(path), *own, "--set", f"MODEL={QWEN}")[1]["checks"]
    ] == gpus


def test_a_model_that_is_a_folder_of_the_server(tmp_path: Path, capsys: Capture) -> None:
    """It is not here: its id is asked for, at its place."""
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve \\\n  /models/chat --max-model-len 4096\n", encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", "l4")
    [check] = found["checks"]

    assert (status, check["line"], check["column"]) == (2, 2, 3)
    # The setting is of this server alone: another server of the same call keeps its model.
    assert (check["error"]["type"], check["error"]["hint"]) == ("open", "Add: --set 'vllm /models/chat.model=ORG/NAME'")
    assert checked(capsys, str(path), "--gpu", "l4", "--set", f"vllm /models/chat.model={QWEN}")[0] == 0
    assert checked(capsys, str(path), "--gpu", "l4", "--set", f"model={QWEN}")[0] == 0


@pytest.mark.parametrize("slots", [1, 2])
def test_a_llama_server_is_offered_its_largest_context(tmp_path: Path, capsys: Capture, slots: int) -> None:
    """By its own flag: it holds, and slots with another 4,096 tokens each do not."""
    path = tmp_path / "serve.sh"

    def of(context: int) -> tuple[int, dict[str, Any]]:
        path.write_text(f"llama-server -hf Qwen/Qwen3-14B-GGUF:Q4_K_M -c {context} -np {slots} -ngl 99\n", encoding="utf-8")
        status, found = checked(capsys, str(path), "--gpu", "rtx-4070")
        return status, found["checks"][0]

    status, check = of(32_768)
    flags = [edit["flags"] for item in check["requirements"] for edit in item["edits"] if edit["flags"].startswith("-c ")]
    context = int(flags[0].split()[1])

    assert status == 1
    assert of(context)[0] == 0
    assert of(context + 4096 * slots)[0] == 1


def test_a_text_without_an_accelerator(compose: str, capsys: Capture) -> None:
    """Nobody can say whether it fits: that is no pass. The command that says it has what was typed."""
    status, found = checked(capsys, compose, "--seq", "2k")
    command = found["checks"][0]["error"]["hint"].partition(": ")[2]

    assert status == 2
    assert {check["error"]["type"] for check in found["checks"]} == {"open"}
    assert command == "kvplan check compose.yaml --seq 2k --gpu h100"
    assert checked(capsys, *shlex.split(command)[2:])[1]["checks"][0]["error"] is None


def test_every_format_has_the_line(compose: str, capsys: Capture) -> None:
    """Annotations, SARIF and JUnit point at the flag, in the engine's own words."""
    targets = [f"--output={name}=out.{name}" for name in ("github", "sarif", "junit", "markdown", "csv")]
    status, out, _ = run(capsys, "check", compose, "--gpu", "l4", *targets)
    said = {name: Path(f"out.{name}").read_text(encoding="utf-8") for name in ("github", "sarif", "junit", "markdown", "csv")}

    assert status == 2
    assert "fits with --max-model-len " in out
    assert "::error file=compose.yaml,line=11,col=7,title=kvplan%3A long::does not fit" in said["github"]
    assert "::error file=compose.yaml,line=15,col=14,title=kvplan%3A open::" in said["github"]
    results = json.loads(said["sarif"])["runs"][0]["results"]
    assert {result["ruleId"]: result["locations"][0]["physicalLocation"]["region"]["startLine"] for result in results} == {
        "fits": 11,
        "open": 15,
    }
    assert "at compose.yaml:11" in said["junit"]
    assert "compose.yaml:11" in said["markdown"]


LLM_D: Final = f"""\
modelArtifacts: {{uri: hf://{QWEN}}}
decode:
  parallelism:
    tensor: 4
  containers:
  - modelCommand: vllmServe
    resources: {{limits: {{nvidia.com/gpu: 2}}}}
"""


@pytest.mark.parametrize(
    ("text", "name", "line", "status", "said"),
    [
        (LLM_D, "gpus", 4, 1, "has 2 GPUs, and tp 4 takes 4"),
        (DEPLOYMENT, "gpus", 10, 1, "has 1 GPU, and tp 2 takes 2: vLLM will not start"),
        (f"vllm serve {QWEN} \\\n --max-model-len 100k", "length", 2, 1, "100,000 tokens is more than the model's maximum of 40,960"),
        (f"vllm serve {QWEN} \\\n --max-model-len 4x", "flags", 2, 1, "--max-model-len 4x: vllm does not take it so"),
        (f"vllm serve {QWEN} --max-model-len 4k \\\n --max-num-seq5 4", "flags", 2, 1, "did you mean --max-num-seqs?"),
        # argparse: ambiguous option, also where no plan counts the other one.
        (f"vllm serve {QWEN} --max-model-len 4k \\\n --kv-cache-dtyp fp8", "flags", 2, 1, "--kv-cache-dtype or --kv-cache-dtype-skip-layers?"),
        (f"sglang serve --model-path {QWEN} \\\n --context-length 4k", "flags", 2, 1, "--context-length 4k"),
        # 32 heads.
        (f"sglang serve --model-path {QWEN} \\\n --tp 3", "flags", 2, 1, "Sizes with which it starts: 1, 2, 4, 8"),
    ],
)  # fmt: skip
def test_what_else_is_wrong(text: str, name: str, line: int, status: int, said: str, tmp_path: Path, capsys: Capture) -> None:
    """Too few GPUs, a length that the engine refuses, values that it does not take, and flags that nobody knows."""
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    found, document = checked(capsys, str(path), "--gpu", "h100")
    [item] = [each for each in document["checks"][0]["requirements"] if each["name"] == name]

    assert (found, item["line"], item["holds"]) == (status, line, status == 0)
    assert said in item["message"]


@pytest.mark.parametrize(
    ("old", "new", "words", "gpu", "gpus"),
    [
        # The text names one L4: no option makes another of it.
        ("", "", ["--gpu", "h100"], "l4", 2),
        ("", "", ["--instance", "p5.48xlarge"], "l4", 2),
        ("", "", ["--gpus", "4"], "l4", 2),
        ("nvidia.com/gpu.product: NVIDIA-L4", "pool: big", ["--gpu", "4xh100"], "h100-sxm5-80gb", 2),
        ("nvidia.com/gpu.product: NVIDIA-L4", "pool: big", ["--instance", "p5.48xlarge"], "h100-sxm5-80gb", 2),
        # Its label is not known.
        ("NVIDIA-L4", "OURS", ["--gpu", "h100"], "h100-sxm5-80gb", 2),
        ("", "", ["--set", "gpu=h100"], "h100-sxm5-80gb", 2),
    ],
)
def test_options_fill_in_the_accelerators_that_a_text_does_not_name(
    old: str, new: str, words: list[str], gpu: str, gpus: int, tmp_path: Path, capsys: Capture
) -> None:
    """Kind and number each by itself, so that a server that cannot start passes by no option."""
    path = tmp_path / "serve.yaml"
    path.write_text(DEPLOYMENT.replace("gpu: 1", "gpu: 2").replace(old, new), encoding="utf-8")
    _, found = checked(capsys, str(path), *words)
    fit = found["checks"][0]["plan"]["fit"]

    assert (fit["gpu"], fit["gpus"]) == (gpu, gpus)


def test_a_server_that_cannot_start_passes_by_no_option(tmp_path: Path, capsys: Capture) -> None:
    """32.8 billion parameters in 16 bits are 61 GiB, and an L4 has 24 GB; and --gpus gives no second GPU for --tensor-parallel-size 2."""
    path = tmp_path / "serve.yaml"
    path.write_text(DEPLOYMENT.replace(QWEN, "Qwen/Qwen3-32B").replace('"2"', '"1"'), encoding="utf-8")
    assert checked(capsys, str(path), "--gpu", "h100")[0] == 1

    path.write_text(DEPLOYMENT, encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpus", "2")
    assert status == 1
    assert found["checks"][0]["requirements"][0]["message"].endswith("will not start. Give it 2 GPUs in the file.")


def test_a_model_that_is_stretched(tmp_path: Path, capsys: Capture) -> None:
    """Its length is for the engine to judge: a warning."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --hf-overrides '{{\"rope_scaling\": {{}}}}' --max-model-len 100k", encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", "h100")

    assert (status, [each["name"] for each in found["checks"][0]["requirements"]]) == (0, ["fits"])
    assert "beyond-maximum" in [each["code"] for each in found["checks"][0]["warnings"]]


def test_tgi_has_room_for_an_answer(tmp_path: Path, capsys: Capture) -> None:
    """Its launcher refuses prompts that are as long as a whole request."""
    path = tmp_path / "serve.sh"
    path.write_text(
        f"text-generation-launcher --model-id {QWEN} --max-total-tokens 4096 --max-input-tokens 4096", encoding="utf-8"
    )
    status, found = checked(capsys, str(path), "--gpu", "h100")

    assert (status, found["checks"][0]["error"]["hint"]) == (2, "Write: --max-input-tokens 4095")


# --- folders and patterns ---------------------------------------------------------------------------------------------


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Launch texts and check files at any depth; what starts nothing, is hidden or is no text is left out."""
    monkeypatch.chdir(tmp_path)
    serve = f"vllm serve {QWEN} --max-model-len 4096\n"
    texts = {
        "a/b/serve.sh": serve, "a/run": f"#!/bin/sh\n{serve}", "a/notes.md": serve, "a/LICENSE": serve, "service.yaml": SERVICE,
        "chat.service": f"[Service]\nExecStart={serve}", "requirements.txt": "vllm==0.11.0\n", ".git/x.sh": serve, "node_modules/x.sh": serve,
        "kvplan.yaml": f"schema_version: 1\nchecks: [{{model: {QWEN}, gpu: l4, engine: vllm, seq: 4k}}]\n",
        "values.yaml": "checks: {}\n", "data.json": "{}", "broken.yaml": "a: [",
    }  # fmt: skip
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("picture.txt").write_bytes(b"\xff\xfe\x00")

    status, found = checked(capsys, ".", "--gpu", "h100")
    assert status == 0
    assert [file["path"] for file in found["files"]] == ["chat.service", "kvplan.yaml", "a/run", "a/b/serve.sh"]
    status, found = checked(capsys, "a/**/*.sh", "--gpu", "h100")
    assert (status, [file["path"] for file in found["files"]]) == (0, ["a/b/serve.sh"])

    # A fault of one file is a result among others.
    Path("a/kvplan-2.yaml").write_text("schema_version: 1\nchecks: 3\n", encoding="utf-8")
    Path("a/bomb.yaml").write_text(f"{SERVICE}x: {'[' * 100}", encoding="utf-8")
    status, found = checked(capsys, ".", "a/b/serve.sh", "--gpu", "h100")
    assert status == 3
    assert [(file["path"], file["checks"]) for file in found["files"][2:]] == [
        ("a/bomb.yaml", 0), ("a/kvplan-2.yaml", 0), ("a/run", 1), ("a/b/serve.sh", 1),
    ]  # fmt: skip

    status, _, err = run(capsys, "check", ".", "--gpu", "h100", "--output=github=a/b/serve.sh")
    assert (status, Path("a/b/serve.sh").read_text(encoding="utf-8")) == (2, serve)
    assert "is a file that is read" in err

    Path("empty").mkdir()
    status, found = checked(capsys, "empty")
    assert (status, found["checks"][0]["error"]["message"]) == (3, "nothing in empty starts a server that kvplan knows.")


def test_a_file_that_starts_nothing(tmp_path: Path, capsys: Capture) -> None:
    """Named, as a hook names every file of a folder, it is no fault; what may be meant as a check file still is one."""
    path = tmp_path / "service.yaml"
    path.write_text(SERVICE, encoding="utf-8")
    status, found = checked(capsys, str(path))
    assert (status, found["checks"]) == (0, [])
    assert found["files"][0]["notes"][0]["code"] == "no-server"

    path.write_text("image: {repository: nginx}\nports: [&p 80, *p]\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 0
    path.write_text("check: []\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 2
    path.write_text(f"model: {QWEN}\ngpu: l4\nmin_users: 8\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 2
    path.write_text("image: [", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 3


@pytest.mark.parametrize(
    "text", ["layers: 2*full(heads=8, head_dim=64)\nhidden_size: 512\n", '{"hidden_size": 512, "model_type": "llama"}']
)
def test_a_model_in_place_of_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, text: str) -> None:
    """A gate that names it would pass for ever. The error says what to write, which is a check of it."""
    monkeypatch.chdir(tmp_path)
    Path("my model.yaml").write_text(text, encoding="utf-8")
    status, found = checked(capsys, "my model.yaml")
    error = found["checks"][0]["error"]
    assert (status, error["message"]) == (3, "my model.yaml is a model, and no check file: it holds nothing to check.")
    Path("kvplan.yaml").write_text(error["hint"].partition(": ")[2], encoding="utf-8")
    status, found = checked(capsys, "kvplan.yaml")
    assert [check["model"] for check in found["checks"]] == ["my model.yaml"]


def test_a_lock_and_a_baseline(compose: str, capsys: Capture) -> None:
    """As of check files: servers have names, and their settings are compared."""
    assert checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}", "--set", "TP=1", "--lock")[0] == 1
    Path(compose).write_text(COMPOSE.replace("--max-model-len 4096", "--max-model-len 8192"), encoding="utf-8")
    _, found = checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}", "--set", "TP=1")

    [change] = found["checks"][0]["changes"]
    assert (change["key"], change["before"], change["after"], change["since"]) == ("seq", "4k", "8k", "lock")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python -m sglang.launch_server --model-path {model} --tp 3", "SGLang cannot split 32 attention heads over tp 3"),
        ("vllm serve {model} --gpu-memory-utilization 45", "vLLM will not start"),
        ("vllm serve {model} --dtype bfloat16 --kv-cache-dtype fp8_ds_mla", "--kv-cache-dtype fp8_ds_mla: vLLM will not start"),
        ("vllm serve {model} -tp 3 --kv-cache-dtype fp8_ds_mla", "--kv-cache-dtype fp8_ds_mla: vLLM will not start"),
        (
            "vllm serve {model} --max-num-batched-tokens 32 --max-num-seqs 64",
            "max_num_seqs=64 is more than max_num_batched_tokens=32",
        ),
    ],
    ids=["heads", "a share", "a format", "two flags", "one by the other"],
)
def test_what_an_engine_refuses_at_start(text: str, said: str, tmp_path: Path, capsys: Capture) -> None:
    """A finding at the flag, not a check that could not be made; without an accelerator it is said too."""
    path = tmp_path / "serve.sh"
    path.write_text(text.format(model=QWEN), encoding="utf-8")
    for words, status in ((["--gpu", "h100"], "fail"), ([], "error")):
        code, found = checked(capsys, str(path), *words)
        [check] = found["checks"]
        [flags] = check["requirements"]

        assert (code, check["status"]) == (1 if words else 2, status)
        assert (flags["name"], flags["holds"], flags["column"]) == ("flags", False, text.format(model=QWEN).rindex("--") + 1)
        assert said in flags["message"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("vllm serve {}", "fail"),
        ("vllm serve {} --max-model-len auto", "pass"),
        ("sglang serve --model-path {} --quantization fp8", "pass"),
        ("sglang serve --model-path {} --quantization fp8 --context-length 131072", "fail"),
        ("text-generation-launcher --model-id {}", "pass"),
        ("text-generation-launcher --model-id {} --max-total-tokens 100000", "fail"),
        ("lmdeploy serve api_server {} --backend pytorch", "pass"),
        ("mistralrs serve -m {}", "pass"),
        ("trtllm-serve {}", "pass"),
        ("sglang serve --model-path {}", "fail"),
    ],
)
def test_a_pool_that_is_shorter_than_the_model(text: str, status: str, tmp_path: Path, capsys: Capture) -> None:
    """16 GB of weights leave no 16 GiB for 131,072 tokens of 128 KiB on an L4: of a text without a length most engines start, and cut or refuse requests.

    In 16 bits they leave nothing of the share that SGLang takes.
    """
    path = tmp_path / "serve.sh"
    path.write_text(text.format("meta-llama/Llama-3.1-8B-Instruct"), encoding="utf-8")
    _, found = checked(capsys, str(path), "--gpu", "l4")
    [check] = found["checks"]

    assert check["status"] == status
    told = [note["message"] for note in check["warnings"] if note["code"] == "short-pool"]
    assert len(told) == (status == "pass")
    if told:
        assert f"requests of {check['plan']['seq']:,} tokens, not the model's 131,072" in told[0]
        assert checked(capsys, str(path), "--gpu", "l4", "--seq", "100k")[0] == 1


def test_a_length_that_the_engine_refuses(tmp_path: Path, capsys: Capture) -> None:
    """A single finding with the largest length that vLLM takes (40,960 by the config) and that the GPU holds; FAIL does not stand beside "fits"."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 200000\n", encoding="utf-8")
    _, found = checked(capsys, str(path), "--gpu", "h100")
    [large] = found["checks"][0]["requirements"]
    _, found = checked(capsys, str(path), "--gpu", "l4")
    [small] = found["checks"][0]["requirements"]

    assert (large["name"], [edit["flags"] for edit in large["edits"]]) == ("length", ["--max-model-len 40960"])
    assert "With 40,960 tokens it does not fit" in small["message"]
    [edit] = small["edits"]
    length = int(edit["flags"].removeprefix("--max-model-len "))
    path.write_text(f"vllm serve {QWEN} --max-model-len {length}\n", encoding="utf-8")
    assert checked(capsys, str(path), "--gpu", "l4")[0] == 0

    path.write_text(f"vllm serve {QWEN} --max-model-len 200000\n", encoding="utf-8")
    _, out, _ = run(capsys, "check", str(path), "--gpu", "h100")
    assert out.splitlines()[0] == f"FAIL     vllm {QWEN}"
    status, found = checked(capsys, str(path))
    assert (status, found["checks"][0]["requirements"][0]["edits"][0]["flags"]) == (2, "--max-model-len 40960")

    path.write_text(f"python -m sglang.launch_server --model-path {QWEN} --context-length 50000\n", encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l40s")[1]["checks"][0]["requirements"]
    assert (item["name"], [edit["flags"] for edit in item["edits"]]) == ("length", ["--context-length 40960"])
    assert "SGLang refuses that without SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1" in item["message"]


def test_why_it_is_not_known_whether_it_fits(tmp_path: Path, capsys: Capture) -> None:
    """That a GPU is idle is no reason. With several GPUs the size of the cache says that it is of all of them: 144 KiB a token, 4,096 tokens."""
    path = tmp_path / "a.yaml"
    gpus = "deploy: {resources: {reservations: {devices: [{count: 2}]}}}"
    text = f"services: {{a: {{image: vllm/vllm-openai, command: --model {QWEN} --max-model-len 4096, {gpus}}}}}\n"
    path.write_text(text, encoding="utf-8")
    _, found = checked(capsys, str(path))
    assert found["checks"][0]["error"]["message"] == "whether it fits is not known: the file names no accelerator."

    path.write_text(text.replace("4096", "4096 -tp 2"), encoding="utf-8")
    _, out, _ = run(capsys, "check", str(path), "--gpu", "l4")
    assert "cache 576.00 MiB on 2 GPUs together" in " ".join(out.split())


def test_the_files_of_a_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Each line of a server that holds names its file, and a row says what fails where the server fits."""
    monkeypatch.chdir(tmp_path)
    for name, length in (("a.sh", 2048), ("b.sh", 2048), ("c.sh", 50000)):
        Path(name).write_text(f"#!/bin/sh\nvllm serve {QWEN} --max-model-len {length}\n", encoding="utf-8")
    _, table, _ = run(capsys, "check", ".", "--gpu", "h100")
    _, markdown, _ = run(capsys, "check", ".", "--gpu", "h100", "--format", "markdown")

    for name in ("a.sh", "b.sh"):
        assert f"ok       {name}:2: vllm {QWEN}  fits" in table
        assert f"| ok | {name}:2: vllm {QWEN} | fits |" in markdown
    assert f"| FAIL | c.sh:2: vllm {QWEN} | fits; fails length |" in markdown


@pytest.mark.parametrize(
    "name", ["compose.yaml", "docker-compose.yml", "Dockerfile", "serve.sh", "run", "k8s.yaml", "kvplan.yaml"]
)
def test_what_a_gate_writes_into_a_folder_is_not_checked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A lock and a baseline lie beside what they are of: a folder has its one check before and after, and the lock is used."""
    monkeypatch.chdir(tmp_path)
    serve = f"vllm serve {QWEN} --max-model-len 4096\n"
    texts = {
        "compose.yaml": f"services: {{chat: {{image: 'vllm/vllm-openai:v0.11.0', command: --model {QWEN} --max-model-len 4096}}}}\n",
        "Dockerfile": f"FROM vllm/vllm-openai:v0.11.0\nCMD {serve}",
        "run": f"#!/bin/sh\n{serve}",
        "k8s.yaml": DEPLOYMENT.replace('"2"', '"1"'),
        "kvplan.yaml": f"schema_version: 1\nchecks: [{{name: chat, model: {QWEN}, gpu: l4, engine: vllm, seq: 4k}}]\n",
    }
    path = Path("deploy", name)
    path.parent.mkdir()
    path.write_text(texts.get(name, texts["compose.yaml"] if name.endswith("yml") else serve), encoding="utf-8")
    lock = path.with_name(f"{name}.lock")

    status, first = checked(capsys, "deploy", "--gpu", "l4", "--lock")
    assert (status, first["files"][0]["lock"], lock.is_file()) == (0, str(lock), True)
    Path("deploy/before.json").write_text(json.dumps(first, indent=2), encoding="utf-8")
    for given in (["deploy"], ["deploy", "--baseline", "deploy/before.json", "--strict"], [f"deploy/{name}*"]):
        status, found = checked(capsys, *given, "--gpu", "l4")
        assert (status, found["summary"]["checks"], found["summary"]["errors"]) == (0, 1, 0)
        assert [file["lock"] for file in found["files"]] == [str(lock)]

    # By another name it is a lock still, and so is one that is named.
    lock.rename("deploy/copy.yaml")
    assert [file["path"] for file in checked(capsys, "deploy", "--gpu", "l4")[1]["files"]] == [str(path)]
    for named, is_ in (("copy.yaml", "a lock"), ("before.json", "a result of kvplan")):
        status, found = checked(capsys, f"deploy/{named}")
        assert (status, f"deploy/{named} is {is_}" in found["checks"][0]["error"]["message"]) == (3, True)


def test_a_folder_with_a_lock_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """``--fix --write`` changes the text alone, and the lock says what it was before."""
    monkeypatch.chdir(tmp_path)
    compose = f"services:\n  chat:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model {QWEN} --max-model-len 4096\n"
    Path("compose.yaml").write_text(compose, encoding="utf-8")
    assert checked(capsys, ".", "--gpu", "l4", "--lock")[0] == 0
    lock = Path("compose.yaml.lock").read_bytes()
    Path("compose.yaml").write_text(compose.replace("4096", "32768"), encoding="utf-8")
    status, found = checked(capsys, ".", "--gpu", "l4")
    assert (status, [change["before"] for change in found["checks"][0]["changes"]]) == (1, ["4k"])

    status, found = checked(capsys, ".", "--gpu", "l4", "--fix", "--write")
    assert (status, [fix["path"] for fix in found["fixes"]], found["summary"]["checks"]) == (0, ["compose.yaml"], 1)
    assert Path("compose.yaml.lock").read_bytes() == lock


LLAMA_SERVER: Final = "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -ngl 99"


@pytest.mark.parametrize(
    ("text", "words", "status", "cache", "said"),
    [
        # 32 layers x 8 heads x 128 numbers x key and value x 2 bytes: 128 KiB a token, whatever users send.
        (f"{LLAMA_SERVER} -c 524288 -np 4", [], 1, 64, ""),
        (f"{LLAMA_SERVER} -c 524288 -np 4", ["--seq", "8k"], 1, 64, ""),
        (f"{LLAMA_SERVER} -c 524288 -np 4", ["--users", "1"], 1, 64, ""),
        (f"{LLAMA_SERVER} -c 32768 -np 2", ["--seq", "8k", "--users", "2"], 0, 4, ""),
        (f"{LLAMA_SERVER} -c 32768 -np 2", ["--users", "8"], 1, 4, "-np 2 serves 2 requests at once, not 8"),
        (f"{LLAMA_SERVER} -c 32768 -np 2", ["--users", "1", "--seq", "32k"], 1, 4, "-c 32768 -np 2 allows requests of 16,384 tokens, not 32,768"),
        # With one buffer for all slots a request may fill it.
        (f"{LLAMA_SERVER} -c 32768 -np 2 -kvu", ["--users", "1", "--seq", "32k"], 0, 4, ""),
        (f"{LLAMA_SERVER} -c 32768 -np 2 -kvu", ["--users", "2", "--seq", "32k"], 1, 4, "not 32,768"),
        # Its slots share what it has, also where it does not name them.
        (f"{LLAMA_SERVER} -c 32768", ["--users", "4", "--seq", "8k"], 0, 4, ""),
        (f"{LLAMA_SERVER} -c 32768", ["--users", "4", "--seq", "9k"], 1, 4, "-c 32768 for 4 at once allows requests of 8,192 tokens, not 9,216"),
    ],
)  # fmt: skip
def test_a_load_changes_nothing_of_the_slots_that_a_text_starts(
    text: str, words: list[str], status: int, cache: int, said: str, tmp_path: Path, capsys: Capture
) -> None:
    """llama.cpp makes all cells of its context when it starts, and a load beyond them is a finding of its own."""
    path = tmp_path / "serve.sh"
    path.write_text(text, encoding="utf-8")
    found, document = checked(capsys, str(path), "--gpu", "l4", *words)
    [check] = document["checks"]

    assert (found, check["plan"]["cache_bytes"]) == (status, cache * 1024**3)
    assert said in check["requirements"][0]["message"]
    assert len(check["requirements"]) == (2 if said else 1)


@pytest.mark.parametrize(
    ("words", "said", "edits"),
    [
        # An eighth of what was asked, or less, is not offered: 50 / 8 = 6.25. 50 slots of 16 Ki have 100 GiB of cache.
        (["--users", "50", "--seq", "16k"], "not 50; no single change was found", 0),
        (["--users", "50", "--seq", "32k"], "not 50, each of 16,384 tokens, not 32,768; no single change was found", 0),
        # 2 of 15 are more than an eighth; 15 slots have 30 GiB.
        (["--users", "15"], "not 15", 1),
    ],
)
def test_a_load_beyond_the_slots_has_a_remedy_or_says_that_there_is_none(
    words: list[str], said: str, edits: int, tmp_path: Path, capsys: Capture
) -> None:
    """Both the requests at once and the tokens of each are told, so that a mended number brings no other finding."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{LLAMA_SERVER} -c 32768 -np 2", encoding="utf-8")
    found, document = checked(capsys, str(path), "--gpu", "l4", *words)
    told = document["checks"][0]["requirements"][0]

    assert (found, len(told["edits"])) == (1, edits)
    assert said in told["message"]
    assert ("no single change" in told["message"]) is (edits == 0)


@pytest.mark.parametrize(
    ("image", "flag", "said", "status"),
    [
        # argparse: "unrecognized arguments", and the server ends.
        (
            "vllm/vllm-openai:v0.30.0",
            "--enable-prefx-caching",
            "has --enable-prefx-caching (did you mean --enable-prefix-caching?)",
            1,
        ),
        ("vllm/vllm-openai:latest", "--foo-bar=3", "no release of vllm from 0.28 to 0.33 has --foo-bar", 1),
        ("mirror.example.com/vllm/vllm-openai:v0.33.0", "--foo-bar", "it will not start", 1),
        # Other releases had and will have other flags, and who builds an image may add some.
        ("vllm/vllm-openai:v0.11.0", "--foo-bar", "not known of vllm: --foo-bar", 0),
        ("rocm/vllm:latest", "--foo-bar", "not known of vllm: --foo-bar", 0),
        ("team/llm:3", "--foo-bar", "not known of vllm: --foo-bar", 0),
        ("vllm/vllm-openai:v0.30.0", "--seed=3", "", 0),
    ],
)
def test_a_flag_that_no_release_has(image: str, flag: str, said: str, status: int, tmp_path: Path, capsys: Capture) -> None:
    """It is a failure where all flags of the release are known, and else a warning."""
    path = tmp_path / "compose.yaml"
    command = ["vllm", "serve", QWEN, "--max-model-len", "2048", flag]
    path.write_text(f"services: {{chat: {{image: '{image}', entrypoint: {json.dumps(command)}}}}}\n", encoding="utf-8")
    found, document = checked(capsys, str(path), "--gpu", "h100")
    told = [item["message"] for item in document["checks"][0]["requirements"] if item["name"] == "flags"]

    assert found == status
    assert len(told) == (1 if said else 0)
    assert said in "".join(told)


@pytest.mark.parametrize(
    ("text", "named", "slots"),
    [
        # llama-server's -np is -1 where it is not given, which is 4; Ollama's OLLAMA_NUM_PARALLEL is 1.
        (f"{LLAMA_SERVER} -c 32768", "-np {}", 4),
        ("services: {o: {image: ollama/ollama, environment: [OLLAMA_CONTEXT_LENGTH=8192]}}", "OLLAMA_NUM_PARALLEL={}", 1),
    ],
)
def test_more_users_than_slots_by_default_wait(text: str, named: str, slots: int, tmp_path: Path, capsys: Capture) -> None:
    """As many as there are slots are no remark; with the edit of the remark nobody waits, and the same is planned."""
    path = tmp_path / ("compose.yaml" if text.startswith("services") else "serve.sh")

    def of(text: str, users: int) -> tuple[list[str], int]:
        path.write_text(text, encoding="utf-8")
        _, found = checked(capsys, str(path), "--gpu", "h100", "--set", f"model={QWEN}", "--users", str(users))
        [check] = found["checks"]
        return [each["message"] for each in check["warnings"] if "wait" in each["message"]], check["plan"]["cache_bytes"]

    more, edit = slots + 2, named.format(slots + 2)
    assert of(text, slots)[0] == []
    [said], cache = of(text, more)
    assert f"of {more} users 2 wait. With {edit} all" in said
    assert of(text.replace("]}}", f", {edit}]}}}}") if slots == 1 else f"{text} {edit}", more) == ([], cache)


def test_layers_in_host_memory_are_told(tmp_path: Path, capsys: Capture) -> None:
    """A cache of 262,144 x 128 KiB = 32 GiB is more than an L4 has, so that layers go to the host; one of 8 GiB lies beside all weights."""
    path = tmp_path / "serve.sh"
    for tokens, told in (("262144", True), ("65536", False)):
        path.write_text(f"{LLAMA_SERVER.removesuffix(' -ngl 99')} -c {tokens} -np 4", encoding="utf-8")
        status, document = checked(capsys, str(path), "--gpu", "l4")
        [check] = document["checks"]
        assert (status, "host-memory" in [note["code"] for note in check["warnings"]]) == (0, told)


def test_a_load_beyond_the_slots_of_ollama(tmp_path: Path, capsys: Capture) -> None:
    """Each slot has the tokens that the text says, and the finding names the variable."""
    path = tmp_path / "compose.yaml"
    said = "environment: [OLLAMA_NUM_PARALLEL=2, OLLAMA_CONTEXT_LENGTH=8192]"
    path.write_text(f"services: {{o: {{image: ollama/ollama, {said}}}}}\n", encoding="utf-8")
    for words, name, message in (
        (["--users", "3"], "users", "OLLAMA_NUM_PARALLEL=2 serves 2 requests at once, not 3"),
        (["--seq", "9k"], "length", "OLLAMA_CONTEXT_LENGTH=8192 allows requests of 8,192 tokens, not 9,216"),
    ):
        status, found = checked(capsys, str(path), "--gpu", "h100", "--set", f"model={QWEN}", *words)
        items = [(item["name"], item["message"]) for item in found["checks"][0]["requirements"] if not item["holds"]]
        assert (status, items) == (1, [(name, message)])


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768", {"gpu": "l4", "users": "12", "seq": "16k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768", {"gpu": "l4", "users": "4"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768 --max-num-seqs 64", {"gpu": "l4", "users": "50", "seq": "16k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768 --kv-cache-dtype fp8", {"gpu": "l4", "users": "12", "seq": "16k"}),
        ("vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2", {"gpu": "h100", "users": "50", "seq": "16k"}),
        # Its own tp stays, unless an edit says another: 8 replicas of 2 GPUs, each for 8 requests, hold 64.
        (
            "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 8",
            {"gpu": "a100-80gb", "users": "40", "seq": "32k"},
        ),
        ("vllm serve Qwen/Qwen3-8B", {"gpu": "rtx-4090"}),
        ("vllm serve Qwen/Qwen3-32B --max-model-len 32768", {"gpu": "1xl4", "users": "8"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 16384", {"gpu": "l40s", "seq": "32k"}),
        # 40,960 tokens are the most of the model, and the L40S holds six such requests.
        ("vllm serve Qwen/Qwen3-8B", {"gpu": "l40s", "users": "2", "seq": "64k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 65536", {"gpu": "l40s", "users": "2", "seq": "64k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 65536", {"gpu": "l4", "users": "8", "seq": "64k"}),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 32768",
            {"gpu": "l4", "users": "8", "seq": "16k"},
        ),
        (f"{LLAMA_SERVER} -c 524288 -np 4", {"gpu": "l4"}),
        (f"{LLAMA_SERVER} -c 524288 -np 4", {"gpu": "l4", "seq": "8k", "users": "1"}),
        (f"{LLAMA_SERVER} -c 32768 -np 2", {"gpu": "l4", "users": "8"}),
        (f"{LLAMA_SERVER} -c 32768 -np 2", {"gpu": "l4", "users": "1", "seq": "32k"}),
        ("lmdeploy serve api_server Qwen/Qwen3-8B --session-len 8192", {"gpu": "l4", "seq": "16k"}),
    ],
)
def test_what_is_offered_of_a_deployment_holds_when_it_is_pasted(
    command: str, given: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    """Flags behind the others of the command, of which the last counts, and options of the check in place of those that were given: for sure."""
    file = tmp_path / "serve.sh"

    def checked(flags: str, *words: str) -> tuple[int, Any]:
        file.write_text(f"{command} {flags}\n", encoding="utf-8")
        status, out, _ = run(capsys, *words, "--offline", "--json")
        return status, json.loads(out)["checks"][0]

    typed = ["check", str(file), *(word for name, value in given.items() for word in (f"--{name}", value))]
    status, check = checked("", *typed)
    edits = [edit for item in check["requirements"] for edit in item["edits"]]
    pasted = 0
    for edit in edits:
        flags, kvplan, words = (edit["flags"] or edit["yaml"]).partition("kvplan ")
        if not kvplan and not edit["flags"]:
            # Another checkpoint, in words that nobody could take for flags.
            assert re.fullmatch(r"a checkpoint in ([A-Z0-9_]+): search the Hub for [\w.-]+-\1(, --.*)?", edit["yaml"]), edit
            continue
        again, found = checked(flags.removesuffix(" in the file and "), *(shlex.split(words) if kvplan else typed))
        if edit["effect"].startswith("then: "):
            # The longest that the model has, where no length of it fits.
            [left] = found["requirements"]
            assert (left["name"], left["message"].partition(":")[0]) == ("fits", edit["effect"].removeprefix("then: "))
        else:
            assert (again, found["status"]) == (0, "pass"), edit
        # What is named of it is what the check has then.
        fit = found["plan"]["fit"]
        for said, figure in ((r"holds ([\d,]+)", fit["max_batch"]), (r"with ([\d,]+) GPUs", fit["gpus"])):
            assert {int(each.replace(",", "")) for each in re.findall(said, edit["effect"])} <= {figure}, edit
        pasted += 1

    assert status == 1
    assert pasted
    assert all("probably" not in edit["effect"] for edit in edits)


def test_idle_gpus_of_a_text_are_used_first(tmp_path: Path, capsys: Capture) -> None:
    """Qwen3-8B has 16.4 GB of weights and 144 KiB a token: 40,960 tokens are 5.6 GiB, which two L4 hold and one does not."""
    path = tmp_path / "serve.yaml"
    path.write_text(counted("device_ids", QWEN, "", 2), encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", "l4")
    [item] = found["checks"][0]["requirements"]

    assert (status, item["edits"][0]["flags"]) == (1, "--tensor-parallel-size 2")

    # Of a length beyond the model's, the one that fits as it is started.
    path.write_text(counted("device_ids", QWEN, "--max-model-len 65536", 2), encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"]
    [edit] = item["edits"]
    path.write_text(counted("device_ids", QWEN, edit["flags"], 2), encoding="utf-8")
    assert (checked(capsys, str(path), "--gpu", "l4")[0], edit["effect"]) == (0, "")


COUNTED: Final = """\
services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model {model} --max-model-len 32768 {sizes}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, {gpus}}}]}}}}}}
"""
POD: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: chat}}
spec:
  containers:
  - image: vllm/vllm-openai:v0.11.0
    args: [{args}]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def counted(kind: str, model: str, sizes: str, gpus: int) -> str:
    """A manifest that gives its server so many GPUs."""
    if kind == "pod":
        words = f"--model {model} --max-model-len 32768 {sizes}".split()
        return POD.format(args=", ".join(json.dumps(word) for word in words), gpus=gpus)
    of_gpus = f"count: {gpus}" if kind == "count" else f"device_ids: {json.dumps([str(gpu) for gpu in range(gpus)])}"
    return COUNTED.format(model=model, sizes=sizes, gpus=of_gpus)


@pytest.mark.parametrize("kind", ["count", "device_ids", "pod"])
@pytest.mark.parametrize(
    ("model", "sizes", "gpus", "gpu"),
    [
        ("Qwen/Qwen3-32B", "", 1, "l40s"),
        ("Qwen/Qwen3-32B", "--tensor-parallel-size 4", 2, "l40s"),
        ("Qwen/Qwen3-32B", "--tensor-parallel-size 2", 2, "l4"),
        ("Qwen/Qwen3-32B", "--pipeline-parallel-size 2", 1, "h100"),
        ("Qwen/Qwen3-32B", "--tensor-parallel-size 4 --pipeline-parallel-size 2", 4, "l4"),
    ],
)
def test_what_is_offered_of_a_text_that_gives_gpus_holds_once_it_is_done(
    kind: str, model: str, sizes: str, gpus: int, gpu: str, tmp_path: Path, capsys: Capture
) -> None:
    """With the flags in the file and as many GPUs in it as the offer says the requirement holds, or the offer says what the verdict is then."""
    file = tmp_path / "serve.yaml"
    file.write_text(counted(kind, model, sizes, gpus), encoding="utf-8")
    status, document = checked(capsys, str(file), "--gpu", gpu)
    [item] = [item for item in document["checks"][0]["requirements"] if not item["holds"]]

    assert status == 1
    assert item["edits"]
    for edit in (edit for edit in item["edits"] if edit["flags"]):
        more = re.search(r"with (\d+) GPUs in the file", edit["effect"])
        file.write_text(counted(kind, model, f"{sizes} {edit['flags']}", int(more[1]) if more else gpus), encoding="utf-8")
        status, document = checked(capsys, str(file), "--gpu", gpu)
        found = document["checks"][0]
        failing = [each["message"].partition(":")[0] for each in found["requirements"] if not each["holds"]]
        assert failing == [each for each in [edit["effect"].removeprefix("then: ")] if "then: " in edit["effect"]], edit
        assert not [each for each in found["warnings"] if "idle" in each["message"] and more]


@pytest.mark.parametrize("more", [(), ("--gpus", "1")])
def test_an_edit_says_what_still_fails(more: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    """A flag that no release has fails with every edit for the memory, or for the number of GPUs."""
    tp = " --tensor-parallel-size 2" if more else ""
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len=40960 --max-modl-len=3{tp}\n", encoding="utf-8")
    _, document = checked(capsys, str(tmp_path / "serve.sh"), "--gpu", "l4", *more)
    *_, item = document["checks"][0]["requirements"]
    assert item["name"] == ("gpus" if more else "fits")
    assert item["edits"]
    assert all(edit["effect"].endswith("then flags still fails") for edit in item["edits"])


@pytest.mark.parametrize(("version", "warned"), [("0.13.0", False), ("0.14.0", True), ("0.33.0", True)])
def test_a_variable_that_a_release_does_not_read_any_more(version: str, warned: bool, tmp_path: Path, capsys: Capture) -> None:
    """Release 0.14 of vLLM has no VLLM_ATTENTION_BACKEND in vllm/envs.py: the warning names the flag, with which there is none."""
    text = f"services: {{a: {{image: 'vllm/vllm-openai:v{version}', environment: {{VLLM_ATTENTION_BACKEND: FLASHINFER}}, command: --model {QWEN} --max-model-len 4096}}}}"
    (tmp_path / "compose.yaml").write_text(text, encoding="utf-8")
    told = checked(capsys, str(tmp_path / "compose.yaml"), "--gpu", "l40s")[1]["checks"][0]["warnings"]

    assert [each["message"].endswith("Write: --attention-backend FLASHINFER") for each in told] == [True] * warned
    named = text.replace("environment: {VLLM_ATTENTION_BACKEND: FLASHINFER}, ", "").replace(
        "4096", "4096 --attention-backend FLASHINFER"
    )
    (tmp_path / "compose.yaml").write_text(named, encoding="utf-8")
    assert not checked(capsys, str(tmp_path / "compose.yaml"), "--gpu", "l40s")[1]["checks"][0]["warnings"]


BY_HAND: Final = f"""\
services:
  chat:
    image: vllm/vllm-openai:IMAGE
    ENVIRONMENT
    command: --model {QWEN} --max-model-len 4096 --kv-cache-dtype fp8
"""


@pytest.mark.parametrize(
    ("version", "variable", "status"),
    [
        ("v0.11.0", "", 1),
        ("v0.11.0", "FLASHINFER", 0),
        ("v0.11.0", "FLASH_ATTN", 1),
        # The variable was read up to 0.13 (vllm/envs.py); then FlashInfer is found by itself.
        ("v0.13.0", "FLASH_ATTN", 1),
        ("v0.14.0", "FLASH_ATTN", 0),
    ],
)
def test_the_back_end_that_an_fp8_cache_needs(version: str, variable: str, status: int, tmp_path: Path, capsys: Capture) -> None:
    """A text that leaves it to a default which refuses fails, with the variable to set; one that sets it passes."""
    named = f"environment: {{VLLM_ATTENTION_BACKEND: {variable}}}" if variable else "restart: always"
    (tmp_path / "compose.yaml").write_text(BY_HAND.replace("IMAGE", version).replace("ENVIRONMENT", named), encoding="utf-8")
    found, document = checked(capsys, str(tmp_path / "compose.yaml"), "--gpu", "l40s", "--strict")
    assert found == status
    [check] = document["checks"]
    if status:
        [item] = check["requirements"]
        assert (item["name"], [edit["yaml"] for edit in item["edits"]]) == ("flags", ["VLLM_ATTENTION_BACKEND=FLASHINFER"])
        # What was not planned is not offered.
        assert "--kv-cache-dtype auto" not in item["message"]
        assert "--kv-cache-dtype fp8: vLLM will not start" in item["message"]


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (f"vllm serve {QWEN} --max-model-len 16384\n", "--max-model-len 16384"),
        # Of all slots together.
        ("llama-server -hf org/m -c 16384 -np 2\n", "-c 16384"),
    ],
)
def test_growth_is_taken_back_by_a_flag(text: str, flag: str, tmp_path: Path, capsys: Capture) -> None:
    """A length of the server is no key of a check; with the flag nothing has grown."""
    serve, before = tmp_path / "serve.sh", tmp_path / "before.json"
    words = (str(serve), "--gpu", "h100", "--set", f"model={QWEN}")
    serve.write_text(text, encoding="utf-8")
    before.write_text(run(capsys, "check", *words, "--json")[1], encoding="utf-8")
    serve.write_text(text.replace("16384", "32768"), encoding="utf-8")
    status, document = checked(capsys, *words, "--baseline", str(before))
    edits = [edit for item in document["checks"][0]["requirements"] for edit in item["edits"]]

    assert status == 1
    assert [(edit["flags"], edit["accepting"]) for edit in edits] == [(flag, ""), ("", "--max-growth 100%")]
    serve.write_text(text, encoding="utf-8")
    assert checked(capsys, *words, "--baseline", str(before))[0] == 0
