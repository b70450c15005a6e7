"""``kvplan check --fix``: the change of flags with which a server starts, where they stand and as the text writes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from difflib import unified_diff
from pathlib import Path
from typing import Final

import pytest

from tests.hwcalc.check.files import LLAMA_SERVER
from tests.hwcalc.command import QWEN, Capture, run

# 36 layers x 8 heads x 128 numbers x key and value x 2 bytes are 144 KiB a token. 1,152 MiB are 8,192 tokens in 512 blocks of 16, and vLLM keeps one
# block for itself.
KV: Final = "--kv-cache-memory-bytes 1207959552"
LONGEST: Final = str(8192 - 16)
# What holds more tokens in the same bytes stands elsewhere too.
HELD: Final = f"{KV} --kv-cache-dtype ${{CACHE:-auto}}"
SHELL: Final = f"""\
#!/bin/sh
# --max-model-len 8192 is what users ask for
exec vllm serve {QWEN} \\
  --max-model-len 8192 \\
  {KV}
"""
KUBERNETES: Final = f"""\
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai
    args: ["--model", "{QWEN}", '--max-model-len', '8192', "--kv-cache-memory-bytes=1207959552"]
"""
COMPOSE: Final = f"""\
services:
  chat:
    image: vllm/vllm-openai
    command: >-
      --model {QWEN} --max-model-len=8192
      {KV}
"""
LIST: Final = f"""\
services:
  chat:
    image: vllm/vllm-openai
    command:
      - --model={QWEN}
      - --kv-cache-memory-bytes
      - "1207959552"
"""
FLOW: Final = (
    f'services:\n  chat: {{image: vllm/vllm-openai, command: ["--model={QWEN}", "--kv-cache-memory-bytes=1207959552"]}}\n'
)
DOCKER: Final = (
    f'FROM vllm/vllm-openai:v0.20.0\r\nCMD ["--model", "{QWEN}", \\\r\n     "--kv-cache-memory-bytes", "1207959552"]\r\n'
)
TGI: Final = "ghcr.io/huggingface/text-generation-inference:3.3.7"
VALUES: Final = f"""\
servingEngineSpec:
  modelSpec:
  - name: chat
    modelURL: {QWEN}
    requestGPU: 1
    vllmConfig:
      maxModelLen: 8192  # tokens
      kvCacheMemoryBytes: 1207959552
"""

IN_ENV: Final = f"""\
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai
    env: [{{name: LEN, value: "8192"}}]
    args: ["--model={QWEN}", "--max-model-len=$(LEN)", "--kv-cache-memory-bytes=1207959552"]
  - image: vllm/vllm-openai
    env:
    - name: LEN
      value: '8192'
    command: [sh, -c, "exec vllm serve {QWEN} --max-model-len $LEN {KV}"]
"""
DEFAULT_IN_QUOTES: Final = f"""\
services:
  a: {{image: vllm/vllm-openai, command: [{QWEN}, {KV.replace(" ", "=")}, '--kv-cache-dtype=${{CACHE:-auto}}', --max-model-len, "${{LEN:-8192}}"]}}
"""
MERGED: Final = f"""\
x-base: &base
  image: vllm/vllm-openai
  command:
  - {QWEN}
  - {KV.replace(" ", "=")}
  - --kv-cache-dtype=${{CACHE:-auto}}
  - --max-model-len=8192
services:
  a:
    <<: *base
  b:
    image: vllm/vllm-openai
    <<: *base
"""
ANCHORED: Final = f"""\
services:
  a: {{image: vllm/vllm-openai, command: [{QWEN}, "{KV.replace(" ", "=")}", '--kv-cache-dtype=${{CACHE:-auto}}', --max-model-len, &n '8192']}}
  b: {{image: vllm/vllm-openai, command: [openai/gpt-oss-20b, --max-model-len, *n, "{KV.replace(" ", "=")}"]}}
