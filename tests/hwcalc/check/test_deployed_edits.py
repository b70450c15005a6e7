"""What ``kvplan check`` offers of a deployment: applied, it does what it says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc.launch.told import read_told
from hwcalc.profiles.engine_flags import engine_flags
from tests.hwcalc.check.files import LLAMA_SERVER, checked
from tests.hwcalc.command import QWEN, Capture, run


def applied(edits: list[dict[str, Any]], path: Path, words: list[str], capsys: Capture) -> int:
    """The number of these edits of a script of one line that were made, each of which makes it hold. Words such as those of another checkpoint are left out."""
    before, made = path.read_text(encoding="utf-8"), 0
    for edit in edits:
        said, _, command = edit["flags"], "", ""
        if "kvplan check" in edit["yaml"] and not said:
            said, _, command = edit["yaml"].rpartition("kvplan check")
            said = said.removesuffix(" in the file and ")
        elif not said:
            continue
        text = before
        for name, value in read_told(engine_flags(_engine(before)), said).items():
            flag = re.compile(rf"(?<=\s){re.escape(_SHORT.get(name, name))}[ =]\S+")
            text = flag.sub(f"{name} {value}", text) if flag.search(text) else f"{text} {name} {value}"
        path.write_text(text, encoding="utf-8")
        gpus = re.search(r"with (\d+) GPUs", edit["effect"])
        more = ["--gpus", gpus[1]] if gpus is not None else []
        status, document = checked(capsys, *([*shlex.split(command)] if command else [str(path), *words, *more]))
        assert status == 0, (edit, document["checks"][0]["requirements"])
        made += 1
    path.write_text(before, encoding="utf-8")
    return made


def _engine(text: str) -> str:
    return "sglang" if "sglang" in text else "llamacpp" if "llama-server" in text else "vllm"


_SHORT: Final = {"--tp-size": "--tp"}
"""Flags as they stand in these texts."""


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
        assert (status, told["40960"]["accepting"], told["65536"]["effect"]) == (
            1,
            "--max-growth 25%",
            "allows the growth; then length still fails",
        )
        for length, edit in told.items():
            status, found = of(length, *against, *(edit["accepting"].split() or growth))
            left = [item["name"] for item in found["checks"][0]["requirements"] if not item["holds"]]
            assert left == (["length"] if length == "65536" else []), edit
        of("65536")
        status, _, said = run(capsys, "check", str(path), "--gpu", "h100", *against, *growth, "--fix", "--write")
        assert (status, int(path.read_text(encoding="utf-8").split()[-1])) == (0, 33_792 if allowed == "5%" else 32_768), said


@pytest.mark.parametrize(
    ("words", "said", "edits"),
    [
        # An eighth of what was asked, or less, is not offered: 50 / 8 = 6.25. Beside 4.6 GiB of weights eight slots of 2 GiB have room, or four of 4 GiB.
        (["--users", "50", "--seq", "16k"], "not 50", 3),
        (["--users", "50", "--seq", "32k"], "not 50, each of 16,384 tokens, not 32,768", 3),
        # 2 of 15 are more than an eighth, and so are 8; 15 slots have 30 GiB, or half of that in q8_0.
        (["--users", "15"], "not 15", 4),
        # More than eight of the GPU hold, however small the cache: 200 slots of 128 Ki have 200 x 16 GiB.
        (
            ["--users", "200", "--seq", "128k"],
            "; no change was found with which it holds them. Search further: kvplan recommend ",
            0,
        ),
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

    assert (found, said in told["message"], len(told["edits"]) >= edits) == (1, True, True)
    assert ("no change was found" in told["message"]) is (not told["edits"])
    applied(told["edits"], path, ["--gpu", "l4", *words], capsys)


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


@pytest.mark.parametrize(
    ("gpu", "context", "slots", "seq", "users"),
    [
        # Beyond its memory: 8 slots of 16 Ki have 16 GiB of cache, and a 4070 has 12 GiB for all.
        ("rtx-4070", 131_072, 8, "16k", ""),
        ("rtx-4070", 131_072, 8, "16k", "2"),
        ("rtx-4070", 131_072, 8, "16k", "4"),
        ("rtx-4070", 131_072, 8, "8k", "8"),
        # Beyond what its slots allow, and beyond their number.
        ("rtx-4070", 131_072, 8, "32k", ""),
        ("l4", 32_768, 2, "16k", "50"),
        ("l4", 32_768, 2, "32k", "6"),
    ],
)
def test_the_most_slots_that_hold_the_length(
    gpu: str, context: int, slots: int, seq: str, users: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """With the edit it holds, and with a slot more it does not. --fix writes it where it serves all users; else it says what to type besides."""
    monkeypatch.chdir(tmp_path)
    path, typed = Path("serve.sh"), ["serve.sh", "--gpu", gpu, "--seq", seq, *(["--users", users] if users else [])]

    def of(tokens: int, many: int, words: list[str]) -> dict[str, Any]:
        path.write_text(f"{LLAMA_SERVER} -c {tokens} -np {many}\n", encoding="utf-8")
        check: dict[str, Any] = checked(capsys, *words)[1]["checks"][0]
        return check

    items = of(context, slots, typed)["requirements"]
    [edit] = [each for each in items[0]["edits"] if "the most slots that surely fit" in each["effect"]]
    flags, beside, command = (edit["flags"] or edit["yaml"]).partition(" in the file and kvplan check ")
    told = read_told(engine_flags("llamacpp"), flags)
    most, length = int(told["-np"]), int(told["-c"]) // int(told["-np"])
    written = next((each["flags"] for each in items[0]["edits"] if each["flags"] and "much slower" not in each["effect"]), "")
    _, _, said = run(capsys, "check", *typed, "--fix")
    for many in (most, most + 1):
        words = shlex.split(command.replace(f"--users {most}", f"--users {many}")) if beside else typed
        assert (of(length * many, many, words)["status"] == "pass") is (many == most)

    assert length == 1024 * int(seq.removesuffix("k"))
    assert bool(beside) is (most < int(users or 0))
    assert f": {written or 'no safe change'}" in said


@pytest.mark.parametrize("words", [["--users", "8"], ["--users", "8", "--seq", "8k"]])
def test_more_slots_have_the_memory_of_those_that_there_are(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    """Eight of 16,384 tokens take what four of 32,768 did, and are long enough; eight of 32,768 do not fit."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{LLAMA_SERVER} -c 131072 -np 4\n", encoding="utf-8")
    _, document = checked(capsys, str(path), "--gpu", "rtx-4090", *words)
    [edit, *_] = document["checks"][0]["requirements"][0]["edits"]
    assert (edit["flags"], edit["effect"]) == ("-np 8", "16,384 tokens a slot")
    path.write_text(f"{LLAMA_SERVER} -c 131072 -np 8\n", encoding="utf-8")
    assert checked(capsys, str(path), "--gpu", "rtx-4090", *words)[0] == 0


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


