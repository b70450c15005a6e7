"""What ``kvplan check`` offers of sizes, GPUs and users at once of a deployment: applied, it does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.hwcalc.check.edits import TWO, applied, counted
from tests.hwcalc.check.files import LLAMA_SERVER, checked
from tests.hwcalc.command import QWEN, Capture, run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Too long and too many at once, for a cache that has no room for either.
        (f"vllm serve {QWEN} --max-model-len 8192", ["--gpu", "l4", "--seq", "16k", "--users", "4"]),
        (
            "vllm serve Qwen/Qwen3-32B --max-model-len 32768 --tensor-parallel-size 2",
            ["--gpu", "h100", "--seq", "40k", "--users", "20"],
        ),
        (f"{LLAMA_SERVER} -c 32768 -np 4", ["--gpu", "l4", "--seq", "16k", "--users", "12"]),
        # Too few GPUs for its sizes, and too little memory with fewer; a length that it refuses besides.
        ("vllm serve Qwen/Qwen3-32B --max-model-len 32768 --tensor-parallel-size 2", ["--gpu", "h100", "--gpus", "1"]),
        (f"vllm serve {QWEN} --max-model-len 65536 --tensor-parallel-size 4", ["--gpu", "l40s", "--gpus", "2"]),
        # Requests longer than the model besides: of a size that does not start, of too few GPUs, and of slots that would allow them.
        (f"vllm serve {QWEN} -tp 3 --max-model-len 16384", ["--gpu", "l4", "--seq", "200k"]),
        (f"vllm serve {QWEN} -tp 2 --max-model-len 16384", ["--gpu", "l4", "--gpus", "1", "--seq", "64k"]),
        (f"{LLAMA_SERVER} -c 524288 -np 4", ["--gpu", "h200", "--seq", "200k"]),
        (f"{LLAMA_SERVER} -c 1048576 -np 4", ["--gpu", "h200", "--seq", "200k"]),
        # Longer than the model, whose maximum has no room.
        ("vllm serve Qwen/Qwen3-14B --max-model-len 65536", ["--gpu", "l4"]),
        ("vllm serve Qwen/Qwen3-14B --max-model-len 65536", ["--gpu", "l4", "--seq", "64k"]),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-14B --context-length 65536", ["--gpu", "l40s", "--users", "20"]),
    ],
)
def test_two_faults_at_once_are_mended_by_one_edit(text: str, words: list[str], tmp_path: Path, capsys: Capture) -> None:
    """Each edit makes the whole check hold: the flag that allows the load, and what makes room for it."""
    path = tmp_path / "serve.sh"
    path.write_text(text, encoding="utf-8")
    status, document = checked(capsys, str(path), *words)
    item = document["checks"][0]["requirements"][0]

    assert (status, item["name"] in {"length", "users", "gpus", "flags"}) == (1, True)
    assert applied(item["edits"], path, words, capsys) > 0


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
    first, *others = item["edits"]
    assert (first["effect"].startswith("surely; "), first["flags"].split()[0]) == (True, "--max-model-len")
    assert "--max-model-len 40960 --tensor-parallel-size 2" in [edit["flags"] for edit in others]
    for edit in item["edits"]:
        if edit["flags"] and "in the file" not in edit["effect"]:
            path.write_text(counted("device_ids", QWEN, edit["flags"], 2), encoding="utf-8")
            assert checked(capsys, str(path), "--gpu", "l4")[0] == 0, edit


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


@pytest.mark.parametrize("users", [20, 40])
def test_where_users_wait_for_a_flag_that_flag_comes_first(users: int, tmp_path: Path, capsys: Capture) -> None:
    """Qwen3-32B in two H200 has 128 KiB a token on each of them: 40 times 32,768 tokens are 80 GiB beside 31 of weights, and fit in 128."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        counted("count", "Qwen/Qwen3-32B", "--tensor-parallel-size 2 --max-num-seqs 16", 2).replace("32768", "16384"),
        encoding="utf-8",
    )
    words = (str(path), "--gpu", "h200", "--users", str(users))
    _, text, _ = run(capsys, "check", *words)
    [item] = checked(capsys, *words)[1]["checks"][0]["requirements"]

    assert (item["name"], item["edits"][0]["flags"]) == ("users", f"--max-num-seqs {users}")
    assert "does not fit" not in text
    line = path.read_text(encoding="utf-8").splitlines()[item["line"] - 1]
    assert line[item["column"] - 1 :].startswith("--max-num-seqs 16")
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert f"--max-num-seqs {users}" in path.read_text(encoding="utf-8")


