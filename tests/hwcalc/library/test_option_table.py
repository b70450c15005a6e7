"""The table of a plan's options is the only one: everything that takes an option goes by it."""

from __future__ import annotations

import inspect
import json
import pydoc
import types
import typing
from collections.abc import Callable

import pytest
from msgspec.structs import fields

import hwcalc
from hwcalc.check.fields import ALIASES
from hwcalc.check.fields import OPTIONS as CHECK_OPTIONS
from hwcalc.cli import completion
from hwcalc.cli.options import PLANNING
from hwcalc.engines import ENGINES
from hwcalc.errors import UsageError
from hwcalc.explore.build import explore
from hwcalc.planner import options as table
from hwcalc.planner.asked import Access, Asked, engines_with_host, read_options
from hwcalc.planner.options import DIMENSIONS, OPTIONS, options_of
from hwcalc.planner.plan import without_effect
from hwcalc.planner.result import RequestInfo
from hwcalc.planner.values import TYPES
from hwcalc.plot.build import plot
from hwcalc.probe import receipt
from hwcalc.reconcile.core import reconcile
from hwcalc.sweep.rows import sweep
from tests.hwcalc.command import QWEN, Capture, run

ROWS = {row.name: row for row in OPTIONS}
FILLED_IN = {"engine_version", "state_dtype", "environment", "settings"}
"""Keys under ``request`` in a plan's document that no option gives."""


# --- what repeats a name is held to the table -------------------------------------------------------------------------


def test_the_signature_of_plan() -> None:
    """Names and defaults of the keywords that a notebook types."""
    parameters = list(inspect.signature(hwcalc.plan).parameters.values())[1:]

    assert {parameter.name for parameter in parameters} == {*ROWS, *table.OTHER_NAMES}
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    assert {parameter.name: parameter.default for parameter in parameters} == {
        name: False if row.type == "flag" else row.default for name, row in ROWS.items()
    } | dict.fromkeys(table.OTHER_NAMES)


def test_other_names_are_the_option() -> None:
    """``users`` and ``concurrency`` are ``batch``, ``context`` is ``seq``, ``tpot`` is ``itl``, ``quant`` is ``weights``; both names at once are refused."""
    others = {"concurrency": "batch", "users": "batch", "context": "seq", "tpot": "itl", "quant": "weights"}
    assert dict(table.OTHER_NAMES) == others
    asked = hwcalc.plan("Qwen/Qwen3-8B", users=4, context="8k", quant="fp8").request
    assert (asked.batch, asked.seq, asked.weights) == (4, 8192, "fp8")
    both: tuple[dict[str, typing.Any], ...] = ({"users": 4, "batch": 4}, {"context": 4, "seq": 4})
    for twice in both:
        with pytest.raises(UsageError, match="are the same option"):
            hwcalc.plan("Qwen/Qwen3-8B", **twice)


def test_memory_of_the_host() -> None:
    """A bare number is GB; it is llama.cpp's ``host_memory``, and other engines say that they have none."""
    options: dict[str, typing.Any] = {"engine": "llamacpp", "gpu": "rtx-4070", "seq": "16k", "weights": "q4_k_m"}
    plain, unit, own = (
        hwcalc.plan("Qwen/Qwen3-32B", **options, **more)
        for more in ({"ram": 64}, {"ram": "64GB"}, {"engine_options": {"host_memory": "64GiB"}})
    )

    assert plain.memory == unit.memory == own.memory
    assert plain.fit is not None
    assert own.fit is not None
    assert (plain.fit.max_seq, plain.fit.gpu_layers) == (own.fit.max_seq, own.fit.gpu_layers)
    assert plain.request.options["host_memory"] == "64GiB"
    with pytest.raises(UsageError, match="on the GPU alone"):
        hwcalc.plan("Qwen/Qwen3-32B", engine="vllm", gpu="h100", seq="16k", ram=64)
    with pytest.raises(UsageError, match="has no unit"):
        hwcalc.plan("Qwen/Qwen3-32B", **options, engine_options={"host_memory": 64})


