"""Whether an engine runs on an accelerator, and the formats of a deployment there: the one refusal, and the one warning.

What runs where are facts with their source (:mod:`hwcalc.profiles.engine_hardware`). An engine may also run where kvplan does not know its
rules; :attr:`~hwcalc.engines.facts.Facts.planned_on` says where it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from hwcalc.engines import AT_HOME, ENGINES, find_engine
from hwcalc.errors import UnknownRulesError, UnsupportedError
from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer
from hwcalc.model import Note
from hwcalc.profiles.engine_hardware import (
    Answer,
    Found,
    architecture_of,
    family,
    format_runs_on,
    has_hardware,
    names_gpu,
    runs_on,
)

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment
    from hwcalc.engines.engine import Engine
    from hwcalc.profiles.hardware_file import Gpu

OPEN: Final = "hardware-open"
"""The code of the warning that sources leave open whether the engine runs so."""
_NOUNS: Final = {"weights": "{} weights", "cache": "a cache in {}", "attention": "{} attention"}
_CHANGES: Final = {
    "weights": "Use other --weights, or another accelerator.",
    "cache": "Use: --dtype auto, or another accelerator.",
    "attention": "Use another accelerator.",
}


def check_accelerator(engine: Engine, version: str, gpu: Gpu, backend: str = "", *, started: bool = False) -> tuple[Note, ...]:
    """A warning if sources leave open whether the engine runs on the accelerator.

    Raises an error if it does not, unless it is known to have ``started`` there, or if its rules there are not known.
    """
    if not has_hardware(engine.name):
        return ()
    found, title = runs_on(engine.name, version, gpu, backend), _titled(engine, version)
    if found.answer is Answer.NEVER and not started:
        why = "no source says that it does" if found.row is None else found.row.note
        message = f"{title} does not run on {_called(gpu)}{f': {why}' if why else ''}."
        raise UnsupportedError(message, hint=_elsewhere(engine, gpu))
    known = engine.facts.planned_on
    if known is not None and architecture_of(gpu) is not None and not any(names_gpu(name, gpu) for name in known):
        there = (found.row.note if found.row is not None else "") or "sources leave open whether it runs there"
        message = f"{engine.label}'s rules for {_called(gpu)} are not known: {there}."
        if found.answer is Answer.RUNS:
            message = f"{engine.label} runs on {_called(gpu)}, by rules that kvplan does not know."
        raise UnknownRulesError(
            message,
            hint=f"Known: those for {_makers(known)}. Without --gpu: give a budget with --kv-memory. {_elsewhere(engine, gpu)}",
        )
    if started or found.answer is Answer.RUNS:
        return ()
    return (_open(f"{title} runs on {_called(gpu)}", found, "its file says neither compute_capability nor architecture"),)


def check_read(deployment: Deployment) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` for weights in a format of another program that the engine reads on no accelerator."""
    engine, named = deployment.engine, deployment.setup.weights
    if engine.facts.foreign_formats is None:
        return
    from hwcalc.quantization.planned import format_name

    for spelled in _weights(deployment):
        owner = next((owner for start, owner in _OWNERS.items() if spelled[-1].startswith(start)), None)
        if owner is not None and owner not in engine.facts.foreign_formats:
            name = format_name(named) if named is not None else ""
            what = (
                f"weights in {name}, a format of {owner}"
                if name
                else f"the weights of {deployment.model.id}, which are in a format of {owner}"
            )
            raise UnsupportedError(
                f"{engine.label} does not read {what}.",
                hint=f"Use: {'another format for --weights' if name else '--weights'}, or leave out --engine for the formulas alone.",
            )


_OWNERS: Final = {"exl2": "ExLlamaV2", "exl3": "ExLlamaV3", "mlx": "MLX", "bnb": "bitsandbytes", "gguf": "GGUF files"}
"""The start of a format's name -> the program that it belongs to."""


def check_formats(deployment: Deployment) -> tuple[Note, ...]:
    """Warnings on formats and attention of which sources leave open whether they run there. Raises an error for those that do not."""
    engine, hardware = deployment.engine, deployment.setup.hardware
    gpu = hardware.gpu
    if gpu is None or hardware.started or not has_hardware(engine.name):
        return ()
    notes, title = [], _titled(engine, deployment.version)
    for section, spelled in _needs(deployment):
        found = format_runs_on(engine.name, deployment.version, section, spelled, gpu, deployment.backend())
        if found is None or found.answer is Answer.RUNS:
            continue
        said = _NOUNS[section].format(spelled[-1])
        if found.answer is Answer.OPEN:
            unsaid = "no source names them together"
            notes.append(_open(f"{title} runs {said} on {_called(gpu)}", found, unsaid))
            continue
        named = found.row is not None and found.row.answer is Answer.NEVER
        why = found.row.note if named and found.row is not None else ""
        if not why and found.accelerators:
            why = f"that needs {_listed(found.accelerators)}"
        raise UnsupportedError(
            f"{title} does not run {said} on {_called(gpu)}{f': {why}' if why else ''}.",
            hint=f"{_CHANGES[section]} See: kvplan engines {engine.name} --hardware",
        )
    return tuple(notes)


def leaves_weights_open(deployment: Deployment) -> bool:
    """True if sources leave open that a format of the weights runs on the accelerator."""
    gpu, name = deployment.setup.hardware.gpu, deployment.engine.name
    if gpu is None or not has_hardware(name):
        return False
    every = (
        format_runs_on(name, deployment.version, "weights", spelled, gpu, deployment.backend())
        for spelled in _weights(deployment)
    )
    return any(found is not None and found.answer is Answer.OPEN for found in every)


