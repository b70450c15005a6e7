"""The regression gate: bytes against those of an earlier run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwcalc import plan
from hwcalc.check.baseline import parse_growth, read_baseline
from hwcalc.check.file import BaselineError
from hwcalc.check.result import Checked
from hwcalc.check.run import CheckOptions, run_checks
from hwcalc.errors import UsageError
from hwcalc.units import parse_tokens
from tests.hwcalc.check.files import PER_TOKEN, TINY, check_file, read_check_file, tiny_model, write
from tests.hwcalc.command import QWEN, Capture
from tests.hwcalc.command import run as command

CHECK = {"name": "one", "model": "./tiny", "seq": 1000, "max_cache": "1GiB"}


def run(path: str, *baselines: str, growth: str = "0%", strict: bool = False) -> tuple[Checked, ...]:
    """The checks of one file against these baselines."""
    found = tuple(item for name in baselines for item in read_baseline(name))
    return run_checks([read_check_file(path)], CheckOptions(baselines=found, growth=parse_growth(growth), strict=strict)).checks


def saved(folder: Path, *checks: dict[str, Any]) -> str:
    """What ``kvplan check --json`` would have written of these checks."""
    document = run_checks([read_check_file(check_file(folder / "before", *checks))], CheckOptions()).to_dict()
    return str(write(folder / "baseline.json", document))


def grown(check: Checked) -> dict[str, tuple[float | None, bool]]:
    """Figure -> its bytes and whether they are within the limit."""
    return {item.name: (item.got, item.holds) for item in check.requirements if item.name.startswith("growth.")}


def test_nothing_has_grown(tmp_path: Path) -> None:
    """The same file passes, and the four figures are compared."""
    (check,) = run(check_file(tmp_path, CHECK), saved(tmp_path, CHECK))

    assert check.status == "pass"
    assert set(grown(check)) == {"growth.total_bytes", "growth.cache_bytes", "growth.weights_bytes", "growth.bytes_per_token"}
    assert grown(check)["growth.cache_bytes"] == (1000 * PER_TOKEN, True)


@pytest.mark.parametrize(
    ("seq", "growth", "holds"),
    [
        (1001, "0%", False),
        (999, "0%", True),
        (1050, "5%", True),
        (1051, "5%", False),
        (1001, "0.1%", True),
        (1002, "0.1%", False),
    ],
)
def test_growth_is_compared_exactly(tmp_path: Path, seq: int, growth: str, holds: bool) -> None:
    """1,000 tokens then, ``seq`` now: to the byte, with and without a share."""
    (check,) = run(check_file(tmp_path, {**CHECK, "seq": seq}), saved(tmp_path, CHECK), growth=growth)

    assert grown(check)["growth.cache_bytes"] == (seq * PER_TOKEN, holds)
    assert check.status == ("pass" if holds else "fail")


def test_a_new_check_is_noted(tmp_path: Path) -> None:
    """There is nothing to compare, which is no failure."""
    new = {**CHECK, "name": "two"}
    first, second = run(check_file(tmp_path, CHECK, new), saved(tmp_path, CHECK))

    assert (grown(second), second.status) == ({}, "pass")
    assert [note.code for note in second.warnings] == ["no-baseline"]
    assert grown(first)


def test_a_new_check_fails_where_strict_is_asked_for(tmp_path: Path) -> None:
    """Without a name a check is another one when what it plans changes: twice the tokens are no growth that anything sees."""
    unnamed = {key: value for key, value in CHECK.items() if key != "name"}
    baseline = saved(tmp_path, unnamed)
    (lax,) = run(check_file(tmp_path, {**unnamed, "seq": 2000}), baseline)
    (strict,) = run(check_file(tmp_path, {**unnamed, "seq": 2000}), baseline, strict=True)
    (same,) = run(check_file(tmp_path, unnamed), baseline, strict=True)

    assert (lax.status, [note.code for note in lax.warnings]) == ("pass", ["no-baseline"])
    assert (strict.status, strict.warnings) == ("fail", ())
    assert [(item.name, item.holds) for item in strict.requirements] == [("max_cache", True), ("baseline", False)]
    assert same.status == "pass"


def test_strict_and_a_new_check_are_exit_1(tmp_path: Path, capsys: Capture) -> None:
    """Through the command, with a rule of its own in SARIF."""
    baseline = saved(tmp_path, CHECK)
    words = ("check", check_file(tmp_path, {**CHECK, "name": "two"}), "--baseline", baseline)

    assert command(capsys, *words)[0] == 0
    status, out, _ = command(capsys, *words, "--strict", "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    assert (status, [rule["id"] for rule in run["tool"]["driver"]["rules"]]) == (1, ["baseline"])


WAYS: tuple[dict[str, Any], ...] = (
    {"dtype": "fp32"},
    {"dtype": "fp16"},  # as many bytes
    {"engine": "vllm", "gpu": "h100-sxm5-80gb", "fits": None},
    {"gpu": "l4", "fits": None},
    {"tp": 2},
    {"weights": "fp32"},
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [True, False])
def test_a_single_plan_is_of_the_check_that_goes_its_way(tmp_path: Path, way: dict[str, Any], first: bool) -> None:
    """Two checks of one model, length and batch: the plan of one says nothing about the other."""
    document = plan(TINY, seq=1000, dtype="bf16").to_dict()
    document["model"]["id"] = "tiny"
    path = str(write(tmp_path / "plan.json", document))
    checks = [{**CHECK, "dtype": "bf16"}, {**CHECK, "name": "two", "dtype": "bf16", **way}]
    found = run(check_file(tmp_path, *(checks if first else checks[::-1])), path)
    equal, other = found if first else found[::-1]

    assert grown(equal)["growth.cache_bytes"] == (1000 * PER_TOKEN, True)
    assert grown(other) == {}
    assert [note.code for note in other.warnings if note.code == "no-baseline"] == ["no-baseline"]


def test_a_single_plan(tmp_path: Path) -> None:
    """A document of ``kvplan plan --json`` speaks of the checks with its model, length and batch."""
    document = plan(TINY | {"_name_or_path": "org/tiny"}, seq=1000, dtype="bf16").to_dict()
    document["model"]["id"] = "tiny"
    path = str(write(tmp_path / "plan.json", document))
    same = {**CHECK, "dtype": "fp32"}
    other = {**CHECK, "name": "two", "seq": 2000}
    first, second = run(check_file(tmp_path, same, other), path)

    assert grown(first)["growth.cache_bytes"] == (2 * 1000 * PER_TOKEN, False)  # four bytes for two
    assert grown(second) == {}


def test_of_several_baselines_the_smallest_counts(tmp_path: Path) -> None:
    """What was once smaller has grown."""
    small, large = saved(tmp_path / "s", {**CHECK, "seq": 900}), saved(tmp_path / "l", {**CHECK, "seq": 1100})
    (check,) = run(check_file(tmp_path, CHECK), large, small)

    assert grown(check)["growth.cache_bytes"] == (1000 * PER_TOKEN, False)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"checks": 5}',
        '{"checks": [{}]}',
        '{"checks": [{"name": 5, "plan": {}}]}',
        '{"error": {}}',
        '{"cache": []}',
    ],
)
def test_what_is_no_baseline(tmp_path: Path, content: str) -> None:
    """A clear error, exit 3."""
    with pytest.raises(BaselineError) as caught:
        read_baseline(str(write(tmp_path / "b.json", content)))

    assert "b.json" in caught.value.message
    assert "kvplan check FILE --baseline baseline.json --accept" in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("figure", [-1, True, 1.5, "x", 2**70, None])
def test_figures_that_are_none(tmp_path: Path, figure: object) -> None:
    """No figure of a baseline is taken on trust; null is unknown where it may be."""
    document = json.loads(Path(saved(tmp_path, CHECK)).read_text(encoding="utf-8"))
    document["checks"][0]["plan"]["seq"] = figure
    with pytest.raises(BaselineError):
        read_baseline(str(write(tmp_path / "b.json", document)))


@pytest.mark.parametrize("text", ["", "5", "x%", "-1%", "nan%", "٣%", "1.%x"])
def test_shares_that_are_none(text: str) -> None:
    """``5`` alone could be a share or a factor."""
    with pytest.raises(UsageError, match="is not a share"):
        parse_growth(text)


@pytest.mark.parametrize(
    ("share", "before", "limit"), [("0", 10, 10), ("0.1%", 1000, 1001), ("0.1%", 999, 999), (" 10 % ", 10, 11), ("200%", 7, 21)]
)
def test_shares(share: str, before: int, limit: int) -> None:
    """Without rounding up: 0.1 % of 999 is no byte."""
    assert parse_growth(share).limit(before) == limit


def test_two_files_may_have_a_check_of_the_same_name(tmp_path: Path) -> None:
    """Each is compared with its own; one in a file that may have been either is compared with none, and says so."""
    small = check_file(tmp_path / "a", CHECK)
    large = check_file(tmp_path / "b", {**CHECK, "seq": 2000})
    files = [read_check_file(path) for path in (small, large)]
    baseline = read_baseline(str(write(tmp_path / "baseline.json", run_checks(files, CheckOptions()).to_dict())))

    same = run_checks(files, CheckOptions(baselines=baseline)).checks
    (moved,) = run_checks(
        [read_check_file(check_file(tmp_path / "c", {**CHECK, "seq": 2000}))], CheckOptions(baselines=baseline)
    ).checks

    assert [check.status for check in same] == ["pass", "pass"]
    assert grown(moved) == {}
    assert f"in {small} and {large}, and which of them it was is not certain" in moved.warnings[-1].message


def test_a_new_name_of_a_file_is_no_check_of_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline knows both files, and the other one is there still, whether it is named now or not. Once it is gone, its check has moved."""
    monkeypatch.chdir(tmp_path)
    tiny = {"model": "./tiny", "seq": 1024, "max_cache": "1GiB"}
    paths = [check_file(tmp_path, {**tiny, "name": name}, name=f"{name}.yaml") for name in ("chat", "mine")]
    document = run_checks([read_check_file(path) for path in paths], CheckOptions()).to_dict()
    baseline = str(write(tmp_path / "baseline.json", document))
    renamed = check_file(tmp_path, {**tiny, "name": "chat", "seq": 4096}, name="mine.yaml")
    for files in ([renamed], [renamed, paths[0]]):
        found = run_checks(
            [read_check_file(path) for path in files], CheckOptions(baselines=tuple(read_baseline(baseline)))
        ).checks
        assert [note.code for note in found[0].warnings] == ["no-baseline"]
        assert (found[0].status, "No baseline has this check" in found[0].warnings[0].message) == ("pass", True)

    Path(paths[0]).unlink()
    assert run(renamed, baseline)[0].status == "fail"


