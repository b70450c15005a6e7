"""Completions for the shell. A function runs at each key press, so it imports little and never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

__all__ = [
    "assumptions",
    "categories",
    "check_files",
    "check_formats",
    "clouds",
    "colors",
    "commands",
    "compactions",
    "dialects",
    "dtypes",
    "emitters",
    "engine_options",
    "engines",
    "engines_or_all",
    "explain_parts",
    "families",
    "files",
    "formats",
    "gpus",
    "instances",
    "modalities",
    "models",
    "paths",
    "plan_formats",
    "plot_kinds",
    "policies",
    "policy_names",
    "policy_rules",
    "probe_devices",
    "probe_searches",
    "schemas",
    "strategies",
    "sweep_formats",
    "vendors",
    "weight_formats",
]

_MOST_PATHS = 200


def models(incomplete: str) -> list[str]:
    """Ids of known models and GGUF files here; files and folders if the word looks like a path, and Ollama's models behind its prefix."""
    if incomplete.startswith((".", "/", "~")):
        return _paths(incomplete)
    lowered = incomplete.lower()
    with suppress(Exception):
        from hwcalc.model import OLLAMA

        if lowered.startswith(OLLAMA):
            from hwcalc.sources.ollama import ollama_models, ollama_stores

            there = (f"{OLLAMA}{model.short}" for store in ollama_stores() for model, _ in ollama_models(store))
            return sorted({name for name in there if name.lower().startswith(lowered)})
        from hwcalc.sources.gguf.local import gguf_files
        from hwcalc.sources.listing import known_ids

        return [name for name in (*gguf_files(Path()), *known_ids()) if name.lower().startswith(lowered)]
    return []


def _paths(incomplete: str) -> list[str]:
    with suppress(OSError, RuntimeError, ValueError):
        folder, _, start = incomplete.rpartition("/")
        base = Path(folder + "/").expanduser()
        names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in base.iterdir() if entry.name.startswith(start))
        return [f"{folder}/{name}" for name in names[:_MOST_PATHS]]
    return []


def engines(incomplete: str) -> list[str]:
    """Engine names."""
    from hwcalc.engines import ENGINES

    return _starting(ENGINES, incomplete)


def engines_or_all(incomplete: str) -> list[str]:
    """Engine names, and the word for every one."""
    from hwcalc.engines import ALL, ENGINES

    return _starting([*ENGINES, ALL], incomplete)


def files(incomplete: str) -> list[str]:
    """Files and folders."""
    return _paths(incomplete if "/" in incomplete else f"./{incomplete}")


def commands(incomplete: str) -> list[str]:
    """The commands."""
    from hwcalc.cli.options import COMMANDS

    return _starting(COMMANDS, incomplete)


def dialects(incomplete: str) -> list[str]:
    """Dialects of logs."""
    from hwcalc.reconcile.dialects import DIALECTS

    return _starting((dialect.name for dialect in DIALECTS), incomplete)


def dtypes(incomplete: str) -> list[str]:
    """Dtype names. After a colon, dtype names for the values."""
    from hwcalc.profiles.dtypes import dtype_names, packed_names

    first, colon, second = incomplete.rpartition(":")
    return [f"{first}{colon}{name}" for name in _starting((*dtype_names(), *(() if colon else packed_names())), second)]


def policy_names(incomplete: str) -> list[str]:
    """Cache policies."""
    from hwcalc.policies.parse import policies as names

    return _starting(names(), incomplete)


def strategies(incomplete: str) -> list[str]:
    """Ways of allocating a cache."""
    from hwcalc.planner.strategies import ENGINE, NAMES

    return _starting((*NAMES, ENGINE), incomplete)


def policies(incomplete: str) -> list[str]:
    """A cache policy; behind its colon its options, and in brackets policies again."""
    from hwcalc.policies.parse import completed

    return completed(incomplete)


def policy_rules(incomplete: str) -> list[str]:
    """Whose rules a policy follows."""
    from hwcalc.planner.values import POLICY_RULES

    return _starting(POLICY_RULES, incomplete)


def compactions(incomplete: str) -> list[str]:
    """What a policy does with blocks."""
    from hwcalc.planner.values import COMPACTIONS

    return _starting(COMPACTIONS, incomplete)


def modalities(incomplete: str) -> list[str]:
    """What a model takes beside text."""
    from hwcalc.library.fit_search import MODALITIES

    return _starting(MODALITIES, incomplete)


def families(incomplete: str) -> list[str]:
    """Families of the catalog's models."""
    from hwcalc.library.families import family_of
    from hwcalc.profiles.catalog import list_models

    lowered = incomplete.lower()
    return sorted({name for name in map(family_of, list_models()) if name.lower().startswith(lowered)})


def weight_formats(incomplete: str) -> list[str]:
    """Weight formats."""
    from hwcalc.quantization.planned import weight_formats as names

    return _starting((*names(), "auto"), incomplete)


