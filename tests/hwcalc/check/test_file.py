"""A check file: defaults, keys, requirements, and errors with their place."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
import yaml

from hwcalc import check as judged
from hwcalc.check.fields import ALIASES, OPTIONS, OTHER_KEYS, REQUIREMENTS, Headroom, check_file_schema
from hwcalc.check.file import MOST_FAULTS, Check, CheckFile, CheckUsageError, parse_check_file
from hwcalc.cli.check import EXAMPLE
from hwcalc.cli.options import PLANNING
from hwcalc.errors import UsageError
from hwcalc.planner.options import DIMENSIONS, WITHIN

HEAD = "schema_version: 1\nchecks:\n"


def checks(text: str) -> tuple[Check, ...]:
    """The checks of a list written below ``checks:``."""
    return parse_check_file(HEAD + text, "f").checks


def one(text: str) -> Check:
    """The one check of such a list."""
    (check,) = checks(text)
    return check


def required(check: Check) -> dict[str, Any]:
    """Requirement -> limit."""
    return {item.name: item.limit for item in check.required}


def test_the_contracts_own_example() -> None:
    """The file that the contract shows, with its defaults filled in."""
    text = """schema_version: 1
defaults: {engine: vllm, gpu: l4, dtype: fp8}
checks:
  - {model: meta-llama/Llama-3.1-8B, seq: 32k, concurrency: 4, headroom: 5%}
  - {model: Qwen/Qwen3-8B, seq: 128k, gpu: h100-sxm5-80gb, max_cache: 20GiB}
"""
    first, second = parse_check_file(text, "f").checks

    assert first.model == "meta-llama/Llama-3.1-8B"
    assert first.options == {"seq": 32 * 1024, "batch": 4, "dtype": "fp8", "engine": "vllm", "gpu": "l4"}
    assert required(first) == {"fits": True, "headroom": Headroom(share=Fraction(1, 20))}
    assert second.options == {"seq": 128 * 1024, "dtype": "fp8", "engine": "vllm", "gpu": "h100-sxm5-80gb"}
    assert required(second) == {"fits": True, "max_cache": 20 * 2**30}
    assert [(check.line, check.column) for check in (first, second)] == [(4, 5), (5, 5)]


def test_every_key_is_an_option_of_a_plan() -> None:
    """Nothing that a plan takes is missing, but what only the command line needs."""
    only_there = {"model", "offline", "token", "endpoint", "json", "format_", "quiet", "color", "no_color"}
    # Limits of time and of cost are requirements of a check; where speeds come from is not said in one.
    only_there |= {*WITHIN, "cost", "measured", "no_calibration"}
    names = {option.name for option in PLANNING} - only_there - set(DIMENSIONS)

    assert names <= set(OPTIONS)
    assert set(ALIASES.values()) <= set(OPTIONS)


def test_null_takes_a_default_back() -> None:
    """A key's default, and the verdict that hardware asks for."""
    text = """schema_version: 1
defaults: {gpu: l4, max_cache: 1GiB, headroom: 5%}
checks:
  - {model: m, gpu: null, headroom: null}
  - {model: m, fits: null, headroom: null}
"""
    without, unasked = parse_check_file(text, "f").checks

    assert (without.options, required(without)) == ({}, {"max_cache": 2**30})
    assert (unasked.options, required(unasked)) == ({"gpu": "l4"}, {"max_cache": 2**30})


def test_a_checks_instance_replaces_the_default_gpu() -> None:
    """And the other way round: they are two ways to name the hardware."""
    text = """schema_version: 1
defaults: {gpu: l4, gpus: 2}
checks: [{model: m, instance: g6.xlarge}]
"""
    assert parse_check_file(text, "f").checks[0].options == {"instance": "g6.xlarge"}


def test_text_may_look_like_a_number() -> None:
    """A commit of digits, a commit that YAML reads as 10 to some power, a version."""
    assert one("- {model: m, revision: 1234567, max_cache: 1}").options == {"revision": "1234567"}
    assert one("- {model: m, revision: 12e5, max_cache: 1}").options == {"revision": "12e5"}