def test_a_path_written_in_another_way_is_of_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path, and one from another folder, find the file by their ends. A new file with a check of that name has no baseline."""
    for name, seq in (("a", 1000), ("b", 2000)):
        check_file(tmp_path / "m" / name, {**CHECK, "seq": seq})

    def read(folder: str, *names: str) -> list[Any]:
        return [read_check_file(f"{folder}{name}/kvplan.yaml") for name in names]

    monkeypatch.chdir(tmp_path)
    before = write(tmp_path / "baseline.json", run_checks(read("m/", "a", "b"), CheckOptions()).to_dict())
    options = CheckOptions(baselines=read_baseline(str(before)), strict=True)
    check_file(tmp_path / "m" / "c", {**CHECK, "seq": 3000})
    for place, folder in ((tmp_path, f"{tmp_path}/m/"), (tmp_path, "./m/"), (tmp_path / "m", ""), (tmp_path / "m" / "a", "../")):
        monkeypatch.chdir(place)
        *same, new = run_checks(read(folder, "a", "b", "c"), options).checks
        assert [check.status for check in same] == ["pass", "pass"]
        assert "growth.cache_bytes" in grown(same[1])
        assert new.status == "fail"
        assert grown(new) == {}
        assert "no baseline has this check" in new.requirements[-1].message


def test_hundreds_of_checks_and_thousands_of_baselines(tmp_path: Path) -> None:
    """Each check looks at the baselines of its own name."""
    write(tmp_path / "tiny" / "config.json", TINY)
    file = check_file(tmp_path, *({**CHECK, "name": f"n{number}", "seq": 1} for number in range(150)))
    plan = {"seq": 1, "batch": 1, "total_bytes": 2**50, "cache_bytes": 2**50, "weights_bytes": 2**50, "bytes_per_token": 2**50}
    known = [{"name": f"n{number}", "file": file, "model": "tiny", "plan": plan} for number in range(10_000)]
    baseline = write(tmp_path / "many.json", {"checks": known})

    assert {check.status for check in run(file, str(baseline))} == {"pass"}


def test_what_was_changed_is_said_at_its_line(tmp_path: Path) -> None:
    """A key of the check, one of the defaults, and one that was taken out; growth stands where the first of them does."""
    tiny_model(tmp_path)
    before = """\
