"""What ``kvplan check`` offers of a deployment that has changed: the values of the baseline or the lock, with which nothing has grown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.hwcalc.check.edits import POD, applied
from tests.hwcalc.check.files import LLAMA_SERVER, checked, write
from tests.hwcalc.command import QWEN, Capture, run

LONG: Final = "vllm serve Qwen/Qwen3-14B --max-model-len {}"
"""Of which the model has 40,960 tokens."""


def failing(found: dict[str, Any]) -> dict[str, Any]:
    """The first finding of the only server."""
    item: dict[str, Any] = next(item for item in found["checks"][0]["requirements"] if not (item["holds"] and item["certain"]))
    return item


@pytest.mark.parametrize("growth", [[], ["--max-growth", "5%"], ["--max-growth", "900%"]])
@pytest.mark.parametrize(
    ("before", "after", "words", "finding", "flags"),
    [
        # Longer than the model, whatever users send.
        (LONG.format(20480), LONG.format(131072), ["--gpu", "h100"], "length", "--max-model-len 20480"),
        (LONG.format(20480), LONG.format(131072), ["--gpu", "h100", "--seq", "8k"], "length", "--max-model-len 20480"),
        # Less than users send.
        (LONG.format(20480), LONG.format(8192), ["--gpu", "h100", "--seq", "16k"], "length", "--max-model-len 20480"),
        # Half of the slots, each with twice the tokens.
        (f"{LLAMA_SERVER} -c 32768 -np 4", f"{LLAMA_SERVER} -c 32768 -np 2", ["--gpu", "l4", "--users", "4"], "users", "-np 4"),
        # Twice the slots, each with half of the tokens.
        (f"{LLAMA_SERVER} -c 65536 -np 2", f"{LLAMA_SERVER} -c 65536 -np 4", ["--gpu", "l4", "--seq", "32k"], "length", "-np 2"),
        (f"{LLAMA_SERVER} -c 32768 -np 4", f"{LLAMA_SERVER} -c 8192 -np 4", ["--gpu", "l4", "--seq", "8k"], "length", "-c 32768"),
        # One slot, which no key says.
        (f"{LLAMA_SERVER} -c 32768 -np 1", f"{LLAMA_SERVER} -c 32768 -np 4", ["--gpu", "l4", "--seq", "16k"], "length", "-np 1"),
        # No multiple of three slots.
        (
            f"{LLAMA_SERVER} -c 32768 -np 3",
            f"{LLAMA_SERVER} -c 65536 -np 2",
            ["--gpu", "l4", "--users", "3"],
            "users",
            "-c 32768 -np 3",
        ),
        (
            f"{LLAMA_SERVER} -c 32768 -np 3",
            f"{LLAMA_SERVER} -c 24576 -np 3",
            ["--gpu", "l4", "--seq", "10k"],
            "length",
            "-c 32768",
        ),
        # Seven of 16,384 tokens in eight bits are 8.75 GiB beside 27.5 of weights: in twice the length, or 16 bits, too much for an L40S.
        (
            f"{LONG.format(16384)} --kv-cache-dtype fp8",
            LONG.format(32768),
            ["--gpu", "l40s", "--users", "7"],
            "fits",
            "--kv-cache-dtype fp8 --max-model-len 16384",
        ),
        (
            f"{LONG.format(16384)} --kv-cache-dtype fp8",
            LONG.format(16384),
            ["--gpu", "l40s", "--users", "7"],
            "fits",
            "--kv-cache-dtype fp8",
        ),
    ],
)
def test_the_value_of_the_baseline_comes_first(
    before: str, after: str, words: list[str], finding: str, flags: str, growth: list[str], tmp_path: Path, capsys: Capture
) -> None:
    """It passed with it, so it passes again and nothing grows; each other edit passes too, and --fix writes the first."""
    path, baseline = write(tmp_path / "serve.sh", f"{before}\n"), tmp_path / "before.json"
    words = [str(path), *words]
    status, document, _ = run(capsys, "check", *words, "--json")
    assert status == 0
    write(baseline, document)
    write(path, f"{after}\n")
    against = ["--baseline", str(baseline), *growth]
    status, found = checked(capsys, *words, *against)
    item = failing(found)
    first, *others = item["edits"]

    assert (status, item["name"], first["flags"], first["accepting"]) == (1, finding, flags, "")
    assert f"as the baseline has {'it' if len(first['told']) == 1 else 'them'}" in first["effect"].split("; ")
    assert "no single change" not in item["message"]
    assert [edit for edit in others if edit["told"] == first["told"]] == []
    assert applied(item["edits"], path, [*words[1:], *against], capsys) >= 1
    status, _, said = run(capsys, "check", *words, *against, "--fix", "--write")
    assert status == 0, said
    assert checked(capsys, *words, *against)[1]["checks"][0]["changes"] == []


def test_it_is_that_of_the_lock_where_there_is_no_baseline(tmp_path: Path, capsys: Capture) -> None:
    """The check passed as it was locked."""
    path = write(tmp_path / "serve.sh", LONG.format(20480))
    assert checked(capsys, str(path), "--gpu", "h100", "--lock")[0] == 0
    write(path, LONG.format(131072))
    first = failing(checked(capsys, str(path), "--gpu", "h100")[1])["edits"][0]
    assert (first["flags"], first["effect"]) == ("--max-model-len 20480", "as the lock has it")
    write(path, LONG.format(20480))
    assert checked(capsys, str(path), "--gpu", "h100")[0] == 0


def test_it_stands_in_the_variable_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """--fix names the variable of .env that changed, and no other; that of a manifest is written where it is set."""
    monkeypatch.chdir(tmp_path)
    command = LLAMA_SERVER.removeprefix("llama-server ")
    write(
        Path("compose.yaml"),
        f"services: {{local: {{image: 'ghcr.io/ggml-org/llama.cpp:server', command: '{command} -c ${{CTX}} -np ${{SLOTS}}'}}}}",
    )
    words = ["compose.yaml", "--set", "local.users=4", "--gpu", "l4"]
    write(Path(".env"), "CTX=32768\nSLOTS=4\n")
    write(Path("before.json"), run(capsys, "check", *words, "--json")[1])
    write(Path(".env"), "CTX=32768\nSLOTS=2\n")
    against = ["--baseline", "before.json"]
    first, second, *_ = failing(checked(capsys, *words, *against)[1])["edits"]
    said = run(capsys, "check", *words, *against)[1]
    fixed = run(capsys, "check", *words, *against, "--fix")[2]

    assert (first["flags"], first["effect"]) == ("-np 4", "SLOTS of .env; as the baseline has it")
    assert (second["flags"], second["accepting"]) == ("-c 65536 -np 4", "--max-growth 100%")
    # What the text says stands before what follows from it.
    assert "  -np 4 -> 2, tokens a slot 8k -> 16k since the baseline\n" in said
    assert ("SLOTS=4" in fixed, "CTX" in fixed) == (True, False)
    write(Path(".env"), "CTX=32768\nSLOTS=4\n")
    assert checked(capsys, *words, *against)[0] == 0


def test_it_is_written_where_a_manifest_sets_its_variable(tmp_path: Path, capsys: Capture) -> None:
    """The text is as it was."""
    args = '"--model", "Qwen/Qwen3-14B", "--max-model-len", "$(MAX_LEN)"'
    text = POD.format(args=args, gpus=1) + '    env: [{name: MAX_LEN, value: "20480"}]\n'
    path, baseline = write(tmp_path / "pod.yaml", text), tmp_path / "before.json"
    words = [str(path), "--gpu", "h100"]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    write(path, text.replace("20480", "131072"))
    words += ["--baseline", str(baseline), "--max-growth", "5%"]
    first = failing(checked(capsys, *words)[1])["edits"][0]

    assert (first["flags"], first["effect"]) == ("--max-model-len 20480", "MAX_LEN in line 9; as the baseline has it")
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (f"{LLAMA_SERVER} -c 32768 -np 4", ["--users", "4"], ["--users", "8"]),
        (f"{LLAMA_SERVER} -c 32768 -np 4", ["--seq", "8k"], ["--seq", "16k"]),
        (f"{LLAMA_SERVER} -c 32768 -np 4", [], ["--set", "llama.cpp bartowski/Meta-Llama-3.1-8B-Instruct-GGUF.users=8"]),
        (LONG.format(16384), ["--seq", "8k"], ["--seq", "32k"]),
        (LONG.format(16384), ["--users", "2"], ["--users", "400"]),
        # What the engine has for its slots is no longer than the model.
        (f"{LLAMA_SERVER} -c 524288 -np 2", ["--seq", "8k"], ["--seq", "200k"]),
    ],
)
def test_a_load_that_changed_is_not_in_the_text(
    text: str, before: list[str], after: list[str], tmp_path: Path, capsys: Capture
) -> None:
    """The text is that of the baseline, and nothing of it is to be taken back."""
    path, baseline = write(tmp_path / "serve.sh", text), tmp_path / "before.json"
    words = [str(path), "--gpu", "h100"]
    write(baseline, run(capsys, "check", *words, *before, "--json")[1])
    status, found = checked(capsys, *words, *after, "--baseline", str(baseline), "--max-growth", "5%")

    assert status == 1
    assert "as the baseline" not in str(found["checks"][0]["requirements"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Fewer at once than there are users.
        (LONG.format(8192), f"{LONG.format(8192)} --max-num-seqs 4"),
        # All of the model's length, and now of more than a GPU has.
        (LLAMA_SERVER, f"{LLAMA_SERVER} -c 1048576 -np 8"),
    ],
)
def test_what_was_not_set_is_not_told(before: str, after: str, tmp_path: Path, capsys: Capture) -> None:
    """No flag says that there is none."""
    path, baseline = write(tmp_path / "serve.sh", before), tmp_path / "before.json"
    words = [str(path), "--gpu", "l40s", *(["--users", "8"] if "vllm" in before else [])]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    write(path, after)
    status, found = checked(capsys, *words, "--baseline", str(baseline), "--max-growth", "900%")

    assert status == 1
    assert "as the baseline" not in str(found["checks"][0]["requirements"])


def test_variables_and_parameters_of_ollama_are_called_as_the_text_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each slot has the tokens that are said, so what --fix takes of a length is the difference of the values."""
    monkeypatch.chdir(tmp_path)
    for name, text, keys in (
        (
            "compose.yaml",
            "services: {o: {image: ollama/ollama, environment: [OLLAMA_NUM_PARALLEL=4, OLLAMA_CONTEXT_LENGTH=8192]}}",
            {"OLLAMA_CONTEXT_LENGTH": ("8k", "64k"), "OLLAMA_NUM_PARALLEL": ("4", "2")},
        ),
        ("Modelfile", f"FROM {QWEN}\nPARAMETER num_ctx 8192\n", {"num_ctx": ("8k", "64k")}),
    ):
        path, baseline = write(tmp_path / name, text), tmp_path / "before.json"
        words = [name, "--gpu", "l4", "--set", f"model={QWEN}", *(["--users", "4"] if name != "Modelfile" else [])]
        write(baseline, run(capsys, "check", *words, "--json")[1])
        write(path, text.replace("8192", "65536").replace("PARALLEL=4", "PARALLEL=2"))
        words += ["--baseline", "before.json"]
        check = checked(capsys, *words)[1]["checks"][0]
        _, _, said = run(capsys, "check", *words, "--fix", "--write")

        assert {one["key"]: (one["before"], one["after"]) for one in check["changes"]} == keys
        assert failing({"checks": [check]})["edits"][0]["told"].keys() == keys.keys()
        assert "(65,536 -> 8,192 tokens)" in said
        assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve {model} --max-model-len {length}",
        "python -m sglang.launch_server --model-path {model} --context-length {length}",
    ],
)
def test_a_load_of_before_is_no_value_of_the_text(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The lock knows that users sent 2,048 tokens to a server that allows 8,192: it is the latter that the text had."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "serve.sh", command.format(model=QWEN, length=8192))
    words = ["serve.sh", "--gpu", "l40s"]
    run(capsys, "check", *words, "--seq", "2k", "--users", "8", "--lock")
    write(path, command.format(model=QWEN, length=65_536))
    status, found = checked(capsys, *words)
    back = [
        edit["flags"]
        for item in found["checks"][0]["requirements"]
        for edit in item["edits"]
        if "as the lock has" in edit["effect"]
    ]

    assert status == 1
    assert [flags.split()[-1] for flags in back] == ["8192"]
    assert {"users", "seq"} < {change["key"] for change in found["checks"][0]["changes"]}


def test_what_a_server_with_too_few_gpus_had_before_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """It starts on none, and is compared as it would be on enough: no edit that is offered grows."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "serve.sh", f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size 1")
    words = ["serve.sh", "--gpu", "l4", "--gpus", "2"]
    write(tmp_path / "b.json", run(capsys, "check", *words, "--json")[1])
    write(path, path.read_text(encoding="utf-8").replace("size 1", "size 4"))
    words += ["--baseline", "b.json"]
    status, found = checked(capsys, *words)
    item = failing(found)

    assert (status, item["name"]) == (1, "gpus")
    assert "--tensor-parallel-size" in {change["key"] for change in found["checks"][0]["changes"]}
    assert item["edits"][0]["told"] == {"--tensor-parallel-size": "1"}
    assert "as the baseline has it" in item["edits"][0]["effect"]
    assert applied(item["edits"], path, words, capsys) == len(item["edits"])
    # In a manifest it is the number of GPUs that has changed.
    args = f'"--model={QWEN}", "--max-model-len=16384", "--tensor-parallel-size=2"'
    write(tmp_path / "pod.yaml", POD.format(args=args, gpus=2))
    write(tmp_path / "p.json", run(capsys, "check", "pod.yaml", "--gpu", "l4", "--json")[1])
    write(tmp_path / "pod.yaml", POD.format(args=args, gpus=1))
    [check] = checked(capsys, "pod.yaml", "--gpu", "l4", "--baseline", "p.json")[1]["checks"]
    assert [(one["key"], one["before"], one["after"]) for one in check["changes"]] == [("gpus", "2", "1")]


def test_fewer_gpus_keep_the_load_where_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Eight bits of weights hold on one GPU what users send: to send less is not all that is offered."""
    monkeypatch.chdir(tmp_path)
    command = "--model Qwen/Qwen3-14B --max-model-len 16384 --tensor-parallel-size {size} --kv-cache-dtype fp8"
    text = (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.33.0\n"
        f"    command: {command}\n"
        "    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ['0'], capabilities: [gpu]}}]}}}}}}\n"
    )
    path = write(tmp_path / "compose.yaml", text.format(size=2))
    words = ["compose.yaml", "--gpu", "l40s", "--set", "chat.users=16", "--set", "chat.seq=16k"]
    item = failing(checked(capsys, *words)[1])
    edit = item["edits"][0]
    assert (item["name"], edit["told"].get("--tensor-parallel-size"), "--quantization" in edit["told"]) == ("gpus", "1", True)
    run(capsys, "check", *words, "--fix", "--write")
    assert "--quantization fp8" in path.read_text(encoding="utf-8")
    assert run(capsys, "check", *words)[0] == 0


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        (f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size {{}}", "2", "3"),
        # Two changes: the value of before does for the one that is refused.
        (f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size {{}}", "2 --kv-cache-dtype fp8", "3"),
        (f"python -m sglang.launch_server --model-path {QWEN} --context-length 8192 --tp-size {{}}", "4", "5"),
    ],
)
@pytest.mark.parametrize("lock", [False, True])
def test_what_a_server_that_is_refused_had_before_comes_first(
    command: str, before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, lock: bool
) -> None:
    """Its engine starts with none of 32 heads in three or five parts: what changed is told, each edit holds with what is said of it, and --fix agrees."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "serve.sh", command.format(before))
    words = ["serve.sh", "--gpu", "l4"]
    if lock:
        assert checked(capsys, *words, "--lock")[0] == 0
    else:
        write(tmp_path / "b.json", run(capsys, "check", *words, "--json")[1])
        words += ["--baseline", "b.json"]
    write(path, command.format(after))
    status, found = checked(capsys, *words)
    [check], since = found["checks"], "lock" if lock else "baseline"
    item, flag = failing(found), command.split()[-2]
    said = {one["key"]: (one["before"], one["after"]) for one in check["changes"]}

    assert (status, item["name"], said[flag]) == (1, "flags", (before.split(maxsplit=1)[0], after))
    first = item["edits"][0]
    assert first["told"][flag] == before.split(maxsplit=1)[0]
    assert f"as the {since} has {'it' if len(first['told']) == 1 else 'them'}" in first["effect"]
    assert applied(item["edits"], path, words[1:], capsys) == len(item["edits"])
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert flag not in {one["key"] for one in checked(capsys, *words)[1]["checks"][0]["changes"]}


@pytest.mark.parametrize("strict", [[], ["--strict"]])
def test_a_value_that_probably_held_is_offered_where_that_passes(strict: list[str], tmp_path: Path, capsys: Capture) -> None:
    """It passed with it; with --strict only what surely holds does. Beside it stands what surely holds."""
    path, baseline = write(tmp_path / "serve.sh", "vllm serve Qwen/Qwen3-8B --max-model-len 16384"), tmp_path / "before.json"
    words = [str(path), "--gpu", "l4"]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    write(path, path.read_text(encoding="utf-8").replace("16384", "32768"))
    words += ["--baseline", str(baseline), *strict]
    item = failing(checked(capsys, *words)[1])
    said = {edit["flags"]: edit["effect"] for edit in item["edits"]}

    assert item["name"] == "fits"
    assert (said.get("--max-model-len 16384"), item["edits"][0]["told"] == {"--max-model-len": "16384"}) == (
        (None, False) if strict else ("probably; as the baseline has it", True)
    )
    assert applied(item["edits"], path, words[1:], capsys) >= 2
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert ("--max-model-len 16384" in path.read_text(encoding="utf-8")) is not bool(strict)


def test_of_what_probably_holds_only_that_which_grew_is_taken_back(tmp_path: Path, capsys: Capture) -> None:
    """17,000 tokens probably fit as well, and are more than before: the value of before belongs to that finding."""
    path, baseline = write(tmp_path / "serve.sh", "vllm serve Qwen/Qwen3-8B --max-model-len 16384"), tmp_path / "before.json"
    words = [str(path), "--gpu", "l4"]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    write(path, path.read_text(encoding="utf-8").replace("16384", "17000"))
    words += ["--baseline", str(baseline)]
    [check] = checked(capsys, *words)[1]["checks"]
    of_before = [item for item in check["requirements"] for edit in item["edits"] if "as the baseline has it" in edit["effect"]]

    assert [(item["holds"], item["name"]) for item in of_before] == [(False, "growth.total_bytes")]
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert path.read_text(encoding="utf-8").split()[-1] == "16384"


def test_a_default_that_the_text_says_is_told_as_it_says_it(tmp_path: Path, capsys: Capture) -> None:
    """No key of the check says that there is one GPU; the text does."""
    text = f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size 2"
    path, baseline = write(tmp_path / "serve.sh", text), tmp_path / "before.json"
    words = [str(path), "--gpu", "l4"]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    for after, told in ((text.replace("size 2", "size 1"), "1"), (text.rpartition(" --tensor")[0], None)):
        write(path, after)
        [check] = checked(capsys, *words, "--baseline", str(baseline))[1]["checks"]
        assert [(one["key"], one["before"], one["after"]) for one in check["changes"]] == [("--tensor-parallel-size", "2", told)]


def test_no_number_of_gpus_that_is_typed_is_larger_than_a_node(tmp_path: Path, capsys: Capture) -> None:
    """12 slots of 128k have 192 GiB of cache: 16 L4 would hold them, and no node has 16."""
    path = write(tmp_path / "serve.sh", f"{LLAMA_SERVER} -c 1572864 -np 12")
    words = ["--gpu", "l4", "--gpus", "4"]
    edits = failing(checked(capsys, str(path), *words)[1])["edits"]
    typed = [edit["yaml"].split("--gpus ")[1].split()[0] for edit in edits if "--gpus " in edit["yaml"]]

    assert checked(capsys, str(path), "--gpu", "l4", "--gpus", "16")[0] == 0
    assert [gpus for gpus in typed if int(gpus) > 8] == []
    assert applied(edits, path, words, capsys) >= 1


def test_what_users_send_is_no_length_of_a_text_without_one(tmp_path: Path, capsys: Capture) -> None:
    """The text lost its length, and another size is refused: its own is that of the model, whatever is sent."""
    text = f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size 2"
    path, baseline = write(tmp_path / "serve.sh", text), tmp_path / "before.json"
    words = [str(path), "--gpu", "l40s", "--seq", "4k", "--users", "2"]
    write(baseline, run(capsys, "check", *words, "--json")[1])
    write(path, f"vllm serve {QWEN} --tensor-parallel-size 3")
    words += ["--baseline", str(baseline)]
    [check] = checked(capsys, *words)[1]["checks"]
    item = failing({"checks": [check]})

    assert item["name"] == "flags"
    assert [(one["before"], one["after"]) for one in check["changes"] if one["key"] == "--max-model-len"] == [("8192", None)]
    assert applied(item["edits"], path, words[1:], capsys) == len(item["edits"]) > 1


@pytest.mark.parametrize("load", [{}, {"--seq": "8k"}, {"--seq": "8k", "--users": "4"}, {"--seq": "8k", "--users": "16"}])
def test_slots_are_those_of_the_text_whatever_users_send(
    load: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Four times the slots leave each a quarter of the tokens: that is the cause, and four slots are what was before."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "serve.sh", f"{LLAMA_SERVER} -c 32768 -np 4")
    words = ["serve.sh", "--gpu", "l4"]
    of_before = [word for pair in {**load, **({"--users": "4"} if "--users" in load else {})}.items() for word in pair]
    write(tmp_path / "b.json", run(capsys, "check", *words, *of_before, "--json")[1])
    write(path, f"{LLAMA_SERVER} -c 32768 -np 16")
    words += [*(word for pair in load.items() for word in pair), "--baseline", "b.json"]
    _, found = checked(capsys, *words)
    [check] = found["checks"]

    changes = {one["key"]: (one["before"], one["after"]) for one in check["changes"]}
    assert changes == {"-np": ("4", "16"), "tokens a slot": ("8k", "2k")}
    if load and load.get("--users") != "16":
        assert failing(found)["edits"][0]["flags"] == "-np 4"
        assert applied(failing(found)["edits"], path, words, capsys)