def runs_weights(engine: Engine, version: str, gpu: Gpu | None, name: str) -> bool:
    """True if weights in this format run there for all that is known; without a GPU they do."""
    if gpu is None:
        return True
    found = format_runs_on(engine.name, version, "weights", (name,), gpu)
    return found is None or found.answer is Answer.RUNS


def _needs(deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The formats of a deployment: the section of the facts, and the names of one, the most exact first."""
    for spelled in _weights(deployment):
        yield "weights", spelled
    for part in dict.fromkeys(deployment.dtypes.value.kv.split(":")):
        yield "cache", (part,)
    kinds = {type(group.kind) for group in deployment.plain_stack.groups}
    kernel = deployment.traits.attention_kernel
    if kernel:
        yield "attention", (f"{kernel} latent", kernel) if LatentAttention in kinds else (kernel,)
    if {LatentAttention, SparseIndexer} <= kinds:
        yield "attention", ("sparse latent",)
    if CompressedAttention in kinds:
        yield "attention", ("compressed",)


def _weights(deployment: Deployment) -> Iterator[tuple[str, ...]]:
    """The names of each format of the weights, after the quantiser where the checkpoint names one."""
    model, named = deployment.model, deployment.setup.weights
    from_gguf = model.gguf is not None and bool(model.gguf.tensors)
    if named is None and not from_gguf and model.quantization is None:
        return
    from hwcalc.quantization.ggml import MIXES
    from hwcalc.quantization.planned import format_name, planned_scheme

    name = format_name(named)
    scheme, _ = planned_scheme(model, name)
    if scheme is None:
        return
    formats = dict.fromkeys(rule.format.name for rule in scheme.rules)
    if name in MIXES or (name is None and from_gguf):
        yield ("gguf",)
        yield from ((form,) for form in formats if form.startswith(("mxfp4", "nvfp4")))
        return
    method = "" if name is not None else str((model.quantization or {}).get("quant_method", "")).lower().replace("_", "-")
    for form in formats:
        yield (f"{method} {form}", form) if method else (form,)


def _open(what: str, found: Found, otherwise: str) -> Note:
    why = found.row.note if found.row is not None else otherwise
    return Note(code=OPEN, message=f"It is not certain that {what}{f': {why}' if why else ''}.")


def _titled(engine: Engine, version: str) -> str:
    return f"{engine.label} {version.removeprefix('v')}".rstrip()


def _called(gpu: Gpu) -> str:
    """The accelerator, with the name by which engines know it."""
    name = architecture_of(gpu)
    if name is None:
        return gpu.name
    return f"{gpu.name[:-1]}, {_spelled(name)})" if gpu.name.endswith(")") else f"{gpu.name} ({_spelled(name)})"


def _spelled(name: str) -> str:
    return f"compute capability {name}" if name[0].isdigit() else name


def _listed(names: tuple[str, ...]) -> str:
    """Accelerators in words.

    >>> _listed(("7.5+", "gfx942")), _listed(("9.0", "10.0"))
    ('compute capability 7.5 and above, or gfx942', 'compute capability 9.0, 10.0')
    """
    numbers = [name for name in dict.fromkeys(names) if name[0].isdigit()]
    others = [name for name in dict.fromkeys(names) if not name[0].isdigit()]
    cuda = f"compute capability {', '.join(numbers).replace('+', ' and above')}" if numbers else ""
    return ", or ".join(filter(None, (cuda, ", ".join(others))))


def _makers(names: tuple[str, ...]) -> str:
    """Accelerators in words, by their makers.

    >>> _makers(("7.5+", "gfx*", "xe*")), _makers(("5.0+", "rubin-288gb"))
    ('NVIDIA GPUs of compute capability 7.5 and above, AMD GPUs, Intel GPUs', 'NVIDIA GPUs')
    """
    makers = {"gfx": "AMD GPUs", "xe": "Intel GPUs"}
    lowest = next((name.removesuffix("+") for name in names if name[0].isdigit()), None)
    words = [makers[family(name)] for name in names if family(name) in makers]
    above = f" of compute capability {lowest} and above" if lowest not in (None, "5.0") else ""
    return ", ".join(([] if lowest is None else [f"NVIDIA GPUs{above}"]) + words)


def _elsewhere(engine: Engine, gpu: Gpu) -> str:
    """The advice of what to type: the newest version that runs there, or an engine that does, and where the list is."""
    out = []
    if (ran := _newest(engine, gpu)) is not None:
        out.append(f"--engine {engine.name}@{ran}")
    # The engine that runs on most comes first; one other is enough.
    others = sorted((name for name in ENGINES if name != engine.name), key=lambda name: name != AT_HOME)
    out += [f"--engine {name}" for name in islice(filter(lambda name: runs_today(name, gpu), others), 1)]
    use = f"Use: {' or '.join(out)}. " if out else "kvplan knows no engine's rules there: use another accelerator. "
    return f"{use}What runs where: kvplan engines {engine.name} --hardware"


def usual_server(gpu: Gpu) -> str:
    """The engine that people mostly run on an accelerator of this kind."""
    return "vllm" if gpu.category == "datacenter" else "llamacpp"


def runs_today(name: str, gpu: Gpu) -> bool:
    """True if the newest version of an engine runs there by rules that are known."""
    engine = find_engine(name)[0]
    return has_hardware(name) and _newest(engine, gpu) == engine.versions[0]


def _newest(engine: Engine, gpu: Gpu) -> str | None:
    """The newest version that runs there by rules that are known; ``None`` if none does."""
    known = engine.facts.planned_on
    if known is not None and not any(names_gpu(name, gpu) for name in known):
        return None
    return next((version for version in engine.versions if runs_on(engine.name, version, gpu).answer is Answer.RUNS), None)
