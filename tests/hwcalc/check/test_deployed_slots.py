"""What ``kvplan check`` offers of slots that have their memory, as llama-server and Ollama start them: applied, it does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hwcalc.launch.told import read_told
from hwcalc.profiles.engine_flags import engine_flags
from tests.hwcalc.check.edits import applied, counted
from tests.hwcalc.check.files import LLAMA_SERVER, checked
from tests.hwcalc.command import QWEN, Capture, run


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


def test_more_slots_are_no_longer_than_what_users_send(tmp_path: Path, capsys: Capture) -> None:
    """Eight of 40,960 tokens are 40 GiB, where eight of the text's 65,536 would be 64."""
    path, words = tmp_path / "serve.sh", ["--gpu", "h100", "--seq", "40k", "--users", "8"]
    path.write_text(f"{LLAMA_SERVER} -c 262144 -np 4", encoding="utf-8")
    edits = checked(capsys, str(path), *words)[1]["checks"][0]["requirements"][0]["edits"]
    assert edits[0]["told"] == {"-c": str(8 * 40_960), "-np": "8"}
    assert applied(edits, path, words, capsys) == len(edits)


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