schema_version: 1
defaults:
  dtype: fp8
checks:
  - name: one
    model: ./tiny
    concurrency: 2
    max_cache: 1GiB
    tp: 1
    seq: 1000
    engine_options: {block_size: 32}
    engine: vllm
"""
    after = before.replace("fp8", "bf16").replace("    engine_options: {block_size: 32}\n", "").replace("1000", "2k")
    for name, text in (("before", before), ("after", after)):
        write(tmp_path / f"{name}.yaml", text)
    document = run_checks([read_check_file(str(tmp_path / "before.yaml"))], CheckOptions()).to_dict()
    baseline = str(write(tmp_path / "baseline.json", document))
    (check,) = run(str(tmp_path / "after.yaml"), baseline)

    assert [(change.key, change.before, change.after) for change in check.changes] == [
        ("seq", "1000", "2k"),
        ("dtype", "fp8", "bf16"),
        ("engine_options.block_size", "32", None),
    ]
    assert {change.since for change in check.changes} == {"baseline"}
    places = {item.name: item.line for item in check.requirements}
    assert (places["growth.cache_bytes"], places["max_cache"]) == (10, 10)
    # 1,000 tokens are 32 blocks of 32, which hold 1,024; 2,048 are 128 of 16, with twice the bytes for each.
    cache = next(item for item in check.requirements if item.name == "growth.cache_bytes")
    assert cache.message == "cache 2.00 MiB -> 8.00 MiB (+6.00 MiB, x 4)"


_PROBABLE = {
    "name": "one", "model": "meta-llama/Llama-3.3-70B-Instruct", "engine": "vllm", "gpu": "h100", "gpus": 4, "dtype": "fp8",
    "seq": "16k", "concurrency": 54,
}  # fmt: skip
"""It probably fits: less is sure, more does not, and 5 % do not stay free."""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("since", ["lock", "baseline"])
@pytest.mark.parametrize(
    ("now", "before"),
    [
        ({"seq": "32k"}, "seq: 16k"),
        ({"seq": "32k", "headroom": "5%"}, None),
        ({"dtype": "bf16"}, "dtype: fp8"),
        ({"seq": "32k", "dtype": "bf16"}, "seq: 16k\ndtype: fp8"),
    ],
)
def test_what_is_offered_passes_and_more_does_not(
    tmp_path: Path, now: dict[str, Any], before: str | None, since: str, strict: bool
) -> None:
    """Length and sequences by the rule of the run, with the headroom that is required; the value of before where it passes."""

    def checked(lock: str = "ignore", baseline: str | None = None, **change: Any) -> Checked:
        file = read_check_file(check_file(tmp_path, _PROBABLE | change))
        baselines = None if baseline is None else read_baseline(baseline)
        return run_checks([file], CheckOptions(strict=strict, lock=lock, baselines=baselines)).checks[0]

    baseline = saved(tmp_path, _PROBABLE) if since == "baseline" else None
    checked("write")
    fits = checked("use", baseline, **now).requirements[0]
    # Nothing that is offered grows since the baseline, and more bytes for each token grow with any length.
    grows = since == "baseline" and "dtype" in now
    told = [edit for edit in fits.edits if "as the" in edit.effect]
    numbers = {name: edit for edit in fits.edits for name in ("seq", "concurrency") if re.fullmatch(rf"{name}: \d+k?", edit.yaml)}

    assert not fits.holds
    assert [edit.yaml for edit in told] == ([before] if before and not strict else [])
    assert all(f"as the {since} has" in edit.effect for edit in told)
    for name, edit in numbers.items():
        most = re.search(r"at most ([\d,]+) tokens", edit.effect)
        number = int(most[1].replace(",", "")) if most else parse_tokens(edit.yaml.partition(": ")[2], name)
        assert checked("use", baseline, **now | {name: number}).status == ("pass" if strict else "warning")
        assert checked("use", baseline, **now | {name: number + 1}).status == "fail"
        # What is written may be shorter, and is not called probable where it is sure.
        written = checked("use", baseline, **now | {name: edit.yaml.partition(": ")[2]}).status
        assert written == ("warning" if "probably" in edit.effect else "pass")
    assert {*numbers} == (set() if grows else {"seq", "concurrency"})


def test_an_edit_that_grows_passes_with_the_option_that_it_names(tmp_path: Path) -> None:
    """Twice the length on more memory is meant to grow: with the edit and that ``--max-growth`` the check passes, with 1 % less it does not."""

    def checked(growth: str, **change: Any) -> Checked:
        file = read_check_file(check_file(tmp_path, _PROBABLE | {"seq": "32k"} | change))
        return run_checks([file], CheckOptions(baselines=read_baseline(baseline), growth=parse_growth(growth))).checks[0]

    baseline = saved(tmp_path, _PROBABLE)
    edits = [edit for edit in checked("0%").requirements[0].edits if edit.accepting]

    assert "gpus: 8" in {edit.yaml for edit in edits}
    for edit in edits:
        growth = edit.accepting.removeprefix("--max-growth ")
        # The cache doubles; the weights may be fewer bytes.
        assert growth == "100%" or "weights" in edit.yaml or "dtype" in edit.yaml
        assert checked(growth, **yaml.safe_load(edit.yaml)).status in {"pass", "warning"}, edit
        assert checked(f"{int(growth[:-1]) - 1}%", **yaml.safe_load(edit.yaml)).status == "fail"


def test_every_edit_passes_when_it_is_typed(tmp_path: Path) -> None:
    """Also where the number of GPUs stands with their name, and changes are told by the words of the file. The ``settings`` of an edit say the same."""
    check = {"name": "one", "model": "Qwen/Qwen3-8B", "engine": "vllm", "gpu": "4xl4", "seq": "32k", "concurrency": 8}
    baseline, after = saved(tmp_path, check), {**check, "gpu": "2xl4", "concurrency": 12}
    (failed,) = run(check_file(tmp_path, after), baseline)
    edits = {edit.yaml: edit.settings for edit in failed.requirements[0].edits}
    apart: dict[str, Any] = {name: value for name, value in after.items() if name not in ("concurrency", "gpu")} | {
        "batch": 12,
        "gpu": "l4",
        "gpus": 2,
    }

    assert [(change.key, change.before, change.after) for change in failed.changes] == [
        ("concurrency", "8", "12"),
        ("gpus", "4", "2"),
    ]
    assert {edit.partition(":")[0] for edit in edits} >= {"seq", "concurrency", "gpu"}
    for edit, settings in edits.items():
        for changed in (after | yaml.safe_load(edit), {name: value for name, value in {**apart, **settings}.items() if value}):
            (typed,) = run(check_file(tmp_path, changed))
            assert typed.status in {"pass", "warning"}, edit


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        # 144 KiB a token, and half of it in fp8.
        ({"gpu": "h100", "max_bytes_per_token": "80KiB"}, {"dtype"}),
        ({"gpu": "h100", "concurrency": 20, "max_cache": "20GiB", "max_bytes_per_token": "80KiB"}, {"dtype", "seq"}),
        # 131 GiB of weights leave 24 to 33 GiB of each GPU for 50 x 64 Ki tokens of 80 KiB.
        (
            {
                "model": "meta-llama/Llama-3.3-70B-Instruct",
                "gpu": "4xh100",
                "seq": "64k",
                "concurrency": 50,
                "headroom": "10%",
                "max_gpus": 4,
            },
            {"dtype", "seq"},
        ),
    ],
)
def test_a_smaller_cache_and_a_shorter_length_are_one_edit(limits: dict[str, Any], keys: set[str], tmp_path: Path) -> None:
    """Where no single change is enough: together they are, neither is alone, and a length of 1,024 tokens more is too long."""
    check = {"name": "one", "model": "Qwen/Qwen3-8B", "engine": "vllm", "seq": "32k", **limits}

    def status(**change: Any) -> str:
        return run(check_file(tmp_path, check | change))[0].status

    (failed,) = run(check_file(tmp_path, check))
    ((edit, *others), *more) = (item.edits for item in failed.requirements if item.edits)
    typed = yaml.safe_load(edit.yaml)

    assert (others, more, typed.keys()) == ([], [], keys)
    assert status(**typed) in {"pass", "warning"}
    if "seq" in typed:
        assert "at most" in edit.effect
        assert status(dtype=typed["dtype"]) == status(seq=typed["seq"]) == "fail"
        assert status(dtype=typed["dtype"], seq=1024 * (int(typed["seq"].removesuffix("k")) + 1)) == "fail"


@pytest.mark.parametrize("growth", [[], ["--max-growth", "60%"]])
@pytest.mark.parametrize(
    ("before", "after", "typed"),
    [
        # A context of twice the length takes twice the cache; and so do twice the users of a server without a length for each.
        ("llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 32768", "", ["--gpu", "l40s", "--seq", "16k", "--users", "4"]),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "40960", ["--gpu", "l4"]),
    ],
)
def test_an_edit_of_a_deployment_passes_with_the_growth_that_it_names(
    before: str,
    after: str,
    typed: list[str],
    growth: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """Flags behind the others of the text, or a whole command, which has the baseline too."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "serve.sh", before)
    write(tmp_path / "old.json", command(capsys, "check", "serve.sh", "--gpu", typed[1], "--json")[1])
    text = before.replace("8192", after) if after else before
    write(tmp_path / "serve.sh", text)
    gate = ["check", "serve.sh", *typed, "--baseline", "old.json", *growth]
    status, said, _ = command(capsys, *gate, "--json")
    (check,) = json.loads(said)["checks"]
    edits = [
        edit for item in check["requirements"] for edit in item["edits"] if edit["flags"] or edit["yaml"].startswith("kvplan ")
    ]

    assert status == 1
    assert any(edit["accepting"] for edit in edits)
    for edit in edits:
        accepting = edit["accepting"].split()
        write(tmp_path / "serve.sh", f"{text} {edit['flags']}")
        words = gate[: -len(growth)] if growth and accepting else gate
        if not edit["flags"]:
            words = shlex.split(edit["yaml"])[1:]
            assert "--baseline" in words
            assert ("--max-growth" in words) is bool(growth and not accepting)
        assert command(capsys, *words, *accepting)[0] == 0, edit