@pytest.mark.parametrize(
    ("written", "free", "usable"),
    [
        ("5%", 50, 1000),
        ("2.5%", 25, 1000),
        ("0.1%", 1, 1000),
        ("5%", 1, 19),  # 0.95 of a byte: the whole of it must be free
        ("2GiB", 2 * 2**30, 1000),
        ("100%", 1000, 1000),
        ("0%", 0, 1000),
        ("0", 0, 1000),
        ("1048576", 2**20, 1000),
        ("5B", 5, 1000),  # with its unit it is meant
    ],
)
def test_headroom(written: str, free: int, usable: int) -> None:
    """A share of what is usable, without rounding down, or bytes."""
    limit = required(one(f"- {{model: m, gpu: l4, headroom: {written}}}"))["headroom"]

    assert limit.of(usable) == free


def test_names() -> None:
    """One's own name; else what is planned; twice the same gets a number."""
    found = checks(
        "- {name: mine, model: m, max_cache: 1}\n- {model: m, seq: 1k, max_cache: 1}\n- {model: m, seq: 1k, max_cache: 2}\n"
    )

    assert [check.name for check in found] == ["mine", "m, seq 1024", "m, seq 1024 (2)"]


@pytest.mark.parametrize(
    ("text", "place", "said", "hint"),
    [
        ("- {model: m, seqq: 1, max_cache: 1}", "3:14", "no key 'seqq'", "Did you mean seq?"),
        ("- {model: m, max-cache: 1}", "3:14", "no key 'max-cache'", "Did you mean max_cache?"),
        ("- {model: m, xyzzy: 1}", "3:14", "no key 'xyzzy'", "Allowed: name, model, seq"),
        ("- {model: m}", "3:3", "demands nothing", "Add a gpu"),
        ("- {seq: 1k, max_cache: 1}", "3:3", "names no model", "model: org/name"),
        ("- {model: -, max_cache: 1}", "3:11", "cannot be standard input", "id or a path"),
        ("- {model: [m], max_cache: 1}", "3:11", "model must be text", "model: TEXT"),
        ("- {model: true, max_cache: 1}", "3:11", "model must be text", ""),
        ("- {model: m, max_cache: 1, sek: 8k}", "3:28", "no key 'sek'", "Did you mean seq?"),
        ("- {model: m, max_cache: 1, sqe: 8k}", "3:28", "no key 'sqe'", "Did you mean seq?"),
        ("- {model: m, max_cache: 1, concurrency: 1.5}", "3:41", "concurrency is not a whole number", ""),
        ("- {model: m, max_cache: 1, max-model-len: [2]}", "3:43", "max-model-len is not a whole number", ""),
        (
            "- {model: m, gpu: l4, min_rate: true}",
            "3:33",
            "min_rate must be a number of tokens a second",
            "min_rate: 40, or 40/s",
        ),
        ("- {model: m, gpu: l4, max_ttft: [2]}", "3:33", "max_ttft must be a time with its unit", "max_ttft: 500ms, or 2s"),
        ("- {model: m, gpu: l4, max_cost: true}", "3:33", "max_cost must be US dollars per hour or month", "max_cost: 7/h"),
        ("- {model: m, seq: 0, max_cache: 1}", "3:19", "out of range", "from 1"),
        ("- {model: m, seq: -5, max_cache: 1}", "3:19", "out of range", "from 1"),
        ("- {model: m, seq: 1.5, max_cache: 1}", "3:19", "seq is not a whole number", "32k"),
        ("- {model: m, seq: true, max_cache: 1}", "3:19", "seq is not a whole number", ""),
        ("- {model: m, seq: .nan, max_cache: 1}", "3:19", "seq is not a number", ""),
        ("- {model: m, seq: 99999999999999999999, max_cache: 1}", "3:19", "out of range", ""),
        ("- {model: m, max_cache: 1XB}", "3:25", "max_cache is not a number", "GiB"),
        ("- {model: m, max_cache: -1}", "3:25", "out of range", ""),
        ("- {model: m, batch: 1, concurrency: 2, max_cache: 1}", "3:37", "batch and concurrency are the same", "one"),
        ("- {model: m, gpu: l4, instance: i}", "3:33", "two ways", "one"),
        ("- {model: m, draft: -, max_cache: 1}", "3:21", "draft cannot be standard input", "id or a path"),
        ("- {model: m, kv_memory: 1GiB, gpu: l4, max_gpus: 2}", "3:50", "asks for others", "one"),
        ("- {model: m, kv_memory: 1GiB, min_decode_tokens_per_s: 2}", "3:56", "needs an accelerator", "gpu: NAME"),
        ("- {model: m, gpu: l4, max_gpus: 1.5}", "3:33", "max_gpus is not a whole number from 1.", ""),
        ("- {model: m, headroom: 5%}", "3:24", "headroom needs hardware", "gpu: NAME"),
        ("- {model: m, min_seq: 5}", "3:23", "min_seq needs hardware", "gpu: NAME"),
        ("- {model: m, gpu: l4, headroom: 101%}", "3:33", "not a share of the whole", ""),
        ("- {model: m, gpu: l4, headroom: 5}", "3:33", "headroom '5' has no unit", "5%, or bytes such as 2GiB"),
        ("- {model: m, gpu: l4, headroom: 1048575}", "3:33", "has no unit", "2GiB"),
        ("- {model: m, gpu: l4, headroom: '5'}", "3:33", "has no unit", "2GiB"),
        ("- {model: m, gpu: l4, headroom: 0.05}", "3:33", "headroom is not a share such as 5%, or bytes", "2GiB"),
        ("- {model: m, gpu: l4, headroom: 1e1%}", "3:33", "not a share of the whole: '1e1%'", "5%"),
        ("- {model: m, gpu: l4, memory_utilization: 5}", "3:43", "memory_utilization is not a share of the whole", "0.05"),
        ("- {model: m, gpu: l4, margin: 1e1%}", "3:31", "margin is not a share of the whole", "5%"),
        ("- {model: m, gpu: l4, headroom: x%}", "3:33", "headroom is not a number", "5%"),
        ("- {model: m, gpu: l4, headroom: 5%, fits: false}", "3:33", "headroom demands that it fits", ""),
        ("- {model: m, gpu: l4, fits: maybe}", "3:29", "not true or false", "true, false"),
        ("- {model: m, gpu: l4, memory_utilization: x}", "3:43", "memory_utilization is not a number", "5%"),
        ("- {model: m, gpu: l4, min_decode_tokens_per_s: .inf}", "3:48", "not a number above 0", ""),
        ("- {model: m, gpu: l4, min_decode_tokens_per_s: 1e999}", "3:48", "out of range", ""),
        ("- {model: m, max_cache: 1, engine_options: [a]}", "3:44", "must map names to values", "block_size"),
        ("- {model: m, max_cache: 1, engine_options: {a: [1]}}", "3:44", "engine option 'a'", ""),
        ("- m", "3:3", "a check must be a mapping", "--example"),
        (
            "- {name: a, model: m, max_cache: 1}\n- {name: a, model: m, max_cache: 1}",
            "4:10",
            "stands twice (first in line 3)",
            "",
        ),
        (f"- {{name: {'a' * 201}, model: m, max_cache: 1}}", "3:10", "longer than 200", ""),
    ],
)
def test_errors_name_the_place(text: str, place: str, said: str, hint: str) -> None:
    """File, line, column, what is wrong and what to write instead; exit status 2."""
    with pytest.raises(CheckUsageError) as caught:
        checks(text)

    assert caught.value.message.startswith(f"f:{place}: ")
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a check file must be a mapping"),
        ("checks: []", "schema_version is missing"),
        ("schema_version: 2\nchecks: [{}]", "schema_version '2' is not known"),
        ("schema_version: true\nchecks: [{}]", "schema_version 'true' is not known"),
        ("schema_version: '1'\nchecks: [{}]", "schema_version '1' is not known"),
        ("schema_version: 1", "checks must be a list"),
        ("schema_version: 1\nchecks: []", "checks must be a list of at least one"),
        ("schema_version: 1\nchecks: {}", "checks must be a list"),
        ("schema_version: 1\ncheks: []", "no key 'cheks'"),
        ("schema_version: 1\ndefaults: 5\nchecks: [{}]", "defaults must be a mapping"),
        ("schema_version: 1\ndefaults: {name: x}\nchecks: [{}]", "defaults cannot hold a name"),
        ("schema_version: 1\ndefaults: {seq: x}\nchecks: [{model: m, max_cache: 1}]", "f:2:17: seq is not a number"),
    ],
)
def test_a_whole_file_that_is_wrong(text: str, said: str) -> None:
    """What is above the checks is checked as they are."""
    with pytest.raises(CheckUsageError) as caught:
        parse_check_file(text, "f")

    assert said in caught.value.message


