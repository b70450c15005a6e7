"""Several models on one node, as text, Markdown or CSV."""

from __future__ import annotations

from typing import Final

from hwcalc.library.swap import RestInfo, Sizes, SwapModel, Swapping
from hwcalc.report.text import plural
from hwcalc.report.view import View
from hwcalc.units import human_bytes, human_duration

_HEADER: Final = ("model", "asleep", "awake", "stays", "host", "sleeps", "wakes", "by drive")
_MEANINGS: Final = (
    "asleep: how a model sleeps; awake: GPU memory; stays: GPU memory while it sleeps; host: host memory while it sleeps; "
    "by drive: the time to wake where the drive has the weights"
)


def swap_text(found: Swapping, view: View) -> str:
    """Text: the node, each model awake and asleep, the sets that fit, host memory, and what starts them."""
    version = f" {found.engine_version}" if found.engine_version else ""
    head = (
        f"{plural(len(found.models), 'model')} on {found.gpus:,} x {found.gpu} of {human_bytes(found.gpu_bytes)}, "
        f"{found.engine}{version}, {plural(found.batch, 'sequence')} each"
    )
    rows = [_row(model, rest, first=not number) for model in found.models for number, rest in enumerate(model.rests)]
    sets = [
        f"{' + '.join(each.models)}: {_range(each.gpu)} of {human_bytes(each.usable_bytes)}, {each.verdict.text}"
        for each in found.together
    ]
    lines = [f"awake together: {text}" for text in sets] or ["no model can be awake"]
    lines += [f"never awake: {', '.join(found.never)}"] if found.never else []
    if found.most_awake is not None:
        lines.append(
            f"at most {plural(found.most_awake, 'model')} awake" + (f" ({found.most_option})" if found.most_option else "")
        )
    lines += (
        [f"host memory for those asleep: {_between(found.host_bytes, found.host_high_bytes)}"] if found.host_high_bytes else []
    )
    rate = "unknown" if found.host_gbps is None else f"{found.host_link}, {found.host_gbps:,.3g} GB/s"
    lines.append(
        f"times are bounds: bytes by the rate of the link to the host ({rate}) or of the drive ({found.disk_link}, {found.disk_gbps:,.3g} GB/s). "
        "A switch is one model going to sleep and another waking"
    )
    tail = []
    if not view.quiet:
        tail.append(_MEANINGS)
        for rest in found.models[0].rests:
            starts = f"; starts with {' '.join(rest.starts_with)}" if rest.starts_with else ""
            tail.append(f"{rest.name}: {rest.how}{starts}")
        tail += [f"start {model.model} with {' '.join(model.starts_with)}" for model in found.models if model.starts_with]
        tail.append(f"source: {found.source}")
        tail += [note.message for note in found.notes]
    table = view.table(_HEADER, rows, right=range(2, len(_HEADER)))
    return "\n".join([view.paragraphs([head]), table, view.paragraphs(lines), *([view.paragraphs(tail)] if tail else [])])


def _row(model: SwapModel, rest: RestInfo, *, first: bool) -> list[str]:
    """A way of a model; the model is named in its first row."""
    host = _between(rest.host_bytes, rest.host_high_bytes) if rest.host_bytes else "none"
    stays = human_bytes(rest.gpu.expected) if rest.gpu.high else "nothing"
    times = [_time(rest.sleep_s), _time(rest.wake_s), _time(rest.wake_disk_s)]
    return [model.model if first else "", rest.name, human_bytes(model.awake.expected) if first else "", stays, host, *times]


def _range(sizes: Sizes) -> str:
    if sizes.low == sizes.high:
        return human_bytes(sizes.expected)
    return f"{human_bytes(sizes.expected)} ({human_bytes(sizes.low)} to {human_bytes(sizes.high)})"


def _between(low: int, high: int) -> str:
    """A range of bytes; the unit is said once where both ends have it."""
    first, second = human_bytes(low), human_bytes(high)
    unit = second.rpartition(" ")[2]
    return second if first == second else f"{first.removesuffix(f' {unit}')} to {second}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else "at once" if not seconds else human_duration(seconds)
