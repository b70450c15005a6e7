"""What people see of a cache policy and of sharing, in every format."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any, Final

import jsonschema
import pytest
from msgspec.structs import replace

from hwcalc import plan
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Definition
from hwcalc.planner.result import Plan, SharingInfo
from hwcalc.report.exports import plan_csv, plan_markdown
from hwcalc.report.policy import policy_lines, sharing_lines
from hwcalc.report.schema import json_schema
from hwcalc.report.table import plan_table
from hwcalc.report.verdict import kept_lines, verdict
from hwcalc.units import human_bytes
from tests.hwcalc.command import QWEN, Capture, run

POLICIES: Final = (
    "snapkv:compression_ratio=0.9",
    "pyramidkv:compression_ratio=0.5",
    "streamingllm:compression_ratio=0.5",
    "observedattention:compression_ratio=0.5",
    "adakv:press=(snapkv:compression_ratio=0.5)",
    "chunkkv:press=(snapkv:compression_ratio=0.5)",
    "think",
    "quest",
    "rkv:budget=1024",
    "triattention",
    "composed:presses=[(snapkv:compression_ratio=0.5),(knorm:compression_ratio=0.5)]",
)
REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"engine": "transformers"},
    {"engine": "vllm"},
    {"engine": "vllm", "compaction": "none"},
    {"prompt": 3000, "batch": 3},
)


@pytest.fixture(name="plans", scope="module")
def _plans() -> list[Plan]:
    found = [plan(QWEN, seq="8k", policy=policy, **request) for policy in POLICIES for request in REQUESTS]
    return [*found, *(plan(QWEN, seq="8k", policy=POLICIES[0], gpu="l4", engine=engine) for engine in ("transformers", "vllm"))]


def numbers(value: object) -> set[int]:
    """Every whole number of a document."""
    if isinstance(value, dict):
        return set().union(*map(numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(numbers, value))
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


def exact_bytes(text: str) -> set[int]:
    """Every exact figure of bytes."""
    return {int(match.replace(",", "")) for match in re.findall(r"(?<![\d.])(\d{1,3}(?:,\d{3})*) B\b", text)}


def of(one: Plan, label: str) -> str:
    """All lines with a label."""
    return "\n".join(text for name, text in policy_lines(one) if name == label)


def test_every_number_is_in_the_document(plans: list[Plan]) -> None:
    """Bytes, and tokens with separators: the table and Markdown say what the JSON says, and nothing else."""
    for one in plans:
        assert one.policy is not None
        known = numbers(one.to_dict())
        lines = [line for line in policy_lines(one, full=True) if line[0] not in {"policy", "quality", "engine", "keeps"}]
        for label, text in lines:
            acted = {sum(len(group.layers) for group in one.policy.layers)}
            rest = {len({number for layer in one.model.layers for number in layer.layers}) - max(acted)}
            told = {
                int(word.replace(",", ""))
                for word in re.findall(r"\b\d{1,3}(?:,\d{3})+\b(?!\.\d)", text.partition("measured")[0])
            }
            assert told <= known | acted | rest, (label, text)
        for text in (plan_table(one, quiet=True), plan_markdown(one, quiet=True)):
            shares = {sum(t.bytes for t in one.cache.tensors if t.kind == kind) for kind in {t.kind for t in one.cache.tensors}}
            assert exact_bytes(text) <= known | shares


def test_documents_fit_the_schema(plans: list[Plan]) -> None:
    """``kvplan schema plan`` knows the policy."""
    validator = jsonschema.Draft202012Validator(json_schema("plan"))
    for one in plans[::3]:
        validator.validate(one.to_dict())


def test_what_is_kept() -> None:
    """1,000 tokens at 0.9: 99 in each of 36 layers."""
    one = plan(QWEN, seq=1000, policy="snapkv:compression_ratio=0.9")

    assert of(one, "tokens") == "99 of the 1,000 tokens of the prompt in each of 36 layers 0-35"
    assert "window itself" in of(one, "keeps")
    assert "13.92 MiB" in of(one, "memory")
    assert "no policy" in plan_table(one)
    assert human_bytes(1000 * 36 * 4096) in plan_table(one)


def test_layers_that_differ() -> None:
    """A pyramid is one range, and every layer with ``-v``; its bar is one."""
    one = plan(QWEN, seq="32k", policy="pyramidkv:compression_ratio=0.5")
    usual, full = policy_lines(one), policy_lines(one, full=True)

    assert of(one, "tokens").startswith("819 of the 32,768 tokens of the prompt in layer 35, up to 31,949 in layer 0")
    assert sum(label == "tokens" for label, _ in usual) == 1
    assert sum(label == "tokens" for label, _ in full) == 36
    assert "36 layers 0-35 · 819 to 31,949 kept of n · bf16" in plan_table(one)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("adakv:press=(snapkv:compression_ratio=0.5)", "the others are masked, and stored"),
        ("think:key_channel_compression_ratio=0.5", "set to zero, and stored"),
        ("quest", "a decode step reads a part"),
        ("knorm:compression_ratio=0.5", "the tensors shrink"),
    ],
)
def test_what_becomes_of_the_memory(policy: str, words: str) -> None:
    """Masks, zeroes and pages that are not read give nothing back, and the plan says so."""
    one = plan(QWEN, seq="8k", policy=policy)
    assert one.policy is not None

    assert words in of(one, "drops")
    assert ("nothing comes back" in of(one, "memory")) == (one.policy.saved_bytes == 0)


def test_other_layers_keep_what_they_keep() -> None:
    """Windows are no business of a policy; a model of windows or states alone has nothing for it."""
    gemma = plan("google/gemma-3-27b-it", seq="32k", policy="streamingllm:compression_ratio=0.5")
    mamba = plan("state-spaces/mamba-130m-hf", seq=4096, policy="knorm:compression_ratio=0.5")

    assert "the other 52 layers keep what they keep" in of(gemma, "tokens")
    assert "acts on no layer" in of(mamba, "effect")
    assert "as if" not in plan_table(mamba).partition("\n\n")[0]


def test_cutting_while_decoding_needs_a_prompt() -> None:
    """Without ``--prompt`` nothing is generated, and a policy that cuts then is told so."""
    assert "--prompt says" in of(plan(QWEN, seq="8k", policy="rkv:budget=1024"), "tokens")
    assert "--prompt N" in dict(kept_lines(plan(QWEN, seq="8k", policy="rkv:budget=1024")))["policy"]
    assert "--prompt N" not in dict(kept_lines(plan(QWEN, seq="8k", prompt="1k", policy="rkv:budget=1024")))["policy"]
    later = of(plan(QWEN, seq="8k", prompt="1k", policy="rkv:budget=1024"), "tokens")

    assert "--prompt" not in later
    assert "at the most 1,152 within a step, 1,151 behind the 7,168 generated tokens" in later


def test_blocks_of_a_paged_cache() -> None:
    """Nominal, without compaction, with it, and the copies that it takes."""
    one = plan(QWEN, seq="32k", policy="snapkv:compression_ratio=0.9", engine="vllm")
    assert one.policy is not None
    assert one.policy.blocks is not None
    blocks, text = one.policy.blocks, of(one, "blocks")

    assert f"{blocks.held:,} blocks of 16 tokens" in text
    assert f"would fill {blocks.nominal:,}" in text
    assert f"without compaction 0 come back (expected for {blocks.choosers:,} choices at random" in text
    assert f"with compaction {blocks.free_compacted:,}: {blocks.repack_copies:,} slots" in text
    assert "whole blocks alone" in of(one, "drops")


def test_published_quality_is_no_promise() -> None:
    """Figures of the planned model with their source; others by the command that lists them; or that none is known."""
    own = of(plan(QWEN, seq="8k", policy="snapkv:compression_ratio=0.5"), "quality")
    other = of(plan("gpt2", seq=512, policy="snapkv:compression_ratio=0.5"), "quality")
    none = of(plan("gpt2", seq=512, policy="knorm:compression_ratio=0.5"), "quality")

    assert "no promise" in own
    assert "AIME24 34.6 % with 2,048 tokens, 57.1 % with all" in own
    assert other == "8 published figures of other models, none of this one: kvplan policies snapkv"
    assert "no published accuracy is known" in none


def test_an_engine_without_the_policy_is_planned_as_if() -> None:
    """The first figure of the answer says it, the line of the engine too."""
    one = plan(QWEN, seq="8k", policy="snapkv:compression_ratio=0.5", engine="vllm", gpu="l4")

    assert "ASSUMED: vllm" in plan_table(one)
    assert of(one, "engine") == "vLLM lacks it: these numbers are assumed, as they would be if it had it"
    assert any("it would take" in note.message for note in one.warnings)
    assert "vLLM lacks it; if it had it: " in dict(kept_lines(one))["policy"]


def test_no_line_without_a_policy() -> None:
    """A plan of every token says nothing of policies."""
    one = plan(QWEN, seq="8k")

    assert policy_lines(one) == sharing_lines(one) == kept_lines(one) == []
    assert "no policy" not in plan_table(one)


def test_rows_have_the_policy(plans: list[Plan]) -> None:
    """Each row of a CSV names the policy, and what it saves."""
    for one in plans:
        assert one.policy is not None
        for row in csv.DictReader(io.StringIO(plan_csv(one))):
            assert (row["policy"], row["prompt"]) == (one.policy.name, str(one.policy.prompt))
            assert int(row["without_policy_bytes"]) - int(row["cache_total_bytes"]) == int(row["policy_saved_bytes"])
            assert row["policy_offered"] == json.dumps(one.policy.offered)
    (*_, bare) = csv.DictReader(io.StringIO(plan_csv(plan(QWEN, seq="8k"))))
    assert bare["policy"] == bare["without_policy_bytes"] == bare["sequences"] == ""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_a_terminal(plans: list[Plan], width: int) -> None:
    """But for commands to copy and long words."""
    for one in plans[::3]:
        for line in plan_table(one, width=width).splitlines():
            # Lines to copy, and those with the name of the policy, are as long as they are.
            assert len(line) <= max(width, 80) or re.match(r" *(try|ask|engine|policy|warning|\S+$)", line), line


def test_brief_says_the_policy() -> None:
    """One line, with hardware and without."""
    for request in ({}, {"gpu": "l4"}):
        text = plan_table(plan(QWEN, seq="8k", policy="snapkv:compression_ratio=0.5", **request), detail="brief")  # type: ignore[arg-type]

        assert re.search(r"^  policy +snapkv:compression_ratio=0.5: ", text, re.MULTILINE)


SHARED: Final = SharingInfo(
    definition=Definition.ENGINE,
    offered=True,
    support="vLLM keeps a common prefix once.",
    sequences=8,
    shared_tokens=2048,
    request_tokens=1024,
    own_tokens=512,
    shared_blocks=128,
    request_blocks=64,
    own_blocks=33,
    copied_blocks=6,
    unshared_bytes=4 * 10**9,
    saved_bytes=3 * 10**9,
)


def test_what_is_shared() -> None:
    """Once for all, once for a request, of each alone, and the copies of last blocks."""
    one = plan(QWEN, seq="8k", batch=2)
    one = replace(one, sharing=SHARED, request=replace(one.request, samples=4, shared_prefix=2048))
    lines = dict(sharing_lines(one))

    assert lines["once"] == "2,048 tokens in 128 blocks kept once for all sequences"
    assert lines["request"] == "1,024 tokens in 64 blocks kept once for the sequences of one request"
    assert lines["own"] == "512 tokens in 33 blocks of each sequence alone"
    assert lines["copied"] == "6 blocks: last ones of prompts, alike, of which each sequence has its own"
    assert "2.79 GiB (75.0 %) saved" in lines["memory"]
    assert "not shared" in plan_table(one)
    assert "4 samples of each" in plan_table(one)


def test_numbers_of_layers() -> None:
    """Layers alike are named by their ranges."""
    one = plan("google/gemma-3-27b-it", seq="32k", policy="knorm:compression_ratio=0.5")
    assert one.policy is not None

    assert one.policy.layers[0].layers == LayerNumbers(range(5, 62, 6))
    assert "each of 10 layers 5,11,17,23,29,35,41,47,53,59" in of(one, "tokens")


def test_lines_to_type_again_are_quoted(capsys: Capture) -> None:
    """Brackets mean something to a shell: they are quoted in every command that is shown."""
    _, out, _ = run(capsys, QWEN, "--seq", "8k", "--policy", "adakv:press=(snapkv:compression_ratio=0.5)")

    assert "--policy 'adakv:press=(snapkv:compression_ratio=0.5)'" in out


def test_none_is_no_policy(capsys: Capture) -> None:
    """``--policy none`` keeps everything."""
    assert run(capsys, QWEN, "--seq", "8k", "--policy", "none", "--json")[1] == run(capsys, QWEN, "--seq", "8k", "--json")[1]


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
@pytest.mark.parametrize(
    "request_",
    [
        {"seq": "8k", "prompt": 6000, "samples": 4, "shared_prefix": "2k", "batch": 8},
        {"seq": "8k", "prompt": 6000, "beams": 4},
        {"seq": "8k", "shared_prefix": "2k", "batch": 3},
        {"lengths": "1k,2k,8k", "batch": 6},
    ],
)
def test_sharing_says_what_the_document_says(engine: str, request_: dict[str, Any]) -> None:
    """Whatever is shared: its numbers are in the JSON, whose schema holds."""
    one = plan(QWEN, engine=engine, **request_)
    assert one.sharing is not None
    document = one.to_dict()
    lines = dict(sharing_lines(one))

    jsonschema.Draft202012Validator(json_schema("plan")).validate(document)
    for text in (lines["own"], lines["memory"].partition(";")[0], *([lines["padding"]] if "padding" in lines else [])):
        told = {int(word.replace(",", "")) for word in re.findall(r"\b\d{1,3}(?:,\d{3})+\b(?!\.\d)", text)}
        assert told <= numbers(document), text
    assert ("nothing is saved" in lines["memory"]) == (one.sharing.saved_bytes == 0)
    assert (f"{one.sharing.sequences:,} sequences" in plan_table(one)) == (one.sharing.sequences > 1)
    assert ("not shared" in plan_markdown(one)) == (one.sharing.saved_bytes > 0)


def test_unlike_lengths() -> None:
    """Each length is named, and padding where an engine pads."""
    padded = plan(QWEN, lengths="1k,2k,8k", batch=6, engine="transformers")
    paged = plan(QWEN, lengths="1k,2k,8k", batch=6, engine="vllm")

    assert dict(sharing_lines(padded))["lengths"] == "2 of 8,192 tokens, 2 of 2,048 tokens, 2 of 1,024 tokens"
    # 6 x 8,192 less twice 8,192 + 2,048 + 1,024.
    assert dict(sharing_lines(padded))["padding"].startswith("26,624 positions")
    assert "padding" not in dict(sharing_lines(paged))
    assert "1,024 or 2,048 or 8,192 tokens" in plan_table(paged)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"policy": "snapkv"}, "Write: snapkv:compression_ratio=0.5"),
        ({"policy": "adakv:press=snapkv"}, "Write: snapkv:compression_ratio=0.5"),
        ({"policy": "triattention", "seq": "1k"}, "keep all 1,024 tokens. See: kvplan policies triattention"),
        ({"policy": "snapkv:budget=9000"}, "keep all 8,192 tokens"),
        ({"policy": "snapkv:compression_ratio=0.5"}, ""),
        ({"policy": "triattention"}, ""),
        ({"policy": "quest"}, ""),
        ({"policy": "think:key_channel_compression_ratio=0.5"}, ""),
        ({"policy": "adakv:press=(snapkv:compression_ratio=0.5)"}, ""),
    ],
)
def test_a_policy_that_drops_nothing_says_so(request_: dict[str, Any], words: str) -> None:
    """Most ratios are 0 by default: the name alone keeps every token, and the answer says what to write."""
    told = [note.message for note in plan(QWEN, **{"seq": "8k"} | request_).warnings if note.code == "policy-drops-nothing"]

    assert len(told) == bool(words)
    assert all(words in text for text in told)


@pytest.mark.parametrize("policy", [None, "snapkv:compression_ratio=0.5"])
def test_the_timed_prompt_is_the_prompt(policy: str | None) -> None:
    """Of 8,192 tokens 1,024 are the prompt: its time is that of a plan of 1,024 tokens, and the table says which."""
    one = plan(QWEN, seq="8k", prompt="1k", policy=policy, gpu="h100-sxm5-80gb", engine="vllm")
    short = plan(QWEN, seq="1k", gpu="h100-sxm5-80gb", engine="vllm")
    whole = plan(QWEN, seq="8k", gpu="h100-sxm5-80gb", engine="vllm")

    assert one.speed is not None
    assert short.speed is not None
    assert one.speed.prefill_s_bound == short.speed.prefill_s_bound
    assert "; the first token after" in plan_table(one).replace("\n           ", " ")
    assert "prompt of 1,024 tokens" in plan_table(one)
    assert "; a prompt of 8,192 takes" in plan_table(whole).replace("\n           ", " ")


def test_one_sequence_shares_with_nobody() -> None:
    """A system prompt and one user: nothing is saved yet, and the line says why."""
    alone = plan(QWEN, seq="4k", shared_prefix="2k", engine="vllm", gpu="l4")
    two = plan(QWEN, seq="4k", shared_prefix="2k", engine="vllm", gpu="l4", batch=2)

    assert dict(kept_lines(alone))["shared"] == "nothing: there is one sequence, and nobody to share with; several: --users N"
    assert "saved: 2,048 tokens once for all" in dict(kept_lines(two))["shared"]


def test_room_in_blocks_has_no_dtype() -> None:
    """Blocks of a prompt before it is cut are bytes: neither one position nor int8."""
    one = plan(QWEN, seq="16k", prompt="12k", policy="snapkv:compression_ratio=0.5", engine="vllm", gpu="l4")
    table = plan_table(one)

    assert "blocks of a prompt before it is cut\n" in table
    assert "int8" not in table
    assert not any("int8" in text for text in (plan_table(one, detail="full"), plan_csv(one), plan_markdown(one, detail="full")))


def test_a_prefix_that_no_policy_may_cut_can_cost_more() -> None:
    """2,048 tokens in 128 blocks stay for all, where each sequence by itself would cut its own to a few: no negative saving is shown."""
    one = plan(
        QWEN, engine="vllm", seq="8k", prompt="4k", shared_prefix="2k", batch=4, policy="rkv:budget=512",
        engine_options={"max_num_batched_tokens": "8192"},
    )  # fmt: skip
    assert one.sharing is not None
    assert one.sharing.saved_bytes < 0
    more, lines = human_bytes(-one.sharing.saved_bytes), [*sharing_lines(one), *kept_lines(one)]

    words = [text for label, text in lines if label in ("memory", "shared")]
    assert len(words) == 2
    assert all(more in text and "-" not in text and "more" in text and "nothing that is shared" in text for text in words)


def test_a_prefix_is_kept_once_though_nothing_is_saved() -> None:
    """A batch of 2,048 tokens has one prompt at a time: as many blocks with the prefix kept once as without, 128 + 160 + 88."""
    one = plan(
        QWEN, engine="vllm", seq="8k", prompt="4k", shared_prefix="2k", batch=4, policy="rkv:budget=512",
        engine_options={"max_num_batched_tokens": "2048"},
    )  # fmt: skip
    assert one.sharing is not None
    assert one.sharing.saved_bytes == 0

    assert "every sequence is kept by itself" not in dict(kept_lines(one))["shared"]


def test_an_engine_without_the_policy_is_not_said_to_start() -> None:
    """It would not as it is; one that has the policy will, and one that has not refuses in its own words where the policy changes nothing."""
    lacking = plan(QWEN, seq="32k", prompt="1k", policy="h2o:budget=512", engine="vllm", kv_memory="2GiB")
    having = plan(QWEN, seq="32k", prompt="1k", policy="triattention", engine="vllm@0.18", kv_memory="2GiB")
    unchanged = plan(QWEN, seq="32k", policy="snapkv:compression_ratio=0.5", engine="vllm", kv_memory="3GiB")

    assert verdict(lacking) == "fits, if vLLM had the policy"
    assert verdict(having) == "fits: vLLM will start"
    assert verdict(unchanged) == "does not fit: vLLM will not start"
