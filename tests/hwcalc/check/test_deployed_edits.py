"""What ``kvplan check`` offers of lengths, growth and variables of a deployment: applied, it does what it says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hwcalc.check.edits import POD, TWO, applied
from tests.hwcalc.check.files import LLAMA_SERVER, checked
from tests.hwcalc.command import QWEN, Capture, run


def test_a_length_that_the_engine_refuses(tmp_path: Path, capsys: Capture) -> None:
    """A single finding with the largest length that vLLM takes (40,960 by the config) and that the GPU holds; FAIL does not stand beside "fits"."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 200000\n", encoding="utf-8")
    _, found = checked(capsys, str(path), "--gpu", "h100")
    [large] = found["checks"][0]["requirements"]
    _, found = checked(capsys, str(path), "--gpu", "l4")
    [small] = found["checks"][0]["requirements"]

    assert (large["name"], [edit["flags"] for edit in large["edits"]]) == ("length", ["--max-model-len 40960"])
    assert "With 40,960 tokens: does not fit" in small["message"]
    assert applied(small["edits"], path, ["--gpu", "l4"], capsys) == 4

    path.write_text(f"vllm serve {QWEN} --max-model-len 200000\n", encoding="utf-8")
    _, out, _ = run(capsys, "check", str(path), "--gpu", "h100")
    assert out.splitlines()[0] == f"FAIL     vllm {QWEN}"
    status, found = checked(capsys, str(path))
    assert (status, found["checks"][0]["requirements"][0]["edits"][0]["flags"]) == (2, "--max-model-len 40960")

    path.write_text(f"python -m sglang.launch_server --model-path {QWEN} --context-length 50000\n", encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l40s")[1]["checks"][0]["requirements"]
    assert (item["name"], [edit["flags"] for edit in item["edits"]]) == ("length", ["--context-length 40960"])
    assert "SGLang refuses that without SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1" in item["message"]


@pytest.mark.parametrize("stretched", ["", ' --hf-overrides \'{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}\''])
def test_a_load_beyond_the_model_is_offered_what_the_model_has(stretched: str, tmp_path: Path, capsys: Capture) -> None:
    """40,960 tokens are the maximum of Qwen3-8B by its config: no longer length is offered but where the text stretches the model."""
    path = tmp_path / "serve.sh"
    path.write_text(f"LEN=16384\nvllm serve {QWEN} --max-model-len $LEN{stretched}\n", encoding="utf-8")
    item, *_ = checked(capsys, str(path), "--gpu", "h100", "--seq", "64k")[1]["checks"][0]["requirements"]
    told = [(edit["flags"] or edit["yaml"]).partition(" in the file")[0] for edit in item["edits"]]

    assert item["name"] == "length"
    assert told[0] == f"--max-model-len {65_536 if stretched else 40_960}"
    assert ("the model's maximum is 40,960" in item["message"]) is (not stretched)


def test_every_edit_of_a_length_that_grew_holds_with_what_stands_beside_it(tmp_path: Path, capsys: Capture) -> None:
    """From 32,768 tokens to 65,536, of which the model has 40,960: 8,192 more are a quarter more of the cache. --fix takes what passes as it is."""
    path, before = tmp_path / "serve.sh", tmp_path / "before.json"

    def of(length: str, *words: str) -> tuple[int, dict[str, Any]]:
        path.write_text(f"vllm serve {QWEN} --max-model-len {length}\n", encoding="utf-8")
        return checked(capsys, str(path), "--gpu", "h100", *words)

    before.write_text(json.dumps(of("32768")[1]), encoding="utf-8")
    against = ("--baseline", str(before))
    for allowed in ("5%", "0%"):
        growth = ("--max-growth", allowed)
        status, found = of("65536", *against, *growth)
        edits = [edit for item in found["checks"][0]["requirements"] for edit in item["edits"]]
        told = {edit["told"].get("--max-model-len", "65536"): edit for edit in edits}
        # To allow the growth alone mends nothing.
        assert (status, told["40960"]["accepting"], "65536" in told) == (1, "--max-growth 25%", False)
        for length, edit in told.items():
            assert of(length, *against, *(edit["accepting"].split() or growth))[0] == 0, edit
        of("65536")
        status, _, said = run(capsys, "check", str(path), "--gpu", "h100", *against, *growth, "--fix", "--write")
        assert (status, int(path.read_text(encoding="utf-8").split()[-1])) == (0, 32_768), said


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768", {"gpu": "l4", "users": "12", "seq": "16k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768", {"gpu": "l4", "users": "4"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768 --max-num-seqs 64", {"gpu": "l4", "users": "50", "seq": "16k"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768 --kv-cache-dtype fp8", {"gpu": "l4", "users": "12", "seq": "16k"}),
        ("vllm serve Qwen/Qwen3-8B --quantization fp8 --max-model-len 32768", {"gpu": "l4", "users": "20", "seq": "32k"}),
        ("vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2", {"gpu": "h100", "users": "50", "seq": "16k"}),
        # Its own tp stays, unless an edit says another: 8 replicas of 2 GPUs, each for 8 requests, hold 64.
        (
            "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 8",
            {"gpu": "a100-80gb", "users": "40", "seq": "32k"},
        ),
        # 32 heads are not cut into three.
        ("vllm serve Qwen/Qwen3-8B --max-model-len 16384 --tensor-parallel-size 3", {"gpu": "l4"}),
        ("vllm serve Qwen/Qwen3-8B", {"gpu": "rtx-4090"}),
        ("vllm serve Qwen/Qwen3-32B --max-model-len 32768", {"gpu": "1xl4", "users": "8"}),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 16384", {"gpu": "l40s", "seq": "32k"}),
        # Beyond the model, whose maximum is 40,960.
        ("vllm serve Qwen/Qwen3-8B --max-model-len 16384", {"gpu": "l40s", "seq": "64k"}),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 16384", {"gpu": "l40s", "seq": "64k"}),
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
        # What the engine is told stands in its flags, name by name.
        assert shlex.split(edit["flags"]) == [word for pair in edit["told"].items() for word in pair if word]
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


IN_SHELL: Final = f"""\
services:
  a:
    image: vllm/vllm-openai
    environment:
      LEN: 40960
    entrypoint: [sh, -c]
    command: ['vllm serve {QWEN} --max-model-len $$LEN']
"""


@pytest.mark.parametrize(
    "text",
    [
        f"LEN=40960\nvllm serve {QWEN} \\\n  --max-model-len $LEN\n",
        f"A='--max-model-len 40960'\n\nvllm serve {QWEN} $A\n",
        f"# 40960\nexport LEN=${{LEN:-40960}}\nvllm serve {QWEN} --max-model-len=$LEN\n",
        IN_SHELL,
        # A value that is given outside has its place at the flag. A cache in eight bits has none of its own either.
        f"LENGTH=40960\nvllm serve {QWEN} --max-model-len $LEN --kv-cache-memory-bytes 4G --kv-cache-dtype ${{CACHE:-auto}}\n",
    ],
)
def test_a_finding_stands_where_a_variable_is_set(text: str, tmp_path: Path, capsys: Capture) -> None:
    """That is the line to be edited, and the edit names the variable."""
    path = tmp_path / ("a.yaml" if text.startswith("services") else "a.sh")
    path.write_text(text, encoding="utf-8")
    typed = ("--set", "LEN=40960") if "LENGTH" in text else ()
    [item] = checked(capsys, str(path), "--gpu", "l4", *typed)[1]["checks"][0]["requirements"]
    lines, edit = text.splitlines(), item["edits"][0]

    assert ("$LEN" if typed else "40960") in lines[item["line"] - 1]
    assert edit["flags"].startswith("--max-model-len ")
    where = "LEN of --set" if typed else f"{'A' if 'A=' in text else 'LEN'} in line {item['line']}"
    assert edit["effect"].partition("; ")[0] == where
    _, _, err = run(capsys, "check", str(path), "--gpu", "l4", *typed, "--fix")
    assert (f"the value of --max-model-len is {where}" in err) is bool(typed)


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


def test_a_load_is_lowered_for_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Qwen3-8B takes 40,960 tokens by its config, Llama 3.1 131,072: the edit is of the one that cannot, with all that was typed for both."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(re.sub(" --max-model-len [0-9]+", "", TWO), encoding="utf-8")
    typed = ["compose.yaml", "--gpu", "h100", "--set", "big.gpu=h200", "--seq", "64k"]
    status, found = checked(capsys, *typed)
    small, big = found["checks"]
    [item] = small["requirements"]

    assert (status, small["status"], big["status"], item["name"]) == (1, "fail", "pass", "length")
    assert "maximum of 40,960" in item["message"]
    [command] = [edit["yaml"] for edit in item["edits"]]
    again, offered = checked(capsys, *shlex.split(command)[2:])
    plans = [check["plan"] for check in offered["checks"]]
    assert (again, [plan["seq"] for plan in plans]) == (0, [40_960, 65_536]), command
    assert [plan["fit"]["gpu"].partition("-")[0] for plan in plans] == ["h100", "h200"]

    users = checked(capsys, *typed, "--set", "small.seq=16k", "--set", "small.users=9")[1]["checks"]
    assert [(check["plan"]["seq"], check["plan"]["batch"]) for check in users] == [(16_384, 9), (65_536, 1)]
    notes = checked(capsys, *typed, "--set", "smal.seq=16k")[1]["files"][0]["notes"]
    assert ["no server is called smal" in note["message"] for note in notes] == [True]


def test_who_else_has_the_word_that_an_edit_changes(tmp_path: Path, capsys: Capture) -> None:
    """A variable of two servers, and the labels of one pod: an edit for one of them changes the other, and says so."""
    script, pod = tmp_path / "two.sh", tmp_path / "pod.yaml"
    script.write_text(f"LEN=40960\nvllm serve {QWEN} --max-model-len $LEN\nvllm serve Qwen/Qwen3-4B --max-model-len $LEN\n")
    first, second = checked(capsys, str(script), "--gpu", "l4")[1]["checks"]
    edits = [edit for item in first["requirements"] for edit in item["edits"] if "--max-model-len" in edit["told"]]
    assert edits
    assert all(f"LEN in line 1, also of {second['name']}" in edit["effect"] for edit in edits)

    container = "{{name: {name}, image: 'vllm/vllm-openai:v0.11.0', args: [--model, {model}], resources: {{limits: {{nvidia.com/gpu: 1}}}}}}"
    containers = [container.format(name="large", model="Qwen/Qwen3-32B"), container.format(name="small", model="Qwen/Qwen3-4B")]
    pod.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}, "
        f"containers: [{', '.join(containers)}]}}}}"
    )
    large, small = checked(capsys, str(pod))[1]["checks"]
    offered = [edit for item in large["requirements"] for edit in item["edits"] if edit["settings"].get("gpu")]
    assert small["status"] == "pass"
    assert offered
    for edit in offered:
        # As nodes are labelled, and what it makes of the text holds.
        label = edit["yaml"].removesuffix(" in the file")
        assert (label.startswith("NVIDIA-"), "also of p/small" in edit["effect"]) == (True, True)
        other = tmp_path / "other.yaml"
        other.write_text(pod.read_text().replace("NVIDIA-L40S", label))
        assert checked(capsys, str(other))[1]["checks"][0]["status"] == "pass"