def test_more_at_once_is_offered_with_the_fewest_gpus_that_hold_them(tmp_path: Path, capsys: Capture) -> None:
    """On two GPUs of 80 GB 40 of 16,384 tokens have no room beside the weights, on four they have: eight, for other replicas, come later."""
    path, sizes = tmp_path / "serve.yaml", "--tensor-parallel-size 2 --max-num-seqs 16"
    path.write_text(counted("count", "Qwen/Qwen3-32B", sizes, 2).replace("32768", "16384"), encoding="utf-8")
    words = (str(path), "--gpu", "a100-80gb", "--users", "40")
    status, found = checked(capsys, *words)
    edits = [edit for edit in found["checks"][0]["requirements"][0]["edits"] if edit["flags"]]
    gpus = []
    for edit in edits:
        more = re.search(r"with (\d+) GPUs in the file", edit["effect"])
        gpus.append(int(more[1]) if more else 2)
        text = counted("count", "Qwen/Qwen3-32B", f"{sizes} {edit['flags']}", gpus[-1]).replace("32768", "16384")
        path.write_text(text, encoding="utf-8")
        assert checked(capsys, *words)[0] == 0, edit

    assert (status, edits[0]["told"]) == (1, {"--max-num-seqs": "40", "--tensor-parallel-size": "4"})
    assert gpus == sorted(gpus)
    assert gpus[0] == 4


@pytest.mark.parametrize(
    ("sizes", "model", "starts"),
    [("--tensor-parallel-size 2", QWEN, True), ("--tensor-parallel-size 2", "Qwen/Qwen3-32B", True), ("", QWEN, False)],
)
def test_too_few_gpus_are_said_with_what_enough_of_them_hold(
    sizes: str, model: str, starts: bool, tmp_path: Path, capsys: Capture
) -> None:
    """It does not start, which is another finding than memory; with an edit it holds."""
    path = tmp_path / "serve.yaml"
    path.write_text(counted("count", model, sizes, 1), encoding="utf-8")
    _, text, _ = run(capsys, "check", str(path), "--gpu", "l4")
    [item] = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"]

    assert item["name"] == ("gpus" if starts else "fits")
    # Two L4 hold Qwen3-8B, and no 61 GiB of Qwen3-32B: nobody is told to give it two.
    assert ("With 2 GPUs: fits. Give it 2 GPUs in the file" in item["message"]) is (starts and model == QWEN)
    assert ("With 2 GPUs: does not fit: " in item["message"]) is (starts and model != QWEN)
    edit = next(edit for edit in item["edits"] if edit["flags"])
    assert f"{'starts' if starts else 'fits'} with " in text
    assert ("fits with" in text) is not starts
    more = re.search(r"with (\d+) GPUs in the file", edit["effect"])
    path.write_text(counted("count", model, edit["flags"], int(more[1]) if more else 1), encoding="utf-8")
    assert checked(capsys, str(path), "--gpu", "l4")[0] == 0, edit