def test_an_edit_says_the_layout_that_nobody_would_guess(tmp_path: Path) -> None:
    """28 heads are not split over 16 GPUs: with the edit as it is written, and with the layout that it says, the check passes."""
    check = {
        "name": "one",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "engine": "vllm",
        "gpu": "h100",
        "seq": "32k",
        "concurrency": 300,
    }

    def checked(**change: Any) -> Checked:
        (found,) = run(check_file(tmp_path, check | change))
        return found

    told = {edit.yaml: edit.layout for edit in checked().requirements[0].edits}
    assert told["gpus: 16"] == "tp 4, dp 4"
    assert checked(gpus=16).status == "pass"
    assert checked(gpus=16, tp=4, dp=4).plan == checked(gpus=16).plan
    # Tensor parallelism over all of them is what everybody takes.
    few = {edit.yaml: edit.layout for edit in checked(concurrency=100).requirements[0].edits}
    assert few["gpus: 4"] == ""


_LATE: dict[str, Any] = {
    "name": "fast",
    "model": "meta-llama/Llama-3.1-8B",
    "engine": "vllm",
    "gpu": "h100-sxm5-80gb",
    "seq": "8k",
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("late", "needed"),
    [
        ({"users": 30, "max_ttft": "1s", "min_rate": 40}, {"users", "gpus"}),
        ({"users": 90, "max_ttft": "1s", "min_rate": 40}, {"users"}),
        ({"users": 1, "max_itl": "15ms", "min_users": 20}, {"gpus"}),
        ({"users": 50, "max_e2e": "12s", "min_users": 20}, {"gpus"}),
        ({"users": 10, "max_itl": "1us"}, set()),
        ({"users": 8, "min_decode_tokens_per_s": 850}, {"seq"}),
    ],
)
def test_every_edit_of_a_check_that_is_too_slow_passes_when_it_is_typed(
    tmp_path: Path, late: dict[str, Any], needed: set[str], *, strict: bool
) -> None:
    """Alone, with all of its limits: those of the users that it plans, and of how many there must be. One user more does not pass."""

    def checked(**change: Any) -> Checked:
        file = read_check_file(check_file(tmp_path, _LATE | late | change))
        return run_checks([file], CheckOptions(strict=strict, lock="ignore")).checks[0]

    offered = [edit for item in checked().requirements for edit in item.edits]
    edits = [edit.yaml for edit in offered]

    assert len(set(edits)) == len(edits)
    keys = {key for edit in edits for key in yaml.safe_load(edit)}
    assert keys >= (needed - {"gpus"} if strict else needed)
    for edit in offered:
        change = yaml.safe_load(edit.yaml)
        # It is said to pass only probably where it does.
        assert checked(**change).status == ("warning" if "probably" in edit.effect else "pass"), edit
        assert not (strict and "probably" in edit.effect)
        if change.keys() == {"users"}:
            assert checked(users=change["users"] + 1).status == "fail"