@pytest.mark.parametrize("users", [12, 20])
def test_where_slots_and_memory_are_short_both_are_said_and_mended(users: int, tmp_path: Path, capsys: Capture) -> None:
    """Qwen3-14B has 160 KiB a token, so 20 of 16,384 are 50 GiB: with 27.5 of weights that is more than an L40S, and less than two.

    Two GPUs are the fewest, and eight slots keep all replicas of one from being as few.
    """
    path, sizes = tmp_path / "serve.yaml", "--max-num-seqs 8"

    def write(more: str, gpus: int) -> None:
        text = counted("pod", "Qwen/Qwen3-14B", f"{sizes} {more}", gpus).replace("32768", "16384")
        path.write_text(text.replace("]\n", ", --gpu-memory-utilization=0.9]\n"), encoding="utf-8")

    write("", 1)
    words = (str(path), "--gpu", "l40s", "--users", str(users))
    status, found = checked(capsys, *words)
    [item] = found["checks"][0]["requirements"]
    edits, gpus = [edit for edit in item["edits"] if edit["flags"]], []
    for edit in edits:
        more = re.search(r"with (\d+) GPUs in the file", edit["effect"])
        gpus.append(int(more[1]) if more else 1)
        write(edit["flags"], gpus[-1])
        assert checked(capsys, *words)[0] == 0, edit

    assert (status, item["name"]) == (1, "fits")
    assert item["message"].endswith("; --max-num-seqs 8 lets 8 sequences run at once")
    assert edits[0]["told"] == {"--max-num-seqs": str(users), "--tensor-parallel-size": "2"}
    assert (gpus[0], gpus) == (2, sorted(gpus))


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
    where = "LEN of --set or --env-file" if typed else f"{'A' if 'A=' in text else 'LEN'} in line {item['line']}"
    assert edit["effect"].partition("; ")[0] == where
    _, _, err = run(capsys, "check", str(path), "--gpu", "l4", *typed, "--fix")
    assert (f"the value of --max-model-len is {where}" in err) is bool(typed)


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


TWO: Final = f"""\
services:
  small: {{image: "vllm/vllm-openai:v0.11.0", command: --model {QWEN} --max-model-len 4096}}
  big: {{image: "vllm/vllm-openai:v0.11.0", command: --model meta-llama/Llama-3.1-8B-Instruct --max-model-len 65536}}
"""


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