FAULTY = """schema_version: 2
defaults: {engine: vllm, gpu: l4, sequ: 4k, batch: x}
checks:
  - {model: m, seq: many, tp: 0}
  - {batch: 1, seq: 4k, min_seq: y, model: -}
  - {name: a, model: m, max_cachee: 1}
  - {name: a, model: m, instance: p5, gpu: l4, kv_memory: 1GiB, max_gpus: 2}
  - 5
  - {batch: 2, gpu: null, max_cache: 1}
"""


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model Qwen/Qwen3-8B --max-model-len 16384\n",
        "#!/bin/sh\nvllm serve Qwen/Qwen3-8B\n",
    ],
    ids=["compose", "script"],
)
def test_a_file_that_starts_servers(text: str) -> None:
    """It is sent to the command that plans it."""
    with pytest.raises(CheckUsageError, match="is no check file") as caught:
        parse_check_file(text, "f.yml")

    assert caught.value.hint == "Plan them: kvplan launch f.yml"


def test_all_faults_of_a_file() -> None:
    """Each once, with its line, in their order; a fault of the defaults is not one of every check."""
    with pytest.raises(CheckUsageError) as caught:
        parse_check_file(FAULTY, "f")
    faults = (caught.value, *caught.value.others)

    assert [(fault.line, fault.message.partition(": ")[2]) for fault in faults] == [
        (1, "schema_version '2' is not known."),
        (2, "defaults has no key 'sequ'."),
        (2, "batch is not a number: 'x'."),
        (4, "seq is not a number: 'many'."),
        (4, "tp is out of range: 0."),
        (5, "min_seq is not a number: 'y'."),
        (5, "a check's model cannot be standard input."),
        (6, "a check has no key 'max_cachee'."),
        (7, "the name 'a' stands twice (first in line 6)."),
        (7, "gpu and instance are two ways to say the same."),
        (7, "--instance 'p5' is not known."),
        (7, "kv_memory is of this number of GPUs alone, and max_gpus asks for others."),
        (8, "a check must be a mapping of keys and values."),
        (9, "the check names no model."),
    ]
    assert all(fault.message.startswith(f"f:{fault.line}:{fault.column}: ") and fault.hint for fault in faults)