@pytest.mark.parametrize(
    ("limit", "needed"),
    [
        ({"max_ttft": "350ms"}, {"seq"}),
        ({"max_itl": "16ms"}, {"seq", "users"}),
        ({"min_rate": 60}, {"seq", "users"}),
        ({"min_decode_tokens_per_s": 700}, {"seq"}),
        ({"max_total": "27GiB"}, {"seq"}),
    ],
)
def test_what_strict_alone_fails_has_an_edit_that_passes(tmp_path: Path, limit: dict[str, Any], needed: set[str]) -> None:
    """A limit between the expected value and the end of its range holds probably. With --strict the largest numbers that surely hold are offered."""

    def checked(*, strict: bool, **change: Any) -> Checked:
        file = read_check_file(check_file(tmp_path, _LATE | {"users": 8} | limit | change))
        return run_checks([file], CheckOptions(strict=strict, lock="ignore")).checks[0]

    assert checked(strict=False).status == "warning"
    edits = [edit.yaml for item in checked(strict=True).requirements for edit in item.edits]
    assert {edit.partition(":")[0] for edit in edits} >= needed
    for edit in edits:
        change = yaml.safe_load(edit)
        assert checked(strict=True, **change).status == "pass", edit
        if change.keys() == {"users"}:
            assert checked(strict=True, users=change["users"] + 1).status == "fail"


