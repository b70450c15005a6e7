"""The recipes in the folders' READMEs work: each is followed to the letter."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import hwcalc
import hwcalc.engines
from hwcalc import ModelSpec, keep, plan
from hwcalc.check import file as check_file
from hwcalc.check import judge
from hwcalc.check.fields import REQUIREMENTS, Field, check_file_schema
from hwcalc.cli import completion
from hwcalc.cli.options import COMMANDS, find_command
from hwcalc.engines import ENGINES
from hwcalc.engines.transformers import engine, layers
from hwcalc.errors import ConfigError, UnreadKeysError, UnsupportedError, UsageError
from hwcalc.explore.build import PageModel, payload_of
from hwcalc.explore.runs import PageAxes
from hwcalc.formulas import KINDS, Stack
from hwcalc.parsers import registry
from hwcalc.parsers.gguf import hparams
from hwcalc.parsers.gguf.architectures import ARCHITECTURES, Architecture, Window
from hwcalc.planner.context import open_request
from hwcalc.policies import parse
from hwcalc.reconcile import core, dialects, reconcile
from hwcalc.report.plan import FORMATS
from tests.hwcalc.command import Capture, run
from tests.hwcalc.form_answers import differences, form_of
from tests.paths import ROOT

Follow = Callable[[str, str], ModuleType]
QWEN: Final = "Qwen/Qwen3-8B"


def sections(folder: str) -> Iterator[tuple[str, list[str]]]:
    """The sections of a README by their titles, and the numbers of the steps in each."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    for section in re.split(r"(?m)^##? ", text)[1:]:
        yield section.partition("\n")[0], re.findall(r"(?m)^(\d)\. ", section)


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Put the module that the README of a package, or of the one above, shows into the package, for one test."""
    added: list[str] = []

    def put(package: str, name: str) -> ModuleType:
        folder = ROOT / package
        readme = next(path for path in (folder / "README.md", folder.parent / "README.md") if path.exists()).read_text(
            encoding="utf-8"
        )
        (code,) = re.findall(r"(?ms)^ +```python\n(.*?)^ +```", readme)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        parent = importlib.import_module(package.replace("/", "."))
        monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(tmp_path)])
        added.append(f"{parent.__name__}.{name}")
        return importlib.import_module(added[-1])

    yield put
    for module in added:
        del sys.modules[module]


RECIPES: Final = [
    (folder, title)
    for folder in (
        "formulas",
        "hwcalc/parsers",
        "hwcalc/engines",
        "hwcalc/policies",
        "hwcalc/report",
        "hwcalc/check",
        "hwcalc/cli",
        "hwcalc/reconcile",
        "profiles/gpus",
    )
    for title, steps in sections(folder)
    if steps
]


@pytest.mark.parametrize(("folder", "title"), RECIPES)
def test_a_recipe_has_at_most_five_steps(folder: str, title: str) -> None:
    """Numbered from 1 without gaps."""
    steps = dict(sections(folder))[title]

    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    assert 1 < len(steps) <= 5


@pytest.mark.parametrize("folder", sorted({folder for folder, _ in RECIPES}))
def test_the_files_of_a_recipe_exist(folder: str) -> None:
    """Every path that a README names, from the repository's root."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:formulas|hwcalc|tests|scripts)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