def test_the_faults_are_bounded() -> None:
    """A file of 500 wrong checks is read no further than its first faults."""
    with pytest.raises(CheckUsageError) as caught:
        checks("- {model: m, seq: x}\n" * 500)
    faults = (caught.value, *caught.value.others)

    assert len(faults) == MOST_FAULTS + 1
    assert [fault.line for fault in faults] == list(range(3, 3 + MOST_FAULTS + 1))
    assert "more faults, which are not listed" in faults[-1].message


def test_the_folder_is_the_files_own() -> None:
    """Where relative paths start."""
    assert [CheckFile(path=path, checks=()).folder for path in ("ci/kvplan.yaml", "kvplan.yaml", "-")] == ["ci", ".", ""]


def test_the_published_schema_agrees_with_the_reader() -> None:
    """What the one takes and refuses of keys and types, the other does too."""
    schema = check_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    check = schema["properties"]["checks"]["items"]["properties"]

    assert set(check) == {"name", "model", *OPTIONS, *OTHER_KEYS, *REQUIREMENTS}
    assert validator.is_valid(yaml.safe_load(EXAMPLE))
    start = {"model": "m", "max_cache": 1}
    for good in (
        {"seq": "32k"},
        {"seq": 5},
        {"max_total": "1.5 TiB"},
        {"headroom": "2.5%", "gpu": "l4"},
        {"fits": None},
        {"engine_options": {"a": None}},
        {"port": 8000, "enable-chunked-prefill": True, "swap_space": 4},
    ):
        assert validator.is_valid({"schema_version": 1, "checks": [start | good]}), good
        parse_check_file(json.dumps({"schema_version": 1, "checks": [start | good]}), "f")
    for bad in (
        {"seq": 0},
        {"seq": True},
        {"seqq": 1},
        {"hosts": 1},
        {"fits": "x"},
        {"max_total": -1},
        {"headroom": "x%"},
        {"model": 5},
    ):
        assert not validator.is_valid({"schema_version": 1, "checks": [start | bad]}), bad


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        *(({"headroom": value}, True) for value in (0, 2**20, 2.0**20, "0%", "5%", "5 %", "2.5%", "100%", "99.999%", "2GiB", "2.5 gib", "7B")),
        *(({"headroom": value}, False) for value in (1, 5, 5.0, 2**20 - 1, -1, "5", "2097152", "1e1%", "101%", "-5%", "5%%", "5.%", "%", "2iB", "1.5B", True)),
        *(({"margin": value}, True) for value in (0, 0.05, 1e-5, 1, "5%", "0.05", "100%")),
        *(({"margin": value}, False) for value in (5, -0.1, "5", "1e1%", "1e-1", "101%", ".5", "", True)),
        *(({"memory_utilization": value}, True) for value in (0.9, "90%", "0.9", 1.0)),
        *(({"memory_utilization": value}, False) for value in (90, "90", "900%")),
        *(({"max_cache": value}, True) for value in (5, 5.0, "5", "1_000", "1.5 TiB", "5B")),
        *(({"max_cache": value}, False) for value in (1.5, "1.5B", "1.5.5GiB", "5iB", "5G", -1)),
        *(({"kv_memory": value}, True) for value in (0, 2**20, "20GiB", "80 GB", "7B")),
        *(({"kv_memory": value}, False) for value in (1, 20, 2**20 - 1, "20", "21474836480", -1, "1.5B", True)),
        *(({"seq": value}, True) for value in (5, 5.0, "32k")),
        *(({"seq": value}, False) for value in (5.5, 0, "x")),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_are_to_the_schema_what_they_are_to_the_reader(given: dict[str, Any], taken: bool) -> None:
    """What an editor marks as wrong the reader refuses, and the other way round."""
    document = {"schema_version": 1, "checks": [{"model": "m", "gpu": "l4", **given}]}

    assert jsonschema.Draft202012Validator(check_file_schema()).is_valid(document) is taken
    if taken:
        parse_check_file(json.dumps(document), "f")
    else:
        with pytest.raises(CheckUsageError):
            parse_check_file(json.dumps(document), "f")