def test_the_same_length_written_otherwise_is_no_change(tmp_path: Path) -> None:
    """1k and 1024, batch and concurrency."""
    baseline = saved(tmp_path, {**CHECK, "seq": "1k", "batch": 2})
    (check,) = run(check_file(tmp_path, {**CHECK, "seq": 1024, "concurrency": 2}), baseline)

    assert check.changes == ()


def test_a_baseline_without_the_keys_says_what_it_can(tmp_path: Path) -> None:
    """Documents of an earlier kvplan: what their plan says of the request, and whose versions are others."""
    path = saved(tmp_path, CHECK)
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    document["kvplan_version"] = "0.0.1"
    for check in document["checks"]:
        del check["asked"], check["changes"]
    write(Path(path), document)
    (check,) = run(check_file(tmp_path, {**CHECK, "seq": "2k", "dtype": "fp32"}), path)

    assert [(change.key, change.before) for change in check.changes] == [
        ("seq", "1000"),
        ("dtype", "bf16"),
        ("kvplan", "0.0.1"),
    ]


def test_changes_since_the_lock_and_since_the_baseline_are_both_said(tmp_path: Path) -> None:
    """A baseline that was made after a change does not hide what the lock says of it; what both say is said once."""
    from hwcalc.report.check import cause

    path = check_file(tmp_path, {**CHECK, "dtype": "bf16"})
    run_checks([read_check_file(path)], CheckOptions(lock="write"))
    after = {**CHECK, "seq": 2000, "max_cache": 1, "dtype": "fp8"}
    same = run(check_file(tmp_path, after), saved(tmp_path, after))[0]
    older = run(check_file(tmp_path, after), saved(tmp_path, {**after, "seq": 500, "dtype": "bf16"}))[0]

    assert cause(same) == "seq 1000 -> 2000, dtype bf16 -> fp8, max_cache 1GiB -> 1 since the lock"
    assert (
        cause(older)
        == "seq 500 -> 2000, dtype bf16 -> fp8 since the baseline; seq 1000 -> 2000, max_cache 1GiB -> 1 since the lock"
    )