"""


@pytest.mark.parametrize(
    ("name", "text", "old", "new"),
    [
        ("a.sh", SHELL, "  --max-model-len 8192 \\", f"  --max-model-len {LONGEST} \\"),
        ("a.sh", f"bash -c 'vllm serve {QWEN} --max-model-len 8K {KV} 2>&1 | tee log'\n", "8K", LONGEST),
        ("a.sh", f'A=({KV} --max-model-len 8192)\nvllm serve {QWEN} "${{A[@]}}"\n', "8192", LONGEST),
        ("a.yaml", KUBERNETES, "'8192'", f"'{LONGEST}'"),
        ("a.yaml", COMPOSE, "=8192", f"={LONGEST}"),
        ("a.yaml", VALUES, "8192  #", f"{LONGEST}  #"),
        ("a.service", f"[Service]\nExecStart=/opt/vllm serve {QWEN} \\\n --max-model-len 8192 {KV}\n", "8192", LONGEST),
        # The value of a variable is changed where the text sets it.
        ("a.sh", f"LEN=8192\nvllm serve {QWEN} --max-model-len $LEN {KV}\n", "LEN=8192", f"LEN={LONGEST}"),
        ("a.sh", f'export LEN="8192"\nA=${{LEN}}\nvllm serve {QWEN} --max-model-len=$A {KV}\n', '"8192"', f'"{LONGEST}"'),
        ("a.sh", f"A='--max-model-len 8192 {KV}'\nvllm serve {QWEN} $A\n", "8192", LONGEST),
        ("a.yaml", IN_ENV, "8192", LONGEST),
        ("a.service", f'[Service]\nEnvironment="A=1" LEN=8192\nExecStart=vllm serve {QWEN} --max-model-len ${{LEN}} {KV}\n', "8192", LONGEST),
        ("Dockerfile", f"FROM vllm/vllm-openai:v0.20.0\nENV A=1 \\\n    LEN=8192\nENTRYPOINT vllm serve {QWEN} --max-model-len $LEN {KV}\n", "8192", LONGEST),
        # A flag that is not there yet comes behind the others, written as they are.
        ("a.sh", f"vllm serve {QWEN} {KV} > log &\n", KV, f"{KV} --max-model-len {LONGEST}"),
        ("a.sh", f"vllm serve {QWEN} \\\n    {KV}\n", KV, f"{KV} \\\n    --max-model-len {LONGEST}"),
        ("a.yaml", LIST, '"1207959552"', f'"1207959552"\n      - --max-model-len\n      - "{LONGEST}"'),
        ("a.yaml", FLOW, '1207959552"', f'1207959552", "--max-model-len={LONGEST}"'),
        ("Dockerfile", DOCKER, '"1207959552"', f'"1207959552", \\\r\n     "--max-model-len", "{LONGEST}"'),
    ],
)  # fmt: skip
def test_a_change_in_the_spelling_of_the_text(
    name: str, text: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Shown as a diff, nothing written; written with --write, after which the check holds."""
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.write_bytes(text.encode())
    wanted = text.replace(old, new)
    status, out, err = run(capsys, "check", name, "--fix")

    assert (status, path.read_bytes()) == (1, text.encode()), err
    lines = unified_diff(text.splitlines(keepends=True), wanted.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    assert out.splitlines() == "".join(lines).splitlines()
    assert f"--max-model-len {LONGEST}" in err
    assert "Nothing is changed without --write." in err

    status, _, err = run(capsys, "check", name, "--fix", "--write")
    assert (status, path.read_bytes()) == (0, wanted.encode())
    assert f"wrote {name}." in err
    assert run(capsys, "check", name, "--fix")[:2] == (0, run(capsys, "check", name)[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"LEN=8192\nvllm serve {QWEN} --max-model-len $LEN {HELD} & vllm serve {QWEN} --max-model-len $LEN {HELD} --port 2", "would change too"),
        (f"LEN=8192\nvllm serve {QWEN} --max-model-len $LEN --max-num-batched-tokens $LEN {HELD}\n", "more of the server would change"),
        (f'LEN=8192\nA="--max-model-len $LEN {HELD}"\nvllm serve {QWEN} $A\n', "is a part of A in line 2"),
        (f"vllm serve {QWEN} --max-model-len ${{LEN:-8192}} {HELD}\n", f"stands in '${{LEN:-8192}}': set LEN={LONGEST}, or change that default"),
        (DEFAULT_IN_QUOTES, f"stands in '${{LEN:-8192}}': set LEN={LONGEST}, or change that default"),
        (ANCHORED, "stands in the anchor &n in line 2."),
        (MERGED, "stands in the anchor &base in line 1."),
        (MERGED.replace("<<: *base", "command: *words").replace("command:\n", "command: &words\n"), "stands in the anchor &words in line 3."),
        (f"services:\n  a: {{image: 'vllm/vllm-openai:{{{{ .tag }}}}', command: '{QWEN} --max-model-len 8192 {HELD}'}}\n", "beside a template"),
        (f'A=({HELD} --max-model-len 8192)\nvllm serve {QWEN} "${{A[@]}}" &\nvllm serve {QWEN} "${{A[@]}}" --port 2\n', "would change too"),
    ],
    ids=["a variable of two", "a variable twice", "a variable of a variable", "a default", "a default in quotes", "an anchor", "an anchor of a service", "an anchor of a list", "a template", "an array"],
)  # fmt: skip
def test_no_safe_change(text: str, said: str, tmp_path: Path, capsys: Capture) -> None:
    """What a variable or an anchor says, and what another server reads too: nothing is written, and the reason is named."""
    path = tmp_path / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), "--fix", "--write")

    assert (status, path.read_text(encoding="utf-8")) == (1, text)
    assert "no safe change: " in err
    assert said in err


