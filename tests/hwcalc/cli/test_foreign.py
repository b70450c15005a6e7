"""Names of options that are not kvplan's own: vLLM's are taken, others' and mistyped ones are answered."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from hwcalc.cli.line import FOREIGN, NO_EFFECT, SWITCHES, TOGETHER, VLLM, VLLM_OPTIONS, aliases, translated
from hwcalc.cli.options import COMMANDS, PLANNING, find_command
from hwcalc.profiles.engine_flags import engine_flags
from tests.hwcalc.command import QWEN, Capture, read, run
from tests.paths import ROOT

MOE = "Qwen/Qwen3-30B-A3B"


def document(capsys: Capture, *words: str) -> Any:
    """The JSON document of a line."""
    _, out, _ = run(capsys, *words, "--json")
    return json.loads(out)


# --- vLLM's names -----------------------------------------------------------------------------------------------------


def test_the_names_are_vllms_own() -> None:
    """Those that ``--emit vllm`` writes are all taken, but two that mean something else here."""
    taken = {spelling for names in VLLM.values() for spelling in names} | set(aliases(PLANNING)) | set(TOGETHER)
    table = engine_flags("vllm")
    written = {flag.spelled for flag in table.flags if flag.option or flag.engine_option} | {"--dtype", "--revision"}

    assert written - taken - {"--kv-offloading-backend"} == {"--dtype", "--revision"}
    for name, names in VLLM.items():
        if name == "token":
            continue
        key = {"dtype": "kv_cache_dtype", "weights": "quantization"}.get(name, name)
        assert names[0] == table.written[key]
    for knob in (*VLLM_OPTIONS, *SWITCHES):
        assert table.written[knob] == f"--{knob.replace('_', '-')}"


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--tensor-parallel-size 4", "--tp 4"),
        ("--tensor-parallel-size=4", "--tp 4"),
        ("--tensor_parallel_size 4", "--tp 4"),
        ("-tp 4", "--tp 4"),
        ("-tp=4", "--tp 4"),
        ("--pipeline-parallel-size 2", "--pp 2"),
        ("-pp 2", "--pp 2"),
        ("--data-parallel-size 2", "--dp 2"),
        ("-dp 2", "--dp 2"),
        ("-tp 4 --decode-context-parallel-size 2", "--tp 4 --dcp 2"),
        ("-tp 4 -dcp 2", "--tp 4 --dcp 2"),
        ("--kv-cache-dtype fp8", "--dtype fp8"),
        ("--gpu-memory-utilization 0.8", "--memory-utilization 0.8"),
        ("--quantization fp8", "--weights fp8"),
        ("--quantization bitsandbytes", "--weights bnb4"),
        ("--quantization awq_marlin", "--weights awq"),
        ("--max-model-len 32768", "--seq 32768"),
        ("--max-model-len 32K", "--seq 32768"),
        ("--max-model-len 32k", "--seq 32000"),
        ("--max-model-len 25.6k", "--seq 25600"),
        ("--max-model-len 1M", "--seq 1048576"),
        ("--max-model-len 1m", "--seq 1000000"),
        ("--kv-cache-memory-bytes 5368709120", "--kv-memory 5368709120"),
        ("--kv-cache-memory-bytes 5G", "--kv-memory 5368709120"),
        ("--kv-cache-memory-bytes 5g", "--kv-memory 5000000000"),
        ("--kv-cache-memory-bytes 5GiB", "--kv-memory 5GiB"),
        ("--engine vllm --max-num-seqs 64", "--engine vllm --engine-option max_num_seqs=64"),
        ("--engine vllm --max-num-batched-tokens 8k", "--engine vllm --engine-option max_num_batched_tokens=8000"),
        ("--engine vllm --block-size=32", "--engine vllm --engine-option block_size=32"),
        ("--engine vllm --cpu-offload-gb 10", "--engine vllm --engine-option cpu_offload_gb=10"),
        ("--engine vllm --enforce-eager", "--engine vllm --engine-option enforce_eager=true"),
        ("--engine vllm --no-enable-prefix-caching", "--engine vllm --engine-option enable_prefix_caching=false"),
    ],
)
def test_an_alias_is_the_option(given: str, ours: str) -> None:
    """Each of vLLM's names and values becomes kvplan's own, as vLLM reads it."""
    assert translated([QWEN, *shlex.split(given)])[0] == ["plan", QWEN, *shlex.split(ours)]


def test_every_flag_of_six_releases_is_read_or_left_out() -> None:
    """Those that the wheels of vLLM 0.28 to 0.33 define: an option, an engine option, or a row of ``profiles/engines/vllm/flags.yaml``."""
    golden = json.loads((ROOT / "tests/golden/vllm_flags.json").read_text(encoding="utf-8"))["flags"]
    own = {flag for option in PLANNING for flag in option.flags}
    read = set(aliases(PLANNING)) | set(TOGETHER) | own | {"--model"}

    assert len(golden) == 346
    assert golden.keys() - read - NO_EFFECT.keys() == set()
    assert read & NO_EFFECT.keys() == set()
    # What a flag that is left out takes with it: a switch no value.
    for flag, row in golden.items():
        if flag in NO_EFFECT:
            assert (NO_EFFECT[flag] == "") == row["switch"], flag


@pytest.mark.parametrize(
    ("flag", "switch"),
    [
        ("--calculate-kv-scales", True),
        ("--override-attention-dtype", False),
        ("--max-num-partial-prefills", False),
        ("--max-long-partial-prefills", False),
        ("--enable-multimodal-encoder-data-parallel", True),
        ("--lora-extra-vocab-size", False),
        ("--scheduler-delay-factor", False),
        ("--disable-async-output-proc", True),
    ],
)
def test_a_flag_that_vllm_has_no_more_is_known(flag: str, switch: bool) -> None:
    """Read from engine/arg_utils.py of vLLM 0.9.2, 0.12.0, 0.19.1, 0.26.0 and 0.27.1, some of whose flags are gone in 0.28."""
    assert (NO_EFFECT[flag] == "") == switch


def test_drafted_tokens_without_their_number(capsys: Capture) -> None:
    """One token is planned where none is named, and the printed command says so; a number alone drafts with nothing."""
    line = ("--engine", "vllm", "--gpu", "h100", "--seq", "4k")
    code, out, _ = run(capsys, QWEN, *line, "--spec-method", "ngram")
    assert code == 0
    assert '"num_speculative_tokens": 1' in out
    code, _, err = run(capsys, QWEN, *line, "--spec-tokens", "4")
    assert code == 2
    assert "without a method or a model" in err


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("""--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'""", "--engine-option speculative=ngram:4"),
        ("""-sc '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""", "--engine-option speculative=mtp:1"),
        ("--spec-method eagle3 --spec-model org/head --spec-tokens 3", "--engine-option speculative=eagle:org/head:3"),
        ("""-sc '{"model": "org/small", "num_speculative_tokens": 5}'""", "--engine-option speculative=draft:org/small:5"),
        ("--enable-lora --max-loras 4 --max-lora-rank 64", "--lora rank=64,count=4"),
        ("--enable-lora", "--lora rank=16,count=1"),
        ("--max-loras 4", ""),
        ("--kv-cache-dtype fp8 --dtype half", "--dtype fp8 --engine-option dtype=float16"),
        ("--device-memory-utilization .95", "--memory-utilization .95"),
        ("-O3 --seq 4k", "--seq 4k"),
    ],
)
def test_flags_that_say_one_thing(given: str, ours: str) -> None:
    """A draft is one engine option, and adapters one option, as vLLM reads its flags: one adapter of rank 16 by default."""
    assert translated([QWEN, "--engine", "vllm", *shlex.split(given)])[0] == [
        "plan",
        QWEN,
        "--engine",
        "vllm",
        *shlex.split(ours),
    ]