def test_the_engines_that_are_named_for_ram_are_all_that_take_it() -> None:
    """Every other one refuses it, and names them."""
    named = engines_with_host()
    options: dict[str, typing.Any] = {"gpu": "rtx-4090", "seq": "1k", "ram": 64}

    for engine in named:
        assert hwcalc.plan("Qwen/Qwen3-0.6B", engine=engine, **options).request.options == {"host_memory": "64GiB"}
    for engine in set(ENGINES) - {*named}:
        with pytest.raises(UsageError, match="on the GPU alone") as refused:
            hwcalc.plan("Qwen/Qwen3-0.6B", engine=engine, **options)
        assert all(name in refused.value.hint for name in named)
    with pytest.raises(UsageError, match="none is named") as refused:
        hwcalc.plan("Qwen/Qwen3-0.6B", **options)
    assert all(name in refused.value.hint for name in named)


@pytest.mark.parametrize("given", [{"ram": 64}, {"engine_options": {"host_memory": "64GiB"}}])
def test_a_gpu_in_the_memory_of_the_host_has_no_other(given: dict[str, typing.Any]) -> None:
    """An M4 of 24 GB has these for both; a second figure for the host would change nothing."""
    options: dict[str, typing.Any] = {"engine": "llamacpp", "gpu": "m4-24gb", "seq": "8k", **given}
    with pytest.raises(UsageError, match="is the host's, 24 GB"):
        hwcalc.plan("Qwen/Qwen3-8B", **options)
    with pytest.raises(UsageError, match="is the host's, 24 GB"):
        hwcalc.fit(**options)
    assert hwcalc.plan("Qwen/Qwen3-8B", **options | {"gpu": "cpu"}).fit is not None


def test_an_accelerator_may_say_how_many() -> None:
    """``4xh100`` is four, and another number beside it is refused."""
    several = hwcalc.plan("Qwen/Qwen3-8B", gpu="4xh100", seq="8k")
    assert several.fit is not None
    assert (several.fit.gpu, several.fit.gpus) == ("h100-sxm5-80gb", 4)
    with pytest.raises(UsageError, match="differ"):
        hwcalc.plan("Qwen/Qwen3-8B", gpu="4xh100", gpus=2, seq="8k")


def test_what_was_not_asked_for() -> None:
    """Has its default, and no other name is there."""
    asked = Asked()

    assert {name: getattr(asked, name) for name in set(ROWS) - {"engine_options"}} == {
        name: row.default for name, row in ROWS.items() if name != "engine_options"
    }
    assert dict(asked.engine_options) == {}
    assert asked.access == Access()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = asked.nonsense


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ("plan", table.PlanOptions),
        ("plot", table.PlanOptions),
        ("compare", table.CompareOptions),
        ("sweep", table.SweepOptions),
        ("recommend", table.RecommendOptions),
        ("fit", table.FitOptions),
        ("strategies", table.StrategiesOptions),
        ("explore", table.ExploreOptions),
        ("reconcile", table.ReconcileOptions),
    ],
)
def test_typed_keywords(command: str, typed: type) -> None:
    """What a type checker lets through is what the function takes: the options of which the command takes one value."""
    own = {"engine"} if command == "reconcile" else set()
    # A picture is of lengths of any number, of no time, and of a month.
    left = {*table.WITHIN, "cost", "use", "avg_seq", "measured"} if command == "plot" else set()
    singles = {row.name for row in options_of(command) if command not in row.lists}
    function: typing.Any = {"plot": plot, "sweep": sweep, "explore": explore, "reconcile": reconcile}.get(command) or getattr(
        hwcalc, command
    )

    assert set(typing.get_type_hints(typed)) - table.OTHER_NAMES.keys() - left == singles - own
    assert singles <= set(inspect.signature(function, eval_str=True).parameters)