@pytest.mark.parametrize(
    "text",
    [
        f"LEN=8192\nvllm serve {QWEN} --max-model-len $LEN {KV} &\nvllm serve {QWEN} --max-model-len $LEN {KV} --port 2 --kv-cache-dtype fp8\n",
        f"vllm serve {QWEN} --max-model-len ${{LEN:-8192}} {KV}\n",
        (
            f"services:\n  a: {{image: vllm/vllm-openai, command: [{QWEN}, {KV.replace(' ', '=')}, --max-model-len, &n '8192']}}\n"
            "  b: {image: vllm/vllm-openai, command: [openai/gpt-oss-20b, --max-model-len, *n, --kv-cache-memory-bytes=9999999999]}\n"
        ),
        (
            f"x-len: &n '8192'\nservices:\n  a:\n    image: vllm/vllm-openai\n"
            f"    command: [{QWEN}, {KV.replace(' ', '=')}, --max-model-len, *n]\n"
        ),
    ],
    ids=["a variable of two", "a default", "an anchor", "a reference at the end"],
)
def test_a_change_in_place_of_one_that_is_held_elsewhere(text: str, tmp_path: Path, capsys: Capture) -> None:
    """The length is not this server's alone. A cache in eight bits holds twice as much, and is said to this server alone."""
    path = tmp_path / ("a.yaml" if text.startswith("services") else "a.sh")
    path.write_text(text, encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), "--fix", "--write")
    new = path.read_text(encoding="utf-8")

    assert (status, new.count("8192"), new.count("fp8") - text.count("fp8")) == (0, 1, 1), err
    assert run(capsys, "check", str(path))[0] == 0
    passed = re.search(r": --kv-cache-dtype fp8 \(or (?:--max-model-len |set LEN=)([0-9]+)( by hand)?\)\n", err)
    assert passed is not None, err
    # What was passed over mends it too.
    assert bool(passed[2]) is ("{LEN:-" not in text)
    path.write_text(text.replace("8192", passed[1]), encoding="utf-8")
    assert run(capsys, "check", str(path))[0] == 0