def test_a_share_may_begin_with_its_point(capsys: Capture) -> None:
    """As vLLM reads ``.95``; whoever names the model by a flag has named it."""
    line = ("--engine", "vllm", "--gpu", "l4", "--seq", "4k", "--gpu-memory-utilization")
    assert document(capsys, "--model", QWEN, *line, ".95") == document(capsys, QWEN, *line, "0.95")


def test_what_may_bear_on_memory_is_a_warning(capsys: Capture) -> None:
    """It names the flags by their reason; a server's key is left out and never shown."""
    flags = ("--compilation-config", "{}", "--no-enable-chunked-prefill", "--api-key", "secret", "--swap-space", "4")
    status, out, err = run(capsys, QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "8k", *flags)

    assert status == 0
    assert "warning: the plan is without --compilation-config, which may bear on memory: it changes the CUDA graphs" in err
    assert "--no-enable-chunked-prefill, which may bear on memory: without chunks" in err
    assert "no byte that is planned depends on it: --api-key, --swap-space." in err
    assert "secret" not in out + err


@pytest.mark.parametrize(
    ("given", "experts"),
    [
        ("-tp 4 --enable-expert-parallel", ["--ep", "4"]),
        ("-ep -tp 4 --dp 2", ["--ep", "8"]),
        ("--gpus 8 -ep", ["--ep", "8"]),
        ("--instance p5.48xlarge -ep", ["--ep", "8"]),
        ("-tp 4 --no-enable-expert-parallel", []),
        ("-ep", []),
    ],
)
def test_expert_parallelism_is_over_all_ranks(given: str, experts: list[str]) -> None:
    """VLLM's switch has no number: tp x dp, and nothing on one GPU."""
    line, _ = translated([MOE, *shlex.split(given)])

    assert line[1 : 1 + len(experts)] == experts
    assert len([word for word in line if word == "--ep"]) == bool(experts)