@pytest.mark.parametrize(
    ("version", "taken"), [("1", True), ("1.0", True), ("1.5", False), ("true", False), ('"1"', False), ("2", False)]
)
def test_the_schema_version_too(version: str, taken: bool) -> None:
    """JSON Schema knows numbers by their value alone (draft 2020-12, core, 4.2.2): no schema tells 1.0 from 1."""
    text = f'{{"schema_version": {version}, "checks": [{{"model": "m", "max_cache": 1}}]}}'

    assert jsonschema.Draft202012Validator(check_file_schema()).is_valid(json.loads(text)) is taken
    if taken:
        assert parse_check_file(text, "f").checks
    else:
        with pytest.raises(CheckUsageError, match="is not known"):
            parse_check_file(text, "f")


def test_the_example_is_a_check_file() -> None:
    """What --example prints can be read as it is."""
    assert [check.name for check in parse_check_file(EXAMPLE, "f").checks] == ["chat", "long documents", "cache of one token"]


def test_vllms_names_are_keys() -> None:
    """As they stand in its own YAML: options of a plan, and settings of the engine; beside ``seq`` the longest length is the server's."""
    alone = one(
        "  - {model: m, engine: vllm, max-model-len: 16384, tensor-parallel-size: 2, max-num-seqs: 64, enforce-eager: true, max_cache: 1GiB}\n"
    )
    beside = one(
        "  - {model: m, engine: vllm, seq: 8k, max-model-len: 32768, engine_options: {block_size: 32}, max_cache: 1GiB}\n"
    )

    assert alone.options == {
        "seq": 16384, "tp": 2, "engine": "vllm", "engine_options": {"max_num_seqs": "64", "enforce_eager": "true"},
    }  # fmt: skip
    assert (beside.options["seq"], beside.options["engine_options"]) == (8192, {"block_size": "32", "max_model_len": "32768"})
    with pytest.raises(CheckUsageError, match="are the same"):
        checks("  - {model: m, tp: 2, tensor-parallel-size: 2}\n")
    with pytest.raises(CheckUsageError, match="are the same"):
        checks("  - {model: m, block-size: 16, engine_options: {block_size: 32}, max_cache: 1GiB}\n")