def test_what_the_file_of_variables_would_have_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Beside the change that --fix makes in its place, and where it makes none; with the tokens that each slot has then."""
    monkeypatch.chdir(tmp_path)
    env, slots = Path(".env"), LLAMA_SERVER.removeprefix("llama-server ")
    for image, command, words, wrong, said in (
        ("vllm/vllm-openai:v0.11.0", "--model Qwen/Qwen3-14B --max-model-len $A", ["--gpu", "l40s", "--users", "4"], "A=32768\n", r": --quantization fp8 \(or set A=(?P<A>\d+) in \.env\)\n"),
        ("ghcr.io/ggml-org/llama.cpp:server", f"{slots} -c $A -np $B", ["--gpu", "rtx-4070"], "A=131072\nB=4\n", r": write A=(?P<A>\d+) there, (?P<each>[\d,]+) tokens a slot\.\n"),
        ("ghcr.io/ggml-org/llama.cpp:server", f"{slots} -c $A -np $B", ["--gpu", "rtx-4070", "--users", "8"], "A=131072\nB=4\n", r": set A=(?P<A>\d+) and B=(?P<B>8) in \.env, (?P<each>[\d,]+) tokens a slot\.\n"),
    ):  # fmt: skip
        Path("compose.yaml").write_text(f"services: {{a: {{image: '{image}', command: {command}}}}}\n", encoding="utf-8")
        env.write_text(wrong, encoding="utf-8")
        _, _, err = run(capsys, "check", "compose.yaml", *words, "--fix")
        told = re.search(said, err)
        assert told is not None, err
        values = {
            **dict(line.split("=") for line in wrong.split()),
            **{name: told[name] for name in "AB" if name in told.groupdict()},
        }
        env.write_text("".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8")
        assert run(capsys, "check", "compose.yaml", *words)[0] == 0
        if "each" in told.groupdict():
            assert int(told["each"].replace(",", "")) == int(values["A"]) // int(values["B"])


def test_all_that_mends_a_server_without_flags_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """As many as the check lists, and the first of them."""
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text("mlx_lm.server --model Qwen/Qwen3-32B\n", encoding="utf-8")
    words = ["check", "a.sh", "--gpu", "m4-max-36gb", "--seq", "32k"]
    out, err = run(capsys, *words)[1], run(capsys, *words, "--fix")[2]
    first, *others = re.findall(r"(?m)^ +(?:fits with|or) (.*)", out)

    assert others
    assert f"no safe change: no flags alone do it, but any of {1 + len(others)} other changes, such as {first}" in err


@pytest.mark.parametrize(
    ("length", "slots", "words"),
    [
        ("${CHAT_LEN:-32768}", "${CHAT_SEQS:-8}", []),
        ("${CHAT_LEN:-32768}", "$CHAT_SEQS", ["--set", "CHAT_SEQS=8"]),
        ("32768", "${CHAT_SEQS:-8}", []),
        ("$CHAT_LEN", "8", ["--set", "CHAT_LEN=32768"]),
    ],
)
def test_all_that_one_edit_needs_elsewhere(
    length: str, slots: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each variable with its value, and each flag of the file, are said together. All of it done, the check holds."""
    monkeypatch.chdir(tmp_path)
    text = (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.33.0\n"
        f"    command: --model {QWEN} --max-model-len {length} --max-num-seqs {slots} "
        "--tensor-parallel-size ${CHAT_TP:-1} --data-parallel-size ${CHAT_DP:-1}\n"
        "    deploy: {resources: {reservations: {devices: [{count: 4}]}}}\n"
    )
    path = tmp_path / "compose.yaml"
    path.write_text(text, encoding="utf-8")
    asked = ["check", path.name, "--gpu", "l40s", "--seq", "40k", "--users", "24"]
    out, err = run(capsys, *asked, *words)[1], run(capsys, *asked, *words, "--fix")[2]
    told = dict(re.findall(r"(CHAT_[A-Z]+)=(\w+)", err.partition(": set ")[2]))
    for flag, value in re.findall(r"(--\S+) ([^\s.]+)", err.partition("and write ")[2]):
        text = re.sub(rf"{flag} \S+", "", text).replace("command:", f"command: {flag} {value}")
    path.write_text(text, encoding="utf-8")

    assert told, err
    for name in told:
        assert f"{name} of --set" in out or f"default of {name}" in out
    assert run(capsys, *asked, *[word for name, value in told.items() for word in ("--set", f"{name}={value}")])[0] == 0, err


def test_a_variable_of_the_text_beside_one_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """What is to be written in the file is said with the variable that has it there, and its line. All of it done, the check holds."""
    monkeypatch.chdir(tmp_path)
    text = (
        f"LEN=32768\nSEQS=8\ndocker run --gpus 4 vllm/vllm-openai:v0.33.0 --model {QWEN} --max-model-len $LEN --max-num-seqs $SEQS"
        " --tensor-parallel-size ${TP:-1} --data-parallel-size ${DP:-1}\n"
    )
    Path("a.sh").write_text(text, encoding="utf-8")
    asked = ["check", "a.sh", "--gpu", "l40s", "--seq", "40k", "--users", "24"]
    err = run(capsys, *asked, "--fix")[2]
    outside, _, inside = err.partition(": set ")[2].partition(", and write ")
    written, lines = re.findall(r"--\S+ (\d+) \((\w+) in line (\d+)\)", inside), text.splitlines()
    for value, name, line in written:
        assert lines[int(line) - 1].startswith(f"{name}=")
        lines[int(line) - 1] = f"{name}={value}"
    Path("a.sh").write_text("\n".join(lines), encoding="utf-8")

    assert {name for _, name, _ in written} == {"LEN", "SEQS"}, err
    assert run(capsys, *asked, *[word for each in outside.split(" and ") for word in ("--set", each)])[0] == 0, err