@pytest.mark.parametrize(
    "given",
    [
        "-tp 2 --max-model-len 4k --kv-cache-dtype fp8 --gpu-memory-utilization 0.9 --engine vllm --gpu l4",
        "--engine vllm --block-size 32 --enforce-eager --max-num-seqs 8 --kv-cache-memory-bytes 5G",
        "-ep -tp 2 --engine vllm",
    ],
)
@pytest.mark.parametrize("command", [[], ["plan"], ["explain"], ["compare"], ["sweep"]])
def test_a_translated_line_is_read(given: str, command: list[str]) -> None:
    """Typer reads what was translated, as the command that was meant."""
    line, _ = translated([*command, MOE, *shlex.split(given)])
    found = read(line)

    assert found is not None
    assert found[0] == line[0] == (command or ["plan"])[0]


def test_the_page_has_every_name() -> None:
    """``docs/names.md``, row by row."""
    # Flags that belong together stand behind those that have a name each.
    page = (ROOT / "docs/names.md").read_text(encoding="utf-8").partition("Some flags belong together:")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines()]
    said = {name: ours for first, ours in (row for row in rows if len(row) == 2) for name in re.findall(r"`(-[^`]+)`", first)}
    listed = {spelling: alias for spelling, alias in aliases(PLANNING).items() if not spelling.startswith("--no-")}

    assert said.keys() == listed.keys()
    for spelling, alias in listed.items():
        assert (f"--engine-option {alias.knob}=" if alias.knob else f"`{alias.option.flags[0]}`") in said[spelling]


def test_a_whole_line_of_vllms(capsys: Capture) -> None:
    """The plan is that of kvplan's own names, with the command behind the options too."""
    foreign = "--tensor-parallel-size 2 --max-model-len 32K --kv-cache-dtype fp8 --gpu-memory-utilization 0.9 --max-num-seqs 64"
    own = "--tp 2 --seq 32k --dtype fp8 --memory-utilization 0.9 --engine-option max_num_seqs=64"
    one = document(capsys, *shlex.split(foreign), "plan", QWEN, "--engine", "vllm", "--gpu", "l4")

    assert one == document(capsys, QWEN, *shlex.split(own), "--engine", "vllm", "--gpu", "l4")
    assert one["request"]["batch"] == 1  # --max-num-seqs sizes buffers, it plans no sequences
    assert one["request"]["options"] == {"max_num_seqs": "64"}


