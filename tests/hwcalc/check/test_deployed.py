"""``kvplan check`` of commands and manifests: each server must start, and a finding stands at the flag that is wrong."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc
from tests.hwcalc.check.files import DEPLOYMENT, LLAMA_SERVER, checked
from tests.hwcalc.command import QWEN, Capture, run

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
    _, typed = checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}", "--set", "TP=2")
    assert hwcalc.check(compose, gpu="l4", env={"MODEL": QWEN, "TP": "2"}).to_dict() == typed


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
    sets = ("TP=4", "NOPE=3", "LEN=4096", "PORT=1", "other.gpu=l4", "gpu=l4", "gpuu=l4", "VLLM_PORT=9")
    status, found = checked(capsys, str(path), *(word for each in sets for word in ("--set", each)))

    notes = [note["message"] for note in found["files"][0]["notes"]]
    assert (status, [note.partition(" changed")[0] for note in notes]) == (
        0,
        ["--set TP", "--set gpuu", "--set NOPE, other.gpu, VLLM_PORT"],
    )
    # What is allowed is named.
    assert "no file has a variable of that name" in notes[1]
    assert "Did you mean gpu?" in notes[1]
    assert notes[2].endswith(f"has that name. Servers: vllm {QWEN}.")
    nearly = checked(capsys, str(path), "--set", "LENN=4096")[1]["files"][0]["notes"][0]["message"]
    assert nearly.endswith("Did you mean LEN? Left open: LEN.")


def test_values_for_other_files_are_one_note(tmp_path: Path, capsys: Capture) -> None:
    """A hook gives those of all files, and runs for those of a commit: one line names all. A name that is nearly a server's has its own."""
    path = tmp_path / "compose.yaml"
    path.write_text(f"services: {{web: {{image: vllm/vllm-openai, command: '--model {QWEN}'}}}}\n", encoding="utf-8")
    sets = ("code.gpu=h100", "code.seq=8k", "wild.tp=2", "SIZE=4", "web.gpu=l40s")
    of_hook = checked(capsys, str(path), *(word for each in sets for word in ("--set", each)))
    mistyped = checked(capsys, str(path), "--set", "webb.gpu=l40s", "--gpu", "l40s")[1]

    assert of_hook[0] == 0
    [note] = [note["message"] for note in of_hook[1]["files"][0]["notes"]]
    assert note.startswith("--set code.gpu, code.seq, wild.tp, SIZE changed nothing: ")
    assert note.endswith("Servers: web.")
    assert "Did you mean web? Servers: web." in mistyped["files"][0]["notes"][0]["message"]


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
        (f"sglang serve --model-path {QWEN} \\\n --tp 3", "flags", 2, 1, "Sizes into which it can be split: 1, 2, 4, 8"),
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
    assert found["checks"][0]["requirements"][0]["message"].endswith(
        "will not start. With 2 GPUs: fits. Give it 2 GPUs in the file."
    )


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


def test_a_lock_and_a_baseline(compose: str, capsys: Capture) -> None:
    """As of check files: servers have names, and their settings are compared."""
    assert checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}", "--set", "TP=1", "--lock")[0] == 1
    Path(compose).write_text(COMPOSE.replace("--max-model-len 4096", "--max-model-len 8192"), encoding="utf-8")
    _, found = checked(capsys, compose, "--gpu", "l4", "--set", f"MODEL={QWEN}", "--set", "TP=1")

    [change] = found["checks"][0]["changes"]
    assert (change["key"], change["before"], change["after"], change["since"]) == ("--max-model-len", "4096", "8192", "lock")