def test_a_value_beside_a_default(tmp_path: Path, capsys: Capture) -> None:
    """It is no default: it is changed where it stands."""
    path, text = tmp_path / "a.sh", f'A="--max-model-len 8192 --port ${{PORT:-80}} {KV}"\nvllm serve {QWEN} $A\n'
    path.write_text(text, encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), "--fix", "--write")

    assert (status, path.read_text(encoding="utf-8")) == (0, text.replace("8192", LONGEST)), err


def test_a_reason_with_a_command(tmp_path: Path, capsys: Capture) -> None:
    """A reason may be cut, and the command at its end stays whole: it can be copied."""
    path = tmp_path / "compose.yaml"
    path.write_text(
        f"services:\n  chat: {{image: 'vllm/vllm-openai:v0.33.0', command: --model {QWEN} --max-model-len 8192 --max-num-seqs 8}}\n",
        encoding="utf-8",
    )
    words = ["check", str(path), "--gpu", "l4", "--seq", "40k", "--users", "1000"]
    out, err = run(capsys, *words)[1], run(capsys, *words, "--fix")[2]
    [command] = re.findall(r"Search further: (kvplan recommend .*)", out)

    assert err.splitlines()[0].endswith(f"Search further: {command}")


def test_several_changes_of_several_servers(tmp_path: Path, capsys: Capture) -> None:
    """A layout with more GPUs than there are, and then a length that they do not hold."""
    path = tmp_path / "compose.yaml"
    gpus = "deploy: {resources: {reservations: {devices: [{count: 1}]}}}"
    path.write_text(
        f"services:\n  a: {{image: vllm/vllm-openai, command: --model {QWEN} -tp 2 --max-model-len 8192 {KV}, {gpus}}}\n"
        f"  b: {{image: vllm/vllm-openai, command: --model {QWEN} --max-model-len 100000 {KV}}}\n",
        encoding="utf-8",
    )
    status, out, _ = run(capsys, "check", str(path), "--fix", "--write", "--json")

    [fix] = json.loads(out)["fixes"]
    assert (status, fix["written"], fix["reasons"]) == (0, True, [])
    assert [each.partition(": ")[2] for each in fix["changes"]] == [
        f"--tensor-parallel-size 1 --max-model-len {LONGEST}",
        f"--max-model-len {LONGEST} (100,000 -> {int(LONGEST):,} tokens)",
    ]
    assert f"-tp 1 --max-model-len {LONGEST} " in path.read_text(encoding="utf-8")


def test_what_does_not_mend_a_server(tmp_path: Path, capsys: Capture) -> None:
    """More GPUs than the text gives it, also on other nodes: nothing is changed by half."""
    path = tmp_path / "serve.sh"
    for gpus, more in ((1, ""), (2, "-tp 2 "), (2, "-tp 2 --nnodes 2 ")):
        text = f"docker run --gpus {gpus} vllm/vllm-openai --model meta-llama/Llama-3.3-70B-Instruct {more}--cpu-offload-gb 0\n"
        path.write_text(text, encoding="utf-8")
        status, out, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix")
        assert (status, path.read_text(encoding="utf-8")) == (1, text)
        assert "tensor-parallel-size" not in "".join(line for line in out.splitlines() if line.startswith("+")), err


@pytest.mark.parametrize(
    "text",
    [
        f"services:\n  a:\n    image: {TGI}\n    environment:\n      MODEL_ID: {QWEN}\n      MAX_TOTAL_TOKENS: 40000\n",
        f"services:\n  a:\n    image: {TGI}\n    environment: [MODEL_ID={QWEN}, 'MAX_TOTAL_TOKENS=40000']\n",
        f"kind: Pod\napiVersion: v1\nspec:\n  containers:\n  - image: {TGI}\n    env:\n    - {{name: MODEL_ID, value: {QWEN}}}\n    - {{name: MAX_TOTAL_TOKENS, value: '40000'}}\n",
    ],
    ids=["a mapping", "a list", "a pod"],
)
def test_a_setting_in_a_variable_of_a_container(text: str, tmp_path: Path, capsys: Capture) -> None:
    """It is changed where it stands."""
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    status, said, _ = run(capsys, "check", str(path), "--gpu", "l4")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "40000" in line)
    assert (status, f"(MAX_TOTAL_TOKENS in line {line}" in said) == (1, True)
    status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix", "--write")
    [length] = re.findall(r"--max-total-tokens (\d+)", err)

    assert (status, path.read_text(encoding="utf-8")) == (0, text.replace("40000", length))