@pytest.mark.parametrize("given", [["--gpus", "1"], ["--set", f"vllm {QWEN}.gpus_per_replica=1"]])
def test_too_few_gpus_that_the_user_gave_are_given_anew(given: list[str], tmp_path: Path, capsys: Capture) -> None:
    """The text names no number of GPUs that could be another one: what is printed is typed in place of what was given."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} --tensor-parallel-size 2\n", encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l4", *given)[1]["checks"][0]["requirements"]
    _, told, words = item["message"].partition("Give it 2: ")

    assert (item["name"], bool(told), "in the file" in item["message"]) == ("gpus", True, False)
    assert checked(capsys, str(path), "--gpu", "l4", *shlex.split(words))[0] == 0


@pytest.mark.parametrize(("gpu", "has"), [("l40s", 1), ("l4", 1), ("l40s", 2)])
def test_no_gpus_are_asked_for_sizes_that_the_engine_refuses(gpu: str, has: int, tmp_path: Path, capsys: Capture) -> None:
    """Three do not divide the 40 heads of Qwen3-14B, nor its 8 of the cache: what is said is that, and each offer holds with the GPUs that it names."""
    path, model = tmp_path / "serve.yaml", "Qwen/Qwen3-14B"
    path.write_text(counted("pod", model, "--tensor-parallel-size 3", has), encoding="utf-8")
    status, found = checked(capsys, str(path), "--gpu", gpu)
    [item] = found["checks"][0]["requirements"]

    assert (status, item["name"]) == (1, "flags")
    assert item["message"].endswith("cannot split 40 attention heads over tp 3. Sizes into which it can be split: 1, 2, 4, 8")
    gpus = []
    for edit in item["edits"]:
        more = re.search(r"with (\d+) GPUs in the file", edit["effect"])
        gpus.append(int(more[1]) if more else has)
        flags, _, command = (edit["flags"] or edit["yaml"]).partition(" in the file and kvplan check ")
        path.write_text(counted("pod", model, flags, gpus[-1]), encoding="utf-8")
        assert checked(capsys, *(shlex.split(command) or [str(path), "--gpu", gpu]))[0] == 0, edit
    # The 27.5 GiB of the weights leave room on an L40S, and lie in two L4.
    assert gpus[0] == (2 if gpu == "l4" else has)


def test_sizes_that_the_engine_refuses_on_gpus_that_the_user_gave(tmp_path: Path, capsys: Capture) -> None:
    """Each offer is a size for the line that sets it, and a command with as many GPUs."""
    path = tmp_path / "serve.sh"
    path.write_text("TP=3\nvllm serve Qwen/Qwen3-14B --max-model-len 8192 --tensor-parallel-size $TP\n", encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l4", "--gpus", "1")[1]["checks"][0]["requirements"]
    text = path.read_text(encoding="utf-8")

    assert (item["name"], item["line"], bool(item["edits"])) == ("flags", 1, True)
    assert "Give it" not in item["message"]
    for edit in item["edits"]:
        flags, _, command = (edit["flags"] or edit["yaml"]).partition(" in the file and kvplan check ")
        size, *more = flags.removeprefix("--tensor-parallel-size ").split()
        path.write_text(f"{text.rstrip().replace('TP=3', f'TP={size}')} {' '.join(more)}\n", encoding="utf-8")
        assert checked(capsys, *(shlex.split(command) or [str(path), "--gpu", "l4", "--gpus", "1"]))[0] == 0, edit
        assert "TP in line 1" in edit["effect"]


def test_fewer_gpus_are_named_by_the_variable_that_says_them(tmp_path: Path, capsys: Capture) -> None:
    """The edit says where it is set, as edits of other flags do, and --fix sets it there."""
    path = tmp_path / "serve.sh"
    path.write_text(f"TP=4\nvllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size $TP\n", encoding="utf-8")
    words = (str(path), "--gpu", "l40s", "--gpus", "2")
    [item] = checked(capsys, *words)[1]["checks"][0]["requirements"]
    [edit] = item["edits"]

    assert (item["name"], edit["flags"], edit["effect"]) == ("gpus", "--tensor-parallel-size 2", "TP in line 1")
    assert run(capsys, "check", *words, "--fix", "--write")[0] == 0
    assert path.read_text(encoding="utf-8").startswith("TP=2\n")
    assert checked(capsys, *words)[0] == 0


def test_another_accelerator_is_that_of_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """64k tokens of 128 KiB beside 16 GB of weights are too much for an L4: another one is offered to that server, and its neighbour keeps its own."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(TWO, encoding="utf-8")
    status, found = checked(capsys, "compose.yaml", "--set", "small.gpu=l4", "--set", "big.gpu=l4")
    small, big = found["checks"]
    commands = [edit["yaml"] for item in big["requirements"] for edit in item["edits"] if edit["yaml"].startswith("kvplan")]

    assert (status, small["status"], big["status"]) == (1, "pass", "fail")
    assert commands
    for command in commands:
        again, offered = checked(capsys, *shlex.split(command)[2:])
        small, big = (check["plan"]["fit"]["gpu"] for check in offered["checks"])
        assert (again, small) == (0, "l4"), command
        assert big != "l4"