def test_a_number_that_vllm_reads_otherwise_is_said(capsys: Capture) -> None:
    """32k is 32,000 for vLLM; nothing is said where both agree, or with -q."""
    status, out, err = run(capsys, QWEN, "--max-model-len", "32k")

    assert status == 0
    assert "32,000 tokens" in out
    assert err == "kvplan: --max-model-len 32k is 32,000, as vLLM reads it; 32k of kvplan is 32,768.\n"
    assert run(capsys, QWEN, "--max-model-len", "32K")[2] == ""
    assert run(capsys, QWEN, "--max-model-len", "32k", "-q")[2] == ""
    assert "32,768 tokens" in run(capsys, QWEN, "--seq", "32k")[1]


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("--tp 2 --tensor-parallel-size 4", "--tp and --tensor-parallel-size are the same option", "one of them"),
        ("-tp 2 --tensor-parallel-size 4", "-tp and --tensor-parallel-size are the same option", "one of them"),
        ("-tp 2 -tp 4", "-tp is given twice", "Give it once"),
        ("--ep 2 --tp 2 -ep", "--ep and --enable-expert-parallel are the same option", "one of them"),
        ("--engine vllm --block-size 16 --engine-option block_size=32", "block_size is given twice", "Give it once"),
        ("--max-model-len auto", "asks for the longest sequence that fits", "Leave it out"),
        ("--max-model-len -1", "asks for the longest sequence that fits", "Leave it out"),
        ("--max-model-len 1.5K", "vLLM takes no part of K", "--seq 1.5K"),
        ("--max-model-len 1k..8k", "is not a number as vLLM writes it", "--max-model-len 32768"),
        ("--block-size 16", "--block-size is an option of vLLM", "Add: --engine vllm"),
        ("--engine vllm --max-num-seqs 1k", "vLLM takes a plain number", "max_num_seqs=1k"),
        ("--engine vllm --enforce-eager=1", "--enforce-eager takes no value", "Write: --enforce-eager"),
        ("-tp", "-tp has no value", "Write: -tp N"),
        ("--max-model-len --tp 2", "--max-model-len has no value", "Write: --max-model-len N"),
        ("--price --gpu h100", "--price has no value", "Write: --price NAME=USD"),
        ("--seq --tensor-parallel-size 2", "--seq has no value", "Write: --seq N"),
        ("--gpus h100", "--gpus is not a number", "Perhaps: --gpu h100"),
        ("--tp vllm", "--tp is not a number", "Perhaps: --engine vllm"),
        ("--gpu l4 --gpus h100", "--gpus is not a number", "Allowed: a whole number"),
        (
            "--engine llamacpp --gpu rtx-4090 --weights q4_k_m --seq 4k --engine-option host_memory=64 --engine-option n_batch=64",
            "host_memory '64' has no unit",
            "--gpu rtx-4090 --ram 64 --engine-option n_batch=64",
        ),
        ("--quantization compressed-tensors", "names no format", "as published"),
    ],
)
def test_what_is_wrong_of_them(capsys: Capture, given: str, said: str, hint: str) -> None:
    """Exit 2, as words and as JSON."""
    status, _, err = run(capsys, QWEN, *shlex.split(given))

    assert status == 2
    assert said in err
    assert hint in err
    assert document(capsys, QWEN, "--offline", *shlex.split(given))["error"]["type"] == "usage"


def test_an_options_value_is_not_translated() -> None:
    """Nor what stands behind ``--``."""
    words = ["compare", QWEN, "--revision", "-tp", "--", "-tp", "--users"]

    assert translated(words) == (words, ())


def test_help_is_help_whatever_else_stands_there(capsys: Capture) -> None:
    """Also beside two names of one option, and an option without its value."""
    for words in (["--tp", "2", "-tp", "4"], ["--max-model-len", "auto?"][:1], ["one", "two"]):
        assert run(capsys, "plan", *words, "--help")[1].startswith("Usage: kvplan plan")


def test_a_number_of_output_means_tokens(capsys: Capture) -> None:
    """Of 4,608 tokens a prompt of 4,096 leaves 512, and the line that is named plans them; a name is that of a file."""
    status, _, err = run(capsys, QWEN, "--output", "512")
    assert status == 2
    assert "--prompt 4096 --seq 4608" in err
    assert document(capsys, QWEN, "--prompt", "4096", "--seq", "4608")["request"]["seq"] == 4096 + 512
    assert "> FILE" in run(capsys, QWEN, "--output", "plan.json")[2]