OLLAMA: Final = "OLLAMA_CONTEXT_LENGTH"
BACKEND: Final = "VLLM_ATTENTION_BACKEND"
FP8: Final = f"--model {QWEN} --max-model-len 8192 --kv-cache-dtype fp8"


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        # Of 8,192 tokens those that users send are to be allowed.
        (f"services:\n  a:\n    image: ollama/ollama\n    environment: [{OLLAMA}=8192]\n", "8192", "16384"),
        (f"services:\n  a:\n    image: ollama/ollama\n    environment:\n      {OLLAMA}: '8192'\n", "8192", "16384"),
        (f"#!/bin/sh\nexport {OLLAMA}=8192\nollama serve\n", "8192", "16384"),
        ("FROM qwen3:8b\nPARAMETER num_ctx 8192\n", "8192", "16384"),
        # FlashAttention 2 keeps no fp8 cache on an L4.
        (
            f"kind: Pod\napiVersion: v1\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.11.0\n    env:\n    - {{name: {BACKEND}, value: FLASH_ATTN}}\n"
            f"    args: [{', '.join(FP8.split())}]\n".replace(" 8192", " '8192'"),
            "FLASH_ATTN",
            "FLASHINFER",
        ),
    ],
    ids=["a list", "a mapping", "a script", "a Modelfile", "a pod"],
)
def test_a_variable_of_the_engine_is_changed_where_it_stands(
    text: str, old: str, new: str, tmp_path: Path, capsys: Capture
) -> None:
    """The check holds then, and nothing else is another."""
    path = tmp_path / ("Modelfile" if text.startswith("FROM") else "a.sh" if text.startswith("#!") else "a.yaml")
    path.write_text(text, encoding="utf-8")
    words = [str(path), "--gpu", "l4", *(["--set", f"model={QWEN}", "--seq", "16k"] if new.isdecimal() else [])]
    assert run(capsys, "check", *words)[0] == 1
    status, _, err = run(capsys, "check", *words, "--fix", "--write")

    assert (status, path.read_text(encoding="utf-8")) == (0, text.replace(old, new)), err


def test_a_variable_that_is_not_there_is_added_by_hand(tmp_path: Path, capsys: Capture) -> None:
    """Once it is, the check holds."""
    path, text = tmp_path / "a.yaml", f"services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: {FP8}\n"
    path.write_text(text, encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix", "--write")
    by_hand = re.search(rf"no safe change: add {BACKEND}=(\w+) to its environment by hand", err)

    assert (status, path.read_text(encoding="utf-8")) == (1, text)
    assert by_hand is not None
    path.write_text(f"{text}    environment: {{{BACKEND}: {by_hand[1]}}}\n", encoding="utf-8")
    assert run(capsys, "check", str(path), "--gpu", "l4")[0] == 0


def test_how_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Whole, with its mode and its mark; never through a link, and never over what somebody else wrote meanwhile."""
    monkeypatch.chdir(tmp_path)
    path = Path("serve.sh")
    path.write_bytes(b"\xef\xbb\xbf" + SHELL.encode())
    path.chmod(0o754)
    Path("link.sh").symlink_to(path)
    status, _, err = run(capsys, "check", "link.sh", "--fix", "--write")
    assert (status, path.read_bytes()[3:]) == (74, SHELL.encode())
    assert "is a link" in err

    assert run(capsys, "check", "serve.sh", "--fix", "--write")[0] == 0
    assert path.read_bytes() == b"\xef\xbb\xbf" + SHELL.replace("8192 \\", f"{LONGEST} \\").encode()
    assert path.stat().st_mode & 0o777 == 0o754
    assert sorted(each.name for each in Path().iterdir()) == ["link.sh", "serve.sh"]

    path.write_text(SHELL, encoding="utf-8")
    from hwcalc.check import mend

    real = mend.edited

    def meanwhile(*given: object) -> str:
        path.write_text("# mine\n", encoding="utf-8")
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(mend, "edited", meanwhile)
    status, _, err = run(capsys, "check", "serve.sh", "--fix", "--write")
    assert (status, path.read_text(encoding="utf-8")) == (74, "# mine\n")
    assert "has changed since it was read" in err


@pytest.mark.parametrize("end", ["\n", "\r\n", "\f\r\n"])
def test_the_diff_is_a_patch(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Git applies it, whatever the lines of the file end with."""
    monkeypatch.chdir(tmp_path)
    # The form feed stands in the comment at the top.
    Path("serve.sh").write_bytes(("# serve" + end + SHELL.replace("\n", end.removeprefix("\f"))).encode())
    _, out, _ = run(capsys, "check", "serve.sh", "--fix")
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    subprocess.run([git, "apply", "-"], input=out.encode(), check=True)

    assert f"--max-model-len {LONGEST} \\" in Path("serve.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--write"], "Add: --fix"), (["--fix", "--format", "sarif"], "--fix shows a diff, and no sarif")],
)
def test_what_is_wrong(words: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    """With what to type instead."""
    path = tmp_path / "serve.sh"
    path.write_text(SHELL, encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), *words)

    assert status == 2
    assert said in err