def test_the_request_in_a_document() -> None:
    """Every option about the request is there but the hardware, prices and limits of time, and nothing else but what is filled in."""
    other_words = {"dtype": "kv_dtype", "engine_options": "options"}
    shown = {other_words.get(row.name, row.name) for row in OPTIONS if not row.reads_model} - {"gpu", "gpus", "instance", "ram"}
    shown -= {*table.WITHIN, *table.PRICED, "no_calibration", "measured"}

    assert {field.name for field in fields(RequestInfo)} - FILLED_IN == shown


def test_rows_are_whole() -> None:
    """Names once, types that exist, commands that exist, values that a shell can complete."""
    assert len(ROWS) == len(OPTIONS)
    assert len({flag for row in OPTIONS for flag in row.spellings}) == sum(len(row.spellings) for row in OPTIONS)
    for row in OPTIONS:
        assert row.type in TYPES
        assert {*row.lists, *row.helps} <= set(table.COMMANDS)
        assert row.complete is None or hasattr(completion, row.complete)
        assert row.help.endswith(".")


def test_what_a_check_file_takes() -> None:
    """All of it but where models are fetched from, what changes a model, and limits of time and cost, which are requirements there; aliases are
    further flags of the command line.
    """
    left = {*Access.__struct_fields__, *DIMENSIONS, *table.WITHIN, "no_calibration", "cost", "measured"}
    assert set(CHECK_OPTIONS) == set(ROWS) - left
    assert {name: own for name, own in table.OTHER_NAMES.items() if own not in left}.items() <= ALIASES.items()
    assert ALIASES["max_model_len"] == "seq"
    assert ALIASES["tensor_parallel_size"] == "tp"


def test_what_a_receipt_keeps_can_be_read_back() -> None:
    """The probe's own request is planned again from it."""
    assert {row.name for row in receipt._KEPT} == set(ROWS) - {
        "gpus",
        "instance",
        "revision",
        "offline",
        "token",
        "endpoint",
        "no_calibration",
        "measured",
    } - set(DIMENSIONS) - {*table.WITHIN, *table.PRICED}
    asked = read_options({"seq": 5, "kv_memory": 7, "margin": "0.05", "tp": 2})
    assert asked.keywords() == {"seq": 5, "kv_memory": 7, "margin": asked.margin, "tp": 2}


# --- given twice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [option for option in PLANNING if option.flags], ids=lambda option: option.name)
@pytest.mark.parametrize("more", [[], ["--"]], ids=["quick", "typer"])
def test_given_twice(capsys: Capture, option: typing.Any, more: list[str]) -> None:
    """An error where one value is taken, harmless for a flag; so for both readers of a line."""
    words = [*option.flags[:1], *([] if option.kind == "flag" else ["8"])]
    again = [option.flags[-1], *words[1:]]
    status, out, err = run(capsys, *words, *again, *more, QWEN)

    if option.kind == "text":
        assert (status, out) == (2, "")
        assert f"{option.flags[0]} is given twice" in err
        assert "Give it once" in err
    else:
        assert "is given twice, and takes one value" not in out + err


@pytest.mark.parametrize("command", ["plan", "explain", "recommend", "probe", "reconcile", "diff"])
@pytest.mark.parametrize("line", [[QWEN, "--help", "--seq", "2", "--seq", "3"], [QWEN, "--seq", "2", "--seq", "3", "-h"]])
def test_help_on_a_line_with_an_option_given_twice(capsys: Capture, command: str, line: list[str]) -> None:
    """A line that asks for help gets help. Behind ``--``, the same word is an argument."""
    status, out, err = run(capsys, command, *line)

    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: kvplan {command}")
    status, out, err = run(capsys, command, "--seq", "2", "--seq", "3", "--", "--help")
    assert (status, out) == (2, "")
    assert "--seq is given twice" in err


def test_given_twice_as_json(capsys: Capture) -> None:
    """One document, and the way out: what compares several values."""
    status, out, _ = run(capsys, QWEN, "--seq", "1k", "--json", "--seq=2k")
    error = json.loads(out)["error"]

    assert (status, error["code"], error["type"]) == (2, 2, "usage")
    assert error["hint"] == "Give it once. Several values side by side: kvplan compare MODEL --seq A,B"