def test_vllms_names_without_bytes_are_left_out() -> None:
    """In defaults and checks, with a note; another name is a fault as before."""
    rows = "  - {model: m, swap-space: 4, max_cache: 1GiB}\n"
    read = parse_check_file(f"schema_version: 1\ndefaults: {{trust_remote_code: true}}\nchecks:\n{rows}", "f")

    assert read.checks[0].options == {}
    assert [note.message for note in read.notes] == [
        "Left out, because no byte that is planned depends on it: swap-space, trust_remote_code."
    ]
    with pytest.raises(CheckUsageError, match="no key 'swap-spaces'"):
        checks("  - {model: m, swap-spaces: 4, max_cache: 1GiB}\n")


def test_a_gpu_may_say_how_many() -> None:
    """``4xh100`` is four; another number is a fault at its place."""
    assert one("  - {model: m, gpu: 4xh100}\n").options == {"gpu": "h100", "gpus": 4}
    with pytest.raises(CheckUsageError, match="differ"):
        checks("  - {model: m, gpu: 4xh100, gpus: 2}\n")


def test_a_check_says_how_many_of_the_gpus_of_the_defaults() -> None:
    """What a check says itself counts, whichever key says it; two numbers in the defaults are still a fault."""
    assert with_defaults("{gpu: 4xh100}", "{model: m, gpus: 8}").options == {"gpu": "h100", "gpus": 8}
    assert with_defaults("{gpus: 8}", "{model: m, gpu: 4xh100}").options == {"gpu": "h100", "gpus": 4}
    assert with_defaults("{gpu: h100, gpus: 2}", "{model: m, gpu: 4xl4}").options == {"gpu": "l4", "gpus": 4}
    with pytest.raises(CheckUsageError, match="differ"):
        with_defaults("{gpu: 4xh100, gpus: 2}", "{model: m}")


def with_defaults(defaults: str, check: str) -> Check:
    """The only check of a file with defaults."""
    (check_read,) = parse_check_file(f"schema_version: 1\ndefaults: {defaults}\nchecks: [{check}]\n", "f").checks
    return check_read


@pytest.mark.parametrize(
    ("defaults", "own", "options"),
    [
        ("max_num_seqs: 64", "block_size: 32", {"max_num_seqs": "64", "block_size": "32"}),
        ("max_num_seqs: 64", "engine_options: {block_size: 32}", {"max_num_seqs": "64", "block_size": "32"}),
        ("engine_options: {max_num_seqs: 64}", "max-num-seqs: 8", {"max_num_seqs": "8"}),
        ("engine_options: {max_num_seqs: 64, block_size: 32}", "block_size: null", {"max_num_seqs": "64"}),
        ("max_num_seqs: 64", "engine_options: {max_num_seqs: null}", None),
        ("max_num_seqs: 64", "engine_options: null, block_size: 32", {"block_size": "32"}),
        ("max_num_seqs: 64", "engine_options: {}", {"max_num_seqs": "64"}),
    ],
)
def test_each_engine_option_has_its_default(defaults: str, own: str, options: dict[str, str] | None) -> None:
    """A check that writes another option keeps those of the defaults; null takes back a single option, or all of them."""
    check = with_defaults(f"{{engine: vllm, {defaults}}}", f"{{model: m, max_cache: 1, {own}}}")

    assert check.options.get("engine_options") == options