def test_a_layer_kind(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind is registered, its docstring holds, the reference plans it, and transformers takes it once it has a rule."""
    known = dict(KINDS)
    module = follow("formulas", "retention")
    kind: Any = KINDS.pop("retention")
    try:
        assert known == KINDS
        assert doctest.testmod(module).failed == 0
        layer = kind(num_heads=4, key_head_dim=64, value_head_dim=128)
        model = ModelSpec(
            id="retnet",
            source="python",
            location="",
            revision=None,
            model_type="retnet",
            architecture=None,
            stack=Stack(((layer,),) * 12),
            dtype="bf16",
        )

        # 12 layers x 4 heads x 64 x 128 x 4 bytes, however long the sequence
        assert plan(model, seq=1).cache.total_bytes == plan(model, seq="1M").cache.total_bytes == 12 * 4 * 64 * 128 * 4

        with pytest.raises(UnsupportedError, match="retention"):
            plan(model, seq=1, engine="transformers")
        rules: Any = {**layers.RULES, kind: layers._plain}
        monkeypatch.setattr(layers, "RULES", rules)
        monkeypatch.setattr(engine.Transformers, "kinds", frozenset(rules))
        assert plan(model, seq=1, engine="transformers").cache.total_bytes == 12 * 4 * 64 * 128 * 4
    finally:
        KINDS.clear()
        KINDS.update(known)


def test_a_model_type(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model type is planned and weighed; a missing, a wrong and an unread key are errors that name it."""
    index: Any = {**registry._index(), "language": {"globals_first": {"globals_first": "GLOBALS_FIRST"}}}
    monkeypatch.setattr(registry, "_index", lambda: index)
    registry._rows.cache_clear()
    config = {
        "model_type": "globals_first",
        "num_hidden_layers": 10,
        "num_global_layers": 2,
        "sliding_window": 100,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "hidden_size": 256,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    try:
        follow("hwcalc/parsers", "globals_first")

        planned = plan(config, seq=1000)
        # 2 layers of 1,000 tokens and 8 of 100, each 4 heads x (64 + 64) x 2 bytes
        assert planned.cache.total_bytes == (2 * 1000 + 8 * 100) * 4 * (64 + 64) * 2
        # Queries and output 8 heads, keys and values 4 each, of 64; a norm of 64 for both; three matrices; two norms
        layer = 256 * 64 * (8 + 8 + 4 + 4) + 2 * 64 + 3 * 256 * 512 + 2 * 256
        assert planned.memory.weights.bytes == 2 * (1000 * 256 + 10 * layer + 256)
        with pytest.raises(ConfigError, match="num_global_layers is missing"):
            plan({key: value for key, value in config.items() if key != "num_global_layers"}, seq=1000)
        with pytest.raises(ConfigError, match="num_global_layers is 11"):
            plan({**config, "num_global_layers": 11}, seq=1000)
        with pytest.raises(UnreadKeysError, match="attention_sink_window"):
            plan({**config, "attention_sink_window": 4}, seq=1000)
    finally:
        monkeypatch.undo()
        registry._rows.cache_clear()


def test_an_engine(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine plans by name, with its option; an option that it does not have is an error that lists those it has."""
    module = follow("hwcalc/engines", "paged")
    monkeypatch.setitem(ENGINES, "paged", (module.__name__, "Paged"))
    config = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 256}
    try:
        # 17 tokens are two pages of 16, or five of 4; 3 layers x 4 heads x (64 + 64) x 2 bytes
        assert plan(config, seq=17, engine="paged", dtype="bf16").cache.total_bytes == 32 * 3 * 4 * (64 + 64) * 2
        smaller = plan(config, seq=17, engine="paged", dtype="bf16", engine_options={"block_size": 4})
        assert smaller.cache.total_bytes == 20 * 3 * 4 * (64 + 64) * 2
        # Registered, it has the whole equation and the solvers: 4 ranks keep a head each, in pages, and the longest fills one.
        sized = config | {"vocab_size": 100, "intermediate_size": 512, "max_position_embeddings": 2**20}
        shared = plan(sized, seq=17, engine="paged", dtype="bf16", gpu="l4", tp=4)
        assert shared.cache.per_gpu_bytes * 4 == shared.cache.total_bytes
        assert shared.fit is not None
        assert shared.fit.verdict == "fits"
        by_hand = plan(sized, seq=17, engine="paged", dtype="bf16", kv_memory=100 * 3 * 4 * 128 * 2).fit
        assert by_hand is not None
        assert (by_hand.max_seq, by_hand.max_batch) == (96, 3)
        # Its form is its plans, and the page draws it.
        page = payload_of([PageModel(spec=hwcalc.load_model(sized), argument="-")], PageAxes(gpus=("l4",)))
        assert "paged" in [one["name"] for one in page["engines"]]
        assert "curve" in page["models"][0]["engines"]["paged"]
        opened = open_request(hwcalc.load_model(sized), engine="paged", gpu="l4", seq=17, tp=4)
        form = form_of(opened)
        assert form is not None
        for seq, batch in ((17, 1), (4096, 3), (99_999, 40)):
            assert differences(form, plan(sized, engine="paged", gpu="l4", seq=seq, batch=batch, tp=4)) == {}
        with pytest.raises(UsageError, match="page_size") as caught:
            plan(config, seq=17, engine="paged", engine_options={"page_size": 4})
        assert "block_size" in caught.value.hint
    finally:
        hwcalc.engines._load.cache_clear()


def test_a_policy(follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The policy is found by its name, listed, completed, and keeps half, inside another policy too."""
    follow("hwcalc/policies", "halves")
    monkeypatch.setattr(parse, "TABLES", (*parse.TABLES, ("halves", "POLICIES")))
    config = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 256}
    parse.policies.cache_clear()
    try:
        assert keep(config, "EveryOther", prompt=17, decode=2).after_decode_per_layer == [11, 11, 11]
        assert keep(config, "composed:presses=[everyother,everyother]", prompt=17).per_layer == [5, 5, 5]
        assert "every other token of the prompt" in run(capsys, "policies", "everyother")[1]
        assert completion.policies("every") == ["everyother"]
    finally:
        monkeypatch.undo()
        parse.policies.cache_clear()


def test_a_report_format(follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The format is printed and completed, has the bytes of the JSON, and is unknown to commands that do not plan."""
    module = follow("hwcalc/report", "line")
    find_command("plan")  # Its help lists the formats once, when it is imported: other tests read it after this one.
    monkeypatch.setitem(FORMATS, "line", (module.__name__, "plan_line"))

    status, out, _ = run(capsys, QWEN, "--seq", "32k", "--format", "line")
    # 36 layers x 32,768 tokens x 8 heads x (128 + 128) x 2 bytes
    assert (status, out) == (0, f"{QWEN}: 4,831,838,208 B, exact: the formulas, nothing that an engine adds\n")
    assert plan(QWEN, seq="32k").cache.total_bytes == 36 * 32_768 * 8 * (128 + 128) * 2 == 4_831_838_208
    assert completion.plan_formats("l") == ["line"]
    for words in (("gpus",), ("explain", QWEN, "--seq", "32k")):
        status, _, err = run(capsys, *words, "--format", "line")
        assert status == 2
        assert "--format 'line' is not known" in err


def test_a_requirement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requirement is read, judged at its limit and beyond it, and part of the schema."""
    monkeypatch.setitem(REQUIREMENTS, "max_batch", Field(REQUIREMENTS["max_gpus"].read, "Most sequences.", {"type": "integer"}))
    monkeypatch.setitem(judge._JUDGES, "max_batch", judge._at_most(lambda figures, _: (figures.batch,) * 3, "sequences"))
    monkeypatch.setattr(check_file.TreeReader, "known", (*check_file.TreeReader.known, "max_batch"))
    file = tmp_path / "kvplan.yaml"
    file.write_text(
        f"schema_version: 1\nchecks: [{{model: {QWEN}, seq: 1, batch: 4, max_batch: 4}}, {{model: {QWEN}, seq: 1, batch: 5, max_batch: 4}}]\n",
        encoding="utf-8",
    )
    document = hwcalc.check(str(file))

    assert [check.status for check in document.checks] == ["pass", "fail"]
    assert document.checks[1].requirements[0].message == "5 sequences, at most 4 sequences required"
    assert "max_batch" in check_file_schema()["properties"]["checks"]["items"]["properties"]


def test_a_gguf_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is enough to plan a file: of four layers the last is full, the others keep 1,024 tokens and a batch of 512."""
    row = Architecture(window=Window(period=4))
    monkeypatch.setattr(hparams, "ARCHITECTURES", {**ARCHITECTURES, "newcomer": row})
    sizes = {
        "block_count": 4,
        "context_length": 8192,
        "embedding_length": 512,
        "feed_forward_length": 1024,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.sliding_window": 1024,
    }
    keys = {"general.architecture": "newcomer", **{f"newcomer.{name}": value for name, value in sizes.items()}}
    cells = {
        engine: plan(keys, seq=8192, engine=engine).cache.total_bytes // (2 * 64 * 2 * 2) for engine in ("reference", "llamacpp")
    }

    assert cells == {"reference": 8192 + 3 * 1024, "llamacpp": 8192 + 3 * (1024 + 512)}


def test_a_command(follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The command runs from a simple line and through Typer, and has its help."""
    monkeypatch.setitem(COMMANDS, "size", follow("hwcalc/cli", "size").__name__)
    for line in (("size", QWEN, "--seq", "1"), ("--seq=1", "size", QWEN)):
        # 36 layers x 8 heads x (128 + 128) x 2 bytes
        assert run(capsys, *line) == (0, f"{36 * 8 * (128 + 128) * 2}\n", "")
    status, out, _ = run(capsys, "size", "--help")
    assert status == 0
    assert "Print the bytes of the cache as a bare number." in out
    assert run(capsys, "size", "nobody/nothing")[0] == 3


def test_a_dialect(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is recognised by its lines, planned, and compared."""
    module = follow("hwcalc/reconcile/dialects", "script")
    for place in (core, dialects):
        monkeypatch.setattr(place, "DIALECTS", (*dialects.DIALECTS, module.ScriptLog))
    # 1,024 tokens x 144 KiB
    agrees, differs = (reconcile(QWEN, ["starting", f"cache: {size}.00 MiB"], seq=1024) for size in (144, 150))

    assert (agrees.dialect, agrees.engine, agrees.within, agrees.lines) == ("script", "reference", True, 2)
    (row,) = differs.rows
    assert (row.predicted, row.difference, row.within, row.line) == (144 * 2**20, 6 * 2**20, False, 2)


def test_an_accelerator_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A file of the user is planned with and listed, each plan says so, and a broken file is named with its line and key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "kvplan/profiles/gpus"
    folder.mkdir(parents=True)
    text = "schema_version: 1\nid: my-own-card\nname: My own card\nvendor: me\ntorch_total_mib: 24000\nsource:\n  own: read on my desk\n"
    (folder / "my-own-card.yaml").write_text(text, encoding="utf-8")
    planned = plan(QWEN, seq=1024, engine="transformers", gpu="my-own-card")

    assert planned.fit is not None
    assert planned.fit.budget is not None
    assert (planned.fit.gpu, planned.fit.verdict, planned.fit.budget.total_bytes) == ("my-own-card", "fits", 24_000 * 2**20)
    assert [note.code for note in planned.notes].count("user-profile") == 1
    assert "my-own-card" in run(capsys, "gpus", "my-own-card")[1]
    (folder / "broken-card.yaml").write_text(text.replace("my-own", "broken").replace("24000", "many"), encoding="utf-8")
    status, _, err = run(capsys, QWEN, "--gpu", "broken-card")
    assert status == 3
    assert f"{folder / 'broken-card.yaml'}, line 5: torch_total_mib:" in err