def test_slots_longer_than_the_model_are_mended_by_its_maximum(tmp_path: Path, capsys: Capture) -> None:
    """llama-server has memory for 262,144 tokens a slot and serves 131,072: no hardware is offered for more than that."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{LLAMA_SERVER} -c 1048576 -np 4", encoding="utf-8")
    [item] = checked(capsys, str(path), "--gpu", "l4")[1]["checks"][0]["requirements"]
    contexts = [re.search(r"-c (\d+)", edit["flags"] or edit["yaml"]) for edit in item["edits"]]

    assert [found is not None and int(found[1]) <= 524_288 for found in contexts] == [True] * len(contexts)
    assert applied(item["edits"], path, ["--gpu", "l4"], capsys) >= 4
    for edit in item["edits"]:
        slots = re.search(r"([\d,]+) tokens a slot", edit["effect"])
        assert slots is None or int(slots[1].replace(",", "")) * 4 == int(edit["told"]["-c"])


def test_shorter_slots_for_what_users_send_are_as_many_as_before(tmp_path: Path, capsys: Capture) -> None:
    """Four of 8,192 tokens are 4 GiB of cache, where four of 262,144 do not fit."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{LLAMA_SERVER} -c 1048576 -np 4", encoding="utf-8")
    run(capsys, "check", str(path), "--gpu", "l4", "--seq", "8k", "--fix", "--write")
    assert path.read_text(encoding="utf-8").endswith("-c 32768 -np 4")


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


def test_an_edit_says_on_how_many_cards_and_how_much_slower(tmp_path: Path, capsys: Capture) -> None:
    """12 slots of 16,384 tokens are 24 GiB of cache, or 12.75 in q8_0: beside 4.6 of weights that is more than a card of 16 GiB, and two hold it."""
    path, words = tmp_path / "serve.sh", ["--gpu", "rtx-4060-ti-16gb", "--users"]
    path.write_text(f"{LLAMA_SERVER.replace(' -ngl 99', '')} -c 32768 -np 2", encoding="utf-8")
    edits = checked(capsys, str(path), *words, "12")[1]["checks"][0]["requirements"][0]["edits"]
    assert applied(edits, path, [*words, "12"], capsys) >= 4
    assert not any("GPU" not in edit["effect"] and edit["flags"] for edit in edits if "much slower" in edit["effect"])
    [two] = [edit for edit in edits if "-ctk q8_0" in edit["yaml"]]
    assert "--gpus 2" in two["yaml"]
    assert all("ram" not in edit["settings"] for edit in edits)
    # Six are 6.4 GiB in q8_0, all of it on one card.
    edits = checked(capsys, str(path), *words, "6")[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["told"] == {"-c": "98304", "-np": "6", "-ctk": "q8_0", "-ctv": "q8_0"}


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


def test_more_slots_are_no_longer_than_what_users_send(tmp_path: Path, capsys: Capture) -> None:
    """Eight of 40,960 tokens are 40 GiB, where eight of the text's 65,536 would be 64."""
    path, words = tmp_path / "serve.sh", ["--gpu", "h100", "--seq", "40k", "--users", "8"]
    path.write_text(f"{LLAMA_SERVER} -c 262144 -np 4", encoding="utf-8")
    edits = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["told"] == {"-c": str(8 * 40_960), "-np": "8"}
    assert applied(edits, path, words, capsys) == len(edits)


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


def test_fix_writes_the_slots_that_check_offers(tmp_path: Path, capsys: Capture) -> None:
    """That slots have their memory whatever users send is no reason against them."""
    path, words = tmp_path / "serve.sh", ["--gpu", "rtx-4090", "--users", "4", "--seq", "20k"]
    path.write_text(f"{LLAMA_SERVER} -c 65536 -np 2", encoding="utf-8")
    first = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"][0]
    status, _, said = run(capsys, "check", str(path), *words, "--fix", "--write")
    assert (status, f": {first['flags']}" in said) == (0, True)


def test_slots_of_a_text_without_a_length_have_no_number_of_tokens(tmp_path: Path, capsys: Capture) -> None:
    """llama-server chooses the length itself: what is offered neither names one nor says that a slot has none."""
    path, words = tmp_path / "serve.sh", ["--gpu", "rtx-4060-ti-16gb", "--users", "8"]
    path.write_text(f"{LLAMA_SERVER} -np 2", encoding="utf-8")
    edits = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["told"] == {"-np": "8"}
    assert not any("0 tokens a slot" in edit["effect"] or "-c 0" in edit["flags"] for edit in edits)
    assert applied(edits, path, words, capsys) == len(edits)
