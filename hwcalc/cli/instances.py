"""``kvplan instances``: list cloud instances and machines with their accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import OUTPUT, Example, Option, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.documents import document_of
from hwcalc.model import Note
from hwcalc.text import shell_word
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.report.hardware import InstanceInfo

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    Option(
        "search",
        (),
        "[SEARCH]...",
        "A name shows that one; else words that must all occur in the name, the cloud, the accelerator or what joins them.",
        "list",
        complete="instances",
    ),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("All of them", "kvplan instances"),
    Example("Those with an accelerator", "kvplan instances h100"),
    Example("One with its source", "kvplan instances p5.48xlarge"),
)

_HEADER = ("instance", "accelerator", "count", "visible each", "fabric")
_CSV = ("name", "id", "cloud", "accelerator", "count", "fraction", "visible_bytes_each", "fabric", "note")


def run(*, search: Sequence[str] | None, **output: Any) -> Answer:
    """List cloud instances and boxes with their accelerators.

    All, those that have an accelerator (h100), or one with its source.
    """
    from hwcalc.hardware.profiles import profile_errors

    view = view_of(**output)
    notes: list[Note] = []
    with profile_errors():
        found, exact = _chosen(" ".join(search or ()).strip(), notes)
    left_out = tuple(note.message for note in notes)
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION

        return replace(
            answer({"schema_version": SCHEMA_VERSION, "instances": [document_of(info) for info in found]}), remarks=left_out
        )
    if exact and view.format != "csv":
        return Answer(text=_one(found[0], view))
    from hwcalc.report.listing import listing
    from hwcalc.report.text import plural

    if view.format == "csv":
        count = () if view.quiet else (plural(len(found), "instance"),)
        rows = [[_cell(getattr(info, column)) for column in _CSV] for info in found]
        return Answer(text=listing(_CSV, rows, format_="csv"), remarks=(*left_out, *count))
    rows = [[info.name, info.accelerator, info.fraction or f"{info.count:,}", _each(info), info.fabric or ""] for info in found]
    text = listing(_HEADER, rows, format_=view.format, right=(2, 3), color=view.color, width=view.width)
    more = () if view.quiet else (f"{plural(len(found), 'instance')}. One in full: kvplan instances NAME",)
    return Answer(text=text, remarks=(*left_out, *more))


def _chosen(words: str, notes: list[Note]) -> tuple[list[InstanceInfo], bool]:
    """The chosen instances, and whether the words name exactly one."""
    from hwcalc.hardware.named import gpu_named, instance_device, instance_named
    from hwcalc.hardware.profiles import known_instances, leaving_out
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.profiles.instances import AmbiguousInstanceError, UnknownInstanceError, find_instance
    from hwcalc.report.hardware import instance_info

    if words:
        try:
            one = find_instance(words)
        except (UnknownInstanceError, AmbiguousInstanceError):
            pass
        else:
            return [instance_info(one, instance_device(one))], True
    terms = words.lower().split()
    infos = []
    for name, instance in known_instances(notes):
        haystack = f"{name} {instance.id} {instance.accelerator} {instance.fabric or ''} {instance.note or ''}".lower()
        if all(term in haystack for term in terms):
            with leaving_out(notes):
                infos.append(instance_info(instance, instance_device(instance)))
    if infos or not words:
        return infos, False
    # The words may be an alias of an accelerator: "4090", "trillium".
    try:
        gpu = find_gpu(words)
    except UnknownGpuError:
        # Raises an error that suggests similar names.
        instance_named(words)
        return [], False
    return _with(gpu_named(gpu.id).id, notes), False


def _with(gpu_id: str, notes: list[Note]) -> list[InstanceInfo]:
    from hwcalc.errors import UsageError
    from hwcalc.hardware.named import instance_device
    from hwcalc.hardware.profiles import known_instances, leaving_out
    from hwcalc.report.hardware import instance_info

    infos = []
    for _, instance in known_instances(notes):
        if instance.accelerator == gpu_id:
            with leaving_out(notes):
                infos.append(instance_info(instance, instance_device(instance)))
    if not infos:
        raise UsageError(f"no instance with {gpu_id} is known.", hint="All of them: kvplan instances")
    return infos


def _one(info: InstanceInfo, view: View) -> str:
    from hwcalc.report.listing import listing

    facts = [
        ("instance", info.name),
        ("its cloud's name", info.id),
        ("accelerators", f"{info.fraction or f'{info.count:,} x'} {'of ' if info.fraction else ''}{info.accelerator}"),
        ("visible each", _each(info)),
        ("fabric", info.fabric or ""),
        ("note", info.note or ""),
        ("source", info.source),
        ("plan with it", f"kvplan MODEL --instance {shell_word(info.name)}"),
    ]
    return listing(("", ""), [fact for fact in facts if fact[1]], format_=view.format, color=view.color, width=view.width)


def _each(info: InstanceInfo) -> str:
    return "" if info.visible_bytes_each is None else human_bytes(info.visible_bytes_each)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