# --- names that are answered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--num-users", "kvplan calls it --users N"),
        ("--ctx", "kvplan calls it --seq N"),
        ("--ctx-size", "kvplan calls it --seq N"),
        ("-c", "kvplan calls it --seq N"),
        ("--max-len", "kvplan calls it --seq N"),
        ("--context-length", "kvplan calls it --seq N"),
        ("--quantize", "kvplan calls it --weights W"),
        ("--mem-fraction-static", "kvplan calls it --memory-utilization F"),
        ("--model-path", "kvplan takes it without an option: kvplan plan MODEL"),
        ("-m", "kvplan takes it without an option: kvplan plan MODEL"),
        ("-ngl", "It is an option of llama.cpp: --engine llamacpp -ngl N"),
        ("--cpu-offload", "--engine-option cpu_offload_gb=N"),
        ("--num-batch", "--engine llamacpp -ub N"),
        ("--outfile", "kvplan writes to standard output: > FILE"),
        ("--sequnce", "Did you mean: --seq"),
        ("--gpu-memory-util", "Did you mean: --gpu-memory-utilization"),
        ("--contxt", "Did you mean: --context"),
        ("--xyzzy", "See: kvplan plan --help"),
    ],
)
def test_a_foreign_name_is_answered_with_ours(capsys: Capture, flag: str, ours: str) -> None:
    """Exit 2, whatever value follows; the same as JSON."""
    for words in ([flag, "8"], [f"{flag}=8"], [flag]):
        status, _, err = run(capsys, QWEN, *words)

        assert status == 2
        assert f"plan has no option {flag}." in err
        assert ours in err
    assert ours in document(capsys, QWEN, flag, "8")["error"]["hint"]


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("Qwen/Qwen3-8B --ctx 128k", "kvplan Qwen/Qwen3-8B --seq 128k"),
        (
            "--ctx-size=8k Qwen/Qwen3-8B --concurrent-users 4 --precision fp8",
            "kvplan --seq 8k Qwen/Qwen3-8B --users 4 --weights fp8",
        ),
        ("explain --model-path Qwen/Qwen3-8B -c 8k", "kvplan explain Qwen/Qwen3-8B --seq 8k"),
        ("compare Qwen/Qwen3-8B gpt2 --num-ctx 1k", "kvplan compare Qwen/Qwen3-8B gpt2 --seq 1k"),
        ("Qwen/Qwen3-8B --device h100 --load-in-4bit", "kvplan Qwen/Qwen3-8B --gpu h100 --weights bnb4"),
        # A value that kvplan would refuse, a second value, and what may be a secret are not written down.
        ("Qwen/Qwen3-8B --device cuda", ""),
        ("Qwen/Qwen3-8B --ctx lots", ""),
        ("Qwen/Qwen3-8B --ctx 8k --seq 4k", ""),
        ("Qwen/Qwen3-8B --ctx 8k --token abcdefghijk", ""),
    ],
)
def test_the_whole_line_is_written_with_our_names(capsys: Capture, line: str, mended: str) -> None:
    """What the hint says can be typed, and is read."""
    status, _, err = run(capsys, *shlex.split(line))
    hint = err.partition("\n")[2].rstrip()

    assert status == 2
    assert "abcdefghijk" not in err
    assert hint.partition(": kvplan ")[2] == mended.removeprefix("kvplan ")
    if mended:
        assert run(capsys, *shlex.split(mended)[1:], "--offline")[0] in {0, 1}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--users many", "--users is not a number: 'many'"),
        ("--tensor-parallel-size many", "--tensor-parallel-size is not a number: 'many'"),
        ("--quant q4", "--quant 'q4' is not a known weight format.\nDid you mean q4_k_m or q4_0 or mlx_4bit or awq?"),
        ("--engine ollma", "--engine 'ollma' is not known.\nDid you mean ollama?"),
        ("--gpu-memory-utilization 7", "--gpu-memory-utilization is 7.0."),
        ("--gpu foox8", "--gpu 'foox8' is not known."),
    ],
)
def test_an_error_names_the_option_as_it_was_typed(capsys: Capture, line: str, named: str) -> None:
    """An option has several names, and its row in the table one more."""
    assert run(capsys, QWEN, *shlex.split(line))[2].startswith(f"kvplan: {named}")


def test_a_line_of_vllms_can_be_pasted(capsys: Capture) -> None:
    """What changes no bytes is left out with its values and one note, which shows no value; what is not known stays an error."""
    line = "--engine vllm --gpu l4 --max-model-len 4096"
    server = "--trust-remote-code --host 0.0.0.0 --port=8000 --served_model_name a b --seed 1 --tool-call-parser hermes --no-use-tqdm-on-load"
    _, plain, _ = run(capsys, QWEN, *line.split(), "--json")
    status, pasted, said = run(capsys, QWEN, *server.split(), *line.split(), "--json")

    assert (status, pasted) == (0, plain)
    assert said == (
        "kvplan: Left out, because no byte that is planned depends on it: --trust-remote-code, --host, --port, --served-model-name, "
        "--seed, --tool-call-parser, --no-use-tqdm-on-load.\n"
    )
    assert run(capsys, QWEN, *server.split(), "-q", "--seq", "4k")[2] == ""
    assert run(capsys, "--port", "8000", QWEN, "--seq", "4k")[0] == 0
    assert run(capsys, "--port", "8000", "explain", QWEN, "--seq", "4k")[0] == 0
    assert run(capsys, QWEN, "--trust-remote-code", "--limit-mm-per-prompt", "1")[0] == 2
    assert "It changes no bytes: leave it out." in run(capsys, "gpus", "--port", "8000")[2]