def test_the_diff_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """``-o FILE`` has what standard output would have, so that git applies it; a file with a format has the findings."""
    monkeypatch.chdir(tmp_path)
    Path("serve.sh").write_text(SHELL, encoding="utf-8")
    shown = run(capsys, "check", "serve.sh", "--fix")
    status, out, err = run(capsys, "check", "serve.sh", "--fix", "-o", "x.diff", "-o", "markdown=x.md")

    assert (status, out, err) == (shown[0], "", shown[2])
    assert Path("x.diff").read_text(encoding="utf-8") == shown[1]
    assert "does not fit" in Path("x.md").read_text(encoding="utf-8")


def test_the_reason_is_the_gpus_of_the_text(tmp_path: Path, capsys: Capture) -> None:
    """Weights of 70e9 bytes even in fp8 take more than the text's two GPUs of 24 GB, and lie in four or eight."""
    path = tmp_path / "a.yaml"
    gpus = "deploy: {resources: {reservations: {devices: [{count: 2}]}}}"
    model = "--model meta-llama/Llama-3.3-70B-Instruct --max-model-len 8192 --quantization fp8"
    path.write_text(f"services:\n  a: {{image: vllm/vllm-openai, command: {model}, {gpus}}}\n", encoding="utf-8")
    status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix")

    assert status == 1
    assert re.search(r"a: no safe change: --tensor-parallel-size (\d+) .*takes (\d+) GPUs, and the file gives it 2\.", err)


@pytest.mark.parametrize(("seq", "mended"), [("16k", True), ("32k", False)])
def test_a_context_that_pushes_layers_to_the_host_is_no_mend(seq: str, mended: bool, tmp_path: Path, capsys: Capture) -> None:
    """Qwen3-8B in Q4_K_M takes 4.7 GiB, and 144 KiB a token: four times 16k beside it are 13.7 of 24 GiB, four times 32k are 22.7."""
    path = tmp_path / "serve.sh"
    path.write_text("llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 32768\n", encoding="utf-8")
    _, out, said = run(capsys, "check", str(path), "--gpu", "rtx-4090", "--seq", seq, "--users", "4", "--fix")

    # As it is, or else with a cache of half the bytes, which keeps all layers on the card.
    [line] = [each for each in out.splitlines() if each.startswith("+llama-server")]
    assert line.endswith("-c 65536" if mended else "-c 131072 -ctk q8_0 -ctv q8_0"), said


def test_a_flag_of_an_array_of_the_shell_stands_in_the_array(tmp_path: Path, capsys: Capture) -> None:
    """Behind the command, on a line of its own, the shell would run it."""
    path = tmp_path / "serve.sh"
    text = 'args=(\n  --model Qwen/Qwen3-32B\n  --max-model-len 8192\n)\nvllm serve "${args[@]}" "$@"\n'
    path.write_text(text, encoding="utf-8")
    run(capsys, "check", str(path), "--gpu", "l40s", "--fix", "--write")
    now = path.read_text(encoding="utf-8")

    assert now.endswith(')\nvllm serve "${args[@]}" "$@"\n')
    assert "  --max-model-len 8192\n  --" in now


