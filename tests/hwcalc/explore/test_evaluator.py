"""The page's own evaluator, under node: it gives what Python's forms and plans give, and no address makes it stumble."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.forms import MemoryForm
from hwcalc.errors import KvplanError
from hwcalc.explore.build import EQUATION, PageModel, page_files, payload_of
from hwcalc.explore.runs import PageAxes, PageLayout, layouts_of, plan_options
from hwcalc.library.load import load, with_dimensions
from hwcalc.planner.asked import Access
from hwcalc.planner.context import open_request
from hwcalc.profiles.calibration import Measured, Measurement, overheads_kind, save_reading
from hwcalc.units import GIB, KIB, MIB, human_bytes
from tests.hwcalc.explore.evaluate import payload_of_memory
from tests.hwcalc.explore.planned import agree, plan_of, planned
from tests.hwcalc.form_answers import answer, form_of

MODELS: Final = (
    "Qwen/Qwen3-8B",
    "google/gemma-3-1b-it",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
    "state-spaces/mamba-1.4b-hf",
    "ibm-granite/granite-4.0-h-tiny",
    "facebook/bart-large",
)
AXES: Final = PageAxes(
    gpus=("l4", "h100-sxm5-80gb"),
    layouts=tuple(
        PageLayout(count=count, tp=tp, pp=pp) for count, tp, pp in ((1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 1), (4, 2, 2))
    ),
)
SMALL: Final = "Qwen/Qwen3-0.6B"
EXPERTS: Final = "openai/gpt-oss-20b"
DRAWS: Final = 160
LOADS: Final = 3
PLANNED: Final = 40
node: Final = shutil.which("node")
pytestmark = pytest.mark.skipif(node is None, reason="the page's evaluator is run with node, which is not installed")


class Page:
    """The page's modules under node."""

    def __init__(self, folder: Path, payload: dict[str, Any] | None) -> None:
        self.folder, self.payload = folder, payload
        for name, text in page_files().items():
            if name.endswith(".js") and "/" not in name:
                (folder / name).write_text(text, encoding="utf-8")
        (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        (folder / "evaluator.mjs").write_text(
            Path(__file__).with_name("evaluator.mjs").read_text(encoding="utf-8"), encoding="utf-8"
        )

    def __call__(self, *calls: list[Any]) -> list[Any]:
        """The results of several calls."""
        given = json.dumps({"payload": self.payload, "calls": calls})
        done = subprocess.run(
            [str(node), str(self.folder / "evaluator.mjs")],
            input=given,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results: list[Any] = json.loads(done.stdout)
        return results


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a few models of every kind."""
    models = [PageModel(spec=load_model(name), argument=name) for name in MODELS]
    return Page(tmp_path_factory.mktemp("page"), payload_of(models, AXES))


def drawn(payload: dict[str, Any], number: int, loads: int = 1) -> Iterator[dict[str, Any]]:
    """States of the page, the same in every run: so many draws of all choices, each with some lengths and numbers of sequences."""
    draw = random.Random(16)  # noqa: S311 - no secret
    for _ in range(number):
        model = draw.choice(payload["models"])
        engine = draw.choice([name for name, runs in model["engines"].items() if "curve" in runs])
        runs = model["engines"][engine]
        layout = draw.choice(payload["layouts"])
        chosen = {
            "model": model["id"],
            "engine": engine,
            "gpu": draw.choice(payload["gpus"])["id"],
            **layout,
            "dtype": draw.choice(runs["dtypes"]),
            "weights": draw.choice(runs["weights"]),
        }
        for _ in range(loads):
            yield {**chosen, "seq": int(2 ** draw.uniform(7, 20)), "batch": draw.choice((1, 1, 2, 3, 16, 57, 1024))}


def under_policies(payload: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """States with a policy, at the points that the page has."""
    draw = random.Random(17)  # noqa: S311 - no secret
    models = [model for model in payload["models"] if model["policies"]]
    for _ in range(number):
        model = draw.choice(models)
        rows = model["policies"]
        row = draw.choice(rows["rows"])
        yield {
            "model": model["id"],
            "engine": draw.choice(list(row["engines"])),
            "gpu": draw.choice([gpu["id"] for gpu in payload["gpus"]]),
            "policy": row["policy"],
            "seq": draw.choice(rows["lengths"]),
            "batch": draw.choice(rows["batches"]),
        }


def asked_of(state: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """The state as the keywords of a plan. A default has no word."""
    runs = next(model for model in payload["models"] if model["id"] == state["model"])["engines"][state["engine"]]
    sizes = PageLayout(count=state["count"], tp=state["tp"], pp=state["pp"]).parallel(
        state["engine"], dealt=runs["deals_experts"]
    )
    return {
        **plan_options(state["engine"]),
        "gpu": state["gpu"],
        "seq": state["seq"],
        "batch": state["batch"],
        "dtype": None if state["dtype"] == runs["dtypes"][0] else state["dtype"],
        "weights": None if state["weights"] == runs["weights"][0] else state["weights"],
        "tp": sizes.tp,
        "pp": sizes.pp,
        "dp": sizes.dp,
        "ep": sizes.ep,
    }


def test_the_page_gives_the_numbers_of_the_forms(page: Page) -> None:
    """Every integer of states drawn from all choices is that of Python's form, and what Python refuses the page refuses."""
    assert page.payload is not None
    states = page(*(["valid", state] for state in drawn(page.payload, DRAWS, LOADS)))
    forms: dict[str, MemoryForm | None] = {}
    compared = 0
    for state, found in zip(states, page(*(["answer", state] for state in states)), strict=True):
        asked = asked_of(state, page.payload)
        family = json.dumps([state["model"], {name: value for name, value in asked.items() if name not in {"seq", "batch"}}])
        if family not in forms:
            try:
                forms[family] = form_of(open_request(load_model(state["model"]), **asked))
            except KvplanError:
                forms[family] = None
        form = forms[family]
        if form is None:
            assert found.get("refused"), state
            continue

        assert answer(form, state["seq"], state["batch"]) == found, state
        compared += 1

    assert compared > DRAWS * LOADS * 3 // 4


def test_the_page_knows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size of the measured pass, of 2,000 tokens of two sequences, and nowhere else."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    name, engine = MODELS[0], "transformers"
    where: dict[str, int | str] = {"model": name, "tp": 1, "pp": 1, "ep": 1, "tokens": 2000, "rows": 2}
    read_on = Measured(device="NVIDIA L4", date="2026-11-20", source="a log")
    reading = Measurement(values={"activation_bytes": 12_345_678}, measured=read_on, conditions=where)
    save_reading("l4", overheads_kind(engine), reading)
    page = Page(tmp_path, payload_of_memory([PageModel(spec=load_model(name), argument=name)], AXES))

    given = {"model": name, "engine": engine, "gpu": "l4", "count": 1, "tp": 1}
    states = page(
        *(["valid", {**given, "seq": seq, "batch": batch}] for seq, batch in ((1000, 2), (1000, 1), (2000, 1), (2000, 2)))
    )
    for state, found in zip(states, page(*(["answer", state] for state in states)), strict=True):
        planned = plan(name, seq=state["seq"], batch=state["batch"], engine=engine, gpu="l4")
        assert planned.memory.per_gpu.activations == found["per_gpu"]["activations"], state
        assert planned.memory.per_gpu.overhead == found["per_gpu"]["overhead"], state


def test_the_page_gives_the_numbers_of_the_command_line_that_it_shows(page: Page) -> None:
    """Some of these states are planned with the very words that the page shows."""
    assert page.payload is not None
    wanted = (*drawn(page.payload, PLANNED), *under_policies(page.payload, PLANNED // 2))
    states = page(*(["valid", state] for state in wanted))
    told = page(*([call, state] for state in states for call in ("command", "answer")))
    for state, line, numbers in zip(states, told[::2], told[1::2], strict=True):
        if "refused" in numbers:
            # A policy that the engine lacks is planned as if it had it: what the page says is what the engine would need.
            assert state["policy"] or agree(numbers, planned(line)), line
            continue
        wanted_numbers = planned(line)
        if state["policy"]:
            # How far a policy goes is known at the points of the page alone.
            assert not isinstance(wanted_numbers, str)
            _assert_sampled(numbers.pop("sampled"), wanted_numbers["fit"], state, page.payload)
            wanted_numbers["fit"] |= dict.fromkeys(("max_seq", "expected_max_seq", "max_batch", "expected_max_batch"))
        assert numbers == wanted_numbers, line


def test_the_tokens_a_second_are_the_plans(page: Page) -> None:
    """The page computes them in JavaScript of its own: in states drawn from all choices the bound and what is expected are the plan's, or neither has them."""
    assert page.payload is not None
    experts = {"model": EXPERTS, "engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 4096, "batch": 48}
    wanted = [*drawn(page.payload, PLANNED), *({**experts, **layout} for layout in page.payload["layouts"])]
    states = page(*(["valid", state] for state in wanted))
    calls = page(*([name, state] for state in states for name in ("command", "answer", "speed")))
    bounds = likelies = 0
    for line, numbers, found in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
        if "refused" in numbers:
            continue
        speed = plan_of(line).speed
        expected = None if speed is None else (speed.decode_tokens_per_s_bound, speed.bound_by)
        told: Any = None if found is None else (pytest.approx(found["tokens"], rel=1e-9), found["by"])
        assert expected == told, line
        bounds += told is not None
        likely = None if speed is None else speed.decode_tokens_per_s
        ends = None if likely is None else (likely.expected, likely.low, likely.high)
        shown = found and found["expected"]
        assert ends == (shown and pytest.approx((shown["tokens"], shown["low"], shown["high"]), rel=1e-9)), line
        likelies += ends is not None

    assert bounds > PLANNED // 3
    assert likelies > PLANNED // 4


def _assert_sampled(sampled: dict[str, int], fit: dict[str, int], state: dict[str, Any], payload: dict[str, Any]) -> None:
    """The largest points of the page are those below the limits of the plan."""
    rows = next(model for model in payload["models"] if model["id"] == state["model"])["policies"]
    for name, known in (("seq", rows["lengths"]), ("batch", rows["batches"])):
        for limit in (f"max_{name}", f"expected_max_{name}"):
            assert sampled[limit] == max((one for one in known if one <= fit[limit]), default=0), (limit, state)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a small model, whose MLP is wider than its attention or narrower, and of the bare equation."""
    axes = replace(AXES, gpus=("l4", "gaudi3"), layouts=tuple(PageLayout(count=tp, tp=tp) for tp in (1, 3, 8)))
    access = Access(offline=True)
    small = PageModel(spec=load(SMALL, access), argument=SMALL, changed=with_dimensions(SMALL, access, {}))
    words = tuple(word for name, size in EQUATION.items() for word in (f"--{name.replace('_', '-')}", str(size)))
    bare = PageModel(
        spec=load(None, access, dimensions=EQUATION), argument=None, words=words, changed=with_dimensions(None, access, EQUATION)
    )
    return Page(tmp_path_factory.mktemp("by_hand"), payload_of_memory([small, bare], axes))


def test_numbers_by_hand_are_those_of_the_command_line(by_hand: Page) -> None:
    """Dimensions from all of the sliders, their ends more often, on any number of ranks."""
    assert by_hand.payload is not None
    draw = random.Random(18)  # noqa: S311 - no secret
    states = []
    for state in drawn(by_hand.payload, 3 * PLANNED):
        model = next(model for model in by_hand.payload["models"] if model["id"] == state["model"])
        ranges = model["hand"]["dimensions"]
        hand = {
            name: draw.choice((one["least"], one["most"], draw.randint(one["least"], one["most"])))
            for name, one in ranges.items()
        }
        states.append({**state, "weights": None, "hand": hand})
    states = by_hand(*(["valid", state] for state in states))
    told = by_hand(*([call, state] for state in states for call in ("command", "answer")))
    answers = 0
    for line, found in zip(told[::2], told[1::2], strict=True):
        if "refused" in found:
            assert "By hand" in found["refused"], line
            continue
        assert found == planned(line), line
        answers += 1

    assert answers > PLANNED


def test_an_engine_without_rules_for_a_gpu_names_that_one(tmp_path: Path) -> None:
    """Not the first one of the page."""
    axes = PageAxes(gpus=("gaudi3", "trainium2"), layouts=AXES.layouts, engines=("vllm",))
    page = Page(tmp_path, payload_of_memory([PageModel(spec=load_model(SMALL), argument=SMALL)], axes))
    names = {"gaudi3": "Intel Gaudi 3", "trainium2": "AWS Trainium2"}
    states = [{"model": SMALL, "gpu": gpu, "count": one.count, "tp": one.tp} for gpu, one in product(names, axes.layouts)]
    for state, found in zip(states, page(*(["answer", state] for state in states)), strict=True):
        assert names[str(state["gpu"])] in found["refused"]


MISREAD: Final = (
    "",
    "#",
    "#%%%&&&===",
    "#model=nobody/nothing&engine=abacus&gpu=tpu&dtype=float3&weights=heavy&policy=forget",
    "#seq=NaN&batch=NaN&count=NaN&tp=NaN",
    "#seq=-1&batch=-1&count=-1&tp=-1",
    "#seq=0&batch=0&count=0&tp=0",
    "#seq=1e999&batch=99999999999999999999999&count=3&tp=7",
    "#__proto__=x&constructor=y&toString=z&model=__proto__&engine=constructor",
    "#model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&seq=%00%0a",
    "#layers=-5&heads=1e308&kv_heads=NaN&head_dim=",
    "#seq=" + "9" * 5000,
)


def test_no_address_makes_a_state_that_the_page_does_not_have(page: Page) -> None:
    """What is not understood becomes the default, and what is too large the largest."""
    assert page.payload is not None
    for state in page(*(["opened", fragment] for fragment in MISREAD)):
        model = next(model for model in page.payload["models"] if model["id"] == state["model"])

        assert page.payload["lengths"]["least"] <= state["seq"] <= page.payload["lengths"]["most"]
        assert 1 <= state["batch"] <= max(page.payload["batches"])
        assert {name: state[name] for name in ("count", "tp", "pp")} in page.payload["layouts"]
        assert state["gpu"] in {gpu["id"] for gpu in page.payload["gpus"]}
        assert state["dtype"] in model["engines"][state["engine"]].get("dtypes", [""])
        assert state["policy"] is state["hand"] is None


def test_a_link_keeps_the_state(page: Page) -> None:
    """The state of a fragment is the state that wrote it, and the page lacks nothing that it wrote itself."""
    assert page.payload is not None
    states = page(*(["valid", state] for state in drawn(page.payload, 100)))
    fragments = page(*(["fragmentOf", state] for state in states))
    read = page(*([call, fragment] for fragment in fragments for call in ("opened", "lacking")))

    assert states == read[::2]
    assert read[1::2] == [[]] * len(states)


def test_a_shell_reads_a_quoted_word_back(tmp_path: Path) -> None:
    """Quoting is undone by a POSIX shell."""
    words = ["plain", "two words", "it's", "$(reboot)", "`x`", "a\nb", "", "--seq", '"', "\\", "é", "a;b&c|d>e"]
    quoted = Page(tmp_path, None)(*(["quoted", word] for word in words))

    assert [[word] for word in words] == list(map(shlex.split, quoted))


def test_sums_and_products_are_exact_beyond_2_53(tmp_path: Path) -> None:
    """A cache of 10 million tokens x 1,024 sequences of a large model takes more bytes than a double can count."""
    page = Page(tmp_path, None)
    each, sequences = 10 * 2**20 * 4_718_592 + 1, 1_023

    assert each * sequences > 2**53
    assert [each * sequences, 2**53 + 1, 2**52 + 3] == page(
        ["times", each, sequences], ["plus", 2**53 - 1, 2], ["plus", 2**53 - 1, 4, -(2**52)]
    )


def test_the_largest_state_is_exact(tmp_path: Path) -> None:
    """10 million tokens x 1,024 sequences of a model without grouped heads take more bytes than a double can count."""
    name = "huggyllama/llama-65b"
    axes = PageAxes(
        gpus=("l4",), layouts=AXES.layouts[:1], engines=("reference", "vllm"), batches=(1, 1024), most_tokens=10 * 2**20
    )
    page = Page(tmp_path, payload_of_memory([PageModel(spec=load_model(name), argument=name)], axes))
    for engine in axes.engines:
        state = {"model": name, "engine": engine, "seq": axes.most_tokens - 1, "batch": 1023, "dtype": "bf16", "gpu": "l4"}
        form = form_of(open_request(load_model(name), engine=engine, gpu="l4", seq=axes.most_tokens - 1, batch=1))
        assert form is not None
        expected = answer(form, axes.most_tokens - 1, 1023)

        assert expected["cache"]["total_bytes"] > 2**53
        assert [expected] == page(["answer", state])


def test_what_lies_beside_the_layers_is_one_sum(tmp_path: Path) -> None:
    """Keys and values of Gemma-3-27b have 544.50 MiB of unused block space each."""
    unused = {"term": {"layers": "", "kind": "unused block space"}, "bytes": 570_949_632}
    (said,) = Page(tmp_path, None)(
        ["besideWords", [unused, {"term": {"layers": "0-5", "kind": "full attention"}, "bytes": 1}, unused]]
    )

    assert said == " Beside the layers: 1.06 GiB of unused block space, kept once for the model."


def test_sizes_are_written_as_on_the_command_line(tmp_path: Path) -> None:
    """Every x.xx5 is rounded alike, and so are its neighbours: 6,039,797,760 bytes are 5.625 GiB, which both write as 5.62."""
    halves = [unit * (2 * number + 1) // 200 for unit in (KIB, MIB, GIB, 1024 * GIB) for number in range(2_000)]
    eighths = [unit * (2 * number + 1) // 8 for unit in (KIB, MIB, GIB, 1024 * GIB) for number in range(4 * 1024)]
    sizes = [size + more for size in (*halves, *eighths) for more in (-1, 0, 1)]

    assert [human_bytes(size) for size in sizes] == Page(tmp_path, None)(*(["human", size] for size in sizes))
    assert human_bytes(6_039_797_760) == "5.62 GiB"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Models with one head of keys, with latents, with experts and without heads, in all layouts."""
    names = ("google/gemma-3-1b-it", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b", "meta-llama/Llama-3.3-70B-Instruct")
    layouts = (*PageAxes().layouts, *layouts_of(16))
    axes = PageAxes(gpus=("l4", "h100-sxm5-80gb"), engines=("reference", "vllm", "llamacpp"), layouts=layouts)
    models = [PageModel(spec=load_model(name), argument=name) for name in names]
    return Page(tmp_path_factory.mktemp("shared"), payload_of_memory(models, axes))


def test_gpus_share_layers_as_on_the_command_line(shared: Page) -> None:
    """Where nobody says it, ``tp`` is that of ``--gpus``, wherever the slider was before. Stages in a machine the page does not have."""
    assert shared.payload is not None
    models = [model["id"] for model in shared.payload["models"]]
    loads, counts = ((4_096, 1), (32_768, 64), (16_384, 1_000)), (2, 4, 8, 16)
    befores = [
        {"model": model, "engine": engine, "gpu": gpu, "count": 1, "tp": 1, "seq": seq, "batch": batch}
        for model, engine, gpu, (seq, batch) in product(
            models, ("reference", "vllm", "llamacpp"), ("l4", "h100-sxm5-80gb"), loads
        )
    ]
    for state in shared(*(["moved", before, {"count": count}] for before, count in product(befores, counts))):
        asked = {
            **plan_options(state["engine"]),
            **{name: state[name] for name in ("seq", "batch", "gpu")},
            "gpus": state["count"],
        }
        parallel = open_request(load_model(state["model"]), **asked).setup.parallel
        assert state["tp"] == parallel.tp, state


def test_what_somebody_chose_of_tp_stays(by_hand: Page) -> None:
    """One GPU for each layer of three, then eight GPUs: still one."""
    state = {"model": SMALL, "engine": "vllm", "gpu": "l4", "count": 8, "tp": 8}
    (followed,) = by_hand(["moved", state, {"engine": "llamacpp"}])
    (back,) = by_hand(["moved", followed, {"engine": "vllm"}])

    assert (back["count"], back["tp"]) == (8, 8)


ADDRESSES: Final[tuple[tuple[str, str, list[str]], ...]] = (
    ("#gpu=h100", "h100-sxm5-80gb", []),
    ("#gpu=H100&model=qwen3-8b&engine=vLLM&dtype=bfloat16", "h100-sxm5-80gb", []),
    ("#gpu=rtx-4090", "l4", ['The page has no GPU "rtx-4090": shown is NVIDIA L4.']),
    ("#engine=vllm@0.20", "l4", ['The page has no engine "vllm@0.20": shown is reference.']),
    ("#weights=mxfp4", "l4", ['The page has no format of the weights "mxfp4": shown is as published.']),
    ("#seq=9M", "l4", ['The page has no "9M" tokens: shown is 1,048,576.']),
    ("#gpus=4", "l4", ['The page knows no "gpus" in an address.']),
    ("#answer", "l4", []),
)


def test_an_address_is_taken_at_its_word(page: Page) -> None:
    """Other spellings are taken; what the page does not have is said, and what is shown instead."""
    answers = page(*([call, fragment] for fragment, _, _ in ADDRESSES for call in ("opened", "lacking")))

    assert [(state["gpu"], lacking) for state, lacking in zip(answers[::2], answers[1::2], strict=True)] == [
        (gpu, said) for _, gpu, said in ADDRESSES
    ]


def test_past_the_end_of_the_model(page: Page) -> None:
    """The page says what the plan warns of, and the variables with which the engine starts."""
    loads = (("reference", 50_000), ("vllm", 50_000), ("vllm", 40_961), ("vllm", 40_960))
    state = {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm5-80gb"}
    words = page(*(["beyond", {**state, "engine": engine, "seq": seq}] for engine, seq in loads))
    for (engine, seq), said in zip(loads, words, strict=True):
        planned = plan("Qwen/Qwen3-8B", engine=engine, gpu="h100", seq=seq)

        assert bool(said) == any(note.code == "beyond-maximum" for note in planned.warnings)
        assert all(variable in said for variable in planned.request.environment)
        assert bool(planned.request.environment) == ("starts only with" in said)


def test_tokens_are_read_as_on_the_command_line(tmp_path: Path) -> None:
    """NaN, which JSON writes as null, is what cannot be read."""
    read: dict[str, int | None] = {
        "32768": 32768, "32k": 32768, "128K": 131072, "1M": 1048576, "32,768": 32768, "1.5k": 1536,
        "1.3": None, "-1": None, "x": None, "1e5": None,
    }  # fmt: skip

    assert list(read.values()) == Page(tmp_path, None)(*(["tokensOf", text] for text in read))