@pytest.mark.parametrize(
    ("defaults", "own", "seq", "of_server"),
    [
        ("seq: 8k", "max_model_len: 32k", 8192, "32k"),
        ("max_model_len: 32k", "seq: 8k", 8192, "32k"),
        ("max_model_len: 32k", "max_model_len: 16k", 16384, None),
        ("max_model_len: 32k", "seq: 8k, engine_options: {max_model_len: 16k}", 8192, "16k"),
        ("seq: 8k, engine_options: {max_model_len: 32k}", "max_model_len: 16k", 8192, "16k"),
        ("seq: 8k", "seq: null, max_model_len: 32k", 32768, None),
        ("seq: 8k, max_model_len: 32k", "max_model_len: null", 8192, None),
    ],
)
def test_the_servers_length_beside_a_default(defaults: str, own: str, seq: int, of_server: str | None) -> None:
    """It is the length of a sequence only where neither the check nor the defaults give that."""
    options = with_defaults(f"{{engine: vllm, {defaults}}}", f"{{model: m, max_cache: 1, {own}}}").options

    assert (options["seq"], options.get("engine_options", {}).get("max_model_len")) == (seq, of_server)


def test_the_number_in_a_checks_gpu_replaces_the_default_number() -> None:
    """The check says how many; without a number in its gpu the default stays."""
    assert with_defaults("{gpus: 4}", "{model: m, gpu: 2xl40s}").options == {"gpu": "l40s", "gpus": 2}
    assert with_defaults("{gpus: 4}", "{model: m, gpu: l40s}").options == {"gpu": "l40s", "gpus": 4}


def test_an_engine_option_that_cannot_be_read_is_told_where_it_stands() -> None:
    """Among the defaults too, and once for all checks."""
    with pytest.raises(CheckUsageError, match=r"^f:2:24: the engine option 'block_size'") as caught:
        with_defaults("{block_size: [1]}", "{model: m, max_cache: 1, max_num_seqs: 1}, {model: m, max_cache: 2}")

    assert caught.value.others == ()


def test_vllms_names_that_bear_on_memory_are_warned_about() -> None:
    """As on the command line, with the reason of the table of its flags: no plan is said to be right without them."""
    rows = "  - {model: m, kv_cache_dtype_skip_layers: [0, 1], compilation_config: null, max_cache: 1GiB}\n"
    read = parse_check_file(f"schema_version: 1\ndefaults: {{hf-overrides: x, compilation_config: y}}\nchecks:\n{rows}", "f")

    assert read.notes == ()
    assert [note.message for note in read.checks[0].unplanned_flags] == [
        "The plan is without hf-overrides, which may bear on memory: it changes the model.",
        "The plan is without kv_cache_dtype_skip_layers, which may bear on memory: it changes how blocks are made or which are kept.",
    ]


def test_the_content_of_a_file_may_be_a_dict() -> None:
    """What Qwen3-8B keeps of 1,024 tokens is 36 x 2 x 8 x 128 x 2 bytes each, 144 MiB; a dict has no lock and no other values than YAML."""
    content = {"schema_version": 1, "checks": [{"name": "one", "model": "Qwen/Qwen3-8B", "seq": 1024, "max_cache": "144MiB"}]}
    assert [one.status for one in judged(content).checks] == ["pass"]
    content["checks"] = [{"name": "one", "model": "Qwen/Qwen3-8B", "seq": 1024, "max_cache": "143MiB"}]
    assert [one.status for one in judged(content).checks] == ["fail"]
    with pytest.raises(UsageError, match="no file beside which a lock"):
        judged(content, lock="write")
    with pytest.raises(UsageError, match="text, numbers, lists and dicts"):
        judged({"checks": {1, 2}})