@pytest.mark.parametrize(
    "command",
    [
        ["compare", QWEN, "--seq", "1k"],
        ["sweep", QWEN, "--seq", "1k"],
        ["recommend", QWEN, "--seq", "1k", "--json"],
    ],
    ids=lambda words: words[0],
)
def test_lists_given_twice_are_joined(capsys: Capture, command: list[str]) -> None:
    """``--gpu l4 --gpu h100`` is ``--gpu l4,h100``."""
    joined = run(capsys, *command, "--gpu", "l4,h100")

    assert joined[1]
    assert run(capsys, *command, "--gpu", "l4", "--gpu", "h100") == joined
    assert run(capsys, *command, "--gpu=l4", "--gpu", "h100", "--") == joined


@pytest.mark.parametrize("command", ["compare", "sweep"])
@pytest.mark.parametrize(
    ("flag", "values"),
    [("--seq", ["1k", "2k"]), ("--users", ["1", "3"]), ("--dtype", ["bf16", "fp8"]), ("--tp", ["1", "2"])],
)
def test_every_list_is_joined(capsys: Capture, command: str, flag: str, values: list[str]) -> None:
    """Numbers and words alike."""
    seq = [] if flag == "--seq" else ["--seq", "1k"]
    joined = run(capsys, command, QWEN, *seq, flag, ",".join(values))

    assert joined[0] == 0
    assert run(capsys, command, QWEN, *seq, flag, values[0], flag, values[1]) == joined


# --- without a unit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["20", "1", "1_048_575", " 20 "])
def test_kv_memory_without_a_unit(capsys: Capture, given: str) -> None:
    """20 bytes are meant by nobody: the message asks for the unit, in Python too."""
    status, _, err = run(capsys, QWEN, "--seq", "1k", "--kv-memory", given)

    assert status == 2
    assert "has no unit" in err
    assert f"{given.strip()}GiB" in err
    with pytest.raises(hwcalc.KvplanError, match="has no unit"):
        hwcalc.plan(QWEN, seq=1024, kv_memory=given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("20GiB", 20 * 2**30), ("20B", 20), ("21474836480", 20 * 2**30), ("1048576", 2**20), ("0", 0), (20, 20), (2**30, 2**30)],
)
def test_kv_memory_in_bytes(given: int | str, expected: int) -> None:
    """A bare number is bytes where it can only be bytes; a Python integer always is."""
    assert read_options({"kv_memory": given}).kv_memory == expected


# --- without effect ---------------------------------------------------------------------------------------------------