def test_a_text_without_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A size with which it has GPUs enough is no safe change as long as nobody knows whether it fits: the reason is the command that says it."""
    monkeypatch.chdir(tmp_path)
    Path("pod.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: chat}, spec: {containers: [{name: chat, image: 'vllm/vllm-openai:v0.11.0', "
        f"args: [--model, {QWEN}, --max-model-len, '8192', --tensor-parallel-size, '4'], "
        "resources: {limits: {nvidia.com/gpu: 2}}}]}}",
        encoding="utf-8",
    )
    status, out, said = run(capsys, "check", "pod.yaml", "--fix")
    command = re.search(r"kvplan (check pod.yaml --gpu \S+)\n", said)

    assert (status, "---" in out) == (1, False)
    assert "no safe change: with --tensor-parallel-size 2 whether it fits is not known" in said
    assert command is not None
    assert "--tensor-parallel-size, '2'" in run(capsys, *command[1].split(), "--fix")[1]


def test_a_share_of_the_memory_is_raised_to_the_default(tmp_path: Path, capsys: Capture) -> None:
    """In vLLM's words, and tried: 0.9 of the GPU until 0.20, 0.92 since."""
    path = tmp_path / "a.yaml"
    for release, share in (("v0.11.0", "0.9"), ("v0.20.0", "0.92")):
        text = (
            f"services: {{a: {{image: 'vllm/vllm-openai:{release}', command: --model {QWEN} --gpu-memory-utilization 0.75}}}}\n"
        )
        path.write_text(text.replace("0.75", "0.75 --max-model-len 8192"), encoding="utf-8")
        _, found, _ = run(capsys, "check", str(path), "--gpu", "l4", "--json")
        status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix", "--write")

        flags = [edit["flags"] for edit in json.loads(found)["checks"][0]["requirements"][0]["edits"]]
        assert f"--gpu-memory-utilization {share}" in flags
        assert (status, f"a: --gpu-memory-utilization {share}" in err) == (0, True), err


def test_a_change_says_what_it_takes(tmp_path: Path, capsys: Capture) -> None:
    """More GPUs, of a text that names no number of them, and most of a length: nobody expects that of a flag."""
    path = tmp_path / "serve.sh"
    # 33 GB of weights are more than an L4 has, and 288 MiB are 2,048 tokens of 144 KiB.
    for words, model, said in (
        (
            "-tp 1 --max-model-len 8192",
            "Qwen/Qwen3-32B --quantization fp8 --kv-cache-dtype fp8",
            r"--tensor-parallel-size (\d+)\S* .*\(1 -> \1 GPUs\)",
        ),
        ("--max-model-len 8192 --kv-cache-memory-bytes 301989888", QWEN, r"--max-model-len (\d+) \(8,192 -> ([\d,]+) tokens\)"),
    ):
        path.write_text(f"vllm serve {model} {words}\n", encoding="utf-8")
        status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix", "--write")
        told = re.search(said, err)
        assert (status, told is not None) == (0, True), err


def test_a_size_that_does_not_start_becomes_one_that_takes_no_more_gpus(tmp_path: Path, capsys: Capture) -> None:
    """32 heads are cut into 2 or 4, not into 3: two L4 hold Qwen3-8B, whose weights of 16.4 GB one holds too, but not 32,768 tokens beside them."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} -tp 3 --max-model-len 32768\n", encoding="utf-8")
    _, found, _ = run(capsys, "check", str(path), "--gpu", "l4", "--json")
    sizes = [edit["told"]["--tensor-parallel-size"] for edit in json.loads(found)["checks"][0]["requirements"][0]["edits"]]
    status, _, err = run(capsys, "check", str(path), "--gpu", "l4", "--fix", "--write")

    assert sizes[:3] == ["2", "4", "8"]
    assert (status, "-tp 2 " in path.read_text(encoding="utf-8"), "GPUs" in err) == (0, True, False)


def test_a_cut_beside_a_size_is_said(tmp_path: Path, capsys: Capture) -> None:
    """From 131,072 tokens to the 40,960 of the model, where the size does not start either."""
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-14B -tp 3 --max-model-len 131072\n", encoding="utf-8")
    _, _, err = run(capsys, "check", str(path), "--gpu", "l40s", "--fix")
    assert "(131,072 -> 40,960 tokens)" in err
