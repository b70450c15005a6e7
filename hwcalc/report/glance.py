"""What the first lines of a plan say: the verdict, what is needed of what there is, how many, how long, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import EXAMPLE_PARAMETERS, NO_WEIGHTS, Note
from hwcalc.planner.result import NO_VERDICT, Plan
from hwcalc.report.drawing import UNSURE, VERDICT_COLORS
from hwcalc.report.summary import fit_lines, host_line, source_line
from hwcalc.report.text import plural
from hwcalc.text import clean
from hwcalc.units import human_bytes

FEW_NOTES: Final = 3

_DETAILS: Final = frozenset({"needs", "from", "budget", "pool", "blocks", "holds"})
"""Lines that say how the answer comes about; all others are the answer."""
_OF_POOL: Final = frozenset({"pool", "from", "blocks", "holds"})

# Codes of notes whose subject changes the numbers most, and of those that name a default of ours.
_WEIGHTY: Final = frozenset(
    {
        "assumed", "unread-keys", "hub-unreachable", "user-profile", "unpinned", "version-unknown", "weights-unknown",
        "weights-approximate", "weights-unchecked", "budget-unknown", "gpu-memory-unknown", "gguf-not-read", "memory-option", "metal-limit",
        "no-own-cache", "encoder-only", "text-only", "per-replica", "dtype-ignored", "local-gpu", "instance", "needs-checkpoint", "shorter-context", "default-weights",
    }
)  # fmt: skip
_INSTEAD: Final = {"hub-unreachable": "gguf-not-read"}
"""Notes that matter less where another one says what came of it."""
_DEFAULTS: Final = ("default-seq", "default-encoder-seq", "default-dtype", "default-gpu", "default-margin")


class Lines(Record):
    """Labelled lines: those of the answer, and those that say how it comes about."""

    answer: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...]


def kept_lines(plan: Plan) -> list[tuple[str, str]]:
    """A labelled line for the policy and one for what is shared; none without them."""
    if plan.policy is None and plan.sharing is None:
        return []
    from hwcalc.report.policy import brief_lines

    return brief_lines(plan)


def verdict_color(plan: Plan) -> str:
    """Green if it fits, red if it does not, yellow if nobody can be sure."""
    return UNSURE if plan.fit is None else VERDICT_COLORS.get(plan.fit.verdict.text, UNSURE)


def first_lines(plan: Plan, *, full: bool = False) -> Lines:
    """The lines below a verdict. Without ``full``, details that the answer has in other words are left out."""
    if plan.fit is None:
        return Lines(answer=(), details=())
    lines = fit_lines(plan)
    pooled = plan.pool is not None and not plan.memory.devices
    shown = _DETAILS if full else _OF_POOL if pooled else frozenset()
    answer = [line for line in lines if line[0] not in _DETAILS]
    host = host_line(plan)
    whole = [("needs", _needs(plan)), *([("host", host)] if host else []), ("cache", _cache(plan))]
    whole += kept_lines(plan)
    # Why it does not fit comes first.
    place = sum(label == "error" for label, _ in answer)
    return Lines(answer=(*answer[:place], *whole, *answer[place:]), details=tuple(line for line in lines if line[0] in shown))


def _needs(plan: Plan) -> str:
    """What the fullest GPU needs of what may be used of it, largest part first."""
    fit, gpu = plan.fit, plan.memory.per_gpu
    assert fit is not None
    low, high = _in_unit_of(fit.needed_bytes, fit.needed_low_bytes), _in_unit_of(fit.needed_bytes, fit.needed_high_bytes)
    span = "" if low == high else f" ({low} to {high})"
    each = f" on each of {fit.gpus:,} GPUs" if fit.gpus > 1 else ""
    whole = f"{human_bytes(fit.needed_bytes)}{span} of {human_bytes(fit.usable_bytes)}{each}"
    if fit.budget is None:
        return f"{whole} for the cache"
    parts = {"weights": gpu.weights, "cache": gpu.cache, "activations": gpu.activations, "overhead": gpu.overhead}
    known = sorted(((size, name) for name, size in parts.items() if size), reverse=True)
    return f"{whole}: {', '.join(f'{name} {_in_unit_of(fit.needed_bytes, size)}' for size, name in known)}"


def _in_unit_of(whole: int, part: int) -> str:
    """A part in the unit of the whole, which stands beside it: ``2.14`` beside ``87.38 GiB``."""
    unit = 1
    while unit * 1024 <= whole and unit < 1024**4:
        unit *= 1024
    return f"{part / unit:,.2f}" if unit > 1 else f"{part:,}"


def _cache(plan: Plan) -> str:
    """The cache of all sequences, of one, and of a token. Where ranks keep copies, the first two have these too."""
    cache = plan.cache
    sizes = [human_bytes(cache.total_bytes)]
    sizes += [f"{human_bytes(cache.copied_bytes)} of it copies on {plan.request.tp:,} ranks"] if cache.copied_bytes else []
    sizes += [f"{human_bytes(cache.bytes_per_sequence)} a sequence"] if plan.request.batch > 1 else []
    sizes += [f"{human_bytes(cache.bytes_per_token)} a token"] if cache.bytes_per_token else []
    return ", ".join(sizes)


def ask_line(plan: Plan, command: str) -> tuple[str, str] | None:
    """The command that asks whether the plan fits, and what else helps; ``None`` if nothing would be said, or hardware was named."""
    if not command or plan.fit is not None or any(note.code == NO_VERDICT for note in plan.warnings):
        return None
    unweighed = any(note.code == NO_WEIGHTS for note in plan.notes)
    if plan.memory.weights.bytes is None and not unweighed:
        # A GPU alone would bring no verdict.
        return None
    if unweighed:
        command = f"{command} {EXAMPLE_PARAMETERS}"
    change = ", with your number of parameters" if unweighed else ""
    from hwcalc.hardware.local import gpu_in_sight

    if gpu_in_sight():
        return f"{command} --gpu local", f"whether it fits this machine's GPU{change}"
    from hwcalc.engines import find_engine
    from hwcalc.profiles.gpus import EXAMPLES, example_gpu

    request, memory = plan.request, plan.memory
    ranks = request.tp * request.pp * request.dcp
    if find_engine(request.engine)[0].splits_layers and ranks == 1:
        return (
            f"{command} --gpu {_AT_HOME}",
            f"whether it fits, how many layers, and what to type{change}; a Mac: m4-24gb; no GPU: cpu-32gb",
        )
    needed = plan.cache.total_bytes if memory.total_bytes is None else memory.total_bytes
    needed += _EXAMPLE_WEIGHTS if unweighed else 0
    name, count = example_gpu(needed, ranks) or (EXAMPLES[-1][0], ranks)
    several = f" --gpus {count}" if count > ranks else ""
    return f"{command} --gpu {name}{several}", f"whether it fits{change}; other hardware: kvplan gpus"


_AT_HOME: Final = "rtx-4060-ti"
"""A card for engines that people run at home: what does not fit it stays in host memory."""
_EXAMPLE_WEIGHTS: Final = 2 * 70 * 10**9
"""Bytes of the weights that the example gives, in 16 bits."""


def notes_of(plan: Plan, *, full: bool = False) -> tuple[list[str], int]:
    """The notes, the most important first, and how many more there are. ``full`` gives all of them."""
    stated = {note.code for note in plan.notes}
    ranked = sorted(plan.notes, key=lambda note: 1 if stated >= {note.code, _INSTEAD.get(note.code)} else _rank(note))
    texts = [*(clean(note.message) for note in ranked), source_line(plan)]
    few = len(texts) if full or len(texts) <= FEW_NOTES + 1 else FEW_NOTES
    return texts[:few], len(texts) - few


def _rank(note: Note) -> int:
    if note.code in _WEIGHTY:
        return 0
    return 2 + _DEFAULTS.index(note.code) if note.code in _DEFAULTS else 1


def more_notes(count: int) -> Sequence[tuple[str, str]]:
    """A line that names the option that shows the rest; none if there is no rest."""
    return [("", f"{plural(count, 'more note')}: -v")] if count else []