def notes(*, code: str, **options: typing.Any) -> list[str]:
    """Messages of the notes of a plan with this code."""
    planned = hwcalc.plan(QWEN, seq=1024, **options)
    return [note.message for note in planned.notes if note.code == code]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 2}, ["--gpus 2 is planned as --tp 2; without a GPU there is no verdict. Name one with --gpu."]),
        ({"gpus": 1}, ["--gpus: no effect without a GPU. Name one with --gpu."]),
        ({"gpus": 4, "tp": 2, "pp": 2}, ["--gpus: no effect without a GPU. Name one with --gpu."]),
        ({"margin": "5%", "lora": "rank=8"}, ["--margin, --lora: no effect without a GPU. Name one with --gpu."]),
        ({"gpus": 2, "gpu": "h100", "margin": "5%"}, []),
        ({"gpus": 2, "instance": "p5.48xlarge"}, []),
        ({"gpus": 2, "engine": "vllm", "kv_memory": "20GiB"}, []),
        ({"gpus": 1, "kv_memory": "20GiB"}, ["--gpus: no effect without a GPU. Name one with --gpu."]),
        ({"gpus": 2, "tp": 2, "kv_memory": "20GiB"}, ["--gpus: no effect without a GPU. Name one with --gpu."]),
        ({"gpus": 2, "gpu": "h100", "kv_memory": "20GiB"}, []),
        ({"tp": 2}, []),
    ],
    ids=str,
)
def test_without_a_gpu(options: dict[str, typing.Any], said: list[str]) -> None:
    """What speaks of a GPU's memory, and how many GPUs where nobody says which."""
    assert notes(code="no-gpu", **options) == said


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("margin", "7%"),
        ("memory_utilization", "70%"),
        ("lora", "rank=8"),
        ("draft", {"model_type": "llama", "num_hidden_layers": 2}),
    ],
    ids=["margin", "memory_utilization", "lora", "draft"],
)
@pytest.mark.parametrize(
    "hardware", [{}, {"kv_memory": "20GiB"}, {"gpu": "h100"}, {"gpu": "h100", "kv_memory": "20GiB"}], ids=str
)
def test_what_is_said_to_have_no_effect_has_none(engine: str, option: str, value: object, hardware: dict[str, str]) -> None:
    """And what has one is not said to have none: the documents with and without it differ in the request and the notes alone."""
    config = {"model_type": "llama", "num_hidden_layers": 4, "vocab_size": 1000, "torch_dtype": "bfloat16"}
    changes: tuple[dict[str, typing.Any], ...] = ({option: value}, {})
    common: dict[str, typing.Any] = {"seq": 1024, "engine": engine, **hardware}
    with_it, without = (hwcalc.plan(config, **common, **more).to_dict() for more in changes)
    said = [note["message"] for note in with_it["notes"] if note["code"] in {"no-gpu", "kv-memory"}]
    for document in (with_it, without):
        del document["request"], document["notes"]

    assert any(f"--{option.replace('_', '-')}" in message for message in said) is (with_it == without)


@pytest.mark.parametrize(
    ("tp", "said"),
    [
        ("1,2", ["--gpus 2 is planned as --tp 2; without a GPU there is no verdict. Name one with --gpu.", "--margin: "]),
        ("2,4", ["--gpus, --margin: "]),
        ("4", ["--margin: "]),
    ],
)
def test_the_order_of_a_sweep(tp: str, said: list[str]) -> None:
    """The notes of a sweep are the same, whichever tensor parallel size comes first."""
    given = {"gpus": 2, "margin": "5%"}
    for sizes in (tp.split(","), tp.split(",")[::-1]):
        found = [note.message for note in without_effect(given, [int(size) for size in sizes])]

        assert [message.startswith(start) for message, start in zip(found, said, strict=True)] == [True] * len(said)
    if tp == "1,2":  # a sweep refuses sizes that contradict --gpus
        sweeps = [sweep(QWEN, seq=1024, tp=sizes, gpus=2, margin="5%") for sizes in (tp, ",".join(tp.split(",")[::-1]))]
        assert sweeps[0].notes == sweeps[1].notes == tuple(without_effect(given, [int(size) for size in tp.split(",")]))


@pytest.mark.parametrize("more", [["--json"], []], ids=["json", "text"])
def test_a_probe_says_what_has_no_effect(capsys: Capture, more: list[str]) -> None:
    """As a plan does."""
    words = ["--gpus", "1", "--margin", "5%", "--memory-utilization", "50%"]
    _, out, _ = run(capsys, "probe", QWEN, "--seq", "64", "--device", "cpu", "--scale", "10%", *words, *more)

    assert "--gpus, --memory-utilization, --margin: no effect without a GPU. Name one with --gpu." in " ".join(out.split())


@pytest.mark.parametrize("command", [["plan"], ["explain"], ["recommend"], ["compare"], ["sweep"], ["diff", "Qwen/Qwen3-4B"]])
def test_an_encoder_that_is_not_there(capsys: Capture, command: list[str]) -> None:
    """Every command says it, beside the numbers or on standard error."""
    _, out, err = run(capsys, *command, QWEN, "--seq", "1k", "--encoder-seq", "5")

    assert "--encoder-seq has no effect" in " ".join((out + err).split())
    if command[0] in {"compare", "sweep", "diff"}:
        assert "no effect" not in out


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_many_plans_say_what_has_no_effect(capsys: Capture, command: str) -> None:
    """Once, on standard error, unless an accelerator is named or nothing is to be said."""
    words = [command, QWEN, "--seq", "1k,2k", "--margin", "5%"]

    assert "--margin: no effect without a GPU" in run(capsys, *words)[2]
    assert "no effect" not in run(capsys, *words, "--gpu", "l4")[2]
    assert "no effect" not in run(capsys, *words, "--quiet")[2]