def test_servers_of_one_pod_are_called_by_their_containers(tmp_path: Path, capsys: Capture) -> None:
    """A setting is that of one of them. A server alone in its pod has the pod's name, whatever stands beside it."""
    server = "{{name: {}, image: vllm/vllm-openai, args: [--model, Qwen/Qwen3-8B, --max-model-len, '4096']}}"
    for containers, names in (("ab", ["chat/a", "chat/b"]), ("a", ["chat"])):
        each = ", ".join([*map(server.format, containers), "{name: proxy, image: nginx}"])
        text = f"{{apiVersion: v1, kind: Pod, metadata: {{name: chat}}, spec: {{containers: [{each}]}}}}"
        (tmp_path / "pod.yaml").write_text(text, encoding="utf-8")
        words = (str(tmp_path / "pod.yaml"), "--gpu", "h100", "--set", f"{names[-1]}.gpu=l40s")
        found = checked(capsys, *words)[1]["checks"]
        assert [check["name"] for check in found] == names
        assert [check["plan"]["fit"]["gpu"].partition("-")[0] for check in found] == [*["h100"] * (len(names) - 1), "l40s"]


def test_a_missing_accelerator_is_named_for_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The hint of each server has the setting that names the accelerator of this one alone."""
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(TWO, encoding="utf-8")
    sets = [re.findall(r"--set \S+", check["error"]["hint"]) for check in checked(capsys, "compose.yaml")[1]["checks"]]

    assert sets == [["--set small.gpu=h100"], ["--set big.gpu=h100"]]
    words = [word for each in sets for word in each[0].split()]
    assert checked(capsys, "compose.yaml", *words)[0] == 0
    assert checked(capsys, "compose.yaml", *words[:2])[1]["checks"][0]["status"] == "pass"


def test_a_missing_accelerator_is_named_for_one_of_several_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """By the name that the output prints, with its blank in quotes; alone, a script has --gpu."""
    monkeypatch.chdir(tmp_path)
    for name, model in (("a.sh", QWEN), ("b.sh", "Qwen/Qwen3-4B")):
        Path(name).write_text(f"MODEL={model}\nvllm serve $MODEL --max-model-len 4096\n", encoding="utf-8")
    hints = [check["error"]["hint"] for check in checked(capsys, "a.sh", "b.sh")[1]["checks"]]
    words = [shlex.split(hint.partition("Add ")[2].partition(" for this")[0]) for hint in hints]

    assert words == [["--set", f"vllm {model}.gpu=h100"] for model in (QWEN, "Qwen/Qwen3-4B")]
    assert [check["status"] for check in checked(capsys, "a.sh", "b.sh", *words[0])[1]["checks"]] == ["pass", "error"]
    assert checked(capsys, "a.sh", "b.sh", *words[0], *words[1])[0] == 0
    assert "--set" not in checked(capsys, "a.sh")[1]["checks"][0]["error"]["hint"]


def test_one_command_is_offered_no_more_gpus_than_a_node_has(tmp_path: Path, capsys: Capture) -> None:
    """Eight of them are a node, and a server on several needs commands on each."""
    path = tmp_path / "serve.yaml"
    path.write_text(counted("pod", "Qwen/Qwen3-14B", "--max-num-seqs 16", 1), encoding="utf-8")
    for users in ("64", "200", "1000"):
        [item] = checked(capsys, str(path), "--gpu", "l40s", "--users", users)[1]["checks"][0]["requirements"]
        gpus = [int(number) for edit in item["edits"] for number in re.findall(r"(\d+) GPUs", edit["effect"] + edit["yaml"])]
        assert max(gpus, default=0) <= 8
    said = checked(capsys, str(path), "--gpu", "l40s", "--users", "1000", "--seq", "40k")[1]["checks"][0]["requirements"][0]
    assert "kvplan recommend Qwen/Qwen3-14B --seq 40k --users 1000" in said["message"]


def test_eight_bits_and_a_shorter_length_before_other_hardware(tmp_path: Path, capsys: Capture) -> None:
    """27.5 GiB of weights are 14 in fp8, which one L4 holds: as long a sequence as there is room for is offered on it, and one of a quarter more is too long."""
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-14B --max-model-len 40960\n", encoding="utf-8")
    edit = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"][0]["edits"][0]
    assert set(edit["told"]) == {"--max-model-len", "--kv-cache-dtype", "--quantization"}
    assert applied([edit], path, ["--gpu", "l4"], capsys) == 1
    longer = int(edit["told"]["--max-model-len"]) * 5 // 4
    path.write_text(
        f"vllm serve Qwen/Qwen3-14B --kv-cache-dtype fp8 --quantization fp8 --max-model-len {longer}\n", encoding="utf-8"
    )
    assert checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["status"] != "pass"


def test_too_few_gpus_with_more_users_than_run_at_once(tmp_path: Path, capsys: Capture) -> None:
    """On GPUs enough it is the flag that is short, and not the memory: they are not said to hold nothing."""
    path = tmp_path / "serve.sh"
    path.write_text(f"vllm serve {QWEN} -tp 2 --max-model-len 16384 --max-num-seqs 16\n", encoding="utf-8")
    words = ["--gpu", "l40s", "--gpus", "1", "--users", "24"]
    [item] = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"]

    assert (item["name"], "There is memory enough" in item["message"], "does not fit" in item["message"]) == ("gpus", True, False)
    assert applied(item["edits"], path, words, capsys) == len(item["edits"]) > 1


def test_all_users_at_once_on_as_few_gpus_as_eight_bits_need(tmp_path: Path, capsys: Capture) -> None:
    """24 sequences of 32,768 tokens have 108 GiB of cache in bf16 and 54 in fp8: four L4 hold them so, and eight as they are."""
    path, words = tmp_path / "serve.sh", ["--gpu", "l4", "--users", "24"]
    path.write_text(f"vllm serve {QWEN} --max-model-len 32768 --max-num-seqs 8\n", encoding="utf-8")
    [item] = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"]
    sizes = [edit["told"].get("--tensor-parallel-size") for edit in item["edits"] if "--max-num-seqs" in edit["told"]]

    assert sizes == ["4", "8"]
    assert applied(item["edits"], path, words, capsys) == len(item["edits"])


def test_eight_bits_on_more_gpus_before_dearer_ones(tmp_path: Path, capsys: Capture) -> None:
    """70e9 weights in fp8 are 8.2 GiB on each of eight L4, where nothing but another accelerator was offered."""
    path = tmp_path / "serve.sh"
    path.write_text(
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 1 --max-model-len 32768\n", encoding="utf-8"
    )
    edits = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["told"] == {"--tensor-parallel-size": "8", "--quantization": "fp8"}
    assert applied(edits, path, ["--gpu", "l4"], capsys) == len(edits)


def test_too_few_gpus_and_too_long_keep_the_size(tmp_path: Path, capsys: Capture) -> None:
    """Beside fewer GPUs with a shorter length stands the edit that gives it those that its size takes."""
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-14B -tp 4 --max-model-len 50000\n", encoding="utf-8")
    words = ["--gpu", "l4", "--gpus", "2"]
    edits = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["yaml"].startswith("--max-model-len 40960 in the file and kvplan check ")
    assert edits[0]["yaml"].endswith(" --gpus 4")
    assert applied(edits, path, words, capsys) == len(edits) > 1


@pytest.mark.parametrize(("version", "dtypes"), [("0.31", {"int8_per_token_head"}), ("0.17", {"fp8"})])
def test_one_cache_of_eight_bits_for_a_gpu(version: str, dtypes: set[str], tmp_path: Path, capsys: Capture) -> None:
    """An A100 has no arithmetic of fp8: whatever the text says of the sequences at once, the same format is offered, and releases without it have fp8."""
    path = tmp_path / "serve.sh"
    words = ["--gpu", "a100-sxm-80gb", "--users", "24", "--set", f"engine_version={version}"]
    told = []
    for slots in (8, 24):
        path.write_text(
            f"vllm serve mistralai/Devstral-Small-2505 --max-model-len 32768 --max-num-seqs {slots}\n", encoding="utf-8"
        )
        edits = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"]
        assert applied(edits, path, words, capsys) > 1
        told.append({edit["told"]["--kv-cache-dtype"] for edit in edits if "--kv-cache-dtype" in edit["told"]})
    assert told[0] | told[1] == dtypes
    assert told[0] == dtypes