@pytest.mark.parametrize(
    "text", [f"vllm serve {QWEN} --max-model-len 65536", f"sglang serve --model-path {QWEN} --context-length 65536"]
)
def test_short_requests_do_not_hide_a_length_that_the_engine_refuses(text: str, tmp_path: Path, capsys: Capture) -> None:
    """Whatever users send, a server that allows more than the model's 40,960 does not start: the check and the plan of the file say so."""
    path = tmp_path / "serve.sh"
    path.write_text(text, encoding="utf-8")
    for load in ([], ["--seq", "4k"]):
        status, found = checked(capsys, str(path), "--gpu", "h100", *load)
        [item] = found["checks"][0]["requirements"]
        assert (status, item["name"]) == (1, "length")
        assert "65,536 tokens is more than the model's maximum of 40,960" in item["message"]
        assert applied(item["edits"], path, ["--gpu", "h100", *load], capsys) == 1
    assert "65,536 tokens is more than" in run(capsys, str(path), "--gpu", "h100", "--seq", "4k")[1]


def test_short_requests_do_not_hide_a_pool_that_is_too_small_for_the_model(tmp_path: Path, capsys: Capture) -> None:
    """A text that names no length allows the model's, and vLLM refuses to start with a pool that holds less. The largest length that holds is offered."""
    path, words = tmp_path / "serve.sh", ["--gpu", "l4", "--seq", "4k"]
    path.write_text(f"vllm serve {QWEN}\n", encoding="utf-8")
    status, found = checked(capsys, str(path), *words)
    [item] = found["checks"][0]["requirements"]
    length = int(item["edits"][0]["told"]["--max-model-len"])

    assert (status, "There is memory enough" in item["message"], length > 4096) == (1, False, True)
    assert applied(item["edits"], path, words, capsys) >= 3
    assert run(capsys, str(path), *words)[0] == 1
    path.write_text(f"vllm serve {QWEN} --max-model-len {length + 16}\n", encoding="utf-8")
    longer = checked(capsys, str(path), *words)[1]["checks"][0]
    # It may be expected to hold, and it is not sure.
    assert (longer["status"] == "pass") is False