def emitters(incomplete: str) -> list[str]:
    """Engines whose command line can be printed."""
    from hwcalc.report.emit import emitters as names

    return _starting(names(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Ids of accelerators and the one of this machine; aliases too, if a part of the name is written."""
    from hwcalc.hardware.named import LOCAL
    from hwcalc.profiles.gpus import gpu_aliases, list_gpus

    with suppress(Exception):
        known = [*list_gpus(), LOCAL]
        names = _starting([*known, *sorted(gpu_aliases())] if incomplete else known, incomplete.lower())
        return [*names, *(_sizes(names[0]) if len(names) == 1 else [])]
    return []


def _sizes(name: str) -> list[str]:
    """Names with a size, such as ``m4-max-48gb``, if the accelerator is sold with several sizes of memory."""
    from hwcalc.profiles.gpus import find_gpu

    sizes = find_gpu(name).memory_options_gb
    return [f"{name}-{size}gb" for size in sizes] if len(sizes) > 1 else []


def instances(incomplete: str) -> list[str]:
    """Cloud instances, with or without the name of the cloud."""
    from hwcalc.profiles.instances import list_instances

    with suppress(Exception):
        names = list_instances()
        return _starting(names if "/" in incomplete or not incomplete else _both(names), incomplete.lower())
    return []


def _both(names: Iterable[str]) -> list[str]:
    listed = list(names)
    return [*listed, *(name.partition("/")[2] for name in listed)]


def vendors(incomplete: str) -> list[str]:
    """Makers of accelerators."""
    return _starting(sorted({gpu.vendor for gpu in _readable()}), incomplete)


def _readable() -> Iterator[Gpu]:
    """The accelerators whose files can be read."""
    from hwcalc.profiles.gpus import find_gpu, list_gpus

    with suppress(Exception):
        for name in list_gpus():
            with suppress(Exception):
                yield find_gpu(name)


def categories(incomplete: str) -> list[str]:
    """Categories of accelerators."""
    return _starting(sorted({gpu.category for gpu in _readable() if gpu.category is not None}), incomplete)


def clouds(incomplete: str) -> list[str]:
    """Clouds with known instances, and ``all``."""
    from hwcalc.profiles.instances import list_instances

    return _starting(["all", *sorted({name.partition("/")[0] for name in list_instances()})], incomplete)


def engine_options(incomplete: str) -> list[str]:
    """Option names of all engines, with an equals sign; behind one, the words that an engine takes as a value."""
    from hwcalc.engines import ENGINES, find_engine

    known = [option for name in ENGINES for option in find_engine(name)[0].options.values()]
    name, equals, start = incomplete.partition("=")
    if not equals:
        return _starting(sorted({f"{option.name}=" for option in known}), incomplete)
    checks = [option.check for option in known if option.name == name]
    return [f"{name}={word}" for word in _WORDS if word.startswith(start) and any(_takes(check, name, word) for check in checks)]


_WORDS = (
    "auto", "all", "true", "false", "on", "off", "f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "float32", "float16",
    "bfloat16", "server", "api", "none", "layer", "row", "mtp", "dynamic", "static", "quantized", "offloaded", "quanto", "hqq",
)  # fmt: skip


def _takes(check: Callable[[str, str], object], name: str, word: str) -> bool:
    """Whether an option accepts this word and refuses others."""
    from hwcalc.errors import KvplanError

    for text, taken in ((word, True), ("no such word", False)):
        try:
            check(name, text)
        except KvplanError:
            if taken:
                return False
        else:
            if not taken:
                return False
    return True


def assumptions(incomplete: str) -> list[str]:
    """What ``--assume`` takes."""
    from hwcalc.parsers.known_types import known_types

    families = {family for known in known_types().values() for family in known.families}
    return _starting(sorted({*families - {"no cache"}, *known_types()}), incomplete)


def formats(incomplete: str) -> list[str]:
    """Output formats."""
    from hwcalc.cli.output import FORMATS

    return _starting(FORMATS, incomplete)


def colors(incomplete: str) -> list[str]:
    """When an answer is coloured."""
    from hwcalc.cli.output import COLORS

    return _starting(COLORS, incomplete)


def sorts(incomplete: str) -> list[str]:
    """Orders of ``kvplan recommend``."""
    from hwcalc.planner.recommend import SORTS

    return _starting(SORTS, incomplete)


def plan_formats(incomplete: str) -> list[str]:
    """Output formats of a plan."""
    from hwcalc.report.plan import FORMATS

    return _starting(FORMATS, incomplete)


def plot_kinds(incomplete: str) -> list[str]:
    """The kinds of pictures."""
    return [kind for kind in ("memory", "frontier", "layers") if kind.startswith(incomplete.lower())]


def sweep_formats(incomplete: str) -> list[str]:
    """Output formats of ``kvplan sweep``."""
    from hwcalc.cli.sweep import FORMATS

    return _starting(FORMATS, incomplete)


def explain_parts(incomplete: str) -> list[str]:
    """Parts of an explanation."""
    from hwcalc.library.explained import SECTIONS

    return _starting(SECTIONS, incomplete)


def probe_devices(incomplete: str) -> list[str]:
    """Devices for a probe, whether or not this machine has them."""
    return _starting(("cpu", "cuda:0", "mps"), incomplete)


def probe_searches(incomplete: str) -> list[str]:
    """What ``--find-max`` takes."""
    return _starting(("batch", "seq"), incomplete)


def schemas(incomplete: str) -> list[str]:
    """Documents that have a schema."""
    from hwcalc.report.schema import DOCUMENTS

    return _starting(DOCUMENTS, incomplete)


def check_formats(incomplete: str) -> list[str]:
    """Output formats of ``kvplan check``."""
    from hwcalc.report.check import FORMATS

    return _starting(FORMATS, incomplete)


def check_files(incomplete: str) -> list[str]:
    """Files and folders."""
    return paths(incomplete)


def paths(incomplete: str) -> list[str]:
    """Files and folders, starting in the current one."""
    return _paths(incomplete) if "/" in incomplete else [name.removeprefix("./") for name in _paths(f"./{incomplete}")]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that start with the typed text; in a list, with the text after the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