@pytest.mark.parametrize("name", [{}, {"name": "one"}])
def test_a_check_without_a_name_is_told_to_have_one(tmp_path: Path, name: dict[str, str]) -> None:
    """It is another check once its length changes, so that no baseline has it and nothing says what changed."""
    check = {"model": "./tiny", "seq": 1000, "max_cache": "1GiB", **name}
    (nameless,) = run(check_file(tmp_path, check | {"seq": 2000}), saved(tmp_path, check))

    assert [change.key for change in nameless.changes] == (["seq"] if name else [])
    assert [note.message.endswith("give it a name.") for note in nameless.warnings] == ([] if name else [True])


def test_a_check_that_moved_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name finds it in its new file. One of two of the same name that is taken out is gone, and so is none of a file that is not asked for."""
    monkeypatch.chdir(tmp_path)
    known = json.loads(Path(saved(tmp_path, CHECK)).read_text(encoding="utf-8"))["checks"][0]

    def gone(*files: str, names: dict[str, str]) -> list[str]:
        write(tmp_path / "b.json", {"checks": [known | {"file": file} for file in files]})
        read = [read_check_file(check_file(Path(), CHECK | {"name": each}, name=name)) for name, each in names.items()]
        found = run_checks(read, CheckOptions(baselines=read_baseline("b.json"), strict=True)).checks
        return [check.file for check in found if "any more" in check.requirements[0].message]

    assert gone("a.yaml", names={"c.yaml": "one"}) == []
    assert gone("a.yaml", "b.yaml", names={"a.yaml": "one", "b.yaml": "two"}) == ["b.yaml"]
    # Nobody asked for b.yaml, which is there.
    assert gone("a.yaml", "b.yaml", names={"a.yaml": "one"}) == []


def test_what_a_lock_lacks_is_added_with_the_options_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A server of another model: the printed command keeps what the lock has of the accelerator and of the load."""
    monkeypatch.chdir(tmp_path)
    words = ("serve.sh", "--gpu", "h100", "--set", "TP=1", "--users", "4")
    text = f"vllm serve {QWEN} --max-model-len 8192 --tensor-parallel-size $TP\n"
    Path("serve.sh").write_text(text, encoding="utf-8")
    assert command(capsys, "check", *words, "--lock")[0] == 0
    Path("serve.sh").write_text(text.replace(QWEN, "Qwen/Qwen3-4B"), encoding="utf-8")
    status, said, _ = command(capsys, "check", *words)
    told = re.search(r"Add it: kvplan (check .*? --lock)", " ".join(said.split()))

    assert (status, told is not None) == (3, True)
    assert told is not None
    assert command(capsys, *shlex.split(told[1]))[0] == 0
    status, said, _ = command(capsys, "check", *words)
    assert (status, "since the lock" in said) == (0, False)


def test_fewer_users_are_no_edit_of_slots_that_have_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Four slots of twice the tokens have twice the cache, however many send: what is offered for the growth holds."""
    monkeypatch.chdir(tmp_path)
    text = "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -c {} -np 4 -ngl 99\n"
    words = ("serve.sh", "--gpu", "l4", "--users", "4")
    Path("serve.sh").write_text(text.format(32_768), encoding="utf-8")
    Path("b.json").write_text(command(capsys, "check", *words, "--json")[1], encoding="utf-8")
    Path("serve.sh").write_text(text.format(65_536), encoding="utf-8")
    found = json.loads(command(capsys, "check", *words, "--baseline", "b.json", "--json")[1])["checks"][0]
    edits = [edit for item in found["requirements"] for edit in item["edits"]]
    assert edits
    for edit in edits:
        if edit["yaml"].startswith("kvplan check "):
            assert command(capsys, *shlex.split(edit["yaml"])[1:])[0] == 0, edit