def test_a_default_that_services_share_is_said_to_be_shared(tmp_path: Path, capsys: Capture) -> None:
    """${LEN:-40960} of two services is one variable of the shell that starts both."""
    path = tmp_path / "compose.yaml"
    service = "{{image: 'vllm/vllm-openai:v0.11.0', command: '--model {model} --max-model-len ${{LEN:-40960}}'}}"
    services = {name: service.format(model=model) for name, model in (("a", QWEN), ("b", "Qwen/Qwen3-4B"))}
    path.write_text("services:\n" + "".join(f"  {name}: {text}\n" for name, text in services.items()), encoding="utf-8")
    edits = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"][0]["edits"]

    assert edits[0]["effect"].startswith("default of LEN, also of b; ")


def test_a_command_for_one_file_has_what_is_said_of_its_own_servers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Copied, it holds, and no note says that anything changed nothing."""
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text(f"vllm serve {QWEN} --max-model-len 40960\n", encoding="utf-8")
    Path("b.yaml").write_text(
        f"services:\n  b: {{image: vllm/vllm-openai, command: --model {QWEN} --max-model-len 40960}}\n", encoding="utf-8"
    )
    words = ["a.sh", "b.yaml", "--set", f"vllm {QWEN}.gpu=l4", "--set", "b.gpu=l4", "--set", "b.seq=32k"]
    found = checked(capsys, *words)[1]
    for check, other in zip(found["checks"], ("b.", "vllm "), strict=True):
        commands = [
            edit["yaml"] for item in check["requirements"] for edit in item["edits"] if edit["yaml"].startswith("kvplan check")
        ]
        assert commands
        for command in commands:
            status, alone = checked(capsys, *shlex.split(command)[2:])
            assert (status, alone["files"][0]["notes"], other in command.partition("--set")[2]) == (0, [], False), command


def test_what_has_grown_stands_at_the_flag_that_was_changed(tmp_path: Path, capsys: Capture) -> None:
    """Twice the length has twice the cache."""
    path, before = tmp_path / "pod.yaml", tmp_path / "before.json"
    text = POD.format(args=f"'--model', {QWEN},\n      '--max-model-len', '8192'", gpus=1)
    path.write_text(text, encoding="utf-8")
    before.write_text(run(capsys, "check", str(path), "--gpu", "h100", "--json")[1], encoding="utf-8")
    path.write_text(text.replace("8192", "16384"), encoding="utf-8")
    found = checked(capsys, str(path), "--gpu", "h100", "--baseline", str(before))[1]["checks"][0]
    grown = [item for item in found["requirements"] if item["name"].startswith("growth") and not item["holds"]]

    assert grown
    assert all("--max-model-len" in text.splitlines()[item["line"] - 1] for item in grown)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # No eight L4 hold 400 sequences of 4.5 GiB, and no eight L40S 200 of 5 GiB.
        (f"vllm serve {QWEN} --max-model-len 32768 --max-num-seqs 16", ["--gpu", "l4", "--users", "400"]),
        (
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 --max-num-seqs 4",
            ["--gpu", "l40s", "--users", "200", "--seq", "40k"],
        ),
    ],
)
def test_the_command_that_searches_further_runs(text: str, words: list[str], tmp_path: Path, capsys: Capture) -> None:
    """It asks for what the users need, and for no fewer at once because the text says so."""
    path = tmp_path / "serve.sh"
    path.write_text(text, encoding="utf-8")
    item = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]
    _, _, command = item["message"].partition("Search further: kvplan ")

    assert item["edits"] == []
    assert "max_num_seqs" not in command
    assert run(capsys, *shlex.split(command))[0] == 0, command


def test_an_edit_of_a_file_of_variables_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Once the values are written there, the command that is offered holds: it reads the file, and repeats no old value."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(LLAMA_COMPOSE, encoding="utf-8")
    Path("prod.env").write_text("CTX=262144\nSLOTS=4\n", encoding="utf-8")
    words = ("compose.yaml", "--env-file", "prod.env", "--gpu", "l4", "--users", "4")
    status, found = checked(capsys, *words)
    edits = [edit for item in found["checks"][0]["requirements"] for edit in item["edits"]]
    typed = [edit for edit in edits if re.match(r"-c \d+ -np \d+ in the file and kvplan check", edit["yaml"])]
    assert status == 1
    assert typed
    for edit in typed:
        assert "of prod.env" in edit["effect"]
        tokens, slots = re.findall(r"-(?:c|np) (\d+)", edit["yaml"])
        Path("prod.env").write_text(f"CTX={tokens}\nSLOTS={slots}\n", encoding="utf-8")
        assert run(capsys, *shlex.split(edit["yaml"].partition("kvplan ")[2]))[0] == 0, edit
    _, out, error = run(capsys, "check", *words, "--fix")
    assert "prod.env" in out + error


LLAMA_COMPOSE = """\
services:
  local:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -c ${CTX} -np ${SLOTS} -ngl 99
"""


def test_what_the_text_allows_already_is_not_to_be_written(tmp_path: Path, capsys: Capture) -> None:
    """65,536 tokens of users are more than the 40,960 of the model, which the text allows: it is the users' length that changes."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --max-model-len 40960\n", encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", "h100", "--seq", "64k")
    [edit] = [edit for item in found["checks"][0]["requirements"] for edit in item["edits"]]
    assert (status, edit["yaml"]) == (1, f"kvplan check {path} --gpu h100 --seq 40960")
    assert run(capsys, *shlex.split(edit["yaml"])[1:])[0] == 0