# --- the library ------------------------------------------------------------------------------------------------------


def test_functions_of_the_library() -> None:
    """What the command line calls, called from Python: the names of the contract, even after the packages of two of them are loaded."""
    from hwcalc import check, compare, explain, load_model, plan, recommend, sweep

    model = load_model(QWEN)
    planned = plan(model, seq="1k", dtype="fp8")
    explanation = explain(model, seq="1k", dtype="fp8")
    assert explanation.plan == planned
    assert sum(kind.bytes for kind in explanation.kinds) == planned.cache.total_bytes
    comparison = compare(model, seq=1024, dtype=["bf16", "fp8"])
    assert [variant.cache_total_bytes for variant in comparison.variants] == [
        2 * planned.cache.total_bytes,
        planned.cache.total_bytes,
    ]
    rows = sweep([model, {"model_type": "llama", "torch_dtype": "bfloat16"}], seq=[1024, "2k"], dtype="fp8", tp=[1, 2])
    points = list(rows)
    assert len(rows) == len(points) == 8
    assert points[0].cache_total_bytes == planned.cache.total_bytes
    assert recommend(model, seq="1k", gpu=["l4", "h100"]).offers
    assert check("tests/readme/kvplan.yaml", offline=True).summary.checks > 0
    assert hwcalc.sweep is sweep
    for name in hwcalc.__all__:
        public: typing.Any = getattr(hwcalc, name)
        if isinstance(public, types.ModuleType):
            # What help() prints of a package that can be called is the function with its parameters.
            first = next(iter(public.__signature__.parameters))
            assert f"    {name}({first}" in pydoc.plain(pydoc.render_doc(public))
    assert hwcalc.sweep.grid.Grid  # type: ignore[attr-defined]


def test_functions_refuse_what_they_do_not_take() -> None:
    """By name, with what they know."""
    wrong: dict[str, typing.Any] = {"nonsense": 1}
    functions: tuple[typing.Any, ...] = (hwcalc.compare, hwcalc.sweep, hwcalc.recommend)
    for function in functions:
        with pytest.raises(hwcalc.KvplanError, match="takes no 'nonsense'"):
            function(QWEN, seq=1024, **wrong)
    for others in ("sequence", "max_model_len", "lenght", "seqq"):
        with pytest.raises(hwcalc.KvplanError, match=f"'{others}'. Did you mean seq?"):
            hwcalc.sweep(QWEN, **typing.cast("typing.Any", {others: 1024}))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = hwcalc.nonsense


def test_each_node_of_a_comparison_has_a_single_number() -> None:
    """The rule of a plan: ``gpus`` is for the nodes that do not say their own number, and contradicts none that does."""
    many = hwcalc.compare("Qwen/Qwen3-8B", gpu="4xh100,l40s", gpus=4, seq="8k")

    assert [variant.gpus for variant in many.variants] == [4, 4]
    with pytest.raises(UsageError, match=r"2xl40s.*4 differ"):
        hwcalc.compare("Qwen/Qwen3-8B", gpu="4xh100,2xl40s", gpus=4, seq="8k")


@pytest.mark.parametrize("gpu", ["0xh100", "h100x0", "00xh100"])
@pytest.mark.parametrize("planned", [hwcalc.plan, hwcalc.compare])
def test_no_accelerator_is_not_several(planned: Callable[..., object], gpu: str) -> None:
    """Nothing is offered with ``--gpus 0``, which no command takes."""
    with pytest.raises(UsageError, match="is not known") as caught:
        planned("Qwen/Qwen3-8B", gpu=gpu, seq="8k")

    assert "--gpus" not in caught.value.hint
