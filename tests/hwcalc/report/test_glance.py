"""The first screen of a plan: 24 lines of 80 columns hold the answer, whatever the plan."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError
from hwcalc.hardware import local
from hwcalc.library.plan import plan
from hwcalc.planner.result import Plan
from hwcalc.profiles.gpus import EXAMPLES, find_gpu
from hwcalc.report.drawing import SCREEN
from hwcalc.report.exports import plan_markdown
from hwcalc.report.summary import FEW_NOTES, model_lines, notes_of
from hwcalc.report.table import plan_table
from hwcalc.report.verdict import verdict
from hwcalc.units import human_bytes
from tests.effort import sample
from tests.hwcalc.command import QWEN

LINES, COLUMNS = SCREEN
MODELS: Final = (
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "tiiuae/Falcon-H1-34B-Base",
    "state-spaces/mamba-1.4b-hf",
    "meta-llama/Llama-3.2-90B-Vision-Instruct",
)
HARDWARE: Final[tuple[dict[str, Any], ...]] = (
    {"gpu": "l4"},
    {"gpu": "h100-sxm5-80gb", "gpus": 4, "cost": True},
    {"gpu": "h200-sxm-141gb", "gpus": 8, "tp": 8},
    {"kv_memory": "10GiB"},
)
REQUESTS: Final[tuple[dict[str, Any], ...]] = ({"seq": "32k", "batch": 20}, {"seq": 2048}, {"seq": "1M", "batch": 3})


@cache
def plans() -> tuple[Plan, ...]:
    """Every model on all hardware with each engine and request, where the engine takes it."""
    out = []
    for model, engine, hardware, request in sample([*product(MODELS, ("reference", "vllm"), HARDWARE, REQUESTS)], 40):
        try:
            out.append(plan(model, engine=engine, **hardware, **request))
        except KvplanError:
            continue

    assert {one.fit.verdict.text for one in out if one.fit} >= {"fits", "does not fit"}
    assert len(out) > 30
    return tuple(out)


def screen(text: str) -> list[str]:
    """The lines of a terminal of 80 columns, which wraps longer lines by itself."""
    return [line[start : start + COLUMNS] for line in text.splitlines() for start in range(0, max(1, len(line)), COLUMNS)]


def answer(text: str) -> str:
    """The first paragraphs, up to the detail: model and request, then the verdict and its lines."""
    return "\n\n".join(text.split("\n\n")[:2])


def test_the_answer_is_on_the_first_screen() -> None:
    """Model, verdict, what is needed, how many, how long and what to change: in the first 24 lines, and ``--brief`` is no more."""
    for one in plans():
        whole, brief = plan_table(one, width=COLUMNS), plan_table(one, width=COLUMNS, detail="brief")
        first = answer(whole)

        assert len(screen(first)) <= LINES, first
        assert one.model.id in first
        assert " ".join(verdict(one).split()) in " ".join(first.split())
        assert "\n  needs " in first
        assert one.fit is not None
        tries = [line for line in first.splitlines() if line.startswith("  try ")]
        assert len(tries) >= min(1, len(one.fit.suggestions)) or one.fit.fits
        assert whole.startswith(answer(brief).replace(" in place of --brief", ""))
        assert len(brief.splitlines()) < len(whole.splitlines())


def test_a_terminal_shows_the_answer_and_the_line_that_was_typed() -> None:
    """What a terminal gets ends with how to see the rest, and leaves two lines of 24 for what was typed before and comes next."""
    for one in plans():
        text = plan_table(one, width=COLUMNS, detail="screen")
        assert one.fit is not None
        if not one.warnings:
            assert len(screen(text)) <= LINES - 2, text
        left = len(one.fit.suggestions) - text.count("\n  try ")
        assert text.endswith(f"{f'{left:,} more to try, ' if left else ''}pool, layers, notes\n")
        assert plan_table(one, width=COLUMNS, detail="screen", quiet=True) in text


@pytest.mark.parametrize(
    ("model", "weights", "engine"),
    [
        ("openai/gpt-oss-120b", "mxfp4_moe", "llamacpp"),
        ("openai/gpt-oss-120b", "q4_k_m", "ollama"),
        ("openai/gpt-oss-20b", "q4_k_m", "ollama"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "q4_k_m", "llamacpp"),
        ("Qwen/Qwen3-Coder-Next", "q4_k_m", "ollama"),
        ("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "q4_k_m", "ollama"),
        ("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "q4_k_m", "llamacpp"),
    ],
)
def test_speed_and_length_are_on_the_smallest_screen_and_what_gave_way_is_named(model: str, weights: str, engine: str) -> None:
    """Experts in host memory make a long answer: its last line names what is missing, and a screen of 60 lines misses nothing."""
    one = plan(model, engine=engine, gpu="rtx-4070", ram="64GB", weights=weights, seq="16k")
    small, large = (plan_table(one, width=COLUMNS, lines=lines, detail="screen") for lines in (LINES, 60))
    whole = plan_table(one, width=COLUMNS, detail="full")
    labels = [set(re.findall(r"\n  ([a-z]+(?: [a-z]+)?)  ", answer(text))) for text in (small, large, whole)]

    assert labels[0] >= {"speed", "longest"}
    assert len(screen(small)) <= LINES - 2
    last = small.splitlines()[-1].removeprefix("-v: ").split(", ")
    assert labels[0] | ({*last} & {"fewest", "cache", "longest", "chunk", "host", "at once"}) >= labels[2] - {"try"}
    assert labels[1] == labels[2]


def test_one_bar_has_the_parts_and_the_limit() -> None:
    """Qwen3-8B on an L4, a sequence of 16,384 tokens: weights and cache by their bytes, and where they end beside the limit."""
    one = plan(QWEN, seq="16k", gpu="l4")
    bar = next(line for line in plan_table(one, width=COLUMNS).splitlines() if "│ limit" in line)
    cells, legend = bar.strip().split("  ", 1)
    assert one.fit is not None
    whole = max(one.fit.usable_bytes, one.fit.needed_bytes)
    length = len(cells) - 1

    assert legend == "█ weights  ▓ cache  ▒ rest  │ limit"
    assert cells.count("█") == round(length * (one.memory.per_gpu.weights or 0) / whole)
    assert abs(cells.count("▓") - length * one.memory.per_gpu.cache / whole) <= 1
    assert cells.index("│") == round(length * one.fit.usable_bytes / whole)
    assert len(bar) <= COLUMNS


def test_green_and_red_are_for_verdicts() -> None:
    """The sizes of a plan that does not fit are in no colour that says that something does."""
    green = "\x1b[1;32m"
    refused = plan(QWEN, seq="32k", batch=20, gpu="l4")
    assert refused.fit is not None
    assert not refused.fit.fits

    assert green not in plan_table(refused, color=True, detail="full")
    assert green in plan_table(plan(QWEN, seq="1k", gpu="h100"), color=True)
    # It fits, but nobody gets a first token within a millisecond: the exit status is 1.
    late = plan(QWEN, seq="1k", gpu="h100", engine="vllm", ttft="1ms")
    assert late.refutes
    assert late.fit is not None
    assert late.fit.fits
    assert green not in plan_table(late, color=True)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_lines_fit_the_terminal(columns: int) -> None:
    """Only commands, which are copied whole, and rows of numbers are longer than a line; numbers are not cut."""
    for one in plans()[::7]:
        for line in plan_table(one, width=columns).splitlines():
            assert (
                len(line) <= columns or line.startswith(("  try ", "  start ", " " * 40)) or re.match(r" +.+  +[\d,]+ B", line)
            ), line


def test_many_long_commands_leave_room_for_the_verdict() -> None:
    """As many as there is room for, at least one; the line below says how to see the others, and ``-v`` shows them."""
    one = next(one for one in plans() if one.fit and one.fit.suggestions)
    assert one.fit is not None
    long = tuple(Try(flag=f"kvplan org/model --engine vllm {'--option value ' * 9}--n {n}", effect="holds 10") for n in range(9))
    many = replace(one, fit=replace(one.fit, suggestions=long))
    first = answer(plan_table(many, width=COLUMNS))

    assert len(screen(first)) <= LINES
    shown = first.count("  try ")
    assert 1 <= shown < 9
    assert f"{9 - shown} more to try: -v" in first
    assert plan_table(many, width=COLUMNS, detail="full").count("  try ") == 9
    # Over several lines, and still one command to a shell.
    assert all(f"  {one.flag}\n" in first.replace(" \\\n             ", " ") for one in long[:shown])
    assert first.count("holds 10") == shown


def test_the_table_says_what_the_document_says() -> None:
    """Needed, usable, cache and the parts of a GPU are those of the JSON."""
    for one in plans()[::5]:
        document = json.loads(json.dumps(one.to_dict()))
        text = " ".join(plan_table(one).split())
        fit, gpu = document["fit"], document["memory"]["per_gpu"]

        assert f"needs {human_bytes(fit['needed_bytes'])}" in text
        assert f"of {human_bytes(fit['usable_bytes'])}" in text
        assert human_bytes(document["cache"]["total_bytes"]) in text
        if fit["budget"] is not None:
            assert sum(gpu[name] for name in ("weights", "cache", "activations", "overhead")) == fit["needed_bytes"]


def test_copies_on_ranks_are_said() -> None:
    """A token's bytes times the tokens are the cache without the copies that every rank keeps of a latent."""
    hardware: dict[str, Any] = {"engine": "vllm", "gpu": "h200-sxm-141gb", "gpus": 8}
    alone, copied = (plan("deepseek-ai/DeepSeek-V3", seq=1024, **hardware, tp=tp, dp=8 // tp) for tp in (1, 8))
    lines = {
        tp: next(line for line in plan_table(one).splitlines() if line.startswith("  cache "))
        for tp, one in ((1, alone), (8, copied))
    }

    assert "copies" not in lines[1]
    assert lines[8] == "  cache    549.00 MiB, 480.38 MiB of it copies on 8 ranks, 68.62 KiB a token"
    assert 8 * 1024 * copied.cache.bytes_per_token == copied.cache.total_bytes == 549 * 2**20


def test_without_hardware_one_line_says_how_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that the model may fit; this machine's own where there is one; none without a command or where nobody can say."""
    one = plan("Qwen/Qwen3-8B", seq="32k")
    monkeypatch.setattr("hwcalc.hardware.local.gpu_in_sight", lambda: False)
    for shown in (
        plan_table(one, command="kvplan Qwen/Qwen3-8B"),
        plan_table(one, command="kvplan Qwen/Qwen3-8B", detail="brief"),
    ):
        assert shown.count("  ask      kvplan Qwen/Qwen3-8B --gpu l40s") == 1
    large = plan_table(plan("deepseek-ai/DeepSeek-V3", seq="32k"), command="kvplan m")
    assert "kvplan m --gpu h200-sxm-141gb --gpus 8" in large
    assert "  ask" not in plan_table(one)
    assert "  ask" not in plan_table(one, command="kvplan m", quiet=True)
    assert "  ask" not in plan_table(plans()[0], command="kvplan m")
    monkeypatch.setattr("hwcalc.hardware.local.gpu_in_sight", lambda: True)
    assert "kvplan m --gpu local" in plan_table(one, command="kvplan m")


def test_a_gpu_in_sight_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interface is asked: only whether a driver's file is there, or that it is a Mac with a chip of Apple's."""
    monkeypatch.setattr(local, "PROBES", ())
    monkeypatch.setattr(local, "bounded_output", None)
    monkeypatch.setattr(local, "_DEVICES", ())
    monkeypatch.setattr("sys.platform", "linux")
    assert not local.gpu_in_sight()
    monkeypatch.setattr(local, "_DEVICES", (Path("/"),))
    assert local.gpu_in_sight()
    machine = type("Machine", (), {"machine": "arm64"})
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("os.uname", machine)
    assert local.gpu_in_sight()


def test_examples_are_as_their_profiles() -> None:
    """Sizes that an example goes by are those of the files, in rising order."""
    assert [find_gpu(name).memory_marketing_gb for name, _ in EXAMPLES] == [size for _, size in EXAMPLES]
    assert [find_gpu(name).id for name, _ in EXAMPLES] == [name for name, _ in EXAMPLES]
    assert sorted(EXAMPLES, key=lambda one: one[1]) == list(EXAMPLES)


def test_few_notes_and_the_weightiest_first() -> None:
    """Three, or four if there is only one more; ``-v`` shows all; warnings are always shown."""
    for one in plans()[::3]:
        few, more = notes_of(one)
        every, none = notes_of(one, full=True)

        assert len(every) == len(one.notes) + 1
        assert (none, few) == (0, every[: len(few)])
        assert len(few) + more == len(every)
        assert len(few) <= FEW_NOTES + 1
        text, whole = plan_table(one), plan_table(one, detail="full")
        assert (f"{more} more notes: -v" in text) == bool(more)
        assert "more notes" not in whole
        assert all(note.message in shown for note in one.warnings for shown in (text, whole, plan_table(one, detail="brief")))
    several = next(one for one in plans() if notes_of(one)[1])
    defaults = [note.message for note in several.notes if note.code.startswith("default-")]
    assert not set(defaults) & set(notes_of(several)[0][:1])


def test_verbose_has_every_tensor_and_every_term() -> None:
    """Nothing of the usual table is missing, and tensors, parts of weights and terms of the budget come to it."""
    one = plan("google/gemma-3-27b-it", seq="32k", engine="vllm", gpu="h100-sxm5-80gb")
    usual, whole = plan_table(one), plan_table(one, detail="full")

    assert set(usual.splitlines()) <= set(whole.splitlines())
    assert one.fit is not None
    assert one.fit.budget is not None
    names = {tensor.name for tensor in one.cache.tensors} | {part.name for part in one.fit.budget.parts}
    for name in names | {group.kind for group in one.cache.groups}:
        assert f"\n  {name} " in whole
    assert (
        plan_markdown(one, detail="brief").count("\n")
        < plan_markdown(one).count("\n")
        < plan_markdown(one, detail="full").count("\n")
    )


def test_a_plan_without_hardware_is_brief_too() -> None:
    """The cache, the weights and their sum in a dozen lines; the layers below are left out."""
    one = plan("Qwen/Qwen3-8B", seq="32k")
    text = plan_table(one, detail="brief", width=COLUMNS)

    assert len(text.splitlines()) <= 12
    assert f"{one.cache.total_bytes:,} B" in text
    assert model_lines(one)[2] not in text
    assert model_lines(one)[2] in plan_table(one)


def test_what_is_more_is_shown_by_options_that_go_together() -> None:
    """``--brief`` and ``-v`` exclude each other, so that the brief answer says which one to leave out."""
    one = plan(QWEN, seq="32k", batch=20, engine="vllm", gpu="l4")

    assert " more to try: -v in place of --brief\n" in plan_table(one, width=100, detail="brief")
    assert " more to try: -v\n" in plan_table(one, width=100)


def test_sums_over_gpus_say_so() -> None:
    """Activations and overhead are those of all GPUs in the figures, and of the fullest one above."""
    several, single = (plan(QWEN, seq="8k", gpu="h100", gpus=gpus) for gpus in (4, 1))

    assert plan_table(several).count("  on all 4 GPUs; estimate: ") == 2
    assert " GPUs; estimate" not in plan_table(single)


def test_a_prompt_has_a_length() -> None:
    """The least time of a prompt is of the planned length."""
    assert "; a prompt of 8,192 takes " in plan_table(plan(QWEN, seq="8k", gpu="h100"))


def test_nothing_for_certain_says_so() -> None:
    """A zero beside the words "probably fits" is the sure number."""
    for seq in range(8192, 40960, 1024):
        one = plan("Qwen/Qwen3-14B", seq=seq, gpu="rtx-4060-ti-16gb", weights="q4_k_m")
        if one.fit is not None and one.fit.max_batch == 0 and one.fit.expected_max_batch == 1:
            assert "tokens for certain, 1 expected" in plan_table(one)
            return
    pytest.fail("no length only probably fits")


def test_an_option_stays_with_its_value_and_no_style_has_blanks_to_the_edge() -> None:
    """Whatever the width, and with colours as without."""
    one = plan(QWEN, seq="32k", batch=20, engine="vllm", gpu="l4")
    for width in range(40, 120, 7):
        for color in (False, True):
            lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in plan_table(one, width=width, color=color).splitlines()]
            assert all(line == line.rstrip() for line in lines)
            assert not any(line.endswith("--tensor-parallel-size") for line in lines)


@pytest.mark.parametrize(
    ("model", "weights", "gpu", "dtype", "seq"),
    [
        ("Qwen/Qwen3-14B", "q4_k_m", "m3-pro-18gb", "q8_0", "16k"),
        ("Qwen/Qwen3-14B", "q4_k_m", "rtx-4070", None, "16k"),
        ("openai/gpt-oss-20b", None, "rtx-4070", None, "16k"),
        ("openai/gpt-oss-120b", None, "rtx-4070", None, "48k"),
    ],
)
def test_the_first_number_of_longest_surely_fits(model: str, weights: str | None, gpu: str, dtype: str | None, seq: str) -> None:
    """It is that of the document, or, where the layers as they lie are not sure of any, one with layers that are."""
    options: dict[str, Any] = {"engine": "llamacpp", "weights": weights, "gpu": gpu, "dtype": dtype}
    made = plan(model, seq=seq, **options)
    assert made.fit is not None
    (line,) = re.findall(r"(?m)^  longest +(?:([0-9,]+) tokens|no length fits\b)", plan_table(made, width=200, detail="brief"))
    printed = int(line.replace(",", "") or 0)
    assert printed == (made.fit.max_seq or made.fit.moved_max_seq or 0)
    if printed:
        again = plan(model, seq=printed, **options).fit
        assert again is not None
        assert again.verdict.certain


@pytest.mark.parametrize(
    ("batch", "said"), [(1, "no length fits (limit: weights)"), (12, "no length fits for 12 sequences at once (limit: weights)")]
)
def test_where_the_weights_alone_are_too_large_no_length_fits(batch: int, said: str) -> None:
    """65 GB of weights leave a card of 24 GB no token: that is said, and no length of 0 tokens."""
    made = plan("Qwen/Qwen3-32B", gpu="l4", engine="vllm", seq="8k", batch=batch)
    table = plan_table(made, width=200, detail="brief")

    assert (made.memory.weights.bytes or 0) > 24 * 10**9
    assert f"  longest  {said}\n" in table