def test_a_command_without_a_model_names_itself(capsys: Capture) -> None:
    """The hint can be typed."""
    assert "Write: kvplan recommend MODEL" in run(capsys, "recommend")[2]
    assert "kvplan explain --layers" in run(capsys, "explain")[2]


def test_the_answer_is_an_option_of_the_command(capsys: Capture) -> None:
    """``gpus`` has no sequences."""
    assert "--users" not in run(capsys, "gpus", "--num-users", "3")[2]
    assert "--users" in run(capsys, "recommend", QWEN, "--num-users", "3")[2]


def test_the_table() -> None:
    """No foreign name is taken already, and every answer begins with an option of a plan that there is."""
    own = {flag for option in PLANNING for flag in option.flags}
    taken = own | set(aliases(PLANNING))

    assert not taken & {*FOREIGN, *NO_EFFECT}
    assert not FOREIGN.keys() & set(NO_EFFECT)
    assert {answer.partition(" ")[0] for answer in FOREIGN.values()} <= own | {"MODEL", "kvplan"}


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("reccomend", "kvplan recommend"),
        ("gpu", "kvplan gpus"),
        ("chek", "kvplan check"),
        ("list", "kvplan models"),
        (f"reccomend {QWEN} --seq 4k", f"kvplan recommend {QWEN} --seq 4k"),
        ("gpu h100", "kvplan gpus h100"),
        ("help chek", "kvplan help check"),
    ],
)
def test_a_mistyped_command(capsys: Capture, words: str, meant: str) -> None:
    """Exit 2 before any network is asked, and the line as it was meant."""
    status, _, err = run(capsys, *words.split())

    assert status == 2
    assert f"Did you mean: {meant}\n" in err


def test_a_folder_or_a_model_is_no_mistyped_command(capsys: Capture, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``./chek`` is read if it is there."""
    (tmp_path / "chek").mkdir()
    (tmp_path / "chek/config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    monkeypatch.chdir(tmp_path)

    assert run(capsys, "chek", "--seq", "1k")[0] == 0


def test_vllms_own_command(capsys: Capture) -> None:
    """It can be pasted as it is."""
    status, out, _ = run(capsys, "vllm", "serve", QWEN, "-tp", "2", "--brief")

    assert status == 0
    assert "engine vllm" in out
    assert "tp 2" in out


def test_too_many_words(capsys: Capture) -> None:
    """VLLM's ``-q fp8`` is ``--quiet`` and a word too many."""
    status, _, err = run(capsys, QWEN, "-q", "fp8")

    assert status == 2
    assert "plan does not take the argument 'fp8'" in err
    assert "-q is --quiet" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_its_own_options(command: str) -> None:
    """A line of them is not changed."""
    for option in find_command(command).options:
        for flag in option.flags:
            words = [command, flag] if option.kind == "flag" else [command, flag, "8"]

            assert translated(words) == (words, ())


@pytest.mark.parametrize("depth", [2, 30_000])
def test_a_draft_that_is_nested_without_end(capsys: Capture, depth: int) -> None:
    """Wrong usage, as any JSON that is no mapping."""
    status, _, err = run(capsys, QWEN, "--engine", "vllm", "--gpu", "l4", "--seq", "4k", "--speculative-config", "[" * depth)

    assert status == 2
    assert "is not a JSON mapping" in err


@pytest.mark.parametrize("line", ["gpt2 --window 4096", "sweep gpt2 --sliding-window=4096"])
def test_a_window_is_no_length(capsys: Capture, line: str) -> None:
    """A window is a part of layers: the hint proposes no ``--seq``, and names the help that has it."""
    status, _, err = run(capsys, *line.split())
    assert status == 2
    assert "--seq" not in err
    assert err.rstrip().endswith("kvplan help layers")
    assert "window" in run(capsys, "help", "layers")[1]
