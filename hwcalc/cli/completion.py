"""Completions for the shell. A function runs at each key press, so it imports little and never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

_MOST_PATHS = 200


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that start with the typed text; in a list, with the text after the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _listed(module: str, attribute: str) -> Callable[[str], list[str]]:
    """A completion by the names that a module has, or that a function of it returns."""

    def completed(incomplete: str) -> list[str]:
        names = getattr(import_module(module), attribute)
        return _starting(names() if callable(names) else names, incomplete)

    return completed


engines = _listed("hwcalc.engines", "ENGINES")
commands = _listed("hwcalc.cli.options", "COMMANDS")
policy_names = _listed("hwcalc.policies.parse", "policies")
policy_rules = _listed("hwcalc.planner.values", "POLICY_RULES")
compactions = _listed("hwcalc.planner.values", "COMPACTIONS")
modalities = _listed("hwcalc.library.fit", "MODALITIES")
emitters = _listed("hwcalc.report.emit", "emitted_forms")
formats = _listed("hwcalc.cli.output", "FORMATS")
colors = _listed("hwcalc.cli.output", "COLORS")
sorts = _listed("hwcalc.planner.recommend", "SORTS")
plan_formats = _listed("hwcalc.report.plan", "FORMATS")
sweep_formats = _listed("hwcalc.cli.sweep", "FORMATS")
explain_parts = _listed("hwcalc.library.explained", "SECTIONS")
schemas = _listed("hwcalc.report.schema", "DOCUMENTS")
routes = _listed("hwcalc.replay.simulate", "ROUTES")
clocks = _listed("hwcalc.replay.simulate", "CLOCKS")
trace_formats = _listed("hwcalc.workload.formats", "BY_NAME")
check_formats = _listed("hwcalc.report.check", "FORMATS")


def _one_of(*names: str) -> Callable[[str], list[str]]:
    """A completion by these names."""
    return lambda incomplete: _starting(names, incomplete.lower())


plot_kinds = _one_of("memory", "frontier", "layers", "nodes", "cost")
plot_scales = _one_of("linear", "log")
measured = _one_of("aiconfigurator")
probe_devices = _one_of("cpu", "cuda:0", "mps")
probe_searches = _one_of("batch", "seq")


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


def engines_or_all(incomplete: str) -> list[str]:
    """Engine names, and the word for every one."""
    from hwcalc.engines import ALL, ENGINES

    return _starting([*ENGINES, ALL], incomplete)


def files(incomplete: str) -> list[str]:
    """Files and folders."""
    return _paths(incomplete if "/" in incomplete else f"./{incomplete}")


def fleet_emitters(incomplete: str) -> list[str]:
    """Forms of what starts the servers of a fleet."""
    from hwcalc.report.manifest import FORMS

    return _starting((*FORMS, "command"), incomplete)


def dialects(incomplete: str) -> list[str]:
    """Dialects of logs."""
    from hwcalc.reconcile.dialects import DIALECTS

    return _starting((dialect.name for dialect in DIALECTS), incomplete)


def links(incomplete: str) -> list[str]:
    """Links between servers."""
    from hwcalc.planner.apart import OWN
    from hwcalc.profiles.links import links as known

    return _starting((OWN, *(one.name for one in known() if one.what == "network")), incomplete.lower())


def drives(incomplete: str) -> list[str]:
    """Drives with the files of models."""
    from hwcalc.profiles.links import links as known

    return _starting((one.name for one in known() if one.what == "disk"), incomplete.lower())


def dtypes(incomplete: str) -> list[str]:
    """Dtype names. After a colon, dtype names for the values."""
    from hwcalc.profiles.dtypes import dtype_names, packed_names

    first, colon, second = incomplete.rpartition(":")
    return [f"{first}{colon}{name}" for name in _starting((*dtype_names(), *(() if colon else packed_names())), second)]


def strategies(incomplete: str) -> list[str]:
    """Ways of allocating a cache."""
    from hwcalc.planner.strategies import ENGINE, NAMES

    return _starting((*NAMES, ENGINE), incomplete)


def policies(incomplete: str) -> list[str]:
    """A cache policy; behind its colon its options, and in brackets policies again."""
    from hwcalc.policies.parse import completed

    return completed(incomplete)


def families(incomplete: str) -> list[str]:
    """Families of the catalog's models."""
    from hwcalc.library.candidates import family_of
    from hwcalc.profiles.catalog import list_models

    lowered = incomplete.lower()
    return sorted({name for name in map(family_of, list_models()) if name.lower().startswith(lowered)})


def weight_formats(incomplete: str) -> list[str]:
    """Weight formats."""
    from hwcalc.quantization.planned import weight_formats as names

    return _starting((*names(), "auto"), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Ids of accelerators and the one of this machine; aliases too, if a part of the name is written."""
    from hwcalc.hardware.named import LOCAL
    from hwcalc.profiles.gpus import find_gpu, gpu_aliases, list_gpus
    from hwcalc.profiles.mig import cuts, slice_id

    with suppress(Exception):
        whole, mig, _ = incomplete.lower().partition("-mig")
        if mig:
            return _starting(
                [slice_id(whole, part) for part in cuts()[gpu_aliases().get(whole, whole)].slices], incomplete.lower()
            )
        known = [*list_gpus(), LOCAL]
        names = _starting([*known, *sorted(gpu_aliases())] if incomplete else known, incomplete.lower())
        # With a size, such as ``m4-max-48gb``, if the accelerator is sold with several sizes of memory.
        sizes = find_gpu(names[0]).memory_options_gb if len(names) == 1 else ()
        return [*names, *(f"{names[0]}-{size}gb" for size in sizes if len(sizes) > 1)]
    return []


def instances(incomplete: str) -> list[str]:
    """Cloud instances, with or without the name of the cloud."""
    from hwcalc.profiles.instances import list_instances

    with suppress(Exception):
        names = list(list_instances())
        short = [] if "/" in incomplete or not incomplete else [name.partition("/")[2] for name in names]
        return _starting([*names, *short], incomplete.lower())
    return []


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
    """True if an option accepts this word and refuses others."""
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
    """Values of ``--assume``."""
    from hwcalc.parsers.known_types import known_types

    families = {family for known in known_types().values() for family in known.families}
    return _starting(sorted({*families - {"no cache"}, *known_types()}), incomplete)


def paths(incomplete: str) -> list[str]:
    """Files and folders, starting in the current one."""
    return _paths(incomplete) if "/" in incomplete else [name.removeprefix("./") for name in _paths(f"./{incomplete}")]


def workloads(incomplete: str) -> list[str]:
    """The words of a workload, and files."""
    from hwcalc.workload.made import KEYS

    key, sign, _ = incomplete.partition("=")
    words = [] if sign else _starting((f"{name}=" for name in KEYS), incomplete)
    if sign and key == "arrival":
        words = _starting(("arrival=once", "arrival=rate=", "arrival=poisson="), incomplete)
    return [*words, *files(incomplete)]
