"""An engine's name stands in its own folder, in its dialect, and in the tables; every other place has a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hwcalc.engines import DEFAULT, ENGINES, find_engine
from tests.paths import ROOT

TABLES: Final = ("hwcalc/engines/__init__.py", "hwcalc/reconcile/dialects/__init__.py")
"""Files with one row for each engine."""
HOMES: Final = {
    name: module.removeprefix("hwcalc.engines.").split(".")[0] for name, (module, _) in ENGINES.items() if name != DEFAULT
}
"""Engine -> the folder or module of its rules, which its dialect shares the name of."""

_MAYBE: Final = re.compile("|".join(rf"""["']{name}["']|engines\.{home}""" for name, home in HOMES.items()))
"""What a file has that names one; most need not be parsed."""


def _named(path: Path) -> Iterator[str]:
    """The homes of the engines that a file names: in a string of its own, or by an import of their modules."""
    text = path.read_text(encoding="utf-8")
    if not _MAYBE.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in HOMES:
            yield HOMES[node.value]
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            beginning, _, rest = module.partition("hwcalc.engines.")
            if not beginning:
                yield from (home for home in set(HOMES.values()) if rest == home or rest.startswith((f"{home}.", f"{home}_")))


def _found() -> set[tuple[str, str]]:
    """Every file outside the homes and the tables that names an engine, with the home that it names."""
    out = set()
    for folder in ("hwcalc", "profiles", "formulas"):
        for path in (ROOT / folder).rglob("*.py"):
            name, parts = path.relative_to(ROOT).as_posix(), path.relative_to(ROOT).with_suffix("").parts
            own = {home for home in HOMES.values() for part in parts if part == home or part.startswith(f"{home}_")}
            out |= {(name, home) for home in _named(path) if home not in own and name not in TABLES}
    return out


_READING: Final = "how this engine's own code reads the config, where that is another reading than the published one"
_FILES: Final = "a file of facts about this engine, profiles/engines/*.yaml, and its form"
_INDEX: Final = "the index of the catalog, from which kvplan fit answers at once, is made by this engine's rules"
_STARTS: Final = "a kind of manifest, or a chart, that starts this engine alone"
_LIVE: Final = "the probe runs a live model with this library, which is torch's own"
_FIRST: Final = "where nobody names an engine, a speed is of the one that is usual on such hardware"
_BENCH: Final = "the result of this engine's own benchmark"
REASONS: Final = {
    ("hwcalc/engines/runs_on.py", "llamacpp"): _FIRST,
    ("hwcalc/engines/runs_on.py", "vllm"): _FIRST,
    **{("hwcalc/reconcile/bench.py", home): _BENCH for home in ("llamacpp", "sglang", "vllm")},
    ("hwcalc/replay/simulate.py", "vllm"): "the engine whose scheduler is replayed where nobody names one",
    ("hwcalc/check/fields.py", "vllm"): "a check file takes the names of vllm serve's flags",
    ("hwcalc/cli/line.py", "vllm"): "the command line takes the flags of vllm serve as they are",
    (
        "hwcalc/engines/vllm/supported.py",
        "transformers",
    ): "a word in vLLM's own list of classes: the release that ran the class through this library",
    ("hwcalc/engines/runs_on.py", "mlx"): "the start of the names of formats of weights",
    ("hwcalc/launch/charts.py", "tensorrt_llm"): _STARTS,
    ("hwcalc/launch/charts.py", "vllm"): _STARTS,
    ("hwcalc/launch/kubernetes.py", "vllm"): _STARTS,
    ("hwcalc/launch/kubernetes.py", "llamacpp"): "the address of a model of Ollama's, as manifests write it",
    ("hwcalc/launch/manifests.py", "vllm"): _STARTS,
    ("hwcalc/library/indexing.py", "llamacpp"): _INDEX,
    ("hwcalc/parsers/parse.py", "transformers"): _READING,
    ("hwcalc/parsers/decoder/gpt.py", "transformers"): _READING,
    ("hwcalc/parsers/decoder/build.py", "vllm"): _READING,
    ("hwcalc/parsers/bert.py", "transformers"): _READING,
    ("hwcalc/parsers/gguf/parse.py", "llamacpp"): _READING,
    ("hwcalc/parsers/states/delta.py", "transformers"): _READING,
    ("hwcalc/parsers/states/fla.py", "sglang"): _READING,
    ("hwcalc/parsers/states/mixtures.py", "transformers"): _READING,
    ("hwcalc/parsers/states/short_conv.py", "vllm"): _READING,
    ("hwcalc/parsers/latent.py", "transformers"): _READING,
    ("hwcalc/parsers/decoder/unlike.py", "transformers"): _READING,
    ("hwcalc/parsers/states/recurrent.py", "transformers"): _READING,
    **{
        ("hwcalc/planner/aiconfigurator.py", home): "the back ends of aiconfigurator, by its own names of them"
        for home in ("sglang", "tensorrt_llm", "vllm")
    },
    ("hwcalc/planner/strategies.py", "transformers"): "offloading as a strategy is what this library does",
    ("hwcalc/probe/live.py", "transformers"): _LIVE,
    ("hwcalc/probe/live_model.py", "transformers"): _LIVE,
    ("hwcalc/reconcile/dialects/prometheus.py", "vllm"): "the metrics of this engine name its model by a name of their own",
    ("hwcalc/quantization/planned.py", "transformers"): "the program that makes checkpoints of bitsandbytes",
    ("hwcalc/report/manifest.py", "vllm"): _STARTS,
    ("hwcalc/report/summary.py", "vllm"): "the server that is offered to who names none",
    ("hwcalc/report/summary.py", "llamacpp"): "the server that is offered where vLLM does not run",
    ("hwcalc/sources/ollama.py", "llamacpp"): "the engine that runs a model of Ollama's library, in the command that plans it",
    ("hwcalc/sources/listing.py", "llamacpp"): "Ollama's store of models on this machine is a source of models too",
    ("profiles/engines.py", "llamacpp"): _FILES,
    ("profiles/engines.py", "vllm"): _FILES,
    ("profiles/model_index.py", "llamacpp"): _INDEX,
}
"""(file, engine that it names) -> why a new engine needs no row here."""


def test_an_engine_is_named_at_home_alone() -> None:
    """A file that names an engine elsewhere has a reason here, and a reason that is no longer needed is taken out."""
    assert _found() == REASONS.keys()


def test_every_home_is_there() -> None:
    """A folder, or a module and those that begin with its name; so that a wrong home does not hide what is named elsewhere."""
    engines = ROOT / "hwcalc" / "engines"
    assert [home for home in HOMES.values() if not (engines / home).is_dir() and not (engines / f"{home}.py").is_file()] == []


@pytest.mark.parametrize("home", sorted(set(HOMES.values())))
def test_an_offered_option_is_one_of_the_engine(home: str) -> None:
    """What a sentence in an engine's folder says of ``--engine-option`` can be typed, and is read where a server is told it (launch/planned.py)."""
    known = {option for name, at in HOMES.items() if at == home for option in find_engine(name)[0].options}
    paths = [*(ROOT / "hwcalc").rglob(f"{home}/*.py"), *(ROOT / "hwcalc").rglob(f"{home}.py")]
    said = {name for path in paths for name in re.findall(r"--engine-option (\w+)", path.read_text(encoding="utf-8"))}

    assert paths
    assert said <= known