def test_what_changed_where_a_text_allows_less_than_users_send(tmp_path: Path, capsys: Capture) -> None:
    """The flag of the text that was changed, and not the length of the user, which was not; slots are called as the text calls them."""
    path, before = tmp_path / "serve.sh", tmp_path / "before.json"
    for text, old, new, words in (
        (f"vllm serve {QWEN} --max-model-len {{}}", "32768", "16384", ["--gpu", "h100", "--seq", "32k"]),
        (f"{LLAMA_SERVER} -c 32768 -np {{}}", "4", "2", ["--gpu", "l4", "--seq", "8k", "--users", "4"]),
    ):
        path.write_text(text.format(old), encoding="utf-8")
        before.write_text(run(capsys, "check", str(path), *words, "--json")[1], encoding="utf-8")
        path.write_text(text.format(new), encoding="utf-8")
        status, found = checked(capsys, str(path), *words, "--baseline", str(before))
        changed, *others = [(one["key"], one["before"], one["after"]) for one in found["checks"][0]["changes"]]
        assert (status, changed) == (1, (text.split()[-2], old, new))
        # What follows from it: half of the slots have twice the tokens each.
        assert others == ([("tokens a slot", "8k", "16k")] if "-np" in text else [])


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
        # What was not planned is not offered, and what is stands among the edits alone.
        assert "--kv-cache-dtype auto" not in item["message"]
        _, text, _ = run(capsys, "check", str(tmp_path / "compose.yaml"), "--gpu", "l40s")
        assert text.count("VLLM_ATTENTION_BACKEND=FLASHINFER") == 1
        assert "--kv-cache-dtype fp8: vLLM will not start" in item["message"]


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("SIZE=$(nvidia-smi -L | wc -l)\n\nvllm serve {0} -tp $SIZE", 1),
        ('export SIZE=`nproc`\n\nvllm serve {0} \\\n  -tp "${{SIZE}}"', 1),
        ("N=$(nproc)\nSIZE=$N\nvllm serve {0} -tp $SIZE", 2),
        ("if [ -e a ]; then\n  SIZE=$(nproc)\nfi\nvllm serve {0} -tp $SIZE", 2),
        ("SIZE=$(nproc)\n\nvllm serve {0} -tp $OTHER", 3),
        ("\n\nvllm serve {0} -tp $(nproc)", 3),
    ],
)
def test_what_a_command_would_print_is_left_open_where_it_stands(script: str, line: int, tmp_path: Path, capsys: Capture) -> None:
    """At the line that sets the variable: there it would have to change. What is added closes it."""
    path = tmp_path / "serve.sh"
    path.write_text(f"#!/bin/sh\n{script.format(QWEN)} --max-model-len 4096\n", encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", "l4")
    [check] = found["checks"]

    assert (status, check["line"], check["error"]["type"]) == (2, line + 1, "open")
    added = shlex.split(check["error"]["hint"].removeprefix("Add: ").replace("VALUE", "2"))
    assert checked(capsys, str(path), "--gpu", "l4", *added)[0] == 0


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("-m /models/Qwen3-8B-Q4_K_M.gguf -c 8192", ["accelerator", "no file"]),
        ("-m /models/Qwen3-8B-Q4_K_M.gguf -c $CTX", ["accelerator", "no file", "-c is left open"]),
        ("-m /models/Qwen3-8B-Q4_K_M.gguf -c $CTX -np $SLOTS", ["accelerator", "no file", "-c is left open", "-np is left open"]),
        ("-hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c $CTX", ["accelerator", "-c is left open"]),
        ("-m $MODEL -c 8192", ["accelerator", "leaves its model open"]),
        ("-m $MODEL -c $CTX", ["accelerator", "leaves its model open", "-c is left open"]),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_all_that_a_server_lacks_is_said_at_once(
    words: str, lacks: list[str], several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With one command that cures it all."""
    monkeypatch.chdir(tmp_path)
    other = f"  chat: {{image: 'vllm/vllm-openai:v0.33.0', command: '--model {QWEN} --max-model-len 4096'}}\n" if several else ""
    small = f"  small: {{image: 'ghcr.io/ggml-org/llama.cpp:server-cuda', command: '{words}'}}\n"
    Path("compose.yaml").write_text(f"services:\n{small}{other}", encoding="utf-8")
    status, found = checked(capsys, "compose.yaml")
    errors = [check["error"] for check in found["checks"] if check["name"] == "small"]

    assert status == 2
    assert len(errors) == len(lacks)
    assert all(any(each in error["message"] for error in errors) for each in lacks)
    [hint] = [error["hint"] for error in errors if "accelerator" in error["message"]]
    typed = hint.partition("such as: kvplan ")[2].replace("ORG/NAME", QWEN).replace("VALUE", "4")
    assert checked(capsys, *shlex.split(typed)[1:])[0] == 0
    # What is offered by itself mends its own fault alone.
    for error in errors:
        if error["hint"] != hint:
            added = shlex.split(error["hint"].removeprefix("Add: ").replace("ORG/NAME", QWEN).replace("VALUE", "4"))
            left = [
                check["error"]["message"]
                for check in checked(capsys, "compose.yaml", *added)[1]["checks"]
                if check["name"] == "small"
            ]
            assert sorted(left) == sorted(other["message"] for other in errors if other != error)


@pytest.mark.parametrize(("words", "tokens"), [((), 32_768), (("--seq", "16k"), 16_384)])
def test_sequences_that_do_not_fit_have_a_length(words: tuple[str, ...], tokens: int, tmp_path: Path, capsys: Capture) -> None:
    """That of the text, or of what users send: nothing else of the finding says it. A plan of several lengths has none that all have."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 32768\n", encoding="utf-8")
    _, found = checked(capsys, str(path), "--gpu", "l40s", "--users", "40", *words)

    assert f"40 sequences of {tokens:,} tokens do not fit" in found["checks"][0]["requirements"][0]["message"]
    fit = hwcalc.plan(QWEN, lengths="4k,32k", batch=40, gpu="l4").fit
    assert fit is not None
    assert "40 sequences do not fit" in fit.message


def test_what_is_to_be_added_can_be_copied_from_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each ``--set`` stands in one line with its value, and names the accelerator of its server."""
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text(
        f"vllm serve {QWEN} --max-model-len 8192 &\nvllm serve Qwen/Qwen3-4B --max-model-len 8192\n", encoding="utf-8"
    )
    for width in ("50", "60", "80"):
        monkeypatch.setenv("COLUMNS", width)
        sets = [shlex.split(word)[0] for word in re.findall(r"--set ('[^'\n]*')", run(capsys, "check", "a.sh")[1])]
        status, _, err = run(capsys, "check", "a.sh", *(word for pair in sets for word in ("--set", pair)))

        assert (len(sets), status, "changed nothing" in err) == (2, 0, False)


def test_what_does_not_fit_is_said_once(tmp_path: Path, capsys: Capture) -> None:
    """The verdict, and how much is too much: what is needed without what may be used."""
    path = tmp_path / "a.sh"
    path.write_text("llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0 -c 32768 -ngl 99\n", encoding="utf-8")
    [check] = checked(capsys, str(path), "--gpu", "rtx-4060")[1]["checks"]
    message, fit = check["requirements"][0]["message"], check["plan"]["fit"]
    short = (fit["needed_bytes"] - fit["usable_bytes"]) / 2**30

    assert message.count("not fit") == 1
    assert message.endswith(f"; {short:.2f} GiB too much on the GPU")


def test_what_is_to_be_typed_is_never_cut(compose: str, capsys: Capture) -> None:
    """A baseline that is not there, and a model that a lock lacks: what is printed makes both, however long the command is."""
    name = f"{'deploy-' * 12}baseline.json"
    sets = ["--set", f"MODEL={QWEN}", "--set", "TP=1", "--set", f"open.served={'x' * 90}"]
    run(capsys, "check", compose, "--gpu", "h100", *sets, "--lock")
    Path(compose).write_text(
        COMPOSE.replace("=${MODEL}", "=x").replace(f"--model={QWEN}", "--model=Qwen/Qwen3-4B"), encoding="utf-8"
    )
    targets = [f"--output={form}=out.{form}" for form in ("github", "sarif", "junit", "markdown")]
    _, out, _ = run(capsys, "check", compose, "--gpu", "h100", *sets, "--baseline", name, *targets)

    typed = re.findall(r"(?m): (kvplan check .*)$", out)
    assert {each.split()[-1] for each in typed} == {"--lock", "--accept"}
    for form in ("github", "sarif", "junit", "markdown"):
        said = Path(f"out.{form}").read_text(encoding="utf-8")
        assert all(each in said for each in typed)
    for each in sorted(typed, key=lambda command: "--accept" in command):
        assert run(capsys, *shlex.split(each)[1:])[0] == 0
    assert Path(name).is_file()
    assert f"`{typed[0]}`" in Path("out.markdown").read_text(encoding="utf-8")


@pytest.mark.parametrize("more", ["", f"llama-server -hf {QWEN}-GGUF:Q8_0 -c 4096 -ngl 99\n"])
def test_the_release_that_runs_on_an_accelerator_is_set(more: str, tmp_path: Path, capsys: Capture) -> None:
    """The newest vLLM has no wheels for Volta: what is printed plans the one that has, and leaves other servers alone."""
    path = tmp_path / "a.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 4096\n{more}", encoding="utf-8")
    words = (str(path), "--gpu", "v100-sxm2-32gb")
    hint = checked(capsys, *words)[1]["checks"][0]["error"]["hint"]
    typed = re.findall(r"--set (?:'[^']+'|\S+)", hint)
    status, found = checked(capsys, *words, *shlex.split(typed[0]))

    assert ("--engine" in hint, len(typed), status) == (False, 1, 0)
    assert {check["status"] for check in found["checks"]} == {"pass"}
    with_option = hwcalc.plan(QWEN, engine=f"vllm@{typed[0].rpartition('=')[2].rstrip(chr(39))}", gpu="v100-sxm2-32gb", seq=4096)
    assert found["checks"][0]["plan"]["engine_version"] == with_option.request.engine_version


@pytest.mark.parametrize("version", ["0.10", "v0.10", "0.10.0", "0.10.2"])
def test_a_release_is_no_number(version: str, tmp_path: Path, capsys: Capture) -> None:
    """0.10 is not 0.1: what ``--set`` says is what ``--engine`` says."""
    path = tmp_path / "a.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 4096\n", encoding="utf-8")
    [check] = checked(capsys, str(path), "--gpu", "h100", "--set", f"engine_version={version}")[1]["checks"]

    assert check["plan"]["engine_version"] == hwcalc.plan(QWEN, engine=f"vllm@{version}").request.engine_version


@pytest.mark.parametrize(
    ("said", "offered"),
    [
        ("engine=vlm", "Did you mean vllm?"),
        ("engine=vllm@0.19", "Write: --set engine_version=0.19"),
        ("fits.engine=vllm@0.19", "Write: --set fits.engine_version=0.19"),
        ("engine_version=0.99", "--set SERVER.engine_version"),
        ("engine_version=new", "Known: 0."),
    ],
)
def test_an_engine_or_a_release_that_nobody_knows(said: str, offered: str, compose: str, capsys: Capture) -> None:
    """Nothing would be checked, or another release: exit 2, with what is known."""
    status, out, err = run(capsys, "check", compose, "--gpu", "h100", "--set", f"MODEL={QWEN}", "--set", "TP=1", "--set", said)

    assert status == 2
    assert offered in out + err


@pytest.mark.parametrize(
    ("command", "variable", "value"),
    [
        (f"--model {QWEN} --max-model-len ${{CHAT_LEN}}", "CHAT_LEN", "4096"),
        ("--model $CHAT_MODEL --max-model-len 4096", "CHAT_MODEL", QWEN),
    ],
)
def test_a_variable_that_the_file_beside_compose_lost(
    command: str, variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """What is printed can be written to the file that it names; a shell in the container does not read that, and nobody does without the file."""
    monkeypatch.chdir(tmp_path)
    text = f"services:\n  chat:\n    image: vllm/vllm-openai:v0.11.0\n    command: {command}\n"
    Path("deploy").mkdir()
    Path("deploy/compose.yaml").write_text(text, encoding="utf-8")

    def hint() -> str:
        found: str = checked(capsys, "deploy/compose.yaml", "--gpu", "h100")[1]["checks"][0]["error"]["hint"]
        return found

    assert "write it" not in hint()
    Path("deploy/.env").write_text("OTHER=1\n", encoding="utf-8")
    named = hint().partition(", or write it to ")[2]
    with Path(named).open("a", encoding="utf-8") as file:
        file.write(f"{variable}={value}\n")
    assert checked(capsys, "deploy/compose.yaml", "--gpu", "h100")[0] == 0

    Path("deploy/.env").write_text("OTHER=1\n", encoding="utf-8")
    Path("deploy/compose.yaml").write_text(text.replace("$", "$$"), encoding="utf-8")
    assert "write it" not in hint()


def test_that_nothing_is_checked_is_said_to_the_quiet(tmp_path: Path, capsys: Capture) -> None:
    """A hook that is given a file without a server passes, and says why; beside one with a server it is silent."""
    (tmp_path / "values.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", encoding="utf-8")
    (tmp_path / "a.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n", encoding="utf-8")
    files = [str(tmp_path / "values.yaml"), str(tmp_path / "a.sh")]

    for form in ("table", "markdown"):
        status, out, _ = run(capsys, "check", "-q", files[0], "--format", form)
        assert (status, "nothing is checked" in out) == (0, True)
        status, out, _ = run(capsys, "check", "-q", *files, "--gpu", "h100", "--format", form)
        assert (status, "nothing is checked" in out) == (0, False)


def test_a_command_among_the_edits_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """In the summary of a job what accepts the growth of several files, one with a blank in its name, is copied as it stands."""
    monkeypatch.chdir(tmp_path)
    names = ("a.sh", "b c.sh")
    for name in names:
        Path(name).write_text(f"vllm serve {QWEN} --max-model-len 4096\n", encoding="utf-8")
    words = (*names, "--gpu", "h100", "--baseline", "base.json")
    run(capsys, "check", *words, "--accept")
    Path("b c.sh").write_text(f"vllm serve {QWEN} --max-model-len 8192\n", encoding="utf-8")
    status, out, _ = run(capsys, "check", *words, "--format", "markdown")

    [typed] = {each for each in re.findall(r"`(kvplan check [^`]*)`", out) if each.endswith("--accept")}
    assert status == 1
    assert run(capsys, *shlex.split(typed)[1:])[0] == run(capsys, "check", *words)[0] == 0
